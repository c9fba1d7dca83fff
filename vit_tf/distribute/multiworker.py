"""Lets Keras 3 train on several machines, which Keras 3.15 by itself cannot.

Under `tf.distribute.MultiWorkerMirroredStrategy` stock Keras fails in two functions of its
`keras/src/backend/tensorflow/trainer.py` (https://github.com/keras-team/keras/issues/20585):
`_maybe_symbolic_build` takes a batch that lies on the replicas for a tensor, and
`reduce_per_replica` averages scalars over an axis that they do not have. `adapt_keras` puts others
in their place; both leave every other strategy to Keras. `test_multiworker.py` fails when
stock Keras needs this no more: then remove this file and its one call.
"""

import functools
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer

from vit_tf.data.batches import Shard, divided_by_batch, is_shard, is_shardable


def adapt_keras() -> None:
    """Make `fit`, `evaluate` and `predict` of every Keras model work on several workers."""
    trainer.reduce_per_replica = reduce_per_replica
    trainer.TensorFlowTrainer._maybe_symbolic_build = build_from_spec
    trainer.TFEpochIterator.__init__ = iterate_over_shards


def _has_workers(strategy: Any) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


@functools.wraps(trainer.reduce_per_replica)
def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
    """Keras' function, whose mean is over replicas, as under all other strategies."""
    if not _has_workers(strategy) or reduction not in ("auto", "mean"):
        return reduce_per_replica.__wrapped__(values, strategy, reduction)
    return tf.nest.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), values)


@functools.wraps(trainer.TensorFlowTrainer._maybe_symbolic_build)
def build_from_spec(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
    """`_maybe_symbolic_build` that reads the shapes of batches, not a batch."""
    if iterator is not None and _has_workers(self.distribute_strategy):
        if self.steps_per_execution != 1:
            raise ValueError(
                "Expected steps_per_execution to be 1 on several workers, where TensorFlow "
                f"fails with more. Received: steps_per_execution={self.steps_per_execution}"
            )
        dataset = iterator._distributed_dataset
        iterator, data_batch = None, tf.nest.map_structure(_of_one, dataset.element_spec)
    build_from_spec.__wrapped__(self, iterator, data_batch)


def _of_one(spec: Any) -> tf.TensorSpec | None:
    """The `TensorSpec` of one replica's part; None for data that are not there."""
    spec = getattr(spec, "_value_specs", (spec,))[0]
    return None if isinstance(spec, tf.OptionalSpec) else spec


@functools.wraps(trainer.TFEpochIterator.__init__)
def iterate_over_shards(
    self: Any, distribute_strategy: Any = None, *args: Any, x: Any = None, **kwargs: Any
) -> None:
    """Keras' iterator, whose workers take shards of each batch, before decoding if they can."""

    def make_shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """A worker's batches, one for each of its replicas."""
        workers = context.num_input_pipelines
        replicas = context.num_replicas_in_sync // workers
        shard = Shard(context.input_pipeline_id, workers, replicas)
        batches = x if is_shard(x) else x.shard_batches(shard)
        return batches if replicas == 1 else batches.flat_map(shard.split_replicas)

    distributed = x
    if _has_workers(distribute_strategy) and isinstance(x, tf.data.Dataset):
        if is_shardable(x) or is_shard(x):
            distributed = distribute_strategy.distribute_datasets_from_function(make_shard)
        else:
            distributed = divided_by_batch(x)
    iterate_over_shards.__wrapped__(self, distribute_strategy, *args, x=distributed, **kwargs)
