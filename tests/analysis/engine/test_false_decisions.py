"""How often claims are decided where there is nothing to decide: at most 5.5 % each.

The nulls are those under which earlier intervals, over heads, layers, tokens or the images of one
run, decided in 18 to 100 % of the cases.
"""

import numpy as np
import pytest
import xarray as xr
from scipy.ndimage import gaussian_filter
from scipy.special import ndtri

from vit_tf.analysis.engine.estimates import (
    Estimate,
    claim_outcome,
    contrast_over_depth,
    is_beyond,
    means_of,
    over_trainings,
    with_enough_images,
)
from vit_tf.analysis.engine.results import pack_correct
from vit_tf.analysis.papers.raghu.section5_locality import first_block_mixes, last_block_global
from vit_tf.analysis.papers.raghu.section7_tokens import (
    gap_tokens_become_alike,
    native_readouts_equal,
    pooled_tokens_plateau,
)
from vit_tf.analysis.papers.walmer.section4_attention import (
    distance_dips,
    distance_rises,
    patterns_vary,
    phases,
    supervision_orders_attention,
)
from vit_tf.analysis.papers.walmer.section5_clusters import _over_untrained, clusters_deepen

SLOW = pytest.mark.slow  # what takes more than half a second
MOST = 0.055
DECIDED = ("replicates", "does not replicate")
# Of the variance of attention distance between heads, in vit-cls-cifar10, that between layers.
BUNDLED_SHARE = 0.83


def decided(estimates, threshold=0.0, direction="above"):
    """The share of estimates that are decided, without a smallest effect of interest."""
    outcomes = [claim_outcome(x.low, x.high, threshold, direction) for x in estimates]
    return np.mean([outcome in DECIDED for outcome in outcomes])


def most_decided(count):
    """What 5 % are in so many simulations, with two standard errors; never below 5.5 %."""
    return max(MOST, 0.05 + 2 * np.sqrt(0.05 * 0.95 / count))


