"""All figures, the pictures that they give for models and data, and why others are left out."""

import dis
import inspect
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from itertools import pairwise
from pkgutil import walk_packages
from string import Formatter

from vit_tf.names import join_words, unknown_name
from vit_tf.tokens import TokenGrid

from ..report.rendering import Drawing
from .figure import Figure, Selection
from .measurement import with_inputs
from .models import BASELINES, ROLES, StudyModel


@dataclass(frozen=True)
class Picture:
    """One picture of a figure, before it is measured."""

    figure: Figure
    selection: Selection  # the `Selection`: its models and measurements

    @property
    def name(self):
        """Short and unique, also of the file."""
        return self._filled(self.figure.name, "slug")

    @property
    def title(self):
        """What is shown."""
        return self._filled(self.figure.title, "name")

    @property
    def panel(self):
        """Its title among the panels of a figure: names of models; empty if it is the only one."""
        return self._filled(self.figure.models.panel, "name")

    @property
    def full_title(self):
        """What is shown of which models."""
        return f"{self.title}: {self.panel}" if self.panel else self.title

    def caption(self, results, models=None):
        """How to interpret it; `results` as for `draw`, of its models or of these."""
        caption = self.figure.caption
        if callable(caption):
            return caption(models or self.selection.models, results)
        return self._filled(caption, "name")

    def drawing(self, results, path=None):
        """The `Drawing` of a dict from label to result, as a PNG at a path."""
        baselines = tuple(name for name in self.selection.baselines if name in results)
        return Drawing(
            self.figure.draw,
            results,
            self.selection.alone,
            baselines if self.selection.baselines else None,
            describe(self.figure),
            path,
        )

    def interactive(self, results):
        """Interactive plots: a list with an entry for each result, or an empty one."""
        show = self.figure.interactive
        return [show(result) for result in results.values()] if show else []

    def title_with(self, others):
        """What it shows and others of its figure do, with the names of all of their models."""
        pictures = [self, *others]
        titles = {picture.title for picture in pictures}
        if len(titles) == 1:
            return self.title
        names = join_words(
            list(dict.fromkeys(m.name for picture in pictures for m in picture.selection.models))
        )
        fields = {field for _, field, _, _ in Formatter().parse(self.figure.title) if field}
        return self.figure.title.format(**dict.fromkeys(fields, names))

    def _filled(self, text, field):
        models = self.selection.models
        named = {"model": models[0], "other": models[-1], "base": models[0].base or models[0]}
        values = {key: getattr(model, field) for key, model in named.items()}
        firsts = [model for model in models if model.role != "seed"] or models
        values["models"] = join_words([getattr(model, field) for model in firsts])
        values["label"] = self.selection.label
        return text.format(**values)


def by_figure(pictures):
    """The pictures of each figure of the report: list of lists, in order."""
    groups = {}
    for picture in pictures:
        figure = picture.figure
        key = (figure.chapter, figure.measure, figure.draw, figure.title)
        groups.setdefault(key, []).append(picture)
    return list(groups.values())


