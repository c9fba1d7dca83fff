"""Converts images in any form (arrays, PIL images, paths, folders, data sets) to batches."""

import glob
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import keras
import numpy as np
import tensorflow as tf

from vit_tf.common.backend import leave_gpus_to_jax
from vit_tf.common.names import without_password
from vit_tf.data.batches import (
    BATCH_SIZE,
    IN_ORDER,
    RANDOM,
    SIZE_NEEDED,
    BatchRule,
    batch_arrays,
    cut_examples,
    explained_batches,
    require_finite_length,
)
from vit_tf.data.files import is_remote
from vit_tf.data.folder import ImageFiles, decode_file, scan
from vit_tf.data.imaging import framing_of, pixels_of
from vit_tf.data.names import PHOTOGRAPHS, photographs
from vit_tf.data.preprocessing import JointPreprocessing, Preprocessing, require_levels
from vit_tf.data.reading import read_batches
from vit_tf.data.source import (
    ALL,
    CHANNELS,
    SPLITS,
    SizesDifferError,
    describe_batches,
)

if TYPE_CHECKING:
    from PIL.Image import Image

# An array, a PIL image, a path, a folder, a list of these, a dict of arrays or a data set; or a
# tuple of one of these and of labels or annotations.
ImagesLike: TypeAlias = (
    np.ndarray | tf.Tensor | tf.data.Dataset | str | os.PathLike | Sequence | Mapping
)
# What makes a model's input of 8-bit images, or those of several models.
Prepares = Preprocessing | JointPreprocessing
IMAGE_KEYS = ("image", "images", "pixel_values", "x")
LABEL_KEYS = ("label", "labels", "y")


def batch_images(
    images: Any, preprocessing: Prepares | None = None, rule: BatchRule = RANDOM
) -> tf.data.Dataset:
    """Batches of images, with or without labels, for a measurement, from images in any form.

    Folders, lists and arrays are read in a random order and cut into batches of equal size, as
    `BatchRule` explains. A `tf.data.Dataset` of batches stays as it is; one of single images keeps
    its order.

    Args:
        images: array, PIL image, path, folder, list of these, `keras.utils.PyDataset` or
            `tf.data.Dataset`; or a tuple of one of these and of labels or annotations.
        preprocessing: the `Preprocessing` of 8-bit images and files; floats stay as they are. None
            leaves integers as they are.
        rule: the order and the size of the batches.

    Returns:
        `tf.data.Dataset` of batches of images, or of tuples that begin with images. It has the
        attribute `class_names` of a folder or of the given data set.

    Raises:
        ValueError: if images are in another form, if a file does not exist or cannot be decoded, or
            if the parts of a tuple differ in length.

    Examples:
        >>> batches = batch_images(np.zeros((133, 8, 8, 3), np.float32))
        >>> [len(batch) for batch in batches]
        [67, 66]
    """
    return batch_arrays(as_images(images, preprocessing, rule), rule)


