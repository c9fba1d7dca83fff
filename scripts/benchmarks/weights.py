"""The same random weights for every package's model of one architecture."""

import zlib

import numpy as np


def numbers(path, shape):
    """Random numbers that follow from a name: of scales and shifts, small changes of one."""
    rng = np.random.default_rng(zlib.crc32(path.encode()))
    values = rng.normal(0.0, 0.02, shape)
    return (values + path.endswith("gamma")).astype(np.float32)


def images(count, size=224):
    """Images of 4 x 4 random colours and noise, of shape (example, height, width, channel)."""
    rng = np.random.default_rng(0)
    colours = rng.uniform(-0.9, 0.9, (count, 4, 4, 3)).astype(np.float32)
    whole = colours.repeat(size // 4, axis=1).repeat(size // 4, axis=2)
    return whole + rng.uniform(-0.1, 0.1, whole.shape).astype(np.float32)


def fill(model):
    """Gives every weight of one of this package's models its numbers, and returns the model."""
    outer = f"{model.name}/"
    for weight in model.weights:
        weight.assign(numbers(weight.path.removeprefix(outer), weight.shape))
    return model
