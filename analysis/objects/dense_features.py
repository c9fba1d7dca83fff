"""Dense features: tokens of an image at twice the size that the model takes, window by window."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from vit_tf import TokenGrid
from vit_tf.data.batches import split_batches
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement
from ..engine.pooling import PartialGrid, as_maps, require_grid
from ..engine.preparation import ImagesLike, prepare
from ..engine.stream import Statistic, as_dataset, evaluate, row_statistic
from ..engine.traces import reusable

# Each image becomes four windows or more.
BATCH_SIZE = 8
ENLARGED = 2


@dataclass(frozen=True)
class Window:
    """The corner of a window, in pixels, and how many of its first rows and columns of tokens are
    left to the windows before it."""

    top: int
    filled_rows: int
    left: int
    filled_columns: int


def dense_size(height: int, width: int, size: int, patch: int) -> tuple[int, int]:
    """Size (height, width) in pixels to which `dense_features` resizes an image.

    The shorter side becomes twice the input size of the model. The longer side becomes the multiple
    of the patch size that best preserves the aspect ratio (Walmer et al. 2023, appendix B.4). If
    two multiples are equally good, the larger one is used. The code of Walmer et al. uses the
    largest multiple that does not exceed the exact length, which may be one patch shorter. To get
    the sizes of Walmer et al., resize the images beforehand: `dense_features` does not change an
    image whose shorter side is twice the input size and whose longer side is a multiple of the
    patch size.

    Args:
        height, width: size of the image, in pixels.
        size: height and width of the model's input, in pixels.
        patch: height and width of a patch, in pixels.

    Returns:
        (height, width), in pixels.

    Examples:
        >>> size = analysis.dense_size(480, 854, size=224, patch=16)  # of a frame of DAVIS
        >>> size
        (448, 800)

    See also:
        `dense_features`; page measurements/objects/dense-features.md.
    """
    short, long = sorted((height, width))
    target = ENLARGED * size
    stretched = (2 * long * target + short * patch) // (2 * short * patch) * patch
    return (target, stretched) if height <= width else (stretched, target)


def plan_windows(height: int, width: int, size: int, patch: int) -> list[Window]:
    """The windows of `size` pixels that cover an image, row by row.

    Windows that would exceed the image are moved back, so that they overlap the windows before. A
    token is taken from the first window that contains it. All sizes are multiples of the patch, as
    those of `dense_size` are, and the image is at least as large as a window.
    """
    rows, columns = _window_starts(height, size, patch), _window_starts(width, size, patch)
    return [Window(*row, *column) for row, column in itertools.product(rows, columns)]


def _window_starts(length: int, size: int, patch: int) -> list[tuple[int, int]]:
    """First pixels of windows along one axis, and the numbers of tokens left to those before."""
    starts = [(start, 0) for start in range(0, length - size + 1, size)]
    if rest := length % size:
        starts.append((length - size, (size - rest) // patch))
    return starts


@measurement("tokens")
def dense_features(
    model: ModelLike,
    images: ImagesLike,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> dict[str, np.ndarray]:
    """Tokens of images at twice the input size of the model, computed in windows.

    The images are resized (bilinear, antialiased) to `dense_size`. Then the model runs on windows
    of its input size, at positions given by `plan_windows` (Walmer et al. 2023, section 5.3 and
    appendix B.4). Prefix tokens such as CLS are discarded, because each window has its own.

    Args:
        model: a model, or a callable from images to `{layer: tensor}`. A tensor holds either
            tokens at the positions of `grid` or a feature map with the rows and columns of `grid`.
        images: array of shape (example, height, width, channel), or a batched `tf.data.Dataset`.
            All images must have the same size, but any size is allowed. Pixel values are normalised
            as the model expects.
        grid: `TokenGrid` of the model's tokens, with as many rows as columns. By default, the grid
            of the model.

    Returns:
        dict from layer to a float32 array of shape (example, row, column, channel).

    Raises:
        ValueError: if there is no grid or the grid is not square, if the size of the images is
            unknown, or if a layer does not have the positions of the grid.

    Examples:
        >>> maps = analysis.dense_features(vit, images[:2], layers="norm")
        >>> maps["norm"].shape
        (2, 8, 8, 8)

    See also:
        `dense_size`, `object_clustering`; page measurements/objects/dense-features.md.
    """
    features, images = prepare(
        model, images, kind="tokens", layers=layers, detail=detail, keep_order=True, any_size=True
    )
    grid = require_square(features, grid)
    # The values of the images are checked, not their size, which is that of several windows.
    checked = (features.with_facts(input_shape=None),)
    data = split_batches(as_dataset(images), BATCH_SIZE)
    return evaluate(_window_statistic(features, grid), data, description="dense", checked=checked)


@reusable
def _window_statistic(features: Features, grid: TokenGrid) -> Statistic[dict[str, np.ndarray]]:
    """`Statistic` over images of any size with the maps of `dense_features`."""
    size = grid.rows * grid.stride

    def step(batch: tf.Tensor) -> dict[str, tf.Tensor]:
        if None in tuple(batch.shape[1:3]):
            raise ValueError(f"Expected images of one size. Received: shape {batch.shape}")
        height, width = dense_size(batch.shape[1], batch.shape[2], size, grid.stride)
        large = tf.image.resize(tf.cast(batch, tf.float32), (height, width), antialias=True)
        windows = plan_windows(height, width, size, grid.stride)
        cut = [large[:, w.top : w.top + size, w.left : w.left + size] for w in windows]
        maps = maps_of(features, tf.cast(tf.concat(cut, axis=0), batch.dtype), grid)
        return {layer: _fill(tf.split(x, len(windows)), windows) for layer, x in maps.items()}

    return row_statistic(step)


def require_square(features: Features, grid: PartialGrid) -> TokenGrid:
    """As `require_grid`, of a grid with as many rows as columns, or raises a `ValueError`."""
    grid = require_grid(features, grid)
    if grid.rows != grid.columns:
        raise ValueError(f"Expected a grid with as many rows as columns. Received: {grid}")
    return grid


def token_maps(features: Features, images: ImagesLike, grid: TokenGrid) -> dict[str, np.ndarray]:
    """As `dense_features`, of images at the size that the model takes."""
    data = split_batches(as_dataset(images), BATCH_SIZE)
    return evaluate(_map_statistic(features, grid), data, checked=(features,))


@reusable
def _map_statistic(features: Features, grid: TokenGrid) -> Statistic[dict[str, np.ndarray]]:
    """`Statistic` over images with the map of each layer."""
    return row_statistic(lambda batch: maps_of(features, batch, grid))


def maps_of(features: Features, images: tf.Tensor, grid: TokenGrid) -> dict[str, tf.Tensor]:
    """The spatial tokens of each layer as float32 maps (example, row, column, channel)."""
    taps = features(images)
    maps = as_maps(taps, grid)
    size = (grid.rows, grid.columns)
    if other := [tap for tap in taps if tap not in maps or tuple(maps[tap].shape[1:3]) != size]:
        shapes = {tap: tuple(taps[tap].shape) for tap in other}
        raise ValueError(f"Expected layers with the positions of {grid}. Received: {shapes}")
    return maps


def _fill(maps: Sequence[tf.Tensor], windows: Sequence[Window]) -> tf.Tensor:
    """The map of an image from the maps of its windows: (example, row, column, channel)."""
    parts = zip(maps, windows, strict=True)
    rows = [
        tf.concat([part[:, w.filled_rows :, w.filled_columns :] for part, w in row], axis=2)
        for _, row in itertools.groupby(parts, key=lambda pair: pair[1].top)
    ]
    return tf.concat(rows, axis=1)
