"""Sparse repeating patterns: whether all heads attend to the same few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import PartialGrid, require_grid
from ..engine.preparation import ImagesLike
from ..engine.results import dataset_of, facts_of, mean_of, require_finite, variable
from ..engine.stream import Statistic, Totals, evaluate
from .attention_distance import LEFT_OUT, attention_weights, prepare_attention
from .mean_attention import attention_maps, grid_of_mean, require_tokens
from .saliency import has_attention, query_maps, query_names

# Largest distance to the uniform map by rounding in float32: such a map has no pattern.
FLAT = 1e-5


@measurement("attention")
def attention_patterns(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Measures how much all attention heads attend to the same few tokens of an image.

    Let p be the attention map of a head over the T spatial keys, and p_i and p_j the maps of two
    heads.

        peak       = 1 - entropy(p) / log T,  0 for a uniform map, 1 for one token
        similarity = Pearson correlation of p_i and p_j over the keys
        repetition = similarity * sqrt(peak_i * peak_j)

    For two layers, the repetition is averaged over all pairs of a head of one layer and a head of
    the other layer, and then over examples. A head is never paired with itself. The result is near
    1 if all heads attend to the same few tokens, and near 0 if their attention is diffuse or
    differs between heads. These few tokens differ between images, so a mean map does not show them
    (Walmer et al. 2023, section 4.1, appendix C.1, figures 2, 11 to 13, 17; the formulas are this
    package's).

    If the query of a head attends to prefix tokens only (its attention to the spatial tokens is 0
    in float32), the head has no map for this image. The means exclude this image for the head, and
    `left_out` counts such images. Repetition is also high if all heads attend to one small object.
    To detect such an object, compare the result with `attention_saliency`.

    Args:
        model: a model, or a callable that maps images to a dict of attention weights, as for
            `mean_attention`.
        images: as in `vit_tf.analysis`.
        grid: `TokenGrid` with more than one spatial token, or a pair (rows, columns); by default
            the grid of the features.

    Returns:
        Dataset with five variables. The dim `query` lists `"spatial"` (maps averaged over the
        spatial queries) and, if there are prefix tokens, `"cls"`.

        * `repetition` and `similarity`, of shape (query, layer, layer_other): the mean repetition
          and similarity of two layers. For a layer with a single head, the value of the layer with
          itself is NaN.
        * `peak`, of shape (query, layer, head): the mean peak of a head.
        * `left_out`, of shape (query, layer, head): the number of images that the means exclude. If
          no image remains, the other variables are NaN.
        * `leave_one_out`, of shape (batch, query, layer, layer_other): the repetition computed
          without each batch of images in turn.

    Raises:
        ValueError: if the grid has a single token, or for the same reasons as `mean_attention`.

    Examples:
        >>> patterns = analysis.attention_patterns(vit, images)
        >>> patterns.repetition.dims
        ('query', 'layer', 'layer_other')

    See also:
        `plots.plot_attention_patterns`, `mean_patterns`; page
        measurements/attention/attention-patterns.md.
    """
    features, batches, grid = prepare_attention(model, images, grid, layers=layers, detail=detail)
    return evaluate(
        attention_patterns_statistic(features, grid),
        batches,
        features,
        description="attention patterns",
    )


