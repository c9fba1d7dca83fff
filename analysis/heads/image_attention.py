"""Attention of every head over single images: what `analysis.attention` returns."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import xarray as xr

from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pictures import as_pictures, picture_variable
from ..engine.pooling import PartialGrid, require_grid
from ..engine.preparation import ImagesLike
from ..engine.results import (
    CLS,
    EACH_IMAGE,
    SPATIAL,
    dataset_of,
    provenance,
    query_position,
    stack_layers,
    variable,
)
from ..engine.stream import Statistic, Totals, evaluate
from .attention_distance import attention_weights, prepare_attention


@measurement("attention")
def attention(
    model: ModelLike,
    images: ImagesLike | None = None,
    query: str | int | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Attention maps of every head of every layer for single images, together with these images.

    An attention map holds the attention weights from one query to the tokens on the grid. Use this
    function only for a few images. For the mean over many images, use `mean_attention`; for the
    attention of all queries, `attention_rows`.

    Args:
        model: a model, or a callable that maps images to a dict of attention weights, as for
            `attention_distance`.
        images, grid: as in `vit_tf.analysis`.
        query: the token that attends. `"cls"` is the first token, `"spatial"` is the mean over the
            spatial tokens, and an integer is the position of a token in the sequence, prefix tokens
            included. The default is `"cls"` if there are prefix tokens, and `"spatial"` otherwise.

    Returns:
        Dataset with two variables.

        * `attention`, of shape (example, layer, head, row, column): the attention maps. Each map
          sums to 1 minus the attention to prefix tokens.
        * `picture`, of shape (example, pixel_row, pixel_column, colour): the images as the model
          receives them, as 8-bit RGB.

    Raises:
        ValueError: if the model has no attention weights, or if there is no token `query`.

    Examples:
        >>> maps = analysis.attention(vit, images[:1])
        >>> maps.attention.dims
        ('example', 'layer', 'head', 'row', 'column')
        >>> ax = analysis.plot(maps)

    See also:
        `plots.plot_attention`, `attention_rows`, `attention_rollout`, `explore`; page
        measurements/attention/attention.md.
    """
    features, batches, grid = prepare_attention(
        model, images, grid, layers=layers, detail=detail, keep_order=True
    )
    return evaluate(
        attention_statistic(features, query, grid), batches, features, description="attention"
    )


@statistic_of(attention)
def attention_statistic(
    features: Features, query: str | int | None = None, grid: PartialGrid = None
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `attention`."""
    grid = require_grid(features, grid)
    query = query if query is not None else CLS if grid.prefix else SPATIAL
    is_mean = query == SPATIAL
    index = None if is_mean else query_position(query, grid.prefix, grid.num_tokens)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        weights = {
            layer: tf.cast(w[..., grid.prefix :], tf.float32)
            for layer, w in attention_weights(taps, grid).items()
        }
        maps = {
            layer: tf.reduce_mean(w[:, :, grid.prefix :], axis=2) if is_mean else w[:, :, index]
            for layer, w in weights.items()
        }
        return {"rows": {"maps": maps, "pictures": as_pictures(images, features)}}

    def finish(totals: Totals) -> xr.Dataset:
        layers, maps = stack_layers("attention", totals["rows"]["maps"], axis=1)
        pictures = totals["rows"]["pictures"]
        dims = ("example", "layer", "head", "row", "column")
        variables = {
            "attention": variable(dims, grid.as_map(maps), "attention weight"),
            "picture": picture_variable(dims[:1], pictures, "image as the model sees it"),
        }
        return dataset_of(
            variables,
            provenance(features, len(maps), 1, estimator=EACH_IMAGE, query=query, **vars(grid)),
            layer=layers,
        )

    return Statistic(step, finish)
