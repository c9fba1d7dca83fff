"""RandAugment (Cubuk et al. 2019), image by image on all cores, each number a function of a seed.

Not by a layer: KerasCV's draws from generators that hold a state, which a killed run loses, and its
steps, which compute every branch, reach a sixth of the speed of reading; Keras' own chooses one
step for all images of a batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial

import tensorflow as tf

from vit_tf.common.names import lookup
from vit_tf.data.batches import map_examples

# Shares of red, green and blue in the brightness that an eye sees (ITU-R 601-2; Pillow's mode L).
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class RandAugment:
    """RandAugment of images one by one, whose results depend on a seed alone."""

    # Mean of the magnitudes, in [0, 1], or of "tpu" in [0, 3], where 1 is level 10.
    magnitude: float = 0.5
    magnitude_stddev: float = 0.15  # by which each draw of it differs
    augmentations_per_image: int = 3
    rate: float = 10 / 11  # at which an operation is done
    # What moves into an image is black with the 14 of "torchvision", grey with the 16 of "tpu", and
    # ImageNet's mean colour with the 15 of "timm".
    operations: str = "torchvision"

    def __post_init__(self) -> None:
        lookup("operations", self.operations, OPERATIONS)  # an unknown one raises
        shares = 0 <= self.magnitude <= self.largest and 0 <= self.rate <= 1
        count = self.augmentations_per_image
        if not (shares and isinstance(count, int) and count > 0 and self.magnitude_stddev >= 0):
            raise _unusable(asdict(self))

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return 3.0 if self.operations == "tpu" else 1.0

    def draw(self, count: int | tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Draws operations (-1 for none), magnitudes, signs and centres for each example."""
        shape = (count, self.augmentations_per_image)
        done = tf.random.stateless_uniform(shape, seed) < self.rate
        steps = len(OPERATIONS[self.operations])
        numbers = tf.random.stateless_uniform(shape, seed + 1, 0, steps, tf.int32)
        spread = tf.random.stateless_normal(shape, seed + 2) * self.magnitude_stddev
        magnitudes = tf.clip_by_value(self.magnitude + spread, 0.0, self.largest)
        signs = tf.sign(tf.random.stateless_uniform(shape, seed + 3) - 0.5)
        centres = tf.random.stateless_uniform((*shape, 2), seed + 20)
        return tf.where(done, numbers, -1), magnitudes, signs, centres

    def change(
        self,
        image: tf.Tensor,
        numbers: tf.Tensor,
        magnitudes: tf.Tensor,
        signs: tf.Tensor,
        centres: tf.Tensor,
    ) -> tf.Tensor:
        """An image in [0, 255], of shape (height, width, 3), after the operations drawn for it."""
        steps = OPERATIONS[self.operations]
        if self.operations != "torchvision":
            # Values that are whole but for rounding must not fall to the next lower one.
            image = tf.floor(image + 1 / 256)
        for place in range(self.augmentations_per_image):
            arguments = image, magnitudes[place], signs[place]
            branches = [
                partial(step, *arguments, *([centres[place]] if step is cutout else []))
                for step in steps.values()
            ]
            # The number -1 is that of no branch, for which the last is taken: no operation.
            changed = tf.switch_case(numbers[place], [*branches, lambda image=image: image])
            image = tf.ensure_shape(changed, image.shape)
        return image

    def augment(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Images in [-1, 1], of shape (example, height, width, 3), each after steps of its own."""

        def change(image: tf.Tensor, *numbers: tf.Tensor) -> tf.Tensor:
            return self.change((image + 1.0) * 127.5, *numbers) / 127.5 - 1.0

        drawn = self.draw(tf.shape(images)[0], seed)
        return map_examples(change, (images, *drawn), tf.TensorSpec(images.shape[1:], images.dtype))


def make_rand_augment(settings: bool | float | dict) -> RandAugment:
    """The `RandAugment` of settings: True, a magnitude in [0, 1], or a dict of its attributes."""
    if not isinstance(settings, dict):
        settings = {} if settings is True else {"magnitude": settings}
    if not settings.keys() <= {field.name for field in fields(RandAugment)}:
        raise _unusable(settings)
    return RandAugment(**settings)


def _unusable(settings: object) -> ValueError:
    return ValueError(
        "Expected rand_augment to be True, a magnitude in [0, 1], or a dict. Its keys are "
        "magnitude in [0, 1] (up to 3 for 'tpu'), rate in [0, 1], magnitude_stddev >= 0, "
        "augmentations_per_image >= 1, and operations: 'torchvision', 'timm' or 'tpu'. "
        f"Received: {settings}"
    )


def _rows(image: tf.Tensor) -> tf.Tensor:
    """An image as rows of shape (height, width * 3), which TensorFlow computes with faster."""
    return tf.reshape(image, (image.shape[0], -1))


def _over_pixels(reduce: Callable[..., tf.Tensor], image: tf.Tensor) -> tf.Tensor:
    """A reduction of each channel to shape (3,)."""
    return reduce(tf.reshape(reduce(_rows(image), axis=0), (-1, 3)), axis=0)


def _within(image: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(image, 0.0, 255.0)


def autocontrast(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Each channel stretched so that its darkest value is 0 and its brightest 255."""
    low, high = (_over_pixels(reduce, image) for reduce in (tf.reduce_min, tf.reduce_max))
    flat = high <= low
    scale = tf.where(flat, 1.0, 255.0 / tf.where(flat, 1.0, high - low))
    offset = tf.where(flat, 0.0, -low * scale)
    scale, offset = (tf.tile(numbers, image.shape[1:2]) for numbers in (scale, offset))
    return _within(tf.reshape(scale * _rows(image) + offset, image.shape))


def equalize(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Each channel with as many pixels of every value as can be, as Pillow's `equalize`."""
    channels = tf.tile(tf.range(3), image.shape[1:2])
    values = tf.cast(tf.round(_rows(image)), tf.int32) + 256 * channels
    counts = tf.raw_ops.DenseBincount(
        input=tf.reshape(values, [-1]), size=768, weights=tf.zeros(0, tf.int32)
    )
    counts = tf.reshape(counts, (3, 256))
    # The step leaves out the pixels of the brightest value there is.
    order = tf.range(256) * tf.cast(counts > 0, tf.int32)
    last = tf.gather(counts, tf.argmax(order, axis=1), batch_dims=1)
    step = ((tf.reduce_sum(counts, axis=1) - last) // 255)[:, None]
    level = (step // 2 + tf.cumsum(counts, axis=1, exclusive=True)) // tf.maximum(step, 1)
    level = tf.where(step > 0, tf.minimum(level, 255), tf.range(256))
    level = tf.cast(tf.reshape(level, [-1]), tf.float32)
    return tf.reshape(tf.gather(level, values), image.shape)


def _invert_from(image: tf.Tensor, threshold: float | tf.Tensor) -> tf.Tensor:
    """Values from a threshold on, turned over."""
    return tf.where(image < threshold, image, 255.0 - image)


def _drop_bits(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Values without their last bits."""
    step = tf.pow(2.0, bits)
    return tf.floor(image / step) * step


def color(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Nearer to grey, or further from it."""
    factor = 1.0 + 0.9 * magnitude * sign
    mixture = factor * tf.eye(3) + (1.0 - factor) * tf.constant(LUMA)[:, None]
    return _within(tf.reshape(tf.reshape(image, (-1, 3)) @ mixture, image.shape))


def contrast(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Nearer to the mean brightness, or further from it."""
    factor = 1.0 + 0.9 * magnitude * sign
    mean = tf.round(tf.tensordot(_over_pixels(tf.reduce_mean, image), tf.constant(LUMA), 1))
    return _within(factor * image + (1.0 - factor) * mean)


def brightness(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Darker or brighter."""
    return _within(image * (1.0 + 0.9 * magnitude * sign))


def sharpness(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Nearer to a smooth image, or further from it; the border stays as it is."""
    rows = _rows(image)
    inner = rows[1:-1, 3:-3]
    tall = rows[:-2] + rows[1:-1] + rows[2:]
    around = tall[:, :-6] + tall[:, 3:-3] + tall[:, 6:]
    # The mean of weights 1, but 5 in the middle.
    change = (0.9 * magnitude * sign) * (inner - (around + 4.0 * inner) / 13.0)
    return _within(image + tf.reshape(tf.pad(change, ((1, 1), (3, 3))), image.shape))


def _rotation(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> list[tf.Tensor]:
    """Coefficients of a turn about the centre by up to 30 degrees."""
    angle = magnitude * sign * math.radians(30)
    cos, sin = tf.cos(angle), tf.sin(angle)
    # The image turns about its centre; the centres of pixels lie at integers here.
    y, x = ((size - 1) / 2 for size in image.shape[:2])
    return [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y]


def _project(
    image: tf.Tensor, coefficients: Sequence[float | tf.Tensor], interpolation: str
) -> tf.Tensor:
    """Transformed; what moves in is 0."""
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.stack([*coefficients, 0.0, 0.0])[None],
        output_shape=image.shape[:2],
        fill_value=0.0,
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )[0]


def rotate(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Turned about the centre by up to 30 degrees, bilinear."""
    return _project(image, _rotation(image, magnitude, sign), "BILINEAR")


def shear_x(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Rows moved sideways by up to 0.3 of their index, bilinear."""
    height, width = image.shape[:2]
    # Pixels' centres lie at halves.
    shift = 0.3 * magnitude * sign * (tf.range(float(height)) + 0.5)
    pixels = tf.floor(shift)
    fraction = (shift - pixels)[:, None]
    # The columns go from one before the image to one behind it, which are black.
    columns = tf.range(width + 1) + tf.cast(pixels, tf.int32)[:, None] + 1
    places = tf.clip_by_value(columns, 0, width + 1) + (width + 2) * tf.range(height)[:, None]
    padded = tf.pad(image, ((0, 0), (1, 1), (0, 0)))
    moved = _rows(tf.gather(tf.reshape(padded, (-1, 3)), places))
    return tf.reshape(moved[:, :-3] * (1.0 - fraction) + moved[:, 3:] * fraction, image.shape)


def shear_y(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Columns moved up or down by up to 0.3 of their index, bilinear."""
    return _transposed(shear_x(_transposed(image), magnitude, sign))


def _transposed(image: tf.Tensor) -> tf.Tensor:
    """An image with its rows as columns."""
    return tf.transpose(image, (1, 0, 2))


def translate_x(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Moved sideways by up to 150 of 331 parts of the width, in whole pixels."""
    width = image.shape[1]
    shift = tf.cast(150 / 331 * width * magnitude, tf.int32) * tf.cast(sign, tf.int32)
    before, behind = tf.maximum(shift, 0), tf.maximum(-shift, 0)
    moved = _rows(image)[:, 3 * behind : 3 * (width - before)]
    return tf.reshape(tf.pad(moved, ((0, 0), (3 * before, 3 * behind))), image.shape)


def translate_y(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Moved up or down by up to 150 of 331 parts of the height, in whole pixels."""
    return _transposed(translate_x(_transposed(image), magnitude, sign))


def _truncate(image: tf.Tensor) -> tf.Tensor:
    """Whole values in [0, 255], as a cast to 8 bits makes them."""
    return tf.floor(_within(image))


def _solarize_add(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Values below 128 raised by `110 * magnitude`."""
    return tf.where(image < 128.0, _within(image + tf.floor(110.0 * magnitude)), image)


def _blend(other: float | tf.Tensor, image: tf.Tensor, magnitude: tf.Tensor) -> tf.Tensor:
    """`other + f (image - other)` of the factor of a magnitude."""
    factor = tf.cast(tf.cast(magnitude, tf.float64) * 1.8 + 0.1, tf.float32)
    return _truncate(other + factor * (image - other))


def _blend_smooth(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    kernel = tf.constant([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]])[:, :, None, None] / 13
    kernel = tf.tile(kernel, (1, 1, 3, 1))
    smooth = tf.nn.depthwise_conv2d(image[None], kernel, (1, 1, 1, 1), "VALID")
    # A sum of products that is whole is so but for rounding.
    smooth = tf.pad(_truncate(smooth[0] + 1e-4) - image[1:-1, 1:-1], ((1, 1), (1, 1), (0, 0)))
    return _blend(image + smooth, image, magnitude)


def _nearest(image: tf.Tensor, *coefficients: float | tf.Tensor) -> tf.Tensor:
    """Transformed by the nearest pixel; what moves in is grey."""
    moved = _project(image + 1.0, coefficients, "NEAREST")
    return tf.where(moved == 0.0, 128.0, moved - 1.0)


def cutout(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor, centre: tf.Tensor) -> tf.Tensor:
    """A grey square around a centre, given in shares of the sides; `80 * magnitude` pixels wide."""
    half = tf.floor(40.0 * magnitude)

    def inside(axis: int) -> tf.Tensor:
        place = tf.range(float(image.shape[axis]))
        middle = tf.floor(centre[axis] * image.shape[axis])
        return (place >= middle - half) & (place < middle + half)

    square = inside(0)[:, None, None] & inside(1)[None, :, None]
    return tf.where(square, 128.0, image)


# ImageNet's mean colour, which DeiT fills with.
MEAN_COLOUR = (124.0, 116.0, 104.0)


def _in_mean_colour(operation: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """An operation that moves in black, moving in the mean colour, rounded to whole values."""

    def apply(image: tf.Tensor, magnitude: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
        return tf.round(operation(image - MEAN_COLOUR, magnitude, sign) + MEAN_COLOUR)

    return apply


def _shift(image: tf.Tensor, rows: float | tf.Tensor, columns: float | tf.Tensor) -> tf.Tensor:
    """Moved by fractions of the sides, bilinear; black moves in."""
    height, width = image.shape[:2]
    return _project(image, [1.0, 0.0, columns * width, 0.0, 1.0, rows * height], "BILINEAR")


# Functions of an image in [0, 255] of shape (height, width, 3), a magnitude and a sign, by name:
# those of the paper's section 3 as torchvision has them; those of the TPU repository's
# `autoaugment.py`, which big_vision's `pp/autoaugment.py` repeats; and the 15 of timm that grow
# stronger with the magnitude ("inc1"), with which DeiT was trained.
OPERATIONS = {
    "torchvision": {
        "identity": lambda image, m, s: image,
        "autocontrast": autocontrast,
        "equalize": equalize,
        "rotate": rotate,
        "solarize": lambda image, m, s: _invert_from(image, 255.0 * (1.0 - m)),
        "color": color,
        "posterize": lambda image, m, s: _drop_bits(tf.round(image), tf.round(4.0 * m)),
        "contrast": contrast,
        "brightness": brightness,
        "sharpness": sharpness,
        "shear_x": shear_x,
        "shear_y": shear_y,
        "translate_x": translate_x,
        "translate_y": translate_y,
    },
    "tpu": {
        "autocontrast": lambda *arguments: tf.floor(autocontrast(*arguments)),
        "equalize": equalize,
        "invert": lambda image, m, s: 255.0 - image,
        "rotate": lambda x, m, s: _nearest(x, *_rotation(x, m, s)),
        # The first `4 * magnitude` bits are kept, at least one.
        "posterize": lambda image, m, s: _drop_bits(
            image, tf.clip_by_value(8.0 - tf.floor(4.0 * m), 0.0, 7.0)
        ),
        # The threshold is an 8-bit constant: 256 is 0, and 384 is 128.
        "solarize": lambda image, m, s: _invert_from(
            image, tf.math.floormod(tf.floor(256.0 * m), 256.0)
        ),
        "color": lambda image, m, s: _blend(
            tf.cast(tf.image.rgb_to_grayscale(tf.cast(image, tf.uint8)), tf.float32), image, m
        ),
        # The mean is the number of pixels over 256 there, whatever the image.
        "contrast": lambda image, m, s: _blend(
            tf.floor(tf.minimum(math.prod(image.shape[:2]) / 256, 255.0)), image, m
        ),
        "brightness": lambda image, m, s: _blend(0.0, image, m),
        "sharpness": _blend_smooth,
        "shear_x": lambda x, m, s: _nearest(x, 1.0, 0.3 * m * s, 0.0, 0.0, 1.0, 0.0),
        "shear_y": lambda x, m, s: _nearest(x, 1.0, 0.0, 0.0, 0.3 * m * s, 1.0, 0.0),
        "translate_x": lambda x, m, s: _nearest(x, 1.0, 0.0, 100.0 * m * s, 0.0, 1.0, 0.0),
        "translate_y": lambda x, m, s: _nearest(x, 1.0, 0.0, 0.0, 0.0, 1.0, 100.0 * m * s),
        "cutout": cutout,
        "solarize_add": _solarize_add,
    },
    "timm": {
        "autocontrast": autocontrast,
        "equalize": equalize,
        "invert": lambda image, m, s: 255.0 - image,
        "rotate": _in_mean_colour(rotate),
        # The first `4 - int(4 * magnitude)` bits are kept, which may be none.
        "posterize": lambda image, m, s: _drop_bits(image, 4.0 + tf.floor(4.0 * m)),
        "solarize": lambda image, m, s: _invert_from(image, 256.0 - tf.floor(256.0 * m)),
        "solarize_add": _solarize_add,
        "color": color,
        "contrast": contrast,
        "brightness": brightness,
        "sharpness": sharpness,
        "shear_x": _in_mean_colour(shear_x),
        "shear_y": _in_mean_colour(shear_y),
        "translate_x": _in_mean_colour(lambda x, m, s: _shift(x, 0.0, 0.45 * m * s)),
        "translate_y": _in_mean_colour(lambda x, m, s: _shift(x, 0.45 * m * s, 0.0)),
    },
}
