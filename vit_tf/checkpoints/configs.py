"""What configuration files state and tensors do not, of transformers and of timm.

A folder of timm states heads, GELU, pooling and sizes in `config.json`, and one of transformers
how images become the input in `preprocessor_config.json`.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from numbers import Real
from typing import Any, TypeGuard, cast

from vit_tf.checkpoints.archives import Folder
from vit_tf.checkpoints.released import ReleasedCheckpoint
from vit_tf.checkpoints.weight_maps import (
    MOST_LAYERS,
    LoadOptions,
    module_only_message,
)
from vit_tf.common.names import lookup
from vit_tf.data.preprocessing import (
    CLIP,
    HALF,
    IMAGENET,
    TIMM_ASPECTS,
    crop_and_aspect,
    crop_fraction,
)

# Names of transformers' `ACT2FN`, and the forms that they stand for.
GELUS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
MOST = {"num_hidden_layers": MOST_LAYERS, "num_channels": 1000}


class Config:
    """Typed access to the fields of a model's configuration; each raises a ValueError."""

    def __init__(self, fields: dict, file: str = "config.json"):
        self.fields, self.file = fields, file

    def _get(
        self, name: str, fits: Callable[[Any], object], expected: str, default: Any = None
    ) -> Any:
        value = self.fields.get(name, default)
        if not fits(value):
            message = f"Expected {name} of {self.file} to be {expected}."
            raise ValueError(f"{message} Received: {value!r}")
        return value

    def integer(self, name: str) -> int:
        """An integer above 0."""
        most = MOST.get(name, 2**31)
        return self._get(name, lambda x: type(x) is int and 0 < x <= most, "an integer above 0")

    def flag(self, name: str, default: bool) -> bool:
        """True or False; `default`, that of transformers, where the file is silent."""
        return self._get(name, lambda x: type(x) is bool, "true or false", default)

    def number(self, name: str) -> float:
        """A number above 0 and below 1, such as an epsilon."""
        expected = "a number above 0 and below 1"
        return float(self._get(name, lambda x: _is_number(x) and 0 < x < 1, expected))

    def pair(self, name: str) -> tuple[int, int]:
        """(height, width) of one or two integers above 0."""
        value = self._get(name, integer_pair, "one or two integers")
        return cast(tuple[int, int], integer_pair(value))  # `_get` has refused all else

    def require(self, name: str, value: object) -> None:
        """Raises unless a field, where it is present, has the only value that is supported."""
        expected = f"{value!r}, the only supported value"
        self._get(name, lambda x: x == value, expected, default=value)

    def activation(self) -> str:
        """The form of the GELU, by the name that `vit_tf.ViT` gives it."""
        return lookup("hidden_act of config.json", str(self.fields.get("hidden_act")), GELUS)


def integer_pair(size: object) -> tuple[int, int] | None:
    """(height, width) of one integer above 0, or a list of two; None for anything else."""
    sides = (size, size) if type(size) is int else size
    if not isinstance(sides, tuple | list) or len(sides) != 2:
        return None
    height, width = sides
    return (height, width) if all(type(n) is int and n > 0 for n in sides) else None


def _is_number(value: object) -> TypeGuard[float]:
    """Whether a value of JSON is a number: `Real` itself has no order for a type checker."""
    return isinstance(value, Real)


def image_fields(folder: Folder, types: dict) -> dict:
    """Fields of the image encoder; `types` has whether a `model_type` has a text encoder too."""
    fields = folder.config
    return fields["vision_config"] if types[fields["model_type"]] else fields


def class_names(fields: dict, num_classes: int) -> tuple[str, ...] | None:
    """Names of the classes in a classifier's `id2label`, made unique by their number, or None."""
    labels = fields.get("id2label")
    if labels is None:
        return None
    keys = [str(i) for i in range(num_classes)]
    names = isinstance(labels, dict) and all(isinstance(name, str) for name in labels.values())
    if not names or sorted(labels) != sorted(keys):
        raise ValueError(
            f"Expected id2label of config.json to name the classes 0 to {num_classes - 1}. "
            f"Received: {str(labels)[:200]}"
        )
    names = [labels[key] for key in keys]
    if names == [f"LABEL_{key}" for key in keys]:
        return None
    counts = Counter(names)
    names = [f"{n} ({key})" if counts[n] > 1 else n for n, key in zip(names, keys, strict=True)]
    return tuple(names)


