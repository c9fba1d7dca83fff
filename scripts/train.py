"""Trains a Vision Transformer, a BiT ResNet or an MLP-Mixer from scratch.

Writes to the folder --out: model.keras (the final weights), best.keras (best validation accuracy),
log.csv, tensorboard/, result.json (test accuracy) and what is needed to go on. The same command
again continues a run that was stopped, from its last whole epoch.

Examples:
    python scripts/train.py --out runs/digits
    python scripts/train.py --out runs/digits --strategy multiworker   (once on each machine)
    python scripts/train.py --data fashion_mnist --model bit --units 1 1 --epochs 20 --out runs/bit
    python scripts/train.py --data path/to/class/folders --image-size 224 --variant S/16 --flip \\
        --rand-augment 0.3 --mixup 0.2 --strategy mirrored --mixed-precision --out runs/s16
"""

import dataclasses
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import common

import vit_tf

SMALL_VIT = {"patch_size": 4, "num_layers": 6, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 256}
SMALL_BIT = {"units": (1, 1, 1), "width_factor": 0.5}
SMALL_MIXER = {"patch_size": 4, "num_layers": 6, "hidden_dim": 64}
SMALL_MIXER |= {"tokens_mlp_dim": 32, "channels_mlp_dim": 256}
# Each model, its size where none is given, and the arguments that have a flag of their own.
MODELS = {
    "vit": (vit_tf.ViT, SMALL_VIT, (*SMALL_VIT, "pooling", "dropout_rate", "without_skips")),
    "bit": (vit_tf.BiT, SMALL_BIT, (*SMALL_BIT, "stem", "without_skips")),
    "mixer": (vit_tf.Mixer, SMALL_MIXER, (*SMALL_MIXER, "dropout_rate", "without_skips")),
}


def main(arguments=None):
    """Train as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments)


def parse(arguments=None):
    """The options of the command line."""
    parser = common.make_parser(__doc__)
    size = {"default": 32, "help": "side of the images, in pixels; 32 by default"}
    common.add_training(parser, parser.add_argument_group("data").add_argument, size)
    _add_model(parser.add_argument_group("model").add_argument)
    _add_recipe(parser.add_argument_group("recipe").add_argument)
    return parser.parse_args(arguments)


def _add_model(add):
    add("--model", choices=tuple(MODELS), default="vit", help="ViT (default), ResNet or Mixer")
    add("--variant", help="a published size, such as B/16 or R50x1; a small one if not given")
    add("--patch-size", type=int, help="ViT, Mixer: side of a patch, in pixels")
    add("--num-layers", type=int, help="ViT, Mixer: number of blocks")
    add("--num-heads", type=int, help="ViT: attention heads of a block")
    add("--hidden-dim", type=int, help="ViT, Mixer: channels of a token")
    add("--mlp-dim", type=int, help="ViT: hidden units of an MLP")
    add("--pooling", help="ViT: cls (default) or gap")
    add("--tokens-mlp-dim", type=int, help="Mixer: hidden units of an MLP across the tokens")
    add("--channels-mlp-dim", type=int, help="Mixer: hidden units of an MLP across the channels")
    add("--dropout-rate", type=float, help="ViT, Mixer: share dropped; 0 by default")
    add("--units", type=int, nargs="+", help="ResNet: units of each stage, such as 3 4 6 3")
    add("--width-factor", type=float, help="ResNet: multiplies the channels; 1 is 64 in the root")
    add("--stem", help="ResNet: imagenet or small; by the size of the images if not given")
    add("--without-skips", nargs="+", help="sites without a skip: block03, block04/mlp, stage2/...")


def _add_recipe(add):
    default = vit_tf.Recipe()
    number = {"type": float, "metavar": "X"}

    def field(name, text, **kwargs):
        value = getattr(default, name)
        add(f"--{name.replace('_', '-')}", help=f"{text}; {value} by default", **kwargs)

    field("epochs", "passes over the training data", type=int, metavar="N")
    field("learning_rate", "its peak", **number)
    field("warmup_epochs", "epochs until the peak (None: a tenth of all)", **number)
    field("schedule", "cosine, linear or staircase decay after the peak")
    field("weight_decay", "a kernel shrinks by this share times the learning rate", **number)
    field("label_smoothing", "share of a label spread over all classes", **number)
    field("clip_norm", "largest global norm of the gradients", **number)
    field("ema", "momentum of an average of the weights, such as 0.999", **number)
    field("rand_augment", "magnitude in [0, 1] of RandAugment", **number)
    field("mixup", "alpha of MixUp, such as 0.2", **number)
    field("cutmix", "alpha of CutMix, such as 1.0", **number)
    field("flip", "mirror half of the images", action="store_true", default=None)
    field("shift", "largest random shift, in pixels", type=int, metavar="N")


def make_model(options, image_shape, num_classes):
    """The model that the options ask for."""
    kind, small, names = MODELS[options.model]
    every = {name for _, _, known in MODELS.values() for name in known}
    foreign = common.given(options, sorted(every - set(names)))
    if foreign:
        raise ValueError(f"Expected options of --model {options.model}. Received: {foreign}")
    settings = {"image_shape": image_shape, "num_classes": num_classes} | common.given(
        options, names
    )
    if options.variant:
        return kind.from_variant(options.variant, **settings)
    return kind(**small | settings)


def run(options):
    """Train, test and write the model and its result."""
    fields = [field.name for field in dataclasses.fields(vit_tf.Recipe)]
    recipe = vit_tf.Recipe(**common.given(options, fields))
    common.prepare(options)
    data = {"image_size": options.image_size} | common.data_arguments(options)
    splits = vit_tf.data.load(
        options.data, data_dir=options.data_dir, splits=("train", "validation", "test"), **data
    )
    num_classes = vit_tf.data.describe(options.data, options.data_dir).num_classes
    shape = tuple(splits[0].element_spec[0].shape[1:])
    common.train_and_test(
        lambda: make_model(options, shape, num_classes),
        recipe,
        splits,
        options,
        {"name": options.data, **data},
    )


if __name__ == "__main__":
    sys.exit(main())
