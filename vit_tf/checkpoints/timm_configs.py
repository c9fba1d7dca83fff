"""What timm's `config.json` states and tensors do not: heads, GELU, pooling, size."""

import re

from vit_tf.checkpoints.folders import Config
from vit_tf.names import lookup

# Heads by the size in an architecture's name (timm 1.0.31).
SIZES = {"tiny": 3, "small": 6, "small_plus": 6, "medium": 8, "mediumd": 8, "base": 12, "large": 16}
SIZES |= {"huge": 16, "huge_plus": 20, "giant": 16, "giantopt": 16, "gigantic": 16, "so400m": 16}
SIZES |= {"7b": 32, "xsmall": 4, "wee": 4, "little": 5, "betwixt": 10, "so150m": 14, "so150m2": 13}
VIT = {"global_pool": "token", "act_layer": "gelu", "epsilon": 1e-6}
GAP = VIT | {"global_pool": "avg"}
PLAIN_GAP = GAP | {"fc_norm": False}
PE = {"global_pool": "map", "act_layer": "gelu", "epsilon": 1e-5}
AIMV2 = PLAIN_GAP | {"epsilon": 1e-5}
MAP = VIT | {"global_pool": "map"}
CLIP = VIT | {"epsilon": 1e-5}
TANH, QUICK, WIDE = {"act_layer": "gelu_tanh"}, {"act_layer": "quick_gelu"}, {"num_heads": 24}
EVA = {"global_pool": "avg", "act_layer": "gelu", "epsilon": 1e-6}
DINO3 = EVA | {"fc_norm": False, "epsilon": 1e-5}
# Of timm's architectures those that a model here computes, and the arguments with which timm makes
# them. `SIZE` stands for a key of `SIZES`; of several rows that fit, the last counts.
ARCHITECTURES = {
    r"(vit|deit|deit3|flexivit)_SIZE(_distilled)?(_patch\d+_\d+)?": VIT,
    r"vit_SIZE_patch\d+_224_miil": VIT,
    r"vit_SIZE_patch\d+_plus_\d+": VIT | {"num_heads": 14},
    r"vit_SIZE_patch\d+(_reg\d)?_(dinov2|tipsv2)": VIT,
    r"vit_giant_patch\d+(_reg\d)?_(dinov2|tipsv2)": VIT | WIDE,
    r"vit_SIZE_patch\d+_(reg\d_)?gap_\d+": GAP,
    r"vit_SIZE_patch\d+_gap_\d+": PLAIN_GAP,
    r"vit_base_patch16_gap_224": PLAIN_GAP | {"num_heads": 16},
    r"vit_so150m_patch16_reg4_gap_\d+": PLAIN_GAP,
    r"vit_SIZE_patch\d+_siglip_gap_\d+": PLAIN_GAP,
    r"vit_SIZE_patch\d+_siglip_\d+": MAP,
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_gap_\d+": PLAIN_GAP | TANH,
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_\d+": MAP | TANH,
    r"vit_large_patch16_siglip_gap_512": PLAIN_GAP | TANH,
    r"vit_large_patch16_siglip_512": MAP | TANH,
    r"vit_SIZE_patch\d+_clip_\d+": CLIP,
    r"vit_SIZE_patch\d+_clip_quickgelu_\d+": CLIP | QUICK,
    r"vit_SIZE_patch\d+_plus_clip_\d+": CLIP | {"num_heads": 14},
    r"beit(v2)?_SIZE_patch\d+_\d+": EVA,
    r"eva02_SIZE_patch\d+(_clip)?_\d+": EVA,
    r"eva02_SIZE_patch\d+_clip_\d+": EVA | {"global_pool": "token"},
    r"vit_SIZE_patch\d+_dinov3(_qkvb)?": DINO3,
    r"vit_SIZE_patch\d+_rope_(ape_)?\d+": VIT | {"rotation": "axial"},
    r"vit_SIZE_patch\d+_rope_mixed_(ape_)?\d+": VIT | {"rotation": "mixed"},
    r"vit_SIZE_patch\d+_rope_reg\d_gap_\d+": EVA | {"rotation": "eva"},
    r"aimv2_large_patch\d+_\d+": AIMV2 | {"num_heads": 8},
    r"aimv2_huge_patch\d+_\d+": AIMV2 | {"num_heads": 12},
    r"aimv2_1b_patch\d+_\d+": AIMV2 | {"num_heads": 16},
    r"aimv2_3b_patch\d+_\d+": AIMV2 | {"num_heads": 24},
    r"vit_pe_core_base_patch16_224": PE | {"rotary_side": (14, 14)},
    r"vit_pe_core_(tiny|small|large)_patch\d+_\d+": PE | {"rotary_side": (24, 24)},
    r"vit_pe_core_gigantic_patch14_448": PE | {"rotary_side": (32, 32)},
    r"mixer_[bls]\d+_\d+": EVA | {"fc_norm": False},
    r"resnetv2_\d+x\d_bit": EVA,
}
# Arguments that tensors determine as well, or that change nothing outside training.
SHOWN = "patch_size in_chans num_classes embed_dim depth mlp_ratio qkv_bias proj_bias init_values "
SHOWN += "class_token no_embed_class reg_tokens num_reg_tokens pre_norm final_norm num_blocks "
SHOWN += "qkv_fused scale_mlp scale_attn_inner swiglu_mlp swiglu_align_to use_abs_pos_emb "
SHOWN += "use_rel_pos_bias use_shared_rel_pos_bias drop_rate pos_drop_rate patch_drop_rate "
SHOWN += "proj_drop_rate attn_drop_rate drop_path_rate weight_init fix_init head_init_scale "
SHOWN += "dynamic_img_size strict_img_size use_post_transformer_norm"
USED = ("num_heads", "global_pool", "act_layer", "fc_norm", "use_fc_norm", "img_size")
# Arguments with the only value that is computed here.
ONLY = {"pool_include_prefix": False, "dynamic_img_pad": False, "ref_feat_shape": [16, 16]}
ACTIVATIONS = {name: name for name in ("gelu", "gelu_tanh", "quick_gelu")}
POOLINGS = {"token": "cls", "avg": "gap", "map": "map"}


