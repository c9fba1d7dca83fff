"""Which figures there are, which of them apply to models and data, and why the others do not."""

from dataclasses import replace

from . import embedding_figures, raghu_figures, walmer_figures
from .figure_entries import READS
from .papers import RAGHU

FIGURES = (*raghu_figures.FIGURES, *walmer_figures.FIGURES, *embedding_figures.FIGURES)


def choose_figures(numbers=()):
    """The entries of the table with these numbers, in its order; all for none.

    Args:
        numbers: as those of an `Entry`, such as `"1"`, `"C.4"`, `"W.3"` or `"sanity"`.

    Raises:
        ValueError: for a number that no entry has.
    """
    known = dict.fromkeys(number for entry in FIGURES for number in entry.numbers)
    unknown = [number for number in numbers if number not in known]
    if unknown:
        raise ValueError(
            f"Expected figures among {', '.join(known)}. Received: {', '.join(unknown)}"
        )
    return [entry for entry in FIGURES if not numbers or set(numbers) & set(entry.numbers)]


def plan_rows(entries, subjects, data):
    """The pictures of these models and of this `measure.Data`: list of (entry, `Row`)."""
    there = [entry for entry in entries if not entry.reads or data.has(entry.reads)]
    return [(entry, row) for entry in there for row in entry.rows(_fitting(entry, subjects))]


def _fitting(entry, subjects):
    """The models that have a part in the study, and the others that lack nothing."""
    return [s for s in subjects if s.role != "model" or not entry.lacks(s)]


def left_out(entries, subjects, data):
    """Which figures are not drawn, of which models without a part in the study or at all, and why.

    Returns:
        List of (what the figure is, list of sentences).
    """
    found = []
    for entry in entries:
        models = [subject for subject in subjects if subject.role == "model"]
        lacking = {subject.name: entry.lacks(subject) for subject in models}
        why = [f"{name} {words}." for name, words in lacking.items() if words]
        fitting = [subject for subject in models if not lacking[subject.name]]
        why += [sentence for sentence in [fitting and entry.together(fitting)] if sentence]
        if entry.reads and not data.has(entry.reads):
            why = [f"It needs {READS[entry.reads]}."]
        if why:
            of = "" if entry.source is RAGHU else f" of {entry.source[0]}"
            found.append((": ".join(filter(None, [entry.paper + of, entry.title])), why))
    return found


def without_failures(planned, results, problems):
    """The pictures of what could be measured, and those that lack a model or all of them.

    Args:
        planned: list of (entry, `Row`) from `plan_rows`.
        results, problems: what `measure.attempt` returned.

    Returns:
        Pair of a list as `planned`, and a list of (title of a picture, list of sentences).
    """
    drawable, failed = [], []
    for entry, row in planned:
        made = {k: one for k, one in row.measurements.items() if results[one.name] is not None}
        if set(made) - set(row.baselines):
            drawable.append((entry, replace(row, measurements=made)))
        why = {k: problems[one.name] for k, one in row.measurements.items() if k not in made}
        if why:
            failed.append((row.title, [f"{label}: {reason}" for label, reason in why.items()]))
    return drawable, failed
