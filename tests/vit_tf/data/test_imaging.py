"""Decoded, cropped, resized and scaled images against Pillow and the definitions of torchvision."""

import dataclasses
import gc
import io
import math
import resource
import struct
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from image_folders import encoded, photo, turned
from PIL import Image, ImageOps, PngImagePlugin

from vit_tf import Preprocessing
from vit_tf.data import imaging, resizing
from vit_tf.data.imaging import ASPECT, draw_sides, random_window
from vit_tf.data.preprocessing import INTERPOLATIONS, WORDS, JointPreprocessing
from vit_tf.data.resizing import resize_image, scale_values


def noise_in_black(image):
    """In CMYK, with a black channel, in which rounding shows."""
    cyan, magenta, yellow, _ = image.convert("CMYK").split()
    return Image.merge("CMYK", (cyan, magenta, yellow, image.convert("L")))


def with_raw_profile(image, orientation, zipped):
    """A PNG with EXIF as ImageMagick stores it: hexadecimal, in a text chunk."""
    exif = turned(orientation).tobytes()
    lines = "\n".join(exif.hex()[start : start + 72] for start in range(0, 2 * len(exif), 72))
    info = PngImagePlugin.PngInfo()
    info.add_text("Raw profile type exif", f"\nexif\n{len(exif):8}\n{lines}\n", zip=zipped)
    return encoded(image, "PNG", pnginfo=info)


def files(rng):
    """dict from a name to the content of an image file."""
    picture = photo(rng)
    alpha = picture.copy()
    alpha.putalpha(photo(rng).convert("L"))
    grey, clear = picture.convert("L"), picture.quantize(16)
    deep = Image.fromarray(rng.integers(0, 2**16, (5, 6)).astype(np.uint16))
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", xmp.decode())
    return {
        "jpeg": encoded(picture),
        "progressive": encoded(picture, progressive=True, quality=100),
        "no subsampling": encoded(picture, subsampling=0),
        "grey jpeg": encoded(grey),
        "upright": encoded(picture, exif=turned(1)),
        "upright, big-endian": encoded(picture, exif=turned(1, True)),
        "upright, profile": encoded(picture, exif=turned(1), icc_profile=b"p" * 999),
        "no such orientation": encoded(picture, exif=turned(9)),
        "turned by xmp": encoded(picture, xmp=xmp),
        "cmyk": encoded(noise_in_black(picture)),
        **{f"turned {n}": encoded(picture, exif=turned(n, n % 2)) for n in range(2, 9)},
        "png": encoded(picture, "PNG"),
        "grey png": encoded(grey, "PNG"),
        "palette": encoded(clear, "PNG"),
        "palette of 2 bits": encoded(picture.quantize(4), "PNG", bits=2),
        **{f"turned png {n}": encoded(picture, "PNG", exif=turned(n, n % 2)) for n in (3, 6, 7)},
        "png turned by xmp": encoded(picture, "PNG", pnginfo=info),
        "raw profile": with_raw_profile(picture, 6, False),
        "zipped raw profile": with_raw_profile(picture, 8, True),
        "transparent": encoded(alpha, "PNG"),
        "transparent grey": encoded(alpha.convert("LA"), "PNG"),
        "transparent colour": encoded(picture, "PNG", transparency=(1, 2, 3)),
        "transparent grey value": encoded(grey, "PNG", transparency=7),
        "transparent palette": encoded(clear, "PNG", transparency=3),
        "16 bits": encoded(deep, "PNG"),
        "1 bit": encoded(picture.convert("1"), "PNG"),
        **{f"grey of {bits} bits": encoded(grey, "PNG", bits=bits) for bits in (1, 2, 4)},
        **{kind: encoded(picture, kind) for kind in ("GIF", "BMP", "WEBP")},
        "animation": encoded(picture, "GIF", save_all=True, append_images=[photo(rng)]),
        "lossless webp": encoded(picture, "WEBP", lossless=True),
        "transparent webp": encoded(alpha, "WEBP"),
        "TIFF": encoded(picture, "TIFF"),
        "transparent gif": encoded(clear, "GIF", transparency=3),
        "palette bmp": encoded(clear, "BMP"),
        "turned webp": encoded(picture, "WEBP", exif=turned(6)),
        "transparent bit": encoded(picture.convert("1"), "PNG", transparency=0),
    }


