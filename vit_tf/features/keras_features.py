"""Features of Keras models: those of this package, of other packages and submodels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from vit_tf.common.names import format_list, match
from vit_tf.features import edits, recorder
from vit_tf.features.attention_weights import other_attention, shared_values
from vit_tf.features.class_names import find_class_names
from vit_tf.features.features import (
    ClassScores,
    Features,
    ModelFacts,
    Runs,
    ScoreKind,
    Taps,
    cannot_be_split,
    layer_of_scores,
    no_class_scores,
    require_layers_of_kind,
)
from vit_tf.features.first_images import confirmed_grid, noise_images
from vit_tf.features.input_range import find_preprocessing
from vit_tf.features.layers import (
    Detail,
    grid_of_shapes,
    structure_of_outputs,
)
from vit_tf.features.scores import Scores
from vit_tf.features.structure import ModelGraph
from vit_tf.features.submodels import (
    TapModel,
    describe_taps,
    submodel,
    with_class_scores,
)
from vit_tf.features.tokens import TokenGrid


class KerasFeatures(Features):
    """Layers of a Keras model; submodels of them are made from `source`.

    `scores` is where a whole model computes its class scores; None for a submodel. `infer_grid`
    infers the grid of some layers, where the model declares none. `is_whole` is whether these are
    all layers, from which those of a kind can be selected.
    """

    is_editable = True

    def __init__(
        self,
        source: keras.Model,
        facts: ModelFacts,
        scores: Scores | None = None,
        infer_grid: Callable[[Sequence[str]], tuple[TokenGrid | None, dict[str, str]]]
        | None = None,
        *,
        is_whole: bool = False,
    ) -> None:
        super().__init__(facts)
        self.source, self._scores, self._infer_grid = source, scores, infer_grid
        self._is_whole = is_whole

    @cached_property
    def model(self) -> TapModel:
        """The submodel that returns the layers."""
        layers = self.facts.layers
        if isinstance(self.source, TapModel) and self.source.taps == layers:
            return self.source
        with tf.init_scope():  # not inside of the graph of a step that calls it first
            model = submodel(self.source, *layers)
        model.token_grid = self.facts.grid
        return model

    @property
    def weights(self) -> Sequence[keras.Variable]:
        return self.source.weights

    def compute(self, images: tf.Tensor) -> Taps:
        return recorder.infer(self.model, images)

    def with_facts(self, **changes: Any) -> KerasFeatures:
        facts = replace(self.facts, **changes)
        return KerasFeatures(
            self.source, facts, self._scores, self._infer_grid, is_whole=self._is_whole
        )

    def with_model(self, model: keras.Model) -> KerasFeatures:
        source = submodel(model, "*") if recorder.names_its_layers(model) else model
        return KerasFeatures(source, self.facts, self._scores, is_whole=self._is_whole)

    def segments(self) -> Sequence[Any]:
        return self.model.segments()

    def run_interventions(
        self, runs: Runs, layer: str, images: tf.Tensor, max_runs: int = 128
    ) -> tuple[Taps, tf.Tensor]:
        return edits.run_interventions(self.model, runs, layer, images, max_runs)

    def split_at_last_layer(
        self, images: tf.Tensor, scores: str
    ) -> tuple[Taps, Callable[[tf.Tensor], tf.Tensor]]:
        last = next((x for x in reversed(self.facts.layers) if x != scores), None)
        *before, piece = self.model.segments()
        # Where a piece of the model begins at the last layer, it alone runs again.
        if before and before[-1].end_tap == last:
            return self(images), lambda values: piece(values)[0][scores]
        if last is None or not self._follows_from(last, scores):
            raise cannot_be_split(self.name)

        # A layer of the model contains the last layer and what follows it, so the whole model runs,
        # with given values in place of the last layer's.
        def head(values: tf.Tensor) -> tf.Tensor:
            blank = tf.concat([tf.shape(values)[:1], tf.shape(images)[1:]], axis=0)
            blank = tf.ensure_shape(tf.zeros(blank, images.dtype), (None, *images.shape[1:]))
            return self._replaced(blank, last, values)[scores]

        return self(images), head

    def _replaced(self, images: tf.Tensor, layer: str, values: tf.Tensor) -> Taps:
        """The layers where given values take the place of one layer's."""
        edit = {layer: lambda value: tf.cast(values, value.dtype)}
        return edits.Intervened(self.model, edit, self.facts.layers)(images)

    def _follows_from(self, layer: str, scores: str) -> bool:
        """Whether scores do not change with the images if a layer's values are given."""
        shape, dtype = recorder.input_spec(self.source)
        size = [side or 32 for side in shape[1:]]
        # Outside of a graph, and with the model's own weights, not those that a graph is given.
        with tf.init_scope(), keras.StatelessScope():
            images = np.random.default_rng(0).uniform(0, 1, (2, *size)).astype(dtype)
            first, second = images[:1], images[1:]
            values = recorder.infer(self.model, tf.constant(first))
            other = self._replaced(tf.constant(second), layer, values[layer])
            return np.allclose(other[scores], values[scores], atol=1e-5)

    def select(self, layers: Iterable[str]) -> KerasFeatures:
        return self._with_layers(tuple(match(tuple(layers), self.facts.layers)))

    def with_grid_of_layers(self) -> Features:
        if self._infer_grid is None:
            return self
        grid, reasons = self._infer_grid(self.facts.layers)
        # The grid of the selected layers is decided anew.
        others = {what: why for what, why in self.facts.reasons.items() if what != "grid"}
        return self.with_facts(grid=grid, reasons=others | reasons)

    def select_kind(
        self, kind: str, block: str = "block00", detail: Detail = None
    ) -> KerasFeatures:
        if not self._is_whole:
            return self
        names = require_layers_of_kind(self.facts, kind, block, detail)
        return self._with_layers(tuple(names))

    def read_scores(
        self, layer: str | None, images: Callable[[], tf.Tensor] | None = None
    ) -> Features:
        if self._scores is None:
            return self._read_scores_of_submodel(layer or self.facts.layers[-1])
        name = layer_of_scores(self.name, layer, self._scores.vectors)
        if name is None and not self._scores.is_head:
            last = f"its output, {self._scores.tap!r}, is no vector of a layer with a kernel"
            tap = recorder.tap_name(*self._scores.source)
            is_vector = len(self.facts.shapes.get(tap, ())) == 1
            raise no_class_scores(self.name, last, tap if is_vector else None)
        name = name or self._scores.tap
        layers = (*(x for x in self.facts.layers if x != name), name)
        if name == self._scores.tap:
            return self._with_layers(layers, ClassScores(name, kind_of_scores(self._scores)))
        return self._with_layers(layers)._read_scores_of_submodel(name)

    def _read_scores_of_submodel(self, layer: str) -> Features:
        """The features with the scores of a layer before its softmax or sigmoid, if it has any."""
        if layer not in self.facts.layers:
            return self.with_facts(scores=ClassScores(layer))  # refused where they are read
        model, found = with_class_scores(self.model, layer)
        scores = ClassScores(found.tap, kind_of_scores(found))
        facts = replace(self.facts, layers=model.taps, scores=scores)
        facts = replace(facts, shapes={**facts.shapes, **shapes_of_submodel(model)})
        return KerasFeatures(model, facts)

    def _with_layers(
        self, layers: tuple[str, ...], scores: ClassScores | None = None
    ) -> KerasFeatures:
        """Some of the model's layers, and the scores that are among them."""
        facts = replace(self.facts, layers=layers, scores=scores or self.facts.scores)
        return KerasFeatures(self.source, facts, self._scores, self._infer_grid)


