"""Each claim of Walmer et al. on results whose truth is known, as in `test_claims`."""

import re
from functools import partial

import numpy as np
import pytest
import xarray as xr
from attention_heads import head, mean_of
from study_parts import cka_result

from vit_tf import TokenGrid
from vit_tf.analysis.engine.results import pack_correct
from vit_tf.analysis.figures.figure import all_figures
from vit_tf.analysis.heads.mean_attention import aligned_attention, head_classes
from vit_tf.analysis.papers.raghu import RAGHU
from vit_tf.analysis.papers.walmer import WALMER
from vit_tf.analysis.papers.walmer.section4_attention import offset_heads as one_sided, phases
from vit_tf.analysis.papers.walmer.section5_clusters import (
    _last_quarter_over_last as peak,
    _purity as purity_of,
    blocks_of,
)
from vit_tf.analysis.papers.walmer.section6_tasks import (
    _before_last as best_before_last,
    best_of_scores,
    last_knn,
    task_scores,
)
from vit_tf.analysis.report.scorecard import scorecard
from vit_tf.analysis.statistics.claims import DECIDED, Outcome, decide
from vit_tf.analysis.statistics.intervals import wilson

OTHERS = {"masked": "masked", "larger": "wide", "seed": "vit-1", "finer": "fine"}
ROLES = {"vit": "vit", "untrained": "vit-untrained", "noise": "vit-noise"}
# Extremes and numbers of kinds, of which there is no honest interval.
DESCRIPTIVE = (
    *("offset-heads", "offset-heads-early", "local-kinds", "layers-mix"),
    *("masked-offset-heads", "patterns-vary", "larger-models-have-diagonal-offsets"),
)
GRID = TokenGrid(6, 6, 1, 8)
BLOCKS = [f"block{block:02}/mlp/sum" for block in range(6)]
SITES = [f"block{block:02}/attention" for block in range(6)]
# What is added where there is no telling: no mean, in either half, and no trend.
SWAY = np.array([0.02, -0.02, 0.0, 0.0, -0.02, 0.02])


def by_layer(side, low, high):
    """Six values, low in the lower half and high in the upper; the other way round; a sway."""
    step = np.repeat([low, high], 3)
    return {1: step, -1: step[::-1], 0: np.mean([low, high]) + SWAY}[side]


def patterns(cls, spatial, peak=0.5):
    """A result of `attention_patterns`, from the repetition in each layer, that between being 0."""
    repetition = np.array([np.diag(cls), np.diag(spatial)])
    swing = 0.005 * np.array([1.0, -1.0, 0.5, -0.5])[:, None, None, None]
    dims = ("query", "layer", "layer_other")
    return xr.Dataset(
        {
            "repetition": (dims, repetition),
            "leave_one_out": (("batch", *dims), repetition + swing),
            "peak": (("query", "layer", "head"), np.full((2, len(cls), 4), peak)),
        },
        coords={"query": ["cls", "spatial"]},
        attrs={"examples": 400},
    )


def patterns_repeat(query, side):
    actual = {1: [0.0] * 3 + [0.9] * 3, -1: [0.0] * 3 + [-0.9] * 3, 0: [0.0] * 6}[side]
    other = np.full(6, 0.3)
    pair = (actual, other) if query == "cls" else (other, actual)
    return {"attention_patterns.vit": patterns(*pair)}


def patterns_repeat_in(side):
    """Repetition in the ViTs with larger and with smaller patches, in the upper half of layers."""
    vit, finer = (
        patterns(np.array([0.0] * 3 + [value] * 3), np.zeros(6))
        for value in (0.4, 0.4 + 0.4 * side)
    )
    noise = 0.005 * np.random.default_rng(5).normal(size=finer["leave_one_out"].shape)
    finer["leave_one_out"] = finer["leave_one_out"] + noise
    return {"attention_patterns.vit": vit, "attention_patterns.fine": finer}


def diagonal_heads(side):
    """Offset heads of two layers; a diagonal head that is no offset head does not count."""
    directions = [["up-left" if side else "up", "left"], ["down-right", ""]]
    kinds = [["offset", "offset"], ["soft", "global"]]
    dims = ("layer", "head")
    return {
        "head_classes.wide": xr.Dataset({"kind": (dims, kinds), "direction": (dims, directions)})
    }


