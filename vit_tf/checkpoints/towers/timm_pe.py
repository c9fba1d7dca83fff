"""The image encoder of PE-Core (Bolya et al. 2025) in timm's names (`eva.py`, `vit_pe_core_*`).

That of a CLIP whose queries and keys are rotated, and whose tokens a learned query pools. timm
writes its projection as a head whose bias is zero.
"""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import HALF, Part, Plan, dims, norm_part
from vit_tf.checkpoints.timm_vit import blocks_part, count_blocks
from vit_tf.checkpoints.token_parts import file_grid, pixels
from vit_tf.checkpoints.torch_blocks import (
    HEADS,
    fused_bias_part,
    guess_heads,
    halves_apart,
    patch_dims,
    patches_part,
)
from vit_tf.checkpoints.towers.pooling import TIMM, pooling_part
from vit_tf.checkpoints.towers.timm_clip import HEAD, projection

FAMILY = "PE-Core in timm's names"
# Heads of the pooling, of all sizes.
POOLING_HEADS = 8


def recognise(tensors):
    """Whether the names are those of this family."""
    return {"norm_pre.weight", "attn_pool.latent", "blocks.0.attn.qkv.weight"} <= set(tensors)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    wishes.refuse(FAMILY, "pooling")
    wishes.require_pooling("map")
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    layers, told = count_blocks(tensors), wishes.config
    heads = guess_heads(width, layers, wishes, known=HEADS | {(1536, 50): 16})
    wishes.check_heads(heads, width)
    prefix, num_positions = int("cls_token" in tensors), dims(tensors, "pos_embed", 3)[1]
    size = told.get("image_shape")
    grid = file_grid(num_positions, (prefix,), patch, wishes.image_shape, size)
    side = told.get("rotary_side") or (grid.rows, grid.columns)
    whole = patches_part("patch_embed.proj", width, channels, patch, bias=False)
    blocks = blocks_part(tensors, width, _biases_part)
    hidden = dims(tensors, "attn_pool.mlp.fc1.weight", 2)[0]
    whole |= blocks | halves_apart(blocks, width, heads)
    whole |= pooling_part("attn_pool", TIMM, width, hidden)
    arguments = {"image_shape": pixels(grid, channels), "num_heads": heads, "activation": "gelu"}
    arguments |= {"class_token": bool(prefix), "rotary_side": side}
    arguments |= {"pooling_heads": POOLING_HEADS, "pooling_mlp_dim": hidden}
    positions = Source({"pos_embed": (1, num_positions, width)})
    whole |= Part(arguments, {"embedding/positions": positions})
    if prefix:
        whole |= Part(sources={"embedding/prefix": Source({"cls_token": (1, 1, width)})})
    for layer, name in (("pre_norm", "norm_pre"), ("norm", "norm")):
        whole |= norm_part(layer, f"{name}.weight", f"{name}.bias", width)
    whole |= _projection_part(tensors, width, wishes)
    return Plan("CLIPViT", whole, "bicubic", HALF, 1.0)


def _biases_part(layer, name, width):
    return fused_bias_part(layer, f"{name}.attn.qkv.bias", width)


def _projection_part(tensors, width, wishes):
    """The projection; where the file has none, or features are asked for, the pooled token."""
    units = dims(tensors, HEAD[1], 1)[0] if HEAD[1] in tensors else None
    if units is None or wishes.num_classes == 0:
        identity = Source({}, partial(np.eye, width, dtype="float32"))
        sizes = {"projection_dim": width, "num_classes": wishes.num_classes or None}
        return Part(sizes, {"projection/kernel": identity}, unused=HEAD, new=("head/*",))
    kernel = Source({HEAD[0]: (units, width), HEAD[1]: (units,)}, projection)
    sizes = {"projection_dim": units, "num_classes": wishes.num_classes}
    return Part(sizes, {"projection/kernel": kernel}, new=("head/*",))
