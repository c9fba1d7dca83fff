"""Shared by all commands: options, help, exit status, modules, models, images, training."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import inspect
import json
import linecache
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from etils import epath

# Here and in every command, what needs TensorFlow is imported where it is used: options are parsed
# first, so that --help and errors in the options are immediate.
import vit_tf
from vit_tf.common.errors import error_message, is_tensorflow_error
from vit_tf.common.names import near_names, without_password
from vit_tf.data.files import as_path, is_remote
from vit_tf.data.preprocessing import Preprocessing, interval
from vit_tf.scripts import import_tensorflow

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from vit_tf.checkpoints.saving import SavedFeatures
    from vit_tf.data.source import Description
    from vit_tf.features.features import Features

Options: TypeAlias = argparse.Namespace
# The words of a command line; None for those that the process was started with.
Arguments: TypeAlias = Sequence[str] | None
AddOption: TypeAlias = Callable[..., argparse.Action]  # called like `ArgumentParser.add_argument`
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
# Where each strategy of `vit_tf.distribute` trains.
STRATEGIES = {
    "auto": "multiworker or mirrored if there are several workers or GPUs",
    "none": "one device",
    "mirrored": "all GPUs of a machine",
    "multiworker": "GPUs of several machines",
    "tpu": "a TPU or a TPU pod (KERAS_BACKEND=jax)",
}
METAVARS = {int: "N", float: "X", Path: "PATH"}  # in usage and help
LEAST_ADDRESS_SPACE = 3 * 2**30  # bytes that TensorFlow's libraries and their threads map
LIBRARIES = ("keras_hub", "keras_cv")  # imported where a `.keras` file names their classes


class _HelpAll(argparse.Action):
    """`--help-all`: prints the help of every option."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show all options")

    def __call__(self, parser: Any, *_: Any) -> None:
        parser.main_options = None
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser with options in titled sections; `--help` shows `main_options`, `--help-all` all."""

    def __init__(self, main_options: Sequence[str] | None = None, **kwargs: Any) -> None:
        # An abbreviation would make `--steps 3` another option, `--steps-per-execution`.
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs
        )
        self._titled, self.main_options = {}, main_options
        if main_options:
            self.add_argument("--help-all", action=_HelpAll)

    def group(self, title: str) -> AddOption:
        """The function that adds an option to the section of a title."""
        if title not in self._titled:
            self._titled[title] = self.add_argument_group(title)
        group = self._titled[title]

        def add(*names: str, **settings: Any) -> argparse.Action:
            """Adds an option; its help shows the default, unless it describes that in words."""
            if names[0].startswith("-"):
                default, text = settings.get("default"), settings.get("help", "")
                is_empty = default is None or default is False or default in ("", (), [])
                is_hidden = argparse.SUPPRESS in (text, default) or "(default: " in text
                if not is_empty and not is_hidden:
                    shown = " ".join(default) if isinstance(default, tuple) else default
                    settings["help"] = f"{text} (default: {shown})"
                if "choices" not in settings and settings.get("type") in METAVARS:
                    settings.setdefault("metavar", METAVARS[settings["type"]])
            return group.add_argument(*names, **settings)

        return add

    def parse_args(self, args: Arguments = None, namespace: None = None) -> Options:
        self._words = words = sys.argv[1:] if args is None else list(args)
        options = super().parse_args(words, namespace)
        options.command = without_password(shlex.join([*self.prog.split(), *map(str, words)]))
        return options

    def format_help(self) -> str:
        with self._only_main_options():
            return super().format_help()

    def format_usage(self) -> str:
        with self._only_main_options():
            return super().format_usage()

    @contextlib.contextmanager
    def _only_main_options(self) -> Iterator[None]:
        """Hides the other options, unless all are asked for."""
        shown = {"-h", "--help-all", *(self.main_options or ())}
        actions = [action for action in self._actions if action.option_strings]
        hidden = {a: a.help for a in actions if not shown.intersection(a.option_strings)}
        hidden = hidden if self.main_options else {}
        try:
            for action in hidden:
                action.help = argparse.SUPPRESS
            yield
        finally:
            for action, text in hidden.items():
                action.help = text

    def error(self, message: str) -> NoReturn:
        """Ends the command with a line that suggests near matches of mistyped options."""
        actions = self._option_string_actions.items()
        names = [name.lstrip("-") for name, action in actions if action.help != argparse.SUPPRESS]
        hints = []
        for word in self._words:
            typed = word.partition("=")[0]
            if not typed.startswith("-") or typed in self._option_string_actions:
                continue
            if near := near_names(typed.lstrip("-"), names):
                hints.append(f"did you mean --{near[0]} in place of {typed}?")
        super().error(without_password("; ".join([message, *hints])))


def make_parser(
    name: str, docstring: str | None, main_options: Sequence[str] | None = None, more: str = ""
) -> Parser:
    """The parser of a command, whose help is the module's docstring, which ends in `Examples:`."""
    description, _, examples = (docstring or "").partition("\nExamples:\n")
    epilog = f"{STATUS.format(more=more)}\n\nexamples:\n{examples}"
    program = name if " " in name else f"vit-tf {name}"
    return Parser(main_options, prog=program, description=description, epilog=epilog.rstrip())


