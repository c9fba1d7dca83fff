"""Python code that makes a figure of a report, with the public calls of the package."""

import re

from .figure import Figure
from .plan import Picture


def example_code(pictures: list[Picture], sources: dict[str, str], setup: str = "") -> str:
    """The code of one figure from its panels, or no text where its definition has none."""
    figure = pictures[0].figure
    if not figure.call:
        return ""
    show = figure.show or f"analysis.{figure.draw.__name__}"
    lines = [*_setup(figure.call, setup), *_calls(pictures, figure, sources, show)]
    packages = "analysis" + (", data" if "data.load(" in setup else "")
    head = [f"from vit_tf import {packages}"]
    if any("vit_tf." in line for line in lines):
        head.insert(0, "import vit_tf")
    if "labels" in figure.call:
        head.insert(0, "import numpy as np")
    return "\n".join([*head, *lines])


def _setup(call: str, setup: str) -> list[str]:
    """The lines of the setup that the call needs, and the labels where it takes them."""
    lines = [line for line in setup.splitlines() if "train" in call or not line.startswith("train")]
    if "labels" in call:
        lines.append("labels = np.concatenate([labels for _, labels in images])")
    return lines


def _calls(pictures: list[Picture], figure: Figure, sources: dict, show: str) -> list[str]:
    """The lines that measure and plot."""
    kind, call = figure.models.panel, figure.call
    names = [model.name for picture in pictures for model in picture.selection.models]
    names = list(dict.fromkeys(names))

    def expression(name):
        return repr(sources[name]) if name in sources else f"models[{name!r}]"

    if "{other}" in call:
        pairs = [
            (picture.selection.models[0], picture.selection.models[-1]) for picture in pictures
        ]
        return [
            _plotted(show, call.format(model=expression(first.name), other=expression(other.name)))
            for first, other in dict.fromkeys(pairs)
        ]
    if "{models}" in call:
        items = ", ".join(f"{name!r}: {expression(name)}" for name in names)
        return [_plotted(show, call.format(models=f"{{{items}}}"))]
    if kind and len(names) == 1:
        model, loaded = expression(names[0]), _loaded(expression(names[0]), names[0] in sources)
        labels = dict.fromkeys(picture.selection.label for picture in pictures)
        return [
            _plotted(show, call.format(model=model, loaded=loaded, label=label)) for label in labels
        ]
    head, models, key = [], "name, model in models.items()", "name"
    if all(sources.get(name) == name for name in names):
        models, key = f"model in ({', '.join(map(repr, names))},)", "model"
        models = models if len(names) == 1 else models.replace(",)", ")")
    elif all(name in sources for name in names):
        items = ", ".join(f"{name!r}: {sources[name]!r}" for name in names)
        head = [f"models = {{{items}}}"]
    loaded = _loaded("model", bool(head) or key == "model")
    call, _, loop = call.partition(" for ")
    if loop:
        key, loop = f'f"{{{key}}}: {{{loop.split()[0]}}}"', f" for {loop}"
    call = call.format(model="model", loaded=loaded, label=pictures[0].selection.label)
    head.append(f"results = {{{key}: {call} for {models}{loop}}}")
    if not kind:
        return [*head, _plotted(show, "results")]
    return [*head, "for result in results.values():", f"    {_plotted(show, 'result')}"]


def _loaded(model: str, by_name: bool) -> str:
    return f"vit_tf.load({model})" if by_name else model


def _plotted(show: str, result: str) -> str:
    """The plot of a result; `show` is its function, or the whole call of `results`."""
    if "(" not in show:
        return f"{show}({result})"
    return re.sub(r"\bresults?\b", lambda _: result, show, count=1)
