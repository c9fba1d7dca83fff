"""The image encoder of CLIP in OpenAI's names (`clip/model.py`), which open_clip's files share.

A folder of open_clip's holds what the tensors do not: `open_clip_config.json`.
"""

import dataclasses

from vit_tf.checkpoints import timm
from vit_tf.checkpoints.archives import OPEN_CLIP, Folder
from vit_tf.checkpoints.configs import Config, lookup_filter, numbers
from vit_tf.checkpoints.weight_maps import (
    CLIP_HEADS,
    TORCH,
    Conversion,
    Family,
    LoadOptions,
    Tensors,
    WeightMap,
    clip_tokens_map,
    count_layers,
    dims,
    find_prefix,
    infer_num_heads,
    patch_dims,
    read_blocks,
    read_table,
    without_prefix,
)
from vit_tf.common.names import lookup
from vit_tf.data.preprocessing import CLIP

NAME = "OpenAI's CLIP"
ENCODER_PREFIX = "visual."
BLOCKS = f"{ENCODER_PREFIX}transformer.resblocks."
# Prefixes of tensor names; 'module.' comes from data-parallel training.
PREFIXES = ("", "module.")
# Entries that only OpenAI's TorchScript files contain.
TRACED = ("input_resolution", "context_length", "vocab_size")
# The text encoder, and what it takes to compare images with texts.
UNUSED = (
    *("transformer.*", "token_embedding.*", "positional_embedding", "ln_final.*", "text.*"),
    *("text_projection", "logit_scale", "logit_bias", *TRACED),
)
STEM_AND_HEAD = """
    conv1    embedding/patches  conv_kernel  C D P
    ln_pre   pre_norm           norm         D
    ln_post  norm               norm         D
    proj     projection/kernel  same         D R
"""
BLOCK = """
    ln_1           attention_norm   norm    D
    attn.in_proj_  query,key,value  fused   D
    attn.out_proj  out              linear  D D
    ln_2           mlp_norm         norm    D
    mlp.c_fc       expand           linear  D M
    mlp.c_proj     contract         linear  M D
"""
# Defaults of open_clip's `CLIPVisionCfg`; a file stores only what differs.
DEFAULTS = {
    "layers": 12,
    "width": 768,
    "head_width": 64,
    "mlp_ratio": 4.0,
    "patch_size": 16,
    "image_size": 224,
}
# Fields of which one value is supported, and fields that change no image's embedding.
REQUIRED_VALUES = {
    "ls_init_value": None,
    "attentional_pool": False,
    "no_ln_pre": False,
    "final_ln_after_pool": False,
    "pool_type": "tok",
    "act_kwargs": None,
    "norm_kwargs": None,
    "block_type": None,
    "timm_model_name": None,
    "qk_norm": False,
    "scaled_cosine_attn": False,
    "scale_heads": False,
    "scale_attn_inner": False,
    "scale_attn": False,
    "scale_fc": False,
}
# `pos_embed_type` is ignored: sinusoidal positions are stored like learned ones.
IGNORED_FIELDS = (
    "patch_dropout",
    "attn_pooler_queries",
    "attn_pooler_heads",
    "output_tokens",
    "pos_embed_type",
    "timm_model_pretrained",
    "timm_pool",
    "timm_proj",
    "timm_proj_bias",
    "timm_drop",
    "timm_drop_path",
)
# Those of open_clip's `PreprocessCfg`.
PREPROCESSING = {"mode": "RGB", "interpolation": "bicubic", "resize_mode": "shortest", **CLIP}
CROPS = {"shortest": 1.0, "squash": None}


def convert_clip(tensors: Tensors, options: LoadOptions) -> Conversion:
    """Converts a CLIP file.

    OpenAI's own files (recognized by `TRACED`) use quick GELU; for other files the caller
    specifies the activation.
    """
    activation = "quick_gelu" if any(name in tensors for name in TRACED) else None
    return _convert(tensors, options, timm.require_activation(options, activation))


