"""What a PyTorch module expects of its images, from its configuration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vit_tf.data.preprocessing import CLIP, HALF, IMAGENET, Preprocessing

# Sides of images on which a module that does not specify any is tried, in pixels.
SIDES = (224, 32, 64, 256, 128, 384, 28, 96, 448, 512)
SIZE_ATTRIBUTES = ("img_size", "image_size")
# What all released models of a family of transformers expect, where no image processor is stored
# with the model: by its type, the values, and the crop and filter where they are not those of its
# processor's class. Releases of other types differ, such as those of ViT by Google and of DINO.
CROPPED = {**IMAGENET, "interpolation": "bicubic", "crop": 224 / 256}
SHORTER_SIDE = {**CLIP, "interpolation": "bicubic", "crop": 1.0}
SQUEEZED = {**HALF, "interpolation": "bicubic", "crop": None}
OF_IMAGENET = "convnext convnextv2 cvt efficientformer focalnet hiera levit poolformer pvt pvt_v2"
OF_IMAGENET += " regnet resnet segformer swiftformer swin swinv2 van vit_msn"
FAMILIES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("vit_mae", "deit", "dinov2", "dinov2_with_registers"), CROPPED),
    **dict.fromkeys(("clip", "metaclip_2"), SHORTER_SIDE),
    "siglip": SQUEEZED,
    **dict.fromkeys(OF_IMAGENET.split(), IMAGENET),
    **dict.fromkeys(("data2vec-vision", "dpt", "mobilenet_v1", "mobilenet_v2"), HALF),
    # Their processors do not normalize.
    "mobilevit": {},
    "mobilevitv2": {},
}
# Filters of Pillow, by number and name.
FILTERS = {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"}


def fixed_size(module: torch.nn.Module) -> tuple[int, int] | None:
    """(height, width) of a module that takes no other images, as its layers declare it."""
    for submodule in module.modules():
        for holder in (submodule, getattr(submodule, "config", None)):
            for name in SIZE_ATTRIBUTES:
                if size := _pair(getattr(holder, name, None)):
                    return size
    return None


def pretrained_config(module: torch.nn.Module) -> dict[str, Any]:
    """What timm keeps about a module's images; empty for modules of others."""
    config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
    return dict(config) if config else {}


def num_image_channels(module: torch.nn.Module) -> int:
    """The number of channels of the images that a module declares, or of its first convolution."""
    declared = getattr(module, "preprocessing", None)
    if isinstance(declared, Preprocessing):
        return len(declared.mean)
    for submodule in module.modules():
        if isinstance(submodule, torch.nn.Conv2d):
            return submodule.in_channels
    return 3


def _pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value)
    if isinstance(value, Sequence) and len(value) == 2 and all(isinstance(x, int) for x in value):
        return tuple(value)
    return None


def find_image_shape(model: Any) -> tuple[int, int, int]:
    """(height, width, channel) of the images that a module takes; tried where it is not known.

    A module may take fewer or more channels than its first convolution, and repeat or split these.
    """
    channels = num_image_channels(model.module)
    size: tuple[int, int] | None = fixed_size(model.module)
    processed = processed_size(model.module)
    if size is None and (shape := pretrained_config(model.module).get("input_size")):
        size = shape[1], shape[2]
    # A size that the layers declare may be that of a table of positions, which is resized.
    sizes = [processed] if processed is not None and processed != size else []
    sizes += [] if size else [(side, side) for side in SIDES]
    errors = []
    for count, (height, width) in itertools.product(dict.fromkeys((channels, 3, 1)), sizes):
        try:
            model.values(np.zeros((1, height, width, count), np.float32), [])
        except Exception as error:  # a module may raise anything for images of another size
            errors.append(error)
        else:
            return height, width, count
    if size:
        return size[0], size[1], channels
    last = errors[len(sizes) - 1]  # for the channels of its first convolution
    raise ValueError(
        f"{model.name} takes no images of shape (example, channel, height, width): sides "
        f"{SIDES} were tried. The last error: {last}{image_encoder_hint(model.module, last)}"
    ) from last


def image_encoder_hint(module: torch.nn.Module, error: Exception | None) -> str:
    """The way to a module of images alone, as the end of an error; "" where none is known."""
    if isinstance(error, TypeError):
        return "; fix other arguments in a torch.nn.Module whose forward takes the images alone"
    if any(isinstance(submodule, torch.nn.Conv3d) for submodule in module.modules()):
        return (
            "; it has layers of video (Conv3d), and modules of single images are supported: fix "
            "the other frames in a torch.nn.Module whose forward takes one image, or compare "
            "activations at hand, as in analysis.cka({layer: array})"
        )
    names = [name for name, _ in module.named_children() if "vis" in name]
    return f"; its image encoder may be the submodule {names[0]!r}" if names else ""


