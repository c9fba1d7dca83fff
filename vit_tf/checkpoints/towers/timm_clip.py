"""The image encoder of CLIP in timm's names (`vision_transformer.py`, models `*_clip_*`).

They are those of a ViT with a normalisation before its blocks and patches without a bias. timm
writes CLIP's projection as a head whose bias is zero; that of a model fine-tuned on labels is one.
"""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import CLIP, Part, Plan, dims, head_part, norm_part
from vit_tf.checkpoints.timm_vit import blocks_part, count_blocks
from vit_tf.checkpoints.token_parts import TokenNames, vit_embedding_part
from vit_tf.checkpoints.torch_blocks import (
    CLIP_HEADS,
    fused_bias_part,
    guess_heads,
    patch_dims,
    patches_part,
)
from vit_tf.checkpoints.towers.clip import asked

FAMILY = "CLIP in timm's names"
# Channels of the embeddings of released encoders, by those of a token: no head of a classifier has
# so many units (those of timm's have 1,000 or 11,821).
PROJECTIONS = {768: 512, 896: 640, 1024: 768, 1280: 1024, 1408: 1024, 1664: 1280}
HEAD = ("head.weight", "head.bias")


def recognise(tensors):
    """Whether the names are those of this family."""
    return {"norm_pre.weight", "patch_embed.proj.weight", "blocks.0.norm1.weight"} <= set(tensors)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors, which do not state the form of GELU."""
    wishes.refuse(FAMILY, "pooling")
    for name, what in (
        ("fc_norm.weight", "normalised after pooling"),
        ("reg_token", "with registers"),
    ):
        if name in tensors:
            raise ValueError(
                f"Expected a CLIP that returns its class token. Received: one {what}, {name!r}"
            )
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    wishes.require_pooling("cls")
    heads = guess_heads(width, count_blocks(tensors), wishes, known=CLIP_HEADS)
    whole = patches_part("patch_embed.proj", width, channels, patch, bias=False)
    tokens = TokenNames("pos_embed", "cls_token")
    shape = wishes.config.get("image_shape")
    embedding = vit_embedding_part(tensors, tokens, patch, channels, wishes, shape)
    if not embedding.arguments.get("class_position"):
        raise ValueError(
            "Expected a CLIP with a class token that has a position. "
            f"Received: {dims(tensors, 'pos_embed', 3)[1]} positions"
        )
    shape = {"image_shape": embedding.arguments["image_shape"]}
    whole |= Part(shape, embedding.sources) | blocks_part(tensors, width, _biases_part)
    for layer, name in (("pre_norm", "norm_pre"), ("norm", "norm")):
        whole |= norm_part(layer, f"{name}.weight", f"{name}.bias", width)
    whole |= _ends_part(tensors, width, wishes)
    whole |= Part({"num_heads": heads, "activation": asked(wishes)})
    return Plan("CLIPViT", whole, "bicubic", CLIP, 1.0)


def _biases_part(layer, name, width):
    return fused_bias_part(layer, f"{name}.attn.qkv.bias", width)


def _ends_part(tensors, width, wishes):
    """The projection, which hands on the class token where the file has none, and the head."""
    classes = dims(tensors, HEAD[1], 1)[0] if HEAD[1] in tensors else None
    if classes == PROJECTIONS.get(width, 0) and wishes.num_classes != 0:
        kernel = Source({HEAD[0]: (classes, width), HEAD[1]: (classes,)}, projection)
        sizes = {"projection_dim": classes, "num_classes": wishes.num_classes}
        return Part(sizes, {"projection/kernel": kernel}, new=("head/*",))
    identity = Source({}, partial(np.eye, width, dtype="float32"))
    head = head_part(tensors, width, wishes, *HEAD, lambda n: (n, width), np.transpose)
    if head.headless:
        head = Part({"num_classes": None}, unused=head.unused, new=head.new)
    return head | Part({"projection_dim": width}, {"projection/kernel": identity})


def projection(kernel, bias):
    """A kernel of a projection that is written as a head, whose bias has to be zero."""
    if np.any(bias):
        raise ValueError(
            "Expected a head of as many units as CLIP's projection to have a bias of zero, as timm "
            f"writes it. Received: {HEAD[1]!r} up to {np.abs(bias).max():.3g}"
        )
    return kernel.T
