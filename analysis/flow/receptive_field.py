"""Effective receptive fields: gradients of the centre of each layer."""

from __future__ import annotations

from functools import partial

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.tokens import as_grid

from ..engine.front import measurement
from ..engine.results import provenance, require_finite
from ..engine.stream import accumulate
from ..engine.tokens import as_tokens, grid_of
from ..engine.types import Grid, Images, Model
from .gradients import absolute_gradients, run_pieces


@measurement()
def receptive_field(
    features: Model,
    images: Images,
    channels: str | int = "sum",
    grid: Grid | None = None,
    seed: int = 0,
) -> xr.DataArray:
    """Mean absolute gradient of the centre of each layer with respect to the image.

        field(row, column) = mean over examples of sum over image channels of
                             |d tap[centre] / d image[row, column]|

    (Luo et al. 2017; Raghu et al. 2021, section 5, figures 6 and C.1 to C.4). The centre is the
    token or place at `(rows // 2, columns // 2)`; a vector (example, channel) is its own centre.

    Args:
        features: a model, or a callable from images to `{layer: tensor}` of shape (example, token,
            channel), (example, row, column, channel) or (example, channel).
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        channels: `"sum"`, one gradient of the sum over the layer's channels, which is fast;
            `"all"`, the absolute gradient of each channel, then their mean, which is the paper's;
            or a number of channels to sample and average.
        grid: `TokenGrid` of layers of shape (example, token, channel), or a pair (rows, columns);
            by default the features' own.
        seed: of the sampled channels.

    Returns:
        DataArray of shape (layer, row, column), one value per pixel, per unit of the image.

    Raises:
        ValueError: for unknown `channels`, tokens without a grid, a layer that does not depend on
            the image or gradients that are not finite; the layer is named.

    Examples:
        >>> field = analysis.receptive_field(vit, images)
        >>> field.dims
        ('layer', 'row', 'column')
        >>> field.shape[1:]
        (32, 32)
        >>> ax = analysis.plot(field)

    See also:
        `plots.plot_receptive_field`, `place_fields`, `input_gradients`; page
        measurements/flow/receptive-field.md.
    """
    whole = isinstance(channels, int) and not isinstance(channels, bool) and channels >= 1
    if channels not in ("sum", "all") and not whole:
        raise ValueError(
            "Expected channels to be 'sum', 'all' or a number of channels to sample. "
            f"Received: channels={channels!r}"
        )
    grid = grid_of(features, grid)
    layers = []

    def step(batch):
        batch = tf.cast(batch, tf.float32)
        centre = partial(_centre, grid=grid, image_shape=batch.shape)
        pieces = run_pieces(features, batch, centre)
        fields = absolute_gradients(pieces, channels, seed)
        layers[:] = [tap for tap in getattr(features, "taps", fields) if tap in fields]
        ordered = tf.stack([fields[tap] for tap in layers])
        return {"field": ordered, "examples": tf.shape(batch)[0], "batches": 1}

    sums = accumulate(step, images, description="receptive fields", checked=(features,))
    field = sums["field"] / sums["examples"]
    require_finite("receptive fields", field, layers)
    return xr.DataArray(
        field,
        dims=("layer", "row", "column"),
        coords={
            "layer": layers,
            "row": np.arange(field.shape[1]),
            "column": np.arange(field.shape[2]),
        },
        name="receptive_field",
        attrs=provenance(
            features,
            sums["examples"],
            sums["batches"],
            long_name="effective receptive field of the centre",
            units="activation per unit of the image",
            estimator="mean absolute gradient, summed over image channels",
            channels=channels,
            seed=seed,
        ),
    )


def _centre(tap, values, grid, image_shape):
    """The activations at the centre of a layer, of shape (example, channel)."""
    rank = values.shape.rank
    tokens = as_tokens(tap, values)
    if rank == 2:
        return tokens[:, 0]
    if rank == 4:
        rows, columns = values.shape[1:3]
        return tokens[:, (rows // 2) * columns + columns // 2]
    grid = grid and as_grid(grid, tokens.shape[1], image_shape[1:3])
    if grid is None or tokens.shape[1] != grid.num_tokens:
        raise ValueError(
            f"Expected a TokenGrid of the {tokens.shape[1]} tokens of {tap!r}. "
            f"Received: grid={grid}"
        )
    return tokens[:, grid.center]
