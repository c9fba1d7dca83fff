"""Taps as sequences of tokens on a grid, pooled to one vector for each image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import tensorflow as tf

from vit_tf import TokenGrid
from vit_tf.common.names import last_part
from vit_tf.data.labels import require_label_type
from vit_tf.features.features import Features, Taps
from vit_tf.features.tokens import as_grid, as_pair

from .results import ALL, CLS, EACH, POOLED, SPATIAL, require_finite, require_word
from .stream import Statistic, Totals, first_batch
from .traces import once_per_graph, reusable

_NOT_TOKENS = ("weights", "heads")


# What is known of a grid before the first batch: all, its rows and columns, or nothing.
PartialGrid: TypeAlias = TokenGrid | tuple[int, int] | None


def as_tokens(tap: str, values: tf.Tensor) -> tf.Tensor:
    """Float32 tokens (example, token, channel): a map's row by row, a vector is one token."""
    rank = values.shape.rank
    if rank not in (2, 3, 4) or last_part(tap) in _NOT_TOKENS:
        raise ValueError(
            "Expected representations of shape (example, channel), (example, token, channel) or "
            "(example, row, column, channel), not attention weights or outputs of heads. "
            f"Received: {tap!r} of shape {tuple(values.shape)}"
        )
    values = tf.cast(values, tf.float32)
    if rank < 4:
        return values if rank == 3 else values[:, None]
    # The number of tokens stays static where it is known, as later products need it.
    batch, rows, columns, channels = values.shape
    if None not in (rows, columns, channels):
        return tf.reshape(values, (-1, rows * columns, channels))
    count = None if None in (rows, columns) else rows * columns
    shape = tf.shape(values)
    flat = tf.reshape(values, (shape[0], shape[1] * shape[2], shape[3]))
    return tf.ensure_shape(flat, (batch, count, channels))


def tokens_of(tap: str, values: tf.Tensor, which: str, grid: TokenGrid | None) -> tf.Tensor:
    """The tokens of a tap that a word names, of shape (example, token, channel).

    `"cls"` is the first prefix token; `"spatial"` those with a position, in a map all; `"all"` and
    `"each"` all there are. `grid` is the `TokenGrid` of sequences, or None where it is not known.
    """
    tokens = as_tokens(tap, values)
    if which in (ALL, EACH) or (which == SPATIAL and values.shape.rank == 4):
        return tokens
    received = f"tokens={which!r} at {tap!r} of shape {tuple(values.shape)}"
    if values.shape.rank != 3:
        choices = "'all'" if values.shape.rank == 2 else "'spatial' or 'all'"
        raise ValueError(
            f"Expected tokens={choices} for a layer without a token sequence. Received: {received}"
        )
    if grid is None:
        raise ValueError(
            "The token grid of the model is unknown, so CLS and spatial tokens cannot be "
            "separated. Set the attribute token_grid of the model or function to a "
            "vit_tf.TokenGrid (an argument of vit_tf.torch_features). Received: "
            f"{received}"
        )
    if tokens.shape[1] not in (None, grid.num_tokens):
        raise ValueError(
            f"Expected layers with the {grid.num_tokens} tokens of {grid}. Received: {received}"
        )
    if which == SPATIAL:
        return _spatial(tokens, grid)
    if not grid.prefix:
        raise ValueError(
            f"Expected tokens='spatial' or 'all' for a model without a CLS token. Received: "
            f"tokens={CLS!r}, {grid}"
        )
    return _first(tokens, grid)


# Statistics of one pass share these: the spatial tokens, the CLS token (example, 1, channel), and
# the mean of tokens (example, token, channel) in float64.
_spatial = once_per_graph(lambda tokens, grid: grid.spatial(tokens))
_first = once_per_graph(lambda tokens, grid: grid.first(tokens)[:, None])
_mean_of_tokens = once_per_graph(lambda x: tf.cast(tf.reduce_mean(x, axis=1), tf.float64))


def pooled_tokens(positions: Sequence[int] | None, grid: TokenGrid) -> tuple[int, ...]:
    """Positions of the tokens that a head reads; by default CLS if there is one, else all."""
    return tuple(positions or (range(1) if grid.prefix else range(grid.num_tokens)))


