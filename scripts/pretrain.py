"""Pre-trains a Vision Transformer without labels, by masked patch prediction.

Half of the patches of each image are corrupted, and the model predicts the mean colour of each of
them in 3 bits per channel (Dosovitskiy et al. 2020, appendix B.1.2).

Writes to the folder --out: model.keras (the ViT with its final weights and a head of zeros, ready
for vit-tf finetune), best.keras (the model of masked patches at its best validation accuracy),
log.csv, tensorboard/, result.json (test accuracy, and that of always the commonest colour) and
what is needed to go on. The same command again continues a run that was stopped, from the step of
its last state; SIGTERM saves the state, and the exit status is 143.

Examples:
    vit-tf pretrain --data fashion_mnist --epochs 20 --out runs/masked
    vit-tf finetune runs/masked/model.keras --data fashion_mnist --take 600 \\
        --out runs/tuned
    vit-tf pretrain --data photos/ --image-size 224 --variant S/16 --flip \\
        --batch-size 512 --strategy mirrored --mixed-precision --out runs/masked_s16
"""

import sys
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import vit_tf
from vit_tf.remote import without_password
from vit_tf.scripts import common, option_groups, training_options
from vit_tf.scripts.training_options import SMALL_VIT

MODEL = (*SMALL_VIT, *training_options.VIT)
RECIPE = ("epochs", "learning_rate", "warmup_epochs", "schedule", "weight_decay", "clip_norm")
RECIPE += ("ema",)
COUNTED = 100  # training batches whose colours are counted
AUGMENTATIONS = ("rand_augment", "flip", "shift")


def main(arguments=None):
    """Pre-train as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments, common.epochs_kept, common.TRAINING_BACKENDS)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("pretrain", __doc__)
    add_model = parser.group("model")
    add_model("--variant", metavar="NAME", help="such as B/16 (default: a small model)")
    training_options.add_model(add_model, MODEL, only="ViT")
    option_groups.add_training(parser, {"default": 32, "help": "side of the images, in pixels"})
    training_options.add_recipe(parser.group("recipe"), (*RECIPE, *AUGMENTATIONS))
    return parser.parse_args(arguments)


def make_model(options, image_shape, num_classes):
    """The pre-training model of the ViT that the options ask for."""
    settings = {"image_shape": image_shape, "num_classes": num_classes}
    settings |= common.given(options, MODEL)
    if options.variant:
        return vit_tf.MaskedPatchPrediction(vit_tf.ViT.from_variant(options.variant, **settings))
    return vit_tf.MaskedPatchPrediction(vit_tf.ViT(**SMALL_VIT | settings))


def mask_splits(splits, vit, num_classes, options):
    """Training, validation and test data for masked patch prediction, the first augmented."""
    train, *others = splits
    augmentations = common.given(options, AUGMENTATIONS)
    if augmentations:
        train = vit_tf.data.augment(train, num_classes, seed=options.seed, **augmentations)
    masks = {"grid": vit.token_grid, "preprocessing": vit.preprocessing, "seed": options.seed}
    fixed = [vit_tf.data.mask_patches(split, fixed=True, **masks) for split in others]
    return [vit_tf.data.mask_patches(train, **masks), *fixed]


def run(options):
    """Pre-train, test and write the model and its result."""
    from vit_tf.training.evaluation import majority_accuracy

    recipe = vit_tf.Pretraining(**common.given(options, RECIPE))
    common.prepare(options)
    data = {"image_size": options.image_size} | common.data_arguments(options)
    splits = vit_tf.data.load(
        options.data, data_dir=options.data_dir, splits=("train", "validation", "test"), **data
    )
    num_classes = common.describe_labelled(options).num_classes
    shape = tuple(splits[0].element_spec[0].shape[1:])
    description = {"name": without_password(options.data), **data} | common.given(
        options, AUGMENTATIONS
    )
    with vit_tf.distribute.strategy(options.strategy).scope():
        model = make_model(options, shape, num_classes)
        train, validation, test = mask_splits(splits, model.vit, num_classes, options)
        splits = train, validation, test
        history, scores = common.fit_and_score(model, recipe, splits, options, description)
    # The commonest colour of so many batches is hardly another one than that of all.
    commonest = majority_accuracy(train, test, model.num_classes, COUNTED)
    more = {"commonest_colour_accuracy": commonest}
    common.write_result(model.vit, recipe, history, scores, options, more)
    common.say(
        f"test accuracy {100 * scores['accuracy']:.2f} % of the corrupted patches' colours, "
        f"{100 * commonest:.2f} % for always the commonest, {options.out / 'model.keras'}"
    )


if __name__ == "__main__":
    sys.exit(main())
