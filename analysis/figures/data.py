"""The images that the measurements of a study read."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf.common.names import join_words
from vit_tf.data.batches import BATCH_SIZE, BatchRule, LazyRows, batch_arrays
from vit_tf.data.files import digest_files
from vit_tf.data.labels import count_classes, require_label_type, require_labels

from ..engine.preparation import require_labelled
from ..engine.stream import as_dataset

LABELS = "labels"  # of the test images, as something that a measurement may need
# What a figure may need besides test images, in words.
OPTIONAL = {
    "gallery": "training images for the search of nearest neighbours",
    "objects": "images with masks of objects",
    "parts": "images with masks of parts of objects",
    "videos": "videos with masks of objects",
    "pairs": "pairs of images with keypoints",
    "landmarks": "queries of landmarks, and images to retrieve",
}
NEEDED = {LABELS: "labels of two classes or more", **OPTIONAL}


@dataclass(frozen=True)
class Data:
    """The data that measurements read: batched `tf.data.Dataset`s of images, and annotated images.

    Batches are pairs (images, labels). If `labelled` is False, the batches of `test` and `few` are
    images alone, or their labels do not name classes.

    `optional` is a dict from a name in `OPTIONAL` to a function, which is called when the data are
    first read. `gallery` returns training images among which neighbours are searched; there are
    more of them than in `train`. `objects` and `parts` return images as for `object_clustering`,
    `videos` as for `label_propagation`, and `pairs` as for `keypoint_correspondence`. `landmarks`
    returns (queries, database, truth), as for `retrieval`.
    """

    test: Any  # images that everything is measured on
    few: Any  # some of the test images, in few batches, for what costs a gradient each
    train: Any = None  # images that probes are fitted on; None without labels, as the next
    validation: Any = None  # images that choose the strength of their penalty
    num_classes: int | None = None  # None where there are no labels
    facts: dict[str, Any] = field(default_factory=dict)  # JSON that identifies these images
    optional: dict[str, Callable] = field(default_factory=dict)
    optional_facts: dict[str, Any] = field(
        default_factory=dict
    )  # JSON that identifies each of these
    labelled: bool = True  # whether the test images have labels, of two classes or more
    # Sentences on why there is not what a measurement reads, where it is not simply missing.
    reasons: dict[str, str] = field(default_factory=dict)
    # What was made of these: optional data by name, and sizes of batches by ("batch", name).
    _made: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def read(self, name: str) -> Any:
        """What a measurement reads, made when it is first asked for."""
        if name not in self.optional:
            return getattr(self, name)
        if name not in self._made:
            self._made[name] = self.optional[name]()
        return self._made[name]

    def batches(self, name: str) -> tuple[int, int]:
        """The number of batches of a field and the images of the first; (0, 0) if not known."""
        images: Any = None if name in self.optional else getattr(self, name, None)
        count = int(images.cardinality()) if isinstance(images, tf.data.Dataset) else 0
        if count <= 0:
            return 0, 0
        # The first batch is read once, since reading decodes images.
        if ("batch", name) not in self._made:
            self._made["batch", name] = len(tf.nest.flatten(next(iter(images)))[0])
        return count, self._made["batch", name]

    def batches_of_copies(self, name: str) -> int | None:
        """How many batches of the test images an untrained copy is shown; None for all."""
        batches, size = self.batches(name) if name == "test" else (0, 0)
        most = max(COPY_BATCHES, COPY_IMAGES // size, -(-batches // 2)) if size else 0
        return most if most < batches else None

    def missing(self, names: Iterable[str]) -> str:
        """A sentence about missing data among `names`; empty if no data are missing."""
        images = ("test", "few", "train", "validation")
        available = {*self.optional, *(name for name in images if getattr(self, name) is not None)}
        available |= {LABELS} if self.labelled else set()
        missing = [name for name in names if name not in available]
        reasons = [self.reasons[name] for name in missing if name in self.reasons]
        needed = [
            NEEDED.get(name, "labelled training images")
            for name in missing
            if name not in self.reasons
        ]
        if needed:
            reasons.insert(0, f"It needs {join_words(dict.fromkeys(needed))}.")
        return " ".join(dict.fromkeys(reasons))


# Images whose receptive fields are averaged, each for a channel of its own. With as many backward
# passes, more images have a smaller error than more channels of each.
MOST_FIELDS = 8  # in a batch
FIELD_PIXELS = 2**18  # of a batch, which holds five images of 224 px
FEWEST_FIELDS = 4  # in a batch, as this batch also shows which axes hold examples
FIELD_BATCHES, FEWEST_FIELD_BATCHES = 8, 4  # for standard errors; fewer of large images
FEWEST_BATCHES = 8  # for standard errors, which are taken over batches
# The largest `min_batch` of a statistic of a report: a shared pass of smaller batches fails for it,
# and is traced anew without it.
SMALLEST_BATCH = 12


def batch_size_of(
    examples: int, fewest: int = FEWEST_BATCHES, smallest: int = SMALLEST_BATCH
) -> int:
    """The largest batch of a report: as in calls, or less for `fewest` batches of `smallest`."""
    batches = max(1, min(fewest, examples // smallest))
    return min(BATCH_SIZE, max(1, math.ceil(examples / batches)))


# Untrained copies are shown the first half of the images only, but at least so many images, and as
# many batches as an interval needs. With two copies, half is about the share at which the interval
# of an effect is narrowest for its time; with a fixed number, it would not narrow with the images.
COPY_IMAGES, COPY_BATCHES = 224, 4

# How images to measure, and to fit probes on, are cut into batches.
TEST_RULE = BatchRule(batch_size_of)
TRAIN_RULE = BatchRule(partial(batch_size_of, fewest=2, smallest=1))


def make_data(images: Any, train: Any, num_classes: int | None, optional: dict) -> Data:
    """The `Data` of images, and of labelled ones to train on, as `make_report` takes them.

    Probes are fitted on every other batch of the labelled images, their penalty on the rest.
    """
    test = batch_test(images)
    few = few_images(test)
    optional_facts = {name: {name: _digest(made)} for name, made in optional.items()}
    optional = {
        name: made if callable(made) else lambda made=made: made for name, made in optional.items()
    }
    data = Data(
        test,
        few,
        labelled=_has_classes(images, test.element_spec),
        facts={"test": _digest(images)},
        optional=optional,
        optional_facts=optional_facts,
    )
    if train is None:
        return data
    require_labelled("train", train)
    labelled = batch_train(train)
    if num_classes is None:
        batches = [labels for _, labels in labelled.as_numpy_iterator()]
        num_classes = count_classes(np.concatenate(batches))
    fitted, validation = split_train(labelled)
    return replace(
        data,
        train=fitted,
        validation=validation,
        num_classes=num_classes,
        facts=data.facts | {"train": _digest(train), "classes": num_classes},
        optional={"gallery": lambda: labelled, **optional},
    )


def _has_classes(images: Any, spec: Any) -> bool:
    """Whether images have labels of several classes; a `ValueError` for what are no labels."""
    if not isinstance(spec, tuple):
        return False
    names = getattr(images, "class_names", None)  # none of a folder without class folders
    if names is not None:
        return len(names) > 1
    require_label_type(spec[1])
    if not isinstance(images, tuple):
        return True  # which a measurement checks when it reads them
    require_labels(np.asarray(images[1]))
    return len(np.unique(images[1])) > 1


def batch_train(train: Any) -> tf.data.Dataset:
    """Labelled images in at least two batches: those that probes are fitted on."""
    labelled = _batched(train, TRAIN_RULE)
    if labelled.cardinality() == 1:  # of a small folder, half of which is one batch
        (labels,) = (labels for _, labels in labelled.as_numpy_iterator())
        labelled = labelled.unbatch().batch(-(-len(labels) // 2))
    return labelled


def batch_test(images: Any) -> tf.data.Dataset:
    """Arrays in the batches that a report measures; batches of a data set as they are."""
    return _batched(images, TEST_RULE)


def split_train(train: Any) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """The labelled images that probes are fitted on, and those that choose their penalty."""
    labelled = batch_train(train)
    return labelled.shard(2, 0), labelled.shard(2, 1)


def first_images(images: tf.data.Dataset, most: int) -> tf.data.Dataset:
    """As many whole batches as hold at most so many images, and at least one."""
    batch = tf.nest.flatten(next(iter(images)))[0]
    return images.take(max(1, most // len(batch)))


def labels_of(images: tf.data.Dataset) -> np.ndarray:
    """The labels of a data set of (images, labels), of shape (example,)."""
    return np.concatenate([labels for _, labels in images.as_numpy_iterator()])


def few_images(images: tf.data.Dataset) -> tf.data.Dataset:
    """The first images of a data set in few batches, for what costs a gradient each."""
    size, count = field_sizes(images)
    return images.unbatch().batch(size).take(count // size)


def field_sizes(test: tf.data.Dataset) -> tuple[int, int]:
    """How many images' receptive fields are taken at once, as activations are kept, and in all."""
    size = tf.nest.flatten(test.element_spec)[0].shape[1:3].as_list()
    at_once = MOST_FIELDS
    if None not in size:
        at_once = min(MOST_FIELDS, max(FEWEST_FIELDS, FIELD_PIXELS // math.prod(size)))
    return at_once, at_once * (FIELD_BATCHES if at_once >= MOST_FIELDS else FEWEST_FIELD_BATCHES)


def _batched(images: Any, rule: BatchRule) -> tf.data.Dataset:
    """Batches of a data set as they are, of arrays by a rule; a `ValueError` for no images."""
    leaves = images if isinstance(images, tuple) else (images,)
    are_arrays = all(isinstance(leaf, np.ndarray | LazyRows) for leaf in leaves)
    return as_dataset(batch_arrays(images, rule) if are_arrays else images)


UNKNOWN = "unknown"


def _digest(images: Any) -> str:
    """A digest of arrays, as text; of anything else one that begins with `UNKNOWN`, always new."""
    leaves = tf.nest.flatten(images)
    if not all(isinstance(leaf, np.ndarray | np.generic | str | int | float) for leaf in leaves):
        return f"{UNKNOWN} {token_hex(8)}"
    arrays = [np.asarray(leaf) for leaf in leaves]
    parts: list[tuple[Any, Any]] = [
        (f"{x.dtype} {x.shape}", np.ascontiguousarray(x).data) for x in arrays
    ]
    return digest_files([], *itertools.chain(*parts))
