"""How many images, or runs, an interval of a given width or a decision needs."""

from bisect import bisect_left
from collections.abc import Callable
from typing import cast

import numpy as np
from scipy.special import nctdtr, ndtr, ndtri, stdtrit

from .estimates import Estimate, Units
from .intervals import ALPHA, Limits

MOST_UNITS = 10**9
SAFEGUARD = 0.2  # alpha of the interval whose nearer end is taken as the true value


def safeguard_effect(pilot: Estimate, threshold: float = 0.0) -> float:
    """The end of the 80 % interval of a pilot that is nearer to a threshold (Perugini 2014).

    The true value is farther from the threshold with a probability of 90 %. The effect is the
    threshold itself where the interval contains it.
    """
    if pilot.limits is None:
        return threshold
    low, high = pilot.limits(SAFEGUARD)
    if low > threshold:
        return float(low)
    return float(high) if high < threshold else threshold


def units_for_width(pilot: Estimate, half_width: float) -> int:
    """The number of units with which the interval is as narrow, by the spread of the pilot."""
    deviation, _ = _spread(pilot)
    return _least_count(lambda n: -stdtrit(n - 1, ALPHA / 2) * deviation / np.sqrt(n) <= half_width)


def units_for_power(pilot: Estimate, power: float, effect: float, threshold: float = 0.0) -> int:
    """The number of units with which the interval excludes the threshold with this probability.

    `effect` is the true value. The spread of the units is estimated from the pilot: where it has
    few units, more are needed, so that the probability holds over pilots (Julious and Owen 2006).
    """
    deviation, df = _spread(pilot)

    def is_enough(count: int) -> bool:
        critical = -stdtrit(count - 1, ALPHA / 2)
        shift = np.sqrt(count) * abs(effect - threshold) / deviation
        reached = nctdtr(df, critical, shift) if df < 1000 else ndtr(shift - critical)
        return bool(reached >= power)

    return _least_count(is_enough)


def _spread(pilot: Estimate) -> tuple[float, float]:
    """The standard deviation of a unit, and its degrees of freedom.

    These are infinite for a binomial, whose deviation is that of a normal interval of equal width.
    """
    low, high = cast(Limits, pilot.interval)
    stderr, df = pilot.error or ((high - low) / 2 / -ndtri(ALPHA / 2), np.inf)
    return stderr * np.sqrt(cast(Units, pilot.units).count), df


def _least_count(is_enough: Callable[[int], bool]) -> int:
    """The smallest number from 2 on that is enough, of a condition that stays true once it is."""
    high = 2
    while not is_enough(high):
        high *= 2
        if high > MOST_UNITS:
            return MOST_UNITS
    return bisect_left(range(high), True, lo=high // 2 + 1, key=is_enough)
