"""Vision models in Keras 3 whose every intermediate has a name, and the means to train them."""

from pathlib import Path

import lazy_loader

from vit_tf.names import renamed_attributes
from vit_tf.registration import register_with_keras

__version__ = "0.1.0"

# A checkout keeps `vit_tf.analysis` next to this folder, where an installed package has it inside.
# Without this, one checkout would take the analysis of whichever other one is installed.
_INSIDE, _BESIDE = Path(__file__).resolve().parents[:2]
if not (_INSIDE / "analysis").is_dir() and (_BESIDE / "analysis" / "__init__.py").is_file():
    __path__.append(str(_BESIDE))

# Imported when first used: `import vit_tf` alone loads neither Keras nor TensorFlow.
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name):
    """A public name, imported when first used; an `AttributeError` lists near matches."""
    if name in __all__ or name.startswith("_"):
        return _public(name)
    try:
        return _public(name)  # a module
    except AttributeError:
        from vit_tf import analysis
        from vit_tf.names import near_names

        known = [*__all__, *(f"analysis.{measure}" for measure in analysis.__all__)]
        near = [one for one in known if one.rpartition(".")[2] == name]
        near = near or near_names(name, known)
        if not near:
            raise
        hint = " or ".join(f"vit_tf.{one}" for one in near[:3])
        raise AttributeError(
            f"module 'vit_tf' has no attribute {name!r}. Did you mean {hint}?"
        ) from None


__getattr__ = renamed_attributes(__getattr__, {"fresh_copy": "reinitialize"}, __name__)
register_with_keras()
