"""Measures of the similarity of layers, for `similarities`: what each takes from a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import tensorflow as tf

from ..engine.results import as_counts, require_word
from ..engine.stream import Totals
from ..engine.traces import Constant
from .cka import (
    LEAST_EXAMPLES,
    layer_gram,
    pairwise_hsic,
    ratio,
    scale_to_unit,
    unbiased,
    unbiased_kernels,
)

# Kernels of layers with at most so many channels are float64: CCA depends on small directions.
MAX_FLOAT64_CHANNELS = 4096
# Pairs of layers whose matrices are worked on at once.
PAIRS = 32
# Eigenvalues below these shares of the largest one are rounding: of kernels, and of their products.
KERNEL_ROUNDING, PRODUCT_ROUNDING = 1e-10, 1e-13

# What leaves several measures unchanged, and why some are NaN.
ROTATIONS = "orthogonal maps, isotropic scaling and translation of either representation"
LINEAR_MAPS = "invertible linear maps and translation"
TOO_FEW_IMAGES = "too few images for the number of directions of both layers"
CORRELATIONS = ("pearson", "spearman")

Pair: TypeAlias = tuple[int, int]  # positions of two layers
# For example f(a_x, b_x, a_y, b_y), of matrices a and b of layers x and y: each argument stacks
# those of several pairs of layers, and the values are float64 of shape (pair,).
PairFunction: TypeAlias = Callable[..., tf.Tensor]


class Layers:
    """The layers of one batch of n images; arrays (layer, n, n) are computed when first used.

    Kernels are linear, of features that are centred over the batch, and are scaled so that the
    mean of the diagonal is 1. Decompositions need finite values: non-finite entries of kernels are
    set to 0, and the non-finite `size` marks their layer. `tokens` are tensors (n, token, channel),
    or None where no measure reads them. An incomplete last batch, which may have too few images for
    a measure, is traced but not counted.
    """

    def __init__(
        self, values: Sequence[tf.Tensor], tokens: Sequence[tf.Tensor] | None = None
    ) -> None:
        # Values are divided by a unit, a power of 2; HSIC and sizes are multiplied by its square.
        scaled, squares_of_units = zip(*map(scale_to_unit, values), strict=True)
        self.values, self.tokens = scaled, tokens
        self._squares_of_units = tf.stack(squares_of_units)
        self.examples = tf.shape(values[0])[0]

    @cached_property
    def _grams(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """The unscaled centred kernel, float32, and the squared norm of the mean of each layer."""
        return [layer_gram(values) for values in self.values]

    @cached_property
    def unbiased(self) -> tuple[tf.Tensor, tf.Tensor]:
        """U-centred kernels, float32, and scales of shape (layer, 3), as `unbiased` makes them."""
        kernels, scales = unbiased(*map(tf.stack, zip(*self._grams, strict=True)))
        return kernels, tf.cast(scales, tf.float64) * self._squares_of_units[:, None]

    @cached_property
    def hsic(self) -> tf.Tensor:
        """HSIC of all pairs of layers, float64 of shape (layer, layer)."""
        kernels, scales = self.unbiased
        hsic = tf.cast(pairwise_hsic(kernels, kernels), tf.float64)
        return hsic * scales[:, :1] * scales[:, 0]

    @cached_property
    def _uncentred(self) -> Uncentred:
        """The parts of the uncentred kernels of all layers, stacked."""
        # The float32 kernels are also those of `hsic`, which every result has.
        pairs = zip(self.values, self._grams, strict=True)
        parts = [_uncentred_kernel(values, kernel) for values, (kernel, _) in pairs]
        return Uncentred(*map(tf.stack, zip(*parts, strict=True)))

    @cached_property
    def size(self) -> tf.Tensor:
        """The sizes of the kernels before they were divided, float64 of shape (layer,)."""
        mean_of_diagonal = tf.reduce_mean(tf.linalg.diag_part(self._uncentred.kernel), axis=1)
        return tf.maximum(mean_of_diagonal * self._squares_of_units, 1e-100)

    @cached_property
    def kernels(self) -> tf.Tensor:
        """Centred linear kernels, scaled to size 1, as float64."""
        size_in_units = self.size / self._squares_of_units
        kernels = self._uncentred.kernel / size_in_units[:, None, None]
        return tf.where(tf.math.is_finite(kernels), kernels, tf.zeros_like(kernels))

    @cached_property
    def cosines(self) -> tf.Tensor:
        """Cosines of the features of all pairs of images, which are not centred; 0 for zeros."""
        kernel, mean_product, mean_square = self._uncentred
        raw = kernel + mean_product[:, :, None] + mean_product[:, None, :]
        raw += mean_square[:, None, None]
        length = tf.sqrt(tf.maximum(tf.linalg.diag_part(raw), 1e-300))
        cosines = raw / length[:, :, None] / length[:, None, :]
        return tf.where(tf.math.is_finite(cosines), cosines, tf.zeros_like(cosines))

    @cached_property
    def squared_distances(self) -> tf.Tensor:
        """Squared Euclidean distances, in units of the size of each kernel."""
        squared_norms = tf.linalg.diag_part(self.kernels)
        squares = squared_norms[:, :, None] + squared_norms[:, None, :] - 2.0 * self.kernels
        return tf.linalg.set_diag(tf.maximum(squares, 0.0), tf.zeros_like(squared_norms))

    @cached_property
    def distances(self) -> tf.Tensor:
        """Euclidean distances of the n (n - 1) / 2 pairs of images: (layer, pair)."""
        i = tf.range(self.examples)
        is_upper = i[:, None] < i
        return tf.sqrt(tf.boolean_mask(self.squared_distances, is_upper, axis=1))

    @cached_property
    def sorted_distances(self) -> tf.Tensor:
        """The same in ascending order."""
        return tf.sort(self.distances, axis=1)

    @cached_property
    def spectrum(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Eigenvalues of the kernels, ascending, of shape (layer, n), and their eigenvectors."""
        values, vectors = tf.linalg.eigh(self.kernels)
        return tf.maximum(values, 0.0), vectors


