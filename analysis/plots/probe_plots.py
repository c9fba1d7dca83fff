"""Evaluations of features by layer: probes, k-NN, retrieval, clustering, videos, keypoints."""

import itertools
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from .. import renamed_arguments
from ..engine.results import (
    ALL,
    CLS,
    SPATIAL,
    current_words,
    expect_array,
    expect_results,
    layer_names,
    require_word,
    select_labels,
    select_layers,
)
from . import style
from .primitives import (
    NORMALISED,
    depth_axis,
    draw_lines,
    draw_maps,
    layer_label,
    name_layers,
    shorten,
    wrap,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY_LAYERS = 40
MOST_MAPS = 8
ACCURACY = "test accuracy (%)"


def plot_ridge_probe(
    results: style.Arrays, ax: "Axes | None" = None, label: str | None = None
) -> "Axes":
    """Ridge-probe accuracy by layer (Figures 11, 13, F.1 and F.2 of Raghu et al. 2021).

    One line per `l2`, none selected: selecting on the test set would bias the accuracy. Pass
    `result.sel(l2=...)`, selected elsewhere, to draw it alone. Calling again on the same axes adds
    another model in another colour.

    Args:
        results: DataArray of dims `(layer, l2[, token][, seed])`, accuracies in [0, 1]; `l2` may
            be a coordinate of a scalar or of each layer. With tokens, the line is their mean and
            the band their range; with seeds, the line is their mean, and the error bars, of two
            seeds or more, their standard deviation (of n - 1 degrees of freedom). Or a dict from
            label to several.
        label: name of the model in the legend; the attribute `model` if None.

    Returns:
        The axes: depth normalised to [0, 1]; layers are named while all models drawn share them.

    Raises:
        ValueError: for a result of another measurement, or an empty dict.

    Examples:
        >>> accuracy = analysis.ridge_probe(model, train, test)
        >>> ax = analysis.plots.plot_ridge_probe(accuracy.sel(l2=10.0))

    See also:
        `ridge_probe`, `select_l2`, `plot_probe_map`.
    """
    if isinstance(results, dict):
        for name, result in expect_results(results).items():
            ax = plot_ridge_probe(result, ax, name)
        return ax
    result = results
    if isinstance(result, xr.DataArray) and "l2" in result.coords and "l2" not in result.dims:
        result = result.reset_coords("l2", drop=True).expand_dims(l2=[0.0])
    result = expect_array(result, ("layer", "l2"), optional=("token", "seed"))
    label = result.attrs.get("model", "") if label is None else label
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    lines = [line for line in ax.get_lines() if line.get_marker() in style.MARKERS]
    order = len({(line.get_color(), line.get_marker()) for line in lines})  # without error bars
    names = layer_names(result)
    depth = np.linspace(0, 1, len(names))
    _name_depth(ax, names, depth, overlay=order > 0)
    options = {"color": f"C{order}", "marker": style.marker(order)}
    for line_style, (l2, line) in zip(
        itertools.cycle(style.LINE_STYLES), result.groupby("l2"), strict=False
    ):
        strength = f"l2 = {l2:g}" if result.sizes["l2"] > 1 or not label else ""
        options |= {"linestyle": line_style, "label": ", ".join(filter(None, [label, strength]))}
        _plot_probe(ax, depth, line.squeeze("l2"), options)
    return _finish_accuracies(ax, "Ridge-probe accuracy")


def _plot_probe(ax, depth, line, options):
    """One line over depth, with the range of its tokens as a band and error bars over its seeds."""
    if "token" in line.dims:
        tokens = line.mean("seed") if "seed" in line.dims else line
        low, high = tokens.min("token").values, tokens.max("token").values
        ax.fill_between(depth, low, high, color=options["color"], alpha=0.15, linewidth=0)
        line = line.mean("token")
    many = len(depth) > MANY_LAYERS
    if "seed" in line.dims:
        if line.sizes["seed"] > 1:
            bars = {"fmt": "none", "ecolor": options["color"], "alpha": 0.7}
            bars |= {"elinewidth": 1, "capsize": 1.5 if many else 3}
            ax.errorbar(depth, line.mean("seed").values, _deviation(line).values, **bars)
        line = line.mean("seed")
    ax.plot(depth, line.values, markersize=2 if many else 4.5, **options)


def _deviation(line):
    """Standard deviation over seeds, NaN where fewer than two have a value."""
    count = line.count("seed")
    squares = ((line - line.mean("seed")) ** 2).sum("seed")
    return np.sqrt(squares / (count - 1).where(count > 1))


def _finish_accuracies(ax, title):
    """Label axes of accuracies in percent, and explain bands and error bars in the legend."""
    from matplotlib.collections import PolyCollection

    style.percent(ax.yaxis)
    style.tidy(ax, title=title, ylabel=ACCURACY)
    drawn = {}
    if any(isinstance(artist, PolyCollection) for artist in ax.collections):
        drawn["tokens"] = "band: range of tokens"
    if ax.containers:
        drawn["seeds"] = "bars: standard deviation over seeds"
    heading = "\n".join([f"line: mean over {' and '.join(drawn)}", *drawn.values()])
    style.legend(ax, title=heading if drawn else None)
    return ax


def _name_depth(ax, names, depth, overlay):
    """Name the layers along the x axis, or number the depth if models on it differ in layers."""
    from matplotlib.ticker import MultipleLocator, NullLocator, ScalarFormatter

    before = [text.get_text() for text in ax.get_xticklabels(which="both")]
    short, cut = shorten(names)
    name_layers(ax, "x", short, depth)
    ax.set_xlabel(layer_label(cut))
    if overlay and before != [text.get_text() for text in ax.get_xticklabels(which="both")]:
        ax.xaxis.set_major_locator(MultipleLocator(0.2))
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_locator(NullLocator())
        ax.tick_params(axis="x", which="both", labelrotation=0, labelsize="medium", length=3.5)
        ax.set_xlabel(NORMALISED)


def plot_probe_variants(results: dict[str, xr.DataArray], ax: "Axes | None" = None) -> "Axes":
    """Ridge-probe accuracy by layer and token pooling (Figures 11 and F.3 of Raghu et al. 2021).

    Args:
        results: dict from label, "model: variant", such as "ViT-CLS: first token", to DataArray
            of dims `(layer[, seed])`, accuracies in [0, 1].

    Returns:
        The axes: a colour per model, a line style and marker per variant, the same in all models.
        Means over seeds with error bars as in `plot_ridge_probe`.

    Raises:
        ValueError: for a result of another measurement, or an empty dict.

    Examples:
        >>> accuracy = analysis.ridge_probe(model, train, test).sel(l2=10.0, drop=True)
        >>> ax = analysis.plots.plot_probe_variants({"ViT: cls": accuracy, "ViT: all": accuracy})

    See also:
        `ridge_probe`, `plot_ridge_probe`.
    """
    lines = {
        label: expect_array(result, ("layer",), optional=("seed",))
        for label, result in expect_results(results).items()
    }
    models, _, variants = zip(*(label.partition(": ") for label in lines), strict=True)
    models, variants = (list(dict.fromkeys(names)) for names in (models, variants))
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = dict(zip(models, style.distinct_colours(len(models)), strict=True))
    for depth, (label, line) in zip(depths, lines.items(), strict=True):
        model, _, variant = label.partition(": ")
        order = variants.index(variant)
        look = {"linestyle": style.line_style(order), "label": label}
        look |= {"marker": style.marker(order), "markerfacecolor": "white" if order else None}
        _plot_probe(ax, depth, line, {"color": colours[model], **look})
    return _finish_accuracies(ax, "Ridge-probe accuracy by token pooling")


@renamed_arguments(axes="ax")
def plot_probe_map(
    result: xr.DataArray, ax: "Axes | None" = None, layers: list[str] | None = None
) -> "Axes":
    """Ridge-probe accuracy of every token, a map per layer (Figure D.4 of Raghu et al. 2021).

    Args:
        result: DataArray of dims (layer, token), accuracies in [0, 1], as from `ridge_probe` with
            `tokens="each"` at one `l2`. The attributes `prefix`, `rows` and `columns` give the grid
            of the tokens: those after the prefix lie row by row. Layers with other tokens hold NaN
            beyond their last, and cannot be drawn.
        layers: names of the layers to draw; if None, at most 8 of those on the grid, evenly
            spaced through the depth.

    Returns:
        The axes, with `ax.panels` of shape (layer,). All maps share one scale, given at the colour
        bar; titles give the accuracy of the CLS token, where there is one.

    Raises:
        ValueError: for a result of another measurement, or a layer that it does not have or that is
            not on the grid.

    Examples:
        >>> accuracy = analysis.ridge_probe(model, train, test, tokens="each")
        >>> ax = analysis.plots.plot_probe_map(accuracy.sel(l2=10.0))

    See also:
        `ridge_probe`, `plot_ridge_probe`.
    """
    from matplotlib.colors import Normalize

    result = expect_array(result, ("layer", "token"))
    prefix, shape = style.token_layout(result)
    expected, names = prefix + shape[0] * shape[1], layer_names(result)
    is_token = result.notnull().values
    off = {  # layers whose tokens are not those of the grid, and how many they have
        name: int(row.sum())
        for name, row in zip(names, is_token, strict=True)
        if row.sum() != expected or not row[:expected].all()
    }
    if layers is None:
        on_grid = [name for name in names if name not in off] or names
        spaced = np.linspace(0, len(on_grid) - 1, min(len(on_grid), MOST_MAPS)).round()
        layers = [on_grid[number] for number in spaced.astype(int)]
    shown = select_layers(result, layers)
    if wrong := {name: off[name] for name in layer_names(shown) if name in off}:
        raise ValueError(
            f"Expected layers of {prefix} + {shape[0]} x {shape[1]} tokens. "
            f"Received numbers: {wrong}"
        )
    percent = 100 * shown
    maps = percent.values[:, prefix:expected].reshape(-1, *shape)
    names, first = [wrap(name) for name in layer_names(shown)], percent.values[:, 0]
    if prefix:
        names = [f"{name}\nCLS: {x:.1f} %" for name, x in zip(names, first, strict=True)]
    low, high = maps.min(), maps.max()
    look = {"cmap": "viridis", "norm": Normalize(low, high), "scaled": False, "size": 8}
    look |= {"inches": (1.6, 1.6 * shape[0] / shape[1]), "axis_unit": "token", "pad": None}
    look["bar"] = f"{ACCURACY}\nfrom {low:.1f} to {high:.1f}"
    title = style.titled("Ridge-probe accuracy by token", result)
    return draw_maps(ax, maps, names, title, "layer", **look)[0]


def plot_token_probes(results: dict[str, xr.DataArray], ax: "Axes | None" = None) -> "Axes":
    """A line for each model, and the range of its spatial tokens."""
    spatial = {
        label: result.isel(token=slice(int(result.attrs["prefix"]), None))
        for label, result in results.items()
    }
    return plot_ridge_probe(spatial, ax)


def plot_summary_probes(results: dict[str, xr.DataArray], ax: "Axes | None" = None) -> "Axes":
    """Lines for each model and summary of its tokens, at the layers that have them all."""
    shared = {}
    for label, result in results.items():
        layers = shared.setdefault(label.partition(": ")[0], list(result.layer.values))
        layers[:] = [layer for layer in layers if layer in result.layer.values]
    shown = {
        label: result.sel(layer=shared[label.partition(": ")[0]])
        for label, result in results.items()
    }
    return plot_probe_variants(shown, ax)


def plot_probes(results: dict[str, xr.DataArray], ax: "Axes | None" = None) -> "Axes":
    """A line for each model, with error bars where there are several seeds of it.

    Args:
        results: dict from label to accuracy of dims (layer,); further seeds of a model are
            labelled "MODEL: seed 1".
    """
    seeds = {}
    for label, result in results.items():
        seeds.setdefault(label.partition(": seed ")[0], []).append(result)
    models = {
        model: xr.concat(each, dim="seed", combine_attrs="drop_conflicts")
        for model, each in seeds.items()
    }
    return plot_ridge_probe(models, ax)


def plot_accuracy_by_data(results: style.Datasets, ax: "Axes | None" = None) -> "Axes":
    """Test accuracy by share of the training data (Figures 3 and 4 of the ViT paper).

    Args:
        results: dict from label to a Dataset with `accuracy`, `low` and `high` of dims (fraction,).
    """
    ax = style.new_axes(7.5, 4.4) if ax is None else ax
    for index, (label, line) in enumerate(style.by_label(results).items()):
        accuracy, low, high = (100 * line[name].values for name in ("accuracy", "low", "high"))
        ax.errorbar(
            100 * line["fraction"].values,
            accuracy,
            yerr=[accuracy - low, high - accuracy],
            color=style.distinct_colours(len(results))[index],
            marker=style.marker(index),
            capsize=2.5,
            label=label,
        )
    ax.set(xscale="log", xlabel="share of the training images (%)")
    style.plain_log(ax.xaxis)
    style.tidy(
        ax, title="Test accuracy by amount of training data", ylabel="test accuracy (%, 95 % CI)"
    )
    style.legend(ax, "model")
    return ax


SCORES = {
    "purity": "cluster purity",
    "nmi": "normalised mutual information",
    "ari": "adjusted Rand index",
}
TOKENS = {CLS: "CLS token", SPATIAL: "mean of the spatial tokens", ALL: "mean of all tokens"}


def plot_knn_accuracy(
    results: style.Arrays, ax: "Axes | None" = None, top: int = 1, baselines: list[str] = ()
) -> "Axes":
    """k-NN accuracy by layer (Figures 9 and 28 of Walmer et al. 2023).

    Args:
        results: DataArray of dims (layer, k, top) from `knn_accuracy`, or a dict from label to
            several.
        top: 1 or 5, for top-1 or top-5 accuracy.

    Returns:
        The axes: a colour per result, a line style per k.

    Raises:
        ValueError: for a result of another measurement, or a `top` that it does not have.

    Examples:
        >>> accuracy = analysis.knn_accuracy(model, train, test)
        >>> ax = analysis.plots.plot_knn_accuracy(accuracy, top=5)

    See also:
        `knn_accuracy`, `plot_linear_probe`.
    """
    accuracies = style.labelled(results, ("layer", "k", "top"))
    lines = {label: select_labels(accuracy, top=top) for label, accuracy in accuracies.items()}
    lines = style.split(lines, "k")
    kinds = {k: f"k = {k}" for k in sorted({k for _, k in lines})}
    title = style.titled(f"k-NN accuracy, top {top}", results)
    return draw_lines(lines, kinds, ax, baselines, title=title, ylabel=ACCURACY)


def plot_linear_probe(
    results: style.Arrays, ax: "Axes | None" = None, baselines: list[str] = ()
) -> "Axes":
    """Accuracy by layer of linear probes trained by gradient descent (Table 6 of Walmer et al.).

    Args:
        results: DataArray of dims (layer, tokens, batch_norm) from `linear_probe`, or a dict from
            label to several.

    Returns:
        The axes: a colour per result, a line style per choice of tokens and batch normalisation.

    Raises:
        ValueError: for a result of another measurement, or an empty dict.

    Examples:
        >>> accuracy = analysis.linear_probe(model, train, test)
        >>> ax = analysis.plots.plot_linear_probe(accuracy)

    See also:
        `linear_probe`, `plot_ridge_probe`.
    """
    accuracies = style.labelled(results, ("layer", "tokens", "batch_norm"))
    lines = {
        (label, (str(tokens), bool(norm))): accuracy.sel(tokens=tokens, batch_norm=norm)
        for label, accuracy in zip(accuracies, map(current_words, accuracies.values()), strict=True)
        for norm in accuracy["batch_norm"].values
        for tokens in accuracy["tokens"].values
    }
    kinds = {
        (tokens, norm): TOKENS[tokens] + (", batch norm" if norm else "")
        for _, (tokens, norm) in lines
    }
    title = style.titled("Linear-probe accuracy", results)
    return draw_lines(lines, kinds, ax, baselines, title=title, ylabel=ACCURACY)


def plot_retrieval(
    results: style.Datasets, ax: "Axes | None" = None, baselines: list[str] = ()
) -> "Axes":
    """Mean average precision of image retrieval by layer (Figures 9 and 29 of Walmer et al.).

    Args:
        results: Dataset with `score` of dims (layer, difficulty) from `retrieval`, or a dict from
            label to several.

    Returns:
        The axes: a colour per result, a line style per difficulty.

    Raises:
        ValueError: for a result of another measurement, or an empty dict.

    Examples:
        >>> score = analysis.retrieval(model, queries, gallery, truth)
        >>> ax = analysis.plots.plot_retrieval(score)

    See also:
        `retrieval`, `plot_knn_accuracy`.
    """
    scores = style.labelled(results, ("layer", "difficulty"), "score")
    lines = style.split(scores, "difficulty")
    kinds = {difficulty: difficulty for _, difficulty in lines}
    title = ", ".join(["Image retrieval", *kinds]) if len(kinds) == 1 else "Image retrieval"
    labels = {"title": style.titled(title, results), "ylabel": "mean average precision (%)"}
    return draw_lines(lines, kinds, ax, baselines, **labels)


def plot_clustering(
    results: style.Datasets,
    ax: "Axes | None" = None,
    score: str = "purity",
    baselines: list[str] = (),
) -> "Axes":
    """Agreement of clusters with labels by layer (Figures 7, 8 and 24 to 27 of Walmer et al.).

    Args:
        results: Dataset with `purity`, `nmi` and `ari` of dims (layer,) from `clustering` or
            `object_clustering`, or a dict from label to several.
        score: one of these three.

    Returns:
        The axes: a line per result.

    Raises:
        ValueError: for a result of another measurement, or an unknown score.

    Examples:
        >>> scores = analysis.clustering(model, (images, labels))
        >>> ax = analysis.plots.plot_clustering(scores, score="nmi")

    See also:
        `clustering`, `object_clustering`.
    """
    require_word(score, tuple(SCORES), "score")
    scores = style.labelled(results, ("layer",), score)
    lines = {(label, score): values for label, values in scores.items()}
    counts = {result.attrs.get("clusters") for result in style.by_label(results).values()}
    (number,) = counts if len(counts) == 1 else [None]
    title = f"Agreement of {number} clusters with labels" if number else "Cluster agreement"
    labels = {"title": style.titled(title, results), "ylabel": SCORES[score]}
    return draw_lines(lines, {score: SCORES[score]}, ax, baselines, **labels)


def plot_label_propagation(
    results: style.Datasets, ax: "Axes | None" = None, baselines: list[str] = ()
) -> "Axes":
    """Quality of object masks propagated through videos, by layer (Figures 10 and 30 of Walmer).

    Args:
        results: Dataset with `score` of dims (layer,) from `label_propagation`, or a dict from
            label to several.

    Returns:
        The axes: a line per result.

    Raises:
        ValueError: for a result of another measurement, or an empty dict.

    Examples:
        >>> score = analysis.label_propagation(model, videos)
        >>> ax = analysis.plots.plot_label_propagation(score)

    See also:
        `label_propagation`, `plot_keypoint_correspondence`.
    """
    scores = style.labelled(results, ("layer",), "score")
    lines = {(label, "score"): score for label, score in scores.items()}
    title = style.titled("Propagation of masks through videos", results)
    return draw_lines(lines, {"score": "J&F"}, ax, baselines, title=title, ylabel="J&F score")


def plot_keypoint_correspondence(
    results: style.Datasets,
    ax: "Axes | None" = None,
    threshold: float = 0.1,
    average: str = "image",
    baselines: list[str] = (),
) -> "Axes":
    """Percentage of correct keypoints (PCK) by layer (Figures 10 and 31 of Walmer et al. 2023).

    Args:
        results: Dataset with `score` of dims (average, layer, threshold) from
            `keypoint_correspondence`, or a dict from label to several.
        threshold: largest distance of a correct keypoint, as a fraction of the longer side of the
            image or of the object's box, depending on the results.
        average: `"image"` or `"point"`, what is averaged within a category.

    Returns:
        The axes: a line per result.

    Raises:
        ValueError: for a result of another measurement, a threshold or average that it does not
            contain, or results of which some use the image and others the box.

    Examples:
        >>> score = analysis.keypoint_correspondence(model, pairs)
        >>> ax = analysis.plots.plot_keypoint_correspondence(score, threshold=0.05)

    See also:
        `keypoint_correspondence`, `plot_label_propagation`.
    """
    scores = style.labelled(results, ("average", "layer", "threshold"), "score")
    lines = {
        (label, "pck"): select_labels(score, threshold=threshold, average=average)
        for label, score in scores.items()
    }
    sides = {result.attrs.get("threshold", "image") for result in style.by_label(results).values()}
    if len(sides) > 1:
        raise ValueError(
            "Expected results with thresholds of one kind. Received: thresholds of the "
            f"{' and of the '.join(sorted(sides))}"
        )
    box = " of the object's box" if sides == {"box"} else ""
    labels = {"ylabel": f"PCK@{threshold:g}{box} (%)"}
    labels["title"] = style.titled("Keypoint correspondence", results)
    return draw_lines(lines, {"pck": "PCK"}, ax, baselines, **labels)


plot_object_clustering = plot_clustering
