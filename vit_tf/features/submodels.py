"""Taps: named intermediate outputs of our own models and of any other Keras model."""

import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import keras
from keras import tree

from vit_tf.common.backend import Tensor
from vit_tf.common.names import NAMED, as_patterns, format_list, is_part, match
from vit_tf.data.preprocessing import Preprocessing, check_dtype, fix_image_shape
from vit_tf.features import recorder
from vit_tf.features.attention_weights import (
    AttentionWeights,
    MaskedCalls,
    attention_layers,
    computed_weights,
    find_weights_not_softmax,
)
from vit_tf.features.input_range import find_preprocessing
from vit_tf.features.scores import LOG_ODDS, LOGITS, Scores, find_scores
from vit_tf.features.structure import LayerEntry, ModelGraph, graph_of_entries
from vit_tf.features.tokens import TokenGrid
from vit_tf.torch_models import is_torch_module

FACTS = "features.json"  # next to a SavedModel
TERMS = ("/skip", "/branch")  # ends of the names of what a residual sum adds


@keras.saving.register_keras_serializable("vit_tf")
class TapModel(keras.Model):
    """A functional model from images to `{tap: tensor}` that knows where the tokens lie.

    `outputs` is in depth order; `pooled_tokens` are the positions that the model's head reads.
    """

    def __init__(
        self,
        inputs: Any,
        outputs: dict[str, Tensor],
        name: str | None = None,
        *,
        token_grid: TokenGrid | dict | None = None,
        preprocessing: Preprocessing | dict | None = None,
        pooled_tokens: Sequence[int] | None = None,
        **kwargs: Any,
    ):
        super().__init__(inputs, outputs, name=name, **kwargs)
        self.input_spec = None  # in place of Keras' own check, `call` has one that says what to do
        self.token_grid = TokenGrid(**token_grid) if isinstance(token_grid, dict) else token_grid
        self.preprocessing = Preprocessing.from_config(preprocessing) if preprocessing else None
        self.pooled_tokens = pooled_tokens and tuple(pooled_tokens)

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the outputs, in depth order."""
        return tuple(_tensors(self))

    def __repr__(self) -> str:
        rows = [f"  {tap}: {shape}" for tap, shape in self._shapes().items()]
        shown = [*rows[:NAMED], f"  and {len(rows) - NAMED} more"] if len(rows) > NAMED else rows
        return "\n".join([f"<TapModel {self.name!r} of {len(rows)} taps", *shown]) + ">"

    def summary(self, print_fn: Callable[[str], object] = print) -> None:
        """Prints a table of the taps with their shapes and numbers of values for each image."""
        shapes = self._shapes()
        width = max(map(len, ("tap", *shapes)))
        rows = [f"{'tap':{width}}  {'shape':24}values"]
        for tap, shape in shapes.items():
            sizes = [size for size in shape[1:] if size is not None]
            is_known = len(sizes) == len(shape[1:])
            values = f"{math.prod(sizes):,}" if is_known else "unknown"
            rows.append(f"{tap:{width}}  {shape!s:24}{values}")
        print_fn("\n".join([f"{self.name}: {self.count_params():,} parameters", "", *rows]))

    def _shapes(self) -> dict[str, tuple[int | None, ...]]:
        return {tap: tuple(tensor.shape) for tap, tensor in _tensors(self).items()}

    def segments(self) -> "list[Segment]":
        """The model as a chain of `Segment`s, for gradients of many taps."""
        return split(self)

    def call(self, images: Tensor, training: bool = False, mask: Any = None) -> dict[str, Tensor]:
        """The taps of a batch of images, as inference unless `training`.

        Raises:
            ValueError: for images whose shape differs from the model's, and for integer images
                unless `check_dtype` finds them declared.
        """
        check_dtype(self, keras.backend.standardize_dtype(images.dtype))
        images = fix_image_shape(images, self.input_shape)
        return super().call(images, training=bool(training), mask=mask)

    def export(
        self, filepath: str | os.PathLike, format: str = "tf_saved_model", **kwargs: Any
    ) -> None:
        """Exports as `keras.Model.export` does; a SavedModel's folder keeps the facts of images.

        `features.json` holds the token grid, the preprocessing and the taps in depth order, for
        `vit_tf.load_features`.
        """
        super().export(filepath, format=format, **kwargs)
        if format == "tf_saved_model":
            with open(os.path.join(filepath, FACTS), "w", encoding="utf-8") as file:
                json.dump(self.facts() | {"taps": self.taps}, file, indent=1)

    def facts(self) -> dict[str, Any]:
        """The token grid and the preprocessing as a dict that JSON can hold."""
        grid = vars(self.token_grid) if self.token_grid else None
        preprocessing = self.preprocessing and self.preprocessing.to_config()
        return {"token_grid": grid, "preprocessing": preprocessing}

    def get_config(self) -> dict[str, Any]:
        if any(
            getattr(layer, "saves_quantization_with_model", False) and layer.quantization_mode
            for layer in self._flatten_layers()
        ):
            raise ValueError(
                "Expected a submodel of a model that is not quantized to be saved or copied. "
                f"Received: {self.name!r}, quantized; save the whole model, or `export` the taps"
            )
        return super().get_config() | self.facts() | {"pooled_tokens": self.pooled_tokens}


def _tensors(features: TapModel) -> dict[str, Tensor]:
    """The symbolic outputs of a submodel, which Keras nests as those of its constructor."""
    return cast(dict[str, Tensor], features.output)


def submodel(model: Any, *patterns: str | Sequence[str]) -> Any:
    """A `keras.Model` from images to the taps of `model` that match the patterns.

    The submodel shares the weights of `model` and holds only the layers that its taps need. Models
    of this package have the taps in `model.taps`. In any other Keras model, every nested layer is a
    tap. The name of such a tap is the path of layer names, joined by slashes. If a layer returns
    several tensors, each of them is a tap, such as `"attention/0"`. The second call of a layer is a
    tap with the suffix `@2`, such as `"relu@2"`.

    Patterns with these endings also match values that no layer returns:

    * `"/weights"`: attention weights of `MultiHeadAttention` layers, including those of KerasHub.
      These weights are computed from queries and keys without a mask. If the model uses a mask,
      there is a warning.
    * `"/skip"` and `"/branch"`: the two terms of a residual sum in a functional model. The part
      before the ending is the path of the sum, as in `"conv2_block1_add/skip"`.
    * `"/logits"`: class scores before the softmax or the sigmoids of the last layer of a model.
    * `"/log_odds"`: scores of both classes, for a model that ends in one sigmoid.

    Args:
        model: a built Keras model with one input, functional or subclassed. For a PyTorch module, a
            function from images to taps is returned instead of a `keras.Model`.
        *patterns: shell patterns such as `"block*/mlp/sum"`, or lists of patterns. Without
            patterns, the submodel returns the representations, which are the embedding, the output
            of each block or stage, and the final norm. The guide `ten-lines.md` lists the rules for
            models of other packages.

    Returns:
        A `keras.Model` that returns a dict from taps to tensors, also for one tap: a layer on top
        takes one of them, as in `keras.layers.Dense(5)(features(images)["pooled"])`.

    Raises:
        ValueError: if a pattern matches no tap (the message lists near matches), or if the model is
            not built or has channels-first layers.
    """
    if is_torch_module(model):
        from vit_tf.features.module_taps import module_features  # which imports PyTorch

        return module_features(model, as_patterns(patterns))
    if not isinstance(model, keras.Model):
        raise ValueError(f"Expected model to be a keras.Model. Received: {type(model).__name__}")
    if patterns:
        patterns = as_patterns(patterns)
    else:
        representations = model.taps if isinstance(model, TapModel) else find_representations(model)
        patterns = as_patterns(representations)
    if not patterns:
        raise ValueError("Expected at least one tap pattern, such as 'block*/mlp/sum'.")
    name = f"{model.name.removesuffix('_taps')}_taps"
    if isinstance(model, TapModel):
        outputs = _tensors(model)
        taps = match(patterns, list(outputs))
        return _tap_model(model, model.inputs[0], {tap: outputs[tap] for tap in taps}, name)
    if recorder.names_its_layers(model):
        taps = match(patterns, model.taps)
        images = keras.Input(model.image_shape, name="images")
        outputs = model.intermediates(images)
        return _tap_model(model, images, {tap: outputs[tap] for tap in taps}, name)
    return _tap_model(model, *_foreign_taps(model, patterns), name)


def _foreign_taps(model: keras.Model, patterns: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
    """Symbolic images, and a dict from tap to symbolic output, of a model of other origin."""
    _require_channels_last(model)
    masked = MaskedCalls(attention_layers(model))
    all_taps = list(recorder.find_taps(model, masked))
    computed = computed_weights(model, all_taps)
    asked = [pattern for pattern in patterns if is_part(pattern, "weights")]
    plain = [p for p in patterns if p not in asked and not p.endswith(TERMS)]
    asked_terms = [pattern for pattern in patterns if pattern.endswith(TERMS)]
    scores = None
    if any(pattern.endswith((LOGITS, LOG_ODDS)) or pattern == "output" for pattern in plain):
        scores = find_scores(model)
        scores = None if scores.tap in ("", *all_taps) else scores
    known = [*all_taps, scores.tap] if scores else all_taps
    taps = match(plain, known) if plain else []
    terms: dict[str, str] = {}
    if asked_terms:
        terms = residual_terms(model, all_taps)
        matched_terms = match(asked_terms, [*all_taps, *terms])
        taps = [*taps, *(tap for tap in matched_terms if tap not in terms)]
        terms = {name: source for name, source in terms.items() if name in matched_terms}
    weights = match(asked, [*all_taps, *computed]) if asked else []
    read = [tap for tap in weights if tap in computed]
    ignored = [tap for tap in read if recorder.split_weights(tap)[0] in masked.paths]
    if ignored:
        warnings.warn(
            f"{format_list(ignored)} are computed without the mask that {model.name!r} passes to "
            "these layers, so they differ from the weights that the model uses",
            stacklevel=3,
        )
    if wrong := find_weights_not_softmax(model, read, masked.paths):
        raise ValueError(
            f"{format_list(wrong)} cannot be computed: this attention layer does not use the "
            "softmax of queries and keys"
        )
    sources = [source for tap in weights for source in computed.get(tap, (tap,))]
    sources += terms.values()
    inner = {}
    if scores and scores.tap in taps:
        if isinstance(scores.source, str):
            sources.append(scores.source)
        else:
            inner[scores.tap] = scores.source
        _warn_of_inverted(model, scores)
    wanted = [tap for tap in all_taps if tap in {*taps, *sources}]
    images, outputs = recorder.symbolic_taps(model, wanted, inner)
    selected = {}
    for tap in all_taps:
        for name in (f"{tap}{term}" for term in TERMS if f"{tap}{term}" in terms):
            selected[name] = outputs[terms[name]]
        if tap in taps or tap in weights:
            selected[tap] = outputs[tap]
        for name in (name for name in weights if name in computed and computed[name][1] == tap):
            # The key comes after the query.
            layer = AttentionWeights(dtype="float32", name=re.sub("[/@]", "_", name))
            selected[name] = layer(*(outputs[source] for source in computed[name]))
    if scores and scores.tap in taps:
        selected[scores.tap] = scores.compute(outputs[scores.tap if inner else scores.source])
    return images, selected


def with_class_scores(features: TapModel, tap: str) -> tuple[TapModel, Scores]:
    """A submodel with class scores before their softmax or sigmoid, and where they are.

    It is the submodel itself where the tap holds no probabilities.
    """
    # Most heads are one layer that is linear: nothing has to be traced for these.
    tensor = _tensors(features)[tap]
    nodes = [n for n in recorder.graph_nodes(features) if any(x is tensor for x in n.outputs)]
    if not nodes or len(tensor.shape) != 2:
        return features, Scores(tap, tap)
    layer = nodes[0].operation
    is_linear = getattr(layer, "activation", None) in (None, keras.activations.linear)
    if is_linear and getattr(layer, "weights", ()) and not _has_blocks(layer):
        return features, Scores(tap, tap)
    scores = find_scores(features, tap)
    if not scores.activation:
        return features, Scores(tap, tap)
    _warn_of_inverted(features, scores)
    others = {name: ("", 1, name) for name in features.taps if name != tap}
    if isinstance(scores.source, str):
        taps, inner = [scores.source], others
    else:
        taps, inner = [], others | {scores.tap: scores.source}
    images, outputs = recorder.symbolic_taps(features, taps, inner)
    source = outputs[scores.source if taps else scores.tap]
    outputs = {name: outputs[name] for name in others} | {scores.tap: scores.compute(source)}
    model = _tap_model(features, images, outputs, features.name)
    return model, scores


def _warn_of_inverted(model: keras.Model, scores: Any) -> None:
    if scores.is_inverted:
        warnings.warn(
            f"The class scores of {model.name!r} before its {scores.activation} cannot be read: "
            f"{scores.tap!r} is the logarithm of its probabilities, also for gradients",
            stacklevel=4,
        )


def _require_channels_last(model: keras.Model) -> None:
    """Raises a `ValueError` for a model whose maps have other axes than measurements take."""
    first = [
        path
        for path, layer in recorder.named_layers(model)
        # A Flatten takes over the setting of Keras, whatever its input.
        if getattr(layer, "data_format", None) == "channels_first"
        and not isinstance(layer, keras.layers.Flatten)
    ]
    if first:
        raise ValueError(
            "Expected a model whose data_format is 'channels_last': images and maps of shape "
            "(example, height, width, channel). Received: data_format='channels_first' of the "
            f"layers {format_list(first)} of {model.name!r}"
        )


def _tap_model(
    model: keras.Model, images: Tensor, outputs: dict[str, Tensor], name: str
) -> TapModel:
    grid, (preprocessing, _) = getattr(model, "token_grid", None), find_preprocessing(model)
    facts = {"token_grid": grid, "preprocessing": preprocessing}
    facts["pooled_tokens"] = getattr(model, "pooled_tokens", None)
    return TapModel(images, outputs, name=name, **facts)


@dataclass(frozen=True)
class ModelTaps:
    """The taps of a model in depth order, and what its structure shows about them.

    `shapes` are the shapes of the taps without the example axis; an unknown axis is None. Submodels
    are made from `source` without tracing the model again.
    """

    names: tuple[str, ...]
    shapes: dict[str, tuple[int | None, ...]]
    graph: ModelGraph
    source: keras.Model
    scores: Scores


def describe_taps(model: keras.Model) -> ModelTaps:
    """The taps of a built Keras model, computed attention weights and residual terms included."""
    if recorder.names_its_layers(model):
        source = submodel(model, "*")
        shapes = {tap: tuple(x.shape[1:]) for tap, x in source.output.items()}
        scores = find_scores(model)
        tap = scores.tap if scores.is_head else None
        graph = replace(ModelGraph.from_names(source.taps), scores=tap)
        return ModelTaps(source.taps, shapes, graph, source, scores)
    traced = recorder.trace_taps(model)
    traced_shapes = {name: tap.shape[1:] for name, tap in traced.items()}
    computed = computed_weights(model, list(traced))
    # Where a layer's weights are among its taps, as in a submodel: after the key.
    weights_after = {key: (weights, query) for weights, (query, key) in computed.items()}
    shapes: dict[str, tuple] = {}
    for tap, shape in traced_shapes.items():
        shapes[tap] = shape
        weights, query = weights_after.get(tap, ("", ""))
        if weights and len(traced_shapes[query]) == 3:
            shapes[weights] = (traced_shapes[query][1], traced_shapes[query][0], shape[0])
    for term, source in residual_terms(model, traced).items():
        shapes[term] = shapes[source]
    scores = find_scores(model)
    tap = scores.tap if scores.is_head else ""
    graph = replace(graph_of_entries(_entries(model, traced)), scores=tap or None)
    return ModelTaps(tuple(shapes), shapes, graph, model, scores)


def graph_of(model: keras.Model) -> ModelGraph:
    """The representations, blocks and scores of a built Keras model.

    Models of this package show them in the names of their taps. In others, a layer that is the only
    one of its class and contains several layers of one class, such as the encoder of a ViT, and a
    model inside the model are opened: their layers count as the model's own, and operations of
    functional models, such as a sum, count as layers. Among these, `find_representations_among`
    finds the representations. Where no block ends, at most 40 are chosen, evenly spread.
    """
    if recorder.names_its_layers(model):
        return ModelGraph.from_names(model.taps)
    return graph_of_entries(_entries(model, recorder.trace_taps(model)))


def find_representations(model: keras.Model) -> list[str]:
    """Names of the taps that hold the representations of a Keras model: those of `graph_of`."""
    return list(graph_of(model).representations)


def _entries(model: keras.Model, traced: Mapping[str, recorder.TracedTap]) -> list[LayerEntry]:
    """The layers that count, of a model whose layers have names of their own."""
    calls = [
        _CallOfLayer(name, recorder.path_of(name), tap.site[1], tap.layer, tap.shape, tap.value)
        for name, tap in traced.items()
        if tap.site[2] in ("", "0") and len(tap.shape) > 1 and tap.shape[0] is None
    ]
    last = {call.path: call.number for call in calls}
    # A block that runs several times stands for several; of an activation the last call counts.
    calls = [call for call in calls if _learns(call.layer) or call.number == last[call.path]]
    return list(_opened(model, "", calls))


@dataclass(frozen=True)
class _CallOfLayer:
    """One call of a layer, with the shape of what it returns."""

    tap: str
    path: str
    number: int
    layer: Any
    shape: tuple[int | None, ...]
    value: int  # what it returns: equal for calls that return the same tensor


def _opened(container: Any, prefix: str, all_calls: Sequence[_CallOfLayer]) -> Iterator:
    """The entries of a container, with those of the layers that are opened in their place."""
    calls = _calls_in(prefix, all_calls)
    classes = Counter(type(call.layer) for call in calls if _has_blocks(call.layer))
    graph = recorder.functional_graph(container)
    single = _single_tensors(graph) if graph else None
    widened, projections = _separable_blocks(graph) if graph else (set(), set())
    sums = _sums(graph) if graph else set()
    stages = {type(call.layer) for call in calls if _is_stage(call, all_calls)}
    for call in calls:
        layer = call.layer
        is_single = single is None or single.get((layer.name, call.number), False)
        if is_single is None:
            continue
        # A stage ends with what one of its blocks returns, or its layer that merges positions.
        is_stage = is_single and type(layer) in stages and _last_inside(call, all_calls)
        # A stack may also run one block again and again.
        inside = [c.path for c in _calls_in(f"{call.path}/", all_calls) if _has_blocks(c.layer)]
        is_loop = len(inside) > len(set(inside))
        is_only = classes[type(layer)] == 1 and (is_loop or _is_stack(layer))
        if is_only or is_stage:
            inner = list(_opened(layer, f"{call.path}/", all_calls))
            if inner:
                yield from inner
                continue
        yield LayerEntry(
            call.tap,
            tuple(call.shape),
            has_weights=_learns(layer),
            has_blocks=_has_blocks(layer),
            is_single=is_single,
            has_kernel=_has_kernel(layer),
            is_sum=layer.name in sums,
            is_expansion=layer.name in widened,
            is_projection=layer.name in projections,
            kind=type(layer).__qualname__,
        )


def _last_inside(call: _CallOfLayer, calls: Sequence[_CallOfLayer]) -> bool:
    """Whether a layer returns what a layer with layers inside, among its own, has returned."""
    inside = _calls_in(f"{call.path}/", calls)
    return any(c.value == call.value for c in inside if _has_blocks(c.layer))


def _is_stage(call: _CallOfLayer, calls: Sequence[_CallOfLayer]) -> bool:
    """Whether a layer is a sequence of several composite layers of one class."""
    kinds = Counter(
        type(c.layer) for c in _calls_in(f"{call.path}/", calls) if _has_blocks(c.layer)
    )
    return max(kinds.values(), default=0) > 1 and _last_inside(call, calls)


def _calls_in(prefix: str, calls: Sequence[_CallOfLayer]) -> list[_CallOfLayer]:
    """The calls of the layers directly inside the layer whose path, with a slash, is the prefix."""
    return [c for c in calls if c.path.startswith(prefix) and "/" not in c.path[len(prefix) :]]


def _learns(layer: Any) -> bool:
    """Whether a layer has weights other than those of a normalization of images."""
    is_normalization = ".layers.preprocessing." in type(layer).__module__
    return bool(getattr(layer, "weights", ())) and not is_normalization


def _has_blocks(layer: Any) -> bool:
    """Whether a layer contains layers with weights."""
    return bool(getattr(layer, "weights", ())) and any(inner.weights for inner in _inside(layer))


def _inside(layer: Any) -> Iterable[keras.layers.Layer]:
    return layer._flatten_layers(include_self=False, recursive=False)


def _is_stack(layer: Any) -> bool:
    """Whether a layer is a model, or contains several composite layers of one class."""
    if not recorder.is_layer(layer):
        return False
    if isinstance(layer, keras.Model) and sum(1 for _ in _inside(layer)) > 2:
        return True
    classes = Counter(type(inner) for inner in _inside(layer) if _has_blocks(inner))
    return any(count > 1 for count in classes.values()) or any(
        count == 1 and _is_stack(inner)
        for inner in _inside(layer)
        if (count := classes[type(inner)])
    )


def _single_tensors(graph: Any) -> dict[tuple[str, int], bool | None]:
    """Calls of layers, by name and number, to whether one tensor is all that is read after them.

    None stands for calls from which the deepest output of the graph is not computed, such as those
    of another head or of an auxiliary classifier.
    """
    nodes = recorder.graph_nodes(graph)
    ancestors: dict[int, int] = {}  # of each tensor, the nodes that compute it, as bits
    has_kernel = 0
    for index, node in enumerate(nodes):
        bits = 1 << index
        has_kernel |= bits if _has_kernel(node.operation) else 0
        for tensor in node.input_tensors:
            bits |= ancestors.get(id(tensor), 0)
        ancestors |= {id(x): bits for x in node.outputs}
    deepest = max(graph.outputs, key=lambda x: (ancestors.get(id(x), 0) & has_kernel).bit_count())
    is_needed = ancestors.get(id(deepest), 0)
    last_use = {
        id(x): index
        for index, node in enumerate(nodes)
        for x in node.input_tensors
        if is_needed >> index & 1
    }
    last_use[id(deepest)] = len(nodes)
    last_use |= _uses_before_long_skips(graph, ancestors, last_use)
    alive, single, numbers = {id(x) for x in graph.inputs}, {}, Counter()
    for index, node in enumerate(nodes):
        numbers[node.operation.name] += 1
        call = node.operation.name, numbers[node.operation.name]
        if not is_needed >> index & 1:
            single[call] = None
            continue
        alive |= {id(x) for x in node.outputs}
        alive = {x for x in alive if last_use.get(x, -1) > index}
        single[call] = len(alive) == 1 and id(node.outputs[0]) in alive
    return single


def _uses_before_long_skips(
    graph: Any, ancestors: Mapping[int, int], last_use: Mapping[int, int]
) -> dict[int, int]:
    """The last use before a skip around smaller maps, as in a U-Net, of the tensors it starts at.

    Such a skip makes no block of the stages that it goes around: it waits for a sum or a
    concatenation while all else that is still needed are smaller maps, computed from its start.
    """
    nodes = recorder.graph_nodes(graph)
    joins = [type(node.operation).__name__ in ("Add", "Concatenate") for node in nodes]
    # The last use of each tensor that is no sum or concatenation.
    inner_use = {id(x): -1 for x in graph.inputs}
    for index, node in enumerate(nodes):
        inner_use |= {id(x): -1 for x in node.outputs}
        inner_use |= {id(x): index for x in node.input_tensors if not joins[index]}
    tensors, skips = {}, {}
    for index, node in enumerate(nodes):
        tensors |= {id(x): x for x in node.outputs}
        tensors = {i: x for i, x in tensors.items() if last_use.get(i, -1) > index}
        needed = [i for i in tensors if inner_use[i] > index]
        for start in tensors.keys() - {*needed}:
            is_around = all(
                _num_positions(tensors[start]) > _num_positions(tensors[i]) > 1
                and ancestors[start] & ~ancestors[i] == 0
                for i in needed
            )
            if needed and is_around and last_use[start] < len(nodes):
                skips[start] = inner_use[start]
    return skips


def _num_positions(tensor: Tensor) -> int:
    """Rows times columns of a map; 1 for what is no map of known size."""
    rows, columns = tensor.shape[1:3] if len(tensor.shape) == 4 else (1, 1)
    return (rows or 1) * (columns or 1)


def _sums(graph: Any) -> set[str]:
    """Names of the layers and operations that add two tensors."""
    return {
        node.operation.name
        for node in recorder.graph_nodes(graph)
        if type(node.operation).__name__ == "Add" and len(node.input_tensors) > 1
    }


def residual_terms(model: keras.Model, taps: Container[str]) -> dict[str, str]:
    """`"SUM/skip"` and `"SUM/branch"` of each residual sum, to the taps that hold them.

    A residual sum adds two tensors of equal shape, in a functional model or one inside it. Of what
    only one of the two depends on, the skip has nothing, or fewer layers with kernels, at most one:
    the projection of a shortcut. What comes after the sum, such as an activation, has no influence.
    """
    operations = recorder.named_operations(model)
    paths = {id(operation): path for path, operation in operations}
    containers = [model, *(operation for _, operation in operations)]
    graphs = [graph for graph in map(recorder.functional_graph, containers) if graph is not None]
    terms: dict[str, str] = {}
    for graph in graphs:
        sources, ancestors, calls = {}, {id(x): 0 for x in graph.inputs}, Counter()
        nodes = recorder.graph_nodes(graph)
        for index, node in enumerate(nodes):
            path = paths.get(id(node.operation), "")
            calls[path] += 1
            name = recorder.tap_name(path, calls[path], "")
            # The nodes that a tensor depends on, as bits of one number.
            depends_on = 1 << index
            for tensor in node.input_tensors:
                depends_on |= ancestors.get(id(tensor), 0)
            for position, output in enumerate(node.outputs):
                is_single = len(node.outputs) == 1
                sources[id(output)] = name if is_single else f"{name}/{position}"
                ancestors[id(output)] = depends_on
            if type(node.operation).__name__ != "Add" or len(node.input_tensors) != 2:
                continue
            pair = _skip_and_branch(node.input_tensors, ancestors, nodes)
            held = [sources[id(x)] for x in pair or () if id(x) in sources]
            if len(held) == len(TERMS) and name in taps and all(source in taps for source in held):
                terms |= {f"{name}{term}": tap for term, tap in zip(TERMS, held, strict=True)}
    return terms


def _skip_and_branch(
    tensors: Sequence[Tensor], ancestors: Mapping[int, int], nodes: Sequence[Any]
) -> tuple[Tensor, Tensor] | None:
    """The skip and the branch of two tensors that are added; None where neither is a skip."""
    first, second = tensors
    if first is second or tuple(first.shape) != tuple(second.shape):
        return None
    sizes = []
    for tensor, other in ((first, second), (second, first)):
        own = ancestors[id(tensor)] & ~ancestors[id(other)]
        own_nodes = [node for index, node in enumerate(nodes) if own >> index & 1]
        kernels = sum(_has_kernel(node.operation) for node in own_nodes)
        sizes.append((kernels, len(own_nodes)))
    (kernels, others), (most_kernels, _) = sorted(sizes)
    # Two paths with as many kernels are parallel branches, unless one of them is the input itself.
    if sizes[0] == sizes[1] or kernels > 1 or (kernels == most_kernels and others):
        return None
    return (first, second) if sizes[0] < sizes[1] else (second, first)


def _separable_blocks(graph: Any) -> tuple[set[str], set[str]]:
    """Names of the operations inside of blocks with a depthwise convolution, and of their last.

    Inside is what lies between a depthwise convolution and the 1 x 1 convolution that projects its
    output, gates included, and the 1 x 1 convolution that widens its input.
    """
    nodes = recorder.graph_nodes(graph)
    sources = {id(x): node for node in nodes for x in node.outputs}
    inside, projections = set(), set()
    for start, node in enumerate(nodes):
        if isinstance(node.operation, keras.layers.DepthwiseConv2D):
            before_projection, projection = _find_projection(node, nodes[start + 1 :])
            inside |= _widening(node, sources) | before_projection
            projections |= projection
    return inside, projections


def _is_pointwise(operation: Any) -> bool:
    return type(operation) is keras.layers.Conv2D and tuple(operation.kernel_size) == (1, 1)


def _find_input_node(node: Any, sources: Mapping[int, Any]) -> Any:
    """The node that computes the only tensor that this one reads, or None."""
    read = node.input_tensors
    return sources.get(id(read[0])) if len(read) == 1 else None


def _widening(depthwise: Any, sources: Mapping[int, Any]) -> set[str]:
    """Names from the 1 x 1 convolution that widens what a depthwise one reads; empty for none."""
    names, node = set(), _find_input_node(depthwise, sources)
    while node is not None and not _has_kernel(node.operation):
        names.add(node.operation.name)
        node = _find_input_node(node, sources)
    if node is None or not _is_pointwise(node.operation):
        return set()
    widens = node.outputs[0].shape[-1] > node.input_tensors[0].shape[-1]
    names.add(node.operation.name)
    while (node := _find_input_node(node, sources)) is not None and not _has_kernel(node.operation):
        pass
    # Behind another depthwise convolution it is the projection that ends a block.
    is_projection = node is not None and isinstance(node.operation, keras.layers.DepthwiseConv2D)
    return names if widens and not is_projection else set()


def _find_projection(depthwise: Any, later: Any) -> tuple[set[str], set[str]]:
    """Names from a depthwise convolution on, and of what projects its output; or empty sets."""
    inside, names = {id(x) for x in depthwise.outputs}, {depthwise.operation.name}
    size = depthwise.outputs[0].shape[1:3]
    for node in later:
        read = [id(x) in inside for x in node.input_tensors]
        if not any(read):
            continue
        if not all(read):
            return set(), set()  # paths from before the convolution are joined
        if _is_pointwise(node.operation) and node.outputs[0].shape[1:3] == size != (1, 1):
            return names, {node.operation.name}
        inside |= {id(x) for x in node.outputs}
        names.add(node.operation.name)
    return set(), set()


def _has_kernel(operation: Any) -> bool:
    return getattr(operation, "kernel", None) is not None or _has_blocks(operation)


class Segment:
    """A piece of a model: called on one tensor, it returns its taps and its output.

    `nodes` are the operations' calls, in order; `source` and `end` the symbolic tensors that come
    in and go on, None for the last piece.
    """

    def __init__(
        self,
        nodes: Sequence[Any],
        source: Tensor,
        end: Tensor | None,
        taps: Mapping[str, Tensor],
    ):
        self._nodes, self._source, self._end, self._taps = nodes, source, end, taps

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the taps, in depth order."""
        return tuple(self._taps)

    @property
    def end_tap(self) -> str | None:
        """Name of the tap that is the output, if one is."""
        return next((tap for tap, tensor in self._taps.items() if tensor is self._end), None)

    def __call__(self, x: Tensor, edits: dict | None = None) -> tuple:
        """Dict from tap to tensor, edited, and the tensor that the next piece takes, or None."""
        edits, applied = edits or {}, set()
        within = {tap: _noted(tap, edits[tap], applied) for tap in self._taps if tap in edits}
        known = {id(self._source): x}
        for node in self._nodes:
            args, kwargs = node.arguments.fill_in(known)
            with recorder.applying_edits(within):
                results = tree.flatten(recorder.infer(node.operation, *args, **kwargs))
            known |= {id(old): new for old, new in zip(node.outputs, results, strict=True)}
            # A layer that has taps of its own has applied their edits where they are computed.
            computed = {id(output) for output in node.outputs}
            for place, tap in [(id(self._taps[tap]), tap) for tap in within.keys() - applied]:
                if place in computed:
                    known[place] = within[tap](known[place])
        taps = {tap: known[id(tensor)] for tap, tensor in self._taps.items()}
        return taps, None if self._end is None else known[id(self._end)]


