"""Linear probes: accuracy against depth, of several models or ways to pool, and by token."""

import itertools
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..engine.results import expect_array, expect_results, layer_names, select_layers
from . import style
from .layers import NORMALISED, depth_axis, layer_label, name_layers, name_positions, shorten, wrap
from .primitives import panels, renamed_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY_LAYERS = 40
MOST_MAPS = 8


def plot_ridge_probe(
    results: style.Arrays, ax: "Axes | None" = None, label: str | None = None
) -> "Axes":
    """Ridge-probe accuracy by layer (Figures 11, 13, F.1 and F.2 of Raghu et al. 2021).

    One line per `l2`, none selected: selecting on the test set would bias the accuracy. Pass
    `result.sel(l2=...)`, selected elsewhere, to draw it alone. Calling again on the same axes adds
    another model in another colour.

    Args:
        results: DataArray of dims `(layer, l2[, token][, seed])`, accuracies in [0, 1]; `l2` may
            be a coordinate of a scalar or of each layer. With tokens, the line is their mean and
            the band their range; with seeds, the line is their mean, and the error bars, of two
            seeds or more, their standard deviation (of n - 1 degrees of freedom). Or a dict from
            label to several.
        ax: Matplotlib axes; those of a new figure if None.
        label: name of the model in the legend; the attribute `model` if None.

    Returns:
        The axes: depth normalised to [0, 1]; layers are named while all models drawn share them.

    Raises:
        ValueError: for another result, or an empty dict.

    Examples:
        >>> accuracy = analysis.ridge_probe(model, train, test)
        >>> ax = analysis.plot_ridge_probe(accuracy.sel(l2=10.0))

    See also:
        `ridge_probe`, `select_l2`, `plot_probe_map`.
    """
    if isinstance(results, dict):
        for name, result in expect_results(results).items():
            ax = plot_ridge_probe(result, ax, name)
        return ax
    result = results
    if isinstance(result, xr.DataArray) and "l2" in result.coords and "l2" not in result.dims:
        result = result.reset_coords("l2", drop=True).expand_dims(l2=[0.0])
    result = expect_array(result, ("layer", "l2"), optional=("token", "seed"))
    label = result.attrs.get("model", "") if label is None else label
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    order = _lines_before(ax)
    names = layer_names(result)
    depth = np.linspace(0, 1, len(names))
    _name_depth(ax, names, depth, overlay=order > 0)
    options = {"color": f"C{order}", "marker": style.marker(order)}
    for line_style, (l2, line) in zip(
        itertools.cycle(style.LINE_STYLES), result.groupby("l2"), strict=False
    ):
        strength = f"l2 = {l2:g}" if result.sizes["l2"] > 1 or not label else ""
        options |= {"linestyle": line_style, "label": ", ".join(filter(None, [label, strength]))}
        _plot_probe(ax, depth, line.squeeze("l2"), options)
    ax.set_title("Ridge-probe accuracy")
    _finish_accuracies(ax)
    return ax


def _lines_before(ax):
    """Number of combinations of colour and marker of the lines of the axes, without error bars."""
    lines = [line for line in ax.get_lines() if line.get_marker() in style.MARKERS]
    return len({(line.get_color(), line.get_marker()) for line in lines})


def _plot_probe(ax, depth, line, options):
    """One line over depth, with the range of its tokens as a band and error bars over its seeds."""
    if "token" in line.dims:
        tokens = line.mean("seed") if "seed" in line.dims else line
        low, high = tokens.min("token").values, tokens.max("token").values
        ax.fill_between(depth, low, high, color=options["color"], alpha=0.15, linewidth=0)
        line = line.mean("token")
    many = len(depth) > MANY_LAYERS
    if "seed" in line.dims:
        if line.sizes["seed"] > 1:
            bars = {"fmt": "none", "ecolor": options["color"], "alpha": 0.7}
            bars |= {"elinewidth": 1, "capsize": 1.5 if many else 3}
            ax.errorbar(depth, line.mean("seed").values, _deviation(line).values, **bars)
        line = line.mean("seed")
    ax.plot(depth, line.values, markersize=2 if many else 4.5, **options)


