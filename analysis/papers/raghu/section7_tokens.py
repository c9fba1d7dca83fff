"""Raghu et al. 2021, section 7, appendices D and F: localization and linear probes of tokens."""

from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr

from vit_tf.features.features import Features

from ...engine.matching import match_maps
from ...plots.probe_plots import plot_probe_map, plot_probe_variants, plot_probes, plot_token_probes
from ...plots.similarity_plots import plot_localization, plot_localization_by_layer
from ...probes.ridge import L2, Probe, ridge_probe, score_statistic, select_l2
from ...similarity.localization import localization, own_contrast
from ..chapters import LOCALIZATION, PROBES
from ..vocabulary import (
    DATA,
    Data,
    Estimate,
    Figure,
    Measurement,
    Measurements,
    Overview,
    SharedPass,
    Statistic,
    StudyModel,
    accuracy_of,
    between,
    claim,
    descriptive,
    each,
    expect_array,
    group,
    jackknife_over,
    layer_names,
    lower,
    minus,
    quantity,
    share_of,
    split,
    statistic,
    task,
    together,
    unpack_correct,
    variants,
    with_roles,
)
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


@claim("localization.{vit}", "section 7, Figure 9", "difference in CKA", effect="above", least=0.05)
def own_patch(similarity: xr.DataArray) -> Estimate:
    """Tokens of the ViT's last layer are most similar to their own patch.

    CKA of a last-layer token with its own patch minus its mean CKA with other patches, averaged
    over tokens.

    In the paper, the similarity to the own patch is the largest. Whether noisy values show this
    depends on the number of images. The difference computed here does not depend on it.
    """
    return _contrast(similarity, "own_contrast")


@claim("localization.{vit}", "section 7, Figure 9", "difference in CKA", effect="above", least=0.05)
def edge_tokens_resemble_edges(similarity: xr.DataArray) -> Estimate:
    """Tokens at the edge of the image are also similar to other edge positions.

    Mean CKA of a last-layer token with other patches at the edge minus its mean CKA with other
    inner patches: the value for tokens at the edge minus the value for inner tokens.
    """
    return _contrast(similarity, "edge_contrast")


@claim(
    "localization.{resnet}",
    "appendix D, Figure D.3",
    "difference in CKA",
    effect="above",
    least=0.05,
)
def earlier_resnet_layers_localize_better(similarity: xr.DataArray) -> Estimate:
    """Layers of the ResNet below the final layer localize better than the final layer.

    CKA of a position with its own patch minus its mean CKA with other patches, averaged over
    positions: the value for the first layer on the last layer's grid minus that for the last layer.
    """
    if similarity.sizes["layer"] < 2:
        raise ValueError("Expected two layers of the ResNet on the last layer's grid. Received: 1")
    ends = (_contrast(similarity, name) for name in ("first_contrast", "own_contrast"))
    return minus(*ends)


@claim(
    "localization.{vit} localization.{gap}",
    "section 7, Figure 10",
    "difference in CKA",
    effect="above",
    least=0.05,
)
def cls_localizes_more(vit: xr.DataArray, gap: xr.DataArray) -> Estimate:
    """A ViT trained with a CLS token localizes better than one with global average pooling.

    CKA of a last-layer token with its own patch minus its mean CKA with other patches, averaged
    over tokens: the value for the CLS model minus the value for the average-pooling model.
    """
    return _localizes_more(vit, gap)


@claim(
    "localization.{vit} localization.{resnet}",
    "section 7, Figure 9",
    "difference in CKA",
    effect="above",
    least=0.05,
)
def vit_localizes_more(vit: xr.DataArray, resnet: xr.DataArray) -> Estimate:
    """The ViT localizes better than the ResNet.

    CKA of a last-layer token with its own patch minus its mean CKA with other patches, averaged
    over tokens: the value for the ViT minus the value for the ResNet. Both are measured on the
    coarser of the two models' grids.

    For each patch of the coarser grid, the most similar of the finer patches within it is used.
    Therefore, the patch size of the coarser grid must be a multiple of the patch size of the finer
    grid.
    """
    return _localizes_more(vit, resnet)