# timm's `config.json`.

# Heads by the size in an architecture's name (timm 1.0.31).
TIMM_HEADS = {
    "tiny": 3,
    "xsmall": 4,
    "small": 6,
    "small_plus": 6,
    "medium": 8,
    "mediumd": 8,
    "base": 12,
    "large": 16,
    "huge": 16,
    "huge_plus": 20,
    "giant": 16,
    "giantopt": 16,
    "gigantic": 16,
    "so400m": 16,
    "7b": 32,
    "wee": 4,
    "little": 5,
    "betwixt": 10,
    "so150m": 14,
    "so150m2": 13,
}
_VIT = {"global_pool": "token", "act_layer": "gelu", "epsilon": 1e-6}
_GAP = _VIT | {"global_pool": "avg"}
_PLAIN_GAP = _GAP | {"fc_norm": False}
_MAP = _VIT | {"global_pool": "map"}
_CLIP = _VIT | {"epsilon": 1e-5}
_TANH, _QUICK, _WIDE = {"act_layer": "gelu_tanh"}, {"act_layer": "quick_gelu"}, {"num_heads": 24}
_EVA = {"global_pool": "avg", "act_layer": "gelu", "epsilon": 1e-6}
_DINO3 = _EVA | {"fc_norm": False, "epsilon": 1e-5}
# The architectures of timm that a model here computes, with the arguments by which timm makes
# them. `SIZE` stands for a key of `TIMM_HEADS`; of several rows that fit, the last counts.
ARCHITECTURES = {
    r"(vit|deit|deit3|flexivit)_SIZE(_distilled)?(_patch\d+_\d+)?": _VIT,
    r"vit_SIZE_patch\d+_224_miil": _VIT,
    r"vit_SIZE_patch\d+_plus_\d+": _VIT | {"num_heads": 14},
    r"vit_SIZE_patch\d+(_reg\d)?_(dinov2|tipsv2)": _VIT,
    r"vit_giant_patch\d+(_reg\d)?_(dinov2|tipsv2)": _VIT | _WIDE,
    r"vit_SIZE_patch\d+_(reg\d_)?gap_\d+": _GAP,
    r"vit_SIZE_patch\d+_gap_\d+": _PLAIN_GAP,
    r"vit_base_patch16_gap_224": _PLAIN_GAP | {"num_heads": 16},
    r"vit_so150m_patch16_reg4_gap_\d+": _PLAIN_GAP,
    r"vit_SIZE_patch\d+_siglip_gap_\d+": _PLAIN_GAP,
    r"vit_SIZE_patch\d+_siglip_\d+": _MAP,
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_gap_\d+": _PLAIN_GAP | _TANH,
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_\d+": _MAP | _TANH,
    r"vit_large_patch16_siglip_gap_512": _PLAIN_GAP | _TANH,
    r"vit_large_patch16_siglip_512": _MAP | _TANH,
    r"vit_SIZE_patch\d+_clip_\d+": _CLIP,
    r"vit_SIZE_patch\d+_clip_quickgelu_\d+": _CLIP | _QUICK,
    r"vit_SIZE_patch\d+_plus_clip_\d+": _CLIP | {"num_heads": 14},
    r"beit(v2)?_SIZE_patch\d+_\d+": _EVA,
    r"vit_SIZE_patch\d+_dinov3(_qkvb)?": _DINO3,
    r"mixer_[bls]\d+_\d+": _EVA | {"fc_norm": False},
    r"resnetv2_\d+x\d_bit": _EVA,
}
# Arguments that tensors determine as well, or that change nothing outside training.
SHOWN = """
    patch_size in_chans num_classes embed_dim depth mlp_ratio qkv_bias proj_bias init_values
    class_token no_embed_class reg_tokens num_reg_tokens pre_norm final_norm num_blocks
    qkv_fused scale_mlp scale_attn_inner swiglu_mlp swiglu_align_to use_abs_pos_emb
    use_rel_pos_bias use_shared_rel_pos_bias drop_rate pos_drop_rate patch_drop_rate
    proj_drop_rate attn_drop_rate drop_path_rate weight_init fix_init head_init_scale
    dynamic_img_size strict_img_size use_post_transformer_norm
"""
USED = ("num_heads", "global_pool", "act_layer", "fc_norm", "use_fc_norm", "img_size")
# Arguments with the only value that is computed here.
ONLY = {"pool_include_prefix": False, "dynamic_img_pad": False}
ACTIVATIONS = {name: name for name in ("gelu", "gelu_tanh", "quick_gelu")}
POOLINGS = {"token": "cls", "avg": "gap", "map": "map"}


