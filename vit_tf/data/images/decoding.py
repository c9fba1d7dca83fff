"""Encoded images as pixels: by TensorFlow in the graph, or by Pillow in Python.

In the graph are read JPEG and PNG of every kind, and WebP, GIF and BMP of the usual kinds. It holds
no Python function, so that TensorFlow can copy it to other hosts. Pillow reads everything, under
Python's lock.
"""

import contextlib
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
PNG = r"\CPNG\r\n\x1a\n"
# WebP without animation, EXIF and XMP; BMP of 24 bits without compression; GIF.
PLAIN_WEBP = r"RIFF\C{4}WEBPVP8(?:[ L]|X\C{4}[\x00\x10\x20\x30])\C*"
PLAIN_BMP = r"BM\C{26}\x18\x00\x00\x00\x00\x00\C*"
GIF = r"GIF8[79]a\C*"
# A graphic control extension with a transparent colour.
TRANSPARENT_GIF = r"\C*!\C\x04[\x01\x03\x05\x07\x09\x0b\x0d\x0f]\C{3}\x00\C*"
ORIENTATION = 0x0112  # the tag of EXIF
XMP_ORIENTATION = r"\A\C*?tiff:Orientation(?:=\"|>)([0-9])\C*\z"


@tf.autograph.experimental.do_not_convert  # which would take seconds, for conditions of Python
def decode(contents, window=None, upright=True):
    """The image of an encoded one: uint8 tensor of shape (height, width, 3), on white.

    Equal to the result of `pixels`, bit for bit, but for JPEG in CMYK: within one of 255 levels.

    Args:
        contents: string tensor of shape (), what an image file holds.
        window: function of its height and width, int32 tensors of shape (), that returns the part
            to decode: int32 tensor (top, left, height, width). None for all of it.
        upright: whether it is turned as its EXIF or XMP orientation says.

    Raises:
        tf.errors.OpError: while it runs, for what cannot be decoded in the graph; `pixels` decodes
            it or says why.
    """

    # Conditions side by side, since one within another is slow in TensorFlow.
    is_jpeg = tf.io.is_jpeg(contents)
    shape = tf.cond(
        is_jpeg, lambda: tf.image.extract_jpeg_shape(contents), lambda: tf.zeros(3, tf.int32)
    )
    usual_jpeg = is_jpeg & (shape[2] != 4)
    if upright:
        usual_jpeg &= ~_is_turned(contents)
    readers = [
        lambda: cut(_unusual(contents, upright), window),
        lambda: _jpeg(contents, shape, window),
        lambda: cut(tf.io.decode_png(contents, 3), window),
    ]
    kind = tf.cast(usual_jpeg, tf.int32) + 2 * tf.cast(_is_plain_png(contents), tf.int32)
    return tf.switch_case(kind, readers)


def decode_or_name(decode, item, name, read=None):
    """The image that a function decodes in the graph and no words; or a black pixel and an error.

    Args:
        decode: function of `item` that returns a uint8 tensor of shape (height, width, 3).
        item: string tensor of shape ().
        name: string tensor, what the error calls the image.
        read: function of `item` that `decode` reads a file with; None where it reads none.
    """
    expected = "Expected an image file that can be decoded. Received: undecodable "
    start, black = tf.strings.join([expected, name]), tf.zeros((1, 1, 3), tf.uint8)
    corrupt = start + " (corrupt, or of another format than its name says)"
    missing = start + " (no such file, or one that cannot be read)"
    one = tf.data.Dataset.from_tensors(item)
    decoded = one.map(lambda item: (decode(item), ""))
    failed = tf.data.Dataset.from_tensors((black, corrupt))
    if read is not None:  # reading alone fails for what is missing
        unread = tf.data.Dataset.from_tensors((black, missing))
        failed = one.map(lambda item: (black, corrupt + tf.strings.substr(read(item), 0, 0)))
        failed = failed.ignore_errors().concatenate(unread)
    return decoded.ignore_errors().concatenate(failed).take(1).get_single_element()


