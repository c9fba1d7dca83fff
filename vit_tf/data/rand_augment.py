"""RandAugment (Cubuk et al. 2019), image by image on all cores, each number a function of a seed.

Not by a layer: KerasCV's draws from generators that hold a state, which a killed run loses, and its
steps, which compute every branch, reach a sixth of the speed of reading; Keras' own chooses one
step for all images of a batch.
"""

import math
import os

import tensorflow as tf

CPUS = os.cpu_count()
# Of red, green and blue in the brightness that an eye sees (ITU-R 601-2), as in Pillow's mode L.
LUMA = (0.299, 0.587, 0.114)
DEFAULTS = {
    "magnitude": 0.5,
    "magnitude_stddev": 0.15,
    "augmentations_per_image": 3,
    "rate": 10 / 11,
}


def make_rand_augment(settings):
    """RandAugment as a function of (images, seed), whose result depends on these alone.

    Each image goes through some steps of `STEPS`, drawn anew each time, whose strengths are those
    of torchvision's RandAugment: 1 is its largest magnitude. What moves in is black.

    Args:
        settings: True, a magnitude in [0, 1], or a dict of `magnitude`, of `magnitude_stddev`, by
            which each draw of it differs, of `augmentations_per_image`, the number of steps, and
            of the `rate` at which a step is done; by default as in `DEFAULTS`.

    Returns:
        Function of images in [-1, 1], of shape (example, height, width, 3), and an int tensor of
        shape (2,), to images alike.

    Raises:
        ValueError: for settings that are out of range or unknown.
    """
    chosen = _checked(settings)
    steps = list(STEPS.values())

    def augment_one(image, numbers, magnitudes, signs):
        pixels = (image + 1.0) * 127.5
        for place in range(chosen["augmentations_per_image"]):
            strength, sign = magnitudes[place], signs[place]
            branches = [lambda s=s, p=pixels, m=strength, n=sign: s(p, m, n) for s in steps]
            changed = tf.switch_case(numbers[place], branches)
            pixels = tf.ensure_shape(tf.clip_by_value(changed, 0.0, 255.0), image.shape)
        return pixels / 127.5 - 1.0

    def apply(images, seed):
        count = tf.shape(images)[0]
        draws = _draw(count, chosen, seed)
        each = tf.data.Dataset.from_tensor_slices((images, *draws))
        augmented = each.map(augment_one, num_parallel_calls=CPUS)
        batch = augmented.batch(tf.cast(count, tf.int64)).get_single_element()
        return tf.ensure_shape(batch, images.shape)

    return apply


def _draw(count, chosen, seed):
    """Numbers of steps, their magnitudes and their signs, each of shape (example, step)."""
    shape = (count, chosen["augmentations_per_image"])
    done = tf.random.stateless_uniform(shape, seed) < chosen["rate"]
    numbers = tf.random.stateless_uniform(shape, seed + 1, 0, len(STEPS), tf.int32)
    spread = tf.random.stateless_normal(shape, seed + 2) * chosen["magnitude_stddev"]
    magnitudes = tf.clip_by_value(chosen["magnitude"] + spread, 0.0, 1.0)
    signs = tf.sign(tf.random.stateless_uniform(shape, seed + 3) - 0.5)
    return tf.where(done, numbers, list(STEPS).index("identity")), magnitudes, signs


def _checked(settings):
    """The settings as a dict of them all."""
    if not isinstance(settings, dict):
        settings = {} if settings is True else {"magnitude": settings}
    chosen = DEFAULTS | settings
    count = chosen["augmentations_per_image"]
    shares = all(0 <= chosen[name] <= 1 for name in ("magnitude", "rate"))
    counts = isinstance(count, int) and count > 0 and chosen["magnitude_stddev"] >= 0
    if len(chosen) > len(DEFAULTS) or not shares or not counts:
        raise ValueError(
            "Expected rand_augment to be True, a magnitude in [0, 1] or a dict of magnitude and "
            "rate in [0, 1], magnitude_stddev >= 0 and augmentations_per_image >= 1. "
            f"Received: {settings}"
        )
    return chosen


def _grey(image):
    """The brightness of shape (height, width, 1)."""
    return tf.tensordot(image, tf.constant(LUMA)[:, None], 1)


def autocontrast(image, magnitude, sign):
    """Each channel stretched so that its darkest value is 0 and its brightest 255."""
    low, high = (reduce(image, axis=(0, 1)) for reduce in (tf.reduce_min, tf.reduce_max))
    flat = high <= low
    scale = tf.where(flat, 1.0, 255.0 / tf.where(flat, 1.0, high - low))
    return (image - tf.where(flat, 0.0, low)) * scale


