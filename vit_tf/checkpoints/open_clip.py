"""The image encoder of CLIP in OpenAI's names (`clip/model.py`), which open_clip's files share.

A folder of open_clip's holds what the tensors do not: `open_clip_config.json`.
"""

import dataclasses

from vit_tf.checkpoints import timm
from vit_tf.checkpoints.configs import Config, lookup_filter, numbers
from vit_tf.checkpoints.folders import OPEN_CLIP
from vit_tf.checkpoints.weight_maps import (
    CLIP,
    CLIP_HEADS,
    TORCH,
    Conversion,
    Family,
    TokenNames,
    WeightMap,
    clip_tokens_map,
    count_layers,
    dims,
    infer_num_heads,
    patch_dims,
    read_blocks,
    read_table,
    without_prefix,
)
from vit_tf.names import lookup

NAME = "OpenAI's CLIP"
IMAGES = "visual."
# Where the encoders lie: as they are, or as several devices trained them.
PREFIXES = ("", "module.")
# The numbers that OpenAI's own files hold, and they alone: what their code was traced with.
TRACED = ("input_resolution", "context_length", "vocab_size")
# The text encoder, and what it takes to compare images with texts.
UNUSED = (
    *("transformer.*", "token_embedding.*", "positional_embedding", "ln_final.*", "text.*"),
    *("text_projection", "logit_scale", "logit_bias", *TRACED),
)
ENDS = """
    conv1    embedding/patches  conv  C D P
    ln_pre   pre_norm           norm  D
    ln_post  norm               norm  D
    proj     projection/kernel  same  D R
"""
BLOCK = """
    ln_1           attention_norm   norm    D
    attn.in_proj_  query,key,value  fused   D
    attn.out_proj  out              linear  D D
    ln_2           mlp_norm         norm    D
    mlp.c_fc       expand           linear  D M
    mlp.c_proj     contract         linear  M D
"""
# Those of open_clip's `CLIPVisionCfg`, of which a file has what differs.
DEFAULTS = {"layers": 12, "width": 768, "head_width": 64, "mlp_ratio": 4.0}
DEFAULTS |= {"patch_size": 16, "image_size": 224}
# Fields with the only value that is supported, and those that change no image's embedding.
ONLY = {"ls_init_value": None, "attentional_pool": False, "no_ln_pre": False}
ONLY |= {"final_ln_after_pool": False, "pool_type": "tok", "act_kwargs": None}
ONLY |= {"norm_kwargs": None, "block_type": None, "timm_model_name": None}
ONLY |= dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner"), False)
ONLY |= dict.fromkeys(("scale_attn", "scale_fc"), False)
# Positions of sines and cosines are stored as learned ones are.
FREE = ("patch_dropout", "attn_pooler_queries", "attn_pooler_heads", "output_tokens")
FREE += ("pos_embed_type", "timm_model_pretrained", "timm_pool", "timm_proj", "timm_proj_bias")
FREE += ("timm_drop", "timm_drop_path")
# Those of open_clip's `PreprocessCfg`.
PREPROCESSING = {"mode": "RGB", "interpolation": "bicubic", "resize_mode": "shortest", **CLIP}
CROPS = {"shortest": 1.0, "squash": None}


def _prefix(tensors):
    blocks = {prefix: f"{prefix}{IMAGES}transformer.resblocks." for prefix in PREFIXES}
    matches = (p for p in PREFIXES if any(name.startswith(blocks[p]) for name in tensors))
    return next(matches, None)


def convert_clip(tensors, options):
    """A file, of which OpenAI's own alone show the form of GELU."""
    activation = "quick_gelu" if any(name in tensors for name in TRACED) else None
    return _convert(tensors, options, timm.require_activation(options, activation))


def _convert(tensors, options, activation, image_shape=None):
    """The `Conversion` of a file; `image_shape` is (height, width) of a configuration, if any."""
    options.refuse(NAME, "pooling")
    outer = _prefix(tensors)
    if outer is None:
        raise ValueError(
            f"Expected tensors '{IMAGES}transformer.resblocks.*' of the image encoder of a CLIP. "
            "Received: none"
        )
    inside = without_prefix(tensors, outer + IMAGES)
    width, channels, patch = patch_dims(inside, "conv1.weight")
    projection = dims(inside, "proj", 2)[1]
    layers = count_layers(inside, r"transformer\.resblocks\.(\d+)\.")
    arguments = {
        "patch_size": patch,
        "hidden_dim": width,
        "num_heads": infer_num_heads(width, layers, options, published=CLIP_HEADS),
        "projection_dim": projection,
        "num_classes": options.num_classes or None,
        "activation": activation,
    }
    names = TokenNames("positional_embedding", "class_embedding")
    sizes = (width, channels, patch, options.image_shape, image_shape)
    mapping = WeightMap(arguments, new=("head/*",)) | clip_tokens_map(inside, names, *sizes)
    hidden = dims(inside, "transformer.resblocks.0.mlp.c_fc.bias", 1)[0]
    sizes = {"C": channels, "D": width, "P": patch, "R": projection, "M": hidden}
    mapping |= {"num_layers": layers, "mlp_dim": hidden}
    mapping |= read_table(ENDS, TORCH, sizes)
    mapping |= read_blocks(BLOCK, TORCH, sizes, "transformer.resblocks.#.", layers)
    mapping = mapping.under(IMAGES) | WeightMap(unused=UNUSED)
    return Conversion("CLIPViT", mapping.under(outer), "bicubic", CLIP, 1.0)


