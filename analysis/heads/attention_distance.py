"""Attention distance: how far heads attend, on average and for every query of single images."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid
from vit_tf.common.names import last_part
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import PartialGrid, complete_grid, require_grid
from ..engine.preparation import ImagesLike, prepare
from ..engine.results import (
    EACH_IMAGE,
    array_of,
    dataset_of,
    facts_of,
    mean_over_batches,
    provenance,
    stack_layers,
    variable,
)
from ..engine.stream import Statistic, Totals, evaluate
from ..engine.traces import once_per_graph

DIMS = ("layer", "head")
LEFT_OUT = {"long_name": "queries that attend to prefix tokens only", "units": "1"}


@measurement("attention")
def attention_distance(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Mean distance in pixels between a query and the keys that each head attends to.

        distance = mean over examples and queries q of sum_k a(q, k) |position(q) - position(k)|

    Distances are Euclidean, between the centres of tokens. Prefix tokens such as CLS have no
    position. They are excluded as queries and as keys, and the attention to the spatial keys is
    renormalised (Raghu et al. 2021, section 5, figure 3). The distance of a query is undefined if
    it attends to prefix tokens only, that is, if its attention to the spatial tokens is 0 in
    float32. The mean of a head excludes such queries, and `left_out` counts them.

    Args:
        model: a model, or a callable that maps images to a dict from layer name to attention
            weights of shape (example, head, query, key). If the names of some layers end in
            `"weights"`, as in the models of this package, only these layers are used.
        images, grid: as in `vit_tf.analysis`.

    Returns:
        DataArray of shape (layer, head), in pixels. The coordinate `left_out` of the same shape is
        the number of excluded (image, query) pairs. The distance of a head is NaN if no query
        remains. With several batches, the attribute `leave_one_out` is a flat array of shape
        (batch, layer, head), the distance without each batch in turn.

    Raises:
        ValueError: if a layer does not return attention weights over the tokens of the grid, or if
            weights are not finite.

    Examples:
        >>> distance = analysis.attention_distance(vit, images)
        >>> distance.dims
        ('layer', 'head')
        >>> distance.units
        'pixels'
        >>> ax = analysis.plot(distance)

    See also:
        `plots.plot_attention_distance`, `mean_distance`, `attention_rows`; page
        measurements/attention/attention-distance.md.
    """
    features, batches, grid = prepare_attention(model, images, grid, layers=layers, detail=detail)
    return evaluate(
        attention_distance_statistic(features, grid),
        batches,
        features,
        description="attention distance",
    )


