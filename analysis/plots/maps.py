"""Heatmaps: receptive fields, skip against branch by token."""

import math

import numpy as np

from . import style
from .layers import FONT_SIZE, layer_label, name_layers, name_places, shorten, wrap


def plot_receptive_field(result, axes=None, layers=None):
    """Effective receptive field of each layer's centre position, one panel per layer (Figure 6).

    Every panel is divided by its own maximum and coloured by the square root of that share, since
    the centre outshines the rest by orders of magnitude.

    Args:
        result: DataArray of dims (layer, row, column), absolute gradients at each pixel.
        axes: array of at least as many Matplotlib axes as layers; new ones if None.
        layers: names of the layers to draw; all if None.

    Returns:
        ndarray of shape (layers,) of the axes drawn on, in the order of the layers.

    Raises:
        ValueError: if the dims differ, a layer is unknown, or there are too few axes.
    """
    result = style.expect_array(result, ("layer", "row", "column"))
    result = style.select_layers(result, layers)
    count = result.sizes["layer"]
    if axes is None:
        title = style.titled("Effective receptive fields", result)
        axes = style.new_panels(count, f"{title}\neach panel scaled to its own maximum")
    axes = style.expect_axes(axes, count, "layer")
    for ax, name, field in zip(axes, style.layer_names(result), result.values, strict=True):
        image = _draw_field(ax, name, field)
    bar = axes[0].figure.colorbar(image, ax=list(axes), aspect=25, pad=0.015)
    bar.set_label("|gradient| / panel maximum (√ scale)", fontsize=8)
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    bar.ax.tick_params(labelsize=8)
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
        ax: Matplotlib axes; new ones if None.
        variable: "norm_ratio", ||skip|| / ||branch|| in log colours centred on 1, or "cosine", of
            skip and branch in [-1, 1].
        tokens: how many of the first tokens to draw.

    Returns:
        The axes: layers left to right, tokens downwards.

    Raises:
        ValueError: if `result` is no such Dataset, or `variable` is another.
    """
    variable = style.expect_skip_variable(variable)
    values = style.expect_variable(result, variable, ("layer", "token"))
    shown = values.isel(token=slice(tokens)).values.T
    names, cut = shorten(style.layer_names(values))
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
    """Colours whose middle means that neither path wins: a ratio of 1, a cosine of 0."""
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
    role = "CLS" if prefix == 1 else "prefix"
    labels = [f"{row} ({role})" if row < prefix else str(row) for row in rows]
    ax.set_yticks(rows, labels, fontsize=FONT_SIZE)
