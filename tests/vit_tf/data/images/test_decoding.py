"""What is decoded by TensorFlow, bit for bit as Pillow does, and what by Pillow."""

import io

import numpy as np
import pytest
import tensorflow as tf
from image_folders import encoded, photo
from PIL import Image, ImageOps

from vit_tf.data.images import decoding


def turned(orientation, big_endian=False):
    exif = Image.Exif()
    exif.endian = ">" if big_endian else "<"
    exif[0x010F] = "maker"
    exif[0x0112] = orientation
    return exif


def noise_in_black(image):
    """In CMYK, with a black channel, in which rounding shows."""
    cyan, magenta, yellow, _ = image.convert("CMYK").split()
    return Image.merge("CMYK", (cyan, magenta, yellow, image.convert("L")))


def files(rng):
    """dict from a name to the content of an image file, and whether it takes Pillow to read it."""
    picture = photo(rng)
    alpha = picture.copy()
    alpha.putalpha(photo(rng).convert("L"))
    clear = picture.quantize(16)
    deep = Image.fromarray(rng.integers(0, 2**16, (5, 6)).astype(np.uint16))
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'
    return {
        "jpeg": (encoded(picture), False),
        "progressive": (encoded(picture, progressive=True, quality=100), False),
        "no subsampling": (encoded(picture, subsampling=0), False),
        "grey jpeg": (encoded(picture.convert("L")), False),
        "upright": (encoded(picture, exif=turned(1)), False),
        "upright, big-endian": (encoded(picture, exif=turned(1, True)), False),
        "upright, profile": (encoded(picture, exif=turned(1), icc_profile=b"p" * 999), False),
        "png": (encoded(picture, "PNG"), False),
        "grey png": (encoded(picture.convert("L"), "PNG"), False),
        "palette": (encoded(picture.quantize(16), "PNG"), False),
        **{f"turned {n}": (encoded(picture, exif=turned(n, n % 2)), True) for n in range(2, 9)},
        "turned by xmp": (encoded(picture, xmp=xmp), True),
        "turned png": (encoded(picture, "PNG", exif=turned(6)), True),
        "cmyk": (encoded(noise_in_black(picture)), True),
        "transparent": (encoded(alpha, "PNG"), True),
        "transparent colour": (encoded(picture, "PNG", transparency=(1, 2, 3)), True),
        "transparent palette": (encoded(clear, "PNG", transparency=3), True),
        "16 bits": (encoded(deep, "PNG"), True),
        "1 bit": (encoded(picture.convert("1"), "PNG"), True),
        **{kind: (encoded(picture, kind), True) for kind in ("GIF", "BMP", "WEBP", "TIFF")},
    }


@pytest.fixture(scope="module")
def kinds():
    return files(np.random.default_rng(0))


@pytest.fixture(scope="module")
def whole():
    return tf.function(decoding.decode, input_signature=[tf.TensorSpec((), tf.string)])


def test_every_kind_of_file_is_as_pillow_reads_it(kinds, whole):
    for name, (content, _) in kinds.items():
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
        found = whole(content).numpy()
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, decoding.pixels(content), err_msg=name)
        if not image.has_transparency_data and name != "16 bits":
            np.testing.assert_array_equal(found, image.convert("RGB"), err_msg=name)


def test_pillow_reads_only_what_tensorflow_cannot(kinds, monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("asked Pillow")

    monkeypatch.setattr(decoding, "pixels", refuse)
    decode = tf.function(decoding.decode, input_signature=[tf.TensorSpec((), tf.string)])
    for name, (content, by_pillow) in kinds.items():
        if by_pillow:
            with pytest.raises(tf.errors.OpError, match="asked Pillow"):
                decode(content)
        else:
            assert decode(content).shape[-1] == 3, name


def test_parts_are_those_of_the_whole_bit_for_bit(kinds, rng):
    @tf.function
    def part(content, box):
        return decoding.decode(content, lambda height, width: box)

    names = ("jpeg", "progressive", "no subsampling", "grey jpeg", "cmyk", "turned 6", "png")
    for name in names:
        content = kinds[name][0]
        image = decoding.pixels(content)
        height, width = image.shape[:2]
        for _ in range(40):
            top, left = rng.integers(height), rng.integers(width)
            rows, columns = rng.integers(1, height - top + 1), rng.integers(1, width - left + 1)
            found = part(content, tf.constant([top, left, rows, columns], tf.int32))
            expected = image[top : top + rows, left : left + columns]
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_upright_or_as_stored(kinds):
    content = kinds["turned 6"][0]
    stored = decoding.decode(tf.constant(content), upright=False)
    np.testing.assert_array_equal(stored, Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(decoding.decode(tf.constant(content)), np.rot90(stored, -1))


def test_what_cannot_be_decoded_raises_and_is_told(kinds, whole):
    content = kinds["jpeg"][0]
    for damaged in (content[: len(content) // 2], content[:20], b"\xff\xd8\xff", b"text", b""):
        with pytest.raises(tf.errors.OpError):
            whole(damaged)
        with pytest.raises(ValueError, match="Received: undecodable it "):
            decoding.pixels(damaged, "it")
    image, words = decoding.decode_or_tell(decoding.pixels, b"text")
    assert image.shape == (1, 1, 3) and "undecodable an image (UnidentifiedImageError" in words
    assert "BytesIO" not in words


def test_values_beyond_16_bits_are_refused(rng):
    for values in (rng.random((4, 5)), rng.integers(0, 2**20, (4, 5))):
        kind = np.float32 if values.dtype == float else np.int32
        content = encoded(Image.fromarray(values.astype(kind)), "TIFF")
        with pytest.raises(ValueError, match="8 or 16 bits"):
            decoding.pixels(content)
    deep = rng.integers(0, 2**16, (4, 5))
    found = decoding.pixels(encoded(Image.fromarray(deep.astype(np.uint16)), "TIFF"))
    np.testing.assert_array_equal(found, np.round(deep / 257)[..., None].repeat(3, -1))
