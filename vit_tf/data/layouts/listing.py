"""What is in a folder, on a disk or at any address that TensorFlow can open."""

import functools
import logging
import mimetypes
import os

import tensorflow as tf

from vit_tf.names import file_error, format_list
from vit_tf.remote import is_remote, without_password

log = logging.getLogger(__name__)

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def is_image(name):
    """Whether a file's name is that of an image."""
    return name.lower().endswith(SUFFIXES)


def entries(folder):
    """The names of the subfolders and of the files in a folder, sorted; hidden ones are left out.

    Args:
        folder: path or address, such as `"gs://bucket/photos"`.

    Raises:
        ValueError: for a symbolic link that leads to itself.
    """
    if is_remote(folder):
        # Each question is a message to a server, so names that show what they are are not queried.
        pairs = [
            (name.rstrip("/"), name.endswith("/") or _asked(folder, name))
            for name in tf.io.gfile.listdir(folder)
        ]
    else:
        with os.scandir(folder) as found:
            pairs = [(entry.name, _is_folder(entry)) for entry in found]
    pairs = sorted(pair for pair in pairs if not pair[0].startswith("."))
    return [name for name, inner in pairs if inner], [name for name, inner in pairs if not inner]


def _asked(folder, name):
    return not is_image(name) and tf.io.gfile.isdir(os.path.join(folder, name))


def _is_folder(entry):
    try:
        return entry.is_dir()
    except OSError as error:
        raise ValueError(
            "Expected symbolic links that lead to a file or a folder. "
            f"Received: {entry.path!r} ({file_error(error, entry.path)})"
        ) from error


def files_below(folder, above=()):
    """Paths of the files in a folder and in its subfolders, sorted.

    Raises:
        ValueError: for a symbolic link to one of the folders that it lies in (`above`).
    """
    place = folder if is_remote(folder) else os.path.realpath(folder)
    if place in above:
        raise ValueError(
            "Expected no symbolic link to a folder that contains it. "
            f"Received: {folder!r}, which leads to {place!r}"
        )
    folders, files = entries(folder)
    found = [os.path.join(folder, name) for name in files]
    for name in folders:
        found += files_below(os.path.join(folder, name), (*above, place))
    return sorted(found)


def warn_of_others(folder, files):
    """Logs once how many files of a folder are images of formats that are not read, and which."""
    others = [os.path.basename(file) for file in files if _is_other_image(file)]
    if others:
        _warn(folder, len(others), format_list(others))


def _is_other_image(file):
    return not is_image(file) and (mimetypes.guess_type(file)[0] or "").startswith("image/")


@functools.cache
def _warn(folder, count, names):
    formats = ", ".join(SUFFIXES)
    folder = without_password(folder)
    log.warning(
        "%s: %d images are left out, since only %s are supported: %s", folder, count, formats, names
    )
