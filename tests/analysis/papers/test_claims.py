"""Each claim on results whose truth is known: as in the paper, opposite, or without an effect."""

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from attention_heads import pixel_distances
from scipy import ndimage, stats
from study_parts import cka_result, field_result, model_like

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.engine.results import pack_correct
from vit_tf.analysis.figures.figure import all_figures
from vit_tf.analysis.papers.raghu import RAGHU
from vit_tf.analysis.papers.raghu.section6_skips import skips_partition as without_skips
from vit_tf.analysis.papers.raghu.section8_scale import FIGURE_G
from vit_tf.analysis.papers.walmer.appendix_d_similarity import FIGURE_23, skips_diverge
from vit_tf.analysis.report.scorecard import _models_by_role, evaluate, scorecard, scorecard_dataset
from vit_tf.analysis.similarity.localization import input_patches
from vit_tf.analysis.statistics.claims import DECIDED, NotTested, Outcome, Tested, decide
from vit_tf.analysis.statistics.estimates import Accuracy
from vit_tf.features.layers import sublayers

ROLES = {"vit": "vit", "resnet": "bit", "gap": "gap", "without": "bare", "block": "block01"}
OTHERS = {"mixer": "mixer", "fraction": "vit-3", "resnet_fraction": "bit-3", "larger": "wide"}
OTHERS |= {"before": "half", "after": "tuned-half", "far": "tuned-far"}
OTHERS |= {"hybrid": "stem", "tuned": "tuned", "positions": "two-d"}
DESCRIPTIVE = ("local-heads-resemble",)  # numbers of which there is no honest interval
LAYERS = [f"block{block:02}/{site}/sum" for block in range(4) for site in ("attention", "mlp")]
NOISE = np.random.default_rng(7).normal(size=(64, 64))


FACTS = {"examples": 1000, "num_classes": 10}


def without_batches(dims, values, seed=0):
    """The variable `leave_one_out` of ten batches."""
    noise = 0.0035 * np.random.default_rng(seed).normal(size=(10, *np.shape(values)))
    return (("batch", *dims), np.asarray(values) + noise)


def uniform_structure(side):
    vit, bit = np.full((8, 8), 0.5 + 0.1 * side), np.full((8, 8), 0.5)
    return {
        "cka.vit": cka_result(vit, LAYERS, stderr=0.01),
        "cka.bit": cka_result(bit, LAYERS, stderr=0.01, seed=1),
    }


def cross(value_at):
    """CKA of 12 ViT blocks and 6 ResNet units, from functions of depth."""
    blocks, units = (np.arange(12) + 0.5) / 12, np.arange(6)
    values = np.array([[value_at(depth, unit) for unit in units] for depth in blocks])
    names = [f"layer{index}" for index in range(12)]
    return {"cka.vit.bit": cka_result(values, names, names[:6], stderr=0.01)}


def lower_like_lowest(side):
    return cross(lambda depth, unit: 0.5 + 0.2 * side * (depth < 0.25) if unit < 3 else depth)


def upper_like_middle(side):
    middle = 1 / 4, 7 / 12
    return cross(
        lambda depth, unit: 0.5 + 0.2 * side * (middle[0] < depth < middle[1]) if unit > 2 else 0.9
    )


def highest_unlike(side):
    return cross(lambda depth, unit: 0.5 - 0.2 * side * (depth > 2 / 3))


def stages(side):
    """Three stages of two units each."""
    names = [f"stage{stage}/unit0{unit}/sum" for stage in (1, 2, 3) for unit in (1, 2)]
    same = np.kron(np.eye(3), np.ones((2, 2)))
    return {"cka.bit": cka_result(0.5 + 0.3 * side * same, names, stderr=0.01)}


def distances(*rows, seed=0):
    """A result of `attention_distance` of ten batches, from distances of uniform attention."""
    grid = TokenGrid(4, 6, 1, 8)
    even = pixel_distances(grid).mean()
    values = even * np.array(rows)
    noise = 0.001 * even * np.random.default_rng(seed).normal(size=(10, *values.shape))
    facts = vars(grid) | {"examples": 1000, "leave_one_out": (values + noise).ravel()}
    return xr.DataArray(values, dims=("layer", "head"), attrs=facts)


