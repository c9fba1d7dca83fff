"""Whether a result comes back from a file as it was."""

import xarray as xr


def assert_saves(result, path):
    """Checks that a labelled result is the same after it is written to netCDF and read."""
    result.to_netcdf(path)
    load = xr.load_dataset if isinstance(result, xr.Dataset) else xr.load_dataarray
    # netCDF has no lists of one.
    lists = {k: v for k, v in result.attrs.items() if isinstance(v, list) and len(v) == 1}
    alone = {name: values[0] for name, values in lists.items()}
    assert load(path).identical(result.assign_attrs(alone))
