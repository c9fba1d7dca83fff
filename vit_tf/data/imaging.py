"""Images from encoded bytes to what a model expects: decoded, cropped, resized and scaled.

TensorFlow decodes ordinary JPEG and PNG files in the graph, on all cores; Pillow decodes all others
in a `tf.numpy_function`, under Python's lock. The results are those of Pillow, bit for bit.
"""

import contextlib
import io
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from vit_tf.common.names import file_error
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
# The first bytes of a PNG of 8 bits, grey or RGB, or of colours of a palette.
PLAIN_PNG = r"\CPNG\r\n\x1a\n\C{4}IHDR\C{8}(?:\x08[\x00\x02]|[\x01\x02\x04\x08]\x03)\C*"


# No `if` here has a tensor as its condition, and AutoGraph would need seconds to find none.
@tf.autograph.experimental.do_not_convert
def decode(contents: tf.Tensor, window: Window | None = None, upright: bool = True) -> tf.Tensor:
    """The image of `pixels`, or a window of it, in the graph, which raises where it cannot.

    `window` is a function of height and width to (top, left, height, width).
    """
    # Conditions side by side, since one within another is slow in TensorFlow.
    is_jpeg = tf.io.is_jpeg(contents)
    shape = tf.cond(
        is_jpeg, lambda: tf.image.extract_jpeg_shape(contents), lambda: tf.zeros(3, tf.int32)
    )
    plain_jpeg = is_jpeg & (shape[2] != 4)
    if upright:
        plain_jpeg &= ~_is_turned(contents)
    plain_png = tf.cond(
        tf.strings.regex_full_match(tf.strings.substr(contents, 0, 26), PLAIN_PNG),
        lambda: ~tf.strings.regex_full_match(contents, UNUSUAL),
        lambda: False,
    )
    readers = [
        lambda: cut(decode_by_pillow(contents, upright), window),
        lambda: _jpeg(contents, shape, window),
        lambda: cut(tf.io.decode_png(contents, 3), window),
    ]
    kind = tf.cast(plain_jpeg, tf.int32) + 2 * tf.cast(plain_png, tf.int32)
    return tf.switch_case(kind, readers)


def decode_by_pillow(contents: tf.Tensor, upright: bool = True, channels: int = 3) -> tf.Tensor:
    """The image of `pixels` in the graph, which raises where Pillow cannot decode it."""
    return tf.ensure_shape(_by_pillow(contents, upright, channels), (None, None, channels))


# Traced once: after `keras.utils.clear_session`, TensorFlow still finds a Python function in graphs
# where it was the last to be traced (`ag_dnc_wrapper__` in tensorflow/python/ops/script_ops.py).
@tf.function(
    input_signature=[tf.TensorSpec((), dtype) for dtype in (tf.string, tf.bool, tf.int32)],
    autograph=False,
)
def _by_pillow(contents: tf.Tensor, upright: tf.Tensor, channels: tf.Tensor) -> tf.Tensor:
    return tf.numpy_function(
        lambda *options: pixels(options[0], "an image", bool(options[1]), int(options[2])),
        [contents, upright, channels],
        tf.uint8,
        stateful=False,
    )


def _on_white(image: tf.Tensor) -> tf.Tensor:
    """8-bit images with an alpha channel on white, in Pillow's integers of `alpha_composite`."""
    image = tf.cast(tf.ensure_shape(image, (*image.shape[:-1], 4)), tf.int32)
    color, alpha = image[..., :3], image[..., 3:]
    weight = alpha * 128
    mixture = color * weight + 255 * (255 * 128 - weight) + 128 * 128
    return tf.cast((mixture // 256 + mixture) // 2**15, tf.uint8)


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


def decode_or_name(
    decode: Callable[[tf.Tensor], tf.Tensor],
    read: Callable[..., np.ndarray],
    item: tf.Tensor,
    name: str | tf.Tensor,
    channels: int = 3,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The image that `decode` returns and no words; or a black pixel and those of `read`'s error.

    Where `read` cannot be called, since the graph runs on another host, the words give the name.
    """
    elsewhere = tf.strings.join(
        [
            "Expected ordinary JPEG and PNG files where the input pipeline runs on another host, "
            "without Pillow. Received: undecodable ",
            name,
        ]
    )
    black = tf.zeros((1, 1, channels), tf.uint8)
    single = tf.data.Dataset.from_tensors(item)
    decoded = single.map(lambda item: (decode(item), "")).ignore_errors()
    explained = single.map(lambda item: decode_in_python(read, item, channels=channels))
    attempts = decoded.concatenate(explained.ignore_errors())
    attempts = attempts.concatenate(tf.data.Dataset.from_tensors((black, elsewhere)))
    return attempts.take(1).get_single_element()


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
    except FileNotFoundError as error:
        raise ValueError(f"File not found: {name}. Expected {expected}.") from error
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
    def spec(self) -> tf.TensorSpec:
        """The result of `fit` for an image."""
        return tf.TensorSpec((*self.size, self.preprocessing.num_channels), tf.float32)

    def draw(self, count: int | tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The random numbers from which `window` computes the crops of `count` images."""
        # Another seed than those of the augmentations of the same batch.
        least, most, distribution = cast(CropArea, self.area)
        return CROP_DISTRIBUTIONS[distribution][0](count, (least, most), seed + 31)

    def window(self, drawn: tuple) -> Window | None:
        """The window of `decode`, by what was drawn for an image; None for all of it."""
        if not self.area:
            return None
        find_window = CROP_DISTRIBUTIONS[self.area.distribution][1]
        return lambda height, width: find_window(height, width, *drawn)

    def fit(self, images: tf.Tensor) -> tf.Tensor:
        """Images of rank 3 or 4 with values in [0, 255], as a model expects them."""
        channels = self.preprocessing.num_channels
        images = reduce_channels(images, channels)
        resize = self.preprocessing.squeezed() if self.area else self.preprocessing
        images = resize_image(images, self.size, resize)
        images = add_channels(tf.cast(images, tf.float32), channels)
        return scale_values(images, self.preprocessing)


@dataclass(frozen=True)
class JointFraming:
    """The framings of several models: each image becomes one row, theirs flattened in order."""

    framings: tuple["Framing | JointFraming", ...]
    area = None  # of random crops, which only training makes

    @property
    def spec(self) -> tf.TensorSpec:
        """The result of `fit` for an image."""
        lengths = [framing.spec.shape.num_elements() for framing in self.framings]
        return tf.TensorSpec((sum(lengths),), tf.float32)

    def window(self, drawn: tuple) -> None:
        """The window of `decode`: all of the image."""
        return None  # AutoGraph cannot read a function without a statement

    def fit(self, images: tf.Tensor) -> tf.Tensor:
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
