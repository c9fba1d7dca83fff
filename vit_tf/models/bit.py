"""BiT ResNet-v2 (Kolesnikov et al. 2020, "Big Transfer", https://arxiv.org/abs/1912.11370)."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from typing import Any

import keras
from keras import layers, ops

from vit_tf.common.backend import Tensor, custom_gradient
from vit_tf.common.names import as_image_shape, as_sizes, lookup, match_sites
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.recorder import Taps
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.model import (
    ConfiguredLayer,
    VisionModel,
    inner_taps,
    run_inner,
    zero_head,
)

UNITS = "the number of units of each stage, such as (3, 4, 6, 3)"
LAST = "channels_last"  # whatever the setting of Keras

register = keras.saving.register_keras_serializable("vit_tf")


@register
class StandardizedConv2D(layers.Conv2D):
    """A convolution whose kernel has zero mean and unit variance per output channel.

    Weight standardisation of Qiao et al. 2019: `(w - mean(w)) / sqrt(var(w) + 1e-10)` over the
    rows, columns and input channels of the kernel.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        **kwargs: Any,
    ):
        # Its scale is normalised away, but weight decay acts on the kernel as it is stored.
        fixed = {"use_bias": False, "data_format": LAST, "kernel_initializer": "lecun_normal"}
        super().__init__(filters, kernel_size, strides, **fixed | kwargs)

    def convolution_op(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        full = ops.cast(kernel, "float32")
        mean, variance = ops.moments(full, axes=(0, 1, 2), keepdims=True)
        standardized = (full - mean) * self.scale(variance)
        return super().convolution_op(inputs, ops.cast(standardized, kernel.dtype))

    def scale(self, variance: Tensor) -> Tensor:
        """What the centred kernel is multiplied by, from its variance."""
        return ops.rsqrt(variance + 1e-10)


@register
class GroupNorm(layers.GroupNormalization):
    """Group normalisation (Wu and He 2018, eq. 1) of maps in float32, with a faster gradient."""

    def call(self, features: Tensor) -> Tensor:
        numbers = (ops.cast(x, "float32") for x in (features, self.gamma, self.beta))
        return ops.cast(_group_norm(self.groups, self.epsilon)(*numbers), self.compute_dtype)


@cache
def _group_norm(groups: int, epsilon: float) -> Callable:
    """`gamma n + beta` of `n = (x - mean(x)) r`, `r = 1 / sqrt(var(x) + epsilon)`.

    Means are over a group of an example. With `d = gamma dy`, the gradient with respect to `x` is
    `r (d - mean(d) - n mean(d n))`: sums of each channel, then, cheaply, those of a group.
    """

    def grouped(sums: Tensor) -> Tensor:
        """Sums of shape (example, channel) as means of each group, repeated for its channels."""
        channels = sums.shape[-1]
        size = channels // groups
        means = ops.mean(ops.reshape(sums, (-1, groups, size)), axis=2, keepdims=True)
        repeated = means * ops.ones((1, 1, size), means.dtype)  # one operation of a graph, not 20
        return ops.reshape(repeated, (-1, 1, 1, channels))

    @custom_gradient
    def normalize(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Callable]:
        _, rows, columns, _ = ops.shape(x)
        count = ops.cast(rows * columns, x.dtype)
        centred = x - grouped(_sums(x) / count)
        over = ops.rsqrt(grouped(_sums(ops.square(centred)) / count) + epsilon)
        scale = over * gamma

        def gradient(*args: Any, upstream: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
            dy = args[0] if upstream is None else upstream
            sums, products = _sums(dy), _sums(dy * centred)
            shift = grouped(sums * gamma) * over / count
            slope = grouped(products * gamma) * over**3 / count
            by_gamma = ops.sum(products * over[:, 0, 0], axis=0)
            return dy * scale - centred * slope - shift, by_gamma, ops.sum(sums, axis=0)

        return centred * scale + beta, gradient

    return normalize


def _sums(x: Tensor) -> Tensor:
    """Sums over rows and columns: float32 of shape (example, channel)."""
    return ops.sum(x, axis=(1, 2))


@register
class Unit(ConfiguredLayer):
    """A pre-activation bottleneck unit; `skip` is `"identity"`, `"projection"` or None."""

    def __init__(self, filters: int, stride: int = 1, skip: str | None = "identity", **kwargs: Any):
        super().__init__({"filters": filters, "stride": stride, "skip": skip}, **kwargs)
        self.filters, self.skip = filters, skip
        conv = partial(self.make, StandardizedConv2D)
        norm = partial(self.make, GroupNorm, 32, epsilon=1e-5)
        self.norm1, self.conv1 = norm(name="norm1"), conv(filters, 1, name="conv1")
        self.norm2, self.conv2 = norm(name="norm2"), conv(filters, 3, stride, name="conv2")
        self.norm3, self.conv3 = norm(name="norm3"), conv(4 * filters, 1, name="conv3")
        if skip == "projection":
            self.projection = conv(4 * filters, 1, stride, name="projection")

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the intermediates, in the order in which they are computed."""
        skip = ("skip",) if self.skip else ()
        return ("norm1", "conv1", "norm2", "conv2", "norm3", *skip, "branch", "sum")

    def build(self, input_shape: Sequence[int | None]) -> None:
        projection = (self.projection,) if self.skip == "projection" else ()
        for layer in (self.norm1, self.conv1, *projection):
            layer.build(input_shape)
        for layer in (self.norm2, self.conv2, self.norm3, self.conv3):
            layer.build((*input_shape[:3], self.filters))

    def call(self, features: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        taps = Taps(self.name.replace("_", "/"))
        first = ops.relu(taps("norm1", self.norm1(features)))
        x = taps("conv1", self.conv1(first))
        x = taps("norm2", self.norm2(x))
        x = taps("conv2", self.conv2(_pad(ops.relu(x), 1)))
        x = taps("norm3", self.norm3(x))
        branch = self.conv3(ops.relu(x))
        if self.skip:
            skip = features if self.skip == "identity" else self.projection(first)
            skip = taps("skip", skip)
        branch = taps("branch", branch)
        taps("sum", skip + branch if self.skip else branch)
        return taps.values


@register
class BiT(VisionModel):
    """A ResNet-v2 with group normalisation and standardised convolutions (Big Transfer).

    The model is called on images of shape (example, height, width, channel), by default with values
    in [-1, 1]. It returns logits of shape (example, num_classes). `submodel` returns any
    intermediate activation (tap) by name.

    Args:
        image_shape: shape (height, width, channels) of the images, in pixels.
        units: number of residual units in each stage.
        width_factor: factor by which every number of channels is multiplied. With 1, the root has
            64 channels.
        num_classes: number of logits. The head is initialized with zeros.
        stem: first layers of the network. `"imagenet"` has a 7x7 convolution and a pooling layer,
            which shrink the image fourfold. `"small"` has a 3x3 convolution, which keeps the size
            of the image. None selects `"small"` for images whose shorter side is below 96 pixels,
            and `"imagenet"` for others.
        without_skips: names of the units or stages whose skip connections are removed, such as
            `"stage2/unit02"`.
        preprocessing: `vit_tf.Preprocessing` of the model's images. None means images with values
            in [-1, 1].

    Raises:
        ValueError: if the sizes are inconsistent, or if a string argument has an unknown value.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (224, 224, 3),
        units: Sequence[int] = (3, 4, 6, 3),
        width_factor: float = 1,
        num_classes: int = 1000,
        *,
        stem: str | None = None,
        without_skips: str | Iterable[str] = (),
        preprocessing: Preprocessing | dict | None = None,
        **kwargs: Any,
    ):
        image_shape = as_image_shape(image_shape)
        units = as_sizes("units", units, UNITS, range(1, 10))
        if stem is None:
            stem = "small" if min(image_shape[:2]) < 96 else "imagenet"
        config = {
            "image_shape": image_shape,
            "units": units,
            "width_factor": width_factor,
            "num_classes": num_classes,
            "stem": stem,
            "without_skips": without_skips,
        }
        super().__init__(config, preprocessing, **{"name": "bit"} | kwargs)
        self.stem, width = stem, round(64 * width_factor)
        if width < 32 or width % 32:
            raise ValueError(
                "Expected 64 * width_factor to be a multiple of the 32 groups of the "
                f"normalisation. Received: width_factor={width_factor}"
            )
        # The grid of the last map: every step of stride 2 is padded so that it rounds up.
        stride = 2 ** (len(units) - 1 + (2 if stem == "imagenet" else 0))
        rows, columns, _ = image_shape
        self.token_grid = TokenGrid(-(-rows // stride), -(-columns // stride), 0, stride)
        policy = self.dtype_policy
        size, stride = lookup("stem", stem, _STEMS)
        self.root = StandardizedConv2D(width, size, strides=stride, dtype=policy, name="root")
        if stem == "imagenet":
            self.pool = layers.MaxPooling2D(3, 2, data_format=LAST, dtype=policy, name="pool")
        removed = match_sites(self.without_skips, unit_sites(units))
        self.units = make_units(Unit, units, width, removed, policy)
        self.norm = GroupNorm(32, epsilon=1e-5, dtype=policy, name="norm")
        self.head = zero_head(num_classes)
        self.build((None, *image_shape))

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of all taps, in depth order."""
        return ("root", *inner_taps(self.units), "norm", "pooled", "logits")

    @property
    def accepted_shape(self) -> tuple[int | None, ...]:
        # Convolutions and the mean over the last map take images of any size.
        return (None, None, None, self.image_shape[-1])

    def intermediates(self, images: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        """Every tap of the forward pass: dict from tap name to tensor, in depth order."""
        taps = {}
        images = self.check_images(images)
        x = self.root(_pad(images, self.root.kernel_size[0] // 2))
        taps["root"] = x = self.pool(_pad(x, 1)) if self.stem == "imagenet" else x
        for unit in self.units:
            x = run_inner(unit, x, taps, training=training)["sum"]
        taps["norm"] = x = self.norm(x)
        taps["pooled"] = x = ops.mean(ops.relu(x), axis=(1, 2))
        taps["logits"] = self.head(x)
        return taps

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.root.build(input_shape)
        shape = (None, None, None, self.root.filters)
        for unit in self.units:
            unit.build(shape)
            shape = (None, None, None, 4 * unit.filters)
        self.norm.build(shape)
        self.head.build((None, shape[-1]))
        self.built = True


def unit_sites(units: Sequence[int]) -> list[str]:
    """Names of the units of so many a stage, in depth order: `"stage1/unit01"`, ..."""
    return [f"stage{s}/unit{u:02d}" for s, n in enumerate(units, 1) for u in range(1, n + 1)]


def make_units(
    kind: type, units: Sequence[int], width: int, removed: Collection[str], policy: Any
) -> list:
    """Layers of a kind of unit, `width` channels in the first stage, but for `removed` skips."""
    places = [(stage, number) for stage, count in enumerate(units) for number in range(count)]
    return [
        kind(
            width * 2**stage,
            stride=2 if stage and not number else 1,
            skip=None if name in removed else "identity" if number else "projection",
            dtype=policy,
            name=name.replace("/", "_"),
        )
        for name, (stage, number) in zip(unit_sites(units), places, strict=True)
    ]


def _pad(features: Tensor, pixels: int) -> Tensor:
    """Zeros on all four sides of maps of shape (example, row, column, channel)."""
    return ops.pad(features, ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0)))


_STEMS = {"imagenet": (7, 2), "small": (3, 1)}

# Kolesnikov et al. 2020, section 3.2; units of He et al. 2016, table 1.
_UNITS = {"R50": (3, 4, 6, 3), "R101": (3, 4, 23, 3), "R152": (3, 8, 36, 3)}
BiT.variants = {
    f"{depth}x{width}": {"units": units, "width_factor": width}
    for depth, units in _UNITS.items()
    for width in ((2, 4) if depth == "R152" else (1, 3))
}
