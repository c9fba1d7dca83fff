"""DINOv3 and EVA-02 in the names of timm's `eva.py`, and DINOv3 in those of its authors.

Both have rotary positions. timm rotates neighbouring channels of EVA-02; here they are half the
channels of a head apart, so the channels of queries and keys are reordered. timm pools a DINOv3
by the mean of its patches, its authors by the class token; so do their files here.
"""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import CLIP, IMAGENET, Part, Plan, dims, head_part, norm_part
from vit_tf.checkpoints.timm_vit import REGISTERS, SCALES, count_blocks
from vit_tf.checkpoints.token_parts import TokenNames, file_grid, pixels, unplaced_part
from vit_tf.checkpoints.torch_blocks import (
    HEADS,
    dense_part,
    gate_part,
    guess_heads,
    halves_apart,
    no_bias,
    patch_dims,
    patches_part,
    scales_part,
    third,
)

FAMILY = "DINOv3 and EVA-02 in timm's names"
# The registers of DINOv3 by the name of timm and of its authors.
TOKENS = (REGISTERS[0], "storage_tokens")
PERIODS = "rope_embed.periods"
# That of masked patches; periods, which follow from the size; and which biases of keys are none.
UNUSED = ("mask_token", PERIODS, "*.attn.qkv.bias_mask")
# Of images of 256 pixels, as timm and the code of DINOv3 evaluate.
DINO_TOKENS = 16
# The MLP as one layer, as a gate and what it gates, and the same in the names of the authors.
MLPS = (("mlp.fc1", "mlp.fc2"), ("mlp.fc1_g", "mlp.fc1_x", "mlp.fc2"))
MLPS += (("mlp.w1", "mlp.w2", "mlp.w3"),)


def recognise(tensors):
    """Whether the names are those of this family."""
    return "blocks.0.norm1.weight" in tensors and (_is_dinov3(tensors) or _is_eva(tensors))


def _is_dinov3(tensors):
    return "pos_embed" not in tensors and any(name in tensors for name in TOKENS)


def _is_eva(tensors):
    return "pos_embed" in tensors and any(
        f"blocks.0.attn.{name}" in tensors for name in ("q_bias", "q_proj.weight")
    )


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    return (_dinov3 if _is_dinov3(tensors) else _eva02)(tensors, wishes)


def _dinov3(tensors, wishes):
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    told, averaged = wishes.config, "fc_norm.weight" in tensors
    if averaged != (told.get("rotation") == "eva"):
        raise ValueError(
            "Expected a DINOv3, whose last normalisation comes before pooling, or a folder of "
            "timm's, with config.json, of its ViTs with rotary positions and the mean of patches. "
            f"Received: {'' if averaged else 'no '}tensors 'fc_norm.*', "
            f"rotation={told.get('rotation')}"
        )
    layers = count_blocks(tensors)
    if PERIODS in tensors:
        heads = _told_heads(dims(tensors, PERIODS, 1)[0], width, wishes)
    else:
        heads = guess_heads(width, layers, wishes, known=HEADS | {(1280, 32): 20, (4096, 40): 32})
    side = DINO_TOKENS * patch
    whole = patches_part("patch_embed.proj", width, channels, patch)
    whole |= Part(
        {
            "image_shape": (side, side, channels),
            "num_heads": heads,
            "key_bias": False,
            "epsilon": 1e-5,
            "position_type": "rotary",
            "layer_scale": 1e-5,
        },
        unused=UNUSED,
    )
    registers = next(name for name in TOKENS if name in tensors)
    if averaged:
        size = told.get("image_shape") or told.get("input_size") or (side, side)
        wishes.require_pooling("gap", True)
        own = {"image_shape": (*size, channels), "epsilon": told["epsilon"], "fc_norm": True}
        whole |= Part(own | {"rotation": "eva"})
    names = TokenNames(None, "cls_token", None, registers)
    timms = registers == TOKENS[0]
    whole |= unplaced_part(tensors, names, width, wishes, "gap" if timms else "cls")
    blocks = _blocks_part(tensors, width, layers)
    whole |= halves_apart(blocks, width, heads) if averaged else blocks
    scale = next((name for name in SCALES if f"blocks.0.{name}" in tensors), "gamma_1")
    for i in range(layers):
        scales = (f"blocks.{i}.{name}" for name in (scale, SCALES[scale]))
        whole |= scales_part(f"block{i:02d}", *scales, width)
    norm = "fc_norm" if averaged else "norm"
    whole |= norm_part(norm, f"{norm}.weight", f"{norm}.bias", width)
    head = ("head.weight", "head.bias") if averaged else ("none", "none")
    whole |= head_part(tensors, width, wishes, *head, lambda n: (n, width), np.transpose)
    ends = ("bicubic", IMAGENET, 1.0) if timms else ("bilinear", IMAGENET, None)
    return Plan("ViT", whole, *ends, any_size=True)


