"""Several workers in one analysis: which batches belong to this one, and totals of all."""

import numpy as np
import tensorflow as tf


def this_worker(strategy):
    """The place of this process among those of a strategy, and their number: (0, 1) of one."""
    resolver = strategy.cluster_resolver
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or resolver is None:
        return 0, 1
    tasks = resolver.cluster_spec().as_dict()
    places = [(kind, i) for kind in sorted(tasks) for i in range(len(tasks[kind]))]
    return places.index((resolver.task_type, resolver.task_id)), len(places)


def sum_of_workers(strategy, sums):
    """The sum of a structure of float64 arrays of like shapes over all workers."""
    return tf.nest.map_structure(
        lambda x: np.asarray(strategy.reduce("SUM", tf.constant(x), axis=None)), sums
    )


def rows_of_workers(strategy, rows, numbers):
    """The rows of all workers, in the order of their batches.

    Args:
        strategy: the multi-worker strategy.
        rows: list of structures of arrays, one for each batch of this worker; the first axis, of
            rows, may differ. At least one.
        numbers: the number of each of these batches in the data set; -1 for one to be left out.

    Returns:
        list of structures of arrays, one for each batch of the data set.
    """
    numbers = np.asarray(strategy.gather(tf.constant(numbers, tf.int64), axis=0))
    order = [place for place in np.argsort(numbers, kind="stable") if numbers[place] >= 0]

    def gathered(parts):
        """The rows of all batches, one array each, from those of this worker."""
        lengths = tf.constant([len(part) for part in parts], tf.int64)
        ends = np.cumsum(np.asarray(strategy.gather(lengths, axis=0)))
        whole = np.asarray(strategy.gather(tf.constant(np.concatenate(parts)), axis=0))
        pieces = np.split(whole, ends[:-1])
        return [pieces[place] for place in order]

    leaves = [gathered(parts) for parts in zip(*map(tf.nest.flatten, rows), strict=True)]
    return [
        tf.nest.pack_sequence_as(rows[0], [leaf[number] for leaf in leaves])
        for number in range(len(order))
    ]


def of_replicas(strategy, result):
    """Yields the structure of arrays of each replica of this worker."""
    leaves = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(result)]
    for values in zip(*leaves, strict=True):
        yield tf.nest.pack_sequence_as(result, [np.asarray(value) for value in values])


def as_tensors(step):
    """The step with numbers as tensors: a strategy keeps a copy per replica of tensors only."""
    return lambda *batch: tf.nest.map_structure(tf.convert_to_tensor, step(*batch))


def spread(strategy, group):
    """One batch for each replica: a tuple of per-replica values from a list of tuples."""
    leaves = zip(*map(tf.nest.flatten, group), strict=True)
    values = [
        strategy.experimental_distribute_values_from_function(
            lambda context, leaf=leaf: leaf[context.replica_id_in_sync_group]
        )
        for leaf in leaves
    ]
    return tf.nest.pack_sequence_as(group[0], values)