def read_timm_config(config: dict) -> dict:
    """dict of `num_heads`, `activation`, `pooling`, `fc_norm` and others, as a `ViT` names them.

    `image_shape` is (height, width), or None where the file allows images of any size, and
    `input_size` that of the images it was trained with; `activation_is_explicit` is
    whether the form of GELU is an argument of its own, not that of the architecture.
    """
    arguments = _arguments(str(config.get("architecture")))
    more = config.get("model_args") or {}
    unknown = sorted(set(more) - {*SHOWN.split(), *USED, *ONLY})
    if unknown:
        raise ValueError(
            "Expected only model_args that vit_tf supports in config.json. "
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
        "activation_is_explicit": "act_layer" in more,
        "input_size": size and fields.pair("input_size"),
        "image_shape": fields.pair("img_size") if "img_size" in arguments else None,
    }


def config_from_name(checkpoint: ReleasedCheckpoint) -> dict:
    """The dict of `read_timm_config` for a public checkpoint of timm; {} for other checkpoints."""
    name, size = checkpoint.name.removeprefix("timm/"), checkpoint.resolution
    if name == checkpoint.name:
        return {}
    images = {"input_size": [3, size, size]} if size else {}
    return read_timm_config({"architecture": name.partition(".")[0], "pretrained_cfg": images})


def _arguments(architecture: str) -> dict:
    """Those with which timm makes an architecture, besides sizes that its tensors show."""
    arguments = None
    sizes = "|".join(TIMM_HEADS)
    for pattern, row in ARCHITECTURES.items():
        match = re.fullmatch(pattern.replace("SIZE", f"(?P<size>{sizes})"), architecture)
        if match:
            named = re.match(rf"\w+?_({sizes})_", architecture)
            size = match.groupdict().get("size") or (named and named[1])
            arguments = {"num_heads": TIMM_HEADS.get(size) if size else None} | row
    if arguments is None:
        raise ValueError(f"The architecture {architecture!r} {module_only_message(architecture)}")
    return arguments


# Image processors.

