"""Images as people bring them, in the few forms that this package reads."""

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import keras
import numpy as np
import tensorflow as tf

from vit_tf.data.files import is_remote
from vit_tf.data.names import PHOTOGRAPHS, photographs
from vit_tf.data.source import CHANNELS

if TYPE_CHECKING:
    from typing import TypeGuard

    from PIL.Image import Image

# The keys of images and of labels in dicts, as Keras, Hugging Face, TFDS and webdataset name them.
IMAGE_KEYS = ("image", "images", "img", "pixel_values", "x", "jpg", "jpeg", "png", "webp")
IMAGE_KEYS += ("path", "file")
LABEL_KEYS = ("label", "labels", "y", "cls", "target")


def in_known_form(images: Any) -> Any:
    """Images as an array, a PIL image, a path, a list, `Examples` or a `tf.data.Dataset`.

    A tuple begins with one of these, and labels or annotations follow. Arrays whose channels come
    first, as processors of other libraries return them, are transposed.
    """
    if isinstance(images, tuple) and images and not isinstance(images[0], int | float):
        others = (np.asarray(x) if _is_stored(x) else _from_torch(x) for x in images[1:])
        return (in_known_form(images[0]), *others)
    if hasattr(images, "columns") and hasattr(images, "to_numpy"):
        table: Any = images  # of pandas
        images = {name: table[name] for name in table.columns}
    if isinstance(images, Mapping):
        image, label = keys_of(images)
        return in_known_form((images[image], images[label]) if label else images[image])
    if isinstance(images, list) and images:
        return _from_list(images)
    if isinstance(images, str) and images == PHOTOGRAPHS:
        return photographs()
    if isinstance(images, str | os.PathLike):
        text = os.path.expanduser(os.fspath(images))
        is_pattern = glob.has_magic(text) and not is_remote(text) and not os.path.exists(text)
        if is_pattern and not (paths := sorted(glob.glob(text, recursive=True))):
            raise ValueError(f"No file matches {text!r}.")
        return paths if is_pattern else images
    if hasattr(images, "to_numpy") and getattr(images, "ndim", None) == 1:
        images = np.asarray(images)  # a column of pandas
    array = _from_torch(images)
    if not isinstance(array, np.ndarray):
        return Examples(images) if _is_data_set(images) else images
    if array.dtype.kind in "OTU":
        return array.tolist()
    # The first of three axes may be that of grey images: only PyTorch's arrays are single images.
    is_single = array.ndim == 3 and array is not images
    return channels_last(array) if array.ndim == 4 or is_single else array


def _from_list(images: list) -> Any:
    """A list of images, or of rows and pairs of an image and its label, in a known form."""
    # Rows by name, and pairs of an image and its label, as data sets of PyTorch hold them.
    if all(isinstance(x, Mapping) for x in images):
        rows = cast(list[Mapping], images)
        return in_known_form({key: [row[key] for row in rows] for key in keys_of(rows[0]) if key})
    if all(isinstance(x, tuple) or _is_pair(x) for x in images):
        alone, *others = zip(*images, strict=True)
        return in_known_form((list(alone), *map(np.array, others)))
    # Nested lists of numbers.
    if isinstance(images[0], list | int | float):
        array = np.asarray(images)
        is_8_bit = array.dtype.kind == "i" and array.min() >= 0 and array.max() <= 255
        return array.astype(np.uint8 if is_8_bit else np.float32)
    return list(map(in_known_form, images)) if all(hasattr(x, "detach") for x in images) else images


def _is_pair(values: Any) -> bool:
    """Whether this is a list of an image, which is no list, and of its label."""
    is_list = isinstance(values, list) and len(values) == 2
    return is_list and not isinstance(values[0], list | int | float)


