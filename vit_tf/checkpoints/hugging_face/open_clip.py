"""A folder of open_clip's: `open_clip_config.json` states what CLIP's tensors do not."""

import dataclasses

from vit_tf.checkpoints.hugging_face.configs import Config
from vit_tf.checkpoints.hugging_face.folder import OPEN_CLIP
from vit_tf.checkpoints.hugging_face.processing import numbers
from vit_tf.checkpoints.plans import CLIP
from vit_tf.checkpoints.towers import clip, siglip
from vit_tf.names import choose

# Those of open_clip's `CLIPVisionCfg`, of which a file holds what differs.
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
IMAGES = {"mode": "RGB", "interpolation": "bicubic", "resize_mode": "shortest", **CLIP}
RESIZED = {"shortest": 1.0, "squash": None}


def plan(folder, wishes):
    """The `Plan` of an open folder."""
    told = folder.config.get("model_cfg")
    vision = told.get("vision_cfg") if isinstance(told, dict) else None
    if not isinstance(vision, dict):
        raise ValueError(
            f"Expected model_cfg of {OPEN_CLIP} with a vision_cfg. Received: {str(told)[:200]}"
        )
    config = Config(DEFAULTS | vision, OPEN_CLIP)
    size = config.pair("image_size")
    if vision.get("timm_model_name") is not None and siglip.recognise(folder.tensors):
        # open_clip takes these encoders from timm; their tensors determine all but the images.
        wishes = dataclasses.replace(wishes, resolution=wishes.resolution or size[0])
        plan = siglip.plan(folder.tensors, wishes)
    else:
        quick = Config(told, OPEN_CLIP).flag("quick_gelu", False)
        plan = _tower_plan(folder, config, size, "quick_gelu" if quick else "gelu", wishes)
    if wishes.preprocessing is not None:
        return plan
    images = _ends(folder, size, plan.whole.arguments["image_shape"][2])
    return dataclasses.replace(plan, positions="bicubic", **images)


def _tower_plan(folder, config, size, activation, wishes):
    """The `Plan` of an image encoder of open_clip's own."""
    for name, value in ONLY.items():
        config.require(name, value)
    known = {*DEFAULTS, *ONLY, *FREE}
    unknown = sorted(set(config.fields) - known)
    if unknown:
        raise ValueError(
            f"Expected the fields of vision_cfg in {OPEN_CLIP} to be known. "
            f"Received: {', '.join(map(repr, unknown[:8]))}"
        )
    width, head_width = config.whole("width"), config.whole("head_width")
    if head_width > width:
        raise ValueError(
            f"Expected head_width of {OPEN_CLIP} to be at most width, {width}. "
            f"Received: {head_width}"
        )
    wishes.check_heads(width // head_width, width)
    wishes = dataclasses.replace(wishes, num_heads=width // head_width)
    ratio = config.fields["mlp_ratio"]
    if type(ratio) not in (int, float) or not 0 < ratio < 1000:
        raise ValueError(
            f"Expected mlp_ratio of {OPEN_CLIP} to be a number above 0. Received: {ratio!r}"
        )
    patch = config.pair("patch_size")
    sizes = {
        "num_layers": config.whole("layers"),
        "hidden_dim": width,
        "mlp_dim": int(width * ratio),
        "patch_size": patch[0] if patch[0] == patch[1] else patch,
        "projection_dim": Config(folder.config["model_cfg"], OPEN_CLIP).whole("embed_dim"),
    }
    plan = clip.tower_plan(folder.tensors, wishes, activation, size)
    found = {name: plan.whole.arguments[name] for name in sizes}
    if found != sizes:
        raise ValueError(
            f"Expected tensors of the sizes in {OPEN_CLIP}, {sizes}. Received: {found}"
        )
    return plan


def _ends(folder, size, channels):
    """dict of `values`, `interpolation` and `crop`, those of a `Plan`, of `preprocess_cfg`."""
    told = folder.config.get("preprocess_cfg") or {}
    if not isinstance(told, dict):
        raise ValueError(f"Expected preprocess_cfg of {OPEN_CLIP}. Received: {str(told)[:200]}")
    fields = IMAGES | {name: value for name, value in told.items() if value is not None}
    config = Config({"size": size} | fields, OPEN_CLIP)
    config.require("mode", "RGB")
    if config.pair("size") != size:
        raise ValueError(
            f"Expected size in preprocess_cfg of {OPEN_CLIP} to be image_size, {size}. "
            f"Received: {config.pair('size')}"
        )
    filters = {name: name for name in ("bilinear", "bicubic")}
    mean, std = (numbers(fields, name, channels) for name in ("mean", "std"))
    return {
        "values": {"mean": mean, "std": std},
        "interpolation": choose("interpolation", str(fields["interpolation"]), filters),
        "crop": choose("resize_mode", str(fields["resize_mode"]), RESIZED),
    }