# Numbers that Pillow gives its filters.
FILTERS = {2: "bilinear", 3: "bicubic"}
# What image processors of transformers do where a file of theirs leaves it out.
DEFAULTS = {
    "ViT": {"resample": 2, "do_center_crop": False},
    "DeiT": {"resample": 3, "do_center_crop": True},
    "Bit": {"resample": 3, "do_center_crop": True, "default_to_square": False},
    "Siglip": {"resample": 3, "do_center_crop": False},
    "CLIP": {"resample": 3, "do_center_crop": True, "default_to_square": False},
    "Beit": {"resample": 3, "do_center_crop": True},
    "DINOv3ViT": {"resample": 2, "do_center_crop": False},
}
# Means, deviations and factors are at most this; JSON has integers that no float holds.
LARGEST = 1e6
SUFFIXES = ("ImageProcessorFast", "ImageProcessor", "FeatureExtractor")
# The processor of each type of model, for files that name none, and what it does with images.
# Where the file is missing too: a shorter side of 256 pixels, and of these the 224 in the middle
# (Touvron et al. 2021; Oquab et al. 2023), the whole of the shorter side (`clip.load` of
# openai/CLIP), or all, squeezed (all releases of SigLIP). Of a plain ViT it is open: those of
# Google's releases are of values in [-1, 1], those of DeiT and of DINO of ImageNet's mean and std.
_CROPPED = {"values": IMAGENET, "interpolation": "bicubic", "crop": 224 / 256}
_SHORTER_SIDE = {"values": CLIP, "interpolation": "bicubic", "crop": 1.0}
_SQUEEZED = {"values": HALF, "interpolation": "bicubic", "crop": None}
PROCESSORS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "vit": ("ViT", None),
    "ijepa": ("ViT", None),
    "vit_mae": ("ViT", _CROPPED),
    "deit": ("DeiT", _CROPPED),
    "bit": ("Bit", None),
    "dinov2": ("Bit", _CROPPED),
    "dinov2_with_registers": ("Bit", _CROPPED),
    "dinov3_vit": ("DINOv3ViT", None),
    "beit": ("Beit", None),
    **dict.fromkeys(("clip", "clip_vision_model"), ("CLIP", _SHORTER_SIDE)),
    **dict.fromkeys(("metaclip_2", "metaclip_2_vision_model"), ("CLIP", _SHORTER_SIDE)),
    **dict.fromkeys(("siglip", "siglip_vision_model"), ("Siglip", _SQUEEZED)),
}


def preprocessing_from_config(
    folder: Folder, image_shape: tuple, any_size: bool, options: LoadOptions
) -> dict:
    """The fields of a `Conversion` that describe its images, such as `values` and `crop`."""
    kind = folder.config.get("model_type")
    if options.preprocessing is not None:
        return {}
    if folder.processor is None:
        _, images = PROCESSORS.get(str(kind), (None, None))
        if images is None:
            raise ValueError(
                "Expected preprocessor_config.json in the folder, or the argument "
                "preprocessing=vit_tf.Preprocessing(...): models of this type differ in mean and "
                f"standard deviation. Received: neither, model_type={kind!r}"
            )
        return images
    fields = _fields(folder.processor, folder)
    size, crop_and_aspect = _size(fields)
    if size != tuple(image_shape[:2]) and not any_size:
        raise ValueError(
            f"Expected the image size in preprocessor_config.json to be {tuple(image_shape[:2])}, "
            "as that of the model, or the argument preprocessing=vit_tf.Preprocessing(...). "
            f"Received: {size}"
        )
    resample = fields.get("resample")
    resample = lookup(
        "resample", resample if isinstance(resample, int) else repr(resample), FILTERS
    )
    rounding = "even" if crop_and_aspect["crop"] is None else "down"
    images = {"values": _values(fields, image_shape[2]), "interpolation": resample}
    return images | {"processor_size": size, "crop_rounding": rounding, **crop_and_aspect}


def processor_size(
    folder: Folder, options: LoadOptions, default: tuple[int, int]
) -> tuple[int, int]:
    """Image size (height, width) of a family whose `config.json` does not contain it."""
    if options.preprocessing is not None:
        return options.preprocessing.size or default
    return default if folder.processor is None else _size(_fields(folder.processor, folder))[0]


def _fields(fields: dict, folder: Folder) -> dict:
    """Fields of a processor's file, with what its class does where it leaves something out."""
    name = str(fields.get("image_processor_type") or fields.get("feature_extractor_type") or "")
    default_stem, _ = PROCESSORS.get(str(folder.config.get("model_type")), ("", None))
    stem = next((name.removesuffix(s) for s in SUFFIXES if name.endswith(s)), default_stem)
    return DEFAULTS.get(stem, {}) | {k: v for k, v in fields.items() if v is not None}


