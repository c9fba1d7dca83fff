"""BiT in the names of Hugging Face's transformers (`modeling_bit.py`)."""

import re

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.hugging_face.configs import Config
from vit_tf.checkpoints.hugging_face.processing import ends, told_size
from vit_tf.checkpoints.plans import Part, Plan, count_units, dims, head_part, norm_part
from vit_tf.checkpoints.torch_blocks import rows_first

FAMILY = "Hugging Face's BiT"
TYPES = ("bit",)
ROOT = "embedder.convolution.weight"
# Of the variants of `BitConfig` those of BiT as it was released.
ONLY = {
    "layer_type": "preactivation",
    "hidden_act": "relu",
    "global_padding": None,
    "num_groups": 32,
    "embedding_dynamic_padding": False,
    "output_stride": 32,
}
# That of the pretraining, where neither a processor nor the caller specifies it.
SIZE = 224


def plan(folder, wishes):
    """The `Plan` of an open folder; its processor specifies the size of the images."""
    wishes.refuse(FAMILY, "pooling", "num_heads")
    config, tensors = Config(folder.config), folder.tensors
    for name, value in ONLY.items():
        config.require(name, value)
    outer = "bit." if f"bit.{ROOT}" in tensors else ""
    width, channels = dims(tensors, f"{outer}{ROOT}", 4)[:2]
    inside = {n.removeprefix(outer): t for n, t in tensors.items() if n.startswith(outer)}
    image_shape = (*told_size(folder, wishes, (SIZE, SIZE)), channels)
    units, before = units_part(inside, ROOT, width, channels, "encoder.stages.{}.layers.{}")
    whole = units | Part({"image_shape": image_shape})
    whole |= norm_part("norm", "norm.weight", "norm.bias", before)
    names = ("classifier.1.weight", "classifier.1.bias")
    head = head_part(tensors, before, wishes, *names, lambda n: (n, before), np.transpose)
    images = ends(folder, image_shape, True, wishes)
    return Plan("BiT", whole.under(outer) | head, any_size=True, **images)


def units_part(tensors, root, width, channels, names):
    """(`Part` of the root and all units, number of channels after them).

    Args:
        tensors: those of the file.
        root: name of the kernel of the root.
        width, channels: channels of the root and of the images.
        names: what the names of a unit's tensors begin with, with fields for its stage and number.
    """
    pattern = re.escape(names).replace(r"\{\}", r"(\d{1,4})")
    found = (re.match(rf"{pattern}\.", name) for name in tensors)
    # As the function counts from 1 on, which the file does from 0 on.
    numbers = [f"s{int(match[1]) + 1}.u{match[2]}" for match in found if match]
    units = count_units(numbers, r"s(\d+)\.u(\d+)")
    arguments = {
        "units": units,
        "width_factor": width / 64 if width % 64 else width // 64,
        "stem": "imagenet",
    }
    sources = {"root/kernel": Source({root: (width, channels, 7, 7)}, rows_first)}
    before = width
    for stage, depth in enumerate(units):
        for unit in range(depth):
            layer = f"stage{stage + 1}_unit{unit + 1:02d}"
            inner, name = width * 2**stage, names.format(stage, unit)
            sources |= _unit(name, layer, before, inner, unit == 0)
            before = 4 * inner
    return Part(arguments, sources), before


def _unit(name, layer, before, inner, first):
    """Sources of a unit from `before` to four times `inner` channels."""
    shapes = {
        "conv1": (inner, before, 1, 1),
        "conv2": (inner, inner, 3, 3),
        "conv3": (4 * inner, inner, 1, 1),
    }
    sources = {}
    for conv, shape in shapes.items():
        norm = conv.replace("conv", "norm")
        sources[f"{layer}/{conv}/kernel"] = Source({f"{name}.{conv}.weight": shape}, rows_first)
        sources |= norm_part(
            f"{layer}/{norm}", f"{name}.{norm}.weight", f"{name}.{norm}.bias", shape[1]
        ).sources
    if first:
        shape = {f"{name}.downsample.conv.weight": (4 * inner, before, 1, 1)}
        sources[f"{layer}/projection/kernel"] = Source(shape, rows_first)
    return sources
