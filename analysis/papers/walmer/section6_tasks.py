"""Walmer et al. 2023, section 6.2: video object segmentation and keypoint correspondence."""

from dataclasses import replace

import numpy as np

from ...engine.estimates import student
from ...engine.results import expect_variable, layer_names
from ...objects.keypoints import keypoint_correspondence
from ...objects.propagation import label_propagation
from ...plots.probe_plots import plot_keypoint_correspondence, plot_label_propagation
from ...study.figure import Figure, together
from ...study.judge import finding
from ...study.measurement import DATA, task
from ...study.models import BASELINES
from ..chapters import TASKS
from . import WALMER
from .section5_clusters import ALL, blocks_of
from .section6_classes import top_one_above_chance


def _on_square_grid(model):
    taps = model.require_placed()
    if model.grid.rows != model.grid.columns:
        model.lacks("square grid")
    return taps


def propagation_of(model):
    """Propagation of masks through videos."""
    taps = _on_square_grid(model)

    def make(data):
        return label_propagation(model.features(*taps), data.read("videos"), model.grid)

    return task("propagation", model, make, reads="videos", inputs=(DATA,))


def keypoints_of(model):
    """Keypoint correspondence between images of a category."""
    taps = _on_square_grid(model)

    def make(data):
        return keypoint_correspondence(model.features(*taps), data.read("pairs"), model.grid)

    return task("keypoints", model, make, reads="pairs", inputs=(DATA,))


@finding(
    "propagation.{vit} propagation.{noise}",
    section="6.2",
    figure="10 left",
    unit="difference in J&F",
    above=0.0,
)
def videos_above_chance(task, noise):
    """Spatial tokens score above chance in video object segmentation.

    J&F score, mean over layers, minus that of noise.

    Threshold 0 (section 6.2, table 1).

    Args:
        task, noise: of the same `label_propagation`.
    """
    return _above_chance(task, noise)


@finding("propagation.{vit}", section="6.2", figure="10 left", unit="difference in J&F", above=0.0)
def videos_before_last(task):
    """A layer before the last is best for video object segmentation.

    J&F score of the best layer before the last, chosen on other videos, minus that of the last.

    Threshold 0 (section 6.2, figure 10). To avoid selection bias, the best layer is chosen on every
    other video and scored on the rest, and vice versa.

    Args:
        task: as in `videos_above_chance`.
    """
    return _before_last(task)


@finding("propagation.{vit}", section="6.2", figure="10 left", unit="difference in J&F", above=0.0)
def videos_mid_to_late(task):
    """A mid-to-late layer is best for video object segmentation.

    J&F score of the best layer of the upper half minus that of the lower half, each chosen on
    other videos.

    Threshold 0 (section 6.2, figure 10); chosen and scored as in `videos_before_last`. The middle
    of an odd number of layers is in neither half.

    Args:
        task: as in `videos_above_chance`.
    """
    return _mid_to_late(task)


@finding(
    "keypoints.{vit} keypoints.{noise}",
    section="6.2",
    figure="10 right",
    unit="difference in PCK",
    above=0.0,
)
def keypoints_above_chance(task, noise):
    """Spatial tokens score above chance in keypoint correspondence.

    PCK at 0.1, mean over layers, minus that of noise.

    Threshold 0 (section 6.2, table 1).

    Args:
        task, noise: of the same `keypoint_correspondence`.
    """
    return _above_chance(task, noise)


@finding("keypoints.{vit}", section="6.2", figure="10 right", unit="difference in PCK", above=0)
def keypoints_before_last(task):
    """A layer before the last is best for keypoint correspondence.

    PCK at 0.1 of the best layer before the last, chosen on other categories, minus that of the
    last.

    Threshold 0 (section 6.2, figure 10). To avoid selection bias, the best layer is chosen on every
    other category and scored on the rest, and vice versa.

    Args:
        task: as in `keypoints_above_chance`.
    """
    return _before_last(task)


@finding("keypoints.{vit}", section="6.2", figure="10 right", unit="difference in PCK", above=0)
def keypoints_mid_to_late(task):
    """A mid-to-late layer is best for keypoint correspondence.

    PCK at 0.1 of the best layer of the upper half minus that of the lower half, each chosen on
    other categories.

    Threshold 0 (section 6.2, figure 10); chosen and scored as in `keypoints_before_last`. The
    middle of an odd number of layers is in neither half.

    Args:
        task: as in `keypoints_above_chance`.
    """
    return _mid_to_late(task)


