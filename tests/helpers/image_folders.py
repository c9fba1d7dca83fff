"""Folders of small images, and the images and labels of a data set."""

import io

import numpy as np
from PIL import Image


def arrays(dataset):
    """All images and labels of a batched data set."""
    images, labels = zip(*dataset.as_numpy_iterator(), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def counts(dataset):
    return np.bincount(arrays(dataset)[1]).tolist()


def hashes(dataset):
    return [image.tobytes() for image in arrays(dataset)[0]]


def labelled(dataset):
    """Dict from an image's bytes to its label."""
    images, labels = arrays(dataset)
    return {image.tobytes(): label for image, label in zip(images, labels, strict=True)}


def write(path, array, mode=None, **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(array, np.uint8))
    (image.convert(mode) if mode else image).save(path, **settings)
    return path


def flat_folder(root, rng, sizes=(20, 10), shape=(6, 5, 3)):
    for name, size in zip(("ape", "bee", "cat"), sizes, strict=False):
        for number in range(size):
            write(root / name / f"{number:02}.png", rng.integers(0, 256, shape))
    return root


def photo(rng, size=(45, 63)):
    """A picture with smooth colours, on which the ways to decode JPEG differ most."""
    return Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize(size, Image.BICUBIC)


def encoded(image, kind="JPEG", **settings):
    """The content of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def turned(orientation=6, big_endian=False):
    """EXIF of an orientation."""
    exif = Image.Exif()
    exif.endian = ">" if big_endian else "<"
    exif[0x010F] = "maker"
    exif[0x0112] = orientation
    return exif