def in_known_form(images: Any) -> Any:
    """Tensors of PyTorch, lists, dicts, patterns of paths and PyDatasets in forms known here.

    Arrays whose channels come first, as processors of other libraries return them, are transposed.
    """
    if isinstance(images, tuple) and images and not isinstance(images[0], int | float):
        return (in_known_form(images[0]), *map(_from_torch, images[1:]))
    if isinstance(images, keras.utils.PyDataset):
        count = cast(keras.utils.PyDataset, images).num_batches
        if count is None:
            raise ValueError("Expected a PyDataset of finite length. Received: one without __len__")
        return _from_batches(lambda: (images[number] for number in range(count)), count, images[0])
    torch_utils = getattr(sys.modules.get("torch"), "utils", None)
    if torch_utils is not None and isinstance(images, torch_utils.data.Dataset):
        # PIL images, as of ImageFolder without a transform, are not stacked to tensors.
        has_pillow = any(map(_is_pillow, tf.nest.flatten(next(iter(images)))))
        rows = list if has_pillow else None
        images = torch_utils.data.DataLoader(images, BATCH_SIZE, collate_fn=rows)
    if torch_utils is not None and isinstance(images, torch_utils.data.DataLoader):
        return _from_loader(images)
    if isinstance(images, Mapping):
        image, label = _keys_of(images)
        return in_known_form((images[image], images[label]) if label else images[image])
    if isinstance(images, list) and images and all(isinstance(x, Mapping) for x in images):
        rows = cast(list[Mapping], images)
        return in_known_form({key: [row[key] for row in rows] for key in rows[0]})
    # Pairs of an image and its label, as data sets of PyTorch hold them.
    if isinstance(images, list) and images and all(isinstance(x, tuple) for x in images):
        alone, labels = zip(*images, strict=True)
        return in_known_form((list(alone), np.array(labels)))
    if hasattr(images, "to_numpy") and getattr(images, "ndim", None) == 1:
        images = np.asarray(images)  # a column of pandas
    if isinstance(images, list) and images and isinstance(images[0], list | int | float):
        images = np.asarray(images)
        is_8_bit = images.dtype.kind == "i" and images.min() >= 0 and images.max() <= 255
        return images.astype(np.uint8 if is_8_bit else np.float32)
    if isinstance(images, list) and images and all(hasattr(x, "detach") for x in images):
        return list(map(in_known_form, images))
    if isinstance(images, str) and images == PHOTOGRAPHS:
        return photographs()
    if isinstance(images, str | os.PathLike):
        text = os.path.expanduser(os.fspath(images))
        is_pattern = glob.has_magic(text) and not is_remote(text) and not os.path.exists(text)
        if is_pattern and not (paths := sorted(glob.glob(text, recursive=True))):
            raise ValueError(f"No file matches {text!r}.")
        return paths if is_pattern else images
    array = _from_torch(images)
    if not isinstance(array, np.ndarray):
        return array
    if array.dtype.kind in "OTU":
        return array.tolist()
    # The first of three axes may be that of grey images: only PyTorch's arrays are single images.
    if array.ndim == 4 or (array.ndim == 3 and array is not images):
        channels, *size = array.shape[-3:]
        is_first = channels in CHANNELS and size[-1] not in CHANNELS and channels < min(size)
        return np.moveaxis(array, -3, -1) if is_first else array
    return array


def is_one_image(images: Any) -> bool:
    """Whether this is an array of one image in colours, a PIL image or the path of a file."""
    if isinstance(images, str | os.PathLike):
        return os.path.isfile(os.path.expanduser(images))
    shape = getattr(images, "shape", ())
    return _is_pillow(images) or (len(shape) == 3 and shape[-1] in CHANNELS)


def with_channel_axis(images: Any, image_shape: tuple[int | None, ...]) -> Any:
    """Images of (height, width) with an axis of channels, where a model takes grey images."""
    images = in_known_form(images)
    shape = getattr(_without_labels(images), "shape", ())
    if getattr(shape, "rank", 0) is None or len(shape) != 3 or image_shape[2:] not in ((), (1,)):
        return images
    sizes = zip(shape[1:], image_shape[:2], strict=True)
    if any(None not in pair and pair[0] != pair[1] for pair in sizes):
        return images
    if isinstance(images, tuple):
        return (with_channel_axis(images[0], image_shape), *images[1:])
    if not isinstance(images, tf.data.Dataset):
        return images[..., None]
    extended = _map_images(_as_pair(images), lambda batch: batch[..., None])
    return _with_class_names(extended, images)


def _as_array(values: Any) -> Any:
    """Labels or annotations as an array; a ValueError for rows of different lengths."""
    rows = values.to_list() if isinstance(values, tf.RaggedTensor) else values
    try:
        return rows if hasattr(rows, "shape") else np.asarray(rows)
    except ValueError as error:  # NumPy has no arrays of such rows
        raise ValueError(
            "Expected one label for each image, in an array of shape (example,). Received: "
            f"{type(values).__name__} of {len(rows)} rows of different lengths"
        ) from error


