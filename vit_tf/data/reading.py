"""From the items of a `Source` to batches of normalised images: decoded, framed, cached, shuffled.

The order is decided on items, before any of them is decoded, and whole batches are decoded in one
call of the graph, image by image on all cores.
"""

import os
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from vit_tf.batches import remakable, remakable_batches
from vit_tf.data.images.decoding import cut
from vit_tf.data.images.framing import draw_sides, random_window, resize_image

CACHE_BYTES = 2**30
CPUS = os.cpu_count()
BLOCK = 64  # examples that are decoded together on their way into the cache


@dataclass(frozen=True)
class Framing:
    """How a decoded image comes to its size.

    Attributes:
        size: (height, width) in pixels.
        method: `"bilinear"` or `"bicubic"`.
        crop: as of `Preprocessing`.
        area: None, or the range of the share of an image that a random crop shows.
    """

    size: tuple
    method: str = "bilinear"
    crop: float | None = None
    area: tuple | None = None

    def draw(self, count, seed):
        """What `window` needs for `count` images; `()` where nothing is random."""
        return draw_sides(count, self.area, seed) if self.area else ()

    def window(self, draw):
        """The window of `decoding.decode` of one of the draws."""
        return (lambda height, width: random_window(height, width, *draw)) if draw else None

    def fit(self, images):
        """An image, or images of shape (example, height, width, channel), in the size."""
        return resize_image(images, self.size, self.method, None if self.area else self.crop)


