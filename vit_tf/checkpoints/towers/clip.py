"""The image tower of CLIP in OpenAI's names (`clip/model.py`), which open_clip's files share."""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import (
    CLIP,
    Part,
    Plan,
    count,
    dims,
    norm_part,
)
from vit_tf.checkpoints.token_parts import file_grid, fit_positions, pixels
from vit_tf.checkpoints.torch_blocks import (
    block_part,
    fused_bias_part,
    guess_heads,
    patch_dims,
    patches_part,
)

FAMILY = "OpenAI's CLIP"
# The text tower, and what it takes to compare images with texts.
UNUSED = (
    *("transformer.*", "token_embedding.*", "positional_embedding", "ln_final.*"),
    *("text_projection", "logit_scale", "input_resolution", "context_length", "vocab_size"),
)
NAMES = {
    "norm1": "ln_1",
    "qkv": "attn.in_proj_weight",
    "out": "attn.out_proj",
    "norm2": "ln_2",
    "fc1": "mlp.c_fc",
    "fc2": "mlp.c_proj",
}


def recognise(tensors):
    """Whether the names are those of this family."""
    return any(name.startswith("visual.transformer.resblocks.") for name in tensors)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    wishes.refuse(FAMILY, "pooling")
    inside = {n[len("visual.") :]: t for n, t in tensors.items() if n.startswith("visual.")}
    width, channels, patch = patch_dims(inside, "conv1.weight")
    projection = dims(inside, "proj", 2)[1]
    layers = count(inside, r"transformer\.resblocks\.(\d+)\.")
    whole = patches_part("conv1", width, channels, patch, bias=False)
    whole |= Part(
        {
            "num_heads": guess_heads(width, layers, wishes),
            "projection_dim": projection,
            "num_classes": wishes.num_classes,
        },
        {"projection/kernel": Source({"proj": (width, projection)})},
        new=("head/*",),
    )
    whole |= _positions_part(inside, width, channels, patch, wishes)
    whole |= _blocks_part(inside, width, layers)
    for layer, name in (("pre_norm", "ln_pre"), ("norm", "ln_post")):
        whole |= norm_part(layer, f"{name}.weight", f"{name}.bias", width)
    return Plan("CLIPViT", whole.under("visual.") | Part(unused=UNUSED), "bicubic", CLIP, 1.0)


def _positions_part(tensors, width, channels, patch, wishes):
    num_positions = dims(tensors, "positional_embedding", 2)[0]
    grid = file_grid(num_positions, 1, patch, wishes.image_shape)
    fit = partial(fit_positions, grid=grid, prefix=1)
    as_tokens = partial(np.reshape, shape=(1, 1, width))
    return Part(
        {"image_shape": pixels(grid, channels)},
        {
            "embedding/prefix": Source({"class_embedding": (width,)}, as_tokens),
            "embedding/positions": Source({"positional_embedding": (num_positions, width)}, fit),
        },
    )


def _blocks_part(tensors, width, layers):
    hidden = dims(tensors, "transformer.resblocks.0.mlp.c_fc.bias", 1)[0]
    parts = [Part({"num_layers": layers, "mlp_dim": hidden})]
    for i in range(layers):
        layer, name = f"block{i:02d}", f"transformer.resblocks.{i}"
        parts.append(block_part(layer, name, NAMES, width, hidden))
        parts.append(fused_bias_part(layer, f"{name}.attn.in_proj_bias", width))
    return Part.join(parts)
