"""Batches: `ResumableDataset`, the `Shard` of a worker, and the `BatchRule` that makes them."""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from vit_tf.data.preprocessing import require_finite_images

# A number of examples, in Python or in the graph.
Count = TypeVar("Count", int, tf.Tensor)


@dataclasses.dataclass(frozen=True)
class Shard:
    """The examples of every batch that one of several workers makes: those of its replicas.

    Of `n` examples replica `r` of `R` has `n // R`, and one more if `r < n % R`; those of a worker
    are contiguous, in the order of the workers.
    """

    # Numbers, or tensors where a batch is cut in the graph.
    index: Any
    num_shards: Any
    replicas: int = 1

    @property
    def num_replicas(self) -> Any:
        """The number of replicas of all workers."""
        return self.num_shards * self.replicas

    def check(self, batch_size: int) -> None:
        """Raises a `ValueError` for batches that leave a replica without an example."""
        if batch_size < self.num_replicas:
            raise ValueError(
                f"Expected batch_size to be at least {self.num_replicas}, the number of replicas. "
                f"Received: batch_size={batch_size}"
            )

    def bounds(self, count: Count) -> list[Any]:
        """Start and end of the shard in a batch of so many examples; of ints or tensors."""
        least: Callable = min if isinstance(count, int) else tf.minimum
        fewest, more = count // self.num_replicas, count % self.num_replicas
        replicas = (self.index * self.replicas, (self.index + 1) * self.replicas)
        return [replica * fewest + least(replica, more) for replica in replicas]

    def size(self, count: Count) -> Count:
        """Number of examples of the shard in a batch of so many examples."""
        first, last = self.bounds(count)
        return last - first

    def slice_batch(self, *batch: Any) -> Any:
        """The shard of the tensors of a batch."""
        batch = batch if len(batch) != 1 else batch[0]
        first, last = self.bounds(tf.shape(tf.nest.flatten(batch)[0])[0])
        return tf.nest.map_structure(lambda x: x[first:last], batch)

    def split_replicas(self, *batch: Any) -> tf.data.Dataset:
        """A data set of the examples of each of this worker's replicas in its shard of a batch."""
        count = tf.shape(tf.nest.flatten(batch)[0])[0]
        replicas = tf.data.Dataset.range(self.replicas, output_type=count.dtype)
        return replicas.map(lambda replica: Shard(replica, self.replicas).slice_batch(*batch))

    def batch_indices(self, indices: np.ndarray, batch_size: int) -> np.ndarray:
        """The indices, of an array, that are in this shard of a batch of them."""
        batches = np.split(indices, np.arange(batch_size, len(indices), batch_size))
        return np.concatenate([batch[slice(*self.bounds(len(batch)))] for batch in batches])

    def contiguous_indices(self, indices: np.ndarray, batch_size: int) -> np.ndarray:
        """As many contiguous indices as `batch_indices` returns, after those of earlier shards."""
        full, rest = divmod(len(indices), batch_size)
        both = zip(self.bounds(batch_size), self.bounds(rest), strict=True)
        first, last = (full * in_full + in_rest for in_full, in_rest in both)
        return indices[first:last]


@dataclasses.dataclass(frozen=True)
class Selection:
    """Selects batches: skips the first `skip`, keeps full batches only, or a shard of each."""

    skip: int = 0
    full: bool = False
    shard: Shard | None = None


