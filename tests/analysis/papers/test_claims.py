"""Each claim on results whose truth is known: it holds, it does not, there is no telling."""

import re

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from attention_heads import pixel_distances
from scipy import ndimage, stats
from study_parts import cka_result, model_like

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.engine import estimates
from vit_tf.analysis.engine.estimates import OUTCOMES, claim_outcome, is_beyond
from vit_tf.analysis.engine.results import pack_correct
from vit_tf.analysis.papers.raghu import RAGHU
from vit_tf.analysis.papers.raghu.section5_locality import extent
from vit_tf.analysis.papers.raghu.section6_skips import skips_partition as without_skips
from vit_tf.analysis.papers.raghu.section8_scale import FIGURE_G
from vit_tf.analysis.papers.walmer.appendix_d_similarity import FIGURE_23, skips_diverge
from vit_tf.analysis.similarity.localization import input_patches
from vit_tf.analysis.study.claims import (
    _models_by_role,
    decide,
    evaluate,
    scorecard,
    scorecard_dataset,
)
from vit_tf.analysis.study.figure import all_figures
from vit_tf.features.layers import sublayers

ROLES = {"vit": "vit", "resnet": "bit", "gap": "gap", "without": "bare", "block": "block01"}
OTHERS = {"mixer": "mixer", "fraction": "vit-3", "resnet_fraction": "bit-3", "larger": "wide"}
OTHERS |= {"before": "half", "after": "tuned-half", "far": "tuned-far"}
OTHERS |= {"hybrid": "stem", "tuned": "tuned"}
COPIES = [{"vit": "fresh-vit", "resnet": "fresh-bit", "gap": "fresh-gap"}]  # untrained
EXPECTED = {1: "replicates", -1: "does not replicate", 0: "inconclusive"}
# Numbers of which there is no honest interval: their value lies on a side of the threshold.
DESCRIPTIVE = (
    *("early-correspondence", "first-block-mixes", "last-block-global", "local-heads-resemble"),
    *("early-fields", "branch-fields", "skip-influence", "less-data-less-local"),
)
LAYERS = [f"block{block:02}/{site}/sum" for block in range(4) for site in ("attention", "mlp")]
NOISE = np.random.default_rng(7).normal(size=(64, 64))


FACTS = {"examples": 1000, "num_classes": 10}


def uniform_structure(side):
    vit, bit = np.full((8, 8), 0.5 + 0.1 * side), np.full((8, 8), 0.5)
    return {
        "cka.vit": cka_result(vit, LAYERS, stderr=0.01),
        "cka.bit": cka_result(bit, LAYERS, stderr=0.01),
    }


def early_correspondence(side):
    best = {1: [0, 0, 1, 1, 2, 2], -1: [12, 13, 14, 15, 16, 19], 0: [0, 1, 9, 4, 8, 7]}[side]
    values = np.zeros((20, 12))
    values[best + [19] * 6, range(12)] = 0.9
    names = [f"layer{index}" for index in range(20)]
    return {"cka.vit.bit": cka_result(values, names, names[:12])}


def distances(*rows):
    """A result of `attention_distance`, from distances in units of even attention."""
    grid = TokenGrid(4, 6, 1, 8)
    even = pixel_distances(grid).mean()
    return xr.DataArray(even * np.array(rows), dims=("layer", "head"), attrs=vars(grid))


def kinds(*rows):
    """A result of `head_classes`, from the heads of each layer: l for local, g for global."""
    words = {"l": "soft", "g": "global"}
    values = [[words[letter] for letter in row] for row in rows]
    return xr.Dataset({"kind": (("layer", "head"), values)})


# The heads of the first and the last layer, by side.
FIRST_BLOCK_MIXES = {1: ("llgg", "gggg"), -1: ("gggg", "llgg"), 0: ("gggg", "gggg")}
LAST_BLOCK_GLOBAL = {
    1: ([0.5] * 8, [0.8] * 7 + [0.6]),
    -1: ([0.5] * 8, [0.2] * 7 + [0.9]),
    0: ([0.5] * 8, [0.9] * 4 + [0.2] * 4),
}


def last_block_global(side, peak=0.3):
    peaks = xr.DataArray(
        np.full((1, 2, 8), peak), dims=("query", "layer", "head"), coords={"query": ["spatial"]}
    )
    return {
        "attention_distance.vit": distances(*LAST_BLOCK_GLOBAL[side]),
        "attention_patterns.vit": xr.Dataset({"peak": peaks}),
    }


def local_heads_resemble(side):
    distance = np.linspace(2, 20, 16).reshape(2, 8)
    rank = NOISE[:2, :8] if side == 0 else -side * distance
    cka = rank[:, :, None] * np.array([0.1, 0.2]) + NOISE[0, :2]
    data = {"cka": (("order", "subset", "layer"), cka), "distance": (("order", "subset"), distance)}
    return {
        "head_similarity.vit.bit": xr.Dataset(data),
        "attention_distance.vit": distances([0.3, 0.5, 0.8, 0.9]),
    }


