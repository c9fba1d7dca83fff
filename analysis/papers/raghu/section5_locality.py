"""Raghu et al. 2021, section 5 and appendix C: attention distance and receptive fields."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import xarray as xr

from vit_tf.features.structure import has_tap_grammar

from ...flow.receptive_field import receptive_field, select_fields
from ...heads.attention_distance import attention_distance
from ...plots.attention_plots import plot_attention_distance
from ...plots.flow_plots import plot_receptive_field
from ...plots.interactive import distance_lines
from ...plots.similarity_plots import plot_head_similarity
from ...similarity.heads import head_similarity
from ..chapters import LOCALITY
from ..vocabulary import (
    COPY_BATCHES,
    DATA,
    Data,
    Estimate,
    Figure,
    Measurement,
    Overview,
    SharedPass,
    StudyModel,
    between,
    claim,
    descriptive,
    each,
    estimate_over_batches,
    expect_array,
    expect_variable,
    layer_names,
    lower,
    minus,
    pairs,
    quantity,
    rank_correlation,
    statistic,
    task,
    together,
    upper,
)
from . import RAGHU


def attention_distance_of(model: StudyModel) -> SharedPass:
    """Attention distance of every head."""
    return statistic(attention_distance, model, model.require_attention())


def head_similarity_of(vit: StudyModel, other: StudyModel) -> SharedPass:
    """Similarity of subsets of first-block heads and the lower half of another model."""
    heads = vit.layers("block_heads")
    vit.require_grid()
    other.require(other.has_maps, "maps of convolutions")
    taps = (heads, other.layers("representations", "lower"))
    return statistic(head_similarity, (vit, other), taps, detail="lower")


@claim(
    "attention_distance.{vit}",
    "section 5, Figure 3",
    "difference in relative distance",
    effect="above",
    least=0.05,
)
def first_block_mixes(distance: xr.DataArray) -> Estimate:
    """The lowest layer has both local and global heads, and the highest layer only global heads.

    Range of attention distance over the heads of a block, from the most local to the most global
    head and relative to uniform attention: the range of the first block minus that of the last.
    """
    return _over_distances(lambda heads: np.ptp(heads[0]) - np.ptp(heads[-1]), distance)


@claim(
    "attention_distance.{vit}",
    "section 5, Figure 3",
    "difference in relative distance",
    effect="above",
    least=0.05,
)
def last_block_global(distance: xr.DataArray) -> Estimate:
    """At the highest layers all heads are global; some heads of the lowest layers are local.

    Attention distance of the most local head, relative to uniform attention: the value for the last
    block minus the value for the first block.
    """
    return _over_distances(lambda heads: heads[-1].min() - heads[0].min(), distance)


@claim(
    "attention_distance.{fraction} attention_distance.{vit}",
    "section 5, Figure 4",
    "difference in relative distance",
    effect="above",
    least=0.05,
    beyond_untrained=False,
    least_images=1_000_000,
)
def less_data_less_local(less: xr.DataArray, complete: xr.DataArray) -> Estimate:
    """With less training data, lower attention layers do not learn to attend locally.

    Attention distance of the most local head, relative to uniform attention, averaged over the
    layers of the lower half: the value for the model trained on the smallest fraction of the data
    minus the value for the model trained on all data.

    The paper compares models trained on 1.3 million and on 300 million images.
    """

    def most_local(heads: np.ndarray) -> float:
        return lower(heads).min(axis=1).mean()

    return between(*(_over_distances(most_local, result) for result in (less, complete)))


def _over_distances(statistic: Callable[[np.ndarray], float], distance: xr.DataArray) -> Estimate:
    """A number that is computed from relative attention distances (layer, head)."""
    uniform = uniform_distance(distance)
    return estimate_over_batches(lambda heads: statistic(heads / uniform), distance)


LOCAL = ("strict", "soft", "axial", "offset")  # the types of local heads of `head_classes`


def local_and_global(kinds: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Which heads are local and which are global, of a result of `head_classes`: (layer, head)."""
    kinds_of_heads = expect_variable(kinds, "kind", ("layer", "head")).values
    return np.isin(kinds_of_heads, LOCAL), kinds_of_heads == "global"


@quantity(
    "attention_distance.{model}",
    unit="relative to uniform attention",
    more="attends more globally in its first block",
)
def early_reach(distance: xr.DataArray) -> Estimate:
    """Attention distance in the first block.

    Mean attention distance over heads, divided by the distance of uniform attention.
    """
    return _over_distances(lambda heads: heads[0].mean(), distance)


@quantity(
    "attention_distance.{model}",
    unit="relative to uniform attention",
    more="attends more globally in its last block",
)
def last_reach(distance: xr.DataArray) -> Estimate:
    """Attention distance in the last block.

    Mean attention distance over heads, divided by the distance of uniform attention.
    """
    return _over_distances(lambda heads: heads[-1].mean(), distance)


