"""Evaluations of features by layer: probes, k-NN, retrieval, clustering, videos, keypoints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..engine.results import (
    ALL,
    CLS,
    SPATIAL,
    current_words,
    layer_names,
    require_word,
    select_labels,
    select_layers,
)
from . import style
from .primitives import (
    depth_axis,
    draw_lines,
    draw_maps,
    wrap,
)
from .rule import draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY_LAYERS = 40
MOST_MAPS = 8
ACCURACY = "test accuracy (%)"
SCORES = {
    "purity": "cluster purity",
    "nmi": "normalised mutual information",
    "ari": "adjusted Rand index",
}
TOKENS = {CLS: "CLS token", SPATIAL: "mean of the spatial tokens", ALL: "mean of all tokens"}


# Before the lines, which can be of these dims too: `plot` takes the first that fits.
@draws("layer token", of="ridge_probe")
def plot_probe_map(
    result: xr.DataArray, ax: "Axes | None", *, layers: list[str] | None = None
) -> "Axes":
    """Ridge-probe accuracy of every token, with a map for each layer (Figure D.4 of Raghu et al.).

    The result must be computed by `ridge_probe` with `tokens="each"`, and selected at a single
    `l2`. All maps share one colour scale. If there is a CLS token, the title of each map states the
    accuracy of the CLS token. A layer with fewer tokens than other layers contains NaN and cannot
    be drawn.

    Args:
        result: DataArray of dims (layer, token), from `ridge_probe`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw. If None, at most 8 layers with one vector per patch are
            drawn, evenly spaced through the depth.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.ridge_probe(model, train, test, tokens="each").isel(l2=0)
        >>> ax = analysis.plots.plot_probe_map(result)

    See also:
        `ridge_probe`, `plot_ridge_probe`.
    """
    from matplotlib.colors import Normalize

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
            f"Received other numbers of tokens: {wrong}"
        )
    percent = 100 * shown
    maps = percent.values[:, prefix:expected].reshape(-1, *shape)
    names, first = [wrap(name) for name in layer_names(shown)], percent.values[:, 0]
    if prefix:
        names = [f"{name}\nCLS: {x:.1f} %" for name, x in zip(names, first, strict=True)]
    low, high = maps.min(), maps.max()
    return draw_maps(
        ax,
        maps,
        names,
        style.titled("Ridge-probe accuracy by token", result),
        bar=f"{ACCURACY}\nfrom {low:.1f} to {high:.1f}",
        cmap="viridis",
        norm=Normalize(low, high),
        scaled=False,
        size=8,
        inches=(1.6, 1.6 * shape[0] / shape[1]),
        axis_unit="token",
        pad=None,
    )[0]


@draws("layer l2 [token] [seed]", "layer [token] [seed]", several=True, size=(8.5, 4.4))
def plot_ridge_probe(results: style.Arrays, ax: "Axes") -> "Axes":
    """Ridge-probe accuracy by layer (Figures 11, 13, F.1 and F.2 of Raghu et al. 2021).

    Each result has a colour, and each value of `l2` a line style. The plot does not select a value,
    since selection on the test set would bias the accuracy. To draw a single value of `l2`, select
    this value on other images and pass `result.sel(l2=...)`.

    If a result has several tokens, the line shows the mean over tokens, and a band shows their
    range. If a result has several seeds, the line shows the mean over seeds, and error bars show
    the standard deviation (n - 1 degrees of freedom). If all results have the same layers, the axis
    names these layers. Otherwise, depth is normalised to [0, 1].

    Args:
        results: DataArray of dims (layer, l2, [token], [seed]) or DataArray of dims (layer,
            [token], [seed]), from `ridge_probe`, or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = analysis.ridge_probe(model, train, test)
        >>> ax = analysis.plots.plot_ridge_probe(result)

    See also:
        `ridge_probe`, `select_l2`, `plot_probe_map`.
    """
    if not isinstance(results, dict):
        results = {str(results.attrs.get("model", "")): results}
    depths = depth_axis(ax, [layer_names(result) for result in results.values()])
    colours = style.line_colours(results)
    for index, (depth, (label, result)) in enumerate(zip(depths, results.items(), strict=True)):
        if "l2" not in result.dims:
            result = result.drop_vars("l2", errors="ignore").expand_dims(l2=[0.0])
        for order, l2 in enumerate(result["l2"].values):
            strength = f"l2 = {l2:g}" if result.sizes["l2"] > 1 or not label else ""
            _plot_probe(
                ax,
                depth,
                result.isel(l2=order),
                color=colours[label],
                marker=style.marker(index),
                linestyle=style.line_style(order),
                label=", ".join(filter(None, [label, strength])),
            )
    return _finish_accuracies(ax, "Ridge-probe accuracy")


def _plot_probe(ax: "Axes", depth: np.ndarray, line: xr.DataArray, **look: Any) -> None:
    """One line over depth, with the range of its tokens as a band and error bars over its seeds."""
    if "token" in line.dims:
        tokens = line.mean("seed") if "seed" in line.dims else line
        low, high = tokens.min("token").values, tokens.max("token").values
        ax.fill_between(depth, low, high, color=look["color"], alpha=0.15, linewidth=0)
        line = line.mean("token")
    many = len(depth) > MANY_LAYERS
    if "seed" in line.dims:
        if line.sizes["seed"] > 1:
            ax.errorbar(
                depth,
                line.mean("seed").values,
                _deviation(line).values,
                fmt="none",
                ecolor=look["color"],
                alpha=0.7,
                elinewidth=1,
                capsize=1.5 if many else 3,
            )
        line = line.mean("seed")
    ax.plot(depth, line.values, markersize=2 if many else 4.5, **look)


def _deviation(line: xr.DataArray) -> xr.DataArray:
    """Standard deviation over seeds, NaN where fewer than two have a value."""
    count = line.count("seed")
    squares = ((line - line.mean("seed")) ** 2).sum("seed")
    return (squares / (count - 1).where(count > 1)) ** 0.5


def _finish_accuracies(ax: "Axes", title: str) -> "Axes":
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


@draws("layer [seed]", several=True, by_name_only=True, size=(8.5, 4.4))
def plot_probe_variants(results: style.Arrays, ax: "Axes") -> "Axes":
    """Ridge-probe accuracy by layer and token pooling (Figures 11 and F.3 of Raghu et al. 2021).

    The results are a dict with keys of the form "model: variant", such as "ViT-CLS: first token".
    Each model has a colour. Each variant has a line style and a marker, which are the same for all
    models. Lines show means over seeds, and error bars show standard deviations over seeds, as in
    `plot_ridge_probe`. Layers that are missing in a variant of their model are not drawn.

    Args:
        results: DataArray of dims (layer, [seed]), from `ridge_probe`, or a dict from label to such
            a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = analysis.ridge_probe(model, train, test).isel(l2=0)
        >>> ax = analysis.plots.plot_probe_variants(result)

    See also:
        `ridge_probe`, `plot_ridge_probe`.
    """
    lines, shared_layers = style.by_label(results), {}  # layers of all variants, by model
    for label, line in lines.items():
        layers = shared_layers.setdefault(label.partition(": ")[0], layer_names(line))
        layers[:] = [layer for layer in layers if layer in line["layer"]]
    lines = {
        label: line.sel(layer=shared_layers[label.partition(": ")[0]])
        for label, line in lines.items()
    }
    models, _, variants = zip(*(label.partition(": ") for label in lines), strict=True)
    models, variants = (list(dict.fromkeys(names)) for names in (models, variants))
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = style.line_colours(models)
    for depth, (label, line) in zip(depths, lines.items(), strict=True):
        model, _, variant = label.partition(": ")
        order = variants.index(variant)
        _plot_probe(
            ax,
            depth,
            line,
            color=colours[model],
            linestyle=style.line_style(order),
            label=label or "accuracy",
            marker=style.marker(order),
            markerfacecolor="white" if order else None,
        )
    return _finish_accuracies(ax, "Ridge-probe accuracy by token pooling")


@draws("layer token", several=True, by_name_only=True)
def plot_token_probes(results: style.Arrays, ax: "Axes | None") -> "Axes":
    """Ridge-probe accuracy of the spatial tokens by layer, with a line for each model.

    Each line shows the mean accuracy over spatial tokens, and a band shows the range over spatial
    tokens.

    Args:
        results: DataArray of dims (layer, token), from `ridge_probe`, or a dict from label to such
            a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = analysis.ridge_probe(model, train, test, tokens="each").isel(l2=0)
        >>> ax = analysis.plots.plot_token_probes(result)

    See also:
        `ridge_probe`.
    """
    spatial = {
        label: result.isel(token=slice(int(result.attrs["prefix"]), None))
        for label, result in style.by_label(results).items()
    }
    return plot_ridge_probe(spatial, ax)


@draws("layer", several=True, by_name_only=True)
def plot_probes(results: style.Arrays, ax: "Axes | None") -> "Axes":
    """Ridge-probe accuracy by layer, with a line for each model.

    If a model has results for several seeds, its line shows the mean over seeds, and error bars
    show the standard deviation over seeds. Results whose keys are "MODEL" and "MODEL: seed 1" count
    as two seeds of the same model.

    Args:
        results: DataArray of dims (layer,), from `ridge_probe`, or a dict from label to such a
            result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = analysis.ridge_probe(model, train, test).isel(l2=0)
        >>> ax = analysis.plots.plot_probes(result)

    See also:
        `ridge_probe`.
    """
    seeds: dict[str, list[xr.DataArray]] = {}
    for label, result in style.by_label(results).items():
        seeds.setdefault(label.partition(": seed ")[0], []).append(result)
    models = {
        model: xr.concat(each, dim="seed", combine_attrs="drop_conflicts")
        for model, each in seeds.items()
    }
    return plot_ridge_probe(models, ax)


@draws(
    dict.fromkeys(("accuracy", "low", "high"), "fraction"),
    several=True,
    by_name_only=True,
    size=(7.5, 4.4),
)
def plot_accuracy_by_data(results: style.Datasets, ax: "Axes") -> "Axes":
    """Test accuracy versus share of the training data (Figures 3 and 4 of the ViT paper).

    Args:
        results: Dataset with `accuracy` and `low` and `high` of dims (fraction,), from a study of
            models trained on fractions of the data, or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = table
        >>> ax = analysis.plots.plot_accuracy_by_data(result)

    See also:
        `a study of models trained on fractions of the data`.
    """
    lines = style.by_label(results)
    colours = style.line_colours(lines)
    for index, (label, line) in enumerate(lines.items()):
        accuracy, low, high = (100 * line[name].values for name in ("accuracy", "low", "high"))
        ax.errorbar(
            100 * line["fraction"].values,
            accuracy,
            yerr=[accuracy - low, high - accuracy],
            color=colours[label],
            marker=style.marker(index),
            capsize=2.5,
            label=label or "accuracy",
        )
    ax.set(xscale="log", xlabel="share of the training images (%)")
    style.plain_log(ax.xaxis)
    style.tidy(
        ax, title="Test accuracy by amount of training data", ylabel="test accuracy (%, 95 % CI)"
    )
    style.legend(ax, "model")
    return ax


@draws(
    dict.fromkeys(("best_score", "low", "high"), ""),
    several=True,
    by_name_only=True,
)
def plot_best_layers(
    results: style.Datasets, ax: "Axes | None", *, baselines: Sequence[str] = ()
) -> "Axes":
    """Score of the best layer of each model, with the number of this layer (Tables 1 and 5 of
    Walmer et al. 2023).

    Args:
        results: Dataset with `best_score` and `low` and `high` of dims (), from a report with
            tables 1 and 5 of Walmer et al., or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = table
        >>> ax = analysis.plots.plot_best_layers(result)

    See also:
        `Walmer's tables 1 and 5`.
    """
    results = style.by_label(results)
    height = 0.9 + 0.42 * len(results)
    ax = style.new_axes(6.5, height) if ax is None else ax
    colours = style.line_colours(list(results), baselines)
    for row, (label, result) in enumerate(results.items()):
        score, low, high = (float(result[name]) for name in ("best_score", "low", "high"))
        ends = [[score - low], [high - score]] if np.isfinite([low, high]).all() else None
        ax.errorbar(score, row, xerr=ends, color=colours[label], marker="o", capsize=3)
        ax.annotate(
            f"layer {int(result['number'])} of {result.attrs['layers']}",
            (score, row),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
    ax.set_yticks(range(len(results)), [label or "model" for label in results])
    ax.set_ylim(len(results) - 0.4, -0.8)
    style.tidy(ax, title="Score of the best layer", xlabel="score of the best layer (%, 95 % CI)")
    style.percent(ax.xaxis)
    return ax


@draws("layer k top", several=True)
def plot_knn_accuracy(
    results: style.Arrays, ax: "Axes | None", *, top: int = 1, baselines: Sequence[str] = ()
) -> "Axes":
    """k-NN accuracy by layer (Figures 9 and 28 of Walmer et al. 2023).

    Each result has a colour, and each k has a line style.

    Args:
        results: DataArray of dims (layer, k, top), from `knn_accuracy`, or a dict from label to
            such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        top: 1 for top-1 accuracy, or 5 for top-5 accuracy.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.knn_accuracy(model, train, test)
        >>> ax = analysis.plots.plot_knn_accuracy(result)

    See also:
        `knn_accuracy`, `plot_linear_probe`.
    """
    accuracies = style.by_label(results)
    lines = {label: select_labels(accuracy, top=top) for label, accuracy in accuracies.items()}
    lines = style.split(lines, "k")
    kinds = {k: f"k = {k}" for k in sorted({k for _, k in lines})}
    title = style.titled(f"k-NN accuracy, top {top}", results)
    return draw_lines(lines, kinds, ax, baselines, title=title, ylabel=ACCURACY)


@draws("layer tokens batch_norm", several=True)
def plot_linear_probe(
    results: style.Arrays, ax: "Axes | None", *, baselines: Sequence[str] = ()
) -> "Axes":
    """Accuracy by layer of linear probes trained by gradient descent (Table 6 of Walmer et al.).

    Each result has a colour. Each combination of token summary and batch normalisation has a line
    style.

    Args:
        results: DataArray of dims (layer, tokens, batch_norm), from `linear_probe`, or a dict from
            label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.linear_probe(model, train, test)
        >>> ax = analysis.plots.plot_linear_probe(result)

    See also:
        `linear_probe`, `plot_ridge_probe`.
    """
    accuracies = style.by_label(results)
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


@draws({"score": "layer difficulty"}, several=True)
def plot_retrieval(
    results: style.Datasets, ax: "Axes | None", *, baselines: Sequence[str] = ()
) -> "Axes":
    """Mean average precision of image retrieval by layer (Figures 9 and 29 of Walmer et al.).

    Each result has a colour, and each difficulty has a line style.

    Args:
        results: Dataset with `score` of dims (layer, difficulty), from `retrieval`, or a dict from
            label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.retrieval(model, queries, gallery, truth)
        >>> ax = analysis.plots.plot_retrieval(result)

    See also:
        `retrieval`, `plot_knn_accuracy`.
    """
    scores = style.labelled(results, "score")
    lines = style.split(scores, "difficulty")
    kinds = {difficulty: difficulty for _, difficulty in lines}
    words = ", ".join(["Image retrieval", *kinds]) if len(kinds) == 1 else "Image retrieval"
    return draw_lines(
        lines,
        kinds,
        ax,
        baselines,
        title=style.titled(words, results),
        ylabel="mean average precision (%)",
    )


@draws(dict.fromkeys(SCORES, "layer"), several=True, of="clustering, object_clustering")
def plot_clustering(
    results: style.Datasets,
    ax: "Axes | None",
    *,
    score: str = "purity",
    baselines: Sequence[str] = (),
) -> "Axes":
    """Agreement of clusters with labels by layer (Figures 7, 8 and 24 to 27 of Walmer et al.).

    Each line shows one result.

    Args:
        results: Dataset with `purity` and `nmi` and `ari` of dims (layer,), from `clustering` or
            `object_clustering`, or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        score: `"purity"`, `"nmi"` or `"ari"`.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.clustering(model, (images, labels))
        >>> ax = analysis.plots.plot_clustering(result)

    See also:
        `clustering`, `object_clustering`.
    """
    require_word(score, tuple(SCORES), "score")
    scores = style.labelled(results, score)
    lines = {(label, score): values for label, values in scores.items()}
    counts = {result.attrs.get("clusters") for result in style.by_label(results).values()}
    (number,) = counts if len(counts) == 1 else [None]
    words = f"Agreement of {number} clusters with labels" if number else "Cluster agreement"
    ax = draw_lines(
        lines,
        {score: SCORES[score]},
        ax,
        baselines,
        title=style.titled(words, results),
        ylabel=SCORES[score],
    )
    pixels = [x.attrs.get("purity_raw_pixels") for x in style.by_label(results).values()]
    known = [purity for purity in pixels if purity is not None]
    if known and score == "purity":
        ax.axhline(max(known), color="0.6", linestyle=":", linewidth=1.2, zorder=0)
        ax.annotate(
            "raw pixels",
            (1, max(known)),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            color="0.4",
        )
    return ax


@draws({"score": "layer"}, several=True)
def plot_label_propagation(
    results: style.Datasets, ax: "Axes | None", *, baselines: Sequence[str] = ()
) -> "Axes":
    """Quality of object masks propagated through videos, by layer (Figures 10 and 30 of Walmer).

    Each line shows one result.

    Args:
        results: Dataset with `score` of dims (layer,), from `label_propagation`, or a dict from
            label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.label_propagation(model, videos)
        >>> ax = analysis.plots.plot_label_propagation(result)

    See also:
        `label_propagation`, `plot_keypoint_correspondence`.
    """
    scores = style.labelled(results, "score")
    lines = {(label, "score"): score for label, score in scores.items()}
    title = style.titled("Propagation of masks through videos", results)
    return draw_lines(lines, {"score": "J&F"}, ax, baselines, title=title, ylabel="J&F score")


@draws({"score": "average layer threshold"}, several=True)
def plot_keypoint_correspondence(
    results: style.Datasets,
    ax: "Axes | None",
    *,
    threshold: float = 0.1,
    average: str = "image",
    baselines: Sequence[str] = (),
) -> "Axes":
    """Percentage of correct keypoints (PCK) by layer (Figures 10 and 31 of Walmer et al. 2023).

    Each line shows one result.

    Args:
        results: Dataset with `score` of dims (average, layer, threshold), from
            `keypoint_correspondence`, or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        threshold: largest distance of a correct keypoint, as a fraction of the longer side of the
            image or of the object's box, depending on the result.
        average: `"image"` to average over image pairs within a category, or `"point"` to average
            over keypoints.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.keypoint_correspondence(model, pairs)
        >>> ax = analysis.plots.plot_keypoint_correspondence(result)

    See also:
        `keypoint_correspondence`, `plot_label_propagation`.
    """
    scores = style.labelled(results, "score")
    lines = {
        (label, "pck"): select_labels(score, threshold=threshold, average=average)
        for label, score in scores.items()
    }
    sides = {result.attrs.get("threshold", "image") for result in style.by_label(results).values()}
    if len(sides) > 1:
        raise ValueError(
            "Expected results with thresholds of one kind. Received: "
            f"{' and '.join(sorted(sides))}. Draw each kind with its own ax="
        )
    box = " of the object's box" if sides == {"box"} else ""
    title = style.titled("Keypoint correspondence", results)
    ylabel = f"PCK@{threshold:g}{box} (%)"
    return draw_lines(lines, {"pck": "PCK"}, ax, baselines, title=title, ylabel=ylabel)


plot_object_clustering = plot_clustering
