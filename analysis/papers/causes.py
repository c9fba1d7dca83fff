"""Interventions: which heads, blocks and tokens are the answers made of?

Figures of the full study: each takes many forward passes.
"""

import numpy as np
import xarray as xr

from ..engine.estimates import Sample, bootstrap, difference, lower, rank_correlation, upper
from ..engine.results import expect_variable
from ..flow.interventions.heads import head_ablation
from ..flow.interventions.skips import skip_ablation
from ..flow.interventions.tokens import LARGEST, RANDOM, token_ablation
from ..flow.logit_lens import lens_accuracy, logit_lens
from ..plots.images.evidence import plot_lens_accuracy
from ..plots.interventions.effects import (
    plot_head_effects,
    plot_skip_ablation,
    plot_token_ablations,
)
from ..study.figure import Figure, Paper, group, playing, variants
from ..study.judge import finding
from ..study.measurement import DATA, quantity, task
from .chapters import CAUSES
from .walmer.section4_heads import unit_distance_of

MICHEL = Paper("Michel et al. (2019)", "https://arxiv.org/abs/1905.10650", prefix="Mi.", rank=5)
BHOJANAPALLI = Paper(
    "Bhojanapalli et al. (2021)", "https://arxiv.org/abs/2103.14586", prefix="Bh.", rank=6
)
DARCET = Paper("Darcet et al. (2023)", "https://arxiv.org/abs/2309.16588", prefix="Da.", rank=7)
VILAS = Paper("Vilas et al. (2023)", "https://arxiv.org/abs/2310.18969", prefix="Vi.", rank=8)
SCORES = "logits"
FEW = 0.1  # of the tokens, those of the largest norm
Z = 1.96


def _of_data(analysis, model, taps, measure):
    """A measurement that runs a model with interventions on the labelled test images."""
    if SCORES not in model.taps:
        model.lacks("scores of classes that are known")
    return task(
        analysis,
        model,
        lambda data: measure(model.features(*taps, SCORES), data.test),
        reads="test",
        inputs=(DATA,),
    )


def head_ablation_of(model):
    """What the model loses with each of its heads."""
    heads = [tap for tap in model.taps if tap.endswith("/heads")]
    return _of_data("head_ablation", model, heads or model.lacks("outputs of heads"), head_ablation)


def head_effects_of(model):
    """The same beside how far each head looks."""

    def make(effects, distance):
        named = {"layer": [tap.rpartition("/")[0] for tap in distance["layer"].values]}
        effects = effects.assign_coords(
            layer=[tap.rpartition("/")[0] for tap in effects["layer"].values]
        )
        return effects.assign(distance=distance.assign_coords(named))

    return task(
        "head_effects", model, make, inputs=(head_ablation_of(model), unit_distance_of(model))
    )


def skip_ablation_of(model):
    """What the model loses without the skips, and without the branches, of each block."""
    taps = [tap for tap in model.taps if tap.endswith(("/skip", "/branch"))]
    taps = taps or model.lacks("skips that are known apart from their branches")
    return _of_data("skip_ablation", model, taps, skip_ablation)