def _contrast(similarity: xr.DataArray, name: str) -> Estimate:
    """A contrast of `localization`, with the jackknife over batches."""
    if name not in similarity.attrs:
        raise ValueError(
            f"Expected a result of localization with {name}, which needs spatial tokens, and two "
            "or more patches that differ between images. Received: a result without it"
        )
    rest = similarity.attrs.get(f"{name}_without_batch", ())
    return jackknife_over(similarity.attrs[name], rest, similarity.attrs.get("examples", np.nan))


def _localizes_more(first: xr.DataArray, second: xr.DataArray) -> Estimate:
    """Difference of contrasts with the own patch; descriptive where the grids differ."""
    sizes = [similarity.shape[-2:] for similarity in (first, second)]
    rows, columns = np.min(sizes, axis=0)
    estimates = []
    for similarity, size in zip((first, second), sizes, strict=True):
        factors = size[0] / rows, size[1] / columns
        if factors[0] != factors[1] or factors[0] % 1:
            raise ValueError(
                "Expected grids of which one divides the other. Received: {} x {} and {} x {} "
                "patches".format(*sizes[0], *sizes[1])
            )
        if factors[0] == 1:
            estimates.append(_contrast(similarity, "own_contrast"))
        else:
            value = _coarse_contrast(similarity, int(factors[0]))
            estimates.append(descriptive(value, "The error on a coarser grid is not known"))
    return between(*estimates)


def _coarse_contrast(similarity: xr.DataArray, factor: int) -> float:
    """The contrast with the own patch on a grid that is coarser by a factor."""
    last = expect_array(similarity, ("layer", "token", "row", "column")).isel(layer=-1)
    last = last.isel(token=np.isfinite(last["token_row"].values))
    coarse = last.coarsen(row=factor, column=factor).max()
    maps = coarse.values.reshape(len(coarse), -1)
    row, column = (
        (last[f"token_{axis}"].values // factor).astype(int) for axis in ("row", "column")
    )
    is_known = np.all(np.isfinite(maps), axis=0)
    own_patch = row * coarse.shape[2] + column
    tokens = is_known[own_patch]
    places = np.searchsorted(np.flatnonzero(is_known), own_patch[tokens])
    return own_contrast(maps[tokens][:, is_known], places)


@quantity(
    "localization.{model}",
    unit="difference in CKA",
    more="has last-layer tokens that match their own image patch more closely",
)
def localized_tokens(similarity: xr.DataArray) -> Estimate:
    """Localization of tokens in the last layer.

    CKA of a token with its own patch minus its mean CKA with other patches, averaged over tokens.
    """
    return _contrast(similarity, "own_contrast")


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
    caption=(
        "Each panel is the CKA of one token or position with every image patch. The frame marks "
        "the patch at the position of the token. Colours span the values of all panels. Grey "
        "patches, if there are any, are identical in all images."
    ),
    claims=[
        own_patch,
        edge_tokens_resemble_edges,
        earlier_resnet_layers_localize_better,
        cls_localizes_more,
        vit_localizes_more,
    ],
    quantities=[localized_tokens],
)

FIGURE_9_BY_LAYER = FIGURE_9.variant(
    measure=localization_by_depth,
    draw=plot_localization_by_layer,
    name="localization-depth-{model}",
    title="Localization of tokens by layer",
)

FIGURE_9_STAGES = FIGURE_9.variant(
    models=split("resnet"),
    measure=localization_of_stages,
    results="",  # one for each stage, which depends on the model
    name="localization-{label}-{model}",
    title="Localization of positions in earlier stages",
)


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
    read = 'analysis.engine.match_maps({model}, detail="blocks")' if model.stages else "{model}"
    detail = "blocks" if tokens == "all" else "grid"
    arguments = "" if model.stages else f", detail={detail!r}"
    arguments += "" if tokens == "all" else f", tokens={tokens!r}"
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