def smaller_patches(task, side):
    """The best layer of each model, which is another one, is that much better or worse."""
    finer = scores(-0.2, -0.2, 0.1 * side, -0.2, -0.2, -0.2)
    vit = scores(-0.1, -0.1, -0.1, -0.1, 0, -0.1)
    return {f"{task}.fine": TASKS[task](finer), f"{task}.vit": TASKS[task](vit)}


def patterns_vary(side):
    item, even = np.eye(1, 16, 5)[0], np.full(16, 1 / 16)
    late = {1: [0.0, 0.0, 0.1], -1: [1.0, 1.0, 0.9], 0: [0.0, 1.0, 0.5]}[side]
    late = [[item] * round(4 * x) + [even] * (4 - round(4 * x)) for x in late]
    late[0][0] = 0.9 * late[0][0] + 0.1 * (even if side == -1 else item)
    maps = np.array([[item if side == 1 else even] * 4] * 3 + late)
    average = xr.DataArray(maps.reshape(6, 4, 4, 4), dims=("layer", "head", "row", "column"))
    sharp = patterns(np.zeros(6), np.zeros(6), peak=1.0)
    return {"attention_patterns.vit": sharp, "cls_attention.vit": average}


# The score of a kind of head at an offset (row, column).
SCORES = {
    "right": lambda row, column: (row, column) == (0, 1),
    "down": lambda row, column: (row, column) == (1, 0),
    "around": lambda row, column: np.exp(-(row**2 + column**2) / 2),
    "everywhere": lambda row, column: 1,
    "own": lambda row, column: (row, column) == (0, 0),
    "along_row": lambda row, column: row == 0,
}
OFFSET, AROUND, MIXED = (
    "right down right around",
    "around around around around",
    "around everywhere",
)
# The heads of each layer, by side.
HEADS = {
    "offset-heads": {
        1: ["right down around everywhere"] * 3,
        0: ["around everywhere own along_row"] * 3,
    },
    "offset-heads-early": {
        1: [OFFSET, AROUND],
        -1: [AROUND, OFFSET],
        0: ["right around around around"] * 2,
    },
    "local-kinds": {1: ["right around own along_row"], 0: ["everywhere everywhere"]},
    "layers-mix": {1: [MIXED] * 4, 0: ["everywhere everywhere"] * 2 + ["own around"] * 2},
}


def heads_of(name, side):
    """What follows from the mean attention of the heads of `HEADS`."""
    layers = [[head(GRID, SCORES[kind]) for kind in kinds.split()] for kinds in HEADS[name][side]]
    mean = mean_of(layers, GRID)
    aligned = aligned_attention(mean)
    return {"aligned_attention.vit": aligned, "head_classes.vit": head_classes(mean)}


def distances(*means, seed=1):
    """A result of `mean_distance` of ten batches and 12 layers, from means of its three phases."""
    layers = np.repeat(means, [2, 4, 6])
    values = layers[:, None] + np.array([-0.02, 0.02, -0.01, 0.01])
    return {"unit_distance.vit": with_batches(values, seed)}


def with_batches(values, seed):
    """Distances (layer, head), with those without each of ten batches."""
    rest = values + 0.001 * np.random.default_rng(seed).normal(size=(10, *values.shape))
    attrs = {"examples": 1000, "leave_one_out": rest.ravel()}
    return xr.DataArray(values, dims=("layer", "head"), attrs=attrs)


def saliency(best, other=0.1):
    """A result of `attention_saliency`; the spatial queries find nothing."""
    iou = np.stack([best, np.zeros(len(best))])
    dims, coords = ("query", "layer"), {"query": ["cls", "spatial"]}
    swing = 0.002 * np.array([1.0, -1.0, 0.5, -0.5])[:, None, None, None]
    each = np.stack([iou, iou - 0.05], axis=-1)  # two heads, of which the first is better
    fall = np.linspace(1, -1, len(best))[:, None]
    return xr.Dataset(
        {
            "best_iou": (dims, iou),
            "iou": ((*dims, "head"), each),
            "other_iou": ((*dims, "head"), np.full_like(each, other)),
            "leave_one_out": (("batch", *dims, "head"), each + swing * fall),
            "other_leave_one_out": (
                ("batch", *dims, "head"),
                np.full_like(each, other) + swing * 0.3,
            ),
        },
        coords=coords,
        attrs={"examples": 400},
    )


