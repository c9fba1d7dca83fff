"""Taps: named intermediate outputs of our own models and of any other Keras model."""

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import keras
from keras import tree

from vit_tf.common.backend import Tensor
from vit_tf.common.names import as_patterns, format_list, is_part, match
from vit_tf.data.preprocessing import Preprocessing, check_dtype, fix_image_shape
from vit_tf.features import recorder
from vit_tf.features.attention_weights import (
    AttentionWeights,
    MaskedCalls,
    attention_layers,
    computed_weights,
    find_contradicted,
    has_own_rule,
    other_attention,
    shared_values,
)
from vit_tf.features.input_range import find_preprocessing
from vit_tf.features.keras_structure import TERMS, graph_of, graph_of_taps, residual_terms
from vit_tf.features.scores import LOG_ODDS, LOGITS, Scores, find_scores
from vit_tf.features.structure import ModelGraph
from vit_tf.features.tokens import TokenGrid
from vit_tf.torch_models import is_torch_module

FACTS = "features.json"  # next to a SavedModel


@keras.saving.register_keras_serializable("vit_tf")
class TapModel(keras.Model):
    """A functional model from images to `{tap: tensor}`, with the grid of the tokens.

    `outputs` is in depth order; `pooled_tokens` are the token positions that the head uses.
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

    def segments(self) -> "list[Segment]":
        """The model as a chain of `Segment`s, for gradients of many taps.

        It is cut where the rest needs one tensor of floats only.
        """
        nodes = recorder.graph_nodes(self)
        last_use = {id(x): index for index, node in enumerate(nodes) for x in node.input_tensors}
        segments, start, source, waiting = [], 0, self.inputs[0], dict(_tensors(self))
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

    def call(self, images: Tensor, training: bool = False, mask: Any = None) -> dict[str, Tensor]:
        """The taps of a batch of images, in inference mode unless `training` is true.

        Raises:
            ValueError: if the shape of the images differs from the model's, or if images are
                integers and the model does not declare integers.
        """
        check_dtype(self, keras.backend.standardize_dtype(images.dtype))
        images = fix_image_shape(images, self.input_shape)
        return super().call(images, training=bool(training), mask=mask)

    def export(
        self, filepath: str | os.PathLike, format: str = "tf_saved_model", **kwargs: Any
    ) -> None:
        """Exports like `keras.Model.export`, for `vit_tf.load_features`.

        The folder of a SavedModel also gets a file `features.json` with the token grid, the
        preprocessing and the taps in depth order.
        """
        super().export(filepath, format=format, **kwargs)
        if format == "tf_saved_model":
            with open(os.path.join(filepath, FACTS), "w", encoding="utf-8") as file:
                json.dump(self.facts() | {"taps": self.taps}, file, indent=1)

    def facts(self) -> dict[str, Any]:
        """The token grid and the preprocessing as a JSON-serializable dict."""
        grid = vars(self.token_grid) if self.token_grid else None
        preprocessing = self.preprocessing and self.preprocessing.to_config()
        return {"token_grid": grid, "preprocessing": preprocessing}

    def get_config(self) -> dict[str, Any]:
        if any(
            getattr(layer, "saves_quantization_with_model", False) and layer.quantization_mode
            for layer in self._flatten_layers()
        ):
            raise ValueError(
                "Expected a submodel of a model that is not quantized: others cannot be saved or "
                f"copied. Received: {self.name!r}, of a quantized model. Save the whole model, or "
                "call `export` on the submodel"
            )
        return super().get_config() | self.facts() | {"pooled_tokens": self.pooled_tokens}


def _tensors(features: TapModel) -> dict[str, Tensor]:
    """The symbolic outputs of a submodel, which Keras nests as those of its constructor."""
    return cast(dict[str, Tensor], features.output)


def submodel(model: Any, *patterns: str | Sequence[str]) -> Any:
    """A `keras.Model` from images to chosen intermediate tensors of `model`.

    These tensors are called taps. Models of this package list the names of their taps in
    `model.taps`. In any other Keras model, the output of every layer, at the top level or inside
    another layer, is a tap. Its name is the path of layer names, joined by slashes. If a layer
    returns several tensors, each of them is a tap, such as `"attention/0"`. The output of the
    second call of a layer has the suffix `@2`, such as `"relu@2"`. The submodel shares the weights
    of `model` and holds only the layers that its taps need.

    Patterns with these endings also match values that no layer returns:

    * `"/weights"`: attention weights of `MultiHeadAttention` and `GroupQueryAttention` layers,
      including those of KerasHub. These weights are computed from queries and keys without a mask.
      If the model uses a mask, there is a warning. Those of `Attention` layers, which have one
      head, are the ones that the layer uses.
    * `"/skip"` and `"/branch"`: the two terms of a residual sum in a functional model. The part
      before the ending is the path of the sum, as in `"conv2_block1_add/skip"`.
    * `"/logits"`: class scores before the softmax or the sigmoids of the last layer of a model.
    * `"/log_odds"`: scores of both classes, for a model that ends in one sigmoid.

    Args:
        model: a built Keras model with one input, functional or subclassed. For a PyTorch module, a
            function from images to taps is returned instead of a `keras.Model`.
        *patterns: shell patterns of taps, such as `"block*/mlp/sum"`, or lists of patterns. Without
            patterns, the submodel returns the representations, which are the embedding, the output
            of each block or stage, and the final norm. The guide `ten-lines.md` lists the rules for
            models of other packages.

    Returns:
        A `keras.Model` that returns a dict from tap to tensor, also if there is only one tap. A
        layer can be called on one of them: `keras.layers.Dense(5)(features(images)["pooled"])`.

    Raises:
        ValueError: if a pattern matches no tap (the message lists near matches), if the model is
            not built, or if it has channels-first layers.
    """
    if is_torch_module(model):
        from vit_tf.features.torch_modules import module_features  # which imports PyTorch

        return module_features(model, as_patterns(patterns))
    if not isinstance(model, keras.Model):
        raise ValueError(f"Expected model to be a keras.Model. Received: {type(model).__name__}")
    if not patterns:
        patterns = model.taps if isinstance(model, TapModel) else graph_of(model).representations
    patterns = as_patterns(patterns)
    if not patterns:
        raise ValueError("Expected at least one pattern of layer names, such as 'block*/mlp/sum'.")
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
    layers = attention_layers(model)
    masked = MaskedCalls(layers)
    traced = recorder.trace_taps(model, masked)
    sources = _sources_of_taps(model, traced)
    scores = None
    if any(p.endswith((LOGITS, LOG_ODDS)) or p == "output" for p in patterns):
        scores = find_scores(model)
        scores = None if scores.tap in ("", *traced) else scores
    others = other_attention(model)
    if others and any(is_part(x, "weights") for x in patterns):
        warnings.warn(
            f"Attention that is not between all tokens is left out: {format_list(others)}",
            stacklevel=3,
        )
    # What is computed from layers is matched only by patterns that ask for it.
    chosen: set[str] = set()
    for pattern in patterns:
        num_sources = 2 if is_part(pattern, "weights") else 1 if pattern.endswith(TERMS) else 0
        known = [tap for tap in sources if tap in traced or len(sources[tap]) == num_sources]
        known += [scores.tap] if scores and not num_sources else []
        chosen |= {*match([pattern], known)}
    weights = [tap for tap in sources if tap in chosen and len(sources[tap]) == 2]
    ignored = [tap for tap in weights if recorder.split_weights(tap)[0] in masked.paths]
    if ignored:
        warnings.warn(
            f"{format_list(ignored)} are computed without the mask that {model.name!r} passes to "
            "these layers, so they differ from the weights that the model uses",
            stacklevel=3,
        )
    own = [name for name in weights if has_own_rule(layers[recorder.split_weights(name)[0]])]
    if wrong := find_contradicted(model, [name for name in own if name not in ignored]):
        raise ValueError(
            f"{format_list(wrong)} cannot be computed: this attention layer does not use the "
            "softmax of queries and keys"
        )
    inner = {}
    if scores and scores.tap in chosen:
        inner[scores.tap] = scores.source
        _warn_of_inverted(model, scores)
    needed = {source for tap in sources if tap in chosen for source in sources[tap]}
    images, outputs = recorder.symbolic_taps(model, [t for t in traced if t in needed], inner)
    selected = {}
    for tap in sources:
        if tap in weights:
            layer = AttentionWeights(dtype="float32", name=re.sub("[/@]", "_", tap))
            selected[tap] = layer(*(outputs[source] for source in sources[tap]))
        elif tap in chosen:
            selected[tap] = outputs[sources[tap][0]]
    if scores and scores.tap in chosen:
        selected[scores.tap] = scores.compute(outputs[scores.tap])
    return images, selected


def _sources_of_taps(
    model: keras.Model, traced: Mapping[str, recorder.TracedTap]
) -> dict[str, tuple[str, ...]]:
    """From the names of all taps, in depth order, to the outputs of layers that they are made of.

    These are itself, the term of a residual sum, or the query and the key of attention weights.
    """
    computed, terms = computed_weights(model, list(traced)), residual_terms(model, traced)
    weights_after = {key: name for name, (_, key) in computed.items()}
    sources: dict[str, tuple[str, ...]] = {}
    for tap in traced:
        sources |= {f"{tap}{x}": (terms[f"{tap}{x}"],) for x in TERMS if f"{tap}{x}" in terms}
        sources[tap] = (tap,)
        if name := weights_after.get(tap):
            sources[name] = computed[name]
    return sources


def with_class_scores(features: TapModel, tap: str) -> tuple[TapModel, Scores]:
    """A submodel with class scores before their softmax or sigmoid, and where they are.

    It is the submodel itself where the tap holds no probabilities.
    """
    # Most heads are one layer that is linear: nothing has to be traced for these.
    tensor = _tensors(features)[tap]
    nodes = [n for n in recorder.graph_nodes(features) if any(x is tensor for x in n.outputs)]
    if not nodes or len(tensor.shape) != 2:
        return features, Scores(tap)
    layer = nodes[0].operation
    is_linear = getattr(layer, "activation", None) in (None, keras.activations.linear)
    if is_linear and getattr(layer, "kernel", None) is not None:
        return features, Scores(tap)
    scores = find_scores(features, tap)
    if not scores.activation:
        return features, Scores(tap)
    _warn_of_inverted(features, scores)
    others = {name: ("", 1, name) for name in features.taps if name != tap}
    images, outputs = recorder.symbolic_taps(features, [], others | {scores.tap: scores.source})
    source = outputs[scores.tap]
    outputs = {name: outputs[name] for name in others} | {scores.tap: scores.compute(source)}
    model = _tap_model(features, images, outputs, features.name)
    return model, scores


def _warn_of_inverted(model: keras.Model, scores: Any) -> None:
    if scores.is_inverted:
        warnings.warn(
            f"{model.name!r} computes its {scores.activation} inside a layer, so the scores before "
            f"it cannot be read: {scores.tap!r} is the logarithm of the probabilities, and "
            "gradients are those of this logarithm",
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
    shapes: dict[str, tuple[int | None, ...]] = {}
    for tap, sources in _sources_of_taps(model, traced).items():
        first, last = (traced[source].shape[1:] for source in (sources[0], sources[-1]))
        if len(sources) == 1:
            shapes[tap] = last
        else:  # of queries and keys (..., head, channel)
            counts = [None if None in x else math.prod(cast(Any, x[:-2])) for x in (first, last)]
            shapes[tap] = (first[-2], *counts)
    scores = find_scores(model)
    tap = scores.tap if scores.is_head else ""
    graph = replace(
        graph_of_taps(model, traced),
        scores=tap or None,
        shared_values=shared_values(model, {name: tap.path for name, tap in traced.items()}),
    )
    return ModelTaps(tuple(shapes), shapes, graph, model, scores)


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
