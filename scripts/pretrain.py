"""Pre-trains a Vision Transformer without labels, by masked patch prediction.

Half of the patches of each image are corrupted, and the model predicts the mean colour of each of
them in 3 bits per channel (Dosovitskiy et al. 2020, appendix B.1.2). The classes of the data only
determine the size of the head that fine-tuning trains: labels are not used.

Writes to the folder --out: model.keras (the ViT with its final weights and a zero head, ready for
vit-tf finetune), best.keras (the masked-patch model at its best validation accuracy), log.csv,
tensorboard/, result.json (test accuracy of the predicted colours, and the accuracy of always
predicting the most common colour) and state/, from which the same command resumes a run that was
stopped. On SIGTERM the state is saved, and the exit status is 143.

Examples:
    vit-tf pretrain --data fashion_mnist --epochs 20 --out runs/masked
    vit-tf finetune runs/masked/model.keras --data fashion_mnist --take 600 \\
        --out runs/tuned
    vit-tf pretrain --data photos/ --image-size 224 --variant S/16 --flip \\
        --batch-size 512 --strategy mirrored --mixed-precision --out runs/masked_s16
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import vit_tf
from vit_tf.common.names import without_password
from vit_tf.scripts import common
from vit_tf.scripts.common import Arguments, Options, integer, named

if TYPE_CHECKING:
    import tensorflow as tf

MODEL = (*common.SMALL_VIT, *common.VIT)
RECIPE = ("epochs", "learning_rate", "warmup_epochs", "schedule", "weight_decay", "clip_norm")
RECIPE += ("ema", "gradient_accumulation_steps")
COUNTED = 100  # training batches that determine the most common colour
AUGMENTATIONS = ("rand_augment", "flip", "shift")
OPTIONS = {
    "model": {
        "--variant": named("published size of a ViT, such as B/16 (default: a small model)"),
        # The texts name the models that have an option, of which only the ViT is trained here.
        **{
            name: settings
            | {"help": settings["help"].removeprefix("ViT, Mixer: ").removeprefix("ViT: ")}
            for name, settings in common.ARCHITECTURE.items()
            if name in map(common.flag, MODEL)
        },
    },
    "data": {
        **common.TRAINING_DATA,
        "--image-size": integer("side of the images, in pixels", default=32),
    },
    "run": common.TRAINING_RUN,
    "recipe": common.recipe_options(vit_tf.Pretraining, (*RECIPE, *AUGMENTATIONS)),
}
MAIN = ("--variant", "--data", "--data-dir", "--image-size", "--batch-size", "--epochs")
MAIN += ("--learning-rate", "--flip", "--out", "--strategy", "--mixed-precision")


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return common.run_command(
        parse, run, arguments, common.describe_epochs, common.TRAINING_BACKENDS
    )


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    return common.make_parser("pretrain", __doc__, OPTIONS, MAIN).parse_args(arguments)


def run(options: Options) -> None:
    """Pre-train, test and write the model and its result."""
    from vit_tf.training.evaluation import majority_accuracy

    recipe = vit_tf.Pretraining(**common.given(options, RECIPE))
    common.prepare(options)
    data = {"image_size": options.image_size} | common.data_arguments(options)
    splits = ("train", "validation", "test")
    train, *others = vit_tf.data.load(
        options.data, data_dir=options.data_dir, splits=splits, **data
    )
    num_classes = common.describe_labelled(options).num_classes
    shape = tuple(train.element_spec[0].shape[1:])
    with vit_tf.distribute.strategy(options.strategy).scope():
        model = make_model(options, shape, num_classes)
        masked = mask_splits((train, *others), model.vit, num_classes, options)
        result = common.train_and_test(
            model,
            recipe,
            masked,
            options,
            {
                "name": without_password(options.data),
                **data,
                **common.given(options, AUGMENTATIONS),
            },
            saved=model.vit,
            more_scores=lambda: {
                "commonest_colour_accuracy": majority_accuracy(
                    masked[0], masked[-1], model.num_classes, COUNTED
                )
            },
        )
    common.say(
        f"test accuracy {100 * result['test_accuracy']:.2f} % of the colours of masked patches, "
        f"{100 * result['commonest_colour_accuracy']:.2f} % for always the most common colour, "
        f"{options.out / 'model.keras'}"
    )


def make_model(
    options: Options, image_shape: tuple[int, int, int], num_classes: int
) -> vit_tf.MaskedPatchPrediction:
    """The pre-training model of the ViT of the options."""
    settings = {"image_shape": image_shape, "num_classes": num_classes}
    settings |= common.given(options, MODEL)
    if options.variant:
        return vit_tf.MaskedPatchPrediction(vit_tf.ViT.from_variant(options.variant, **settings))
    return vit_tf.MaskedPatchPrediction(vit_tf.ViT(**common.SMALL_VIT | settings))


def mask_splits(
    splits: Sequence[tf.data.Dataset], vit: vit_tf.ViT, num_classes: int, options: Options
) -> list[tf.data.Dataset]:
    """Training, validation and test data for masked patch prediction, the first augmented."""
    train, *others = splits
    # Images are augmented first: their patches are corrupted, and their colours predicted.
    if augmentations := common.given(options, AUGMENTATIONS):
        train = vit_tf.data.augment(train, num_classes, seed=options.seed, **augmentations)
    masks = {"grid": vit.token_grid, "preprocessing": vit.preprocessing, "seed": options.seed}
    fixed = [vit_tf.data.mask_patches(split, fixed=True, **masks) for split in others]
    return [vit_tf.data.mask_patches(train, **masks), *fixed]
