"""Line plots over heads or depth: attention distance, skip against branch, linear probes."""

import itertools
import re

import numpy as np
import xarray as xr

from . import style
from .layers import layer_label, name_layers, shorten

MARKERS = "osD^vPX*<>"
LINE_STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
LARGEST_LEGEND = 24
NORMALISED = "normalised depth (0: first layer, 1: last layer)"


def plot_attention_distance(result, ax=None, layers=None):
    """Mean attention distance of each head, sorted by it, one line per layer (Figures 3 and 4).

    Args:
        result: DataArray of dims (layer, head), in pixels.
        ax: Matplotlib axes; new ones if None.
        layers: names of the layers to draw; all if None.

    Returns:
        The axes: rank of a head within its layer against its mean distance in pixels.

    Raises:
        ValueError: if the dims differ, or a layer is unknown.
    """
    result = style.expect_array(result, ("layer", "head"))
    result = style.select_layers(result, layers)
    names, cut = shorten(style.layer_names(result))
    colours = style.depth_colours(len(names))
    ranks = np.arange(1, result.sizes["head"] + 1)
    ax = style.new_axes(7, 4.2) if ax is None else ax
    for name, colour, heads in zip(names, colours, result.values, strict=True):
        ax.plot(ranks, np.sort(heads), marker="o", markersize=3.5, color=colour, label=name)
    ax.set_title(style.titled("Attention distance", result))
    ax.set(xlabel="head, sorted by distance within its layer")
    ax.set(ylabel="mean attention distance (pixels)")
    ax.set_ylim(bottom=0)
    ax.xaxis.get_major_locator().set_params(integer=True)
    style.tidy(ax)
    if len(names) <= LARGEST_LEGEND:
        style.legend(ax, title=layer_label(cut))
    else:
        _depth_bar(ax, names, colours, layer_label(cut))
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
            `prefix`, the number of tokens that lead the grid (0: ResNets, GAP), or a dict from
            label to such Datasets.
        ax: Matplotlib axes; new ones if None.
        variable: "norm_ratio", ||skip|| / ||branch||, or "cosine", of skip and branch.

    Returns:
        The axes. Colours tell models and kinds of token apart, line styles the sites of a block.
        Layers are named if all results share them; otherwise depth is normalised to [0, 1].

    Raises:
        ValueError: if there is no result, one is no such Dataset or has no `prefix`, or `variable`
            is another.
    """
    variable = style.expect_skip_variable(variable)
    models = results if isinstance(results, dict) else {"": results}
    if not models:
        raise ValueError("Expected at least one result. Received: {}")
    lines = {
        f"{label}: {kind}" if label else kind: line
        for label, result in models.items()
        for kind, line in _token_means(result, variable)
    }
    layers = [tuple(style.layer_names(line)) for line in lines.values()]
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    ax.axhline(1 if variable == "norm_ratio" else 0, color="0.55", linewidth=0.9, zorder=1)
    shared = len(set(layers)) == 1
    colours = style.distinct_colours(len(lines))
    for names, colour, (label, line) in zip(layers, colours, lines.items(), strict=True):
        depth = np.arange(len(names)) if shared else np.linspace(0, 1, len(names))
        _plot_sites(ax, depth, line.values, names, label, colour)
    title = "Skip against branch, means over tokens"
    ax.set_title(title if models is results else style.titled(title, results))
    ax.set(ylabel=style.SKIP_LABELS[variable], xlabel=NORMALISED)
    if shared:
        names, cut = shorten(layers[0])
        name_layers(ax, "x", names, np.arange(len(names)))
        ax.set_xlabel(layer_label(cut))
    _scale_skip(ax, variable)
    style.tidy(ax)
    style.legend(ax)
    return ax


def _token_means(result, variable):
    """List of (kind of token, mean over its tokens of dims (layer,)), NaN left out."""
    values = style.expect_variable(result, variable, ("layer", "token"))
    if "prefix" not in result.attrs:
        raise ValueError(f"Expected the attribute 'prefix'. Received: {sorted(result.attrs)}")
    prefix = int(result.attrs["prefix"])
    spatial = ("spatial tokens", values.isel(token=slice(prefix, None)).mean("token"))
    if not prefix:
        return [spatial]
    kind = "CLS token" if prefix == 1 else "prefix tokens"
    return [(kind, values.isel(token=slice(prefix)).mean("token")), spatial]


def _plot_sites(ax, depth, values, names, label, colour):
    """One line per site of a block ("attention", "mlp"), lest a line zigzag between them."""
    last = [name.rpartition("/")[2] for name in shorten(names)[0]]
    sites = np.array(["" if re.search(r"\d", name) else name for name in last])
    for order, site in enumerate(dict.fromkeys(sites)):
        here = sites == site
        ax.plot(
            depth[here],
            values[here],
            color=colour,
            linestyle=LINE_STYLES[order % len(LINE_STYLES)],
            marker=MARKERS[order % len(MARKERS)],
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


def plot_ridge_probe(result, ax=None, label=None):
    """Test accuracy of linear probes against depth (Figures 11 and 13).

    One line per `l2`, none chosen: to choose on the test set would flatter the probe. Pass
    `result.sel(l2=...)`, chosen elsewhere, to draw it alone. Calling again on the same axes adds
    another model in another colour.

    Args:
        result: DataArray of dims (layer, l2[, token]), accuracies in [0, 1]; `l2` may be a
            coordinate of a scalar or of each layer. With tokens, the line is their mean and the
            band their range.
        ax: Matplotlib axes; new ones if None.
        label: name of the model in the legend; the attribute `model` if None.

    Returns:
        The axes: depth normalised to [0, 1]; layers are named while all models drawn share them.

    Raises:
        ValueError: if the dims differ.
    """
    if isinstance(result, xr.DataArray) and "l2" in result.coords and "l2" not in result.dims:
        result = result.reset_coords("l2", drop=True).expand_dims(l2=[0.0])
    result = style.expect_array(result, ("layer", "l2"), optional=("token",))
    label = result.attrs.get("model", "") if label is None else label
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    order = len({(line.get_color(), line.get_marker()) for line in ax.get_lines()})
    names = style.layer_names(result)
    depth = np.linspace(0, 1, len(names))
    _name_depth(ax, names, depth, overlay=order > 0)
    options = {"color": f"C{order}", "marker": MARKERS[(order + order // 10) % len(MARKERS)]}
    options["markersize"] = 4 if len(names) <= 40 else 2
    for line_style, (l2, line) in zip(
        itertools.cycle(LINE_STYLES), result.groupby("l2"), strict=False
    ):
        strength = f"l2 = {l2:g}" if result.sizes["l2"] > 1 or not label else ""
        options |= {"linestyle": line_style, "label": ", ".join(filter(None, [label, strength]))}
        _plot_probe(ax, depth, line.squeeze("l2"), options)
    ax.set(title="Linear probes", ylabel="test accuracy (%)")
    ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}")
    style.tidy(ax)
    style.legend(ax, title="line: mean over tokens\nband: their range" if ax.collections else None)
    return ax


def _plot_probe(ax, depth, line, options):
    """One line over depth; over tokens its mean, and their range as a band."""
    if "token" in line.dims:
        low, high = line.min("token").values, line.max("token").values
        ax.fill_between(depth, low, high, color=options["color"], alpha=0.15, linewidth=0)
        line = line.mean("token")
    ax.plot(depth, line.values, **options)


def _name_depth(ax, names, depth, overlay):
    """Name the layers along the x axis, or number the depth if models on it differ in layers."""
    from matplotlib.ticker import MultipleLocator, NullLocator, ScalarFormatter

    before = [text.get_text() for text in ax.get_xticklabels(which="both")]
    short, cut = shorten(names)
    name_layers(ax, "x", short, depth)
    ax.set_xlabel(layer_label(cut))
    if overlay and before != [text.get_text() for text in ax.get_xticklabels(which="both")]:
        ax.xaxis.set_major_locator(MultipleLocator(0.2))
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_locator(NullLocator())
        ax.tick_params(axis="x", which="both", labelrotation=0, labelsize="medium", length=3.5)
        ax.set_xlabel(NORMALISED)