def fields(names, sigmas, size=32, extra=0.0):
    """Receptive fields: a Gaussian about the centre, and a share `extra` in the centre patch."""
    place = np.arange(size) - size / 2 + 0.5
    squares = place[:, None] ** 2 + place**2
    values = np.stack([np.exp(-squares / (2 * sigma**2)) for sigma in sigmas])
    values /= values.sum(axis=(1, 2), keepdims=True)
    values[:, 16:20, 16:20] += np.reshape(extra, (-1, 1, 1)) / 16
    return xr.DataArray(values, dims=("layer", "row", "column"), coords={"layer": names})


def early_fields(side):
    """The trained models differ from the untrained, which are alike."""
    wide, narrow = [6, 7, 8, 9, 1, 1], [2, 2, 3, 12]
    vit, bit = {1: (wide, narrow), -1: (narrow, wide), 0: (wide, wide)}[side]
    names = [f"layer{index}/sum" for index in range(6)]
    pairs = {"vit": vit, "bit": bit, "fresh-vit": wide, "fresh-bit": wide}
    return {
        f"receptive_field.{name}": fields(names[: len(sigmas)], sigmas)
        for name, sigmas in pairs.items()
    }


def branch_fields(side):
    """Shares of the centre that fall in the later sublayers, in each half by another amount."""
    results = {"attention_distance.vit": xr.DataArray([[1.0]], attrs={"stride": 4})}
    results["attention_distance.fresh-vit"] = results["attention_distance.vit"]
    for name, late in (("vit", 0.4 + 0.3 * side), ("fresh-vit", 0.4)):
        shift = np.array([0.9, 0.9, late, late])
        sites = [f"block{block:02}/attention" for block in range(4)]
        total = fields([f"{site}/sum" for site in sites], [5] * 4, extra=0.9 + np.zeros(4))
        branch = fields([f"{site}/branch" for site in sites], [5] * 4, extra=0.9 - shift)
        results |= {f"receptive_field.{name}": total, f"receptive_field_branch.{name}": branch}
    return results


def ratios(cls, spatial, prefix=1, registers=()):
    """A result of `skip_ratio`, from logarithms of shape (layer,)."""
    logs = np.stack([cls, *registers, *[spatial] * 5], axis=1)
    dataset = xr.Dataset({"norm_ratio": (("layer", "token"), np.exp(logs))})
    return dataset.assign_attrs(prefix=prefix)


def cls_skips(side):
    """CLS over spatial falls over the blocks, or rises; attention sites are far from MLP sites."""
    ramp = side * np.linspace(1.0, -1.0, 12) + 0.02 * NOISE[0, :12]
    logs = np.stack([ramp + 3.0, ramp - 3.0], axis=1).ravel()
    layers = [f"block{block:02}/{site}" for block in range(12) for site in ("attention", "mlp")]
    return {"skip_ratio.vit": ratios(logs, np.zeros(24)).assign_coords(layer=layers)}


def skip_influence(side):
    vit, bit = NOISE[0, :12] * 0.1 + side, NOISE[0, :8] * 0.1
    return {"skip_ratio.vit": ratios(vit, vit), "skip_ratio.bit": of_resnet(bit, np.zeros(8))}


def of_resnet(logs, negative_share):
    """A result of `skip_ratio` of a ResNet."""
    return ratios(logs, logs, prefix=0).assign(negative_share=("layer", negative_share))


def skips_partition(side):
    taps = sublayers([f"block{b:02}/mlp/{w}" for b in range(3) for w in ("norm", "sum")])
    intact = cka_result(np.full((6, 6), 0.6), taps, stderr=0.02)
    without = cka_result(np.full((6, 6), 0.6 - 0.3 * side), taps, stderr=0.02)
    return {"cka.vit": intact, "cka.bare": without}


def localization(own, prefix=1, rest=None, ranks=None):
    """A result of `localization` on a grid of 4 x 4, from the CKA with one's own patch.

    The others have 0.2, and one of them 0.3; the first layer knows nothing. `rest` and `ranks` are
    the shares without each batch; by default they vary a little around the values.
    """
    maps = np.full((2, prefix + 16, 16), 0.2)
    for token, value in enumerate(own):
        maps[1, prefix + token, (token + 1) % 16] = 0.3
        maps[1, prefix + token, token] = value
    place = np.arange(-prefix, 16)
    row, column = (np.where(place < 0, np.nan, part) for part in np.divmod(place, 4))
    share = np.mean(np.array(own) > 0.3)
    rank = np.mean([1 if x > 0.3 else 14 / 15 if x > 0.2 else 0.0 for x in own])
    swing = 0.002 * np.array([1.0, -1.0, 0.5, -0.5])
    return xr.DataArray(
        maps.reshape(2, -1, 4, 4),
        dims=("layer", "token", "row", "column"),
        coords={"token_row": ("token", row), "token_column": ("token", column)},
        attrs={
            "examples": 400,
            "own_share_without_batch": share + swing if rest is None else rest,
            "rank_without_batch": rank + swing * 0.9 * (1 + prefix) if ranks is None else ranks,
        },
    )


OWN_PATCH = {1: [0.9] * 16, -1: [0.1] * 16, 0: [0.9, 0.1] * 8}
VIT_LOCALIZES_MORE = {1: (0.9, 0.1), -1: (0.1, 0.9), 0: (0.9, 0.9)}