@claim(
    "head_similarity.{vit}.{resnet}",
    "section 5, Figure 5",
    "rank correlation",
    effect=-1,
    least=0.2,
)
def local_heads_resemble(subsets: xr.Dataset) -> Estimate:
    """First-block heads that attend more globally are less similar to lower ResNet layers.

    Rank correlation, over subsets of the heads of the first block, between the mean attention
    distance of a subset and the CKA between this subset and lower ResNet layers.

    The correlation is Spearman's, and CKA is averaged over the ResNet layers. In the paper, the
    similarity falls monotonically, which is a correlation of -1.
    """
    cka = expect_variable(subsets, "cka", ("layer", "order", "subset")).values
    reach = expect_variable(subsets, "distance", ("order", "subset")).values
    both = np.stack([reach.ravel(), cka.mean(axis=0).ravel()], axis=1)
    both = both[np.isfinite(both).all(axis=1)]
    return descriptive(rank_correlation(both), "Subsets that share heads are not a sample")


def uniform_distance(distance: xr.DataArray) -> float:
    """The attention distance of uniform attention on the same grid."""
    expect_array(distance, ("layer", "head"))
    missing = {"rows", "columns", "stride"} - set(distance.attrs)
    if missing:
        raise ValueError(
            f"Expected the grid in the attributes. Received: none of {sorted(missing)}"
        )
    shape = distance.attrs["rows"], distance.attrs["columns"]
    cells = np.indices(shape).reshape(2, -1)
    return np.hypot(*(cells[:, :, None] - cells[:, None, :])).mean() * distance.attrs["stride"]


FIGURE_3 = Figure(
    paper=RAGHU,
    numbers="3 4 C.5 C.6",
    chapter=LOCALITY,
    shows="attention distance of heads",
    models=together("vit", "gap", "fraction"),
    measure=attention_distance_of,
    results="attention_distance",
    draw=plot_attention_distance,
    interactive=distance_lines,
    name="attention-distance",
    title="Attention distance of heads",
    caption=(
        "Each line is a layer. Its points are the mean attention distances of its heads, in "
        "ascending order. Low points are local heads. A flat line is a layer whose heads have "
        "equal distances."
    ),
    claims=[first_block_mixes, last_block_global, less_data_less_local],
    quantities=[early_reach, last_reach],
    overview=Overview(
        "Attention distance",
        lambda distance: (
            expect_array(distance, ("layer", "head")).values / uniform_distance(distance)
        ).mean(axis=1),
        "relative to uniform",
    ),
)

FIGURE_5 = Figure(
    paper=RAGHU,
    numbers="5",
    chapter=LOCALITY,
    shows="CKA between subsets of heads and the lower layers of a ResNet",
    models=pairs(("vit", "gap"), ("resnet",), ordered=True),
    measure=head_similarity_of,
    results="head_similarity",
    draw=plot_head_similarity,
    name="head-similarity-{model}-{other}",
    title="CKA between heads and lower layers of another model",
    caption=(
        "Each point is a subset of the heads of block 0. Along a line, heads are added one by "
        "one, starting with the most local head or with the most global head. The axes are the "
        "mean attention distance and the CKA of a subset. If a line falls to the right, global "
        "heads compute features that the convolutions lack."
    ),
    claims=[local_heads_resemble],
)


# Sampled for each image: another image has a smaller error at the same cost.
CHANNELS = 1


def branches(model: StudyModel) -> list[str]:
    """The taps of the branches before each sum, which models of this package name."""
    named = has_tap_grammar(model.taps)
    return [tap for tap in model.taps if tap.endswith("/branch")] if named else []


def fields_of(model: StudyModel) -> Measurement:
    """Effective receptive fields of all taps that the figures of this section show."""
    taps = dict.fromkeys([*model.layers("representations", "sums"), *branches(model)])

    def make(data: Data) -> xr.DataArray:
        few = data.few.take(COPY_BATCHES) if model.original_key else data.few
        return receptive_field(model.select(*taps), few, channels=CHANNELS, grid=model.grid)

    return task("receptive_fields", model, make, reads="few", inputs=(DATA,), saved=False)


def receptive_field_of(model: StudyModel) -> Measurement:
    """Effective receptive fields after each sum."""
    taps = model.layers("representations", "sums")
    if model.has_tokens:
        model.require_grid()
    return _part(model, "receptive_field", taps)


def branch_field_of(model: StudyModel) -> Measurement:
    """Effective receptive fields before each sum."""
    taps = model.require(branches(model), "branches separate from skips")
    return _part(model, "receptive_field_branch", taps)


def _part(model: StudyModel, analysis: str, taps: Sequence[str]) -> Measurement:
    make = partial(select_fields, layers=taps)
    return task(analysis, model, make, inputs=(fields_of(model),))


@claim(
    "receptive_field.{vit} receptive_field.{resnet}",
    "section 5, Figure 6",
    "difference in receptive-field size",
    effect="above",
    least=0.05,
)
def early_fields(vit: xr.DataArray, resnet: xr.DataArray) -> Estimate:
    """Effective receptive fields of lower layers are larger in the ViT than in the ResNet.

    Mean receptive-field size in the lower half of the layers: the value for the ViT minus the value
    for the ResNet. A size of 1 means that all pixels have equal influence.
    """
    return between(*(_lower_size(field) for field in (vit, resnet)))


