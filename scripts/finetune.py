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
    python scripts/finetune.py fashion.keras --data digits --image-size 48 --out runs/tuned
    python scripts/finetune.py vit.keras --data photos/ --image-size 384 --ema 0.9999 --flip \\
        --batch-size 512 --steps 10000 --out runs/photos
    python scripts/finetune.py bit.keras --data cifar10 --batch-size 512 --out runs/cifar
"""

import argparse
import dataclasses
import sys
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import vit_tf
from vit_tf.scripts import common, image_values
from vit_tf.scripts.own_modules import add_imports

SPLITS = ("train", "validation", "test")


def main(arguments=None):
    """Fine-tune as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments, common.epochs_kept)


def parse(arguments=None):
    """The options of the command line."""
    parser = common.make_parser(__doc__)
    parser.add_argument("model", help="a .keras file, a checkpoint file or a public name")
    add_imports(parser.add_argument)
    size = {"help": "side of the images, in pixels; by default the model's, or the HyperRule's"}
    common.add_training(parser, parser.add_argument_group("data").add_argument, size)
    parser.add_argument(
        "--positions",
        default="bilinear",
        help="how position embeddings are resampled: bilinear (default), bicubic or dino",
    )
    image_values.add_values(parser.add_argument)
    _add_recipe(parser.add_argument_group("recipe").add_argument)
    return parser.parse_args(arguments)


def _add_recipe(add):
    number = {"type": float, "metavar": "X"}
    whole = {"type": int, "metavar": "N"}
    add("--recipe", choices=("vit", "hyperrule"), help="by default hyperrule for a BiT, else vit")
    add("--steps", help="how many; by default 500, 10000 or 20000 by the size of the data", **whole)
    add("--learning-rate", help="its peak; 0.01 (vit) or 0.003 x batch size / 512", **number)
    add("--momentum", help="share of the last step that a step keeps; 0.9 by default", **number)
    add("--warmup-steps", help="steps until the peak; by default a fifth, 500 at most", **whole)
    add("--schedule", help="cosine (vit), linear or staircase (hyperrule)")
    add("--clip-norm", help="largest global norm of the gradients; 1 (vit) or none", **number)
    add("--ema", help="momentum of an average of the weights (Polyak), such as 0.9999", **number)
    add(
        "--mixup", help="alpha of MixUp; 0 (vit), 0.1 from 20,000 examples on (hyperrule)", **number
    )
    flip = {"action": argparse.BooleanOptionalAction, "default": None}
    add("--flip", help="mirror half of the images; on for hyperrule", **flip)
    add("--validations", help="how often to validate and save; 10 by default", **whole)


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
            "Expected the model to be a ViT, BiT, CLIPViT, BEiT or Mixer of this package. "
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
    description = {"name": options.data, "start": options.model, "positions": options.positions}
    description |= {"preprocessing": preprocessing.to_config()} | common.data_arguments(options)
    common.train_and_test(
        lambda: vit_tf.at_resolution(start, size, known.num_classes, options.positions),
        recipe,
        splits,
        options,
        description,
        class_names=known.class_names,
    )


if __name__ == "__main__":
    sys.exit(main())
