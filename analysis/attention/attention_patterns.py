"""Sparse repeating patterns: whether all heads attend to the same few tokens."""

import numpy as np
import tensorflow as tf
import xarray as xr

from ..engine.results import provenance, require_finite
from ..engine.stream import Statistic, evaluate
from ..engine.tokens import require_grid
from .aligned_attention import attention_maps, grid_of_mean
from .attention import attention_weights
from .saliency import query_maps, query_names

# Distance to the uniform map that float32 rounding may make: such a map has no pattern.
FLAT = 1e-5


def attention_patterns(features, images, grid=None):
    """Whether the heads of all layers repeat one sparse pattern of attention, image by image.

    With p a map of attention over the T spatial keys and the maps i and j of two heads,

        peak       = 1 - entropy(p) / log T,  0 of a uniform map, 1 of one token
        similarity = Pearson correlation of p_i and p_j over the keys
        repetition = similarity * sqrt(peak_i * peak_j)

    averaged over pairs of different heads of two layers, then over examples. Repetition is near 1
    where all heads attend to the same few tokens, and near 0 where they are diffuse, or differ. The
    few tokens differ between images, so that a mean map does not show them (Walmer et al. 2023,
    section 4.1, appendix C.1, figures 2, 11 to 13, 17; the formulas are this package's). One small
    object that all heads attend to repeats as well: compare with `attention_saliency`.

    Args:
        features: callable from images to a dict of attention weights, as for `mean_attention`.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        grid: `TokenGrid` of the tokens, of more than one with a place; by default the features'
            own.

    Returns:
        Dataset of `repetition` and `similarity` of shape (query, layer, layer_other), where a layer
        of a single head has NaN with itself, and `peak` of shape (query, layer, head). `query` is
        `"cls"`, where there is a prefix, and `"spatial"`, the mean over the spatial queries.

    Raises:
        ValueError: for a grid of one token, and as `mean_attention`.
    """
    statistic = pattern_statistic(features, grid)
    return evaluate(statistic, images, features, description="attention patterns")


def pattern_statistic(features, grid=None):
    """The `Statistic` of `attention_patterns`."""
    grid = _require_tokens(require_grid(features, grid))

    def step(images, taps):
        weights = attention_weights(taps, grid)
        maps = tf.stack([query_maps(w, grid) for w in weights.values()], axis=2)
        summed = {name: tf.reduce_sum(x, axis=1) for name, x in pattern_terms(maps).items()}
        # Under the layers' names, for the error that names one.
        summed["peak"] = dict(zip(weights, tf.unstack(summed["peak"], axis=1), strict=True))
        return summed | {"examples": tf.shape(images)[0], "batches": 1}

    def finish(totals):
        layers, peak = list(totals["peak"]), list(totals["peak"].values())
        require_finite("attention patterns", peak, layers)
        terms = totals | {"peak": np.stack(peak, axis=1)}
        attrs = provenance(
            features,
            totals["examples"],
            totals["batches"],
            estimator="mean over examples and pairs of heads",
            **vars(grid),
        )
        return _labelled(terms, totals["examples"], query_names(grid), layers, attrs)

    return Statistic(step, finish)


def mean_patterns(mean):
    """As `attention_patterns`, of the maps averaged over examples: what repeats in all images.

    Attention to the prefix is left out of each query before the mean over queries, not after it.

    Args:
        mean: Dataset from `mean_attention`.

    Returns:
        Dataset as that of `attention_patterns`.

    Raises:
        ValueError: for a grid of one token, or a `mean` that is not of `mean_attention`.
    """
    grid = _require_tokens(grid_of_mean(mean))
    names = query_names(grid)
    maps = [attention_maps(mean, name).values.reshape(*_heads(mean), -1) for name in names]
    terms = {name: x.numpy() for name, x in pattern_terms(tf.constant(np.stack(maps))).items()}
    attrs = mean.attrs | {"estimator": "mean over pairs of heads, of the mean over examples"}
    return _labelled(terms, 1, names, mean["layer"].values, attrs)


def pattern_terms(maps):
    """Peaks, and repetition and similarity of pairs of layers.

    Args:
        maps: tensor of shape (..., layer, head, token), each map a share that sums to 1.

    Returns:
        dict of `peak` of shape (..., layer, head), `repetition` and `similarity` of shape (...,
        layer, layer); of a layer of one head with itself they are NaN.
    """
    tokens = maps.shape[-1]
    entropy = -tf.reduce_sum(tf.math.xlogy(maps, maps), axis=-1)
    peak = 1.0 - entropy / np.log(tokens)
    centred = maps - 1.0 / tokens
    unit = centred / tf.maximum(tf.norm(centred, axis=-1, keepdims=True), FLAT)
    return {
        "peak": peak,
        # Rounding may take the peak of a flat map below 0.
        "repetition": _between_layers(unit * tf.sqrt(tf.maximum(peak, 0.0))[..., None]),
        "similarity": _between_layers(unit),
    }


def _between_layers(heads):
    """Mean inner product of the vectors of different heads: (..., layer, layer).

    Args:
        heads: tensor of shape (..., layer, head, token).
    """
    count, summed = heads.shape[-2], tf.reduce_sum(heads, axis=-2)
    every = tf.matmul(summed, summed, transpose_b=True)
    with_itself = tf.linalg.diag(tf.reduce_sum(heads**2, axis=(-2, -1)))
    same = tf.eye(heads.shape[-3], dtype=heads.dtype)
    pairs = count * (count - same)
    undefined = tf.where((same > 0) & (count == 1), np.nan, 0.0)
    return (every - with_itself) / tf.maximum(pairs, 1.0) + tf.cast(undefined, heads.dtype)


def _heads(mean):
    return mean.sizes["layer"], mean.sizes["head"]


def _require_tokens(grid):
    if grid.num_spatial == 1:
        raise ValueError(f"Expected a grid of more than one token. Received: {grid}")
    return grid


def _labelled(terms, examples, queries, layers, attrs):
    """The result, from sums over examples."""
    dims = ("query", "layer")
    words = {
        "repetition": "similarity of heads, weighted by their peaks",
        "similarity": "correlation of the maps of two heads",
        "peak": "1 - entropy / log(tokens)",
    }
    last = {"repetition": "layer_other", "similarity": "layer_other", "peak": "head"}
    variables = {
        name: ((*dims, last[name]), terms[name] / examples, {"long_name": text, "units": "1"})
        for name, text in words.items()
    }
    heads = np.arange(terms["peak"].shape[-1])
    coords = {"query": queries, "layer": layers, "layer_other": layers, "head": heads}
    return xr.Dataset(variables, coords, attrs)
