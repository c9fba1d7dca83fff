"""From the tensors of a checkpoint to the weights of a model: tables, checks and assignment.

A table has a row for each layer: its name in the file, its path in our model, its kind and its
sizes. For example, the row

    mlp.fc1  expand  linear  D 4D

maps the tensors `mlp.fc1.weight` and `mlp.fc1.bias` to the weights `expand/kernel` and
`expand/bias`. A kind is a function in `TORCH` or `FLAX` that defines how tensors become weights. A
letter is a size, whose number is an argument of `read_table`. The last section of this module maps
position embeddings and prefix tokens, which have no table.
"""

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from string import digits
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from einops import rearrange

from vit_tf.checkpoints.archives import CheckpointFile, TensorInfo
from vit_tf.common.names import format_list
from vit_tf.data.preprocessing import HALF, Preprocessing
from vit_tf.features.tokens import TokenGrid

# Converters accept this many layers, since a file could state any number (see `at_most`).
MOST_LAYERS = 1000
CONSTANT_TOLERANCE = 0.01  # relative, of values that some files have in bfloat16
QKV = ("query", "key", "value")
# Heads by width and number of layers, which no tensor's shape shows: those of published sizes.
HEADS = {
    (192, 12): 3,
    (384, 12): 6,
    (512, 12): 8,
    (768, 12): 12,
    (1024, 24): 16,
    (1280, 32): 16,
    (1536, 40): 24,
}
# The same of CLIP (OpenAI, open_clip and timm 1.0.31).
CLIP_HEADS = HEADS | {(896, 12): 14, (1408, 40): 16, (1664, 48): 16}


# Function from the arrays of a file's tensors to the array of a weight.
Convert: TypeAlias = Callable[..., np.ndarray]


class Transform(NamedTuple):
    """Tensors of a file and the function that computes a weight from them, but never writes."""

    tensors: dict[str, tuple[int, ...]]  # from the name of a tensor to its expected shape
    convert: Convert = np.asarray


# What a file's headers declare, by the names of its tensors.
Tensors: TypeAlias = Mapping[str, TensorInfo]
# Variables of a model, by their paths.
Variables: TypeAlias = Mapping[str, Any]
# The name of a layer in the file, its path in our model and its sizes, to its weights.
LayerKind: TypeAlias = Callable[..., dict[str, Transform]]
Kinds: TypeAlias = Mapping[str, LayerKind]
# Numbers of the letters that stand for sizes in a table.
Sizes: TypeAlias = Mapping[str, int]


@dataclass(frozen=True)
class LoadOptions:
    """What a caller asks for in place of what a file has; None asks for the file's."""

    num_classes: int | None = None
    image_shape: tuple | None = None
    pooling: str | None = None
    num_heads: int | None = None
    known_name: bool = False  # one of `list_pretrained`, and so of a published size
    resolution: int | None = None  # of the images of a known name
    preprocessing: Preprocessing | None = None
    activation: str | None = None  # form of GELU
    config: dict = field(default_factory=dict)  # of `read_timm_config`; options take precedence
    container: str | None = None  # key under which a PyTorch file holds its tensors

    def refuse(self, family: str, *names: str) -> None:
        """Raises a ValueError for an option that no model of a family has."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"Expected {name} to be None for a checkpoint of {family}, where it is "
                    f"fixed. Received: {name}={getattr(self, name)!r}"
                )

    def require_pooling(self, pooling: str, fc_norm: bool = False) -> None:
        """Raises a ValueError unless timm's configuration, if there is one, pools like a file."""
        configured = {name: self.config.get(name) for name in ("pooling", "fc_norm")}
        expected = {"pooling": pooling, "fc_norm": fc_norm}
        if self.config and configured != expected:
            raise ValueError(
                f"Expected the pooling of config.json to match the tensors, {expected}, the "
                f"only supported pooling. Received: {configured}"
            )

    def check_heads(self, num_heads: int, width: int) -> None:
        """Raises a ValueError unless a file's number of heads fits its width, and the option."""
        if self.num_heads not in (None, num_heads) or width % num_heads:
            raise ValueError(
                f"Expected the file's number of heads to divide its {width} channels, and "
                f"num_heads to be None or the same. Received: {num_heads} heads in the file, "
                f"num_heads={self.num_heads}"
            )


