"""Walmer et al. 2023, sections 4.2 and 4.3: kinds of heads, and how far they look."""

from dataclasses import replace
from functools import partial

import numpy as np

from ...attention.aligned_attention import aligned_attention, attention_offset, mean_distance
from ...attention.head_classes import head_classes
from ...attention.mean_attention import mean_attention_statistic
from ...engine.estimates import descriptive, lower, minus, share, upper, welch
from ...engine.results import expect_array, expect_variable
from ...plots.attention import (
    one_kind,
    plot_aligned_attention,
    plot_attention_offset,
    plot_head_classes,
    plot_mean_distance,
)
from ...study.figure import Figure, each, together
from ...study.judge import finding
from ...study.measurement import statistic, task
from ..chapters import LOCALITY
from . import WALMER

LOCAL = ("strict", "soft", "axial", "offset")


def mean_attention_of(model):
    """Attention maps averaged over images, which others follow from."""
    return statistic("mean_attention", model, model.require_attention(), mean_attention_statistic)


def aligned_attention_of(model):
    """Attention of every head by the offset of key from query."""
    return task("aligned_attention", model, aligned_attention, inputs=(mean_attention_of(model),))


def attention_offset_of(model):
    """Where every head looks from the query on average."""
    return task("attention_offset", model, attention_offset, inputs=(aligned_attention_of(model),))


def head_classes_of(model):
    """The kind of every attention head."""
    return task("head_classes", model, head_classes, inputs=(mean_attention_of(model),))


def unit_distance_of(model):
    """Reach of every attention head on a square of side 1, which compares grids."""
    make = partial(mean_distance, units="unit")
    return task("unit_distance", model, make, inputs=(mean_attention_of(model),))


@finding(
    "aligned_attention.{vit} head_classes.{vit}",
    section="4.2",
    figure="3",
    unit="one-sidedness",
    above=0.5,
)
def offset_heads(aligned, kinds):
    """The model has offset local heads, which look to one side of the query.

    One-sidedness of the most one-sided local head: 0 is evenly around, 1 to one side only.

    Against 1/2, midway (section 4.2, figure 3).

        1/2 sum over offsets d of |share(d) - share(-d)|

    of attention shares by offset. Attention that does not know of places has 0, however sharp. A
    head is local if its spread is at most half that of even attention; others count as 0, since one
    that looks at a fixed corner of the image is one-sided as well. Descriptive: the heads of one
    model do not show how uncertain their maximum is.

    Args:
        aligned: attention by offset, of dims (layer, head, row_offset, column_offset).
        kinds: Dataset relative_spread(layer, head).
    """
    dims = ("layer", "head", "row_offset", "column_offset")
    share = expect_array(aligned, dims).values
    share = share / share.sum(axis=(2, 3), keepdims=True)
    sided = abs(share - share[:, :, ::-1, ::-1]).sum(axis=(2, 3)) / 2
    spread = expect_variable(kinds, "relative_spread", ("layer", "head")).values
    return descriptive(np.where(spread <= 0.5, sided, 0).max(), "a maximum over heads")


@finding("head_classes.{vit}", section="C.1", figure="18", unit="difference in share", above=0)
def offset_heads_early(kinds):
    """In supervised ViTs, offset heads are in the early layers.

    Share of offset heads, lower half minus upper.

    Against 0 (appendix C.1, figure 18).

    Args:
        kinds: Dataset of strings kind(layer, head).
    """
    offset = expect_variable(kinds, "kind", ("layer", "head")).values == "offset"
    halves = (half(offset) for half in (lower, upper))
    return minus(*(share(half.sum(), half.size, "heads") for half in halves))


@finding("head_classes.{vit}", section="4.2", figure="3", unit="number of kinds", above=1.5)
def local_kinds(kinds):
    """There are several kinds of local heads: strict, soft, axial and offset.

    Number of these kinds among the heads; the line is midway between one and two.

    Of strict, soft, axial and offset heads (section 4.2, figure 3). Descriptive: heads that were
    not drawn may be of further kinds.

    Args:
        kinds: as in `offset_heads_early`.
    """
    found = expect_variable(kinds, "kind", ("layer", "head")).values
    return descriptive(np.isin(LOCAL, found).sum(), "a number of kinds among the heads")


