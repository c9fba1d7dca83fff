"""Data sets of batches that can be made anew: without their first ones, or of full ones only."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

_REMAKE, _EXAMPLES, _CHANGE = "_vit_tf_remake", "_vit_tf_examples", "_vit_tf_change"


@dataclass(frozen=True)
class Change:
    """A random change of single images.

    Attributes:
        draw: function of a number of images and of a seed, an int tensor of shape (2,), that
            returns a tuple of tensors with a random number, or several, for each image.
        apply: function of an image, float32 of shape (height, width, 3) in [0, 255], and its
            numbers, that returns one alike.
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


def change_each(dataset, change):
    """Batches of `changeable` with their images changed one by one, or None for other batches."""
    make = getattr(dataset, _CHANGE, None)
    return make(change) if make else None


def one_by_one(function, batch, spec):
    """What a function makes of each example of a batch, on all cores.

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


def seeds_of_batches(seed):
    """Endless seeds of shape (2,), others in each epoch, the same for the same seed."""
    numbers = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
    return numbers.batch(2, drop_remainder=True)


def remakable(make, *sources):
    """`make(*sources)`, which `skip_batches` and `full_batches` change where it comes from.

    Args:
        make: function of data sets that returns one with an element for each of theirs.
        sources: what `make` is called with.
    """

    def remake(skip, full):
        return make(*(_remade(source, skip, full) for source in sources))

    made = _marked(make(*sources), remake)
    if hasattr(sources[0], _EXAMPLES):
        setattr(made, _EXAMPLES, getattr(sources[0], _EXAMPLES))
    return made


def remakable_batches(make, examples, size):
    """`make(examples, False)`, batches that can be made anew as those of `remakable`.

    Args:
        make: function of a data set of examples, and of whether to leave out a last batch that is
            not full, that returns one of batches.
        examples: data set, of `remakable` or any other.
        size: examples per batch.
    """

    def remake(skip, full):
        return make(_remade(examples, size * skip), full)

    made = _marked(make(examples, False), remake)
    setattr(made, _EXAMPLES, int(examples.cardinality()))
    return made


def num_examples(dataset):
    """Number of examples of a data set that `vit_tf.data.load` returned, without reading it."""
    return getattr(dataset, _EXAMPLES)


def skip_batches(dataset, count):
    """A data set without its first elements, as `dataset.skip(count)`.

    Of one that `remakable` knows they are left out where it comes from: what `make` does to an
    element, such as decoding it, is not done to them. The passes over this data set and over the
    whole one are counted together where shuffles and random draws change with every pass.
    """
    return _remade(dataset, count)


def full_batches(dataset):
    """A data set without a last batch that is smaller, of static shapes, as a TPU needs them.

    Raises:
        ValueError: for data that do not fill a batch, or of another origin than `vit_tf.data` that
            do not tell the size of their batches.
    """
    full = _remade(dataset, 0, True)
    if full.cardinality() == 0:
        raise ValueError(
            "Expected at least one full batch, since a TPU leaves out smaller ones. Received: "
            f"{int(dataset.cardinality())} smaller ones; try a smaller batch_size"
        )
    return full


def _marked(dataset, remake):
    setattr(dataset, _REMAKE, remake)
    return dataset


def _remade(dataset, skip, full=False):
    if not skip and not full:
        return dataset
    if remake := getattr(dataset, _REMAKE, None):
        return remake(skip, full)
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if full and not all(shape.rank and shape[0] for shape in shapes):
        raise ValueError(
            "Expected batches of a static size, which a TPU needs: make them with "
            f"`batch(..., drop_remainder=True)`. Received: batches of shapes {shapes}"
        )
    return dataset.skip(skip) if skip else dataset
