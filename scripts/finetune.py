"""Fine-tunes a trained model on other data, at another resolution if wanted.

The model's head is replaced by one that starts at zero, its position embeddings are resampled to
the image size, and all of it is trained by the recipe of its family: that of the ViT paper (SGD
with momentum 0.9, cosine decay, gradients clipped to 1), or the BiT-HyperRule for ResNets. Images
are resized and normalised as the model expects.

Writes to the folder --out: model.keras (the final weights, with their preprocessing), best.keras
(best validation accuracy), log.csv, tensorboard/, result.json (test accuracy) and what is needed to
go on. The same command again continues a run that was stopped, from the step of its last state;
SIGTERM saves the state, and the exit status is 143.

Examples:
    vit-tf finetune fashion.keras --data digits --image-size 48 --out runs/tuned
    vit-tf finetune vit.keras --data photos/ --image-size 384 --ema 0.9999 --flip \\
        --batch-size 512 --steps 10000 --out runs/photos
    vit-tf finetune bit.keras --data cifar10 --batch-size 512 --out runs/cifar
"""

import argparse
import dataclasses
import sys
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import vit_tf
from vit_tf.remote import without_password
from vit_tf.scripts import common, image_values, option_groups

SPLITS = ("train", "validation", "test")


def main(arguments=None):
    """Fine-tune as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments, common.epochs_kept, common.TRAINING_BACKENDS)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("finetune", __doc__)
    option_groups.add_model(parser)
    add = parser.group("model")
    how = "how position embeddings are resampled: bilinear, bicubic or dino"
    add("--positions", metavar="NAME", default="bilinear", help=how)
    image_values.add_values(add)
    size = "side of the images, in pixels (default: the model's, or the HyperRule's)"
    option_groups.add_training(parser, {"help": size})
    _add_recipe(parser.group("recipe"))
    return parser.parse_args(arguments)


def _add_recipe(add):
    families = "(default: hyperrule for a BiT, else vit)"
    text = f"whose values hold, vit or hyperrule {families}"
    add("--recipe", choices=("vit", "hyperrule"), metavar="NAME", help=text)
    add("--steps", type=int, help="how many (default: 500, 10000 or 20000 by the size of the data)")
    peak = "its peak (default: 0.01 for vit, 0.003 x batch size / 512 for hyperrule)"
    add("--learning-rate", type=float, help=peak)
    kept = "share of the last step that a step keeps (default: 0.9)"
    add("--momentum", type=float, help=kept)
    warmup = "steps until the peak (default: a fifth of all, 500 at most)"
    add("--warmup-steps", type=int, help=warmup)
    decay = "cosine, linear, staircase or short_staircase (default: cosine; for hyperrule BiT's)"
    add("--schedule", metavar="NAME", help=decay)
    norm = "largest global norm of the gradients (default: 1 for vit, none for hyperrule)"
    add("--clip-norm", type=float, help=norm)
    average = "momentum of an average of the weights (Polyak), such as 0.9999 (default: none)"
    add("--ema", type=float, help=average)
    mixup = "alpha of MixUp (default: 0, for hyperrule 0.1 from 20,000 examples on)"
    add("--mixup", type=float, help=mixup)
    flip = {"action": argparse.BooleanOptionalAction, "default": None}
    add("--flip", help="mirror half of the images (default: for hyperrule)", **flip)
    often = "how often to validate and save (default: 10)"
    add("--num-validations", dest="validations", type=int, help=often)
    option_groups.add_alias(add, "--validations", "validations", type=int)


def make_recipe(options, model):
    """The `FineTuning` that the options ask for, by the family of the model."""
    names = {field.name for field in dataclasses.fields(vit_tf.FineTuning)}
    changes = common.given(options, sorted(names - {"resize", "crop"}))
    examples = common.describe_data(options).num_examples["train"]
    examples = min(examples, options.take or examples)
    family = "hyperrule" if isinstance(model, vit_tf.BiT) else "vit"
    if (options.recipe or family) == "vit":
        return vit_tf.FineTuning.vit(examples, **changes)
    recipe = vit_tf.FineTuning.hyperrule(
        examples, _own_size(options), options.batch_size, **changes
    )
    if options.image_size is None:
        return recipe
    wider = round(options.image_size * recipe.resize[0] / recipe.crop[0])
    sizes = {"crop": (options.image_size,) * 2, "resize": (wider, wider)}
    return dataclasses.replace(recipe, **sizes)


def _own_size(options):
    """The (height, width) of a first image as it is, in pixels."""
    few = {"splits": ("train",), "take": 1, "batch_size": 1, "data_dir": options.data_dir}
    few |= common.chosen_classes(options)
    try:
        (one,) = vit_tf.data.load(options.data, **few)
    except ValueError as error:
        if "image_size" not in str(error):
            raise
        return 224, 224  # images that differ in size are photographs
    return tuple(one.element_spec[0].shape[1:3])


def load_splits(options, recipe, preprocessing):
    """Training, validation and test data, the first at the size that its crops are cut from."""

    def load(size):
        return vit_tf.data.load(
            options.data,
            data_dir=options.data_dir,
            splits=SPLITS,
            preprocessing=dataclasses.replace(preprocessing, size=size),
            **common.data_arguments(options),
        )

    train, *others = load(preprocessing.size)
    return [load(recipe.resize)[0] if recipe.resize else train, *others]


def in_bfloat16(model):
    """The model computing in bfloat16; one that is loaded computes as it was saved."""
    fresh = type(model).from_config(model.get_config() | {"dtype": "mixed_bfloat16"})
    fresh.set_weights(model.get_weights())
    return fresh


def run(options):
    """Fine-tune, test and write the model and its result."""
    from vit_tf.models.model import VisionModel

    common.prepare(options)
    start = common.open_model(options.model)
    if not isinstance(start, VisionModel):
        raise ValueError(
            "Expected the model to be a ViT, BiT, CLIPViT, SigLIPViT, BEiT or Mixer of this "
            "package. "
            f"Received: {type(start).__name__} in {options.model!r}"
        )
    given = image_values.given_values(options, start.preprocessing.size)
    start.preprocessing = given or start.preprocessing
    if options.mixed_precision:
        start = in_bfloat16(start)
    recipe = make_recipe(options, start)
    known = common.describe_labelled(options)
    size = recipe.crop or (options.image_size and (options.image_size,) * 2)
    preprocessing = start.preprocessing
    if size:
        preprocessing = dataclasses.replace(preprocessing, size=size)
    splits = load_splits(options, recipe, preprocessing)
    description = {
        "name": without_password(options.data),
        "start": without_password(options.model),
        "positions": options.positions,
    }
    description |= {"preprocessing": preprocessing.to_config()} | common.data_arguments(options)
    common.train_and_test(
        lambda: vit_tf.at_resolution(start, size, known.num_classes, options.positions),
        recipe,
        splits,
        options,
        description,
    )


if __name__ == "__main__":
    sys.exit(main())
