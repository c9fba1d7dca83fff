"""The engine of every analysis: compiled statistics, reduced over batches in one pass."""

import contextlib
import contextvars
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, cast

import keras
import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from vit_tf.data.any_images import ImagesLike
from vit_tf.data.batches import IN_ORDER, batch_arrays, explained_batches, require_finite_length
from vit_tf.data.preprocessing import (
    check_dtype,
    check_values,
    require_finite_images,
    require_images_of,
    spec_of_images,
)
from vit_tf.features.conversion import as_features
from vit_tf.features.features import DerivedFeatures, Features, Taps

from .traces import MAX_COMPILED, Kept, KeptStep

log = logging.getLogger(__name__)
Result = TypeVar("Result")
# What the steps of all batches add up to, with the structure of what a step returns.
Totals: TypeAlias = dict[str, Any]

SECONDS_BETWEEN_LINES = 10  # of the log, where no progress bar is shown
# Number of the batch that a worker without batches computes for the structure of the totals only.
NOT_MINE = -1

_run_eagerly = contextvars.ContextVar("run_eagerly", default=False)


@contextlib.contextmanager
def eager_steps() -> Iterator[None]:
    """Within it steps run eagerly: for one batch, whose graph costs more than its computation."""
    token = _run_eagerly.set(True)
    try:
        yield
    finally:
        _run_eagerly.reset(token)


@dataclass(frozen=True)
class Statistic(Generic[Result]):
    """A statistic over a data set: a step for each batch, and a function from totals to a result.

    Attributes:
        step: function of one batch: `step(images, *taps)`, or `step(images, labels, *taps)` if
            `with_labels` is true. For each model, it gets a dict `{layer: tensor}`. It returns a
            dict of structures of tensors. Over batches, the tensors are summed as float64. There
            are two exceptions: tensors under the key `"rows"` are concatenated along their first
            axis, in the order of the batches, and tensors under `"merged"` are combined by
            `merge`. The step is compiled without AutoGraph: decorate functions that need AutoGraph
            with `tf.function`.
        finish: function that computes the result from the totals. The totals are arrays in the
            same structure as the output of a step.
        min_batch: minimum number of examples in a batch. If the last batch of a data set has fewer
            examples, it is not used, and `remainder` in the totals counts its examples.
        with_labels: whether the step takes labels.
        merge: function that combines two structures of arrays under `"merged"` into one structure
            with the same shapes. The first argument belongs to the earlier batches. If there are
            several workers, each of them merges its own batches first.
        state: structure of arrays that the step uses, such as results of earlier passes. If it is
            not None, the step gets it as tensors, as its first argument: `step(state, images,
            ...)`. Two statistics that differ only in the values of their states and in the weights
            of their models can share a graph.
        update: function of what `merge` has made of the batches so far and of the state. It returns
            the state of the next batch, so that steps can omit what cannot change the result.
            Every worker updates the state from its own batches.
    """

    step: Callable[..., dict[str, Any]]
    finish: Callable[[Totals], Result]
    min_batch: int = 1
    with_labels: bool = False
    merge: Callable[..., Any] | None = None
    state: Any = None
    update: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True)
class Copy:
    """Replaces the weights of the models in a pass by those of a copy, such as an untrained one.

    Attributes:
        weights: pairs of a variable of the models and the variable of the copy.
        states: the states of the statistics of the copy, by request.
        num_batches: how many batches, from the first on, the copy is measured on; None for all.
            Only copies after the first may have fewer batches.
    """

    weights: Sequence[tuple[keras.Variable, keras.Variable]] = ()
    states: Mapping[str, Any] = field(default_factory=dict)
    num_batches: int | None = None


