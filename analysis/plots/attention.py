"""Attention of heads by the offset from the query: aligned maps, offsets and kinds of heads."""

import numpy as np

from ..engine.results import CLS, expect_array, expect_variable, layer_names, select_layers
from . import style
from .layers import FONT_SIZE, elide, layer_label, name_layers, shorten

KIND_COLOURS = {
    "strict": "#332288",
    "soft": "#88ccee",
    "axial": "#ddcc77",
    "offset": "#cc6677",
    "global": "#e8e8e8",
    "none": "#ffffff",
}
KIND_LABELS = {
    "strict": "strict local (own token)",
    "soft": "soft local",
    "axial": "axial (—, | or +)",
    "offset": "offset (arrow)",
    "global": "global",
    "none": "at no place (prefix only)",
}
_ON_DARK = ("strict", "offset")
_SIGNS = {
    **{"right": "→", "down-right": "↘", "down": "↓", "down-left": "↙"},
    **{"left": "←", "up-left": "↖", "up": "↑", "up-right": "↗"},
    **{"row": "—", "column": "|", "both": "+", "": ""},
}


def plot_aligned_attention(result, axes=None, layers=None):
    """Attention by the offset from the query, a row per layer and a column per head (Figure 3).

    Figures are those of Walmer et al. 2023. Every panel is scaled to its own maximum; red lines
    cross at the query.

    Args:
        result: DataArray of dims (layer, head, row_offset, column_offset), with offsets in pixels
            as coordinates, from `aligned_attention`.

    Returns:
        ndarray of shape (layers, heads) of the axes drawn on.
    """
    dims = ("layer", "head", "row_offset", "column_offset")
    result = select_layers(expect_array(result, dims), layers)
    title = style.titled("Attention by offset from the query", result)
    scaled = "each panel scaled to its own maximum; red lines cross at the query"
    axes = _new_panels(result, axes, f"{title}\n{scaled}")
    reach = [_half_reach(result, dim) for dim in dims[2:]]
    for ax, values in zip(axes.ravel(), result.values.reshape(-1, *result.shape[2:]), strict=True):
        image = _draw_aligned(ax, values, reach)
    _name_offsets(axes[-1, 0], reach)
    _panel_bar(axes, image)
    return axes


def plot_attention_maps(result, axes=None, layers=None):
    """Mean attention on the grid of keys, a row per layer and a column per head (Figures 2 and 17).

    Figures are those of Walmer et al. 2023. Every panel is scaled to its own maximum.

    Args:
        result: DataArray of dims (layer, head, row, column) from `attention_maps`.

    Returns:
        ndarray of shape (layers, heads) of the axes drawn on.
    """
    result = expect_array(result, ("layer", "head", "row", "column"))
    result = select_layers(result, layers)
    title = style.titled("Mean attention of the query", result)
    if result.attrs.get("query") == CLS:
        title = style.titled("Mean attention of CLS", result)
    axes = _new_panels(result, axes, f"{title}\neach panel scaled to its own maximum")
    for ax, values in zip(axes.ravel(), result.values.reshape(-1, *result.shape[2:]), strict=True):
        image = ax.imshow(values / values.max(), cmap=style.colours("viridis"), vmin=0, vmax=1)
        ax.set_xticks([])
        ax.set_yticks([])
    _panel_bar(axes, image)
    return axes


def _new_panels(result, axes, heading):
    """Axes of shape (layers, heads) with their names, new ones if None are given."""
    shape = result.shape[:2]
    names, cut = shorten(layer_names(result))
    if axes is None:
        axes = _panels(shape, result.shape[2] / result.shape[3], heading)
        axes[0].figure.supylabel(layer_label(cut), fontsize=9)
    axes = style.expect_axes(axes, shape[0] * shape[1], "layer and head").reshape(shape)
    for ax, head in zip(axes[0], result["head"].values, strict=True):
        ax.set_title(f"head {head}", fontsize=8, pad=3)
    for ax, name in zip(axes[:, 0], names, strict=True):
        ax.set_ylabel(elide(name, 14), fontsize=8)
    return axes


def _panel_bar(axes, image):
    """One colour bar of all panels, each scaled to its own maximum."""
    aspect = max(30, 10 * len(axes))
    style.panel_bar(axes.ravel(), image, "attention / panel maximum", aspect, pad=0.02)


def _panels(shape, tall, heading):
    """Axes of a new figure, a row per layer and a column per head, flat."""
    rows, columns = shape
    width = max(0.55, 1.1 / max(tall, 1))
    size = (max(4.6, columns * width + 1.6), max(2.6, rows * width * tall + 1.2))
    return style.new_grid(rows, columns, size, heading, fontsize=10).ravel()


def _half_reach(result, dim):
    """How far the cells of a map reach along an axis, in pixels."""
    offsets = np.asarray(result[dim].values, float)
    half = (offsets[1] - offsets[0]) / 2 if len(offsets) > 1 else 0.5
    return offsets[-1] + half


def _draw_aligned(ax, values, reach):
    """Draw a map of offsets as shares of its maximum, with lines through the query."""
    rows, columns = reach
    image = ax.imshow(
        values / values.max(),
        cmap=style.colours("viridis"),
        vmin=0,
        vmax=1,
        extent=(-columns, columns, rows, -rows),
        interpolation="nearest",
    )
    ax.axhline(0, color="red", linewidth=0.5, alpha=0.8)
    ax.axvline(0, color="red", linewidth=0.5, alpha=0.8)
    ax.set_xticks([])
    ax.set_yticks([])
    return image


