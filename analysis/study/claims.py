"""The scorecard: each claim of a paper, its value, and whether it replicates, also over runs."""

import inspect
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import xarray as xr

from vit_tf.common.names import format_list
from vit_tf.training.checkpointing import flatten

from ..engine.accessors import ResultDataset
from ..engine.estimates import (
    DESCRIPTIVE,
    INCONCLUSIVE,
    LEAST_RUNS,
    NOT_TESTED,
    ONE_RUN,
    REPLICATES,
    UNTRAINED_TOO,
    Estimate,
    claim_outcome,
    corrected,
    current_outcomes,
    images_needed,
    images_of,
    is_beyond,
    minus,
    over_trainings,
    permuted_images,
    range_of,
    require_estimate,
    within,
)
from ..engine.failures import explain
from ..engine.results import Results
from ..engine.store import fingerprint
from .data import UNKNOWN, Data
from .figure import Figure, all_figures, describe, fields_of, missing_data
from .measure import DATA, Measurement
from .models import ARMS, BASES, ROLES, UNTRAINED_ROLES, StudyModel
from .supervision import RECONSTRUCTION, SUPERVISIONS

log = logging.getLogger(__name__)

RUNS, MODEL = "runs", "model"  # what a claim is about


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, as a statistic and its threshold.

    The decorator `claim` creates a `Claim` from the function that computes the statistic. A
    `Claim` can be called like this function.

    Attributes:
        name: short and unique name of the claim.
        statement: the claim, as a sentence.
        explanation: definition of the value that is compared with the threshold.
        estimator: function that computes an `Estimate` from the results named in `inputs`.
        inputs: names of the results that the estimator needs, with the roles of the models in
            braces: `"cka.{vit}"`. `"accuracy.{vit}"` is the test accuracy of a model. `"block"` is
            the block without skips of the model in the role "without".
        section, figure: section and figure of the paper that report the claim. Both are empty for
            a claim in the abstract.
        unit: name of the value, such as "difference in CKA".
        threshold: threshold with which the value is compared.
        direction: the side of the threshold that the claim predicts: "above" or "below".
        least: the smallest effect of interest. A claim is decided only if the interval of the
            value lies beyond the threshold by more than `least`, on either side.
        about: "model" or "runs". A claim about a "model" concerns a single trained model. A claim
            about "runs" concerns how models are trained (their architecture, pooling, skips or
            data); several runs of each arm are needed to decide it.
        learned: whether the claim is about what training adds. If true, the value is the statistic
            of the trained models minus the statistic of their untrained copies.
        supervision: how the ViTs that the claim is about were trained, as values of
            `supervision.SUPERVISIONS`; empty for ViTs with any training.
    """

    name: str
    statement: str
    explanation: str
    estimator: Callable[..., Estimate]
    inputs: tuple[str, ...]
    section: str
    figure: str
    unit: str
    threshold: float
    direction: str
    least: float = 0.0
    about: str = MODEL
    learned: bool = False
    supervision: tuple[str, ...] = ()

    def __call__(self, *results: Any) -> Estimate:
        return self.estimator(*results)


def claim(
    inputs: str,
    section: str,
    figure: str,
    unit: str,
    *,
    above: float | None = None,
    below: float | None = None,
    least: float = 0.0,
    about: str = MODEL,
    learned: bool = False,
    supervision: tuple[str, ...] = (),
    name: str = "",
    text: tuple[str, str] | None = None,
) -> Callable[[Callable], Claim]:
    """Returns a decorator that creates a `Claim` from the function of its statistic.

    The name of the claim is the name of the function. In the docstring of the function, the first
    paragraph is the claim, the second paragraph defines the value, and the rest explains the
    threshold. A threshold is natural (no difference, a ratio of 1, chance) or a convention (one
    half, most). If it is a convention, the docstring states this.

    Args:
        inputs: names of the results, separated by spaces, as for a `Claim`.
        section, figure, unit: as for a `Claim`.
        above, below: the threshold. `above` is for a claim that predicts a value above the
            threshold, and `below` for a claim that predicts a value below it. Pass one of them.
        least, about, learned, supervision: as for a `Claim`.
        name, text: name of the claim, and its statement and explanation. They replace the name and
            the docstring of the function, if the same function is used for several claims.
    """

    def make(estimator: Callable[..., Estimate]) -> Claim:
        if (above is None) == (below is None):
            raise ValueError(
                f"Expected the claim {estimator.__name__!r} to be above or below a threshold. "
                f"Received: above={above}, below={below}"
            )
        if about not in (MODEL, RUNS) or not least >= 0:
            raise ValueError(
                f"Expected the claim {estimator.__name__!r} to be about {MODEL!r} or {RUNS!r}, "
                "with a smallest effect of interest of at least 0. "
                f"Received: about={about!r}, least={least}"
            )
        docstring = inspect.getdoc(estimator) or ""
        paragraphs = text or [" ".join(part.split()) for part in docstring.split("\n\n")]
        if len(paragraphs) < 2 or paragraphs[1].startswith("Args:"):
            raise ValueError(
                "Expected a docstring with two paragraphs, the claim and the definition of its "
                f"value. Received: {paragraphs} of {estimator.__name__}"
            )
        threshold, direction = (below, "below") if above is None else (above, "above")
        return Claim(
            name=name or estimator.__name__.replace("_", "-"),
            statement=paragraphs[0],
            explanation=paragraphs[1],
            estimator=estimator,
            inputs=tuple(inputs.split()),
            section=section,
            figure=figure,
            unit=unit,
            threshold=cast(float, threshold),
            direction=direction,
            least=least,
            about=about,
            learned=learned,
            supervision=supervision,
        )

    return make


@dataclass(frozen=True)
class Result:
    """One claim of a paper, tested by a measurement.

    Attributes:
        name: short and unique name of the claim.
        statement: the claim, as a sentence.
        section, figure: section and figure of the paper that report the claim. Both are empty for
            a claim in the abstract.
        quantity: name of the value, such as "difference in CKA".
        value: the measured value of the claim's statistic.
        low, high: the ends of the 95 % interval of the value. Without an interval, both are NaN,
            and the outcome is "descriptive".
        threshold: threshold with which the value is compared.
        direction: "above" or "below", the side of the threshold that the claim predicts.
        outcome: the decision about the claim, one of `engine.estimates.OUTCOMES`.
        explanation: definition of the value and of its interval, or the reason why the value has
            no interval.
        results: names of the results from which the value was computed.
        source: name and address of the paper.
        models: names of the models on which the claim was tested.
        least, about: as for a `Claim`.
        untrained: values of the same statistic for randomly initialized copies of the models. It
            is empty for a claim about what training adds, because the value of such a claim is
            already a difference from these copies.
        needed: for an inconclusive claim, the number of images with which the claim would probably
            be decided; NaN for other claims.
        permuted: for a claim about CKA between two models, the value of the same statistic when the
            two models are shown different images; NaN for other claims.
    """

    name: str
    statement: str
    section: str
    figure: str
    quantity: str
    value: float
    low: float
    high: float
    threshold: float
    direction: str
    outcome: str
    explanation: str
    results: tuple[str, ...]
    source: tuple[str, str]
    models: tuple[str, ...] = ()
    least: float = 0.0
    about: str = MODEL
    untrained: tuple[float, ...] = ()
    needed: float = np.nan
    permuted: float = np.nan


def scorecard(
    results: Results,
    *,
    vit: str | None = None,
    resnet: str | None = None,
    gap: str | None = None,
    without: str | None = None,
    untrained: str | None = None,
    noise: str | None = None,
    block: str | None = None,
    accuracy: Mapping[str, tuple] | None = None,
    copies: Sequence[Any] = (),
    others: Mapping[str, Any] | None = None,
) -> list[Result]:
    """Tests all claims of all papers on measured results, paper by paper.

    Args:
        results: dict from result name to labelled result. Names are as in a study: "cka.VIT",
            "cka.VIT.RESNET", "attention_distance.VIT" and so on, where VIT and RESNET stand for
            the names of models. Each `Claim` lists the names of its results in `inputs`.
        vit: name of the ViT with a CLS token, as in `results`; None without such a model.
        resnet: name of the ResNet, as in `results`; None without such a model.
        gap: name of the ViT with average pooling, as in `results`; None without such a model.
        without: name of the ViT that was trained without the skips of `block`, as in `results`;
            None without such a model.
        untrained, noise: names of two baselines: the untrained ViT, and noise in place of features.
        block: name of the block without skips in the model `without`, for example "block03".
        accuracy: dict from the name of a model to a tuple. The tuple contains the test accuracy in
            [0, 1] and the number of test examples. It may also contain an array of shape
            (example,) that is true for correctly classified examples, and the number of classes.
        copies: list of dicts from the roles `"vit"`, `"resnet"` and `"gap"` to the names of
            randomly initialized copies of these models. Every claim is also tested on the copies.
        others: dict from further roles, such as `"mixer"`, `"fraction"` or `"masked"`, to the names
            of the models in these roles.

    Returns:
        List of `Result`, one for each claim. If a model or result is missing, the outcome is "not
        tested", and the explanation gives the reason.
    """
    assignment: dict[str, Any] = {"vit": vit, "resnet": resnet, "gap": gap, "without": without}
    assignment |= {"untrained": untrained, "noise": noise, "block": block, **(others or {})}
    values = {**results, **{f"accuracy.{name}": facts for name, facts in (accuracy or {}).items()}}
    claim_results = []
    for figure in all_figures():
        for claim in figure.claims:
            nulls = _untrained_estimates(claim, assignment, copies, values)
            measured = _measured(claim, assignment, values)
            measured = _learned(claim, measured, nulls)
            permuted = _of_permuted_images(claim, assignment, values)
            claim_results.append(
                _result(figure, claim, assignment, measured, nulls, permuted=permuted)
            )
    return claim_results


def evaluate(
    figures: list[Figure],
    models: list[StudyModel],
    results: dict[str, Any],
    elsewhere: str = "",
    data: Data | None = None,
) -> list[Result]:
    """The claims that these figures test, with their outcomes for these models and results.

    A claim is tested on every set of models with its roles (`StudyModel.scorecard_role`), next to
    their untrained copies. Where there are several sets, the intervals are corrected for their
    number (Holm). `elsewhere` is a sentence on how to test claims about models that are missing
    here.
    """
    classes = data.num_classes if data else None
    values = results | {
        f"accuracy.{m.slug}": (*m.accuracy, m.correct, classes) for m in models if m.accuracy
    }
    claim_results = []
    for figure in figures:
        absent = missing_data(figure.select(models)[0], data) if data and figure.claims else []
        not_measured = " ".join(dict.fromkeys(filter(None, absent)))
        not_measured = not_measured or f"Not measured for these models: {describe(figure, ', ')}."
        for claim in figure.claims:
            sets_of_models = _models_by_role(claim, models)
            assignments = [
                {role: model.slug for role, model in by_role.items()}
                | {"block": by_role["without"].detail if "without" in by_role else None}
                for by_role in sets_of_models
            ]
            nulls = [
                _untrained_estimates(claim, assignment, _copies_of(by_role, models), values)
                for by_role, assignment in zip(sets_of_models, assignments, strict=True)
            ]
            measured = [
                _of_other_supervision(claim, by_role)
                or _learned(
                    claim, _measured(claim, assignment, values, elsewhere, not_measured), own_nulls
                )
                for by_role, assignment, own_nulls in zip(
                    sets_of_models, assignments, nulls, strict=True
                )
            ]
            measured = _corrected(measured, claim)
            for by_role, assignment, each, own_nulls in zip(
                sets_of_models, assignments, measured, nulls, strict=True
            ):
                names = tuple(model.name for model in by_role.values())
                several = len(measured) > 1
                permuted = _of_permuted_images(claim, assignment, values)
                facts = own_nulls, names, several, permuted
                claim_results.append(_result(figure, claim, assignment, each, *facts))
    return claim_results


def untrained_measurements(
    figures: Iterable[Figure], models: list[StudyModel], data: Data
) -> list[Measurement]:
    """What the claims and quantities of these figures need of untrained copies of the models."""
    figures, wanted = list(figures), []
    templates = [
        name
        for figure in figures
        for claim in figure.claims
        if _has_null(claim)
        for name in claim.inputs
    ]
    templates += [quantity.result for figure in figures for quantity in figure.quantities]
    needed = {name.partition(".")[0] for name in templates}
    for untrained_role in UNTRAINED_ROLES:
        # Figures select them as they do the trained models.
        originals = {
            replace(model, role="model", given_role=model.original.scorecard_role, base=None): model
            for model in models
            if model.role == untrained_role
        }
        for figure in figures if originals else []:
            selections, _ = figure.select(list(originals))
            absent = missing_data(selections, data)
            wanted += [
                _of_models(measurement, originals)
                for selection, why in zip(selections, absent, strict=True)
                for measurement in selection.measurements.values()
                if not why and measurement.name.partition(".")[0] in needed
            ]
    return wanted


def _of_models(measurement: Measurement, models: dict[StudyModel, StudyModel]) -> Measurement:
    """A measurement, with all that it is made of, of other models."""
    return replace(
        measurement,
        models=tuple(models.get(model, model) for model in measurement.models),
        inputs=tuple(
            source if source is DATA else _of_models(source, models)
            for source in measurement.inputs
        ),
    )


def _has_null(claim: Claim) -> bool:
    """Whether a claim can be tested on untrained copies: it compares trained models alone."""
    roles = _roles(claim)
    return bool(roles) and set(roles) <= set(ARMS)


def _copies_of(by_role: dict[str, StudyModel], models: list[StudyModel]) -> list[dict[str, str]]:
    """Names of the untrained copies of a set of models by role, for each initialization."""
    copies = []
    for untrained_role in UNTRAINED_ROLES:
        of_base = {id(model.base): model.slug for model in models if model.role == untrained_role}
        names = {role: of_base.get(id(model)) for role, model in by_role.items() if role in ARMS}
        if names and all(names.values()):
            copies.append(names)
    return copies


def _of_other_supervision(
    claim: Claim, by_role: dict[str, StudyModel]
) -> tuple[str, tuple[str, ...]] | None:
    """Why a claim about ViTs with some supervision is not tested on these; None if it is."""
    masked = by_role.get("masked")
    if masked is not None and masked.supervision not in ("", RECONSTRUCTION):
        return (
            f"Not tested: {masked.name} was trained {SUPERVISIONS[masked.supervision]}; the claim "
            f"is about ViTs trained {SUPERVISIONS[RECONSTRUCTION]}."
        ), ()
    model = by_role.get("vit")
    if not claim.supervision or model is None or model.supervision in claim.supervision:
        return None
    kinds = " or ".join(SUPERVISIONS[kind] for kind in claim.supervision)
    trained = f"{model.name} was trained {SUPERVISIONS.get(model.supervision)}"
    if not model.supervision:
        trained = f"it is not known how {model.name} was trained (specify its supervision)"
    return f"Not tested: {trained}; the claim is about ViTs trained {kinds}.", ()


def _untrained_estimates(
    claim: Claim, assignment: dict, copies: Iterable[dict], values: dict
) -> list[Estimate]:
    """The same statistic for each set of untrained copies of the models; empty for none.

    A claim that compares with untrained models, noise or models without skips has no such null.
    """
    if not _has_null(claim):
        return []
    measured = [_measured(claim, assignment | names, values)[0] for names in copies]
    return [estimate for estimate in measured if isinstance(estimate, Estimate)]


def _of_permuted_images(claim: Claim, assignment: dict, values: dict) -> float:
    """The statistic of CKA between two models that are shown different images; NaN without any."""
    if not all(assignment.get(role) for role in _roles(claim)):
        return np.nan
    permuted = {name: permuted_images(value) for name, value in values.items()}
    permuted = {name: value for name, value in permuted.items() if value is not None}
    names = [_named(template, assignment) for template in claim.inputs]
    if all(_lookup(name, permuted) is None for name in names):
        return np.nan
    estimate, _ = _measured(claim, assignment, values | permuted)
    return estimate.value if isinstance(estimate, Estimate) else np.nan


def _learned(
    claim: Claim, measured: tuple[Estimate | str, tuple[str, ...]], nulls: list[Estimate]
) -> tuple[Estimate | str, tuple[str, ...]]:
    """What `_measured` returns; for a claim about learning, minus the untrained copies.

    The interval holds those of the differences to each copy: the claim has to hold against every
    initialization.
    """
    trained, names = measured
    if not claim.learned or isinstance(trained, str):
        return measured
    if not nulls:
        return "Not tested: it needs the same result of untrained copies of the models.", names
    differences = [minus(trained, untrained) for untrained in nulls]

    def limits(alpha: float) -> tuple[float, float]:
        lows, highs = zip(*(difference.at(alpha) for difference in differences), strict=True)
        return min(lows), max(highs)

    low, high = (
        (end for end in limits(0.05))
        if all(np.isfinite([d.low, d.high]).all() for d in differences)
        else (np.nan, np.nan)
    )
    listed = format_list([f"{untrained.value:.3g}" for untrained in nulls])
    how = f"{differences[0].how}; trained ({trained.value:.3g}) minus untrained ({listed})"
    value = float(np.mean([difference.value for difference in differences]))
    return Estimate(value, low, high, how, limits), names


def scorecard_dataset(
    rows: list[Result], models: Iterable[StudyModel] = (), images: Data | None = None
) -> xr.Dataset:
    """The results as a Dataset along `claim`, to save with the results."""
    columns = {field.name: [getattr(row, field.name) for row in rows] for field in fields(Result)}
    columns["results"] = [" ".join(names) for names in columns["results"]]
    columns["models"] = [", ".join(names) for names in columns["models"]]
    columns["source"] = [name for name, _ in columns["source"]]
    names, untrained = columns.pop("name"), columns.pop("untrained")
    data: dict[str, Any] = {key: ("claim", np.array(values)) for key, values in columns.items()}
    padded = np.full((len(rows), max(map(len, untrained), default=0)), np.nan)
    for row, values in zip(padded, untrained, strict=True):
        row[: len(values)] = values
    data["untrained"] = (("claim", "copy"), padded)
    of_models = [
        {"model": model.name, "role": str(model.scorecard_role)} | _brief(model.configuration)
        for model in models
        if model.base is None
    ]
    attributes = {"interval": "95 %"}
    if images is not None:
        attributes |= {"models": json.dumps(of_models), "data": json.dumps(_brief(images.facts))}
    return ResultDataset(data, coords={"claim": names}, attrs=attributes)


MOST_LETTERS = 100  # of a value that is kept as it is, as attributes of a file are not long


def _brief(facts: dict) -> dict[str, Any]:
    """Nested facts by field, long ones as their `fingerprint`."""
    texts = {name: json.dumps(value, default=str) for name, value in flatten(facts).items()}
    return {
        name: json.loads(text) if len(text) <= MOST_LETTERS else fingerprint(text)
        for name, text in texts.items()
    }


def _roles(claim: Claim) -> list[str]:
    """The parts of models that a claim is about."""
    return list(dict.fromkeys(role for template in claim.inputs for role in fields_of(template)))


def _models_by_role(claim: Claim, models: list[StudyModel]) -> list[dict[str, StudyModel]]:
    """Every set of models that can play the parts of a claim, without parts that none can play."""
    roles = _roles(claim)
    arms = [role for role in roles if role in ARMS]
    candidates = {
        role: [model for model in models if model.scorecard_role == role] for role in arms
    }
    present = [role for role in arms if candidates[role]]
    sets_of_models = []
    # If a role has no candidate, the claim is not measured: one set of models of the others serves.
    combinations = product(*(candidates[role] for role in present))
    for combination in combinations if present == arms else [next(combinations)]:
        by_role = dict(zip(present, combination, strict=True))
        for role in roles:
            if role in arms:
                continue
            base = by_role.get(BASES.get(role, "vit"))
            if base is None and role != "before":
                continue
            kind = "fraction" if role == "resnet_fraction" else role
            # What is compared before and after fine-tuning need not be a variant of another model.
            variants = [
                m for m in models if m.role == kind and (role == "before" or m.base == base)
            ]
            if "resnet_fraction" in roles and kind == "fraction":
                # Both models are compared on the smallest fraction that both were trained on.
                bases = [by_role.get("vit"), by_role.get("resnet")]
                of_bases = [
                    {m.detail for m in models if m.role == kind and m.base == arm} for arm in bases
                ]
                shared = set.intersection(*of_bases)
                # Without one, the reason names the ResNet's.
                if shared or role == "resnet_fraction":
                    variants = [m for m in variants if m.detail in shared]
            if variants:
                by_role[role] = min(variants, key=partial(_order_of_variants, base))
        sets_of_models.append(by_role)
    return sets_of_models


def _order_of_variants(model: StudyModel | None, variant: StudyModel) -> float:
    """The variant with the least is tested: that on the least data, or without middle skips."""
    if isinstance(variant.detail, int | float):
        return variant.detail
    if model is None or not variant.detail:
        return 0
    blocks = [tap.split("/")[0] for tap in model.blocks if "/" in tap]
    if variant.detail not in blocks:
        return 0
    return abs(blocks.index(variant.detail) - len(blocks) // 2)


def _measured(
    claim: Claim, assignment: dict, values: dict, elsewhere: str = "", not_measured: str = ""
) -> tuple[Estimate | str, tuple[str, ...]]:
    """The estimate for a claim, or the reason why there is none; and names of its results."""
    values = values | {"block": assignment["block"]}
    try:
        names = tuple(_named(template, assignment) for template in claim.inputs)
        inputs = [_lookup(name, values) for name in names]
        absent = [name for name, value in zip(names, inputs, strict=True) if value is None]
        if absent:
            raise ValueError(not_measured or f"Missing result: {' and '.join(absent)}.")
        estimate = claim.estimator(*inputs)
        require_estimate(estimate, f"the claim {claim.name!r}")
    except Exception as error:
        reason = explain(error, f"The claim {claim.name!r}")
        missing = elsewhere and not all(assignment.get(role) for role in _roles(claim))
        return f"{reason} {elsewhere}" if missing else reason, ()
    if np.isnan(estimate.value):
        return f"The value is not defined here: {estimate.how}.", ()
    estimate = within(estimate, range_of(claim.unit))
    labelled = [isinstance(value, xr.DataArray | xr.Dataset) for value in inputs]
    return estimate, tuple(n for n, is_result in zip(names, labelled, strict=True) if is_result)


def _lookup(name: str, values: dict) -> Any:
    """A result by name; CKA between two models also as that of the second and the first."""
    if name in values or name.count(".") != 2:
        return values.get(name)
    analysis, first, second = name.split(".")
    other = values.get(f"{analysis}.{second}.{first}")
    if not isinstance(other, xr.Dataset) or not {"layer_x", "layer_y"} <= set(other.dims):
        return None
    exchanged = other.rename(layer_x="layer_y", layer_y="layer_x")
    return exchanged.transpose(..., "layer_x", "layer_y")


def _result(
    figure: Figure,
    claim: Claim,
    assignment: dict,
    measured: tuple[Estimate | str, tuple[str, ...]],
    nulls: Sequence[Estimate] = (),
    models: tuple[str, ...] = (),
    several: bool = False,
    permuted: float = np.nan,
) -> Result:
    """A claim with its outcome, from what `_measured` and `_untrained_estimates` return."""
    estimate, used = measured
    value = low = high = needed = np.nan
    untrained = () if claim.learned else tuple(null.value for null in nulls)
    if isinstance(estimate, str):
        outcome, text = NOT_TESTED, estimate
    else:
        value, low, high = estimate.value, estimate.low, estimate.high
        has_interval = bool(np.isfinite([low, high]).all())
        outcome = decide(low, high, claim, untrained)
        # The definition of the value and of its interval, or why there is none.
        word = "Interval" if has_interval else "No interval"
        text = f"{claim.explanation} {word}: {estimate.how.removeprefix('no interval: ')}."
        if claim.about == RUNS:
            outcome = ONE_RUN
            text += (
                " One run of each model does not show what is due to the seed: combine reports of "
                f"at least {LEAST_RUNS} seeds with vit-tf scorecard."
            )
        else:
            text = " ".join(filter(None, [text, _remedy(claim, estimate, "images")]))
            needed = _needed(claim, estimate)
    of_models = filter(None, map(assignment.get, _roles(claim) if several else ()))
    return Result(
        ".".join([claim.name, *of_models]),
        claim.statement,
        claim.section,
        claim.figure,
        claim.unit,
        value,
        low,
        high,
        claim.threshold,
        claim.direction,
        outcome,
        text,
        used,
        figure.paper.source,
        models,
        claim.least,
        claim.about,
        untrained,
        needed,
        permuted,
    )


def decide(
    low: float, high: float, claim: "Claim | Result | SimpleNamespace", untrained: Iterable[float]
) -> str:
    """The outcome of a claim, from its interval and the values for untrained copies."""
    where = claim.threshold, claim.direction, claim.least
    outcome = claim_outcome(low, high, *where)
    untrained = [value for value in untrained if np.isfinite(value)]
    if outcome == REPLICATES and untrained and is_beyond(float(np.mean(untrained)), *where):
        return UNTRAINED_TOO
    return outcome


def _needed(claim: Claim | SimpleNamespace, estimate: Estimate) -> float:
    """How many images or runs would decide an inconclusive claim; NaN where it is not known.

    Infinity for a value within the smallest effect of interest: more of them give it no mark.
    """
    where = claim.threshold, claim.direction, claim.least
    if claim_outcome(estimate.low, estimate.high, *where) != INCONCLUSIVE:
        return np.nan
    away = estimate.value - claim.threshold
    if abs(away) <= claim.least:
        return np.inf
    bar = claim.threshold + np.sign(away) * claim.least
    if not np.isfinite(images_of(estimate)) or estimate.shared >= abs(estimate.value - bar):
        return np.nan
    needed = images_needed(estimate, power=POWER, threshold=bar)
    digits = 10 ** max(len(str(needed)) - 2, 0)
    return float(-(-needed // digits) * digits)


def _remedy(claim: Claim | SimpleNamespace, estimate: Estimate, units: str) -> str:
    """How many images or runs would decide an inconclusive claim, as a sentence; else empty."""
    needed = _needed(claim, estimate)
    if np.isinf(needed):
        return (
            "The value differs from the threshold by less than the smallest effect of interest, "
            f"{claim.least:g}: more {units} would hardly decide the claim."
        )
    if np.isnan(needed):
        return (
            f"More {units} would not decide the claim, because the interval within {units}, "
            f"±{estimate.shared:.2g}, does not shrink. Use more images in each of the {units}."
            if estimate.shared >= abs(estimate.value - claim.threshold) - claim.least > 0
            else ""
        )
    return f"About {needed:,.0f} {units} would decide the claim (with a power of {POWER:.0%})."


POWER = 0.8  # with which a number of images decides


def _corrected(measured: list[tuple], claim: Claim) -> list[tuple]:
    """The same estimates with intervals that allow for how many sets of models there are."""
    estimates = [estimate for estimate, _ in measured if not isinstance(estimate, str)]
    # What an interval has to exclude for an outcome: the smallest effect on the value's own side. A
    # value within it has no outcome, however narrow its interval: it excludes nothing of itself.
    gaps = [estimate.value - claim.threshold for estimate in estimates]
    nulls = [
        claim.threshold + (np.sign(gap) * claim.least if abs(gap) > claim.least else gap)
        for gap in gaps
    ]
    estimates = iter(corrected(estimates, nulls))
    return [(x if isinstance(x, str) else next(estimates), names) for x, names in measured]


def _named(template: str, assignment: dict) -> str:
    """A result's name with the models' names in it."""
    for role in fields_of(template):
        if not assignment.get(role):
            raise ValueError(f"No model to test it on: it needs {ROLES[role]}.")
    return template.format(**assignment)


FIXED = ("statement", "section", "figure", "quantity", "threshold", "direction", "source")
ADDED = {"least": 0.0, "about": MODEL}  # fields that scorecards of earlier versions lack
NUMBERS = ("value", "low", "high")


def scorecard_of_trainings(scorecards: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Combines the scorecards of several runs of the same models.

    The value of a claim is its mean over the runs in which the claim was tested. The interval of
    this mean covers the variance over seeds and the uncertainty within runs
    (`engine.estimates.over_trainings`).

    Args:
        scorecards: dict from the name of a run to its scorecard, a Dataset that the report of the
            run stores as `results/scorecard.nc`. At least two scorecards are needed.

    Returns:
        Dataset with the dim `claim` and the variables of a scorecard. In addition, `values`,
        `lows`, `highs` and `outcomes` of shape (claim, training) contain the values, the ends of
        the intervals and the outcomes of each run. For a run without the claim, the numbers are
        NaN and the outcome is `"not tested"`.

    Raises:
        ValueError: if there are fewer than two scorecards, if a scorecard is invalid, or if the
            thresholds, models or data of the scorecards differ.
    """
    if len(scorecards) < 2:
        raise ValueError(f"Expected at least two scorecards. Received: {len(scorecards)}")
    scorecards = {name: current_outcomes(card) for name, card in scorecards.items()}
    for name, card in scorecards.items():
        if "claim" not in card.dims or not {*FIXED, *NUMBERS, "outcome"} <= set(card):
            raise ValueError(f"Expected {name} to be a scorecard. Received: {list(card)}")
    scorecards = {name: _with_added_fields(card) for name, card in scorecards.items()}
    _require_alike(scorecards)
    claims = list(
        dict.fromkeys(str(c) for card in scorecards.values() for c in card["claim"].values)
    )
    rows = [_over(claim, scorecards) for claim in claims]
    data = {
        name: (
            ("claim", "training") if np.ndim(rows[0][name]) else "claim",
            [r[name] for r in rows],
        )
        for name in rows[0]
    }
    coords = {"claim": claims, "training": list(scorecards)}
    return ResultDataset(data, coords, {"interval": "95 %, over seeds"})


