"""Objects followed through videos, and keypoints found again, layer by layer."""

from . import style
from .layers import draw_lines


def plot_propagation(results, ax=None, baselines=()):
    """How well objects are followed, by layer (Figures 10 and 30 of Walmer et al. 2023).

    Args:
        results: Dataset with `score` of dims (layer,) from `label_propagation`.

    Returns:
        The axes: a line per result.
    """
    scores = style.labelled(results, ("layer",), "score")
    lines = {(label, "score"): score for label, score in scores.items()}
    ax = draw_lines(lines, {"score": "J and F"}, ax, baselines)
    ax.set_title(style.titled("Propagation of masks through videos", results))
    ax.set(ylabel="mean of J and F")
    return ax


def plot_keypoints(results, ax=None, threshold=0.1, average="image", baselines=()):
    """Share of keypoints that are found, by layer (Figures 10 and 31 of Walmer et al. 2023).

    Args:
        results: Dataset with `score` of dims (average, layer, threshold) from
            `keypoint_correspondence`.
        threshold: largest distance of a keypoint that is found, in longer sides of the image or of
            the object's box, as the results are.
        average: `"image"` or `"point"`, what is averaged within a category.

    Returns:
        The axes: a line per result.

    Raises:
        ValueError: if some thresholds are of the image and others of the box.
    """
    scores = style.labelled(results, ("average", "layer", "threshold"), "score")
    lines = {
        (label, "pck"): style.chosen(score, threshold=threshold, average=average)
        for label, score in scores.items()
    }
    sides = {result.attrs.get("threshold", "image") for result in style.by_label(results).values()}
    if len(sides) > 1:
        raise ValueError(
            "Expected results with thresholds of one kind. Received: thresholds of the "
            f"{' and of the '.join(sorted(sides))}"
        )
    ax = draw_lines(lines, {"pck": "PCK"}, ax, baselines)
    ax.set_title(style.titled("Keypoints found in another image", results))
    of_box = " of the object's box" if sides == {"box"} else ""
    ax.set(ylabel=f"PCK@{threshold:g}{of_box} (%)")
    style.percent(ax.yaxis)
    return ax
