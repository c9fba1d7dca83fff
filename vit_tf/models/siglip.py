"""The image encoder of SigLIP (Zhai et al. 2023, 2303.15343) and SigLIP 2 (2502.14786)."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from vit_tf.common.backend import Tensor
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.image_encoder import AttentionPooling, ImageEncoder, make_head
from vit_tf.models.transformer import encoder_size
from vit_tf.models.vit import SIZES

register = keras.saving.register_keras_serializable("vit_tf")


@register
class SigLIPViT(ImageEncoder):
    """The Vision Transformer of SigLIP and SigLIP 2; `submodel` returns any activation by name.

    Unlike a `ViT`, a `SigLIPViT` has no class token. Instead, a learned query attends to all patch
    tokens, and an MLP follows (`AttentionPooling`). The activations of this pooling are
    `pooling/attention`, `pooling/attended` and `pooling/hidden`. Google's weights use the tanh form
    of GELU.

    The model is called on images of shape (example, height, width, channel), by default with values
    in [-1, 1]. With a head, it returns logits of shape (example, num_classes). Otherwise, it
    returns embeddings of shape (example, hidden_dim), which are not normalised to unit length.

    Args:
        image_shape: shape (height, width, channels) of the images, in pixels. Rows and columns of
            pixels beyond the last whole patch are ignored. For example, So400m/14 ignores 6 of 384
            pixels in each direction.
        patch_size: side of a patch, in pixels.
        num_layers, num_heads, hidden_dim, mlp_dim: number of blocks, number of attention heads,
            dimension of a token, and hidden dimension of the MLPs.
        num_classes: number of logits. The head is a linear layer on the embedding, initialized with
            zeros. None means no head.
        without_skips: names of the blocks or sublayers whose skip connections are removed, such as
            `"block06"` or `"block07/mlp"`.
        dropout_rate: dropout rate after the embedding and each projection.
        activation: form of the GELU: `"gelu"`, `"gelu_tanh"` or `"quick_gelu"`.
        epsilon: small constant that all normalisation layers add to the variance.
        text_head: whether the head compares images with texts. `vit_tf.with_text_head` makes such a
            model.
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
        num_heads: int = 12,
        hidden_dim: int = 768,
        mlp_dim: int = 3072,
        num_classes: int | None = None,
        *,
        without_skips: str | Iterable[str] = (),
        dropout_rate: float = 0.0,
        activation: str = "gelu_tanh",
        epsilon: float = 1e-6,
        text_head: bool = False,
        preprocessing: Preprocessing | dict | None = None,
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
            "without_skips": without_skips,
            "dropout_rate": dropout_rate,
            "activation": activation,
            "epsilon": epsilon,
            "text_head": text_head,
        }
        super().__init__(config, preprocessing, **{"name": "siglip"} | kwargs)
        self.token_grid = whole_patches(self.image_shape, patch_size)
        self.embedding_dim = hidden_dim
        self.add_embedding(hidden_dim, dropout_rate)
        self.add_blocks(epsilon)
        policy = self.dtype_policy
        self.attention_pooling = AttentionPooling(
            num_heads, hidden_dim, mlp_dim, activation, epsilon, dtype=policy, name="pooling"
        )
        self.head = make_head(num_classes, text_head)
        self.build((None, *self.image_shape))

    def _covered_size(self) -> tuple[int, int]:
        """The height and width in pixels that whole patches cover."""
        grid = self.token_grid
        return grid.rows * grid.stride, grid.columns * grid.stride

    def run_stem(self, images: Tensor, taps: dict[str, Tensor], training: bool | None) -> Tensor:
        """The part of the images that whole patches cover."""
        height, width = self._covered_size()
        return images[:, :height, :width]

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