def salient(best):
    return {"saliency.vit": saliency(best)}


# The best IoU of each layer, by side.
SALIENCY = {
    "saliency-early": {
        1: [0.5, 0.6, 0.55, 0.9, 0.9, 0.9],
        -1: [0.0, 0.02, 0.0, 0.9, 0.9, 0.9],
        0: [0.1, 0.1, 0.1, 0.9, 0.9, 0.9],
    },
    "saliency-plateaus": {
        1: [0.2, 0.6, 0.55, 0.6, 0.6, 0.65],
        -1: [0.21, 0.22, 0.23, 0.7, 0.6, 0.65],
        0: [0.2, 0.4, 0.4, 0.6, 0.6, 0.6],
    },
    "saliency-drops": {
        1: [0.9, 0.49, 0.51, 0.27, 0.33, 0.3],
        -1: [0.9, 0.49, 0.51, 0.67, 0.73, 0.7],
        0: [0.9, 0.49, 0.51, 0.47, 0.53, 0.5],
    },
}
DEEPEN = [0.2, 0.3, 0.4, 0.6, 0.7, 0.9]
DEEPEN = {1: DEEPEN, -1: DEEPEN[::-1], 0: [0.5, 0.3, 0.6, 0.4, 0.6, 0.5]}


def clusters(purity, layers=BLOCKS, objects=400):
    """A result of `cluster_scores`."""
    attrs = {"examples": objects}  # of images, or with "objects" of these
    return xr.Dataset({"purity": ("layer", purity)}, coords={"layer": layers}, attrs=attrs)


def spatial_first(side):
    cls = np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    noise = SWAY[:3] - SWAY[:3].mean()
    spatial = cls + np.concatenate([0.1 * side + noise, np.full(3, -0.5 * side)])
    layers = ["embedding", *BLOCKS]
    rest = clusters([0.0 if side > 0 else 1.0, *spatial], layers, objects=2000)
    return {"clustering_first.vit": clusters(cls, objects=2000), "clustering_rest.vit": rest}


def test_purity_of_images_and_of_objects_has_an_interval_over_them():
    of_images = clusters([0.5] * 6, objects=100)
    of_objects = of_images.assign_attrs(objects=400)
    widths = [np.ptp(x.interval) for x in map(purity_of, (of_images, of_objects))]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.05)


def above_chance(kind, side):
    noise = np.full(7, 0.3)
    layers = ["embedding", *BLOCKS]
    purity = clusters(0.3 + 0.2 * side + np.append(0.5, SWAY), layers)
    return {f"{kind}.vit": purity, f"{kind}.vit-untrained": clusters(noise, layers)}


def peak_early(kind, side):
    late = {1: [0.7, 0.5], -1: [0.5, 0.7], 0: [0.6, 0.6]}[side]
    return {f"{kind}.vit": clusters([0.9, 0.1, 0.3, 0.4, 0.5, *late], ["embedding", *BLOCKS])}


def videos(scores):
    """A result of `label_propagation`, from scores (video, layer), of two objects a video."""
    region = np.repeat(np.transpose(scores), 2, axis=1)
    away = np.where(np.arange(region.shape[1]) % 2, 0.1, -0.1)
    dims = ("layer", "object")
    data = {"region": (dims, region + away - 0.1), "boundary": (dims, region + 2 * away + 0.1)}
    number = np.repeat(np.arange(len(scores)), 2)
    return xr.Dataset(data, {"layer": ["embedding", *BLOCKS], "video": ("object", number)})


def keypoints(scores):
    """A result of `keypoint_correspondence`, from scores (category, layer)."""
    place = np.transpose(scores)[None, :, :, None]
    pck = np.concatenate([place, 0 * place], axis=-1)
    pck = np.concatenate([pck, 1 - pck])
    coords = {"average": ["point", "image"], "layer": ["embedding", *BLOCKS]}
    coords |= {"threshold": [0.1, 0.01]}
    return xr.Dataset({"pck": (("average", "layer", "category", "threshold"), pck)}, coords)


TASKS = {"propagation": videos, "keypoints": keypoints}


