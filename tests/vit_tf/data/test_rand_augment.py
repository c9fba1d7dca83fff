"""Each step of RandAugment against Pillow's, and how they are drawn."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from vit_tf.data.rand_augment import STEPS, make_rand_augment

SHAPE = (37, 46, 3)


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
    numbers, magnitudes, signs = chosen.draw(count, tf.constant([1, 2]))
    shares = np.bincount(numbers.numpy().ravel(), minlength=len(STEPS)) / (3 * count)
    expected = np.full(len(STEPS), 0.75 / len(STEPS))
    expected[0] += 0.25
    np.testing.assert_allclose(shares, expected, atol=0.01)
    np.testing.assert_allclose(np.mean(magnitudes), 0.4, atol=0.01)
    np.testing.assert_allclose(np.std(magnitudes), 0.15, atol=0.01)
    assert set(np.unique(signs)) == {-1, 1} and abs(np.mean(signs)) < 0.05


@pytest.mark.parametrize(
    "wrong", [1.5, -0.1, {"rate": 2}, {"augmentations_per_image": 0}, {"geometric": False}]
)
def test_settings_out_of_range(wrong):
    with pytest.raises(ValueError, match="magnitude"):
        make_rand_augment(wrong)