@dataclass(frozen=True)
class WeightMap:
    """Arguments and weights of a part of a model, as a file has them; parts are joined by `|`."""

    arguments: dict = field(default_factory=dict)  # of the model's constructor
    weights: dict = field(default_factory=dict)  # from the name of a weight to its `Transform`
    unused_tensors: tuple = ()  # shell patterns of tensors that are left out
    new_weights: tuple = ()  # shell patterns of weights that the file does not have
    # Whether the head returns its input: the file has no head, or num_classes is 0.
    identity_head: bool = False
    # From the name of a tensor to the values that every file of the architecture has there.
    constants: dict = field(default_factory=dict)

    def __or__(self, other: "WeightMap | dict") -> "WeightMap":
        other = WeightMap(other) if isinstance(other, dict) else other
        return WeightMap(
            self.arguments | other.arguments,
            self.weights | other.weights,
            self.unused_tensors + other.unused_tensors,
            self.new_weights + other.new_weights,
            self.identity_head or other.identity_head,
            self.constants | other.constants,
        )

    def renamed(self, old: str, new: str) -> "WeightMap":
        """A copy of the map with weights whose names begin with `new` instead of `old`."""

        def rename(name: str) -> str:
            return new + name.removeprefix(old) if name.startswith(old) else name

        weights = {rename(name): transform for name, transform in self.weights.items()}
        return replace(self, weights=weights, new_weights=tuple(map(rename, self.new_weights)))

    def under(self, prefix: str) -> "WeightMap":
        """A copy of the map for a file with a prefix before the names of its tensors."""
        weights = {
            name: Transform(
                {prefix + t: shape for t, shape in transform.tensors.items()}, transform.convert
            )
            for name, transform in self.weights.items()
        }
        constants = {prefix + name: values for name, values in self.constants.items()}
        unused = tuple(prefix + name for name in self.unused_tensors)
        return replace(self, weights=weights, unused_tensors=unused, constants=constants)


@dataclass(frozen=True)
class Conversion:
    """A model to build from a file."""

    model: str  # name of its class in `vit_tf`
    mapping: WeightMap
    interpolation: str = "bilinear"  # resizes its images
    values: dict = field(default_factory=lambda: HALF)  # mean and std of pixel values in [0, 1]
    crop: float | None = None  # as in `Preprocessing`, like `crop_rounding` and `aspect`
    # Resampling of position embeddings, as `method` of `at_resolution`; None for `interpolation`.
    position_method: str | None = None
    any_size: bool = False  # whether images may be of any size
    class_names: tuple | None = None  # of the file's head
    crop_rounding: str = "even"
    aspect: str | None = None
    processor_size: tuple | None = None  # (height, width) of the image processor, if there is one


class Family(NamedTuple):
    """A family of files: its name, a test of tensors' names, and what converts such a file."""

    name: str
    recognise: Callable[[Tensors], bool]
    convert: Callable[[Tensors, LoadOptions], Conversion]
    # Whether the tensors leave the form of GELU open, so that the caller or the name specifies it.
    accepts_activation: bool = False


# The kinds of layers. Each is a function from a row (the name of a layer in the file, its path in
# our model, its sizes) to the `Transform` of each weight.


def no_bias(*shape: int) -> Transform:
    """The `Transform` of a bias that a file does not have: zero."""
    return Transform({}, partial(np.zeros, shape, "float32"))


def _join(name: str, end: str, dot: str) -> str:
    """The name of a tensor of a layer; some layers, as `in_proj_`, have no dot before the end."""
    return name + end if name.endswith("_") else f"{name}{dot}{end}"


def _layer(sizes: str, *rows: tuple[str, str | None, str], dot: str = ".") -> LayerKind:
    """Builds a layer kind.

    `sizes` names the sizes in a row of a table: `h=w` is one number for two axes, and `...` stands
    for all numbers before the last. Each of `rows` is (weight, end of the tensor's name, pattern of
    einops from the tensor's axes to the weight's). The end is None for zeros, and a pattern without
    an arrow keeps the axes.

    Example: the kind `_layer("i o", ("kernel", "weight", "o i -> i o"))` and the sizes `D M` of the
    row `fc1  expand  KIND  D M` map the tensor `fc1.weight`, of shape (M, D), to the weight
    `expand/kernel`, of shape (D, M).
    """

    def kind(name: str, path: str, *numbers: int) -> dict[str, Transform]:
        lengths = _axis_lengths(sizes.split(), numbers)
        weights = {}
        for weight, end, pattern in rows:
            axes, _, rearranged = pattern.partition(" -> ")
            shape = sum((lengths[axis] for axis in axes.split()), ())
            convert = partial(rearrange, pattern=pattern) if rearranged else np.asarray
            stored = Transform({_join(name, end, dot): shape}, convert) if end else None
            weights[f"{path}/{weight}"] = stored or no_bias(*shape)
        return weights

    return kind


