"""Evaluations of features by layer: probes, k-NN, retrieval, clustering, videos, keypoints."""

from typing import TYPE_CHECKING

from ..engine.results import ALL, CLS, SPATIAL, current_words, select_labels
from . import style
from .layers import draw_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCORES = {
    "purity": "cluster purity",
    "nmi": "normalised mutual information",
    "ari": "adjusted Rand index",
}
TOKENS = {CLS: "CLS token", SPATIAL: "mean of the spatial tokens", ALL: "mean of all tokens"}


def _lines(results, ax, kinds, lines, title, ylabel, baselines, in_percent=True):
    """Lines through the depth under a title, in percent or as they are."""
    ax = draw_lines(lines, kinds, ax, baselines)
    ax.set_title(style.titled(title, results))
    ax.set(ylabel=ylabel + (" (%)" if in_percent else ""))
    if in_percent:
        style.percent(ax.yaxis)
    return ax


def plot_knn_accuracy(
    results: style.Arrays, ax: "Axes | None" = None, top: int = 1, baselines: list[str] = ()
) -> "Axes":
    """k-NN accuracy by layer (Figures 9 and 28 of Walmer et al. 2023).

    Args:
        results: DataArray of dims (layer, k, top) from `knn_accuracy`, or a dict from label to
            several.
        ax: Matplotlib axes; those of a new figure if None.
        top: 1 or 5, which accuracy.
        baselines: labels of results that are drawn in grey.

    Returns:
        The axes: a colour per result, a line style per k.

    Raises:
        ValueError: for another result, or a `top` that it does not have.

    Examples:
        >>> accuracy = analysis.knn_accuracy(model, train, test)
        >>> ax = analysis.plot_knn_accuracy(accuracy, top=5)

    See also:
        `knn_accuracy`, `plot_linear_probe`.
    """
    accuracies = style.labelled(results, ("layer", "k", "top"))
    lines = {
        (label, int(k)): select_labels(accuracy, top=top).sel(k=k)
        for label, accuracy in accuracies.items()
        for k in accuracy["k"].values
    }
    kinds = {k: f"k = {k}" for k in sorted({k for _, k in lines})}
    title = f"k-NN accuracy, top {top}"
    return _lines(results, ax, kinds, lines, title, "test accuracy", baselines)


def plot_linear_probe(
    results: style.Arrays, ax: "Axes | None" = None, baselines: list[str] = ()
) -> "Axes":
    """Accuracy by layer of linear probes trained by gradient descent (Table 6 of Walmer et al.).

    Args:
        results: DataArray of dims (layer, tokens, batch_norm) from `linear_probe`, or a dict from
            label to several.
        ax: Matplotlib axes; those of a new figure if None.
        baselines: labels of results that are drawn in grey.

    Returns:
        The axes: a colour per result, a line style per choice of tokens and batch normalisation.

    Raises:
        ValueError: for another result, or an empty dict.

    Examples:
        >>> accuracy = analysis.linear_probe(model, train, test)
        >>> ax = analysis.plot_linear_probe(accuracy)

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
    return _lines(results, ax, kinds, lines, "Linear-probe accuracy", "test accuracy", baselines)


def plot_retrieval(
    results: style.Datasets, ax: "Axes | None" = None, baselines: list[str] = ()
) -> "Axes":
    """Mean average precision of image retrieval by layer (Figures 9 and 29 of Walmer et al.).

    Args:
        results: Dataset with `score` of dims (layer, difficulty) from `retrieval`, or a dict from
            label to several.
        ax: Matplotlib axes; those of a new figure if None.
        baselines: labels of results that are drawn in grey.

    Returns:
        The axes: a colour per result, a line style per difficulty.

    Raises:
        ValueError: for another result, or an empty dict.

    Examples:
        >>> score = analysis.retrieval(model, queries, gallery, truth)
        >>> ax = analysis.plot_retrieval(score)

    See also:
        `retrieval`, `plot_knn_accuracy`.
    """
    lines = {
        (label, str(difficulty)): score.sel(difficulty=difficulty)
        for label, score in style.labelled(results, ("layer", "difficulty"), "score").items()
        for difficulty in score["difficulty"].values
    }
    kinds = {difficulty: difficulty for _, difficulty in lines}
    title = ", ".join(["Image retrieval", *kinds]) if len(kinds) == 1 else "Image retrieval"
    return _lines(results, ax, kinds, lines, title, "mean average precision", baselines)


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
        ax: Matplotlib axes; those of a new figure if None.
        score: one of these three.
        baselines: labels of results that are drawn in grey.

    Returns:
        The axes: a line per result.

    Raises:
        ValueError: for another result or score.

    Examples:
        >>> scores = analysis.clustering(model, (images, labels))
        >>> ax = analysis.plot_clustering(scores, score="nmi")

    See also:
        `clustering`, `object_clustering`.
    """
    if score not in SCORES:
        raise ValueError(f"Expected score in {list(SCORES)}. Received: score={score!r}")
    scores = style.labelled(results, ("layer",), score)
    lines = {(label, score): values for label, values in scores.items()}
    counts = {result.attrs.get("clusters") for result in style.by_label(results).values()}
    (number,) = counts if len(counts) == 1 else [None]
    title = f"Agreement of {number} clusters with labels" if number else "Cluster agreement"
    kinds = {score: SCORES[score]}
    return _lines(results, ax, kinds, lines, title, SCORES[score], baselines, in_percent=False)


def plot_label_propagation(
    results: style.Datasets, ax: "Axes | None" = None, baselines: list[str] = ()
) -> "Axes":
    """Quality of object masks propagated through videos, by layer (Figures 10 and 30 of Walmer).

    Args:
        results: Dataset with `score` of dims (layer,) from `label_propagation`, or a dict from
            label to several.
        ax: Matplotlib axes; those of a new figure if None.
        baselines: labels of results that are drawn in grey.

    Returns:
        The axes: a line per result.

    Raises:
        ValueError: for another result, or an empty dict.

    Examples:
        >>> score = analysis.label_propagation(model, videos)
        >>> ax = analysis.plot_label_propagation(score)

    See also:
        `label_propagation`, `plot_keypoint_correspondence`.
    """
    scores = style.labelled(results, ("layer",), "score")
    lines = {(label, "score"): score for label, score in scores.items()}
    title, ylabel = "Propagation of masks through videos", "J&F score"
    kinds = {"score": "J&F"}
    return _lines(results, ax, kinds, lines, title, ylabel, baselines, in_percent=False)


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
        ax: Matplotlib axes; those of a new figure if None.
        threshold: largest distance of a correct keypoint, in longer sides of the image or of the
            object's box, as the results are.
        average: `"image"` or `"point"`, what is averaged within a category.
        baselines: labels of results that are drawn in grey.

    Returns:
        The axes: a line per result.

    Raises:
        ValueError: for another result, a threshold or average that it does not have, and if some
            thresholds are of the image and others of the box.

    Examples:
        >>> score = analysis.keypoint_correspondence(model, pairs)
        >>> ax = analysis.plot_keypoint_correspondence(score, threshold=0.05)

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
    title, ylabel = "Keypoint correspondence", f"PCK@{threshold:g}{box}"
    return _lines(results, ax, {"pck": "PCK"}, lines, title, ylabel, baselines)


plot_object_clustering = plot_clustering
