"""The image encoder of SigLIP (Zhai et al. 2023, 2303.15343) and SigLIP 2 (2502.14786)."""

import keras
from keras import layers, ops

from vit_tf.edits.recording import Taps
from vit_tf.image_shapes import as_image_shape
from vit_tf.models.activations import ACTIVATIONS
from vit_tf.models.embedding import Embedding
from vit_tf.models.towers.tower import ImageTower
from vit_tf.models.transformer import LayerNormalization, TokenDense, block_sites, make_blocks
from vit_tf.names import as_names, choose, match_sites
from vit_tf.tokens import TokenGrid

register = keras.saving.register_keras_serializable("vit_tf")

_LATER = {"text_head": False}


@register
class AttentionPooling(layers.Layer):
    """Attention of a learned query over all tokens, and an MLP (Zhai et al. 2022, 2106.04560).

    Called on tokens of shape (example, token, channel), it returns a dict of `"attention"`, the
    shares of each token (example, head, token), `"attended"`, what they are summed to, projected,
    `"hidden"` of the MLP, and `"pooled"`, the sum of `"attended"` and the MLP's output, in float32:
    the last three of shape (example, channel).

    Args:
        num_heads, hidden_dim, mlp_dim, activation, epsilon: as for `Block`.
    """

    taps = ("attention", "attended", "hidden")

    def __init__(self, num_heads, hidden_dim, mlp_dim, activation, epsilon, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.hidden_dim, self.mlp_dim = num_heads, hidden_dim, mlp_dim
        self.activation, self.epsilon = activation, epsilon
        gelu = choose("activation", activation, ACTIVATIONS)

        def dense(units, name, **options):
            return TokenDense(units, dtype=self.dtype_policy, name=name, **options)

        self.query, self.key = dense(hidden_dim, "query"), dense(hidden_dim, "key")
        self.value, self.out = dense(hidden_dim, "value"), dense(hidden_dim, "out")
        self.norm = LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="norm")
        self.expand = dense(mlp_dim, "expand", activation=gelu)
        self.contract = dense(hidden_dim, "contract")

    def build(self, input_shape):
        shape = (1, 1, self.hidden_dim)
        self.probe = self.add_weight(shape=shape, initializer="glorot_uniform", name="probe")
        for layer in (self.query, self.key, self.value, self.out, self.norm, self.expand):
            layer.build(shape)
        self.contract.build((1, 1, self.mlp_dim))

    def call(self, tokens):
        taps = Taps("pooling")
        probe = ops.cast(self.probe, tokens.dtype)
        query, key, value = map(
            self._split, (self.query(probe), self.key(tokens), self.value(tokens))
        )
        scores = ops.matmul(query * query.shape[-1] ** -0.5, ops.swapaxes(key, 2, 3))
        weights = ops.softmax(ops.cast(scores, "float32"))
        weights = taps("attention", weights[:, :, 0])[:, :, None]
        heads = ops.matmul(ops.cast(weights, value.dtype), value)
        x = self.out(ops.reshape(ops.swapaxes(heads, 1, 2), (-1, 1, self.hidden_dim)))
        x = taps("attended", x[:, 0])[:, None]
        y = taps("hidden", self.expand(self.norm(x))[:, 0])[:, None]
        return taps.values | {"pooled": ops.cast((x + self.contract(y))[:, 0], "float32")}

    def _split(self, x):
        """(example, token, channel) to (example, head, token, channel of the head)."""
        x = ops.reshape(x, (-1, x.shape[1], self.num_heads, self.hidden_dim // self.num_heads))
        return ops.swapaxes(x, 1, 2)

    def get_config(self):
        names = ("num_heads", "hidden_dim", "mlp_dim", "activation", "epsilon")
        return super().get_config() | {name: getattr(self, name) for name in names}


@register
class SigLIPViT(ImageTower):
    """The Vision Transformer of SigLIP and SigLIP 2, whose every intermediate is a tap.

    It differs from `ViT` in what pools the tokens: a learned query attends to all of them, which
    are patches alone, and an MLP follows (`AttentionPooling`; taps `pooling/attention`,
    `pooling/attended` and `pooling/hidden`). The tanh form of GELU is Google's.

    Called on images of shape (example, height, width, channel), conventionally in [-1, 1], it
    returns the embeddings of shape (example, hidden_dim), not yet of unit length, or, where there
    is a head, logits of shape (example, num_classes).

    Args:
        image_shape: (height, width, channels) in pixels. Rows and columns of pixels beyond the
            last whole patch are not seen, as 6 of So400m/14's 384 in each direction.
        patch_size: side of a patch, in pixels.
        num_layers, num_heads, hidden_dim, mlp_dim: the size of the encoder.
        num_classes: number of logits, a linear function of the embedding that starts at zero;
            None leaves them out.
        without_skips: sites whose skip is removed, such as `"block06"` or `"block07/mlp"`.
        dropout_rate: share of channels dropped after the embedding and each projection.
        activation: form of the GELU: `"gelu"`, `"gelu_tanh"` or `"quick_gelu"`.
        epsilon: added to the variance by all normalisations.
        text_head: whether the head is one of texts, as `vit_tf.with_text_head` makes it.
        preprocessing: the `vit_tf.Preprocessing` of its images; None means values in [-1, 1].

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
        num_classes=None,
        without_skips=(),
        dropout_rate=0.0,
        activation="gelu_tanh",
        epsilon=1e-6,
        text_head=False,
        preprocessing=None,
        **kwargs,
    ):
        image_shape, without_skips = as_image_shape(image_shape), as_names(without_skips)
        config = {
            "image_shape": image_shape,
            "patch_size": patch_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "mlp_dim": mlp_dim,
            "num_classes": num_classes,
            "without_skips": without_skips,
            "dropout_rate": dropout_rate,
            "activation": activation,
            "epsilon": epsilon,
            "text_head": text_head,
        }
        super().__init__(config, preprocessing, _LATER, **{"name": "siglip"} | kwargs)
        self.token_grid = whole_patches(image_shape, patch_size)
        self.embedding_dim = hidden_dim
        policy = self.dtype_policy
        self.embedding = Embedding(
            self.token_grid, hidden_dim, dropout_rate, dtype=policy, name="embedding"
        )
        sizes = {"num_heads": num_heads, "hidden_dim": hidden_dim, "mlp_dim": mlp_dim}
        sizes |= {"activation": activation, "epsilon": epsilon, "dtype": policy}
        removed = match_sites(without_skips, block_sites(num_layers))
        self.blocks = make_blocks(num_layers, removed, dropout_rate=dropout_rate, **sizes)
        self.norm = LayerNormalization(epsilon=epsilon, dtype=policy, name="norm")
        self.attention_pooling = AttentionPooling(**sizes, name="pooling")
        self.head = self.make_head()
        self.build((None, *image_shape))

    @classmethod
    def from_variant(cls, variant, **kwargs):
        """A SigLIPViT of a published size, such as `"B/16"`; arguments as for `SigLIPViT`."""
        return cls(**choose("variant", variant, VARIANTS) | kwargs)

    @property
    def taps(self):
        """Names of all taps, in depth order."""
        blocks = [f"{block.name}/{tap}" for block in self.blocks for tap in block.taps]
        pooling = [f"pooling/{tap}" for tap in self.attention_pooling.taps]
        logits = ("logits",) if self.head else ()
        return ("embedding", *blocks, "norm", *pooling, "pooled", *logits)

    @property
    def patch_kernel(self):
        return ops.convert_to_numpy(self.embedding.patches.kernel)

    @property
    def position_embedding(self):
        return ops.convert_to_numpy(self.embedding.positions)[0]

    def intermediates(self, images, training=None):
        """Every tap of the forward pass: dict from tap name to tensor, in depth order."""
        taps, grid = {}, self.token_grid
        images = self.check_images(images)
        seen = images[:, : grid.rows * grid.stride, : grid.columns * grid.stride]
        taps["embedding"] = x = self.embedding(seen, training=training)
        for block in self.blocks:
            inside = block(x, training=training)
            taps |= {f"{block.name}/{tap}": inside[tap] for tap in block.taps}
            x = inside["mlp/sum"]
        taps["norm"] = x = self.norm(x)
        inside = self.attention_pooling(x)
        taps |= {f"pooling/{tap}": inside[tap] for tap in self.attention_pooling.taps}
        taps["pooled"] = x = inside["pooled"]
        if self.head:
            taps["logits"] = self.head(x)
        return taps

    def build(self, input_shape):
        grid = self.token_grid
        seen = (grid.rows * grid.stride, grid.columns * grid.stride)
        self.embedding.build((None, *seen, input_shape[-1]))
        for layer in (*self.blocks, self.norm, self.attention_pooling):
            layer.build((None, grid.num_tokens, self.embedding_dim))
        if self.head:
            self.head.build((None, self.embedding_dim))
        self.built = True


def whole_patches(image_shape, patch_size):
    """The `TokenGrid` of the whole patches in an image.

    Raises:
        ValueError: for an image that has none.
    """
    rows, columns = (n // patch_size for n in image_shape[:2])
    if not (rows and columns):
        raise ValueError(
            "Expected image_shape to hold at least one patch. "
            f"Received: image_shape={tuple(image_shape)}, patch_size={patch_size}"
        )
    return TokenGrid(rows, columns, 0, patch_size)


# Zhai et al. 2023, section 4; So400m: Alabdulmohsin et al. 2023 (2305.13035), table 1; g: Tschannen
# et al. 2025 (2502.14786), section 2.
_SIZES = {
    "B": {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072},
    "L": {"num_layers": 24, "num_heads": 16, "hidden_dim": 1024, "mlp_dim": 4096},
    "So400m": {"num_layers": 27, "num_heads": 16, "hidden_dim": 1152, "mlp_dim": 4304},
    "g-opt": {"num_layers": 40, "num_heads": 16, "hidden_dim": 1536, "mlp_dim": 6144},
}
VARIANTS = {
    f"{size}/{patch}": {**_SIZES[size], "patch_size": patch}
    for size, patch in (
        *(("B", 32), ("B", 16), ("L", 16)),
        *(("So400m", 14), ("So400m", 16), ("g-opt", 16)),
    )
}