def _deviation(line):
    """Standard deviation over seeds, NaN where fewer than two have a value."""
    count = line.count("seed")
    squares = ((line - line.mean("seed")) ** 2).sum("seed")
    return np.sqrt(squares / (count - 1).where(count > 1))


def _finish_accuracies(ax):
    """Label the y axis in percent, and explain bands and error bars in the legend."""
    from matplotlib.collections import PolyCollection

    ax.set_ylabel("test accuracy (%)")
    style.percent(ax.yaxis)
    style.tidy(ax)
    drawn = {}
    if any(isinstance(artist, PolyCollection) for artist in ax.collections):
        drawn["tokens"] = "band: range of tokens"
    if ax.containers:
        drawn["seeds"] = "bars: standard deviation over seeds"
    heading = "\n".join([f"line: mean over {' and '.join(drawn)}", *drawn.values()])
    style.legend(ax, title=heading if drawn else None)


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


def plot_probe_variants(results: dict[str, xr.DataArray], ax: "Axes | None" = None) -> "Axes":
    """Ridge-probe accuracy by layer and token pooling (Figures 11 and F.3 of Raghu et al. 2021).

    Args:
        results: dict from label, "model: variant", such as "ViT-CLS: first token", to DataArray
            of dims `(layer[, seed])`, accuracies in [0, 1].
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes: a colour per model, a line style and marker per variant, the same in all models.
        Means over seeds with error bars as in `plot_ridge_probe`.

    Raises:
        ValueError: for another result, or an empty dict.

    Examples:
        >>> accuracy = analysis.ridge_probe(model, train, test).sel(l2=10.0, drop=True)
        >>> ax = analysis.plot_probe_variants({"ViT: cls": accuracy, "ViT: all": accuracy})

    See also:
        `ridge_probe`, `plot_ridge_probe`.
    """
    lines = {
        label: expect_array(result, ("layer",), optional=("seed",))
        for label, result in expect_results(results).items()
    }
    models, variants = ({label.partition(": ")[i]: None for label in lines} for i in (0, 2))
    models, variants = list(models), list(variants)
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = dict(zip(models, style.distinct_colours(len(models)), strict=True))
    for depth, (label, line) in zip(depths, lines.items(), strict=True):
        model, _, variant = label.partition(": ")
        order = variants.index(variant)
        look = {"linestyle": style.line_style(order), "label": label}
        look |= {"marker": style.marker(order), "markerfacecolor": "white" if order else None}
        _plot_probe(ax, depth, line, {"color": colours[model], **look})
    ax.set_title("Ridge-probe accuracy by token pooling")
    _finish_accuracies(ax)
    return ax