def _name_offsets(ax, reach):
    """Write how far the maps reach on the last panel of the first column."""
    ax.set_xticks([-reach[1], 0, reach[1]], [f"{-reach[1]:g}", "0", f"{reach[1]:g}"])
    ax.tick_params(axis="x", labelsize=FONT_SIZE - 1, length=2)
    ax.set_xlabel("offset (pixels)", fontsize=FONT_SIZE)


def plot_offsets(result, ax=None, layers=None):
    """Centre of mass of each head's attention, from its query (Section 4.2 of Walmer et al. 2023).

    Args:
        result: Dataset with `row_offset` and `column_offset` of dims (layer, head), in pixels, from
            `attention_offset`.

    Returns:
        The axes: a point per head, right and down as in the image, a colour per layer; lines cross
        at the query.
    """
    offsets = [
        select_layers(expect_variable(result, name, ("layer", "head")), layers)
        for name in ("column_offset", "row_offset")
    ]
    names, cut = shorten(layer_names(offsets[0]))
    ax = style.new_axes(6.4, 4.6) if ax is None else ax
    for line in (ax.axhline, ax.axvline):
        line(0, color="0.6", linewidth=0.8, zorder=1)
    depth = style.depth_colours(len(names))
    for name, colour, x, y in zip(names, depth, *(one.values for one in offsets), strict=True):
        ax.scatter(x, y, s=26, color=colour, label=name, edgecolor="white", linewidth=0.4)
    reach = 1.12 * np.nanmax(np.abs([one.values for one in offsets]), initial=1)
    ax.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal")
    ax.set_title(style.titled("Mean offset of attention from its query", result))
    ax.set(xlabel="to the right (pixels)", ylabel="down (pixels)")
    ax.locator_params(nbins=5)
    ax.spines[["top", "right"]].set_visible(False)
    style.legend(ax, title=layer_label(cut))
    return ax


def plot_head_classes(result, ax=None, layers=None):
    """The kind of every head, with the direction of those that have one.

    Args:
        result: Dataset with `kind` and `direction` of dims (layer, head) from `head_classes`.

    Returns:
        The axes: layers left to right, heads downwards, a colour per kind.
    """
    from matplotlib.colors import ListedColormap

    kind, direction = (
        select_layers(expect_variable(result, name, ("layer", "head")), layers).values.T
        for name in ("kind", "direction")
    )
    known = list(KIND_COLOURS)
    unknown = sorted(set(kind.ravel().tolist()) - set(known))
    if unknown:
        raise ValueError(f"Expected kinds among {known}. Received: {unknown}")
    names, cut = shorten(layer_names(result) if layers is None else list(layers))
    width = style.side(len(names)) if ax is None else None
    target = style.new_axes(width + 2.6, 0.3 * len(kind) + 1.4) if ax is None else ax
    codes = np.vectorize(known.index, otypes=[int])(kind)
    colours = ListedColormap(list(KIND_COLOURS.values()))
    target.imshow(codes, cmap=colours, vmin=-0.5, vmax=len(known) - 0.5, aspect="auto")
    for row, column in np.ndindex(*kind.shape):
        tone = "white" if kind[row, column] in _ON_DARK else "black"
        sign = _SIGNS[direction[row, column]]
        target.text(column, row, sign, color=tone, ha="center", va="center", fontsize=9)
    name_layers(target, "x", names, np.arange(len(names)), width)
    target.set_yticks(np.arange(len(kind)), result["head"].values, fontsize=FONT_SIZE)
    target.set_title(style.titled("Kinds of attention heads", result))
    target.set(xlabel=layer_label(cut), ylabel="head")
    _kind_legend(target, kind)
    if ax is None:
        style.shrink_wrap(target, width, max(1.2, 0.22 * len(kind)))
    return target


def _kind_legend(ax, kind):
    """A legend of the kinds with their numbers of heads; `"none"` only if there are any."""
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=c, edgecolor="0.6", label=f"{KIND_LABELS[k]}: {np.sum(kind == k)}")
        for k, c in KIND_COLOURS.items()
        if k != "none" or k in kind
    ]
    ax.legend(handles=handles, title="heads", **style.BESIDE)


# What heads of each kind do, in a sentence.
KINDS = {
    "strict": "look at their own token",
    "soft": "look at their own token and around it",
    "axial": "look along a row or a column",
    "offset": "look at a neighbour in one direction",
    "global": "look everywhere in the image",
    "none": "attend to no place",
}


def one_kind(results):
    """The sentence for a model whose attention heads are all of one kind; None for others."""
    (result,) = results.values()
    kinds, directions = (np.unique(result[name]) for name in ("kind", "direction"))
    if len(kinds) > 1 or len(directions) > 1:
        return None
    along = f" ({directions[0]})" if directions[0] else ""
    return (
        f"All {result['kind'].size} heads, of {result.sizes['layer']} layers, are of one kind, "
        f"{kinds[0]}{along}: they {KINDS[kinds[0]]}."
    )
