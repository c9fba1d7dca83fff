"""Vision Transformers in timm's names: supervised, DeiT, DINO, MAE's, MoCo-v3 and RoPE-ViT.

The names are those of timm's `vision_transformer.py`, which DeiT, DINO, DINOv2, MAE and MoCo-v3
share but for a few; all have the exact GELU and an epsilon of 1e-6, unless timm's `config.json`
says otherwise. MAE's encoder, fine-tuned, normalizes the mean of its patches (`fc_norm`).
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
    linear_part,
    norm_part,
)
from vit_tf.checkpoints.token_parts import TokenNames, unplaced_part, vit_embedding_part
from vit_tf.checkpoints.torch_blocks import (
    HEADS,
    block_part,
    dense_part,
    fused_bias_part,
    guess_heads,
    halves_apart,
    no_bias,
    patch_dims,
    patches_part,
)

FAMILY = "Vision Transformers in timm's names"
MOCO = "module.base_encoder."
# Where the encoder lies, and what may lie next to it: MoCo-v3's other half, the projection of DINO.
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
# Of timm's models with patches alone, among them SigLIP's with the mean in place of its pooling:
# heads by width and layers, and (width, layers, patch[, positions]) with the tanh form of GELU.
BARE = {(1152, 27): 16, (1408, 40): 16, (1536, 40): 16}
TANH = {(1536, 40, 16), (1152, 27, 16), (768, 12, 32), (1024, 24, 16, 1024)}
# Heads of timm's models with registers, by width and layers.
REGISTERED = {(256, 14): 4, (320, 14): 5, (512, 20): 8, (640, 12): 10, (896, 18): 14, (832, 21): 13}
# Along a side of the images of RoPE-ViT, of 224 pixels.
ROTARY_TOKENS = 14
# The classifier of DINOv2's hub, next to its encoder.
LINEAR = "linear_head"
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
    width, channels, patch = patch_dims(inside, "patch_embed.proj.weight")
    averaged = "fc_norm.weight" in inside
    told = wishes.config
    if told.get("fc_norm", averaged) != averaged or (averaged and wishes.pooling == "cls"):
        raise ValueError(
            "Expected the mean of the patches, and tensors 'fc_norm.*' where it is normalized. "
            f"Received: pooling={wishes.pooling!r}, {'' if averaged else 'no '}tensors "
            f"'fc_norm.*', fc_norm={told.get('fc_norm')} of config.json"
        )
    _refuse_rotary(inside, wishes)
    registers = next((name for name in REGISTERS if name in inside), None)
    whole = patches_part("patch_embed.proj", width, channels, patch)
    whole |= Part(unused=UNUSED)
    tokens = TokenNames("pos_embed", "cls_token", "dist_token", registers)
    size = told.get("image_shape")
    pooled = "gap" if averaged else None
    placed = "pos_embed" in inside
    if placed:
        whole |= vit_embedding_part(inside, tokens, patch, channels, wishes, size, pooled)
        tokens = dims(inside, "pos_embed", 3)[1]
    else:
        whole |= unplaced_part(inside, tokens, width, wishes, pooled)
        size = size or told.get("input_size") or (ROTARY_TOKENS * patch,) * 2
        whole |= Part({"image_shape": (*size, channels), "position_type": "rotary"})
    blocks = _blocks_part(inside, width)
    whole |= blocks
    size = (width, whole.arguments["num_layers"], patch)
    bare = "cls_token" not in inside and registers is None
    tanh = bare and (size in TANH or (*size, tokens) in TANH)
    gelu = told.get("activation") or ("gelu_tanh" if tanh else "gelu")
    whole |= Part({"activation": gelu} if "activation" not in whole.arguments else {})
    name = "fc_norm" if averaged else "norm"
    whole |= norm_part(name, f"{name}.weight", f"{name}.bias", width)
    heads = _heads(inside, size, prefix, wishes, bare)
    whole |= Part({"num_heads": heads, "fc_norm": averaged, "epsilon": told.get("epsilon", 1e-6)})
    if told.get("rotation"):
        wishes.check_heads(heads, width)
        whole |= Part({"rotation": told["rotation"]}) | halves_apart(blocks, width, heads)
    if told.get("rotation") == "mixed":
        shape = (2, size[1], heads, width // heads // 2)
        whole |= Part(sources={"rotation/frequencies": Source({"rope.freqs": shape})})
    linear = f"{LINEAR}.bias" in tensors
    whole |= Part() if linear else _head_part(inside, width, wishes, prefix)
    # Self-supervised encoders come without a head, and are trained on ImageNet's mean and std, as
    # are DeiT, which alone has a token of distillation, and DeiT-3, with scales and a head.
    plain = "dist_token" not in inside and "layer_scale" not in whole.arguments
    # A mean that is normalized is that of MAE, if there is a class token besides.
    half = "cls_token" not in inside or (plain and not averaged)
    values = HALF if "head.bias" in inside and half else IMAGENET
    # The code of DINOv2 antialiases for its models with registers only.
    positions = "dino" if "mask_token" in inside and registers is None and not plain else None
    whole = whole.under(prefix) | Part(unused=PREFIXES[prefix])
    whole |= linear_part(tensors, width, wishes, LINEAR) if linear else Part()
    return Plan("ViT", whole, "bicubic", values, positions=positions, any_size=not placed)


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
    biased = any(name.endswith(".attn.qkv.bias") for name in tensors)
    part = blocks_part(tensors, width, _biases_part if biased else _no_biases_part, names)
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


def _refuse_rotary(tensors, wishes):
    """Raises a ValueError for tensors that may be of a ViT with rotary positions.

    Which ones it has is stated in the configuration of a folder.
    """
    if wishes.config.get("rotation"):
        return
    scaled = "blocks.0.gamma_1" in tensors and not wishes.config and wishes.container != "model"
    if "rope.freqs" in tensors or "pos_embed" not in tensors or scaled:
        raise ValueError(
            "Expected a ViT with positions that are added to its tokens. Received: tensors of a "
            "ViT with rotary positions (timm's vit_*_rope_*), or those of DeiT-3 in a file other "
            "than its authors' .pth: open a folder of timm's, with config.json, which states it"
        )


def _no_biases_part(layer, name, width):
    """Biases of zero, of a model of timm's with `qkv_bias=False`."""
    which = ("query", "key", "value")
    return Part(sources={f"{layer}/{one}/bias": no_bias(width) for one in which})


def _heads(tensors, size, prefix, wishes, bare):
    """The number of heads. Small models have 6, but that of MoCo-v3 12, in tensors of one shape.

    It is inferred from MoCo-v3's own prefix, or from a known name, a head with plain names, as of
    DeiT and AugReg, the scales of DINOv2, or DINO's prefix. MoCo-v3's probes and conversions
    leave it open. Of the files with patches alone, those of a base model of 16 pixels a patch have
    12 or 16.
    """
    width, layers, _ = size
    small = width == 384 and wishes.num_heads is None
    if small and prefix == MOCO:
        return 12
    labelled = "head.bias" in tensors and prefix in ("", "model.")
    labelled = labelled or any(f"blocks.0.{scale}" in tensors for scale in SCALES)
    told = wishes.known_name or labelled or prefix.endswith("backbone.")
    other = 12 if small and not told else None
    if bare and size == (768, 12, 16) and not wishes.known_name:
        other = 16
    return guess_heads(width, layers, wishes, other, HEADS | (BARE if bare else REGISTERED))


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
    if end.new and wishes.num_classes is not None:
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
