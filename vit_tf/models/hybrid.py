"""Vision Transformers with a ResNet in front (Dosovitskiy et al. 2020, section 3.1).

The ResNet's units are those of He et al. 2015 (https://arxiv.org/abs/1512.03385, figure 5),
normalised after each convolution, with the group normalisation and standardised kernels of BiT.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import keras
from keras import layers, ops

from vit_tf.common.backend import Tensor
from vit_tf.common.names import as_sizes, match_sites
from vit_tf.features.recorder import Taps
from vit_tf.models.bit import LAST, UNITS, GroupNorm, StandardizedConv2D, make_units, unit_sites
from vit_tf.models.model import ConfiguredLayer, inner_taps, run_inner
from vit_tf.models.vit import SIZES, ViT

register = keras.saving.register_keras_serializable("vit_tf")

_WIDTH = 64


@register
class HybridViT(ViT):
    """A Vision Transformer whose patches are cut from the last feature map of a ResNet, its stem.

    Args:
        image_shape: shape (height, width, channels) of the images, in pixels. Height and width must
            be multiples of `patch_size` times the stride of the stem.
        patch_size: side of a patch, in positions of the feature map.
        stem_units: number of units in each stage of the ResNet. `()` means a stem without stages
            (the root only).
        *sizes, **options: as for `ViT`. In `without_skips`, units of the stem can be named too,
            such as `"stage2/unit02"`.

    Raises:
        ValueError: as for `ViT`, and if `stem_units` are not sizes.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (224, 224, 3),
        patch_size: int = 1,
        *sizes: Any,
        stem_units: Sequence[int] = (3, 4, 9),
        **options: Any,
    ):
        self.stem_units = as_sizes("stem_units", stem_units, UNITS)
        super().__init__(image_shape, patch_size, *sizes, **options)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"stem_units": self.stem_units}

    @property
    def stem_stride(self) -> int:
        """Pixels of the image from one position of the stem's last map to the next."""
        return stem_stride(self.stem_units)

    @property
    def skip_sites(self) -> list[str]:
        return [*unit_sites(self.stem_units), *super().skip_sites]

    @property
    def first_taps(self) -> tuple[str, ...]:
        return (*self.stem.taps, *super().first_taps)

    @property
    def patch_kernel(self) -> None:
        return None

    def add_embedding(self, hidden_dim: int, dropout_rate: float, **options: Any) -> None:
        removed = match_sites(self.without_skips, self.skip_sites)
        without = sorted(removed.intersection(unit_sites(self.stem_units)))
        self.stem = ResNetStem(self.stem_units, without, dtype=self.dtype_policy, name="stem")
        super().add_embedding(hidden_dim, dropout_rate, **options)

    def run_stem(self, images: Tensor, taps: dict[str, Tensor], training: bool | None) -> Tensor:
        """The last feature map of the stem, whose taps are added to `taps`."""
        inside = self.stem(images, training=training)
        taps |= {tap: inside[tap] for tap in self.stem.taps}
        return inside["features"]

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.stem.build(input_shape)
        super().build((None, None, None, self.stem.channels))


def stem_stride(units: Sequence[int]) -> int:
    """Pixels of the image from one position of a stem's last map to the next."""
    return 4 * 2 ** max(len(units) - 1, 0)


