"""Clustering: agreement of k-means clusters of features with classes, objects or parts."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from threadpoolctl import threadpool_limits

from vit_tf.data.labels import require_classes, require_labels
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail
from vit_tf.features.tokens import TokenGrid, as_grid

from ..engine.masks import count_out_of_range, patch_cover, require_in_range
from ..engine.measurements import labels_after_images, measurement, statistic_of
from ..engine.pooling import (
    PartialGrid,
    Pooled,
    as_tokens,
    complete_grid,
    pooled_statistic,
    require_grid,
)
from ..engine.preparation import ImagesLike, prepare
from ..engine.results import DEFAULT, ResultDataset, provenance, require_finite, variable
from ..engine.stream import Statistic, Totals, evaluate

STARTS = 10


@measurement("outputs")
@labels_after_images
def clustering(
    model: ModelLike,
    images: ImagesLike,
    num_clusters: int | None = None,
    tokens: str | None = None,
    seed: int = 0,
    starts: int = STARTS,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Agreement of k-means clusters of each layer with the labels of the images.

        purity = sum over clusters of the size of its largest class / number of examples

    The scores are purity, normalised mutual information (NMI) and the adjusted Rand index (ARI)
    (Walmer et al. 2023, sections 5.2 and D.5, figures 7, 24 and 25). NMI is the mutual information
    of clusters and labels, divided by the mean of the entropy of the clusters and the entropy of
    the labels. ARI is adjusted for chance. Purity and the chance level of NMI grow with the number
    of clusters. The chance level of purity is at least the share of the largest class, so compare
    purity with a baseline. Walmer et al. use 50 clusters for 50 classes; by default, there are also
    as many clusters as classes.

    Args:
        model, tokens: as in `vit_tf.analysis`.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        num_clusters: number of clusters; by default the number of different labels.
        seed: seed of the initial centres.
        starts: number of initializations. The result with the smallest inertia is used.

    Returns:
        Dataset with three variables of shape (layer,).

        * `purity`: the purity of the clusters.
        * `nmi`: the normalised mutual information of clusters and labels.
        * `ari`: the adjusted Rand index, which may be negative.

    Raises:
        ValueError: if `tokens` is unknown, if features are not finite, or if a layer has fewer
            distinct examples than clusters.

    Examples:
        >>> scores = analysis.clustering(vit, (images, labels))
        >>> scores.purity.dims
        ('layer',)
        >>> scores.attrs["clusters"]
        3

    See also:
        `plots.plot_clustering`, `object_clustering`, `knn_accuracy`; page
        measurements/probes/clustering.md.
    """
    features, batches = prepare(
        model, images, kind="outputs", layers=layers, detail=detail, labelled=True
    )
    return evaluate(
        clustering_statistic(features, num_clusters, tokens, seed, starts),
        batches,
        features,
        description="clustering",
    )


