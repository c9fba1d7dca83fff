"""The images of a measurement as pictures for its plot, and the first few of a ranking."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.features import Features
from vit_tf.features.preprocessed import to_common_range

from .results import PICTURE_DIMS, encode_picture, variable

FEW_PICTURES = 8  # that a result for single images holds
THUMBNAIL = 112  # pixels of the longer side of a picture of a ranking


def require_pictures(images: tf.Tensor | tf.TensorSpec) -> None:
    """Raises a `ValueError` for inputs that are not images with channels, such as videos."""
    if images.shape.rank not in (4, None):
        raise ValueError(
            "Expected images of shape (example, height, width, channel), to show them. Received: "
            f"shape {tuple(images.shape)}"
        )


def as_pictures(
    images: tf.Tensor, features: Features | None, longest_side: int | None = None
) -> tf.Tensor:
    """Images that a model takes as 8-bit RGB pictures, shrunk where a side is longer.

    The model's preprocessing is inverted. For a model that declares none, black and white are -1
    and 1, or the smallest and the largest value of an image that exceeds this range.
    """
    require_pictures(images)
    images = tf.cast(images, tf.float32)
    if longest_side is not None:
        size = tf.cast(tf.shape(images)[1:3], tf.float32)
        scale = tf.minimum(1.0, longest_side / tf.reduce_max(size))
        new_size = tf.cast(tf.math.ceil(size * scale), tf.int32)
        images = tf.image.resize(images, new_size, method="area")
    preprocessing = features.facts.preprocessing if features else None
    if preprocessing is not None:
        images = to_common_range(images, preprocessing)
    else:
        low, high = (
            reduce(images, axis=(1, 2, 3), keepdims=True)
            for reduce in (tf.reduce_min, tf.reduce_max)
        )
        span = tf.where(high > low, high - low, 1.0)
        is_common = tf.logical_and(low >= -1.0, high <= 1.0)
        images = tf.where(is_common, images, 2.0 * (images - low) / span - 1.0)
    num_channels = images.shape[-1]
    if num_channels == 4:  # the last one is opacity
        images = images[..., :3]
    elif num_channels != 3:
        images = tf.repeat(tf.reduce_mean(images, axis=-1, keepdims=True), 3, axis=-1)
    levels = tf.clip_by_value(tf.round((images + 1.0) * 127.5), 0.0, 255.0)
    return tf.cast(levels, tf.uint8)


def picture_variable(dims: tuple[str, ...], pictures: np.ndarray, long_name: str) -> Any:
    """The variable of pictures (..., row, column, 3), which stand for elements of `dims`."""
    return variable((*dims, *PICTURE_DIMS), pictures, long_name, "levels from 0 to 255")


def with_pictures(
    result: xr.DataArray, features: Features, batches: tf.data.Dataset
) -> xr.DataArray:
    """A result for a few images with these as its coordinate `picture`, for its plot.

    A DataArray has no coordinate of other dims than its own, so that each picture is a PNG as text.
    A mean over images has the picture of a single one.
    """
    by_example = "example" in result.dims
    count = result.sizes["example"] if by_example else int(result.attrs["examples"])
    if count > (FEW_PICTURES if by_example else 1):
        return result
    texts = []
    for batch in batches:
        images = batch[0] if isinstance(batch, tuple) else batch
        if len(images.shape) != 4:
            return result
        texts += map(encode_picture, as_pictures(images, features).numpy())
    return result.assign_coords(picture=("example", texts) if by_example else texts[0])


def first_ranked(keys: tf.Tensor, pictures: tf.Tensor, count: int) -> dict[str, tf.Tensor]:
    """The `count` largest of keys (ranking, image) with pictures, the earlier of equal ones first.

    `pictures` are of shape (image, ...), or (ranking, image, ...) where rankings have their own.
    Missing ones have the key -inf and a black picture.
    """
    keys = tf.pad(keys, [[0, 0], [0, count]], constant_values=-np.inf)
    largest, indices = tf.math.top_k(keys, count)
    is_shared = pictures.shape.rank == 4
    missing = [[0, 0]] * (0 if is_shared else 1) + [[0, count]] + [[0, 0]] * 3
    padded = tf.pad(pictures, missing)
    chosen = tf.gather(
        padded, indices, axis=0 if is_shared else 1, batch_dims=0 if is_shared else 1
    )
    return {"keys": largest, "pictures": chosen}


def merge_ranked(
    earlier: dict[str, dict[str, np.ndarray]], later: dict[str, dict[str, np.ndarray]]
) -> dict[str, dict[str, np.ndarray]]:
    """The first ones of two sets of rankings by name, as `Statistic.merge` combines them."""
    merged = {}
    for name, first in earlier.items():
        both = {key: tf.concat([x, later[name][key]], axis=1) for key, x in first.items()}
        merged[name] = first_ranked(**both, count=first["keys"].shape[1])
    return tf.nest.map_structure(np.asarray, merged)
