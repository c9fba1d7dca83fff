"""What is called on a result: `result.plot()`, `result.vit.plot()` and `result.save(path)`.

xarray's own classes and plots stay as they are. Results are of two subclasses of them, and a result
that was read from a file, or that is part of another, is drawn by its accessor `vit`.
"""

import base64
import os
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray.plot.accessor import DataArrayPlotAccessor, DatasetPlotAccessor

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# The dims of the pictures in a result.
PICTURE_DIMS = ("pixel_row", "pixel_column", "colour")
_ArrayPlots: Any = DataArrayPlotAccessor
_DatasetPlots: Any = DatasetPlotAccessor


class Save:
    """Saves a result as netCDF: `result.save("cka.nc")` is `result.to_netcdf("cka.nc")`."""

    def __init__(self, result: xr.DataArray | xr.Dataset) -> None:
        self._result = result

    def __call__(self, path: str | os.PathLike) -> None:
        """Writes the file, which `xarray.load_dataset` or `load_dataarray` opens."""
        if not os.fspath(path).endswith((".nc", ".netcdf", ".h5")):
            raise ValueError(
                f"Expected a netCDF file, such as 'result.nc'. Received: {os.fspath(path)!r}. "
                "Write a table with result.to_dataframe().to_csv(path), and a plot with "
                "analysis.plot(result).figure.savefig(path)."
            )
        self._result.to_netcdf(path)


class NoPlotError(ValueError):
    """Raised for what is not a result of a measurement, or a part of one without a plot."""


class ResultAccessor:
    """The accessor `vit` of DataArrays and Datasets, for results that were read from files."""

    def __init__(self, result: xr.DataArray | xr.Dataset) -> None:
        self._result = result

    def plot(self, *args: Any, **options: Any) -> "Axes":
        """Draws the result: `analysis.plot(result)`."""
        from vit_tf import analysis

        return analysis.plot(self._result, *args, **options)

    def to_dataframe(self) -> "pd.DataFrame":
        """The result as a table, without stored images, whose pixels would each be a row."""
        result = self._result
        if isinstance(result, xr.DataArray):
            return result.to_dataframe()
        pictures = [name for name, v in result.variables.items() if {*PICTURE_DIMS} & {*v.dims}]
        return xr.Dataset.to_dataframe(result.drop_vars(pictures))


class ArrayPlots(_ArrayPlots):
    """xarray's plots of a DataArray; a call draws the plot of the measurement."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """`analysis.plot(result)`; xarray's lines or image for a part that has no plot of ours."""
        try:
            return ResultAccessor(self._da).plot(*args, **options)
        except NoPlotError:
            if self._da.ndim > 2:  # of which xarray would draw a histogram
                raise
        return super().__call__(*args, **options)


class DatasetPlots(_DatasetPlots):
    """xarray's plots of a Dataset; a call draws the plot of the measurement."""

    def __call__(self, *args: Any, **options: Any) -> "Axes":
        """`analysis.plot(result)`."""
        return ResultAccessor(self._ds).plot(*args, **options)


class ResultArray(xr.DataArray):
    """A DataArray that a measurement returns: `result.plot()` draws it as `analysis.plot` does."""

    __slots__ = ()

    def to_dataframe(self, name: Any = None, dim_order: Any = None) -> "pd.DataFrame":
        """The result as a table, without stored images."""
        table = xr.DataArray(self).drop_vars("picture", errors="ignore")
        return table.to_dataframe(name, dim_order)

    @property
    def plot(self) -> ArrayPlots:  # pyright: ignore[reportIncompatibleVariableOverride]
        """`plot()` draws the result with the plot of its measurement; xarray's are attributes."""
        return ArrayPlots(self)


class ResultDataset(xr.Dataset):
    """A Dataset that a measurement returns: `result.plot()` draws it as `analysis.plot` does."""

    __slots__ = ()

    @property
    def plot(self) -> DatasetPlots:  # pyright: ignore[reportIncompatibleVariableOverride]
        """`plot()` draws the result with the plot of its measurement; xarray's are attributes."""
        return DatasetPlots(self)

    def to_dataframe(self, dim_order: Any = None) -> "pd.DataFrame":
        """The result as a table, without stored images, whose pixels would each be a row."""
        if dim_order is not None:
            return super().to_dataframe(dim_order)
        return ResultAccessor(self).to_dataframe()


def as_result(dataset: xr.Dataset | xr.DataArray) -> ResultArray | ResultDataset:
    """A result from the Dataset that its file holds; a DataArray is the only variable of its file.

    netCDF stores the attributes of a DataArray with its variable, those of a Dataset by themselves.
    """
    if isinstance(dataset, xr.DataArray):
        return ResultArray(dataset)
    if len(dataset.data_vars) == 1 and not dataset.attrs:
        (array,) = dataset.data_vars.values()
        return ResultArray(array)
    return ResultDataset(dataset.data_vars, dataset.coords, dataset.attrs)


def load(path: str | os.PathLike) -> ResultArray | ResultDataset:
    """Loads a result that `result.save(path)` wrote, as the measurement returned it.

    Args:
        path: path of the netCDF file.

    Returns:
        The DataArray or Dataset, in memory.

    Raises:
        OSError: if there is no such file, or if it is not a netCDF file.

    Examples:
        >>> analysis.cka(vit, images).save("cka.nc")
        >>> analysis.load("cka.nc").cka.dims
        ('layer_x', 'layer_y')

    See also:
        `plot`, which also draws results that `xarray.load_dataset` opened.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"Result file not found: {os.fspath(path)!r}.")
    return as_result(xr.load_dataset(path))


def encode_picture(picture: np.ndarray) -> str:
    """A picture (row, column, colour) as the text of a PNG."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def decode_picture(text: str) -> np.ndarray:
    """The picture that `encode_picture` turned into text."""
    from PIL import Image

    return np.asarray(Image.open(BytesIO(base64.b64decode(text))))


for register in (xr.register_dataarray_accessor, xr.register_dataset_accessor):
    register("save")(Save)
    register("vit")(ResultAccessor)