@claim(
    "ridge_probe_tokens.{gap} ridge_probe_tokens.{vit}",
    "section 7, Figure 11 left",
    "difference in accuracy",
    effect="above",
    least=0.02,
)
def gap_tokens_classify(gap: xr.DataArray, vit: xr.DataArray) -> Estimate:
    """Single-token probes are more accurate with average pooling than with a CLS token.

    Mean accuracy of probes on single last-layer tokens: the value for the model with average
    pooling minus the value for the model with a CLS token.

    The interval is binomial. It assumes that, for each image, the probes on all tokens are either
    all correct or all wrong.
    """
    return between(_token_accuracy(gap), _token_accuracy(vit))


@claim(
    "ridge_probe_tokens.{resnet} ridge_probe_tokens.{vit}",
    "section 7, Figure 11 left",
    "difference in accuracy",
    effect="above",
    least=0.02,
)
def resnet_tokens_classify(resnet: xr.DataArray, vit: xr.DataArray) -> Estimate:
    """Single-token probes are more accurate for the ResNet than for a ViT with a CLS token.

    Mean accuracy of probes on single positions of the last feature map (ResNet) or single tokens of
    the last layer (ViT with a CLS token): the value for the ResNet minus the value for the ViT.

    The interval is computed as for `gap_tokens_classify`.
    """
    return between(_token_accuracy(resnet), _token_accuracy(vit))


def _token_accuracy(result: xr.DataArray) -> Estimate:
    """Mean accuracy of (layer, token) over last-layer tokens without the prefix."""
    if "prefix" not in result.attrs:
        raise ValueError(
            "Expected accuracies with the attribute prefix. Received: no such attribute"
        )
    accuracy = expect_array(result, ("layer", "token")).values[-1]
    accuracy = accuracy[int(result.attrs["prefix"]) :]
    accuracy = accuracy[np.isfinite(accuracy)]
    return accuracy_of(accuracy.mean(), result.attrs.get("examples", np.nan))


@claim(
    "ridge_probe_first.{vit} ridge_probe.{gap}",
    "appendix F, Figure 11 right",
    "difference in accuracy",
    effect=0,
    least=0.05,
)
def native_readouts_equal(first_token: xr.DataArray, mean: xr.DataArray) -> Estimate:
    """CLS and average-pooling models perform very similarly with their native aggregation.

    Difference between two probe accuracies in the last layer. One probe is on the CLS token of the
    CLS model, the other probe on the mean of all tokens of the average-pooling model.
    """
    return between(_accuracy(first_token, -1), _accuracy(mean, -1))


