"""Finds the splits, classes and images of a folder from its layout."""

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow as tf

from vit_tf.data.layouts.label_files import class_names_of, find_classes, labels_of, named_classes
from vit_tf.data.layouts.listing import SUFFIXES, entries, files_below, is_image, warn_of_others
from vit_tf.data.source import SPLITS, TEST_FRACTION, LazyDict, hold_out
from vit_tf.data.tfds import prepared_in
from vit_tf.names import format_list, join_words
from vit_tf.remote import without_password

log = logging.getLogger(__name__)

# In lower case; folders may be written in any.
SPLIT_FOLDERS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# As the archives of ImageNet are called, each of which may be all there is.
RELEASED = {
    "ilsvrc2012_img_train": "train",
    "ilsvrc2012_img_val": "validation",
    "ilsvrc2012_img_test": "test",
}


@dataclass(frozen=True)
class Layout:
    """What is in a folder of images.

    Args:
        class_names: tuple of the names of the classes; empty where the classes are unknown.
        splits: mapping from a split to (paths, int32 labels), which lists the split's files when
            it is first asked for it. Labels are -1 where the classes are unknown.
    """

    class_names: tuple
    splits: Mapping


@dataclass(frozen=True)
class Part:
    """A folder of images: the whole one, or that of a split.

    Args:
        class_names: tuple of the names of its classes; empty where they are unknown.
        members: function of the names of all classes to (paths, int32 labels).
    """

    class_names: tuple
    members: Callable


def scan(root):
    """The `Layout` of a folder.

    Its images, or those of each split's folder, lie in a folder for each class, or side by side (or
    in one folder called `images`) with a text file of their classes, or without one.

    The classes are those of the train split or, without one, of all other splits; splits without
    labels are left out where others have some. Without split folders one fifth of each class, the
    same every time, is the test split. Either is logged.

    Raises:
        ValueError: for a folder without images, a class folder without images, a class that the
            train split lacks, and folders of unknown contents.
    """
    root = os.path.expanduser(os.fspath(root))
    root = root.rstrip("/") or "/"
    if not tf.io.gfile.isdir(root):
        raise ValueError(f"Expected a folder that exists. Received: {without_password(root)!r}")
    folders = _split_folders(root)
    if not folders:
        return _without_splits(root)
    parts = {split: _part(folder) for split, folder in folders.items()}
    labelled = {split: part for split, part in parts.items() if part.class_names}
    if labelled and len(labelled) < len(parts):
        _warn_of_unlabelled(root, tuple(split for split in parts if split not in labelled))
    parts = labelled or parts
    defining = [parts["train"]] if "train" in parts else parts.values()
    class_names = tuple(sorted({name for part in defining for name in part.class_names}))
    if all(name.isdecimal() for name in class_names):
        class_names = tuple(sorted(class_names, key=int))
    members = {split: partial(part.members, class_names) for split, part in parts.items()}
    return Layout(class_names, LazyDict(members))


def _without_splits(root):
    part = _part(root)

    @functools.cache
    def cut():
        paths, labels = part.members(part.class_names)
        cuts = hold_out(labels, TEST_FRACTION, np.random.default_rng(0))
        _warn_of_test_split(root, len(cuts[1]), len(labels))
        return [(paths[chosen], labels[chosen]) for chosen in cuts]

    return Layout(part.class_names, LazyDict({"train": lambda: cut()[0], "test": lambda: cut()[1]}))


@functools.cache
def _warn_of_test_split(root, size, count):
    """Logs once that some images of a folder are kept for testing."""
    log.warning(
        "%s has no split folders: %d of its %d images, a fixed fifth of each class, form the "
        "test split. The split 'all' contains every image.",
        without_password(root),
        size,
        count,
    )


