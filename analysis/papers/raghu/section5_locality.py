"""Raghu et al. 2021, section 5 and appendix C: how far does a layer look?"""

from dataclasses import replace

import numpy as np

from ...attention.attention import attention_statistic
from ...engine.estimates import bootstrap, lower, rank_correlation
from ...engine.results import expect_array, expect_variable, layer_names
from ...flow.receptive_field import receptive_field
from ...plots.flow import plot_receptive_field
from ...plots.interactive import distance_lines
from ...plots.lines import plot_attention_distances
from ...plots.localization import plot_head_similarity
from ...similarity.heads import head_statistic
from ...study.figure import Figure, each, pairs, together
from ...study.judge import finding
from ...study.measurement import DATA, statistic, task
from ...study.models import MOST_PANELS, spread
from ..chapters import LOCALITY
from . import RAGHU

# Sampled for each receptive field: all of a wide layer's channels cost a gradient each.
CHANNELS = 16
FIRST_HEADS = ("block00/attention/weights", "block00/attention/heads")


def attention_distance_of(model):
    """Reach of every attention head."""
    weights = model.weights or model.lacks("attention weights")
    model.require_grid()
    return statistic("attention_distance", model, weights, attention_statistic)


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


def field_taps(model, path):
    """The taps with a place after each sum, or before it, of each `"branch"`.

    Of a model whose blocks are not known, some layers through its depth.
    """
    if path == "sum" and not model.has_sums:
        return spread(model.with_places(model.blocks), MOST_PANELS)
    return model.with_places([tap for tap in model.taps if tap.endswith(f"/{path}")])


def fields_of(model):
    """Effective receptive fields of all of these taps, which others are parts of."""
    taps = dict.fromkeys([*field_taps(model, "sum"), *field_taps(model, "branch")])

    def make(data):
        features = model.features(*taps)
        return receptive_field(features, data.few, channels=CHANNELS, grid=model.grid)

    return task("receptive_fields", model, make, reads="few", inputs=(DATA,), kept=False)


def receptive_field_of(model):
    """Effective receptive fields after each sum."""
    taps = field_taps(model, "sum") or model.lacks("maps, and no tokens whose grid is known")
    return _part(model, "receptive_field", taps)


def branch_field_of(model):
    """Effective receptive fields before each sum."""
    taps = field_taps(model, "branch") or model.lacks(
        "branches with a place that are known apart from their skips"
    )
    return _part(model, "receptive_field_branch", taps)


def _part(model, analysis, taps):
    return task(
        analysis, model, lambda fields: fields.sel(layer=list(taps)), inputs=(fields_of(model),)
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


@finding(
    "receptive_field.{vit} receptive_field.{resnet}",
    section="5",
    figure="6",
    unit="difference in extent",
    above=0.0,
)
def early_fields(vit, resnet):
    """Early receptive fields are larger in the ViT than in the ResNet.

    Extent of the receptive fields of the lower half, ViT minus ResNet, in units of an even
    field.

    The extent is the standard deviation of a pixel's place, weighted by the field, in units of
    that of a field that covers the image evenly. Against 0 (section 5, figure 6).

    Args:
        vit, resnet: receptive fields after the sums, of dims (layer, row, column).
    """
    fields = [lower(extent(field)) for field in (vit, resnet)]
    return bootstrap(lambda x, y: x.mean() - y.mean(), *fields, over="layers")


@finding(
    "receptive_field_branch.{vit} receptive_field.{vit} attention_distance.{vit}",
    section="5 and C",
    figure="C.4",
    unit="difference in share",
    below=0.0,
)
def branch_fields(branch, total, distance):
    """Before the sum with the skip, attention depends less on its own patch than after it.

    Share of the own patch in the receptive field, attention branch minus sum.

    Of the centre patch. Against 0: the branch depends as much on its own patch as what it is added
    to (appendix C, C.4).

    Args:
        branch, total: receptive fields of dims (layer, row, column), of taps
            "site/attention/branch" and "site/attention/sum".
        distance: attention distance of the model, with the side of a patch in its attribute
            `stride`.
    """
    patch = int(distance.attrs["stride"])
    shares = [_centre_shares(field, patch) for field in (branch, total)]
    sites = [site for site in shares[0] if site in shares[1]]
    if not sites:
        raise ValueError(
            "Expected fields of attention branches and of their sums. "
            f"Received: {layer_names(branch)[:3]} and {layer_names(total)[:3]}"
        )
    gaps = np.array([shares[0][site] - shares[1][site] for site in sites])
    return bootstrap(np.mean, gaps, over="attention sublayers")


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


def extent(field):
    """Standard deviation of place in each field, in units of that of an even field."""
    fields = expect_array(field, ("layer", "row", "column")).values
    weights = fields / fields.sum(axis=(1, 2), keepdims=True)
    variance, even = 0.0, 0.0
    for axis in (1, 2):
        place = np.arange(fields.shape[axis])
        margin = weights.sum(axis=3 - axis)
        offset = place - (margin @ place)[:, None]
        variance = variance + (margin * offset**2).sum(axis=1)
        even += place.var()
    return np.sqrt(variance / even)


def _centre_shares(field, patch):
    """Share of the centre patch in each field of an attention sublayer: dict from site to it."""
    fields = expect_array(field, ("layer", "row", "column"))
    row, column = (size // patch // 2 * patch for size in fields.shape[1:])
    centre = fields.values[:, row : row + patch, column : column + patch].sum(axis=(1, 2))
    shares = centre / fields.values.sum(axis=(1, 2))
    sites = [name.rpartition("/")[0] for name in layer_names(fields)]
    named = zip(sites, shares, strict=True)
    return {site: share for site, share in named if site.endswith("attention")}


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


def fields_title(model):
    """The title of `FIGURE_6`, which is of layers where sums are not known."""
    known = " after the sums" if model.has_sums else ""
    return f"Effective receptive fields of {{model}}{known}"


def fields_caption(models, results):
    """The caption of `FIGURE_6`."""
    sums = all(layer.endswith("/sum") for r in results.values() for layer in layer_names(r))
    known = ", after its skip and branch are summed" if sums else ""
    return (
        f"Bright pixels are those that move the centre of the layer most{known}: fields that "
        "fill the panel are global."
    )


FIGURE_6 = Figure(
    paper=RAGHU,
    numbers="6 C.1 C.2 C.3",
    chapter=LOCALITY,
    shows="effective receptive fields after the sums",
    models=each("vit", "gap", "resnet"),
    measure=receptive_field_of,
    draw=plot_receptive_field,
    name="receptive-field-{model}",
    title=fields_title,
    caption=fields_caption,
    findings=[early_fields],
)

FIGURE_C4 = replace(
    FIGURE_6,
    numbers="C.4",
    shows="effective receptive fields before the sums",
    measure=branch_field_of,
    name="receptive-field-branch-{model}",
    title="Effective receptive fields of {model} before the sums",
    caption="Bright pixels are those that move the centre of the layer most, before its branch is "
    "added to its skip: where the own patch is no longer the brightest, it was the skip that kept "
    "it so.",
    findings=[branch_fields],
)
