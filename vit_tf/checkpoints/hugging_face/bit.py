"""BiT in the names of Hugging Face's transformers (`modeling_bit.py`)."""

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
# That of the pretraining, where neither a processor nor the caller tells.
SIZE = 224


def plan(folder, wishes):
    """The `Plan` of an open folder; its processor tells the size of the images."""
    wishes.refuse(FAMILY, "pooling", "num_heads")
    config, tensors = Config(folder.config), folder.tensors
    for name, value in ONLY.items():
        config.require(name, value)
    outer = "bit." if f"bit.{ROOT}" in tensors else ""
    width, channels = dims(tensors, f"{outer}{ROOT}", 4)[:2]
    inside = {n.removeprefix(outer): t for n, t in tensors.items() if n.startswith(outer)}
    units = _count(inside)
    image_shape = (*told_size(folder, wishes, (SIZE, SIZE)), channels)
    arguments = {
        "image_shape": image_shape,
        "units": units,
        "width_factor": width / 64 if width % 64 else width // 64,
        "stem": "imagenet",
    }
    sources = {"root/kernel": Source({ROOT: (width, channels, 7, 7)}, rows_first)}
    before = width
    for stage, depth in enumerate(units):
        for unit in range(depth):
            sources |= _unit(stage, unit, before, width * 2**stage)
            before = 4 * width * 2**stage
    whole = Part(arguments, sources) | norm_part("norm", "norm.weight", "norm.bias", before)
    names = ("classifier.1.weight", "classifier.1.bias")
    head = head_part(tensors, before, wishes, *names, lambda n: (n, before), np.transpose)
    images = ends(folder, image_shape, True, wishes)
    return Plan("BiT", whole.under(outer) | head, any_size=True, **images)


def _count(tensors):
    """Number of units of each stage."""
    # As the function counts from 1 on, which the file does from 0 on.
    pattern, names = r"s(\d+)\.u(\d+)", []
    for name in tensors:
        parts = name.split(".")
        if name.startswith("encoder.stages.") and len(parts) > 4 and parts[2].isdecimal():
            names.append(f"s{int(parts[2]) + 1}.u{parts[4]}")
    return count_units(names, pattern)


def _unit(stage, unit, before, inner):
    """Sources of a unit from `before` to four times `inner` channels."""
    name = f"encoder.stages.{stage}.layers.{unit}"
    layer = f"stage{stage + 1}_unit{unit + 1:02d}"
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
    if unit == 0:
        shape = {f"{name}.downsample.conv.weight": (4 * inner, before, 1, 1)}
        sources[f"{layer}/projection/kernel"] = Source(shape, rows_first)
    return sources
