"""Measures of where images lie: Procrustes distance, representational similarity, neighbours."""

from __future__ import annotations

import math

import tensorflow as tf

from ...engine.results import require_word
from .alignment import ROTATIONS
from .layers import Layers
from .measure import Measure, of_matrix, of_pairs

# Share of the largest eigenvalue below which one of a product of kernels is rounding.
ROUNDING = 1e-13
CORRELATIONS = ("pearson", "spearman")


def procrustes() -> Measure:
    """How near the best rotation brings two representations: 1 less the Procrustes angle.

        angle = arccos(|X' Y|_* / (|X|_F |Y|_F)),    value = 1 - angle / (pi / 2)

    of features centred over the batch, with the nuclear norm, the sum of singular values (Williams
    et al. 2021, equation 5, of the group of orthogonal maps). The angle is a metric: it obeys the
    triangle inequality, which CKA does not. The mean over batches.

    Scale: 0, nothing in common, to 1. Of few images two independent layers of many channels are
    above 0: compare values of one batch size. Invariant to orthogonal maps, isotropic scaling and
    translation, not to other invertible linear maps. Memory: images x images for each layer,
    whatever the width; time: images cubed for each pair.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Examples:
        >>> measure = analysis.procrustes()
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['procrustes']

    See also:
        `similarities`, `rsa`; page measurements/similarity/measures.md.
    """

    def stacks(layers):
        values, vectors = layers.spectrum
        roots = tf.matmul(vectors * tf.sqrt(values)[:, None, :], vectors, transpose_b=True)
        return roots, layers.kernels

    def value(root_x, kernel_x, root_y, kernel_y):
        # The squared singular values of X' Y are the eigenvalues of this product.
        squares = tf.linalg.eigvalsh(root_y @ kernel_x @ root_y)
        own = tf.linalg.trace(kernel_x) * tf.linalg.trace(kernel_y)
        cosine = _sum_of_roots(squares) / tf.sqrt(tf.maximum(own, 1e-300))
        return 1.0 - tf.acos(tf.minimum(cosine, 1.0)) / (math.pi / 2)

    return of_pairs("procrustes", stacks, value, ROTATIONS)


def _sum_of_roots(squares):
    """The sum of the square roots of eigenvalues (..., n), ascending, but for rounding."""
    real = squares > ROUNDING * squares[..., -1:]
    return tf.reduce_sum(tf.where(real, tf.sqrt(tf.maximum(squares, 0.0)), 0.0), axis=-1)


def rsa(correlation: str = "pearson") -> Measure:
    """Representational similarity: the correlation of the distances between images.

        value = corr(d_X, d_Y),    d_X = (|x_i - x_j| for the pairs i < j of images of the batch)

    of Euclidean distances (Kriegeskorte et al. 2008, "representational similarity analysis"), as
    they are or by their ranks, equal ones sharing the mean of theirs. The mean over batches.

    Scale: -1 to 1, 0 for unrelated distances. Invariant to orthogonal maps, isotropic scaling and
    translation, that of ranks also to any increasing function of the distances; not to other
    invertible linear maps. Memory: images x images for each layer.

    Args:
        correlation: `"pearson"` or `"spearman"`.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: for another correlation.

    Examples:
        >>> measure = analysis.rsa("spearman")
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['rsa_spearman']

    See also:
        `similarities`, `procrustes`; page measurements/similarity/measures.md.
    """
    require_word(correlation, CORRELATIONS, "correlation")

    def matrix(layers):
        distances = layers.distances if correlation == "pearson" else _ranks(layers)
        centred = distances - tf.reduce_mean(distances, axis=1, keepdims=True)
        length = tf.norm(centred, axis=1, keepdims=True)
        units = centred / tf.maximum(length, 1e-300)
        return tf.matmul(units, units, transpose_b=True)

    return of_matrix(f"rsa_{correlation}", matrix, ROTATIONS)


def _ranks(layers: Layers):
    """Ranks of the distances from 0, equal values sharing the mean of theirs: (layer, pair)."""
    ordered = layers.sorted_distances
    sides = [tf.searchsorted(ordered, layers.distances, side) for side in ("left", "right")]
    return tf.cast(tf.add_n(sides) - 1, tf.float64) / 2.0


def mutual_knn(k: int = 10) -> Measure:
    """Share of the nearest images of each image that are so in both representations.

        value = mean over images i of |N_X(i) and N_Y(i)| / k

    with N(i) the k other images of the batch of the largest cosine similarity to image i, of
    features as they are, not centred (Huh et al. 2024, "The Platonic Representation Hypothesis",
    appendix A and its code). Of equally near images the earlier ones count. The mean over batches.

    Scale: 0 to 1; independent representations share k / (n - 1) for batches of n images, so that
    only values of one k and one batch size compare. Invariant to orthogonal maps and to scaling,
    also of single images; not to translation, nor to other invertible linear maps. Memory: images x
    images for each layer.

    Args:
        k: number of neighbours; batches need k + 2 images.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: for a `k` below 1.

    Examples:
        >>> measure = analysis.mutual_knn(k=5)
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['mutual_knn']

    See also:
        `similarities`, `knn_accuracy`; page measurements/similarity/measures.md.
    """
    if k < 1:
        raise ValueError(f"Expected k to be at least 1. Received: k={k}")

    def matrix(layers):
        lowest = tf.fill((len(layers.values), layers.examples), tf.constant(-2.0, tf.float64))
        most = tf.minimum(k, layers.examples)  # a remainder, which is left out, may have fewer
        nearest = tf.math.top_k(tf.linalg.set_diag(layers.cosines, lowest), most).indices
        chosen = tf.reduce_sum(tf.one_hot(nearest, layers.examples), axis=2)
        flat = tf.reshape(chosen, (len(layers.values), -1))
        return tf.matmul(flat, flat, transpose_b=True) / tf.cast(layers.examples * k, tf.float32)

    invariant = "orthogonal maps and scaling"
    return of_matrix("mutual_knn", matrix, invariant, settings={"k": int(k)}, min_batch=k + 2)