def scores(*layers, units=8):
    """Scores (unit, layer): those of an embedding that beats all layers, and of six layers.

    Units differ by far more than layers do, as videos do; layers also differ a little at random.
    """
    noise = np.random.default_rng(3).normal(size=(units, 6))
    every = np.linspace(0.2, 0.6, units)[:, None]
    return np.concatenate([np.ones((units, 1)), every + np.array(layers) + 0.005 * noise], axis=1)


def task_above_chance(task, side):
    actual, chance = scores(*[0.1 * side] * 6), scores(*[0] * 6)
    away = np.where(np.arange(8) % 2, 0.03, -0.03)[:, None] * (np.arange(7) > 0)
    make = TASKS[task]
    return {f"{task}.vit": make(actual + away), f"{task}.vit-untrained": make(chance)}


# What the layers differ by, by side.
BEFORE_LAST = {1: [0, 0, 0, 0.1, 0.1, 0], -1: [0, 0, 0, 0, 0, 0.1], 0: [0] * 6}
MID_TO_LATE = {1: [0, 0, 0, 0, 0.1, 0], -1: [0, 0.1, 0, 0, 0, 0], 0: [0] * 6}


def scored(task, layers, side):
    return {f"{task}.vit": TASKS[task](scores(*layers[side]))}


def neighbours(accuracy, examples=1000):
    """A result of `knn_accuracy`, whose top 5 and k = 1 are not to be read."""
    top = np.stack([accuracy, np.ones(len(accuracy))], axis=-1)
    values = np.stack([top, np.zeros_like(top)], axis=1)
    coords = {"layer": BLOCKS, "k": [20, 1], "top": [1, 5]}
    dims = ("layer", "k", "top")
    mixed = np.random.default_rng(5).random(examples)  # the same images are hard for all layers
    coords["correct"] = (
        dims,
        pack_correct(mixed.argsort().argsort() < values[..., None] * examples),
    )
    attrs = {"examples": examples, "num_classes": 10}
    return xr.DataArray(values, dims=dims, coords=coords, attrs=attrs)


def no_single_layer(side):
    layers = {1: [0, 0, 0, 0.1, 0, 0], -1: [0, 0, 0, 0, 0.1, 0], 0: [0] * 6}[side]
    accuracy = neighbours([0.2, 0.3, 0.4, 0.6, 0.9, 0.8])
    return {"keypoints.vit": keypoints(scores(*layers)), "knn_accuracy.vit": accuracy}


def skips_diverge(side, stderr=0.02):
    """The diagonal tells; the rows are in another order than the columns."""
    cka = np.full((6, 6), 0.5)
    np.fill_diagonal(cka, by_layer(-side, 0.2, 0.6))
    names = [[f"{site}/{end}" for site in SITES] for end in ("branch", "skip")]
    result = cka_result(cka, *names, stderr=stderr)
    return {"residual_cka.vit": result.isel(layer_y=slice(None, None, -1))}


def orders(name, side):
    """Profiles of a masked ViT that differ from those of a supervised one, more than a control's.

    Levels and numbers of layers differ too, which do not count.
    """
    shape = np.array([-1.0, 0.0, 1.0, 0.0, -1.0])
    by_model = {"vit": 0.3 + 0 * shape, "masked": 0.5 + 0.1 * shape}
    by_model[name] = 0.1 + {1: 0.0, -1: 0.2, 0: 0.1}[side] * shape
    return {
        f"unit_distance.{model}": with_batches(values[:, None] + [-0.02, 0.02], seed)
        for seed, (model, values) in enumerate(by_model.items())
    }


def masked_x_pattern(side):
    """Layers that return to the first ones, in an X; only drift; or neither."""
    depth = np.arange(9)
    drift = np.exp(-abs(depth[:, None] - depth) / 4)
    mirrored = np.exp(-np.minimum(abs(depth[:, None] - depth), abs(8 - depth[:, None] - depth)) / 4)
    cka = {1: mirrored, -1: drift, 0: np.full((9, 9), 0.5)}[side]
    names = [f"block{number:02}/attention/norm" for number in depth]
    return {"norm_cka.masked": cka_result(cka, names, stderr=0.01)}


