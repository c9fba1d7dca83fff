"""From the tensors of a checkpoint to the weights of a model: tables, checks and assignment.

A table has a row for each layer: its name in the file, its path in our model, the kind of layer,
which is a function of `TORCH` or `FLAX` that says how its tensors become weights, and its sizes,
letters that the reader of the table gives numbers.
"""

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from vit_tf.preprocessing import Preprocessing

HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CLIP = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
MOST_LAYERS, MOST_STAGES = 1000, 10
MOST_SHOWN = 8  # names of a kind in an error
QKV = ("query", "key", "value")


def identity(array):
    """The array itself."""
    return array


class Transform(NamedTuple):
    """Tensors of a file, and the function of them, which must not write, that makes a weight."""

    tensors: dict  # from the name of a tensor of the file to its expected shape
    convert: Callable = identity


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
    config: dict = field(default_factory=dict)  # of `read_timm_config`; options go before it
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
                f"Expected num_heads to be that of the file, {num_heads}, which divides {width} "
                f"channels. Received: num_heads={self.num_heads}"
            )


@dataclass(frozen=True)
class WeightMap:
    """Arguments and weights of a part of a model, as a file has them; parts are joined by `|`."""

    arguments: dict = field(default_factory=dict)  # of the model's constructor
    weights: dict = field(default_factory=dict)  # from the name of a weight to its `Transform`
    unused: tuple = ()  # shell patterns of tensors that are left out
    new: tuple = ()  # shell patterns of weights that the file does not have
    headless: bool = False  # whether the head returns its input, as the file has none

    def __or__(self, other):
        return WeightMap(
            self.arguments | other.arguments,
            self.weights | other.weights,
            self.unused + other.unused,
            self.new + other.new,
            self.headless or other.headless,
        )

    def renamed(self, old: str, new: str) -> "WeightMap":
        """The same map of weights whose names begin with `new` in place of `old`."""
        weights = {name.replace(old, new, 1): made for name, made in self.weights.items()}
        patterns = tuple(pattern.replace(old, new, 1) for pattern in self.new)
        return WeightMap(self.arguments, weights, self.unused, patterns, self.headless)

    def under(self, prefix: str) -> "WeightMap":
        """The same map of a file that has a prefix before the names of its tensors."""
        weights = {
            name: Transform({prefix + t: shape for t, shape in made.tensors.items()}, made.convert)
            for name, made in self.weights.items()
        }
        unused = tuple(prefix + pattern for pattern in self.unused)
        return WeightMap(self.arguments, weights, unused, self.new, self.headless)


@dataclass(frozen=True)
class Conversion:
    """A model to build from a file."""

    model: str  # name of its class in `vit_tf`
    mapping: WeightMap
    interpolation: str = "bilinear"  # of its images
    values: dict = field(default_factory=lambda: HALF)  # mean and std of its images
    crop: float | None = None  # as of `Preprocessing`
    positions: str | None = None  # method of `at_resolution`; None for the `interpolation`
    any_size: bool = False  # whether images may be of any size
    class_names: tuple | None = None  # of the file's head
    crop_rounding: str = "even"
    size: tuple | None = None  # (height, width) to open it at; None for that of its file


class Family(NamedTuple):
    """A family of files: its name, a test of tensors' names, and what converts such a file."""

    name: str
    recognise: Callable
    convert: Callable
    activation: bool = False  # whether the form of GELU is the caller's, or the name's, to choose


# The kinds of layers in PyTorch's layouts: functions of the name of a layer in the file, its path
# in our model and its sizes, to a dict from weight to `Transform`.


def _tensor(name, end):
    """The name of a tensor of a layer; some layers, as `in_proj_`, have no dot before the end."""
    return f"{name}{end}" if name.endswith("_") else f"{name}.{end}"


def no_bias(units: int) -> Transform:
    """The `Transform` of a bias that a file does not have: zero."""
    return Transform({}, partial(np.zeros, units, "float32"))


def rows_first(kernel):
    """A convolution kernel (output, input, row, column) as (row, column, input, output)."""
    return kernel.transpose(2, 3, 1, 0)


def third(fused, index):
    """One of query, key and value, transposed to (input, output) where it is a weight."""
    return np.split(fused, 3)[index].T


def _half(fused, index):
    return np.split(fused, 2)[index].T