@pytest.fixture(scope="module")
def kinds():
    return files(np.random.default_rng(0))


@pytest.fixture(scope="module")
def whole():
    return tf.function(imaging.decode, input_signature=[tf.TensorSpec((), tf.string)])


def test_kinds_are_as_pillow_reads_them(kinds, whole):
    for name, content in kinds.items():
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
        expected = imaging.pixels(content)
        if not image.has_transparency_data and name != "16 bits":
            np.testing.assert_array_equal(expected, image.convert("RGB"), err_msg=name)
        found = whole(content).numpy()
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected, err_msg=name)


ORDINARY = (
    *("jpeg", "progressive", "no subsampling", "grey jpeg", "upright", "upright, big-endian"),
    *("upright, profile", "png", "grey png", "palette", "palette of 2 bits"),
)


def test_python_decodes_none_but_odd_files(kinds, whole, monkeypatch):
    by_python = []
    read = imaging.pixels
    monkeypatch.setattr(imaging, "pixels", lambda *a, **k: by_python.append(0) or read(*a, **k))
    odd = set()
    for name, content in kinds.items():
        by_python.clear()
        whole(content)
        odd |= {name} if by_python else set()
    assert odd == set(kinds) - set(ORDINARY)


def test_odd_files_are_decoded_after_a_session_is_cleared(kinds, whole):
    content = kinds["turned 6"]
    expected = whole(content)
    keras.utils.clear_session()
    gc.collect()
    np.testing.assert_array_equal(whole(content), expected)


def test_every_alpha_on_white_is_that_of_pillow():
    values = np.stack(np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2), axis=-1)
    image = values[..., [0, 0, 0, 1]]
    expected = imaging.pixels_of(Image.fromarray(image, "RGBA"))
    np.testing.assert_array_equal(imaging._on_white(tf.constant(image)), expected)