def kinds(*rows):
    """A result of `head_classes`, from the heads of each layer: l for local, g for global."""
    words = {"l": "soft", "g": "global"}
    values = [[words[letter] for letter in row] for row in rows]
    return xr.Dataset({"kind": (("layer", "head"), values)})


def first_block_mixes(side):
    mixed, equal = [0.2, 0.5, 0.9], [0.8, 0.8, 0.8]
    first, last = {1: (mixed, equal), -1: (equal, mixed), 0: (mixed, mixed)}[side]
    return {"attention_distance.vit": distances(first, [0.1, 0.5, 0.9], last)}


def last_block_global(side):
    first = 0.5 - 0.3 * side
    return {"attention_distance.vit": distances([first, 0.9], [0.1, 0.9], [0.5, 0.8])}


def local_heads_resemble(side):
    distance = np.linspace(2, 20, 16).reshape(2, 8)
    rank = NOISE[:2, :8] if side == 0 else -side * distance
    cka = rank[:, :, None] * np.array([0.1, 0.2]) + NOISE[0, :2]
    data = {"cka": (("order", "subset", "layer"), cka), "distance": (("order", "subset"), distance)}
    return {"head_similarity.vit.bit": xr.Dataset(data)}


def fields(names, sigmas, size=32, extra=0.0, seed=0):
    """Receptive fields: a Gaussian about the centre, and a share `extra` in the centre patch."""
    place = np.arange(size) - size / 2 + 0.5
    squares = place[:, None] ** 2 + place**2
    values = np.stack([np.exp(-squares / (2 * sigma**2)) for sigma in sigmas])
    values /= values.sum(axis=(1, 2), keepdims=True)
    values[:, 16:20, 16:20] += np.reshape(extra, (-1, 1, 1)) / 16
    return field_result(values, names, deviation=0.0035, seed=seed)


def early_fields(side):
    wide, narrow = [6, 7, 8, 9, 1, 1], [2, 2, 3, 12]
    vit, bit = {1: (wide, narrow), -1: (narrow, wide), 0: (wide, wide)}[side]
    names = [f"layer{index}/sum" for index in range(6)]
    return {
        f"receptive_field.{name}": fields(names[: len(sigmas)], sigmas, seed=seed)
        for seed, (name, sigmas) in enumerate((("vit", vit), ("bit", bit)))
    }


def fields_turn_global(side):
    """A step within the middle third, next to a gradual growth."""
    step, gradual = [1, 1, 1, 6, 6, 6], [1, 2, 3, 4, 5, 6]
    vit, bit = {1: (step, gradual), -1: (gradual, step), 0: (gradual, gradual)}[side]
    names = [f"layer{index}/sum" for index in range(6)]
    results = fields(names, vit), fields(names, bit, seed=1)
    return dict(zip(("receptive_field.vit", "receptive_field.bit"), results, strict=True))


def branch_fields(side):
    """Shares of the centre that fall in the later sublayers, in each half by another amount."""
    shift = np.array([0.9, 0.9, 0.8 * side, 0.8 * side])
    sites = [f"block{block:02}/attention" for block in range(4)]
    total = fields([f"{site}/sum" for site in sites], [5] * 4, extra=0.9 + np.zeros(4))
    branch = fields([f"{site}/branch" for site in sites], [5] * 4, extra=0.9 - shift, seed=1)
    return {
        "receptive_field.vit": total,
        "receptive_field_branch.vit": branch,
    }


def ratios(cls, spatial, **variables):
    """A result of `skip_ratio` of ten batches, from logarithms of shape (layer,)."""
    parts = np.exp(np.stack([cls, spatial, spatial], axis=1))
    noise = 0.002 * NOISE[:10, : len(cls), None] * np.array([1.0, -1.0, 0.5])
    data = {"part_ratio": (("layer", "part"), parts)}
    data["leave_one_out"] = (("batch", "layer", "part"), parts * (1 + noise))
    layers = [f"block{block:02}/{site}" for block in range(24) for site in ("attention", "mlp")]
    coords = {"layer": layers[: len(cls)], "part": ["cls", "spatial", "all"]}
    return xr.Dataset(data | variables, coords, {"examples": 1000})


