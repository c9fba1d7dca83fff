"""Batches for several replicas, weighted so that these train and evaluate as one device does."""

import tensorflow as tf

from vit_tf.backend import on_jax
from vit_tf.batches import (
    batch_size,
    is_sharable,
    num_examples,
    remakable,
    remakable_batches,
    sharable,
)
from vit_tf.distribute.cluster import num_workers, part_of_worker, share_of_worker
from vit_tf.distribute.strategies import is_tpu
from vit_tf.shares import Share


def divide_batches(batches, strategy):
    """Batches that `fit` and `evaluate` of a model made under a strategy take as one device does.

    On several replicas, examples get three weights each: in the loss of a step, in means over
    examples, and whether the example is real. Batches are padded to a multiple of the number of
    replicas with examples that are not, on a TPU and in JAX all to one size. Workers of TensorFlow
    take parts of different sizes instead; workers of JAX get their own part. The losses and metrics
    of `Recipe.compile` read these weights.

    Args:
        batches: `tf.data.Dataset` of (images, labels), or of (images, labels, weights).
        strategy: `tf.distribute.Strategy` or `DataParallelStrategy`.

    Returns:
        `tf.data.Dataset` of (images, labels, weights), the last float32 of shape (example, 3); on
        one device, `batches`.

    Raises:
        ValueError: on a TPU, for batches of unknown size.
    """
    replicas = strategy.num_replicas_in_sync
    if on_jax():
        return pad_batches(batches, replicas) if replicas > 1 else batches
    if num_workers() > 1:
        return part_of_worker(_weigh_shares(batches, replicas))
    if is_tpu(strategy) and _batch_size(batches) is None:
        raise ValueError(
            "Expected batches of a known size, which a TPU needs: make them with "
            f"`batch(..., drop_remainder=True)`. Received: batches of {batches.element_spec}"
        )
    return pad_batches(batches, replicas) if replicas > 1 or is_tpu(strategy) else batches


def pad_batches(batches, replicas, size=None):
    """Batches padded to a multiple of the replicas; in JAX, this worker's part of each.

    Args:
        batches: data set, as for `divide_batches`.
        replicas: number of replicas.
        size: examples of a full batch, to whose multiple all are padded; None for what the data set
            stores, without which each is padded to its own.
    """
    size = size or _batch_size(batches)
    most = None if size is None else -(-size // replicas) * replicas
    share = share_of_worker()
    parted = share is not None and is_sharable(batches)

    def pad(batch, count):
        inputs, labels, *own = batch
        total = most or -(-count // replicas) * replicas
        own = tf.cast(own[0], tf.float32) if own else tf.ones(tf.shape(labels)[:1])
        # The loss is the mean over all of a batch, the padding included.
        scale = tf.cast(total, tf.float32) / tf.cast(count, tf.float32)
        weights = tf.stack([own * scale, own, tf.ones_like(own)], axis=1)
        whole = total // share.workers if parted else total

        def fill(tensor):
            rows = [[0, whole - tf.shape(tensor)[0]], *[[0, 0]] * (tensor.shape.rank - 1)]
            filled = tf.pad(tensor, rows)
            filled.set_shape((whole if most else None, *tensor.shape[1:]))
            if share is None or parted:
                return filled
            first, last = (total * n // share.workers for n in (share.worker, share.worker + 1))
            return filled[first:last]

        return tf.nest.map_structure(fill, (inputs, labels, weights))

    if not parted:
        return remakable(
            lambda batches: batches.map(lambda *batch: pad(batch, tf.shape(batch[1])[0])), batches
        )
    counts = remakable_batches(
        lambda numbers, full: numbers.batch(size, drop_remainder=full).map(tf.size),
        tf.data.Dataset.range(num_examples(batches)),
        size,
    )
    own = part_of_worker(batches)
    return remakable(lambda own, counts: tf.data.Dataset.zip(own, counts).map(pad), own, counts)


def _batch_size(batches):
    """Examples of a full batch, or None where the data set does not store it."""
    spec = batches.element_spec[1].shape
    if spec.rank and spec[0]:
        return spec[0]
    try:
        return batch_size(batches)
    except AttributeError:
        return None


def _weigh_shares(batches, replicas):
    """Batches with weights, so that workers with unlike parts train as one device does.

    Replica `r` minimises the mean over its `n_r` examples of a batch of `n`, and the means count
    equally: each example needs the weight `replicas * n_r / n`. TensorFlow gives every replica
    `ceil(n / replicas)` examples until none is left; of data of `vit_tf.data`, `Share` decides.
    """

    def weigh(*batch):
        count = tf.shape(batch[1])[0]
        most = -(-count // replicas)
        sizes = tf.clip_by_value(count - most * tf.range(replicas), 0, most)
        return _weighted(batch, _weights(sizes))

    if num_workers() > 1 and is_sharable(batches):
        # The size of the batch does not follow from the part of a worker.
        weights = _weights_by_share(num_examples(batches), batch_size(batches), replicas)
        return remakable(_joined, batches, weights)
    return remakable(lambda batches: batches.map(weigh), batches)


def _weights_by_share(examples, size, replicas):
    """Weights of batches of so many examples, in all, that workers divide."""

    def weigh(numbers):
        count = tf.size(numbers)
        of_replicas = [Share(replica, replicas).size(count) for replica in range(replicas)]
        return _weights(tf.stack(of_replicas))

    weights = remakable_batches(
        lambda numbers, full: numbers.batch(size, drop_remainder=full).map(weigh),
        tf.data.Dataset.range(examples),
        size,
    )
    return sharable(weights, lambda share: weights.map(share.part))


def _weights(sizes):
    """The weights of all examples of a batch, from the number of them on each replica."""
    weights = sizes * tf.size(sizes) / tf.reduce_sum(sizes)
    return tf.repeat(tf.cast(weights, tf.float32), sizes)


def _joined(batches, weights):
    both = tf.data.Dataset.zip(batches, weights)
    return both.map(_weighted)


def _weighted(batch, weights):
    """A batch of (images, labels) or (images, labels, weights) with the three weights."""
    inputs, labels, *own = batch
    weights = tf.ensure_shape(weights, labels.shape[:1])
    own = tf.cast(own[0], tf.float32) if own else tf.ones_like(weights)
    return inputs, labels, tf.stack([weights * own, own, tf.ones_like(own)], axis=1)
