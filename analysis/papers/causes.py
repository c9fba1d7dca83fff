"""Interventions: which heads, blocks and tokens does the output depend on?"""

import numpy as np

from ..engine.estimates import (
    correlation,
    estimate,
    lower,
    minus,
    require_above_chance,
    t_interval,
    upper,
    welch,
    wilson,
    with_error,
)
from ..engine.results import expect_variable
from ..flow.ablation import LARGEST, RANDOM
from ..plots.flow_plots import (
    plot_head_effects,
    plot_lens_accuracy,
    plot_skip_ablation,
    plot_token_ablation,
)
from ..study.figure import Figure, Paper, group
from ..study.judge import finding
from ..study.measurement import quantity
from .chapters import CAUSES
from .interventions import (
    head_effects_of,
    lens_of,
    of_trainings,
    removal_of_blocks,
    skip_ablation_of,
    token_ablation_of,
)

MICHEL = Paper("Michel et al. (2019)", "https://arxiv.org/abs/1905.10650", prefix="Mi.", rank=5)
BHOJANAPALLI = Paper(
    "Bhojanapalli et al. (2021)", "https://arxiv.org/abs/2103.14586", prefix="Bh.", rank=6
)
DARCET = Paper("Darcet et al. (2023)", "https://arxiv.org/abs/2309.16588", prefix="Da.", rank=7)
VILAS = Paper("Vilas et al. (2023)", "https://arxiv.org/abs/2310.18969", prefix="Vi.", rank=8)
FEW = 0.1  # of the tokens, those of the largest norm
HARDLY = -np.log(0.99)  # nat: the probability of the right class falls by 1 %


@finding("head_ablation.{vit}", section="", figure="", unit="share of heads", above=0.5)
def heads_are_dispensable(effects):
    """Most attention heads can be removed individually without a significant loss.

    Share of heads whose removal lowers the probability of the true class by less than 1 %.

    The geometric mean over the images: the loss grows by less than 0.01 nat, a margin that does not
    depend on the number of images. Threshold 1/2, most (Michel et al. 2019, on language models).
    The interval is Wilson's over heads, its lower end of those that are below the margin with their
    own interval, its upper end of those that are not above it.

    Args:
        effects: Dataset of `head_ablation`.
    """
    require_above_chance(effects["accuracy"], effects.attrs, "the ViT")
    dims = ("layer", "head")
    grows = expect_variable(effects, "loss_change", dims).values.ravel()
    error = expect_variable(effects, "loss_change_stderr", dims).values.ravel()
    known, df = np.isfinite(grows), effects.attrs["examples"] - 1
    grows, error = grows[known], error[known]

    def limits(alpha):
        low, high = t_interval(grows, error, df, alpha)
        fewest, most = np.sum(high < HARDLY), np.sum(low < HARDLY)
        return wilson(fewest, len(grows), alpha)[0], wilson(most, len(grows), alpha)[1]

    how = f"Wilson's interval over {len(grows)} heads, and Student's of each head's loss"
    return estimate(np.mean(grows < HARDLY), limits, how)


@quantity("head_effects.{model}", unit="rank correlation", more="depends more on its global heads")
def global_heads_matter(effects):
    """Rank correlation of attention distance and head importance.

    Spearman's, over all heads, of attention distance and change of the output without the head.
    Above 0, global heads matter more.
    """
    dims = ("layer", "head")
    pairs = [
        expect_variable(effects, n, dims).values.ravel() for n in ("distance", "output_change")
    ]
    pairs = np.stack(pairs, axis=1)
    return correlation(pairs[np.isfinite(pairs).all(axis=1)], "heads")


@finding(
    "skip_ablation.{vit} skip_ablation.{resnet}",
    section="",
    figure="",
    unit="difference in accuracy",
    above=0.0,
)
def vits_survive_layers(vit, resnet):
    """ViTs are more robust to the removal of a single layer than ResNets.

    Mean change in accuracy without the branches of a block, ViT minus ResNet.

    Threshold 0 (Bhojanapalli et al. 2021: a layer is a block of a ViT and a unit of a ResNet).

    Args:
        vit, resnet: Dataset of `skip_ablation`.
    """
    samples = []
    for what, result in (("the ViT", vit), ("the ResNet", resnet)):
        require_above_chance(result["accuracy"], result.attrs, what)
        change = expect_variable(result, "accuracy_change", ("layer", "path"))
        samples.append(change.sel(path="branch").dropna("layer").values)
    return welch(*samples, "layers")


