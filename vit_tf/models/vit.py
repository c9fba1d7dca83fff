"""Vision Transformer (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers

from vit_tf.common.backend import Tensor
from vit_tf.common.names import as_image_shape, as_names, as_sizes, lookup, match_sites
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.bit import UNITS, unit_sites
from vit_tf.models.hybrid import ResNetStem, stem_stride
from vit_tf.models.model import zero_head
from vit_tf.models.transformer import (
    KINDS,
    LayerNormalization,
    Rotation,
    TransformerModel,
    block_sites,
    check_pooling,
    encoder_size,
    make_blocks,
    variants,
)

register = keras.saving.register_keras_serializable("vit_tf")

DISTILLATION = "distillation"


@register
class ViT(TransformerModel):
    """A Vision Transformer. Every intermediate activation has a name (a tap) and can be read.

    The model is called on images of shape (example, height, width, channel), by default with values
    in [-1, 1]. It returns logits of shape (example, num_classes).

    Args:
        image_shape: shape (height, width, channels) of the images, in pixels. Height and width must
            be multiples of `patch_size`. If there is a stem, they must be multiples of `patch_size`
            times the stride of the stem.
        patch_size: side of a patch, in pixels of the image or, if there is a stem, in positions of
            its last feature map.
        num_layers, num_heads, hidden_dim, mlp_dim: number of blocks, number of attention heads,
            dimension of a token, and hidden dimension of the MLPs.
        num_classes: number of logits. The head is initialized with zeros.
        pooling: input of the head. `"cls"` is the class token, and `"gap"` is the mean of the patch
            tokens.
        without_skips: names of the blocks or sublayers whose skip connections are removed (Raghu et
            al. 2021, figure 8), such as `"block06"` or `"block07/mlp"`. In a ResNet stem, units can
            be named too, such as `"stage2/unit02"`.
        dropout_rate: dropout rate after the embedding and each projection.
        stochastic_depth: probability that an example skips a branch of the last block during
            training. From the last block to the first, the probability decreases linearly to 0
            (Huang et al. 2016).
        activation: activation function of the MLPs. `"gelu"` is the exact GELU. Google's
            checkpoints were trained with `"gelu_tanh"`, and CLIP with `"quick_gelu"`. `"swiglu"`
            makes a gated MLP with `mlp_dim` channels after the gate (Oquab et al. 2023, DINOv2).
        representation_dim: number of units of a tanh layer between the pooled token and the head
            (Dosovitskiy et al. 2020, section 3.1). None means no such layer.
        stem_units: number of units in each stage of a ResNet stem. The feature map of the stem,
            instead of the image, is cut into patches (the hybrid of Dosovitskiy et al. 2020,
            section 3.1). `()` means a stem without stages (the root only). None means no stem.
        preprocessing: `vit_tf.Preprocessing` of the model's images. None means images with values
            in [-1, 1].
        position_type: kind of position embedding. `"learned"` embeddings are weights. `"sincos"`
            embeddings are fixed sines and cosines (Beyer et al. 2022). With `"rotary"`, nothing is
            added to the tokens. Instead, each block rotates the queries and keys of patches by
            angles that depend on their position (Siméoni et al. 2025, DINOv3). Therefore, no
            embeddings have to be resampled for another image size.
        registers: number of register tokens (Darcet et al. 2024). These are learned tokens after
            the class token. They have no position, and no head uses them.
        distillation: `"heads"` adds a distillation token with its own head. The logits are then the
            mean of the two heads (Touvron et al. 2021, DeiT, section 4). `"token"` adds the token
            without its head. None adds neither.
        class_position: whether the class and distillation tokens have position embeddings. They
            have none in DeiT-3 (Touvron et al. 2022).
        layer_scale: initial value of the factors of LayerScale. LayerScale multiplies each channel
            by a learned factor at the end of each branch. The tap `branch` is the scaled branch.
            None disables LayerScale.
        epsilon: small constant that all normalisation layers add to the variance.
        key_bias: whether the key projections of the attention have a bias.
        class_token: whether there is a class token. With None, there is a class token only if the
            head uses it.
        fc_norm: whether the mean of the patch tokens is normalised instead of each token. If True,
            there is a tap `fc_norm` after `pooled`, and no tap `norm`.

    Raises:
        ValueError: if the sizes are inconsistent, or if a string argument has an unknown value.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (224, 224, 3),
        patch_size: int = 16,
        num_layers: int = 12,
        num_heads: int = 12,
        hidden_dim: int = 768,
        mlp_dim: int = 3072,
        num_classes: int = 1000,
        pooling: str = "cls",
        without_skips: str | Iterable[str] = (),
        dropout_rate: float = 0.0,
        activation: str = "gelu",
        representation_dim: int | None = None,
        stem_units: Sequence[int] | None = None,
        preprocessing: Preprocessing | dict | None = None,
        position_type: str = "learned",
        registers: int = 0,
        distillation: str | None = None,
        class_position: bool = True,
        layer_scale: float | None = None,
        epsilon: float = 1e-6,
        key_bias: bool = True,
        class_token: bool | None = None,
        fc_norm: bool = False,
        stochastic_depth: float = 0.0,
        **kwargs: Any,
    ):
        image_shape, without_skips = as_image_shape(image_shape), as_names(without_skips)
        if stem_units is not None:
            stem_units = as_sizes("stem_units", stem_units, UNITS)
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
            "activation": activation,
            "representation_dim": representation_dim,
            "stem_units": stem_units,
            "position_type": position_type,
            "registers": registers,
            "distillation": distillation,
            "class_position": class_position,
            "layer_scale": layer_scale,
            "epsilon": epsilon,
            "key_bias": key_bias,
            "class_token": class_token,
            "fc_norm": fc_norm,
            "stochastic_depth": stochastic_depth,
        }
        super().__init__(config, preprocessing, **{"name": "vit"} | kwargs)
        self.pooling, self.fc_norm = pooling, fc_norm
        _check_tokens(config)
        policy = self.dtype_policy
        stride, sites = 1, [] if stem_units is None else unit_sites(stem_units)
        removed = match_sites(without_skips, [*sites, *block_sites(num_layers)])
        self.stem = None
        if stem_units is not None:
            stride = stem_stride(stem_units)
            without = sorted(removed.intersection(sites))
            self.stem = ResNetStem(stem_units, without, dtype=policy, name="stem")
        positions = len(prefix_names(config | {"registers": 0})) if class_position else 0
        prefix = len(self.prefix_names)
        self.token_grid = TokenGrid.of_patches(image_shape, patch_size, prefix, stride)
        kinds = {kind: kind for kind in KINDS} | {"rotary": False}
        self.add_embedding(
            hidden_dim,
            dropout_rate,
            patch_size=patch_size,
            use_positions=lookup("position_type", position_type, kinds),
            num_prefix_positions=positions,
        )
        self.blocks = make_blocks(
            num_layers,
            removed,
            stochastic_depth,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            mlp_dim=mlp_dim,
            dropout_rate=dropout_rate,
            activation=activation,
            epsilon=epsilon,
            key_bias=key_bias,
            layer_scale=layer_scale,
            dtype=policy,
        )
        if position_type == "rotary":
            width = hidden_dim // num_heads
            self.rotation = Rotation(self.token_grid, width, dtype=policy, name="rotation")
        name = "fc_norm" if fc_norm else "norm"
        self.norm = LayerNormalization(epsilon=epsilon, dtype=policy, name=name)
        self.pre_logits = None
        if representation_dim is not None:
            self.pre_logits = layers.Dense(
                representation_dim,
                activation="tanh",
                kernel_initializer="lecun_normal",
                dtype=policy,
                name="pre_logits",
            )
        self.head = zero_head(num_classes)
        self.distillation_head = None
        if distillation == "heads":
            self.distillation_head = zero_head(num_classes, "distillation_head")
        self.build((None, *image_shape))

    @property
    def prefix_names(self) -> tuple[str, ...]:
        return prefix_names(self._config)

    @property
    def pooled_tokens(self) -> tuple[int, ...] | None:
        if self.distillation_head:
            return (0, self.prefix_names.index(DISTILLATION))
        return super().pooled_tokens

    @property
    def first_taps(self) -> tuple[str, ...]:
        return (*(self.stem.taps if self.stem else ()), "embedding")

    @property
    def last_taps(self) -> tuple[str, ...]:
        pre_logits = ("pre_logits",) if self.pre_logits else ()
        distilled = ("distilled",) if self.distillation_head else ()
        return (*pre_logits, *distilled, "logits")

    @property
    def patch_kernel(self) -> np.ndarray | None:
        return None if self.stem else super().patch_kernel

    def intermediates(
        self, images: Tensor, training: bool | None = None, corrupt: Callable | None = None
    ) -> dict[str, Tensor]:
        """Every tap of the forward pass: dict from tap name to tensor, in depth order.

        With `corrupt`, as for `Embedding`, the taps are those of corrupted patches.
        """
        taps = {}
        x = self.check_images(images)
        if self.stem:
            inside = self.stem(x, training=training)
            taps |= {tap: inside[tap] for tap in self.stem.taps}
            x = inside["features"]
        taps["embedding"] = x = self.embedding(x, training=training, corrupt=corrupt)
        x = self.pool(self.run_blocks(x, taps, training), taps)
        if self.pre_logits:
            taps["pre_logits"] = x = self.pre_logits(x)
        logits = self.head(x)
        if self.distillation_head:
            taps["distilled"] = x = taps["norm"][:, self.prefix_names.index(DISTILLATION)]
            logits = (logits + self.distillation_head(x)) / 2
        taps["logits"] = logits
        return taps

    def build(self, input_shape: Sequence[int | None]) -> None:
        if self.stem:
            self.stem.build(input_shape)
            input_shape = (None, None, None, self.stem.channels)
        super().build(input_shape)
        width = self.embedding.hidden_dim
        if self.pre_logits:
            self.pre_logits.build((None, width))
            width = self.pre_logits.units
        self.head.build((None, width))
        if self.distillation_head:
            self.distillation_head.build((None, width))


