"""What a data set offers to be loaded: its splits, its classes, and a part of either."""

import logging
import numbers
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias, cast

import numpy as np
import tensorflow as tf

from vit_tf.common.names import as_sizes, file_error, lookup
from vit_tf.data.files import digest_files
from vit_tf.data.preprocessing import JointPreprocessing, Preprocessing

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
ALL = "all"  # every example of every split
NAMES = (*SPLITS, ALL)
TEST_FRACTION = 0.2
CHANNELS = (1, 3, 4)  # of images: grey, RGB, and either with an alpha channel


class LazyDict(Mapping):
    """A mapping from keys to the results of functions, called when first asked for."""

    def __init__(self, functions: Mapping[str, Callable[[], Any]]):
        self._functions, self._values = dict(functions), {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._values[key] = self._functions[key]()
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


@dataclass(frozen=True)
class Description:
    """Classes and splits of a data set; `num_examples` maps each split to its size."""

    name: str
    num_classes: int
    class_names: tuple
    num_examples: dict


# A line of a list of classes that begins with a WordNet number.
WORDNET = re.compile(r"^(n\d+)\s.*")
# A number of pixels, or (height, width).
ImageSize: TypeAlias = int | Sequence[int]
# A split of a source and positions of examples in it.
Selected: TypeAlias = "tuple[str, Indices]"
# Positions of examples in a split: sorted integers of shape (example,).
Indices: TypeAlias = np.ndarray
# An image that is not yet decoded.
Item: TypeAlias = tf.Tensor
# The height and the width of an image to (top, left, height, width) of a part of it.
Window: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class Decoder(ABC):
    """Makes images of items, in the graph."""

    @abstractmethod
    def decode(self, item: Item) -> tuple[tf.Tensor, tf.Tensor | str]:
        """An image, uint8 or float (height, width, 1 or 3) in [0, 255], and what is wrong with it.

        The latter is a string that is empty if nothing is.
        """


class FastDecoder(Decoder):
    """A decoder that can make most images, and parts of images, in less time.

    Decoders with equal results compare equal, so that data sets share their graphs.
    """

    @abstractmethod
    def attempt(self, item: Item, window: Window | None) -> tf.Tensor:
        """Decodes an image or a part of it; the graph raises if only `decode` can decode it."""


class Source(ABC):
    """Where examples come from: splits of items with labels, and how these are decoded."""

    # A label is a position in these names; there are none for images without labels.
    class_names: tuple[str, ...]
    # The number of examples of each split.
    num_examples: Mapping[str, int]
    # How many items may wait in memory to be shuffled.
    shuffle_buffer: int = 2**24
    # Whether an item is the path of a file.
    in_files: bool = False
    # Whether `read` takes indices in any order, not only sorted ones.
    in_any_order: bool = True
    # Whether `read_shuffled` can read several files at once.
    shuffles_files: bool = False

    @abstractmethod
    def labels(self, split: str) -> np.ndarray | None:
        """Labels, int (example,), -1 for unknown; None if images would have to be read."""

    @abstractmethod
    def image_size(self, split: str, indices: Indices) -> tuple[int, int]:
        """The (height, width) that images share; a `ValueError` if they share none."""

    @abstractmethod
    def read(self, split: str, indices: Indices) -> tf.data.Dataset:
        """A data set of (item, label), in the order of the indices."""

    def read_shuffled(self, split: str, indices: Indices, seed: int) -> tf.data.Dataset:
        """As `read`, for contiguous indices that are shuffled anew in each pass."""
        raise NotImplementedError(f"{type(self).__name__} has shuffles_files = False")

    def decoder(self, num_channels: int) -> Decoder:
        """What decodes the items of `read`, for a model that takes so many channels."""
        return cast(Decoder, self)  # a source that is none has this method itself

    def version(self) -> str:
        """A text that changes with what is stored; it is used where items are not in files."""
        return ""


def identify(source: Source, split: str, indices: Indices) -> str:
    """A digest, as text, of files, labels and order; else of the source's version and indices."""
    if not source.in_files:
        return digest_files([], source.version(), split, np.asarray(indices, "int64").tobytes())
    paths, labels = _paths_and_labels(source, split, indices)
    return digest_files(map(os.fsdecode, paths), labels.astype("int64").tobytes())


def identify_names(source: Source, split: str, indices: Indices) -> str:
    """A digest, as text, of the names of files and folders, and labels; no file is read."""
    if not source.in_files:
        return digest_files([], split, np.asarray(indices, "int64").tobytes())
    paths, labels = _paths_and_labels(source, split, indices)
    names = (b"/".join(path.split(b"/")[-2:]) for path in paths)
    return digest_files([], b"\n".join(names), labels.astype("int64").tobytes())


def describe_batches(dataset: Any, source: Source, split: str, indices: Indices) -> Any:
    """The data set of some examples, with the names of their classes and their two digests."""
    dataset.class_names = source.class_names
    dataset.identify = partial(identify, source, split, indices)
    dataset.identify_names = partial(identify_names, source, split, indices)
    return dataset


def _paths_and_labels(source: Source, split: str, indices: Indices) -> list[np.ndarray]:
    """The paths, as bytes, and the labels of some files: two arrays."""
    items = source.read(split, indices).batch(4096).as_numpy_iterator()
    return [np.concatenate(column) for column in zip(*items, strict=True)]


class SourceView(Source):
    """Splits that join examples of another source's splits, which decodes them.

    `splits` has for each split a function to its examples, (split of the source, sorted indices)
    for each split of the source. `new_labels` are the labels by those of the source.
    """

    def __init__(
        self,
        source: Source,
        splits: Mapping[str, Callable[[], list[Selected]]],
        class_names: tuple[str, ...],
        new_labels: np.ndarray | None = None,
    ):
        self._source, self._members, self._new_labels = source, LazyDict(splits), new_labels
        self.class_names = class_names
        self.num_examples = LazyDict({split: partial(self._count, split) for split in splits})
        self.shuffle_buffer, self.in_files = source.shuffle_buffer, source.in_files
        self.in_any_order = source.in_any_order
        # Only contiguous examples are read from several files at once.
        self.shuffles_files = source.shuffles_files and new_labels is None

    def _count(self, split: str) -> int:
        return sum(len(indices) for _, indices in self._members[split])

    def _select(self, split: str, indices: Indices) -> tuple[list[Selected], np.ndarray]:
        """Examples of a split by split of the source, and the number of the latter for each."""
        members = self._members[split]
        counts = np.array([len(inner) for _, inner in members])
        ends = np.cumsum(counts)
        owners = np.searchsorted(ends, indices, side="right")
        numbers, choices = np.unique(owners, return_inverse=True)
        parts = []
        for number in numbers:
            name, inner = members[number]
            parts.append((name, inner[indices[owners == number] - ends[number] + counts[number]]))
        return parts, choices.astype(np.int64)

    def labels(self, split: str) -> np.ndarray | None:
        parts = [(self._source.labels(name), indices) for name, indices in self._members[split]]
        if any(labels is None for labels, _ in parts):
            return None
        labels = np.concatenate([cast(np.ndarray, labels)[indices] for labels, indices in parts])
        return labels if self._new_labels is None else self._new_labels[labels]

    def image_size(self, split: str, indices: Indices) -> tuple[int, int]:
        parts, _ = self._select(split, indices)
        sizes = {name: self._source.image_size(name, inner) for name, inner in parts}
        if len(set(sizes.values())) > 1:
            raise SizesDifferError(str(sizes))
        return next(iter(sizes.values()))

    def read(self, split: str, indices: Indices) -> tf.data.Dataset:
        parts, choices = self._select(split, indices)
        examples, *others = (self._source.read(*part) for part in parts)
        if others:
            # Each part has its examples in order: the choices say which part comes next.
            numbers = tf.data.Dataset.from_tensor_slices(choices)
            examples = tf.data.Dataset.choose_from_datasets([examples, *others], numbers)
            examples = examples.apply(tf.data.experimental.assert_cardinality(len(indices)))
        new_labels = self._new_labels
        if new_labels is None:
            return examples
        return examples.map(lambda item, label: (item, tf.gather(new_labels, label)))

    def read_shuffled(self, split: str, indices: Indices, seed: int) -> tf.data.Dataset:
        (part,), _ = self._select(split, indices)
        return self._source.read_shuffled(*part, seed)

    def decoder(self, num_channels: int) -> Decoder:
        return self._source.decoder(num_channels)

    def version(self) -> str:
        return self._source.version()


def with_all(source: Source) -> Source:
    """The source with one more split, `"all"`: the examples of the others, in order."""
    splits = [split for split in SPLITS if split in source.num_examples]
    joined = {split: [split] for split in splits} | {ALL: splits}
    members = {
        name: lambda names=names: [_whole(source, split) for split in names]
        for name, names in joined.items()
    }
    return SourceView(source, members, source.class_names)


class SizesDifferError(ValueError):
    """Images differ in size, as `received` says, and none is requested."""

    def __init__(self, received: str):
        super().__init__(
            "Expected image_size to be given, for images that differ in size, as a number of "
            f"pixels or a pair (height, width). Received: image_size=None, {received}"
        )
        self.received = received


def require_class_names(
    source: "Source | Description", received: str = "images without labels"
) -> None:
    """Raises a `ValueError` for a `Source` or a `Description` of images without labels."""
    if not source.class_names:
        raise ValueError(
            "Expected images with labels: a folder of images for each class, or a text file that "
            f"holds the class of each. Received: {received}"
        )


def is_contiguous(indices: Indices) -> bool:
    """Whether sorted indices leave out none between the first and the last."""
    return len(indices) == indices[-1] + 1 - indices[0]


def shard_indices(indices: Indices, shard: tuple[int, int], contiguous: bool) -> Indices:
    """Sorted indices of one of several processes, (index, number); sizes differ by at most one."""
    index, num_shards = shard
    if not 0 <= index < num_shards <= len(indices):
        raise ValueError(
            "Expected shard to be (index, num_shards) with 0 <= index < num_shards, and at least "
            f"as many examples. Received: shard={tuple(shard)}, {len(indices)} examples"
        )
    return np.array_split(indices, num_shards)[index] if contiguous else indices[index::num_shards]


def stratified_sample(
    labels: np.ndarray | None,
    count: int,
    size: int,
    rng: np.random.Generator,
    balanced: bool = False,
) -> Indices:
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


def hold_out(
    labels: np.ndarray, fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Cuts examples in two, class by class: (positions kept, positions held out); keeps one."""
    count = len(labels)
    size = min(int(np.ceil(fraction * count)), count - 1)
    held = stratified_sample(labels, count, size, rng)
    return np.setdiff1d(np.arange(count), held), held


def partition(
    source: Source, splits: Sequence[str], validation: float, take: Mapping[str, int], seed: int
) -> dict[str, Selected]:
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
        count = source.num_examples["train"]
        size = round(validation * count)
        if not 0 < size < count:
            raise ValueError(
                f"Expected validation to be a fraction of the train split that leaves examples in "
                f"both splits. Received: validation={validation} of {count} examples"
            )
        labels = source.labels("train")
        if labels is None:
            # The last ones, as the papers' `train[99%:]`: the rest can be read from many files.
            held = np.arange(count - size, count)
        else:
            rng = np.random.default_rng([seed, SPLITS.index("validation")])
            held = stratified_sample(labels, count, size, rng)
        selection["validation"] = "train", held
        if "train" in splits:
            selection["train"] = "train", np.setdiff1d(np.arange(count), held)
    elif missing:
        there = ", ".join(split for split in source.num_examples if split != ALL)
        cut = " (and validation, cut from train)" if "train" in source.num_examples else ""
        raise ValueError(
            f"The data set has the splits {there}{cut}. Received: splits={tuple(splits)!r}"
        )
    # A class-balanced part of a split.
    for name, size in take.items():
        split, indices = selection[name]
        if not len(indices):
            received = "none, as of a folder of one image"
            raise ValueError(f"Expected examples in the {name} split. Received: {received}")
        if size > len(indices):
            raise ValueError(
                f"Expected take to be at most {len(indices)}, the number of examples of the {name} "
                f"split. Received: take={size}"
            )
        labels = source.labels(split)
        labels = None if labels is None else labels[indices]
        rng = np.random.default_rng([seed, len(SPLITS) + NAMES.index(name)])
        part = stratified_sample(labels, len(indices), size, rng, balanced=True)
        selection[name] = split, indices[part]
    return {name: selection[name] for name in splits}


def check_splits(splits: Sequence[str]) -> None:
    """Raises a `ValueError` unless `splits` is a tuple of distinct names of splits."""
    if isinstance(splits, str) or not splits or len(set(splits)) < len(tuple(splits)):
        raise ValueError(
            f"Expected splits to be a tuple of distinct names among {', '.join(NAMES)}. "
            f"Received: splits={splits!r}"
        )
    for split in splits:
        lookup("split", split, dict.fromkeys(NAMES))


def lacks_test(splits: Collection[str]) -> bool:
    """Whether the validation split is the test split where one is wanted, as in `partition`."""
    return "test" not in splits and {"train", "validation"} <= set(splits)


@cache
def warn_once(message: str) -> None:
    """Logs a warning, once in a process."""
    log.warning("%s", message)


def _whole(source: Source, split: str) -> Selected:
    return split, np.arange(source.num_examples[split])


def checked_size(
    image_size: int | Sequence[int] | None,
    preprocessing: Preprocessing | JointPreprocessing | None = None,
    channels: tuple[int, ...] = CHANNELS,
) -> tuple[int, int] | None:
    """`image_size`, or that of the preprocessing, as a pair (height, width), or None."""
    size = None
    if image_size is not None:
        sides = image_size if isinstance(image_size, (tuple, list)) else (image_size,) * 2
        form = "a number of pixels or a pair (height, width)"
        size = cast(tuple[int, int], as_sizes("image_size", sides, form, (2,)))
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
            "Expected image_size to be None or the size of preprocessing, "
            f"{preprocessing.size}. Received: image_size={size}"
        )
    return preprocessing.size or size


def check_numbers(least: int, **values: object) -> None:
    """Raises a `ValueError` unless arguments are integers from `least` on."""
    for name, value in values.items():
        is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not is_integer or cast(int, value) < least:
            raise ValueError(
                f"Expected {name} to be an integer >= {least}. Received: {name}={value!r}"
            )


def read_class_list(path: str | os.PathLike) -> tuple[str, ...]:
    """Class names in a text file, such as `imagenet_50.txt`: a tuple.

    There is one class per line. Of a line such as `n01601694 Dipper`, only the WordNet number is
    used; other lines are names, which may contain blanks.

    Raises:
        ValueError: if the file cannot be read.
    """
    try:
        # As TensorFlow reads the images, in any of its file systems.
        with tf.io.gfile.GFile(os.path.expanduser(path), "rb") as file:
            lines = file.read().decode("utf-8-sig").splitlines()
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise ValueError(
            f"Cannot read the list of classes {str(path)!r}: {file_error(error, path)}"
        ) from error
    return tuple(WORDNET.sub(r"\1", line.strip()) for line in lines if line.strip())


def select_classes(source: Source, classes: Sequence[str] | None) -> Source:
    """The `Source` of the examples of some classes, in the same splits, labelled anew."""
    if classes is None:
        return source
    if isinstance(classes, str) or not classes or len(set(classes)) < len(tuple(classes)):
        raise ValueError(
            "Expected classes to be a list of distinct class names; read_class_list reads "
            f"one from a file. Received: classes={classes!r}"
        )
    position_of = {name: position for position, name in enumerate(source.class_names)}
    positions = [lookup("class", name, position_of) for name in classes]
    new_labels = np.full(len(source.class_names), -1, np.int32)
    new_labels[positions] = np.arange(len(positions))

    def select(split: str) -> list[Selected]:
        labels = source.labels(split)
        if labels is None:
            raise ValueError(
                f"classes= does not apply to this data set: its {split} split is too large to "
                f"read the labels first. Received: classes={tuple(classes)!r}"
            )
        return [(split, np.flatnonzero(new_labels[labels] >= 0))]

    members = {split: partial(select, split) for split in source.num_examples}
    return SourceView(source, members, tuple(classes), new_labels)
