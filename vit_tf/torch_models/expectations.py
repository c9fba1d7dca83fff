"""What a PyTorch module expects of its images, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from vit_tf.data.preprocessing import Preprocessing

# Sides of images on which a module that does not specify any is tried, in pixels.
SIDES = (224, 32, 64, 256, 128, 384, 28, 96, 448, 512)
SIZE_ATTRIBUTES = ("img_size", "image_size")
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# Filters of Pillow, by number and name.
FILTERS = {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"}


def image_size(module: torch.nn.Module) -> tuple[int, int] | None:
    """(height, width) that a module was made for, or None where it does not specify them."""
    if size := fixed_size(module):
        return size
    config = pretrained_config(module)
    return tuple(config["input_size"][1:]) if config.get("input_size") else None


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
    """The number of channels that the first convolution of a module takes."""
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
    """(height, width, channel) of the images that a module takes; tried where it is not known."""
    channels = num_image_channels(model.module)
    if size := image_size(model.module):
        return (*size, channels)
    last = None
    for side in SIDES:
        try:
            model.values(np.zeros((1, side, side, channels), np.float32), [])
        except Exception as error:  # a module may raise anything for images of another size
            last = error
        else:
            return (side, side, channels)
    raise ValueError(
        f"Expected a PyTorch module of images of shape (example, channel, height, width). "
        f"Received: {model.name}, which takes none of sides {SIDES}: {last}"
        f"{image_encoder_hint(model.module)}"
    ) from last


def image_encoder_hint(module: torch.nn.Module) -> str:
    """The submodule that is likely to encode images, as the end of an error; "" for none."""
    names = [name for name, _ in module.named_children() if "vis" in name]
    return f"; its image encoder may be the submodule {names[0]!r}" if names else ""


def find_preprocessing(
    module: torch.nn.Module, image_shape: tuple[int, int, int]
) -> Preprocessing | None:
    """The preprocessing of a module's images, or None where nothing specifies it.

    From timm's `pretrained_cfg`, from the image processor of a Hugging Face model, or that of all
    released weights of torchvision.
    """
    if config := pretrained_config(module):
        if len(config.get("mean", ())) != image_shape[2]:
            return None
        crop = config.get("crop_pct") if config.get("crop_mode", "center") == "center" else None
        return Preprocessing(
            image_shape[:2],
            config["mean"],
            config["std"],
            FILTERS.get(config.get("interpolation"), "bicubic"),
            crop=crop,
        )
    if hasattr(getattr(module, "config", None), "model_type"):
        return _of_processor(module.config, image_shape)
    if type(module).__module__.startswith("torchvision.") and image_shape[2] == 3:
        mean, std = IMAGENET["mean"], IMAGENET["std"]
        return Preprocessing(image_shape[:2], mean, std, crop=0.875)
    return None


def _of_processor(config: Any, image_shape: tuple[int, int, int]) -> Preprocessing | None:
    """The preprocessing of a Hugging Face model: its processor's, or the default of its class."""
    from transformers import AutoImageProcessor
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    source = getattr(config, "_name_or_path", "")
    processor = None
    if source:
        try:
            processor = AutoImageProcessor.from_pretrained(source, local_files_only=True)
        except (OSError, ValueError):  # no such folder, or none without the network
            processor = None
    if processor is None:
        names = IMAGE_PROCESSOR_MAPPING_NAMES.get(config.model_type.removesuffix("_vision_model"))
        processor = _default_processor(names)
    fields = processor.to_dict() if processor is not None else {}
    mean, std = fields.get("image_mean"), fields.get("image_std")
    if not fields.get("do_normalize", True):
        mean, std = (0.0,) * image_shape[2], (1.0,) * image_shape[2]
    if mean is None or std is None or len(mean) != image_shape[2]:
        return None
    if not fields.get("do_rescale", True):
        mean, std = (tuple((np.asarray(values) / 255).tolist()) for values in (mean, std))
    interpolation = FILTERS.get(getattr(fields.get("resample"), "value", fields.get("resample")))
    return Preprocessing(
        image_shape[:2], mean, std, interpolation or "bilinear", crop=_crop(fields),
        crop_rounding="down",
    )  # fmt: skip


def _crop(fields: dict) -> float | None:
    """The share of the shorter side that a processor keeps in the centre."""
    size, crop = fields.get("size") or {}, fields.get("crop_size") or {}
    if fields.get("crop_pct"):
        return fields["crop_pct"]
    if fields.get("do_center_crop") and "shortest_edge" in size and "height" in crop:
        return min(1.0, crop["height"] / size["shortest_edge"])
    return None


def _default_processor(names: Any) -> Any:
    """An image processor of the first class of some names that can be made, or None."""
    import transformers

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
