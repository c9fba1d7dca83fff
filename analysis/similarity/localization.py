"""Localization: which part of the image a token still resembles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid
from vit_tf.common.names import format_list
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import PartialGrid, as_tokens, grid_of, shared_grid
from ..engine.preparation import ImagesLike, prepare
from ..engine.results import array_of, facts_of, require_finite
from ..engine.stream import Statistic, Totals, evaluate, mean_per_batch
from .cka import LEAST_EXAMPLES, pairwise_hsic, unbiased_kernels

# A representation is constant if its HSIC with itself is at most this share of the largest possible
# HSIC, the square of its sum of squares. The share is 1 / d for d dimensions of equal variance, and
# about 1e-14 by rounding alone.
NEGLIGIBLE = 1e-10


@measurement("output_tokens")
def localization(
    model: ModelLike,
    images: ImagesLike,
    grid: PartialGrid = None,
    tokens: Sequence[int] | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Minibatch CKA between single tokens and the patches of the input image.

        CKA(t, p) = sum_b HSIC(t, p) / sqrt(sum_b HSIC(t, t) sum_b HSIC(p, p))

    Sums are over the minibatches b. HSIC is computed between all channels of token t and all pixels
    of patch p, with the unbiased estimator that `cka` uses (Raghu et al. 2021, section 7, figures
    9, 10, D.1 to D.3). All layers of a call must have the same grid. Therefore, measure the stages
    of a ResNet in separate calls.

    CKA is undefined for a patch that is the same in all images of each batch, or in all images but
    one, such as a blank corner. The values of such a patch are NaN, and the attribute
    `constant_patches` counts such patches.

    A float32 kernel of shape (example, example) is kept in memory for each token of each layer and
    for each patch. For example, a ViT-B/16 with 12 layers of 197 tokens and 196 patches needs 168
    MB in batches of 128 images. Select fewer `tokens` for larger batches.

    Args:
        model: a model, or a callable from images to `{layer: tensor}`. A tensor has the shape
            (example, token, channel) or (example, row, column, channel). In the second case, each
            position is a token, counted row by row.
        images, grid: as in `vit_tf.analysis`.
        tokens: indices of the tokens to measure, in the sequence with its prefix tokens. The
            default is all tokens.

    Returns:
        DataArray of CKA, of shape (layer, token, row, column). CKA is not clamped to [0, 1]. The
        coordinates `token_row` and `token_column` give the position of the token on the grid. Both
        coordinates are NaN for prefix tokens, such as CLS.

        Two attributes summarize the last layer. `own_contrast` is the CKA of a token with its own
        patch minus its mean CKA with other patches, averaged over tokens. `edge_contrast` is how
        much more similar tokens at the edge are to other edge patches than inner tokens are. The
        attribute `first_contrast` is the `own_contrast` of the first layer. With several batches,
        the attributes `..._without_batch` are lists of the same numbers without each batch in turn.

    Raises:
        ValueError: if the layers do not have one common grid that divides the images evenly, if
            `tokens` contains an unknown index, or if a batch other than the last has fewer than 4
            examples. It is also raised if a token is constant (the message names the token and its
            layer), or if values are not finite.

    Examples:
        >>> similarity = analysis.localization(vit, images, tokens=[0, 5])
        >>> similarity.dims
        ('layer', 'token', 'row', 'column')
        >>> similarity.shape[1:]
        (2, 4, 4)

    See also:
        `plots.plot_localization`, `cka`; page measurements/similarity/localization.md.
    """
    features, batches = prepare(model, images, kind="output_tokens", layers=layers, detail=detail)
    statistic = localization_statistic(features, grid, tokens)
    return evaluate(statistic, batches, features, description="localization")