def find_preprocessing(
    module: torch.nn.Module, image_shape: tuple[int, int, int]
) -> tuple[Preprocessing | None, str]:
    """(The preprocessing of a module's images, or None, and how it is known, in words).

    From `module.preprocessing`, from timm's `pretrained_cfg`, from the image processor that is
    stored with a Hugging Face model, or that of all released weights of its family or of
    torchvision.
    """
    declared = getattr(module, "preprocessing", None)
    if isinstance(declared, Preprocessing):
        return declared, "set by the model"
    size, channels = image_shape[:2], image_shape[2]
    if config := pretrained_config(module):
        if len(config.get("mean", ())) != channels:
            return None, f"unknown; its pretrained_cfg is not for {channels} channels"
        crop = config.get("crop_pct") if config.get("crop_mode", "center") == "center" else None
        filter_name = FILTERS.get(config.get("interpolation"), "bicubic")
        images = Preprocessing(size, config["mean"], config["std"], filter_name, crop=crop)
        return images, "set by its pretrained_cfg"
    if kind := _hugging_face_type(module):
        processor = stored_processor(module)
        if processor is not None:
            fields = processor.to_dict()
            return _of_fields(fields, image_shape), "set by its image processor"
        if kind in FAMILIES and channels == 3:
            processor = _default_processor(kind)
            fields = processor.to_dict() if processor is not None else {}
            family = FAMILIES[kind]
            values = {f"image_{name}": family[name] for name in ("mean", "std") if family}
            images = _of_fields(fields | values, image_shape)
            if images is not None and "crop" in family:
                images = replace(images, crop=family["crop"], interpolation="bicubic")
            return images, f"known of released models of type {kind!r}"
        return None, (
            f"unknown; no image processor is stored with it, and models of type {kind!r} differ"
        )
    if type(module).__module__.startswith("torchvision.") and channels == 3:
        return Preprocessing(size, **IMAGENET, crop=0.875), "known of torchvision's weights"
    return None, "unknown"


def _hugging_face_type(module: torch.nn.Module) -> str:
    """The type of a Hugging Face model, such as "vit"; "" for other modules."""
    kind = getattr(getattr(module, "config", None), "model_type", "")
    return str(kind).removesuffix("_vision_model")


def stored_processor(module: torch.nn.Module) -> Any:
    """The image processor that is stored with a Hugging Face model; None without one."""
    source = getattr(getattr(module, "config", None), "_name_or_path", "")
    if not source or not _hugging_face_type(module):
        return None
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError):  # no such folder, or none without the network
        return None


def processed_size(module: torch.nn.Module) -> tuple[int, int] | None:
    """(height, width) of the images that the stored processor of a module makes."""
    processor = stored_processor(module)
    fields = processor.to_dict() if processor is not None else {}
    size = fields.get("size") or {}
    if fields.get("do_center_crop") and fields.get("crop_size"):
        size = fields["crop_size"]
    side = size.get("shortest_edge") if fields.get("crop_pct") else None
    height, width = size.get("height", side), size.get("width", side)
    return None if height is None or width is None else (height, width)


def _of_fields(fields: dict, image_shape: tuple[int, int, int]) -> Preprocessing | None:
    """The preprocessing that the fields of an image processor describe."""
    mean, std = fields.get("image_mean"), fields.get("image_std")
    if not fields.get("do_normalize", True) or (mean is None and "do_normalize" not in fields):
        mean, std = (0.0,) * image_shape[2], (1.0,) * image_shape[2]
    if mean is None or std is None or len(mean) != image_shape[2]:
        return None
    if not fields.get("do_rescale", True):
        mean, std = (tuple((np.asarray(values) / 255).tolist()) for values in (mean, std))
    interpolation = FILTERS.get(getattr(fields.get("resample"), "value", fields.get("resample")))
    order = "bgr" if fields.get("do_flip_channel_order") else "rgb"
    return Preprocessing(
        image_shape[:2], mean, std, interpolation or "bilinear", channel_order=order,
        crop=_crop(fields), crop_rounding="down",
    )  # fmt: skip


def _crop(fields: dict) -> float | None:
    """The share of the shorter side that a processor keeps in the centre."""
    size, crop = fields.get("size") or {}, fields.get("crop_size") or {}
    if fields.get("crop_pct"):
        return fields["crop_pct"]
    if fields.get("do_center_crop") and "shortest_edge" in size and "height" in crop:
        return min(1.0, crop["height"] / size["shortest_edge"])
    return None


def _default_processor(kind: str) -> Any:
    """An image processor with the defaults of its class, for a type of models, or None."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind)
    names = names.values() if isinstance(names, dict) else names or ()
    for name in [name for name in names if name]:
        try:
            return getattr(transformers, name)()
        except (AttributeError, ImportError):  # fast processors need torchvision
            continue
    return None


def find_class_names(module: torch.nn.Module) -> tuple[str, ...]:
    """The names of classes in a Hugging Face model's configuration, where they are names."""
    names = getattr(getattr(module, "config", None), "id2label", None)
    names = [names[key] for key in sorted(names)] if names else None
    if not names or all(str(name).startswith("LABEL_") for name in names):
        return ()
    return tuple(names) if len(set(names)) == len(names) else ()
