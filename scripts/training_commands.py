"""Shared by `train`, `finetune` and `pretrain`: options of models, recipes and runs, training."""

import argparse
import dataclasses
import re
import textwrap

import vit_tf
from vit_tf.scripts import common

SMALL_VIT = {"patch_size": 4, "num_layers": 6, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 256}
# Arguments of a ViT besides its size.
VIT = ("pooling", "position_type", "representation_dim", "dropout_rate", "stochastic_depth")
VIT += ("without_skips",)
_INT, _FLOAT, _NAME = {"type": int}, {"type": float}, {"metavar": "NAME"}
# The options of a model: for which models, what they mean, and how they are parsed.
MODEL = {
    "patch_size": ("ViT, Mixer", "side of a patch, in pixels", _INT),
    "num_layers": ("ViT, Mixer", "number of blocks", _INT),
    "num_heads": ("ViT", "number of attention heads", _INT),
    "hidden_dim": ("ViT, Mixer", "token dimension", _INT),
    "mlp_dim": ("ViT", "hidden units of the MLP", _INT),
    "pooling": ("ViT", "cls or gap (default: cls)", _NAME),
    "position_type": ("ViT", "position embedding: learned or sincos (default: learned)", _NAME),
    "representation_dim": ("ViT", "units of a tanh layer before the head (default: none)", _INT),
    "tokens_mlp_dim": ("Mixer", "hidden units of the token-mixing MLP", _INT),
    "channels_mlp_dim": ("Mixer", "hidden units of the channel-mixing MLP", _INT),
    "dropout_rate": ("ViT, Mixer", "dropout rate (default: 0)", _FLOAT),
    "stochastic_depth": ("ViT", "stochastic depth rate of the last block (default: 0)", _FLOAT),
    "units": ("ResNet", "units per stage, such as 3 4 6 3", {**_INT, "nargs": "+"}),
    "width_factor": ("ResNet", "width multiplier; 1 means 64 channels in the root", _FLOAT),
    "stem": ("ResNet", "imagenet or small (default: by the size of the images)", _NAME),
}
_SITES = "remove skip connections: block03, block04/mlp, stage2/..."
MODEL["without_skips"] = "", _SITES, {"nargs": "+", "metavar": "SITE"}


def add_model(add, names=tuple(MODEL), only=None):
    """Adds options of a model, by name; for `only` one kind of model, without naming the kind."""
    for name in names:
        kinds, text, reading = MODEL[name]
        kind = f"{kinds}: " if kinds and not only else ""
        add(_flag(name), help=kind + text, **reading)


def add_recipe(add, recipe, names=None, default=None):
    """Adds fields of a recipe's dataclass as options, by name or all but the seed."""
    texts = field_texts(recipe)
    for field in dataclasses.fields(recipe):
        if field.name in names if names else field.name != "seed":
            text = texts[field.name].partition(";")[0]  # what follows is detail
            own = texts[field.name].partition("None for ")[2]
            own = own if field.default is None else field.default
            shown = default or ("off" if own in (False, 0) else own)
            add(_flag(field.name), help=f"{text} (default: {shown})", **_reading(field))


