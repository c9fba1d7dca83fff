"""What all plots share: arrays to draw, new axes, colours, colour bars and legends."""

import math

import numpy as np

from ..engine.results import expect_array, expect_results, expect_variable

SKIP_LABELS = {
    "norm_ratio": "norm of skip / norm of branch",
    "cosine": "cosine of skip and branch",
}
LONG_ENTRY = 26
ACCENT = "#35e0ff"  # stands out from every colour of the heatmaps
MARKERS = "osD^vPX*<>"
LINE_STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))


def expect_skip_variable(variable):
    """Return `variable` if `skip_ratio` has it, or raise a `ValueError`."""
    if variable not in SKIP_LABELS:
        raise ValueError(f"Expected variable in {list(SKIP_LABELS)}. Received: {variable!r}")
    return variable


def by_label(results):
    """The results as a dict from label to result; the label of a single result is ""."""
    return expect_results(results if isinstance(results, dict) else {"": results})


def labelled(results, dims, variable=None):
    """The arrays to draw, of one result or several: dict from label to DataArray.

    Args:
        results: as for `by_label`.
        dims: dims that each array must have.
        variable: name of the array in each result, a Dataset; None if results are DataArrays.
    """
    return {
        label: expect_array(result, dims)
        if variable is None
        else expect_variable(result, variable, dims)
        for label, result in by_label(results).items()
    }


def chosen(values, **wanted):
    """The part of a DataArray at these values of its coordinates; a `ValueError` if it has none."""
    for dim, value in wanted.items():
        known = values[dim].values.tolist()
        if value not in known:
            raise ValueError(f"Expected {dim} among {known}. Received: {dim}={value!r}")
        values = values.sel({dim: value})
    return values


def layout(result):
    """The number of prefix tokens and the grid's (rows, columns), from the attributes."""
    missing = [name for name in ("prefix", "rows", "columns") if name not in result.attrs]
    if missing:
        raise ValueError(f"Expected the attributes {missing}. Received: {sorted(result.attrs)}")
    prefix, rows, columns = (int(result.attrs[name]) for name in ("prefix", "rows", "columns"))
    return prefix, (rows, columns)


def titled(text, results):
    """The title of a plot; of a single result with the model's name, if it is known."""
    model = "" if isinstance(results, dict) else results.attrs.get("model", "")
    return f"{text}: {model}" if model else text


def percent(axis):
    """Write the shares along an axis in percent."""
    axis.set_major_formatter(lambda share, _: f"{100 * share:g}")


def new_axes(width, height):
    """Axes of a new figure of a size in inches."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def new_grid(rows, columns, size, title=None, layout="compressed", fontsize=11):
    """Axes of shape (rows, columns) of a new figure of a size in inches, under a title."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, layout=layout, squeeze=False)
    if title is not None:
        figure.suptitle(title, fontsize=fontsize)
    return axes


def leading(axes, count):
    """The first `count` axes of a grid, row by row; the others are removed."""
    axes = axes.ravel()
    for ax in axes[count:]:
        ax.remove()
    return axes[:count]


def new_panels(count, title, tall=1):
    """`count` axes of a new figure, row by row, `tall` times as high as wide."""
    columns = min(count, max(3, min(7, math.ceil(math.sqrt(1.6 * count)))))
    rows = math.ceil(count / columns)
    size = (max(4.2, 1.6 * columns + 1.2), max(2.6, (1.6 * tall + 0.15) * rows + 0.7))
    return leading(new_grid(rows, columns, size, title), count)


def expect_axes(axes, count, what):
    """The first `count` of given axes, as a flat array, or a `ValueError` if they are fewer."""
    axes = np.asarray(axes).ravel()
    if len(axes) < count:
        raise ValueError(f"Expected at least {count} axes, one per {what}. Received: {len(axes)}")
    return axes[:count]


def shrink_wrap(ax, width, height):
    """Size a new figure so that its axes have this size in inches without their labels."""
    figure = ax.figure
    figure.draw_without_rendering()
    whole = figure.get_tightbbox()
    inner = ax.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    figure.set_size_inches(
        width + whole.width - inner.width + 0.1, height + whole.height - inner.height + 0.1
    )


def fit_panels(axes, inches):
    """Size a new figure so that its panels are squares of this side, then fix its layout."""
    figure = axes[0].figure
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # names are wider at other resolutions
    rows, columns = axes[0].get_gridspec().get_geometry()
    for _ in range(4):  # converges: the colour bar takes a small share of each change
        figure.draw_without_rendering()
        panel = axes[0].get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        size = figure.get_size_inches()
        grow = columns * (inches - panel.width), rows * (inches - panel.height)
        figure.set_size_inches(size + np.array(grow))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def side(layers):
    """Length in inches of an axis with the names of so many layers."""
    return float(np.clip(0.16 * layers, 3.2, 6))


