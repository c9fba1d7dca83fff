"""Whether images have the shape and the values that a model expects."""

import contextlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable

import numpy as np

from vit_tf.preprocessing import interval

NAMED = ((0, 1), (-1, 1))  # ranges that images often come in
FAR = 16  # half widths of the expected range from its middle
NEAR = 1.05  # rounding and interpolation
LOOKED_AT = 128  # images of an array
NARROW = 0.55  # share of the expected range that a half of it does not exceed


def check_dtype(features: Callable, dtype: str):
    """Raises a ValueError for integer images unless features declare or expect such."""
    if words := _wrong_dtype(innermost_features(features), dtype):
        raise ValueError(words)


def _wrong_dtype(features, dtype):
    """What is wrong about integer images that features do not declare, or None."""
    if "int" not in dtype or _takes_integers(features):
        return None
    expected = value_range(features)
    words = f"in {interval(*expected)}" if expected else "in the range that the model expects"
    return (
        f"Expected float images {words}, as vit_tf.Preprocessing makes them, or features that "
        f"declare `integer_images = True`. Received: {dtype} images for "
        f"{getattr(features, 'name', None) or getattr(features, '__name__', 'features')}"
    )


def check_values(features: Callable, images):
    """Warns of values outside or in a small part of the expected range; an error far beyond it."""
    words, far = _wrong_values(innermost_features(features), np.asarray(images))
    if far:
        raise ValueError(words)
    if words:
        warnings.warn(words, stacklevel=2)


def _wrong_values(features, images):
    """What is wrong about the values of images, or None, and whether they are far off."""
    expected = value_range(features)
    if expected is None or not images.size:
        return None, False
    low, high = np.min(expected[0]), np.max(expected[1])
    least, most = float(images.min()), float(images.max())
    reach = max(abs(least - (low + high) / 2), abs(most - (low + high) / 2)) / ((high - low) / 2)
    received = f"values from {least:.4g} to {most:.4g} for {features.name}"
    words = f"Expected images with values in {interval(low, high)}. Received: {received}"
    other = next((ends for ends in NAMED if ends[0] <= least and most <= ends[1]), None)
    narrow = least < most <= least + NARROW * (high - low)
    if reach > NEAR:
        return words, reach > FAR
    if narrow and other and not np.allclose(other, (low, high)):
        return f"{words}, as in {interval(*other)}", False
    return None, False


def far_values(features):
    """The range beyond which `check_values` refuses values: (low, high), or None."""
    expected = value_range(features)
    if expected is None:
        return None
    low, high = np.min(expected[0]), np.max(expected[1])
    middle, half = (low + high) / 2, FAR * (high - low) / 2
    return float(middle - half), float(middle + half)


def watch_images(model, data):
    """Data whose images have the model's shape, and that warn once of unexpected values."""

    def look(images):
        if not model.has_seen_images:
            model.has_seen_images = True
            images = np.asarray(images)
            words = _wrong_dtype(model, images.dtype.name) or _wrong_values(model, images)[0]
            if words:
                warnings.warn(words, stacklevel=2)

    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(data, tensorflow.data.Dataset):
        from vit_tf.batches import inspect_first_batch

        spec = tensorflow.nest.flatten(data.element_spec)[0]
        if isinstance(spec, tensorflow.TensorSpec):
            require_images_of(model, spec)
            return data if model.has_seen_images else inspect_first_batch(data, spec, look)
    elif hasattr(data, "shape") and hasattr(data, "dtype"):
        require_images_of(model, data)
        look(data[:LOOKED_AT])
    return data


def require_finite(images, first: int = 0):
    """Raises a ValueError that names the first image with a value that is not finite."""
    images = np.asarray(images)
    if not np.issubdtype(images.dtype, np.floating) or np.isfinite(np.sum(images)):
        return
    finite = np.isfinite(images.reshape(len(images), -1)).all(axis=1)
    if not finite.all():
        place = int(np.argmin(finite))
        values = "NaN" if np.isnan(images[place]).any() else "infinite values"
        raise ValueError(
            f"Expected images with finite values. Received: {values} in image {first + place} "
            f"of the "
            f"data (from 0), {int((~finite).sum())} of {len(images)} images of its batch"
        )