@pytest.mark.parametrize(("layers", "heads"), [(6, 4), (12, 4), (12, 12), (24, 16)])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, BUNDLED_SHARE])
def test_heads_in_layers(rng, layers, heads, share):
    """No difference between the phases of depth; a share of the variance is between layers."""
    count = 2000
    values = np.sqrt(share) * rng.normal(size=(count, layers, 1))
    values = values + np.sqrt(1 - share) * rng.normal(size=(count, layers, heads))
    first, third, late = phases(np.arange(layers))
    for claim, groups in ((distance_dips, (third, first)), (distance_rises, (late, third))):
        coefficients = means_of(layers, *groups)
        estimates = [contrast_over_depth(x, coefficients) for x in values]
        assert claim(xr.DataArray(values[0], dims=("layer", "head"))) == estimates[0]
        assert decided(estimates) <= most_decided(count)


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("layers", [6, 12, 24])
def test_neighbouring_layers(rng, layers, correlation):
    """A first-order autoregressive process over depth, up to a random walk, without drift."""
    count = 2000
    steps = rng.normal(size=(count, layers))
    walks = np.zeros((count, layers))
    walks[:, 0] = steps[:, 0]
    for layer in range(1, layers):
        walks[:, layer] = correlation * walks[:, layer - 1] + steps[:, layer]
    names = [f"block{block:02}/mlp/sum" for block in range(layers)]
    ends = means_of(layers, slice(-1, None), slice(0, 1))
    halves = means_of(layers, slice(layers // 2, None), slice(0, layers // 2))
    # The claim is the contrast of the ends, and a Dataset for each walk would take far longer.
    for walk in walks[:20]:
        purity = xr.Dataset({"purity": ("layer", walk)}, {"layer": names}, {"objects": 100})
        assert clusters_deepen(purity) == contrast_over_depth(walk, ends)
    for coefficients in (ends, halves):
        assert decided([contrast_over_depth(x, coefficients) for x in walks]) <= most_decided(count)


def test_the_contrast_over_depth_is_that_of_the_means_and_covers_a_drift(rng):
    values = rng.normal(size=(12, 3))
    coefficients = means_of(12, slice(6, None), slice(0, 6))
    actual = contrast_over_depth(values, coefficients)
    np.testing.assert_allclose(actual.value, values[6:].mean() - values[:6].mean())
    hits = []
    for _ in range(2000):
        walk = np.cumsum(rng.normal(0.3, 1.0, 12))
        ends = contrast_over_depth(walk, means_of(12, slice(-1, None), slice(0, 1)))
        hits.append(ends.low <= 11 * 0.3 <= ends.high)
    assert abs(np.mean(hits) - 0.95) < 0.015


@pytest.mark.parametrize("heads", [4, 6, 12, 16])
def test_heads_that_are_all_global(rng, heads):
    """They do not mix, however much they differ; and no share of all heads has an interval."""
    kinds = xr.Dataset({"kind": (("layer", "head"), np.full((3, heads), "global"))})
    assert first_block_mixes(kinds).value == 0
    peaks = xr.DataArray(
        np.full((1, 3, heads), 0.3), dims=("query", "layer", "head"), coords={"query": ["spatial"]}
    )
    facts = {"rows": 8, "columns": 8, "stride": 4}
    distance = xr.DataArray(rng.uniform(13, 16, (3, heads)), dims=("layer", "head"), attrs=facts)
    estimate = last_block_global(distance, xr.Dataset({"peak": peaks}))
    assert estimate.value == 1 and np.isnan([estimate.low, estimate.high]).all()


@pytest.mark.parametrize("noise", [0.05, 0.2, 1.0])
def test_diffuse_attention_has_no_pattern_that_varies(rng, noise):
    maps = np.exp(noise * rng.normal(size=(200, 6, 4, 64)))
    maps /= maps.sum(axis=-1, keepdims=True)
    peak = 1 + (maps * np.log(maps)).sum(axis=-1) / np.log(64)
    peaks = xr.DataArray(
        peak.mean(axis=0)[None], dims=("query", "layer", "head"), coords={"query": ["cls"]}
    )
    mean = xr.DataArray(
        maps.mean(axis=0).reshape(6, 4, 8, 8), dims=("layer", "head", "row", "column")
    )
    with pytest.raises(ValueError, match="no sparse pattern"):
        patterns_vary(xr.Dataset({"peak": peaks}), mean)


def over_runs(gaps, within):
    """Estimates over runs, from differences (simulation, run) with this half-width in each run."""
    return [over_trainings([Estimate(x, x - within, x + within, "") for x in row]) for row in gaps]


@pytest.mark.parametrize(
    ("runs", "within"),
    [
        *(pytest.param(*pair, marks=SLOW) for pair in ((3, 0.0), (3, 1.0), (5, 0.0))),
        (5, 1.0),
    ],
)
def test_equal_models_that_differ_in_the_seed(rng, runs, within):
    """Claims about how models are trained: three runs of each arm, whose images they share."""
    count = 8000
    arms = rng.normal(size=(2, count, runs))
    noise = within / 2 * rng.normal(size=(count, 1))  # of the images, equal in all runs
    estimates = over_runs(arms[0] - arms[1] + noise, within)
    assert decided(estimates) <= most_decided(count)


@pytest.mark.parametrize("sigma", [*(pytest.param(x, marks=SLOW) for x in (0.5, 0.75, 1)), 1.5])
def test_neighbouring_tokens(rng, sigma):
    """Tokens of one grid, correlated up to 0.85 with neighbours: runs are the units, not tokens."""
    count, runs = 8000, 3
    fields = gaussian_filter(rng.normal(size=(count, runs, 16, 16)), (0, 0, sigma, sigma))
    gaps = fields[:, :, 4:12, 4:12].mean(axis=(2, 3))
    assert decided(over_runs(gaps, 0.0)) <= most_decided(count)


def share_of_own(rng, images, tokens=64, margin=0.3):
    """Share of tokens whose own patch has the largest of noisy CKAs, and without each batch."""
    batches = max(images // 32, 1)
    noise = rng.normal(size=(batches, tokens, tokens)) / np.sqrt(32)
    signal = margin * np.eye(tokens)

    def share(parts):
        return np.mean((signal + parts.mean(axis=0)).argmax(axis=1) == np.arange(tokens))

    return share(noise), np.array([share(np.delete(noise, b, 0)) for b in range(batches)])


def answers(rng, share, layers, images, correlation=0.5):
    """Whether probes of equally accurate layers classify images correctly: (layer, image)."""
    shared = np.sqrt(correlation) * rng.normal(size=images)
    values = shared + np.sqrt(1 - correlation) * rng.normal(size=(layers, images))
    return values < ndtri(share)


def probes_of(correct):
    """A result of `ridge_probe` from truth values (layer, image)."""
    names = [f"block{block:02}/mlp/sum" for block in range(len(correct))]
    coords = {"layer": names, "correct": ("layer", pack_correct(correct))}
    attrs = {"examples": correct.shape[1], "num_classes": 10}
    return xr.DataArray(correct.mean(axis=1), coords, ("layer",), attrs=attrs)


@SLOW
def test_probes_that_rise_alike(rng):
    """Readouts with equal accuracy in each layer: neither plateaus, and none is poorer early."""
    count, plateaus, gaps = 2500, [], []
    for number in range(count):
        correct = answers(rng, 0.6, 6, 200)
        first, mean = probes_of(correct[:3]), probes_of(correct[3:])
        plateaus.append(pooled_tokens_plateau(first, mean))
        if number % 5 == 0:
            gaps.append(gap_tokens_become_alike(mean, first))
    assert decided(plateaus) <= most_decided(count)
    assert decided(gaps) <= most_decided(len(gaps))


@SLOW
@pytest.mark.parametrize("runs", [1, 3])
def test_readouts_whose_accuracies_differ_by_the_threshold(rng, runs):
    """Equivalence at its threshold, of one run and of several: a mean of absolute differences."""
    count, estimates = 1000, []
    for _ in range(count):
        of_runs = [
            native_readouts_equal(
                probes_of(answers(rng, 0.65, 1, 500, 0)), probes_of(answers(rng, 0.6, 1, 500, 0))
            )
            for _ in range(runs)
        ]
        estimates.append(of_runs[0] if runs == 1 else over_trainings(of_runs))
    assert decided(estimates, 0.05, "below") <= most_decided(count)


@SLOW
def test_profiles_of_attention_that_differ_in_the_seed_only(rng):
    """Two kinds of supervision and a second seed without any difference, over three runs."""
    count, estimates = 3000, []
    for _ in range(count):
        of_runs = []
        for _ in range(3):
            profiles = rng.normal(size=(3, 6, 4)).cumsum(axis=1)
            results = [xr.DataArray(each, dims=("layer", "head")) for each in profiles]
            of_runs.append(supervision_orders_attention(*results))
        estimates.append(over_trainings(of_runs))
    assert decided(estimates) <= most_decided(count)


@SLOW
@pytest.mark.parametrize("levels", [1, 3])
def test_purity_at_the_level_of_chance(rng, levels):
    """All chance levels are equal: the highest of several estimates is not the truth."""
    count, objects, estimates = 2000, 400, []
    one_layer = xr.Dataset({"purity": ("layer", [0.0])}, {"layer": ["block00/sum"]})
    for _ in range(count):
        purity, untrained, *pixels = rng.binomial(objects, 0.4, 2 + levels - 1) / objects
        names = ("purity_raw_pixels", "purity_mean_colour")
        results = [
            one_layer.copy(data={"purity": [x]}).assign_attrs(objects=objects)
            for x in (purity, untrained)
        ]
        results[0].attrs |= dict(zip(names, pixels, strict=False))
        estimates.append(_over_untrained(*results))
    assert decided(estimates) <= most_decided(count)


def test_few_images_do_not_hide_what_many_show(rng):
    """All tokens localize: with few images most do not seem to, and the claim is not tested."""
    outcomes = {}
    for images in (32, 64, 128, 1024):
        outcomes[images] = []
        for _ in range(40):
            value, rest = share_of_own(rng, images) if images > 32 else (0.2, np.array([np.nan]))
            try:
                estimate = with_enough_images(value, rest, images, "batches")
                outcome = claim_outcome(estimate.low, estimate.high, 0.5, "above")
            except ValueError as error:
                assert "Not tested" in str(error)
                outcome = "not tested"
            outcomes[images].append(outcome)
    assert set(outcomes[32]) == {"not tested"}
    for each in outcomes.values():
        assert each.count("does not replicate") <= MOST * len(each)


def test_marks_need_the_smallest_effect_of_interest(rng):
    """However many images there are, an effect below that of interest has no mark."""
    for value in rng.uniform(-0.05, 0.05, 200):
        assert claim_outcome(value - 1e-6, value + 1e-6, 0.0, "above", 0.05) == "inconclusive"
        assert not is_beyond(value, 0.0, "above", 0.05)
