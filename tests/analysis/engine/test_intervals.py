"""Intervals beside published examples, SciPy, and the formulas that they are made of."""

from functools import partial

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from vit_tf.analysis.engine import estimates
from vit_tf.analysis.engine.results import pack_correct, unpack_correct


@pytest.mark.parametrize(("successes", "trials"), [(0, 4), (3, 4), (99, 100), (100, 100), (7, 30)])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_wilson_is_that_of_scipy(successes, trials, alpha):
    wanted = stats.binomtest(successes, trials).proportion_ci(1 - alpha, method="wilson")
    found = estimates.wilson(successes, trials, alpha)
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
    found = estimates.newcombe_paired(*counts)
    np.testing.assert_allclose(found, (low, high), atol=6e-5)
    one, other = (np.repeat(values, counts) == 1 for values in ([1, 1, 0, 0], [1, 0, 1, 0]))
    assert estimates.pair_counts(one, other) == counts
    pair = [estimates.accuracy_of(0, 0, sample) for sample in (one, other)]
    gap = estimates.minus(*pair)
    assert (gap.low, gap.high) == found and "paired" in gap.how


def test_unpaired_difference_is_the_published_one():
    # Newcombe 1998b (Statistics in Medicine 17, 873-890), table II, method 10: 56/70 - 48/80
    found = estimates.minus(estimates.share(56, 70, ""), estimates.share(48, 80, ""))
    np.testing.assert_allclose((found.low, found.high), (0.0524, 0.3339), atol=6e-5)


def test_equal_answers_differ_by_nothing_but_the_width_of_agreement():
    low, high = estimates.newcombe_paired(60, 0, 0, 40)
    assert low == pytest.approx(-high) and 0 <= high < 0.04
    low, high = estimates.newcombe_paired(30, 20, 10, 40)
    np.testing.assert_allclose(estimates.newcombe_paired(30, 10, 20, 40), (-high, -low))


@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_welch_and_student_are_those_of_scipy(rng, alpha):
    one, other = rng.normal(size=5), rng.normal(1, 3, size=8)
    paired = [estimates.student(values, "videos", "5 videos") for values in (one, other[:5])]
    for found, theirs in (
        (estimates.welch(one, other, "heads"), stats.ttest_ind(one, other, equal_var=False)),
        (estimates.student(one, "heads"), stats.ttest_1samp(one, 0)),
        (estimates.minus(*paired), stats.ttest_rel(one, other[:5])),
    ):
        np.testing.assert_allclose(found.at(alpha), theirs.confidence_interval(1 - alpha))


def test_estimates_are_paired_only_over_the_same_units(rng):
    values = rng.normal(size=(2, 9))
    same = [estimates.student(row, "batches", "9 batches") for row in values]
    other = estimates.student(values[1], "batches", "9 other batches")
    assert "paired over the same 9 batches" in estimates.minus(*same).how
    welch = estimates.minus(same[0], other)
    assert welch.how.endswith("not paired")
    wanted = stats.ttest_ind(*values, equal_var=False).confidence_interval()
    np.testing.assert_allclose((welch.low, welch.high), wanted)


def test_p_value_is_that_of_the_test_whose_interval_it_is(rng):
    for shift in (0.0, 1.0, 4.0):
        one, other = rng.normal(size=6), rng.normal(shift, 1, size=7)
        found = estimates.p_value(estimates.welch(one, other, "heads").at)
        wanted = stats.ttest_ind(one, other, equal_var=False).pvalue
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert np.isnan(estimates.p_value(lambda alpha: (np.nan, np.nan)))


@pytest.mark.parametrize("function", [np.mean, lambda x: x.mean() ** 3, lambda x: x[:, 0].mean()])
def test_jackknife_is_that_of_its_definition(rng, function):
    rows = rng.normal(2, 1, size=(7, 2))
    value = function(rows)
    rest = np.array([function(np.delete(rows, at, axis=0)) for at in range(7)])
    found = estimates.jackknifed(value, rest, "batches")
    stderr = np.sqrt(6 / 7 * ((rest - rest.mean()) ** 2).sum())
    reach = stats.t.ppf(0.975, 6) * stderr
    np.testing.assert_allclose((found.low, found.high), (value - reach, value + reach))


def test_fieller_holds_the_ratios_that_student_does_not_reject(rng):
    pairs = rng.normal([0.6, 2.0], [0.3, 0.4], size=(6, 2))
    for end in estimates.fieller(pairs):
        p = stats.ttest_1samp(pairs[:, 0] - end * pairs[:, 1], 0).pvalue
        assert p == pytest.approx(0.05)
    assert np.isnan(estimates.fieller(pairs * [1, 0.01] - [0, 0.02])).all()


def test_rank_correlation_is_that_of_scipy_and_its_interval_holds_it(rng):
    for pairs in (rng.normal(size=(9, 2)), np.array([[1, 1], [2, 2], [2, 3], [4, 9], [5, 10]])):
        found = estimates.correlation(pairs, "heads")
        assert found.value == pytest.approx(stats.spearmanr(*pairs.T).statistic)
        assert -1 <= found.low < found.value <= found.high <= 1
    # Bonett and Wright 2000: tanh(atanh(r) +- z sqrt((1 + r^2 / 2) / (n - 3))).
    low, high = estimates.spearman_interval(0.5, 28)
    reach = stats.norm.ppf(0.975) * np.sqrt((1 + 0.125) / 25)
    np.testing.assert_allclose((low, high), np.tanh(np.arctanh(0.5) + np.array([-reach, reach])))
    perfect = estimates.correlation(np.repeat(np.arange(6.0)[:, None], 2, 1), "layers")
    assert perfect.value == perfect.high == 1 and perfect.low < 0.9


