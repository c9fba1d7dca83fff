"""Data sets of batches that can be made anew: without their first, of full ones, of a part each."""

import dataclasses
import functools
import os
from collections.abc import Callable

import tensorflow as tf

from vit_tf.shares import Share

_REMAKE, _EXAMPLES, _SIZE = "_vit_tf_remake", "_vit_tf_examples", "_vit_tf_size"
_SHARABLE, _PART, _CHANGE = "_vit_tf_sharable", "_vit_tf_part", "_vit_tf_change"
# What is true of a data set that is made of another for which it is.
_INHERITED = (_EXAMPLES, _SIZE, _SHARABLE, _PART)


def untuned(dataset):
    """A data set that keeps the parallelism it was given, which TensorFlow would tune meanwhile.

    The end of an iterator waits for the thread that tunes, which may miss that it is cancelled: for
    as long as the iterator has lived, at most a minute, in about every fifth case.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def divided_by_batch(dataset):
    """A data set of which workers take parts of every batch, where TensorFlow would divide files.

    Files may be too few, and their parts are other batches than those of one process.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


@dataclasses.dataclass(frozen=True)
class Change:
    """A random change of single images.

    Attributes:
        draw: function of a number of images and of a seed, an int tensor of shape (2,), that
            returns a tuple of tensors with a random number, or several, for each image.
        apply: function of an image, float32 of shape (height, width, 3) in [0, 255], and its
            numbers, that returns one of the same shape.
        seeds: data set of a seed for each batch.
    """

    draw: Callable
    apply: Callable
    seeds: tf.data.Dataset


def changeable(make):
    """`make(None)`, batches whose images are made one by one, for `change_each`.

    Args:
        make: function of a `Change`, or of None, that returns the batches with their images changed
            by it where they are made.
    """
    made = make(None)
    setattr(made, _CHANGE, make)
    return made


def changer(dataset):
    """The function of a `Change` that a data set of `changeable` is made by, or None."""
    return getattr(dataset, _CHANGE, None)


def change_each(dataset, change):
    """Batches of `changeable` with their images changed one by one, or None for other batches."""
    make = changer(dataset)
    return make(change) if make else None


def one_by_one(function, batch, spec):
    """A function of each example of a batch, on all cores.

    A loop in the graph takes half the time of a data set of the batch's examples.

    Args:
        function: of the parts of an example.
        batch: tuple of tensors, or of tuples of them, whose first axis is the example.
        spec: `tf.TensorSpec` of what it returns.
    """
    return tf.map_fn(
        lambda example: function(*example),
        batch,
        fn_output_signature=spec,
        parallel_iterations=os.cpu_count(),
    )


@dataclasses.dataclass(frozen=True)
class _Remaking:
    """How data are made anew: without `skip` batches, of full ones only, the part of a `Share`."""

    skip: int = 0
    full: bool = False
    share: Share | None = None


def remakable(make, *sources):
    """`make(*sources)`, which other functions here change where it comes from.

    Args:
        make: function of data sets that returns one with an element for each of theirs.
        sources: what `make` is called with.
    """

    def remake(change):
        return make(*(_remade(source, change) for source in sources))

    made = _marked(make(*sources), remake)
    for fact in _INHERITED:
        if hasattr(sources[0], fact):
            setattr(made, fact, getattr(sources[0], fact))
    return made


def remakable_batches(make, examples, size):
    """`make(examples, False)`, batches that can be made anew as those of `remakable`.

    Args:
        make: function of a data set of examples, and of whether to leave out a last batch that is
            not full, that returns one of batches.
        examples: data set, of `remakable` or any other.
        size: examples per batch.
    """

    def remake(change):
        return make(_remade(examples, _Remaking(size * change.skip)), change.full)

    made = _marked(make(examples, False), remake)
    setattr(made, _EXAMPLES, int(examples.cardinality()))
    setattr(made, _SIZE, size)
    return made


def sharable(dataset, make):
    """A data set of `remakable` of which each of several workers can make its own part alone.

    Args:
        dataset: the data set of all examples, which is marked.
        make: function of a `Share` that returns the data set of that part of each of the batches.
    """
    remake_whole, make_part = getattr(dataset, _REMAKE), functools.cache(make)

    def remake(change):
        if change.share is None:
            return remake_whole(change)
        return _remade(make_part(change.share), dataclasses.replace(change, share=None))

    setattr(dataset, _SHARABLE, True)
    return _marked(dataset, remake)


