"""Raghu et al. 2021, section 7: spatial localization of tokens."""

from dataclasses import replace
from functools import partial

import numpy as np
import tensorflow as tf

from ...engine.estimates import share, student
from ...engine.results import expect_array
from ...plots.similarity_plots import plot_localization, plot_localization_by_layer
from ...similarity.localization import localization_statistic
from ...study.figure import Figure, each, split
from ...study.judge import finding
from ...study.measurement import quantity, statistic
from ...study.models import MOST_PANELS, spread
from ..chapters import LOCALIZATION
from . import RAGHU


def localization_of(model):
    """Similarity of single tokens and image patches.

    For all blocks of a model whose tokens lie on one grid, and for a ResNet at all positions of its
    last stage. For a model whose blocks are not known, in the second half of its layers and at
    spatial tokens: before, a token may encode only its position, or a patch that is blank in all
    images.
    """
    model.require_grid()
    make = localization_statistic
    if model.stages:
        taps = model.placed[-1:]
    elif model.has_sums:
        taps = [tap for tap in model.on_grid(model.blocks) if "/" in tap]
    else:
        taps = model.on_grid(model.blocks)
        taps = spread(taps[len(taps) // 2 :], MOST_PANELS)
        tokens = range(model.grid.prefix, model.grid.num_tokens)
        make = partial(localization_statistic, tokens=tokens)
    taps = taps or model.lacks("layers on the grid of its spatial tokens or positions")
    return statistic("localization", model, taps, make)


def localization_by_depth(model):
    """The same where there are several layers of it."""
    measurement = localization_of(model)
    return measurement if len(measurement.taps[0]) > 1 else None


def localization_of_stages(model):
    """Similarity of some positions of a ResNet's earlier stages and image patches.

    Not of all: many neighbours are similar.
    """
    if not model.stages:
        return None
    model.require_grid()
    size = tuple(side * model.grid.stride for side in (model.grid.rows, model.grid.columns))
    make = partial(_localization_of_some, size=size)
    return {
        stage: statistic(
            f"localization_{stage}",
            model,
            [tap for tap in model.blocks if tap.startswith(f"{stage}/")][-1:],
            make,
        )
        for stage in model.stages[:-1]
    }


def _localization_of_some(features, size):
    """The statistic for positions at the quarters of a map's height and width; images of `size`."""
    (values,) = features(tf.zeros((1, *size, 3))).values()
    rows, columns = values.shape[1:3]
    places = [[side * quarter // 4 for quarter in (1, 2, 3)] for side in (rows, columns)]
    tokens = sorted({row * columns + column for row in places[0] for column in places[1]})
    return localization_statistic(features, tokens=tokens)


@finding("localization.{vit}", section="7", figure="9", unit="share of tokens", above=0.5)
def own_patch(similarity):
    """Most tokens of the last layer are most similar to their own patch.

    Share of last-layer tokens whose most similar patch, by CKA, is their own.

    Threshold 1/2, most (section 7, figure 9).

    Args:
        similarity: CKA of tokens and patches, of dims (layer, token, row, column), with each
            token's own position as coordinates `token_row` and `token_column`. Prefix tokens, and
            patches without a CKA, are left out.
    """
    maps, own = last_maps(similarity)
    return share(np.sum(maps.argmax(axis=1) == own), len(own), "tokens")


@finding(
    "localization.{vit} localization.{gap}",
    section="7",
    figure="10",
    unit="difference in CKA",
    above=0.0,
)
def cls_localizes_more(vit, gap):
    """A ViT trained with a CLS token localizes better than one with global average pooling.

    CKA of last-layer tokens with their own patch minus the mean with other patches; CLS minus
    average pooling.

    Threshold 0 (section 7, figure 10). For models of one grid: on a finer grid the mean with other
    patches is smaller.

    Args:
        vit, gap: as in `own_patch`.
    """
    margins = []
    for similarity in (vit, gap):
        maps, own = last_maps(similarity)
        mine = maps[np.arange(len(maps)), own]
        margins.append(mine - (maps.sum(axis=1) - mine) / (maps.shape[1] - 1))
    if len({similarity.shape[-2:] for similarity in (vit, gap)}) > 1:
        raise ValueError(f"Not tested: {_grids(vit, gap)} have margins that are not comparable.")
    return student(margins[0] - margins[1], "tokens")


@finding(
    "localization.{vit} localization.{resnet}",
    section="7",
    figure="9",
    unit="difference in share of patches",
    above=0.0,
)
def vit_localizes_more(vit, resnet):
    """The ViT localizes better than the ResNet.

    Share of other patches with a lower CKA to a last-layer token than its own patch, ViT minus
    ResNet, on the coarser grid.

    1 if all tokens are most similar to their own patch, 1/2 by chance, on any grid. Patches and
    tokens of the finer grid are averaged within those of the coarser, whose size has to be a
    multiple of theirs. Threshold 0 (section 7, figure 9).

    Args:
        vit, resnet: as in `own_patch`.
    """
    rows, columns = (
        min(similarity.sizes[dim] for similarity in (vit, resnet)) for dim in ("row", "column")
    )
    shares = []
    for similarity in (vit, resnet):
        factors = similarity.sizes["row"] / rows, similarity.sizes["column"] / columns
        if factors[0] != factors[1] or factors[0] % 1:
            raise ValueError(f"Not tested: {_grids(vit, resnet)}; neither divides the other.")
        shares.append(_share_below_own(similarity, int(factors[0])))
    difference = shares[0] - shares[1]
    return student(difference[np.isfinite(difference)], "positions")


def _share_below_own(similarity, factor):
    """Share of other patches less similar than the own one: (position,) of a coarser grid.

    Ties count half; NaN where no token or patch of a position is known.
    """
    last = expect_array(similarity, ("layer", "token", "row", "column")).isel(layer=-1)
    last = last.isel(token=np.isfinite(last["token_row"].values))
    coarse = last.coarsen(row=factor, column=factor).mean()
    rows, columns = coarse.shape[1:]
    maps = coarse.values.reshape(len(coarse), -1)
    row, column = (
        (last[f"token_{axis}"].values // factor).astype(int) for axis in ("row", "column")
    )
    own = row * columns + column
    mine = maps[np.arange(len(maps)), own][:, None]
    better = np.where(np.isfinite(maps - mine), (maps < mine) + 0.5 * (maps == mine), np.nan)
    better[np.arange(len(maps)), own] = np.nan
    known = np.isfinite(better).any(axis=1)
    counts = np.bincount(own[known], minlength=rows * columns)
    sums = np.bincount(own[known], np.nanmean(better[known], axis=1), rows * columns)
    return sums / np.where(counts, counts, np.nan)


def _grids(one, other):
    """The grids of two results, in words."""
    return "grids of {} x {} and of {} x {} patches".format(*one.shape[-2:], *other.shape[-2:])


def last_maps(similarity):
    """Similarities of the last layer's tokens, of shape (token, patch), and their own patches."""
    last = expect_array(similarity, ("layer", "token", "row", "column")).isel(layer=-1)
    maps = last.values.reshape(last.sizes["token"], -1)
    own = (last["token_row"] * last.sizes["column"] + last["token_column"]).values
    known = np.flatnonzero(np.isfinite(maps).all(axis=0))
    kept = np.isin(own, known)
    if not kept.any() or len(known) < 2:
        raise ValueError(
            "Expected spatial tokens and at least two patches. "
            f"Received: {len(own)} tokens and {len(known)} patches with a CKA"
        )
    return maps[np.ix_(kept, known)], np.searchsorted(known, own[kept])


@quantity(
    "localization.{model}",
    unit="share of tokens",
    more="keeps more tokens of its last layer localized",
)
def localized_tokens(similarity):
    """Last-layer tokens that are most similar to their own patch.

    Share of last-layer tokens whose most similar patch, by CKA, is their own.
    """
    maps, own = last_maps(similarity)
    return share(np.sum(maps.argmax(axis=1) == own), len(own), "tokens")


SHOWS = "CKA between single tokens and image patches"


def caption(models, results):
    """How to read the maps, and their grey patches where there are any."""
    gaps = any(bool(result.isnull().any()) for result in results.values())
    return (
        "Each panel is the CKA of one token or position with every image patch; the frame marks "
        "its own patch. Colours span the values of all panels."
        + (" Grey patches are identical in all images." if gaps else "")
    )


FIGURE_9 = Figure(
    paper=RAGHU,
    numbers="9 10 D.1 D.2 D.3",
    chapter=LOCALIZATION,
    shows=SHOWS,
    models=each("vit", "gap", "resnet"),
    measure=localization_of,
    draw=plot_localization,
    scale="CKA of tokens and patches",
    name="localization-{model}",
    call="analysis.localization({model}, images)",
    title="Localization of last-layer tokens",
    caption=caption,
    findings=[own_patch, cls_localizes_more, vit_localizes_more],
    quantities=[localized_tokens],
)

FIGURE_9_BY_LAYER = replace(
    FIGURE_9,
    measure=localization_by_depth,
    draw=plot_localization_by_layer,
    quantities=(),
    name="localization-depth-{model}",
    call="analysis.localization({model}, images)",
    show="analysis.plots.plot_localization_by_layer",
    title="Localization of tokens by layer",
    findings=(),
)

FIGURE_9_STAGES = replace(
    FIGURE_9,
    models=split("resnet"),
    measure=localization_of_stages,
    quantities=(),
    name="localization-{label}-{model}",
    call='analysis.localization(vit_tf.submodel({loaded}, "{label}/*"), images)',
    title="Localization of positions in earlier stages",
    findings=(),
)
