"""Attention of single images: where each query of each head looks, how far, and at what."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import xarray as xr

from ..engine.front import measurement
from ..engine.results import provenance, require_finite
from ..engine.stream import Statistic, evaluate
from ..engine.tokens import on_grid
from ..engine.types import Grid, Images, Model
from .attention import attention_weights, num_attended, spatial_shares

MASS = ("prefix", "itself", "others")  # the parts that the attention of a query divides into


@measurement("attention")
def attention_rows(features: Model, images: Images, grid: Grid | None = None) -> xr.Dataset:
    """The attention of every query of every image, its distance, and where its mass goes.

        distance(q) = sum_k a(q, k) |position(q) - position(k)| / sum_k a(q, k)

    over the keys k that have a place, in pixels, as `attention_distance` averages it. The mass of a
    row, which is 1, goes to `"prefix"`, the tokens without a place such as CLS; to `"itself"`, the
    query's own key, of a prefix token too; and to `"others"`. For a few images to look at:
    ViT-B/16 at 224 px has 22 MB of weights for each.

    Args:
        features: a model, or a callable from images to a dict of attention weights, as for
            `attention_distance`.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        grid: `TokenGrid` of the tokens, or a pair (rows, columns); by default the features' own.

    Returns:
        Dataset of `attention` (example, layer, head, query, key), `distance` (example, layer, head,
        query), NaN for a prefix token and for a query that attends to prefix tokens only, and
        `mass` (example, layer, head, query, part).

    Raises:
        ValueError: as `attention_distance`.

    Examples:
        >>> rows = analysis.attention_rows(vit, images[:2])
        >>> rows.attention.dims
        ('example', 'layer', 'head', 'query', 'key')
        >>> rows.part.values.tolist()
        ['prefix', 'itself', 'others']

    See also:
        `plots.plot_attention_rows`, `attention_distance`; page guides/one-image.md.
    """
    statistic = on_grid(features, grid, lambda grid: _statistic(features, grid), num_attended)
    return evaluate(statistic, images, features, description="attention of images")


def _statistic(features, grid):
    def step(images, taps):
        weights = attention_weights(taps, grid)
        return {"rows": {layer: tf.cast(w, tf.float32) for layer, w in weights.items()}}

    def finish(totals):
        layers = list(totals["rows"])
        attention = np.stack(list(totals["rows"].values()), axis=1)
        require_finite("attention", np.moveaxis(attention, 1, 0), layers)
        return _labelled(attention, layers, grid, provenance(features, len(attention), 1))

    return Statistic(step, finish)


def _distances(attention, grid):
    """Distance of each query of weights (..., query, key), NaN where it has none: (..., query)."""
    shares, seen = (x.numpy() for x in spatial_shares(attention[..., grid.prefix :, :], grid))
    placed = np.einsum("...qk,qk->...q", shares, grid.distances())
    distance = np.full(attention.shape[:-1], np.nan)
    distance[..., grid.prefix :] = np.where(seen > 0, placed, np.nan)
    return distance


def _masses(attention, grid):
    """Parts of the mass of weights (..., query, key): shape (..., query, part), as in `MASS`."""
    itself = np.diagonal(attention, axis1=-2, axis2=-1).astype(np.float64)
    prefix = attention[..., : grid.prefix].sum(axis=-1, dtype=np.float64)
    prefix[..., : grid.prefix] -= itself[..., : grid.prefix]
    total = attention.sum(axis=-1, dtype=np.float64)
    return np.stack([prefix, itself, total - prefix - itself], axis=-1)


def _labelled(attention, layers, grid, facts):
    dims = ("example", "layer", "head", "query", "key")
    tokens = np.arange(grid.num_tokens)
    words = {"long_name": "attention weight", "units": "1"}
    far = {"long_name": "attention distance", "units": "pixels"}
    where = {"long_name": "share of the attention", "units": "1"}
    return xr.Dataset(
        {
            "attention": (dims, attention, words),
            "distance": (dims[:-1], _distances(attention, grid), far),
            "mass": ((*dims[:-1], "part"), _masses(attention, grid), where),
        },
        coords={
            "example": np.arange(len(attention)),
            "layer": layers,
            "head": np.arange(attention.shape[2]),
            "query": tokens,
            "key": tokens,
            "part": list(MASS),
        },
        attrs=facts | {"estimator": "each image by itself"} | vars(grid),
    )