def side_by_side(*arrays):
    """Kernels or biases of a gate and what it gates, as one of twice as many units."""
    return np.concatenate([array.T for array in arrays], axis=-1)


def flat_kernel(kernel):
    """A kernel of one row and column, (1, 1, input, output) as (input, output)."""
    return kernel[0, 0]


def flat_torch_kernel(kernel):
    """A kernel of one row and column, (output, input, 1, 1) as (input, output)."""
    return kernel[:, :, 0, 0].T


def _same(name, path, *shape):
    return {path: Transform({name: shape})}


def _zeros(name, path, width):
    return {path: no_bias(width)}


def _norm(name, path, width):
    return {
        f"{path}/gamma": Transform({f"{name}.weight": (width,)}),
        f"{path}/beta": Transform({f"{name}.bias": (width,)}),
    }


def _rms(name, path, width):
    return {f"{path}/scale": Transform({f"{name}.weight": (width,)})}


def _kernel(name, path, inputs, outputs):
    stored = {_tensor(name, "weight"): (outputs, inputs)}
    return {f"{path}/kernel": Transform(stored, np.transpose)}


def _linear(name, path, inputs, outputs):
    bias = {f"{path}/bias": Transform({_tensor(name, "bias"): (outputs,)})}
    return _kernel(name, path, inputs, outputs) | bias


def _unbiased(name, path, inputs, outputs):
    return _kernel(name, path, inputs, outputs) | {f"{path}/bias": no_bias(outputs)}


def _linear_1x1(name, path, inputs, outputs):
    kernel = Transform({f"{name}.weight": (outputs, inputs, 1, 1)}, flat_torch_kernel)
    bias = Transform({f"{name}.bias": (outputs,)})
    return {f"{path}/kernel": kernel, f"{path}/bias": bias}


def _conv(name, path, inputs, outputs, side):
    stored = {f"{name}.weight": (outputs, inputs, side, side)}
    return {f"{path}/kernel": Transform(stored, rows_first)}


def _patches(name, path, channels, width, side):
    bias = {f"{path}/bias": Transform({f"{name}.bias": (width,)})}
    return _conv(name, path, channels, width, side) | bias


def _split(name, paths, width, end, part, count):
    stored = {_tensor(name, end): (count * width, width)[: 2 if end == "weight" else 1]}
    weight = "kernel" if end == "weight" else "bias"
    return {
        f"{path}/{weight}": Transform(stored, partial(part, index=i))
        for i, path in enumerate(paths.split(","))
    }


def _fused_kernels(name, paths, width):
    return _split(name, paths, width, "weight", third, 3)


def _fused(name, paths, width):
    return _fused_kernels(name, paths, width) | _split(name, paths, width, "bias", third, 3)


def _fused_unbiased(name, paths, width):
    biases = {f"{path}/bias": no_bias(width) for path in paths.split(",")}
    return _fused_kernels(name, paths, width) | biases


def _fused_keyless(name, paths, width):
    """The same of keys without a bias."""
    weights = _fused(name, paths, width)
    return {path: made for path, made in weights.items() if not path.endswith("key/bias")}


def _fused_pair(name, paths, width):
    kernels = _split(name, paths, width, "weight", _half, 2)
    return kernels | _split(name, paths, width, "bias", _half, 2)


def _gate(names, path, inputs, hidden, bias=True):
    """Layers of a gate and what it gates, `gate,value`, as one."""
    kernels = {f"{name}.weight": (hidden, inputs) for name in names.split(",")}
    biases = Transform({f"{name}.bias": (hidden,) for name in names.split(",")}, side_by_side)
    return {
        f"{path}/kernel": Transform(kernels, side_by_side),
        f"{path}/bias": biases if bias else no_bias(2 * hidden),
    }


TORCH = {
    "same": _same,
    "zeros": _zeros,
    "norm": _norm,
    "rms": _rms,
    "kernel": _kernel,
    "linear": _linear,
    "unbiased": _unbiased,
    "linear_1x1": _linear_1x1,
    "conv": _conv,
    "patches": _patches,
    "fused": _fused,
    "fused_kernels": _fused_kernels,
    "fused_unbiased": _fused_unbiased,
    "fused_keyless": _fused_keyless,
    "fused_pair": _fused_pair,
    "gate": _gate,
    "gate_unbiased": partial(_gate, bias=False),
}


# The same in flax's layouts, with the names of Google's files.


