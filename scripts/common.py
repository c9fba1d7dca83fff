"""Shared by all commands: options, help, exit status, modules, models, images, training."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import json
import linecache
import os
import re
import shlex
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from etils import epath

# Here and in every command, what needs TensorFlow is imported where it is used: options are parsed
# first, so that --help and errors in the options are immediate.
import vit_tf
from vit_tf.common.errors import error_message, is_tensorflow_error
from vit_tf.common.names import near_names, without_password
from vit_tf.data.files import as_path, is_remote, write_whole
from vit_tf.data.preprocessing import Preprocessing, interval
from vit_tf.scripts import import_tensorflow

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from vit_tf.checkpoints.saving import SavedFeatures
    from vit_tf.data.source import Description
    from vit_tf.features.features import Features

Options: TypeAlias = argparse.Namespace
# Arguments of `ArgumentParser.add_argument` by the name of an option.
OptionTable: TypeAlias = Mapping[str, Mapping[str, Any]]
# The words of a command line; None for those that the process was started with.
Arguments: TypeAlias = Sequence[str] | None
ParseOptions: TypeAlias = Callable[[Arguments], Options]
RunCommand: TypeAlias = Callable[[Options], int | None]  # returns an exit status other than 0
Size: TypeAlias = tuple[int, int]  # (height, width) of images, in pixels
OpenedModel: TypeAlias = "keras.Model | SavedFeatures | Features"
TrainingRecipe: TypeAlias = "vit_tf.Recipe | vit_tf.FineTuning | vit_tf.Pretraining"
Splits: TypeAlias = "Sequence[tf.data.Dataset]"  # for training, validation and test

NOTHING_SAVED = "nothing is saved; the same command starts again"
RESUMES = "the same command resumes from there"
TRAINING_BACKENDS = ("tensorflow", "jax")  # of commands that train or evaluate
STATUS = """exit status:
  0    success{more}
  2    an error in the options, files or data: one line explains it
  130  stopped by Ctrl-C (143: by SIGTERM); one line says what is saved and how to resume"""
METAVARS = {int: "N", float: "X", Path: "PATH"}  # in usage and help


class Terminated(BaseException):
    """The process was asked to end, by SIGTERM."""


def run_command(
    parse: ParseOptions,
    run: RunCommand,
    arguments: Arguments = None,
    describe_saved: Callable[[Options], str] = lambda options: NOTHING_SAVED,
    backends: Sequence[str] | None = ("tensorflow",),
) -> int:
    """Parse and run a command on `backends` (None: any) of Keras; the exit status, as in `STATUS`.

    `describe_saved` returns what a stopped run saved, from the options. Names of models, data and
    files are checked before TensorFlow is imported, which takes seconds.
    """
    options = None
    try:
        with _sigterm_raises():
            options = parse(arguments)
            require_names(options)
            if backends:
                _require_backend(backends)
            import_tensorflow()
            return _run(run, options) or 0
    except (KeyboardInterrupt, Terminated) as stop:
        text = describe_saved(options) if options else NOTHING_SAVED
        print(f"stopped: {text}", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)
    except Exception as error:
        is_of_user = isinstance(error, (ValueError, OSError, MemoryError))
        if isinstance(error, BrokenPipeError) or not (is_of_user or is_tensorflow_error(error)):
            raise
        nameless = "not enough memory" if isinstance(error, MemoryError) else type(error).__name__
        message = error_message(error) or nameless
        print(f"error: {message}{_location(error)}", file=sys.stderr)
        if isinstance(error, ConnectionError) and hasattr(options, "strategy"):
            from vit_tf.distribute import strategies

            if strategies.num_workers() > 1:
                # Python would otherwise wait for what TensorFlow does with the lost workers.
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(2)
        return 2


def _require_backend(backends: Sequence[str]) -> None:
    # Before Keras is imported, which takes long and fails where the backend is not installed.
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if backend not in backends:
        settings = " or ".join(f"KERAS_BACKEND={name}" for name in backends)
        raise ValueError(
            f"Expected {settings} for this command, or KERAS_BACKEND unset (tensorflow). "
            f"Received: KERAS_BACKEND={backend}"
        )


def _run(run: RunCommand, options: Options) -> int | None:
    imports = getattr(options, "imports", ())
    # A list of what there is needs no device, and does not wait for TensorFlow.
    if not hasattr(options, "strategy") or getattr(options, "list", False):
        import_modules(imports)
        return run(options)
    from vit_tf.distribute.strategies import explained_failures

    # Several workers connect before anything else of TensorFlow runs.
    vit_tf.distribute.strategy(options.strategy)
    with explained_failures():
        import_modules(imports)
        return run(options)


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM raises `Terminated`, so that open files are closed."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _location(error: Exception) -> str:
    """Where a `ValueError` was raised, unless by a `raise` statement of this package."""
    if not isinstance(error, ValueError) or "Expected" in str(error):
        return ""
    frames = list(traceback.walk_tb(error.__traceback__))
    ours = [item for item in frames if item[0].f_globals.get("__name__", "").startswith("vit_tf.")]
    if not ours:
        return ""
    frame, line = ours[-1]
    source = linecache.getline(frame.f_code.co_filename, line).lstrip()
    is_expected = frame is frames[-1][0] and source.startswith("raise ")
    return "" if is_expected else f" (in {frame.f_globals['__name__']}, line {line})"


def say(text: str) -> None:
    """Print a result, once where several workers have it."""
    if vit_tf.distribute.is_chief():
        print(without_password(text))


def write_json(result: dict[str, Any], path: Path | epath.Path) -> None:
    """Write a result as JSON, whole or not at all."""
    from vit_tf.training import checkpointing

    text = without_password(json.dumps(result, indent=1, default=str))
    checkpointing.write_on_chief(path, lambda partial: Path(partial).write_text(text + "\n"))


def save_plot(axes: Any, path: Path) -> None:
    """Writes the figure that a plot has drawn."""
    from vit_tf.analysis.plots.style import figure_of

    figure = figure_of(axes)
    write_whole(path, lambda partial: figure.savefig(partial, dpi=150))


class Parser(argparse.ArgumentParser):
    """A parser of options in titled sections; `--help` shows `main_options`, `--help-all` all."""

    def __init__(
        self,
        sections: Mapping[str, OptionTable],
        main_options: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        # An abbreviation would make `--steps 3` another option, `--steps-per-execution`.
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs
        )
        self.main_options = main_options
        if main_options:
            self.add_argument(
                "--help-all", action="help", dest=argparse.SUPPRESS, help="show all options"
            )
        for title, section in sections.items():
            group = self.add_argument_group(title)
            for name, settings in section.items():
                group.add_argument(name, **_described(name, settings))

    def parse_args(self, args: Arguments = None, namespace: None = None) -> Options:
        self._words = words = sys.argv[1:] if args is None else list(args)
        if self.main_options and "--help-all" not in words:
            shown = {"-h", "--help-all", *self.main_options}
            for action in self._actions:
                if action.option_strings and not shown.intersection(action.option_strings):
                    action.help = argparse.SUPPRESS
        options = super().parse_args(words, namespace)
        options.command = without_password(shlex.join([*self.prog.split(), *map(str, words)]))
        return options

    def error(self, message: str) -> NoReturn:
        """Ends the command with a line that suggests near matches of mistyped options."""
        flags = list(self._option_string_actions)
        typed = [word.partition("=")[0] for word in self._words if word.startswith("-")]
        for flag in typed:
            if flag not in flags and (near := near_names(flag, flags)):
                message += f"; did you mean {near[0]} in place of {flag}?"
        super().error(without_password(message))


def _described(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an option, whose help shows the default and whose placeholder the type."""
    settings, default = dict(settings), settings.get("default")
    is_shown = default is not None and default is not False and default not in ("", (), [])
    if name.startswith("-") and is_shown and "(default: " not in settings["help"]:
        shown = " ".join(default) if isinstance(default, tuple) else default
        settings["help"] += f" (default: {shown})"
    if name.startswith("-") and "choices" not in settings and settings.get("type") in METAVARS:
        settings.setdefault("metavar", METAVARS[settings["type"]])
    return settings


