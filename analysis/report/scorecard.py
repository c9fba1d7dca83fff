"""The scorecard: each claim of a paper on the models of a report, and over several runs."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
import xarray as xr

from vit_tf.common.errors import explain
from vit_tf.common.names import format_list, lookup
from vit_tf.training.checkpointing import flatten

from ..engine.results import ResultDataset, Results
from ..engine.store import fingerprint
from ..figures.data import UNKNOWN, Data
from ..figures.figure import ALWAYS_AVAILABLE, Figure, all_figures, describe_figure, fields_of
from ..figures.measure import DATA, Measurement
from ..figures.models import ARMS, BASES, ROLES, UNTRAINED_ROLES, StudyModel
from ..figures.supervision import RECONSTRUCTION, SUPERVISIONS
from ..statistics.claims import Claim, NotTested, Outcome, Row, Tested
from ..statistics.estimates import (
    Accuracy,
    Estimate,
    beyond,
    corrected,
    descriptive,
    over_runs,
    require_estimate,
)

LEAST_RUNS = 3  # of each arm, for an outcome about such models in general


@dataclass(frozen=True)
class _Assigned:
    """A claim with the names of the models that it is tested on."""

    claim: Claim
    figure: Figure
    assignment: Mapping[str, Any]  # from role to the name of a model, as in results
    copies: Sequence[Mapping[str, str]]  # the same for untrained copies, one dict for each set
    training_images: int | None = None  # of the models trained on all data; None: not known
    models: tuple[str, ...] = ()  # names as the report shows them
    why_not: str = ""  # why the claim is not about these models; empty where it is
    elsewhere: str = ""  # a sentence on how to test claims about models that are missing here
    not_measured: str = ""  # why a result is missing, as a sentence


def scorecard(
    results: Results,
    *,
    accuracy: Mapping[str, tuple] | None = None,
    copies: Sequence[Mapping[str, str]] = (),
    training_images: int | None = None,
    block: str | None = None,
    **models: str | None,
) -> list[Row]:
    """Tests all claims of all papers on measured results, paper by paper.

    Claims refer to models by role: `vit` is a ViT with a CLS token, `resnet` is a ResNet. The dict
    `vit_tf.analysis.figures.models.ROLES` describes all roles.

    Args:
        results: dict from result name to labelled result. A name consists of the measurement and
            its models, such as "cka.VIT", "cka.VIT.RESNET" or "attention_distance.VIT", where VIT
            and RESNET stand for the names of models. Each `Claim` lists its results in `inputs`.
        accuracy: dict from the name of a model to a tuple: the test accuracy in [0, 1], the number
            of test examples and, optionally, an array of shape (example,) that is true for
            correctly classified examples, and the number of classes.
        copies: randomly initialized copies of the models, as a list of dicts from role to the name
            of the copy in `results`. Claims about the effect of training compare the models with
            these copies, and are tested only if all their models have copies.
        training_images: number of training images of the models that were trained on all data. A
            claim about models trained on many images is tested only if it is known and sufficient.
        block: name of the block without skips in the model `without`, for example "block03".
        **models: names of the models in `results` by role, such as `vit="my_vit"`. Other roles are
            `gap` (a ViT with average pooling), `mixer` (an MLP-Mixer), `without` (a ViT trained
            without the skips of `block`), `fraction` (a ViT trained on a fraction of the images),
            `masked` (a ViT pre-trained by masked patch prediction), and the baselines `untrained`
            (the untrained ViT) and `noise` (Gaussian noise instead of features).

    Returns:
        List with a `Tested` or a `NotTested` for each claim. A `NotTested` states the reason, for
        example a missing model or result.

    Raises:
        ValueError: if a role is unknown.
    """
    for role in models:
        lookup("role", role, ROLES)
    assignment = {**models, "block": block}
    values = dict(results)
    values |= {f"accuracy.{name}": Accuracy(*facts) for name, facts in (accuracy or {}).items()}
    return [
        row
        for figure in all_figures()
        for claim in figure.claims
        for row in _test([_Assigned(claim, figure, assignment, copies, training_images)], values)
    ]


def evaluate(
    figures: list[Figure],
    models: list[StudyModel],
    results: dict[str, Any],
    elsewhere: str = "",
    data: Data | None = None,
) -> list[Row]:
    """Tests the claims of these figures on these models and results.

    A claim is tested on every set of models with its roles (`StudyModel.scorecard_role`), and
    compared with untrained copies of these models. If there are several sets, the intervals are
    corrected for their number (Holm). `elsewhere` is a sentence on how to test claims about models
    that are missing here.
    """
    values = results | accuracies_of(models, data.num_classes if data else None)
    rows = []
    for figure in figures:
        not_measured = ""
        if data and figure.claims:
            absent = [picture.missing(data) for picture in figure.select(models)[0]]
            not_measured = " ".join(dict.fromkeys(filter(None, absent)))
        not_measured = (
            not_measured or f"Not measured for these models: {describe_figure(figure, ', ')}."
        )
        for claim in figure.claims:
            sets_of_models = []
            for by_role in _models_by_role(claim, models):
                block = by_role["without"].detail if "without" in by_role else None
                # The least number of images that a model trained on all data has seen.
                seen = [model.training_images for role, model in by_role.items() if role in ARMS]
                least = None if None in seen else min(cast(list[int], seen), default=None)
                sets_of_models.append(
                    _Assigned(
                        claim,
                        figure,
                        {role: model.slug for role, model in by_role.items()} | {"block": block},
                        _copies_of(by_role, models),
                        training_images=least,
                        models=tuple(model.name for model in by_role.values()),
                        why_not=_of_other_supervision(claim, by_role),
                        elsewhere=elsewhere,
                        not_measured=not_measured,
                    )
                )
            rows += _test(sets_of_models, values)
    return rows


def accuracies_of(
    models: Iterable[StudyModel], num_classes: int | None = None
) -> dict[str, Accuracy]:
    """The test accuracies of models that have one, by the name that claims give to them."""
    return {
        f"accuracy.{model.slug}": Accuracy(*model.accuracy, model.correct, num_classes)
        for model in models
        if model.accuracy
    }


def _test(sets_of_models: Sequence[_Assigned], values: dict[str, Any]) -> list[Row]:
    """The rows of a claim for some sets of models, whose intervals allow for their number."""
    rows = [_test_one(assigned, values) for assigned in sets_of_models]
    tested = [row for row in rows if isinstance(row, Tested)]
    # What an interval has to exclude for a mark: the smallest effect of interest, on the effect's
    # own side. An effect within it has no mark, however narrow its interval.
    effects = [row.estimate.value for row in tested]
    nulls = [
        float(np.sign(effect)) * row.claim.least if abs(effect) > row.claim.least else effect
        for effect, row in zip(effects, tested, strict=True)
    ]
    estimates = iter(corrected([row.estimate for row in tested], nulls))
    return [
        replace(row, estimate=next(estimates)) if isinstance(row, Tested) else row for row in rows
    ]


def _test_one(assigned: _Assigned, values: dict[str, Any]) -> Row:
    """A claim on one set of models: its effect beyond untrained copies, or why it has none."""
    claim, source = assigned.claim, assigned.figure.paper.source
    roles = _roles(claim)

    def not_tested(reason: str) -> NotTested:
        return NotTested(claim, reason.strip(), assigned.models, source)

    if assigned.why_not:
        return not_tested(assigned.why_not)
    trained = _measure(assigned, {}, values)
    if isinstance(trained, str):
        is_complete = all(assigned.assignment.get(role) for role in roles)
        return not_tested(trained if is_complete else f"{trained} {assigned.elsewhere}")
    training_images = assigned.training_images
    if claim.least_images > (training_images or 0):
        known = "an unknown number of" if training_images is None else f"{training_images:,}"
        return not_tested(
            f"The claim is about models trained on {claim.least_images:,} images or more; these "
            f"were trained on {known} images."
        )

    # What holds without training is subtracted; without copies this is not known.
    effect, untrained = trained, ()
    if claim.beyond_untrained:
        nulls = [
            _measure(assigned, copy, values) for copy in assigned.copies if set(roles) <= set(copy)
        ]
        estimates = [null for null in nulls if isinstance(null, Estimate)]
        if not estimates:
            reasons = " ".join(dict.fromkeys(null for null in nulls if isinstance(null, str)))
            return not_tested(
                "The claim needs measurements of untrained copies of all these models, which are "
                "missing. " + reasons
            )
        effect, untrained = beyond(trained, estimates), tuple(null.value for null in estimates)

    # The same number where two models are shown different images, for claims about such results.
    names = [_named(template, assigned.assignment) for template in claim.inputs]
    by_chance = {name: permuted_images(_lookup(name, values)) for name in names}
    by_chance = {name: result for name, result in by_chance.items() if result is not None}
    permuted = _measure(assigned, {}, values | by_chance) if by_chance else None
    results = [
        name for name in names if isinstance(_lookup(name, values), xr.DataArray | xr.Dataset)
    ]
    return Tested(
        claim,
        effect,
        trained.value,
        untrained,
        permuted=permuted.value if isinstance(permuted, Estimate) else None,
        models=assigned.models,
        results=tuple(results),
        source=source,
    )


def _measure(
    assigned: _Assigned, copies: Mapping[str, str], values: dict[str, Any]
) -> Estimate | str:
    """The number of a claim for its models, or their copies; or the reason why there is none."""
    claim, assignment = assigned.claim, {**assigned.assignment, **copies}
    try:
        names = [_named(template, assignment) for template in claim.inputs]
        inputs = [_lookup(name, values | {"block": assignment["block"]}) for name in names]
        absent = [name for name, value in zip(names, inputs, strict=True) if value is None]
        if absent:
            raise ValueError(
                assigned.not_measured or f"Expected results {' and '.join(absent)}. Received: none"
            )
        estimate = claim.estimator(*inputs)
        require_estimate(estimate, f"the claim {claim.name!r}")
    except Exception as error:
        return explain(error, f"The claim {claim.name!r}")
    undefined = "The effect of the claim is not defined for these models (NaN)."
    return undefined if np.isnan(estimate.value) else estimate


def permuted_images(result: object) -> xr.Dataset | None:
    """CKA of two models that are shown different images; None for what has no such values."""
    if not isinstance(result, xr.Dataset) or not {"cka", "permuted"} <= set(result):
        return None
    return result[["cka"]].assign(cka=result["permuted"])


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


def _named(template: str, assignment: Mapping[str, Any]) -> str:
    """A result's name with the models' names in it."""
    for role in fields_of(template):
        if not assignment.get(role):
            raise ValueError(f"No model with this role: the claim needs {ROLES[role]}.")
    return template.format(**assignment)


def with_measured_claims(
    figures: Iterable[Figure], measurements: Iterable[Measurement]
) -> list[Figure]:
    """The figures, each with only those of its claims that need no other than these measurements.

    A claim about missing models is kept: it is listed as not tested, with the reason.
    """
    measured = {(m.name.partition(".")[0], len(m.models)) for m in measurements}

    def is_measured(template: str) -> bool:
        analysis = template.partition(".")[0]
        return analysis in ALWAYS_AVAILABLE or (analysis, template.count(".")) in measured

    return [
        replace(figure, claims=[c for c in figure.claims if all(map(is_measured, c.inputs))])
        for figure in figures
    ]


def untrained_measurements(
    figures: Iterable[Figure], claims: Iterable[Claim], models: list[StudyModel], data: Data
) -> list[Measurement]:
    """The measurements of untrained copies that the claims and quantities of these figures need.

    They are the same measurements as for the trained models.
    """
    figures, wanted = list(figures), []
    templates = [name for claim in claims if claim.beyond_untrained for name in claim.inputs]
    templates += [quantity.result for figure in figures for quantity in figure.quantities]
    needed = {name.partition(".")[0] for name in templates}
    for untrained_role in UNTRAINED_ROLES:
        copies = [model for model in models if model.role == untrained_role]
        # Figures select them as they do the trained models, variants with their bases.
        in_place: dict[int, StudyModel] = {}
        for copy in sorted(copies, key=lambda copy: copy.original.base is not None):
            trained = copy.original
            in_place[id(trained)] = replace(
                copy,
                role=trained.role,
                given_role=trained.scorecard_role,
                detail=trained.detail,
                base=in_place.get(id(trained.base)),
            )
        originals = {in_place[id(copy.original)]: copy for copy in copies}
        for figure in figures if originals else []:
            wanted += [
                _of_models(measurement, originals)
                for picture in figure.select(list(originals))[0]
                if not picture.missing(data)
                for measurement in picture.measurements.values()
                if measurement.name.partition(".")[0] in needed
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


def _copies_of(by_role: dict[str, StudyModel], models: list[StudyModel]) -> list[dict[str, str]]:
    """Names of the untrained copies of a set of models by role, for each initialization."""
    copies = []
    for untrained_role in UNTRAINED_ROLES:
        of_base = {id(model.base): model.slug for model in models if model.role == untrained_role}
        names = {role: of_base.get(id(model)) for role, model in by_role.items()}
        copies.append({role: name for role, name in names.items() if name})
    return [names for names in copies if names]


def _of_other_supervision(claim: Claim, by_role: dict[str, StudyModel]) -> str:
    """Why a claim about ViTs with some supervision is not tested on these; empty if it is."""
    masked = by_role.get("masked")
    if masked is not None and masked.supervision not in ("", RECONSTRUCTION):
        return (
            f"{masked.name} was trained {SUPERVISIONS[masked.supervision]}; the claim "
            f"is about ViTs trained {SUPERVISIONS[RECONSTRUCTION]}."
        )
    model = by_role.get("vit")
    if not claim.supervision or model is None or model.supervision in claim.supervision:
        return ""
    kinds = " or ".join(SUPERVISIONS[kind] for kind in claim.supervision)
    trained = f"{model.name} was trained {SUPERVISIONS.get(model.supervision)}"
    if not model.supervision:
        trained = f"it is not known how {model.name} was trained (specify its supervision)"
    return f"{trained[0].upper()}{trained[1:]}; the claim is about ViTs trained {kinds}."


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


TEXTS = ("statement", "unit", "outcome", "reason", "method", "models", "results")
NUMBERS = ("value", "trained", "permuted", "low", "high", "count", "sign", "paper_size", "least")
SEVERAL = {"untrained": "copy", "terms": "arm"}  # numbers along a dim of their own


def scorecard_dataset(
    rows: Sequence[Row], models: Iterable[StudyModel] = (), images: Data | None = None
) -> xr.Dataset:
    """The rows of a scorecard as a Dataset along `claim`, to save with the results."""
    several = {name for name, count in Counter(row.name for row in rows).items() if count > 1}
    names = [".".join([row.name, *row.models]) if row.name in several else row.name for row in rows]
    records = [_record(row) for row in rows]
    data: dict[str, Any] = {
        name: ("claim", np.array([record.get(name, "") for record in records], object))
        for name in TEXTS
    }
    for name in NUMBERS:
        # A None, for a number that a row lacks, becomes NaN.
        data[name] = "claim", np.array([record.get(name) for record in records], float)
    for name, dim in SEVERAL.items():
        lists = [record.get(name, ()) for record in records]
        padded = np.full((len(rows), max(map(len, lists), default=0)), np.nan)
        for row, numbers in zip(padded, lists, strict=True):
            row[: len(numbers)] = numbers
        data[name] = (("claim", dim), padded)
    of_models = [
        {"model": model.name, "role": str(model.scorecard_role)} | _brief(model.configuration)
        for model in models
        if model.base is None
    ]
    attributes = {"interval": "95 %"}
    if images is not None:
        attributes |= {"models": json.dumps(of_models), "data": json.dumps(_brief(images.facts))}
    return ResultDataset(data, coords={"claim": names}, attrs=attributes)


def _record(row: Row) -> dict[str, Any]:
    """The texts and numbers of a row by name, without those that it lacks."""
    record = {
        "statement": row.claim.statement,
        "unit": row.claim.unit,
        "outcome": row.outcome.value,
        "models": ", ".join(row.models),
        "least": row.claim.least,
        "sign": row.claim.paper.sign,
        "paper_size": row.claim.paper.size,
    }
    if isinstance(row, NotTested):
        return record | {"reason": row.reason}
    estimate = row.estimate
    record |= {
        "value": estimate.value,
        "trained": row.trained,
        "permuted": row.permuted,
        "untrained": row.untrained,
        "terms": estimate.terms,
        "reason": estimate.note,
        "results": " ".join(row.results),
    }
    if estimate.interval and estimate.method and estimate.units:
        record |= dict(zip(("low", "high"), estimate.interval, strict=True))
        record |= {"method": estimate.method.value, "count": estimate.units.count}
    return record


def scorecard_of_runs(scorecards: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Combines the scorecards of several runs of the same models.

    A run trains the models again, with another seed. The effect of a claim is its mean over the
    runs in which it was tested, with a 95 % interval over these runs. Models of different
    architectures are trained independently, so their runs are not paired by seed (Welch). The
    interval and the outcome need at least three runs.

    Args:
        scorecards: dict from the name of a run to its scorecard, a Dataset that the report of the
            run stores as `results/scorecard.nc`. At least two scorecards are needed.

    Returns:
        Dataset with the dim `claim` and the variables of a scorecard. In addition, `values` and
        `outcomes` of shape (claim, training) contain the effect and the outcome in each run. If a
        claim was not tested in a run, its effect is NaN and its outcome is `"not tested"`.

    Raises:
        ValueError: if there are fewer than two scorecards, if a scorecard is invalid or of another
            version, or if the models or data of the scorecards differ.
    """
    rows = claims_over_runs(scorecards)
    dataset = scorecard_dataset(rows).assign_attrs(interval="95 %, over runs")
    by_run = {
        name: card.reindex(claim=dataset["claim"].values) for name, card in scorecards.items()
    }
    values = np.stack([card["value"].values for card in by_run.values()], axis=1)
    outcomes = np.stack([card["outcome"].values for card in by_run.values()], axis=1)
    is_text = np.vectorize(lambda outcome: isinstance(outcome, str), otypes=[bool])(outcomes)
    outcomes = np.where(is_text, outcomes, Outcome.NOT_TESTED.value)
    return dataset.assign(
        values=(("claim", "training"), values), outcomes=(("claim", "training"), outcomes)
    ).assign_coords(training=list(scorecards))