def _from_torch(values: Any) -> Any:
    """A PyTorch tensor as an array, and other values as they are."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    # NumPy has no bfloat16.
    return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()


def _keys_of(example: Mapping) -> tuple[str, str | None]:
    """The keys of the images and of the labels, if any, of a dict."""
    label = next((key for key in LABEL_KEYS if key in example), None)
    return _key_of(example, IMAGE_KEYS), label


def _key_of(values: Mapping, usual: Sequence[str]) -> str:
    """The key of images or of labels in a dict: a usual name, or that of its only entry."""
    keys = [key for key in usual if key in values] or list(values)
    if len(keys) > 1 and keys[0] not in usual:
        raise ValueError(
            f"Expected elements with the key {usual[0]!r}. Received the keys: {sorted(values)}"
        )
    return keys[0]


def _from_loader(loader: Any) -> Any:
    """The batches of a DataLoader of PyTorch; what it holds as lists of images is read at once."""

    # Without a batch size, a loader returns single examples, or batches that its data set made. A
    # batch is a list of images and labels, or a list of rows.
    def read() -> Iterator[Any]:
        for batch in loader:
            is_pair = isinstance(batch, list) and not all(
                isinstance(part, tuple | Mapping) or _is_pillow(part) for part in batch
            )
            yield in_known_form(tuple(batch) if is_pair else batch)

    if hasattr(loader.dataset, "__next__"):
        raise ValueError(
            "Expected a data set that can be read several times. Received: "
            f"{type(loader.dataset).__name__}, which is an iterator"
        )
    first = next(read())
    if not isinstance(first[0] if isinstance(first, tuple) else first, list):
        is_iterable = isinstance(loader.dataset, sys.modules["torch"].utils.data.IterableDataset)
        has_length = not is_iterable or hasattr(loader.dataset, "__len__")
        count = len(loader) if has_length else None
        return _from_batches(read, count, first, is_batched=loader.batch_sampler is not None)
    batches = [batch if isinstance(batch, tuple) else (batch,) for batch in read()]
    images, *others = zip(*batches, strict=True)
    images = [image for batch in images for image in batch]
    return (images, *map(np.concatenate, others)) if others else images


def _from_batches(
    read: Callable[[], Iterator[Any]], count: int | None, first: Any, is_batched: bool = True
) -> tf.data.Dataset:
    """Batches, of which the first is given, as a data set of known length, if there is a count."""
    # What comes without a batch size is a batch all the same if it has an axis of examples.
    is_batch = is_batched or np.ndim(tf.nest.flatten(first)[0]) != 3

    def spec_of(values: Any) -> tf.TensorSpec:
        values = np.asarray(values)
        is_raw = not is_batch and values.ndim == 3 and values.dtype == np.uint8  # of any size
        shape = (None, *values.shape[1:]) if is_batch else values.shape
        return tf.TensorSpec((None, None, shape[2]) if is_raw else shape, values.dtype)

    signature = tf.nest.map_structure(spec_of, first)
    batches = tf.data.Dataset.from_generator(read, output_signature=signature)
    if count is None:
        return batches
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def is_raw(images: Any) -> bool:
    """Whether images are files, PIL images or of 8 bits, which a model's preprocessing is for."""
    images = _without_labels(images)
    if isinstance(images, list):
        return any(is_raw(image) for image in images)
    if isinstance(images, str | os.PathLike) or _is_pillow(images):
        return True
    return hasattr(images, "dtype") and tf.as_dtype(images.dtype).is_integer


def shape_of_floats(images: Any) -> tuple[int, int, int] | None:
    """(height, width, channel) of images that a model takes as they are.

    None for raw images, for images of several shapes and for what may be a batch of grey images.
    """
    if is_raw(images):
        return None
    images = _without_labels(images)
    if isinstance(images, list):
        shapes = {shape_of_floats(image) for image in images}
        return shapes.pop() if len(shapes) == 1 else None
    shape: tuple = tuple(getattr(images, "shape", ()))
    is_image = len(shape) == 4 or (len(shape) == 3 and shape[-1] in CHANNELS)
    return shape[-3:] if is_image and None not in shape[-3:] else None


