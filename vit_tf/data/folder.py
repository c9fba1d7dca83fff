"""Folders of images: their splits, classes and files, on a disk or at an address.

The classes of images that lie side by side are those of a text file, as released data have it:

* `val_annotations.txt` of Tiny ImageNet: the name of an image, its class, a box.
* `val.txt` of Caffe's ImageNet: the name of an image, the number of its class from 0 on.
* `LOC_val_solution.csv` of Kaggle's ImageNet: the name without its ending, its class, boxes.
* `ILSVRC2012_validation_ground_truth.txt`: the number of a class on each line, in the order of the
  images' names. These are the development kit's own numbers, which its `meta.mat` explains.
* A class on each line, in the order of the images' names.
* A table with a header that names one column `class` or `label`.
"""

import csv
import functools
import io
import mimetypes
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from vit_tf.common.names import PASSWORD, format_list, join_words, without_password
from vit_tf.data import imaging
from vit_tf.data.files import is_remote
from vit_tf.data.source import (
    SPLITS,
    TEST_FRACTION,
    Decoder,
    FastDecoder,
    Indices,
    Item,
    LazyDict,
    SizesDifferError,
    Source,
    Window,
    hold_out,
    warn_once,
)

# The paths of files and their labels, int32, -1 for unknown: two arrays of shape (example,).
Members: TypeAlias = tuple[np.ndarray, np.ndarray]
# If images must share a size, so many are measured ahead, and the others when they are decoded.
MEASURED = 100


class ImageFiles(Source):
    """Image files: the items are their paths.

    `splits` has (paths, int32 labels, -1 for unknown) of each split, listed when they are asked
    for; `class_names` are none where no label is known.
    """

    in_files = True

    def __init__(self, class_names: tuple[str, ...], splits: Mapping[str, Members]):
        self.class_names, self.splits = class_names, splits
        self.num_examples = LazyDict({split: partial(self._count, split) for split in splits})

    def _count(self, split: str) -> int:
        return len(self.splits[split][0])

    def labels(self, split: str) -> np.ndarray:
        return self.splits[split][1]

    def image_size(self, split: str, indices: Indices) -> tuple[int, int]:
        return _shared_size(self.splits[split][0][indices])

    def read(self, split: str, indices: Indices) -> tf.data.Dataset:
        paths, labels = (column[indices] for column in self.splits[split])
        return tf.data.Dataset.from_tensor_slices((paths, labels))

    def decoder(self, num_channels: int) -> Decoder:
        return FileDecoder(4 if num_channels == 4 else 3)


@dataclass(frozen=True)
class FileDecoder(FastDecoder):
    """Decodes files as images of 3 channels or, all of them by Pillow, of 4."""

    num_channels: int = 3

    def attempt(self, item: Item, window: Window | None = None) -> tf.Tensor:
        contents = tf.io.read_file(item)
        if self.num_channels == 4:
            return imaging.cut(imaging.decode_by_pillow(contents, channels=4), window)
        return imaging.decode(contents, window)

    def decode(self, item: Item) -> tuple[tf.Tensor, tf.Tensor | str]:
        channels = self.num_channels

        def read(path: bytes) -> np.ndarray:
            return decode_file(os.fsdecode(path), channels=channels)

        name = tf.strings.regex_replace(item, *PASSWORD)
        return imaging.decode_or_name(self.attempt, read, item, name, channels)


class NumberedFiles(Source, Decoder):
    """Image files of one split, each read by a function of its path and of a row of numbers.

    The label of an example is its position.
    """

    class_names = ()

    def __init__(
        self, split: str, paths: Sequence[str], rows: np.ndarray, read: Callable[..., np.ndarray]
    ):
        self._paths, self._rows, self._read_file = paths, rows, read
        self.num_examples = {split: len(paths)}

    def labels(self, split: str) -> np.ndarray | None:
        return None

    def image_size(self, split: str, indices: Indices) -> tuple[int, int]:
        raise SizesDifferError(f"{len(indices)} files")

    def read(self, split: str, indices: Indices) -> tf.data.Dataset:
        columns = np.array(self._paths)[indices], self._rows[indices]
        return tf.data.Dataset.from_tensor_slices((columns, indices))

    def decode(self, item: Item) -> tuple[tf.Tensor, tf.Tensor | str]:
        return imaging.decode_in_python(self._read_file, *item)