def claims_over_runs(scorecards: Mapping[str, xr.Dataset]) -> list[Row]:
    """The claims of several scorecards, with their outcomes for such models in general."""
    if len(scorecards) < 2:
        raise ValueError(f"Expected at least two scorecards. Received: {len(scorecards)}")
    for name, card in scorecards.items():
        if "claim" not in card.dims or not {*TEXTS, *NUMBERS, *SEVERAL} <= set(card):
            raise ValueError(
                f"Expected {name} to be a scorecard of this version of vit_tf: repeat the command "
                f"that wrote it. Received: a Dataset of {list(card)}"
            )
    _require_alike(scorecards)
    defined = {
        claim.name: (claim, figure.paper.source)
        for figure in all_figures()
        for claim in figure.claims
    }
    rows = []
    names = dict.fromkeys(str(c) for card in scorecards.values() for c in card["claim"].values)
    for name in names:
        own_name = name.partition(".")[0]
        if own_name not in defined:
            raise ValueError(f"Expected claims of this version of vit_tf. Received: {own_name!r}")
        cards = {
            run: card.sel(claim=name)
            for run, card in scorecards.items()
            if name in card["claim"].values
        }
        rows.append(_combine(*defined[own_name], cards))
    return rows


def _combine(claim: Claim, source: tuple[str, str], cards: dict[str, xr.Dataset]) -> Row:
    """A claim over runs, from its row in the scorecard of each run."""
    tested = {run: card for run, card in cards.items() if np.isfinite(card["value"].item())}
    models = tuple(next(iter(cards.values()))["models"].item().split(", "))
    if not tested:
        reasons = dict.fromkeys(str(card["reason"].item()) for card in cards.values())
        return NotTested(claim, " ".join(reasons), models, source)

    # The terms of independent arms; the effect itself if runs disagree about them.
    terms = [card["terms"].values[np.isfinite(card["terms"].values)] for card in tested.values()]
    values = [card["value"].item() for card in tested.values()]
    estimate = over_runs(np.array(terms if len(set(map(len, terms))) == 1 else values))
    if len(tested) < LEAST_RUNS:
        few = f"An outcome about such models needs at least {LEAST_RUNS} runs of each"
        estimate = descriptive(estimate.value, few)
    untrained = np.concatenate([card["untrained"].values for card in tested.values()])
    permuted = [card["permuted"].item() for card in tested.values()]
    return Tested(
        claim,
        estimate,
        float(np.mean([card["trained"].item() for card in tested.values()])),
        (float(np.nanmean(untrained)),) if np.isfinite(untrained).any() else (),
        float(np.mean(permuted)) if np.isfinite(permuted).all() else None,
        models,
        source=source,
        runs=tuple(zip(tested, values, strict=True)),
    )


