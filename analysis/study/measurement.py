"""Measurements: results as values that know how they are made, of two kinds.

A `statistic` rides in a pass over the data that it shares with others; a `task` has passes of its
own, or only makes something of other results. Both may be fed by the results of others.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from vit_tf.names import join_words

from ..engine.store import fingerprint
from .models import StudyModel

# Among the inputs of a measurement: the `Data` itself.
DATA = "data"


@dataclass(frozen=True)
class Measurement:
    """What both kinds have."""

    name: str  # of the result: that of the analysis and the models, "cka.vit-cls.bit"
    models: tuple[StudyModel, ...]  # the models that it looks at
    # What is measured before, whose results it is fed; among them may be `DATA`.
    inputs: tuple[Any, ...]
    # The field of `Data` that it goes through; None for what only follows from its inputs.
    reads: str | None
    saved: bool  # whether it is a result of its own, or only an input of others, which may be large

    @property
    def before(self):
        """The measurements among the inputs."""
        return [source for source in self.inputs if source is not DATA]

    @property
    def functions(self):
        """The functions that make it."""
        values = (getattr(self, field.name) for field in fields(self))
        return [value for value in values if callable(value)]

    @cached_property
    def identity(self):
        """`fingerprint` of what it is, of which models: all but its data and its code."""
        parameters = {field.name: getattr(self, field.name) for field in fields(self)}
        inputs = [
            source if source is DATA else source.identity for source in parameters.pop("inputs")
        ]
        models = [(model.name, model.key) for model in parameters.pop("models")]
        return fingerprint(parameters, models, inputs)

    @property
    def all_reads(self):
        """Every field of `Data` that it, and what it is made of, go through."""
        own = {self.reads} if self.reads else set()
        return own.union(*(source.all_reads for source in self.before))


@dataclass(frozen=True)
class SharedPass(Measurement):
    """A statistic of activations; made by `statistic`."""

    # For each model, the names of the taps that the statistic looks at.
    taps: tuple[tuple[str, ...], ...]
    # Function of the features of each model, then of the results of the inputs, to an
    # `engine.stream.Statistic`.
    make: Callable[..., Any]
    # Function of a model, its features and the `Data` to the features that the statistic looks at
    # in their place, or None.
    view: Callable[..., Any] | None = None


@dataclass(frozen=True)
class OwnPasses(Measurement):
    """A measurement with passes of its own, or none; made by `task`."""

    make: Callable[..., Any]  # function of the results of the inputs to the result


def statistic(analysis, models, taps, make, *, reads="test", inputs=(), saved=True, view=None):
    """A measurement that rides in a pass with others.

    Args:
        analysis: what is measured; with the models' names it makes the result's.
        models: a `StudyModel`, or a tuple of several.
        taps: names of the taps that are looked at; of several models a list for each.
        make, inputs, reads, saved, view: as the attributes of `SharedPass`.
    """
    if isinstance(models, StudyModel):
        models, taps = (models,), (taps,)
    return SharedPass(
        name_of(analysis, *models),
        tuple(models),
        tuple(inputs),
        reads,
        saved,
        tuple(map(tuple, taps)),
        make,
        view,
    )


def task(analysis, models, make, *, reads=None, inputs=(), saved=True):
    """A measurement with passes of its own over the data; without `reads`, with none.

    Args:
        analysis, models: as for `statistic`.
        make, inputs, reads, saved: as the attributes of `OwnPasses`.
    """
    models = (models,) if isinstance(models, StudyModel) else tuple(models)
    return OwnPasses(name_of(analysis, *models), models, tuple(inputs), reads, saved, make)


def name_of(analysis, *models):
    """The name of a result: `"cka.vit-cls.bit"`."""
    return ".".join([analysis, *(model.slug for model in models)])


def with_inputs(measurements):
    """Measurements by name, each after all that it is made of.

    Raises:
        ValueError: for two different ones of one name.
    """
    table = {}
    for measurement in measurements:
        for each in [*with_inputs(measurement.before).values(), measurement]:
            existing = table.setdefault(each.name, each)
            if existing is not each and existing.identity != each.identity:
                made = join_words(
                    f"{m.make.__module__}.{m.make.__qualname__}" for m in (existing, each)
                )
                raise ValueError(
                    f"Expected one result of each name. Received: two called {each.name!r}, which "
                    f"{made} make with different parameters"
                )
    return table


@dataclass(frozen=True)
class Quantity:
    """A number by which a report compares its models; made of a function by `quantity`."""

    label: str  # what it is, in words
    explanation: str  # how it is made
    result: str  # name of the result, with `{model}`, and `{other}` for one of two models
    unit: str  # what the number is, in a few words
    statistic: Callable[[Any], Any]  # function of the result to an `Estimate`
    more: str = ""  # what a model with a higher value does, before "than": "attends more globally"

    @property
    def of_pairs(self):
        """Whether it is a number about two models."""
        return "{other}" in self.result


def quantity(result, *, unit, more=""):
    """Makes a `Quantity` of a function of a result.

    The first paragraph of its docstring is the label, the second the explanation.
    """

    def make(statistic):
        text = [" ".join(part.split()) for part in inspect.getdoc(statistic).split("\n\n")]
        return Quantity(*text[:2], result, unit, statistic, more)

    return make
