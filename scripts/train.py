"""Trains a Vision Transformer, a BiT ResNet or an MLP-Mixer from scratch.

Writes to the folder --out: model.keras (final weights), best.keras (best validation accuracy),
log.csv, tensorboard/, result.json (test accuracy) and state/, from which the same command resumes a
run that was stopped. On SIGTERM, which preemptible machines receive before they stop, the current
step ends, the state is saved, and the exit status is 143.

--recipe NAME trains as a paper did on ImageNet; specify --data, --out and --strategy.

--record-formation N records how representations form, in formation.nc and formation.png. Before
training and after every N epochs, it measures the output of each block on up to 1024 validation
images: its CKA with the initial output and with the output at the previous record, and the accuracy
of a ridge classifier, which is fitted to 10 training images per class (at most half of the training
images).

Examples:
    vit-tf train --out runs/digits
    vit-tf train --out runs/digits --record-formation 5
    vit-tf train --out runs/digits --strategy multiworker  # once on each machine
    vit-tf train --data fashion_mnist --model bit --units 1 1 --epochs 20 --out runs/bit
    vit-tf train --data path/to/class/folders --image-size 224 --variant S/16 --flip \\
        --rand-augment 0.3 --mixup 0.2 --strategy mirrored --mixed-precision --out runs/s16
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import vit_tf
from vit_tf.common.names import without_password
from vit_tf.data.files import is_remote
from vit_tf.scripts import common
from vit_tf.scripts.common import Arguments, Options, integer, named

if TYPE_CHECKING:
    import tensorflow as tf

    from vit_tf.analysis import FormationRecorder
    from vit_tf.models.model import VisionModel

SMALL_BIT = {"units": (1, 1, 1), "width_factor": 0.5}
SMALL_MIXER = {"patch_size": 4, "num_layers": 6, "hidden_dim": 64}
SMALL_MIXER |= {"tokens_mlp_dim": 32, "channels_mlp_dim": 256}
# Validation images whose layers are compared during training.
FORMATION = {"batches": 16, "batch_size": 64}
IMAGES_PER_CLASS = 10
# Each model: its class, its size where none is given, and the arguments that have a flag.
MODELS = {
    "vit": ("ViT", common.SMALL_VIT, (*common.SMALL_VIT, *common.VIT)),
    "bit": ("BiT", SMALL_BIT, (*SMALL_BIT, "stem", "without_skips")),
    "mixer": ("Mixer", SMALL_MIXER, (*SMALL_MIXER, "dropout_rate", "without_skips")),
}


OPTIONS = {
    "model": {
        "--model": named(
            f"{' or '.join(MODELS)}: ViT, BiT ResNet or MLP-Mixer",
            choices=tuple(MODELS),
            default="vit",
        ),
        "--variant": named("published size, such as B/16 or R50x1 (default: a small model)"),
        **common.ARCHITECTURE,
    },
    "data": {
        **common.TRAINING_DATA,
        "--image-size": integer("side of the images, in pixels", default=32),
    },
    "run": {
        **common.TRAINING_RUN,
        "--record-formation": integer("record how representations form, every N epochs"),
    },
    "recipe": {
        "--recipe": named(
            "recipe of a paper, such as vit-b16, augreg-s16, plain-vit-s16 or bit-r50x1; its "
            "learning rate scales with the batch size, and other options override it (default: "
            "none)"
        ),
        **common.recipe_options(vit_tf.Recipe),
    },
}
MAIN = ("--model", "--variant", "--data", "--data-dir", "--image-size", "--batch-size")
MAIN += ("--recipe", "--epochs", "--learning-rate", "--out", "--strategy", "--mixed-precision")


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return common.run_command(
        parse, run, arguments, common.describe_epochs, common.TRAINING_BACKENDS
    )


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    parser = common.make_parser("train", __doc__, OPTIONS, MAIN)
    options = parser.parse_args(arguments)
    if options.recipe:
        published = vit_tf.recipe(options.recipe)
        parser.set_defaults(
            model=published.model.lower(),
            variant=published.variant,
            image_size=published.image_size,
            batch_size=published.batch_size,
            random_resized_crop=published.area[0],
            repeats=published.repeats,
            validation=published.validation,
            **published.arguments,
        )
        options = parser.parse_args(arguments)
    return options


def run(options: Options) -> None:
    """Train, test and write the model and its result."""
    recipe = make_recipe(options)
    common.prepare(options)
    data = {"image_size": options.image_size} | common.data_arguments(options)
    if options.recipe and options.random_resized_crop is not None:
        _, most, distribution = vit_tf.recipe(options.recipe).area
        data["random_resized_crop"] = (options.random_resized_crop, most, distribution)
    loaded = data | preprocessing_of(options)
    splits = ("train", "validation", "test")
    train, validation, test = vit_tf.data.load(
        options.data, data_dir=options.data_dir, splits=splits, **loaded
    )
    description = common.describe_labelled(options)
    recorders = []
    if options.record_formation is not None:
        from vit_tf.common.backend import require_tensorflow

        require_tensorflow("--record-formation")
        if is_remote(options.out):
            raise ValueError(
                "--record-formation needs --out to be a local folder. "
                f"Received: {without_password(options.out)}"
            )
        recorders = [make_recorder(options, validation, loaded)]
    with vit_tf.distribute.strategy(options.strategy).scope():
        shape = tuple(train.element_spec[0].shape[1:])
        model = make_model(options, shape, description.num_classes)
        if options.recipe:
            model = vit_tf.recipe(options.recipe).initialize(model)
        result = common.train_and_test(
            model,
            recipe,
            (train, validation, test),
            options,
            {"name": without_password(options.data), **data},
            recorders,
        )
    common.say(
        f"test accuracy {100 * result['test_accuracy']:.2f} %, {options.out / 'model.keras'}"
    )
    if recorders and vit_tf.distribute.is_chief():
        from vit_tf.analysis.plots import plot_formation

        common.save_plot(plot_formation(recorders[0].result), options.out / "formation.png")


def make_model(
    options: Options, image_shape: tuple[int, int, int], num_classes: int
) -> VisionModel:
    """The model of the options."""
    name, small, names = MODELS[options.model]
    model_class = getattr(vit_tf, name)
    all_options = {name for _, _, names_of_model in MODELS.values() for name in names_of_model}
    unsupported_options = common.given(options, sorted(all_options - set(names)))
    if unsupported_options:
        flags = ", ".join(map(common.flag, unsupported_options))
        raise ValueError(f"--model {options.model} has no option {flags}")
    settings = {"image_shape": image_shape, "num_classes": num_classes} | common.given(
        options, names
    )
    settings |= preprocessing_of(options)
    if options.variant:
        return model_class.from_variant(options.variant, **settings)
    return model_class(**small | settings)


def preprocessing_of(options: Options) -> dict[str, Any]:
    """The `preprocessing` of test images in a recipe of a paper, as a dict; empty without one."""
    if not options.recipe:
        return {}
    size = (options.image_size, options.image_size)
    published = vit_tf.recipe(options.recipe)
    return {
        "preprocessing": vit_tf.Preprocessing(
            size, crop=published.crop, interpolation=published.interpolation
        )
    }


def make_recipe(options: Options) -> vit_tf.Recipe:
    """The `Recipe` of the options: a published one by name, with the changes that are given."""
    fields = [field.name for field in dataclasses.fields(vit_tf.Recipe)]
    changes = common.given(options, fields)
    if not options.recipe:
        return vit_tf.Recipe(**changes)
    if "warmup_epochs" in changes:
        changes = {"warmup_steps": None} | changes
    accumulation_steps = options.gradient_accumulation_steps or 1
    batch_size = options.batch_size * accumulation_steps
    published = vit_tf.recipe(options.recipe).with_batches_of(batch_size)
    if "optimizer" in changes or "momentum" in changes:
        # Settings of the published optimizer no longer apply; SGD has no epsilon.
        sgd = changes.get("optimizer", "sgd") == "sgd"
        changes = dict.fromkeys(("momentum", "epsilon") if sgd else ("momentum",)) | changes
    return dataclasses.replace(published.recipe, **changes)


def make_recorder(
    options: Options, validation: tf.data.Dataset, data: dict[str, Any]
) -> FormationRecorder:
    """Returns the `FormationRecorder`, which measures layers during training.

    Args:
        options: options of the command line.
        validation: data set of validation images.
        data: arguments of `vit_tf.data.load`.
    """
    description = common.describe_data(options)
    num_probe_images = min(
        IMAGES_PER_CLASS * description.num_classes, description.num_examples["train"] // 2
    )
    # A data set of its own: reading that of the training would change the order of its epochs.
    train, _ = vit_tf.data.load(
        options.data,
        data_dir=options.data_dir,
        splits=("train", "validation"),
        **data | {"take": {"train": num_probe_images}, "random_resized_crop": None, "repeats": 1},
    )
    examples = validation.unbatch()
    # Fewer validation images than a full batch form one smaller batch.
    first = next(iter(examples.batch(FORMATION["batch_size"]).take(1)), ((), ()))
    images = examples.batch(max(len(first[1]), 1), drop_remainder=True)
    images = images.take(FORMATION["batches"])
    return vit_tf.analysis.FormationRecorder(
        lambda model: vit_tf.analysis.features_of(model, detail="blocks"),
        images,
        every=options.record_formation,
        probes=(train, images, description.num_classes),
        folder=options.out,
    )
