"""Correspondence of keypoints: is what looks most like a point the same point of another object?"""

import numpy as np
import tensorflow as tf
import xarray as xr

from ..engine.results import provenance, require_finite
from ..engine.stream import collect
from ..engine.tokens import require_grid
from .dense_features import token_map

# All pixels of two images are held at once, for each pair and layer.
PAIRS_AT_ONCE = 2
AVERAGES = ("point", "image")


def square_layout(height, width, size):
    """Where an image lies in a square: its (height, width) there and its (top, left), in pixels.

    The longer side fills the square, and the shorter one is centred.
    """
    longer = max(height, width)
    inner = tuple(max(1, round(side * size / longer)) for side in (height, width))
    return inner, tuple((size - side) // 2 for side in inner)


def square_image(image, size):
    """An image of shape (height, width, channel), resized and padded with zeros to a square.

    Bilinear, antialiased; `square_layout` says where it lies. For values in [-1, 1] zero is grey.

    Args:
        image: array of shape (height, width, channel).
        size: height and width of the square, in pixels.

    Returns:
        float32 array of shape (size, size, channel).
    """
    inner, (top, left) = square_layout(*np.shape(image)[:2], size)
    resized = tf.image.resize(image, inner, antialias=True)
    return tf.image.pad_to_bounding_box(resized, top, left, size, size).numpy()


def square_points(points, height, width, size):
    """Places in an image of (height, width) as places in the square of `square_image`.

    Args:
        points: array of shape (point, 2), (row, column) in pixels, with the first pixel's centre
            at (0.5, 0.5).
        height, width: size of the image, in pixels.
        size: height and width of the square, in pixels.
    """
    inner, corner = square_layout(height, width, size)
    return np.asarray(points, float) * np.divide(inner, (height, width)) + corner


def match_points(source, target, points, size):
    """The pixels of target images whose features are most similar to those of source points.

    Features of pixels are tokens enlarged to the size of the image (bilinear). Similarity is the
    cosine; of pixels as similar, the first is taken, row by row.

    Args:
        source, target: tensors of tokens of shape (pair, row, column, channel).
        points: tensor of shape (pair, point, 2), (row, column) in pixels of the source.
        size: height and width of the images, in pixels.

    Returns:
        float32 tensor of shape (pair, point, 2), the centres of pixels of the target.
    """
    source, target = (
        tf.linalg.l2_normalize(tf.image.resize(tokens, (size, size)), axis=-1)
        for tokens in (source, target)
    )
    pixels = tf.clip_by_value(tf.cast(tf.floor(points), tf.int32), 0, size - 1)
    wanted = tf.gather_nd(source, pixels, batch_dims=1)
    shape = tf.shape(target)
    every = tf.reshape(target, (shape[0], size * size, shape[-1]))
    best = tf.argmax(tf.matmul(wanted, every, transpose_b=True), axis=-1, output_type=tf.int32)
    return tf.cast(tf.stack([best // size, best % size], axis=-1), tf.float32) + 0.5


def correct_keypoints(distances, categories, reach):
    """PCK: the percentage of correct keypoints of each category, as a share.

    Args:
        distances: array of shape (pair, point), in pixels; NaN where a pair has fewer points.
        categories: of each pair, array of shape (pair,).
        reach: largest distance of a correct keypoint, in pixels.

    Returns:
        dict from category, sorted, to two numbers: the share of all its points that are correct,
        and the mean over its pairs of the share of their points.
    """
    distances, categories = np.asarray(distances, float), np.asarray(categories)
    correct = (distances <= reach).sum(axis=1)
    points = np.isfinite(distances).sum(axis=1)
    shares = {}
    for category in np.unique(categories):
        of = categories == category
        shares[str(category)] = (
            correct[of].sum() / points[of].sum(),
            (correct[of] / points[of]).mean(),
        )
    return shares


def keypoint_correspondence(features, pairs, grid=None, thresholds=(0.1, 0.05, 0.01)):
    """How often the most similar place in another image is the keypoint that it should be.

    A keypoint is correct within `threshold * max(height, width)` of the target image (Walmer et
    al. 2023, section 6.2, appendix E.1, figure 31). They report the mean over categories, and do
    not say whether points or images are averaged within one; `average="point"`, the share of all
    points, is the plain reading. Both images are resized and padded to squares of the model's size.

    Args:
        features: callable from images to `{layer: tokens or map}` with the tokens of the grid.
        pairs: list of dicts of `category`, a name; `source` and `target`, normalised images of
            shape (height, width, channel) of any sizes; `source_points` and `target_points`,
            arrays of shape (point, 2), the (row, column) in pixels of the keypoints seen in both,
            with the first pixel's centre at (0.5, 0.5).
        grid: `TokenGrid` of the model's tokens, square; by default the features' own.
        thresholds: shares of the image's longer side.

    Returns:
        Dataset of `pck` of shape (average, layer, category, threshold) and `score`, its mean over
        categories, where `average` is `"point"` or `"image"`.

    Raises:
        ValueError: without pairs, for pairs without points, points beyond their image, a grid that
            is not square and layers without its tokens.
    """
    grid = require_grid(features, grid)
    if grid.rows != grid.columns:
        raise ValueError(f"Expected a grid with as many rows as columns. Received: {grid}")
    size = grid.rows * grid.stride
    pairs = list(pairs)
    points = _square_pairs(pairs, size)

    def step(images, points):
        flat = tf.reshape(images, (-1, *images.shape[2:]))
        return {
            layer: _matched(token_map(layer, values, grid), points[:, 0], size)
            for layer, values in features(flat).items()
        }

    found = collect(step, _batches(pairs, points, size), with_labels=True, description="keypoints")
    require_finite("correspondence", [part["sums"] for part in found.values()], list(found))
    distances = {
        layer: np.linalg.norm(part["places"] - points[:, 1], axis=-1)
        for layer, part in found.items()
    }
    categories = [str(pair["category"]) for pair in pairs]
    notes = provenance(features, 2 * len(pairs), -(-len(pairs) // PAIRS_AT_ONCE), size=size)
    return _labelled(distances, categories, thresholds, size, notes)


def _matched(maps, points, size):
    """Places found for source points, and the sum of each map, finite if its tokens are.

    Args:
        maps: tensor of shape (2 pair, row, column, channel), the source and the target in turn.
        points: tensor of shape (pair, point, 2).
        size: height and width of the images, in pixels.
    """
    return {
        "places": match_points(maps[::2], maps[1::2], points, size),
        "sums": tf.reshape(tf.reduce_sum(maps, axis=(1, 2, 3)), (-1, 2)),
    }


def _square_pairs(pairs, size):
    """Points of sources and targets in squares: float32 (pair, 2, point, 2), NaN for none."""
    if not pairs:
        raise ValueError("Expected at least one pair. Received none")
    most = max(len(pair["source_points"]) for pair in pairs)
    points = np.full((len(pairs), 2, most, 2), np.nan, np.float32)
    for number, pair in enumerate(pairs):
        count = len(pair["source_points"])
        for side, name in enumerate(("source", "target")):
            places, shape = np.asarray(pair[f"{name}_points"]), np.shape(pair[name])[:2]
            if not count or places.shape != (count, 2) or not _within(places, shape):
                raise ValueError(
                    "Expected as many source as target points, at least one, each within its "
                    f"image. Received: pair {number} with {name} points {places.tolist()} in an "
                    f"image of {shape}"
                )
            points[number, side, :count] = square_points(places, *shape, size)
    return points


def _within(places, shape):
    return bool(((places >= 0) & (places <= shape)).all())


def _batches(pairs, points, size):
    """Batches of (images, points): float32 (pair, 2, size, size, channel), (pair, 2, point, 2)."""

    def generate():
        for pair, places in zip(pairs, points, strict=True):
            images = [square_image(pair[name], size) for name in ("source", "target")]
            yield np.stack(images), np.nan_to_num(places)

    channels = np.shape(pairs[0]["source"])[-1]
    specs = tf.TensorSpec((2, size, size, channels)), tf.TensorSpec(points.shape[1:])
    data = tf.data.Dataset.from_generator(generate, output_signature=specs)
    data = data.apply(tf.data.experimental.assert_cardinality(len(pairs)))
    return data.batch(PAIRS_AT_ONCE)


def _labelled(distances, categories, thresholds, size, notes):
    """The result of `keypoint_correspondence`, from distances (pair, point) of each layer."""
    names = sorted(set(categories))
    pck = np.empty((len(AVERAGES), len(distances), len(names), len(thresholds)))
    for layer, found in enumerate(distances.values()):
        for place, threshold in enumerate(thresholds):
            shares = correct_keypoints(found, categories, threshold * size)
            pck[:, layer, :, place] = np.transpose([shares[name] for name in names])
    words = {"long_name": "percentage of correct keypoints, as a share", "units": "1"}
    return xr.Dataset(
        {
            "pck": (("average", "layer", "category", "threshold"), pck, words),
            "score": (
                ("average", "layer", "threshold"),
                pck.mean(axis=2),
                words | {"long_name": "mean over categories of the PCK"},
            ),
        },
        coords={
            "average": list(AVERAGES),
            "layer": list(distances),
            "category": names,
            "threshold": list(thresholds),
        },
        attrs=notes,
    )