def _with_added_fields(card: xr.Dataset) -> xr.Dataset:
    """A scorecard with the fields that those of earlier versions lack, as claims have them now."""
    if set(ADDED) <= set(card):
        return card
    defined = {claim.name: claim for figure in all_figures() for claim in figure.claims}
    claims = [defined.get(str(name).partition(".")[0]) for name in card["claim"].values]
    return card.assign(
        {
            field: ("claim", [getattr(claim, field, default) for claim in claims])
            for field, default in ADDED.items()
        }
    )


def _require_alike(scorecards: dict[str, xr.Dataset]) -> None:
    """A `ValueError` for other models or data; reports of earlier versions are not compared."""
    facts = {name: _facts_of(card) for name, card in scorecards.items() if "models" in card.attrs}
    if without := [name for name in scorecards if name not in facts]:
        words = "%s: an earlier version; its models and data are not compared"
        log.warning(words, format_list(without))
    first, *others = facts or [""]
    differences = [
        f"{field} is {first_facts} in {first} and {here} in {name}"
        for name in others
        for field, first_facts, here in _differences(facts[first], facts[name])
    ]
    if differences:
        raise ValueError(
            "Expected reports of the same models and data, whose seed alone differs. "
            f"Received: {format_list(differences, '; ')}"
        )


