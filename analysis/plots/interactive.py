"""Data of the interactive figures of a report: labelled values, ready for JSON."""

from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from ..engine.results import expect_array, expect_variable, layer_names
from . import style
from .primitives import layer_label, shorten

InteractiveFigure: TypeAlias = dict[str, Any]  # its kind, labels and values, ready for JSON


def cka_heatmap(result: xr.Dataset) -> InteractiveFigure:
    """Interactive form of `plot_cka`: a heatmap that shows the value of each cell.

    Args:
        result: Dataset with `cka` and, where known, `stderr` of dims (layer_x, layer_y).

    Returns:
        dict with `kind`, which is "heatmap"; `x` and `y`, the names of the layers; `values` and
        `errors`, a list of numbers for each layer of y, from the first on, with None for values
        that are not finite (`errors` is None without `stderr`); `low`, `high` and `colours`, the
        limits of the colour scale and its colours from low to high; `x_label`, `y_label` and
        `value_label`.
    """
    cka = expect_variable(result, "cka", ("layer_x", "layer_y"))
    errors = result["stderr"].transpose(*cka.dims).values.T if "stderr" in result else None
    models = style.models(result)
    return {
        "kind": "heatmap",
        "x": layer_names(cka, "layer_x"),
        "y": layer_names(cka, "layer_y"),
        "x_label": layer_label(cut="", model=models[0]),
        "y_label": layer_label(cut="", model=models[1]),
        "value_label": "CKA",
        "values": _numbers(cka.values.T),
        "errors": None if errors is None else _numbers(errors),
        "low": 0,
        "high": 1,
        "colours": style.colour_map(),
    }


def distance_lines(result: xr.DataArray) -> InteractiveFigure:
    """Interactive form of `plot_attention_distance`: lines that show the name of each head.

    Args:
        result: DataArray of dims (layer, head), in pixels.

    Returns:
        dict with `kind`, which is "lines"; `series`, a dict for each layer with its `name`, its
        `short` name, its `colour`, the sorted `values` of its heads and their `labels`; `title`,
        the name of the model; `x_label`, `y_label` and `value_label`.
    """
    distance = expect_array(result, ("layer", "head"))
    names = layer_names(distance)
    short, _ = shorten(names)
    heads = [f"head {head}" for head in distance["head"].values]
    series = []
    colours = style.as_hex(map(tuple, style.depth_colours(len(names))))
    for name, brief, colour, row in zip(names, short, colours, distance.values, strict=True):
        order = np.argsort(row, kind="stable")
        line = {"values": _numbers(row[order]), "labels": [heads[index] for index in order]}
        series.append({"name": name, "short": brief, "colour": colour, **line})
    return {
        "kind": "lines",
        "title": result.attrs.get("model", ""),
        "x_label": "head, sorted by distance within its layer",
        "y_label": "mean attention distance (pixels)",
        "value_label": "pixels",
        "series": series,
    }


def _numbers(values: np.ndarray) -> list[Any] | float | None:
    """Nested lists of numbers with four significant digits, None for what is not finite."""
    if np.ndim(values):
        return [_numbers(row) for row in values]
    return float(f"{values:.4g}") if np.isfinite(values) else None
