"""Vision models in Keras 3 whose every intermediate has a name, and the means to train them."""

from importlib import import_module
from pathlib import Path

from vit_tf.registration import register_with_keras
from vit_tf.tokens import TokenGrid

__version__ = "0.1.0"

# Imported when first used: `import vit_tf` alone loads neither Keras nor TensorFlow.
_HOMES = {
    "BEiT": "vit_tf.models.beit",
    "BiT": "vit_tf.models.bit",
    "CLIPViT": "vit_tf.models.clip",
    "FineTuning": "vit_tf.training.finetuning",
    "MaskedPatchPrediction": "vit_tf.training.masked_patches",
    "Mixer": "vit_tf.models.mixer",
    "Preprocessing": "vit_tf.preprocessing",
    "Pretraining": "vit_tf.training.pretraining",
    "Recipe": "vit_tf.training.recipes",
    "ViT": "vit_tf.models.vit",
    "at_resolution": "vit_tf.models.resolution",
    "count_flops": "vit_tf.taps.flops",
    "fresh_copy": "vit_tf.models.fresh",
    "list_pretrained": "vit_tf.checkpoints.names",
    "load_features": "vit_tf.taps.saving",
    "load_model": "vit_tf.taps.saving",
    "load_pretrained": "vit_tf.checkpoints.loading",
    "submodel": "vit_tf.taps.submodels",
    "train": "vit_tf.training.recipes",
}
_MODULES = ("analysis", "data", "distribute")

# A checkout keeps `vit_tf.analysis` beside this folder, where an installed package has it inside.
# Without this, one checkout would take the analysis of whichever other one is installed.
_INSIDE, _BESIDE = Path(__file__).resolve().parents[:2]
if not (_INSIDE / "analysis").is_dir() and (_BESIDE / "analysis" / "__init__.py").is_file():
    __path__.append(str(_BESIDE))

__all__ = ["TokenGrid", *_HOMES, *_MODULES]


def __getattr__(name):
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"vit_tf.{name}")
    raise AttributeError(f"module 'vit_tf' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)


register_with_keras()