def grid_of(features: Features, grid: PartialGrid) -> PartialGrid:
    """The grid as far as it is known before the first batch: `TokenGrid`, (rows, columns), None."""
    of_features = features.facts.grid
    if grid is None:
        return of_features
    given = grid if isinstance(grid, TokenGrid) else as_pair(grid)
    if of_features is None or features.facts.is_grid_inferred:
        return given
    # A map at another depth has another grid.
    is_another_map = (
        isinstance(given, TokenGrid)
        and not given.prefix
        and given.num_spatial != of_features.num_tokens
    )
    is_same = given in (of_features, (of_features.rows, of_features.columns))
    if not is_same and not is_another_map:
        raise_contradiction(of_features, grid)
    return given if isinstance(given, TokenGrid) else of_features


def raise_contradiction(of_features: TokenGrid, grid: PartialGrid) -> NoReturn:
    """Raises a `ValueError` for a grid that is not the features' own."""
    raise ValueError(
        f"Expected grid=None or the grid of the model, {of_features}. Received: grid={grid}"
    )


def require_grid(features: Features, grid: PartialGrid) -> TokenGrid:
    """As `grid_of`, where the whole `TokenGrid` must be known in advance."""
    token_grid = grid_of(features, grid)
    if not isinstance(token_grid, TokenGrid):
        raise ValueError(
            "Expected grid= to be a vit_tf.TokenGrid: the model's own is unknown, and (rows, "
            f"columns) does not specify the patch size. Received: grid={token_grid}"
        )
    return token_grid


def complete_grid(
    features: Features,
    images: Any,
    grid: PartialGrid,
    num_tokens: Callable[[Taps], int],
) -> TokenGrid:
    """The complete token grid; a pair (rows, columns) is completed from the first image.

    Args:
        features, images: of one model, as `engine.preparation.prepare` returns them.
        grid: the argument `grid` of the measurement.
        num_tokens: function from the layers of an image to the number of tokens.
    """
    known = grid_of(features, grid)
    if known is None or isinstance(known, TokenGrid):
        return require_grid(features, grid)
    image = first_batch(images)[:1]
    size = features.image_size or image.shape[1:3]
    return as_grid(known, num_tokens(features(image)), size)


def shared_grid(
    taps: Taps, grid: PartialGrid, given: bool, image_shape: tf.TensorShape
) -> TokenGrid:
    """The one grid of all taps, which is `grid` if the caller has `given` it and tiles images."""
    size = height, width = tuple(image_shape[1:3])
    grids = {tap: _grid_of_tap(tap, values, grid, size) for tap, values in taps.items()}
    shared = next(iter(grids.values()))
    if given and grid is not None:
        grids["grid"] = as_grid(grid, shared.num_tokens, size)
    if len(set(grids.values())) > 1:
        raise ValueError(
            "The layers have different token grids. Select layers of one grid with layers=. "
            f"Received: {grids}"
        )
    if (shared.rows * shared.stride, shared.columns * shared.stride) != (height, width):
        raise ValueError(
            f"Expected square patches that tile the images. Received: {shared} for images of "
            f"{height} x {width} pixels"
        )
    return shared


