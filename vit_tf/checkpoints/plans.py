"""How a checkpoint becomes a model: what its family reads off the tensors' names and shapes."""

import re
from dataclasses import dataclass, field

import numpy as np

from vit_tf.checkpoints.filling import Source, identity
from vit_tf.preprocessing import Preprocessing

HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CLIP = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}

MOST_LAYERS, MOST_STAGES = 1000, 10


@dataclass(frozen=True)
class Wishes:
    """What a caller asks for instead of what a file has; None asks for the file's.

    `known_name` is whether the file is one of `list_pretrained`, and so of a published size;
    `resolution` is then that of its images.
    `preprocessing` is set by the caller, `activation`, a form of GELU, by the caller or the name.
    `config` is what `timm_configs.told` read in a folder, which the caller's wishes override;
    `container` the key under which a PyTorch file holds its tensors.
    """

    num_classes: int | None = None
    image_shape: tuple | None = None
    pooling: str | None = None
    num_heads: int | None = None
    known_name: bool = False
    resolution: int | None = None
    preprocessing: Preprocessing | None = None
    activation: str | None = None
    config: dict = field(default_factory=dict)
    container: str | None = None

    def refuse(self, family, *names):
        """Raises a ValueError for a wish that no model of a family can fulfil."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"Expected {name} to be None for a checkpoint of {family}, which leaves no "
                    f"choice. Received: {name}={getattr(self, name)!r}"
                )

    def require_pooling(self, pooling, fc_norm=False):
        """Raises a ValueError unless timm's configuration, if there is one, pools like a file.

        Args:
            pooling: `"cls"`, `"gap"` or `"map"`.
            fc_norm: whether the file normalizes what is pooled.
        """
        told = {name: self.config.get(name) for name in ("pooling", "fc_norm")}
        expected = {"pooling": pooling, "fc_norm": fc_norm}
        if self.config and told != expected:
            raise ValueError(
                f"Expected config.json to pool as its tensors do, {expected}, which is all that is "
                f"supported. Received: {told}"
            )

    def check_heads(self, num_heads, width):
        """Raises a ValueError unless a file's number of heads fits its width, and the wish."""
        if self.num_heads not in (None, num_heads) or width % num_heads:
            raise ValueError(
                f"Expected num_heads to be that of the file, {num_heads}, which divides {width} "
                f"channels. Received: num_heads={self.num_heads}"
            )


@dataclass(frozen=True)
class Part:
    """Arguments and weights of a part of a model, as a file has them; parts are joined by `|`.

    Attributes:
        arguments: those of the model's constructor that the part settles.
        sources: dict from weight name to `Source`.
        unused: shell patterns of tensors that are left out.
        new: shell patterns of weights that the file does not have.
        headless: whether the head is to hand on its input, for lack of one in the file.
    """

    arguments: dict = field(default_factory=dict)
    sources: dict = field(default_factory=dict)
    unused: tuple = ()
    new: tuple = ()
    headless: bool = False

    def __or__(self, other):
        return Part.join([self, other])

    @classmethod
    def join(cls, parts):
        """All parts as one."""
        whole = cls()
        for part in parts:
            whole.arguments.update(part.arguments)
            whole.sources.update(part.sources)
        return cls(
            whole.arguments,
            whole.sources,
            tuple(pattern for part in parts for pattern in part.unused),
            tuple(pattern for part in parts for pattern in part.new),
            any(part.headless for part in parts),
        )

    def renamed(self, old, new):
        """The same part of weights whose names begin with `new` instead of `old`."""
        names = {weight: weight.replace(old, new, 1) for weight in self.sources}
        sources = {names[weight]: source for weight, source in self.sources.items()}
        fresh = tuple(pattern.replace(old, new, 1) for pattern in self.new)
        return Part(self.arguments, sources, self.unused, fresh, self.headless)

    def under(self, prefix):
        """The same part of a file that has a prefix before the names of its tensors."""
        sources = {
            weight: Source({prefix + n: s for n, s in source.tensors.items()}, source.convert)
            for weight, source in self.sources.items()
        }
        unused = tuple(prefix + pattern for pattern in self.unused)
        return Part(self.arguments, sources, unused, self.new, self.headless)


