"""Vision models in Keras 3 whose every intermediate has a name, and the means to train them."""

from vit_tf import data
from vit_tf.bit import BiT
from vit_tf.saving import load_features, load_model
from vit_tf.taps import submodel
from vit_tf.tokens import TokenGrid
from vit_tf.vit import ViT

__all__ = ["BiT", "TokenGrid", "ViT", "data", "load_features", "load_model", "submodel"]
