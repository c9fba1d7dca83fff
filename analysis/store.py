"""Results kept on disk under a key, so that no work is done twice."""

import hashlib
import json
import os
import time

import xarray as xr


def fingerprint(*facts):
    """A short key of JSON facts: equal facts give equal keys, in every process."""
    text = json.dumps(facts, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stored(path, key, compute):
    """The result saved at `path` under `key`, or that of `compute()`, which is then saved there.

    The file appears whole or not at all: a killed run leaves no half result behind.

    Args:
        path: a netCDF file.
        key: `fingerprint` of everything that the result depends on.
        compute: function without arguments that returns a DataArray or Dataset.

    Returns:
        A Dataset or DataArray whose attributes hold `key` and `seconds`, the time it took.
    """
    kept = load(path, key)
    if kept is not None:
        return kept
    start = time.perf_counter()
    result = compute()
    result.attrs |= {"key": key, "seconds": round(time.perf_counter() - start, 2)}
    write_whole(path, result.to_netcdf)
    return result


def write_whole(path, write):
    """Calls `write` with another path beside `path`, and renames what it wrote to `path`.

    The file appears whole or not at all; nothing is left behind where writing fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load(path, key):
    """The result saved at `path`, or None if there is none or it was saved under another key."""
    if not path.exists():
        return None
    result = xr.load_dataset(path)
    only = list(result.data_vars)
    if len(only) == 1:
        result = result[only[0]]
    return result if result.attrs.get("key") == key else None
