"""Where a model trains (a device, several, several machines, a TPU), and its batches there."""

import functools
import os

import tensorflow as tf

from vit_tf.backend import on_jax, require_tensorflow_or_jax
from vit_tf.batches import ResumableDataset, Shard, is_shardable
from vit_tf.distribute import cluster
from vit_tf.distribute.cluster import current_shard, num_workers, shard_of_worker
from vit_tf.names import lookup

# Steps that a TPU takes between two answers to its host, at most.
TPU_STEPS = 50


def strategy(name="auto", workers=None, worker=None):
    """Returns a `tf.distribute.Strategy` by name; create and train the model in its `scope()`.

    Args:
        name: `"none"`, the current strategy, by default one device; `"mirrored"`, a copy of the
            model on each GPU, or on each logical CPU where there is no GPU; `"multiworker"`, on
            each GPU of several processes, which each run the same program and create the strategy
            before any other use of TensorFlow; `"tpu"`, on each core of the TPU of the environment
            variable TPU_NAME, by default a local one; `"auto"`, `"multiworker"` if VIT_TF_WORKERS
            or TF_CONFIG names several workers, else `"mirrored"` if there are several GPUs, else
            `"none"`. On JAX, the result is a `DataParallelStrategy`: `"none"` uses one device;
            `"mirrored"` and, with one process, `"auto"` use all devices of this process; `"tpu"`
            uses its TPU devices; `"multiworker"` uses the devices of all processes, and must be
            created before any other use of JAX.
        workers, worker: for `"multiworker"`, the addresses `"host:port"` of all processes and the
            index of this one among them; by default those that `cluster.find_cluster` finds.

    Raises:
        ValueError: for an unknown name, a cluster that is not configured, or a missing TPU.
    """
    if workers is not None or worker is not None:
        if name != "multiworker":
            raise ValueError(
                f"Expected workers and worker with strategy 'multiworker'. Received: {name!r}"
            )
        return cluster.make_strategy(workers, worker)
    make = lookup("strategy", name, STRATEGIES)
    if not on_jax():
        return make()
    require_tensorflow_or_jax("a strategy")
    if name == "multiworker" or (name == "auto" and cluster.has_several_workers()):
        return cluster.make_strategy()
    from vit_tf.distribute import jax_devices

    return jax_devices.make(name)


def strategy_of(model):
    """The strategy that a model was made under: of TensorFlow, or a `DataParallelStrategy`.

    Raises:
        ValueError: where Keras runs on JAX, for a model created in another scope than the current
            one.
    """
    if not on_jax():
        return model.distribute_strategy
    from vit_tf.distribute import jax_devices

    return jax_devices.strategy_of(model)


def steps_per_execution(strategy, steps, asked=None):
    """The largest divisor of `steps` up to `asked`, by default up to 50 on a TPU and 1 elsewhere.

    Keras runs this many steps per call; otherwise the last call would read past the end of repeated
    data.
    """
    asked = asked or (TPU_STEPS if is_tpu(strategy) else 1)
    return max(count for count in range(1, min(asked, steps) + 1) if steps % count == 0)


