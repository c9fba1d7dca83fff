"""Images from encoded bytes to what a model expects: decoded, cropped, resized and scaled.

TensorFlow decodes JPEG and PNG of every kind, and WebP, GIF and BMP of the usual kinds, in a graph
without Python functions, so that it can be copied to other hosts. Pillow reads everything, under
Python's lock.
"""

import contextlib
import io
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from vit_tf.common.names import file_error
from vit_tf.data.batches import ImageMap, RandomNumbers
from vit_tf.data.preprocessing import JointPreprocessing, Preprocessing
from vit_tf.data.resizing import resize_image, scale_values
from vit_tf.data.source import Window

if TYPE_CHECKING:
    from PIL.Image import Image

# TensorFlow's default for JPEG, a fast cosine transform, makes red and blue a level darker.
EXACT = {"dct_method": "INTEGER_ACCURATE"}
MARGIN = 2  # pixels
# In these bytes of a JPEG file its EXIF and XMP blocks begin.
HEAD = 2**16
# An orientation other than 1, in EXIF of either byte order or in XMP, somewhere behind its name.
TURNED = (
    r"\C*(?:Exif\x00\x00\C*(?:\x12\x01\C\x00\x01\x00\x00\x00[\x00\x02-\x7f]"
    r"|\x01\x12\x00\C\x00\x00\x00\x01(?:\x00[\x00\x02-\x7f]|[\x01-\x7f]))"
    r"|tiff:Orientation(?:=\"|>)[^1])\C*"
)
# One of these is in every file that `TURNED` matches.
NAMES = (r"Exif\x00\x00", "tiff:Orientation")
# Chunks of PNG that make an image transparent, turn it or move it, or that hold compressed text.
UNUSUAL = r"\C*(?:tRNS|eXIf|XML:com\.adobe\.xmp|Raw profile type exif|acTL|zTXt|iTXt)\C*"
# A small file can declare, or inflate to, more than any memory. Images have at most as many pixels
# as Pillow's limit (a gigabyte of red, green and blue, halved), as TensorFlow's of JPEG.
MOST_PIXELS = 2**29 // 3
# libpng inflates each text to at most 8 MB and has them all in memory.
MOST_TEXTS = 64
# Pillow's limit of a text; and of what is read of a deflated one, which 64 KiB of EXIF fit into.
MOST_TEXT, MOST_DEFLATED = 2**20, 2**16
# The first bytes of a PNG of 8 bits, grey or RGB, or of colours of a palette.
PLAIN_PNG = r"\CPNG\r\n\x1a\n\C{4}IHDR\C{8}(?:\x08[\x00\x02]|[\x01\x02\x04\x08]\x03)\C*"
PNG = r"\CPNG\r\n\x1a\n"
# WebP without animation, EXIF and XMP; BMP of 24 bits without compression; GIF.
PLAIN_WEBP = r"RIFF\C{4}WEBPVP8(?:[ L]|X\C{4}[\x00\x10\x20\x30])\C*"
PLAIN_BMP = r"BM\C{26}\x18\x00\x00\x00\x00\x00\C*"
GIF = r"GIF8[79]a\C*"
# A graphic control extension with a transparent colour.
TRANSPARENT_GIF = r"\C*!\C\x04[\x01\x03\x05\x07\x09\x0b\x0d\x0f]\C{3}\x00\C*"
# Each row weighs the bytes of a WebP's head, and the sum is a number that it declares: width and
# height of the canvas, width and height of a lossy image, and both of a lossless one.
WEBP_NUMBERS = np.zeros((5, 30), np.int64)
WEBP_NUMBERS[0, 24:27] = WEBP_NUMBERS[1, 27:30] = 1, 2**8, 2**16
WEBP_NUMBERS[2, 26:28] = WEBP_NUMBERS[3, 28:30] = 1, 2**8
WEBP_NUMBERS[4, 21:25] = 1, 2**8, 2**16, 2**24
ORIENTATION = 0x0112  # the tag of EXIF
XMP_ORIENTATION = r"\A\C*?tiff:Orientation(?:=\"|>)([0-9])\C*\z"


