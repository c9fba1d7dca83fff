"""From a name to batched data sets of images in [-1, 1] and labels."""

import numbers
import os
from functools import partial

from vit_tf.backend import leave_gpus_to_jax
from vit_tf.batches import as_shard
from vit_tf.data.digits import open_digits
from vit_tf.data.folder import open_folder
from vit_tf.data.image_lists import select_classes
from vit_tf.data.images.framing import AREA
from vit_tf.data.reading import read_shardable
from vit_tf.data.shapes import open_shapes
from vit_tf.data.source import (
    SPLITS,
    Description,
    check_splits,
    identify,
    identify_names,
    partition,
    shard_indices,
    with_all,
)
from vit_tf.data.tfds import is_tfds_name, open_tfds
from vit_tf.names import renamed_arguments, unknown_name
from vit_tf.preprocessing import Preprocessing
from vit_tf.remote import is_remote


@renamed_arguments(share="shard")
def load(
    name,
    *,
    image_size=None,
    batch_size=128,
    splits=("train", "test"),
    take=None,
    validation=0.1,
    seed=0,
    data_dir=None,
    drop_remainder=False,
    preprocessing=None,
    classes=None,
    random_resized_crop=None,
    shard=None,
    repeats=1,
):
    """Loads an image classification data set as batches of images in [-1, 1] and labels.

    The train split is shuffled anew in each epoch, in an order that depends on the seed alone; the
    other splits keep their order. (Splits too large to cache are shuffled within 10,000 examples if
    they come from TFDS.) Splits of up to 1 GiB are decoded once and kept in memory, as bytes where
    their images share a size; larger ones are streamed. Nothing is decoded before the first batch
    is asked for.

    A folder holds `class/*.jpg` or `{train,validation,test}/class/*.jpg`, where `training`, `val`,
    `valid` and `testing` are accepted too, in upper or lower case. **Without folders of splits one
    fifth of each class, always the same, is the test split**; `splits=("all",)` reads every image.
    Images may also lie side by side, with a text file of their classes, in the folder or with its
    name next to it: Tiny ImageNet and ImageNet open as released. Without such a file the labels are
    -1, for uses without labels.

    Args:
        name: `"digits"` (scikit-learn's, no download), `"shapes"` (generated), a TFDS name such as
            `"fashion_mnist"`, or the path of a folder, as below, which may be an address that
            TensorFlow can open, such as `"gs://bucket/photos"`. If a TFDS name is also a folder,
            `"./name"` selects the folder.
        image_size: height and width to resize to (bilinear, antialiased), in pixels; a number or a
            pair. None keeps the images' own size.
        batch_size: examples per batch; the last one may have fewer.
        splits: which of "train", "validation", "test" and "all", every example of all splits, to
            return. Only these are read. If a data set has only training and validation examples,
            the latter are used as "test" if it is requested, and "validation" is split from the
            former.
        take: number of examples to keep of each split, or a dict from split to number; seeded and
            class-balanced where the labels are known without reading the images.
        validation: fraction of the train split that is held out, if "validation" is requested and
            the data set has none; stratified where the labels are known, otherwise the last
            examples, so that the rest is shuffled across files.
        seed: seed of the shuffling, of `take` and of `validation`; the test split never depends on
            it.
        data_dir: folder of the TFDS data; the default of TFDS if None.
        drop_remainder: whether every split leaves out a last batch that is not full.
        preprocessing: preprocessing of the model, `model.preprocessing`: its size, interpolation,
            crop, mean and std replace `image_size` and [-1, 1].
        classes: names of the classes to keep, whose order gives their labels, such as those that
            `read_class_list` finds in a file; all if None.
        random_resized_crop: range of the area fraction of a random crop of every training image,
            drawn anew in each epoch and resized (Szegedy et al. 2014, as torchvision's
            RandomResizedCrop), such as (0.05, 1.0), or True for (0.08, 1.0); aspect ratios are from
            3/4 to 4/3. Only the cropped part of a JPEG is decoded.
        shard: (index, num_shards), for one of several processes that read one data set: the part of
            every split that this process alone reads and decodes. Sizes differ by at most one
            example; batches are of this part.
        repeats: how often each training image is repeated in succession, with different crops and
            augmentations, in an epoch of the same number of images: the repeated augmentation of
            Hoffer et al. 2020 (https://arxiv.org/abs/1901.09335), 3 in DeiT.

    Returns:
        Tuple of `tf.data.Dataset`, one per split, of (images, labels): float32 of shape (example,
        height, width, 3), grey repeated to RGB, and int32 of shape (example,). `class_names` of
        each, as of Keras' `image_dataset_from_directory`, are the names of the classes.

    Raises:
        ValueError: for arguments out of range, an unknown name, missing splits, images that differ
            in size, and files that cannot be decoded.
    """
    check_splits(splits)
    take = _checked_take(take, splits)
    size = checked_size(image_size, preprocessing)
    check_number("batch_size", batch_size, 1)
    check_number("seed", seed, 0)
    check_number("repeats", repeats, 1)
    if not 0 <= validation < 1:
        raise ValueError(
            f"Expected validation to be in [0, 1). Received: validation={validation!r}"
        )
    area = _checked_area(random_resized_crop)
    source = with_all(select_classes(open_source(name, data_dir), classes))
    chosen = partition(source, splits, validation, take, seed)
    if shard is not None:
        contiguous = source.read_shuffled is not None
        chosen = {
            split: (name, shard_indices(indices, shard, contiguous))
            for split, (name, indices) in chosen.items()
        }
    _check_full_batch(chosen, batch_size, drop_remainder)
    drawn = {"train": {"seed": seed, "area": area, "repeats": repeats}}
    loaded = []
    for split, (name, indices) in chosen.items():
        dataset = read_shardable(
            source,
            name,
            indices,
            size,
            batch_size,
            drop_remainder=drop_remainder,
            preprocessing=preprocessing,
            **drawn.get(split, {}),
        )
        dataset = dataset if shard is None else as_shard(dataset)
        dataset.class_names = source.class_names
        dataset.identify = partial(identify, source, name, indices)
        dataset.identify_names = partial(identify_names, source, name, indices)
        loaded.append(dataset)
    return tuple(loaded)


