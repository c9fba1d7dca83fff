"""Raghu et al. 2021, section 8 and appendix G: what do more data and fine-tuning change?"""

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import cast

import numpy as np
import xarray as xr

from ...plots.similarity_plots import plot_best_matching_layer, plot_data_scale
from ...similarity.cka import best_matching_layer, cka
from ..chapters import SCALE
from ..vocabulary import (
    Estimate,
    Figure,
    Measurement,
    Measurements,
    NotApplicable,
    SharedPass,
    StudyModel,
    between,
    claim,
    estimate_from_cka,
    group,
    lower,
    statistic,
    task,
    upper,
    variants,
    with_roles,
)
from ..walmer.section5_clusters import blocks_of
from . import RAGHU
from .section4_structure import expect_cka


def block_cka_of(model: StudyModel, other: StudyModel) -> SharedPass:
    """Similarity of the block outputs of two models."""
    taps = [compared.layers("representations", "blocks") for compared in (model, other)]
    return statistic("block_cka", (model, other), taps, cka.statistic)


def counterparts_of(
    model: StudyModel, other: StudyModel, analysis: str = "counterparts"
) -> Measurement:
    """Similarity of each block to the block of the same name in another model."""
    return task(analysis, (model, other), best_matching_layer, inputs=(block_cka_of(model, other),))


def data_scale_of(models: list[StudyModel]) -> Measurements:
    """Similarity of each block to that of models trained on a fraction of the data, or on all."""
    measurements = {}
    for model in with_roles(models, "vit", "larger"):
        fractions = {other.detail: other for other in variants(models, model, "fraction")}
        if fractions:
            seeds = variants(models, model, "seed")
            fractions |= {1.0: seeds[0]} if seeds else {}
            inputs = tuple(block_cka_of(other, model) for other in fractions.values())
            make = partial(_by_fraction, fractions=cast(list[float], list(fractions)))
            measurements[model.name] = task("data_scale", model, make, inputs=inputs)
    return measurements


def _by_fraction(*results: xr.Dataset, fractions: Sequence[float]) -> xr.Dataset:
    parts = [best_matching_layer(result) for result in results]
    joined = xr.concat(parts, dim="fraction", combine_attrs="drop_conflicts")
    return joined.assign_coords(fraction=fractions).sortby("fraction")


def fine_tuning_of(models: list[StudyModel]) -> Measurements:
    """Similarity of each block to what it was before fine-tuning."""
    return {
        after.name: counterparts_of(before, after, "fine_tuning")
        for before in with_roles(models, "before")
        for role in ("after", "far")
        for after in variants(models, before, role)
    }


def same_blocks_of(models: list[StudyModel]) -> Measurements:
    """Similarity of blocks with the same name, for each pair of models with equal blocks."""
    if len(models) < 2:
        raise NotApplicable("It compares two models, but only one was given: add a second one.")
    same_layers = {
        f"{first.name} and {second.name}": counterparts_of(first, second)
        for first, second in combinations(models, 2)
        if first.blocks == second.blocks
    }
    if not same_layers:
        why = "It compares models whose layers have the same names; no two of these models do."
        raise NotApplicable(why)
    return same_layers


@claim(
    "data_scale.{vit}",
    "section 8, Figure 12",
    "difference in CKA",
    effect="above",
    least=0.05,
    beyond_untrained=False,
    least_images=1_000_000,
)
def data_hunger(similarity: xr.Dataset) -> Estimate:
    """Higher layers need more training data than lower layers.

    CKA of each block with the same block of the model trained on all data: the mean over the lower
    blocks minus the mean over the upper blocks. The value for a second seed trained on all data is
    subtracted from the value for the model trained on the smallest fraction of the data.

    The second seed is the control: differences between two runs on all data are not due to the
    amount of data.
    """
    similarity = expect_cka(similarity, ("fraction", "layer"))
    fractions = similarity["fraction"].values
    least, control = int(fractions.argmin()), np.flatnonzero(fractions == 1)
    if not len(control) or fractions[least] == 1:
        raise ValueError(
            "Expected a model trained on a fraction of the data and, as a control, a second seed "
            f"trained on all. Received: fractions {fractions.tolist()}"
        )

    def fall(cka: np.ndarray) -> float:
        falls = [lower(cka[row]).mean() - upper(cka[row]).mean() for row in (least, control[0])]
        return falls[0] - falls[1]

    return estimate_from_cka(fall, similarity)


