"""Raghu et al. 2021, section 5 and appendix C: how far does a layer look?"""

import numpy as np

from ...attention.attention import attention_statistic
from ...engine.estimates import bootstrap, rank_correlation
from ...engine.results import expect_array, expect_variable
from ...plots.interactive import distance_lines
from ...plots.lines import plot_attention_distances
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


@finding(
    "attention_distance.{vit}", section="5", figure="3", unit="difference in spread", above=0.0
)
def first_block_mixes(distance):
    """Heads of the first block are a mix of local and global, those of the last are not.

    Spread of the heads' distances, first block minus last, in units of even attention.

    The standard deviation of the heads' distances, in units of the distance of a head that attends
    evenly. Against 0: the first block is as mixed as the last (section 5, figure 3).

    Args:
        distance: attention distance of dims (layer, head), with its grid in the attributes.
    """
    heads = relative_distance(distance)
    return bootstrap(lambda x, y: x.std() - y.std(), heads[0], heads[-1], over="heads")


@finding("attention_distance.{vit}", section="5", figure="3", unit="relative distance", above=0.5)
def last_block_global(distance):
    """All heads of the last block are global.

    Distance of the last block's most local head, in units of even attention.

    Against 1/2, midway between a head that looks only at its own place and one that looks
    everywhere alike (section 5, figure 3).

    Args:
        distance: as in `first_block_mixes`.
    """
    return bootstrap(np.min, relative_distance(distance)[-1], over="heads")


@quantity("attention_distance.{model}", unit="of even attention")
def early_reach(distance):
    """Reach of attention in the first block.

    Mean over the heads of the distance that they look at, in units of a head that attends evenly.
    """
    return bootstrap(np.mean, relative_distance(distance)[0], over="heads")


@quantity("attention_distance.{model}", unit="of even attention")
def last_reach(distance):
    """Reach of attention in the last block.

    As in the first.
    """
    return bootstrap(np.mean, relative_distance(distance)[-1], over="heads")


@finding(
    "head_similarity.{vit}.{resnet}", section="5", figure="5", unit="rank correlation", below=0.0
)
def local_heads_resemble(subsets):
    """The more global a set of first-block heads, the less it resembles low ResNet layers.

    Rank correlation of a head subset's mean distance and its CKA to low ResNet layers.

    Spearman's, over all subsets of all orders, with CKA averaged over the layers; against 0, no
    relation (section 5, figure 5). Subsets share heads, so that the
    bootstrap over them is narrower than one over independent models.

    Args:
        subsets: Dataset cka(order, subset, layer), of layers in the ResNet's lower half, and
            distance(order, subset).
    """
    cka = expect_variable(subsets, "cka", ("layer", "order", "subset")).values
    distance = expect_variable(subsets, "distance", ("order", "subset")).values
    both = np.stack([distance.ravel(), cka.mean(axis=0).ravel()], axis=1)
    both = both[np.isfinite(both).all(axis=1)]
    return bootstrap(rank_correlation, both, over="head subsets")


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
    draw=plot_attention_distances,
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
