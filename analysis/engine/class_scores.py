"""The class scores of features: which tap holds them, their gradients, and the classes in them."""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import vit_tf
from vit_tf.common.names import are_named, format_list, unknown_name
from vit_tf.data.batches import explained_batches
from vit_tf.data.preprocessing import innermost_features
from vit_tf.features.scores import (
    LOG_ODDS,
    LOGITS,
    ClassScores,
    are_distributions,
    before_activation,
)
from vit_tf.features.submodels import TapModel, with_class_scores
from vit_tf.torch_models import is_torch_module

from .feature_taps import Derived, call_features, taps_of, token_grid_of
from .results import model_name
from .roles import Classes, Features, Images, Taps
from .traces import keep

MAX_CLASSES = 5  # that are explained where none are given
ONE_SCORE = (
    "Expected scores of two classes or more, or a model that ends in one sigmoid, the probability "
    "of the second of two classes. Received: scores {}"
)
FEW = 8  # images on which a function shows whether it returns probabilities


def class_gradients(
    features: Features,
    images: tf.Tensor,
    classes: Sequence[int],
    scores: str,
    sources: Callable[[tf.Tensor, Taps], Taps],
) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Gradients of class scores, separately for each class and image.

    The images are repeated, so that one backward pass serves all classes. `sources` is a function
    of the repeated images and their taps to a dict of the tensors with respect to which gradients
    are taken. Returns a dict of pairs of the tensor and its gradient, of shape (example, class,
    ...).
    """
    count = len(classes)
    repeated = tf.repeat(tf.cast(images, tf.float32), count, axis=0)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(repeated)
        taps = taps_of(features, repeated)
        is_explained = tf.one_hot(classes, require_scores(taps, scores, classes))
        target = tf.reduce_sum(
            tf.cast(taps[scores], tf.float32) * tf.tile(is_explained, (tf.shape(images)[0], 1))
        )
    tensors = sources(repeated, taps)
    gradients = dict(zip(tensors, tape.gradient(target, list(tensors.values())), strict=True))
    if missing := [name for name, gradient in gradients.items() if gradient is None]:
        require_float_input(features)
        if hasattr(innermost_features(features), "run_interventions"):  # of a PyTorch module
            raise ValueError(
                "Expected a PyTorch module whose forward records gradients. "
                f"Received: {model_name(features)!r}, whose scores have none, as under "
                "torch.no_grad or after detach"
            )
        raise ValueError(
            f"Expected features that compute {scores!r} from the taps whose gradients are taken, "
            f"such as a submodel; a SavedModel does not provide these gradients. Received: "
            f"{format_list(missing)}"
        )

    def apart(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, tf.concat([[-1, count], tf.shape(x)[1:]], axis=0))

    return {name: (apart(tensors[name]), apart(gradients[name])) for name in tensors}


def require_float_input(features: Features) -> None:
    """Raises a `ValueError` for a model of integer images, which have no gradients."""
    inputs = getattr(innermost_features(features), "inputs", None)
    dtype = keras.backend.standardize_dtype(inputs[0].dtype) if inputs else ""
    if "int" in dtype:
        raise ValueError(
            "Expected a model whose input is floating-point, for gradients with respect to the "
            "images: build it with keras.Input(shape), whose dtype is float32, in place of "
            f"dtype={dtype!r}. Received: {model_name(features)!r} with an input of type {dtype}"
        )


def require_scores(taps: Taps, scores: str, classes: Iterable[int]) -> int:
    """The number of classes of a tap of scores; a `ValueError` if one of `classes` is not there."""
    shape = tuple(taps[scores].shape) if scores in taps else ()
    if len(shape) != 2:
        shapes = [f"{tap} of shape {tuple(value.shape)}" for tap, value in taps.items()]
        received = f"scores={scores!r} of shape {shape}" if shape else f"scores={scores!r}"
        raise ValueError(
            "Expected scores to be a tap of shape (example, class). "
            f"Received: {received}; taps are {format_list(shapes)}"
        )
    classes = list(classes)
    if shape[1] == 1 and classes != [0]:
        raise ValueError(ONE_SCORE.format(f"{scores!r} of shape (example, 1)"))
    if not classes or not all(
        isinstance(position, int | np.integer) and 0 <= position < shape[1] for position in classes
    ):
        raise ValueError(
            f"Expected classes to be integers from 0 to {shape[1] - 1}. Received: {classes}"
        )
    return shape[1]


def with_scores(model: Any, features: Features, scores: str | None) -> tuple[Features, str | None]:
    """The features of a model whose scores, by default the last tap, are no probabilities.

    `scores` is a tap, or the name of one of several vectors that the model returns.
    """
    vectors = dict(getattr(features, "vectors", {}))
    scores = vectors.get(scores or "") or scores
    if scores is None and vectors:
        _require_first(model_name(features), vectors)
    if hasattr(features, "run_interventions") and is_torch_module(model):
        return _with_layer(model, features, scores), scores
    if not isinstance(features, TapModel):
        return features, scores
    scored, tap = features, scores or features.taps[-1]
    is_whole = isinstance(model, keras.Model) and not isinstance(model, TapModel)
    if tap in features.taps and is_whole:
        return features, tap
    if is_whole:
        # What a model returns has the name of its last layer, its scores may have another one.
        others = features.taps if are_named(vectors) else features.taps[:-1]
        scored = vit_tf.submodel(model, *others, tap)
    if tap not in scored.taps:
        return features, tap
    scored, tap = keep(
        scored, ("class scores", tap), functools.partial(with_class_scores, scored, tap)
    )
    for fact in ("token_grid", "num_classes", "class_names"):
        if hasattr(features, fact):
            setattr(scored, fact, getattr(features, fact))
    return scored, tap


def _require_first(name: str, vectors: Mapping[str, str]) -> None:
    """Warns that the first of several vectors counts as scores; raises if they have names."""
    described = [f"{v!r} (layer {tap!r})" if tap else repr(v) for v, tap in vectors.items()]
    if are_named(vectors):
        example = next((v for v, tap in vectors.items() if tap), "the name of a layer")
        raise ValueError(
            "Expected scores=, the name of the output or layer that holds the class scores, as no "
            f"output is called 'logits': for example, scores={example!r}. Received: {name!r}, "
            f"which returns the vectors {', '.join(described)}"
        )
    warnings.warn(
        f"{name!r} returns {len(vectors)} vectors: the first counts as class scores. Name another "
        f"one with scores= among {', '.join(described)}",
        stacklevel=5,
    )


def _with_layer(module: Any, features: Any, layer: str | None) -> Any:
    """The features of a PyTorch module, with a layer that they may lack."""
    if layer is None or layer in features.taps:
        return features
    from vit_tf.features.module_taps import describe_module  # imports PyTorch

    extended = describe_module(module).features(features.taps, [layer], features.token_grid)
    extended.pooled_tokens, extended.vectors = features.pooled_tokens, features.vectors
    shape = extended.shapes.get(layer, ())
    extended.num_classes, extended.scores = shape[0] if len(shape) == 1 else None, layer
    return extended


def scores_of_function(features: Features, images: Images, scores: str) -> tuple[Features, str]:
    """Features of a function whose scores, a tap that is named too, are no probabilities."""
    batch = images if not isinstance(images, tf.data.Dataset) else next(iter(images))
    batch = tf.cast((batch[0] if isinstance(batch, tuple) else batch)[:FEW], tf.float32)
    if getattr(features, "eager", False):
        return features, scores
    taps, activations = call_features(features, batch), []
    values = taps.get(scores) if isinstance(taps, Mapping) else None
    if values is None or len(values.shape) != 2:
        return features, scores  # which is explained where the scores are read
    # It is traced and never run: only a graph knows the operation that has made the scores.
    graph = tf.function(
        lambda images: activations.append(before_activation(taps_of(features, images)[scores])[0])
    )
    graph.get_concrete_function(batch)
    values, activation = np.asarray(values), activations[-1]
    if not activation:
        has_one = values.shape[1] == 1 and values.min() >= 0 and values.max() <= 1
        activation = "sigmoid" if has_one else "softmax" if are_distributions(values) else ""
        if not activation:
            return features, scores
        warnings.warn(
            f"{scores!r} of {model_name(features)!r} holds probabilities: gradients are "
            f"those of their logarithms. Return the scores before the {activation} instead",
            stacklevel=5,
        )
    is_binary = activation == "sigmoid" and values.shape[1] == 1
    tap = scores + (LOG_ODDS if is_binary else LOGITS)
    from_scores = ClassScores("", is_binary, dtype="float32")
    from_probabilities = ClassScores(activation, is_binary, dtype="float32")

    def compute(taps: Taps) -> dict[str, tf.Tensor]:
        _, before = before_activation(taps[scores])
        value = from_probabilities(taps[scores]) if before is None else from_scores(before)
        return {name: x for name, x in taps.items() if name != scores} | {tap: value}

    derived = Derived(features, compute, token_grid_of(features))
    if hasattr(features, "class_names"):
        vars(derived)["class_names"] = features.class_names
    return derived, tap


def class_positions(features: Features, images: Images, classes: Classes, scores: str) -> list[int]:
    """Positions of classes given by name or number; by default those predicted for the images."""
    names = getattr(features, "class_names", None) or ()
    if classes is None:
        predicted: list[int] = []
        for batch in explained_batches(images) if isinstance(images, tf.data.Dataset) else [images]:
            batch_images = batch[0] if isinstance(batch, tuple) else batch
            taps = taps_of(features, tf.cast(batch_images, tf.float32))
            require_scores(taps, scores, [0])
            predicted += np.argmax(taps[scores], 1).tolist()
        return [int(label) for label in dict.fromkeys(predicted)][:MAX_CLASSES]
    classes = [classes] if isinstance(classes, str | int | np.integer) else list(classes)
    for name in classes:
        if isinstance(name, str) and name not in names:
            if not names:
                raise ValueError(
                    "Expected classes by number, as the model declares no class_names. "
                    f"Received: {name!r}"
                )
            raise unknown_name("class", name, names)
    return [names.index(label) if isinstance(label, str) else label for label in classes]
