"""Features: a model as it is measured, whatever it was made with."""

from __future__ import annotations

import abc
import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias, cast

import keras
import tensorflow as tf

from vit_tf.common.backend import require_tensorflow
from vit_tf.common.names import are_named, format_list, match
from vit_tf.data.preprocessing import Preprocessing, require_images
from vit_tf.features.layers import (
    KINDS,
    Detail,
    Shape,
    layers_of,
    unfit_attention,
    warn_of_missed_blocks,
)
from vit_tf.features.structure import ModelGraph
from vit_tf.features.tokens import TokenGrid

# The tensors of layers by their names, of one batch, each of shape (example, ...).
Taps: TypeAlias = Mapping[str, tf.Tensor]
# From the value of a layer to a value of its shape and dtype, which takes its place.
Edit: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
# Edits by layer for each run, or a function from the layers without edits to these.
Runs: TypeAlias = Sequence[Mapping[str, Edit]] | Callable[[Taps], Sequence[Mapping[str, Edit]]]


class ScoreKind(StrEnum):
    """What turns class scores into probabilities."""

    SOFTMAX = "softmax"  # the classes exclude each other
    SIGMOIDS = "sigmoids"  # each class by itself: several labels for an image
    SIGMOID = "sigmoid"  # two classes, by the log-odds -z and z of one output


@dataclass(frozen=True)
class ClassScores:
    """The layer that holds the class scores of a model, and their kind."""

    layer: str
    kind: ScoreKind = ScoreKind.SOFTMAX


def layer_of_scores(name: str, layer: str | None, vectors: Mapping[str, str]) -> str | None:
    """The layer that a user names, or that of an output by that name; None for the model's own.

    `vectors` are several outputs of a model and their layers. It warns that the first of them
    counts as scores where none is named, and raises if they have names.
    """
    if layer is not None or not vectors:
        return vectors.get(layer or "") or layer
    described = [f"{v!r} (layer {tap!r})" if tap else repr(v) for v, tap in vectors.items()]
    if are_named(vectors):
        example = next((v for v, tap in vectors.items() if tap), "the name of a layer")
        raise ValueError(
            f"{name!r} has several outputs that could be class scores: {', '.join(described)}. "
            f"Choose one with scores=, for example scores={example!r}."
        )
    warnings.warn(
        f"{name!r} returns {len(vectors)} vectors: the first counts as class scores. Name another "
        f"one with scores= among {', '.join(described)}",
        stacklevel=5,
    )
    return None


def cannot_be_split(name: str) -> ValueError:
    """The error for features whose scores are not computed from their last layer alone."""
    return ValueError(
        f"{name!r} cannot be split at its last layer: its scores also depend on earlier layers"
    )