def _facts_of(card: xr.Dataset) -> dict[str, Any]:
    """Facts of a report's models, which are called by their roles, and of its data: a dict."""
    facts, counts = {}, Counter()
    for model in json.loads(card.attrs["models"]):
        role = model.pop("role", None) or model.pop("part")  # "part": earlier versions
        counts[role] += 1
        words = f"{role} {counts[role]}" if counts[role] > 1 else role
        facts |= {f"{name} of {words}": value for name, value in model.items() if name != "model"}
    return facts | json.loads(card.attrs["data"])


def _differences(first_facts: dict, facts_of_other: dict) -> Iterator[tuple[str, str, str]]:
    """Fields of facts and their two values, as words, where reports of other seeds would agree."""
    seeds_differ = first_facts.get("seed") != facts_of_other.get("seed")
    # Another seed chooses other images of the same data; the same images may lie elsewhere.
    free = {"seed", "train", "validation", "test" if seeds_differ else "data"}
    for field in dict.fromkeys((*first_facts, *facts_of_other)):
        values = [str(facts.get(field, "absent")) for facts in (first_facts, facts_of_other)]
        are_known = not any(value.startswith(UNKNOWN) for value in values)
        if are_known and values[0] != values[1] and field not in free:
            yield field, values[0], values[1]