def add_strategy(add: AddOption) -> None:
    """Adds `--strategy`: where a model is trained or measured."""
    meanings = "; ".join(f"{name}: {where}" for name, where in STRATEGIES.items())
    add("--strategy", metavar="NAME", default="auto", help=meanings)


def add_source(add: AddOption) -> None:
    """Adds the options that name the data set."""
    text = "digits, shapes, photographs, a TFDS name, or a folder of images"
    add("--data", metavar="NAME", default="digits", help=text)
    add_data_dir(add)
    add("--classes", metavar="FILE", help="text file with the classes to use, one per line")


def add_split(add: AddOption, default: str | None = "test", otherwise: str | None = None) -> None:
    """Adds `--split`: which images are measured."""
    text = f" (default: {otherwise})" if otherwise else ""
    add("--split", metavar="NAME", default=default, help=f"test, validation, train or all{text}")


def add_take(add: AddOption, default: str = "all") -> None:
    """Adds `--take`: how many images are trained on."""
    add("--take", type=int, help=f"number of training images (default: {default})")


def add_take_test(add: AddOption, default: str = "all") -> None:
    """Adds `--take-test`: how many images are measured."""
    add("--take-test", type=int, help=f"number of images to measure (default: {default})")


def add_data_dir(add: AddOption, otherwise: str = "that of TFDS") -> None:
    """Adds `--data-dir`: where TFDS keeps its data."""
    text = "data folder of TFDS, such as ~/tensorflow_datasets"
    add("--data-dir", metavar="FOLDER", help=f"{text} (default: {otherwise})")


def add_imports(add: AddOption) -> None:
    """Adds `--import`: modules that define classes of a model."""
    text = "module or file.py that defines custom classes of the model; may be repeated"
    add("--import", help=text, dest="imports", action="append", default=[], metavar="MODULE")


def add_model(parser: Parser) -> None:
    """Adds the argument that names one model, and the modules that define its classes."""
    text = (
        "a .keras file, a checkpoint file or folder, or a name such as vit-cls-cifar10 or "
        "hf://timm/vit_base_patch16_224.mae"
    )
    parser.group("model")("model", metavar="MODEL", help=text)
    add_imports(parser.group("model"))


def add_layers(add: AddOption) -> None:
    """Adds the options for layers and tokens that cannot be inferred from a model."""
    text = "side of the images, in pixels, for models that accept any size (default: the model's)"
    add("--image-size", type=int, help=text)
    add("--taps", nargs="+", metavar="PATTERN", help="layers to measure, such as 'block*_out'")
    text = "side of a patch, in pixels, where it cannot be inferred from the model"
    add("--patch-size", type=int, help=text)
    text = "number of prefix tokens, such as CLS, of a model with --patch-size (default: inferred)"
    add("--prefix", type=int, help=text)