def keras_features(
    model: keras.Model,
    size: tuple[int, int] | None = None,
    patch_size: int | None = None,
    prefix: int | None = None,
) -> KerasFeatures:
    """All layers of a built Keras model of this package or any other, or of a submodel.

    `size` is the (height, width) of the images, for a model that takes images of any size;
    `patch_size` and `prefix` are those of a model that does not declare its grid.
    """
    if isinstance(model, TapModel):
        shapes = shapes_of_submodel(model)
        # Values of attention layers are outputs inside of these, which a `Recorder` returns.
        shared: list[str] = []
        for layer in model.layers:
            if isinstance(layer, recorder.Recorder):
                paths = [path for path, _ in recorder.named_operations(layer.model)]
                of_taps = {
                    tap: paths[site[0]]
                    for tap, site in layer.places.items()
                    if site[0] != recorder.MODEL
                }
                shared += shared_values(layer.model, of_taps)
        structure = replace(structure_of_outputs(model.taps, shapes), shared_values=tuple(shared))
        facts = replace(
            declared_facts(model), layers=model.taps, shapes=shapes, structure=structure
        )
        return KerasFeatures(model, facts)
    described, declared = describe_taps(model), declared_facts(model)
    sizes = declared.image_size or size
    image_shape = (*(sizes or ()), *recorder.input_spec(model)[0][3:])
    facts = replace(
        declared, layers=described.names, shapes=described.shapes, structure=described.graph
    )
    features = KerasFeatures(described.source, facts)
    # The trace of some models leaves the number of tokens open, which the image size decides.
    is_open = [tap for tap in described.graph.representations if None in described.shapes[tap]]
    if declared.image_size is not None and is_open:
        values = features.select(is_open).compute(tf.constant(noise_images(facts, image_shape)))
        shapes = {tap: tuple(value.shape[1:]) for tap, value in values.items()}
        facts = replace(facts, shapes=described.shapes | shapes)

    confirm = cache(
        partial(
            confirmed_grid,
            features=features,
            shapes=facts.shapes,
            image_shape=image_shape,
            patch_size=patch_size,
        )
    )

    def infer_grid(
        layers: Sequence[str], graph: ModelGraph | None = None
    ) -> tuple[TokenGrid | None, dict[str, str]]:
        if sizes is None:
            return None, {}
        representations = described.graph.representations
        return confirm(
            grid_of_shapes(layers, facts.shapes, sizes, graph, patch_size, prefix, representations)
        )

    inferring, grid, reasons = None, declared.grid, {}
    if grid is None:
        inferring = infer_grid
        grid, reasons = infer_grid(described.names, described.graph)
    by_reason: dict[str, list[str]] = {}
    for path, does in other_attention(model).items():
        by_reason.setdefault(does, []).append(path)
    if by_reason:
        does = "; ".join(f"{format_list(paths)} {does}" for does, paths in by_reason.items())
        reasons = {**reasons, "attention weights": does}
    facts = replace(facts, grid=grid, is_grid_inferred=declared.grid is None, reasons=reasons)
    if described.scores.tap and described.scores.is_head:
        scores = ClassScores(described.scores.tap, kind_of_scores(described.scores))
        facts = replace(facts, scores=scores)
    return KerasFeatures(described.source, facts, described.scores, inferring, is_whole=True)


