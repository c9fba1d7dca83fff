"""The words that a figure of a paper is written in: `Paper`, `Figure` and the selectors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations, product
from typing import Any

from vit_tf.names import join_words

from .measurement import Measurement
from .models import ROLES, Lacking, StudyModel


@dataclass(frozen=True)
class Paper:
    """A paper whose figures are reproduced and whose claims are tested.

    Attributes:
        name, address: authors and year, "Raghu et al. (2021)"; where it is to be read.
        prefix: what the numbers of its figures begin with for `--figures`: "W." of "W.3".
        rank: papers of a lower rank come first in lists and chapters.
    """

    name: str
    address: str
    prefix: str
    rank: int = 100

    @property
    def source(self):
        """Name and address."""
        return self.name, self.address


@dataclass(frozen=True)
class Selection:
    """The models of one picture, and what is measured of them.

    Attributes:
        models: the models, in the order of the fields of a title.
        measurements: dict from a label to the measurement drawn under it.
        alone: whether the drawing takes the only result itself, and no dict.
        baselines: those of the labels that are only there to compare the others with.
        label: of the part that it shows, for `split`.
    """

    models: tuple[StudyModel, ...]
    measurements: dict[str, Measurement]
    alone: bool = False
    baselines: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Overview:
    """What the first screen of a report shows of a figure.

    Attributes:
        label: title of the panel.
        values: function of a result to its values over depth, of shape (layer,), which one panel
            shows for all models, or of shape (layer, layer), with a panel for each model.
        unit: name of the values.
    """

    label: str
    values: Callable
    unit: str


@dataclass(frozen=True)
class Figure:
    """A figure of a paper: what it shows for which models, and the claims that it tests.

    Attributes:
        paper: the `Paper`.
        numbers: the figures of the paper that it reproduces, separated by spaces, without the
            paper's prefix: `"9 10 D.1"`, a table as `"T6"`. Each of them selects it.
        chapter: its `papers.chapters.Chapter`.
        shows: what it shows, for lists of figures.
        models: which models, by a selector: `each`, `split`, `together`, `pairs` or `group`.
        measure: function of the models to what is measured: of one for `each`, `split` and
            `together`, of two for `pairs`, of a list for `group`. It returns a measurement, a dict
            from a label to several, or None for models that it does not apply to; `model.lacks`
            raises for a missing requirement.
        draw: function of the result, or of a dict from label to result for `together`, `group` and
            wherever several are measured, to Matplotlib axes.
        name: name of the picture and its file, with the models in braces: `"cka-{model}"`.
        title: what a picture shows; the names of the models may stand in it in braces: `"{model}"`,
            `"{other}"`, `"{of}"` for the model that it is a variant of, or itself, `"{models}"` for
            all but further seeds, and `"{label}"`. Pictures of several models with one title
            are the panels of one figure.
        caption: how to read it, with names as in `title`; or a function of the models and of a dict
            from label to result.
        instead: function of such a dict to the sentence that replaces the picture, or to None
            where the picture is shown.
        findings: the list of `judge.Finding`.
        quantities: the list of `Quantity` by which models are compared.
        also: numbers in other papers that select it too, with their prefix.
        interactive: function of a result that returns its interactive plot, or None.
        overview: its summary on the first screen, an `Overview` or None.
        scale: name of the colour scale that it shares with other figures; its own if empty.
        call: Python expression that measures it, with the models in braces: `"{model}"`, for pairs
            `"{other}"` too, for groups `"{models}"`, as `"analysis.cka({model}, images)"`.
        show: Python expression of the plot; by default `draw` by name.
    """

    paper: Paper
    numbers: str
    chapter: Any
    shows: str
    models: Any
    measure: Callable
    draw: Callable
    name: str
    title: str
    caption: str | Callable
    findings: Sequence = ()
    quantities: Sequence = ()
    also: str = ""
    interactive: Callable | None = None
    instead: Callable | None = None
    overview: Overview | None = None
    scale: str = ""
    call: str = ""
    show: str = ""

    @property
    def choices(self):
        """The numbers that select it, such as `("W.3", "W.14")`."""
        prefix = self.paper.prefix
        own = [n if n.islower() else f"{prefix}{n}" for n in self.numbers.split()]
        return (*own, *self.also.split())

    @property
    def reference(self):
        """The figures and tables of the paper, in words; empty for what is not in it."""
        own = [number for number in self.numbers.split() if not number.islower()]
        tables = [number[1:] for number in own if number.startswith("T")]
        figures = [number for number in own if not number.startswith("T")]
        return " and ".join(filter(None, [_listed("Figure", figures), _listed("Table", tables)]))

    def select(self, models):
        """The pictures for these models: list of `Selection`, and reasons for missing ones."""
        return self.models.select(models, self.measure)


def _listed(word, numbers):
    return f"{word}{'s' if len(numbers) > 1 else ''} {join_words(numbers)}" if numbers else ""


@dataclass(frozen=True)
class Selector:
    """Which models a figure compares; made by `each`, `split`, `together`, `pairs` and `group`.

    Attributes:
        roles: parts of the models that it shows.
        choose: function of the selector, the models and the function that measures them to a list
            of `Selection` and a list of sentences on why there are no others.
        anyone: whether it shows models without a part in a study too; or a sentence on why not,
            which is empty where another figure shows them.
        others: for `pairs`, the parts of the second model.
        baselines: for `together`, the random baselines that are drawn next to the models.
        needing: for `group`, function of a model that raises a `Lacking` for one to be left out.
        panel: title of a picture among those of other models, as `Figure.title`; empty where one
            picture shows all models.
    """

    roles: tuple[str, ...]
    choose: Callable
    anyone: bool | str = True
    others: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    needing: Callable | None = None
    panel: str = ""

    @property
    def all_roles(self):
        """Every part that it takes a trained model for."""
        return (*self.roles, *self.others)

    def select(self, models, measure):
        """What `choose` returns, and the reason where a figure is not of anyone's models."""
        found, reasons = self.choose(self, models, measure)
        if found or self.anyone is True or not playing(models, "model"):
            return found, reasons
        if self.anyone is False:
            return found, [f"It needs {self._words()}, as the study trains them."]
        return found, [self.anyone] if self.anyone else []

    def _words(self):
        trained = [role for role in self.all_roles if role not in ("vit", "gap", "resnet")]
        return " and ".join(ROLES[role] for role in trained)

    def lacking(self, models):
        """Models of the parts that none of these plays, in words: "a ViT and a ResNet"."""
        roles = [role for role in self.all_roles if not playing(models, role)]
        return join_words(dict.fromkeys(ROLES[role] for role in roles) or ["other models"])

    def of(self, models):
        """The models that play one of the roles, and those without a part."""
        return playing(models, *self.roles, *(["model"] if self.anyone is True else []))