def read_timm_config(config: dict) -> dict:
    """dict of `num_heads`, `activation`, `pooling`, `fc_norm` and others, as a `ViT` names them.

    `image_shape` is (height, width), or None where the file allows images of any size, and
    `input_size` that of the images it was trained with; `explicit` is whether the form of GELU is
    an argument of its own, not that of the architecture.
    """
    arguments = _arguments(str(config.get("architecture")))
    more = config.get("model_args") or {}
    if not isinstance(more, dict):
        raise ValueError(f"Expected model_args of config.json. Received: {str(more)[:200]}")
    unknown = sorted(set(more) - {*SHOWN.split(), *USED, *ONLY})
    if unknown:
        raise ValueError(
            "Expected supported model_args in config.json. "
            f"Received: {', '.join(map(repr, unknown[:8]))}"
        )
    fields = Config(more)
    for name, value in ONLY.items():
        fields.require(name, value)
    images = config["pretrained_cfg"]
    images = images if isinstance(images, dict) else {}
    size = images.get("input_size")
    size = size[-2:] if isinstance(size, list) else size
    if images.get("fixed_input_size"):
        arguments.setdefault("img_size", size)
    arguments |= {name: more[name] for name in USED if more.get(name) is not None}
    fields = Config(arguments | {"input_size": size})
    pooling = lookup("global_pool of config.json", str(arguments["global_pool"]), POOLINGS)
    fc_norm = fields.flag("use_fc_norm", fields.flag("fc_norm", pooling == "gap"))
    return {
        "num_heads": arguments["num_heads"] and fields.integer("num_heads"),
        "activation": lookup("act_layer", str(arguments["act_layer"]), ACTIVATIONS),
        "pooling": pooling,
        "fc_norm": fc_norm,
        "epsilon": arguments["epsilon"],
        "rotation": arguments.get("rotation"),
        "rotary_side": arguments.get("rotary_side"),
        "explicit": "act_layer" in more,
        "input_size": size and fields.pair("input_size"),
        "image_shape": fields.pair("img_size") if "img_size" in arguments else None,
    }


def config_from_name(checkpoint):
    """The same for a known name whose tensors do not state its rotary positions; {} for others."""
    name, size = checkpoint.name.removeprefix("timm/"), checkpoint.resolution
    if "_rope_" not in name:
        return {}
    images = {"input_size": [3, size, size]}
    return read_timm_config({"architecture": name.partition(".")[0], "pretrained_cfg": images})


def _arguments(architecture):
    """Those with which timm makes an architecture, besides sizes that its tensors show."""
    known = None
    sizes = "|".join(SIZES)
    for pattern, arguments in ARCHITECTURES.items():
        match = re.fullmatch(pattern.replace("SIZE", f"(?P<size>{sizes})"), architecture)
        if match:
            named = re.match(rf"\w+?_({sizes})_", architecture)
            size = match.groupdict().get("size") or (named and named[1])
            known = {"num_heads": SIZES.get(size)} | arguments
    if known is None:
        raise ValueError(
            f"Expected a supported architecture of timm. Received: architecture={architecture!r}"
        )
    return known
