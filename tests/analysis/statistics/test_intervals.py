"""Intervals beside published examples, SciPy, and the formulas that they are made of."""

from functools import partial

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from vit_tf.analysis.engine.estimates import estimate_from_cka, estimate_over_batches
from vit_tf.analysis.engine.results import pack_correct, unpack_correct
from vit_tf.analysis.statistics import estimates, intervals
from vit_tf.analysis.statistics.estimates import Method, Units


@pytest.mark.parametrize(("successes", "trials"), [(0, 4), (3, 4), (99, 100), (100, 100), (7, 30)])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_wilson_is_that_of_scipy(successes, trials, alpha):
    wanted = stats.binomtest(successes, trials).proportion_ci(1 - alpha, method="wilson")
    found = intervals.wilson(successes, trials, alpha)
    np.testing.assert_allclose(found, (wanted.low, wanted.high), atol=1e-12)


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [  # Newcombe 1998c (Statistics in Medicine 17, 2635-2650), table II, method 10
        ((36, 12, 2, 0), 0.0569, 0.3404),
        ((20, 12, 2, 16), 0.0562, 0.3292),
        ((36, 14, 0, 0), 0.1528, 0.4167),
    ],
)
def test_paired_difference_is_the_published_one(counts, low, high):
    found = intervals.newcombe_paired(*counts)
    np.testing.assert_allclose(found, (low, high), atol=6e-5)
    one, other = (np.repeat(values, counts) == 1 for values in ([1, 1, 0, 0], [1, 0, 1, 0]))
    assert intervals.pair_counts(one, other) == counts
    gap = estimates.minus(*map(estimates.share_of, (one, other)))
    assert gap.interval == found and gap.method is Method.BINOMIAL


def test_equal_answers_differ_by_nothing_but_the_width_of_agreement():
    low, high = intervals.newcombe_paired(60, 0, 0, 40)
    assert low == pytest.approx(-high) and 0 <= high < 0.04
    low, high = intervals.newcombe_paired(30, 20, 10, 40)
    np.testing.assert_allclose(intervals.newcombe_paired(30, 10, 20, 40), (-high, -low))


