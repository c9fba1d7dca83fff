"""From the items of a `Source` to batches of normalised images: decoded, framed, cached, shuffled.

The order is decided on items, before any of them is decoded, and whole batches are decoded in one
call of the graph, image by image on all cores. TensorFlow can copy the graph to other hosts, as
those of a TPU pod, which decode all images but those that need Pillow.
"""

import functools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import tensorflow as tf

from vit_tf.data.batches import (
    ResumableDataset,
    Shard,
    as_shard,
    cut_examples,
    divided_by_batch,
    empty_batch,
    map_examples,
    seeds_of_batches,
    select,
    without_autotune,
)
from vit_tf.data.imaging import CropArea, Framing, JointFraming, cut, framing_of
from vit_tf.data.preprocessing import JointPreprocessing, Preprocessing
from vit_tf.data.source import Decoder, FastDecoder, Indices, Item, Source, is_contiguous

CACHE_BYTES = 2**30
# A shuffled data set is decoded whole before its first batch, so its cache is limited by count too.
CACHE_EXAMPLES = 100_000
CPUS = os.cpu_count() or 1
BLOCK = 64  # examples that are decoded together on their way into the cache


# A batch as it is stored, and what was drawn for its crops, to images, labels and problems.
DecodeBatch: TypeAlias = Callable[..., tuple[tf.Tensor, tf.Tensor, tf.Tensor]]


def read_batches(
    source: Source,
    split: str,
    indices: Indices,
    size: tuple[int, int] | None,
    batch_size: int | Sequence[int],
    *,
    seed: int | None = None,
    drop_remainder: bool = False,
    preprocessing: Preprocessing | JointPreprocessing | None = None,
    area: CropArea | None = None,
    worker: Shard | None = None,
    cut_batches: bool = False,
    keep: bool = True,
    repeats: int = 1,
    skip_errors: float = 0.0,
) -> ResumableDataset:
    """Batches of (images, labels) of some examples of a split, as `load` returns them.

    `batch_size` may list the size of each batch, the largest first. A `worker` makes random draws
    of its own. The examples are its own, unless `cut_batches`: then they are all workers', and its
    shard is cut out of each batch.
    """
    # A problem with an image travels as words and is raised last, since a cache whose input fails
    # drops that example for good.
    if size is None:
        native_size = framed_size = source.image_size(split, indices)
    else:
        native_size, framed_size = None, size
    preprocessing = preprocessing or Preprocessing(None)
    framing = framing_of(preprocessing, framed_size, area)
    # Examples that are shuffled anyhow are read from several files at once.
    if seed is not None and source.shuffles_files and is_contiguous(indices):
        items = source.read_shuffled(split, indices, seed)
    else:
        items = source.read(split, indices)
    decoder = source.decoder(preprocessing.num_channels)
    # Nothing fits into -1 bytes: then nothing is kept.
    may_cache = keep and (seed is None or len(indices) <= CACHE_EXAMPLES)
    examples, decoders = _plan(
        source,
        decoder,
        items,
        len(indices),
        native_size,
        framing,
        seed,
        CACHE_BYTES if may_cache else -1,
        repeats,
    )
    batch_shard = worker if cut_batches else None
    if batch_shard and isinstance(batch_size, int):
        whole = len(indices) // batch_size * batch_size
        examples = examples if batch_shard.size(len(indices) - whole) else examples.take(whole)

    def gather(items: tf.data.Dataset, full: bool) -> tf.data.Dataset:
        batches = items.batch(batch_size, drop_remainder=drop_remainder or full)
        return batches.map(batch_shard.slice_batch) if batch_shard else batches

    # Items that a resumed run skips are not decoded: their order is that of the shuffle.
    if isinstance(batch_size, Sequence):
        batches = ResumableDataset(partial(select, cut_examples(examples, batch_size)))
    else:
        batches = ResumableDataset.from_examples(gather, examples, batch_size)
    batches = batches if worker is None else as_shard(batches, worker)

    def finish(prepare: DecodeBatch, batch: tuple, *seeds: tf.Tensor) -> tuple:
        # Seeds are drawn for crops only, which a joint framing has none of.
        drawn = cast(Framing, framing).draw(tf.size(batch[1]), *seeds) if seeds else ()
        return prepare(*batch, drawn)

    def make(batches: tf.data.Dataset, *seeds: tf.data.Dataset) -> tf.data.Dataset:
        drawn = tf.data.Dataset.zip((batches, *seeds))
        largest = max(batch_size) if isinstance(batch_size, Sequence) else batch_size
        tried = _tried(drawn, [partial(finish, decoder) for decoder in decoders], largest)
        if skip_errors:
            finished = _without_problems(tried, skip_errors, len(indices))
        else:
            finished = tried.map(_raise_problems)
        return divided_by_batch(without_autotune(finished)).prefetch(tf.data.AUTOTUNE)

    seeds = [seeds_of_batches(seed)] if area else []
    return ResumableDataset.from_sources(make, batches, *seeds)


