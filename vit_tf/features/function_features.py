"""Features of functions from images to layers, and of activations at hand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import tensorflow as tf

from vit_tf.features import recorder
from vit_tf.features.features import (
    ClassScores,
    DerivedFeatures,
    Edit,
    Features,
    ModelFacts,
    Runs,
    ScoreKind,
    Taps,
)
from vit_tf.features.layers import structure_of_outputs
from vit_tf.features.scores import (
    LOG_ODDS,
    LOGITS,
    ScoresLayer,
    are_distributions,
    find_activation,
)
from vit_tf.features.structure import ModelGraph

LOGITS_NAME = "logits"  # the layer of a function that holds its class scores by default
NUM_SHOWN = 8  # images on which a function shows whether it returns probabilities


class FunctionFeatures(Features):
    """A function from images to `{layer: tensor}`, or to arrays, which cannot be traced.

    SavedModels and models that run with edits are such functions, too.
    """

    def __init__(self, function: Callable[[Any], Mapping[str, Any]]) -> None:
        layers = tuple(getattr(function, "taps", ()))
        name = getattr(function, "name", None) or getattr(function, "__name__", "features")
        declared = {
            fact: getattr(function, attribute)
            for fact, attribute in DECLARED.items()
            if getattr(function, attribute, None) is not None
        }
        origin = "set in its folder" if "preprocessing" in declared else "unknown"
        structure = structure_of_outputs(layers, {})
        facts = ModelFacts(name.removesuffix("_taps"), layers, structure=structure)
        super().__init__(replace(facts, preprocessing_origin=origin, **declared))
        self.function = function

    @property
    def identity(self) -> int:
        return id(self.function)

    def compute(self, images: tf.Tensor) -> Taps:
        """Calls the function as it is; one of NumPy, which cannot be traced, runs eagerly."""
        traced_error = None
        if not getattr(self.function, "eager", False):
            try:
                taps = recorder.infer(self.function, images)
                if not isinstance(taps, Mapping) or all(map(tf.is_tensor, taps.values())):
                    return taps
            except Exception as error:  # a library may raise anything for a symbolic tensor
                if type(self.function).__module__.split(".")[0] in ("vit_tf", "keras"):
                    raise
                traced_error = error
        if tf.executing_eagerly():
            arrays, _ = _call_on_array(self.function, np.asarray(images))
            return {name: tf.constant(array) for name, array in arrays.items()}
        # Two images of the same shape show the names, types and shapes of what is returned.
        with tf.init_scope():
            sizes = [2, *(size or 1 for size in images.shape[1:])]
            blank = np.zeros(sizes, images.dtype.as_numpy_dtype)
            try:
                example, argument = _call_on_array(self.function, blank)
            except Exception as error:  # that of arrays explains a function of these
                raise (traced_error or error) from error
        names = list(example)

        def call_on_batch(batch: np.ndarray) -> list[np.ndarray]:
            arrays, _ = _call_on_array(self.function, batch, argument)
            return [arrays[name] for name in names]

        types = [tf.as_dtype(example[name].dtype) for name in names]
        values = tf.numpy_function(call_on_batch, [images], types)
        for value, name in zip(values, names, strict=True):
            value.set_shape((images.shape[0], *example[name].shape[1:]))
        return dict(zip(names, values, strict=True))

    def read_scores(
        self, layer: str | None, images: Callable[[], tf.Tensor] | None = None
    ) -> Features:
        """The features, with a layer of probabilities replaced by the scores that they are of."""
        layer = layer or LOGITS_NAME
        if images is None or getattr(self.function, "eager", False):
            return self.with_facts(scores=ClassScores(layer))
        return recover_scores(self, layer, tf.cast(images()[:NUM_SHOWN], tf.float32))


class ArrayFeatures(Features):
    """Activations at hand: some columns of rows that hold those of all models side by side."""

    def __init__(self, activations: Mapping[str, np.ndarray], first_column: int) -> None:
        shapes = {layer: values.shape[1:] for layer, values in activations.items()}
        layers = tuple(shapes)
        structure = ModelGraph(layers, layers)
        super().__init__(ModelFacts("activations", layers, shapes, structure))
        self._first = first_column
        self._sizes = [math.prod(shape) for shape in shapes.values()]

    def compute(self, images: tf.Tensor) -> Taps:
        own = images[:, self._first : self._first + sum(self._sizes)]
        parts = zip(self.facts.shapes.items(), tf.split(own, self._sizes, axis=1), strict=True)
        return {layer: tf.reshape(part, (-1, *shape)) for (layer, shape), part in parts}


def features_from_arrays(
    *activations: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, list[ArrayFeatures]]:
    """Rows (example, number) of given activations, and the features of each as columns of them."""
    columns: list[np.ndarray] = []
    features = []
    for layers in activations:
        if not isinstance(layers, Mapping) or not layers:
            raise ValueError(
                "Expected activations to be {name: array of shape (example, ...)}. "
                f"Received: {type(layers).__name__}"
            )
        arrays = {layer: np.asarray(values, np.float32) for layer, values in layers.items()}
        if any(values.ndim == 0 for values in arrays.values()):
            raise ValueError("Expected arrays of shape (example, ...). Received: a single number")
        features.append(ArrayFeatures(arrays, sum(column.shape[1] for column in columns)))
        columns += [values.reshape(len(values), -1) for values in arrays.values()]
    sizes = sorted({len(column) for column in columns})
    if len(sizes) > 1:
        raise ValueError(
            f"Expected activations of the same images. Received: arrays of {sizes} rows"
        )
    return np.concatenate(columns, axis=1), features


# From facts of a model to the attributes of a function that declare them.
DECLARED = {
    "grid": "token_grid",
    "preprocessing": "preprocessing",
    "input_shape": "input_shape",
    "integer_images": "integer_images",
    "num_classes": "num_classes",
    "class_names": "class_names",
    "pooled_tokens": "pooled_tokens",
}


def _call_on_array(
    function: Callable[[Any], Any],
    images: np.ndarray,
    arguments: Sequence[Callable[[np.ndarray], Any]] = (np.asarray, tf.constant),
) -> tuple[dict[str, np.ndarray], tuple[Callable[[np.ndarray], Any]]]:
    """What a function returns for an array, as arrays, and the kind of argument that it takes."""
    first_error = None
    for argument in arguments:
        try:
            taps = recorder.infer(function, argument(images))
            break
        except Exception as error:
            if argument is arguments[-1]:
                raise error from first_error
            first_error = error
    if not isinstance(taps, Mapping):
        raise TypeError(
            "Expected features to be a callable from images to {layer: tensor}. "
            f"Received: one that returns {type(taps).__name__}"
        )
    # Tensors of PyTorch may lie elsewhere.
    arrays = {n: x.detach().cpu() if hasattr(x, "detach") else x for n, x in taps.items()}
    return {name: np.ascontiguousarray(value) for name, value in arrays.items()}, (argument,)


def recover_scores(features: Features, layer: str, images: tf.Tensor) -> Features:
    """Features whose scores, a layer, are no probabilities; images show whether they are."""
    taps = features.compute(images)
    values = taps.get(layer) if isinstance(taps, Mapping) else None
    unchanged = features.with_facts(scores=ClassScores(layer))
    if values is None or len(values.shape) != 2:
        return unchanged  # which is explained where the scores are read
    # It is traced and never run: only a graph knows the operation that has made the scores.
    activations: list[str] = []
    graph = tf.function(
        lambda images: activations.append(find_activation(features(images)[layer])[0])
    )
    graph.get_concrete_function(images)
    values, activation = np.asarray(values), activations[-1]
    if not activation:
        has_one = values.shape[1] == 1 and values.min() >= 0 and values.max() <= 1
        activation = "sigmoid" if has_one else "softmax" if are_distributions(values) else ""
        if not activation:
            return unchanged
        warnings.warn(
            f"{layer!r} of {features.name!r} holds probabilities: gradients are those of their "
            f"logarithms. Return the scores before the {activation} instead",
            stacklevel=5,
        )
    is_binary = activation == "sigmoid" and values.shape[1] == 1
    kind = ScoreKind.SIGMOIDS if activation == "sigmoid" else ScoreKind.SOFTMAX
    scores = ClassScores(
        layer + (LOG_ODDS if is_binary else LOGITS), ScoreKind.SIGMOID if is_binary else kind
    )
    from_scores = ScoresLayer("", is_binary, dtype="float32")
    from_probabilities = ScoresLayer(activation, is_binary, dtype="float32")

    def compute_scores(probabilities: tf.Tensor) -> tf.Tensor:
        _, before = find_activation(probabilities)
        return from_probabilities(probabilities) if before is None else from_scores(before)

    layers = tuple(scores.layer if name == layer else name for name in features.facts.layers)
    facts = replace(features.facts, layers=layers, scores=scores)
    return RecoveredScores(features, layer, compute_scores, facts)


class RecoveredScores(DerivedFeatures):
    """Features with class scores in place of a layer of the probabilities that they are of."""

    def __init__(
        self,
        inner: Features,
        layer: str,
        compute_scores: Callable[[tf.Tensor], tf.Tensor],
        facts: ModelFacts,
    ) -> None:
        super().__init__(inner, self._replace_probabilities, facts)
        self._layer, self._compute_scores = layer, compute_scores
        self._scores = cast(ClassScores, facts.scores).layer
        self.is_editable = inner.is_editable

    def _replace_probabilities(self, taps: Taps) -> Taps:
        others = {name: x for name, x in taps.items() if name != self._layer}
        return others | {self._scores: self._compute_scores(taps[self._layer])}

    def run_interventions(
        self, runs: Runs, layer: str, images: tf.Tensor, max_runs: int = 128
    ) -> tuple[Taps, tf.Tensor]:
        def inner_runs(taps: Taps) -> Sequence[Mapping[str, Edit]]:
            return runs(self.derive(taps)) if callable(runs) else runs

        is_scores = layer == self._scores
        taps, values = self.inner.run_interventions(
            inner_runs, self._layer if is_scores else layer, images, max_runs
        )
        if is_scores:
            flat = self._compute_scores(tf.reshape(values, (-1, values.shape[-1])))
            values = tf.reshape(flat, (*tf.unstack(tf.shape(values)[:-1]), flat.shape[-1]))
        return self.derive(taps), values

    def split_at_last_layer(
        self, images: tf.Tensor, scores: str
    ) -> tuple[Taps, Callable[[tf.Tensor], tf.Tensor]]:
        taps, head = self.inner.split_at_last_layer(images, self._layer)
        return self.derive(taps), lambda values: self._compute_scores(head(values))