# No `if` here has a tensor as its condition, and AutoGraph would need seconds to find none.
@tf.autograph.experimental.do_not_convert
def decode(contents: tf.Tensor, window: Window | None = None, upright: bool = True) -> tf.Tensor:
    """The image of `pixels`, or a window of it, in the graph, which raises where it cannot.

    It is equal bit for bit, but for JPEG in CMYK, which is within one of 255 levels. `window` is a
    function of height and width to (top, left, height, width).
    """
    # Conditions side by side, since one within another is slow in TensorFlow.
    is_jpeg = tf.io.is_jpeg(contents)
    shape = tf.cond(
        is_jpeg, lambda: tf.image.extract_jpeg_shape(contents), lambda: tf.zeros(3, tf.int32)
    )
    contents = _with_assertion(contents, _few_pixels(shape[:2]), "too many pixels")
    usual_jpeg = is_jpeg & (shape[2] != 4)
    if upright:
        usual_jpeg &= ~_is_turned(contents)
    readers = [
        lambda: cut(_unusual(contents, upright), window),
        lambda: _jpeg(contents, shape, window),
        lambda: cut(tf.io.decode_png(_with_declared_size(contents), 3), window),
    ]
    kind = tf.cast(usual_jpeg, tf.int32) + 2 * tf.cast(_is_plain_png(contents), tf.int32)
    return tf.switch_case(kind, readers)


def _with_assertion(contents: tf.Tensor, condition: tf.Tensor, words: str) -> tf.Tensor:
    """The contents of a file, or an error of TensorFlow."""
    with tf.control_dependencies([tf.debugging.Assert(condition, [words])]):
        return tf.identity(contents)


def _few_pixels(size: tf.Tensor) -> tf.Tensor:
    """Whether an image of (height, width), in either order, has at most `MOST_PIXELS`."""
    return tf.reduce_prod(tf.cast(size, tf.int64)) <= MOST_PIXELS


def _with_declared_size(png: tf.Tensor) -> tf.Tensor:
    """The contents of a PNG; an error of TensorFlow where its header declares too many pixels."""
    size = tf.io.decode_raw(tf.strings.substr(png, 16, 8), tf.int32, little_endian=False)
    return _with_assertion(png, _few_pixels(size), "too many pixels")


