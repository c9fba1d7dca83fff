"""Modules of others, which define the classes of the models that a script opens."""

import importlib.util
import inspect
import os
import sys
import zipfile
from importlib import import_module

LIBRARIES = ("keras_hub", "keras_cv")  # whose classes a file may name


def add_imports(add):
    """Adds the option that names them."""
    add(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="module or file.py that defines classes of the model; may be given again",
    )


def import_modules(names):
    """Imports modules, or files that end in `.py`, and lets Keras find what they define.

    A model keeps the module of an unregistered class, which for one defined in a script or a
    notebook is none to import: such classes and functions are found by their name alone.

    Raises:
        ValueError: for a module that is not found or raises an error.
    """
    import keras

    for name in names:
        try:
            module = _import_file(name) if name.endswith(".py") else _import_module(name)
        except Exception as error:
            raise ValueError(
                f"Expected --import to be a module or a file.py that can be imported. "
                f"Received: {name!r}, which raises {type(error).__name__}: {error}"
            ) from error
        known = keras.saving.get_custom_objects()
        for key, value in vars(module).items():
            own = inspect.isclass(value) or inspect.isfunction(value)
            if own and value.__module__ == module.__name__:
                known.setdefault(key, value)


def import_libraries(path):
    """Imports the known libraries whose classes a `.keras` file names, if they are installed."""
    if not zipfile.is_zipfile(path):
        return  # for `load_model` to refuse
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


def _import_module(name):
    """A module that is installed or lies in the working directory."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return import_module(name)


def _import_file(path):
    """The module of a file, under the name that an import from its folder gives it."""
    name = os.path.basename(path).removesuffix(".py")
    if name in sys.modules:
        there = getattr(sys.modules[name], "__file__", None)
        if there and os.path.exists(path) and os.path.samefile(there, path):
            return sys.modules[name]
        raise ImportError(f"there is another module {name!r} already; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