def token_ablation_of(model):
    """What the model loses without some tokens in the middle of its depth."""
    model.require_grid()
    sums = [tap for tap in model.on_grid(model.blocks) if tap.endswith("/sum")]
    middle = (sums or model.lacks("blocks of tokens"))[len(sums) // 2 - 1]
    weights = f"{middle.split('/')[0]}/attention/weights"
    taps = [middle, *([weights] if weights in model.taps else [])]
    return _of_data("token_ablation", model, taps, token_ablation)


def lens_of(model):
    """How often each block is read as the right class by the model's own head."""

    def measure(features, test):
        labels = np.concatenate([labels for _, labels in test.as_numpy_iterator()])
        return lens_accuracy(logit_lens(features, test, SCORES), labels)

    blocks = [tap for tap in model.blocks if tap.startswith("block") and tap.endswith("/sum")]
    return _of_data("lens_accuracy", model, blocks or model.lacks("blocks of one width"), measure)


def of_trainings(measure):
    """A function of models that measures a ViT and other trainings of it alike."""

    def measured(models):
        for intact in playing(models, "vit"):
            if others := variants(models, intact, "seed"):
                return {model.name: measure(model) for model in (intact, *others)}
        return None

    return measured


def removal_of_blocks(models):
    """Skips and branches removed at test time, beside the ViTs that were trained without skips."""
    for intact in playing(models, "vit"):
        if without := variants(models, intact, "without"):
            others = playing(models, "gap", "resnet", "mixer")
            return {intact.name: _beside_trained(intact, without)} | {
                model.name: skip_ablation_of(model) for model in others
            }
    return None


def _beside_trained(intact, without):
    """Skip ablation with another path, the difference in accuracy of models trained without."""

    def make(effects):
        change = xr.full_like(effects["accuracy_change"].isel(path=[0]), np.nan)
        change = change.assign_coords(path=["skip, in training too"])
        error = change.copy(deep=True)
        for model in without:
            (accuracy, count), (whole, _) = model.accuracy, intact.accuracy
            sites = [layer for layer in change["layer"].values if layer == model.detail]
            variance = accuracy * (1 - accuracy) + whole * (1 - whole)
            change.loc[{"layer": sites}] = accuracy - whole
            error.loc[{"layer": sites}] = np.sqrt(variance / count)
        trained = xr.Dataset({"accuracy_change": change, "accuracy_change_stderr": error})
        return xr.concat(
            [effects, trained], "path", data_vars="minimal", join="outer"
        ).assign_attrs(effects.attrs)

    return task("removal", (intact, *without), make, inputs=(skip_ablation_of(intact),))


@finding("head_ablation.{vit}", section="", figure="", unit="share of heads", above=0.5)
def heads_are_dispensable(effects):
    """Most heads can be removed one at a time without a measurable loss.

    Share of the heads without which the loss does not grow by more than 1.96 standard errors.

    Against 1/2, most (Michel et al. 2019, of language models).

    Args:
        effects: Dataset of `head_ablation`.
    """
    dims = ("layer", "head")
    grows = expect_variable(effects, "loss_change", dims).values.ravel()
    error = expect_variable(effects, "loss_change_stderr", dims).values.ravel()
    known = np.isfinite(grows)
    return bootstrap(np.mean, 1.0 * (grows <= Z * error)[known], over="heads")


@quantity("head_effects.{model}", unit="rank correlation")
def global_heads_matter(effects):
    """Do heads that look further matter more?

    Rank correlation, over all heads, of how far a head looks with how much the output changes
    without it: above 0 global heads matter more.
    """
    dims = ("layer", "head")
    pairs = [
        expect_variable(effects, n, dims).values.ravel() for n in ("distance", "output_change")
    ]
    pairs = np.stack(pairs, axis=1)
    return bootstrap(rank_correlation, pairs[np.isfinite(pairs).all(axis=1)], over="heads")


@finding(
    "skip_ablation.{vit} skip_ablation.{resnet}",
    section="",
    figure="",
    unit="difference in accuracy",
    above=0.0,
)
def vits_survive_layers(vit, resnet):
    """ViTs survive the loss of a layer better than ResNets.

    Mean change of the accuracy without the branches of a block, ViT minus ResNet.

    Against 0 (Bhojanapalli et al. 2021, where a layer is a block of a ViT and a unit of a ResNet).

    Args:
        vit, resnet: Dataset of `skip_ablation`.
    """
    samples = []
    for result in (vit, resnet):
        change = expect_variable(result, "accuracy_change", ("layer", "path"))
        samples.append(change.sel(path="branch").dropna("layer").values)
    return bootstrap(lambda x, y: x.mean() - y.mean(), *samples, over="layers")


@finding("token_ablation.{vit}", section="", figure="", unit="nat", above=0.0)
def large_tokens_hold_more(effects):
    """The few tokens of the largest norm hold more of the image than others.

    Divergence of the output without the tenth of the tokens of the largest norm in the middle of
    the depth, minus without as many at random.

    Against 0. Darcet et al. 2023 find tokens of high norm in the background of images, which ViTs
    use for computations of their own, in large models that were trained for long.

    Args:
        effects: Dataset of `token_ablation`.
    """
    found = []
    for tokens in (LARGEST, RANDOM):
        cell = effects.sel(tokens=[tokens], share=FEW)
        found.append(Sample(cell["output_change"].values, cell["output_change_stderr"].values))
    return difference(*found, over="shares")


@finding("lens_accuracy.{vit}", section="", figure="", unit="difference in accuracy", above=0.0)
def classes_emerge(lens):
    """Classes emerge through the depth, in the space of the head.

    Accuracy of the logit lens, mean of the upper half of the blocks minus that of the lower.

    Against 0 (Vilas et al. 2023).

    Args:
        lens: Dataset of `lens_accuracy`.
    """
    accuracy = expect_variable(lens, "accuracy", ("layer",)).values
    halves = [half(accuracy) for half in (upper, lower)]
    return bootstrap(lambda x, y: x.mean() - y.mean(), *halves, over="layers")


HEADS = Figure(
    paper=MICHEL,
    numbers="heads",
    chapter=CAUSES,
    shows="what is lost with each head, by how far it looks",
    models=group("vit", "seed", anyone=False),
    measure=of_trainings(head_effects_of),
    draw=plot_head_effects,
    name="head-effects-{model}",
    title="What {model} loses with each of its heads",
    caption="Each point is a head: the higher, the more the output changes without it; the further "
    "right, the further it looks.",
    findings=[heads_are_dispensable],
    quantities=[global_heads_matter],
)

BLOCKS = Figure(
    paper=BHOJANAPALLI,
    numbers="blocks",
    chapter=CAUSES,
    shows="what is lost without the skips or branches of each block",
    models=group("vit", "gap", "resnet", "mixer", "without", anyone=False),
    measure=removal_of_blocks,
    draw=plot_skip_ablation,
    name="without-blocks",
    title="Accuracy without the skips or branches of a block",
    caption="Each point is the trained model with one block changed: near 0 it does as well. "
    "Without its branches a block is gone; without its skips nothing passes it unchanged, "
    "which models that were trained so have learned to bear.",
    findings=[vits_survive_layers],
)

TOKENS = Figure(
    paper=DARCET,
    numbers="tokens",
    chapter=CAUSES,
    shows="what is lost without growing shares of the tokens",
    models=group("vit", "seed", anyone=False),
    measure=of_trainings(token_ablation_of),
    draw=plot_token_ablations,
    name="without-tokens-{model}",
    title="Accuracy of {model} without some tokens in the middle of its depth",
    caption="Each line is an order in which tokens go: where it falls before that of random ones, "
    "these tokens hold more.",
    findings=[large_tokens_hold_more],
)

LENS = Figure(
    paper=VILAS,
    numbers="lens",
    chapter=CAUSES,
    shows="accuracy of the head on earlier blocks",
    models=group("vit", "seed", anyone=False),
    measure=of_trainings(lens_of),
    draw=plot_lens_accuracy,
    name="logit-lens-{model}",
    title="Blocks of {model} as its own head reads them",
    caption="Each point is a block, read as if it were the last: where the lines rise, the class "
    "is written in the words of the head.",
    findings=[classes_emerge],
)
