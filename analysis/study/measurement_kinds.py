"""The kinds of measurements: each is a result as a value that knows how it is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .models import Subject


@dataclass(frozen=True)
class Forward:
    """A statistic of the activations of some models, made in one pass with others.

    Attributes:
        name: of the result: that of the analysis and the models, "cka.vit-cls.bit".
        subjects: the models.
        taps: for each model, the names of the taps that the statistic needs.
        statistic: function of the features of each model to a `stream.Statistic`.
        reads: the field of `measure.Data` that it goes through.
        kept: whether it is a result of its own, not only an input of others, which may be large.
    """

    name: str
    subjects: tuple[Subject, ...]
    taps: tuple[tuple[str, ...], ...]
    statistic: Callable[..., Any]
    reads: str = "test"
    kept: bool = True
    inputs = ()


@dataclass(frozen=True)
class Field:
    """The receptive fields of some taps of one model."""

    name: str
    subjects: tuple[Subject]
    taps: tuple[str, ...]
    reads = "few"
    kept = True
    inputs = ()


@dataclass(frozen=True)
class Probe:
    """Ridge probes on some taps of one model; `tokens` as for `ridge_probe`."""

    name: str
    subjects: tuple[Subject]
    taps: tuple[str, ...]
    tokens: str
    reads = "train"
    kept = True
    inputs = ()


@dataclass(frozen=True)
class Task:
    """What a model is good for, measured in passes of its own.

    Attributes:
        name, subjects, reads: as those of `Forward`.
        compute: function of the `measure.Data` and of the results of the `inputs`.
        inputs: what is measured before.
    """

    name: str
    subjects: tuple[Subject]
    compute: Callable[..., Any]
    reads: str
    inputs: tuple[Any, ...] = ()
    kept = True


@dataclass(frozen=True)
class Derived:
    """A result computed from others: `compute` is a function of the list of these."""

    name: str
    inputs: tuple[Any, ...]
    compute: Callable[..., Any]
    kept = True

    @property
    def subjects(self):
        """The models of all inputs."""
        return tuple(dict.fromkeys(s for one in self.inputs for s in one.subjects))

    @property
    def reads(self):
        """What its inputs read."""
        return self.inputs[0].reads


def with_inputs(measurements):
    """Measurements by name, each after all that it is made of."""
    table = {}
    for one in measurements:
        if one.name not in table:
            table |= with_inputs(one.inputs) | {one.name: one}
    return table


def name_of(analysis, *subjects):
    """The name of a result: `"cka.vit-cls.bit"`."""
    return ".".join([analysis, *(subject.slug for subject in subjects)])


def of_one(analysis, subject, taps, statistic, **fields):
    """A `Forward` of one model."""
    return Forward(name_of(analysis, subject), (subject,), (tuple(taps),), statistic, **fields)
