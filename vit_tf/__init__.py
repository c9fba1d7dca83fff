"""Vision models in Keras 3 with a name for every intermediate value, and their training."""

import sys
import types
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, cast

import lazy_loader

__version__ = "0.1.0"

# A checkout keeps `vit_tf.analysis` next to this folder, where an installed package has it inside.
# Without this, one checkout would take the analysis of whichever other one is installed.
_INSIDE, _BESIDE = Path(__file__).resolve().parents[:2]
if not (_INSIDE / "analysis").is_dir() and (_BESIDE / "analysis" / "__init__.py").is_file():
    __path__.append(str(_BESIDE))

# Modules whose classes and functions Keras opens: `keras.saving.load_model` finds a class only if
# the module that registers it has been imported.
REGISTERED_MODULES = (
    "vit_tf.models.beit",
    "vit_tf.models.bit",
    "vit_tf.models.clip",
    "vit_tf.models.hybrid",
    "vit_tf.models.image_encoder",
    "vit_tf.models.mixer",
    "vit_tf.models.siglip",
    "vit_tf.models.transformer",
    "vit_tf.models.vit",
    "vit_tf.features.attention_weights",
    "vit_tf.features.recorder",
    "vit_tf.features.scores",
    "vit_tf.features.submodels",
    "vit_tf.training.masked_patches",
    "vit_tf.training.objectives",
    "vit_tf.training.optimizers",
)

# Imported when first used: `import vit_tf` alone loads neither Keras nor TensorFlow.
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


# What people of other libraries call, and what answers it here.
GUESSES = {
    **dict.fromkeys(("create_model", "from_pretrained", "get_model", "open"), "vit_tf.load"),
    **dict.fromkeys(("list_models", "models_list", "available_models"), "vit_tf.list_pretrained"),
    **dict.fromkeys(
        ("fit", "finetune", "fine_tune"), "vit_tf.train or the command vit-tf finetune"
    ),
    **dict.fromkeys(("feature_extractor", "extract_features", "get_features"), "vit_tf.submodel"),
    **dict.fromkeys(("VisionTransformer", "vit", "vit_b16", "vit_b_16"), "vit_tf.ViT"),
    **dict.fromkeys(("ResNet", "ResNet50", "resnet50", "ResNetV2"), "vit_tf.BiT"),
    **dict.fromkeys(("datasets", "dataset"), "vit_tf.data"),
    **dict.fromkeys(("report", "make_report"), "vit_tf.analysis.make_report"),
    "evaluate": "the command vit-tf evaluate",
    "analyze": "vit_tf.analysis.make_report or the command vit-tf analyze",
    "load_data": "vit_tf.data.load",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when first used; an `AttributeError` lists near matches."""
    if name in __all__ or name.startswith("_"):
        return _public(name)
    try:
        return _public(name)  # a module
    except AttributeError:
        from vit_tf.common.names import near_names

        analysis = import_module("vit_tf.analysis")

        known = [*__all__, *(f"analysis.{other}" for other in analysis.__all__)]
        known += [f"analysis.plots.{other}" for other in analysis.plots.__all__]
        near = [one for one in known if one.rpartition(".")[2] == name]
        near = near or near_names(name, known)
        hint = GUESSES.get(name) or " or ".join(f"vit_tf.{one}" for one in near[:3])
        if not hint and name in analysis.GUESSES:
            hint = f"in vit_tf.analysis: {analysis.GUESSES[name]}"
        if not hint:
            raise
        raise AttributeError(
            f"module 'vit_tf' has no attribute {name!r}. Did you mean {hint}?"
        ) from None


def register_with_keras() -> None:
    """Registers all classes now if Keras is there, or else right after it is imported."""
    if "keras" in sys.modules:
        _import_registered()
    else:
        sys.meta_path.insert(0, _Watch())


def _import_registered() -> None:
    for module in REGISTERED_MODULES:
        import_module(module)


class _Watch:
    """Finds modules as the other finders do, and registers all classes when Keras is there.

    It waits until no module of this package is halfway through its own import, then withdraws.
    """

    def __init__(self):
        self._running = 0

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "keras" and not name.startswith("vit_tf."):
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            # It forwards every attribute of the loader that it wraps.
            spec.loader = cast(Any, _WatchedLoader(spec.loader, self))
        return spec

    def load(self, loader: Any, module: types.ModuleType) -> None:
        """Executes a module by its own loader."""
        self._running += 1
        try:
            loader.exec_module(module)
        finally:
            self._running -= 1
        if not self._running and "keras" in sys.modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            _import_registered()


class _WatchedLoader:
    """The loader of a module, but that a `_Watch` executes the module."""

    def __init__(self, loader: Any, watch: "_Watch"):
        self._loader, self._watch = loader, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: types.ModuleType) -> None:
        spec = cast(ModuleSpec, module.__spec__)  # set while a module is imported
        module.__loader__ = spec.loader = self._loader
        self._watch.load(self._loader, module)


register_with_keras()
