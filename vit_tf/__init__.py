"""Vision models in Keras 3 whose every intermediate has a name, and the means to train them."""

from vit_tf.tokens import TokenGrid

__all__ = ["TokenGrid"]
