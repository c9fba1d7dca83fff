"""The `.npz` files of Google: ViT, hybrids, BiT, Mixer and SigLIP, in flax's names and layouts.

ViT's names are those of vision_transformer's `vit_jax/models_vit.py`, which has positions in the
encoder and hybrids, and of big_vision's `models/vit.py`, which may add positions before the class
token and stack blocks over depth. BiT's are those that big_transfer's `bit_pytorch/models.py`
reads, Mixer's those of `vit_jax/models_mixer.py`. GELU is flax's tanh form.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from vit_tf.checkpoints.weight_maps import (
    FLAX,
    MOST_LAYERS,
    Conversion,
    Family,
    Kinds,
    LoadOptions,
    Tensors,
    TokenNames,
    WeightMap,
    at_most,
    count_layers,
    count_units,
    dims,
    embedding_head,
    embedding_map,
    file_grid,
    find_prefix,
    head_map,
    patch_positions_map,
    pixels,
    read_blocks,
    read_table,
    square,
    tanh_head_map,
    unstack,
    without_prefix,
)
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.hybrid import stem_stride

# Where the weights lie, and what a training state may hold next to them.
PREFIXES = {"": (), "opt/target/": ("opt/state/*",), "params/": ("opt/*", "chrono/*")}
BLOCKS = "Transformer/encoderblock"
POSITIONS = ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding")
# The second normalisation and the MLP of a block, by its attention.
LAYOUTS = {
    "MultiHeadDotProductAttention_1": ("LayerNorm_2", "MlpBlock_3"),
    "MultiHeadDotProductAttention_0": ("LayerNorm_1", "MlpBlock_0"),
}
PATCHES = "embedding  embedding/patches  linear  P P C D"
ATTENTION_MLP = """
    ATTENTION/query  query     to_heads    D H W
    ATTENTION/key    key       to_heads    D H W
    ATTENTION/value  value     to_heads    D H W
    ATTENTION/out    out       from_heads  H W D
    MLP/Dense_0      expand    linear      D M
    MLP/Dense_1      contract  linear      M D
"""
BLOCK = (
    ATTENTION_MLP
    + """
    LayerNorm_0  attention_norm  norm  D
    NORM         mlp_norm        norm  D
"""
)
STEM_UNIT = """
    conv1  conv1  kernel  1 1 B I
    gn1    norm1  norm    I
    conv2  conv2  kernel  3 3 I I
    gn2    norm2  norm    I
    conv3  conv3  kernel  1 1 I 4I
    gn3    norm3  norm    4I
"""
STEM_PROJECTION = """
    conv_proj  projection       kernel  1 1 B 4I
    gn_proj    projection_norm  norm    4I
"""
SIGLIP = "params/img/"
# The text encoder, temperature and bias, and the state of an optimizer.
SIGLIP_UNUSED = ("params/txt/*", "params/t", "params/b", "opt/*", "chrono/*")
POOLING = """
    probe        probe  same  1 1 D
    LayerNorm_0  norm   norm  D
"""
BIT_ROOT = "resnet/root_block/standardized_conv2d/kernel"
BIT_SIZE = 224  # pixels of the pretraining, as the files hold none
BIT_UNIT = """
    a/group_norm           norm1  group_norm  B
    a/standardized_conv2d  conv1  kernel      1 1 B I
    b/group_norm           norm2  group_norm  I
    b/standardized_conv2d  conv2  kernel      3 3 I I
    c/group_norm           norm3  group_norm  I
    c/standardized_conv2d  conv3  kernel      1 1 I 4I
"""
BIT_PROJECTION = "a/proj/standardized_conv2d  projection  kernel  1 1 B 4I"
MIXER_BLOCK = """
    LayerNorm_0             token_norm        norm    D
    token_mixing/Dense_0    token_expand      linear  N T
    token_mixing/Dense_1    token_contract    linear  T N
    LayerNorm_1             channel_norm      norm    D
    channel_mixing/Dense_0  channel_expand    linear  D M
    channel_mixing/Dense_1  channel_contract  linear  M D