def test_spreads_are_compared_by_their_ratio_whatever_their_scale(rng):
    one, other = rng.normal(size=8), rng.normal(0, 2, size=6)
    found = estimates.ratio_of_spreads(one, other, "heads")
    assert found.value == pytest.approx(one.std(ddof=1) / other.std(ddof=1))
    scaled = estimates.ratio_of_spreads(10 * one - 3, other, "heads")
    np.testing.assert_allclose(scaled.at(0.01), 10 * np.array(found.at(0.01)))
    assert np.isnan(estimates.ratio_of_spreads(one, np.ones(5), "heads").low)
    assert np.isnan(estimates.ratio_of_spreads(one[:2], other, "heads").low)


def test_holm_rejects_what_its_adjusted_p_values_do(rng):
    for _ in range(200):
        p_values = rng.beta(0.3, 2, size=6)
        order = np.argsort(p_values)
        adjusted = np.maximum.accumulate(p_values[order] * np.arange(6, 0, -1))
        rejected = np.zeros(6, bool)
        rejected[order] = adjusted <= 0.05
        np.testing.assert_array_equal(p_values <= estimates.holm_levels(p_values), rejected)
    # A classic: .01 .04 .03 .005 of four; at .0125, .05 / 3 the first two, at .025 no more.
    levels = estimates.holm_levels([0.01, 0.04, 0.03, 0.005, np.nan])
    np.testing.assert_allclose(levels, [0.05 / 3, 0.025, 0.025, 0.0125, 0.05])


def test_corrected_intervals_leave_out_the_line_where_holm_does(rng):
    samples = [rng.normal(shift, 1, size=8) for shift in (0, 0.8, 1.2, 2)]
    found = [estimates.student(sample, "heads") for sample in samples]
    p_values = [stats.ttest_1samp(sample, 0.2).pvalue for sample in samples]
    rejected = p_values <= estimates.holm_levels(p_values)
    after = estimates.corrected(found, 0.2)
    np.testing.assert_array_equal([e.low > 0.2 or e.high < 0.2 for e in after], rejected)
    assert all(b.low <= a.low and a.high <= b.high for a, b in zip(found, after, strict=True))
    nothing = estimates.descriptive(1.0, "a maximum")
    assert estimates.corrected([found[0], nothing]) == [found[0], nothing]


def test_estimate_without_limits_is_scaled_as_a_normal_one():
    found = estimates.Estimate(2.0, 1.0, 4.0, "")
    scale = stats.norm.ppf(0.995) / stats.norm.ppf(0.975)
    np.testing.assert_allclose(found.at(0.01), (2 - scale, 2 + 2 * scale))


def test_transformed_and_descriptive_estimates():
    logs = np.log([1.0, 2.0, 4.0])
    found = estimates.transformed(estimates.student(logs, "layers"), np.exp)
    ends = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    np.testing.assert_allclose((found.value, found.low, found.high), (2, *np.exp(ends)))
    unknown = estimates.accuracy_of(0.7, np.nan)
    assert unknown.value == 0.7 and np.isnan(unknown.low)
    nothing = estimates.descriptive(3.0, "a maximum over heads")
    for gap in (estimates.minus(found, nothing), estimates.minus(nothing, found)):
        assert np.isnan(gap.low) and "a maximum over heads" in gap.how
        assert estimates.claim_outcome(gap.low, gap.high, 0, "above") == "descriptive"


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


def test_numbers_that_follow_from_cka_are_those_of_the_jackknife_and_are_paired(rng):
    one, other = cka_of(rng), cka_of(rng)
    cell = estimates.of_cka(lambda cka: cka[0, 1], one)
    reach = stats.t.ppf(0.975, 6) * one["stderr"].values[0, 1]
    np.testing.assert_allclose((cell.high - cell.value, cell.value - cell.low), reach)
    gap = estimates.minus(*(estimates.of_cka(np.mean, result) for result in (one, other)))
    rest = (one["leave_one_out"] - other["leave_one_out"]).mean(("layer_x", "layer_y")).values
    wanted = estimates.jackknifed(gap.value, rest, "batches")
    np.testing.assert_allclose((gap.low, gap.high), (wanted.low, wanted.high))
    assert gap.pairing == "7 batches of 70 images"


def test_older_results_have_the_unpaired_interval_and_say_so(rng):
    one, other = (cka_of(rng).drop_vars("leave_one_out") for _ in range(2))
    cell = estimates.of_cka(lambda cka: cka[0, 1], one)
    np.testing.assert_allclose(
        cell.high - cell.value, stats.t.ppf(0.975, 6) * one["stderr"].values[0, 1]
    )
    gap = estimates.minus(*(estimates.of_cka(np.mean, result) for result in (one, other)))
    assert "not paired" in gap.how and gap.low < gap.value < gap.high
    single = one.assign(stderr=one["stderr"] * np.nan)
    assert np.isnan(estimates.of_cka(np.mean, single).low)


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
        partial(estimates.wilson, 9, 10),
        partial(estimates.spearman_interval, 0.7, 12),
        partial(estimates.newcombe_paired, 20, 12, 2, 16),
        partial(estimates.fieller, np.array([[1.0, 2], [1.5, 2.4], [0.7, 1.9], [1.1, 2.2]])),
    ],
)
def test_intervals_of_smaller_alpha_hold_those_of_larger(limits):
    ends = np.array([limits(alpha) for alpha in (0.2, 0.05, 0.01)])
    assert (np.diff(ends[:, 0]) < 0).all() and (np.diff(ends[:, 1]) > 0).all()
