"""Interventions: which heads, blocks and tokens does the output depend on?"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.features import Features

from ..flow.ablation import head_ablation, skip_ablation, token_ablation
from ..flow.logit_lens import lens_accuracy, logit_lens
from ..plots.flow_plots import (
    plot_head_effects,
    plot_lens_accuracy,
    plot_skip_ablation,
    plot_token_ablation,
)
from .chapters import CAUSES
from .vocabulary import (
    DATA,
    Data,
    Estimate,
    Figure,
    Measurement,
    Measurements,
    MeasureModel,
    Paper,
    StudyModel,
    Units,
    claim,
    descriptive,
    expect_variable,
    first_images,
    group,
    labels_of,
    mean_error,
    quantity,
    rank_correlation,
    require_above_chance,
    task,
    variants,
    with_error,
    with_roles,
)
from .walmer.section4_attention import unit_distance_of

MOST_IMAGES = 256  # of the user's models, unless the first batch alone is larger


def intervention(
    measure: Callable[..., xr.Dataset],
    model: StudyModel,
    taps: Sequence[str],
    name: str,
    call: str = "analysis.@name@({model}, @images@)",
    inputs: Sequence[Measurement] = (),
) -> Measurement:
    """A measurement of many forward passes over the labelled test images, with interventions.

    `measure` takes the features, the images, the layer of the scores and the results of `inputs`.
    """
    is_users = model.role == "model"
    scores = model.require_scores()
    model.require(not is_users or model.accuracy is not None, "class scores for these images")

    def make(data: Data, *results: xr.Dataset) -> xr.Dataset:
        test = first_images(data.test, MOST_IMAGES) if is_users else data.test
        return measure(model.select(*taps, scores), test, scores, *results)

    images = f"first_images(images, {MOST_IMAGES})" if is_users else "images"
    call = call.replace("@name@", name).replace("@images@", images)
    every = (DATA, *inputs)
    return task(name, model, make, reads="test", inputs=every, labelled=True, call=call)


def head_ablation_of(model: StudyModel) -> Measurement:
    """Effect of ablating each head."""
    return intervention(head_ablation, model, model.layers("heads"), "head_ablation")


def head_effects_of(model: StudyModel) -> Measurement:
    """Head ablation, with the attention distance of each head."""

    def make(effects: xr.Dataset, distance: xr.Dataset) -> xr.Dataset:
        sites = {tap.rpartition("/")[0]: tap for tap in effects["layer"].values}
        taps = [sites[tap.rpartition("/")[0]] for tap in distance["layer"].values]
        return effects.assign(distance=distance.assign_coords(layer=taps))

    ablation = head_ablation_of(model)
    inputs = (ablation, unit_distance_of(model))
    return task("head_effects", model, make, inputs=inputs, call=ablation.call)


def skip_ablation_of(model: StudyModel) -> Measurement:
    """Effect of removing the skips, and the branches, of each block."""
    return intervention(skip_ablation, model, model.layers("ablated_skips"), "skip_ablation")


def token_ablation_of(model: StudyModel) -> Measurement:
    """Effect of ablating tokens at half depth."""
    model.require_grid()
    taps, call = model.layers("embedding", "middle"), '({model}, @images@, detail="middle")'
    return intervention(token_ablation, model, taps, "token_ablation", f"analysis.@name@{call}")


def lens_of(model: StudyModel) -> Measurement:
    """Logit-lens accuracy of each block."""

    def measure(features: Features, test: tf.data.Dataset, scores: str) -> xr.Dataset:
        return lens_accuracy(logit_lens(features, test, scores), labels_of(test))

    call = "analysis.lens_accuracy(analysis.logit_lens({model}, @images@), labels_of(@images@))"
    return intervention(measure, model, model.layers("lens"), "lens_accuracy", call)


def over_seeds(models: list[StudyModel], measure: MeasureModel) -> Measurements | None:
    """A measurement of a ViT and its other seeds, or of the user's models."""
    shown = with_roles(models, "model")
    for intact in with_roles(models, "vit"):
        if not shown and (seeds := variants(models, intact, "seed")):
            shown = [intact, *seeds]
    return {model.name: measure(model) for model in shown} or None