def _size(fields: dict) -> tuple[tuple[int, int], dict[str, Any]]:
    """(height, width) of the images, and the crop and the aspect of a `Preprocessing`."""
    size, cropped = fields.get("size"), fields.get("do_center_crop")
    target = _pair(fields.get("crop_size"))
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    pair = _pair(size)
    aspect = None
    if pair is not None and pair[0] == pair[1]:
        edge = pair[0]
        # A single number is the length of both sides, or of the shorter one.
        is_square = isinstance(size, dict) or fields.get("default_to_square", True)
        aspect = "squeeze" if is_square else None
    if fields.get("do_resize", True) is True:
        if cropped is False and pair is not None:
            return pair, crop_and_aspect(1.0, "squeeze")
        if cropped is True and target is not None and type(edge) is int:
            side = min(target)
            if side <= edge < LARGEST:
                return target, crop_and_aspect(crop_fraction(side, edge), aspect)
    received = {k: fields.get(k) for k in ("do_resize", "size", "do_center_crop", "crop_size")}
    raise ValueError(
        f"Expected a preprocessor_config.json that resizes images to a height and width, or "
        f"their shorter side before a centre crop. Received: {received}"
    )


def _pair(size: object) -> tuple[int, int] | None:
    """(height, width) of a size as transformers writes it, or None."""
    if isinstance(size, dict):
        size = (size.get("height"), size.get("width"))
    return integer_pair(size)


def _values(fields: dict, channels: int) -> dict:
    """Mean and std of values in [0, 1], of what a file does with those in [0, 255]."""
    mean, std = (0.0,) * channels, (1.0,) * channels
    if fields.get("do_normalize", True):
        mean, std = (numbers(fields, name, channels) for name in ("image_mean", "image_std"))
    scale = 255.0
    if fields.get("do_rescale", True):
        factor = fields.get("rescale_factor", 1 / 255)
        if not _is_number(factor) or not 0 < factor < LARGEST:
            raise ValueError(
                "Expected rescale_factor in preprocessor_config.json to be a number above 0. "
                f"Received: {factor!r}"
            )
        scale = 255 * factor
    if not math.isclose(scale, 1):
        mean, std = (tuple(x / scale for x in values) for values in (mean, std))
    return {"mean": mean, "std": std}


def numbers(fields: dict, name: str, channels: int) -> tuple[float, ...]:
    """A number for each channel."""
    value = fields.get(name)
    values = [value] * channels if _is_number(value) else value
    if (
        not isinstance(values, list | tuple)
        or len(values) != channels
        or not all(_is_number(x) and -LARGEST < x < LARGEST for x in values)
    ):
        raise ValueError(
            f"Expected {name} to have a number for each of {channels} channels. "
            f"Received: {name}={values!r}"
        )
    return tuple(float(x) for x in values)


def lookup_filter(fields: dict) -> str:
    """The interpolation of a configuration of timm or open_clip."""
    filters = {name: name for name in FILTERS.values()} | {"lanczos": "lanczos3"}
    return lookup("interpolation", str(fields.get("interpolation")), filters)


def timm_preprocessing(config: dict, channels: int) -> dict:
    """Mean, std, interpolation, crop and aspect in the `pretrained_cfg` of timm's `config.json`."""
    fields = config["pretrained_cfg"]
    crop, mode = fields.get("crop_pct"), fields.get("crop_mode", "center")
    if not _is_number(crop) or not 0 < crop <= 1 or mode not in TIMM_ASPECTS:
        raise ValueError(
            "Expected pretrained_cfg in config.json to have crop_pct in (0, 1] and crop_mode "
            f"'center' or 'squash'. Received: crop_pct={crop!r}, crop_mode={mode!r}"
        )
    mean, std = (numbers(fields, name, channels) for name in ("mean", "std"))
    return {
        "values": {"mean": mean, "std": std},
        "interpolation": lookup_filter(fields),
        **crop_and_aspect(float(crop), TIMM_ASPECTS[mode]),
    }
