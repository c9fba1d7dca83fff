"""What all plots share: checks of results, new axes, colours, colour bars and legends."""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import xarray as xr

from ..engine.results import Result, expect_variable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.legend import Legend
    from matplotlib.typing import ColorType

ResultT = TypeVar("ResultT", xr.DataArray, xr.Dataset, Result)
# One result, or a dict from label to several.
Arrays: TypeAlias = xr.DataArray | dict[str, xr.DataArray]
Datasets: TypeAlias = xr.Dataset | dict[str, xr.Dataset]
Label = TypeVar("Label", bound=Hashable)  # of a line

ACCENT = "#35e0ff"  # stands out from every colour of the heatmaps
LONG_ENTRY = 26
MARKERS = "osD^vPX*<>"
LINE_STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
SPANNED = "colours span the values drawn"
POINTS = "percentage points"  # in the label of an axis along which fractions differ
# Where a legend is: to the right of the axes.
LEGEND = {
    **{"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0, "frameon": False},
    **{"fontsize": 8, "title_fontsize": 8, "alignment": "left"},
}


def by_label(results: ResultT | dict[str, ResultT]) -> dict[str, ResultT]:
    """The results as a dict from label to result; the label of a single result is ""."""
    return results if isinstance(results, dict) else {"": results}


def labelled(results: Datasets, variable: str, *dims: str) -> dict[str, xr.DataArray]:
    """Dict from label to that variable of each result; where dims are named, it is checked."""
    return {
        label: expect_variable(result, variable, dims) if dims else result[variable]
        for label, result in by_label(results).items()
    }


def token_layout(result: Result) -> tuple[int, tuple[int, int]]:
    """The number of prefix tokens and the grid's (rows, columns), from the attributes."""
    missing = [name for name in ("prefix", "rows", "columns") if name not in result.attrs]
    if missing:
        raise ValueError(
            f"Expected a result with the attributes {missing}. Received: {sorted(result.attrs)}"
        )
    prefix, rows, columns = (int(result.attrs[name]) for name in ("prefix", "rows", "columns"))
    return prefix, (rows, columns)


def titled(text: str, results: Arrays | Datasets) -> str:
    """The title of a plot; of a single result with the model's name, if it is known."""
    model = "" if isinstance(results, dict) else results.attrs.get("model", "")
    return f"{text}: {model}" if model else text


def models(result: Result) -> list[str]:
    """Names of the two models that a result compares; empty where unknown."""
    return [result.attrs.get(f"model_{which}", "") for which in "xy"]


def split(arrays: dict[str, xr.DataArray], dim: str) -> dict[tuple[str, Any], xr.DataArray]:
    """Dict from (label, coordinate along `dim`) to array, from one from label to array."""
    return {
        (label, value): array.sel({dim: value})
        for label, array in arrays.items()
        for value in array[dim].values.tolist()
    }


def percent(axis: "Axis") -> None:
    """Write the fractions along an axis in percent."""
    axis.set_major_formatter(lambda fraction, _: f"{100 * fraction:g}")


def new_axes(width: float, height: float, layout: str = "constrained") -> "Axes":
    """Axes of a new figure of a size in inches."""
    import matplotlib.pyplot as plt

    return plt.figure(figsize=(width, height), layout=layout).add_subplot()


def side(layers: int) -> float:
    """Length in inches of an axis with the names of so many layers."""
    return float(np.clip(0.16 * layers, 3.2, 6))


def colours(name: str) -> "Colormap":
    """A colour map that shows missing values as grey."""
    import matplotlib

    return matplotlib.colormaps[name].with_extremes(bad="0.85")


def as_hex(colours: Iterable["ColorType"]) -> list[str]:
    """Colours as "#rrggbb"."""
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colours]


def colour_map(name: str = "magma") -> list[str]:
    """The 256 colours of a map, from its low to its high end, as "#rrggbb"."""
    return as_hex(colours(name)(np.arange(256)))


def depth_colours(count: int) -> list[np.ndarray]:
    """Colours from dark (first) to bright (last layer), none too pale for white paper."""
    return list(colours("viridis")(np.linspace(0, 0.9, count)))


def distinct_colours(count: int) -> list["ColorType"]:
    """Colours that distinguish lines, as many as 20 of them."""
    palette = colours("tab10" if count <= 10 else "tab20")
    return [palette(index % palette.N) for index in range(count)]


# The models whose colours are fixed, in their order, and the one that unlabelled lines belong to.
_MODELS: ContextVar[tuple[tuple[str, ...], str]] = ContextVar("models", default=((), ""))


@contextmanager
def fixed_colours(names: Sequence[str], single: str = "") -> Iterator[None]:
    """Within it, plots give each of some models its own colour, whichever models they show.

    `single` is the model of a plot of one result, whose lines have no label.
    """
    token = _MODELS.set((tuple(names), single))
    try:
        yield
    finally:
        _MODELS.reset(token)


