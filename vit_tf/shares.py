"""Which examples of each batch are whose, where several workers make it together."""

import dataclasses

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of every batch that one of several workers makes: the examples of its replicas.

    Of `n` examples replica `r` of `R` has `n // R`, and one more if `r < n % R`; those of a worker
    are neighbours, in the order of the workers.

    Attributes:
        worker: number of the worker, from 0.
        workers: how many there are.
        replicas: of each of them.
    """

    worker: int
    workers: int
    replicas: int = 1

    @property
    def in_all(self):
        """The number of replicas of all workers."""
        return self.workers * self.replicas

    def check(self, batch_size):
        """Raises a `ValueError` for batches that leave a replica without an example."""
        if batch_size < self.in_all:
            raise ValueError(
                f"Expected batch_size to be at least {self.in_all}, the number of replicas. "
                f"Received: batch_size={batch_size}"
            )

    def bounds(self, count):
        """Where the part of a batch of so many examples starts and ends; of ints or tensors."""
        least = min if isinstance(count, int) else tf.minimum
        each, more = count // self.in_all, count % self.in_all
        replicas = (self.worker * self.replicas, (self.worker + 1) * self.replicas)
        return [replica * each + least(replica, more) for replica in replicas]

    def size(self, count):
        """How many of so many examples of a batch are in this part."""
        first, last = self.bounds(count)
        return last - first

    def part(self, *batch):
        """This part of the tensors of a batch."""
        batch = batch if len(batch) > 1 else batch[0]
        first, last = self.bounds(tf.shape(tf.nest.flatten(batch)[0])[0])
        return tf.nest.map_structure(lambda x: x[first:last], batch)

    def of_replicas(self, *batch):
        """A data set of the parts of this worker's replicas of its part of a batch."""
        count = tf.shape(tf.nest.flatten(batch)[0])[0]

        def part(replica):
            return Share(replica, self.replicas).part(*batch)

        return tf.data.Dataset.range(self.replicas, output_type=count.dtype).map(part)

    def of_batches(self, indices, batch_size):
        """Those of indices, an array, that are in this part of some batch of them."""
        batches = np.split(indices, np.arange(batch_size, len(indices), batch_size))
        return np.concatenate([batch[slice(*self.bounds(len(batch)))] for batch in batches])

    def run(self, indices, batch_size):
        """As many neighbours as `of_batches` are, after those of the workers before."""
        full, rest = divmod(len(indices), batch_size)
        both = zip(self.bounds(batch_size), self.bounds(rest), strict=True)
        first, last = (full * of_full + of_rest for of_full, of_rest in both)
        return indices[first:last]
