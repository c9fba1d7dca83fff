"""The rule of all plots: which results each draws, and the arguments that all have."""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast

import xarray as xr

from ..engine.results import (
    NoPlotError,
    Result,
    describe_result,
    expect_array,
    expect_results,
    expect_variable,
)
from .primitives import entitle
from .style import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Dims of a DataArray, as in "layer l2 [token]", where those in brackets may be missing; or of the
# variables of a Dataset, by name.
Shape: TypeAlias = str | dict[str, str]
R = TypeVar("R", contravariant=True)
P = ParamSpec("P")


class PlotFunction(Protocol[R, P]):
    """A plot as it is called: its result, the axes and the title, and its own options."""

    def __call__(
        self,
        result: R,
        /,
        ax: "Axes | None" = None,
        title: str | None = None,
        *args: P.args,
        **options: P.kwargs,
    ) -> "Axes": ...


@dataclass(frozen=True)
class Plot:
    """A plot that `plot(result)` may choose.

    Attributes:
        draw: the function.
        shapes: dims of the results that it draws.
        measurements: names of the measurements whose results these are.
        names_model: whether such results have the attribute `model`; tables of several runs do not.
    """

    draw: Callable[..., Any]
    shapes: tuple[Shape, ...]
    measurements: tuple[str, ...]
    names_model: bool


# The plots that `plot(result)` may choose, by the name of the measurement.
PLOTS: dict[str, Plot] = {}
# Attributes of every result that a measurement of a model makes.
MODEL_NAMES = ("model", "model_x")


def draws(
    *shapes: Shape,
    of: str = "",
    several: bool = False,
    by_name_only: bool = False,
    names_model: bool = True,
    size: tuple[float, float] | None = None,
) -> Callable[[Callable[Concatenate[R, Any, P], "Axes"]], "PlotFunction[R, P]"]:
    """Returns a decorator for a plot, a function `plot_<measurement>(result, ax, *, ...)`.

    The function gets a result of one of the shapes, with the dims in their order. The decorator
    adds the argument `title`.

    Args:
        *shapes: dims of the results that the plot draws, as alternatives.
        of: names of the measurements that return such results, as "a, b"; by default, the
            measurement in the name of the plot.
        several: whether the plot also draws a dict from label to result; its argument is then
            called `results`.
        by_name_only: whether the plot is available by its name only, since `plot(result)` draws
            such results with another plot.
        names_model: whether the results have the attribute `model`; `plot(result)` refuses others.
        size: size in inches of the figure whose axes the function gets if `ax` is None. Without
            a size, the function gets None and creates the figure itself.
    """

    def decorate(
        function: Callable[Concatenate[R, Any, P], "Axes"],
    ) -> PlotFunction[R, P]:
        name = function.__name__

        @functools.wraps(function)
        def draw(
            result: Any, /, ax: "Axes | None" = None, title: str | None = None, **options: Any
        ) -> "Axes":
            if not isinstance(result, dict):
                result = _checked(result, shapes)
            elif several:
                result = {
                    key: _checked(each, shapes) for key, each in expect_results(result).items()
                }
            else:
                raise ValueError(
                    f"{name} draws one result at a time. Received: {len(result)} results; draw "
                    "each with its own ax="
                )
            if ax is None and size:
                ax = new_axes(*size)
            drawn = cast(Any, function)(result, ax, **options)
            if title is not None:
                entitle(drawn, title)
            return drawn

        # The result, `ax` and `title`, and the plot's own options.
        signature = inspect.signature(function)
        first, ax, *options = signature.parameters.values()
        ax = ax.replace(default=None)
        title = ax.replace(name="title", annotation="str | None")
        parameters = [first.replace(kind=inspect.Parameter.POSITIONAL_ONLY), ax, title, *options]
        cast(Any, draw).__signature__ = signature.replace(parameters=parameters)
        if not by_name_only:
            own = name.removeprefix("plot_")
            measurements = of.split(", ") if of else ()
            PLOTS[own] = Plot(draw, shapes, (own, *measurements), names_model)
        return cast("PlotFunction[R, P]", draw)

    return decorate


def _checked(result: Result, shapes: tuple[Shape, ...]) -> Result:
    """The result with its dims in the order of the first shape that it has, or a `ValueError`."""
    errors = []
    for shape in shapes:
        try:
            if isinstance(shape, dict):
                variables = {
                    name: expect_variable(result, name, tuple(dims.split()))
                    for name, dims in shape.items()
                }
                return result.assign(variables)
            dims = [dim for dim in shape.split() if not dim.startswith("[")]
            return expect_array(result, tuple(dims), tuple(re.findall(r"\[(\w+)\]", shape)))
        except ValueError as error:
            errors.append(error)
    raise errors[0]


def find_plot(result: Result) -> Callable[..., Any]:
    """The plot that fits a result: that of its name, otherwise that of the most variables.

    Only results of measurements have a plot: DataArrays with the name of a measurement, and results
    that name their model.
    """
    name = result.name if isinstance(result, xr.DataArray) else None
    named = [plot for plot in PLOTS.values() if name in plot.measurements]
    fitting = {}
    for own_name, plot in PLOTS.items():
        if (named and plot not in named) or (plot.names_model and not is_measured(result)):
            continue
        for shape in plot.shapes:
            try:
                _checked(result, (shape,))
            except ValueError:
                continue
            num_variables = len(shape) if isinstance(shape, dict) else 0
            fitting[plot.draw] = (name == own_name, num_variables)
    if not fitting:
        words = "" if is_measured(result) else ", which has the attribute 'model'"
        raise NoPlotError(
            f"Expected a result of a measurement{words}. Received: {describe_result(result)}"
        )
    return max(fitting, key=lambda draw: fitting[draw])


def is_measured(result: Result) -> bool:
    """Whether a measurement made a result: it names the model, or is named like a measurement."""
    names = {name for plot in PLOTS.values() for name in plot.measurements}
    is_named = isinstance(result, xr.DataArray) and result.name in names
    return is_named or any(key in getattr(result, "attrs", {}) for key in MODEL_NAMES)


def has_plot(result: Result) -> bool:
    """Whether `plot(result)` draws a result."""
    try:
        find_plot(result)
    except ValueError:
        return False
    return True
