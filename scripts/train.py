"""Trains a Vision Transformer, a BiT ResNet or an MLP-Mixer from scratch.

Writes to the folder --out: model.keras (the final weights), best.keras (best validation accuracy),
log.csv, tensorboard/, result.json (test accuracy) and what is needed to go on. The same command
again continues a run that was stopped, from the step of its last state. SIGTERM, which machines on
loan send before they end, saves the state after the step that is going on; the exit status is 143.

With --record-formation N also formation.nc and formation.png: how representations form. Before the
training and after every N epochs, CKA of the output of each block to itself at the start and at the
record before, on validation images, and the accuracy on these of a ridge classifier fitted to some
training images, 10 for each class. formation-state/ holds what is needed to go on.

--recipe NAME trains as a paper did on ImageNet; what is missing is to choose: the data, --out and
--strategy.

Examples:
    vit-tf train --out runs/digits
    vit-tf train --out runs/digits --record-formation 5
    vit-tf train --out runs/digits --strategy multiworker  # once on each machine
    vit-tf train --data fashion_mnist --model bit --units 1 1 --epochs 20 --out runs/bit
    vit-tf train --data path/to/class/folders --image-size 224 --variant S/16 --flip \\
        --rand-augment 0.3 --mixup 0.2 --strategy mirrored --mixed-precision --out runs/s16
"""

import dataclasses
import sys
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import vit_tf
from vit_tf.remote import is_remote, without_password
from vit_tf.scripts import common, option_groups, training_options
from vit_tf.scripts.training_options import SMALL_VIT

SMALL_BIT = {"units": (1, 1, 1), "width_factor": 0.5}
SMALL_MIXER = {"patch_size": 4, "num_layers": 6, "hidden_dim": 64}
SMALL_MIXER |= {"tokens_mlp_dim": 32, "channels_mlp_dim": 256}
# Batches of validation images whose layers are compared in training, and the images of each.
FORMATION = {"batches": 16, "batch_size": 64}
SHOTS = 10
# Each model: its class, its size where none is given, and the arguments that have a flag.
MODELS = {
    "vit": ("ViT", SMALL_VIT, (*SMALL_VIT, *training_options.VIT)),
    "bit": ("BiT", SMALL_BIT, (*SMALL_BIT, "stem", "without_skips")),
    "mixer": ("Mixer", SMALL_MIXER, (*SMALL_MIXER, "dropout_rate", "without_skips")),
}


def main(arguments=None):
    """Train as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments, common.epochs_kept, common.TRAINING_BACKENDS)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("train", __doc__)
    _add_model(parser.group("model"))
    option_groups.add_training(parser, {"default": 32, "help": "side of the images, in pixels"})
    text = "of a paper, such as vit-b16, augreg-s16, plain-vit-s16 or bit-r50x1: model, images, "
    text += "batches and training, with the learning rate in proportion to --batch-size; other "
    text += "options override it (default: none)"
    parser.group("recipe")("--recipe", metavar="NAME", help=text)
    training_options.add_recipe(parser.group("recipe"))
    text = "write how representations form, recorded every so many epochs"
    parser.group("run")("--record-formation", type=int, help=text)
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


def _add_model(add):
    add("--model", choices=tuple(MODELS), default="vit", help="ViT, BiT ResNet or MLP-Mixer")
    add("--variant", metavar="NAME", help="such as B/16 or R50x1 (default: a small model)")
    training_options.add_model(add)


def make_model(options, image_shape, num_classes):
    """The model that the options ask for."""
    name, small, names = MODELS[options.model]
    kind = getattr(vit_tf, name)
    every = {name for _, _, known in MODELS.values() for name in known}
    foreign = common.given(options, sorted(every - set(names)))
    if foreign:
        raise ValueError(f"Expected options of --model {options.model}. Received: {foreign}")
    settings = {"image_shape": image_shape, "num_classes": num_classes} | common.given(
        options, names
    )
    settings |= preprocessing_of(options)
    if options.variant:
        return kind.from_variant(options.variant, **settings)
    return kind(**small | settings)


def preprocessing_of(options):
    """What a recipe of a paper shows of the images it is tested on: dict of `preprocessing`."""
    if not options.recipe:
        return {}
    size = (options.image_size, options.image_size)
    crop = vit_tf.recipe(options.recipe).crop
    return {"preprocessing": vit_tf.Preprocessing(size, crop=crop)}


def make_recipe(options):
    """The `Recipe` that the options ask for, by name and by what differs from that."""
    fields = [field.name for field in dataclasses.fields(vit_tf.Recipe)]
    changes = common.given(options, fields)
    if not options.recipe:
        return vit_tf.Recipe(**changes)
    if "warmup_epochs" in changes:
        changes = {"warmup_steps": None} | changes
    published = vit_tf.recipe(options.recipe).with_batches_of(options.batch_size)
    return dataclasses.replace(published.recipe, **changes)


def make_recorder(options, validation, data):
    """The recorder of how representations form.

    Args:
        options: those of the command line.
        validation: data set of validation images.
        data: arguments of `vit_tf.data.load`.
    """
    from vit_tf.analysis.study.models import block_outputs

    known = vit_tf.data.describe(options.data, options.data_dir)
    few = min(SHOTS * known.num_classes, known.num_examples["train"] // 2)
    # Another data set of them: to read those of the training would change the order of its epochs.
    train, _ = vit_tf.data.load(
        options.data,
        data_dir=options.data_dir,
        splits=("train", "validation"),
        **data | {"take": {"train": few}, "random_resized_crop": None},
    )
    images = validation.unbatch().batch(FORMATION["batch_size"], drop_remainder=True)
    images = images.take(FORMATION["batches"])
    return vit_tf.analysis.FormationRecorder(
        lambda model: vit_tf.submodel(model, *block_outputs(model.taps)),
        images,
        every=options.record_formation,
        probes=(train, images, known.num_classes),
        folder=options.out,
    )


def draw_formation(result, path):
    """Draw what a recorder found into a file."""
    import matplotlib

    from vit_tf.files import write_whole

    matplotlib.use("agg")
    figure = vit_tf.analysis.plots.plot_formation(result).figure
    write_whole(path, lambda partial: figure.savefig(partial, dpi=150))


def run(options):
    """Train, test and write the model and its result."""
    recipe = make_recipe(options)
    common.prepare(options)
    data = {"image_size": options.image_size} | common.data_arguments(options)
    loaded = data | preprocessing_of(options)
    splits = vit_tf.data.load(
        options.data,
        data_dir=options.data_dir,
        splits=("train", "validation", "test"),
        **loaded,
    )
    known = common.describe_labelled(options)
    shape = tuple(splits[0].element_spec[0].shape[1:])
    recorders = []
    if options.record_formation is not None:
        from vit_tf.backend import require_tensorflow

        require_tensorflow("--record-formation")
        if is_remote(options.out):
            raise ValueError(
                "Expected --out to be a folder on this machine with --record-formation. "
                f"Received: {options.out}"
            )
        recorders = [make_recorder(options, splits[1], loaded)]
    common.train_and_test(
        lambda: make_model(options, shape, known.num_classes),
        recipe,
        splits,
        options,
        {"name": without_password(options.data), **data},
        recorders,
    )
    if recorders and vit_tf.distribute.is_chief():
        draw_formation(recorders[0].result, options.out / "formation.png")


if __name__ == "__main__":
    sys.exit(main())