def one_pass(
    requests: dict[str, tuple],
    images: ImagesLike,
    description: str | None = None,
    checked: Sequence[Features] = (),
) -> dict[str, Totals]:
    """Accumulates several statistics, of one or more models, in one pass over a data set.

    All steps are compiled once, in one graph with the forward passes, so that the memory of
    activations is freed early. Each features callable is called once for all requests that use it,
    including requests that use `choose` to select some of its layers. Under a `tf.distribute`
    strategy, every replica gets whole batches. The totals are the same as on one device, on every
    worker, provided that all workers have the same data in the same order.

    Args:
        requests: dict from name to a tuple `(statistic, *features)`. For each model of the
            statistic, the tuple contains features, a callable from images to `{layer: tensor}`.
        images: array of shape (example, height, width, channel); pair of arrays (images, labels);
            or batched `tf.data.Dataset` of images or of (images, labels).
        description: text of the progress bar, which appears after two seconds.
        checked: further features, which the steps themselves call. The pixel values of images are
            checked against the values that these features and the features of the requests expect
            (see `vit_tf.Preprocessing`).

    Returns:
        dict from name to the totals of the statistic, as arrays. Call `statistic.finish(totals)`
        to compute the result. An error in `finish` thus does not affect the other statistics.

    Raises:
        ValueError: if the data are empty, endless or unbatched, or lack required labels.
        ValueError: if a batch is smaller than a statistic requires and is not the last of several.
        ValueError: if images are integers although the features do not declare integers, if their
            values are far outside the expected range, or if an image contains NaN or infinity; the
            message names this image.
        Exception: any error that a step raises.
    """
    (totals,) = pass_of_copies(requests, images, [Copy()], description, checked)
    return totals


