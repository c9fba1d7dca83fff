"""The words that a figure of a paper is written in: `Paper`, `Figure` and the selectors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, permutations, product
from typing import Any

from vit_tf.names import join_words

from .measurement import Measurement
from .models import ROLES, NotApplicable, StudyModel


@dataclass(frozen=True)
class Paper:
    """A paper whose figures are reproduced and whose claims are tested."""

    name: str  # authors and year, "Raghu et al. (2021)"
    address: str
    prefix: str  # of the numbers of its figures for `--figures`: "W." of "W.3"
    rank: int = 100  # papers of a lower rank come first in lists and chapters

    @property
    def source(self) -> tuple[str, str]:
        """Name and address."""
        return self.name, self.address


@dataclass(frozen=True)
class Selection:
    """The models of one picture, and what is measured of them."""

    models: tuple[StudyModel, ...]  # in the order of the fields of a title
    measurements: dict[str, Measurement]  # by the label that it is drawn under
    alone: bool = False  # whether the drawing takes the only result itself, and no dict
    baselines: tuple[str, ...] = ()  # labels that are only there to compare the others with
    label: str = ""  # of the part that it shows, for `split`


@dataclass(frozen=True)
class Overview:
    """What the first screen of a report shows of a figure: a panel titled `label`."""

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
            from a label to several, or None for models that it does not apply to; `model.require`
            raises for a missing requirement.
        draw: function of the result, or of a dict from label to result for `together`, `group` and
            wherever several are measured, to Matplotlib axes.
        name: name of the picture and its file, with the models in braces: `"cka-{model}"`.
        title: what a picture shows; the names of the models may stand in it in braces: `"{model}"`,
            `"{other}"`, `"{base}"` for the model that it is a variant of, or itself, `"{models}"`
            for all but further seeds, and `"{label}"`. Pictures of several models with one title
            are the panels of one figure.
        caption: how to read it, with names as in `title`; or a function of the models and of a dict
            from label to result.
        instead: function of such a dict to the sentence that replaces the picture, or to None
            where the picture is shown.
        claims: the list of `claims.Claim`.
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
    claims: Sequence = ()
    quantities: Sequence = ()
    also: str = ""
    interactive: Callable | None = None
    instead: Callable | None = None
    overview: Overview | None = None
    scale: str = ""
    call: str = ""
    show: str = ""

    def variant(self, **changes: Any) -> "Figure":
        """Another picture like this one, without its claims, quantities and `show`."""
        return replace(self, **{"claims": (), "quantities": (), "show": ""} | changes)

    @property
    def choices(self) -> tuple[str, ...]:
        """The numbers that select it, such as `("W.3", "W.14")`."""
        prefix = self.paper.prefix
        own = [n if n.islower() else f"{prefix}{n}" for n in self.numbers.split()]
        return (*own, *self.also.split())

    @property
    def reference(self) -> str:
        """The figures and tables of the paper, in words; empty for what is not in it."""
        own = [number for number in self.numbers.split() if not number.islower()]
        tables = [number[1:] for number in own if number.startswith("T")]
        figures = [number for number in own if not number.startswith("T")]
        return " and ".join(
            filter(None, [_numbered("Figure", figures), _numbered("Table", tables)])
        )

    def select(self, models: list[StudyModel]) -> tuple[list[Selection], list[str]]:
        """The pictures for these models: list of `Selection`, and reasons for missing ones."""
        return self.models.select(models, self.measure)


def _numbered(word: str, numbers: list[str]) -> str:
    return f"{word}{'s' if len(numbers) > 1 else ''} {join_words(numbers)}" if numbers else ""


@dataclass(frozen=True)
class Selector:
    """Which models a figure compares; made by `each`, `split`, `together`, `pairs` and `group`."""

    roles: tuple[str, ...]
    # From the selector, the models and the function that measures them, as `select` returns it.
    choose: Callable
    # Whether it shows models without a part in a study too; or a sentence on why not, which is
    # empty where another figure shows them.
    anyone: bool | str = True
    others: tuple[str, ...] = ()  # for `pairs`, the parts of the second model
    baselines: tuple[str, ...] = ()  # for `together`, drawn next to the models
    needing: Callable | None = None  # for `group`, raises `NotApplicable` for some models
    panel: str = ""  # title of a picture among those of other models, as `Figure.title`

    @property
    def all_roles(self) -> tuple[str, ...]:
        """Every part that it takes a trained model for."""
        return (*self.roles, *self.others)

    def select(
        self, models: list[StudyModel], measure: Callable
    ) -> tuple[list[Selection], list[str]]:
        """What `choose` returns, and the reason where a figure is not of anyone's models."""
        selections, reasons = self.choose(self, models, measure)
        if selections or self.anyone is True or not with_roles(models, "model"):
            return selections, reasons
        if self.anyone is False:
            trained = [role for role in self.all_roles if role not in ("vit", "gap", "resnet")]
            words = " and ".join(ROLES[role] for role in trained)
            return selections, [f"It needs {words}, which vit-tf study --full trains."]
        return selections, [self.anyone] if self.anyone else []

    def missing_roles(self, models: list[StudyModel]) -> str:
        """Models of the parts that none of these plays, in words: "a ViT and a ResNet"."""
        roles = [role for role in self.all_roles if not with_roles(models, role)]
        return join_words(dict.fromkeys(ROLES[role] for role in roles) or ["other models"])

    def applicable(self, models: list[StudyModel]) -> list[StudyModel]:
        """The models that play one of the roles, and those without a part."""
        return with_roles(models, *self.roles, *(["model"] if self.anyone is True else []))


