"""Maps of all stages of a ResNet brought to the size of its last, for linear probes."""

import math

import tensorflow as tf

from .derived import Derived
from .tokens import require_grid


def match_maps(features, channels, grid=None):
    """Features whose maps have the last stage's rows and columns and about its channels.

    Each map is split into patches that are flattened, lest early layers with few channels be at
    a disadvantage, then average-pooled (Raghu et al. 2021, appendix A, "linear probes"):

        out[r, c, (i, j, k)] = mean over u, v of map[(r a + u) p + i, (c b + v) p + j, k]

    with i, j < p and the mean over a x b whole patches. Of the sides p that divide the map so, the
    one that brings the number of channels (i, j, k) nearest to `channels`. A map that the grid does
    not divide is an error, not padded: padding would weigh the border differently in every stage.

    Args:
        features: callable from images to `{layer: tensor of shape (example, row, column,
            channel)}`.
        channels: number of channels of the last stage.
        grid: `TokenGrid` of the last stage's map; by default the features' own.

    Returns:
        Callable from images to `{layer: tensor of shape (example, grid.rows, grid.columns, about
        channels)}`.

    Raises:
        ValueError: without a grid; when called, for taps that are not maps, or whose rows and
            columns are no multiples of the grid's.
    """
    grid = require_grid(features, grid)

    def matched(taps):
        for tap, values in taps.items():
            _require_divisible(tap, values.shape, grid)
        return {
            tap: _match_map(values, grid.rows, grid.columns, channels)
            for tap, values in taps.items()
        }

    return Derived(features, matched, grid)


def _match_map(values, rows, columns, channels):
    """One map, patched and pooled: tensor of shape (example, rows, columns, side side depth)."""
    height, width, depth = values.shape[1:]
    side = _patch_side(height // rows, width // columns, depth, channels)
    pooled = (height // rows // side, width // columns // side)
    shape = (-1, rows, pooled[0], side, columns, pooled[1], side, depth)
    mean = tf.reduce_mean(tf.reshape(values, shape), axis=(2, 5))
    patches = tf.transpose(mean, (0, 1, 3, 2, 4, 5))
    return tf.reshape(patches, (-1, rows, columns, side * side * depth))


def _patch_side(height, width, depth, channels):
    """Side of the square patches that tile height x width places; of equally near ones the smaller.

    Square, as a patch twice as wide as high would see farther sideways.
    """
    common = math.gcd(height, width)
    sides = [side for side in range(1, common + 1) if common % side == 0]
    return min(sides, key=lambda side: abs(side * side * depth - channels))


def _require_divisible(tap, shape, grid):
    """Raises a `ValueError` unless the shape is that of a map that the grid divides."""
    if shape.rank != 4 or shape[1] % grid.rows or shape[2] % grid.columns:
        raise ValueError(
            "Expected maps of shape (example, row, column, channel) with rows a multiple of "
            f"{grid.rows} and columns of {grid.columns}. Received: {tap!r} of shape {tuple(shape)}"
        )
