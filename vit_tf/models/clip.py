"""The image encoder of CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020)."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import layers

from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.image_encoder import ImageEncoder, make_head
from vit_tf.models.transformer import LayerNormalization, encoder_size
from vit_tf.models.vit import SIZES

register = keras.saving.register_keras_serializable("vit_tf")


@register
class CLIPViT(ImageEncoder):
    """The Vision Transformer of CLIP; `submodel` returns any intermediate activation by name.

    A `CLIPViT` differs from a `ViT` in several ways. There is a normalisation layer before the
    first block. Patches are embedded without a bias. GELU has its quick form, and epsilon is 1e-5.
    A linear layer projects the class token to the joint embedding space of images and texts
    (Radford et al. 2021, section 2.4).

    The model is called on images of shape (example, height, width, channel), with values as
    `preprocessing` produces them. With a head, it returns logits of shape (example, num_classes).
    Otherwise, it returns embeddings of shape (example, projection_dim), which are not normalised to
    unit length.

    Args:
        image_shape: shape (height, width, channels) of the images, in pixels. Height and width must
            be multiples of `patch_size`.
        patch_size: side of a patch, in pixels.
        num_layers, num_heads, hidden_dim, mlp_dim: number of blocks, number of attention heads,
            dimension of a token, and hidden dimension of the MLPs.
        projection_dim: number of channels of an image embedding.
        num_classes: number of logits. The head is a linear layer on the embedding, initialized with
            zeros. None means no head.
        without_skips: names of the blocks or sublayers whose skip connections are removed, such as
            `"block06"` or `"block07/mlp"`.
        dropout_rate: dropout rate after the embedding and each projection.
        activation: form of the GELU: `"gelu"`, `"gelu_tanh"` or `"quick_gelu"`.
        text_head: whether the head compares images with texts. `vit_tf.with_text_head` makes such a
            model.
        preprocessing: `vit_tf.Preprocessing` of the model's images, usually with the mean and
            standard deviation of CLIP. None means images with values in [-1, 1].

    Raises:
        ValueError: if the sizes are inconsistent, or if a string argument has an unknown value.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (224, 224, 3),
        patch_size: int = 32,
        num_layers: int = 12,
        num_heads: int = 12,
        hidden_dim: int = 768,
        mlp_dim: int = 3072,
        projection_dim: int = 512,
        num_classes: int | None = None,
        *,
        without_skips: str | Iterable[str] = (),
        dropout_rate: float = 0.0,
        activation: str = "quick_gelu",
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
            "projection_dim": projection_dim,
            "num_classes": num_classes,
            "without_skips": without_skips,
            "dropout_rate": dropout_rate,
            "activation": activation,
            "text_head": text_head,
        }
        super().__init__(config, preprocessing, **{"name": "clip"} | kwargs)
        self.token_grid = TokenGrid.of_patches(self.image_shape, patch_size, prefix=1)
        self.add_embedding(hidden_dim, dropout_rate, use_bias=False)
        policy = self.dtype_policy
        self.pre_norm = LayerNormalization(epsilon=1e-5, dtype=policy, name="pre_norm")
        self.add_blocks(epsilon=1e-5)
        self.projection = layers.Dense(
            projection_dim, use_bias=False, dtype="float32", name="projection"
        )
        self.embedding_dim = projection_dim
        self.head = make_head(num_classes, text_head)
        self.build((None, *self.image_shape))


# Radford et al. 2021, table 20, and those of open_clip (Cherti et al. 2022,
# https://arxiv.org/abs/2212.07143), whose configurations state the larger ones.
_SIZES = SIZES | {
    "B+": encoder_size(12, 14, 896, 3584),
    "g": encoder_size(40, 16, 1408, 6144),
    "bigG": encoder_size(48, 16, 1664, 8192),
}
CLIPViT.variants = {
    f"{size}/{patch}": {**_SIZES[size], "patch_size": patch, "projection_dim": projection}
    for size, patch, projection in (
        ("B", 32, 512),
        ("B", 16, 512),
        ("B+", 16, 640),
        ("L", 14, 768),
        ("H", 14, 1024),
        ("g", 14, 1024),
        ("bigG", 14, 1280),
    )
}