def _without_labels(images: Any) -> Any:
    """Images in a known form without what follows them; the `tf.TensorSpec` of a data set's."""
    images = in_known_form(images)
    if isinstance(images, tf.data.Dataset):
        return tf.nest.flatten(_as_pair(images).element_spec)[0]
    return _without_labels(images[0]) if isinstance(images, tuple) and images else images


def as_images(
    images: Any, preprocessing: Prepares | None = None, rule: BatchRule = IN_ORDER
) -> np.ndarray | tuple | tf.data.Dataset:
    """`batch_images`, with images that are in memory as an array or a tuple of arrays."""
    # 8-bit and PIL images and files get the preprocessing; None leaves integers as they are.
    leave_gpus_to_jax()
    images = in_known_form(images)
    if isinstance(images, tf.data.Dataset):
        return _from_dataset(images, preprocessing, rule)
    if isinstance(images, tuple):
        first, *rest = images
        # The order of all parts is decided once, when they are cut into batches.
        converted = as_images(first, preprocessing, IN_ORDER)
        if isinstance(converted, tf.data.Dataset):
            converted = np.concatenate(
                [x[0] if isinstance(x, tuple) else x for x in explained_batches(converted)]
            )
        rest = [_as_array(values) for values in rest]
        if rest and _is_label_column(rest[0]):  # as `keras.datasets` has labels
            rest[0] = rest[0][:, 0]
        return (converted, *rest[: len(rest) - _ends_in_weights(rest)])
    if isinstance(images, str | os.PathLike):
        return _from_path(images, preprocessing, rule)
    if isinstance(images, list) or _is_pillow(images):
        images = images if isinstance(images, list) else [images]
        return _from_list(images, preprocessing, rule)
    if not hasattr(images, "shape") or not hasattr(images, "dtype"):
        hint = "; several models are one list: [model, other]" if callable(images) else ""
        raise ValueError(
            "Expected images to be an array, a PIL image, a path, a folder, a list of these, a "
            f"DataLoader of PyTorch or a tf.data.Dataset. Received: {type(images).__name__}{hint}"
        )
    if np.ma.is_masked(images) or tf.as_dtype(images.dtype).is_complex:
        received = "a masked array" if np.ma.is_masked(images) else f"complex type {images.dtype}"
        raise ValueError(
            f"Expected images of real numbers without masked values. Received: {received}"
        )
    if len(images.shape) == 3 and images.shape[-1] in CHANNELS:
        images = images[None]
    if preprocessing is None or not tf.as_dtype(images.dtype).is_integer:
        return images
    require_levels(images)
    return _from_dataset(batch_arrays(images, rule), preprocessing, rule)


def _from_path(
    path: str | os.PathLike, preprocessing: Prepares | None, rule: BatchRule
) -> np.ndarray | tf.data.Dataset:
    text = os.path.expanduser(os.fspath(path))
    if not _is_there(text):
        raise ValueError(f"Image file or folder not found: {without_password(text)!r}.")
    if not (tf.io.gfile.isdir(text) if is_remote(text) else os.path.isdir(text)):
        return _from_list([text], preprocessing, rule)
    layout = scan(text)
    splits = (layout.splits[split] for split in SPLITS if split in layout.splits)
    paths, labels = map(np.concatenate, zip(*splits, strict=True))
    order = np.argsort(paths, kind="stable")  # of all splits, as a pattern of paths has them
    paths, labels = paths[order], labels[order]
    return _read_files(
        paths, labels, layout.class_names, _require_preprocessing(preprocessing), rule
    )