class Uncentred(NamedTuple):
    """Parts of the uncentred kernel of a layer, float64, with features x_i = mean + c_i.

    x_i x_j' = kernel[i, j] + mean_product[i] + mean_product[j] + mean_square
    """

    kernel: tf.Tensor  # c_i c_j'
    mean_product: tf.Tensor  # c_i mean'
    mean_square: tf.Tensor  # mean mean'


@tf.function(autograph=False)  # many layers have one shape, and are traced once
def _uncentred_kernel(values: tf.Tensor, kernel: tf.Tensor) -> Uncentred:
    """The `Uncentred` of a layer (example, ...), of its float32 `kernel` if it is wide."""
    flat = tf.reshape(values, (tf.shape(values)[0], -1))
    precise = width_of(values) <= MAX_FLOAT64_CHANNELS
    flat = tf.cast(flat, tf.float64 if precise else tf.float32)
    mean = tf.reduce_mean(flat, axis=0, keepdims=True)
    centred = flat - mean
    if precise:
        kernel = tf.matmul(centred, centred, transpose_b=True)
    mean_product = tf.linalg.matvec(centred, mean[0])
    parts = (kernel, mean_product, tf.reduce_sum(mean**2))
    return Uncentred(*(tf.cast(part, tf.float64) for part in parts))


def width_of(values: tf.Tensor) -> float:
    """The number of channels of a layer (example, ...) when flattened; infinite if not known."""
    shape = values.shape[1:]
    return math.prod(shape) if shape.is_fully_defined() else math.inf


def map_pairs(function: PairFunction, pairs: Sequence[Pair], *stacks: tf.Tensor) -> tf.Tensor:
    """`function` of the matrices of `pairs` of layers, a few at a time: float64 (pair,)."""
    chunk_size = min(PAIRS, len(pairs))
    padding = [pairs[0]] * (-len(pairs) % chunk_size)
    chunks = tf.reshape(tf.constant([*pairs, *padding]), (-1, chunk_size, 2))

    def values_of_chunk(chunk: tf.Tensor) -> tf.Tensor:
        return function(*(tf.gather(stack, chunk[:, side]) for side in (0, 1) for stack in stacks))

    values = tf.map_fn(
        values_of_chunk, chunks, fn_output_signature=tf.float64, parallel_iterations=1
    )
    return tf.reshape(values, (-1,))[: len(pairs)]


@dataclass(frozen=True, eq=False)
class Measure(Constant):
    """A measure of how similar two layers are, made by `rbf_cka`, `procrustes` and others.

    Attributes:
        name: the name in a result.
        terms: maps the `Layers` of a batch and the `Places` to float64 tensors.
        value: maps the sums of `terms` over batches, and the `Places`, to an array
            (layer_x, layer_y).
        invariant: which changes of a representation leave the value unchanged, in words.
        settings: the arguments of the measure, which are saved with a result.
        min_batch: the least number of images of a batch.
        nan_reason: why the value may be NaN for some pairs of layers, in words.
    """

    name: str
    terms: Callable[[Layers, Places], dict[str, tf.Tensor]]
    value: Callable[[dict[str, np.ndarray], Places], np.ndarray]
    invariant: str
    settings: dict[str, float] = field(default_factory=dict)
    min_batch: int = LEAST_EXAMPLES
    nan_reason: str = ""


