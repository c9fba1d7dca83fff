"""Converts images in any form (arrays, PIL images, paths, folders, data sets) to batches."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

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
    LazyRows,
    batch_arrays,
    cut_examples,
    explained_batches,
    gather_batches,
    require_finite_length,
)
from vit_tf.data.files import is_remote
from vit_tf.data.folder import ImageFiles, decode_file, scan
from vit_tf.data.imaging import framing_of, pixels, pixels_of
from vit_tf.data.known_forms import (
    IMAGE_KEYS,
    LABEL_KEYS,
    Examples,
    channels_last,
    has_channels_first,
    in_known_form,
    is_pillow,
    key_of,
    keys_of,
)
from vit_tf.data.preprocessing import JointPreprocessing, Preprocessing, require_levels
from vit_tf.data.reading import CACHE_BYTES, read_batches
from vit_tf.data.source import (
    ALL,
    CHANNELS,
    SPLITS,
    SizesDifferError,
    describe_batches,
)


class Indexed(Protocol):
    """Elements by number, as data sets of PyTorch have them."""

    def __getitem__(self, number: int, /) -> Any: ...


# An array, a PIL image, a path, a folder, a list of these, a dict of arrays or a data set; or a
# tuple of one of these and of labels or annotations.
ImagesLike: TypeAlias = (
    np.ndarray | tf.Tensor | tf.data.Dataset | str | os.PathLike | Mapping | Iterable | Indexed
)
# What makes a model's input of 8-bit images, or those of several models.
Prepares = Preprocessing | JointPreprocessing


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


def is_one_image(images: Any) -> bool:
    """Whether this is an array of one image in colours, a PIL image or the path of a file."""
    if isinstance(images, str | os.PathLike):
        return os.path.isfile(os.path.expanduser(images))
    shape = getattr(images, "shape", ())
    return is_pillow(images) or (len(shape) == 3 and shape[-1] in CHANNELS)


def with_channel_axis(images: Any, image_shape: tuple[int | None, ...]) -> Any:
    """Images of (height, width) with an axis of channels, where a model takes grey images."""
    images = in_known_form(images)
    if isinstance(images, Examples):
        return images  # whose grey images get this axis when they are read
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


def is_raw(images: Any) -> bool:
    """Whether images are files, PIL images or of 8 bits, which a model's preprocessing is for."""
    images = _without_labels(images)
    if isinstance(images, list):
        return any(is_raw(image) for image in images)
    if isinstance(images, str | os.PathLike | bytes) or is_pillow(images):
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
    if len(shape) in (3, 4) and has_channels_first(shape):
        shape = (*shape[:-3], *shape[-2:], shape[-3])
    is_image = len(shape) == 4 or (len(shape) == 3 and shape[-1] in CHANNELS)
    return shape[-3:] if is_image and None not in shape[-3:] else None


def _without_labels(images: Any) -> Any:
    """Images in a known form without what follows them; the `tf.TensorSpec` of a data set's."""
    images = in_known_form(images)
    images = images.first if isinstance(images, Examples) else images
    if isinstance(images, tf.data.Dataset):
        return tf.nest.flatten(_as_pair(images).element_spec)[0]
    return _without_labels(images[0]) if isinstance(images, tuple) and images else images


def as_images(
    images: Any, preprocessing: Prepares | None = None, rule: BatchRule = IN_ORDER
) -> np.ndarray | tuple | tf.data.Dataset:
    """`batch_images`, with images that fit into memory as an array or a tuple of arrays.

    In a tuple, images that do not are `LazyRows`.
    """
    # 8-bit and PIL images and files get the preprocessing; None leaves integers as they are.
    leave_gpus_to_jax()
    images = in_known_form(images)
    if isinstance(images, tuple):
        # The order of all parts is decided once, when they are cut into batches.
        rows = _hold(_rows_of(images[0], preprocessing))
        return _with_labels(rows[0] if isinstance(rows, tuple) else rows, images[1:])
    if isinstance(images, Examples) and (images.is_batched or not images.is_indexed):
        return _from_dataset(_read_stream(images, preprocessing), preprocessing, rule)
    if isinstance(images, tf.data.Dataset):
        return _from_dataset(images, preprocessing, rule)
    if _is_folder(images):
        paths, labels, class_names = _files_of(images)
        order = rule.order(len(paths))
        sizes = rule.sizes(len(paths))
        return _read_files(paths[order], labels[order], class_names, preprocessing, sizes)
    rows = _rows_of(images, preprocessing)
    if isinstance(rows, tuple):
        return _with_labels(rows[0], rows[1:])
    return _from_dataset(batch_arrays(rows, rule), None) if isinstance(rows, LazyRows) else rows


