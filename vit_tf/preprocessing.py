"""What a model expects of its images: their size and how their values are normalised."""

from dataclasses import asdict, dataclass, replace
from numbers import Integral

import numpy as np

from vit_tf.names import lookup

INTERPOLATIONS = ("bilinear", "bicubic")
ORDERS = ("rgb", "bgr")
ROUNDINGS = ("even", "down")


@dataclass(frozen=True)
class Preprocessing:
    """How images become a model's input: resized and cropped, then `(image / 255 - mean) / std`.

    It can be called: `Preprocessing.from_range((224, 224), 0, 1)(image)`.

    Args:
        size: (height, width) in pixels, or None for images of any size, which keep theirs.
        mean, std: mean and standard deviation of each channel, for values in [0, 1]; the default of
            0.5 gives values in [-1, 1].
        interpolation: `"bilinear"` or `"bicubic"`, either antialiased as Pillow does.
        channel_order: `"rgb"`, or `"bgr"` for a model that takes blue first; mean and std are in
            that order.
        crop: None to resize to `size` regardless of the aspect ratio; or the fraction in (0, 1] of
            the shorter side that is kept: the shorter side is resized to `floor(size / crop)`, such
            as 256 for 224 and 0.875, and the centre is cropped.
        crop_rounding: how an offset of half a pixel is rounded: `"even"`, to the nearest even
            number, as torchvision does, or `"down"`, as the image processors of transformers do.

    Raises:
        ValueError: for a value out of its range.
    """

    size: tuple | None
    mean: tuple = (0.5, 0.5, 0.5)
    std: tuple = (0.5, 0.5, 0.5)
    interpolation: str = "bilinear"
    channel_order: str = "rgb"
    crop: float | None = None
    crop_rounding: str = "even"

    def __post_init__(self):
        for name in ("size", "mean", "std"):  # lists, as JSON has them, and arrays
            values = getattr(self, name)
            if values is not None or name != "size":
                values = tuple(x.item() if hasattr(x, "item") else x for x in values)
            object.__setattr__(self, name, values)
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
        if self.crop is not None and (self.size is None or not 0 < self.crop <= 1):
            raise ValueError(
                "Expected crop to be None or, with a size, a fraction in (0, 1]. "
                f"Received: crop={self.crop!r}, size={self.size}"
            )
        lookup("interpolation", self.interpolation, dict.fromkeys(INTERPOLATIONS))
        lookup("channel_order", self.channel_order, dict.fromkeys(ORDERS))
        lookup("crop_rounding", self.crop_rounding, dict.fromkeys(ROUNDINGS))

    @classmethod
    def of(cls, image_shape):
        """Default preprocessing for images of (height, width, channels): values in [-1, 1]."""
        *size, channels = image_shape
        return cls(size, (0.5,) * channels, (0.5,) * channels)

    @classmethod
    def from_range(cls, size, low, high, **others):
        """Preprocessing of RGB images that maps black to `low` and white to `high`.

        Args:
            size: as for `Preprocessing`.
            low, high: numbers, or one for each channel, such as 0 and 255.
            **others: other fields of `Preprocessing`.

        Raises:
            ValueError: if `high` is not above `low`.
        """
        low, high = (np.broadcast_to(np.asarray(x, np.float64), (3,)) for x in (low, high))
        if not (high > low).all():
            raise ValueError(
                f"Expected a range from a low to a high value. Received: {low} to {high}"
            )
        return cls(size, -low / (high - low), 1 / (high - low), **others)

    @classmethod
    def from_config(cls, config):
        """Preprocessing from a dict of `to_config`; a `Preprocessing` is returned as it is."""
        return config if isinstance(config, cls) else cls(**config)

    def to_config(self):
        """The fields as a JSON-serializable dict; newer fields only if they are not the default."""
        fields = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        later = ("channel_order", "crop", "crop_rounding")
        return {k: v for k, v in fields.items() if k not in later or v != getattr(type(self), k)}

    def squeezed(self):
        """The same without cropping, so that annotations of the whole image still apply."""
        return replace(self, crop=None)

    @property
    def value_range(self):
        """The smallest and the largest value of each channel: two float64 arrays."""
        mean, std = np.array(self.mean, np.float64), np.array(self.std, np.float64)
        return -mean / std, (1 - mean) / std

    def describe(self):
        """The values it produces, in words: `"8 x 8 pixels, values in [-1, 1]"`."""
        size = "any size" if self.size is None else f"{self.size[0]} x {self.size[1]} pixels"
        order = "" if self.channel_order == "rgb" else ", blue first"
        crop = "" if self.crop is None else f", centre crop of {self.crop:g}"
        return f"{size}{crop}, values in {interval(*self.value_range)}{order}"

    def __call__(self, images):
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
        from vit_tf.data.imaging import resize_image, scale_values

        images, channels = np.asarray(images), len(self.mean)
        if images.ndim not in (3, 4) or images.shape[-1] not in (1, channels):
            raise ValueError(
                f"Expected images of shape ([example,] height, width, {channels}). "
                f"Received: shape {images.shape}"
            )
        if images.size and not 0 <= images.min() <= images.max() <= 255:
            raise ValueError(
                "Expected images with values in [0, 255]. "
                f"Received: values from {images.min()} to {images.max()}"
            )
        images = np.repeat(images, channels // images.shape[-1], axis=-1).astype(np.float32)
        if self.size is not None:
            how = (self.interpolation, self.crop, self.crop_rounding)
            images = np.asarray(resize_image(images, self.size, *how))
        return np.asarray(scale_values(images, self))


def interval(low, high):
    """A range of values as text: `"[0, 255]"`, and of channels that differ the widest."""
    return f"[{np.min(low):.4g}, {np.max(high):.4g}]"
