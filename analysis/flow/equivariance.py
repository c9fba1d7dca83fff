"""Equivariance of representations: do they move with the image?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.names import format_list
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import PartialGrid, as_maps, grid_of
from ..engine.preparation import ImagesLike, prepare
from ..engine.results import dataset_of, provenance, require_finite, variable
from ..engine.standard_errors import jackknife, leave_one_out
from ..engine.stream import Statistic, Totals, evaluate, mean_per_batch

Shift: TypeAlias = tuple[int, int]  # down and to the right, in pixels

FLIP = "flip"
NEGLIGIBLE = 1e-6  # of the squares of activations, their variance by rounding of float32


@measurement()
def equivariance_error(
    model: ModelLike,
    images: ImagesLike,
    shifts: Sequence[Shift] | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Measures whether representations move with the image when it is flipped or shifted.

        error = mean over x of |f(T x) - T f(x)|^2 / mean over pairs x, x' of |f(x) - f(x')|^2

    f(x) is the feature map of a layer for the image x. T flips the image from left to right or
    shifts it cyclically: pixels that leave the image on one side return on the opposite side.
    Squares are summed over positions and channels, and pairs are different images in a batch. The
    error is 0 if the representation moves with the image. It is 1 if f(T x) and T f(x) differ as
    much as the maps of two different images do at one position. It can exceed 1 if activations
    differ more between positions than between images, for example because of a large position
    embedding.

    Lenc and Vedaldi (2015, https://arxiv.org/abs/1411.5908, section 3) fit the transform of the
    features to data. This function uses the known transform T instead of a fitted one. A vector,
    such as a pooled layer, has no positions, so its error measures invariance.

    Args:
        model, images, grid: as in `vit_tf.analysis`. Prefix tokens, such as CLS, are excluded.
        shifts: pairs (down, right) of integers, in pixels. The default is the smallest diagonal
            shift that moves the maps of all layers by whole positions (the patch size for a ViT),
            and two and four times this shift unless that exceeds half the image.

    Returns:
        Dataset with three variables. The dim `transform` lists `"flip"` and the shifts, such as
        `"shift 4 4"`.

        * `error`, of shape (transform, layer): the equivariance error. It is NaN if the shift does
          not move the map of the layer by whole positions.
        * `stderr`, of shape (transform, layer): the standard error of `error`, by the jackknife
          over batches.
        * `leave_one_out`, of shape (batch, transform, layer): the error computed without each batch
          in turn, if there are several batches. It allows paired comparisons of models that are
          measured on the same batches.

    Raises:
        ValueError: if no layer is a feature map or lies on a known grid, or if `shifts` are not
            pairs of integers.
        ValueError: if activations are not finite, or if a layer does not vary between images; the
            message names the layer.

    Examples:
        >>> error = analysis.equivariance_error(vit, images)
        >>> error.error.dims
        ('transform', 'layer')
        >>> error.transform.values.tolist()
        ['flip', 'shift 8 8', 'shift 16 16']
        >>> ax = analysis.plot(error)

    See also:
        `plots.plot_equivariance_error`, `frequency_amplitude`, `receptive_field`; page
        measurements/flow/equivariance-error.md.
    """
    features, batches = prepare(model, images, layers=layers, detail=detail)
    return evaluate(
        equivariance_error_statistic(features, shifts, grid),
        batches,
        features,
        description="equivariance",
    )


