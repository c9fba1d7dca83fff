"""The image encoder of CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020)."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import layers

from vit_tf.common.backend import Tensor
from vit_tf.common.names import as_image_shape, as_names
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.models.image_encoder import ImageEncoder
from vit_tf.models.model import signature_config
from vit_tf.models.transformer import LayerNormalization, encoder_size, make_blocks
from vit_tf.models.vit import SIZES
from vit_tf.taps.tokens import TokenGrid

register = keras.saving.register_keras_serializable("vit_tf")


@register
class CLIPViT(ImageEncoder):
    """The Vision Transformer of CLIP, whose every intermediate is a tap.

    It differs from `ViT` in a normalisation before the first block, patches embedded without a
    bias, the quick form of GELU, an epsilon of 1e-5, and a linear projection of the class token to
    the joint embedding space of images and texts (section 2.4).

    It is called on images of shape (example, height, width, channel), with values as
    `preprocessing` describes. With a head, it returns logits of shape (example, num_classes).
    Otherwise, it returns embeddings of shape (example, projection_dim), which are not normalised to
    unit length.

    Args:
        image_shape: (height, width, channels) in pixels; a multiple of `patch_size`.
        patch_size: side of a patch, in pixels.
        num_layers, num_heads, hidden_dim, mlp_dim: the size of the encoder.
        projection_dim: number of channels of the embedding of an image.
        num_classes: number of logits, a linear function of the embedding, initialized with zeros;
            None for no head.
        without_skips: sites whose skip is removed, such as `"block06"` or `"block07/mlp"`.
        dropout_rate: dropout rate after the embedding and each projection.
        activation: form of the GELU: `"gelu"`, `"gelu_tanh"` or `"quick_gelu"`.
        text_head: whether the head compares images with texts, see `vit_tf.with_text_head`.
        preprocessing: the `vit_tf.Preprocessing` of its images, usually with the mean and standard
            deviation of CLIP; None means values in [-1, 1].

    Raises:
        ValueError: for inconsistent sizes or an unknown name.
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
        without_skips: str | Iterable[str] = (),
        dropout_rate: float = 0.0,
        activation: str = "quick_gelu",
        text_head: bool = False,
        preprocessing: Preprocessing | dict | None = None,
        **kwargs: Any,
    ):
        image_shape, without_skips = as_image_shape(image_shape), as_names(without_skips)
        config, omitted_defaults = signature_config(
            CLIPViT, locals(), omit_defaults_from="text_head"
        )
        super().__init__(config, preprocessing, omitted_defaults, **{"name": "clip"} | kwargs)
        self.token_grid = TokenGrid.of_patches(image_shape, patch_size, prefix=1)
        policy = self.dtype_policy
        self.add_embedding(config, use_bias=False)
        self.pre_norm = LayerNormalization(epsilon=1e-5, dtype=policy, name="pre_norm")
        self.blocks = make_blocks(config, epsilon=1e-5, dtype=policy)
        self.norm = LayerNormalization(epsilon=1e-5, dtype=policy, name="norm")
        options = {"use_bias": False, "dtype": "float32", "name": "projection"}
        self.projection = layers.Dense(projection_dim, **options)
        self.embedding_dim = projection_dim
        self.head = self.make_head()
        self.build((None, *image_shape))

    first_taps = ("embedding", "pre_norm")

    @property
    def last_taps(self) -> tuple[str, ...]:
        return ("projected", *super().last_taps)

    def intermediates(self, images: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        """Every tap of the forward pass: dict from tap name to tensor, in depth order."""
        taps = {}
        taps["embedding"] = x = self.embedding(self.check_images(images), training=training)
        taps["pre_norm"] = x = self.pre_norm(x)
        x = self.pool(self.run_blocks(x, taps, training), taps)
        taps["projected"] = x = self.projection(x)
        if self.head:
            taps["logits"] = self.head(x)
        return taps

    def build(self, input_shape: Sequence[int | None]) -> None:
        super().build(input_shape)
        for layer in (self.pre_norm, self.projection):
            layer.build((None, self.embedding.hidden_dim))


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
