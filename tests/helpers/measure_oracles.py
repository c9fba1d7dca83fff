"""Measures of similarity of two arrays (example, channel), in NumPy float64, from their papers."""

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import cdist, pdist
from scipy.stats import pearsonr, spearmanr


def hsic(k, m):
    """Unbiased HSIC of Song et al. 2012, equation 5, of two kernels."""
    n = len(k)
    k, m = (kernel - np.diag(np.diag(kernel)) for kernel in (k, m))
    one = np.ones(n)
    total = np.trace(k @ m) + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3))


def ratio(pairs):
    """CKA of pairs of kernels, of which HSIC is summed."""
    sums = sum(np.array([hsic(k, m), hsic(k, k), hsic(m, m)]) for k, m in pairs)
    return sums[0] / np.sqrt(sums[1] * sums[2])


def centred(x):
    return x - x.mean(0)


def linear(x):
    return centred(x) @ centred(x).T


def gaussian(x, bandwidth):
    sigma = bandwidth * np.median(pdist(x))
    return np.exp(-(cdist(x, x) ** 2) / (2 * sigma**2))


def cka(batches):
    return ratio((linear(x), linear(y)) for x, y in batches)


def minibatch_cka(x, y, size):
    """Nguyen et al. 2020, equation 3, of arrays (example, ...) in batches of a size."""
    x, y = (np.reshape(a, (len(a), -1)).astype(np.float64) for a in (x, y))
    return cka([(x[at : at + size], y[at : at + size]) for at in range(0, len(x), size)])


def without_each_batch(x, y, size):
    """The CKA of all batches but one, for each, and the jackknife's standard error from them."""
    rest = [
        minibatch_cka(*(np.delete(a, np.s_[at : at + size], axis=0) for a in (x, y)), size)
        for at in range(0, len(x), size)
    ]
    return rest, np.sqrt((len(rest) - 1) * np.var(rest))


def rbf_cka(batches, bandwidth):
    return ratio((gaussian(x, bandwidth), gaussian(y, bandwidth)) for x, y in batches)


def token_cka(batches):
    """Of pairs of arrays (example, token, channel)."""
    return ratio((linear(x[:, t]), linear(y[:, t])) for x, y in batches for t in range(x.shape[1]))


def procrustes(x, y):
    """From the best rotation itself; the narrower of the two is filled with zeros."""
    width = max(x.shape[1], y.shape[1])
    x, y = (np.pad(centred(a), ((0, 0), (0, width - a.shape[1]))) for a in (x, y))
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    turn, _ = orthogonal_procrustes(x, y)
    return 1 - 2 * np.arcsin(np.linalg.norm(x @ turn - y) / 2) / (np.pi / 2)


def correlations(x, y):
    """Canonical correlations by whitening (Hotelling 1936), and directions of x over the images."""
    x, y = centred(x), centred(y)
    white = []
    for a in (x, y):
        values, vectors = np.linalg.eigh(a.T @ a)
        white.append(vectors @ np.diag(values**-0.5) @ vectors.T)
    left, rho, _ = np.linalg.svd(white[0] @ x.T @ y @ white[1])
    count = len(rho)
    return rho, (x @ white[0] @ left)[:, :count]


def cca(x, y):
    return correlations(x, y)[0].mean()


def truncated(x, variance):
    """Principal components that hold a share of the variance, the fewest."""
    left, values, _ = np.linalg.svd(centred(x), full_matrices=False)
    share = np.cumsum(values**2) / np.sum(values**2)
    count = np.searchsorted(share, variance) + 1
    return left[:, :count] * values[:count]


def svcca(x, y, variance):
    return cca(truncated(x, variance), truncated(y, variance))


def pwcca(x, y):
    """Morcos et al. 2018, equation 2, weighted by the channels of x."""
    rho, directions = correlations(x, y)
    weights = np.abs(directions.T @ centred(x)).sum(1)
    return weights @ rho / weights.sum()


def rsa(x, y, correlation):
    return (pearsonr if correlation == "pearson" else spearmanr)(pdist(x), pdist(y)).statistic


def mutual_knn(x, y, k):
    nearest = []
    for a in (x, y):
        cosines = 1 - cdist(a, a, "cosine")
        np.fill_diagonal(cosines, -2)
        nearest.append(np.argsort(-cosines, axis=1)[:, :k])
    shared = [len(set(a) & set(b)) for a, b in zip(*nearest, strict=True)]
    return np.mean(shared) / k


def held_out_errors(x, y, l2, folds):
    """Squares of the errors of ridge regression on other folds, and of the mean of their y."""
    sums = np.zeros(2)
    fold = np.arange(len(x)) % folds
    for number in range(folds):
        fit, test = fold != number, fold == number
        mean_x, mean_y = x[fit].mean(0), y[fit].mean(0)
        a, b = x[fit] - mean_x, y[fit] - mean_y
        penalty = l2 * (a**2).sum() / len(a)
        weights = np.linalg.solve(a.T @ a + penalty * np.eye(a.shape[1]), a.T @ b)
        target = y[test] - mean_y
        sums += ((target - (x[test] - mean_x) @ weights) ** 2).sum(), (target**2).sum()
    return sums


def predictivity(batches, l2, folds):
    errors, total = sum(held_out_errors(x, y, l2, folds) for x, y in batches)
    return 1 - errors / total