def vit_localizes_more(side):
    vit, bit = VIT_LOCALIZES_MORE[side]
    return {
        "localization.vit": localization([vit] * 16),
        "localization.bit": localization([bit] * 15 + [0.25], prefix=0),
    }


def cls_localizes_more(side):
    """The trained models differ from the untrained, which are alike."""
    vit, gap = VIT_LOCALIZES_MORE[side]
    return {
        "localization.vit": localization([vit] * 16),
        "localization.gap": localization([gap] * 16, prefix=0),
        "localization.fresh-vit": localization([0.9] * 16, ranks=1 + 0.002 * NOISE[1, :4]),
        "localization.fresh-gap": localization([0.9] * 16, prefix=0),
    }


def tokens_classify(other):
    def build(side):
        last = np.full(16, 0.6)
        cls = np.stack([np.ones(17), np.append(0.95, last)])
        free = np.stack([np.zeros(16), last + 0.1 * side])
        dims = ("layer", "token")
        return {
            "ridge_probe_tokens.vit": xr.DataArray(cls, dims=dims, attrs={"prefix": 1} | FACTS),
            f"ridge_probe_tokens.{other}": xr.DataArray(
                free, dims=dims, attrs={"prefix": 0} | FACTS
            ),
        }

    return build


def data_hunger(side):
    small = 0.7 + 0.02 * NOISE[3, :6] - side * np.repeat([0.0, 0.3], 3)
    small = np.full(6, 0.7) if side == 0 else small
    dims = ("fraction", "layer")
    data = {
        "cka": (dims, np.stack([np.full(6, 0.9), small])),
        "stderr": (dims, np.full((2, 6), 0.01)),
    }
    attrs = {"examples": 1000, "batch_size": 100}
    return {"data_scale.vit": xr.Dataset(data, {"fraction": [1.0, 0.1]}, attrs)}


def mixer_like_vit(side):
    """Each block of the Mixer has one match, with another block of the ViT than of the ResNet."""
    results = {}
    for name, match in (("vit", 0.6 + 0.2 * side), ("bit", 0.6)):
        cka = np.full((8, 8), 0.1)
        cka[np.arange(8), [0, 3, 2, 5, 4, 7, 6, 1]] = match
        results[f"cka.mixer.{name}"] = cka_result(cka, LAYERS, stderr=0.01)
    return results


def less_data_less_local(side):
    local = {1: 0.4, -1: 0.1, 0: 0.2}[side]
    return {
        "attention_distance.vit": distances([0.9, 0.2], [0.9, 0.2], [0.1, 0.1], [0.1, 0.1]),
        "attention_distance.vit-3": distances([0.9, local], [0.9, local], [0.9, 0.9], [0.9, 0.9]),
    }


def probes(accuracies, images=1000, seed=5):
    """A result of `ridge_probe` with a selected penalty, whose correct images are spread."""
    names = [f"block{block:02}/mlp/sum" for block in range(len(accuracies))]
    ranks = np.argsort(np.random.default_rng(seed).random((len(accuracies), images)), axis=1)
    correct = ranks < np.round(images * np.array(accuracies))[:, None]
    coords = {"layer": names, "correct": ("layer", pack_correct(correct))}
    attrs = {"examples": images, "num_classes": 10}
    return xr.DataArray(correct.mean(axis=1), dims="layer", coords=coords, attrs=attrs)


def native_readouts_equal(side):
    gap = {1: 0.8, -1: 0.6, 0: 0.75}[side]
    return {
        "ridge_probe_first.vit": probes([0.1, 0.1, 0.1, 0.8]),
        "ridge_probe.gap": probes([0.9, 0.1, 0.1, gap]),
    }


def pooled_tokens_plateau(side):
    """Both rise until two thirds of the depth; then one of them only."""
    first, mean = {1: (0.9, 0.7), -1: (0.7, 0.9), 0: (0.9, 0.9)}[side]
    return {
        "ridge_probe_first.vit": probes([0.2, 0.3, 0.4, 0.6, 0.6, first]),
        "ridge_probe.vit": probes([0.6, 0.6, 0.7, 0.6, 0.6, mean], seed=6),
    }


def gap_tokens_become_alike(side):
    early, late = {1: (0.2, 0.78), -1: (0.5, 0.4), 0: (0.3, 0.6)}[side]
    return {
        "ridge_probe.gap": probes([0.5, 0.5, 0.6, 0.8]),
        "ridge_probe_first.gap": probes([early, early, 0.7, late]),
    }


def better_middle(name, other):
    def build(side):
        middle = 0.6 + 0.2 * side
        return {
            f"ridge_probe.{name}": probes([0.9, 0.9, middle, middle, 0.9, 0.9]),
            f"ridge_probe.{other}": probes([0.2, 0.2, 0.6, 0.6, 0.2, 0.2]),
        }

    return build


def larger_models_need_data(side):
    """The largest gap is at another fraction, in the lower half, and between two seeds."""
    results = {}
    for name, late, control in (("vit", 0.6, 0.9), ("wide", 0.3 - 0.2 * side, 0.6)):
        cka = np.stack([np.full(6, 0.3), np.repeat([0.1, late], 3), np.repeat([0.9, control], 3)])
        data = {
            "cka": (("fraction", "layer"), cka),
            "stderr": (("fraction", "layer"), 0 * cka + 0.01),
        }
        attrs = {"examples": 1000, "batch_size": 100}
        rows = slice(None) if name == "vit" else slice(1, None)
        result = xr.Dataset(data, {"fraction": [0.03, 0.1, 1.0]}, attrs)
        results[f"data_scale.{name}"] = result.isel(fraction=rows)
    return results


