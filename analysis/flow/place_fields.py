"""Effective receptive fields of any place: which pixels of an image move it, in each layer."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import xarray as xr

from ..engine.front import measurement
from ..engine.results import provenance, require_finite
from ..engine.stream import collect
from ..engine.types import Images, Model
from .gradients import absolute_gradients, run_pieces


@measurement("maps")
def place_fields(features: Model, images: Images, rows: int, columns: int) -> xr.DataArray:
    """Absolute gradient of each place of every map with respect to the pixels of each image.

        field(row, column) = sum over image channels of |d sum_k A_k(place) / d x(row, column)|

    As `receptive_field` with `channels="sum"`, but of the place under each cell of a grid laid over
    the image, not of the centre (Luo et al. 2016, https://arxiv.org/abs/1701.04128, section 3). In
    a map of more places than the grid has cells it is the one under the middle of the cell.

    Args:
        features: a model, or a callable from images to maps of shape (example, row, column,
            channel).
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        rows, columns: of the grid, such as those of the last map.

    Returns:
        DataArray of shape (example, layer, place, row, column): a place is a cell, row by row.

    Raises:
        ValueError: for a grid without cells, taps that are no maps, a layer that does not depend on
            the image, as far as TensorFlow can tell, or gradients that are not finite.

    Examples:
        >>> fields = analysis.place_fields(bit, images[:2], rows=2, columns=2)
        >>> fields.dims
        ('example', 'layer', 'place', 'row', 'column')

    See also:
        `plots.plot_place_fields`, `receptive_field`; page guides/one-image.md.
    """
    if not (rows >= 1 and columns >= 1):
        raise ValueError(f"Expected a grid of cells. Received: {rows} x {columns}")
    layers, count = [], rows * columns

    def step(batch):
        batch = tf.cast(batch, tf.float32)

        def of_cell(number):
            image = batch[number // count][None]
            pieces = run_pieces(features, image, at_cell((rows, columns), number % count))
            fields = absolute_gradients(pieces, "sum", seed=0)
            layers[:] = [tap for tap in getattr(features, "taps", fields) if tap in fields]
            return tf.stack([fields[tap] for tap in layers])

        numbers = tf.range(tf.shape(batch)[0] * count)
        found = tf.map_fn(of_cell, numbers, fn_output_signature=tf.float32, parallel_iterations=1)
        shape = (-1, count, len(layers), *batch.shape[1:3])  # (example, place, layer, row, column)
        return tf.transpose(tf.reshape(found, shape), (0, 2, 1, 3, 4))

    fields = collect(step, images, description="receptive fields", checked=(features,))
    require_finite("receptive fields", np.moveaxis(fields, 1, 0), layers)
    return xr.DataArray(
        fields,
        dims=("example", "layer", "place", "row", "column"),
        coords={
            "example": np.arange(len(fields)),
            "layer": list(layers),
            "place": np.arange(count),
            "row": np.arange(fields.shape[-2]),
            "column": np.arange(fields.shape[-1]),
        },
        name="place_fields",
        attrs=provenance(
            features,
            len(fields),
            1,
            long_name="effective receptive field",
            units="activation per unit of the image",
            estimator="absolute gradient of the sum of channels, summed over image channels",
            rows=rows,
            columns=columns,
        ),
    )


def at_cell(grid, cell):
    """The function of a map's name and value to its activations under the middle of a cell.

    Args:
        grid: (rows, columns) of cells laid over the map.
        cell: number of the cell, row by row, as a tensor.
    """

    def target(tap, maps):
        if maps.shape.rank != 4:
            raise ValueError(
                "Expected maps of shape (example, row, column, channel). "
                f"Received: {tap!r} of shape {tuple(maps.shape)}"
            )
        place = cell // grid[1], cell % grid[1]
        ends = zip(place, maps.shape[1:3], grid, strict=True)
        row, column = ((2 * at + 1) * length // (2 * cuts) for at, length, cuts in ends)
        return tf.gather(tf.gather(maps, row, axis=1), column, axis=1)

    return target
