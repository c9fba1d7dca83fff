"""Folders of images, as `vit_tf.data.layouts` finds them."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from vit_tf.data.layouts.scanning import scan
from vit_tf.data.source import Computed, Source
from vit_tf.files import is_remote
from vit_tf.names import file_error, listed

CHECK_AT_MOST = 4_000
SHUFFLE_BUFFER = 2**24  # of paths, which are short


def open_folder(root):
    """The images of a folder, laid out as `scan` knows; a split is listed when it is asked for.

    Up to 4,000 images of a split are decoded once ahead, to report damaged files at once; in larger
    ones a damaged file stops the iteration, with an error that names it.

    Raises:
        ValueError: as `scan` does, and for damaged files.
    """
    layout = scan(root)
    members = layout.splits

    def read(split, indices):
        paths, labels = (column[indices] for column in members[split])
        if len(paths) <= CHECK_AT_MOST:
            _check(paths)
        return tf.data.Dataset.from_tensor_slices((paths, labels))

    def decode(path):
        image, problem = tf.numpy_function(_decode_or_tell, [path], (tf.uint8, tf.string))
        return tf.ensure_shape(image, (None, None, 3)), tf.ensure_shape(problem, ())

    return Source(
        class_names=layout.class_names,
        num_examples=Computed({s: lambda s=s: len(members[s][0]) for s in members}),
        labels=lambda split: members[split][1],
        image_size=lambda split, indices: _shared_size(members[split][0][indices]),
        read=read,
        decode=decode,
        shuffle_buffer=SHUFFLE_BUFFER,
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
        return Image.open(tf.io.gfile.GFile(path, "rb") if is_remote(path) else path)
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
        try:
            sideways = image.getexif().get(0x0112, 1) >= 5
        except Exception as error:  # as above; of a PNG the orientation may follow the image
            raise _undecodable(path, error) from error
        return image.size if sideways else image.size[::-1]
