"""Raghu et al. 2021, section 4: how similar are the representations of layers?"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xarray as xr

from vit_tf.features.structure import block_outputs

from ...plots.interactive import cka_heatmap
from ...plots.similarity_plots import plot_cka, plot_layer_match_accuracy
from ...similarity.cka import cka, layer_match_accuracy
from ..chapters import STRUCTURE
from ..vocabulary import (
    Estimate,
    Figure,
    Overview,
    SharedPass,
    StudyModel,
    between,
    claim,
    each,
    estimate_from_cka,
    expect_variable,
    layer_names,
    lower,
    minus,
    pairs,
    quantity,
    statistic,
    upper,
)
from . import RAGHU


def cka_of(model: StudyModel) -> SharedPass:
    """Similarity of all representations of a model."""
    taps = model.layers("representations", "sublayers")
    model.require(len(taps) >= 2, "pair of layers to compare")
    return statistic(cka, model, taps, detail="sublayers")


def cka_of_two(first: StudyModel, second: StudyModel) -> SharedPass:
    """Similarity of all representations of two models."""
    taps = [model.layers("representations", "sublayers") for model in (first, second)]
    return statistic(cka, (first, second), taps, detail="sublayers")


@claim(
    "cka.{vit} cka.{resnet}", "section 4, Figure 1", "difference in CKA", effect="above", least=0.05
)
def uniform_structure(vit: xr.Dataset, resnet: xr.Dataset) -> Estimate:
    """Lower and upper layers are more similar in the ViT than in the ResNet.

    Mean CKA between block outputs of the lower half and block outputs of the upper half: the value
    for the ViT minus the value for the ResNet.

    Each ViT block and each ResNet unit counts once, whatever its number of layers.
    """
    ends = (at_block_ends(expect_cka(result)) for result in (vit, resnet))
    return between(*(estimate_from_cka(between_halves, result) for result in ends))


@claim("cka.{resnet}", "section 4, Figure 1", "difference in CKA", effect="above", least=0.05)
def resnet_has_stages(resnet: xr.Dataset) -> Estimate:
    """The similarity structure of the ResNet is divided into stages.

    Mean CKA between units of the same stage minus mean CKA between units of different stages.
    """
    resnet = at_block_ends(expect_cka(resnet))
    stages = np.array([name.split("/")[0] for name in layer_names(resnet, "layer_x")])
    is_same = stages[:, None] == stages
    is_pair = ~np.eye(len(stages), dtype=bool)
    if not (is_same & is_pair).any() or is_same.all():
        raise ValueError(f"Expected several stages of several units. Received: {stages.tolist()}")
    return estimate_from_cka(
        lambda cka: cka[is_same & is_pair].mean() - cka[~is_same].mean(), resnet
    )


@claim("cka.{vit}.{resnet}", "section 4, Figure 2", "difference in CKA", effect="above", least=0.05)
def lower_resnet_like_lowest_vit(cross: xr.Dataset) -> Estimate:
    """The lower half of the ResNet is similar to the lowest quarter of the ViT.

    Mean CKA between the lower half of the ResNet's units and the lowest quarter of the ViT's blocks
    minus their mean CKA with the second quarter.

    If both models formed their representations at the same relative depth, the lower half of the
    ResNet would be as similar to the second quarter of the ViT as to the lowest.
    """
    return _contrast_of_depths(cross, lower, (0, 1 / 4), (1 / 4, 1 / 2))


@claim("cka.{vit}.{resnet}", "section 4, Figure 2", "difference in CKA", effect="above", least=0.05)
def upper_resnet_like_middle_vit(cross: xr.Dataset) -> Estimate:
    """The upper half of the ResNet is similar to the next third of the ViT.

    Mean CKA between the upper half of the ResNet's units and the ViT's blocks from a quarter to
    seven twelfths of its depth minus their mean CKA with all higher blocks.
    """
    return _contrast_of_depths(cross, upper, (1 / 4, 7 / 12), (7 / 12, 1))


@claim("cka.{vit}.{resnet}", "section 4, Figure 2", "difference in CKA", effect="below", least=0.05)
def highest_vit_unlike_resnet(cross: xr.Dataset) -> Estimate:
    """The final third of the ViT is less similar to all of the ResNet than lower ViT layers are.

    Mean CKA between all units of the ResNet and the final third of the ViT's blocks minus their
    mean CKA with the lower two thirds.
    """
    return _contrast_of_depths(cross, lambda units: units, (2 / 3, 1), (0, 2 / 3))


def _contrast_of_depths(
    cross: xr.Dataset,
    part: Callable[[np.ndarray], np.ndarray],
    first: tuple[float, float],
    second: tuple[float, float],
) -> Estimate:
    """Mean CKA of a part of the ResNet's units with ViT blocks of one range of depth minus another.

    A block belongs to the range that its middle lies in.
    """
    cross = at_block_ends(expect_cka(cross))
    depth = (np.arange(cross.sizes["layer_x"]) + 0.5) / cross.sizes["layer_x"]
    units = part(np.arange(cross.sizes["layer_y"]))
    groups = [np.flatnonzero((depth > start) & (depth < end)) for start, end in (first, second)]
    if not all(map(len, groups)):
        raise ValueError(
            "Expected ViT blocks in both ranges of depth, "
            f"{first[0]:.2g} to {first[1]:.2g} and {second[0]:.2g} to {second[1]:.2g}. "
            f"Received: {len(depth)} blocks"
        )
    return estimate_from_cka(
        lambda cka: np.subtract(*(cka[np.ix_(group, units)].mean() for group in groups)), cross
    )


@claim(
    "cka.{mixer}.{vit} cka.{mixer}.{resnet}",
    "appendix H, Figure H.2",
    "difference in CKA",
    effect="above",
    least=0.05,
)
def mixer_like_vit(with_vit: xr.Dataset, with_resnet: xr.Dataset) -> Estimate:
    """An MLP-Mixer is more similar to a ViT than to a ResNet.

    CKA of each Mixer block with the most similar block or unit of another model, averaged over
    Mixer blocks: the value for the ViT minus the value for the ResNet.

    The paper also compares the similarity structure within each model, which this claim does not
    test.
    """
    ends = (at_block_ends(expect_cka(result)) for result in (with_vit, with_resnet))
    return minus(
        *(estimate_from_cka(lambda cka: cka.max(axis=1).mean(), result) for result in ends)
    )


@quantity("cka.{model}", unit="CKA", more="has more similar lower and upper layers")
def halves_alike(result: xr.Dataset) -> Estimate:
    """CKA between lower and upper half.

    Mean CKA between the block outputs of the lower half of a model and those of its upper half, as
    in the claim that compares a ViT and a ResNet.
    """
    return estimate_from_cka(between_halves, at_block_ends(expect_cka(result)))


@quantity("cka.{model}.{other}", unit="CKA")
def last_layers_alike(result: xr.Dataset) -> Estimate:
    """CKA between the last layers of two models.

    CKA between the last layers before the logits. The value is 1 if the two layers are equal up to
    rotation and scale.
    """
    return estimate_from_cka(lambda cka: cka[-1, -1], expect_cka(result))


@quantity("cka.{model}.{other}", unit="CKA")
def best_matches(result: xr.Dataset) -> Estimate:
    """CKA of best-matching layers of two models.

    CKA of each layer of the first model with the most similar layer of the second model, averaged
    over the layers of the first model.
    """
    return estimate_from_cka(lambda cka: cka.max(axis=1).mean(), expect_cka(result))


def at_block_ends(result: xr.Dataset) -> xr.Dataset:
    """A result of CKA at the output of each block alone, of models whose blocks are known."""
    for dim in ("layer_x", "layer_y"):
        names = layer_names(result, dim)
        ends = set(block_outputs(names))
        if len(ends) > 1 and any(name.endswith("/sum") for name in names):
            result = result.isel({dim: [name in ends for name in names]})
    return result


def expect_cka(result: xr.Dataset, dims: Sequence[str] = ("layer_x", "layer_y")) -> xr.Dataset:
    """A result of `cka` with the dims of CKA in this order, or a `ValueError`."""
    return result.assign(cka=expect_variable(result, "cka", dims))


def between_halves(cka: np.ndarray) -> float:
    """Mean CKA of the layers of the lower half with those of the upper half but themselves."""
    count = len(cka)
    if count < 2:
        raise ValueError(f"Expected at least two layers. Received: {count}")
    last = upper(np.arange(count))
    return float(np.mean([cka[i, last[last != i]].mean() for i in lower(np.arange(count))]))


def count_matches(models: list[StudyModel], results: Mapping[str, xr.Dataset]) -> str:
    """The caption of `plot_layer_match_accuracy`, with the number of matching layers."""
    matches, layers = np.sum([layer_match_accuracy(result) for result in results.values()], axis=0)
    return (
        "Each mark is the layer of the second run with the highest CKA to the layer of its column: "
        f"{matches} of {layers} layers match the corresponding layer, on the diagonal. A reliable "
        "similarity measure matches most layers (Kornblith et al. 2019, section 6.1)."
    )


FIGURE_1 = Figure(
    paper=RAGHU,
    numbers="1 B.1",
    chapter=STRUCTURE,
    shows="CKA between the layers of a model",
    models=each("vit", "gap", "resnet"),
    measure=cka_of,
    results="cka",
    draw=plot_cka,
    interactive=cka_heatmap,
    name="cka-{model}",
    title="CKA between layers",
    caption=(
        "Each cell is the CKA between two layers on the same images. The layers nearest to the "
        "input are at the lower left. Bright squares are groups of similar layers. The "
        "representation changes between two such squares."
    ),
    claims=[uniform_structure, resnet_has_stages],
    quantities=[halves_alike],
    overview=Overview(
        "CKA of blocks", lambda result: at_block_ends(expect_cka(result))["cka"].values, "CKA"
    ),
)

FIGURE_2 = Figure(
    paper=RAGHU,
    numbers="2",
    chapter=STRUCTURE,
    shows="CKA between the layers of a ViT and of a ResNet",
    models=pairs(("vit", "gap"), ("resnet",)),
    measure=cka_of_two,
    results="cka",
    draw=plot_cka,
    interactive=cka_heatmap,
    name="cka-{model}-{other}",
    title="CKA between the layers of two models",
    caption=(
        "Each cell is the CKA between a layer of the first model (column) and a layer of the "
        "second model (row). The brightest cell of a column is the best-matching layer of the "
        "second model."
    ),
    claims=[
        lower_resnet_like_lowest_vit,
        upper_resnet_like_middle_vit,
        highest_vit_unlike_resnet,
    ],
    quantities=[last_layers_alike, best_matches],
)

FIGURE_H1 = FIGURE_1.variant(
    numbers="H.1",
    shows="CKA between the layers of an MLP-Mixer",
    models=each("mixer", user_models=False, why_not="Figure 1 shows it for every model."),
)

FIGURE_H2 = FIGURE_2.variant(
    numbers="H.2",
    shows="CKA between the layers of an MLP-Mixer and other models",
    models=pairs(
        ("mixer",),
        ("vit", "resnet"),
        user_models=False,
        why_not="Figure 2 shows it for every model.",
    ),
    claims=[mixer_like_vit],
)

SANITY = Figure(
    paper=RAGHU,
    numbers="sanity",
    chapter=STRUCTURE,
    shows="CKA between layers over two seeds",
    models=each("seed", user_models=False, panel="{base}"),
    measure=lambda seed: cka_of_two(seed.base, seed),
    results="cka",
    draw=plot_layer_match_accuracy,
    name="seeds-{model}",
    title="Best-matching layers over two seeds",
    caption=count_matches,
)