def _noted(tap: str, edit: Callable, applied: Any) -> Callable:
    """An edit that adds its tap to those that are applied when it is."""

    def apply(value: Tensor) -> Tensor:
        applied.add(tap)
        return edit(value)

    return apply


def split(model: keras.Model) -> list[Segment]:
    """The segments of a functional model, cut where the rest needs one tensor of floats only."""
    nodes = recorder.graph_nodes(model)
    last_use = {id(x): index for index, node in enumerate(nodes) for x in node.input_tensors}
    segments, start, source, waiting = [], 0, model.inputs[0], dict(model.output)
    computed, open_tensors = {id(source)}, {}
    for index, node in enumerate(nodes):
        open_tensors |= {id(x): x for x in node.outputs}
        computed |= open_tensors.keys()
        open_tensors = {i: x for i, x in open_tensors.items() if last_use.get(i, -1) > index}
        taps = {tap: x for tap, x in waiting.items() if id(x) in computed}
        rest = list(open_tensors.values())
        alone = len(rest) == 1 and "float" in rest[0].dtype and last_use[id(source)] <= index
        if taps and alone:
            segments.append(Segment(nodes[start : index + 1], source, rest[0], taps))
            waiting = {tap: x for tap, x in waiting.items() if tap not in taps}
            start, source, computed = index + 1, rest[0], {id(rest[0])}
    segments.append(Segment(nodes[start:], source, None, waiting))
    return segments