class ResumableDataset(tf.data.Dataset):
    """Batches that can be made again as a `Selection`: what is left out is not read or decoded."""

    # The passes over a selection and over the whole data set are counted together where shuffles
    # and random draws change with every pass.
    def __init__(
        self,
        build: Callable[[Selection], tf.data.Dataset],  # it is called with the default at once
        *,
        num_examples: int | None = None,  # of all batches
        batch_size: int | None = None,  # examples of a full batch
        shardable: bool = False,  # whether a worker can make its shard of each batch alone
        worker_shard: Shard | None = None,  # where these are the shard of one worker already
        identify_names: Callable[[], str] | None = None,  # a digest of the examples' names
    ):
        self._build = build
        self._input_dataset = build(Selection())
        self.num_examples, self.batch_size = num_examples, batch_size
        self.shardable, self.worker_shard = shardable, worker_shard
        self.identify_names = identify_names
        super().__init__(self._input_dataset._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._input_dataset]

    @property
    def element_spec(self) -> Any:
        return self._input_dataset.element_spec

    @property
    def facts(self) -> dict[str, Any]:
        """What is inherited by a data set that is made of this one."""
        names = ("num_examples", "batch_size", "shardable", "worker_shard", "identify_names")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_sources(
        cls, make: Callable[..., tf.data.Dataset], *sources: tf.data.Dataset
    ) -> "ResumableDataset":
        """`make(*sources)`, with an element for each of theirs and the facts of the first."""
        first, *others = sources
        facts = first.facts if isinstance(first, cls) else {}

        def build(selection: Selection) -> tf.data.Dataset:
            # Where the batches are a worker's shard already, what is drawn for them is that
            # worker's too.
            shard = facts.get("worker_shard") or selection.shard
            of_worker = dataclasses.replace(selection, shard=shard)
            return make(select(first, selection), *(select(other, of_worker) for other in others))

        return cls(build, **facts)

    @classmethod
    def from_examples(
        cls,
        make: Callable[[tf.data.Dataset, bool], tf.data.Dataset],
        examples: tf.data.Dataset,
        batch_size: int,
    ) -> "ResumableDataset":
        """`make(examples, full)`, batches of examples, `full` without a smaller last one."""

        def build(selection: Selection) -> tf.data.Dataset:
            return make(select(examples, Selection(batch_size * selection.skip)), selection.full)

        return cls(build, num_examples=int(examples.cardinality()), batch_size=batch_size)

    def with_shards(self, make: Callable[[Shard], tf.data.Dataset]) -> "ResumableDataset":
        """The same, of which a worker can make its shard alone, by a function of a `Shard`."""
        make_shard = functools.cache(make)

        def build(selection: Selection) -> tf.data.Dataset:
            if selection.shard is None:
                return self.select(selection)
            rest = dataclasses.replace(selection, shard=None)
            return select(make_shard(selection.shard), rest)

        return type(self)(build, **{**self.facts, "shardable": True})

    def select(self, selection: Selection) -> tf.data.Dataset:
        """The batches of a `Selection`."""
        return self if selection == Selection() else self._build(selection)

    def shard_batches(self, shard: Shard) -> "ResumableDataset":
        """The shard of every batch that one of several workers makes."""

        def build(selection: Selection) -> tf.data.Dataset:
            return self._build(dataclasses.replace(selection, shard=shard))

        return type(self)(build, worker_shard=shard)


def is_shard(dataset: tf.data.Dataset) -> bool:
    """Whether a data set is the shard of one worker, which is not to be shared out again."""
    return isinstance(dataset, ResumableDataset) and dataset.worker_shard is not None


def is_shardable(dataset: tf.data.Dataset) -> bool:
    """Whether each of several workers can make its own shard of a data set alone."""
    is_resumable = isinstance(dataset, ResumableDataset)
    return is_resumable and dataset.shardable and dataset.worker_shard is None


def as_shard(dataset: tf.data.Dataset, shard: Shard) -> ResumableDataset:
    """A data set as the shard of one worker."""
    return ResumableDataset(lambda selection: select(dataset, selection), worker_shard=shard)


def select(dataset: tf.data.Dataset, selection: Selection) -> tf.data.Dataset:
    """The batches of a `Selection` of any data set; other data sets are read and skipped."""
    if isinstance(dataset, ResumableDataset):
        return dataset.select(selection)
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if selection.full and not all(shape.rank and shape[0] for shape in shapes):
        raise ValueError(
            "Expected batches of a static size, which a TPU needs: make them with "
            f"`batch(..., drop_remainder=True)`. Received: batches of shapes {shapes}"
        )
    return dataset.skip(selection.skip) if selection.skip else dataset


def skip_batches(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """A data set without its first batches, which a `ResumableDataset` does not make."""
    return select(dataset, Selection(count))


def full_batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Drops a smaller last batch, so that all shapes are static, as a TPU requires.

    Raises:
        ValueError: if no batch is full, or if the data are not from `vit_tf.data` and their batches
            have no static size.
    """
    full = select(dataset, Selection(full=True))
    if full.cardinality() == 0:
        raise ValueError(
            "No batch is full, and a TPU leaves out smaller ones: choose a smaller "
            f"batch_size. Received: {int(dataset.cardinality())} smaller batches"
        )
    return full


def seeds_of_batches(seed: int | None, fixed: bool = False) -> ResumableDataset:
    """Endless seeds of shape (2,), equal for equal seeds, and different on each of the workers."""
    numbers = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=not fixed)
    seeds = numbers.batch(2, drop_remainder=True)

    def build(selection: Selection) -> tf.data.Dataset:
        rest = seeds.skip(selection.skip) if selection.skip else seeds
        if selection.shard is None or selection.shard.num_shards == 1:
            return rest
        index = selection.shard.index
        return rest.map(lambda pair: tf.random.experimental.stateless_fold_in(pair, index))

    return ResumableDataset(build)


def without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A data set that keeps its parallelism and its graph, which TensorFlow would change."""
    options = tf.data.Options()
    # The end of an iterator waits for the tuning thread, up to a minute in about every fifth case.
    options.autotune.enabled = False
    # Rewriting the graph takes .7 s in each pass over photographs, and finds nothing to fuse.
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


def divided_by_batch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A data set of which workers take shards of batches; TensorFlow would divide files."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def map_examples(function: Callable[..., Any], batch: Any, spec: Any) -> Any:
    """The results of a function for each example of a batch, on all cores, in the graph."""
    return tf.map_fn(
        lambda example: function(*example),
        batch,
        fn_output_signature=spec,
        parallel_iterations=os.cpu_count(),
    )


def require_finite_length(dataset: tf.data.Dataset) -> None:
    """Raises a `ValueError` for a data set that never ends."""
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "Expected a data set of finite length. Received: one of infinite length, such as "
            "from repeat(); limit it: dataset.take(number_of_batches)"
        )


