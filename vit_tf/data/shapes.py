"""Pictures of one shape each, made on the spot: eight kinds of shapes on textured grounds."""

import numpy as np
import tensorflow as tf

from vit_tf.data.annotated.scenes import KINDS, random_scene
from vit_tf.data.source import Source

SIDE = 64
# Many to train on, so that minutes of training show no image often.
NUM_EXAMPLES = {"train": 20_000, "test": 1000}
SEED = 0
# Where the numbers of each split's scenes start.
FIRST = {"train": 0, "test": NUM_EXAMPLES["train"]}


def open_shapes():
    """The shapes, 64 x 64 pixels; image number n is the same whatever else is loaded."""

    def read(split, indices):
        return tf.data.Dataset.from_tensor_slices((FIRST[split] + indices, _labels(split)[indices]))

    def decode(number):
        image = tf.numpy_function(
            lambda n: numbered_scene(n).draw((SIDE, SIDE)), [number], tf.uint8, stateful=False
        )
        return tf.ensure_shape(image, (SIDE, SIDE, 3)), ""

    return Source(
        class_names=tuple(KINDS),
        num_examples=dict(NUM_EXAMPLES),
        labels=_labels,
        image_size=lambda split, indices: (SIDE, SIDE),
        read=read,
        decode=decode,
        shuffle_buffer=sum(NUM_EXAMPLES.values()),
        version=lambda: "shapes",
    )


def numbered_scene(number):
    """The `Scene` of an image; the kinds take turns."""
    kind = list(KINDS)[number % len(KINDS)]
    return random_scene(kind, np.random.default_rng([SEED, number]))


def _labels(split):
    numbers = FIRST[split] + np.arange(NUM_EXAMPLES[split])
    return (numbers % len(KINDS)).astype(np.int32)