@statistic_of(localization)
def localization_statistic(
    features: Features, grid: PartialGrid = None, tokens: Sequence[int] | None = None
) -> Statistic[xr.DataArray]:
    """The `Statistic` of `localization`."""
    known_grid = grid_of(features, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        shared = shared_grid(taps, known_grid, grid is not None, images.shape)
        positions = _positions(tokens, shared)
        patches = input_patches(images, shared)
        patch_kernels, patch_scales = unbiased_kernels(tf.transpose(patches, (1, 0, 2)))
        hsic, token_terms = {}, {}
        for tap, values in taps.items():
            measured_tokens = tf.gather(as_tokens(tap, values), positions, axis=1)
            kernels, scales = unbiased_kernels(tf.transpose(measured_tokens, (1, 0, 2)))
            # The kernels are scaled to size 1, so that float32 can hold their HSIC.
            unit_hsic = tf.cast(pairwise_hsic(kernels, patch_kernels), tf.float64)
            hsic[tap] = unit_hsic * scales[:, :1] * patch_scales[:, 0]
            token_terms[tap] = _self_terms(kernels, scales)
        patch_terms = _self_terms(patch_kernels, patch_scales)
        ends = [list(taps)[place] for place in (0, -1)]
        return {
            "hsic": hsic,  # (token, patch)
            "token": token_terms,
            "patch": patch_terms,
            # The terms of both ends are kept for each batch, so that batches can be left out.
            "rows": {
                "hsic": tf.stack([hsic[tap] for tap in ends])[None],
                "token": tf.stack([token_terms[tap][:, 0] for tap in ends])[None],
                "patch": patch_terms[None, :, 0],
            },
            "grid": dict(vars(shared)),
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.DataArray:
        grid = TokenGrid(**mean_per_batch(totals, "grid"))
        positions = _positions(tokens, grid)
        value, constant_patches = _ratio(totals, positions)
        facts = facts_of(
            features,
            totals,
            "minibatch CKA, linear kernel, unbiased HSIC",
            constant_patches=constant_patches,
            remainder=int(totals["remainder"]),
            **vars(grid),
        )
        spatial_index = np.array(positions) - grid.prefix  # negative for prefix tokens
        row, column = (
            np.where(spatial_index < 0, np.nan, coordinate)
            for coordinate in np.divmod(spatial_index, grid.columns)
        )
        result = array_of(
            "localization",
            grid.as_map(value),
            ("layer", "token", "row", "column"),
            ("CKA of token and input patch", "1"),
            facts,
            token_row=("token", row),
            token_column=("token", column),
            layer=list(totals["hsic"]),
            token=positions,
        )
        return result.assign_attrs(_contrasts(totals["rows"], result))

    return Statistic(step, finish, min_batch=LEAST_EXAMPLES)


def own_contrast(maps: np.ndarray, own_patches: np.ndarray) -> float:
    """CKA with the own patch minus mean CKA with other patches, averaged over tokens.

    `maps` are of shape (token, patch). Unlike the share of tokens whose own patch has the largest
    CKA, the number does not depend on how many images there are.
    """
    own = maps[np.arange(len(maps)), own_patches]
    others = (maps.sum(axis=1) - own) / (maps.shape[1] - 1)
    return float(np.mean(own - others))


def edge_contrast(maps: np.ndarray, own_patches: np.ndarray, is_edge: np.ndarray) -> float:
    """How much more tokens at the edge resemble other edge patches than inner tokens do.

    Mean CKA with other patches at the edge minus mean CKA with other inner patches: the value for
    tokens at the edge minus the value for inner tokens. `is_edge` is of shape (patch,). The number
    is NaN without tokens at the edge or inside.
    """
    is_other = np.ones(maps.shape, bool)
    is_other[np.arange(len(maps)), own_patches] = False
    is_own_edge = is_edge[own_patches]
    if is_edge.all() or is_own_edge.all() or not is_own_edge.any():
        return np.nan
    sides = [
        np.sum(maps * (is_other & side), axis=1) / np.sum(is_other & side, axis=1)
        for side in (is_edge, ~is_edge)
    ]
    contrast = sides[0] - sides[1]
    return float(contrast[is_own_edge].mean() - contrast[~is_own_edge].mean())


def _contrasts(batches: dict[str, np.ndarray], result: xr.DataArray) -> dict[str, Any]:
    """The attributes `..._contrast`, from the terms of the first and last layer in each batch."""
    # The patches that have a CKA, the spatial tokens whose own patch is among these, and where.
    maps = result.values[-1].reshape(result.sizes["token"], -1)
    own_patches = (result["token_row"] * result.sizes["column"] + result["token_column"]).values
    patches = np.flatnonzero(np.isfinite(maps).all(axis=0))
    tokens = np.flatnonzero(np.isin(own_patches, patches))  # NaN for prefix tokens
    own_patches = np.searchsorted(patches, own_patches[tokens])
    if not len(tokens) or len(patches) < 2:
        return {}
    # Patches at the edge of the image, which resemble each other more than others do.
    rows, columns = np.divmod(patches, result.sizes["column"])
    is_edge = np.isin(rows, (0, result.sizes["row"] - 1))
    is_edge |= np.isin(columns, (0, result.sizes["column"] - 1))

    def contrasts(terms: dict[str, np.ndarray]) -> dict[str, float]:
        hsic, token, patch = (terms[name].sum(axis=0) for name in ("hsic", "token", "patch"))
        with np.errstate(invalid="ignore", divide="ignore"):
            cka = hsic / np.sqrt(token[:, :, None] * patch)
        first, last = cka[:, tokens][:, :, patches]
        return {
            "own_contrast": own_contrast(last, own_patches),
            "edge_contrast": edge_contrast(last, own_patches, is_edge),
            "first_contrast": own_contrast(first, own_patches),
        }

    attributes: dict[str, Any] = contrasts(batches)
    # The same without each batch in turn, for the jackknife.
    count = len(batches["hsic"])
    without = [
        contrasts({name: np.delete(terms, at, axis=0) for name, terms in batches.items()})
        for at in range(count if count > 1 else 0)
    ]
    for name in attributes if without else ():
        attributes = attributes | {f"{name}_without_batch": [each[name] for each in without]}
    return attributes


def input_patches(images: tf.Tensor, grid: TokenGrid) -> tf.Tensor:
    """The pixels of every patch of a grid: (example, patch, pixel), patches row by row."""
    side, channels = grid.stride, images.shape[-1]
    shape = (-1, grid.rows, side, grid.columns, side, channels)
    patches = tf.transpose(tf.reshape(images, shape), (0, 1, 3, 2, 4, 5))
    return tf.reshape(patches, (-1, grid.num_spatial, side * side * channels))


def _self_terms(kernels: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    """Four terms of each token or patch: float64 of shape (item, 4).

    They are its HSIC with itself, the largest value that this HSIC can have, and the sums of
    squares of its centred and of its raw values. `unbiased_kernels` returns kernels of size 1, and
    scales of shape (item, 3): the size, and these two sums of squares.
    """
    n = tf.cast(tf.shape(kernels)[-1], tf.float64)
    hsic = tf.cast(tf.reduce_sum(kernels**2, axis=(-2, -1)), tf.float64)
    size, centred, raw = tf.unstack(scales, axis=-1)
    pairs = n * (n - 3.0)
    return tf.stack([hsic * size**2 / pairs, centred**2 / pairs, centred, raw], axis=-1)


def _ratio(totals: Totals, tokens: Sequence[int]) -> tuple[np.ndarray, int]:
    """CKA of shape (layer, token, patch), NaN at constant patches, and the number of these."""
    layers, token_terms = list(totals["token"]), np.stack(list(totals["token"].values()))
    require_finite("localization", [totals["patch"]], ["the images"])
    require_finite("localization", token_terms, layers)
    if len(constant_tokens := np.argwhere(_constant(token_terms))):
        named = [f"{layers[layer]} (token {tokens[token]})" for layer, token in constant_tokens]
        raise ValueError(
            "Expected every token to vary between examples. "
            f"Received a constant token: {format_list(named)}"
        )
    is_constant = _constant(totals["patch"])
    patch_hsic = np.where(is_constant, np.nan, totals["patch"][:, 0])
    hsic = np.stack(list(totals["hsic"].values()))
    return hsic / np.sqrt(token_terms[:, :, :1] * patch_hsic), int(is_constant.sum())


def _constant(terms: np.ndarray) -> np.ndarray:
    """Whether tokens or patches are constant, from their `_self_terms` (..., 4): shape (...,).

    A representation is constant if its examples differ only by rounding, or if only one example of
    each batch differs. The unbiased HSIC removes what a single example adds to its row and column
    of the kernel, so the CKA of such a representation would be a ratio of rounding errors.
    """
    hsic, largest_hsic, centred, raw = np.moveaxis(terms, -1, 0)
    # float32 rounds by at most 6e-8 of a value. After centring, equal examples therefore keep about
    # 4e-15 of their squares, and a little more if their mean is rounded too.
    return (centred <= 1e-12 * raw) | (hsic <= NEGLIGIBLE * largest_hsic)


def _positions(tokens: Sequence[int] | None, grid: TokenGrid) -> list[int]:
    """The positions of the measured tokens in the sequence; a `ValueError` for unknown ones."""
    positions = list(range(grid.num_tokens)) if tokens is None else list(tokens)
    if not positions or not set(positions) <= set(range(grid.num_tokens)):
        raise ValueError(
            f"Expected tokens from 0 to {grid.num_tokens - 1}. Received: tokens={positions}"
        )
    return [int(token) for token in positions]
