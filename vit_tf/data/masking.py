"""Masked patch prediction as data: which patches are corrupted, how, and what colour they had."""

import tensorflow as tf

from vit_tf.batches import ResumableDataset, seeds_of_batches
from vit_tf.preprocessing import Preprocessing
from vit_tf.tokens import as_grid

LEVELS = 8
MASKED, REPLACED = 0.8, 0.1


def mask_patches(dataset, grid, *, preprocessing=None, seed=0, fixed=False):
    """Batches for `vit_tf.MaskedPatchPrediction`: images, corrupted patches and their colours.

    In each image half of the patches are drawn, `num_spatial // 2`. Of these, 80 % are replaced by
    the mask embedding, 10 % by another patch of the image, and 10 % are unchanged (Dosovitskiy et
    al. 2020, appendix B.1.2, after BERT). The label of each drawn patch is its mean colour in 3
    bits per channel, `colours`.

    Every draw is a function of the seed, of the epoch (the number of the iterator) and of the index
    of the batch and of the image in it; TensorFlow's global seed counts too, and the number of the
    worker where there are several. Apply augmentations before.

    Args:
        dataset: batched `tf.data.Dataset` of (images, labels); the labels are left out.
        grid: `TokenGrid` of the model, or a pair (rows, columns).
        preprocessing: the `Preprocessing` of the images; None means values in [-1, 1].
        seed: seed of the draws.
        fixed: whether every epoch draws the same patches, as is needed for validation.

    Returns:
        `tf.data.Dataset` of ((images, sources, places), colours): `sources`, int32 of shape
        (example, patch), is the number of the patch whose embedding each patch gets, or
        `num_spatial` for the mask; `places`, int32 of shape (example, corrupted), are the numbers
        of the patches drawn and `colours`, int32 of the same shape, their colours.

    Raises:
        ValueError: for images that the grid does not cover, or a grid of one patch.
    """
    shape = dataset.element_spec[0].shape
    grid = as_grid(grid, image_shape=shape[1:])
    covered = (grid.rows * grid.stride, grid.columns * grid.stride)
    if tuple(shape[1:3]) != covered or grid.num_spatial < 2:
        raise ValueError(
            f"Expected images of {covered} pixels, the size of {grid}, with at least two patches. "
            f"Received: images of shape {tuple(shape)}"
        )
    preprocessing = preprocessing or Preprocessing.of(tuple(shape[1:]))

    def corrupt(batch, draw):
        images = batch[0]
        sources, places = draw_corruption(tf.shape(images)[0], grid.num_spatial, draw)
        every = colours(images, grid, preprocessing)
        return (images, sources, places), tf.gather(every, places, batch_dims=1)

    def make(dataset, draws):
        seeded = tf.data.Dataset.zip(dataset, draws)
        # A whole batch is in the making at each of the calls.
        return seeded.map(corrupt, num_parallel_calls=2).prefetch(tf.data.AUTOTUNE)

    return ResumableDataset.from_sources(make, dataset, seeds_of_batches(seed, fixed))


def draw_corruption(count, num_patches, seed):
    """`sources` and `places`, as in `mask_patches`, of so many images.

    Args:
        count: number of images.
        num_patches: number of patches of an image.
        seed: int tensor of shape (2,).
    """
    # A new seed for each draw, and none that an augmentation of the same batch may take.
    ranks, kinds, others = tf.unstack(tf.random.split(seed, 3))
    shape = (count, num_patches)
    order = tf.argsort(tf.random.stateless_uniform(shape, ranks), axis=1)
    corrupted = tf.argsort(order, axis=1) < num_patches // 2
    own = tf.broadcast_to(tf.range(num_patches), shape)
    kind = tf.random.stateless_uniform(shape, kinds)
    step = tf.random.stateless_uniform(shape, others, 1, num_patches, tf.int32)
    changed = tf.where(kind < MASKED + REPLACED, (own + step) % num_patches, own)
    changed = tf.where(kind < MASKED, num_patches, changed)
    return tf.where(corrupted, changed, own), order[:, : num_patches // 2]


def colours(images, grid, preprocessing):
    """The mean colour of every patch, in 3 bits per channel.

    With `m_c` in [0, 1] the mean of channel `c`, of `C`, over the pixels of a patch, its colour is
    `sum_c 8 ** (C - 1 - c) min(floor(8 m_c), 7)`.

    Args:
        images: float tensor of shape (example, height, width, channel).
        grid: `TokenGrid` of the patches.
        preprocessing: the `Preprocessing` of the images.

    Returns:
        int32 tensor of shape (example, patch) in [0, 8 ** channel).
    """
    mean, std = (tf.constant(part, tf.float32) for part in (preprocessing.mean, preprocessing.std))
    channels, stride = images.shape[-1], grid.stride
    x = tf.reshape(images, (-1, grid.rows, stride, grid.columns, stride, channels))
    x = tf.reshape(tf.reduce_mean(x, axis=(2, 4)), (-1, grid.num_spatial, channels)) * std + mean
    levels = tf.clip_by_value(tf.cast(tf.floor(x * LEVELS), tf.int32), 0, LEVELS - 1)
    return tf.reduce_sum(levels * LEVELS ** tf.range(channels - 1, -1, -1), axis=-1)