def check_images(folder: str | os.PathLike) -> int:
    """Decodes every image of a folder, and returns how many there are.

    Raises:
        ValueError: if files cannot be decoded. The message lists them.
    """
    paths = np.concatenate([paths for paths, _ in scan(folder).splits.values()])
    with ThreadPoolExecutor() as pool:
        errors = pool.map(_error, paths)
        bar = tqdm(errors, "Checking images", len(paths), delay=1, disable=None, unit="image")
        bad = [error for error in bar if error]
    if bad:
        raise ValueError(
            f"{len(bad)} of {len(paths)} images cannot be decoded: {format_list(bad, '; ')}"
        )
    return len(paths)


def _error(path: str) -> str | None:
    """What is wrong with an image file, or None."""
    try:
        decode_file(path)
    except ValueError as error:
        return str(error).partition("Received: ")[2]
    return None


def decode_file(path: str | os.PathLike, upright: bool = True, channels: int = 3) -> np.ndarray:
    """The image of a file, upright or as stored, by `imaging.pixels`; an error names the file."""
    return imaging.pixels(_readable(path), without_password(path), upright, channels)


def _readable(path: str | os.PathLike) -> Any:
    """What Pillow reads an image from: its path, or a file at an address that it does not know."""
    return tf.io.gfile.GFile(path, "rb") if is_remote(path) else path


def _shared_size(paths: np.ndarray) -> tuple[int, int]:
    """The (height, width) that images share, in pixels, from the heads of some of their files."""
    sample = np.unique(np.linspace(0, len(paths) - 1, MEASURED).astype(int))
    first, *others = paths[sample]
    shared = _size(first)
    for path in others:
        size = _size(path)
        if size != shared:
            shown = [without_password(named) for named in (first, path)]
            raise SizesDifferError(f"{shown[0]!r} of {shared} and {shown[1]!r} of {size}")
    return shared


def _size(path: str) -> tuple[int, int]:
    from PIL import Image

    file = _readable(path)
    with imaging.explained(file, without_password(path)), Image.open(file) as image:
        # To find its orientation, Pillow may decode a PNG, and then fails for a corrupt one: so
        # this is within `explained` too.
        sideways = image.getexif().get(0x0112, 1) >= 5
        width, height = image.size
        return (width, height) if sideways else (height, width)


# In lower case, in which the names of folders are compared.
SPLIT_FOLDERS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# Folders of the unpacked archives of ImageNet. Each may be the root itself, and those that lie next
# to other folders, such as the development kit, are read without these.
RELEASED = {
    "ilsvrc2012_img_train": "train",
    "ilsvrc2012_img_val": "validation",
    "ilsvrc2012_img_test": "test",
}


@dataclass(frozen=True)
class ImageFolder:
    """Names of a folder's classes, and a function of all class names to (paths, int32 labels)."""

    class_names: tuple
    members: Callable


def scan(root: str | os.PathLike) -> ImageFiles:
    """The images of a folder, with the classes of its train split or, without one, of all."""
    root = os.path.expanduser(os.fspath(root))
    root = root.rstrip("/") or "/"
    if not tf.io.gfile.isdir(root):
        raise ValueError(f"Folder not found: {without_password(root)!r}")
    folders = _split_folders(root)
    if not folders:
        return _without_splits(root)
    parts = {split: _part(folder) for split, folder in folders.items()}
    labelled = {
        split: image_folder for split, image_folder in parts.items() if image_folder.class_names
    }
    if labelled and len(labelled) < len(parts):
        names = [split for split in parts if split not in labelled]
        warn_once(
            f"{without_password(root)}: splits without known classes are left out: "
            f"{join_words(names)}."
        )
    parts = labelled or parts
    defining = [parts["train"]] if "train" in parts else parts.values()
    class_names = sort_names({name for part in defining for name in part.class_names})
    members = {
        split: partial(image_folder.members, class_names) for split, image_folder in parts.items()
    }
    return ImageFiles(class_names, LazyDict(members))


