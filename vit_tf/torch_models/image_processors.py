"""What the image processors of Hugging Face's transformers do with images, as a `Preprocessing`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from vit_tf.data.preprocessing import Preprocessing, crop_fraction

# Shapes (height, width) of the images on which processors are tried: one that is wide and, for
# most models, too large, and one that is high and too small.
WIDE, HIGH = (301, 420), (150, 110)
FILTERS = ("bilinear", "bicubic", "lanczos3", "nearest")
# Pillow rounds pixels to levels, from 0 to 255, after each of two passes, and few nearest pixels
# are equally near. On noise, another filter or a crop that is one pixel off changes most pixels.
MAX_LEVELS, MAX_SHARE = 2.0, 0.02


def measure_preprocessing(processor: Any, num_channels: int) -> Preprocessing | None:
    """What an image processor does with images, or None where no `Preprocessing` does the same.

    The fields of processors mean something else in each class. So the mean and std follow from
    its results for black and white images, and the size from its results for ramps. The
    `Preprocessing` is returned if it has the same results for images of noise.
    """
    try:
        return _measure(processor, num_channels)
    except Exception:  # a processor may raise anything, as without a text or for 4 channels
        return None


def default_processor(kind: str, side: int, values: dict[str, Any]) -> Any:
    """The image processor of a type of models for square images, or None without one.

    What `values`, its mean and std, do not specify has the default of the processor's class.
    """
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    arguments = {f"image_{name}": list(numbers) for name, numbers in values.items()}
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind)
    names = names.values() if isinstance(names, dict) else names or ()
    for name in [name for name in names if name]:
        try:
            create = getattr(transformers, name)
            default = create(**arguments)
        except (AttributeError, ImportError):  # fast processors need torchvision
            continue
        sizes = {name: getattr(default, name, None) or {} for name in ("size", "crop_size")}
        last = sizes["crop_size"] or sizes["size"]
        ratio = side / next(iter(last.values()))
        scaled = {
            name: {key: round(ratio * length) for key, length in lengths.items()}
            for name, lengths in sizes.items()
            if lengths
        }
        return create(**arguments, **scaled)
    return None


def _measure(processor: Any, num_channels: int) -> Preprocessing | None:
    ends = np.full((2, *WIDE, num_channels), 0, np.uint8)
    ends[1] = 255
    black, white = (_process(processor, image) for image in ends)
    span = (white - black).mean((0, 1))
    # Padding would leave a border that is black in both images.
    if (span <= 0).any() or np.ptp(np.stack([black, white]), axis=(1, 2)).max() > 1e-3 * span.min():
        return None
    # The output is of single precision, which gives its numbers with seven digits.
    mean, std = (
        tuple(float(f"{value:.7g}") for value in values)
        for values in ((0 - black.mean((0, 1))) / span, 1 / span)
    )
    size, resizing, wide = None, {}, WIDE
    if black.shape[:2] != WIDE:
        size = (black.shape[0], black.shape[1])
        edges = [_measure_edge(processor, axis, num_channels, std) for axis in (0, 1)]
        if min(edge - side for edge, side in zip(edges, size, strict=True)) < 0:
            return None
        if tuple(edges) != size:
            keeps_aspect = abs(edges[1] * WIDE[0] / (edges[0] * WIDE[1]) - 1) < 0.02
            aspect = None if keeps_aspect else "squeeze"
            resizing = {"crop": crop_fraction(size[0], edges[0]), "aspect": aspect}
        # A wide image that is too large shows antialiasing. With three columns too many, modulo 4,
        # the two ways of rounding a crop differ.
        height = edges[0] * 4 // 3
        widths = range(height * 4 // 3, height * 2)
        spare = (w for w in widths if (edges[0] * w // height - size[1]) % 4 == 3)
        wide = (height, next(spare, widths[0]))
    rng = np.random.default_rng(0)
    # Red is brighter than blue, and no filter overshoots 0 or 255.
    offsets = np.linspace(10, -10, num_channels)
    images = [
        (rng.uniform(78, 178, (*shape, num_channels)) + offsets).astype(np.uint8)
        for shape in (HIGH, wide)
    ]
    outputs = [_process(processor, image) for image in images]
    if size is not None and any(output.shape != black.shape for output in outputs):
        return None
    levels = (outputs[0] * std + mean).mean((0, 1))
    order = "bgr" if levels[0] < levels[-1] else "rgb"
    candidates = (
        Preprocessing(size, mean, std, name, order, crop_rounding=rounding, **resizing)
        for name, rounding in itertools.product(FILTERS, ("down", "even"))
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
    """The result of a processor for an image: float64 of shape (height, width, channel)."""
    outputs = processor(image, return_tensors="pt", input_data_format="channels_last")
    (pixels,) = np.asarray(outputs["pixel_values"], np.float64)
    if pixels.ndim != 3 or len(pixels) != image.shape[-1]:
        raise ValueError(f"Expected an image of the same channels. Received: {pixels.shape}")
    return np.moveaxis(pixels, 0, -1)


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
    return round(254 / (length - 1) / slope * length)
