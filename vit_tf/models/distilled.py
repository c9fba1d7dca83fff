"""DeiT with a distillation token (Touvron et al. 2021, https://arxiv.org/abs/2012.12877)."""

from typing import Any

import keras

from vit_tf.common.backend import Tensor
from vit_tf.common.names import lookup
from vit_tf.models.model import zero_head
from vit_tf.models.transformer import variants
from vit_tf.models.vit import SIZES, ViT

register = keras.saving.register_keras_serializable("vit_tf")

DISTILLATION = "distillation"


@register
class DistilledViT(ViT):
    """A DeiT: a `ViT` with a distillation token next to its class token (section 4 of the paper).

    Args:
        distillation: `"heads"` gives the distillation token its own head. The logits are then the
            mean of the two heads. `"token"` adds the token without a head.
        *sizes, **options: as for `ViT`, with `pooling="cls"`. `class_position` applies to both
            tokens.

    Raises:
        ValueError: as for `ViT`, if the pooling is not `"cls"`, or if there is a tanh layer before
            two heads.
    """

    def __init__(self, *sizes: Any, distillation: str = "heads", **options: Any):
        self.distillation = lookup("distillation", distillation, {n: n for n in ("token", "heads")})
        super().__init__(*sizes, **options)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"distillation": self.distillation}

    def add_heads(self, num_classes: int) -> None:
        if self.pooling != "cls":
            raise ValueError(
                "Expected pooling='cls', which distillation needs. "
                f"Received: distillation={self.distillation!r}, pooling={self.pooling!r}"
            )
        if self.distillation == "heads" and self.pre_logits:
            raise ValueError(
                "Expected distillation='heads' without a tanh layer before the head. "
                f"Received: representation_dim={self.pre_logits.units}"
            )
        super().add_heads(num_classes)
        self.distillation_head = None
        if self.distillation == "heads":
            self.distillation_head = zero_head(num_classes, "distillation_head")

    @property
    def head_layers(self) -> tuple[keras.layers.Layer, ...]:
        both = super().head_layers
        return (*both, self.distillation_head) if self.distillation_head else both

    @property
    def leading_names(self) -> tuple[str, ...]:
        return (*super().leading_names, DISTILLATION)

    @property
    def pooled_tokens(self) -> tuple[int, ...] | None:
        return (0, 1) if self.distillation_head else super().pooled_tokens

    @property
    def last_taps(self) -> tuple[str, ...]:
        return ("distilled", "logits") if self.distillation_head else super().last_taps

    def run_heads(self, x: Tensor, taps: dict[str, Tensor]) -> Tensor:
        if not self.distillation_head:
            return super().run_heads(x, taps)
        taps["distilled"] = distilled = taps["norm"][:, 1]
        return (self.head(x) + self.distillation_head(distilled)) / 2


# Touvron et al. 2021, table 1.
_SIZES = {size: SIZES[size] for size in ("Ti", "S", "B")}
DistilledViT.variants = variants(_SIZES, (16,))
