"""What CKA depends on: a few images, the first principal component, the pixels of the images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.preparation import ImagesLike, prepare_pair
from ..engine.results import dataset_of, model_name, provenance, variable
from ..engine.standard_errors import jackknife
from ..engine.stream import Statistic, Totals, evaluate
from .cka import layer_gram, names_of_layers, ratio, scale_to_unit, varying_layers

IMAGES, COMPONENT, PIXELS = "images", "component", "pixels"
PARTS = (IMAGES, COMPONENT, PIXELS)
MOST_REMOVED = 0.25  # of the images of a batch, for either layer
LEAST_EXAMPLES = 8  # of a batch, of which 4 remain
# A smaller rest of a layer's HSIC is rounding: the kernels of the first two are computed by
# themselves, that without the pixels is a difference of sums.
ROUNDING = {IMAGES: 1e-12, COMPONENT: 1e-11, PIXELS: 1e-6}
ESTIMATOR = "minibatch CKA, linear kernel; jackknife over batches"


@measurement(arguments="{model}, {images}, {other}")
def cka_sensitivity(
    features_x: ModelLike,
    images: ImagesLike | None = None,
    features_y: ModelLike | None = None,
    fraction: float = 0.02,
    unbiased: bool = True,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """How much CKA depends on a few images, on the first principal component and on the pixels.

        share(images)    = sum over i in S of sum_j K_ij L_ij / HSIC(K, L)
        share(component) = HSIC(K_1, L_1) / HSIC(K, L)
        share(pixels)    = HSIC(K, P) HSIC(P, L) / (HSIC(P, P) HSIC(K, L))

    `K` and `L` are the centred kernels of two layers. HSIC is summed over minibatches, as in `cka`.
    The other symbols are:

    * `S`: two groups of images of each batch. The first group has the largest `sum_j K_ij^2`, and
      the second group has the largest `sum_j L_ij^2`. Each group is the fraction `fraction` of the
      batch.
    * `K_1` and `L_1`: the kernels of the first principal components of the two layers. Each half of
      a batch uses the component that is fitted on the other half, so that a component that is first
      by chance has no effect.
    * `P`: the centred linear kernel of the pixels. `K` and `L` are regressed on `P`.

    Three papers show why a few images, the first principal component and the pixels matter:

    * If a few images are moved far away, CKA can take almost any value, although all other
      distances stay the same (Davari et al. 2022, https://arxiv.org/abs/2210.16156).
    * The first principal component is often the same in a block of similar layers (Nguyen et al.
      2022, https://arxiv.org/abs/2202.07184).
    * Images with similar pixels have similar representations in any two models (Cui et al. 2022,
      https://arxiv.org/abs/2202.00095).

    Args:
        features_x, images, features_y: as for `cka`. If activations are precomputed and no images
            are given, the part `"pixels"` is NaN, because there are no pixels.
        fraction: fraction of the images of a batch that each of the two layers selects for the part
            `"images"` (the set `S`). Each layer selects at least one image.
        unbiased: whether to use the unbiased HSIC. If False, the centred kernels keep their
            diagonals (Kornblith et al. 2019), and CKA is larger for smaller batches.

    Returns:
        Dataset with `cka` and `stderr` of shape (layer_x, layer_y), as from `cka`. The Dataset has
        three more variables, of shape (part, layer_x, layer_y). The parts are `"images"`,
        `"component"` and `"pixels"`.

        * `share`: the numerator of CKA that is due to the part, relative to the whole numerator.
          It may exceed 1, if the rest of the numerator is negative.
        * `without`: CKA without the part. For the parts `"component"` and `"pixels"`, `without` is
          0 if nothing remains of a layer, for example if the layer is a rotation of the pixels.
          Like any unbiased CKA, `without` may lie outside [-1, 1].
        * `change_stderr`: standard error of the change of CKA on the same images, a jackknife over
          batches.

    Raises:
        ValueError: if a batch has fewer than 8 images or `fraction` is outside (0, 0.25]. Other
            errors are as for `cka`.

    Examples:
        >>> sensitivity = analysis.cka_sensitivity(vit, images)
        >>> sensitivity.without.dims
        ('part', 'layer_x', 'layer_y')
        >>> sensitivity.part.values.tolist()
        ['images', 'component', 'pixels']
        >>> ax = analysis.plot(sensitivity)

    See also:
        `plots.plot_cka_sensitivity`, `cka`, `similarities`; page
        measurements/similarity/cka-sensitivity.md.
    """
    features, batches = prepare_pair(features_x, images, features_y, layers=layers, detail=detail)
    statistic = cka_sensitivity_statistic(*features, fraction=fraction, unbiased=unbiased)
    return evaluate(statistic, batches, *features, description="sensitivity of CKA")


@statistic_of(cka_sensitivity)
def cka_sensitivity_statistic(
    features_x: Features,
    features_y: Features | None = None,
    fraction: float = 0.02,
    unbiased: bool = True,
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `cka_sensitivity`."""
    if not 0 < fraction <= MOST_REMOVED:
        raise ValueError(f"Expected a fraction in (0, {MOST_REMOVED}]. Received: {fraction}")

    def step(images: tf.Tensor, *taps: Taps) -> dict[str, Any]:
        every = [x for model_taps in taps for x in model_taps.values()]
        rows = sensitivity_terms(every, images, fraction, unbiased)
        return {
            "rows": rows,
            "layers": names_of_layers(taps),
            # Activations at hand, in place of images, have two axes.
            "batches_of_pixels": int(images.shape.rank == 4),
            "examples": tf.shape(images)[0],
        }

    def finish(totals: Totals) -> xr.Dataset:
        rows, pixels = dict(totals["rows"]), -1  # the last layer
        layers = list(map(list, totals["layers"]))
        scales = rows.pop("scales")
        size = scales[..., 0].astype(np.float64)
        pairs = size[:, :, None] * size[:, None]
        hsic = {name: x * pairs[:, : x.shape[1], : x.shape[2]] for name, x in rows.items()}
        hsic["own_without_images"] = rows["own_without_images"] * size[:, :pixels, None] ** 2
        x, y, names, constant = varying_layers(
            hsic["all"][:, :pixels, :pixels], scales[:, :pixels], layers
        )
        with np.errstate(invalid="ignore", divide="ignore"):  # of layers that are left out
            estimates = jackknife(sensitivities, hsic)
        value, stderr = (part[:, x[:, None], y] for part in estimates)
        if not totals["batches_of_pixels"]:
            value[[3, 6, 9]] = stderr[[3, 6, 9]] = np.nan
        dims = ("layer_x", "layer_y")
        parts = ("part", *dims)
        words = "standard error of the change of CKA without the part"
        variables = {
            "cka": variable(dims, value[0], "CKA"),
            "stderr": variable(dims, stderr[0], "standard error of CKA"),
            "without": variable(parts, value[1:4], "CKA without the part"),
            "change_stderr": variable(parts, stderr[4:7], words),
            "share": variable(parts, value[7:], "share of HSIC"),
        }
        facts = provenance(
            features_x,
            totals["examples"],
            len(size),
            model_x=model_name(features_x),
            model_y=model_name(features_y or features_x),
            estimator=ESTIMATOR,
            fraction=fraction,
            unbiased=unbiased,
            remainder=int(totals["remainder"]),
            constant_layers=constant,
        )
        return dataset_of(variables, facts, part=list(PARTS), **names)

    return Statistic(step, finish, min_batch=LEAST_EXAMPLES)


def sensitivity_terms(
    layers: Sequence[tf.Tensor], images: tf.Tensor, fraction: float, unbiased: bool
) -> dict[str, tf.Tensor]:
    """What a batch adds to `cka_sensitivity`: HSIC of all pairs of layers, and their scales.

    `"all"` is of shape (1, layer + 1, layer + 1), with the pixels last, the others of (1, layer,
    layer): of the halves of a batch, of their first components and of what is left without these,
    of the rows of the most influential images, and of all pairs of the other images, with another
    layer and with itself.
    """
    scaled, squares_of_units = zip(*map(scale_to_unit, (*layers, images)), strict=True)
    grams, of_mean = map(tf.stack, zip(*map(layer_gram, scaled), strict=True))
    traces = tf.linalg.trace(grams)
    count = tf.shape(grams)[-1]
    size = tf.maximum(traces / tf.cast(count, tf.float32), 1e-37)  # that of a constant layer too
    grams /= size[:, None, None]
    scales = tf.cast(tf.stack([size, traces, traces + of_mean], axis=-1), tf.float64)
    scales *= tf.stack(squares_of_units)[:, None]

    everyone = tf.ones(count)
    kernels = centred(grams, everyone, unbiased)

    def hsic(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        products = tf.einsum("xij,yij->xy", x, y)
        return products / normalization(tf.cast(count, tf.float32), unbiased)

    # The most influential images of every layer, and the rows of those of either layer of a pair.
    most = tf.cast(tf.maximum(tf.round(fraction * tf.cast(count, tf.float32)), 1), tf.int32)
    influence = tf.reduce_sum(kernels[:-1] ** 2, axis=-1)
    rank = tf.argsort(tf.argsort(influence, direction="DESCENDING", stable=True), stable=True)
    is_kept = tf.cast(rank >= most, tf.float32)

    def layer_terms(arguments: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        """The terms of one layer with every layer."""
        gram, kernel, own_kept = arguments
        kept = own_kept * is_kept
        row_sums = tf.einsum("ij,yij->yi", kernel, kernels[:-1])
        of_images = tf.reduce_sum(row_sums * (1 - kept), axis=-1)
        x, y = centred(gram, kept, unbiased), centred(grams[:-1], kept, unbiased)
        norm = normalization(tf.reduce_sum(kept, axis=-1), unbiased)
        both, self = tf.einsum("yij,yij->y", x, y), tf.einsum("yij,yij->y", x, x)
        of_all = normalization(tf.cast(count, tf.float32), unbiased)
        return of_images / of_all, both / norm, self / norm

    of_images, others, own_others = tf.map_fn(
        layer_terms, (grams[:-1], kernels[:-1], is_kept), fn_output_signature=(tf.float32,) * 3
    )
    return {
        "all": hsic(kernels, kernels)[None],
        **{name: x[None] for name, x in component_terms(grams[:-1], unbiased).items()},
        "images": of_images[None],
        "without_images": others[None],
        "own_without_images": own_others[None],
        "scales": scales[None],
    }


def component_terms(grams: tf.Tensor, unbiased: bool) -> dict[str, tf.Tensor]:
    """HSIC (layer, layer) of halves of a batch, of their first components, and without these.

    `grams` are kernels (layer, n, n). A half is every other image. It is projected onto the first
    component of the other half: of many directions with equal variance, the one that is largest by
    chance in some images is not so in others.
    """
    terms: dict[str, list[tf.Tensor]] = {"halves": [], "component": [], "without_component": []}
    halves = slice(0, None, 2), slice(1, None, 2)
    for own, other in (halves, halves[::-1]):
        size = tf.cast(tf.shape(grams[:, own])[1], tf.float32)
        # The first principal component of the other half, from its centred kernel (kernel PCA).
        fitted = grams[:, other, other]
        row_means = tf.reduce_mean(fitted, axis=2, keepdims=True)
        fitted += tf.reduce_mean(row_means, axis=1, keepdims=True)
        fitted -= row_means + tf.linalg.matrix_transpose(row_means)
        values, vectors = tf.linalg.eigh(fitted)
        weights = vectors[:, :, -1] / tf.sqrt(tf.maximum(values[:, -1:], 1e-30))
        # This component of the images of this half, and their kernels with it alone and without it.
        scores = tf.einsum("lij,lj->li", grams[:, own, other], weights)
        everyone = tf.ones(tf.shape(grams[:, own])[1])
        kernels = centred(grams[:, own, own], everyone, unbiased)
        components = centred(scores[:, :, None] * scores[:, None], everyone, unbiased)
        parts = kernels, components, kernels - components
        for name, part in zip(terms, parts, strict=True):
            products = tf.einsum("xij,yij->xy", part, part)
            terms[name].append(products / normalization(size, unbiased))
    return {name: first + second for name, (first, second) in terms.items()}


def centred(kernels: tf.Tensor, kept: tf.Tensor, unbiased: bool) -> tf.Tensor:
    """Kernels (..., n, n) of the examples that are `kept`, 1 or 0 of shape (..., n), centred.

    Unbiased ones are U-centred, as in `cka`. Rows and columns of other examples are 0.
    """
    both = kept[..., :, None] * kept[..., None, :]
    if unbiased:
        both = tf.linalg.set_diag(both, tf.zeros_like(kept))
    count = tf.reduce_sum(kept, axis=-1)[..., None]
    rows = tf.reduce_sum(kernels * both, axis=-1) / (count - 2 if unbiased else count)
    total = tf.reduce_sum(rows * kept, axis=-1, keepdims=True) / (count - 1 if unbiased else count)
    return (kernels - rows[..., :, None] - rows[..., None, :] + total[..., None]) * both


def normalization(count: tf.Tensor, unbiased: bool) -> tf.Tensor:
    """What the product of two centred kernels is divided by, for HSIC."""
    return count * (count - 3) if unbiased else (count - 1) ** 2


def sensitivities(hsic: dict[str, np.ndarray]) -> np.ndarray:
    """CKA, CKA without each part, their differences, and the parts' shares: (10, layer, layer)."""
    with_pixels, every = hsic["all"], hsic["all"][:-1, :-1]
    self_hsic, of_pixels = np.diagonal(every), with_pixels[:-1, -1]
    due_to_pixels = np.outer(of_pixels, of_pixels) / (with_pixels[-1, -1] or np.inf)
    cka = ratio(every)
    own_without = hsic["own_without_images"]
    rest, residual = hsic["without_component"], every - due_to_pixels
    halves = np.diagonal(hsic["halves"])
    # HSIC of pairs without the part, and those of either layer with itself.
    terms = {
        IMAGES: (hsic["without_images"], own_without, own_without.T),
        COMPONENT: (rest, np.diagonal(rest)[:, None], np.diagonal(rest)),
        PIXELS: (residual, np.diagonal(residual)[:, None], np.diagonal(residual)),
    }
    without = []
    for part, (both, own_x, own_y) in terms.items():
        least = ROUNDING[part] * (halves if part == COMPONENT else self_hsic)
        is_left = (own_x > least[:, None]) & (own_y > least)
        without.append(np.where(is_left, both / np.sqrt(np.where(is_left, own_x * own_y, 1)), 0.0))
    shares = [hsic["images"] / every, hsic["component"] / hsic["halves"], due_to_pixels / every]
    complete = cka, ratio(hsic["halves"]), cka  # on the images that the part is removed from
    changes = [x - before for x, before in zip(without, complete, strict=True)]
    return np.stack([cka, *without, *changes, *shares])
