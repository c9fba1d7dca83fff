"""Draw one labelled result: `plot_*(result, ax=None)` returns axes; it neither computes, saves nor shows.

Depth runs left to right everywhere (and bottom up where both axes are layers), so the input lies at the
origin as in Raghu et al. 2021, "Do Vision Transformers See Like Convolutional Neural Networks?".
Functions that are given no axes make a figure of a fitting size; the caller saves and closes it.
"""

import itertools
import math
import re

import numpy as np
import xarray as xr

SMALL = 7.5
MARKERS = "osD^vPX*<>"
LINE_STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))


def plot_cka(result, ax=None):
    """Heatmap of the similarity of every pair of layers (Figures 1, 2 and 8).

    Args:
        result: Dataset with `cka` and, if known, its standard error `stderr`, both of dims
            (layer_x, layer_y). The attributes `model_x` and `model_y` name the models.
        ax: Matplotlib axes; new ones if None.

    Returns:
        The axes: `layer_x` left to right, `layer_y` bottom up, colours fixed to [0, 1]. Values out of
        that range (the unbiased estimator may leave it) saturate, and the colour bar then says so.

    Raises:
        ValueError: if `result` is no such Dataset.
    """
    cka = _variable(result, "cka", ("layer_x", "layer_y"))
    names_x, names_y = _names(cka, "layer_x"), _names(cka, "layer_y")
    models = result.attrs.get("model_x", ""), result.attrs.get("model_y", "")
    alone = names_x == names_y and models[0] == models[1]
    ax = _new_axes(_side(len(names_x)) + 2.6, _side(len(names_y)) + 1.6) if ax is None else ax
    image = ax.imshow(
        cka.values.T,
        cmap=_colours("magma"),
        vmin=0,
        vmax=1,
        origin="lower",
        interpolation="nearest",
        aspect="equal" if alone else "auto",
    )
    _name_layers(ax, "x", names_x, np.arange(len(names_x)))
    _name_layers(ax, "y", names_y, np.arange(len(names_y)))
    ax.set(
        xlabel=f"{models[0]} layer".strip(),
        ylabel=f"{models[1]} layer".strip(),
        title=f"Similarity of layers: {models[0]}".rstrip(": ")
        if alone
        else f"Similarity of layers: {models[0] or 'x'} and {models[1] or 'y'}",
    )
    error = result["stderr"].max().item() if "stderr" in result else math.nan
    bound = "" if math.isnan(error) else f" (standard error at most {error:.2g})"
    _colour_bar(ax, image, cka.values, f"CKA{bound}")
    return ax


def plot_attention_distance(result, ax=None, layers=None):
    """Mean attention distance of each head, heads sorted by it, one line per layer (Figures 3 and 4).

    Args:
        result: DataArray of dims (layer, head), in pixels.
        ax: Matplotlib axes; new ones if None.
        layers: names of the layers to draw; all if None.

    Returns:
        The axes: rank of the head within its layer against its mean distance in pixels.

    Raises:
        ValueError: if the dims differ, or a layer is not there.
    """
    result = _select(_array(result, ("layer", "head")), layers)
    names, suffix = _without_common_suffix(_names(result))
    ax = _new_axes(7, 4.2) if ax is None else ax
    ranks = np.arange(1, result.sizes["head"] + 1)
    for name, colour, heads in zip(names, _depth_colours(len(names)), result.values, strict=True):
        ax.plot(ranks, np.sort(heads), marker="o", markersize=3.5, color=colour, label=name)
    ax.set(
        xlabel="head, sorted by distance within its layer",
        ylabel="mean attention distance (pixels)",
        title=_title("Attention distance", result),
    )
    ax.set_ylim(bottom=0)
    ax.xaxis.get_major_locator().set_params(integer=True)
    _tidy(ax)
    if len(names) <= 24:
        _legend(ax, title=f"layer …{suffix}" if suffix else "layer", columns=1 + (len(names) > 16))
    else:
        _depth_bar(ax, names, suffix)
    return ax


