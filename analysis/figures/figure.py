"""Definitions of figures of papers, and the pictures made from them for given models."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from itertools import combinations, permutations, product
from pkgutil import walk_packages
from string import Formatter
from typing import Any, TypeAlias

from vit_tf.common.errors import explain
from vit_tf.common.names import join_words, unknown_name

from ..engine.results import Results
from .data import Data
from .measure import Measurement
from .models import ROLES, NotApplicable, StudyModel

# In place of numbers of figures: the leading figure of each chapter, and all figures.
MAIN, ALL = "main", "all"
# The fields, in braces, of the name, the title and the caption of a figure.
TEXT_FIELDS = ("model", "other", "base", "models", "label")
# The roles of the models that `vit-tf study` trains without --full.
SHORT_STUDY = ("vit", "gap", "resnet")
# The inputs of claims that no figure measures: a model comes with its test accuracy, and the roles
# that models play in a claim with the name of the block that was trained without skips.
ALWAYS_AVAILABLE = ("accuracy", "block")


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
class Overview:
    """What the first screen of a report shows of a figure: a panel titled `label`."""

    label: str
    # From a result to an array: values by layer (1-D), or of pairs of layers, from 0 to 1 (2-D).
    values: Callable[[Any], Any]
    unit: str  # of the values, the label of their axis or colour bar


@dataclass(frozen=True)
class Figure:
    """A figure of a paper: what it shows for which models, and the claims that it tests.

    Attributes:
        paper: the `Paper` to which the figure belongs.
        numbers: numbers of the reproduced figures of the paper, separated by spaces and without
            the paper's prefix: `"9 10 D.1"`, or `"T6"` for a table. Each number selects this
            figure. A word in lower case, such as `"effective"`, has no prefix.
        chapter: the `papers.chapters.Chapter` of the report that contains the figure.
        shows: what the figure shows, as a phrase for lists of figures.
        models: the `Selector` of the models that are compared, which `each`, `split`, `together`,
            `pairs` or `group` returns.
        measure: function that returns a measurement, or a dict from label to measurement. The
            arguments of the function are one model for `each`, `split` and `together`, two models
            for `pairs`, and a list of models for `group`. The function returns None if the figure
            does not apply to the models. If a model lacks something that the figure needs,
            `model.require` raises an error.
        results: names of the results that `measure` computes, separated by spaces. The claims and
            quantities of all figures may use these results. If a claim or quantity uses a result
            that no figure lists, `check_figures` raises an error. For a figure with an empty
            `results`, this check is skipped.
        draw: function that draws a result and returns Matplotlib axes. For `together` and `group`,
            and if `measure` returns a dict, the argument of the function is a dict from label to
            result.
        name: name of the image and its file, with the models in braces: `"cka-{model}"`.
        title: title of the image. It may contain names of models in braces: `"{model}"`,
            `"{other}"`, `"{label}"`, `"{models}"` (all models except further seeds) and `"{base}"`
            (the model of which this model is a variant, or the model itself). Images with the same
            chapter, `measure`, `draw` and title are the panels of one figure.
        caption: text that states how to read the figure, with names as in `title`; or a function
            that returns this text from the models and a dict from label to result.
        instead: function of a dict from label to result. It returns a sentence that replaces the
            image, or None if the image is shown.
        claims: list of the `Claim` that the figure tests.
        quantities: list of the `Quantity` by which models are compared.
        also: numbers of figures in other papers that also select this figure. Each number starts
            with the prefix of its paper.
        interactive: function that returns the interactive plot of a result, or None.
        overview: an `Overview`, the summary of the figure on the first screen, or None.
        scale: name of a colour scale. Figures with the same name share their colour scale; if it is
            empty, the figure has its own.
        call: Python expression of the measurement, as `"analysis.cka({model}, images)"`. Models are
            in braces: `"{model}"`, also `"{other}"` for pairs, and `"{models}"` for groups.
        show: Python expression of the plot; by default, the name of `draw`.
        imports: Python statement that imports what `call` needs besides `analysis` and `vit_tf`.
    """

    paper: Paper
    numbers: str
    chapter: Any
    shows: str
    models: "Selector"
    measure: Callable[..., Any]
    draw: Callable[..., Any]
    name: str
    title: str
    caption: str | Callable[..., str]
    results: str = ""
    claims: Sequence = ()
    quantities: Sequence = ()
    also: str = ""
    interactive: Callable[[Any], dict[str, Any]] | None = None
    instead: Callable[[Any], str | None] | None = None
    overview: Overview | None = None
    scale: str = ""
    call: str = ""
    show: str = ""
    imports: str = ""

    def variant(self, **changes: Any) -> "Figure":
        """A copy with other fields, without the claims, the quantities and `show`."""
        return replace(self, **{"claims": (), "quantities": (), "show": ""} | changes)

    @property
    def choices(self) -> tuple[str, ...]:
        """The numbers that select the figure, such as `("W.3", "W.14")`."""
        return (*self.numbers_in_paper, *self.also.split())

    @property
    def numbers_in_paper(self) -> tuple[str, ...]:
        """The numbers of the figure in its paper, such as `("W.3",)`."""
        prefix = self.paper.prefix
        return tuple(n if n.islower() else f"{prefix}{n}" for n in self.numbers.split())

    @property
    def reference(self) -> str:
        """The figures and tables of the paper, in words; empty if the paper has no such figure."""
        in_paper = [number for number in self.numbers.split() if not number.islower()]
        tables = [number[1:] for number in in_paper if number.startswith("T")]
        figures = [number for number in in_paper if not number.startswith("T")]
        return " and ".join(
            f"{word}{'s' if len(numbers) > 1 else ''} {join_words(numbers)}"
            for word, numbers in (("Figure", figures), ("Table", tables))
            if numbers
        )

    def select(self, models: list[StudyModel]) -> "tuple[list[Picture], list[str]]":
        """The pictures for these models; and why others are missing."""
        selector = self.models
        try:
            pictures, reasons = selector.select_models(self, models)
        except Exception as error:
            return [], [explain(error, describe_figure(self))]
        if pictures or selector.shows_user_models or not with_roles(models, "model"):
            return pictures, reasons
        # Why the user's models are not shown.
        why_not = selector.why_not
        if why_not is None:
            further = [x for x in selector.all_roles if x not in SHORT_STUDY] or selector.all_roles
            words = join_words(ROLES[role] for role in further)
            why_not = f"It needs {words}, which vit-tf study --full trains."
        return pictures, [why_not] if why_not else []


@dataclass(frozen=True)
class Selector:
    """The models that a figure compares, from `each`, `split`, `together`, `pairs` or `group`."""

    roles: tuple[str, ...]
    # From the figure and the models to the pictures, and why others are missing.
    select_models: "Callable[[Figure, list[StudyModel]], Pictures]"
    shows_user_models: bool = True  # whether it shows models of the role "model", too
    # A sentence on why it does not; empty if nothing is said, since another figure shows them; None
    # if it needs models that `vit-tf study` trains.
    why_not: str | None = None
    others: tuple[str, ...] = ()  # for `pairs`, the roles of the second model
    baselines: tuple[str, ...] = ()  # for `together`, drawn next to the models
    # For `group`, a function that raises `NotApplicable` for models that are left out.
    require_model: Callable[[StudyModel], Any] | None = None
    panel: str = ""  # title of a picture among those of other models, as `Figure.title`

    @property
    def all_roles(self) -> tuple[str, ...]:
        """Every role that it takes a trained model for."""
        return (*self.roles, *self.others)

    @property
    def shown_roles(self) -> tuple[str, ...]:
        """The roles of the models in its pictures, and that of the user's if these are shown."""
        return (*self.roles, "model") if self.shows_user_models else self.roles


