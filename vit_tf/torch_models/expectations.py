"""What a PyTorch module expects of its images, from its configuration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vit_tf.common.names import format_list
from vit_tf.data.preprocessing import (
    CLIP,
    HALF,
    IMAGENET,
    INTERPOLATIONS,
    TIMM_ASPECTS,
    Preprocessing,
    crop_and_aspect,
    crop_fraction,
)
from vit_tf.torch_models.image_processors import default_processor, measure_preprocessing

# Sides of images on which a module that does not specify any is tried, in pixels.
SIDES = (224, 32, 64, 256, 128, 384, 28, 96, 448, 512)
SIZE_ATTRIBUTES = ("img_size", "image_size")
# What all released models of a family of transformers expect, where no image processor is stored
# with the model: by its type, the values, and the crop and filter where they are not those of its
# processor's class. Releases of other types differ, such as those of ViT by Google and of DINO.
CROPPED = {**IMAGENET, "interpolation": "bicubic", "crop": 224 / 256}
SHORTER_SIDE = {**CLIP, "interpolation": "bicubic", "crop": 1.0}
SQUEEZED = {**HALF, "interpolation": "bicubic", "crop": None}
BLUE_FIRST = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "channel_order": "bgr", "crop": 256 / 288}
OF_IMAGENET = "convnext convnextv2 cvt efficientformer focalnet hiera levit poolformer pvt pvt_v2"
OF_IMAGENET += " regnet resnet segformer swiftformer swin swinv2 van vit_msn"
FAMILIES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("vit_mae", "deit", "dinov2", "dinov2_with_registers"), CROPPED),
    **dict.fromkeys(("clip", "metaclip_2"), SHORTER_SIDE),
    "siglip": SQUEEZED,
    **dict.fromkeys(OF_IMAGENET.split(), IMAGENET),
    **dict.fromkeys(("dpt", "mobilenet_v1", "mobilenet_v2"), HALF),
    "data2vec-vision": SQUEEZED,
    **dict.fromkeys(("mobilevit", "mobilevitv2"), BLUE_FIRST),
}


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
    processed = processed_size(model.module, channels)
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
        mode, method = config.get("crop_mode") or "center", config.get("interpolation") or "bicubic"
        method = {"lanczos": "lanczos3"}.get(method, method)
        if mode not in TIMM_ASPECTS or method not in INTERPOLATIONS:
            return None, (
                "unknown; no vit_tf.Preprocessing does what its pretrained_cfg states: "
                f"crop_mode={mode!r}, interpolation={method!r}"
            )
        how = crop_and_aspect(config.get("crop_pct") or 0.875, TIMM_ASPECTS[mode])
        images = Preprocessing(size, config["mean"], config["std"], method, **how)
        return images, "set by its pretrained_cfg"
    if kind := _hugging_face_type(module):
        processor = stored_processor(module)
        if processor is not None:
            origin = "set by its image processor"
        elif kind not in FAMILIES or channels != 3:
            return None, (
                f"unknown; no image processor is stored with it, and models of type {kind!r} differ"
            )
        else:
            origin = f"known of released models of type {kind!r}"
            if "crop" in FAMILIES[kind]:
                return Preprocessing(size, **FAMILIES[kind], crop_rounding="down"), origin
            processor = default_processor(kind, size[0], FAMILIES[kind])
        images = measure_preprocessing(processor, channels)
        if images is None:
            return None, "unknown; its image processor does what no vit_tf.Preprocessing does"
        return images if images.size is None else replace(images, size=size), origin
    if type(module).__module__.startswith("torchvision.") and channels == 3:
        images, origin = _torchvision_preprocessing(module)
        return replace(images, size=size) if images else None, origin
    return None, "unknown"


def _torchvision_preprocessing(module: torch.nn.Module) -> tuple[Preprocessing | None, str]:
    """(What all weights of a torchvision module's architecture expect, or None, and the origin)."""
    try:
        from torchvision.models import get_model_builder, get_model_weights, list_models
        from torchvision.transforms._presets import ImageClassification
    except ImportError:  # before version 0.14
        return None, "unknown; this version of torchvision does not list its weights"
    own_file = type(module).__module__
    names = [name for name in list_models() if get_model_builder(name).__module__ == own_file]
    weights = [item for name in names for item in get_model_weights(name)]
    # A module does not state its architecture, but the number of parameters below its classifier
    # shows it.
    linear = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    classifier = linear[-1:]
    num_inputs = sum(layer.in_features + 1 for layer in classifier)
    num_parameters = sum(parameter.numel() for parameter in module.parameters()) - sum(
        parameter.numel() for layer in classifier for parameter in layer.parameters()
    )
    num_classes = {item: len(item.meta.get("categories", ())) for item in weights}
    weights = [
        item
        for item in weights
        if item.meta["num_params"] == num_parameters + num_inputs * num_classes[item]
    ] or weights
    expected: set[Preprocessing | None] = set()
    for transform in (item.transforms() for item in weights):
        images = None
        if type(transform) is ImageClassification:
            (side,), (edge,) = transform.crop_size, transform.resize_size
            images = Preprocessing(
                (side, side), transform.mean, transform.std, transform.interpolation.value,
                crop=crop_fraction(side, edge), antialias=transform.antialias,
            )  # fmt: skip
        expected.add(images)
    if len(expected) == 1 and (images := expected.pop()):
        return images, "known of torchvision's weights"
    if None in expected:
        return None, "unknown; its weights do what no vit_tf.Preprocessing does"
    return None, (
        "unknown; torchvision's weights of this architecture differ in it: "
        f"{format_list([str(item) for item in weights])}"
    )


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


def processed_size(module: torch.nn.Module, channels: int) -> tuple[int, int] | None:
    """(height, width) of what a module's stored processor or torchvision's weights make."""
    images = None
    if (processor := stored_processor(module)) is not None:
        images = measure_preprocessing(processor, channels)
    elif type(module).__module__.startswith("torchvision."):
        images, _ = _torchvision_preprocessing(module)
    return images.size if images else None


def declared_score_kind(module: torch.nn.Module) -> str:
    """The kind of class scores that a Hugging Face model's configuration declares, or ""."""
    problem = getattr(getattr(module, "config", None), "problem_type", None)
    return "sigmoids" if problem == "multi_label_classification" else ""


def find_class_names(module: torch.nn.Module) -> tuple[str, ...]:
    """The names of classes in a Hugging Face model's configuration, where they are names."""
    names = getattr(getattr(module, "config", None), "id2label", None)
    names = [names[key] for key in sorted(names)] if names else None
    if not names or all(str(name).startswith("LABEL_") for name in names):
        return ()
    return tuple(names) if len(set(names)) == len(names) else ()
