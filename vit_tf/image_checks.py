"""Whether images have the values that a model expects of them."""

import warnings

import numpy as np

from vit_tf.preprocessing import interval

NAMED = ((0, 1), (-1, 1))  # ranges that images often come in
FAR = 16  # half widths of the expected range from its middle
NEAR = 1.05  # rounding and interpolation
NARROW = 0.55  # share of the expected range that a half of it does not exceed


def check_dtype(features, dtype):
    """Checks that features which are given integer images declare them.

    They do so by an attribute `integer_images` that is true, by an input of integers, or by a
    `preprocessing` whose values are those of [0, 255].

    Args:
        features: callable from images to taps.
        dtype: name of the images' dtype.

    Raises:
        ValueError: for integers that are not declared.
    """
    features = _innermost(features)
    if "int" not in dtype or _takes_integers(features):
        return
    expected = _expected(features)
    words = f"in {interval(*expected)}" if expected else "in the range that the model expects"
    raise ValueError(
        f"Expected float images {words}, as vit_tf.Preprocessing makes them, or features that "
        f"declare `integer_images = True`. Received: {dtype} images for "
        f"{getattr(features, 'name', None) or getattr(features, '__name__', 'features')}"
    )


def check_values(features, images):
    """Compares the values of some images with the `preprocessing` of features that have one.

    Warns of values that are not in the range, or that fill only such a part of it as [0, 1] is of
    [-1, 1].

    Args:
        features: callable from images to taps.
        images: array of shape (example, height, width, channel).

    Raises:
        ValueError: for values far beyond the range.
    """
    features = _innermost(features)
    expected = _expected(features)
    images = np.asarray(images)
    if expected is None or not images.size:
        return
    low, high = np.min(expected[0]), np.max(expected[1])
    least, most = float(images.min()), float(images.max())
    reach = max(abs(least - (low + high) / 2), abs(most - (low + high) / 2)) / ((high - low) / 2)
    found = f"values from {least:.4g} to {most:.4g} for {features.name}"
    words = f"Expected images with values in {interval(low, high)}. Received: {found}"
    if reach > FAR:
        raise ValueError(words)
    other = next((ends for ends in NAMED if ends[0] <= least and most <= ends[1]), None)
    narrow = least < most <= least + NARROW * (high - low)
    if reach > NEAR:
        warnings.warn(words, stacklevel=2)
    elif narrow and other and not np.allclose(other, (low, high)):
        warnings.warn(f"{words}, as in {interval(*other)}", stacklevel=2)


def _innermost(features):
    """The features that others are made of."""
    while callable(getattr(features, "features", None)):
        features = features.features
    return features


def _expected(features):
    """The smallest and the largest value of each channel, or None where features do not tell."""
    return getattr(getattr(features, "preprocessing", None), "value_range", None)


def _takes_integers(features):
    inputs = getattr(features, "inputs", None)
    expected = _expected(features)
    return (
        getattr(features, "integer_images", False)
        or (bool(inputs) and "int" in str(inputs[0].dtype))
        or (expected is not None and np.allclose(expected[0], 0) and np.allclose(expected[1], 255))
    )
