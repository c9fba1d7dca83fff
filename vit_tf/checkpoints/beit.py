"""BEiT and BEiT v2 in the names of their releases (unilm's `modeling_finetune.py`) and timm's."""

import math
from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import Part, Plan, dims, head_part, norm_part
from vit_tf.checkpoints.timm_vit import blocks_part
from vit_tf.checkpoints.token_parts import pixels
from vit_tf.checkpoints.torch_blocks import patch_dims, patches_part
from vit_tf.tokens import TokenGrid

FAMILY = "BEiT"
SHARED = "rel_pos_bias.relative_position_bias_table"
TABLE = "attn.relative_position_bias_table"
# Indices that follow from the size; heads and layers that predict visual tokens in pretraining.
UNUSED = ("*relative_position_index", "mask_token", "lm_head.*", "cls_pt_layers.*")
# Tokens along a side, as the pairs of all of them are indexed: images of 1024 pixels, as a rule.
LARGEST_SIDE = 64


def recognise(tensors):
    """Whether the names are those of this family."""
    return SHARED in tensors or f"blocks.0.{TABLE}" in tensors


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    shared = SHARED in tensors
    table = dims(tensors, SHARED if shared else f"blocks.0.{TABLE}", 2)
    grid = _grid(table[0], patch, wishes.config.get("image_shape"), wishes.image_shape)
    heads = table[1]
    wishes.check_heads(heads, width)
    whole = patches_part("patch_embed.proj", width, channels, patch)
    whole |= Part(
        {
            "image_shape": pixels(grid, channels),
            "num_heads": heads,
            "shared_bias": shared,
        },
        {"embedding/prefix": Source({"cls_token": (1, 1, width)})},
        unused=UNUSED,
    )
    if shared:
        whole |= Part(sources={"bias/table": Source({SHARED: table})})
    whole |= blocks_part(tensors, width, partial(_biases_part, table=None if shared else table))
    if "activation" in whole.arguments:
        raise ValueError(
            "Expected a BEiT whose MLP has a GELU. Received: one that expands to twice as many "
            "channels as it contracts, for a gate"
        )
    whole |= _end_part(tensors, width, wishes)
    return Plan("BEiT", whole, "bicubic", positions="bilinear")


def _end_part(tensors, width, wishes):
    """The last norm, whose name determines the pooling, and the head."""
    name = "fc_norm" if "fc_norm.weight" in tensors else "norm"
    averaged = name == "fc_norm"
    wishes.require_pooling("gap" if averaged else "cls", averaged)
    pooling = wishes.pooling or ("gap" if averaged else "cls")
    layer = "fc_norm" if pooling == "gap" else "norm"
    norm = norm_part(layer, f"{name}.weight", f"{name}.bias", width)
    names = ("head.weight", "head.bias")
    head = head_part(tensors, width, wishes, *names, lambda classes: (classes, width), np.transpose)
    return Part({"pooling": pooling}) | norm | head


def _biases_part(layer, name, width, table):
    """The biases of query and value, the scales and, unless it is shared, the table of a block."""
    sources = {
        f"{layer}/query/bias": Source({f"{name}.attn.q_bias": (width,)}),
        f"{layer}/value/bias": Source({f"{name}.attn.v_bias": (width,)}),
        f"{layer}/attention_scale": Source({f"{name}.gamma_1": (width,)}),
        f"{layer}/mlp_scale": Source({f"{name}.gamma_2": (width,)}),
    }
    if table:
        sources[f"{layer}_bias/table"] = Source({f"{name}.{TABLE}": table})
    return Part(sources=sources)


def _grid(entries, patch, told, wished):
    """The `TokenGrid` of R rows and C columns that have (2 R - 1) (2 C - 1) + 3 entries.

    That of the images that are given, or else requested where it fits, or else a square.
    """
    image_shape = told or wished
    rows, columns = (n // patch for n in (image_shape or (0, 0))[:2])
    if _entries(rows, columns) != entries and told is None:
        rows = columns = (math.isqrt(max(entries - 3, 0)) + 1) // 2
    if _entries(rows, columns) != entries or not 1 <= max(rows, columns) <= LARGEST_SIDE:
        raise ValueError(
            "Expected a table of relative positions of a square grid of at most "
            f"{LARGEST_SIDE} tokens a side, or that of image_shape. "
            f"Received: {entries} entries, image_shape={image_shape}"
        )
    return TokenGrid(rows, columns, 1, patch)


def _entries(rows, columns):
    return (2 * rows - 1) * (2 * columns - 1) + 3
