"""The attention that pools the tokens of SigLIP, in PyTorch's layouts, and what they share."""

import math
from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import Part, dims, norm_part
from vit_tf.checkpoints.torch_blocks import dense_part, fused_bias_part, fused_part

# Names of its parts, in transformers and in timm, where keys and values are stored as one.
TRANSFORMERS = {"probe": "probe", "out": "attention.out_proj", "norm": "layernorm"}
TIMM = {"probe": "latent", "out": "proj", "norm": "norm"}


def pooling_part(name, names, width, hidden):
    """The `Part` of the pooling.

    Args:
        name: what its tensors begin with.
        names: `TRANSFORMERS` or `TIMM`.
        width, hidden: channels of a token, and of its MLP.
    """
    parts = [Part(sources={"pooling/probe": Source({f"{name}.{names['probe']}": (1, 1, width)})})]
    if names is TIMM:
        parts.append(dense_part("pooling/query", f"{name}.q", width, width))
        for i, which in enumerate(("key", "value")):
            kernel = Source({f"{name}.kv.weight": (2 * width, width)}, partial(_half, index=i))
            bias = Source({f"{name}.kv.bias": (2 * width,)}, partial(_half, index=i))
            both = {f"pooling/{which}/kernel": kernel, f"pooling/{which}/bias": bias}
            parts.append(Part(sources=both))
    else:
        parts.append(fused_part("pooling", f"{name}.attention.in_proj_weight", width))
        parts.append(fused_bias_part("pooling", f"{name}.attention.in_proj_bias", width))
    norm = f"{name}.{names['norm']}"
    parts.append(norm_part("pooling/norm", f"{norm}.weight", f"{norm}.bias", width))
    parts.append(dense_part("pooling/out", f"{name}.{names['out']}", width, width))
    parts.append(dense_part("pooling/expand", f"{name}.mlp.fc1", width, hidden))
    parts.append(dense_part("pooling/contract", f"{name}.mlp.fc2", hidden, width))
    return Part.join(parts)


def _half(fused, index):
    return np.split(fused, 2)[index].T


def image_part(tensors, name, patch, channels, wishes):
    """The `Part` of positions (1, token, channel), which determine the images of an encoder.

    Images are those that a configuration states, or else those that are requested or of a known
    name if they have as many patches, with some pixels more beyond the last; else squares.

    Args:
        tensors, wishes: those of the plan.
        name: that of the positions.
        patch: side of a patch, in pixels.
        channels: channels of the images.
    """
    shape = dims(tensors, name, 3)
    side = math.isqrt(shape[1])
    size = (side * patch, side * patch) if side**2 == shape[1] else None
    known = wishes.resolution and (wishes.resolution,) * 2
    for pixels in filter(None, (wishes.config.get("image_shape"), wishes.image_shape, known)):
        if math.prod(n // patch for n in pixels[:2]) == shape[1]:
            size = tuple(pixels[:2])
            break
    if size is None:
        raise ValueError(
            "Expected as many positions as a square grid of tokens has, or that of image_shape. "
            f"Received: {shape[1]} positions, image_shape={wishes.image_shape}"
        )
    positions = {"embedding/positions": Source({name: shape})}
    return Part({"image_shape": (*size, channels)}, positions)
