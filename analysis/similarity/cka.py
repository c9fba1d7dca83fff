"""Centered kernel alignment of layers, streamed over minibatches."""

from __future__ import annotations

import warnings

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.names import listed

from ..engine.estimates import LEAST_EXAMPLES
from ..engine.front import measurement, statistic_of
from ..engine.results import model_name, provenance, require_finite, variable
from ..engine.stream import Statistic, evaluate
from ..engine.types import Images, Model
from .kernels import (
    grouped,
    layer_gram,
    leave_one_out,
    pairwise_hsic,
    ratio,
    ratio_and_jackknife,
    unbiased,
)

ESTIMATOR = "minibatch CKA, linear kernel, unbiased HSIC; jackknife over batches"
# Largest HSIC by rounding, as a share of the squared size of a kernel, if one example differs.
NEGLIGIBLE = 1e-10


@measurement()
def cka(
    features_x: Model, images: Images | None = None, features_y: Model | None = None
) -> xr.Dataset:
    """Minibatch CKA between all layers of one model, or of two models on the same images.

        CKA(X, Y) = sum_b HSIC(X_b, Y_b) / sqrt(sum_b HSIC(X_b, X_b) sum_b HSIC(Y_b, Y_b))

    over the minibatches b, with the linear kernel and the unbiased HSIC (Kornblith et al. 2019,
    equation 4; Nguyen et al. 2020, equation 3; Song et al. 2012, equation 5). The unbiased
    estimator may be negative, or above 1 between different layers; it is not clamped. Batches
    count alike whatever their size: drop a remainder that is much smaller than the rest. One of
    fewer than 4 examples, for which there is no HSIC, is left out, and so are layers in which at
    most one example of each batch differs from the others, with a warning that names them.

    Args:
        features_x: a model, or a callable from images to `{layer: tensor of shape (example, ...)}`;
            or, without images, activations at hand: `{layer: array of shape (example, ...)}`.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        features_y: the second model, or its activations; by default the layers of the first are
            compared.

    Returns:
        Dataset with `cka` and `stderr`, both of shape (layer_x, layer_y). The standard error is
        the jackknife over batches; of a single batch it is NaN, with a warning. `leave_one_out`
        of shape (batch, layer_x, layer_y) is the CKA without each batch, or without each of at
        most 32 groups of them, from which models are compared batch by batch. In the attributes
        `remainder` counts the examples of a last batch too small, and `constant_layers` names the
        layers that were left out.

    Raises:
        ValueError: for a batch of fewer than 4 examples that is not the last of several, a model
            of constant layers only, or activations that are not finite; the layer is named.

    Examples:
        >>> similarity = analysis.cka(vit, images, bit)
        >>> similarity.cka.dims
        ('layer_x', 'layer_y')
        >>> similarity.layer_x.values.tolist()
        ['embedding', 'block00/mlp/sum', 'block01/mlp/sum', 'norm']
        >>> ax = analysis.plot(similarity)

    See also:
        `plots.plot_cka`, `counterparts`, `similarities`; page measurements/similarity/cka.md.
    """
    features = (features_x,) if features_y is None else (features_x, features_y)
    return evaluate(cka_statistic(*features), images, *features, description="CKA")


@statistic_of(cka)
def cka_statistic(features_x, features_y=None):
    """The `Statistic` of `cka`: of one model's taps, or of two."""

    def step(images, *taps):
        grams = [layer_gram(values) for of in taps for values in of.values()]
        kernels, scales = unbiased(*map(tf.stack, zip(*grams, strict=True)))
        each = iter(tf.unstack(scales[:, None]))
        by_layer = [{layer: next(each) for layer in of} for of in taps]
        return {
            "rows": {
                "hsic": pairwise_hsic(kernels, kernels)[None],
                "scales": dict(zip("xy", by_layer, strict=False)),
            },
            "examples": tf.shape(images)[0],
        }

    def finish(totals):
        scales = totals["rows"]["scales"]
        layers = [layer for of in scales.values() for layer in of]
        of_y = len(scales.get("y", scales["x"]))
        places = np.arange(len(scales["x"])), np.arange(len(layers) - of_y, len(layers))
        every = np.stack([scale for of in scales.values() for scale in of.values()], axis=1)
        hsic, _ = unscaled(totals["rows"]["hsic"], every)
        varies, constant = varying_layers(hsic, every, layers, places)
        hsic = hsic[:, varies][:, :, varies]
        value, stderr = ratio_and_jackknife(hsic)
        at = np.cumsum(varies) - 1
        x, y = (at[of[varies[of]]] for of in places)
        names = np.array(layers)[varies]
        result = labelled_similarity(
            value[np.ix_(x, y)],
            stderr[np.ix_(x, y)],
            {"layer_x": names[x].tolist(), "layer_y": names[y].tolist()},
            (features_x, features_x if features_y is None else features_y),
            totals["examples"],
            len(hsic),
            remainder=int(totals["remainder"]),
            constant_layers=constant,
        )
        if len(hsic) == 1:
            return result
        rest = leave_one_out(ratio, grouped(hsic))[:, x[:, None], y]
        dims = ("batch", "layer_x", "layer_y")
        return result.assign(leave_one_out=variable(dims, rest, "CKA without each batch"))

    return Statistic(step, finish, min_batch=LEAST_EXAMPLES)


