"""What is shown of an image, in which size and values: squeezed, centre crop, random crop."""

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from vit_tf.preprocessing import Preprocessing

# What tf.image.resize calls its methods, and the kernels that they are of.
KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic"}
# Inception's crops (Szegedy et al. 2014, section 6) as torchvision's RandomResizedCrop makes them.
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


@dataclass(frozen=True)
class Framing:
    """How a decoded image comes to its size and its values.

    Attributes:
        size: (height, width) in pixels.
        preprocessing: `Preprocessing`, of which the size is not read.
        area: None, or the range of the share of an image that a random crop shows.
    """

    size: tuple
    preprocessing: Preprocessing
    area: tuple | None = None

    @property
    def spec(self):
        """The result of `fit` for an image."""
        return tf.TensorSpec((*self.size, 3), tf.float32)

    def draw(self, count, seed):
        """What `window` needs for `count` images."""
        # Another seed than those of the augmentations of the same batch.
        return draw_sides(count, self.area, seed + 31)

    def window(self, drawn):
        """The window of `decoding.decode`, by what was drawn for an image; None for all of it."""
        if not self.area:
            return None
        return lambda height, width: random_window(height, width, *drawn[0])

    def fit(self, images, image_map=None, drawn=()):
        """An image, or images of shape (example, height, width, channel), as a model expects them.

        Args:
            images: tensor of rank 3 or 4, with values in [0, 255].
            image_map: `ImageMap` for one image in its size, or None.
            drawn: tuple of what was drawn for the image, last that for `image_map`.
        """
        crop = None if self.area else self.preprocessing.crop
        how = (self.preprocessing.interpolation, crop, self.preprocessing.crop_rounding)
        images = resize_image(images, self.size, *how)
        images = tf.cast(images, tf.float32)
        images = tf.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images
        images = image_map.apply(images, *drawn[-1]) if image_map else images
        return scale_values(images, self.preprocessing)


def resize_image(image, size, method, crop=None, rounding="even"):
    """Images of shape (..., height, width, channel) with values in [0, 255], in another size.

    Args:
        image: tensor of rank 3 or 4.
        size: (height, width) in pixels.
        method: `"bilinear"` or `"bicubic"`, either antialiased.
        crop: None to squeeze the image into the size; or the share of the shorter side that is
            shown, of which the centre is cut out, as `Preprocessing` says.
        rounding: the `crop_rounding` of a `Preprocessing`.
    """
    image = tf.convert_to_tensor(image)
    if tuple(image.shape[-3:-1]) == size and crop in (None, 1):
        return image
    batch = image if image.shape.rank == 4 else tf.expand_dims(image, 0)
    if crop is None:
        resized = _squeeze(batch, size, method)
    else:
        resized = _centre(batch, size, method, crop, rounding)
    return resized if image.shape.rank == 4 else tf.squeeze(resized, 0)


def _squeeze(images, size, method):
    own = tf.shape(images)[1:3]

    def antialiased():
        scale = tf.constant(size, tf.float32) / tf.cast(own, tf.float32)
        return _scale_and_translate(images, size, method, scale, tf.zeros(2))

    def enlarged():
        return tf.raw_ops.ResizeBilinear(images=images, size=size, half_pixel_centers=True)

    if method != "bilinear":
        return antialiased()
    # Antialiasing changes nothing where no side shrinks, and takes twice as long.
    return tf.cond(tf.reduce_all(own <= size), enlarged, antialiased)


def _scale_and_translate(images, size, method, scale, translation):
    resized = tf.raw_ops.ScaleAndTranslate(
        images=images,
        size=size,
        scale=scale,
        translation=translation,
        kernel_type=KERNELS[method],
        antialias=True,
    )
    # The weights add up to one only to rounding, and the bicubic ones overshoot. In one pass over
    # the pixels, where tf.clip_by_value takes two.
    return tf.raw_ops.ClipByValue(t=resized, clip_value_min=0.0, clip_value_max=255.0)


def _centre(images, size, method, crop, rounding):
    """The centre of images whose shorter side is resized to `floor(size / crop)`.

    As torchvision's Resize and CenterCrop: the longer side is rounded down, the rest on both sides
    halved to the nearest even number, or down. Only what is shown is computed.
    """
    own = tf.shape(images)[1:3]
    least = tf.constant([math.floor(side / crop) for side in size])
    # In a square size the shorter side decides, in others the one that covers least.
    by_height = least[0] * own[1] >= least[1] * own[0]
    whole = tf.where(
        by_height,
        tf.stack([least[0], least[0] * own[1] // own[0]]),
        tf.stack([least[1] * own[0] // own[1], least[1]]),
    )
    half = {"even": tf.round, "down": tf.floor}[rounding]
    start = half(tf.cast(whole - tf.constant(size), tf.float32) / 2)
    scale = tf.cast(whole, tf.float32) / tf.cast(own, tf.float32)
    return _scale_and_translate(images, size, method, scale, -start)


def draw_sides(count, area, seed):
    """What `random_window` takes, for `count` images.

    Args:
        count: number of images.
        area: range of the share of an image that is shown.
        seed: int tensor of shape (2,).

    Returns:
        Pair of the sides to try, (height, width) as shares of the root of an image's area, float32
        of shape (example, 2, try); and of the positions, float32 in [0, 1) of shape (example, 2).
    """
    shape = (count, TRIES)
    shares = tf.random.stateless_uniform(shape, seed, *area)
    low, high = map(math.log, ASPECT)
    aspects = tf.exp(tf.random.stateless_uniform(shape, seed + 1, low, high))
    sides = tf.stack([tf.sqrt(shares / aspects), tf.sqrt(shares * aspects)], axis=1)
    return sides, tf.random.stateless_uniform((count, 2), seed + 2)


def random_window(height, width, sides, place):
    """A random part of an image, as torchvision's RandomResizedCrop chooses it.

    The first of the tries that fits into the image, at a random position; if none does, the largest
    part of an aspect ratio in `ASPECT`, in the centre.

    Args:
        height, width: of the image, int32 tensors of shape ().
        sides, place: side lengths and position of one image from `draw_sides`.

    Returns:
        int32 tensor (top, left, height, width).
    """
    # In floats, which hold these integers exactly: few operations, as there are many images.
    limits = tf.cast(tf.stack([height, width]), tf.float32)
    tries = tf.round(sides * tf.sqrt(limits[0] * limits[1]))
    fits = tf.reduce_all((tries > 0) & (tries <= limits[:, None]), axis=0)

    size = tries[:, tf.argmax(tf.cast(fits, tf.int32))]
    room = limits - size
    chosen = tf.concat([tf.minimum(tf.floor(place * (room + 1)), room), size], 0)
    widest, highest = limits[0] * ASPECT[1], limits[1] / ASPECT[0]
    size = tf.round(tf.minimum(limits, tf.stack([highest, widest])))
    centre = tf.concat([(limits - size) // 2, size], 0)
    return tf.cast(tf.where(tf.reduce_any(fits), chosen, centre), tf.int32)


def scale_values(images, preprocessing=None):
    """Float32 images with values in [0, 255] as a model expects them, an array or a tensor.

    `image / (255 std) - mean / std`, which is `image / 127.5 - 1` unless there is a preprocessing,
    of which the channels may be in another order.
    """
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
