"""What a PyTorch module expects of its images, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

# Sides of images on which a module that does not specify any is tried, in pixels.
SIDES = (224, 32, 64, 256, 128, 384, 28, 96, 448, 512)
SIZE_ATTRIBUTES = ("img_size", "image_size")


def image_size(module: torch.nn.Module) -> tuple[int, int] | None:
    """(height, width) that a module was made for, or None where it does not specify them."""
    for submodule in module.modules():
        for holder in (submodule, getattr(submodule, "config", None)):
            for name in SIZE_ATTRIBUTES:
                if size := _pair(getattr(holder, name, None)):
                    return size
    config = pretrained_config(module)
    return tuple(config["input_size"][1:]) if config.get("input_size") else None


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
    ) from last
