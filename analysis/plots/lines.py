"""Line plots over heads or depth: attention distance, skip against branch."""

import re

import numpy as np

from ..engine.results import (
    expect_array,
    expect_variable,
    layer_names,
    select_layers,
)
from . import style
from .layers import depth_axis, layer_label, shorten

LARGEST_LEGEND = 24


def plot_attention_distance(result, ax=None, layers=None):
    """Mean attention distance of each head, sorted by it, one line per layer (Figures 3 and 4).

    Args:
        result: DataArray of dims (layer, head), in pixels or the `units` in its attributes.

    Returns:
        The axes: rank of a head within its layer against its mean distance.
    """
    result = expect_array(result, ("layer", "head"))
    result = select_layers(result, layers)
    names, cut = shorten(layer_names(result))
    colours = style.depth_colours(len(names))
    ranks = np.arange(1, result.sizes["head"] + 1)
    ax = style.new_axes(7, 4.2) if ax is None else ax
    for name, colour, heads in zip(names, colours, result.values, strict=True):
        ax.plot(ranks, np.sort(heads), marker="o", markersize=3.5, color=colour, label=name)
    ax.set_title(style.titled("Attention distance", result))
    ax.set(xlabel="head, sorted by distance within its layer")
    ax.set(ylabel=f"mean attention distance ({result.attrs.get('units', 'pixels')})")
    ax.set_ylim(bottom=0)
    ax.xaxis.get_major_locator().set_params(integer=True)
    style.tidy(ax)
    if len(names) <= LARGEST_LEGEND:
        style.legend(ax, title=layer_label(cut))
    else:
        _depth_bar(ax, names, colours, layer_label(cut))
    return ax


def plot_distance_by_depth(results, ax=None):
    """Attention distance of every head against depth (Figures 4 and 15 of Walmer et al. 2023).

    Also the right panel of figure 7 of Dosovitskiy et al. 2020.

    Args:
        results: DataArray of dims (layer, head) from `mean_distance` or `attention_distance`.

    Returns:
        The axes: a point per head, a line through the means of the layers.

    Raises:
        ValueError: if the units of the distances differ.
    """
    distances = style.labelled(results, ("layer", "head"))
    units = {str(result.attrs.get("units", "")) for result in distances.values()}
    if len(units) > 1:
        raise ValueError(f"Expected distances of one unit. Received: {sorted(units)}")
    ax = style.new_axes(8, 4.2) if ax is None else ax
    depths = depth_axis(ax, [layer_names(result) for result in distances.values()])
    colours = style.line_colours(distances)
    for depth, (label, result) in zip(depths, distances.items(), strict=True):
        many, colour = np.repeat(depth, result.sizes["head"]), colours[label]
        ax.scatter(many, result.values.ravel(), s=14, color=colour, alpha=0.5, linewidth=0)
        mean = result.values.mean(axis=1)
        ax.plot(depth, mean, color=colour, label=label or "mean of the heads")
    ax.set_title(style.titled("Attention distance by depth (points: heads)", results))
    ax.set(ylabel=f"mean distance ({units.pop() or 'no unit'})")
    ax.set_ylim(0, 1.06 * max(result.values.max() for result in distances.values()))
    style.tidy(ax)
    style.legend(ax)
    return ax


