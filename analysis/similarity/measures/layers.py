"""What the measures need of the layers of one batch, each part made once for all of them."""

import math
from functools import cached_property

import tensorflow as tf

from ..kernels import layer_gram, pairwise_hsic, unbiased

# Channels of a layer up to which its kernel is made in float64: CCA looks at small directions.
NARROW = 4096
# Pairs of layers whose matrices are worked on at once.
PAIRS = 32


class Layers:
    """The layers of one batch of n images.

    Every part is of shape (layer, n, n) unless told otherwise. Kernels are linear, of features that
    are centred over the batch, and of size 1: the mean of the diagonal is 1. What is not finite is
    0 in them, as decompositions refuse it; the scales tell of it.

    Args:
        values: list of tensors of shape (n, ...), of each layer what is compared.
        tokens: list of tensors of shape (n, token, channel), or None where there are none.
    """

    def __init__(self, values, tokens=None):
        self.values, self.tokens = values, tokens
        self.examples = tf.shape(values[0])[0]

    @cached_property
    def _grams(self):
        """Centred kernels as they are, float32, and what centring took, of each layer."""
        return [layer_gram(values) for values in self.values]

    @cached_property
    def unbiased(self):
        """U-centred kernels, float32, and scales of shape (layer, 3), as `unbiased` makes them."""
        return unbiased(*map(tf.stack, zip(*self._grams, strict=True)))

    @cached_property
    def hsic(self):
        """HSIC of all pairs of layers, float64 of shape (layer, layer)."""
        kernels, scales = self.unbiased
        size = tf.cast(scales[:, 0], tf.float64)
        return tf.cast(pairwise_hsic(kernels, kernels), tf.float64) * size[:, None] * size

    @cached_property
    def _parts(self):
        """Kernels as they are, what the mean adds to each row, (layer, n), and its square."""
        kernels = [kernel for kernel, _ in self._grams]
        made = [_kernel(*pair) for pair in zip(self.values, kernels, strict=True)]
        return tuple(map(tf.stack, zip(*made, strict=True)))

    @cached_property
    def size(self):
        """The sizes of the kernels before they were divided, float64 of shape (layer,)."""
        own = tf.linalg.trace(self._parts[0]) / tf.cast(self.examples, tf.float64)
        return tf.maximum(own, 1e-37)

    @cached_property
    def kernels(self):
        """Centred linear kernels of size 1, float64."""
        kernels = self._parts[0] / self.size[:, None, None]
        return tf.where(tf.math.is_finite(kernels), kernels, tf.zeros_like(kernels))

    @cached_property
    def cosines(self):
        """Cosines of the features of all pairs of images, which are not centred; 0 for zeros."""
        kernels, along, of_mean = self._parts
        raw = kernels + along[:, :, None] + along[:, None, :] + of_mean[:, None, None]
        length = tf.sqrt(tf.maximum(tf.linalg.diag_part(raw), 1e-300))
        cosines = raw / length[:, :, None] / length[:, None, :]
        return tf.where(tf.math.is_finite(cosines), cosines, tf.zeros_like(cosines))

    @cached_property
    def squared_distances(self):
        """Squared Euclidean distances, in units of the size of each kernel."""
        own = tf.linalg.diag_part(self.kernels)
        squares = own[:, :, None] + own[:, None, :] - 2.0 * self.kernels
        return tf.linalg.set_diag(tf.maximum(squares, 0.0), tf.zeros_like(own))

    @cached_property
    def distances(self):
        """Euclidean distances of the n (n - 1) / 2 pairs of images: (layer, pair)."""
        ones = tf.ones((self.examples, self.examples), tf.bool)
        upper = tf.where(tf.linalg.set_diag(tf.linalg.band_part(ones, 0, -1), ~ones[0]))
        flat = tf.reshape(self.squared_distances, (len(self.values), -1))
        places = upper[:, 0] * tf.cast(self.examples, tf.int64) + upper[:, 1]
        return tf.sqrt(tf.gather(flat, places, axis=1))

    @cached_property
    def sorted_distances(self):
        """The same in ascending order."""
        return tf.sort(self.distances, axis=1)

    @cached_property
    def spectrum(self):
        """Eigenvalues of the kernels, ascending, of shape (layer, n), and their eigenvectors."""
        values, vectors = tf.linalg.eigh(self.kernels)
        return tf.maximum(values, 0.0), vectors


@tf.function(autograph=False)  # many layers have one shape, and are traced once
def _kernel(values, kernel):
    """The linear kernel of a layer and what its mean adds, as float64: see `Layers._parts`.

    Args:
        values: tensor of shape (example, ...).
        kernel: the same in float32, which is kept of a wide layer.
    """
    flat = tf.reshape(values, (tf.shape(values)[0], -1))
    precise = width_of(values) <= NARROW
    flat = tf.cast(flat, tf.float64 if precise else tf.float32)
    mean = tf.reduce_mean(flat, axis=0, keepdims=True)
    centred = flat - mean
    if precise:
        kernel = tf.matmul(centred, centred, transpose_b=True)
    along = tf.linalg.matvec(centred, mean[0])
    return tuple(tf.cast(x, tf.float64) for x in (kernel, along, tf.reduce_sum(mean**2)))


def width_of(values):
    """The number of channels of a layer (example, ...) when flattened; infinite if not known."""
    shape = values.shape[1:]
    return math.prod(shape) if shape.is_fully_defined() else math.inf


def over_pairs(function, pairs, *stacks):
    """`function` of the matrices of pairs of layers, a few pairs at a time.

    Args:
        function: of a stack of shape (pair, ...) for the first layers, for each of the `stacks`,
            and then of as many for the second ones, to a tensor of shape (pair,).
        pairs: list of pairs of positions of layers.
        *stacks: tensors of shape (layer, ...).

    Returns:
        Tensor of shape (pair,), float64.
    """
    missing = -len(pairs) % min(PAIRS, len(pairs))
    chunks = tf.reshape(
        tf.constant([*pairs, *pairs[:1] * missing]), (-1, min(PAIRS, len(pairs)), 2)
    )

    def one(chunk):
        return function(*(tf.gather(stack, chunk[:, side]) for side in (0, 1) for stack in stacks))

    found = tf.map_fn(one, chunks, fn_output_signature=tf.float64, parallel_iterations=1)
    return tf.reshape(found, (-1,))[: len(pairs)]
