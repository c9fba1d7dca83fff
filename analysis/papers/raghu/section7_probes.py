"""Raghu et al. 2021, section 7 and appendices D and F: linear probes on tokens."""

from dataclasses import replace
from functools import partial

import numpy as np

from ...engine.estimates import accuracy_of, descriptive, estimate, minus, require_above_chance
from ...engine.pooling import match_maps
from ...engine.results import expect_array, layer_names, unpack_correct
from ...engine.stream import first_batch
from ...plots.probe_plots import plot_probe_map, plot_probes, plot_summary_probes, plot_token_probes
from ...probes.ridge import L2, probe_statistic, score_statistic, select_l2
from ...study.figure import Figure, Overview, each, together
from ...study.judge import finding
from ...study.measurement import DATA, quantity, statistic, task
from ...study.models import MOST_PANELS, spread
from ..chapters import PROBES
from . import RAGHU

DRAWS = 1000  # of the bootstrap over images
# What a probe is shown, and the name of the result.
RESULTS = {
    "all": "ridge_probe",
    "cls": "ridge_probe_first",
    "spatial": "ridge_probe_rest",
    "each": "ridge_probe_tokens",
}
SUMMARIES = {"cls": "first token", "all": "mean of all", "spatial": "mean without the first"}


def ridge_probe_of(model, tokens="all"):
    """Accuracy of ridge probes on each block's output, which three passes feed to one another.

    They are fitted on some images; the strength of their penalty is chosen on others. Maps of a
    ResNet are brought to the size of its last stage.

    Args:
        model: the `StudyModel`.
        tokens: what a probe is shown, as for `ridge_probe`.
    """
    taps = model.blocks
    if tokens != "all":
        model.require_grid()
        taps = model.on_grid(taps)
        taps = taps if model.has_sums else spread(taps, MOST_PANELS)
        taps = taps or model.lacks("layers on the grid of its spatial tokens or positions")
    analysis, view = RESULTS[tokens], at_last_stage if model.stages else None
    probe = partial(statistic, view=view)
    fitted = probe(
        f"{analysis}_fitted",
        model,
        taps,
        lambda features, data: probe_statistic(features, data.train, data.num_classes, L2, tokens),
        reads="train",
        inputs=(DATA,),
        kept=False,
    )
    chosen = probe(
        f"{analysis}_chosen",
        model,
        taps,
        score_statistic,
        reads="validation",
        inputs=(fitted,),
        kept=False,
    )
    return probe(analysis, model, taps, _tested, inputs=(fitted, chosen))


def _tested(features, fitted, chosen):
    """The statistic of the test images, which finishes with the accuracy at the chosen penalty."""
    scores = score_statistic(features, fitted)
    return replace(scores, finish=lambda totals: select_l2(chosen, scores.finish(totals)))


def at_last_stage(model, features, data):
    """The maps of a ResNet at the size of its last stage, as a view of its features."""
    *_, last = features(first_batch(data.train)[:1]).values()
    return match_maps(features, last.shape[-1], model.grid)


def token_probe_of(model):
    """Accuracy of probes that are each shown one token."""
    return ridge_probe_of(model, "each")


def first_place_probe_of(model):
    """The probe on the first token of a model without CLS, which is a spatial token.

    Figure F.3 compares it with the CLS token of other models.
    """
    return task(
        RESULTS["cls"],
        model,
        lambda probes: probes.isel(token=0, drop=True),
        inputs=(ridge_probe_of(model, "each"),),
    )


def summary_probes_of(model):
    """Accuracy of probes on each summary of the tokens of a model."""
    if model.role == "model" and not model.has_tokens:
        return None
    model.require_grid()
    if not model.grid.prefix:
        return {
            SUMMARIES["cls"]: first_place_probe_of(model),
            SUMMARIES["all"]: ridge_probe_of(model),
        }
    return {words: ridge_probe_of(model, tokens) for tokens, words in SUMMARIES.items()}


def mean_probe_of(model):
    """Accuracy of probes on the mean over all tokens or positions, labelled by seed."""
    measurement = ridge_probe_of(model)
    return {f"seed {model.detail}": measurement} if model.role == "seed" else measurement


@finding(
    "ridge_probe_tokens.{gap} ridge_probe_tokens.{vit}",
    section="7",
    figure="11 left",
    unit="difference in accuracy",
    above=0.0,
)
def gap_tokens_classify(gap, vit):
    """Single-token probes are more accurate with average pooling than with a CLS token.

    Mean accuracy of probes on single last-layer tokens, average pooling minus CLS.

    Threshold 0. The error is binomial, as if all tokens failed on the same images (section 7,
    figure 11 left).

    Args:
        gap, vit: accuracy of dims (layer, token), with the attributes `prefix`, the number of
            leading tokens to leave out, and `examples`, the number of test images.
    """
    return _better_tokens(gap, vit)


@finding(
    "ridge_probe_tokens.{resnet} ridge_probe_tokens.{vit}",
    section="7",
    figure="11 left",
    unit="difference in accuracy",
    above=0.0,
)
def resnet_tokens_classify(resnet, vit):
    """Single-token probes are more accurate for the ResNet than for a ViT with a CLS token.

    Mean accuracy of probes on single last-layer positions or tokens, ResNet minus CLS.

    As `gap_tokens_classify`.

    Args:
        resnet, vit: as there.
    """
    return _better_tokens(resnet, vit)


