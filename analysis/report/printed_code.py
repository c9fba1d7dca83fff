"""The code of a figure: lines that load its images, measure and plot, with public calls."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..figures.figure import Figure, Picture
from ..figures.measure import Measurement

# Functions of `figures.data` that the code calls.
HELPERS = ("batch_test", "split_train", "few_images", "first_images", "labels_of")
# Lines of code by the variables that they assign; a comment assigns none.
Setup = Mapping[tuple[str, ...], str]
# Probes are fitted on training images, and choose their penalty on the others.
FITTED: Setup = {("fitted", "validation"): "fitted, validation = split_train(train)"}


def example_code(pictures: Sequence[Picture], sources: Mapping[str, str], setup: Setup) -> str:
    """The code of one figure from its panels, or no text where its definition has none.

    `sources` has what `vit_tf.load` opens, by name of the model; the code of other models reads
    `models[name]`. `setup` has the lines that load images, of which those are printed that the
    figure needs.
    """
    figure = pictures[0].figure
    measured = [
        Call(picture, label, measurement, _template(figure, measurement))
        for picture in pictures
        for label, measurement in picture.measurements.items()
    ]
    templates = [call.template for call in measured]
    if not all(templates):
        return ""
    used = set(re.findall(r"\w+", " ".join(templates)))
    loading = [line for names, line in setup.items() if not names or used & {*names}]
    drawn = [call for call in measured if call.label not in call.picture.baselines]
    show = figure.show or f"analysis.plots.{figure.draw.__name__}"
    lines = "\n".join([*loading, *_calls(drawn, sources, show)]).splitlines()
    if len(drawn) < len(measured):
        lines.append("# The figure also draws baselines in grey: its netCDF data contain them.")

    # Imports come first, those of the lines that load images among them.
    body = [line for line in lines if not line.startswith("from ")]
    text = "\n".join(body)
    imports = ["import vit_tf"] if "vit_tf." in text else []
    packages = ["analysis", *(["data"] if re.search(r"(?<!\.)\bdata\.", text) else [])]
    imports.append(f"from vit_tf import {', '.join(packages)}")
    if helpers := [name for name in HELPERS if f"{name}(" in text]:
        imports.append(f"from vit_tf.analysis.figures.data import {', '.join(helpers)}")
    imports += [line for line in lines if line.startswith("from ")]
    return "\n".join([*imports, *filter(None, [figure.imports]), *body])


class Call(NamedTuple):
    """A measurement of a picture, with the expression that makes it, with models in braces."""

    picture: Picture
    label: str
    measurement: Measurement
    template: str


def _calls(measured: Sequence[Call], sources: Mapping[str, str], show: str) -> list[str]:
    """The lines that measure and plot."""
    models = [model for call in measured for model in call.measurement.models]
    models += [model for call in measured for model in call.picture.models]
    expressions = {
        model.name: repr(sources[model.name])
        if model.name in sources
        else f"models[{model.name!r}]"
        for model in models
    }

    def expression(call: Call) -> str:
        models = call.measurement.models
        if "{other}" in call.template and len(models) == 1:
            models = call.picture.models[::-1]
        return call.template.format(
            model=expressions[models[0].name],
            other=expressions[models[-1].name],
            models=_as_dict({model.name: expressions[model.name] for model in models}),
        )

    # Measurements of one model each, by the same expression, are made in a loop over the models.
    names = list(dict.fromkeys(call.measurement.models[0].name for call in measured))
    template, *others = {call.template for call in measured}
    is_single = all(call.picture.single for call in measured)
    is_each = all(len(call.measurement.models) == 1 for call in measured)
    of_each = {(call.measurement.models[0].name, call.measurement.name) for call in measured}
    is_loop = is_each and not others and len(of_each) == len(names) and "{other}" not in template
    if is_loop and not (is_single and len(names) == 1):
        listed = f"({', '.join(map(repr, names))}{',' if len(names) == 1 else ''})"
        # Not all models of a report have what the figure measures, so these are listed.
        head, loop, key, model = [], f"name in {listed}", "name", "models[name]"
        if all(sources.get(name) == name for name in names):
            loop, key, model = f"model in {listed}", "model", "model"
        elif all(name in sources for name in names):
            items = _as_dict({name: repr(sources[name]) for name in names})
            head, loop, model = [f"models = {items}"], "name, model in models.items()", "model"
        head.append(f"results = {{\n    {key}: {template.format(model=model)}\n    for {loop}\n}}")
        if not is_single:
            return [*head, _plotted(show, "results")]
        return [*head, "for result in results.values():", f"    {_plotted(show, 'result')}"]

    # Otherwise, each picture has a plot of its own.
    if is_single:
        return list(dict.fromkeys(_plotted(show, expression(call)) for call in measured))
    drawn: dict[int, dict[str, str]] = {}
    for call in measured:
        drawn.setdefault(id(call.picture), {})[call.label] = expression(call)
    return list(dict.fromkeys(_plotted(show, _as_dict(items)) for items in drawn.values()))


def _as_dict(items: Mapping[str, str]) -> str:
    """A dict from text to expression as code, an item on each line."""
    return "\n".join(["{", *(f"    {key!r}: {value}," for key, value in items.items()), "}"])


def _template(figure: Figure, measurement: Measurement) -> str:
    """The expression of a measurement; of a model whose layers were chosen, with these."""
    template = figure.call or measurement.call
    chosen = next((model.chosen for model in measurement.models if model.chosen), ())
    # Braces of a pattern are no fields.
    layers = f"layers={list(chosen)!r}".replace("{", "{{").replace("}", "}}")
    return re.sub(r'detail="\w+"', lambda _: layers, template) if chosen else template


def _plotted(show: str, result: str) -> str:
    """The plot of a result; `show` is its function, or the whole call of `results`."""
    if "(" not in show:
        return f"{show}({result})"
    return re.sub(r"\bresults?\b", lambda _: result, show, count=1)