def _read_files(
    paths: np.ndarray,
    labels: np.ndarray,
    class_names: tuple[str, ...],
    preprocessing: Prepares,
    rule: BatchRule,
) -> tf.data.Dataset:
    """Batches of (images, labels) of files by a rule; a label is -1 where it is not known."""
    count = len(paths)
    order, sizes = rule.order(count), rule.sizes(count)
    source = ImageFiles(class_names, {ALL: (paths[order], labels[order])})
    positions = np.arange(count)
    try:
        batches = read_batches(
            source, ALL, positions, preprocessing.size, sizes, preprocessing=preprocessing
        )
    except SizesDifferError as error:
        raise ValueError(
            f"{SIZE_NEEDED} Received: {error.received}; set model.preprocessing = "
            "vit_tf.Preprocessing((height, width)), with the values that the model expects"
        ) from error
    return describe_batches(batches, source, ALL, positions)


def _is_there(path: str) -> bool:
    """Whether there is such a file or folder, here or at an address that TensorFlow opens."""
    if not is_remote(path):
        return os.path.exists(path)
    try:
        return tf.io.gfile.exists(path)
    except tf.errors.OpError:
        return False


def _from_list(
    images: list, preprocessing: Prepares | None, rule: BatchRule
) -> np.ndarray | tf.data.Dataset:
    if not images:
        raise ValueError("Expected at least one image. Received: none")
    if all(isinstance(image, str | os.PathLike) for image in images):
        preprocessing = _require_preprocessing(preprocessing)
        paths = [os.path.expanduser(os.fspath(path)) for path in images]
        for path in paths:
            if not _is_there(path):
                raise ValueError(f"Image file not found: {without_password(path)!r}.")
        labels = np.full(len(paths), -1, np.int32)
        batches = _read_files(np.array(paths), labels, (), preprocessing, rule)
        return batches.map(lambda images, _: images)
    # A model of images with an alpha channel gets that of files and PIL images.
    channels = 4 if preprocessing is not None and preprocessing.num_channels == 4 else 3
    arrays = []
    for image in images:
        if isinstance(image, str | os.PathLike):
            image = decode_file(image, channels=channels)
        if isinstance(image, bytes):
            raise ValueError(
                "Expected each image to be an array, a PIL image or a path. Received: bytes; "
                "PIL.Image.open(io.BytesIO(image)) decodes them"
            )
        image = pixels_of(image, channels=channels) if _is_pillow(image) else np.asarray(image)
        if image.dtype.kind in "iu":
            require_levels(image)
            image = image[..., None] if image.ndim == 2 else image
            framing = framing_of(_require_preprocessing(preprocessing), image.shape[:2])
            image = framing.fit(tf.convert_to_tensor(image)).numpy()
        arrays.append(image)
    if len({image.shape for image in arrays}) > 1:
        shapes = sorted({image.shape for image in arrays})
        note = "" if all(map(is_raw, images)) else "; float images are not resized"
        raise ValueError(f"{SIZE_NEEDED} Received: shapes {shapes}{note}")
    return np.stack(arrays)


def _require_preprocessing(preprocessing: Prepares | None) -> Prepares:
    if preprocessing is None:
        raise ValueError(
            "The model does not declare its preprocessing, which files and 8-bit images need: "
            "set model.preprocessing = vit_tf.Preprocessing(...), or pass preprocessing= to "
            "vit_tf.torch_features. Or pass float arrays with the values that the model expects."
        )
    return preprocessing


def _from_dataset(
    dataset: tf.data.Dataset, preprocessing: Prepares | None, rule: BatchRule
) -> tf.data.Dataset:
    """A data set as batches of images, or of tuples that begin with them."""
    require_finite_length(dataset)  # here, as some measurements read all labels or scores first
    changed = _with_known_rank(_as_pair(dataset))
    shape = _image_spec(changed).shape
    is_single = shape.rank == 3 and shape[2] in (*CHANNELS, None)
    # Single images are prepared before they are batched, as they may differ in size.
    is_raw = _image_spec(changed).dtype.is_integer and (is_single or shape.rank == 4)
    if preprocessing is not None and is_raw:
        size = tuple(shape[0:2] if is_single else shape[1:3])
        changed = _map_images(changed, framing_of(preprocessing, size).fit)
    if is_single:
        count = int(changed.cardinality())
        sizes = rule.sizes(count) if count >= 0 else None
        changed = cut_examples(changed, sizes) if sizes else changed.batch(BATCH_SIZE)
    spec = changed.element_spec
    if isinstance(spec, tuple) and _ends_in_weights(spec[1:]):
        changed = changed.map(lambda *batch: batch[:-1])
    if isinstance(spec, tuple) and len(spec) > 1 and _is_label_column(spec[1]):
        changed = changed.map(lambda images, labels, *rest: (images, labels[:, 0], *rest))
    return _with_class_names(changed, dataset)


