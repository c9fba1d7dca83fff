"""What TensorFlow decodes, bit for bit as Pillow does, and what Pillow alone decodes."""

import io

import numpy as np
import pytest
import tensorflow as tf
from image_folders import encoded, photo
from PIL import Image, ImageOps, PngImagePlugin

from vit_tf.data import imaging


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


def with_raw_profile(image, orientation, zipped):
    """A PNG with EXIF as ImageMagick stores it: hexadecimal, in a text chunk."""
    exif = turned(orientation).tobytes()
    lines = "\n".join(exif.hex()[start : start + 72] for start in range(0, 2 * len(exif), 72))
    info = PngImagePlugin.PngInfo()
    info.add_text("Raw profile type exif", f"\nexif\n{len(exif):8}\n{lines}\n", zip=zipped)
    return encoded(image, "PNG", pnginfo=info)


def files(rng):
    """dict from a name to the content of an image file, and whether it takes Pillow to read it."""
    picture = photo(rng)
    alpha = picture.copy()
    alpha.putalpha(photo(rng).convert("L"))
    grey, clear = picture.convert("L"), picture.quantize(16)
    deep = Image.fromarray(rng.integers(0, 2**16, (5, 6)).astype(np.uint16))
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", xmp.decode())
    by_graph = {
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
        "lossless webp": encoded(picture, "WEBP", lossless=True),
        "transparent webp": encoded(alpha, "WEBP"),
    }
    by_pillow = {
        "TIFF": encoded(picture, "TIFF"),
        "transparent gif": encoded(clear, "GIF", transparency=3),
        "palette bmp": encoded(clear, "BMP"),
        "turned webp": encoded(picture, "WEBP", exif=turned(6)),
        "transparent bit": encoded(picture.convert("1"), "PNG", transparency=0),
    }
    kinds = {name: (content, False) for name, content in by_graph.items()}
    return kinds | {name: (content, True) for name, content in by_pillow.items()}


@pytest.fixture(scope="module")
def kinds():
    return files(np.random.default_rng(0))


@pytest.fixture(scope="module")
def whole():
    return tf.function(imaging.decode, input_signature=[tf.TensorSpec((), tf.string)])


def test_kinds_are_as_pillow_reads_them(kinds, whole):
    for name, (content, by_pillow) in kinds.items():
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
        expected = imaging.pixels(content)
        if not image.has_transparency_data and name != "16 bits":
            np.testing.assert_array_equal(expected, image.convert("RGB"), err_msg=name)
        if by_pillow:
            with pytest.raises(tf.errors.OpError):
                whole(content)
            continue
        found = whole(content).numpy()
        assert found.dtype == np.uint8
        if name == "cmyk":  # TensorFlow multiplies black in whole numbers, rounded down
            assert np.abs(found.astype(int) - expected).max() == 1
        else:
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_every_alpha_on_white_is_that_of_pillow():
    values = np.stack(np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2), axis=-1)
    image = values[..., [0, 0, 0, 1]]
    expected = imaging.pixels_of(Image.fromarray(image, "RGBA"))
    np.testing.assert_array_equal(imaging._on_white(tf.constant(image)), expected)


def test_parts_are_those_of_the_whole_bit_for_bit(kinds, rng):
    @tf.function
    def part(content, box):
        return imaging.decode(content, lambda height, width: box)

    names = ("jpeg", "progressive", "no subsampling", "grey jpeg", "cmyk", "turned 6", "png")
    names += ("transparent", "WEBP")
    for name in names:
        content = kinds[name][0]
        image = imaging.pixels(content)
        height, width = image.shape[:2]
        for _ in range(40):
            top, left = rng.integers(height), rng.integers(width)
            rows, columns = rng.integers(1, height - top + 1), rng.integers(1, width - left + 1)
            found = part(content, tf.constant([top, left, rows, columns], tf.int32)).numpy()
            expected = image[top : top + rows, left : left + columns].astype(int)
            assert found.shape == expected.shape
            assert np.abs(found - expected).max() <= (name == "cmyk"), name


def test_upright_or_as_stored(kinds):
    content = kinds["turned 6"][0]
    stored = imaging.decode(tf.constant(content), upright=False)
    np.testing.assert_array_equal(stored, Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(imaging.decode(tf.constant(content)), np.rot90(stored, -1))


def test_what_cannot_be_decoded_raises_and_is_told(kinds, whole):
    content = kinds["jpeg"][0]
    for damaged in (content[: len(content) // 2], content[:20], b"\xff\xd8\xff", b"text", b""):
        with pytest.raises(tf.errors.OpError):
            whole(damaged)
        with pytest.raises(ValueError, match="Received: undecodable it "):
            imaging.pixels(damaged, "it")
    image, words = imaging.decode_or_tell(imaging.pixels, b"text")
    assert image.shape == (1, 1, 3) and "undecodable an image (UnidentifiedImageError" in words
    assert "BytesIO" not in words


def test_values_beyond_16_bits_are_refused(rng):
    for values in (rng.random((4, 5)), rng.integers(0, 2**20, (4, 5))):
        kind = np.float32 if values.dtype == float else np.int32
        content = encoded(Image.fromarray(values.astype(kind)), "TIFF")
        with pytest.raises(ValueError, match="8 or 16 bits"):
            imaging.pixels(content)
    deep = rng.integers(0, 2**16, (4, 5))
    found = imaging.pixels(encoded(Image.fromarray(deep.astype(np.uint16)), "TIFF"))
    np.testing.assert_array_equal(found, np.round(deep / 257)[..., None].repeat(3, -1))
