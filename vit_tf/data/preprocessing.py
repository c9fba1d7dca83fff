"""What a model expects of its images: their size and values, and the checks of both."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import Any, cast

import numpy as np

from vit_tf.common.names import lookup

# Mean and standard deviation of the values in [0, 1] of public weights.
HALF: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CLIP: dict[str, Any] = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos3", "lanczos5")
# The words that fields of `Preprocessing` may be.
WORDS = {
    "interpolation": INTERPOLATIONS,
    "aspect": (None, "crop", "pad", "squeeze"),
    "channel_order": ("rgb", "bgr"),
    "crop_rounding": ("even", "down"),
}
# How timm's crop modes make images of another aspect ratio fit, as `Preprocessing.aspect`. Its mode
# "border" pads with the mean of the images, which no `Preprocessing` does.
TIMM_ASPECTS = {"center": None, "squash": "squeeze"}


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of images: resizes and crops them, then computes `(image / 255 - mean) / std`.

    To preprocess an image, call the object: `Preprocessing.from_range((224, 224), 0, 1)(image)`.

    Args:
        size: (height, width) to which images are resized, in pixels. None keeps the size of each
            image.
        mean, std: mean and standard deviation of each channel, for values in [0, 1]. The default of
            0.5 gives values in [-1, 1]. The length of `mean` is the number of channels. Pillow
            converts files and PIL images to grey for 1 channel, to RGBA for 4 channels, and to RGB
            otherwise.
        interpolation: how images are resized, `"bilinear"`, `"bicubic"`, `"nearest"`, `"lanczos3"`
            or `"lanczos5"`.
        channel_order: order of the model's channels, `"rgb"` or `"bgr"` (blue first). `mean` and
            `std` are in this order.
        crop: fraction of the shorter side that is kept, in (0, 1]. The shorter side is resized to
            `floor(size / crop)`, and then the centre of the image is cropped to `size`. For
            example, a `size` of 224 and a `crop` of 0.875 resize the shorter side to 256. None
            resizes images to `size` regardless of their aspect ratio.
        crop_rounding: how the offset of the crop is rounded if it ends in half a pixel. `"even"`
            rounds to the nearest even number, as torchvision does. `"down"` rounds down, as the
            image processors of transformers do.
        antialias: whether images are antialiased when they are made smaller, as in Pillow. The
            layers of Keras and KerasHub do not antialias by default.
        aspect: how images get the aspect ratio of `size` before they are resized, as in
            `keras.layers.Resizing`. `"crop"` cuts out the centre of the image. `"pad"` adds black
            on both sides. `"squeeze"` changes the aspect ratio of what is shown, also where the
            image is cropped. None omits this step. The argument `crop` applies afterwards.

    Raises:
        ValueError: if a value is out of its range.
    """

    size: tuple[int, int] | None
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bilinear"
    channel_order: str = "rgb"
    crop: float | None = None
    crop_rounding: str = "even"
    antialias: bool = True
    aspect: str | None = None

    def __post_init__(self) -> None:
        for name in ("size", "mean", "std"):  # lists, as JSON has them, and arrays
            if name == "size" and self.size is None:
                continue
            values = (x.item() if hasattr(x, "item") else x for x in getattr(self, name))
            object.__setattr__(self, name, tuple(values))
        size = (1, 1) if self.size is None else self.size
        if len(size) != 2 or not all(isinstance(n, Integral) and n > 0 for n in size):
            raise ValueError(
                "Expected size to be (height, width), two integers above 0, or None. "
                f"Received: size={self.size}"
            )
        if len(self.mean) != len(self.std) or not all(std > 0 for std in self.std):
            raise ValueError(
                "Expected mean and std to have one number for each channel, std above 0. "
                f"Received: mean={self.mean}, std={self.std}"
            )
        needs_size = self.crop is not None or self.aspect is not None
        crop = 1 if self.crop is None else self.crop
        if (needs_size and self.size is None) or not 0 < crop <= 1:
            raise ValueError(
                "Expected crop to be None or a fraction in (0, 1]; a crop or an aspect also needs "
                f"a size. Received: crop={self.crop!r}, aspect={self.aspect!r}, size={self.size}"
            )
        for field, words in WORDS.items():
            lookup(field, getattr(self, field), dict.fromkeys(words))

    @classmethod
    def of(cls, image_shape: Sequence[int]) -> "Preprocessing":
        """Default preprocessing for images of (height, width, channels): values in [-1, 1]."""
        *sizes, channels = image_shape
        size = cast(tuple[int, int], tuple(sizes))  # `__init__` checks their number
        return cls(size, (0.5,) * channels, (0.5,) * channels)

    @classmethod
    def from_range(
        cls,
        size: tuple[int, int] | None,
        low: float | Sequence[float],
        high: float | Sequence[float],
        num_channels: int = 3,
        **others: Any,
    ) -> "Preprocessing":
        """Preprocessing that maps black to `low` and white to `high`.

        Args:
            size: as for `Preprocessing`.
            low, high: numbers, or one for each channel, such as 0 and 255.
            num_channels: 3 for RGB, 1 for grey images, 4 for RGBA.
            **others: other fields of `Preprocessing`.

        Raises:
            ValueError: if `high` is not above `low`.
        """
        shape = (num_channels,)
        lows, highs = (np.broadcast_to(np.asarray(x, np.float64), shape) for x in (low, high))
        if not (highs > lows).all():
            raise ValueError(
                f"Expected a range from a low to a high value. Received: {lows} to {highs}"
            )
        mean, std = -lows / (highs - lows), 1 / (highs - lows)
        return cls(size, tuple(mean.tolist()), tuple(std.tolist()), **others)

    @classmethod
    def from_config(cls, config: "dict | Preprocessing") -> "Preprocessing":
        """Creates it from a dict of `to_config`; a `Preprocessing` is returned unchanged."""
        return config if isinstance(config, Preprocessing) else cls(**config)

    def to_config(self) -> dict[str, Any]:
        """The fields as a JSON-serializable dict, without newer fields that have their default."""
        fields = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        later = ("channel_order", "crop", "crop_rounding", "antialias", "aspect")
        return {k: v for k, v in fields.items() if k not in later or v != getattr(type(self), k)}

    def squeezed(self) -> "Preprocessing":
        """A copy without cropping and padding, so that annotations of the image remain valid."""
        return replace(self, crop=None, aspect=None)

    def framing(self, size: tuple[int, int] | None = None) -> "Preprocessing":
        """How images are resized, of this or another size, with values in [-1, 1] and red first."""
        return replace(
            self,
            size=size or self.size,
            channel_order="rgb",
            mean=(0.5,) * self.num_channels,
            std=(0.5,) * self.num_channels,
        )

    @property
    def num_channels(self) -> int:
        """The number of channels of a preprocessed image."""
        return len(self.mean)

    @property
    def value_range(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the largest value of each channel: two float64 arrays."""
        mean, std = np.array(self.mean, np.float64), np.array(self.std, np.float64)
        return -mean / std, (1 - mean) / std

    def describe(self) -> str:
        """The size and the values of preprocessed images: `"8 x 8 pixels, values in [-1, 1]"`."""
        size = "any size" if self.size is None else f"{self.size[0]} x {self.size[1]} pixels"
        order = "" if self.channel_order == "rgb" else ", blue first"
        crop = "" if self.crop is None else f", centre crop of {self.crop:g}"
        aspects = {"crop": ", cropped to fit", "pad": ", padded to fit", "squeeze": ", squeezed"}
        aspect = aspects.get(self.aspect or "", "")
        return f"{size}{aspect}{crop}, values in {interval(*self.value_range)}{order}"

    def __call__(self, images: Any) -> np.ndarray:
        """An image or a batch of images as the model expects it.

        Args:
            images: array of shape (height, width, channel) or (example, height, width, channel)
                with values in [0, 255], of integers or of floats, of 1 channel or of the model's.

        Returns:
            float32 array of the same rank.

        Raises:
            ValueError: for another shape or values outside [0, 255].
        """
        # Only here, since TensorFlow is not needed to state what a model expects.
        from vit_tf.data.resizing import resize_image, scale_values

        images, channels = np.asarray(images), len(self.mean)
        if images.ndim not in (3, 4) or images.shape[-1] not in (1, channels):
            raise ValueError(
                f"Expected images of shape ([example,] height, width, {channels} or 1). "
                f"Received: shape {images.shape}"
            )
        require_levels(images)
        images = np.repeat(images, channels // images.shape[-1], axis=-1).astype(np.float32)
        if self.size is not None:
            images = np.asarray(resize_image(images, self.size, self))
        return np.asarray(scale_values(images, self))


@dataclass(frozen=True)
class JointPreprocessing:
    """How the same images become the inputs of several models: one row of numbers for each image.

    A row holds the images of all parts, each of which has a size, flattened in their order.
    """

    parts: tuple[Preprocessing, ...]

    @property
    def size(self) -> tuple[int, int]:
        """The (height, width) of the first: what matters is that images do not keep theirs."""
        return self._sizes[0]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape (height, width, channel) of an image of each part."""
        sizes = zip(self._sizes, self.parts, strict=True)
        return [(*size, part.num_channels) for size, part in sizes]

    @property
    def num_channels(self) -> int:
        """The largest number of channels of a part."""
        return max(part.num_channels for part in self.parts)

    @property
    def _sizes(self) -> list[tuple[int, int]]:
        return [cast(tuple[int, int], part.size) for part in self.parts]  # each part has a size


def crop_fraction(side: int, edge: int) -> float:
    """The `crop` that resizes the shorter side of an image to `edge` and keeps `side` of it."""
    fraction = side / edge
    return fraction if math.floor(side / fraction) == edge else math.nextafter(fraction, 0)


def crop_and_aspect(crop: float, aspect: str | None) -> dict[str, Any]:
    """The fields of a `Preprocessing`, neither of which squeezes an image without a crop."""
    is_squeezed = aspect == "squeeze" and crop == 1
    return {"crop": None if is_squeezed else crop, "aspect": None if is_squeezed else aspect}


def interval(low: Any, high: Any) -> str:
    """A range of values as text: `"[0, 255]"`, and of channels that differ the widest."""
    return f"[{np.min(low):.4g}, {np.max(high):.4g}]"


NAMED = ((0, 1), (-1, 1))  # ranges that images often come in
FAR = 16  # half widths of the expected range from its middle
NEAR = 1.05  # rounding and interpolation
NARROW = 0.55  # share of the expected range that a half of it does not exceed
# A batch is too dark if all values are in this lowest share of the range, as of 12 bits stored in
# 16; the brightest pixel of a photograph is above it.
DARK = 0.2


def check_dtype(features: Any, dtype: str) -> None:
    """Raises a ValueError for integer images unless features declare or expect such."""
    expected, inputs = value_range(features), getattr(features, "inputs", None)
    takes_pixels = expected is not None and np.allclose(expected, [[0], [255]])
    takes_integers = getattr(features, "integer_images", False) or takes_pixels
    if "int" not in dtype or takes_integers or (inputs and "int" in str(inputs[0].dtype)):
        return
    words = f"in {interval(*expected)}" if expected else "in the range that the model expects"
    if (origin := getattr(features, "preprocessing_origin", "")).startswith("unknown;"):
        words += f" (the preprocessing is {origin})"
    raise ValueError(
        f"Expected float images {words}. To pass integers, set model.preprocessing = "
        "vit_tf.Preprocessing.from_range((height, width), low, high), with num_channels=1 for "
        f"grey images; a function needs the attribute integer_images = True. Received: {dtype} "
        "images for "
        f"{getattr(features, 'name', None) or getattr(features, '__name__', 'features')}"
    )


def check_values(features: Any, images: Any) -> None:
    """Warns of values outside or in a small part of the expected range; an error far beyond it."""
    expected, images = value_range(features), np.asarray(images)
    if expected is None or not images.size:
        return
    low, high = np.min(expected[0]), np.max(expected[1])
    least, most = float(images.min()), float(images.max())
    # How far the values are from the middle of the range, in half widths of it.
    reach = max(abs(least - (low + high) / 2), abs(most - (low + high) / 2)) / ((high - low) / 2)
    is_narrow = least < most <= least + NARROW * (high - low)
    inside = (ends for ends in NAMED if is_narrow and ends[0] <= least and most <= ends[1])
    other = next(inside, None)
    if other is not None and np.allclose(other, (low, high)):
        other = None
    is_dark = least < most <= low + DARK * (high - low)
    if reach <= NEAR and other is None and not is_dark:
        return
    received = f"values from {least:.4g} to {most:.4g} for {features.name}"
    words = f"Expected images with values in {interval(low, high)}. Received: {received}"
    if reach > FAR:
        raise ValueError(words)
    if reach <= NEAR and other is not None:
        words += f", as in {interval(*other)}"
    elif reach <= NEAR:
        words += f", all in the lowest {DARK:.0%}"
    warnings.warn(words, stacklevel=2)


def far_values(features: Any) -> tuple[float, float] | None:
    """The range beyond which `check_values` refuses values: (low, high), or None."""
    expected = value_range(features)
    if expected is None:
        return None
    low, high = np.min(expected[0]), np.max(expected[1])
    middle, half = (low + high) / 2, FAR * (high - low) / 2
    return float(middle - half), float(middle + half)


def require_levels(images: np.ndarray) -> None:
    """Raises a ValueError for images with values outside [0, 255]."""
    if images.dtype == np.uint8:
        return
    images = np.asarray(images)
    if images.size and not 0 <= images.min() <= images.max() <= 255:
        raise ValueError(
            "Expected images with values in [0, 255]. "
            f"Received: values from {images.min()} to {images.max()}"
        )


def require_finite_images(images: Any, first: int = 0) -> None:
    """Raises a ValueError that names the first image with a value that is not finite."""
    images = np.asarray(images)
    if not np.issubdtype(images.dtype, np.floating) or np.isfinite(np.sum(images)):
        return
    finite = np.isfinite(images.reshape(len(images), -1)).all(axis=1)
    if not finite.all():
        place = int(np.argmin(finite))
        values = "NaN" if np.isnan(images[place]).any() else "infinite values"
        raise ValueError(
            f"Expected images with finite values. Received: {values} in {int((~finite).sum())} of "
            f"{len(images)} images, first in image {first + place} of the data (counted from 0)"
        )


def value_range(features: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """The smallest and the largest value of each channel, or None if unknown."""
    return getattr(getattr(features, "preprocessing", None), "value_range", None)


def require_images(received: Iterable, expected: Iterable) -> None:
    """Raises a ValueError unless a shape of images is one that a model takes; None is any size."""
    received, expected = tuple(received), tuple(expected)
    if len(expected) == 3 and received[3:] == (1,):
        received = received[:3]  # of a model of grey images without an axis of channels
    if len(received) == len(expected) and all(
        None in pair or pair[0] == pair[1] for pair in zip(received, expected, strict=True)
    ):
        return
    hint = ""
    if len(received) == len(expected) - 1:
        hint = "; single images need batch(...) or images[None], grey images images[..., None]"
    elif received[-1:] == (1,) and expected[-1:] == (3,):
        hint = "; grey images become colour images by numpy.repeat(images, 3, axis=-1)"
    elif received[-1:] == (3,) and expected[-1:] == (1,):
        hint = "; files become grey images by a Preprocessing with num_channels=1"
    elif len(received) == len(expected) == 4 and received[-1] == expected[-1]:
        hint = (
            "; resize the images, or create the model for their size: "
            f"image_shape={received[1:]}, or vit_tf.at_resolution for trained weights"
        )
    raise ValueError(f"Expected images of shape {expected}. Received: shape {received}{hint}")


def fix_image_shape(images: Any, expected: Sequence[int | None]) -> Any:
    """Images with the static shape of a model's; a size not known yet is checked when it is."""
    if getattr(images.shape, "rank", len(expected)) is not None:
        require_images(images.shape, expected)
        if len(expected) == 3 and len(images.shape) == 4:
            images = images[..., 0]
        if all(
            size is not None
            for size, expected_size in zip(images.shape, expected, strict=True)
            if expected_size
        ):
            return images
    import tensorflow as tf  # only its graphs have shapes that are not known yet

    return tf.ensure_shape(images, expected)


def spec_of_images(model: Any, spec: Any) -> Any:
    """The `TensorSpec` of images, with the sizes that it leaves open where a model fixes them."""
    shape, rank = _shape_of(model), spec.shape.rank
    if shape is None or rank not in (None, 4):
        return spec
    declared_shape = (None,) * 4 if rank is None else tuple(spec.shape)
    sizes = [
        fixed if size is None else size for size, fixed in zip(declared_shape, shape, strict=True)
    ]
    return type(spec)(sizes, spec.dtype, spec.name)


def _shape_of(model: Any) -> tuple[int | None, ...] | None:
    """Shape of the batches of images that a model takes, or None where it does not declare it."""
    shape = getattr(model, "accepted_shape", None) or getattr(model, "input_shape", None)
    return shape if isinstance(shape, tuple) and len(shape) == 4 else None


def require_images_of(model: Any, images: Any, any_size: bool = False) -> None:
    """Raises a ValueError unless images, or their spec, have a model's shape, or its channels."""
    shape = _shape_of(model)
    if shape is None or getattr(images.shape, "rank", 4) is None:
        return
    require_images(images.shape, (None, None, None, shape[-1]) if any_size else shape)