def cls_skips(side):
    """A sharp transition at half depth; attention sites are far from MLP sites."""
    step = side * np.repeat([1.0, -1.0], 6)
    logs = np.stack([step + 3.0, step - 3.0], axis=1).ravel()
    return {"skip_ratio.vit": ratios(logs, np.zeros(24))}


def skip_influence(side):
    vit, bit = NOISE[0, :12] * 0.1 + side, NOISE[0, :8] * 0.1
    return {"skip_ratio.vit": ratios(vit, vit), "skip_ratio.bit": of_resnet(bit, np.zeros(8))}


def of_resnet(logs, negative_share):
    """A result of `skip_ratio` of a ResNet."""
    return ratios(logs, logs, negative_share=("layer", negative_share))


def skips_partition(side):
    taps = sublayers([f"block{b:02}/mlp/{w}" for b in range(3) for w in ("norm", "sum")])
    intact = cka_result(np.full((6, 6), 0.6), taps, stderr=0.02)
    without = cka_result(np.full((6, 6), 0.6 - 0.3 * side), taps, stderr=0.02, seed=1)
    return {"cka.vit": intact, "cka.bare": without}


def localization(own=0.0, edge=0.0, first=0.0, seed=1):
    """A result of `localization` of ten batches, from its contrasts."""
    rng, attrs = np.random.default_rng(seed), {"examples": 400}
    for name, value in (("own", own), ("edge", edge), ("first", first)):
        rest = value + 0.0005 * rng.normal(size=10)
        attrs |= {f"{name}_contrast": value, f"{name}_contrast_without_batch": rest}
    return xr.DataArray(
        np.zeros((2, 16, 4, 4)), dims=("layer", "token", "row", "column"), attrs=attrs
    )


def localizes_more(other):
    return lambda side: {
        "localization.vit": localization(0.3 + 0.2 * side),
        f"localization.{other}": localization(0.3, seed=2),
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
        "leave_one_out": without_batches(dims, np.stack([np.full(6, 0.9), small])),
    }
    attrs = {"examples": 1000, "batch_size": 100}
    return {"data_scale.vit": xr.Dataset(data, {"fraction": [1.0, 0.1]}, attrs)}


def mixer_like_vit(side):
    """Each block of the Mixer has one match, with another block of the ViT than of the ResNet."""
    results = {}
    for name, match in (("vit", 0.6 + 0.2 * side), ("bit", 0.6)):
        cka = np.full((8, 8), 0.1)
        cka[np.arange(8), [0, 3, 2, 5, 4, 7, 6, 1]] = match
        results[f"cka.mixer.{name}"] = cka_result(cka, LAYERS, stderr=0.01, seed=len(results))
    return results


def less_data_less_local(side):
    local = {1: 0.4, -1: 0.1, 0: 0.2}[side]
    return {
        "attention_distance.vit": distances([0.9, 0.2], [0.9, 0.2], [0.1, 0.1], [0.1, 0.1]),
        "attention_distance.vit-3": distances(
            [0.9, local], [0.9, local], [0.9, 0.9], [0.9, 0.9], seed=1
        ),
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
    """As in the paper, they are equal."""
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
        middle = 0.6 + 0.35 * side
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
            "leave_one_out": without_batches(("fraction", "layer"), cka, len(results)),
        }
        attrs = {"examples": 1000, "batch_size": 100}
        rows = slice(None) if name == "vit" else slice(1, None)
        result = xr.Dataset(data, {"fraction": [0.03, 0.1, 1.0]}, attrs)
        results[f"data_scale.{name}"] = result.isel(fraction=rows)
    return results