def convert_folder(folder, options):
    """The `Conversion` of an open folder of open_clip's."""
    model = folder.config.get("model_cfg")
    vision = model.get("vision_cfg") if isinstance(model, dict) else None
    if not isinstance(vision, dict):
        raise ValueError(
            f"Expected model_cfg of {OPEN_CLIP} with a vision_cfg. Received: {str(model)[:200]}"
        )
    config = Config(DEFAULTS | vision, OPEN_CLIP)
    size = config.pair("image_size")
    if vision.get("timm_model_name") is not None and timm.is_siglip(folder.tensors):
        # open_clip takes these encoders from timm; their tensors determine all but the images.
        options = dataclasses.replace(options, resolution=options.resolution or size[0])
        conversion = timm.convert_siglip(folder.tensors, options)
    else:
        quick = Config(model, OPEN_CLIP).flag("quick_gelu", False)
        activation = "quick_gelu" if quick else "gelu"
        conversion = _convert_own(folder, config, size, activation, options)
    if options.preprocessing is not None:
        return conversion
    images = _preprocessing(folder, size, conversion.mapping.arguments["image_shape"][2])
    return dataclasses.replace(conversion, positions="bicubic", **images)


def _convert_own(folder, config, size, activation, options):
    """An encoder of open_clip's own, whose tensors have to be of the sizes of its configuration."""
    for name, value in ONLY.items():
        config.require(name, value)
    unknown = sorted(set(config.fields) - {*DEFAULTS, *ONLY, *FREE})
    if unknown:
        raise ValueError(
            f"Expected the fields of vision_cfg in {OPEN_CLIP} to be known. "
            f"Received: {', '.join(map(repr, unknown[:8]))}"
        )
    width, head_width = config.integer("width"), config.integer("head_width")
    if head_width > width:
        raise ValueError(
            f"Expected head_width of {OPEN_CLIP} to be at most width, {width}. "
            f"Received: {head_width}"
        )
    options.check_heads(width // head_width, width)
    options = dataclasses.replace(options, num_heads=width // head_width)
    ratio = config.fields["mlp_ratio"]
    if type(ratio) not in (int, float) or not 0 < ratio < 1000:
        raise ValueError(
            f"Expected mlp_ratio of {OPEN_CLIP} to be a number above 0. Received: {ratio!r}"
        )
    patch = config.pair("patch_size")
    sizes = {
        "num_layers": config.integer("layers"),
        "hidden_dim": width,
        "mlp_dim": int(width * ratio),
        "patch_size": patch[0] if patch[0] == patch[1] else patch,
        "projection_dim": Config(folder.config["model_cfg"], OPEN_CLIP).integer("embed_dim"),
    }
    conversion = _convert(folder.tensors, options, activation, size)
    received = {name: conversion.mapping.arguments[name] for name in sizes}
    if received != sizes:
        raise ValueError(
            f"Expected tensors of the sizes in {OPEN_CLIP}, {sizes}. Received: {received}"
        )
    return conversion


def _preprocessing(folder, size, channels):
    """dict of a `Conversion`'s `values`, `interpolation` and `crop`, of `preprocess_cfg`."""
    own = folder.config.get("preprocess_cfg") or {}
    if not isinstance(own, dict):
        raise ValueError(f"Expected preprocess_cfg of {OPEN_CLIP}. Received: {str(own)[:200]}")
    fields = PREPROCESSING | {name: value for name, value in own.items() if value is not None}
    config = Config({"size": size} | fields, OPEN_CLIP)
    config.require("mode", "RGB")
    if config.pair("size") != size:
        raise ValueError(
            f"Expected size in preprocess_cfg of {OPEN_CLIP} to be image_size, {size}. "
            f"Received: {config.pair('size')}"
        )
    mean, std = (numbers(fields, name, channels) for name in ("mean", "std"))
    return {
        "values": {"mean": mean, "std": std},
        "interpolation": lookup_filter(fields),
        "crop": lookup("resize_mode", str(fields["resize_mode"]), CROPS),
    }


FAMILIES = (Family(NAME, lambda t: _prefix(t) is not None, convert_clip, activation=True),)
