"""The images that a layer represents most similarly to a query image, as pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.data.any_images import is_one_image
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement
from ..engine.pictures import THUMBNAIL, as_pictures, first_ranked, merge_ranked, picture_variable
from ..engine.pooling import pool
from ..engine.preparation import ImagesLike, prepare_sets
from ..engine.results import (
    DEFAULT,
    dataset_of,
    provenance,
    raise_without_directions,
    require_finite,
    variable,
)
from ..engine.stream import Statistic, Totals, evaluate
from ..engine.traces import reusable
from .knn import directions_of, normalize_rows


@measurement("outputs", arguments="{model}, {images}, query")
def neighbours(
    model: ModelLike,
    images: ImagesLike,
    query: ImagesLike,
    k: int = 6,
    tokens: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """The k nearest images to each query image, in every layer, with their pictures.

        similarity(q, x) = cos(f(q), f(x))

    Here, f are pooled features. The search is exact, in float64, in one pass over the images. If a
    query is among the images, it is its own nearest neighbour. `knn_accuracy` measures whether
    neighbours belong to the same class, and `retrieval` measures how well images are ranked.

    Args:
        model, images, tokens: as in `vit_tf.analysis`.
        query: one image or several, in any form that `images` may have. If `images` is one image
            and `query` is not, they are exchanged, as other libraries take the query first.
        k: number of neighbours of each query.

    Returns:
        Dataset with four variables. The nearest image has rank 0. If images are equally near, the
        earlier image comes first. Pictures are 8-bit RGB with at most 112 pixels a side.

        * `similarity`, of shape (layer, query, rank): the cosine similarity of the neighbour to the
          query.
        * `position`, of shape (layer, query, rank): the index of the neighbour in `images`.
        * `picture`, of shape (layer, query, rank, pixel_row, pixel_column, colour): the neighbour.
        * `query_picture`, of shape (query, pixel_row, pixel_column, colour): the query image.

    Raises:
        ValueError: if `tokens` is unknown, if `k` is below 1 or above the number of images, or if
            features are zero or not finite.

    Examples:
        >>> nearest = analysis.neighbours(vit, images, images[3], k=1)
        >>> nearest.position[-1].values.tolist()  # of the last layer
        [[3]]
        >>> ax = analysis.plot(nearest)

    See also:
        `plots.plot_neighbours`, `knn_accuracy`, `retrieval`, `projection`; page
        measurements/probes/neighbours.md.
    """
    if is_one_image(images) and not is_one_image(query):
        images, query = query, images
    sets = {"images": images, "query": query}
    features, (images, query) = prepare_sets(
        model, sets, kind="outputs", layers=layers, detail=detail, keep_order=True
    )
    if k < 1:
        raise ValueError(f"Expected k to be at least 1. Received: k={k}")
    asked = evaluate(_query_statistic(features, tokens), query, features, description="queries")
    require_finite("neighbours", list(asked["x"].values()), list(asked["x"]))

    def finish(totals: Totals) -> xr.Dataset:
        counts = totals["without_direction"].items()
        raise_without_directions([layer for layer, count in counts if count])
        similarity = np.stack([values.T for values in totals["rows"].values()])
        num_images = similarity.shape[-1]
        if k > num_images:
            raise ValueError(f"Expected k of at most {num_images} images. Received: k={k}")
        # The k nearest images of each query, the most similar first.
        order = np.argsort(-similarity, axis=-1, kind="stable")[..., :k]
        dims = ("layer", "query", "rank")
        pictures = np.stack([first["pictures"] for first in totals["merged"].values()])
        variables = {
            "similarity": variable(
                dims, np.take_along_axis(similarity, order, axis=-1), "cosine similarity"
            ),
            "position": variable(dims, order, "number of the image"),
            "picture": picture_variable(dims, pictures, "image"),
            "query_picture": picture_variable(("query",), asked["pictures"], "query image"),
        }
        facts = provenance(
            features,
            num_images,
            int(totals["batches"]),
            estimator="exact nearest neighbours by cosine similarity, float64",
            tokens=tokens or DEFAULT,
        )
        return dataset_of(variables, facts, layer=list(totals["rows"]))

    statistic = replace(
        _neighbour_statistic(features, tokens, k), finish=finish, state=directions_of(asked["x"])
    )
    return evaluate(statistic, images, features, description="neighbours")


@reusable
def _query_statistic(features: Features, tokens: str | None) -> Statistic[dict[str, Any]]:
    """`Statistic` over query images with the pooled features of each, and their pictures."""
    grid = features.facts.grid

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        pictures = as_pictures(images, features, THUMBNAIL)
        return {"rows": {"x": pool(taps, tokens, grid), "pictures": pictures}}

    return Statistic(step, lambda totals: totals["rows"])


@reusable
def _neighbour_statistic(features: Features, tokens: str | None, k: int) -> Statistic[Any]:
    """`Statistic` over images; its state are the directions of the queries in each layer."""
    grid = features.facts.grid

    def step(directions_of_queries: Taps, images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        pictures = as_pictures(images, features, THUMBNAIL)
        similarities, ranked, without_direction = {}, {}, {}
        for layer, x in pool(taps, tokens, grid).items():
            directions, without_direction[layer] = normalize_rows(x)
            similarity = tf.matmul(directions_of_queries[layer], directions, transpose_b=True)
            similarities[layer] = tf.transpose(similarity)
            ranked[layer] = first_ranked(similarity, pictures, k)
        return {
            "rows": similarities,
            "merged": ranked,
            "without_direction": without_direction,
            "batches": 1,
        }

    return Statistic(step, lambda totals: totals, merge=merge_ranked)
