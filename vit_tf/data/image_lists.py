"""Part of the classes of a data set, such as ImageNet-50, and the files that list them."""

import os
from dataclasses import replace
from functools import cache

import numpy as np
import tensorflow as tf

from vit_tf.data.source import LazyDict
from vit_tf.names import file_error, unknown_name
from vit_tf.remote import as_path


def read_class_list(path):
    """Class names in a text file, such as `imagenet_50.txt`: a tuple.

    There is one class per line, of which only the first word is used, as in `n01601694 Dipper`.

    Raises:
        ValueError: for a file that cannot be read, or that lists no class.
    """
    try:
        lines = as_path(os.path.expanduser(path)).read_bytes().decode().splitlines()
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise ValueError(
            "Expected a text file that lists classes. "
            f"Received: {str(path)!r} ({file_error(error, path)})"
        ) from error
    names = tuple(line.split()[0] for line in lines if line.strip())
    if not names:
        raise ValueError(f"Expected a text file that lists classes. Received: {str(path)!r}, empty")
    return names


def select_classes(source, classes):
    """The `Source` of the examples of some classes, labelled with positions among these.

    The splits are those of the whole, so that a part's test images are test images of the whole.

    Args:
        source: `Source` whose labels are known without reading the images.
        classes: list of different names of its classes, or None for all of them as they are.

    Raises:
        ValueError: for a name that is no class or that comes twice, and unknown labels.
    """
    if classes is None:
        return source
    _check_names(classes, source.class_names)
    new_label = np.full(len(source.class_names), -1, np.int32)
    new_label[[source.class_names.index(name) for name in classes]] = np.arange(len(classes))

    @cache
    def part(split):
        """Where the examples of these classes are in a split, and their labels."""
        given = source.labels(split)
        if given is None:
            raise ValueError(
                "Expected classes of a data set whose labels are known without reading its images. "
                f"Received: classes={tuple(classes)!r} of one whose {split} split is too large"
            )
        places = np.flatnonzero(new_label[given] >= 0)
        return places, new_label[given[places]]

    def read(split, indices):
        examples = source.read(split, part(split)[0][indices])
        return examples.map(lambda item, label: (item, tf.gather(new_label, label)))

    return replace(
        source,
        class_names=tuple(classes),
        num_examples=LazyDict({s: lambda s=s: len(part(s)[0]) for s in source.num_examples}),
        labels=lambda split: part(split)[1],
        image_size=lambda split, indices: source.image_size(split, part(split)[0][indices]),
        read=read,
        read_shuffled=None,
    )


def _check_names(classes, known):
    if isinstance(classes, str) or not classes or len(set(classes)) < len(tuple(classes)):
        raise ValueError(
            "Expected classes to be a list of distinct class names; read_class_list reads "
            f"one from a file. Received: classes={classes!r}"
        )
    for name in classes:
        if name not in known:
            raise unknown_name("class", name, known)
