"""Augmentations of batched training data, and the labels that go with them."""

import contextlib
import functools

import keras
import numpy as np
import tensorflow as tf


def augment(
    dataset,
    num_classes,
    *,
    rand_augment=False,
    mixup=0.0,
    cutmix=0.0,
    flip=False,
    shift=0,
    crop=None,
    seed=0,
):
    """Augments batches of images in [-1, 1], and turns their labels into probabilities.

    In this order: shift, crop, flip, RandAugment (Cubuk et al. 2019), MixUp (Zhang et al. 2017) or
    CutMix (Yun et al. 2019); if both of the last are on, a coin is tossed for each batch. Crop,
    flip, MixUp and CutMix suit images of any other normalisation too.

    Equal seeds give equal results, and each epoch its own, for `shift`, `crop`, `flip` and the
    coin. MixUp and CutMix repeat too, with the same draws in every epoch (of images in another
    order). RandAugment does not repeat: KerasCV draws in parallel from unseeded generators.

    Args:
        dataset: batched `tf.data.Dataset` of (images, labels), as `load` returns it.
        num_classes: number of classes.
        rand_augment: True, a magnitude in [0, 1], or a dict of arguments of KerasCV's RandAugment.
            It works image by image and is slow.
        mixup: alpha of the Beta(alpha, alpha) that MixUp draws its weights from; 0 turns it off.
        cutmix: alpha of the Beta(alpha, alpha) that CutMix draws its areas from; 0 turns it off.
        flip: whether to mirror half of the images left to right.
        shift: largest shift in either direction, in pixels; what moves in is black.
        crop: (height, width) to cut out of each image at a random place, in pixels; None for all.
        seed: seed of the random numbers.

    Returns:
        `tf.data.Dataset` of (images, labels): float32 in [-1, 1], of the same shape unless
        cropped, and float32 of shape (example, class) whose rows sum to 1.

    Raises:
        ValueError: for arguments out of range, or data that is not (images, labels) in batches.
        tf.errors.InvalidArgumentError: during iteration, for labels outside [0, num_classes).
    """
    _check(dataset, mixup, cutmix, shift, crop)

    def one_by_one(batch, draw):
        images, labels = batch
        images = random_shift(images, shift, draw) if shift else images
        images = random_crop(images, crop, draw) if crop else images
        images = random_flip(images, draw) if flip else images
        return images, _one_hot(labels, num_classes)

    parallel = {"num_parallel_calls": tf.data.AUTOTUNE}
    dataset = tf.data.Dataset.zip(dataset, _draws(seed)).map(one_by_one, **parallel)
    if rand_augment is not False and rand_augment is not None:
        dataset = dataset.map(_rand_augment(rand_augment, seed), **parallel)
    if mixup or cutmix:
        mix = functools.partial(_mix, layers=_mixers(mixup, cutmix, seed), seed=seed)
        dataset = tf.data.Dataset.zip(dataset, _draws(seed + 1)).map(mix)
    options = tf.data.Options()
    # MixUp and CutMix hold the state of their random numbers: one batch after the other.
    options.experimental_optimization.map_parallelization = False
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)


def random_shift(images, pixels, seed):
    """Moves each image by up to `pixels` up or down and left or right; what moves in is black.

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


def random_crop(images, size, seed):
    """Cuts (height, width) pixels out of each image at a random place, each equally likely.

    Args:
        images: tensor of shape (example, height, width, channel).
        size: (height, width) in pixels.
        seed: int tensor of shape (2,).
    """
    count = tf.shape(images)[:1]
    places = [whole - part + 1 for whole, part in zip(images.shape[1:3], size, strict=True)]
    # Seeds that neither the shift nor the flip of the same images takes.
    top, left = (
        tf.random.stateless_uniform(count, seed + 2 + axis, 0, places[axis], tf.int32)
        for axis in range(2)
    )
    return _window(images, top, left, size)


def _window(images, top, left, size):
    """(height, width) pixels of each image, from row `top` and column `left` of each on."""
    rows = top[:, None] + tf.range(size[0])
    columns = left[:, None] + tf.range(size[1])
    cut = tf.gather(images, rows, axis=1, batch_dims=1)
    return tf.gather(cut, columns, axis=2, batch_dims=1)


def random_flip(images, seed):
    """Mirrors half of the images, of shape (example, height, width, channel), left to right."""
    columns = tf.range(images.shape[2])
    coins = tf.random.stateless_uniform((tf.shape(images)[0], 1), seed + 1)
    order = tf.where(coins < 0.5, columns[::-1], columns)
    return tf.gather(images, order, axis=2, batch_dims=1)


def check_labels(labels, num_classes):
    """Checks that labels lie in [0, num_classes).

    Args:
        labels: int array of shape (example,), or batched `tf.data.Dataset` of (images, labels).
        num_classes: number of classes.

    Raises:
        ValueError: with the smallest and the largest label found.
    """
    if isinstance(labels, tf.data.Dataset):
        batches = labels.map(lambda images, labels: labels).as_numpy_iterator()
        labels = np.concatenate([np.ravel(batch) for batch in batches])
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"Expected labels to be in [0, {num_classes}), with num_classes={num_classes}. "
            f"Received: labels from {labels.min()} to {labels.max()}"
        )


def _draws(seed):
    """Endless seeds of shape (2,), others in each epoch, the same for the same seed."""
    numbers = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
    return numbers.batch(2, drop_remainder=True)


def _one_hot(labels, num_classes):
    """Labels of shape (example,) as float32 of shape (example, class)."""
    known = tf.reduce_all((labels >= 0) & (labels < num_classes))
    message = f"Expected labels to be in [0, {num_classes}). Received: labels"
    with tf.control_dependencies([tf.debugging.Assert(known, [message, labels])]):
        return tf.one_hot(labels, num_classes)


@contextlib.contextmanager
def _float32_layers():
    """Layers made herein compute in float32: RandAugment's own layers take no dtype."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def _rand_augment(settings, seed):
    """RandAugment as a function of (images, labels)."""
    import keras_cv

    if isinstance(settings, dict):
        settings = dict(settings)
    else:
        settings = {} if settings is True else {"magnitude": settings}
    with _float32_layers():
        layer = keras_cv.layers.RandAugment(value_range=(0, 255), seed=seed, **settings)

    def apply(images, labels):
        result = layer({"images": (images + 1.0) * 127.5, "labels": labels})
        images = tf.ensure_shape(result["images"], images.shape) / 127.5 - 1.0
        return tf.clip_by_value(images, -1.0, 1.0), labels

    return apply


