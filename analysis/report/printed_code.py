"""The code of a figure: lines that load its images, measure and plot, with public calls."""

import re
from collections.abc import Mapping, Sequence

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
    templates = [
        _template(figure, measurement)
        for picture in pictures
        for measurement in picture.selection.measurements.values()
    ]
    if not all(templates):
        return ""
    show = figure.show or f"analysis.plots.{figure.draw.__name__}"
    used = set(re.findall(r"\w+", " ".join(templates)))
    loading = [line for names, line in setup.items() if not names or used & {*names}]
    lines = "\n".join([*loading, *_calls(pictures, figure, sources, show)]).splitlines()
    if any(picture.selection.baselines for picture in pictures):
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


def _calls(
    pictures: Sequence[Picture], figure: Figure, sources: Mapping[str, str], show: str
) -> list[str]:
    """The lines that measure and plot."""

    def name_expression(name: str) -> str:
        return repr(sources[name]) if name in sources else f"models[{name!r}]"

    def expression(picture: Picture, measurement: Measurement) -> str:
        template = _template(figure, measurement)
        models = measurement.models
        if "{other}" in template and len(models) == 1:
            models = picture.selection.models[::-1]
        return template.format(
            model=name_expression(models[0].name),
            other=name_expression(models[-1].name),
            models=_as_dict({m.name: name_expression(m.name) for m in models}),
        )

    measured = [
        (picture, label, measurement)
        for picture in pictures
        for label, measurement in picture.selection.measurements.items()
        if label not in picture.selection.baselines
    ]
    names = list(dict.fromkeys(measurement.models[0].name for _, _, measurement in measured))
    templates = {_template(figure, measurement) for _, _, measurement in measured}
    is_alone = all(picture.selection.alone for picture in pictures)
    is_each = all(len(measurement.models) == 1 for _, _, measurement in measured)
    of_each = {(measurement.models[0].name, measurement.name) for _, _, measurement in measured}
    (template, *others) = templates
    is_loop = is_each and not others and len(of_each) == len(names) and "{other}" not in template
    if is_loop and not (is_alone and len(names) == 1):
        listed = f"({', '.join(map(repr, names))}{',' if len(names) == 1 else ''})"
        # Not all models of a report have what the figure measures, so these are listed.
        head, loop, key, model = [], f"name in {listed}", "name", "models[name]"
        if all(sources.get(name) == name for name in names):
            loop, key, model = f"model in {listed}", "model", "model"
        elif all(name in sources for name in names):
            items = _as_dict({name: repr(sources[name]) for name in names})
            head, loop, model = [f"models = {items}"], "name, model in models.items()", "model"
        head.append(f"results = {{\n    {key}: {template.format(model=model)}\n    for {loop}\n}}")
        if not is_alone:
            return [*head, _plotted(show, "results")]
        return [*head, "for result in results.values():", f"    {_plotted(show, 'result')}"]
    if is_alone:
        calls = (expression(picture, measurement) for picture, _, measurement in measured)
        return list(dict.fromkeys(_plotted(show, call) for call in calls))
    drawn = {id(picture): {} for picture in pictures}
    for picture, label, measurement in measured:
        drawn[id(picture)][label] = expression(picture, measurement)
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