@register
class ScaledConv2D(StandardizedConv2D):
    """A convolution whose kernel has zero mean and unit deviation per output channel.

    `(w - mean(w)) / (std(w) + 1e-5)` over the rows, columns and input channels of the kernel.
    Padded to round up: by the smaller half in front, as flax and TensorFlow do.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "same",
        **kwargs: Any,
    ):
        super().__init__(filters, kernel_size, strides, padding=padding, **kwargs)

    def scale(self, variance: Tensor) -> Tensor:
        return 1 / (ops.sqrt(variance) + 1e-5)


_norm = partial(GroupNorm, 32, epsilon=1e-6)


@register
class PostNormUnit(ConfiguredLayer):
    """A bottleneck unit of He et al.; `skip` is `"identity"`, `"projection"` or None."""

    def __init__(self, filters: int, stride: int = 1, skip: str | None = "identity", **kwargs: Any):
        super().__init__({"filters": filters, "stride": stride, "skip": skip}, **kwargs)
        self.filters, self.skip = filters, skip
        conv, norm = partial(self.make, ScaledConv2D), partial(self.make, _norm)
        self.conv1, self.norm1 = conv(filters, 1, name="conv1"), norm(name="norm1")
        self.conv2, self.norm2 = conv(filters, 3, stride, name="conv2"), norm(name="norm2")
        self.conv3 = conv(4 * filters, 1, name="conv3")
        self.norm3 = norm(name="norm3", gamma_initializer="zeros")
        if skip == "projection":
            self.projection = conv(4 * filters, 1, stride, name="projection")
            self.projection_norm = norm(name="projection_norm")

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the intermediates, in the order in which they are computed."""
        skip = ("skip",) if self.skip else ()
        return ("conv1", "hidden1", "conv2", "hidden2", "conv3", *skip, "branch", "sum")

    def build(self, input_shape: Sequence[int | None]) -> None:
        inside, outside = ((*input_shape[:3], n * self.filters) for n in (1, 4))
        self.conv1.build(input_shape)
        for layer in (self.norm1, self.conv2, self.norm2, self.conv3):
            layer.build(inside)
        self.norm3.build(outside)
        if self.skip == "projection":
            self.projection.build(input_shape)
            self.projection_norm.build(outside)

    def call(self, features: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        taps = Taps(self.name.replace("_", "/"))
        x = taps("conv1", self.conv1(features))
        x = taps("hidden1", ops.relu(self.norm1(x)))
        x = taps("conv2", self.conv2(x))
        x = taps("hidden2", ops.relu(self.norm2(x)))
        x = taps("conv3", self.conv3(x))
        branch = self.norm3(x)
        if self.skip:
            projected = self.skip == "projection"
            skip = self.projection_norm(self.projection(features)) if projected else features
            skip = taps("skip", skip)
        branch = taps("branch", branch)
        taps("sum", skip + branch if self.skip else branch)
        return taps.values


@register
class ResNetStem(ConfiguredLayer):
    """A root that shrinks the image fourfold, then stages of units, each but the first by two."""

    def __init__(self, units: Sequence[int], removed: Collection[str] = (), **kwargs: Any):
        super().__init__({"units": tuple(units), "removed": tuple(removed)}, **kwargs)
        policy = self.dtype_policy
        self.root = ScaledConv2D(_WIDTH, 7, strides=2, dtype=policy, name="root")
        self.root_norm = _norm(dtype=policy, name="root_norm")
        self.pool = layers.MaxPooling2D(
            3, 2, padding="same", data_format=LAST, dtype=policy, name="pool"
        )
        self.units = make_units(PostNormUnit, units, _WIDTH, removed, policy)

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the intermediates, in depth order."""
        return ("root", *inner_taps(self.units))

    @property
    def channels(self) -> int:
        """Number of channels of the last map."""
        return 4 * self.units[-1].filters if self.units else _WIDTH

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.root.build(input_shape)
        shape = (None, None, None, _WIDTH)
        self.root_norm.build(shape)
        for unit in self.units:
            unit.build(shape)
            shape = (None, None, None, 4 * unit.filters)

    def call(self, images: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        taps = Taps()
        x = taps("root", self.pool(ops.relu(self.root_norm(self.root(images)))))
        for unit in self.units:
            x = ops.relu(run_inner(unit, x, taps.values, training=training)["sum"])
        return taps.values | {"features": x}


# Steiner et al. 2021 (AugReg), table 1, and Dosovitskiy et al. 2020, section 3.1 (R50+ViT-B/16).
# R+Ti/16 is named after a root of stride 2; that of its checkpoint has stride 4, its tokens 32.
HybridViT.variants = {
    "R+Ti/16": {**SIZES["Ti"], "patch_size": 8, "stem_units": ()},
    "R26+S/32": {**SIZES["S"], "patch_size": 1, "stem_units": (2, 2, 2, 2)},
    "R50+ViT-B/16": {**SIZES["B"], "patch_size": 1, "stem_units": (3, 4, 9)},
    "R50+L/32": {**SIZES["L"], "patch_size": 1, "stem_units": (3, 4, 6, 3)},
}