def fine_tuned(first, rest):
    """CKA with the model before, of the first two blocks and of the rest.

    The embedding, which is no block, differs most.
    """
    names = ["embedding", *(f"block{block:02}/mlp/sum" for block in range(6))]
    cka = np.array([0.0, *[first] * 2, *[rest] * 4])
    data = {"cka": ("layer", cka), "stderr": ("layer", np.full(7, 0.01))}
    attrs = {"examples": 1000, "batch_size": 100}
    return xr.Dataset(data, {"layer": names}, attrs)


def fine_tuning(after):
    return lambda side: {f"fine_tuning.half.{after}": fine_tuned(0.6 + 0.2 * side, 0.6)}


def far_domains_change_more(side):
    """What differs between the domains are the last blocks."""
    near, far = fine_tuned(0.9, 0.6), fine_tuned(0.9, 0.6 - 0.3 * side)
    return {"fine_tuning.half.tuned-half": near, "fine_tuning.half.tuned-far": far}


BUILDERS = {
    "uniform-structure": uniform_structure,
    "early-correspondence": early_correspondence,
    "mixer-like-vit": mixer_like_vit,
    "first-block-mixes": lambda side: {"head_classes.vit": kinds(*FIRST_BLOCK_MIXES[side])},
    "last-block-global": last_block_global,
    "less-data-less-local": less_data_less_local,
    "local-heads-resemble": local_heads_resemble,
    "early-fields": early_fields,
    "branch-fields": branch_fields,
    "cls-skips-first": cls_skips,
    "skip-influence": skip_influence,
    "skips-partition": skips_partition,
    "skips-cost-accuracy": lambda side: {
        "accuracy.vit": (0.9, 1000),
        "accuracy.bare": (0.9 - 0.05 * side, 1000),
    },
    "own-patch": lambda side: {"localization.vit": localization(OWN_PATCH[side])},
    "cls-localizes-more": cls_localizes_more,
    "vit-localizes-more": vit_localizes_more,
    "gap-tokens-classify": tokens_classify("gap"),
    "resnet-tokens-classify": tokens_classify("bit"),
    "native-readouts-equal": native_readouts_equal,
    "pooled-tokens-plateau": pooled_tokens_plateau,
    "gap-tokens-become-alike": gap_tokens_become_alike,
    "larger-vits-have-better-middle-layers": better_middle("wide", "bit"),
    "data-improve-middle-layers": better_middle("vit", "vit-3"),
    "data-hunger": data_hunger,
    "larger-models-need-data": larger_models_need_data,
    "fine-tuning-keeps-first-blocks": fine_tuning("tuned-half"),
    "far-fine-tuning-keeps-first-blocks": fine_tuning("tuned-far"),
    "far-domains-change-more": far_domains_change_more,
}


def evaluated(name, results):
    """The claim of that name."""
    claims = scorecard(results, **ROLES, copies=COPIES, others=OTHERS)
    return next(claim for claim in claims if claim.name == name)


def test_every_claim_has_its_cases():
    figures = [figure for figure in all_figures() if figure.paper is RAGHU]
    assert list(BUILDERS) == [item.name for figure in figures for item in figure.claims]


@pytest.mark.parametrize("side", EXPECTED)
@pytest.mark.parametrize("name", BUILDERS)
def test_outcome(name, side):
    claim = evaluated(name, BUILDERS[name](side))
    assert claim.least > 0
    others = {"above": "below", "below": "above"}
    where = claim.threshold, claim.direction, claim.least
    opposite = claim.threshold, others[claim.direction], claim.least
    assert is_beyond(claim.value, *where) - is_beyond(claim.value, *opposite) == side
    if name in DESCRIPTIVE:
        assert np.isnan([claim.low, claim.high]).all() and "No interval: " in claim.explanation
    else:
        assert claim.low < claim.high and claim.low <= claim.value <= claim.high
        assert decide(claim.low, claim.high, claim, ()) == EXPECTED[side], claim
        assert "Interval: " in claim.explanation
    # A claim about how models are trained has no mark from one run of each.
    if claim.about == "runs":
        assert claim.outcome == "one run"
    elif name in DESCRIPTIVE:
        assert claim.outcome == "descriptive"
    else:
        assert claim.outcome == EXPECTED[side]


@pytest.mark.parametrize(
    ("name", "side", "value"),
    [
        ("uniform-structure", 1, 0.1),
        ("early-correspondence", 1, 2 * 1.5 / 20),
        ("first-block-mixes", 1, 0.5),
        ("last-block-global", 1, 1.0),
        ("local-heads-resemble", 1, -1),
        ("skips-partition", 1, -0.3),
        ("skips-cost-accuracy", 1, 0.05),
        ("own-patch", 1, 1),
        ("cls-localizes-more", 1, 1),
        ("gap-tokens-classify", 1, 0.1),
        ("mixer-like-vit", 1, 0.2),
        ("less-data-less-local", 1, 0.2),
        ("native-readouts-equal", -1, 0.2),
        ("pooled-tokens-plateau", 1, 0.3 - 0.1),
        ("gap-tokens-become-alike", 1, 0.3 - 0.02),
        ("data-improve-middle-layers", -1, -0.2),
        ("larger-models-need-data", 1, 0.2),
        ("fine-tuning-keeps-first-blocks", 1, 0.2),
        ("far-domains-change-more", 1, 0.3 * 4 / 6),
    ],
)
def test_value(name, side, value):
    np.testing.assert_allclose(evaluated(name, BUILDERS[name](side)).value, value, rtol=1e-9)


