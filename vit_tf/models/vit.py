"""Vision Transformer (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929)."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import layers

from vit_tf.common.names import lookup
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.model import zero_head
from vit_tf.models.transformer import (
    KINDS,
    POOLINGS,
    TransformerModel,
    encoder_size,
    variants,
)

register = keras.saving.register_keras_serializable("vit_tf")


@register
class ViT(TransformerModel):
    """A Vision Transformer; `submodel` returns any intermediate activation (tap) by name.

    The model is called on images of shape (example, height, width, channel), by default with values
    in [-1, 1]. It returns logits of shape (example, num_classes). Subclasses are `HybridViT` (with
    a ResNet in front), `DistilledViT` (DeiT with a distillation token) and `RotaryViT` (DINOv3).

    Args:
        image_shape: shape (height, width, channels) of the images, in pixels. Height and width must
            be multiples of `patch_size`.
        patch_size: side of a patch, in pixels.
        num_layers, num_heads, hidden_dim, mlp_dim: number of blocks, number of attention heads,
            dimension of a token, and hidden dimension of the MLPs.
        num_classes: number of logits. The head is initialized with zeros.
        pooling: input of the head. `"cls"` is the class token, and `"gap"` is the mean of the patch
            tokens.
        without_skips: names of the blocks or sublayers whose skip connections are removed (Raghu et
            al. 2021, figure 8), such as `"block06"` or `"block07/mlp"`.
        dropout_rate: dropout rate after the embedding and each projection.
        stochastic_depth: probability that an example skips a branch of the last block during
            training. From the last block to the first, the probability decreases linearly to 0
            (Huang et al. 2016).
        activation: activation function of the MLPs. `"gelu"` is the exact GELU. Google's
            checkpoints were trained with `"gelu_tanh"`, and CLIP with `"quick_gelu"`. `"swiglu"`
            makes a gated MLP with `mlp_dim` channels after the gate (Oquab et al. 2023, DINOv2).
        representation_dim: number of units of a tanh layer between the pooled token and the head
            (Dosovitskiy et al. 2020, section 3.1). None means no such layer.
        preprocessing: `vit_tf.Preprocessing` of the model's images. None means images with values
            in [-1, 1].
        position_type: kind of position embedding. `"learned"` embeddings are weights. `"sincos"`
            embeddings are fixed sines and cosines (Beyer et al. 2022).
        registers: number of register tokens (Darcet et al. 2024). These are learned tokens after
            the class token. They have no position, and no head uses them.
        class_position: whether the class token has a position embedding. It has none in DeiT-3
            (Touvron et al. 2022).
        layer_scale: initial value of the factors of LayerScale. LayerScale multiplies each channel
            by a learned factor at the end of each branch. The tap `branch` is the scaled branch.
            None disables LayerScale.
        epsilon: small constant that all normalisation layers add to the variance.
        class_token: whether there is a class token. With None, there is a class token only if the
            head uses it.
        fc_norm: whether the mean of the patch tokens is normalised instead of each token. If True,
            there is a tap `fc_norm` after `pooled`, and no tap `norm`.

    Raises:
        ValueError: if the sizes are inconsistent, or if a string argument has an unknown value.
    """

    key_bias = True  # whether the key projections of the attention have a bias
    stem_stride = 1  # pixels from one position of the map that is cut into patches to the next

    def __init__(
        self,
        image_shape: Sequence[int] = (224, 224, 3),
        patch_size: int = 16,
        num_layers: int = 12,
        num_heads: int = 12,
        hidden_dim: int = 768,
        mlp_dim: int = 3072,
        num_classes: int = 1000,
        *,
        pooling: str = "cls",
        without_skips: str | Iterable[str] = (),
        dropout_rate: float = 0.0,
        stochastic_depth: float = 0.0,
        activation: str = "gelu",
        representation_dim: int | None = None,
        preprocessing: Preprocessing | dict | None = None,
        position_type: str = "learned",
        registers: int = 0,
        class_position: bool = True,
        layer_scale: float | None = None,
        epsilon: float = 1e-6,
        class_token: bool | None = None,
        fc_norm: bool = False,
        **kwargs: Any,
    ):
        config = {
            "image_shape": image_shape,
            "patch_size": patch_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "mlp_dim": mlp_dim,
            "num_classes": num_classes,
            "pooling": pooling,
            "without_skips": without_skips,
            "dropout_rate": dropout_rate,
            "stochastic_depth": stochastic_depth,
            "activation": activation,
            "representation_dim": representation_dim,
            "position_type": position_type,
            "registers": registers,
            "class_position": class_position,
            "layer_scale": layer_scale,
            "epsilon": epsilon,
            "class_token": class_token,
            "fc_norm": fc_norm,
        }
        super().__init__(config, preprocessing, **{"name": type(self).__name__.lower()} | kwargs)
        lookup("pooling", pooling, POOLINGS)
        if registers < 0:
            raise ValueError(f"Expected registers to be at least 0. Received: {registers=}")
        if pooling == "cls" and (class_token is False or fc_norm):
            raise ValueError(
                "Expected a class token and no fc_norm with pooling='cls'. "
                f"Received: {pooling=}, {class_token=}, {fc_norm=}"
            )
        self.pooling, self.fc_norm = pooling, fc_norm
        prefix, leading = len(self.prefix_names), len(self.leading_names)
        self.token_grid = TokenGrid.of_patches(
            self.image_shape, patch_size, prefix, self.stem_stride
        )
        self.add_embedding(
            hidden_dim,
            dropout_rate,
            patch_size=patch_size,
            use_positions=lookup("position_type", position_type, {kind: kind for kind in KINDS}),
            num_prefix_positions=leading if class_position else 0,
        )
        self.add_blocks(epsilon, stochastic_depth, key_bias=self.key_bias, layer_scale=layer_scale)
        if representation_dim is not None:
            self.pre_logits = layers.Dense(
                representation_dim,
                activation="tanh",
                kernel_initializer="lecun_normal",
                dtype=self.dtype_policy,
                name="pre_logits",
            )
        self.add_heads(num_classes)
        self.build((None, *self.image_shape))

    def add_heads(self, num_classes: int) -> None:
        """Sets the layers that return logits."""
        self.head = zero_head(num_classes)

    @property
    def leading_names(self) -> tuple[str, ...]:
        """Names of the prefix tokens before the registers."""
        named = self._config["class_token"]
        return ("CLS",) if named or (named is None and self._config["pooling"] == "cls") else ()

    @property
    def prefix_names(self) -> tuple[str, ...]:
        registers = range(1, self._config["registers"] + 1)
        return (*self.leading_names, *(f"register {number}" for number in registers))


# Ti and S: Touvron et al. 2021 (DeiT), table 1. B, L and H: Dosovitskiy et al. 2020, table 1.
SIZES = {
    "Ti": encoder_size(12, 3, 192, 768),
    "S": encoder_size(12, 6, 384, 1536),
    "B": encoder_size(12, 12, 768, 3072),
    "L": encoder_size(24, 16, 1024, 4096),
    "H": encoder_size(32, 16, 1280, 5120),
}
VARIANTS = variants(SIZES, (8, 14, 16, 32))


# Oquab et al. 2023 (DINOv2), table 17, at 14 pixels; Touvron et al. 2022 (DeiT III), table 1.
_GIANT = encoder_size(40, 24, 1536, 4096) | {"activation": "swiglu"}
_MEDIUM = encoder_size(12, 8, 512, 2048)
_SBL = {size: SIZES[size] for size in "SBL"}
RELEASED = variants(_SBL | {"g": _GIANT}, (14,), "DINOv2-", layer_scale=1e-5)
_DEIT3 = {"layer_scale": 1e-6, "class_position": False}
RELEASED |= variants(_SBL | {"M": _MEDIUM}, (16,), "DeiT3-", **_DEIT3)
RELEASED |= variants({"H": SIZES["H"]}, (14,), "DeiT3-", **_DEIT3)

# timm's ViTs with registers and the mean of their patches (`vit_*_reg4_gap_*` of timm 1.0.31).
_MEANS = {
    "wee": encoder_size(14, 4, 256, 1280),
    "little": encoder_size(14, 5, 320, 1792),
    "medium": encoder_size(12, 8, 512, 2048),
    "mediumd": encoder_size(20, 8, 512, 2048),
    "betwixt": encoder_size(12, 10, 640, 2560),
    "so150m": encoder_size(18, 14, 896, 2304),
    "so150m2": encoder_size(21, 13, 832, 2176),
}
MEANS = variants(_MEANS, (16,), pooling="gap", registers=4, fc_norm=True, layer_scale=1e-5)
MEANS["so150m/16"] |= {"fc_norm": False, "layer_scale": None}
ViT.variants = VARIANTS | RELEASED | MEANS