def field_texts(recipe):
    """The description of each field in the `Args:` of the docstring of a dataclass or its base."""
    texts = {}
    for kind in reversed(recipe.__mro__):
        section = (kind.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
        section = textwrap.dedent(section)
        for name, text in re.findall(r"^(\w+): (.*(?:\n +.*)*)", section, re.M):
            text = " ".join(text.split()).rstrip(".")
            texts[name] = re.sub('[`"]', "", text)
    return texts


def _reading(field):
    """How an option of a field is parsed."""
    if field.type is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if field.type in (str, str | None):
        return _NAME
    if field.name == "rand_augment":
        return {"type": _magnitude, "metavar": "X"}
    return _INT if field.type in (int, int | None) else _FLOAT


def _magnitude(text):
    return False if text == "none" else float(text)


def _flag(name):
    return f"--{name.replace('_', '-')}"


def add_training(parser, image_size):
    """Adds the options for training images and for the run; `image_size` are those of that flag."""
    data, run = parser.group("data"), parser.group("run")
    common.add_source(data)
    data("--image-size", type=int, **image_size)
    common.add_take(data)
    data("--validation", type=float, default=0.1, help="fraction of training images to validate on")
    text = "random crop of at least this fraction of the image area, such as 0.08 (default: none)"
    data("--random-resized-crop", type=float, metavar="LEAST", help=text)
    text = "how often each training image is repeated in an epoch, differently augmented"
    data("--repeats", type=int, default=1, help=f"{text}; 3 in DeiT")
    data("--batch-size", type=int, default=128, help="examples per step, over all devices")
    how = {"reading": common.path_or_address, "required": True}
    common.add_out(run, "output folder; created if missing", **how)
    run("--seed", type=int, default=0, help="random seed")
    common.add_strategy(run)
    run("--mixed-precision", action="store_true", help="compute in bfloat16")
    text = "maximum number of steps per TensorFlow call (default: 50 on a TPU, otherwise 1)"
    run("--steps-per-execution", type=int, help=text)
    text = "also save the state every N steps; it is always saved after an epoch and on SIGTERM"
    run("--save-every", type=int, help=text)
    run("--keep-states", type=int, default=2, help="number of saved states to keep")


def prepare(options):
    """Set the precision and the seed of the options, before a model is made."""
    import keras

    if options.mixed_precision:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.utils.set_random_seed(options.seed)


def data_arguments(options):
    """The arguments of `vit_tf.data.load` that determine the images of a run."""
    take = options.take and {"train": options.take}
    arguments = {name: getattr(options, name) for name in ("batch_size", "validation", "seed")}
    if options.random_resized_crop is not None:
        arguments["random_resized_crop"] = (options.random_resized_crop, 1.0)
    if options.repeats != 1:
        arguments["repeats"] = options.repeats
    return arguments | {"take": take} | common.chosen_classes(options)


def train_and_test(make_model, recipe, splits, options, description, callbacks=()):
    """Train the model that a function makes, test it and write it and its result to a folder."""
    with vit_tf.distribute.strategy(options.strategy).scope():
        model = make_model()
        history, scores = fit_and_score(model, recipe, splits, options, description, callbacks)
    write_result(model, recipe, history, scores, options)
    common.say(f"test accuracy {100 * scores['accuracy']:.2f} %, {options.out / 'model.keras'}")


def fit_and_score(model, recipe, splits, options, description, callbacks=()):
    """Train a model under its strategy and test it; the history of training and the test scores."""
    train, validation, test = splits
    saving = common.given(options, ("steps_per_execution", "save_every", "keep_states"))
    saving["callbacks"] = callbacks
    history = vit_tf.train(model, recipe, train, validation, options.out, description, **saving)
    test = vit_tf.distribute.divide_batches(test, vit_tf.distribute.strategy_of(model))
    return history, model.evaluate(test, return_dict=True, verbose=0)


def write_result(model, recipe, history, scores, options, more=None):
    """Write a trained model and its scores, with `more` of them, to the folder of the run."""
    from vit_tf.training import checkpointing

    checkpointing.save_model(model, options.out / "model.keras")
    result = {
        "test_accuracy": scores["accuracy"],
        "test_loss": scores["loss"],
        **(more or {}),
        "best_val_accuracy": max(history["val_accuracy"]),
        "recipe": dataclasses.asdict(recipe),
        "parameters": model.count_params(),
        "options": vars(options),
    }
    common.write_json(result, options.out / "result.json")


def describe_epochs(options):
    """What a stopped training saved, and how to resume."""
    names = [path.stem for path in (options.out / "state").glob("epoch-*.npz")]
    places = [[int(number) for number in re.findall(r"[0-9]+", name)] for name in names]
    epoch, *steps = max(places, default=[0])
    if not epoch and not steps:
        return common.NOTHING_SAVED
    within = f" and {steps[0]} steps of the next" if steps else ""
    return f"{options.out} holds the state after epoch {epoch}{within}; {common.RESUMES}"