def fine_tuned(first, rest, seed=0):
    """CKA with the model before, of the first two blocks and of the rest.

    The embedding, which is no block, differs most.
    """
    names = ["embedding", *(f"block{block:02}/mlp/sum" for block in range(6))]
    cka = np.array([0.0, *[first] * 2, *[rest] * 4])
    data = {
        "cka": ("layer", cka),
        "leave_one_out": without_batches(("layer",), cka, seed),
    }
    attrs = {"examples": 1000, "batch_size": 100}
    return xr.Dataset(data, {"layer": names}, attrs)


def fine_tuning(after):
    return lambda side: {f"fine_tuning.half.{after}": fine_tuned(0.6 + 0.2 * side, 0.6)}


def far_domains_change_more(side):
    """What differs between the domains are the last blocks."""
    near, far = fine_tuned(0.9, 0.6), fine_tuned(0.9, 0.6 - 0.3 * side, 1)
    return {"fine_tuning.half.tuned-half": near, "fine_tuning.half.tuned-far": far}


BUILDERS = {
    "uniform-structure": uniform_structure,
    "resnet-has-stages": stages,
    "lower-resnet-like-lowest-vit": lower_like_lowest,
    "upper-resnet-like-middle-vit": upper_like_middle,
    "highest-vit-unlike-resnet": highest_unlike,
    "mixer-like-vit": mixer_like_vit,
    "first-block-mixes": first_block_mixes,
    "last-block-global": last_block_global,
    "less-data-less-local": less_data_less_local,
    "local-heads-resemble": local_heads_resemble,
    "early-fields": early_fields,
    "fields-turn-global-midway": fields_turn_global,
    "branch-fields": branch_fields,
    "cls-skips-first": cls_skips,
    "skip-influence": skip_influence,
    "skips-partition": skips_partition,
    "skips-cost-accuracy": lambda side: {
        "accuracy.vit": Accuracy(0.9, 1000),
        "accuracy.bare": Accuracy(0.9 - 0.05 * side, 1000),
    },
    "own-patch": lambda side: {"localization.vit": localization(0.2 * side)},
    "edge-tokens-resemble-edges": lambda side: {"localization.vit": localization(edge=0.2 * side)},
    "earlier-resnet-layers-localize-better": lambda side: {
        "localization.bit": localization(0.2, first=0.2 + 0.1 * side)
    },
    "cls-localizes-more": localizes_more("gap"),
    "vit-localizes-more": localizes_more("bit"),
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


CLAIMS = {claim.name: claim for figure in all_figures() for claim in figure.claims}


def estimated(name, results):
    """The number of the trained models."""
    claim = CLAIMS[name]
    results = results | {"block": "block01"}
    return claim(*(results.get(name.format(**ROLES | OTHERS)) for name in claim.inputs))


def evaluated(name, results, **options):
    """The row of a claim in a scorecard."""
    rows = scorecard(results, **ROLES, **OTHERS, **options)
    return next(row for row in rows if row.name == name)


def test_every_claim_has_its_cases():
    figures = [figure for figure in all_figures() if figure.paper is RAGHU]
    assert list(BUILDERS) == [item.name for figure in figures for item in figure.claims]


@pytest.mark.parametrize("side", [1, -1, 0])
@pytest.mark.parametrize("name", BUILDERS)
def test_outcome(name, side):
    claim, estimate = CLAIMS[name], estimated(name, BUILDERS[name](side))
    if name in DESCRIPTIVE:
        assert estimate.interval is None and estimate.note
        beyond = abs(estimate.value) > claim.least
        assert beyond * np.sign(estimate.value) * claim.paper.sign == side
        return
    outcome = decide(estimate.interval, claim.paper, claim.least)
    as_said = (Outcome.AS_IN_PAPER, Outcome.SMALLER) if claim.paper.size else (Outcome.AS_IN_PAPER,)
    expected = {1: as_said, -1: (Outcome.OPPOSITE,), 0: (Outcome.UNDECIDED, Outcome.NO_EFFECT)}
    assert outcome in expected[side], estimate
    assert estimate.interval[0] <= estimate.value <= estimate.interval[1]


@pytest.mark.parametrize(
    ("name", "side", "value"),
    [
        ("uniform-structure", 1, 0.1),
        ("resnet-has-stages", 1, 0.3),
        ("lower-resnet-like-lowest-vit", 1, 0.2),
        ("upper-resnet-like-middle-vit", -1, -0.2),
        ("highest-vit-unlike-resnet", 1, -0.2),
        ("first-block-mixes", 1, 0.7),
        ("last-block-global", 1, 0.5 - 0.2),
        ("local-heads-resemble", 1, -1),
        ("cls-skips-first", 1, 2.0),
        ("skips-partition", 1, -0.3),
        ("skips-cost-accuracy", 1, 0.05),
        ("own-patch", 1, 0.2),
        ("cls-localizes-more", 1, 0.2),
        ("gap-tokens-classify", 1, 0.1),
        ("mixer-like-vit", 1, 0.2),
        ("less-data-less-local", 1, 0.2),
        ("native-readouts-equal", -1, 0.2),
        ("pooled-tokens-plateau", 1, 0.3 - 0.1),
        ("gap-tokens-become-alike", 1, 0.3 - 0.02),
        ("data-improve-middle-layers", -1, -0.35),
        ("larger-models-need-data", 1, 0.2),
        ("fine-tuning-keeps-first-blocks", 1, 0.2),
        ("far-domains-change-more", 1, 0.3 * 4 / 6),
    ],
)
def test_value(name, side, value):
    np.testing.assert_allclose(estimated(name, BUILDERS[name](side)).value, value, rtol=1e-9)


def test_a_number_between_arms_has_the_terms_of_both():
    for name in ("uniform-structure", "vit-localizes-more", "gap-tokens-classify"):
        estimate = estimated(name, BUILDERS[name](1))
        assert len(estimate.arms) == 2 and sum(estimate.arms) == pytest.approx(estimate.value)
    assert not estimated("own-patch", BUILDERS["own-patch"](1)).arms


@pytest.mark.parametrize("blocks", [6, 12, 24])
@pytest.mark.parametrize("ratio", [2.0, 10.0])
def test_a_transition_of_any_sharpness_is_decided(rng, blocks, ratio):
    """CLS over spatial ratio above 1 in the lower half and below 1 in the upper, with noise."""
    for _ in range(20):
        logs = np.log(ratio) * np.repeat([1.0, -1.0], blocks) + 0.1 * rng.normal(size=2 * blocks)
        estimate = estimated("cls-skips-first", {"skip_ratio.vit": ratios(logs, 0 * logs)})
        assert (
            decide(estimate.interval, CLAIMS["cls-skips-first"].paper, 0.1) is Outcome.AS_IN_PAPER
        )


def copies_of(results, name):
    """The results of two untrained copies of each model, from a function of the copy's number."""
    slugs = {role: slug for role, slug in ROLES.items() if role != "block"}
    copies = [{role: f"{slug}-{number}" for role, slug in slugs.items()} for number in (0, 1)]
    for number in (0, 1):
        for key, result in results(number).items():
            analysis_name, *slugs = key.split(".")
            yield ".".join([analysis_name, *(f"{slug}-{number}" for slug in slugs)]), result
    yield "copies", copies


@pytest.mark.parametrize(
    ("trained", "untrained", "outcome"),
    [
        (0.3, (0.0, 0.02), Outcome.AS_IN_PAPER),
        (0.3, (0.31, 0.29), Outcome.NO_EFFECT),
        (0.3, (0.6, 0.62), Outcome.OPPOSITE),
        (-0.3, (-0.3, -0.31), Outcome.NO_EFFECT),
        (-0.3, (0.0, 0.0), Outcome.OPPOSITE),
    ],
)
def test_the_effect_is_what_training_adds_in_both_directions(trained, untrained, outcome):
    results = {"localization.vit": localization(trained)}
    made = dict(
        copies_of(lambda n: {"localization.vit": localization(untrained[n], seed=n + 5)}, "vit")
    )
    row = evaluated("own-patch", results | made, copies=made.pop("copies"))
    assert row.outcome is outcome and row.trained == trained and row.untrained == untrained
    assert row.estimate.value == pytest.approx(trained - np.mean(untrained))


def test_without_untrained_copies_a_claim_about_training_is_not_tested():
    row = evaluated("own-patch", {"localization.vit": localization(0.3)})
    assert isinstance(row, NotTested) and "untrained copies" in row.reason
    # A model's own accuracy needs none.
    row = evaluated("skips-cost-accuracy", {}, accuracy={"vit": (0.9, 1000), "bare": (0.8, 1000)})
    assert row.outcome is Outcome.AS_IN_PAPER and row.untrained == ()


def test_copies_of_a_variant_are_subtracted_too():
    """Without skips, layers are less similar untrained as well: trained minus untrained counts."""

    def of(gap, seed):
        rng, dims = np.random.default_rng(seed), ("batch", "layer_x", "layer_y")
        intact = skips_partition(1)["cka.vit"].drop_vars("leave_one_out")
        results = {"cka.vit": intact, "cka.bare": intact.assign(cka=intact["cka"] - gap)}
        return {
            name: result.assign(
                leave_one_out=(dims, result["cka"].values + 0.004 * rng.normal(size=(10, 6, 6)))
            )
            for name, result in results.items()
        }

    made = dict(copies_of(lambda n: of(0.08, n + 3), "vit"))
    row = evaluated("skips-partition", of(0.22, 1) | made, copies=made.pop("copies"))
    assert row.estimate.value == pytest.approx(-0.14) and row.outcome is Outcome.AS_IN_PAPER
    assert len(row.estimate.arms) == 2


def test_claims_about_many_images_are_not_tested_on_few():
    accuracy = {"vit": (0.8, 2000), "bit": (0.7, 2000), "vit-3": (0.4, 2000), "bit-3": (0.6, 2000)}
    for images, is_tested in ((None, False), (49_000, False), (20_000_000, True)):
        row = evaluated("vit-better-on-all-data", {}, accuracy=accuracy, training_images=images)
        assert isinstance(row, Tested) == is_tested
        assert is_tested or "images or more" in row.reason


def test_catching_up_is_not_a_ceiling_effect():
    """Errors that stay in one ratio: the gap in accuracy shrinks, the gap in log odds hardly."""

    def value(of_all, of_less):
        (vit, bit), (vit_less, bit_less) = of_all, of_less
        accuracy = {"vit": vit, "bit": bit, "vit-3": vit_less, "bit-3": bit_less}
        accuracy = {name: (x, 10_000) for name, x in accuracy.items()}
        options = {"accuracy": accuracy, "training_images": 2_000_000}
        return evaluated("vit-gains-more-from-data", {}, **options).estimate.value

    # As in the models on CIFAR-10: 48.8 and 67.3 % on little data, 75.8 and 86.4 % on all.
    assert abs(value((0.758, 0.864), (0.488, 0.673))) < 0.1
    assert value((0.80, 0.75), (0.4, 0.6)) > 0.5


def test_claims_that_match_images_between_models_have_the_number_of_permuted_images():
    results = BUILDERS["lower-resnet-like-lowest-vit"](1)
    made = dict(copies_of(lambda n: BUILDERS["lower-resnet-like-lowest-vit"](0), "vit"))
    copies = made.pop("copies")
    row = evaluated("lower-resnet-like-lowest-vit", results | made, copies=copies)
    assert row.permuted is None
    by_chance = results["cka.vit.bit"]["cka"].copy(data=0.01 * NOISE[:12, :6])
    results = {"cka.vit.bit": results["cka.vit.bit"].assign(permuted=by_chance)}
    row = evaluated("lower-resnet-like-lowest-vit", results | made, copies=copies)
    wanted = estimated(
        "lower-resnet-like-lowest-vit",
        {"cka.vit.bit": results["cka.vit.bit"].assign(cka=by_chance)},
    )
    assert row.permuted == pytest.approx(wanted.value)
    assert scorecard_dataset([row])["permuted"].values == [row.permuted]


def test_the_second_training_on_all_data_is_subtracted():
    """Lines that fall as much on all data as on a tenth of them do not show what data do."""
    result = data_hunger(1)["data_scale.vit"]
    equal = result.assign(cka=result["cka"].copy(data=np.stack([result["cka"].values[1]] * 2)))
    estimate = estimated("data-hunger", {"data_scale.vit": equal})
    assert estimate.value == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="second seed"):
        estimated("data-hunger", {"data_scale.vit": result.isel(fraction=[1])})


