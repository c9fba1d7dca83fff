"""Similarity of layers: matrices of all pairs, of several models or measures, and lines."""

import math
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..engine.estimates import num_batches, t_interval
from ..engine.results import expect_array, expect_results, expect_variable, layer_names
from . import style
from .layers import FONT_SIZE, depth_axis, draw_band
from .primitives import draw_matrix, label_layers, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIMS = ("layer_x", "layer_y")
PANEL = 2.5  # inches
LONG_TITLE = 48
PARTS = {"cls": "CLS token", "spatial": "spatial tokens"}
FIXED = {"vmin": 0, "vmax": 1}


def plot_cka(
    results: xr.Dataset | xr.DataArray | dict[str, xr.Dataset | xr.DataArray],
    ax: "Axes | None" = None,
) -> "Axes":
    """CKA of every pair of layers (Figures 1, 2, 8 and H.1 of Raghu et al. 2021).

    Args:
        results: Dataset with `cka` and, where known, its standard error `stderr`, of dims
            (layer_x, layer_y); or that DataArray `cka` alone. The attributes `model_x` and
            `model_y` name the models. A dict from label to several is drawn as a panel each.
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes: `layer_x` left to right, `layer_y` bottom up, colours fixed to [0, 1]. Values
        beyond (the estimator is unbiased, not bounded) saturate, and the colour bar has arrows.
        Panels of several results are at most 4 in a row; layers are named at the outer panels
        where all results share them, models only where a result compares two.

    Raises:
        ValueError: for a result without CKA, or an empty dict.

    Examples:
        >>> similarity = analysis.cka(model, images)
        >>> ax = analysis.plot_cka(similarity)

    See also:
        `cka`, `depth_cka`, `residual_cka`, `plot_own_matches`.
    """
    if isinstance(results, dict):
        return _draw_panels(
            {label: _cka_of(result) for label, result in expect_results(results).items()},
            "CKA between layers",
            [_models(result) for result in results.values()],
            ax,
            f"CKA{_error_bound(results.values())}",
        )
    cka, models = _cka_of(results), _models(results)
    ax, image = draw_matrix(cka, ax, models=models, cmap=style.colours("magma"), **FIXED)
    _entitle(ax, "CKA between layers", models)
    style.colour_bar(ax, image, f"CKA{_error_bound([results])}")
    return ax


def _cka_of(result):
    """CKA of dims (layer_x, layer_y), of a Dataset or as it is."""
    if isinstance(result, xr.DataArray):
        return expect_array(result, DIMS)
    return expect_variable(result, "cka", DIMS)


def _models(result):
    """Names of the two models compared; empty where unknown."""
    return [result.attrs.get(f"model_{which}", "") for which in "xy"]


def _entitle(ax, text, models, **options):
    """Title a matrix with the models that it compares, on a line of their own if need be."""
    pair = " and ".join(dict.fromkeys(filter(None, models)))
    space = "\n" if len(text) + len(pair) > LONG_TITLE else " "
    ax.set_title(f"{text}:{space}{pair}" if pair else text, fontsize=11, **options)


def _error_bound(results):
    """The standard errors in the label of a colour bar, where they are known."""
    datasets = (result for result in results if isinstance(result, xr.Dataset))
    errors = (result["stderr"].max().item() for result in datasets if "stderr" in result)
    known = [error for error in errors if not math.isnan(error)]
    return f" (standard error at most {max(known):.1g})" if known else ""


def _draw_panels(maps, title, models, ax, bar, apart=None, apart_label=""):
    """A matrix for each of a dict from label to DataArray; the last in other colours if `apart`."""
    columns = math.ceil(len(maps) / math.ceil(len(maps) / 4))
    models = [pair if pair[0] != pair[1] else ["", ""] for pair in models]
    lines = 1 + max(label.count("\n") for label in maps)
    inches = (PANEL + 0.4, PANEL + 0.4)
    ax, flat = panels(ax, len(maps), title, "result", columns, inches=inches, lines=lines)
    values = list(maps.values())
    sides = [
        [(tuple(layer_names(value, dim)), model) for dim, model in zip(DIMS, pair, strict=True)]
        for value, pair in zip(values, models, strict=True)
    ]
    for index, (panel, (label, value)) in enumerate(zip(flat, maps.items(), strict=True)):
        last = apart and index == len(maps) - 1
        look = {"cmap": style.colours("cividis" if last else "magma"), **FIXED}
        look |= {"origin": "lower", "interpolation": "nearest"}
        image = panel.imshow(value.values.T, aspect=value.shape[0] / value.shape[1], **look)
        panel.set_title(label, fontsize=9)
        panel.set(xticks=[], yticks=[])
        row, column = divmod(index, columns)
        bottom = row == (len(maps) - 1) // columns
        for which, outer in ((0, bottom), (1, column == 0)):
            if outer or len({pair[which] for pair in sides}) > 1:
                label_layers(panel, "xy"[which], *sides[index][which], PANEL)
    drawn = np.concatenate([value.values.ravel() for value in values[: -1 if apart else None]])
    style.colour_bar(flat, flat[-2 if apart else -1].images[0], bar, drawn)
    if apart:
        style.colour_bar(flat, image, apart_label)
    return ax


