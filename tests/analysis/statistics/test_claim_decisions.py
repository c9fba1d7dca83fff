"""How often claims are decided: without an effect in 5 %, at the paper's effect in 80 % or more.

Both levels are simulated: these models, whose number varies with the images, and such models in
general, whose number varies between runs.
"""

import numpy as np
import pytest
import xarray as xr
from scipy.ndimage import gaussian_filter
from scipy.special import ndtri

from vit_tf.analysis.engine.results import pack_correct
from vit_tf.analysis.papers.raghu.section7_tokens import (
    gap_tokens_become_alike,
    native_readouts_equal,
    pooled_tokens_plateau,
)
from vit_tf.analysis.papers.walmer.section5_clusters import _over_untrained
from vit_tf.analysis.statistics.claims import (
    DECIDED,
    Claim,
    Outcome,
    PaperEffect,
    Tested,
    claim,
    decide,
    images_to_decide,
)
from vit_tf.analysis.statistics.estimates import (
    Method,
    beyond,
    jackknife_over,
    mean_over,
    minus,
    over_runs,
    share_of,
)

SLOW = pytest.mark.slow  # what takes more than half a second
ABOVE = PaperEffect(1, None, "")
NO_LEAST = 1e-9
FALSE = (Outcome.AS_IN_PAPER, Outcome.SMALLER, Outcome.OPPOSITE)


def decided(estimates, paper=ABOVE, least=NO_LEAST):
    """The share of estimates with which an effect is found, on either side."""
    return np.mean([decide(x.interval, paper, least) in FALSE for x in estimates])


def band(count):
    """5 % +- 1.5, and two standard errors of the simulation."""
    return pytest.approx(0.05, abs=0.015 + 2 * np.sqrt(0.05 * 0.95 / count))


def batches(rng, effect, spread, count=8):
    """A number that is a mean over batches, with its jackknife."""
    values = effect + spread * rng.normal(size=count)
    rest = (values.sum() - values) / (count - 1)
    return jackknife_over(values.mean(), rest, 25 * count)


@pytest.mark.parametrize(
    ("interval", "sign", "size", "expected"),
    [
        ((0.1, 0.3), 1, 0.2, Outcome.AS_IN_PAPER),
        ((0.3, 0.4), 1, 0.2, Outcome.AS_IN_PAPER),  # beyond it
        ((0.06, 0.15), 1, 0.2, Outcome.SMALLER),
        ((0.06, 0.15), 1, None, Outcome.AS_IN_PAPER),
        ((0.04, 0.3), 1, 0.2, Outcome.UNDECIDED),
        ((-0.003, 0.005), 1, 0.2, Outcome.NO_EFFECT),
        ((-0.04, 0.04), -1, None, Outcome.NO_EFFECT),
        ((-0.2, -0.06), 1, 0.2, Outcome.OPPOSITE),
        ((-0.2, -0.06), -1, None, Outcome.AS_IN_PAPER),
        ((-0.15, -0.06), -1, 0.2, Outcome.SMALLER),
        ((0.06, 0.2), -1, 0.2, Outcome.OPPOSITE),
        ((-0.01, 0.02), 0, 0.0, Outcome.AS_IN_PAPER),
        ((0.06, 0.1), 0, 0.0, Outcome.OPPOSITE),
        ((-0.1, -0.06), 0, 0.0, Outcome.OPPOSITE),
        ((0.0, 0.1), 0, 0.0, Outcome.UNDECIDED),
        (None, 1, 0.2, Outcome.UNDECIDED),
    ],
)
def test_outcome_follows_from_interval_paper_and_smallest_effect(interval, sign, size, expected):
    assert decide(interval, PaperEffect(sign, size, ""), 0.05) is expected


def test_these_models_are_decided_in_5_percent_without_an_effect(rng):
    """Trained and untrained models whose numbers vary with the batches, which they share."""
    count, estimates = 4000, []
    for _ in range(count):
        shared = rng.normal(size=8)
        trained, *copies = (
            mean_over(0.3 + shared + 0.5 * rng.normal(size=8), "batches", 200) for _ in range(3)
        )
        estimates.append(beyond(trained, copies))
    assert decided(estimates) == band(count)


@pytest.mark.parametrize("runs", [3, 5])
def test_such_models_are_decided_in_5_percent_without_an_effect(rng, runs):
    """Two arms whose runs vary by other amounts; the images are the same for all."""
    count = 6000
    arms = rng.normal(size=(count, runs, 2)) * np.array([1.0, 0.7]) + np.array([0.3, -0.3])
    assert decided([over_runs(each) for each in arms]) == band(count)


@pytest.mark.parametrize("size", [0.04, 0.22, 0.3])
def test_these_models_are_decided_at_the_effect_of_the_paper(rng, size):
    """With a standard error of a fifth of it, as CKA and accuracies on 200 images or more have."""
    paper, least, count = PaperEffect(1, size, ""), size / 4, 1500
    estimates = [batches(rng, size, size / 5 * np.sqrt(8)) for _ in range(count)]
    outcomes = [decide(x.interval, paper, least) for x in estimates]
    assert np.mean([outcome is Outcome.AS_IN_PAPER for outcome in outcomes]) > 0.8
    assert Outcome.OPPOSITE not in outcomes and Outcome.NO_EFFECT not in outcomes