@pytest.mark.parametrize("name", ["vit", "wide"])
def test_larger_models_need_a_control_of_each(name):
    results = larger_models_need_data(1)
    key = f"data_scale.{name}"
    results[key] = results[key].isel(fraction=slice(None, -1))
    with pytest.raises(ValueError, match="second seed of each"):
        estimated("larger-models-need-data", results)


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


@pytest.mark.slow
def test_a_localizer_on_a_finer_grid_is_compared_on_the_coarser(smooth):
    coarse, fine = localized(smooth, 8), localized(smooth, 4)
    turned = localized(smooth, 4, lambda patches: tf.reverse(patches, [1]))
    own = estimated("vit-localizes-more", {"localization.vit": coarse, "localization.bit": fine})
    other = estimated(
        "vit-localizes-more", {"localization.vit": coarse, "localization.bit": turned}
    )
    assert own.interval is None and abs(own.value) < 0.15 < other.value
    odd = coarse.isel(row=slice(3), column=slice(3))
    with pytest.raises(ValueError, match="3 x 3"):
        estimated("vit-localizes-more", {"localization.vit": coarse, "localization.bit": odd})


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
    estimate = estimated("skip-influence", {"skip_ratio.vit": vit, "skip_ratio.bit": result})
    assert np.exp(estimate.value) == pytest.approx(8 / np.cbrt(2 * 4 * 2), rel=1e-5)


