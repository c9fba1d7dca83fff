"""Localization: which part of the image a token still resembles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid
from vit_tf.common.names import format_list

from ..engine.declaration import one_pass_measurement
from ..engine.estimates import LEAST_EXAMPLES
from ..engine.pooling import as_tokens, grid_of, shared_grid
from ..engine.results import array_of, expect_array, facts_of, require_finite
from ..engine.roles import Grid, Images, Model, Taps
from ..engine.stream import Statistic, Totals
from .cka import pairwise_hsic, unbiased_kernels

# Share of the squared sum of squares: rounding leaves 1e-14, d equal dimensions 1 / d.
NEGLIGIBLE = 1e-10


@one_pass_measurement("output_tokens")
def localization(
    features: Model, images: Images, grid: Grid = None, tokens: Sequence[int] | None = None
) -> Statistic[xr.DataArray]:
    """Minibatch CKA between single tokens and the patches of the input image.

        CKA(t, p) = sum_b HSIC(t, p) / sqrt(sum_b HSIC(t, t) sum_b HSIC(p, p))

    Sums are over the minibatches b. HSIC is the unbiased one of `cka`, between all channels of
    token t and all pixels of patch p (Raghu et al. 2021, section 7, figures 9, 10, D.1 to D.3).
    Layers are compared on one grid: measure the stages of a ResNet one by one.

    A patch in which at most one image of any batch differs, such as a blank corner, has no CKA: its
    cells are NaN, and `constant_patches` in the attributes counts such patches. At most layers x
    tokens + patches kernels of example x example float32 values are held at once: for 12 x 197 +
    196 in batches of 128 that is 168 MB; select fewer `tokens` for larger batches.

    Args:
        features: a model, or a callable from images to `{layer: tensor}` of shape (example, token,
            channel), or (example, row, column, channel), each position a token, row by row.
        images, grid: as in `vit_tf.analysis`.
        tokens: positions in the sequence, prefix included, of the tokens to measure; default: all.

    Returns:
        DataArray of shape (layer, token, row, column). The coordinates `token_row` and
        `token_column` are the token's own position, NaN for prefix tokens. Not clamped. Where there
        are several batches, the attributes `own_share_without_batch` and `rank_without_batch` are
        `own_share` and the mean share of other patches with a lower CKA, of the last layer, without
        each batch of images: they show the error over images.

    Raises:
        ValueError: for taps that do not share one grid that tiles the images, unknown `tokens`, a
            batch, not the last, of fewer than 4 examples, a token that is constant (layer and token
            are named) or values that are not finite.

    Examples:
        >>> similarity = analysis.localization(vit, images, tokens=[0, 5])
        >>> similarity.dims
        ('layer', 'token', 'row', 'column')
        >>> similarity.shape[1:]
        (2, 4, 4)

    See also:
        `plots.plot_localization`, `cka`; page measurements/similarity/localization.md.
    """

    given_grid = grid_of(features, grid)
    shown = {}  # the grid and the tokens on it show in the shapes of the taps

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        shared = shared_grid(taps, given_grid, grid is not None, images.shape)
        shown.update(grid=shared, tokens=_positions(tokens, shared))
        patches = input_patches(images, shared)
        patch_kernels, patch_scales = unbiased_kernels(tf.transpose(patches, (1, 0, 2)))
        hsic, token_terms = {}, {}
        for tap, values in taps.items():
            kept_tokens = tf.gather(as_tokens(tap, values), shown["tokens"], axis=1)
            kernels, scales = unbiased_kernels(tf.transpose(kept_tokens, (1, 0, 2)))
            scaled = tf.cast(pairwise_hsic(kernels, patch_kernels), tf.float64)
            hsic[tap] = scaled * _size(scales)[:, None] * _size(patch_scales)
            token_terms[tap] = _own(kernels, scales)
        return {
            "hsic": hsic,  # (token, patch)
            "token": token_terms,
            "patch": _own(patch_kernels, patch_scales),
            # The last layer in each batch, to leave batches out.
            "rows": {
                "hsic": hsic[tap][None],
                "token": token_terms[tap][None, :, 0],
                "patch": _own(patch_kernels, patch_scales)[None, :, 0],
            },
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.DataArray:
        grid, positions = shown["grid"], shown["tokens"]
        value, constant_patches = _ratio(totals, positions)
        counts = {"constant_patches": constant_patches, "remainder": int(totals["remainder"])}
        estimator = "minibatch CKA, linear kernel, unbiased HSIC"
        facts = facts_of(features, totals, estimator, **counts, **vars(grid))
        place = np.array(positions) - grid.prefix
        row, column = (np.where(place < 0, np.nan, part) for part in np.divmod(place, grid.columns))
        coords = {"token_row": ("token", row), "token_column": ("token", column)}
        coords |= {"layer": list(totals["hsic"]), "token": positions}
        dims, words = ("layer", "token", "row", "column"), ("CKA of token and input patch", "1")
        result = array_of("localization", grid.as_map(value), dims, words, facts, **coords)
        return result.assign_attrs(_without_batches(totals["rows"], result))

    return Statistic(step, finish, min_batch=LEAST_EXAMPLES)


def own_share(maps: np.ndarray, own: np.ndarray) -> float:
    """Share of tokens of CKA (token, patch) whose most similar patch is their `own`."""
    return float(np.mean(maps.argmax(axis=1) == own))


def _without_batches(
    batches: dict[str, np.ndarray], result: xr.DataArray
) -> dict[str, list[float]]:
    """Attributes of the last layer without each batch, from its terms in each: lists of numbers."""
    count = len(batches["hsic"])
    *_, own = _compared(result)
    if count < 2 or not len(own):
        return {}
    chosen = np.ix_(*_compared(result)[:2])
    shares, ranks = [], []
    for number in range(count):
        hsic, token, patch = (
            np.delete(batches[name], number, axis=0).sum(axis=0)
            for name in ("hsic", "token", "patch")
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            cka = hsic / np.sqrt(token[:, None] * patch)
        rest = cka[chosen]
        shares.append(own_share(rest, own))
        ranks.append(float(ranks_of_own(rest, own).mean()))
    return {"own_share_without_batch": shares, "rank_without_batch": ranks}


def ranks_of_own(maps: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Share of other patches with a lower CKA than the own one, of each token: shape (token,)."""
    mine = maps[np.arange(len(maps)), own][:, None]
    lower = (maps < mine).sum(axis=1) + 0.5 * ((maps == mine).sum(axis=1) - 1)
    return lower / (maps.shape[1] - 1)


