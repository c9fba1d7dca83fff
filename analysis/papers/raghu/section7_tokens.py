"""Raghu et al. 2021, section 7, appendices D and F: localization and linear probes of tokens."""

from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr

from ...engine.estimates import (
    Estimate,
    accuracy_of,
    descriptive,
    estimate,
    jackknifed,
    lower,
    minus,
    require_above_chance,
    student,
    with_enough_images,
)
from ...engine.matching import match_maps
from ...engine.results import Results, expect_array, layer_names, unpack_correct
from ...engine.roles import Features
from ...engine.stream import Statistic
from ...plots.probe_plots import plot_probe_map, plot_probes, plot_summary_probes, plot_token_probes
from ...plots.similarity_plots import plot_localization, plot_localization_by_layer
from ...probes.ridge import L2, Probe, ridge_probe, score_statistic, select_l2
from ...similarity.localization import last_maps, localization, own_share
from ...study.claims import RUNS, claim
from ...study.data import Data
from ...study.figure import Figure, Overview, each, group, split, together, variants, with_roles
from ...study.measure import (
    DATA,
    Measurement,
    Measurements,
    SharedPass,
    quantity,
    statistic,
    task,
)
from ...study.models import StudyModel
from ..chapters import LOCALIZATION, PROBES
from . import RAGHU


def localization_of(model: StudyModel) -> SharedPass:
    """Similarity of single tokens of all blocks on the grid and image patches."""
    model.require_grid()
    taps = model.layers("output_tokens", "blocks")
    return statistic(localization, model, taps, detail="blocks")


def localization_by_depth(model: StudyModel) -> SharedPass | None:
    """Localization by layer; None for a model with a single layer on the grid."""
    measurement = localization_of(model)
    return measurement if len(measurement.taps[0]) > 1 else None


