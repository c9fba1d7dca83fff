"""A number with its 95 % interval, and differences of such numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import cast

import numpy as np

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
