"""`plot`: the plot of any result, found by its variables and dims."""

import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import xarray as xr

from ..engine.results import as_result, expect_results

# These modules say which results they draw.
from . import (  # noqa: F401
    attention_plots,
    flow_plots,
    picture_plots,
    probe_plots,
    property_plots,
    similarity_plots,
)
from .epoch_plots import plot_epochs
from .rule import find_plot, has_plot, is_measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(
    result: xr.DataArray | xr.Dataset | dict[str, xr.DataArray | xr.Dataset],
    ax: "Axes | None" = None,
    **options: Any,
) -> "Axes":
    """Draws the result of any measurement with the plot named `plot_<measurement>`.

    Args:
        result: result of a measurement, or a dict from label to result if the plot of the
            measurement accepts several results.
        ax: Matplotlib axes to draw in. None creates a figure.
        **options: further arguments of the plot, such as `title="..."`, `image=photo`,
            `query="cls"` or `layers=[...]`.

    Returns:
        The Matplotlib axes. If the plot has several panels, the array `ax.panels` holds the axes of
        the panels.

    Raises:
        ValueError: if there is no plot for the result, or if the plot itself raises a `ValueError`.
        TypeError: if an argument in `options` is not an argument of the plot.

    Examples:
        >>> rollout = analysis.attention_rollout(model, images)
        >>> ax = analysis.plot(rollout, query="cls")

    See also:
        `plot_cka`, `plot_attention_distance` and the other plots by name.
    """
    if isinstance(ax, str | os.PathLike):
        raise ValueError(
            f"Expected ax to be Matplotlib axes. Received: {str(ax)!r}. Save a plot with "
            "analysis.plot(result).figure.savefig(path)"
        )
    if isinstance(result, dict):
        result = {label: _as_measured(each) for label, each in expect_results(result).items()}
    else:
        result = _as_measured(result)
    results = result.values() if isinstance(result, dict) else [result]
    plots = {draw.__name__: draw for draw in map(_plot_of, results)}
    if len(plots) > 1:
        names = sorted(name.removeprefix("plot_") for name in plots)
        raise ValueError(f"Expected results of one measurement. Received: {names}")
    ((name, draw),) = plots.items()
    _, *known = inspect.signature(draw).parameters
    if unknown := sorted(set(options) - set(known)):
        raise TypeError(f"{name} has the options {known}. Received: {unknown}")
    return draw(result, ax, **options)


def _as_measured(result: Any) -> Any:
    """A result as its measurement returned it, also where `xr.open_dataset` read it from a file."""
    if isinstance(result, xr.Dataset) and not has_plot(result):
        return as_result(result)
    return result


def _plot_of(result: Any) -> Callable[..., Any]:
    """The plot of a result; `plot_epochs` for one that a `Recorder` repeated over epochs."""
    if "epoch" in getattr(result, "dims", ()) and is_measured(result) and not has_plot(result):
        return plot_epochs
    return find_plot(result)