# In the functions below, `user_models` and `why_not` are `shows_user_models` and `why_not` of the
# `Selector`.
def each(
    *roles: str, user_models: bool = True, why_not: str | None = None, panel: str = "{model}"
) -> Selector:
    """One picture for each model with one of these roles; `panel` is its title."""
    return Selector(roles, _each, user_models, why_not, panel=panel)


def split(*roles: str) -> Selector:
    """One picture for each part of each model; `measure` returns a dict from label to part."""
    return Selector(roles, _split, panel="{model}, {label}")


def together(*roles: str, baselines: tuple[str, ...] = ()) -> Selector:
    """One picture of all models with one of these roles; each model is measured separately."""
    return Selector(roles, _together, baselines=baselines)


def pairs(
    roles: tuple[str, ...],
    others: tuple[str, ...],
    *,
    ordered: bool = False,
    user_models: bool = True,
    why_not: str | None = None,
) -> Selector:
    """One picture for each pair of models with these roles, and for each pair of user models.

    With `ordered`, each pair of user models has two pictures, one for each order.
    """
    select_models = partial(_pairs, arranged=permutations if ordered else combinations)
    panel = "{model} and {other}"
    return Selector(roles, select_models, user_models, why_not, others=others, panel=panel)


def group(
    *roles: str,
    user_models: bool = True,
    why_not: str | None = None,
    require_model: Callable | None = None,
) -> Selector:
    """One picture of all models with one of these roles, which are measured together."""
    return Selector(roles, _group, user_models, why_not, require_model=require_model)


