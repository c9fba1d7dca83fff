"""Retrieval: mean average precision of images ranked by similarity to a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.names import format_list
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps, pick_taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import Pooled, pool, pooled_statistic_of
from ..engine.preparation import ImagesLike, prepare_sets
from ..engine.results import (
    DEFAULT,
    ResultDataset,
    as_counts,
    provenance,
    require_directions,
    variable,
)
from ..engine.stream import Statistic, Totals, evaluate
from ..engine.traces import reusable
from .knn import ROUNDING, directions_of, normalize_rows

# Which images of a query are positive, and which are ignored (Radenovic et al. 2018, section 3.3);
# all others are negative.
DIFFICULTIES = {
    "easy": (("easy",), ("junk", "hard")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("junk", "easy")),
}
TOPS = (1, 5, 10)


# Positions of the easy, hard and junk images of each query in the database.
Truth: TypeAlias = Sequence[Mapping[str, Any]]


def positive_ranks(ranking: np.ndarray, positive: np.ndarray, junk: np.ndarray) -> np.ndarray:
    """Ascending ranks of the positive images of a query, from 0, in a ranking without the junk."""
    is_positive = np.isin(ranking, positive)
    dropped = np.isin(ranking, junk)
    positions = np.flatnonzero(is_positive)
    return positions - np.cumsum(dropped)[positions] + dropped[positions]


def average_precision(ranks: np.ndarray, count: int) -> float:
    """Average precision: area under the precision-recall curve, by the trapezoidal rule.

        AP = sum_j (j / r_j + (j + 1) / (r_j + 1)) / (2 count),    j = 0, 1, ...

    Here, r_j is the rank of the positive image j in the ranking. Both j and r_j are counted from 0.
    If r_j is 0, the first term is 1, as in the evaluation code of Radenovic et al. 2018.

    Args:
        ranks: ranks of the positive images as an int array of shape (positive,), ascending and
            counted from 0.
        count: number of all positive images, including any that are not in the ranking.

    Returns:
        The average precision, a number from 0 to 1. It is NaN if `count` is 0.

    Examples:
        >>> ranks = np.array([0, 2])
        >>> round(float(analysis.average_precision(ranks, count=2)), 3)
        0.792

    See also:
        `retrieval`; page measurements/probes/retrieval.md.
    """
    if not count:
        return np.nan
    ranks, number = np.asarray(ranks, float), np.arange(len(ranks))
    before = np.where(ranks > 0, number / np.maximum(ranks, 1), 1)
    return float((before + (number + 1) / (ranks + 1)).sum() / (2 * count))


def precision_at(ranks: Sequence[int] | np.ndarray, k: int) -> float:
    """Share of positive images among the first k, or up to the last positive if less."""
    if not len(ranks):
        return np.nan
    first = min(max(ranks) + 1, k)
    return float((np.asarray(ranks) < first).sum() / first)


@measurement("outputs", arguments="{model}, queries, {images}, truth")
def retrieval(
    model: ModelLike,
    queries: ImagesLike,
    database: ImagesLike,
    truth: Sequence[Mapping[str, np.ndarray]],
    tokens: str | None = None,
    k: Sequence[int] = TOPS,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Precision of image retrieval by feature similarity to a query, in every layer.

    Images are ranked by the cosine similarity of their features, pooled over tokens as `tokens`
    states. The scores are mean average precision and mean precision at k, for the three
    difficulties (easy, medium and hard) of revisited Oxford and Paris (Radenovic et al. 2018;
    Walmer et al. 2023, section 6.1, figures 9 and 29). Walmer et al. use the `"cls"` token and
    queries that are not cropped; `vit_tf.data.load_revisited` loads such queries with
    `crop_queries=False`.

    The ranking is exact, in float64, with one pass over the queries and one pass over the database.
    The measurement stores the features of the queries and the similarity of each image to each
    query, of shape (layer, image, query). For 5,000 images and 70 queries, the similarities take
    2.8 MB per layer. If images are equally similar, the earlier image comes first.

    Args:
        model, tokens: as in `vit_tf.analysis`.
        queries: query images with labels, as a batched `tf.data.Dataset` of (images, labels) or a
            pair of arrays. The labels are integers and are ignored.
        database: the images that are ranked, in the same form as `queries` or without labels.
        truth: list with a dict for each query, in the order of the queries, as from
            `vit_tf.data.load_revisited`. Its entries `easy`, `hard` and `junk` are int arrays of
            positions in the database.
        k: numbers of top-ranked images at which the precision is computed.

    Returns:
        Dataset with three variables and a coordinate. The means for a difficulty exclude queries
        without positive images of this difficulty. They are NaN if no query remains.

        * `score`, of shape (layer, difficulty): the mean average precision over queries.
        * `precision`, of shape (layer, difficulty, k): the mean precision at k over queries.
        * `average_precision`, of shape (layer, difficulty, query): the average precision of each
          query. It is NaN for an excluded query.
        * `asked`, a coordinate of shape (difficulty,): the number of queries in the means.

    Raises:
        ValueError: if `tokens` is unknown, if `k` is below 1, or if `truth` does not fit the
            queries and the database.
        ValueError: if features are zero or not finite, or if all images of a layer are equally
            similar to every query.

    Examples:
        >>> truth = [{"easy": np.arange(4), "hard": np.arange(4, 6), "junk": np.arange(0)}] * 2
        >>> queries, database = (images[:2], np.arange(2)), images[2:]
        >>> precision = analysis.retrieval(vit, queries, database, truth)
        >>> precision.score.dims
        ('layer', 'difficulty')
        >>> ax = analysis.plot(precision)

    See also:
        `plots.plot_retrieval`, `average_precision`, `knn_accuracy`; page
        measurements/probes/retrieval.md.
    """
    as_counts(k)
    features, (queries, database) = prepare_sets(
        model,
        {"queries": queries, "database": database},
        kind="outputs",
        layers=layers,
        detail=detail,
        keep_order=True,
    )
    pooled = pooled_statistic_of(features, tokens)
    asked = evaluate(pooled, queries, features, description="queries")
    return evaluate(
        retrieval_statistic(features, asked, truth, k),
        database,
        features,
        description="retrieval: database",
    )


