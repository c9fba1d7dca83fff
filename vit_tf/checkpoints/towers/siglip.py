"""SigLIP and SigLIP 2 in timm's names, also within open_clip's files, and in big_vision's `.npz`.

All were trained with the tanh form of GELU, which timm's own code has of the later ones only.
"""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.google_vit import blocks_part as google_blocks_part
from vit_tf.checkpoints.plans import HALF, Part, Plan, dims, head_part, norm_part, square
from vit_tf.checkpoints.timm_vit import blocks_part, count_blocks
from vit_tf.checkpoints.torch_blocks import fused_bias_part, guess_heads, patch_dims, patches_part
from vit_tf.checkpoints.towers.pooling import TIMM, image_part, pooling_part

FAMILY = "SigLIP"
PROBE = "attn_pool.latent"
# Where timm's encoder lies, and what may lie next to it: in open_clip's files that for texts.
PREFIXES = {"": (), "visual.trunk.": ("text.*", "logit_scale", "logit_bias")}
GOOGLE = "params/img/"
# The text encoder, temperature and bias, and the state of an optimizer.
GOOGLE_UNUSED = ("params/txt/*", "params/t", "params/b", "opt/*", "chrono/*")
HEADS = {(768, 12): 12, (1024, 24): 16, (1152, 27): 16, (1536, 40): 16}


def recognise(tensors):
    """Whether the names are those of this family."""
    return f"{GOOGLE}MAPHead_0/probe" in tensors or _prefix(tensors) is not None


def _prefix(tensors):
    return next((p for p in PREFIXES if f"{p}{PROBE}" in tensors), None)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    wishes.refuse(FAMILY, "pooling")
    prefix = _prefix(tensors)
    if prefix is None:
        return _google_plan(tensors, wishes)
    inside = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    width, channels, patch = patch_dims(inside, "patch_embed.proj.weight")
    wishes.require_pooling("map")
    heads = guess_heads(width, count_blocks(inside), wishes, known=HEADS)
    whole = patches_part("patch_embed.proj", width, channels, patch)
    whole |= image_part(inside, "pos_embed", patch, channels, wishes)
    whole |= blocks_part(inside, width, _biases_part)
    if "activation" in whole.arguments:
        raise ValueError("Expected a SigLIP whose MLP has a GELU. Received: one with a gate")
    whole |= norm_part("norm", "norm.weight", "norm.bias", width)
    whole |= pooling_part("attn_pool", TIMM, width, whole.arguments["mlp_dim"])
    whole |= Part({"num_heads": heads})
    if wishes.activation is not None:
        whole |= Part({"activation": wishes.activation})
    names = ("head.weight", "head.bias")
    whole |= tower_head(inside, width, wishes, *names, lambda n: (n, width), np.transpose)
    whole = whole.under(prefix) | Part(unused=PREFIXES[prefix])
    return Plan("SigLIPViT", whole, "bicubic", HALF)


def _biases_part(layer, name, width):
    return fused_bias_part(layer, f"{name}.attn.qkv.bias", width)


def tower_head(tensors, width, wishes, *names):
    """The `Part` of a head, as `head_part` has it; an encoder without one returns its embedding."""
    part = head_part(tensors, width, wishes, *names)
    if not part.headless:
        return part
    return Part({"num_classes": None}, unused=part.unused, new=part.new)


def _google_plan(tensors, wishes):
    inside = {n.removeprefix(GOOGLE): t for n, t in tensors.items() if n.startswith(GOOGLE)}
    *patch, channels, width = dims(inside, "embedding/kernel", 4)
    size = square(inside, "embedding/kernel", *patch)
    patches = {
        "embedding/patches/kernel": Source({"embedding/kernel": (*patch, channels, width)}),
        "embedding/patches/bias": Source({"embedding/bias": (width,)}),
    }
    whole = Part({"patch_size": size, "hidden_dim": width}, patches)
    whole |= image_part(inside, "pos_embedding", size, channels, wishes)
    whole |= google_blocks_part(inside, width, wishes)
    norm = "Transformer/encoder_norm"
    whole |= norm_part("norm", f"{norm}/scale", f"{norm}/bias", width)
    sizes = (width, whole.arguments["num_heads"], whole.arguments["mlp_dim"])
    whole |= _google_pooling_part("MAPHead_0", *sizes)
    names = ("head/kernel", "head/bias")
    whole |= tower_head(inside, width, wishes, *names, lambda n: (width, n))
    return Plan("SigLIPViT", whole.under(GOOGLE) | Part(unused=GOOGLE_UNUSED))


def _google_pooling_part(name, width, heads, hidden):
    attention, mlp = f"{name}/MultiHeadDotProductAttention_0", f"{name}/MlpBlock_0"
    split = (heads, width // heads)
    flat = partial(np.reshape, shape=(width, width))
    sources = {
        "pooling/probe": Source({f"{name}/probe": (1, 1, width)}),
        "pooling/out/kernel": Source({f"{attention}/out/kernel": (*split, width)}, flat),
        "pooling/out/bias": Source({f"{attention}/out/bias": (width,)}),
    }
    for which in ("query", "key", "value"):
        kernel = {f"{attention}/{which}/kernel": (width, *split)}
        sources[f"pooling/{which}/kernel"] = Source(kernel, flat)
        sources[f"pooling/{which}/bias"] = Source({f"{attention}/{which}/bias": split}, np.ravel)
    for layer, dense, shape in (
        ("expand", "Dense_0", (width, hidden)),
        ("contract", "Dense_1", (hidden, width)),
    ):
        sources[f"pooling/{layer}/kernel"] = Source({f"{mlp}/{dense}/kernel": shape})
        sources[f"pooling/{layer}/bias"] = Source({f"{mlp}/{dense}/bias": shape[1:]})
    norm = norm_part("pooling/norm", f"{name}/LayerNorm_0/scale", f"{name}/LayerNorm_0/bias", width)
    return Part(sources=sources) | norm
