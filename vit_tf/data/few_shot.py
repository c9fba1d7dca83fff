"""A few images of every class: the training data of few-shot probes."""

from functools import partial

import numpy as np
from tqdm.auto import tqdm

from vit_tf.data.image_lists import select_classes
from vit_tf.data.pipeline import check_number, checked_size, open_source
from vit_tf.data.reading import read_batches
from vit_tf.data.source import SPLITS, identify, partition, require_labels

BLOCK = 10_000


def few_shot(
    name,
    shots,
    *,
    seed=0,
    image_size=None,
    batch_size=128,
    held_out=0,
    data_dir=None,
    preprocessing=None,
    classes=None,
):
    """Loads `shots` images of every class, and held-out images to select settings such as `l2`.

    Both come from the train split, so the test split that `load` returns remains unseen; the
    validation split that `load` may cut from the train split overlaps with them. For the same
    `seed` and `held_out`, a smaller set is part of a larger one, and the held-out images are the
    same.

    Args:
        name: data set, as for `load`.
        shots: number of images of each class.
        seed: seed of the selection and of the shuffling.
        image_size: height and width to resize to, in pixels; a number, a pair or None, as for
            `load`.
        batch_size: examples per batch; the last one may have fewer.
        held_out: number of further images of each class; 0 makes the second data set empty.
        data_dir: folder of the TFDS data; the default of TFDS if None.
        preprocessing: preprocessing of the model, as for `load`.
        classes: names of the classes to keep, as for `load`.

    Returns:
        Pair of `tf.data.Dataset` of (images, labels) as `load` returns them: `shots` images of each
        class, shuffled anew in each epoch, and `held_out` others of each, in a fixed order.

    Raises:
        ValueError: for images without labels, a class with fewer than `shots + held_out` images,
            arguments out of range, and as for `load`.
    """
    check_number("shots", shots, 1)
    check_number("held_out", held_out, 0)
    check_number("seed", seed, 0)
    check_number("batch_size", batch_size, 1)
    size = checked_size(image_size, preprocessing)
    source = select_classes(open_source(name, data_dir), classes)
    require_labels(source)
    split, indices = partition(source, ("train",), 0, {}, seed)["train"]
    indices, labels = _in_random_order(source, split, indices, shots + held_out, seed)
    _check_counts(source, labels, shots, held_out)
    rank = class_rank(labels)
    chosen = np.sort(indices[(rank >= held_out) & (rank < held_out + shots)])
    held = np.sort(indices[rank < held_out])
    if size is None:
        source.image_size(split, np.union1d(chosen, held))  # raises if they share none

    def batches(indices, seed):
        how = {"seed": seed, "preprocessing": preprocessing}
        return read_batches(source, split, indices, size, batch_size, **how)

    few = batches(chosen, seed)
    rest = batches(held, None) if held_out else few.take(0)
    for dataset, part in ((few, chosen), (rest, held)):
        dataset.identify = partial(identify, source, split, part)
    return few, rest


def class_rank(labels):
    """How many earlier examples have the same label: int array of shape (example,).

    Args:
        labels: int array of shape (example,).
    """
    order = np.argsort(labels, kind="stable")
    grouped = labels[order]
    rank = np.empty(len(labels), int)
    rank[order] = np.arange(len(labels)) - np.searchsorted(grouped, grouped)
    return rank


def _in_random_order(source, split, indices, least, seed):
    """Examples of a split in an order that depends on the seed alone: (indices, labels)."""
    # Labels that are not known ahead are read from a random position on, until there are `least`
    # examples of each class or all have been read.
    rng = np.random.default_rng([seed, 2 * len(SPLITS)])
    labels = source.labels(split)
    if labels is not None:
        order = rng.permutation(len(indices))
        return indices[order], labels[order]
    start = rng.integers(len(indices))
    parts = [indices[start:], indices[:start]]
    blocks = [part[i : i + BLOCK] for part in parts for i in range(0, len(part), BLOCK)]
    found, labels = [], []
    counts = np.zeros(len(source.class_names), int)
    for block in tqdm(blocks, "Reading labels", delay=1, disable=None, unit="block"):
        only = source.read(split, block).map(lambda item, label: label).batch(len(block))
        found.append(block)
        labels.append(only.get_single_element().numpy())
        counts += np.bincount(labels[-1], minlength=len(counts))
        if counts.min() >= least:
            break
    return np.concatenate(found), np.concatenate(labels)


def _check_counts(source, labels, shots, held_out):
    counts = np.bincount(labels, minlength=len(source.class_names))
    scarce = int(np.argmin(counts))
    if counts[scarce] < shots + held_out:
        raise ValueError(
            f"Expected each class to have at least {shots + held_out} images in the train split, "
            f"for shots={shots} and held_out={held_out}. "
            f"Received: {counts[scarce]} of class {source.class_names[scarce]!r}"
        )
