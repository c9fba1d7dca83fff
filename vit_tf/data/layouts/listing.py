"""What is in a folder, on a disk or at any address that TensorFlow can open."""

import os

import tensorflow as tf

from vit_tf.remote import is_remote

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def is_image(name):
    """Whether a file's name is that of an image."""
    return name.lower().endswith(SUFFIXES)


def entries(folder):
    """The names of the subfolders and of the files in a folder, sorted; hidden ones are left out.

    Args:
        folder: path or address, such as `"gs://bucket/photos"`.
    """
    if is_remote(folder):
        # Each question is a message to a server, so names that tell what they are go unasked.
        pairs = [
            (name.rstrip("/"), name.endswith("/") or _asked(folder, name))
            for name in tf.io.gfile.listdir(folder)
        ]
    else:
        with os.scandir(folder) as found:
            pairs = [(entry.name, entry.is_dir()) for entry in found]
    pairs = sorted(pair for pair in pairs if not pair[0].startswith("."))
    return [name for name, inner in pairs if inner], [name for name, inner in pairs if not inner]


def _asked(folder, name):
    return not is_image(name) and tf.io.gfile.isdir(os.path.join(folder, name))


def images_below(folder):
    """Paths of the images in a folder and in its subfolders, sorted."""
    folders, files = entries(folder)
    found = [os.path.join(folder, name) for name in files if is_image(name)]
    for name in folders:
        found += images_below(os.path.join(folder, name))
    return sorted(found)