def plot_receptive_field(result, axes=None, layers=None):
    """Effective receptive field of each layer's centre position, one panel per layer (Figure 6).

    Every panel is divided by its own maximum, and colours follow the square root of that share: the
    centre outshines the rest by orders of magnitude.

    Args:
        result: DataArray of dims (layer, row, column), absolute gradients at each pixel.
        axes: array of at least as many Matplotlib axes as layers; new ones if None.
        layers: names of the layers to draw; all if None.

    Returns:
        ndarray of shape (layers,) of the axes drawn on, in the order of the layers.

    Raises:
        ValueError: if the dims differ, a layer is not there, or there are too few axes.
    """
    result = _select(_array(result, ("layer", "row", "column")), layers)
    count = result.sizes["layer"]
    axes = _panels(count, _title("Effective receptive field", result)) if axes is None else axes
    axes = np.atleast_1d(axes).ravel()
    if len(axes) < count:
        raise ValueError(f"Expected at least {count} axes, one per layer. Received: {len(axes)}")
    axes = axes[:count]
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for ax, name, field in zip(axes, _names(result), result.values, strict=True):
        peak = np.nanmax(field, initial=0)
        image = ax.imshow(field / (peak or 1), norm=norm, cmap=_colours("magma"))
        ax.set_title(_wrap(name), fontsize=SMALL)
        rows, columns = field.shape
        ax.set_xticks([0, columns - 1])
        ax.set_yticks([0, rows - 1])
        ax.tick_params(labelsize=SMALL, length=2)
        ax.set_xlabel("column (pixel)", fontsize=SMALL)
        ax.set_ylabel("row (pixel)", fontsize=SMALL)
        ax.label_outer()
    label = "|gradient|, share of the panel's own maximum\n(square-root colour scale)"
    bar = axes[0].figure.colorbar(image, ax=list(axes), label=label, shrink=0.8, pad=0.02)
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1], labels="0 1% 5% 10% 25% 50% 100%".split())
    return axes


