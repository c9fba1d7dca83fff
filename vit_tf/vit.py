"""Vision Transformer (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929)."""

import keras
from keras import layers, ops

from vit_tf.names import choose, match_sites
from vit_tf.tokens import TokenGrid

register = keras.saving.register_keras_serializable("vit_tf")


@register
class TokenDense(layers.Dense):
    """A Dense layer that multiplies flat `(example * token, channel)` matrices.

    The result is that of `keras.layers.Dense`. TensorFlow fuses a product with its bias and its
    activation only when all are two-dimensional.
    """

    def call(self, tokens, training=None):
        flat = ops.reshape(tokens, (-1, tokens.shape[-1]))
        return ops.reshape(super().call(flat), (-1, *tokens.shape[1:-1], self.units))


@register
class Embedding(layers.Layer):
    """Patches as tokens, a CLS token in front where asked for, and learned positions added.

    Args:
        grid: `TokenGrid` of the tokens, or its fields as a dict.
        hidden_dim: number of channels of a token.
        dropout_rate: share of channels dropped after the positions are added.
    """

    def __init__(self, grid, hidden_dim, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.grid = TokenGrid(**grid) if isinstance(grid, dict) else grid
        self.hidden_dim, self.dropout_rate = hidden_dim, dropout_rate
        stride = self.grid.stride
        self.patches = layers.Conv2D(
            hidden_dim, stride, strides=stride, dtype=self.dtype_policy, name="patches"
        )
        self.dropout = layers.Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape):
        self.patches.build(input_shape)
        self.prefix = None
        if self.grid.prefix:
            shape = (1, self.grid.prefix, self.hidden_dim)
            self.prefix = self.add_weight(shape=shape, initializer="zeros", name="prefix")
        self.positions = self.add_weight(
            shape=(1, self.grid.num_tokens, self.hidden_dim),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="positions",
        )

    def call(self, images, training=None):
        tokens = ops.reshape(self.patches(images), (-1, self.grid.num_spatial, self.hidden_dim))
        if self.prefix is not None:
            prefix = ops.broadcast_to(
                self.prefix, (ops.shape(tokens)[0], self.grid.prefix, self.hidden_dim)
            )
            tokens = ops.concatenate([prefix, tokens], axis=1)
        return self.dropout(tokens + self.positions, training=training)

    def get_config(self):
        config = {
            "grid": vars(self.grid),
            "hidden_dim": self.hidden_dim,
            "dropout_rate": self.dropout_rate,
        }
        return super().get_config() | config


def join_paths(site, skips, skip, branch, taps):
    """Records skip, branch and sum of a site in `taps`; returns the sum.

    The sum is the branch alone where the site is not among the `skips` that are kept.
    """
    if site in skips:
        taps[f"{site}/skip"] = skip
    taps[f"{site}/branch"] = branch
    taps[f"{site}/sum"] = total = skip + branch if site in skips else branch
    return total