# How TensorFlow reports what is wrong with an example: the words of an assertion in the graph.
_ASSERTION = re.compile(r"assertion failed: \[(Expected [^\n]*)\]")
# How it reports a `ValueError` of this package in Python code that a graph calls.
_RAISED = re.compile(r"ValueError: (Expected [^\n]*)")
SIZE_NEEDED = "Expected images of one size, or a model that declares the size of its images."
# How it reports single images that cannot be batched.
_SIZES_DIFFER = re.compile(
    r"Cannot (?:batch tensors with different shapes in component 0|add tensor to the batch)"
    r"[^\[]*(?:\[tensor\]: )?(\[[\d,]+\])[^\[]*(?:\[batch\]: )?(\[[\d,]+\])"
)


def words_of_assertion(error: tf.errors.OpError) -> str | None:
    """What an assertion of this package in a graph expected, or None for another error."""
    words = _ASSERTION.search(error.message) or _RAISED.search(error.message)
    return words[1] if words else None


def explained_batches(batches: Iterable) -> Iterator:
    """The elements of a data set, with a `ValueError` for an example that cannot be decoded."""
    try:
        yield from batches
    except tf.errors.InvalidArgumentError as error:
        words = words_of_assertion(error)
        if sizes := _SIZES_DIFFER.search(error.message):
            words = f"{SIZE_NEEDED} Received: images of shapes {sizes[1]} and {sizes[2]}"
        if not words:
            raise
        raise ValueError(words) from error


def empty_batch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A data set of one batch of no examples, like those of another."""
    specs = dataset.element_spec
    nothing = tf.nest.map_structure(lambda x: tf.zeros((0, *x.shape[1:]), x.dtype), specs)
    return tf.data.Dataset.from_tensors(nothing)


# Examples of arrays, folders and lists that are no batches yet.

BATCH_SIZE = 128
SEED = 0


@dataclasses.dataclass(frozen=True)
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

    The first may be `LazyRows`. A data set is returned as it is. Rows are gathered when their batch
    is read, so that arrays are not copied as a whole.

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
    order, sizes = rule.order(counts[0]), rule.sizes(counts[0])
    if isinstance(leaves[0], LazyRows):
        images = leaves[0].read(order, sizes)
        if len(leaves) == 1:
            return images
        pairs = tf.data.Dataset.zip((images, gather_batches(leaves[1:], order, sizes)))
        return without_autotune(pairs.map(lambda images, others: (images, *others)))
    # The position of an image in the data is known before they are put in another order.
    if not rule.keep_order and len(leaves[0].shape) > 2:
        require_finite_images(leaves[0])
    return gather_batches(arrays, order, sizes)


class LazyRows:
    """Rows of data that are prepared when a batch of them is read.

    `read(positions, sizes)` returns batches of these sizes of the rows at some positions.
    """

    def __init__(
        self, count: int, read: Callable[[np.ndarray, Sequence[int]], tf.data.Dataset]
    ) -> None:
        self.shape, self.read = (count,), read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, selection: Any) -> "LazyRows":
        """The rows that positions or a mask select."""
        selected = np.arange(len(self))[selection]
        return LazyRows(
            len(selected), lambda positions, sizes: self.read(selected[positions], sizes)
        )


def gather_batches(arrays: Any, positions: np.ndarray, sizes: Sequence[int]) -> tf.data.Dataset:
    """Batches of these sizes of the rows of arrays at some positions."""
    with tf.device("CPU"):
        tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)

    def gather_rows(positions: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda rows: tf.gather(rows, positions), tensors)

    batches = cut_examples(tf.data.Dataset.from_tensor_slices(positions), sizes)
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