def removal_of_blocks(models: list[StudyModel]) -> Measurements | None:
    """Skips and branches removed at test time, and ViTs that were trained without skips."""
    if user_models := with_roles(models, "model"):
        return {model.name: skip_ablation_of(model) for model in user_models}
    for intact in with_roles(models, "vit"):
        if without := variants(models, intact, "without"):
            others = with_roles(models, "gap", "resnet", "mixer")
            return {intact.name: _beside_trained(intact, without)} | {
                model.name: skip_ablation_of(model) for model in others
            }
    return None


def _gain_of(model: StudyModel, intact: StudyModel) -> tuple[float, float]:
    """Difference in accuracy and its standard error, paired where each image's answer is known."""
    if model.correct is not None and intact.correct is not None:
        gains = np.subtract(model.correct, intact.correct, dtype=float)
        return gains.mean(), mean_error(gains)[0]
    (without, count), (before, _) = cast(tuple, model.accuracy), cast(tuple, intact.accuracy)
    return without - before, np.sqrt((without * (1 - without) + before * (1 - before)) / count)


def _beside_trained(intact: StudyModel, without: Sequence[StudyModel]) -> Measurement:
    """Skip ablation with another path, the difference in accuracy of models trained without."""

    def make(effects: xr.Dataset) -> xr.Dataset:
        change = xr.full_like(effects["accuracy_change"].isel(path=[0]), np.nan)
        change = change.assign_coords(path=["skip, in training too"])
        error = change.copy(deep=True)
        for model in without:
            sites = [layer for layer in change["layer"].values if layer == model.detail]
            gain, gain_error = _gain_of(model, intact)
            change.loc[{"layer": sites}] = gain
            error.loc[{"layer": sites}] = gain_error
        trained = xr.Dataset({"accuracy_change": change, "accuracy_change_stderr": error})
        return xr.concat(
            [effects, trained], "path", data_vars="minimal", join="outer"
        ).assign_attrs(effects.attrs)

    ablation = skip_ablation_of(intact)
    return task("removal", (intact, *without), make, inputs=(ablation,), call=ablation.call)


MICHEL = Paper("Michel et al. (2019)", "https://arxiv.org/abs/1905.10650", prefix="Mi.", rank=5)
BHOJANAPALLI = Paper(
    "Bhojanapalli et al. (2021)", "https://arxiv.org/abs/2103.14586", prefix="Bh.", rank=6
)
DARCET = Paper("Darcet et al. (2024)", "https://arxiv.org/abs/2309.16588", prefix="Da.", rank=7)
VILAS = Paper("Vilas et al. (2023)", "https://arxiv.org/abs/2310.18969", prefix="Vi.", rank=8)


@claim(
    "head_ablation.{vit}",
    "abstract",
    "loss of accuracy",
    effect=0,
    least=0.01,
    beyond_untrained=False,
)
def heads_are_dispensable(effects: xr.Dataset) -> Estimate:
    """Most attention heads can be removed individually at a loss of less than a point of accuracy.

    Loss of accuracy without a head, averaged over the heads of the model.

    Michel et al. 2019 count the heads of language models whose removal causes no statistically
    significant loss. This count depends on the number of examples, and the mean loss does not. The
    margin, one percentage point, is a choice of this package.
    """
    require_above_chance(effects["accuracy"].item(), effects.attrs, "the ViT")
    return _mean_loss(effects, ("layer", "head"))


def _mean_loss(effects: xr.Dataset, dims: tuple[str, ...]) -> Estimate:
    """Mean loss of accuracy over parts of a model, whose errors are of the same images."""
    losses = -expect_variable(effects, "accuracy_change", dims).values.ravel()
    errors = expect_variable(effects, "accuracy_change_stderr", dims).values.ravel()
    is_known = np.isfinite(losses)
    images = int(effects.attrs["examples"])
    # No image changed: at most 3 / images do, with 95 % confidence.
    errors = np.maximum(errors[is_known], 1.5 / images)
    error = float(errors.mean()), images - 1.0
    return with_error(losses[is_known].mean(), error, Units("images", images, images))


