"""Vision Transformers in timm's names: supervised, DeiT, DINO, MAE's encoder and MoCo-v3.

The names are those of timm's `vision_transformer.py`, which DeiT, DINO, DINOv2, MAE and MoCo-v3
share but for a few; all have the exact GELU and an epsilon of 1e-6. MAE's encoder, fine-tuned,
hands the mean of its patches to a normalisation and then to its head, as a BEiT does.
"""

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import (
    HALF,
    IMAGENET,
    Part,
    Plan,
    count,
    dims,
    head_part,
    norm_part,
)
from vit_tf.checkpoints.token_parts import TokenNames, file_grid, pixels, vit_embedding_part
from vit_tf.checkpoints.torch_blocks import (
    block_part,
    dense_part,
    fused_bias_part,
    guess_heads,
    patch_dims,
    patches_part,
)

FAMILY = "Vision Transformers in timm's names"
MOCO = "module.base_encoder."
# Where the encoder lies, and what may lie beside it: MoCo-v3's other half, the projection of DINO.
PREFIXES = {
    "": (),
    MOCO: ("module.momentum_encoder.*", "module.predictor.*"),
    "backbone.": ("head.*",),
    "module.backbone.": ("module.head.*",),
    "module.": (),
    "model.": (),
    "encoder.": (),
}
# timm's registers and scales, and those of DINOv2's own code and of DeiT-3's.
REGISTERS = ("reg_token", "register_tokens")
SCALES = {"ls1.gamma": "ls2.gamma", "gamma_1": "gamma_2"}
# MAE's decoder, which a whole checkpoint holds as well.
UNUSED = ("decoder_*", "mask_token")
NAMES = {
    "norm1": "norm1",
    "qkv": "attn.qkv.weight",
    "out": "attn.proj",
    "norm2": "norm2",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
# The gated MLP of DINOv2's own code.
GATED = {"fc1": "mlp.w12", "fc2": "mlp.w3"}


def recognise(tensors):
    """Whether the names are those of this family."""
    return _prefix(tensors) is not None


def _prefix(tensors):
    found = (p for p in PREFIXES if f"{p}patch_embed.proj.weight" in tensors)
    with_blocks = (p for p in found if any(name.startswith(f"{p}blocks.") for name in tensors))
    return next(with_blocks, None)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    prefix = _prefix(tensors)
    inside = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    if "fc_norm.weight" in inside:
        whole = _averaged_part(inside, prefix, wishes).under(prefix)
        return Plan("BEiT", whole | Part(unused=PREFIXES[prefix]), "bicubic", IMAGENET)
    width, channels, patch = patch_dims(inside, "patch_embed.proj.weight")
    whole = patches_part("patch_embed.proj", width, channels, patch)
    whole |= Part({"num_heads": _heads(inside, width, prefix, wishes)}, unused=UNUSED)
    registers = next((name for name in REGISTERS if name in inside), None)
    tokens = TokenNames("pos_embed", "cls_token", "dist_token", registers)
    whole |= vit_embedding_part(inside, tokens, patch, channels, wishes)
    whole |= _blocks_part(inside, width)
    whole |= norm_part("norm", "norm.weight", "norm.bias", width)
    whole |= _head_part(inside, width, wishes, prefix)
    # Self-supervised encoders come without a head, and are trained on ImageNet's mean and std, as
    # are DeiT, which alone has a token of distillation, and DeiT-3, with scales and a head.
    plain = "dist_token" not in inside and "layer_scale" not in whole.arguments
    values = HALF if "head.bias" in inside and plain else IMAGENET
    # The code of DINOv2 antialiases for its models with registers only.
    positions = "dino" if "mask_token" in inside and registers is None and not plain else None
    whole = whole.under(prefix) | Part(unused=PREFIXES[prefix])
    return Plan("ViT", whole, "bicubic", values, positions=positions)


def _averaged_part(tensors, prefix, wishes):
    """The whole of an encoder whose head reads the mean of its patches, normalised after it."""
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    num_positions = dims(tensors, "pos_embed", 3)[1]
    others = ("norm.weight", "dist_token", "pre_logits.fc.weight", *REGISTERS)
    found = [name for name in others if name in tensors]
    # Other tokens may have positions, which make no grid then.
    grid = None if found else file_grid(num_positions, 1, patch, wishes.image_shape)
    placed = grid is not None and grid.prefix and "cls_token" in tensors
    if not placed or wishes.pooling == "cls":
        raise ValueError(
            "Expected an encoder with 'fc_norm.*' to have a class token with a position, no other "
            "token and no other normalisation, and to pool by the mean of its patches. Received: "
            f"{num_positions} positions, {', '.join(found) or 'cls_token' in tensors}, "
            f"pooling={wishes.pooling!r}"
        )
    sizes = {
        "image_shape": pixels(grid, channels),
        "num_heads": _heads(tensors, width, prefix, wishes),
        "position_type": "learned",
        "key_bias": True,
        "layer_scale": None,
    }
    sources = {
        "embedding/prefix": Source({"cls_token": (1, 1, width)}),
        "embedding/positions": Source({"pos_embed": (1, num_positions, width)}),
    }
    whole = patches_part("patch_embed.proj", width, channels, patch)
    whole |= Part(sizes, sources, unused=UNUSED) | _blocks_part(tensors, width)
    whole |= norm_part("fc_norm", "fc_norm.weight", "fc_norm.bias", width)
    return whole | _end(tensors, width, wishes)


def count_blocks(tensors):
    """Number of blocks of a file's encoder."""
    return count(tensors, r"blocks\.(\d+)\.")


def _blocks_part(tensors, width):
    """The `Part` of all blocks, their scales and gates included."""
    names = dict(NAMES)
    scale = next((name for name in SCALES if f"blocks.0.{name}" in tensors), None)
    if scale:
        names |= {"scale1": scale, "scale2": SCALES[scale]}
    if f"blocks.0.{GATED['fc1']}.bias" in tensors:
        names |= GATED
    part = blocks_part(tensors, width, _biases_part, names)
    return part | Part({"layer_scale": 1e-5}) if scale else part


def blocks_part(tensors, width, biases, names=NAMES):
    """The `Part` of all blocks.

    Args:
        tensors, width: those of the plan.
        biases: function of a block's names in the model and in the file, and of the width, to the
            `Part` of the biases of query, key and value, and of what else a block may have.
        names: as for `block_part`. An MLP that contracts half as many channels as it expands to
            is gated.
    """
    expanded = dims(tensors, f"blocks.0.{names['fc1']}.bias", 1)[0]
    contracted = tensors.get(f"blocks.0.{names['fc2']}.weight")
    gated = contracted is not None and (expanded,) == tuple(2 * n for n in contracted.shape[1:])
    hidden = expanded // 2 if gated else expanded
    layers = count_blocks(tensors)
    gate = {"activation": "swiglu"} if gated else {}
    parts = [Part({"num_layers": layers, "mlp_dim": hidden} | gate)]
    for i in range(layers):
        both = (f"block{i:02d}", f"blocks.{i}")
        parts += [block_part(*both, names, width, hidden, gated), biases(*both, width)]
    return Part.join(parts)


def _biases_part(layer, name, width):
    return fused_bias_part(layer, f"{name}.attn.qkv.bias", width)


def _heads(tensors, width, prefix, wishes):
    """The number of heads. Small models have 6, but that of MoCo-v3 12, in tensors of one shape.

    It is told by MoCo-v3's own prefix, unless by a known name, a head beside plain names, as of
    DeiT and AugReg, the scales of DINOv2, or DINO's prefix. MoCo-v3's probes and conversions
    leave it open.
    """
    small = width == 384 and wishes.num_heads is None
    if small and prefix == MOCO:
        return 12
    labelled = "head.bias" in tensors and prefix in ("", "model.")
    labelled = labelled or any(f"blocks.0.{scale}" in tensors for scale in SCALES)
    told = wishes.known_name or labelled or prefix.endswith("backbone.")
    other = 12 if small and not told else None
    return guess_heads(width, count_blocks(tensors), wishes, other)


def _head_part(tensors, width, wishes, prefix):
    """The head, and timm's layer of tanh before it, which goes with a head that is replaced."""
    if prefix == MOCO:
        # Its head is an MLP that projects for the contrast between images.
        tensors = {name: t for name, t in tensors.items() if not name.startswith("head.")}
        return _end(tensors, width, wishes) | Part(unused=("head.*",))
    if "dist_token" in tensors:
        return _heads_part(tensors, width, wishes)
    before, read = Part(), width
    if "pre_logits.fc.bias" in tensors:
        read = dims(tensors, "pre_logits.fc.bias", 1)[0]
        before = Part({"representation_dim": read})
        before |= dense_part("pre_logits", "pre_logits.fc", width, read)
    end = _end(tensors, read, wishes)
    if end.new and not end.headless:
        return _end(tensors, width, wishes) | Part(unused=("pre_logits.*",))
    return before | end


def _heads_part(tensors, width, wishes):
    """The head of the class token and, where there is one, that of distillation."""
    end = _end(tensors, width, wishes)
    if "head_dist.bias" not in tensors:
        return end | Part({"distillation": "token"})
    other = _end(tensors, width, wishes, "head_dist").renamed("head/", "distillation_head/")
    return end | other | Part({"distillation": "heads"})


def _end(tensors, width, wishes, name="head"):
    names = (f"{name}.weight", f"{name}.bias")
    return head_part(tensors, width, wishes, *names, lambda classes: (classes, width), np.transpose)
