"""What images show about features, where the model alone does not fix it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from vit_tf.common.names import format_list
from vit_tf.features.features import Features
from vit_tf.features.layers import Shape, grid_of_shapes, structure_of_outputs
from vit_tf.features.tokens import TokenGrid

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
    return with_prefix_first(grid, features, shapes, images.shape[1:])


def with_prefix_first(
    grid: TokenGrid | None,
    features: Features,
    shapes: Mapping[str, Shape],
    image_shape: tuple[int | None, ...],
) -> TokenGrid | None:
    """An inferred grid; None with a warning if tokens without a position do not come first.

    Before the first layer of attention, the CLS token and registers are equal for any two images.
    """
    if grid is None or not grid.prefix:
        return grid
    for layer, shape in shapes.items():
        if len(shape) != 2 or shape[0] != grid.num_tokens:
            continue
        values = values_of_noise(features, [layer], image_shape)[layer]
        if len(values) == 2:  # a table of positions, which a layer returns, has one row for both
            break
    else:
        return grid
    is_constant = np.all(values[0] == values[1], axis=-1)
    if is_constant[: grid.prefix].all() or not is_constant[grid.prefix :].any():
        return grid
    numbers = np.flatnonzero(is_constant).tolist()
    warnings.warn(
        f"No token grid is inferred for {features.name!r}: measurements expect prefix tokens "
        f"first, but the tokens {format_list(list(map(str, numbers)))} of {grid.num_tokens} are "
        "the same for all images",
        stacklevel=6,
    )
    return None


def values_of_noise(
    features: Features, layers: Sequence[str], image_shape: tuple[int | None, ...]
) -> dict[str, np.ndarray]:
    """Layers for two images of noise."""
    dtype = features.facts.input_dtype or "float32"
    low, high = (0, 256) if "int" in dtype else (-1, 1)
    sizes = [2, *(size or 1 for size in image_shape)]
    noise = np.random.default_rng(0).uniform(low, high, sizes).astype(dtype)
    taps = features.select(layers).compute(tf.constant(noise))
    return {layer: np.asarray(taps[layer]) for layer in layers}
