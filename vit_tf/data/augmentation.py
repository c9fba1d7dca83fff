"""Augmentations of batches of training data, and masked patches, with their labels."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf.common.names import as_sizes
from vit_tf.data.batches import ResumableDataset, seeds_of_batches
from vit_tf.data.labels import require_labels
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.data.rand_augment import make_rand_augment


def augment(
    dataset: tf.data.Dataset,
    num_classes: int,
    *,
    rand_augment: bool | float | dict = False,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    flip: bool = False,
    shift: int = 0,
    crop: tuple[int, int] | None = None,
    erase: float = 0.0,
    erase_noise: bool = False,
    mix_per_batch: bool = False,
    layers: Sequence[Callable] = (),
    seed: int = 0,
) -> ResumableDataset:
    """Augments batches of images in [-1, 1], and turns their labels into probabilities.

    The augmentations are applied in this order: shift, crop, flip, RandAugment (Cubuk et al. 2019),
    `layers`, random erasing (Zhong et al. 2017), MixUp (Zhang et al. 2017) or CutMix (Yun et al.
    2019). If both MixUp and CutMix are on, one of them is drawn for each batch with equal
    probability. Shift, RandAugment and `layers` require images in [-1, 1]. The other augmentations
    also work for images with another normalisation. Random resized crops are made by `load` when it
    decodes an image.

    Every random number depends only on the seed, the epoch (how many iterators came before), the
    index of the batch, the index of the image in the batch, TensorFlow's global seed (as for
    `tf.data.Dataset.shuffle`) and, if there are several workers, the index of the worker. Equal
    seeds give equal results, and every epoch differs. Each worker augments its own part of a batch.
    `layers` draw random numbers of their own, which a resumed run does not repeat.

    Args:
        dataset: batched `tf.data.Dataset` of (images, labels), as `load` returns it, or of (images,
            labels, weights). Weights are returned unchanged, and do not allow `mixup` or `cutmix`.
        num_classes: number of classes.
        rand_augment: True, a magnitude in [0, 1], or a dict of `magnitude`, `magnitude_stddev`,
            `augmentations_per_image`, `rate` and `operations`: `"torchvision"`, the 14 of
            torchvision, `"tpu"`, the 16 with which Google's ViTs were trained, or `"timm"`, the 15
            with which DeiT was trained.
        mixup: alpha of the Beta(alpha, alpha) that MixUp draws its weights from; 0 turns it off.
        cutmix: alpha of the Beta(alpha, alpha) that CutMix draws its areas from; 0 turns it off.
        flip: whether to mirror half of the images left to right.
        shift: largest shift in either direction, in pixels; uncovered pixels are black.
        crop: (height, width) to crop randomly from each image, in pixels; None for no cropping.
        erase: share of the images in which a rectangle is set to 0, which is grey in [-1, 1].
        erase_noise: whether erased rectangles get normal noise with the mean and the standard
            deviation of ImageNet's channels, instead of 0. It requires images in [-1, 1].
        mix_per_batch: whether MixUp and CutMix draw one weight, and one rectangle, for a whole
            batch, whose images are mixed with those of the batch in reverse order, as in timm. By
            default, each image has its own.
        layers: preprocessing layers of Keras or KerasCV, applied in turn to batches with values in
            [0, 255]. Those that transform labels, such as MixUp and CutMix, get
            `{"images": ..., "labels": ...}` with labels of shape (example, class).
        seed: seed of the random numbers.

    Returns:
        `tf.data.Dataset` of (images, labels). Images are float32 in [-1, 1], of the same shape
        unless they are cropped. Labels are float32 of shape (example, class), and each row sums to
        1.

    Raises:
        ValueError: if an argument is out of range, or if the data are not batches of (images,
            labels).
        tf.errors.InvalidArgumentError: during iteration, if a label is outside [0, num_classes), or
            if images for RandAugment or `layers` are not in [-1, 1], such as those in [0, 1] with a
            black pixel in their batch.
    """
    _check(dataset, mixup, cutmix, shift, crop)
    mixing_layers = [layer.name for layer in layers if type(layer).__name__ in MIXERS]
    if mixing_layers and len(dataset.element_spec) == 3:
        raise ValueError(
            f"Layers that mix images cannot be used with example weights. Received: {mixing_layers}"
        )
    if not 0 <= erase <= 1:
        raise ValueError(f"Expected erase to be in [0, 1]. Received: erase={erase!r}")

    is_off = rand_augment is False or rand_augment is None
    strengthen = None if is_off else make_rand_augment(rand_augment)
    mixers = [
        functools.partial(mixer, alpha=alpha, per_batch=mix_per_batch)
        for mixer, alpha in ((mixup_batch, mixup), (cutmix_batch, cutmix))
        if alpha
    ]

    # Each step draws from seeds that the others do not take.
    def apply(batch: tuple, seed: tf.Tensor) -> tuple:
        images, labels, *weights = batch
        labels = _one_hot(labels, num_classes)
        images = _require_common_range(images) if strengthen or layers else images
        images = random_shift(images, shift, seed) if shift else images
        images = random_crop(images, crop, seed) if crop else images
        images = random_flip(images, seed) if flip else images
        images = strengthen.augment(images, seed + 11) if strengthen else images
        if layers:
            images, labels = _apply_layers(images, labels, layers)
        if erase:
            images = random_erasing(images, erase, seed + 15, noise=erase_noise)
        if mixers:
            # One of them, by seeds that neither the steps before nor each other take.
            number = tf.random.stateless_uniform((), seed + 4, 0, len(mixers), tf.int32)
            mixed = [functools.partial(mixer, images, labels, seed + 5) for mixer in mixers]
            images, labels = tf.switch_case(number, mixed)
        return images, labels, *weights

    def make(dataset: tf.data.Dataset, draws: tf.data.Dataset) -> tf.data.Dataset:
        seeded = tf.data.Dataset.zip(dataset, draws)
        # A whole batch is in the making at each of the calls. Layers work on one core.
        calls = os.cpu_count() if layers else 2
        return seeded.map(apply, num_parallel_calls=calls).prefetch(tf.data.AUTOTUNE)

    return ResumableDataset.from_sources(make, dataset, seeds_of_batches(seed))


def _require_common_range(images: tf.Tensor) -> tf.Tensor:
    """Images in [-1, 1], of which levels from 0 to 255 are made; an error in the graph for others.

    Images in [0, 1] are among them, but their smallest value is 0 wherever a pixel is black. In
    [-1, 1], 0 is no level of 8 bits, and the smallest value of a batch is below it.
    """
    least, most = tf.reduce_min(images), tf.reduce_max(images)
    is_common = (least >= -1.001) & (most <= 1.001) & tf.not_equal(least, 0.0)
    shown = [tf.strings.as_string(end, shortest=True) for end in (least, most)]
    expected = "Expected images in [-1, 1] for RandAugment and layers, augmented before another "
    words = [expected + "scaling. Received: values from ", shown[0], " to ", shown[1]]
    check = tf.debugging.Assert(is_common | tf.equal(least, most), [tf.strings.join(words)])
    with tf.control_dependencies([check]):
        return tf.identity(images)


# Methods by which the layers of Keras and KerasCV transform labels.
OF_LABELS = ("transform_labels", "augment_label", "augment_labels")
# Layers that mix examples, whose weights cannot be mixed.
MIXERS = ("MixUp", "CutMix", "FourierMix", "Mosaic")


def _apply_layers(
    images: tf.Tensor, labels: tf.Tensor, layers: Sequence[Callable]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Keras layers applied to images in [-1, 1] and labels of shape (example, class)."""
    shape, images = images.shape, (images + 1) * 127.5
    for layer in layers:
        training = {"training": True} if "training" in signature(layer.call).parameters else {}
        if any(hasattr(layer, name) for name in OF_LABELS):
            batch = layer({"images": images, "labels": labels}, **training)
            images, labels = batch["images"], batch["labels"]
        else:
            images = layer(images, **training)
    images = tf.cast(images, tf.float32) / 127.5 - 1
    static = [new or old for new, old in zip(images.shape[1:], shape[1:], strict=True)]
    return tf.ensure_shape(images, (None, *static)), tf.cast(labels, tf.float32)


