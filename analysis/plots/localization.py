"""CKA of tokens with image patches, and of heads with layers of another model."""

import math
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..engine.results import expect_array, expect_variable, layer_names, select_layers
from . import style
from .layers import layer_label, shorten, wrap
from .primitives import panels, renamed_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 4  # along either side, where tokens are chosen for the reader
MOST_BY_LAYER = 6
FRAMED = "framed: the token's own (row, column)"


@renamed_arguments(axes="ax")
def plot_localization(
    result: xr.DataArray,
    ax: "Axes | None" = None,
    layer: str | list[str] | None = None,
    tokens: list[int] | None = None,
) -> "Axes":
    """CKA of single tokens with every input patch (Figures 9, 10, D.1 to D.3 of Raghu et al.).

    A frame marks each token's own position. The maps of one layer are arranged as the tokens are in
    the image, prefix tokens in a row above; those of a list of layers, in a row per layer.

    Args:
        result: DataArray of dims (layer, token, row, column) from `localization`, with the
            coordinates `token_row` and `token_column`; NaN (constant patches) is drawn grey.
        ax: Matplotlib axes; those of a new figure if None.
        layer: name of the layer to draw, the last if None; or a list of names, in order.
        tokens: the tokens to draw, by their coordinate. If None, of one layer all 16 tokens or
            fewer, else up to 4 x 4 spatial ones, evenly spaced; of a list of layers all 6 or fewer,
            else the first, and those nearest to the centre, two corners and two edges.

    Returns:
        The axes, with `ax.panels` of shape (token,), and (layer, token) for a list. Colours are
        shared by all maps and span their values: CKA of a token and a patch is often far from 1.

    Raises:
        ValueError: for another result, or a layer or token that it does not have.

    Examples:
        >>> cka = analysis.localization(model, images)
        >>> ax = analysis.plot_localization(cka, layer=list(cka.layer.values))

    See also:
        `localization`, `plot_cka`.
    """
    result = expect_array(result, ("layer", "token", "row", "column"))
    missing = {"token_row", "token_column"} - set(result.coords)
    if missing:
        raise ValueError(f"Expected the coordinates {sorted(missing)}. Received: no such")
    single = layer is None or isinstance(layer, str)
    names = [layer_names(result)[-1] if layer is None else layer] if single else layer
    drawn = select_layers(result, names)
    drawn = _spaced(drawn, single) if tokens is None else _named(drawn, tokens)
    names, shape = layer_names(drawn), drawn.shape[:2]
    title = style.titled("CKA between tokens and input patches", result)
    title += f"\n{names[0]}; {FRAMED}" if single else f"\n{FRAMED}"
    tall = drawn.sizes["row"] / drawn.sizes["column"]
    width = max(0.6, 1.35 / max(tall, 1))
    options = {"inches": (width, width * tall), "lines": 2 if tall > 1.5 else 1}
    shape, cells = (shape[1:], _cells(drawn)) if single else (shape, None)
    ax, flat = panels(ax, shape, title, "token and layer", cells=cells, **options)
    limits = style.span(drawn.values)
    for panel, (row, column) in zip(flat, np.ndindex(*drawn.shape[:2]), strict=True):
        token = drawn.isel(layer=row, token=column)
        image = _draw_token(panel, token, limits, titled=single or row == 0)
        if not single and column == 0:
            panel.set_ylabel(wrap(names[row], 16), fontsize=8)
    gaps = " (grey: patch is constant)" if np.isnan(drawn.values).any() else ""
    label = f"CKA of token and input patch{gaps}\n{style.SPANNED}"
    style.colour_bar(flat, image, label, drawn.values)
    return ax


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
        places: array of shape (2, token), rows and columns, NaN for prefix tokens.
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
    """The row and column of the panel of each token: its position among those drawn."""
    positions = np.stack([result["token_row"].values, result["token_column"].values])
    prefix = np.isnan(positions).any(axis=0)
    row, column = (np.unique(side, return_inverse=True)[1] for side in positions)
    row = np.where(prefix, 0, row + prefix.any())
    column = np.where(prefix, np.cumsum(prefix) - 1, column)
    return list(zip(row.tolist(), column.tolist(), strict=True))


def _draw_token(ax, values, span, titled):
    """Draw the map of one token, with its own position framed; return the image."""
    image = ax.imshow(values, cmap=style.colours("magma"), **span, interpolation="nearest")
    token, row, column = (values[name].item() for name in ("token", "token_row", "token_column"))
    between = "\n" if values.sizes["row"] > 1.5 * values.sizes["column"] else " "
    ax.set_xticks([])
    ax.set_yticks([])
    place = "(prefix)" if math.isnan(row) else f"({row:g}, {column:g})"
    if titled:
        ax.set_title(f"token {token}{between}{place}", fontsize=8, pad=3)
    if not math.isnan(row):
        style.frame_cell(ax, row, column)
    return image


def plot_head_similarity(
    result: xr.Dataset, ax: "Axes | None" = None, layers: list[str] | None = None
) -> "Axes":
    """CKA of growing subsets of a ViT's heads with layers of another model (Figure 5 of Raghu).

    Args:
        result: Dataset from `head_similarity` with `cka`(order, subset, layer), `distance`(order,
            subset) in pixels and, where known, the standard error `stderr`, drawn as a band.
        ax: Matplotlib axes; those of a new figure if None.
        layers: names of the layers to draw, in order; all if None.

    Returns:
        The axes: mean attention distance of a subset against CKA, a colour per layer; filled
        markers and solid lines for subsets of the most local heads, hollow and dashed for the most
        global. Both orders meet at the subset of all heads.

    Raises:
        ValueError: for another result, or a layer that it does not have.

    Examples:
        >>> cka = analysis.head_similarity(model, other_model, images)
        >>> ax = analysis.plot_head_similarity(cka)

    See also:
        `head_similarity`, `plot_attention_distance`.
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
    heads = " of ".join(filter(None, ["heads", models[0]]))
    ax.set_title(f"CKA between {heads} and layers" + (f" of {models[1]}" if models[1] else ""))
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


def plot_localization_by_layer(result: xr.DataArray, ax: "Axes | None" = None) -> "Axes":
    """`plot_localization` of all layers."""
    return plot_localization(result, ax, layer=list(result.layer.values))