@statistic_of(equivariance_error)
def equivariance_error_statistic(
    features: Features, shifts: Sequence[Shift] | None = None, grid: PartialGrid = None
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `equivariance_error`."""
    if shifts is not None:
        try:
            shifts = tuple((index(down), index(right)) for down, right in shifts)
        except TypeError as error:
            raise ValueError(
                f"Expected shifts to be pairs of integers, in pixels. Received: {shifts!r}"
            ) from error
    grid = grid_of(features, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        taps = with_positions(taps, grid)
        size = tuple(images.shape[1:3])
        own_shifts = shifts if shifts is not None else multiples(common_shift(taps, size), size)
        moved = [with_positions(features(tf.reverse(images, [2])), grid)]
        moved += [
            with_positions(features(tf.roll(images, shift, [1, 2])), grid) for shift in own_shifts
        ]
        # Layers of moved images are compared with moved layers of the images.
        rows = {}
        for layer, x in taps.items():
            expected = [tf.reverse(x, [2]), *(shifted(x, shift, size) for shift in own_shifts)]
            rows[layer] = {
                "differences": tf.stack(
                    [
                        tf.constant(np.nan, tf.float64) if y is None else sum_of_squares(z - y)
                        for y, z in zip(expected, [m[layer] for m in moved], strict=True)
                    ]
                )[None],
                "squares": sum_of_squares(x)[None],
                "pairs": sum_over_pairs(x)[None],
            }
        return {
            "rows": rows,
            "shifts": [tuple(map(int, shift)) for shift in own_shifts],
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.Dataset:
        rows = totals["rows"]
        layers = list(rows)
        require_finite("equivariance", [rows[layer]["squares"] for layer in layers], layers)
        # The error is relative to the difference between images, which must not vanish.
        constant = [
            layer
            for layer in layers
            if not rows[layer]["pairs"].sum() > 2 * NEGLIGIBLE * rows[layer]["squares"].sum()
        ]
        if constant:
            raise ValueError(
                "Expected every layer to vary between images. "
                f"Received a constant layer: {format_list(constant)}"
            )

        def errors(sums: dict[str, dict[str, np.ndarray]]) -> np.ndarray:
            return np.stack([x["differences"] / x["pairs"] for x in sums.values()], axis=-1)

        error, stderr = jackknife(errors, rows)
        dims = ("transform", "layer")
        variables = {
            "error": variable(dims, error, "equivariance error"),
            "stderr": variable(dims, stderr, "standard error of the equivariance error"),
        }
        # Values without each batch allow paired comparisons of models.
        batches = len(rows[layers[0]]["squares"])
        if batches > 1:
            variables["leave_one_out"] = variable(
                ("batch", *dims),
                leave_one_out(errors, rows),
                "equivariance error without each batch",
            )
        shifted_by = mean_per_batch(totals, "shifts")
        names = [FLIP, *(f"shift {down} {right}" for down, right in shifted_by)]
        return dataset_of(
            variables,
            provenance(
                features,
                totals["examples"],
                batches,
                estimator="ratio of sums over examples, jackknife over batches",
            ),
            transform=names,
            layer=layers,
        )

    return Statistic(step, finish, min_batch=2)


def with_positions(taps: Taps, grid: PartialGrid) -> dict[str, tf.Tensor]:
    """Maps (example, row, column, channel) of the taps; a vector is a map of one position."""
    vectors = {tap: x for tap, x in taps.items() if x.shape.rank == 2}
    others = {tap: x for tap, x in taps.items() if x.shape.rank != 2}
    maps = as_maps(others, grid) if others or not vectors else {}
    maps |= {tap: tf.cast(x, tf.float32)[:, None, None] for tap, x in vectors.items()}
    return {tap: maps[tap] for tap in taps if tap in maps}


def common_shift(maps: Taps, size: tuple[int, int]) -> Shift:
    """The least shift by which all maps move by whole positions."""
    # A shift by a common multiple of the strides moves every map by whole positions.
    strides = [
        tuple(math.ceil(length / n) for length, n in zip(size, x.shape[1:3], strict=True))
        for x in maps.values()
        if tuple(x.shape[1:3]) != (1, 1)
    ]
    down, right = (
        (math.lcm(*lengths) for lengths in zip(*strides, strict=True)) if strides else (1, 1)
    )
    shift = down, right
    if all(pixels % length == 0 for pixels, length in zip(shift, size, strict=True)):
        raise ValueError(
            f"No shift smaller than the images, {size[0]} x {size[1]} pixels, moves every "
            "layer by whole positions. Specify shifts=, or select fewer layers with layers=."
        )
    return shift


def multiples(shift: Shift, size: tuple[int, int]) -> list[Shift]:
    """A shift, and two and four times this shift unless that is more than half the image."""
    times = (
        n for n in (2, 4) if all(2 * n * s <= length for s, length in zip(shift, size, strict=True))
    )
    return [shift, *((n * shift[0], n * shift[1]) for n in times)]


def shifted(maps: tf.Tensor, shift: Shift, size: tuple[int, int]) -> tf.Tensor | None:
    """Maps that move as images of a size do, or None if not by a whole number of positions."""
    if tuple(maps.shape[1:3]) == (1, 1):  # of a vector, which stays
        return maps
    steps = [
        pixels * positions / length
        for pixels, positions, length in zip(shift, maps.shape[1:3], size, strict=True)
    ]
    if any(step != round(step) for step in steps):
        return None
    return tf.roll(maps, [round(step) for step in steps], [1, 2])


def sum_of_squares(x: tf.Tensor) -> tf.Tensor:
    """The sum of squares, each example's of float32 and their sum of float64."""
    return tf.reduce_sum(tf.cast(tf.reduce_sum(x**2, axis=[1, 2, 3]), tf.float64))


def sum_over_pairs(x: tf.Tensor) -> tf.Tensor:
    """The mean over pairs of examples of a batch of their squared distance, for each example."""
    count = tf.cast(tf.shape(x)[0], tf.float64)
    return 2 * count / (count - 1) * sum_of_squares(x - tf.reduce_mean(x, axis=0))
