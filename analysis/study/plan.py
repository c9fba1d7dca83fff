"""Which figures there are, which pictures they make of models and data, and why not others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import walk_packages

from vit_tf.names import joined

from .figure import Figure, Selection


@dataclass(frozen=True)
class Picture:
    """One picture of a figure, before it is measured.

    Attributes:
        figure: the `Figure`.
        of: the `Selection`: its models and measurements.
    """

    figure: Figure
    of: Selection

    @property
    def name(self):
        """Short and unique, also of the file."""
        return self._filled(self.figure.name, "slug")

    @property
    def title(self):
        """What is shown."""
        return self._filled(self.figure.title, "name")

    def caption(self, results):
        """How to read it; `results` as for `draw`."""
        caption = self.figure.caption
        if callable(caption):
            return caption(self.of.models, results)
        return self._filled(caption, "name")

    def draw(self, results):
        """The Matplotlib figure of a dict from label to result."""
        draw: Callable = self.figure.draw
        if self.of.alone:
            (result,) = results.values()
            axes = draw(result)
        elif self.of.baselines:
            axes = draw(results, baselines=[name for name in self.of.baselines if name in results])
        else:
            axes = draw(results)
        return _figure_of(axes)

    def interactive(self, results):
        """What answers to the mouse: a list with an entry for each result, or an empty one."""
        show = self.figure.interactive
        return [show(result) for result in results.values()] if show else []

    def _filled(self, text, field):
        models = self.of.models
        named = {"model": models[0], "other": models[-1], "of": models[0].of or models[0]}
        values = {key: getattr(model, field) for key, model in named.items()}
        firsts = [model for model in models if model.role != "seed"] or models
        values["models"] = joined([getattr(model, field) for model in firsts])
        values["label"] = self.of.label
        return text.format(**values)


def _figure_of(axes):
    """The Matplotlib figure of a figure itself, of axes, or of an array of them."""
    if hasattr(axes, "savefig"):
        return axes
    return getattr(axes, "flat", [axes])[0].figure


@cache
def all_figures():
    """Every `Figure` that a module of `papers/` defines, paper by paper, in the modules' order."""
    papers = import_module("vit_tf.analysis.papers")
    found = {}
    for module in walk_packages(papers.__path__, f"{papers.__name__}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, Figure):
                found[id(value)] = value
    return tuple(sorted(found.values(), key=lambda figure: (figure.paper.rank, figure.paper.name)))


def choose_figures(numbers=(), figures=None):
    """The figures with these numbers; all for none.

    Args:
        numbers: as those of `Figure.choices`, such as `"1"`, `"C.4"`, `"W.3"` or `"sanity"`.
        figures: those to choose among; by default `all_figures()`.

    Raises:
        ValueError: for a number that no figure has.
    """
    figures = all_figures() if figures is None else tuple(figures)
    known = list(dict.fromkeys(number for figure in figures for number in figure.choices))
    unknown = [number for number in numbers if number not in known]
    if unknown:
        raise ValueError(
            f"Expected figures among {', '.join(known)}. Received: {', '.join(unknown)}"
        )
    return [f for f in figures if not numbers or set(numbers) & set(f.choices)]


def plan(figures, models, data, elsewhere=""):
    """What is drawn of these models and of this `Data`, and what is not.

    Args:
        figures, models, data: lists of `Figure` and of `StudyModel`, and the `Data`.
        elsewhere: sentence on how figures of models that are not here are had; without it they are
            left out in silence.

    Returns:
        Pair of a list of `Picture`, and of a list of (what a figure is, list of sentences on why it
        does not show a model, or nothing).
    """
    pictures, left_out = [], []
    for figure in figures:
        selections, reasons = figure.select(models)
        if elsewhere and not selections and not reasons:
            reasons = [f"It takes {figure.models.lacking(models)}. {elsewhere}"]
        absent = lacking(selections, data)
        pictures += [
            Picture(figure, selection)
            for selection, why in zip(selections, absent, strict=True)
            if not why
        ]
        reasons = list(dict.fromkeys([*reasons, *filter(None, absent)]))
        if reasons:
            left_out.append((describe(figure), reasons))
    return pictures, _merged(left_out)


def describe(figure):
    """What a figure is, in words: "Figure 9 of Raghu et al. (2021): ..."."""
    of = f"{figure.reference} of {figure.paper.name}" if figure.reference else figure.paper.name
    return f"{of}: {figure.shows}"


def lacking(selections, data):
    """What each `Selection` needs of a `Data` that is not there: list of sentences, or empty."""
    return [data.lacks(_reads(selection)) for selection in selections]


def _reads(selection):
    """The fields of the data that the measurements of a picture go through."""
    reads = (one.all_reads for one in selection.measurements.values())
    return sorted(set().union(*reads))


def _merged(left_out):
    """One entry for each figure, whose parts may have several reasons."""
    merged = {}
    for what, reasons in left_out:
        merged.setdefault(what, {}).update(dict.fromkeys(reasons))
    return [(what, list(reasons)) for what, reasons in merged.items()]


def without_failures(pictures, results, problems):
    """The pictures of what could be measured, and those that lack a model or all of them.

    Args:
        pictures: list of `Picture`.
        results, problems: what `measure.attempt` returned.

    Returns:
        Pair of a list as `pictures`, and a list of (title of a picture, list of sentences).
    """
    drawable, failed = [], []
    for picture in pictures:
        of = picture.of.measurements
        made = {key: one for key, one in of.items() if results[one.name] is not None}
        if set(made) - set(picture.of.baselines):
            drawable.append(replace(picture, of=replace(picture.of, measurements=made)))
        why = {key: problems[one.name] for key, one in of.items() if key not in made}
        if why:
            failed.append((picture.title, [f"{label}: {reason}" for label, reason in why.items()]))
    return drawable, failed
