"""Confidence intervals as functions of arrays; `alpha` is the probability of missing the truth."""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from scipy.special import ndtri, stdtrit

ALPHA = 0.05

Limits: TypeAlias = tuple[float, float]  # both ends of an interval
Number = TypeVar("Number", float, np.ndarray)


def t_interval(
    value: Number, stderr: Number, df: float, alpha: float = ALPHA
) -> tuple[Number, Number]:
    """Student's interval `value +- t stderr`; normal where `df` is infinite."""
    quantile = -ndtri(alpha / 2) if np.isinf(df) else -stdtrit(df, alpha / 2)
    return value - quantile * stderr, value + quantile * stderr


def mean_error(values: np.ndarray) -> tuple[float, float]:
    """Standard error of a mean of independent values (unit,), and its degrees of freedom."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))), len(values) - 1


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of independent values (unit, ...) and its standard error, NaN for a single unit."""
    count = len(values)
    deviation = values.std(axis=0, ddof=1) if count > 1 else np.full(values.shape[1:], np.nan)
    return values.mean(axis=0), deviation / np.sqrt(count)


def mean_from_sums(
    total: np.ndarray, squares: np.ndarray, count: float
) -> tuple[np.ndarray, np.ndarray]:
    """`mean_and_error` of so many values, from their sum and the sum of their squares."""
    mean = total / count
    # Rounding may leave a difference of squares just below the zero that it stands for.
    variance = np.maximum(squares / count - mean**2, 0)
    return mean, np.sqrt(variance / (count - 1)) if count > 1 else np.full_like(mean, np.nan)


def sum_of_errors(*errors: tuple[float, float]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of independent terms (Welch 1947)."""
    variances = np.array([stderr**2 for stderr, _ in errors])
    total = variances.sum()
    if not total:
        return 0.0, float(min(df for _, df in errors))
    spread = sum(v**2 / df for v, (_, df) in zip(variances, errors, strict=True))
    return float(np.sqrt(total)), float(total**2 / spread) if spread else np.inf


def pseudo_values(value: float, leave_one_out: np.ndarray) -> np.ndarray:
    """Pseudo-values of the jackknife (unit, ...), from the value of all units and without each."""
    count = len(leave_one_out)
    return count * value - (count - 1) * np.asarray(leave_one_out)


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
    """Interval of `first - second` from their own intervals (Zou and Donner 2008).

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


def p_value(limits: Callable[[float], Limits], null: float = 0.0) -> float:
    """The smallest alpha, at least 1e-12, whose `limits(alpha)` leave out `null`."""

    def outside(alpha: float) -> bool:
        low, high = limits(alpha)
        return low > null or high < null

    inner, outer = 0.0, -12.0  # of log10(alpha)
    if outside(10**outer):
        return 10**outer
    for _ in range(40):
        middle = (inner + outer) / 2
        inner, outer = (middle, outer) if outside(10**middle) else (inner, middle)
    return 10**inner


def holm_levels(p_values: Sequence[float], alpha: float = ALPHA) -> np.ndarray:
    """The level of each of several tests at which `alpha` holds for all (Holm 1979).

    P-values are compared in ascending order, the i-th of m (i from 0) with `alpha / (m - i)`. The
    level of the first one above its level is also the level of all larger ones.
    """
    order = np.argsort(p_values)
    levels = np.full(len(p_values), alpha)
    for rank, test in enumerate(order):
        levels[order[rank:]] = alpha / (len(order) - rank)
        if p_values[test] > levels[test]:
            break
    return levels


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values have the mean of their ranks."""
    from scipy.stats import rankdata  # takes a quarter of the start of a drawing process

    return rankdata(values) - 1


def rank_correlation(pairs: np.ndarray) -> float:
    """Spearman's rank correlation of the columns of a (unit, 2) array; NaN if one is constant."""
    deviations = [rank - rank.mean() for rank in map(ranks, pairs.T)]
    scale = np.sqrt(np.prod([deviation @ deviation for deviation in deviations]))
    return deviations[0] @ deviations[1] / scale if scale else np.nan


def lower(values: np.ndarray) -> np.ndarray:
    """The first half along the first axis, with the middle of an odd number."""
    return values[: (len(values) + 1) // 2]


def upper(values: np.ndarray) -> np.ndarray:
    """The last half along the first axis, with the middle of an odd number."""
    return values[len(values) // 2 :]
