"""Measures that look for directions in common: canonical correlations of features."""

from __future__ import annotations

import tensorflow as tf

from .alignment import ROTATIONS
from .layers import NARROW, width_of
from .measure import Measure, of_pairs

# Share of the largest variance below which a direction is rounding.
NEGLIGIBLE = 1e-10
LINEAR = "invertible linear maps and translation"
UNKNOWN = "layers with too many directions together for so few images"


def svcca(variance: float = 0.99) -> Measure:
    """Mean canonical correlation of the directions of largest variance.

    Of each layer, features centred over the batch, the fewest principal directions are kept that
    hold a share of its variance; then as `cca` (Raghu et al. 2017, section 2.1). The mean over
    batches.

    Scale: 0 to 1. Independent layers of as many directions as there are images to tell them apart
    are far above 0: of d directions each and n images about sqrt(d / n). Where the directions of
    two layers are more than n - 1 together they meet whatever the features, and the value is NaN:
    take larger batches or less of the variance. Invariant to orthogonal maps, isotropic scaling and
    translation; not to other invertible linear maps, which change the directions that are kept.
    Memory: images x images for each layer, whatever the width; time: images cubed for each pair.

    Args:
        variance: share of the variance that is kept, above 0 and at most 1.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: for another share.

    Examples:
        >>> measure = analysis.svcca(variance=0.9)
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['svcca']

    See also:
        `similarities`, `cca`, `pwcca`; page measurements/similarity/measures.md.
    """
    if not 0 < variance <= 1:
        raise ValueError(
            f"Expected variance to be above 0 and at most 1. Received: variance={variance}"
        )
    return _mean_correlation("svcca", variance, ROTATIONS, {"variance": float(variance)})


def cca() -> Measure:
    """Mean canonical correlation of all directions.

        rho_1, rho_2, ... = singular values of Q_X' Q_Y,    value = mean of the min(d_X, d_Y) first

    with Q an orthonormal basis of the space that the columns of the centred features span, of d
    directions, those of more than 1e-10 of the largest variance (Hotelling 1936; Kornblith et al.
    2019, section 3.2). The mean over batches.

    Scale, and NaN where d_X + d_Y is more than n - 1 for batches of n images: as `svcca`. It takes
    more images in a batch than the channels of two layers together: pool the tokens, and choose
    large batches. Invariant to every invertible linear map and translation of either layer. Memory
    and time: as `svcca`.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Examples:
        >>> measure = analysis.cca()
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['cca']

    See also:
        `similarities`, `svcca`, `pwcca`; page measurements/similarity/measures.md.
    """
    return _mean_correlation("cca", 1.0, LINEAR, {})


def pwcca() -> Measure:
    """Mean canonical correlation, weighted by how much of the first layer each direction holds.

        value = sum_i a_i rho_i / sum_i a_i,    a_i = sum_j |<h_i, x_j>|

    with h_i the canonical directions of the first layer (`layer_x`), unit vectors over the images,
    and x_j its channels, centred (Morcos et al. 2018, section 2.2, equation 2). Not symmetric: the
    weights are those of `layer_x`. The mean over batches.

    Scale, and NaN, as `cca`, with layers of more than 4096 channels besides, which would need as
    many images. Invariant to every invertible linear map of `layer_y`, to isotropic scaling and to
    translation of both; not to orthogonal maps of `layer_x`, whose channels the weights are of.
    Memory: images x images, and images x channels, for each layer; time: images cubed, and images x
    images x channels, for each pair.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Examples:
        >>> measure = analysis.pwcca()
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['pwcca']

    See also:
        `similarities`, `cca`, `svcca`; page measurements/similarity/measures.md.
    """

    def stacks(layers):
        bases, counts = _bases(layers, 1.0)
        return bases, counts, _channels(layers)

    def value(basis_x, count_x, channels_x, basis_y, count_y, _):
        between = tf.matmul(basis_x, basis_y, transpose_a=True)
        squares, turned = tf.linalg.eigh(tf.matmul(between, between, transpose_b=True))
        rho = tf.sqrt(tf.maximum(squares, 0.0))
        held = tf.matmul(basis_x @ turned, channels_x, transpose_a=True)
        n = tf.shape(rho)[-1]
        last = tf.range(n) >= n - tf.minimum(count_x, count_y)[:, None]
        weights = tf.where(last, tf.reduce_sum(tf.abs(held), axis=-1), 0.0)
        mean = tf.reduce_sum(weights * rho, axis=-1) / tf.reduce_sum(weights, axis=-1)
        return _known(mean, count_x, count_y, n)

    invariant = "invertible linear maps of layer_y, isotropic scaling and translation"
    options = {"symmetric": False, "known": _narrow, "unknown": UNKNOWN}
    return of_pairs("pwcca", stacks, value, invariant, **options)


def _mean_correlation(name, variance, invariant, settings):
    """The measure of `svcca` and `cca`."""

    def value(basis_x, count_x, basis_y, count_y):
        between = tf.matmul(basis_x, basis_y, transpose_a=True)
        squares = tf.linalg.eigvalsh(tf.matmul(between, between, transpose_a=True))
        total = tf.reduce_sum(tf.sqrt(tf.maximum(squares, 0.0)), axis=-1)
        mean = total / tf.cast(tf.minimum(count_x, count_y), tf.float64)
        return _known(mean, count_x, count_y, tf.shape(squares)[-1])

    return of_pairs(
        name,
        lambda layers: _bases(layers, variance),
        value,
        invariant,
        settings=settings,
        unknown=UNKNOWN,
    )


def _bases(layers, variance):
    """Orthonormal bases of the directions of each layer that hold a share of its variance.

    Returns:
        Tensor of shape (layer, n, n), whose columns beyond the directions are 0, and the numbers of
        directions, (layer,).
    """
    values, vectors = layers.spectrum  # ascending
    largest = values[:, -1:]
    before = tf.cumsum(values, axis=1, exclusive=True, reverse=True)  # of those that are larger
    whole = tf.reduce_sum(values, axis=1, keepdims=True)
    real = values > NEGLIGIBLE * largest
    chosen = tf.logical_and(real, before < variance * whole) if variance < 1 else real
    count = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
    return tf.where(chosen[:, None, :], vectors, 0.0), count


def _known(values, count_x, count_y, n):
    """The values, NaN for pairs whose directions meet in n - 1 dimensions in any case."""
    return tf.where(count_x + count_y <= n - 1, values, tf.constant(float("nan"), tf.float64))


def _narrow(layers):
    """Which layers have no more channels than there are images, nor than `NARROW`."""
    most = min(NARROW, layers.values[0].shape[0] or NARROW)
    return [width_of(x) <= most for x in layers.values]


def _channels(layers):
    """Centred channels (layer, n, channel), filled with zeros to one width; 0 of wide layers."""
    narrow = _narrow(layers)
    widths = [width_of(x) if fits else 0 for x, fits in zip(layers.values, narrow, strict=True)]
    made = []
    for x, width in zip(layers.values, widths, strict=True):
        if not width:
            made.append(tf.zeros((layers.examples, max(widths)), tf.float64))
            continue
        flat = tf.cast(tf.reshape(x, (layers.examples, width)), tf.float64)
        centred = flat - tf.reduce_mean(flat, axis=0)
        made.append(tf.pad(centred, [[0, 0], [0, max(widths) - width]]))
    return tf.stack(made)
