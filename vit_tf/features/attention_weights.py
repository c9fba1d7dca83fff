"""Attention weights that Keras' own attention layers compute and do not return."""

import inspect
import math
import re
import weakref
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any, cast

import keras
import numpy as np
from keras import ops

from vit_tf.common.backend import Tensor
from vit_tf.features import recorder
from vit_tf.features.recorder import named_layers, split_weights
from vit_tf.features.scores import is_parameter, operation_of

FAR = 1e-3  # share of a layer's largest output, from which the weights are not what it used
# Their layers are called `query`, `key` and `value`; several heads may share a key and a value.
GroupQueryAttention: Any = cast(Any, keras.layers).GroupQueryAttention  # missing in Keras' stubs
WITH_HEADS = (keras.layers.MultiHeadAttention, GroupQueryAttention)
# Operations of TensorFlow whose last axis holds channels, or images, where they have four axes.
MAPS = ("Conv2D", "ExtractImagePatches", "Placeholder")
# By model, the paths of the layers that attend between channels, which it takes a trace to find.
_CHANNEL_LAYERS: MutableMapping[keras.Model, list[str]] = weakref.WeakKeyDictionary()


def attention_layers(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The Keras layers with heads of attention inside a model: dict from path to the layer."""
    return {path: layer for path, layer in named_layers(model) if isinstance(layer, WITH_HEADS)}


@keras.saving.register_keras_serializable("vit_tf")
class AttentionWeights(keras.layers.Layer):
    """Weights of shape (example, head, query, key) of queries and keys.

        weights = softmax(query key^T / sqrt(channels of a head))

    in float32, of queries and keys of shape (example, token, head, channel), or (example, row,
    column, head, channel), whose tokens are those of the rows one after another. Where there are
    fewer keys than heads, neighbouring heads share one.
    """

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = _tokens_in_a_row(query), _tokens_in_a_row(key)
        key = ops.repeat(key, query.shape[2] // key.shape[2], axis=2)
        scores = ops.einsum("bqnh,bknh->bnqk", query, key) * query.shape[-1] ** -0.5
        return ops.softmax(scores, axis=-1)


def _tokens_in_a_row(x: Tensor) -> Tensor:
    """Queries, keys or values as float32 of shape (example, token, head, channel)."""
    x = ops.cast(x, "float32")
    return x if len(x.shape) == 4 else ops.reshape(x, (ops.shape(x)[0], -1, *x.shape[-2:]))


def computed_weights(model: keras.Model, taps: Collection[str]) -> dict[str, tuple]:
    """`"PATH/weights"` of each Keras attention layer and call, to its taps of query and key.

    Layers that do not attend between all tokens, such as within each row, have none.
    """
    paths = {*attention_layers(model)}.difference(other_attention(model))
    sources = {}
    for tap in taps:
        match = re.fullmatch(r"(.*)/query((?:@\d+)?)", tap)
        if match and match[1] in paths:
            path, call = match.groups()
            if f"{path}/weights{call}" not in taps:
                sources[f"{path}/weights{call}"] = (tap, f"{path}/key{call}")
    return sources


def other_attention(model: keras.Model) -> dict[str, str]:
    """Keras layers that do not attend between all tokens: from path to what they do instead."""
    axial = {
        path: "attend along some of their axes only"
        for path, layer in attention_layers(model).items()
        # A layer that is never called has no projection of queries.
        if isinstance(layer, keras.layers.MultiHeadAttention)
        and layer.built
        # Queries have axes of examples, heads and channels besides.
        and len(layer.query_dense.equation.split("->")[1]) - 3 > len(layer.attention_axes)
    }
    if model not in _CHANNEL_LAYERS:
        _CHANNEL_LAYERS[model] = _find_channel_layers(model)
    return axial | dict.fromkeys(_CHANNEL_LAYERS[model], "attend between channels")


def _find_channel_layers(model: keras.Model) -> list[str]:
    """Paths of the Keras attention layers whose queries are channels, since tokens are transposed.

    Where a layer has as many channels as tokens, shapes do not show it, but the graph does.
    """
    square = []
    for path, layer in attention_layers(model).items():
        shapes = (layer.get_build_config() or {}).get("shapes_dict", {})
        shape = shapes.get("query_shape", ())
        if len(shape) == 3 and shape[1] == shape[2] and shape[1] is not None:
            square.append(path)
    found: list[str] = []

    def watch(path: str, layer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if path in square and path not in found:
            query = args[0] if args else kwargs["query"]
            found.extend([path] if _follows_channels(query, 1) else [])

    def trace(images: Tensor) -> Tensor:
        recorder.record(model, images, watch=watch)
        return images

    if square:
        keras.layers.Lambda(trace, **recorder.UNCAST)(
            keras.KerasTensor(*recorder.input_spec(model))
        )
    return found


def _follows_channels(tensor: Tensor, axis: int) -> bool:
    """Whether an axis of a tensor of TensorFlow's graph is made of channels of maps or images."""
    pending, seen = [(tensor, axis)], set()
    while pending:
        tensor, axis = pending.pop()
        operation = operation_of(tensor)
        if operation is None or (operation.name, axis) in seen:
            continue
        seen.add((operation.name, axis))
        if operation.type in MAPS and len(tensor.shape) == 4:
            return axis == 3
        sources = _sources_of_axis(operation, [*tensor.shape], axis)
        pending += [(x, i) for x, i in reversed(sources) if not is_parameter(x)]
    return False


def _sources_of_axis(
    operation: Any, shape: Sequence[int | None], axis: int
) -> list[tuple[Tensor, int]]:
    """Inputs of an operation, and their axes, that an axis of its result is made of."""
    import tensorflow as tf

    inputs = [*operation.inputs]
    if operation.type == "Transpose":
        order = tf.get_static_value(inputs[1])
        # An order that is not constant is that of a product over the last axis: axes stay.
        return [(inputs[0], axis if order is None else int(order[axis]))]
    if operation.type == "Einsum":
        terms, result = operation.get_attr("equation").decode().split("->")
        operands = [*zip(inputs, terms.split(","), strict=True)]
        sources = [(x, term.index(result[axis])) for x, term in operands if result[axis] in term]
        if all(is_parameter(x) for x, _ in sources):
            # A kernel makes this axis of those that it sums over.
            summed = {*terms} - {*result, ","}
            sources = [(x, i) for x, term in operands for i, a in enumerate(term) if a in summed]
        return sources
    if operation.type in ("MatMul", "BatchMatMulV2"):
        first, second = inputs if axis < len(shape) - 1 else inputs[::-1]
        # A kernel sums over an axis of the other factor.
        return [(second if is_parameter(first) else first, axis)]
    if operation.type in ("Reshape", "Squeeze", "ExpandDims"):
        # The axis whose numbers are as far apart in memory.
        step, sizes = _product(shape[axis + 1 :]), [*inputs[0].shape]
        if not step:  # of a matrix product, whose rows are those of the axis but one from the end
            return [(inputs[0], len(sizes) - 2)]
        inner = [_product(sizes[source + 1 :]) for source in range(len(sizes))]
        return [
            (inputs[0], source)
            for source, size in enumerate(sizes)
            if 0 < inner[source] <= step and (size is None or step < inner[source] * size)
        ]
    return [(x, axis) for x in inputs if len(x.shape) == len(shape)]


def _product(sizes: Sequence[int | None]) -> int:
    """The product of sizes; 0 if one is not known."""
    return 0 if None in sizes else math.prod(cast(Any, sizes))


def shared_values(model: keras.Model, paths: Mapping[str, str]) -> tuple[str, ...]:
    """The taps of values that heads share; `paths` are from taps to those of their layers."""
    shared = {
        f"{path}/value"
        for path, layer in attention_layers(model).items()
        if isinstance(layer, GroupQueryAttention)
        and layer.num_query_heads > layer.num_key_value_heads
    }
    return tuple(tap for tap, path in paths.items() if path in shared)


class MaskedCalls:
    """Which of some Keras attention layers are called with a mask; `watch` of `find_taps`."""

    def __init__(self, layers: Mapping[str, keras.layers.Layer]):
        self._layers, self.paths = layers, set()

    def __call__(self, path: str, layer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if path in self._layers:
            if layer.get_config().get("sliding_window"):
                self.paths.add(path)
            call = inspect.signature(keras.layers.MultiHeadAttention.call)
            given = call.bind(None, *args, **kwargs).arguments
            masks = {name: value for name, value in given.items() if name.endswith("_mask")}
            if masks.pop("use_causal_mask", False) or any(m is not None for m in masks.values()):
                self.paths.add(path)


# What these layers compute their weights with; a subclass may have a rule of its own.
RULE = ("call", "_compute_attention", "_masked_softmax")


def has_own_rule(layer: keras.layers.Layer) -> bool:
    """Whether a layer may compute its attention weights by another rule than Keras."""
    base = next(kind for kind in WITH_HEADS if isinstance(layer, kind))
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
        value = ops.repeat(value, query.shape[-2] // value.shape[-2], axis=-2)
        heads = ops.einsum("bnqk,bknh->bqnh", weights, _tokens_in_a_row(value))
        heads = ops.reshape(heads, (*query.shape[:-1], -1))
        returned = ops.cast(output, "float32")
        off = ops.cast(layers[path]._output_dense(heads), "float32") - returned
        return not float(ops.max(ops.abs(off))) <= FAR * float(ops.max(ops.abs(returned)))

    return [name for name in names if is_contradicted(name)]
