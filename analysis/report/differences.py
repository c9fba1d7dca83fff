"""What differs between models: each number with its interval, and what these allow to say."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..engine.estimates import Estimate, normal

# Of more models than that only the two that are furthest apart are compared.
MOST_PAIRWISE = 3


@dataclass(frozen=True)
class Comparison:
    """One number of several models, as a row of the report.

    Attributes:
        label, explanation, unit: what it is, how it is made, in which unit.
        values: list of (name of the model or of a pair, `Estimate`).
        sentences: what may be said of the differences.
        differs: how many of these say that there is one.
        link: what shows it: id of an element of the page.
    """

    label: str
    explanation: str
    unit: str
    values: tuple[tuple[str, Estimate], ...]
    sentences: tuple[str, ...] = ()
    differs: int = 0
    link: str = ""


def minus(one, other):
    """The difference of two estimates, as if of different images: an `Estimate`.

        low  = a - b - sqrt((a - a_low)^2 + (b_high - b)^2)
        high = a - b + sqrt((a_high - a)^2 + (b - b_low)^2)

    The method of variance estimates recovery (Zou and Donner 2008): of normal intervals it is that
    of the difference of independent values, and of others it keeps their asymmetry.
    """
    value = one.value - other.value
    low = value - np.hypot(one.value - one.low, other.high - other.value)
    high = value + np.hypot(one.high - one.value, other.value - other.low)
    return Estimate(value, float(low), float(high), "as if of different images")


def compare(pictures, models, results):
    """The numbers by which these models differ.

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
            right, count = model.accuracy
            stderr = np.sqrt(right * (1 - right) / count)
            values.append((model.name, normal(right, stderr, "binomial")))
    explanation = "Share of the test images whose class the model's own head finds."
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
    return [
        (name, quantity.statistic(results[key]))
        for name, key in named
        if results.get(key) is not None
    ]


def _said(values):
    """What the intervals allow to say of pairs of models, and of how many that they differ."""
    pairs = list(combinations(values, 2))
    if len(values) > MOST_PAIRWISE:
        ordered = sorted(values, key=lambda pair: pair[1].value)
        pairs = [(ordered[-1], ordered[0])]
    sentences, differs = [], 0
    for (name, one), (other, two) in pairs:
        gap = minus(one, two)
        if not np.isfinite([gap.low, gap.high]).all():
            sentences.append(f"{name} and {other}: no interval is known, so nothing can be said.")
        elif gap.low > 0 or gap.high < 0:
            differs += 1
            more, less = (name, other) if gap.value > 0 else (other, name)
            low, high = sorted((abs(gap.low), abs(gap.high)))
            sentences.append(
                f"{more} is higher than {less} by {abs(gap.value):.2f} ({low:.2f} to {high:.2f})."
            )
        else:
            sentences.append(
                f"{name} and {other}: no difference can be told "
                f"({_signed(gap.value)}, from {_signed(gap.low)} to {_signed(gap.high)})."
            )
    return tuple(sentences), differs


def _signed(value):
    """Two decimals with a sign, which zero has not."""
    rounded = round(value, 2)
    return f"{rounded:+.2f}".replace("-", "\N{MINUS SIGN}") if rounded else "0.00"
