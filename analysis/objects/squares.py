"""Images, points and boxes in squares of one size, for batches of pairs."""

import numpy as np
import tensorflow as tf


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


def square_pairs(pairs, size):
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


def square_boxes(pairs, size):
    """Boxes of the objects of targets in squares: float64 (pair, 4)."""
    missing = [n for n, pair in enumerate(pairs) if np.shape(pair.get("target_box")) != (4,)]
    if missing:
        raise ValueError(
            "Expected a target_box (top, left, bottom, right) of each pair for threshold='box'. "
            f"Received: pair {missing[0]} without"
        )
    corners = [
        square_points(np.reshape(pair["target_box"], (2, 2)), *np.shape(pair["target"])[:2], size)
        for pair in pairs
    ]
    return np.reshape(corners, (-1, 4))


def _within(places, shape):
    return bool(((places >= 0) & (places <= shape)).all())
