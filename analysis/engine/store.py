"""Results kept on disk under a key, so that no work is done twice."""

import contextlib
import hashlib
import json
import os

import tensorflow as tf
import xarray as xr

from .replicas import this_worker


def fingerprint(*facts):
    """A short key of JSON facts: equal facts give equal keys, in every process."""
    text = json.dumps(facts, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def keep(result, path, key, notes):
    """Saves a result at `path` under `key`, for `load`.

    The file appears whole or not at all: a killed run leaves no half result behind. Of several
    workers, those of the strategy in scope, only the first writes.

    Args:
        result: DataArray or Dataset.
        path: a netCDF file.
        key: `fingerprint` of everything that the result depends on.
        notes: dict of further attributes, such as the seconds that it took.

    Returns:
        The result with the key and the notes among its attributes.
    """
    result = result.assign_attrs(notes | {"key": key})
    if this_worker(tf.distribute.get_strategy())[0] == 0:
        write_whole(path, result.to_netcdf)
    return result


def write_whole(path, write):
    """Calls `write` with another path beside `path`, and renames what it wrote to `path`.

    The file appears whole or not at all, after a power cut too; nothing is left behind where
    writing fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    try:
        write(partial)
        _flush(partial, os.O_RDWR)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    # A rename is on the disk only when its folder is; not every system can open a folder.
    with contextlib.suppress(OSError):
        _flush(path.parent, os.O_RDONLY)


def _flush(path, flags):
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path, key):
    """The result saved at `path`, or None if there is none or it was saved under another key."""
    if not path.exists():
        return None
    result = xr.load_dataset(path)
    if "key" not in result.attrs and len(result.data_vars) == 1:
        (result,) = result.data_vars.values()  # a DataArray's attributes are its variable's
    return result if result.attrs.get("key") == key else None
