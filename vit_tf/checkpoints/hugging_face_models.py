"""Folders of Hugging Face's transformers: `config.json` names the type and sizes of the model."""

import dataclasses
from functools import partial

import numpy as np

from vit_tf.checkpoints import google, timm
from vit_tf.checkpoints.archives import Folder
from vit_tf.checkpoints.configs import (
    Config,
    class_names,
    image_fields,
    preprocessing_from_config,
    processor_size,
)
from vit_tf.checkpoints.weight_maps import (
    QKV,
    TORCH,
    Conversion,
    LoadOptions,
    Tensors,
    TokenNames,
    Transform,
    WeightMap,
    beit_end,
    clip_tokens_map,
    dims,
    embedding_map,
    ends_map,
    head_map,
    new_head_map,
    prefix_map,
    read_blocks,
    two_heads_map,
    without_prefix,
)
from vit_tf.common.names import lookup
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.siglip import whole_patches

SIZES = ("hidden_size", "patch_size", "num_channels", "num_attention_heads")


def convert_folder(folder: Folder, options: LoadOptions) -> Conversion:
    """The `Conversion` of an open folder."""
    kind = str(folder.config.get("model_type"))
    if kind in DIFFERENT:
        raise ValueError(f"The model_type {kind!r} is not supported: {DIFFERENT[kind]}")
    conversion = lookup("model_type of config.json", kind, TYPES)(folder, options)
    if "head/kernel" not in conversion.mapping.weights:
        return conversion
    names = class_names(folder.config, conversion.mapping.arguments["num_classes"])
    return dataclasses.replace(conversion, class_names=names)


def _sizes(config: Config, options: LoadOptions) -> tuple[int, int, int, int, tuple[int, int, int]]:
    """(channels of a token, patch, channels, heads, image_shape) of a configuration."""
    width, patch, channels, heads = map(config.integer, SIZES)
    options.check_heads(heads, width)
    return width, patch, channels, heads, (*config.pair("image_size"), channels)


# ViT, DeiT, MAE, I-JEPA and DINOv2 (`modeling_vit.py` and others).

VIT_PATCHES = "embeddings.patch_embeddings.projection  embedding/patches  conv  C D P"
ATTENTION = """
    attention.attention.query  query  linear  D D
    attention.attention.key    key    linear  D D
    attention.attention.value  value  linear  D D
    attention.output.dense     out    linear  D D
"""
VIT_BLOCK = (
    ATTENTION
    + """
    layernorm_before    attention_norm  norm    D
    layernorm_after     mlp_norm        norm    D
    intermediate.dense  expand          linear  D M
    output.dense        contract        linear  M D
"""
)
DINO_BLOCK = (
    ATTENTION
    + """
    norm1                 attention_norm   norm    D
    norm2                 mlp_norm         norm    D
    mlp.fc1               expand           linear  D E
    mlp.fc2               contract         linear  M D
    layer_scale1.lambda1  attention_scale  same    D
    layer_scale2.lambda1  mlp_scale        same    D
"""
)
GATED_BLOCK = DINO_BLOCK.replace("mlp.fc1", "mlp.weights_in").replace("mlp.fc2", "mlp.weights_out")
VIT_TYPES = ("vit", "deit", "vit_mae", "ijepa", "dinov2", "dinov2_with_registers")
# What the models of a type may lie under, where it is not the type.
OUTER = {"vit_mae": "vit."}
CLASSIFIERS = ("vit", "deit", "ijepa")  # whose classifier reads what a `ViT` pools
VIT_POSITIONS = "embeddings.position_embeddings"
VIT_TOKENS = TokenNames(
    "embeddings.cls_token", "embeddings.distillation_token", "embeddings.register_tokens"
)


