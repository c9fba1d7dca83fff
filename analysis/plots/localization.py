"""Where tokens come from: their similarity to image patches, and that of heads to another model."""

import math

import numpy as np

from . import style
from .layers import layer_label, shorten

MOST_PANELS = 4  # along either side, where tokens are chosen for the reader
OWN_PLACE = "#35e0ff"


def plot_localization(result, axes=None, layer=None):
    """CKA of single tokens with every patch of the input image, a map per token (Figures 9, 10).

    The maps lie as their tokens do in the image, prefix tokens in a row above, and a frame marks
    each token's own place. Of many tokens, up to 4 x 4 with a place are drawn, evenly spaced; to
    choose others pass `result.sel(token=[...])`, at most 16.

    Args:
        result: DataArray of dims (layer, token, row, column) from `localization`, with the
            coordinates `token_row` and `token_column`; NaN (constant patches) is drawn grey.
        axes: array of at least as many Matplotlib axes as tokens drawn; new ones if None.
        layer: name of the layer to draw; the last if None.

    Returns:
        ndarray of shape (tokens,) of the axes drawn on, in the order of the tokens. Colours are
        fixed to [0, 1]; values beyond saturate, and the colour bar is pointed.

    Raises:
        ValueError: if the dims or coordinates differ, the layer is unknown, or there are too few
            axes.
    """
    result = style.expect_array(result, ("layer", "token", "row", "column"))
    missing = {"token_row", "token_column"} - set(result.coords)
    if missing:
        raise ValueError(f"Expected the coordinates {sorted(missing)}. Received: no such")
    name = style.layer_names(result)[-1] if layer is None else layer
    chosen = _chosen(style.select_layers(result, [name]).isel(layer=0))
    count = chosen.sizes["token"]
    if axes is None:
        axes = _new_panels(chosen, style.titled("Localization of tokens", result), name)
    axes = np.asarray(axes).ravel()
    if len(axes) < count:
        raise ValueError(f"Expected at least {count} axes, one per token. Received: {len(axes)}")
    axes = axes[:count]
    for ax, token in zip(axes, range(count), strict=True):
        image = _draw_token(ax, chosen.isel(token=token))
    _colour_bar(axes, image, chosen.values)
    return axes


def _chosen(result):
    """The tokens to draw: all of a few, else evenly spaced ones that have a place."""
    if result.sizes["token"] <= MOST_PANELS**2:
        return result
    keep = np.ones(result.sizes["token"], bool)
    for side in ("row", "column"):
        place = result[f"token_{side}"].values
        known = np.unique(place[np.isfinite(place)])
        spaced = np.linspace(0, len(known) - 1, min(len(known), MOST_PANELS)).round().astype(int)
        keep &= np.isin(place, known[spaced])
    return result.isel(token=np.flatnonzero(keep))


def _cells(result):
    """The row and column of the panel of each token: its place among those drawn."""
    places = np.stack([result["token_row"].values, result["token_column"].values])
    prefix = np.isnan(places).any(axis=0)
    row, column = (np.unique(side, return_inverse=True)[1] for side in places)
    row = np.where(prefix, 0, row + prefix.any())
    return row, np.where(prefix, np.cumsum(prefix) - 1, column)


def _new_panels(result, title, layer):
    """Axes of a new figure, one per token, laid out like the grid."""
    import matplotlib.pyplot as plt

    row, column = _cells(result)
    rows, columns = row.max() + 1, column.max() + 1
    tall = result.sizes["row"] / result.sizes["column"]
    width = max(0.6, 1.35 / max(tall, 1))
    size = (max(4.4, columns * width + 1.3), max(3.2, rows * (width * tall + 0.3) + 0.6))
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="compressed", squeeze=False)
    figure.suptitle(f"{title}\n{layer}; framed: the token's own (row, column)", fontsize=11)
    used = axes[row, column]
    for ax in set(axes.ravel()) - set(used):
        ax.remove()
    return used