def random_shift(images: tf.Tensor, pixels: int, seed: tf.Tensor) -> tf.Tensor:
    """Moves each image by up to `pixels` up or down and left or right; uncovered pixels are black.

    Args:
        images: float tensor of shape (example, height, width, channel) in [-1, 1].
        pixels: largest shift, in pixels.
        seed: int tensor of shape (2,).
    """
    height, width = images.shape[1:3]
    border = ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0))
    padded = tf.pad(images, border, constant_values=-1.0)
    shape = (tf.shape(images)[0], 2)
    start = tf.random.stateless_uniform(shape, seed, 0, 2 * pixels + 1, tf.int32)
    return _window(padded, start[:, 0], start[:, 1], (height, width))


def random_crop(images: tf.Tensor, size: tuple[int, int], seed: tf.Tensor) -> tf.Tensor:
    """Cuts (height, width) pixels out of each image at a random position, each equally likely."""
    count = tf.shape(images)[:1]
    places = [side - part + 1 for side, part in zip(images.shape[1:3], size, strict=True)]
    # Seeds that neither the shift nor the flip of the same images takes.
    top, left = (
        tf.random.stateless_uniform(count, seed + 2 + axis, 0, places[axis], tf.int32)
        for axis in range(2)
    )
    return _window(images, top, left, size)