def make_parser(
    name: str,
    docstring: str | None,
    sections: Mapping[str, OptionTable],
    main_options: Sequence[str] = (),
    more: str = "",
) -> Parser:
    """The parser of a command, whose help is the module's docstring, which ends in `Examples:`."""
    description, _, examples = (docstring or "").partition("\nExamples:\n")
    epilog = f"{STATUS.format(more=more)}\n\nexamples:\n{examples}".rstrip()
    program = name if " " in name else f"vit-tf {name}"
    return Parser(sections, main_options, prog=program, description=description, epilog=epilog)


def integer(text: str, **settings: Any) -> dict[str, Any]:
    """The settings of an option that is a whole number."""
    return {"type": int, "help": text, **settings}


def real(text: str, **settings: Any) -> dict[str, Any]:
    """The settings of an option that is a real number."""
    return {"type": float, "help": text, **settings}


def named(text: str, metavar: str = "NAME", **settings: Any) -> dict[str, Any]:
    """The settings of an option that is a text, such as a name or a path."""
    return {"metavar": metavar, "help": text, **settings}


def output(text: str, metavar: str = "FOLDER", **settings: Any) -> dict[str, dict[str, Any]]:
    """`--out`: where a command writes."""
    return {"--out": {"type": Path, "metavar": metavar, "help": text, **settings}}