def plot_similarities(result: xr.Dataset, ax: "Axes | None" = None) -> "Axes":
    """Several measures of similarity between layers, and where the measures disagree.

    Args:
        result: Dataset from `similarities`: `similarity` of dims (measure, layer_x, layer_y) and
            `disagreement` of dims (layer_x, layer_y).
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes, with `ax.panels` of shape (measures + 1,), at most 4 in a row: matrices of the
        measures, and last of the disagreement, in other colours, all fixed to [0, 1].

    Raises:
        ValueError: for another result.

    Examples:
        >>> result = analysis.similarities(model, images)
        >>> ax = analysis.plot_similarities(result)

    See also:
        `similarities`, `plot_cka`.
    """
    values = expect_variable(result, "similarity", ("measure", *DIMS))
    maps = dict(zip(layer_names(values, "measure"), values, strict=True))
    maps["disagreement of the measures"] = expect_variable(result, "disagreement", DIMS)
    title = style.titled("Similarity measures between layers", result)
    models, apart = [_models(result)] * len(maps), "disagreement in the order of pairs"
    return _draw_panels(maps, title, models, ax, "similarity", True, apart)


def plot_own_matches(result: xr.Dataset, ax: "Axes | None" = None) -> "Axes":
    """The most similar layer of another run for each layer (Kornblith et al. 2019, section 6.1).

    Args:
        result: Dataset as for `plot_cka`, of two runs of one architecture.
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes: the matrix of CKA, and in every column (`layer_x`) a mark at the `layer_y` of the
        largest CKA: a disc on the thin diagonal, where layers meet the layer of their own name,
        else a cross.

    Raises:
        ValueError: if the layers of the two models differ.

    Examples:
        >>> similarity = analysis.cka(model, images, other_model)
        >>> ax = analysis.plot_own_matches(similarity)

    See also:
        `own_matches`, `plot_cka`.
    """
    cka = expect_variable(result, "cka", DIMS)
    names, other = (layer_names(cka, dim) for dim in DIMS)
    if names != other:
        differing = sorted(set(names) ^ set(other)) or "another order"
        raise ValueError(f"Expected the same layers along both dims. Received: {differing}")
    models, look = _models(result), {"cmap": style.colours("magma"), **FIXED}
    ax, image = draw_matrix(cka, ax, room=0.7, models=models, square=True, **look)
    _mark_matches(ax, cka.values)
    _entitle(ax, "Best matching layers", models, pad=54)
    style.colour_bar(ax, image, f"CKA{_error_bound([result])}")
    return ax


def _mark_matches(ax, cka):
    """Mark the largest CKA of each column, the first axis of `cka`; count those on the diagonal."""
    columns = np.flatnonzero(np.isfinite(cka).any(axis=1))
    best = np.nan_to_num(cka[columns], nan=-np.inf).argmax(axis=1)
    own = best == columns
    ends = (-0.5, len(cka) - 0.5)
    ax.plot(ends, ends, color="0.6", linewidth=0.8, label="corresponding layers")
    look = {"linestyle": "none", "markeredgecolor": "black", "markeredgewidth": 0.5}
    look["markersize"] = float(np.clip(54 * 3.2 / len(cka), 3, 7))
    for label, rows, marker, colour in (
        ("best match: corresponding layer", own, "o", "white"),
        ("best match: another layer", ~own, "X", style.ACCENT),
    ):
        marks = {"marker": marker, "markerfacecolor": colour, "label": label}
        ax.plot(columns[rows], best[rows], **marks, **look)
    ax.set(xlim=ends, ylim=ends)
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "borderaxespad": 0, "borderpad": 0}
    ax.legend(
        title=f"{own.sum()} of {len(cka)} layers match the corresponding layer best",
        **place, frameon=False, fontsize=8, title_fontsize=8, handlelength=1.6, labelspacing=0.25,
        alignment="left",
    )  # fmt: skip