def masked_cls_is_semantic(side):
    """Raw pixels are the highest chance level."""
    purity = clusters(0.5 + 0.1 * side + np.append(0.5, SWAY), ["embedding", *BLOCKS])
    purity.attrs |= {"purity_raw_pixels": 0.5, "purity_mean_colour": 0.3 if side > 0 else 0.49}
    chance = clusters(np.full(7, 0.4 if side > 0 else 0.49), ["embedding", *BLOCKS])
    return {"clustering_first.masked": purity, "clustering_first.vit-untrained": chance}


def supervised_most_semantic(side):
    late = [0.5 + 0.1 * side] * 3
    return {
        "clustering_first.vit": clusters([0.1, 0.1, 0.1, *late], objects=2000),
        "clustering_first.masked": clusters([0.9, 0.9, 0.9, 0.5, 0.5, 0.5], objects=2000),
    }


def probes_of_masked(side):
    values = np.zeros((2, 2, 2))
    values[1, :, 0] = 0.4, 0.4 + 0.1 * side  # the last layer without batch normalization
    values[1, :, 1] = 0.9, 0.1
    coords = {"layer": BLOCKS[:2], "tokens": ["cls", "spatial"], "batch_norm": [False, True]}
    attrs = {"examples": 1000, "num_classes": 10}
    return {"linear_probe.masked": xr.DataArray(values, coords, tuple(coords), attrs=attrs)}


def of_masked(results):
    return {name.replace(".vit", ".masked"): result for name, result in results.items()}


BUILDERS = {
    "patterns-repeat-cls": partial(patterns_repeat, "cls"),
    "patterns-repeat-spatial": partial(patterns_repeat, "spatial"),
    **{name: partial(heads_of, name) for name in HEADS},
    "distance-dips": lambda side: distances(0.4, 0.4 - 0.1 * side, 0.5),
    "distance-rises": lambda side: distances(0.5, 0.4, 0.4 + 0.1 * side),
    **{name: lambda side, name=name: salient(np.array(SALIENCY[name][side])) for name in SALIENCY},
    "clusters-deepen": lambda side: {"clustering_first.vit": clusters(DEEPEN[side])},
    "spatial-first": spatial_first,
    "objects-above-chance": partial(above_chance, "objects"),
    "parts-above-chance": partial(above_chance, "parts"),
    "objects-peak-early": partial(peak_early, "objects"),
    "parts-peak-early": partial(peak_early, "parts"),
    "videos-above-chance": partial(task_above_chance, "propagation"),
    "keypoints-above-chance": partial(task_above_chance, "keypoints"),
    "videos-before-last": partial(scored, "propagation", BEFORE_LAST),
    "keypoints-before-last": partial(scored, "keypoints", BEFORE_LAST),
    "videos-mid-to-late": partial(scored, "propagation", MID_TO_LATE),
    "keypoints-mid-to-late": partial(scored, "keypoints", MID_TO_LATE),
    "knn-last-best": lambda side: {
        "knn_accuracy.vit": neighbours([0.2, 0.3, 0.4, 0.6, 0.7, 0.7 + 0.1 * side])
    },
    "no-single-layer": no_single_layer,
    "patterns-vary": patterns_vary,
    "smaller-patches-repeat-more": patterns_repeat_in,
    "larger-models-have-diagonal-offsets": diagonal_heads,
    "videos-smaller-patches": partial(smaller_patches, "propagation"),
    "keypoints-smaller-patches": partial(smaller_patches, "keypoints"),
    "skips-diverge": skips_diverge,
    "masked-offset-heads": lambda side: of_masked(heads_of("offset-heads", side)),
    "supervision-orders-attention": partial(orders, "vit-1"),
    "supervision-orders-more-than-size": partial(orders, "wide"),
    "masked-x-pattern": masked_x_pattern,
    "masked-cls-is-semantic": masked_cls_is_semantic,
    "supervised-most-semantic": supervised_most_semantic,
    "larger-is-better": lambda side: {
        "knn_accuracy.wide": neighbours([0.9, 0.9, 0.6, 0.6, 0.6, 0.6 + 0.1 * side], 2000),
        "knn_accuracy.vit": neighbours([0.1, 0.6, 0.6, 0.6, 0.9, 0.6], 2000),
    },
    "masked-spatial-better-than-cls": probes_of_masked,
}