# Where each strategy of `vit_tf.distribute` trains.
STRATEGIES = {
    "auto": "multiworker or mirrored if there are several workers or GPUs",
    "none": "one device",
    "mirrored": "all GPUs of a machine",
    "multiworker": "GPUs of several machines",
    "tpu": "a TPU or a TPU pod (KERAS_BACKEND=jax)",
}
# Options that several commands have.
STRATEGY = {
    "--strategy": named(
        "; ".join(f"{name}: {where}" for name, where in STRATEGIES.items()), default="auto"
    )
}
SEED = {"--seed": integer("random seed", default=0)}
DATA_DIR = {
    "--data-dir": named(
        "data folder of TFDS, such as ~/tensorflow_datasets (default: that of TFDS)", "FOLDER"
    )
}
SOURCE = {
    "--data": named(
        "digits, shapes, photographs, a TFDS name, or a folder of images", default="digits"
    ),
    **DATA_DIR,
    "--classes": named("text file with the classes to use, one per line", "FILE"),
}
IMPORTS = {
    "--import": named(
        "module or file.py that defines custom classes of the model; may be repeated",
        "MODULE",
        dest="imports",
        action="append",
        default=[],
    )
}
MODEL = {
    "model": named(
        "a .keras file, a checkpoint file or folder, or a name such as vit-cls-cifar10 or "
        "hf://timm/vit_base_patch16_224.mae",
        "MODEL",
    ),
    **IMPORTS,
}
# Layers and tokens that cannot be inferred from a model.
LAYERS = {
    "--image-size": integer(
        "side of the images, in pixels, for models that accept any size (default: the model's)"
    ),
    "--taps": named(
        "layers to measure in models of other packages, such as 'block*_out' (default: outputs of "
        "blocks and stages)",
        "PATTERN",
        nargs="+",
    ),
    "--patch-size": integer("side of a patch, in pixels, where it cannot be inferred"),
    "--prefix": integer(
        "number of prefix tokens, such as CLS, of a model with --patch-size (default: inferred)"
    ),
}
_CHANNELS = {"nargs": 3, "type": float, "metavar": tuple("RGB")}
_NORMALIZE = "per channel to normalize values in [0, 1] with, such as"
# The pixel values that a model expects.
VALUES = {
    "--range": {
        "nargs": 2,
        "type": float,
        "metavar": ("LOW", "HIGH"),
        "help": "pixel values of black and white that the model expects, such as 0 255 (default: "
        "inferred from the model, otherwise -1 1)",
    },
    "--mean": {**_CHANNELS, "help": f"mean {_NORMALIZE} 0.485 0.456 0.406"},
    "--std": {**_CHANNELS, "help": f"std {_NORMALIZE} 0.229 0.224 0.225"},
}


def check_layers(options: Options) -> None:
    """Raises a `ValueError` for impossible values of the options in `LAYERS`."""
    if options.prefix is not None and not options.patch_size:
        raise ValueError(f"--prefix needs --patch-size. Received: --prefix {options.prefix} alone")
    require_at_least(options, image_size=1, patch_size=1, prefix=0)