def plot_counterparts(results: style.Datasets, ax: "Axes | None" = None) -> "Axes":
    """CKA of each layer with the layer of its name in another model (Figures 12, G.1 and G.2).

    Args:
        results: Dataset with `cka` and, where known, its standard error `stderr`, of dims (layer,),
            or a dict from label to several; in order where the labels have one, such as growing
            fractions of the training images.
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes: a line per result, from dark to bright, with a band of the 95 % interval where the
        number of batches is known: Student's t over batches. CKA runs from 0 to 1, and further only
        where values do.

    Raises:
        ValueError: for another result, or an empty dict.

    Examples:
        >>> similarity = analysis.cka(model, images, other_model)
        >>> ax = analysis.plot_counterparts(analysis.counterparts(similarity))

    See also:
        `counterparts`, `plot_own_matches`.
    """
    results = style.by_label(results)
    lines = style.labelled(results, ("layer",), "cka")
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = style.depth_colours(len(lines))
    for index, (label, line) in enumerate(lines.items()):
        options = {"color": colours[index], "marker": style.marker(index), "label": label or "CKA"}
        ax.plot(depths[index], line.values, markersize=4.5, clip_on=False, **options)
        if "stderr" in results[label]:
            error = expect_variable(results[label], "stderr", ("layer",)).values
            half_width = t_interval(0, error, num_batches(results[label]) - 1)[1]
            draw_band(ax, depths[index], line.values, half_width, colours[index])
    low = min(line.min().item() for line in lines.values())
    high = max(line.max().item() for line in lines.values())
    ax.set_ylim(low - 0.03 if low < 0 else 0, high + 0.03 if high > 1 else 1)
    others = {_models(result)[1] for result in results.values()}
    title = "CKA between corresponding layers"
    other = f"\nwith {others.pop()}" if len(others) == 1 and "" not in others else ""
    ax.set(title=f"{title}{other}", ylabel="CKA with the corresponding layer")
    style.tidy(ax)
    style.legend(ax, title="band: 95 % CI over batches" if ax.collections else None)
    return ax


def plot_data_scale(results: dict[str, xr.Dataset], ax: "Axes | None" = None) -> "Axes":
    """`plot_counterparts` with a line for each fraction of the training images."""
    (result,) = results.values()
    lines = {
        f"{100 * fraction:g} % of the data": result.sel(fraction=fraction)
        for fraction in result.fraction.values
    }
    return plot_counterparts(lines, ax)


def plot_last_layer_cka(result: xr.Dataset, ax: "Axes | None" = None) -> "Axes":
    """CKA between the last layers of all pairs of models (Figures 6 and 19 of Walmer et al.).

    Args:
        result: Dataset with `cka` of dims (model_x, model_y, part) from `last_layer_cka`.
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes, with `ax.panels` of shape (part,): matrices with the numbers written on them,
        colours fixed to [0, 1]. A part that no two models have is left out; one that a model lacks
        is grey.

    Raises:
        ValueError: for another result.

    Examples:
        >>> result = analysis.last_layer_cka({"A": model, "B": other_model}, images)
        >>> ax = analysis.plot_last_layer_cka(result)

    See also:
        `last_layer_cka`, `plot_cka`.
    """
    cka = expect_variable(result, "cka", ("model_x", "model_y", "part"))
    least = min(2, cka.sizes["model_x"])
    cka = cka.isel(part=cka.notnull().any("model_y").sum("model_x").values >= least)
    parts, names = layer_names(cka, "part"), layer_names(cka, "model_x")
    inches = (max(3.0, 0.42 * len(names) + 0.6),) * 2
    title = "CKA between the last layers of models"
    ax, flat = panels(ax, len(parts), title, "part", len(parts), inches=inches)
    for panel, part in zip(flat, parts, strict=True):
        values = cka.sel(part=part).values.T
        image = panel.imshow(values, cmap=style.colours("magma"), **FIXED)
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                shade = "black" if value > 0.6 else "white"
                at = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "color": shade}
                panel.text(column, row, f"{value:.2f}", **at)
        panel.set_title(PARTS.get(part, part), fontsize=10)
        panel.set_xticks(range(len(names)), names, rotation=90, fontsize=FONT_SIZE)
        panel.set_yticks(range(len(names)), names, fontsize=FONT_SIZE)
        panel.tick_params(length=0)
    # A model's similarity to itself is 1 but for rounding.
    style.colour_bar(flat, image, "CKA", cka.values.round(6))
    return ax


plot_depth_cka = plot_residual_cka = plot_cka