@register
class Block(layers.Layer):
    """A pre-norm Transformer block: self-attention, then an MLP, each with a skip to remove.

    Called on tokens of shape (example, token, channel); returns a dict of every intermediate,
    named `"attention/..."` and `"mlp/..."`, of which `"mlp/sum"` goes on to the next block.

    Args:
        num_heads: number of attention heads.
        hidden_dim: number of channels of a token; a multiple of `num_heads`.
        mlp_dim: number of hidden units of the MLP.
        skips: the sites, of `("attention", "mlp")`, that keep their skip.
        dropout_rate: share of channels dropped after each projection of a branch.
    """

    sites = ("attention", "mlp")

    def __init__(self, num_heads, hidden_dim, mlp_dim, skips=sites, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.hidden_dim, self.mlp_dim = num_heads, hidden_dim, mlp_dim
        self.skips, self.dropout_rate = tuple(skips), dropout_rate

        def dense(units, name, activation=None):
            return TokenDense(units, activation=activation, dtype=self.dtype_policy, name=name)

        def norm(name):
            return layers.LayerNormalization(epsilon=1e-6, dtype=self.dtype_policy, name=name)

        self.attention_norm = norm("attention_norm")
        self.query = dense(hidden_dim, "query")
        self.key = dense(hidden_dim, "key")
        self.value = dense(hidden_dim, "value")
        self.out = dense(hidden_dim, "out")
        self.mlp_norm = norm("mlp_norm")
        self.expand = dense(mlp_dim, "expand", activation="gelu")
        self.contract = dense(hidden_dim, "contract")
        self.dropout = layers.Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")

    @property
    def taps(self):
        """Names of the intermediates, in the order in which they are computed."""
        whats = {
            "attention": ("norm", "weights", "heads", "skip", "branch", "sum"),
            "mlp": ("norm", "hidden", "skip", "branch", "sum"),
        }
        return tuple(
            f"{site}/{what}"
            for site in self.sites
            for what in whats[site]
            if what != "skip" or site in self.skips
        )

    def build(self, input_shape):
        for layer in (self.attention_norm, self.query, self.key, self.value, self.out):
            layer.build(input_shape)
        for layer in (self.mlp_norm, self.expand):
            layer.build(input_shape)
        self.contract.build((*input_shape[:-1], self.mlp_dim))

    def call(self, tokens, training=None):
        taps = {}
        taps["attention/norm"] = x = self.attention_norm(tokens)
        query, key, value = map(self._split, (self.query(x), self.key(x), self.value(x)))
        scores = ops.matmul(query * query.shape[-1] ** -0.5, ops.swapaxes(key, 2, 3))
        taps["attention/weights"] = weights = ops.softmax(ops.cast(scores, "float32"))
        heads = ops.matmul(ops.cast(weights, value.dtype), value)
        taps["attention/heads"] = heads = ops.swapaxes(heads, 1, 2)
        x = self.out(ops.reshape(heads, (-1, *tokens.shape[1:])))
        branch = self.dropout(x, training=training)
        x = join_paths("attention", self.skips, tokens, branch, taps)

        taps["mlp/norm"] = y = self.mlp_norm(x)
        taps["mlp/hidden"] = y = self.expand(y)
        y = self.contract(self.dropout(y, training=training))
        branch = self.dropout(y, training=training)
        join_paths("mlp", self.skips, x, branch, taps)
        return taps

    def _split(self, x):
        """(example, token, channel) to (example, head, token, channel of the head)."""
        x = ops.reshape(x, (-1, x.shape[1], self.num_heads, x.shape[-1] // self.num_heads))
        return ops.swapaxes(x, 1, 2)

    def get_config(self):
        names = ("num_heads", "hidden_dim", "mlp_dim", "skips", "dropout_rate")
        return super().get_config() | {name: getattr(self, name) for name in names}


@register
class ViT(keras.Model):
    """A Vision Transformer whose every intermediate is a tap.

    Called on images of shape (example, height, width, channel), conventionally in [-1, 1], it
    returns logits of shape (example, num_classes).

    Args:
        image_shape: (height, width, channels) in pixels; a multiple of `patch_size`.
        patch_size: side of a patch, in pixels.
        num_layers, num_heads, hidden_dim, mlp_dim: the size of the encoder.
        num_classes: number of logits. The head starts at zero.
        pooling: `"cls"`, the head reads a class token, or `"gap"`, the mean of all tokens.
        without_skips: sites whose skip is removed (Raghu et al. 2021, figure 8), such as
            `"block06"` or `"block07/mlp"`.
        dropout_rate: share of channels dropped after the embedding and each projection.

    Raises:
        ValueError: for sizes that do not fit each other or an unknown name.
    """

    def __init__(
        self,
        image_shape=(224, 224, 3),
        patch_size=16,
        num_layers=12,
        num_heads=12,
        hidden_dim=768,
        mlp_dim=3072,
        num_classes=1000,
        pooling="cls",
        without_skips=(),
        dropout_rate=0.0,
        **kwargs,
    ):
        super().__init__(**{"name": "vit"} | kwargs)
        self._config = {
            "image_shape": tuple(image_shape),
            "patch_size": patch_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "mlp_dim": mlp_dim,
            "num_classes": num_classes,
            "pooling": pooling,
            "without_skips": tuple(without_skips),
            "dropout_rate": dropout_rate,
        }
        self.image_shape, self.num_classes, self.pooling = image_shape, num_classes, pooling
        if pooling not in ("cls", "gap"):
            raise ValueError(
                f"Expected pooling to be 'cls' or 'gap'. Received: pooling={pooling!r}"
            )
        prefix = 1 if pooling == "cls" else 0
        self.token_grid = TokenGrid.of_patches(image_shape, patch_size, prefix)
        if hidden_dim % num_heads:
            raise ValueError(
                "Expected hidden_dim to be a multiple of num_heads. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
            )
        policy = self.dtype_policy
        names = [f"block{i:02d}" for i in range(num_layers)]
        removed = match_sites(without_skips, [f"{n}/{s}" for n in names for s in Block.sites])
        self.embedding = Embedding(
            self.token_grid, hidden_dim, dropout_rate, dtype=policy, name="embedding"
        )
        self.blocks = [
            Block(
                num_heads,
                hidden_dim,
                mlp_dim,
                [site for site in Block.sites if f"{name}/{site}" not in removed],
                dropout_rate,
                dtype=policy,
                name=name,
            )
            for name in names
        ]
        self.norm = layers.LayerNormalization(epsilon=1e-6, dtype=policy, name="norm")
        self.head = layers.Dense(
            num_classes, kernel_initializer="zeros", dtype="float32", name="head"
        )
        self.build((None, *image_shape))

    @classmethod
    def from_variant(cls, variant, **kwargs):
        """A ViT of a published size, such as `"B/16"`; keyword arguments as for `ViT`."""
        return cls(**choose("variant", variant, VARIANTS) | kwargs)

    @property
    def taps(self):
        """Names of all taps, in depth order."""
        blocks = [f"{block.name}/{tap}" for block in self.blocks for tap in block.taps]
        return ("embedding", *blocks, "norm", "pooled", "logits")

    def intermediates(self, images, training=None):
        """Every tap of the forward pass: dict from tap name to tensor, in depth order."""
        taps = {}
        taps["embedding"] = x = self.embedding(images, training=training)
        for block in self.blocks:
            inside = block(x, training=training)
            taps |= {f"{block.name}/{tap}": inside[tap] for tap in block.taps}
            x = inside["mlp/sum"]
        taps["norm"] = x = self.norm(x)
        grid = self.token_grid
        taps["pooled"] = x = grid.first(x) if self.pooling == "cls" else ops.mean(x, axis=1)
        taps["logits"] = self.head(x)
        return taps

    def call(self, images, training=None):
        return self.intermediates(images, training=training)["logits"]

    def build(self, input_shape):
        self.embedding.build(input_shape)
        width = self._config["hidden_dim"]
        for layer in (*self.blocks, self.norm):
            layer.build((None, self.token_grid.num_tokens, width))
        self.head.build((None, width))
        self.built = True

    def get_config(self):
        return super().get_config() | self._config


# Ti and S: Touvron et al. 2021 (DeiT), table 1. B, L and H: Dosovitskiy et al. 2020, table 1.
_SIZES = {
    "Ti": {"num_layers": 12, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 768},
    "S": {"num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536},
    "B": {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072},
    "L": {"num_layers": 24, "num_heads": 16, "hidden_dim": 1024, "mlp_dim": 4096},
    "H": {"num_layers": 32, "num_heads": 16, "hidden_dim": 1280, "mlp_dim": 5120},
}
VARIANTS = {
    f"{size}/{patch}": {**fields, "patch_size": patch}
    for size, fields in _SIZES.items()
    for patch in (8, 14, 16, 32)
}
