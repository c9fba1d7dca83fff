"""What Walmer et al. 2023 find about features and tasks, as statistics: an `Estimate` of results.

As in `findings`, all lines are natural ones, and none was chosen after a measurement. Layers are
the outputs of the blocks, and "half" is by depth; the paper's models have 12.
"""

import numpy as np
import xarray as xr

from ..plots.style import expect_array, expect_variable, layer_names
from ..study.estimates import (
    Sample,
    bootstrap,
    difference,
    lower,
    normal,
    rank_correlation,
    student,
)


def clusters_deepen(clusters):
    """Rank correlation of depth and cluster purity; against 0 (section 5.2, figure 7).

    Args:
        clusters: Dataset purity(layer).
    """
    purity = _blocks(expect_variable(clusters, "purity", ("layer",))).values
    pairs = np.stack([np.arange(len(purity)), purity], axis=1)
    return bootstrap(rank_correlation, pairs, over="layers")


def spatial_first(spatial, cls):
    """Cluster purity of the mean spatial token minus that of CLS, lower half; against 0.

    Section 5.2, figure 7.

    Args:
        spatial, cls: Dataset purity(layer) of the same images.
    """
    pair = (expect_variable(result, "purity", ("layer",)) for result in (spatial, cls))
    spatial, cls = xr.align(*pair, join="inner")  # CLS is the same for all images before block 0
    return bootstrap(np.mean, lower((spatial - cls).values), over="layers")


def purity_above_chance(clusters, noise):
    """Mean cluster purity over the layers minus that of noise; against 0 (section 5.3, figure 8).

    The error is binomial; it leaves out the luck of the first centres.

    Args:
        clusters, noise: Dataset purity(layer), with the number of `objects` in the attributes.
    """
    return difference(*(_purities(result) for result in (clusters, noise)), over="layers")


def purity_peaks_early(clusters):
    """Mean cluster purity of layers 9 to 11 of 12 minus that of the last; against 0.

    Section 5.3, figure 8; of other depths the last quarter without the last layer. No layer is
    chosen by its purity. The error is that of `purity_above_chance`.

    Args:
        clusters: as in `purity_above_chance`.
    """
    purity = _purities(clusters)
    count = len(purity.values)
    first = -(-3 * count // 4) - 1
    if first >= count - 1:
        raise ValueError(f"Expected at least 4 layers. Received: {count}")
    parts = slice(first, -1), slice(-1, None)
    samples = [Sample(purity.values[part], purity.stderr[part]) for part in parts]
    return difference(*samples, over="layers")


def last_best(neighbours):
    """k-NN accuracy of the last layer minus the best of all others; against 0.

    Top 1 (section 6.3, table 1). The best of many is a little above its true value, which speaks
    against the finding; the binomial error is one as if of different images.

    Args:
        neighbours: accuracy of dims (layer, k, top), the number of `examples` in the attributes.
    """
    accuracy = _top_one(neighbours).values
    if len(accuracy) < 2:
        raise ValueError(f"Expected at least two layers. Received: {len(accuracy)}")
    last, best = accuracy[-1], accuracy[:-1].max()
    variance = (last * (1 - last) + best * (1 - best)) / neighbours.attrs.get("examples", np.nan)
    how = "binomial, as if on different images, which is wide for the same ones"
    return normal(last - best, np.sqrt(variance), how)


def task_above_chance(task, noise):
    """Mean score over the layers minus that of noise; against 0 (section 6.2, table 1).

    Args:
        task, noise: of the same `label_propagation` or `keypoint_correspondence`.
    """
    (scores, over), (chance, _) = _task_scores(task), _task_scores(noise)
    if scores.shape != chance.shape:
        raise ValueError(
            "Expected scores of the same layers and data. "
            f"Received: shapes {scores.shape} and {chance.shape}"
        )
    return student((scores - chance).mean("layer").values, over)


def before_last(task):
    """Score of the best layer before the last, minus the last's; against 0.

    Section 6.2, figure 10. The best of many would beat the last by luck alone: it is chosen on
    every other video or category and scored on the rest, and the other way round.

    Args:
        task: of `label_propagation` or `keypoint_correspondence`.
    """
    scores, over = _task_scores(task)
    places = np.arange(scores.sizes["layer"])
    return _better_group(scores.values, places[:-1], places[-1:], over)


def mid_to_late(task):
    """Score of the best layer of the upper half minus that of the best of the lower half.

    Against 0 (section 6.2, figure 10); chosen and scored as in `before_last`. The middle of an odd
    number of layers is in neither half.

    Args:
        task: as in `before_last`.
    """
    scores, over = _task_scores(task)
    count = scores.sizes["layer"]
    places = np.arange(count)
    return _better_group(scores.values, places[(count + 1) // 2 :], places[: count // 2], over)


def no_single_layer(task, neighbours):
    """Score of another layer than the best for k-NN, minus the score of that; against 0.

    Section 6.3, figures 9 and 10; the other layer is chosen and scored as in `before_last`. That
    the best for k-NN is itself measured on a sample is left out.

    Args:
        task: as in `before_last`.
        neighbours: as in `last_best`.
    """
    accuracy = _top_one(neighbours)
    best = str(accuracy["layer"].values[accuracy.values.argmax()])
    scores, over = _task_scores(task)
    names = layer_names(scores)
    if best not in names:
        raise ValueError(f"Expected a score of layer {best}. Received: {', '.join(names)}")
    places, at = np.arange(len(names)), names.index(best)
    return _better_group(scores.values, np.delete(places, at), places[[at]], over)


def _blocks(result):
    """A result without the layers before the first block, "embedding"."""
    return result.isel(layer=["/" in name for name in layer_names(result)])


def _purities(clusters):
    """Purity of each block, with its binomial error."""
    purity = _blocks(expect_variable(clusters, "purity", ("layer",))).values
    return Sample(purity, np.sqrt(purity * (1 - purity) / clusters.attrs.get("objects", np.nan)))


def _top_one(neighbours):
    """Top-1 accuracy of each block, of the first number of neighbours."""
    accuracy = expect_array(neighbours, ("layer", "k", "top")).sel(top=1).isel(k=0)
    return _blocks(accuracy)


def _task_scores(task):
    """Scores of dims (unit, layer), and what the units are: videos, or categories of keypoints."""
    if "pck" in task:
        scores = task["pck"].sel(average="point").sel(threshold=0.1, method="nearest")
        return _blocks(scores.rename(category="unit").transpose("unit", "layer")), "categories"
    score = (expect_variable(task, "region", ("object", "layer")) + task["boundary"]) / 2
    scores = score.groupby("video").mean().rename(video="unit")
    return _blocks(scores.transpose("unit", "layer")), "videos"


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
