"""How images become a model's input, by `preprocessor_config.json` or timm's `config.json`."""

import math
from numbers import Real

from vit_tf.checkpoints.weight_maps import CLIP, HALF, IMAGENET
from vit_tf.names import lookup

# Numbers that Pillow gives its filters.
FILTERS = {2: "bilinear", 3: "bicubic"}
# What image processors of transformers do where a file of theirs leaves it out.
DEFAULTS = {
    "ViT": {"resample": 2, "do_center_crop": False},
    "DeiT": {"resample": 3, "do_center_crop": True},
    "Bit": {"resample": 3, "do_center_crop": True},
    "Siglip": {"resample": 3, "do_center_crop": False},
    "CLIP": {"resample": 3, "do_center_crop": True},
    "Beit": {"resample": 3, "do_center_crop": True},
    "DINOv3ViT": {"resample": 2, "do_center_crop": False},
}
# Of means, deviations and factors; JSON has integers that no float holds.
LARGEST = 1e6
SUFFIXES = ("ImageProcessorFast", "ImageProcessor", "FeatureExtractor")
# The processor of each type of model, for files that name none.
PROCESSORS = {"vit": "ViT", "deit": "DeiT", "dinov2": "Bit", "dinov2_with_registers": "Bit"}
PROCESSORS |= {"vit_mae": "ViT", "dinov3_vit": "DINOv3ViT", "clip": "CLIP", "bit": "Bit"}
PROCESSORS |= {"clip_vision_model": "CLIP", "beit": "Beit", "ijepa": "ViT"}
PROCESSORS |= dict.fromkeys(("aimv2", "aimv2_vision_model"), "CLIP")
PROCESSORS |= dict.fromkeys(("metaclip_2", "metaclip_2_vision_model"), "CLIP")
PROCESSORS |= dict.fromkeys(("siglip", "siglip_vision_model"), "Siglip")
# Where the file is missing: a shorter side of 256 pixels, and of these the 224 in the middle
# (Touvron et al. 2021; Oquab et al. 2023). Of a plain ViT it is open: those of Google's releases
# are of values in [-1, 1], those of DeiT and of DINO of ImageNet's mean and std.
_CROPPED = {"values": IMAGENET, "interpolation": "bicubic", "crop": 224 / 256}
FAMILIES = dict.fromkeys(("deit", "vit_mae", "dinov2", "dinov2_with_registers"), _CROPPED)
# The whole of the shorter side (`clip.load` of openai/CLIP).
_CLIP = {"values": CLIP, "interpolation": "bicubic", "crop": 1.0}
FAMILIES |= dict.fromkeys(("clip", "clip_vision_model"), _CLIP)
FAMILIES |= dict.fromkeys(("metaclip_2", "metaclip_2_vision_model"), _CLIP)
# All releases of SigLIP and SigLIP 2 squeeze images into their size.
_SQUEEZED = {"values": HALF, "interpolation": "bicubic", "crop": None}
FAMILIES |= dict.fromkeys(("siglip", "siglip_vision_model"), _SQUEEZED)


def preprocessing_from_config(folder, image_shape: tuple, any_size: bool, options) -> dict:
    """dict of a `Conversion`'s `values`, `interpolation`, `crop`, `crop_rounding` and `size`.

    A square that is resized to before it is cropped stands for the shorter side, as in the code
    of DeiT; Hugging Face's processor for DeiT squeezes an oblong image into it.
    """
    kind = folder.config.get("model_type")
    if options.preprocessing is not None:
        return {}
    if folder.processor is None:
        if kind not in FAMILIES:
            raise ValueError(
                "Expected a preprocessor_config.json, or preprocessing=vit_tf.Preprocessing(...): "
                "checkpoints of its type differ in mean and standard deviation. "
                f"Received: neither, model_type={kind!r}"
            )
        return FAMILIES[kind]
    fields = _fields(folder)
    size, crop = _size(fields)
    if size != tuple(image_shape[:2]) and not any_size:
        raise ValueError(
            f"Expected preprocessor_config.json to be for images of {tuple(image_shape[:2])} "
            f"pixels, as the model. Received: {size}"
        )
    resample = fields.get("resample")
    known = resample if isinstance(resample, int) else repr(resample)
    resample = lookup("resample", known, FILTERS)
    images = {"values": _values(fields, image_shape[2]), "interpolation": resample, "crop": crop}
    return images | {"crop_rounding": "even" if crop is None else "down", "size": size}


