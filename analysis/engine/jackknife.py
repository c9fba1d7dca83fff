"""Standard errors of values of sums over batches, by leaving out one batch at a time."""

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Rows: TypeAlias = Any  # an array (batch, ...), or a structure of such arrays
# A value of arrays that are summed over batches, such as `ratio`.
ValueOfSums: TypeAlias = Callable[[Any], np.ndarray]


def jackknife(value: ValueOfSums, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The value of sums over batches, and its standard error, NaN for a single batch."""
    total = value(tf.nest.map_structure(lambda x: x.sum(axis=0), rows))
    if (batches := len(tf.nest.flatten(rows)[0])) == 1:
        warnings.warn(
            "The standard error needs at least two batches (eight or more are recommended): "
            "use a smaller batch size",
            stacklevel=2,
        )
        return total, np.full(total.shape, np.nan)
    rest = leave_one_out(value, rows)
    spread = ((rest - rest.mean(axis=0)) ** 2).sum(axis=0)
    return total, np.sqrt((batches - 1) / batches * spread)


def leave_one_out(value: ValueOfSums, rows: Rows) -> np.ndarray:
    """The value of sums over batches without each of these: array of shape (batch, ...)."""
    total = tf.nest.map_structure(lambda x: x.sum(axis=0), rows)
    return np.stack(
        [
            value(tf.nest.map_structure(lambda x, sums, at=at: sums - x[at], rows, total))
            for at in range(len(tf.nest.flatten(rows)[0]))
        ]
    )
