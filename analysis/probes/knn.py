"""Nearest neighbours: k-NN classification by their vote, and the nearest images as pictures."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.names import format_list
from vit_tf.data.any_images import is_one_image
from vit_tf.data.labels import batch_labels, require_counted, require_labels
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps, pick_taps
from vit_tf.features.layers import Detail

from ..engine.measurements import labels_after_images, measurement, statistic_of
from ..engine.pictures import THUMBNAIL, as_pictures, first_ranked, merge_ranked, picture_variable
from ..engine.pooling import Pooled, pool, pooled_statistic_of
from ..engine.preparation import ImagesLike, prepare_labelled, prepare_sets
from ..engine.results import (
    DEFAULT,
    array_of,
    as_counts,
    dataset_of,
    pack_correct,
    provenance,
    require_directions,
    variable,
)
from ..engine.stream import Statistic, Totals, evaluate
from ..engine.traces import reusable

TOPS = (1, 5)
# Largest difference of equal similarities by rounding in float64.
ROUNDING = 1e-12
# Test images whose products with a batch of training images are in memory at once, in each layer.
ROWS = 4096


@measurement("outputs", arguments="{model}, train, {images}")
@labels_after_images
def knn_accuracy(
    model: ModelLike,
    train: ImagesLike,
    test: ImagesLike | None = None,
    num_classes: int | None = None,
    k: int | Sequence[int] = (20,),
    tokens: str | None = None,
    temperature: float = 0.07,
    without_votes: bool = False,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Test accuracy of a k-nearest-neighbour classifier on the features of every layer.

        votes(c) = sum of exp(cos(x, x_j) / temperature),  j of class c among the k nearest to x

    Here, x are the features of a test image, and x_j are the features of a training image, both
    pooled over tokens as `tokens` states (Caron et al. 2021, appendix E; Walmer et al. 2023,
    section 6.1). The search is exact: float32 products of the normalized features select the
    candidates, and float64 products decide between them. If training images are equally near, the
    earlier image is used. If classes have equal votes, the lower label wins.

    The features of the test images are stored in memory, of shape (layer, test image, channel),
    with 20 bytes for each number. At most 4,096 test images are compared with a batch at once.

    Args:
        model, train, test, num_classes, tokens: as in `vit_tf.analysis`.
        k: number of neighbours, or several such numbers.
        temperature: temperature of the votes, above 0.
        without_votes: if true and fewer than 5 classes have votes, classes without votes are added
            to the top 5, in the order of their labels. DINO's code and the numbers of Walmer et al.
            2023 (figure 28) also include classes without votes, in an undefined order. In all
            cases, if `k` is less than 5, only the top `k` classes count.

    Returns:
        DataArray of accuracies in [0, 1], of shape (layer, k, top).

        * `top`, a dim: 1 or 5. An image counts as correct if its class is among the 1 or 5 classes
          with the most votes. By default, a class without votes never counts.
        * `tied`, a coordinate of shape (layer, k): the number of test images whose neighbours k and
          k + 1 are equally near.

    Warns:
        UserWarning: if training images have the features of test images in every layer, for example
            because both are the same images.

    Raises:
        ValueError: if `tokens` is unknown, if `k` is below 1 or above the number of training
            images, if `temperature` is not above 0, or if labels are not classes.
        ValueError: if features are zero or not finite, or if the choice of neighbours in a layer is
            tied for every test image.

    Examples:
        >>> train, test = (images[:16], labels[:16]), (images[16:], labels[16:])
        >>> accuracy = analysis.knn_accuracy(vit, train, test, k=(3, 5))
        >>> accuracy.dims
        ('layer', 'k', 'top')
        >>> accuracy.shape[1:]
        (2, 2)
        >>> ax = analysis.plot(accuracy)

    See also:
        `plots.plot_knn_accuracy`, `linear_probe`, `mutual_knn`; page measurements/probes/knn.md.
    """
    k = _require_votes(k, temperature)
    features, (train, test), num_classes = prepare_labelled(
        model,
        {"train": train, "test": test},
        num_classes,
        kind="outputs",
        layers=layers,
        detail=detail,
        keep_order=True,
    )
    pooled = pooled_statistic_of(features, tokens)
    tested = evaluate(pooled, test, features, description="k-NN: test images")
    count, num_layers = len(tested.labels), len(tested.layers)
    # A long search is announced by its size and, from the first batches, the time that is left.
    description = f"k-NN: training images, for {count:,} test images in {num_layers} layers"
    return evaluate(
        knn_statistic(features, tested, num_classes, k, temperature, without_votes),
        train,
        features,
        description=description,
    )


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
    """The k nearest images to each query image in every layer, by cosine similarity of features.

        similarity(q, x) = cos(f(q), f(x))

    Here, f are features that are pooled over tokens as `tokens` states. The search is exact, in
    float64, in one pass over the images. If a query is among the images, it is its own nearest
    neighbour. `knn_accuracy` measures whether neighbours belong to the same class, and `retrieval`
    measures how well images are ranked.

    Args:
        model, images, tokens: as in `vit_tf.analysis`.
        query: one image or several, in any form that `images` may have. Other libraries take the
            query first: if `images` is a single image and `query` is not, the two are exchanged.
        k: number of neighbours of each query.

    Returns:
        Dataset with four variables. The nearest image has rank 0. If images are equally near, the
        earlier image comes first. Stored images are 8-bit RGB with at most 112 pixels a side.

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
    as_counts(k)
    features, (images, query) = prepare_sets(
        model,
        {"images": images, "query": query},
        kind="outputs",
        layers=layers,
        detail=detail,
        keep_order=True,
    )
    asked = evaluate(_query_statistic(features, tokens), query, features, description="queries")
    totals = evaluate(
        replace(_neighbour_statistic(features, tokens, k), state=directions_of(asked["x"])),
        images,
        features,
        description="neighbours",
    )
    require_directions(totals["without_direction"])
    similarity = np.stack([values.T for values in totals["rows"].values()])
    num_images = similarity.shape[-1]
    if k > num_images:
        raise ValueError(f"Expected k of at most {num_images} images. Received: k={k}")
    # The k nearest images of each query, the most similar first.
    order = np.argsort(-similarity, axis=-1, kind="stable")[..., :k]
    nearest = np.take_along_axis(similarity, order, axis=-1)
    pictures = np.stack([first["pictures"] for first in totals["merged"].values()])
    dims = ("layer", "query", "rank")
    variables = {
        "similarity": variable(dims, nearest, "cosine similarity"),
        "position": variable(dims, order, "number of the image"),
        "picture": picture_variable(dims, pictures, "image"),
        "query_picture": picture_variable(("query",), asked["pictures"], "query image"),
    }
    return dataset_of(
        variables,
        provenance(
            features,
            num_images,
            int(totals["batches"]),
            estimator="exact nearest neighbours by cosine similarity, float64",
            tokens=tokens or DEFAULT,
        ),
        layer=list(totals["rows"]),
    )


# By layer, `image` holds the numbers of some test images. The similarities and labels of their
# nearest training images have shape (image, k).
Neighbours: TypeAlias = dict[str, dict[str, np.ndarray]]


class Searched(NamedTuple):
    """The features of one layer of the test images, as the search for neighbours uses them.

    Attributes:
        directions: features at length 1, float64 (test image, channel).
        rounded: the same in float32.
        limits: the float32 product above which a training image may be a neighbour (test image,).
    """

    directions: Any
    rounded: Any
    limits: Any


@statistic_of(knn_accuracy)
def knn_statistic(
    features: Features,
    tested: Pooled,
    num_classes: int,
    k: Sequence[int] = (20,),
    temperature: float = 0.07,
    without_votes: bool = False,
) -> Statistic[xr.DataArray]:
    """`Statistic` over training images and labels with the result of `knn_accuracy`.

    Args:
        tested: the `Pooled` features of the test images, from a pass with `pooled_statistic`.
        features, num_classes, k, temperature, without_votes: as for `knn_accuracy`.
    """
    k = _require_votes(k, temperature)
    require_labels(tested.labels, num_classes, "test")
    unlimited = np.full(len(tested.labels), -np.inf, np.float32)
    state = {
        layer: Searched(directions, directions.astype(np.float32), unlimited)
        for layer, directions in directions_of(tested.layers).items()
    }

    def finish(totals: Totals) -> xr.DataArray:
        examples = int(totals["examples"])
        if max(k) > examples:
            raise ValueError(f"Expected k of at most {examples} training images. Received: k={k}")
        require_counted(totals["outside"], examples, num_classes, "training")
        require_directions(totals["without_direction"])
        # Each k votes on every test image; ties at the k-th neighbour are counted.
        correct, tied = _scores(
            totals["merged"], tested.labels, num_classes, k, temperature, without_votes
        )
        count, layers = len(tested.labels), list(tested.layers)
        if bad := [layer for layer, n in zip(layers, tied.max(axis=1), strict=True) if n == count]:
            raise ValueError(
                "Every test image has ties at its k-th neighbour, so the vote is arbitrary: "
                f"the features do not separate the training images at {format_list(bad)}"
            )
        # Test images whose nearest training image has the same features in every layer.
        nearest_of_layers = [x["similarity"][:, 0] for x in totals["merged"].values()]
        is_shared = np.min(nearest_of_layers, axis=0) >= 1 - ROUNDING
        if is_shared.any():
            warnings.warn(
                f"{int(is_shared.sum())} of {count} test images have the same features as a "
                "training image in every layer: remove the images of `test` from `train`",
                stacklevel=2,
            )
        # The accuracy of each vote, with what it depends on.
        dims = ("layer", "k", "top")
        return array_of(
            "accuracy",
            correct.mean(axis=-1),
            dims,
            ("test accuracy of a vote among neighbours", "1"),
            provenance(
                features,
                count,
                tested.batches,
                train_examples=examples,
                num_classes=num_classes,
                tokens=tested.tokens or DEFAULT,
                temperature=temperature,
                without_votes=without_votes,
                estimator="exact nearest neighbours by cosine similarity, float64",
            ),
            layer=layers,
            k=list(k),
            top=list(TOPS),
            tied=(dims[:2], tied),
            correct=(dims, pack_correct(correct)),
        )

    return replace(
        _search_statistic(features, int(num_classes), int(max(k)), tested.tokens),
        finish=finish,
        state=state,
    )


def _require_votes(k: int | Sequence[int], temperature: float) -> tuple[int, ...]:
    """The numbers of neighbours that vote; a `ValueError` for one below 1 or a temperature of 0."""
    if temperature <= 0:
        raise ValueError(f"Expected temperature above 0. Received: temperature={temperature}")
    return as_counts(k)


@reusable
def _search_statistic(
    features: Features, num_classes: int, k: int, tokens: str | None
) -> Statistic[Any]:
    """`Statistic` over training images and labels; its state is what is `Searched` by layer."""
    most = k + 1  # one more shows whether the last one is tied
    grid = features.facts.grid

    def step(
        searched: dict[str, Searched], images: tf.Tensor, labels: tf.Tensor, taps: Taps
    ) -> dict[str, Any]:
        labels, outside = batch_labels(labels, num_classes, "training")
        neighbours, without_direction = {}, {}
        for layer, x in pool(pick_taps(taps, searched), tokens, grid).items():
            units, without_direction[layer] = normalize_rows(x)
            # Rows without direction raise in `finish`.
            units = tf.where(tf.math.is_finite(units), units, 0.0)
            neighbours[layer] = _nearest_of_batch(searched[layer], units, labels, most)
        return {
            "merged": neighbours,
            "without_direction": without_direction,
            "outside": outside,
            "examples": tf.shape(images)[0],
        }

    return Statistic(
        step, lambda totals: totals, with_labels=True, merge=_merge, update=with_limits
    )


def with_limits(neighbours: Neighbours, searched: dict[str, Searched]) -> dict[str, Searched]:
    """What is searched after some batches: only for what is nearer than the neighbours so far."""
    limited = {}
    for layer, of_layer in searched.items():
        error = product_error(of_layer.directions.shape[1])
        limits = (neighbours[layer]["similarity"][:, -1] - error).astype(np.float32)
        limited[layer] = of_layer._replace(limits=limits)
    return limited


def product_error(channels: int) -> float:
    """Largest error of a float32 product of rounded directions, and of rounding its limit.

    A sum of n rounded products of directions u and v is wrong by at most (n + 2) eps sum |u_i v_i|
    to first order, with eps = 2^-24 and a sum of at most 1 (Higham 2002, section 3.1). Some devices
    and settings round both factors to fewer bits, of which bfloat16 has the fewest: to 8 bits, each
    with an error of 2^-9. This is found by a trial.
    """
    error = (1.01 * channels + 8) * 2.0**-24
    return error + 2.0**-7 if _factors_are_rounded() else error


@functools.cache
def _factors_are_rounded() -> bool:
    """Whether a float32 product of this device has a larger error than that of float32 sums."""
    x = np.random.default_rng(0).normal(size=(256, 64))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    product = tf.matmul(x, x, transpose_b=True).numpy()
    x = x.astype(np.float64)
    return bool(np.abs(product - x @ x.T).max() > (1.01 * 64 + 8) * 2.0**-24)


def _nearest_of_batch(
    searched: Searched, units: tf.Tensor, labels: tf.Tensor, most: int
) -> dict[str, tf.Tensor]:
    """The nearest images of a batch to the test images for which one exceeds the limit."""
    rounded = tf.cast(units, tf.float32)
    num_blocks = -(-searched.directions.shape[0] // ROWS)

    def search_block(block: tf.Tensor, *found: tf.TensorArray) -> tuple[Any, ...]:
        start = block * ROWS
        products = tf.matmul(searched.rounded[start : start + ROWS], rounded, transpose_b=True)
        nearer = tf.reduce_max(products, axis=1) > searched.limits[start : start + ROWS]
        image = tf.cast(tf.where(nearer)[:, 0], tf.int32) + start
        directions = tf.gather(searched.directions, image)
        similarity = tf.matmul(directions, units, transpose_b=True)
        every = tf.broadcast_to(labels, tf.shape(similarity))
        values = {"image": image, **nearest(similarity, every, most)}
        pairs = zip(found, values.values(), strict=True)
        return block + 1, *(array.write(block, x) for array, x in pairs)

    # One block after another, so that the memory of a block is free for the next.
    types = {"image": tf.int32, "similarity": units.dtype, "labels": labels.dtype}
    arrays = [
        tf.TensorArray(dtype, num_blocks, infer_shape=False, element_shape=shape)
        for dtype, shape in zip(types.values(), ((None,), (None, most), (None, most)), strict=True)
    ]
    _, *found = tf.while_loop(
        lambda block, *_: block < num_blocks, search_block, (0, *arrays), parallel_iterations=1
    )
    return {name: array.concat() for name, array in zip(types, found, strict=True)}


def nearest(similarity: tf.Tensor, labels: tf.Tensor, most: int) -> dict[str, tf.Tensor]:
    """The `most` most similar of images (test image, image), the earlier of equal ones first."""
    missing = [[0, 0], [0, most]]
    similarity = tf.pad(similarity, missing, constant_values=-np.inf)
    largest, indices = tf.math.top_k(similarity, most)
    labels = tf.gather(tf.pad(labels, missing), indices, axis=1, batch_dims=1)
    return {"similarity": largest, "labels": labels}


def log_votes(
    similarity: np.ndarray, labels: np.ndarray, num_classes: int, temperature: float
) -> np.ndarray:
    """Logarithms of votes (test image, class) in units of the nearest image's; -inf for none."""
    exponents = (similarity - similarity[:, :1]) / temperature
    highest = np.full((len(labels), num_classes), -np.inf)
    at = np.arange(len(labels))[:, None], labels
    np.maximum.at(highest, at, exponents)
    total = np.zeros_like(highest)
    np.add.at(total, at, np.exp(exponents - highest[at]))  # the largest is 1: none vanishes
    with np.errstate(divide="ignore"):
        return highest + np.log(total)


