"""How many images or runs decide, next to simulations with that many."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from vit_tf import analysis
from vit_tf.analysis.statistics.estimates import (
    Units,
    accuracy_of,
    descriptive,
    jackknife_over,
    mean_over,
    minus,
    over_runs,
    safeguard_effect,
    share_of,
    with_error,
)

# CIFAR-10's 10,000 test images: both right, only vit-cls-cifar10, only vit-gap-cifar10, neither.
CLS_AND_GAP = np.array([4808, 1044, 873, 3275])


@pytest.mark.parametrize("effect", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("power", [0.8, 0.95])
def test_power_of_a_mean_of_a_known_effect(rng, effect, power):
    """A t-test of so many values rejects with the power that was asked for, from 10 values on.

    The standard deviation of the values is known from a large pilot.
    """
    pilot = with_error(effect, (1 / np.sqrt(5000), 4999), Units("images", 5000, 5000))
    count = analysis.images_needed(pilot, power=power, effect=effect)
    draws = 4000 if count < 1000 else 1500
    values = rng.normal(effect, 1.0, (draws, count))
    errors = values.std(axis=1, ddof=1) / np.sqrt(count)
    decided = abs(values.mean(axis=1)) > stats.t.ppf(0.975, count - 1) * errors
    assert abs(decided.mean() - power) < 0.02 + 0.01 * (count < 20)
    fewer = stats.nct.sf(stats.t.ppf(0.975, count - 2), count - 2, np.sqrt(count - 1) * effect)
    assert fewer < power


@pytest.mark.parametrize("batches", [4, 8])
def test_few_batches_of_a_pilot_estimate_their_spread_roughly_and_more_are_needed(rng, batches):
    """Over pilots, the power is that which was asked for (Julious and Owen 2006)."""
    effect, count = 0.6, 2000
    pilots = rng.normal(effect, 1, (count, batches)).std(axis=1, ddof=1)
    decided = []
    for deviation in pilots:
        error = deviation / np.sqrt(batches), batches - 1
        pilot = with_error(effect, error, Units("batches", batches, 10 * batches))
        needed = analysis.images_needed(pilot, power=0.8, effect=effect) // 10
        critical = stats.t.ppf(0.975, needed - 1)
        decided.append(stats.nct.sf(critical, needed - 1, np.sqrt(needed) * effect))
    assert abs(np.mean(decided) - 0.8) < 0.03


def pair_of(rng, count, difference, discordant=0.2):
    """A paired difference of accuracy with a known true value."""
    shares = [0.5, (discordant + difference) / 2, (discordant - difference) / 2, 0.5 - discordant]
    outcome = rng.choice(4, count, p=shares)
    return minus(share_of(outcome < 2), share_of((outcome == 0) | (outcome == 2)))


@pytest.mark.slow
@pytest.mark.parametrize("images", [200, 1000])
@pytest.mark.parametrize("difference", [0.02, 0.04])
def test_images_that_follow_from_a_pilot_keep_their_promise(difference, images):
    """The nearer end of the 80 % interval is taken, not the value, which is often too large."""
    rng, decided = np.random.default_rng(images), []
    for _ in range(400):
        pilot = pair_of(rng, images, difference)
        if safeguard_effect(pilot) == 0:
            continue
        count = analysis.images_needed(pilot, power=0.8)
        if count < 400_000:
            gap = pair_of(rng, count, difference)
            decided.append(gap.interval[0] > 0 or gap.interval[1] < 0)
    assert np.mean(decided) > 0.8 - 2 * np.sqrt(0.16 / len(decided))


def test_power_of_a_paired_difference_of_accuracy(rng):
    """The images that decide between the two bundled ViTs, whose 1,000 images rarely do."""
    population = np.repeat(np.arange(4), CLS_AND_GAP)
    gap = minus(share_of(population < 2), share_of(population % 2 == 0))
    count = analysis.images_needed(gap, power=0.8, effect=gap.value)
    outcomes = rng.choice(4, (1000, count), p=CLS_AND_GAP / CLS_AND_GAP.sum())
    decided = []
    for outcome in outcomes:
        low, high = minus(share_of(outcome < 2), share_of(outcome % 2 == 0)).interval
        decided.append(low > 0 or high < 0)
    assert abs(np.mean(decided) - 0.8) < 0.02 + 2 * np.sqrt(0.16 / 1000)


@pytest.mark.parametrize("effect", [1.0, 0.6])
def test_batches_have_the_degrees_of_freedom_of_batches(rng, effect):
    """Few batches decide as often as promised: t of the number of batches, not of images."""
    pilot = with_error(effect, (1 / np.sqrt(2000), 1999), Units("batches", 2000, 200_000))
    images = analysis.images_needed(pilot, power=0.8, effect=effect)
    batches = images // 100
    assert images == 100 * batches and batches < 30
    values = rng.normal(effect, 1, (4000, batches))
    errors = values.std(axis=1, ddof=1) / np.sqrt(batches)
    decided = abs(values.mean(axis=1)) > stats.t.ppf(0.975, batches - 1) * errors
    assert 0.78 < decided.mean() < 0.88


def test_width_of_an_interval():
    rng = np.random.default_rng(0)
    pilot = jackknife_over(0.5, 0.5 + 0.01 * rng.normal(size=10), 1000)
    deviation = pilot.error[0] * np.sqrt(10)
    batches = analysis.images_needed(pilot, half_width=0.01) // 100
    widths = [stats.t.ppf(0.975, n - 1) * deviation / np.sqrt(n) for n in (batches, batches - 1)]
    assert widths[0] <= 0.01 < widths[1]
    accuracy = accuracy_of(0.9, 100)
    assert analysis.images_needed(accuracy, half_width=0.03) == pytest.approx(384, rel=0.08)


def test_results_of_measurements_are_pilots():
    cka = np.array([[1.0, 0.5], [0.5, 1.0]])
    rest = cka + 0.01 * np.array([1.0, -1.0, 0.5, -0.5])[:, None, None]
    dims = ("layer_x", "layer_y")
    data = {"cka": (dims, cka), "leave_one_out": (("batch", *dims), rest)}
    result = xr.Dataset(data, attrs={"examples": 400, "batch_size": 100})
    assert analysis.images_needed(result, half_width=0.01) > 400
    assert analysis.images_needed(result, half_width=0.2) < 400


def test_runs_are_counted_where_the_estimate_is_over_runs():
    """Three seeds that differ by 0.02: a difference of 0.03 needs few more."""
    pilot = over_runs(np.array([0.01, 0.03, 0.05]))
    count = analysis.images_needed(pilot, power=0.8, effect=0.03)
    # The spread is known from three runs only: a noncentral t with two degrees of freedom.
    powers = [
        stats.nct.cdf(np.sqrt(n) * 0.03 / 0.02, 2, stats.t.ppf(0.975, n - 1))
        for n in (count, count - 1)
    ]
    assert powers[0] >= 0.8 > powers[1]


def test_a_pilot_of_no_effect_promises_nothing(rng):
    """With no effect, 80 % of the pilots contain 0 in their 80 % interval, and raise."""
    raised = 0
    for _ in range(300):
        try:
            analysis.images_needed(mean_over(rng.normal(size=30), "images"), power=0.8)
        except ValueError:
            raised += 1
    assert abs(raised / 300 - 0.8) < 3 * np.sqrt(0.16 / 300)


@pytest.mark.parametrize(
    ("pilot", "options", "message"),
    [
        (accuracy_of(0.9, 100), {}, "half_width= or power="),
        (accuracy_of(0.9, 100), {"half_width": 0.1, "power": 0.8}, "half_width= or power="),
        (accuracy_of(0.9, 100), {"half_width": 0.0}, "half_width above 0"),
        (accuracy_of(0.9, 100), {"power": 1.0}, r"power in \(0, 1\)"),
        (accuracy_of(0.9, 100), {"power": 0.8, "threshold": 0.9}, "differs from the threshold"),
        (descriptive(0.5, "A maximum"), {"power": 0.8}, "with an interval over.*interval=None"),
        (xr.Dataset({"a": 1}), {"power": 0.8}, "a result of cka"),
    ],
)
def test_what_has_no_answer(pilot, options, message):
    with pytest.raises(ValueError, match=message):
        analysis.images_needed(pilot, **options)
