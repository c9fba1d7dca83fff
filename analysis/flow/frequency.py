"""Frequencies of representations: the amplitude at high frequencies by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import PartialGrid, as_maps, grid_of
from ..engine.preparation import ImagesLike, prepare
from ..engine.results import dataset_of, facts_of, require_finite, variable
from ..engine.stream import Statistic, Totals, evaluate, mean_per_batch
from ..statistics.intervals import mean_from_sums

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the highest frequency


@measurement()
def frequency_amplitude(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Log amplitude of every layer at high spatial frequencies, relative to frequency 0.

        amplitude(w) = mean over examples and channels of (log A(w) - log A(0)),
        A(w)         = |sum over r, c of x(r, c) exp(-i (w r + w c))|

    Here, x is a channel of the feature map of a layer, and the frequencies (w, w) lie on the
    diagonal of its two-dimensional Fourier transform (Park and Kim 2022,
    https://arxiv.org/abs/2202.06709, section 3 and figure 2). The logarithm is computed for each
    channel, so that a channel with massive activations counts like any other. Channels without
    amplitude at frequency 0, such as dead channels, are excluded. Attention that averages tokens
    lowers the amplitude, and uniform attention lowers it most. At the frequency (w, w), a blur of
    standard deviation s lowers the log amplitude by `s^2 w^2`.

    Args:
        model, images, grid: as in `vit_tf.analysis`. Layers are feature maps, or tokens on the
            grid. Layers that are a single vector are skipped.

    Returns:
        Dataset with three variables and a coordinate. The dim `frequency` lists the fractions 0,
        1/4, 1/2, 3/4 and 1 of the highest frequency along each axis of the map. If the map of a
        layer has too few positions for one of these frequencies, the nearest frequency that the map
        has is used.

        * `amplitude`, of shape (layer, frequency): the log amplitude (natural logarithm) relative
          to frequency 0. It is -inf if the amplitude is zero.
        * `stderr`, of shape (layer, frequency): the standard error of `amplitude` over examples.
        * `leave_one_out`, of shape (batch, layer, frequency): the amplitude computed without each
          batch in turn, if there are several batches. It allows paired comparisons of models that
          are measured on the same batches.
        * `angular_frequency`, a coordinate of shape (layer, frequency): the length of the frequency
          vector, in radians per position.

    Raises:
        ValueError: if no layer is a feature map or lies on a known grid, or if activations are not
            finite.
        ValueError: if the amplitude of a layer at frequency 0 is zero; the message names the layer.

    Examples:
        >>> frequencies = analysis.frequency_amplitude(vit, images)
        >>> frequencies.amplitude.dims
        ('layer', 'frequency')
        >>> frequencies.amplitude.sel(frequency=0).values.tolist()
        [0.0, 0.0, 0.0, 0.0]
        >>> ax = analysis.plot(frequencies)

    See also:
        `plots.plot_frequency_amplitude`, `attention_distance`, `equivariance_error`; page
        measurements/flow/frequency-amplitude.md.
    """
    features, batches = prepare(model, images, layers=layers, detail=detail)
    return evaluate(
        frequency_amplitude_statistic(features, grid), batches, features, description="frequencies"
    )