def _grid_of_tap(
    tap: str, values: tf.Tensor, grid: PartialGrid, size: tuple[int, int]
) -> TokenGrid:
    """The grid of one tap: that of a map, or what is known of that of tokens."""
    if values.shape.rank == 4:
        rows, columns = values.shape[1:3]
        return TokenGrid(rows, columns, 0, max(1, (size[0] or 0) // rows))
    if grid is not None and values.shape.rank == 3:
        grid = as_grid(grid, values.shape[1], size)
        if values.shape[1] == grid.num_tokens:
            return grid
    raise ValueError(
        f"Expected maps, or tokens of shape (example, token, channel) on a grid ({grid}). "
        f"Received: {tap!r} of shape {tuple(values.shape)}"
    )


@dataclass(frozen=True)
class Pooled:
    """Pooled features of all examples of a data set.

    Attributes:
        layers: dict from layer to the pooled features, a float32 array of shape (example, channel).
            Analyses convert them to float64.
        labels: labels of the examples, an array of shape (example,).
        tokens: how the tokens were pooled, as for `pool`.
        batches: number of batches of the data set.
    """

    layers: dict[str, np.ndarray]
    labels: np.ndarray
    tokens: str | None
    batches: int


def pool(
    taps: Taps, tokens: str | None = None, grid: TokenGrid | None = None
) -> dict[str, tf.Tensor]:
    """Pools each layer to one vector for each image: CLS, or the mean of spatial or of all tokens.

    Args:
        taps: dict from layer to its output, as a step gets it.
        tokens: `"cls"`, `"spatial"` or `"all"`. None selects the CLS token of sequences that have
            prefix tokens, the mean of the spatial tokens of other sequences, and the mean over all
            positions of a map.
        grid: the `TokenGrid` of sequences, such as `features.facts.grid`.

    Returns:
        Dict from layer to a float64 tensor of shape (example, channel).
    """
    require_word(ALL if tokens is None else tokens, POOLED)
    of_sequence = CLS if grid is None or grid.prefix else SPATIAL
    pooled = {}
    for layer, values in taps.items():
        word = tokens or (of_sequence if values.shape.rank == 3 else ALL)
        pooled[layer] = _mean_of_tokens(tokens_of(layer, values, word, grid))
    return pooled


def pooled_statistic(tokens: str | None = None, grid: TokenGrid | None = None) -> Statistic[Pooled]:
    """Returns a `Statistic` over images and labels whose result is a `Pooled`.

    The `Pooled` contains the features of all examples, so that several analyses of one data set can
    share them. The arguments are the same as for `pool`.

    Raises:
        ValueError: if `tokens` is unknown, if the labels are not integers of shape (example,), or,
            at the end of the pass, if features are not finite.
    """
    require_word(ALL if tokens is None else tokens, POOLED)

    def step(images: tf.Tensor, labels: tf.Tensor, taps: Taps) -> dict[str, Any]:
        require_label_type(labels)
        pooled = pool(taps, tokens, grid)
        x = {layer: tf.cast(values, tf.float32) for layer, values in pooled.items()}
        return {"rows": {"x": x, "labels": labels}, "batches": 1}

    def finish(totals: Totals) -> Pooled:
        rows = totals["rows"]
        require_finite("pooled features", list(rows["x"].values()), rows["x"])
        return Pooled(rows["x"], rows["labels"], tokens, int(totals["batches"]))

    return Statistic(step, finish, with_labels=True)


@reusable
def pooled_statistic_of(features: Features, tokens: str | None) -> Statistic[Pooled]:
    """`pooled_statistic` on the features' own grid, whose graph is kept with the features."""
    return pooled_statistic(tokens, features.facts.grid)


def as_maps(taps: Taps, grid: TokenGrid | tuple[int, int] | None) -> dict[str, tf.Tensor]:
    """The taps with positions as float32 maps (example, row, column, channel), without prefixes.

    Vectors, and sequences that do not lie on the grid, are left out; a `ValueError` if all are.
    """
    maps = {}
    for tap, values in taps.items():
        # Maps stay as they are; the spatial tokens of sequences on the grid become maps.
        if last_part(tap) in _NOT_TOKENS:
            continue
        if values.shape.rank == 4:
            maps[tap] = tf.cast(values, tf.float32)
        elif values.shape.rank == 3 and grid is not None:
            token_grid = as_grid(grid, values.shape[1])
            if values.shape[1] == token_grid.num_tokens:
                tokens = token_grid.spatial(tf.cast(values, tf.float32))
                shape = (-1, token_grid.rows, token_grid.columns, values.shape[2])
                maps[tap] = tf.reshape(tokens, shape)
    if not maps:
        raise ValueError(
            "Expected maps (example, row, column, channel), or tokens on a known grid: pass grid=. "
            f"Received: { {tap: tuple(x.shape) for tap, x in taps.items()} }, grid={grid}"
        )
    return maps