@finding("head_classes.{vit}", section="4.3", figure="4", unit="share of layers", above=0.5)
def layers_mix(kinds):
    """Most layers have both local and global heads.

    Share of the layers with heads of both kinds.

    Local and global ones; against 1/2, most (section 4.3, figure 4).

    Args:
        kinds: as in `offset_heads_early`.
    """
    found = expect_variable(kinds, "kind", ("layer", "head")).values
    mixed = np.isin(found, LOCAL).any(axis=1) & (found == "global").any(axis=1)
    return share(mixed.sum(), len(mixed), "layers")


@finding("unit_distance.{vit}", section="4.3", figure="4", unit="difference in distance", below=0)
def distance_dips(distance):
    """Heads look less far around layers 3 to 6 of 12 than in the first two.

    Attention distance on a square of side 1, layers 3 to 6 of 12 minus the first two.

    Against 0 (section 4.3, figure 4); of other depths the layers whose middle lies in the same
    share of it.

    Args:
        distance: attention distance of dims (layer, head).
    """
    first, third, _ = phases(expect_array(distance, ("layer", "head")).values)
    return welch(third.ravel(), first.ravel(), "heads")


@finding("unit_distance.{vit}", section="4.3", figure="4", unit="difference in distance", above=0)
def distance_rises(distance):
    """In the later layers of supervised ViTs, heads look further again.

    Attention distance on a square of side 1, upper half minus layers 3 to 6 of 12.

    Against 0 (section 4.3, figure 4); layers as in `distance_dips`.

    Args:
        distance: as in `distance_dips`.
    """
    _, third, late = phases(expect_array(distance, ("layer", "head")).values)
    return welch(late.ravel(), third.ravel(), "heads")


def phases(values):
    """Layers along the first axis: the first two of 12, the next four, and the upper half."""
    middles, count = 2 * np.arange(len(values)) + 1, len(values)  # in half layers
    first, early = 3 * middles < count, middles < count
    if count < 4:
        raise ValueError(f"Expected at least 4 layers. Received: {count}")
    return values[first], values[early & ~first], values[~early]


SHOWS = "attention by offset from the query, and kinds of heads"

FIGURE_3 = Figure(
    paper=WALMER,
    numbers="3 14 18",
    chapter=LOCALITY,
    shows=SHOWS,
    models=each("vit", "gap"),
    measure=aligned_attention_of,
    draw=plot_aligned_attention,
    name="aligned-attention-{model}",
    title="Where the heads of {model} look from their queries",
    caption="Each panel is a head, and its centre the query's own place: what is bright to the "
    "left of it is attended to by tokens to its right. A bright point beside the centre "
    "is an offset head, a bright line an axial one.",
    findings=[offset_heads],
)

FIGURE_14 = replace(
    FIGURE_3,
    measure=attention_offset_of,
    draw=plot_attention_offset,
    name="attention-offset-{model}",
    title="Mean offset of the heads of {model}",
    caption="Each point is a head and shows how far, and in which direction, it looks from the "
    "query on average: heads at the centre look evenly around it.",
    findings=(),
)

FIGURE_18 = replace(
    FIGURE_3,
    measure=head_classes_of,
    draw=plot_head_classes,
    instead=one_kind,
    name="head-kinds-{model}",
    title="Kinds of attention heads of {model}",
    caption="Each cell is a head, named by where it looks: at its own token (strict), around it "
    "(soft), along a row or column (axial), at a neighbour in one direction (offset) or "
    "everywhere (global).",
    findings=[local_kinds, layers_mix, offset_heads_early],
)

FIGURE_4 = Figure(
    paper=WALMER,
    numbers="4 15",
    also="V.7",
    chapter=LOCALITY,
    shows="distance of attention heads through the depth",
    models=together("vit", "gap"),
    measure=unit_distance_of,
    draw=plot_mean_distance,
    name="attention-distance-depth",
    title="Attention distance through the depth",
    caption="Each point is a head, and each line the mean of a layer's heads, in sides of the "
    "token grid: points that spread from bottom to top are a layer of local and global "
    "heads.",
    findings=[distance_dips, distance_rises],
)
