"""`result.save(path)` and `dataset.plot()`: what people call on a result first."""

import os
import warnings
from typing import TYPE_CHECKING, Any

import xarray as xr
from xarray.plot.accessor import DatasetPlotAccessor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DatasetPlots: Any = DatasetPlotAccessor


class Save:
    """Saves a result as netCDF: `result.save("cka.nc")` is `result.to_netcdf("cka.nc")`."""

    def __init__(self, result: xr.DataArray | xr.Dataset) -> None:
        self._result = result

    def __call__(self, path: str | os.PathLike) -> None:
        """Writes the file, which `xarray.load_dataset` or `load_dataarray` opens."""
        if not os.fspath(path).endswith((".nc", ".netcdf", ".h5")):
            raise ValueError(
                f"Expected a netCDF file, such as 'result.nc'. Received: {os.fspath(path)!r}; "
                "tables are result.to_dataframe().to_csv(path), pictures "
                "analysis.plot(result).figure.savefig(path)"
            )
        self._result.to_netcdf(path)


class Plots(_DatasetPlots):
    """xarray's plots of a Dataset; called itself, which xarray refuses, the plot of a result."""

    def __init__(self, dataset: xr.Dataset) -> None:
        super().__init__(dataset)
        self._result = dataset

    def __call__(self, *args: Any, **options: Any) -> "Axes":
        """`analysis.plot(result)`."""
        from vit_tf import analysis

        return analysis.plot(self._result, *args, **options)


with warnings.catch_warnings():
    # xarray warns that Datasets have `plot` already, of which only the call is another; and of
    # `save` where a notebook loads this module anew.
    warnings.simplefilter("ignore")
    xr.register_dataarray_accessor("save")(Save)
    xr.register_dataset_accessor("save")(Save)
    xr.register_dataset_accessor("plot")(Plots)