def declared_facts(model: keras.Model) -> ModelFacts:
    """What a Keras model or submodel declares, without its layers, whose names need a trace."""
    shape, dtype = recorder.input_spec(model)
    preprocessing, origin = find_preprocessing(model)
    return ModelFacts(
        name=model.name.removesuffix("_taps"),
        grid=getattr(model, "token_grid", None),
        preprocessing=preprocessing,
        preprocessing_origin=origin,
        input_shape=tuple(shape),
        input_dtype=dtype,
        integer_images="int" in dtype,
        num_classes=getattr(model, "num_classes", None),
        class_names=find_class_names(model),
        pooled_tokens=getattr(model, "pooled_tokens", None),
        prefix_names=tuple(getattr(model, "prefix_names", None) or ()),
    )


def shapes_of_submodel(model: TapModel) -> dict[str, tuple[int | None, ...]]:
    """The shapes of a submodel's outputs without the example axis."""
    outputs = cast(dict[str, Any], model.output)
    return {tap: tuple(x.shape[1:]) for tap, x in outputs.items()}


def kind_of_scores(scores: Scores) -> ScoreKind:
    """What turns the class scores of a Keras model into probabilities."""
    if scores.is_binary:
        return ScoreKind.SIGMOID
    return ScoreKind.SIGMOIDS if scores.activation == "sigmoid" else ScoreKind.SOFTMAX