CLAIMS = {claim.name: claim for figure in all_figures() for claim in figure.claims}


def estimated(name, results):
    """The number of the trained models."""
    claim = CLAIMS[name]
    return claim(*(results.get(template.format(**ROLES | OTHERS)) for template in claim.inputs))


def test_every_claim_has_its_cases_and_comes_after_those_of_the_first_paper():
    kind = {figure.paper: [] for figure in all_figures()}
    for figure in all_figures():
        kind[figure.paper] += [claim.name for claim in figure.claims]
    assert sorted(BUILDERS) == sorted(kind[WALMER])
    assert list(kind)[:2] == [RAGHU, WALMER]
    names = [name for names in kind.values() for name in names]
    assert len(set(names)) == len(names)


# A number or a share of heads, and a peak of all maps, cannot be on the other side.
NEVER_OPPOSITE = (
    "offset-heads",
    "masked-offset-heads",
    "local-kinds",
    "layers-mix",
    "patterns-vary",
    "larger-models-have-diagonal-offsets",
)


@pytest.mark.parametrize("side", [1, -1, 0])
@pytest.mark.parametrize("name", BUILDERS)
def test_outcome(name, side):
    if name in NEVER_OPPOSITE and side == -1:
        return
    claim, estimate = CLAIMS[name], estimated(name, BUILDERS[name](side))
    if name in DESCRIPTIVE:
        assert estimate.interval is None and estimate.note
        beyond = abs(estimate.value) > claim.least
        assert beyond * np.sign(estimate.value) * claim.paper.sign == side
        return
    outcome = decide(estimate.interval, claim.paper, claim.least)
    expected = {
        1: (Outcome.AS_IN_PAPER, Outcome.SMALLER)[: 1 + bool(claim.paper.size)],
        -1: (Outcome.OPPOSITE,),
        0: (Outcome.UNDECIDED, Outcome.NO_EFFECT),
    }
    assert outcome in expected[side], estimate
    assert estimate.interval[0] <= estimate.value <= estimate.interval[1]


@pytest.mark.parametrize(
    ("name", "side", "value"),
    [
        ("patterns-repeat-cls", 1, 0.9 / 3),
        ("local-kinds", 1, 4),
        ("local-kinds", 0, 0),
        ("layers-mix", 0, 0),
        ("distance-dips", 1, -0.1),
        ("distance-rises", 1, 0.1),
        ("saliency-early", 1, 0.55 - 0.1),
        ("saliency-plateaus", 1, (0.575 - 0.2) - (1.85 / 3 - 0.575)),
        ("saliency-drops", 1, 0.3 - 0.5),
        ("clusters-deepen", 1, 0.7),
        ("spatial-first", 1, 0.1),
        ("objects-above-chance", 1, 0.2),
        ("parts-peak-early", 1, 0.7 - 0.5),
        ("knn-last-best", 1, 0.8 - 0.7),
        ("knn-last-best", -1, 0.6 - 0.7),
        ("offset-heads-early", 1, 3 / 4),
        ("skips-diverge", 1, 0.2 - 0.6),
        ("masked-cls-is-semantic", 1, 0.1),
        ("supervised-most-semantic", -1, -0.1),
        ("larger-is-better", 1, 0.1),
        ("larger-models-have-diagonal-offsets", 1, 1 / 4),
        ("smaller-patches-repeat-more", 1, 0.4 / 3),
        ("masked-spatial-better-than-cls", 1, 0.1),
        ("masked-x-pattern", 0, 0.0),
    ],
)
def test_value(name, side, value):
    actual = estimated(name, BUILDERS[name](side)).value
    np.testing.assert_allclose(actual, value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("before", "behind", "expected"), [(0.8, 0.2, 0.6), (0.5, 0.5, 0)])
def test_one_sidedness_is_half_the_difference_to_the_mirror_image(before, behind, expected):
    share = np.zeros((1, 2, 3, 5))
    share[0, :, 1, 3], share[0, :, 1, 1] = before, behind
    share[0, 1] = 2 * (share[0, 1] + np.eye(1, 15, 7).reshape(3, 5))  # half on the own token
    dims = ("layer", "head", "row_offset", "column_offset")
    aligned = xr.DataArray(share, dims=dims)
    kinds = xr.Dataset({"relative_spread": (("layer", "head"), [[0.3, 0.3]])})
    actual = [
        one_sided(aligned.isel(head=[item]), kinds.isel(head=[item])).value for item in range(2)
    ]
    np.testing.assert_allclose(actual, [expected, expected / 2], atol=1e-12)