def line_colours(
    labels: Iterable[Label], baselines: Sequence[Label] = ()
) -> dict[Label, "ColorType"]:
    """Colours of lines by label: one for each model, and grey for baselines.

    Labels of one model, such as "ViT" and "ViT: CLS token", share its colour if it is fixed.
    """
    labels = list(dict.fromkeys(labels))
    coloured = [label for label in labels if label not in baselines]
    grey = [label for label in labels if label in baselines]
    shades = np.linspace(0.35, 0.7, max(len(grey), 2)).round(2).astype(str)
    models, single = _MODELS.get()
    owners = {label: _model_of(str(label) or single, models) for label in coloured}
    others = [label for label, owner in owners.items() if owner is None]
    palette = distinct_colours(len(models) + len(others))
    fixed = dict(zip(models, palette, strict=False))
    colours = dict(zip(others, palette[len(models) :], strict=True))
    colours |= {label: fixed[owner] for label, owner in owners.items() if owner is not None}
    return {label: colours[label] for label in coloured} | dict(
        zip(grey, shades[: len(grey)], strict=True)
    )


def _model_of(label: str, models: Sequence[str]) -> str | None:
    """The model that a label begins with, the longest of several."""
    starts = {name: (f"{name}:", f"{name},") for name in models}
    owners = [name for name in models if label == name or label.startswith(starts[name])]
    return max(owners, key=len, default=None)


def marker(index: int) -> str:
    """Marker of the line of this number; pairs of marker and colour do not repeat after ten."""
    return MARKERS[(index + index // 10) % len(MARKERS)]


def line_style(index: int) -> "str | tuple[int, tuple[int, ...]]":
    """Line style of the line of this number."""
    return LINE_STYLES[index % len(LINE_STYLES)]


def span(values: np.ndarray) -> dict[str, Any]:
    """The `vmin` and `vmax` of colours that span the finite values; 0 and 1 for none."""
    finite = np.asarray(values)[np.isfinite(values)]
    if not finite.size:
        return {"vmin": 0.0, "vmax": 1.0}
    low, high = float(finite.min()), float(finite.max())
    return {"vmin": low, "vmax": high if high > low else low + 1}


def colour_bar(
    axes: "Axes | np.ndarray", image: "AxesImage", label: str, values: np.ndarray | None = None
) -> "Colorbar":
    """One colour bar of one or several axes, with an arrow at each end that values lie beyond."""
    values = cast(np.ndarray, image.get_array() if values is None else values)
    norm: Any = image.norm
    low, high = (values < norm.vmin).any(), (values > norm.vmax).any()
    extend = ("both" if high else "min") if low else ("max" if high else "neither")
    are_several = np.ndim(cast(Any, axes)) > 0
    size: dict[str, Any] = {"pad": 0.02} if are_several else {"fraction": 0.046, "pad": 0.03}
    bar = image.axes.figure.colorbar(image, ax=axes, extend=extend, aspect=30, **size)
    bar.set_label(label, fontsize=9)
    if POINTS in label:
        percent(bar.ax.yaxis)
    bar.ax.tick_params(labelsize=8)
    return bar


def figure_of(ax: "Axes") -> "Figure":
    """The whole figure of axes, which Matplotlib's types know as a figure or a part of one."""
    return cast("Figure", ax.figure)


def frame_cell(ax: "Axes", row: int, column: int) -> None:
    """Draw a frame around a cell of the last image of the axes, outside of the cell."""
    from matplotlib.patches import Rectangle
    from matplotlib.path import Path

    image = ax.images[-1]
    left, right, bottom, top = image.get_extent()
    rows, columns = cast(np.ndarray, image.get_array()).shape[:2]
    size = np.array([(right - left) / columns, (bottom - top) / rows])
    corner = np.array([left, top]) + size * [column, row]
    square = np.asarray(Path.unit_rectangle().vertices)
    inside, outside = square * size + corner, (3 * square[::-1] - 1) * size + corner
    x, y = corner.tolist()
    frame = Rectangle((x, y), *size, facecolor="none", edgecolor=ACCENT, zorder=3, linewidth=3.2)
    ax.add_patch(frame)
    frame.set_clip_box(None)  # the outer half of a cell at the edge lies outside the axes
    around = Path.make_compound_path(Path(outside, closed=True), Path(inside, closed=True))
    frame.set_clip_path(around, ax.transData)


def plain_log(axis: "Axis") -> None:
    """Ticks at 1, 2 and 5 of each decade as plain numbers; more within a single decade."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    steps = (1, 1.25, 1.5, 2, 3, 5, 6.5, 8) if decades < 1 else (1, 2, 5) if decades < 4 else (1,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def tidy(ax: "Axes", **labels: Any) -> None:
    """Remove the top and right spines of a line plot, add a light grid, and set its labels."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set(**labels)
    if POINTS in ax.get_ylabel():
        percent(ax.yaxis)


def legend(ax: "Axes", title: str | None = None) -> "Legend":
    """A legend next to the axes, where it covers nothing; long entries break after the model."""
    handles, labels = ax.get_legend_handles_labels()
    if max(map(len, labels)) > LONG_ENTRY:
        labels = [label.replace(": ", ":\n", 1) for label in labels]
    return ax.legend(handles, labels, title=title, handlelength=3.2, **LEGEND)