def fields_of(template: str) -> list[str]:
    """The fields of a text in braces."""
    return [field for _, field, _, _ in Formatter().parse(template) if field is not None]


def with_roles(models: list[StudyModel], *roles: str) -> list[StudyModel]:
    """The models that play one of these roles."""
    return [model for model in models if model.role in roles]


def variants(models: list[StudyModel], model: StudyModel, role: str) -> list[StudyModel]:
    """The models of a role that are variants of this one."""
    return [other for other in models if other.role == role and other.base == model]


def _make_picture(
    figure: Figure, arguments: Sequence[Any], models: Sequence[StudyModel], label: str
) -> "tuple[Picture | None, str]":
    """The picture of these models, or None and what a model lacks.

    None and an empty text mean that the figure does not apply to the models.
    """
    try:
        measured = figure.measure(*arguments)
    except NotApplicable as error:
        return None, str(error)
    if not measured:
        return None, ""
    if isinstance(measured, dict):
        return Picture(figure, tuple(models), measured), ""
    return Picture(figure, tuple(models), {label: measured}, single=True), ""


def _each(figure: Figure, models: list[StudyModel]) -> "Pictures":
    pictures, reasons = [], []
    for model in with_roles(models, *figure.models.shown_roles):
        picture, reason = _make_picture(figure, [model], [model], model.name)
        if picture:
            pictures.append(picture)
        if reason and model.role == "model":
            reasons.append(reason)
    return pictures, reasons


def _split(figure: Figure, models: list[StudyModel]) -> "Pictures":
    pictures, reasons = _each(figure, models)
    return [
        replace(picture, measurements={label: measurement}, single=True, label=label)
        for picture in pictures
        for label, measurement in picture.measurements.items()
    ], reasons


def _together(figure: Figure, models: list[StudyModel]) -> "Pictures":
    pictures, reasons = _each(figure, models)
    if not pictures:
        return [], reasons
    shown = tuple(picture.models[0] for picture in pictures)
    measurements, baselines = {}, {}
    for model, picture in zip(shown, pictures, strict=True):
        is_seed = model.role == "seed"
        name = f"{model.original.name}: seed {model.detail}" if is_seed else model.name
        measurements |= _labelled(picture, name)
    for model in with_roles(models, *figure.models.baselines):
        if model.base in shown:
            picture, _ = _make_picture(figure, [model], [model], model.name)
            baselines |= _labelled(picture, model.name) if picture else {}
    both = measurements | baselines
    return [Picture(figure, shown, both, baselines=tuple(baselines))], reasons


