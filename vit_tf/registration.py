"""Makes this package's classes known to Keras, whichever of the two is imported first.

`keras.saving.load_model` finds a class only if the module that registers it has been imported.
"""

import sys
from importlib import import_module

# All modules that register classes or functions.
MODULES = (
    "vit_tf.models.beit",
    "vit_tf.models.bit",
    "vit_tf.models.clip",
    "vit_tf.models.hybrid",
    "vit_tf.models.image_encoder",
    "vit_tf.models.mixer",
    "vit_tf.models.siglip",
    "vit_tf.models.transformer",
    "vit_tf.models.vit",
    "vit_tf.taps.attention_weights",
    "vit_tf.taps.recorder",
    "vit_tf.taps.submodels",
    "vit_tf.training.masked_patches",
    "vit_tf.training.objectives",
    "vit_tf.training.optimizers",
)


def register_with_keras():
    """Registers all classes now if Keras is there, or else right after it is imported."""
    if "keras" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Watch())


def _register():
    for module in MODULES:
        import_module(module)


class _Watch:
    """Finds modules as the other finders do, and registers all classes when Keras is there.

    It waits until no module of this package is halfway through its own import, then withdraws.
    """

    def __init__(self):
        self._running = 0

    def find_spec(self, name, path=None, target=None):
        if name != "keras" and not name.startswith("vit_tf."):
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _WatchedLoader(spec.loader, self)
        return spec

    def load(self, loader, module):
        """Executes a module by its own loader."""
        self._running += 1
        try:
            loader.exec_module(module)
        finally:
            self._running -= 1
        if not self._running and "keras" in sys.modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            _register()


class _WatchedLoader:
    """The loader of a module, but that a `_Watch` executes the module."""

    def __init__(self, loader, watch):
        self._loader, self._watch = loader, watch

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._watch.load(self._loader, module)