def test_a_later_fall_is_no_further_rise():
    results = salient(np.array([0.5, 0.6, 0.5, 0.3, 0.4, 0.3]))
    np.testing.assert_allclose(estimated("saliency-plateaus", results).value, 0.55 - 0.5)


def test_a_head_that_looks_at_a_corner_of_the_image_is_no_offset_head():
    corner = np.zeros((GRID.num_spatial, GRID.num_spatial))
    corner[:, 0] = 1
    mean = mean_of([[corner] * 4], GRID)
    estimate = one_sided(aligned_attention(mean), head_classes(mean))
    assert estimate.value == 0 and estimate.interval is None


@pytest.mark.slow
def test_the_choice_of_the_best_layer_is_not_what_makes_it_the_best(rng):
    """Layers that are all alike: the best of eleven is better than the last only by luck."""
    tasks = [keypoints_of(rng.normal(size=(8, 12))) for _ in range(300)]
    actual = [best_before_last(task) for task in tasks]
    assert np.mean([estimate.interval[0] > 0 for estimate in actual]) < 0.07
    assert np.mean([estimate.interval[1] < 0 for estimate in actual]) < 0.07


def keypoints_of(values):
    """A result of `keypoint_correspondence` of one threshold, from scores (category, layer)."""
    names = [f"block{block:02}/mlp/sum" for block in range(values.shape[1])]
    dims = ("average", "layer", "category", "threshold")
    coords = {"average": ["point"], "layer": names, "threshold": [0.1]}
    return xr.Dataset({"pck": (dims, values.T[None, :, :, None])}, coords)


def test_a_layer_is_chosen_on_the_units_that_it_is_not_scored_on():
    values = np.array([[5.0, 0, 1], [0, 5, 1], [5, 0, 1], [0, 5, 1]])
    estimate = best_before_last(keypoints_of(values))
    assert estimate.value == -1  # each half chooses the layer that is worst in the other


def test_scores_of_videos_count_each_video_once():
    scores = np.concatenate([np.ones((3, 1)), np.tile([0.0, 0.2, 0.5], (3, 2))], axis=1)
    result = videos(scores).isel(object=[0, 1, 2, 3, 4, 5, 5, 4, 5, 4])
    actual, over = task_scores(result)
    assert over == "videos"
    np.testing.assert_allclose(actual, scores[:, 1:])


def test_layers_of_other_depths_are_those_of_the_same_share_of_it():
    first, third, late = phases(np.arange(1, 13))
    assert [first.tolist(), third.tolist()] == [[1, 2], [3, 4, 5, 6]] and late[0] == 7
    first, third, late = phases(np.arange(1, 5))
    assert [first.tolist(), third.tolist(), late.tolist()] == [[1], [2], [3, 4]]
    twelve = clusters(np.arange(12) / 12, [f"block{i:02}/mlp/sum" for i in range(12)])
    estimate = peak(twelve)
    np.testing.assert_allclose(estimate.value, (8 + 9 + 10) / 36 - 11 / 12)


@pytest.mark.slow
def test_the_best_layer_for_k_nn_is_chosen_on_the_images_that_it_is_not_scored_on(rng):
    """Layers that are all alike: the best of eleven is better than the last by chance only."""
    decided = 0
    for _ in range(200):
        result = neighbours(np.full(6, 0.5), examples=200)
        correct = rng.random((6, 2, 2, 200)) < 0.5
        result = result.copy(data=correct.mean(axis=-1))
        result = result.assign_coords(correct=(result.dims, pack_correct(correct)))
        estimate = estimated("knn-last-best", {"knn_accuracy.vit": result})
        low, high = estimate.interval
        decided += low > 0 or high < 0
    assert decided <= 24
    older = result.drop_vars("correct")
    assert estimated("knn-last-best", {"knn_accuracy.vit": older}).interval is None


