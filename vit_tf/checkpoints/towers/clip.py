"""The image encoder of CLIP in OpenAI's names (`clip/model.py`), which open_clip's files share."""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import CLIP, Part, Plan, count, dims, norm_part
from vit_tf.checkpoints.token_parts import file_grid, fit_positions, pixels
from vit_tf.checkpoints.torch_blocks import (
    CLIP_HEADS,
    block_part,
    fused_bias_part,
    guess_heads,
    patch_dims,
    patches_part,
)

FAMILY = "OpenAI's CLIP"
TOWER = "visual."
# Where the encoders lie: as they are, or as several devices trained them.
PREFIXES = ("", "module.")
# The numbers that OpenAI's own files hold, and they alone: what their code was traced with.
TRACED = ("input_resolution", "context_length", "vocab_size")
# The text encoder, and what it takes to compare images with texts.
UNUSED = (
    *("transformer.*", "token_embedding.*", "positional_embedding", "ln_final.*", "text.*"),
    *("text_projection", "logit_scale", "logit_bias", *TRACED),
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
    return _prefix(tensors) is not None


def _prefix(tensors):
    blocks = {prefix: f"{prefix}{TOWER}transformer.resblocks." for prefix in PREFIXES}
    found = (p for p in PREFIXES if any(name.startswith(blocks[p]) for name in tensors))
    return next(found, None)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors, of which only OpenAI's own determine the form of GELU."""
    activation = "quick_gelu" if any(name in tensors for name in TRACED) else None
    return tower_plan(tensors, wishes, asked(wishes, activation))


def asked(wishes, told=None):
    """The form of the GELU of a file of CLIP: that requested, or stated.

    Raises:
        ValueError: if there is neither: OpenAI trained with the quick form, most others with the
            exact one, in tensors of the same names and shapes.
    """
    activation = wishes.activation or told
    if activation is None:
        raise ValueError(
            "Expected activation='quick_gelu', as of OpenAI's and some later weights, or 'gelu', "
            "as of most of open_clip's, which a file of CLIP without open_clip_config.json does "
            "not state. Received: activation=None"
        )
    return activation


def tower_plan(tensors, wishes, activation, image_shape=None):
    """The `Plan` of a file's tensors.

    Args:
        tensors, wishes: those of the plan.
        activation: form of the GELU.
        image_shape: (height, width) of the file's images, where it states them.
    """
    wishes.refuse(FAMILY, "pooling")
    outer = _prefix(tensors)
    if outer is None:
        raise ValueError(
            f"Expected tensors '{TOWER}transformer.resblocks.*' of the image encoder of a CLIP. "
            "Received: none"
        )
    prefix = outer + TOWER
    inside = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    width, channels, patch = patch_dims(inside, "conv1.weight")
    projection = dims(inside, "proj", 2)[1]
    layers = count(inside, r"transformer\.resblocks\.(\d+)\.")
    whole = patches_part("conv1", width, channels, patch, bias=False)
    whole |= Part(
        {
            "num_heads": guess_heads(width, layers, wishes, known=CLIP_HEADS),
            "projection_dim": projection,
            "num_classes": wishes.num_classes or None,
            "activation": activation,
        },
        {"projection/kernel": Source({"proj": (width, projection)})},
        new=("head/*",),
    )
    whole |= _positions_part(inside, width, channels, patch, wishes, image_shape)
    whole |= _blocks_part(inside, width, layers)
    for layer, name in (("pre_norm", "ln_pre"), ("norm", "ln_post")):
        whole |= norm_part(layer, f"{name}.weight", f"{name}.bias", width)
    whole = whole.under(TOWER) | Part(unused=UNUSED)
    return Plan("CLIPViT", whole.under(outer), "bicubic", CLIP, 1.0)


def _positions_part(tensors, width, channels, patch, wishes, image_shape):
    num_positions = dims(tensors, "positional_embedding", 2)[0]
    grid = file_grid(num_positions, (1,), patch, wishes.image_shape, image_shape)
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
