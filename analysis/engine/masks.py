"""Masks of objects on a grid of tokens."""

import tensorflow as tf

from vit_tf import TokenGrid


def patch_cover(masks: tf.Tensor, grid: TokenGrid) -> tf.Tensor:
    """The share of each token's patch that masks cover: float32 (example, spatial token)."""
    tokens = (grid.rows, grid.columns)
    pixels = (grid.rows * grid.stride, grid.columns * grid.stride)
    if masks.shape.rank != 3 or tuple(masks.shape[1:]) not in (tokens, pixels):
        raise ValueError(
            f"Expected masks of shape (example, row, column) of {tokens[0]} x {tokens[1]} tokens "
            f"or {pixels[0]} x {pixels[1]} pixels. Received: shape {masks.shape}"
        )
    masks = tf.cast(masks, tf.float32)
    if tuple(masks.shape[1:]) != tokens:
        patches = (-1, grid.rows, grid.stride, grid.columns, grid.stride)
        masks = tf.reduce_mean(tf.reshape(masks, patches), axis=(2, 4))
    return tf.reshape(masks, (-1, grid.num_spatial))


def count_out_of_range(masks: tf.Tensor) -> tf.Tensor:
    """The number of values of masks outside [0, 1]: int32 scalar."""
    shares = tf.cast(masks, tf.float32)
    return tf.reduce_sum(tf.cast(tf.logical_not((shares >= 0) & (shares <= 1)), tf.int32))


def require_in_range(num_out_of_range: int) -> None:
    """Raises a `ValueError` if masks had values outside [0, 1]."""
    if num_out_of_range:
        raise ValueError(
            "Expected masks with values in [0, 1]. Received: values out of this range. Divide "
            "8-bit masks by 255."
        )
