"""Heatmaps: similarity of layers, receptive fields, skip against branch by token."""

import math

import numpy as np

from . import style
from .layers import FONT_SIZE, layer_label, name_layers, shorten, wrap


def plot_cka(result, ax=None):
    """Heatmap of the similarity of every pair of layers (Figures 1, 2 and 8).

    Args:
        result: Dataset with `cka` and, where known, its standard error `stderr`, both of dims
            (layer_x, layer_y). The attributes `model_x` and `model_y` name the models.
        ax: Matplotlib axes; new ones if None.

    Returns:
        The axes: `layer_x` left to right, `layer_y` bottom up, colours fixed to [0, 1]. Values
        beyond (the estimator is unbiased, not bounded) saturate, and the colour bar is pointed.

    Raises:
        ValueError: if `result` is no such Dataset.
    """
    cka = style.expect_variable(result, "cka", ("layer_x", "layer_y"))
    sides = [style.side(count) if ax is None else None for count in cka.shape]
    target = style.new_axes(sides[0] + 2.6, sides[1] + 1.4) if ax is None else ax
    image = target.imshow(
        cka.values.T,
        cmap=style.colours("magma"),
        vmin=0,
        vmax=1,
        origin="lower",
        interpolation="nearest",
        aspect="auto",
    )
    models = [result.attrs.get(f"model_{which}", "") for which in "xy"]
    layers = [style.layer_names(cka, f"layer_{which}") for which in "xy"]
    if alone := layers[0] == layers[1] and models[0] == models[1]:
        target.set_aspect("equal")
    for which, names, model, inches in zip("xy", layers, models, sides, strict=True):
        short, cut = shorten(names)
        name_layers(target, which, short, np.arange(len(names)), inches)
        target.set(**{f"{which}label": layer_label(cut, model)})
    pair = models[0] if alone else " and ".join(filter(None, models))
    target.set_title(f"Similarity of layers: {pair}" if pair else "Similarity of layers")
    error = result["stderr"].max().item() if "stderr" in result else math.nan
    bound = "" if math.isnan(error) else f" (standard error at most {error:.1g})"
    style.colour_bar(target, image, f"CKA{bound}")
    if ax is None:
        style.shrink_wrap(target, *sides)
    return target


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
        axes = _new_panels(count, style.titled("Effective receptive fields", result))
    axes = np.asarray(axes).ravel()
    if len(axes) < count:
        raise ValueError(f"Expected at least {count} axes, one per layer. Received: {len(axes)}")
    axes = axes[:count]
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
    rows, columns = field.shape
    ax.set_title(wrap(name), fontsize=FONT_SIZE)
    ax.set_xticks([0, columns - 1])
    ax.set_yticks([0, rows - 1])
    for text, inwards in zip(ax.get_xticklabels(), ("left", "right"), strict=True):
        text.set_horizontalalignment(inwards)
    ax.tick_params(labelsize=FONT_SIZE, length=2)
    ax.set_xlabel("column (pixel)", fontsize=FONT_SIZE, labelpad=1)
    ax.set_ylabel("row (pixel)", fontsize=FONT_SIZE, labelpad=1)
    ax.label_outer()
    return image


def _new_panels(count, title):
    """`count` square axes of a new figure, row by row."""
    import matplotlib.pyplot as plt

    columns = min(count, max(3, min(7, math.ceil(math.sqrt(1.6 * count)))))
    rows = math.ceil(count / columns)
    size = (max(4.2, 1.6 * columns + 1.2), max(2.6, 1.75 * rows + 0.7))
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="compressed", squeeze=False)
    figure.suptitle(f"{title}\neach panel scaled to its own maximum", fontsize=11)
    for ax in axes.ravel()[count:]:
        ax.remove()
    return axes.ravel()[:count]


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
