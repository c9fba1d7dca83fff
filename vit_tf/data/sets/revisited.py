"""Revisited Oxford and Paris: photographs of landmarks, and those that show the same one."""

import io
import os
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf.common.names import file_error, lookup
from vit_tf.common.pickles import Constructor
from vit_tf.data.folder import NumberedFiles, decode_file
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.data.reading import read_batches
from vit_tf.data.source import (
    ImageSize,
    check_numbers,
    checked_size,
)

NAMES = ("roxford5k", "rparis6k")
RELEVANCE = ("easy", "hard", "junk")
EVERYTHING = (0, 0, np.inf, np.inf)


def load_revisited(
    root: str | os.PathLike,
    name: str,
    *,
    image_size: ImageSize | None = None,
    batch_size: int = 128,
    preprocessing: Preprocessing | None = None,
    crop_queries: bool = True,
) -> tuple[tf.data.Dataset, tf.data.Dataset, list[dict[str, Any]]]:
    """Queries and database of revisited Oxford or Paris, from the released files.

        root/roxford5k/gnd_roxford5k.pkl
        root/roxford5k/jpg/all_souls_000013.jpg

    Queries are cropped to the landmark (Radenovic et al. 2018, section 3). The code of Walmer et
    al. 2023 does not crop them: for comparable numbers, use `crop_queries=False`. One difference
    remains: their code shrinks each image to fit the model's size, enlarges its shorter side to
    this size and cuts out the middle. `load_revisited` resizes the whole image to the model's size.
    The pickle is read without executing any code in it. Images are decoded batch by batch.

    Args:
        root: the folder with this layout.
        name: "roxford5k" or "rparis6k".
        image_size: height and width to which images are resized (bilinear, antialiased), in pixels;
            a number or a pair. A size is required, because the images differ in size.
        batch_size: number of examples per batch. The last batch may have fewer.
        preprocessing: preprocessing of the model, `model.preprocessing`: its size, interpolation,
            mean and std replace `image_size` and [-1, 1].
        crop_queries: whether queries are cropped to their boxes. If False, queries are whole
            images.

    Returns:
        Tuple (queries, database, truth), as `vit_tf.analysis.retrieval` takes them. `queries` and
        `database` are batched `tf.data.Dataset`s of (images, numbers). Images are float32 of shape
        (example, height, width, 3). Numbers are int32 of shape (example,): the position of each
        image in the list of queries or of the database. `truth` is a list with one dict for each
        query. The dict has the query's `name`, and `easy`, `hard` and `junk`, which are int arrays
        of positions in the database.

    Raises:
        ValueError: if a file is missing or corrupt, if the pickle has other content, if no size is
            given, or if an argument is out of range. An image that cannot be decoded stops the
            iteration.
    """
    lookup("name", name, dict.fromkeys(NAMES))
    check_numbers(1, batch_size=batch_size)
    size = checked_size(image_size, preprocessing)
    preprocessing = preprocessing and preprocessing.squeezed()
    if size is None:
        raise ValueError(
            "Expected image_size or preprocessing, for images that differ in size. "
            "Received: image_size=None, preprocessing=None"
        )
    folder = Path(root).expanduser() / name
    query_names, database_names, truth = read_truth(folder / f"gnd_{name}.pkl")
    boxes = [query.pop("bbx") for query in truth]
    if not crop_queries:
        boxes = [EVERYTHING] * len(query_names)
    parts = ((query_names, boxes), (database_names, [EVERYTHING] * len(database_names)))
    queries, database = (
        _batches(folder / "jpg", names, boxes, size, batch_size, preprocessing)
        for names, boxes in parts
    )
    return queries, database, truth


def read_truth(path: str | os.PathLike) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """Names of queries and database, and dicts of name, bbx, easy, hard and junk of queries."""
    content = load_plain_pickle(path)
    try:
        query_names, database_names = (
            list(map(str, content[key])) for key in ("qimlist", "imlist")
        )
        entries = zip(query_names, content["gnd"], strict=True)
        truth = [_entry(query, entry, len(database_names)) for query, entry in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            "Expected a dict of imlist, qimlist and gnd, with the bbx, easy, hard and junk of each "
            f"query. Received: {str(path)!r} ({type(error).__name__}: {error})"
        ) from error
    return query_names, database_names, truth


def _entry(name: str, entry: Any, count: int) -> dict[str, Any]:
    """What is known of a query, checked."""
    box = np.asarray(entry["bbx"], float)
    if box.shape != (4,) or not np.isfinite(box).all():
        raise ValueError(f"bbx of {name} is {entry['bbx']}, not (left, top, right, bottom)")
    query = {"name": name, "bbx": box}
    for relevance in RELEVANCE:
        places = np.asarray(entry[relevance]).ravel()
        numbers = places.astype(np.int64)
        if (numbers != places).any() or (numbers < 0).any() or (numbers >= count).any():
            raise ValueError(
                f"{relevance} of {name} has indices outside the {count} images of imlist"
            )
        query[relevance] = numbers
    return query


