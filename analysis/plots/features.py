"""Evaluations of features: k-NN, linear probes, retrieval, clustering, and CKA of last layers."""

import numpy as np

from ..engine.results import (
    ALL,
    CLS,
    SPATIAL,
    current_words,
    expect_variable,
    layer_names,
)
from . import style
from .layers import FONT_SIZE, draw_lines

SCORES = {
    "purity": "cluster purity",
    "nmi": "normalised mutual information",
    "ari": "adjusted Rand index",
}
TOKENS = {CLS: "CLS token", SPATIAL: "mean of the spatial tokens", ALL: "mean of all tokens"}
PARTS = {CLS: "CLS token", SPATIAL: "spatial tokens"}
PANEL = 3.0  # inches, of few models


def plot_knn(results, ax=None, top=1, baselines=()):
    """Accuracy of a vote among neighbours through the depth (Figures 9 and 28 of Walmer et al.).

    Args:
        results: DataArray of dims (layer, k, top) from `knn_accuracy`.
        top: 1 or 5, which accuracy.

    Returns:
        The axes: a colour per result, a line style per k.
    """
    accuracies = style.labelled(results, ("layer", "k", "top"))
    lines = {
        (label, int(k)): style.chosen(accuracy, top=top).sel(k=k)
        for label, accuracy in accuracies.items()
        for k in accuracy["k"].values
    }
    kinds = {k: f"k = {k}" for k in sorted({k for _, k in lines})}
    ax = draw_lines(lines, kinds, ax, baselines)
    ax.set_title(style.titled(f"k-nearest neighbours, top {top}", results))
    ax.set(ylabel="test accuracy (%)")
    style.percent(ax.yaxis)
    return ax


def plot_linear_probe(results, ax=None, baselines=()):
    """Accuracy of probes by gradient descent through the depth (Table 6 of Walmer et al.).

    Args:
        results: DataArray of dims (layer, tokens, batch_norm) from `linear_probe`.

    Returns:
        The axes: a colour per result, a line style per choice of tokens and batch normalisation.
    """
    accuracies = style.labelled(results, ("layer", "tokens", "batch_norm"))
    lines = {
        (label, (str(tokens), bool(norm))): accuracy.sel(tokens=tokens, batch_norm=norm)
        for label, accuracy in zip(accuracies, map(current_words, accuracies.values()), strict=True)
        for norm in accuracy["batch_norm"].values
        for tokens in accuracy["tokens"].values
    }
    kinds = {(of, norm): TOKENS[of] + (", batch norm" if norm else "") for _, (of, norm) in lines}
    ax = draw_lines(lines, kinds, ax, baselines)
    ax.set_title(style.titled("Linear probes by gradient descent", results))
    ax.set(ylabel="test accuracy (%)")
    style.percent(ax.yaxis)
    return ax


def plot_retrieval(results, ax=None, baselines=()):
    """Mean average precision of retrieval through the depth (Figures 9 and 29 of Walmer et al.).

    Args:
        results: Dataset with `score` of dims (layer, difficulty) from `retrieval`.

    Returns:
        The axes: a colour per result, a line style per difficulty.
    """
    lines = {
        (label, str(difficulty)): score.sel(difficulty=difficulty)
        for label, score in style.labelled(results, ("layer", "difficulty"), "score").items()
        for difficulty in score["difficulty"].values
    }
    kinds = {difficulty: difficulty for _, difficulty in lines}
    ax = draw_lines(lines, kinds, ax, baselines)
    title = ", ".join(["Retrieval", *kinds]) if len(kinds) == 1 else "Retrieval"
    ax.set_title(style.titled(title, results))
    ax.set(ylabel="mean average precision (%)")
    style.percent(ax.yaxis)
    return ax


def plot_clustering(results, ax=None, score="purity", baselines=()):
    """Agreement of clusters with labels through the depth (Figures 7, 8 and 24 to 27 of Walmer).

    Args:
        results: Dataset with `purity`, `nmi` and `ari` of dims (layer,) from `clustering`.
        score: one of these three.

    Returns:
        The axes: a line per result.
    """
    if score not in SCORES:
        raise ValueError(f"Expected score in {list(SCORES)}. Received: score={score!r}")
    scores = style.labelled(results, ("layer",), score)
    lines = {(label, score): values for label, values in scores.items()}
    ax = draw_lines(lines, {score: SCORES[score]}, ax, baselines)
    counts = {int(result.attrs["clusters"]) for result in style.by_label(results).values()}
    title = f"Agreement of {counts.pop()} clusters with labels" if len(counts) == 1 else "Clusters"
    ax.set_title(style.titled(title, results))
    ax.set(ylabel=SCORES[score])
    return ax


def plot_last_layer_cka(result, axes=None):
    """Similarity of the last layers of all pairs of models (Figures 6 and 19 of Walmer et al.).

    Args:
        result: Dataset with `cka` of dims (model_x, model_y, part) from `last_layer_cka`.

    Returns:
        ndarray of shape (part,) of the axes: heatmaps with the numbers written on them, colours
        fixed to [0, 1]. A part that no two models have is left out; one that a model lacks is grey.
    """
    cka = expect_variable(result, "cka", ("model_x", "model_y", "part"))
    least = min(2, cka.sizes["model_x"])
    cka = cka.isel(part=cka.notnull().any("model_y").sum("model_x").values >= least)
    parts, names = layer_names(cka, "part"), layer_names(cka, "model_x")
    axes = _new_matrices(len(parts), len(names)) if axes is None else axes
    axes = style.expect_axes(axes, len(parts), "part")
    for ax, part in zip(axes, parts, strict=True):
        values = cka.sel(part=part).values.T
        image = ax.imshow(values, cmap=style.colours("magma"), vmin=0, vmax=1)
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                shade = "black" if value > 0.6 else "white"
                at = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "color": shade}
                ax.text(column, row, f"{value:.2f}", **at)
        ax.set_title(PARTS.get(part, part), fontsize=10)
        ax.set_xticks(range(len(names)), names, rotation=90, fontsize=FONT_SIZE)
        ax.set_yticks(range(len(names)), names, fontsize=FONT_SIZE)
        ax.tick_params(length=0)
    # A model's similarity to itself is 1 but for rounding.
    style.shared_colour_bar(axes, image, "CKA of last layers", cka.values.round(6))
    return axes


def _new_matrices(parts, models):
    """Axes of a new figure with room for a square of so many models each."""
    side = max(PANEL, 0.42 * models + 0.6)
    size = (parts * side + 1.6, side + 1.2)
    return style.new_grid(1, parts, size, layout="constrained").ravel()