def no_class_scores(name: str, reason: str, vector: str | None) -> ValueError:
    """The error for a model without class scores, where these are read, and may be a vector."""
    example = f", for example scores={vector!r}" if vector else ""
    return ValueError(
        f"{name!r} has no class scores: {reason}, as in a model without a classifier. If a layer "
        f"returns class scores, name it with scores={example}"
    )


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """The known properties of a model that is measured.

    A property that could not be inferred is None or empty, and `reasons` may state why.

    Attributes:
        name: name of the model in results and plots.
        layers: names of the layers that the features return, in depth order; empty for a function
            that has not been called.
        shapes: shape of each layer without the example axis; None for a size that varies.
        structure: the layers that are representations, blocks and class scores.
        grid: `TokenGrid` of the tokens or positions of the last layers.
        is_grid_inferred: whether the grid is inferred from layers instead of declared by the model.
        preprocessing: `Preprocessing` that converts 8-bit images to the model's input.
        preprocessing_origin: how the preprocessing is known, or why it is unknown, in words.
        input_shape: shape of a batch of images, (example, height, width, channel); None for an axis
            of variable size.
        input_dtype: dtype of the images that a Keras model was built for.
        integer_images: whether images may be integers.
        scores: the layer that holds the class scores.
        num_classes: number of classes.
        class_names: names of the classes, in the order of the scores.
        pooled_tokens: positions of the tokens that the classification head uses.
        prefix_names: names of the prefix tokens, if the model has names for them.
        reasons: dict from what is missing ("grid", "layers", or a kind of layers that the model
            `lacks`) to the reason, a sentence.
    """

    name: str
    layers: tuple[str, ...] = ()
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    structure: ModelGraph = field(default_factory=lambda: ModelGraph((), ()))
    grid: TokenGrid | None = None
    is_grid_inferred: bool = False
    preprocessing: Preprocessing | None = None
    preprocessing_origin: str = "unknown"
    input_shape: tuple[int | None, ...] | None = None
    input_dtype: str | None = None
    integer_images: bool = False
    scores: ClassScores | None = None
    num_classes: int | None = None
    class_names: tuple[str, ...] = ()
    pooled_tokens: tuple[int, ...] | None = None
    prefix_names: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(height, width) of the images, where the model takes images of one size."""
        shape = self.input_shape or ()
        size = shape[1:3] if len(shape) in (3, 4) else (None,)
        return None if None in size else cast(tuple[int, int], size)

    @property
    def score_kind(self) -> ScoreKind:
        """The function from class scores to probabilities; softmax if it is unknown."""
        return self.scores.kind if self.scores else ScoreKind.SOFTMAX

    @property
    def expected_images(self) -> Preprocessing:
        """The preprocessing of the images; if it is unknown, one to values in [-1, 1]."""
        if self.preprocessing is not None:
            return self.preprocessing
        # Models of grey images may have no axis of channels.
        channels = ((self.input_shape or (None,) * 4)[3:] or (1,))[0] or 3
        return Preprocessing(self.image_size, (0.5,) * channels, (0.5,) * channels)


class Features(abc.ABC):
    """A model in the form that measurements use: named layers, and the known properties.

    Called on a batch of images, features return a dict from layer to tensor of shape (example,
    ...), computed in inference mode. `vit_tf.features.conversion.features_of` makes the features of
    any model.
    """

    # What gradients need, in words, for the error where there are none.
    gradient_requirement = (
        "features that compute the scores from the layers whose gradients are taken, such as a "
        "submodel; a SavedModel does not provide these gradients"
    )

    # Whether it can be run with edits, as functions, SavedModels and activations cannot.
    is_editable = False
    # The Keras model or PyTorch module of which it is the features; None for functions and others.
    source: Any = None

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.facts.name

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the layers, in depth order: `facts.layers`."""
        return self.facts.layers

    @property
    def token_grid(self) -> TokenGrid | None:
        """`TokenGrid` of the tokens or positions of the last layers: `facts.grid`."""
        return self.facts.grid

    @property
    def preprocessing(self) -> Preprocessing | None:
        """`Preprocessing` from 8-bit images to the model's input: `facts.preprocessing`.

        If it is unknown or wrong, set it, as for any model.
        """
        return self.facts.preprocessing

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing | None) -> None:
        changed = self.with_facts(
            preprocessing=preprocessing, preprocessing_origin="set by the model"
        )
        vars(self).clear()
        vars(self).update(vars(changed))

    @property
    def identity(self) -> int:
        """A number that is equal for features with the same values, which a pass computes once."""
        return id(self)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(height, width) of the images, where the model takes images of one size."""
        return self.facts.image_size

    @property
    def weights(self) -> Sequence[keras.Variable]:
        """The variables in which a model differs from its untrained copies."""
        return ()

    def digest(self) -> str:
        """A text that identifies structure and weights; empty if it cannot be computed."""
        return ""

    @abc.abstractmethod
    def compute(self, images: tf.Tensor) -> Taps:
        """The layers of a batch of images that the model accepts, without checks."""

    def __call__(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """The layers of a batch of images; layers without an example axis are left out.

        Raises:
            ValueError: for images of another shape than the model accepts.
        """
        require_tensorflow("measurements")
        self.require_shape(images.shape)
        return layers_of_examples(self.compute(images), images, self.name)

    def require_shape(self, shape: Iterable[int | None]) -> None:
        """Raises a `ValueError` for images of another shape than the model accepts."""
        if self.facts.input_shape is not None:
            require_images(shape, self.facts.input_shape)

    def select(self, layers: Iterable[str]) -> Features:
        """Features of some of the layers, given by name or shell pattern."""
        patterns, known = tuple(layers), self.facts.layers
        facts = replace(self.facts, layers=tuple(match(patterns, known)) if known else ())

        def pick(taps: Taps) -> Taps:
            return {name: taps[name] for name in match(patterns, tuple(taps))}

        return DerivedFeatures(self, pick, facts)

    def select_kind(self, kind: str, block: str = "block00", detail: Detail = None) -> Features:
        """Features of the layers of a kind; a submodel or a function returns its own outputs.

        Args:
            kind: a key of `vit_tf.features.layers.KINDS`.
            block: name of the block, for the kind `"block_heads"`.
            detail: a subset of the layers, as for `layers_of`.
        """
        return self

    def read_scores(
        self, layer: str | None, images: Callable[[], tf.Tensor] | None = None
    ) -> Features:
        """Features that also return class scores before a softmax or sigmoid, as `facts.scores`.

        Args:
            layer: name of the layer or output that holds the scores; None for the model's own.
            images: function that returns a batch of images, on which a function is called to find
                its scores.
        """
        if layer is None:
            return self
        return self.with_facts(scores=ClassScores(layer))

    def with_grid_of_layers(self) -> Features:
        """The features with the grid of their own layers, if the grid is inferred from layers."""
        return self

    def with_pooled_tokens(self) -> Features:
        """The features with the positions of the tokens that the head uses, if these are known."""
        return self

    def with_model(self, model: Any) -> Features:
        """The same layers of another model of the same structure, such as an untrained copy.

        Raises:
            ValueError: for features that are not those of a Keras model or a PyTorch module.
        """
        raise ValueError(
            "Expected a Keras model, vit_tf.submodel of one, or a PyTorch module. "
            f"Received: {self.name!r}, {type(self).__name__}"
        )

    def segments(self) -> Sequence[Callable[[tf.Tensor], tuple[Taps, tf.Tensor | None]]]:
        """The model as a chain of pieces, called one after another, for gradients of many layers.

        Each piece maps the output of the piece before, or the images, to its layers and its output,
        which is None for the last piece.
        """
        return [lambda images: (self(images), None)]

    def run_interventions(
        self, runs: Runs, layer: str, images: tf.Tensor, max_runs: int = 128
    ) -> tuple[Taps, tf.Tensor]:
        """The layers without edits, and `layer` for each run with edits: (run, example, ...)."""
        self.require_editable()
        raise NotImplementedError

    def require_editable(self) -> None:
        """Raises a `ValueError` for features that cannot be run with edits."""
        if not self.is_editable:
            raise ValueError(
                "Expected a model or a submodel, such as vit_tf.submodel(vit, '*/heads', "
                f"'logits'), which can be run with interventions. Received: {self.name!r}, "
                f"{type(self).__name__}"
            )

    def split_at_last_layer(
        self, images: tf.Tensor, scores: str
    ) -> tuple[Taps, Callable[[tf.Tensor], tf.Tensor]]:
        """All layers of images, and the function from the last layer before the scores to these.

        Raises:
            ValueError: if the scores depend on more than one layer.
        """
        raise cannot_be_split(self.name)

    def with_facts(self, **changes: Any) -> Features:
        """The same features with some facts changed."""
        features = copy.copy(self)
        features.facts = replace(self.facts, **changes)
        return features


class DerivedFeatures(Features):
    """Features computed from the layers of other features, once per batch for all measurements.

    `inner` are the other features, and `derive` maps their layers to the layers of these features.
    """

    def __init__(
        self, inner: Features, derive: Callable[[Taps], Taps], facts: ModelFacts | None = None
    ) -> None:
        super().__init__(inner.facts if facts is None else facts)
        self.inner, self.derive = inner, derive

    @property
    def weights(self) -> Sequence[keras.Variable]:
        return self.inner.weights

    def compute(self, images: tf.Tensor) -> Taps:
        return self.derive(self.inner(images))


def pick_taps(taps: Taps, names: Iterable[str]) -> dict[str, tf.Tensor]:
    """The entries of a dict of layers that are named, in the order of the names."""
    for name in names:
        if name not in taps:
            raise ValueError(f"Expected a layer {name!r}. Received: {format_list(list(taps))}")
    return {name: taps[name] for name in names}


def require_layers_of_kind(facts: ModelFacts, kind: str, block: str, detail: Detail) -> list[str]:
    """The layers of a whole model that a measurement of a kind reads; a `ValueError` for none."""
    layers = layers_of(
        kind, facts.layers, facts.shapes, facts.structure, facts.grid, detail=detail, block=block
    )
    if not layers and kind != "scores":
        lacks = KINDS[kind].lacks
        unfit = unfit_attention(kind, facts.layers, facts.shapes, facts.grid)
        names = [lacks, *(["attention weights"] if "attention" in lacks else [])]
        reason = next((facts.reasons[x] for x in names if x in facts.reasons), "")
        reason = reason or (unfit and f"it has no {unfit}; layers= selects some")
        reason = reason or facts.reasons.get("layers", "specify layers=")
        raise ValueError(f"{lacks.capitalize()} not found in {facts.name!r}: {reason}")
    if kind != "scores":
        warn_of_missed_blocks(facts.name, facts.structure)
    return layers


def layers_of_examples(taps: Any, images: tf.Tensor, name: str) -> dict[str, tf.Tensor]:
    """The layers that have an example axis; a warning names others, such as position tables."""
    if not isinstance(taps, Mapping) or not taps:
        kind = "a tensor" if tf.is_tensor(taps) else f"{type(taps).__name__}"
        raise ValueError(
            "Expected features to be a callable from images to {layer: tensor}, such as "
            f"vit_tf.submodel(model, 'block*'). Received: {name!r}, which returns {kind}"
        )
    shapes = {layer: tf.TensorShape(x.shape) for layer, x in taps.items()}
    counts = (None, images.shape[0])  # the number of examples may not be known yet
    ranks = {layer: shape.rank for layer, shape in shapes.items() if shape.rank is not None}
    without = [layer for layer, rank in ranks.items() if not rank or shapes[layer][0] not in counts]
    if without:
        warnings.warn(
            f"Layers without an example axis are left out: {format_list(without)}", stacklevel=3
        )
    if len(without) == len(taps):
        raise ValueError(
            f"Expected layers with one row per image. Received: {format_list(without)}, which "
            "have none"
        )
    return {layer: x for layer, x in taps.items() if layer not in without}
