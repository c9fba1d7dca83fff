"""Similarity of tokens to image patches, and of heads to layers of another model."""

import math

import numpy as np

from ..engine.results import expect_array, expect_variable, layer_names, select_layers
from . import style
from .layers import layer_label, shorten, wrap

MOST_PANELS = 4  # along either side, where tokens are chosen for the reader
MOST_BY_LAYER = 6
FRAMED = "framed: the token's own (row, column)"


def plot_localization(result, axes=None, layer=None, tokens=None):
    """CKA of single tokens with every patch of the input image (Figures 9, 10, D.1 to D.3).

    A frame around it marks each token's own place. The maps of one layer lie as their tokens do in
    the image, prefix tokens in a row above; those of a list of layers, or of one, in a row per
    layer.

    Args:
        result: DataArray of dims (layer, token, row, column) from `localization`, with the
            coordinates `token_row` and `token_column`; NaN (constant patches) is drawn grey.
        layer: name of the layer to draw, the last if None; or a list of names, in order.
        tokens: the tokens to draw, by their coordinate. If None, of one layer all 16 tokens or
            fewer, else up to 4 x 4 with a place, evenly spaced; of a list of layers all 6 or fewer,
            else the first, and those nearest to the centre, two corners and two edges.

    Returns:
        ndarray of the axes drawn on, of shape (tokens,), and (layers, tokens) for a list. Colours
        are those of all maps and span their values: CKA of a token and a patch is often far from 1.
    """
    result = expect_array(result, ("layer", "token", "row", "column"))
    missing = {"token_row", "token_column"} - set(result.coords)
    if missing:
        raise ValueError(f"Expected the coordinates {sorted(missing)}. Received: no such")
    one = layer is None or isinstance(layer, str)
    names = [layer_names(result)[-1] if layer is None else layer] if one else layer
    chosen = select_layers(result, names)
    chosen = _spaced(chosen, one) if tokens is None else _named(chosen, tokens)
    shape = chosen.shape[:2]
    if axes is None:
        title = style.titled("Localization of tokens", result)
        axes = _panels_in_place(chosen, title) if one else _panels_by_layer(chosen, title)
    axes = style.expect_axes(axes, math.prod(shape), "token and layer")
    span = style.span(chosen.values)
    for ax, (row, column) in zip(axes, np.ndindex(*shape), strict=True):
        token = chosen.isel(layer=row, token=column)
        image = _draw_token(ax, token, span, titled=one or row == 0)
        if not one and column == 0:
            ax.set_ylabel(wrap(layer_names(chosen)[row], 16), fontsize=8)
    gaps = " (grey: patch is constant)" if np.isnan(chosen.values).any() else ""
    label = f"CKA of token and input patch{gaps}\n{style.SPANNED}"
    style.shared_colour_bar(axes, image, label, chosen.values)
    return axes if one else axes.reshape(shape)


def _named(result, tokens):
    """The tokens of these coordinates, in the order asked for."""
    known = result["token"].values.tolist()
    if not len(tokens) or not set(tokens) <= set(known):
        raise ValueError(f"Expected tokens among {known}. Received: {list(tokens)}")
    return result.sel(token=list(tokens))


def _spaced(result, in_place):
    """The tokens to draw: all if they are few, otherwise some spread over the grid."""
    if result.sizes["token"] <= (MOST_PANELS**2 if in_place else MOST_BY_LAYER):
        return result
    places = np.stack([result["token_row"].values, result["token_column"].values])
    if not in_place:
        return result.isel(token=_landmarks(places, result.shape[2:]))
    keep = np.ones(result.sizes["token"], bool)
    for place in places:
        known = np.unique(place[np.isfinite(place)])
        spaced = np.linspace(0, len(known) - 1, min(len(known), MOST_PANELS)).round().astype(int)
        keep &= np.isin(place, known[spaced])
    return result.isel(token=np.flatnonzero(keep))


