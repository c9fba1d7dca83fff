"""Taps of any shape as sequences of tokens."""

from dataclasses import replace

import tensorflow as tf

from vit_tf import TokenGrid
from vit_tf.tokens import as_grid, as_pair

from .results import ALL, CLS, EACH, SPATIAL

_NOT_TOKENS = ("weights", "heads")


def as_tokens(tap, values):
    """Activations as float32 tokens of shape (example, token, channel).

    A map (example, row, column, channel) is read row by row; a vector (example, channel) is one
    token.

    Raises:
        ValueError: for taps that hold no tokens, such as attention weights.
    """
    rank = values.shape.rank
    if rank not in (2, 3, 4) or tap.rpartition("/")[2] in _NOT_TOKENS:
        raise ValueError(
            "Expected taps of shape (example, channel), (example, token, channel) or (example, "
            f"row, column, channel). Received: {tap!r} of shape {tuple(values.shape)}"
        )
    values = tf.cast(values, tf.float32)
    if rank == 3:
        return values
    shape = tf.shape(values)
    tokens = 1 if rank == 2 else shape[1] * shape[2]
    static = 1 if rank == 2 else _product(values.shape[1:3])
    flat = tf.reshape(values, (shape[0], tokens, shape[-1]))
    return tf.ensure_shape(flat, (values.shape[0], static, values.shape[-1]))


def tokens_of(tap, values, which, grid):
    """The tokens of a tap that a word names, of shape (example, token, channel).

    Args:
        tap: its name.
        values: as for `as_tokens`.
        which: `"cls"`, the first of the tokens without a place; `"spatial"`, those that have one,
            which in a map are all; `"all"` or `"each"`, whatever tokens there are.
        grid: `TokenGrid` of the sequences, or None where it is not known, as for models of maps.

    Raises:
        ValueError: for a tap or a grid without such tokens, or a sequence that does not lie on the
            grid.
    """
    tokens = as_tokens(tap, values)
    if which in (ALL, EACH) or (which == SPATIAL and values.shape.rank == 4):
        return tokens
    received = f"tokens={which!r} at {tap!r} of shape {tuple(values.shape)}"
    if values.shape.rank != 3:
        known = "'all'" if values.shape.rank == 2 else "'spatial' or 'all'"
        raise ValueError(
            f"Expected tokens={known} for a layer of no sequence. Received: {received}"
        )
    if grid is None:
        raise ValueError(
            "Expected features with a token_grid, a vit_tf.TokenGrid, which tells the CLS token "
            f"from those with a place. Received: {received}, token_grid=None"
        )
    if tokens.shape[1] not in (None, grid.num_tokens):
        raise ValueError(f"Expected {grid.num_tokens} tokens, of {grid}. Received: {received}")
    if which == SPATIAL:
        return grid.spatial(tokens)
    if not grid.prefix:
        raise ValueError(
            f"Expected tokens='spatial' or 'all' of a model without a CLS token. Received: "
            f"tokens={CLS!r}, {grid}"
        )
    return grid.first(tokens)[:, None]


def _product(sizes):
    return None if None in tuple(sizes) else sizes[0] * sizes[1]


def pooled_tokens(own, grid):
    """Positions of the tokens that a head reads: the model's `own`; of None CLS, or else all."""
    return tuple(own or (range(1) if grid.prefix else range(grid.num_tokens)))


def grid_of(features, grid):
    """What is known of the grid before the first batch.

    Args:
        features: callable, maybe with a `token_grid`.
        grid: `TokenGrid`, pair (rows, columns), or None for the features' own.

    Returns:
        `TokenGrid`; a pair, of features that do not know their grid; or None if there is neither.

    Raises:
        ValueError: for a grid that contradicts the features' own, or is none.
    """
    own = getattr(features, "token_grid", None)
    if grid is None:
        return own
    given = grid if isinstance(grid, TokenGrid) else as_pair(grid)
    if own is None:
        return given
    if given not in (own, (own.rows, own.columns)) and not _of_another_map(given, own):
        raise_contradiction(own, grid)
    return given if isinstance(grid, TokenGrid) else own


def raise_contradiction(own, grid):
    """Raises a `ValueError` for a grid that is not the features' own."""
    raise ValueError(
        f"Expected the grid that the features know, {own}, or none given. Received: grid={grid}"
    )


def _of_another_map(given, own):
    """Whether a grid may be that of maps at another depth of the model."""
    return isinstance(given, TokenGrid) and not given.prefix and given.num_spatial != own.num_tokens


def require_grid(features, grid):
    """As `grid_of`, where the whole grid must be known in advance.

    Raises:
        ValueError: if there is none, or only a pair (rows, columns).
    """
    found = grid_of(features, grid)
    if not isinstance(found, TokenGrid):
        raise ValueError(
            "Expected a grid, or features with a token_grid; a pair (rows, columns) does not tell "
            f"the size of the images that the model takes. Received: grid={found}"
        )
    return found


def on_grid(features, grid, make, num_tokens):
    """The `Statistic` that `make(token_grid)` returns, once the grid is known.

    A pair (rows, columns) is completed from the first batch: the prefix by the number of tokens,
    the stride by the size of the images.

    Args:
        features, grid: as for `grid_of`.
        make: function of a `TokenGrid` to a `Statistic`.
        num_tokens: function of what the step takes after the images to the number of tokens.

    Raises:
        ValueError: if there is neither a grid nor one of the features; and as `as_grid`.
    """
    found = grid_of(features, grid)
    if found is None or isinstance(found, TokenGrid):
        return make(require_grid(features, grid))
    made = []

    def step(images, *rest):
        made[:] = [make(as_grid(found, num_tokens(*rest), images.shape[1:3]))]
        return made[0].step(images, *rest)

    like = make(as_grid(found))
    return replace(like, step=step, finish=lambda totals: made[0].finish(totals))


def shared_grid(taps, known, given, image_shape):
    """The one `TokenGrid` on which all taps lie and that tiles the images.

    Args:
        taps: dict from layer to tensor.
        known: what `grid_of` says.
        given: whether it was given, so that maps have to lie on it too.
        image_shape: shape of a batch of images.
    """
    size = height, width = tuple(image_shape[1:3])
    found = {tap: _grid_of_tap(tap, values, known, size) for tap, values in taps.items()}
    shared = next(iter(found.values()))
    if given:
        found["grid"] = as_grid(known, shared.num_tokens, size)
    if len(set(found.values())) > 1:
        raise ValueError(f"Expected taps on one grid. Received: {found}")
    if (shared.rows * shared.stride, shared.columns * shared.stride) != (height, width):
        raise ValueError(
            f"Expected square patches that tile the images. Received: {shared} for images of "
            f"{height} x {width} pixels"
        )
    return shared


def _grid_of_tap(tap, values, known, size):
    """The grid of one tap: a map's own, or what is known of that of tokens."""
    if values.shape.rank == 4:
        rows, columns = values.shape[1:3]
        return TokenGrid(rows, columns, 0, max(1, (size[0] or 0) // rows))
    fits = known is not None and values.shape.rank == 3
    grid = as_grid(known, values.shape[1], size) if fits else known
    if not fits or values.shape[1] != grid.num_tokens:
        raise ValueError(
            f"Expected maps, or tokens of shape (example, token, channel) on a grid ({grid}). "
            f"Received: {tap!r} of shape {tuple(values.shape)}"
        )
    return grid
