"""What a model expects of its images: their size and how their values are normalised."""

from dataclasses import asdict, dataclass
from numbers import Integral

from vit_tf.names import choose

INTERPOLATIONS = ("bilinear", "bicubic")


@dataclass(frozen=True)
class Preprocessing:
    """How images become a model's input: resized, then `(image / 255 - mean) / std`.

    Args:
        size: (height, width) in pixels.
        mean, std: what each channel is shifted and divided by, for values in [0, 1]; the default
            of 0.5 gives values in [-1, 1].
        interpolation: `"bilinear"` or `"bicubic"`, either antialiased as Pillow does.

    Raises:
        ValueError: for a value out of its range.
    """

    size: tuple
    mean: tuple = (0.5, 0.5, 0.5)
    std: tuple = (0.5, 0.5, 0.5)
    interpolation: str = "bilinear"

    def __post_init__(self):
        for name in ("size", "mean", "std"):  # lists, as JSON has them, and arrays
            values = tuple(x.item() if hasattr(x, "item") else x for x in getattr(self, name))
            object.__setattr__(self, name, values)
        if len(self.size) != 2 or not all(isinstance(n, Integral) and n > 0 for n in self.size):
            raise ValueError(
                "Expected size to be (height, width), two integers above 0. "
                f"Received: size={self.size}"
            )
        if len(self.mean) != len(self.std) or not all(std > 0 for std in self.std):
            raise ValueError(
                "Expected mean and std to have one number for each channel, std above 0. "
                f"Received: mean={self.mean}, std={self.std}"
            )
        choose("interpolation", self.interpolation, dict.fromkeys(INTERPOLATIONS))

    @classmethod
    def of(cls, image_shape):
        """The default of a model for images of (height, width, channels): values in [-1, 1]."""
        *size, channels = image_shape
        return cls(size, (0.5,) * channels, (0.5,) * channels)

    @classmethod
    def from_config(cls, config):
        """The preprocessing of a dict that `to_config` returned, or the one that is given."""
        return config if isinstance(config, cls) else cls(**config)

    def to_config(self):
        """A dict that JSON can hold."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
