"""Walmer et al. 2023, section 4: types of heads, repeating patterns, alignment with objects."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.features import Features, Taps

from ...heads.attention_patterns import attention_patterns
from ...heads.mean_attention import (
    aligned_attention,
    attention_maps,
    attention_offset,
    head_classes,
    mean_attention,
    mean_distance,
)
from ...heads.saliency import attention_saliency
from ...plots.attention_plots import (
    hardly_repeats,
    one_kind,
    plot_aligned_attention,
    plot_attention_maps,
    plot_attention_offset,
    plot_attention_patterns,
    plot_attention_saliency,
    plot_head_classes,
    plot_mean_distance,
)
from ..chapters import LOCALITY, OBJECTS
from ..raghu.section5_locality import LOCAL, attention_distance_of, local_and_global
from ..vocabulary import (
    EXPLICIT,
    Claim,
    Estimate,
    Figure,
    Measurement,
    SharedPass,
    Statistic,
    StudyModel,
    between,
    claim,
    descriptive,
    each,
    estimate_over_batches,
    expect_array,
    expect_variable,
    jackknife_over,
    lower,
    statistic,
    task,
    together,
    upper,
)
from . import WALMER


def mean_attention_of(model: StudyModel) -> SharedPass:
    """Attention maps averaged over images, which others follow from."""
    return statistic(mean_attention, model, model.require_attention())


def aligned_attention_of(model: StudyModel) -> Measurement:
    """Attention of every head by the offset of key from query."""
    return task("aligned_attention", model, aligned_attention, inputs=(mean_attention_of(model),))


def attention_offset_of(model: StudyModel) -> Measurement:
    """Mean attention offset of every head."""
    return task("attention_offset", model, attention_offset, inputs=(aligned_attention_of(model),))


def head_classes_of(model: StudyModel) -> Measurement:
    """The type of every attention head."""
    return task("head_classes", model, head_classes, inputs=(mean_attention_of(model),))


def unit_distance_of(model: StudyModel) -> Measurement:
    """Attention distance of every head on a unit square, which compares grids."""
    inputs = (mean_attention_of(model), attention_distance_of(model))
    return task("unit_distance", model, unit_distance, inputs=inputs)


def unit_distance(mean: xr.Dataset, pixels: xr.DataArray) -> xr.DataArray:
    """`mean_distance` on a unit square, without each batch too where the grid is a square.

    There, distances in pixels, divided by the side of the grid, are distances on a unit square.
    """
    distance = mean_distance(mean, units="unit")
    if "leave_one_out" not in pixels.attrs or pixels.attrs["rows"] != pixels.attrs["columns"]:
        return distance
    side = (pixels.attrs["rows"] - 1) * pixels.attrs["stride"]
    rest = np.asarray(pixels.attrs["leave_one_out"]) / side
    return distance.assign_attrs(leave_one_out=rest, examples=pixels.attrs["examples"])


@claim(
    "aligned_attention.{vit} head_classes.{vit}",
    "section 4.2, Figure 3",
    "asymmetry",
    effect="above",
    least=0.25,
)
def offset_heads(aligned: xr.DataArray, kinds: xr.Dataset) -> Estimate:
    """There are offset local attention heads, which attend to one side of the query.

    Asymmetry of the most asymmetric local head. The asymmetry is 0 if the attention of the head is
    symmetric around the query, and 1 if the attention is one-sided.

        1/2 sum over offsets d of |share(d) - share(-d)|

    Here, share(d) is the share of attention at offset d. If attention does not depend on position,
    its asymmetry is 0, even if the attention is sharp. A head is local if the spread of its
    attention is at most half the spread of uniform attention. The asymmetry of heads that are not
    local is set to 0, because a head that attends to a fixed corner of the image would be one-sided
    as well.
    """
    dims = ("layer", "head", "row_offset", "column_offset")
    share = expect_array(aligned, dims).values
    share = share / share.sum(axis=(2, 3), keepdims=True)
    sided = abs(share - share[:, :, ::-1, ::-1]).sum(axis=(2, 3)) / 2
    spread = expect_variable(kinds, "relative_spread", ("layer", "head")).values
    return descriptive(np.where(spread <= 0.5, sided, 0).max(), "It is a maximum over heads")


@claim(
    "aligned_attention.{masked} head_classes.{masked}",
    "appendix C.1, Figure 14",
    "asymmetry",
    effect="above",
    least=0.25,
)
def masked_offset_heads(aligned: xr.DataArray, kinds: xr.Dataset) -> Estimate:
    """ViTs trained by reconstruction also learn offset local heads, like all ViTs in the paper.

    Asymmetry of the most asymmetric local head of the ViT trained on masked patches.

    Asymmetry and local heads are defined as for `offset_heads`.
    """
    return offset_heads(aligned, kinds)


@claim(
    "head_classes.{vit}",
    "appendix C.1, Figure 18",
    "difference in share",
    effect="above",
    least=0.05,
    beyond_untrained=False,
    supervision=EXPLICIT,
)
def offset_heads_early(kinds: xr.Dataset) -> Estimate:
    """In supervised ViTs, offset heads are in the early layers.

    Share of offset heads in the lower half of the layers minus their share in the upper half.

    The claim is not tested if there are no offset heads; untrained models have none.
    """
    offset = expect_variable(kinds, "kind", ("layer", "head")).values == "offset"
    if not offset.any():
        raise ValueError("None of the model's heads is an offset head.")
    return descriptive(lower(offset).mean() - upper(offset).mean(), COUNTED)


@claim(
    "head_classes.{larger}",
    "appendix C.1, Figure 14",
    "share of heads",
    effect="above",
    least=0.005,
)
def larger_models_have_diagonal_offsets(kinds: xr.Dataset) -> Estimate:
    """Some larger models have offset heads with a diagonal offset.

    Share of the heads of the larger ViT that are offset heads whose offset is diagonal.
    """
    dims = ("layer", "head")
    is_offset = expect_variable(kinds, "kind", dims).values == "offset"
    directions = expect_variable(kinds, "direction", dims).values
    is_diagonal = np.isin(directions, ("up-left", "up-right", "down-left", "down-right"))
    return descriptive((is_offset & is_diagonal).mean(), COUNTED)


COUNTED = "It counts all heads of the model, which are not a sample"


@claim("head_classes.{vit}", "section 4.2, Figure 3", "number of types", effect=4, least=0.5)
def local_kinds(kinds: xr.Dataset) -> Estimate:
    """There are several types of local heads: strict, soft, axial and offset.

    Number of these four types that occur among the heads.
    """
    kinds_of_heads = expect_variable(kinds, "kind", ("layer", "head")).values
    return descriptive(np.isin(LOCAL, kinds_of_heads).sum(), COUNTED)


@claim("head_classes.{vit}", "section 4.3, Figure 4", "share of layers", effect="above", least=0.25)
def layers_mix(kinds: xr.Dataset) -> Estimate:
    """Most layers have both local and global heads.

    Share of the layers that have both local and global heads.
    """
    is_local, is_global = local_and_global(kinds)
    mixed = is_local.any(axis=1) & is_global.any(axis=1)
    return descriptive(mixed.mean(), COUNTED)


@claim(
    "unit_distance.{vit}",
    "section 4.3, Figure 4",
    "difference in distance",
    effect="below",
    least=0.02,
)
def distance_dips(distance: xr.DataArray) -> Estimate:
    """Attention distance dips around layers 3 to 6 of 12, compared with the first two layers.

    Attention distance, with the image scaled to a unit square: the mean over layers 3 to 6 of 12
    minus the mean over the first two layers.

    In models of other depths, layers at the same relative depth are used.
    """

    def dip(heads: np.ndarray) -> float:
        first, third, _ = phases(heads)
        return third.mean() - first.mean()

    return estimate_over_batches(dip, expect_array(distance, ("layer", "head")))


@claim(
    "unit_distance.{vit}",
    "section 4.3, Figure 4",
    "difference in distance",
    effect="above",
    least=0.02,
    supervision=EXPLICIT,
)
def distance_rises(distance: xr.DataArray) -> Estimate:
    """In the later layers of supervised ViTs, attention distance increases again.

    Attention distance, with the image scaled to a unit square: the mean over the upper half of the
    layers minus the mean over layers 3 to 6 of 12.

    In models of other depths, layers at the same relative depth are used.
    """

    def rise(heads: np.ndarray) -> float:
        _, third, late = phases(heads)
        return late.mean() - third.mean()

    return estimate_over_batches(rise, expect_array(distance, ("layer", "head")))


@claim(
    "unit_distance.{vit} unit_distance.{masked} unit_distance.{seed}",
    "section 4.3, Figure 4",
    "difference in distance",
    effect="above",
    least=0.01,
    beyond_untrained=False,
    supervision=EXPLICIT,
)
def supervision_orders_attention(
    labels: xr.DataArray, masked: xr.DataArray, seed: xr.DataArray
) -> Estimate:
    """The order in which ViTs process local and global information depends on their supervision.

    Dissimilarity of two profiles of attention distance over depth: the value for a supervised ViT
    and a ViT trained on masked patches, minus the value for two seeds of the supervised ViT.

        profile       = mean over the heads of a layer - mean over all heads
        dissimilarity = root mean square over relative depths of (profile 1 - profile 2)

    The second seed is the control: even two runs with the same supervision have different profiles
    of attention distance.
    """
    return _compare_profiles(labels, masked, seed)


@claim(
    "unit_distance.{vit} unit_distance.{masked} unit_distance.{larger}",
    "appendix C.2, Figure 15",
    "difference in distance",
    effect="above",
    least=0.01,
    beyond_untrained=False,
    supervision=EXPLICIT,
)
def supervision_orders_more_than_size(
    labels: xr.DataArray, masked: xr.DataArray, larger: xr.DataArray
) -> Estimate:
    """The order of local and global processing depends more on supervision than on model size.

    Dissimilarity of two profiles of attention distance over depth: the value for a supervised ViT
    and a ViT trained on masked patches, minus the value for the supervised ViT and a larger
    supervised ViT.

    The dissimilarity of profiles is defined as for `supervision_orders_attention`.
    """
    return _compare_profiles(labels, masked, larger)


def _compare_profiles(first: xr.DataArray, far: xr.DataArray, near: xr.DataArray) -> Estimate:
    """How much less similar the profile of a model is to a far model than to a near one."""
    distances = [expect_array(result, ("layer", "head")) for result in (first, far, near)]
    return estimate_over_batches(
        lambda first, far, near: profile_difference(first, far) - profile_difference(first, near),
        *distances,
    )


DEPTHS = np.linspace(0, 1, 25)  # relative to the last layer, at which profiles are compared


def profile_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Root mean square difference of two profiles of distance (layer, head) without their means."""
    profiles = []
    for distance in (first, second):
        means = distance.mean(axis=1)
        profile = np.interp(DEPTHS, np.linspace(0, 1, len(means)), means)
        profiles.append(profile - profile.mean())
    return float(np.sqrt(np.mean((profiles[0] - profiles[1]) ** 2)))


