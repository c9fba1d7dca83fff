"""Representations during training, accuracy versus compute, and claims over seeds."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..engine.estimates import current_outcome
from ..engine.results import expect_variable, layer_names
from . import style
from .layers import FONT_SIZE, layer_label, name_layers, shorten
from .primitives import panels, renamed_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Title, colour map and label of the colour bar of each quantity.
PANELS = {
    "cka_to_start": ("CKA with initialization", "magma", "CKA"),
    "cka_to_previous": ("CKA with the previous record", "magma", "CKA"),
    "accuracy": ("ridge-probe accuracy", "viridis", "test accuracy (%)"),
}
WIDTH = 3.4  # inches of a panel
VERDICTS = {
    "replicates": "tab:blue",
    "does not replicate": "tab:orange",
    "inconclusive": "0.45",
    "descriptive": "0.7",
}


@renamed_arguments(axes="ax")
def plot_formation(result: xr.Dataset, ax: "Axes | None" = None) -> "Axes":
    """Representations of every layer during training: CKA over epochs, and probe accuracy.

    Args:
        result: Dataset of dims (epoch, layer) from `FormationRecorder.result`.
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes, with `ax.panels` of shape (quantity,), a matrix each: `cka_to_start`,
        `cka_to_previous`, colours fixed to [0, 1], and `accuracy` where there is one, colours from
        the lowest to the highest. Layers run upwards, and each record fills the time around its
        epoch.

    Raises:
        ValueError: for another result.

    Examples:
        >>> result = analysis.formation(model, images)
        >>> ax = analysis.plot_formation(result)

    See also:
        `FormationRecorder`, `plot_cka`.
    """
    names = [name for name in PANELS if name != "accuracy" or name in result]
    values = [expect_variable(result, name, ("epoch", "layer")) for name in names]
    height = 0.8 * style.side(result.sizes["layer"])
    title, shape = style.titled("Representations during training", result), len(names)
    label = layer_label(shorten(layer_names(result))[1])
    ax, flat = panels(ax, shape, title, "quantity", shape, inches=(WIDTH, height))
    for panel, name, quantity in zip(flat, names, values, strict=True):
        limits = (None, None) if name == "accuracy" else (0, 1)
        _draw(panel, quantity, *PANELS[name], limits=limits)
    flat[0].set_ylabel(label)
    return ax


def _draw(ax, values, title, colours, label, limits):
    """One heatmap, with its colour bar."""
    epochs, layers = values["epoch"].values, layer_names(values)
    low, high = limits
    image = ax.pcolormesh(
        _edges(epochs),
        np.arange(len(layers) + 1) - 0.5,
        np.ma.masked_invalid(values.values.T),
        cmap=style.colours(colours),
        vmin=low,
        vmax=high,
    )
    ax.set_facecolor("0.85")  # where there is no value
    ax.set_title(title, fontsize=10)
    ax.set_xlabel("epoch")
    ax.tick_params(labelsize=FONT_SIZE)
    ax.xaxis.get_major_locator().set_params(integer=True)
    name_layers(ax, "y", shorten(layers)[0], np.arange(len(layers)))
    ax.label_outer()
    bar = style.colour_bar(ax, image, label)
    if limits == (None, None):
        style.percent(bar.ax.yaxis)


def _edges(epochs):
    """Edges of the cells of each epoch: halfway to its neighbours."""
    epochs = np.asarray(epochs, float)
    if len(epochs) == 1:
        return np.array([epochs[0] - 0.5, epochs[0] + 0.5])
    middle = (epochs[1:] + epochs[:-1]) / 2
    return np.concatenate([[2 * epochs[0] - middle[0]], middle, [2 * epochs[-1] - middle[-1]]])


UNITS = {1e18: "exa", 1e15: "peta", 1e12: "tera", 1e9: "giga", 1e6: "mega", 1e3: "kilo", 1: ""}
# Offsets of a label from its point, in points: the first one without overlap is used.
PLACES = (
    ((7, 0), "left", "center"),
    ((0, 7), "center", "bottom"),
    ((0, -7), "center", "top"),
    ((-7, 0), "right", "center"),
    ((6, 6), "left", "bottom"),
    ((6, -6), "left", "top"),
    ((-6, 6), "right", "bottom"),
    ((-6, -6), "right", "top"),
)


def plot_compute(table: xr.Dataset, ax: "Axes | None" = None) -> "Axes":
    """Test accuracy versus training compute (Figure 5 of the ViT paper).

    Args:
        table: Dataset with `training_flops`, in floating-point operations, and `test_accuracy`, a
            share, both of dims (run,), with the coordinates `run`, names, and `family` (run).
            Runs without an accuracy (NaN) are left out.
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes: a named point per run, coloured by family; compute on a logarithmic axis.

    Raises:
        ValueError: if no run has an accuracy, or one has no compute.

    Examples:
        >>> table = analysis.compute(runs)
        >>> ax = analysis.plot_compute(table)

    See also:
        `vit_tf.count_flops`, and the command `vit-tf compute`, which makes the table.
    """
    accuracy = expect_variable(table, "test_accuracy", ("run",))
    flops = expect_variable(table, "training_flops", ("run",))
    known = np.isfinite(accuracy.values)
    if "family" not in table.coords or not known.any() or (flops.values[known] <= 0).any():
        raise ValueError(
            "Expected the coordinate family, a run with an accuracy, and compute above 0. "
            f"Received: coordinates {sorted(map(str, table.coords))}, "
            f"accuracies {accuracy.values}, compute {flops.values}"
        )
    percent, flops = 100 * accuracy.values[known], flops.values[known].astype("float64")
    families, names = table["family"].values[known], table["run"].values[known]
    unit = next((unit for unit in UNITS if unit <= flops.max()), 1)
    ax = style.new_axes(7.5, 4.6) if ax is None else ax
    kinds = list(dict.fromkeys(families.tolist()))
    for index, (kind, colour) in enumerate(
        zip(kinds, style.distinct_colours(len(kinds)), strict=True)
    ):
        members = families == kind
        look = {"color": colour, "marker": style.marker(index), "linestyle": "none"}
        ax.plot(flops[members] / unit, percent[members], label=kind, **look)
    ax.set(
        xscale="log", xlabel=f"training compute ({UNITS[unit]}FLOPs)", ylabel="test accuracy (%)"
    )
    ax.set_title(style.titled("Test accuracy versus training compute", table))
    ax.margins(0.15, 0.12)
    style.plain_log(ax.xaxis)
    style.tidy(ax)
    style.legend(ax, "family")
    _name_points(ax, flops / unit, percent, names)
    return ax


def _name_points(ax, x, y, names):
    """Writes the name of each point next to it, at the first free one of `PLACES`."""
    from matplotlib.transforms import Bbox

    ax.figure.draw_without_rendering()
    centres = ax.transData.transform(np.column_stack([x, y]))
    taken = [Bbox.from_bounds(*(centre - 4), 8, 8) for centre in centres]
    for point, name in zip(zip(x, y, strict=True), names, strict=True):
        place = {"xytext": (0, 0), "textcoords": "offset points", "fontsize": FONT_SIZE}
        text = ax.annotate(str(name), point, **place)
        for offset, horizontal, vertical in PLACES:
            text.set(position=offset, ha=horizontal, va=vertical)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(text.get_window_extent())


def plot_trainings(result: xr.Dataset, ax: "Axes | None" = None) -> "Axes":
    """Claims of papers measured in several runs, each relative to its threshold.

    Args:
        result: Dataset of `scorecard_of_trainings`, with `values` of dims (claim, training).
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes: a row for each tested claim, on a scale of its own that ends at the
        largest distance from the threshold, the side that the paper reports on the right. Points
        are runs, diamonds their mean, coloured by the outcome, with the interval.

    Raises:
        ValueError: for another result, or one without a tested claim.

    Examples:
        >>> scores = analysis.scorecard_of_trainings(folders)
        >>> ax = analysis.plot_trainings(scores)

    See also:
        `scorecard_of_trainings`, `report_trainings`.
    """
    values = expect_variable(result, "values", ("claim", "training"))
    rows = [row for row in result["claim"].values if np.isfinite(result["value"].sel(claim=row))]
    if not rows:
        raise ValueError("Expected a claim that was tested. Received: none")
    ax = style.new_axes(10.5, 0.25 * len(rows) + 1.4) if ax is None else ax
    for place, name in enumerate(rows):
        row = result.sel(claim=name)
        side = 1 if row["direction"].item() == "above" else -1
        every = values.sel(claim=name).values
        numbers = [row[end].item() for end in ("value", "low", "high")]
        away = side * (np.concatenate([numbers, every]) - row["threshold"].item())
        away = away / (np.nanmax(np.abs(away)) or 1.0)
        colour = VERDICTS[current_outcome(row["verdict"].item())]
        ax.plot(sorted(away[1:3]), [place] * 2, color=colour, linewidth=1.6)
        ax.plot(away[:1], [place], "D", color=colour, markersize=7, markerfacecolor="white")
        ax.plot(away[3:], [place] * len(every), "o", color=colour, markersize=3.5)
    ax.axvline(0, color="grey", linewidth=0.8, linestyle="--")
    statements = [result["statement"].sel(claim=row).item() for row in rows]
    ax.set_yticks(range(len(rows)), statements, fontsize=FONT_SIZE)
    ax.set_xticks([-1, 0, 1], ["opposite side", "threshold", "as reported"], fontsize=FONT_SIZE)
    ax.set(xlim=(-1.08, 1.08), ylim=(len(rows) - 0.5, -0.5))
    ax.set_title(f"Claims over {values.sizes['training']} runs")
    outcomes = [current_outcome(result["verdict"].sel(claim=row).item()) for row in rows]
    shown = list(dict.fromkeys(outcomes))
    for one in shown:
        ax.plot([], [], "D", color=VERDICTS[one], markerfacecolor="white", label=one)
    style.tidy(ax)
    style.legend(ax, "outcome")
    return ax
