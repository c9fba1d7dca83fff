"""Folders of images, as `vit_tf.data.layouts` finds them."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from vit_tf.data.images import decoding
from vit_tf.data.layouts.scanning import scan
from vit_tf.data.source import LazyDict, Source
from vit_tf.names import format_list
from vit_tf.remote import PASSWORD, is_remote, without_password

# Of images that are to share a size so many are measured ahead, and all others when they are met.
MEASURED = 100
SHUFFLE_BUFFER = 2**24  # of paths, which are short


def open_folder(root):
    """The images of a folder, laid out as `scan` knows; a split is listed when it is asked for.

    A corrupt file stops the iteration, with an error that names it; `check_images` lists all.

    Raises:
        ValueError: as `scan` does.
    """
    layout = scan(root)
    return open_files(layout.class_names, layout.splits)


def open_files(class_names, members):
    """The `Source` of image files: of `members`, a mapping from split to (paths, int32 labels)."""

    def read(split, indices):
        paths, labels = (column[indices] for column in members[split])
        return tf.data.Dataset.from_tensor_slices((paths, labels))

    def attempt(path, window=None):
        return decoding.decode(tf.io.read_file(path), window)

    def decode(path):
        name = tf.strings.regex_replace(path, *PASSWORD)
        return decoding.decode_or_name(attempt, path, name, tf.io.read_file)

    def decode_by_pillow(path):
        image, problem = tf.numpy_function(_decode_or_tell, [path], (tf.uint8, tf.string))
        return tf.ensure_shape(image, (None, None, 3)), tf.ensure_shape(problem, ())

    return Source(
        class_names=class_names,
        num_examples=LazyDict({s: lambda s=s: len(members[s][0]) for s in members}),
        labels=lambda split: members[split][1],
        image_size=lambda split, indices: _shared_size(members[split][0][indices]),
        read=read,
        decode=decode,
        shuffle_buffer=SHUFFLE_BUFFER,
        attempt=attempt,
        decode_by_pillow=decode_by_pillow,
        in_files=True,
    )


def check_images(folder):
    """Decodes every image of a folder, and returns how many there are.

    Raises:
        ValueError: that lists the files that cannot be decoded.
    """
    paths = np.concatenate([paths for paths, _ in scan(folder).splits.values()])
    _check(paths)
    return len(paths)


def _check(paths):
    """Decodes the images and throws them away; a `ValueError` lists those that cannot be."""
    with ThreadPoolExecutor() as pool:
        found = pool.map(_error, paths)
        bar = tqdm(found, "Checking images", len(paths), delay=1, disable=None, unit="image")
        bad = [error for error in bar if error]
    if bad:
        raise ValueError(
            f"Expected images that can be decoded. Received {len(bad)} undecodable of "
            f"{len(paths)}: {format_list(bad, '; ')}"
        )


def _error(path):
    """What is wrong with an image file, or None."""
    try:
        decode_file(path)
    except ValueError as error:
        return str(error).partition("Received: ")[2]
    return None


def _decode_or_tell(path):
    return decoding.decode_or_tell(decode_file, os.fsdecode(path))


def decode_file(path, upright=True):
    """The image of a file: uint8 array of shape (height, width, 3), on white.

    It is turned as its EXIF orientation says if `upright`, and else left as it is stored.

    Raises:
        ValueError: that names the file, if it cannot be decoded.
    """
    return decoding.pixels(_readable(path), without_password(path), upright)


def _readable(path):
    """What Pillow reads an image from: its path, or a file at an address that it does not know."""
    return tf.io.gfile.GFile(path, "rb") if is_remote(path) else path


def _shared_size(paths):
    """The (height, width) that images share, in pixels, from the heads of some of their files."""
    chosen = np.unique(np.linspace(0, len(paths) - 1, MEASURED).astype(int))
    first = None
    for path in paths[chosen]:
        size = _size(path)
        first = first or (size, path)
        if size != first[0]:
            shown = [without_password(one) for one in (first[1], path)]
            raise ValueError(
                "Expected image_size to be given, for images that differ in size, as a number of "
                "pixels or a pair (height, width). Received: image_size=None, "
                f"{shown[0]!r} of {first[0]} and {shown[1]!r} of {size}"
            )
    return first[0]


def _size(path):
    from PIL import Image

    file = _readable(path)
    with decoding.explained(file, without_password(path)), Image.open(file) as image:
        # Of a PNG the orientation may follow the image, which may be corrupt.
        sideways = image.getexif().get(0x0112, 1) >= 5
        return image.size if sideways else image.size[::-1]
