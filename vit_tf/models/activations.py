"""The forms of GELU (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415), and gates."""

import keras
from keras import ops

register = keras.saving.register_keras_serializable("vit_tf")


@register
def gelu(x):
    """`x / 2 (1 + erf(x / sqrt(2)))`, the exact form.

    TensorFlow fuses this form with the product before it, as that of Keras, by `erfc`, which takes
    half as long again with its gradient, and is finer where numbers have 8 bits.
    """
    if keras.backend.standardize_dtype(x.dtype) not in ("float32", "float64"):
        return ops.gelu(x, approximate=False)
    return 0.5 * x * (1.0 + ops.erf(x * 0.5**0.5))


@register
def gelu_tanh(x):
    """`x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, the form of flax, so of Google's ViT."""
    return ops.gelu(x, approximate=True)


@register
def quick_gelu(x):
    """`x sigmoid(1.702 x)`, the form of OpenAI's CLIP."""
    return x * ops.sigmoid(1.702 * x)


def swiglu(x):
    """`silu(a) b` of the halves `a` and `b` of the channels (Shazeer 2020, 2002.05202, eq. 6)."""
    gate, value = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * value


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu}
# Of twice as many channels as they return.
GATES = {"swiglu": swiglu}