def unscaled(hsic, scales):
    """HSIC and sums of squares of activations as they were, in the range of float64.

    Args:
        hsic: array of shape (batch, layer, layer), of kernels of size 1.
        scales: array of shape (batch, layer, 3) from `unbiased`.

    Returns:
        float64 HSIC of shape (batch, layer, layer), and sums of squares of shape (layer, 2).
    """
    size, squares = scales[..., 0].astype(np.float64), scales[..., 1:].astype(np.float64)
    return hsic * size[..., :, None] * size[..., None, :], squares.sum(axis=0)


def similarity(hsic, squares, layers):
    """Minibatch CKA of all pairs of layers, and its standard error.

    Args:
        hsic: float64 array of shape (batch, layer, layer), the HSIC of each batch.
        squares: array of shape (layer, 2), the sums of squares of each layer without and with its
            mean.
        layers: names of the layers.

    Returns:
        Two arrays of shape (layer, layer); the error is NaN when there is one batch.

    Raises:
        ValueError: for a layer that is constant or not finite; it is named.
    """
    require_finite("CKA", np.diagonal(hsic, axis1=1, axis2=2).T, layers)
    _require_variation(squares, layers)
    return ratio_and_jackknife(hsic)


def labelled_similarity(value, stderr, coords, features, examples, batches, **facts):
    """Dataset of `cka` and `stderr`, whose dims are the `coords`, of a pair of features."""
    features_x, features_y = features
    names = {"model_x": model_name(features_x), "model_y": model_name(features_y)}
    facts = names | {"estimator": ESTIMATOR, "units": "1"} | facts
    attributes = provenance(features_x, examples, batches, **facts)
    return with_errors(value, stderr, coords).assign_attrs(attributes)


def with_errors(value, stderr, coords):
    """Dataset of `cka` and `stderr`, whose dims are the `coords`."""
    dims = tuple(coords)
    variables = {
        "cka": variable(dims, value, "CKA"),
        "stderr": variable(dims, stderr, "standard error of CKA"),
    }
    return xr.Dataset(variables, coords)


def varying_layers(hsic, scales, layers, places):
    """Which layers vary between examples; a warning names the others.

    Args:
        hsic, scales: as for `_varying`.
        layers: names of the layers of both models.
        places: positions among them of the layers of each model.

    Returns:
        Array of truth values of shape (layer,), and the list of the names of the others.

    Raises:
        ValueError: for a layer that is not finite, which is named, or a model of constant layers
            only.
    """
    require_finite("CKA", np.diagonal(hsic, axis1=1, axis2=2).T, layers)
    varies = _varying(hsic, scales)
    constant = list(dict.fromkeys(np.array(layers)[~varies].tolist()))
    if not all(varies[of].any() for of in places):
        raise ValueError(
            "Expected a layer that varies between examples, of each model. "
            f"Received constant layers: {listed(constant)}"
        )
    if constant:
        warnings.warn(
            f"Layers that do not vary between examples are left out: {listed(constant)}",
            stacklevel=3,
        )
    return varies, constant


def _varying(hsic, scales):
    """Which layers differ in more than one example of a batch, beyond rounding: (layer,).

    The unbiased HSIC takes out what a single example adds to its row and column of the kernel.

    Args:
        hsic: array of shape (batch, layer, layer), of kernels as they were.
        scales: array of shape (batch, layer, 3) from `unbiased`.
    """
    size, own, raw = np.moveaxis(scales.astype(np.float64), -1, 0)
    between = np.diagonal(hsic, axis1=1, axis2=2).sum(axis=0)
    differs = own.sum(axis=0) > 1e-12 * raw.sum(axis=0)
    return differs & (between > NEGLIGIBLE * (size**2).sum(axis=0))


def _require_variation(squares, layers):
    """Raises a `ValueError` naming the layers whose examples differ by rounding errors only."""
    constant = [
        layer for layer, (own, raw) in zip(layers, squares, strict=True) if own <= 1e-12 * raw
    ]
    if constant:
        raise ValueError(
            "Expected every layer to vary between examples. "
            f"Received a constant layer: {listed(constant)}"
        )
