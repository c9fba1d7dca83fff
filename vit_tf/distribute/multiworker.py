"""Lets Keras 3 train on several machines, which Keras 3.15 by itself cannot.

Under `tf.distribute.MultiWorkerMirroredStrategy` stock Keras fails in two functions of its
`keras/src/backend/tensorflow/trainer.py` (https://github.com/keras-team/keras/issues/20585):
`_maybe_symbolic_build` takes a batch that lies on the replicas for a tensor, and
`reduce_per_replica` averages scalars over an axis that they do not have. `adapt_keras` puts others
in their place; both leave every other strategy to Keras. `test_multiworker.py` fails when
stock Keras needs this no more: then remove this file and its one call.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer

from vit_tf.data.batches import Shard, divided_by_batch, is_shard, is_shardable


def adapt_keras() -> None:
    """Make `fit`, `evaluate` and `predict` of every Keras model work on several workers."""
    if hasattr(trainer.reduce_per_replica, "__wrapped__"):
        return
    trainer.reduce_per_replica = _reducing_scalars(trainer.reduce_per_replica)
    cls = trainer.TensorFlowTrainer
    cls._maybe_symbolic_build = _building_from_specs(cls._maybe_symbolic_build)
    trainer.TFEpochIterator.__init__ = _with_shards(trainer.TFEpochIterator.__init__)


def _has_workers(strategy: Any) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def _reducing_scalars(stock: Callable) -> Callable:
    """`reduce_per_replica` whose mean is over replicas, as under all other strategies."""

    @functools.wraps(stock)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if not _has_workers(strategy) or reduction not in ("auto", "mean"):
            return stock(values, strategy, reduction)
        return tf.nest.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), values)

    return reduce_per_replica


def _building_from_specs(stock: Callable) -> Callable:
    """`_maybe_symbolic_build` that reads the shapes of batches, not a batch."""

    @functools.wraps(stock)
    def _maybe_symbolic_build(model: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None and _has_workers(model.distribute_strategy):
            if model.steps_per_execution != 1:
                raise ValueError(
                    "Expected steps_per_execution to be 1 on several workers, where TensorFlow "
                    f"fails with more. Received: steps_per_execution={model.steps_per_execution}"
                )
            dataset = iterator._distributed_dataset
            iterator, data_batch = None, tf.nest.map_structure(_of_one, dataset.element_spec)
        stock(model, iterator, data_batch)

    return _maybe_symbolic_build


def _of_one(spec: Any) -> tf.TensorSpec | None:
    """The `TensorSpec` of one replica's part; None for data that are not there."""
    spec = getattr(spec, "_value_specs", (spec,))[0]
    return None if isinstance(spec, tf.OptionalSpec) else spec


def _with_shards(stock: Callable) -> Callable:
    """`TFEpochIterator` whose workers take shards of each batch, before decoding where they can."""

    @functools.wraps(stock)
    def __init__(
        self: Any, distribute_strategy: Any = None, *args: Any, x: Any = None, **kwargs: Any
    ) -> None:
        if _has_workers(distribute_strategy) and isinstance(x, tf.data.Dataset):
            if is_shardable(x) or is_shard(x):
                x = distribute_strategy.distribute_datasets_from_function(_shard_maker(x))
            else:
                x = divided_by_batch(x)
        stock(self, distribute_strategy, *args, x=x, **kwargs)

    return __init__


def _shard_maker(dataset: Any) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """The function of an `InputContext` that returns a worker's batches, one for each replica."""

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        workers = context.num_input_pipelines
        replicas = context.num_replicas_in_sync // workers
        shard = Shard(context.input_pipeline_id, workers, replicas)
        batches = dataset if is_shard(dataset) else dataset.shard_batches(shard)
        return batches if replicas == 1 else batches.flat_map(shard.split_replicas)

    return make
