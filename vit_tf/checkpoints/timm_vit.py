"""Vision Transformers in timm's names: supervised, DINO, MAE's encoder and MoCo-v3.

The names are those of timm's `vision_transformer.py`, which DINO, MAE and MoCo-v3 share; all have
the exact GELU and an epsilon of 1e-6.
"""

import numpy as np

from vit_tf.checkpoints.plans import (
    HALF,
    IMAGENET,
    Part,
    Plan,
    count,
    dims,
    head_part,
    norm_part,
    vit_embedding_part,
)
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
# What no model here has, by the tensor that tells it (DeiT; Darcet et al. 2023).
UNSUPPORTED = {
    "dist_token": "a distillation token",
    "reg_token": "register tokens",
    "register_tokens": "register tokens",
}
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
    if any(name.startswith("fc_norm.") for name in inside):
        raise ValueError(
            "Expected a ViT whose last normalisation comes before pooling. Received: tensors "
            "'fc_norm.*', of one that comes after it"
        )
    for name, what in UNSUPPORTED.items():
        if name in inside:
            raise ValueError(
                f"Expected a ViT without {what}, which no model here has. "
                f"Received: the tensor {name!r} of shape {inside[name].shape}"
            )
    width, channels, patch = patch_dims(inside, "patch_embed.proj.weight")
    whole = patches_part("patch_embed.proj", width, channels, patch)
    whole |= Part({"num_heads": _heads(inside, width, prefix, wishes)}, unused=UNUSED)
    whole |= vit_embedding_part(inside, "pos_embed", "cls_token", patch, channels, wishes)
    whole |= blocks_part(inside, width, _biases_part)
    whole |= norm_part("norm", "norm.weight", "norm.bias", width)
    whole |= _head_part(inside, width, wishes, prefix)
    # Self-supervised encoders come without a head, and are trained on ImageNet's mean and std.
    values = HALF if "head.bias" in inside else IMAGENET
    return Plan("ViT", whole.under(prefix) | Part(unused=PREFIXES[prefix]), "bicubic", values)


def count_blocks(tensors):
    """Number of blocks of a file's encoder."""
    return count(tensors, r"blocks\.(\d+)\.")


def blocks_part(tensors, width, biases):
    """The `Part` of all blocks.

    Args:
        tensors, width: those of the plan.
        biases: function of a block's names in the model and in the file, and of the width, to the
            `Part` of the biases of query, key and value, and of what else a block may have.
    """
    hidden = dims(tensors, "blocks.0.mlp.fc1.bias", 1)[0]
    layers = count_blocks(tensors)
    parts = [Part({"num_layers": layers, "mlp_dim": hidden})]
    for i in range(layers):
        names = (f"block{i:02d}", f"blocks.{i}")
        parts += [block_part(*names, NAMES, width, hidden), biases(*names, width)]
    return Part.join(parts)


def _biases_part(layer, name, width):
    return fused_bias_part(layer, f"{name}.attn.qkv.bias", width)


def _heads(tensors, width, prefix, wishes):
    """The number of heads. Small models have 6, but that of MoCo-v3 12, in tensors of one shape.

    It is told by MoCo-v3's own prefix, unless by a known name, a head beside plain names, as of
    DeiT and AugReg, or DINO's prefix. MoCo-v3's probes and conversions leave it open.
    """
    small = width == 384 and wishes.num_heads is None
    if small and prefix == MOCO:
        return 12
    labelled = "head.bias" in tensors and prefix in ("", "model.")
    told = wishes.known_name or labelled or prefix.endswith("backbone.")
    other = 12 if small and not told else None
    return guess_heads(width, count_blocks(tensors), wishes, other)


def _head_part(tensors, width, wishes, prefix):
    """The head, and timm's layer of tanh before it, which goes with a head that is replaced."""
    if prefix == MOCO:
        # Its head is an MLP that projects for the contrast between images.
        tensors = {name: t for name, t in tensors.items() if not name.startswith("head.")}
        return _end(tensors, width, wishes) | Part(unused=("head.*",))
    before, read = Part(), width
    if "pre_logits.fc.bias" in tensors:
        read = dims(tensors, "pre_logits.fc.bias", 1)[0]
        before = Part({"representation_dim": read})
        before |= dense_part("pre_logits", "pre_logits.fc", width, read)
    end = _end(tensors, read, wishes)
    if end.new and not end.headless:
        return _end(tensors, width, wishes) | Part(unused=("pre_logits.*",))
    return before | end


def _end(tensors, width, wishes):
    names = ("head.weight", "head.bias")
    return head_part(tensors, width, wishes, *names, lambda classes: (classes, width), np.transpose)