def convert_vit(folder: Folder, options: LoadOptions) -> Conversion:
    """A ViT, DeiT, MAE, I-JEPA or DINOv2."""
    config = Config(folder.config)
    kind, tensors = folder.config["model_type"], folder.tensors
    outer = OUTER.get(kind, f"{kind}.")
    outer = outer if f"{outer}embeddings.position_embeddings" in tensors else ""
    inside = without_prefix(tensors, outer)
    width, patch, channels, heads, image_shape = _sizes(config, options)
    config.require("qkv_bias", True)
    distilled = "embeddings.distillation_token" in inside
    mapping = (
        ends_map(f"{VIT_PATCHES}\nlayernorm norm norm D", width, patch, channels)
        | WeightMap(unused_tensors=("embeddings.mask_token",))
        | embedding_map(inside, VIT_POSITIONS, VIT_TOKENS, patch, channels, options, image_shape)
        | _vit_blocks(inside, width, config, kind)
        | {"num_heads": heads, "epsilon": config.number("layer_norm_eps")}
        | ({"distillation": "token"} if distilled else {})
        | _pooler_map(inside, width, config, options)
    ).under(outer)
    read = mapping.arguments.get("representation_dim", width)
    mapping |= _vit_head(tensors, read, options, kind)
    mapping |= WeightMap(unused_tensors=("decoder.*",) if kind == "vit_mae" else ())
    positions = "bicubic" if kind == "dinov2_with_registers" else "torch"
    any_size = kind.startswith("dinov2")
    images = preprocessing_from_config(folder, image_shape, any_size, options)
    model = "DistilledViT" if "distillation" in mapping.arguments else "ViT"
    return Conversion(model, mapping, position_method=positions, **images)


def _vit_blocks(tensors: Tensors, width: int, config: Config, kind: str) -> WeightMap:
    layers, scaled = config.integer("num_hidden_layers"), kind.startswith("dinov2")
    gated = config.fields.get("use_swiglu_ffn", False) is True
    table = (GATED_BLOCK if gated else DINO_BLOCK) if scaled else VIT_BLOCK
    contract = table.split(" contract ")[0].split()[-1]
    hidden = dims(tensors, f"encoder.layer.0.{contract}.weight", 2)[1]
    activation = "swiglu" if gated else config.activation()
    arguments = {"num_layers": layers, "mlp_dim": hidden, "activation": activation}
    sizes = {"D": width, "M": hidden, "E": 2 * hidden if gated else hidden}
    blocks = read_blocks(table, TORCH, sizes, "encoder.layer.#.", layers)
    return blocks | arguments | ({"layer_scale": 1.0} if scaled else {})


def _pooler_map(tensors: Tensors, width: int, config: Config, options: LoadOptions) -> WeightMap:
    """The layer of tanh on the class token of a model without a head, which goes with a new one."""
    # Without a class token, as in an I-JEPA, the layer would read the first patch: its tensors are
    # not read here, and so are refused as any unknown ones.
    if "pooler.dense.bias" not in tensors or "embeddings.cls_token" not in tensors:
        return WeightMap()
    if options.num_classes is not None:
        return WeightMap(unused_tensors=("pooler.dense.*",))
    config.require("pooler_act", "tanh")
    units = dims(tensors, "pooler.dense.bias", 1)[0]
    layer = ends_map("pooler.dense pre_logits linear D R", width, R=units)
    return layer | {"representation_dim": units}


def _vit_head(tensors: Tensors, width: int, options: LoadOptions, kind: str) -> WeightMap:
    """The head, or that of the class token and that of distillation."""
    if "distillation_classifier.bias" in tensors:
        heads = ("cls_classifier", "distillation_classifier")
        return two_heads_map(tensors, width, options, *heads)
    if kind in CLASSIFIERS:
        return head_map(tensors, width, options, "classifier")
    if "classifier.bias" not in tensors:
        return head_map({}, width, options, "head")
    reads = "the class token and the mean of the patches"
    return new_head_map(width, options, reads) | WeightMap(unused_tensors=("classifier.*",))


# DINOv3 (`modeling_dinov3_vit.py`). Its positions are rotary: images may be of any size.

DINO3_BLOCK = """
    norm1                  attention_norm   norm  D
    norm2                  mlp_norm         norm  D
    layer_scale1.lambda1   attention_scale  same  D
    layer_scale2.lambda1   mlp_scale        same  D
    attention.q_proj       query            QUERY D D
    attention.k_proj       key              KEY   D D
    attention.v_proj       value            VALUE D D
    attention.o_proj       out              PROJ  D D
    mlp.down_proj          contract         MLP   M D
"""
DINO3_MLPS = {
    False: "mlp.up_proj expand MLP D M",
    True: "mlp.gate_proj,mlp.up_proj expand GATE D M",
}
# Fields that say whether a layer has a bias, as transformers has them where a file is silent.
DINO3_BIASES = {"query": True, "key": False, "value": True, "proj": True, "mlp": True}
DINO3_BASE = 100.0  # the one base of rotary positions that our `Rotation` has for it


