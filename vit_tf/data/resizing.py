"""Images in another size and range of values, as a `Preprocessing` says."""

import math
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

# A `vit_tf.Preprocessing`, whose module imports this one.
Preprocessing: TypeAlias = Any
# The kernels of interpolations, in the words of `ScaleAndTranslate`.
KERNELS = {
    "bilinear": "triangle",
    "bicubic": "keyscubic",
    "lanczos3": "lanczos3",
    "lanczos5": "lanczos5",
}
# Those without antialiasing, by the operations that Keras uses.
PLAIN_KERNELS = {
    "bilinear": tf.raw_ops.ResizeBilinear,
    "bicubic": tf.raw_ops.ResizeBicubic,
    "nearest": tf.raw_ops.ResizeNearestNeighbor,
}


def resize_image(image: tf.Tensor, size: tuple, preprocessing: Preprocessing) -> tf.Tensor:
    """Images (..., height, width, channel) in another size, as `Preprocessing` specifies."""
    image = tf.convert_to_tensor(image)
    if tuple(image.shape[-3:-1]) == size and preprocessing.crop in (None, 1):
        return image
    batch = image if image.shape.rank == 4 else tf.expand_dims(image, 0)
    if preprocessing.aspect in ("crop", "pad"):
        batch = _in_aspect(batch, size, preprocessing.aspect)
    if preprocessing.crop is None:
        resized = _squeeze(batch, size, preprocessing)
    else:
        resized = _centre(batch, size, preprocessing, preprocessing.crop)
    return resized if image.shape.rank == 4 else tf.squeeze(resized, 0)


def _in_aspect(images: tf.Tensor, size: tuple[int, int], aspect: str) -> tf.Tensor:
    """Images cut or padded to the aspect ratio of a size, in the integers of Keras' `Resizing`."""
    native_size = tf.shape(images)[1:3]
    # What is divided here gives the height that fits the width, and the width that fits the height.
    products = tf.cast(native_size[::-1] * tf.constant(size), tf.float32)
    fit = tf.cast(products / tf.constant(size[::-1], tf.float32), tf.int32)
    if aspect == "crop":
        fit = tf.clip_by_value(fit, 1, native_size)
        start = (native_size - fit) // 2
        return images[:, start[0] : start[0] + fit[0], start[1] : start[1] + fit[1]]
    # Both sides get the same margin: an odd number of missing rows is padded by one less.
    margins = (tf.maximum(fit, native_size) - native_size) // 2
    margins = tf.pad(tf.stack([margins, margins], axis=1), [[1, 1], [0, 0]])
    return tf.pad(images, margins)


def _squeeze(images: tf.Tensor, size: tuple[int, int], preprocessing: Preprocessing) -> tf.Tensor:
    native_size, method = tf.shape(images)[1:3], preprocessing.interpolation

    def by_kernel() -> tf.Tensor:
        scale = tf.constant(size, tf.float32) / tf.cast(native_size, tf.float32)
        return _scale_and_translate(images, size, preprocessing, scale, tf.zeros(2))

    def interpolated() -> tf.Tensor:
        resized = PLAIN_KERNELS[method](images=images, size=size, half_pixel_centers=True)
        resized = tf.cast(resized, tf.float32)
        return tf.clip_by_value(resized, 0.0, 255.0) if method == "bicubic" else resized

    if method == "nearest" or not (preprocessing.antialias or method.startswith("lanczos")):
        return interpolated()
    if method != "bilinear":
        return by_kernel()
    # Antialiasing changes nothing where no side shrinks, and takes twice as long.
    return tf.cond(tf.reduce_all(native_size <= size), interpolated, by_kernel)


