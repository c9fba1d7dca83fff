"""The part of an image that is shown, and its size: squeezed, centre crop, random resized crop."""

import math

import tensorflow as tf

# What tf.image.resize calls its methods, and the kernels that they are of.
KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic"}
# Inception's crops (Szegedy et al. 2014, section 6) as torchvision's RandomResizedCrop makes them.
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


def resize_image(image, size, method, crop=None):
    """Images of shape (..., height, width, channel) with values in [0, 255], in another size.

    Args:
        image: tensor of rank 3 or 4.
        size: (height, width) in pixels.
        method: `"bilinear"` or `"bicubic"`, either antialiased.
        crop: None to squeeze the image into the size; or the share of the shorter side that is
            shown, of which the centre is cut out, as `Preprocessing` says.
    """
    image = tf.convert_to_tensor(image)
    if tuple(image.shape[-3:-1]) == size and crop in (None, 1):
        return image
    if crop is None:
        resized = tf.image.resize(image, size, method=method, antialias=True)
    else:
        resized = _centre(image, size, method, crop)
    # The weights add up to one only to rounding, and the bicubic ones overshoot.
    return tf.clip_by_value(resized, 0.0, 255.0)


def _centre(image, size, method, crop):
    """The centre of an image whose shorter side is resized to `floor(size / crop)`.

    As torchvision's Resize and CenterCrop: the longer side is rounded down, the rest on both sides
    halved to the nearest even number. Only what is shown is computed.
    """
    batch = image if image.shape.rank == 4 else image[None]
    own = tf.shape(batch)[1:3]
    least = tf.constant([math.floor(side / crop) for side in size])
    # In a square size the shorter side decides, in others the one that covers least.
    by_height = least[0] * own[1] >= least[1] * own[0]
    whole = tf.where(
        by_height,
        tf.stack([least[0], least[0] * own[1] // own[0]]),
        tf.stack([least[1] * own[0] // own[1], least[1]]),
    )
    start = tf.round(tf.cast(whole - tf.constant(size), tf.float32) / 2)
    resized = tf.raw_ops.ScaleAndTranslate(
        images=batch,
        size=size,
        scale=tf.cast(whole, tf.float32) / tf.cast(own, tf.float32),
        translation=-start,
        kernel_type=KERNELS[method],
        antialias=True,
    )
    return resized if image.shape.rank == 4 else resized[0]


def draw_sides(count, area, seed):
    """What `random_window` takes, for `count` images.

    Args:
        count: number of images.
        area: range of the share of an image that is shown.
        seed: int tensor of shape (2,).

    Returns:
        Pair of the sides to try, (height, width) as shares of the root of an image's area, float32
        of shape (example, 2, try); and of the places, float32 in [0, 1) of shape (example, 2).
    """
    shape = (count, TRIES)
    shares = tf.random.stateless_uniform(shape, seed, *area)
    low, high = map(math.log, ASPECT)
    aspects = tf.exp(tf.random.stateless_uniform(shape, seed + 1, low, high))
    sides = tf.stack([tf.sqrt(shares / aspects), tf.sqrt(shares * aspects)], axis=1)
    return sides, tf.random.stateless_uniform((count, 2), seed + 2)


def random_window(height, width, sides, place):
    """A random part of an image, as torchvision's RandomResizedCrop chooses it.

    The first of the tries that fits into the image, at a random place; if none does, the largest
    part of an aspect ratio in `ASPECT`, in the centre.

    Args:
        height, width: of the image, int32 tensors of shape ().
        sides, place: those of one image from `draw_sides`.

    Returns:
        int32 tensor (top, left, height, width).
    """
    limits = tf.stack([height, width])
    real = tf.cast(limits, tf.float32)
    tries = tf.cast(tf.round(sides * tf.sqrt(real[0] * real[1])), tf.int32)
    fits = tf.reduce_all((tries > 0) & (tries <= limits[:, None]), axis=0)

    def chosen():
        size = tries[:, tf.argmax(tf.cast(fits, tf.int32))]
        room = tf.cast(limits - size + 1, tf.float32)
        return tf.concat([tf.minimum(tf.cast(place * room, tf.int32), limits - size), size], 0)

    def centre():
        widest, highest = real[0] * ASPECT[1], real[1] / ASPECT[0]
        size = tf.cast(tf.round(tf.minimum(real, tf.stack([highest, widest]))), tf.int32)
        return tf.concat([(limits - size) // 2, size], 0)

    return tf.cond(tf.reduce_any(fits), chosen, centre)
