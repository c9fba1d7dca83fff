"""Linear predictivity: how much of one layer a linear map of another one predicts."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from .alignment import ROTATIONS
from .measure import Measure


def linear_predictivity(l2: float = 0.1, folds: int = 5) -> Measure:
    """Share of the variance of `layer_y` that ridge regression on `layer_x` predicts, held out.

        R^2 = 1 - sum_f |Y_f - mean - (X_f - mean) W_f|^2 / sum_f |Y_f - mean|^2

    with W_f and the means fitted on the images of a batch that are not in fold f, and the penalty
    `l2` times the mean of the squared lengths of their centred features (ridge regression as in
    Schrimpf et al. 2018, "Brain-Score", and Kornblith et al. 2019, section 3.1). Image i of a batch
    is in fold i modulo `folds`. Sums of squares are added over folds, channels and batches before
    the ratio. Not symmetric: x predicts y.

    Scale: at most 1; 0 for a prediction no better than the mean of the other images, and below it
    for worse ones; not clamped. Invariant to orthogonal maps, isotropic scaling and translation of
    either layer; not to other invertible linear maps. Memory: images x images for each layer,
    whatever the width; time: images cubed for each layer, images squared for each pair.

    Args:
        l2: strength of the penalty, above 0.
        folds: number of folds, at least 2; batches need twice as many images.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: for others.

    Examples:
        >>> measure = analysis.linear_predictivity(l2=1.0)
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['linear_predictivity']

    See also:
        `similarities`, `ridge_probe`; page measurements/similarity/measures.md.
    """
    if not l2 > 0 or folds < 2:
        raise ValueError(
            f"Expected l2 above 0 and at least 2 folds. Received: l2={l2}, folds={folds}"
        )

    def terms(layers, _):
        kernels, size = layers.kernels, layers.size
        residuals, baselines = zip(
            *(_held_out(kernels, fold, folds, l2) for fold in range(folds)), strict=True
        )
        flat = tf.reshape(kernels * size[:, None, None], (len(layers.values), -1))
        of_map = tf.reshape(tf.add_n(residuals), (len(layers.values), -1))
        of_mean = tf.reshape(tf.add_n(baselines), (1, -1))
        return {
            "residual": tf.matmul(of_map, flat, transpose_b=True),
            "total": tf.matmul(of_mean, flat, transpose_b=True)[0],
        }

    def value(totals, places):
        share = totals["residual"] / totals["total"]
        return 1.0 - share[np.ix_(places.x, places.y)]

    settings = {"l2": float(l2), "folds": int(folds)}
    return Measure("linear_predictivity", terms, value, ROTATIONS, settings, 2 * folds)


def _held_out(kernels, fold, folds, l2):
    """What one fold adds to the squares of errors, as quadratic forms in the kernel of a target.

    The errors of the images of the fold are linear in all images, W Y: their squares add up to the
    trace of W' W Y Y'.

    Args:
        kernels: tensor of shape (layer, n, n), of the layers that predict.

    Returns:
        W' W of every layer (layer, n, n), and of the mean alone (n, n).
    """
    n = tf.shape(kernels)[-1]
    everyone = tf.eye(n, dtype=tf.float64)
    own = tf.range(n) % folds == fold
    tested, fitted = (tf.boolean_mask(everyone, mask) for mask in (own, ~own))
    # A remainder, which is left out, may have no image to fit.
    count = tf.cast(tf.maximum(tf.shape(fitted)[0], 1), tf.float64)
    mean = tf.reduce_sum(fitted, axis=0, keepdims=True) / count
    from_mean = tested - mean
    centred = fitted - mean
    # Kernels of features that are centred by the mean of the fitted images.
    between = from_mean @ kernels @ tf.transpose(centred)
    within = centred @ kernels @ tf.transpose(centred)
    penalty = l2 * tf.linalg.trace(within) / count
    penalty = tf.maximum(penalty, 1e-300)[:, None, None]
    within += penalty * tf.eye(tf.shape(fitted)[0], dtype=tf.float64)
    weights = tf.linalg.cholesky_solve(
        tf.linalg.cholesky(within), tf.linalg.matrix_transpose(between)
    )
    errors = from_mean - tf.matmul(weights, centred, transpose_a=True)
    return tf.matmul(errors, errors, transpose_a=True), tf.transpose(from_mean) @ from_mean