def convert_dinov3(folder: Folder, options: LoadOptions) -> Conversion:
    """A DINOv3."""
    config, tensors = Config(folder.config), folder.tensors
    width, patch, channels, heads, image_shape = _sizes(config, options)
    config.require("rope_theta", DINO3_BASE)
    layers, hidden = config.integer("num_hidden_layers"), config.integer("intermediate_size")
    biases = {name: config.flag(f"{name}_bias", own) for name, own in DINO3_BIASES.items()}
    gated = config.flag("use_gated_mlp", False)
    if gated:
        config.require("hidden_act", "silu")
    arguments = {
        "image_shape": image_shape,
        "num_heads": heads,
        "epsilon": config.number("layer_norm_eps"),
        "layer_scale": 1.0,
        "num_layers": layers,
        "mlp_dim": hidden,
        "key_bias": biases["key"],
        "activation": "swiglu" if gated else config.activation(),
    }
    ends = "embeddings.patch_embeddings embedding/patches conv C D P\nnorm norm norm D"
    table = DINO3_BLOCK + DINO3_MLPS[gated]
    for name, biased in biases.items():
        table = table.replace(name.upper(), "linear" if biased else "unbiased")
    table = table.replace("GATE", "gate" if biases["mlp"] else "gate_unbiased")
    mapping = (
        ends_map(ends, width, patch, channels)
        | WeightMap(arguments, unused_tensors=("embeddings.mask_token",))
        | prefix_map(tensors, VIT_TOKENS._replace(distillation=None), width, options)
        | read_blocks(table, TORCH, {"D": width, "M": hidden}, "layer.#.", layers)
        | head_map({}, width, options, "head")
    )
    images = preprocessing_from_config(folder, image_shape, True, options)
    return Conversion("RotaryViT", mapping, any_size=True, **images)


# The image encoders of CLIP, MetaCLIP 2 (`modeling_clip.py`), SigLIP and SigLIP 2
# (`modeling_siglip.py`).

# Types, and whether there is a text encoder too.
CLIP_TYPES = {
    "clip": True,
    "metaclip_2": True,
    "clip_vision_model": False,
    "metaclip_2_vision_model": False,
}
CLIP_BLOCK = """
    layer_norm1         attention_norm  norm    D
    self_attn.q_proj    query           linear  D D
    self_attn.k_proj    key             linear  D D
    self_attn.v_proj    value           linear  D D
    self_attn.out_proj  out             linear  D D
    layer_norm2         mlp_norm        norm    D
    mlp.fc1             expand          linear  D M
    mlp.fc2             contract        linear  M D
"""
CLIP_ENDS = """
    embeddings.patch_embedding  embedding/patches  conv_kernel  C D P
    pre_layrnorm                pre_norm           norm         D
    post_layernorm              norm               norm         D
"""
# Those of `CLIPVisionConfig`, of which a whole CLIP's `vision_config` has what differs.
CLIP_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
# The text encoder, and what it takes to compare images with texts.
CLIP_UNUSED = ("text_model.*", "text_projection.*", "logit_scale", "vision_model.*.position_ids")
SIGLIP_TYPES = {
    "siglip": True,
    "siglip2": True,
    "siglip_vision_model": False,
    "siglip2_vision_model": False,
}
SIGLIP_DEFAULTS = CLIP_DEFAULTS | {
    "patch_size": 16,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}
SIGLIP_UNUSED = ("text_model.*", "logit_scale", "logit_bias")
SIGLIP_ENDS = """
    embeddings.patch_embedding    embedding/patches        conv     C D P
    post_layernorm                norm                     norm     D
    head.probe                    pooling/probe            same     1 1 D
    head.attention.in_proj_       QKV                      fused    D
    head.layernorm                pooling/norm             norm     D
    head.attention.out_proj       pooling/out              linear   D D
    head.mlp.fc1                  pooling/expand           linear   D M
    head.mlp.fc2                  pooling/contract         linear   M D
""".replace("QKV", ",".join(f"pooling/{path}" for path in QKV))


def _encoder_blocks(config: Config, heads: int, options: LoadOptions) -> WeightMap:
    """The `WeightMap` of the blocks of an encoder."""
    layers, hidden = config.integer("num_hidden_layers"), config.integer("intermediate_size")
    arguments = {
        "num_layers": layers,
        "num_heads": heads,
        "mlp_dim": hidden,
        "num_classes": options.num_classes or None,
        "activation": config.activation(),
    }
    sizes = {"D": config.integer("hidden_size"), "M": hidden}
    blocks = read_blocks(CLIP_BLOCK, TORCH, sizes, "encoder.layers.#.", layers)
    return WeightMap(arguments, new_weights=("head/*",)) | blocks


