"""Regularised least squares in float64, from sums or from the rows themselves."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_limits


def moments(examples, x, targets, products=None, rows=None):
    """The centred sums that `solve` needs of one layer, or its centred rows.

    Args:
        examples: number of examples.
        x: array of shape (token, channel), the sum over examples.
        targets: array of shape (class,), the sum over examples.
        products: dict of the sums `xx` of shape (token, channel, channel) and `xy` of shape
            (token, channel, class), or None where there are rows.
        rows: pair of arrays of shape (example, token, channel) and (example, class).

    Returns:
        dict of `mean` of shape (token, channel), `target` of shape (class,), and either `xx` and
        `xy` or `rows` of shape (token, example, channel) and `targets` of shape (example, class).
    """
    mean, target = x / examples, targets / examples
    known = {"mean": mean, "target": target}
    if rows is None:
        xx = np.empty_like(products["xx"])
        for token, of_mean in enumerate(mean):  # one at a time, as all together are large
            np.subtract(products["xx"][token], examples * np.outer(of_mean, of_mean), xx[token])
        xy = products["xy"] - examples * mean[:, :, None] * target
        return known | {"xx": xx, "xy": xy}
    centred = np.moveaxis(rows[0] - mean, 1, 0)
    return known | {"rows": centred, "targets": rows[1] - target}


def solve(moments, l2):
    """Weights and intercepts of one layer for every `l2`, from what `moments` returns.

    Returns:
        Two arrays of shape (token, l2, channel, class) and (token, l2, class).
    """
    terms = {name: values for name, values in moments.items() if name not in ("mean", "target")}
    weights = ridge_weights(l2, **terms)
    means = moments["mean"][:, None, None, :] @ weights
    return weights, moments["target"] - means[:, :, 0]


def ridge_weights(l2, *, xx=None, xy=None, rows=None, targets=None):
    """Weights of regularised least squares without an intercept, for every `l2`.

        primal: X' X = Q diag(s) Q',  W = Q diag(1 / (s + l2)) Q' X' Y
        dual:   X X' = Q diag(s) Q',  W = X' Q diag(1 / (s + l2)) Q' Y

    Args:
        l2: strengths of the penalty, array of shape (l2,).
        xx, xy: X' X of shape (token, channel, channel) and X' Y of shape (token, channel, class).
        rows, targets: in their place, X of shape (token, example, channel) and Y of shape
            (example, class).

    Returns:
        Array of shape (token, l2, channel, class).
    """
    if rows is None:
        values, vectors = _eigh(xx)
        right = np.swapaxes(vectors, 1, 2) @ xy
        left = vectors
    else:
        values, vectors = _eigh(rows @ np.swapaxes(rows, 1, 2))
        right = np.swapaxes(vectors, 1, 2) @ targets
        left = np.swapaxes(rows, 1, 2) @ vectors
    shrunk = right[:, :, None] / (np.maximum(values, 0.0)[:, :, None, None] + l2[:, None])
    # One product for all strengths, (token, channel, l2 class), is faster than one for each.
    weights = left @ shrunk.reshape(*right.shape[:2], -1)
    return np.moveaxis(weights.reshape(*weights.shape[:2], len(l2), -1), 2, 1)


def _eigh(matrices):
    """`numpy.linalg.eigh` of a stack, one matrix to a core: LAPACK uses several cores badly."""
    if len(matrices) == 1:
        return np.linalg.eigh(matrices)
    with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count()) as pool:
        values, vectors = zip(*pool.map(np.linalg.eigh, matrices), strict=True)
    return np.stack(values), np.stack(vectors)