@cache
def all_figures():
    """Every `Figure` that a module of `papers/` defines, paper by paper, in the modules' order."""
    papers = import_module("vit_tf.analysis.papers")
    figures, modules = {}, {}
    for module in walk_packages(papers.__path__, f"{papers.__name__}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, Figure):
                figures[id(value)] = value
                modules.setdefault(id(value), set()).add(module.name)
    check_figures(list(figures.values()), [modules[key] for key in figures])
    return tuple(
        sorted(figures.values(), key=lambda figure: (figure.paper.rank, figure.paper.name))
    )


def check_figures(figures, modules=None):
    """Checks definitions before anything is trained or measured on their account."""
    modules = modules or [{""}] * len(figures)
    owners, numbers = {}, {}
    for figure, own in zip(figures, modules, strict=True):
        where = f"{describe(figure)!r} ({figure.name})"
        for role in (*figure.models.all_roles, *figure.models.baselines):
            if role not in ROLES:
                raise unknown_name(f"part of a model in {where}", role, ROLES)
        _require_values(figure.draw, f"draw of {where}")
        for number in figure.choices[: len(figure.numbers.split())]:
            # Panels of one figure stand in one module.
            if not numbers.setdefault(number, own) & own:
                raise ValueError(
                    f"Expected one figure of number {number!r}. Received: another in {where}, "
                    f"of {join_words(sorted(own))} and of {join_words(sorted(numbers[number]))}"
                )
        for claim in figure.claims:
            if not hasattr(claim, "threshold"):
                raise ValueError(
                    f"Expected claims of {where} made by `claim`, above or below a threshold. "
                    f"Received: {claim!r}"
                )
            if claim.name in owners:
                raise ValueError(
                    f"Expected one claim {claim.name!r}. Received: one of "
                    f"{owners[claim.name]} and one of {where}"
                )
            owners[claim.name] = where
    for figure in figures:
        for number in figure.also.split():
            if number not in numbers:
                raise unknown_name(f"number in also of {describe(figure)!r}", number, numbers)
    _check_results(figures)


def _check_results(figures):
    """The part of `check_figures` that takes models: pictures, and results that are asked for."""
    names, pictures = {"accuracy", "block"}, {}
    for models in (_study_models(), _anyones_models()):
        for figure in figures:
            where = f"{describe(figure)!r} ({figure.name})"
            try:
                selections = figure.select(models)[0]
                for selection in selections:
                    measured = with_inputs(selection.measurements.values())
                    names |= {name.partition(".")[0] for name in measured}
            except (ValueError, TypeError, AttributeError, KeyError, NameError) as error:
                kind = type(error).__name__
                raise ValueError(
                    f"Expected measure of {where} to return measurements. Received: {kind}: {error}"
                ) from error
            for picture in (Picture(figure, selection) for selection in selections):
                name = _checked_name(picture, where)
                if (other := pictures.setdefault((id(models[0]), name), figure)) is not figure:
                    raise ValueError(
                        f"Expected one picture called {name!r}. Received: one of "
                        f"{describe(other)!r} and one of {where}"
                    )
    for figure in figures:
        for claim in figure.claims:
            source = f"the claim {claim.name!r} of {describe(figure)!r}"
            _check_inputs(claim.inputs, source, ROLES, names)
            _require_values(claim.statistic, f"the statistic of {source}")
        for quantity in figure.quantities:
            source = f"the quantity {quantity.label!r} of {describe(figure)!r}"
            _check_inputs([quantity.result], source, ("model", "other"), names)
            _require_values(quantity.statistic, f"the statistic of {source}")


def _checked_name(picture, where):
    """The name of a picture, whose title and caption name models too; an error for other fields."""
    texts = [picture.figure.title, picture.figure.caption]
    try:
        for text in texts:
            if isinstance(text, str):
                picture._filled(text, "name")
        return picture.name
    except (KeyError, IndexError) as error:
        raise ValueError(
            f"Expected name, title and caption of {where} to have fields among model, other, base, "
            f"models and label. Received: {error}"
        ) from error


def _check_inputs(templates, source, roles, names):
    """Raises a `ValueError` for results, or parts of models in their names, that are not there."""
    for template in templates:
        for _, role, _, _ in Formatter().parse(template):
            if role is not None and role not in roles:
                raise unknown_name(f"part of a model in {template!r}, of {source},", role, roles)
        if template.partition(".")[0] not in names:
            raise unknown_name(f"result of {source}", template.partition(".")[0], sorted(names))


def _require_values(function, source):
    """Raises a `ValueError` for a function all of whose ways out return nothing."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    steps = list(dis.get_instructions(code)) if code else []
    for before, step in pairwise([None, *steps]):
        if step.opname == "RETURN_CONST" and step.argval is not None:
            return
        if step.opname == "RETURN_VALUE" and (before.opname, before.argval) != ("LOAD_CONST", None):
            return
    if steps:
        raise ValueError(f"Expected {source} to return a value. Received: {function!r}, without")


def _study_models():
    """A model of each part of a study, of which nothing can be computed."""
    sites = {"attention": ("weights", "heads"), "mlp": ("hidden",)}
    vit = partial(_nominal, taps=_taps("block{:02}", sites), grid=TokenGrid(2, 2, 1, 8))
    cls, gap = vit("ViT", "vit"), replace(vit("GAP", "gap"), grid=TokenGrid(2, 2, 0, 8))
    bit = _nominal("BiT", "resnet", ("root", *_taps("stage{}/unit01", {}), "logits"))
    sites = {"token_mixing": ("hidden",), "channel_mixing": ("hidden",)}
    mixer = _nominal("Mixer", "mixer", _taps("block{:02}", sites))
    before = replace(cls, name="before", role="before", base=cls)
    variants = [
        replace(cls, name=role, role=role, detail=detail, base=cls)
        for role, detail in (("without", "block00"), ("seed", 1), ("fraction", 0.1))
    ]
    baselines = [replace(cls, name=role, role=role, base=cls) for role in BASELINES]
    after = replace(cls, name="after", role="after", base=before)
    return [cls, gap, bit, mixer, *variants, before, after, *baselines]


def _anyones_models():
    """Models without a part in a study, whose shapes are known: two of each kind."""
    models = []
    for model in _study_models()[:4]:
        shapes = dict.fromkeys(model.taps, (4 + model.grid.prefix, 8))
        if model.role == "resnet":
            shapes = dict.fromkeys(model.taps, (2, 2, 8))
        for tap in model.taps:
            if tap.endswith("/weights"):
                shapes[tap] = (2, *2 * shapes["embedding"][:1])
            if tap.endswith("/heads"):
                shapes[tap] = (shapes["embedding"][0], 2, 4)
        shapes |= dict.fromkeys(("pooled", "logits"), (8,))
        foreign = replace(model, role="model", shapes=shapes, image_size=(16, 16))
        models += [foreign, replace(foreign, name=f"{foreign.name} 2")]
    return models


def _nominal(name, role, taps, grid=None):
    def of_layer():
        raise NotImplementedError(f"{name} is a placeholder without weights.")

    taps = taps if role == "resnet" else ("embedding", *taps, "norm", "pooled", "logits")
    grid = grid or TokenGrid(2, 2, 0, 8)
    layers = {"patch_kernel": of_layer, "position_embedding": of_layer}
    return StudyModel(name, role, name, taps, grid, None, accuracy=(0.5, 8), **layers)


def _taps(block, sites):
    """The taps of two blocks, of the sites that the tap grammar gives them."""
    ends = ("skip", "branch", "sum")
    return tuple(
        f"{block.format(number)}{f'/{site}' if site else ''}/{end}"
        for number in (range(2) if sites else range(1, 3))
        for site, own in (sites or {"": ("norm1",)}).items()
        for end in ("norm", *own, *ends)
    )


def lookup_figures(numbers=(), figures=None):
    """The figures with these numbers; all for none."""
    figures = all_figures() if figures is None else tuple(figures)
    numbers = [str(number) for number in numbers]
    all_numbers = list(dict.fromkeys(number for figure in figures for number in figure.choices))
    unknown = [number for number in numbers if number not in all_numbers]
    if unknown:
        raise ValueError(
            f"Expected figures among {', '.join(all_numbers)}. Received: {', '.join(unknown)}"
        )
    return [f for f in figures if not numbers or set(numbers) & set(f.choices)]


def plan(figures, models, data, elsewhere=""):
    """What is drawn of these models and of this `Data`, and what is not."""
    pictures, left_out = [], []
    for figure in figures:
        selections, reasons = figure.select(models)
        if elsewhere and not selections and not reasons:
            reasons = [f"It needs {figure.models.missing_roles(models)}. {elsewhere}"]
        absent = missing_data(selections, data)
        pictures += [
            Picture(figure, selection)
            for selection, why in zip(selections, absent, strict=True)
            if not why
        ]
        reasons = list(dict.fromkeys([*reasons, *filter(None, absent)]))
        if reasons:
            left_out.append((describe(figure), reasons))
    return pictures, _merged(left_out)


def describe(figure, separator=": "):
    """What a figure is, in words: "Figure 9 of Raghu et al. (2021): ..."."""
    source = f"{figure.reference} of {figure.paper.name}" if figure.reference else figure.paper.name
    return f"{source}{separator}{figure.shows}"


def missing_data(selections, data):
    """What each `Selection` needs of a `Data` that is not there: list of sentences, or empty."""
    return [data.missing(_reads(selection)) for selection in selections]


def _reads(selection):
    """The fields of the data that the measurements of a picture go through."""
    reads = (m.all_reads for m in selection.measurements.values())
    return sorted(set().union(*reads))


def _merged(left_out):
    """One entry for each figure, whose parts may have several reasons."""
    merged = {}
    for title, reasons in left_out:
        merged.setdefault(title, {}).update(dict.fromkeys(reasons))
    return [(title, list(reasons)) for title, reasons in merged.items()]


def without_failures(pictures, results, problems):
    """The pictures of what could be measured, and those that lack a model or all of them."""
    drawable, failed = [], []
    for picture in pictures:
        measurements = picture.selection.measurements
        made = {key: m for key, m in measurements.items() if results[m.name] is not None}
        if set(made) - set(picture.selection.baselines):
            drawable.append(
                replace(picture, selection=replace(picture.selection, measurements=made))
            )
        why = {key: problems[m.name] for key, m in measurements.items() if key not in made}
        if why:
            failed.append(
                (picture.full_title, [f"{label}: {reason}" for label, reason in why.items()])
            )
    return drawable, failed
