"""Raghu et al. 2021, section 6 and appendix E: skip connections."""

from functools import partial

import numpy as np
import xarray as xr

from ...engine.estimates import (
    Estimate,
    contrast_over_depth,
    descriptive,
    lower,
    means_of,
    minus,
    of_cka,
    student,
    transformed,
    upper,
)
from ...engine.results import expect_variable, layer_names
from ...flow.skips import skip_ratio
from ...plots.flow_plots import plot_skip_ratio, plot_skip_ratio_lines
from ...plots.similarity_plots import plot_cka
from ...study.claims import RUNS, claim
from ...study.figure import Figure, each, group, together, variants, with_roles
from ...study.measure import Measurements, SharedPass, quantity, statistic
from ...study.models import StudyModel
from ..chapters import SKIPS
from ..dosovitskiy import Accuracy, accuracy_gap
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


@claim("skip_ratio.{vit}", "6", "7 left", "ratio of ratios", above=1, least=0.1)
def cls_skips_first(ratios: xr.Dataset) -> Estimate:
    """Skips propagate CLS more than spatial tokens in lower blocks, and less in upper blocks.

    Let r be the skip-to-branch norm ratio of the CLS token divided by that of the spatial tokens.
    The estimate is r in the lower half of the blocks divided by r in the upper half.

    The geometric mean of the ratios is taken over the sublayers of a block and then over blocks, so
    that attention and MLP have equal weight. The threshold is 1 (no change with depth).
    """
    logs = _cls_over_spatial(ratios)
    blocks = (
        [name.split("/")[0] for name in layer_names(ratios)]
        if "layer" in ratios.coords
        else ([str(index // 2) for index in range(len(logs))])
    )
    names = list(dict.fromkeys(blocks))
    of_blocks = np.array([logs[[block == name for block in blocks]].mean() for name in names])
    places = np.arange(len(names))
    halves = means_of(len(names), lower(places), upper(places))
    return transformed(contrast_over_depth(of_blocks, halves, "blocks"), np.exp)


def _cls_over_spatial(ratios: xr.Dataset) -> np.ndarray:
    """Logarithm of the norm ratio of CLS over that of the mean spatial token, of each layer."""
    ratio = expect_variable(ratios, "norm_ratio", ("layer", "token"))
    prefix = ratios.attrs.get("prefix")
    if not prefix:
        raise ValueError(f"Expected ratios with prefix tokens. Received: prefix={prefix}")
    spatial = np.nanmean(ratio.values[:, int(prefix) :], axis=1)
    return np.log(ratio.values[:, 0]) - np.log(spatial)


@claim(
    "skip_ratio.{vit} skip_ratio.{resnet}",
    "6",
    "7 right",
    "ratio ViT / ResNet",
    above=1,
    least=0.1,
    about=RUNS,
)
def skip_influence(vit: xr.Dataset, resnet: xr.Dataset) -> Estimate:
    """Skip connections are more influential in the ViT than in the ResNet.

    Skip-to-branch norm ratio of identity skips: the ratio of the ViT divided by the ratio of the
    ResNet.

    The ratio of a model is the mean over tokens and then the geometric mean over layers. ResNets of
    type v1 (the paper's ResNet and the ResNets of timm and torchvision) apply a ReLU after the
    residual sum. Therefore, their identity skips have no negative values. Their projection
    shortcuts have negative values and are left out. BiT (type v2) applies the ReLU within the
    branch. The ratios of BiT are not comparable with those of a ResNet of type v1, so the claim is
    not tested on BiT.
    """
    ratio = expect_variable(resnet, "norm_ratio", ("layer", "token"))
    is_rectified = expect_variable(resnet, "negative_share", ("layer",)).values == 0
    if not is_rectified.any():
        raise ValueError(
            "Not tested: other architecture. The paper's ResNet has a ReLU after the sum (v1), so "
            "that identity skips have no negative values; all skips of this one have."
        )
    of_vit = expect_variable(vit, "norm_ratio", ("layer", "token"))
    # The stem of a hybrid projects in the first unit of a stage.
    is_identity = [not name.endswith("/unit01") for name in layer_names(of_vit)]
    means = [
        np.log(np.nanmean(layers, axis=1)).mean()
        for layers in (of_vit.values[is_identity], ratio.values[is_rectified])
    ]
    return descriptive(np.exp(means[0] - means[1]), "the error over images is not known")


@claim(
    "cka.{vit} cka.{without} block",
    "6",
    "8",
    "difference in CKA",
    below=0,
    least=0.05,
    about=RUNS,
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
    return minus(*(of_cka(np.mean, expect_cka(part)) for part in parts))


@claim(
    "accuracy.{vit} accuracy.{without}",
    "6",
    "8",
    "difference in accuracy",
    above=0,
    least=0.01,
    about=RUNS,
)
def skips_cost_accuracy(intact: Accuracy, without: Accuracy) -> Estimate:
    """Removing the skips of a middle block reduces accuracy.

    Test accuracy of the model with all skips minus test accuracy of the model without the skips of
    a block.

    The input for each model holds its test accuracy in [0, 1], the number of test examples, the
    number of classes and, if known, which examples are classified correctly.
    """
    return accuracy_gap(intact, without, "the model with all skips", of_first=True)


@quantity(
    "skip_ratio.{model}",
    unit="ratio",
    more="has a larger skip-to-branch norm ratio",
)
def skips_over_branches(ratios: xr.Dataset) -> Estimate:
    """Skip-to-branch norm ratio.

    Norm of the skip divided by the norm of its branch: the mean over tokens, then the geometric
    mean over layers. If it is above 1, the skip dominates.
    """
    ratio = expect_variable(ratios, "norm_ratio", ("layer", "token")).values
    return transformed(student(np.log(np.nanmean(ratio, axis=1)), "layers"), np.exp)


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
