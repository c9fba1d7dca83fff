"""What a data set offers to be loaded: its splits, its classes, and a part of either."""

import logging
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from vit_tf.common.names import file_error, unknown_name
from vit_tf.data.files import as_path, digest_files
from vit_tf.data.preprocessing import JointPreprocessing, Preprocessing

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
ALL = "all"  # every example of every split
NAMES = (*SPLITS, ALL)
TEST_FRACTION = 0.2
CHANNELS = (1, 3, 4)  # of images: grey, RGB, and either with an alpha channel


class LazyDict(Mapping):
    """A mapping from keys to the results of functions, called when first asked for."""

    def __init__(self, functions):
        self._functions, self._values = dict(functions), {}

    def __getitem__(self, key):
        if key not in self._values:
            self._values[key] = self._functions[key]()
        return self._values[key]

    def __contains__(self, key):
        return key in self._functions

    def __iter__(self):
        return iter(self._functions)

    def __len__(self):
        return len(self._functions)


@dataclass(frozen=True)
class Description:
    """Classes and splits of a data set; `num_examples` maps each split to its size."""

    name: str
    num_classes: int
    class_names: tuple
    num_examples: dict


# What the functions of a `Source` take and return. An item is an image that is not yet decoded.
Indices: TypeAlias = np.ndarray
Item: TypeAlias = tf.Tensor
Window: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# A split's labels, int array (example,), -1 for unknown; None if images would have to be read.
Labels: TypeAlias = Callable[[str], np.ndarray | None]
# The (height, width) that images share; it raises a `ValueError` if they share none.
SharedSize: TypeAlias = Callable[[str, Indices], tuple[int, int]]
# A data set of (item, label) for sorted indices, in their order.
ReadItems: TypeAlias = Callable[[str, Indices], tf.data.Dataset]
# The same for an integer more, the seed of another order in each pass.
ReadShuffled: TypeAlias = Callable[[str, Indices, int], tf.data.Dataset]
# An image, uint8 or float (height, width, 1 or 3) in [0, 255], and what is wrong with it, a string
# tensor that is empty if nothing is.
Decode: TypeAlias = Callable[[Item], tuple[tf.Tensor, tf.Tensor]]
# A part of an image, faster than by `Decode`; the graph raises where it cannot.
Attempt: TypeAlias = Callable[[Item, Window | None], tf.Tensor]


@dataclass(frozen=True)
class Source:
    """Where examples come from."""

    class_names: tuple[str, ...]  # a label is a position in them; empty for images without labels
    num_examples: Mapping[str, int]  # of each split
    labels: Labels
    image_size: SharedSize
    read: ReadItems
    decode: Decode
    attempt: Attempt | None = None
    decode_by_pillow: Decode | None = None  # for files that the graph may not decode
    decode_with_alpha: Decode | None = None  # the same, with an alpha channel
    read_shuffled: ReadShuffled | None = None
    shuffle_buffer: int = 2**24  # items that may wait in memory to be shuffled
    in_files: bool = False  # whether an item is the path of a file
    version: Callable[[], str] | None = None  # a text that changes with what is stored


def identify(source, split, indices):
    """A digest, as text, of files, labels and order; else of the source's version and indices."""
    if not source.in_files:
        version = source.version() if source.version else ""
        return digest_files([], version, split, np.asarray(indices, "int64").tobytes())
    paths, labels = _paths_and_labels(source, split, indices)
    return digest_files(map(os.fsdecode, paths), labels.astype("int64").tobytes())


def identify_names(source, split, indices):
    """A digest, as text, of the names of files and folders, and labels; no file is read."""
    if not source.in_files:
        return digest_files([], split, np.asarray(indices, "int64").tobytes())
    paths, labels = _paths_and_labels(source, split, indices)
    names = (b"/".join(path.split(b"/")[-2:]) for path in paths)
    return digest_files([], b"\n".join(names), labels.astype("int64").tobytes())


def _paths_and_labels(source, split, indices):
    """The paths, as bytes, and the labels of some files: two arrays."""
    items = source.read(split, indices).batch(4096).as_numpy_iterator()
    return [np.concatenate(column) for column in zip(*items, strict=True)]