def read_shardable(
    source: Source,
    split: str,
    indices: Indices,
    size: tuple[int, int] | None,
    batch_size: int,
    *,
    seed: int | None = None,
    **settings: Any,
) -> ResumableDataset:
    """Batches of `read_batches`, of which each of several workers can make its shard alone."""
    # Shards are cut out of each batch before it is decoded, so that together they are the batches
    # of one process. Only where TFDS shuffles files, a worker reads a contiguous range of its own.
    rest = 0 if settings.get("drop_remainder") else len(indices) % batch_size
    used = indices[: len(indices) // batch_size * batch_size + rest]

    def read(indices: Indices, batch_size: int, **how: Any) -> ResumableDataset:
        return read_batches(source, split, indices, size, batch_size, seed=seed, **settings, **how)

    def read_shard(shard: Shard) -> tf.data.Dataset:
        shard.check(batch_size)
        if len(used) < batch_size and not shard.size(rest):
            return empty_batch(batches)
        if seed is not None and not source.shuffles_files:
            # It is another shard in each epoch: none of it is kept.
            of_worker = read(indices, batch_size, worker=shard, cut_batches=True, keep=False)
        else:
            cut_indices = shard.batch_indices if seed is None else shard.contiguous_indices
            worker_indices, shard_size = cut_indices(used, batch_size), shard.size(batch_size)
            of_worker = read(worker_indices, shard_size, worker=shard)
        if not rest or shard.size(rest):
            return of_worker
        return ResumableDataset.from_sources(
            lambda batches: batches.concatenate(empty_batch(batches)), of_worker
        )

    batches = read(indices, batch_size)
    return batches.with_shards(read_shard)


def _repeated(examples: tf.data.Dataset, count: int, repeats: int) -> tf.data.Dataset:
    """So many examples, the first of a data set, of which each follows itself."""
    if repeats == 1:
        return examples

    def repeat(*example: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(example).repeat(repeats)

    repeated = examples.take(-(-count // repeats)).flat_map(repeat).take(count)
    return repeated.apply(tf.data.experimental.assert_cardinality(count))


def _one_of_neighbours(items: tf.data.Dataset, size: int, seed: int) -> tf.data.Dataset:
    """A random one of each `size` neighbours, another one in each pass."""

    def choose(neighbours: tuple, number: tf.Tensor) -> tuple:
        labels = neighbours[1]
        place = number % tf.shape(labels, number.dtype)[0]
        return tf.nest.map_structure(lambda column: column[place], neighbours)

    numbers = tf.data.Dataset.random(seed=seed + 1, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip(items.batch(size), numbers).map(choose)


def _plan(
    source: Source,
    decoder: Decoder,
    items: tf.data.Dataset,
    count: int,
    native_size: tuple[int, int] | None,
    framing: Framing | JointFraming,
    seed: int | None,
    cache_bytes: int,
    repeats: int,
) -> tuple[tf.data.Dataset, list[DecodeBatch]]:
    """What is kept in memory, up to `cache_bytes`, and what is left to do with a batch of it.

    Returns shuffled examples, and functions for `_tried` of a batch of them and of what was drawn.
    """
    spec = _shared_spec(decoder, items, native_size)
    resized = framing.spec.shape.num_elements() * tf.float32.size
    cost = np.prod(spec.shape) * spec.dtype.size if spec else np.inf
    # Larger images than those asked for are kept only where they are cropped anew in each epoch.
    keeps_native_size = framing.area or cost <= resized or count * resized > cache_bytes

    def shuffle(examples: tf.data.Dataset, buffer: int) -> tf.data.Dataset:
        examples = examples if seed is None else examples.shuffle(buffer, seed=seed)
        return _repeated(examples, count, repeats)

    if keeps_native_size and count * cost <= cache_bytes:

        def frame(
            images: tf.Tensor,
            labels: tf.Tensor,
            problems: tf.Tensor,
            drawn: tuple,
        ) -> tuple:
            return _framed(images, drawn, framing), labels, problems

        cached = _cached(items, _decoders(decoder, None, spec), count)
        return shuffle(cached, count), [frame]
    if not framing.area and count * resized <= cache_bytes:
        cached = _cached(items, _decoders(decoder, framing), count)
        return shuffle(cached, count), [lambda *example: example[:3]]
    decoders = _decoders(decoder, framing, spec if native_size and not framing.area else None)
    if seed is not None and repeats > 1 and source.shuffle_buffer < count:
        # The first of a stream that is shuffled in part would be nearly the same in every epoch.
        items = _one_of_neighbours(items, repeats, seed)
    return shuffle(items, min(count, source.shuffle_buffer)), decoders


def _shared_spec(
    decoder: Decoder, items: tf.data.Dataset, native_size: tuple[int, int] | None
) -> tf.TensorSpec | None:
    """The `tf.TensorSpec` that the decoded images share, or None if they share no shape."""

    if isinstance(decoder, FastDecoder):
        image = _decoded_spec(decoder, items.element_spec[0])
    else:
        image = items.map(lambda item, label: decoder.decode(item)[0]).element_spec
    shape = tuple(image.shape)
    if native_size and None not in (*native_size, shape[2]):
        shape = (*native_size, shape[2])
    return None if None in shape else tf.TensorSpec(shape, image.dtype)


@functools.lru_cache(maxsize=16)
def _decoded_spec(decoder: FastDecoder, item_spec: tf.TensorSpec) -> tf.TensorSpec:
    """The `tf.TensorSpec` of the images of a fast decoder, which is traced once in a process."""
    attempt = tf.function(lambda item: decoder.attempt(item, None), autograph=False)
    image = attempt.get_concrete_function(item_spec).structured_outputs
    return tf.TensorSpec(image.shape, image.dtype)  # the tensor would keep its graph


def _tried(batches: tf.data.Dataset, decoders: list[DecodeBatch], size: int) -> tf.data.Dataset:
    """Results, batch by batch, of the first of one or two functions that does not raise."""
    # Errors are caught in a data set that `interleave` reads: `get_single_element` would optimize
    # the functions anew for each batch.
    # A whole batch is in the making at each of these calls: a few are enough.
    calls = max(2, -(-2 * CPUS // size))
    if len(decoders) == 1:
        return batches.map(*decoders, num_parallel_calls=calls)

    def try_each(*batch: tf.Tensor) -> tf.data.Dataset:
        single = tf.data.Dataset.from_tensors(batch)
        first, second = map(single.map, decoders)
        return first.ignore_errors().concatenate(second).take(1)

    results = batches.interleave(
        try_each, cycle_length=calls, num_parallel_calls=calls, deterministic=True
    )
    return results.apply(tf.data.experimental.assert_cardinality(batches.cardinality()))


def _cached(items: tf.data.Dataset, decoders: list[DecodeBatch], count: int) -> tf.data.Dataset:
    """Decoded examples, (image, label, problem), kept in memory once they have been seen."""
    examples = _tried(items.batch(BLOCK), decoders, BLOCK).unbatch()
    return examples.apply(tf.data.experimental.assert_cardinality(count)).cache()


def _decoders(
    decoder: Decoder, framing: Framing | JointFraming | None, spec: tf.TensorSpec | None = None
) -> list[DecodeBatch]:
    """For `_tried`: a fast function that may raise, if any, and one that returns problems."""
    make = _traced_decoders if isinstance(decoder, FastDecoder) else _new_decoders
    return make(decoder, framing, spec)


# To trace them takes most of the time in which a folder of few images is opened.
@functools.lru_cache(maxsize=16)
def _traced_decoders(
    decoder: FastDecoder, framing: Framing | JointFraming | None, spec: tf.TensorSpec | None
) -> list[DecodeBatch]:
    """The functions of `_decoders`, traced once in a process for all data sets of one kind."""

    def trace_once(function: DecodeBatch) -> DecodeBatch:
        traced = tf.function(function, autograph=False)

        def call(
            items: Item, labels: tf.Tensor, drawn: tuple = ()
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return function(items, labels, drawn) if drawn else traced(items, labels)

        return call

    return [trace_once(function) for function in _new_decoders(decoder, framing, spec)]


def _new_decoders(
    decoder: Decoder, framing: Framing | JointFraming | None, spec: tf.TensorSpec | None
) -> list[DecodeBatch]:
    """The functions of `_decoders`, which are traced in each data set."""
    shape = spec and tuple(spec.shape)
    spec = framing.spec if framing else spec

    def decode(item: Item, drawn: tuple) -> tuple[tf.Tensor, tf.Tensor | str]:
        image, problem = decoder.decode(item)
        image = cut(image, framing.window(drawn) if framing else None)
        image, problem = _of_one_shape(image, shape, problem) if shape else (image, problem)
        return framing.fit(image) if framing else image, problem

    def sure(items: Item, labels: tf.Tensor, drawn: tuple = ()) -> tuple:
        specs = (spec, tf.TensorSpec((), tf.string))
        images, problems = map_examples(decode, (items, drawn), specs)
        return _of_batch(images, labels), tf.cast(labels, tf.int32), _of_batch(problems, labels)

    if not isinstance(decoder, FastDecoder):
        return [sure]

    def attempt(item: Item, drawn: tuple) -> tf.Tensor:
        image = decoder.attempt(item, framing.window(drawn) if framing else None)
        image = tf.ensure_shape(image, shape) if shape else image
        return framing.fit(image) if framing else image

    def fast(items: Item, labels: tf.Tensor, drawn: tuple = ()) -> tuple:
        images = map_examples(attempt, (items, drawn), spec)
        return _of_batch(images, labels), tf.cast(labels, tf.int32), tf.fill(tf.shape(labels), "")

    return [fast, sure]


def _of_one_shape(
    image: tf.Tensor, shape: tuple[int, ...], problem: tf.Tensor | str
) -> tuple[tf.Tensor, tf.Tensor | str]:
    """The image, or a black one and what is wrong if it is of another shape."""
    received = tf.strings.reduce_join(tf.strings.as_string(tf.shape(image)), separator=", ")
    message = tf.strings.join(
        [
            "Expected image_size to be given, for images that differ in size. "
            f"Received: image_size=None, images of shape ({', '.join(map(str, shape))}) and of (",
            received,
            ")",
        ]
    )
    fits = tf.reduce_all(tf.shape(image) == shape)
    problem = tf.where(fits | (problem != ""), problem, message)
    image = tf.cond(fits, lambda: image, lambda: tf.zeros(shape, image.dtype))
    return tf.ensure_shape(image, shape), problem


def _framed(images: tf.Tensor, drawn: tuple, framing: Framing | JointFraming) -> tf.Tensor:
    """Decoded images of shape (example, height, width, channel), framed."""
    if not drawn:
        return framing.fit(images)

    def frame(image: tf.Tensor, drawn: tuple) -> tf.Tensor:
        return framing.fit(cut(image, framing.window(drawn)))

    return map_examples(frame, (images, drawn), framing.spec)


def _of_batch(images: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Images of whose number as much is known as of another tensor's."""
    return tf.ensure_shape(images, (other.shape[0], *images.shape[1:]))


def _without_problems(batches: tf.data.Dataset, most: float, count: int) -> tf.data.Dataset:
    """Batches without the images that cannot be decoded, at most a share `most` of `count`.

    A line on the standard error names the problem of each and how many there were.
    """

    def leave_out(
        skipped: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        images, labels, problems = batch
        is_right = problems == ""
        wrong = tf.boolean_mask(problems, ~is_right)
        skipped += tf.size(wrong)
        words = tf.strings.reduce_join(wrong, separator=" ")
        refused = [
            f"Expected at most {most:g} of {count} images to be left out, as skip_errors says, and "
            "an image in each batch that can be decoded. Received: ",
            tf.strings.as_string(skipped),
            " that cannot be decoded. ",
            words,
        ]
        may_skip = (skipped <= int(most * count)) & tf.reduce_any(is_right)
        checks = [tf.debugging.Assert(may_skip | (tf.size(wrong) == 0), [tf.strings.join(refused)])]
        with tf.control_dependencies(checks):
            report = tf.cond(
                tf.size(wrong) > 0,
                lambda: tf.print(skipped, f"of {count} images left out so far:", words),
                tf.no_op,
            )
        with tf.control_dependencies([report]):
            return skipped, (tf.boolean_mask(images, is_right), tf.boolean_mask(labels, is_right))

    return batches.scan(tf.constant(0), leave_out)


def _raise_problems(
    images: tf.Tensor, labels: tf.Tensor, problems: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """(images, labels), with an error where there is a problem."""
    wrong = tf.boolean_mask(problems, problems != "")
    others = tf.strings.join([" (and ", tf.strings.as_string(tf.size(wrong) - 1), " more images)"])
    others = tf.where(tf.size(wrong) > 1, others, "")
    words = tf.strings.join([tf.strings.reduce_join(wrong[:1]), others])
    with tf.control_dependencies([tf.debugging.Assert(words == "", [words])]):
        return tf.identity(images), labels
