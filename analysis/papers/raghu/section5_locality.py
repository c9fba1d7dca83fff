"""Raghu et al. 2021, section 5 and appendix C: how far does a layer look?"""

import numpy as np

from ...attention.attention import attention_statistic
from ...engine.estimates import descriptive, ratio_of_spreads, share, student
from ...engine.intervals import rank_correlation
from ...engine.results import expect_array, expect_variable
from ...plots.attention import plot_attention_distance
from ...plots.interactive import distance_lines
from ...plots.localization import plot_head_similarity
from ...similarity.heads import head_statistic
from ...study.figure import Figure, pairs, together
from ...study.judge import finding
from ...study.measurement import quantity, statistic
from ..chapters import LOCALITY
from . import RAGHU

FIRST_HEADS = ("block00/attention/weights", "block00/attention/heads")


def attention_distance_of(model):
    """Reach of every attention head."""
    return statistic("attention_distance", model, model.require_attention(), attention_statistic)


def head_similarity_of(one, other):
    """Similarity of growing sets of heads of the first block and another model's lower half."""
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
    """Heads of the first block are a mix of local and global, those of the last are not.

    Spread of the heads' distances, first block over last.

    The standard deviation of the heads' distances. Against 1: the first block is as mixed as the
    last (section 5, figure 3).

    Args:
        distance: attention distance of dims (layer, head), with its grid in the attributes.
    """
    heads = relative_distance(distance)
    return ratio_of_spreads(heads[0], heads[-1], "heads")


@finding("attention_distance.{vit}", section="5", figure="3", unit="share of heads", above=0.5)
def last_block_global(distance):
    """Most heads of the last block are global.

    Share of the last block's heads whose distance is at least half that of uniform attention.

    Against 1/2, most. Half of uniform attention is midway between a head that attends to its own
    position only and one that attends to all alike (section 5, figure 3). The paper finds all heads
    global, which a sample of heads cannot show.

    Args:
        distance: as in `first_block_mixes`.
    """
    heads = relative_distance(distance)[-1]
    return share(np.sum(heads >= 0.5), len(heads), "heads")


@quantity("attention_distance.{model}", unit="of even attention")
def early_reach(distance):
    """Reach of attention in the first block.

    Mean over the heads of the distance that they look at, in units of a head that attends evenly.
    """
    return student(relative_distance(distance)[0], "heads")


@quantity("attention_distance.{model}", unit="of even attention")
def last_reach(distance):
    """Reach of attention in the last block.

    As in the first.
    """
    return student(relative_distance(distance)[-1], "heads")


@finding(
    "head_similarity.{vit}.{resnet}", section="5", figure="5", unit="rank correlation", below=0.0
)
def local_heads_resemble(subsets):
    """The more global a set of first-block heads, the less it resembles low ResNet layers.

    Rank correlation of a head subset's mean distance and its CKA to low ResNet layers.

    Spearman's, over all subsets of all orders, with CKA averaged over the layers; against 0, no
    relation (section 5, figure 5). Descriptive: the subsets share heads, so that they are no
    independent units, and one model has one such set of subsets.

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
    """Distances of shape (layer, head) in units of that of a head that attends evenly."""
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


FIGURE_3 = Figure(
    paper=RAGHU,
    numbers="3 4 C.5 C.6",
    chapter=LOCALITY,
    shows="mean distance of attention heads",
    models=together("vit", "gap", "fraction"),
    measure=attention_distance_of,
    draw=plot_attention_distance,
    interactive=distance_lines,
    name="attention-distance",
    title="Mean distance of attention heads",
    caption="Each line is a layer and each point a head, sorted by how far from the query it "
    "attends on average: a low left end is a local head, and a flat line is a layer whose "
    "heads all look equally far.",
    findings=[first_block_mixes, last_block_global],
    quantities=[early_reach, last_reach],
)

FIGURE_5 = Figure(
    paper=RAGHU,
    numbers="5",
    chapter=LOCALITY,
    shows="similarity of growing sets of heads and a ResNet's lower layers",
    models=pairs(("vit", "gap"), ("resnet",), ordered=True),
    measure=head_similarity_of,
    draw=plot_head_similarity,
    name="head-similarity-{model}-{other}",
    title="Heads of {model} beside lower layers of {other}",
    caption="Each point is a subset of the heads of block 0, taken from the most local or from "
    "the most global one on: a line that falls to the right says that the more global "
    "heads find features which the convolutions do not have.",
    findings=[local_heads_resemble],
)