@claim(
    "receptive_field.{vit} receptive_field.{resnet}",
    "section 5, Figure 6",
    "difference in receptive-field size",
    effect="above",
    least=0.05,
)
def fields_turn_global_midway(vit: xr.DataArray, resnet: xr.DataArray) -> Estimate:
    """ResNet receptive fields grow gradually; ViT fields become much more global midway.

    Largest growth of receptive-field size from one layer to the next within the middle third of the
    depth: the value for the ViT minus the value for the ResNet.
    """

    def largest_step(sizes: np.ndarray) -> float:
        count = len(sizes)
        first = max(count // 3 - 1, 0)
        return np.diff(sizes[first : -(-2 * count // 3) + 1]).max()

    return between(*(_over_fields(largest_step, field, "size") for field in (vit, resnet)))


@claim(
    "receptive_field_branch.{vit} receptive_field.{vit}",
    "section 5 and appendix C, Figure C.4",
    "difference in share",
    effect="below",
    least=0.05,
)
def branch_fields(branch: xr.DataArray, total: xr.DataArray) -> Estimate:
    """In later attention sublayers, a token's own patch dominates only because of the skip.

    Share of the centre patch in the receptive field of an attention branch minus its share after
    the skip is added, averaged over the upper half of the sublayers.
    """
    # The positions of the attention sublayers among the layers, by site.
    names = [[x.rpartition("/")[0] for x in layer_names(field)] for field in (branch, total)]
    places = [{x: at for at, x in enumerate(each) if x.endswith("attention")} for each in names]
    sites = [site for site in places[0] if site in places[1]]
    if not sites:
        raise ValueError(
            "Expected fields of attention branches and of their sums. "
            f"Received: {layer_names(branch)[:3]} and {layer_names(total)[:3]}"
        )
    at = [[place[site] for site in upper(np.array(sites))] for place in places]
    shares = (
        _over_fields(lambda shares, rows=rows: shares[rows].mean(), field, "centre_share")
        for field, rows in zip((branch, total), at, strict=True)
    )
    return minus(*shares)


FIELD_NUMBERS = ("size", "centre_share")  # as `leave_one_out` of a receptive field has them


def _over_fields(
    statistic: Callable[[np.ndarray], float], field: xr.DataArray, number: str
) -> Estimate:
    """A statistic of the size or the centre share of the receptive fields (layer,) of a model."""
    numbers = expect_array(field, ("layer", "row", "column"))[number]
    if "leave_one_out" in field.attrs:
        rest = np.reshape(field.attrs["leave_one_out"], (-1, len(FIELD_NUMBERS), len(numbers)))
        of_number = rest[:, FIELD_NUMBERS.index(number)]
        facts = {"leave_one_out": of_number, "examples": field.attrs["examples"]}
        numbers = numbers.assign_attrs(facts)
    return estimate_over_batches(statistic, numbers)


def _lower_size(field: xr.DataArray) -> Estimate:
    """Mean receptive-field size in the lower half of the layers."""
    return _over_fields(lambda sizes: lower(sizes).mean(), field, "size")


@quantity(
    "receptive_field.{model}",
    unit="1: all pixels have equal influence",
    more="has larger receptive fields in its lower half",
)
def early_size(field: xr.DataArray) -> Estimate:
    """Receptive-field size in the lower half.

    Standard deviation of pixel positions, weighted by the effective receptive field of the centre
    token. This standard deviation is divided by its value for a uniform field and averaged over the
    lower half of the layers.
    """
    return _lower_size(field)


FIGURE_6 = Figure(
    paper=RAGHU,
    numbers="6 C.1 C.2 C.3",
    chapter=LOCALITY,
    shows="effective receptive fields after the residual connection",
    models=each("vit", "gap", "resnet"),
    measure=receptive_field_of,
    results="receptive_field",
    draw=plot_receptive_field,
    name="receptive-field-{model}",
    call='analysis.receptive_field({model}, few_images(images), channels=1, detail="sums")',
    title="Effective receptive fields",
    caption=(
        "Each panel is the gradient of a layer's output at the centre position, with respect to "
        "the pixels. Fields that fill the panel are global."
    ),
    claims=[early_fields, fields_turn_global_midway],
    quantities=[early_size],
    overview=Overview(
        "Receptive-field size", lambda field: field["size"].values, "relative to uniform"
    ),
)


FIGURE_C4 = FIGURE_6.variant(
    numbers="C.4",
    shows="effective receptive fields before the residual connection",
    measure=branch_field_of,
    results="receptive_field_branch",
    name="receptive-field-branch-{model}",
    call='analysis.receptive_field({model}, few_images(images), channels=1, layers="*/branch")',
    title="Effective receptive fields before the residual connection",
    caption=(
        "Each panel shows how a branch's output at the centre position depends on the pixels (its "
        "gradient), before the skip is added. If the centre patch is not the brightest patch in a "
        "panel, its dominance after the residual sum comes from the skip."
    ),
    claims=[branch_fields],
    overview=None,
)
