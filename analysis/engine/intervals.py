"""Confidence intervals, as functions of arrays; `alpha` is the probability of missing the truth."""

import numpy as np
from scipy.special import ndtri, stdtrit
from scipy.stats import rankdata

ALPHA = 0.05
LEAST_PAIRS = 5  # for the interval of a rank correlation


def t_interval(value, stderr, df, alpha=ALPHA):
    """Student's interval `value +- t stderr`; normal where `df` is infinite."""
    quantile = -ndtri(alpha / 2) if np.isinf(df) else -stdtrit(df, alpha / 2)
    return value - quantile * stderr, value + quantile * stderr


def mean_error(values):
    """Standard error of a mean of independent values (unit,), and its degrees of freedom."""
    return np.std(values, ddof=1) / np.sqrt(len(values)), len(values) - 1


def sum_of_errors(*errors):
    """Standard error of a sum of independent terms, and its degrees of freedom (Welch 1947).

    Args:
        *errors: pairs of standard error and degrees of freedom.
    """
    variances = np.array([stderr**2 for stderr, _ in errors])
    total = variances.sum()
    if not total:
        return 0.0, float(min(df for _, df in errors))
    df = total**2 / sum(v**2 / df for v, (_, df) in zip(variances, errors, strict=True))
    return np.sqrt(total), df


def wilson(successes, trials, alpha=ALPHA):
    """Score interval of a proportion (Wilson 1927; Newcombe 1998a, method 3)."""
    share, z2 = successes / trials, ndtri(alpha / 2) ** 2
    middle = share + z2 / (2 * trials)
    reach = np.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials**2)))
    scale = 1 + z2 / trials
    # Rounding must not leave a share of 0 or 1 outside.
    return min((middle - reach) / scale, share), max((middle + reach) / scale, share)


def mover(one, one_limits, other, other_limits, correlation=0.0):
    """Interval of `one - other` from their own intervals (Zou and Donner 2008).

    Of proportions with Wilson's intervals this is method 10 of Newcombe (1998b) for independent
    samples and, with their correlation, method 10 of Newcombe (1998c) for paired ones.
    """
    below, above = one - one_limits[0], one_limits[1] - one
    other_below, other_above = other - other_limits[0], other_limits[1] - other
    value = one - other
    low = below**2 + other_above**2 - 2 * correlation * below * other_above
    high = above**2 + other_below**2 - 2 * correlation * above * other_below
    return value - np.sqrt(max(low, 0)), value + np.sqrt(max(high, 0))


def pair_counts(one, other):
    """How often both of two truth values (unit,) are true, only one, only the other, neither."""
    cells = one & other, one & ~other, ~one & other, ~one & ~other
    return tuple(float(cell.sum()) for cell in cells)


def newcombe_paired(both, only_one, only_other, neither, alpha=ALPHA):
    """Interval of the difference of two proportions of the same units (Newcombe 1998c, method 10).

    Args:
        both, only_one, only_other, neither: numbers of units, as of `pair_counts`.
    """
    n, one, other = both + only_one + only_other + neither, both + only_one, both + only_other
    determinant = both * neither - only_one * only_other
    if determinant > 0:
        determinant = max(determinant - n / 2, 0)
    margins = np.sqrt(one * (n - one) * other * (n - other))
    correlation = determinant / margins if margins else 0.0
    limits = (wilson(count, n, alpha) for count in (one, other))
    return mover(one / n, next(limits), other / n, next(limits), correlation)


def fieller(pairs, alpha=ALPHA):
    """Interval of the ratio of the means of the columns of (unit, 2) (Fieller 1954); may be NaN.

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


def rank_correlation(pairs):
    """Spearman's rank correlation of the columns of a (unit, 2) array; NaN if one is constant."""
    ranked = [ranks(column) for column in pairs.T]
    deviations = [rank - rank.mean() for rank in ranked]
    scale = np.sqrt(np.prod([deviation @ deviation for deviation in deviations]))
    return deviations[0] @ deviations[1] / scale if scale else np.nan


def ranks(values):
    """Ranks from 0, equal values sharing the mean of theirs."""
    return rankdata(values) - 1


def spearman_interval(correlation, count, alpha=ALPHA):
    """Interval of a rank correlation of `count` pairs, by Fisher's z (Bonett and Wright 2000).

    A correlation of 1 or -1 counts as half a step towards the next possible one; without that it
    would have an interval without width.
    """
    largest = 1 - 6 / (count * (count**2 - 1))
    inside = np.clip(correlation, -largest, largest)
    stderr = np.sqrt((1 + inside**2 / 2) / (count - 3))
    low, high = np.tanh(t_interval(np.arctanh(inside), stderr, np.inf, alpha))
    return min(low, correlation), max(high, correlation)


def pseudo_values(value, leave_one_out):
    """Pseudo-values of the jackknife, (unit, ...): their standard error is that of `value`.

    Args:
        value: array or number, the statistic of all units.
        leave_one_out: array of shape (unit, ...), the statistic without each.
    """
    count = len(leave_one_out)
    return count * value - (count - 1) * np.asarray(leave_one_out)


def log_variances(values):
    """The logarithm of the variance of values (unit,), and its pseudo-values (Miller 1968)."""
    whole = np.log(np.var(values, ddof=1))
    rest = [np.log(np.var(np.delete(values, at), ddof=1)) for at in range(len(values))]
    return whole, pseudo_values(whole, np.array(rest))


def p_value(limits, null=0.0):
    """The smallest alpha whose interval leaves out `null`, at least 1e-12; NaN without interval.

    Args:
        limits: function of alpha to the two ends; intervals of smaller alpha hold those of larger.
    """

    def outside(alpha):
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


def holm_levels(p_values, alpha=ALPHA):
    """The level at which each of several hypotheses is tested, so that `alpha` holds for all.

    Holm (1979): the i-th smallest of m p-values is compared with `alpha / (m - i)`, i from 0, and
    from the first that is larger on, all with its level. Those that are NaN are not counted.
    """
    p_values = np.asarray(p_values, float)
    order = np.argsort(p_values)[: np.isfinite(p_values).sum()]
    levels = np.full(len(p_values), alpha)
    for rank, at in enumerate(order):
        levels[order[rank:]] = alpha / (len(order) - rank)
        if p_values[at] > levels[at]:
            break
    return levels