def test_purities_of_two_layers_are_taken_as_independent():
    estimate = estimated("objects-peak-early", peak_early("objects", 1))
    ends, others = (wilson(count, 400) for count in (280, 200))
    low = 0.2 - np.hypot(0.7 - ends[0], others[1] - 0.5)
    high = 0.2 + np.hypot(ends[1] - 0.7, 0.5 - others[0])
    np.testing.assert_allclose(estimate.interval, [low, high])


def test_layers_of_a_foreign_model_need_no_names_of_blocks():
    result = neighbours([0.2, 0.3, 0.4, 0.6, 0.7, 0.8])
    assert last_knn.estimator(result).value == pytest.approx(0.8)
    foreign = result.assign_coords(layer=["stem", "a", "b", "c", "d", "pool"])
    assert last_knn.estimator(foreign).value == pytest.approx(0.8)
    before = result.assign_coords(layer=["embedding", *BLOCKS[1:]])
    assert blocks_of(before)["layer"].values.tolist() == list(BLOCKS[1:])


NO_CLS = patterns(np.zeros(6), np.zeros(6)).sel(query=["spatial"])
ONE_HEAD = patterns([np.nan] * 2, [np.nan] * 2)
THREE_DISTANCES = xr.DataArray(np.ones((3, 2)), dims=("layer", "head"))
THREE_CLUSTERS = clusters([0.1, 0.2, 0.3], BLOCKS[:3])
ONE_CATEGORY = keypoints(scores(*[0] * 6, units=1))
# Result, claim, and words of the reason why it is not tested.
NOT_TESTED = [
    (NO_CLS, "patterns-repeat-cls", "attention of query 'cls'"),
    (ONE_HEAD, "patterns-repeat-cls", "2 layers of one head"),
    (THREE_DISTANCES, "distance-dips", "at least 4 layers"),
    (THREE_CLUSTERS, "objects-peak-early", "at least 4 layers"),
    (ONE_CATEGORY, "keypoints-before-last", "two categories"),
]


@pytest.mark.parametrize(("result", "name", "words"), NOT_TESTED)
def test_what_cannot_be_measured_says_why(result, name, words):
    first = next(iter(BUILDERS[name](1)))
    with pytest.raises(ValueError, match=re.escape(words)):
        estimated(name, {first: result})


def test_baselines_that_are_not_there_are_named():
    rows = {row.name: row for row in scorecard({}, vit="vit")}
    assert "the untrained ViT" in rows["parts-above-chance"].reason


def test_rows_name_the_papers():
    rows = {row.name: row for row in scorecard({}, **ROLES, **OTHERS)}
    assert rows["offset-heads"].source == WALMER.source
    assert rows["own-patch"].source == RAGHU.source


@pytest.mark.parametrize("peak", [0.01, 0.3])
def test_diffuse_attention_has_no_pattern(peak):
    """It repeats nothing, and whether its peaks vary is not tested."""
    diffuse = {"attention_patterns.vit": patterns(np.zeros(6), np.zeros(6), peak=peak)}
    estimate = estimated("patterns-repeat-cls", diffuse)
    paper = CLAIMS["patterns-repeat-cls"].paper
    assert decide(estimate.interval, paper, 0.1) is Outcome.NO_EFFECT in DECIDED
    with pytest.raises(ValueError, match="not sparse"):
        estimated("patterns-vary", patterns_vary(1) | diffuse)


def test_the_best_layer_is_chosen_on_other_units_than_it_is_scored_on(rng):
    """Table 1: without selection, all of twenty equal layers score their mean; and one is best."""
    values, covered = [], []
    layers = [f"block{block:02}/mlp/sum" for block in range(20)]
    for _ in range(200):
        equal = xr.DataArray(rng.normal(size=(30, 20)), {"layer": layers}, ("unit", "layer"))
        row = best_of_scores(equal, "videos")
        values.append(row["best_score"].item())
        covered.append(row["low"].item() <= 0 <= row["high"].item())
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(200)
    assert np.mean(covered) > 0.91
    row = best_of_scores(equal + 5 * (np.arange(20) == 7), "videos")
    assert row["number"].item() == 8 and row["best_layer"].item() == layers[7]
    np.testing.assert_allclose(row["best_score"], (equal[:, 7] + 5).mean())
    assert row.attrs == {"layers": 20, "units": 30, "over": "videos"}
