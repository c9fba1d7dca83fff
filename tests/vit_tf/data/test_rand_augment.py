"""Each step of RandAugment against Pillow's, and how they are drawn."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from vit_tf.data.rand_augment import OPERATIONS, make_rand_augment

SHAPE = (37, 46, 3)
STEPS, TPU = OPERATIONS["torchvision"], OPERATIONS["tpu"]


def affine(image, *coefficients):
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, Image.BILINEAR)


def enhanced(kind):
    return lambda image, m, sign: kind(image).enhance(1 + 0.9 * m * sign)


BY_PILLOW = {
    "identity": lambda image, m, sign: image,
    "autocontrast": lambda image, m, sign: ImageOps.autocontrast(image),
    "equalize": lambda image, m, sign: ImageOps.equalize(image),
    "solarize": lambda image, m, sign: ImageOps.solarize(image, 255 * (1 - m)),
    "posterize": lambda image, m, sign: ImageOps.posterize(image, 8 - round(4 * m)),
    "color": enhanced(ImageEnhance.Color),
    "contrast": enhanced(ImageEnhance.Contrast),
    "brightness": enhanced(ImageEnhance.Brightness),
    "sharpness": enhanced(ImageEnhance.Sharpness),
    "rotate": lambda image, m, sign: image.rotate(30 * m * sign, Image.BILINEAR),
    "shear_x": lambda image, m, sign: affine(image, 1, 0.3 * m * sign, 0, 0, 1, 0),
    "shear_y": lambda image, m, sign: affine(image, 1, 0, 0, 0.3 * m * sign, 1, 0),
    "translate_x": lambda image, m, sign: affine(
        image, 1, 0, -sign * int(150 / 331 * SHAPE[1] * m), 0, 1, 0
    ),
    "translate_y": lambda image, m, sign: affine(
        image, 1, 0, 0, 0, 1, -sign * int(150 / 331 * SHAPE[0] * m)
    ),
}


@pytest.fixture(scope="module")
def picture():
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(30, 220, (5, 6, 3), np.uint8))
    return coarse.resize(SHAPE[1::-1], Image.BICUBIC)


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_those_of_pillow(picture, name):
    image = tf.constant(np.asarray(picture), tf.float32)
    assert BY_PILLOW.keys() == STEPS.keys()
    for magnitude in (0.3, 1.0):
        for sign in (-1.0, 1.0):
            found = tf.clip_by_value(STEPS[name](image, magnitude, sign), 0, 255).numpy()
            expected = np.asarray(BY_PILLOW[name](picture, magnitude, sign), float)
            difference = np.abs(found - expected)
            if name in ("rotate", "shear_x", "shear_y"):
                # At the border Pillow repeats pixels that are mixed with black here.
                white = STEPS[name](tf.fill(SHAPE, 255.0), magnitude, sign)
                inside = (white.numpy() > 254.9).all(axis=-1)
                assert inside.mean() > 0.5
                np.testing.assert_array_equal(found[white.numpy()[..., 0] == 0], 0)
                difference = difference[inside]
            assert difference.max() <= 1.5, (name, magnitude, sign)
            assert np.median(difference) <= 0.75


def test_steps_are_drawn_alike_and_at_their_rate():
    count = 3000
    chosen = make_rand_augment({"rate": 0.75, "magnitude": 0.4})
    numbers, magnitudes, signs, centres = chosen.draw(count, tf.constant([1, 2]))
    # The number of those that are not done is -1.
    shares = np.bincount(numbers.numpy().ravel() + 1, minlength=len(STEPS) + 1) / (3 * count)
    expected = np.array([0.25, *[0.75 / len(STEPS)] * len(STEPS)])
    np.testing.assert_allclose(shares, expected, atol=0.01)
    np.testing.assert_allclose(np.mean(magnitudes), 0.4, atol=0.01)
    np.testing.assert_allclose(np.std(magnitudes), 0.15, atol=0.01)
    assert set(np.unique(signs)) == {-1, 1} and abs(np.mean(signs)) < 0.05
    np.testing.assert_allclose(np.std(centres, axis=(0, 1)), 12**-0.5, atol=0.01)


def nearest(image, matrix):
    """The pixel nearest to `matrix @ (x, y, 1)` at each (x, y); grey outside the image.

    In float32, halves away from 0, as the kernel does it that the TPU repository calls.
    """
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    a, b, c, d, e, f = np.float32(matrix)
    places = np.stack([a * x + b * y + c, d * x + e * y + f])
    column, row = np.trunc(places + np.copysign(np.float32(0.5), places)).astype(int)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    moved = image[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
    return np.where(inside[..., None], moved, 128)


def turned(image, level, sign):
    angle = np.radians(3 * level * sign)
    c, s, y, x = np.cos(angle), np.sin(angle), (SHAPE[0] - 1) / 2, (SHAPE[1] - 1) / 2
    return nearest(image, [c, -s, x - c * x + s * y, s, c, y - s * x - c * y])


def stretched(image, level, sign):
    low, high = (f(image, axis=(0, 1)).astype(float) for f in (np.min, np.max))
    return np.floor(np.clip((image - low) * 255 / (high - low), 0, 255))


def blended(other):
    def blend(image, level, sign):
        dark, factor = np.float32(other(image)), np.float32(level / 10 * 1.8 + 0.1)
        return np.floor(np.clip(dark + factor * (np.float32(image) - dark), 0, 255))

    return blend


def grey(image):
    return np.floor(np.minimum(image @ np.array([0.2989, 0.587, 0.114]) / 255 * 255.5, 255))[
        ..., None
    ]


def smooth(image):
    result = image.astype(float)
    around = sum(
        image[1 + i : SHAPE[0] - 1 + i, 1 + j : SHAPE[1] - 1 + j] * (5.0 if i == j == 0 else 1.0)
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
    )
    result[1:-1, 1:-1] = np.floor(around / 13)
    return result


def square(image, level, sign):
    # Around the middle of the image, where the tests put it.
    half, (y, x) = int(4 * level), (SHAPE[0] // 2, SHAPE[1] // 2)
    result = image.copy()
    result[max(y - half, 0) : y + half, max(x - half, 0) : x + half] = 128
    return result


def few_bits(image, level, sign):
    return image >> min(max(8 - int(0.4 * level), 0), 7) << min(max(8 - int(0.4 * level), 0), 7)


# Level 10 is the largest of the controller for which these were made; AugReg's go on to 20.
BY_NUMPY = {
    "autocontrast": stretched,
    "equalize": lambda image, level, sign: np.asarray(
        ImageOps.equalize(Image.fromarray(image.astype(np.uint8)))
    ),
    "invert": lambda image, level, sign: 255 - image,
    "rotate": turned,
    "posterize": few_bits,
    # An 8-bit constant of 256 is 0: level 10 turns over all values, and level 15 those from 128 on.
    "solarize": lambda image, level, sign: np.where(
        image < int(25.6 * level) % 256, image, 255 - image
    ),
    "color": blended(grey),
    "contrast": blended(lambda image: np.floor(SHAPE[0] * SHAPE[1] / 256)),
    "brightness": blended(np.zeros_like),
    "sharpness": blended(smooth),
    "shear_x": lambda image, level, sign: nearest(image, [1, 0.03 * level * sign, 0, 0, 1, 0]),
    "shear_y": lambda image, level, sign: nearest(image, [1, 0, 0, 0.03 * level * sign, 1, 0]),
    "translate_x": lambda image, level, sign: nearest(image, [1, 0, 10 * level * sign, 0, 1, 0]),
    "translate_y": lambda image, level, sign: nearest(image, [1, 0, 0, 0, 1, 10 * level * sign]),
    "cutout": square,
    "solarize_add": lambda image, level, sign: np.where(
        image < 128, np.minimum(image + int(11 * level), 255), image
    ),
}


@pytest.mark.parametrize("name", TPU)
def test_operations_of_the_tpu_repository(picture, name):
    assert BY_NUMPY.keys() == TPU.keys()
    image = np.asarray(picture).astype(int)
    centre = {"centre": (0.5, 0.5)} if name == "cutout" else {}
    for level in (0, 2, 10, 15, 20):
        for sign in (-1.0, 1.0):
            result = TPU[name](tf.constant(image, tf.float32), level / 10, sign, **centre).numpy()
            expected = BY_NUMPY[name](image, level, sign)
            differs = (np.abs(result - expected) > 1e-3).any(axis=-1)
            # Two pixels of autocontrast, in float64 here, are one level off.
            assert differs.mean() <= 0.002, (name, level, sign, np.abs(result - expected).max())


@pytest.mark.slow
def test_recipes_of_googles_vits_change_images_of_any_level(picture):
    image = np.stack([np.asarray(picture)] * 64) / np.float32(127.5) - 1
    for level, least in {0: 0.5, 10: 0.9, 15: 0.9}.items():
        settings = {"operations": "tpu", "magnitude": level / 10, "magnitude_stddev": 0.0}
        settings |= {"augmentations_per_image": 2, "rate": 1.0}
        augmented = make_rand_augment(settings).augment(tf.constant(image), tf.constant([3, 4]))
        assert np.mean(np.abs(augmented - image).max(axis=(1, 2, 3)) > 0.02) >= least
        assert np.abs(augmented).max() <= 1 + 1e-6


@pytest.mark.parametrize(
    "wrong",
    [
        1.5,
        -0.1,
        {"rate": 2},
        {"augmentations_per_image": 0},
        {"geometric": False},
        {"operations": "tpu", "magnitude": 3.5},
    ],
)
def test_settings_out_of_range(wrong):
    with pytest.raises(ValueError, match="magnitude"):
        make_rand_augment(wrong)
