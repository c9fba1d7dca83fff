"""The class scores of features: which tap holds them, their gradients, and the classes in them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from scipy.special import expit, softmax

from vit_tf.common.names import format_list, unknown_name
from vit_tf.data.batches import explained_batches
from vit_tf.features.features import Features, ScoreKind, Taps

# Classes by name or position, one or several; those that are predicted for None.
ClassesLike: TypeAlias = int | str | Sequence[int | str] | None
MAX_CLASSES = 5  # that are explained where none are given
ONE_SCORE = (
    "Expected scores of two or more classes, or one sigmoid output, the probability of the second "
    "class. Received: scores {}"
)


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
    # The target sums the score of one class for each copy of an image: as copies do not interact,
    # its gradient at a copy is that of this class.
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(repeated)
        taps = features(repeated)
        is_explained = tf.one_hot(classes, require_scores(taps, scores, classes))
        target = tf.reduce_sum(
            tf.cast(taps[scores], tf.float32) * tf.tile(is_explained, (tf.shape(images)[0], 1))
        )
    # Tensors that the scores do not depend on have no gradient, which is an error.
    tensors = sources(repeated, taps)
    gradients = dict(zip(tensors, tape.gradient(target, list(tensors.values())), strict=True))
    if missing := [name for name, gradient in gradients.items() if gradient is None]:
        require_float_input(features)
        raise ValueError(
            f"Expected {features.gradient_requirement}. Received: {features.name!r}, where "
            f"{scores!r} has no gradients with respect to {format_list(missing)}"
        )

    def apart(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, tf.concat([[-1, count], tf.shape(x)[1:]], axis=0))

    # What is computed in a graph of its own, as in a SavedModel, has gradients of unknown shape.
    return {
        name: (apart(tensor), apart(tf.ensure_shape(gradients[name], tensor.shape)))
        for name, tensor in tensors.items()
    }


def class_coords(features: Features, classes: Sequence[int]) -> dict[str, Any]:
    """Coordinates of the dim `class`: the numbers, and the names as `class_name` if known."""
    coords: dict[str, Any] = {"class": [int(number) for number in classes]}
    if names := features.facts.class_names:
        coords["class_name"] = ("class", [str(names[number]) for number in coords["class"]])
    return coords


def require_float_input(features: Features) -> None:
    """Raises a `ValueError` for a model of integer images, which have no gradients."""
    if "int" in (features.facts.input_dtype or ""):
        raise ValueError(
            f"Gradients need floating-point images, but {features.name!r} takes "
            f"{features.facts.input_dtype} images. Build it with keras.Input(shape), whose "
            "dtype is float32."
        )


def require_scores(taps: Taps, scores: str, classes: Iterable[int]) -> int:
    """The number of classes of a tap of scores; a `ValueError` if one of `classes` is not there."""
    shape = tuple(taps[scores].shape) if scores in taps else ()
    if len(shape) != 2:
        shapes = [f"{tap} of shape {tuple(value.shape)}" for tap, value in taps.items()]
        received = f"scores={scores!r} of shape {shape}" if shape else f"scores={scores!r}"
        raise ValueError(
            "Expected scores= to name a layer of shape (example, class). Received: "
            f"{received}; the layers are {format_list(shapes)}"
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


def class_probabilities(scores: tf.Tensor, kind: ScoreKind) -> tf.Tensor:
    """Probabilities (..., class) of scores: their softmax, or the sigmoid of each."""
    return tf.nn.softmax(scores, axis=-1) if kind is ScoreKind.SOFTMAX else tf.sigmoid(scores)


def as_probabilities(scores: np.ndarray, has_sigmoids: bool = False) -> np.ndarray:
    """`class_probabilities` of an array, in float64; probabilities of a softmax as they are."""
    # SciPy, since TensorFlow rounds probabilities below 2e-308 to zero.
    scores = np.asarray(scores, np.float64)
    if has_sigmoids:
        return expit(scores)
    if (scores >= 0).all() and np.allclose(scores.sum(axis=-1), 1, atol=1e-4):
        return scores
    return softmax(scores, axis=-1)


def classification_loss(scores: tf.Tensor, labels: tf.Tensor, kind: ScoreKind) -> tf.Tensor:
    """Negative log-likelihood (...) of labels (example,) under scores (..., example, class).

    Cross-entropy of a softmax or of one sigmoid; binary cross-entropy, summed over classes, of
    several sigmoids, where the label is the only class that is right.
    """
    right = tf.one_hot(labels, scores.shape[-1], dtype=scores.dtype)
    if kind is ScoreKind.SOFTMAX:
        return -tf.reduce_sum(right * tf.nn.log_softmax(scores, axis=-1), axis=-1)
    losses = -right * tf.math.log_sigmoid(scores)
    if kind is ScoreKind.SIGMOIDS:
        losses -= (1.0 - right) * tf.math.log_sigmoid(-scores)
    return tf.reduce_sum(losses, axis=-1)


def class_divergence(scores: tf.Tensor, others: tf.Tensor, kind: ScoreKind) -> tf.Tensor:
    """Divergence (...) of the probabilities of other scores from those of scores, in nats."""
    log = tf.nn.log_softmax if kind is ScoreKind.SOFTMAX else tf.math.log_sigmoid
    before, after = log(scores), log(others)
    terms = tf.exp(before) * (before - after)
    if kind is ScoreKind.SIGMOIDS:
        before, after = log(-scores), log(-others)
        terms += tf.exp(before) * (before - after)
    return tf.reduce_sum(terms, axis=-1)


def class_positions(
    features: Features, images: Any, classes: ClassesLike, scores: str
) -> list[int]:
    """Positions of classes given by name or number; by default those predicted for the images."""
    names = features.facts.class_names
    if classes is None:
        # The predicted classes, in the order in which the images first have them.
        predicted: list[int] = []
        for batch in explained_batches(images) if isinstance(images, tf.data.Dataset) else [images]:
            batch_images = batch[0] if isinstance(batch, tuple) else batch
            taps = features(tf.cast(batch_images, tf.float32))
            # With a single score, the first would be predicted for every image.
            require_scores(taps, scores, [0, 1])
            predicted += np.argmax(taps[scores], 1).tolist()
        return [int(label) for label in dict.fromkeys(predicted)][:MAX_CLASSES]
    classes = [classes] if isinstance(classes, str | int | np.integer) else list(classes)
    for name in classes:
        if isinstance(name, str) and name not in names:
            if not names:
                raise ValueError(
                    "The model has no class_names: specify classes by number, from 0. "
                    f"Received: {name!r}"
                )
            raise unknown_name("class", name, names)
    return [names.index(label) if isinstance(label, str) else int(label) for label in classes]