def _merge(earlier: Neighbours, later: Neighbours) -> Neighbours:
    """The neighbours of all test images with those of some of them in later batches, in place."""
    for layer, new in later.items():
        image = new["image"]
        neighbours = earlier[layer] = {
            name: np.require(values, requirements="W") for name, values in earlier[layer].items()
        }
        both = {
            name: tf.concat([neighbours[name][image], new[name]], axis=1)
            for name in ("similarity", "labels")
        }
        for name, values in nearest(**both, most=new["labels"].shape[1]).items():
            neighbours[name][image] = values
    return earlier


def directions_of(layers: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows (example, channel) of each layer at length 1; a `ValueError` for those without."""
    normalized = {layer: normalize_rows(tf.constant(x, tf.float64)) for layer, x in layers.items()}
    require_directions({layer: count for layer, (_, count) in normalized.items()})
    return {layer: rows.numpy() for layer, (rows, _) in normalized.items()}


def normalize_rows(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows of x (example, channel) at length 1, NaN for zeros, and the number without direction."""
    length = tf.norm(x, axis=-1, keepdims=True)
    good = tf.logical_and(length > 0, tf.math.is_finite(length))
    return x / length, tf.reduce_sum(tf.cast(tf.logical_not(good), tf.int32))


def _scores(
    neighbours: Neighbours,
    labels: np.ndarray,
    num_classes: int,
    k: Sequence[int],
    temperature: float,
    without_votes: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Which are classified correctly (layer, k, top, test image); ties among them (layer, k)."""
    correct = np.empty((len(neighbours), len(k), len(TOPS), len(labels)), bool)
    tied = np.empty((len(neighbours), len(k)), np.int64)
    for i, nearest_images in enumerate(neighbours.values()):
        similarity, classes = nearest_images["similarity"], nearest_images["labels"]
        for j, count in enumerate(k):
            scores = log_votes(similarity[:, :count], classes[:, :count], num_classes, temperature)
            better = _better(scores, labels, without_votes)
            correct[i, j] = [better < min(top, count) for top in TOPS]
            gap = similarity[:, count - 1] - similarity[:, count]
            tied[i, j] = (gap <= ROUNDING).sum()
    return correct, tied


def _better(scores: np.ndarray, labels: np.ndarray, without_votes: bool) -> np.ndarray:
    """How many classes come before the true one; infinite where it needs votes and has none."""
    true_scores = np.take_along_axis(scores, labels[:, None].astype(np.int64), axis=1)
    lower = np.arange(scores.shape[1]) < labels[:, None]
    before = (scores > true_scores) | ((scores == true_scores) & lower)
    counts = (true_scores[:, 0] > -np.inf) | without_votes
    return np.where(counts, before.sum(axis=1), np.inf)


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
