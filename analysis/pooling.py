"""One vector for each image from the tokens of a layer, and the rows of a whole data set."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from .labels import require_vector
from .results import require_finite
from .stream import Statistic
from .token_words import CLS, POOLED, require_word
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


def pool(taps, tokens, grid=None):
    """The CLS token of each layer, or the mean of its tokens with a place, or of all.

    Args:
        taps: dict from layer to tensor of shape (example, token, channel), (example, row, column,
            channel) or (example, channel).
        tokens: `"cls"`, `"spatial"` or `"all"`.
        grid: `TokenGrid` of the sequences, which tells `"cls"` from `"spatial"`.

    Returns:
        dict from layer to float64 tensor of shape (example, channel).

    Raises:
        ValueError: for other `tokens`, and as `tokens_of`.
    """
    require_word(tokens, POOLED)
    chosen = {layer: tokens_of(layer, x, tokens, grid) for layer, x in taps.items()}
    return {layer: tf.cast(tf.reduce_mean(x, axis=1), tf.float64) for layer, x in chosen.items()}


def pooled_statistic(tokens=CLS, grid=None):
    """The `Statistic` of images and labels that finishes with the `Pooled` features.

    It keeps the rows: several analyses of one data set can share them. Arguments are those of
    `pool`.

    Raises:
        ValueError: for other `tokens`, or labels that are not integers of shape (example,); at the
            end, for features that are not finite.
    """
    require_word(tokens, POOLED)

    def step(images, labels, taps):
        require_vector(labels)
        return {"rows": {"x": pool(taps, tokens, grid), "labels": labels}, "batches": 1}

    def finish(totals):
        rows = totals["rows"]
        require_finite("pooled features", list(rows["x"].values()), rows["x"])
        return Pooled(rows["x"], rows["labels"], tokens, int(totals["batches"]))

    return Statistic(step, finish, with_labels=True)