@quantity("head_effects.{model}", unit="rank correlation", more="depends more on its global heads")
def global_heads_matter(effects: xr.Dataset) -> Estimate:
    """Rank correlation between attention distance and head importance.

    Spearman's correlation over all heads between two values: the attention distance of a head, and
    the change of the output when the head is removed. If the correlation is above 0, global heads
    matter more.
    """
    dims = ("layer", "head")
    pairs = [
        expect_variable(effects, n, dims).values.ravel() for n in ("distance", "output_change")
    ]
    pairs = np.stack(pairs, axis=1)
    value = rank_correlation(pairs[np.isfinite(pairs).all(axis=1)])
    return descriptive(value, "It covers all heads of the model, which are not a sample")


@claim(
    "skip_ablation.{vit}",
    "abstract",
    "loss of accuracy",
    effect=0,
    least=0.05,
    beyond_untrained=False,
)
def vits_survive_layers(effects: xr.Dataset) -> Estimate:
    """ViTs are robust to the removal of almost any single layer.

    Loss of accuracy without the branches of a block, averaged over the blocks of the model.

    The margin of five percentage points is a choice of this package.
    """
    require_above_chance(effects["accuracy"].item(), effects.attrs, "the ViT")
    return _mean_loss(effects.sel(path=["branch"]), ("layer", "path"))


HEADS = Figure(
    paper=MICHEL,
    numbers="heads",
    chapter=CAUSES,
    shows="effect of removing each head, by attention distance",
    models=group("vit", "seed", require_model=head_effects_of),
    measure=partial(over_seeds, measure=head_effects_of),
    results="head_effects head_ablation",
    draw=plot_head_effects,
    name="head-effects-{model}",
    show="analysis.plots.plot_head_ablation",
    title="Head ablation by attention distance",
    caption=(
        "Each point is a head. The axes are its attention distance and the change of the output "
        "without this head, with a 95 % CI over images."
    ),
    claims=[heads_are_dispensable],
    quantities=[global_heads_matter],
)

BLOCKS = Figure(
    paper=BHOJANAPALLI,
    numbers="blocks",
    chapter=CAUSES,
    shows="accuracy without the skips or branches of each block",
    models=group("vit", "gap", "resnet", "mixer", "without", require_model=skip_ablation_of),
    measure=removal_of_blocks,
    results="removal skip_ablation",
    draw=plot_skip_ablation,
    name="without-blocks",
    title="Accuracy without the skips or branches of a block",
    caption=(
        "Each point is the change in accuracy of the trained model when one block is ablated. "
        "Ablating the branches removes the block. Ablating the skips removes the identity path "
        "through the block. A model that was trained without the skips of a block has adapted to "
        "their absence."
    ),
    claims=[vits_survive_layers],
)

TOKENS = Figure(
    paper=DARCET,
    numbers="tokens",
    chapter=CAUSES,
    shows="accuracy after removing growing shares of the tokens",
    models=group("vit", "seed", require_model=token_ablation_of),
    measure=partial(over_seeds, measure=token_ablation_of),
    results="token_ablation",
    draw=plot_token_ablation,
    name="without-tokens-{model}",
    title="Token ablation at half depth",
    caption=(
        "Each line shows the change in accuracy when a fraction of the spatial tokens is replaced: "
        "random tokens, those of the largest norm, or those that receive the most or the least "
        "attention. The point cls is the CLS token alone. Tokens whose line falls earlier than the "
        "line for random tokens carry more information than random tokens."
    ),
)

LENS = Figure(
    paper=VILAS,
    numbers="lens",
    chapter=CAUSES,
    shows="logit lens: accuracy of the head on earlier blocks",
    models=group("vit", "seed", require_model=lens_of),
    measure=partial(over_seeds, measure=lens_of),
    results="lens_accuracy",
    draw=plot_lens_accuracy,
    name="logit-lens-{model}",
    title="Logit-lens accuracy",
    caption=(
        "Each point is the accuracy of the final norm and head, applied to the output of a "
        "block. A block at which the line rises adds class information that the head can use."
    ),
)
