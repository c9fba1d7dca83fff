"""Raghu et al. 2021, section 5 and appendix C: attention distance and local heads."""

import numpy as np

from ...attention.attention_distance import attention_statistic
from ...engine.estimates import descriptive, rank_correlation, ratio_of_spreads, share, student
from ...engine.results import expect_array, expect_variable
from ...plots.attention_plots import plot_attention_distance
from ...plots.interactive import distance_lines
from ...plots.similarity_plots import plot_head_similarity
from ...similarity.heads import head_statistic
from ...study.figure import Figure, Overview, pairs, together
from ...study.judge import finding
from ...study.measurement import quantity, statistic
from ..chapters import LOCALITY
from . import RAGHU

FIRST_HEADS = ("block00/attention/weights", "block00/attention/heads")


def attention_distance_of(model):
    """Attention distance of every head."""
    return statistic("attention_distance", model, model.require_attention(), attention_statistic)


def head_similarity_of(one, other):
    """Similarity of subsets of first-block heads and the lower half of another model."""
    if not set(FIRST_HEADS) <= set(one.taps):
        one.lacks(" and no ".join(FIRST_HEADS))
    one.require_grid()
    if not other.has_maps:
        other.lacks("maps of convolutions")
    taps = (FIRST_HEADS, other.blocks[: (len(other.blocks) + 1) // 2])
    return statistic(
        "head_similarity", (one, other), taps, lambda *both: head_statistic(*both, block="block00")
    )


@finding("attention_distance.{vit}", section="5", figure="3", unit="ratio of spreads", above=1.0)
def first_block_mixes(distance):
    """The first block has both local and global heads, the last block global ones only.

    Standard deviation of attention distance over heads, first block divided by last.

    Threshold 1: the first block is as mixed as the last (section 5, figure 3).

    Args:
        distance: attention distance of dims (layer, head), with its grid in the attributes.
    """
    heads = relative_distance(distance)
    return ratio_of_spreads(heads[0], heads[-1], "heads")


@finding("attention_distance.{vit}", section="5", figure="3", unit="share of heads", above=0.5)
def last_block_global(distance):
    """Most heads of the last block are global.

    Share of the last block's heads with an attention distance of at least half that of uniform
    attention.

    Threshold 1/2, most. Half of uniform attention is midway between a head that attends to its own
    position only and one that attends uniformly (section 5, figure 3). The paper finds all heads
    global, which a sample of heads cannot show.

    Args:
        distance: as in `first_block_mixes`.
    """
    heads = relative_distance(distance)[-1]
    return share(np.sum(heads >= 0.5), len(heads), "heads")


@quantity(
    "attention_distance.{model}",
    unit="relative to uniform attention",
    more="attends more globally in its first block",
)
def early_reach(distance):
    """Attention distance in the first block.

    Mean attention distance over heads, divided by that of uniform attention.
    """
    return student(relative_distance(distance)[0], "heads")


@quantity(
    "attention_distance.{model}",
    unit="relative to uniform attention",
    more="attends more globally in its last block",
)
def last_reach(distance):
    """Attention distance in the last block.

    Mean attention distance over heads, divided by that of uniform attention.
    """
    return student(relative_distance(distance)[-1], "heads")


@finding(
    "head_similarity.{vit}.{resnet}", section="5", figure="5", unit="rank correlation", below=0.0
)
def local_heads_resemble(subsets):
    """More global subsets of first-block heads are less similar to lower ResNet layers.

    Rank correlation of a head subset's mean attention distance and its CKA with lower ResNet
    layers.

    Spearman's, over all subsets of all orders, with CKA averaged over the layers; threshold 0, no
    relation (section 5, figure 5). Descriptive: the subsets share heads and are not independent,
    and one model has one such set of subsets.

    Args:
        subsets: Dataset cka(order, subset, layer), of layers in the ResNet's lower half, and
            distance(order, subset).
    """
    cka = expect_variable(subsets, "cka", ("layer", "order", "subset")).values
    distance = expect_variable(subsets, "distance", ("order", "subset")).values
    both = np.stack([distance.ravel(), cka.mean(axis=0).ravel()], axis=1)
    both = both[np.isfinite(both).all(axis=1)]
    return descriptive(rank_correlation(both), "subsets that share heads are not independent")


def relative_distance(distance):
    """Attention distances of shape (layer, head) relative to uniform attention."""
    heads = expect_array(distance, ("layer", "head"))
    missing = {"rows", "columns", "stride"} - set(distance.attrs)
    if missing:
        raise ValueError(
            f"Expected the grid in the attributes. Received: none of {sorted(missing)}"
        )
    shape = distance.attrs["rows"], distance.attrs["columns"]
    places = np.indices(shape).reshape(2, -1)
    even = np.hypot(*(places[:, :, None] - places[:, None, :])).mean() * distance.attrs["stride"]
    return heads.values / even


def distance_by_layer(distance):
    """Mean attention distance over heads relative to uniform attention, of shape (layer,)."""
    return relative_distance(distance).mean(axis=1)


FIGURE_3 = Figure(
    paper=RAGHU,
    numbers="3 4 C.5 C.6",
    chapter=LOCALITY,
    shows="attention distance of heads",
    models=together("vit", "gap", "fraction"),
    measure=attention_distance_of,
    draw=plot_attention_distance,
    interactive=distance_lines,
    name="attention-distance",
    call="analysis.attention_distance({model}, images)",
    title="Attention distance of heads",
    caption="Mean attention distance of each head, sorted within its layer; each line is a layer. "
    "Low points are local heads; a flat line is a layer whose heads have equal distances.",
    findings=[first_block_mixes, last_block_global],
    quantities=[early_reach, last_reach],
    overview=Overview("Attention distance", distance_by_layer, "relative to uniform"),
)

FIGURE_5 = Figure(
    paper=RAGHU,
    numbers="5",
    chapter=LOCALITY,
    shows="CKA between subsets of heads and the lower layers of a ResNet",
    models=pairs(("vit", "gap"), ("resnet",), ordered=True),
    measure=head_similarity_of,
    draw=plot_head_similarity,
    name="head-similarity-{model}-{other}",
    call="analysis.head_similarity({model}, {other}, images)",
    title="CKA between heads and lower layers of another model",
    caption="Each point is a subset of the heads of block 0, added from the most local or from the "
    "most global on: its mean attention distance and its CKA. Where a line falls to the right, "
    "global heads compute features that the convolutions lack.",
    findings=[local_heads_resemble],
)
