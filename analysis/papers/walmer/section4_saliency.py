"""Walmer et al. 2023, section 4.4: alignment of attention with objects."""

from dataclasses import replace

import tensorflow as tf

from ...attention.saliency import saliency_statistic
from ...engine.estimates import descriptive, lower, student, upper, welch
from ...engine.results import expect_variable
from ...plots.attention_plots import plot_attention_saliency
from ...study.figure import Figure, together
from ...study.judge import finding
from ...study.measurement import statistic
from ..chapters import OBJECTS
from . import WALMER
from .section4_heads import phases
from .section4_patterns import of_query


def saliency_of(model):
    """Overlap of attention with the object in the image."""
    return statistic("saliency", model, model.require_attention(), _of_union, reads="objects")


def _of_union(features):
    """The statistic of saliency, of the union of all masks of an image."""
    inner = saliency_statistic(features)

    def step(images, masks, labels, taps):
        return inner.step(images, tf.reduce_any(tf.cast(masks, tf.bool), axis=1), taps)

    return replace(inner, step=step)


@finding(
    "saliency.{vit} saliency.{fresh}",
    section="4.4",
    figure="5",
    unit="difference in IoU",
    above=0.0,
)
def saliency_early(saliency, untrained):
    """CLS attention aligns with salient objects by the early-to-mid layers.

    IoU of CLS attention with the object, best head of each layer, mean over the lower half, minus
    that of the untrained model.

    Threshold 0 (section 4.4, figure 5). The best head of each untrained layer corrects for the
    choice of the best.

    Args:
        saliency, untrained: Dataset best_iou(query, layer), of the best head of each layer.
    """
    best, chance = (lower(_best_iou(result)) for result in (saliency, untrained))
    return student(best - chance, "layers")


@finding(
    "saliency.{vit} saliency.{fresh}",
    section="4.4",
    figure="5",
    unit="difference in rise",
    above=0.0,
)
def saliency_plateaus(saliency, untrained):
    """The alignment of CLS attention with objects plateaus early.

    Increase of the largest IoU in the lower half over that of the untrained model, minus its
    further increase in the upper half.

    Threshold 0, a steady increase (section 4.4, figure 5). The second increase is 0 where no later
    head is better. Descriptive: maxima over layers have no interval.

    Args:
        saliency, untrained: as in `saliency_early`.
    """

    best = _best_iou(saliency)
    early, late, chance = (x.max() for x in (lower(best), upper(best), _best_iou(untrained)))
    return descriptive(early - chance - max(late - early, 0), "maxima over layers")


@finding("saliency.{vit}", section="4.4", figure="5", unit="difference in IoU", below=0)
def saliency_drops(saliency):
    """In supervised ViTs, the alignment of attention with objects drops in later layers.

    IoU of CLS attention with the object, best head of each layer, mean over the upper half minus
    mean over layers 3 to 6 of 12.

    Threshold 0 (section 4.4, figure 5); layers as in `distance_dips`.

    Args:
        saliency: as in `saliency_early`.
    """
    _, plateau, late = phases(_best_iou(saliency))
    return welch(late, plateau, "layers")


def _best_iou(saliency):
    return of_query(expect_variable(saliency, "best_iou", ("query", "layer")), "cls")


def saliency_caption(models, results):
    """The caption of `FIGURE_5`."""
    queries = "for the mean over all queries"
    if any(model.grid.prefix for model in models):
        queries = "for the attention of CLS and for the mean over the other queries"
    return (
        "Each point is a head: IoU of the object with the tokens that receive 60 % of its "
        f"attention. Lines follow the best head of each layer, {queries}."
    )


FIGURE_5 = Figure(
    paper=WALMER,
    numbers="5 16",
    chapter=OBJECTS,
    shows="alignment of attention with the object",
    models=together("vit", "gap", baselines=("fresh",)),
    measure=saliency_of,
    draw=plot_attention_saliency,
    name="saliency",
    call="analysis.attention_saliency({model}, images_and_masks)",
    title="IoU of attention and object by layer",
    caption=saliency_caption,
    findings=[saliency_early, saliency_plateaus, saliency_drops],
)
