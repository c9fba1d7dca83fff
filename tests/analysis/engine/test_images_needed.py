"""How many images or runs decide, next to simulations with that many."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from vit_tf import analysis
from vit_tf.analysis.engine.estimates import (
    Estimate,
    accuracy_of,
    descriptive,
    images_of,
    jackknifed,
    minus,
    over_trainings,
    student,
    with_error,
)

# CIFAR-10's 10,000 test images: both right, only vit-cls-cifar10, only vit-gap-cifar10, neither.
CLS_AND_GAP = np.array([4808, 1044, 873, 3275])


@pytest.mark.parametrize(("effect", "deviation"), [(1.0, 1.0), (0.3, 1.0), (0.05, 1.0)])
@pytest.mark.parametrize("power", [0.8, 0.95])
def test_power_of_a_mean(rng, effect, deviation, power):
    """A t-test of so many values rejects with the power that was asked for, from 10 values on."""
    pilot = with_error(effect, deviation / np.sqrt(50), 49, "Student's t over 50 images")
    count = analysis.images_needed(pilot, power=power)
    draws = 4000 if count < 1000 else 1500
    values = rng.normal(effect, deviation, (draws, count))
    errors = values.std(axis=1, ddof=1) / np.sqrt(count)
    decided = abs(values.mean(axis=1)) > stats.t.ppf(0.975, count - 1) * errors
    assert abs(decided.mean() - power) < 0.02 + 0.01 * (count < 20)
    fewer = stats.nct.sf(stats.t.ppf(0.975, count - 2), count - 2, np.sqrt(count - 1) * effect)
    assert fewer < power


def test_power_of_a_paired_difference_of_accuracy(rng):
    """The images that decide between the two bundled ViTs, whose 1,000 images rarely do."""
    population = np.repeat(np.arange(4), CLS_AND_GAP)
    pair = [accuracy_of(0, 0, population < 2), accuracy_of(0, 0, population % 2 == 0)]
    count = analysis.images_needed(minus(*pair), power=0.8, examples=len(population))
    outcomes = rng.choice(4, (1000, count), p=CLS_AND_GAP / CLS_AND_GAP.sum())
    decided = []
    for outcome in outcomes:
        gap = minus(accuracy_of(0, 0, outcome < 2), accuracy_of(0, 0, outcome % 2 == 0))
        decided.append(gap.low > 0 or gap.high < 0)
    assert abs(np.mean(decided) - 0.8) < 0.02 + 2 * np.sqrt(0.16 / 1000)


def test_width_of_an_interval():
    rng = np.random.default_rng(0)
    pilot = jackknifed(
        0.5, 0.5 + 0.01 * rng.normal(size=10), "batches", "10 batches of 1000 images"
    )
    assert images_of(pilot) == 1000
    deviation = pilot.error[0] * np.sqrt(1000)
    count = analysis.images_needed(pilot, half_width=0.01)
    widths = [stats.t.ppf(0.975, n - 1) * deviation / np.sqrt(n) for n in (count, count - 1)]
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
    runs = [student(np.array([x - 1e-6, x + 1e-6]), "images") for x in (0.01, 0.03, 0.05)]
    pilot = over_trainings(runs)
    count = analysis.images_needed(pilot, power=0.8)
    powers = [
        stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, np.sqrt(n) * 0.03 / 0.02)
        for n in (count, count - 1)
    ]
    assert powers[0] >= 0.8 > powers[1] and 3 < count < 10


@pytest.mark.parametrize(
    ("pilot", "options", "words"),
    [
        (accuracy_of(0.9, 100), {}, "half_width or power"),
        (accuracy_of(0.9, 100), {"half_width": 0.1, "power": 0.8}, "half_width or power"),
        (accuracy_of(0.9, 100), {"half_width": 0.0}, "half_width above 0"),
        (accuracy_of(0.9, 100), {"power": 0.8, "threshold": 0.9}, "other than the threshold"),
        (accuracy_of(0.9, 100), {"power": 1.0}, "power in"),
        (descriptive(0.9, "a maximum"), {"power": 0.8}, "a maximum"),
        (xr.DataArray([1.0], dims="layer"), {"power": 0.8}, "what is classified correctly"),
    ],
)
def test_what_cannot_be_planned_says_why(pilot, options, words):
    with pytest.raises(ValueError, match=words):
        analysis.images_needed(pilot, **options)


def equal_runs(values, own):
    """An estimate over runs with this half-width in each."""
    return over_trainings([Estimate(x, x - own, x + own, "") for x in values])


def test_runs_that_do_not_differ_need_no_more_than_two_or_no_number_suffices():
    pilot = equal_runs([0.3, 0.3, 0.3], 0.1)
    assert analysis.images_needed(pilot, power=0.8) == 2
    assert analysis.images_needed(pilot, half_width=0.2) == 2
    for asked in ({"power": 0.8, "threshold": 0.25}, {"half_width": 0.05}):
        with pytest.raises(ValueError, match="more images"):
            analysis.images_needed(pilot, **asked)


def test_the_interval_within_runs_does_not_shrink_with_more_runs(rng):
    """So many runs decide with the power that was asked for, although their images are shared."""
    deviation, own, effect = 0.04, 0.02, 0.05
    pilot = equal_runs(effect + deviation * np.array([-1.0, 0.0, 1.0]), own)
    count = analysis.images_needed(pilot, power=0.8)
    assert count > analysis.images_needed(equal_runs([0.01, 0.05, 0.09], 0.0), power=0.8)
    values = rng.normal(effect, deviation, (3000, count))
    estimates = [equal_runs(row, own) for row in values]
    decided = np.mean([x.low > 0 or x.high < 0 for x in estimates])
    assert abs(decided - 0.8) < 0.04 + 2 * np.sqrt(0.16 / 3000)
    fewer = [equal_runs(row[:-3], own) for row in values]
    assert np.mean([x.low > 0 or x.high < 0 for x in fewer]) < decided - 0.04
    wide = analysis.images_needed(pilot, half_width=0.03)
    reach = [
        np.hypot(stats.t.ppf(0.975, n - 1) * deviation / np.sqrt(n), own) for n in (wide, wide - 1)
    ]
    assert reach[0] <= 0.03 < reach[1]
