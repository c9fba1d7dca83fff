"""Differences between models: each quantity with its interval, and its significance."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..engine.estimates import Estimate, accuracy_of, corrected, minus, require_estimate

# Of more models than that only the two that are furthest apart are compared.
MOST_PAIRWISE = 3


@dataclass(frozen=True)
class Comparison:
    """One quantity of several models, as a row of the report.

    Attributes:
        label, explanation, unit: of the quantity.
        values: list of (name of the model or of a pair, `Estimate`).
        sentences: the differences between pairs of models.
        differs: how many pairs differ significantly.
        link: id of the element of the page that shows it.
    """

    label: str
    explanation: str
    unit: str
    values: tuple[tuple[str, Estimate], ...]
    sentences: tuple[str, ...] = ()
    differs: int = 0
    link: str = ""


def compare(pictures, models, results):
    """The quantities of these models and their differences.

    Args:
        pictures: list of `study.plan.Picture`, whose figures name their quantities.
        models: list of `StudyModel`. Compared are those that are no variants of others; a model by
            itself with its own untrained copy, where that was measured.
        results: dict from result name to labelled result.

    Returns:
        List of `Comparison`, the accuracy first.
    """
    compared = [model for model in models if model.of is None]
    if len(compared) == 1:
        compared += [m for m in models if m.of is compared[0] and m.role == "fresh"]
    rows = [_accuracies(compared)]
    seen = {}
    for picture in pictures:
        for quantity in picture.figure.quantities:
            seen.setdefault(id(quantity), (quantity, f"figure-{picture.name}"))
    for quantity, link in seen.values():
        found = _pairs if quantity.of_pairs else _singles
        values = found(quantity, compared, results)
        sentences, differs = ((), 0) if quantity.of_pairs else _said(values)
        rows.append(
            Comparison(
                quantity.label.rstrip("."),
                quantity.explanation,
                quantity.unit,
                tuple(values),
                sentences,
                differs,
                link,
            )
        )
    return [row for row in rows if row.values]


def _accuracies(models):
    values = []
    for model in models:
        if model.accuracy:
            values.append((model.name, accuracy_of(*model.accuracy, model.correct)))
    explanation = "Test accuracy of the model's own head."
    return Comparison("Accuracy", explanation, "accuracy", tuple(values), *_said(values), "models")


def _singles(quantity, models, results):
    named = [(model.name, quantity.result.format(model=model.slug)) for model in models]
    return _estimated(quantity, named, results)


def _pairs(quantity, models, results):
    named = [
        (f"{one.name} and {other.name}", quantity.result.format(model=one.slug, other=other.slug))
        for first, second in combinations(models, 2)
        for one, other in ((first, second), (second, first))
    ]
    return _estimated(quantity, named, results)


def _estimated(quantity, named, results):
    estimates = [
        (name, quantity.statistic(results[key]))
        for name, key in named
        if results.get(key) is not None
    ]
    for _, estimate in estimates:
        require_estimate(estimate, f"the quantity {quantity.label!r}")
    return estimates


def _said(values):
    """The differences between pairs of models as sentences, and how many are significant.

    All pairs are tested, with Holm's correction. For many models only the pair with the largest
    difference is shown.
    """
    pairs = list(combinations(values, 2))
    gaps = corrected([minus(one, two) for (_, one), (_, two) in pairs])
    sentences = [_sentence(a, b, gap) for ((a, _), (b, _)), gap in zip(pairs, gaps, strict=True)]
    differs = sum(gap.low > 0 or gap.high < 0 for gap in gaps)
    if len(values) > MOST_PAIRWISE:
        furthest = np.nanargmax([abs(gap.value) for gap in gaps])
        number = f"{differs} of {len(gaps)} pairs of models differ significantly."
        sentences = [sentences[furthest], number]
    return tuple(sentences), differs


def _sentence(name, other, gap):
    """A difference with its interval, or that it is not significant, as a sentence."""
    if not np.isfinite([gap.low, gap.high]).all():
        return f"{name} and {other}: no interval is known."
    if gap.low > 0 or gap.high < 0:
        more, less = (name, other) if gap.value > 0 else (other, name)
        low, high = sorted((abs(gap.low), abs(gap.high)))
        return f"{more} is higher than {less} by {abs(gap.value):.2f} ({low:.2f} to {high:.2f})."
    return (
        f"{name} and {other}: not significant "
        f"({_signed(gap.value)}, from {_signed(gap.low)} to {_signed(gap.high)})."
    )


def _signed(value):
    """Two decimals with a sign, which zero has not."""
    rounded = round(value, 2)
    return f"{rounded:+.2f}".replace("-", "\N{MINUS SIGN}") if rounded else "0.00"
