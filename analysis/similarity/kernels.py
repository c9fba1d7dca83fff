"""Kernels of layers, their unbiased HSIC, its ratio and jackknife: the mathematics of CKA."""

import math
import warnings

import numpy as np
import tensorflow as tf

PARTS = 4  # of the channels of a layer, for its kernel
MOST_GROUPS = 32  # of batches, whose values without each are saved


@tf.function(autograph=False)  # many layers have one shape, and are traced once
def layer_gram(values):
    """`gram` of a layer of shape (example, ...).

    As the sum of those of a few parts of its channels: a product of parts keeps every core busy,
    where one of few rows and many columns does not.
    """
    channels = math.prod(values.shape[1:]) if values.shape[1:].is_fully_defined() else 1
    parts = tf.reshape(values, (tf.shape(values)[0], math.gcd(PARTS, channels), -1))
    kernels, of_mean = gram(tf.transpose(parts, (1, 0, 2)))
    return tf.reduce_sum(kernels, axis=0), tf.reduce_sum(of_mean, axis=0)


def pairwise_hsic(kernels_x, kernels_y):
    """The unbiased HSIC of all pairs of U-centred kernels, from one matrix product.

    That of the activations themselves is each value times the sizes of both kernels.

    Args:
        kernels_x: tensor of shape (x, example, example) from `unbiased_kernels`.
        kernels_y: tensor of shape (y, example, example), of the same examples.

    Returns:
        Tensor of shape (x, y).
    """
    x, y = (tf.reshape(kernels, (tf.shape(kernels)[0], -1)) for kernels in (kernels_x, kernels_y))
    n = tf.cast(tf.shape(kernels_x)[-1], tf.float32)
    return tf.matmul(x, y, transpose_b=True) / (n * (n - 3.0))


def unbiased_kernels(values):
    """The U-centred linear kernels of representations, and how large these are.

    Args:
        values: tensor of shape (..., example, channel).

    Returns:
        As `unbiased`.
    """
    return unbiased(*gram(values))


def gram(values):
    """The linear kernels of representations, centred first so that float32 does not cancel.

    Args:
        values: tensor of shape (..., example, channel).

    Returns:
        Kernels of shape (..., example, example), and the sums of squares that centring took from
        each representation, of shape (...,).
    """
    x = tf.cast(values, tf.float32)
    mean = tf.reduce_mean(x, axis=-2, keepdims=True)
    centred = x - mean
    n = tf.cast(tf.shape(x)[-2], tf.float32)
    of_mean = n * tf.reduce_sum(mean**2, axis=(-2, -1))
    return tf.matmul(centred, centred, transpose_b=True), of_mean


def unbiased(kernels, of_mean):
    """U-centred kernels of size 1, and how large they were.

    With A the kernel without its diagonal, r its row sums and s their sum,

        U_ij = A_ij - (r_i + r_j) / (n - 2) + s / ((n - 1) (n - 2)),    U_ii = 0,

    and `sum(U * V) / (n (n - 3))` is the unbiased HSIC of Song et al. 2012 (Szekely and Rizzo
    2014, equation 3). It is blind to a shift of all examples. HSIC is of the fourth degree in the
    activations, and float32 does not hold that of 1e-10 or 1e+10: each kernel is divided by its
    size, the mean of its diagonal.

    Args:
        kernels, of_mean: what `gram` returns.

    Returns:
        Kernels of shape (..., example, example), and scales of shape (..., 3): the size, and the
        sums of squares of the representation without and with its mean.
    """
    n = tf.cast(tf.shape(kernels)[-1], tf.float32)
    own = tf.linalg.trace(kernels)
    size = tf.maximum(own / n, 1e-37)  # a constant representation has a size too
    kernel = kernels / size[..., None, None]
    kernel = tf.linalg.set_diag(kernel, tf.zeros_like(kernel[..., 0]))
    rows = tf.reduce_sum(kernel, axis=-1) / (n - 2.0)
    total = tf.reduce_sum(rows, axis=-1)[..., None, None] / (n - 1.0)
    kernel = kernel - rows[..., :, None] - rows[..., None, :] + total
    kernel = tf.linalg.set_diag(kernel, tf.zeros_like(rows))
    return kernel, tf.stack([size, own, own + of_mean], axis=-1)


def ratio_and_jackknife(hsic):
    """CKA of the summed HSIC and its standard error from leaving out one batch at a time.

    Args:
        hsic: float64 array of shape (batch, layer, layer).

    Returns:
        Two arrays of shape (layer, layer); the error is NaN when there is one batch.
    """
    return jackknife(ratio, hsic)


def ratio(sums):
    """CKA of HSIC summed over batches: array of shape (layer, layer)."""
    norm = np.sqrt(np.diagonal(sums, axis1=-2, axis2=-1))
    return sums / norm[..., :, None] / norm[..., None, :]


def jackknife(value, rows):
    """The value of the sums over batches, and its standard error from leaving out one at a time.

    Args:
        value: function of a structure of sums to an array.
        rows: the structure of what each batch adds, float64 arrays of shape (batch, ...).

    Returns:
        Two arrays; the error is NaN when there is one batch, with a warning.
    """
    batches = len(tf.nest.flatten(rows)[0])
    whole = value(tf.nest.map_structure(lambda x: x.sum(axis=0), rows))
    if batches == 1:
        warnings.warn(
            "Standard errors of a single batch are NaN: cut the images into several, at least 8",
            stacklevel=2,
        )
        return whole, np.full(whole.shape, np.nan)
    rest = leave_one_out(value, rows)
    spread = ((rest - rest.mean(axis=0)) ** 2).sum(axis=0)
    return whole, np.sqrt((batches - 1) / batches * spread)


def leave_one_out(value, rows):
    """The value of the sums over all batches but one, of shape (batch, ...).

    Args:
        value, rows: as for `jackknife`.
    """
    total = tf.nest.map_structure(lambda x: x.sum(axis=0), rows)
    return np.stack(
        [
            value(tf.nest.map_structure(lambda x, sums, at=at: sums - x[at], rows, total))
            for at in range(len(tf.nest.flatten(rows)[0]))
        ]
    )


def grouped(rows):
    """What at most `MOST_GROUPS` groups of successive batches add, of shape (group, ...)."""
    groups = np.array_split(rows, min(len(rows), MOST_GROUPS))
    return np.stack([group.sum(axis=0) for group in groups])