def _require_alike(scorecards: Mapping[str, xr.Dataset]) -> None:
    """Raises a `ValueError` for scorecards of other models or data, as far as they state them."""
    facts = {name: _facts_of(card) for name, card in scorecards.items() if "models" in card.attrs}
    if not facts:
        return
    first, *others = facts
    differences = []
    for other in others:
        # Another seed chooses other images of the same data; the same images may lie elsewhere.
        seeds_differ = facts[first].get("seed") != facts[other].get("seed")
        free = {"seed", "train", "validation", "test" if seeds_differ else "data"}
        for field in dict.fromkeys((*facts[first], *facts[other])):
            here, there = (str(facts[name].get(field, "absent")) for name in (first, other))
            is_known = not (here.startswith(UNKNOWN) or there.startswith(UNKNOWN))
            if is_known and here != there and field not in free:
                differences.append(f"{field} is {here} in {first} and {there} in {other}")
    if differences:
        raise ValueError(
            "Expected reports that differ in their seed only. Received: "
            f"{format_list(differences, '; ')}"
        )


def _facts_of(card: xr.Dataset) -> dict[str, Any]:
    """Facts of a report's models, which are called by their roles, and of its data: a dict."""
    facts, counts = {}, Counter()
    for model in json.loads(card.attrs["models"]):
        role = model.pop("role")
        counts[role] += 1
        words = f"{role} {counts[role]}" if counts[role] > 1 else role
        facts |= {f"{name} of {words}": value for name, value in model.items() if name != "model"}
    return facts | json.loads(card.attrs["data"])