def _decode(path: bytes, box: np.ndarray) -> np.ndarray:
    """The part of an image file in a box."""
    name = os.fsdecode(path)
    return crop(decode_file(name, upright=False), box, name)


def _batches(
    folder: Path,
    names: Sequence[str],
    boxes: Sequence,
    size: tuple[int, int],
    batch_size: int,
    preprocessing: Preprocessing | None,
) -> tf.data.Dataset:
    """Batches of (images, numbers) of image files, each cropped to its box."""
    paths = [str(folder / f"{name}.jpg") for name in names]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(paths)} images are missing, such as {', '.join(missing[:5])}"
        )
    source = NumberedFiles("test", paths, np.array(boxes, float), _decode)
    numbers = np.arange(len(paths), dtype=np.int32)
    return read_batches(source, "test", numbers, size, batch_size, preprocessing=preprocessing)


def crop(image: np.ndarray, box: np.ndarray, path: str) -> np.ndarray:
    """The pixels of an image in a box (left, top, right, bottom), rounded as Pillow does."""
    height, width = image.shape[:2]
    limits = np.clip(np.round(box), 0, (width, height, width, height))
    left, top, right, bottom = limits.astype(int)
    if left >= right or top >= bottom:
        raise ValueError(
            f"Expected a box that overlaps the image, {width} wide and {height} high. "
            f"Received: {path} with {np.asarray(box).tolist()}"
        )
    return image[top:bottom, left:right]


def load_plain_pickle(path: str | os.PathLike) -> Any:
    """Reads a pickle of numbers, texts, lists and arrays of numbers that Python 2 or 3 wrote.

    A pickle is a program that calls what it names. Here it can name nothing but `NAMED`, in which
    no function or type of NumPy is its own: a pickle that changes a dtype could turn bytes of the
    file into addresses of objects.
    """
    try:
        # Python 2 wrote the bytes of arrays as text, which only this encoding gives back.
        content = _Unpickler(io.BytesIO(Path(path).read_bytes()), encoding="latin1").load()
        return _with_arrays(content)
    except Exception as error:  # a corrupt pickle makes the unpickler raise anything
        raise ValueError(
            "Expected a pickle of dicts, lists, text, numbers and NumPy arrays. "
            f"Received: {str(path)!r} ({type(error).__name__}: {file_error(error, path)})"
        ) from error


class _Dtype:
    """A dtype of numbers, of which a pickle sets the order of bytes alone."""

    def __init__(self, code: str, *_: Any) -> None:
        if not re.fullmatch(r"[biuf]\d+", code):
            raise ValueError(f"an array of type {code!r}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """An array as a pickle fills it; its `values` are set by its state."""

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, is_fortran, data = state
        self.values = _array_of_bytes(data, kind, shape, "F" if is_fortran else "C")


def _array_of_bytes(data: Any, kind: _Dtype, shape: tuple, order: Any = "C") -> np.ndarray:
    """An array of the bytes of its numbers, which Python 2 wrote as text."""
    encoded = data.encode("latin1") if isinstance(data, str) else bytes(data)
    return np.frombuffer(encoded, kind.dtype).reshape(shape, order=order).copy(order)


# What NumPy writes for arrays and numbers, and Python 2 for bytes.
NAMED = {
    "numpy._core.multiarray._reconstruct": Constructor(lambda kind, shape, code: _Array()),
    "numpy._core.multiarray.scalar": Constructor(lambda kind, x: _array_of_bytes(x, kind, ())[()]),
    "numpy._core.numeric._frombuffer": Constructor(_array_of_bytes),
    "numpy.ndarray": _Array,
    "numpy.dtype": _Dtype,
    "_codecs.encode": Constructor(lambda text, encoding: text.encode("latin1")),
    "__builtin__.bytes": Constructor(bytes),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What takes the place of what NumPy writes; an error for other names."""
        # NumPy 2 renamed the package that older files name.
        named = f"{module.replace('numpy.core.', 'numpy._core.')}.{name}"
        if named not in NAMED:
            raise pickle.UnpicklingError(f"it refers to {named}")
        return NAMED[named]


def _with_arrays(content: Any) -> Any:
    """The content of a pickle with the arrays that it has filled."""
    if isinstance(content, dict):
        return {key: _with_arrays(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(map(_with_arrays, content))
    return content.values if isinstance(content, _Array) else content