def _landmarks(places, shape):
    """Indices of the first prefix token, and of those at two corners, two edges and the centre.

    Args:
        places: array of shape (2, token), rows and columns, NaN of prefix tokens.
        shape: numbers of rows and columns of the grid.
    """
    last, middle = np.array(shape) - 1, np.array(shape) // 2
    top, left = (0, middle[1]), (middle[0], 0)
    chosen = set(np.flatnonzero(np.isnan(places).any(axis=0))[:1])
    for landmark in ((0, 0), top, left, middle, last):
        distance = np.hypot(*(places - np.array(landmark)[:, None]))
        chosen.add(np.nanargmin(distance))
    return sorted(chosen)


def _cells(result):
    """The row and column of the panel of each token: its place among those drawn."""
    places = np.stack([result["token_row"].values, result["token_column"].values])
    prefix = np.isnan(places).any(axis=0)
    row, column = (np.unique(side, return_inverse=True)[1] for side in places)
    row = np.where(prefix, 0, row + prefix.any())
    return row, np.where(prefix, np.cumsum(prefix) - 1, column)


def _panels_in_place(result, title):
    """Axes of a new figure, one per token, laid out like the grid."""
    row, column = _cells(result)
    heading = f"{title}\n{layer_names(result)[0]}; {FRAMED}"
    axes = _new_panels(result, row.max() + 1, column.max() + 1, heading, 0.3)
    used = axes[row, column]
    for ax in set(axes.ravel()) - set(used):
        ax.remove()
    return used


def _panels_by_layer(result, title):
    """Axes of a new figure, a row per layer and a column per token."""
    return _new_panels(result, *result.shape[:2], f"{title}\n{FRAMED}", 0.1)


def _new_panels(result, rows, columns, heading, between):
    """Axes of shape (rows, columns), each as oblong as the maps, with inches `between` rows."""
    tall = result.sizes["row"] / result.sizes["column"]
    width = max(0.6, 1.35 / max(tall, 1))
    size = (max(5.3, columns * width + 1.3), max(2.4, rows * (width * tall + between) + 0.8))
    return style.new_grid(rows, columns, size, heading)


def _draw_token(ax, values, span, titled):
    """Draw the map of one token, with its own place framed; return the image."""
    image = ax.imshow(values, cmap=style.colours("magma"), **span, interpolation="nearest")
    token, row, column = (values[name].item() for name in ("token", "token_row", "token_column"))
    between = "\n" if values.sizes["row"] > 1.5 * values.sizes["column"] else " "
    ax.set_xticks([])
    ax.set_yticks([])
    place = "(no place)" if math.isnan(row) else f"({row:g}, {column:g})"
    if titled:
        ax.set_title(f"token {token}{between}{place}", fontsize=8, pad=3)
    if not math.isnan(row):
        style.frame_cell(ax, row, column)
    return image


def plot_head_similarity(result, ax=None, layers=None):
    """CKA of growing subsets of a ViT's heads with layers of another model (Figure 5).

    Args:
        result: Dataset from `head_similarity` with `cka`(order, subset, layer), `distance`(order,
            subset) in pixels and, where known, the standard error `stderr`, drawn as a band.

    Returns:
        The axes: mean attention distance of a subset against CKA, a colour per layer; filled
        markers and solid lines for subsets of the most local heads, hollow and dashed for the most
        global. Both orders meet where all heads are in.
    """
    dims = ("order", "subset", "layer")
    cka = select_layers(expect_variable(result, "cka", dims), layers)
    distance = expect_variable(result, "distance", dims[:2])
    error = None
    if "stderr" in result:
        error = select_layers(expect_variable(result, "stderr", dims), layers)
    names, cut = shorten(layer_names(cka))
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


def plot_localization_by_layer(result):
    """`plot_localization` of all layers."""
    return plot_localization(result, layer=list(result.layer.values))