def with_all(source):
    """The `Source` with one more split, `"all"`: the examples of the others, in order."""
    splits = [split for split in SPLITS if split in source.num_examples]

    @cache
    def ends():
        return np.cumsum([source.num_examples[split] for split in splits])

    def parts(indices):
        """(split, indices into it) of each split that has some of the examples."""
        owner = np.searchsorted(ends(), indices, side="right")
        for number in np.unique(owner):
            first = ends()[number] - source.num_examples[splits[number]]
            yield splits[number], indices[owner == number] - first

    def labels(split):
        if split != ALL:
            return source.labels(split)
        label_arrays = [source.labels(name) for name in splits]
        return None if any(name is None for name in label_arrays) else np.concatenate(label_arrays)

    def image_size(split, indices):
        if split != ALL:
            return source.image_size(split, indices)
        sizes = {name: tuple(source.image_size(name, inner)) for name, inner in parts(indices)}
        if len(set(sizes.values())) > 1:
            raise sizes_differ(f", {sizes}")
        return next(iter(sizes.values()))

    def read(split, indices):
        if split != ALL:
            return source.read(split, indices)
        first, *others = (source.read(name, inner) for name, inner in parts(indices))
        return reduce(lambda joined, other: joined.concatenate(other), others, first)

    sizes = {split: partial(source.num_examples.__getitem__, split) for split in splits}
    return replace(
        source,
        num_examples=LazyDict(sizes | {ALL: lambda: int(ends()[-1])}),
        labels=labels,
        image_size=image_size,
        read=read,
    )


def sizes_differ(received=""):
    """The `ValueError` for images that differ in size where none is requested."""
    return ValueError(
        "Expected image_size to be given, for images that differ in size, as a number of pixels or "
        f"a pair (height, width). Received: image_size=None{received}"
    )


def require_labels(source, received="images without labels"):
    """Raises a `ValueError` for a `Source` or a `Description` of images without labels."""
    if not source.class_names:
        raise ValueError(
            "Expected images with labels: a folder of images for each class, or a text file that "
            f"holds the class of each. Received: {received}"
        )


def is_contiguous(indices):
    """Whether sorted indices leave out none between the first and the last."""
    return len(indices) == indices[-1] + 1 - indices[0]


def shard_indices(indices, shard, contiguous):
    """Sorted indices of one of several processes, (index, number); sizes differ by at most one."""
    index, num_shards = shard
    if not 0 <= index < num_shards <= len(indices):
        raise ValueError(
            "Expected shard to be (index, num_shards) with 0 <= index < num_shards, and at least "
            f"as many examples. Received: shard={tuple(shard)}, {len(indices)} examples"
        )
    return np.array_split(indices, num_shards)[index] if contiguous else indices[index::num_shards]


def stratified_sample(labels, count, size, rng, balanced=False):
    """Sorted positions of `size` out of `count` examples: in proportion to classes, or balanced."""
    if labels is None:  # neighbours are read from few files
        start = rng.integers(count - size + 1)
        return np.arange(start, start + size)
    shuffled = rng.permutation(count)
    place = np.empty(count)
    for label in np.unique(labels):
        members = np.flatnonzero(labels[shuffled] == label)
        rank = np.arange(len(members))
        place[members] = rank if balanced else (rank + 0.5) / len(members)
    return np.sort(shuffled[np.argsort(place, kind="stable")[:size]])


def hold_out(labels, fraction, rng):
    """Cuts examples in two, class by class: (positions kept, positions held out); keeps one."""
    count = len(labels)
    size = min(int(np.ceil(fraction * count)), count - 1)
    held = stratified_sample(labels, count, size, rng)
    return np.setdiff1d(np.arange(count), held), held


def partition(source, splits, validation, take, seed):
    """Dict from each split to (split of the source, sorted indices into it)."""
    selection = {name: _whole(source, name) for name in splits if name in source.num_examples}
    if "test" in splits and lacks_test(source.num_examples):
        warn_once(
            "There is no test split with labels: the validation split is used as one, and a "
            "validation split is taken from the train split if both are requested."
        )
        selection["test"] = _whole(source, "validation")
        selection.pop("validation", None)
    missing = [name for name in splits if name not in selection]
    if missing == ["validation"] and "train" in source.num_examples:
        remaining, held = _carve(source, validation, seed)
        selection |= {"validation": ("train", held)} | (
            {"train": remaining} if "train" in splits else {}
        )
    elif missing:
        there = ", ".join(split for split in source.num_examples if split != ALL)
        cut = " (and validation, cut from train)" if "train" in source.num_examples else ""
        raise ValueError(
            f"Expected splits to be among those of the data set: {there}{cut}. "
            f"Received: splits={tuple(splits)!r}"
        )
    for name, size in take.items():
        selection[name] = _take(source, name, *selection[name], size, seed)
    return {name: selection[name] for name in splits}