def require_at_least(options: Options, **least: float) -> None:
    """Raises a `ValueError` for an option below its least value; None passes."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise ValueError(f"Expected {flag(name)} to be at least {bound}. Received: {value}")


def given(options: Options, names: Iterable[str]) -> dict[str, Any]:
    """The options of these names that the user gave, as a dict."""
    values = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def require_names(options: Options) -> None:
    """Raises a `ValueError` for a model, data or a file of the options that does not exist."""
    from vit_tf.data.names import require_known_data

    values = vars(options)
    if "imports" in values:  # `train` has a --model that is a kind of model
        from vit_tf.checkpoints.released import require_known_model

        for source in filter(None, values.get("models") or [values.get("model")]):
            if is_remote(source) or source.startswith("timm:"):
                continue
            if source.endswith(".keras"):
                require_existing_file(source, "Model file")
            require_known_model(os.path.expanduser(source))
    # A module of the user's may add a data set to those of TFDS.
    if values.get("data") and not values.get("imports"):
        require_known_data(options.data, options.data_dir)
    if values.get("classes") and not is_remote(options.classes):
        require_existing_file(options.classes, "File of classes")


def require_existing_file(path: str | os.PathLike, what: str = "File") -> None:
    """Raises a `ValueError` for a file that does not exist."""
    if not os.path.isfile(os.path.expanduser(path)):
        raise ValueError(f"{what} not found: {without_password(path)!r}")


def import_modules(names: Iterable[str]) -> None:
    """Imports modules, or files that end in `.py`, and lets Keras find what they define by name."""
    for name in names:
        is_file = name.endswith(".py")
        folder, file = os.path.split(name) if is_file else ("", name)
        try:
            sys.path.append(os.path.abspath(folder))
            module = import_module(file.removesuffix(".py"))
            if is_file and not os.path.samefile(str(module.__file__), name):
                raise ImportError(
                    f"another module {module.__name__!r} is found first; rename the file"
                )
        except Exception as error:
            raise ValueError(
                f"--import {name}: the module cannot be imported ({type(error).__name__}: {error})"
            ) from error
        import keras

        # A class defined in a script or a notebook cannot be imported, but found by its name.
        custom_objects = keras.saving.get_custom_objects()
        for key, value in vars(module).items():
            is_definition = inspect.isclass(value) or inspect.isfunction(value)
            if is_definition and value.__module__ == module.__name__:
                custom_objects.setdefault(key, value)


def is_saved_model(path: str) -> bool:
    """Whether a path is a folder that TensorFlow wrote, and not that of a checkpoint."""
    return os.path.isdir(path) and not os.path.isfile(os.path.join(path, "config.json"))


def open_model(name: str) -> keras.Model:
    """The Keras model of a `.keras` file or of a checkpoint: a file, a folder or a public name."""
    is_of_keras = name.endswith(".keras") or is_saved_model(name)
    return vit_tf.load_model(name) if is_of_keras else vit_tf.load_pretrained(name)


def open_features(source: str) -> OpenedModel:
    """The Keras model or SavedModel of a path, or of a public name, or the layers of timm's."""
    from vit_tf.torch_models.timm_names import PREFIX, open_timm

    if source.startswith(PREFIX):
        from vit_tf.features.conversion import as_features

        return as_features(open_timm(source))
    return (vit_tf.load_features if is_saved_model(source) else open_model)(source)


def model_name(source: str) -> str:
    """The name of a model: its path without folders and suffix."""
    path = Path(source.removeprefix("timm:"))
    return path.stem if path.is_file() else path.name


def given_preprocessing(options: Options, size: Size | None = None) -> Preprocessing | None:
    """The `Preprocessing` that the options specify, for images of a size, or None."""
    if (options.mean is None) != (options.std is None) or (options.mean and options.range):
        raise ValueError(
            "Expected --mean and --std together, or --range alone. "
            f"Received: --mean {options.mean} --std {options.std} --range {options.range}"
        )
    if options.range:
        return Preprocessing.from_range(size, *options.range)
    return Preprocessing(size, options.mean, options.std) if options.mean else None


def expected_images(
    options: Options, model: OpenedModel, override: bool = True
) -> tuple[Preprocessing, str, bool]:
    """The `Preprocessing` of a model's images, its origin, and whether it is only assumed.

    Options `override` the model's.
    """
    from vit_tf.features.conversion import facts_of  # only here, since it imports Keras

    facts = facts_of(model)
    expected, origin = facts.expected_images, facts.preprocessing_origin
    specified = given_preprocessing(options, expected.size)
    if specified and (override or not origin.startswith("set ")):
        return specified, "set by the options", False
    if facts.preprocessing:
        return expected, origin, False
    return expected, f"assumed: {origin}", True


