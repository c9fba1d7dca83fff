"""Centered kernel alignment of layers, streamed over minibatches, and what follows from it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid
from vit_tf.common.names import format_list
from vit_tf.features.conversion import LayerSelection, ModelLike, name_models
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import as_tokens, require_grid
from ..engine.preparation import ImagesLike, prepare, prepare_images, prepare_pair, read_model
from ..engine.results import (
    PARTS,
    dataset_of,
    expect_variable,
    layer_names,
    model_name,
    provenance,
    require_finite,
    variable,
)
from ..engine.standard_errors import jackknife, leave_one_out
from ..engine.stream import Statistic, Totals, evaluate
from ..engine.traces import once_per_graph

Coordinates: TypeAlias = dict[str, Any]  # of a result, by dimension, as xarray takes them
LEAST_EXAMPLES = 4  # of a batch, for the unbiased HSIC
CHANNEL_PARTS = 4  # of the channels of a layer, for its kernel
MOST_GROUPS = 32  # of batches, whose values without each are saved


@once_per_graph
@tf.function(autograph=False)  # many layers have one shape, and are traced once
def layer_gram(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """`gram` of a layer (example, ...), summed over parts of its channels, for all cores."""
    channels = math.prod(values.shape[1:]) if values.shape[1:].is_fully_defined() else 1
    parts = tf.reshape(values, (tf.shape(values)[0], math.gcd(CHANNEL_PARTS, channels), -1))
    kernels, mean_square = gram(tf.transpose(parts, (1, 0, 2)))
    return tf.reduce_sum(kernels, axis=0), tf.reduce_sum(mean_square, axis=0)


def pairwise_hsic(kernels_x: tf.Tensor, kernels_y: tf.Tensor) -> tf.Tensor:
    """The unbiased HSIC (x, y) of all pairs of U-centred kernels (x, n, n) and (y, n, n)."""
    x, y = (tf.reshape(kernels, (tf.shape(kernels)[0], -1)) for kernels in (kernels_x, kernels_y))
    n = tf.cast(tf.shape(kernels_x)[-1], tf.float32)
    return tf.matmul(x, y, transpose_b=True) / (n * (n - 3.0))


def unbiased_kernels(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The U-centred linear kernels of representations (..., example, channel), as `unbiased`.

    The scales are float64.
    """
    scaled, square_of_unit = scale_to_unit(values)
    kernels, scales = unbiased(*gram(scaled))
    return kernels, tf.cast(scales, tf.float64) * square_of_unit


