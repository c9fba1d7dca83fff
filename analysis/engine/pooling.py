"""One vector for each image from the tokens of a layer, and the labels that go with them."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from .results import ALL, CLS, POOLED, SPATIAL, require_finite, require_word
from .stream import Statistic
from .tokens import tokens_of


@dataclass(frozen=True)
class Pooled:
    """Pooled features of every example of a data set.

    Attributes:
        layers: dict from layer to float64 array of shape (example, channel).
        labels: array of shape (example,).
        tokens: as for `pool`.
        batches: number of batches that they came in.
    """

    layers: dict
    labels: np.ndarray
    tokens: str
    batches: int


def pool(taps, tokens=None, grid=None):
    """The CLS token of each layer, or the mean of its spatial tokens, or of all.

    Args:
        taps: dict from layer to tensor of shape (example, token, channel), (example, row, column,
            channel) or (example, channel).
        tokens: `"cls"`, `"spatial"` or `"all"`; None for the CLS token of sequences that have one,
            the mean of the spatial tokens of others and of maps, and vectors as they are.
        grid: `TokenGrid` of the sequences, which separates `"cls"` from `"spatial"`.

    Returns:
        dict from layer to float64 tensor of shape (example, channel).

    Raises:
        ValueError: for other `tokens`, and as `tokens_of`.
    """
    _require_tokens(tokens)
    words = {layer: tokens or _default_tokens(x.shape.rank, grid) for layer, x in taps.items()}
    chosen = {layer: tokens_of(layer, x, words[layer], grid) for layer, x in taps.items()}
    return {layer: tf.cast(tf.reduce_mean(x, axis=1), tf.float64) for layer, x in chosen.items()}


def _require_tokens(tokens):
    if tokens is not None:
        require_word(tokens, POOLED)


def _default_tokens(rank, grid):
    """What stands for a layer by default, from the number of its axes."""
    if rank == 3:
        return CLS if grid is None or grid.prefix else SPATIAL
    return ALL


def pooled_statistic(tokens=None, grid=None):
    """The `Statistic` of images and labels that finishes with the `Pooled` features.

    It keeps the rows: several analyses of one data set can share them. Arguments are those of
    `pool`.

    Raises:
        ValueError: for other `tokens`, or labels that are not integers of shape (example,); at the
            end, for features that are not finite.
    """
    _require_tokens(tokens)

    def step(images, labels, taps):
        require_vector(labels)
        return {"rows": {"x": pool(taps, tokens, grid), "labels": labels}, "batches": 1}

    def finish(totals):
        rows = totals["rows"]
        require_finite("pooled features", list(rows["x"].values()), rows["x"])
        return Pooled(rows["x"], rows["labels"], tokens, int(totals["batches"]))

    return Statistic(step, finish, with_labels=True)


def batch_labels(labels, num_classes, what):
    """The labels of a batch, and how many are outside the classes, for `require_inside`.

    Args:
        labels: integer tensor of shape (example,).
        num_classes: number of classes.
        what: of which images, for the error, such as "test".

    Returns:
        int64 tensor of shape (example,), and an int32 scalar.

    Raises:
        ValueError: as `require_vector`.
    """
    require_vector(labels, num_classes, what)
    labels = tf.cast(labels, tf.int64)
    inside = tf.logical_and(labels >= 0, labels < num_classes)
    return labels, tf.reduce_sum(tf.cast(tf.logical_not(inside), tf.int32))


def require_inside(outside, examples, num_classes, what):
    """Raises a `ValueError` if any of the labels of so many examples are `outside` the classes."""
    if outside:
        _refuse(num_classes, f"{int(outside)} of {int(examples)} {what} labels outside")


def require_labels(labels, num_classes, what):
    """Raises a `ValueError` unless an array holds labels of `what` images, all of them classes."""
    require_vector(labels, num_classes, what)
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        _refuse(num_classes, f"{what} labels from {labels.min()} to {labels.max()}")


def require_vector(labels, num_classes=None, what="the"):
    """Raises a `ValueError` unless labels, a tensor or an array, are integers of shape (example,).

    Args:
        labels: what was given; classes in one-hot form, or of shape (example, 1), are refused.
        num_classes: number of classes, or None where any integers do.
        what: of which images, for the error, such as "test".
    """
    kind = tf.as_dtype(labels.dtype)
    if len(labels.shape) != 1 or not kind.is_integer:
        _refuse(num_classes, f"{what} labels of shape {tuple(labels.shape)} and type {kind.name}")


def _refuse(num_classes, received):
    classes = "" if num_classes is None else f" from 0 to num_classes - 1 = {num_classes - 1}"
    raise ValueError(f"Expected integer labels of shape (example,){classes}. Received: {received}")
