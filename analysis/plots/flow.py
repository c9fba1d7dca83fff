"""Maps of receptive fields and skips, and the first layer."""

import math

import numpy as np

from ..engine.results import expect_array, expect_variable, layer_names, select_layers
from . import style
from .layers import FONT_SIZE, layer_label, name_layers, name_places, shorten, wrap


def plot_receptive_field(result, axes=None, layers=None):
    """Effective receptive field of each layer's centre position, one panel per layer (Figure 6).

    Every panel is divided by its own maximum and coloured by the square root of that share, since
    the centre outshines the rest by orders of magnitude.

    Args:
        result: DataArray of dims (layer, row, column), absolute gradients at each pixel.

    Returns:
        ndarray of shape (layers,) of the axes drawn on, in the order of the layers.
    """
    result = expect_array(result, ("layer", "row", "column"))
    result = select_layers(result, layers)
    count = result.sizes["layer"]
    if axes is None:
        title = style.titled("Effective receptive fields", result)
        axes = style.new_panels(count, f"{title}\neach panel scaled to its own maximum")
    axes = style.expect_axes(axes, count, "layer")
    for ax, name, field in zip(axes, layer_names(result), result.values, strict=True):
        image = _draw_field(ax, name, field)
    bar = style.panel_bar(axes, image, "|gradient| / panel maximum (√ scale)")
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    bar.ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    return axes


def _draw_field(ax, name, field):
    """Draw a field of shape (rows, columns) as shares of its maximum; return the image."""
    from matplotlib.colors import PowerNorm

    peak = np.nanmax(field, initial=0)
    share = field / peak if peak else field
    image = ax.imshow(share, norm=PowerNorm(0.5, vmin=0, vmax=1), cmap=style.colours("magma"))
    ax.set_title(wrap(name), fontsize=FONT_SIZE)
    name_places(ax, field.shape, "pixel")
    return image


def plot_skip_ratio(result, ax=None, variable="norm_ratio", tokens=16):
    """Heatmap over layers and first tokens of skip against branch (Figures 7 left and E.1).

    Args:
        result: Dataset with `norm_ratio` and `cosine` of dims (layer, token), NaN where a layer has
            fewer tokens (drawn grey). The attribute `prefix` tells how many tokens lead the grid.
        variable: "norm_ratio", ||skip|| / ||branch|| in log colours centred on 1, or "cosine", of
            skip and branch in [-1, 1].
        tokens: how many of the first tokens to draw.

    Returns:
        The axes: layers left to right, tokens downwards.
    """
    variable = style.expect_skip_variable(variable)
    values = expect_variable(result, variable, ("layer", "token"))
    shown = values.isel(token=slice(tokens)).values.T
    names, cut = shorten(layer_names(values))
    width = style.side(len(names)) if ax is None else None
    target = style.new_axes(width + 2.4, 4.4) if ax is None else ax
    options = {"cmap": style.colours("PuOr"), "interpolation": "nearest", "aspect": "auto"}
    image = target.imshow(shown, norm=_skip_norm(variable, shown), **options)
    name_layers(target, "x", names, np.arange(len(names)), width)
    _name_tokens(target, len(shown), result.attrs.get("prefix", 0))
    count = values.sizes["token"]
    part = f"first {len(shown)} of {count} tokens" if len(shown) < count else "all tokens"
    target.set_title(style.titled(f"Skip against branch, {part}", result))
    target.set(xlabel=layer_label(cut), ylabel="token")
    gaps = "\n(grey: no such token)" if np.isnan(shown).any() else ""
    bar = style.colour_bar(target, image, style.SKIP_LABELS[variable] + gaps)
    if variable == "norm_ratio":
        style.plain_log(bar.ax.yaxis)
    if ax is None:
        style.shrink_wrap(target, width, 3)
    return target


def _skip_norm(variable, values):
    """Colours centred on a ratio of 1, or on a cosine of 0."""
    from matplotlib.colors import LogNorm, Normalize

    if variable == "cosine":
        return Normalize(-1, 1)
    positive = values[np.isfinite(values) & (values > 0)]
    reach = max(positive.max(initial=1.2), 1 / positive.min(initial=1))
    reach *= 1 + 1e-6  # else rounding puts the extreme value beyond the end of the colours
    return LogNorm(1 / reach, reach)


