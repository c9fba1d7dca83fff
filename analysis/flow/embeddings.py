"""What the first layer of a Vision Transformer has learned: filters of patches, and positions.

Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 4.5 and figure 7.
"""

from __future__ import annotations

import os
from typing import Any, cast

import numpy as np
import xarray as xr

import vit_tf
from vit_tf.features.conversion import ModelLike, facts_of
from vit_tf.features.tokens import as_grid
from vit_tf.torch_models import is_torch_module

from ..engine.pooling import PartialGrid
from ..engine.results import ResultArray

MAX_COMPONENTS = 28  # by default, as in the figure of the paper


def patch_filters(kernel: ModelLike, count: int | None = None) -> xr.DataArray:
    """Principal components of the patch-embedding filters of a ViT (Dosovitskiy et al. 2020, figure
    7, left).

    Let f_u be the filter of the hidden unit u. The matrix F has a row f_u - mean(f) for each hidden
    unit. The components are the first right singular vectors of F, of unit length. Component i
    explains the share `s_i^2 / sum_j s_j^2` of the variance, where s are the singular values. The
    sign of a component is chosen so that its entry of largest magnitude is positive.

    Args:
        kernel: a model that embeds patches of the image, or its path or name. An array of shape
            (row, column, channel, hidden unit), such as `model.patch_kernel`, is also accepted.
        count: number of components. The default is 28, as in the paper, or all components if the
            kernel has fewer than 28.

    Returns:
        DataArray of dims (component, row, column, channel). The coordinate `explained_variance` of
        dims (component,) is the share of the variance that each component explains.

    Raises:
        ValueError: if the kernel does not have the shape (row, column, channel, hidden unit), is
            not finite or has only equal filters, or if `count` exceeds the number of components.

    Examples:
        >>> filters = analysis.patch_filters(vit, count=4)
        >>> filters.shape
        (4, 8, 8, 3)

    See also:
        `plots.plot_patch_filters`, `position_similarity`; page measurements/flow/patch-filters.md.
    """
    kernel = _weight_of(_load(kernel), "patch_kernel")
    if np.ndim(kernel) != 4:
        raise ValueError(
            "Expected a kernel of shape (row, column, channel, hidden unit), or a model that "
            f"embeds patches of the image. Received: a kernel of shape {np.shape(kernel)}"
        )
    # Principal components of the filters, at most as many as can differ from zero.
    kernel = np.asarray(kernel, "float64")
    filters = kernel.reshape(-1, kernel.shape[-1]).T
    num_components = min(filters.shape[1], filters.shape[0] - 1)
    count = min(MAX_COMPONENTS, num_components) if count is None else count
    if not 1 <= count <= num_components:
        raise ValueError(
            f"Expected count from 1 to {num_components}, the number of components of a kernel of "
            f"shape {kernel.shape}. "
            f"Received: count={count}"
        )
    if not np.isfinite(kernel).all() or (filters == filters[0]).all():
        raise ValueError(
            "Expected a finite kernel whose filters differ. "
            f"Received: values from {kernel.min():g} to {kernel.max():g}"
        )
    _, scales, components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)
    components = components[:count]
    # The largest weight of each component is positive, so that signs are reproducible.
    largest = np.abs(components).argmax(axis=1)[:, None]
    components = components * np.sign(np.take_along_axis(components, largest, axis=1))
    return ResultArray(
        components.reshape(count, *kernel.shape[:3]),
        dims=("component", "row", "column", "channel"),
        coords={
            "component": np.arange(count),
            "explained_variance": ("component", (scales**2 / (scales**2).sum())[:count]),
        },
        name="patch_filters",
        attrs={"hidden_units": kernel.shape[3]},
    )


def position_similarity(positions: ModelLike, grid: PartialGrid = None) -> xr.DataArray:
    """Cosine similarity between the position embeddings of patches (Dosovitskiy et al. 2020, figure
    7, centre).

    Args:
        positions: a model with position embeddings, or its path or name. An array of shape (token,
            hidden unit), such as `model.position_embedding`, is also accepted.
        grid: `TokenGrid` of the tokens, or a pair (rows, columns); by default the grid of the
            model. Prefix tokens, such as CLS, are excluded.

    Returns:
        DataArray of dims (row, column, other_row, other_column), the similarity of each pair of
        patches. Values lie in [-1, 1] up to rounding.

    Raises:
        ValueError: if the position embeddings do not fit the grid, are not finite, or are zero for
            a patch.

    Examples:
        >>> similarity = analysis.position_similarity(vit)
        >>> similarity.dims
        ('row', 'column', 'other_row', 'other_column')

    See also:
        `plots.plot_position_similarity`, `patch_filters`; page
        measurements/flow/position-similarity.md.
    """
    model = _load(positions)
    if grid is None and callable(model):
        grid = facts_of(model).grid
    positions = _weight_of(model, "position_embedding")
    grid = as_grid(cast(Any, grid), np.shape(positions)[0] if np.ndim(positions) else None)
    if np.ndim(positions) != 2 or len(positions) != grid.num_tokens:
        raise ValueError(
            f"Expected position embeddings of shape ({grid.num_tokens}, hidden unit), one for each "
            f"token of {grid}, or a model that adds them. Received: shape {np.shape(positions)}"
        )
    # Cosines are undefined for positions of length zero.
    positions = grid.spatial(np.asarray(positions, "float64")[None])[0]
    lengths = np.linalg.norm(positions, axis=1, keepdims=True)
    without_direction = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if without_direction.size:
        token = without_direction[0]
        raise ValueError(
            "Expected finite position embeddings of a norm above 0. "
            f"Received: norm {lengths[token, 0]:g} at spatial token {token}"
        )
    directions = positions / lengths
    return ResultArray(
        (directions @ directions.T).reshape(2 * (grid.rows, grid.columns)),
        dims=("row", "column", "other_row", "other_column"),
        name="position_similarity",
    )


def _load(model: Any) -> Any:
    """A model that is given by its path or name; anything else as it is."""
    return vit_tf.load(model) if isinstance(model, str | os.PathLike) else model


def _weight_of(model: Any, name: str) -> Any:
    """A weight of a model by its attribute; an array as it is."""
    if is_torch_module(model):
        raise ValueError(
            f"Expected an array or a Keras model: pass the {name.replace('_', ' ')} of a PyTorch "
            "module as an array, with the axes (row, column, channel, hidden unit) or (token, "
            f"hidden unit). Received: {type(model).__name__}"
        )
    return getattr(model, name, None) if callable(model) else model