@renamed_arguments(axes="ax")
def plot_probe_map(
    result: xr.DataArray, ax: "Axes | None" = None, layers: list[str] | None = None
) -> "Axes":
    """Ridge-probe accuracy of every token, a map per layer (Figure D.4 of Raghu et al. 2021).

    Args:
        result: DataArray of dims (layer, token), accuracies in [0, 1], as from `ridge_probe` with
            `tokens="each"` at one `l2`. The attributes `prefix`, `rows` and `columns` give the grid
            of the tokens: those after the prefix lie row by row. Layers with other tokens hold NaN
            beyond their last, and cannot be drawn.
        ax: Matplotlib axes; those of a new figure if None.
        layers: names of the layers to draw; if None, at most 8 of those on the grid, evenly
            spaced through the depth.

    Returns:
        The axes, with `ax.panels` of shape (layer,). All maps share one scale, given at the colour
        bar; titles give the accuracy of the CLS token, where there is one.

    Raises:
        ValueError: for another result, or a layer that it does not have or that is not on the grid.

    Examples:
        >>> accuracy = analysis.ridge_probe(model, train, test, tokens="each")
        >>> ax = analysis.plot_probe_map(accuracy.sel(l2=10.0))

    See also:
        `ridge_probe`, `plot_ridge_probe`.
    """
    result = expect_array(result, ("layer", "token"))
    prefix, shape = style.token_layout(result)
    shown = select_layers(result, _spaced_on_grid(result) if layers is None else layers)
    percent = 100 * _expect_on_grid(shown)
    maps = percent.values[:, prefix : prefix + shape[0] * shape[1]].reshape(-1, *shape)
    names = layer_names(shown)
    title = style.titled("Ridge-probe accuracy by token", result)
    inches = (1.6, 1.6 * shape[0] / shape[1])
    ax, flat = panels(ax, len(names), title, "layer", inches=inches, lines=3 if prefix else 2)
    limits = {"vmin": maps.min(), "vmax": maps.max()}
    for panel, name, first, values in zip(flat, names, percent.values[:, 0], maps, strict=True):
        image = panel.imshow(
            values, cmap=style.colours("viridis"), interpolation="nearest", **limits
        )
        panel.set_title(wrap(name) + (f"\nCLS: {first:.1f} %" if prefix else ""), fontsize=8)
        name_positions(panel, shape, "token")
    scale = "from {vmin:.1f} to {vmax:.1f}".format(**limits)
    style.colour_bar(flat, image, f"test accuracy (%)\n{scale}", maps)
    return ax


def _off_grid(result):
    """Layers whose tokens are not those of the grid: dict from name to number of tokens."""
    prefix, (rows, columns) = style.token_layout(result)
    expected = prefix + rows * columns
    known = zip(layer_names(result), result.notnull().values, strict=True)
    return {
        name: int(tokens.sum())
        for name, tokens in known
        if tokens.sum() != expected or not tokens[:expected].all()
    }


def _spaced_on_grid(result):
    """Names of at most 8 layers on the grid, evenly spaced, the first and last among them."""
    off = _off_grid(result)
    names = layer_names(result)
    names = [name for name in names if name not in off] or names
    places = np.linspace(0, len(names) - 1, min(len(names), MOST_MAPS))
    return [names[place] for place in places.round().astype(int)]


def _expect_on_grid(result):
    """Return the result if its layers have the grid's tokens, or raise a `ValueError`."""
    off = _off_grid(result)
    if off:
        prefix, (rows, columns) = style.token_layout(result)
        raise ValueError(
            f"Expected layers of {prefix} + {rows} x {columns} tokens. Received numbers: {off}"
        )
    return result


def plot_token_probes(results: dict[str, xr.DataArray], ax: "Axes | None" = None) -> "Axes":
    """A line for each model, and the range of its spatial tokens."""
    spatial = {
        label: result.isel(token=slice(int(result.attrs["prefix"]), None))
        for label, result in results.items()
    }
    return plot_ridge_probe(spatial, ax)


def plot_summary_probes(results: dict[str, xr.DataArray], ax: "Axes | None" = None) -> "Axes":
    """Lines for each model and summary of its tokens, at the layers that have them all."""
    shared = {}
    for label, result in results.items():
        layers = shared.setdefault(label.partition(": ")[0], list(result.layer.values))
        layers[:] = [layer for layer in layers if layer in result.layer.values]
    shown = {
        label: result.sel(layer=shared[label.partition(": ")[0]])
        for label, result in results.items()
    }
    return plot_probe_variants(shown, ax)


def plot_probes(results: dict[str, xr.DataArray], ax: "Axes | None" = None) -> "Axes":
    """A line for each model, with error bars where there are several seeds of it.

    Args:
        results: dict from label to accuracy of dims (layer,); further seeds of a model are
            labelled "MODEL: seed 1".
        ax: Matplotlib axes; those of a new figure if None.
    """
    seeds = {}
    for label, result in results.items():
        seeds.setdefault(label.partition(": seed ")[0], []).append(result)
    models = {
        model: xr.concat(each, dim="seed", combine_attrs="drop_conflicts")
        for model, each in seeds.items()
    }
    return plot_ridge_probe(models, ax)
