"""Attention weights of Keras' own attention layers, which compute and do not put them out."""

import keras
from keras import ops

from vit_tf.taps.recorder import named_layers
from vit_tf.taps.submodels import submodel

PARTS = ("query", "key", "value")
FAR = 1e-3  # share of a layer's largest output, from which the weights are not what it used


def attention_layers(model):
    """The Keras attention layers inside a model: dict from their path to the layer."""
    return {
        path: layer
        for path, layer in named_layers(model)
        if isinstance(layer, keras.layers.MultiHeadAttention)
    }


class KerasAttention:
    """Features that are the attention weights of the Keras attention layers inside a model.

        weights = softmax(query key^T / sqrt(channels of a head))

    of what a layer projects its input to. Whether these are the weights that it used, without a
    mask or a rule of its own, can be checked: with its values they have to give its output.

    Args:
        model: a built Keras model of one input, the images.
        paths: those of `attention_layers` that are read; all by default.

    Raises:
        ValueError: for a model without such layers.
    """

    token_grid = None

    def __init__(self, model, paths=None):
        self.name, layers = model.name, attention_layers(model)
        if not layers:
            raise ValueError(
                "Expected a model with keras.layers.MultiHeadAttention inside. "
                f"Received: {model.name!r} without"
            )
        self._layers = {path: layers[path] for path in (layers if paths is None else paths)}
        parts = [f"{path}/{part}" for path in self._layers for part in PARTS]
        self._features = submodel(model, *self._layers, *parts)

    def __call__(self, images):
        """Dict from `"PATH/weights"` to weights of shape (example, head, query, key)."""
        taps = self._features(images)
        return {f"{path}/weights": self._weights(taps, path) for path in self._layers}

    def contradictions(self, images):
        """The paths of the layers that put out something else than these weights would give."""
        taps, found = self._features(images), []
        for path, layer in self._layers.items():
            value = ops.cast(taps[f"{path}/value"], "float32")
            heads = ops.einsum("bnqk,bknh->bqnh", self._weights(taps, path), value)
            told = ops.cast(taps[path], "float32")
            off = ops.cast(layer.output_dense(heads), "float32") - told
            if not float(ops.max(ops.abs(off))) <= FAR * float(ops.max(ops.abs(told))):
                found.append(path)
        return found

    def _weights(self, taps, path):
        query, key = (ops.cast(taps[f"{path}/{part}"], "float32") for part in ("query", "key"))
        scores = ops.einsum("bqnh,bknh->bnqk", query, key) * query.shape[-1] ** -0.5
        return ops.softmax(scores, axis=-1)
