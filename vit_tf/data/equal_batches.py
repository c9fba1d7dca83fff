"""The rule by which images that are not batches yet are cut into the batches of a measurement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf.data.batches import Shard, without_autotune
from vit_tf.data.preprocessing import require_finite_images

BATCH_SIZE = 128
SEED = 0


@dataclass(frozen=True)
class BatchRule:
    """How examples of a folder, a list or an array become batches: in random order, of equal size.

    Statistics over batches, such as minibatch CKA (Nguyen et al. 2020), require batches that are
    drawn at random. A folder that is read class by class would give batches of one or two classes.
    A small last batch would count as much as a full one, so 133 examples become batches of 67 and
    66, not of 128 and 5. The order depends on the seed and the number of examples alone.

    Attributes:
        batch_size: largest number of examples in a batch, or a function from the number of all
            examples to it.
        keep_order: whether examples keep their order, for results with a row for each of them.
        seed: seed of the random order.
    """

    batch_size: int | Callable[[int], int] = BATCH_SIZE
    keep_order: bool = False
    seed: int = SEED

    def order(self, count: int) -> np.ndarray:
        """The positions of so many examples in the order in which they are read: (example,)."""
        if self.keep_order:
            return np.arange(count)
        return np.random.default_rng(self.seed).permutation(count)

    def sizes(self, count: int) -> list[int]:
        """The sizes of the fewest batches of so many examples; they differ by at most one."""
        most = self.batch_size(count) if callable(self.batch_size) else self.batch_size
        number = -(-count // most)
        return [count // number + (batch < count % number) for batch in range(number)]


RANDOM = BatchRule()
IN_ORDER = BatchRule(keep_order=True)


def batch_arrays(arrays: Any, rule: BatchRule = RANDOM) -> tf.data.Dataset:
    """Batches, by a rule, of an array or a tuple of arrays with one row for each example.

    A data set is returned as it is. Rows are gathered when their batch is read, so that arrays are
    not copied as a whole.

    Raises:
        ValueError: if the arrays differ in their numbers of rows, or images are not finite.
    """
    if isinstance(arrays, tf.data.Dataset):
        return arrays
    leaves = arrays if isinstance(arrays, tuple) else (arrays,)
    counts = [leaf.shape[0] for leaf in leaves]
    if len(set(counts)) > 1:
        raise ValueError(
            "Expected arrays of equally many examples, such as images and their labels. "
            f"Received: arrays of {', '.join(map(str, counts))} examples"
        )
    # The position of an image in the data is known before they are put in another order.
    if not rule.keep_order and len(leaves[0].shape) > 2:
        require_finite_images(leaves[0])
    with tf.device("CPU"):
        tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)

    def gather_rows(positions: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda rows: tf.gather(rows, positions), tensors)

    positions = tf.data.Dataset.from_tensor_slices(rule.order(counts[0]))
    batches = cut_examples(positions, rule.sizes(counts[0]))
    return without_autotune(batches.map(gather_rows))


def cut_examples(examples: tf.data.Dataset, sizes: Sequence[int]) -> tf.data.Dataset:
    """Batches of these sizes, of which the largest come first, from a data set of examples."""
    largest = max(sizes, default=1)
    # A batch size that is known makes a graph of static shapes, which runs faster.
    is_equal = set(sizes) <= {largest}
    batches = examples.batch(largest, drop_remainder=is_equal)
    if not is_equal:
        batches = batches.rebatch(sizes)
    return batches.apply(tf.data.experimental.assert_cardinality(len(sizes)))


def split_batches(batches: tf.data.Dataset, most: int, least: int = 1) -> tf.data.Dataset:
    """Each batch as equal parts of at most `most` examples, or of more where a part needs `least`.

    A batch of fewer than `least` examples stays as it is.
    """
    sizes = {spec.shape[0] for spec in tf.nest.flatten(batches.element_spec)}
    if None not in sizes and max(sizes) <= most:
        return batches

    def split(*batch: Any) -> tf.data.Dataset:
        count = tf.shape(tf.nest.flatten(batch)[0])[0]
        parts = tf.maximum(tf.minimum(-(-count // most), count // least), 1)

        def cut_part(index: tf.Tensor) -> Any:
            return Shard(index, parts).slice_batch(*batch)

        return tf.data.Dataset.range(tf.cast(parts, tf.int64), output_type=tf.int32).map(cut_part)

    return batches.flat_map(split)
