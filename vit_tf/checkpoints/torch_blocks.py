"""Transformer blocks in PyTorch's layout, as timm, OpenAI's CLIP and BEiT share it."""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import Part, dims, norm_part, square

# Heads by width and number of layers, which no tensor's shape shows: those of the published sizes.
HEADS = {(192, 12): 3, (384, 12): 6, (512, 12): 8, (768, 12): 12, (1024, 24): 16, (1280, 32): 16}
HEADS |= {(1536, 40): 24}
# The same of CLIP (OpenAI, open_clip and timm 1.0.31).
CLIP_HEADS = HEADS | {(896, 12): 14, (1408, 40): 16, (1664, 48): 16}


def guess_heads(width, layers, wishes, other=None, known=HEADS):
    """The number of heads that a caller names, or that all models of a published size have.

    Args:
        width, layers: the size of the encoder.
        wishes: those of the caller.
        other: number of heads of another model of this size that the file may as well be of.
        known: dict from (width, layers) to the number of heads of the family's published sizes.

    Raises:
        ValueError: for an unpublished size, unless the caller specifies them.
    """
    told = wishes.num_heads or wishes.config.get("num_heads")
    if told is not None:
        return told
    heads = known.get((width, layers))
    if heads is None or other is not None:
        either = f" ({heads} or {other})" if heads else ""
        raise ValueError(
            f"Expected num_heads{either}, which neither the tensors' shapes nor {layers} layers "
            f"of {width} channels determine. Received: num_heads=None"
        )
    return heads


def patch_dims(tensors, kernel):
    """(width, channels of the image, side of a patch) of a kernel of patches."""
    width, channels, *patch = dims(tensors, kernel, 4)
    return width, channels, square(tensors, kernel, *patch)


def patches_part(name, width, channels, patch, bias=True):
    """The `Part` of a patch embedding, stored as (output, input, row, column)."""
    kernel = Source({f"{name}.weight": (width, channels, patch, patch)}, rows_first)
    sources = {"embedding/patches/kernel": kernel}
    if bias:
        sources["embedding/patches/bias"] = Source({f"{name}.bias": (width,)})
    return Part({"patch_size": patch, "hidden_dim": width}, sources)


def rows_first(kernel):
    """A convolution kernel (output, input, row, column) as (row, column, input, output)."""
    return kernel.transpose(2, 3, 1, 0)


def dense_part(layer, name, inputs, outputs, bias=True):
    """The `Part` of a linear layer, whose weight is stored as (output, input).

    A bias that the file does not have is zero, where the model has one.
    """
    stored = Source({f"{name}.bias": (outputs,)}) if bias else no_bias(outputs)
    kernel = Source({f"{name}.weight": (outputs, inputs)}, np.transpose)
    return Part(sources={f"{layer}/kernel": kernel, f"{layer}/bias": stored})


def no_bias(units):
    """The `Source` of a bias that a file does not have: zero."""
    return Source({}, partial(np.zeros, units, "float32"))


def gate_part(layer, gate, name, inputs, hidden, bias=True):
    """The `Part` of a linear layer that the file stores as that of a gate and what it gates."""
    both = (gate, name)
    kernels = {f"{one}.weight": (hidden, inputs) for one in both}
    biases = Source({f"{one}.bias": (hidden,) for one in both}, _gate_first)
    return Part(
        sources={
            f"{layer}/kernel": Source(kernels, _gate_first),
            f"{layer}/bias": biases if bias else no_bias(2 * hidden),
        }
    )


def _gate_first(gate, gated):
    return np.concatenate([gate.T, gated.T], axis=-1)


def halves_apart(part, width, heads):
    """The same part of a file whose rotary positions turn neighbouring channels of a head.

    Here these are half the channels of a head apart: the channels of queries and keys change
    positions, those that are first of a pair coming before the second, head by head.
    """
    size = width // heads
    if size % 4 or width % heads:
        raise ValueError(
            "Expected num_heads to give heads of a multiple of 4 channels, for rotary positions. "
            f"Received: num_heads={heads} of {width} channels"
        )
    inside = np.arange(size).reshape(-1, 2).T.reshape(-1)
    order = (np.arange(heads)[:, None] * size + inside).reshape(-1)
    moved = {
        weight: Source(source.tensors, partial(_reordered, convert=source.convert, order=order))
        for weight, source in part.sources.items()
        if weight.split("/")[-2] in ("query", "key")
    }
    return part | Part(sources=moved)


def _reordered(*arrays, convert, order):
    """The result of a conversion, its last axis in another order."""
    return convert(*arrays)[..., order]


def scales_part(layer, first, second, width):
    """The `Part` of the scales of both branches of a block."""
    named = {"attention_scale": first, "mlp_scale": second}
    scales = {f"{layer}/{scale}": Source({name: (width,)}) for scale, name in named.items()}
    return Part(sources=scales)


def block_part(layer, name, names, width, hidden, gated=False):
    """The `Part` of a block but for the biases of a fused query, key and value.

    Args:
        layer, name: the block's in the model and in the file.
        names: dict from `norm1`, `qkv`, `out`, `norm2`, `fc1` and `fc2` to names in a block;
            `qkv` is the whole name of the fused weight of shape (3 * width, width), for which
            `query`, `key` and `value` may stand. `scale1` and `scale2` are those of the scales of
            both branches, where there are such.
        width, hidden: channels of a token, and of the MLP.
        gated: whether the MLP expands to twice as many channels, one half for the gate.
    """
    name = {part: f"{name}.{inner}" for part, inner in names.items()}
    parts = []
    if "qkv" in name:
        parts.append(fused_part(layer, name["qkv"], width))
    else:
        for which in ("query", "key", "value"):
            parts.append(dense_part(f"{layer}/{which}", name[which], width, width))
    if "scale1" in name:
        parts.append(scales_part(layer, name["scale1"], name["scale2"], width))
    for norm, which in (("attention_norm", "norm1"), ("mlp_norm", "norm2")):
        tensors = (f"{name[which]}.weight", f"{name[which]}.bias")
        parts.append(norm_part(f"{layer}/{norm}", *tensors, width))
    for dense, which, inputs, outputs in (
        ("out", "out", width, width),
        ("expand", "fc1", width, 2 * hidden if gated else hidden),
        ("contract", "fc2", hidden, width),
    ):
        parts.append(dense_part(f"{layer}/{dense}", name[which], inputs, outputs))
    return Part.join(parts)


def fused_part(layer, name, width):
    """The `Part` of the kernels of query, key and value, stored as one."""
    return Part(
        sources={
            f"{layer}/{which}/kernel": Source({name: (3 * width, width)}, partial(third, index=i))
            for i, which in enumerate(("query", "key", "value"))
        }
    )


def fused_bias_part(layer, name, width):
    """The `Part` of the biases of query, key and value, stored as one."""
    return Part(
        sources={
            f"{layer}/{which}/bias": Source({name: (3 * width,)}, partial(third, index=i))
            for i, which in enumerate(("query", "key", "value"))
        }
    )


def third(fused, index):
    """One of query, key and value, transposed to (input, output) where it is a weight."""
    return np.split(fused, 3)[index].T