@claim(
    "data_scale.{vit} data_scale.{larger}",
    "section 8, Figure 12",
    "difference in CKA",
    effect="above",
    least=0.05,
    beyond_untrained=False,
    least_images=1_000_000,
)
def larger_models_need_data(smaller: xr.Dataset, larger: xr.Dataset) -> Estimate:
    """Higher layers of larger models need more training data.

    Loss of similarity due to less data: the loss of the larger ViT minus the loss of the smaller
    ViT. Similarity is the mean CKA with the model trained on all data, over the upper half of the
    blocks. The loss is the similarity of a second seed trained on all data minus the similarity of
    the model trained on the smallest fraction.

    The second seeds are the control: even on all data, two runs of a larger model may differ more
    than two runs of a smaller model.
    """
    results = [expect_cka(result, ("fraction", "layer")) for result in (smaller, larger)]
    fractions = [result["fraction"].values.tolist() for result in results]
    shared = set.intersection(*map(set, fractions)) - {1.0}
    if not shared:
        raise ValueError(
            f"Expected models trained on the same fraction of the data. Received: {fractions}"
        )
    if not all(1 in of_model for of_model in fractions):
        raise ValueError(
            "Expected, as a control, a second seed of each model trained on all data. "
            f"Received: fractions {fractions[0]} and, of the larger model, {fractions[1]}"
        )

    def loss(similarity: xr.Dataset, fractions: Sequence[float]) -> Estimate:
        every, least = (fractions.index(fraction) for fraction in (1, min(shared)))
        return estimate_from_cka(
            lambda cka: upper(cka[every]).mean() - upper(cka[least]).mean(), similarity
        )

    of_smaller, of_larger = map(loss, results, fractions)
    return between(of_larger, of_smaller)


@claim(
    "fine_tuning.{before}.{after}",
    "appendix G, Figure G.1",
    "difference in CKA",
    effect="above",
    least=0.05,
    beyond_untrained=False,
)
def fine_tuning_keeps_first_blocks(similarity: xr.Dataset) -> Estimate:
    """The first four to five of 12 blocks are well preserved by fine-tuning.

    CKA between the pre-trained and the fine-tuned model, for each block: the mean over the first
    third of the blocks minus the mean over the other blocks.
    """
    similarity = expect_cka(blocks_of(similarity), ("layer",))
    count = similarity.sizes["layer"]
    if count < 3:
        raise ValueError(f"Expected at least 3 blocks. Received: {count}")
    first = round(count / 3)
    return estimate_from_cka(lambda cka: cka[:first].mean() - cka[first:].mean(), similarity)


far_fine_tuning_keeps_first_blocks = claim(
    "fine_tuning.{before}.{far}",
    "appendix G, Figure G.1",
    "difference in CKA",
    effect="above",
    least=0.05,
    beyond_untrained=False,
    name="far-fine-tuning-keeps-first-blocks",
    text=(
        "The first four to five of 12 blocks are well preserved by fine-tuning on a far domain.",
        fine_tuning_keeps_first_blocks.explanation,
    ),
)(fine_tuning_keeps_first_blocks.estimator)


@claim(
    "fine_tuning.{before}.{after} fine_tuning.{before}.{far}",
    "appendix G, Figure G.1",
    "difference in CKA",
    effect="above",
    least=0.05,
    beyond_untrained=False,
)
def far_domains_change_more(near: xr.Dataset, far: xr.Dataset) -> Estimate:
    """Fine-tuning on a distant domain changes representations more than on a similar domain.

    CKA between a block of the pre-trained model and the same block of the fine-tuned model,
    averaged over blocks: the average for the model fine-tuned on a similar domain minus the average
    for the model fine-tuned on a distant domain.

    Both values are measured on the same images. The paper fine-tunes models that were pre-trained
    on natural images. In the paper, the similar domains are ImageNet and CIFAR-100, and the distant
    domains are medical and satellite images.
    """
    results = (expect_cka(blocks_of(result), ("layer",)) for result in (near, far))
    return between(*(estimate_from_cka(np.mean, result) for result in results))


FIGURE_12 = Figure(
    paper=RAGHU,
    numbers="12",
    chapter=SCALE,
    shows="CKA between blocks trained on fractions of the data and on all data",
    models=group("vit", "larger", "fraction", "seed", user_models=False),
    measure=data_scale_of,
    results="data_scale",
    draw=plot_data_scale,
    name="data-scale-{model}",
    show="analysis.plots.plot_best_matching_layer",
    call='analysis.best_matching_layer(analysis.cka({other}, images, {model}, detail="blocks"))',
    title="CKA between blocks trained on less data and on all",
    caption=(
        "Each point is the CKA between a block of a model trained on a fraction of the images "
        "and the same block of the model trained on all images. A falling line means that higher "
        "blocks need more data. The 100 % line is the control, a second seed trained on all "
        "images."
    ),
    claims=[data_hunger, larger_models_need_data],
)

FIGURE_G = Figure(
    paper=RAGHU,
    numbers="G.1 G.2",
    chapter=SCALE,
    shows="CKA between blocks before and after fine-tuning",
    models=group("before", "after", "far", user_models=False, why_not=""),
    measure=fine_tuning_of,
    results="fine_tuning",
    draw=plot_best_matching_layer,
    name="fine-tuning",
    call='analysis.best_matching_layer(analysis.cka({model}, images, {other}, detail="blocks"))',
    title="CKA between blocks before and after fine-tuning",
    caption=(
        "Each point is the CKA between a block before fine-tuning and the same block after "
        "fine-tuning, on the same images. Blocks with high values changed little."
    ),
    claims=[
        fine_tuning_keeps_first_blocks,
        far_fine_tuning_keeps_first_blocks,
        far_domains_change_more,
    ],
)

FIGURE_G_OF_OTHERS = FIGURE_G.variant(
    models=group(),
    measure=same_blocks_of,
    results="counterparts",
    name="counterparts",
    title="CKA between corresponding blocks of two models",
    caption=(
        "Each point is the CKA between a block and the block of the same name in the other model."
    ),
)
