"""The forms of GELU (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415) by name."""

import keras
from keras import ops

register = keras.saving.register_keras_serializable("vit_tf")


@register
def gelu_tanh(x):
    """`x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, the form of flax, so of Google's ViT."""
    return ops.gelu(x, approximate=True)


@register
def quick_gelu(x):
    """`x sigmoid(1.702 x)`, the form of OpenAI's CLIP."""
    return x * ops.sigmoid(1.702 * x)


ACTIVATIONS = {"gelu": keras.activations.gelu, "gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu}
