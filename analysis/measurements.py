"""What is measured on a set of models: each result as a value that knows how it is made.

The functions named like analyses say what to measure; `measure.measure` does it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
import xarray as xr

from .aligned_attention import aligned_attention as align
from .attention import attention_statistic
from .attention_patterns import pattern_statistic
from .cka import cka_statistic
from .counterparts import counterparts
from .head_classes import head_classes as classify
from .heads import head_statistic
from .localization import localization_statistic
from .mean_attention import mean_attention_statistic
from .skips import skip_statistic
from .subjects import MOST_PANELS, Subject, representations, spread


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
    """Ridge probes on some taps of one model; `tokens` as for `ridge_probe`."""

    name: str
    subjects: tuple[Subject]
    taps: tuple[str, ...]
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


def cka(one, other=None):
    """Similarity of all representations of a model, or of two models."""
    subjects = (one,) if other is None else (one, other)
    taps = tuple(tuple(representations(subject.taps)) for subject in subjects)
    return Forward(_name("cka", *subjects), subjects, taps, cka_statistic)


def block_cka(one, other):
    """Similarity of the block outputs of two models."""
    taps = tuple(tuple(subject.blocks) for subject in (one, other))
    return Forward(_name("block_cka", one, other), (one, other), taps, cka_statistic)


def attention_distance(subject):
    """Reach of every attention head."""
    return _of_weights("attention_distance", subject, attention_statistic)


def mean_attention(subject):
    """Attention maps averaged over images, which others follow from."""
    return _of_weights("mean_attention", subject, mean_attention_statistic)


def aligned_attention(subject):
    """Attention of every head by the offset of key from query."""
    return _of_mean_attention("aligned_attention", subject, align)


def head_classes(subject):
    """The kind of every attention head."""
    return _of_mean_attention("head_classes", subject, classify)


def attention_patterns(subject):
    """How far heads and layers attend to the same few tokens of an image."""
    return _of_weights("attention_patterns", subject, pattern_statistic)


def skip_ratio(subject):
    """Skip against branch at every sum."""
    taps = tuple(tap for tap in subject.taps if tap.endswith(("/skip", "/branch")))
    return _alone("skip_ratio", subject, taps, skip_statistic)


def localization(subject, stage=None):
    """Similarity of single tokens and image patches.

    Of all blocks of a model whose tokens lie on one grid. Of a ResNet at all places of its last
    stage, or at some of an earlier `stage`, whose many places have many neighbours alike. Of a
    model whose blocks are not known, in the second half of its layers and at tokens with a place:
    before, a token may hold nothing but its position, or a patch that is blank in all images.
    """
    if not subject.stages:
        taps, statistic = _localized(subject)
        return _alone("localization", subject, tuple(taps), statistic)
    taps = tuple(tap for tap in subject.blocks if tap.startswith(f"{stage or subject.stages[-1]}/"))
    taps = taps[-1:]
    if stage is None:
        return _alone("localization", subject, taps, localization_statistic)
    size = tuple(side * subject.grid.stride for side in (subject.grid.rows, subject.grid.columns))
    return _alone(f"localization_{stage}", subject, taps, partial(_localization_of_some, size=size))


def _localized(subject):
    """The taps of one grid that are localized, and the function that makes their statistic."""
    taps = subject.on_grid(subject.blocks)
    if subject.has_sums:
        return [tap for tap in taps if "/" in tap], localization_statistic
    if not taps:
        return [], localization_statistic
    tokens = range(subject.grid.prefix, subject.grid.num_tokens)
    statistic = partial(localization_statistic, tokens=tokens)
    return spread(taps[len(taps) // 2 :], MOST_PANELS), statistic


def head_similarity(one, other, block="block00"):
    """Similarity of growing sets of heads of a block and another model's lower half."""
    heads = (f"{block}/attention/weights", f"{block}/attention/heads")
    taps = (heads, tuple(other.blocks[: (len(other.blocks) + 1) // 2]))
    name = _name("head_similarity", one, other)
    return Forward(name, (one, other), taps, partial(head_statistic, block=block))


def receptive_field(subject, path="sum"):
    """Effective receptive fields after each sum, or before it, of each `"branch"`.

    Of a model whose blocks are not known, of some layers through its depth.
    """
    if path == "sum" and not subject.has_sums:
        taps = spread(subject.with_places(subject.blocks), MOST_PANELS)
    else:
        taps = subject.with_places([tap for tap in subject.taps if tap.endswith(f"/{path}")])
    name = _name("receptive_field" + _unless(path, "sum"), subject)
    return Field(name, (subject,), tuple(taps))


def ridge_probe(subject, tokens="mean"):
    """Accuracy of linear probes on each block's output; of single tokens where they have places."""
    names = {"each": "ridge_probe_tokens"}
    name = names.get(tokens, "ridge_probe" + _unless(tokens, "mean"))
    taps = subject.blocks
    if tokens != "mean":
        taps = subject.on_grid(taps)
        taps = taps if subject.has_sums else spread(taps, MOST_PANELS)
    return Probe(_name(name, subject), (subject,), tuple(taps), tokens)


def data_scale(subject, shares):
    """Similarity of each block to that of other models, by the share of the data they saw."""
    inputs = tuple(block_cka(other, subject) for other in shares.values())
    compute = partial(_by_fraction, shares=list(shares))
    return Derived(_name("data_scale", subject), inputs, compute)


def fine_tuning(before, after):
    """Similarity of each block to what it was before fine-tuning."""
    return counterpart_blocks(before, after, "fine_tuning")


def counterpart_blocks(one, other, analysis="counterparts"):
    """Similarity of each block to the block of the same name in another model."""
    return Derived(
        _name(analysis, one, other),
        (block_cka(one, other),),
        lambda results: counterparts(results[0]),
    )


def _name(analysis, *subjects):
    return ".".join([analysis, *(subject.slug for subject in subjects)])


def _unless(word, usual):
    return "" if word == usual else f"_{word}"


def _of_weights(analysis, subject, statistic):
    taps = tuple(tap for tap in subject.taps if tap.endswith("/weights"))
    return _alone(analysis, subject, taps, statistic)


def _of_mean_attention(analysis, subject, compute):
    inputs = (mean_attention(subject),)
    return Derived(_name(analysis, subject), inputs, lambda results: compute(results[0]))


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
