"""Labelled results: their classes, attributes and coordinates, and checks of them.

xarray's own classes and plots stay as they are. Results are of two subclasses of them, on which one
calls `result.plot()`. A result that was read from a file, or that is part of another, is drawn by
its accessor: `result.vit.plot()`.
"""

import base64
import math
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from xarray.plot.accessor import DataArrayPlotAccessor, DatasetPlotAccessor

from vit_tf.common.names import format_list, near_names
from vit_tf.features.tokens import prefix_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Result: TypeAlias = xr.DataArray | xr.Dataset
Dims: TypeAlias = str | tuple[Hashable, ...]
Results: TypeAlias = Mapping[str, Result]  # by name, or by the label in a plot
Labelled = TypeVar("Labelled", xr.DataArray, xr.Dataset)


def provenance(
    features: object, examples: int, batches: float, **parameters: Any
) -> dict[str, Any]:
    """Attributes of a result, in forms that netCDF can hold, and further parameters."""
    attributes = {
        "model": model_name(features),
        "examples": int(examples),
        "batch_size": math.ceil(examples / batches),
    }
    for name, value in parameters.items():
        if isinstance(value, tuple | list):
            value = list(value) if value else "none"
        attributes[name] = str(value) if value is None or isinstance(value, bool) else value
    return attributes


EACH_IMAGE = "each image by itself"  # the estimator of results for a few images


def facts_of(
    features: object, totals: Mapping[str, Any], estimator: str, **more: Any
) -> dict[str, Any]:
    """Returns the attributes of a result: model, number of images, batch size, and parameters.

    `analysis.plot` draws a Dataset only if it has the attribute `model`.

    Args:
        features: the features that were measured.
        totals: the totals of a statistic, with the number of images under `"examples"` and the
            number of batches under `"batches"`.
        estimator: how the values were computed, in a few words.
        **more: parameters of the measurement, in forms that netCDF can hold.
    """
    counts = totals["examples"], totals["batches"]
    return provenance(features, *counts, estimator=estimator, **more)


def array_of(
    name: str, values: np.ndarray, dims: tuple, words: tuple[str, str], facts: dict, **coords: Any
) -> xr.DataArray:
    """A DataArray with its `long_name` and `units`; a dim without a coordinate is numbered."""
    attrs = facts | dict(zip(("long_name", "units"), words, strict=True))
    return _numbered(ResultArray(values, coords, dims, name, attrs))


def dataset_of(variables: dict, facts: dict, **coords: Any) -> xr.Dataset:
    """Returns a Dataset that `analysis.plot` and `result.plot()` draw.

    Args:
        variables: dict from name to the `variable` of this name.
        facts: attributes of the Dataset, from `facts_of`.
        **coords: coordinate of each dim, as in `layer=names`. A dim without a coordinate is
            numbered from 0.
    """
    return _numbered(ResultDataset(variables, coords, facts))


def _numbered(result: Labelled) -> Labelled:
    coords, sizes = result.coords, result.sizes.items()
    return result.assign_coords({dim: np.arange(n) for dim, n in sizes if dim not in coords})


def variable(
    dims: Dims, values: ArrayLike, long_name: str, units: str = "1"
) -> tuple[Dims, ArrayLike, dict[str, str]]:
    """Returns a variable for `dataset_of`: its dims, values, name in words, and units."""
    return dims, values, {"long_name": long_name, "units": units}


def model_name(features: object) -> str:
    """The name of a model or function, without the ending that a submodel adds."""
    name = getattr(features, "name", None) or getattr(features, "__name__", "features")
    return name.removesuffix("_taps")


def require_finite(what: str, values: Iterable[ArrayLike], layers: Iterable[str]) -> None:
    """Raises a `ValueError` that names the layers whose `values` (layer, ...) are not finite.

    `what` is what the values are used for, such as `"CKA"`.
    """
    bad = [
        layer for layer, value in zip(layers, values, strict=True) if not np.isfinite(value).all()
    ]
    if bad:
        raise ValueError(
            f"Expected finite activations to compute {what}. "
            f"Received NaN or infinity at {format_list(bad)}"
        )


def stack_layers(
    what: str, values: Mapping[str, np.ndarray], axis: int = 0
) -> tuple[list[str], np.ndarray]:
    """Names of layers, and their values stacked along `axis`; raises where these are not finite."""
    require_finite(what, values.values(), values)
    return list(values), np.stack(list(values.values()), axis=axis)