@dataclass(frozen=True)
class Places:
    """Positions `x` and `y` of the layers of the two models that are compared."""

    x: list[int]
    y: list[int]

    def pairs(self, symmetric: bool) -> list[Pair]:
        """Pairs of positions whose measure has to be computed."""
        half = symmetric and self.x == self.y
        return [(i, j) for i in self.x for j in self.y if not half or i <= j]

    def block(self, values: np.ndarray, symmetric: bool) -> np.ndarray:
        """The values of `pairs` as an array of shape (layer_x, layer_y)."""
        by_pair = dict(zip(self.pairs(symmetric), np.asarray(values), strict=True))
        return np.array(
            [[by_pair[(i, j) if (i, j) in by_pair else (j, i)] for j in self.y] for i in self.x]
        )


def hsic_measure(
    name: str, hsic: Callable[[Layers], tf.Tensor], invariant: str, **options: Any
) -> Measure:
    """A measure that is a ratio of sums of HSIC; `hsic` returns HSIC (layer, layer)."""

    def value(totals: Totals, places: Places) -> np.ndarray:
        return ratio(totals["hsic"])[np.ix_(places.x, places.y)]

    return Measure(name, lambda layers, _: {"hsic": hsic(layers)}, value, invariant, **options)


def matrix_measure(
    name: str, matrix: Callable[[Layers], tf.Tensor], invariant: str, **options: Any
) -> Measure:
    """A measure that is the mean over batches of a function of `Layers` (layer, layer)."""

    def terms(layers: Layers, _: Places) -> dict[str, tf.Tensor]:
        return {"sum": tf.cast(matrix(layers), tf.float64), "batches": tf.ones((), tf.float64)}

    def value(totals: Totals, places: Places) -> np.ndarray:
        return (totals["sum"] / totals["batches"])[np.ix_(places.x, places.y)]

    return Measure(name, terms, value, invariant, **options)


def pair_measure(
    name: str,
    stacks: Callable[[Layers], tuple[tf.Tensor, ...]],
    function: PairFunction,
    invariant: str,
    symmetric: bool = True,
    has_value: Callable[[Layers], list[bool]] | None = None,
    **options: Any,
) -> Measure:
    """The mean over batches of `map_pairs` of `stacks`; NaN for layers without `has_value`."""

    def terms(layers: Layers, places: Places) -> dict[str, tf.Tensor]:
        pairs = places.pairs(symmetric)
        available = has_value(layers) if has_value else [True] * len(layers.values)
        positions = [index for index, (i, j) in enumerate(pairs) if available[i] and available[j]]
        values = tf.fill((len(pairs),), tf.constant(np.nan, tf.float64))
        if positions:
            computed = map_pairs(function, [pairs[index] for index in positions], *stacks(layers))
            values = tf.tensor_scatter_nd_update(values, np.array(positions)[:, None], computed)
        return {"sum": values, "batches": tf.ones((), tf.float64)}

    def value(totals: Totals, places: Places) -> np.ndarray:
        return places.block(totals["sum"] / totals["batches"], symmetric)

    return Measure(name, terms, value, invariant, **options)


def linear_cka() -> Measure:
    """CKA of linear kernels, the estimator of `cka`."""
    return hsic_measure("cka", lambda layers: layers.hsic, ROTATIONS)


