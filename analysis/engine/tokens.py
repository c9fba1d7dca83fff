"""Taps of any shape as sequences of tokens."""

import tensorflow as tf

_NOT_TOKENS = ("weights", "heads")


def as_tokens(tap, values):
    """Activations as float32 tokens of shape (example, token, channel).

    A map (example, row, column, channel) is read row by row; a vector (example, channel) is one
    token.

    Raises:
        ValueError: for taps that hold no tokens, such as attention weights.
    """
    rank = values.shape.rank
    if rank not in (2, 3, 4) or tap.rpartition("/")[2] in _NOT_TOKENS:
        raise ValueError(
            "Expected taps of shape (example, channel), (example, token, channel) or (example, "
            f"row, column, channel). Received: {tap!r} of shape {tuple(values.shape)}"
        )
    values = tf.cast(values, tf.float32)
    if rank == 3:
        return values
    shape = tf.shape(values)
    tokens = 1 if rank == 2 else shape[1] * shape[2]
    static = 1 if rank == 2 else _product(values.shape[1:3])
    flat = tf.reshape(values, (shape[0], tokens, shape[-1]))
    return tf.ensure_shape(flat, (values.shape[0], static, values.shape[-1]))


def _product(sizes):
    return None if None in tuple(sizes) else sizes[0] * sizes[1]


def grid_of(features, grid):
    """`grid`, or the `token_grid` that the features know of, or None."""
    return grid if grid is not None else getattr(features, "token_grid", None)


def require_grid(features, grid):
    """As `grid_of`.

    Raises:
        ValueError: if there is neither.
    """
    grid = grid_of(features, grid)
    if grid is None:
        raise ValueError("Expected a grid, or features with a token_grid. Received: grid=None")
    return grid