def _above_chance(task, noise):
    (scores, over), (chance, _) = task_scores(task), task_scores(noise)
    if scores.shape != chance.shape:
        raise ValueError(
            "Expected scores of the same layers and data. "
            f"Received: shapes {scores.shape} and {chance.shape}"
        )
    return student((scores - chance).mean("layer").values, over)


def _before_last(task):
    scores, over = task_scores(task)
    places = np.arange(scores.sizes["layer"])
    return _better_group(scores.values, places[:-1], places[-1:], over)


def _mid_to_late(task):
    scores, over = task_scores(task)
    count = scores.sizes["layer"]
    places = np.arange(count)
    return _better_group(scores.values, places[(count + 1) // 2 :], places[: count // 2], over)


@finding(
    "keypoints.{vit} knn_accuracy.{vit}",
    section="6.3",
    figure="10 right",
    unit="difference in PCK",
    above=0.0,
)
def no_single_layer(task, neighbours):
    """No single layer is best for all tasks: the best differs for k-NN and keypoints.

    PCK at 0.1 of the best other layer, chosen on other categories, minus that of the layer best
    for k-NN.

    Threshold 0 (section 6.3, figures 9 and 10); the other layer is chosen and scored as in
    `keypoints_before_last`. The sampling error of the layer best for k-NN is left out.

    Args:
        task: as in `keypoints_before_last`.
        neighbours: as in `last_best`.
    """
    accuracy = top_one_above_chance(neighbours)
    best = str(accuracy["layer"].values[accuracy.values.argmax()])
    scores, over = task_scores(task)
    names = layer_names(scores)
    if best not in names:
        raise ValueError(f"Expected a score of layer {best}. Received: {', '.join(names)}")
    places, at = np.arange(len(names)), names.index(best)
    return _better_group(scores.values, np.delete(places, at), places[[at]], over)


def task_scores(task):
    """Scores of dims (unit, layer), and what the units are: videos, or categories of keypoints."""
    if "pck" in task:
        scores = task["pck"].sel(average="point").sel(threshold=0.1, method="nearest")
        return blocks_of(scores.rename(category="unit").transpose("unit", "layer")), "categories"
    score = (expect_variable(task, "region", ("object", "layer")) + task["boundary"]) / 2
    scores = score.groupby("video").mean().rename(video="unit")
    return blocks_of(scores.transpose("unit", "layer")), "videos"


def _better_group(scores, one, other, over):
    """Score of the best layer of one group minus that of another's, chosen on other units.

    Args:
        scores: array of shape (unit, layer).
        one, other: indices of layers.
        over: what the units are, in words.
    """
    if len(scores) < 2 or not len(one) or not len(other):
        raise ValueError(f"Expected two {over} and two layers. Received: shape {scores.shape}")
    gains = np.empty(len(scores))
    for start in (0, 1):
        means = scores[start::2].mean(axis=0)
        first, second = (group[means[group].argmax()] for group in (one, other))
        rest = scores[1 - start :: 2]
        gains[1 - start :: 2] = rest[:, first] - rest[:, second]
    return student(gains, over)


FIGURE_10_VIDEOS = Figure(
    paper=WALMER,
    numbers="10 30",
    chapter=TASKS,
    shows="video object segmentation by mask propagation",
    models=together(*ALL, baselines=BASELINES),
    measure=propagation_of,
    draw=plot_label_propagation,
    name="propagation",
    call="analysis.label_propagation({model}, videos)",
    title="Video object segmentation by layer",
    caption="Each point is the J&F score (mean of region overlap J and contour accuracy F) of "
    "masks propagated from the first frame to all others by token similarity alone.",
    findings=[videos_above_chance, videos_before_last, videos_mid_to_late],
)

FIGURE_10_KEYPOINTS = replace(
    FIGURE_10_VIDEOS,
    numbers="10 31",
    shows="keypoint correspondence",
    measure=keypoints_of,
    draw=plot_keypoint_correspondence,
    name="keypoints",
    call="analysis.keypoint_correspondence({model}, pairs)",
    title="Keypoint correspondence by layer",
    caption="Each point is PCK at 0.1: the share of keypoints whose most similar position in "
    "another image lies within a tenth of its side from the same keypoint.",
    findings=[
        keypoints_above_chance,
        keypoints_before_last,
        keypoints_mid_to_late,
        no_single_layer,
    ],
)