def _scale_and_translate(
    images: tf.Tensor,
    size: tuple[int, int],
    preprocessing: Preprocessing,
    scale: tf.Tensor,
    translation: tf.Tensor,
) -> tf.Tensor:
    """`ScaleAndTranslate` of images of shape (example, height, width, channel), in two steps.

    Its kernel makes a call for each pixel of three channels, and half of the time goes there. So
    each image becomes one of a single column, with all numbers of a row as channels, and then the
    same of its transpose. The kernel works through rows and columns in this order, too, so that
    results are the same bit for bit.
    """

    def stretch(columns: tf.Tensor, axis: int) -> tf.Tensor:
        """Matrices (example, length, number) with another length."""
        stretched = tf.raw_ops.ScaleAndTranslate(
            images=columns[:, :, None],
            size=(size[axis], 1),
            scale=tf.stack([scale[axis], 1.0]),
            translation=tf.stack([translation[axis], 0.0]),
            kernel_type=KERNELS[preprocessing.interpolation],
            antialias=preprocessing.antialias,
        )
        return stretched[:, :, 0]

    count, height, width, channels = tf.unstack(tf.shape(images))
    rows = stretch(tf.reshape(images, (count, height, width * channels)), 0)
    columns = tf.transpose(rows, (0, 2, 1))
    columns = stretch(tf.reshape(columns, (count, width, channels * size[0])), 1)
    rows = tf.transpose(tf.reshape(columns, (count, size[1] * channels, size[0])), (0, 2, 1))
    resized = tf.reshape(rows, (count, *size, channels))
    resized = tf.ensure_shape(resized, (images.shape[0], *size, images.shape[3]))
    # The weights add up to one only to rounding, and those of bicubic and Lanczos kernels
    # overshoot. In one pass over the pixels, where tf.clip_by_value takes two.
    return tf.raw_ops.ClipByValue(t=resized, clip_value_min=0.0, clip_value_max=255.0)


def _centre(
    images: tf.Tensor, size: tuple[int, int], preprocessing: Preprocessing, crop: float
) -> tf.Tensor:
    """The centre of images whose shorter side becomes `floor(size / crop)`, as torchvision's.

    With the aspect "squeeze", both sides do.
    """
    native_size = tf.shape(images)[1:3]
    least = tf.constant([math.floor(side / crop) for side in size])
    # In a square size the shorter side decides, in others the one that covers least.
    by_height = least[0] * native_size[1] >= least[1] * native_size[0]
    resized = tf.where(
        by_height,
        tf.stack([least[0], least[0] * native_size[1] // native_size[0]]),
        tf.stack([least[1] * native_size[0] // native_size[1], least[1]]),
    )
    if preprocessing.aspect == "squeeze":
        resized = least
    half = {"even": tf.round, "down": tf.floor}[preprocessing.crop_rounding]
    start = half(tf.cast(resized - tf.constant(size), tf.float32) / 2)
    if preprocessing.interpolation == "nearest":
        # The kernel below has no "nearest": the whole image is resized, then cut.
        whole = tf.cast(
            tf.raw_ops.ResizeNearestNeighbor(images=images, size=resized, half_pixel_centers=True),
            tf.float32,
        )
        top, left = tf.unstack(tf.cast(start, tf.int32))
        return tf.ensure_shape(
            whole[:, top : top + size[0], left : left + size[1]], (None, *size, None)
        )
    scale = tf.cast(resized, tf.float32) / tf.cast(native_size, tf.float32)
    return _scale_and_translate(images, size, preprocessing, scale, -start)


def scale_values(images: Any, preprocessing: Preprocessing | None = None) -> Any:
    """`image / (255 std) - mean / std` of values in [0, 255], float32; by default to [-1, 1]."""
    if preprocessing and preprocessing.channel_order == "bgr":
        images = images[..., ::-1]
    mean, std = (preprocessing.mean, preprocessing.std) if preprocessing else ((0.5,), (0.5,))
    if len({*mean}) == len({*std}) == 1:
        mean, std = mean[0], std[0]
    mean, std = np.array(mean), np.array(std)
    scale, offset = np.float32(255 * std), np.float32(mean / std)
    if not scale.ndim or None in images.shape[-2:] or not tf.is_tensor(images):
        return images / scale - offset
    # TensorFlow is ten times as fast with whole rows as with the channels of each pixel.
    rows = tf.reshape(images, (-1, images.shape[-2] * images.shape[-1]))
    scale, offset = (np.tile(numbers, images.shape[-2]) for numbers in (scale, offset))
    return tf.ensure_shape(tf.reshape(rows / scale - offset, tf.shape(images)), images.shape)