def describe(name, data_dir=None, classes=None):
    """The classes and splits of a data set as `load` finds them, optionally for some `classes`.

    Counts files and reads metadata, but no images; a TFDS data set that is not on disk is
    downloaded first. A validation split is listed only if the data set has one.

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


def open_source(name, data_dir):
    """The `Source` of a name."""
    leave_gpus_to_jax()
    if not isinstance(name, (str, os.PathLike)) or not os.fspath(name):
        raise ValueError(
            "Expected name to be 'digits', 'shapes', a TFDS name or the path of a folder. "
            f"Received: name={name!r}"
        )
    if name == "digits":
        return open_digits()
    if name == "shapes":
        return open_shapes()
    if _is_path(name):
        return open_folder(name)
    return open_tfds(name, data_dir)


def _is_path(name):
    """Whether a name means a folder, be it there or not, rather than a TFDS data set."""
    if isinstance(name, os.PathLike) or name[0] in "./~\\" or name[-1] in "/\\":
        return True
    if is_remote(name):
        return True
    place = os.path.dirname(name) or name
    return os.path.isdir(place) and not is_tfds_name(name)


def _checked_area(area):
    """The range of a random crop's share of an image's area, or None."""
    if area is None or area is False:
        return None
    least, most = AREA if area is True else area
    if not 0 < least <= most <= 1:
        raise ValueError(
            "Expected random_resized_crop to be None, True or a range of area fractions within "
            f"(0, 1]. Received: random_resized_crop={area!r}"
        )
    return float(least), float(most)


def _checked_take(take, splits):
    """`take` as a dict from split to number of examples."""
    if take is None:
        return {}
    take = take if isinstance(take, dict) else dict.fromkeys(splits, take)
    for split, size in take.items():
        if split not in splits:
            raise unknown_name("split in take", split, splits)
        check_number("take", size, 1)
    return take


def checked_size(image_size, preprocessing=None):
    """`image_size`, or that of the preprocessing, as a pair (height, width), or None."""
    if preprocessing is not None:
        return _size_of(preprocessing, checked_size(image_size))
    if image_size is None:
        return None
    size = tuple(image_size) if isinstance(image_size, (tuple, list)) else (image_size,) * 2
    if len(size) != 2:
        raise ValueError(
            "Expected image_size to be a number of pixels or a pair (height, width). "
            f"Received: image_size={image_size!r}"
        )
    for pixels in size:
        check_number("image_size", pixels, 1)
    return size


def _size_of(preprocessing, size):
    """The size of a preprocessing of RGB images, which `size` must not contradict."""
    if not isinstance(preprocessing, Preprocessing) or len(preprocessing.mean) != 3:
        raise ValueError(
            "Expected preprocessing to be a vit_tf.Preprocessing of 3 channels. "
            f"Received: preprocessing={preprocessing!r}"
        )
    if preprocessing.size is None:
        return size
    if size not in (None, preprocessing.size):
        raise ValueError(
            f"Expected image_size to be None or that of the preprocessing, {preprocessing.size}. "
            f"Received: image_size={size}"
        )
    return preprocessing.size


def check_number(what, value, least):
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"Expected {what} to be an integer >= {least}. Received: {what}={value!r}")


def _check_full_batch(chosen, batch_size, drop_remainder):
    count, split = min((len(indices), split) for split, (_, indices) in chosen.items())
    if drop_remainder and count < batch_size:
        raise ValueError(
            f"Expected batch_size to be at most {count}, the number of {split} examples, with "
            f"drop_remainder=True. Received: batch_size={batch_size}"
        )
