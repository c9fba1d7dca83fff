"""Raghu et al. 2021, section 7: which part of the image does a token still resemble?"""

from dataclasses import replace
from functools import partial

import numpy as np
import tensorflow as tf

from ...engine.estimates import bootstrap
from ...engine.results import expect_array
from ...plots.localization import plot_localization, plot_localization_by_layer
from ...similarity.localization import localization_statistic
from ...study.figure import Figure, each, split
from ...study.judge import finding
from ...study.measurement import statistic
from ...study.models import MOST_PANELS, spread
from ..chapters import LOCALIZATION
from . import RAGHU


def localization_of(model):
    """Similarity of single tokens and image patches.

    Of all blocks of a model whose tokens lie on one grid, and of a ResNet at all places of its last
    stage. Of a model whose blocks are not known, in the second half of its layers and at tokens
    with a place: before, a token may hold nothing but its position, or a patch that is blank in all
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
    taps = taps or model.lacks("layers on the grid of its tokens or places")
    return statistic("localization", model, taps, make)


def localization_by_depth(model):
    """The same where there are several layers of it."""
    measurement = localization_of(model)
    return measurement if len(measurement.taps[0]) > 1 else None


def localization_of_stages(model):
    """Similarity of some places of a ResNet's earlier stages and image patches.

    Not of all: many neighbours among them are alike.
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
    """The statistic for places at the quarters of a map's height and width; images of `size`."""
    (values,) = features(tf.zeros((1, *size, 3))).values()
    rows, columns = values.shape[1:3]
    places = [[side * quarter // 4 for quarter in (1, 2, 3)] for side in (rows, columns)]
    tokens = sorted({row * columns + column for row in places[0] for column in places[1]})
    return localization_statistic(features, tokens=tokens)


@finding("localization.{vit}", section="7", figure="9", unit="share beyond chance", above=0)
def own_patch(similarity):
    """Tokens of the last layer resemble their own patch most.

    Share of tokens whose most similar patch is their own, less that of chance.

    Of the last layer. Against 0, since one of as many patches is the most similar by chance
    (section 7, figure 9).

    Args:
        similarity: CKA of tokens and patches, of dims (layer, token, row, column), with each
            token's own place as coordinates `token_row` and `token_column`. Prefix tokens, and
            patches without a CKA, are left out.
    """
    maps, own = last_maps(similarity)
    hits = (maps.argmax(axis=1) == own).astype(float)
    return bootstrap(lambda x: x.mean() - 1 / maps.shape[1], hits, over="tokens")


@finding(
    "localization.{vit} localization.{gap}",
    section="7",
    figure="10",
    unit="difference in CKA",
    above=0.0,
)
def cls_localizes_more(vit, gap):
    """A ViT trained with a CLS token localizes better than one with average pooling.

    CKA with the own patch less the mean with others, CLS minus average pooling.

    Of the last layer; against 0 (section 7, figure 10).

    Args:
        vit, gap: as in `own_patch`.
    """
    return _better_localised(vit, gap)


@finding(
    "localization.{vit} localization.{resnet}",
    section="7",
    figure="9",
    unit="difference in CKA",
    above=0.0,
)
def vit_localizes_more(vit, resnet):
    """The ViT localizes better than the ResNet.

    CKA with the own patch less the mean with others, ViT minus ResNet.

    Of the last layer; against 0 (section 7, figure 9).

    Args:
        vit, resnet: as in `own_patch`.
    """
    return _better_localised(vit, resnet)


def _better_localised(one, other):
    margins = []
    for similarity in (one, other):
        maps, own = last_maps(similarity)
        mine = maps[np.arange(len(maps)), own]
        margins.append(mine - (maps.sum(axis=1) - mine) / (maps.shape[1] - 1))
    return bootstrap(lambda x, y: x.mean() - y.mean(), *margins, over="tokens")


def last_maps(similarity):
    """Similarities of the last layer's tokens, of shape (token, patch), and their own patches."""
    last = expect_array(similarity, ("layer", "token", "row", "column")).isel(layer=-1)
    maps = last.values.reshape(last.sizes["token"], -1)
    own = (last["token_row"] * last.sizes["column"] + last["token_column"]).values
    known = np.flatnonzero(np.isfinite(maps).all(axis=0))
    kept = np.isin(own, known)
    if not kept.any() or len(known) < 2:
        raise ValueError(
            "Expected tokens with a place among two patches or more. "
            f"Received: {len(own)} tokens and {len(known)} patches with a CKA"
        )
    return maps[np.ix_(kept, known)], np.searchsorted(known, own[kept])


SHOWS = "similarity of single tokens and patches of the image"


def caption(models, results):
    """How to read the maps, and their grey patches where there are any."""
    gaps = any(bool(result.isnull().any()) for result in results.values())
    return (
        "Each panel is one token or place and shows which patches of the image it resembles; "
        "the frame marks its own. Colours span the values of all panels."
        + (" Grey patches are the same in all images." if gaps else "")
    )


FIGURE_9 = Figure(
    paper=RAGHU,
    numbers="9 10 D.1 D.2 D.3",
    chapter=LOCALIZATION,
    shows=SHOWS,
    models=each("vit", "gap", "resnet"),
    measure=localization_of,
    draw=plot_localization,
    name="localization-{model}",
    title="Last tokens of {model} beside patches of the image",
    caption=caption,
    findings=[own_patch, cls_localizes_more, vit_localizes_more],
)

FIGURE_9_BY_LAYER = replace(
    FIGURE_9,
    measure=localization_by_depth,
    draw=plot_localization_by_layer,
    name="localization-depth-{model}",
    title="Tokens of {model} beside patches, layer by layer",
    findings=(),
)

FIGURE_9_STAGES = replace(
    FIGURE_9,
    models=split("resnet"),
    measure=localization_of_stages,
    name="localization-{label}-{model}",
    title="Places of {label} of {model} beside patches of the image",
    findings=(),
)
