"""The scorecard: each claim of a paper, the measured value, and whether it replicates."""

import inspect
import json
import string
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from itertools import product

import numpy as np
import xarray as xr

from vit_tf.training.checkpointing import flatten

from ..engine.estimates import corrected, require_estimate, verdict
from ..engine.store import fingerprint
from .models import ROLES
from .plan import all_figures, lacking

VERDICTS = ("replicates", "does not replicate", "inconclusive", "descriptive", "not tested")


@dataclass(frozen=True)
class Finding:
    """A claim of a paper, as a statistic and its threshold.

    Created by the decorator `finding` from the function that computes the statistic; calling it
    calls that function.

    Attributes:
        name: short and unique.
        statement: the claim, as a sentence.
        explanation: definition of the value.
        statistic: function of the results to an `Estimate`.
        inputs: names of the results, with the parts of the models in braces: `"cka.{vit}"`;
            `"accuracy.{vit}"` is the test accuracy of a model, and `"block"` the block without
            skips of the model in the role "without".
        section, figure: where the paper reports it; both empty for its abstract.
        unit: name of the value.
        line: its threshold.
        direction: the side of the threshold that the paper reports: "above" or "below".
    """

    name: str
    statement: str
    explanation: str
    statistic: Callable
    inputs: tuple[str, ...]
    section: str
    figure: str
    unit: str
    line: float
    direction: str

    def __call__(self, *results):
        return self.statistic(*results)


def finding(inputs, *, section, figure, unit, above=None, below=None):
    """Makes a `Finding` of the function of its statistic.

    The name is that of the function. The first paragraph of the docstring is the claim, the second
    defines the value, and the rest explains the threshold: every threshold is a natural one (no
    difference, a ratio of 1, chance), none was chosen after a measurement.

    Args:
        inputs: names of the results, separated by spaces, as those of a `Finding`.
        section, figure, unit: as those of a `Finding`.
        above, below: the threshold, and the side that the paper reports; one of them.
    """

    def make(statistic):
        if (above is None) == (below is None):
            raise ValueError(
                f"Expected the claim {statistic.__name__!r} to be above or below a threshold. "
                f"Received: above={above}, below={below}"
            )
        text = [" ".join(part.split()) for part in inspect.getdoc(statistic).split("\n\n")]
        if len(text) < 2 or text[1].startswith("Args:"):
            raise ValueError(
                "Expected a docstring with two paragraphs, the claim and the definition of its "
                f"value. Received: {text} of {statistic.__name__}"
            )
        line, direction = (below, "below") if above is None else (above, "above")
        name = statistic.__name__.replace("_", "-")
        where = section, figure, unit, line, direction
        return Finding(name, *text[:2], statistic, tuple(inputs.split()), *where)

    return make