def phases(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Layers along the first axis: the first two of 12, the next four, and the upper half."""
    middles, count = 2 * np.arange(len(values)) + 1, len(values)  # in half layers
    first, early = 3 * middles < count, middles < count
    if count < 4:
        raise ValueError(f"Expected at least 4 layers. Received: {count}")
    return values[first], values[early & ~first], values[~early]


FIGURE_3 = Figure(
    paper=WALMER,
    numbers="3 14 18",
    chapter=LOCALITY,
    shows="attention by offset from the query, and types of heads",
    models=each("vit", "gap", "larger", "masked"),
    measure=aligned_attention_of,
    results="aligned_attention",
    draw=plot_aligned_attention,
    name="aligned-attention-{model}",
    call="analysis.aligned_attention(analysis.mean_attention({model}, images))",
    title="Attention by offset from the query",
    caption=(
        "Each panel is a head. It shows attention by the offset of the key from the query; the "
        "query is at the centre. An offset head has a bright point next to the centre. An axial "
        "head has a bright line."
    ),
    claims=[offset_heads, masked_offset_heads],
)

FIGURE_14 = FIGURE_3.variant(
    measure=attention_offset_of,
    results="attention_offset",
    draw=plot_attention_offset,
    name="attention-offset-{model}",
    call="analysis.attention_offset(analysis.aligned_attention("
    "analysis.mean_attention({model}, images)))",
    title="Mean attention offset of heads",
    caption="Each point is the mean offset of a head's attention from the query. Heads at the "
    "centre attend symmetrically around the query.",
)

FIGURE_18 = FIGURE_3.variant(
    measure=head_classes_of,
    results="head_classes",
    draw=plot_head_classes,
    instead=one_kind,
    name="head-kinds-{model}",
    call="analysis.head_classes(analysis.mean_attention({model}, images))",
    title="Attention head types",
    caption=(
        "Each cell is a head. Its type depends on where a token attends: to itself (strict), to "
        "its surroundings (soft), along its row or column (axial), to a neighbour in one "
        "direction (offset) or to the whole image (global)."
    ),
    claims=[local_kinds, layers_mix, offset_heads_early, larger_models_have_diagonal_offsets],
)

FIGURE_4 = Figure(
    paper=WALMER,
    numbers="4 15",
    also="V.7",
    chapter=LOCALITY,
    shows="attention distance by layer",
    models=together("vit", "gap", "larger", "masked", "seed"),
    measure=unit_distance_of,
    results="unit_distance",
    draw=plot_mean_distance,
    name="attention-distance-depth",
    call='analysis.mean_distance(analysis.mean_attention({model}, images), units="unit")',
    title="Attention distance by layer",
    caption=(
        "The vertical axis is the mean attention distance as a fraction of the side of the token "
        "grid. Points are heads, and lines are means over the heads of a layer. If the points of "
        "a layer are widely spread, it has both local and global heads."
    ),
    claims=[
        distance_dips,
        distance_rises,
        supervision_orders_attention,
        supervision_orders_more_than_size,
    ],
)


MAPS = ("query", "layer", "layer_other")


def attention_patterns_of(model: StudyModel) -> SharedPass:
    """Repetition of sparse attention patterns over heads and layers."""
    return statistic(attention_patterns, model, model.require_attention())


def cls_attention_of(model: StudyModel) -> Measurement | None:
    """Mean attention of the CLS token, for a model that has one."""
    weights = mean_attention_of(model)
    return (
        task("cls_attention", model, attention_maps, inputs=(weights,)) if model.has_cls else None
    )


def _patterns_repeat(patterns: xr.Dataset, query: str) -> Estimate:
    """The value of a layer is its mean over the layers of the upper half, itself included."""
    repetition = select_query(expect_variable(patterns, "repetition", MAPS), query)
    half = upper(np.arange(len(repetition)))
    if np.isnan(repetition[np.ix_(half, half)]).all(axis=1).any():
        raise ValueError(
            "Expected two heads, or two layers in the upper half, to compare. "
            f"Received: {len(repetition)} layers of one head"
        )

    def mean_of(values: np.ndarray) -> float:
        return np.nanmean(np.nanmean(values[np.ix_(half, half)], axis=1))

    return estimate_over_batches(mean_of, patterns.sel(query=query), variable="repetition")


def _pattern_claim(query: str, words: str, statement: str) -> Claim:
    """The claim of section 4.1 about a query: different heads attend to the same few tokens."""
    return claim(
        "attention_patterns.{vit}",
        "section 4.1, Figure 2",
        "repetition",
        effect="above",
        least=0.1,
        supervision=EXPLICIT,
        name=f"patterns-repeat-{query}",
        text=(
            statement,
            "Similarity of the attention maps of different heads for the same image, weighted by "
            f"their peaks and averaged over the upper half of the layers{words}. The value is 0 "
            "for diffuse attention or attention to different tokens, and 1 if all heads attend to "
            "the same token.",
        ),
    )(partial(_patterns_repeat, query=query))


@claim(
    "attention_patterns.{finer} attention_patterns.{vit}",
    "appendix C.1 and C.3, Figure 17",
    "difference in repetition",
    effect="above",
    least=0.05,
    supervision=EXPLICIT,
)
def smaller_patches_repeat_more(finer: xr.Dataset, vit: xr.Dataset) -> Estimate:
    """Supervised ViTs with large patches are less impacted by sparse repeating patterns.

    Repetition of CLS attention, as in the claim on sparse patterns: the value for the ViT with
    smaller patches minus the value for the ViT with larger patches.

    The paper compares patches of 32 pixels with smaller ones.
    """
    return between(_patterns_repeat(finer, "cls"), _patterns_repeat(vit, "cls"))


@claim(
    "attention_patterns.{vit} cls_attention.{vit}",
    "appendix C.1, Figures 11 to 13",
    "ratio of peaks - 1",
    effect="below",
    least=0.5,
    beyond_untrained=False,
    supervision=EXPLICIT,
)
def patterns_vary(patterns: xr.Dataset, average: xr.DataArray) -> Estimate:
    """The tokens that receive most attention in late layers vary with the image.

    Peak of the CLS attention map averaged over images, divided by the mean peak of the maps of
    single images, in the upper half of the layers, minus 1. The number is 0 if CLS attends to the
    same tokens in every image, and -1 if it attends to different tokens in each image.

        ratio = (peak of the mean map) / (mean over images of the peak of a single map)

    Here, peak = 1 - entropy / log(tokens). The numerator and the denominator are each averaged over
    the heads of a layer. The claim is tested only if attention is sparse (a mean peak of at least
    1/2), because attention that is diffuse in each image, as that of untrained models, also has a
    low ratio.
    """
    peaks = select_query(expect_variable(patterns, "peak", ("query", "layer", "head")), "cls")
    mean_peak = np.nanmean(upper(peaks))
    if not mean_peak >= SPARSE:
        raise ValueError(
            f"CLS attention is not sparse: its mean peak is {mean_peak:.2g}, below {SPARSE}."
        )
    maps = expect_array(average, ("layer", "head", "row", "column")).values
    flat = maps.reshape(*maps.shape[:2], -1)
    logs = np.log(np.where(flat > 0, flat, 1))
    mean_peaks = 1 + (flat * logs).sum(axis=-1) / np.log(flat.shape[-1])
    ratio = upper(mean_peaks).mean() / mean_peak
    return descriptive(ratio - 1, "The maps without each batch of images are not kept")


SPARSE = 0.5  # mean peak of attention to few tokens


def select_query(result: xr.DataArray, query: str) -> np.ndarray:
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
    models=each("vit", "gap", "finer"),
    measure=attention_patterns_of,
    results="attention_patterns",
    draw=plot_attention_patterns,
    instead=hardly_repeats,
    name="attention-patterns-{model}",
    title="Sparse repeating attention patterns",
    caption=(
        "Each cell compares the heads of two layers on the same images. The value is high if both "
        "layers attend to the same few tokens for the same query. The value is low if their "
        "attention is diffuse or differs. A bright square means that the layers of the square "
        "share one pattern."
    ),
    claims=[
        _pattern_claim(
            "cls",
            "",
            "In mid-to-late layers, CLS attention shows sparse patterns repeated over heads and "
            "layers.",
        ),
        _pattern_claim(
            "spatial",
            "; mean over spatial queries",
            "In mid-to-late layers, attention of spatial tokens shows sparse repeating patterns "
            "too.",
        ),
        smaller_patches_repeat_more,
    ],
)

FIGURE_11 = FIGURE_2.variant(
    instead=None,
    measure=cls_attention_of,
    results="cls_attention",
    draw=plot_attention_maps,
    name="cls-attention-{model}",
    call="analysis.attention_maps(analysis.mean_attention({model}, images))",
    title="Mean CLS attention",
    caption=(
        "Each panel is a head and has its own scale. It shows the attention to each position, "
        "averaged over images. The mean does not show whether a head attends to the same "
        "position in every image or to objects that are mostly at this position."
    ),
    claims=[patterns_vary],
)


def saliency_of(model: StudyModel) -> SharedPass:
    """Overlap of attention with the object in the image."""
    return statistic(
        "saliency", model, model.require_attention(), _union_statistic, reads="objects"
    )


def _union_statistic(features: Features) -> Statistic[xr.Dataset]:
    """The statistic of saliency, of the union of all masks of an image."""
    inner = attention_saliency.statistic(features)

    def step(images: tf.Tensor, masks: tf.Tensor, labels: tf.Tensor, taps: Taps) -> dict[str, Any]:
        return inner.step(images, tf.reduce_any(tf.cast(masks, tf.bool), axis=1), taps)

    return replace(inner, step=step)


@claim("saliency.{vit}", "section 4.4, Figure 5", "difference in IoU", effect="above", least=0.02)
def saliency_early(saliency: xr.Dataset) -> Estimate:
    """CLS attention aligns with salient objects by the early-to-mid layers.

    IoU of CLS attention with the object in the image minus its IoU with the objects of other
    images, for the best head of each layer, averaged over the lower half of the layers.

    The IoU with objects of other images is a chance level: any blob at the centre overlaps with
    objects at the centre. Choosing the best head also raises the value, in trained models and in
    their untrained copies.
    """
    return _estimate_best_heads(saliency, lambda best: lower(best).mean(), minus_other=True)


@claim("saliency.{vit}", "section 4.4, Figure 5", "difference in rise", effect="above", least=0.02)
def saliency_plateaus(saliency: xr.Dataset) -> Estimate:
    """The alignment of CLS attention with objects plateaus early.

    Early increase minus late increase of the mean IoU with the object. The early increase is from
    the first two layers to layers 3 to 6 of 12. The late increase is from layers 3 to 6 to the
    upper half; a decrease counts as 0. The IoU is that of the best head of each layer.

    If the IoU increases at a steady rate, both increases are about equal.
    """

    def early_minus_late(best: np.ndarray) -> float:
        first, third, late = (part.mean() for part in phases(best))
        return third - first - max(late - third, 0)

    return _estimate_best_heads(saliency, early_minus_late)


@claim(
    "saliency.{vit}",
    "section 4.4, Figure 5",
    "difference in IoU",
    effect="below",
    least=0.02,
    supervision=EXPLICIT,
)
def saliency_drops(saliency: xr.Dataset) -> Estimate:
    """In supervised ViTs, the alignment of attention with objects drops in later layers.

    IoU of CLS attention with the object, for the best head of each layer: the mean over the upper
    half of the layers minus the mean over layers 3 to 6 of 12.

    In models of other depths, layers at the same relative depth are used.
    """

    def late_minus_plateau(best: np.ndarray) -> float:
        _, plateau, late = phases(best)
        return late.mean() - plateau.mean()

    return _estimate_best_heads(saliency, late_minus_plateau)


def _estimate_best_heads(
    saliency: xr.Dataset, statistic: Callable[[np.ndarray], float], minus_other: bool = False
) -> Estimate:
    """A statistic of the CLS query's IoU of the best head of each layer (layer,)."""
    iou = select_query(expect_variable(saliency, "iou", ("query", "layer", "head")), "cls")
    if "leave_one_out" not in saliency:
        value = statistic(np.fmax.reduce(iou, axis=-1))
        return descriptive(value, "An interval needs the values without each batch of images")
    cls = saliency.sel(query="cls")
    other = cls["other_iou"].values if minus_other else 0.0
    rest = cls["leave_one_out"].values - (cls["other_leave_one_out"].values if minus_other else 0.0)
    without = [statistic(np.fmax.reduce(each, axis=-1)) for each in rest]
    value = statistic(np.fmax.reduce(iou - other, axis=-1))
    return jackknife_over(value, np.array(without), saliency.attrs.get("examples", np.nan))


FIGURE_5 = Figure(
    paper=WALMER,
    numbers="5 16",
    chapter=OBJECTS,
    shows="alignment of attention with the object",
    models=together("vit", "gap", baselines=("untrained",)),
    measure=saliency_of,
    results="saliency",
    draw=plot_attention_saliency,
    name="saliency",
    call="analysis.attention_saliency({model}, vit_tf.data.union_masks(objects))",
    title="IoU of attention and object by layer",
    caption=(
        "Each point is a head: IoU of the object with the tokens that receive 60 % of its "
        "attention. Lines follow the best head of each layer, for the attention of a CLS token and "
        "for the mean over the other queries."
    ),
    claims=[saliency_early, saliency_plateaus, saliency_drops],
)