@cache
def rbf_cka(bandwidth: float = 0.5) -> Measure:
    """CKA of Gaussian kernels, which weight near neighbours more than distant ones.

        k(a, b) = exp(-|a - b|^2 / (2 sigma^2)),    sigma = bandwidth * median |a - b|

    The median distance is over all pairs of different images in the batch (Kornblith et al. 2019,
    section 3, "kernel selection"). HSIC is unbiased and summed over batches, as in `cka`. Values
    are not clamped. For large bandwidths, the values approach the CKA of linear kernels.

    Values range from 0 (independent) to 1, but estimates may lie outside this range. The measure is
    invariant to orthogonal maps, isotropic scaling and translation, but not to other invertible
    linear maps. Memory grows as (images per batch)^2 for each layer.

    Args:
        bandwidth: standard deviation of the kernel as a fraction of the median distance, above 0.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: if the bandwidth is not above 0.

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

    def hsic(layers: Layers) -> tf.Tensor:
        count = tf.shape(layers.distances)[1]
        # An incomplete last batch of one image has no distances: its median is 0.
        padded = tf.pad(layers.sorted_distances, [[0, 0], [0, 1]])
        median = (padded[:, tf.maximum(count - 1, 0) // 2] + padded[:, count // 2]) / 2.0
        sigma = tf.maximum(bandwidth * median, 1e-100)[:, None, None]
        kernels = tf.exp(-layers.squared_distances / (2.0 * sigma**2))
        # Their diagonal is 1, so that `unbiased` does not change their scale.
        kernels, _ = unbiased(tf.cast(kernels, tf.float32), tf.zeros(len(layers.values)))
        return tf.cast(pairwise_hsic(kernels, kernels), tf.float64)

    return hsic_measure("rbf_cka", hsic, ROTATIONS, settings={"bandwidth": float(bandwidth)})


@cache
def token_cka() -> Measure:
    """CKA between tokens at the same position in two layers.

        CKA(X, Y) = sum_t HSIC(X_t, Y_t) / sqrt(sum_t HSIC(X_t, X_t) sum_t HSIC(Y_t, Y_t))

    Sums are over tokens t and minibatches, with linear kernels and the unbiased HSIC of `cka`. The
    kernel in `cka` is the sum of the kernels of all tokens. Thus `cka` compares whole images, and
    `token_cka` compares each position. Each position of a feature map is a token. A layer with one
    vector per image has one token.

    Values range from 0 (independent) to 1, but estimates may lie outside this range. The measure is
    invariant to an orthogonal map and a translation of each token separately, and to isotropic
    scaling of all tokens. Unlike CKA, it is not invariant to a permutation of the tokens. The value
    is NaN for layers with different numbers of tokens.

    Memory grows as tokens x (images per batch)^2 for each layer, which is more than for any other
    measure. For example, 84 layers of 197 tokens need 1.1 GB in batches of 128 images. Select fewer
    layers for larger batches.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Examples:
        >>> result = analysis.similarities(vit, images, measures=[analysis.token_cka()])
        >>> result.measure.values.tolist()
        ['token_cka']

    See also:
        `similarities`, `cka`; page measurements/similarity/measures.md.
    """
    invariant = "orthogonal maps and translation of each token, isotropic scaling of all"
    nan_reason = "layers of different numbers of tokens"
    return hsic_measure("token_cka", _token_hsic, invariant, nan_reason=nan_reason)


def _token_hsic(layers: Layers) -> tf.Tensor:
    """HSIC (layer, layer) summed over tokens; NaN for layers of other numbers of tokens."""
    tokens = cast(Sequence[tf.Tensor], layers.tokens)  # this measure asks for them
    counts = [layer_tokens.shape[1] for layer_tokens in tokens]
    result = tf.fill((len(tokens), len(tokens)), tf.constant(np.nan, tf.float64))
    for count in dict.fromkeys(counts):
        members = [place for place, other in enumerate(counts) if other == count]
        kernels_and_sizes = [_token_kernels(tokens[place]) for place in members]
        kernels, size = (tf.stack(parts) for parts in zip(*kernels_and_sizes, strict=True))
        flat = tf.reshape(kernels, (len(members), -1))
        n = tf.cast(tf.shape(kernels)[-1], tf.float64)
        products = tf.cast(tf.matmul(flat, flat, transpose_b=True), tf.float64)
        hsic = products / (n * (n - 3.0)) * size[:, None] * size
        places = tf.constant([[(i, j) for j in members] for i in members])
        result = tf.tensor_scatter_nd_update(result, places, hsic)
    return result


@tf.function(autograph=False)  # many layers have one shape, and are traced once
def _token_kernels(tokens: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """U-centred kernels of all tokens (token, example, example) of mean size 1, and that size."""
    kernels, scales = unbiased_kernels(tf.transpose(tokens, (1, 0, 2)))
    size = tf.maximum(tf.reduce_mean(scales[:, 0]), 1e-100)
    return kernels * tf.cast(scales[:, 0] / size, tf.float32)[:, None, None], size


@cache
def svcca(variance: float = 0.99) -> Measure:
    """Mean canonical correlation of the directions of largest variance.

    First, the features of each layer are centred over the batch and reduced to their first
    principal directions. The number of these directions is the smallest that explains the share
    `variance` of the variance. Then `cca` compares the reduced features (Raghu et al. 2017, section
    2.1). Values are averaged over batches.

    Values range from 0 to 1. Two independent layers with d directions each score about sqrt(d / n)
    in batches of n images, which is far above 0 for large d. If two layers together have more than
    n - 1 directions, their subspaces always intersect. The value is then NaN: use larger batches or
    a smaller `variance`.

    The measure is invariant to orthogonal maps, isotropic scaling and translation. Other invertible
    linear maps change the directions that are kept, so the measure is not invariant to them. For
    batches of n images, memory grows as n^2 for each layer, whatever its width, and time grows as
    n^3 for each pair of layers.

    Args:
        variance: share of the variance that is kept, above 0 and at most 1.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: if `variance` is outside the interval (0, 1].

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