def pack_correct(correct: np.ndarray) -> np.ndarray:
    """Truth values (..., example) as texts of hexadecimal digits, to save as a coordinate."""
    packed = np.packbits(correct, axis=-1)
    texts = [row.tobytes().hex() for row in packed.reshape(-1, packed.shape[-1])]
    return np.array(texts).reshape(packed.shape[:-1])


def unpack_correct(texts: xr.DataArray | np.ndarray, examples: int) -> np.ndarray:
    """Truth values of shape (..., example), from texts of `pack_correct`."""
    texts = np.asarray(texts)
    packed = np.array([np.frombuffer(bytes.fromhex(str(text)), np.uint8) for text in texts.ravel()])
    return np.unpackbits(packed, axis=-1, count=examples).astype(bool).reshape(*texts.shape, -1)


def mean_of(total: np.ndarray, count: np.ndarray | float) -> np.ndarray:
    """`total / count` of arrays that broadcast, NaN where nothing was counted."""
    counted = np.asarray(count) > 0
    return np.where(counted, total / np.where(counted, count, 1), np.nan)


def mean_over_batches(batches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, their counts, and the means without each batch, from sums and counts (batch, 2, ...).

    Means are NaN where nothing was counted.
    """
    sums_of_batches = np.moveaxis(batches.astype(np.float64), 1, 0)
    total = sums_of_batches.sum(axis=1)
    return mean_of(*total), total[1], mean_of(*(total[:, None] - sums_of_batches))


def as_counts(k: int | Sequence[int]) -> tuple[int, ...]:
    """Numbers of neighbours or of top ranks as a tuple; a `ValueError` for none, or one below 1."""
    counts = (k,) if isinstance(k, int | np.integer) else tuple(k)
    if not counts or min(counts) < 1:
        raise ValueError(f"Expected every k to be at least 1. Received: k={k}")
    return counts


def require_directions(counts: Mapping[str, Any]) -> None:
    """Raises a `ValueError` for layers with features without a direction, given their numbers."""
    if layers := [layer for layer, count in counts.items() if count]:
        raise ValueError(
            "Expected features that are finite and not zero, to compare their directions. "
            f"Received zero or non-finite features at {format_list(layers)}"
        )


def with_model_names(result: Labelled, models: Sequence[Any]) -> Labelled:
    """A result with the names of its models in its attributes, for titles and tables."""
    names = {"model": models[0].name, "model_x": models[0].name, "model_y": models[-1].name}
    return result.assign_attrs(names)


def expect_array(result: object, dims: Sequence[str], optional: Sequence[str] = ()) -> xr.DataArray:
    """Return a DataArray of these dims, in this order, or raise a `ValueError`."""
    wanted = f"({', '.join(dims)}{''.join(f'[, {name}]' for name in optional)})"
    if (
        not isinstance(result, xr.DataArray)
        or not set(dims) <= {*result.dims} <= {*dims, *optional}
        or not result.size
    ):
        raise ValueError(
            f"Expected a DataArray of dims {wanted}. Received: {describe_result(result)}"
        )
    return result.transpose(*dims, *(name for name in optional if name in result.dims))


def expect_variable(result: object, name: str, dims: Sequence[str]) -> xr.DataArray:
    """Return variable `name` of a Dataset, of dims `dims`, or raise a `ValueError`."""
    if not isinstance(result, xr.Dataset) or name not in result.data_vars:
        raise ValueError(
            f"Expected a Dataset with the variable {name} of dims ({', '.join(dims)}). "
            f"Received: {describe_result(result)}"
        )
    return expect_array(result[name], dims)


def expect_results(results: object) -> dict[str, Any]:
    """Return a dict from label to result, not an empty one, or raise a `ValueError`."""
    if not isinstance(results, dict) or not results:
        received = "{}" if isinstance(results, dict) else describe_result(results)
        raise ValueError(
            f"Expected at least one result, as a dict from label to result. Received: {received}"
        )
    return results


def describe_result(result: object) -> str:
    if isinstance(result, xr.Dataset):
        return f"Dataset with variables {sorted(map(str, result.data_vars))}"
    if isinstance(result, xr.DataArray):
        return f"DataArray of dims ({', '.join(map(str, result.dims))}) and shape {result.shape}"
    return type(result).__name__


def layer_names(result: xr.DataArray | xr.Dataset, dim: Hashable = "layer") -> list[str]:
    """Names along a dim of layers; their indices where it has no coordinate."""
    return [str(name) for name in cast(xr.DataArray, result[dim]).values]


def select_layers(result: Labelled, layers: str | Iterable[str] | None) -> Labelled:
    """The named layers, in the order asked for; all if `layers` is None."""
    if layers is None:
        return result
    layers = [layers] if isinstance(layers, str) else list(layers)
    names = layer_names(result)
    unknown = [name for name in layers if name not in names]
    if unknown or not layers:
        hint = did_you_mean(unknown[0], names) if unknown else ""
        raise ValueError(f"Expected layers among {names}. Received: {layers}.{hint}")
    return result.isel(layer=[names.index(name) for name in layers])


def select_labels(result: Labelled, **wanted: Any) -> Labelled:
    """The part of a result at these values of its coordinates; an error lists near matches."""
    for dim, value in wanted.items():
        values = cast(xr.DataArray, result[dim]).values.tolist()
        if value not in values:
            hint = did_you_mean(value, values)
            raise ValueError(
                f"Expected {dim} among {format_list(map(repr, values))}. "
                f"Received: {dim}={value!r}.{hint}"
            )
        result = result.isel({dim: values.index(value)})
    return result


def did_you_mean(name: object, names: Iterable[object]) -> str:
    """The nearest of some names as a sentence that follows others; empty where none is near."""
    near = near_names(name, [str(other) for other in names]) if isinstance(name, str) else []
    return f" Did you mean {near[0]!r}?" if near else ""


CLS, SPATIAL, ALL, EACH = "cls", "spatial", "all", "each"
PARTS = (CLS, SPATIAL)  # of a sequence, and whose attention is looked at
POOLED = (CLS, SPATIAL, ALL)  # what one vector for each image is made of
PROBED = (*POOLED, EACH)
DEFAULT = "default"  # in attributes, where no word was given
# The same in names of saved results, and in results that were saved with other words.
KEPT = {CLS: "first", SPATIAL: "rest", ALL: "mean"}
CURRENT = {kept: word for word, kept in KEPT.items()}


def require_word(word: Any, choices: Sequence[str], name: str = "tokens") -> str:
    """Returns `word` if it is among the choices, or raises a `ValueError`."""
    if isinstance(word, str) and word in choices:
        return word
    raise ValueError(f"Expected {name} to be one of {choices}. Received: {name}={word!r}")


def current_words(result: Labelled) -> Labelled:
    """A result with the current words for tokens, also if it was saved with earlier ones."""
    if "tokens" in result.dims and "tokens" in result.coords:
        words = [str(word) for word in result.coords["tokens"].values]
        result = result.assign_coords(tokens=[CURRENT.get(word, word) for word in words])
    word = result.attrs.get("tokens")
    if isinstance(word, str) and word in CURRENT:
        return result.assign_attrs(tokens=CURRENT[word])
    return result


def token_name(position: int, prefix: int) -> str:
    """Name of the token at a position, after so many prefix tokens."""
    return prefix_names(prefix)[position] if position < prefix else f"token {position}"


def query_position(query: int | str, prefix: int, count: int) -> int:
    """Position in the sequence of a query given by its name, such as "cls", or by its position."""
    names = [name.lower() for name in prefix_names(prefix)]
    if isinstance(query, str) and query.lower() in names:
        return names.index(query.lower())
    if isinstance(query, str) or query not in range(count):
        hint = did_you_mean(query, names) or (
            f" Or by name: {format_list(names)}." if names else " There is no CLS token."
        )
        raise ValueError(f"Expected query from 0 to {count - 1}. Received: query={query!r}.{hint}")
    return int(query)


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


def encode_picture(picture: np.ndarray, kind: str = "PNG", **options: Any) -> str:
    """A picture (row, column, colour) as the text of a PNG; `kind` and options as for Pillow."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(picture).save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode("ascii")


def decode_picture(text: str) -> np.ndarray:
    """The picture that `encode_picture` turned into text."""
    from PIL import Image

    return np.asarray(Image.open(BytesIO(base64.b64decode(text))))


for register in (xr.register_dataarray_accessor, xr.register_dataset_accessor):
    register("save")(Save)
    register("vit")(ResultAccessor)
