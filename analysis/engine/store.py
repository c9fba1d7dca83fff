"""Results saved on disk under a key, so that no work is done twice."""

import hashlib
import json

import tensorflow as tf
import xarray as xr

from vit_tf.files import write_whole

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


def load(path, key):
    """The result saved at `path`, or None if there is none or it was saved under another key."""
    if not path.exists():
        return None
    result = xr.load_dataset(path)
    if "key" not in result.attrs and len(result.data_vars) == 1:
        (result,) = result.data_vars.values()  # a DataArray's attributes are its variable's
    return result if result.attrs.get("key") == key else None