@statistic_of(retrieval)
def retrieval_statistic(
    features: Features, asked: Pooled, truth: Truth, k: Sequence[int] = TOPS
) -> Statistic[xr.Dataset]:
    """`Statistic` over the images of a database with the result of `retrieval`.

    Args:
        asked: the `Pooled` features of the queries, from a pass with `pooled_statistic`.
        features, truth, k: as for `retrieval`.
    """
    k, count = as_counts(k), len(next(iter(asked.layers.values())))
    if len(truth) != count:
        raise ValueError(
            f"Expected truth to have a dict for each of {count} queries. Received: {len(truth)}"
        )
    directions = directions_of(asked.layers)

    def finish(totals: Totals) -> xr.Dataset:
        similarity = totals["rows"]
        require_directions({layer: (~np.isfinite(x)).sum() for layer, x in similarity.items()})
        tied = [layer for layer, x in similarity.items() if (np.ptp(x, axis=0) <= ROUNDING).all()]
        if tied:
            raise ValueError(
                "The features rank no image: all images are equally similar to every query at "
                f"{format_list(tied)}"
            )
        examples = len(next(iter(similarity.values())))
        _require_positions(truth, examples)
        scores = np.stack([_scores(values, truth, k) for values in similarity.values()])
        asked_counts = np.isfinite(scores[0, 0]).sum(axis=-1)
        # Means over the queries that have positive images; 0 / 0 where none has.
        means = np.nansum(scores, axis=-1) / np.where(asked_counts > 0, asked_counts, np.nan)
        dims = ("layer", "difficulty")
        precision, each = np.moveaxis(means[:, 1:], 1, 2), scores[:, 0]
        variables = {
            "score": variable(dims, means[:, 0], "mean average precision"),
            "precision": variable((*dims, "k"), precision, "mean precision at k"),
            "average_precision": variable((*dims, "query"), each, "average precision of a query"),
        }
        return ResultDataset(
            variables,
            {
                "layer": list(similarity),
                "difficulty": list(DIFFICULTIES),
                "k": list(k),
                "asked": ("difficulty", asked_counts),
            },
            provenance(
                features,
                examples,
                int(totals["batches"]),
                estimator="exact ranking by cosine similarity, float64",
                queries=count,
                tokens=asked.tokens or DEFAULT,
            ),
        )

    return replace(_similarity_statistic(features, asked.tokens), finish=finish, state=directions)


@reusable
def _similarity_statistic(features: Features, tokens: str | None) -> Statistic[Any]:
    """`Statistic` over the images of a database; its state are the directions of the queries."""
    grid = features.facts.grid

    def step(directions: Taps, images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        similarity = {
            layer: tf.matmul(normalize_rows(x)[0], directions[layer], transpose_b=True)
            for layer, x in pool(pick_taps(taps, directions), tokens, grid).items()
        }
        return {"rows": similarity, "batches": 1}

    return Statistic(step, lambda totals: totals)


def _scores(similarity: np.ndarray, truth: Truth, k: Sequence[int]) -> np.ndarray:
    """AP and precision at each k, from similarity (image, query): (1 + k, difficulty, query)."""
    scores = np.empty((1 + len(k), len(DIFFICULTIES), len(truth)))
    for query, images in enumerate(truth):
        ranking = np.argsort(-similarity[:, query], kind="stable")
        for number, kinds in enumerate(DIFFICULTIES.values()):
            positive, junk = (
                np.concatenate([np.asarray(images[kind], int) for kind in part]) for part in kinds
            )
            ranks = positive_ranks(ranking, positive, junk)
            area = average_precision(ranks, len(positive))
            scores[:, number, query] = [area, *(precision_at(ranks, top) for top in k)]
    return scores


def _require_positions(truth: Truth, examples: int) -> None:
    """Raises a `ValueError` unless `truth` has positions in a database of so many images."""
    for query, images in enumerate(truth):
        for kind in ("easy", "hard", "junk"):
            positions = np.asarray(images.get(kind, ()))
            if kind not in images or (positions < 0).any() or (positions >= examples).any():
                raise ValueError(
                    "Expected truth to list easy, hard and junk images of each query, by position "
                    f"in the database, from 0 to {examples - 1}. Received: query {query} with "
                    f"{kind}={positions.tolist() if kind in images else None}"
                )