def convert_clip(folder: Folder, options: LoadOptions) -> Conversion:
    """A CLIP."""
    options.refuse("Hugging Face's CLIP", "pooling")
    config = Config(CLIP_DEFAULTS | image_fields(folder, CLIP_TYPES))
    width, patch, channels, heads, image_shape = _sizes(config, options)
    config.require("layer_norm_eps", CLIP_DEFAULTS["layer_norm_eps"])
    names = ("embeddings.position_embedding.weight", "embeddings.class_embedding")
    inside = without_prefix(folder.tensors, "vision_model.")
    mapping = (
        ends_map(CLIP_ENDS, width, patch, channels)
        | clip_tokens_map(inside, *names, width, channels, patch, file_shape=image_shape)
        | _encoder_blocks(config, heads, options)
    )
    projection = timm.identity_projection(width)
    if "visual_projection.weight" in folder.tensors:
        units = dims(folder.tensors, "visual_projection.weight", 2)[0]
        projection = ends_map("visual_projection projection kernel D R", width, R=units)
        projection |= {"projection_dim": units}
    mapping = mapping.under("vision_model.") | WeightMap(unused_tensors=CLIP_UNUSED) | projection
    images = preprocessing_from_config(folder, image_shape, False, options)
    return Conversion("CLIPViT", mapping, position_method="torch", **images)


def convert_siglip(folder: Folder, options: LoadOptions) -> Conversion:
    """A SigLIP; SigLIP 2 but for NaFlex is one."""
    kind = folder.config["model_type"]
    if kind.startswith("siglip2"):
        raise ValueError(
            "Expected a SigLIP with a fixed image size, such as fixed-resolution SigLIP 2 "
            "(model_type "
            f"'siglip'). Received: NaFlex, whose number of patches varies, model_type={kind!r}"
        )
    config = Config(SIGLIP_DEFAULTS | image_fields(folder, SIGLIP_TYPES))
    options.refuse("Hugging Face's SigLIP", "pooling")
    width, patch, channels, heads, image_shape = _sizes(config, options)
    config.require("vision_use_head", True)
    num_positions = whole_patches(image_shape, patch).num_tokens
    positions = {"embeddings.position_embedding.weight": (num_positions, width)}
    as_batch = partial(np.expand_dims, axis=0)
    arguments = {"image_shape": image_shape, "epsilon": config.number("layer_norm_eps")}
    blocks = _encoder_blocks(config, heads, options)
    mapping = (
        ends_map(SIGLIP_ENDS, width, patch, channels, M=blocks.arguments["mlp_dim"])
        | blocks
        | WeightMap(arguments, {"embedding/positions": Transform(positions, as_batch)})
    )
    mapping = mapping.under("vision_model.") | WeightMap(unused_tensors=SIGLIP_UNUSED)
    if "classifier.bias" in folder.tensors:
        if options.num_classes is None:
            raise ValueError(
                "Specify num_classes for a new head: the head of the file takes the mean of "
                "the tokens, which is not supported. Received: num_classes=None"
            )
        mapping |= WeightMap(unused_tensors=("classifier.*",))
    images = preprocessing_from_config(folder, image_shape, False, options)
    return Conversion("SigLIPViT", mapping, position_method="torch", **images)


# BEiT (`modeling_beit.py`).

TABLE = "relative_position_bias.relative_position_bias_table"
BEIT_BLOCK = VIT_BLOCK.replace("key    linear", "key    kernel")
BEIT_SCALES = "lambda_1 attention_scale same D\nlambda_2 mlp_scale same D"
# The token of masked patches, indices that follow from the size, and heads that predict visual
# tokens.
BEIT_UNUSED = ("*embeddings.mask_token", "*relative_position_index", "lm_head.*")