def test_claims_that_match_images_between_models_have_the_value_of_permuted_images():
    """It is the same statistic of other values; claims within a model have none."""
    results = BUILDERS["mixer-like-vit"](1)
    assert np.isnan(evaluated("mixer-like-vit", results).permuted)
    for number, name in enumerate(results):
        by_chance = results[name]["cka"].copy(
            data=0.01
            * np.abs(NOISE[: results[name].sizes["layer_x"], : results[name].sizes["layer_y"]])
            + number
        )
        results[name] = results[name].assign(permuted=by_chance)
    others = {name: result.assign(cka=result["permuted"]) for name, result in results.items()}
    claim = evaluated("mixer-like-vit", results)
    assert claim.permuted == evaluated("mixer-like-vit", others).value != claim.value
    assert claim.value == evaluated("mixer-like-vit", BUILDERS["mixer-like-vit"](1)).value
    saved = scorecard_dataset([claim])
    assert saved["permuted"].values == [claim.permuted]
    alone = evaluated("uniform-structure", results | uniform_structure(1))
    assert np.isnan(alone.permuted) and alone.outcome == "one run"


def test_a_best_match_needs_a_least_similarity():
    names = [f"layer{index}" for index in range(20)]
    noise = 0.05 * np.abs(NOISE[:20, :12])
    noise[:3, :6] += 0.2  # the lowest layers of the ViT, but none is similar
    claim = evaluated("early-correspondence", {"cka.vit.bit": cka_result(noise, names, names[:12])})
    assert claim.outcome == "not tested" and "0 of 6" in claim.explanation
    strong = early_correspondence(1)["cka.vit.bit"]
    strong["cka"].values[:, 4] *= 0.5  # one without a match
    claim = evaluated("early-correspondence", {"cka.vit.bit": strong})
    assert claim.outcome == "one run"
    assert claim.value == pytest.approx(2 * np.mean([0.5, 0.5, 1.5, 1.5, 2.5]) / 20)


def test_layers_that_all_match_the_embedding_do_not_correspond():
    values = np.full((20, 12), 0.6)
    values[0] = 0.9
    names = ["embedding", *(f"layer{index}" for index in range(1, 20))]
    result = cka_result(values, names, names[:12])
    claim = evaluated("early-correspondence", {"cka.vit.bit": result})
    assert claim.outcome == "not tested" and "embedding" in claim.explanation


def test_the_second_training_on_all_data_is_subtracted():
    """Lines that fall as much on all data as on a tenth of them do not show what data do."""
    result = data_hunger(1)["data_scale.vit"]
    equal = result.assign(cka=result["cka"].copy(data=np.stack([result["cka"].values[1]] * 2)))
    claim = evaluated("data-hunger", {"data_scale.vit": equal})
    assert claim.value == pytest.approx(0, abs=1e-12)
    assert decide(claim.low, claim.high, claim, ()) == "inconclusive"
    claim = evaluated("data-hunger", {"data_scale.vit": result.isel(fraction=[1])})
    assert claim.outcome == "not tested" and "second" in claim.explanation


@pytest.mark.parametrize("name", ["vit", "wide"])
def test_larger_models_need_a_control_of_each(name):
    results = larger_models_need_data(1)
    key = f"data_scale.{name}"
    results[key] = results[key].isel(fraction=slice(None, -1))
    claim = evaluated("larger-models-need-data", results)
    assert claim.outcome == "not tested" and "second seed of each" in claim.explanation


def perfect(rows, columns):
    """A result of `localization` of tokens that resemble their own patch alone."""
    count = rows * columns
    place = zip(("token_row", "token_column"), np.divmod(np.arange(count), columns), strict=True)
    return xr.DataArray(
        np.eye(count).reshape(1, count, rows, columns),
        dims=("layer", "token", "row", "column"),
        coords={name: ("token", values) for name, values in place},
    )


def test_ten_of_64_tokens_are_not_most():
    result = perfect(8, 8)
    result.values[0, 10:] = result.values[0, 10:, ::-1]  # the row of a patch turned round
    shares = 10 / 64 + 0.01 * np.array([-1, 1, 1, -1])
    result.attrs |= {"examples": 400, "own_share_without_batch": shares}
    claim = evaluated("own-patch", {"localization.vit": result})
    assert claim.outcome == "does not replicate" and claim.value == 10 / 64


@pytest.fixture(scope="module")
def smooth():
    """Images of 32 x 32 pixels whose neighbouring pixels are alike."""
    values = np.random.default_rng(0).normal(size=(256, 32, 32, 3))
    return ndimage.gaussian_filter(values, (0, 3, 3, 0)).astype("float32") * 10


