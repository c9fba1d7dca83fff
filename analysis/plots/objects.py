"""Objects followed through videos, and keypoints found again, layer by layer."""

from ..engine.results import expect_results, expect_variable
from . import style
from .layers import draw_lines


def plot_propagation(results, ax=None, baselines=()):
    """How well objects are followed, by layer (Figures 10 and 30 of Walmer et al. 2023).

    Args:
        results: Dataset with `score` of dims (layer,) from `label_propagation`, or a dict from
            label to such Datasets.
        ax: Matplotlib axes; new ones if None.
        baselines: labels of results that are drawn in grey.

    Returns:
        The axes: a line per result. Layers are named if all results share them; otherwise depth is
        normalised to [0, 1].

    Raises:
        ValueError: if there is no result, or one is no such Dataset.
    """
    models = expect_results(results if isinstance(results, dict) else {"": results})
    lines = {
        (label, "score"): expect_variable(result, "score", ("layer",))
        for label, result in models.items()
    }
    ax = draw_lines(lines, ["score"], ["J and F"], ax, baselines)
    title = "Propagation of masks through videos"
    ax.set_title(title if models is results else style.titled(title, results))
    ax.set(ylabel="mean of J and F")
    return ax


def plot_keypoints(results, ax=None, threshold=0.1, average="image", baselines=()):
    """Share of keypoints that are found, by layer (Figures 10 and 31 of Walmer et al. 2023).

    Args:
        results: Dataset with `score` of dims (average, layer, threshold) from
            `keypoint_correspondence`, or a dict from label to such Datasets.
        ax: Matplotlib axes; new ones if None.
        threshold: largest distance of a keypoint that is found, in longer sides of the image or of
            the object's box, as the results are.
        average: `"image"` or `"point"`, what is averaged within a category.
        baselines: labels of results that are drawn in grey.

    Returns:
        The axes: a line per result. Layers are named if all results share them; otherwise depth is
        normalised to [0, 1].

    Raises:
        ValueError: if there is no result, one is no such Dataset, or has no such threshold or
            average, or if some thresholds are of the image and others of the box.
    """
    models = expect_results(results if isinstance(results, dict) else {"": results})
    wanted = {"threshold": threshold, "average": average}
    lines = {
        (label, "pck"): _chosen(
            expect_variable(result, "score", ("average", "layer", "threshold")), wanted
        )
        for label, result in models.items()
    }
    sides = {result.attrs.get("threshold", "image") for result in models.values()}
    if len(sides) > 1:
        raise ValueError(
            "Expected results with thresholds of one kind. Received: thresholds of the "
            f"{' and of the '.join(sorted(sides))}"
        )
    ax = draw_lines(lines, ["pck"], ["PCK"], ax, baselines)
    title = "Keypoints found in another image"
    ax.set_title(title if models is results else style.titled(title, results))
    of_box = " of the object's box" if sides == {"box"} else ""
    ax.set(ylabel=f"PCK@{threshold:g}{of_box} (%)")
    ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}")
    return ax


def _chosen(score, wanted):
    for dim, value in wanted.items():
        known = score[dim].values.tolist()
        if value not in known:
            raise ValueError(f"Expected {dim} among {known}. Received: {dim}={value!r}")
        score = score.sel({dim: value})
    return score