@statistic_of(attention_patterns)
def attention_patterns_statistic(
    features: Features, grid: PartialGrid = None
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `attention_patterns`."""
    grid = require_grid(features, grid)
    require_tokens(grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        weights = attention_weights(taps, grid)
        maps = tf.stack([query_maps(w, grid) for w in weights.values()], axis=2)
        summed = {name: tf.reduce_sum(x, axis=1) for name, x in pattern_terms(maps).items()}
        # Under the layers' names, for the error that names one.
        peak = dict(zip(weights, tf.unstack(summed["peak"], axis=1), strict=True))
        batch = {name: summed[name][None] for name in ("repetition", "paired")}
        counts = {"examples": tf.shape(images)[0], "batches": 1}
        return summed | {"peak": peak, "rows": batch} | counts

    def finish(totals: Totals) -> xr.Dataset:
        layers, peak = list(totals["peak"]), list(totals["peak"].values())
        require_finite("attention patterns", peak, layers)
        terms = totals | {"peak": np.stack(peak, axis=1)}
        result = _patterns_of(
            terms,
            totals["examples"],
            query_names(grid),
            layers,
            facts_of(features, totals, "mean over examples and pairs of heads", **vars(grid)),
        )
        rest = (
            totals[name] - totals["rows"][name].astype(np.float64)
            for name in ("repetition", "paired")
        )
        return result.assign(
            leave_one_out=variable(
                ("batch", *result["repetition"].dims),
                mean_of(*rest),
                "repetition without each batch of images",
            )
        )

    return Statistic(step, finish)


def mean_patterns(mean: xr.Dataset) -> xr.Dataset:
    """Applies `attention_patterns` to mean attention maps, to find the pattern that all images
    share.

    Prefix keys are excluded for each query, before the attention is averaged over queries.

    Args:
        mean: Dataset from `mean_attention`.

    Returns:
        Dataset as from `attention_patterns`, without `leave_one_out`. The mean map counts as the
        only example.

    Raises:
        ValueError: if the grid has a single token, or if `mean` is not from `mean_attention`.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> analysis.mean_patterns(mean).peak.dims
        ('query', 'layer', 'head')

    See also:
        `plots.plot_mean_patterns`, `attention_patterns`, `mean_attention`; page
        measurements/attention/attention-patterns.md.
    """
    grid = require_tokens(grid_of_mean(mean))
    names = query_names(grid)
    heads = mean.sizes["layer"], mean.sizes["head"]
    maps = [attention_maps(mean, query=name).values.reshape(*heads, -1) for name in names]
    maps = tf.constant(np.nan_to_num(np.stack(maps)))
    terms = {name: x.numpy() for name, x in pattern_terms(maps).items()}
    return _patterns_of(
        terms,
        1,
        names,
        mean["layer"].values.tolist(),
        mean.attrs | {"estimator": "mean over pairs of heads, of the mean over examples"},
    )


def pattern_terms(maps: tf.Tensor) -> dict[str, tf.Tensor]:
    """Peaks of maps (..., layer, head, token), repetition and similarity of layers, and counts."""
    tokens, has_map = maps.shape[-1], tf.cast(has_attention(maps), maps.dtype)
    entropy = -tf.reduce_sum(tf.math.xlogy(maps, maps), axis=-1)
    peak = has_map * (1.0 - entropy / np.log(tokens))
    centred = has_map[..., None] * (maps - 1.0 / tokens)
    unit = centred / tf.maximum(tf.norm(centred, axis=-1, keepdims=True), FLAT)
    pairs = _pairs_of_layers(has_map[..., None])
    mean = tf.math.reciprocal_no_nan(pairs)
    # Rounding may take the peak of a flat map below 0.
    weighted = unit * tf.sqrt(tf.maximum(peak, 0.0))[..., None]
    return {
        "peak": peak,
        "mapped": has_map,  # ones where there is a map
        "repetition": _pairs_of_layers(weighted) * mean,
        "similarity": _pairs_of_layers(unit) * mean,
        # Ones where two layers have a pair of different heads.
        "paired": tf.cast(pairs > 0, maps.dtype),
    }


def _pairs_of_layers(heads: tf.Tensor) -> tf.Tensor:
    """Summed inner products of vectors (..., layer, head, token) of different heads."""
    summed = tf.reduce_sum(heads, axis=-2)
    every = tf.matmul(summed, summed, transpose_b=True)
    return every - tf.linalg.diag(tf.reduce_sum(heads**2, axis=(-2, -1)))


def _patterns_of(
    terms: dict[str, np.ndarray],
    examples: int,
    queries: Sequence[str],
    layers: Sequence[str],
    attrs: dict[str, Any],
) -> xr.Dataset:
    """The result, from sums over examples."""
    dims = ("query", "layer")
    table = {
        "repetition": ("layer_other", "paired", "similarity of heads, weighted by their peaks"),
        "similarity": ("layer_other", "paired", "correlation of the maps of two heads"),
        "peak": ("head", "mapped", "1 - entropy / log(tokens)"),
    }
    variables = {
        name: variable((*dims, last), mean_of(terms[name], terms[count]), words)
        for name, (last, count, words) in table.items()
    }
    left_out = (examples - terms["mapped"]).astype(int)
    variables["left_out"] = ((*dims, "head"), left_out, LEFT_OUT)
    return dataset_of(variables, attrs, query=queries, layer=layers, layer_other=layers)