def _draw_token(ax, values):
    """Draw the map of one token, with its own place framed; return the image."""
    from matplotlib.patches import Rectangle

    image = ax.imshow(values, cmap=style.colours("magma"), vmin=0, vmax=1, interpolation="nearest")
    token, row, column = (values[name].item() for name in ("token", "token_row", "token_column"))
    between = "\n" if values.sizes["row"] > 1.5 * values.sizes["column"] else " "
    ax.set_xticks([])
    ax.set_yticks([])
    if math.isnan(row):
        ax.set_title(f"token {token}{between}(no place)", fontsize=8, pad=3)
        return image
    ax.set_title(f"token {token}{between}({row:g}, {column:g})", fontsize=8, pad=3)
    frame = {"facecolor": "none", "edgecolor": OWN_PLACE, "linewidth": 1.6, "clip_on": False}
    ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **frame))
    return image


def _colour_bar(axes, image, values):
    """One colour bar for all panels, pointed where any value lies beyond its ends."""
    low, high = bool((values < 0).any()), bool((values > 1).any())
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[low, high]
    gaps = " (grey: patch is constant)" if np.isnan(values).any() else ""
    bar = axes[0].figure.colorbar(image, ax=list(axes), extend=extend, aspect=30, pad=0.02)
    bar.set_label(f"CKA of token and input patch{gaps}", fontsize=9)


def plot_head_similarity(result, ax=None, layers=None):
    """CKA of growing subsets of a ViT's heads with layers of another model (Figure 5).

    Args:
        result: Dataset from `head_similarity` with `cka`(order, subset, layer), `distance`(order,
            subset) in pixels and, where known, the standard error `stderr`, drawn as a band.
        ax: Matplotlib axes; new ones if None.
        layers: names of the other model's layers to draw; all if None.

    Returns:
        The axes: mean attention distance of a subset against CKA, a colour per layer; filled
        markers and solid lines for subsets of the most local heads, hollow and dashed for the most
        global. Both orders meet where all heads are in.

    Raises:
        ValueError: if `result` is no such Dataset, or a layer is unknown.
    """
    dims = ("order", "subset", "layer")
    cka = style.select_layers(style.expect_variable(result, "cka", dims), layers)
    distance = style.expect_variable(result, "distance", dims[:2])
    error = None
    if "stderr" in result:
        error = style.select_layers(style.expect_variable(result, "stderr", dims), layers)
    names, cut = shorten(style.layer_names(cka))
    ax = style.new_axes(7.5, 4.4) if ax is None else ax
    for index, colour in enumerate(style.depth_colours(len(names))):
        lines = cka.isel(layer=index)
        for order, options in _order_styles(colour).items():
            x, y = distance.sel(order=order).values, lines.sel(order=order).values
            label = names[index] if order == "local" else None
            ax.plot(x, y, color=colour, label=label, **options)
            if error is not None:
                spread = error.isel(layer=index).sel(order=order).values
                ax.fill_between(x, y - spread, y + spread, color=colour, alpha=0.15, linewidth=0)
    models = [result.attrs.get(f"model_{which}", "") for which in "xy"]
    of = " of ".join(filter(None, ["heads", models[0]]))
    ax.set_title(f"Similarity of {of} to layers" + (f" of {models[1]}" if models[1] else ""))
    ax.set(xlabel="mean attention distance of the heads (pixels)", ylabel="CKA")
    ax.set_ylim(bottom=min(0, cka.values.min() - 0.02))
    style.tidy(ax)
    _legends(ax, layer_label(cut, models[1]))
    return ax


def _order_styles(colour):
    """How the subsets of each order are drawn."""
    shared = {"marker": "o", "markersize": 4.5}
    return {
        "local": {"linestyle": "-", "markerfacecolor": colour, **shared},
        "global": {"linestyle": "--", "markerfacecolor": "white", **shared},
    }


def _legends(ax, heading):
    """The layers by colour, and below them the two orders in grey."""
    ax.plot([], [], linestyle="none", label=" ")
    for order, options in _order_styles("0.4").items():
        ax.plot([], [], color="0.4", label=f"most {order} heads first", **options)
    style.legend(ax, title=heading)