def prefix_names(config: dict[str, Any]) -> tuple[str, ...]:
    """Names of the prefix tokens, in their order, from a configuration of a `ViT`."""
    named = config.get("class_token")
    names = ["CLS"] if named or (named is None and config["pooling"] == "cls") else []
    names += [DISTILLATION] if config.get("distillation") else []
    return (*names, *(f"register {i + 1}" for i in range(config.get("registers", 0))))


def _check_tokens(config: dict[str, Any]) -> None:
    """Raises a ValueError unless the tokens of a configuration and their heads fit together."""
    check_pooling(config["pooling"])
    lookup("distillation", config["distillation"], dict.fromkeys((None, "token", "heads")))
    if config["registers"] < 0:
        received = {"registers": config["registers"]}
        raise ValueError(f"Expected registers to be at least 0. Received: {received}")
    pooling, without = config["pooling"], config["class_token"] is False or config["fc_norm"]
    if (pooling == "cls" and without) or (pooling != "cls" and config["distillation"]):
        names = ("distillation", "pooling", "class_token", "fc_norm")
        raise ValueError(
            "Expected a class token and no fc_norm with pooling='cls', which distillation needs. "
            f"Received: {', '.join(f'{name}={config[name]!r}' for name in names)}"
        )
    if config["distillation"] == "heads" and config["representation_dim"] is not None:
        raise ValueError(
            "Expected distillation='heads' without a tanh layer before the head. "
            f"Received: representation_dim={config['representation_dim']}"
        )


