"""The claims of papers as a report shows them: numbers as text, intervals as drawings."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_tf.common.names import join_words

from ..statistics.claims import (
    DECIDED,
    NotTested,
    Outcome,
    PaperEffect,
    Row,
    Tested,
    images_to_decide,
)
from ..statistics.estimates import Estimate, Method

METHODS = {
    Method.IMAGES: "Student's t over {units}",
    Method.RUNS: "Student's t (for models that are trained independently: Welch's) over {units}",
    Method.BINOMIAL: "binomial, over {units}",
}


def brief(value: float, digits: int = 3) -> str:
    """So many significant digits with a true minus sign."""
    text = f"{value:.{digits}g}" if abs(value) >= 0.0005 or not value else f"{value:.1g}"
    return text.replace("-", "\N{MINUS SIGN}")


def scale_of(unit: str) -> float:
    """The factor of the numbers that a reader sees: accuracies and their differences in percent."""
    return 100 if unit.endswith("accuracy") else 1


def shown_unit(unit: str) -> str:
    """The unit of these numbers."""
    if not unit.endswith("accuracy"):
        return unit
    return (
        f"{unit} (%)"
        if " in " not in unit and " of " not in unit
        else f"{unit} (percentage points)"
    )


def interval_text(estimate: Estimate, unit: str = "", digits: int = 3) -> str:
    """The interval of an `Estimate` as text, which is empty where there is none."""
    if estimate.interval is None:
        return ""
    return " to ".join(brief(scale_of(unit) * end, digits) for end in estimate.interval)


def method_text(estimate: Estimate) -> str:
    """How the interval of an `Estimate` was made, or why it has none, as a sentence."""
    if estimate.method is None or estimate.units is None:
        return f"Descriptive. {estimate.note}." if estimate.note else "Descriptive."
    units = f"{estimate.units.count} {estimate.units.name}"
    if estimate.units.images not in (None, estimate.units.count):
        units += f" ({estimate.units.images:,} images in total)"
    method = METHODS[estimate.method].format(units=units)
    holm = f", corrected for {estimate.comparisons} comparisons (Holm)"
    text = f"Interval: {method}{holm if estimate.comparisons > 1 else ''}."
    return f"{text} {estimate.note}." if estimate.note else text


def paper_text(paper: PaperEffect, unit: str = "") -> str:
    """The effect that a paper reports, with its place."""
    if not paper.sign:
        return f"no effect ({paper.place})"
    if paper.size is not None:
        return f"{brief(scale_of(unit) * paper.sign * paper.size)} ({paper.place})"
    return f"{'above' if paper.sign > 0 else 'below'} 0 ({paper.place})"


def count_sentence(rows: Sequence[Row]) -> str:
    """How many claims are decided and how, as a sentence."""
    counts = Counter(row.outcome for row in rows)
    decided = sum(counts[outcome] for outcome in DECIDED)
    tested = [row for row in rows if isinstance(row, Tested)]
    if not tested:
        return "No claim could be tested on these models."
    listed = [f"{counts[outcome]} {outcome.value}" for outcome in DECIDED if counts[outcome]]
    how = f": {', '.join(listed)}" if listed else ""
    descriptive = sum(row.estimate.interval is None for row in tested)
    without = f", {descriptive} of them without an interval" if descriptive else ""
    return (
        f"{decided} of {len(rows)} claims are decided{how}; {counts[Outcome.UNDECIDED]} are "
        f"undecided{without}; {counts[Outcome.NOT_TESTED]} are not tested."
    )


OUTCOMES = {
    Outcome.AS_IN_PAPER: "As in {paper}",
    Outcome.SMALLER: "As in {paper}, but smaller",
    Outcome.NO_EFFECT: "No relevant effect, unlike {paper}",
    Outcome.OPPOSITE: "Opposite to {paper}",
}


def decided_sentences(rows: Sequence[Row], most: int = 3) -> list[str]:
    """The decided claims as sentences with numbers, at most so many.

    Those as in the paper come first, and those on most sets of models. Numbers have two digits.
    """
    tested = [row for row in rows if isinstance(row, Tested)]
    groups: dict[tuple, list[Tested]] = {}
    for row in tested:
        if row.outcome in DECIDED:
            groups.setdefault((row.outcome, row.claim.statement), []).append(row)
    order = sorted(groups, key=lambda key: (DECIDED.index(key[0]), -len(groups[key])))
    # One claim that is not as in the paper is shown too, if there is one.
    agreeing = [key for key in order if key[0] is Outcome.AS_IN_PAPER]
    others = order[len(agreeing) :]
    agreeing = agreeing[: most - bool(others)]
    sentences = []
    for outcome, statement in [*agreeing, *others[: most - len(agreeing)]]:
        group = groups[outcome, statement]
        claim, (paper, _) = group[0].claim, group[0].source
        words = shown_unit(claim.unit)
        words += ", trained minus untrained" if group[0].untrained else ""
        values = [scale_of(claim.unit) * row.estimate.value for row in group]
        if len(group) == 1:
            interval = interval_text(group[0].estimate, claim.unit, 2)
            numbers = f"{words}: {brief(values[0], 2)} (95 % CI {interval})"
            if models := group[0].models:
                numbers += f" for {join_words(models)}"
        else:
            count = sum(row.claim.statement == statement for row in tested)
            numbers = f"{words}: {brief(min(values), 2)} to {brief(max(values), 2)}"
            numbers += f" for {len(group)} of {count} sets of models"
        lead = OUTCOMES[outcome].format(paper=paper)
        sentences.append(f"{lead}: {statement} {numbers[:1].upper()}{numbers[1:]}.")
    return sentences


def rows_by_paper(rows: Sequence[Row], figures: dict[str, str]) -> list[dict[str, Any]]:
    """The claims of each paper as the template expects them, with the number of each outcome."""
    shown = [_shown(row, order, figures) for order, row in enumerate(rows, start=1)]
    papers = []
    for name, address in dict.fromkeys(row.source for row in rows):
        claims = [each for each in shown if each["source"] == (name, address)]
        groups: dict[str, list[dict[str, Any]]] = {}
        for each in claims:
            groups.setdefault(each["statement"], []).append(each)
        is_tested = {
            statement: any(each["key"] != "not-tested" for each in group)
            for statement, group in groups.items()
        }
        papers.append(
            {
                "name": name,
                "address": address,
                "claims": claims,
                "tested": [group for statement, group in groups.items() if is_tested[statement]],
                "untested": [
                    group for statement, group in groups.items() if not is_tested[statement]
                ],
                "counts": Counter(each["key"] for each in claims),
            }
        )
    return papers


def _shown(row: Row, order: int, figures: dict[str, str]) -> dict[str, Any]:
    """A claim as the template expects it."""
    claim = row.claim

    def number(value: float) -> str:
        return brief(scale_of(claim.unit) * value)

    shown = {
        "id": f"claim-{order}",
        "key": row.outcome.value.replace(" ", "-"),  # its name in the page's style
        "outcome": row.outcome.value,
        "statement": claim.statement,
        "source": row.source,
        "models": row.models,
        "unit": shown_unit(claim.unit),
        "paper": paper_text(claim.paper, claim.unit),
        "least": number(claim.least),
        "shown": figures.get(row.name, ""),
        "links": [],
        "strip": None,
    }
    if isinstance(row, NotTested):
        return shown | {"explanation": row.reason}
    interval = interval_text(row.estimate, claim.unit)
    explanation = [claim.explanation, method_text(row.estimate)]
    if row.runs:
        runs = "; ".join(f"{name}: {number(value)}" for name, value in row.runs)
        explanation.append(f"Effect in each run: {runs}.")
    if images := images_to_decide(row):
        explanation.append(
            f"About {images:,} images would probably decide the claim, if the true effect is the "
            "end of its 80 % CI that is nearer to 0."
        )
    # What the outcome is about: the models at hand, or models that are trained like them.
    units, level = row.estimate.units, "these models"
    if row.estimate.method is Method.RUNS and units is not None:
        level = f"such models in general ({units.count} runs of each)"
    return shown | {
        "explanation": " ".join(explanation),
        "effect": number(row.estimate.value),
        "interval": interval,
        "level": level,
        "trained": number(row.trained),
        "untrained": " and ".join(map(number, row.untrained)),
        "permuted": "" if row.permuted is None else number(row.permuted),
        "strip": _strip(row) if interval else None,
        "links": [f"results/{name}.nc" for name in row.results],
    }


def _strip(row: Tested) -> dict[str, Any]:
    """Positions of a claim's numbers on an axis from 0 to 100, with margins at both ends."""
    paper, least = row.claim.paper, row.claim.least
    low, high = row.estimate.interval or (np.nan, np.nan)
    numbers = {
        "low": low,
        "value": row.estimate.value,
        "high": high,
        "zero": 0.0,
        "least_below": -least,
        "least_above": least,
    }
    if paper.size is not None and paper.sign:
        numbers["paper"] = paper.sign * paper.size
    first, last = min(numbers.values()), max(numbers.values())
    scale = 84 / (last - first or 1)
    return {name: round(8 + scale * (number - first), 1) for name, number in numbers.items()}