@once_per_graph
@tf.function(autograph=False)
def scale_to_unit(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Activations in a unit of their own, in float32, and the square of the unit, float64.

    The unit is the power of two below the largest value, so that dividing is exact, and squares of
    activations of 1e-20 and 1e+20 are within float32.
    """
    x = tf.cast(values, tf.float32)
    largest = tf.reduce_max(tf.abs(x))
    exponent = tf.floor(tf.math.log(tf.cast(largest, tf.float64)) / np.log(2.0))
    exponent = tf.maximum(exponent, -126.0)  # the smallest normal number
    unit = tf.where(largest > 0, tf.pow(tf.constant(2.0, tf.float64), exponent), 1.0)
    return x / tf.cast(unit, tf.float32), unit**2


def gram(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Linear kernels (..., n, n) of centred (..., n, channel), and squares of the mean (...)."""
    x = tf.cast(values, tf.float32)
    mean = tf.reduce_mean(x, axis=-2, keepdims=True)
    centred = x - mean
    n = tf.cast(tf.shape(x)[-2], tf.float32)
    mean_square = n * tf.reduce_sum(mean**2, axis=(-2, -1))
    return tf.matmul(centred, centred, transpose_b=True), mean_square


def unbiased(kernels: tf.Tensor, mean_square: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """U-centred kernels (..., n, n) of size 1, and scales (..., 3): how large they were.

    With A the kernel without its diagonal, r its row sums and s their sum,

        U_ij = A_ij - (r_i + r_j) / (n - 2) + s / ((n - 1) (n - 2)),    U_ii = 0,

    and `sum(U * V) / (n (n - 3))` is the unbiased HSIC of Song et al. 2012 (Szekely and Rizzo 2014,
    equation 3). It is blind to a shift of all examples. HSIC is of the fourth degree in the
    activations, beyond float32 for 1e-10 or 1e+10: each kernel is divided by its size, the mean of
    its diagonal. Scales are that size, and the sums of squares without and with the mean.
    """
    n = tf.cast(tf.shape(kernels)[-1], tf.float32)
    trace = tf.linalg.trace(kernels)
    size = tf.maximum(trace / n, 1e-37)  # a constant representation has a size too
    kernel = kernels / size[..., None, None]
    kernel = tf.linalg.set_diag(kernel, tf.zeros_like(kernel[..., 0]))
    rows = tf.reduce_sum(kernel, axis=-1) / (n - 2.0)
    total = tf.reduce_sum(rows, axis=-1)[..., None, None] / (n - 1.0)
    kernel = kernel - rows[..., :, None] - rows[..., None, :] + total
    kernel = tf.linalg.set_diag(kernel, tf.zeros_like(rows))
    return kernel, tf.stack([size, trace, trace + mean_square], axis=-1)


def ratio(sums: np.ndarray) -> np.ndarray:
    """CKA of HSIC summed over batches: array of shape (layer, layer); NaN at constant layers."""
    with np.errstate(invalid="ignore", divide="ignore"):
        norm = np.sqrt(np.diagonal(sums, axis1=-2, axis2=-1))
        return sums / norm[..., :, None] / norm[..., None, :]


ESTIMATOR = "minibatch CKA, linear kernel, unbiased HSIC; jackknife over batches"
# Largest HSIC by rounding, as a share of the squared size of a kernel, if one example differs.
NEGLIGIBLE = 1e-10


@measurement(arguments="{model}, {images}, {other}")
def cka(
    features_x: ModelLike,
    images: ImagesLike | None = None,
    features_y: ModelLike | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Minibatch CKA between all layers of one model, or of two models on the same images.

        CKA(X, Y) = sum_b HSIC(X_b, Y_b) / sqrt(sum_b HSIC(X_b, X_b) sum_b HSIC(Y_b, Y_b))

    Sums are over the minibatches b. HSIC has linear kernels and is the unbiased estimator
    (Kornblith et al. 2019, equation 4; Nguyen et al. 2020, equation 3; Song et al. 2012, equation
    5). With this estimator, CKA may be negative, and it may exceed 1 between different layers; it
    is not clamped. All batches have equal weight, whatever their size: drop a last batch that is
    much smaller than the others.

    A last batch of fewer than 4 examples is not used, since HSIC is undefined for it. If the
    activations of a layer are the same for all examples of each batch, or for all but one, CKA is
    undefined. Such a layer is not in the result, and a warning names it.

    Args:
        features_x: a model, or a callable from images to `{layer: tensor of shape (example, ...)}`.
            If `images` is not given, `features_x` is a dict from layer to an array of precomputed
            activations, of shape (example, ...).
        images: as in `vit_tf.analysis`.
        features_y: the second model, or its precomputed activations. By default, the layers of the
            first model are compared with each other.

    Returns:
        Dataset with the following variables and attributes.

        * `cka` and `stderr`, of shape (layer_x, layer_y): CKA and its standard error, a jackknife
          over batches. With a single batch, `stderr` is NaN, with a warning.
        * `leave_one_out`, of shape (batch, layer_x, layer_y): CKA without each batch in turn. If
          there are more than 32 batches, 32 groups of batches are omitted in turn instead.
          `leave_one_out` allows paired comparisons of models measured on the same batches.
        * `permuted`, of shape (layer_x, layer_y), for two models only: CKA expected by chance. The
          second model's images are shifted by half a batch, so that the two models are compared on
          different images.
        * The attribute `remainder` counts the examples in a last batch that was too small. The
          attribute `constant_layers` names the layers without CKA, whose activations do not vary.

    Raises:
        ValueError: if a batch has fewer than 4 examples and is not the last of several batches. It
            is also raised if all layers of a model are constant, or if activations are not finite
            (the message names the layer).

    Examples:
        >>> similarity = analysis.cka(vit, images, bit)
        >>> similarity.cka.dims
        ('layer_x', 'layer_y')
        >>> similarity.layer_x.values.tolist()
        ['embedding', 'block00/mlp/sum', 'block01/mlp/sum', 'norm']
        >>> ax = analysis.plot(similarity)

    See also:
        `plots.plot_cka`, `best_matching_layer`, `similarities`; page
        measurements/similarity/cka.md.
    """
    features, batches = prepare_pair(features_x, images, features_y, layers=layers, detail=detail)
    return evaluate(cka_statistic(*features), batches, *features, description="CKA")


@statistic_of(cka)
def cka_statistic(
    features_x: Features, features_y: Features | None = None
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `cka`: between all layers of one model, or of two."""

    def step(images: tf.Tensor, *taps: Taps) -> dict[str, Any]:
        layers = [x for model_taps in taps for x in model_taps.values()]
        kernels, scales = layer_kernels(layers)
        terms = hsic_terms(images, kernels, scales)
        if len(taps) == 2:
            # CKA expected by chance: half a batch lies between the images of the two models.
            kernels_x, kernels_y = kernels[: len(taps[0])], kernels[len(taps[0]) :]
            half = tf.shape(kernels)[-1] // 2
            shifted = tf.roll(kernels_y, [half, half], axis=[-2, -1])
            terms["rows"]["permuted"] = pairwise_hsic(kernels_x, shifted)[None]
        return terms | {"layers": names_of_layers(taps)}

    def finish(totals: Totals) -> xr.Dataset:
        scales, layers = totals["rows"]["scales"], list(map(list, totals["layers"]))
        hsic, _ = unscaled(totals["rows"]["hsic"], scales)
        x, y, names, constant = varying_layers(hsic, scales, layers)
        value, stderr = (part[np.ix_(x, y)] for part in jackknife(ratio, hsic))
        models = features_x, features_y or features_x
        result = labelled_similarity(value, stderr, names, models, totals, constant_layers=constant)
        dims = ("layer_x", "layer_y")
        if "permuted" in totals["rows"]:
            permuted = totals["rows"]["permuted"][:, x][:, :, y - len(layers[0])]
            sizes = [scales[:, positions, 0].astype(np.float64) for positions in (x, y)]
            norms = np.sqrt(np.diagonal(hsic.sum(axis=0)))
            by_chance = np.einsum("bxy,bx,by->xy", permuted, *sizes) / norms[x][:, None] / norms[y]
            result = result.assign(permuted=variable(dims, by_chance, "CKA of permuted images"))
        if len(hsic) == 1:
            return result
        groups = np.array_split(hsic, min(len(hsic), MOST_GROUPS))
        rest = leave_one_out(ratio, np.stack([group.sum(axis=0) for group in groups]))
        rest = variable(("batch", *dims), rest[:, x[:, None], y], "CKA without each batch")
        return result.assign(leave_one_out=rest)

    return Statistic(step, finish, min_batch=LEAST_EXAMPLES)


def names_of_layers(taps: Iterable[Iterable[str]]) -> list[dict[str, int]]:
    """The layers of each model as a part of the totals: the keys of dicts of zeros."""
    return [dict.fromkeys(model_taps, 0) for model_taps in taps]


def layer_kernels(layers: Iterable[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """`unbiased_kernels` of layers (example, ...): kernels (layer, n, n) and scales (layer, 3)."""
    scaled, squares_of_units = zip(*map(scale_to_unit, layers), strict=True)
    kernels, scales = unbiased(*map(tf.stack, zip(*map(layer_gram, scaled), strict=True)))
    return kernels, tf.cast(scales, tf.float64) * tf.stack(squares_of_units)[:, None]


def hsic_terms(images: tf.Tensor, kernels: tf.Tensor, scales: tf.Tensor) -> dict[str, Any]:
    """What a batch adds to CKA of all pairs of layers, of `unbiased` kernels and scales."""
    rows = {"hsic": pairwise_hsic(kernels, kernels)[None], "scales": scales[None]}
    return {"rows": rows, "examples": tf.shape(images)[0]}


def sides(layers: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Positions of layers x and y, from the layers of one model, or of two one after the other."""
    every = np.arange(sum(map(len, layers)))
    return every[: len(layers[0])], every[-len(layers[-1]) :]


def unscaled(hsic: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """HSIC (batch, layer, layer) and squares (layer, 2) of kernels that are not divided."""
    size, squares = scales[..., 0].astype(np.float64), scales[..., 1:].astype(np.float64)
    return hsic * size[..., :, None] * size[..., None, :], squares.sum(axis=0)


def similarity(
    hsic: np.ndarray, squares: np.ndarray, layers: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Minibatch CKA of all pairs of layers (layer, layer), and its standard error.

    Args:
        hsic: HSIC of each batch, of shape (batch, layer, layer).
        squares: sums of squares of each layer without and with its mean, of shape (layer, 2).
        layers: names of the layers, for errors.
    """
    require_finite("CKA", np.diagonal(hsic, axis1=1, axis2=2).T, layers)
    constant = np.array(layers)[squares[:, 0] <= 1e-12 * squares[:, 1]]
    if len(constant):
        raise ValueError(
            "Expected every layer to vary between examples. "
            f"Received a constant layer: {format_list(constant.tolist())}"
        )
    return jackknife(ratio, hsic)


def labelled_similarity(
    value: np.ndarray,
    stderr: np.ndarray,
    coords: Coordinates,
    models: Sequence[Features],
    totals: Totals,
    **facts: Any,
) -> xr.Dataset:
    """Dataset of `cka` and `stderr`, whose dims are the `coords`, of a pair of features."""
    attributes = provenance(
        models[0],
        totals["examples"],
        len(totals["rows"]["hsic"]),
        model_x=model_name(models[0]),
        model_y=model_name(models[-1]),
        estimator=ESTIMATOR,
        units="1",
        remainder=int(totals["remainder"]),
        **facts,
    )
    dims = tuple(coords)
    variables = {
        "cka": variable(dims, value, "CKA"),
        "stderr": variable(dims, stderr, "standard error of CKA"),
    }
    return dataset_of(variables, attributes, **coords)


def varying_layers(
    hsic: np.ndarray, scales: np.ndarray, layers: Sequence[Sequence[str]]
) -> tuple[np.ndarray, np.ndarray, dict[str, list[str]], list[str]]:
    """The layers x and y that vary between examples, and the others, of which it warns.

    Several examples of a batch must differ: HSIC is blind to one. `layers` are the names in each
    model. Returns the positions of layers x and of layers y, their names as the coordinates
    `layer_x` and `layer_y`, and the names of the others.
    """
    names = np.concatenate(layers)  # of both models
    own_hsic = np.diagonal(hsic, axis1=1, axis2=2)
    require_finite("CKA", own_hsic.T, names.tolist())
    size, centred, raw = np.moveaxis(scales.astype(np.float64), -1, 0)
    varies = centred.sum(axis=0) > 1e-12 * raw.sum(axis=0)
    varies &= own_hsic.sum(axis=0) > NEGLIGIBLE * (size**2).sum(axis=0)
    constant = list(dict.fromkeys(names[~varies].tolist()))
    x, y = (positions[varies[positions]] for positions in sides(layers))
    if not len(x) or not len(y):
        raise ValueError(
            "Expected at least one layer of each model to vary between examples. "
            f"Received constant layers: {format_list(constant)}"
        )
    if constant:
        warnings.warn(
            f"Layers that do not vary between examples are left out: {format_list(constant)}",
            stacklevel=3,
        )
    return x, y, {"layer_x": names[x].tolist(), "layer_y": names[y].tolist()}, constant


def best_matching_layer(similarity: xr.Dataset) -> xr.Dataset:
    """CKA of every layer with the layer of the same name in the other model.

    Use this function to compare models trained on different amounts of data (Raghu et al. 2021,
    section 8, figure 12) or before and after fine-tuning (appendix G, figures G.1 and G.2).

    Args:
        similarity: result of `cka` for two models, a Dataset with `cka` and `stderr` of shape
            (layer_x, layer_y).

    Returns:
        Dataset with `cka` and `stderr`, both of shape (layer,). Layers are in the order of the
        first model.

    Raises:
        ValueError: if the models have no layer name in common.

    Examples:
        >>> similarity = analysis.cka(vit, images, vit)
        >>> analysis.best_matching_layer(similarity).cka.dims
        ('layer',)

    See also:
        `cka`, `layer_match_accuracy`, `plots.plot_best_matching_layer`; page
        measurements/similarity/counterparts.md.
    """
    cka = expect_variable(similarity, "cka", ("layer_x", "layer_y"))
    names = _shared(cka)
    pairs = {dim: xr.DataArray(names, dims="layer") for dim in ("layer_x", "layer_y")}
    paired = similarity.sel(pairs).drop_vars(["layer_x", "layer_y"])
    return paired.assign_coords(layer=names)


def layer_match_accuracy(similarity: xr.Dataset) -> tuple[int, int]:
    """Number of layers whose best match in a second training run has the same name.

    This is the sanity check of Kornblith et al. 2019, section 6.1. If two models have the same
    architecture and different initializations, the layer of the second model that is most similar
    to a given layer of the first should be the corresponding layer.

    Args:
        similarity: result of `cka` for two training runs of one architecture.

    Returns:
        Pair of counts of layers of the first run (`layer_x`): the number of layers whose largest
        CKA is with the layer of the same name, and the number of layers for which the second run
        has a layer of the same name.

    Raises:
        ValueError: if the models have no layer name in common.

    Examples:
        >>> similarity = analysis.cka(vit, images, vit)
        >>> matched, count = analysis.layer_match_accuracy(similarity)
        >>> matched <= count
        True

    See also:
        `cka`, `best_matching_layer`, `plots.plot_layer_match_accuracy`; page
        measurements/similarity/counterparts.md.
    """
    cka = expect_variable(similarity, "cka", ("layer_x", "layer_y"))
    names = _shared(cka)
    best = np.array(layer_names(cka, "layer_y"))[cka.sel(layer_x=names).values.argmax(axis=1)]
    return int((best == names).sum()), len(names)


def _shared(cka: xr.DataArray) -> list[str]:
    """Names of the layers that both models have."""
    other = set(layer_names(cka, "layer_y"))
    names = [name for name in layer_names(cka, "layer_x") if name in other]
    if not names:
        raise ValueError(
            "Expected models with layers of the same names. Received: "
            f"{layer_names(cka, 'layer_x')[:3]} and {layer_names(cka, 'layer_y')[:3]}"
        )
    return names


@measurement("norms")
def depth_cka(
    model: ModelLike,
    images: ImagesLike | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """CKA between the normalised inputs of all sublayers of one model.

    These are the outputs of the norm before each attention and MLP, and the output of the last norm
    (Walmer et al. 2023, section D.3, figures 20 to 22).

    Args:
        model: a model, or a callable from images to `{layer: tensor}`. The layers whose names end
            in `"norm"` are compared, such as `"block00/mlp/norm"`.
        images: as in `vit_tf.analysis`.

    Returns:
        Dataset with the variables of `cka`.

    Raises:
        ValueError: if the model has no layers whose names end in `"norm"`. Other errors are as for
            `cka`.

    Examples:
        >>> similarity = analysis.depth_cka(vit, images)
        >>> similarity.layer_x.values.tolist()[-1]
        'norm'

    See also:
        `plots.plot_depth_cka`, `cka`; page measurements/similarity/depth.md.
    """
    features, batches = prepare(model, images, kind="norms", layers=layers, detail=detail)
    return evaluate(depth_cka_statistic(features), batches, features, description="CKA of norms")


@statistic_of(depth_cka)
def depth_cka_statistic(features: Features) -> Statistic[xr.Dataset]:
    """The `Statistic` of `depth_cka`."""
    return _cka_of_endings(("norm",), features)


@measurement("skips")
def residual_cka(
    model: ModelLike,
    images: ImagesLike | None = None,
    site: str = "attention",
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """CKA between the skips and the branches of all blocks of one model.

    The skip and the branch are the two terms of a residual sum. If they differ, the block changes
    the representation (Walmer et al. 2023, section D.4, figure 23).

    Args:
        model: a model, or a callable from images to `{layer: tensor}`. The skip and the branch of
            each block are compared, such as `"block00/mlp/skip"` and `"block00/mlp/branch"`.
        images: as in `vit_tf.analysis`.
        site: sublayer whose skip and branch are compared, such as `"attention"` or `"mlp"`.

    Returns:
        Dataset with the variables of `cka`. `layer_x` holds the branches and `layer_y` the skips.

    Raises:
        ValueError: if the model has no skips and branches of the sublayer `site`. Other errors are
            as for `cka`.

    Examples:
        >>> similarity = analysis.residual_cka(vit, images, site="mlp")
        >>> similarity.layer_y.values.tolist()
        ['block00/mlp/skip', 'block01/mlp/skip']

    See also:
        `plots.plot_residual_cka`, `skip_ratio`; page measurements/similarity/residual.md.
    """
    features, batches = prepare(model, images, kind="skips", layers=layers, detail=detail)
    statistic = residual_cka_statistic(features, site)
    return evaluate(statistic, batches, features, description="CKA of skips and branches")


@statistic_of(residual_cka)
def residual_cka_statistic(features: Features, site: str = "attention") -> Statistic[xr.Dataset]:
    """The `Statistic` of `residual_cka`."""
    return _cka_of_endings((f"{site}/branch", f"{site}/skip"), features, features)


def _cka_of_endings(names: Sequence[str], *features: Features) -> Statistic[xr.Dataset]:
    """The `Statistic` of `cka` of the taps of one model that have each name in any block."""
    statistic = cka_statistic(*features)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        named = [
            {tap: x for tap, x in taps.items() if f"/{tap}".endswith(f"/{name}")} for name in names
        ]
        if missing := [name for name, found in zip(names, named, strict=True) if not found]:
            raise ValueError(f"Expected layers named {missing[0]!r}. Received: {format_list(taps)}")
        return statistic.step(images, *named)

    return replace(statistic, step=step)


@measurement("tokens", arguments="{models}, {images}")
def last_layer_cka(
    models: Mapping[str, ModelLike] | Sequence[ModelLike],
    images: ImagesLike,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Minibatch CKA between the last layers of several models, for CLS and for spatial tokens.

    The estimator is the same as in `cka`. CKA is computed once from all channels of the first
    token, and once from all channels of all spatial tokens (Walmer et al. 2023, section 5.1,
    figures 6 and 19).

    Args:
        models: dict from a model's name to its features. Features are a callable from images to
            `{layer: tensor}`, with an attribute `token_grid`. The last layer of each model is
            compared. It has tokens of shape (example, token, channel), or is a feature map on the
            grid.
        images: as in `vit_tf.analysis`.

    Returns:
        Dataset with `cka` and `stderr`, both of shape (model_x, model_y, part). The parts are
        `"cls"` and `"spatial"`. The part `"cls"` is NaN for a model without prefix tokens. The
        attribute `layers` names the compared layer of each model.

    Raises:
        ValueError: if there are no models, if a model has no token grid, or if the last layer of a
            model is not on its grid. Other errors are as for `cka`.

    Examples:
        >>> similarity = analysis.last_layer_cka({"ViT": vit, "BiT": bit}, images)
        >>> similarity.cka.dims
        ('model_x', 'model_y', 'part')

    See also:
        `plots.plot_last_layer_cka`, `cka`; page measurements/similarity/last-layer.md.
    """
    by_name = {
        name: read_model(model, "tokens", layers, detail, images=images)
        for name, model in name_models(models).items()
    }
    features, (batches,) = prepare_images(list(by_name.values()), {"images": images})
    statistic = last_layer_cka_statistic(dict(zip(by_name, features, strict=True)))
    return evaluate(statistic, batches, *features, description="last layers")


@statistic_of(last_layer_cka)
def last_layer_cka_statistic(models: Mapping[str, Features]) -> Statistic[xr.Dataset]:
    """The `Statistic` of `last_layer_cka`."""
    grids = {name: require_grid(features, None) for name, features in models.items()}
    parts = [(n, part) for n, grid in grids.items() for part in PARTS[0 if grid.prefix else 1 :]]

    def step(images: tf.Tensor, *taps: Taps) -> dict[str, Any]:
        last_layers = [list(model_taps)[-1] for model_taps in taps]
        every = [
            x
            for tap, values, grid in zip(last_layers, taps, grids.values(), strict=True)
            for x in _parts(tap, values[tap], grid)
        ]
        terms = hsic_terms(images, *layer_kernels(every))
        return terms | {"layers": names_of_layers([[tap] for tap in last_layers])}

    def finish(totals: Totals) -> xr.Dataset:
        hsic, squares = unscaled(totals["rows"]["hsic"], totals["rows"]["scales"])
        values = similarity(hsic, squares, [f"{part} of {name}" for name, part in parts])
        names = list(models)
        value, stderr = result = np.full((2, len(names), len(names), len(PARTS)), np.nan)
        for index, part in enumerate(PARTS):
            rows = np.flatnonzero([own == part for _, own in parts])
            members = np.array([names.index(parts[row][0]) for row in rows], int)
            pairs = np.stack(values)[:, rows[:, None], rows]
            result[:, members[:, None], members, index] = pairs
        coords = {"model_x": names, "model_y": names, "part": list(PARTS)}
        layers = [tap for (tap,) in totals["layers"]]
        every = list(models.values())
        made = labelled_similarity(value, stderr, coords, every, totals, layers=layers)
        for name in ("model", "model_x", "model_y"):
            del made.attrs[name]  # the coordinates name all models
        return made

    return Statistic(step, finish, min_batch=LEAST_EXAMPLES)


def _parts(tap: str, values: tf.Tensor, grid: TokenGrid) -> list[tf.Tensor]:
    """The prefix token that comes first, where there is one, and the spatial tokens."""
    tokens = as_tokens(tap, values)
    if tokens.shape[1] != grid.num_tokens:
        raise ValueError(
            f"Expected the last layer to have the {grid.num_tokens} tokens of {grid}. "
            f"Received: {tap!r} of shape {tuple(values.shape)}"
        )
    return [*([grid.first(tokens)] if grid.prefix else []), grid.spatial(tokens)]