def describe_values(preprocessing: Preprocessing, origin: str) -> str:
    """The range of pixel values and where it comes from, as text."""
    order = "" if preprocessing.channel_order == "rgb" else ", blue first"
    return f"values in {interval(*preprocessing.value_range)}{order} ({origin})"


def describe_data(options: Options) -> Description:
    """The `Description` of the data of the options; a validation split may be the test split."""
    from vit_tf.data.source import lacks_test

    description = vit_tf.data.describe(options.data, options.data_dir, **chosen_classes(options))
    counts = description.num_examples
    if not lacks_test(counts):
        return description
    counts = {"train": counts["train"], "test": counts["validation"]}
    return dataclasses.replace(description, num_examples=counts)


def describe_labelled(options: Options) -> Description:
    """The `Description` of the data set of the options, which must have labels."""
    from vit_tf.data.source import require_class_names

    description = describe_data(options)
    require_class_names(description, f"--data {options.data}, images without labels")
    return description


def chosen_classes(options: Options) -> dict[str, Any]:
    """The argument of `vit_tf.data.load` for `--classes`; empty if it is not given."""
    return {"classes": vit_tf.data.read_class_list(options.classes)} if options.classes else {}


SMALL_VIT: dict[str, Any] = {
    "patch_size": 4,
    "num_layers": 6,
    "num_heads": 4,
    "hidden_dim": 64,
    "mlp_dim": 256,
}
# Arguments of a ViT besides its size.
VIT = ("pooling", "position_type", "representation_dim", "dropout_rate", "stochastic_depth")
VIT += ("without_skips",)
# The options of a model: for which models, and what they mean.
ARCHITECTURE = {
    "--patch-size": integer("ViT, Mixer: side of a patch, in pixels"),
    "--num-layers": integer("ViT, Mixer: number of blocks"),
    "--num-heads": integer("ViT: number of attention heads"),
    "--hidden-dim": integer("ViT, Mixer: token dimension"),
    "--mlp-dim": integer("ViT: hidden units of the MLP"),
    "--pooling": named("ViT: cls or gap (default: cls)"),
    "--position-type": named("ViT: position embedding: learned or sincos (default: learned)"),
    "--representation-dim": integer("ViT: units of a tanh layer before the head (default: none)"),
    "--tokens-mlp-dim": integer("Mixer: hidden units of the token-mixing MLP"),
    "--channels-mlp-dim": integer("Mixer: hidden units of the channel-mixing MLP"),
    "--dropout-rate": real("ViT, Mixer: dropout rate (default: 0)"),
    "--stochastic-depth": real("ViT: stochastic depth rate of the last block (default: 0)"),
    "--units": integer("ResNet: units per stage, such as 3 4 6 3", nargs="+"),
    "--width-factor": real("ResNet: width multiplier; 1 means 64 channels in the root"),
    "--stem": named("ResNet: imagenet or small (default: by the size of the images)"),
    "--without-skips": named(
        "remove the skip connections of block03, block04/mlp, stage2/unit01 (ResNet), ...",
        "SITE",
        nargs="+",
    ),
}
# Options of a training besides the size of its images.
TRAINING_DATA = {
    **SOURCE,
    "--take": integer("number of training images (default: all)"),
    "--validation": real("fraction of training images to validate on", default=0.1),
    "--random-resized-crop": real(
        "random crop of at least this fraction of the image area, such as 0.08 (default: none)",
        metavar="LEAST",
    ),
    "--repeats": integer(
        "how often each training image is repeated in an epoch, differently augmented; 3 in DeiT",
        default=1,
    ),
    "--skip-errors": real(
        "largest share of images to leave out because they cannot be decoded, such as 0.001 "
        "(default: none)",
        metavar="SHARE",
        default=0.0,
    ),
    "--batch-size": integer("examples per step, over all devices", default=128),
}
TRAINING_RUN = {
    **output("output folder; created if missing", type=as_path, required=True),
    **SEED,
    **STRATEGY,
    "--mixed-precision": {"action": "store_true", "help": "compute in bfloat16"},
    "--steps-per-execution": integer("maximum number of steps per compiled call (default: 1)"),
    "--save-every": integer(
        "also save the state every N steps; it is always saved after an epoch and on SIGTERM"
    ),
    "--keep-states": integer("number of saved states to keep", default=2),
}