def _with_class_names(dataset: tf.data.Dataset, origin: tf.data.Dataset) -> tf.data.Dataset:
    """A data set with the `class_names` of the one that it was made of, if that has any."""
    if getattr(origin, "class_names", None) is not None:
        dataset.class_names = origin.class_names
    return dataset


def _map_images(dataset: tf.data.Dataset, prepare: Callable) -> tf.data.Dataset:
    """A data set with a function applied to its images, single ones or batches."""
    if not isinstance(dataset.element_spec, tuple):
        return dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.map(
        lambda images, *others: (prepare(images), *others), num_parallel_calls=tf.data.AUTOTUNE
    )


def _with_known_rank(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Images of unknown rank as batches of them, and integers after them as labels."""
    if _image_spec(dataset).shape.rank is not None:
        return dataset

    def with_rank(images: tf.Tensor, *others: tf.Tensor) -> Any:
        labels = [
            tf.ensure_shape(x, [None]) if x.shape.rank is None and x.dtype.is_integer else x
            for x in others
        ]
        images = tf.ensure_shape(images, [None] * 4)
        return (images, *labels) if labels else images

    return dataset.map(with_rank)


def _as_pair(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A data set of dicts as one of (images, labels), or of images; another as it is."""
    spec = dataset.element_spec
    if isinstance(spec, dict):
        image, label = _keys_of(spec)
        if label is None:
            return dataset.map(lambda example: example[image])
        return dataset.map(lambda example: (example[image], example[label]))
    # The inputs and targets of a model by name, as `fit` takes them.
    if isinstance(spec, tuple) and any(isinstance(part, dict) for part in spec[:2]):
        keys = (IMAGE_KEYS, *[LABEL_KEYS] * (len(spec) - 1))
        return dataset.map(
            lambda *parts: tuple(
                part[_key_of(part, usual)] if isinstance(part, dict) else part
                for part, usual in zip(parts, keys, strict=True)
            )
        )
    return dataset


def _image_spec(dataset: tf.data.Dataset) -> tf.TensorSpec:
    spec = dataset.element_spec
    images = spec[0] if isinstance(spec, tuple) else spec
    if not hasattr(images, "shape"):
        raise ValueError(f"Expected batches of images, or of (images, labels). Received: {spec}")
    return images


def _ends_in_weights(others: Sequence) -> bool:
    """Whether the last of labels and others, arrays or their specs, are weights of examples."""
    if len(others) < 2 or tf.TensorShape(others[-1].shape).rank is None:
        return False
    last, dtype = others[-1], tf.as_dtype(others[-1].dtype)
    is_row = len(last.shape) == 1 or tuple(last.shape[1:]) == (1,)
    # Integers after labels, which have one axis, are weights too; after masks they are labels.
    follows_labels = len(others) == 2 and tf.TensorShape(others[0].shape).rank == 1
    return is_row and (
        dtype.is_floating or (follows_labels and (dtype.is_integer or dtype.is_bool))
    )


def _is_label_column(values: Any) -> bool:
    """Whether an array or its spec holds integers of shape (example, 1)."""
    shape = tf.TensorShape(values.shape)
    return shape.rank == 2 and shape[1] == 1 and tf.as_dtype(values.dtype).is_integer


def _is_pillow(image: object) -> "TypeGuard[Image]":
    return any(kind.__module__.startswith("PIL.") for kind in type(image).__mro__)