@finding("token_ablation.{vit}", section="", figure="", unit="nat", above=0.0)
def large_tokens_hold_more(effects):
    """High-norm tokens contain more global information than other tokens.

    Divergence of the output without the 10 % of tokens with the largest norm at half depth, minus
    that without as many random tokens.

    Threshold 0. Darcet et al. 2023 find high-norm tokens in the background of images, which ViTs
    use for internal computations, in large models that were trained for long.

    Args:
        effects: Dataset of `token_ablation`.
    """
    found = []
    for tokens in (LARGEST, RANDOM):
        cell = effects.sel(tokens=[tokens], share=FEW)
        numbers = (cell[f"output_change{end}"].item() for end in ("", "_stderr"))
        found.append(with_error(*numbers, effects.attrs.get("examples", np.inf) - 1, "Student's t"))
    return minus(*found)


@finding("lens_accuracy.{vit}", section="", figure="", unit="difference in accuracy", above=0.0)
def classes_emerge(lens):
    """Class representations emerge over the layers in the space of the class embedding.

    Accuracy of the logit lens, mean over the upper half of the blocks minus mean over the lower.

    Threshold 0 (Vilas et al. 2023).

    Args:
        lens: Dataset of `lens_accuracy`.
    """
    accuracy = expect_variable(lens, "accuracy", ("layer",)).values
    require_above_chance(accuracy[-1], lens.attrs, "the ViT")
    return welch(upper(accuracy), lower(accuracy), "layers")


HEADS = Figure(
    paper=MICHEL,
    numbers="heads",
    chapter=CAUSES,
    shows="effect of removing each head, by attention distance",
    models=group("vit", "seed", needing=head_effects_of),
    measure=of_trainings(head_effects_of),
    draw=plot_head_effects,
    name="head-effects-{model}",
    call="analysis.head_ablation({model}, images)",
    show="analysis.plot_head_ablation",
    title="Head ablation by attention distance",
    caption="Each point is a head: its attention distance, and the change of the output without "
    "it.",
    findings=[heads_are_dispensable],
    quantities=[global_heads_matter],
)

BLOCKS = Figure(
    paper=BHOJANAPALLI,
    numbers="blocks",
    chapter=CAUSES,
    shows="accuracy without the skips or branches of each block",
    models=group("vit", "gap", "resnet", "mixer", "without", needing=skip_ablation_of),
    measure=removal_of_blocks,
    draw=plot_skip_ablation,
    name="without-blocks",
    call="analysis.skip_ablation({model}, images)",
    title="Accuracy without the skips or branches of a block",
    caption="Each point is the change in accuracy of the trained model with one block ablated. "
    "Without its branches a block is removed; without its skips it has no identity path. Models "
    "trained without these skips have adapted to it.",
    findings=[vits_survive_layers],
)

TOKENS = Figure(
    paper=DARCET,
    numbers="tokens",
    chapter=CAUSES,
    shows="accuracy without growing shares of the tokens",
    models=group("vit", "seed", needing=token_ablation_of),
    measure=of_trainings(token_ablation_of),
    draw=plot_token_ablation,
    name="without-tokens-{model}",
    call="analysis.token_ablation({model}, images)",
    title="Token ablation at half depth",
    caption="Accuracy over the share of tokens removed; each line is an order of removal. Where a "
    "line falls before that of random tokens, these tokens carry more information.",
    findings=[large_tokens_hold_more],
)

LENS = Figure(
    paper=VILAS,
    numbers="lens",
    chapter=CAUSES,
    shows="logit lens: accuracy of the head on earlier blocks",
    models=group("vit", "seed", needing=lens_of),
    measure=of_trainings(lens_of),
    draw=plot_lens_accuracy,
    name="logit-lens-{model}",
    call="analysis.lens_accuracy(analysis.logit_lens({model}, images), labels)",
    title="Logit-lens accuracy",
    caption="Each point is the accuracy of the final norm and head applied to the output of a "
    "block. Where the line rises, the block writes the class in the space of the head.",
    findings=[classes_emerge],
)