def check_layers(options: Options) -> None:
    """Raises a `ValueError` for impossible values of the options of `add_layers`."""
    if options.prefix is not None and not options.patch_size:
        raise ValueError(f"--prefix needs --patch-size. Received: --prefix {options.prefix} alone")
    require_at_least(options, image_size=1, patch_size=1, prefix=0)


def add_values(add: AddOption) -> None:
    """Adds the options for the pixel values that a model expects."""
    text = "pixel values of black and white that the model expects, such as 0 255 (default: "
    text += "inferred from the model, otherwise -1 1)"
    add("--range", nargs=2, type=float, metavar=("LOW", "HIGH"), help=text)
    for name, example in (("mean", "0.485 0.456 0.406"), ("std", "0.229 0.224 0.225")):
        text = f"{name} per channel to normalize values in [0, 1] with, such as {example}"
        add(f"--{name}", nargs=3, type=float, metavar=tuple("RGB"), help=text)


def add_out(
    add: AddOption,
    text: str,
    metavar: str = "FOLDER",
    reading: Callable[[str], Path | epath.Path] = Path,
    **more: Any,
) -> None:
    """Adds `--out`: where a command writes."""
    add("--out", type=reading, metavar=metavar, help=text, **more)


def require_at_least(options: Options, **least: float) -> None:
    """Raises a `ValueError` for an option below its least value; None passes."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"Expected {flag} to be at least {bound}. Received: {value}")


def given(options: Options, names: Iterable[str]) -> dict[str, Any]:
    """The options of these names that the user gave, as a dict."""
    values = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


class Terminated(BaseException):
    """The process was asked to end, by SIGTERM."""


def run_command(
    parse: ParseOptions,
    run: RunCommand,
    arguments: Arguments = None,
    describe_saved: Callable[[Options], str] = lambda options: NOTHING_SAVED,
    backends: Sequence[str] | None = ("tensorflow",),
    check: Callable[[Options], None] = lambda options: None,
) -> int:
    """Parse and run a command on `backends` (None: any) of Keras; the exit status, as in `STATUS`.

    `describe_saved` returns what a stopped run saved, from the options. Names of models, data and
    files are checked before TensorFlow is imported, which takes seconds; `check` checks more.
    """
    options = None
    try:
        with _sigterm_raises():
            options = parse(arguments)
            require_names(options)
            check(options)
            _require_address_space()
            if backends:
                _require_backend(backends)
            import_tensorflow()
            return _run(run, options) or 0
    except (KeyboardInterrupt, Terminated) as stop:
        text = describe_saved(options) if options else NOTHING_SAVED
        print(f"stopped: {text}", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)
    except Exception as error:
        if not _is_user_error(error) or isinstance(error, BrokenPipeError):
            raise
        nameless = "not enough memory" if isinstance(error, MemoryError) else type(error).__name__
        message = error_message(error) or nameless
        print(f"error: {message}{_location(error)}", file=sys.stderr)
        if isinstance(error, ConnectionError) and hasattr(options, "strategy"):
            from vit_tf.distribute import strategies

            if strategies.num_workers() > 1:
                strategies.leave(2)
        return 2


def _require_address_space() -> None:
    """Raises a `ValueError` for a limit that is less than the libraries take."""
    # Before they are imported: where their memory cannot be mapped, some try again for ever.
    with contextlib.suppress(ImportError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESS_SPACE:
            raise ValueError(
                f"TensorFlow's libraries need at least {LEAST_ADDRESS_SPACE / 2**30:g} GiB of "
                f"address space (ulimit -v). Received: {limit / 2**30:.1f} GiB"
            )


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
        if imports:
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

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_user_error(error: Exception) -> bool:
    return isinstance(error, (ValueError, OSError, MemoryError)) or is_tensorflow_error(error)


def _location(error: Exception) -> str:
    """Where a `ValueError` was raised, unless by a `raise` statement of this package."""
    if not isinstance(error, ValueError) or "Expected" in str(error):
        return ""
    frames = [
        (frame.f_globals.get("__name__", ""), frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    module, file, line = frames[-1]
    in_package = module == "__main__" or module.startswith("vit_tf.")
    if in_package and linecache.getline(file, line).lstrip().startswith("raise "):
        return ""
    ours = [f" (in {name}, line {line})" for name, _, line in frames if name.startswith("vit_tf.")]
    return ours[-1] if ours else ""


def say(text: str) -> None:
    """Print a result, once where several workers have it."""
    if vit_tf.distribute.is_chief():
        print(without_password(text))


def require_own_json(path: str | os.PathLike) -> None:
    """Raises a `ValueError` for a file that holds anything but the result of a command."""
    path = as_path(path)
    if path.exists() and not _is_own_json(path):
        raise ValueError(
            f"--out: {without_password(path)!r} exists and was not written by vit_tf, so it is "
            "not replaced. Choose another file."
        )


def _is_own_json(path: Path | epath.Path) -> bool:
    """Whether a file holds the result of a command, or nothing."""
    text = path.read_bytes() if path.is_file() else b"no file"
    try:
        return not text or "command" in json.loads(text)["options"]
    except (ValueError, KeyError, TypeError):
        return False


def write_json(result: dict[str, Any], path: Path | epath.Path) -> None:
    """Write a result as JSON, whole or not at all."""
    require_own_json(path)
    from vit_tf.training import checkpointing

    text = without_password(json.dumps(result, indent=1, default=str))
    checkpointing.write_on_chief(path, lambda partial: Path(partial).write_text(text + "\n"))


def import_modules(names: Iterable[str]) -> None:
    """Imports modules, or files that end in `.py`, and lets Keras find what they define by name."""
    import keras

    for name in names:
        try:
            if not name.endswith(".py") and os.getcwd() not in sys.path:
                sys.path.append(os.getcwd())
            module = _import_file(name) if name.endswith(".py") else import_module(name)
        except Exception as error:
            raise ValueError(
                f"--import {name}: the module cannot be imported ({type(error).__name__}: {error})"
            ) from error
        # A class defined in a script or a notebook cannot be imported, but found by its name.
        custom_objects = keras.saving.get_custom_objects()
        for key, value in vars(module).items():
            is_definition = inspect.isclass(value) or inspect.isfunction(value)
            if is_definition and value.__module__ == module.__name__:
                custom_objects.setdefault(key, value)


def _import_libraries(path: str) -> None:
    """Imports the libraries whose classes a `.keras` file names."""
    if not zipfile.is_zipfile(path):
        return  # `load_model` refuses it
    from vit_tf.checkpoints.archives import require_small_members

    require_small_members(path)
    with zipfile.ZipFile(path) as archive:
        text = archive.read("config.json") if "config.json" in archive.namelist() else b""
    for library in LIBRARIES:
        if f'"{library}'.encode() in text:
            try:
                import_module(library)
            except ImportError as error:
                raise ValueError(
                    f"Expected {library} to be installed, for {path}. Received: {error}"
                ) from error


def _import_file(path: str) -> ModuleType:
    """The module of a file, under the name that an import from its folder gives it."""
    name = os.path.basename(path).removesuffix(".py")
    if name in sys.modules:
        loaded = getattr(sys.modules[name], "__file__", None)
        if loaded and os.path.exists(path) and os.path.samefile(loaded, path):
            return sys.modules[name]
        raise ImportError(f"another module {name!r} is already imported; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def is_saved_model(path: str) -> bool:
    """Whether a path is a folder that TensorFlow wrote, and not that of a checkpoint."""
    return os.path.isdir(path) and not os.path.isfile(os.path.join(path, "config.json"))


def open_model(name: str) -> keras.Model:
    """The Keras model of a `.keras` file or of a checkpoint: a file, a folder or a public name."""
    if name.endswith(".keras"):
        _import_libraries(name)
        return vit_tf.load_model(name)
    return vit_tf.load_model(name) if is_saved_model(name) else vit_tf.load_pretrained(name)


def require_names(options: Options) -> None:
    """Raises a `ValueError` for a model, data or a file of the options that does not exist."""
    if hasattr(options, "imports"):  # `train` has a --model that is a kind of model
        for source in getattr(options, "models", None) or [getattr(options, "model", None)]:
            if source:
                _require_model(source)
    # A module of the user's may add a data set to those of TFDS.
    if getattr(options, "data", None) and not getattr(options, "imports", None):
        _require_data(options.data, options.data_dir)
    if getattr(options, "classes", None) and not is_remote(options.classes):
        require_existing_file(options.classes, "File of classes")


def require_existing_file(path: str | os.PathLike, what: str = "File") -> None:
    """Raises a `ValueError` for a file that does not exist."""
    if not os.path.isfile(os.path.expanduser(path)):
        raise ValueError(f"{what} not found: {without_password(path)!r}")


def _require_model(source: str) -> None:
    from vit_tf.checkpoints.released import require_known_model

    if source.endswith(".keras") and not is_remote(source):
        require_existing_file(source, "Model file")
    if not source.startswith("timm:") and not is_remote(source):
        require_known_model(os.path.expanduser(source))


def _require_data(source: str, data_dir: str | None) -> None:
    from vit_tf.data.names import require_known_data

    if is_remote(source) or os.path.isdir(os.path.expanduser(source)):
        return
    if source[:1] in ("/", ".", "~") or source.endswith("/"):
        raise ValueError(f"Folder of images not found: {without_password(source)!r}")
    require_known_data(source, data_dir)


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
) -> tuple[Preprocessing, str]:
    """The `Preprocessing` of a model's images, and its origin; options `override` the model's."""
    from vit_tf.features.conversion import facts_of  # only here, since it imports Keras

    facts = facts_of(model)
    expected, origin = facts.expected_images, facts.preprocessing_origin
    specified = given_preprocessing(options, expected.size)
    if specified and (override or not origin.startswith("set ")):
        return specified, "set by the options"
    return expected, origin if facts.preprocessing else f"assumed: {origin}"


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
    from vit_tf.data.source import require_labels

    description = describe_data(options)
    require_labels(description, f"--data {options.data}, images without labels")
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


def add_architecture(
    add: AddOption, names: Iterable[str] = tuple(MODEL), only: str | None = None
) -> None:
    """Adds options of a model, by name; for `only` one kind of model, without naming the kind."""
    for name in names:
        kinds, text, reading = MODEL[name]
        kind = f"{kinds}: " if kinds and not only else ""
        add(_flag(name), help=kind + text, **reading)


def add_recipe(
    add: AddOption, recipe: type, names: Iterable[str] | None = None, default: str | None = None
) -> None:
    """Adds fields of a recipe's dataclass as options, by name or all but the seed and layers."""
    texts = field_texts(recipe)
    for field in dataclasses.fields(recipe):
        if field.name in names if names else field.name not in ("seed", "augment"):
            description = texts.get(field.name, "")  # `python -OO` has no docstrings
            text = description.partition(";")[0]  # what follows is detail
            default_words = description.partition("None for ")[2]
            default_words = default_words if field.default is None else field.default
            shown = default or ("off" if default_words in (False, 0) else default_words)
            add(_flag(field.name), help=f"{text} (default: {shown})", **_reading(field))


