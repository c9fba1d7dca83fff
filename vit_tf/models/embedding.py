"""How an image becomes tokens: patches, prefix tokens, and positions."""

from dataclasses import replace

import keras
import numpy as np
from keras import layers, ops

from vit_tf.names import lookup
from vit_tf.tokens import TokenGrid

register = keras.saving.register_keras_serializable("vit_tf")

TEMPERATURE = 10_000


@register
class PatchDense(layers.Conv2D):
    """A convolution of patches that do not overlap, as one product of a flat matrix.

    The result is that of `keras.layers.Conv2D` whose stride is its kernel's size, on maps of a
    multiple of that size; its gradient with respect to the images takes a tenth of the time.
    """

    def __init__(self, filters, kernel_size, **kwargs):
        super().__init__(filters, kernel_size, **{"data_format": "channels_last"} | kwargs)

    def call(self, images):
        rows, columns = self.kernel_size
        height, width, channels = images.shape[1:]
        grid = (height // rows, width // columns)
        x = ops.reshape(images, (-1, grid[0], rows, grid[1], columns, channels))
        x = ops.reshape(ops.swapaxes(x, 2, 3), (-1, rows * columns * channels))
        x = ops.matmul(x, ops.reshape(self.kernel, (-1, self.filters)))
        if self.use_bias:
            x = ops.add(x, self.bias)
        return ops.reshape(x, (-1, *grid, self.filters))


@register
class Embedding(layers.Layer):
    """Patches as tokens, a CLS token in front where asked for, and positions added.

    Args:
        grid: `TokenGrid` of the tokens, or its fields as a dict.
        hidden_dim: number of channels of a token.
        dropout_rate: share of channels dropped after the positions are added.
        patch_size: side of a patch, in pixels of the map that is embedded; None means the
            stride of the grid, the map being the image.
        use_bias: whether the projection of a patch has a bias.
        use_positions: whether positions are added: `"learned"` (or True), `"sincos"`, or False.
        num_prefix_positions: number of the first prefix tokens that have a position; None for all.
        patch_norm: epsilon of a normalisation of the patches by their root mean square, before
            positions are added; None leaves it out.

    Called with `corrupt`, a function of the embedded patches, of shape (example, patch, channel),
    it goes on with what that returns, of the same shape.
    """

    def __init__(
        self,
        grid,
        hidden_dim,
        dropout_rate=0.0,
        patch_size=None,
        use_bias=True,
        use_positions=True,
        num_prefix_positions=None,
        patch_norm=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.grid = TokenGrid(**grid) if isinstance(grid, dict) else grid
        self.patch_norm = patch_norm
        self.patch_normalization = None
        if patch_norm is not None:
            self.patch_normalization = layers.RMSNormalization(
                epsilon=patch_norm, dtype=self.dtype_policy, name="patch_norm"
            )
        self.hidden_dim, self.dropout_rate = hidden_dim, dropout_rate
        self.patch_size = patch_size or self.grid.stride
        self.use_bias, self.use_positions = use_bias, use_positions
        self.num_prefix_positions = num_prefix_positions
        if num_prefix_positions is None:
            self.num_prefix_positions = self.grid.prefix
        self.patches = PatchDense(
            hidden_dim,
            self.patch_size,
            strides=self.patch_size,
            use_bias=use_bias,
            # As in the papers' code, where the fan in is that of a whole patch.
            kernel_initializer="lecun_normal",
            dtype=self.dtype_policy,
            name="patches",
        )
        self.dropout = layers.Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape):
        self.patches.build(input_shape)
        if self.patch_normalization:
            self.patch_normalization.build((None, None, self.hidden_dim))
        self.prefix = self.positions = None
        if self.grid.prefix:
            shape = (1, self.grid.prefix, self.hidden_dim)
            self.prefix = self.add_weight(shape=shape, initializer="zeros", name="prefix")
        if self.use_positions:
            kind = "learned" if self.use_positions is True else self.use_positions
            self.positions = add_positions(self, kind, self.position_grid, self.hidden_dim)

    @property
    def position_grid(self):
        """The `TokenGrid` of the tokens that have a position of their own."""
        return replace(self.grid, prefix=self.num_prefix_positions)

    def all_positions(self):
        """What is added to each token, zeros where it has no position: (1, token, channel)."""
        if self.num_prefix_positions == self.grid.prefix:
            return self.positions
        positions = ops.convert_to_tensor(self.positions)
        none = ops.zeros(
            (1, self.grid.prefix - self.num_prefix_positions, self.hidden_dim), positions.dtype
        )
        rest = self.position_grid.spatial(positions)
        return ops.concatenate([positions[:, : self.num_prefix_positions], none, rest], axis=1)

    def call(self, images, training=None, corrupt=None):
        tokens = ops.reshape(self.patches(images), (-1, self.grid.num_spatial, self.hidden_dim))
        if self.patch_normalization:
            tokens = self.patch_normalization(tokens)
        if corrupt is not None:
            tokens = corrupt(tokens)
        if self.prefix is not None:
            prefix = ops.broadcast_to(
                self.prefix, (ops.shape(tokens)[0], self.grid.prefix, self.hidden_dim)
            )
            tokens = ops.concatenate([prefix, tokens], axis=1)
        if self.positions is not None:
            tokens = tokens + self.all_positions()
        return self.dropout(tokens, training=training)

    def get_config(self):
        names = ("hidden_dim", "dropout_rate", "patch_size", "use_bias", "use_positions")
        names += ("num_prefix_positions", "patch_norm")
        config = {"grid": vars(self.grid)} | {name: getattr(self, name) for name in names}
        return super().get_config() | config

    @classmethod
    def from_config(cls, config):
        # The name of the argument in files of older versions.
        return cls(**{"num_prefix_positions" if k == "placed" else k: config[k] for k in config})


@register
class Rotation(layers.Layer):
    """Cosines and sines of `rotary_angles`, (2, token, channel of a head), for `rotate`."""

    def __init__(
        self, grid, head_dim, side=None, base=None, offset=0, columns_first=False, **kwargs
    ):
        super().__init__(**kwargs)
        self.grid = TokenGrid(**grid) if isinstance(grid, dict) else grid
        self.head_dim, self.side = head_dim, side
        self.base, self.offset, self.columns_first = base, offset, columns_first
        angles = rotary_angles(self.grid, head_dim, side, base, offset, columns_first)
        angles = np.tile(angles, 2)
        self.factors = np.stack([np.cos(angles), np.sin(angles)]).astype("float32")

    def call(self, tokens):
        # What the tokens hold does not matter: they tie the angles to the graph of a submodel.
        return ops.convert_to_tensor(self.factors, tokens.dtype)

    def get_config(self):
        names = ("head_dim", "side", "base", "offset", "columns_first")
        config = {"grid": vars(self.grid)} | {name: getattr(self, name) for name in names}
        return super().get_config() | config


@register
class MixedRotation(layers.Layer):
    """The same of learned frequencies of each block and head (Heo et al. 2024, RoPE-Mixed).

    Called on the tokens, returns a tensor of shape (block, 2, head, token, channel of a head),
    whose items are what `rotate` takes: the angles of a token at `(y, x)` are `x f_k + y g_k`
    (https://arxiv.org/abs/2403.13298, equation 10), of weights `f` and `g`.

    Args:
        grid: `TokenGrid` of the tokens, or its fields as a dict.
        num_layers, num_heads: numbers of blocks, and of heads of each.
        head_dim: number of channels of a head, a multiple of 4.
    """

    def __init__(self, grid, num_layers, num_heads, head_dim, **kwargs):
        super().__init__(**kwargs)
        self.grid = TokenGrid(**grid) if isinstance(grid, dict) else grid
        self.num_layers, self.num_heads, self.head_dim = num_layers, num_heads, head_dim
        check_head_dim(head_dim)
        places = np.indices((self.grid.rows, self.grid.columns))[::-1].reshape(2, -1)
        none = np.zeros((2, self.grid.prefix))
        self.places = np.concatenate([none, places], axis=1).astype("float32")

    def build(self, input_shape):
        self.frequencies = self.add_weight(
            shape=(2, self.num_layers, self.num_heads, self.head_dim // 2),
            initializer=mixed_frequencies,
            autocast=False,
            name="frequencies",
        )

    def call(self, tokens):
        along, down = self.frequencies[0][..., None, :], self.frequencies[1][..., None, :]
        angles = along * self.places[0][:, None] + down * self.places[1][:, None]
        angles = ops.concatenate([angles, angles], axis=-1)
        return ops.cast(ops.stack([ops.cos(angles), ops.sin(angles)], axis=1), tokens.dtype)

    def get_config(self):
        names = ("num_layers", "num_heads", "head_dim")
        config = {"grid": vars(self.grid)} | {name: getattr(self, name) for name in names}
        return super().get_config() | config


def mixed_frequencies(shape, dtype=None):
    """Initial frequencies: `10 ** (-4 k / D)` in two directions, turned at random for each head."""
    _, num_layers, num_heads, half = shape
    turn = keras.random.uniform((num_layers, num_heads, 1), maxval=2 * np.pi)
    size = np.tile(10.0 ** (-np.arange(half // 2) * 2 / half), 2)
    turn = turn + np.repeat([0, np.pi / 2], half // 2).astype("float32")
    size = ops.convert_to_tensor(size, "float32")
    return ops.cast(ops.stack([size * ops.cos(turn), size * ops.sin(turn)]), dtype or "float32")


def check_head_dim(head_dim):
    """Raises a ValueError unless the channels of a head can be rotated on two axes."""
    if head_dim % 4:
        raise ValueError(
            "Expected hidden_dim / num_heads to be a multiple of 4, for rotary positions. "
            f"Received: {head_dim} channels of a head"
        )


def rotary_angles(grid, head_dim, side=None, base=None, offset=0, columns_first=False):
    """Angles of rotary positions on two axes, as in DINOv3, or as in EVA-02 where `side` is given.

    The angles of a token at `(y, x)` are `w_k y`, then `w_k x`, for `k` in [0, D / 4); tokens
    have zeros. In DINOv3 (Siméoni et al. 2025, section 3.2) the position is that of
    the token's centre, -1 and 1 being the edges of the image on either axis, and `w_k = 2 pi
    100 ** (-4 k / D)`. In EVA-02 (Fang et al. 2023, https://arxiv.org/abs/2303.11331) it is its
    row and column, stretched to those of a square grid of so many tokens a side, with which it
    was pretrained, and `w_k = 10000 ** (-4 k / D)`. RoPE-Axial (Heo et al. 2024,
    https://arxiv.org/abs/2403.13298) has the base 100, columns before rows and nothing stretched,
    the Perception Encoder (Bolya et al. 2025) rows and columns that begin at 1.

    Args:
        grid: `TokenGrid` of the tokens.
        head_dim: number of channels `D` of a head, a multiple of 4.
        side: number of tokens a side, or of rows and columns; None for DINOv3's positions.
        base: that of `w_k`; None for 100 of DINOv3's and 10000 of others.
        offset: added to rows and columns before they are stretched.
        columns_first: whether the angles of `x` come before those of `y`.

    Returns:
        float64 array of shape (token, D / 2), in radians.

    Raises:
        ValueError: for another number of channels.
    """
    check_head_dim(head_dim)
    exponents = -np.arange(head_dim // 4) * 4 / head_dim
    places = np.indices((grid.rows, grid.columns)).reshape(2, -1, 1)
    size = np.array([grid.rows, grid.columns]).reshape(2, 1, 1)
    if side is None:
        places, waves = 2 * (places + 0.5) / size - 1, 2 * np.pi * (base or 100.0) ** exponents
    else:
        side = np.reshape(np.broadcast_to(side, 2), (2, 1, 1))
        places, waves = (places + offset) * side / size, (base or 10_000.0) ** exponents
    angles = list(places * waves)
    angles = np.concatenate(angles[::-1] if columns_first else angles, axis=1)
    return np.concatenate([np.zeros((grid.prefix, head_dim // 2)), angles])


def rotate(x, factors):
    """Queries or keys of shape (example, head, token, channel), each pair of channels rotated.

    The pair of channels `k` and `k + D / 2` is `(a cos - b sin, b cos + a sin)` (Su et al. 2021,
    RoFormer, equation 34).

    Args:
        x: the queries or keys.
        factors: what a `Rotation` returns.
    """
    factors = ops.cast(factors, x.dtype)
    cosines, sines = factors[0], factors[1]
    first, second = ops.split(x, 2, axis=-1)
    return x * cosines + ops.concatenate([-second, first], axis=-1) * sines


def sine_cosine_positions(grid, hidden_dim):
    """Fixed position embeddings of a grid of tokens (Beyer et al. 2022; Chen et al. 2021, MoCo v3).

    With `w_k = 10000 ** (-k / (D / 4 - 1))` for `k` in [0, D / 4), the token in row `y` and column
    `x` has `[sin(w x), cos(w x), sin(w y), cos(w y)]`; prefix tokens have zeros.

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
    """The `"learned"` or `"sincos"` position embeddings of a layer: weight (1, token, channel)."""
    return layer.add_weight(
        shape=(1, grid.num_tokens, hidden_dim),
        initializer=lookup("position_type", kind, KINDS)(grid, hidden_dim),
        trainable=kind == "learned",
        name="positions",
    )


KINDS = {
    "learned": lambda *_: keras.initializers.RandomNormal(stddev=0.02),
    "sincos": lambda *shape: lambda *_, **__: sine_cosine_positions(*shape)[None],
}
