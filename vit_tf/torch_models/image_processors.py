"""What the image processors of Hugging Face's transformers do with images, as a `Preprocessing`."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from vit_tf.data.preprocessing import Preprocessing, crop_fraction

# Shapes (height, width) of the images on which processors are tried: one that is wide and, for
# most models, too large, and one that is high and too small.
WIDE, HIGH = (301, 420), (150, 110)
FILTERS = ("bilinear", "bicubic", "lanczos3", "nearest")
# Tolerances: Pillow rounds twice, so pixels differ by up to 2 of 255 levels, and at most 2 % may
# differ more, where two pixels are equally near. On noise, another filter or a crop that is one
# pixel off changes most pixels.
MAX_LEVELS, MAX_SHARE = 2.0, 0.02


def measure_preprocessing(processor: Any, num_channels: int) -> Preprocessing | None:
    """What an image processor does with images, or None where no `Preprocessing` does the same.

    The fields of processors mean different things in different classes. So the mean and std follow
    from the outputs for black and white, and the size from those for ramps. The `Preprocessing` is
    returned if its outputs for images of noise are those of the processor.
    """
    try:
        return _measure(processor, num_channels)
    except Exception:  # any, for example, because it needs a text or 3 channels
        return None


def default_processor(kind: str, side: int, values: dict[str, Any]) -> Any:
    """The image processor of a type of models for square images, or None without one.

    What `values`, its mean and std, do not specify has the default of the processor's class.
    """
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    arguments = {f"image_{name}": list(numbers) for name, numbers in values.items()}
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind) or ()
    if isinstance(names, dict):  # by backend
        names = names.values()
    for name in filter(None, names):
        try:
            create = getattr(transformers, name)
            default = create(**arguments)
        except (AttributeError, ImportError):  # fast processors need torchvision
            continue
        sizes = {field: getattr(default, field, None) or {} for field in ("size", "crop_size")}
        last = sizes["crop_size"] or sizes["size"]
        if not last:  # it does not resize
            return default
        ratio = side / next(iter(last.values()))
        scaled = {
            field: {key: round(ratio * length) for key, length in lengths.items()}
            for field, lengths in sizes.items()
            if lengths
        }
        return create(**arguments, **scaled)
    return None


def _measure(processor: Any, num_channels: int) -> Preprocessing | None:
    black_and_white = np.zeros((2, *WIDE, num_channels), np.uint8)
    black_and_white[1] = 255
    black, white = (_process(processor, image) for image in black_and_white)
    span = (white - black).mean((0, 1))
    # Padding would leave a border that is black in both images.
    has_border = np.ptp(np.stack([black, white]), axis=(1, 2)).max() > 1e-3 * span.min()
    if (span <= 0).any() or has_border:
        return None
    mean, std = _mean_and_std(black, span)
    if black.shape[:2] == WIDE:
        return _find_filter(processor, Preprocessing(None, mean, std), WIDE)

    # The image is cropped where its edges are longer than the output.
    size = (black.shape[0], black.shape[1])
    edges = [_measure_edge(processor, axis, num_channels, std) for axis in (0, 1)]
    if min(edge - side for edge, side in zip(edges, size, strict=True)) < 0:
        return None
    crop, aspect = None, None
    if tuple(edges) != size:
        keeps_aspect = abs(edges[1] * WIDE[0] / (edges[0] * WIDE[1]) - 1) < 0.02
        crop, aspect = crop_fraction(size[0], edges[0]), None if keeps_aspect else "squeeze"
    resized = Preprocessing(size, mean, std, crop=crop, aspect=aspect)
    return _find_filter(processor, resized, _wide_shape(edges[0], size[1]))


def _mean_and_std(
    black: np.ndarray, span: np.ndarray
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of a processor from its output for black, and the span from black to white."""
    means, stds = (0 - black.mean((0, 1))) / span, 1 / span  # 0 - black avoids -0.0
    # The output is of single precision, which gives its numbers with seven digits.
    mean, std = (tuple(float(f"{value:.7g}") for value in values) for values in (means, stds))
    return mean, std


def _measure_edge(processor: Any, axis: int, num_channels: int, std: tuple[float, ...]) -> int:
    """The length to which a processor resizes an axis of the wide image, before it crops.

    The steeper a ramp has become, the shorter is the axis. Noise below one level makes up for the
    rounding to levels.
    """
    length = WIDE[axis]
    ramp = np.expand_dims(np.linspace(0, 254, length), 1 - axis)[..., None]
    noise = np.random.default_rng(0).random((*WIDE, num_channels))
    levels = _process(processor, (ramp + noise).astype(np.uint8)) * std * 255
    profile = levels.mean((1 - axis, 2))
    middle = np.arange(len(profile) // 4, 3 * len(profile) // 4)
    slope, _ = np.polyfit(middle, profile[middle], 1)
    slope_before = 254 / (length - 1)
    return round(slope_before / slope * length)


def _wide_shape(edge: int, side: int) -> tuple[int, int]:
    """A shape (height, width) that shows antialiasing and how the offset of a crop is rounded.

    The image is too large, so it is resized to a height of `edge`. From the resized width, `side`
    columns are cropped. With three columns too many, modulo 4, the two ways of rounding differ. For
    example, for an edge of 256 and a side of 224, the shape is (341, 457): the resized width is
    343, and the offset of 59.5 is rounded down to 59, or to the even 60.
    """
    height = edge * 4 // 3
    widths = range(height * 4 // 3, height * 2)
    return height, next((w for w in widths if (edge * w // height - side) % 4 == 3), widths[0])


def _find_filter(
    processor: Any, resized: Preprocessing, wide: tuple[int, int]
) -> Preprocessing | None:
    """The `Preprocessing` with the filter, channel order and rounding of a processor, or None."""
    # Images of noise. Red is brighter than blue, and no filter overshoots 0 or 255.
    num_channels = len(resized.mean)
    offsets = np.linspace(10, -10, num_channels)
    rng = np.random.default_rng(0)
    images = [
        (rng.uniform(78, 178, (*shape, num_channels)) + offsets).astype(np.uint8)
        for shape in (HIGH, wide)
    ]
    outputs = [_process(processor, image) for image in images]
    if resized.size is not None and any(output.shape[:2] != resized.size for output in outputs):
        return None
    levels = (outputs[0] * resized.std + resized.mean).mean((0, 1))
    order = "bgr" if levels[0] < levels[-1] else "rgb"
    candidates = (
        replace(resized, interpolation=interpolation, channel_order=order, crop_rounding=rounding)
        for interpolation, rounding in itertools.product(FILTERS, ("down", "even"))
    )
    return next((p for p in candidates if _is_same(p, images, outputs)), None)


def _is_same(
    preprocessing: Preprocessing, images: list[np.ndarray], outputs: list[np.ndarray]
) -> bool:
    """Whether a `Preprocessing` makes these outputs of images, but for rounding."""
    levels = np.array(preprocessing.std) * 255
    return all(
        np.mean(np.abs(preprocessing(image) - output) * levels > MAX_LEVELS) <= MAX_SHARE
        for image, output in zip(images, outputs, strict=True)
    )


def _process(processor: Any, image: np.ndarray) -> np.ndarray:
    """An image as a processor prepares it: float64 of shape (height, width, channel)."""
    outputs = processor(image, return_tensors="pt", input_data_format="channels_last")
    (pixels,) = np.asarray(outputs["pixel_values"], np.float64)
    if pixels.ndim != 3 or len(pixels) != image.shape[-1]:
        raise ValueError(f"Expected an image of the same channels. Received: {pixels.shape}")
    return np.moveaxis(pixels, 0, -1)
