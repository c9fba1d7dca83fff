"""Maps of all stages resampled to the rows and columns of the last, to compare their layers."""

import math
from dataclasses import replace

import tensorflow as tf

from vit_tf.data.any_images import ImagesLike
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import DerivedFeatures, Features, Taps
from vit_tf.features.layers import Detail

from .measurements import measurement
from .pooling import PartialGrid, require_grid
from .preparation import read_model


@measurement(arguments="{model}")
def match_maps(
    model: ModelLike,
    channels: int | None = None,
    grid: PartialGrid = None,
    *,
    images: ImagesLike | None = None,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> Features:
    """Resamples maps to the rows and columns of the last stage, with about as many channels.

    Each map is split into patches, which are flattened, so that early layers with few channels are
    not at a disadvantage. The result is average-pooled (Raghu et al. 2021, appendix A, "linear
    probes"):

        out[r, c, (i, j, k)] = mean over u, v of map[(r a + u) p + i, (c b + v) p + j, k]

    where i, j < p, and the mean is over a x b whole patches. Of the patch sides p that divide the
    map in this way, the side is used for which the number of channels (i, j, k) is nearest to
    `channels`. Maps are not padded, because padding would weight the border differently in every
    stage.

    Args:
        model: a model, or a callable from images to `{layer: tensor of shape (example, row,
            column, channel)}`.
        channels: number of channels of the last stage; by default, that of the last layer.
        grid: `TokenGrid` of the map of the last stage; by default, the grid of the model.
        images: images of the size that the callable will be called on, for a model that takes
            images of several sizes. By default, the size is that of the model.

    Returns:
        Features: a callable from images to a dict from layer to tensor, of shape (example,
        grid.rows, grid.columns, about `channels`).

    Raises:
        ValueError: if there is no grid. When the callable is called: if a layer is not a feature
            map, or if its rows and columns are not multiples of those of the grid.
    """
    features = read_model(model, "representations", layers, detail, images=images)
    grid = require_grid(features, grid)

    def matched(taps: Taps) -> dict[str, tf.Tensor]:
        for tap, values in taps.items():
            shape = values.shape
            if shape.rank != 4 or shape[1] % grid.rows or shape[2] % grid.columns:
                raise ValueError(
                    "Expected maps of shape (example, row, column, channel), whose rows are a "
                    f"multiple of {grid.rows} and columns a multiple of {grid.columns}. "
                    f"Received: {tap!r} of shape {tuple(shape)}"
                )
        num_channels = channels or list(taps.values())[-1].shape[-1]
        return {
            tap: _match_map(values, grid.rows, grid.columns, num_channels)
            for tap, values in taps.items()
        }

    facts = replace(features.facts, grid=grid, shapes={})
    return DerivedFeatures(features, matched, facts)


def _match_map(values: tf.Tensor, rows: int, columns: int, channels: int) -> tf.Tensor:
    """One map, patched and pooled: tensor of shape (example, rows, columns, side side depth)."""
    height, width, depth = values.shape[1:]
    common = math.gcd(height // rows, width // columns)
    sides = [side for side in range(1, common + 1) if common % side == 0]
    # `min` returns the first, and so the smaller, of two sides that are equally near.
    side = min(sides, key=lambda side: abs(side * side * depth - channels))
    window = (height // rows // side, width // columns // side)
    patches = tf.nn.space_to_depth(values, side) if side > 1 else values
    # Several times faster than a mean over two axes of patches that are split.
    return tf.nn.avg_pool2d(patches, window, window, "VALID")