@dataclass(frozen=True)
class Plan:
    """A model to build of a file.

    Attributes:
        model: name of the model's class in `vit_tf`.
        whole: the `Part` that is all of it.
        interpolation: `"bilinear"` or `"bicubic"`, of its images.
        values: mean and std of its images.
        crop, crop_rounding: as of `Preprocessing`; None also where the file does not state.
        positions: how its positions are resampled, a method of `vit_tf.at_resolution`; None for
            the interpolation of its images.
        any_size: whether images may be of any size, which the file then does not state.
        class_names: names of the classes of the file's head; None where it has none.
        size: (height, width) at which the model is opened where the caller asks for none; None
            for that of its file.
    """

    model: str
    whole: Part
    interpolation: str = "bilinear"
    values: dict = field(default_factory=lambda: HALF)
    crop: float | None = None
    positions: str | None = None
    any_size: bool = False
    class_names: tuple | None = None
    crop_rounding: str = "even"
    size: tuple | None = None


def norm_part(layer, scale, bias, width):
    """The `Part` of a normalisation, of the names of its tensors."""
    return Part(
        sources={
            f"{layer}/gamma": Source({scale: (width,)}),
            f"{layer}/beta": Source({bias: (width,)}),
        }
    )


def head_part(tensors, width, wishes, kernel, bias, shape, convert=identity):
    """The `Part` of the head of a model whose last width is `width`.

    It is the file's head, where there is one and no other number of classes is wished for, or a
    new one, or, where there is neither, one that hands on its input.

    Args:
        tensors, wishes: those of the plan.
        width: number of channels that the head reads.
        kernel, bias: names of the file's tensors.
        shape: function of the number of classes to the shape of the file's kernel.
        convert: function of the file's kernel to one of shape (channel, class).
    """
    classes = dims(tensors, bias, 1)[0] if bias in tensors else None
    wished = wishes.num_classes
    if classes is not None and wished in (None, classes):
        sources = {
            "head/kernel": Source({kernel: shape(classes)}, convert),
            "head/bias": Source({bias: (classes,)}),
        }
        return Part({"num_classes": classes}, sources)
    return Part(
        {"num_classes": wished or width},
        unused=(kernel, bias) if classes is not None else (),
        new=("head/*",),
        headless=not wished,
    )


def linear_part(tensors, width, wishes, name):
    """The `Part` of a head as those of DINOv2, of class tokens and the mean of the patches.

    Args:
        tensors, width, wishes: as for `head_part`, which makes a new head.
        name: that of the head in the file.
    """

    def read():
        return dims(tensors, f"{name}.weight", 2)[1]

    names = (f"{name}.weight", f"{name}.bias")
    part = head_part(tensors, width, wishes, *names, lambda n: (n, read()), np.transpose)
    if not part.sources:
        return part
    if read() % width or read() < 2 * width:
        raise ValueError(
            f"Expected {names[0]!r} to read class tokens of {width} channels and the mean of the "
            f"patches. Received: {read()} channels"
        )
    return part | Part({"head_blocks": read() // width - 1})


def dims(tensors, name, axes):
    """The shape of a tensor that determines the size of a model.

    Raises:
        ValueError: if it is missing, or not of `axes` axes above 0.
    """
    if name not in tensors:
        raise ValueError(
            f"Expected a tensor {name!r}, which determines the size of the model. "
            f"Received: {first_names(tensors)}"
        )
    shape = tensors[name].shape
    if len(shape) != axes or min(shape, default=1) < 1:
        raise ValueError(
            f"Expected the tensor {name!r} to have {axes} axes, all above 0. Received: {shape}"
        )
    return shape


def first_names(tensors, count=6):
    """The first names of a file's tensors, and how many more there are."""
    names = sorted(tensors)
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(ascii(name) for name in names[:count]) + more


def count(tensors, pattern):
    """Number of different numbers that the group of a regular expression takes in the names."""
    found = (re.match(pattern, name) for name in tensors)
    return few(len({match[1] for match in found if match}), MOST_LAYERS, "layers")


def count_units(tensors, pattern):
    """Number of units of each stage, of a regular expression with a group for either number."""
    stages = {}
    for match in (re.match(pattern, name) for name in tensors):
        if match:
            stages.setdefault(match[1], set()).add(match[2])
    few(len(stages), MOST_STAGES, "stages")
    units = [len(stages.get(str(stage), ())) for stage in range(1, len(stages) + 1)]
    return tuple(few(depth, MOST_LAYERS, "units") for depth in units)


def few(number, most, what):
    """The number, if a model may have as many; a file's names alone could make it any."""
    if number > most:
        raise ValueError(f"Expected at most {most} {what}. Received: {number}")
    return number


def square(tensors, kernel, rows, columns):
    """The side of a patch, from the two sizes of its kernel."""
    if rows != columns:
        raise ValueError(
            f"Expected the tensor {kernel!r} to be of square patches. "
            f"Received: {tensors[kernel].shape}"
        )
    return rows
