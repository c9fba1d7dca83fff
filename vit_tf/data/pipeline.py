"""Data sets by name as batches of images and labels: whole, or a few images of each class."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from vit_tf.common.backend import leave_gpus_to_jax
from vit_tf.common.names import lookup
from vit_tf.data.batches import BatchRule, Shard, as_shard
from vit_tf.data.folder import scan
from vit_tf.data.imaging import AREA, CROP_DISTRIBUTIONS, CropArea
from vit_tf.data.names import PHOTOGRAPHS, PHOTOGRAPHS_FOLDER, is_path
from vit_tf.data.preprocessing import JointPreprocessing, Preprocessing
from vit_tf.data.reading import read_batches, read_shardable
from vit_tf.data.shapes import Shapes, own_kind
from vit_tf.data.source import (
    SPLITS,
    TEST_FRACTION,
    Decoder,
    Description,
    ImageSize,
    Indices,
    Item,
    Source,
    check_numbers,
    check_splits,
    checked_size,
    describe_batches,
    hold_out,
    partition,
    require_class_names,
    select_classes,
    shard_indices,
    with_all,
)
from vit_tf.data.tfds import open_tfds


def load(
    name: str | os.PathLike,
    *,
    image_size: ImageSize | None = None,
    batch_size: int = 128,
    splits: Sequence[str] = ("train", "test"),
    take: int | dict[str, int] | None = None,
    validation: float = 0.1,
    seed: int = 0,
    data_dir: str | os.PathLike | None = None,
    drop_remainder: bool = False,
    preprocessing: Preprocessing | JointPreprocessing | None = None,
    classes: Sequence[str] | None = None,
    random_resized_crop: bool | Sequence | None = None,
    shard: tuple[int, int] | None = None,
    repeats: int = 1,
    shuffle_once: bool = False,
    skip_errors: float = 0.0,
) -> tuple[tf.data.Dataset, ...]:
    """Loads an image classification data set as batches of images in [-1, 1] and labels.

    The train split is shuffled anew in each epoch. The order depends only on the seed and the
    epoch. The other splits keep their order. Splits of up to 1 GiB are decoded once and kept in
    memory, as bytes if all images have the same size. Larger splits are streamed. (Larger splits
    from TFDS are shuffled only within a buffer of 10,000 examples.) No image is decoded before the
    first batch is requested.

    A folder holds `class/*.jpg` or `{train,validation,test}/class/*.jpg`. The names `training`,
    `val`, `valid` and `testing` are accepted too, in upper or lower case. **Without folders for
    splits, a fixed fifth of the images of each class is the test split.** `splits=("all",)` reads
    every image.

    All images of a split may also be in one folder, without folders for classes. A text file then
    holds the classes of the images. This file is in the folder, or next to it with the folder's
    name in its own name (such as `val.txt` for the folder `val`). Tiny ImageNet and ImageNet open
    as released. Without such a file, all labels are -1.

    Args:
        name: `"digits"` (the digits of scikit-learn, without a download), `"shapes"` or
            `"textured-shapes"` (generated), `"photographs"` (those of `vit_tf.data.photographs`), a
            TFDS name such as `"fashion_mnist"`, or the path of a folder. The path may be an address
            that TensorFlow can open, such as `"gs://bucket/photos"`. If a folder has the name of a
            TFDS data set, `"./name"` selects the folder.
        image_size: size in pixels to which images are resized (bilinear, antialiased), a number for
            square images or a pair (height, width). None keeps the size of the images.
        batch_size: number of examples per batch. The last batch may have fewer.
        splits: splits to return, among "train", "validation", "test" and "all" (every example of
            all splits). Only these splits are read. If a data set has training and validation
            examples but no test examples, its validation examples are used as "test" if "test" is
            requested. "validation" is then split off from the training examples.
        take: number of examples to keep in each split, or a dict from split to number. The examples
            are drawn at random with the seed. They are balanced over classes if the labels are
            known without reading the images.
        validation: fraction of the train split that is held out if "validation" is requested and
            the data set has no validation split. The held-out examples are stratified by class if
            the labels are known. Otherwise, the last examples are held out, so that the other
            examples can be shuffled across files.
        seed: seed of the shuffling, of `take` and of `validation`. The test split does not depend
            on the seed.
        data_dir: folder of the TFDS data. None means the default folder of TFDS.
        drop_remainder: whether to drop the last batch of every split if it is not full.
        preprocessing: preprocessing of the model, `model.preprocessing`. Its size replaces
            `image_size`, and its mean and std replace the range [-1, 1]. Its interpolation and crop
            are used too.
        classes: names of the classes to keep, such as the list that `read_class_list` reads from a
            file. Labels follow the order of this list. None keeps all classes.
        random_resized_crop: range of area fractions for random crops of training images, such as
            (0.05, 1.0). True means (0.08, 1.0), and None means no crops. In each epoch, a new crop
            of each image is drawn and resized (Szegedy et al. 2014, as torchvision's
            RandomResizedCrop). Aspect ratios are between 3/4 and 4/3. Only the cropped part of a
            JPEG is decoded. (0.05, 1.0, "tensorflow") draws crops from the distribution of
            `tf.image.sample_distorted_bounding_box`, with which Google's ViTs and ResNets were
            trained: heights are uniform instead of areas, so that crops are smaller.
        shard: pair (index, num_shards), for one of several processes that read the same data set.
            Each process reads and decodes only its own part of every split. The largest part has at
            most one example more than the smallest part. `batch_size` is the size of a batch in one
            process.
        repeats: how often each training image is repeated in succession, with different crops and
            augmentations. The number of images in an epoch stays the same. This is the repeated
            augmentation of Hoffer et al. 2020 (https://arxiv.org/abs/1901.09335). DeiT repeats each
            image 3 times.
        shuffle_once: whether every split is read in one random order, the same in each pass, and in
            the fewest batches of equal size (133 images are 67 and 66), as measurements read a
            folder. Data from TFDS keep the order in which TFDS stores them.
        skip_errors: largest share of the images of a split that may be skipped because they cannot
            be decoded, such as 0.001. A line on the standard error names each skipped image and
            their number so far. With 0, the first such image raises an error.

    Returns:
        Tuple with one `tf.data.Dataset` of (images, labels) per split. Images are float32 of shape
        (example, height, width, channel). Images have 3 channels, since a grey image is repeated
        for red, green and blue. If `preprocessing` is given, it determines the number of channels:
        1 (grey), 3 (RGB) or 4 (RGBA). Labels are int32 of shape (example,). The attribute
        `class_names` of a data set holds the names of the classes, as in Keras'
        `image_dataset_from_directory`.

    Raises:
        ValueError: if an argument is out of range, if the name is unknown or a split is missing, if
            images differ in size and `image_size` is None, or if a file cannot be decoded.
    """
    check_splits(splits)
    take = _checked_take(take, splits)
    size = checked_size(image_size, preprocessing)
    check_numbers(1, batch_size=batch_size, repeats=repeats)
    check_numbers(0, seed=seed)
    if not 0 <= validation < 1:
        raise ValueError(
            f"Expected validation to be in [0, 1). Received: validation={validation!r}"
        )
    if not 0 <= skip_errors < 1:
        raise ValueError(f"Expected skip_errors to be in [0, 1). Received: {skip_errors=}")
    area = _checked_area(random_resized_crop)
    source = with_all(select_classes(open_source(name, data_dir), classes))
    selection = partition(source, splits, validation, take, seed)
    if shard is not None:
        contiguous = source.shuffles_files
        selection = {
            split: (name, shard_indices(indices, shard, contiguous))
            for split, (name, indices) in selection.items()
        }
    count, split = min((len(indices), split) for split, (_, indices) in selection.items())
    if drop_remainder and count < batch_size:
        raise ValueError(
            f"Expected batch_size to be at most {count}, the number of {split} examples, with "
            f"drop_remainder=True. Received: batch_size={batch_size}"
        )
    drawn = {"train": {"seed": seed, "area": area, "repeats": repeats}}
    worker = None if shard is None else Shard(*shard)
    # What is a shard already is not shared out again.
    read = read_shardable if worker is None else partial(read_batches, worker=worker)
    loaded: list[Any] = []
    sizes: Any = batch_size  # of each batch, where batches differ
    if shuffle_once:
        drawn, read = {}, partial(read_batches, worker=worker)
    for split, (name, indices) in selection.items():
        if shuffle_once:
            rule = BatchRule(batch_size, keep_order=not source.in_any_order, seed=seed)
            indices, sizes = indices[rule.order(len(indices))], rule.sizes(len(indices))
        dataset = read(
            source,
            name,
            indices,
            size,
            sizes,
            drop_remainder=drop_remainder,
            preprocessing=preprocessing,
            skip_errors=skip_errors,
            **drawn.get(split, {}),
        )
        dataset = dataset if worker is None else as_shard(dataset, worker)
        loaded.append(describe_batches(dataset, source, name, indices))
    return tuple(loaded)


def describe(
    name: str | os.PathLike,
    data_dir: str | os.PathLike | None = None,
    classes: Sequence[str] | None = None,
) -> Description:
    """The classes and splits of a data set as `load` finds them, optionally for some `classes`.

    This function counts files and reads metadata, but it reads no images. A TFDS data set that is
    not on disk is downloaded first. A validation split is listed only if the data set has one.

    Raises:
        ValueError: as for `load`.
    """
    source = select_classes(open_source(name, data_dir), classes)
    return Description(
        name=os.fspath(name),
        num_classes=len(source.class_names),
        class_names=source.class_names,
        num_examples={s: source.num_examples[s] for s in SPLITS if s in source.num_examples},
    )


def open_source(name: str | os.PathLike, data_dir: str | os.PathLike | None) -> Source:
    """The `Source` of a name."""
    leave_gpus_to_jax()
    own = {"digits": Digits, "shapes": Shapes, "textured-shapes": partial(Shapes, own_kind)}
    if name in own:
        return own[os.fspath(name)]()
    if name == PHOTOGRAPHS or is_path(name):
        return scan(PHOTOGRAPHS_FOLDER if name == PHOTOGRAPHS else name)
    return open_tfds(os.fspath(name), data_dir)


def _checked_area(area: bool | Sequence | None) -> CropArea | None:
    """The `CropArea` of random crops, or None."""
    if area is None or area is False:
        return None
    chosen: Any = AREA if area is True else area
    crop = CropArea(*chosen)
    if not 0 < crop.least <= crop.most <= 1:
        raise ValueError(
            "Expected random_resized_crop to be None, True or a range of area fractions within "
            f"(0, 1]. Received: random_resized_crop={area!r}"
        )
    lookup("the distribution of random_resized_crop", crop.distribution, CROP_DISTRIBUTIONS)
    return CropArea(float(crop.least), float(crop.most), crop.distribution)


def _checked_take(take: int | dict[str, int] | None, splits: Sequence[str]) -> dict[str, int]:
    """`take` as a dict from split to number of examples."""
    if take is None:
        return {}
    take = take if isinstance(take, dict) else dict.fromkeys(splits, take)
    for split, size in take.items():
        lookup("split in take", split, dict.fromkeys(splits))
        check_numbers(1, take=size)
    return take


class Digits(Source, Decoder):
    """The digits, with grey values 0..16 stretched to [0, 255] and a fixed fifth as test split."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        digits: Any = load_digits()
        self._images = (digits.images[..., None] * (255 / 16)).astype(np.float32)
        self._labels = digits.target.astype(np.int32)
        train, test = hold_out(self._labels, TEST_FRACTION, np.random.default_rng(0))
        self._members = {"train": train, "test": test}
        self.class_names = tuple(str(name) for name in digits.target_names)
        self.num_examples = {split: len(members) for split, members in self._members.items()}

    def labels(self, split: str) -> np.ndarray:
        return self._labels[self._members[split]]

    def image_size(self, split: str, indices: Indices) -> tuple[int, int]:
        return self._images.shape[1:3]

    def read(self, split: str, indices: Indices) -> tf.data.Dataset:
        members = self._members[split][indices]
        return tf.data.Dataset.from_tensor_slices((self._images[members], self._labels[members]))

    def decode(self, item: Item) -> tuple[tf.Tensor, tf.Tensor | str]:
        return item, ""

    def version(self) -> str:
        return "digits"


BLOCK = 10_000


def few_shot(
    name: str | os.PathLike,
    shots: int,
    *,
    seed: int = 0,
    image_size: ImageSize | None = None,
    batch_size: int = 128,
    held_out: int = 0,
    data_dir: str | os.PathLike | None = None,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Loads `shots` images of every class, and held-out images to select settings such as `l2`.

    All these images come from the train split, so the test split that `load` returns remains
    unseen. A validation split that `load` cuts from the train split may contain these images. For
    the same `seed` and `held_out`, a set with fewer shots is part of a set with more shots, and the
    held-out images are the same.

    Args:
        name: data set, as for `load`.
        shots: number of images of each class.
        seed: seed of the selection and of the shuffling.
        image_size: height and width to resize to, in pixels; a number, a pair or None, as for
            `load`.
        batch_size: number of examples per batch. The last batch may have fewer.
        held_out: number of held-out images of each class. With 0, the second data set is empty.
        data_dir: folder of the TFDS data. None means the default folder of TFDS.
        preprocessing: preprocessing of the model, as for `load`.
        classes: names of the classes to keep, as for `load`.

    Returns:
        Pair of `tf.data.Dataset` of (images, labels), as `load` returns them. The first data set
        has `shots` images of each class and is shuffled anew in each epoch. The second data set has
        `held_out` other images of each class, in a fixed order.

    Raises:
        ValueError: if images have no labels, if a class has fewer than `shots + held_out` images,
            or if an argument is out of range. Other errors are as for `load`.
    """
    check_numbers(1, shots=shots, batch_size=batch_size)
    check_numbers(0, held_out=held_out, seed=seed)
    size = checked_size(image_size, preprocessing)
    source = select_classes(open_source(name, data_dir), classes)
    require_class_names(source)
    split, indices = partition(source, ("train",), 0, {}, seed)["train"]
    indices, labels = _in_random_order(source, split, indices, shots + held_out, seed)
    counts = np.bincount(labels, minlength=len(source.class_names))
    scarce = int(np.argmin(counts))
    if counts[scarce] < shots + held_out:
        raise TooFewImages(shots, held_out, source.class_names[scarce], int(counts[scarce]))
    rank = class_rank(labels)
    shot_indices = np.sort(indices[(rank >= held_out) & (rank < held_out + shots)])
    held = np.sort(indices[rank < held_out])
    if size is None:
        source.image_size(split, np.union1d(shot_indices, held))  # raises if they share none

    read = partial(read_batches, source, split, size=size, batch_size=batch_size)
    few = read(shot_indices, seed=seed, preprocessing=preprocessing)
    rest = read(held, preprocessing=preprocessing) if held_out else few.take(0)
    few = describe_batches(few, source, split, shot_indices)
    return few, describe_batches(rest, source, split, held)


class TooFewImages(ValueError):
    """A class has fewer training images than `few_shot` is asked for."""

    def __init__(self, shots: int, held_out: int, class_name: str, count: int):
        super().__init__(
            f"Expected each class to have at least {shots + held_out} images in the train split, "
            f"for shots={shots} and held_out={held_out}. Received: {count} of class {class_name!r}"
        )
        self.class_name, self.count = class_name, count


def class_rank(labels: np.ndarray) -> np.ndarray:
    """How many earlier examples have the same label: int array of shape (example,)."""
    order = np.argsort(labels, kind="stable")
    grouped = labels[order]
    rank = np.empty(len(labels), int)
    rank[order] = np.arange(len(labels)) - np.searchsorted(grouped, grouped)
    return rank


def _in_random_order(
    source: Source, split: str, indices: Indices, least: int, seed: int
) -> tuple[Indices, np.ndarray]:
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
    read_blocks, labels = [], []
    counts = np.zeros(len(source.class_names), int)
    for block in tqdm(blocks, "Reading labels", delay=1, disable=None, unit="block"):
        only = source.read(split, block).map(lambda item, label: label).batch(len(block))
        read_blocks.append(block)
        labels.append(only.get_single_element().numpy())
        counts += np.bincount(labels[-1], minlength=len(counts))
        if counts.min() >= least:
            break
    return np.concatenate(read_blocks), np.concatenate(labels)