@pytest.mark.slow
def test_a_pre_activation_resnet_does_not_test_what_the_paper_says_of_another():
    bit = vit_tf.BiT((16, 16, 3), (2, 2), 0.5, 3, stem="small")
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    result = analysis.skip_ratio(bit, images)
    assert (result.negative_share > 0.2).all()
    vit = ratios(1 + 0.1 * NOISE[0, :8], 1 + 0.1 * NOISE[0, :8])
    with pytest.raises(ValueError, match="All skips of this model"):
        estimated("skip-influence", {"skip_ratio.vit": vit, "skip_ratio.bit": result})


def test_a_model_at_chance_does_not_test_what_its_skips_are_worth():
    accuracy = {"vit": (0.105, 1000, None, 10), "bare": (0.1, 1000, None, 10)}
    row = evaluated("skips-cost-accuracy", {}, accuracy=accuracy)
    assert isinstance(row, NotTested) and "chance" in row.reason


def test_without_its_skips_a_block_partitions_only_layers_that_both_models_have():
    intact, without = skips_partition(1).values()
    without = without.isel(layer_x=slice(1, None), layer_y=slice(None, -1))
    estimate = without_skips(intact, without, "block01")
    np.testing.assert_allclose(estimate.value, -0.3)
    with pytest.raises(ValueError, match="Received: block='block00'"):
        without_skips(intact, without, "block00")