def decode_or_name(
    decode: Callable[[tf.Tensor], tf.Tensor],
    item: tf.Tensor,
    name: str | tf.Tensor,
    read: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The image that `decode` returns and no words; or a black pixel and an error with the name."""
    expected = "Expected an image file that can be decoded. Received: undecodable "
    start, black = tf.strings.join([expected, name]), tf.zeros((1, 1, 3), tf.uint8)
    corrupt = start + " (corrupt, or of another format than its name says)"
    missing = start + " (no such file, or one that cannot be read)"
    single = tf.data.Dataset.from_tensors(item)
    decoded = single.map(lambda item: (decode(item), ""))
    failed = tf.data.Dataset.from_tensors((black, corrupt))
    if read is not None:  # reading alone fails for what is missing
        unread = tf.data.Dataset.from_tensors((black, missing))
        failed = single.map(lambda item: (black, corrupt + tf.strings.substr(read(item), 0, 0)))
        failed = failed.ignore_errors().concatenate(unread)
    return decoded.ignore_errors().concatenate(failed).take(1).get_single_element()


@tf.function(
    input_signature=[tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.bool)],
    autograph=False,
    experimental_attributes={"_noinline": True},
)
def _unusual(contents: tf.Tensor, upright: tf.Tensor) -> tf.Tensor:
    """The image of a file that is no usual JPEG or PNG; traced once for all graphs."""
    # TensorFlow optimizes each function of a graph anew in each data set that holds it, and each
    # branch is a function. So there are few branches, side by side.
    head = tf.strings.substr(contents, 0, 64)

    def begins(pattern: str) -> tf.Tensor:
        return tf.strings.regex_full_match(head, pattern)

    is_jpeg, is_png = tf.io.is_jpeg(contents), begins(rf"{PNG}\C*")
    is_deep = is_png & begins(r"\C{24}\x10\x00\C*")
    has_key = tf.strings.regex_full_match(contents, r"\C*tRNS\C*")
    has_alpha = is_png & (has_key | begins(r"\C{25}[\x04\x06]\C*"))
    readers = [
        (is_jpeg, lambda: tf.io.decode_jpeg(contents, 3, **EXACT)),
        (is_deep, lambda: _deep_png(_checked_png(contents))),
        (has_alpha, lambda: _transparent_png(_checked_png(contents))),
        (is_png, lambda: tf.io.decode_png(_checked_png(contents), 3)),
        (begins(PLAIN_WEBP), lambda: _webp(contents)),
        (begins(GIF), lambda: _gif(contents)),
        (begins(PLAIN_BMP), lambda: tf.io.decode_bmp(contents, 3)),
        (tf.constant(True), _refuse),
    ]
    conditions, branches = zip(*readers, strict=True)
    first = tf.cast(tf.where(tf.stack(conditions))[0, 0], tf.int32)
    image = tf.ensure_shape(tf.switch_case(first, branches), (None, None, 3))
    orientation = tf.cond(
        upright & (is_jpeg | is_png),
        lambda: _orientation(*_exif_and_xmp(contents, is_jpeg)),
        lambda: tf.ones((), tf.int64),
    )
    return _turned(image, orientation)


def _checked_png(contents: tf.Tensor) -> tf.Tensor:
    """The contents of a PNG; an error of TensorFlow where it takes too much memory."""
    texts = tf.strings.regex_replace(contents, "zTXt|iTXt", "")
    count = (tf.strings.length(contents) - tf.strings.length(texts)) // 4
    contents = _with_assertion(contents, count <= MOST_TEXTS, "too many compressed texts")
    return _with_declared_size(contents)


def _deep_png(png: tf.Tensor) -> tf.Tensor:
    """The image of a PNG of 16 bits in 8 bits."""
    return tf.cast(tf.round(tf.io.decode_png(png, 3, tf.uint16) / 257), tf.uint8)


def _transparent_png(png: tf.Tensor) -> tf.Tensor:
    """The image of a PNG on white; an error of TensorFlow for one of few grey values."""
    # TensorFlow does not scale these to 255 next to an alpha channel.
    few = tf.strings.regex_full_match(tf.strings.substr(png, 0, 26), r"\C{24}[\x01\x02\x04]\x00")
    with tf.control_dependencies([tf.debugging.Assert(~few, ["transparent, few values"])]):
        return _on_white(tf.io.decode_png(png, 4))


def _webp(contents: tf.Tensor) -> tf.Tensor:
    """The image of a WebP, on white."""
    image = tf.io.decode_webp(_with_webp_size(contents))[0]
    return tf.cond(tf.shape(image)[2] == 4, lambda: _on_white(image), lambda: image)


def _gif(contents: tf.Tensor) -> tf.Tensor:
    """The first frame of a GIF; an error of TensorFlow for one with a transparent colour."""
    opaque = ~tf.strings.regex_full_match(contents, TRANSPARENT_GIF)
    with tf.control_dependencies([tf.debugging.Assert(opaque, ["a transparent GIF"])]):
        return tf.io.decode_gif(_first_frame(contents))[0]


def _refuse() -> tf.Tensor:
    """An error of TensorFlow for all other files."""
    with tf.control_dependencies([tf.debugging.Assert(False, ["an unknown format"])]):
        return tf.zeros((1, 1, 3), tf.uint8)


def _first_frame(gif: tf.Tensor) -> tf.Tensor:
    """A GIF up to the end of its first frame; an error of TensorFlow for too many pixels in it.

    The other frames are not shown, and a small file can have any number of large ones.
    """
    # Behind the end follow zeros, which end what is skipped.
    data = tf.pad(_bytes(gif), [[0, 16]])
    last = tf.size(data) - 1

    def byte(place: tf.Tensor) -> tf.Tensor:
        return data[tf.minimum(place, last)]

    def behind_palette(place: tf.Tensor, flags: tf.Tensor) -> tf.Tensor:
        return place + tf.where(flags >= 128, 3 * 2 ** (flags % 8 + 1), 0)

    def skip(place: tf.Tensor, introducer: int, width: int) -> tf.Tensor:
        """The position behind all of what begins so, in so many bytes, and goes on in blocks."""

        def go_on(place: tf.Tensor, is_inside: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # A block begins with its size; one without any bytes is the last.
            size = byte(place)
            return tf.where(is_inside, place + size + 1, place + width), ~is_inside | (size > 0)

        def is_more(place: tf.Tensor, is_inside: tf.Tensor) -> tf.Tensor:
            return (place < last) & (is_inside | (byte(place) == introducer))

        return tf.while_loop(is_more, go_on, (place, tf.constant(False)))[0]

    image = skip(behind_palette(13, byte(10)), ord("!"), 2)  # behind all extensions
    sizes = tf.stack([[byte(n), byte(n + 1)] for n in (6, 8, image + 5, image + 7)]) @ [[1], [256]]
    gif = _with_assertion(gif, _few_pixels(sizes[:2]) & _few_pixels(sizes[2:]), "too many pixels")
    # Where the image's blocks begin, the byte before is the size of its codes.
    codes = behind_palette(image + 10, byte(image + 9))
    return tf.strings.join([tf.strings.substr(gif, 0, skip(codes, byte(codes), 1)), ";"])


def _with_webp_size(webp: tf.Tensor) -> tf.Tensor:
    """The contents of a WebP; an error of TensorFlow where its header declares too many pixels."""
    # The sides of the canvas have 24 bits each, minus one; those of lossless images 14 bits, minus
    # one; those of lossy ones 14 bits.
    head = tf.pad(_bytes(tf.strings.substr(webp, 0, 30)), [[0, 30]])[:30]
    numbers = tf.linalg.matvec(WEBP_NUMBERS, tf.cast(head, tf.int64))
    canvas, lossy = numbers[:2] + 1, numbers[2:4] % 2**14
    lossless = numbers[4] // [1, 2**14] % 2**14 + 1
    kind = head[15]
    size = tf.where(kind == ord("X"), canvas, tf.where(kind == ord("L"), lossless, lossy))
    return _with_assertion(webp, _few_pixels(size), "too many pixels")


def _on_white(image: tf.Tensor) -> tf.Tensor:
    """8-bit images with an alpha channel on white, in Pillow's integers of `alpha_composite`."""
    image = tf.cast(tf.ensure_shape(image, (*image.shape[:-1], 4)), tf.int32)
    color, alpha = image[..., :3], image[..., 3:]
    weight = alpha * 128
    mixture = color * weight + 255 * (255 * 128 - weight) + 128 * 128
    return tf.cast((mixture // 256 + mixture) // 2**15, tf.uint8)


def _exif_and_xmp(contents: tf.Tensor, is_jpeg: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The bytes of EXIF in a JPEG or PNG, int32, or none; and the text that may hold XMP."""
    text = tf.strings.substr(contents, 0, tf.where(is_jpeg, HEAD, -1))
    # In a PNG, EXIF has its own chunk, or is in a text chunk that ImageMagick writes.
    in_jpeg, has_block = _behind(text, r"Exif\x00\x00")
    in_png, has_chunk = _behind(text, "eXIf")
    is_plain = tf.where(is_jpeg, has_block, has_chunk)
    exif = tf.where(is_plain, tf.where(is_jpeg, in_jpeg, in_png), "")
    is_elsewhere = ~(is_plain | is_jpeg)
    return tf.cond(is_elsewhere, lambda: _raw_profile(contents), lambda: _bytes(exif)), text


def _raw_profile(contents: tf.Tensor) -> tf.Tensor:
    """The bytes of EXIF in ImageMagick's text chunk of a PNG, which is hexadecimal."""
    zipped, is_zipped = _behind(contents, r"zTXtRaw profile type exif\x00\x00")
    plain, is_plain = _behind(contents, r"tEXtRaw profile type exif\x00")

    def unzip() -> tf.Tensor:
        start = tf.strings.length(contents) - tf.strings.length(zipped)
        # The chunk's length stands before its name (4), the keyword (21) and two zeros.
        length = tf.strings.substr(contents, start - 31, 4)
        length = tf.io.decode_raw(length, tf.int32, little_endian=False)[0]
        deflated = tf.strings.substr(zipped, 0, tf.minimum(length - 23, MOST_DEFLATED))
        text = tf.io.decode_compressed(deflated, "ZLIB")
        return _with_assertion(text, tf.strings.length(text) <= MOST_TEXT, "too long a text")

    text = tf.cond(is_zipped, unzip, lambda: tf.where(is_plain, plain, ""))
    # A line "exif", one with the number of bytes, and these, which begin with "Exif" and two zeros.
    text = tf.strings.regex_replace(text, r"\A\s*exif\s+\d+\s+", "", replace_global=False)
    text = tf.strings.regex_replace(text, r"[^0-9a-fA-F\n]\C*\z|\n", "")
    digits = _bytes(tf.strings.lower(text))
    digits = tf.where(digits < ord("a"), digits - ord("0"), digits - ord("a") + 10)
    pairs = tf.reshape(digits[: tf.size(digits) // 2 * 2], (-1, 2))
    return pairs[6:, 0] * 16 + pairs[6:, 1]


def _behind(text: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
    """What follows a pattern in a text, and whether it is there."""
    rest = tf.strings.regex_replace(text, rf"\A\C*?{name}", "", replace_global=False)
    return rest, tf.strings.length(rest) < tf.strings.length(text)


def _bytes(text: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)


def _orientation(exif: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
    """The orientation of an image, 1 to 8, as Pillow finds it: in EXIF bytes, or in XMP text."""
    exif = tf.pad(exif, [[0, 16]])
    last = tf.size(exif, tf.int64) - 1
    is_little_endian = exif[0] == ord("I")
    # Whole numbers of two bytes each that begin at each position.
    pairs = tf.where(is_little_endian, exif[:-1] + 256 * exif[1:], 256 * exif[:-1] + exif[1:])

    def short(places: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.gather(pairs, tf.minimum(places, last - 1)), tf.int64)

    def long(places: tf.Tensor) -> tf.Tensor:
        first, second = short(places), short(places + 2)
        return tf.where(is_little_endian, first + 65536 * second, 65536 * first + second)

    first = long(tf.constant(4, tf.int64))
    entries = first + 2 + 12 * tf.range(short(first))
    entries = entries[entries + 12 <= last - 15]
    entries = entries[short(entries) == ORIENTATION]
    is_short = short(entries + 2) == 3
    values = tf.where(is_short, short(entries + 8), long(entries + 8))
    in_xmp = tf.strings.regex_replace(text, XMP_ORIENTATION, r"\1", replace_global=False)
    in_xmp = tf.where(tf.strings.length(in_xmp) == 1, in_xmp, "1")
    values = tf.concat([values, [tf.strings.to_number(in_xmp, tf.int64)]], 0)
    return tf.where((values[0] >= 1) & (values[0] <= 8), values[0], 1)


def _turned(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """An image in the upright position of its EXIF orientation."""

    def holds(*orientations: int) -> tf.Tensor:
        return tf.reduce_any(orientation == tf.constant(orientations, tf.int64))

    # Without conditions, each of which would be two functions; what changes nothing copies nothing.
    axes = tf.where(holds(5, 6, 7, 8), [1, 0, 2], [0, 1, 2])
    flips = tf.stack([holds(3, 4, 7, 8), holds(2, 3, 6, 7)])
    image = tf.transpose(image, axes)
    strides = tf.where(flips, -1, 1)
    ends = tf.zeros(2, tf.int32)
    image = tf.strided_slice(image, ends, ends, strides, begin_mask=3, end_mask=3)
    return tf.ensure_shape(image, (None, None, 3))


def _is_turned(contents: tf.Tensor) -> tf.Tensor:
    """Whether the EXIF or XMP of a JPEG asks for it to be turned."""
    head = tf.strings.substr(contents, 0, HEAD)

    def holds(name: str) -> tf.Tensor:
        # To replace a word takes a tenth of the time of a match: it is found by its first letter.
        rest = tf.strings.regex_replace(head, name, "", replace_global=False)
        return tf.strings.length(rest) < tf.strings.length(head)

    def matches() -> tf.Tensor:
        return tf.strings.regex_full_match(head, TURNED)

    return tf.cond(holds(NAMES[0]) | holds(NAMES[1]), matches, lambda: False)


def _is_plain_png(contents: tf.Tensor) -> tf.Tensor:
    """Whether an image is a PNG that TensorFlow decodes as Pillow does."""
    plain = tf.strings.regex_full_match(tf.strings.substr(contents, 0, 26), PLAIN_PNG)
    usual = lambda: ~tf.strings.regex_full_match(contents, UNUSUAL)  # noqa: E731
    return tf.cond(plain, usual, lambda: False)


def cut(image: tf.Tensor, window: Window | None) -> tf.Tensor:
    """The part of an image that a window, as of `decode`, names."""
    if window is None:
        return image
    shape = tf.shape(image)
    top, left, height, width = tf.unstack(window(shape[0], shape[1]))
    return image[top : top + height, left : left + width]


def _jpeg(contents: tf.Tensor, shape: tf.Tensor, window: Window | None) -> tf.Tensor:
    if window is None:
        return tf.io.decode_jpeg(contents, 3, **EXACT)
    start, size = tf.split(window(shape[0], shape[1]), 2)
    # At the edges of what is decoded, colours are interpolated without those of their neighbours.
    first = tf.maximum(start - MARGIN, 0)
    last = tf.minimum(start + size + MARGIN, shape[:2])
    around = tf.concat([first, last - first], 0)
    image = tf.image.decode_and_crop_jpeg(contents, around, 3, **EXACT)
    image = tf.slice(image, tf.pad(start - first, [[0, 1]]), tf.concat([size, [3]], 0))
    return tf.ensure_shape(image, (None, None, 3))


def decode_in_python(
    read: Callable[..., np.ndarray], *item: tf.Tensor, channels: int = 3
) -> tuple[tf.Tensor, tf.Tensor]:
    """The image that `read` returns and no words, or a black pixel and its `ValueError`'s words."""

    def attempt(*arguments: np.ndarray | bytes) -> tuple[np.ndarray, str]:
        try:
            return read(*arguments), ""
        except ValueError as error:
            return np.zeros((1, 1, channels), np.uint8), str(error)

    image, problem = tf.numpy_function(attempt, item, (tf.uint8, tf.string))
    return tf.ensure_shape(image, (None, None, channels)), tf.ensure_shape(problem, ())


def pixels(
    file: Any, name: str = "an image", upright: bool = True, channels: int = 3
) -> np.ndarray:
    """Decodes an image by Pillow from a path, an open file or bytes; see `pixels_of`."""
    from PIL import Image

    file = file.item() if isinstance(file, np.ndarray) else file
    file = io.BytesIO(file) if isinstance(file, bytes) else file
    with explained(file, name), Image.open(file) as image:
        return pixels_of(image, upright, channels)


@contextlib.contextmanager
def explained(
    file: object, name: str | os.PathLike, expected: str = "an image file"
) -> Iterator[None]:
    """Turns whatever Pillow raises for a corrupt file into a `ValueError` with its name."""
    try:
        yield
    except Exception as error:  # they raise whatever the file makes them
        reason = f"{type(error).__name__}: {file_error(error, file)}"
        raise ValueError(
            f"Expected {expected} that can be decoded. Received: undecodable {name} ({reason})"
        ) from error


def pixels_of(image: "Image", upright: bool = True, channels: int = 3) -> np.ndarray:
    """A Pillow image of any mode as a uint8 array: RGB on white, or of 4 channels with alpha."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image) if upright else image
    if image.mode.startswith(("I", "F")):
        deep = np.asarray(image, np.float64)
        if image.mode == "F" or deep.min() < 0 or deep.max() > 65535:
            raise ValueError(
                "Expected values of 8 or 16 bits. "
                f"Received: mode {image.mode}, values from {deep.min():g} to {deep.max():g}"
            )
        image = Image.fromarray(np.round(deep / 257).clip(0, 255).astype(np.uint8))
    if channels == 4:
        return np.asarray(image.convert("RGBA"))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"))


# Inception's crops (Szegedy et al. 2014, section 6) as torchvision's RandomResizedCrop makes them.
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


class CropArea(NamedTuple):
    """The range of the area of random crops, and the library whose distribution they have."""

    least: float
    most: float
    distribution: str = "torchvision"


@dataclass(frozen=True)
class Framing:
    """The size, values and random crop that decoded images get."""

    size: tuple[int, int]
    preprocessing: Preprocessing
    area: CropArea | None = None

    @property
    def num_channels(self) -> int:
        """The number of channels that it needs of a file, if that has so many."""
        return self.preprocessing.num_channels

    @property
    def spec(self) -> tf.TensorSpec:
        """The result of `fit` for an image."""
        return tf.TensorSpec((*self.size, self.preprocessing.num_channels), tf.float32)

    def draw(self, count: int | tf.Tensor, seed: tf.Tensor) -> RandomNumbers:
        """The random numbers from which `window` computes the crops of `count` images."""
        if self.area is None:
            raise ValueError("Expected area to be a range, for random crops. Received: area=None")
        # Another seed than those of the augmentations of the same batch.
        least, most, distribution = self.area
        return CROP_DISTRIBUTIONS[distribution][0](count, (least, most), seed + 31)

    def window(self, drawn: tuple) -> Window | None:
        """The window of `decode`, by what was drawn for an image; None for all of it."""
        if not self.area:
            return None
        find_window = CROP_DISTRIBUTIONS[self.area.distribution][1]
        return lambda height, width: find_window(height, width, *drawn[0])

    def fit(
        self, images: tf.Tensor, image_map: ImageMap | None = None, drawn: tuple = ()
    ) -> tf.Tensor:
        """Images of rank 3 or 4 with values in [0, 255], as a model expects them."""
        channels = self.preprocessing.num_channels
        images = reduce_channels(images, channels)
        resize = self.preprocessing.squeezed() if self.area else self.preprocessing
        images = resize_image(images, self.size, resize)
        images = tf.cast(images, tf.float32)
        images = add_channels(images, channels)
        images = image_map.apply(images, *drawn[-1]) if image_map else images
        return scale_values(images, self.preprocessing)


@dataclass(frozen=True)
class JointFraming:
    """The framings of several models: each image becomes one row, theirs flattened in order."""

    framings: tuple["Framing | JointFraming", ...]
    area = None  # of random crops, which only training makes

    @property
    def num_channels(self) -> int:
        """The number of channels that it needs of a file, if that has so many."""
        return max(framing.num_channels for framing in self.framings)

    @property
    def spec(self) -> tf.TensorSpec:
        """The result of `fit` for an image."""
        lengths = [framing.spec.shape.num_elements() for framing in self.framings]
        return tf.TensorSpec((sum(lengths),), tf.float32)

    def window(self, drawn: tuple) -> None:
        """The window of `decode`: all of the image."""
        return None  # AutoGraph cannot read a function without a statement

    def fit(
        self, images: tf.Tensor, image_map: ImageMap | None = None, drawn: tuple = ()
    ) -> tf.Tensor:
        """Images of rank 3 or 4 as rows of the numbers that the models expect."""
        is_batch = images.shape.rank == 4
        batch = images if is_batch else images[None]
        parts = [
            tf.reshape(framing.fit(batch), (-1, framing.spec.shape.num_elements()))
            for framing in self.framings
        ]
        rows = tf.concat(parts, axis=1)
        return rows if is_batch else rows[0]


def framing_of(
    preprocessing: Preprocessing | JointPreprocessing,
    size: tuple[int, int],
    area: CropArea | None = None,
) -> Framing | JointFraming:
    """The framing of a preprocessing; `size` is that of images where it leaves them theirs."""
    if isinstance(preprocessing, JointPreprocessing):
        if area is not None:
            raise ValueError(
                "Expected the preprocessing of one model, for random crops. "
                f"Received: that of {len(preprocessing.parts)} models"
            )
        return JointFraming(tuple(framing_of(part, size) for part in preprocessing.parts))
    height, width = preprocessing.size or size
    return Framing((height, width), preprocessing, area)


# Red, green and blue in Pillow's mode "L" (ITU-R 601-2 luma), in parts of 2**16.
LUMA = np.array([19595, 38470, 7471], np.int32)


def reduce_channels(images: tf.Tensor, num_channels: int) -> tf.Tensor:
    """Images in [0, 255] with no more channels than a model takes, as Pillow converts them."""
    given = images.shape[-1]
    if given == 4 and num_channels in (1, 3):
        images = tf.cast(_on_white(images), tf.uint8)
    if given in (3, 4) and num_channels == 1:
        levels = tf.cast(tf.round(tf.cast(images, tf.float32)), tf.int32)
        grey = tf.reduce_sum(levels * LUMA, axis=-1, keepdims=True)
        return tf.cast((grey + 2**15) // 2**16, tf.uint8)
    return images


def add_channels(images: tf.Tensor, num_channels: int) -> tf.Tensor:
    """Grey images as RGB, and either as opaque RGBA, where a model takes so many channels."""
    if images.shape[-1] == 1 and num_channels in (3, 4):
        images = tf.repeat(images, 3, axis=-1)
    if images.shape[-1] == 3 and num_channels == 4:
        opaque = tf.fill(tf.shape(images[..., :1]), tf.constant(255, images.dtype))
        images = tf.concat([images, opaque], axis=-1)
    if images.shape[-1] not in (num_channels, None):
        raise ValueError(
            f"Expected images of shape ([example,] height, width, {num_channels}). "
            f"Received: shape {tuple(images.shape)}"
        )
    return images


def draw_sides(
    count: int | tf.Tensor, area: tuple[float, float], seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Random sides, relative to the root of the area, (example, 2, try); and positions."""
    shape = (count, TRIES)
    shares = tf.random.stateless_uniform(shape, seed, *area)
    low, high = map(math.log, ASPECT)
    aspects = tf.exp(tf.random.stateless_uniform(shape, seed + 1, low, high))
    sides = tf.stack([tf.sqrt(shares / aspects), tf.sqrt(shares * aspects)], axis=1)
    return sides, tf.random.stateless_uniform((count, 2), seed + 2)


def random_window(
    height: tf.Tensor, width: tf.Tensor, sides: tf.Tensor, place: tf.Tensor
) -> tf.Tensor:
    """A random part of an image, (top, left, height, width), as torchvision's RandomResizedCrop."""
    # The first of the tries that fits, at a random position; if none does, the largest part of an
    # aspect ratio in `ASPECT`, in the centre.
    # In floats, which hold these integers exactly: few operations, as there are many images.
    limits = tf.cast(tf.stack([height, width]), tf.float32)
    tries = tf.round(sides * tf.sqrt(limits[0] * limits[1]))
    fits = tf.reduce_all((tries > 0) & (tries <= limits[:, None]), axis=0)

    size = tries[:, tf.argmax(tf.cast(fits, tf.int32))]
    room = limits - size
    window = tf.concat([tf.minimum(tf.floor(place * (room + 1)), room), size], 0)
    widest, highest = limits[0] * ASPECT[1], limits[1] / ASPECT[0]
    size = tf.round(tf.minimum(limits, tf.stack([highest, widest])))
    centre = tf.concat([(limits - size) // 2, size], 0)
    return tf.cast(tf.where(tf.reduce_any(fits), window, centre), tf.int32)


def draw_heights(
    count: int | tf.Tensor, area: tuple[float, float], seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """For each try, aspect ratio, range of the area and position in it, (example, 4, try)."""
    shape = (count, TRIES)
    aspects = tf.random.stateless_uniform(shape, seed, *TENSORFLOW_ASPECT)
    places = tf.random.stateless_uniform(shape, seed + 1)
    bounds = [tf.fill(shape, bound) for bound in area]
    numbers = tf.stack([aspects, *bounds, places], axis=1)
    return numbers, tf.random.stateless_uniform((count, 2), seed + 2)


def uniform_height_window(
    height: tf.Tensor, width: tf.Tensor, numbers: tf.Tensor, place: tf.Tensor
) -> tf.Tensor:
    """A random part of an image, as TensorFlow's `sample_distorted_bounding_box` draws it."""
    # Not the area is uniform but the height, between those that the aspect ratio, the range of the
    # area and the image allow. Where no try fits, the whole image is taken.
    limits = tf.cast(tf.stack([height, width]), tf.float32)
    aspects, least, most, places = tf.unstack(numbers)
    least, most = least * limits[0] * limits[1], most * limits[0] * limits[1]
    highest = tf.round(tf.sqrt(most / aspects))
    fits_width = tf.round(highest * aspects) <= limits[1]
    highest = tf.where(fits_width, highest, tf.floor((limits[1] + 0.5 - 1e-4) / aspects))
    highest = tf.minimum(highest, limits[0])
    lowest = tf.minimum(tf.round(tf.sqrt(least / aspects)), highest)
    count = highest - lowest + 1
    heights = lowest + tf.minimum(tf.floor(places * count), count - 1)

    # Rounding may leave the range of the area by a row.
    heights += tf.where(heights * tf.round(heights * aspects) < least, 1.0, 0.0)
    heights -= tf.where(heights * tf.round(heights * aspects) > most, 1.0, 0.0)
    sizes = tf.stack([heights, tf.round(heights * aspects)])
    areas = sizes[0] * sizes[1]
    fits = tf.reduce_all((sizes > 0) & (sizes <= limits[:, None]), axis=0)
    fits &= (areas >= least) & (areas <= most)

    size = sizes[:, tf.argmax(tf.cast(fits, tf.int32))]
    # TensorFlow never draws the last of the possible positions.
    room = limits - size
    start = tf.floor(place * room)
    window = tf.concat([tf.minimum(start, tf.maximum(room - 1, 0)), size], 0)
    whole = tf.concat([tf.zeros(2), limits], 0)
    return tf.cast(tf.where(tf.reduce_any(fits), window, whole), tf.int32)


# Aspect ratios (width / height) of the crops of TensorFlow's function.
TENSORFLOW_ASPECT = (0.75, 1.33)
# How the random numbers of crops are drawn, and how a window follows from them.
CROP_DISTRIBUTIONS = {
    "torchvision": (draw_sides, random_window),
    "tensorflow": (draw_heights, uniform_height_window),
}