def sort_names(names: Collection[str]) -> tuple[str, ...]:
    """Names of classes in the order of their labels: by their letters, numbers by their value."""
    in_text_order = tuple(sorted(names))
    if not all(name.isdecimal() for name in names):
        return in_text_order
    by_value = tuple(sorted(names, key=int))
    if by_value != in_text_order:
        warn_once(
            f"Class folders that are numbers are sorted by value: {format_list(by_value)}. Keras "
            f"and torchvision sort them as text: {format_list(in_text_order)}. The argument "
            "classes= of vit_tf.data.load sets another order."
        )
    return by_value


def _without_splits(root: str) -> ImageFiles:
    image_folder = _part(root)

    @functools.cache
    def cut() -> list[Members]:
        paths, labels = image_folder.members(image_folder.class_names)
        cuts = hold_out(labels, TEST_FRACTION, np.random.default_rng(0))
        warn_once(
            f"{without_password(root)} has no split folders: {len(cuts[1])} of its {len(labels)} "
            "images, a fixed fifth of each class, form the test split. The split 'all' contains "
            "every image."
        )
        return [(paths[indices], labels[indices]) for indices in cuts]

    return ImageFiles(
        image_folder.class_names, LazyDict({"train": lambda: cut()[0], "test": lambda: cut()[1]})
    )


def _split_folders(root: str) -> dict[str, str]:
    """Dict from the splits that are folders to these; empty where the folders are classes."""
    if split_of_root := RELEASED.get(os.path.basename(root).lower()):
        return {split_of_root: root}
    splits = RELEASED | SPLIT_FOLDERS
    subfolders = entries(root)[0]
    split_of = {name: splits[name.lower()] for name in subfolders if name.lower() in splits}
    others = [name for name in subfolders if name not in split_of]
    if others and not any(name.lower() in RELEASED for name in split_of):
        # A class may have the name of a split: a folder "train" next to "bus" and "car" holds
        # images of trains. The folder of a split next to others holds class folders.
        if not any(entries(os.path.join(root, name))[0] for name in split_of):
            return {}
        if "train" not in split_of.values():
            raise ValueError(
                "Expected folders of splits or of classes, not both. "
                f"Received: {_quoted(split_of)} next to {_quoted(others)} in {root!r}"
            )
    for split in split_of.values():
        names = [name for name in split_of if split_of[name] == split]
        if len(names) > 1:
            raise ValueError(
                f"Several folders could be the {split} split: {_quoted(names)} in {root!r}. "
                "Keep one."
            )
    folders = {split: os.path.join(root, name) for name, split in split_of.items()}
    return {split: folders[split] for split in SPLITS if split in folders}


def _quoted(names: Iterable[str]) -> str:
    return format_list(map(repr, names))


def _part(folder: str) -> ImageFolder:
    """The `ImageFolder` of a folder, by the names in it and a file of labels alone."""
    subfolders, names = entries(folder)
    files = [os.path.join(folder, name) for name in names]
    # In Tiny ImageNet, the images of a split without class folders lie in one folder "images".
    if not any(map(is_image, files)) and [name.lower() for name in subfolders] == ["images"]:
        files, subfolders = files_below(os.path.join(folder, subfolders[0])), []
    images = [file for file in files if is_image(file)]
    warn_of_others(folder, files)
    if not images and not subfolders:
        raise ValueError(
            f"No images in {folder!r}. Expected a folder of images, or of one folder of images "
            "per class."
        )
    path, classes = find_classes(folder, images, names)
    if path is not None and classes:
        classes = named_classes(path, classes)
        return ImageFolder(
            class_names_of(classes),
            lambda class_names: (np.array(images), labels_of(path, classes, class_names)),
        )
    below = (file for name in subfolders for file in files_below(os.path.join(folder, name)))
    if images and not any(map(is_image, below)):
        return ImageFolder((), lambda _: (np.array(images), np.full(len(images), -1, np.int32)))
    return ImageFolder(sort_names(subfolders), partial(_in_class_folders, folder, subfolders))


