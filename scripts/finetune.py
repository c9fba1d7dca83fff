"""Fine-tunes a trained model on other data, optionally at another resolution.

The head is replaced by a new head, initialized with zeros, and position embeddings are resampled to
the image size. All weights are trained by the recipe of the model's family: the recipe of the ViT
paper (SGD with momentum 0.9, cosine decay, gradients clipped to norm 1), or the BiT-HyperRule for
ResNets. Images are resized and normalized as the model expects.

Writes to the folder --out: model.keras (final weights), best.keras (best validation accuracy),
log.csv, tensorboard/, result.json (test accuracy) and state/, from which the same command resumes a
run that was stopped. On SIGTERM the state is saved, and the exit status is 143.

Examples:
    vit-tf finetune fashion.keras --data digits --image-size 48 --out runs/tuned
    vit-tf finetune vit.keras --data photos/ --image-size 384 --ema 0.9999 --flip \\
        --batch-size 512 --steps 10000 --out runs/photos
    vit-tf finetune bit.keras --data cifar10 --batch-size 512 --out runs/cifar
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import vit_tf
from vit_tf.common.names import without_password
from vit_tf.scripts import common
from vit_tf.scripts.common import Arguments, Options, integer, named

if TYPE_CHECKING:
    import tensorflow as tf

    from vit_tf.models.model import VisionModel

SPLITS = ("train", "validation", "test")
# The fields of the recipe that are options.
FIELDS = {field.name for field in dataclasses.fields(vit_tf.FineTuning)} - {"resize", "crop"}
OPTIONS = {
    "model": {
        **common.MODEL,
        "--positions": named(
            "resampling of position embeddings: bilinear, bicubic or dino", default="bilinear"
        ),
        **common.VALUES,
    },
    "data": {
        **common.TRAINING_DATA,
        "--image-size": integer(
            "side of the images, in pixels (default: the model's, or the HyperRule's)"
        ),
    },
    "run": common.TRAINING_RUN,
    "recipe": {
        "--recipe": named(
            "fine-tuning recipe, which sets all options below: vit (the ViT paper) or hyperrule "
            "(BiT-HyperRule of Kolesnikov et al. 2019) (default: hyperrule for a BiT, otherwise "
            "vit)",
            choices=("vit", "hyperrule"),
        ),
        **common.recipe_options(
            vit_tf.FineTuning, FIELDS - {"seed", "validations"}, "that of the recipe"
        ),
        "--num-validations": integer(
            "number of validations and saved states (default: 10)", dest="validations"
        ),
    },
}
MAIN = ("--data", "--data-dir", "--image-size", "--batch-size", "--recipe", "--steps")
MAIN += ("--learning-rate", "--mixup", "--flip", "--out", "--strategy", "--mixed-precision")


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return common.run_command(
        parse, run, arguments, common.describe_epochs, common.TRAINING_BACKENDS
    )


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    return common.make_parser("finetune", __doc__, OPTIONS, MAIN).parse_args(arguments)


def run(options: Options) -> None:
    """Fine-tune, test and write the model and its result."""
    from vit_tf.models.model import VisionModel

    common.prepare(options)
    start = common.open_model(options.model)
    if not isinstance(start, VisionModel):
        raise ValueError(
            "Expected the model to be a ViT, BiT, CLIPViT, SigLIPViT, BEiT or Mixer of this "
            f"package. Received: {type(start).__name__} in {options.model!r}"
        )
    given = common.given_preprocessing(options, start.preprocessing.size)
    start.preprocessing = given or start.preprocessing
    if options.mixed_precision:
        # A loaded model computes in the precision with which it was saved.
        mixed = type(start).from_config(start.get_config() | {"dtype": "mixed_bfloat16"})
        mixed.set_weights(start.get_weights())
        start = mixed
    recipe = make_recipe(options, start)
    num_classes = common.describe_labelled(options).num_classes
    size = recipe.crop or (options.image_size and (options.image_size,) * 2)
    preprocessing = start.preprocessing
    if size:
        preprocessing = dataclasses.replace(preprocessing, size=size)
    splits = load_splits(options, recipe, preprocessing)
    description = {
        "name": without_password(options.data),
        "positions": options.positions,
        "start": without_password(options.model),
        "preprocessing": preprocessing.to_config(),
        **common.data_arguments(options),
    }
    with vit_tf.distribute.strategy(options.strategy).scope():
        model = vit_tf.at_resolution(start, size, num_classes, options.positions)
        result = common.train_and_test(model, recipe, splits, options, description)
    common.say(
        f"test accuracy {100 * result['test_accuracy']:.2f} %, {options.out / 'model.keras'}"
    )


def make_recipe(options: Options, model: VisionModel) -> vit_tf.FineTuning:
    """The `FineTuning` that the options ask for, by the family of the model."""
    changes = common.given(options, sorted(FIELDS))
    examples = common.describe_data(options).num_examples["train"]
    examples = min(examples, options.take or examples)
    family = "hyperrule" if isinstance(model, vit_tf.BiT) else "vit"
    if (options.recipe or family) == "vit":
        return vit_tf.FineTuning.vit(examples, **changes)
    size = _own_size(options)
    recipe = vit_tf.FineTuning.hyperrule(examples, size, options.batch_size, **changes)
    if options.image_size is None or not (recipe.resize and recipe.crop):
        return recipe
    wider = round(options.image_size * recipe.resize[0] / recipe.crop[0])
    return dataclasses.replace(recipe, crop=(options.image_size,) * 2, resize=(wider, wider))


def _own_size(options: Options) -> tuple[int, int]:
    """The (height, width) of a first image as it is, in pixels."""
    from vit_tf.data.source import SizesDifferError

    few = {"splits": ("train",), "take": 1, "batch_size": 1, "data_dir": options.data_dir}
    few |= common.chosen_classes(options)
    try:
        (images,) = vit_tf.data.load(options.data, **few)
    except SizesDifferError:
        return 224, 224  # images that differ in size are photographs
    return tuple(images.element_spec[0].shape[1:3])


def load_splits(
    options: Options, recipe: vit_tf.FineTuning, preprocessing: vit_tf.Preprocessing
) -> list[tf.data.Dataset]:
    """Training, validation and test data, the first at the size that its crops are cut from."""
    arguments = common.data_arguments(options) | {"data_dir": options.data_dir, "splits": SPLITS}
    train, *others = vit_tf.data.load(options.data, preprocessing=preprocessing, **arguments)
    if recipe.resize:
        wider = dataclasses.replace(preprocessing, size=recipe.resize)
        train, *_ = vit_tf.data.load(options.data, preprocessing=wider, **arguments)
    return [train, *others]