@claim(
    "ridge_probe_first.{vit} ridge_probe.{vit}",
    "appendix F, Figure 11 right",
    "difference in accuracy",
    effect="above",
    least=0.02,
)
def pooled_tokens_plateau(first_token: xr.DataArray, mean: xr.DataArray) -> Estimate:
    """In the last layers of a CLS model, accuracy rises more on CLS than on pooled tokens.

    Increase in probe accuracy over the last third of the layers: the increase for probes on the CLS
    token minus the increase for probes on the mean of all tokens.
    """
    layers = [name for name in layer_names(mean) if name in layer_names(first_token)]
    if len(layers) < 3:
        raise ValueError(f"Expected at least 3 layers. Received: {len(layers)}")
    ends = [layers[-1 - len(layers) // 3], layers[-1]]
    rises = []
    for result in (first_token, mean):
        before, after = (_correct(result.sel(layer=layer)) for layer in ends)
        rises.append(minus(share_of(after), share_of(before)))
    return minus(*rises)


@claim(
    "ridge_probe.{gap} ridge_probe_first.{gap}",
    "appendix F, Figures 11 right and F.3",
    "difference in accuracy",
    effect="above",
    least=0.05,
)
def gap_tokens_become_alike(mean: xr.DataArray, first_token: xr.DataArray) -> Estimate:
    """With average pooling, first-token probes lag behind mean-token probes mainly in early layers.

    The gap of a layer is the accuracy of a probe on the mean of all tokens minus the accuracy of a
    probe on the first token. The value is the mean gap in the lower half of the layers minus the
    gap in the last layer.

    The interval is binomial and treats the two accuracies as independent.
    """
    early, late = ([_accuracy(x, part) for x in (mean, first_token)] for part in ("lower", -1))
    return minus(minus(*early), minus(*late))


@claim(
    "ridge_probe.{vit} ridge_probe.{fraction}",
    "section 8, Figure 13 left",
    "difference in accuracy",
    effect=0.3,
    least=0.02,
    beyond_untrained=False,
    least_images=1_000_000,
)
def data_improve_middle_layers(complete: xr.DataArray, less: xr.DataArray) -> Estimate:
    """Pre-training on more data gives much higher probe accuracy even in middle layers.

    Probe accuracy, averaged over the middle third of the layers: the value for the model trained on
    all data minus the value for the model trained on the smallest fraction.

    The paper compares models trained on 300 million and on 1.3 million images.
    """
    return between(_accuracy(complete, "middle"), _accuracy(less, "middle"))


@claim(
    "ridge_probe.{larger} ridge_probe.{resnet}",
    "section 8, Figures 13 right and F.2",
    "difference in accuracy",
    effect="above",
    least=0.02,
)
def larger_vits_have_better_middle_layers(larger: xr.DataArray, resnet: xr.DataArray) -> Estimate:
    """Larger ViTs have much stronger intermediate representations than ResNets.

    Probe accuracy, averaged over the middle third of the layers: the value for the larger ViT minus
    the value for the ResNet.
    """
    return between(_accuracy(larger, "middle"), _accuracy(resnet, "middle"))


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
        raise ValueError(
            "Expected accuracies with the coordinate correct, the images that are classified "
            "correctly. Received: no such coordinate"
        )
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
    values = expect_array(accuracy, ("layer",)).values
    depth = np.argmax(values >= 0.9 * values.max()) / max(len(values) - 1, 1)
    return descriptive(depth, "The depth of a layer is one of few numbers")


@quantity("ridge_probe.{model}", unit="accuracy", more="reaches a higher linear-probe accuracy")
def best_probe(accuracy: xr.DataArray) -> Estimate:
    """Linear-probe accuracy of the best layer.

    Test accuracy of a probe on the mean over all tokens or positions, in the best layer. This layer
    is chosen on held-out images.
    """
    values, examples = expect_array(accuracy, ("layer",)).values, int(accuracy.attrs["examples"])
    if "validation_accuracy" not in accuracy.coords:
        return descriptive(values.max(), "The best layer was chosen on the test images")
    best = int(accuracy["validation_accuracy"].values.argmax())
    correct = unpack_correct(accuracy["correct"][best], examples)
    estimate = accuracy_of(values[best], examples, correct)
    if "channels" not in accuracy.coords:
        return estimate
    # With few images, more channels are a disadvantage, which is not one of the representation.
    width, count = accuracy["channels"].values[best], accuracy.attrs["train_examples"]
    return replace(estimate, note=f"{width} channels, {count} training images")


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
    title="Linear-probe accuracy on single tokens",
    caption=(
        "Each point is the mean test accuracy of linear probes on single tokens of a layer, one "
        "for each position; the band is their range."
    ),
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
    draw=plot_probe_variants,
    name="ridge-probe-variants",
    title="Linear-probe accuracy by token pooling",
    caption=(
        "Test accuracy of linear probes; the line style shows the token or mean that they are "
        "fitted on. Where a CLS token rises above the mean, it has aggregated information from the "
        "other tokens."
    ),
    claims=[native_readouts_equal, pooled_tokens_plateau, gap_tokens_become_alike],
)


FIGURE_13 = Figure(
    paper=RAGHU,
    numbers="13 F.1 F.2",
    chapter=PROBES,
    shows="linear-probe accuracy by layer and seed",
    models=together("vit", "gap", "resnet", "mixer", "larger", "seed"),
    measure=ridge_probe_of,
    results="ridge_probe",
    draw=plot_probes,
    name="ridge-probe",
    show="analysis.plots.plot_ridge_probe",
    title="Linear-probe accuracy by layer",
    caption=(
        "Each point is the test accuracy of a linear probe on the mean over all tokens or "
        "positions of one layer's output. Where a line rises, the layer makes the classes more "
        "linearly separable. Bars, if there are any, are standard deviations over seeds."
    ),
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
    models=group("vit", "larger", "resnet", "fraction", user_models=False, why_not=""),
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