def _labelled(picture: "Picture", name: str) -> dict[str, Measurement]:
    """The measurements of a model by label: its name, with their own labels if they are several."""
    labels = [name if picture.single else f"{name}: {label}" for label in picture.measurements]
    return dict(zip(labels, picture.measurements.values(), strict=True))


def _pairs(
    figure: Figure,
    models: list[StudyModel],
    arranged: Callable[..., Iterable[tuple[StudyModel, ...]]],
) -> "Pictures":
    pictures, reasons, selector = [], [], figure.models
    user_models = with_roles(models, "model") if selector.shows_user_models else []
    first, second = with_roles(models, *selector.roles), with_roles(models, *selector.others)
    for pair in [*product(first, second), *arranged(user_models, 2)]:
        picture, reason = _make_picture(figure, pair, pair, pair[0].name)
        if picture:
            pictures.append(picture)
        elif reason:
            reasons.append(reason)
    if len(user_models) == 1:
        return pictures, ["It compares two models, but only one was given: add a second one."]
    return pictures, [] if pictures else list(dict.fromkeys(reasons))


def _group(figure: Figure, models: list[StudyModel]) -> "Pictures":
    shown, reasons, selector = [], [], figure.models
    for model in with_roles(models, *selector.shown_roles):
        try:
            if selector.require_model:
                selector.require_model(model)
            shown.append(model)
        except NotApplicable as error:
            if model.role == "model":
                reasons.append(str(error))
    if not shown:
        return [], reasons

    # The title names a model of the first role.
    first_role = selector.roles[0] if selector.roles else "model"
    ordered = sorted(shown, key=lambda model: model.role != first_role)
    picture, reason = _make_picture(figure, [shown], ordered, "all")
    if reason and with_roles(models, "model"):
        reasons.append(reason)
    return [picture] if picture else [], reasons


@dataclass(frozen=True)
class Picture:
    """One picture of a figure: its models, and what is measured of them."""

    figure: Figure
    models: tuple[StudyModel, ...]  # in the order of the fields of a title
    measurements: dict[str, Measurement]  # by the label that it is drawn under
    single: bool = False  # whether `draw` gets the result itself, not a dict
    baselines: tuple[str, ...] = ()  # labels that are only there to compare the others with
    label: str = ""  # of the part that it shows, for `split`

    def missing(self, data: Data) -> str:
        """Which of the data that it reads are missing, as a sentence; empty if none are."""
        reads = {name for m in self.measurements.values() for name in m.all_reads}
        return data.missing(sorted(reads))

    @property
    def name(self) -> str:
        """Short and unique, also of the file."""
        return self._filled(self.figure.name, "slug")

    @property
    def title(self) -> str:
        """The title of the picture."""
        return self._filled(self.figure.title, "name")

    @property
    def panel(self) -> str:
        """Its title among the panels of a figure: names of models; empty if it is the only one."""
        return self._filled(self.figure.models.panel, "name")

    @property
    def full_title(self) -> str:
        """The title of the picture with its models."""
        return f"{self.title}: {self.panel}" if self.panel else self.title

    def caption(self, results: Results, models: Sequence[StudyModel] | None = None) -> str:
        """How to interpret it; `results` as for `draw`, of its models or of these."""
        caption = self.figure.caption
        if callable(caption):
            return caption(models or self.models, results)
        return self._filled(caption, "name")

    def _filled(self, text: str, field: str) -> str:
        models = self.models
        named = {"model": models[0], "other": models[-1], "base": models[0].base or models[0]}
        values = {key: getattr(model, field) for key, model in named.items()}
        without_seeds = [model for model in models if model.role != "seed"] or models
        values["models"] = join_words([getattr(model, field) for model in without_seeds])
        values["label"] = self.label
        return text.format(**values)


Pictures: TypeAlias = tuple[list[Picture], list[str]]  # and the reasons for what is left out