def _with_labels(images: Any, others: Sequence) -> tuple:
    """Images and their labels or annotations as arrays, without weights of examples."""
    arrays = [_as_array(values) for values in others]
    if arrays and _is_label_column(arrays[0]):  # as `keras.datasets` has labels
        arrays[0] = arrays[0][:, 0]
    return (images, *arrays[: len(arrays) - _ends_in_weights(arrays)])


def _rows_of(images: Any, preprocessing: Prepares | None) -> Any:
    """Images in a known form as an array of examples, or as `LazyRows` if they are prepared.

    Examples that are held in memory and have labels are a tuple of arrays.
    """
    if isinstance(images, str | os.PathLike):
        images = _files_of(images)[0].tolist() if _is_folder(images) else [images]
    if isinstance(images, list) or is_pillow(images):
        images = images if isinstance(images, list) else [images]
        if not images:
            raise ValueError("Expected at least one image. Received: none")
        if all(isinstance(image, str | os.PathLike) for image in images):
            return _rows_of_files(images, preprocessing)
        images = Examples(images)
    if isinstance(images, Examples) and images.is_indexed and not images.is_batched:
        count = cast(int, images.count)
        return _hold(LazyRows(count, partial(_read_rows, images, preprocessing)))
    if isinstance(images, Examples):
        images = _read_stream(images, preprocessing)
    if isinstance(images, tf.data.Dataset):
        batches = explained_batches(_from_dataset(images, preprocessing, IN_ORDER))
        return np.concatenate([x[0] if isinstance(x, tuple) else x for x in batches])
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
    with tf.device("CPU"):
        levels = tf.convert_to_tensor(images)  # once for all passes

    def read(positions: np.ndarray, sizes: Sequence[int]) -> tf.data.Dataset:
        return _from_dataset(gather_batches(levels, positions, sizes), preprocessing)

    return LazyRows(len(images), read)


def _hold(rows: Any) -> Any:
    """Rows that take little memory as arrays, so that they are prepared once for all passes.

    Images with labels become a tuple of arrays. Large rows stay `LazyRows`, and arrays arrays.
    """
    if not isinstance(rows, LazyRows):
        return rows
    batches = rows.read(np.arange(len(rows)), IN_ORDER.sizes(len(rows)))
    specs = tf.nest.flatten(batches.element_spec)
    if len(rows) * sum(math.prod(x.shape[1:]) * x.dtype.size for x in specs) > CACHE_BYTES:
        return rows
    arrays = [np.empty((len(rows), *x.shape[1:]), x.dtype.as_numpy_dtype) for x in specs]
    start = 0
    for batch in explained_batches(batches):
        parts = tf.nest.flatten(batch)
        for array, part in zip(arrays, parts, strict=True):
            array[start : start + len(part)] = part
        start += len(parts[0])
    return tf.nest.pack_sequence_as(batches.element_spec, arrays)


def _read_rows(
    examples: Examples, preprocessing: Prepares | None, positions: np.ndarray, sizes: Sequence[int]
) -> tf.data.Dataset:
    """Batches of these sizes of the examples at some positions, prepared one by one."""
    singles = _read_singly(examples, preprocessing, positions)
    return cut_examples(singles, sizes).prefetch(1)


