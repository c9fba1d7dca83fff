"""Similarity of layers, tokens and heads, and its formation; compute, and claims over seeds."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..engine.estimates import num_batches
from ..engine.results import (
    layer_names,
    select_layers,
)
from ..statistics.claims import Outcome
from ..statistics.intervals import ALPHA, t_interval
from . import style
from .primitives import (
    FONT_SIZE,
    depth_axis,
    draw_band,
    draw_maps,
    draw_matrix,
    label_layers,
    layer_label,
    name_layers,
    number_texts,
    panels,
    shorten,
    wrap,
    write_cells,
)
from .rule import draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIMS = ("layer_x", "layer_y")
PANEL = 2.5  # inches
LONG_TITLE = 48
PARTS = {"cls": "CLS token", "spatial": "spatial tokens"}
FIXED: dict[str, Any] = {"vmin": 0, "vmax": 1}


@draws(
    {"cka": "layer_x layer_y"}, "layer_x layer_y", several=True, of="cka, depth_cka, residual_cka"
)
def plot_cka(
    results: xr.Dataset | xr.DataArray | dict[str, xr.Dataset | xr.DataArray], ax: "Axes | None"
) -> "Axes":
    """CKA of every pair of layers (Figures 1, 2, 8 and H.1 of Raghu et al. 2021).

    `layer_x` runs from left to right, and `layer_y` from bottom to top. Colours are fixed to [0,
    1]. Since the estimator is unbiased, values may lie outside these limits. Such values get the
    colours of the limits, and the colour bar has arrows. If there are several results, each result
    has its own panel, at most 4 in a row. If all results have the same layers, only the outer
    panels show the names of layers. If a result compares two models, the plot names both models. If
    the standard error of a result is known, the colour bar states its largest value.

    Args:
        results: Dataset with `cka` of dims (layer_x, layer_y) or DataArray of dims (layer_x,
            layer_y), from `cka`, `depth_cka` or `residual_cka`, or a dict from label to such a
            result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = analysis.cka(model, images)
        >>> ax = analysis.plots.plot_cka(result)

    See also:
        `cka`, `depth_cka`, `residual_cka`, `plot_layer_match_accuracy`.
    """
    by_label = style.by_label(results)
    cka = {x: y if isinstance(y, xr.DataArray) else y["cka"] for x, y in by_label.items()}
    models = [style.models(result) for result in by_label.values()]
    bar = f"CKA{_error_bound(by_label.values())}"
    if isinstance(results, dict):
        return _draw_panels(cka, "CKA between layers", models, ax, bar)
    title, magma = _naming("CKA between layers", models[0]), style.colours("magma")
    return draw_matrix(cka[""], ax, title=title, models=models[0], bar=bar, cmap=magma, **FIXED)[0]


def _naming(text: str, models: Iterable[str]) -> str:
    """A title with the models that are compared, on a line of their own if need be."""
    pair = " and ".join(dict.fromkeys(filter(None, models)))
    space = "\n" if len(text) + len(pair) > LONG_TITLE else " "
    return f"{text}:{space}{pair}" if pair else text


def _error_bound(results: Iterable[xr.DataArray | xr.Dataset]) -> str:
    """The standard errors in the label of a colour bar, where they are known."""
    datasets = (result for result in results if isinstance(result, xr.Dataset))
    errors = (result["stderr"].max().item() for result in datasets if "stderr" in result)
    finite = [error for error in errors if not math.isnan(error)]
    return f" (standard error at most {max(finite):.1g})" if finite else ""


def _draw_panels(
    maps: dict[str, xr.DataArray],
    title: str,
    models: Sequence[Sequence[str]],
    ax: "Axes | None",
    bar: str,
    last_bar: str = "",
) -> "Axes":
    """A matrix for each of a dict from label to array; the last has a bar of its own, if named."""
    columns = math.ceil(len(maps) / math.ceil(len(maps) / 4))
    models = [pair if pair[0] != pair[1] else ["", ""] for pair in models]
    ax, flat = panels(
        ax, len(maps), title, list(maps), columns=columns, inches=(PANEL + 0.4, PANEL + 0.4), size=9
    )
    values = list(maps.values())
    sides = [
        [(tuple(layer_names(value, dim)), model) for dim, model in zip(DIMS, pair, strict=True)]
        for value, pair in zip(values, models, strict=True)
    ]
    for index, (panel, value) in enumerate(zip(flat, values, strict=True)):
        is_apart = last_bar and index == len(maps) - 1
        image = panel.imshow(
            value.values.T,
            aspect=value.shape[0] / value.shape[1],
            origin="lower",
            interpolation="nearest",
            cmap=style.colours("cividis" if is_apart else "magma"),
            **FIXED,
        )
        panel.set(xticks=[], yticks=[])
        row, column = divmod(index, columns)
        bottom = row == (len(maps) - 1) // columns
        for which, outer in ((0, bottom), (1, column == 0)):
            if outer or len({pair[which] for pair in sides}) > 1:
                label_layers(panel, "xy"[which], *sides[index][which], PANEL)
    drawn = np.concatenate([value.values.ravel() for value in values[: -1 if last_bar else None]])
    # The bar of the last panel is to the right of it, that of the others above where it fits.
    last_row = flat[(len(maps) - 1) // columns * columns :]
    others = flat[: -len(last_row)] if last_bar and len(last_row) < len(flat) else flat
    style.colour_bar(others, flat[-2 if last_bar else -1].images[0], bar, drawn)
    if last_bar:
        style.colour_bar(last_row, image, last_bar)
    return ax


WITHOUT = {
    "images": "without the most\ninfluential images",
    "component": "without the first\nprincipal component",
    "pixels": "without what\nthe pixels explain",
}


@draws({"cka": " ".join(DIMS), **dict.fromkeys(("without", "share"), " ".join(("part", *DIMS)))})
def plot_cka_sensitivity(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """CKA between layers, and CKA without single parts of the representations.

    The first matrix shows CKA. Each other matrix shows CKA without one part: the most influential
    images, the first principal component, or the part that the pixels explain. The title of such a
    matrix states the median share of HSIC that is due to the part. Colours are fixed to [0, 1].

    Args:
        result: Dataset with `cka` of dims (layer_x, layer_y) and `without` and `share` of dims
            (part, layer_x, layer_y), from `cka_sensitivity`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (parts + 1,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.cka_sensitivity(model, images)
        >>> ax = analysis.plots.plot_cka_sensitivity(result)

    See also:
        `cka_sensitivity`, `plot_cka`.
    """
    without, share = result["without"], result["share"]
    maps = {"CKA": result["cka"]}
    for part in layer_names(without, "part"):
        percent = 100 * float(share.sel(part=part).median())
        words = WITHOUT.get(part, part)
        if np.isfinite(percent):
            # More than 100 % where the rest of the unbiased estimate is negative.
            amount = "all" if percent > 100 else f"{max(percent, 0):.0f} %"
            words += f"\n({amount} of HSIC)"
        maps[words] = without.sel(part=part)
    title = style.titled("CKA without parts of the representations", result)
    return _draw_panels(maps, title, [style.models(result)] * len(maps), ax, "CKA")


@draws({"similarity": "measure layer_x layer_y", "disagreement": "layer_x layer_y"})
def plot_similarities(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """Several similarity measures between layers, and the disagreement of the measures.

    There is a matrix for each measure, at most 4 in a row. The last matrix shows the disagreement
    of the measures, in other colours. All colour scales are fixed to [0, 1]. If a measure gives a
    similarity below 0.99 for a layer with itself, the title of its matrix states the smallest
    similarity of a layer with itself. A measure is unreliable if no layer has a similarity of 0.5
    or more with itself, as for held-out predictions on few images. It is not drawn if others are
    reliable; the title of the figure states this.

    Args:
        result: Dataset with `similarity` of dims (measure, layer_x, layer_y) and `disagreement` of
            dims (layer_x, layer_y), from `similarities`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, one for each drawn measure and
        one for the disagreement.

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.similarities(model, images)
        >>> ax = analysis.plots.plot_similarities(result)

    See also:
        `similarities`, `plot_cka`.
    """
    values, maps = result["similarity"], {}
    first, second = style.models(result)
    title = style.titled("Similarity measures between layers", result)
    measures = layer_names(values, "measure")
    ends = [_self_similarities(x) if first == second else (1.0, 1.0) for x in values]
    is_any_reliable = any(most >= RELIABLE for _, most in ends)
    for measure, matrix, (least, most) in zip(measures, values, ends, strict=True):
        name = MEASURE_NAMES.get(measure, measure)
        if most < RELIABLE and is_any_reliable:
            title += f"\nnot drawn: {name}, which is at most {most:.2f} for a layer with itself"
            continue
        words = f"{name}\n(a layer with itself: {least:.2f} or more)"
        maps[words if least < SELF else name] = matrix
    maps["disagreement of the measures"] = result["disagreement"]
    bars = "similarity", "disagreement in the order of pairs"
    return _draw_panels(maps, title, [style.models(result)] * len(maps), ax, *bars)


SELF = 0.99  # the similarity of a layer with itself, of measures without errors of estimation
RELIABLE = 0.5  # a measure that finds no layer this similar to itself has too few images
# The names of the measures of `similarities` that plots show.
MEASURE_NAMES = {
    "cka": "CKA",
    "rbf_cka": "CKA, RBF kernel",
    "procrustes": "Procrustes",
    "rsa_pearson": "RSA, Pearson",
    "rsa_spearman": "RSA, Spearman",
    "mutual_knn": "mutual k-NN",
    "linear_predictivity": "linear predictivity",
    "svcca": "SVCCA",
    "cca": "CCA",
    "pwcca": "PWCCA",
}


def _self_similarities(matrix: xr.DataArray) -> tuple[float, float]:
    """The least and the largest similarity of a layer with itself; 1 where there is none."""
    layers, others = (layer_names(matrix, dim) for dim in DIMS)
    self_similarities = [
        matrix.values[layers.index(name), others.index(name)] for name in {*layers} & {*others}
    ]
    known = [value for value in self_similarities if np.isfinite(value)] or [1.0]
    return min(known), max(known)


@draws({"cka": "layer_x layer_y"}, by_name_only=True)
def plot_layer_match_accuracy(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """For each layer, the most similar layer of another run (Kornblith et al. 2019, section 6.1).

    The result to draw compares two runs of one architecture. The matrix shows the CKA of their
    layers. In every column (`layer_x`), a mark shows the `layer_y` with the largest CKA. If both
    layers have the same name, the mark is a disc on the thin diagonal line. Otherwise, the mark is
    a cross.

    Args:
        result: Dataset with `cka` of dims (layer_x, layer_y), from `cka`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.cka(model, images, other_model)
        >>> ax = analysis.plots.plot_layer_match_accuracy(result)

    See also:
        `cka`, `layer_match_accuracy`, `plot_cka`.
    """
    cka = result["cka"]
    names, other = (layer_names(cka, dim) for dim in DIMS)
    if names != other:
        differing = sorted(set(names) ^ set(other)) or "another order"
        raise ValueError(f"Expected the same layers along both dims. Received: {differing}")
    models = style.models(result)
    ax, _ = draw_matrix(
        cka,
        ax,
        title=_naming("Best matching layers", models),
        bar=f"CKA{_error_bound([result])}",
        pad=54,
        above=0.7,
        models=models,
        square=True,
        cmap=style.colours("magma"),
        **FIXED,
    )
    _mark_matches(ax, cka.values)
    return ax


def _mark_matches(ax: "Axes", cka: np.ndarray) -> None:
    """Mark the largest CKA of each column, the first axis of `cka`; count those on the diagonal."""
    columns = np.flatnonzero(np.isfinite(cka).any(axis=1))
    best = np.nan_to_num(cka[columns], nan=-np.inf).argmax(axis=1)
    is_corresponding = best == columns
    ends = (-0.5, len(cka) - 0.5)
    ax.plot(ends, ends, color="0.6", linewidth=0.8, label="corresponding layers")
    look: dict[str, Any] = {"linestyle": "none", "markeredgecolor": "black", "markeredgewidth": 0.5}
    look["markersize"] = float(np.clip(54 * 3.2 / len(cka), 3, 7))
    for label, rows, marker, colour in (
        ("best match: corresponding layer", is_corresponding, "o", "white"),
        ("best match: another layer", ~is_corresponding, "X", style.ACCENT),
    ):
        ax.plot(
            columns[rows], best[rows], marker=marker, markerfacecolor=colour, label=label, **look
        )
    ax.set(xlim=ends, ylim=ends)
    ax.legend(
        title=f"{is_corresponding.sum()} of {len(cka)} layers match the corresponding layer best",
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


@draws({"cka": "layer"}, several=True, size=(8.5, 4.4))
def plot_best_matching_layer(results: style.Datasets, ax: "Axes") -> "Axes":
    """CKA of each layer with the layer of the same name in another model (Figures 12, G.1 and G.2).

    Each line shows one result. Line colours go from dark to bright in the order of the results. If
    the labels have an order, such as growing fractions of the training images, pass the results in
    this order. If the number of batches is known, a band shows the 95 % CI (Student's t over
    batches). The axis of CKA spans at least [0, 1], and more if values lie outside this range.

    Args:
        results: Dataset with `cka` of dims (layer,), from `best_matching_layer`, or a dict from
            label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = analysis.best_matching_layer(analysis.cka(model, images, other_model))
        >>> ax = analysis.plots.plot_best_matching_layer(result)

    See also:
        `best_matching_layer`, `plot_layer_match_accuracy`.
    """
    results = style.by_label(results)
    lines = style.labelled(results, "cka")
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = style.depth_colours(len(lines))
    for index, (label, line) in enumerate(lines.items()):
        ax.plot(
            depths[index],
            line.values,
            markersize=4.5,
            clip_on=False,
            color=colours[index],
            marker=style.marker(index),
            label=label or "CKA",
        )
        if "stderr" in results[label]:
            error = results[label]["stderr"].values
            half_width = t_interval(np.zeros_like(error), error, num_batches(results[label]) - 1)[1]
            draw_band(ax, depths[index], line.values, half_width, tuple(colours[index]))
    low = min(line.min().item() for line in lines.values())
    high = max(line.max().item() for line in lines.values())
    ax.set_ylim(low - 0.03 if low < 0 else 0, high + 0.03 if high > 1 else 1)
    others = {style.models(result)[1] for result in results.values()}
    other = f"\nwith {others.pop()}" if len(others) == 1 and "" not in others else ""
    title = f"CKA between corresponding layers{other}"
    style.tidy(ax, title=title, ylabel="CKA with the corresponding layer")
    style.legend(ax, title="band: 95 % CI over batches" if ax.collections else None)
    return ax


@draws({"cka": "fraction layer"}, several=True, by_name_only=True)
def plot_data_scale(results: style.Datasets, ax: "Axes | None") -> "Axes":
    """Draws `plot_best_matching_layer` with a line for each fraction of the training images.

    Args:
        results: Dataset with `cka` of dims (fraction, layer), from `best_matching_layer`, or a dict
            from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = analysis.best_matching_layer(model, images)
        >>> ax = analysis.plots.plot_data_scale(result)

    See also:
        `best_matching_layer`.
    """
    (result,) = style.by_label(results).values()
    lines = {
        f"{100 * fraction:g} % of the data": result.sel(fraction=fraction)
        for fraction in result.fraction.values
    }
    return plot_best_matching_layer(lines, ax)


@draws({"cka": "model_x model_y part"}, names_model=False)
def plot_last_layer_cka(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """CKA between the last layers of all pairs of models (Figures 6 and 19 of Walmer et al.).

    There is a matrix of all models for each part of the representation, such as the CLS token. The
    value is written in each cell, and colours are fixed to [0, 1]. A cell is grey if one of the two
    models does not have the part. Parts that fewer than two models have are not drawn.

    Args:
        result: Dataset with `cka` of dims (model_x, model_y, part), from `last_layer_cka`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (part,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.last_layer_cka({"A": model, "B": other_model}, images)
        >>> ax = analysis.plots.plot_last_layer_cka(result)

    See also:
        `last_layer_cka`, `plot_cka`.
    """
    cka = result["cka"]
    least = min(2, cka.sizes["model_x"])
    cka = cka.isel(part=cka.notnull().any("model_y").sum("model_x").values >= least)
    parts, names = layer_names(cka, "part"), layer_names(cka, "model_x")
    side = max(3.0, 0.42 * len(names) + 0.6)
    ax, flat = panels(
        ax,
        len(parts),
        "CKA between the last layers of models",
        [PARTS.get(part, part) for part in parts],
        size=10,
        inches=(side, side),
        columns=len(parts),
    )
    for panel, part in zip(flat, parts, strict=True):
        values = cka.sel(part=part).values.T
        image = panel.imshow(values, cmap=style.colours("magma"), **FIXED)
        write_cells(panel, number_texts(values), ~(values > 0.6), fontsize=FONT_SIZE)
        panel.set_xticks(range(len(names)), names, rotation=90, fontsize=FONT_SIZE)
        panel.set_yticks(range(len(names)), names, fontsize=FONT_SIZE)
        panel.tick_params(length=0)
    # A model's similarity to itself is 1 but for rounding.
    style.colour_bar(flat, image, "CKA", cka.values.round(6))
    return ax


@draws({"correlation": "measure function"}, names_model=False)
def plot_grounded_similarity(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """Rank correlation of each measure of dissimilarity with each functional difference.

    There is a group of points for each measure, with a point for each functional difference. Bars
    show the 95 % intervals over models. A point is filled if the correlation is significant at 5 %
    (permutation test).

    Args:
        result: Dataset with `correlation` of dims (measure, function), from `grounded_similarity`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.grounded_similarity(models, images)
        >>> ax = analysis.plots.plot_grounded_similarity(result)

    See also:
        `grounded_similarity`, `plot_similarities`.
    """
    measures, functions = layer_names(result, "measure"), layer_names(result, "function")
    ax = style.new_axes(max(5.0, 2.5 + 0.75 * len(measures)), 4.2) if ax is None else ax
    ax.axhline(0, color="0.6", linewidth=0.8)
    offsets = np.linspace(-0.3, 0.3, len(functions)) if len(functions) > 1 else [0.0]
    colours = style.line_colours(functions)
    for number, (name, offset) in enumerate(zip(functions, offsets, strict=True)):
        own = result.sel(function=name)
        x = np.arange(len(measures)) + offset
        colour, marker = colours[name], style.marker(number)
        ax.vlines(x, own["correlation_low"], own["correlation_high"], color=colour, linewidth=1.2)
        ax.plot(x, own["correlation"], marker, color=colour, fillstyle="none", markersize=5.5)
        significant = own["correlation"].where(own["p_value"] < ALPHA)
        label = name.replace("_", " ")
        ax.plot(x, significant, marker, color=colour, label=label, markersize=5.5)
    ax.set_xticks(range(len(measures)), measures, rotation=30, ha="right", fontsize=FONT_SIZE)
    title = "Rank correlation of dissimilarity and differences of function"
    style.tidy(ax, title=title, xlabel="measure", ylabel="rank correlation over pairs of models")
    style.legend(ax, "difference of function\nbar: 95 % CI\nfilled: p < 0.05")
    return ax


plot_depth_cka = plot_residual_cka = plot_cka


MOST_PANELS = 4  # along either side, where tokens are chosen for the reader
MOST_BY_LAYER = 6
FRAMED = "framed: the token's own (row, column)"


@draws("layer token row column")
def plot_localization(
    result: xr.DataArray,
    ax: "Axes | None",
    *,
    layer: str | list[str] | None = None,
    tokens: list[int] | None = None,
) -> "Axes":
    """CKA of single tokens with every input patch (Figures 9, 10, D.1 to D.3 of Raghu et al.).

    The frame in each map marks the position of the token itself, given by the coordinates
    `token_row` and `token_column`. Constant patches, for which CKA is NaN, are drawn in grey. For a
    single layer, the maps are arranged as the tokens are in the image, with prefix tokens in a row
    above. For a list of layers, there is a row of maps for each layer.

    All maps share one colour scale, from the smallest to the largest CKA in the maps. The scale
    does not extend to 1, since the CKA of a token and a patch is often far from 1.

    Args:
        result: DataArray of dims (layer, token, row, column), from `localization`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layer: name of the layer to draw, or a list of names, in order. None means the last layer.
        tokens: the tokens to draw, as values of the coordinate `token`. For one layer, the default
            is all tokens if there are at most 16, otherwise up to 4 x 4 evenly spaced spatial
            tokens. For a list of layers, the default is all tokens if there are at most 6. With
            more tokens, the default is the first prefix token, if there is one, and the tokens
            nearest to the centre of the grid, to two of its corners and to the middle of two of its
            edges.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (token,), or (layer,
        token) for a list of layers.

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.localization(model, images)
        >>> ax = analysis.plots.plot_localization(result)

    See also:
        `localization`, `plot_cka`.
    """
    from matplotlib.colors import Normalize

    missing = {"token_row", "token_column"} - set(result.coords)
    if missing:
        raise ValueError(
            "Expected a result of localization, with the coordinates token_row and token_column. "
            f"Received: one without {', '.join(sorted(missing))}"
        )
    single = layer is None or isinstance(layer, str)
    names = [layer_names(result)[-1]] if layer is None else layer
    names = [names] if isinstance(names, str) else names
    drawn = select_layers(result, names)
    drawn = _spaced(drawn, single) if tokens is None else _named(drawn, tokens)
    names, shape = layer_names(drawn), drawn.shape[:2]
    title = style.titled("CKA between tokens and input patches", result)
    title += f"\n{names[0]}; {FRAMED}" if single else f"\n{FRAMED}"
    tall = drawn.sizes["row"] / drawn.sizes["column"]
    width, separator = max(0.6, 1.35 / max(tall, 1)), "\n" if tall > 1.5 else " "
    coords = [drawn[name].values.tolist() for name in ("token", "token_row", "token_column")]
    titles, frames = [], []
    for token, row, column in zip(*coords, strict=True):
        is_prefix = math.isnan(row)
        position = "(prefix)" if is_prefix else f"({row:g}, {column:g})"
        titles.append(f"token {token}{separator}{position}")
        frames.append(None if is_prefix else (row, column))
    gaps = " (grey: patch is constant)" if np.isnan(drawn.values).any() else ""
    # Panels of a report share colours where their labels are equal: each model keeps its own range.
    limits, finite = style.span(drawn.values), drawn.values[np.isfinite(drawn.values)]
    spanned = f": {finite.min():.2g} to {finite.max():.2g}" if finite.size else ""
    spanned = spanned.replace("-", "\N{MINUS SIGN}")
    ax, _ = draw_maps(
        ax,
        drawn.values.reshape(-1, *drawn.shape[2:]),
        titles,
        title,
        shape=shape[1:] if single else shape,
        cells=_cells(drawn) if single else None,
        inches=(width, width * tall),
        frames=frames * shape[0],
        size=8,
        pad=3,
        scaled=False,
        norm=Normalize(**limits),
        bar=f"CKA of token and input patch{gaps}\n{style.SPANNED}{spanned}",
    )
    if not single:
        for panel, name in zip(ax.panels[:, 0], names, strict=True):
            panel.set_ylabel(wrap(name, 16), fontsize=8)
    return ax


def _named(result: xr.DataArray, tokens: Sequence[int]) -> xr.DataArray:
    """The tokens of these coordinates, in the order asked for."""
    available = result["token"].values.tolist()
    if not len(tokens) or not set(tokens) <= set(available):
        raise ValueError(f"Expected tokens among {available}. Received: {list(tokens)}")
    return result.sel(token=list(tokens))


def _spaced(result: xr.DataArray, on_grid: bool) -> xr.DataArray:
    """The tokens to draw: all if they are few, otherwise some spread over the grid."""
    if result.sizes["token"] <= (MOST_PANELS**2 if on_grid else MOST_BY_LAYER):
        return result
    positions = np.stack([result["token_row"].values, result["token_column"].values])
    if not on_grid:
        return result.isel(token=_landmarks(positions, result.shape[2:]))
    keep = np.ones(result.sizes["token"], bool)
    for side in positions:
        values = np.unique(side[np.isfinite(side)])
        spaced = np.linspace(0, len(values) - 1, min(len(values), MOST_PANELS)).round().astype(int)
        keep &= np.isin(side, values[spaced])
    return result.isel(token=np.flatnonzero(keep))


def _landmarks(positions: np.ndarray, shape: Sequence[int]) -> list[int]:
    """Indices of the first prefix token and of those at two corners, two edges and the centre."""
    last, middle = np.array(shape) - 1, np.array(shape) // 2
    top, left = (0, middle[1]), (middle[0], 0)
    indices = set(np.flatnonzero(np.isnan(positions).any(axis=0))[:1])
    for landmark in ((0, 0), top, left, middle, last):
        distance = np.hypot(*(positions - np.array(landmark)[:, None]))
        indices.add(np.nanargmin(distance))
    return sorted(indices)


def _cells(result: xr.DataArray) -> list[tuple[int, int]]:
    """The row and column of the panel of each token: its position among those drawn."""
    positions = np.stack([result["token_row"].values, result["token_column"].values])
    prefix = np.isnan(positions).any(axis=0)
    row, column = (np.unique(side, return_inverse=True)[1] for side in positions)
    row = np.where(prefix, 0, row + prefix.any())
    column = np.where(prefix, np.cumsum(prefix) - 1, column)
    return list(zip(row.tolist(), column.tolist(), strict=True))


# How subsets of heads of each order are drawn.
ORDERS = {
    "local": {"linestyle": "-", "marker": "o", "markersize": 4.5},
    "global": {"linestyle": "--", "marker": "o", "markersize": 4.5, "markerfacecolor": "white"},
}


@draws({"cka": "order subset layer", "distance": "order subset"}, size=(7.5, 4.4))
def plot_head_similarity(
    result: xr.Dataset, ax: "Axes", *, layers: list[str] | None = None
) -> "Axes":
    """CKA between growing subsets of a ViT's heads and layers of another model (Figure 5 of Raghu).

    The horizontal axis shows the mean attention distance of a subset of heads, in pixels. The
    vertical axis shows the CKA of the subset with a layer of the other model. Each layer has a
    colour. If the standard error of CKA is known, a band shows one standard error on both sides.
    Filled markers and solid lines show subsets that start with the most local heads. Hollow markers
    and dashed lines show subsets that start with the most global heads. Both orders end at the
    subset of all heads.

    Args:
        result: Dataset with `cka` of dims (order, subset, layer) and `distance` of dims (order,
            subset), from `head_similarity`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw, in order. None means all layers.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.head_similarity(model, other_model, images)
        >>> ax = analysis.plots.plot_head_similarity(result)

    See also:
        `head_similarity`, `plot_attention_distance`.
    """
    cka, distance = select_layers(result["cka"], layers), result["distance"]
    error = select_layers(result["stderr"], layers) if "stderr" in result else None
    names, cut = shorten(layer_names(cka))
    for index, colour in enumerate(style.depth_colours(len(names))):
        lines = cka.isel(layer=index)
        for order, look in ORDERS.items():
            x, y = distance.sel(order=order).values, lines.sel(order=order).values
            label = names[index] if order == "local" else None
            ax.plot(x, y, color=colour, label=label, **look)
            if error is not None:
                spread = error.isel(layer=index).sel(order=order).values
                ax.fill_between(x, y - spread, y + spread, color=colour, alpha=0.15, linewidth=0)
    models = style.models(result)
    heads = " of ".join(filter(None, ["heads", models[0]]))
    other = f" of {models[1]}" if models[1] else ""
    title = f"CKA between {heads} and layers{other}"
    style.tidy(ax, title=title, ylabel="CKA")
    ax.set_xlabel("mean attention distance of the heads (pixels)")
    ax.plot([], [], linestyle="none", label=" ")
    for order, look in ORDERS.items():
        ax.plot([], [], color="0.4", label=f"most {order} heads first", **look)
    style.legend(ax, title=layer_label(cut, models[1]))
    return ax


@draws("layer token row column", by_name_only=True)
def plot_localization_by_layer(result: xr.DataArray, ax: "Axes | None") -> "Axes":
    """Draws `plot_localization` with a row of maps for each layer.

    Args:
        result: DataArray of dims (layer, token, row, column), from `localization`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer, token).

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.localization(model, images)
        >>> ax = analysis.plots.plot_localization_by_layer(result)

    See also:
        `localization`.
    """
    return plot_localization(result, ax, layer=list(result.layer.values))


# Title, colour map and label of the colour bar of each quantity.
PANELS = {
    "cka_to_start": ("CKA with initialization", "magma", "CKA"),
    "cka_to_previous": ("CKA with the previous record", "magma", "CKA"),
    "accuracy": ("ridge-probe accuracy", "viridis", "test accuracy (%)"),
}
WIDTH = 3.4  # inches of a panel
OUTCOME_COLOURS = {
    Outcome.AS_IN_PAPER: "tab:blue",
    Outcome.SMALLER: "tab:cyan",
    Outcome.NO_EFFECT: "tab:olive",
    Outcome.OPPOSITE: "tab:orange",
    Outcome.UNDECIDED: "0.55",
}


@draws(dict.fromkeys(("cka_to_start", "cka_to_previous"), "epoch layer"))
def plot_formation(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """Formation of the representations of every layer during training.

    The first matrix shows `cka_to_start`, and the second matrix shows `cka_to_previous`, with
    colours fixed to [0, 1]. If the result has an `accuracy`, a third matrix shows the probe
    accuracy, with colours from the lowest to the highest value. Layers run from bottom to top, and
    epochs from left to right. The cells of a recorded epoch extend halfway to the neighbouring
    records.

    Args:
        result: Dataset with `cka_to_start` and `cka_to_previous` of dims (epoch, layer), from
            `FormationRecorder`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (quantity,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = recorder.result
        >>> ax = analysis.plots.plot_formation(result)

    See also:
        `FormationRecorder`, `plot_cka`.
    """
    names = [name for name in PANELS if name != "accuracy" or name in result]
    values = [result[name].transpose("epoch", "layer") for name in names]
    height = 0.8 * style.side(result.sizes["layer"])
    title = style.titled("Representations during training", result)
    titles = [PANELS[name][0] for name in names]
    ax, flat = panels(
        ax, len(names), title, titles, columns=len(names), inches=(WIDTH, height), size=10
    )
    layers, cut = shorten(layer_names(result))
    epochs, rows = result["epoch"].values.astype(float), np.arange(len(layers))
    # Cells end halfway to the neighbours of their epoch.
    half = np.diff(epochs) / 2 if len(epochs) > 1 else np.array([0.5])
    ends = [epochs[:1] - half[:1], epochs[:-1] + half[: len(epochs) - 1], epochs[-1:] + half[-1:]]
    edges = np.concatenate(ends), np.arange(len(layers) + 1) - 0.5
    for panel, name, quantity in zip(flat, names, values, strict=True):
        _, colours, label = PANELS[name]
        cells = np.ma.masked_invalid(quantity.values.T)
        limits = {} if name == "accuracy" else FIXED
        image = panel.pcolormesh(*edges, cells, cmap=style.colours(colours), **limits)
        panel.set(facecolor="0.85", xlabel="epoch")  # the colour where there is no value
        panel.tick_params(labelsize=FONT_SIZE)
        panel.xaxis.get_major_locator().set_params(integer=True)
        name_layers(panel, "y", layers, rows)
        panel.label_outer()
        bar = style.colour_bar(panel, image, label)
        if name == "accuracy":
            style.percent(bar.ax.yaxis)
    flat[0].set_ylabel(layer_label(cut))
    return ax


UNITS = {1e18: "exa", 1e15: "peta", 1e12: "tera", 1e9: "giga", 1e6: "mega", 1e3: "kilo", 1: ""}
# Offsets of a label from its point, in points: the first one without overlap is used.
PLACES = (
    ((7, 0), "left", "center"),
    ((0, 7), "center", "bottom"),
    ((0, -7), "center", "top"),
    ((-7, 0), "right", "center"),
    ((6, 6), "left", "bottom"),
    ((6, -6), "left", "top"),
    ((-6, 6), "right", "bottom"),
    ((-6, -6), "right", "top"),
)


@draws(
    dict.fromkeys(("training_flops", "test_accuracy"), "run"), names_model=False, size=(7.5, 4.6)
)
def plot_compute(result: xr.Dataset, ax: "Axes") -> "Axes":
    """Test accuracy versus training compute (Figure 5 of the ViT paper).

    Each point shows one run, labelled with the coordinate `run`. Families of models, given by the
    coordinate `family`, have different colours. The axis of compute, in floating-point operations,
    is logarithmic. Runs without an accuracy (NaN) are not drawn.

    Args:
        result: Dataset with `training_flops` and `test_accuracy` of dims (run,), from `vit-tf
            compute`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = table
        >>> ax = analysis.plots.plot_compute(result)

    See also:
        `vit-tf compute`.
    """
    accuracy, flops = result["test_accuracy"], result["training_flops"]
    has_accuracy = np.isfinite(accuracy.values)
    if (
        "family" not in result.coords
        or not has_accuracy.any()
        or (flops.values[has_accuracy] <= 0).any()
    ):
        raise ValueError(
            "Expected a table of vit-tf compute, with the coordinate family, at least one "
            "accuracy, and compute above 0. "
            f"Received: coordinates {sorted(map(str, result.coords))}, "
            f"accuracies {accuracy.values}, compute {flops.values}"
        )
    percent = 100 * accuracy.values[has_accuracy]
    flops = flops.values[has_accuracy].astype("float64")
    families, names = result["family"].values[has_accuracy], result["run"].values[has_accuracy]
    unit = next((unit for unit in UNITS if unit <= flops.max()), 1)
    for index, (kind, colour) in enumerate(style.line_colours(families.tolist()).items()):
        members = families == kind
        ax.plot(
            flops[members] / unit,
            percent[members],
            label=kind,
            color=colour,
            marker=style.marker(index),
            linestyle="none",
        )
    ax.set(xscale="log", xlabel=f"training compute ({UNITS[unit]}FLOPs)")
    ax.margins(0.15, 0.12)
    style.plain_log(ax.xaxis)
    title = style.titled("Test accuracy versus training compute", result)
    style.tidy(ax, title=title, ylabel="test accuracy (%)")
    style.legend(ax, "family")
    _name_points(ax, flops / unit, percent, names.tolist())
    return ax


def _name_points(ax: "Axes", x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> None:
    """Writes the name of each point next to it, at the first free one of `PLACES`."""
    from matplotlib.transforms import Bbox

    style.figure_of(ax).draw_without_rendering()
    centres = ax.transData.transform(np.column_stack([x, y]))
    taken = [Bbox.from_bounds(left - 4, bottom - 4, 8, 8) for left, bottom in centres]
    for point, name in zip(zip(x, y, strict=True), names, strict=True):
        text = ax.annotate(
            str(name), point, xytext=(0, 0), textcoords="offset points", fontsize=FONT_SIZE
        )
        for offset, horizontal, vertical in PLACES:
            text.set(position=offset, ha=horizontal, va=vertical)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(text.get_window_extent())


@draws({"values": "claim training"}, names_model=False)
def plot_runs(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """Effects that test the claims of papers, for several runs, with a row for each claim.

    The horizontal position is the effect, divided by the largest effect in the row; 0 is no effect.
    Effects in the direction that the paper reports are on the right. Small points show runs.
    Diamonds show the means over runs with their intervals, and colours show the outcomes.

    Args:
        result: Dataset with `values` of dims (claim, training), from `scorecard_of_runs`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.scorecard_of_runs(folders)
        >>> ax = analysis.plots.plot_runs(result)

    See also:
        `scorecard_of_runs`, `report_runs`.
    """
    is_tested = np.isfinite(result["value"].values)
    result = result.isel(claim=is_tested)
    count = is_tested.sum()
    if not count:
        raise ValueError("None of the claims was tested, so there is nothing to draw.")
    ax = style.new_axes(10.5, 0.25 * count + 1.4) if ax is None else ax
    outcomes = [Outcome(text) for text in result["outcome"].values.tolist()]
    for number, outcome in enumerate(outcomes):
        row = result.isel(claim=number)
        side = row["sign"].item() or 1
        numbers = [row[end].item() for end in ("value", "low", "high")]
        away = side * np.concatenate([numbers, row["values"].values])
        away = away / (np.nanmax(np.abs(away)) or 1.0)
        colour = OUTCOME_COLOURS[outcome]
        ax.plot(sorted(away[1:3]), [number] * 2, color=colour, linewidth=1.6)
        ax.plot(away[:1], [number], "D", color=colour, markersize=7, markerfacecolor="white")
        ax.plot(away[3:], [number] * (len(away) - 3), "o", color=colour, markersize=3.5)
    ax.axvline(0, color="grey", linewidth=0.8, linestyle="--")
    ax.set_yticks(range(count), result["statement"].values.tolist(), fontsize=FONT_SIZE)
    ax.set_xticks([-1, 0, 1], ["opposite", "no effect", "as in the paper"], fontsize=FONT_SIZE)
    ax.set(xlim=(-1.08, 1.08), ylim=(count - 0.5, -0.5))
    ax.set_title(f"Claims over {result.sizes['training']} runs")
    for outcome in dict.fromkeys(outcomes):
        colour = OUTCOME_COLOURS[outcome]
        ax.plot([], [], "D", label=outcome.value, color=colour, markerfacecolor="white")
    style.tidy(ax)
    style.legend(ax, "outcome")
    return ax