def _in_class_folders(
    folder: str, subfolders: Sequence[str], class_names: Sequence[str]
) -> Members:
    """The images of the class folders in a folder: (paths, int32 labels)."""
    place = {name: index for index, name in enumerate(class_names)}
    images, others, labels = [], [], []
    for name in subfolders:
        path = os.path.join(folder, name)
        if name not in place:
            raise ValueError(
                f"{path!r} is a class folder that the train split does not have. It has: "
                f"{format_list(class_names)}"
            )
        files = files_below(path)
        images_of_class = [file for file in files if is_image(file)]
        if not images_of_class:
            raise ValueError(
                f"No images in {path!r}. Expected each class folder to hold images "
                f"({', '.join(SUFFIXES)})."
            )
        images += images_of_class
        others += [file for file in files if not is_image(file)]
        labels += [place[name]] * len(images_of_class)
    warn_of_others(folder, others)
    return np.array(images), np.array(labels, np.int32)


TEXT_SUFFIXES = (".txt", ".csv", ".tsv")
ILSVRC = "ILSVRC2012_validation_ground_truth.txt"
# Where the file above lies next to ILSVRC2012_img_val: as it is, or in the kit it is released in.
ILSVRC_PLACES = (ILSVRC, f"ILSVRC2012_devkit_t12/data/{ILSVRC}")
# Headers of the column of classes, in lower case and without blanks.
CLASS_HEADERS = ("class", "label", "category", "target", "classname", "labelname", "species")
# A class that boxes follow, as in Kaggle's files.
BOXES = re.compile(r"^(\S+)(\s+-?\d+){4}.*")
NUMBER = re.compile(r"-?\d+(\.\d+)?(\s.*)?")


def find_classes(
    folder: str, images: Sequence[str], files: Sequence[str]
) -> tuple[str, list[str]] | tuple[None, None]:
    """Path and content of the text file of the classes of a folder's images, or two None."""
    if not images:
        return None, None
    names = [os.path.basename(image) for image in images]
    # Text files in the folder, those next to it that have its name, and ImageNet's.
    paths = [os.path.join(folder, name) for name in files if name.lower().endswith(TEXT_SUFFIXES)]
    siblings = [folder + suffix for suffix in TEXT_SUFFIXES]
    if names[0].startswith("ILSVRC2012_val_"):
        siblings += [os.path.join(os.path.dirname(folder), place) for place in ILSVRC_PLACES]
    paths += [path for path in siblings if tf.io.gfile.exists(path)]
    candidates = [(path, classes) for path in paths if (classes := _classes(path, names))]
    if len(candidates) > 1:
        shown = format_list(repr(os.path.basename(path)) for path, _ in candidates)
        raise ValueError(
            f"Expected one text file with the classes of the images in {folder!r}. "
            f"Received: {shown}"
        )
    return candidates[0] if candidates else (None, None)


