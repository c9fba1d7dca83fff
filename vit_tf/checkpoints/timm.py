"""Files in timm's names (`vision_transformer.py`, `eva.py`, `beit.py`, `mlp_mixer.py` and so on).

The releases of DeiT, DINO, DINOv2, DINOv3, MAE, MoCo-v3 and BEiT share these names but for a few.
A ViT has the exact GELU and an epsilon of 1e-6, unless timm's `config.json` says otherwise.
"""

from functools import partial

import numpy as np

from vit_tf.checkpoints import google
from vit_tf.checkpoints.weight_maps import (
    CLIP_HEADS,
    HEADS,
    TORCH,
    Conversion,
    Family,
    LoadOptions,
    Tensors,
    TokenNames,
    Transform,
    WeightMap,
    beit_end,
    count_layers,
    count_units,
    dims,
    embedding_head,
    embedding_map,
    ends_map,
    file_grid,
    find_prefix,
    head_map,
    infer_num_heads,
    module_only_message,
    new_head_map,
    patch_dims,
    patch_positions_map,
    pixels,
    prefix_map,
    read_blocks,
    read_table,
    relative_grid,
    tanh_head_map,
    two_heads_map,
    without_prefix,
)
from vit_tf.data.preprocessing import CLIP, HALF, IMAGENET

PATCHES = "patch_embed.proj  embedding/patches  conv  C D P"
UNBIASED_PATCHES = "patch_embed.proj  embedding/patches  conv_kernel  C D P"
BLOCK = """
    norm1      attention_norm   norm    D
    attn.qkv   query,key,value  fused   D
    attn.proj  out              linear  D D
    norm2      mlp_norm         norm    D
    mlp.fc1    expand           linear  D E
    mlp.fc2    contract         linear  M D
"""
# Rows of the scales of both branches: timm's, and those of DINOv2's own code and of DeiT-3.
SCALES = {
    "ls1.gamma": "ls1.gamma attention_scale same D \n ls2.gamma mlp_scale same D",
    "gamma_1": "gamma_1 attention_scale same D \n gamma_2 mlp_scale same D",
}
CLASS_TOKEN = "cls_token embedding/prefix same 1 1 D"
REGISTERS = ("reg_token", "register_tokens")
HEAD = ("head.weight", "head.bias")

MOCO = "module.base_encoder."
# Where the encoder lies, and what may be next to it: MoCo-v3's other half, the projections of DINO,
# iBOT and DINOv2, and of a whole training of DINOv2 its student and the centres of its losses.
DINO_TRAINING = (
    "teacher.dino_head.*",
    "teacher.ibot_head.*",
    "student.*",
    "dino_loss.*",
    "ibot_patch_loss.*",
)
PREFIXES = {
    "": (),
    MOCO: ("module.momentum_encoder.*", "module.predictor.*"),
    "teacher.backbone.": DINO_TRAINING,
    "backbone.": ("head.*", "dino_head.*", "ibot_head.*"),
    "module.backbone.": ("module.head.*", "module.dino_head.*", "module.ibot_head.*"),
    "module.": (),
    "model.": (),
    "encoder.": (),
}
# MAE's decoder, which a whole checkpoint holds as well.
VIT_UNUSED = ("decoder_*", "mask_token")
LINEAR = "linear_head"  # of the classifier of DINOv2's hub, next to its encoder


def vit_prefix(tensors: Tensors) -> str | None:
    """The prefix of the names of a ViT's tensors, or None if there is no ViT."""
    matches = [p for p in PREFIXES if f"{p}patch_embed.proj.weight" in tensors]
    return find_prefix(tensors, matches, "blocks.")