@cache
def cca() -> Measure:
    """Mean canonical correlation of all directions.

        rho_1, rho_2, ... = singular values of Q_X' Q_Y,    value = mean of the min(d_X, d_Y) first

    Here, Q is an orthonormal basis of the space that the columns of the centred features span, and
    d is the number of directions in Q. Directions whose variance is at most 1e-10 of the largest
    variance are excluded (Hotelling 1936; Kornblith et al. 2019, section 3.2). Values are averaged
    over batches.

    Values range from 0 to 1, as for `svcca`. The value is NaN if d_X + d_Y exceeds n - 1 in batches
    of n images. Therefore, a batch must have more images than the two layers together have
    channels: pool the tokens, and use large batches. The measure is invariant to every invertible
    linear map and translation of either layer. Memory and time are the same as for `svcca`.

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
    return _mean_correlation("cca", 1.0, LINEAR_MAPS, {})


@cache
def pwcca() -> Measure:
    """Mean canonical correlation, weighted by how much each direction explains of the first layer.

        value = sum_i a_i rho_i / sum_i a_i,    a_i = sum_j |<h_i, x_j>|

    Here, the h_i are the canonical directions of the first layer (`layer_x`). Each h_i is a unit
    vector over the images. The x_j are the centred channels of `layer_x` (Morcos et al. 2018,
    section 2.2, equation 2). The measure is not symmetric, because the weights are those of
    `layer_x`. Values are averaged over batches.

    Values range from 0 to 1, and they are NaN for the same pairs of layers as for `cca`. Values are
    also NaN for layers with more than 4096 channels. The measure is invariant to every invertible
    linear map of `layer_y`, and to isotropic scaling and translation of both layers. It is not
    invariant to orthogonal maps of `layer_x`, since the weights depend on the channels of
    `layer_x`. For batches of n images and layers of c channels, memory grows as n^2 + n c for each
    layer, and time grows as n^3 + n^2 c for each pair of layers.

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

    def stacks(layers: Layers) -> tuple[tf.Tensor, ...]:
        bases, counts = _bases(layers, 1.0)
        return bases, counts, _channels(layers)

    def value(
        basis_x: tf.Tensor,
        count_x: tf.Tensor,
        channels_x: tf.Tensor,
        basis_y: tf.Tensor,
        count_y: tf.Tensor,
        _: tf.Tensor,
    ) -> tf.Tensor:
        between = tf.matmul(basis_x, basis_y, transpose_a=True)
        squares, rotation = tf.linalg.eigh(tf.matmul(between, between, transpose_b=True))
        rho = tf.sqrt(tf.maximum(squares, 0.0))  # ascending, after zeros
        projections = tf.matmul(basis_x @ rotation, channels_x, transpose_a=True)
        n = tf.shape(rho)[-1]
        is_canonical = tf.range(n) >= n - tf.minimum(count_x, count_y)[:, None]
        weights = tf.where(is_canonical, tf.reduce_sum(tf.abs(projections), axis=-1), 0.0)
        mean = tf.reduce_sum(weights * rho, axis=-1) / tf.reduce_sum(weights, axis=-1)
        return _nan_if_overlapping(mean, count_x, count_y, n)

    invariant = "invertible linear maps of layer_y, isotropic scaling and translation"
    return pair_measure(
        "pwcca",
        stacks,
        value,
        invariant,
        symmetric=False,
        has_value=_are_narrow,
        nan_reason=TOO_FEW_IMAGES,
    )


