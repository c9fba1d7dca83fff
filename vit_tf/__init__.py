"""Vision models in Keras 3 with a name for every intermediate value, and their training."""

from pathlib import Path

from vit_tf.common.names import attach_public

__version__ = "0.1.0"

# A checkout keeps `vit_tf.analysis` next to this folder, where an installed package has it inside.
# Without this, one checkout would take the analysis of whichever other one is installed.
_INSIDE, _BESIDE = Path(__file__).resolve().parents[:2]
if not (_INSIDE / "analysis").is_dir() and (_BESIDE / "analysis" / "__init__.py").is_file():
    __path__.append(str(_BESIDE))

# Imported when first used: `import vit_tf` alone loads neither Keras nor TensorFlow.
__getattr__, __dir__, __all__ = attach_public(
    __name__, __file__, {"list_models": ("list_pretrained", {})}
)