def by_figure(pictures: Iterable[Picture]) -> list[list[Picture]]:
    """The pictures of each figure of the report: list of lists, in order.

    Figures with an `overview` come first, since the first screen shows them.
    """
    groups: dict[tuple, list[Picture]] = {}
    for picture in pictures:
        figure = picture.figure
        key = (figure.chapter, figure.measure, figure.draw, figure.title)
        groups.setdefault(key, []).append(picture)
    return sorted(groups.values(), key=lambda group: group[0].figure.overview is None)


def select_pictures(
    pictures: Sequence[Picture], numbers: Sequence[str]
) -> tuple[list[Picture], list[Picture]]:
    """The pictures to draw, and the first picture of each figure that is left for later.

    If `numbers` contains `"main"`, these are the pictures of the leading figure of each chapter and
    of the figures with the other numbers. Otherwise, these are all pictures, since `lookup_figures`
    has left out the figures with other numbers.
    """
    if MAIN not in numbers:
        return list(pictures), []
    drawn, later, chapters = [], [], set()
    for group in by_figure(pictures):
        figure = group[0].figure
        if figure.chapter not in chapters or set(numbers) & set(figure.choices):
            drawn += group
        else:
            later.append(group[0])
        chapters.add(figure.chapter)
    return drawn, later