def _name_tokens(ax, count, prefix):
    """Number the tokens down the y axis, with the role of those that have no place in the grid."""
    rows = np.arange(0, count, 2 ** math.ceil(math.log2(max(1, count / 24))))
    labels = [f"{row} ({'prefix' if row else 'CLS'})" if row < prefix else str(row) for row in rows]
    ax.set_yticks(rows, labels, fontsize=FONT_SIZE)


def plot_patch_filters(result, axes=None):
    """Principal components of the filters that embed patches (Figure 7 left of the ViT paper).

    Args:
        result: DataArray of dims (component, row, column, channel) from `patch_filters`, of one
            channel (drawn grey) or three (red, green, blue).

    Returns:
        ndarray of shape (components,) of the axes, each titled with the share of the variance
        that the component explains. Every tile is scaled to its own range, darkest to brightest.

    Raises:
        ValueError: for another number of channels.
    """
    result = expect_array(result, ("component", "row", "column", "channel"))
    channels, count = result.sizes["channel"], result.sizes["component"]
    if channels not in (1, 3) or "explained_variance" not in result.coords:
        raise ValueError(
            "Expected 1 or 3 channels, and the coordinate explained_variance. "
            f"Received: {channels} channels and {sorted(map(str, result.coords))}"
        )
    if axes is None:
        title = style.titled("Principal components of the patch embedding", result)
        title += "\nshare of the variance above; each tile scaled to its own range"
        axes = style.new_panels(count, title, result.sizes["row"] / result.sizes["column"])
    axes = style.expect_axes(axes, count, "component")
    shares = result["explained_variance"].values
    for ax, tile, share in zip(axes, result.values, shares, strict=True):
        low, high = tile.min(), tile.max()
        scaled = (tile - low) / (high - low) if high > low else np.full_like(tile, 0.5)
        ax.imshow(np.repeat(scaled, 3 // channels, axis=2), interpolation="nearest")
        ax.set_title(f"{100 * share:.1f} %", fontsize=FONT_SIZE, pad=3)
        ax.set(xticks=[], yticks=[])
    return axes


def plot_position_similarity(result, ax=None):
    """Similarity of every position embedding to all (Figure 7 centre of the ViT paper).

    Args:
        result: DataArray of dims (row, column, other_row, other_column) from
            `position_similarity`.

    Returns:
        The axes: at the place of each patch a map of its similarity to the patches of all places.
        Colours are fixed to [-1, 1].
    """
    result = expect_array(result, ("row", "column", "other_row", "other_column"))
    rows, columns = result.sizes["row"], result.sizes["column"]
    gap = max(1, round(max(rows, columns) / 8))
    tiles = np.pad(result.values, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    heights, widths = tiles.shape[2:]
    mosaic = tiles.swapaxes(1, 2).reshape(rows * heights, columns * widths)[:-gap, :-gap]
    mosaic = mosaic.round(6)  # the similarity of a position to itself is 1 but for rounding
    inches = float(np.clip(0.5 * max(rows, columns), 3.5, 7)) / max(rows, columns)
    width, height = inches * columns, inches * rows
    target = style.new_axes(width + 2, height + 1) if ax is None else ax
    look = {"cmap": style.colours("viridis").with_extremes(bad="white"), "vmin": -1, "vmax": 1}
    image = target.imshow(mosaic, interpolation="nearest", **look)
    _number(target.xaxis, columns, widths, result.sizes["other_column"])
    _number(target.yaxis, rows, heights, result.sizes["other_row"])
    target.set(xlabel="input patch column", ylabel="input patch row")
    target.spines[:].set_visible(False)
    target.tick_params(length=0, labelsize=FONT_SIZE)
    target.set_title(style.titled("Similarity of position embeddings", result), fontsize=11)
    style.colour_bar(target, image, "cosine similarity")
    if ax is None:
        style.shrink_wrap(target, width, height)
    return target


def _number(axis, count, step, size):
    """Numbers the maps along an axis from 1, at their centres, at most 16 of them."""
    places = np.arange(0, count, -(-count // 16))
    axis.set_ticks(places * step + (size - 1) / 2, labels=[str(place + 1) for place in places])
