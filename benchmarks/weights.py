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


def fill_torch(model, path):
    """Gives every parameter of a torch model its numbers; returns it in evaluation mode.

    Args:
        model: the module.
        path: function from a parameter's name to this package's path of it.
    """
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(_as_torch(path(name), tuple(parameter.shape))))
    return model.eval()


def of_torch(layer, end):
    """The path of the `"weight"` or `"bias"` of a layer with this package's name."""
    norm = "norm" in layer.rpartition("/")[2]
    ends = {"weight": "gamma", "bias": "beta"} if norm else {"weight": "kernel", "bias": "bias"}
    return f"{layer}/{ends[end]}"


def _as_torch(path, shape):
    if len(shape) == 4:
        out, into, *sides = shape
        return numbers(path, (*sides, into, out)).transpose(3, 2, 0, 1).copy()
    return numbers(path, shape[::-1]).T.copy() if len(shape) == 2 else numbers(path, shape)