def test_without_errors_a_difference_of_cka_is_descriptive():
    results = uniform_structure(1)
    results = {name: result.drop_vars("leave_one_out") for name, result in results.items()}
    assert estimated("uniform-structure", results).interval is None


def residual(gap, seed=0):
    """A result of `residual_cka` of four sites, whose upper half is lower by `gap`."""
    cka = np.diag([0.8, 0.8, 0.8 - gap, 0.8 - gap])
    sites = [f"block{block:02}/attention" for block in range(4)]
    result = cka_result(cka, *([f"{s}/{end}" for s in sites] for end in ("branch", "skip")))
    noise = 0.002 * np.random.default_rng(seed).normal(size=(10, 4, 4))
    return result.assign(leave_one_out=(("batch", *result["cka"].dims), cka + noise))


def with_copies(name, gap, of_copies=(0.0, 0.0), seed=0):
    """A ViT with its copies, and their results."""
    vit = model_like(name, "vit")
    models = [
        vit,
        *(model_like(f"{name} {role}", role, base=vit) for role in ("untrained", "copy")),
    ]
    gaps = zip(models, (gap, *of_copies), range(seed, seed + 3), strict=True)
    return models, {f"residual_cka.{model.slug}": residual(x, number) for model, x, number in gaps}


def test_claims_on_several_sets_of_models_are_corrected_for_their_number():
    """A difference beyond the least of interest by p = 0.03 is not so among three such ones."""
    models, results = with_copies("vit0", 0.05)
    (row,) = evaluate([FIGURE_23], models, results)
    stderr, df = row.estimate.error
    gap = skips_diverge.least + stats.t.ppf(0.985, df) * stderr
    models, results, rows = [], {}, []
    for count in (1, 2, 3):
        own, of_own = with_copies(f"vit{count}", 0.05 + gap + row.estimate.value)
        models, results = models + own, results | of_own
        rows = evaluate([FIGURE_23], models, results)
        expected = Outcome.AS_IN_PAPER if count == 1 else Outcome.UNDECIDED
        assert [each.outcome for each in rows] == [expected] * count
        assert {each.estimate.comparisons for each in rows} == {count}
    assert len(set(scorecard_dataset(rows)["claim"].values)) == 3


