"""CKA of layers: of all pairs, of several models beside each other, of counterparts."""

import math

import numpy as np

from ..engine.results import expect_results, expect_variable, layer_names
from . import style
from .layers import depth_axis, layer_label, name_layers, shorten

DIMS = ("layer_x", "layer_y")
MOST_COLUMNS = 4
PANEL = 2.5  # inches
LONG_TITLE = 48


def plot_cka(result, ax=None):
    """Heatmap of the similarity of every pair of layers (Figures 1, 2 and 8).

    Args:
        result: Dataset with `cka` and, where known, its standard error `stderr`, both of dims
            (layer_x, layer_y). The attributes `model_x` and `model_y` name the models.

    Returns:
        The axes: `layer_x` left to right, `layer_y` bottom up, colours fixed to [0, 1]. Values
        beyond (the estimator is unbiased, not bounded) saturate, and the colour bar has arrows.
    """
    cka = expect_variable(result, "cka", DIMS)
    sides = [style.side(count) if ax is None else None for count in cka.shape]
    target = style.new_axes(sides[0] + 2.6, sides[1] + 1.4) if ax is None else ax
    image, models = _draw_heatmap(target, cka), _models(result)
    layers = [layer_names(cka, dim) for dim in DIMS]
    if layers[0] == layers[1] and models[0] == models[1]:
        target.set_aspect("equal")
    for which, names, model, inches in zip("xy", layers, models, sides, strict=True):
        _name_side(target, which, names, model, inches)
    _entitle(target, "Similarity of layers", models)
    style.colour_bar(target, image, f"CKA{_error_bound([result])}")
    if ax is None:
        style.shrink_wrap(target, *sides)
    return target


def _draw_heatmap(ax, cka):
    """Draw CKA of dims (layer_x, layer_y), the first left to right; return the image."""
    return ax.imshow(
        cka.values.T,
        cmap=style.colours("magma"),
        vmin=0,
        vmax=1,
        origin="lower",
        interpolation="nearest",
        aspect="auto",
    )


def _models(result):
    """Names of the two models compared; empty where unknown."""
    return [result.attrs.get(f"model_{which}", "") for which in "xy"]


def _name_side(ax, which, names, model, inches):
    """Name the layers and the model along an axis, "x" or "y"."""
    short, cut = shorten(names)
    name_layers(ax, which, short, np.arange(len(names)), inches)
    ax.set(**{f"{which}label": layer_label(cut, model)})


def _entitle(ax, text, models, **options):
    """Title a heatmap with the models that it compares, on a line of their own if need be."""
    pair = " and ".join(dict.fromkeys(filter(None, models)))
    space = "\n" if len(text) + len(pair) > LONG_TITLE else " "
    ax.set_title(f"{text}:{space}{pair}" if pair else text, **options)


def _error_bound(results):
    """The standard errors in the label of a colour bar, where they are known."""
    errors = (result["stderr"].max().item() for result in results if "stderr" in result)
    known = [error for error in errors if not math.isnan(error)]
    return f" (standard error at most {max(known):.1g})" if known else ""


def plot_cka_beside(results):
    """Heatmaps of several models beside each other, all of one size (Figures 1, 8 and H.1).

    Args:
        results: dict from label, a panel's title, to Dataset as for `plot_cka`.

    Returns:
        ndarray of shape (results,) of the axes of a new figure, at most 4 in a row, with one
        colour bar fixed to [0, 1]. Layers are named at the outer panels where all results share
        them, otherwise at every panel; models only where a result compares two.
    """
    maps = style.labelled(expect_results(results), DIMS, "cka")
    axes, images = _draw_beside(maps)
    values = np.concatenate([cka.values.ravel() for cka in maps.values()])
    style.shared_colour_bar(axes, images[-1], f"CKA{_error_bound(results.values())}", values)
    return _finish_panels(axes, [_sides(result) for result in results.values()])