def _axis_lengths(names: list[str], numbers: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The lengths of the axes in a pattern; `...` may have several, and "1" has one."""
    if names[0] == "...":
        return {"1": (1,), "...": numbers[:-1], names[1]: numbers[-1:]}
    pairs = zip(names, numbers, strict=True)
    return {"1": (1,)} | {axis: (number,) for axes, number in pairs for axis in axes.split("=")}


def _same(name: str, path: str, *shape: int) -> dict[str, Transform]:
    return {path: Transform({name: shape})}


def side_by_side(*arrays: np.ndarray) -> np.ndarray:
    """Kernels or biases of a gate and what it gates, concatenated along the units."""
    axes = "part o i -> i (part o)" if arrays[0].ndim == 2 else "part o -> (part o)"
    return rearrange(list(arrays), axes)


def _fused(
    name: str, paths: str, width: int, ends: tuple[str, ...] = ("weight", "bias")
) -> dict[str, Transform]:
    """Layers that the file has as one, `query,key,value`; its kernel is (output, input)."""
    layers = paths.split(",")
    weights = {}
    for i, path in enumerate(layers):
        for end in ends:
            shape = (len(layers) * width, width)[: 2 if end == "weight" else 1]
            convert = partial(_part, index=i, count=len(layers))
            weight = f"{path}/{'kernel' if end == 'weight' else 'bias'}"
            weights[weight] = Transform({_join(name, end, "."): shape}, convert)
    return weights


def _part(fused: np.ndarray, index: int, count: int) -> np.ndarray:
    axes = "(part o) i -> part i o" if fused.ndim == 2 else "(part o) -> part o"
    return rearrange(fused, axes, part=count)[index]


def _gate(
    names: str, path: str, inputs: int, hidden: int, bias: bool = True
) -> dict[str, Transform]:
    """Layers of a gate and what it gates, `gate,value`, concatenated along the units."""
    kernels = {f"{name}.weight": (hidden, inputs) for name in names.split(",")}
    biases = Transform({f"{name}.bias": (hidden,) for name in names.split(",")}, side_by_side)
    return {
        f"{path}/kernel": Transform(kernels, side_by_side),
        f"{path}/bias": biases if bias else no_bias(2 * hidden),
    }


_KERNEL, _BIAS = ("kernel", "weight", "o i -> i o"), ("bias", "bias", "o")
_NORM = _layer("c", ("gamma", "weight", "c"), ("beta", "bias", "c"))
_CONV = ("kernel", "weight", "o i h w -> h w i o")
# In PyTorch's layouts.
TORCH = {
    "same": _same,
    "zeros": lambda name, path, width: {path: no_bias(width)},
    "norm": _NORM,
    "kernel": _layer("i o", _KERNEL),
    "linear": _layer("i o", _KERNEL, _BIAS),
    "unbiased": _layer("i o", _KERNEL, ("bias", None, "o")),
    "linear_1x1": _layer("i o", ("kernel", "weight", "o i 1 1 -> i o"), _BIAS),
    "conv_kernel": _layer("i o h=w", _CONV),
    "conv": _layer("i o h=w", _CONV, _BIAS),
    "fused": _fused,
    "fused_kernels": partial(_fused, ends=("weight",)),
    "fused_unbiased": lambda name, paths, width: (
        _fused(name, paths, width, ("weight",))
        | {f"{path}/bias": no_bias(width) for path in paths.split(",")}
    ),
    "fused_without_key_bias": lambda name, paths, width: {
        path: transform
        for path, transform in _fused(name, paths, width).items()
        if not path.endswith("key/bias")
    },
    "gate": _gate,
    "gate_unbiased": partial(_gate, bias=False),
}


_flax = partial(_layer, dot="/")
# In flax's layouts, with the names of Google's files; a layer's last axis is that of its units.
FLAX = {
    "same": _same,
    "norm": _flax("c", ("gamma", "scale", "c"), ("beta", "bias", "c")),
    "long_norm": _flax("c", ("gamma", "scale", "1 1 1 c -> c"), ("beta", "bias", "1 1 1 c -> c")),
    "group_norm": _flax("c", ("gamma", "gamma", "c"), ("beta", "beta", "c")),
    "kernel": _flax("... o", ("kernel", "kernel", "... o")),
    "linear": _flax("... o", ("kernel", "kernel", "... o"), ("bias", "bias", "o")),
    "linear_1x1": _flax("i o", ("kernel", "kernel", "1 1 i o -> i o"), ("bias", "bias", "o")),
    # Projections to the channels of heads, and from these.
    "to_heads": _flax(
        "i head c",
        ("kernel", "kernel", "i head c -> i (head c)"),
        ("bias", "bias", "head c -> (head c)"),
    ),
    "from_heads": _flax(
        "head c o", ("kernel", "kernel", "head c o -> (head c) o"), ("bias", "bias", "o")
    ),
}


def read_table(
    table: str, kinds: Kinds, sizes: Sizes, name: str = "{}", path: str = "{}"
) -> WeightMap:
    """The `WeightMap` of a table; each row fills `{}` in `name` and `path` with its own."""
    weights = {}
    rows = (line.split() for line in table.splitlines() if line.strip())
    for row_names, row_paths, kind, *row_sizes in rows:
        numbers = [_parse_size(text, sizes) for text in row_sizes]
        weights |= kinds[kind](_fill_each(name, row_names), _fill_each(path, row_paths), *numbers)
    return WeightMap(weights=weights)


def _parse_size(text: str, sizes: Sizes) -> int:
    """The size that a number, a letter, or both, such as "4I", stand for."""
    letter = text.lstrip(digits)
    return int(text.removesuffix(letter) or 1) * (sizes[letter] if letter else 1)


def _fill_each(template: str, names: str) -> str:
    """The template filled with each of some names, such as `query,key,value`."""
    return ",".join(template.format(name) for name in names.split(","))


def read_blocks(
    table: str,
    kinds: Kinds,
    sizes: Sizes,
    name: str,
    layers: int,
    path: str = "block#/",
    first: int = 0,
) -> WeightMap:
    """The `WeightMap` of so many blocks; `#` in `name` and `path` stands for a block's number."""
    weights = {}
    for i in range(layers):
        ends = (name.replace("#", str(i + first)) + "{}", path.replace("#", f"{i:02d}") + "{}")
        weights |= read_table(table, kinds, sizes, *ends).weights
    return WeightMap(weights=weights)


def ends_map(table: str, width: int, patch: int = 0, channels: int = 0, **more: int) -> WeightMap:
    """The `WeightMap` of layers outside of the blocks.

    With `patch`, it has the arguments `patch_size` and `hidden_dim` too.
    """
    mapping = read_table(table, TORCH, {"C": channels, "D": width, "P": patch} | more)
    return mapping | ({"patch_size": patch, "hidden_dim": width} if patch else {})


def unstack(mapping: WeightMap, index: int, layers: int) -> WeightMap:
    """The map of one layer of tensors that are stacked over depth."""

    def of_layer(convert: Convert) -> Convert:
        return lambda *arrays: convert(*(array[index] for array in arrays))

    weights = {}
    for name, transform in mapping.weights.items():
        tensors = {tensor: (layers, *shape) for tensor, shape in transform.tensors.items()}
        weights[name] = Transform(tensors, of_layer(transform.convert))
    return WeightMap(weights=weights)


def head_map(
    tensors: Tensors,
    width: int,
    options: LoadOptions,
    name: str,
    kinds: Kinds = TORCH,
    kind: str = "linear",
) -> WeightMap:
    """The file's head, or a new one for another number of classes; without either, the identity."""
    bias = f"{name}{_separator(kinds)}bias"
    classes = dims(tensors, bias, 1)[0] if bias in tensors else None
    requested = options.num_classes
    weights = {} if classes is None else kinds[kind](name, "head", width, classes)
    if classes is not None and requested in (None, classes):
        return WeightMap({"num_classes": classes}, weights)
    return WeightMap(
        {"num_classes": requested or width},
        unused_tensors=tuple(
            tensor for transform in weights.values() for tensor in transform.tensors
        ),
        new_weights=("head/*",),
        identity_head=not requested,
    )


def _separator(kinds: Kinds) -> str:
    """The separator between a layer and its tensor in names of PyTorch or of flax."""
    return "." if kinds is TORCH else "/"


def tanh_head_map(
    tensors: Tensors, width: int, options: LoadOptions, layer: str, kinds: Kinds = TORCH
) -> WeightMap:
    """The head, and the tanh layer before it, which is left out with a head that is replaced."""
    layer_prefix = layer + _separator(kinds)
    if f"{layer_prefix}bias" not in tensors:
        return head_map(tensors, width, options, "head", kinds)
    units = dims(tensors, f"{layer_prefix}bias", 1)[0]
    head = head_map(tensors, units, options, "head", kinds)
    # A new head, unlike that of the file, does not follow the tanh layer.
    if head.new_weights and options.num_classes is not None:
        head = head_map(tensors, width, options, "head", kinds)
        return head | WeightMap(unused_tensors=(f"{layer_prefix}*",))
    before = read_table(f"{layer} pre_logits linear D R", kinds, {"D": width, "R": units})
    return before | {"representation_dim": units} | head


def two_heads_map(
    tensors: Tensors, width: int, options: LoadOptions, head: str, distillation_head: str
) -> WeightMap:
    """The head of the class token and that of the token of distillation."""
    other = head_map(tensors, width, options, distillation_head)
    both = head_map(tensors, width, options, head) | other.renamed("head/", "distillation_head/")
    return both | {"distillation": "heads"}


def module_only_message(architecture: str = "NAME") -> str:
    """The part of an error that shows the code to measure a model as a module of timm."""
    call = f"timm.create_model({architecture!r}, pretrained=True)"
    return f"can be measured as a PyTorch module only: vit_tf.analysis.cka({call}, images)"


def embedding_head(*args: Any, **kwargs: Any) -> WeightMap:
    """`head_map` for a model that returns its embedding if there is no head."""
    head = head_map(*args, **kwargs)
    if not head.identity_head:
        return head
    return replace(head, arguments={"num_classes": None}, identity_head=False)


def new_head_map(width: int, options: LoadOptions, head_input: str) -> WeightMap:
    """A new head for a file whose own head takes an unsupported input."""
    if options.num_classes is None:
        raise ValueError(
            "Expected num_classes for a new head, or 0 for features: the head of the file "
            f"takes {head_input}, which no model of vit_tf supports. vit_tf.analysis.cka(module, "
            "images) measures the PyTorch module with its head. Received: num_classes=None"
        )
    return head_map({}, width, options, "head")


def beit_end(
    tensors: Tensors, width: int, options: LoadOptions, norm: str, averaged: bool, head: str
) -> WeightMap:
    """The last norm, which follows average pooling if `averaged`, and the head of a BEiT."""
    pooling = options.pooling or ("gap" if averaged else "cls")
    path = "fc_norm" if pooling == "gap" else "norm"
    end = ends_map(f"{norm} {path} norm D", width) | {"pooling": pooling}
    return end | head_map(tensors, width, options, head)


def find_prefix(tensors: Tensors, prefixes: Iterable[str], start: str) -> str | None:
    """The first prefix for which some name starts with the prefix and `start`, or None."""
    return next((p for p in prefixes if any(n.startswith(f"{p}{start}") for n in tensors)), None)


def without_prefix(tensors: Tensors, prefix: str) -> dict:
    """The tensors whose names begin with a prefix, by their names without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def dims(tensors: Tensors, name: str, axes: int) -> tuple:
    """The shape of a tensor that determines the size of a model; a ValueError if it is unfit."""
    if name not in tensors:
        raise ValueError(
            f"The checkpoint has no tensor {name!r}, which determines the size of the model. "
            f"It has: {format_list(sorted(tensors))}"
        )
    shape = tensors[name].shape
    if len(shape) != axes or min(shape, default=1) < 1:
        raise ValueError(
            f"Expected the tensor {name!r} to have {axes} axes of length 1 or more. "
            f"Received: {shape}"
        )
    return shape


def patch_dims(tensors: Tensors, kernel: str) -> tuple:
    """(width, channels of the image, side of a patch) of a kernel of patches in torch's layout."""
    width, channels, *patch = dims(tensors, kernel, 4)
    return width, channels, square(tensors, kernel, *patch)


def count_layers(tensors: Tensors, pattern: str = r"blocks\.(\d+)\.") -> int:
    """Number of different numbers that the group of a regular expression takes in the names."""
    matches = (re.match(pattern, name) for name in tensors)
    return len({match[1] for match in matches if match})


def count_units(tensors: Tensors, pattern: str, first: int = 1) -> tuple:
    """Number of units of each stage; `pattern` has two groups, the numbers of stage and unit."""
    stages = {}
    for match in (re.match(pattern, name) for name in tensors):
        if match:
            stages.setdefault(match[1], set()).add(match[2])
    return tuple(len(stages.get(str(stage + first), ())) for stage in range(len(stages)))


def at_most(number: int, most: int, unit: str) -> int:
    """The number, if a model may have as many; a file's names alone could make it any."""
    if number > most:
        raise ValueError(f"Expected at most {most} {unit}. Received: {number}")
    return number


def square(tensors: Tensors, kernel: str, rows: int, columns: int) -> int:
    """The side of a patch, from the two sizes of its kernel."""
    if rows != columns:
        raise ValueError(
            f"Expected the tensor {kernel!r} to have square patches. "
            f"Received: {tensors[kernel].shape}"
        )
    return rows


def fill(variables: Variables, archive: CheckpointFile, mapping: WeightMap) -> None:
    """Assigns every weight, after `check`, reading each tensor once; a ValueError if not finite."""
    check(archive, mapping, variables)
    for name, expected in mapping.constants.items():
        values = archive.read(name)
        if values.shape != expected.shape or not np.allclose(values, expected, CONSTANT_TOLERANCE):
            raise ValueError(
                f"Expected the tensor {name!r} of {archive.path!r} to have the only supported "
                f"values, {_shown(expected)}. Received: {_shown(values)}"
            )
    groups = {}
    for name, transform in _weights_from_file(mapping, variables).items():
        groups.setdefault(tuple(transform.tensors), {})[name] = transform.convert
    for tensors, conversions in groups.items():
        _assign(variables, archive, tensors, conversions)


def _shown(values: np.ndarray) -> str:
    """The first few of some values."""
    return np.array2string(np.ravel(values)[:8], precision=3, separator=", ")


def _assign(
    variables: Variables,
    archive: CheckpointFile,
    tensors: Iterable[str],
    conversions: Mapping[str, Convert],
) -> None:
    """Fills the weights made of the same tensors, which are freed when this returns."""
    arrays = [archive.read(tensor) for tensor in tensors]
    for name, convert in conversions.items():
        with np.errstate(over="ignore"):  # a float64 may exceed float32
            array = np.asarray(convert(*arrays), np.float32)
        if not np.isfinite(array).all():
            raise ValueError(
                f"Expected finite weights in {archive.path!r}. Received: NaN or infinite weights "
                f"in {', '.join(tensors)}"
            )
        variables[name].assign(array)


def check(archive: CheckpointFile, mapping: WeightMap, variables: Variables | None = None) -> None:
    """Raises a ValueError that lists what does not fit.

    If `variables` is None, only the file is checked.
    """
    wanted = _weights_from_file(mapping, variables)
    used = {tensor for transform in wanted.values() for tensor in transform.tensors}
    problems = {
        "missing tensors": sorted(used - set(archive.tensors)),
        "unexpected tensors": sorted(
            name
            for name in archive.tensors
            if name not in {*used, *mapping.constants}
            and not _matches(name, mapping.unused_tensors)
        ),
        "misshapen": sorted(_misshapen(archive.tensors, wanted)),
        "weights without a source": sorted(
            name
            for name in variables or ()
            if name not in wanted and not _matches(name, mapping.new_weights)
        ),
    }
    if any(problems.values()):
        received = "; ".join(
            f"{kind} ({len(names)}): {format_list(names)}"
            for kind, names in problems.items()
            if names
        )
        raise ValueError(
            f"Expected the tensors of {archive.path!r} to match the weights of the model one "
            f"to one. "
            f"Received: {received}"
        )


def _weights_from_file(mapping: WeightMap, variables: Variables | None) -> dict[str, Transform]:
    """The weights that the file has, among those of the model if `variables` are given."""
    return {
        name: transform
        for name, transform in mapping.weights.items()
        if (variables is None or name in variables) and not _matches(name, mapping.new_weights)
    }


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _misshapen(infos: Tensors, wanted: Mapping[str, Transform]) -> set[str]:
    """What is wrong with shapes and dtypes, a line for each tensor."""
    wrong = set()
    for transform in wanted.values():
        for name, shape in transform.tensors.items():
            info = infos.get(name)
            if info is not None and info.shape != tuple(shape):
                wrong.add(f"{name!r} of {info.shape}, expected {tuple(shape)}")
            if info is not None and "float" not in info.dtype:
                wrong.add(f"{name!r} of {info.dtype}, expected floats")
    return wrong


# Position embeddings and prefix tokens, and the number of heads.


class TokenNames(NamedTuple):
    """Names of a family's prefix tokens, each of which may be missing in a file."""

    class_token: str
    distillation: str | None = None
    registers: str | None = None

    def leading_tokens(self, tensors: Tensors) -> list[str]:
        """The names in a file of the tokens before the registers."""
        names = (self.class_token, self.distillation)
        return [name for name in names if name is not None and name in tensors]


def infer_num_heads(
    width: int, layers: int, options: LoadOptions, other: int | None = None, published: dict = HEADS
) -> int:
    """The requested number of heads, else that of published models of the same size.

    Raises a ValueError if the size was never published, or if `other` heads are possible too.
    """
    num_heads = options.num_heads or options.config.get("num_heads")
    if num_heads is not None:
        return num_heads
    heads = published.get((width, layers))
    if heads is None or other is not None:
        either = f" ({heads} or {other})" if heads else ""
        raise ValueError(
            f"Specify num_heads{either}: the file does not determine it ({layers} layers of "
            f"{width} channels). Received: num_heads=None"
        )
    return heads


def embedding_map(
    tensors: Tensors,
    position_name: str,
    names: TokenNames,
    stride: int,
    channels: int,
    options: LoadOptions,
    image_shape: tuple | None = None,
    pooling: str | None = None,
) -> WeightMap:
    """The `WeightMap` of a ViT's positions and prefix tokens, its images and its pooling."""
    _, num_positions, width = dims(tensors, position_name, 3)
    tokens = prefix_map(tensors, names, width, options, pooling)
    num_leading = len(names.leading_tokens(tensors))
    registers = tokens.arguments.get("registers", 0)
    # How many prefix tokens may have positions, likeliest first.
    possible_prefixes = (num_leading, 0, num_leading + registers)
    grid = file_grid(num_positions, possible_prefixes, stride, options.image_shape, image_shape)
    shape = (1, num_positions, width)
    mapping = WeightMap({"image_shape": pixels(grid, channels)}) | tokens
    prefix = tokens.weights.get("embedding/prefix")
    if prefix is not None and grid.prefix > num_leading:
        # Registers have positions too: those of all prefix tokens are added to the tokens.
        prefix_and_positions = prefix.tensors | {position_name: shape}
        weights = {
            "embedding/prefix": Transform(prefix_and_positions, add_positions),
            "embedding/positions": Transform({position_name: shape}, grid.spatial),
        }
        return mapping | WeightMap({"class_position": False}, weights)
    # Positions of prefix tokens that the model does not have are left out. If the file lacks the
    # class token of the model, its position is new and zero.
    has_new_class_token = bool(tokens.new_weights)
    num_prefix_positions = (
        int(has_new_class_token) if prefix is None else min(num_leading, grid.prefix)
    )
    fit = partial(fit_positions, grid=grid, num_prefix_positions=num_prefix_positions)
    has_prefix = prefix is not None or has_new_class_token
    arguments = {"class_position": num_prefix_positions > 0} if has_prefix else {}
    weights = {"embedding/positions": Transform({position_name: shape}, fit)}
    return mapping | WeightMap(arguments, weights)


def add_positions(*arrays: np.ndarray) -> np.ndarray:
    """Tokens of shape (1, token, channel) as one, with the first of the positions added."""
    *tokens, positions = arrays
    tokens = concat_tokens(*tokens)
    return tokens + positions[:, : tokens.shape[1]]


def prefix_map(
    tensors: Tensors,
    names: TokenNames,
    width: int,
    options: LoadOptions,
    pooling: str | None = None,
) -> WeightMap:
    """The `WeightMap` of the prefix tokens and the pooling.

    The pooling is that of the options, else of timm's configuration, else `pooling`, else "cls" if
    the file has a class token and "gap" if not.

    * "map", or "gap" with a distillation token: raises a ValueError.
    * "gap" for a file with "cls" and no registers: the class token is left out.
    * A file without prefix tokens: "cls" adds a new class token.
    * "cls" for a file with registers and no class token: raises a ValueError.
    * Otherwise: all prefix tokens of the file.
    """
    leading, register_name = names.leading_tokens(tensors), names.registers
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(leading, (1, 1, width))
    registers, unused_tensors = 0, ()
    if register_name is not None and register_name in tensors:
        # transformers writes an empty tensor where there are no registers.
        if tensors[register_name].shape == (1, 0, width):
            unused_tensors = (register_name,)
        else:
            registers = dims(tensors, register_name, 3)[1]
            shapes[register_name] = (1, registers, width)
    file_pooling = options.config.get("pooling") or pooling or ("cls" if leading else "gap")
    pooling = options.pooling or file_pooling
    if pooling == "map" or (pooling == "gap" and names.distillation in tensors):
        raise ValueError(
            "Expected pooling to be 'cls' or 'gap' ('gap' only if there is no distillation token). "
            f"Received: pooling={pooling!r}, {', '.join(shapes)}"
        )
    mapping = WeightMap({"pooling": pooling}, unused_tensors=unused_tensors)
    if pooling == "gap" and file_pooling != "gap" and not registers:
        return mapping | WeightMap(unused_tensors=(names.class_token,))
    mapping |= WeightMap({"registers": registers})
    if not shapes:
        return mapping | WeightMap(new_weights=("embedding/prefix",) if pooling == "cls" else ())
    if pooling == "cls" and not leading:
        raise ValueError(
            "Expected pooling to be 'gap' for a file with registers and no class token. "
            f"Received: pooling='cls', {', '.join(shapes)}"
        )
    arguments = {"class_token": True} if pooling == "gap" and leading else {}
    return mapping | WeightMap(arguments, {"embedding/prefix": Transform(shapes, concat_tokens)})


def concat_tokens(*tokens: np.ndarray) -> np.ndarray:
    """Arrays of shape (1, token, channel) as one."""
    return np.concatenate(tokens, axis=1)


def file_grid(
    num_positions: int,
    possible_prefixes: tuple,
    stride: int,
    requested_shape: tuple | None = None,
    file_shape: tuple | None = None,
) -> TokenGrid:
    """The grid of positions: of `file_shape`, else of `requested_shape` if it fits, else square."""
    image_shape = file_shape or requested_shape
    height, width = (image_shape or (0, 0))[:2]
    if height % stride == width % stride == 0:
        rows, columns = height // stride, width // stride
        for prefix in possible_prefixes:
            if rows and columns and rows * columns == num_positions - prefix:
                return TokenGrid(rows, columns, prefix, stride)
    if file_shape is None:
        for prefix in possible_prefixes:
            side = math.isqrt(max(num_positions - prefix, 0))
            if side and side**2 == num_positions - prefix:
                return TokenGrid(side, side, prefix, stride)
    raise ValueError(
        "Expected as many positions as tokens of a square grid or of the grid of image_shape: for "
        "images that are not square, pass image_shape=. "
        f"Received: {num_positions} positions, image_shape={image_shape}"
    )


def pixels(grid: TokenGrid, channels: int) -> tuple[int, int, int]:
    """The (height, width, channels) of the images that a grid covers."""
    return (grid.rows * grid.stride, grid.columns * grid.stride, channels)


def fit_positions(positions: np.ndarray, grid: TokenGrid, num_prefix_positions: int) -> np.ndarray:
    """A file's positions as (1, token, channel), with so many for prefix tokens.

    Further positions of prefix tokens are left out, and those that the file lacks are zero.
    """
    positions = positions.reshape(1, grid.num_tokens, -1)
    if num_prefix_positions == grid.prefix:
        return positions
    prefix = positions[:, : min(num_prefix_positions, grid.prefix)]
    zeros = np.zeros_like(positions[:, : num_prefix_positions - prefix.shape[1]])
    return np.concatenate([prefix, zeros, grid.spatial(positions)], axis=1)


def clip_tokens_map(
    tensors: Tensors,
    position_name: str,
    class_name: str,
    width: int,
    channels: int,
    patch: int,
    requested_shape: tuple | None = None,
    file_shape: tuple | None = None,
) -> WeightMap:
    """The class token, stored as (channel,), and positions (token, channel) of a CLIP."""
    num_positions = dims(tensors, position_name, 2)[0]
    grid = file_grid(num_positions, (1,), patch, requested_shape, file_shape)
    fit = partial(fit_positions, grid=grid, num_prefix_positions=1)
    weights = {
        "embedding/prefix": Transform({class_name: (width,)}, lambda x: x.reshape(1, 1, -1)),
        "embedding/positions": Transform({position_name: (num_positions, width)}, fit),
    }
    return WeightMap({"image_shape": pixels(grid, channels)}, weights)


def patch_positions_map(
    tensors: Tensors, name: str, patch: int, channels: int, options: LoadOptions
) -> WeightMap:
    """The positions (1, token, channel) of a SigLIP, which determine its images."""
    shape = dims(tensors, name, 3)
    side = math.isqrt(shape[1])
    size = (side * patch, side * patch) if side**2 == shape[1] else None
    by_name = (options.resolution,) * 2 if options.resolution else None
    for image in filter(None, (options.config.get("image_shape"), options.image_shape, by_name)):
        if math.prod(n // patch for n in image[:2]) == shape[1]:
            size = tuple(image[:2])
            break
    if size is None:
        raise ValueError(
            "Expected as many positions as tokens of a square grid or of the grid of image_shape: "
            "for images that are not square, pass image_shape=. "
            f"Received: {shape[1]} positions, image_shape={options.image_shape}"
        )
    weights = {"embedding/positions": Transform({name: shape})}
    return WeightMap({"image_shape": (*size, channels)}, weights)


def relative_grid(
    entries: int, patch: int, file_shape: tuple | None, requested_shape: tuple | None, largest: int
) -> TokenGrid:
    """The grid of R x C tokens whose table has (2 R - 1) (2 C - 1) + 3 entries, else a square."""

    def count(rows: int, columns: int) -> int:
        return (2 * rows - 1) * (2 * columns - 1) + 3

    image_shape = file_shape or requested_shape
    rows, columns = (n // patch for n in (image_shape or (0, 0))[:2])
    if count(rows, columns) != entries and file_shape is None:
        rows = columns = (math.isqrt(max(entries - 3, 0)) + 1) // 2
    if count(rows, columns) != entries or not 1 <= max(rows, columns) <= largest:
        raise ValueError(
            f"Expected a table of relative positions for a square grid of at most {largest} "
            f"tokens per side, or for the grid of image_shape. "
            f"Received: {entries} entries, image_shape={image_shape}"
        )
    return TokenGrid(rows, columns, 1, patch)