def _split_folders(root):
    """Dict from the splits that are folders to these; empty where the folders are classes."""
    own = RELEASED.get(os.path.basename(root).lower())
    if own:
        return {own: root}
    subfolders = entries(root)[0]
    released = {name: RELEASED[name.lower()] for name in subfolders if name.lower() in RELEASED}
    named = {
        name: SPLIT_FOLDERS[name.lower()] for name in subfolders if name.lower() in SPLIT_FOLDERS
    }
    others = [name for name in subfolders if name not in {**released, **named}]
    # Classes, such as the train among means of transport, hold images and not class folders.
    if others and not released and not any(entries(os.path.join(root, name))[0] for name in named):
        return {}
    parts = {}
    for name, split in {**released, **named}.items():
        parts.setdefault(split, []).append(name)
    for split, names in parts.items():
        if len(names) > 1:
            raise ValueError(
                f"Expected one folder for the {split} split. Received: {_quoted(names)} in {root!r}"
            )
    if others and parts and not released and "train" not in parts:
        raise ValueError(
            "Expected folders of splits or of classes, not both. "
            f"Received: {_quoted(named)} next to {_quoted(others)} in {root!r}"
        )
    return {split: os.path.join(root, parts[split][0]) for split in SPLITS if split in parts}


def _quoted(names):
    return format_list(map(repr, names))


@functools.cache
def _warn_of_unlabelled(root, splits):
    """Logs once which splits of a folder cannot be read with the others."""
    root = without_password(root)
    log.warning("%s: unknown classes of %s, left out.", root, join_words(splits))


def _part(folder):
    """The `Part` of a folder, of which only the names in it and a file of labels are read."""
    subfolders, files = entries(folder)
    files = [os.path.join(folder, name) for name in files]
    if not any(map(is_image, files)) and [name.lower() for name in subfolders] == ["images"]:
        files, subfolders = files_below(os.path.join(folder, subfolders[0])), []
    images = [file for file in files if is_image(file)]
    warn_of_others(folder, files)
    if not images and not subfolders:
        raise _holds_none(folder, "a folder of images, or of one folder of images per class")
    path, classes = find_classes(folder, images)
    if classes:
        classes = named_classes(path, classes)
        return Part(class_names_of(classes), partial(_in_file, images, path, classes))
    below = (file for name in subfolders for file in files_below(os.path.join(folder, name)))
    if images and not any(map(is_image, below)):
        return Part((), partial(_unlabelled, images))
    return Part(tuple(subfolders), partial(_in_class_folders, folder, subfolders))


def _in_file(images, path, classes, class_names):
    """The images whose classes a file states: (paths, int32 labels)."""
    return np.array(images), labels_of(path, classes, class_names)


def _unlabelled(images, class_names):
    """Images of unknown class: (paths, labels of -1)."""
    return np.array(images), np.full(len(images), -1, np.int32)


def _in_class_folders(folder, subfolders, class_names):
    """The images of the class folders in a folder: (paths, int32 labels)."""
    place = {name: index for index, name in enumerate(class_names)}
    images, others, labels = [], [], []
    for name in subfolders:
        path = os.path.join(folder, name)
        if name not in place:
            raise ValueError(
                f"Expected the class folders of the train split: {format_list(class_names)}. "
                f"Received: {path!r}"
            )
        files = files_below(path)
        found = [file for file in files if is_image(file)]
        if not found:
            raise _holds_none(path, f"each class folder to hold images ({', '.join(SUFFIXES)})")
        images += found
        others += [file for file in files if not is_image(file)]
        labels += [place[name]] * len(found)
    warn_of_others(folder, others)
    return np.array(images), np.array(labels, np.int32)


def _holds_none(folder, expected):
    """The `ValueError` for a folder that holds no images, which may be one of TFDS."""
    found = prepared_in(folder)
    received = f"{folder!r} without any"
    if found:
        received = (
            f"{found[0]!r} in {found[1]!r}, which TFDS has prepared: load it by that name, with "
            "that folder as data_dir (--data-dir)"
        )
    return ValueError(f"Expected {expected}. Received: {received}")