def _classes(path: str, names: Sequence[str]) -> list[str] | None:
    """The class of each image, in their order, or None for a file with other contents."""
    rows = _rows(path)
    place = {name: index for index, name in enumerate(names)}
    place |= {os.path.splitext(name)[0]: index for index, name in enumerate(names)}
    listed = [row for row in rows if len(row) > 1 and os.path.basename(row[0]) in place]
    if not listed:
        is_list = all(len(row) == 1 and not is_image(row[0]) for row in rows)
        if not is_list or len(rows) != len(names):
            return None
        _require_one_order(path, names)
        return [row[0] for row in rows]

    # A header names the column of classes. Without one, it is the second, which boxes may follow.
    header = [] if rows[0] in listed or is_image(rows[0][0]) else rows[0]
    titles = [re.sub(r"[\s_-]", "", title.lower()) for title in header]
    columns = [i for i, title in enumerate(titles) if title in CLASS_HEADERS] if header else [1]
    columns = [1] if max(map(len, listed)) == 2 else columns
    classes = [BOXES.sub(r"\1", row[columns[0]]) for row in listed] if len(columns) == 1 else []
    boxes = [] if header else [cell for row in listed for cell in row[2:]]
    # A number in front of other words is a size or a position, as in "1.png 640 480 cat".
    sizes = [name for name in filter(NUMBER.fullmatch, classes) if boxes or " " in name]
    if not classes or sizes or not all(map(NUMBER.fullmatch, boxes)):
        received = f"the columns {', '.join(header)}" if header else f"lines as {listed[0]}"
        raise ValueError(
            "Expected an image and its class on each line, or a header that names one column "
            f"'class' or 'label'. Received: {path!r}, with {received}"
        )
    class_by_index: dict[int, str] = {}
    for row, name in zip(listed, classes, strict=True):
        index = place[os.path.basename(row[0])]
        if class_by_index.setdefault(index, name) != name:
            raise ValueError(
                f"{path!r} lists {names[index]} with two classes: "
                f"{format_list([class_by_index[index], name])}"
            )
    missing = [name for index, name in enumerate(names) if index not in class_by_index]
    if missing:
        raise ValueError(
            f"{path!r} lists no class for {len(missing)} of {len(names)} images: "
            f"{format_list(missing)}"
        )
    return [class_by_index[index] for index in range(len(names))]


def _rows(path: str) -> list[list[str]]:
    """The fields of each line that holds any: of a table, or what comes before the first blank."""
    # Bytes that are not UTF-8 are replaced, not refused: a file in another encoding, such as a
    # readme, must not stop the folder from being read, and its words show that it lists no images.
    lines = _content(path).decode("utf-8-sig", "replace").splitlines()
    lines = [line for line in lines if line.strip()]
    separator = next((mark for mark in "\t," if all(mark in line for line in lines)), None)
    if separator is None and not path.lower().endswith(".csv"):
        return [line.split(maxsplit=1) for line in lines]
    rows = csv.reader(lines, delimiter=separator or ",")
    return [[cell.strip() for cell in row] for row in rows if any(row)]


def _content(path: str) -> bytes:
    """The bytes of a file in any file system of TensorFlow, which also reads the images."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def _require_one_order(path: str, names: Sequence[str]) -> None:
    """Raises a `ValueError` for names whose order is another one by their numbers."""

    def by_number(name: str) -> list:
        parts = re.split(r"(\d+)", name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    if sorted(names, key=by_number) != sorted(names):
        raise ValueError(
            f"{path!r} lists classes without names of images, whose order is ambiguous: by "
            "letters, 10 comes before 2. Write the name of an image and its class on each "
            "line."
        )


def named_classes(path: str, classes: list[str]) -> list[str]:
    """The classes of a file by name where they are the numbers of ImageNet's development kit."""
    if not all(text.isdecimal() for text in classes):
        return classes
    kit = os.path.join(os.path.dirname(path), "meta.mat")
    if tf.io.gfile.exists(kit):
        names = _kit_names(kit)
        return [names[int(text)] for text in classes]
    numbers = {int(text) for text in classes}
    if len(numbers) > 1 and numbers == set(range(1, len(numbers) + 1)):
        raise ValueError(
            f"The class numbers in {path!r} start at 1. Expected numbers from 0, or those of "
            "ImageNet's development kit with its meta.mat next to them."
        )
    return classes


