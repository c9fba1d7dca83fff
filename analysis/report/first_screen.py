"""The first screen of a report: differences between models with intervals, and small plots."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from vit_tf.common.errors import explain
from vit_tf.common.names import join_words

from ..engine.results import Results
from ..figures.figure import Overview, Picture
from ..figures.models import UNTRAINED_ROLES, StudyModel
from ..plots import style
from ..statistics.claims import Quantity
from ..statistics.estimates import Estimate, corrected, minus, require_estimate
from .claim_rows import scale_of
from .page import Panel
from .scorecard import accuracies_of, permuted_images

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Where there are more models than that, only the two that are furthest apart are compared.
MOST_PAIRWISE = 3
RELATIVE = "relative to uniform"  # unit of values that are compared with uniform ones
WIDTH, HEIGHT = 1.93, 1.62  # inches: five panels stand in a row

Values: TypeAlias = Sequence[tuple[str, Estimate]]  # by the name of a model or of a pair
LeftOut: TypeAlias = list[tuple[str, list[str]]]  # as `Report.left_out`


@dataclass(frozen=True)
class Comparison:
    """One quantity of several models, as a row of the report."""

    label: str  # of the quantity
    explanation: str
    unit: str
    values: Values
    # Mean over the models' untrained copies, by name of the model or of a pair, where they exist.
    untrained: dict[str, float] = field(default_factory=dict)
    # Chance value of each pair: the models see different images.
    permuted: dict[str, float] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()  # the differences between pairs of models
    num_tested: int = 0  # how many pairs have a difference with an interval
    num_different: int = 0  # how many pairs differ significantly
    link: str = ""  # id of the element of the page that shows it
    chapter: Any = None  # the `papers.chapters.Chapter` of its figure; None for the test accuracy
    main_sentence: str = ""  # on the largest significant difference; empty where there is none
    relative_difference: float = 0.0  # that difference over the sum of both values
    values_sentence: str = ""


ACCURACY = Quantity(
    "Test accuracy",
    "Test accuracy of the model's own head.",
    "accuracy.{model}",
    "accuracy",
    lambda accuracy: accuracy.estimate,
)


class _Shown(NamedTuple):
    """A quantity with the id of the element of the page that shows it, and its chapter."""

    quantity: Quantity
    link: str
    chapter: Any


def compare(
    pictures: Sequence[Picture], models: Sequence[StudyModel], results: Results
) -> tuple[list[Comparison], LeftOut]:
    """The quantities of these models and their differences, and what could not be computed."""
    compared = [model for model in models if model.base is None]
    # A single model is compared with its untrained copy.
    if len(compared) == 1:
        compared += [m for m in models if m.base is compared[0] and m.role == "untrained"]
    slugs = {model.name: model.slug for model in compared}
    values_of_all = {**results, **accuracies_of(compared)}
    permuted_results = {name: permuted_images(result) for name, result in results.items()}
    by_chance = {name: result for name, result in permuted_results.items() if result is not None}

    # Each quantity once, where it is shown first.
    quantities = {id(ACCURACY): _Shown(ACCURACY, "top", None)}
    for picture in pictures:
        for quantity in picture.figure.quantities:
            shown = _Shown(quantity, f"figure-{picture.name}", picture.figure.chapter)
            quantities.setdefault(id(quantity), shown)

    # The values, those of untrained copies and those by chance. If one of the latter two cannot be
    # computed, the row shows the rest.
    rows, left_out = [], []
    for quantity, link, chapter in quantities.values():
        label, untrained, permuted = quantity.label, {}, {}
        try:
            values = _estimates(quantity, slugs, values_of_all)
        except Exception as error:
            left_out.append((label, [explain(error, f"The quantity {label!r}")]))
            continue
        try:
            untrained = _untrained_values(quantity, compared, models, results)
        except Exception as error:
            left_out.append((f"{label}, untrained", [explain(error, f"The quantity {label!r}")]))
        try:
            if quantity.of_pairs:
                permuted_values = _estimates(quantity, slugs, by_chance)
                permuted = {name: estimate.value for name, estimate in permuted_values}
        except Exception as error:
            reason = explain(error, f"The quantity {label!r}")
            left_out.append((f"{label}, permuted images", [reason]))
        if not values:
            continue
        row = Comparison(
            label,
            quantity.explanation,
            quantity.unit,
            values,
            untrained,
            permuted,
            link=link,
            chapter=chapter,
            values_sentence=_values_sentence(values, label, quantity.unit),
        )
        rows.append(row if quantity.of_pairs else _with_differences(row, quantity.more))
    return rows, left_out


def _with_differences(row: Comparison, more: str) -> Comparison:
    """The row with the differences between pairs of models.

    `more` is a verb phrase for a model with a higher value, such as `"has a higher accuracy"`.
    """
    unit, pairs = row.unit, list(combinations(row.values, 2))
    gaps = corrected([minus(first, second) for (_, first), (_, second) in pairs])
    sentences = [
        _sentence(a, b, gap, unit) for ((a, _), (b, _)), gap in zip(pairs, gaps, strict=True)
    ]
    significant = [index for index, gap in enumerate(gaps) if is_significant(gap)]
    if len(row.values) > MOST_PAIRWISE:
        furthest = np.argmax(np.nan_to_num([abs(gap.value) for gap in gaps], nan=-1))
        summary = f"{len(significant)} of {len(gaps)} pairs of models differ significantly."
        sentences = [sentences[furthest], summary]
    row = replace(
        row,
        sentences=tuple(sentences),
        num_tested=sum(gap.interval is not None for gap in gaps),
        num_different=len(significant),
    )
    if not significant:
        return row

    # The largest significant difference in words, with the values of untrained copies.
    largest = max(significant, key=lambda index: abs(gaps[index].value))
    (high, above), (low, below) = sorted(pairs[largest], key=lambda pair: -pair[1].value)
    more = more or f"has a higher {_decapitalized(row.label)}"
    numbers = f"{_number(above.value, unit)} versus {_number(below.value, unit)}"
    copies = ""
    if high in row.untrained and low in row.untrained:
        first, second = (_number(row.untrained[name], unit) for name in (high, low))
        copies = f"; untrained copies {first} versus {second}"
    notes = [estimate.note for estimate in (above, below)]
    conditions = f" ({high}: {notes[0]}; {low}: {notes[1]})" if all(notes) else ""
    scale = abs(above.value) + abs(below.value)
    details = f"{numbers}{_in_brackets(unit, more)}{copies}{conditions}"
    return replace(
        row,
        main_sentence=f"{high} {more} than {low}: {details}.",
        relative_difference=(above.value - below.value) / scale if scale else 0.0,
    )


def _estimates(
    quantity: Quantity, slugs: Mapping[str, str], results: Results
) -> list[tuple[str, Estimate]]:
    """The values of a quantity by the name of the model, or of each pair in both orders.

    `slugs` are the parts of the names of results, by the names of the models.
    """
    if quantity.of_pairs:
        named = [
            (f"{name} and {other}", {"model": slugs[name], "other": slugs[other]})
            for pair in combinations(slugs, 2)
            for name, other in (pair, pair[::-1])
        ]
    else:
        named = [(name, {"model": slug}) for name, slug in slugs.items()]
    estimates = []
    for name, in_result in named:
        result = results.get(quantity.result.format(**in_result))
        if result is not None:
            estimates.append((name, quantity.estimator(result)))
            require_estimate(estimates[-1][1], f"the quantity {quantity.label!r}")
    return estimates


def _untrained_values(
    quantity: Quantity,
    compared: Sequence[StudyModel],
    models: Sequence[StudyModel],
    results: Results,
) -> dict[str, float]:
    """The mean value of the untrained copies of models or pairs, by the name of the trained."""
    values = {}
    for role in UNTRAINED_ROLES:
        # Under the names of the trained models, so that names of pairs are theirs.
        copies = [m for m in models if m.role == role and m.base in compared]
        slugs = {copy.base.name: copy.slug for copy in copies if copy.base}
        for name, estimate in _estimates(quantity, slugs, results):
            values.setdefault(name, []).append(estimate.value)
    return {name: float(np.mean(each)) for name, each in values.items()}


def main_results(rows: Sequence[Comparison], most: int = 5) -> list[str]:
    """Sentences on the significant differences, the largest first, and on those that are not.

    If no difference was tested, as for one model, the sentences state the values.
    """
    differing = [row for row in rows if row.main_sentence]
    differing.sort(key=lambda row: -row.relative_difference)
    sentences = [row.main_sentence for row in differing[:most]]
    not_significant = (row for row in rows if row.num_tested and not row.num_different)
    labels = [_decapitalized(row.label) for row in not_significant]
    if labels and len(sentences) < most:
        differences = "difference" if len(labels) == 1 else "differences"
        verb = "is" if len(labels) == 1 else "are"
        sentences.append(f"The {differences} in {join_words(labels)} {verb} not significant.")
    return sentences or [row.values_sentence for row in rows[:most]]


def _values_sentence(values: Values, label: str, unit: str) -> str:
    """The values of a quantity in words."""
    if len(values) > MOST_PAIRWISE:
        ranked = sorted(values, key=lambda named: named[1].value)
        ends = [f"{_number(estimate.value, unit)} ({name})" for name, estimate in ranked]
        return f"{label}: from {ends[0]} to {ends[-1]}{_in_brackets(unit, label)}."
    if len(values) > 1:
        listed = join_words(
            [f"{_number(estimate.value, unit)} for {name}" for name, estimate in values]
        )
        return f"{label}: {listed}{_in_brackets(unit, label)}."
    ((_, estimate),) = values
    interval = ""
    if estimate.interval is not None:
        low, high = (_number(end, unit) for end in estimate.interval)
        interval = f"95 % CI {low} to {high}"
    return f"{label} is {_number(estimate.value, unit)}{_in_brackets(unit, label, interval)}."


def _number(value: float, unit: str) -> str:
    """A value as text: accuracies in percent, others with two decimals."""
    if unit == "accuracy":
        return f"{100 * value:.1f}\N{NO-BREAK SPACE}%"
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _in_brackets(unit: str, text: str, note: str = "") -> str:
    """The unit, unless values are in percent or the text contains it, and a note, in brackets."""
    is_clear = unit == "accuracy" or unit.lower() in text.lower()
    notes = "; ".join(filter(None, ["" if is_clear else unit, note]))
    return f" ({notes})" if notes else ""


def _decapitalized(text: str) -> str:
    """A label within a sentence: acronyms keep their letters."""
    return text if text[1:2].isupper() or text[1:2] == "-" else text[:1].lower() + text[1:]


def is_significant(gap: Estimate) -> bool:
    """Whether the interval of a difference leaves out 0."""
    return gap.interval is not None and (gap.interval[0] > 0 or gap.interval[1] < 0)


def _sentence(name: str, other: str, gap: Estimate, unit: str) -> str:
    """A difference with its interval, or that it is not significant, as a sentence."""
    if gap.interval is None:
        return f"{name} and {other}: the difference has no confidence interval."
    scale, decimals, points = 1.0, 2, ""
    if unit == "accuracy":
        scale, decimals, points = scale_of(unit), 1, " percentage points"
    value, low, high = (scale * number for number in (gap.value, *gap.interval))
    if is_significant(gap):
        more, less = (name, other) if value > 0 else (other, name)
        value, low, high = abs(value), *sorted((abs(low), abs(high)))
        numbers = f"{value:.{decimals}f}{points} ({low:.{decimals}f} to {high:.{decimals}f})"
        return f"{more} is higher than {less} by {numbers}."
    # A zero has no sign.
    rounded = [round(number, decimals) for number in (value, low, high)]
    texts = [f"{x:+.{decimals}f}" if x else f"{0:.{decimals}f}" for x in rounded]
    value, low, high = (text.replace("-", "\N{MINUS SIGN}") for text in texts)
    return f"{name} and {other}: not significant ({value}{points}, from {low} to {high})."


def model_colours(models: Sequence[StudyModel]) -> dict[str, str]:
    """Colours of the models by name, as CSS writes them."""
    colours = style.as_hex(style.distinct_colours(len(models)))
    return {model.name: colour for model, colour in zip(models, colours, strict=True)}


def draw_overview(
    pictures: Sequence[Picture], models: Sequence[StudyModel], results: dict[str, Any]
) -> tuple[list[Panel], LeftOut]:
    """The panels of the figures that have an `Overview`, and what could not be drawn."""
    # The results of single models, by the chapter and the label of each overview.
    results_by_view: dict[tuple[int, str], tuple[Overview, dict[str, Any]]] = {}
    for picture in pictures:
        view = picture.figure.overview
        if view is None:
            continue
        for measurement in picture.measurements.values():
            (model, *others) = measurement.models
            if model in models and not others:
                key = picture.figure.chapter.rank, view.label
                _, by_model = results_by_view.setdefault(key, (view, {}))
                by_model[model.name] = results[measurement.name]

    # The panels, in the order of the chapters.
    colours, panels, left_out = model_colours(models), [], []
    for _, (view, by_model) in sorted(results_by_view.items(), key=lambda item: item[0][0]):
        try:
            panels += overview_panels(view, by_model, colours)
        except Exception as error:
            left_out.append((view.label, [explain(error, f"The overview {view.label!r}")]))
    return panels, left_out


def overview_panels(
    view: Overview, results: dict[str, Any], colours: dict[str, str]
) -> list[Panel]:
    """The panels of one `Overview`, of results by the name of the model."""
    by_model = {name: np.asarray(view.values(result), float) for name, result in results.items()}
    lines = {name: values for name, values in by_model.items() if values.ndim == 1}
    panels = []
    for name, values in by_model.items():
        if values.ndim == 2:
            title = f"{view.label},\n{name}" if len(colours) > 1 else view.label
            panels.append(draw_panel(title, _draw_matrix, values, view.unit))
    return panels + (
        [draw_panel(view.label, _draw_lines, lines, colours, view.unit)] if lines else []
    )


def draw_panel(title: str, draw: Callable[..., None], *values: Any) -> Panel:
    """A panel that a function draws in new axes."""
    import matplotlib.pyplot as plt

    ax = style.new_axes(WIDTH, HEIGHT)
    figure = style.figure_of(ax)
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.02, h_pad=0.02)
    file = BytesIO()
    try:
        draw(ax, *values)
        figure.savefig(file, dpi=192)
    finally:
        plt.close(figure)
    return Panel(title, file.getvalue(), f"{title}.".replace("\n", " "))


def _draw_matrix(ax: "Axes", values: np.ndarray, unit: str) -> None:
    image = ax.imshow(
        values.T, origin="lower", cmap=style.colours("magma"), vmin=0, vmax=1, aspect="auto"
    )
    ax.set(xticks=[], yticks=[])
    ax.set_xlabel("layer", fontsize=7, labelpad=2)
    ax.set_ylabel("layer", fontsize=7, labelpad=2)
    bar = ax.figure.colorbar(image, ax=ax, ticks=[0, 0.5, 1], fraction=0.07, pad=0.03, aspect=18)
    bar.set_label(unit, fontsize=7, labelpad=1)
    bar.ax.tick_params(labelsize=6.5, length=2, pad=1.5)


def _draw_lines(
    ax: "Axes", lines: dict[str, np.ndarray], colours: dict[str, str], unit: str
) -> None:
    for name, values in lines.items():
        depth = np.linspace(0, 1, len(values)) if len(values) > 1 else [0.5]
        ax.plot(depth, values, color=colours[name], linewidth=1.5, marker="o", markersize=2.2)
    if unit == "accuracy":
        style.percent(ax.yaxis)
        unit = "accuracy (%)"
    ax.set_xticks([0, 1], ["first", "last"])
    ax.set_xlabel("layer", fontsize=7, labelpad=-4)
    ax.set_ylabel(unit, fontsize=7, labelpad=2)
    ax.tick_params(labelsize=6.5, length=2, pad=1.5)
    ax.margins(y=0.12)
    if unit == RELATIVE:  # 0 is none of it, 1 is uniform: small differences look small
        ax.set_ylim(0, max(1.1, *ax.get_ylim()))
    style.tidy(ax)
