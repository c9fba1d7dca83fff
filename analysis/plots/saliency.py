"""Attention and the image: overlap with objects, repeated patterns, and rollout."""

import numpy as np

from ..engine.results import (
    CLS,
    PARTS,
    SPATIAL,
    expect_array,
    expect_variable,
    layer_names,
    require_word,
    select_layers,
    token_name,
)
from . import style
from .layers import FONT_SIZE, depth_axis, layer_label, name_layers, name_places, shorten, wrap

QUERIES = {CLS: "CLS", SPATIAL: "mean of the spatial tokens"}


def plot_saliency_iou(results, ax=None, baselines=()):
    """Overlap of attention with objects through the depth (Figures 5 and 16 of Walmer et al. 2023).

    Args:
        results: Dataset with `iou` of dims (query, layer, head) from `attention_saliency`.

    Returns:
        The axes: lines through the best head of each layer, over the points of all heads.
    """
    lines = {
        (label, str(query)): iou.sel(query=query)
        for label, iou in style.labelled(results, ("query", "layer", "head"), "iou").items()
        for query in iou["query"].values
    }
    ax = style.new_axes(8, 4.2) if ax is None else ax
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    names = {
        pair: ": ".join(filter(None, [pair[0], QUERIES.get(pair[1], pair[1])])) for pair in lines
    }
    grey = [name for (label, _), name in names.items() if label in baselines]
    colours = style.line_colours(names.values(), grey)
    for depth, (pair, line) in zip(depths, lines.items(), strict=True):
        name, colour = names[pair], colours[names[pair]]
        many = np.repeat(depth, line.sizes["head"])
        ax.scatter(many, line.values.ravel(), s=12, color=colour, alpha=0.45, linewidth=0)
        best = np.fmax.reduce(line.values, axis=1)  # NaN only where no head has an overlap
        ax.plot(depth, best, marker="o", markersize=4.5, color=colour, label=name)
    ax.set_title(style.titled("Attention on the object, best head (points: all heads)", results))
    ax.set(ylabel="IoU of attention and mask")
    ax.set_ylim(bottom=0)
    style.tidy(ax)
    style.legend(ax)
    return ax


def plot_attention_patterns(result, ax=None, query=SPATIAL):
    """How much the heads of two layers repeat one sparse pattern.

    Args:
        result: Dataset with `repetition` of dims (query, layer, layer_other) from
            `attention_patterns`.
        query: `"cls"` or `"spatial"`.

    Returns:
        The axes: a heatmap with depth rightwards and upwards, whose colours span its values.
    """
    repetition = expect_variable(result, "repetition", ("query", "layer", "layer_other"))
    values = style.chosen(repetition, query=query).values.T
    names, cut = shorten(layer_names(repetition))
    side = style.side(len(names)) if ax is None else None
    target = style.new_axes(side + 2, side + 1) if ax is None else ax
    options = {"cmap": style.colours("magma"), "origin": "lower", **style.span(values)}
    image = target.imshow(values, **options)
    for which in "xy":
        name_layers(target, which, names, np.arange(len(names)), side)
    target.set_title(style.titled("Repetition of attention patterns", result), fontsize=10)
    target.set(xlabel=layer_label(cut), ylabel=layer_label(cut))
    gaps = "\n(grey: a single head)" if np.isnan(image.get_array().filled(np.nan)).any() else ""
    style.colour_bar(target, image, f"repetition, {QUERIES[query]}{gaps}\n{style.SPANNED}")
    if ax is None:
        style.shrink_wrap(target, side, side)
    return target


def plot_rollout(result, axes=None, query=None, layers=None):
    """Attention rollout of a query on the grid of keys, a panel per layer or example.

    Args:
        result: DataArray of dims (layer, query, key) from `attention_rollout`, or (example, query,
            key) from `rollout_of_images`, with the attributes `rows`, `columns` and `prefix`.
        query: `"cls"`; `"spatial"`, the mean over the queries that have a place; or the position
            of one in the sequence. If None, `"cls"` where there is a prefix, else `"spatial"`.

    Returns:
        ndarray of shape (panels,) of the axes drawn on. Every panel is scaled to its own maximum.
    """
    first = "example" if "example" in getattr(result, "dims", ()) else "layer"
    result = expect_array(result, (first, "query", "key"))
    prefix, shape = style.layout(result)
    result = select_layers(result, layers) if first == "layer" else result
    values, of = _of_query(result, query, prefix)
    maps = values[:, prefix:].reshape(-1, *shape)
    if axes is None:
        title = style.titled(f"Attention rollout of {of}", result)
        title = f"{title}\neach panel scaled to its own maximum"
        axes = style.new_panels(len(maps), title, maps.shape[1] / maps.shape[2])
    axes = style.expect_axes(axes, len(maps), first)
    names = layer_names(result, first)
    names = shorten(names)[0] if first == "layer" else [f"example {name}" for name in names]
    for ax, name, panel in zip(axes, names, maps, strict=True):
        image = ax.imshow(panel / (panel.max() or 1.0), cmap=style.colours("magma"), vmin=0, vmax=1)
        ax.set_title(wrap(name), fontsize=FONT_SIZE)
        name_places(ax, panel.shape, "token")
    style.panel_bar(axes, image, "share / panel maximum")
    return axes


def _of_query(result, query, prefix):
    """Rollout of the query, of shape (panel, key), and words for the query."""
    query = (CLS if prefix else SPATIAL) if query is None else query
    if isinstance(query, str):
        if require_word(query, PARTS, "query") == SPATIAL:
            return result.values[:, prefix:].mean(axis=1), "the spatial tokens"
        if not prefix:
            raise ValueError("Expected query 'spatial' (there is no CLS token). Received: 'cls'")
        query = 0
    if query not in range(result.sizes["query"]):
        count = result.sizes["query"]
        raise ValueError(f"Expected query among 0 to {count - 1}. Received: query={query}")
    return result.values[:, query], token_name(query, prefix)