def _read_stream(examples: Examples, preprocessing: Prepares | None) -> tf.data.Dataset:
    """A data set of Python in its own order: batches as they are, single examples prepared."""
    first = examples.first[0] if isinstance(examples.first, tuple) else examples.first
    if not examples.is_batched or isinstance(first, list):
        return _read_singly(examples, preprocessing).batch(BATCH_SIZE)

    def read() -> Iterator[Any]:
        return map(_with_channels, examples.read())

    def spec_of(values: Any) -> tf.TensorSpec:
        values = np.asarray(values)
        return tf.TensorSpec((None, *values.shape[1:]), values.dtype)

    signature = tf.nest.map_structure(spec_of, _with_channels(examples.first))
    batches = tf.data.Dataset.from_generator(read, output_signature=signature)
    if examples.count is None:
        return batches
    return batches.apply(tf.data.experimental.assert_cardinality(examples.count))


def _with_channels(batch: Any) -> Any:
    """A batch whose grey images have an axis of channels; what follows them stays as it is."""
    if isinstance(batch, tuple):
        return (_with_channels(batch[0]), *batch[1:])
    return batch[..., None] if np.ndim(batch) == 3 else batch


def _read_singly(
    examples: Examples, preprocessing: Prepares | None, positions: np.ndarray | None = None
) -> tf.data.Dataset:
    """Single examples, prepared; those at some positions, if their data set has positions."""
    image, *others = examples.first_example
    # Raw images of any size are resized; others have the size of the first.
    raw = preprocessing if is_raw(image) else None
    first = [_as_pixels(image, preprocessing), *map(np.asarray, others)]
    specs = [tf.TensorSpec(part.shape, part.dtype) for part in first]
    if raw is not None and raw.size is not None:
        specs[0] = tf.TensorSpec((None, None, *first[0].shape[2:]), first[0].dtype)

    def read() -> Iterator[tuple[np.ndarray, ...]]:
        for image, *others in examples.read_singly(positions):
            parts = (_as_pixels(image, preprocessing), *map(np.asarray, others))
            _require_specs(parts, specs)
            yield parts

    singles = tf.data.Dataset.from_generator(read, output_signature=tuple(specs))
    if positions is not None:
        singles = singles.apply(tf.data.experimental.assert_cardinality(len(positions)))
    if len(specs) == 1:
        singles = singles.map(lambda image: image)
    if raw is None:
        return singles
    return _map_images(singles, framing_of(raw, tuple(specs[0].shape[:2])).fit)


def _require_specs(parts: Sequence[np.ndarray], specs: Sequence[tf.TensorSpec]) -> None:
    """Raises a `ValueError` for an example whose parts are not as those of the first example."""
    image, *others = zip(parts, specs, strict=True)
    if image[0].dtype != image[1].dtype.as_numpy_dtype:
        raise ValueError(
            "Expected images that are all floats, or all files, PIL images and 8-bit images. "
            f"Received: {image[1].dtype.name} and {image[0].dtype} images"
        )
    if not image[1].shape.is_compatible_with(image[0].shape):
        note = "; float images are not resized" if image[0].dtype.kind == "f" else ""
        shapes = sorted([tuple(image[1].shape), image[0].shape])
        raise ValueError(f"{SIZE_NEEDED} Received: shapes {shapes}{note}")
    for part, spec in others:
        is_cast = np.can_cast(part.dtype, spec.dtype.as_numpy_dtype, "same_kind")
        if not spec.shape.is_compatible_with(part.shape) or part.dtype.kind == "O" or not is_cast:
            raise ValueError(
                f"Expected labels or annotations of shape {tuple(spec.shape)} and type "
                f"{spec.dtype.name} for each image, as for the first. Received: shape "
                f"{part.shape} and type {part.dtype}"
            )


def _as_pixels(image: Any, preprocessing: Prepares | None) -> np.ndarray:
    """One image as an array (height, width, channel): of floats, or of 8 bits in colours."""
    # A model of images with an alpha channel gets that of files and PIL images.
    channels = 4 if preprocessing is not None and preprocessing.num_channels == 4 else 3
    if isinstance(image, str | os.PathLike | bytes) or is_pillow(image):
        _require_preprocessing(preprocessing)
    if isinstance(image, str | os.PathLike):
        return decode_file(image, channels=channels)
    if isinstance(image, bytes):
        return pixels(image, channels=channels)
    if is_pillow(image):
        return pixels_of(image, channels=channels)
    array = np.asarray(image)
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise ValueError(
            "Expected each image to be an array, a PIL image or a path. Received: "
            f"{type(image).__name__}"
        )
    array = channels_last(array) if array.ndim == 3 else array
    array = array[..., None] if array.ndim == 2 else array
    if array.dtype.kind not in "iu" or preprocessing is None:
        return array
    require_levels(array)
    array = array.astype(np.uint8)
    # Other numbers of channels than those of PIL images are a model's own.
    if array.shape[-1] == channels or array.shape[-1] not in (1, 3, 4):
        return array
    from PIL import Image

    return pixels_of(
        Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array), channels=channels
    )