def last_maps(similarity: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """CKA of last-layer tokens, without the prefix, of shape (token, patch); their own patches."""
    similarity = expect_array(similarity, ("layer", "token", "row", "column"))
    tokens, patches, own = _compared(similarity)
    if not len(tokens) or len(patches) < 2:
        raise ValueError(
            "Expected spatial tokens and at least two patches. "
            f"Received: {similarity.sizes['token']} tokens and {len(patches)} patches with a CKA"
        )
    maps = similarity.values[-1].reshape(similarity.sizes["token"], -1)
    return maps[np.ix_(tokens, patches)], own


def _compared(similarity: xr.DataArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of spatial tokens, of patches with a CKA, and among these of the tokens' own."""
    maps = similarity.values[-1].reshape(similarity.sizes["token"], -1)
    own = (similarity["token_row"] * similarity.sizes["column"] + similarity["token_column"]).values
    patches = np.flatnonzero(np.isfinite(maps).all(axis=0))
    tokens = np.flatnonzero(np.isin(own, patches))
    return tokens, patches, np.searchsorted(patches, own[tokens])


def input_patches(images: tf.Tensor, grid: TokenGrid) -> tf.Tensor:
    """The pixels of every patch of a grid: (example, patch, pixel), patches row by row."""
    side, channels = grid.stride, images.shape[-1]
    shape = (-1, grid.rows, side, grid.columns, side, channels)
    patches = tf.transpose(tf.reshape(images, shape), (0, 1, 3, 2, 4, 5))
    return tf.reshape(patches, (-1, grid.num_spatial, side * side * channels))


def _own(kernels: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    """HSIC of each representation with itself, its largest possible value, squares: (item, 4)."""
    n = tf.cast(tf.shape(kernels)[-1], tf.float64)
    hsic = tf.cast(tf.reduce_sum(kernels**2, axis=(-2, -1)), tf.float64)
    squares = tf.cast(scales[:, 1:], tf.float64)
    both = tf.stack([hsic * _size(scales) ** 2, squares[:, 0] ** 2], axis=-1)
    return tf.concat([both / (n * (n - 3.0)), squares], axis=-1)


def _size(scales: tf.Tensor) -> tf.Tensor:
    """The sizes of kernels: float64 of shape (item,)."""
    return tf.cast(scales[:, 0], tf.float64)


def _ratio(totals: Totals, tokens: Sequence[int]) -> tuple[np.ndarray, int]:
    """CKA of shape (layer, token, patch), NaN at constant patches, and the number of these."""
    layers, own = list(totals["token"]), np.stack(list(totals["token"].values()))
    require_finite("localization", [totals["patch"]], ["the images"])
    require_finite("localization", own, layers)
    if len(constant := np.argwhere(_constant(own))):
        named = [f"{layers[layer]} (token {tokens[token]})" for layer, token in constant]
        raise ValueError(
            "Expected every token to vary between examples. "
            f"Received a constant token: {format_list(named)}"
        )
    constant = _constant(totals["patch"])
    patch_hsic = np.where(constant, np.nan, totals["patch"][:, 0])
    hsic = np.stack(list(totals["hsic"].values()))
    return hsic / np.sqrt(own[:, :, :1] * patch_hsic), int(constant.sum())


def _constant(own: np.ndarray) -> np.ndarray:
    """Whether examples differ by rounding errors only, or in one example a batch: shape (...,).

    The unbiased HSIC takes out what a single example adds to its row and column of the kernel, so a
    representation that one example differs in has none, and CKA would be a ratio of roundings.
    """
    hsic, most, centred, raw = np.moveaxis(own, -1, 0)
    return (centred <= 1e-12 * raw) | (hsic <= NEGLIGIBLE * most)


def _positions(tokens: Sequence[int] | None, grid: TokenGrid) -> list[int]:
    """The chosen positions in the sequence, as a list of integers."""
    positions = list(range(grid.num_tokens)) if tokens is None else list(tokens)
    if not positions or not set(positions) <= set(range(grid.num_tokens)):
        raise ValueError(
            f"Expected tokens among 0 to {grid.num_tokens - 1}. Received: tokens={positions}"
        )
    return [int(token) for token in positions]