def _over(claim: str, scorecards: dict[str, xr.Dataset]) -> dict[str, Any]:
    """A row of `scorecard_of_trainings`: dict from name to value, or to one for each run."""
    cards = {n: card.sel(claim=claim) for n, card in scorecards.items() if claim in card["claim"]}
    fixed = (*FIXED, *ADDED)
    first = {name: [card[name].item() for card in cards.values()] for name in fixed}
    for name in ("threshold", "direction", *ADDED):
        if len(set(first[name])) > 1:
            raise ValueError(
                f"Expected one {name} of {claim!r} in all scorecards. Received: {first[name]}"
            )
    by_run = {
        name: [cards[n][name].item() if n in cards else np.nan for n in scorecards]
        for name in NUMBERS
    }
    numbers_of_runs = zip(*by_run.values(), strict=True)
    measured = [
        Estimate(value, low, high, "")
        for value, low, high in numbers_of_runs
        if not np.isnan(value)
    ]
    row = {name: values[0] for name, values in first.items()}
    untrained = [card["untrained"].values for card in cards.values() if "untrained" in card]
    untrained = np.concatenate([*untrained, []])
    row["untrained_mean"] = (
        np.mean(untrained[np.isfinite(untrained)]) if (np.isfinite(untrained).any()) else np.nan
    )
    permuted = [card["permuted"].item() for card in cards.values() if "permuted" in card]
    permuted = [value for value in permuted if np.isfinite(value)]
    row["permuted"] = np.mean(permuted) if permuted else np.nan
    words = re.split(" (?:No i|I)nterval: ", next(iter(cards.values()))["explanation"].item())[0]
    if measured:
        mean = over_trainings(measured, range_of(row["quantity"]))
        row |= {name: getattr(mean, name) for name in NUMBERS}
        decision = SimpleNamespace(
            **{name: row[name] for name in ("threshold", "direction", *ADDED)}
        )
        row["outcome"] = decide(mean.low, mean.high, decision, [row["untrained_mean"]])
        row["explanation"] = f"{words} Interval: {mean.how}."
        if remedy := _remedy(decision, mean, "runs"):
            row["explanation"] += f" {remedy}"
        if row["about"] == RUNS and len(measured) < LEAST_RUNS:
            row["outcome"] = ONE_RUN if len(measured) == 1 else DESCRIPTIVE
            row["explanation"] += f" An outcome needs at least {LEAST_RUNS} runs of each model."
    else:
        row |= dict.fromkeys(NUMBERS, np.nan) | {"outcome": NOT_TESTED, "explanation": words}
    outcomes = [cards[n]["outcome"].item() if n in cards else NOT_TESTED for n in scorecards]
    return row | {f"{name}s": values for name, values in by_run.items()} | {"outcomes": outcomes}
