"""What Vision Transformers are made of: models of blocks, patches, positions, activations."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from vit_tf.common.backend import Tensor, compiled_elementwise, custom_gradient
from vit_tf.common.names import lookup, match_sites
from vit_tf.features.recorder import Taps
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.model import (
    ConfiguredLayer,
    VisionModel,
    as_grid,
    inner_taps,
    run_inner,
    site_taps,
)

register = keras.saving.register_keras_serializable("vit_tf")


class TransformerModel(VisionModel):
    """A `VisionModel` that embeds patches, runs blocks over their tokens and pools these.

    A subclass sets its `token_grid`, calls `add_embedding` and `add_blocks`, and sets those of the
    following layers that it has: `pre_norm` (of the tokens before the first block), `rotation` (of
    queries and keys) and `biases` (of attention scores), `attention_pooling` (in place of a class
    token or a mean), and `pre_logits`, `projection` and `head` (of the pooled token, in this
    order). With `fc_norm`, the mean of the tokens is normalised in place of each token.
    """

    pre_norm = rotation = attention_pooling = pre_logits = projection = None
    head: Any = None
    biases, fc_norm = (), False

    def add_embedding(self, hidden_dim: int, dropout_rate: float, **options: Any) -> None:
        """Sets the `embedding` of the tokens on `token_grid`; `options` as for `Embedding`."""
        policy, grid = self.dtype_policy, self.token_grid
        self.embedding = Embedding(
            grid, hidden_dim, dropout_rate, dtype=policy, name="embedding", **options
        )

    def add_blocks(self, epsilon: float, stochastic_depth: float = 0.0, **options: Any) -> None:
        """Sets the `blocks`, of the sizes in the configuration, and the `norm` after them.

        The rate of stochastic depth rises linearly from 0 in the first block. `options` are further
        arguments of each `Block`.
        """
        config, policy = self._config, self.dtype_policy
        removed, blocks = match_sites(self.without_skips, self.skip_sites), []
        for depth in range(config["num_layers"]):
            name = f"block{depth:02d}"
            block = Block(
                config["num_heads"],
                config["hidden_dim"],
                config["mlp_dim"],
                skips=[site for site in Block.sites if f"{name}/{site}" not in removed],
                dropout_rate=config["dropout_rate"],
                activation=config["activation"],
                epsilon=epsilon,
                stochastic_depth=stochastic_depth * depth / max(config["num_layers"] - 1, 1),
                dtype=policy,
                name=name,
                **options,
            )
            blocks.append(block)
        self.blocks = blocks
        name = "fc_norm" if self.fc_norm else "norm"
        self.norm = LayerNormalization(epsilon=epsilon, dtype=policy, name=name)

    @property
    def skip_sites(self) -> list[str]:
        """Names of the sublayers, in depth order, whose skip connections may be removed."""
        names = [f"block{depth:02d}" for depth in range(self._config["num_layers"])]
        return [f"{name}/{site}" for name in names for site in Block.sites]

    @property
    def head_layers(self) -> tuple[keras.layers.Layer, ...]:
        """The layers after the pooled token."""
        return tuple(x for x in (self.pre_logits, self.projection, self.head) if x is not None)

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.embedding.build(input_shape)
        width = self.embedding.hidden_dim
        tokens = (self.pre_norm, *self.blocks, *self.biases, self.rotation, self.norm)
        for layer in (*tokens, self.attention_pooling):
            if layer is not None:
                layer.build((None, self.token_grid.num_tokens, width))
        for layer in self.head_layers:
            layer.build((None, width))
            if layer is self.pre_logits or layer is self.projection:
                width = layer.units
        self.built = True

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of all taps, in depth order."""
        return (*self.first_taps, *inner_taps(self.blocks), *self.pool_taps, *self.last_taps)

    @property
    def first_taps(self) -> tuple[str, ...]:
        """Names of the taps before those of the blocks."""
        return ("embedding", "pre_norm") if self.pre_norm else ("embedding",)

    @property
    def pool_taps(self) -> tuple[str, ...]:
        """Names of the taps of `pool`."""
        if self.attention_pooling:
            return ("norm", *inner_taps([self.attention_pooling]), "pooled")
        return ("pooled", "fc_norm") if self.fc_norm else ("norm", "pooled")

    @property
    def last_taps(self) -> tuple[str, ...]:
        """Names of the taps after those of `pool`."""
        layers = {"pre_logits": self.pre_logits, "projected": self.projection, "logits": self.head}
        return tuple(name for name, layer in layers.items() if layer is not None)

    def intermediates(
        self, images: Tensor, training: bool | None = None, corrupt: Callable | None = None
    ) -> dict[str, Tensor]:
        """Every tap of the forward pass: dict from tap name to tensor, in depth order.

        With `corrupt`, as for `Embedding`, the taps are those of corrupted patches.
        """
        taps = {}
        x = self.run_stem(self.check_images(images), taps, training)
        taps["embedding"] = x = self.embedding(x, training=training, corrupt=corrupt)
        if self.pre_norm:
            taps["pre_norm"] = x = self.pre_norm(x)
        x = self.pool(self.run_blocks(x, taps, training), taps)
        if self.pre_logits:
            taps["pre_logits"] = x = self.pre_logits(x)
        if self.projection:
            taps["projected"] = x = self.projection(x)
        if self.head:
            taps["logits"] = self.run_heads(x, taps)
        return taps

    def run_stem(self, images: Tensor, taps: dict[str, Tensor], training: bool | None) -> Tensor:
        """The map that is cut into patches: the images themselves."""
        return images

    def run_blocks(self, x: Tensor, taps: dict, training: bool | None = None) -> Tensor:
        """The tokens after all blocks, whose taps are added to `taps`."""
        biases = [bias(x) for bias in self.biases] or [None]
        rotation = self.rotation(x) if self.rotation else None
        for i, block in enumerate(self.blocks):
            bias = biases[i % len(biases)]
            x = run_inner(block, x, taps, bias, rotation, training=training)["mlp/sum"]
        return x

    def pool(self, x: Tensor, taps: dict) -> Tensor:
        """The pooled token, normalized; its taps are added to `taps`."""
        grid = self.token_grid
        if self.fc_norm:
            taps["pooled"] = x = ops.mean(grid.spatial(x), axis=1)
            taps["fc_norm"] = self.norm(x)
            return taps["fc_norm"]
        taps["norm"] = x = self.norm(x)
        if self.attention_pooling:
            x = run_inner(self.attention_pooling, x, taps)["pooled"]
        else:
            x = grid.first(x) if self.pooling == "cls" else ops.mean(grid.spatial(x), axis=1)
        taps["pooled"] = x
        return x

    def run_heads(self, x: Tensor, taps: dict[str, Tensor]) -> Tensor:
        """The logits for a pooled token, whose taps are added to `taps`."""
        return self.head(x)

    @property
    def patch_kernel(self) -> np.ndarray:
        return ops.convert_to_numpy(self.embedding.patches.kernel)

    @property
    def position_embedding(self) -> np.ndarray | None:
        if self.embedding.positions is None:
            return None
        return ops.convert_to_numpy(self.embedding.all_positions())[0]