@dataclass(frozen=True)
class Claim:
    """One claim of a paper, tested by a measurement.

    Attributes:
        name: short and unique.
        statement: the claim, as a sentence.
        section, figure: where the paper reports it; both empty for its abstract.
        quantity: name of the value.
        value: the statistic.
        low, high: its 95 % interval; NaN where there is none, and the outcome is "descriptive".
        threshold: the threshold.
        direction: "above" or "below", the side of the threshold that the paper reports.
        verdict: one of `VERDICTS`.
        explanation: definition of the value and of its interval, or why there is none.
        results: names of the results it was computed from.
        source: name and address of the paper.
        models: names of the models that it was tested on.
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
    verdict: str
    explanation: str
    results: tuple[str, ...]
    source: tuple[str, str]
    models: tuple[str, ...] = ()


def scorecard(
    results,
    *,
    vit,
    resnet=None,
    gap=None,
    without=None,
    fresh=None,
    noise=None,
    block=None,
    accuracy=None,
):
    """All claims of all papers, tested on these models, paper by paper.

    Args:
        results: dict from result name to labelled result, as a study names them: "cka.VIT",
            "cka.VIT.RESNET", "attention_distance.VIT" and those that each `Finding` of `papers/`
            names in its `inputs`.
        vit, resnet, gap, without: the names of the ViT with a CLS token, of the ResNet, of the ViT
            with average pooling and of the ViT without the skips of `block`, as in the results'
            names; None where there is no such model.
        fresh, noise: the names of the randomly initialized ViT, and of the noise that replaces it.
        block: name of the block without skips, "block03".
        accuracy: dict from the name of a model to test accuracy in [0, 1], number of test examples
            and, where known, which of them are classified correctly, of shape (example,), and the
            number of classes.

    Returns:
        List of `Claim`. Those that lack a model or a result have the verdict "not tested" and
        the reason as their explanation.
    """
    cast = {"vit": vit, "resnet": resnet, "gap": gap, "without": without}
    cast |= {"fresh": fresh, "noise": noise, "block": block}
    found = _findable(results, accuracy or {}, block)
    return [
        _claim(figure, finding, cast, _measured(finding, cast, found))
        for figure in all_figures()
        for finding in figure.findings
    ]


def judge(figures, models, results, elsewhere="", data=None):
    """The claims that these figures test, with their outcomes for these models and results.

    A claim is tested on every set of models that can play its parts (`StudyModel.part`). Where
    there are several, the intervals are corrected for their number (Holm).

    Args:
        figures: list of `Figure`.
        models: list of `StudyModel`.
        results: dict from result name to labelled result.
        elsewhere: sentence on how to test claims about models that are missing here.
        data: the `Data` that was measured, for what it lacks.

    Returns:
        List of `Claim`, as `scorecard` returns it.
    """
    classes = data.num_classes if data else None
    accuracy = {m.slug: (*m.accuracy, m.correct, classes) for m in models if m.accuracy}
    claims = []
    for figure in figures:
        absent = lacking(figure.select(models)[0], data) if data and figure.findings else []
        lacks = " ".join(dict.fromkeys(filter(None, absent)))
        for finding in figure.findings:
            casts = [(players, _slugs(players)) for players in _casts(finding, models)]
            measured = [
                _measured(
                    finding, cast, _findable(results, accuracy, cast["block"]), elsewhere, lacks
                )
                for _, cast in casts
            ]
            for (players, cast), one in zip(casts, _corrected(measured, finding.line), strict=True):
                names = tuple(model.name for model in players.values())
                claims.append(_claim(figure, finding, cast, one, names, len(casts) > 1))
    return claims


def as_dataset(claims, models=(), images=None):
    """The claims as a Dataset along `claim`, to save with the results.

    Its attributes `models` and `data` are JSON of what reports of other seeds have in common: for
    each model that is no variant of another its part and its configuration, and facts of the data.
    """
    columns = {
        field.name: [getattr(claim, field.name) for claim in claims] for field in fields(Claim)
    }
    columns["results"] = [" ".join(names) for names in columns["results"]]
    columns["models"] = [", ".join(names) for names in columns["models"]]
    columns["source"] = [name for name, _ in columns["source"]]
    names = columns.pop("name")
    data = {key: ("claim", np.array(values)) for key, values in columns.items()}
    of_models = [
        {"model": model.name, "part": str(model.part)} | _brief(model.configuration)
        for model in models
        if model.of is None
    ]
    attributes = {"interval": "95 %"}
    if images is not None:
        attributes |= {"models": json.dumps(of_models), "data": json.dumps(_brief(images.facts))}
    return xr.Dataset(data, coords={"claim": names}, attrs=attributes)


MOST_LETTERS = 100  # of a value that is kept as it is, as attributes of a file are not long


def _brief(facts):
    """Nested facts by field, long ones as their `fingerprint`."""
    texts = {name: json.dumps(value, default=str) for name, value in flatten(facts).items()}
    return {
        name: json.loads(text) if len(text) <= MOST_LETTERS else fingerprint(text)
        for name, text in texts.items()
    }


def _findable(results, accuracy, block):
    """What the inputs of a `Finding` name: results, accuracies and the block without skips."""
    return {**results, **{f"accuracy.{name}": pair for name, pair in accuracy.items()}} | (
        {"block": block} if block else {}
    )


def _slugs(players):
    """What the roles stand for in names of results, and the block without skips."""
    block = players["without"].detail if "without" in players else None
    return {role: model.slug for role, model in players.items()} | {"block": block}


def _roles(finding):
    """The parts of models that a claim is about."""
    parsed = (string.Formatter().parse(template) for template in finding.inputs)
    roles = [role for template in parsed for _, role, _, _ in template if role]
    return list(dict.fromkeys(roles))


def _casts(finding, models):
    """Every set of models that can play the parts of a claim: list of dicts by role.

    Variants and baselines are those of the ViT in the same set. Parts that no model can play are
    missing.
    """
    roles = _roles(finding)
    own = [role for role in roles if role in ("vit", "gap", "resnet", "mixer")]
    players = {role: [model for model in models if model.part == role] for role in own}
    there = [role for role in own if players[role]]
    casts = []
    # Where a part cannot be played it is not measured, whichever models play the others.
    chosen_models = product(*(players[role] for role in there))
    for chosen in chosen_models if there == own else [next(chosen_models)]:
        cast = dict(zip(there, chosen, strict=True))
        for role in set(roles) - set(own):
            beside = [m for m in models if m.role == role and m.of == cast.get("vit")]
            if beside:
                cast[role] = min(beside, key=partial(_from_the_middle, cast["vit"]))
        casts.append(cast)
    return casts


def _from_the_middle(model, variant):
    """How far the block that a variant has no skips in is from the middle of the model."""
    blocks = [tap.split("/")[0] for tap in model.blocks if "/" in tap]
    if variant.detail not in blocks:
        return 0
    return abs(blocks.index(variant.detail) - len(blocks) // 2)


def _measured(finding, cast, found, elsewhere="", lacks=""):
    """The estimate for a claim, or the reason why there is none; and names of its results."""
    try:
        names = tuple(_named(template, cast) for template in finding.inputs)
        absent = [name for name in names if found.get(name) is None]
        if absent:
            raise ValueError(lacks or f"Missing result: {' and '.join(absent)}.")
        estimate = finding.statistic(*(found[name] for name in names))
    except ValueError as error:
        missing = elsewhere and not all(cast.get(role) for role in _roles(finding))
        return f"{error} {elsewhere}" if missing else str(error), ()
    require_estimate(estimate, f"the claim {finding.name!r}")
    if np.isnan(estimate.value):
        return f"The value is not defined here: {estimate.how}.", ()
    return estimate, tuple(n for n in names if isinstance(found[n], xr.DataArray | xr.Dataset))


def _claim(figure, finding, cast, measured, models=(), several=False):
    """A claim with its outcome, from what `_measured` returns."""
    estimate, used = measured
    value = low = high = np.nan
    if isinstance(estimate, str):
        result, text = "not tested", estimate
    else:
        value, low, high = estimate.value, estimate.low, estimate.high
        result = verdict(low, high, finding.line, finding.direction)
        text = f"{finding.explanation} Interval: {estimate.how.removeprefix('no interval: ')}."
        if result == "descriptive":
            text = text.replace(" Interval: ", " No interval: ")
    return Claim(
        name=".".join(
            [finding.name, *filter(None, map(cast.get, _roles(finding) if several else ()))]
        ),
        statement=finding.statement,
        section=finding.section,
        figure=finding.figure,
        quantity=finding.unit,
        value=value,
        low=low,
        high=high,
        threshold=finding.line,
        direction=finding.direction,
        verdict=result,
        explanation=text,
        results=used,
        source=figure.paper.source,
        models=models,
    )


def _corrected(measured, line):
    """The same estimates with intervals that allow for how many sets of models there are."""
    known = [at for at, (estimate, _) in enumerate(measured) if not isinstance(estimate, str)]
    estimates = corrected([measured[at][0] for at in known], line)
    for at, estimate in zip(known, estimates, strict=True):
        measured[at] = estimate, measured[at][1]
    return measured


def _named(template, cast):
    """A result's name with the models' names in it."""
    for _, role, _, _ in string.Formatter().parse(template):
        if role and not cast.get(role):
            raise ValueError(f"No model to test it on: it needs {ROLES[role]}.")
    return template.format(**cast)
