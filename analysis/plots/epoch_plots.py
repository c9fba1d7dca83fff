"""Plots of a measurement that a `Recorder` repeated during training."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..engine.results import Result, describe_result, layer_names
from . import style
from .primitives import entitle, panels, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYER_DIMS = ("layer", "layer_x")
MAX_LABELS = 12  # layers that the legend names


def plot_epochs(result: Result, /, ax: "Axes | None" = None, title: str | None = None) -> "Axes":
    """Each layer's value of a measurement over the epochs of training.

    Each line is one layer, from dark (first) to bright (last), at the recorded epochs. The value is
    the mean over the other dims of the result, which the y axis names. A Dataset has a panel for
    each variable, without standard errors.

    Args:
        result: DataArray or Dataset with the dim `epoch`, from `Recorder.results`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (variable,).

    Raises:
        ValueError: if no variable of the result has numbers and the dim `epoch`.

    Examples:
        >>> result = recorder.results["attention_distance"]
        >>> ax = analysis.plots.plot_epochs(result)

    See also:
        `Recorder`, `plot_formation`.
    """
    variables = _recorded_variables(result)
    if not variables:
        raise ValueError(
            "Expected a result over epochs, from `Recorder.results`. "
            f"Received: {describe_result(result)}"
        )
    text = style.titled("During training", result) if title is None else title
    ax, flat = panels(ax, len(variables), text, list(variables), inches=(3.6, 2.8), size=10)
    for panel, values in zip(flat, variables.values(), strict=True):
        _draw_lines(panel, values)
    # The lines of all panels are the same layers, which one legend names.
    if flat[-1].get_legend_handles_labels()[0]:
        style.legend(flat[-1], "layer")
    if title is not None:
        entitle(ax, title)
    return ax


def _recorded_variables(result: Result) -> dict[str, xr.DataArray]:
    """The variables of numbers over epochs, by their name, without standard errors."""
    if isinstance(result, xr.DataArray):
        variables = {str(result.attrs.get("long_name", result.name or "")): result}
    else:
        variables = {str(name): values for name, values in result.data_vars.items()}
    return {
        name: values
        for name, values in variables.items()
        if "epoch" in values.dims and values.dtype.kind in "fiu" and not name.endswith("stderr")
    }


def _draw_lines(ax: "Axes", values: xr.DataArray) -> None:
    """Lines of the means (epoch, layer) of a variable over its other dims."""
    from matplotlib.ticker import MaxNLocator

    layer_dim = next((dim for dim in LAYER_DIMS if dim in values.dims), None)
    other_dims = [str(dim) for dim in values.dims if dim not in ("epoch", layer_dim)]
    means = values.mean(other_dims).transpose("epoch", ...)
    epochs = values["epoch"].values
    if layer_dim is None:
        ax.plot(epochs, means.values, color="0.2", marker=".")
    else:
        names, _ = shorten(layer_names(values, layer_dim))
        step = -(-len(names) // MAX_LABELS)
        named = {*range(0, len(names), step), len(names) - 1}
        for number, colour in enumerate(style.depth_colours(len(names))):
            label = names[number] if number in named else None
            ax.plot(epochs, means.values[:, number], color=colour, marker=".", label=label)
    units = str(values.attrs.get("units", "1"))
    label = "value" if units == "1" else units
    averaged = f" (mean over {', '.join(other_dims)})" if other_dims else ""
    style.tidy(ax, xlabel="epoch", ylabel=label + averaged)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    finite = means.values[np.isfinite(means.values)]
    if finite.size and np.ptp(finite) == 0:
        ax.set_ylim(finite[0] - 0.5, finite[0] + 0.5)