def _better_tokens(one, other):
    found = []
    for result in (one, other):
        if "prefix" not in result.attrs:
            raise ValueError("Expected accuracies with the attribute prefix. Received: none")
        accuracy = expect_array(result, ("layer", "token")).values[-1]
        accuracy = accuracy[int(result.attrs["prefix"]) :]
        accuracy = accuracy[np.isfinite(accuracy)]
        found.append(accuracy_of(accuracy.mean(), result.attrs.get("examples", np.nan)))
    best = max(found, key=lambda accuracy: accuracy.value).value
    require_above_chance(best, one.attrs, "the better model's tokens")
    return minus(*found)


@quantity(
    "ridge_probe.{model}",
    unit="share of depth",
    more="reaches most of its linear-probe accuracy deeper",
)
def readable_from(accuracy):
    """Depth at which linear-probe accuracy reaches 90 % of its maximum.

    The first such layer, as a share of depth: 0 the first layer, 1 the last.
    """
    values, examples = expect_array(accuracy, ("layer",)).values, int(accuracy.attrs["examples"])

    def depth(accuracies):
        return np.argmax(accuracies >= 0.9 * accuracies.max(-1, keepdims=True), -1) / last

    last = max(len(values) - 1, 1)
    if "correct" not in accuracy.coords:
        return descriptive(depth(values), "an older file, without what each image is classified as")
    correct = unpack_correct(accuracy["correct"], examples)
    # Images on which the same layers are right count together.
    bits = np.packbits(correct, axis=0).T.copy()
    _, first, counts = np.unique(
        bits.view(f"V{bits.shape[1]}"), return_index=True, return_counts=True
    )
    draws = np.random.default_rng(0).multinomial(examples, counts / examples, DRAWS)
    depths = depth(draws @ correct[:, first].T.astype(float))

    def limits(alpha):
        return np.quantile(depths, [alpha / 2, 1 - alpha / 2])

    return estimate(depth(values), limits, "percentile bootstrap over images")


@quantity(
    "ridge_probe.{model}",
    unit="accuracy",
    more="has a layer with a higher linear-probe accuracy",
)
def best_probe(accuracy):
    """Linear-probe accuracy of the best layer.

    Test accuracy of a probe on the mean over all tokens or positions; the layer is chosen on
    held-out images.
    """
    values, examples = expect_array(accuracy, ("layer",)).values, int(accuracy.attrs["examples"])
    if "validation_accuracy" not in accuracy.coords:
        why = "an older file, whose best layer is known from the test images only"
        return descriptive(values.max(), why)
    best = int(accuracy["validation_accuracy"].values.argmax())
    return accuracy_of(values[best], examples, unpack_correct(accuracy["correct"][best], examples))


def tokens_caption(models, results):
    """The caption of `FIGURE_11_LEFT`."""
    cls = ", without CLS" if _any_prefix(models) else ""
    return (
        "Each point is the mean test accuracy of linear probes on single tokens of a layer, one "
        f"for each position{cls}; the band is their range."
    )


def summaries_caption(models, results):
    """The caption of `FIGURE_11_RIGHT`."""
    shown = "Test accuracy of linear probes; line styles are the token or mean they are fitted on"
    if not _any_prefix(models):
        return f"{shown}."
    return (
        f"{shown}. Where the first token of a model with CLS rises above the mean, the class token "
        "has aggregated information of the others."
    )


def _any_prefix(models):
    return any(model.grid and model.grid.prefix for model in models)


SHOWS = "linear probes on single tokens and on their summaries"

FIGURE_11_LEFT = Figure(
    paper=RAGHU,
    numbers="11 D.4 F.3",
    chapter=PROBES,
    shows=SHOWS,
    models=together("vit", "gap", "resnet"),
    measure=token_probe_of,
    draw=plot_token_probes,
    name="ridge-probe-tokens",
    call='analysis.ridge_probe({model}, train, images, tokens="each").max("l2")',
    show="analysis.plots.plot_token_probes",
    title="Linear-probe accuracy on single tokens",
    caption=tokens_caption,
    findings=[gap_tokens_classify, resnet_tokens_classify],
)

FIGURE_D4 = replace(
    FIGURE_11_LEFT,
    models=each("vit", "gap", "resnet"),
    draw=plot_probe_map,
    name="ridge-probe-map-{model}",
    call='analysis.ridge_probe({model}, train, images, tokens="each").max("l2")',
    show="",
    title="Linear-probe accuracy on single tokens by position",
    caption="Each cell is the test accuracy of a linear probe on the token at that position. "
    "Uniform panels are layers that spread class information over all tokens.",
    findings=(),
)

FIGURE_11_RIGHT = replace(
    FIGURE_11_LEFT,
    models=together("vit", "gap"),
    measure=summary_probes_of,
    draw=plot_summary_probes,
    name="ridge-probe-variants",
    call='analysis.ridge_probe({model}, train, images, tokens=tokens).max("l2") '
    'for tokens in ("cls", "all", "spatial")',
    show="analysis.plots.plot_summary_probes",
    title="Linear-probe accuracy by token pooling",
    caption=summaries_caption,
    findings=(),
)


def depth_caption(models, results):
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


def accuracy_by_layer(accuracy):
    """Probe accuracy of each layer, of shape (layer,)."""
    return expect_array(accuracy, ("layer",)).values


FIGURE_13 = Figure(
    paper=RAGHU,
    numbers="13 F.1 F.2",
    chapter=PROBES,
    shows="linear-probe accuracy by layer and seed",
    models=together("vit", "gap", "resnet", "mixer", "seed"),
    measure=mean_probe_of,
    draw=plot_probes,
    name="ridge-probe",
    call="analysis.ridge_probe({model}, train, images)",
    show="analysis.plot_ridge_probe",
    title="Linear-probe accuracy by layer",
    caption=depth_caption,
    quantities=[readable_from, best_probe],
    overview=Overview("Linear-probe accuracy", accuracy_by_layer, "accuracy"),
)
