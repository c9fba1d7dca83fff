"""Regularised least squares, and classifiers fitted by it, in NumPy."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

BIAS = 100.0


def ridge_weights(
    l2: np.ndarray,
    *,
    xx: Any = None,
    xy: Any = None,
    rows: Any = None,
    targets: Any = None,
) -> np.ndarray:
    """Weights (token, l2, channel, class) of regularised least squares without an intercept.

        primal: X' X = Q diag(s) Q',  W = Q diag(1 / (s + l2)) Q' X' Y
        dual:   X X' = Q diag(s) Q',  W = X' Q diag(1 / (s + l2)) Q' Y

    from X' X (token, channel, channel) and X' Y (token, channel, class), or from rows X (token,
    example, channel) and targets Y (example, class).
    """

    def solve_token(token: int) -> np.ndarray:
        """Weights (l2, channel, class) of a token."""
        if rows is None:
            values, left = np.linalg.eigh(xx[token])
            right = left.T @ xy[token]
        else:
            values, vectors = np.linalg.eigh(rows[token] @ rows[token].T)
            right = vectors.T @ targets
            left = rows[token].T @ vectors
        shrunk = right[:, None] / (np.maximum(values, 0.0)[:, None, None] + l2[:, None])
        # One product for all strengths, (channel, l2 class), is faster than one for each.
        weights = left @ shrunk.reshape(len(right), -1)
        return np.moveaxis(weights.reshape(len(weights), len(l2), -1), 1, 0)

    count = len(xx if rows is None else rows)
    if count == 1:
        return solve_token(0)[None]
    # BLAS and LAPACK share small products among cores badly, so each core takes whole tokens.
    with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.stack(list(pool.map(solve_token, range(count))))


def ridge_inverse(covariance: np.ndarray, l2: float) -> np.ndarray:
    """Inverse of a covariance (channel, channel) plus `l2` times the mean variance of the channels.

    An unpenalized fit of channels that are dependent is that of the least norm.
    """
    penalty = l2 * np.trace(covariance) / len(covariance)
    penalized = covariance + penalty * np.eye(len(covariance))
    return np.linalg.pinv(penalized, rcond=1e-12, hermitian=True)


def fit_classifier(
    x: np.ndarray, labels: np.ndarray, num_classes: int, l2: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whitening, mean and scale (channel,), and weights (l2, channel + 1, class) of `few_shot`."""
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-5
    x = _whitened(x, mean, scale)
    y = 2.0 * np.eye(num_classes)[labels] - 1.0
    return mean, scale, fit_rows(x, y, l2)


def fit_rows(x: np.ndarray, y: np.ndarray, l2: Sequence[float]) -> np.ndarray:
    """`ridge_weights` (l2, channel, class) of rows, by the smaller of the two systems."""
    if len(x) >= x.shape[1]:
        return ridge_weights(np.asarray(l2), xx=(x.T @ x)[None], xy=(x.T @ y)[None])[0]
    return ridge_weights(np.asarray(l2), rows=x[None], targets=y)[0]


def classify(x: np.ndarray, mean: np.ndarray, scale: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Labels that `fit_classifier` gives to x of shape (example, channel): (l2, example)."""
    return (_whitened(x, mean, scale) @ weights).argmax(axis=-1)


def _whitened(x: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.pad((x - mean) / scale, ((0, 0), (0, 1)), constant_values=BIAS)