def _mean_correlation(
    name: str, variance: float, invariant: str, settings: dict[str, float]
) -> Measure:
    """The measure of `svcca` and `cca`."""

    def value(
        basis_x: tf.Tensor, count_x: tf.Tensor, basis_y: tf.Tensor, count_y: tf.Tensor
    ) -> tf.Tensor:
        between = tf.matmul(basis_x, basis_y, transpose_a=True)
        squares = tf.linalg.eigvalsh(tf.matmul(between, between, transpose_a=True))
        total = tf.reduce_sum(tf.sqrt(tf.maximum(squares, 0.0)), axis=-1)
        mean = total / tf.cast(tf.minimum(count_x, count_y), tf.float64)
        return _nan_if_overlapping(mean, count_x, count_y, tf.shape(squares)[-1])

    bases = partial(_bases, variance=variance)
    return pair_measure(name, bases, value, invariant, settings=settings, nan_reason=TOO_FEW_IMAGES)


def _bases(layers: Layers, variance: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Orthonormal bases (layer, n, n) that hold a share of the variance, and their sizes."""
    values, vectors = layers.spectrum  # ascending
    largest = values[:, -1:]
    variance_of_larger = tf.cumsum(values, axis=1, exclusive=True, reverse=True)
    variance_sum = tf.reduce_sum(values, axis=1, keepdims=True)
    is_kept = values > KERNEL_ROUNDING * largest
    if variance < 1:
        is_kept &= variance_of_larger < variance * variance_sum
    count = tf.reduce_sum(tf.cast(is_kept, tf.int32), axis=1)
    return tf.where(is_kept[:, None, :], vectors, 0.0), count


def _nan_if_overlapping(
    values: tf.Tensor, count_x: tf.Tensor, count_y: tf.Tensor, n: tf.Tensor
) -> tf.Tensor:
    """NaN if count_x + count_y > n - 1, since the subspaces of both layers then intersect."""
    return tf.where(count_x + count_y <= n - 1, values, tf.constant(float("nan"), tf.float64))


def _are_narrow(layers: Layers) -> list[bool]:
    """Which layers have at most `MAX_FLOAT64_CHANNELS`."""
    return [width_of(x) <= MAX_FLOAT64_CHANNELS for x in layers.values]


def _channels(layers: Layers) -> tf.Tensor:
    """Centred channels (layer, n, channel), padded to one width; zeros for wide layers."""
    narrow = zip(layers.values, _are_narrow(layers), strict=True)
    widths = [width_of(x) if is_narrow else 0 for x, is_narrow in narrow]
    channels = []
    for x, width in zip(layers.values, widths, strict=True):
        flat = tf.cast(tf.reshape(x, (layers.examples, -1))[:, :width], tf.float64)
        centred = flat - tf.reduce_mean(flat, axis=0)
        channels.append(tf.pad(centred, [[0, 0], [0, max(widths) - width]]))
    return tf.stack(channels)


@cache
def procrustes() -> Measure:
    """Similarity after the best rotation: 1 minus the Procrustes angle.

        angle = arccos(|X' Y|_* / (|X|_F |Y|_F)),    value = 1 - angle / (pi / 2)

    X and Y are features centred over the batch, and |.|_* is the nuclear norm, the sum of singular
    values (Williams et al. 2021, equation 5, for the group of orthogonal maps). Unlike CKA, the
    angle is a metric: it satisfies the triangle inequality. Values are averaged over batches.

    Values range from 0 (unrelated) to 1. With few images, independent layers of many channels score
    above 0: compare only values measured with the same batch size. The measure is invariant to
    orthogonal maps, isotropic scaling and translation, but not to other invertible linear maps. For
    batches of n images, memory grows as n^2 for each layer, whatever its width, and time grows as
    n^3 for each pair of layers.

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

    def stacks(layers: Layers) -> tuple[tf.Tensor, ...]:
        values, vectors = layers.spectrum
        roots = tf.matmul(vectors * tf.sqrt(values)[:, None, :], vectors, transpose_b=True)
        return roots, layers.kernels

    def value(
        root_x: tf.Tensor, kernel_x: tf.Tensor, root_y: tf.Tensor, kernel_y: tf.Tensor
    ) -> tf.Tensor:
        # The squared singular values of X' Y are the eigenvalues of this product.
        squares = tf.linalg.eigvalsh(root_y @ kernel_x @ root_y)
        squared_sizes = tf.linalg.trace(kernel_x) * tf.linalg.trace(kernel_y)
        above_rounding = squares > PRODUCT_ROUNDING * squares[..., -1:]
        roots = tf.where(above_rounding, tf.sqrt(tf.maximum(squares, 0.0)), 0.0)
        cosine = tf.reduce_sum(roots, axis=-1) / tf.sqrt(tf.maximum(squared_sizes, 1e-300))
        return 1.0 - tf.acos(tf.minimum(cosine, 1.0)) / (math.pi / 2)

    return pair_measure("procrustes", stacks, value, ROTATIONS)


@cache
def rsa(correlation: str = "pearson") -> Measure:
    """Representational similarity: the correlation of the distances between images.

        value = corr(d_X, d_Y),    d_X = (|x_i - x_j| for the pairs i < j of images of the batch)

    First, the Euclidean distances between all pairs of images are computed in each layer. Then the
    distances in one layer are correlated with the distances in the other layer (Kriegeskorte et al.
    2008, "representational similarity analysis"). With `correlation="spearman"`, the ranks of the
    distances are correlated instead, and equal distances get their mean rank. Values are averaged
    over batches.

    Values range from -1 to 1, and the value is 0 for unrelated distances. The measure is invariant
    to orthogonal maps, isotropic scaling and translation, but not to other invertible linear maps.
    With ranks, it is also invariant to any increasing function of the distances. Memory grows as
    (images per batch)^2 for each layer.

    Args:
        correlation: `"pearson"` or `"spearman"`.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: if `correlation` is unknown.

    Examples:
        >>> measure = analysis.rsa("spearman")
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['rsa_spearman']

    See also:
        `similarities`, `procrustes`; page measurements/similarity/measures.md.
    """
    require_word(correlation, CORRELATIONS, "correlation")

    def matrix(layers: Layers) -> tf.Tensor:
        distances = layers.distances if correlation == "pearson" else _ranks(layers)
        centred = distances - tf.reduce_mean(distances, axis=1, keepdims=True)
        length = tf.norm(centred, axis=1, keepdims=True)
        units = centred / tf.maximum(length, 1e-300)
        return tf.matmul(units, units, transpose_b=True)

    return matrix_measure(f"rsa_{correlation}", matrix, ROTATIONS)


def _ranks(layers: Layers) -> tf.Tensor:
    """Ranks of the distances from 0, equal values sharing the mean of theirs: (layer, pair)."""
    ordered = layers.sorted_distances
    sides = [tf.searchsorted(ordered, layers.distances, side) for side in ("left", "right")]
    return tf.cast(tf.add_n(sides) - 1, tf.float64) / 2.0


@cache
def mutual_knn(k: int = 10) -> Measure:
    """Share of the k nearest neighbours of an image that two layers have in common, on average.

        value = mean over images i of |N_X(i) and N_Y(i)| / k

    Here, N(i) is the set of the k other images of the batch with the largest cosine similarity to
    image i. Features are not centred (Huh et al. 2024, "The Platonic Representation Hypothesis",
    appendix A and its code). If several images are equally similar to image i, the images that come
    first in the batch are chosen. Values are averaged over batches.

    Values range from 0 to 1. Independent layers score k / (n - 1) in batches of n images, so
    compare only values with the same k and batch size. The measure is invariant to orthogonal maps
    and to scaling, even of each image separately, but not to translation or other invertible linear
    maps. Memory grows as n^2 for each layer.

    Args:
        k: number of neighbours. A batch must have at least k + 2 images.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: if `k` is below 1.

    Examples:
        >>> measure = analysis.mutual_knn(k=5)
        >>> result = analysis.similarities(vit, images, measures=[measure], tokens="cls")
        >>> result.measure.values.tolist()
        ['mutual_knn']

    See also:
        `similarities`, `knn_accuracy`; page measurements/similarity/measures.md.
    """
    as_counts(k)

    def matrix(layers: Layers) -> tf.Tensor:
        lowest = tf.fill((len(layers.values), layers.examples), tf.constant(-2.0, tf.float64))
        most = tf.minimum(k, layers.examples)  # an incomplete last batch may have fewer
        nearest = tf.math.top_k(tf.linalg.set_diag(layers.cosines, lowest), most).indices
        neighbours = tf.reduce_sum(tf.one_hot(nearest, layers.examples), axis=2)
        flat = tf.reshape(neighbours, (len(layers.values), -1))
        return tf.matmul(flat, flat, transpose_b=True) / tf.cast(layers.examples * k, tf.float32)

    invariant = "orthogonal maps and scaling"
    return matrix_measure("mutual_knn", matrix, invariant, settings={"k": int(k)}, min_batch=k + 2)


@cache
def linear_predictivity(l2: float = 0.1, folds: int = 5) -> Measure:
    """Fraction of the held-out variance of `layer_y` explained by ridge regression on `layer_x`.

        R^2 = 1 - sum_f |Y_f - mean - (X_f - mean) W_f|^2 / sum_f |Y_f - mean|^2

    For each fold f, the regression weights W_f and the means are fitted on the images of the batch
    that are not in fold f. Image i of a batch is in fold i modulo `folds`. The penalty of the ridge
    regression is `l2` times the mean squared length of the centred features of the images that are
    not in fold f (Schrimpf et al. 2018, "Brain-Score"; Kornblith et al. 2019, section 3.1). Sums of
    squares are added over folds, channels and batches before the ratio is taken. The measure is not
    symmetric: `layer_x` predicts `layer_y`.

    Values are at most 1 and are not clamped. The value is 0 if the prediction is only as good as
    the mean of the other images, and negative if the prediction is worse. The measure is invariant
    to orthogonal maps, isotropic scaling and translation of either layer, but not to other
    invertible linear maps. For batches of n images, memory grows as n^2 for each layer, whatever
    its width. Time grows as n^3 for each layer and as n^2 for each pair of layers.

    Args:
        l2: strength of the ridge penalty, above 0.
        folds: number of folds, at least 2. A batch must have at least twice as many images as
            folds.

    Returns:
        A `Measure` for `similarities(..., measures=[...])`.

    Raises:
        ValueError: if `l2` is not above 0 or `folds` is below 2.

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

    l2, folds = float(l2), int(folds)

    def terms(layers: Layers, _: Places) -> dict[str, tf.Tensor]:
        kernels, strength = layers.kernels, tf.constant(l2, tf.float64)
        forms = [_held_out(kernels, tf.constant(fold), folds, strength) for fold in range(folds)]
        errors, baselines = zip(*forms, strict=True)
        # The trace of a product of symmetric matrices is the dot product of their entries.
        error_forms = tf.reshape(tf.add_n(errors), (len(layers.values), -1))
        baseline_form = tf.reshape(tf.add_n(baselines), (-1,))
        target_kernels = tf.reshape(kernels * layers.size[:, None, None], tf.shape(error_forms))
        return {
            "residual": tf.matmul(error_forms, target_kernels, transpose_b=True),
            "total": tf.linalg.matvec(target_kernels, baseline_form),
        }

    def value(totals: Totals, places: Places) -> np.ndarray:
        share = totals["residual"] / totals["total"]
        return 1.0 - share[np.ix_(places.x, places.y)]

    settings = {"l2": l2, "folds": folds}
    return Measure("linear_predictivity", terms, value, ROTATIONS, settings, 2 * folds)


@tf.function(autograph=False)  # all folds share one trace
def _held_out(
    kernels: tf.Tensor, fold: tf.Tensor, folds: int, strength: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """What one fold adds to the squares of errors, as quadratic forms in the kernel of a target.

    Errors in the fold are linear in the target features Y of all images: E Y. Their squares add up
    to the trace of E' E Y Y'. Returns E' E for predictions from every layer (layer, n, n), and for
    the prediction of the mean (n, n). `strength` is that of the ridge penalty.
    """
    n = tf.shape(kernels)[-1]
    everyone = tf.eye(n, dtype=tf.float64)
    is_tested = tf.range(n) % folds == fold
    tested, fitted = (tf.boolean_mask(everyone, mask) for mask in (is_tested, ~is_tested))
    # An incomplete last batch may have no image to fit.
    count = tf.cast(tf.maximum(tf.shape(fitted)[0], 1), tf.float64)
    mean = tf.reduce_sum(fitted, axis=0, keepdims=True) / count
    from_mean = tested - mean
    centred = fitted - mean
    # Kernels of features that are centred by the mean of the fitted images.
    between = from_mean @ kernels @ tf.transpose(centred)
    within = centred @ kernels @ tf.transpose(centred)
    penalty = strength * tf.linalg.trace(within) / count
    penalty = tf.maximum(penalty, 1e-300)[:, None, None]
    within += penalty * tf.eye(tf.shape(fitted)[0], dtype=tf.float64)
    # Weights of the fitted images (fitted, tested), whose weighted sums are the predictions.
    image_weights = tf.linalg.cholesky_solve(
        tf.linalg.cholesky(within), tf.linalg.matrix_transpose(between)
    )
    errors = from_mean - tf.matmul(image_weights, centred, transpose_a=True)
    return tf.matmul(errors, errors, transpose_a=True), tf.transpose(from_mean) @ from_mean