def localized(images, patch, represent=lambda patches: patches):
    """`localization` of a model whose tokens are made of the patches of a grid."""
    grid = TokenGrid.of_patches((32, 32), patch)
    features = lambda batch: {"last": represent(input_patches(batch, grid))}  # noqa: E731
    return analysis.localization(features, images, grid=grid)


def blocks_of_patches(patches):
    """Tokens of an 8 x 8 grid that hold all four patches of their block each."""
    blocks = tf.transpose(tf.reshape(patches, (-1, 4, 2, 4, 2, 48)), (0, 1, 3, 2, 4, 5))
    blocks = tf.reshape(blocks, (-1, 4, 1, 4, 1, 192)) * tf.ones((1, 1, 2, 1, 2, 1))
    return tf.reshape(blocks, (-1, 64, 192))


@pytest.mark.slow
def test_a_perfect_localiser_is_as_good_on_any_grid(smooth):
    coarse = localized(smooth, 8)
    for fine in (localized(smooth, 4), localized(smooth, 4, blocks_of_patches)):
        for pair in ((fine, coarse), (coarse, fine), (fine, fine)):
            results = dict(zip(("localization.vit", "localization.bit"), pair, strict=True))
            claim = evaluated("vit-localizes-more", results)
            assert (claim.outcome, claim.value) == ("one run", 0)
    turned = localized(smooth, 4, lambda patches: tf.reverse(patches, [1]))
    claim = evaluated(
        "vit-localizes-more", {"localization.vit": coarse, "localization.bit": turned}
    )
    assert claim.outcome == "one run" and claim.value > 0.3


def test_grids_that_are_not_comparable_are_refused():
    coarse, fine, odd = perfect(4, 4), perfect(8, 8), perfect(3, 3)
    claim = evaluated("vit-localizes-more", {"localization.vit": coarse, "localization.bit": odd})
    assert claim.outcome == "not tested" and "3 x 3" in claim.explanation
    claim = evaluated("cls-localizes-more", {"localization.vit": fine, "localization.gap": odd})
    assert claim.outcome == "not tested" and "8 x 8" in claim.explanation


@pytest.mark.slow
def test_a_pre_activation_resnet_does_not_test_what_the_paper_says_of_another():
    bit = vit_tf.BiT((16, 16, 3), (2, 2), 0.5, 3, stem="small")
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    result = analysis.skip_ratio(bit, images)
    assert (result.negative_share > 0.2).all()
    vit = ratios(1 + 0.1 * NOISE[0, :8], 1 + 0.1 * NOISE[0, :8])
    claim = evaluated("skip-influence", {"skip_ratio.vit": vit, "skip_ratio.bit": result})
    assert claim.outcome == "not tested" and "other architecture" in claim.explanation


@pytest.mark.slow
def test_skips_of_a_post_activation_resnet_are_identities_behind_a_relu():
    """Branches are the skip times a known number, but for a shortcut that projects."""
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self, width, filters, scale):
            super().__init__()
            self.conv = torch.nn.Conv2d(width, filters, 1, filters // width, bias=False)
            self.shortcut = torch.nn.Sequential()
            if filters == width:
                self.conv.weight.data = scale * torch.eye(width)[:, :, None, None]
            else:
                self.shortcut.append(torch.nn.Conv2d(width, filters, 1, 2, bias=False))

        def forward(self, x):
            branch = self.conv(x)
            branch += self.shortcut(x)
            return torch.relu(branch)

    torch.manual_seed(0)
    stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.ReLU())
    units = [Block(8, 8, 0.5), Block(8, 8, 0.25), Block(8, 16, None), Block(16, 16, 0.5)]
    resnet = torch.nn.Sequential(stem, torch.nn.Sequential(*units)).eval()
    images = np.random.default_rng(0).uniform(-1, 1, (6, 16, 16, 3)).astype("float32")
    result = analysis.skip_ratio(resnet, images)
    is_identity = np.array([True, True, False, True])
    np.testing.assert_array_equal(result.negative_share == 0, is_identity)
    ratio = np.nanmean(result.norm_ratio.values, axis=1)
    np.testing.assert_allclose(ratio[is_identity], [2, 4, 2], rtol=1e-5)
    vit = ratios(np.full(4, np.log(8.0)), np.full(4, np.log(8.0)))
    claim = evaluated("skip-influence", {"skip_ratio.vit": vit, "skip_ratio.bit": result})
    assert claim.value == pytest.approx(8 / np.cbrt(2 * 4 * 2), rel=1e-5)


def test_a_model_at_chance_does_not_test_what_its_skips_are_worth():
    accuracy = {"vit": (0.105, 1000, None, 10), "bare": (0.1, 1000, None, 10)}
    cards = {card.name: card for card in scorecard({}, accuracy=accuracy, **ROLES)}
    card = cards["skips-cost-accuracy"]
    assert card.outcome == "not tested" and "chance" in card.explanation


def test_tokens_at_chance_do_not_classify_better_than_others():
    tokens = {
        name: result.copy(data=0 * result + 0.1)
        for name, result in tokens_classify("gap")(1).items()
    }
    claim = evaluated("gap-tokens-classify", tokens)
    assert claim.outcome == "not tested" and "chance" in claim.explanation


