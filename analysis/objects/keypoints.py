"""Correspondence of keypoints and tokens between images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.data.batches import without_autotune
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail
from vit_tf.features.tokens import TokenGrid

from ..engine.measurements import measurement
from ..engine.pooling import PartialGrid, as_tokens, grid_of, shared_grid
from ..engine.preparation import ImagesLike, prepare, read_model
from ..engine.results import (
    array_of,
    dataset_of,
    provenance,
    require_finite,
    require_word,
    variable,
)
from ..engine.stream import Statistic, evaluate, mean_per_batch, row_statistic
from ..engine.traces import reusable
from .dense_features import maps_of, require_square

Pairs: TypeAlias = Sequence[Mapping[str, Any]]  # the argument of `keypoint_correspondence`
PAIRS_AT_ONCE = 2  # for each pair and layer, the features of all pixels of two images are in memory
AVERAGES = ("point", "image")
THRESHOLDS = ("image", "box")
SIMILARITIES = ("cosine", "inner_product")


@measurement("tokens", arguments="{model}, pairs")
def keypoint_correspondence(
    model: ModelLike,
    pairs: Pairs,
    grid: PartialGrid = None,
    thresholds: Sequence[float] = (0.1, 0.05, 0.01),
    threshold: str = "image",
    similarity: str = "cosine",
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Percentage of correct keypoints (PCK) when matching points between images by their features.

    Each keypoint of the source image is matched with the most similar position in the target image.
    The match is correct if its distance from the true keypoint is at most a given fraction of the
    longer side of the target image (or of the object's bounding box in this image). Both images are
    resized and padded to squares of the model's input size. If a model takes images of any
    size, and all images are squares of one size, they are not resized. Scores are means over
    categories (Walmer et al. 2023, section 6.2, appendix E.1, figures 10 and 31).

    For numbers comparable with Walmer et al., use `threshold="box"` and
    `similarity="inner_product"`, and select `average="point"` from the result. The paper states the
    longer side of the image, but the authors' code uses the longer side of the box, as is usual for
    SPair-71k. The authors' code also normalises tokens before enlarging them, and counts all points
    of a category. Some differences remain: the authors' code resizes with a Lanczos filter, pads
    with black instead of zeros, and draws pairs with replacement. (Square images of the model's
    size are neither resized nor padded.)

    Args:
        model: a model, or a callable from images to `{layer: tensor}`. A tensor holds either
            tokens at the positions of `grid` or a feature map with the rows and columns of `grid`.
        pairs: list of dicts, one per pair of images. `category` is a name. `source` and `target`
            are normalised images of shape (height, width, channel), of any size. `source_points`
            and `target_points` are arrays of shape (point, 2). Both arrays hold the (row, column)
            in pixels of the keypoints that are visible in both images, where the centre of the
            first pixel is (0.5, 0.5). For `threshold="box"`, `target_box` is the bounding box (top,
            left, bottom, right) of the object in the target image, in pixels.
        grid: `TokenGrid` of the model's tokens, with as many rows as columns. By default, the grid
            of the model.
        thresholds: largest distances of a correct keypoint, as fractions of the longer side that
            `threshold` selects.
        threshold: what the `thresholds` are fractions of. `"image"` is the longer side of the
            target image. `"box"` is the longer side of the object's bounding box in the target
            image.
        similarity: how tokens are compared at the size of the image. `"cosine"` enlarges tokens
            and then normalises them. `"inner_product"` normalises tokens and then enlarges them, so
            that pixels between different tokens match less often.

    Returns:
        Dataset with `pck` of shape (average, layer, category, threshold), and `score`, the mean of
        `pck` over categories. For `average="point"`, PCK is the fraction of correct points among
        all points of a category. For `average="image"`, the fraction of correct points is computed
        for each pair of images and averaged over the pairs of a category.

    Raises:
        ValueError: if there are no pairs, if a pair has no points or a point outside its image, or
            if a box is missing or empty. It is also raised if the grid is not square, if a layer
            does not have the positions of the grid, or if `threshold` or `similarity` is unknown.

    Examples:
        >>> pairs = vit_tf.data.load_shape_pairs(4, image_size=32)
        >>> result = analysis.keypoint_correspondence(vit, pairs)
        >>> result.score.dims
        ('average', 'layer', 'threshold')
        >>> ax = analysis.plot(result)

    See also:
        `plots.plot_keypoint_correspondence`, `correct_keypoints`, `token_similarity`; page
        measurements/objects/keypoints.md.
    """
    pairs = list(pairs)
    # Square images of one size are not resized: the model is read for this size.
    images = [pair[name] for pair in pairs for name in ("source", "target")]
    sides = {side for image in images for side in np.shape(image)[:2]}
    features = read_model(
        model, "tokens", layers, detail, images=images if len(sides) == 1 else None
    )
    # Unknown words raise before the images are read.
    require_word(threshold, THRESHOLDS, "threshold")
    require_word(similarity, SIMILARITIES, "similarity")
    grid = require_square(features, grid)
    size = grid.rows * grid.stride
    points = square_pairs(pairs, size)
    boxes = square_boxes(pairs, size) if threshold == "box" else None
    matched = evaluate(
        _match_statistic(features, grid, size, similarity),
        _batches(pairs, points, size),
        description="keypoints",
        checked=(features,),
    )
    require_finite("correspondence", [part["sums"] for part in matched.values()], matched)
    # Distances (pair, point) from the true keypoints: of what each layer predicts, and at last of
    # the position that the keypoint has in the source image.
    predicted = [*(part["points"] for part in matched.values()), points[:, 0]]
    distances = [np.linalg.norm(each - points[:, 1], axis=-1) for each in predicted]
    categories = [str(pair["category"]) for pair in pairs]
    names = sorted(set(categories))
    # Thresholds are fractions of the side of the square, in pixels, or of the sides of the boxes.
    unit = size if boxes is None else 1
    pck = np.empty((len(AVERAGES), len(distances), len(names), len(thresholds)))
    for row, of_layer in enumerate(distances):
        for column, fraction in enumerate(thresholds):
            shares = correct_keypoints(of_layer, categories, fraction * unit, threshold, boxes)
            pck[:, row, :, column] = np.transpose([shares[name] for name in names])
    variables = {
        "pck": variable(
            ("average", "layer", "category", "threshold"),
            pck[:, :-1],
            "percentage of correct keypoints, as a share",
        ),
        "score": variable(
            ("average", "layer", "threshold"),
            pck[:, :-1].mean(axis=2),
            "mean over categories of the PCK",
        ),
        "pck_in_place": variable(
            ("average", "category", "threshold"),
            pck[:, -1],
            "PCK of the same position in the target image",
        ),
    }
    return dataset_of(
        variables,
        provenance(
            features,
            2 * len(pairs),
            -(-len(pairs) // PAIRS_AT_ONCE),
            size=size,
            threshold=threshold,
            similarity=similarity,
        ),
        average=list(AVERAGES),
        layer=list(matched),
        category=names,
        threshold=list(thresholds),
    )


def correct_keypoints(
    distances: np.ndarray,
    categories: Sequence[str],
    reach: float,
    threshold: str = "image",
    boxes: np.ndarray | None = None,
) -> dict[str, tuple[float, float]]:
    """Percentage of correct keypoints (PCK) of each category, as a fraction.

    With `threshold="image"`, a predicted keypoint is correct if its distance from the true keypoint
    is at most `reach` pixels. This limit is the same for all images. With `threshold="box"`, the
    limit is relative to the longer side of the object's bounding box in the target image:

        distance <= reach * max(bottom - top, right - left)

    Published results for SPair-71k, including those of Walmer et al. 2023, use the bounding box.

    Args:
        distances: distances in pixels, array of shape (pair, point). If a pair has fewer points
            than other pairs, its row ends in NaN.
        categories: the category of each pair, array of shape (pair,).
        reach: largest distance of a correct keypoint. It is in pixels for `"image"`, and a fraction
            of the longer side of the box for `"box"`.
        threshold: `"image"` or `"box"`.
        boxes: for `"box"`, the bounding box of the object in each target image, array of shape
            (pair, 4). A row is (top, left, bottom, right), in the same pixels as `distances`.

    Returns:
        dict from each category, in sorted order, to a pair of fractions. The first fraction is the
        share of correct points among all points of the category. For the second fraction, the share
        of correct points is computed for each pair of images and averaged over the pairs of the
        category.

    Raises:
        ValueError: if `threshold` is unknown, if there is not exactly one box for each pair, if a
            box is empty, or if `boxes` are given for `"image"`.

    Examples:
        >>> distances = np.array([[1.0, 9.0]])
        >>> share, per_pair = analysis.correct_keypoints(distances, ["cat"], reach=5)["cat"]
        >>> float(share)
        0.5

    See also:
        `keypoint_correspondence`; page measurements/objects/keypoints.md.
    """
    distances, names = np.asarray(distances, float), np.asarray(categories)
    require_word(threshold, THRESHOLDS, "threshold")
    if (threshold == "box") != (boxes is not None):
        raise ValueError(
            "Expected boxes with threshold='box', and no boxes otherwise. Received: "
            f"threshold={threshold!r}, boxes={boxes}"
        )
    sides = 1.0 if boxes is None else _longer_sides(boxes, len(distances))[:, None]
    correct = (distances <= reach * sides).sum(axis=1)
    points = np.isfinite(distances).sum(axis=1)
    pairs_by_category = {str(name): names == name for name in np.unique(names)}
    return {
        name: (correct[pairs].sum() / points[pairs].sum(), (correct[pairs] / points[pairs]).mean())
        for name, pairs in pairs_by_category.items()
    }


@measurement("tokens")
def token_similarity(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Cosine similarity between all spatial tokens, within and between images.

        cosine(t, u) = <x_t, x_u> / (|x_t| |x_u|)

    The inner product is over the channels of a layer. The most similar token in another image is
    the predicted counterpart of a token. Use this function for a few images only: the result grows
    with the square of the number of images.

    Args:
        model: a model, or a callable from images to `{layer: tensor}`, as for `localization`.
        images, grid: as in `vit_tf.analysis`.

    Returns:
        DataArray of shape (layer, example, token, other_example, other_token). Tokens are counted
        row by row, without prefix tokens. If all channels of a token are zero, as they may be after
        a ReLU, its cosines are undefined and are NaN.

    Raises:
        ValueError: if the layers do not have one common grid that divides the images evenly, or if
            tokens are not finite (the message names the layer).

    Examples:
        >>> similarity = analysis.token_similarity(vit, images[:2])
        >>> similarity.dims
        ('layer', 'example', 'token', 'other_example', 'other_token')

    See also:
        `plots.plot_token_similarity`, `keypoint_correspondence`; page guides/one-image.md.
    """
    features, images = prepare(
        model, images, kind="tokens", layers=layers, detail=detail, keep_order=True
    )
    totals = evaluate(
        _tokens_statistic(features, grid_of(features, grid), grid is not None),
        images,
        features,
        description="token similarity",
    )
    names = list(totals["rows"])
    require_finite("the similarity of tokens", totals["rows"].values(), names)
    cosines = np.stack([_cosines(x.astype(np.float64)) for x in totals["rows"].values()])
    grid_facts = mean_per_batch(totals, "grid")
    return array_of(
        "token_similarity",
        cosines,
        ("layer", "example", "token", "other_example", "other_token"),
        ("cosine similarity", "1"),
        provenance(
            features, cosines.shape[1], 1, estimator="cosine of single tokens", **grid_facts
        ),
        layer=names,
    )


@reusable
def _match_statistic(
    features: Features, grid: TokenGrid, size: int, similarity: str
) -> Statistic[dict[str, dict[str, np.ndarray]]]:
    """`Statistic` over pairs of images and their points with the matched points of each layer."""

    def step(images: tf.Tensor, points: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
        maps = maps_of(features, tf.reshape(images, (-1, *images.shape[2:])), grid)
        return {
            layer: {
                "points": match_points(x[::2], x[1::2], points[:, 0], size, similarity),
                # They are finite if and only if the tokens are.
                "sums": tf.reshape(tf.reduce_sum(x, axis=(1, 2, 3)), (-1, 2)),
            }
            for layer, x in maps.items()
        }

    return row_statistic(step, with_labels=True)


def _batches(pairs: Pairs, points: np.ndarray, size: int) -> tf.data.Dataset:
    """Batches of (images, points): float32 (pair, 2, size, size, channel), (pair, 2, point, 2)."""

    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for pair, points_of_pair in zip(pairs, points, strict=True):
            images = [square_image(pair[name], size) for name in ("source", "target")]
            yield np.stack(images), np.nan_to_num(points_of_pair)

    channels = np.shape(pairs[0]["source"])[-1]
    specs = tf.TensorSpec((2, size, size, channels)), tf.TensorSpec(points.shape[1:])
    data = tf.data.Dataset.from_generator(generate, output_signature=specs)
    data = data.apply(tf.data.experimental.assert_cardinality(len(pairs)))
    return without_autotune(data.batch(PAIRS_AT_ONCE))


def match_points(
    source: tf.Tensor, target: tf.Tensor, points: tf.Tensor, size: int, similarity: str = "cosine"
) -> tf.Tensor:
    """The pixels (pair, point, 2) of targets whose features are most similar to those of source
    points.

    Tokens (pair, row, column, channel) are enlarged bilinearly to the size of the image. If several
    pixels are equally similar, the first one is used, row by row. `"cosine"` normalises features
    after they are enlarged. `"inner_product"` normalises them before: the features of pixels
    between different tokens are then shorter, so that these pixels match less often.
    """
    source, target = (_pixel_features(tokens, size, similarity) for tokens in (source, target))
    pixels = tf.clip_by_value(tf.cast(tf.floor(points), tf.int32), 0, size - 1)
    features_of_points = tf.gather_nd(source, pixels, batch_dims=1)
    every_pixel = tf.reshape(target, (tf.shape(target)[0], size * size, target.shape[-1]))
    products = tf.matmul(features_of_points, every_pixel, transpose_b=True)
    best = tf.argmax(products, axis=-1, output_type=tf.int32)
    return tf.cast(tf.stack([best // size, best % size], axis=-1), tf.float32) + 0.5


def _pixel_features(tokens: tf.Tensor, size: int, similarity: str) -> tf.Tensor:
    """Features of pixels (pair, size, size, channel), whose inner products are compared."""
    if require_word(similarity, SIMILARITIES, "similarity") == "cosine":
        return tf.linalg.l2_normalize(tf.image.resize(tokens, (size, size)), axis=-1)
    return tf.image.resize(tf.linalg.l2_normalize(tokens, axis=-1), (size, size))


def square_pairs(pairs: Pairs, size: int) -> np.ndarray:
    """Points of sources and targets in squares: float32 (pair, 2, point, 2).

    Pairs with fewer points than others end in NaN.
    """
    if not pairs:
        raise ValueError("Expected at least one pair. Received: none")
    max_points = max(len(pair["source_points"]) for pair in pairs)
    squared = np.full((len(pairs), 2, max_points, 2), np.nan, np.float32)
    for number, pair in enumerate(pairs):
        count = len(pair["source_points"])
        for side, name in enumerate(("source", "target")):
            points, (height, width) = np.asarray(pair[f"{name}_points"]), np.shape(pair[name])[:2]
            has_all = count and points.shape == (count, 2)
            if not has_all or not ((points >= 0) & (points <= (height, width))).all():
                raise ValueError(
                    "Expected at least one point, equally many source and target points, and "
                    f"points within their image. Received: pair {number} with {name} points "
                    f"{points.tolist()} in an image of {height} x {width}"
                )
            squared[number, side, :count] = square_points(points, height, width, size)
    return squared


def square_boxes(pairs: Pairs, size: int) -> np.ndarray:
    """Boxes of the objects of targets in squares: float64 (pair, 4)."""
    missing = [n for n, pair in enumerate(pairs) if np.shape(pair.get("target_box", ())) != (4,)]
    if missing:
        raise ValueError(
            "threshold='box' needs the target_box (top, left, bottom, right) of each pair. "
            f"Pair {missing[0]} has none."
        )
    corners = []
    for pair in pairs:
        height, width = np.shape(pair["target"])[:2]
        corners.append(square_points(np.reshape(pair["target_box"], (2, 2)), height, width, size))
    return np.reshape(corners, (-1, 4))


def square_layout(height: int, width: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The (height, width) and (top, left) of an image that is centred in a square, in pixels."""
    longer = max(height, width)
    rows, columns = (max(1, round(side * size / longer)) for side in (height, width))
    return (rows, columns), ((size - rows) // 2, (size - columns) // 2)


def square_image(image: np.ndarray, size: int) -> np.ndarray:
    """An image (height, width, channel), resized bilinearly and zero-padded to a square."""
    height, width = np.shape(image)[:2]
    inner, (top, left) = square_layout(height, width, size)
    resized = tf.image.resize(image, inner, antialias=True)
    return tf.image.pad_to_bounding_box(resized, top, left, size, size).numpy()


def square_points(points: np.ndarray, height: int, width: int, size: int) -> np.ndarray:
    """Points (point, 2) of an image, (row, column) in pixels, as points in its square."""
    inner, corner = square_layout(height, width, size)
    return np.asarray(points, float) * np.divide(inner, (height, width)) + corner


def _longer_sides(boxes: np.ndarray, count: int) -> np.ndarray:
    """The longer side of the box (top, left, bottom, right) of each of `count` pairs: (pair,)."""
    boxes = np.asarray(boxes, float)
    sides = boxes[:, 2:] - boxes[:, :2] if boxes.shape == (count, 4) else np.zeros((1, 2))
    if not (np.isfinite(sides) & (sides > 0)).all():
        raise ValueError(
            f"Expected {count} boxes (top, left, bottom, right) that are not empty, one for each "
            f"pair. Received: boxes of shape {boxes.shape} with sides {sides.tolist()}"
        )
    return sides.max(axis=1)


@reusable
def _tokens_statistic(
    features: Features, known_grid: PartialGrid, is_given: bool
) -> Statistic[Any]:
    """`Statistic` over images with the spatial tokens of each layer, and their grid."""

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        grid = shared_grid(taps, known_grid, is_given, images.shape)
        tokens = {tap: as_tokens(tap, x)[:, grid.prefix :] for tap, x in taps.items()}
        return {"rows": tokens, "grid": dict(vars(grid)), "batches": 1}

    return Statistic(step, lambda totals: totals)


def _cosines(tokens: np.ndarray) -> np.ndarray:
    """Cosines of tokens (example, token, channel): (example, token, example, token)."""
    norms = np.linalg.norm(tokens, axis=-1, keepdims=True)
    directions = np.where(norms > 0, tokens / np.where(norms > 0, norms, 1), np.nan)
    return np.einsum("atc,buc->atbu", directions, directions, optimize=True)