def test_holm_rejects_what_its_adjusted_p_values_do(rng):
    for _ in range(200):
        p_values = rng.beta(0.3, 2, size=6)
        order = np.argsort(p_values)
        adjusted = np.maximum.accumulate(p_values[order] * np.arange(6, 0, -1))
        rejected = np.zeros(6, bool)
        rejected[order] = adjusted <= 0.05
        np.testing.assert_array_equal(p_values <= intervals.holm_levels(p_values), rejected)
    # A classic: .01 .04 .03 .005 of four; at .0125, .05 / 3 the first two, at .025 no more.
    levels = intervals.holm_levels([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(levels, [0.05 / 3, 0.025, 0.025, 0.0125])


def cka_of(rng, layers=4, batches=7):
    """A result of `cka` from random HSIC."""
    roots = rng.normal(size=(batches, layers, 30))
    hsic = roots @ roots.swapaxes(1, 2)
    sums = np.stack([hsic.sum(0), *(hsic.sum(0) - hsic)])  # of all batches, and of all but one
    norm = np.sqrt(np.diagonal(sums, axis1=1, axis2=2))
    value, *rest = sums / norm[:, :, None] / norm[:, None]
    stderr = np.sqrt((batches - 1) * np.var(rest, axis=0))
    dims = ("layer_x", "layer_y")
    data = {"cka": (dims, value), "stderr": (dims, stderr)}
    data["leave_one_out"] = (("batch", *dims), np.array(rest))
    return xr.Dataset(data, attrs={"examples": 10 * batches, "batch_size": 10})


def test_saved_answers_come_back_equal(rng, tmp_path):
    correct = rng.random((3, 2, 77)) < 0.6
    texts = pack_correct(correct)
    assert texts.shape == (3, 2)
    saved = xr.DataArray(correct.mean(-1), {"correct": (("layer", "l2"), texts)}, ("layer", "l2"))
    saved.to_netcdf(tmp_path / "result.nc")
    again = xr.load_dataarray(tmp_path / "result.nc")
    np.testing.assert_array_equal(unpack_correct(again["correct"], 77), correct)


@pytest.mark.parametrize(
    "limits",
    [
        partial(intervals.wilson, 9, 10),
        partial(intervals.newcombe_paired, 20, 12, 2, 16),
    ],
)
def test_intervals_of_smaller_alpha_hold_those_of_larger(limits):
    ends = np.array([limits(alpha) for alpha in (0.2, 0.05, 0.01)])
    assert (np.diff(ends[:, 0]) < 0).all() and (np.diff(ends[:, 1]) > 0).all()


def test_unpaired_difference_is_the_published_one():
    # Newcombe 1998b (Statistics in Medicine 17, 873-890), table II, method 10: 56/70 - 48/80
    gap = estimates.minus(estimates.accuracy_of(0.8, 70), estimates.accuracy_of(0.6, 80))
    np.testing.assert_allclose(gap.interval, (0.0524, 0.3339), atol=6e-5)
    assert gap.method is Method.BINOMIAL


@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_student_paired_and_welch_are_those_of_scipy(rng, alpha):
    one, other = rng.normal(size=5), rng.normal(1, 3, size=5)
    paired = [estimates.mean_over(values, "videos") for values in (one, other)]
    runs = np.stack([one, -other], axis=1)  # the terms of two arms
    for actual, theirs in (
        (paired[0], stats.ttest_1samp(one, 0)),
        (estimates.minus(*paired), stats.ttest_rel(one, other)),
        (estimates.over_runs(runs), stats.ttest_ind(one, other, equal_var=False)),
        (estimates.over_runs(one), stats.ttest_1samp(one, 0)),
    ):
        np.testing.assert_allclose(actual.limits(alpha), theirs.confidence_interval(1 - alpha))


def test_arms_are_not_paired_by_the_number_of_their_seed(rng):
    """The order of the runs of an arm does not matter, and the terms are those of the arms."""
    one, other = rng.normal(size=4), rng.normal(size=4)
    first = estimates.over_runs(np.stack([one, -other], axis=1))
    again = estimates.over_runs(np.stack([one[::-1], -other], axis=1))
    np.testing.assert_allclose(first.interval, again.interval)
    gap = estimates.between(*(estimates.descriptive(x, "") for x in (3.0, 1.0)))
    assert gap.value == 2 and gap.terms == (3.0, -1.0)
    both = estimates.between(gap, estimates.descriptive(0.5, ""))
    assert both.terms == (3.0, -1.0, -0.5) and both.value == 1.5


def test_estimates_are_paired_only_over_the_same_units(rng):
    values = rng.normal(size=(2, 9))
    same = [estimates.mean_over(row, "batches", 900) for row in values]
    other = estimates.mean_over(values[1], "batches", 90)
    paired, welch = estimates.minus(*same), estimates.minus(same[0], other)
    wanted = stats.ttest_rel(*values).confidence_interval()
    np.testing.assert_allclose(paired.interval, wanted)
    wanted = stats.ttest_ind(*values, equal_var=False).confidence_interval()
    np.testing.assert_allclose(welch.interval, wanted)
    assert paired.units == Units("batches", 9, 900) and paired.method is Method.IMAGES


def test_what_training_adds_is_paired_with_the_mean_of_the_copies(rng):
    trained, *copies = rng.normal(size=(3, 8))
    estimate = estimates.beyond(
        estimates.mean_over(trained, "batches"),
        [estimates.mean_over(copy, "batches") for copy in copies],
    )
    wanted = stats.ttest_rel(trained, np.mean(copies, axis=0)).confidence_interval()
    np.testing.assert_allclose(estimate.interval, wanted)
    # Of truth values, the difference to the mean of two copies is Student's over images.
    answers = rng.random((3, 200)) < 0.5
    gap = estimates.beyond(*(lambda a, b, c: (a, [b, c]))(*map(estimates.share_of, answers)))
    wanted = stats.ttest_rel(answers[0], answers[1:].mean(axis=0)).confidence_interval()
    np.testing.assert_allclose(gap.interval, wanted)
    arms = [estimates.between(*map(estimates.share_of, answers[rows])) for rows in ([0, 1], [1, 2])]
    effect = estimates.beyond(arms[0], arms[1:])
    np.testing.assert_allclose(effect.terms, np.subtract(arms[0].terms, arms[1].terms))


def test_copies_of_the_first_units_are_paired_with_these(rng):
    """A sum of two means of different units, whose variances are Welch's."""
    trained, copies = rng.normal(size=9), rng.normal(size=(2, 4)) + 1
    estimate = estimates.beyond(
        estimates.mean_over(trained, "batches", 900),
        [estimates.mean_over(copy, "batches", 400) for copy in copies],
    )
    null = copies.mean(axis=0)
    assert estimate.value == pytest.approx(trained.mean() - null.mean())
    terms = 4 / 9 * trained[:4] - null, -5 / 9 * trained[4:]
    wanted = stats.ttest_ind(*terms, equal_var=False).confidence_interval()
    np.testing.assert_allclose(estimate.interval, wanted)


def test_the_mean_of_intervals_covers_copies_that_are_not_paired():
    copies = [estimates.accuracy_of(value, 100) for value in (0.3, 0.5)]
    mean = estimates.mean_of(copies)
    np.testing.assert_allclose(mean.interval, np.mean([copy.interval for copy in copies], axis=0))


def test_p_value_is_that_of_the_test_whose_interval_it_is(rng):
    for shift in (0.0, 1.0, 4.0):
        one, other = rng.normal(size=6), rng.normal(shift, 1, size=6)
        actual = intervals.p_value(estimates.over_runs(np.stack([one, -other], axis=1)).limits)
        wanted = stats.ttest_ind(one, other, equal_var=False).pvalue
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)


@pytest.mark.parametrize("function", [np.mean, lambda x: x.mean() ** 3, lambda x: x[:, 0].mean()])
def test_jackknife_is_that_of_its_definition(rng, function):
    rows = rng.normal(2, 1, size=(7, 2))
    value = function(rows)
    rest = np.array([function(np.delete(rows, at, axis=0)) for at in range(7)])
    actual = estimates.jackknife_over(value, rest, 70)
    stderr = np.sqrt(6 / 7 * ((rest - rest.mean()) ** 2).sum())
    reach = stats.t.ppf(0.975, 6) * stderr
    np.testing.assert_allclose(actual.interval, (value - reach, value + reach))
    assert actual.value == pytest.approx(value) and actual.units == Units("batches", 7, 70)


def test_rank_correlation_is_that_of_scipy(rng):
    for pairs in (rng.normal(size=(9, 2)), np.array([[1, 1], [2, 2], [2, 3], [4, 9], [5, 10]])):
        assert intervals.rank_correlation(pairs) == pytest.approx(stats.spearmanr(*pairs.T)[0])
    assert np.isnan(intervals.rank_correlation(np.ones((3, 2))))


def test_corrected_intervals_leave_out_zero_where_holm_does(rng):
    samples = [rng.normal(shift, 1, size=8) for shift in (0, 0.8, 1.2, 2)]
    before = [estimates.mean_over(sample, "batches") for sample in samples]
    p_values = [stats.ttest_1samp(sample, 0.2).pvalue for sample in samples]
    rejected = p_values <= intervals.holm_levels(p_values)
    after = estimates.corrected(before, 0.2)
    outside = [e.interval[0] > 0.2 or e.interval[1] < 0.2 for e in after]
    np.testing.assert_array_equal(outside, rejected)
    assert [each.comparisons for each in after] == [4] * 4
    nothing = estimates.descriptive(1.0, "A maximum")
    assert estimates.corrected([before[0], nothing]) == [before[0], nothing]


def test_descriptive_numbers_have_no_interval_and_nor_have_their_differences(rng):
    unknown = estimates.accuracy_of(0.7, np.nan)
    assert unknown.value == 0.7 and unknown.interval is None
    nothing = estimates.descriptive(3.0, "A maximum over heads")
    some = estimates.mean_over(rng.normal(size=4), "videos")
    for gap in (estimates.minus(some, nothing), estimates.minus(nothing, some)):
        assert gap.interval is None and gap.note == "A maximum over heads"
    equal = estimates.mean_over(np.ones(5), "videos")
    assert equal.value == 1 and equal.interval is None and "does not vary" in equal.note
    # A sample that varies still shows how far its mean is from that of the equal values.
    gap = estimates.minus(estimates.mean_over(np.arange(5.0), "videos"), equal)
    wanted = stats.t.interval(0.95, 4, 1.0, stats.sem(np.arange(5)))
    np.testing.assert_allclose(gap.interval, wanted)


def test_log_odds_have_the_ends_of_the_share():
    odds = estimates.transformed(estimates.accuracy_of(0.8, 100), lambda x: np.log(x / (1 - x)))
    ends = np.array(intervals.wilson(80, 100))
    np.testing.assert_allclose(odds.interval, np.log(ends / (1 - ends)))


def test_numbers_that_follow_from_cka_are_those_of_the_jackknife_and_are_paired(rng):
    one, other = cka_of(rng), cka_of(rng)
    cell = estimate_from_cka(lambda cka: cka[0, 1], one)
    reach = stats.t.ppf(0.975, 6) * one["stderr"].values[0, 1]
    np.testing.assert_allclose(cell.interval, (cell.value - reach, cell.value + reach))
    gap = estimates.minus(*(estimate_from_cka(np.mean, result) for result in (one, other)))
    rest = (one["leave_one_out"] - other["leave_one_out"]).mean(("layer_x", "layer_y")).values
    wanted = estimates.jackknife_over(gap.value, rest, 70)
    np.testing.assert_allclose(gap.interval, wanted.interval)


def test_results_without_each_batch_are_descriptive(rng):
    one = cka_of(rng).drop_vars("leave_one_out")
    assert estimate_from_cka(lambda cka: cka[0, 1], one).interval is None


def test_a_number_of_several_results_leaves_the_same_batch_out_of_all(rng):
    """The ratio of two means over batches, next to its jackknife by hand."""
    batches = rng.gamma(4, size=(2, 6, 3))
    results = [
        xr.DataArray(
            x.mean(axis=0),
            dims="layer",
            attrs={"examples": 60, "leave_one_out": ((x.sum(0) - x) / 5).ravel()},
        )
        for x in batches
    ]
    actual = estimate_over_batches(lambda a, b: a.mean() / b.mean(), *results)
    rest = [np.delete(batches, at, 1).mean((1, 2)) for at in range(6)]
    wanted = estimates.jackknife_over(
        batches[0].mean() / batches[1].mean(), np.array([a / b for a, b in rest]), 60
    )
    np.testing.assert_allclose(actual.interval, wanted.interval)
    del results[1].attrs["leave_one_out"]
    assert estimate_over_batches(lambda a, b: a.mean() / b.mean(), *results).interval is None
