"""BEiT (Bao et al. 2021, https://arxiv.org/abs/2106.08254) and BEiT v2 (2208.06366).

And other encoders with a class token whose head reads the normalised mean of their patches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
from keras import ops

from vit_tf.common.backend import Tensor
from vit_tf.common.names import lookup
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.model import ConfiguredLayer, as_grid, zero_head
from vit_tf.models.transformer import POOLINGS, TransformerModel
from vit_tf.models.vit import SIZES

register = keras.saving.register_keras_serializable("vit_tf")

# Whether positions are added to the tokens.
_POSITIONS = {"relative": False, "learned": True}


def relative_index(rows: int, columns: int) -> np.ndarray:
    """Which entry of a table of relative positions each pair of tokens reads: (query, key).

    For a query at (r, c) and a key at (r', c') it is `(r - r' + R - 1) (2 C - 1) + c - c' + C - 1`
    of R rows and C columns. Three entries at the end are for a CLS query, a CLS key and both.
    """
    row, column = np.indices((rows, columns)).reshape(2, -1)
    down = row[:, None] - row[None, :] + rows - 1
    right = column[:, None] - column[None, :] + columns - 1
    count = (2 * rows - 1) * (2 * columns - 1)
    index = np.empty((1 + len(row), 1 + len(row)), "int32")
    index[1:, 1:] = down * (2 * columns - 1) + right
    index[0, :], index[:, 0], index[0, 0] = count, count + 1, count + 2
    return index


@register
class RelativeBias(ConfiguredLayer):
    """A learned number per head and relative position: biases of shape (head, query, key)."""

    def __init__(self, grid: TokenGrid | dict, num_heads: int, **kwargs: Any):
        grid = as_grid(grid)
        super().__init__({"grid": asdict(grid), "num_heads": num_heads}, **kwargs)
        self.num_heads = num_heads
        self.index = relative_index(grid.rows, grid.columns)

    def build(self, input_shape: Sequence[int | None]) -> None:
        shape = (int(self.index.max()) + 1, self.num_heads)
        self.table = self.add_weight(shape=shape, initializer="zeros", name="table")

    def call(self, tokens: Tensor) -> Tensor:
        # What the tokens hold does not matter: they tie the table to the graph of a submodel.
        return ops.take(ops.transpose(self.table), self.index, axis=1)


@register
class BEiT(TransformerModel):
    """A BEiT; `submodel` returns any intermediate activation (tap) by name.

    A BEiT differs from a `ViT` in three ways. Relative position biases are added to the attention
    scores, whereas a `ViT` adds absolute position embeddings to the tokens. The key projections
    have no bias. Each branch is scaled by learned factors (LayerScale), and the tap `branch` is the
    scaled branch.

    The model is called on images of shape (example, height, width, channel), by default with values
    in [-1, 1]. It returns logits of shape (example, num_classes).

    Args:
        image_shape: shape (height, width, channels) of the images, in pixels. Height and width must
            be multiples of `patch_size`.
        patch_size: side of a patch, in pixels.
        num_layers, num_heads, hidden_dim, mlp_dim: number of blocks, number of attention heads,
            dimension of a token, and hidden dimension of the MLPs.
        num_classes: number of logits. The head is initialized with zeros.
        pooling: input of the head. `"gap"` is the mean of the spatial tokens, normalised after
            averaging. With `"gap"`, there is a tap `fc_norm` and no tap `norm`. `"cls"` is the
            normalised class token.
        shared_bias: whether all blocks share one table of relative position biases, as in
            pre-training. If False, each block has its own table.
        layer_scale: initial value of the factors of LayerScale. None disables LayerScale.
        without_skips: names of the blocks or sublayers whose skip connections are removed, such as
            `"block06"` or `"block07/mlp"`.
        dropout_rate: dropout rate after the embedding and each projection.
        preprocessing: `vit_tf.Preprocessing` of the model's images. None means images with values
            in [-1, 1].
        position_type: `"relative"` for relative position biases, or `"learned"` for learned
            position embeddings, as in the fine-tuned ViT of MAE (He et al. 2021,
            https://arxiv.org/abs/2111.06377, appendix A.1).
        activation: as for `ViT`.
        epsilon: small constant that all normalisation layers add to the variance.
        key_bias: whether the key projections of the attention have a bias.

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
        *,
        pooling: str = "gap",
        shared_bias: bool = False,
        layer_scale: float | None = 0.1,
        without_skips: str | Iterable[str] = (),
        dropout_rate: float = 0.0,
        preprocessing: Preprocessing | dict | None = None,
        position_type: str = "relative",
        activation: str = "gelu",
        epsilon: float = 1e-6,
        key_bias: bool = False,
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
            "shared_bias": shared_bias,
            "layer_scale": layer_scale,
            "without_skips": without_skips,
            "dropout_rate": dropout_rate,
            "position_type": position_type,
            "activation": activation,
            "epsilon": epsilon,
            "key_bias": key_bias,
        }
        super().__init__(config, preprocessing, **{"name": "beit"} | kwargs)
        self.pooling, self.fc_norm = pooling, pooling == "gap"
        lookup("pooling", pooling, POOLINGS)
        self.token_grid = grid = TokenGrid.of_patches(self.image_shape, patch_size, prefix=1)
        added = lookup("position_type", position_type, _POSITIONS)
        self.add_embedding(hidden_dim, dropout_rate, use_positions=added)
        self.add_blocks(epsilon, key_bias=key_bias, layer_scale=layer_scale)
        if not added:
            names = ["bias"] if shared_bias else [f"{block.name}_bias" for block in self.blocks]
            policy = self.dtype_policy
            self.biases = [RelativeBias(grid, num_heads, dtype=policy, name=name) for name in names]
        self.head = zero_head(num_classes)
        self.build((None, *self.image_shape))


# Bao et al. 2021, section 3.1, with the first scales of the released code.
BEiT.variants = {
    f"{size}/16": {**SIZES[size], "patch_size": 16, "layer_scale": scale}
    for size, scale in (("B", 0.1), ("L", 1e-5))
}
