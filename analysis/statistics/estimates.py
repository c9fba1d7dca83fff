"""A number with its 95 % interval, differences of such numbers, and how many units they need."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.special import nctdtr, ndtr, ndtri, stdtrit

from .intervals import (
    ALPHA,
    Limits,
    holm_levels,
    mean_error,
    mover,
    newcombe_paired,
    p_value,
    pair_counts,
    pseudo_values,
    sum_of_errors,
    t_interval,
    wilson,
)

MOST_UNITS = 10**9
SAFEGUARD = 0.2  # alpha of the interval whose nearer end is taken as the true value
ROUNDING = 1e-12  # relative to a value: a smaller standard error is none


class Method(Enum):
    """The three kinds of intervals, by what varies."""

    IMAGES = "images"  # Student's t over batches that are left out in turn, or over images
    RUNS = "runs"  # Student's t over runs; Welch's between arms
    BINOMIAL = "binomial"  # of a share of images, and of differences of shares


@dataclass(frozen=True)
class Units:
    """What was sampled, such as 9 batches with 900 images."""

    name: str  # "batches", "images", "objects", "videos", "runs"
    count: int
    images: int | None = None  # in all units; None where the units hold no images


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % confidence interval.

    A descriptive number, such as a value from a single batch, has no interval.

    Attributes:
        value: the number.
        interval: both ends of its 95 % interval; None for a descriptive number.
        units: what was sampled; None for a descriptive number.
        method: the kind of the interval; None for a descriptive number.
        note: why a number is descriptive, or another remark for the reader.
        limits: function from alpha to both ends of the interval.
        error: standard error and degrees of freedom, of Student's and Welch's intervals.
        parts: array of shape (unit,): the pseudo-values of the jackknife, whose mean is the number
            up to its bias, or, for an accuracy, whether each image is classified correctly.
            Estimates with equal `units` are compared by paired parts.
        arms: for a difference between independently trained models, the terms of the sum, one for
            each model.
        comparisons: number of comparisons for which the interval is corrected.
    """

    value: float
    interval: Limits | None
    units: Units | None
    method: Method | None
    note: str = ""
    limits: Callable[[float], Limits] | None = field(default=None, compare=False, repr=False)
    error: tuple[float, float] | None = field(default=None, compare=False, repr=False)
    parts: np.ndarray | None = field(default=None, compare=False, repr=False)
    arms: tuple[float, ...] = field(default=(), compare=False, repr=False)
    comparisons: int = field(default=1, compare=False)

    @property
    def terms(self) -> tuple[float, ...]:
        """The terms of a difference between independent models; otherwise, the number itself."""
        return self.arms or (self.value,)


def descriptive(value: float | np.ndarray, why: str, arms: Sequence[float] = ()) -> Estimate:
    """An `Estimate` without an interval, and why it has none, as a sentence without its dot."""
    return Estimate(float(value), None, None, None, why, arms=tuple(arms))


def with_limits(
    value: float,
    limits: Callable[[float], Limits],
    units: Units,
    method: Method,
    parts: np.ndarray | None = None,
) -> Estimate:
    """The `Estimate` whose interval is `limits(0.05)`."""
    low, high = map(float, limits(ALPHA))
    return Estimate(float(value), (low, high), units, method, limits=limits, parts=parts)


def with_error(
    value: float | np.ndarray,
    error: tuple[float, float],
    units: Units,
    method: Method = Method.IMAGES,
    parts: np.ndarray | None = None,
) -> Estimate:
    """The `Estimate` with Student's interval, from a standard error and degrees of freedom.

    Equal values show nothing of their variance: such a number is descriptive.
    """
    value, stderr = float(value), float(error[0])
    if not stderr > ROUNDING * abs(value):
        same = f"The number does not vary between the {units.count} {units.name}"
        return replace(descriptive(value, same), units=units, error=error, parts=parts)
    made = with_limits(value, partial(t_interval, value, stderr, error[1]), units, method, parts)
    return replace(made, error=(stderr, error[1]))


