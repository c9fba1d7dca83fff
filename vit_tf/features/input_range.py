"""What a Keras model of other origin expects of its images, found out from the model itself."""

import re
from dataclasses import replace
from typing import Any, cast

import keras
import numpy as np

from vit_tf.data.preprocessing import CLIP, HALF, IMAGENET, INTERPOLATIONS, Preprocessing
from vit_tf.features import recorder

# Blue first and centred, in levels of 255: the means of `imagenet_utils`, mode "caffe".
CAFFE = {
    "mean": tuple(level / 255 for level in (103.939, 116.779, 123.68)),
    "std": (1 / 255,) * 3,
}

# Names that `keras.applications` gives its models, what their `preprocess_input` makes, and layers
# of which each of them has one, which other models of such a name do not have.
# MobileNetV3, EfficientNet and ConvNeXt rescale by themselves unless disabled.
APPLICATIONS = {
    r"resnet(50|101|152)|vgg(16|19)": (
        *(CAFFE, "bgr"),
        r"conv2_block1_1_conv|res2a_branch2a|block1_conv2",
    ),
    r"densenet(121|169|201)|convnext_(tiny|small|base|large|xlarge)": (
        *(IMAGENET, "rgb"),
        r"conv2_block1_0_bn|convnext_\w+_stage_0_block_0_depthwise_conv",
    ),
    r"resnet(50|101|152)v2|mobilenet(v2)?_[\d.]+_(\d+|None)|MobileNetV3(Small|Large)|inception_v3|"
    r"inception_resnet_v2|xception|NASNet|nasnet_(mobile|large)": (
        *(HALF, "rgb"),
        r"conv2_block1_preact_bn|conv_dw_1|expanded_conv_depthwise|mixed0|mixed_5b|"
        r"block2_sepconv1|stem_conv1",
    ),
}
# Classes of KerasHub's backbones, and how the images of their public weights are normalised.
BACKBONES = {
    r"ViT|SigLIP|Xception": HALF,
    r"CLIP": CLIP,
    r"DeiT|DINOV[23]|MiT|SwinTransformer": IMAGENET,
    r"ResNet|DenseNet|VGG|CSPNet|EfficientNet|MobileNet|HGNetV2": IMAGENET,
}

# Ranges that images come in, the commonest first, and those that networks work in.
COMING = ((0, 255), (0, 1), (-1, 1))
WORKING = ((0, 1), (-1, 1), (-2, 2), (0, 255), (-127.5, 127.5))
FAR = 1.0  # a factor of e in width, or half the width in place
OTHER_CONVERTER = "its image converter does what no vit_tf.Preprocessing does"
PLAIN = (keras.layers.Dropout, keras.layers.GaussianNoise, keras.layers.Identity)
PLAIN += (keras.layers.InputLayer,)
ARITHMETIC = ("Add", "Subtract", "Multiply", "Divide", "TrueDivide", "GetItem", "Stack", "Cast")


def find_preprocessing(model: keras.Model) -> tuple[Preprocessing | None, str]:
    """(The `Preprocessing` that a Keras model expects, or None, and the reason in words).

    In this order: what the model states (`model.preprocessing`); the image converter of a KerasHub
    task; layers such as `Rescaling` and `Normalization` that come first in the model, and plain
    arithmetic; the families of `keras.applications` and KerasHub, by name.
    """
    declared = getattr(model, "preprocessing", None)
    if isinstance(declared, Preprocessing):
        return declared, "set by the model"
    height, width = (*recorder.input_spec(model)[0][1:3], None, None)[:2]
    size = None if height is None or width is None else (height, width)
    converter = getattr(getattr(model, "preprocessor", None), "image_converter", None)
    if converter is not None:
        channels = recorder.input_spec(model)[0][-1] or 3
        inferred = _from_converter(converter, size, channels)
        reason = "set by its image converter"
        return inferred, reason if inferred else f"unknown; {OTHER_CONVERTER}"
    ends, around, resizing = _run_first_layers(model)
    if ends is None:
        return None, "unknown"
    how: dict[str, Any] = {}
    if size is None and resizing is not None:  # images of its size pass through it unchanged
        size = resizing.height, resizing.width
        aspect = "crop" if resizing.crop_to_aspect_ratio else None
        aspect = "pad" if resizing.pad_to_aspect_ratio else aspect
        how = {
            "interpolation": resizing.interpolation,
            "antialias": resizing.antialias,
            "aspect": aspect,
        }
    (channels,) = recorder.input_spec(model)[0][3:] or (1,)  # of images without such an axis
    if not np.allclose(ends, [[0.0], [1.0]]):
        values = _range_before(*ends)
        if values is None:
            return None, "unknown; its first layers rescale in an unusual way"
        # The number of channels is known wherever the first layers have been run.
        of_range = Preprocessing.from_range(size, *values, cast(int, channels), **how)
        return of_range, "found from its first layers"
    reason = "unknown"
    for part in around:
        of_family, origin = _from_family(part, size)
        if of_family is not None and of_family.num_channels == channels:
            return replace(of_family, **how), origin
        if of_family is not None:
            origin = f"unknown; {part.name!r} is not for {channels} channels"
        reason = origin if reason == "unknown" else reason
    return None, reason