def equalize(image, magnitude, sign):
    """Each channel with as many pixels of every value as can be, as Pillow's `equalize`."""
    values = tf.cast(tf.round(image), tf.int32) + 256 * tf.range(3)
    counts = tf.reshape(tf.math.bincount(tf.reshape(values, [-1]), minlength=768), (3, 256))
    # The step leaves out the pixels of the brightest value there is.
    order = tf.range(256) * tf.cast(counts > 0, tf.int32)
    last = tf.gather(counts, tf.argmax(order, axis=1), batch_dims=1)
    step = ((tf.reduce_sum(counts, axis=1) - last) // 255)[:, None]
    level = (step // 2 + tf.cumsum(counts, axis=1, exclusive=True)) // tf.maximum(step, 1)
    level = tf.where(step > 0, tf.minimum(level, 255), tf.range(256))
    return tf.cast(tf.gather(tf.reshape(level, [-1]), values), tf.float32)


def solarize(image, magnitude, sign):
    """Values from a threshold on, 255 less as the magnitude grows, turned over."""
    return tf.where(image < 255.0 * (1.0 - magnitude), image, 255.0 - image)


def posterize(image, magnitude, sign):
    """Values without their last bits, of which there are up to 4."""
    step = tf.pow(2.0, tf.round(4.0 * magnitude))
    return tf.floor(tf.round(image) / step) * step


def color(image, magnitude, sign):
    """Nearer to grey, or further from it."""
    factor = 1.0 + 0.9 * magnitude * sign
    return factor * image + (1.0 - factor) * _grey(image)


def contrast(image, magnitude, sign):
    """Nearer to the mean brightness, or further from it."""
    factor = 1.0 + 0.9 * magnitude * sign
    return factor * image + (1.0 - factor) * tf.round(tf.reduce_mean(_grey(image)))


def brightness(image, magnitude, sign):
    """Darker or brighter."""
    return image * (1.0 + 0.9 * magnitude * sign)


def sharpness(image, magnitude, sign):
    """Nearer to a smooth image, or further from it; the border stays as it is."""
    inner = image[1:-1, 1:-1]
    smooth = (9.0 * tf.nn.avg_pool2d(image[None], 3, 1, "VALID")[0] + 4.0 * inner) / 13.0
    return image + tf.pad(0.9 * magnitude * sign * (inner - smooth), ((1, 1), (1, 1), (0, 0)))


def _transform(image, *coefficients):
    """Row y and column x from row `d x + e y + f` and column `a x + b y + c`, bilinear.

    Of pixels' centres, which lie at halves.
    """
    a, b, c, d, e, f = map(tf.convert_to_tensor, coefficients)
    c, f = c + (a + b - 1.0) / 2.0, f + (d + e - 1.0) / 2.0
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.stack([a, b, c, d, e, f, 0.0, 0.0])[None],
        output_shape=image.shape[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )[0]


def rotate(image, magnitude, sign):
    """Turned about the centre by up to 30 degrees."""
    angle = magnitude * sign * math.radians(30)
    cos, sin = tf.cos(angle), tf.sin(angle)
    y, x = (size / 2 for size in image.shape[:2])
    return _transform(image, cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def shear_x(image, magnitude, sign):
    """Rows moved sideways by up to 0.3 of their place."""
    return _transform(image, 1.0, 0.3 * magnitude * sign, 0.0, 0.0, 1.0, 0.0)


def shear_y(image, magnitude, sign):
    """Columns moved up or down by up to 0.3 of their place."""
    return _transform(image, 1.0, 0.0, 0.0, 0.3 * magnitude * sign, 1.0, 0.0)


def _moved(image, magnitude, sign, axis):
    size = image.shape[axis]
    most = math.floor(150 / 331 * size)
    by = tf.cast(150 / 331 * size * magnitude, tf.int32) * tf.cast(sign, tf.int32)
    padding = [(most, most) if a == axis else (0, 0) for a in range(3)]
    start = [most - by if a == axis else 0 for a in range(3)]
    return tf.slice(tf.pad(image, padding), start, image.shape)


def translate_x(image, magnitude, sign):
    """Moved sideways by up to 150 of 331 parts of the width, in whole pixels."""
    return _moved(image, magnitude, sign, 1)


def translate_y(image, magnitude, sign):
    """Moved up or down by up to 150 of 331 parts of the height, in whole pixels."""
    return _moved(image, magnitude, sign, 0)


# Functions of an image in [0, 255] of shape (height, width, 3), a magnitude and a sign: the steps
# of the paper's section 3.
STEPS = {
    "identity": lambda image, magnitude, sign: image,
    **{
        step.__name__: step
        for step in (autocontrast, equalize, rotate, solarize, color, posterize, contrast)
    },
    **{step.__name__: step for step in (brightness, sharpness, shear_x, shear_y)},
    **{step.__name__: step for step in (translate_x, translate_y)},
}
