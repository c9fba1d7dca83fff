"""Mean attention maps, from which aligned maps, offsets and distances are computed."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import xarray as xr

from ..engine.front import measurement, statistic_of
from ..engine.results import mean_of, provenance, require_finite, variable
from ..engine.stream import Statistic, evaluate
from ..engine.tokens import on_grid
from ..engine.types import Grid, Images, Model
from .attention import LEFT_OUT, attention_weights, num_attended, summed_spatial


@measurement("attention")
def mean_attention(features: Model, images: Images, grid: Grid | None = None) -> xr.Dataset:
    """Attention weights averaged over examples, raw and renormalised over the spatial keys.

        raw(q, k)     = mean over examples of a(q, k)
        spatial(q, k) = mean over examples of a(q, k) / sum_j a(q, j),  j and k spatial keys

    Averaging over examples and re-aligning or averaging over queries commute, so that maps of CLS,
    aligned maps and offsets follow from this one result (Walmer et al. 2023, section 4). An example
    whose query attends to prefix tokens only, to the precision of float32, has no `spatial` map of
    it and is left out of that mean; `left_out` counts these.

    Args:
        features: a model, or a callable from images to a dict of attention weights of shape
            (example, head, query, key). Where some names end in `"weights"`, as in the tap grammar,
            the others are left out.
        images, grid: as in `vit_tf.analysis`.

    Returns:
        Dataset of `raw` of shape (layer, head, query, key) over all tokens and `spatial` of shape
        (layer, head, query, spatial_key) over the spatial keys; both are shares, and
        sum to 1 over the keys. `left_out` of shape (layer, head, query) is a number of examples;
        where it is all of them, `spatial` is NaN.

    Raises:
        ValueError: for taps that are not attention weights over the grid's tokens, or not finite.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> mean.raw.dims
        ('layer', 'head', 'query', 'key')
        >>> bool(np.allclose(mean.raw.sum("key"), 1))
        True

    See also:
        `plots.plot_mean_attention`, `aligned_attention`, `attention_maps`; page
        measurements/attention/mean-attention.md.
    """
    statistic = mean_attention_statistic(features, grid)
    return evaluate(statistic, images, features, description="mean attention")


@statistic_of(mean_attention)
def mean_attention_statistic(features, grid=None):
    """The `Statistic` of `mean_attention`."""
    return on_grid(features, grid, lambda grid: _statistic(features, grid), num_attended)


def _statistic(features, grid):
    def step(images, taps):
        weights = attention_weights(taps, grid)
        spatial = {layer: summed_spatial(w, grid) for layer, w in weights.items()}
        return {
            "raw": {
                layer: tf.reduce_sum(tf.cast(w, tf.float32), axis=0) for layer, w in weights.items()
            },
            "spatial": {layer: summed[0] for layer, summed in spatial.items()},
            "seen": {layer: summed[1] for layer, summed in spatial.items()},
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    return Statistic(step, lambda totals: _means(totals, features, grid))


def _means(totals, features, grid):
    layers = list(totals["raw"])
    raw, spatial, seen = (
        np.stack(list(totals[name].values())) for name in ("raw", "spatial", "seen")
    )
    require_finite("mean attention", spatial, layers)
    spatial, left_out = mean_of(spatial, seen[..., None]), totals["examples"] - seen
    dims = ("layer", "head", "query")
    tokens = np.arange(grid.num_tokens)
    return xr.Dataset(
        {
            "raw": variable((*dims, "key"), raw / totals["examples"], "mean attention"),
            "spatial": variable(
                (*dims, "spatial_key"), spatial, "mean attention over the spatial keys"
            ),
            "left_out": (dims, left_out.astype(int), LEFT_OUT),
        },
        coords={
            "layer": layers,
            "head": np.arange(raw.shape[1]),
            "query": tokens,
            "key": tokens,
            "spatial_key": tokens[grid.prefix :],
        },
        attrs=provenance(
            features,
            totals["examples"],
            totals["batches"],
            estimator="mean over examples",
            **vars(grid),
        ),
    )