def _from_converter(
    converter: Any, size: tuple[int, int] | None, channels: int
) -> Preprocessing | None:
    """The `Preprocessing` that KerasHub's `ImageConverter` does, or None if it does another."""
    kinds = type(converter).__mro__
    does = next(kind for kind in kinds if "call" in vars(kind) or "__call__" in vars(kind))
    scale = np.broadcast_to(1.0 if converter.scale is None else converter.scale, (channels,))
    offset = np.broadcast_to(0.0 if converter.offset is None else converter.offset, (channels,))
    is_usual = does.__module__.startswith("keras_hub.") and does.__name__ == "ImageConverter"
    if not is_usual or converter.interpolation not in INTERPOLATIONS or (scale <= 0).any():
        return None
    std = 1 / (255 * np.asarray(scale, np.float64))
    aspect = None
    if converter.image_size is not None:
        aspect = "crop" if converter.crop_to_aspect_ratio else None
        aspect = "pad" if converter.pad_to_aspect_ratio else aspect
    size = converter.image_size or size
    mean = -offset * std
    return Preprocessing(
        size,
        tuple(mean.tolist()),
        tuple(std.tolist()),
        converter.interpolation,
        antialias=converter.antialias,
        aspect=aspect,
    )


def _from_family(
    model: keras.Model, size: tuple[int, int] | None
) -> tuple[Preprocessing | None, str]:
    """(The `Preprocessing` of a family of models, or None, and the reason in words)."""
    for names, (values, order, layer_names) in APPLICATIONS.items():
        if re.fullmatch(names, model.name):
            paths = [path.split("/")[-1] for path, _ in recorder.named_layers(model)]
            if not any(re.fullmatch(layer_names, name) for name in paths):
                other = f"{model.name!r} has other layers than that of keras.applications"
                return None, f"unknown; {other}"
            return Preprocessing(size, **values, channel_order=order), f"known of {model.name}"
    if type(model).__module__.startswith("keras_hub."):
        for kinds, values in BACKBONES.items():
            if re.fullmatch(f"({kinds})(Backbone|VisionEncoder)", type(model).__name__):
                return Preprocessing(size, **values), f"known of {model.name}"
    return None, "unknown"


class _Reached(BaseException):
    """Ends the call of a model at its first layer that does more than rescale."""


def _run_first_layers(
    model: keras.Model,
) -> tuple[np.ndarray | None, list[keras.Model], keras.layers.Resizing | None]:
    """What a black and a white image are for the first layer that does more than rescale.

    Returns the means of both, the models that contain the layer, the innermost first, and the
    layer before it that brings images of any size to one, if there is one.
    """
    shape, _ = recorder.input_spec(model)
    if len(shape) not in (3, 4) or None in shape[3:]:
        return None, [], None
    sizes = [pixels or 32 for pixels in shape[1:3]] + [*shape[3:]]
    images = keras.ops.stack([keras.ops.full(sizes, value, "float32") for value in (0, 1)])
    resizings, values, path = [], images, ""

    def look(name: str, layer: Any, args: tuple, kwargs: dict) -> None:
        nonlocal values, path
        value_shape = getattr(args[0], "shape", ()) if args else ()
        is_container = recorder.is_layer(layer) and bool(recorder.layers_in(layer))
        # Constants of the model's own, such as a table of positions, have no axis of examples.
        if is_container or len(value_shape) < 3 or value_shape[0] != len(images):
            return
        if isinstance(layer, keras.layers.Resizing) and layer.interpolation in INTERPOLATIONS:
            resizings.append(layer)
        if not _rescales(layer):
            values, path = args[0], name
            raise _Reached

    try:
        records = recorder.record(model, images, watch=look)
        values = next(reversed(records.values()), images)
    except _Reached:
        pass
    means = keras.ops.convert_to_numpy(values).astype(np.float64).mean(axis=(1, 2))
    around = [
        layer
        for name, layer in reversed(recorder.named_layers(model))
        if path.startswith(f"{name}/") and isinstance(layer, keras.Model)
    ]
    return means.reshape(len(images), -1), [*around, model], next(iter(resizings), None)


def _rescales(layer: Any) -> bool:
    """Whether a layer or operation does no more to a batch of images than rescale or move it."""
    kind = type(layer)
    if kind.__module__.startswith("keras.src.ops."):
        return kind.__name__ in ARITHMETIC
    return ".layers.preprocessing." in kind.__module__ or isinstance(layer, PLAIN)


def _range_before(black: np.ndarray, white: np.ndarray) -> tuple[int, int] | None:
    """The commonest range (low, high) that first layers rescale to a usual one, or None."""
    for low, high in COMING:
        ends = [black + (white - black) * value for value in (low, high)]
        center, half = (ends[0] + ends[1]) / 2, np.abs(ends[1] - ends[0]) / 2
        if (half == 0).any():
            return None
        for start, end in WORKING:
            width = (end - start) / 2
            away = np.abs(np.log(half / width)) + np.abs(center - (start + end) / 2) / width
            if away.mean() <= FAR:
                return low, high
    return None