class Examples:
    """A data set of Python, whose elements are read when they are needed.

    Data sets and loaders of PyTorch, data sets of Hugging Face, PyDatasets of Keras, webdatasets
    and arrays of h5py are such data sets. An element is an image or a batch of images, or a tuple
    that begins with one of these, in a known form.

    Attributes:
        source: the data set.
        count: the number of its elements; None if it is unknown.
        is_indexed: whether elements can be read by their number, in any order.
        first: the first element.
        is_batched: whether elements are batches.
    """

    def __init__(self, source: Any) -> None:
        if hasattr(getattr(source, "dataset", source), "__next__"):
            received = type(getattr(source, "dataset", source)).__name__
            raise ValueError(
                "Expected a data set that can be read several times. Received: "
                f"{received}, which is an iterator"
            )
        self.source = source
        is_keras = isinstance(source, keras.utils.PyDataset)
        try:
            self.count = source.num_batches if is_keras else len(source)
        except TypeError:  # of streams, and of loaders of streams
            self.count = None
        if is_keras and self.count is None:
            raise ValueError(
                "Expected a PyDataset of finite length. Received: "
                f"{type(source).__name__}, whose num_batches is None"
            )
        self.is_indexed = bool(self.count) and hasattr(source, "__getitem__")
        try:
            first = next(self.read(range(1)), None)
        except NotImplementedError:  # streams of PyTorch inherit a `__getitem__` that raises it
            self.is_indexed = False
            first = next(self.read(), None)
        if first is None:
            raise ValueError("Expected at least one image. Received: none")
        self.first: Any = first
        image = first[0] if isinstance(first, tuple) else first
        # A loader without a batch size returns single examples, or batches of its data set's own.
        has_batches = is_keras or getattr(source, "batch_sampler", None) is not None
        self.is_batched = has_batches or isinstance(image, list) or np.ndim(image) > 3

    def read(self, order: Iterable[int] | None = None) -> Iterator[Any]:
        """The elements, in the order of some numbers if they are indexed."""
        if not self.is_indexed:
            return map(_as_element, self.source)
        numbers = range(cast(int, self.count)) if order is None else order
        return (_as_element(self.source[int(number)]) for number in numbers)

    @property
    def first_example(self) -> tuple:
        """The first example: its image and what follows it."""
        return next(self._split(self.first))

    def read_singly(self, order: Iterable[int] | None = None) -> Iterator[tuple]:
        """Each example as a tuple of its image and what follows it, also those of batches."""
        return itertools.chain.from_iterable(map(self._split, self.read(order)))

    def _split(self, element: Any) -> Iterator[tuple]:
        """The examples of an element."""
        parts = element if isinstance(element, tuple) else (element,)
        return zip(*parts, strict=True) if self.is_batched else iter((parts,))


def _as_element(element: Any) -> Any:
    """An element of a data set in a known form: a list may be a pair, or the rows of a batch."""
    is_pair = isinstance(element, list) and not all(
        isinstance(part, tuple | Mapping) or is_pillow(part) for part in element
    )
    return in_known_form(tuple(element) if is_pair else element)


def _is_data_set(images: Any) -> bool:
    """Whether this is a data set of Python, which holds no array in memory and is no image."""
    if isinstance(images, Examples | tf.data.Dataset) or is_pillow(images) or callable(images):
        return False
    is_in_memory = hasattr(images, "dtype") and not _is_stored(images)
    is_iterable = hasattr(images, "__iter__") or hasattr(images, "__getitem__")
    return is_iterable and not is_in_memory and not isinstance(images, str | bytes | list | tuple)


def _is_stored(values: Any) -> bool:
    """Whether this is an array on disk, of h5py or zarr."""
    return hasattr(values, "dtype") and hasattr(values, "chunks") and not hasattr(values, "compute")


def channels_last(array: np.ndarray) -> np.ndarray:
    """Images (..., height, width, channel), also where their channels come first."""
    return np.moveaxis(array, -3, -1) if has_channels_first(array.shape) else array


def has_channels_first(shape: Sequence[int | None]) -> bool:
    """Whether this is the shape of images (..., channel, height, width)."""
    channels, height, width = shape[-3:]
    if channels not in CHANNELS or width in CHANNELS or height is None or width is None:
        return False
    return channels < min(height, width)


def _from_torch(values: Any) -> Any:
    """A PyTorch tensor as an array, and other values as they are."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    # NumPy has no bfloat16.
    return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()


def keys_of(example: Mapping) -> tuple[str, str | None]:
    """The keys of the images and of the labels, if any, of a dict."""
    label = next((key for key in LABEL_KEYS if key in example), None)
    return key_of(example, IMAGE_KEYS), label


def key_of(values: Mapping, usual: Sequence[str]) -> str:
    """The key of images or of labels in a dict: a usual name, or that of its only entry."""
    keys = [key for key in usual if key in values] or list(values)
    if len(keys) > 1 and keys[0] not in usual:
        raise ValueError(
            f"Expected elements with the key {usual[0]!r}. Received the keys: {sorted(values)}"
        )
    return keys[0]


def is_pillow(image: object) -> "TypeGuard[Image]":
    """Whether this is a PIL image."""
    return any(kind.__module__.startswith("PIL.") for kind in type(image).__mro__)