def colours(name):
    """A colour map that shows missing values as grey."""
    import matplotlib

    return matplotlib.colormaps[name].with_extremes(bad="0.85")


def depth_colours(count):
    """Colours from dark (first) to bright (last layer), none too pale for white paper."""
    return list(colours("viridis")(np.linspace(0, 0.9, count)))


def distinct_colours(count):
    """Colours to tell lines apart, as many as 20 of them."""
    palette = colours("tab10" if count <= 10 else "tab20")
    return [palette(index % palette.N) for index in range(count)]


def line_colours(labels, baselines=()):
    """Distinct colours of lines, grey for baselines: dict from label to colour."""
    labels = list(dict.fromkeys(labels))
    own = [label for label in labels if label not in baselines]
    grey = [label for label in labels if label in baselines]
    shades = np.linspace(0.35, 0.7, max(len(grey), 2)).round(2).astype(str)
    return dict(zip(own, distinct_colours(len(own)), strict=True)) | dict(
        zip(grey, shades[: len(grey)], strict=True)
    )


def marker(index):
    """Marker of the line of this number; pairs of marker and colour do not repeat after ten."""
    return MARKERS[(index + index // 10) % len(MARKERS)]


SPANNED = "colours span the values drawn"


def span(values):
    """The `vmin` and `vmax` of colours that span the finite values; 0 and 1 for none."""
    finite = np.asarray(values)[np.isfinite(values)]
    if not finite.size:
        return {"vmin": 0.0, "vmax": 1.0}
    low, high = float(finite.min()), float(finite.max())
    return {"vmin": low, "vmax": high if high > low else low + 1}


def colour_bar(ax, image, label):
    """A colour bar with an arrow at each end that values lie beyond."""
    extend = _beyond(image.get_array(), image.norm)
    return ax.figure.colorbar(
        image, ax=ax, label=label, extend=extend, fraction=0.046, pad=0.03, aspect=30
    )


def shared_colour_bar(axes, image, label, values):
    """One colour bar of all panels, with an arrow at each end that any of the values lie beyond."""
    extend = _beyond(values, image.norm)
    bar = axes[0].figure.colorbar(image, ax=list(axes), extend=extend, aspect=30, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return bar


def panel_bar(axes, image, label, aspect=25, pad=0.015):
    """One colour bar of all panels, each of which is scaled to its own maximum."""
    bar = axes[0].figure.colorbar(image, ax=list(axes), aspect=aspect, pad=pad)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return bar


def frame_cell(ax, row, column):
    """Draw a frame around a cell of an image, outside of the cell; return the patch."""
    from matplotlib.patches import Rectangle
    from matplotlib.path import Path

    square, corner = Path.unit_rectangle().vertices, np.array([column, row]) - 0.5
    inside, outside = square + corner, 3 * square[::-1] + corner - 1
    frame = Rectangle(corner, 1, 1, facecolor="none", edgecolor=ACCENT, zorder=3)
    frame.set_linewidth(3.2)  # of which the outer half is seen
    ax.add_patch(frame)
    frame.set_clip_box(None)  # the outer half of a cell at the edge lies outside the axes
    around = Path.make_compound_path(Path(outside, closed=True), Path(inside, closed=True))
    frame.set_clip_path(around, ax.transData)
    return frame


def _beyond(values, norm):
    """The ends of the colour scale that values lie beyond, as Matplotlib's `extend`."""
    low, high = bool((values < norm.vmin).any()), bool((values > norm.vmax).any())
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[low, high]


def plain_log(axis):
    """Ticks at 1, 2 and 5 of each decade as plain numbers; more within a single decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    steps = (1, 1.25, 1.5, 2, 3, 5, 6.5, 8) if decades < 1 else (1, 2, 5) if decades < 4 else (1,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def tidy(ax):
    """Remove the top and right spines of a line plot and add a light grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)


# A legend to the right of the axes.
BESIDE = {
    "loc": "upper left",
    "bbox_to_anchor": (1.01, 1),
    "borderaxespad": 0,
    "frameon": False,
    "fontsize": 8,
    "title_fontsize": 8,
    "alignment": "left",
}


def legend(ax, title=None):
    """A legend beside the axes, where it covers nothing; long entries break after the model."""
    handles, labels = ax.get_legend_handles_labels()
    if max(map(len, labels)) > LONG_ENTRY:
        labels = [label.replace(": ", ":\n", 1) for label in labels]
    return ax.legend(
        handles,
        labels,
        title=title,
        handlelength=3.2,
        **BESIDE,
    )