def read_batches(
    source,
    split,
    indices,
    size,
    batch_size,
    *,
    seed=None,
    drop_remainder=False,
    preprocessing=None,
    area=None,
):
    """Batches of (images, labels) of some examples of a split, as `load` returns them.

    Images whose own size is known are cached as they are decoded, others as they are resized; what
    is too large for either is decoded in every epoch. A problem with an image travels as words and
    is raised last, since a cache whose input fails drops that example for good.

    Args:
        source: `Source`.
        split: split of the source.
        indices: sorted int array of shape (example,).
        size: (height, width) in pixels, or None for the images' own.
        batch_size: examples per batch.
        seed: int, or None to keep the order.
        drop_remainder: whether to leave out a last batch that is not full.
        preprocessing: the `Preprocessing` that they are for; None means values in [-1, 1].
        area: of random crops, as for `load`; None for none.
    """
    own = source.image_size(split, indices) if size is None else None
    how = (preprocessing.interpolation, preprocessing.crop) if preprocessing else ()
    framing = Framing(tuple(size or own), *how, area=area)
    items = _items(source, split, indices, seed)
    examples, prepare = _plan(source, items, len(indices), own, framing, seed)
    normalize = _normalizer(preprocessing)

    def finish(batch, seed=None):
        draws = () if seed is None else framing.draw(tf.size(batch[1]), seed)
        return normalize(*prepare(*batch, draws))

    def make(batches, *seeds):
        # A whole batch is in the making at each of these calls: a few are enough, more take memory.
        calls = max(2, -(-2 * CPUS // batch_size))
        finished = tf.data.Dataset.zip((batches, *seeds)).map(finish, num_parallel_calls=calls)
        return finished.with_options(_options()).prefetch(tf.data.AUTOTUNE)

    # Items that a resumed run skips are not decoded: their order is that of the shuffle.
    batches = remakable_batches(
        lambda items, full: items.batch(batch_size, drop_remainder=drop_remainder or full),
        examples,
        batch_size,
    )
    return remakable(make, batches, *([_seeds(seed)] if area else []))


def _items(source, split, indices, seed):
    """The items of a split, from several files at once where they are to be shuffled anyhow."""
    whole = len(indices) == indices[-1] + 1 - indices[0]
    if seed is None or not whole or source.read_shuffled is None:
        return source.read(split, indices)
    return source.read_shuffled(split, indices, seed)


def _plan(source, items, count, own, framing, seed):
    """What is kept in memory, if any, and what is left to do with a batch of it.

    Returns:
        Pair of the shuffled examples, to be batched, and of a function of a batch of them and the
        draws of the framing to (images in [0, 255], labels, problems).
    """
    shape, dtype = _own_spec(source, items, own)
    resized = np.prod((*framing.size, 3)) * tf.float32.size
    cost = np.prod(shape) * dtype.size if shape else np.inf
    # Larger images than those asked for are kept only where they are cropped anew in each epoch.
    as_they_are = framing.area or cost <= resized or count * resized > CACHE_BYTES

    def shuffle(examples, buffer):
        return examples if seed is None else examples.shuffle(buffer, seed=seed)

    if as_they_are and count * cost <= CACHE_BYTES:

        def frame(images, labels, problems, draws):
            return _framed(images, draws, framing), labels, problems

        return shuffle(_cached(items, _decoder(source, None, shape), count), count), frame
    if not framing.area and count * resized <= CACHE_BYTES:
        return shuffle(_cached(items, _decoder(source, framing), count), count), _take_as_is
    plain = own and not framing.area
    decode = _decoder(source, None, shape) if plain else _decoder(source, framing)
    return shuffle(items, min(count, source.shuffle_buffer)), decode


def _take_as_is(images, labels, problems, draws):
    return images, labels, problems


def _options():
    options = tf.data.Options()
    # Workers share one seed, so each can take its part of every batch; files may be too few.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


def _own_spec(source, items, own):
    """Shape and dtype that the decoded images share; None for the shape if they share none."""
    image = items.map(lambda item, label: source.decode(item)[0]).element_spec
    shape = tuple(image.shape)
    shape = (*own, shape[2]) if own and None not in (*own, shape[2]) else shape
    return (None if None in shape else shape), image.dtype


def _cached(items, decode, count):
    """Decoded examples, (image, label, problem), kept in memory once they have been seen."""
    blocks = items.batch(BLOCK).map(decode, num_parallel_calls=max(2, -(-2 * CPUS // BLOCK)))
    examples = blocks.unbatch().apply(tf.data.experimental.assert_cardinality(count))
    return examples.cache()


def _decoder(source, framing, shape=None):
    """A function of (items, labels[, draws]) to (images, labels, problems), all batched.

    Without a framing images are left as they are, and have to be of one shape.
    """

    def fast(item, draw=()):
        window = framing.window(draw) if framing else None
        image = source.attempt(item, window)
        return framing.fit(image) if framing else tf.ensure_shape(image, shape)

    def sure(item, draw=()):
        image, problem = source.decode(item)
        if framing:
            return framing.fit(cut(image, framing.window(draw))), problem
        return _of_one_shape(image, shape, problem)

    def decode(items, labels, draws=()):
        each = tf.data.Dataset.from_tensor_slices((items, draws) if draws else (items,))
        count = tf.size(labels, tf.int64)

        def surely():
            decoded = each.map(sure, num_parallel_calls=CPUS)
            return decoded.batch(count).get_single_element()

        labels = tf.cast(labels, tf.int32)
        if source.attempt is None:
            images, problems = surely()
            return _of_batch(images, labels), labels, problems
        found = each.map(fast, num_parallel_calls=CPUS).ignore_errors()
        spec = found.element_spec
        nothing = tf.data.Dataset.from_tensors(tf.zeros((0, *spec.shape), spec.dtype))
        images = found.batch(count).concatenate(nothing).take(1).get_single_element()
        images, problems = tf.cond(
            tf.shape(images, tf.int64)[0] == count,
            lambda: (images, tf.fill((count,), "")),
            surely,
        )
        return _of_batch(images, labels), labels, problems

    return decode


def _of_one_shape(image, shape, problem):
    """The image, or a black one and what is wrong if it is of another shape."""
    found = tf.strings.reduce_join(tf.strings.as_string(tf.shape(image)), separator=", ")
    message = tf.strings.join(
        [
            "Expected image_size to be given, for images that differ in size. "
            f"Received: image_size=None, images of shape ({', '.join(map(str, shape))}) and of (",
            found,
            ")",
        ]
    )
    fits = tf.reduce_all(tf.shape(image) == shape)
    problem = tf.where(fits | (problem != ""), problem, message)
    image = tf.cond(fits, lambda: image, lambda: tf.zeros(shape, image.dtype))
    return tf.ensure_shape(image, shape), problem


def _framed(images, draws, framing):
    """Decoded images of shape (example, height, width, channel), framed."""
    if not draws:
        return framing.fit(images)

    def frame(image, draw):
        return framing.fit(cut(image, framing.window(draw)))

    each = tf.data.Dataset.from_tensor_slices((images, draws))
    framed = each.map(frame, num_parallel_calls=CPUS)
    return _of_batch(framed.batch(tf.shape(images, tf.int64)[0]).get_single_element(), images)


def _of_batch(images, other):
    """Images of whose number as much is known as of another tensor's."""
    return tf.ensure_shape(images, (other.shape[0], *images.shape[1:]))


def _seeds(seed):
    """Endless seeds of shape (2,), others in each epoch, the same for the same seed."""
    numbers = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
    return numbers.batch(2, drop_remainder=True)


def _normalizer(preprocessing):
    """A function of (images in [0, 255], labels, problems) to (RGB images, labels)."""

    def normalize(images, labels, problems):
        words = tf.strings.strip(tf.strings.reduce_join(problems, separator=" "))
        with tf.control_dependencies([tf.debugging.Assert(words == "", [words])]):
            images = tf.cast(images, tf.float32)
        images = tf.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images
        return scale_values(images, preprocessing), labels

    return normalize


def scale_values(images, preprocessing=None):
    """Float32 images with values in [0, 255] as a model expects them, an array or a tensor.

    `image / (255 std) - mean / std`, which is `image / 127.5 - 1` unless there is a preprocessing,
    of which the channels may be in another order.
    """
    if preprocessing and preprocessing.channel_order == "bgr":
        images = images[..., ::-1]
    mean, std = (preprocessing.mean, preprocessing.std) if preprocessing else (0.5, 0.5)
    mean, std = np.array(mean), np.array(std)
    return images / np.float32(255 * std) - np.float32(mean / std)
