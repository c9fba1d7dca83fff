"""Measures that align kernels: CKA of linear and of Gaussian kernels, and of single tokens."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ..kernels import pairwise_hsic, unbiased, unbiased_kernels
from .measure import Measure, of_hsic

ROTATIONS = "orthogonal maps, isotropic scaling and translation of either representation"


def linear_cka():
    """CKA of linear kernels, the estimator of `cka`."""
    return of_hsic("cka", lambda layers: layers.hsic, ROTATIONS)


def rbf_cka(bandwidth: float = 0.5) -> Measure:
    """CKA of Gaussian kernels, to which near neighbours matter more than far ones.

        k(a, b) = exp(-|a - b|^2 / (2 sigma^2)),    sigma = bandwidth * median |a - b|

    the median over the pairs of different images of the batch (Kornblith et al. 2019, section 3,
    "kernel selection"); HSIC is unbiased and summed over batches as in `cka`, and not clamped. As
    the bandwidth grows it approaches the CKA of linear kernels.

    Scale: 0 for independent representations to 1; the estimator may leave it. Invariant to
    orthogonal maps, isotropic scaling and translation, not to other invertible linear maps. Memory:
    images x images for each layer.

    Args:
        bandwidth: as a share of the median distance, above 0.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: for another bandwidth.

    Examples:
        >>> measure = analysis.rbf_cka(0.2)
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['rbf_cka']

    See also:
        `similarities`, `cka`; page measurements/similarity/measures.md.
    """
    if not bandwidth > 0:
        raise ValueError(f"Expected bandwidth to be above 0. Received: bandwidth={bandwidth}")

    def hsic(layers):
        count = tf.shape(layers.distances)[1]
        # A remainder of one image, which is left out, has no distances.
        middle = tf.pad(layers.sorted_distances, [[0, 0], [0, 1]])
        median = (middle[:, tf.maximum(count - 1, 0) // 2] + middle[:, count // 2]) / 2.0
        sigma = tf.maximum(bandwidth * median, 1e-100)[:, None, None]
        kernels = tf.exp(-layers.squared_distances / (2.0 * sigma**2))
        kernels, _ = unbiased(tf.cast(kernels, tf.float32), tf.zeros(len(layers.values)))
        return tf.cast(pairwise_hsic(kernels, kernels), tf.float64)

    return of_hsic("rbf_cka", hsic, ROTATIONS, settings={"bandwidth": float(bandwidth)})


def token_cka() -> Measure:
    """CKA of single tokens: each token of a layer and the token at the same position in another.

        CKA(X, Y) = sum_t HSIC(X_t, Y_t) / sqrt(sum_t HSIC(X_t, X_t) sum_t HSIC(Y_t, Y_t))

    summed over tokens t and minibatches, with linear kernels and the unbiased HSIC of `cka`, whose
    kernel is the sum of those of the tokens: CKA compares what whole images hold, this what each
    place holds. A map's places are its tokens, a vector is one token.

    Scale: 0 for tokens that are independent to 1; the estimator may leave it. Invariant to an
    orthogonal map and a translation of each token by itself and to isotropic scaling of all; not to
    a permutation of the tokens, to which CKA is. NaN between layers of different numbers of tokens.
    Memory: tokens x images x images for each layer, the largest of the measures: of 84 layers of
    197 tokens 1.1 GB for batches of 128 images. Choose fewer layers for larger batches.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Examples:
        >>> result = analysis.similarities(vit, images, measures=[analysis.token_cka()])
        >>> result.measure.values.tolist()
        ['token_cka']

    See also:
        `similarities`, `cka`; page measurements/similarity/measures.md.
    """

    def hsic(layers):
        return _token_hsic(layers.tokens)

    invariant = "orthogonal maps and translation of each token, isotropic scaling of all"
    unknown = "layers of different numbers of tokens"
    return of_hsic("token_cka", hsic, invariant, unknown=unknown)


def _token_hsic(tokens):
    """HSIC summed over tokens, (layer, layer), NaN between different numbers of tokens.

    Args:
        tokens: list of tensors of shape (example, token, channel).
    """
    counts = [of.shape[1] for of in tokens]
    whole = tf.fill((len(tokens), len(tokens)), tf.constant(np.nan, tf.float64))
    for count in dict.fromkeys(counts):
        members = [place for place, other in enumerate(counts) if other == count]
        made = [_token_kernels(tokens[place]) for place in members]
        kernels, size = (tf.stack(parts) for parts in zip(*made, strict=True))
        found = _summed_hsic(kernels) * size[:, None] * size
        places = tf.constant([[(i, j) for j in members] for i in members])
        whole = tf.tensor_scatter_nd_update(whole, places, found)
    return whole


@tf.function(autograph=False)  # many layers have one shape, and are traced once
def _token_kernels(tokens):
    """U-centred kernels of all tokens (token, example, example) of mean size 1, and that size."""
    kernels, scales = unbiased_kernels(tf.transpose(tokens, (1, 0, 2)))
    size = tf.maximum(tf.reduce_mean(scales[:, 0]), 1e-37)
    return kernels * (scales[:, 0] / size)[:, None, None], tf.cast(size, tf.float64)


def _summed_hsic(kernels):
    """HSIC of kernels (layer, token, example, example) summed over tokens: (layer, layer)."""
    flat = tf.reshape(kernels, (tf.shape(kernels)[0], -1))
    n = tf.cast(tf.shape(kernels)[-1], tf.float64)
    products = tf.cast(tf.matmul(flat, flat, transpose_b=True), tf.float64)
    return products / (n * (n - 3.0))