def _mixers(mixup, cutmix, seed):
    """The layers that are on, as functions of (images, labels)."""
    import keras_cv

    with _float32_layers():
        blend = keras_cv.layers.MixUp(alpha=mixup, seed=seed) if mixup else None
        cut = keras_cv.layers.CutMix(alpha=cutmix, seed=seed) if cutmix else None
    mixers = []
    if blend:
        mixers.append(functools.partial(_blend, layer=blend))
    if cut:
        mixers.append(functools.partial(_cut, layer=cut))
    return mixers


def _mix(batch, draw, layers, seed):
    """One of the layers, at random, applied to a batch of (images, labels)."""
    # Their Beta draws take no seed of their own but that of the graph they are traced into.
    tf.compat.v1.set_random_seed(seed)
    coin = tf.random.stateless_uniform((), draw, 0, len(layers), tf.int32)
    return tf.switch_case(coin, [functools.partial(layer, *batch) for layer in layers])


def _blend(images, labels, layer):
    """MixUp of (images, labels)."""
    result = layer({"images": images, "labels": labels})
    return tf.ensure_shape(result["images"], images.shape), result["labels"]


def _cut(images, labels, layer):
    """CutMix of (images, labels), the labels weighted by the area that each image covers.

    KerasCV weights them by the area of the rectangle even where it reaches over the border of the
    image. A channel that holds the number of the example tells what was in truth pasted.
    """
    own = tf.range(tf.shape(images)[0], dtype=tf.float32)[:, None, None, None]
    numbered = tf.concat([images, tf.zeros_like(images[..., :1]) + own], axis=-1)
    result = layer({"images": numbered, "labels": labels})["images"]
    images, numbers = tf.ensure_shape(result[..., :-1], images.shape), result[..., -1:]
    pasted = numbers != own
    share = tf.reduce_mean(tf.cast(pasted, tf.float32), axis=(1, 2))
    other = tf.reduce_max(tf.where(pasted, numbers, 0.0), axis=(1, 2, 3))
    partners = tf.gather(labels, tf.cast(other, tf.int32))
    return images, (1.0 - share) * labels + share * partners


def _check(dataset, mixup, cutmix, shift, crop):
    spec = getattr(dataset, "element_spec", None)
    if not isinstance(spec, tuple) or len(spec) != 2 or [s.shape.rank for s in spec] != [4, 1]:
        raise ValueError(
            "Expected dataset to be batches of (images, labels) of shapes (example, height, width, "
            f"channel) and (example,). Received: {spec or dataset!r}"
        )
    for name, alpha in {"mixup": mixup, "cutmix": cutmix}.items():
        if alpha < 0:
            raise ValueError(f"Expected {name} to be at least 0. Received: {name}={alpha}")
    if not 0 <= shift < min(spec[0].shape[1:3]):
        raise ValueError(
            f"Expected shift to be at least 0 and smaller than the images. Received: shift={shift}"
        )
    size = tuple(spec[0].shape[1:3])
    fits = crop is None or (
        len(crop) == 2 and all(0 < n <= m for n, m in zip(crop, size, strict=True))
    )
    if not fits:
        raise ValueError(
            f"Expected crop to be (height, width) of at most {size}. Received: crop={crop}"
        )
