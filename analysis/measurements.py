"""What is measured on a set of models: each result as a value that knows how it is made.

The functions named like analyses say what to measure; `measure.measure` does it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
import xarray as xr

from .attention import attention_statistic
from .cka import cka_statistic
from .counterparts import counterparts
from .heads import head_statistic
from .localization import localization_statistic
from .skips import skip_statistic


@dataclass(frozen=True)
class Subject:
    """A model under study.

    Attributes:
        name: as figures and tables show it.
        role: its part in the figures: "vit", "gap", "resnet" or "mixer"; "without" (the skips of
            a block), "seed" (other first weights), "fraction" (of the training images), "before"
            and "after" (fine-tuning).
        key: `fingerprint` of its weights and of the data.
        taps: names of all its taps, in depth order.
        grid: its `TokenGrid`.
        features: function from tap names or patterns to a callable from images to those taps.
        detail: what sets it apart from others of its role: the block, the seed, the fraction.
        of: name of the subject that it is compared with.
        accuracy: pair of test accuracy in [0, 1] and number of test images, where known.
    """

    name: str
    role: str
    key: str
    taps: tuple[str, ...]
    grid: Any
    features: Callable[..., Any]
    detail: str | int | float | None = None
    of: str | None = None
    accuracy: tuple[float, int] | None = None

    @property
    def slug(self):
        """The name as a part of file names."""
        return slug(self.name)

    @property
    def has_attention(self):
        """Whether the model has attention weights."""
        return any(tap.endswith("/weights") for tap in self.taps)

    @property
    def stages(self):
        """Names of the stages of a ResNet, whose maps differ in size; empty for other models."""
        sites = (tap.split("/")[0] for tap in self.taps)
        return list(dict.fromkeys(site for site in sites if re.fullmatch(r"stage\d+", site)))


@dataclass(frozen=True)
class Forward:
    """A statistic of the activations of one model or two on the test images.

    Attributes:
        name: of the result: that of the analysis and the models, "cka.vit-cls.bit".
        subjects: the models.
        taps: for each model, the names of the taps that the statistic needs.
        statistic: function of the features of each model to a `stream.Statistic`.
    """

    name: str
    subjects: tuple[Subject, ...]
    taps: tuple[tuple[str, ...], ...]
    statistic: Callable[..., Any]


@dataclass(frozen=True)
class Field:
    """The receptive fields of some taps of one model."""

    name: str
    subjects: tuple[Subject]
    taps: tuple[str, ...]


@dataclass(frozen=True)
class Probe:
    """Ridge probes on the block outputs of one model; `tokens` as for `ridge_probe`."""

    name: str
    subjects: tuple[Subject]
    tokens: str


@dataclass(frozen=True)
class Derived:
    """A result computed from others: `compute` is a function of the list of these."""

    name: str
    inputs: tuple[Forward, ...]
    compute: Callable[..., Any]

    @property
    def subjects(self):
        """The models of all inputs."""
        return tuple(dict.fromkeys(s for one in self.inputs for s in one.subjects))


def slug(name):
    """A model's name as a part of file names: `"ViT-B/16"` becomes `"vit-b-16"`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def representations(taps):
    """The taps that hold representations of images: no attention weights, heads or logits.

    The skips are left out too: each is the sum of the site before it.
    """
    return [t for t in taps if t.rpartition("/")[2] not in ("weights", "heads", "skip", "logits")]


def block_outputs(taps):
    """The taps at the end of each block or unit, after its last sum, and those before the first."""
    ends = {}
    for tap in taps:
        site, _, what = tap.rpartition("/")
        if what == "sum":
            ends[re.sub(r"/(attention|mlp|token_mixing|channel_mixing)$", "", site)] = tap
    return [tap for tap in taps if tap in ends.values() or tap in ("embedding", "root")]


def cka(one, other=None):
    """Similarity of all representations of a model, or of two models."""
    subjects = (one,) if other is None else (one, other)
    taps = tuple(tuple(representations(subject.taps)) for subject in subjects)
    return Forward(_name("cka", *subjects), subjects, taps, cka_statistic)