@register
class Block(ConfiguredLayer):
    """A pre-norm Transformer block: self-attention, then an MLP, each with a skip to remove.

    It is called on tokens of shape (example, token, channel). Optionally, it takes a bias of shape
    (head, query, key) to add to the attention scores, and the factors of a `Rotation` of queries
    and keys. It returns a dict of every intermediate, named `"attention/..."` and `"mlp/..."`; the
    next block takes `"mlp/sum"`. Arguments are as for `ViT`, with three exceptions: `skips` lists
    the sites that keep their skip, `stochastic_depth` is the rate of this block, and `layer_scale`
    follows Touvron et al. 2021 (CaiT, equation 4).
    """

    sites = ("attention", "mlp")

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        skips: Sequence[str] = sites,
        dropout_rate: float = 0.0,
        activation: str = "gelu",
        epsilon: float = 1e-6,
        key_bias: bool = True,
        layer_scale: float | None = None,
        stochastic_depth: float = 0.0,
        **kwargs: Any,
    ):
        config = {
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "mlp_dim": mlp_dim,
            "skips": tuple(skips),
            "dropout_rate": dropout_rate,
            "activation": activation,
            "epsilon": epsilon,
            "key_bias": key_bias,
            "layer_scale": layer_scale,
            "stochastic_depth": stochastic_depth,
        }
        super().__init__(config, **kwargs)
        if hidden_dim % num_heads:
            raise ValueError(
                "Expected hidden_dim to be a multiple of num_heads. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
            )
        self.num_heads, self.hidden_dim, self.mlp_dim = num_heads, hidden_dim, mlp_dim
        self.skips, self.layer_scale = tuple(skips), layer_scale
        lookup("activation", activation, ACTIVATIONS | GATES)
        self.gate, gelu = GATES.get(activation), ACTIVATIONS.get(activation)
        norm = partial(self.make, LayerNormalization, epsilon=epsilon)
        dense = partial(self.make, TokenDense)
        self.attention_norm = norm(name="attention_norm")
        self.query = dense(hidden_dim, name="query")
        self.key = dense(hidden_dim, name="key", use_bias=key_bias)
        self.value = dense(hidden_dim, name="value")
        self.out = dense(hidden_dim, name="out")
        self.mlp_norm = norm(name="mlp_norm")
        # As in the code of the ViT paper, where no bias of an MLP starts at 0.
        small = keras.initializers.RandomNormal(stddev=1e-6)
        units = 2 * mlp_dim if self.gate else mlp_dim
        self.expand = dense(units, name="expand", activation=gelu, bias_initializer=small)
        self.contract = dense(hidden_dim, name="contract", bias_initializer=small.clone())
        self.dropout = self.make(layers.Dropout, dropout_rate, name="dropout")
        self.drop_branch = None
        if stochastic_depth:
            self.drop_branch = self.make(
                layers.Dropout, stochastic_depth, noise_shape=(None, 1, 1), name="drop_branch"
            )

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the intermediates, in the order in which they are computed."""
        sites = {"attention": ("norm", "weights", "heads"), "mlp": ("norm", "hidden")}
        return site_taps(sites, self.skips)

    def build(self, input_shape: Sequence[int | None]) -> None:
        inputs = (self.attention_norm, self.query, self.key, self.value, self.out)
        for layer in (*inputs, self.mlp_norm, self.expand):
            layer.build(input_shape)
        self.contract.build((*input_shape[:-1], self.mlp_dim))
        self.attention_scale = self._add_scale("attention_scale")
        self.mlp_scale = self._add_scale("mlp_scale")

    def _add_scale(self, name: str) -> keras.Variable | None:
        if self.layer_scale is None:
            return None
        first = keras.initializers.Constant(self.layer_scale)
        return self.add_weight(shape=(self.hidden_dim,), initializer=first, name=name)

    def call(
        self,
        tokens: Tensor,
        bias: Tensor | None = None,
        rotation: Tensor | None = None,
        training: bool | None = None,
    ) -> dict[str, Tensor]:
        taps = Taps(self.name)
        x = taps("attention/norm", self.attention_norm(tokens))
        projected = (self.query(x), self.key(x), self.value(x))
        query, key, value = (split_heads(x, self.num_heads) for x in projected)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        scores = ops.matmul(query * query.shape[-1] ** -0.5, ops.swapaxes(key, 2, 3))
        scores = ops.cast(scores, "float32")
        if bias is not None:
            scores = scores + ops.cast(bias, "float32")
        weights = taps("attention/weights", ops.softmax(scores))
        heads = ops.matmul(ops.cast(weights, value.dtype), value)
        heads = taps("attention/heads", ops.swapaxes(heads, 1, 2))
        x = self.out(ops.reshape(heads, (-1, *tokens.shape[1:])))
        branch = self._end_branch(x, self.attention_scale, training)
        x = join_paths("attention", self.skips, tokens, branch, taps)

        y = taps("mlp/norm", self.mlp_norm(x))
        y = self.expand(y)
        y = taps("mlp/hidden", self.gate(y) if self.gate else y)
        y = self.dropout(y, training=training)
        y = self.contract(y)
        branch = self._end_branch(y, self.mlp_scale, training)
        join_paths("mlp", self.skips, x, branch, taps)
        return taps.values

    def _end_branch(self, x: Tensor, scale: Tensor | None, training: bool | None) -> Tensor:
        x = self.dropout(x, training=training)
        x = x if scale is None else x * scale
        return self.drop_branch(x, training=training) if self.drop_branch else x


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(example, token, channel) to (example, head, token, channel of the head)."""
    x = ops.reshape(x, (-1, x.shape[1], num_heads, x.shape[-1] // num_heads))
    return ops.swapaxes(x, 1, 2)


def join_paths(site: str, skips: tuple, skip: Tensor, branch: Tensor, taps: Taps) -> Tensor:
    """Records skip, where it is kept, branch and sum of a site in `taps`; returns the sum."""
    if site in skips:
        skip = taps(f"{site}/skip", skip)
    branch = taps(f"{site}/branch", branch)
    return taps(f"{site}/sum", skip + branch if site in skips else branch)


@register
class Embedding(ConfiguredLayer):
    """Patches as tokens, prefix tokens in front, and positions added.

    `use_positions` is `"learned"` (or True), `"sincos"` or False; the first `num_prefix_positions`
    prefix tokens have one, all by default. `patch_size` is in pixels of the map that is embedded,
    by default the stride of the grid, the map being the image. Called with `corrupt`, a function of
    the embedded patches, of shape (example, patch, channel), it goes on with what that returns, of
    the same shape.
    """

    def __init__(
        self,
        grid: TokenGrid | dict,
        hidden_dim: int,
        dropout_rate: float = 0.0,
        patch_size: int | None = None,
        use_bias: bool = True,
        use_positions: bool | str = True,
        num_prefix_positions: int | None = None,
        **kwargs: Any,
    ):
        grid = as_grid(grid)
        patch_size = patch_size or grid.stride
        if num_prefix_positions is None:
            num_prefix_positions = grid.prefix
        config = {
            "grid": asdict(grid),
            "hidden_dim": hidden_dim,
            "dropout_rate": dropout_rate,
            "patch_size": patch_size,
            "use_bias": use_bias,
            "use_positions": use_positions,
            "num_prefix_positions": num_prefix_positions,
        }
        super().__init__(config, **kwargs)
        self.grid, self.hidden_dim, self.patch_size = grid, hidden_dim, patch_size
        self.use_positions, self.num_prefix_positions = use_positions, num_prefix_positions
        self.patches = self.make(
            PatchDense, hidden_dim, patch_size, use_bias=use_bias, name="patches"
        )
        self.dropout = self.make(layers.Dropout, dropout_rate, name="dropout")

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.patches.build(input_shape)
        self.prefix = self.positions = None
        if self.grid.prefix:
            shape = (1, self.grid.prefix, self.hidden_dim)
            self.prefix = self.add_weight(shape=shape, initializer="zeros", name="prefix")
        if self.use_positions:
            kind = "learned" if self.use_positions is True else str(self.use_positions)
            self.positions = self.add_weight(
                shape=(1, self.position_grid.num_tokens, self.hidden_dim),
                initializer=lookup("position_type", kind, KINDS)(
                    self.position_grid, self.hidden_dim
                ),
                trainable=kind == "learned",
                name="positions",
            )

    @property
    def position_grid(self) -> TokenGrid:
        """The `TokenGrid` of the tokens that have a position of their own."""
        return replace(self.grid, prefix=self.num_prefix_positions)

    def all_positions(self) -> Tensor:
        """What is added to each token, zeros where it has no position: (1, token, channel)."""
        if self.num_prefix_positions == self.grid.prefix:
            return self.positions
        positions = ops.convert_to_tensor(self.positions)
        count = self.grid.prefix - self.num_prefix_positions
        none = ops.zeros((1, count, self.hidden_dim), positions.dtype)
        rest = self.position_grid.spatial(positions)
        return ops.concatenate([positions[:, : self.num_prefix_positions], none, rest], axis=1)

    def call(
        self, images: Tensor, training: bool | None = None, corrupt: Callable | None = None
    ) -> Tensor:
        tokens = ops.reshape(self.patches(images), (-1, self.grid.num_spatial, self.hidden_dim))
        if corrupt is not None:
            tokens = corrupt(tokens)
        if self.prefix is not None:
            shape = (ops.shape(tokens)[0], self.grid.prefix, self.hidden_dim)
            prefix = ops.broadcast_to(self.prefix, shape)
            tokens = ops.concatenate([prefix, tokens], axis=1)
        if self.positions is not None:
            tokens = tokens + self.all_positions()
        return self.dropout(tokens, training=training)


@register
class PatchDense(layers.Conv2D):
    """A convolution of patches that do not overlap, as one product, with a faster gradient."""

    def __init__(self, filters: int, kernel_size: int | Sequence[int], **kwargs: Any):
        fixed = {"data_format": "channels_last", "strides": kernel_size}
        # As in the papers' code, where the fan in is that of a whole patch.
        fixed |= {"kernel_initializer": "lecun_normal"}
        super().__init__(filters, kernel_size, **fixed | kwargs)

    def call(self, images: Tensor) -> Tensor:
        rows, columns = self.kernel_size
        height, width, channels = images.shape[1:]
        grid = (height // rows, width // columns)
        x = ops.reshape(images, (-1, grid[0], rows, grid[1], columns, channels))
        x = ops.reshape(ops.swapaxes(x, 2, 3), (-1, rows * columns * channels))
        x = ops.matmul(x, ops.reshape(self.kernel, (-1, self.filters)))
        if self.use_bias:
            x = ops.add(x, self.bias)
        return ops.reshape(x, (-1, *grid, self.filters))


# Initializers of position embeddings, by their kind.
KINDS = {
    "learned": lambda *_: keras.initializers.RandomNormal(stddev=0.02),
    "sincos": lambda *shape: lambda *_, **__: sine_cosine_positions(*shape)[None],
}


TEMPERATURE = 10_000


def sine_cosine_positions(grid: TokenGrid, hidden_dim: int) -> np.ndarray:
    """Fixed positions of a grid (Beyer et al. 2022; Chen et al. 2021, MoCo v3): (token, channel).

    With `w_k = 10000 ** (-k / (D / 4 - 1))` for `k` in [0, D / 4), the token in row `y` and column
    `x` has `[sin(w x), cos(w x), sin(w y), cos(w y)]`; prefix tokens have zeros.
    """
    if hidden_dim % 4 or hidden_dim < 8:
        raise ValueError(
            f"Expected hidden_dim to be a multiple of 4 and at least 8, for sine-cosine "
            f"positions. Received: hidden_dim={hidden_dim}"
        )
    waves = TEMPERATURE ** -np.linspace(0, 1, hidden_dim // 4)
    rows, columns = np.mgrid[: grid.rows, : grid.columns].reshape(2, -1, 1) * waves
    spatial = [np.sin(columns), np.cos(columns), np.sin(rows), np.cos(rows)]
    spatial = np.concatenate(spatial, axis=1)
    return np.concatenate([np.zeros((grid.prefix, hidden_dim)), spatial]).astype("float32")


ROTARY_BASE = 100.0  # of DINOv3


@register
class Rotation(ConfiguredLayer):
    """Cosines and sines of `rotary_angles`, (2, token, channel of a head), for `rotate`."""

    def __init__(self, grid: TokenGrid | dict, head_dim: int, **kwargs: Any):
        grid = as_grid(grid)
        super().__init__({"grid": asdict(grid), "head_dim": head_dim}, **kwargs)
        angles = np.tile(rotary_angles(grid, head_dim), 2)
        self.factors = np.stack([np.cos(angles), np.sin(angles)]).astype("float32")

    def call(self, tokens: Tensor) -> Tensor:
        # What the tokens hold does not matter: they tie the angles to the graph of a submodel.
        return ops.convert_to_tensor(self.factors, tokens.dtype)


def rotary_angles(grid: TokenGrid, head_dim: int) -> np.ndarray:
    """Angles of rotary positions on two axes: float64 of shape (token, D / 2), in radians.

    The angles of a token at `(y, x)` are `w_k y`, then `w_k x`, for `k` in [0, D / 4), with
    `w_k = 2 pi 100 ** (-4 k / D)` (Siméoni et al. 2025, DINOv3, section 3.2). The position is that
    of the token's centre, -1 and 1 being the edges of the image on either axis; prefix tokens have
    zeros.
    """
    if head_dim % 4:
        raise ValueError(
            "Expected hidden_dim / num_heads to be a multiple of 4, for rotary positions. "
            f"Received: {head_dim} channels of a head"
        )
    positions = np.indices((grid.rows, grid.columns)).reshape(2, -1, 1)
    positions = 2 * (positions + 0.5) / np.array([grid.rows, grid.columns]).reshape(2, 1, 1) - 1
    waves = 2 * np.pi * ROTARY_BASE ** (-np.arange(head_dim // 4) * 4 / head_dim)
    angles = np.concatenate(list(positions * waves), axis=1)
    return np.concatenate([np.zeros((grid.prefix, head_dim // 2)), angles])


def rotate(x: Tensor, factors: Tensor) -> Tensor:
    """Queries or keys of shape (example, head, token, channel), each pair of channels rotated.

    By the `factors` of a `Rotation`, the pair of channels `k` and `k + D / 2` becomes
    `(a cos - b sin, b cos + a sin)` (Su et al. 2021, RoFormer, equation 34).
    """
    factors = ops.cast(factors, x.dtype)
    cosines, sines = factors[0], factors[1]
    first, second = ops.split(x, 2, axis=-1)
    return x * cosines + ops.concatenate([-second, first], axis=-1) * sines


@register
class TokenDense(layers.Dense):
    """A Dense layer of flat (example * token, channel) matrices, which TensorFlow fuses."""

    # Blocks hold such layers, and only the file of a whole model says that they are quantized.
    saves_quantization_with_model = True

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        flat = ops.reshape(tokens, (-1, tokens.shape[-1]))
        return ops.reshape(super().call(flat), (-1, *tokens.shape[1:-1], self.units))

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Any = None
    ) -> None:
        # Keras leaves subclasses alone, whose call may differ; the product is the same here.
        super().quantize(mode, type_check=False, config=config)


@register
class LayerNormalization(layers.LayerNormalization):
    """Layer normalisation (Ba et al. 2016, equation 4) of the last axis, in float32 at least.

    The gradient is the closed form, which passes over the tokens about half as often as that of
    the single operations. A file names weights by the class, so this one is called as Keras'.
    """

    def call(self, tokens: Tensor) -> Tensor:
        dtype = keras.backend.result_type(tokens.dtype, "float32")
        numbers = (ops.cast(x, dtype) for x in (tokens, self.gamma, self.beta))
        return ops.cast(_layer_norm(self.epsilon)(*numbers), self.compute_dtype)


@cache
def _layer_norm(epsilon: float) -> Callable:
    """`gamma n + beta` of `n = (x - mean(x)) r`, `r = 1 / sqrt(var(x) + epsilon)`.

    With `d = gamma dy`, the gradient with respect to `x` is `r (d - mean(d) - n mean(d n))`.
    """

    def mean(x: Tensor) -> Tensor:
        return ops.mean(x, axis=-1, keepdims=True)

    @custom_gradient
    def normalize(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Callable]:
        centred = x - mean(x)
        over = ops.rsqrt(mean(ops.square(centred)) + epsilon)
        normal = centred * over

        def gradient(*args: Any, upstream: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
            dy = args[0] if upstream is None else upstream
            axes = tuple(range(len(dy.shape) - 1))
            by_gamma = ops.sum(dy * normal, axis=axes)
            d = dy * gamma
            by_x = (d - mean(d) - normal * mean(d * normal)) * over
            return by_x, by_gamma, ops.sum(dy, axis=axes)

        return normal * gamma + beta, gradient

    return normalize


@register
def gelu(x: Tensor) -> Tensor:
    """`x / 2 (1 + erf(x / sqrt(2)))`, the exact form, with its gradient in closed form."""
    if keras.backend.standardize_dtype(x.dtype) not in ("float32", "float64"):
        return ops.gelu(x, approximate=False)
    return _gelu_with_gradient(ops.convert_to_tensor(x))


@compiled_elementwise
def _gelu_value(x: Tensor) -> Tensor:
    return ops.gelu(x, approximate=False)


@compiled_elementwise
def _gelu_gradient(x: Tensor, dy: Tensor) -> Tensor:
    """`dy (Phi(x) + x phi(x))`, by the normal distribution's cumulative function and density."""
    cumulative = 0.5 * (1.0 + ops.erf(x * 0.5**0.5))
    return dy * (cumulative + x * ((2 * np.pi) ** -0.5 * ops.exp(-0.5 * x * x)))


@custom_gradient
def _gelu_with_gradient(x: Tensor) -> tuple[Tensor, Callable]:
    def gradient(*args: Any, upstream: Tensor | None = None) -> Tensor:
        return _gelu_gradient(x, args[0] if upstream is None else upstream)

    return _gelu_value(x), gradient


@register
def gelu_tanh(x: Tensor) -> Tensor:
    """`x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, the form of flax, so of Google's ViT."""
    return ops.gelu(x, approximate=True)


@register
def quick_gelu(x: Tensor) -> Tensor:
    """`x sigmoid(1.702 x)`, the form of OpenAI's CLIP."""
    return x * ops.sigmoid(1.702 * x)


def swiglu(x: Tensor) -> Tensor:
    """`silu(a) b` of the halves `a` and `b` of the channels (Shazeer 2020, 2002.05202, eq. 6)."""
    gate, value = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * value


POOLINGS = dict.fromkeys(("cls", "gap"))  # what the head reads: the class token, or a mean
ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu}
# Gates take twice as many channels as they return.
GATES = {"swiglu": swiglu}


def encoder_size(*sizes: int) -> dict:
    """The arguments of a model that are the size of its encoder."""
    return dict(zip(("num_layers", "num_heads", "hidden_dim", "mlp_dim"), sizes, strict=True))


def variants(sizes: dict, patches: tuple, prefix: str = "", **fields: Any) -> dict:
    """Arguments by name, such as `"B/16"`, of each size with each patch and the same fields."""
    return {
        f"{prefix}{size}/{patch}": {**arguments, **fields, "patch_size": patch}
        for size, arguments in sizes.items()
        for patch in patches
    }