def test_extent_of_an_even_field_is_one_wherever_a_narrow_one_lies():
    even = xr.DataArray(np.ones((1, 8, 12)), dims=("layer", "row", "column"))
    np.testing.assert_allclose(extent(even), 1)
    spots = np.zeros((2, 8, 12))
    spots[0, 2:4, 3] = spots[1, 5:7, 10] = 1
    spots = even.isel(layer=[0, 0]).copy(data=spots)
    np.testing.assert_allclose(extent(spots), 0.5 / np.sqrt((63 + 143) / 12))


def test_without_its_skips_a_block_partitions_only_layers_that_both_models_have():
    intact, without = skips_partition(1).values()
    without = without.isel(layer_x=slice(1, None), layer_y=slice(None, -1))
    estimate = without_skips(intact, without, "block01")
    np.testing.assert_allclose(estimate.value, -0.3)
    with pytest.raises(ValueError, match="Received: block='block00'"):
        without_skips(intact, without, "block00")


def test_without_standard_errors_a_difference_of_cka_is_descriptive():
    results = {name: result.drop_vars("stderr") for name, result in uniform_structure(1).items()}
    claim = evaluated("uniform-structure", results)
    assert claim.outcome == "one run" and "two batches" in claim.explanation
    assert np.isnan(claim.low)
    one_batch = {
        name: result.assign(stderr=result.cka * np.nan) for name, result in results.items()
    }
    again = evaluated("uniform-structure", one_batch)
    assert (again.outcome, again.value) == (claim.outcome, claim.value)


def residual(gap):
    """A result of `residual_cka` of four sites, whose upper half is lower by `gap`."""
    cka = np.diag([0.8, 0.8, 0.8 - gap, 0.8 - gap])
    sites = [f"block{block:02}/attention" for block in range(4)]
    return cka_result(cka, *([f"{s}/{end}" for s in sites] for end in ("branch", "skip")), 0.01)


def test_claims_on_several_sets_of_models_are_corrected_for_their_number():
    """A difference beyond the least of interest by p = 0.03 is not so among three such ones."""
    gap = skips_diverge.least + stats.t.ppf(0.985, 18) * 0.01 * np.sqrt(2)
    results, models = {}, []
    for count, expected in ((1, "replicates"), (2, "inconclusive"), (3, "inconclusive")):
        name = f"vit{count}"
        results[f"residual_cka.{name}"] = residual(gap)
        models.append(model_like(name, "vit"))
        claims = evaluate([FIGURE_23], models, results)
        assert [claim.outcome for claim in claims] == [expected] * count
        assert all(("Holm" in claim.explanation) == (count > 1) for claim in claims)
    results["residual_cka.vit1"] = residual(0.6)
    outcomes = {claim.name: claim.outcome for claim in evaluate([FIGURE_23], models, results)}
    assert list(outcomes.values()) == ["replicates", "inconclusive", "inconclusive"]


def test_an_inconclusive_claim_states_how_many_images_would_decide_it():
    """Twice the images of a gap that is beyond the least of interest by its half-width or so."""
    models, cka = [model_like("vit", "vit")], residual(0.0)
    for gap, is_known in ((0.07, True), (0.02, False), (0.6, False)):
        result = residual(gap)
        noise = 0.02 * NOISE[4, :10, None, None] * np.sign(np.arange(4) - 1.5)[:, None]
        rest = result["cka"].values + noise
        result = result.drop_vars("stderr").assign(
            leave_one_out=(("batch", *cka["cka"].dims), rest)
        )
        (claim,) = evaluate([FIGURE_23], models, {"residual_cka.vit": result})
        assert np.isfinite(claim.needed) == is_known == ("would decide" in claim.explanation)
        assert not is_known or claim.needed > 1000


def test_what_untrained_copies_do_as_well_is_not_learned():
    """The same difference in the copies: no mark; the other way round, or a small one: a mark."""
    models = [model_like("vit", "vit")]
    models += [model_like(f"{role} vit", role, base=models[0]) for role in ("untrained", "copy")]
    for gaps, expected in (
        ((0.3, 0.2), "also holds untrained"),
        ((0.04, 0.02), "replicates"),
        ((-0.3, 0.0), "replicates"),
    ):
        results = {"residual_cka.vit": residual(0.3)}
        for model, gap in zip(models[1:], gaps, strict=True):
            results[f"residual_cka.{model.slug}"] = residual(gap)
        (claim,) = evaluate([FIGURE_23], models, results)
        assert claim.outcome == expected
        np.testing.assert_allclose(claim.untrained, np.negative(gaps), atol=1e-12)


def test_one_unit_gives_no_interval_and_no_outcome():
    estimate = estimates.student(np.array([5.0]), "layers")
    assert estimate.value == 5 and np.isnan(estimate.low) and "two layers" in estimate.how
    assert claim_outcome(estimate.low, estimate.high, 0.0, "above") == "descriptive"


