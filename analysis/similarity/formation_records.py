"""Records of how representations form: kernels of layers, their comparison, and files."""

import re
from dataclasses import dataclass

import numpy as np
import xarray as xr

from vit_tf.files import write_whole

from ..engine.results import variable
from .cka import similarity

STATE = re.compile(r"epoch-(\d+)\.nc")


@dataclass(frozen=True)
class Kernels:
    """The kernels of every layer on some batches of images, at one time.

    Attributes:
        values: U-centred kernels of size 1, float32 array of shape (layer, pair): the pairs of
            examples of each batch, one batch after the other.
        scales: float32 array of shape (layer, batch, 3), as of `cka.unbiased`.
    """

    values: np.ndarray
    scales: np.ndarray


@dataclass(frozen=True)
class Record:
    """All that a run knows at an epoch: the result so far, and the kernels to go on from."""

    result: xr.Dataset
    start: Kernels
    now: Kernels


def compare(before, now, sizes, layers):
    """CKA of every layer to itself at another time, as `cka` of two models, and standard errors.

    Args:
        before, now: `Kernels` of the same images.
        sizes: int array of shape (batch,), the examples of each batch.
        layers: names of the layers.

    Returns:
        Two arrays of shape (layer,); the error is NaN when there is one batch.

    Raises:
        ValueError: for a layer that is constant or not finite.
    """
    both = (before, now)
    hsic = np.array([[_hsic(x, y, sizes) for y in both] for x in both])
    squares = np.array([kernels.scales[..., 1:].astype(np.float64).sum(axis=1) for kernels in both])
    of_layers = [
        similarity(np.moveaxis(hsic[:, :, i], -1, 0), squares[:, i], (f"{layer} before", layer))
        for i, layer in enumerate(layers)
    ]
    return tuple(np.array([part[0, 1] for part in parts]) for parts in zip(*of_layers, strict=True))


def _hsic(x, y, sizes):
    """The unbiased HSIC of each layer and batch: float64 array of shape (layer, batch)."""
    first = np.concatenate([[0], np.cumsum(sizes**2)[:-1]])
    sums = np.add.reduceat(x.values.astype(np.float64) * y.values, first, axis=1)
    scale = x.scales[..., 0].astype(np.float64) * y.scales[..., 0]
    return sums / (sizes * (sizes - 3.0)) * scale


def row(epoch, layers, to_start, to_previous, accuracy):
    """The result of one record, of dims (epoch, layer).

    Args:
        epoch: number of epochs done.
        layers: names of the layers.
        to_start, to_previous: what `compare` returned.
        accuracy: array of shape (layer,), or None.
    """
    names = {"cka_to_start": "CKA to the start", "cka_to_previous": "CKA to the record before"}
    values = {}
    for (name, long), pair in zip(names.items(), (to_start, to_previous), strict=True):
        values[name], values[f"{name}_stderr"] = (
            (long, pair[0]),
            (f"standard error of {long}", pair[1]),
        )
    if accuracy is not None:
        values["accuracy"] = ("test accuracy of a ridge classifier", accuracy)
    return xr.Dataset(
        {
            name: variable(("epoch", "layer"), value[None], long)
            for name, (long, value) in values.items()
        },
        {"epoch": [epoch], "layer": layers},
    )


def save_record(record, folder, kept):
    """Writes a record, then removes those of other epochs than the `kept` ones, and of its own."""
    epoch = int(record.result["epoch"][-1])
    state = record.result.assign(
        {
            f"{when}_{name}": (("layer", *dims), getattr(kernels, name))
            for when, kernels in (("start", record.start), ("now", record.now))
            for name, dims in (("values", ("pair",)), ("scales", ("batch", "scale")))
        }
    )
    write_whole(folder / f"epoch-{epoch:04d}.nc", state.to_netcdf)
    for other, path in _states(folder).items():
        if other not in kept:
            path.unlink()


def load_records(folder):
    """The records in a folder: dict from epoch to `Record`, empty where there are none."""
    records = {}
    for epoch, path in _states(folder).items():
        state = xr.load_dataset(path)
        kernels = {
            when: Kernels(state[f"{when}_values"].values, state[f"{when}_scales"].values)
            for when in ("start", "now")
        }
        own = [name for name, variable in state.items() if variable.dims == ("epoch", "layer")]
        records[epoch] = Record(state[own], **kernels)
    return records


def _states(folder):
    """Files of records by their epochs, in order."""
    found = {int(m[1]): path for path in folder.glob("*.nc") if (m := STATE.fullmatch(path.name))}
    return dict(sorted(found.items()))