def processor_size(folder, options, default):
    """(height, width) of the images of a family whose `config.json` does not have it."""
    if options.preprocessing is not None:
        return options.preprocessing.size or default
    return default if folder.processor is None else _size(_fields(folder))[0]


def _fields(folder):
    """Fields of a processor's file, with what its class does where it leaves something out."""
    fields, kind = folder.processor, folder.config.get("model_type")
    name = str(fields.get("image_processor_type") or fields.get("feature_extractor_type") or "")
    stem = next((name.removesuffix(s) for s in SUFFIXES if name.endswith(s)), PROCESSORS.get(kind))
    return DEFAULTS.get(stem, {}) | {k: v for k, v in fields.items() if v is not None}


def _size(fields):
    """(height, width) of the images, and the crop of a `Preprocessing`."""
    size, cropped = fields.get("size"), fields.get("do_center_crop")
    target = _pair(fields.get("crop_size"))
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    pair = _pair(size)
    if pair is not None and pair[0] == pair[1]:
        edge = pair[0]
    if fields.get("do_resize", True) is True:
        if cropped is False and pair is not None:
            return pair, None
        if cropped is True and target is not None and type(edge) is int:
            side = min(target)
            if side <= edge < LARGEST:
                return target, _share(side, edge)
    received = {k: fields.get(k) for k in ("do_resize", "size", "do_center_crop", "crop_size")}
    raise ValueError(
        f"Expected a preprocessor_config.json that resizes images to a height and width, or "
        f"their shorter side before a centre crop. Received: {received}"
    )


def _pair(size):
    """(height, width) of a size as transformers writes it, or None."""
    if isinstance(size, dict):
        size = (size.get("height"), size.get("width"))
    size = (size, size) if isinstance(size, int) else size
    integers = isinstance(size, tuple | list) and all(type(n) is int and n > 0 for n in size)
    return tuple(size) if integers and len(size) == 2 else None


def _share(side, edge):
    """The crop of which `floor(side / crop)` is the edge."""
    share = side / edge
    return share if math.floor(side / share) == edge else math.nextafter(share, 0)


def _values(fields, channels):
    """Mean and std of values in [0, 1], of what a file does with those in [0, 255]."""
    mean, std = (0.0,) * channels, (1.0,) * channels
    if fields.get("do_normalize", True):
        mean, std = (numbers(fields, name, channels) for name in ("image_mean", "image_std"))
    scale = 255.0
    if fields.get("do_rescale", True):
        factor = fields.get("rescale_factor", 1 / 255)
        if not isinstance(factor, Real) or not 0 < factor < LARGEST:
            raise ValueError(f"Expected rescale_factor to be above 0. Received: {factor!r}")
        scale = 255 * factor
    if not math.isclose(scale, 1):
        mean, std = (tuple(x / scale for x in values) for values in (mean, std))
    return {"mean": mean, "std": std}


def numbers(fields, name, channels):
    """A number for each channel."""
    values = fields.get(name)
    values = [values] * channels if isinstance(values, Real) else values
    numbers = isinstance(values, list | tuple) and all(isinstance(x, Real) for x in values)
    if not numbers or len(values) != channels or not all(-LARGEST < x < LARGEST for x in values):
        raise ValueError(
            f"Expected {name} to have a number for each of {channels} channels. "
            f"Received: {name}={values!r}"
        )
    return tuple(float(x) for x in values)


def timm_preprocessing(config, channels):
    """The same of the `pretrained_cfg` in a `config.json` of timm's."""
    fields = config["pretrained_cfg"]
    if not isinstance(fields, dict):
        raise ValueError(f"Expected pretrained_cfg to be an object. Received: {fields!r}")
    crop = fields.get("crop_pct")
    share = isinstance(crop, Real) and 0 < crop <= 1
    if not share or fields.get("crop_mode", "center") not in ("center", "squash"):
        raise ValueError(
            "Expected pretrained_cfg to have crop_pct in (0, 1] and crop_mode 'center' or 'squash'."
            f" Received: crop_pct={crop!r}, crop_mode={fields.get('crop_mode')!r}"
        )
    filters = dict(zip(FILTERS.values(), FILTERS.values(), strict=True))
    mean, std = (numbers(fields, name, channels) for name in ("mean", "std"))
    return {
        "values": {"mean": mean, "std": std},
        "interpolation": lookup("interpolation", str(fields.get("interpolation")), filters),
        "crop": None if fields.get("crop_mode") == "squash" else float(crop),
    }
