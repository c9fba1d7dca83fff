"""Estimates: numbers with their 95 % intervals."""

from dataclasses import dataclass

import numpy as np

DRAWS = 2000
Z = 1.96  # standard deviations on either side that hold 95 % of a normal distribution
LEAST_EXAMPLES = 4  # of a batch, for the unbiased HSIC
UNBOUNDED = (-np.inf, np.inf)  # the possible values of most quantities


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval.

    Attributes:
        value: the number.
        low, high: ends of the interval; NaN where nothing is known of the uncertainty.
        how: where the interval comes from, in words.
    """

    value: float
    low: float
    high: float
    how: str


@dataclass(frozen=True)
class Sample:
    """Values of one kind, one per layer, head or token.

    Attributes:
        values: array of shape (unit,).
        stderr: their standard errors, of the same shape; None or NaN where they are not known.
    """

    values: np.ndarray
    stderr: np.ndarray | None = None

    @property
    def known(self):
        """Whether every value has its standard error."""
        return self.stderr is not None and bool(np.isfinite(self.stderr).all())


def normal(value, stderr, how):
    """`value +- 1.96 stderr`."""
    value, reach = float(value), Z * float(stderr)
    return Estimate(value, value - reach, value + reach, f"1.96 standard errors; {how}")


def student(values, over):
    """Mean of independent values, with Student's interval: `mean +- t stderr`.

    For few units, for which a bootstrap is too narrow: of 8 units, it covers about 88 %, not 95 %.

    Args:
        values: array of shape (unit,).
        over: what its axis holds, in words, "videos".

    Returns:
        `Estimate`; without an interval for fewer than two units.
    """
    from scipy.special import stdtrit

    value, count = float(np.mean(values)), len(values)
    if count < 2:
        return Estimate(value, np.nan, np.nan, f"no interval: needs at least two {over}")
    reach = stdtrit(count - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(count)
    return Estimate(value, float(value - reach), float(value + reach), f"Student's t over {over}")


def over_trainings(estimates, bounds=UNBOUNDED):
    """Mean of what several trainings give, with an interval that speaks of another training too.

        reach^2 = (t s / sqrt(k))^2 + (mean of the trainings' own reaches)^2

    with `s` the standard deviation of the `k` values and `t` Student's quantile of k - 1 degrees of
    freedom, on either side. The first term is the spread between trainings, and what differs
    between them of the errors within (Bouthillier et al. 2021, https://arxiv.org/abs/2103.03098,
    of why one training is not enough); the second is for what they share, such as the test images:
    the mean of errors has at most the mean of their standard errors, however they are correlated.
    Where they are independent the interval is wider than it has to be.

    Args:
        estimates: list of `Estimate`, one for each training.
        bounds: pair of the least and the largest possible value, such as -1 and 1 of a correlation.
            The interval ends there at the latest, which costs no coverage.

    Returns:
        `Estimate`; without an interval for fewer than two trainings.
    """
    values = np.array([one.value for one in estimates], np.float64)
    between = student(values, over="trainings")
    if len(values) < 2:
        return between
    ends = np.array([[one.value - one.low, one.high - one.value] for one in estimates])
    known = np.isfinite(ends).all()
    within = ends.mean(axis=0) if known else np.zeros(2)
    low, high = np.hypot(between.high - between.value, within)
    spread = np.std(values, ddof=1)
    how = f"Student's t over {len(values)} trainings (standard deviation {spread:.2g}), and "
    how += "the mean of their own intervals" if known else "no interval within one is known"
    if not low + high:
        how += "; all give the same, so that it has no width, which tells nothing of another one"
    low, high = np.clip([between.value - low, between.value + high], *bounds).tolist()
    return Estimate(between.value, low, high, how)


def verdict(low, high, threshold, direction):
    """Whether an interval lies on the reported side of a line, on the other, or across it.

    Args:
        low, high: its ends; NaN for an interval that is not known.
        threshold: the line.
        direction: "above" or "below", the side that is reported.
    """
    above, below = low > threshold, high < threshold
    if not (above or below):
        return "cannot tell"
    return "holds" if above == (direction == "above") else "does not hold"


def bootstrap(statistic, *samples, over, seed=0):
    """Percentile bootstrap: the middle 95 % of a statistic over resampled samples.

    An interval without width means that all units agree; it is told in words, as it says nothing of
    other units.

    Args:
        statistic: function of arrays to a number.
        *samples: arrays whose first axis is resampled with replacement, each by itself; what
            belongs together is in one array.
        over: what the first axis holds, in words, "layers".
        seed: of the resampling.

    Returns:
        `Estimate`; without an interval where a sample has fewer than two units.
    """
    value = float(statistic(*samples))
    if min(map(len, samples)) < 2:
        return Estimate(value, np.nan, np.nan, f"no interval: needs at least two {over}")
    rng = np.random.default_rng(seed)
    draws = [
        statistic(*(sample[rng.integers(len(sample), size=len(sample))] for sample in samples))
        for _ in range(DRAWS)
    ]
    draws = np.array(draws)[np.isfinite(draws)]
    low, high = np.percentile(draws, [2.5, 97.5]) if draws.size else (np.nan, np.nan)
    how = f"bootstrap over {over}"
    if low == high:
        how += ", of which all samples agree: without width, it tells nothing of others"
    return Estimate(value, float(low), float(high), how)


def difference(one, other, over):
    """Mean of one `Sample` minus the mean of another.

        stderr(mean) <= mean of the stderr,    stderr(difference)^2 = sum of stderr^2

    The bound holds however the values' errors are correlated, the sum unless those of the two
    samples are opposed. Where standard errors are missing, the interval is a bootstrap.

    Args:
        one, other: `Sample`s.
        over: what they hold, in words, for the bootstrap.
    """
    value = np.mean(one.values) - np.mean(other.values)
    if one.known and other.known:
        stderr = np.hypot(np.mean(one.stderr), np.mean(other.stderr))
        how = "each at most the mean of the single values' own"
        return normal(value, stderr, how)
    return bootstrap(lambda x, y: x.mean() - y.mean(), one.values, other.values, over=over)


def lower(values):
    """The first half along the first axis, with the middle of an odd number."""
    return values[: (len(values) + 1) // 2]


def upper(values):
    """The last half along the first axis, with the middle of an odd number."""
    return values[len(values) // 2 :]


def rank_correlation(pairs):
    """Spearman's rank correlation of the columns of a (unit, 2) array; NaN if one is constant."""
    ranked = [ranks(column) for column in pairs.T]
    deviations = [rank - rank.mean() for rank in ranked]
    scale = np.sqrt(np.prod([deviation @ deviation for deviation in deviations]))
    return deviations[0] @ deviations[1] / scale if scale else np.nan


def ranks(values):
    """Ranks from 0, equal values sharing the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[which]
