"""Attention weights that Keras' own attention layers compute and do not return."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np
from keras import ops

from vit_tf.common.backend import Tensor
from vit_tf.features import recorder
from vit_tf.features.layers import query_of
from vit_tf.features.recorder import named_layers, split_weights

FAR = 1e-3  # share of a layer's largest output, from which the weights are not what it used


def attention_layers(model: keras.Model) -> dict[str, keras.layers.Layer]:
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

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = ops.cast(query, "float32"), ops.cast(key, "float32")
        scores = ops.einsum("bqnh,bknh->bnqk", query, key) * query.shape[-1] ** -0.5
        return ops.softmax(scores, axis=-1)


def computed_weights(model: keras.Model, taps: Iterable) -> dict[str, tuple]:
    """`"PATH/weights"` of each Keras attention layer and call, to its taps of query and key."""
    layers, sources = attention_layers(model), {}
    for tap in taps:
        match = re.fullmatch(r"(.*)/query((?:@\d+)?)", tap)
        if match and match[1] in layers:
            path, call = match.groups()
            if f"{path}/weights{call}" not in taps:
                sources[f"{path}/weights{call}"] = (tap, f"{path}/key{call}")
    return sources


def grouped_queries(model: keras.Model, taps: Iterable[str]) -> dict[str, tuple]:
    """Shapes of the queries whose values are among some taps, of grouped-query attention layers.

    `model` may be a submodel, whose layers have longer paths than its taps.
    """
    layers = {
        f"/{path}/value": layer
        for path, layer in named_layers(model)
        if isinstance(layer, cast(Any, keras.layers).GroupQueryAttention)
    }
    return {
        query_of(tap): (None, layer.num_query_heads, layer.head_dim)
        for tap in taps
        for path, layer in layers.items()
        if path.endswith("/" + tap.partition("@")[0])
    }


class MaskedCalls:
    """Which of some Keras attention layers are called with a mask; `watch` of `find_taps`."""

    def __init__(self, layers: Mapping[str, keras.layers.Layer]):
        self._layers, self.paths = layers, set()

    def __call__(self, path: str, layer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if path in self._layers:
            call = inspect.signature(keras.layers.MultiHeadAttention.call)
            given = call.bind(None, *args, **kwargs).arguments
            masks = {name: value for name, value in given.items() if name.endswith("_mask")}
            if masks.pop("use_causal_mask", False) or any(m is not None for m in masks.values()):
                self.paths.add(path)


# What `MultiHeadAttention` computes its weights with; a subclass may have a rule of its own.
RULE = ("call", "_compute_attention", "_masked_softmax")


def has_own_rule(layer: keras.layers.Layer) -> bool:
    """Whether a layer may compute its attention weights by another rule than Keras."""
    base = keras.layers.MultiHeadAttention
    return any(getattr(type(layer), r, None) is not getattr(base, r, None) for r in RULE)


def find_contradicted(
    model: keras.Model, names: Sequence[str], images: Tensor | None = None
) -> list[str]:
    """Names of attention weights that do not give what their layers return for images.

    `names` are some of those that `computed_weights` returns; the images are random by default.
    """
    if not names:
        return []
    (_, *size), dtype = recorder.input_spec(model)
    if images is None:
        images = np.random.default_rng(0).uniform(-1, 1, [2, *(pixels or 32 for pixels in size)])
    layers, sites = attention_layers(model), recorder.find_taps(model)
    records = recorder.record(model, ops.cast(images, dtype))

    def is_contradicted(name: str) -> bool:
        path, call = split_weights(name)
        inputs = [f"{path}/{part}{call}" for part in ("query", "key", "value")]
        # A layer that returns its weights too has two outputs.
        output = next((tap for tap in (path + call, f"{path}{call}/0") if tap in sites), None)
        if output is None or any(tap not in sites for tap in inputs):
            return True
        query, key, value, output = (records[sites[tap]] for tap in (*inputs, output))
        weights = AttentionWeights(dtype="float32")(query, key)
        heads = ops.einsum("bnqk,bknh->bqnh", weights, ops.cast(value, "float32"))
        returned = ops.cast(output, "float32")
        off = ops.cast(layers[path].output_dense(heads), "float32") - returned
        return not float(ops.max(ops.abs(off))) <= FAR * float(ops.max(ops.abs(returned)))

    return [name for name in names if is_contradicted(name)]
