"""Folders of images: `root/class/*.jpg` or `root/{train,validation,test}/class/*.jpg`.

Folders of splits may also be called `training`, `val`, `valid` and `testing`, in any case.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from vit_tf.data.source import SPLITS, TEST_FRACTION, Source, hold_out
from vit_tf.names import file_error, listed

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
# In lower case; folders may be written in any.
SPLIT_FOLDERS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
CHECK_AT_MOST = 4_000


def open_folder(root):
    """The images of a folder; its class folders, sorted by name, are the classes.

    Up to 4,000 images of a split are decoded once ahead, to report damaged files at once; in larger
    ones a damaged file stops the iteration, with an error that names it.

    Raises:
        ValueError: for a folder without images or classes, and for damaged files.
    """
    class_names, members = scan(root)

    def read(split, indices):
        paths, labels = (column[indices] for column in members[split])
        if len(paths) <= CHECK_AT_MOST:
            _check(paths)
        return tf.data.Dataset.from_tensor_slices((paths, labels))

    def decode(path):
        image, problem = tf.numpy_function(_decode_or_tell, [path], (tf.uint8, tf.string))
        return tf.ensure_shape(image, (None, None, 3)), tf.ensure_shape(problem, ())

    return Source(
        class_names=class_names,
        num_examples={split: len(paths) for split, (paths, _) in members.items()},
        labels=lambda split: members[split][1],
        image_size=lambda split, indices: _shared_size(members[split][0][indices]),
        read=read,
        decode=decode,
        shuffle_buffer=max(len(paths) for paths, _ in members.values()),
    )


def check_images(folder):
    """Decodes every image of a folder, and returns how many there are.

    Raises:
        ValueError: that lists the files that cannot be decoded.
    """
    _, members = scan(folder)
    paths = np.concatenate([paths for paths, _ in members.values()])
    _check(paths)
    return len(paths)


def scan(root):
    """The images below a folder: (class names, dict from split to (paths, int32 labels)).

    The classes are those of the train split or, without one, of all other splits. Without split
    folders one fifth of each class, the same every time, is the test split.

    Raises:
        ValueError: for a folder that has no class folders, a class folder without images, a class
            that the train split lacks, and folders of which it cannot be told what they are.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise ValueError(f"Expected a folder that exists. Received: {str(root)!r}")
    parts = _split_folders(root)
    if parts:
        defining = [parts["train"]] if "train" in parts else parts.values()
        class_names = _class_names(*defining)
        return class_names, {s: _members(folder, class_names) for s, folder in parts.items()}
    class_names = _class_names(root)
    paths, labels = _members(root, class_names)
    cuts = hold_out(labels, TEST_FRACTION, np.random.default_rng(0))
    members = {s: (paths[c], labels[c]) for s, c in zip(("train", "test"), cuts, strict=True)}
    return class_names, members


def _split_folders(root):
    """Dict from the splits that are folders to these; empty where the folders are classes."""
    subfolders = _subfolders(root)
    named = [folder for folder in subfolders if folder.name.lower() in SPLIT_FOLDERS]
    others = [folder for folder in subfolders if folder not in named]
    # Classes, such as the train among means of transport, hold images and not class folders.
    if others and not any(_subfolders(folder) for folder in named):
        return {}
    parts = {}
    for folder in named:
        parts.setdefault(SPLIT_FOLDERS[folder.name.lower()], []).append(folder)
    for split, folders in parts.items():
        if len(folders) > 1:
            raise ValueError(
                f"Expected one folder for the {split} split. "
                f"Received: {_quoted(folders)} in {str(root)!r}"
            )
    if others and parts and "train" not in parts:
        raise ValueError(
            "Expected folders of splits or of classes, not of both. "
            f"Received: {_quoted(named)} beside {_quoted(others)} in {str(root)!r}"
        )
    return {split: parts[split][0] for split in SPLITS if split in parts}


def _quoted(folders):
    return listed(repr(folder.name) for folder in folders)


