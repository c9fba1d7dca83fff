"""One vector for each image from the tokens of a layer, and the rows of a whole data set."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from .results import require_finite
from .stream import Statistic
from .tokens import as_tokens

POOLINGS = ("first", "mean", "rest")


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


def pool(taps, tokens):
    """The `"first"` token of each layer, the `"mean"` of all, or that of the `"rest"`.

    Args:
        taps: dict from layer to tensor of shape (example, token, channel), (example, row, column,
            channel) or (example, channel).
        tokens: one of these words; the `"rest"` are all but the first.

    Returns:
        dict from layer to float64 tensor of shape (example, channel).

    Raises:
        ValueError: for other `tokens`, or taps of other shapes.
    """
    require_pooling(tokens)
    reduce = {
        "first": lambda x: x[:, 0],
        "mean": lambda x: tf.reduce_mean(x, axis=1),
        "rest": lambda x: tf.reduce_mean(x[:, 1:], axis=1),
    }[tokens]
    return {layer: tf.cast(reduce(as_tokens(layer, x)), tf.float64) for layer, x in taps.items()}


def require_pooling(tokens):
    """Raises a `ValueError` unless `tokens` is a way to pool."""
    if tokens not in POOLINGS:
        raise ValueError(f"Expected tokens to be one of {POOLINGS}. Received: tokens={tokens!r}")


def pooled_statistic(tokens="first"):
    """The `Statistic` of images and labels that finishes with the `Pooled` features.

    It keeps the rows: several analyses of one data set can share them.

    Raises:
        ValueError: for other `tokens`; at the end, for features that are not finite.
    """
    require_pooling(tokens)

    def step(images, labels, taps):
        return {"rows": {"x": pool(taps, tokens), "labels": labels}, "batches": 1}

    def finish(totals):
        rows = totals["rows"]
        require_finite("pooled features", list(rows["x"].values()), rows["x"])
        return Pooled(rows["x"], rows["labels"], tokens, int(totals["batches"]))

    return Statistic(step, finish, with_labels=True)
