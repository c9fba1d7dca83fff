"""What a Keras model of other origin expects of its images, found out from the model itself."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import keras
import numpy as np

from vit_tf.common.backend import Tensor
from vit_tf.data.preprocessing import INTERPOLATIONS, Preprocessing
from vit_tf.features import recorder

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5,) * 3, (0.5,) * 3
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
# Blue first and centred, in levels of 255: the means of `imagenet_utils`, mode "caffe".
CAFFE = tuple(level / 255 for level in (103.939, 116.779, 123.68)), (1 / 255,) * 3

# Names that `keras.applications` gives its models, and what their `preprocess_input` makes.
# MobileNetV3, EfficientNet and ConvNeXt rescale by themselves unless disabled.
APPLICATIONS = {
    r"resnet(50|101|152)|vgg(16|19)": (CAFFE, "bgr"),
    r"densenet(121|169|201)|convnext_(tiny|small|base|large|xlarge)": (IMAGENET, "rgb"),
    r"resnet(50|101|152)v2|mobilenet(v2)?_[\d.]+_\d+|MobileNetV3(Small|Large)|inception_v3|"
    r"inception_resnet_v2|xception|NASNet|nasnet_(mobile|large)": (HALF, "rgb"),
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
PROBE_SIZE = (48, 48)  # of an image that a converter of images of any size is tried on
PROBE_TOLERANCE = 0.01  # of the range of values, for other arithmetic of the same interpolation
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
    size = input_size(model)
    converter = getattr(getattr(model, "preprocessor", None), "image_converter", None)
    if converter is not None:
        channels = recorder.input_spec(model)[0][-1] or 3
        inferred = _from_converter(converter, size, channels)
        reason = "set by its image converter"
        return inferred, reason if inferred else f"unknown; {OTHER_CONVERTER}"
    ends, inside = _run_first_layers(model)
    if ends is None:
        return None, "unknown"
    resizing = _first_resizing(model) if size is None else None
    how: dict[str, Any] = {}
    if resizing is not None:  # images of its size pass through it unchanged
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
    for part in inside:
        of_family = _from_family(part, size)
        if of_family is not None and of_family.num_channels == channels:
            return replace(of_family, **how), f"known of {part.name}"
    return None, "unknown"


def input_size(model: keras.Model) -> tuple[int, int] | None:
    """(height, width) of a model's images, or None where it takes any."""
    sides = [side for side in recorder.input_spec(model)[0][1:3] if side is not None]
    return (sides[0], sides[1]) if len(sides) == 2 else None


def _from_converter(
    converter: Any, size: tuple[int, int] | None, channels: int
) -> Preprocessing | None:
    """The `Preprocessing` that KerasHub's `ImageConverter` does, or None if it does another."""
    scale = np.broadcast_to(1.0 if converter.scale is None else converter.scale, (channels,))
    offset = np.broadcast_to(0.0 if converter.offset is None else converter.offset, (channels,))
    if (scale <= 0).any() or converter.interpolation not in INTERPOLATIONS:
        return None
    std = 1 / (255 * np.asarray(scale, np.float64))
    aspect = None
    if converter.image_size is not None:
        aspect = "crop" if converter.crop_to_aspect_ratio else None
        aspect = "pad" if converter.pad_to_aspect_ratio else aspect
    size = converter.image_size or size
    mean = -offset * std
    inferred = Preprocessing(
        size,
        tuple(mean.tolist()),
        tuple(std.tolist()),
        converter.interpolation,
        antialias=converter.antialias,
        aspect=aspect,
    )
    return inferred if _does_the_same(converter, inferred) else None


def _does_the_same(converter: Any, preprocessing: Preprocessing) -> bool:
    """Whether a converter, which may be of a class of the user's, agrees for an oblong image."""
    height, width = preprocessing.size or PROBE_SIZE
    shape = (height, width) if converter.image_size is None else (2 * height + 1, 3 * width)
    # Smooth, so that interpolations of other arithmetic agree.
    rows, columns = np.indices(shape)[..., None]
    phases = np.arange(len(preprocessing.mean))
    waves = np.cos(0.05 * rows + phases) * np.cos(0.07 * columns + phases)
    image = np.asarray(127 + 64 * waves, np.float32)
    try:
        converted = keras.ops.convert_to_numpy(converter(image[None]))[0]
    except (TypeError, ValueError):
        return False  # it does not take images alone
    if converted.shape[-1] == len(preprocessing.mean):
        # Keras keeps values beyond black and white, at the edges of what is padded.
        converted = np.clip(converted, *preprocessing.value_range)
    expected = preprocessing(image)
    tolerance = PROBE_TOLERANCE * np.ptp(expected)
    return converted.shape == expected.shape and np.allclose(converted, expected, atol=tolerance)