def is_sharable(dataset):
    """Whether each of several workers can make its own part of a data set alone."""
    return getattr(dataset, _SHARABLE, False) and not is_part(dataset)


def own_part(dataset, share):
    """The part of a data set of `sharable`, or made of one, that a `Share` selects."""
    remake = getattr(dataset, _REMAKE)
    own = remake(_Remaking(share=share))
    if not hasattr(own, _REMAKE):
        _marked(own, lambda change: remake(dataclasses.replace(change, share=share)))
    return mark_part(own)


def mark_part(dataset):
    """Marks a data set as a part, which workers are not to share out again; returns it."""
    setattr(dataset, _PART, True)
    return dataset


def is_part(dataset):
    """Whether a data set is marked as a part."""
    return getattr(dataset, _PART, False)


def seeds_of_batches(seed, fixed=False):
    """Endless seeds of shape (2,), the same for the same seed, others on each of several workers.

    Args:
        seed: int.
        fixed: whether every pass draws the same ones.
    """
    numbers = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=not fixed)
    seeds = numbers.batch(2, drop_remainder=True)

    def remake(change):
        rest = seeds.skip(change.skip) if change.skip else seeds
        if change.share is None:
            return rest
        worker = change.share.worker
        return rest.map(lambda pair: tf.random.experimental.stateless_fold_in(pair, worker))

    return _marked(seeds, remake)


def require_finite_length(dataset):
    """Raises a `ValueError` for a data set that never ends."""
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "Expected a data set that ends. Received: one of infinite length, such as repeat() "
            "makes; limit it: dataset.take(number_of_batches)"
        )


def look_at_first(dataset, spec, look):
    """A data set whose first batch of images is shown to a function when it is read.

    Args:
        dataset: batched `tf.data.Dataset` of images, or of tuples that begin with them.
        spec: the `tf.TensorSpec` of the images.
        look: function of an array of shape (example, height, width, channel).
    """

    def look_and_go_on(images):
        look(images.numpy())
        return images

    def show(number, batch):
        images, *others = tf.nest.flatten(batch)
        first = tf.equal(number, 0)
        shown = tf.cond(
            first, lambda: tf.py_function(look_and_go_on, [images], spec.dtype), lambda: images
        )
        return tf.nest.pack_sequence_as(batch, [tf.ensure_shape(shown, spec.shape), *others])

    return remakable(lambda batches: batches.enumerate().map(show), dataset)


def empty_batch(dataset):
    """A data set of one batch of no examples, like those of another."""
    specs = dataset.element_spec
    nothing = tf.nest.map_structure(lambda x: tf.zeros((0, *x.shape[1:]), x.dtype), specs)
    return tf.data.Dataset.from_tensors(nothing)


def num_examples(dataset):
    """Number of examples of a data set that `vit_tf.data.load` returned, without reading it."""
    return getattr(dataset, _EXAMPLES)


def batch_size(dataset):
    """Examples of a full batch of a data set that `vit_tf.data.load` returned."""
    return getattr(dataset, _SIZE)


def skip_batches(dataset, count):
    """A data set without its first elements, as `dataset.skip(count)`.

    Of one that `remakable` knows they are left out where it comes from: what `make` does to an
    element, such as decoding it, is not done to them. The passes over this data set and over the
    whole one are counted together where shuffles and random draws change with every pass.
    """
    return _remade(dataset, _Remaking(count))


def full_batches(dataset):
    """A data set without a last batch that is smaller, of static shapes, as a TPU needs them.

    Raises:
        ValueError: for data that do not fill a batch, or of another origin than `vit_tf.data` that
            have no known batch size.
    """
    full = _remade(dataset, _Remaking(full=True))
    if full.cardinality() == 0:
        raise ValueError(
            "Expected at least one full batch, since a TPU leaves out smaller ones. Received: "
            f"{int(dataset.cardinality())} smaller ones; try a smaller batch_size"
        )
    return full


def _marked(dataset, remake):
    setattr(dataset, _REMAKE, remake)
    return dataset


def _remade(dataset, change):
    if change == _Remaking():
        return dataset
    if remake := getattr(dataset, _REMAKE, None):
        return remake(change)
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if change.full and not all(shape.rank and shape[0] for shape in shapes):
        raise ValueError(
            "Expected batches of a static size, which a TPU needs: make them with "
            f"`batch(..., drop_remainder=True)`. Received: batches of shapes {shapes}"
        )
    return dataset.skip(change.skip) if change.skip else dataset
