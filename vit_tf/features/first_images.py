"""What the first images show about features, where the model alone does not fix it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from vit_tf.features.features import Features
from vit_tf.features.layers import grid_of_shapes, structure_of_outputs, with_prefix_first
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

    def values_of_noise(layer: str) -> np.ndarray:
        noise = np.random.default_rng(0).uniform(-1, 1, (2, *images.shape[1:]))
        return np.asarray(features.select([layer])(tf.constant(noise.astype(np.float32)))[layer])

    return with_prefix_first(grid, features.name, tuple(shapes), shapes, values_of_noise)