def plot_measures(result):
    """Heatmaps of several measures of similarity, and where the measures disagree.

    Args:
        result: Dataset from `similarities`: `similarity` of dims (measure, layer_x, layer_y) and
            `disagreement` of dims (layer_x, layer_y).

    Returns:
        ndarray of shape (measures + 1,) of the axes of a new figure, at most 4 in a row: heatmaps
        of the measures, and last of the disagreement, in other colours, all fixed to [0, 1].
    """
    values = expect_variable(result, "similarity", ("measure", *DIMS))
    maps = dict(zip(layer_names(values, "measure"), values, strict=True))
    apart = maps["where measures disagree"] = expect_variable(result, "disagreement", DIMS)
    axes, images = _draw_beside(maps, style.titled("Layers by several measures", result))
    images[-1].set_cmap(style.colours("cividis"))
    style.shared_colour_bar(axes, images[0], "similarity", values.values)
    style.shared_colour_bar(axes, images[-1], "disagreement in the order of pairs", apart.values)
    return _finish_panels(axes, [_sides(result)] * len(axes))


def _draw_beside(maps, title="Similarity of layers"):
    """Axes and images of a titled heatmap of each of a dict from label to DataArray."""
    axes = _new_grid(len(maps), title)
    images = []
    for ax, (label, values) in zip(axes, maps.items(), strict=True):
        images.append(_draw_heatmap(ax, values))
        ax.set_title(label, fontsize=9)
        ax.set(xticks=[], yticks=[])
    return axes, images


def _finish_panels(axes, sides):
    """Name the `_sides` of all panels, and size them; the axes."""
    above_gap = _name_panels(axes, sides)
    style.fit_panels(axes, PANEL)
    for ax, names, model in above_gap:
        _name_side(ax, "x", names, model, PANEL)
    return axes


def _name_panels(axes, sides):
    """Name the layers of all panels, or of the outer ones along a side that all panels share.

    Returns:
        List of (axes, layers, model), what is yet to be named along x once the layout is fixed:
        those above the gap that an unfinished last row leaves, which would push the rows apart.
    """
    above_gap = []
    columns = axes[0].get_gridspec().ncols
    last_row = (len(axes) - 1) // columns
    for which in (0, 1):
        shared = len({side[which] for side in sides}) == 1
        for index, ax in enumerate(axes):
            names, model = sides[index][which]
            row, column = divmod(index, columns)
            if not shared or (column == 0 if which else row == last_row):
                _name_side(ax, "xy"[which], names, model, PANEL)
            elif not which and index + columns >= len(axes):
                above_gap.append((ax, names, model))
    return above_gap


def _sides(result):
    """What names each side of a heatmap: (layers, model), no model where it is beside itself."""
    layers = [tuple(layer_names(result, dim)) for dim in DIMS]
    models = _models(result)
    if models[0] == models[1]:
        models = ["", ""]
    return list(zip(layers, models, strict=True))


def _new_grid(count, title):
    """`count` axes of a new titled figure, in rows of at most 4 and as equal as may be."""
    rows = math.ceil(count / MOST_COLUMNS)
    columns = math.ceil(count / rows)
    size = (columns * (PANEL + 1.5) + 1.5, rows * (PANEL + 1.5) + 0.5)
    axes = style.new_grid(rows, columns, size, title, "constrained")
    return style.leading(axes, count)


def plot_matches(result, ax=None):
    """Which layer of another training each layer is most like (Kornblith et al. 2019, 6.1).

    Args:
        result: Dataset as for `plot_cka`, of two trainings of one architecture.

    Returns:
        The axes: the heatmap, and in every column (`layer_x`) a mark at the `layer_y` of the
        largest CKA: a disc on the thin diagonal, where layers meet their own counterparts, else a
        cross.

    Raises:
        ValueError: if the layers of the two models differ.
    """
    cka = expect_variable(result, "cka", DIMS)
    names, other = (layer_names(cka, dim) for dim in DIMS)
    if names != other:
        differing = sorted(set(names) ^ set(other)) or "another order"
        raise ValueError(f"Expected the same layers along both dims. Received: {differing}")
    length = style.side(len(names)) if ax is None else None
    target = style.new_axes(length + 2.6, length + 2) if ax is None else ax
    image = _draw_heatmap(target, cka)
    target.set_aspect("equal")
    models = _models(result)
    for which, model in zip("xy", models, strict=True):
        _name_side(target, which, names, model, length)
    _mark_matches(target, cka.values, length)
    _entitle(target, "Best matching layers", models, pad=54)
    style.colour_bar(target, image, f"CKA{_error_bound([result])}")
    if ax is None:
        style.shrink_wrap(target, length, length)
    return target