def pass_of_copies(
    requests: dict[str, tuple],
    images: Any,
    copies: Sequence[Copy],
    description: str | None = None,
    checked: Sequence[Features] = (),
) -> list[dict[str, Any]]:
    """The totals of `one_pass` for copies of its models, which differ from them in weights alone.

    Each batch is read once. One graph takes the weights and the states of each copy in turn, as
    arguments. Several copies are not spread over replicas.
    """
    requests = {
        name: (statistic, *map(as_features, features))
        for name, (statistic, *features) in requests.items()
    }
    checked = [*map(as_features, checked), *(f for _, *own in requests.values() for f in own)]
    statistics = {name: statistic for name, (statistic, *_) in requests.items()}
    states = {name: s.state for name, s in statistics.items() if s.state is not None}
    only_step = next(iter(statistics.values())).step if len(statistics) == 1 else None
    # The graph of several statistics is of use in this pass only.
    kept = only_step if isinstance(only_step, KeptStep) else None
    graphs = kept.graphs if kept else Kept(MAX_COMPILED)

    # Batches are tuples of images, and of labels where one of the statistics takes them.
    dataset = as_dataset(images)
    with_labels = any(statistic.with_labels for statistic in statistics.values())
    if not with_labels:
        dataset = dataset.map(lambda images, *_: (images,))
    elif not isinstance(dataset.element_spec, tuple):
        raise ValueError(
            f"Expected batches of (images, labels). Received elements {dataset.element_spec}"
        )
    spec, *label_specs = dataset.element_spec
    for features in checked:
        check_dtype(features.facts, spec.dtype.name)
        spec = spec_of_images(features.facts, spec)  # with the size that the features take

    # The weights that the graph takes as arguments, each once, and their values in each copy.
    readers = [*checked, *(kept.models if kept else ())]
    replaced = [variable for copy in copies for variable, _ in copy.weights]
    weights = [variable for reader in readers for variable in reader.weights] + replaced
    variables = list({id(v): v for v in weights if isinstance(v, keras.Variable)}.values())
    values = []
    for copy in copies:
        own = {id(variable): other for variable, other in copy.weights}
        values.append([tf.convert_to_tensor(own.get(id(v), v).value) for v in variables])

    def step(weights: Sequence[tf.Tensor], leaves: Sequence[Any], images: tf.Tensor, *labels: Any):
        """The results of a batch by request: a function of tensors alone."""
        state_of_request = tf.nest.pack_sequence_as(states, leaves)
        pairs = list(zip(variables, weights, strict=True)) if weights else []
        with keras.StatelessScope(state_mapping=pairs) if pairs else contextlib.nullcontext():
            computed, results = {}, {}
            for name, (statistic, *features) in requests.items():
                state = [state_of_request[name]] if name in states else ()
                own_labels = labels if statistic.with_labels else ()
                taps = [layers_of_batch(each, images, computed) for each in features]
                results[name] = statistic.step(*state, images, *own_labels, *taps)
            return results

    # The graphs of one batch and of one batch for each replica, of an earlier call if possible.
    totals = [_Totals(statistics, {**states, **copy.states}) for copy in copies]
    strategy = tf.distribute.get_strategy()
    weight_specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    signature = [weight_specs, [*map(tf.TensorSpec.from_tensor, totals[0].leaves)], spec]
    signature += label_specs
    structure = repr(tf.nest.map_structure(type, states))
    key = strategy, with_labels, *requests, structure, *tf.nest.flatten(signature)
    compute = step
    if not _run_eagerly.get():
        graph = tf.function(step, input_signature=signature, autograph=False)
        compute = graphs.get(("batch", *key), graph.get_concrete_function)

    def step_of_replica(leaves: Sequence[Any], batch: tuple) -> Any:
        # Replicas read the variables themselves, and a strategy keeps a copy of tensors only.
        return tf.nest.map_structure(tf.convert_to_tensor, step([], leaves, *batch))

    every_replica = graphs.get(
        ("replicas", *key),
        lambda: tf.function(
            lambda *args: strategy.run(step_of_replica, args),
            reduce_retracing=True,
            autograph=False,
        ),
    )

    # Batches are read in groups of one for each replica, of which a worker computes its own.
    replicas, (worker, workers) = strategy.num_replicas_in_sync, this_worker(strategy)
    own_places = slice(worker * replicas // workers, (worker + 1) * replicas // workers)
    min_batch = max((statistic.min_batch for statistic in statistics.values()), default=1)
    first = None
    for start, group in _groups(dataset, replicas, min_batch, description, checked):
        first = group[0] if first is None else first
        if len(group) == replicas > 1 == len(copies):
            parts = every_replica(totals[0].leaves, distribute_group(strategy, group))
            results = list(results_of_replicas(strategy, parts))
            for place, result in zip(range(replicas)[own_places], results, strict=True):
                totals[0].add(start + place, group[place][0].shape[0], result)
            continue
        for place in range(len(group))[own_places]:
            for copy, own_values, total in zip(copies, values, totals, strict=True):
                if copy.num_batches is None or len(total.numbers) < copy.num_batches:
                    result = compute(own_values, total.leaves, *group[place])
                    total.add(start + place, group[place][0].shape[0], result)
    if first is None:
        raise ValueError("Expected at least one batch of images. Received: none")
    if not totals[0].numbers:
        for own_values, total in zip(values, totals, strict=True):
            total.add(NOT_MINE, first[0].shape[0], compute(own_values, total.leaves, *first))
    return [total.combine_workers() for total in totals]


def layers_of_batch(features: Features, images: tf.Tensor, computed: dict[int, Taps]) -> Taps:
    """The layers of features for a batch, which are `computed` once for all that read them."""
    key = features.identity
    if key not in computed:
        is_derived = isinstance(features, DerivedFeatures)
        computed[key] = (
            features.derive(layers_of_batch(features.inner, images, computed))
            if is_derived
            else features(images)
        )
    return computed[key]


class _Totals:
    """What the results of the batches of a pass add up to, by request."""

    def __init__(self, statistics: Mapping[str, Statistic], states: dict[str, Any]) -> None:
        self._statistics = statistics
        self._states = tf.nest.map_structure(tf.convert_to_tensor, states)
        self.leaves = tf.nest.flatten(self._states)  # which the steps of the next batch get
        self.numbers: list[int] = []  # of the batches so far
        self._sums: Any = None  # of no batch yet
        self._rows: list[dict[str, Any]] = []
        self._merged: dict[str, Any] = {}

    def add(self, number: int, size: int, result: dict[str, Any]) -> None:
        """Adds the result of a batch, its number and size given."""
        added, rows = {}, {}
        for name, part in tf.nest.map_structure(np.asarray, result).items():
            added[name] = {key: x for key, x in part.items() if key not in ("rows", "merged")}
            min_batch = self._statistics[name].min_batch
            is_small = size < min_batch
            # A remainder that is too small counts as its size alone.
            if is_small:
                added[name] = tf.nest.map_structure(np.zeros_like, added[name])
            if min_batch > 1:
                added[name]["remainder"] = size * is_small
            if "rows" in part:
                kept = 0 if is_small else None
                rows[name] = tf.nest.map_structure(lambda x, n=kept: x[:n], part["rows"])
            if "merged" in part and not is_small:
                self._merge(name, part["merged"])
                self._update(name)
        if number == NOT_MINE:
            added = tf.nest.map_structure(np.zeros_like, added)
        self._rows.append(rows)
        self.numbers.append(number)
        if self._sums is None:
            self._sums = tf.nest.map_structure(lambda x: np.array(x, np.float64), added)
        else:  # in place, as sums over all pairs of layers may be large
            tf.nest.map_structure(lambda total, x: np.add(total, x, out=total), self._sums, added)

    def _merge(self, name: str, part: Any) -> None:
        """Combines what a batch returns under `"merged"` with that of earlier batches."""
        statistic = self._statistics[name]
        earlier = self._merged.get(name)
        self._merged[name] = part if earlier is None else cast(Any, statistic.merge)(earlier, part)

    def _update(self, name: str) -> None:
        """What is known so far becomes the state that the steps of the next batch get."""
        statistic = self._statistics[name]
        if statistic.update:
            state = statistic.update(self._merged[name], self._states[name])
            self._states[name] = tf.nest.map_structure(tf.convert_to_tensor, state)
            self.leaves = tf.nest.flatten(self._states)

    def combine_workers(self) -> dict[str, Any]:
        """The totals over the batches of all workers, by request."""
        strategy, rows = tf.distribute.get_strategy(), self._rows
        # Sums are added, rows put in the order of the batches, and merged parts merged once more.
        if this_worker(strategy)[1] > 1:
            self._sums = tf.nest.map_structure(
                lambda x: np.asarray(strategy.reduce("SUM", tf.constant(x), axis=None)), self._sums
            )
            rows = rows_of_workers(strategy, rows, self.numbers)
            merged_of_workers = rows_of_workers(strategy, [self._merged], self.numbers[:1])
            self._merged = {}
            for name, part in (item for each in merged_of_workers for item in each.items()):
                self._merge(name, part)
        # The rows of all batches as one structure; those of each array are freed once it is made.
        structure, leaves = rows[0], [tf.nest.flatten(part) for part in rows]
        rows.clear()
        joined = []
        for place in range(len(leaves[0])):
            joined.append(np.concatenate([part[place] for part in leaves]))
            for part in leaves:
                part[place] = None
        unsummed = {"rows": tf.nest.pack_sequence_as(structure, joined), "merged": self._merged}
        return {
            name: total | {key: parts[name] for key, parts in unsummed.items() if name in parts}
            for name, total in self._sums.items()
        }


def evaluate(
    statistic: Statistic[Result],
    images: Any,
    *features: Features,
    description: str | None = None,
    checked: Sequence[Features] = (),
) -> Result:
    """The result of one statistic; arguments and errors are those of `one_pass`."""
    totals = one_pass({"": (statistic, *features)}, images, description, checked)
    return statistic.finish(totals[""])


def sum_statistic(step: Callable[..., Any], *, with_labels: bool = False) -> Statistic[Any]:
    """The `Statistic` that sums the structures of tensors that a step returns."""
    return Statistic(
        lambda *batch: {"sum": step(*batch)}, lambda totals: totals["sum"], with_labels=with_labels
    )


def row_statistic(
    step: Callable[..., Any], *, with_labels: bool = False, min_batch: int = 1
) -> Statistic[Any]:
    """The `Statistic` that concatenates the structures of tensors that a step returns."""
    return Statistic(
        lambda *batch: {"rows": step(*batch)},
        lambda totals: totals["rows"],
        min_batch=min_batch,
        with_labels=with_labels,
    )


def accumulate(
    step: Callable[..., Any],
    images: ImagesLike,
    *,
    with_labels: bool = False,
    description: str | None = None,
    checked: Sequence[Features] = (),
) -> Any:
    """Sums `step(images)` over the batches of a data set, as a structure of float64 arrays.

    Args:
        step: function of a batch of images (and of its labels, if `with_labels` is true) that
            returns a structure of tensors. It is compiled like the step of a `Statistic`.
        images, description, checked: as for `one_pass`. The errors of `one_pass` are raised.
    """
    statistic = sum_statistic(step, with_labels=with_labels)
    return evaluate(statistic, images, description=description, checked=checked)


def collect(
    step: Callable[..., Any],
    images: ImagesLike,
    *,
    with_labels: bool = False,
    description: str | None = None,
    min_batch: int = 1,
    checked: Sequence[Features] = (),
) -> Any:
    """Concatenates `step(images)` over the batches of a data set, in their order.

    It is meant for analyses that need the values of every example. The arguments and errors are the
    same as for `accumulate`. In addition, `min_batch` is the minimum number of examples in a batch.
    """
    statistic = row_statistic(step, with_labels=with_labels, min_batch=min_batch)
    return evaluate(statistic, images, description=description, checked=checked)


def mean_per_batch(totals: Totals, name: str) -> Any:
    """Integers that all steps return equally, such as the number of classes, from their sums."""
    return tf.nest.map_structure(lambda total: int(total / totals["batches"]), totals[name])


def as_dataset(data: Any) -> tf.data.Dataset:
    """`data` as a batched, finite `tf.data.Dataset`; arrays become equal batches in order."""
    if not isinstance(data, tf.data.Dataset):
        leaves = data if isinstance(data, tuple) else (data,)
        if not all(hasattr(leaf, "shape") for leaf in leaves):
            raise ValueError(
                "Expected images to be an array, a pair of arrays (images, labels) or a "
                f"tf.data.Dataset. Received: {type(data).__name__}"
            )
        data = batch_arrays(data, IN_ORDER)
    require_finite_length(data)
    spec = data.element_spec
    images = spec[0] if isinstance(spec, tuple) else spec
    if not isinstance(images, tf.TensorSpec) or images.shape.rank in (0, 1, 3):
        raise ValueError(
            "Expected batches of images of shape (example, height, width, channel). "
            f"Received elements {spec}; call dataset.batch(...) if they are single images, and "
            "give grey images an axis of channels, images[..., None]"
        )
    return data


def first_batch(data: Any) -> tf.Tensor:
    """The images of the first batch of a data set, to learn shapes from."""
    for batch in explained_batches(as_dataset(data).take(1)):
        return batch[0] if isinstance(batch, tuple) else batch
    raise ValueError("Expected at least one batch of images. Received: none")


def _groups(
    dataset: tf.data.Dataset,
    size: int,
    min_batch: int,
    description: str | None,
    checked: Sequence[Features] = (),
) -> Iterator[tuple[int, list[tuple[tf.Tensor, ...]]]]:
    """Yields the number of a batch, and the list of it and the next ones, one for each replica."""
    spec = dataset.element_spec[0]
    is_open = None in (spec.shape[1:] if spec.shape.rank else (None,))
    count = dataset.cardinality().numpy()
    total = count if count >= 0 else None
    bar = tqdm(dataset, desc=description, total=total, delay=2, disable=None, leave=False)
    batches, logged = explained_batches(bar), time.monotonic()
    # The first batches include tracing, which an estimate of the time leaves out.
    first_done = None
    start, before, examples = 0, None, 0
    while group := list(itertools.islice(batches, size)):
        now = time.monotonic()
        if start and first_done is None:
            first_done = now
        if bar.disable and now - logged >= SECONDS_BETWEEN_LINES:
            left = ""
            if total and start > size and first_done is not None:
                seconds = (now - first_done) / (start - size) * (total - start)
                left = f", about {tqdm.format_interval(seconds)} left"
            done = description or "images", start, total or "unknown", left
            log.info("%s: %d of %s batches%s", *done)
            logged = now
        for images, *_ in group:
            # Only the last batch may be small: one that another follows is not the last.
            checked_size = images.shape[0] if before is None else before
            if checked_size < min_batch:
                raise ValueError(
                    f"Expected batches of at least {min_batch} images (the last one may be "
                    f"smaller). Received: a batch of {checked_size}. Use more images or a larger "
                    "batch size."
                )
            if images.shape.rank > 2:  # not rows of activations, whose layers are checked
                require_finite_images(images, examples)
            # Sizes that the data set states are those of the graph, which checks them.
            for features in checked if is_open and images.shape.rank == 4 else ():
                require_images_of(features.facts, images)
            for features in checked if before is None else ():
                check_values(features.facts, images)
            before = images.shape[0]
            examples += before
        yield start, group
        start += len(group)


def this_worker(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Index of this process among those of a strategy, and their number: (0, 1) for one."""
    resolver = strategy.cluster_resolver
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or resolver is None:
        return 0, 1
    tasks = resolver.cluster_spec().as_dict()
    places = [(kind, i) for kind in sorted(tasks) for i in range(len(tasks[kind]))]
    return places.index((resolver.task_type, resolver.task_id)), len(places)


def rows_of_workers(
    strategy: tf.distribute.Strategy, rows: Sequence[Any], numbers: Sequence[int]
) -> list[Any]:
    """The rows of all workers in the order of the batches' `numbers`; that of -1 is left out."""
    gathered_numbers = np.asarray(strategy.gather(tf.constant(numbers, tf.int64), axis=0))
    order = [
        place
        for place in np.argsort(gathered_numbers, kind="stable")
        if gathered_numbers[place] >= 0
    ]

    def gathered(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The rows of all batches, one array each, from those of this worker."""
        lengths = tf.constant([len(part) for part in parts], tf.int64)
        ends = np.cumsum(np.asarray(strategy.gather(lengths, axis=0)))
        rows_of_all = np.asarray(strategy.gather(tf.constant(np.concatenate(parts)), axis=0))
        pieces = np.split(rows_of_all, ends[:-1])
        return [pieces[place] for place in order]

    leaves = [gathered(parts) for parts in zip(*map(tf.nest.flatten, rows), strict=True)]
    return [
        tf.nest.pack_sequence_as(rows[0], [leaf[number] for leaf in leaves])
        for number in range(len(order))
    ]


def results_of_replicas(strategy: tf.distribute.Strategy, result: Any) -> Iterator[Any]:
    """Yields the structure of arrays of each replica of this worker."""
    leaves = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(result)]
    for values in zip(*leaves, strict=True):
        yield tf.nest.pack_sequence_as(result, [np.asarray(value) for value in values])


def distribute_group(strategy: tf.distribute.Strategy, group: Sequence[tuple]) -> tuple:
    """One batch for each replica: a tuple of per-replica values from a list of tuples."""
    leaves = zip(*map(tf.nest.flatten, group), strict=True)
    values = [
        strategy.experimental_distribute_values_from_function(
            lambda context, leaf=leaf: leaf[context.replica_id_in_sync_group]
        )
        for leaf in leaves
    ]
    return tf.nest.pack_sequence_as(group[0], values)