def check_splits(splits):
    """Raises a `ValueError` for anything but a tuple of different names of splits."""
    if isinstance(splits, str) or not splits or len(set(splits)) < len(tuple(splits)):
        raise ValueError(
            f"Expected splits to be a tuple of distinct names among {', '.join(NAMES)}. "
            f"Received: splits={splits!r}"
        )
    for split in splits:
        if split not in NAMES:
            raise unknown_name("split", split, NAMES)


def lacks_test(splits):
    """Whether the validation split is the test split where one is wanted, as in `partition`."""
    return "test" not in splits and {"train", "validation"} <= set(splits)


@cache
def warn_once(message):
    """Logs a warning, once in a process."""
    log.warning("%s", message)


def _whole(source, split):
    return split, np.arange(source.num_examples[split])


def _carve(source, fraction, seed):
    """The train split without its validation part, and that part, as in `partition`."""
    count = source.num_examples["train"]
    size = round(fraction * count)
    if not 0 < size < count:
        raise ValueError(
            f"Expected validation to be a fraction of the train split that leaves examples in "
            f"both splits. Received: validation={fraction} of {count} examples"
        )
    labels = source.labels("train")
    if labels is None:
        # The last ones, as the papers' `train[99%:]`: what is left can be read from many files.
        held = np.arange(count - size, count)
    else:
        rng = np.random.default_rng([seed, SPLITS.index("validation")])
        held = stratified_sample(labels, count, size, rng)
    return ("train", np.setdiff1d(np.arange(count), held)), held


def _take(source, name, split, indices, size, seed):
    """A class-balanced part of a split, as in `partition`."""
    if size > len(indices):
        raise ValueError(
            f"Expected take to be at most {len(indices)}, the number of examples of the {name} "
            f"split. Received: take={size}"
        )
    labels = source.labels(split)
    labels = None if labels is None else labels[indices]
    rng = np.random.default_rng([seed, len(SPLITS) + NAMES.index(name)])
    return split, indices[stratified_sample(labels, len(indices), size, rng, balanced=True)]


def checked_size(
    image_size: int | Sequence[int] | None,
    preprocessing: Preprocessing | JointPreprocessing | None = None,
    channels: tuple[int, ...] = CHANNELS,
) -> tuple[int, int] | None:
    """`image_size`, or that of the preprocessing, as a pair (height, width), or None."""
    size = image_size
    if size is not None:
        size = tuple(size) if isinstance(size, (tuple, list)) else (size,) * 2
        if len(size) != 2:
            raise ValueError(
                "Expected image_size to be a number of pixels or a pair (height, width). "
                f"Received: image_size={image_size!r}"
            )
        for pixels in size:
            check_number("image_size", pixels, 1)
    if preprocessing is None:
        return size
    if isinstance(preprocessing, JointPreprocessing):
        return preprocessing.size
    if not isinstance(preprocessing, Preprocessing) or preprocessing.num_channels not in channels:
        raise ValueError(
            "Expected preprocessing to be a vit_tf.Preprocessing of "
            f"{' or '.join(map(str, channels))} channels. "
            f"Received: preprocessing={preprocessing!r}"
        )
    if preprocessing.size and size not in (None, preprocessing.size):
        raise ValueError(
            f"Expected image_size to be None or that of the preprocessing, {preprocessing.size}. "
            f"Received: image_size={size}"
        )
    return preprocessing.size or size


def check_number(name, value, least):
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"Expected {name} to be an integer >= {least}. Received: {name}={value!r}")


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
    """The `Source` of the examples of some classes, in the same splits, labelled anew."""
    if classes is None:
        return source
    if isinstance(classes, str) or not classes or len(set(classes)) < len(tuple(classes)):
        raise ValueError(
            "Expected classes to be a list of distinct class names; read_class_list reads "
            f"one from a file. Received: classes={classes!r}"
        )
    for name in classes:
        if name not in source.class_names:
            raise unknown_name("class", name, source.class_names)
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