def field_texts(recipe: type) -> dict[str, str]:
    """The description of each field in the `Args:` of the docstring of a dataclass or its base."""
    texts = {}
    for kind in reversed(recipe.__mro__):
        section = (kind.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
        section = textwrap.dedent(section)
        for name, text in re.findall(r"^(\w+): (.*(?:\n +.*)*)", section, re.M):
            text = " ".join(text.split()).rstrip(".")
            texts[name] = re.sub('[`"]', "", text)
    return texts


def _reading(field: dataclasses.Field) -> dict[str, Any]:
    """How an option of a field is parsed."""
    if field.type is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if field.type in (str, str | None):
        return _NAME
    if field.name == "rand_augment":
        return {"type": _magnitude, "metavar": "X"}
    return _INT if field.type in (int, int | None) else _FLOAT


def _magnitude(text: str) -> float:
    return False if text == "none" else float(text)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_training(parser: Parser, image_size: dict[str, Any]) -> None:
    """Adds the options for training images and for the run; `image_size` are those of that flag."""
    data, run = parser.group("data"), parser.group("run")
    add_source(data)
    data("--image-size", type=int, **image_size)
    add_take(data)
    data("--validation", type=float, default=0.1, help="fraction of training images to validate on")
    text = "random crop of at least this fraction of the image area, such as 0.08 (default: none)"
    data("--random-resized-crop", type=float, metavar="LEAST", help=text)
    text = "how often each training image is repeated in an epoch, differently augmented"
    data("--repeats", type=int, default=1, help=f"{text}; 3 in DeiT")
    text = "largest share of images to leave out because they cannot be decoded, such as 0.001"
    data("--skip-errors", type=float, default=0.0, metavar="SHARE", help=f"{text} (default: none)")
    data("--batch-size", type=int, default=128, help="examples per step, over all devices")
    add_out(run, "output folder; created if missing", reading=as_path, required=True)
    run("--seed", type=int, default=0, help="random seed")
    add_strategy(run)
    run("--mixed-precision", action="store_true", help="compute in bfloat16")
    text = "maximum number of steps per compiled call (default: 1)"
    run("--steps-per-execution", type=int, help=text)
    text = "also save the state every N steps; it is always saved after an epoch and on SIGTERM"
    run("--save-every", type=int, help=text)
    run("--keep-states", type=int, default=2, help="number of saved states to keep")


def prepare(options: Options) -> None:
    """Set the precision and the seed of the options, before a model is made."""
    import keras

    if options.mixed_precision:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.utils.set_random_seed(options.seed)


def data_arguments(options: Options) -> dict[str, Any]:
    """The arguments of `vit_tf.data.load` that determine the images of a run."""
    take = options.take and {"train": options.take}
    arguments = {name: getattr(options, name) for name in ("batch_size", "validation", "seed")}
    if options.random_resized_crop is not None:
        arguments["random_resized_crop"] = (options.random_resized_crop, 1.0)
    if options.repeats != 1:
        arguments["repeats"] = options.repeats
    if options.skip_errors:
        arguments["skip_errors"] = options.skip_errors
    return arguments | {"take": take} | chosen_classes(options)


def train_and_test(
    make_model: Callable[[], keras.Model],
    recipe: TrainingRecipe,
    splits: Splits,
    options: Options,
    description: dict[str, Any],
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> None:
    """Train the model that a function makes, test it and write it and its result to a folder."""
    with vit_tf.distribute.strategy(options.strategy).scope():
        model = make_model()
        history, scores = fit_and_score(model, recipe, splits, options, description, callbacks)
    write_result(model, recipe, history, scores, options)
    say(f"test accuracy {100 * scores['accuracy']:.2f} %, {options.out / 'model.keras'}")


def fit_and_score(
    model: keras.Model,
    recipe: TrainingRecipe,
    splits: Splits,
    options: Options,
    description: dict[str, Any],
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Train a model under its strategy and test it; the history of training and the test scores."""
    train, validation, test = splits
    saving = given(options, ("steps_per_execution", "save_every", "keep_states"))
    saving["callbacks"] = callbacks
    history = vit_tf.train(model, recipe, train, validation, options.out, description, **saving)
    test = vit_tf.distribute.divide_batches(test, vit_tf.distribute.strategy_of(model))
    # Keras annotates `verbose` as a text alone.
    return history, model.evaluate(test, return_dict=True, verbose=cast(Any, 0))


def write_result(
    model: keras.Model,
    recipe: TrainingRecipe,
    history: dict[str, list[float]],
    scores: dict[str, float],
    options: Options,
    more: dict[str, Any] | None = None,
) -> None:
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
    write_json(result, options.out / "result.json")


def describe_epochs(options: Options) -> str:
    """What a stopped training saved, and how to resume."""
    names = [path.stem for path in (options.out / "state").glob("epoch-*.npz")]
    places = [[int(number) for number in re.findall(r"[0-9]+", name)] for name in names]
    epoch, *steps = max(places, default=[0])
    if not epoch and not steps:
        return NOTHING_SAVED
    within = f" and {steps[0]} steps of the next" if steps else ""
    return f"{without_password(options.out)} holds the state after epoch {epoch}{within}; {RESUMES}"