def _convert(
    tensors: Tensors,
    options: LoadOptions,
    activation: str,
    image_shape: tuple[int, int] | None = None,
) -> Conversion:
    """The `Conversion` of a file; `image_shape` is (height, width) of a configuration, if any."""
    options.refuse(NAME, "pooling")
    prefix = find_prefix(tensors, PREFIXES, BLOCKS) or ""
    encoder_tensors = without_prefix(tensors, prefix + ENCODER_PREFIX)
    width, channels, patch = patch_dims(encoder_tensors, "conv1.weight")
    projection = dims(encoder_tensors, "proj", 2)[1]
    layers = count_layers(encoder_tensors, r"transformer\.resblocks\.(\d+)\.")
    arguments = {
        "patch_size": patch,
        "hidden_dim": width,
        "num_heads": infer_num_heads(width, layers, options, published=CLIP_HEADS),
        "projection_dim": projection,
        "num_classes": options.num_classes or None,
        "activation": activation,
    }
    names = ("positional_embedding", "class_embedding")
    grid_sizes = (width, channels, patch, options.image_shape, image_shape)
    hidden = dims(encoder_tensors, "transformer.resblocks.0.mlp.c_fc.bias", 1)[0]
    sizes = {"C": channels, "D": width, "P": patch, "R": projection, "M": hidden}
    encoder = (
        WeightMap(arguments, new_weights=("head/*",))
        | clip_tokens_map(encoder_tensors, *names, *grid_sizes)
        | {"num_layers": layers, "mlp_dim": hidden}
        | read_table(STEM_AND_HEAD, TORCH, sizes)
        | read_blocks(BLOCK, TORCH, sizes, "transformer.resblocks.#.", layers)
    )
    mapping = (encoder.under(ENCODER_PREFIX) | WeightMap(unused_tensors=UNUSED)).under(prefix)
    return Conversion("CLIPViT", mapping, "bicubic", CLIP, 1.0)


def convert_folder(folder: Folder, options: LoadOptions) -> Conversion:
    """Converts an opened open_clip folder."""
    model = folder.config["model_cfg"]
    vision = model["vision_cfg"]
    config = Config(DEFAULTS | vision, OPEN_CLIP)
    size = config.pair("image_size")
    if vision.get("timm_model_name") is not None and timm.is_siglip(folder.tensors):
        conversion = _convert_siglip(folder, size, options)
    else:
        quick = Config(model, OPEN_CLIP).flag("quick_gelu", False)
        activation = "quick_gelu" if quick else "gelu"
        conversion = _convert_own(folder, config, size, activation, options)
    if options.preprocessing is not None:
        return conversion
    images = _preprocessing(folder, size, conversion.mapping.arguments["image_shape"][2])
    return dataclasses.replace(conversion, position_method="bicubic", **images)


def _convert_siglip(folder: Folder, size: tuple[int, int], options: LoadOptions) -> Conversion:
    """Converts an encoder from timm; its tensors determine all but the image size."""
    own_size = dataclasses.replace(options, image_shape=size)
    conversion = timm.convert_siglip(folder.tensors, own_size)
    received = conversion.mapping.arguments["image_shape"][:2]
    if received != size:
        raise ValueError(
            f"Expected position embeddings for images of {size}, the image_size in {OPEN_CLIP}. "
            f"Received: position embeddings for images of {received}"
        )
    return conversion


def _convert_own(
    folder: Folder, config: Config, size: tuple[int, int], activation: str, options: LoadOptions
) -> Conversion:
    """An encoder of open_clip's own, whose configuration has its heads; tensors have the rest."""
    for name, value in REQUIRED_VALUES.items():
        config.require(name, value)
    unknown = sorted(set(config.fields) - {*DEFAULTS, *REQUIRED_VALUES, *IGNORED_FIELDS})
    if unknown:
        raise ValueError(
            f"Expected only fields that vit_tf supports in vision_cfg of {OPEN_CLIP}. "
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
    return _convert(folder.tensors, options, activation, size)


def _preprocessing(folder: Folder, size: tuple[int, int], channels: int) -> dict:
    """Returns `values`, `interpolation` and `crop` of a `Conversion`, from `preprocess_cfg`."""
    preprocess_cfg = folder.config.get("preprocess_cfg") or {}
    fields = PREPROCESSING | {
        name: value for name, value in preprocess_cfg.items() if value is not None
    }
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


FAMILIES = (
    Family(
        NAME,
        lambda t: find_prefix(t, PREFIXES, BLOCKS) is not None,
        convert_clip,
        accepts_activation=True,
    ),
)
