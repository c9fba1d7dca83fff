"""The scorecard over several runs: does a claim replicate for other seeds?"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from vit_tf.files import write_whole
from vit_tf.names import format_list, join_words

from ..engine.estimates import (
    Estimate,
    claim_outcome,
    current_outcomes,
    over_trainings,
    range_of,
)
from ..plots.similarity_plots import plot_trainings
from ..report.page import ReportFigure, require_own, write_report
from ..report.rendering import save_figure
from .assemble import Report
from .claims import OUTCOMES, Result
from .data import UNKNOWN
from .figure import all_figures

log = logging.getLogger(__name__)

FIXED = ("statement", "section", "figure", "quantity", "threshold", "direction", "source")
NUMBERS = ("value", "low", "high")
PLACE = Path("results", "scorecard.nc")


def scorecard_of_trainings(scorecards):
    """Combines the scorecards of several runs of the same models.

    The value is the mean over the runs in which the claim was tested; its interval, from
    `engine.estimates.over_trainings`, covers seed variance and the uncertainty within the runs.

    Args:
        scorecards: dict from the name of a run to the Dataset of its scorecard, which reports store
            as `results/scorecard.nc`; at least two.

    Returns:
        Dataset along `claim` with the variables of a scorecard, and with `values`, `lows`, `highs`
        and `outcomes` of shape (claim, training), NaN and `"not tested"` for runs without the
        claim.

    Raises:
        ValueError: for fewer than two scorecards, invalid ones, thresholds that differ between
            them, or models or data that differ from those of the first.
    """
    if len(scorecards) < 2:
        raise ValueError(f"Expected at least two scorecards. Received: {len(scorecards)}")
    scorecards = {name: current_outcomes(card) for name, card in scorecards.items()}
    for name, card in scorecards.items():
        if "claim" not in card.dims or not {*FIXED, *NUMBERS, "outcome"} <= set(card):
            raise ValueError(f"Expected {name} to be a scorecard. Received: {list(card)}")
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
    return xr.Dataset(data, coords, {"interval": "95 %, over seeds"})


def _require_alike(scorecards: dict[str, xr.Dataset]) -> None:
    """A `ValueError` for other models or data; reports of earlier versions are not compared."""
    facts = {name: _facts_of(card) for name, card in scorecards.items() if "models" in card.attrs}
    if without := [name for name in scorecards if name not in facts]:
        words = "%s: an earlier version; its models and data are not compared"
        log.warning(words, format_list(without))
    first, *others = facts or [None]
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
            yield field, *values


def _over(claim: str, scorecards: dict[str, xr.Dataset]) -> dict[str, Any]:
    """A row of `scorecard_of_trainings`: dict from name to value, or to one for each run."""
    cards = {n: card.sel(claim=claim) for n, card in scorecards.items() if claim in card["claim"]}
    first = {name: [card[name].item() for card in cards.values()] for name in FIXED}
    for name in ("threshold", "direction"):
        if len(set(first[name])) > 1:
            raise ValueError(
                f"Expected one {name} of {claim!r} in all scorecards. Received: {first[name]}"
            )
    by_run = {
        name: [cards[n][name].item() if n in cards else np.nan for n in scorecards]
        for name in NUMBERS
    }
    numbers_of_runs = zip(*by_run.values(), strict=True)
    measured = [Estimate(*numbers, "") for numbers in numbers_of_runs if not np.isnan(numbers[0])]
    row = {name: values[0] for name, values in first.items()}
    words = re.split(" (?:No i|I)nterval: ", next(iter(cards.values()))["explanation"].item())[0]
    if measured:
        mean = over_trainings(measured, range_of(row["quantity"]))
        row |= {name: getattr(mean, name) for name in NUMBERS}
        row["outcome"] = claim_outcome(mean.low, mean.high, row["threshold"], row["direction"])
        row["explanation"] = f"{words} Interval: {mean.how}."
    else:
        row |= dict.fromkeys(NUMBERS, np.nan) | {"outcome": "not tested", "explanation": words}
    outcomes = [cards[n]["outcome"].item() if n in cards else "not tested" for n in scorecards]
    return row | {f"{name}s": values for name, values in by_run.items()} | {"outcomes": outcomes}


def report_trainings(reports, folder):
    """Writes a report over several runs, with the scorecard that combines their reports.

    Examples:
        report_trainings({"seed 0": "report-0", "seed 1": "report-1"}, "report-over-seeds")

    Args:
        reports: dict from the name of a run to the folder of its report, as `make_report`, `vit-tf
            analyze` and `vit-tf study` write it, of models that differ in their seed alone; each
            has one model for each role of the scorecard.
        folder: where the report, its figure and `results/scorecard.nc` are written.

    Returns:
        The `Report`.

    Raises:
        ValueError: for a folder without a scorecard, or as `scorecard_of_trainings`.
    """
    folder = Path(folder)
    require_own(folder / "report.html")
    missing = [str(path) for path in reports.values() if not Path(path, PLACE).is_file()]
    if missing:
        raise ValueError(
            f"Expected the folders of reports with a scorecard, {PLACE}. "
            f"Received: {format_list(missing)} without"
        )
    cards = {name: xr.load_dataset(Path(path, PLACE)) for name, path in reports.items()}
    result = scorecard_of_trainings(cards)
    for path in (folder / PLACE.parent, folder / "figures"):
        path.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PLACE, result.to_netcdf)
    statements = zip(result["statement"].values, result["outcome"].values, strict=True)
    figure = ReportFigure(
        name="trainings",
        title="Claims by run",
        caption="Each row is a claim on its own scale, with the threshold in the middle and the "
        "side that the paper reports on the right. Points are runs, diamonds their mean with its "
        "95 % CI.",
        paper="",
        alt=" ".join(f"{statement} {outcome}." for statement, outcome in statements),
        png=folder / "figures" / "trainings.png",
        results=(str(PLACE),),
    )
    save_figure(plot_trainings(result).figure, figure.png)
    claims = _claims(result)
    path = write_report(
        folder / "report.html",
        title=f"Claims over {len(cards)} runs",
        introduction=f"The same models were trained with {len(cards)} seeds. The results of each "
        f"run are in the reports {join_words(cards)}.",
        scorecard=claims,
        trainings=len(cards),
        models=[
            {"run": name} | _counts(result["outcomes"].sel(training=name).values) for name in cards
        ],
        sections=[("Runs", "How consistent are the outcomes over runs?", [figure])],
    )
    return Report(path, {"scorecard": result}, claims, [])


def _counts(outcomes: np.ndarray) -> dict[str, int]:
    return {outcome: int(np.sum(outcomes == outcome)) for outcome in OUTCOMES}


def _claims(result: xr.Dataset) -> list[Result]:
    """The rows of a scorecard as `Result`s, whose explanations list the values of all runs."""
    sources = dict(figure.paper.source for figure in all_figures())
    plain = {field.name for field in fields(Result)} & set(result)
    claims = []
    for name in result["claim"].values:
        row = result.sel(claim=name)
        values = {field: row[field].item() for field in plain}
        each = [
            f"{training}: " + ("not measured" if np.isnan(value) else f"{value:.3g}")
            for training, value in zip(result["training"].values, row["values"].values, strict=True)
        ]
        if values["outcome"] != "not tested":
            values["explanation"] += f" Values: {'; '.join(each)}."
        values["source"] = (values["source"], sources.get(values["source"], ""))
        claims.append(Result(name=str(name), results=("scorecard",), **values))
    return claims