def _from_family(model: keras.Model, size: tuple[int, int] | None) -> Preprocessing | None:
    """The `Preprocessing` of a family of models, or None."""
    for names, (values, order) in APPLICATIONS.items():
        if re.fullmatch(names, model.name):
            return Preprocessing(size, *values, channel_order=order)
    if type(model).__module__.startswith("keras_hub."):
        for kinds, values in BACKBONES.items():
            if re.fullmatch(f"({kinds})(Backbone|VisionEncoder)", type(model).__name__):
                return Preprocessing(size, *values)
    return None


def _run_first_layers(model: keras.Model) -> tuple[np.ndarray | None, list[keras.Model]]:
    """(means of black and white images after layers that rescale, models around these)."""
    shape, _ = recorder.input_spec(model)
    if len(shape) not in (3, 4) or None in shape[3:]:
        return None, []
    size = [32 if pixels is None else pixels for pixels in shape[1:3]]
    size += cast(tuple[int, ...], shape[3:])  # checked above to have no None
    images = np.stack([np.full(size, value, "float32") for value in (0, 1)])
    if recorder.functional_graph(model) is None:
        values, inside = _run_layers(model, keras.ops.convert_to_tensor(images)), [model]
    else:
        values, inside = _run_graph(model, keras.ops.convert_to_tensor(images), [])
    values = keras.ops.convert_to_numpy(values)
    ends = values.astype(np.float64).mean(axis=(1, 2)).reshape(len(images), -1)
    return ends, inside


def _first_resizing(model: keras.Model) -> keras.layers.Resizing | None:
    """The layer by which a functional model brings images of any size to one; None without it."""
    graph = recorder.functional_graph(model)
    for node in recorder.graph_nodes(graph) if graph is not None else ():
        layer = node.operation
        if isinstance(layer, keras.Model) and (resizing := _first_resizing(layer)):
            return resizing
        if isinstance(layer, keras.layers.Resizing) and layer.interpolation in INTERPOLATIONS:
            return layer
        if not _rescales(layer):
            return None
    return None


def _run_graph(
    model: keras.Model, images: Tensor, around: Sequence[keras.Model]
) -> tuple[Any, list[keras.Model]]:
    """The input of the first layer of a functional model that does more than rescale."""
    graph, inside = recorder.functional_graph(model), [model, *around]
    values = {id(graph.inputs[0]): images}
    for node in recorder.graph_nodes(graph):
        layer, first = node.operation, values.get(id(next(iter(node.input_tensors), None)))
        if first is None:
            continue  # a constant of the model's own
        if isinstance(layer, keras.Model) and not _rescales(layer):
            nested = recorder.functional_graph(layer)
            return _run_graph(layer, first, inside) if nested else (first, inside)
        if not _rescales(layer):
            return first, inside
        args, kwargs = node.arguments.fill_in(values)
        values[id(node.outputs[0])] = result = recorder.infer(layer, *args, **kwargs)
    return result, inside


def _run_layers(model: keras.Model, values: Any) -> Any:
    """The same of a subclassed model, whose layers are run in the order that it calls them in."""
    layers = [layer for _, layer in recorder.named_layers(model)]
    for position in dict.fromkeys(p for p, _, _ in recorder.find_taps(model).values()):
        layer = layers[position]
        if any(True for _ in layer._flatten_layers(include_self=False, recursive=False)):
            continue  # its own layers were there before it
        if not _rescales(layer):
            return values
        values = recorder.infer(layer, values)
    return values


def _rescales(layer: Any) -> bool:
    """Whether a layer or operation does no more to a batch of images than rescale or move it.

    A model does not if its layers do not, as one of augmentations.
    """
    kind = type(layer)
    if isinstance(layer, keras.Model):
        graph = recorder.functional_graph(layer)
        parts = list(graph.operations if graph is not None else layer.layers)
        return bool(parts) and all(map(_rescales, parts))
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
