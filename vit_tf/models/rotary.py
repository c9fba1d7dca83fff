"""Vision Transformers with rotary positions (Siméoni et al. 2025, DINOv3)."""

from typing import Any

import keras

from vit_tf.models.transformer import Rotation, encoder_size, variants
from vit_tf.models.vit import SIZES, ViT

register = keras.saving.register_keras_serializable("vit_tf")


@register
class RotaryViT(ViT):
    """A Vision Transformer with rotary position embeddings instead of positions added to tokens.

    Each block rotates the queries and keys of patches by angles that depend on the position of the
    patch. Therefore, no embeddings have to be resampled for another image size.

    Args:
        key_bias: whether the key projections of the attention have a bias.
        *sizes, **options: as for `ViT`, without `position_type` and `class_position`.

    Raises:
        ValueError: as for `ViT`, and if the channels of a head are not a multiple of 4.
    """

    def __init__(self, *sizes: Any, key_bias: bool = False, **options: Any):
        self.key_bias = key_bias
        super().__init__(*sizes, **options)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config() | {"key_bias": self.key_bias}
        del config["position_type"], config["class_position"]
        return config

    def add_embedding(self, hidden_dim: int, dropout_rate: float, **options: Any) -> None:
        super().add_embedding(hidden_dim, dropout_rate, **options | {"use_positions": False})
        width = hidden_dim // self._config["num_heads"]
        self.rotation = Rotation(self.token_grid, width, dtype=self.dtype_policy, name="rotation")


# Siméoni et al. 2025, table 2 and its appendix, with the released distilled models: at 16 pixels,
# S+, H+ and 7B gated.
_GATED = {
    "S+": SIZES["S"],
    "H+": SIZES["H"] | {"num_heads": 20, "mlp_dim": 5120},
    "7B": encoder_size(40, 32, 4096, 8192),
}
_FIELDS = {"registers": 4, "layer_scale": 1e-5, "epsilon": 1e-5}
_PLAIN = {size: SIZES[size] for size in ("S", "B", "L")}
RotaryViT.variants = variants(_PLAIN, (16,), "DINOv3-", **_FIELDS)
RotaryViT.variants |= variants(_GATED, (16,), "DINOv3-", activation="swiglu", **_FIELDS)