def mean_over(values: np.ndarray, name: str, images: int | None = None) -> Estimate:
    """Mean of independent values (unit,) of images, videos and the like, with Student's interval.

    `images` is the number of images in all units; by default, each unit is an image.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return descriptive(values.mean(), f"An interval needs at least two {name}")
    units = Units(name, len(values), len(values) if images is None else images)
    return with_error(values.mean(), mean_error(values), units, parts=values)


def jackknife_over(
    value: float | np.ndarray, leave_one_out: np.ndarray, images: float, name: str = "batches"
) -> Estimate:
    """A statistic with its jackknife interval; `leave_one_out` (batch,) lacks one batch each."""
    rest = np.atleast_1d(np.asarray(leave_one_out, float))
    if len(rest) < 2 or not np.isfinite(rest).all():
        return descriptive(value, f"An interval needs at least two {name} of images")
    parts = pseudo_values(float(value), rest)
    units = Units(name, len(rest), int(np.nan_to_num(images)))
    return with_error(value, mean_error(parts), units, parts=parts)


def accuracy_of(
    accuracy: float, images: float, correct: np.ndarray | None = None, name: str = "images"
) -> Estimate:
    """A share of images with Wilson's interval; `correct` are truth values of the images."""
    if correct is not None:
        return share_of(correct)
    if not images >= 1:
        return descriptive(accuracy, f"The number of {name} is not known")
    limits = partial(wilson, accuracy * images, images)
    return with_limits(accuracy, limits, Units(name, round(images), round(images)), Method.BINOMIAL)


def share_of(correct: np.ndarray) -> Estimate:
    """The share of true values among truth values of images (image,), with Wilson's interval."""
    correct = np.asarray(correct, bool)
    return replace(accuracy_of(correct.mean(), len(correct)), parts=correct)


class Accuracy(NamedTuple):
    """Test accuracy of a model in [0, 1], in the form that claims use.

    Attributes:
        value: the accuracy.
        examples: the number of test images.
        correct: array of shape (example,), true for correctly classified images; None if unknown.
        num_classes: the number of classes; None if unknown.
    """

    value: float
    examples: int
    correct: np.ndarray | None = None
    num_classes: int | None = None

    @property
    def estimate(self) -> Estimate:
        """The accuracy with its interval."""
        return accuracy_of(self.value, self.examples, self.correct)

    def require_above_chance(self, model: str) -> None:
        """Raises a `ValueError` where it is not above chance, if the classes are known."""
        if self.num_classes:
            facts = {"examples": self.examples, "num_classes": self.num_classes}
            require_above_chance(self.value, facts, model)


def accuracy_gap(first: Accuracy, second: Accuracy) -> Estimate:
    """Difference in test accuracy, of models the better of which is above chance where known."""
    max(first, second, key=lambda each: each.value).require_above_chance("the better model")
    return between(first.estimate, second.estimate)


def require_estimate(value: object, source: str) -> None:
    """Raises a `ValueError` that names what was to return an `Estimate`, for anything else."""
    if not isinstance(value, Estimate):
        raise ValueError(
            f"Expected {source} to return an Estimate, such as from `mean_over`. "
            f"Received: {value!r}"
        )


def require_above_chance(accuracy: float, facts: Mapping[str, Any], model: str) -> None:
    """Raises a `ValueError` where an accuracy is not significantly above chance, 1 / classes.

    A model at chance has no accuracy to lose. Classes are taken to be of equal size; `facts` are
    the attributes `examples` and `num_classes` of a result.
    """
    if missing := {"examples", "num_classes"} - set(facts):
        raise ValueError(
            f"Expected a result with the attributes {sorted(missing)}. Received: {sorted(facts)}"
        )
    interval = accuracy_of(float(accuracy), facts["examples"]).interval
    chance = 1 / facts["num_classes"]
    if interval is None or not interval[0] > chance:
        raise ValueError(
            f"The accuracy of {model} is not significantly above chance, {chance:.3g}. "
            f"Received: {float(accuracy):.3g} on {facts['examples']} images"
        )


def over_runs(terms: np.ndarray) -> Estimate:
    """A number over runs of each arm, from the terms (run, arm) that it is the sum of.

    The arms share nothing: the variances of their means add up (Welch 1947). With one arm, the
    interval is Student's.
    """
    terms = np.asarray(terms, float).reshape(len(terms), -1)
    value, count = float(terms.mean(axis=0).sum()), len(terms)
    if count < 2:
        return descriptive(value, "An interval needs at least two runs")
    error = sum_of_errors(*map(mean_error, terms.T))
    return with_error(value, error, Units("runs", count), Method.RUNS)


