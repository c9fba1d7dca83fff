"""Centre crops and random resized crops against torchvision's definition and Pillow's pixels."""

import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from vit_tf import Preprocessing
from vit_tf.data.imaging import ASPECT, draw_sides, random_window, resize_image, scale_values

METHODS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def resized(image, size, method):
    """An image of shape (height, width, channel) in (height, width), by Pillow in float32."""
    channels = [
        Image.fromarray(channel.astype(np.float32)).resize(size[::-1], METHODS[method])
        for channel in np.moveaxis(image, -1, 0)
    ]
    return np.clip(np.stack([np.asarray(c) for c in channels], axis=-1), 0, 255)


def torchvision_centre(image, side, crop, method):
    """`CenterCrop(side)(Resize(floor(side / crop))(image))`."""
    height, width = image.shape[:2]
    short = math.floor(side / crop)
    if height <= width:
        size = (short, int(short * width / height))
    else:
        size = (int(short * height / width), short)
    top, left = (round((n - side) / 2.0) for n in size)
    return resized(image, size, method)[top : top + side, left : left + side]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("crop", [0.875, 0.9, 1.0])
def test_centre_crops_are_those_of_torchvision(rng, method, crop):
    for shape in ((61, 83), (83, 61), (40, 40), (32, 57), (24, 24), (31, 95)):
        image = rng.integers(0, 256, (*shape, 3), np.uint8)
        expected = torchvision_centre(image, 24, crop, method)
        found = resize_image(tf.constant(image), (24, 24), method, crop)
        np.testing.assert_allclose(found, expected, atol=0.01)
        batch = resize_image(tf.constant(image[None]), (24, 24), method, crop)
        np.testing.assert_array_equal(batch[0], found)


@pytest.mark.parametrize("method", METHODS)
def test_squeezed_images_are_those_of_pillow(rng, method):
    """Where both sides grow, one of them, or none; also at the border, and never beyond white."""
    for shape in ((9, 13), (24, 31), (9, 60), (60, 9), (61, 83), (1, 1)):
        image = rng.choice(np.array([0, 255, 255, 77], np.uint8), (*shape, 3))
        found = resize_image(tf.constant(image), (24, 31), method).numpy()
        np.testing.assert_allclose(found, resized(image, (24, 31), method), atol=0.01)
        assert found.min() >= 0 and found.max() <= 255
        batch = resize_image(tf.constant(image[None]), (24, 31), method)
        np.testing.assert_array_equal(batch[0], found)


def test_an_oblong_centre_covers_the_size_and_keeps_the_shape(rng):
    image = rng.integers(0, 256, (60, 90, 3), np.uint8)
    found = resize_image(tf.constant(image), (20, 40), "bilinear", 1.0)
    whole = resized(image, (40 * 60 // 90, 40), "bilinear")
    np.testing.assert_allclose(found, whole[3:23], atol=0.01)


def torchvision_window(height, width, sides, place):
    """`RandomResizedCrop.get_params`, of shares and aspect ratios that are drawn already."""
    area = np.float32(height * width)
    for tall, wide in zip(*sides, strict=True):
        h, w = (int(np.round(side * np.sqrt(area))) for side in (tall, wide))
        if 0 < w <= width and 0 < h <= height:
            top, left = (int(place[n] * (m - k + 1)) for n, m, k in ((0, height, h), (1, width, w)))
            return [top, left, h, w]
    ratio, w, h = width / height, width, height
    if ratio < min(ASPECT):
        h = round(w / min(ASPECT))
    elif ratio > max(ASPECT):
        w = round(h * max(ASPECT))
    return [(height - h) // 2, (width - w) // 2, h, w]


def test_random_windows_are_those_of_torchvision():
    window = tf.function(random_window, reduce_retracing=True)
    kinds = set()
    for number, shape in enumerate([(256, 340), (340, 256), (20, 200), (200, 20), (7, 5), (3, 90)]):
        for area in ((0.08, 1.0), (0.5, 1.0), (0.95, 1.0)):
            drawn = draw_sides(40, area, tf.constant([number, 7]))
            for sides, place in zip(*(draw.numpy() for draw in drawn), strict=True):
                found = window(*map(tf.constant, shape), sides, place).numpy().tolist()
                assert found == torchvision_window(*shape, sides, place)
                kinds.add((shape, area, tuple(found)))
    assert len(kinds) > 200


def test_shares_and_aspect_ratios_are_drawn_as_by_torchvision():
    sides, place = (
        draw.numpy().astype(float) for draw in draw_sides(4000, (0.08, 1.0), tf.constant([1, 2]))
    )
    shares, aspects = sides[:, 0] * sides[:, 1], sides[:, 1] / sides[:, 0]
    assert shares.min() >= 0.08 and shares.max() <= 1.0 + 1e-6
    np.testing.assert_allclose(np.histogram(shares, 4, (0.08, 1))[0] / shares.size, 0.25, atol=0.01)
    assert ASPECT[0] - 1e-6 <= aspects.min() and aspects.max() <= ASPECT[1] + 1e-6
    logs = np.histogram(np.log(aspects), 4, np.log(ASPECT))[0] / aspects.size
    np.testing.assert_allclose(logs, 0.25, atol=0.01)
    assert abs(np.corrcoef(shares.ravel(), aspects.ravel())[0, 1]) < 0.02
    np.testing.assert_allclose(place.mean(axis=0), 0.5, atol=0.02)
    assert place.min() >= 0 and place.max() < 1


def test_channels_are_scaled_alike_one_by_one_and_in_rows(rng):
    images = rng.uniform(0, 255, (2, 5, 4, 3)).astype(np.float32)
    for order in ("rgb", "bgr"):
        chosen = Preprocessing((5, 4), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3), channel_order=order)
        turned = images if order == "rgb" else images[..., ::-1]
        expected = (turned.astype(float) / 255 - chosen.mean) / chosen.std
        for given in (images, tf.constant(images), tf.constant(images[0])):
            found = scale_values(given, chosen)
            np.testing.assert_allclose(
                found, expected if given.ndim == 4 else expected[0], 1e-5, 1e-5
            )
