"""timm and open_clip without the packages that their models do not need."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

# Transforms of images, and the repair of texts.
LEFT_OUT = ("torchvision", "ftfy")


class _Named(type):
    """The type of classes that have a name for every attribute, as an enumeration has."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Anything(ModuleType):
    """A module every name of which is a class of its own, to inherit from and to import."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _Named(name, (), {}))
        return getattr(self, name)


class _Finder:
    """Finds these packages and their submodules, all of them empty."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in LEFT_OUT:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Anything(spec.name)

    def exec_module(self, module):
        pass


def import_or_skip(name):
    """timm or open_clip, of its own models; the test is skipped where it is not installed."""
    pytest.importorskip("torch", reason="torch is not installed")
    if "tensorflow" in sys.modules:
        # Triton's library crashes in a process in which TensorFlow's was loaded before it.
        sys.modules.setdefault("triton", None)
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return pytest.skip(f"{name} is not installed")
    finally:
        sys.meta_path.remove(finder)
        for module in [m for m in sys.modules if m.partition(".")[0] in LEFT_OUT]:
            del sys.modules[module]
