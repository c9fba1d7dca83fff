"""Taps as sequences of tokens on a grid, pooled to one vector for each image, and labels."""

import math
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from vit_tf import TokenGrid
from vit_tf.tokens import as_grid, as_pair

from .features import Derived
from .results import ALL, CLS, EACH, POOLED, SPATIAL, require_finite, require_word
from .stream import Statistic

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
        which: `"cls"`, the first prefix token; `"spatial"`, those with a position,
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
            "Expected features with a token_grid, a vit_tf.TokenGrid, which separates CLS "
            f"from spatial tokens. Received: {received}, token_grid=None"
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
            "Expected a grid, or features with a token_grid; a pair (rows, columns) does not give "
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


def match_maps(features, channels, grid=None):
    """Features whose maps have the last stage's rows and columns and about its channels.

    Each map is split into patches that are flattened, so that early layers with few channels are
    not at a disadvantage, then average-pooled (Raghu et al. 2021, appendix A, "linear probes"):

        out[r, c, (i, j, k)] = mean over u, v of map[(r a + u) p + i, (c b + v) p + j, k]

    with i, j < p and the mean over a x b whole patches. Of the sides p that divide the map so, the
    one that brings the number of channels (i, j, k) nearest to `channels`. A map that the grid does
    not divide is an error, not padded: padding would weigh the border differently in every stage.

    Args:
        features: callable from images to `{layer: tensor of shape (example, row, column,
            channel)}`.
        channels: number of channels of the last stage.
        grid: `TokenGrid` of the last stage's map; by default the features' own.

    Returns:
        Callable from images to `{layer: tensor of shape (example, grid.rows, grid.columns, about
        channels)}`.

    Raises:
        ValueError: without a grid; when called, for taps that are not maps, or whose rows and
            columns are no multiples of the grid's.
    """
    grid = require_grid(features, grid)

    def matched(taps):
        for tap, values in taps.items():
            _require_divisible(tap, values.shape, grid)
        return {
            tap: _match_map(values, grid.rows, grid.columns, channels)
            for tap, values in taps.items()
        }

    return Derived(features, matched, grid)