def _is_folder(images: Any) -> TypeGuard[str | os.PathLike]:
    """Whether this is the path of a folder; a `ValueError` for one of nothing."""
    if not isinstance(images, str | os.PathLike):
        return False
    text = os.path.expanduser(os.fspath(images))
    if not _is_there(text):
        raise ValueError(f"Image file or folder not found: {without_password(text)!r}.")
    return tf.io.gfile.isdir(text) if is_remote(text) else os.path.isdir(text)


def _files_of(folder: str | os.PathLike) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """The paths of the images in a folder, their labels, and the names of the classes."""
    layout = scan(os.path.expanduser(os.fspath(folder)))
    splits = (layout.splits[split] for split in SPLITS if split in layout.splits)
    paths, labels = map(np.concatenate, zip(*splits, strict=True))
    order = np.argsort(paths, kind="stable")  # of all splits, as a pattern of paths has them
    return paths[order], labels[order], layout.class_names


def _rows_of_files(images: Sequence, preprocessing: Prepares | None) -> LazyRows:
    """The images of paths, which are decoded on all cores."""
    paths = np.array([os.path.expanduser(os.fspath(path)) for path in images])
    for path in paths:
        if not _is_there(path):
            raise ValueError(f"Image file not found: {without_password(path)!r}.")
    labels = np.full(len(paths), -1, np.int32)

    def read(positions: np.ndarray, sizes: Sequence[int]) -> tf.data.Dataset:
        batches = _read_files(paths[positions], labels[positions], (), preprocessing, sizes)
        return batches.map(lambda images, _: images)

    return LazyRows(len(paths), read)


def _read_files(
    paths: np.ndarray,
    labels: np.ndarray,
    class_names: tuple[str, ...],
    preprocessing: Prepares | None,
    sizes: Sequence[int],
) -> tf.data.Dataset:
    """Batches of (images, labels) of files, of these sizes; a label is -1 where it is not known."""
    preprocessing = _require_preprocessing(preprocessing)
    source, positions = ImageFiles(class_names, {ALL: (paths, labels)}), np.arange(len(paths))
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


def _require_preprocessing(preprocessing: Prepares | None) -> Prepares:
    if preprocessing is None:
        raise ValueError(
            "The model does not declare its preprocessing, which files and 8-bit images need: "
            "set model.preprocessing = vit_tf.Preprocessing(...), or pass float arrays with the "
            "values that the model expects."
        )
    return preprocessing


def _from_dataset(
    dataset: tf.data.Dataset, preprocessing: Prepares | None, rule: BatchRule = IN_ORDER
) -> tf.data.Dataset:
    """A data set as batches of images, or of tuples that begin with them."""
    require_finite_length(dataset)  # here, as some measurements read all labels or scores first
    changed = _with_known_rank(_as_pair(dataset))
    shape = _image_spec(changed).shape
    if shape.rank == 4 and has_channels_first(shape):
        changed = _map_images(changed, lambda images: tf.transpose(images, (0, 2, 3, 1)))
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
        image, label = keys_of(spec)
        if label is None:
            return dataset.map(lambda example: example[image])
        return dataset.map(lambda example: (example[image], example[label]))
    # The inputs and targets of a model by name, as `fit` takes them.
    if isinstance(spec, tuple) and any(isinstance(part, dict) for part in spec[:2]):
        keys = (IMAGE_KEYS, *[LABEL_KEYS] * (len(spec) - 1))
        return dataset.map(
            lambda *parts: tuple(
                part[key_of(part, usual)] if isinstance(part, dict) else part
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
