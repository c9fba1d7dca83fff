"""Vision Transformers in the `.npz` files of Google's vision_transformer and big_vision.

The names are those of vision_transformer's `vit_jax/models_vit.py`, which has positions in the
encoder and hybrids, and of big_vision's `models/vit.py`, which may add positions before the class
token and stack blocks over depth. Both have flax's GELU, a tanh, and its epsilon of 1e-6.
"""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import (
    MOST_LAYERS,
    Part,
    Plan,
    count,
    count_units,
    dims,
    few,
    head_part,
    norm_part,
    square,
)
from vit_tf.checkpoints.token_parts import TokenNames, vit_embedding_part
from vit_tf.models.hybrid import stem_stride

FAMILY = "Google's Vision Transformers"
# Where the weights lie, and what a training state may hold besides them.
PREFIXES = {"": (), "opt/target/": ("opt/state/*",), "params/": ("opt/*", "chrono/*")}
POSITIONS = ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding")
# The second norm and the MLP of a block, by its attention.
LAYOUTS = {
    "MultiHeadDotProductAttention_1": ("LayerNorm_2", "MlpBlock_3"),
    "MultiHeadDotProductAttention_0": ("LayerNorm_1", "MlpBlock_0"),
}


def recognise(tensors):
    """Whether the names are those of this family."""
    return _prefix(tensors) is not None


def _prefix(tensors):
    starts = {prefix: f"{prefix}Transformer/encoderblock" for prefix in PREFIXES}
    found = (p for p in starts if any(name.startswith(starts[p]) for name in tensors))
    return next(found, None)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    prefix = _prefix(tensors)
    tensors = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    *patch, channels, width = dims(tensors, "embedding/kernel", 4)
    blocks = blocks_part(tensors, width, wishes)
    stem = _stem_part(tensors)
    stride = square(tensors, "embedding/kernel", *patch)
    embedding = Part(
        {"patch_size": stride, "hidden_dim": width, "activation": "gelu_tanh"},
        {
            "embedding/patches/kernel": Source({"embedding/kernel": (*patch, channels, width)}),
            "embedding/patches/bias": Source({"embedding/bias": (width,)}),
        },
    )
    if "stem_units" in stem.arguments:
        stride *= stem_stride(stem.arguments["stem_units"])
        channels = dims(tensors, "conv_root/kernel", 4)[2]
    positions = next((name for name in POSITIONS if name in tensors), "pos_embedding")
    names = TokenNames(positions, "cls")
    if positions in tensors:
        embedding |= vit_embedding_part(tensors, names, stride, channels, wishes)
    else:
        embedding |= _sincos_part(tensors, channels, wishes)
    norm = norm_part(
        "norm", "Transformer/encoder_norm/scale", "Transformer/encoder_norm/bias", width
    )
    whole = embedding | stem | blocks | norm | _head_part(tensors, width, wishes)
    return Plan("ViT", whole.under(prefix) | Part(unused=PREFIXES[prefix]))


def _sincos_part(tensors, channels, wishes):
    """The `Part` of positions of sines and cosines, which are not stored (Beyer et al. 2022).

    They fit images of any size, which only the caller, or a known name, specifies.
    """
    size = wishes.image_shape or (wishes.resolution and (wishes.resolution,) * 2)
    if size is None or "cls" in tensors or wishes.pooling == "cls":
        raise ValueError(
            "Expected image_shape, and no class token, for a file without positions, which are of "
            f"sines and cosines. Received: image_shape={wishes.image_shape}, "
            f"{'cls' if 'cls' in tensors else 'no cls'}, pooling={wishes.pooling!r}"
        )
    told = {"image_shape": (*size[:2], channels), "pooling": "gap", "position_type": "sincos"}
    return Part(told, new=("embedding/positions",))


def _head_part(tensors, width, wishes):
    """The head, and the layer of tanh before it, which goes with a head that is replaced."""
    before = Part()
    if "pre_logits/bias" in tensors:
        inner = dims(tensors, "pre_logits/bias", 1)[0]
        before = Part(
            {"representation_dim": inner},
            {
                "pre_logits/kernel": Source({"pre_logits/kernel": (width, inner)}),
                "pre_logits/bias": Source({"pre_logits/bias": (inner,)}),
            },
        )
    read = before.arguments.get("representation_dim", width)
    names = ("head/kernel", "head/bias")
    head = head_part(tensors, read, wishes, *names, shape=lambda classes: (read, classes))
    if head.new and wishes.num_classes is not None:
        read = width
        head = head_part(tensors, read, wishes, *names, shape=lambda classes: (read, classes))
        return head | Part(unused=("pre_logits/*",))
    return before | head