def convert_beit(folder: Folder, options: LoadOptions) -> Conversion:
    """A BEiT."""
    config, tensors = Config(folder.config), folder.tensors
    outer = "beit." if "beit.embeddings.cls_token" in tensors else ""
    width, patch, channels, heads, image_shape = _sizes(config, options)
    config.require("use_absolute_position_embeddings", False)
    shared = config.flag("use_shared_relative_position_bias", False)
    config.require("use_relative_position_bias", not shared)
    grid = TokenGrid.of_patches(image_shape, patch, prefix=1)
    layers, hidden = config.integer("num_hidden_layers"), config.integer("intermediate_size")
    scaled = f"{outer}encoder.layer.0.lambda_1" in tensors
    arguments = {
        "image_shape": image_shape,
        "num_layers": layers,
        "num_heads": heads,
        "mlp_dim": hidden,
        "activation": config.activation(),
        "epsilon": config.number("layer_norm_eps"),
        "shared_bias": shared,
    }
    entries = (2 * grid.rows - 1) * (2 * grid.columns - 1) + 3
    sizes = {"D": width, "M": hidden, "H": heads, "R": entries}
    ends = f"{VIT_PATCHES}\nembeddings.cls_token embedding/prefix same 1 1 D"
    ends += f"\nencoder.{TABLE} bias/table same R H" if shared else ""
    table = f"{BEIT_BLOCK}\n{BEIT_SCALES}" if scaled else BEIT_BLOCK
    row = "" if shared else f"attention.attention.{TABLE} table same R H"
    mapping = (
        ends_map(ends, width, patch, channels, R=entries, H=heads)
        | arguments
        | ({} if scaled else {"layer_scale": None})
        | read_blocks(table, TORCH, sizes, "encoder.layer.#.", layers)
        | read_blocks(row, TORCH, sizes, "encoder.layer.#.", layers, "block#_bias/")
    )
    mapping = mapping.under(outer) | WeightMap(unused_tensors=BEIT_UNUSED)
    # The last norm, by whose name the file shows its pooling. Models that predict visual tokens
    # have it next to the encoder.
    mean = f"{outer}pooler.layernorm"
    token = f"{outer}layernorm" if f"{outer}layernorm.weight" in tensors else "layernorm"
    norm = mean if f"{mean}.weight" in tensors else token
    mapping |= beit_end(tensors, width, options, norm, norm == mean, "classifier")
    images = preprocessing_from_config(folder, image_shape, False, options)
    return Conversion("BEiT", mapping, position_method="torch", **images)


# BiT (`modeling_bit.py`). Of the variants of `BitConfig` those of BiT as it was released.

BIT_ONLY = {
    "layer_type": "preactivation",
    "hidden_act": "relu",
    "global_padding": None,
    "num_groups": 32,
    "embedding_dynamic_padding": False,
    "output_stride": 32,
}


def convert_bit(folder: Folder, options: LoadOptions) -> Conversion:
    """A BiT; its processor has the size of the images."""
    options.refuse("Hugging Face's BiT", "pooling", "num_heads")
    config, tensors = Config(folder.config), folder.tensors
    for name, value in BIT_ONLY.items():
        config.require(name, value)
    root = "embedder.convolution.weight"
    outer = "bit." if f"bit.{root}" in tensors else ""
    size = processor_size(folder, options, (google.BIT_SIZE, google.BIT_SIZE))
    inside = without_prefix(tensors, outer)
    mapping, last = timm.bit_map(inside, root, "encoder.stages.#.layers.#.", size)
    mapping = mapping.under(outer) | head_map(tensors, last, options, "classifier.1")
    image_shape = mapping.arguments["image_shape"]
    images = preprocessing_from_config(folder, image_shape, True, options)
    return Conversion("BiT", mapping, any_size=True, **images)


TYPES = {
    "dinov3_vit": convert_dinov3,
    "beit": convert_beit,
    "bit": convert_bit,
    **dict.fromkeys(VIT_TYPES, convert_vit),
    **dict.fromkeys(CLIP_TYPES, convert_clip),
    **dict.fromkeys(SIGLIP_TYPES, convert_siglip),
}
# Types of models that differ from those here in what no option expresses.
_MODULE = (
    "measure the PyTorch module of transformers instead, "
    "vit_tf.analysis.cka(transformers.AutoModel.from_pretrained(FOLDER), images)"
)
DIFFERENT = {
    "aimv2": _MODULE,
    "aimv2_vision_model": _MODULE,
    "vit_hybrid": "open Google's .npz of the hybrid instead. The ResNet in transformers uses other "
    "epsilons: 1e-5, not 1e-6, in group normalization, and 1e-8 in the variance of kernels, not "
    "1e-5 in their standard deviation",
}
