"""What images show about features, where the model alone does not fix it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from vit_tf.common.names import format_list
from vit_tf.features.features import Features, ModelFacts
from vit_tf.features.layers import Shape, grid_of_shapes, structure_of_outputs
from vit_tf.features.tokens import TokenGrid

LEAST_CHANGE = 0.02  # of a corner's token by its pixels, relative to the largest change
ROUNDING = 1e-5  # change by rounding, relative to that by another image
NUM_SHOWN = 3  # images that show shapes; with one, an axis of examples may be any axis of size one


def observed_grid(
    features: Features,
    images: tf.Tensor | np.ndarray,
    patch_size: int | None = None,
    prefix: int | None = None,
) -> TokenGrid | None:
    """Where the tokens of features lie: as declared, or as shapes of layers on some images show.

    `patch_size` and `prefix` are those that the user knows, of a model that declares no grid.
    """
    facts = features.facts
    if facts.grid is not None or len(images.shape) != 4:
        return facts.grid
    first: tf.Tensor = tf.cast(images[:NUM_SHOWN], tf.float32)
    shapes = {layer: tuple(value.shape[1:]) for layer, value in features(first).items()}
    # A function that has not been called has no structure yet.
    graph = facts.structure if facts.layers else structure_of_outputs(tuple(shapes), shapes)
    size = (images.shape[1], images.shape[2])
    grid = grid_of_shapes(shapes, shapes, size, graph, patch_size, prefix)
    return confirmed_grid(grid, features, shapes, images.shape[1:], patch_size)[0]


def confirmed_grid(
    grid: TokenGrid | None,
    features: Features,
    shapes: Mapping[str, Shape],
    image_shape: tuple[int | None, ...],
    patch_size: int | None,
) -> tuple[TokenGrid | None, dict[str, str]]:
    """An inferred grid and {}; None, with a warning, and the reason if its positions are wrong.

    A grid of a `patch_size` that the user knows is not checked.

    Before the first layer of attention, the CLS token and registers are equal for any two images,
    and what changes in a corner of the image changes the token there. So does what changes where
    two patches meet, for both tokens. A layer that crops or pads the image in front of the patches
    moves the tokens, and a model may have them in another order.
    """
    if grid is None or patch_size is not None:
        return grid, {}
    noise = noise_images(features.facts, image_shape)
    # The third image differs from the first in three of its corners, by half the side of a patch.
    side = max(grid.stride // 2, 1)
    start, end, third = slice(None, side), slice(-side, None), noise[0].copy()
    for corner in ((start, start), (start, end), (end, end)):
        third[corner] = noise[1][corner]
    # The fourth differs in thin lines where the first and the last two patches of a side meet.
    fourth, border_tokens = noise[0].copy(), {0}
    width = max(grid.stride // 8, 1)
    inside = max(grid.stride - width, 1)  # of the patches in a corner
    for axis, count, step in ((0, grid.rows, grid.columns), (1, grid.columns, 1)):
        changed, other = np.swapaxes(fourth, 0, axis), np.swapaxes(noise[1], 0, axis)
        for position in {1, count - 1} if count > 1 else ():
            place = slice(position * grid.stride - width, position * grid.stride + width)
            changed[place, :inside] = other[place, :inside]
            border_tokens |= {(position - 1) * step, position * step}
    images = np.stack([*noise, third, fourth])
    sequences = [layer for layer, x in shapes.items() if x[:-1] == (grid.num_tokens,)]
    # Maps of the whole image, at any depth.
    size = grid.stride * np.array([grid.rows, grid.columns])
    maps = [
        layer
        for layer, x in shapes.items()
        if len(x) == 3 and x[0] != 1 and None not in x and np.ptp(size / np.array(x[:2])) == 0
    ]
    # The first of these that varies; a table of positions has one row for all images.
    for layer in sequences or maps[::-1]:
        values = np.asarray(features.select([layer]).compute(tf.constant(images))[layer])
        if len(values) == len(images) and (values[0] != values[1]).any():
            break
    else:
        return grid, {}
    values = values.reshape(len(images), -1, values.shape[-1]).astype(np.float64)
    is_constant = np.all(values[0] == values[1], axis=-1)
    changes, at_lines = np.abs(values[2:] - values[0]).max(axis=-1)[:, grid.prefix :]
    rounding = ROUNDING * np.abs(values[1] - values[0]).max()
    # A corner changes its own token; the positions of a map read far more than their own pixels.
    corners = changes[[0, grid.columns - 1, -1]] if sequences else changes.max(keepdims=True)
    is_moved = corners.min() <= max(LEAST_CHANGE * changes.max(), rounding)
    is_moved |= bool(sequences) and at_lines[sorted(border_tokens)].min() <= rounding
    numbers = np.flatnonzero(is_constant).tolist()
    if len(numbers) == grid.prefix and not is_constant[: grid.prefix].all():
        reason = (
            f"the tokens {format_list(numbers)} of {grid.num_tokens} do not depend on the image, "
            "so they are prefix tokens, but measurements need prefix tokens to come first"
        )
    elif is_moved:
        reason = (
            f"its tokens or positions are not those of a grid of {grid.rows} x {grid.columns} "
            "square patches of the image, row by row: the model crops or pads the image first, "
            "its patches are not square, or it has them in another order"
        )
    else:
        return grid, {}
    warnings.warn(f"No token grid is inferred for {features.name!r}: {reason}", stacklevel=6)
    return None, {"grid": reason}


def noise_images(facts: ModelFacts, image_shape: tuple[int | None, ...]) -> np.ndarray:
    """Two images of noise that a model takes; sides of unknown length are one pixel."""
    dtype = facts.input_dtype or "float32"
    low, high = (0, 256) if "int" in dtype else (-1, 1)
    sizes = [2, *(size or 1 for size in image_shape)]
    return np.random.default_rng(0).uniform(low, high, sizes).astype(dtype)