def blocks_part(tensors, width, wishes):
    stacked = any(name.startswith("Transformer/encoderblock/") for name in tensors)
    first = "Transformer/encoderblock" if stacked else "Transformer/encoderblock_0"
    known = (name for name in LAYOUTS if f"{first}/{name}/query/kernel" in tensors)
    attention = next(known, "MultiHeadDotProductAttention_1")
    _, mlp = LAYOUTS[attention]
    *depth, _, heads, _ = dims(tensors, f"{first}/{attention}/query/kernel", 3 + stacked)
    *_, hidden = dims(tensors, f"{first}/{mlp}/Dense_0/bias", 1 + stacked)
    layers = (
        few(depth[0], MOST_LAYERS, "layers")
        if stacked
        else count(tensors, r"Transformer/encoderblock_(\d+)/")
    )
    wishes.check_heads(heads, width)
    sizes = {"num_layers": layers, "num_heads": heads, "mlp_dim": hidden}
    sources = {}
    for i in range(layers):
        name = first if stacked else f"Transformer/encoderblock_{i}"
        for weight, (tensor, stored, shape) in _block(attention, width, heads, hidden).items():
            convert = partial(np.reshape, shape=shape)
            if stacked:
                stored, convert = (layers, *stored), partial(_layer, index=i, shape=shape)
            sources[f"block{i:02d}/{weight}"] = Source({f"{name}/{tensor}": stored}, convert)
    return Part(sizes, sources)


def _layer(stacked, index, shape):
    return stacked[index].reshape(shape)


def _block(attention, width, heads, hidden):
    """dict from weight to (tensor, its shape, the weight's shape) of one block."""
    second_norm, mlp = LAYOUTS[attention]
    split, square = (heads, width // heads), (width, width)
    table = {
        "out/kernel": (f"{attention}/out/kernel", (*split, width), square),
        "out/bias": (f"{attention}/out/bias", (width,), (width,)),
    }
    for name in ("query", "key", "value"):
        table[f"{name}/kernel"] = (f"{attention}/{name}/kernel", (width, *split), square)
        table[f"{name}/bias"] = (f"{attention}/{name}/bias", split, (width,))
    for layer, name in (("attention_norm", "LayerNorm_0"), ("mlp_norm", second_norm)):
        table[f"{layer}/gamma"] = (f"{name}/scale", (width,), (width,))
        table[f"{layer}/beta"] = (f"{name}/bias", (width,), (width,))
    for layer, name, sizes in (
        ("expand", "Dense_0", (width, hidden)),
        ("contract", "Dense_1", (hidden, width)),
    ):
        table[f"{layer}/kernel"] = (f"{mlp}/{name}/kernel", sizes, sizes)
        table[f"{layer}/bias"] = (f"{mlp}/{name}/bias", sizes[1:], sizes[1:])
    return table


def _stem_part(tensors):
    """The ResNet of a hybrid; nothing where there is none."""
    if "conv_root/kernel" not in tensors:
        return Part()
    channels, width = dims(tensors, "conv_root/kernel", 4)[2:]
    units = count_units(tensors, r"block(\d+)/unit(\d+)/")
    sources = {"stem/root/kernel": Source({"conv_root/kernel": (7, 7, channels, width)})}
    sources |= _norm(tensors, "stem/root_norm", "gn_root", width)
    before = width
    for stage, depth in enumerate(units, 1):
        inner = width * 2 ** (stage - 1)
        for unit in range(1, depth + 1):
            names = (f"stem/stage{stage}_unit{unit:02d}", f"block{stage}/unit{unit}")
            sources |= _unit(tensors, *names, before, inner, projected=unit == 1)
            before = 4 * inner
    return Part({"stem_units": units}, sources)


def _unit(tensors, layer, name, before, inner, projected):
    """Sources of a unit from `before` to four times `inner` channels."""
    shapes = {
        "conv1": (1, 1, before, inner),
        "conv2": (3, 3, inner, inner),
        "conv3": (1, 1, inner, 4 * inner),
    }
    weights = {conv: conv.replace("conv", "norm") for conv in shapes}
    if projected:
        shapes["conv_proj"] = (1, 1, before, 4 * inner)
        weights["conv_proj"] = "projection_norm"
    sources = {}
    for conv, shape in shapes.items():
        kernel = "projection" if conv == "conv_proj" else conv
        sources[f"{layer}/{kernel}/kernel"] = Source({f"{name}/{conv}/kernel": shape})
        norm = f"{name}/{conv.replace('conv', 'gn')}"
        sources |= _norm(tensors, f"{layer}/{weights[conv]}", norm, shape[-1])
    return sources


def _norm(tensors, layer, name, width):
    """Sources of a group normalisation, whose scale some files store as (1, 1, 1, channel)."""
    sources = {}
    for weight, tensor in (("gamma", f"{name}/scale"), ("beta", f"{name}/bias")):
        long = tensor in tensors and len(tensors[tensor].shape) == 4
        shape = (1, 1, 1, width) if long else (width,)
        sources[f"{layer}/{weight}"] = Source({tensor: shape}, np.ravel)
    return sources
