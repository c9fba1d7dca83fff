"""Weights of examples, so that several replicas train as one device does."""

import tensorflow as tf

from vit_tf.batches import ResumableDataset, Shard, is_shardable
from vit_tf.distribute.cluster import num_workers


def weigh_shards(batches, replicas):
    """Batches with weights, so that replicas with unequal shards train as one device does.

    Replica `r` minimises the mean over its `n_r` examples of a batch of `n`, and the means count
    equally: each example needs the weight `replicas * n_r / n`. TensorFlow gives every replica
    `ceil(n / replicas)` examples until none is left, and workers take theirs as `Shard` defines.
    The logged loss of such a batch is weighted too, if only by about as much as the shards differ.

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

    if num_workers() > 1 and is_shardable(batches):
        # A worker cannot infer the size of a batch from its own shard alone.
        weights = _weights_by_shard(batches.num_examples, batches.batch_size, replicas)
        return ResumableDataset.from_sources(_zip_weights, batches, weights)
    return ResumableDataset.from_sources(lambda batches: batches.map(weigh), batches)


def _weights_by_shard(examples, size, replicas):
    """Weights of batches of so many examples, in all, of which workers take shards."""

    def weigh(numbers):
        count = tf.size(numbers)
        of_replicas = [Shard(replica, replicas).size(count) for replica in range(replicas)]
        return _weights(tf.stack(of_replicas))

    weights = ResumableDataset.from_examples(
        lambda numbers, full: numbers.batch(size, drop_remainder=full).map(weigh),
        tf.data.Dataset.range(examples),
        size,
    )
    return weights.with_shards(lambda shard: weights.map(shard.slice_batch))


def _weights(sizes):
    """The weights of all examples of a batch, from the number of them on each replica."""
    weights = sizes * tf.size(sizes) / tf.reduce_sum(sizes)
    return tf.repeat(tf.cast(weights, tf.float32), sizes)


def _zip_weights(batches, weights):
    both = tf.data.Dataset.zip(batches, weights)
    return both.map(_weighted)


def _weighted(batch, weights):
    """A batch of (images, labels) or (images, labels, weights) with weights more."""
    images, labels, *own = batch
    weights = tf.ensure_shape(weights, labels.shape[:1])
    return images, labels, weights * tf.cast(own[0], weights.dtype) if own else weights