def minus(first: Estimate, second: Estimate) -> Estimate:
    """The difference of two numbers: paired where both have parts of the same units.

    A paired difference of truth values has Newcombe's interval, one of other numbers Student's. The
    interval of an unpaired difference is Welch's if both are Student's, otherwise the variances are
    recovered from the intervals (Zou and Donner 2008).
    """
    value = first.value - second.value
    units = cast(Units, first.units or second.units)  # where it is used, one has an interval
    if first.parts is not None and second.parts is not None and first.units == second.units:
        differences = np.subtract(first.parts, second.parts, dtype=float)
        if first.parts.dtype == second.parts.dtype == bool:
            limits = partial(newcombe_paired, *pair_counts(first.parts, second.parts))
            return with_limits(value, limits, units, Method.BINOMIAL, differences)
        return with_error(value, mean_error(differences), units, parts=differences)
    if first.error and second.error:
        return with_error(value, sum_of_errors(first.error, second.error), units)
    limits, other_limits = first.limits, second.limits
    if limits is None or other_limits is None:
        return descriptive(value, first.note if limits is None else second.note)

    def limits_of_both(alpha: float) -> Limits:
        return mover(first.value, limits(alpha), second.value, other_limits(alpha))

    is_binomial = Method.BINOMIAL in (first.method, second.method)
    return with_limits(
        value, limits_of_both, units, Method.BINOMIAL if is_binomial else Method.IMAGES
    )


def between(first: Estimate, second: Estimate) -> Estimate:
    """The difference of two models that are trained independently, with the term of each."""
    return replace(minus(first, second), arms=(*first.terms, *(-term for term in second.terms)))


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of estimates on the same units, whose errors need not be independent.

    The mean of the intervals is at least as wide as the interval of the mean.
    """
    first, all_limits = estimates[0], [each.limits for each in estimates if each.limits]
    if len(estimates) == 1:
        return first
    value = float(np.mean([each.value for each in estimates]))
    are_alike = len({len(each.terms) for each in estimates}) == 1
    arms = tuple(np.mean([each.terms for each in estimates], axis=0)) if are_alike else ()
    units, method = cast(Units, first.units), cast(Method, first.method)  # of an interval, below

    def limits(alpha: float) -> Limits:
        low, high = np.mean([each(alpha) for each in all_limits], axis=0).tolist()
        return low, high

    parts = [each.parts for each in estimates if each.parts is not None]
    if len(parts) == len(estimates) and len({each.units for each in estimates}) == 1:
        mean = np.mean(parts, axis=0)
        return replace(with_error(value, mean_error(mean), units, parts=mean), arms=arms)
    if len(all_limits) < len(estimates):
        note = next(each.note for each in estimates if each.limits is None)
        return descriptive(value, note, arms)
    return replace(with_limits(value, limits, units, method), arms=arms)


def beyond(trained: Estimate, untrained: Sequence[Estimate]) -> Estimate:
    """What training adds: the number of trained models minus the mean of their untrained copies.

    Copies may be measured on the first k of n units only, with which they are paired:

        d = mean_{i <= k}(k/n t_i - u_i) + (n - k)/n mean_{i > k}(t_i)

    Both terms are of different units, so that their variances add up (Welch).
    """
    null = mean_of(untrained)
    effect, first, second = minus(trained, null), trained.parts, null.parts
    if first is not None and second is not None:
        n, k, units = len(first), len(second), cast(Units, trained.units)
        if cast(Units, null.units).name == units.name and 2 <= k <= n - 2:
            rest, df = mean_error(first[k:])
            paired = mean_error(k / n * first[:k] - second)
            error = sum_of_errors(paired, ((n - k) / n * rest, df))
            effect = with_error(effect.value, error, units)
    if len(trained.terms) != len(null.terms):
        return effect
    return replace(effect, arms=tuple(np.subtract(trained.terms, null.terms).tolist()))


def transformed(inner: Estimate, function: Callable[[float], float]) -> Estimate:
    """An increasing function of an `Estimate`, such as the log odds of an accuracy."""
    value, inner_limits = float(function(inner.value)), inner.limits
    if inner_limits is None:
        return descriptive(value, inner.note)

    def limits(alpha: float) -> Limits:
        low, high = map(function, inner_limits(alpha))
        return float(low), float(high)

    return with_limits(value, limits, cast(Units, inner.units), cast(Method, inner.method))


def corrected(estimates: Sequence[Estimate], null: float | Sequence[float] = 0.0) -> list[Estimate]:
    """Estimates whose intervals exclude `null` where Holm's method rejects it, at 5 % for all.

    `null` is one number for all estimates, or one for each.
    """
    nulls = np.broadcast_to(null, len(estimates))
    limits_at = {at: estimate.limits for at, estimate in enumerate(estimates) if estimate.limits}
    if len(limits_at) < 2:
        return list(estimates)
    results = list(estimates)
    levels = holm_levels([p_value(limits, nulls[at]) for at, limits in limits_at.items()])
    for (at, limits), level in zip(limits_at.items(), levels, strict=True):
        low, high = map(float, limits(level))
        results[at] = replace(estimates[at], interval=(low, high), comparisons=len(limits_at))
    return results


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