"""


def convert_vit(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A ViT or hybrid."""
    prefix = find_prefix(tensors, PREFIXES, BLOCKS) or ""
    tensors = without_prefix(tensors, prefix)
    *patch, channels, width = dims(tensors, "embedding/kernel", 4)
    blocks = blocks_map(tensors, width, options)
    side = stride = square(tensors, "embedding/kernel", *patch)
    rows = f"{PATCHES}\nTransformer/encoder_norm norm norm D"
    ends = read_table(rows, FLAX, {"P": side, "C": channels, "D": width})
    model, stem = "ViT", WeightMap()
    if "conv_root/kernel" in tensors:
        model, stem = "HybridViT", _stem_map(tensors)
        stride *= stem_stride(stem.arguments["stem_units"])
        channels = dims(tensors, "conv_root/kernel", 4)[2]
    positions = next((name for name in POSITIONS if name in tensors), "pos_embedding")
    if positions in tensors:
        names = TokenNames("cls")
        embedding = embedding_map(tensors, positions, names, stride, channels, options)
    else:
        embedding = _sincos_map(tensors, channels, options)
    mapping = (
        ends
        | {"patch_size": side, "hidden_dim": width, "activation": "gelu_tanh"}
        | embedding
        | stem
        | blocks
        | tanh_head_map(tensors, width, options, "pre_logits", FLAX)
    ).under(prefix) | WeightMap(unused_tensors=PREFIXES[prefix])
    return Conversion(model, mapping)


def _sincos_map(tensors: Tensors, channels: int, options: LoadOptions) -> WeightMap:
    """Positions of sines and cosines, which are not stored (Beyer et al. 2022), for any size."""
    by_name = (options.resolution,) * 2 if options.resolution else None
    size = options.image_shape or by_name
    if size is None or "cls" in tensors or options.pooling == "cls":
        raise ValueError(
            "Expected image_shape=, no class token, and pooling other than 'cls' for a file "
            "without position embeddings, which are taken as sine-cosine. Received: "
            f"image_shape={options.image_shape}, {'a' if 'cls' in tensors else 'no'} class token, "
            f"pooling={options.pooling!r}"
        )
    arguments = {"image_shape": (*size[:2], channels), "pooling": "gap", "position_type": "sincos"}
    return WeightMap(arguments, new_weights=("embedding/positions",))