def _kit_names(path: str) -> dict[int, str]:
    """Dict from a number of ImageNet's development kit to the class' WordNet number."""
    from scipy.io import loadmat

    synsets = loadmat(io.BytesIO(_content(path)), squeeze_me=True)["synsets"]
    pairs = zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True)
    return {int(number): str(name) for number, name in pairs}


def class_names_of(classes: Sequence[str]) -> tuple[str, ...]:
    """Sorted names of the classes; of numbers all from 0 to the largest."""
    if all(text.isdecimal() for text in classes):
        return tuple(str(number) for number in range(max(map(int, classes)) + 1))
    return tuple(sorted(set(classes)))


def labels_of(path: str, classes: Sequence[str], class_names: Sequence[str]) -> np.ndarray:
    """The index of each class, a name or a number, in the class names: int32 array (example,)."""
    place = {name: index for index, name in enumerate(class_names)}
    # Numbers that are no names are indices, as in Caffe's val.txt next to a train split of folders
    # with names.
    if not set(classes) <= set(place) and all(text.isdecimal() for text in classes):
        place = {str(index): index for index in range(len(class_names))}
    unknown = sorted(set(classes) - set(place))
    if unknown:
        raise ValueError(
            f"{path!r} lists classes that the train split does not have: "
            f"{format_list(unknown)}. It has: {format_list(class_names)}"
        )
    return np.array([place[text] for text in classes], np.int32)


# Folders that archives and network drives add.
SYSTEM_FOLDERS = ("__MACOSX", "@eaDir", "@Recycle", "@Recently-Snapshot")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def is_image(name: str) -> bool:
    """Whether a file's name is that of an image."""
    return name.lower().endswith(SUFFIXES)


def entries(folder: str) -> tuple[list[str], list[str]]:
    """Sorted names of the subfolders and of the files in a folder, without hidden ones.

    Folders that macOS and network drives add ("__MACOSX", "@eaDir") count as hidden.
    """
    if is_remote(folder):
        # Each query is a message to a server: a name that ends with a slash, or like an image's,
        # shows what it is and needs none.
        def is_folder(name: str) -> bool:
            path = os.path.join(folder, name)
            return name.endswith("/") or (not is_image(name) and tf.io.gfile.isdir(path))

        pairs = [(name.rstrip("/"), is_folder(name)) for name in tf.io.gfile.listdir(folder)]
    else:
        with os.scandir(folder) as children:
            pairs = [(entry.name, entry.is_dir()) for entry in children]
    pairs = sorted(pair for pair in pairs if not pair[0].startswith("."))
    folders = [name for name, is_inner in pairs if is_inner]
    folders = [name for name in folders if name not in SYSTEM_FOLDERS]
    return folders, [name for name, is_inner in pairs if not is_inner]


def files_below(folder: str, above: tuple[str, ...] = ()) -> list[str]:
    """Sorted paths of the files in a folder and its subfolders; an error for a link to itself."""
    place = folder if is_remote(folder) else os.path.realpath(folder)
    if place in above:
        raise ValueError(
            f"The symbolic link {folder!r} leads to {place!r}, which contains it: remove the link"
        )
    folders, files = entries(folder)
    paths = [os.path.join(folder, name) for name in files]
    for name in folders:
        paths += files_below(os.path.join(folder, name), (*above, place))
    return sorted(paths)


def warn_of_others(folder: str, files: Sequence[str]) -> None:
    """Logs once how many files of a folder are images of formats that are not read, and which."""
    kinds = {file: mimetypes.guess_type(file)[0] or "" for file in files if not is_image(file)}
    others = [os.path.basename(file) for file in kinds if kinds[file].startswith("image/")]
    if others:
        warn_once(
            f"{without_password(folder)}: {len(others)} images are left out, since only "
            f"{', '.join(SUFFIXES)} are supported: {format_list(others)}"
        )