def is_tpu(strategy):
    """Whether a strategy trains on a TPU."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def _auto():
    if cluster.has_several_workers():
        return cluster.make_strategy()
    gpus = _devices("GPU")
    return _mirrored(gpus) if len(gpus) > 1 else tf.distribute.get_strategy()


def _devices(kind):
    return tuple(device.name for device in tf.config.list_logical_devices(kind))


@functools.cache
def _mirrored(devices):
    """Returns the process's only `MirroredStrategy`.

    The collectives of a second one would collide with it.
    """
    on_cpu = "CPU" in devices[0]
    reduction = tf.distribute.ReductionToOneDevice() if on_cpu else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)


@functools.cache
def _tpu():
    """Returns the process's only `TPUStrategy`; a second start would lose what is on the TPU."""
    name = os.environ.get("TPU_NAME", "local")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu=name)
    except (ValueError, RuntimeError, ImportError, OSError, tf.errors.OpError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"Expected a TPU; TPU_NAME names one that is not local. Received: TPU_NAME={name!r}, "
            f"{type(error).__name__}: {reason}"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


# How each strategy is made.
STRATEGIES = {
    "auto": _auto,
    "none": tf.distribute.get_strategy,
    "mirrored": lambda: _mirrored(_devices("GPU") or _devices("CPU")),
    "multiworker": cluster.make_strategy,
    "tpu": _tpu,
}


def divide_batches(batches, strategy):
    """Pads and weights batches so that several replicas compute the results of one device.

    Each example gets three weights: (1) its weight in the loss of a step, (2) its weight in means
    over examples, (3) 1 for an example and 0 for padding. The losses and metrics of
    `Recipe.compile` use these weights. Batches are padded to a multiple of the number of replicas,
    on a TPU and in JAX all to one size. TensorFlow workers take shards of different sizes instead;
    each JAX worker gets its own shard.

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
        return shard_of_worker(_weigh_shards(batches, replicas))
    if is_tpu(strategy) and _batch_size(batches) is None:
        raise ValueError(
            "Expected batches of a known size, which a TPU needs: make them with "
            f"`batch(..., drop_remainder=True)`. Received: batches of {batches.element_spec}"
        )
    return pad_batches(batches, replicas) if replicas > 1 or is_tpu(strategy) else batches


def pad_batches(batches, replicas, size=None):
    """Pads batches to a multiple of `replicas`, and to one size if the batch size is known.

    With several JAX workers, returns this worker's shard.
    """
    size = size or _batch_size(batches)
    most = None if size is None else -(-size // replicas) * replicas
    shard = current_shard()
    sharded = shard is not None and is_shardable(batches)

    def pad(batch, count):
        inputs, labels, *own = batch
        total = most or -(-count // replicas) * replicas
        own = tf.cast(own[0], tf.float32) if own else tf.ones(tf.shape(labels)[:1])
        # The loss is the mean over all of a batch, the padding included.
        scale = tf.cast(total, tf.float32) / tf.cast(count, tf.float32)
        weights = tf.stack([own * scale, own, tf.ones_like(own)], axis=1)
        padded_size = total // shard.num_shards if sharded else total

        def fill(tensor):
            rows = [[0, padded_size - tf.shape(tensor)[0]], *[[0, 0]] * (tensor.shape.rank - 1)]
            filled = tf.pad(tensor, rows)
            filled.set_shape((padded_size if most else None, *tensor.shape[1:]))
            if shard is None or sharded:
                return filled
            first, last = (total * n // shard.num_shards for n in (shard.index, shard.index + 1))
            return filled[first:last]

        return tf.nest.map_structure(fill, (inputs, labels, weights))

    if not sharded:
        return ResumableDataset.from_sources(
            lambda batches: batches.map(lambda *batch: pad(batch, tf.shape(batch[1])[0])), batches
        )
    counts = ResumableDataset.from_examples(
        lambda numbers, full: numbers.batch(size, drop_remainder=full).map(tf.size),
        tf.data.Dataset.range(batches.num_examples),
        size,
    )
    return ResumableDataset.from_sources(
        lambda own, counts: tf.data.Dataset.zip(own, counts).map(pad),
        shard_of_worker(batches),
        counts,
    )


def _batch_size(batches):
    """Examples of a full batch, or None where the data set does not store it."""
    spec = batches.element_spec[1].shape
    if spec.rank and spec[0]:
        return spec[0]
    return getattr(batches, "batch_size", None)


def _weigh_shards(batches, replicas):
    """Batches with weights, so that workers with unequal shards train as one device does.

    Replica `r` minimises the mean over its `n_r` examples of a batch of `n`, and the means count
    equally: each example needs the weight `replicas * n_r / n`.
    """

    def weigh(*batch):
        count = tf.shape(batch[1])[0]
        most = -(-count // replicas)
        sizes = tf.clip_by_value(count - most * tf.range(replicas), 0, most)
        return _weighted(batch, _weights(sizes))

    if is_shardable(batches):
        # A worker cannot infer the size of a batch from its own shard alone.
        weights = _weights_by_shard(batches.num_examples, batches.batch_size, replicas)
        return ResumableDataset.from_sources(
            lambda *both: tf.data.Dataset.zip(both).map(_weighted), batches, weights
        )
    return ResumableDataset.from_sources(lambda batches: batches.map(weigh), batches)


def _weights_by_shard(num_examples, batch_size, replicas):
    """Weights for batches of `batch_size` from `num_examples` examples.

    Each worker takes its shard of a batch.
    """

    def weigh(numbers):
        count = tf.size(numbers)
        of_replicas = [Shard(replica, replicas).size(count) for replica in range(replicas)]
        return _weights(tf.stack(of_replicas))

    weights = ResumableDataset.from_examples(
        lambda numbers, full: numbers.batch(batch_size, drop_remainder=full).map(weigh),
        tf.data.Dataset.range(num_examples),
        batch_size,
    )
    return weights.with_shards(lambda shard: weights.map(shard.slice_batch))


def _weights(sizes):
    """The weights of all examples of a batch, from the number of them on each replica."""
    weights = sizes * tf.size(sizes) / tf.reduce_sum(sizes)
    return tf.repeat(tf.cast(weights, tf.float32), sizes)


def _weighted(batch, weights):
    """A batch of (images, labels) or (images, labels, weights) with the three weights."""
    inputs, labels, *own = batch
    weights = tf.ensure_shape(weights, labels.shape[:1])
    own = tf.cast(own[0], tf.float32) if own else tf.ones_like(weights)
    return inputs, labels, tf.stack([weights * own, own, tf.ones_like(own)], axis=1)
