"""Raghu et al. 2021, section 6 and appendix E: what passes through the skips?"""

from dataclasses import replace

import numpy as np

from ...engine.estimates import Sample, bootstrap, difference, lower, normal, upper
from ...engine.results import expect_variable, layer_names
from ...flow.skips import skip_statistic
from ...plots.flow import plot_skip_ratio
from ...plots.lines import plot_skip_ratio_lines
from ...plots.similarity import plot_cka_beside
from ...study.figure import Figure, each, group, playing, together, variants
from ...study.judge import finding
from ...study.measurement import quantity, statistic
from ..chapters import SKIPS
from . import RAGHU
from .section4_structure import cka_of, cka_values


def skip_ratio_of(model):
    """Skip against branch at every sum."""
    sites = [tap.removesuffix("/skip") for tap in model.taps if tap.endswith("/skip")]
    if not any(f"{site}/branch" in model.taps for site in sites):
        model.lacks("skips that are known apart from their branches")
    model.require_grid()
    taps = [tap for tap in model.taps if tap.endswith(("/skip", "/branch"))]
    return statistic("skip_ratio", model, taps, skip_statistic)


def skip_ratio_by_token(model):
    """The same of a model that has tokens without a place to compare the others with."""
    measurement = skip_ratio_of(model)
    return measurement if model.grid.prefix else None


def cka_without_skips(models):
    """Similarity of the layers of a model, and of those trained without the skips of a block."""
    for intact in playing(models, "vit"):
        without = variants(models, intact, "without")
        if without:
            return {_with_accuracy(model): cka_of(model) for model in (intact, *without)}
    return None


def _with_accuracy(model):
    what = f"without skips in {model.detail}" if model.detail else f"{model.name}, intact"
    return f"{what}\n{100 * model.accuracy[0]:.1f} % right" if model.accuracy else what


@finding("skip_ratio.{vit}", section="6", figure="7 left", unit="ratio CLS / spatial", above=1)
def cls_skips_first(ratios):
    """In the first half, the skips carry the CLS token more than the spatial tokens.

    Norm ratio of skip and branch, CLS token over spatial tokens, in the lower half.

    The geometric mean over the layers; against 1, tokens that pass the skips alike (section 6,
    figure 7 left).

    Args:
        ratios: Dataset norm_ratio(layer, token) of a ViT with a CLS token.
    """
    return bootstrap(_exp_mean, lower(_cls_over_spatial(ratios)), over="layers")


@finding("skip_ratio.{vit}", section="6", figure="7 left", unit="ratio CLS / spatial", below=1)
def spatial_skips_second(ratios):
    """In the second half, the skips carry the spatial tokens more than the CLS token.

    Norm ratio of skip and branch, CLS token over spatial tokens, in the upper half.

    As `cls_skips_first`.

    Args:
        ratios: Dataset norm_ratio(layer, token) of a ViT with a CLS token.
    """
    return bootstrap(_exp_mean, upper(_cls_over_spatial(ratios)), over="layers")


def _cls_over_spatial(ratios):
    """Logarithm of the norm ratio of CLS over that of the mean spatial token, of each layer."""
    ratio = expect_variable(ratios, "norm_ratio", ("layer", "token"))
    prefix = ratios.attrs.get("prefix")
    if not prefix:
        raise ValueError(f"Expected ratios with prefix tokens. Received: prefix={prefix}")
    spatial = np.nanmean(ratio.values[:, int(prefix) :], axis=1)
    return np.log(ratio.values[:, 0]) - np.log(spatial)


@finding(
    "skip_ratio.{vit} skip_ratio.{resnet}",
    section="6",
    figure="7 right",
    unit="ratio ViT / ResNet",
    above=1.0,
)
def skip_influence(vit, resnet):
    """Skips outweigh branches more in the ViT than in the ResNet.

    Norm ratio of skip and branch, ViT over ResNet.

    Of each model the geometric mean over layers of the mean over tokens. Against 1 (section 6,
    figure 7 right).

    Args:
        vit, resnet: Dataset norm_ratio(layer, token).
    """
    dims = ("layer", "token")
    logs = [
        np.log(np.nanmean(expect_variable(ratios, "norm_ratio", dims).values, axis=1))
        for ratios in (vit, resnet)
    ]
    return bootstrap(lambda x, y: np.exp(x.mean() - y.mean()), *logs, over="layers")


