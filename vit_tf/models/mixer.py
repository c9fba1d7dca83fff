"""MLP-Mixer (Tolstikhin et al. 2021, https://arxiv.org/abs/2105.01601)."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from vit_tf.common.backend import Tensor
from vit_tf.common.names import lookup, match_sites
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.recorder import Taps
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.model import (
    ConfiguredLayer,
    VisionModel,
    inner_taps,
    run_inner,
    site_taps,
    zero_head,
)
from vit_tf.models.transformer import (
    ACTIVATIONS,
    LayerNormalization,
    PatchDense,
    TokenDense,
    join_paths,
)

register = keras.saving.register_keras_serializable("vit_tf")


@register
class MixerBlock(ConfiguredLayer):
    """A Mixer block (equation 1), called on tokens (example, token, channel): dict of its taps."""

    sites = ("token_mixing", "channel_mixing")

    def __init__(
        self,
        num_tokens: int,
        hidden_dim: int,
        tokens_mlp_dim: int,
        channels_mlp_dim: int,
        skips: Sequence[str] = sites,
        dropout_rate: float = 0.0,
        activation: str = "gelu",
        **kwargs: Any,
    ):
        config = {
            "num_tokens": num_tokens,
            "hidden_dim": hidden_dim,
            "tokens_mlp_dim": tokens_mlp_dim,
            "channels_mlp_dim": channels_mlp_dim,
            "skips": tuple(skips),
            "dropout_rate": dropout_rate,
            "activation": activation,
        }
        super().__init__(config, **kwargs)
        self.num_tokens, self.hidden_dim, self.skips = num_tokens, hidden_dim, tuple(skips)
        self.tokens_mlp_dim, self.channels_mlp_dim = tokens_mlp_dim, channels_mlp_dim
        gelu = lookup("activation", activation, ACTIVATIONS)
        dense = partial(self.make, TokenDense, kernel_initializer="lecun_normal")
        norm = partial(self.make, LayerNormalization, epsilon=1e-6)
        self.token_norm = norm(name="token_norm")
        self.token_expand = dense(tokens_mlp_dim, name="token_expand", activation=gelu)
        self.token_contract = dense(num_tokens, name="token_contract")
        self.channel_norm = norm(name="channel_norm")
        self.channel_expand = dense(channels_mlp_dim, name="channel_expand", activation=gelu)
        self.channel_contract = dense(hidden_dim, name="channel_contract")
        self.dropout = self.make(layers.Dropout, dropout_rate, name="dropout")

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the intermediates, in the order in which they are computed."""
        return site_taps(dict.fromkeys(self.sites, ("norm", "hidden")), self.skips)

    def build(self, input_shape: Sequence[int | None]) -> None:
        for layer in (self.token_norm, self.channel_norm, self.channel_expand):
            layer.build(input_shape)
        self.channel_contract.build((*input_shape[:-1], self.channels_mlp_dim))
        self.token_expand.build((None, self.hidden_dim, self.num_tokens))
        self.token_contract.build((None, self.hidden_dim, self.tokens_mlp_dim))

    def call(self, tokens: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        taps = Taps(self.name)
        x = taps("token_mixing/norm", self.token_norm(tokens))
        x = taps("token_mixing/hidden", self.token_expand(ops.swapaxes(x, 1, 2)))
        x = self.token_contract(self.dropout(x, training=training))
        x = self.dropout(ops.swapaxes(x, 1, 2), training=training)
        x = join_paths("token_mixing", self.skips, tokens, x, taps)

        y = taps("channel_mixing/norm", self.channel_norm(x))
        y = taps("channel_mixing/hidden", self.channel_expand(y))
        y = self.channel_contract(self.dropout(y, training=training))
        y = self.dropout(y, training=training)
        join_paths("channel_mixing", self.skips, x, y, taps)
        return taps.values


@register
class Mixer(VisionModel):
    """An MLP-Mixer; `submodel` returns any intermediate activation (tap) by name.

    The model is called on images of shape (example, height, width, channel), by default with values
    in [-1, 1]. It returns logits of shape (example, num_classes), computed from the mean of all
    tokens.

    Args:
        image_shape: shape (height, width, channels) of the images, in pixels. Height and width must
            be multiples of `patch_size`.
        patch_size: side of a patch, in pixels.
        num_layers, hidden_dim, tokens_mlp_dim, channels_mlp_dim: number of blocks, dimension of a
            token, and hidden dimensions of the token-mixing and channel-mixing MLPs.
        num_classes: number of logits. The head is initialized with zeros.
        without_skips: names of the blocks or sublayers whose skip connections are removed, such as
            `"block06"` or `"block07/token_mixing"`.
        dropout_rate: dropout rate after the embedding and each layer of an MLP.
        activation: form of the GELU. `"gelu"` is the exact form. Google's checkpoints were trained
            with `"gelu_tanh"`.
        preprocessing: `vit_tf.Preprocessing` of the model's images. None means images with values
            in [-1, 1].

    Raises:
        ValueError: if the sizes are inconsistent, or if a string argument has an unknown value.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (224, 224, 3),
        patch_size: int = 16,
        num_layers: int = 12,
        hidden_dim: int = 768,
        tokens_mlp_dim: int = 384,
        channels_mlp_dim: int = 3072,
        num_classes: int = 1000,
        *,
        without_skips: str | Iterable[str] = (),
        dropout_rate: float = 0.0,
        activation: str = "gelu",
        preprocessing: Preprocessing | dict | None = None,
        **kwargs: Any,
    ):
        config = {
            "image_shape": image_shape,
            "patch_size": patch_size,
            "num_layers": num_layers,
            "hidden_dim": hidden_dim,
            "tokens_mlp_dim": tokens_mlp_dim,
            "channels_mlp_dim": channels_mlp_dim,
            "num_classes": num_classes,
            "without_skips": without_skips,
            "dropout_rate": dropout_rate,
            "activation": activation,
        }
        super().__init__(config, preprocessing, **{"name": "mixer"} | kwargs)
        self.hidden_dim = hidden_dim
        self.token_grid = TokenGrid.of_patches(self.image_shape, patch_size)
        policy = self.dtype_policy
        names = [f"block{i:02d}" for i in range(num_layers)]
        removed = match_sites(
            self.without_skips, [f"{n}/{s}" for n in names for s in MixerBlock.sites]
        )
        self.embedding = PatchDense(hidden_dim, patch_size, dtype=policy, name="embedding")
        self.dropout = layers.Dropout(dropout_rate, dtype=policy, name="dropout")
        self.blocks = [
            MixerBlock(
                self.token_grid.num_tokens,
                hidden_dim,
                tokens_mlp_dim,
                channels_mlp_dim,
                skips=[site for site in MixerBlock.sites if f"{name}/{site}" not in removed],
                dropout_rate=dropout_rate,
                activation=activation,
                dtype=policy,
                name=name,
            )
            for name in names
        ]
        self.norm = LayerNormalization(epsilon=1e-6, dtype=policy, name="norm")
        self.head = zero_head(num_classes)
        self.build((None, *self.image_shape))

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of all taps, in depth order."""
        return ("embedding", *inner_taps(self.blocks), "norm", "pooled", "logits")

    @property
    def patch_kernel(self) -> np.ndarray:
        return ops.convert_to_numpy(self.embedding.kernel)

    def intermediates(self, images: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        """Every tap of the forward pass: dict from tap name to tensor, in depth order."""
        taps = {}
        x = self.embedding(self.check_images(images))
        x = ops.reshape(x, (-1, *self._tokens_shape))
        taps["embedding"] = x = self.dropout(x, training=training)
        for block in self.blocks:
            x = run_inner(block, x, taps, training=training)["channel_mixing/sum"]
        taps["norm"] = x = self.norm(x)
        taps["pooled"] = x = ops.mean(x, axis=1)
        taps["logits"] = self.head(x)
        return taps

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.embedding.build(input_shape)
        for layer in (*self.blocks, self.norm):
            layer.build((None, *self._tokens_shape))
        self.head.build((None, self.hidden_dim))
        self.built = True

    @property
    def _tokens_shape(self) -> tuple[int, int]:
        return self.token_grid.num_tokens, self.hidden_dim


# Tolstikhin et al. 2021, table 1.
_SIZES = {
    "S": {"num_layers": 8, "hidden_dim": 512, "tokens_mlp_dim": 256, "channels_mlp_dim": 2048},
    "B": {"num_layers": 12, "hidden_dim": 768, "tokens_mlp_dim": 384, "channels_mlp_dim": 3072},
    "L": {"num_layers": 24, "hidden_dim": 1024, "tokens_mlp_dim": 512, "channels_mlp_dim": 4096},
    "H": {"num_layers": 32, "hidden_dim": 1280, "tokens_mlp_dim": 640, "channels_mlp_dim": 5120},
}
Mixer.variants = {
    f"{size}/{patch}": {**_SIZES[size], "patch_size": patch}
    for size, patches in {"S": (32, 16), "B": (32, 16), "L": (32, 16), "H": (14,)}.items()
    for patch in patches
}
