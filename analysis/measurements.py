"""What Raghu et al. 2021 measure on a set of models.

The functions named like analyses say what to measure; `measure.measure` does it.
"""

from functools import partial

import tensorflow as tf
import xarray as xr

from .attention import attention_statistic
from .cka import cka_statistic
from .counterparts import counterparts
from .heads import head_statistic
from .localization import localization_statistic
from .measurement_kinds import Derived, Field, Forward, Probe, name_of, of_one
from .skips import skip_statistic
from .subjects import MOST_PANELS, representations, spread
from .token_words import ALL, CLS, EACH, KEPT


def cka(one, other=None):
    """Similarity of all representations of a model, or of two models."""
    subjects = (one,) if other is None else (one, other)
    taps = tuple(tuple(representations(subject.taps)) for subject in subjects)
    return Forward(name_of("cka", *subjects), subjects, taps, cka_statistic)


def block_cka(one, other):
    """Similarity of the block outputs of two models."""
    taps = tuple(tuple(subject.blocks) for subject in (one, other))
    return Forward(name_of("block_cka", one, other), (one, other), taps, cka_statistic)


def attention_distance(subject):
    """Reach of every attention head."""
    return of_one("attention_distance", subject, subject.weights, attention_statistic)


def skip_ratio(subject):
    """Skip against branch at every sum."""
    taps = tuple(tap for tap in subject.taps if tap.endswith(("/skip", "/branch")))
    return of_one("skip_ratio", subject, taps, skip_statistic)


def localization(subject, stage=None):
    """Similarity of single tokens and image patches.

    Of all blocks of a model whose tokens lie on one grid. Of a ResNet at all places of its last
    stage, or at some of an earlier `stage`, whose many places have many neighbours alike. Of a
    model whose blocks are not known, in the second half of its layers and at tokens with a place:
    before, a token may hold nothing but its position, or a patch that is blank in all images.
    """
    if not subject.stages:
        taps, statistic = _localized(subject)
        return of_one("localization", subject, tuple(taps), statistic)
    taps = tuple(tap for tap in subject.blocks if tap.startswith(f"{stage or subject.stages[-1]}/"))
    taps = taps[-1:]
    if stage is None:
        return of_one("localization", subject, taps, localization_statistic)
    size = tuple(side * subject.grid.stride for side in (subject.grid.rows, subject.grid.columns))
    return of_one(f"localization_{stage}", subject, taps, partial(_localization_of_some, size=size))


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
    name = name_of("head_similarity", one, other)
    return Forward(name, (one, other), taps, partial(head_statistic, block=block))


def receptive_field(subject, path="sum"):
    """Effective receptive fields after each sum, or before it, of each `"branch"`.

    Of a model whose blocks are not known, of some layers through its depth.
    """
    if path == "sum" and not subject.has_sums:
        taps = spread(subject.with_places(subject.blocks), MOST_PANELS)
    else:
        taps = subject.with_places([tap for tap in subject.taps if tap.endswith(f"/{path}")])
    name = name_of("receptive_field" + _unless(path, "sum"), subject)
    return Field(name, (subject,), tuple(taps))


def ridge_probe(subject, tokens=ALL):
    """Accuracy of linear probes on each block's output; of single tokens where they have places."""
    name = {ALL: "ridge_probe", EACH: "ridge_probe_tokens"}.get(tokens)
    name = name or f"ridge_probe_{KEPT[tokens]}"
    taps = subject.blocks
    if tokens != ALL:
        taps = subject.on_grid(taps)
        taps = taps if subject.has_sums else spread(taps, MOST_PANELS)
    return Probe(name_of(name, subject), (subject,), tuple(taps), tokens)


def first_place_probe(subject):
    """Of the probes on single tokens that of the first one: of a model without CLS it has a place.

    Raghu et al. 2021, figure F.3, where it stands beside the CLS token of other models.
    """
    return Derived(
        name_of(f"ridge_probe_{KEPT[CLS]}", subject),
        (ridge_probe(subject, EACH),),
        lambda results: results[0].isel(token=0, drop=True),
    )


def data_scale(subject, shares):
    """Similarity of each block to that of other models, by the share of the data they saw."""
    inputs = tuple(block_cka(other, subject) for other in shares.values())
    compute = partial(_by_fraction, shares=list(shares))
    return Derived(name_of("data_scale", subject), inputs, compute)


def fine_tuning(before, after):
    """Similarity of each block to what it was before fine-tuning."""
    return counterpart_blocks(before, after, "fine_tuning")


def counterpart_blocks(one, other, analysis="counterparts"):
    """Similarity of each block to the block of the same name in another model."""
    return Derived(
        name_of(analysis, one, other),
        (block_cka(one, other),),
        lambda results: counterparts(results[0]),
    )


def _unless(word, usual):
    return "" if word == usual else f"_{word}"


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
