"""Effective receptive fields of any place: which pixels of an image move it, in each layer."""

import numpy as np
import tensorflow as tf
import xarray as xr

from ..engine.features import taps_of
from ..engine.results import listed, provenance, require_finite
from ..engine.stream import collect

AT_ONCE = 8  # places of a batch


def place_fields(features, images, rows, columns):
    """Absolute gradient of each place of every map with respect to the pixels of each image.

        field(row, column) = sum over image channels of |d sum_k A_k(place) / d x(row, column)|

    As `receptive_field` with `channels="sum"`, but of the place under each cell of a grid laid over
    the image, not of the centre (Luo et al. 2016, https://arxiv.org/abs/1701.04128, section 3). In
    a map of more places than the grid has cells it is the one under the middle of the cell.

    Args:
        features: callable from images to maps of shape (example, row, column, channel).
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        rows, columns: of the grid, such as those of the last map.

    Returns:
        DataArray of shape (example, layer, place, row, column): a place is a cell, row by row.

    Raises:
        ValueError: for a grid without cells, taps that are no maps, a layer that does not depend on
            the image, as far as TensorFlow can tell, or gradients that are not finite.
    """
    if not (rows >= 1 and columns >= 1):
        raise ValueError(f"Expected a grid of cells. Received: {rows} x {columns}")
    layers, count = [], rows * columns
    width = min(AT_ONCE, count)
    places = np.resize(np.arange(count), -(-count // width) * width).reshape(-1, width)

    def step(batch):
        batch = tf.cast(batch, tf.float32)

        def of_image(image):
            fields = tf.map_fn(
                lambda cells: _fields(features, image, cells, (rows, columns), layers),
                tf.constant(places),
                fn_output_signature=tf.float32,
                parallel_iterations=1,
            )
            shape = tf.shape(fields)  # (chunk, layer, place, row, column)
            fields = tf.transpose(fields, (1, 0, 2, 3, 4))
            return tf.reshape(fields, (shape[1], -1, shape[3], shape[4]))[:, :count]

        return tf.map_fn(of_image, batch, parallel_iterations=1)

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


def _fields(features, image, cells, grid, layers):
    """Fields of some cells of one image: (layer, cell, row, column). Names the layers."""
    images = tf.repeat(image[None], cells.shape[0], axis=0)
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(images)
        taps = taps_of(features, images)
        other = [tap for tap, x in taps.items() if x.shape.rank != 4]
        if other:
            raise ValueError(
                f"Expected maps of shape (example, row, column, channel). Received: {listed(other)}"
            )
        targets = {tap: tf.reduce_sum(_at(x, cells, grid)) for tap, x in taps.items()}
    layers[:] = targets
    found = []
    for tap, target in targets.items():
        gradient = tape.gradient(target, images)
        if gradient is None:
            raise ValueError(f"Expected every layer to depend on the images. Received: {tap!r}")
        found.append(tf.reduce_sum(tf.abs(gradient), axis=-1))
    return tf.stack(found)


def _at(maps, cells, grid):
    """Activations under the middle of each cell, one an example: (example, channel)."""
    ends = []
    for index, (length, cuts) in enumerate(zip(maps.shape[1:3], grid, strict=True)):
        cell = cells // grid[1] if index == 0 else cells % grid[1]
        ends.append((2 * cell + 1) * length // (2 * cuts))
    return tf.gather_nd(maps, tf.stack(ends, axis=-1), batch_dims=1)