def blocks_map(tensors: Tensors, width: int, options: LoadOptions) -> WeightMap:
    """The `WeightMap` of all blocks of a ViT, which may be stacked over depth."""
    stacked = any(name.startswith("Transformer/encoderblock/") for name in tensors)
    first = "Transformer/encoderblock" if stacked else "Transformer/encoderblock_0"
    layouts = (name for name in LAYOUTS if f"{first}/{name}/query/kernel" in tensors)
    attention = next(layouts, "MultiHeadDotProductAttention_1")
    norm, mlp = LAYOUTS[attention]
    *depth, _, heads, _ = dims(tensors, f"{first}/{attention}/query/kernel", 3 + stacked)
    *_, hidden = dims(tensors, f"{first}/{mlp}/Dense_0/bias", 1 + stacked)
    options.check_heads(heads, width)
    sizes = {"D": width, "H": heads, "W": width // heads, "M": hidden}
    table = BLOCK.replace("ATTENTION", attention).replace("MLP", mlp).replace("NORM", norm)
    if stacked:
        layers = at_most(depth[0], MOST_LAYERS, "layers")
        mapping = WeightMap()
        for i in range(layers):
            block = read_table(table, FLAX, sizes, f"{first}/{{}}", f"block{i:02d}/{{}}")
            mapping.weights.update(unstack(block, i, layers).weights)
    else:
        layers = count_layers(tensors, r"Transformer/encoderblock_(\d+)/")
        mapping = read_blocks(table, FLAX, sizes, "Transformer/encoderblock_#/", layers)
    return mapping | {"num_layers": layers, "num_heads": heads, "mlp_dim": hidden}


# The numbers of a stage and of a unit in it, both from 0, to a name with `{}` for its layers.
NameOfUnit: TypeAlias = Callable[[int, int], str]


def units_map(
    units: Sequence[int],
    width: int,
    table: str,
    projection: str,
    kinds: Kinds,
    name: NameOfUnit,
    path: NameOfUnit,
) -> tuple[WeightMap, int]:
    """(`WeightMap` of all units of a ResNet, channels after them), of functions to their names."""
    weights, before = {}, width
    for stage, depth in enumerate(units):
        for unit in range(depth):
            rows = table if unit else f"{table}\n{projection}"
            sizes = {"B": before, "I": width * 2**stage}
            weights |= read_table(rows, kinds, sizes, name(stage, unit), path(stage, unit)).weights
            before = 4 * sizes["I"]
    return WeightMap(weights=weights), before


def unit_path(stage: int, unit: int) -> str:
    """The path of a unit of a BiT."""
    return f"stage{stage + 1}_unit{unit + 1:02d}/{{}}"


def _stem_map(tensors: Tensors) -> WeightMap:
    """The ResNet of a hybrid."""
    channels, width = dims(tensors, "conv_root/kernel", 4)[2:]
    units = count_units(tensors, r"block(\d+)/unit(\d+)/")

    def norm(name: str, path: str, width: int) -> dict:
        """A normalisation, whose scale and bias some files store as (1, 1, 1, channel)."""
        long = len(getattr(tensors.get(f"{name}/scale"), "shape", ())) == 4
        return FLAX["long_norm" if long else "norm"](name, path, width)

    kinds = FLAX | {"norm": norm}
    names = (
        lambda stage, unit: f"block{stage + 1}/unit{unit + 1}/{{}}",
        lambda stage, unit: f"stem/{unit_path(stage, unit)}",
    )
    mapping, _ = units_map(units, width, STEM_UNIT, STEM_PROJECTION, kinds, *names)
    root = "conv_root stem/root kernel 7 7 C D\ngn_root stem/root_norm norm D"
    root = read_table(root, kinds, {"C": channels, "D": width})
    return root | mapping | {"stem_units": units}


def convert_bit(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A BiT."""
    options.refuse("Google's BiT", "pooling", "num_heads")
    *size, channels, width = dims(tensors, BIT_ROOT, 4)
    units = count_units(tensors, r"resnet/block(\d+)/unit(\d+)/")
    side = square(tensors, BIT_ROOT, *size)
    names = (lambda stage, unit: f"resnet/block{stage + 1}/unit{unit + 1:02d}/{{}}", unit_path)
    blocks, last = units_map(units, width, BIT_UNIT, BIT_PROJECTION, FLAX, *names)
    root = BIT_ROOT.removesuffix("/kernel")
    rows = f"{root} root kernel P P C D\nresnet/group_norm norm group_norm B"
    mapping = (
        blocks
        | read_table(rows, FLAX, {"P": side, "C": channels, "D": width, "B": last})
        | head_map(tensors, last, options, "resnet/head/conv2d", FLAX, "linear_1x1")
        | bit_arguments(units, width, (BIT_SIZE, BIT_SIZE, channels), side)
    )
    return Conversion("BiT", mapping, any_size=True)


def bit_arguments(units: Sequence[int], width: int, image_shape: tuple, side: int = 7) -> dict:
    """The arguments of a BiT; `side` is that of the root's kernel."""
    factor = width / 64 if width % 64 else width // 64
    stem = "imagenet" if side == 7 else "small"
    return {"image_shape": image_shape, "units": units, "width_factor": factor, "stem": stem}


def convert_mixer(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A Mixer."""
    options.refuse("Google's MLP-Mixer", "pooling", "num_heads")
    *patch, channels, width = dims(tensors, "stem/kernel", 4)
    num_tokens, tokens_mlp = dims(tensors, "MixerBlock_0/token_mixing/Dense_0/kernel", 2)
    channels_mlp = dims(tensors, "MixerBlock_0/channel_mixing/Dense_0/bias", 1)[0]
    layers = count_layers(tensors, r"MixerBlock_(\d+)/")
    side = square(tensors, "stem/kernel", *patch)
    grid = file_grid(num_tokens, (0,), side, options.image_shape)
    arguments = (layers, width, tokens_mlp, channels_mlp, "gelu_tanh")
    sizes = {
        "P": side,
        "C": channels,
        "D": width,
        "N": num_tokens,
        "T": tokens_mlp,
        "M": channels_mlp,
    }
    ends = "stem embedding linear P P C D\npre_head_layer_norm norm norm D"
    mapping = (
        read_table(ends, FLAX, sizes)
        | mixer_arguments(grid, channels, *arguments)
        | read_blocks(MIXER_BLOCK, FLAX, sizes, "MixerBlock_#/", layers)
        | head_map(tensors, width, options, "head", FLAX)
    )
    return Conversion("Mixer", mapping)


def mixer_arguments(
    grid: TokenGrid,
    channels: int,
    layers: int,
    width: int,
    tokens_mlp: int,
    channels_mlp: int,
    activation: str,
) -> dict:
    """The arguments of a Mixer."""
    sizes = {
        "num_layers": layers,
        "hidden_dim": width,
        "patch_size": grid.stride,
        "tokens_mlp_dim": tokens_mlp,
        "channels_mlp_dim": channels_mlp,
    }
    return sizes | {"image_shape": pixels(grid, channels), "activation": activation}


def convert_siglip(tensors: Tensors, options: LoadOptions) -> Conversion:
    """The image encoder of a SigLIP."""
    options.refuse("SigLIP", "pooling")
    inside = without_prefix(tensors, SIGLIP)
    *patch, channels, width = dims(inside, "embedding/kernel", 4)
    side = square(inside, "embedding/kernel", *patch)
    blocks = blocks_map(inside, width, options)
    heads, hidden = blocks.arguments["num_heads"], blocks.arguments["mlp_dim"]
    layer = {"D": width, "M": hidden, "H": heads, "W": width // heads}
    sizes = {"P": side, "C": channels, **layer}
    pooling = ATTENTION_MLP.replace("ATTENTION", "MultiHeadDotProductAttention_0")
    pooling = POOLING + pooling.replace("MLP/", "MlpBlock_0/")
    mapping = (
        patch_positions_map(inside, "pos_embedding", side, channels, options)
        | {"patch_size": side, "hidden_dim": width}
        | read_table(f"{PATCHES}\nTransformer/encoder_norm norm norm D", FLAX, sizes)
        | blocks
        | read_table(pooling, FLAX, sizes, "MAPHead_0/{}", "pooling/{}")
        | embedding_head(inside, width, options, "head", FLAX)
    ).under(SIGLIP) | WeightMap(unused_tensors=SIGLIP_UNUSED)
    return Conversion("SigLIPViT", mapping)


def names_begin(*starts: str) -> Callable[[Tensors], bool]:
    """A test whether a file has a tensor whose name begins so."""
    return lambda tensors: any(name.startswith(starts) for name in tensors)


FAMILIES = (
    Family(
        "Google's Vision Transformers",
        lambda t: find_prefix(t, PREFIXES, BLOCKS) is not None,
        convert_vit,
    ),
    Family("Google's BiT", names_begin("resnet/root_block/", "resnet/block1/"), convert_bit),
    Family("Google's MLP-Mixer", names_begin("MixerBlock_"), convert_mixer),
    Family("SigLIP", lambda t: f"{SIGLIP}MAPHead_0/probe" in t, convert_siglip),
)
