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
        result: Dataset with `cka` and, if known, `stderr`, both of dims (layer_x, layer_y).

    Returns:
        Dict, ready for JSON.

        * `kind`: the string "heatmap".
        * `x` and `y`: the names of the layers along both axes.
        * `values`: a list for each layer of `y`, with a number for each layer of `x`. None replaces
          numbers that are not finite.
        * `errors`: the standard errors in the form of `values`, or None if `result` has no
          `stderr`.
        * `low` and `high`: the limits of the colour scale.
        * `colours`: the colours of the scale, from low to high.
        * `x_label`, `y_label` and `value_label`: the labels of the axes and of the values.
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
        result: DataArray of attention distances in pixels, of dims (layer, head).

    Returns:
        Dict, ready for JSON.

        * `kind`: the string "lines".
        * `series`: a dict for each layer, with its `name`, its `short` name and its `colour`. Its
          `values` are the sorted distances of its heads, and its `labels` are the names of these
          heads.
        * `title`: the name of the model.
        * `x_label`, `y_label` and `value_label`: the labels of the axes and of the values.
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