def recipe_options(
    recipe: type, names: Iterable[str] | None = None, default: str | None = None
) -> OptionTable:
    """Fields of a recipe's dataclass as options, by name or all but the seed and layers."""
    texts, table = field_texts(recipe), {}
    for field in dataclasses.fields(recipe):
        if field.name in names if names else field.name not in ("seed", "augment"):
            description = texts.get(field.name, "")  # `python -OO` has no docstrings
            text = description.partition(";")[0]  # what follows is detail
            default_words = description.partition("None for ")[2]
            default_words = default_words if field.default is None else field.default
            shown = default or ("off" if default_words in (False, 0) else default_words)
            table[flag(field.name)] = {"help": f"{text} (default: {shown})", **_reading(field)}
    return table


def field_texts(recipe: type) -> dict[str, str]:
    """The description of each field in the `Args:` of the docstring of a dataclass or its base."""
    texts = {}
    for kind in reversed(recipe.__mro__):
        section = textwrap.dedent((kind.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0])
        for name, text in re.findall(r"^(\w+): (.*(?:\n +.*)*)", section, re.M):
            texts[name] = re.sub('[`"]', "", " ".join(text.split()).rstrip("."))
    return texts


def _reading(field: dataclasses.Field) -> dict[str, Any]:
    """How an option of a field is parsed."""
    if field.type is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if field.type in (str, str | None):
        return {"metavar": "NAME"}
    if field.name == "rand_augment":
        return {"type": _magnitude, "metavar": "X"}
    return {"type": int if field.type in (int, int | None) else float}


def _magnitude(text: str) -> float:
    return False if text == "none" else float(text)


def flag(name: str) -> str:
    """The option of a name in Python: `--batch-size` of `batch_size`."""
    return f"--{name.replace('_', '-')}"


def prepare(options: Options) -> None:
    """Set the precision and the seed of the options, before a model is made."""
    import keras

    if options.mixed_precision:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.utils.set_random_seed(options.seed)


def data_arguments(options: Options) -> dict[str, Any]:
    """The arguments of `vit_tf.data.load` that determine the images of a run."""
    least = options.random_resized_crop
    return {
        "batch_size": options.batch_size,
        "validation": options.validation,
        "seed": options.seed,
        "take": options.take and {"train": options.take},
        "random_resized_crop": None if least is None else (least, 1.0),
        "repeats": options.repeats,
        "skip_errors": options.skip_errors,
        **chosen_classes(options),
    }


def train_and_test(
    model: keras.Model,
    recipe: TrainingRecipe,
    splits: Splits,
    options: Options,
    description: dict[str, Any],
    callbacks: Sequence[keras.callbacks.Callback] = (),
    saved: keras.Model | None = None,
    more_scores: Callable[[], dict[str, float]] = dict,
) -> dict[str, Any]:
    """Train a model in the scope of its strategy and test it; the result, with its test accuracy.

    The model, or `saved` in its place, and its result are written to the folder of the run.
    `more_scores` are computed after training, so that a run that resumes does not wait for them.
    """
    from vit_tf.training import checkpointing

    train, validation, test = splits
    saving = given(options, ("steps_per_execution", "save_every", "keep_states"))
    history = vit_tf.train(
        model, recipe, train, validation, options.out, description, callbacks=callbacks, **saving
    )
    test = vit_tf.distribute.divide_batches(test, vit_tf.distribute.strategy_of(model))
    # Keras annotates `verbose` as a text alone.
    scores = model.evaluate(test, return_dict=True, verbose=cast(Any, 0))
    saved = saved or model
    checkpointing.write_on_chief(options.out / "model.keras", saved.save)
    result = {
        "test_accuracy": scores["accuracy"],
        "test_loss": scores["loss"],
        **more_scores(),
        "best_val_accuracy": max(history["val_accuracy"]),
        "recipe": dataclasses.asdict(recipe),
        "parameters": saved.count_params(),
        "options": vars(options),
    }
    write_json(result, options.out / "result.json")
    return result


def describe_epochs(options: Options) -> str:
    """What a stopped training saved, and how to resume."""
    names = [path.stem for path in (options.out / "state").glob("epoch-*.npz")]
    epoch, *steps = max(([*map(int, re.findall(r"[0-9]+", name))] for name in names), default=[0])
    if not epoch and not steps:
        return NOTHING_SAVED
    within = f" and {steps[0]} steps of the next" if steps else ""
    return f"{without_password(options.out)} holds the state after epoch {epoch}{within}; {RESUMES}"