@finding(
    "cka.{vit} cka.{without} block", section="6", figure="8", unit="difference in CKA", below=0.0
)
def skips_partition(intact, without, block):
    """Without the skips of a block, layers before it and after it are less alike.

    Mean CKA between the layers before and after the block, without its skips minus with.

    Against 0, a block whose skips do not matter to the similarity (section 6, figure 8).

    Args:
        intact, without: Dataset cka(layer_x, layer_y) of each model among itself.
        block: name of the block whose skips were removed, "block03".
    """
    names = layer_names(intact["cka"], "layer_x")
    inside = [i for i, name in enumerate(names) if name.split("/")[0] == block] or [0]
    kept = [set(layer_names(without["cka"], dim)) for dim in ("layer_x", "layer_y")]
    before = [name for name in names[: inside[0]] if name in kept[0]]
    after = [name for name in names[inside[-1] + 1 :] if name in kept[1]]
    if not before or not after:
        raise ValueError(f"Expected layers before and after the block. Received: block={block!r}")
    samples = []
    for result in (without, intact):
        cka, stderr = cka_values(result.sel(layer_x=before, layer_y=after))
        samples.append(Sample(cka.mean(axis=1), stderr.mean(axis=1)))
    return difference(*samples, over="layers")


@finding(
    "accuracy.{vit} accuracy.{without}",
    section="6",
    figure="8",
    unit="difference in accuracy",
    above=0.0,
)
def skips_cost_accuracy(intact, without):
    """Removing the skips of a middle block costs accuracy.

    Test accuracy with all skips minus without those of the block.

    Against 0 (section 6, figure 8).

    Args:
        intact, without: pairs of accuracy in [0, 1] and number of test examples.
    """
    variance = sum(accuracy * (1 - accuracy) / examples for accuracy, examples in (intact, without))
    how = "binomial, as if on different images, which is wide for the same ones"
    return normal(intact[0] - without[0], np.sqrt(variance), how)


@quantity("skip_ratio.{model}", unit="ratio")
def skips_over_branches(ratios):
    """Weight of the skips.

    Norm of the skip over that of its branch, geometric mean over the layers of the mean over
    tokens: above 1 what comes in goes on.
    """
    ratio = expect_variable(ratios, "norm_ratio", ("layer", "token")).values
    return bootstrap(_exp_mean, np.log(np.nanmean(ratio, axis=1)), over="layers")


def _exp_mean(logs):
    return np.exp(logs.mean())


def plot_cosines(results):
    """`plot_skip_ratio_lines` of the cosine."""
    return plot_skip_ratio_lines(results, variable="cosine")


FIGURE_7_LEFT = Figure(
    paper=RAGHU,
    numbers="7 E.1",
    chapter=SKIPS,
    shows="norm of skip against branch, token by token and through the depth",
    models=each("vit", "gap"),
    measure=skip_ratio_by_token,
    draw=plot_skip_ratio,
    name="skip-ratio-{model}",
    title="Skip against branch in {model}, token by token",
    caption="Each cell is one token at one sum: above 1 the skip is the longer vector and what "
    "came in goes on, below 1 the branch rewrites it.",
    findings=[cls_skips_first, spatial_skips_second],
)

FIGURE_7_RIGHT = replace(
    FIGURE_7_LEFT,
    models=together("vit", "gap", "resnet", "mixer"),
    measure=skip_ratio_of,
    draw=plot_skip_ratio_lines,
    name="skip-ratio",
    title="Skip against branch through the depth",
    caption="The higher a line, the more of that token's representation is handed on by the skip; "
    "the grey line is where skip and branch are equally long.",
    findings=[skip_influence],
    quantities=[skips_over_branches],
)

FIGURE_E2 = replace(
    FIGURE_7_RIGHT,
    numbers="E.2",
    shows="cosine of skip and branch",
    draw=plot_cosines,
    name="skip-cosine",
    title="Direction of skip and branch through the depth",
    caption="At 1 the branch adds to what the skip carries, at 0 it writes something new beside "
    "it, and below 0 it takes something away.",
    findings=(),
    quantities=(),
)

FIGURE_8 = Figure(
    paper=RAGHU,
    numbers="8",
    chapter=SKIPS,
    shows="similarity of layers without the skips of a block",
    models=group("vit", "without", anyone=False),
    measure=cka_without_skips,
    draw=plot_cka_beside,
    name="without-skips-{model}",
    title="Similarity of the layers of {model} without the skips of a block",
    caption="Each panel is a model trained without the skips of one block, beside the intact "
    "one: where they matter, the layers before the block and those after it fall "
    "apart into two bright squares.",
    findings=[skips_partition, skips_cost_accuracy],
)