@tf.function(
    input_signature=[tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.bool)],
    autograph=False,
    experimental_attributes={"_noinline": True},
)
def _unusual(contents, upright):
    """The image of a file that is no usual JPEG or PNG; traced once, as it takes a second."""

    def turn(image, exif, text):
        orientation = tf.cond(
            upright, lambda: _orientation(exif(contents), text), lambda: tf.ones((), tf.int64)
        )
        return _turned(image, orientation)

    def jpeg():
        head = tf.strings.substr(contents, 0, HEAD)
        return turn(tf.io.decode_jpeg(contents, 3, **EXACT), _exif_of_jpeg, head)

    is_png = tf.strings.regex_full_match(tf.strings.substr(contents, 0, 8), PNG)
    readers = [
        (tf.io.is_jpeg(contents), jpeg),
        (is_png, lambda: turn(_png(contents), _exif_of_png, contents)),
    ]
    image = tf.case(readers, default=lambda: _other_format(contents))
    return tf.ensure_shape(image, (None, None, 3))


def _png(contents):
    """The image of any PNG, as it is stored; an error of TensorFlow for one of few grey values."""
    head = tf.strings.substr(contents, 0, 26)
    has_key = tf.strings.regex_full_match(contents, r"\C*tRNS\C*")

    def deep():
        return tf.cast(tf.round(tf.io.decode_png(contents, 3, tf.uint16) / 257), tf.uint8)

    def transparent():
        # TensorFlow does not scale these to 255 next to an alpha channel.
        few = tf.strings.regex_full_match(head, r"\C{24}[\x01\x02\x04]\x00")
        with tf.control_dependencies([tf.debugging.Assert(~few, ["transparent, few values"])]):
            return _on_white(tf.io.decode_png(contents, 4))

    is_deep = tf.strings.regex_full_match(head, r"\C{24}\x10\x00")
    has_alpha = has_key | tf.strings.regex_full_match(head, r"\C{25}[\x04\x06]")
    readers = [(is_deep, deep), (has_alpha, transparent)]
    return tf.case(readers, default=lambda: tf.io.decode_png(contents, 3))


def _other_format(contents):
    """The image of a WebP, GIF or BMP of the usual kinds; an error of TensorFlow for others."""
    head = tf.strings.substr(contents, 0, 64)

    def begins(pattern):
        return tf.strings.regex_full_match(head, pattern)

    def gif():
        opaque = ~tf.strings.regex_full_match(contents, TRANSPARENT_GIF)
        with tf.control_dependencies([tf.debugging.Assert(opaque, ["a transparent GIF"])]):
            return tf.io.decode_gif(contents)[0]

    def webp():
        image = tf.io.decode_webp(contents)[0]
        return tf.cond(tf.shape(image)[2] == 4, lambda: _on_white(image), lambda: image)

    def refuse():
        with tf.control_dependencies([tf.debugging.Assert(False, ["an unknown format"])]):
            return tf.zeros((1, 1, 3), tf.uint8)

    readers = [
        (begins(PLAIN_WEBP), webp),
        (begins(GIF), gif),
        (begins(PLAIN_BMP), lambda: tf.io.decode_bmp(contents, 3)),
    ]
    return tf.case(readers, default=refuse)