def localization_of_stages(model: StudyModel) -> Measurements | None:
    """Similarity of some positions of a ResNet's earlier stages, not all, and image patches."""
    if not model.stages:
        return None
    model.require_grid()
    measurements = {}
    for stage in model.stages[:-1]:
        tap = [tap for tap in model.blocks if tap.startswith(f"{stage}/")][-1]
        rows, columns = model.map_size(tap)
        # Positions at the quarters of the map's height and width.
        at_rows, at_columns = ([side * n // 4 for n in (1, 2, 3)] for side in (rows, columns))
        tokens = sorted({row * columns + column for row in at_rows for column in at_columns})
        measurements[stage] = statistic(
            f"localization_{stage}",
            model,
            [tap],
            partial(localization.statistic, tokens=tuple(tokens)),
            call=f"analysis.localization({{model}}, images, layers={tap!r}, tokens={tokens})",
        )
    return measurements


@claim("localization.{vit}", "7", "9", "share of tokens", above=0.5, least=0.05)
def own_patch(similarity: xr.DataArray) -> Estimate:
    """Most tokens of the last layer are most similar to their own patch.

    Share of the tokens in the last layer whose most similar patch, by CKA, is their own patch.

    The threshold of 1/2 (most tokens) is a convention. By chance, the share is one divided by the
    number of patches. Only the rank counts: the CKA of a token with its own patch may be small. The
    interval is over images, for all tokens of this model. If there are so few images that noise
    hides the similarity of a token to its own patch, the claim is not tested.
    """
    maps, own = last_maps(similarity)
    value = own_share(maps, own)
    rest = similarity.attrs.get("own_share_without_batch")
    if rest is None:
        return descriptive(value, OLDER_LOCALIZATION)
    measured = with_enough_images(value, np.atleast_1d(rest), *_batches_of(similarity))
    level = maps[np.arange(len(maps)), own].mean()
    return replace(measured, how=f"{measured.how}; mean CKA with the own patch {level:.2g}")


OLDER_LOCALIZATION = "the file of an older version lacks the values by batch"


def _batches_of(similarity: xr.DataArray) -> tuple[float, str, str]:
    """The number of images of a `localization`, the unit of its error and the pairing."""
    examples = similarity.attrs.get("examples", np.nan)
    count = np.size(similarity.attrs.get("own_share_without_batch", ()))
    return examples, "batches", f"{count} batches of {examples} images"


@claim(
    "localization.{vit} localization.{gap}",
    "7",
    "10",
    "difference in share of patches",
    above=0,
    least=0.05,
    about=RUNS,
    learned=True,
)
def cls_localizes_more(vit: xr.DataArray, gap: xr.DataArray) -> Estimate:
    """A ViT trained with a CLS token localizes better than one with global average pooling.

    For each token of the last layer, CKA with every patch of the image is computed. The token's
    localization is the share of the other patches that have a lower CKA than the token's own patch.
    The localization of a model is the mean over its tokens. The value of the claim is the
    localization of the CLS model minus the localization of the average-pooling model. The same
    difference for untrained models is subtracted.

    As `vit_localizes_more`.
    """
    return _localizes_more(vit, gap)


@claim(
    "localization.{vit} localization.{resnet}",
    "7",
    "9",
    "difference in share of patches",
    above=0,
    least=0.05,
    about=RUNS,
)
def vit_localizes_more(vit: xr.DataArray, resnet: xr.DataArray) -> Estimate:
    """The ViT localizes better than the ResNet.

    For each token of the last layer, CKA with every patch of the image is computed. The token's
    localization is the share of the other patches that have a lower CKA than the token's own patch.
    The localization of a model is the mean over its tokens. The value of the claim is the
    localization of the ViT minus the localization of the ResNet. Both are measured on the coarser
    of the two models' grids.

    On any grid, the localization is 1 if all tokens are most similar to their own patch, and 1/2 by
    chance. Only the rank counts: the ResNet may have a larger CKA with its own patch and also with
    all other patches. Tokens and patches of the finer grid are averaged within the patches of the
    coarser grid. Therefore, the patch size of the coarser grid must be a multiple of the patch size
    of the finer grid.
    """
    return _localizes_more(vit, resnet)


def _localizes_more(first: xr.DataArray, second: xr.DataArray) -> Estimate:
    """Difference of the share of patches below the own one; over images where grids are equal."""
    rows, columns = (
        min(similarity.sizes[dim] for similarity in (first, second)) for dim in ("row", "column")
    )
    estimates = []
    for similarity in (first, second):
        factors = similarity.sizes["row"] / rows, similarity.sizes["column"] / columns
        if factors[0] != factors[1] or factors[0] % 1:
            raise ValueError(f"Not tested: {_grids(first, second)}; neither divides the other.")
        shares = _share_below_own(similarity, int(factors[0]))
        value, rest = np.nanmean(shares), similarity.attrs.get("rank_without_batch")
        if rest is None or factors[0] != 1:
            estimates.append(descriptive(value, OLDER_LOCALIZATION if rest is None else COARSER))
        else:
            _, over, pairing = _batches_of(similarity)
            estimates.append(jackknifed(value, np.atleast_1d(rest), over, pairing))
    return minus(*estimates)


COARSER = "the error over images on a coarser grid is not known"


def _share_below_own(similarity: xr.DataArray, factor: int) -> np.ndarray:
    """Share of other patches less similar than the own one: (position,) of a coarser grid."""
    last = expect_array(similarity, ("layer", "token", "row", "column")).isel(layer=-1)
    last = last.isel(token=np.isfinite(last["token_row"].values))
    coarse = last.coarsen(row=factor, column=factor).mean()
    rows, columns = coarse.shape[1:]
    maps = coarse.values.reshape(len(coarse), -1)
    row, column = (
        (last[f"token_{axis}"].values // factor).astype(int) for axis in ("row", "column")
    )
    own_patch = row * columns + column
    mine = maps[np.arange(len(maps)), own_patch][:, None]
    better = np.where(np.isfinite(maps - mine), (maps < mine) + 0.5 * (maps == mine), np.nan)
    better[np.arange(len(maps)), own_patch] = np.nan
    is_known = np.isfinite(better).any(axis=1)
    counts = np.bincount(own_patch[is_known], minlength=rows * columns)
    sums = np.bincount(own_patch[is_known], np.nanmean(better[is_known], axis=1), rows * columns)
    return sums / np.where(counts, counts, np.nan)


def _grids(first: xr.DataArray, second: xr.DataArray) -> str:
    """The grids of two results, in words."""
    return "grids of {} x {} and of {} x {} patches".format(*first.shape[-2:], *second.shape[-2:])


@quantity(
    "localization.{model}",
    unit="share of tokens",
    more="localizes more of its last-layer tokens",
)
def localized_tokens(similarity: xr.DataArray) -> Estimate:
    """Share of tokens in the last layer that are most similar to their own patch.

    A token counts if its most similar patch, by CKA, is its own.
    """
    try:
        return own_patch(similarity)
    except ValueError as too_few_images:
        return descriptive(own_share(*last_maps(similarity)), str(too_few_images).rstrip("."))


def localization_caption(models: list[StudyModel], results: Results) -> str:
    """How to read the maps, and their grey patches where there are any."""
    gaps = any(bool(result.isnull().any()) for result in results.values())
    return (
        "Each panel is the CKA of one token or position with every image patch. The frame marks "
        "the patch at the position of the token. Colours span the values of all panels."
        + (" Grey patches are identical in all images." if gaps else "")
    )


FIGURE_9 = Figure(
    paper=RAGHU,
    numbers="9 10 D.1 D.2 D.3",
    chapter=LOCALIZATION,
    shows="CKA between single tokens and image patches",
    models=each("vit", "gap", "resnet"),
    measure=localization_of,
    results="localization",
    draw=plot_localization,
    scale="CKA of tokens and patches",
    name="localization-{model}",
    title="Localization of last-layer tokens",
    caption=localization_caption,
    claims=[own_patch, cls_localizes_more, vit_localizes_more],
    quantities=[localized_tokens],
)

FIGURE_9_BY_LAYER = FIGURE_9.variant(
    measure=localization_by_depth,
    draw=plot_localization_by_layer,
    name="localization-depth-{model}",
    show="analysis.plots.plot_localization_by_layer",
    title="Localization of tokens by layer",
)

FIGURE_9_STAGES = FIGURE_9.variant(
    models=split("resnet"),
    measure=localization_of_stages,
    results="",  # one for each stage, which depends on the model
    name="localization-{label}-{model}",
    title="Localization of positions in earlier stages",
)


DRAWS = 1000  # of the bootstrap over images
# What a probe is shown, and the name of the result.
RESULTS = {
    "all": "ridge_probe",
    "cls": "ridge_probe_first",
    "spatial": "ridge_probe_rest",
    "each": "ridge_probe_tokens",
}
SUMMARIES = {"cls": "first token", "all": "mean of all", "spatial": "mean without the first"}


def ridge_probe_of(model: StudyModel, tokens: str = "all") -> SharedPass:
    """Accuracy of ridge probes that are fitted on `tokens` (see `ridge_probe`) of each block."""
    if tokens != "all":
        model.require_grid()
    # The maps of all stages of a ResNet are brought to one grid.
    view, detail = (at_last_stage, "blocks") if model.stages else (None, "grid")
    taps = model.layers("representations", "blocks" if tokens == "all" else detail)
    analysis = RESULTS[tokens]
    probe = partial(statistic, view=view, call=probe_call(model, tokens))
    fitted = probe(
        f"{analysis}_fitted",
        model,
        taps,
        lambda features, data: ridge_probe.statistic(
            features, data.train, data.num_classes, L2, tokens
        ),
        reads="train",
        inputs=(DATA,),
        saved=False,
    )
    selected = probe(
        f"{analysis}_chosen",
        model,
        taps,
        score_statistic,
        reads="validation",
        inputs=(fitted,),
        saved=False,
    )
    return probe(analysis, model, taps, _tested, inputs=(fitted, selected), labelled=True)


def probe_call(model: StudyModel, tokens: str) -> str:
    """The expression that gives the accuracy of ridge probes on a model, with public calls."""
    read = "{model}"
    detail = "blocks" if tokens == "all" else "grid"
    arguments = f", detail={detail!r}" if not model.stages else ""
    if model.stages:
        read = 'analysis.engine.match_maps({model}, detail="blocks")'
    arguments += f", tokens={tokens!r}" if tokens != "all" else ""
    fitted = f"analysis.fit_ridge_probe({read}, fitted{arguments})".replace("'", '"')
    return f"analysis.select_l2(*map({fitted}, (validation, images)))"


def _tested(features: Features, fitted: Probe, selected: xr.DataArray) -> Statistic[xr.DataArray]:
    """The statistic of the test images, which finishes with the accuracy at the chosen penalty."""
    scores = score_statistic(features, fitted)
    return replace(scores, finish=lambda totals: select_l2(selected, scores.finish(totals)))


def at_last_stage(model: StudyModel, features: Features, data: Data) -> Features:
    """The maps of a ResNet at the size of its last stage, as a view of its features."""
    return match_maps(features, grid=model.grid)


def first_token_probe_of(model: StudyModel) -> Measurement:
    """The probe on the first spatial token of a model without CLS (figure F.3)."""
    probes = ridge_probe_of(model, "each")
    call = f"{probe_call(model, 'each')}.isel(token=0, drop=True)"
    return task(
        RESULTS["cls"],
        model,
        lambda each: each.isel(token=0, drop=True),
        inputs=(probes,),
        call=call,
    )


def summary_probes_of(model: StudyModel) -> Measurements | None:
    """Accuracy of probes on each summary of the tokens of a model."""
    if model.role == "model" and not model.has_tokens:
        return None
    if not model.require_grid().prefix:
        return {
            SUMMARIES["cls"]: first_token_probe_of(model),
            SUMMARIES["all"]: ridge_probe_of(model),
        }
    return {words: ridge_probe_of(model, tokens) for tokens, words in SUMMARIES.items()}


def mean_probe_of(model: StudyModel) -> Measurement | Measurements:
    """Accuracy of probes on the mean over all tokens or positions, labelled by seed."""
    measurement = ridge_probe_of(model)
    return {f"seed {model.detail}": measurement} if model.role == "seed" else measurement


@claim(
    "ridge_probe_tokens.{gap} ridge_probe_tokens.{vit}",
    "7",
    "11 left",
    "difference in accuracy",
    above=0,
    least=0.02,
    about=RUNS,
)
def gap_tokens_classify(gap: xr.DataArray, vit: xr.DataArray) -> Estimate:
    """Single-token probes are more accurate with average pooling than with a CLS token.

    Mean accuracy of probes on single last-layer tokens: the value for the model with average
    pooling minus the value for the model with a CLS token.

    The standard error is binomial. It assumes that, for each image, the probes on all tokens are
    either all correct or all wrong.
    """
    return _better_tokens(gap, vit)


@claim(
    "ridge_probe_tokens.{resnet} ridge_probe_tokens.{vit}",
    "7",
    "11 left",
    "difference in accuracy",
    above=0,
    least=0.02,
    about=RUNS,
)
def resnet_tokens_classify(resnet: xr.DataArray, vit: xr.DataArray) -> Estimate:
    """Single-token probes are more accurate for the ResNet than for a ViT with a CLS token.

    Mean accuracy of probes on single positions of the last feature map (ResNet) or single tokens of
    the last layer (ViT with a CLS token): the value for the ResNet minus the value for the ViT.

    As `gap_tokens_classify`.
    """
    return _better_tokens(resnet, vit)


def _better_tokens(*results: xr.DataArray) -> Estimate:
    """Difference in mean accuracy of (layer, token) over last-layer tokens without the prefix."""
    accuracies = []
    for result in results:
        if "prefix" not in result.attrs:
            raise ValueError("Expected accuracies with the attribute prefix. Received: none")
        accuracy = expect_array(result, ("layer", "token")).values[-1]
        accuracy = accuracy[int(result.attrs["prefix"]) :]
        accuracy = accuracy[np.isfinite(accuracy)]
        accuracies.append(accuracy_of(accuracy.mean(), result.attrs.get("examples", np.nan)))
    best = max(accuracy.value for accuracy in accuracies)
    require_above_chance(best, results[0].attrs, "the better model's tokens")
    return minus(*accuracies)


@claim(
    "ridge_probe_first.{vit} ridge_probe.{gap}",
    "F",
    "11 right",
    "absolute difference in accuracy",
    below=0.05,
    least=0.01,
    about=RUNS,
)
def native_readouts_equal(first_token: xr.DataArray, mean: xr.DataArray) -> Estimate:
    """CLS and average-pooling models perform very similarly with their native aggregation.

    Absolute difference between two probe accuracies in the last layer. One probe is on the CLS
    token of the CLS model, the other probe on the mean of all tokens of the average-pooling model.

    The threshold of 0.05 is a convention. If the interval of the signed difference contains 0, the
    interval of the absolute difference starts at 0.
    """
    accuracies = [_accuracy(result, -1) for result in (first_token, mean)]
    best = max(accuracy.value for accuracy in accuracies)
    require_above_chance(best, mean.attrs, "the better model")
    gap = minus(*accuracies)

    def limits(alpha: float) -> tuple[float, float]:
        ends = np.array(gap.at(alpha))
        return 0.0 if ends[0] <= 0 <= ends[1] else abs(ends).min(), abs(ends).max()

    return estimate(abs(gap.value), limits, gap.how)


@claim(
    "ridge_probe_first.{vit} ridge_probe.{vit}",
    "F",
    "11 right",
    "difference in accuracy",
    above=0,
    least=0.02,
)
def pooled_tokens_plateau(first_token: xr.DataArray, mean: xr.DataArray) -> Estimate:
    """In the last layers of a CLS model, accuracy rises more on CLS than on pooled tokens.

    Increase in probe accuracy over the last third of the layers: the increase for probes on the CLS
    token minus the increase for probes on the mean of all tokens.

    The interval is over images. It is computed from the probe results, which state for each image
    in which layers its class is predicted correctly.
    """
    require_above_chance(max(x.values.max() for x in (first_token, mean)), mean.attrs, "the ViT")
    layers = [name for name in layer_names(mean) if name in layer_names(first_token)]
    if len(layers) < 3:
        raise ValueError(f"Expected at least 3 layers. Received: {len(layers)}")
    ends = [layers[-1 - len(layers) // 3], layers[-1]]
    rises = []
    for result in (first_token, mean):
        before, after = (_correct(result.sel(layer=layer)) for layer in ends)
        rises.append(np.subtract(after, before, dtype=float))
    return student(rises[0] - rises[1], "images")


@claim(
    "ridge_probe.{gap} ridge_probe_first.{gap}",
    "F",
    "11 right and F.3",
    "difference in accuracy",
    above=0,
    least=0.05,
)
def gap_tokens_become_alike(mean: xr.DataArray, first_token: xr.DataArray) -> Estimate:
    """With average pooling, first-token probes lag behind mean-token probes mainly in early layers.

    The gap of a layer is the accuracy of a probe on the mean of all tokens minus the accuracy of a
    probe on the first token. The value is the mean gap in the lower half of the layers minus the
    gap in the last layer.

    The standard error is binomial and treats the two accuracies as independent.
    """
    require_above_chance(mean.values.max(), mean.attrs, "the ViT")
    early, late = ([_accuracy(x, part) for x in (mean, first_token)] for part in ("lower", -1))
    return minus(minus(*early), minus(*late))


@claim(
    "ridge_probe.{vit} ridge_probe.{fraction}",
    "8",
    "13 left",
    "difference in accuracy",
    above=0,
    least=0.02,
    about=RUNS,
)
def data_improve_middle_layers(complete: xr.DataArray, less: xr.DataArray) -> Estimate:
    """Pre-training on more data gives much higher probe accuracy even in middle layers.

    Probe accuracy, averaged over the middle third of the layers: the value for the model trained on
    all data minus the value for the model trained on the smallest fraction.
    """
    return _better_middle(complete, less)


@claim(
    "ridge_probe.{larger} ridge_probe.{resnet}",
    "8",
    "13 right and F.2",
    "difference in accuracy",
    above=0,
    least=0.02,
    about=RUNS,
)
def larger_vits_have_better_middle_layers(larger: xr.DataArray, resnet: xr.DataArray) -> Estimate:
    """Larger ViTs have much stronger intermediate representations than ResNets.

    Probe accuracy, averaged over the middle third of the layers: the value for the larger ViT minus
    the value for the ResNet.
    """
    return _better_middle(larger, resnet)


def _better_middle(*results: xr.DataArray) -> Estimate:
    """Difference in the mean accuracy of the middle third of the layers."""
    accuracies = [_accuracy(result, "middle") for result in results]
    best = max(accuracy.value for accuracy in accuracies)
    require_above_chance(best, results[0].attrs, "the better model's middle layers")
    return minus(*accuracies)


def _accuracy(result: xr.DataArray, part: int | str) -> Estimate:
    """Accuracy of a layer, or mean accuracy of the "lower" half or the "middle" third of them.

    The error of a mean is that of one layer: all may fail on the same images.
    """
    values, examples = expect_array(result, ("layer",)).values, result.attrs.get("examples", np.nan)
    if part == "lower":
        return accuracy_of(lower(values).mean(), examples)
    if part == "middle":
        count = len(values)
        return accuracy_of(values[count // 3 : -(-2 * count // 3)].mean(), examples)
    correct = _correct(result[part]) if "correct" in result.coords else None
    return accuracy_of(float(values[part]), examples, correct)


def _correct(accuracy: xr.DataArray) -> np.ndarray:
    """Which images the probe of one layer classifies correctly: (image,)."""
    if "correct" not in accuracy.coords:
        raise ValueError("Not tested: the file of an older version lacks the predictions.")
    return unpack_correct(accuracy["correct"], int(accuracy.attrs["examples"]))


@quantity(
    "ridge_probe.{model}",
    unit="share of depth",
    more="approaches its maximum linear-probe accuracy in deeper layers",
)
def readable_from(accuracy: xr.DataArray) -> Estimate:
    """Depth at which linear-probe accuracy reaches 90 % of its maximum.

    Relative depth of the first layer whose linear-probe accuracy is at least 90 % of the maximum.
    The depth is 0 at the first layer and 1 at the last layer.
    """
    values, examples = expect_array(accuracy, ("layer",)).values, int(accuracy.attrs["examples"])

    def depth(accuracies: np.ndarray) -> np.ndarray:
        return np.argmax(accuracies >= 0.9 * accuracies.max(-1, keepdims=True), -1) / last

    last = max(len(values) - 1, 1)
    if "correct" not in accuracy.coords:
        return descriptive(depth(values), "the file of an older version lacks the predictions")
    correct = unpack_correct(accuracy["correct"], examples)
    # Images on which the same layers are right count together.
    bits = np.packbits(correct, axis=0).T.copy()
    _, first, counts = np.unique(
        bits.view(f"V{bits.shape[1]}"), return_index=True, return_counts=True
    )
    draws = np.random.default_rng(0).multinomial(examples, counts / examples, DRAWS)
    depths = depth(draws @ correct[:, first].T.astype(float))

    def limits(alpha: float) -> np.ndarray:
        return np.quantile(depths, [alpha / 2, 1 - alpha / 2])

    how = "percentile bootstrap over images; each end is the depth of a layer, as the value is"
    return estimate(depth(values), limits, how)


@quantity("ridge_probe.{model}", unit="accuracy", more="reaches a higher linear-probe accuracy")
def best_probe(accuracy: xr.DataArray) -> Estimate:
    """Linear-probe accuracy of the best layer.

    Test accuracy of a probe on the mean over all tokens or positions, in the best layer. This layer
    is chosen on held-out images.
    """
    values, examples = expect_array(accuracy, ("layer",)).values, int(accuracy.attrs["examples"])
    if "validation_accuracy" not in accuracy.coords:
        why = "the best layer of an older version was chosen on the test images"
        return descriptive(values.max(), why)
    best = int(accuracy["validation_accuracy"].values.argmax())
    return accuracy_of(values[best], examples, unpack_correct(accuracy["correct"][best], examples))


def tokens_caption(models: list[StudyModel], results: Results) -> str:
    """The caption of `FIGURE_11_LEFT`."""
    cls = ", without CLS" if _any_prefix(models) else ""
    return (
        "Each point is the mean test accuracy of linear probes on single tokens of a layer, one "
        f"for each position{cls}; the band is their range."
    )


def summaries_caption(models: list[StudyModel], results: Results) -> str:
    """The caption of `FIGURE_11_RIGHT`."""
    shown = (
        "Test accuracy of linear probes; the line style shows the token or mean that they are "
        "fitted on"
    )
    if not _any_prefix(models):
        return f"{shown}."
    return (
        f"{shown}. Where the CLS token rises above the mean, it has aggregated information from "
        "the other tokens."
    )


def _any_prefix(models: list[StudyModel]) -> bool:
    return any(model.grid and model.grid.prefix for model in models)


FIGURE_11_LEFT = Figure(
    paper=RAGHU,
    numbers="11 D.4 F.3",
    chapter=PROBES,
    shows="linear probes on single tokens and on their summaries",
    models=together("vit", "gap", "resnet"),
    measure=partial(ridge_probe_of, tokens="each"),
    results="ridge_probe_tokens",
    draw=plot_token_probes,
    name="ridge-probe-tokens",
    show="analysis.plots.plot_token_probes",
    title="Linear-probe accuracy on single tokens",
    caption=tokens_caption,
    claims=[gap_tokens_classify, resnet_tokens_classify],
)

FIGURE_D4 = FIGURE_11_LEFT.variant(
    models=each("vit", "gap", "resnet"),
    draw=plot_probe_map,
    name="ridge-probe-map-{model}",
    title="Linear-probe accuracy on single tokens by position",
    caption=(
        "Each panel is a layer. Each cell is the test accuracy of a linear probe on the token at "
        "the position of the cell. A layer with a uniform panel spreads class information over all "
        "tokens."
    ),
)

FIGURE_11_RIGHT = FIGURE_11_LEFT.variant(
    models=together("vit", "gap"),
    measure=summary_probes_of,
    results="ridge_probe ridge_probe_first ridge_probe_rest",
    draw=plot_summary_probes,
    name="ridge-probe-variants",
    show="analysis.plots.plot_summary_probes",
    title="Linear-probe accuracy by token pooling",
    caption=summaries_caption,
    claims=[native_readouts_equal, pooled_tokens_plateau, gap_tokens_become_alike],
)


def depth_caption(models: list[StudyModel], results: Results) -> str:
    """The caption of `FIGURE_13`."""
    names = [name for result in results.values() for name in layer_names(result)]
    blocks = all(name.endswith("/sum") or name in ("embedding", "root") for name in names)
    where = "block" if blocks else "layer"
    bars = (
        " Bars are standard deviations over seeds."
        if any(": seed " in label for label in results)
        else ""
    )
    return (
        "Each point is the test accuracy of a linear probe on the mean over all tokens or "
        f"positions of one {where}'s output. Where a line rises, the {where} makes the classes "
        f"more linearly separable.{bars}"
    )


FIGURE_13 = Figure(
    paper=RAGHU,
    numbers="13 F.1 F.2",
    chapter=PROBES,
    shows="linear-probe accuracy by layer and seed",
    models=together("vit", "gap", "resnet", "mixer", "larger", "seed"),
    measure=mean_probe_of,
    results="ridge_probe",
    draw=plot_probes,
    name="ridge-probe",
    show="analysis.plots.plot_ridge_probe",
    title="Linear-probe accuracy by layer",
    caption=depth_caption,
    claims=[larger_vits_have_better_middle_layers],
    quantities=[readable_from, best_probe],
    overview=Overview(
        "Linear-probe accuracy", lambda probes: expect_array(probes, ("layer",)).values, "accuracy"
    ),
)


def probes_by_data(models: list[StudyModel]) -> Measurements | None:
    """Accuracy of probes on models trained on all data and on fractions, or None without these."""
    measurements = {}
    for model in with_roles(models, "vit", "larger", "resnet"):
        if fractions := variants(models, model, "fraction"):
            measurements |= {
                trained.name: ridge_probe_of(trained) for trained in (model, *fractions)
            }
    return measurements or None


FIGURE_13_LEFT = FIGURE_13.variant(
    numbers="13 F.1",
    shows="linear-probe accuracy by layer and amount of training data",
    models=group("vit", "larger", "resnet", "fraction", user_models=""),
    measure=probes_by_data,
    name="ridge-probe-data",
    title="Linear-probe accuracy by layer and amount of training data",
    caption=(
        "Each point is the test accuracy of a linear probe. The input of the probe is the output "
        "of one block, averaged over all tokens or positions. The models were trained on all "
        "images or on a fraction of them."
    ),
    claims=[data_improve_middle_layers],
    overview=None,
)