@pytest.mark.slow
def test_windows_equal_crops_of_the_image_bit_for_bit(kinds, rng):
    @tf.function
    def part(content, box):
        return imaging.decode(content, lambda height, width: box)

    names = ("jpeg", "progressive", "no subsampling", "grey jpeg", "cmyk", "turned 6", "png")
    names += ("transparent", "WEBP")
    for name in names:
        content = kinds[name]
        image = imaging.pixels(content)
        height, width = image.shape[:2]
        for _ in range(40):
            top, left = rng.integers(height), rng.integers(width)
            rows, columns = rng.integers(1, height - top + 1), rng.integers(1, width - left + 1)
            found = part(content, tf.constant([top, left, rows, columns], tf.int32)).numpy()
            expected = image[top : top + rows, left : left + columns]
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_upright_or_as_stored(kinds):
    content = kinds["turned 6"]
    stored = imaging.decode(tf.constant(content), upright=False)
    np.testing.assert_array_equal(stored, Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(imaging.decode(tf.constant(content)), np.rot90(stored, -1))


def test_what_cannot_be_decoded_raises(kinds, whole):
    content = kinds["jpeg"]
    for damaged in (content[: len(content) // 2], content[:20], b"\xff\xd8\xff", b"text", b""):
        with pytest.raises(tf.errors.OpError):
            whole(damaged)
        with pytest.raises(ValueError, match="Received: undecodable it "):
            imaging.pixels(damaged, "it")
    image, problem = imaging.decode_in_python(imaging.pixels, tf.constant(b"text"))
    words = problem.numpy().decode()
    assert image.shape == (1, 1, 3) and "undecodable an image (UnidentifiedImageError" in words
    assert "BytesIO" not in words


def with_texts(count: int, text: bytes) -> bytes:
    """A PNG with a number of deflated texts, as ImageMagick stores EXIF."""
    content = encoded(Image.new("RGB", (3, 2)), "PNG")
    data = b"zTXtRaw profile type exif\0\0" + zlib.compress(text)
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return content[:33] + chunk * count + content[33:]  # behind the header


@pytest.mark.slow
def test_what_inflates_beyond_bounds_is_refused_before_it_takes_memory(whole):
    bomb = with_texts(1, bytes(2**28))
    assert len(bomb) < 2**19
    whole(with_texts(1, b"\nexif\n"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(tf.errors.OpError, match="undecodable"):
        whole(bomb)
    # Kilobytes, of which 64 KiB that are deflated can make 66,000.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_exif_of_64_kilobytes_still_turns_an_image(rng, whole):
    picture = photo(rng)
    exif = turned(6)
    exif[0x927C] = rng.bytes(65_000)
    lines = exif.tobytes().hex()
    info = PngImagePlugin.PngInfo()
    info.add_text("Raw profile type exif", f"\nexif\n{len(lines) // 2:8}\n{lines}\n", zip=True)
    content = encoded(picture, "PNG", pnginfo=info)
    np.testing.assert_array_equal(whole(content), np.rot90(np.asarray(picture), -1))


def test_values_beyond_16_bits_are_refused(rng):
    for values in (rng.random((4, 5)), rng.integers(0, 2**20, (4, 5))):
        kind = np.float32 if values.dtype == float else np.int32
        content = encoded(Image.fromarray(values.astype(kind)), "TIFF")
        with pytest.raises(ValueError, match="8 or 16 bits"):
            imaging.pixels(content)
    deep = rng.integers(0, 2**16, (4, 5))
    found = imaging.pixels(encoded(Image.fromarray(deep.astype(np.uint16)), "TIFF"))
    np.testing.assert_array_equal(found, np.round(deep / 257)[..., None].repeat(3, -1))


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


def test_squeezed_images_are_cropped_like_squares(rng):
    """Both sides become `floor(side / crop)`, as with timm's crop mode "squash"."""
    for crop, size in ((0.9, (24, 24)), (0.75, (24, 18)), (1.0, (24, 24))):
        how = Preprocessing(size, interpolation="bicubic", crop=crop, aspect="squeeze")
        larger = [math.floor(side / crop) for side in size]
        top, left = (round((n - side) / 2) for n, side in zip(larger, size, strict=True))
        for shape in ((61, 83), (20, 95)):
            image = rng.integers(0, 256, (*shape, 3), np.uint8)
            expected = resized(image, tuple(larger), "bicubic")
            expected = expected[top : top + size[0], left : left + size[1]]
            np.testing.assert_allclose(resize_image(image, size, how), expected, atol=0.01)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("crop", [0.875, 0.9, 1.0])
def test_centre_crops_are_those_of_torchvision(rng, method, crop):
    how = Preprocessing((24, 24), interpolation=method, crop=crop)
    for shape in ((61, 83), (83, 61), (40, 40), (32, 57), (24, 24), (31, 95)):
        image = rng.integers(0, 256, (*shape, 3), np.uint8)
        expected = torchvision_centre(image, 24, crop, method)
        found = resize_image(tf.constant(image), (24, 24), how)
        np.testing.assert_allclose(found, expected, atol=0.01)
        batch = resize_image(tf.constant(image[None]), (24, 24), how)
        np.testing.assert_array_equal(batch[0], found)


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "lanczos3", "lanczos5"])
@pytest.mark.parametrize("antialias", [True, False])
def test_whole_rows_are_resized_bit_for_bit_as_pixels(rng, method, antialias):
    """Rows, then columns, each as channels, are what the operation of TensorFlow does itself."""
    how = Preprocessing((24, 31), interpolation=method, antialias=antialias)
    kernel = {"bilinear": "triangle", "bicubic": "keyscubic"}.get(method, method)
    for shape in ((61, 83, 3), (9, 60, 1), (60, 9, 4), (2, 33, 47, 3), (0, 33, 47, 3)):
        images = rng.integers(0, 256, shape, np.uint8)
        batch = images.reshape(-1, *shape[-3:])
        scale, shift = [0.55, 1.3], [-1.0, 2.0]
        expected = tf.raw_ops.ScaleAndTranslate(
            images=batch,
            size=(24, 31),
            scale=scale,
            translation=shift,
            kernel_type=kernel,
            antialias=antialias,
        )
        expected = tf.clip_by_value(expected, 0, 255)
        found = resizing._scale_and_translate(
            tf.constant(batch), (24, 31), how, tf.constant(scale), tf.constant(shift)
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("method", METHODS)
def test_squeezed_images_are_those_of_pillow(rng, method):
    """Where both sides grow, one of them, or none; also at the border, and never beyond white."""
    how = Preprocessing((24, 31), interpolation=method)
    for shape in ((9, 13), (24, 31), (9, 60), (60, 9), (61, 83), (1, 1)):
        image = rng.choice(np.array([0, 255, 255, 77], np.uint8), (*shape, 3))
        found = resize_image(tf.constant(image), (24, 31), how).numpy()
        np.testing.assert_allclose(found, resized(image, (24, 31), method), atol=0.01)
        assert found.min() >= 0 and found.max() <= 255
        batch = resize_image(tf.constant(image[None]), (24, 31), how)
        np.testing.assert_array_equal(batch[0], found)


@pytest.mark.parametrize("method", INTERPOLATIONS)
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("aspect", WORDS["aspect"])
def test_images_are_resized_as_by_keras(rng, method, antialias, aspect):
    """Also of an odd number of rows, whose padding is uneven, and where both sides grow."""
    how = Preprocessing((24, 31), interpolation=method, antialias=antialias, aspect=aspect)
    layer = keras.layers.Resizing(
        *how.size,
        interpolation=method,
        antialias=antialias,
        crop_to_aspect_ratio=aspect == "crop",
        pad_to_aspect_ratio=aspect == "pad",
    )
    for shape in ((61, 83), (83, 62), (9, 13), (90, 20)):
        image = rng.uniform(0, 255, (*shape, 3)).astype("float32")
        # Kernels with negative weights overshoot, and Keras leaves what does.
        expected = np.clip(layer(image), 0, 255)
        np.testing.assert_allclose(resize_image(image, how.size, how), expected, atol=0.02)


def test_nearest_neighbours_are_cropped_as_other_interpolations_are(rng):
    """Every value is one of the image's, and lies where a smooth interpolation has it."""
    image = np.kron(rng.permuted(np.arange(20.0)).reshape(4, 5), np.ones((12, 12)))[..., None]
    smooth = Preprocessing((24, 24), crop=0.875)
    nearest = dataclasses.replace(smooth, interpolation="nearest")
    found, around = (np.asarray(resize_image(image, (24, 24), how)) for how in (nearest, smooth))
    assert set(np.unique(found)) <= set(range(20)) and np.median(abs(found - around)) < 0.5


def test_an_oblong_centre_covers_the_size_and_keeps_the_shape(rng):
    image = rng.integers(0, 256, (60, 90, 3), np.uint8)
    found = resize_image(tf.constant(image), (20, 40), Preprocessing((20, 40), crop=1.0))
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


def test_areas_and_aspect_ratios_are_drawn_as_by_torchvision():
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


def test_random_crops_are_those_of_one_model():
    one = Preprocessing((4, 4))
    with pytest.raises(ValueError, match="one model, for random crops"):
        imaging.framing_of(JointPreprocessing((one, one)), (4, 4), area=(0.5, 1.0))
    assert imaging.framing_of(one, (4, 4), area=(0.5, 1.0)).area == (0.5, 1.0)