def _on_white(image):
    """A uint8 image with an alpha channel on white, in Pillow's integers of `alpha_composite`."""
    image = tf.cast(tf.ensure_shape(image, (None, None, 4)), tf.int32)
    color, alpha = image[..., :3], image[..., 3:]
    weight = alpha * 128
    mixture = color * weight + 255 * (255 * 128 - weight) + 128 * 128
    return tf.cast((mixture // 256 + mixture) // 2**15, tf.uint8)


def _exif_of_jpeg(contents):
    """The bytes of EXIF in a JPEG, int32; none where there are none."""
    exif, found = _behind(tf.strings.substr(contents, 0, HEAD), r"Exif\x00\x00")
    return _bytes(tf.where(found, exif, ""))


def _exif_of_png(contents):
    """The bytes of EXIF in a PNG, in its own chunk or in ImageMagick's, int32."""
    chunk, found = _behind(contents, "eXIf")
    return tf.cond(found, lambda: _bytes(chunk), lambda: _raw_profile(contents))


def _raw_profile(contents):
    """The bytes of EXIF in ImageMagick's text chunk of a PNG, which is hexadecimal."""
    zipped, is_zipped = _behind(contents, r"zTXtRaw profile type exif\x00\x00")
    plain, is_plain = _behind(contents, r"tEXtRaw profile type exif\x00")

    def unzip():
        start = tf.strings.length(contents) - tf.strings.length(zipped)
        # The chunk's length stands before its name (4), the keyword (21) and two zeros.
        length = tf.strings.substr(contents, start - 31, 4)
        length = tf.io.decode_raw(length, tf.int32, little_endian=False)[0]
        return tf.io.decode_compressed(tf.strings.substr(zipped, 0, length - 23), "ZLIB")

    text = tf.cond(is_zipped, unzip, lambda: tf.where(is_plain, plain, ""))
    # A line "exif", one with the number of bytes, and these, which begin with "Exif" and two zeros.
    text = tf.strings.regex_replace(text, r"\A\s*exif\s+\d+\s+", "", replace_global=False)
    text = tf.strings.regex_replace(text, r"[^0-9a-fA-F\n]\C*\z|\n", "")
    digits = _bytes(tf.strings.lower(text))
    digits = tf.where(digits < ord("a"), digits - ord("0"), digits - ord("a") + 10)
    pairs = tf.reshape(digits[: tf.size(digits) // 2 * 2], (-1, 2))
    return pairs[6:, 0] * 16 + pairs[6:, 1]


def _behind(text, name):
    """What follows a pattern in a text, and whether it is there."""
    rest = tf.strings.regex_replace(text, rf"\A\C*?{name}", "", replace_global=False)
    return rest, tf.strings.length(rest) < tf.strings.length(text)


def _bytes(text):
    return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)


def _orientation(exif, text):
    """The orientation of an image, from 1 to 8, as Pillow finds it: in EXIF, or else in XMP.

    Args:
        exif: bytes of EXIF, int32 tensor of shape (byte,).
        text: string tensor in which XMP is looked for.
    """
    exif = tf.cast(tf.pad(exif, [[0, 16]]), tf.int64)
    last = tf.size(exif, tf.int64) - 1

    def number(places, count):
        """Whole numbers of `count` bytes each, at some positions."""
        places = tf.cast(places, tf.int64)[..., None] + tf.range(count, dtype=tf.int64)
        powers = tf.constant([256**place for place in range(count)], tf.int64)
        powers = tf.where(exif[0] == ord("I"), powers, powers[::-1])
        return tf.reduce_sum(tf.gather(exif, tf.clip_by_value(places, 0, last)) * powers, -1)

    first = number(4, 4)
    entries = first + 2 + 12 * tf.range(number(first, 2))
    entries = entries[entries + 12 <= last - 15]
    entries = entries[number(entries, 2) == ORIENTATION]
    is_short = number(entries + 2, 2) == 3
    values = tf.where(is_short, number(entries + 8, 2), number(entries + 8, 4))
    in_xmp = tf.strings.regex_replace(text, XMP_ORIENTATION, r"\1", replace_global=False)
    in_xmp = tf.where(tf.strings.length(in_xmp) == 1, in_xmp, "1")
    values = tf.concat([values, [tf.strings.to_number(in_xmp, tf.int64)]], 0)
    return tf.where((values[0] >= 1) & (values[0] <= 8), values[0], 1)


def _turned(image, orientation):
    """An image in the upright position of its EXIF orientation."""

    def holds(*orientations):
        return tf.reduce_any(orientation == tf.constant(orientations, tf.int64))

    image = tf.cond(holds(5, 6, 7, 8), lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
    image = tf.cond(holds(2, 3, 6, 7), lambda: image[:, ::-1], lambda: image)
    return tf.cond(holds(3, 4, 7, 8), lambda: image[::-1], lambda: image)


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