def _window(images: tf.Tensor, top: tf.Tensor, left: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """(height, width) pixels of each image, from row `top` and column `left` of each on."""
    rows = top[:, None] + tf.range(size[0])
    columns = left[:, None] + tf.range(size[1])
    cut = tf.gather(images, rows, axis=1, batch_dims=1)
    return tf.gather(cut, columns, axis=2, batch_dims=1)


def random_flip(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Mirrors half of the images, of shape (example, height, width, channel), left to right."""
    columns = tf.range(images.shape[2])
    coins = tf.random.stateless_uniform((tf.shape(images)[0], 1), seed + 1)
    order = tf.where(coins < 0.5, columns[::-1], columns)
    return tf.gather(images, order, axis=2, batch_dims=1)


# Mean and standard deviation of ImageNet's channels, in [-1, 1] and of as many.
IMAGENET_MEAN, IMAGENET_STD = (-0.03, -0.088, -0.188), (0.458, 0.448, 0.45)


def random_erasing(
    images: tf.Tensor, share: float, seed: tf.Tensor, noise: bool = False
) -> tf.Tensor:
    """Makes a rectangle of a share of the images 0, or noise, as torchvision's RandomErasing."""
    # The first of 10 tries that is smaller than the image, and none if all are larger.
    size = tf.constant([float(side) for side in images.shape[1:3]])
    shape = (tf.shape(images)[0], 10)
    area = tf.random.stateless_uniform(shape, seed, 0.02, 0.33) * size[0] * size[1]
    aspect = tf.exp(tf.random.stateless_uniform(shape, seed + 1, math.log(0.3), -math.log(0.3)))
    sides = tf.round(tf.stack([tf.sqrt(area * aspect), tf.sqrt(area / aspect)], axis=-1))
    fits = tf.reduce_all(sides < size, axis=-1)
    sides = tf.gather(sides, tf.argmax(tf.cast(fits, tf.int32), axis=1), batch_dims=1)
    start, coins = (
        tf.random.stateless_uniform((shape[0], n), seed + 2 + n, dtype=tf.float32) for n in (2, 1)
    )
    start = tf.floor(start * (size - sides + 1))
    erased = tf.reduce_any(fits, axis=1) & (coins[:, 0] < share)
    rows, columns = (_interval(size[axis], start[:, axis], sides[:, axis]) for axis in range(2))
    inside = (rows & erased[:, None])[:, :, None] & columns[:, None]
    filling = tf.zeros((), images.dtype)
    if noise:
        filling = tf.random.stateless_normal(tf.shape(images), seed + 5, dtype=images.dtype)
        filling = filling * IMAGENET_STD + IMAGENET_MEAN
    return tf.where(inside[..., None], filling, images)


def check_labels(labels: np.ndarray | tf.data.Dataset, num_classes: int) -> None:
    """Checks that labels lie in [0, num_classes).

    Args:
        labels: int array of shape (example,), or batched `tf.data.Dataset` of (images, labels).
        num_classes: number of classes.

    Raises:
        ValueError: if a label is outside this range. The message states the smallest and the
            largest label.
    """
    if isinstance(labels, tf.data.Dataset):
        batches = labels.map(lambda images, labels: labels).as_numpy_iterator()
        labels = np.concatenate([np.ravel(batch) for batch in batches])
    require_labels(np.asarray(labels), num_classes)


def _one_hot(labels: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Labels of shape (example,) as float32 of shape (example, class)."""
    in_range = tf.reduce_all((labels >= 0) & (labels < num_classes))
    message = f"Expected labels to be in [0, {num_classes}). Received: labels"
    with tf.control_dependencies([tf.debugging.Assert(in_range, [message, labels])]):
        return tf.one_hot(labels, num_classes)


def _check(
    dataset: tf.data.Dataset, mixup: float, cutmix: float, shift: int, crop: Sequence[int] | None
) -> None:
    spec = getattr(dataset, "element_spec", None)
    shapes = [s.shape for s in spec] if isinstance(spec, tuple) else []
    if [shape.rank for shape in shapes] not in ([4, 1], [4, 1, 1]):
        raise ValueError(
            "Expected dataset to be batches of (images, labels) of shapes (example, height, width, "
            f"channel) and (example,). Received: {spec or dataset!r}"
        )
    if None in shapes[0][1:]:
        raise ValueError(
            "Expected images of a static size, to augment them: map "
            f"tf.ensure_shape(images, (None, height, width, channels)). Received: {shapes[0]}"
        )
    if len(shapes) == 3 and (mixup or cutmix):
        raise ValueError(
            f"mixup and cutmix cannot be used with example weights. Received: mixup={mixup}, "
            f"cutmix={cutmix}"
        )
    for name, alpha in {"mixup": mixup, "cutmix": cutmix}.items():
        if alpha < 0:
            raise ValueError(f"Expected {name} to be at least 0. Received: {name}={alpha}")
    size = tuple(shapes[0][1:3])
    if not 0 <= shift < min(size):
        raise ValueError(
            f"Expected shift to be from 0 to {min(size) - 1}, less than the smaller side of the "
            f"images. Received: shift={shift}"
        )
    fits = crop is None or (
        len(crop) == 2 and all(0 < n <= m for n, m in zip(crop, size, strict=True))
    )
    if not fits:
        raise ValueError(
            f"Expected crop to be (height, width) of at most {size}. Received: crop={crop}"
        )


def mixup_batch(
    images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, alpha: float, per_batch: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """MixUp: each image and its label averaged with another's, by weights of its own."""
    weight, partner = _weights_and_partners(images, alpha, seed, per_batch)
    share = weight[:, None, None, None]
    images = share * images + (1.0 - share) * tf.gather(images, partner)
    return images, _average(labels, weight, partner)


def cutmix_batch(
    images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, alpha: float, per_batch: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """CutMix: a rectangle of each image from another, labels weighted by the visible areas."""
    height, width = images.shape[1:3]
    weight, partner = _weights_and_partners(images, alpha, seed, per_batch)
    side = tf.sqrt(1.0 - weight)
    rows = _random_interval(side, height, seed + 3)
    inside = rows[:, :, None] & _random_interval(side, width, seed + 4)[:, None]
    images = tf.where(inside[..., None], tf.gather(images, partner), images)
    visible_share = 1.0 - tf.reduce_mean(tf.cast(inside, tf.float32), axis=(1, 2))
    return images, _average(labels, visible_share, partner)


def _weights_and_partners(
    images: tf.Tensor, alpha: float, seed: tf.Tensor, per_batch: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws of Beta(alpha, alpha), (example,) or (1,), and a permutation, (example,)."""
    count = tf.ones(1, tf.int32) if per_batch else tf.shape(images)[:1]
    # In float64, since both draws of a small alpha are often 0 in float32.
    first, second = (
        tf.random.stateless_gamma(count, seed + k, alpha, dtype=tf.float64) for k in range(2)
    )
    weight = tf.cast(tf.math.divide_no_nan(first, first + second), tf.float32)
    if per_batch:
        return weight, tf.range(tf.shape(images)[0])[::-1]
    return weight, tf.argsort(tf.random.stateless_uniform(count, seed + 2))


def _average(labels: tf.Tensor, weight: tf.Tensor, partner: tf.Tensor) -> tf.Tensor:
    return weight[:, None] * labels + (1.0 - weight[:, None]) * tf.gather(labels, partner)


def _random_interval(side: tf.Tensor, pixels: int, seed: tf.Tensor) -> tf.Tensor:
    """Which pixels, (example, pixel), lie in an interval of a share `side` around a random one."""
    length = tf.cast(side * pixels, tf.int32)
    center = tf.random.stateless_uniform(tf.shape(side), seed, 0, pixels, tf.int32)
    return _interval(pixels, center - length // 2, length)


def _interval(pixels: int | tf.Tensor, start: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """Which pixels, (example, pixel), are the `length` ones from `start` on."""
    place = tf.range(pixels) - start[:, None]
    return (place >= 0) & (place < length[:, None])


LEVELS = 8
MASKED, REPLACED = 0.8, 0.1


def mask_patches(
    dataset: tf.data.Dataset,
    grid: Any,
    *,
    preprocessing: Preprocessing | None = None,
    seed: int = 0,
    fixed: bool = False,
) -> ResumableDataset:
    """Batches for `vit_tf.MaskedPatchPrediction`: images, corrupted patches and their colours.

    In each image, half of the patches are drawn at random (`num_spatial // 2`). Of the drawn
    patches, 80 % are replaced by the mask embedding, 10 % are replaced by another patch of the
    image, and 10 % are unchanged (Dosovitskiy et al. 2020, appendix B.1.2, after BERT). The label
    of a drawn patch is its mean colour, with 3 bits per channel.

    Every draw depends on the seed, the epoch (how many iterators came before), the index of the
    batch, the index of the image in it, TensorFlow's global seed and, if there are several workers,
    the index of the worker. Apply augmentations before `mask_patches`.

    Args:
        dataset: batched `tf.data.Dataset` of (images, labels); the labels are ignored.
        grid: `TokenGrid` of the model, or a pair (rows, columns).
        preprocessing: the `Preprocessing` of the images; None means values in [-1, 1].
        seed: seed of the draws.
        fixed: whether every epoch draws the same patches, as is needed for validation.

    Returns:
        `tf.data.Dataset` of ((images, sources, places), colours). `sources` is int32 of shape
        (example, patch). It holds, for each patch, the index of the patch whose embedding the patch
        gets, or `num_spatial` for the mask embedding. `places` is int32 of shape (example,
        corrupted) and holds the indices of the drawn patches. `colours` is int32 of the same shape
        and holds the colours of these patches.

    Raises:
        ValueError: if the grid does not cover the images, or has only one patch.
    """
    shape = dataset.element_spec[0].shape
    if hasattr(grid, "rows"):
        rows, columns, stride = grid.rows, grid.columns, grid.stride
    else:
        form = "a vit_tf.TokenGrid or a pair of integers (rows, columns)"
        rows, columns = as_sizes("grid", grid, form, (2,))
        stride = shape[1] // rows
    covered = (rows * stride, columns * stride)
    if tuple(shape[1:3]) != covered or rows * columns < 2:
        raise ValueError(
            f"Expected images of {covered} pixels, which {grid} covers, with at least two patches. "
            f"Received: images of shape {tuple(shape)}"
        )
    preprocessing = preprocessing or Preprocessing.of(tuple(shape[1:]))

    def corrupt(batch: tuple, draw: tf.Tensor) -> tuple:
        images = batch[0]
        sources, places = draw_corruption(tf.shape(images)[0], rows * columns, draw)
        every = colours(images, rows, columns, preprocessing)
        return (images, sources, places), tf.gather(every, places, batch_dims=1)

    def make(dataset: tf.data.Dataset, draws: tf.data.Dataset) -> tf.data.Dataset:
        seeded = tf.data.Dataset.zip(dataset, draws)
        # A whole batch is in the making at each of the calls.
        return seeded.map(corrupt, num_parallel_calls=2).prefetch(tf.data.AUTOTUNE)

    return ResumableDataset.from_sources(make, dataset, seeds_of_batches(seed, fixed))


def draw_corruption(
    count: int | tf.Tensor, num_patches: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """`sources` and `places`, as in `mask_patches`, of so many images."""
    # A new seed for each draw, and none that an augmentation of the same batch may take.
    ranks, kinds, others = tf.unstack(tf.random.split(seed, 3))
    shape = (count, num_patches)
    order = tf.argsort(tf.random.stateless_uniform(shape, ranks), axis=1)
    corrupted = tf.argsort(order, axis=1) < num_patches // 2
    intact = tf.broadcast_to(tf.range(num_patches), shape)
    kind = tf.random.stateless_uniform(shape, kinds)
    step = tf.random.stateless_uniform(shape, others, 1, num_patches, tf.int32)
    changed = tf.where(kind < MASKED + REPLACED, (intact + step) % num_patches, intact)
    changed = tf.where(kind < MASKED, num_patches, changed)
    return tf.where(corrupted, changed, intact), order[:, : num_patches // 2]


def colours(images: tf.Tensor, rows: int, columns: int, preprocessing: Preprocessing) -> tf.Tensor:
    """The mean colour of every patch of a grid, in 3 bits per channel: int32 (example, patch).

    With `m_c` in [0, 1] the mean of channel `c`, of `C`, over the pixels of a patch, its colour is
    `sum_c 8 ** (C - 1 - c) min(floor(8 m_c), 7)`.
    """
    mean, std = (tf.constant(part, tf.float32) for part in (preprocessing.mean, preprocessing.std))
    channels, stride = images.shape[-1], images.shape[1] // rows
    x = tf.reshape(images, (-1, rows, stride, columns, stride, channels))
    x = tf.reshape(tf.reduce_mean(x, axis=(2, 4)), (-1, rows * columns, channels)) * std + mean
    levels = tf.clip_by_value(tf.cast(tf.floor(x * LEVELS), tf.int32), 0, LEVELS - 1)
    return tf.reduce_sum(levels * LEVELS ** tf.range(channels - 1, -1, -1), axis=-1)
