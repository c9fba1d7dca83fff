"""Attention: distances, maps, offsets, types of heads, patterns, rollout, and single queries."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xarray as xr

from vit_tf.common.names import join_words

from ..engine.results import (
    CLS,
    PARTS,
    SPATIAL,
    layer_names,
    query_position,
    require_word,
    select_labels,
    select_layers,
    token_name,
)
from . import style
from .primitives import (
    FONT_SIZE,
    SCALED,
    class_titles,
    draw_lines,
    draw_maps,
    draw_matrix,
    elide,
    layer_label,
    number_texts,
    panels,
    picture_of,
    shorten,
    write_cells,
)
from .rule import draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST_LEGEND = 24
QUERIES = {CLS: "CLS", SPATIAL: "mean of the spatial tokens"}
KIND_COLOURS = {
    **{"strict": "#332288", "soft": "#88ccee", "axial": "#ddcc77", "offset": "#cc6677"},
    **{"global": "#e8e8e8", "none": "#ffffff"},
}
KIND_LABELS = {
    "strict": "strict local (own token)",
    "soft": "soft local",
    "axial": "axial (—, | or +)",
    "offset": "offset (arrow)",
    "global": "global",
    "none": "prefix tokens only",
}
# What heads of each kind do, in a sentence.
KINDS = {
    "strict": "attend to their own token",
    "soft": "attend to their own token and its neighbours",
    "axial": "attend along a row or a column",
    "offset": "attend to a neighbour in one direction",
    "global": "attend to the whole image",
    "none": "attend to prefix tokens only",
}
_ON_DARK = ("strict", "offset")
_SIGNS = {
    **{"right": "→", "down-right": "↘", "down": "↓", "down-left": "↙"},
    **{"left": "←", "up-left": "↖", "up": "↑", "up-right": "↗"},
    **{"row": "—", "column": "|", "both": "+", "": ""},
}


@draws("layer head", several=True)
def plot_attention_distance(
    results: style.Arrays, ax: "Axes | None", *, layers: list[str] | None = None
) -> "Axes":
    """Mean attention distance of each head, sorted within its layer (Figures 3 and 4 of Raghu).

    Each line shows one layer. Distances are in pixels, or in the `units` of the result. If there
    are several results, each result has its own panel, and all panels have a common scale.

    Args:
        results: DataArray of dims (layer, head), from `attention_distance`, or a dict from label to
            such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw, in order. None means all layers.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.attention_distance(model, images)
        >>> ax = analysis.plots.plot_attention_distance(result)

    See also:
        `attention_distance`, `plot_mean_distance`.
    """
    arrays = style.by_label(results)
    arrays = {label: select_layers(result, layers) for label, result in arrays.items()}
    title = style.titled("Attention distance", results)
    if not isinstance(results, dict):
        ax = style.new_axes(7, 4.2) if ax is None else ax
        ax.set_title(title)
        return _sorted_heads(ax, arrays[""])
    columns = min(3, len(arrays))
    ax, flat = panels(
        ax, len(arrays), title, list(arrays), columns=columns, inches=(3.8, 3.0), size=10
    )
    for panel, result in zip(flat, arrays.values(), strict=True):
        _sorted_heads(panel, result)
    top = max(panel.get_ylim()[1] for panel in flat)
    shared = len({tuple(layer_names(result)) for result in arrays.values()}) == 1
    for index, panel in enumerate(flat):
        panel.set_ylim(0, top)
        if shared and index != columns - 1 and panel.get_legend():
            panel.get_legend().remove()
    return ax


def _sorted_heads(ax: "Axes", result: xr.DataArray) -> "Axes":
    """A line for each layer through its sorted heads, in a legend, or a colour bar of steps."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    names, cut = shorten(layer_names(result))
    colours = style.depth_colours(len(names))
    ranks = np.arange(1, result.sizes["head"] + 1)
    for name, colour, heads in zip(names, colours, result.values, strict=True):
        ax.plot(ranks, np.sort(heads), marker="o", markersize=3.5, color=colour, label=name)
    unit = result.attrs.get("units", "pixels")
    cast(Any, ax.xaxis.get_major_locator()).set_params(integer=True)
    style.tidy(
        ax,
        xlabel="head, sorted by distance within its layer",
        ylabel=f"mean attention distance ({unit})",
        ylim=(0, None),
    )
    if len(names) <= LARGEST_LEGEND:
        style.legend(ax, title=layer_label(cut))
        return ax
    steps = ScalarMappable(Normalize(-0.5, len(names) - 0.5), ListedColormap(colours))
    bar = ax.figure.colorbar(steps, ax=ax, label=layer_label(cut), pad=0.02)
    every = slice(None, None, 1 + len(names) // LARGEST_LEGEND)
    bar.set_ticks(range(len(names))[every], labels=names[every], fontsize=8)
    bar.ax.tick_params(length=0)
    return ax


@draws("layer head", several=True, of="mean_distance, attention_distance")
def plot_mean_distance(results: style.Arrays, ax: "Axes | None") -> "Axes":
    """Attention distance of every head by layer (Figures 4 and 15 of Walmer et al. 2023).

    Each point shows one head. A line connects the means of the layers, as in figure 7 (right) of
    Dosovitskiy et al. 2020.

    Args:
        results: DataArray of dims (layer, head), from `mean_distance` or `attention_distance`, or a
            dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = analysis.mean_distance(analysis.mean_attention(model, images))
        >>> ax = analysis.plots.plot_mean_distance(result)

    See also:
        `mean_distance`, `attention_distance`, `plot_attention_distance`.
    """
    distances = style.by_label(results)
    units = {str(result.attrs.get("units", "")) for result in distances.values()}
    if len(units) > 1:
        raise ValueError(
            f"The results have different units: {sorted(units)}. Draw each unit with its own ax="
        )
    heads = {(label, ""): result for label, result in distances.items()}
    means = {key: result.mean("head", skipna=False) for key, result in heads.items()}
    return draw_lines(
        means,
        {"": "mean over heads"},
        ax,
        points=heads,
        title=style.titled("Attention distance by layer (points: heads)", results),
        ylabel=f"attention distance ({units.pop() or 'no unit'})",
        ylim=(0, 1.06 * max(result.values.max() for result in distances.values())),
    )


@draws("layer head row_offset column_offset")
def plot_aligned_attention(
    result: xr.DataArray, ax: "Axes | None", *, layers: list[str] | None = None
) -> "Axes":
    """Attention as a function of the offset from the query (Figure 3 of Walmer et al. 2023).

    Each panel shows one head and is scaled to its own maximum. Two red lines cross at the query.

    Args:
        result: DataArray of dims (layer, head, row_offset, column_offset), from
            `aligned_attention`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw, in order. None means all layers.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer, head).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.aligned_attention(analysis.mean_attention(model, images))
        >>> ax = analysis.plots.plot_aligned_attention(result)

    See also:
        `aligned_attention`, `plot_attention_offset`.
    """
    result = select_layers(result, layers)
    offsets = [result[dim].values.astype(float) for dim in ("row_offset", "column_offset")]
    rows, columns = (x[-1] + (x[1] - x[0] if len(x) > 1 else 1) / 2 for x in offsets)
    extent = (-columns, columns, rows, -rows)
    title = style.titled("Attention by offset from the query", result)
    note = "red lines cross at the query"
    drawn, flat = _draw_heads(result, ax, title, note, extent=extent)
    for panel in flat:
        panel.axhline(0, color="red", linewidth=0.5, alpha=0.8)
        panel.axvline(0, color="red", linewidth=0.5, alpha=0.8)
    first = flat[result.sizes["head"] - 1]  # of the last row
    first.set_xticks([-columns, 0, columns], [f"{-columns:g}", "0", f"{columns:g}"])
    first.tick_params(axis="x", labelsize=FONT_SIZE - 1, length=2)
    first.set_xlabel("offset (pixels)", fontsize=FONT_SIZE)
    return drawn


@draws({"attention": "example layer head row column"})
def plot_attention(
    result: xr.Dataset, ax: "Axes | None", *, layers: list[str] | None = None, example: int = 0
) -> "Axes":
    """Attention of every head of every layer, drawn over the image.

    Rows show layers, and columns show heads. Each panel is scaled to its own maximum. The title of
    the panel states this maximum relative to uniform attention.

    Args:
        result: Dataset with `attention` of dims (example, layer, head, row, column), from
            `attention`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw, in order. None means all layers.
        example: index of the image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer, head).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.attention(model, images)
        >>> ax = analysis.plots.plot_attention(result)

    See also:
        `attention`, `plot_attention_maps`, `plot_attention_rows`.
    """
    result = select_labels(result, example=example)
    maps = select_layers(result["attention"], layers)
    query = result.attrs["query"]
    prefix, _ = style.token_layout(result)
    name = (
        "the spatial tokens"
        if query == SPATIAL
        else token_name(query_position(query, prefix, prefix + maps[0, 0].size), prefix)
    )
    title = style.titled(f"Attention of {name}", result)
    return _draw_heads(
        maps, ax, title, RELATIVE, prefix=prefix, image=result["picture"].values, faded=True
    )[0]


@draws("layer head row column")
def plot_attention_maps(
    result: xr.DataArray,
    ax: "Axes | None",
    *,
    layers: list[str] | None = None,
    image: np.ndarray | None = None,
) -> "Axes":
    """Mean attention from a query to the grid of keys (Figures 2 and 17 of Walmer et al. 2023).

    Each panel is scaled to its own maximum. The title of the panel states this maximum relative to
    uniform attention.

    Args:
        result: DataArray of dims (layer, head, row, column), from `attention_maps`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw, in order. None means all layers.
        image: image on which the maps are drawn, as the model receives it: an array in a format
            that `plot_overlay` accepts, or a PIL image. None draws the maps without an image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer, head).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.attention_maps(analysis.mean_attention(model, images))
        >>> ax = analysis.plots.plot_attention_maps(result)

    See also:
        `attention_maps`, `plot_mean_attention`.
    """
    result = select_layers(result, layers)
    query = "CLS" if result.attrs.get("query") == CLS else "the query"
    title = style.titled(f"Mean attention of {query}", result)
    # The maps are normalised over the grid, of which prefix tokens are no part.
    return _draw_heads(result, ax, title, RELATIVE, prefix=0, image=image)[0]


@draws({"raw": "layer head query key"})
def plot_mean_attention(
    result: xr.Dataset,
    ax: "Axes | None",
    *,
    query: str | int | None = None,
    layers: list[str] | None = None,
    image: np.ndarray | None = None,
) -> "Axes":
    """Mean attention over all images from a query to the grid of keys, for every head.

    Each panel is scaled to its own maximum. The title of the panel states this maximum relative to
    uniform attention.

    Args:
        result: Dataset with `raw` of dims (layer, head, query, key), from `mean_attention`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        query: the token that attends. `"cls"` is the first token, `"spatial"` is the mean over the
            spatial queries, and an integer is a position in the sequence. None means `"cls"` if
            there are prefix tokens, and `"spatial"` otherwise.
        layers: names of the layers to draw, in order. None means all layers.
        image: image on which the maps are drawn, as the model receives it: an array in a format
            that `plot_overlay` accepts, or a PIL image. None draws the maps without an image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer, head).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.mean_attention(model, images)
        >>> ax = analysis.plots.plot_mean_attention(result)

    See also:
        `mean_attention`, `plot_attention_maps`.
    """
    raw = select_layers(result["raw"], layers)
    prefix, shape = style.token_layout(result)
    values, name = _of_query(raw, query, prefix)
    values = values[..., prefix:].reshape(*values.shape[:2], *shape)
    coords = {"layer": layer_names(raw), "head": raw["head"].values}
    maps = xr.DataArray(values, coords, ("layer", "head", "row", "column"))
    title = style.titled(f"Mean attention of {name}", result)
    return _draw_heads(maps, ax, title, RELATIVE, prefix=prefix, image=image)[0]


TIMES = "\N{MULTIPLICATION SIGN}"
RELATIVE = f"{TIMES}: its maximum relative to uniform attention"


def _draw_heads(
    result: xr.DataArray,
    ax: "Axes | None",
    title: str,
    note: str = "",
    *,
    prefix: int | None = None,
    **options: Any,
) -> tuple["Axes", np.ndarray]:
    """Maps of dims (layer, head, ...), a column per layer and a row per head; axes and panels.

    Where the number of prefix tokens is known, titles state each maximum, relative to uniform
    attention over all tokens: a head that attends to nothing in particular looks like any other.
    """
    names, cut = shorten(layer_names(result))
    tall = result.shape[2] / result.shape[3]
    width = max(0.6, 1.1 / max(tall, 1))
    maps = result.values.swapaxes(0, 1).reshape(-1, *result.shape[2:])
    titles = [elide(name.removesuffix("/attention/weights"), 14) for name in names]
    if prefix is not None:
        peaks = np.nanmax(maps, axis=(1, 2)) * (prefix + maps[0].size)
        above = titles + [""] * (len(maps) - len(titles))
        titles = [
            f"{name} {TIMES}{peak:.2g}".strip() for name, peak in zip(above, peaks, strict=True)
        ]
    shape = result.sizes["head"], result.sizes["layer"]
    columns = f"columns: {layer_label(cut)}" if cut else ""
    title = "\n".join(filter(None, [title, SCALED, note, columns]))
    ax, _ = draw_maps(
        ax,
        maps,
        titles,
        title,
        cmap="viridis",
        bar="attention / panel maximum",
        shape=shape,
        inches=(width, width * tall),
        size=8,
        pad=3,
        **options,
    )
    for panel, head in zip(ax.panels[:, 0], result["head"].values, strict=True):
        panel.set_ylabel(f"head {head}", fontsize=8)
    ax.panels = ax.panels.T  # by layer and head, as the result
    return ax, ax.panels.ravel()


@draws(dict.fromkeys(("row_offset", "column_offset"), "layer head"), size=(6.4, 4.6))
def plot_attention_offset(
    result: xr.Dataset, ax: "Axes", *, layers: list[str] | None = None
) -> "Axes":
    """Mean offset of each head's attention from its query (section 4.2 of Walmer et al. 2023).

    Each point shows one head: the centre of mass of its attention relative to the query. Grey lines
    cross at the position of the query. The axes point right and down, as in the image. Each layer
    has a colour.

    Args:
        result: Dataset with `row_offset` and `column_offset` of dims (layer, head), from
            `attention_offset`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw, in order. None means all layers.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.attention_offset(aligned)
        >>> ax = analysis.plots.plot_attention_offset(result)

    See also:
        `attention_offset`, `plot_aligned_attention`.
    """
    offsets = [select_layers(result[name], layers) for name in ("column_offset", "row_offset")]
    names, cut = shorten(layer_names(offsets[0]))
    for line in (ax.axhline, ax.axvline):
        line(0, color="0.6", linewidth=0.8, zorder=1)
    depth, values = style.depth_colours(len(names)), [offset.values for offset in offsets]
    for name, colour, x, y in zip(names, depth, *values, strict=True):
        ax.scatter(x, y, s=26, color=colour, label=name, edgecolor="white", linewidth=0.4)
    limit = 1.12 * np.nanmax(np.abs(values), initial=1)
    title = style.titled("Mean attention offset from the query", result)
    ax.set(xlim=(-limit, limit), ylim=(limit, -limit), aspect="equal", title=title)
    ax.set(xlabel="column offset (pixels)", ylabel="row offset, downwards (pixels)")
    ax.locator_params(nbins=5)
    ax.spines[["top", "right"]].set_visible(False)
    style.legend(ax, title=layer_label(cut))
    return ax


@draws(dict.fromkeys(("kind", "direction"), "layer head"))
def plot_head_classes(
    result: xr.Dataset, ax: "Axes | None", *, layers: list[str] | None = None
) -> "Axes":
    """Type of every attention head, and its direction if it has one.

    Layers run from left to right, and heads downwards. Each type has a colour.

    Args:
        result: Dataset with `kind` and `direction` of dims (layer, head), from `head_classes`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw, in order. None means all layers.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.head_classes(analysis.mean_attention(model, images))
        >>> ax = analysis.plots.plot_head_classes(result)

    See also:
        `head_classes`, `plot_attention_offset`.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    kind, direction = (select_layers(result[name], layers) for name in ("kind", "direction"))
    kinds = list(KIND_COLOURS)
    unknown = sorted(set(kind.values.ravel().tolist()) - set(kinds))
    if unknown:
        raise ValueError(f"Expected kinds among {kinds}. Received: {unknown}")
    codes = kind.copy(data=np.vectorize(kinds.index, otypes=[int])(kind.values))
    ax, _ = draw_matrix(
        codes,
        ax,
        title=style.titled("Attention head types", result),
        size="large",
        height=max(1.6, 0.22 * kind.sizes["head"]),
        cmap=ListedColormap(list(KIND_COLOURS.values())),
        vmin=-0.5,
        vmax=len(kinds) - 0.5,
    )
    signs = np.vectorize(_SIGNS.get, otypes=[object])(direction.values.T)
    write_cells(ax, signs, np.isin(kind.values.T, _ON_DARK), fontsize=9)
    handles = [
        Patch(facecolor=c, edgecolor="0.6", label=f"{KIND_LABELS[k]}: {np.sum(kind.values == k)}")
        for k, c in KIND_COLOURS.items()
        if k != "none" or k in kind.values
    ]
    ax.legend(handles=handles, title="number of heads", **style.LEGEND)
    return ax


def one_kind(results: Mapping[str, xr.Dataset]) -> str | None:
    """The sentence for a model whose attention heads are all of one kind; None for others."""
    (result,) = results.values()
    kinds, directions = (np.unique(result[name]) for name in ("kind", "direction"))
    if len(kinds) > 1 or len(directions) > 1:
        return None
    along = f" ({directions[0]})" if directions[0] else ""
    return (
        f"All {result['kind'].size} heads, of {result.sizes['layer']} layers, are of one type, "
        f"{kinds[0]}{along}: they {KINDS[kinds[0]]}."
    )


@draws({"iou": "query layer head"}, several=True)
def plot_attention_saliency(
    results: style.Datasets, ax: "Axes | None", *, baselines: Sequence[str] = ()
) -> "Axes":
    """Overlap of attention with objects by layer (Figures 5 and 16 of Walmer et al. 2023).

    Each point shows one head, and lines connect the best heads of the layers.

    Args:
        results: Dataset with `iou` of dims (query, layer, head), from `attention_saliency`, or a
            dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.attention_saliency(model, (images, masks))
        >>> ax = analysis.plots.plot_attention_saliency(result)

    See also:
        `attention_saliency`, `plot_attention_maps`.
    """
    heads = style.split(style.labelled(results, "iou"), "query")
    best = {key: iou.max("head") for key, iou in heads.items()}
    kinds = {query: QUERIES.get(query) or query for _, query in heads}
    words = "Overlap of attention and object (line: best head, points: all heads)"
    ax = draw_lines(
        best, kinds, ax, baselines, points=heads, ylabel="IoU of attention and mask", ylim=(0, None)
    )
    ax.set_title(style.titled(words, results), fontsize=11)
    return ax


LEAST_PATTERN = 0.2  # repetition at the bright end of the colours, at least
NUMBERED = 12  # layers of which cells show their values


def hardly_repeats(results: dict[str, xr.Dataset]) -> str | None:
    """A sentence that replaces matrices that would all be dark, or None."""
    largest = np.nanmax([float(result["repetition"].max()) for result in results.values()])
    if largest >= LEAST_PATTERN / 2:
        return None
    return (
        f"Attention patterns hardly repeat between heads of {join_words(results)}: the repetition "
        f"of two layers is at most {largest:.3f}. It is 1 if all heads attend to the same token."
    )


@draws({"repetition": "query layer layer_other"}, of="attention_patterns, mean_patterns")
def plot_attention_patterns(
    result: xr.Dataset, ax: "Axes | None", *, query: str = SPATIAL
) -> "Axes":
    """Repetition of sparse attention patterns between heads, for all pairs of layers.

    Layers run from left to right and from bottom to top. The colour scale starts at 0 and ends at
    0.2 or higher, so a negligible repetition, such as 0.02, is dark. With at most 12 layers, the
    value is written in each cell.

    Args:
        result: Dataset with `repetition` of dims (query, layer, layer_other), from
            `attention_patterns` or `mean_patterns`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        query: the query whose maps are compared, `"cls"` or `"spatial"`.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.attention_patterns(model, images)
        >>> ax = analysis.plots.plot_attention_patterns(result)

    See also:
        `attention_patterns`, `mean_patterns`, `plot_attention_maps`.
    """
    values = select_labels(result["repetition"], query=query)
    gaps = "\n(grey: a single head)" if np.isnan(values.values).any() else ""
    high = np.nanmax(values.values, initial=LEAST_PATTERN)
    drawn, _ = draw_matrix(
        values,
        ax,
        title=style.titled("Repetition of attention patterns", result),
        bar=f"repetition, {QUERIES[query]}{gaps}",
        cmap=style.colours("magma"),
        vmin=np.nanmin(values.values, initial=0.0),
        vmax=high,
    )
    if values.shape[0] <= NUMBERED:
        matrix = values.values.T
        is_dark = ~(matrix > 0.6 * high)
        write_cells(drawn, number_texts(matrix), is_dark, fontsize=FONT_SIZE - 1)
    return drawn


@draws("layer query key", "example query key", of="attention_rollout, rollout_of_images")
def plot_attention_rollout(
    result: xr.DataArray,
    ax: "Axes | None",
    *,
    query: str | int | None = None,
    layers: list[str] | None = None,
    image: np.ndarray | list[np.ndarray] | None = None,
) -> "Axes":
    """Attention rollout from a query to the grid of keys (Abnar and Zuidema 2020).

    Each panel is scaled to its own maximum.

    Args:
        result: DataArray of dims (layer, query, key) or DataArray of dims (example, query, key),
            from `attention_rollout` or `rollout_of_images`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        query: the token that attends. `"cls"` is the first token, `"spatial"` is the mean over the
            spatial queries, and an integer is a position in the sequence. None means `"cls"` if
            there are prefix tokens, and `"spatial"` otherwise.
        layers: names of the layers to draw, in order. None means all layers.
        image: image on which the maps are drawn, or a list with one image for each example, in a
            format that `plot_overlay` accepts. By default, the image stored in the result of a
            single image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer,) or
        (example,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.attention_rollout(model, images)
        >>> ax = analysis.plots.plot_attention_rollout(result)

    See also:
        `attention_rollout`, `rollout_of_images`.
    """
    first = result.dims[0]
    prefix, shape = style.token_layout(result)
    result = select_layers(result, layers) if first == "layer" else result
    values, query_name = _of_query(result, query, prefix)
    names = layer_names(result, first)
    names = shorten(names)[0] if first == "layer" else [f"example {name}" for name in names]
    title = f"{style.titled(f'Attention rollout of {query_name}', result)}\n{SCALED}"
    maps = values[:, prefix:].reshape(-1, *shape)
    image = picture_of(result, image)
    images = image if isinstance(image, list) or image is None else [image] * len(maps)
    return draw_maps(
        ax,
        maps,
        names,
        title,
        images=images,
        bar="rollout / panel maximum",
        axis_unit=None if image is not None else "token",
    )[0]


def _of_query(result: xr.DataArray, query: int | str | None, prefix: int) -> tuple[np.ndarray, str]:
    """The values of a query of an array (..., query, key), and words for the query."""
    query = (CLS if prefix else SPATIAL) if query is None else query
    if isinstance(query, str) and query in (*PARTS, "first", "rest"):
        if require_word(query, PARTS, "query") == SPATIAL:
            return result.values[..., prefix:, :].mean(axis=-2), "the spatial tokens"
        if not prefix:
            raise ValueError("Expected query 'spatial' (there is no CLS token). Received: 'cls'")
    query = query_position(query, prefix, result.sizes["query"])
    return result.values[..., query, :], token_name(query, prefix)


@draws({"attention": "example layer head query key"})
def plot_attention_rows(
    result: xr.Dataset,
    ax: "Axes | None",
    *,
    query: str | int | None = None,
    image: np.ndarray | None = None,
    layer: str | None = None,
    example: int = 0,
) -> "Axes":
    """Attention of one query in all heads of a layer, drawn over the image.

    Each panel shows one head and is scaled to its own maximum.

    Args:
        result: Dataset with `attention` of dims (example, layer, head, query, key), from
            `attention_rows`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        query: the token that attends, as the name of a prefix token, such as `"cls"`, or as a
            position in the sequence. The default is CLS if there are prefix tokens, and the token
            at the centre otherwise.
        image: image on which the maps are drawn, as the model receives it: an array in a format
            that `plot_overlay` accepts, or a PIL image. None draws the maps without an image.
        layer: name of the layer; None means the last layer.
        example: index of the image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (head,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.attention_rows(model, images)
        >>> ax = analysis.plots.plot_attention_rows(result)

    See also:
        `attention_rows`, `plot_mean_attention`.
    """
    attention = result["attention"]
    prefix, (rows, columns) = style.token_layout(result)
    layer = layer_names(attention)[-1] if layer is None else layer
    if query is None:
        query = 0 if prefix else prefix + (rows // 2) * columns + columns // 2
    query = query_position(query, prefix, attention.sizes["query"])
    values = select_labels(attention, example=example, layer=layer).values[:, query, prefix:]
    cell = divmod(query - prefix, columns) if query >= prefix else None
    names = [f"head {head}" for head in attention["head"].values]
    words = f"Attention of {token_name(query, prefix)} in {layer}"
    maps, frames = values.reshape(-1, rows, columns), [cell] * len(names)
    title = style.titled(words, result)
    return draw_maps(ax, maps, names, title, image=image, frames=frames)[0]


@draws("example class query key")
def plot_gradient_attention(
    result: xr.DataArray, ax: "Axes | None", *, image: np.ndarray | None = None, example: int = 0
) -> "Axes":
    """Gradient-weighted attention of the pooled tokens, with a panel for each class.

    The relevance is averaged over the queries that the classification head pools. The attribute
    `pooled_tokens` of the result lists these queries. Each panel is scaled to its own maximum.

    Args:
        result: DataArray of dims (example, class, query, key), from `gradient_attention`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        image: image on which the maps are drawn, as the model receives it: an array in a format
            that `plot_overlay` accepts, or a PIL image. By default, the image stored in the
            result.
        example: index of the image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (class,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.gradient_attention(model, images)
        >>> ax = analysis.plots.plot_gradient_attention(result)

    See also:
        `gradient_attention`, `plot_grad_cam`.
    """
    prefix, shape = style.token_layout(result)
    selected = select_labels(result, example=example)
    values, image = selected.values, picture_of(selected, image)
    # An older file does not name them, and one token comes back as a number.
    pooled = result.attrs.get("pooled_tokens", 0 if prefix else range(values.shape[1]))
    used = values[:, np.atleast_1d(pooled)].mean(axis=1)
    names = class_titles(result)
    title = style.titled("Gradient-weighted attention", result)
    maps = used[:, prefix:].reshape(-1, *shape)
    return draw_maps(ax, maps, names, title, image=image)[0]


plot_mean_patterns = plot_attention_patterns
plot_rollout_of_images = plot_attention_rollout
