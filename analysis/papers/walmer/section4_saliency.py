"""Walmer et al. 2023, section 4.4: does attention find the object?"""

from dataclasses import replace

import tensorflow as tf

from ...attention.saliency import saliency_statistic
from ...engine.estimates import descriptive, lower, student, upper, welch
from ...engine.results import expect_variable
from ...plots.attention import plot_attention_saliency
from ...study.figure import Figure, together
from ...study.judge import finding
from ...study.measurement import statistic
from ..chapters import OBJECTS
from . import WALMER
from .section4_heads import phases
from .section4_patterns import of_query


def saliency_of(model):
    """Whether what is attended to is the object in the image."""
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
    """Attention of CLS finds the object by the early-to-mid layers.

    Mean IoU of each layer's best head in the lower half, minus that of the untrained model.

    Of CLS' attention and the object, layer by layer; against 0 (section 4.4, figure 5). The best
    head of an untrained layer is what the choice of the best gives attention that has not learned
    of objects.

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
    """The overlap of attention and object reaches a plateau early.

    Rise of the largest IoU from the model before training in the lower half, minus its
    further rise in the upper half.

    Against 0, a steady rise (section 4.4, figure 5). The first rise is from the largest IoU of an
    untrained model; the second is 0 where no later head is better. Descriptive: it is made of
    maxima over layers.

    Args:
        saliency, untrained: as in `saliency_early`.
    """

    best = _best_iou(saliency)
    early, late, chance = (x.max() for x in (lower(best), upper(best), _best_iou(untrained)))
    return descriptive(early - chance - max(late - early, 0), "maxima over layers")


@finding("saliency.{vit}", section="4.4", figure="5", unit="difference in IoU", below=0)
def saliency_drops(saliency):
    """In supervised ViTs, the overlap of attention and object drops after the middle.

    Mean IoU of each layer's best head, upper half minus layers 3 to 6 of 12.

    Against 0 (section 4.4, figure 5); layers as in `distance_dips`.

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
        "Each point is a head and shows how the tokens that hold 60 % of its attention overlap "
        f"with the object; lines follow the best head of each layer, {queries}."
    )


FIGURE_5 = Figure(
    paper=WALMER,
    numbers="5 16",
    chapter=OBJECTS,
    shows="attention on the object",
    models=together("vit", "gap", baselines=("fresh",)),
    measure=saliency_of,
    draw=plot_attention_saliency,
    name="saliency",
    title="Attention on the object, through the depth",
    caption=saliency_caption,
    findings=[saliency_early, saliency_plateaus, saliency_drops],
)