@pytest.mark.parametrize(
    ("low", "high", "direction", "expected"),
    [
        (0.1, 0.2, "above", "replicates"),
        (0.1, 0.2, "below", "does not replicate"),
        (-0.2, -0.1, "below", "replicates"),
        (-0.2, -0.1, "above", "does not replicate"),
        (0.0, 0.2, "above", "inconclusive"),
        (-0.2, 0.0, "below", "inconclusive"),
        (0.0, 0.0, "above", "descriptive"),  # without a width it is no interval
    ],
)
def test_the_threshold_itself_is_on_neither_side(low, high, direction, expected):
    assert claim_outcome(low, high, 0.0, direction) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.2, "inconclusive"),
        (0.11, 0.2, "replicates"),
        (-0.2, -0.11, "does not replicate"),
        (-0.2, -0.05, "inconclusive"),
        (0.01, 0.02, "inconclusive"),
    ],
)
def test_a_mark_needs_the_smallest_effect_of_interest(low, high, expected):
    assert claim_outcome(low, high, 0.0, "above", 0.1) == expected


def test_heads_that_attend_uniformly_are_not_global():
    claim = evaluated("last-block-global", last_block_global(1, peak=0.01))
    assert claim.outcome == "not tested" and "almost uniformly" in claim.explanation


def test_claims_on_the_heads_of_one_model_do_not_contradict_each_other():
    """A first block that mixes local and global heads is a layer that does."""
    results = {"head_classes.vit": kinds("llgg", "gggg", "gggg")}
    assert evaluated("first-block-mixes", results).value == 0.5
    assert evaluated("layers-mix", results).value == pytest.approx(1 / 3)
    alike = {"head_classes.vit": kinds("gggg", "gggg", "gggg")}
    assert evaluated("first-block-mixes", alike).value == evaluated("layers-mix", alike).value == 0


def test_few_images_do_not_test_where_tokens_come_from():
    """Shares that rise with the number of images: 0.3 with half of them, 0.5 with all."""
    rising = localization([0.9, 0.1] * 8, rest=np.array([0.3, 0.31, 0.29, 0.3]))
    claim = evaluated("own-patch", {"localization.vit": rising})
    assert claim.outcome == "not tested" and "400 images" in claim.explanation
    assert re.search(r"About \d+ images would do", claim.explanation)
    one_batch = localization([0.9] * 16, rest=np.array([]))
    assert evaluated("own-patch", {"localization.vit": one_batch}).outcome == "not tested"


def test_what_cannot_be_measured_says_why():
    cards = {c.name: c for c in scorecard(uniform_structure(1), vit="vit", resnet="bit")}
    assert {card.outcome for card in cards.values()} < set(OUTCOMES)
    assert cards["uniform-structure"].outcome == "one run"
    assert cards["uniform-structure"].results == ("cka.vit", "cka.bit")
    missing = {name: card for name, card in cards.items() if card.outcome == "not tested"}
    assert len(missing) == len(cards) - 1
    assert all(np.isnan(card.value) for card in missing.values())
    assert missing["own-patch"].explanation == "Missing result: localization.vit."
    assert "a ViT with average pooling" in missing["cls-localizes-more"].explanation
    assert "without the skips" in missing["skips-cost-accuracy"].explanation
    # Registers are neither CLS nor in a place.
    both = cls_skips(1.0)["skip_ratio.vit"]
    cls, spatial = (np.log(both.norm_ratio.values[:, i]) for i in (0, 1))
    more = ratios(cls, spatial, prefix=3, registers=[np.full(24, 50.0)] * 2)
    more = more.assign_coords(layer=both["layer"].values)
    actual = evaluated("cls-skips-first", {"skip_ratio.vit": more})
    alone = evaluated("cls-skips-first", {"skip_ratio.vit": both})
    np.testing.assert_allclose([actual.value, actual.low], [alone.value, alone.low], rtol=1e-9)
    gap = evaluated(
        "cls-skips-first", {"skip_ratio.vit": ratios(np.zeros(4), np.zeros(4), prefix=0)}
    )
    assert gap.outcome == "not tested" and "received prefix=0" in gap.explanation


def test_accuracies_on_the_same_images_are_paired():
    right = np.arange(400) < 380
    less = right & (np.arange(400) >= 18)
    triples = {"vit": (0.95, 400, right), "bare": (0.905, 400, less)}
    pairs = {name: triple[:2] for name, triple in triples.items()}
    for given, expected in ((triples, "replicates"), (pairs, "inconclusive")):
        cards = {card.name: card for card in scorecard({}, accuracy=given, **ROLES)}
        card = cards["skips-cost-accuracy"]
        assert decide(card.low, card.high, card, ()) == expected and card.results == ()


def test_the_scorecard_saves_and_loads(tmp_path):
    cards = scorecard(uniform_structure(1), **ROLES)
    saved = scorecard_dataset(cards)
    saved.to_netcdf(tmp_path / "scorecard.nc")
    xr.testing.assert_identical(xr.load_dataset(tmp_path / "scorecard.nc"), saved)
    assert saved.sel(claim="uniform-structure").outcome == "one run"


@pytest.mark.parametrize("with_vit", [False, True])
def test_a_pair_before_and_after_fine_tuning_needs_no_vit(with_vit):
    vit = model_like("vit", "vit")
    before = model_like("first", "before", base=vit if with_vit else None)
    after = model_like("second", "after", base=before)
    claim = FIGURE_G.claims[0]
    (parts,) = _models_by_role(claim, [vit, before, after] if with_vit else [before, after])
    assert (parts["before"], parts["after"]) == (before, after)
