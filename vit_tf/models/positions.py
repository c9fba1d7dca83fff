"""Position embeddings that are not learned."""

import keras
import numpy as np

from vit_tf.names import choose

TEMPERATURE = 10_000


def sine_cosine_positions(grid, hidden_dim):
    """Fixed position embeddings of a grid of tokens (Beyer et al. 2022; Chen et al. 2021, MoCo v3).

    With `w_k = 10000 ** (-k / (D / 4 - 1))` for `k` in [0, D / 4), the token in row `y` and column
    `x` has `[sin(w x), cos(w x), sin(w y), cos(w y)]`; tokens without a place have zeros.

    Args:
        grid: `TokenGrid` of the tokens.
        hidden_dim: number of channels `D`, a multiple of 4 and at least 8.

    Returns:
        float32 array of shape (token, channel).

    Raises:
        ValueError: for another number of channels.
    """
    if hidden_dim % 4 or hidden_dim < 8:
        raise ValueError(
            "Expected hidden_dim to be a multiple of 4 from 8 on, for positions of sine and "
            f"cosine. Received: hidden_dim={hidden_dim}"
        )
    waves = TEMPERATURE ** -np.linspace(0, 1, hidden_dim // 4)
    rows, columns = np.mgrid[: grid.rows, : grid.columns].reshape(2, -1, 1) * waves
    spatial = [np.sin(columns), np.cos(columns), np.sin(rows), np.cos(rows)]
    spatial = np.concatenate(spatial, axis=1)
    return np.concatenate([np.zeros((grid.prefix, hidden_dim)), spatial]).astype("float32")


def add_positions(layer, kind, grid, hidden_dim):
    """The weight of position embeddings of a layer, of shape (1, token, channel).

    Args:
        layer: the Keras layer that it is a weight of.
        kind: `"learned"`, or `"sincos"` for those of `sine_cosine_positions`.
        grid: `TokenGrid` of the tokens.
        hidden_dim: number of channels.
    """
    return layer.add_weight(
        shape=(1, grid.num_tokens, hidden_dim),
        initializer=choose("position_type", kind, KINDS)(grid, hidden_dim),
        trainable=kind == "learned",
        name="positions",
    )


KINDS = {
    "learned": lambda *_: keras.initializers.RandomNormal(stddev=0.02),
    "sincos": lambda *shape: lambda *_, **__: sine_cosine_positions(*shape)[None],
}