@cache
def all_figures() -> tuple[Figure, ...]:
    """Every `Figure` that a module of `papers/` defines, paper by paper, checked."""
    papers = import_module("vit_tf.analysis.papers")
    figures: dict[int, Figure] = {}  # by id: several modules may import a figure
    modules_of: dict[int, set[str]] = {}  # the modules that define or import it
    for module in walk_packages(papers.__path__, f"{papers.__name__}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, Figure):
                figures[id(value)] = value
                modules_of.setdefault(id(value), set()).add(module.name)

    # One module has all figures with the same number, even if other modules import some of them.
    modules_of_numbers: dict[str, set[str]] = {}
    for key, figure in figures.items():
        for number in figure.numbers_in_paper:
            modules = modules_of_numbers.setdefault(number, modules_of[key])
            modules_of_numbers[number] = modules & modules_of[key]
            if not modules_of_numbers[number]:
                raise ValueError(
                    "Expected all figures with the same number in one module. Received: figure "
                    f"{number!r} in {min(modules)} and {min(modules_of[key])}"
                )
    check_figures(list(figures.values()))
    return tuple(
        sorted(figures.values(), key=lambda figure: (figure.paper.rank, figure.paper.name))
    )


def lookup_figures(numbers: Sequence[str | int] = ()) -> list[Figure]:
    """The figures with these numbers, such as `"C.4"` or `"sanity"`.

    No number, `"all"` and `"main"` return all figures: which of them are the leading ones depends
    on the models (`select_pictures`).
    """
    figures = all_figures()
    numbers = [str(number) for number in numbers]
    all_numbers = list(dict.fromkeys(number for figure in figures for number in figure.choices))
    for number in numbers:
        if number not in (MAIN, ALL, *all_numbers):
            raise unknown_name("figure", number, all_numbers)
    every = not numbers or MAIN in numbers or ALL in numbers
    return [f for f in figures if every or set(numbers) & set(f.choices)]


def check_figures(figures: Sequence[Figure]) -> None:
    """Checks the definitions of figures before models are trained or measured for them.

    Args:
        figures: all figures, since a figure may use the results of another.

    Raises:
        ValueError: if a role, field, number or result does not exist, or if an image or a claim is
            defined twice. The message names the figure.
    """
    results = set(ALWAYS_AVAILABLE).union(*(figure.results.split() for figure in figures))
    numbers = {number for figure in figures for number in figure.numbers_in_paper}
    owners_of_claims: dict[str, str] = {}
    owners_of_pictures: dict[str, list[tuple[str, set[str]]]] = {}
    for figure in figures:
        where = f"{describe_figure(figure)!r} ({figure.name})"

        if "," in figure.numbers:
            raise ValueError(
                f"Expected the numbers of {where} separated by spaces. Received: {figure.numbers!r}"
            )

        # Each word of a definition is one that exists.
        roles = (*figure.models.all_roles, *figure.models.baselines)
        texts = [x for x in (figure.name, figure.title, figure.caption) if isinstance(x, str)]
        _check_words(f"role of a model of {where}", roles, ROLES)
        for text in texts:
            _check_words(f"field of a text of {where}", fields_of(text), TEXT_FIELDS)
        _check_words(f"number in also of {where}", figure.also.split(), numbers)

        # Claims and quantities use roles and results that exist.
        users = [(f"claim {c.name!r}", c.inputs, tuple(ROLES)) for c in figure.claims]
        users += [
            (f"quantity {q.label!r}", (q.result,), ("model", "other")) for q in figure.quantities
        ]
        for user, templates, known in users:
            for template in templates:
                _check_words(f"role in the {user} of {where}", fields_of(template), known)
                if figure.results:
                    kind = f"result in the {user} of {where}, which no figure has in results="
                    _check_words(kind, [template.partition(".")[0]], sorted(results))

        # Claims and pictures have names of their own.
        for claim in figure.claims:
            if claim.name in owners_of_claims:
                raise ValueError(
                    f"Two claims are called {claim.name!r}: one of "
                    f"{owners_of_claims[claim.name]} and one of {where}"
                )
            owners_of_claims[claim.name] = where
        # Pictures of different models may share a name that has the models in it.
        models = set(figure.models.shown_roles)
        owners = owners_of_pictures.setdefault(figure.name, [])
        for other, models_of_other in owners:
            if not fields_of(figure.name) or models & models_of_other:
                raise ValueError(
                    f"Two pictures are called {figure.name!r}: one of {other} and one of {where}"
                )
        owners.append((where, models))


def _check_words(kind: str, words: Iterable[str], known: Collection[str]) -> None:
    """Raises an error for the first word that is not a known one."""
    for word in words:
        if word not in known:
            raise unknown_name(kind, word, known)


def plan_pictures(
    figures: Sequence[Figure], models: list[StudyModel], data: Data, hint: str = ""
) -> tuple[list[Picture], list[tuple[str, list[str]]]]:
    """The pictures that are drawn for these models and this `Data`, and those that are not.

    `hint` is a sentence on where missing models can be had.
    """
    pictures, left_out = [], {}
    for figure in figures:
        selected, reasons = figure.select(models)
        if hint and not selected and not reasons:
            missing = [role for role in figure.models.all_roles if not with_roles(models, role)]
            words = dict.fromkeys(ROLES[role] for role in missing) or ["other models"]
            reasons = [f"It needs {join_words(words)}. {hint}"]
        for picture in selected:
            if why := picture.missing(data):
                reasons.append(why)
            else:
                pictures.append(picture)
        if reasons:
            left_out.setdefault(describe_figure(figure), {}).update(dict.fromkeys(reasons))
    return pictures, [(title, list(reasons)) for title, reasons in left_out.items()]


def describe_figure(figure: Figure, separator: str = ": ") -> str:
    """What a figure is, in words: "Figure 9 of Raghu et al. (2021): ..."."""
    source = f"{figure.reference} of {figure.paper.name}" if figure.reference else figure.paper.name
    return f"{source}{separator}{figure.shows}"


def without_failures(
    pictures: Sequence[Picture], results: Mapping[str, Any], problems: Mapping[str, str]
) -> tuple[list[Picture], list[tuple[str, list[str]]]]:
    """The pictures of what was measured, and the measurements that failed, for each picture.

    A picture may be in both.
    """
    drawable, failed = [], []
    for picture in pictures:
        measurements = picture.measurements
        measured = {key: m for key, m in measurements.items() if results[m.name] is not None}
        if set(measured) - set(picture.baselines):
            drawable.append(replace(picture, measurements=measured))
        why = {key: problems[m.name] for key, m in measurements.items() if key not in measured}
        if why:
            failed.append(
                (picture.full_title, [f"{label}: {reason}" for label, reason in why.items()])
            )
    return drawable, failed
