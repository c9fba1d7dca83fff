"""Keras files of half the size: every weight as a float16."""

import tempfile
import zipfile
from pathlib import Path

import h5py
import numpy as np

from vit_tf.files import write_whole
from vit_tf.fresh import fresh_copy

WEIGHTS = "model.weights.h5"


def save_half(model, path):
    """Writes a model to a `.keras` file whose weights are float16, whole or not at all.

    `keras.saving.load_model` opens it as any other, in the precision of the model's own policy.

    Args:
        model: a `keras.Model`; of a compiled one the optimizer is left out.
        path: of the file, ending in `.keras`.

    Raises:
        ValueError: for another ending, or a weight that no float16 is near: not finite, or beyond
            65,504.
    """
    path = Path(path)
    if path.suffix != ".keras":
        raise ValueError(f"Expected path to end in '.keras'. Received: {str(path)!r}")
    for weight in model.weights:
        _require_half(weight.path, np.asarray(weight))
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.keras"
        bare = fresh_copy(model)
        bare.set_weights(model.get_weights())
        bare.save(whole)
        write_whole(path, lambda partial: _halve(whole, partial, folder))


def _require_half(name, values):
    if np.issubdtype(values.dtype, np.floating):
        with np.errstate(over="ignore"):
            finite = np.isfinite(values.astype("float16")).all()
        if not finite:
            raise ValueError(
                "Expected weights within the range of float16, 65,504. "
                f"Received: {name}, up to {np.abs(values).max():g}"
            )


def _halve(source, target, folder):
    """Copies a `.keras` file with the arrays of its weights as float16."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if name == WEIGHTS:
                weights = Path(old.extract(name, folder))
                new.write(_halve_weights(weights), name)
            else:
                new.writestr(name, old.read(name))


def _halve_weights(path):
    """The path of a copy of an HDF5 file with float16 instead of other floats."""
    copy = path.with_suffix(".half")
    with h5py.File(path) as old, h5py.File(copy, "w") as new:

        def take(name, item):
            if isinstance(item, h5py.Group):
                placed = new.require_group(name)
            else:
                floats = np.issubdtype(item.dtype, np.floating)
                placed = new.create_dataset(
                    name, data=item[()].astype("float16") if floats else item
                )
            placed.attrs.update(item.attrs)

        new.attrs.update(old.attrs)
        old.visititems(take)
    return copy