def block_cka(one, other):
    """Similarity of the block outputs of two models."""
    taps = tuple(tuple(block_outputs(subject.taps)) for subject in (one, other))
    return Forward(_name("block_cka", one, other), (one, other), taps, cka_statistic)


def attention_distance(subject):
    """Reach of every attention head."""
    taps = tuple(tap for tap in subject.taps if tap.endswith("/weights"))
    return _alone("attention_distance", subject, taps, attention_statistic)


def skip_ratio(subject):
    """Skip against branch at every sum."""
    taps = tuple(tap for tap in subject.taps if tap.endswith(("/skip", "/branch")))
    return _alone("skip_ratio", subject, taps, skip_statistic)


def localization(subject, stage=None):
    """Similarity of single tokens and image patches.

    Of all blocks of a model whose tokens lie on one grid. Of a ResNet at all places of its last
    stage, or at some of an earlier `stage`, whose many places have many neighbours alike.
    """
    taps = [tap for tap in block_outputs(subject.taps) if "/" in tap]
    if not subject.stages:
        return _alone("localization", subject, tuple(taps), localization_statistic)
    taps = tuple(tap for tap in taps if tap.startswith(f"{stage or subject.stages[-1]}/"))[-1:]
    if stage is None:
        return _alone("localization", subject, taps, localization_statistic)
    size = tuple(side * subject.grid.stride for side in (subject.grid.rows, subject.grid.columns))
    return _alone(f"localization_{stage}", subject, taps, partial(_localization_of_some, size=size))


def head_similarity(one, other, block="block00"):
    """Similarity of growing sets of heads of a block and another model's lower half."""
    outputs = block_outputs(other.taps)
    heads = (f"{block}/attention/weights", f"{block}/attention/heads")
    taps = (heads, tuple(outputs[: (len(outputs) + 1) // 2]))
    name = _name("head_similarity", one, other)
    return Forward(name, (one, other), taps, partial(head_statistic, block=block))


def receptive_field(subject, path="sum"):
    """Effective receptive fields after each sum, or before it, of each `"branch"`."""
    taps = tuple(tap for tap in subject.taps if tap.endswith(f"/{path}"))
    return Field(_name("receptive_field" + _unless(path, "sum"), subject), (subject,), taps)


def ridge_probe(subject, tokens="mean"):
    """Accuracy of linear probes on each block's output."""
    names = {"each": "ridge_probe_tokens"}
    name = names.get(tokens, "ridge_probe" + _unless(tokens, "mean"))
    return Probe(_name(name, subject), (subject,), tokens)


def data_scale(subject, shares):
    """Similarity of each block to that of other models, by the share of the data they saw."""
    inputs = tuple(block_cka(other, subject) for other in shares.values())
    compute = partial(_by_fraction, shares=list(shares))
    return Derived(_name("data_scale", subject), inputs, compute)


def fine_tuning(before, after):
    """Similarity of each block to what it was before fine-tuning."""
    return Derived(
        _name("fine_tuning", before, after),
        (block_cka(before, after),),
        lambda results: counterparts(results[0]),
    )


def _name(analysis, *subjects):
    return ".".join([analysis, *(subject.slug for subject in subjects)])


def _unless(word, usual):
    return "" if word == usual else f"_{word}"


def _alone(analysis, subject, taps, statistic):
    return Forward(_name(analysis, subject), (subject,), (taps,), statistic)


def _localization_of_some(features, size):
    """The statistic for places at the quarters of a map's height and width; images of `size`."""
    (values,) = features(tf.zeros((1, *size, 3))).values()
    rows, columns = values.shape[1:3]
    places = [[side * quarter // 4 for quarter in (1, 2, 3)] for side in (rows, columns)]
    tokens = sorted({row * columns + column for row in places[0] for column in places[1]})
    return localization_statistic(features, tokens=tokens)


def _by_fraction(results, shares):
    parts = [counterparts(result) for result in results]
    joined = xr.concat(parts, dim="fraction", combine_attrs="drop_conflicts")
    return joined.assign_coords(fraction=shares).sortby("fraction")
