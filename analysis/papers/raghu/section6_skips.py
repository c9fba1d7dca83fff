"""Raghu et al. 2021, section 6 and appendix E: skip connections."""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from ...flow.skips import skip_ratio
from ...plots.flow_plots import plot_skip_ratio, plot_skip_ratio_lines
from ...plots.similarity_plots import plot_cka
from ..chapters import SKIPS
from ..vocabulary import (
    Accuracy,
    Estimate,
    Figure,
    Measurements,
    SharedPass,
    StudyModel,
    accuracy_gap,
    between,
    claim,
    each,
    estimate_from_cka,
    estimate_over_batches,
    expect_variable,
    group,
    layer_names,
    lower,
    quantity,
    statistic,
    together,
    upper,
    variants,
    with_roles,
)
from . import RAGHU
from .section4_structure import cka_of, expect_cka


def skip_ratio_of(model: StudyModel) -> SharedPass:
    """Skip-to-branch norm ratio and cosine at every sum."""
    taps = model.layers("skips")
    model.require_grid()
    return statistic(skip_ratio, model, taps)


def skip_ratio_by_token(model: StudyModel) -> SharedPass | None:
    """Skip ratio of CLS and spatial tokens; None for a model without CLS."""
    measurement = skip_ratio_of(model)
    return measurement if model.has_cls else None


def cka_without_skips(models: list[StudyModel]) -> Measurements | None:
    """Similarity of the layers of a model, and of those trained without the skips of a block."""
    for intact in with_roles(models, "vit"):
        without = variants(models, intact, "without")
        if without:
            return {_with_accuracy(model): cka_of(model) for model in (intact, *without)}
    return None


def _with_accuracy(model: StudyModel) -> str:
    words = f"without skips in {model.detail}" if model.detail else f"{model.name}, intact"
    return f"{words}\n{100 * model.accuracy[0]:.1f} % accuracy" if model.accuracy else words


@claim(
    "skip_ratio.{vit}", "section 6, Figure 7 left", "log ratio of ratios", effect="above", least=0.1
)
def cls_skips_first(ratios: xr.Dataset) -> Estimate:
    """Skips propagate CLS more than spatial tokens in lower blocks, and less in upper blocks.

    Let r be the logarithm of a quotient: the skip-to-branch norm ratio of the CLS token divided by
    the ratio of the spatial tokens. The value is the mean of r in the lower half of the blocks
    minus its mean in the upper half.

    The mean is taken over the sublayers of a block and then over blocks, so that attention and MLP
    have equal weight.
    """
    blocks = [name.split("/")[0] for name in layer_names(ratios)]
    names = list(dict.fromkeys(blocks))
    parts = [str(part) for part in ratios["part"].values] if "part" in ratios else []
    if "cls" not in parts:
        raise ValueError(f"Expected skip ratios of the CLS token. Received: ratios of {parts}")

    def contrast(of_parts: np.ndarray) -> float:
        logs = np.log(of_parts[:, parts.index("cls")]) - np.log(of_parts[:, parts.index("spatial")])
        of_blocks = np.array([logs[[block == name for block in blocks]].mean() for name in names])
        return float(np.mean(lower(of_blocks)) - np.mean(upper(of_blocks)))

    return estimate_over_batches(contrast, ratios, variable="part_ratio")


@claim(
    "skip_ratio.{vit} skip_ratio.{resnet}",
    "section 6, Figure 7 right",
    "log ratio ViT / ResNet",
    effect="above",
    least=0.1,
)
def skip_influence(vit: xr.Dataset, resnet: xr.Dataset) -> Estimate:
    """Skip connections are more influential in the ViT than in the ResNet.

    Logarithm of the skip-to-branch norm ratio of identity skips, averaged over layers: the value
    for the ViT minus the value for the ResNet.

    ResNets of type v1 (the paper's ResNet and the ResNets of timm and torchvision) apply a ReLU
    after the residual sum. Therefore, their identity skips have no negative values. Their
    projection shortcuts have negative values and are excluded. BiT (type v2) applies the ReLU
    within the branch. The ratios of BiT are not comparable with those of a ResNet of type v1, so
    the claim is not tested on BiT.
    """
    is_rectified = expect_variable(resnet, "negative_share", ("layer",)).values == 0
    if not is_rectified.any():
        raise ValueError(
            "The claim is about ResNets with a ReLU after the sum (v1, as in the paper), "
            "whose identity skips are never negative. All skips of this model have negative "
            "values."
        )
    # The stem of a hybrid projects in the first unit of a stage.
    is_identity = [not name.endswith("/unit01") for name in layer_names(vit)]
    return between(_mean_log_ratio(vit, is_identity), _mean_log_ratio(resnet, is_rectified))