def test_the_same_difference_in_untrained_copies_is_no_effect_of_training():
    for gaps, expected in (
        ((0.3, 0.31), Outcome.NO_EFFECT),
        ((0.04, 0.02), Outcome.AS_IN_PAPER),
        ((0.6, 0.62), Outcome.OPPOSITE),
    ):
        models, results = with_copies("vit", 0.3, gaps)
        (row,) = evaluate([FIGURE_23], models, results)
        assert row.outcome is expected
        np.testing.assert_allclose(row.untrained, np.negative(gaps), atol=1e-12)
    (row,) = evaluate([FIGURE_23], models[:1], results)
    assert isinstance(row, NotTested) and "untrained copies" in row.reason


def test_what_cannot_be_measured_says_why():
    rows = {row.name: row for row in scorecard(uniform_structure(1), vit="vit", resnet="bit")}
    assert {row.outcome for row in rows.values()} == {Outcome.NOT_TESTED}
    assert "localization.vit" in rows["own-patch"].reason
    assert "a ViT with average pooling" in rows["cls-localizes-more"].reason
    assert "without the skips" in rows["skips-cost-accuracy"].reason
    both = cls_skips(1.0)["skip_ratio.vit"]
    with pytest.raises(ValueError, match="Expected skip ratios of the CLS token"):
        estimated("cls-skips-first", {"skip_ratio.vit": both.isel(part=[1, 2])})


def test_accuracies_on_the_same_images_are_paired():
    right = np.arange(400) < 380
    less = right & (np.arange(400) >= 18)
    triples = {"vit": (0.95, 400, right), "bare": (0.905, 400, less)}
    pairs = {name: triple[:2] for name, triple in triples.items()}
    for given, is_decided in ((triples, True), (pairs, False)):
        row = evaluated("skips-cost-accuracy", {}, accuracy=given)
        assert (row.outcome in DECIDED) == is_decided and row.results == ()


def test_the_scorecard_saves_and_loads(tmp_path):
    rows = scorecard(uniform_structure(1), **ROLES)
    saved = scorecard_dataset(rows)
    saved.to_netcdf(tmp_path / "scorecard.nc")
    loaded = xr.load_dataset(tmp_path / "scorecard.nc")
    assert loaded["outcome"].values.tolist() == [row.outcome.value for row in rows]
    np.testing.assert_array_equal(loaded["least"], saved["least"])


@pytest.mark.parametrize("with_vit", [False, True])
def test_a_pair_before_and_after_fine_tuning_needs_no_vit(with_vit):
    vit = model_like("vit", "vit")
    before = model_like("first", "before", base=vit if with_vit else None)
    after = model_like("second", "after", base=before)
    claim = FIGURE_G.claims[0]
    (parts,) = _models_by_role(claim, [vit, before, after] if with_vit else [before, after])
    assert (parts["before"], parts["after"]) == (before, after)
