"""Attention weights that Keras' own attention layers compute and do not return."""

import inspect
import re

import keras
from keras import ops

from vit_tf.taps import recorder
from vit_tf.taps.recorder import named_layers

FAR = 1e-3  # share of a layer's largest output, from which the weights are not what it used


def attention_layers(model):
    """The Keras attention layers inside a model: dict from their path to the layer."""
    return {
        path: layer
        for path, layer in named_layers(model)
        if isinstance(layer, keras.layers.MultiHeadAttention)
    }


@keras.saving.register_keras_serializable("vit_tf")
class AttentionWeights(keras.layers.Layer):
    """Weights of shape (example, head, query, key) of queries and keys.

        weights = softmax(query key^T / sqrt(channels of a head))

    in float32, of queries and keys of shape (example, token, head, channel).
    """

    def call(self, query, key):
        query, key = ops.cast(query, "float32"), ops.cast(key, "float32")
        scores = ops.einsum("bqnh,bknh->bnqk", query, key) * query.shape[-1] ** -0.5
        return ops.softmax(scores, axis=-1)


def computed_weights(model, taps):
    """The weights that can be computed of the taps of a model: dict from their name.

    Args:
        model: a built Keras model.
        taps: names of its layers' outputs.

    Returns:
        dict from `"PATH/weights"` to the taps `"PATH/query"` and `"PATH/key"`, of each Keras
        attention layer and each of its calls.
    """
    layers, found = attention_layers(model), {}
    for tap in taps:
        match = re.fullmatch(r"(.*)/query((?:@\d+)?)", tap)
        if match and match[1] in layers:
            path, call = match.groups()
            if f"{path}/weights{call}" not in taps:
                found[f"{path}/weights{call}"] = (tap, f"{path}/key{call}")
    return found


class MaskedCalls:
    """Which Keras attention layers of a model are called with a mask; `watch` of `find_taps`.

    Args:
        layers: what `attention_layers` returns.
    """

    def __init__(self, layers):
        self._layers, self.paths = layers, set()

    def __call__(self, path, args, kwargs):
        if path in self._layers:
            call = inspect.signature(keras.layers.MultiHeadAttention.call)
            given = call.bind(None, *args, **kwargs).arguments
            masks = {name: value for name, value in given.items() if name.endswith("_mask")}
            if masks.pop("use_causal_mask", False) or any(m is not None for m in masks.values()):
                self.paths.add(path)


def contradicts(layer, weights, value, output):
    """Whether a layer's output differs from its weights applied to its values.

    A mask, or a rule of its own, makes it use other weights.

    Args:
        layer: the `keras.layers.MultiHeadAttention`.
        weights: as of `AttentionWeights`.
        value: shape (example, token, head, channel).
        output: the layer's output for them.
    """
    heads = ops.einsum("bnqk,bknh->bqnh", weights, ops.cast(value, "float32"))
    told = ops.cast(output, "float32")
    off = ops.cast(layer.output_dense(heads), "float32") - told
    return not float(ops.max(ops.abs(off))) <= FAR * float(ops.max(ops.abs(told)))


def attention_taps(model):
    """The taps of the attention weights of Keras attention layers inside a model, checked.

    Args:
        model: a built Keras model of one input, the images.

    Returns:
        dict from `"PATH/weights"`, which `vit_tf.submodel` computes of queries and keys, to the
        names of the values and of the output of that layer; of layers called again the first call.
    """
    if not attention_layers(model):
        return {}
    found, told = recorder.find_taps(model), {}
    for weights in computed_weights(model, found):
        path = weights.removesuffix("/weights")
        if path != weights:
            # A layer that returns its weights too has two outputs.
            told[weights] = (f"{path}/value", path if path in found else f"{path}/0")
    return told


def contradictions(model, taps, names):
    """The paths of the layers whose output differs from what their weights give.

        weights = softmax(query key^T / sqrt(channels of a head))

    These are not what a layer used that masks, or has a rule of its own.

    Args:
        model: the Keras model.
        taps: dict from the names of `attention_taps` to their values for some images.
        names: those of its weights that are looked at.
    """
    layers, told = attention_layers(model), attention_taps(model) if names else {}
    paths = {name: name.removesuffix("/weights") for name in names}
    return [
        path
        for name, path in paths.items()
        if contradicts(layers[path], taps[name], *(taps[tap] for tap in told[name]))
    ]