def each(*roles: str, anyone: bool | str = True, panel: str = "{model}") -> Selector:
    """One picture of every model that plays one of these roles, with this title."""
    return Selector(roles, _each, anyone, panel=panel)


def split(*roles: str) -> Selector:
    """One picture of each part of every model; `measure` returns a dict from their labels."""
    return Selector(roles, _split, panel="{model}, {label}")


def together(*roles: str, baselines: tuple[str, ...] = ()) -> Selector:
    """One picture of all models that play one of these roles, each measured by itself."""
    return Selector(roles, _together, baselines=baselines)


def pairs(
    roles: tuple[str, ...],
    others: tuple[str, ...],
    *,
    ordered: bool = False,
    anyone: bool | str = True,
) -> Selector:
    """One picture of every pair of models of these roles; of models without a part, all pairs."""
    arranged = permutations if ordered else combinations
    choose = partial(_pairs, arranged=arranged)
    return Selector(roles, choose, anyone, others=others, panel="{model} and {other}")


def group(*roles: str, anyone: bool | str = True, needing: Callable | None = None) -> Selector:
    """One picture of what is measured of all these models at once, of those with what is needed."""
    return Selector(roles, _group, anyone, needing=needing)


def with_roles(models: list[StudyModel], *roles: str) -> list[StudyModel]:
    """The models that play one of these roles."""
    return [model for model in models if model.role in roles]


def variants(models: list[StudyModel], model: StudyModel, role: str) -> list[StudyModel]:
    """The models of a role that are variants of this one."""
    return [other for other in models if other.role == role and other.base == model]


def _measured(measure, *models):
    """What is measured, or None, and the sentence on what a model lacks, or None."""
    try:
        return measure(*models), None
    except NotApplicable as error:
        return None, str(error)


def _each(selector, models, measure):
    selections, reasons = [], []
    for model in selector.applicable(models):
        measured, reason = _measured(measure, model)
        if measured is not None:
            selections.append(_selection((model,), measured, model.name))
        if reason and model.role == "model":
            reasons.append(reason)
    return selections, reasons


def _split(selector, models, measure):
    selections, reasons = _each(selector, models, measure)
    return [
        Selection(selection.models, {label: measurement}, alone=True, label=label)
        for selection in selections
        for label, measurement in selection.measurements.items()
    ], reasons


def _together(selector, models, measure):
    selections, reasons = _each(selector, models, measure)
    if not selections:
        return [], reasons
    shown = tuple(selection.models[0] for selection in selections)
    measurements, baselines = {}, {}
    for model, selection in zip(shown, selections, strict=True):
        trained = model.base if model.role == "seed" else model
        measurements |= _labelled(selection, trained.name)
    for model in with_roles(models, *selector.baselines):
        measured = _measured(measure, model)[0] if model.base in shown else None
        if measured is not None:
            baselines |= _labelled(_selection((model,), measured, ""), model.name)
    return [Selection(shown, measurements | baselines, baselines=tuple(baselines))], reasons


def _pairs(selector, models, measure, arranged):
    selections, reasons = [], []
    anyones = with_roles(models, "model") if selector.anyone is True else []
    first, second = with_roles(models, *selector.roles), with_roles(models, *selector.others)
    for pair in [*product(first, second), *arranged(anyones, 2)]:
        measured, reason = _measured(measure, *pair)
        if measured is not None:
            selections.append(_selection(pair, measured, pair[0].name))
        elif reason:
            reasons.append(reason)
    if len(anyones) == 1:
        return selections, ["It compares two models; one is given."]
    return selections, [] if selections else list(dict.fromkeys(reasons))


def _group(selector, models, measure):
    shown, reasons = [], []
    for model in selector.applicable(models):
        _, reason = _measured(selector.needing, model) if selector.needing else (None, None)
        shown += [] if reason else [model]
        reasons += [reason] if reason and model.role == "model" else []
    measured, reason = _measured(measure, shown) if shown else (None, None)
    if not measured:
        return [], reasons + ([reason] if reason and with_roles(models, "model") else [])
    leading = selector.roles[:1] or ("model",)
    first = sorted(shown, key=lambda model: model.role not in leading)
    return [_selection(tuple(first), measured, "all")], reasons


def _selection(models, measured, label):
    if isinstance(measured, dict):
        return Selection(models, measured)
    return Selection(models, {label: measured}, alone=True)


def _labelled(selection, name):
    """The measurements of a model by label: its name, with their own labels if they are several."""
    labels = [name if selection.alone else f"{name}: {label}" for label in selection.measurements]
    return dict(zip(labels, selection.measurements.values(), strict=True))