def _mark_matches(ax, cka, inches):
    """Mark the largest CKA of each column, the first axis of `cka`; count those on the diagonal."""
    columns = np.flatnonzero(np.isfinite(cka).any(axis=1))
    best = np.nan_to_num(cka[columns], nan=-np.inf).argmax(axis=1)
    own = best == columns
    ends = (-0.5, len(cka) - 0.5)
    ax.plot(ends, ends, color="0.6", linewidth=0.8, label="layer and its own counterpart")
    size = float(np.clip(54 * (inches or 3) / len(cka), 3, 7))
    shared = {"linestyle": "none", "markeredgecolor": "black", "markeredgewidth": 0.5}
    for label, chosen, marker, colour in (
        ("best match: own counterpart", own, "o", "white"),
        ("best match: another layer", ~own, "X", style.ACCENT),
    ):
        options = {"marker": marker, "markersize": size, "markerfacecolor": colour, **shared}
        ax.plot(columns[chosen], best[chosen], label=label, **options)
    ax.set(xlim=ends, ylim=ends)
    ax.legend(
        title=f"{own.sum()} of {len(cka)} layers match their own counterpart best",
        loc="lower left",
        bbox_to_anchor=(0, 1.01),
        borderaxespad=0,
        borderpad=0,
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        handlelength=1.6,
        labelspacing=0.25,
        alignment="left",
    )


def plot_counterparts(results, ax=None):
    """CKA of each layer with its own counterpart in another model (Figures 12, G.1 and G.2).

    Args:
        results: dict from label to Dataset with `cka` and, where known, its standard error
            `stderr`, of dims (layer,); in order where the labels have one, such as growing shares
            of the training images.

    Returns:
        The axes: a line per result, from dark to bright, with a band of 1.96 standard errors to
        either side. CKA runs from 0 to 1, and further only where values do.
    """
    lines = style.labelled(expect_results(results), ("layer",), "cka")
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = style.depth_colours(len(lines))
    for index, (label, line) in enumerate(lines.items()):
        options = {"color": colours[index], "marker": style.marker(index), "label": label}
        ax.plot(depths[index], line.values, markersize=4.5, clip_on=False, **options)
        if "stderr" in results[label]:
            error = expect_variable(results[label], "stderr", ("layer",)).values
            _draw_band(ax, depths[index], line.values, 1.96 * error, colours[index])
    low = min(line.min().item() for line in lines.values())
    high = max(line.max().item() for line in lines.values())
    ax.set_ylim(low - 0.03 if low < 0 else 0, high + 0.03 if high > 1 else 1)
    ax.set(title=_counterpart_title(results.values()), ylabel="CKA with the layer's counterpart")
    style.tidy(ax)
    style.legend(ax, title="band: ±1.96 standard errors" if ax.collections else None)
    return ax


def _draw_band(ax, depth, middle, reach, colour):
    """A band around a line, where its reach is known."""
    known = np.isfinite(reach)
    if known.any():
        low, high = middle - reach, middle + reach
        ax.fill_between(depth, low, high, where=known, color=colour, alpha=0.2, linewidth=0)


def _counterpart_title(results):
    """The title, and on a line of its own the other model where it is the same in all results."""
    others = {_models(result)[1] for result in results}
    title = "Similarity of layers to their own counterparts"
    return "\nin ".join(filter(None, [title, others.pop() if len(others) == 1 else ""]))


def plot_data_scale(results):
    """A line for each share of the training images."""
    (result,) = results.values()
    lines = {
        f"{100 * share:g} % of the data": result.sel(fraction=share)
        for share in result.fraction.values
    }
    return plot_counterparts(lines)