def each(*roles, anyone=True, panel="{model}"):
    """One picture of every model that plays one of these roles, with this title."""
    return Selector(roles, _each, anyone, panel=panel)


def split(*roles):
    """One picture of each part of every model; `measure` returns a dict from their labels."""
    return Selector(roles, _split, panel="{model}, {label}")


def together(*roles, baselines=()):
    """One picture of all models that play one of these roles, each measured by itself."""
    return Selector(roles, _together, baselines=baselines)


def pairs(roles, others, *, ordered=False, anyone=True):
    """One picture of every pair of models, the first of these roles and the second of others.

    Of models without a part all pairs; both ways round where `ordered`.
    """
    arranged = permutations if ordered else combinations
    choose = partial(_pairs, arranged=arranged)
    return Selector(roles, choose, anyone, others=others, panel="{model} and {other}")


def group(*roles, anyone=True, needing=None):
    """One picture of what is measured of all these models at once, of those with what is needed."""
    return Selector(roles, _group, anyone, needing=needing)


def playing(models, *roles):
    """The models that play one of these roles."""
    return [model for model in models if model.role in roles]


def variants(models, model, role):
    """The models of a role that are variants of this one."""
    return [other for other in models if other.role == role and other.of == model]


def _measured(measure, *models):
    """What is measured, or None, and the sentence on what a model lacks, or None."""
    try:
        return measure(*models), None
    except Lacking as error:
        return None, str(error)


def _each(selector, models, measure):
    found, reasons = [], []
    for model in selector.of(models):
        measured, lacking = _measured(measure, model)
        if measured is not None:
            found.append(_selection((model,), measured, model.name))
        if lacking and model.role == "model":
            reasons.append(lacking)
    return found, reasons


def _split(selector, models, measure):
    found, reasons = _each(selector, models, measure)
    return [
        Selection(selection.models, {label: one}, alone=True, label=label)
        for selection in found
        for label, one in selection.measurements.items()
    ], reasons


def _together(selector, models, measure):
    found, reasons = _each(selector, models, measure)
    if not found:
        return [], reasons
    chosen = tuple(selection.models[0] for selection in found)
    measurements, beside = {}, {}
    for model, selection in zip(chosen, found, strict=True):
        trained = model.of if model.role == "seed" else model
        measurements |= _labelled(selection, trained.name)
    for model in playing(models, *selector.baselines):
        measured = _measured(measure, model)[0] if model.of in chosen else None
        if measured is not None:
            beside |= _labelled(_selection((model,), measured, ""), model.name)
    return [Selection(chosen, measurements | beside, baselines=tuple(beside))], reasons


def _pairs(selector, models, measure, arranged):
    found, reasons = [], []
    anyones = playing(models, "model") if selector.anyone is True else []
    first, second = playing(models, *selector.roles), playing(models, *selector.others)
    for one, other in [*product(first, second), *arranged(anyones, 2)]:
        measured, lacking = _measured(measure, one, other)
        if measured is not None:
            found.append(_selection((one, other), measured, one.name))
        elif lacking:
            reasons.append(lacking)
    if len(anyones) == 1:
        return found, ["It compares two models; one is given."]
    return found, [] if found else list(dict.fromkeys(reasons))


def _group(selector, models, measure):
    chosen, reasons = [], []
    for model in selector.of(models):
        _, lacking = _measured(selector.needing, model) if selector.needing else (None, None)
        chosen += [] if lacking else [model]
        reasons += [lacking] if lacking and model.role == "model" else []
    measured, lacking = _measured(measure, chosen) if chosen else (None, None)
    if not measured:
        return [], reasons + ([lacking] if lacking and playing(models, "model") else [])
    leading = selector.roles[:1] or ("model",)
    first = sorted(chosen, key=lambda model: model.role not in leading)
    return [_selection(tuple(first), measured, "all")], reasons


def _selection(models, measured, label):
    if isinstance(measured, dict):
        return Selection(models, measured)
    return Selection(models, {label: measured}, alone=True)


def _labelled(selection, name):
    """The measurements of a model by label: its name, with their own labels if they are several."""
    labels = [name if selection.alone else f"{name}: {label}" for label in selection.measurements]
    return dict(zip(labels, selection.measurements.values(), strict=True))