# Ti and S: Touvron et al. 2021 (DeiT), table 1. B, L and H: Dosovitskiy et al. 2020, table 1.
SIZES = {
    "Ti": encoder_size(12, 3, 192, 768),
    "S": encoder_size(12, 6, 384, 1536),
    "B": encoder_size(12, 12, 768, 3072),
    "L": encoder_size(24, 16, 1024, 4096),
    "H": encoder_size(32, 16, 1280, 5120),
}
VARIANTS = variants(SIZES, (8, 14, 16, 32))

# Steiner et al. 2021 (AugReg), table 1, and Dosovitskiy et al. 2020, section 3.1 (R50+ViT-B/16).
# R+Ti/16 is named after a root of stride 2; that of its checkpoint has stride 4, its tokens 32.
HYBRIDS = {
    "R+Ti/16": {**SIZES["Ti"], "patch_size": 8, "stem_units": ()},
    "R26+S/32": {**SIZES["S"], "patch_size": 1, "stem_units": (2, 2, 2, 2)},
    "R50+ViT-B/16": {**SIZES["B"], "patch_size": 1, "stem_units": (3, 4, 9)},
    "R50+L/32": {**SIZES["L"], "patch_size": 1, "stem_units": (3, 4, 6, 3)},
}


def _sizes(*names: str) -> dict[str, dict]:
    return {name: SIZES[name] for name in names}


# Oquab et al. 2023 (DINOv2), table 17, at 14 pixels; Touvron et al. 2022 (DeiT III), table 1.
_GIANT = encoder_size(40, 24, 1536, 4096) | {"activation": "swiglu"}
_MEDIUM = encoder_size(12, 8, 512, 2048)
RELEASED = variants(_sizes("S", "B", "L") | {"g": _GIANT}, (14,), "DINOv2-", layer_scale=1e-5)
_DEIT3 = {"layer_scale": 1e-6, "class_position": False}
RELEASED |= variants(_sizes("S", "B", "L") | {"M": _MEDIUM}, (16,), "DeiT3-", **_DEIT3)
RELEASED |= variants(_sizes("H"), (14,), "DeiT3-", **_DEIT3)

# Siméoni et al. 2025 (DINOv3), table 2 and its appendix, with the released distilled models: at 16
# pixels, S+, H+ and 7B gated.
_GATED = {
    "S+": SIZES["S"],
    "H+": SIZES["H"] | {"num_heads": 20, "mlp_dim": 5120},
    "7B": encoder_size(40, 32, 4096, 8192),
}
_ROTARY = {"position_type": "rotary", "registers": 4, "key_bias": False}
_ROTARY |= {"layer_scale": 1e-5, "epsilon": 1e-5}
RELEASED |= variants(_sizes("S", "B", "L"), (16,), "DINOv3-", **_ROTARY)
RELEASED |= variants(_GATED, (16,), "DINOv3-", activation="swiglu", **_ROTARY)

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
ViT.variants = VARIANTS | HYBRIDS | RELEASED | MEANS