def _match_map(values, rows, columns, channels):
    """One map, patched and pooled: tensor of shape (example, rows, columns, side side depth)."""
    height, width, depth = values.shape[1:]
    side = _patch_side(height // rows, width // columns, depth, channels)
    pooled = (height // rows // side, width // columns // side)
    shape = (-1, rows, pooled[0], side, columns, pooled[1], side, depth)
    mean = tf.reduce_mean(tf.reshape(values, shape), axis=(2, 5))
    patches = tf.transpose(mean, (0, 1, 3, 2, 4, 5))
    return tf.reshape(patches, (-1, rows, columns, side * side * depth))


def _patch_side(height, width, depth, channels):
    """Side of square patches that tile height x width positions; of two equal ones the smaller."""
    common = math.gcd(height, width)
    sides = [side for side in range(1, common + 1) if common % side == 0]
    return min(sides, key=lambda side: abs(side * side * depth - channels))


def _require_divisible(tap, shape, grid):
    """Raises a `ValueError` unless the shape is that of a map that the grid divides."""
    if shape.rank != 4 or shape[1] % grid.rows or shape[2] % grid.columns:
        raise ValueError(
            "Expected maps of shape (example, row, column, channel) with rows a multiple of "
            f"{grid.rows} and columns of {grid.columns}. Received: {tap!r} of shape {tuple(shape)}"
        )


@dataclass(frozen=True)
class Pooled:
    """Pooled features of every example of a data set.

    Attributes:
        layers: dict from layer to float64 array of shape (example, channel).
        labels: array of shape (example,).
        tokens: as for `pool`.
        batches: number of batches that they came in.
    """

    layers: dict
    labels: np.ndarray
    tokens: str
    batches: int


def pool(taps, tokens=None, grid=None):
    """The CLS token of each layer, or the mean of its spatial tokens, or of all.

    Args:
        taps: dict from layer to tensor of shape (example, token, channel), (example, row, column,
            channel) or (example, channel).
        tokens: `"cls"`, `"spatial"` or `"all"`; None for the CLS token of sequences that have one,
            the mean of the spatial tokens of others and of maps, and vectors as they are.
        grid: `TokenGrid` of the sequences, which separates `"cls"` from `"spatial"`.

    Returns:
        dict from layer to float64 tensor of shape (example, channel).

    Raises:
        ValueError: for other `tokens`, and as `tokens_of`.
    """
    _require_tokens(tokens)
    words = {layer: tokens or _default_tokens(x.shape.rank, grid) for layer, x in taps.items()}
    chosen = {layer: tokens_of(layer, x, words[layer], grid) for layer, x in taps.items()}
    return {layer: tf.cast(tf.reduce_mean(x, axis=1), tf.float64) for layer, x in chosen.items()}


def _require_tokens(tokens):
    if tokens is not None:
        require_word(tokens, POOLED)


def _default_tokens(rank, grid):
    """What stands for a layer by default, from the number of its axes."""
    if rank == 3:
        return CLS if grid is None or grid.prefix else SPATIAL
    return ALL


def pooled_statistic(tokens=None, grid=None):
    """The `Statistic` of images and labels that finishes with the `Pooled` features.

    It keeps the rows: several analyses of one data set can share them. Arguments are those of
    `pool`.

    Raises:
        ValueError: for other `tokens`, or labels that are not integers of shape (example,); at the
            end, for features that are not finite.
    """
    _require_tokens(tokens)

    def step(images, labels, taps):
        require_vector(labels)
        return {"rows": {"x": pool(taps, tokens, grid), "labels": labels}, "batches": 1}

    def finish(totals):
        rows = totals["rows"]
        require_finite("pooled features", list(rows["x"].values()), rows["x"])
        return Pooled(rows["x"], rows["labels"], tokens, int(totals["batches"]))

    return Statistic(step, finish, with_labels=True)


def batch_labels(labels, num_classes, what):
    """The labels of a batch, and how many are outside the classes, for `require_inside`.

    Args:
        labels: integer tensor of shape (example,).
        num_classes: number of classes.
        what: of which images, for the error, such as "test".

    Returns:
        int64 tensor of shape (example,), and an int32 scalar.

    Raises:
        ValueError: as `require_vector`.
    """
    require_vector(labels, num_classes, what)
    labels = tf.cast(labels, tf.int64)
    inside = tf.logical_and(labels >= 0, labels < num_classes)
    return labels, tf.reduce_sum(tf.cast(tf.logical_not(inside), tf.int32))


def require_inside(outside, examples, num_classes, what):
    """Raises a `ValueError` if any of the labels of so many examples are `outside` the classes."""
    if outside:
        _refuse(num_classes, f"{int(outside)} of {int(examples)} {what} labels outside")


def require_labels(labels, num_classes, what):
    """Raises a `ValueError` unless an array holds labels of `what` images, all of them classes."""
    require_vector(labels, num_classes, what)
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        _refuse(num_classes, f"{what} labels from {labels.min()} to {labels.max()}")


def require_vector(labels, num_classes=None, what="the"):
    """Raises a `ValueError` unless labels, a tensor or an array, are integers of shape (example,).

    Args:
        labels: what was given; classes in one-hot form, or of shape (example, 1), are refused.
        num_classes: number of classes, or None where any integers do.
        what: of which images, for the error, such as "test".
    """
    kind = tf.as_dtype(labels.dtype)
    if len(labels.shape) != 1 or not kind.is_integer:
        _refuse(num_classes, f"{what} labels of shape {tuple(labels.shape)} and type {kind.name}")


def _refuse(num_classes, received):
    classes = "" if num_classes is None else f" from 0 to num_classes - 1 = {num_classes - 1}"
    raise ValueError(f"Expected integer labels of shape (example,){classes}. Received: {received}")
