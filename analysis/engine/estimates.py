"""Estimates from labelled results, and how many images they need."""

from collections.abc import Callable
from typing import cast

import numpy as np
import xarray as xr

from ..statistics.estimates import (
    Estimate,
    Method,
    accuracy_of,
    descriptive,
    jackknife_over,
    safeguard_effect,
    units_for_power,
    units_for_width,
)


def estimate_over_batches(
    statistic: Callable[..., float], *results: xr.DataArray | xr.Dataset, variable: str = ""
) -> Estimate:
    """A number that is computed from one or more results, with the jackknife over batches.

    `statistic` is a function of an array for each result: of its values, or of a variable of a
    Dataset. Without each batch in turn, the arrays are those of `leave_one_out`, of one more axis,
    which is a variable of a Dataset and an attribute of a DataArray.
    """
    arrays, rests = zip(*(_with_and_without(result, variable) for result in results), strict=True)
    value = float(statistic(*arrays))
    if any(rest is None for rest in rests) or len({len(rest) for rest in rests}) > 1:
        return descriptive(value, "An interval needs the values without each batch of images")
    without = np.array([statistic(*each) for each in zip(*rests, strict=True)])
    return jackknife_over(value, without, results[0].attrs.get("examples", np.nan))


def _with_and_without(
    result: xr.DataArray | xr.Dataset, variable: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """The values of a result, and those without each batch, of shape (batch, ...) or None."""
    if isinstance(result, xr.DataArray):
        rest = result.attrs.get("leave_one_out")
        shape = (-1, *result.shape)
        return result.values, None if rest is None else np.reshape(rest, shape)
    array = result[variable]
    if "leave_one_out" not in result:
        return array.values, None
    return array.values, result["leave_one_out"].transpose("batch", *array.dims).values


def estimate_from_cka(statistic: Callable[[np.ndarray], float], result: xr.Dataset) -> Estimate:
    """A number that is computed from CKA, with a jackknife interval over batches.

    `statistic` is a function from an array with the dims of `result["cka"]` to a number.
    """
    return estimate_over_batches(statistic, result, variable="cka")


def num_batches(result: xr.DataArray | xr.Dataset) -> float:
    """The number of batches on which a result was measured; NaN if it is not stored."""
    size = result.attrs.get("batch_size", np.nan)
    return np.ceil(result.attrs.get("examples", np.nan) / size)


def images_needed(
    result: Estimate | xr.DataArray | xr.Dataset,
    *,
    half_width: float | None = None,
    power: float | None = None,
    effect: float | None = None,
    threshold: float = 0.0,
    examples: int | None = None,
) -> int:
    """Number of images (or runs) needed for an interval of a given width, or for a decision.

        half-width:  t_(n - 1) s / sqrt(n) <= half_width
        power:       P(T < sqrt(n) |effect - threshold| / s) >= power

    Here, `n` is the number of units: single images, runs, or batches of as many images as in the
    pilot result. `t_(n - 1)` is the 97.5 % quantile of Student's t, and `s` is the standard
    deviation of a unit, computed from the standard error of the pilot result. `T` has a noncentral
    t distribution with noncentrality `t_(n - 1)` and the degrees of freedom of the pilot result. A
    pilot with few units estimates `s` poorly, so more units are needed (Julious and Owen 2006,
    Pharmaceutical Statistics 5:29). The test is two-sided at 5 %: it is significant if the 95 %
    interval excludes the threshold.

    Args:
        result: a pilot result: an `Estimate`; a DataArray of `knn_accuracy`, or of `ridge_probe`
            with a selected penalty (the accuracy of the last layer counts); or a Dataset of `cka`
            with `leave_one_out` (the mean over pairs of layers counts). To compare two models, pass
            the `Estimate` of their paired difference (see `minus`).
        half_width: half of the requested width of the interval. Pass either this or `power`.
        power: requested probability that the interval excludes the threshold.
        effect: assumed true value, for `power`. The default is the end of the pilot's 80 % interval
            that is nearer to the threshold. The value of the pilot result itself would be too large
            in half of the cases (safeguard power, Perugini et al. 2014,
            https://doi.org/10.1177/1745691614528519).
        threshold: value that the interval should exclude.
        examples: number of images or runs of the pilot result, if the result does not state it.

    Returns:
        The number of images. For an `Estimate` over runs, it is the number of runs.

    Raises:
        ValueError: unless exactly one of `half_width` and `power` is given.
        ValueError: if the result has no interval or an unknown number of images, if the effect
            equals the threshold, or if `power` is not in (0, 1). Without `effect`, the 80 %
            interval of the pilot result must exclude the threshold.

    Examples:
        >>> accuracy = analysis.knn_accuracy(vit, (images, labels), (images, labels), k=2)
        >>> analysis.images_needed(accuracy, half_width=0.05) > 24
        True

    See also:
        `knn_accuracy`, `cka`; page how-sure.md.
    """
    pilot = _pilot(result)
    if (half_width is None) == (power is None):
        raise ValueError(
            f"Expected either half_width= or power=. Received: half_width={half_width}, "
            f"power={power}"
        )
    if pilot.interval is None or pilot.units is None or pilot.units.count < 2:
        raise ValueError(
            "Expected a pilot result with an interval over at least two batches, images or runs. "
            f"Received: {pilot}"
        )
    # How many units, batches or runs, such an interval or such a decision needs.
    if half_width is not None:
        if not half_width > 0:
            raise ValueError(f"Expected half_width above 0. Received: {half_width}")
        units = units_for_width(pilot, half_width)
    else:
        effect = safeguard_effect(pilot, threshold) if effect is None else effect
        if not (0 < cast(float, power) < 1 and effect != threshold):
            raise ValueError(
                "Expected power in (0, 1) and an effect that differs from the threshold. "
                f"Received: power={power}, effect={effect}, threshold={threshold}"
            )
        units = units_for_power(pilot, cast(float, power), effect, threshold)
    # The same as a number of images, as many for each unit as in the pilot result.
    if pilot.method is Method.RUNS:
        return units
    images = examples or pilot.units.images or pilot.units.count
    return int(np.ceil(units * images / pilot.units.count))


def _pilot(result: Estimate | xr.DataArray | xr.Dataset) -> Estimate:
    """The number that `images_needed` is about."""
    if isinstance(result, Estimate):
        return result
    if "leave_one_out" in result and "cka" in result:
        return estimate_from_cka(np.mean, cast(xr.Dataset, result))
    if "correct" in getattr(result, "coords", ()):
        last = cast(xr.DataArray, result)
        last = last.isel({dim: -1 if dim == "layer" else 0 for dim in last.dims})
        return accuracy_of(last.item(), result.attrs["examples"])
    raise ValueError(
        "Expected a result of cka over two or more batches, an accuracy that a measurement of this "
        f"package returned, or an Estimate. Received: {type(result).__name__} with the "
        f"coordinates {sorted(map(str, result.coords))}"
    )