def innermost_features(features):
    """The features that others are made of."""
    while callable(getattr(features, "features", None)):
        features = features.features
    return features


def value_range(features):
    """The smallest and the largest value of each channel, or None if unknown."""
    return getattr(getattr(features, "preprocessing", None), "value_range", None)


def _takes_integers(features):
    inputs = getattr(features, "inputs", None)
    expected = value_range(features)
    return (
        getattr(features, "integer_images", False)
        or (bool(inputs) and "int" in str(inputs[0].dtype))
        or (expected is not None and np.allclose(expected[0], 0) and np.allclose(expected[1], 255))
    )


# What `tf.ensure_shape` raises.
_WRONG = re.compile(
    r"Shape of tensor \S* ?\[([\d,]+)\] is not compatible with expected shape \[([\d,?]+)\]"
)


def require_images(received: Iterable, expected: Iterable):
    """Raises a ValueError unless a shape of images is one that a model takes; None is any size."""
    received, expected = tuple(received), tuple(expected)
    if len(received) == len(expected) and all(
        None in pair or pair[0] == pair[1] for pair in zip(received, expected, strict=True)
    ):
        return
    hint = ""
    if len(received) == len(expected) - 1:
        hint = "; grey images need an axis of channels: images[..., None]"
    elif received[-1:] == (1,) and expected[-1:] == (3,):
        hint = "; grey images become colour images by numpy.repeat(images, 3, axis=-1)"
    elif len(received) == len(expected) == 4 and received[3] == expected[3]:
        hint = (
            "; resize the images, or create the model for their size: "
            f"image_shape={received[1:]}, or vit_tf.at_resolution for trained weights"
        )
    raise ValueError(f"Expected images of shape {expected}. Received: shape {received}{hint}")


def fix_image_shape(images, expected: tuple):
    """Images with the static shape of a model's; a size not known yet is checked when it is."""
    if getattr(images.shape, "rank", len(expected)) is not None:
        require_images(images.shape, expected)
        if all(
            size is not None
            for size, expected_size in zip(images.shape, expected, strict=True)
            if expected_size
        ):
            return images
    import tensorflow as tf  # only its graphs have shapes that are not known yet

    return tf.ensure_shape(images, expected)


@contextlib.contextmanager
def explained_images():
    """Makes a `ValueError` of the error that `fix_image_shape` raises when a graph runs."""
    try:
        yield
    except Exception as error:
        wrong = _WRONG.search(str(error))
        if not wrong or isinstance(error, ValueError):
            raise
        received, expected = (
            tuple(None if size == "?" else int(size) for size in shape.split(","))
            for shape in wrong.groups()
        )
        try:
            require_images(received, expected)
        except ValueError as explained:
            raise explained from error
        raise


def spec_of_images(model, spec):
    """The `TensorSpec` of images, with the sizes that it leaves open where a model fixes them."""
    shape, rank = _shape_of(model), spec.shape.rank
    if shape is None or rank not in (None, 4):
        return spec
    own = (None,) * 4 if rank is None else tuple(spec.shape)
    sizes = [fixed if size is None else size for size, fixed in zip(own, shape, strict=True)]
    return type(spec)(sizes, spec.dtype, spec.name)


def _shape_of(model):
    """Shape of the batches of images that a model takes, or None where it does not declare it."""
    shape = getattr(model, "accepted_shape", None) or getattr(model, "input_shape", None)
    return shape if isinstance(shape, tuple) and len(shape) == 4 else None


def require_images_of(model, images, any_size: bool = False):
    """Raises a ValueError unless images, or their spec, have a model's shape, or its channels."""
    shape = _shape_of(model)
    if shape is None or getattr(images.shape, "rank", 4) is None:
        return
    require_images(images.shape, (None, None, None, shape[-1]) if any_size else shape)