@statistic_of(frequency_amplitude)
def frequency_amplitude_statistic(
    features: Features, grid: PartialGrid = None
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `frequency_amplitude`."""
    grid = grid_of(features, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        maps = as_maps(taps, grid)
        relative = {layer: relative_amplitude(x) for layer, x in maps.items()}
        moments = {
            layer: tf.stack([tf.reduce_sum(x, axis=0), tf.reduce_sum(x**2, axis=0)])[None]
            for layer, x in relative.items()
        }
        return {
            "rows": {"moments": moments, "examples": tf.shape(images)[:1]},
            "sizes": {layer: tuple(x.shape[1:3]) for layer, x in maps.items()},
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.Dataset:
        layers, counts = list(totals["rows"]["moments"]), totals["rows"]["examples"]
        # Sums and sums of squares of each batch, of shape (2, batch, layer, frequency).
        batches = np.stack(list(totals["rows"]["moments"].values()), axis=1)
        sums_of_batches, squares = np.moveaxis(batches, 2, 0)
        sums, count = sums_of_batches.sum(axis=0), totals["examples"]
        require_finite("frequencies", np.where(sums == -np.inf, 0, sums), layers)
        with np.errstate(invalid="ignore"):  # -inf has no standard error
            mean, stderr = mean_from_sums(sums, squares.sum(axis=0), count)
        dims = ("layer", "frequency")
        sizes = mean_per_batch(totals, "sizes")
        lengths = [np.hypot(*angular_frequencies(sizes[layer]).T) for layer in layers]
        variables = {
            "amplitude": variable(dims, mean, "log amplitude relative to frequency 0"),
            "stderr": variable(dims, stderr, "standard error of the log amplitude"),
        }
        if len(counts) > 1:
            # Sums of the other batches, not differences, of which -inf has none.
            others = [np.delete(sums_of_batches, at, 0).sum(axis=0) for at in range(len(counts))]
            rest = np.stack(others) / (count - counts)[:, None, None]
            name = "log amplitude relative to frequency 0, without each batch"
            variables["leave_one_out"] = variable(("batch", *dims), rest, name)
        return dataset_of(
            variables,
            facts_of(
                features,
                totals,
                "mean over examples and channels of the log amplitude, along the diagonal",
            ),
            layer=layers,
            frequency=list(FRACTIONS),
            angular_frequency=(
                dims,
                np.array(lengths),
                {"long_name": "angular frequency", "units": "radians per position"},
            ),
        )

    return Statistic(step, finish)


def angular_frequencies(size: tuple[int, int]) -> np.ndarray:
    """Frequencies (frequency, axis) of a map (rows, columns), the harmonics nearest `FRACTIONS`."""
    numbers = [np.rint(np.array(FRACTIONS) * (length // 2)) for length in size]
    return np.stack([2 * np.pi * k / n for k, n in zip(numbers, size, strict=True)], axis=-1)


def relative_amplitude(maps: tf.Tensor) -> tf.Tensor:
    """Log amplitude of maps (example, row, column, channel) minus that at 0: (example, frequency).

    A discrete Fourier transform at few frequencies: of the rows, then of the columns.
    """
    rows, columns = maps.shape[1:3]
    # Amplitudes are relative: activations of 1e-30 and 1e+30 have finite squares in this unit.
    largest = tf.reduce_max(tf.abs(maps), axis=(1, 2, 3), keepdims=True)
    maps = maps / tf.where(largest > 0, largest, 1.0)
    waves = [
        np.exp(-1j * np.outer(w, np.arange(length)))
        for w, length in zip(angular_frequencies((rows, columns)).T, (rows, columns), strict=True)
    ]
    parts = [tf.constant(np.stack([np.real(w), np.imag(w)]), tf.float32) for w in waves]
    along_rows = tf.einsum("pfr,nrcd->pfncd", parts[0], maps)
    both = tf.einsum("pfncd,qfc->pqfnd", along_rows, parts[1])
    real, imaginary = both[0, 0] - both[1, 1], both[0, 1] + both[1, 0]
    real, imaginary = tf.cast(real, tf.float64), tf.cast(imaginary, tf.float64)
    logarithm = tf.math.log(real**2 + imaginary**2) / 2
    relative = logarithm - logarithm[:1]
    # Channels without amplitude at frequency 0 have none to be relative to. Where all are such, the
    # amplitude is undefined.
    is_known = tf.cast(logarithm[0] > -np.inf, tf.float64)
    summed = tf.reduce_sum(tf.where(is_known > 0, relative, 0.0), axis=-1)
    return tf.transpose(summed / tf.reduce_sum(is_known, axis=-1))