def convert_vit(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A supervised ViT, DeiT, DINO, DINOv2, MAE or MoCo-v3."""
    prefix = vit_prefix(tensors) or ""
    inside, config = without_prefix(tensors, prefix), options.config
    width, channels, patch = patch_dims(inside, "patch_embed.proj.weight")
    averaged = "fc_norm.weight" in inside
    if config.get("fc_norm", averaged) != averaged or (averaged and options.pooling == "cls"):
        raise ValueError(
            "Expected pooling='gap' for a file with tensors 'fc_norm.*', and fc_norm of "
            "config.json to be True exactly if the file has them. "
            f"Received: pooling={options.pooling!r}, {'' if averaged else 'no '}tensors "
            f"'fc_norm.*', fc_norm={config.get('fc_norm')} of config.json"
        )
    _refuse_rotary(inside, options)
    registers = next((name for name in REGISTERS if name in inside), None)
    bare = "cls_token" not in inside and not registers
    if bare and averaged and not config:
        raise ValueError(
            "Open the folder of timm with config.json: the file does not show whether blocks "
            "normalize before attention and MLP, or after them (timm's vit_*_rpn_*). "
            "Received: a ViT without a class token, with tensors 'fc_norm.*'"
        )
    gelu = config.get("activation", "gelu")
    if bare and not config:
        gelu = options.activation
        if gelu is None:
            raise ValueError(
                "Specify activation='gelu' or 'gelu_tanh' (some of timm's SigLIP): a file "
                "without a class token does not determine it. Received: activation=None"
            )
    elif options.activation not in (None, gelu):
        options.refuse("a ViT in timm's names with a class token or config.json", "activation")
    norm = "fc_norm" if averaged else "norm"
    names = TokenNames("cls_token", "dist_token", registers)
    image, pooling = config.get("image_shape"), "gap" if averaged else None
    if f"{LINEAR}.bias" in tensors:
        head = new_head_map(width, options, "the class token and the mean of the patches")
    else:
        head = _vit_head(inside, width, options, prefix)
    blocks = _vit_blocks(inside, width)
    size = (width, blocks.arguments["num_layers"], patch)
    arguments = {
        "num_heads": _vit_heads(inside, size, prefix, options, bare),
        "fc_norm": averaged,
        "epsilon": config.get("epsilon", 1e-6),
    }
    mapping = (
        WeightMap({"activation": gelu}, unused_tensors=VIT_UNUSED)
        | ends_map(f"{PATCHES}\n{norm} {norm} norm D", width, patch, channels)
        | embedding_map(inside, "pos_embed", names, patch, channels, options, image, pooling)
        | blocks
        | arguments
        | head
    )
    # Self-supervised encoders come without a head, and are trained on ImageNet's mean and std, as
    # are DeiT, which alone has a token of distillation, and DeiT-3, with scales and a head.
    plain = "dist_token" not in inside and "layer_scale" not in mapping.arguments
    # A mean that is normalized is that of MAE, if there is a class token besides.
    half = "head.bias" in inside and ("cls_token" not in inside or (plain and not averaged))
    # The code of DINOv2 antialiases for its models with registers only.
    positions = "dino" if "mask_token" in inside and not registers and not plain else None
    mapping = mapping.under(prefix) | WeightMap(unused_tensors=(*PREFIXES[prefix], f"{LINEAR}.*"))
    values = HALF if half else IMAGENET
    model = "DistilledViT" if "distillation" in mapping.arguments else "ViT"
    return Conversion(model, mapping, "bicubic", values, position_method=positions)


def _vit_blocks(tensors: Tensors, width: int) -> WeightMap:
    """All blocks, their scales and gates included."""
    table = BLOCK
    if "blocks.0.mlp.w12.bias" in tensors:  # the gated MLP of DINOv2's own code
        table = table.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")
    if not any(name.endswith(".attn.qkv.bias") for name in tensors):
        table = table.replace("fused", "fused_unbiased")
    scale = next((name for name in SCALES if f"blocks.0.{name}" in tensors), None)
    blocks = blocks_map(tensors, width, f"{table}\n{SCALES[scale]}" if scale else table)
    return blocks | ({"layer_scale": 1e-5} if scale else {})


def blocks_map(tensors: Tensors, width: int, table: str = BLOCK) -> WeightMap:
    """All blocks; an MLP that expands to twice as many channels as it contracts is gated."""
    first, last = ("mlp.w12", "mlp.w3") if "mlp.w12" in table else ("mlp.fc1", "mlp.fc2")
    expanded = dims(tensors, f"blocks.0.{first}.bias", 1)[0]
    contracted = tensors.get(f"blocks.0.{last}.weight")
    gated = contracted is not None and (expanded,) == tuple(2 * n for n in contracted.shape[1:])
    sizes = {"D": width, "E": expanded, "M": expanded // 2 if gated else expanded}
    layers = count_layers(tensors)
    arguments = {"num_layers": layers, "mlp_dim": sizes["M"]}
    blocks = read_blocks(table, TORCH, sizes, "blocks.#.", layers) | arguments
    return blocks | ({"activation": "swiglu"} if gated else {})


def _refuse_rotary(tensors: Tensors, options: LoadOptions) -> None:
    """Raises a ValueError for tensors that may be those of a ViT with rotary positions."""
    scaled = "blocks.0.gamma_1" in tensors and not options.config and options.container != "model"
    if "rope.freqs" in tensors or "pos_embed" not in tensors or scaled:
        raise ValueError(
            "ViTs with rotary positions (timm's vit_*_rope_*) and DeiT-3, except for its "
            "authors' .pth, are not converted. A ViT with rotary positions "
            f"{module_only_message()}"
        )


def _vit_heads(
    tensors: Tensors, size: tuple[int, int, int], prefix: str, options: LoadOptions, bare: bool
) -> int:
    """The number of heads, which is open for MoCo-v3's probes and a base model of patches alone."""
    width, layers, _ = size
    small = width == 384 and options.num_heads is None
    if small and prefix == MOCO:
        return 12
    labelled = "head.bias" in tensors and prefix in ("", "model.")
    labelled = labelled or any(f"blocks.0.{scale}" in tensors for scale in SCALES)
    certain = options.known_name or labelled or prefix.endswith("backbone.")
    other = 12 if small and not certain else None
    if bare and size == (768, 12, 16) and not options.known_name:
        other = 16
    return infer_num_heads(width, layers, options, other)


def _vit_head(tensors: Tensors, width: int, options: LoadOptions, prefix: str) -> WeightMap:
    """The head, or those of a class token and a token of distillation."""
    if prefix == MOCO:
        # Its head is an MLP that projects for the contrast between images.
        tensors = {name: t for name, t in tensors.items() if not name.startswith("head.")}
        return head_map(tensors, width, options, "head") | WeightMap(unused_tensors=("head.*",))
    if "dist_token" in tensors:
        if "head_dist.bias" in tensors:
            return two_heads_map(tensors, width, options, "head", "head_dist")
        return head_map(tensors, width, options, "head") | {"distillation": "token"}
    return tanh_head_map(tensors, width, options, "pre_logits.fc")


# DINOv3, in timm's names and its authors'. timm pools it by the mean of its patches, its authors by
# the class token.

# The registers of DINOv3 by the name of timm and of its authors.
DINO_REGISTERS = ("reg_token", "storage_tokens")
PERIODS = "rope_embed.periods"
DINO_UNUSED = ("mask_token",)
DINO_TOKENS = 16  # of images of 256 pixels, as timm and the code of DINOv3 evaluate
DINO_BASE = 100.0  # of the periods of its rotary positions
DINO_HEADS = HEADS | {(1280, 32): 20, (4096, 40): 32}
DINO_BLOCK = """
    norm1      attention_norm  norm    D
    attn.proj  out             linear  D D
    norm2      mlp_norm        norm    D
"""
# The MLP as one layer, as a gate and what it gates, and the same in the names of the authors.
DINO_MLPS = {
    "mlp.fc1": "mlp.fc1 expand linear D E \n mlp.fc2 contract linear M D",
    "mlp.fc1_g": "mlp.fc1_g,mlp.fc1_x expand gate D M \n mlp.fc2 contract linear M D",
    "mlp.w1": "mlp.w1,mlp.w2 expand gate D M \n mlp.w3 contract linear M D",
}


def _is_dinov3(tensors: Tensors) -> bool:
    tensors = without_prefix(tensors, vit_prefix(tensors) or "")
    registers = any(name in tensors for name in DINO_REGISTERS)
    return "blocks.0.norm1.weight" in tensors and "pos_embed" not in tensors and registers


def convert_dinov3(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A DINOv3."""
    prefix = vit_prefix(tensors) or ""
    tensors = without_prefix(tensors, prefix)
    if "fc_norm.weight" in tensors:
        raise ValueError(
            "A ViT with rotary positions and tensors 'fc_norm.*' is no DINOv3. It "
            f"{module_only_message()}"
        )
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    config = options.config
    layers = count_layers(tensors)
    if PERIODS in tensors:
        # A head has a period for 4 of its channels.
        heads = max(width // (4 * dims(tensors, PERIODS, 1)[0]), 1)
        options.check_heads(heads, width)
    else:
        heads = infer_num_heads(width, layers, options, published=DINO_HEADS)
    registers = next(name for name in DINO_REGISTERS if name in tensors)
    timms = registers == DINO_REGISTERS[0]
    if timms and not (config or options.known_name or options.pooling):
        raise ValueError(
            "Specify pooling='gap' (timm's DINOv3) or 'cls' (its authors' files and "
            "LingBot-Vision): files with timm's names do not determine it. Received: "
            "pooling=None"
        )
    # The periods of rotary positions, and the masks by which biases of keys are none.
    size = width // heads
    masks = [name for name in tensors if name.endswith(".attn.qkv.bias_mask")]
    constants = dict.fromkeys(masks, np.repeat([1.0, 0.0, 1.0], width))
    if PERIODS in tensors:
        constants[PERIODS] = DINO_BASE ** (np.arange(size // 4) * 4 / size)
    arguments = {
        "num_heads": heads,
        "layer_scale": 1e-5,
        "epsilon": 1e-5,
        "image_shape": (*(DINO_TOKENS * patch,) * 2, channels),
    }
    names = TokenNames("cls_token", registers=registers)
    scale = next((name for name in SCALES if f"blocks.0.{name}" in tensors), "gamma_1")
    mapping = (
        ends_map(f"{PATCHES}\nnorm norm norm D", width, patch, channels)
        | WeightMap(arguments, unused_tensors=DINO_UNUSED, constants=constants)
        | prefix_map(tensors, names, width, options, "gap" if timms else "cls")
        | _dinov3_blocks(tensors, width, layers, SCALES[scale])
        | head_map({}, width, options, "head")
    ).under(prefix) | WeightMap(unused_tensors=PREFIXES[prefix])
    images = ("bicubic", IMAGENET, 1.0) if timms else ("bilinear", IMAGENET, None)
    return Conversion("RotaryViT", mapping, *images, any_size=True)


def _dinov3_blocks(tensors: Tensors, width: int, layers: int, scales: str) -> WeightMap:
    """All blocks; keys have no bias, and queries and values none where the file has none."""
    first = "blocks.0."
    mlp = next((name for name in DINO_MLPS if f"{first}{name}.weight" in tensors), "mlp.fc1")
    last = "mlp.w3" if mlp == "mlp.w1" else "mlp.fc2"
    expanded = dims(tensors, f"{first}{mlp}.weight", 2)[0]
    hidden = dims(tensors, f"{first}{last}.weight", 2)[1]
    gated = mlp != "mlp.fc1" or expanded == 2 * hidden
    rows = [DINO_BLOCK, DINO_MLPS[mlp], scales]
    if f"{first}attn.qkv.bias" in tensors:
        rows.append("attn.qkv query,key,value fused_without_key_bias D")
    else:
        rows.append("attn.qkv query,key,value fused_kernels D")
        for path in ("query", "value"):
            name = f"attn.{path[0]}_bias"
            stored = first + name in tensors
            rows.append(f"{name} {path}/bias {'same' if stored else 'zeros'} D")
    arguments = {
        "num_layers": layers,
        "mlp_dim": hidden,
        "activation": "swiglu" if gated else "gelu",
    }
    sizes = {"D": width, "M": hidden, "E": 2 * hidden if gated else hidden}
    return read_blocks("\n".join(rows), TORCH, sizes, "blocks.#.", layers) | arguments


# BEiT and BEiT v2, in the names of their releases (unilm's `modeling_finetune.py`) and timm's.

SHARED_TABLE = "rel_pos_bias.relative_position_bias_table"
TABLE = "attn.relative_position_bias_table"
# Indices that follow from the size; heads and layers that predict visual tokens in pretraining.
BEIT_UNUSED = ("*relative_position_index", "mask_token", "lm_head.*", "cls_pt_layers.*")
# Tokens along a side, as the pairs of all of them are indexed: images of 1024 pixels, as a rule.
LARGEST_SIDE = 64
BEIT_BLOCK = (
    BLOCK.replace("fused", "fused_kernels")
    + """
    attn.q_bias  query/bias       same  D
    attn.v_bias  value/bias       same  D
    gamma_1      attention_scale  same  D
    gamma_2      mlp_scale        same  D
"""
)


def convert_beit(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A BEiT."""
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    shared = SHARED_TABLE in tensors
    entries, heads = dims(tensors, SHARED_TABLE if shared else f"blocks.0.{TABLE}", 2)
    own = options.config.get("image_shape")
    grid = relative_grid(entries, patch, own, options.image_shape, LARGEST_SIDE)
    options.check_heads(heads, width)
    sizes = {"R": entries, "H": heads}
    arguments = {"image_shape": pixels(grid, channels), "num_heads": heads, "shared_bias": shared}
    blocks = blocks_map(tensors, width, BEIT_BLOCK)
    if "activation" in blocks.arguments:
        raise ValueError("Expected a BEiT whose MLP has a GELU. Received: one with a gated MLP")
    bias = read_table(f"{SHARED_TABLE} bias/table same R H", TORCH, sizes)
    if not shared:
        row, layers = f"{TABLE} table same R H", blocks.arguments["num_layers"]
        bias = read_blocks(row, TORCH, sizes, "blocks.#.", layers, "block#_bias/")
    averaged = "fc_norm.weight" in tensors
    options.require_pooling("gap" if averaged else "cls", averaged)
    norm = "fc_norm" if averaged else "norm"
    mapping = (
        ends_map(f"{PATCHES}\n{CLASS_TOKEN}", width, patch, channels)
        | blocks
        | WeightMap(arguments, unused_tensors=BEIT_UNUSED)
        | bias
        | beit_end(tensors, width, options, norm, averaged, "head")
    )
    return Conversion("BEiT", mapping, "bicubic", position_method="bilinear")


# MLP-Mixer, which has the exact GELU here, and BiT.

MIXER_BLOCK = """
    norm1             token_norm        norm    D
    mlp_tokens.fc1    token_expand      linear  N T
    mlp_tokens.fc2    token_contract    linear  T N
    norm2             channel_norm      norm    D
    mlp_channels.fc1  channel_expand    linear  D M
    mlp_channels.fc2  channel_contract  linear  M D
"""
BIT_ROOT = "stem.conv.weight"
BIT_UNIT = """
    norm1  norm1  norm         B
    conv1  conv1  conv_kernel  B I 1
    norm2  norm2  norm         I
    conv2  conv2  conv_kernel  I I 3
    norm3  norm3  norm         I
    conv3  conv3  conv_kernel  I 4I 1
"""
BIT_PROJECTION = "downsample.conv  projection  conv_kernel  B 4I 1"


def convert_mixer(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A Mixer."""
    options.refuse("MLP-Mixer in timm's names", "pooling", "num_heads")
    width, channels, patch = patch_dims(tensors, "stem.proj.weight")
    tokens_mlp, num_tokens = dims(tensors, "blocks.0.mlp_tokens.fc1.weight", 2)
    channels_mlp = dims(tensors, "blocks.0.mlp_channels.fc1.bias", 1)[0]
    layers, config = count_layers(tensors), options.config
    image = config.get("image_shape")
    grid = file_grid(num_tokens, (0,), patch, options.image_shape, image)
    arguments = (layers, width, tokens_mlp, channels_mlp, config.get("activation", "gelu"))
    sizes = {
        "N": num_tokens,
        "D": width,
        "T": tokens_mlp,
        "M": channels_mlp,
        "C": channels,
        "P": patch,
    }
    mapping = (
        read_table("stem.proj embedding conv C D P\nnorm norm norm D", TORCH, sizes)
        | google.mixer_arguments(grid, channels, *arguments)
        | read_blocks(MIXER_BLOCK, TORCH, sizes, "blocks.#.", layers)
        | head_map(tensors, width, options, "head")
    )
    return Conversion("Mixer", mapping, "bicubic")


def convert_bit(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A BiT."""
    options.refuse("BiT in timm's names", "pooling", "num_heads", "activation")
    size = options.config.get("input_size") or (google.BIT_SIZE, google.BIT_SIZE)
    mapping, last = bit_map(tensors, BIT_ROOT, "stages.#.blocks.#.", size)
    mapping |= head_map(tensors, last, options, "head.fc", kind="linear_1x1")
    return Conversion("BiT", mapping, any_size=True)


def bit_map(tensors: Tensors, root: str, unit: str, size: tuple[int, int]) -> tuple[WeightMap, int]:
    """(`WeightMap` of a BiT but for its head, channels that it reads); `#` numbers `unit`."""
    width, channels = dims(tensors, root, 4)[:2]
    pattern = unit.replace(".", r"\.").replace("#", r"(\d{1,4})")
    units = count_units(tensors, pattern, first=0)
    stem = unit.replace("#", "{}") + "{{}}"
    tables = (BIT_UNIT, BIT_PROJECTION, TORCH)
    mapping, last = google.units_map(units, width, *tables, stem.format, google.unit_path)
    rows = f"{root.removesuffix('.weight')} root conv_kernel C D 7\nnorm norm norm B"
    ends = read_table(rows, TORCH, {"C": channels, "D": width, "B": last})
    return ends | mapping | google.bit_arguments(units, width, (*size, channels)), last


# Image encoders of CLIP, whose projection timm writes as a head with a bias of zero, and of SigLIP,
# which were all trained with the tanh form of GELU.

# Channels of the embeddings of released encoders, by those of a token: no head of a classifier has
# so many units (those of timm's have 1,000 or 11,821).
PROJECTIONS = {768: 512, 896: 640, 1024: 768, 1280: 1024, 1408: 1024, 1664: 1280}
CLIP_ENDS = f"{UNBIASED_PATCHES}\nnorm_pre pre_norm norm D\nnorm norm norm D"
POOLING = """
    latent   probe      same        1 1 D
    q        query      linear      D D
    kv       key,value  fused       D
    norm     norm       norm        D
    proj     out        linear      D D
    mlp.fc1  expand     linear      D M
    mlp.fc2  contract   linear      M D
"""
PROBE = "attn_pool.latent"
# Where timm's SigLIP lies, and what may lie next to it: in open_clip's files that for texts.
SIGLIP_PREFIXES = {"": (), "visual.trunk.": ("text.*", "logit_scale", "logit_bias")}
SIGLIP_HEADS = {(768, 12): 12, (1024, 24): 16, (1152, 27): 16, (1536, 40): 16}


def require_activation(options: LoadOptions, own: str | None = None) -> str:
    """The form of the GELU that is asked for, or of the file, as OpenAI's differ from others'."""
    activation = options.activation or own
    if activation is None:
        raise ValueError(
            "Specify activation='quick_gelu' (OpenAI's and some later weights) or 'gelu' "
            "(most weights of open_clip): a CLIP file without open_clip_config.json does not "
            "determine it. Received: activation=None"
        )
    return activation


def convert_clip(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A CLIP."""
    options.refuse("CLIP in timm's names", "pooling")
    width, channels, patch = patch_dims(tensors, "patch_embed.proj.weight")
    options.require_pooling("cls")
    heads = infer_num_heads(width, count_layers(tensors), options, published=CLIP_HEADS)
    names, image = TokenNames("cls_token"), options.config.get("image_shape")
    embedding = embedding_map(tensors, "pos_embed", names, patch, channels, options, image)
    if not embedding.arguments.get("class_position"):
        raise ValueError(
            "Expected a CLIP with a class token that has a position. "
            f"Received: {dims(tensors, 'pos_embed', 3)[1]} positions"
        )
    image = {"image_shape": embedding.arguments["image_shape"]}
    mapping = (
        ends_map(CLIP_ENDS, width, patch, channels)
        | WeightMap(image, embedding.weights)
        | blocks_map(tensors, width)
        | _clip_projection(tensors, width, options)
        | {"num_heads": heads, "activation": require_activation(options)}
    )
    return Conversion("CLIPViT", mapping, "bicubic", CLIP, 1.0)


def identity_projection(width: int) -> WeightMap:
    """The projection of a file that has none: the identity."""
    kernel = Transform({}, partial(np.eye, width, dtype="float32"))
    return WeightMap({"projection_dim": width}, {"projection/kernel": kernel})


def _clip_projection(tensors: Tensors, width: int, options: LoadOptions) -> WeightMap:
    """The projection, which returns the class token where the file has none, and the head."""
    classes = dims(tensors, HEAD[1], 1)[0] if HEAD[1] in tensors else None
    as_projection = PROJECTIONS.get(width, 0)
    if classes is not None and classes == as_projection and options.num_classes != 0:
        # It is written as a head, whose bias has to be zero.
        def convert(kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
            if np.any(bias):
                raise ValueError(
                    f"Expected {HEAD[1]!r} to be zero: a head with as many units as CLIP's "
                    "projection is used as the projection, to which timm adds a zero bias. "
                    f"Received: values up to {np.abs(bias).max():.3g}"
                )
            return kernel.T

        kernel = Transform({HEAD[0]: (classes, width), HEAD[1]: (classes,)}, convert)
        arguments = {"projection_dim": classes, "num_classes": options.num_classes}
        return WeightMap(arguments, {"projection/kernel": kernel}, new_weights=("head/*",))
    return embedding_head(tensors, width, options, "head") | identity_projection(width)


def is_siglip(tensors: Tensors) -> bool:
    """Whether the names are those of a SigLIP of timm's or open_clip's."""
    return find_prefix(tensors, SIGLIP_PREFIXES, PROBE) is not None


def convert_siglip(tensors: Tensors, options: LoadOptions) -> Conversion:
    """A SigLIP or SigLIP 2, also within open_clip's files."""
    prefix = find_prefix(tensors, SIGLIP_PREFIXES, PROBE) or ""
    options.refuse("SigLIP", "pooling")
    inside = without_prefix(tensors, prefix)
    width, channels, patch = patch_dims(inside, "patch_embed.proj.weight")
    options.require_pooling("map")
    heads = infer_num_heads(width, count_layers(inside), options, published=SIGLIP_HEADS)
    blocks = blocks_map(inside, width)
    if "activation" in blocks.arguments:
        raise ValueError("Expected a SigLIP whose MLP has a GELU. Received: one with a gated MLP")
    sizes = {"D": width, "M": blocks.arguments["mlp_dim"]}
    mapping = (
        ends_map(f"{PATCHES}\nnorm norm norm D", width, patch, channels)
        | patch_positions_map(inside, "pos_embed", patch, channels, options)
        | blocks
        | read_table(POOLING, TORCH, sizes, "attn_pool.{}", "pooling/{}")
        | {"num_heads": heads}
        | ({"activation": options.activation} if options.activation else {})
        | embedding_head(inside, width, options, "head")
    ).under(prefix) | WeightMap(unused_tensors=SIGLIP_PREFIXES[prefix])
    return Conversion("SigLIPViT", mapping, "bicubic", HALF)


# Names that files of a family hold, and no others; only BiT has a bare convolution as its stem.
CLIP_NAMES = {"norm_pre.weight", "patch_embed.proj.weight", "blocks.0.norm1.weight"}
BIT_NAMES = {BIT_ROOT, "stages.0.blocks.0.downsample.conv.weight"}
MIXER_NAMES = {"blocks.0.mlp_tokens.fc1.weight", "stem.proj.weight"}
# In this order: files of SigLIP, BEiT and DINOv3 have all names that a ViT of timm has.
FAMILIES = (
    Family("SigLIP", is_siglip, convert_siglip),
    Family("BEiT", lambda t: SHARED_TABLE in t or f"blocks.0.{TABLE}" in t, convert_beit),
    Family("DINOv3 in timm's names", _is_dinov3, convert_dinov3),
    Family("CLIP in timm's names", CLIP_NAMES.issubset, convert_clip, accepts_activation=True),
    Family(
        "Vision Transformers in timm's names",
        lambda t: vit_prefix(t) is not None,
        convert_vit,
        accepts_activation=True,
    ),
    Family("BiT in timm's names", BIT_NAMES.issubset, convert_bit),
    Family("MLP-Mixer in timm's names", MIXER_NAMES.issubset, convert_mixer),
)
