"""What image encoders of CLIP and SigLIP share: embeddings compared with texts, and pooling."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from vit_tf.common.backend import Tensor
from vit_tf.common.names import lookup
from vit_tf.features.recorder import Taps
from vit_tf.models.model import ConfiguredLayer, zero_head
from vit_tf.models.resolution import copy_weights
from vit_tf.models.transformer import (
    ACTIVATIONS,
    LayerNormalization,
    TokenDense,
    TransformerModel,
    split_heads,
)

register = keras.saving.register_keras_serializable("vit_tf")

UNIT = 1e-3  # by which the length of an embedding of a text may differ from 1
LEAST = 1e-12  # of a length that is divided by, as in torch's `normalize`


@register
class TextHead(ConfiguredLayer):
    """Scores of images for texts, `scale x / |x| E^T + bias`, in float32; `E` starts at zero."""

    def __init__(self, units: int, **kwargs: Any):
        super().__init__({"units": units}, **kwargs)
        self.units = units

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.kernel = self.add_weight(
            shape=(input_shape[-1], self.units), initializer="zeros", name="kernel"
        )
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, x: Tensor) -> Tensor:
        length = ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True))
        x = x / ops.maximum(length, LEAST)
        return self.scale * ops.matmul(x, self.kernel) + self.bias


@register
class AttentionPooling(ConfiguredLayer):
    """Attention of a learned query over all tokens, and an MLP (Zhai et al. 2022, 2106.04560).

    Called on tokens of shape (example, token, channel), it returns a dict of `"attention"`, the
    shares of each token (example, head, token), `"attended"`, what they are summed to, projected,
    `"hidden"` of the MLP, and `"pooled"`, the sum of `"attended"` and the MLP's output, in float32:
    the last three of shape (example, channel).
    """

    taps = ("attention", "attended", "hidden")

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        activation: str,
        epsilon: float,
        **kwargs: Any,
    ):
        config = {
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "mlp_dim": mlp_dim,
            "activation": activation,
            "epsilon": epsilon,
        }
        super().__init__(config, **kwargs)
        self.num_heads, self.hidden_dim, self.mlp_dim = num_heads, hidden_dim, mlp_dim
        gelu = lookup("activation", activation, ACTIVATIONS)
        for name in ("query", "key", "value", "out"):
            setattr(self, name, self.make(TokenDense, hidden_dim, name=name))
        self.norm = self.make(LayerNormalization, epsilon=epsilon, name="norm")
        self.expand = self.make(TokenDense, mlp_dim, name="expand", activation=gelu)
        self.contract = self.make(TokenDense, hidden_dim, name="contract")

    def build(self, input_shape: Sequence[int | None]) -> None:
        shape = (1, 1, self.hidden_dim)
        self.probe = self.add_weight(shape=shape, initializer="glorot_uniform", name="probe")
        for layer in (self.query, self.key, self.value, self.out, self.norm, self.expand):
            layer.build(shape)
        self.contract.build((1, 1, self.mlp_dim))

    def call(self, tokens: Tensor) -> dict[str, Tensor]:
        taps = Taps("pooling")
        probe = ops.cast(self.probe, tokens.dtype)
        projected = (self.query(probe), self.key(tokens), self.value(tokens))
        query, key, value = (split_heads(x, self.num_heads) for x in projected)
        scores = ops.matmul(query * query.shape[-1] ** -0.5, ops.swapaxes(key, 2, 3))
        weights = ops.softmax(ops.cast(scores, "float32"))
        weights = taps("attention", weights[:, :, 0])[:, :, None]
        heads = ops.matmul(ops.cast(weights, value.dtype), value)
        x = self.out(ops.reshape(ops.swapaxes(heads, 1, 2), (-1, 1, self.hidden_dim)))
        x = taps("attended", x[:, 0])[:, None]
        y = taps("hidden", self.expand(self.norm(x))[:, 0])[:, None]
        return taps.values | {"pooled": ops.cast((x + self.contract(y))[:, 0], "float32")}


class ImageEncoder(TransformerModel):
    """A `VisionModel` whose embedding of an image is compared with those of texts."""

    pooling = "cls"


def make_head(num_classes: int | None, text_head: bool) -> keras.layers.Layer | None:
    """The head of a model with so many classes, or None for a model without a head."""
    if num_classes is None:
        return None
    if text_head:
        return TextHead(num_classes, dtype="float32", name="head")
    return zero_head(num_classes)


def with_text_head(
    model: ImageEncoder,
    embeddings: np.ndarray,
    scale: float,
    bias: float | np.ndarray | None = None,
) -> ImageEncoder:
    """A copy of an image encoder whose logits compare images with texts.

        logits = scale * (image / |image|) @ embeddings.T + bias

    In this formula, `image` is the embedding of an image, and `|image|` is its length.

    CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020, figure 3) and SigLIP (Zhai et al.
    2023, https://arxiv.org/abs/2303.15343, algorithm 1) score pairs of images and texts by the
    formula above. With one text per class, the model is a zero-shot classifier, and every
    measurement of logits applies to it. For CLIP, probabilities are the softmax over the logits.
    For SigLIP, each probability is the sigmoid of one logit. The head is saved with the model.

    Args:
        model: a `CLIPViT` or `SigLIPViT`. If the model has a head, the text head replaces it in the
            copy.
        embeddings: text embeddings, an array of shape (text, channel) computed by the text encoder.
            Each row must be normalised to length 1. The rows have the order of the logits.
        scale: factor of the logits, above 0. For released weights, the factor is the exponential of
            `logit_scale`.
        bias: number, or array of shape (text,), that is added to the logits, such as SigLIP's
            `logit_bias`. None means 0.

    Raises:
        ValueError: if the model is neither a `CLIPViT` nor a `SigLIPViT`, if an array has the wrong
            shape or values that are not finite, or if a row of `embeddings` does not have length 1.
    """
    if not isinstance(model, ImageEncoder):
        raise ValueError(
            f"Expected model to be a CLIPViT or SigLIPViT. Received: {type(model).__name__}"
        )
    embeddings, channels = np.asarray(embeddings, np.float64), model.embedding_dim
    lengths = np.linalg.norm(embeddings, axis=-1) if embeddings.ndim == 2 else np.zeros(0)
    unit = lengths.size and np.max(np.abs(lengths - 1)) <= UNIT
    if embeddings.ndim != 2 or embeddings.shape[1] != channels or not unit:
        received = f", of length {lengths.min():.4g} to {lengths.max():.4g}" if lengths.size else ""
        raise ValueError(
            f"Expected embeddings of shape (text, {channels}), each of length 1. "
            f"Received: shape {embeddings.shape}{received}"
        )
    scale_array = np.asarray(scale, np.float64)
    if scale_array.shape or not 0 < scale_array < np.inf:
        raise ValueError(f"Expected scale to be a number above 0. Received: scale={scale_array}")
    bias_array = np.asarray(0.0 if bias is None else bias, np.float64)
    if bias_array.shape not in ((), (len(embeddings),)) or not np.isfinite(bias_array).all():
        raise ValueError(
            f"Expected bias to be a number, or one for each of {len(embeddings)} texts. "
            f"Received: bias={bias_array}"
        )
    config = model.get_config() | {"num_classes": len(embeddings), "text_head": True}
    config.pop("class_names", None)
    config["quantized"] = [name for name in config.get("quantized", ()) if name != "head"]
    classifier = type(model).from_config(config)
    copy_weights(model, classifier, new_head=True)
    classifier.head.kernel.assign(embeddings.T)
    classifier.head.scale.assign(scale_array)
    classifier.head.bias.assign(np.broadcast_to(bias_array, len(embeddings)))
    return classifier