@pytest.mark.parametrize(("size", "least", "spread"), [(0.22, 0.05, 0.02), (0.04, 0.01, 0.006)])
def test_such_models_are_decided_at_the_effect_of_the_paper(rng, size, least, spread):
    """Three runs of each arm, with the spread over seeds of CKA and of accuracy on CIFAR-10."""
    count, paper = 2000, PaperEffect(1, size, "")
    terms = spread * rng.normal(size=(count, 3, 2)) + np.array([size, 0.0])
    outcomes = [decide(over_runs(each).interval, paper, least) for each in terms]
    assert np.mean([outcome is Outcome.AS_IN_PAPER for outcome in outcomes]) > 0.8


@pytest.mark.parametrize("sign", [1, 0])
def test_a_precise_null_has_an_outcome_and_a_relevant_effect_rarely_that_one(rng, sign):
    paper, least, count = PaperEffect(sign, 0.3 if sign else 0.0, ""), 0.05, 2000
    outcome = Outcome.NO_EFFECT if sign else Outcome.AS_IN_PAPER
    found = [
        np.mean(
            [
                decide(batches(rng, effect, 0.03).interval, paper, least) is outcome
                for _ in range(count)
            ]
        )
        for effect in (0.0, least)
    ]
    assert found[0] > 0.8 and found[1] < 0.025 + 2 * np.sqrt(0.025 / count)


def test_the_number_of_images_does_not_change_what_is_decided(rng):
    """More of them narrow an interval, and never turn a decision into no test."""
    for count in (8, 32, 128):
        outcomes = {decide(batches(rng, 0.3, 0.1, count).interval, ABOVE, 0.05) for _ in range(100)}
        assert outcomes == {Outcome.AS_IN_PAPER}


def of(estimate, least=0.02):
    """A tested claim with this estimate."""
    made = Claim("name", "S.", "E.", lambda: estimate, (), "unit", ABOVE, least)
    return Tested(made, estimate, estimate.value)


@SLOW
def test_images_are_promised_rarely_without_an_effect_and_suffice_with_one(rng):
    """A paired difference in accuracy, whose smallest effect of interest is 0.02."""

    def pair(count, difference, discordant=0.2):
        both = [0.5, (discordant + difference) / 2, (discordant - difference) / 2]
        outcome = rng.choice(4, count, p=[*both, 1 - sum(both)])
        return minus(share_of(outcome < 2), share_of((outcome == 0) | (outcome == 2)))

    for images, most in ((300, 0.25), (1000, 0.1)):
        promised = [images_to_decide(of(pair(images, 0.0))) for _ in range(400)]
        assert np.mean([number is not None for number in promised]) < most
    kept = []
    for _ in range(400):
        number = images_to_decide(of(pair(300, 0.06)))
        if number is not None:
            assert number <= 100_000
            kept.append(of(pair(number, 0.06)).outcome in DECIDED)
    assert np.mean(kept) > 0.8 - 2 * np.sqrt(0.16 / len(kept))


def test_a_claim_needs_a_smallest_effect_below_that_of_the_paper():
    for effect, least in ((0.04, 0.05), ("above", 0.0), (-0.1, 0.1)):
        with pytest.raises(ValueError, match="smallest effect of interest"):
            claim("cka.{vit}", "Figure 1", "CKA", effect, least)
    made = claim("cka.{vit}", "Table 1", "CKA", -0.2, 0.05, name="n", text=("S.", "E."))(abs)
    assert made.paper == PaperEffect(-1, 0.2, "Table 1") and made.beyond_untrained
    assert {method.value for method in Method} == {"images", "runs", "binomial"}
    assert len(Outcome) == 6


@pytest.mark.parametrize("sigma", [*(pytest.param(x, marks=SLOW) for x in (0.5, 0.75, 1)), 1.5])
def test_neighbouring_tokens(rng, sigma):
    """Tokens of one grid, correlated up to 0.85 with neighbours: runs are the units, not tokens."""
    count, runs = 6000, 3
    fields = gaussian_filter(rng.normal(size=(count, runs, 16, 16)), (0, 0, sigma, sigma))
    gaps = fields[:, :, 4:12, 4:12].mean(axis=(2, 3))
    assert decided([over_runs(row) for row in gaps]) == band(count)


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
    assert decided(plateaus) == band(count)
    assert decided(gaps) < 0.05 + 2 * np.sqrt(0.05 * 0.95 / len(gaps))


@SLOW
def test_readouts_whose_accuracies_differ_by_the_smallest_effect(rng):
    """Equivalence at its margin is claimed in 2.5 % at most."""
    count, paper, equal = 1000, native_readouts_equal.paper, 0
    for _ in range(count):
        pair = (probes_of(answers(rng, share, 1, 2000, 0)) for share in (0.65, 0.6))
        estimate = native_readouts_equal(*pair)
        equal += decide(estimate.interval, paper, 0.05) is Outcome.AS_IN_PAPER
    assert equal / count < 0.025 + 2 * np.sqrt(0.025 / count)


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
    assert decided(estimates) < 0.05 + 2 * np.sqrt(0.05 * 0.95 / count)