def _depth_bar(ax, names, colours, heading):
    """A colour bar with one step per layer, for more layers than a legend can hold."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    steps = ScalarMappable(Normalize(-0.5, len(names) - 0.5), ListedColormap(colours))
    bar = ax.figure.colorbar(steps, ax=ax, label=heading, pad=0.02)
    every = slice(None, None, 1 + len(names) // LARGEST_LEGEND)
    bar.set_ticks(np.arange(len(names))[every], labels=names[every], fontsize=8)
    bar.ax.tick_params(length=0)


def plot_skip_ratio_lines(results, ax=None, variable="norm_ratio"):
    """Skip against branch at each depth, averaged over tokens (Figures 7 right and E.2).

    Args:
        results: Dataset with `norm_ratio` and `cosine` of dims (layer, token) and the attribute
            `prefix`, the number of tokens that lead the grid (0: ResNets, GAP).
        variable: "norm_ratio", ||skip|| / ||branch||, or "cosine", of skip and branch.

    Returns:
        The axes. Colours tell models and kinds of token apart, line styles the sites of a block.
    """
    variable = style.expect_skip_variable(variable)
    lines = {
        f"{label}: {kind}" if label else kind: line
        for label, result in style.by_label(results).items()
        for kind, line in _token_means(result, variable)
    }
    layers = [layer_names(line) for line in lines.values()]
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    ax.axhline(1 if variable == "norm_ratio" else 0, color="0.55", linewidth=0.9, zorder=1)
    colours = style.distinct_colours(len(lines))
    depths = depth_axis(ax, layers)
    for names, depth, colour, (label, line) in zip(
        layers, depths, colours, lines.items(), strict=True
    ):
        _plot_sites(ax, depth, line.values, names, label, colour)
    ax.set_title(style.titled("Skip against branch, means over tokens", results))
    ax.set(ylabel=style.SKIP_LABELS[variable])
    _scale_skip(ax, variable)
    style.tidy(ax)
    style.legend(ax)
    return ax


def _token_means(result, variable):
    """List of (kind of token, mean over its tokens of dims (layer,)), NaN left out."""
    values = expect_variable(result, variable, ("layer", "token"))
    if "prefix" not in result.attrs:
        raise ValueError(f"Expected the attribute 'prefix'. Received: {sorted(result.attrs)}")
    prefix = int(result.attrs["prefix"])
    spatial = ("spatial tokens", values.isel(token=slice(prefix, None)).mean("token"))
    if not prefix:
        return [spatial]
    first = [("CLS token", values.isel(token=0))]
    if prefix > 1:
        others = values.isel(token=slice(1, prefix)).mean("token")
        first.append(("other prefix tokens", others))
    return [*first, spatial]


def _plot_sites(ax, depth, values, names, label, colour):
    """One line per site of a block ("attention", "mlp"): a single line would zigzag."""
    last = [name.rpartition("/")[2] for name in shorten(names)[0]]
    sites = np.array(["" if re.search(r"\d", name) else name for name in last])
    for order, site in enumerate(dict.fromkeys(sites)):
        here = sites == site
        ax.plot(
            depth[here],
            values[here],
            color=colour,
            linestyle=style.LINE_STYLES[order % len(style.LINE_STYLES)],
            marker=style.MARKERS[order % len(style.MARKERS)],
            markersize=4.5,
            markerfacecolor=colour if order == 0 else "white",
            label=f"{label}, {site}" if site else label,
        )


def _scale_skip(ax, variable):
    """Ratios on a log scale, cosines on all of [-1, 1]."""
    if variable == "norm_ratio":
        ax.set_yscale("log")
        style.plain_log(ax.yaxis)
    else:
        ax.set_ylim(-1.05, 1.05)


def plot_attention_distances(results):
    """A panel for each model, at most three a row, on one scale."""
    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    size = (3.8 * columns + 1.8, 3.6 * rows + 0.6)
    axes = style.new_grid(rows, columns, size, "Mean attention distance", "constrained", 12)
    drawn = style.leading(axes, len(results))
    for ax, (name, result) in zip(drawn, results.items(), strict=True):
        plot_attention_distance(result, ax=ax).set_title(name, fontsize=10)
    top = max(ax.get_ylim()[1] for ax in drawn)
    layers = {tuple(result.layer.values) for result in results.values()}
    for ax in drawn:
        ax.set_ylim(0, top)
        if len(layers) == 1 and ax is not axes[0, -1] and ax.get_legend():
            ax.get_legend().remove()
    return drawn
