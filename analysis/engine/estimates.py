"""Confidence intervals as functions of arrays, and `Estimate`, a number with its interval.

`alpha` is the probability of missing the truth.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import xarray as xr
from scipy.special import nctdtr, ndtr, ndtri, stdtrit

ALPHA = 0.05
ROUNDING = 1e-12  # relative to a value: a smaller standard error is none
LEAST_PAIRS = 5  # for the interval of a rank correlation


Limits: TypeAlias = tuple[float, float]  # both ends of an interval
Real: TypeAlias = float | np.floating | np.ndarray  # one number, as NumPy returns it
Number = TypeVar("Number", float, np.ndarray)


def t_interval(
    value: Number, stderr: Number, df: float, alpha: float = ALPHA
) -> tuple[Number, Number]:
    """Student's interval `value +- t stderr`; normal where `df` is infinite."""
    quantile = -ndtri(alpha / 2) if np.isinf(df) else -stdtrit(df, alpha / 2)
    return value - quantile * stderr, value + quantile * stderr


def mean_error(values: np.ndarray) -> tuple[float, int]:
    """Standard error of a mean of independent values (unit,), and its degrees of freedom."""
    return np.std(values, ddof=1) / np.sqrt(len(values)), len(values) - 1


def sum_of_errors(*errors: tuple[float, float]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of independent terms (Welch 1947)."""
    variances = np.array([stderr**2 for stderr, _ in errors])
    total = variances.sum()
    if not total:
        return 0.0, float(min(df for _, df in errors))
    df = total**2 / sum(v**2 / df for v, (_, df) in zip(variances, errors, strict=True))
    return np.sqrt(total), df


def wilson(successes: float, trials: float, alpha: float = ALPHA) -> Limits:
    """Score interval of a proportion (Wilson 1927; Newcombe 1998a, method 3)."""
    share, z2 = successes / trials, ndtri(alpha / 2) ** 2
    middle = share + z2 / (2 * trials)
    reach = np.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials**2)))
    scale = 1 + z2 / trials
    # Rounding must not leave a share of 0 or 1 outside.
    return min((middle - reach) / scale, share), max((middle + reach) / scale, share)


def mover(
    first: float,
    first_limits: Limits,
    second: float,
    second_limits: Limits,
    correlation: float = 0.0,
) -> Limits:
    """Interval of `one - other` from their own intervals (Zou and Donner 2008).

    Of proportions with Wilson's intervals this is method 10 of Newcombe (1998b) for independent
    samples and, with their correlation, method 10 of Newcombe (1998c) for paired ones.
    """
    below, above = first - first_limits[0], first_limits[1] - first
    second_below, second_above = second - second_limits[0], second_limits[1] - second
    value = first - second
    low = below**2 + second_above**2 - 2 * correlation * below * second_above
    high = above**2 + second_below**2 - 2 * correlation * above * second_below
    return value - np.sqrt(max(low, 0)), value + np.sqrt(max(high, 0))


def pair_counts(first: np.ndarray, second: np.ndarray) -> tuple[float, ...]:
    """Counts of units where both truth values, only the first, only the second or none is true."""
    cells = first & second, first & ~second, ~first & second, ~first & ~second
    return tuple(float(cell.sum()) for cell in cells)


def newcombe_paired(
    both: float, only_one: float, only_other: float, neither: float, alpha: float = ALPHA
) -> Limits:
    """Interval of a difference of paired proportions (Newcombe 1998c, method 10)."""
    n, first, second = (both + only_one + only_other + neither, both + only_one, both + only_other)
    determinant = both * neither - only_one * only_other
    if determinant > 0:
        determinant = max(determinant - n / 2, 0)
    margins = np.sqrt(first * (n - first) * second * (n - second))
    correlation = determinant / margins if margins else 0.0
    limits = (wilson(count, n, alpha) for count in (first, second))
    return mover(first / n, next(limits), second / n, next(limits), correlation)


def fieller(pairs: np.ndarray, alpha: float = ALPHA) -> Limits:
    """Interval of the ratio of the means of the columns of (unit, 2) (Fieller 1954).

    The ratios r for which the mean of `a - r b` does not differ from 0 by Student's t. Where the
    denominator itself may be 0 they are no interval, and the ends are NaN.
    """
    count = len(pairs)
    above, below = pairs.mean(axis=0)
    quantile = stdtrit(count - 1, alpha / 2) ** 2 / count
    (s_aa, s_ab), (_, s_bb) = np.cov(pairs, rowvar=False) * quantile
    square, middle, constant = below**2 - s_bb, above * below - s_ab, above**2 - s_aa
    root = middle**2 - square * constant
    if square <= 0 or root < 0:
        return np.nan, np.nan
    return (middle - np.sqrt(root)) / square, (middle + np.sqrt(root)) / square


def rank_correlation(pairs: np.ndarray) -> float:
    """Spearman's rank correlation of the columns of a (unit, 2) array; NaN if one is constant."""
    ranked = [ranks(column) for column in pairs.T]
    deviations = [rank - rank.mean() for rank in ranked]
    scale = np.sqrt(np.prod([deviation @ deviation for deviation in deviations]))
    return deviations[0] @ deviations[1] / scale if scale else np.nan


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing the mean of theirs."""
    from scipy.stats import rankdata  # takes a quarter of the start of a drawing process

    return rankdata(values) - 1


def spearman_interval(correlation: float, count: int, alpha: float = ALPHA) -> Limits:
    """Interval of a rank correlation of `count` pairs, by Fisher's z (Bonett and Wright 2000).

    A correlation of 1 or -1 counts as half a step towards the next possible one: its width is not
    0.
    """
    largest = 1 - 6 / (count * (count**2 - 1))
    inside = np.clip(correlation, -largest, largest)
    stderr = np.sqrt((1 + inside**2 / 2) / (count - 3))
    low, high = np.tanh(t_interval(np.arctanh(inside), stderr, np.inf, alpha))
    return min(low, correlation), max(high, correlation)


def pseudo_values(value: float, leave_one_out: np.ndarray) -> np.ndarray:
    """Pseudo-values of the jackknife (unit, ...), from the value of all units and without each."""
    count = len(leave_one_out)
    return count * value - (count - 1) * np.asarray(leave_one_out)


def log_variances(values: np.ndarray) -> tuple[float, np.ndarray]:
    """The logarithm of the variance of values (unit,), and its pseudo-values (Miller 1968)."""
    log_variance = np.log(np.var(values, ddof=1))
    rest = [np.log(np.var(np.delete(values, at), ddof=1)) for at in range(len(values))]
    return log_variance, pseudo_values(log_variance, np.array(rest))


def p_value(limits: Callable[[float], Limits], null: float = 0.0) -> float:
    """The smallest alpha, at least 1e-12, whose `limits(alpha)` leave out `null`; else NaN."""

    def outside(alpha: float) -> bool:
        low, high = limits(alpha)
        return low > null or high < null

    if not np.isfinite(limits(ALPHA)).all():
        return np.nan
    inner, outer = 0.0, -12.0  # of log10(alpha)
    if outside(10**outer):
        return 10**outer
    for _ in range(40):
        middle = (inner + outer) / 2
        inner, outer = (middle, outer) if outside(10**middle) else (inner, middle)
    return 10**inner


def holm_levels(p_values: Sequence[float], alpha: float = ALPHA) -> np.ndarray:
    """The level of each of several tests at which `alpha` holds for all (Holm 1979); NaN do not
    count.

    The i-th smallest of m p-values is compared with `alpha / (m - i)`, i from 0, and from the first
    that is larger on, all with its level.
    """
    p_values = np.asarray(p_values, float).tolist()
    order = np.argsort(p_values)[: np.isfinite(p_values).sum()]
    levels = np.full(len(p_values), alpha)
    for rank, at in enumerate(order):
        levels[order[rank:]] = alpha / (len(order) - rank)
        if p_values[at] > levels[at]:
            break
    return levels


LEAST_EXAMPLES = 4  # of a batch, for the unbiased HSIC
UNBOUNDED = (-np.inf, np.inf)  # the possible values of most quantities
RANGES = {
    "rank correlation": (-1.0, 1.0),
    "share beyond chance": (-np.inf, 1.0),
    "share of depth": (0.0, 2.0),  # twice a mean relative depth
    "repetition": (-1.0, 1.0),
    "distance": (0.0, np.sqrt(2)),  # in sides of a square grid
    "ratio": (0.0, np.inf),
    "number": (0.0, np.inf),
    **dict.fromkeys(("share", "accuracy", "purity", "IoU", "PCK", "J&F", "asymmetry"), (0.0, 1.0)),
    "CKA": (0.0, 1.0),
}


def range_of(unit: str) -> Limits:
    """The least and the largest possible value of a unit such as "difference in share of heads"."""
    if unit.startswith("absolute difference in "):
        return 0.0, range_of(unit.removeprefix("absolute "))[1]
    if unit.startswith("difference in "):
        low, high = range_of(unit.removeprefix("difference in "))
        return low - high, high - low
    first_words = unit.partition(" of ")[0], unit.partition(" ")[0]
    return next((RANGES[name] for name in (unit, *first_words) if name in RANGES), UNBOUNDED)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % confidence interval, which is NaN if the number is descriptive.

    `how` names the method of the interval, and `limits` is a function from alpha to both ends of
    the interval. For Student's intervals, `error` is the pair of standard error and degrees of
    freedom. `units`, of shape (unit,), are the values of which the number is the mean, such as the
    pseudo-values of a jackknife or truth values. Estimates with equal `pairing`, such as "9 batches
    of 1000 images", are compared by paired differences of their units. `shared` is the part of the
    half-width that does not shrink with more units, such as the half-width within runs that are
    measured on the same images.
    """

    value: float
    low: float
    high: float
    how: str
    limits: Callable[[float], Any] | None = field(default=None, compare=False, repr=False)
    error: tuple[float, float] | None = field(default=None, compare=False, repr=False)
    units: np.ndarray | None = field(default=None, compare=False, repr=False)
    pairing: str = field(default="", compare=False, repr=False)
    shared: float = field(default=0.0, compare=False, repr=False)

    def at(self, alpha: float) -> Limits:
        """The ends of the interval that misses the truth with probability `alpha`."""
        if self.limits:
            return self.limits(alpha)
        scale = t_interval(0, 1, np.inf, alpha)[1] / t_interval(0, 1, np.inf)[1]
        return (
            self.value - scale * (self.value - self.low),
            self.value + scale * (self.high - self.value),
        )


def estimate(
    value: Real, limits: Callable[[float], Sequence[Real] | np.ndarray], how: str, **more: Any
) -> Estimate:
    """The `Estimate` whose ends are `limits(0.05)`."""
    low, high = map(float, limits(ALPHA))
    return Estimate(float(value), low, high, how, limits, **more)


def descriptive(value: Real, why: str) -> Estimate:
    """An `Estimate` without an interval, and why it has none: "a maximum over heads"."""
    return Estimate(float(value), np.nan, np.nan, f"no interval: {why}")


def require_estimate(value: object, source: str) -> None:
    """Raises a `ValueError` that names what was to return an `Estimate`, for anything else."""
    if not isinstance(value, Estimate):
        raise ValueError(
            f"Expected {source} to return an Estimate, such as from `student`. Received: {value!r}"
        )


def with_error(value: Real, stderr: Real, df: float, how: str, **more: Any) -> Estimate:
    """The `Estimate` with Student's interval; normal where `df` is infinite.

    Equal values show nothing of their variance: they are descriptive, without an interval.
    """
    stderr, df = float(stderr), float(df)
    if not stderr > ROUNDING * abs(value):
        no_interval = descriptive(value, f"all values are equal ({how})")
        return replace(no_interval, error=(stderr, df), **more)
    limits = partial(t_interval, float(value), stderr, df)
    return estimate(value, limits, how, error=(stderr, df), **more)


def student(values: np.ndarray, over: str, pairing: str = "") -> Estimate:
    """Mean of independent values (unit,), with Student's interval; `over` names the units."""
    if len(values) < 2:
        return descriptive(np.mean(values), f"needs at least two {over}")
    how = f"Student's t over {len(values)} {over}"
    more = {"units": np.asarray(values), "pairing": pairing} if pairing else {}
    return with_error(np.mean(values), *mean_error(values), how, **more)


def welch(first: np.ndarray, second: np.ndarray, over: str) -> Estimate:
    """Difference of the means of two independent samples (unit,), with Welch's interval."""
    return minus(student(first, over), student(second, over))


def share(
    successes: float, trials: float, over: str, correct: np.ndarray | None = None, pairing: str = ""
) -> Estimate:
    """A proportion, with Wilson's interval; `successes` may be a mean, and not an integer."""
    limits = partial(wilson, successes, trials)
    how = f"Wilson's interval over {round(trials)} {over}"
    return estimate(successes / trials, limits, how, units=correct, pairing=pairing)


def accuracy_of(
    accuracy: float, examples: float, correct: np.ndarray | None = None, over: str = "images"
) -> Estimate:
    """Test accuracy with Wilson's interval; `correct` are truth values of the examples."""
    if correct is None and not examples >= 1:
        return descriptive(accuracy, f"the number of {over} is not known")
    if correct is None:
        return share(accuracy * examples, examples, over)
    correct = np.asarray(correct, bool)
    return share(correct.sum(), len(correct), over, correct, f"{len(correct)} {over}")


def require_above_chance(accuracy: float, facts: Mapping[str, Any], model: str) -> None:
    """Raises a `ValueError` where an accuracy is not significantly above chance, 1 / classes.

    A model at chance has no accuracy to lose, and no layer of it is better than another. Classes
    are taken to be of equal size; `facts` are the attributes `examples` and `num_classes` of a
    result.
    """
    if missing := {"examples", "num_classes"} - set(facts):
        raise ValueError(f"Expected attributes {sorted(missing)}. Received: {sorted(facts)}")
    interval, chance = accuracy_of(float(accuracy), facts["examples"]), 1 / facts["num_classes"]
    if not interval.low > chance:
        raise ValueError(
            f"Not tested: the accuracy of {model}, {interval.value:.3g} ({interval.low:.3g} to "
            f"{interval.high:.3g}), is not above chance, {chance:.3g}."
        )


def correlation(pairs: np.ndarray, over: str) -> Estimate:
    """Spearman's rank correlation of the columns of pairs (unit, 2), with its interval."""
    value = rank_correlation(pairs)
    if len(pairs) < LEAST_PAIRS or not np.isfinite(value):
        return descriptive(value, f"needs at least {LEAST_PAIRS} {over} that differ")
    limits = partial(spearman_interval, value, len(pairs))
    return estimate(value, limits, f"Fisher's z of a rank correlation of {len(pairs)} {over}")


def ratio_of_means(pairs: np.ndarray, over: str) -> Estimate:
    """Mean of the first column of (unit, 2) / mean of the second, with Fieller's interval."""
    above, below = pairs.mean(axis=0)
    if not below > 0:
        return descriptive(np.nan, "the mean of the denominator is not above 0")
    if len(pairs) < 2:
        return descriptive(above / below, f"needs at least two {over}")
    if np.isnan(fieller(pairs)).any():
        return descriptive(above / below, "the mean of the denominator may be 0")
    how = f"Fieller's interval over {len(pairs)} {over}"
    return estimate(above / below, partial(fieller, pairs), how)


def contrast_over_depth(
    values: np.ndarray, coefficients: np.ndarray, over: str = "layers"
) -> Estimate:
    """A contrast of layers, such as the mean of upper layers minus the mean of lower layers.

        sum_l c_l x_l = sum_i w_i d_i,  w_i = sum over l > i of c_l,  d_i = x_(i+1) - x_i

    Here, `x` are the means of `values` (layer, ...) for each layer, because the heads of a layer
    are not independent. The coefficients `c` sum to 0. Because neighbouring layers are similar, the
    steps `d` between layers are taken as independent (a random walk over depth). Student's interval
    is exact for such layers, and too wide for layers that are less similar.
    """
    layers = np.asarray(values, float)
    layers = np.nanmean(layers.reshape(len(layers), -1), axis=1)
    steps, weights = np.diff(layers), np.cumsum(np.asarray(coefficients, float)[::-1])[::-1][1:]
    value, squares, df = weights @ steps, weights @ weights, len(steps) - 1
    if df < 1:
        return descriptive(value, f"needs at least three {over}")
    variance = max(steps @ steps - value**2 / squares, 0.0) / df
    how = f"Student's t over the steps between {len(layers)} {over}"
    return with_error(value, np.sqrt(variance * squares), df, how)


def means_of(count: int, *groups: np.ndarray | slice) -> np.ndarray:
    """Coefficients of the mean over a first group of positions minus the mean over a second."""
    coefficients = np.zeros(count)
    for sign, places in zip((1, -1), groups, strict=True):
        coefficients[places] += sign / np.size(np.arange(count)[places])
    return coefficients


def ratio_of_spreads(first: np.ndarray, second: np.ndarray, over: str) -> Estimate:
    """Standard deviation of one sample (unit,) over that of another, with its interval.

    The jackknife of the logarithm of variances (Miller 1968), without assuming normal values, with
    Welch's degrees of freedom.
    """
    if min(len(first), len(second)) < 3 or not min(np.ptp(first), np.ptp(second)) > 0:
        value = np.std(first, ddof=1) / np.std(second, ddof=1) if np.ptp(second) else np.nan
        return descriptive(value, f"needs at least three {over} that differ, in each")
    (log_first, units), (log_second, second_units) = map(log_variances, (first, second))
    error = sum_of_errors(mean_error(units), mean_error(second_units))
    gap = with_error(
        log_first - log_second, *error, f"jackknife of the logarithm of variances, over {over}"
    )
    return transformed(gap, lambda x: np.exp(x / 2))


def within(inner: Estimate, bounds: Limits) -> Estimate:
    """An `Estimate` whose interval holds possible values only, which costs no coverage.

    An unbiased value, such as a CKA, may lie a little beyond them: its interval reaches to it.
    """
    if bounds == UNBOUNDED:
        return inner
    least, largest = min(bounds[0], inner.value), max(bounds[1], inner.value)

    def limits(alpha: float) -> Limits:
        lower, upper = np.clip(inner.at(alpha), least, largest).tolist()
        return lower, upper

    low, high = np.clip([inner.low, inner.high], least, largest).tolist()
    return replace(inner, low=low, high=high, limits=limits)


def transformed(inner: Estimate, function: Callable[[float], float]) -> Estimate:
    """An increasing function of an `Estimate`, such as the exponential of a mean of logarithms."""
    value, low, high = (float(function(x)) for x in (inner.value, inner.low, inner.high))

    def limits(alpha: float) -> Limits:
        lower, upper = inner.at(alpha)
        return float(function(lower)), float(function(upper))

    return Estimate(value, low, high, inner.how, limits)


def jackknifed(value: Real, leave_one_out: np.ndarray, over: str, pairing: str = "") -> Estimate:
    """A statistic with its jackknife interval; `leave_one_out` (unit,) lacks one unit each."""
    if len(leave_one_out) < 2 or not np.isfinite(leave_one_out).all():
        return descriptive(value, f"needs at least two {over}")
    units = pseudo_values(float(value), leave_one_out)
    how = f"jackknife over {len(units)} {over}, Student's t"
    return with_error(value, *mean_error(units), how, units=units, pairing=pairing)


def with_enough_images(
    value: float, leave_one_out: np.ndarray, examples: float, over: str, pairing: str = ""
) -> Estimate:
    """`jackknifed`, for a statistic that few images bias, such as the best of many noisy values.

    The jackknife's estimate of the bias, `(k - 1) (mean of the values without a batch - value)`,
    falls with the number of images. Raises a `ValueError` that states how many would do where it is
    larger than half the width of the interval.
    """
    estimated = jackknifed(value, leave_one_out, over, pairing)
    count = len(leave_one_out)
    if count < 2:
        raise ValueError(
            f"Not tested: few images bias this number, and {count} batch does not show how much. "
            "Measure more images."
        )
    bias = (count - 1) * (np.mean(leave_one_out) - value)
    reach = (estimated.high - estimated.low) / 2 if np.isfinite(estimated.low) else 0.0
    if abs(bias) > max(reach, 1e-9):
        # The bias falls as one over the number of images, the interval as one over its root.
        factor = min((bias / reach) ** 2 if reach else np.inf, 100.0)
        needed = int(np.ceil(factor * examples / 100) * 100)
        raise ValueError(
            f"Not tested: with {int(examples)} images, noise moves this number ({value:.3g}) by "
            f"about {bias:+.2g}, more than its interval shows. About {needed} images would do."
        )
    how = f"{estimated.how}; {int(examples)} images are enough: their noise moves it by {bias:+.1g}"
    return replace(estimated, how=how)


def of_cka(statistic: Callable[[np.ndarray], float], result: xr.Dataset) -> Estimate:
    """A number that is computed from CKA, with a jackknife interval over batches.

    `statistic` is a function from an array with the dims of `result["cka"]` to a number. Files of
    older versions contain `stderr` instead of `leave_one_out`. For such a file, the interval is the
    widest that an average can have, and it is not paired.
    """
    cka = result["cka"]
    value, examples = statistic(cka.values), result.attrs.get("examples", np.nan)
    if "leave_one_out" in result:
        rest = result["leave_one_out"].transpose("batch", *cka.dims).values
        pairing = f"{len(rest)} batches of {examples} images"
        return jackknifed(
            value, np.array([statistic(values) for values in rest]), "batches", pairing
        )
    stderr = statistic(result["stderr"].transpose(*cka.dims).values) if "stderr" in result else 0
    batches = num_batches(result)
    if not (stderr > 0 and batches > 1):
        return descriptive(value, "needs at least two batches, and their number")
    how = f"Student's t over {int(batches)} batches; at most the mean standard error, not paired"
    return with_error(value, stderr, batches - 1, how)


def permuted_images(result: object) -> xr.Dataset | None:
    """CKA of two models that are shown different images; None for what has no such values."""
    if not isinstance(result, xr.Dataset) or not {"cka", "permuted"} <= set(result):
        return None
    return result[["cka"]].assign(cka=result["permuted"])


def num_batches(result: xr.DataArray | xr.Dataset) -> float:
    """The number of batches on which a result was measured; NaN if it is not stored."""
    size = result.attrs.get("batch_size", np.nan)
    return np.ceil(result.attrs.get("examples", np.nan) / size)


def minus(first: Estimate, second: Estimate) -> Estimate:
    """The difference of two estimates: paired where both are of the same units.

    A paired difference has Newcombe's interval for truth values, and Student's interval over the
    differences for other numbers. Independent estimates have Welch's interval if theirs are
    Student's, otherwise the interval by variance estimates recovery (Zou and Donner 2008).
    """
    value = first.value - second.value
    are_paired = bool(first.pairing) and first.pairing == second.pairing
    if are_paired and first.units is not None and second.units is not None:
        if first.units.dtype == bool:
            how = f"Newcombe's paired interval over the same {first.pairing}"
            return estimate(
                value, partial(newcombe_paired, *pair_counts(first.units, second.units)), how
            )
        units = first.units - second.units
        how = f"paired over the same {first.pairing}, Student's t"
        return with_error(value, *mean_error(units), how, units=units, pairing=first.pairing)
    words = " and ".join(dict.fromkeys([first.how, second.how]))
    if first.error and second.error:
        how = f"Welch's interval; {words}; not paired"
        return with_error(value, *sum_of_errors(first.error, second.error), how)
    if not np.isfinite([first.low, first.high, second.low, second.high]).all():
        why = first.how if not np.isfinite(first.low) else second.how
        return descriptive(value, why.removeprefix("no interval: "))

    def limits(alpha: float) -> Limits:
        return mover(first.value, first.at(alpha), second.value, second.at(alpha))

    return estimate(value, limits, f"{words}; not paired")


def corrected(estimates: Sequence[Estimate], null: float | Sequence[float] = 0.0) -> list[Estimate]:
    """Estimates whose intervals exclude `null` where Holm's method rejects it, at 5 % for all.

    `null` is one number for all estimates, or one for each.
    """
    tested = [result for result in estimates if np.isfinite(result.low)]
    if len(tested) < 2:
        return list(estimates)
    nulls = np.broadcast_to(null, len(estimates))
    pairs = zip(estimates, nulls, strict=True)
    levels = holm_levels([p_value(result.at, own_null) for result, own_null in pairs])
    results = []
    for result, level in zip(estimates, levels, strict=True):
        how = f"{result.how}; corrected for {len(tested)} comparisons (Holm)"
        low, high = map(float, result.at(level))
        results.append(replace(result, low=low, high=high, how=how) if result in tested else result)
    return results


def over_trainings(estimates: Sequence[Estimate], bounds: Limits = UNBOUNDED) -> Estimate:
    """Mean over several runs, with an interval that includes the variance between runs.

        half-width^2 = (t s / sqrt(k))^2 + (mean of the half-widths within runs)^2

    Here, `s` is the standard deviation of the `k` values, and `t` is Student's quantile for k - 1
    degrees of freedom. The first term is the variance between runs (Bouthillier et al. 2021,
    https://arxiv.org/abs/2103.03098). The second term covers what the runs share, such as the test
    images: the standard error of a mean is at most the mean of the standard errors, whatever their
    correlation. The interval is clipped to the `bounds` of possible values, which does not reduce
    coverage. If the values of all runs are equal and have no interval, the mean is descriptive.
    """
    values = np.array([run.value for run in estimates], np.float64)
    if len(values) < 2:
        return student(values, over="runs")
    between = t_interval(0.0, *mean_error(values))[1]
    ends = np.array([[run.value - run.low, run.high - run.value] for run in estimates])
    all_known = np.isfinite(ends).all()
    own_reaches = ends.mean(axis=0) if all_known else np.zeros(2)
    mean = float(values.mean())
    low, high = map(float, np.hypot(between, own_reaches))
    spread = np.std(values, ddof=1)
    how = f"Student's t over {len(values)} runs (standard deviation {spread:.2g}), and "
    how += (
        "the mean of the intervals within runs"
        if all_known
        else "no interval within a run is known"
    )
    if not low + high:
        return descriptive(mean, f"all {len(values)} runs are equal")
    stderr, df = mean_error(values)
    error, shared = (float(stderr), float(df)), float(own_reaches.mean())
    return within(Estimate(mean, mean - low, mean + high, how, error=error, shared=shared), bounds)


def images_needed(
    result: "Estimate | xr.DataArray | xr.Dataset",
    *,
    half_width: float | None = None,
    power: float | None = None,
    effect: float | None = None,
    threshold: float = 0.0,
    examples: int | None = None,
) -> int:
    """Number of images (or runs) needed for an interval of a given width, or for a decision.

        half-width:  t_(n - 1) s / sqrt(n) <= half_width
        power:       P(|T| > t_(n - 1)) >= power

    Here, `t` is Student's 97.5 % quantile, and `T` is a noncentral t variable with noncentrality
    `sqrt(n) (effect - threshold) / s`. The standard deviation `s` of a single image is computed
    from the standard error of a pilot result. The test is two-sided at 5 %: it is significant if
    the 95 % interval excludes the threshold.

    The interval of an estimate over runs also includes the uncertainty within runs, with half-width
    `w`. More runs on the same images do not reduce `w`. For such an estimate, `t s / sqrt(n)` in
    the formula is replaced by `hypot(t s / sqrt(n), w)`. If the runs do not differ, two runs are
    enough.

    Args:
        result: a pilot result in one of three forms. An `Estimate` is used unchanged; to compare
            two models, pass their paired difference (see `minus`). For a DataArray of
            `knn_accuracy`, or of `ridge_probe` with a selected penalty, the accuracy of the last
            layer is used. For a Dataset of `cka` with `leave_one_out`, the mean over pairs of
            layers is used.
        half_width: half of the requested width of the interval. Pass either this or `power`.
        power: requested probability that the interval excludes the threshold.
        effect: assumed true value, for `power`; by default, the value of the pilot result.
        threshold: value that the interval should exclude.
        examples: number of images or runs of the pilot result, if the result does not state it.

    Returns:
        The number of images. For an `Estimate` over runs, it is the number of runs.

    Raises:
        ValueError: unless exactly one of `half_width` and `power` is given.
        ValueError: if the result has no interval or an unknown number of images, if the effect
            equals the threshold, or if `power` is not in (0, 1).
        ValueError: if the uncertainty within runs alone makes the interval wider than requested.

    Examples:
        >>> accuracy = analysis.knn_accuracy(vit, (images, labels), (images, labels), k=2)
        >>> analysis.images_needed(accuracy, half_width=0.05) > 24
        True

    See also:
        `knn_accuracy`, `cka`; page how-sure.md.
    """
    pilot = _pilot(result)
    count = images_of(pilot) if examples is None else examples
    if (half_width is None) == (power is None):
        raise ValueError(
            "Expected half_width or power, one of them. "
            f"Received: half_width={half_width}, power={power}"
        )
    if not (np.isfinite([pilot.low, pilot.high]).all() and np.isfinite(count) and count > 1):
        raise ValueError(
            "Expected a pilot result with an interval over a known number of images. "
            f"Received: {pilot.how}; examples={count}"
        )
    deviation = _standard_error(pilot) * np.sqrt(count)
    if power is None:
        half_width = cast(float, half_width)
        if not half_width > 0:
            raise ValueError(f"Expected half_width above 0. Received: {half_width}")
        _require_runs_to_suffice(pilot, half_width)
        return _least_count(
            lambda n: (
                np.hypot(stdtrit(n - 1, ALPHA / 2) * deviation / np.sqrt(n), pilot.shared)
                <= half_width
            )
        )
    away = abs((pilot.value if effect is None else effect) - threshold)
    if not (0 < power < 1 and away > 0):
        raise ValueError(
            "Expected a power in (0, 1) and an effect other than the threshold. "
            f"Received: power={power}, effect={effect}, threshold={threshold}"
        )

    _require_runs_to_suffice(pilot, away)
    if not deviation:
        return 2

    def is_enough(n: int) -> bool:
        half_width_of_runs = np.sqrt(n) * pilot.shared / deviation
        critical, noncentrality = (
            np.hypot(stdtrit(n - 1, ALPHA / 2), half_width_of_runs),
            np.sqrt(n) * away,
        )
        noncentrality /= deviation
        reached = (
            nctdtr(n - 1, noncentrality, critical) if n < 1000 else ndtr(critical - noncentrality)
        )
        return 1 - reached >= power

    return _least_count(is_enough)


def _require_runs_to_suffice(pilot: Estimate, reach: float) -> None:
    """Raises a `ValueError` where the interval within runs alone is as wide as asked for."""
    if pilot.shared and pilot.shared >= reach:
        raise ValueError(
            f"Expected an interval within runs narrower than +-{reach:.3g}, as more runs do not "
            f"narrow it. Received: +-{pilot.shared:.3g}; measure each run on more images"
        )


MOST_IMAGES = 10**9


def _least_count(is_enough: Callable[[int], bool]) -> int:
    """The smallest number from 2 on that is enough, of a condition that stays true once it is."""
    low, high = 1, 2
    while not is_enough(high):
        low, high = high, 2 * high
        if high > MOST_IMAGES:
            return MOST_IMAGES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _standard_error(pilot: Estimate) -> float:
    """The standard error of an estimate, or that of a normal interval of the same width."""
    if pilot.error:
        return pilot.error[0]
    return (pilot.high - pilot.low) / 2 / t_interval(0, 1, np.inf)[1]


def images_of(estimate: Estimate) -> float:
    """The number of images, or of other units, that an estimate is over; NaN if it is not known."""
    if estimate.units is not None and estimate.units.dtype == bool:
        return len(estimate.units)
    stated = re.search(
        r"(?:batches of |the same |over )(\d+)(?:\.0)? (?:images|runs)",
        (f"{estimate.pairing} {estimate.how}"),
    )
    return float(stated[1]) if stated else np.nan


def _pilot(result: "Estimate | xr.DataArray | xr.Dataset") -> Estimate:
    """The number that `images_needed` is about."""
    if isinstance(result, Estimate):
        return result
    if "leave_one_out" in result and "cka" in result:
        return of_cka(np.mean, cast(xr.Dataset, result))
    if "correct" in getattr(result, "coords", ()):
        last = cast(xr.DataArray, result)
        last = last.isel({dim: -1 if dim == "layer" else 0 for dim in last.dims})
        return accuracy_of(last.item(), result.attrs["examples"])
    raise ValueError(
        "Expected an Estimate, accuracies with what is classified correctly, or a result of cka. "
        f"Received: {type(result).__name__} with {sorted(map(str, result.coords))}"
    )


# Outcomes, and the variables that hold them, as scorecards of earlier versions name them.
OLDER_OUTCOMES = {
    "holds": "replicates",
    "does not hold": "does not replicate",
    "cannot tell": "inconclusive",
    "not measured": "not tested",
}
OLDER_VARIABLES = {"verdict": "outcome", "verdicts": "outcomes"}


def current_outcomes(scorecard: xr.Dataset) -> xr.Dataset:
    """A saved scorecard, a Dataset, with the present names of outcomes and their variables."""
    older = OLDER_VARIABLES.keys() & scorecard.data_vars.keys()
    scorecard = scorecard.rename({name: OLDER_VARIABLES[name] for name in older})
    rename = np.vectorize(lambda outcome: OLDER_OUTCOMES.get(outcome, outcome), otypes=[object])
    names = OLDER_VARIABLES.values() & scorecard.data_vars.keys()
    return scorecard.assign(
        {name: scorecard[name].copy(data=rename(scorecard[name])) for name in names}
    )


REPLICATES, CONTRADICTED = "replicates", "does not replicate"
INCONCLUSIVE, DESCRIPTIVE, NOT_TESTED = "inconclusive", "descriptive", "not tested"
ONE_RUN, UNTRAINED_TOO = "one run", "also holds untrained"
OUTCOMES = (
    *(REPLICATES, UNTRAINED_TOO, CONTRADICTED, INCONCLUSIVE),
    *(ONE_RUN, DESCRIPTIVE, NOT_TESTED),
)
LEAST_RUNS = 3  # of each arm of a claim about how models are trained


def claim_outcome(
    low: float, high: float, threshold: float, direction: str, least: float = 0.0
) -> str:
    """The outcome of a claim, that a number lies on the side `direction` of a threshold.

    The interval has to lie beyond the threshold by more than the smallest effect of interest,
    `least`, on either side.
    """
    if not (np.isfinite([low, high]).all() and low < high):
        return DESCRIPTIVE
    above, below = low > threshold + least, high < threshold - least
    if not (above or below):
        return INCONCLUSIVE
    return REPLICATES if above == (direction == "above") else CONTRADICTED


def is_beyond(value: float, threshold: float, direction: str, least: float = 0.0) -> bool:
    """Whether a number lies where a claim says, by more than the smallest effect of interest."""
    return bool(value > threshold + least if direction == "above" else value < threshold - least)


def lower(values: np.ndarray) -> np.ndarray:
    """The first half along the first axis, with the middle of an odd number."""
    return values[: (len(values) + 1) // 2]


def upper(values: np.ndarray) -> np.ndarray:
    """The last half along the first axis, with the middle of an odd number."""
    return values[len(values) // 2 :]