def _mean_log_ratio(ratios: xr.Dataset, layers: Any) -> Estimate:
    """Mean over layers of the logarithm of the norm ratio of the mean token."""
    return estimate_over_batches(
        lambda parts: np.log(parts[layers, -1]).mean(), ratios, variable="part_ratio"
    )


@claim(
    "cka.{vit} cka.{without} block",
    "section 6, Figure 8",
    "difference in CKA",
    effect="below",
    least=0.05,
)
def skips_partition(intact: xr.Dataset, without: xr.Dataset, block: str) -> Estimate:
    """Without the skips of a block, layers before it and after it are less similar.

    Mean CKA between the layers before a block and the layers after it: the value for the model
    without the block's skips minus the value for the model with all skips.
    """
    names = layer_names(intact["cka"], "layer_x")
    inside = [i for i, name in enumerate(names) if name.split("/")[0] == block] or [0]
    measured = [set(layer_names(without["cka"], dim)) for dim in ("layer_x", "layer_y")]
    before = [name for name in names[: inside[0]] if name in measured[0]]
    after = [name for name in names[inside[-1] + 1 :] if name in measured[1]]
    if not before or not after:
        raise ValueError(f"Expected layers before and after the block. Received: block={block!r}")
    parts = (result.sel(layer_x=before, layer_y=after) for result in (without, intact))
    return between(*(estimate_from_cka(np.mean, expect_cka(part)) for part in parts))


@claim(
    "accuracy.{vit} accuracy.{without}",
    "section 6, Figure 8",
    "difference in accuracy",
    effect=0.04,
    least=0.01,
    beyond_untrained=False,
)
def skips_cost_accuracy(intact: Accuracy, without: Accuracy) -> Estimate:
    """Removing the skips of a middle block reduces accuracy.

    Test accuracy of the model with all skips minus test accuracy of the model without the skips of
    a block.
    """
    intact.require_above_chance("the model with all skips")
    return accuracy_gap(intact, without)


@quantity(
    "skip_ratio.{model}",
    unit="log ratio",
    more="has a larger skip-to-branch norm ratio",
)
def skips_over_branches(ratios: xr.Dataset) -> Estimate:
    """Skip-to-branch norm ratio.

    Logarithm of the norm of the skip divided by the norm of its branch: the mean over tokens, then
    the mean of logarithms over layers. If it is above 0, the skip dominates.
    """
    return _mean_log_ratio(ratios, slice(None))


FIGURE_7_LEFT = Figure(
    paper=RAGHU,
    numbers="7 E.1",
    chapter=SKIPS,
    shows="skip-to-branch norm ratio by token and layer",
    models=each("vit", "gap"),
    measure=skip_ratio_by_token,
    results="skip_ratio",
    draw=plot_skip_ratio,
    name="skip-ratio-{model}",
    title="Skip-to-branch norm ratio by token",
    caption=(
        "Each cell is the norm ratio of one token at one residual sum. Above 1, the skip "
        "dominates. Below 1, the branch dominates."
    ),
    claims=[cls_skips_first],
)

FIGURE_7_RIGHT = FIGURE_7_LEFT.variant(
    models=together("vit", "gap", "resnet", "mixer"),
    measure=skip_ratio_of,
    draw=plot_skip_ratio_lines,
    name="skip-ratio",
    title="Skip-to-branch norm ratio by layer",
    caption=(
        "Each point is the norm ratio at a residual sum. The higher a line, the more the skip "
        "dominates. At the grey line, skip and branch have equal norms."
    ),
    claims=[skip_influence],
    quantities=[skips_over_branches],
)

FIGURE_E2 = FIGURE_7_RIGHT.variant(
    numbers="E.2",
    shows="cosine of skip and branch",
    draw=partial(plot_skip_ratio_lines, variable="cosine"),
    name="skip-cosine",
    show='analysis.plots.plot_skip_ratio_lines(results, variable="cosine")',
    title="Cosine of skip and branch by layer",
    caption=(
        "Each point is the cosine similarity of skip and branch at a residual sum. At 1, the "
        "branch amplifies the skip. At 0, the branch is orthogonal to the skip. Below 0, the "
        "branch cancels part of the skip."
    ),
)

FIGURE_8 = Figure(
    paper=RAGHU,
    numbers="8",
    chapter=SKIPS,
    shows="CKA between layers without the skips of a block",
    models=group("vit", "without", user_models=False),
    measure=cka_without_skips,
    results="cka",
    draw=plot_cka,
    name="without-skips-{model}",
    title="CKA between layers without the skips of a block",
    caption=(
        "Each panel shows the CKA between all layers of one model: the intact model, or a model "
        "trained without the skips of one block. If a panel has two separate bright squares, one "
        "before and one after this block, the skips of the block matter."
    ),
    claims=[skips_partition, skips_cost_accuracy],
)
