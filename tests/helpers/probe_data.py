"""Sequences of three tokens whose classes lie around centres, as images, and features of them."""

import numpy as np
import tensorflow as tf

from vit_tf import TokenGrid

POOL = {
    "cls": lambda x: x[:, 0, :, 0],
    "all": lambda x: x[..., 0].mean(1),
    "spatial": lambda x: x[:, 1:, :, 0].mean(1),
}


def clouds(rng, count, classes=7, channels=6, spread=1.5):
    """Images (example, token, channel, 1) of random classes, and their labels."""
    labels = rng.integers(0, classes, count)
    centres = np.random.default_rng(7).normal(size=(classes, 3, channels))
    images = centres[labels] + spread * rng.normal(size=(count, 3, channels))
    return images[..., None].astype("float32"), labels


def batches(data, size):
    return tf.data.Dataset.from_tensor_slices(data).batch(size)


def sequences(images):
    """The tokens as they are, and their cubes, on a grid of a CLS token and two others."""
    return {"tokens": images[..., 0], "cubes": images[..., 0] ** 3}


sequences.token_grid = TokenGrid(1, 2, 1, 8)


def counted(calls):
    """`sequences`, each of whose calls adds to a list."""

    def features(images):
        calls.append(None)
        return sequences(images)

    features.token_grid = sequences.token_grid
    return features


def as_images(vectors):
    """Vectors (example, channel) as images that `vectors` reads back."""
    return np.array(vectors, "float32")[:, None, :, None]


def vectors(images):
    return {"x": images[:, 0, :, 0]}
