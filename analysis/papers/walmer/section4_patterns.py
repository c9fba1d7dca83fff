"""Walmer et al. 2023, section 4.1 and appendix C.1: sparse repeating attention patterns."""

from dataclasses import replace

import numpy as np

from ...attention.attention_patterns import pattern_statistic
from ...attention.mean_attention import attention_maps
from ...engine.estimates import jackknifed, lower, minus, ratio_of_means, upper
from ...engine.results import expect_array, expect_variable
from ...plots.attention_plots import plot_attention_maps, plot_attention_patterns
from ...study.figure import Figure, each
from ...study.judge import finding
from ...study.measurement import statistic, task
from ..chapters import LOCALITY
from . import WALMER
from .section4_heads import mean_attention_of

MAPS = ("query", "layer", "layer_other")


def attention_patterns_of(model):
    """Repetition of sparse attention patterns over heads and layers."""
    return statistic("attention_patterns", model, model.require_attention(), pattern_statistic)


def cls_attention_of(model):
    """Mean attention of the CLS token, for a model that has one."""
    weights = mean_attention_of(model)
    return (
        task("cls_attention", model, attention_maps, inputs=(weights,))
        if model.grid.prefix
        else None
    )


@finding(
    "attention_patterns.{vit}",
    section="4.1",
    figure="2",
    unit="difference in repetition",
    above=0.0,
)
def patterns_repeat_cls(patterns):
    """In mid-to-late layers, CLS attention shows sparse patterns repeated over heads and layers.

    Similarity of the heads' attention maps of an image, weighted by their peaks, upper half minus
    lower.

    High where different heads attend to the same few tokens of an image. The value of a layer is
    its mean over the layers of its half, itself included. Threshold 0 (section 4.1, figure 2).

    Args:
        patterns: Dataset repetition(query, layer, layer_other).
    """
    return _patterns_repeat(patterns, "cls")


@finding(
    "attention_patterns.{vit}",
    section="4.1",
    figure="2",
    unit="difference in repetition",
    above=0.0,
)
def patterns_repeat_spatial(patterns):
    """In mid-to-late layers, attention of spatial tokens shows sparse repeating patterns too.

    Similarity of the heads' attention maps of an image, weighted by their peaks, upper half minus
    lower; mean over spatial queries.

    As `patterns_repeat_cls`.

    Args:
        patterns: as there.
    """
    return _patterns_repeat(patterns, "spatial")


def _patterns_repeat(patterns, query):
    repetition = of_query(expect_variable(patterns, "repetition", MAPS), query)
    places = np.arange(len(repetition))
    halves = [repetition[np.ix_(half, half)] for half in (upper(places), lower(places))]
    if any(np.isnan(half).all(axis=1).any() for half in halves):
        raise ValueError(
            "Expected two heads, or two layers in each half, to compare. "
            f"Received: {len(places)} layers of one head"
        )
    return minus(*map(_mean_repetition, halves))


def _mean_repetition(repetition):
    """Mean over pairs of layers that share layers: the jackknife leaves out one layer at a time."""

    def mean_of(values):
        return np.nanmean(np.nanmean(values, axis=1)) if np.isfinite(values).any() else np.nan

    layers = range(len(repetition))
    rest = [mean_of(np.delete(np.delete(repetition, at, 0), at, 1)) for at in layers]
    return jackknifed(mean_of(repetition), np.array(rest), "layers")


@finding(
    "attention_patterns.{vit} cls_attention.{vit}",
    section="C.1",
    figure="11",
    unit="ratio of peaks",
    below=0.5,
)
def patterns_vary(patterns, average):
    """The tokens that receive most attention in late layers vary with the image.

    Peak of the mean CLS attention divided by its mean peak per image, upper half: 1 if CLS attends
    to the same tokens in every image.

        mean over heads of peak(mean map) / mean over heads of mean(peak of an image's map)

    where peak = 1 - entropy / log(tokens). Threshold 1/2, midway between attention to the same
    tokens in every image (1) and to others in each (0; appendix C.1, figures 11 to 13).

    Args:
        patterns: Dataset peak(query, layer, head).
        average: the mean attention of CLS, of dims (layer, head, row, column), each of sum 1.
    """
    peaks = of_query(expect_variable(patterns, "peak", ("query", "layer", "head")), "cls")
    maps = expect_array(average, ("layer", "head", "row", "column")).values
    flat = maps.reshape(*maps.shape[:2], -1)
    logs = np.log(np.where(flat > 0, flat, 1))
    mean_peaks = 1 + (flat * logs).sum(axis=-1) / np.log(flat.shape[-1])
    pairs = np.stack([upper(mean_peaks).ravel(), upper(peaks).ravel()], axis=1)
    return ratio_of_means(pairs, "heads")


def of_query(result, query):
    """Values of one query."""
    names = [str(name) for name in result["query"].values]
    if query not in names:
        raise ValueError(f"Expected attention of query {query!r}. Received: {', '.join(names)}")
    return result.values[names.index(query)]


FIGURE_2 = Figure(
    paper=WALMER,
    numbers="2 11 12 13 17",
    chapter=LOCALITY,
    shows="sparse repeating attention patterns",
    models=each("vit", "gap"),
    measure=attention_patterns_of,
    draw=plot_attention_patterns,
    name="attention-patterns-{model}",
    call="analysis.attention_patterns({model}, images)",
    title="Sparse repeating attention patterns",
    caption="Each cell compares the heads of two layers on the same image: high where both "
    "attend to the same few tokens, for any query, low where attention is diffuse or differs. A "
    "bright block is a pattern that repeats over those layers; colours span the values.",
    findings=[patterns_repeat_cls, patterns_repeat_spatial],
)

FIGURE_11 = replace(
    FIGURE_2,
    measure=cls_attention_of,
    draw=plot_attention_maps,
    name="cls-attention-{model}",
    call="analysis.attention_maps(analysis.mean_attention({model}, images))",
    title="Mean CLS attention",
    caption="Each panel is a head: its attention to each position, averaged over images. A single "
    "bright spot is a position that it attends to in every image.",
    findings=[patterns_vary],
)
