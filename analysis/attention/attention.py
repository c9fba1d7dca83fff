"""Attention distance: how far heads look."""

import numpy as np
import tensorflow as tf
import xarray as xr

from ..engine.results import provenance, require_finite
from ..engine.stream import Statistic, evaluate
from ..engine.tokens import require_grid


def attention_distance(features, images, grid):
    """Mean distance in pixels between a query and the keys that each head attends to.

        distance = mean over examples and queries q of sum_k a(q, k) |position(q) - position(k)|

    with the Euclidean distance between token centres. Prefix tokens have no place: they are left
    out as queries and keys, and the attention left over the other keys is renormalised (Raghu et
    al. 2021, section 5, figure 3).

    Args:
        features: callable from images to a dict of attention weights of shape (example, head,
            query, key). Where some names end in `"weights"`, as in the tap grammar, the others
            are left out.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        grid: `TokenGrid` of the tokens.

    Returns:
        DataArray of shape (layer, head), in pixels.

    Raises:
        ValueError: for taps that are not attention weights over the grid's tokens, or not finite.
    """
    statistic = attention_statistic(features, grid)
    return evaluate(statistic, images, features, description="attention distance")


def attention_statistic(features, grid=None):
    """The `Statistic` of `attention_distance`; by default on the features' own grid."""
    grid = require_grid(features, grid)

    def step(images, taps):
        weights = attention_weights(taps, grid)
        return {
            "distance": {layer: summed_distance(w, grid) for layer, w in weights.items()},
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals):
        layers = list(totals["distance"])
        distance = np.stack(list(totals["distance"].values())) / totals["examples"]
        require_finite("attention distance", distance, layers)
        return xr.DataArray(
            distance,
            dims=("layer", "head"),
            coords={"layer": layers, "head": range(distance.shape[1])},
            name="attention_distance",
            attrs=provenance(
                features,
                totals["examples"],
                totals["batches"],
                long_name="mean attention distance",
                units="pixels",
                estimator="attention-weighted Euclidean distance between token centres",
                **vars(grid),
            ),
        )

    return Statistic(step, finish)


def attention_weights(taps, grid):
    """The attention weights among `taps`: dict from layer to (example, head, query, key).

    Raises:
        ValueError: if there are none, or one does not fit the grid.
    """
    named = {tap: value for tap, value in taps.items() if tap.rpartition("/")[2] == "weights"}
    weights = named or taps
    tokens = grid.num_tokens
    for tap, value in weights.items():
        if value.shape.rank != 4 or tuple(value.shape[2:]) != (tokens, tokens):
            raise ValueError(
                "Expected attention weights of shape (example, head, query, key) over "
                f"{tokens} tokens ({grid}). Received: {tap!r} of shape {tuple(value.shape)}"
            )
    heads = {tap: value.shape[1] for tap, value in weights.items()}
    if len(set(heads.values())) != 1:
        raise ValueError(f"Expected layers with equally many heads. Received: {heads}")
    return weights


def summed_distance(weights, grid):
    """Distance of each head, averaged over queries and summed over examples: shape (head,)."""
    distances = tf.constant(grid.distances() / grid.num_spatial, tf.float32)
    return tf.einsum("hqk,qk->h", summed_spatial(weights, grid)[:, grid.prefix :], distances)


def summed_spatial(weights, grid):
    """Attention renormalised over the spatial keys, summed over examples: (head, query, key)."""
    spatial = tf.cast(weights[..., grid.prefix :], tf.float32)
    share = 1.0 / tf.reduce_sum(spatial, axis=-1, keepdims=True)
    return tf.reduce_sum(spatial * share, axis=0)