def _told_heads(periods, width, wishes):
    """The number of heads, of whose channels each quarter has a period."""
    if width % (4 * periods):
        raise ValueError(
            f"Expected the tensor {PERIODS!r} to have a period for each quarter of the channels of "
            f"a head. Received: {periods} of {width} channels"
        )
    wishes.check_heads(width // (4 * periods), width)
    return width // (4 * periods)


def _eva02(tensors, wishes):
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    layers = count_blocks(tensors)
    heads = guess_heads(width, layers, wishes)
    wishes.check_heads(heads, width)
    num_positions = dims(tensors, "pos_embed", 3)[1]
    told = wishes.config.get("image_shape")
    grid = file_grid(num_positions, (1, 0), patch, wishes.image_shape, told)
    whole = patches_part("patch_embed.proj", width, channels, patch)
    blocks = halves_apart(_blocks_part(tensors, width, layers), width, heads)
    if blocks.arguments["activation"] != "swiglu" or not grid.prefix:
        raise ValueError(
            "Expected an EVA-02, whose MLP is gated and whose class token has a position. "
            "Received: tensors of another EVA, which is not supported"
        )
    whole |= blocks | Part(
        {
            "image_shape": pixels(grid, channels),
            "num_heads": heads,
            "position_type": "rotary",
            "layer_scale": None,
        },
        {
            "embedding/prefix": Source({"cls_token": (1, 1, width)}),
            "embedding/positions": Source({"pos_embed": (1, num_positions, width)}),
        },
        unused=UNUSED,
    )
    # Only a mean of patches is normalised after it.
    name = "fc_norm" if "fc_norm.weight" in tensors else "norm"
    averaged = name == "fc_norm"
    wishes.require_pooling("gap" if averaged else "cls", averaged)
    pooling = wishes.pooling or ("gap" if averaged else "cls")
    layer = "fc_norm" if pooling == "gap" else "norm"
    whole |= norm_part(layer, f"{name}.weight", f"{name}.bias", width) | Part({"pooling": pooling})
    names = ("head.weight", "head.bias")
    whole |= head_part(tensors, width, wishes, *names, lambda n: (n, width), np.transpose)
    return Plan("BEiT", whole, "bicubic", CLIP, 1.0)


def _blocks_part(tensors, width, layers):
    """The `Part` of all blocks but for their scales.

    Args:
        tensors, width: those of the plan.
        layers: number of blocks.
    """
    mlp = next((names for names in MLPS if f"blocks.0.{names[0]}.weight" in tensors), MLPS[0])
    first, last = (dims(tensors, f"blocks.0.{mlp[i]}.weight", 2) for i in (0, -1))
    gated, hidden = len(mlp) == 3 or first[0] == 2 * last[1], last[1]
    inner = {"attention": "attn.norm", "mlp": "mlp.norm"}
    inner = {s: name for s, name in inner.items() if f"blocks.0.{name}.weight" in tensors}
    sizes = {"num_layers": layers, "mlp_dim": hidden}
    sizes |= {"activation": "swiglu" if gated else "gelu"}
    parts = [Part(sizes | ({"sub_norm": tuple(inner)} if inner else {}))]
    for i in range(layers):
        layer, name = f"block{i:02d}", f"blocks.{i}"
        for which in ("query", "key", "value"):
            parts.append(_projection_part(tensors, layer, name, which, width))
        parts.append(dense_part(f"{layer}/out", f"{name}.attn.proj", width, width))
        if len(mlp) == 3:
            both = (f"{name}.{one}" for one in mlp[:2])
            parts.append(gate_part(f"{layer}/expand", *both, width, hidden))
        else:
            units = 2 * hidden if gated else hidden
            parts.append(dense_part(f"{layer}/expand", f"{name}.{mlp[0]}", width, units))
        parts.append(dense_part(f"{layer}/contract", f"{name}.{mlp[-1]}", hidden, width))
        norms = [("attention_norm", "norm1", width), ("mlp_norm", "norm2", width)]
        ours = {"attention": ("heads_norm", width), "mlp": ("hidden_norm", hidden)}
        norms += [(ours[site][0], one, ours[site][1]) for site, one in inner.items()]
        for norm, one, units in norms:
            both = (f"{name}.{one}.{end}" for end in ("weight", "bias"))
            parts.append(norm_part(f"{layer}/{norm}", *both, units))
    return Part.join(parts)


def _projection_part(tensors, layer, name, which, width):
    """The `Part` of a projection to queries, keys or values, of which keys have no bias."""
    index, attention = ("query", "key", "value").index(which), f"{name}.attn"
    share = partial(third, index=index)
    if f"{attention}.qkv.weight" in tensors:
        kernel = Source({f"{attention}.qkv.weight": (3 * width, width)}, share)
    else:
        kernel = Source({f"{attention}.{which[0]}_proj.weight": (width, width)}, np.transpose)
    sources = {f"{layer}/{which}/kernel": kernel}
    if which != "key":
        stored = (f"{attention}.{which[0]}_{end}" for end in ("bias", "proj.bias"))
        stored = next((one for one in stored if one in tensors), None)
        if f"{attention}.qkv.bias" in tensors:
            bias = Source({f"{attention}.qkv.bias": (3 * width,)}, share)
        else:
            bias = Source({stored: (width,)}) if stored else no_bias(width)
        sources[f"{layer}/{which}/bias"] = bias
    return Part(sources=sources)
