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
    """Computes a value from sums over batches, and its standard error over batches.

    The standard error is that of the jackknife, which leaves out one batch at a time.

    Args:
        value: function from arrays, summed over batches, to an array of values.
        rows: array of shape (batch, ...), or a structure of such arrays, as a step returns them
            under `"rows"`.

    Returns:
        Pair of the value and its standard error, which is NaN, with a warning, for a single batch.

    Examples:
        >>> rows = {"sum": np.array([[3.0], [5.0]]), "count": np.array([[2.0], [2.0]])}
        >>> mean, stderr = engine.jackknife(lambda sums: sums["sum"] / sums["count"], rows)
    """
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
    """Computes a value from sums over batches without each batch in turn: shape (batch, ...).

    The arguments are the same as for `jackknife`. As the variable `leave_one_out` of a result, the
    array gives claims of papers an interval.
    """
    total = tf.nest.map_structure(lambda x: x.sum(axis=0), rows)
    return np.stack(
        [
            value(tf.nest.map_structure(lambda x, sums, at=at: sums - x[at], rows, total))
            for at in range(len(tf.nest.flatten(rows)[0]))
        ]
    )