@statistic_of(clustering)
def clustering_statistic(
    features: Features,
    num_clusters: int | None = None,
    tokens: str | None = None,
    seed: int = 0,
    starts: int = STARTS,
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `clustering`."""
    rows = pooled_statistic(tokens, features.facts.grid)

    def finish(totals: Totals) -> xr.Dataset:
        return cluster_scores(features, rows.finish(totals), num_clusters, seed, starts)

    return Statistic(rows.step, finish, with_labels=True)


def _num_tokens(taps: Taps) -> int:
    """The number of tokens of the first layer."""
    return as_tokens(*next(iter(taps.items()))).shape[1]


@measurement("tokens")
def object_clustering(
    model: ModelLike,
    images: ImagesLike,
    num_clusters: int | None = None,
    grid: PartialGrid = None,
    seed: int = 0,
    starts: int = STARTS,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Agreement of k-means clusters of objects, or of object parts, with their labels.

    The features of an object are averaged under its mask (Walmer et al. 2023, sections 5.3 and D.5,
    figures 8, 26 and 27). The scores are the same as in `clustering`. The paper does not state the
    number of clusters. The authors' code uses 80 clusters both for objects and for parts, which is
    more than the number of classes. For comparable numbers, use `num_clusters=80` and
    `dense_features`, with at least 80 objects.

    Args:
        model: a model, or a callable that maps images to a dict of layers whose tokens lie on the
            grid.
        images: batched `tf.data.Dataset` of (images, masks, labels), or a triple of arrays. Masks
            are the same as for `masked_features`. Labels are integers of shape (example, object).
            If images differ in their number of objects, negative labels mark the padding.
        num_clusters, seed, starts: the same as for `clustering`.
        grid: `TokenGrid` of the tokens, or a pair (rows, columns); by default the grid of the
            model.

    Returns:
        Dataset as from `clustering`. The attribute `objects` is the number of objects. The
        attribute `left_out` is the number of labelled objects that are excluded because their mask
        is empty.

    Raises:
        ValueError: if tokens or masks do not lie on the grid, or if masks have values outside [0,
            1]. The errors of `clustering` apply as well.

    Examples:
        >>> masks = np.zeros((24, 2, 32, 32), bool)
        >>> masks[:, 0, :16], masks[:, 1, 16:] = True, True
        >>> objects = np.stack([labels, labels + 3], axis=1)
        >>> scores = analysis.object_clustering(vit, (images, masks, objects))
        >>> scores.attrs["objects"]
        48

    See also:
        `plots.plot_object_clustering`, `clustering`, `masked_features`; page
        measurements/probes/object-clustering.md.
    """
    features, batches = prepare(
        model, images, kind="tokens", layers=layers, detail=detail, masked=True
    )
    grid = complete_grid(features, batches, grid, _num_tokens)
    return evaluate(
        object_clustering_statistic(features, num_clusters, grid, seed, starts),
        batches,
        features,
        description="clustering of objects",
    )


@statistic_of(object_clustering)
def object_clustering_statistic(
    features: Features,
    num_clusters: int | None = None,
    grid: PartialGrid = None,
    seed: int = 0,
    starts: int = STARTS,
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `object_clustering`."""
    grid = require_grid(features, grid)

    def step(images: tf.Tensor, masks: tf.Tensor, labels: tf.Tensor, taps: Taps) -> dict[str, Any]:
        means = {tap: masked_features(as_tokens(tap, x), masks, grid) for tap, x in taps.items()}
        is_labelled = labels >= 0
        has_mask = tf.reduce_any(tf.cast(masks, tf.float32) > 0, axis=(2, 3))
        counted = tf.logical_and(is_labelled, has_mask)
        means = {tap: tf.cast(tf.boolean_mask(x, counted), tf.float64) for tap, x in means.items()}
        return {
            "rows": {"x": means, "labels": tf.boolean_mask(labels, counted)},
            "left_out": tf.reduce_sum(tf.cast(tf.logical_and(is_labelled, ~has_mask), tf.int32)),
            "out_of_range": count_out_of_range(masks),
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.Dataset:
        require_in_range(totals["out_of_range"])
        x, labels = totals["rows"]["x"], totals["rows"]["labels"]
        require_finite("features of objects", list(x.values()), x)
        pooled = Pooled(x, labels, "under masks", int(totals["batches"]))
        result = cluster_scores(features, pooled, num_clusters, seed, starts)
        return result.assign_attrs(
            provenance(features, totals["examples"], totals["batches"], objects=len(labels))
            | {"left_out": int(totals["left_out"])}
        )

    return Statistic(step, finish, with_labels=True)


def masked_features(
    tokens: tf.Tensor, masks: tf.Tensor, grid: TokenGrid | tuple[int, int]
) -> tf.Tensor:
    """Mean of the tokens under each mask, weighted by the share of each patch that the mask covers.

    mean(m) = sum_t cover(m, t) x(t) / sum_t cover(m, t)

    Args:
        tokens: tensor of shape (example, token, channel). The tokens lie on the grid.
        masks: tensor of shape (example, object, row, column), at the size of the images or of the
            token grid. Values are booleans, or numbers in [0, 1]: the share of each pixel or patch
            that belongs to the object.
        grid: `TokenGrid` of the tokens, or a pair (rows, columns).

    Returns:
        Tensor of shape (example, object, channel). Features are NaN for an empty mask.

    Raises:
        ValueError: if `tokens` or `masks` does not have the shape stated above.

    Examples:
        >>> tokens = np.ones((1, 4, 8), np.float32)
        >>> masks = np.ones((1, 3, 2, 2), bool)
        >>> analysis.masked_features(tf.constant(tokens), tf.constant(masks), (2, 2)).shape
        TensorShape([1, 3, 8])

    See also:
        `object_clustering`, `dense_features`; page measurements/probes/object-clustering.md.
    """
    if len(tokens.shape) != 3 or len(masks.shape) != 4:
        raise ValueError(
            "Expected tokens of shape (example, token, channel) and masks of shape (example, "
            f"object, row, column). Received: shapes {tokens.shape} and {masks.shape}"
        )
    grid = as_grid(grid, tokens.shape[1], masks.shape[2:4])
    if tokens.shape[1] != grid.num_tokens:
        raise ValueError(
            f"Expected the {grid.num_tokens} tokens of {grid}. "
            f"Received: tokens of shape {tokens.shape}"
        )
    # The mean of the tokens, weighted by the share of each patch that the mask covers.
    flat = tf.reshape(masks, (-1, *masks.shape[2:]))
    shape = (*tf.unstack(tf.shape(masks)[:2]), grid.num_spatial)
    cover = tf.reshape(patch_cover(flat, grid), shape)
    sums = tf.matmul(cover, grid.spatial(tokens))
    return sums / tf.reduce_sum(cover, axis=-1, keepdims=True)


def cluster_scores(
    features: Any,
    pooled: Pooled,
    num_clusters: int | None = None,
    seed: int = 0,
    starts: int = STARTS,
) -> xr.Dataset:
    """Computes the result of `clustering` from features that were pooled before.

    Args:
        features: the model or function that computed the features. The result stores its name.
        pooled: `engine.Pooled`, with `layers`, a dict from layer name to array of shape (example,
            channel), and `labels`, of shape (example,).
        num_clusters, seed, starts: the same as for `clustering`.

    Returns:
        Dataset as from `clustering`.

    Raises:
        ValueError: if a layer has fewer distinct examples than clusters.

    Examples:
        >>> x = np.random.default_rng(0).normal(size=(24, 8))
        >>> pooled = analysis.engine.Pooled({"penultimate": x}, labels, None, 1)
        >>> analysis.cluster_scores(vit, pooled).layer.values.tolist()
        ['penultimate']

    See also:
        `clustering`, `engine.Pooled`; page measurements/probes/clustering.md.
    """
    require_labels(pooled.labels)
    num_classes = len(np.unique(pooled.labels))
    require_classes(num_classes)
    num_clusters = num_clusters or num_classes
    for layer, x in pooled.layers.items():
        if (num_distinct := len(np.unique(x, axis=0))) < num_clusters:
            raise ValueError(
                f"Expected at least {num_clusters} distinct examples for as many clusters. "
                f"Received: {num_distinct} at {layer}"
            )

    def fit(x: np.ndarray) -> np.ndarray:
        n_init: Any = starts  # a number, or "auto", as scikit-learn's types say
        return KMeans(num_clusters, n_init=n_init, random_state=seed).fit_predict(x.astype(float))

    # Each core clusters whole layers, which are too small to be divided among cores.
    with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count()) as pool:
        clusters = list(pool.map(fit, pooled.layers.values()))
    scores = {
        "purity": (purity, "cluster purity"),
        "nmi": (normalized_mutual_info_score, "normalised mutual information"),
        "ari": (adjusted_rand_score, "adjusted Rand index"),
    }
    variables = {
        name: variable(
            "layer", [score(pooled.labels, of_layer) for of_layer in clusters], long_name
        )
        for name, (score, long_name) in scores.items()
    }
    return ResultDataset(
        variables,
        {"layer": list(pooled.layers)},
        provenance(
            features,
            len(pooled.labels),
            pooled.batches,
            clusters=num_clusters,
            classes=num_classes,
            seed=seed,
            starts=starts,
            estimator="k-means, the tightest of several starts",
            tokens=pooled.tokens or DEFAULT,
        ),
    )


def purity(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Share of the examples that are of the largest class of their cluster."""
    return contingency_matrix(labels, clusters).max(axis=0).sum() / len(labels)
