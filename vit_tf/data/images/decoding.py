"""Encoded images as pixels: TensorFlow's decoders where they agree with Pillow's bit for bit.

Pillow reads the rest, under Python's lock: CMYK, images that are to be turned upright, transparent
ones, more than 8 bits, GIF, BMP, WebP, TIFF. The first bytes of the file determine which it is.
"""

import contextlib
import functools
import io

import numpy as np
import tensorflow as tf

from vit_tf.names import file_error

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
# Chunks of PNG that make an image transparent, turn it or move it.
UNUSUAL = r"\C*(?:tRNS|eXIf|XML:com\.adobe\.xmp|Raw profile type exif|acTL)\C*"
# The first bytes of a PNG of 8 bits, grey or RGB, or of colours of a palette.
PLAIN_PNG = r"\CPNG\r\n\x1a\n\C{4}IHDR\C{8}(?:\x08[\x00\x02]|[\x01\x02\x04\x08]\x03)\C*"


def decode(contents, window=None, upright=True):
    """The image of an encoded one: uint8 tensor of shape (height, width, 3), on white.

    Equal to the result of `pixels`, bit for bit.

    Args:
        contents: string tensor of shape (), what an image file holds.
        window: function of its height and width, int32 tensors of shape (), that returns the part
            to decode: int32 tensor (top, left, height, width). None for all of it.
        upright: whether it is turned as its EXIF or XMP orientation says.

    Raises:
        tf.errors.OpError: while it runs, for what cannot be decoded; `pixels` says why.
    """

    # Conditions side by side, since one within another is slow in TensorFlow.
    is_jpeg = tf.io.is_jpeg(contents)
    shape = tf.cond(
        is_jpeg, lambda: tf.image.extract_jpeg_shape(contents), lambda: tf.zeros(3, tf.int32)
    )
    plain_jpeg = is_jpeg & (shape[2] != 4)
    if upright:
        plain_jpeg &= ~_is_turned(contents)

    def by_pillow():
        read = functools.partial(pixels, upright=upright)
        image = tf.numpy_function(read, [contents], tf.uint8, stateful=False)
        return cut(tf.ensure_shape(image, (None, None, 3)), window)

    readers = [
        by_pillow,
        lambda: _jpeg(contents, shape, window),
        lambda: cut(tf.io.decode_png(contents, 3), window),
    ]
    kind = tf.cast(plain_jpeg, tf.int32) + 2 * tf.cast(_is_plain_png(contents), tf.int32)
    return tf.switch_case(kind, readers)


def _is_turned(contents):
    """Whether the EXIF or XMP of a JPEG asks for it to be turned."""
    head = tf.strings.substr(contents, 0, HEAD)

    def holds(name):
        # To replace a word takes a tenth of the time of a match: it is found by its first letter.
        rest = tf.strings.regex_replace(head, name, "", replace_global=False)
        return tf.strings.length(rest) < tf.strings.length(head)

    def matches():
        return tf.strings.regex_full_match(head, TURNED)

    return tf.cond(holds(NAMES[0]) | holds(NAMES[1]), matches, lambda: False)


def _is_plain_png(contents):
    """Whether an image is a PNG that TensorFlow decodes as Pillow does."""
    plain = tf.strings.regex_full_match(tf.strings.substr(contents, 0, 26), PLAIN_PNG)
    usual = lambda: ~tf.strings.regex_full_match(contents, UNUSUAL)  # noqa: E731
    return tf.cond(plain, usual, lambda: False)


def cut(image, window):
    """The part of an image that a window, as of `decode`, names."""
    if window is None:
        return image
    shape = tf.shape(image)
    top, left, height, width = tf.unstack(window(shape[0], shape[1]))
    return image[top : top + height, left : left + width]


def _jpeg(contents, shape, window):
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


def decode_or_tell(read, *arguments):
    """The image that `read` returns and no words, or a black pixel and those of its error."""
    try:
        return read(*arguments), ""
    except ValueError as error:
        return np.zeros((1, 1, 3), np.uint8), str(error)


def pixels(file, name="an image", upright=True):
    """The image of a file, read by Pillow: uint8 array of shape (height, width, 3), on white.

    Args:
        file: path, file to read from, or what it holds, as bytes.
        name: what an error calls it.
        upright: whether it is turned as its orientation says, or left as it is stored.

    Raises:
        ValueError: if it cannot be decoded.
    """
    from PIL import Image, ImageOps

    file = file.item() if isinstance(file, np.ndarray) else file
    file = io.BytesIO(file) if isinstance(file, bytes) else file
    with explained(file, name), Image.open(file) as image:
        return _rgb(ImageOps.exif_transpose(image) if upright else image)


@contextlib.contextmanager
def explained(file, name):
    """Turns whatever Pillow's readers raise for a corrupt file into a `ValueError` that names it.

    Args:
        file: what `PIL.Image.open` is called with.
        name: what the error calls it.
    """
    try:
        yield
    except Exception as error:  # they raise whatever the file makes them
        reason = f"{type(error).__name__}: {file_error(error, file)}"
        raise ValueError(
            f"Expected an image file that can be decoded. Received: undecodable {name} ({reason})"
        ) from error


def pixels_of(image):
    """A Pillow image, upright, as a uint8 array of shape (height, width, 3), on white."""
    from PIL import ImageOps

    return _rgb(ImageOps.exif_transpose(image))


def _rgb(image):
    """A Pillow image of any mode as a uint8 array of shape (height, width, 3)."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        deep = np.asarray(image, np.float64)
        if image.mode == "F" or deep.min() < 0 or deep.max() > 65535:
            raise ValueError(
                "Expected values of 8 or 16 bits. "
                f"Received: mode {image.mode}, values from {deep.min():g} to {deep.max():g}"
            )
        image = Image.fromarray(np.round(deep / 257).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"))
