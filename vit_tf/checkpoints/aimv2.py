"""AIMv2 (Fini et al. 2024) in timm's names and in those of transformers (`modeling_aimv2.py`).

A ViT of patches alone without biases, whose MLP is gated and whose tokens, and patches before
positions are added, are divided by their root mean square. The mean of its tokens is pooled.
"""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.hugging_face.configs import Config, image_fields
from vit_tf.checkpoints.hugging_face.processing import ends
from vit_tf.checkpoints.plans import CLIP, Part, Plan, dims, head_part
from vit_tf.checkpoints.timm_vit import count_blocks
from vit_tf.checkpoints.token_parts import TokenNames, file_grid, pixels, vit_embedding_part
from vit_tf.checkpoints.torch_blocks import (
    dense_part,
    fused_part,
    gate_part,
    guess_heads,
    no_bias,
    patch_dims,
    patches_part,
)

FAMILY = "AIMv2 in timm's names"
WHOLE = ("aimv2",)
TYPES = (*WHOLE, "aimv2_vision_model")
# Heads by width and layers, which differ from those of other ViTs.
HEADS = {(1024, 24): 8, (1536, 24): 12, (2048, 24): 16, (3072, 24): 24}
TIMM = {"norm1": "norm1", "qkv": "attn.qkv.weight", "out": "attn.proj", "norm2": "norm2"}
TIMM |= {"gate": "mlp.fc1_g", "up": "mlp.fc1_x", "down": "mlp.fc2"}
TRANSFORMERS = {which: f"attention.{which[0]}_proj" for which in ("query", "key", "value")}
TRANSFORMERS |= {"norm1": "rms_norm1", "out": "attention.out_proj", "norm2": "rms_norm2"}
TRANSFORMERS |= {"gate": "ffn.gate_proj", "up": "ffn.up_proj", "down": "ffn.down_proj"}
# Those of `Aimv2VisionConfig`.
DEFAULTS = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24}
DEFAULTS |= {"num_attention_heads": 8, "num_channels": 3, "image_size": 224, "patch_size": 14}
DEFAULTS |= {"rms_norm_eps": 1e-5, "qkv_bias": False, "mlp_bias": False, "hidden_act": "silu"}
DEFAULTS |= {"use_head": True, "is_native": False}
# The text encoder, and what it takes to compare images with texts.
UNUSED = ("text_model.*", "text_projection.*", "logit_scale")


def recognise(tensors):
    """Whether the names are those of this family."""
    return {"patch_embed.norm.weight", "blocks.0.mlp.fc1_g.weight"} <= set(tensors)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    wishes.require_pooling("gap")
    if wishes.pooling == "cls":
        raise ValueError("Expected pooling to be 'gap', without a class token. Received: 'cls'")
    layers, size = count_blocks(tensors), wishes.config.get("image_shape")
    heads = guess_heads(width, layers, wishes, known=HEADS)
    hidden = dims(tensors, "blocks.0.mlp.fc1_g.weight", 2)[0]
    names = TokenNames("pos_embed", "cls_token")
    whole = patches_part("patch_embed.proj", width, channels, patch)
    whole |= vit_embedding_part(tensors, names, patch, channels, wishes, size)
    whole |= _body_part(width, hidden, layers, heads, 1e-5, "blocks.{}", TIMM)
    whole |= _norm_part("embedding/patch_norm", "patch_embed.norm", width)
    whole |= _norm_part("norm", "norm", width)
    head = ("head.weight", "head.bias")
    whole |= head_part(tensors, width, wishes, *head, lambda n: (n, width), np.transpose)
    return Plan("ViT", whole, "bicubic", CLIP, 1.0)


def folder_plan(folder, wishes):
    """The `Plan` of an open folder of transformers'."""
    config = Config(DEFAULTS | image_fields(folder, WHOLE))
    for name, value in (("hidden_act", "silu"), ("qkv_bias", False), ("mlp_bias", False)):
        config.require(name, value)
    for name, what in (("use_head", "a head of attention"), ("is_native", "any size of images")):
        if config.flag(name, DEFAULTS[name]):
            raise ValueError(
                f"Expected {name} of config.json to be false: an AIMv2 with {what} is not "
                f"supported. Received: {name}=true"
            )
    sizes = ("hidden_size", "patch_size", "num_channels", "num_attention_heads")
    width, patch, channels, heads = map(config.whole, sizes)
    wishes.check_heads(heads, width)
    if wishes.pooling == "cls":
        raise ValueError("Expected pooling to be 'gap', without a class token. Received: 'cls'")
    image_shape = (*config.pair("image_size"), channels)
    outer = "vision_model." if folder.config["model_type"] in WHOLE else ""
    name = "embeddings.position_embedding.weight"
    num_positions = dims(folder.tensors, f"{outer}{name}", 2)[0]
    grid = file_grid(num_positions, (0,), patch, told=image_shape)
    shape = (num_positions, width)
    fit = partial(np.reshape, shape=(1, *shape))
    whole = patches_part("embeddings.patch_embed", width, channels, patch)
    whole |= Part(
        {"image_shape": pixels(grid, channels), "pooling": "gap"},
        {"embedding/positions": Source({name: shape}, fit)},
    )
    layers, hidden = config.whole("num_hidden_layers"), config.whole("intermediate_size")
    epsilon = config.number("rms_norm_eps")
    whole |= _body_part(width, hidden, layers, heads, epsilon, "encoder.layers.{}", TRANSFORMERS)
    whole |= _norm_part("embedding/patch_norm", "embeddings.rms_norm", width)
    whole |= _norm_part("norm", "rms_norm", width)
    whole = whole.under(outer) | Part(unused=(*UNUSED, "visual_projection.*"))
    whole |= head_part({}, width, wishes, "none", "none", lambda n: (n, width))
    return Plan("ViT", whole, positions="torch", **ends(folder, image_shape, False, wishes))


def _body_part(width, hidden, layers, heads, epsilon, stem, names):
    """The `Part` of all blocks, and of the sizes of the model.

    Args:
        width, hidden, layers, heads, epsilon: the size of the encoder.
        stem: name of a block, with `{}` for its number.
        names: `TIMM` or `TRANSFORMERS`.
    """
    sizes = {"num_layers": layers, "mlp_dim": hidden, "num_heads": heads, "epsilon": epsilon}
    sizes |= {"activation": "swiglu", "norm": "rms", "patch_norm": True}
    parts = [Part(sizes)]
    for i in range(layers):
        layer, block = f"block{i:02d}", stem.format(i)
        name = {part: f"{block}.{inner}" for part, inner in names.items()}
        if "qkv" in name:
            parts.append(fused_part(layer, name["qkv"], width))
            biases = {f"{layer}/{one}/bias": no_bias(width) for one in ("query", "key", "value")}
            parts.append(Part(sources=biases))
        else:
            for one in ("query", "key", "value"):
                parts.append(dense_part(f"{layer}/{one}", name[one], width, width, False))
        parts.append(dense_part(f"{layer}/out", name["out"], width, width, False))
        both = (name["gate"], name["up"])
        parts.append(gate_part(f"{layer}/expand", *both, width, hidden, False))
        parts.append(dense_part(f"{layer}/contract", name["down"], hidden, width, False))
        parts.append(_norm_part(f"{layer}/attention_norm", name["norm1"], width))
        parts.append(_norm_part(f"{layer}/mlp_norm", name["norm2"], width))
    return Part.join(parts)


def _norm_part(layer, name, width):
    return Part(sources={f"{layer}/scale": Source({f"{name}.weight": (width,)})})
