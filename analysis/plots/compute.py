"""Accuracy against the compute that training took."""

import numpy as np

from . import style
from .layers import FONT_SIZE

UNITS = {1e18: "exa", 1e15: "peta", 1e12: "tera", 1e9: "giga", 1e6: "mega", 1e3: "kilo", 1: ""}
# Where the name of a point may stand, in points away from it: where it meets no other name.
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


def plot_compute(table, ax=None):
    """Test accuracy against training compute (Figure 5 of the ViT paper).

    Args:
        table: Dataset with `training_flops`, in floating-point operations, and `test_accuracy`, a
            share, both of dims (run,), with the coordinates `run`, names, and `family` (run).
            Runs without an accuracy (NaN) are left out.
        ax: Matplotlib axes; new ones if None.

    Returns:
        The axes: a named point per run, coloured by family; compute on a logarithmic axis.

    Raises:
        ValueError: if `table` is no such Dataset, no run has an accuracy, or one took no compute.
    """
    accuracy = style.expect_variable(table, "test_accuracy", ("run",))
    flops = style.expect_variable(table, "training_flops", ("run",))
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
        chosen = families == kind
        look = {"color": colour, "marker": style.marker(index), "linestyle": "none"}
        ax.plot(flops[chosen] / unit, percent[chosen], label=kind, **look)
    ax.set(
        xscale="log", xlabel=f"training compute ({UNITS[unit]}FLOPs)", ylabel="test accuracy (%)"
    )
    ax.set_title(style.titled("Accuracy against training compute", table))
    ax.margins(0.15, 0.12)
    style.plain_log(ax.xaxis)
    style.tidy(ax)
    style.legend(ax, "family")
    _name_points(ax, flops / unit, percent, names)
    return ax


def _name_points(ax, x, y, names):
    """Writes the name of each point beside it, at the first of `PLACES` that is free."""
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
