"""Walmer et al. 2023, sections 4.2 and 4.3: types of heads, and attention distance."""

from dataclasses import replace
from functools import partial

import numpy as np

from ...attention.mean_attention import (
    aligned_attention,
    attention_offset,
    head_classes,
    mean_attention_statistic,
    mean_distance,
)
from ...engine.estimates import descriptive, lower, minus, share, upper, welch
from ...engine.results import expect_array, expect_variable
from ...plots.attention_plots import (
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
    """Mean attention offset of every head."""
    return task("attention_offset", model, attention_offset, inputs=(aligned_attention_of(model),))


def head_classes_of(model):
    """The type of every attention head."""
    return task("head_classes", model, head_classes, inputs=(mean_attention_of(model),))


def unit_distance_of(model):
    """Attention distance of every head on a unit square, which compares grids."""
    make = partial(mean_distance, units="unit")
    return task("unit_distance", model, make, inputs=(mean_attention_of(model),))


@finding(
    "aligned_attention.{vit} head_classes.{vit}",
    section="4.2",
    figure="3",
    unit="asymmetry",
    above=0.5,
)
def offset_heads(aligned, kinds):
    """There are offset local attention heads, which attend to one side of the query.

    Asymmetry of the most asymmetric local head: 0 is symmetric around the query, 1 one-sided.

    Threshold 1/2, midway (section 4.2, figure 3).

        1/2 sum over offsets d of |share(d) - share(-d)|

    of attention shares by offset. Attention that does not depend on position has 0, however sharp.
    A head is local if its spread is at most half that of uniform attention; others count as 0, as
    one that attends to a fixed corner of the image is one-sided as well. Descriptive: the heads of
    one model do not show the uncertainty of their maximum.

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

    Threshold 0 (appendix C.1, figure 18).

    Args:
        kinds: Dataset of strings kind(layer, head).
    """
    offset = expect_variable(kinds, "kind", ("layer", "head")).values == "offset"
    halves = (half(offset) for half in (lower, upper))
    return minus(*(share(half.sum(), half.size, "heads") for half in halves))


@finding("head_classes.{vit}", section="4.2", figure="3", unit="number of types", above=1.5)
def local_kinds(kinds):
    """There are several types of local heads: strict, soft, axial and offset.

    Number of these types among the heads; the threshold is midway between one and two.

    Section 4.2, figure 3. Descriptive: heads that were not sampled may be of further types.

    Args:
        kinds: as in `offset_heads_early`.
    """
    found = expect_variable(kinds, "kind", ("layer", "head")).values
    return descriptive(np.isin(LOCAL, found).sum(), "a number of types among the heads")


@finding("head_classes.{vit}", section="4.3", figure="4", unit="share of layers", above=0.5)
def layers_mix(kinds):
    """Most layers have both local and global heads.

    Share of layers with heads of both types.

    Threshold 1/2, most (section 4.3, figure 4).

    Args:
        kinds: as in `offset_heads_early`.
    """
    found = expect_variable(kinds, "kind", ("layer", "head")).values
    mixed = np.isin(found, LOCAL).any(axis=1) & (found == "global").any(axis=1)
    return share(mixed.sum(), len(mixed), "layers")


@finding("unit_distance.{vit}", section="4.3", figure="4", unit="difference in distance", below=0)
def distance_dips(distance):
    """Attention distance dips around layers 3 to 6 of 12, compared with the first two.

    Attention distance on a unit square, layers 3 to 6 of 12 minus the first two.

    Threshold 0 (section 4.3, figure 4); for other depths, layers at the same relative depth.

    Args:
        distance: attention distance of dims (layer, head).
    """
    first, third, _ = phases(expect_array(distance, ("layer", "head")).values)
    return welch(third.ravel(), first.ravel(), "heads")


@finding("unit_distance.{vit}", section="4.3", figure="4", unit="difference in distance", above=0)
def distance_rises(distance):
    """In the later layers of supervised ViTs, attention distance increases again.

    Attention distance on a unit square, upper half minus layers 3 to 6 of 12.

    Threshold 0 (section 4.3, figure 4); layers as in `distance_dips`.

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


SHOWS = "attention by offset from the query, and types of heads"

FIGURE_3 = Figure(
    paper=WALMER,
    numbers="3 14 18",
    chapter=LOCALITY,
    shows=SHOWS,
    models=each("vit", "gap"),
    measure=aligned_attention_of,
    draw=plot_aligned_attention,
    name="aligned-attention-{model}",
    call="analysis.aligned_attention(analysis.mean_attention({model}, images))",
    title="Attention by offset from the query",
    caption="Each panel is a head: attention by the offset of the key from the query, which is at "
    "the centre. A bright point next to the centre is an offset head, a bright line an axial "
    "head.",
    findings=[offset_heads],
)

FIGURE_14 = replace(
    FIGURE_3,
    measure=attention_offset_of,
    draw=plot_attention_offset,
    name="attention-offset-{model}",
    call="analysis.attention_offset(analysis.aligned_attention("
    "analysis.mean_attention({model}, images)))",
    title="Mean attention offset of heads",
    caption="Each point is the mean offset of a head's attention from the query. Heads at the "
    "centre attend symmetrically around it.",
    findings=(),
)

FIGURE_18 = replace(
    FIGURE_3,
    measure=head_classes_of,
    draw=plot_head_classes,
    instead=one_kind,
    name="head-kinds-{model}",
    call="analysis.head_classes(analysis.mean_attention({model}, images))",
    title="Attention head types",
    caption="Each cell is a head, classified by its attention: to its own token (strict), around "
    "it (soft), along a row or column (axial), to a neighbour in one direction (offset) or to "
    "the whole image (global).",
    findings=[local_kinds, layers_mix, offset_heads_early],
)

FIGURE_4 = Figure(
    paper=WALMER,
    numbers="4 15",
    also="V.7",
    chapter=LOCALITY,
    shows="attention distance by layer",
    models=together("vit", "gap"),
    measure=unit_distance_of,
    draw=plot_mean_distance,
    name="attention-distance-depth",
    call='analysis.mean_distance(analysis.mean_attention({model}, images), units="unit")',
    title="Attention distance by layer",
    caption="Mean attention distance in sides of the token grid: points are heads, lines are means "
    "over the heads of a layer. Widely spread points are a layer with local and global heads.",
    findings=[distance_dips, distance_rises],
)