def plot_skip_ratio(result, ax=None, variable="norm_ratio", tokens=16):
    """Heatmap over layers and first tokens of what the skip carries (Figures 7 left and E.1).

    Args:
        result: Dataset with `norm_ratio` and `cosine` of dims (layer, token), NaN where a layer has
            fewer tokens (left grey). The attribute `prefix` tells how many tokens lead the grid.
        ax: Matplotlib axes; new ones if None.
        variable: "norm_ratio", ||skip|| / ||branch|| on a log scale centred on 1, or "cosine", of skip
            and branch in [-1, 1].
        tokens: how many of the first tokens to draw.

    Returns:
        The axes: layers left to right, tokens downwards.

    Raises:
        ValueError: if `result` is no such Dataset, or `variable` is another.
    """
    values = _variable(result, _skip_variable(variable), ("layer", "token"))
    shown = values.isel(token=slice(tokens)).values.T
    ax = _new_axes(_side(values.sizes["layer"]) + 2.4, 4.6) if ax is None else ax
    image = ax.imshow(
        shown,
        cmap=_colours("PuOr"),
        norm=_skip_norm(variable, shown),
        interpolation="nearest",
        aspect="auto",
    )
    names = _names(values)
    _name_layers(ax, "x", names, np.arange(len(names)))
    prefix = result.attrs.get("prefix", 0)
    rows = np.arange(0, len(shown), 1 + len(shown) // 24)
    ax.set_yticks(rows, [_token_name(row, prefix) for row in rows], fontsize=SMALL)
    part = f"first {len(shown)} of {values.sizes['token']} tokens"
    ax.set(xlabel="layer", ylabel="token", title=_title(f"Skip against branch, {part}", result))
    bar = _colour_bar(ax, image, shown, _skip_label(variable))
    if variable == "norm_ratio":
        _plain_log(bar.ax.yaxis)
    return ax


def plot_skip_ratio_lines(results, ax=None, variable="norm_ratio"):
    """What the skip carries at each depth, averaged over tokens (Figures 7 right and E.2).

    Args:
        results: Dataset with `norm_ratio` and `cosine` of dims (layer, token) and the attribute
            `prefix`, the number of tokens that lead the grid (0: ResNets, GAP), or a dict from label to
            such Datasets.
        ax: Matplotlib axes; new ones if None.
        variable: "norm_ratio", ||skip|| / ||branch||, or "cosine", of skip and branch.

    Returns:
        The axes. Colours tell models and kinds of token apart, line styles the sites of a block. The
        layers are named if all results share them; otherwise depth is normalised to [0, 1].

    Raises:
        ValueError: if a result is no such Dataset, or `variable` is another.
    """
    if not isinstance(results, dict):
        results = {"": results}
    values = {k: _variable(r, _skip_variable(variable), ("layer", "token")) for k, r in results.items()}
    lines = [
        (f"{label}: {kind}" if label else kind, line)
        for label, result in results.items()
        for kind, line in _token_means(values[label], result.attrs)
    ]
    ax = _new_axes(8.5, 4.4) if ax is None else ax
    layers = [_names(line) for _, line in lines]
    shared = all(names == layers[0] for names in layers)
    for index, ((label, line), names) in enumerate(zip(lines, layers, strict=True)):
        depth = np.arange(len(names)) if shared else np.linspace(0, 1, len(names))
        _plot_sites(ax, depth, line.values, names, label, f"C{index}")
    neutral = 1 if variable == "norm_ratio" else 0
    ax.axhline(neutral, color="0.6", linewidth=0.8, zorder=0)
    ax.set(xlabel="normalised depth", ylabel=_skip_label(variable), title="Skip against branch")
    if shared:
        _name_layers(ax, "x", layers[0], np.arange(len(layers[0])))
        ax.set_xlabel("layer")
    if variable == "norm_ratio":
        ax.set_yscale("log")
        _plain_log(ax.yaxis)
    else:
        ax.set_ylim(-1.05, 1.05)
    _tidy(ax)
    _legend(ax)
    return ax


def plot_ridge_probe(result, ax=None, label=None):
    """Test accuracy of linear probes against depth (Figures 11 and 13).

    One line per `l2`, none chosen: choosing on the test set would flatter the probe. Select one
    (`result.sel(l2=...)`) that was chosen elsewhere to draw it alone. Another call on the same axes
    adds another model in another colour.

    Args:
        result: DataArray of dims (layer, l2[, token]), accuracies in [0, 1]; `l2` may be a scalar
            coordinate. With a token dim the line is the mean over tokens, the band their range.
        ax: Matplotlib axes; new ones if None.
        label: name of the model in the legend; the attribute `model` if None.

    Returns:
        The axes: depth normalised to [0, 1], layers named while all models drawn share them.

    Raises:
        ValueError: if the dims differ.
    """
    if isinstance(result, xr.DataArray) and "l2" in result.coords and "l2" not in result.dims:
        result = result.expand_dims("l2")
    result = _array(result, ("layer", "l2"), optional=("token",))
    label = result.attrs.get("model", "") if label is None else label
    ax = _new_axes(8.5, 4.4) if ax is None else ax
    order = len({line.get_color() for line in ax.get_lines()})
    style = {"color": f"C{order}", "marker": MARKERS[order % len(MARKERS)], "markersize": 4}
    names = _names(result)
    depth = np.linspace(0, 1, len(names)) if len(names) > 1 else np.zeros(1)
    _name_depth(ax, names, depth, overlay=order > 0)
    for line_style, l2 in zip(itertools.cycle(LINE_STYLES), result["l2"].values, strict=False):
        line = result.sel(l2=l2)
        own = f"l2 = {l2:g}" if result.sizes["l2"] > 1 or not label else ""
        if "token" in line.dims:
            bounds = line.min("token").values, line.max("token").values
            ax.fill_between(depth, *bounds, color=style["color"], alpha=0.15, linewidth=0)
            own = ", ".join(filter(None, [own, "mean and range over tokens"]))
            line = line.mean("token")
        text = ", ".join(filter(None, [label, own]))
        ax.plot(depth, line.values, linestyle=line_style, label=text, **style)
    ax.set(ylabel="test accuracy (%)", title="Linear probes")
    from matplotlib.ticker import PercentFormatter

    ax.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    _tidy(ax)
    _legend(ax)
    return ax
