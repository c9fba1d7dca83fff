"""The image encoder of SigLIP (Zhai et al. 2023, 2303.15343) and SigLIP 2 (2502.14786)."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from vit_tf.common.backend import Tensor
from vit_tf.common.names import as_image_shape, as_names
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.models.image_encoder import AttentionPooling, ImageEncoder
from vit_tf.models.model import signature_config
from vit_tf.models.transformer import LayerNormalization, encoder_size, make_blocks
from vit_tf.models.vit import SIZES
from vit_tf.taps.tokens import TokenGrid

register = keras.saving.register_keras_serializable("vit_tf")


@register
class SigLIPViT(ImageEncoder):
    """The Vision Transformer of SigLIP and SigLIP 2, whose every intermediate is a tap.

    Unlike `ViT`, it has no class token: a learned query attends to all patch tokens, followed by an
    MLP (`AttentionPooling`; taps `pooling/attention`, `pooling/attended` and `pooling/hidden`).
    Google's weights use the tanh form of GELU.

    Called on images of shape (example, height, width, channel), conventionally in [-1, 1], it
    returns the embeddings of shape (example, hidden_dim), not yet of unit length, or, where there
    is a head, logits of shape (example, num_classes).

    Args:
        image_shape: (height, width, channels) in pixels. Rows and columns of pixels beyond the last
            whole patch are ignored, such as 6 of the 384 pixels of So400m/14 in each direction.
        patch_size: side of a patch, in pixels.
        num_layers, num_heads, hidden_dim, mlp_dim: the size of the encoder.
        num_classes: number of logits, a linear function of the embedding, initialized with zeros;
            None for no head.
        without_skips: sites whose skip is removed, such as `"block06"` or `"block07/mlp"`.
        dropout_rate: dropout rate after the embedding and each projection.
        activation: form of the GELU: `"gelu"`, `"gelu_tanh"` or `"quick_gelu"`.
        epsilon: added to the variance by all normalisations.
        text_head: whether the head compares images with texts, see `vit_tf.with_text_head`.
        preprocessing: the `vit_tf.Preprocessing` of its images; None means values in [-1, 1].

    Raises:
        ValueError: for inconsistent sizes or an unknown name.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (224, 224, 3),
        patch_size: int = 16,
        num_layers: int = 12,
        num_heads: int = 12,
        hidden_dim: int = 768,
        mlp_dim: int = 3072,
        num_classes: int | None = None,
        without_skips: str | Iterable[str] = (),
        dropout_rate: float = 0.0,
        activation: str = "gelu_tanh",
        epsilon: float = 1e-6,
        text_head: bool = False,
        preprocessing: Preprocessing | dict | None = None,
        **kwargs: Any,
    ):
        image_shape, without_skips = as_image_shape(image_shape), as_names(without_skips)
        config, omitted_defaults = signature_config(
            SigLIPViT, locals(), omit_defaults_from="text_head"
        )
        super().__init__(config, preprocessing, omitted_defaults, **{"name": "siglip"} | kwargs)
        self.token_grid = whole_patches(image_shape, patch_size)
        self.embedding_dim = hidden_dim
        policy = self.dtype_policy
        self.add_embedding(config)
        self.blocks = make_blocks(config, dtype=policy)
        self.norm = LayerNormalization(epsilon=epsilon, dtype=policy, name="norm")
        sizes = (num_heads, hidden_dim, mlp_dim, activation, epsilon)
        self.attention_pooling = AttentionPooling(*sizes, dtype=policy, name="pooling")
        self.head = self.make_head()
        self.build((None, *image_shape))

    def _covered_size(self) -> tuple[int, int]:
        """The height and width in pixels that whole patches cover."""
        grid = self.token_grid
        return grid.rows * grid.stride, grid.columns * grid.stride

    def intermediates(self, images: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        """Every tap of the forward pass: dict from tap name to tensor, in depth order."""
        taps = {}
        height, width = self._covered_size()
        cropped = self.check_images(images)[:, :height, :width]
        taps["embedding"] = x = self.embedding(cropped, training=training)
        x = self.pool(self.run_blocks(x, taps, training), taps)
        if self.head:
            taps["logits"] = self.head(x)
        return taps

    def build(self, input_shape: Sequence[int | None]) -> None:
        super().build((None, *self._covered_size(), input_shape[-1]))


def whole_patches(image_shape: Sequence[int], patch_size: int) -> TokenGrid:
    """The `TokenGrid` of the whole patches in an image; a ValueError where there are none."""
    rows, columns = (n // patch_size for n in image_shape[:2])
    if not (rows and columns):
        raise ValueError(
            "Expected image_shape to hold at least one patch. "
            f"Received: image_shape={tuple(image_shape)}, patch_size={patch_size}"
        )
    return TokenGrid(rows, columns, 0, patch_size)


# Zhai et al. 2023, section 4; So400m: Alabdulmohsin et al. 2023 (2305.13035), table 1; g: Tschannen
# et al. 2025 (2502.14786), section 2.
_SIZES = SIZES | {
    "So400m": encoder_size(27, 16, 1152, 4304),
    "g-opt": encoder_size(40, 16, 1536, 6144),
}
SigLIPViT.variants = {
    f"{size}/{patch}": {**_SIZES[size], "patch_size": patch}
    for size, patch in (
        ("B", 32),
        ("B", 16),
        ("L", 16),
        ("So400m", 14),
        ("So400m", 16),
        ("g-opt", 16),
    )
}