@statistic_of(attention_distance)
def attention_distance_statistic(
    features: Features, grid: PartialGrid = None
) -> Statistic[xr.DataArray]:
    """The `Statistic` of `attention_distance`."""
    grid = require_grid(features, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        weights = attention_weights(taps, grid)
        return {
            "rows": {layer: summed_distance(w, grid)[None] for layer, w in weights.items()},
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.DataArray:
        layers, batches = stack_layers("attention distance", totals["rows"], axis=2)
        distance, counted, without_each = mean_over_batches(batches)
        left_out = totals["examples"] * grid.num_spatial - counted
        facts = facts_of(
            features,
            totals,
            "attention-weighted Euclidean distance between token centres",
            **vars(grid),
        )
        if len(batches) > 1:
            facts["leave_one_out"] = without_each.ravel()
        return array_of(
            "attention_distance",
            distance,
            DIMS,
            ("mean attention distance", "pixels"),
            facts,
            layer=layers,
            left_out=(DIMS, left_out.astype(int), LEFT_OUT),
        )

    return Statistic(step, finish)


def prepare_attention(
    model: ModelLike,
    images: ImagesLike | None,
    grid: PartialGrid,
    kind: str = "attention",
    **options: Any,
) -> tuple[Features, tf.data.Dataset, TokenGrid]:
    """The features and batches of `prepare`, and the whole grid of the tokens that attend."""
    features, batches = prepare(model, images, kind=kind, **options)
    return features, batches, complete_grid(features, batches, grid, num_attended)


def num_attended(taps: Taps) -> int:
    """The number of tokens of the first attention weights among the taps."""
    tap, value = next(iter(_weights_of(taps).items()))
    if value.shape.rank != 4 or value.shape[2] != value.shape[3]:
        raise ValueError(
            "Expected attention weights of shape (example, head, query, key), with as many "
            f"queries as keys. Received: {tap!r} of shape {tuple(value.shape)}"
        )
    return value.shape[-1]


def attention_weights(taps: Taps, grid: TokenGrid, equal_heads: bool = True) -> Taps:
    """The attention weights among `taps`, which fit the grid: (example, head, query, key)."""
    weights = _weights_of(taps)
    tokens = grid.num_tokens
    for tap, value in weights.items():
        if value.shape.rank != 4 or tuple(value.shape[2:]) != (tokens, tokens):
            raise ValueError(
                "Expected attention weights of shape (example, head, query, key) over "
                f"{tokens} tokens ({grid}). Received: {tap!r} of shape {tuple(value.shape)}"
            )
    heads = {tap: value.shape[1] for tap, value in weights.items()}
    if equal_heads and len(set(heads.values())) != 1:
        raise ValueError(
            "Expected layers with the same number of heads: select them with layers=. "
            f"Received: {heads}"
        )
    return weights


def _weights_of(taps: Taps) -> Taps:
    """The taps whose names end in `"weights"`, or all if there are none."""
    named = {tap: value for tap, value in taps.items() if last_part(tap) == "weights"}
    return named or taps


def summed_distance(weights: tf.Tensor, grid: TokenGrid) -> tf.Tensor:
    """Summed distance of each head and number of its spatial queries that have one: (2, head)."""
    shares, counted = summed_spatial(weights[:, :, grid.prefix :], grid)
    distances = tf.constant(grid.distances(), tf.float32)
    summed = tf.einsum("hqk,qk->h", shares, distances)
    return tf.stack([summed, tf.reduce_sum(counted, axis=-1)])


def summed_spatial(weights: tf.Tensor, grid: TokenGrid) -> tuple[tf.Tensor, tf.Tensor]:
    """`spatial_shares` summed over examples: (head, query, spatial_key) and (head, query)."""
    shares, counted = spatial_shares(weights, grid)
    return tf.reduce_sum(shares, axis=0), tf.reduce_sum(counted, axis=0)


@once_per_graph
def spatial_shares(weights: tf.Tensor, grid: TokenGrid) -> tuple[tf.Tensor, tf.Tensor]:
    """Attention (..., spatial_key) renormalised over spatial keys; which queries (...) have any."""
    weights = tf.cast(weights, tf.float32)
    spatial = weights[..., grid.prefix :]
    total = tf.reduce_sum(spatial, axis=-1, keepdims=True)
    # Below the smallest normal float32 there is none, whether or not a device flushes it to zero.
    # Weights that are NaN, or zero for all keys, have NaN shares, for which results raise an error.
    elsewhere = tf.reduce_sum(weights[..., : grid.prefix], axis=-1, keepdims=True)
    none = (total < np.finfo(np.float32).tiny) & (elsewhere > 0)
    share = tf.where(none, 0.0, 1.0 / tf.where(none, 1.0, total))
    return spatial * share, tf.cast(~none[..., 0], tf.float32)


MASS = ("prefix", "itself", "others")  # the parts that the attention of a query divides into


@measurement("attention")
def attention_rows(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Attention weights, attention distance and attention by kind of key, for every query.

        distance(q) = sum_k a(q, k) |position(q) - position(k)| / sum_k a(q, k)

    Both sums are over the spatial keys k. Distances are in pixels. `attention_distance` returns
    their mean over the spatial queries of all images. Use this function only for a few images: the
    attention weights of ViT-B/16 at 224 px take 22 MB per image.

    Args:
        model: a model, or a callable that maps images to a dict of attention weights, as for
            `attention_distance`.
        images, grid: as in `vit_tf.analysis`.

    Returns:
        Dataset with three variables.

        * `attention`, of shape (example, layer, head, query, key): the attention weights.
        * `distance`, of shape (example, layer, head, query): the attention distance of the query.
          It is NaN for a prefix token, and for a query that attends to prefix tokens only.
        * `mass`, of shape (example, layer, head, query, part): the attention of the query, which
          sums to 1, divided into three parts. `"itself"` is the attention of the query to its own
          key. `"prefix"` is the attention to prefix tokens other than the query, such as CLS.
          `"others"` is the attention to spatial tokens other than the query.

    Raises:
        ValueError: for the same reasons as `attention_distance`.

    Examples:
        >>> rows = analysis.attention_rows(vit, images[:2])
        >>> rows.attention.dims
        ('example', 'layer', 'head', 'query', 'key')
        >>> rows.part.values.tolist()
        ['prefix', 'itself', 'others']

    See also:
        `plots.plot_attention_rows`, `attention_distance`; page guides/one-image.md.
    """
    features, batches, grid = prepare_attention(
        model, images, grid, layers=layers, detail=detail, keep_order=True
    )
    return evaluate(
        attention_rows_statistic(features, grid), batches, features, description="attention rows"
    )


@statistic_of(attention_rows)
def attention_rows_statistic(features: Features, grid: PartialGrid = None) -> Statistic[xr.Dataset]:
    """The `Statistic` of `attention_rows`."""
    grid = require_grid(features, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        weights = attention_weights(taps, grid)
        return {"rows": {layer: tf.cast(w, tf.float32) for layer, w in weights.items()}}

    def finish(totals: Totals) -> xr.Dataset:
        layers, attention = stack_layers("attention", totals["rows"], axis=1)
        dims, distance = ("example", "layer", "head", "query", "key"), _distances(attention, grid)
        parts, mass = (*dims[:-1], "part"), _masses(attention, grid)
        variables = {
            "attention": variable(dims, attention, "attention weight"),
            "distance": variable(dims[:-1], distance, "attention distance", "pixels"),
            "mass": variable(parts, mass, "share of the attention"),
        }
        return dataset_of(
            variables,
            provenance(features, len(attention), 1, estimator=EACH_IMAGE, **vars(grid)),
            layer=layers,
            part=list(MASS),
        )

    return Statistic(step, finish)


def _distances(attention: np.ndarray, grid: TokenGrid) -> np.ndarray:
    """Distance of each query of weights (..., query, key), NaN where it has none: (..., query)."""
    shares, has_any = (x.numpy() for x in spatial_shares(attention[..., grid.prefix :, :], grid))
    placed = np.einsum("...qk,qk->...q", shares, grid.distances())
    distance = np.full(attention.shape[:-1], np.nan)
    distance[..., grid.prefix :] = np.where(has_any > 0, placed, np.nan)
    return distance


def _masses(attention: np.ndarray, grid: TokenGrid) -> np.ndarray:
    """Parts of the mass of weights (..., query, key): shape (..., query, part), as in `MASS`."""
    itself = np.diagonal(attention, axis1=-2, axis2=-1).astype(np.float64)
    prefix = attention[..., : grid.prefix].sum(axis=-1, dtype=np.float64)
    prefix[..., : grid.prefix] -= itself[..., : grid.prefix]
    total = attention.sum(axis=-1, dtype=np.float64)
    return np.stack([prefix, itself, total - prefix - itself], axis=-1)