def _class_names(*folders):
    """The names of the class folders in some folders, sorted: a tuple."""
    return tuple(sorted({found.name for folder in folders for found in _subfolders(folder)}))


def _members(folder, class_names):
    """The images of the class folders in a folder: (paths, int32 labels)."""
    paths, labels = [], []
    found = _subfolders(folder)
    if not found:
        raise ValueError(
            "Expected a folder that holds one folder of images per class. "
            f"Received: {str(folder)!r}"
        )
    for class_folder in found:
        if class_folder.name not in class_names:
            raise ValueError(
                f"Expected the class folders of the train split: {listed(class_names)}. "
                f"Received: {str(class_folder)!r}"
            )
        images = _images(class_folder)
        if not images:
            raise ValueError(
                f"Expected each class folder to hold images ({', '.join(SUFFIXES)}). "
                f"Received: {str(class_folder)!r} without any"
            )
        paths += images
        labels += [class_names.index(class_folder.name)] * len(images)
    return np.array(paths), np.array(labels, np.int32)


def _subfolders(folder):
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))


def _images(folder):
    """Paths of the images below a folder, sorted; hidden files are not images."""
    return sorted(
        os.path.join(place, name)
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith(".")
    )


def _check(paths):
    """Decodes the images and throws them away; a `ValueError` lists those that cannot be."""
    with ThreadPoolExecutor() as pool:
        found = pool.map(_error, paths)
        bar = tqdm(found, "Checking images", len(paths), delay=1, disable=None, unit="image")
        bad = [error for error in bar if error]
    if bad:
        raise ValueError(
            f"Expected images that can be decoded. Received {len(bad)} undecodable of "
            f"{len(paths)}: {listed(bad, '; ')}"
        )


def _error(path):
    """What is wrong with an image file, or None."""
    try:
        decode_file(path)
    except ValueError as error:
        return str(error).partition("Received: ")[2]
    return None


def _decode_or_tell(path):
    """The image of a file and no words, or a black pixel and the words of the error."""
    try:
        return decode_file(os.fsdecode(path)), ""
    except ValueError as error:
        return np.zeros((1, 1, 3), np.uint8), str(error)


def _open(path):
    """An image file, opened and not yet decoded."""
    from PIL import Image

    try:
        return Image.open(path)
    except Exception as error:  # Pillow's readers raise whatever a damaged file makes them
        raise _undecodable(path, error) from error


def decode_file(path, upright=True):
    """The image of a file: uint8 array of shape (height, width, 3), on white.

    It is turned as its EXIF orientation says if `upright`, and else left as it is stored.

    Raises:
        ValueError: that names the file, if it cannot be decoded.
    """
    from PIL import ImageOps

    with _open(path) as image:
        try:
            return _rgb(ImageOps.exif_transpose(image) if upright else image)
        except Exception as error:  # as above
            raise _undecodable(path, error) from error


def _rgb(image):
    """A Pillow image of any mode as a uint8 array of shape (height, width, 3)."""
    from PIL import Image

    if image.mode.startswith("I"):
        deep = np.asarray(image, np.float32)
        image = Image.fromarray(np.round(deep / 257).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"))


def _undecodable(path, error):
    reason = f"{type(error).__name__}: {file_error(error, path)}"
    return ValueError(
        f"Expected an image file that can be decoded. Received: undecodable {path} ({reason})"
    )


def _shared_size(paths):
    """The (height, width) of all images, in pixels, from the heads of their files."""
    first = None
    for path in tqdm(paths, "Reading image sizes", delay=1, disable=None, unit="image"):
        size = _size(path)
        first = first or (size, path)
        if size != first[0]:
            raise ValueError(
                "Expected image_size to be given, for images that differ in size, as a number of "
                f"pixels or a pair (height, width). Received: image_size=None, {str(first[1])!r} "
                f"of {first[0]} and {str(path)!r} of {size}"
            )
    return first[0]


def _size(path):
    with _open(path) as image:
        sideways = image.getexif().get(0x0112, 1) >= 5
        return image.size if sideways else image.size[::-1]
