"""Text files with the classes of images which lie in one folder, as released data have them.

* `val_annotations.txt` of Tiny ImageNet: the name of an image, its class, a box.
* `val.txt` of Caffe's ImageNet: the name of an image, the number of its class from 0 on.
* `LOC_val_solution.csv` of Kaggle's ImageNet: the name without its ending, its class, boxes.
* `ILSVRC2012_validation_ground_truth.txt`: the number of a class on each line, in the order of the
  images' names. These are the development kit's own numbers, which its `meta.mat` explains.
* A class on each line, in the order of the images' names.
"""

import csv
import io
import os
import re

import numpy as np
import tensorflow as tf

from vit_tf.data.layouts.listing import entries, is_image
from vit_tf.names import format_list
from vit_tf.remote import as_path

SUFFIXES = (".txt", ".csv", ".tsv")
ILSVRC = "ILSVRC2012_validation_ground_truth.txt"
# Where the file above lies next to ILSVRC2012_img_val: as it is, or in the kit it is released in.
ILSVRC_PLACES = (ILSVRC, f"ILSVRC2012_devkit_t12/data/{ILSVRC}")
# A class that boxes follow, as in Kaggle's files.
BOXES = re.compile(r"(\S+)( -?\d+){4}")


def find_classes(folder, images):
    """The class of each image as stated in a text file: (path of the file, list of texts).

    The file lies in the folder, or next to it with its name: `val.txt` for `val/`.

    Args:
        folder: path of the folder.
        images: paths of its images, sorted.

    Returns:
        (None, None) if there is no such file.

    Raises:
        ValueError: for several such files, and one that leaves out some of the images.
    """
    if not images:
        return None, None
    names = [os.path.basename(image) for image in images]
    found = [(path, _classes(path, names)) for path in _candidates(folder, names)]
    found = [(path, classes) for path, classes in found if classes]
    if len(found) > 1:
        files = format_list(repr(os.path.basename(path)) for path, _ in found)
        raise ValueError(
            f"Expected one text file with the classes of the images in {folder!r}. "
            f"Received: {files}"
        )
    return found[0] if found else (None, None)


def _candidates(folder, names):
    """Paths of the files that may hold the classes of images of these names."""
    inside = [name for name in entries(folder)[1] if name.lower().endswith(SUFFIXES)]
    paths = [os.path.join(folder, name) for name in inside]
    parent = os.path.dirname(folder)
    beside = [folder + suffix for suffix in SUFFIXES]
    if names[0].startswith("ILSVRC2012_val_"):
        beside += [os.path.join(parent, place) for place in ILSVRC_PLACES]
    return paths + [path for path in beside if tf.io.gfile.exists(path)]


def _classes(path, names):
    """The class of each image, in their order, or None for a file with other contents."""
    rows = _rows(path)
    place = {name: index for index, name in enumerate(names)}
    place |= {os.path.splitext(name)[0]: index for index, name in enumerate(names)}
    keys = [place.get(os.path.basename(row[0])) if len(row) > 1 else None for row in rows]
    if all(key is None for key in keys):
        alone = all(len(row) == 1 and not is_image(row[0]) for row in rows)
        return [row[0] for row in rows] if alone and len(rows) == len(names) else None
    told = {key: row[1] for key, row in zip(keys, rows, strict=True) if key is not None}
    missing = [name for index, name in enumerate(names) if index not in told]
    if missing:
        raise ValueError(
            f"Expected a text file with the class of each of {len(names)} images. "
            f"Received: {path!r}, without {format_list(missing)}"
        )
    return [told[index] for index in range(len(names))]


def _rows(path):
    """The fields of each line that holds any: commas part those of a CSV file, else blanks."""
    # A file of any other encoding differs from a list of images in its words.
    lines = as_path(path).read_bytes().decode("utf-8-sig", "replace").splitlines()
    if path.lower().endswith(".csv"):
        rows = [[_without_boxes(cell.strip()) for cell in row] for row in csv.reader(lines)]
        return [row for row in rows if row]
    return [line.split("\t") if "\t" in line else line.split() for line in lines if line.strip()]


def _without_boxes(cell):
    found = BOXES.match(cell)
    return found[1] if found else cell


def named_classes(path, classes):
    """The classes of a file by name where they are the numbers of ImageNet's development kit.

    Args:
        path: that of the file.
        classes: list of texts, as `find_classes` returns it.

    Raises:
        ValueError: for numbers that count from 1 and no `meta.mat` next to the file.
    """
    if not all(text.isdecimal() for text in classes):
        return classes
    kit = os.path.join(os.path.dirname(path), "meta.mat")
    if tf.io.gfile.exists(kit):
        names = _kit_names(kit)
        return [names[int(text)] for text in classes]
    if _counts_from_one(classes):
        raise ValueError(
            "Expected class numbers that start at 0, or those of ImageNet's development "
            f"kit with its meta.mat next to them. Received: {path!r}, which starts at 1"
        )
    return classes


def _counts_from_one(classes):
    numbers = {int(text) for text in classes}
    return len(numbers) > 1 and numbers == set(range(1, len(numbers) + 1))


def _kit_names(path):
    """Dict from a number of ImageNet's development kit to the class' WordNet number."""
    from scipy.io import loadmat

    synsets = loadmat(io.BytesIO(as_path(path).read_bytes()), squeeze_me=True)["synsets"]
    pairs = zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True)
    return {int(number): str(name) for number, name in pairs}


def class_names_of(classes):
    """The names of all classes, sorted, where there are class folders: a tuple.

    Of numbers it is all from 0 to the largest, so that each is the index of its class.
    """
    if all(text.isdecimal() for text in classes):
        return tuple(str(number) for number in range(max(map(int, classes)) + 1))
    return tuple(sorted(set(classes)))


def labels_of(path, classes, class_names):
    """The index of each class in the class names: int32 array of shape (example,).

    Args:
        path: that of the file with the classes.
        classes: list of names of classes, or of indices in the class names.
        class_names: tuple.

    Raises:
        ValueError: for others.
    """
    place = {name: index for index, name in enumerate(class_names)}
    if not set(classes) <= set(place) and all(text.isdecimal() for text in classes):
        place = {str(index): index for index in range(len(class_names))}
    unknown = sorted(set(classes) - set(place))
    if unknown:
        raise ValueError(
            f"Expected classes among those of the train split: {format_list(class_names)}. "
            f"Received: {format_list(unknown)} in {path!r}"
        )
    return np.array([place[text] for text in classes], np.int32)
