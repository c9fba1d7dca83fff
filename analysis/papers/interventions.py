"""Measurements of the chapter on causes: models with heads, blocks or tokens ablated.

Each takes many forward passes: of a study they are in the full one, and of anyone's models they
read at most `MOST_IMAGES`.
"""

import math

import numpy as np
import xarray as xr

from ..engine.estimates import mean_error
from ..flow.ablation import head_ablation, skip_ablation, token_ablation
from ..flow.logit_lens import lens_accuracy, logit_lens
from ..study.figure import playing, variants
from ..study.measurement import DATA, task
from .walmer.section4_heads import unit_distance_of

SCORES = "logits"
MOST_IMAGES = 512  # of anyone's models, whose sizes are not known beforehand


def _of_data(analysis, model, taps, measure):
    """A measurement that runs a model with interventions on the labelled test images."""
    anyones = model.role == "model"
    if SCORES not in model.taps or (anyones and model.accuracy is None):
        model.lacks("class scores for these images")

    def make(data):
        test = _first(data.test, MOST_IMAGES) if anyones else data.test
        return measure(model.features(*taps, SCORES), test)

    return task(analysis, model, make, reads="test", inputs=(DATA,))


def _first(batches, count):
    """The first batches, with at least `count` images."""
    images, _ = next(iter(batches))
    return batches.take(math.ceil(count / len(images)))


def head_ablation_of(model):
    """Effect of ablating each head."""
    heads = [tap for tap in model.taps if tap.endswith("/heads")]
    return _of_data("head_ablation", model, heads or model.lacks("outputs of heads"), head_ablation)


def head_effects_of(model):
    """The same, with the attention distance of each head."""

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
    """Effect of removing the skips, and the branches, of each block."""
    taps = [tap for tap in model.taps if tap.endswith(("/skip", "/branch"))]
    taps = taps or model.lacks("separate skips and branches")
    return _of_data("skip_ablation", model, taps, skip_ablation)


def token_ablation_of(model):
    """Effect of ablating tokens at half depth."""
    model.require_grid()
    sums = [tap for tap in model.on_grid(model.blocks) if tap.endswith("/sum")]
    if not sums or model.has_maps:
        model.lacks("blocks of tokens")
    middle = sums[len(sums) // 2 - 1]
    weights = f"{middle.split('/')[0]}/attention/weights"
    taps = [middle, *([weights] if weights in model.taps else [])]
    return _of_data("token_ablation", model, taps, token_ablation)


def lens_of(model):
    """Logit-lens accuracy of each block."""

    def measure(features, test):
        labels = np.concatenate([labels for _, labels in test.as_numpy_iterator()])
        return lens_accuracy(logit_lens(features, test, SCORES), labels)

    blocks = [tap for tap in model.blocks if tap.startswith("block") and tap.endswith("/sum")]
    return _of_data("lens_accuracy", model, blocks or model.lacks("blocks of one width"), measure)


def of_trainings(measure):
    """A function of models that measures a ViT and its other seeds, or any models."""

    def measured(models):
        if anyones := playing(models, "model"):
            return {model.name: measure(model) for model in anyones}
        for intact in playing(models, "vit"):
            if others := variants(models, intact, "seed"):
                return {model.name: measure(model) for model in (intact, *others)}
        return None

    return measured


def removal_of_blocks(models):
    """Skips and branches removed at test time, and ViTs that were trained without skips."""
    if anyones := playing(models, "model"):
        return {model.name: skip_ablation_of(model) for model in anyones}
    for intact in playing(models, "vit"):
        if without := variants(models, intact, "without"):
            others = playing(models, "gap", "resnet", "mixer")
            return {intact.name: _beside_trained(intact, without)} | {
                model.name: skip_ablation_of(model) for model in others
            }
    return None


def _gain_of(model, intact):
    """Difference in accuracy and its standard error, paired where each image's answer is known."""
    if model.correct is not None and intact.correct is not None:
        gains = np.subtract(model.correct, intact.correct, dtype=float)
        return gains.mean(), mean_error(gains)[0]
    (one, count), (other, _) = model.accuracy, intact.accuracy
    return one - other, np.sqrt((one * (1 - one) + other * (1 - other)) / count)


def _beside_trained(intact, without):
    """Skip ablation with another path, the difference in accuracy of models trained without."""

    def make(effects):
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

    return task("removal", (intact, *without), make, inputs=(skip_ablation_of(intact),))