def _flax_norm(name, path, width, scale="scale", bias="bias"):
    return {
        f"{path}/gamma": Transform({f"{name}/{scale}": (width,)}),
        f"{path}/beta": Transform({f"{name}/{bias}": (width,)}),
    }


def _long_norm(name, path, width):
    """A group normalisation that is stored as (1, 1, 1, channel)."""
    return {
        f"{path}/gamma": Transform({f"{name}/scale": (1, 1, 1, width)}, np.ravel),
        f"{path}/beta": Transform({f"{name}/bias": (1, 1, 1, width)}, np.ravel),
    }


def _flax_kernel(name, path, *shape):
    return {f"{path}/kernel": Transform({f"{name}/kernel": shape})}


def _flax_linear(name, path, *shape):
    """A linear layer, or a convolution, whose last axis is that of its units."""
    bias = Transform({f"{name}/bias": shape[-1:]})
    return _flax_kernel(name, path, *shape) | {f"{path}/bias": bias}


def _flax_linear_1x1(name, path, inputs, outputs):
    kernel = Transform({f"{name}/kernel": (1, 1, inputs, outputs)}, flat_kernel)
    return {f"{path}/kernel": kernel, f"{path}/bias": Transform({f"{name}/bias": (outputs,)})}


def _to_heads(name, path, width, heads):
    """A projection to the heads' channels, kernel (channel, head, channel of a head)."""
    split, flat = (heads, width // heads), partial(np.reshape, shape=(width, width))
    return {
        f"{path}/kernel": Transform({f"{name}/kernel": (width, *split)}, flat),
        f"{path}/bias": Transform({f"{name}/bias": split}, np.ravel),
    }


def _from_heads(name, path, width, heads):
    flat = partial(np.reshape, shape=(width, width))
    kernel = Transform({f"{name}/kernel": (heads, width // heads, width)}, flat)
    return {f"{path}/kernel": kernel, f"{path}/bias": Transform({f"{name}/bias": (width,)})}


FLAX = {
    "same": _same,
    "norm": _flax_norm,
    "long_norm": _long_norm,
    "group_norm": partial(_flax_norm, scale="gamma", bias="beta"),
    "kernel": _flax_kernel,
    "linear": _flax_linear,
    "linear_1x1": _flax_linear_1x1,
    "to_heads": _to_heads,
    "from_heads": _from_heads,
}


@lru_cache(maxsize=256)
def _rows(table):
    return [row.split() for row in table.splitlines() if row.strip()]


def read_table(
    table: str, kinds: dict, sizes: dict, name: str = "{}", path: str = "{}"
) -> WeightMap:
    """The `WeightMap` of rows of name, path, kind and sizes, `{}` of `name` and `path` filled."""
    weights = {}
    for stored, ours, kind, *shape in _rows(table):
        numbers = [_size(size, sizes) for size in shape]
        stored, ours = (
            ",".join(outer.format(part) for part in inner.split(","))
            for outer, inner in ((name, stored), (path, ours))
        )
        weights |= kinds[kind](stored, ours, *numbers)
    return WeightMap(weights=weights)


def _size(size, sizes):
    factor, letter = re.fullmatch(r"(\d*)([A-Z]?)", size).groups()
    return int(factor or 1) * (sizes[letter] if letter else 1)


def read_blocks(table, kinds, sizes, name, layers, path="block#/") -> WeightMap:
    """The `WeightMap` of so many blocks; `#` in `name` and `path` stands for a block's number."""
    weights = {}
    for i in range(layers):
        ends = (name.replace("#", str(i)) + "{}", path.replace("#", f"{i:02d}") + "{}")
        weights |= read_table(table, kinds, sizes, *ends).weights
    return WeightMap(weights=weights)


def unstack(mapping: WeightMap, index: int, layers: int) -> WeightMap:
    """The map of one layer of tensors that are stacked over depth."""
    weights = {
        name: Transform(
            {tensor: (layers, *shape) for tensor, shape in made.tensors.items()},
            partial(_unstacked, convert=made.convert, index=index),
        )
        for name, made in mapping.weights.items()
    }
    return WeightMap(weights=weights)


def _unstacked(*arrays, convert, index):
    return convert(*(array[index] for array in arrays))


def halves_apart(mapping: WeightMap, width: int, heads: int) -> WeightMap:
    """The map with channels of queries and keys reordered, of a file that rotates neighbours.

    Rotary positions turn channels here that are half the channels of a head apart: of each head,
    the first of each pair of neighbours come before the second.
    """
    size = width // heads
    if size % 4 or width % heads:
        raise ValueError(
            "Expected num_heads for which the channels of a head are a multiple of 4, as "
            "rotary positions require. "
            f"Received: num_heads={heads} of {width} channels"
        )
    inside = np.arange(size).reshape(-1, 2).T.reshape(-1)
    order = (np.arange(heads)[:, None] * size + inside).reshape(-1)
    moved = {
        name: Transform(made.tensors, partial(_reordered, convert=made.convert, order=order))
        for name, made in mapping.weights.items()
        if name.split("/")[-2] in ("query", "key")
    }
    return mapping | WeightMap(weights=moved)


def _reordered(*arrays, convert, order):
    return convert(*arrays)[..., order]


def head_map(
    tensors: dict, width: int, options: LoadOptions, name: str, kinds=TORCH, kind: str = "linear"
) -> WeightMap:
    """The file's head, or a new one for another number of classes; without either, the identity."""
    bias = f"{name}.bias" if kinds is TORCH else f"{name}/bias"
    classes = dims(tensors, bias, 1)[0] if bias in tensors else None
    asked = options.num_classes
    weights = {} if classes is None else kinds[kind](name, "head", width, classes)
    if classes is not None and asked in (None, classes):
        return WeightMap({"num_classes": classes}, weights)
    return WeightMap(
        {"num_classes": asked or width},
        unused=tuple(tensor for made in weights.values() for tensor in made.tensors),
        new=("head/*",),
        headless=not asked,
    )


def embedding_head(*args, **kwargs) -> WeightMap:
    """The same of a model that returns its embedding where there is no head."""
    head = head_map(*args, **kwargs)
    if not head.headless:
        return head
    return WeightMap({"num_classes": None}, unused=head.unused, new=head.new)


def linear_head(tensors, width, options, name) -> WeightMap:
    """A head as DINOv2's, of class tokens and the mean of the patches."""
    kernel = f"{name}.weight"
    read = dims(tensors, kernel, 2)[1] if kernel in tensors else width
    part = head_map(tensors, read, options, name)
    if not part.weights:
        return head_map(tensors, width, options, name)
    if read % width or read < 2 * width:
        raise ValueError(
            f"Expected {kernel!r} to take class tokens of {width} channels and the mean of the "
            f"patches. Received: {read} channels"
        )
    return part | WeightMap({"head_blocks": read // width - 1})


def without_prefix(tensors: dict, prefix: str) -> dict:
    """The tensors whose names begin with a prefix, by their names without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def dims(tensors: dict, name: str, axes: int) -> tuple:
    """The shape of a tensor that determines the size of a model; a ValueError if it is unfit."""
    if name not in tensors:
        raise ValueError(
            f"Expected a tensor {name!r}, which determines the size of the model. "
            f"Received: {first_names(tensors)}"
        )
    shape = tensors[name].shape
    if len(shape) != axes or min(shape, default=1) < 1:
        raise ValueError(
            f"Expected the tensor {name!r} to have {axes} axes of length 1 or more. "
            f"Received: {shape}"
        )
    return shape


def patch_dims(tensors: dict, kernel: str) -> tuple:
    """(width, channels of the image, side of a patch) of a kernel of patches in torch's layout."""
    width, channels, *patch = dims(tensors, kernel, 4)
    return width, channels, square(tensors, kernel, *patch)


def first_names(tensors: dict, count: int = 6) -> str:
    """The first names of a file's tensors, and how many more there are."""
    names = sorted(tensors)
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(ascii(name) for name in names[:count]) + more


def count_layers(tensors: dict, pattern: str = r"blocks\.(\d+)\.") -> int:
    """Number of different numbers that the group of a regular expression takes in the names."""
    matches = (re.match(pattern, name) for name in tensors)
    return at_most(len({match[1] for match in matches if match}), MOST_LAYERS, "layers")


def count_units(tensors: dict, pattern: str, first: int = 1) -> tuple:
    """Number of units of each stage, from a pattern with groups for the numbers of both."""
    stages = {}
    for match in (re.match(pattern, name) for name in tensors):
        if match:
            stages.setdefault(match[1], set()).add(match[2])
    at_most(len(stages), MOST_STAGES, "stages")
    units = [len(stages.get(str(stage + first), ())) for stage in range(len(stages))]
    return tuple(at_most(depth, MOST_LAYERS, "units") for depth in units)


def at_most(number: int, most: int, what: str) -> int:
    """The number, if a model may have as many; a file's names alone could make it any."""
    if number > most:
        raise ValueError(f"Expected at most {most} {what}. Received: {number}")
    return number


def square(tensors: dict, kernel: str, rows: int, columns: int) -> int:
    """The side of a patch, from the two sizes of its kernel."""
    if rows != columns:
        raise ValueError(
            f"Expected the tensor {kernel!r} to have square patches. "
            f"Received: {tensors[kernel].shape}"
        )
    return rows


def fill(variables: dict, archive, mapping: WeightMap) -> None:
    """Assigns every weight from the tensors of a file, after `check`; each tensor is read once.

    Corrupt or non-finite data raise a ValueError on the way: return the model after this.
    """
    check(archive, mapping, variables)
    groups = {}
    for name, made in _wanted(mapping, variables).items():
        groups.setdefault(tuple(made.tensors), {})[name] = made.convert
    for tensors, conversions in groups.items():
        _assign(variables, archive, tensors, conversions)


def _assign(variables, archive, tensors, conversions):
    """Fills the weights made of the same tensors, which are freed when this returns."""
    arrays = [archive.read(tensor) for tensor in tensors]
    for name, convert in conversions.items():
        with np.errstate(over="ignore"):  # a float64 may exceed float32
            array = np.asarray(convert(*arrays), np.float32)
        if not np.isfinite(array).all():
            raise ValueError(
                f"Expected {archive.path!r} to hold finite weights. "
                f"Received: NaN or infinity in {', '.join(tensors)}"
            )
        variables[name].assign(array)


def check(archive, mapping: WeightMap, variables=None) -> None:
    """Raises a ValueError that lists every tensor and weight that does not fit.

    Without variables, each row is taken to fit its weight: so a file is checked before a model of
    the size that it declares is built.
    """
    wanted = _wanted(mapping, variables)
    used = {tensor for made in wanted.values() for tensor in made.tensors}
    problems = {
        "missing tensors": sorted(used - set(archive.tensors)),
        "unexpected tensors": sorted(
            name
            for name in archive.tensors
            if name not in used and not _matches(name, mapping.unused)
        ),
        "misshapen": sorted(_misshapen(variables, archive.tensors, wanted)),
        "weights without a source": sorted(
            name
            for name in variables or ()
            if name not in wanted and not _matches(name, mapping.new)
        ),
    }
    if any(problems.values()):
        received = "; ".join(_counted(kind, names) for kind, names in problems.items() if names)
        raise ValueError(
            f"Expected the tensors of {archive.path!r} to match the weights of the model one "
            f"to one. "
            f"Received: {received}"
        )


def _wanted(mapping, variables):
    return {
        name: made
        for name, made in mapping.weights.items()
        if (variables is None or name in variables) and not _matches(name, mapping.new)
    }


def _matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _misshapen(variables, infos, wanted):
    """What is wrong with shapes and dtypes, a line for each tensor or weight."""
    wrong = set()
    for name, made in wanted.items():
        present = {tensor for tensor in made.tensors if tensor in infos}
        unfit = {t for t in present if infos[t].shape != tuple(made.tensors[t])}
        wrong |= {f"{t!r} of {infos[t].shape}, expected {tuple(made.tensors[t])}" for t in unfit}
        wrong |= {
            f"{t!r} of {infos[t].dtype}, expected floats"
            for t in present
            if "float" not in infos[t].dtype
        }
        if variables is not None and len(present) == len(made.tensors) and not unfit:
            wrong |= _misconverted(name, made, tuple(variables[name].shape))
    return wrong


def _misconverted(name, made, expected):
    """Tries a conversion on zeros of the tensors' shapes, each a view of a single number."""
    zeros = [np.broadcast_to(np.float32(0), shape) for shape in made.tensors.values()]
    try:
        shape = np.shape(made.convert(*zeros))
    except ValueError as error:
        return {f"weight {name!r}: {error}"}
    return set() if shape == expected else {f"weight {name!r} of {expected}, converted to {shape}"}


def _counted(kind, names):
    shown = ", ".join(str(name) for name in names[:MOST_SHOWN])
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f"{kind} ({len(names)}): {shown}{more}"
