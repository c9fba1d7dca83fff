"""Weights of examples, so that several replicas train as one device does."""

import tensorflow as tf

from vit_tf.batches import (
    batch_size,
    is_sharable,
    num_examples,
    remakable,
    remakable_batches,
    sharable,
)
from vit_tf.distribute.cluster import num_workers
from vit_tf.shares import Share


def weigh_shares(batches, replicas):
    """Batches with weights, so that replicas with unlike shares train as one device does.

    Replica `r` minimises the mean over its `n_r` examples of a batch of `n`, and the means count
    equally: each example needs the weight `replicas * n_r / n`. TensorFlow gives every replica
    `ceil(n / replicas)` examples until none is left, and workers divide theirs as `Share` does.
    The logged loss of such a batch is weighted too, if only by about as much as the shares differ.

    Args:
        batches: `tf.data.Dataset` of (images, labels), or of (images, labels, weights), whose
            weights are multiplied.
        replicas: their number in all.

    Returns:
        `tf.data.Dataset` of (images, labels, weights), the last float32 of shape (example,).
    """

    def weigh(images, labels, *weights):
        count = tf.shape(labels)[0]
        most = -(-count // replicas)
        sizes = tf.clip_by_value(count - most * tf.range(replicas), 0, most)
        return _weighted((images, labels, *weights), _weights(sizes))

    if num_workers() > 1 and is_sharable(batches):
        # A worker cannot infer the size of a batch from its own part.
        weights = _weights_by_share(num_examples(batches), batch_size(batches), replicas)
        return remakable(_joined, batches, weights)
    return remakable(lambda batches: batches.map(weigh), batches)


def _weights_by_share(examples, size, replicas):
    """Weights of batches of so many examples, in all, that workers share out."""

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
    """A batch of (images, labels) or (images, labels, weights) with weights more."""
    images, labels, *own = batch
    weights = tf.ensure_shape(weights, labels.shape[:1])
    return images, labels, weights * tf.cast(own[0], weights.dtype) if own else weights
