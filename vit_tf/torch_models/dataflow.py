"""The flow of values in a PyTorch module: where all that follows is computed from one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vit_tf.torch_models import axes
from vit_tf.torch_models.axes import PRODUCTS, tensors_in

ADDITIONS = ("add", "add_", "__add__", "__iadd__", "__radd__")
CONCATENATIONS = ("cat", "concat", "concatenate", "stack")
JOINS = (*ADDITIONS, *CONCATENATIONS)
KERNELS = ("linear", "conv1d", "conv2d", "conv3d", "multi_head_attention_forward")
KERNELS += ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
COPIES = ("clone", "contiguous", "add", "__add__", "__radd__")
ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
ATTRIBUTE = "_vit_tf_value"  # of tensors that depend on the images: the number of their value


@dataclass(frozen=True)
class Operation:
    """One operation on values that depend on the images.

    Attributes:
        name: name of the function.
        path: path of the submodule whose own code runs the operation.
        number: number of the sum or concatenation in that code, from 1; 0 for other operations.
        sources: numbers of the values that it uses.
        results: numbers of the values that it computes.
        has_kernel: whether it multiplies values with a kernel.
        attends: whether it computes attention weights.
        is_sum: whether it adds two of these values, of equal shape.
        shape: shape of its first result.
    """

    name: str
    path: str
    number: int
    sources: tuple[int, ...]
    results: tuple[int, ...]
    has_kernel: bool
    attends: bool
    is_sum: bool
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Junction:
    """Several paths that start at one value and end in a sum or concatenation.

    All that follows is computed from the result of its last operation, and it from one value alone.
    """

    first: int  # index of its first operation
    last: int  # index of the sum or concatenation
    source: int  # the value from which it is computed
    operation: Operation  # the sum or concatenation
    attention: str | None  # the submodule whose code attends on one of the paths
    # Which term of a sum of two is the skip: that with fewer kernels, at most one; None for none.
    skip: int | None

    @property
    def is_sum(self) -> bool:
        """Whether the paths are added."""
        return self.operation.name in ADDITIONS


class Dataflow(TorchFunctionMode):
    """Records the operations of a module that runs, and what they read of earlier ones.

    `stack` lists the paths of running submodules. The images are value 0. `draws` maps the names of
    operations that draw random numbers to the path of the submodule whose code runs the first of
    each, and `may_shuffle` is whether these may change the order of tokens. Dropout may not, but a
    permutation may, or noise that is sorted.
    """

    def __init__(self, images: torch.Tensor, stack: Sequence[str]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.draws: dict[str, str] = {}
        self.may_shuffle = False
        # Paths of submodules whose weights are between channels, as in cross-covariance attention.
        self.channel_attention: list[str] = []
        self._stack, self._num_values, self._numbers = stack, 0, Counter()
        # From values that are views of others, such as their transposes, to these.
        self._viewed: dict[int, int] = {}
        setattr(images, ATTRIBUTE, 0)
        axes.set_label(images, (1,))

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # An operation in place gives its argument another value.
        tensors = tensors_in([*args, *kwargs.values()])
        read = [tensor for tensor in tensors if value_of(tensor) is not None]
        sources = tuple(value for value in map(value_of, read) if value is not None)
        path = self._stack[-1] if self._stack else ""
        number = 0
        if name in JOINS:
            self._numbers[path] += 1
            number = self._numbers[path]
        is_sum = name in ADDITIONS and len(read) == 2 and read[0].shape == read[1].shape
        has_weights = any(axes.label_of(tensor) == axes.WEIGHTS for tensor in tensors)
        before = _random_state()
        result = func(*args, **kwargs)
        axes.propagate(func, args, kwargs, result)
        outputs = tensors_in(result if isinstance(result, tuple) else [result])
        outputs = tensors_in(args[:1]) if name == "__setitem__" else outputs
        is_filled = name.endswith("_like") or name.startswith("new_")
        if before != _random_state():
            self.draws.setdefault(name, path)
            is_noisy = sources and not is_filled and outputs[0].is_floating_point()
            self.may_shuffle |= not (is_noisy and outputs[0].shape == read[0].shape)
        if sources and outputs and not is_filled:
            is_product = any(isinstance(x, torch.nn.Parameter) and x.dim() > 1 for x in tensors)
            # Layers of quantized weights hold these as one object of PyTorch.
            is_packed = any(isinstance(value, torch.ScriptObject) for value in args)
            has_kernel = name in KERNELS or (is_product and name in PRODUCTS) or is_packed
            label = axes.label_of(outputs[0])
            becomes_weights = label == axes.WEIGHTS and not has_weights
            if label == axes.CHANNEL_WEIGHTS and name == "softmax":
                self.channel_attention.append(path)
                becomes_weights = True
            attends = name in ATTENTION or becomes_weights
            results = self._number(outputs)
            self.operations.append(
                Operation(
                    *(name, path, number, sources, results),
                    *(has_kernel, attends, is_sum, tuple(outputs[0].shape)),
                )
            )
            is_in_place = name.endswith("_") and not name.endswith("__")
            if len(read) == len(outputs) == 1 and not is_in_place:
                same_size = read[0].numel() == outputs[0].numel()
                is_view = same_size and read[0].data_ptr() == outputs[0].data_ptr()
                # sum([x, y]) begins with 0 + x.
                is_copy = name in COPIES and torch.equal(read[0], outputs[0])
                if is_view or is_copy:
                    self._viewed[results[0]] = self._viewed.get(sources[0], sources[0])
        return result

    def add_call(
        self, path: str, module: torch.nn.Module, source: int, output: torch.Tensor
    ) -> None:
        """Records a submodule as one operation, whose own operations PyTorch does not show."""
        has_kernel = any(parameter.dim() > 1 for parameter in module.parameters())
        results, shape = self._number([output]), tuple(output.shape)
        self.operations.append(
            Operation("", path, 0, (source,), results, has_kernel, False, False, shape)
        )

    def _number(self, outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Gives tensors the numbers of new values."""
        results = tuple(range(self._num_values + 1, self._num_values + 1 + len(outputs)))
        self._num_values += len(outputs)
        for output, value in zip(outputs, results, strict=True):
            setattr(output, ATTRIBUTE, value)
        return results

    def viewed(self, value: int | None) -> int | None:
        """The value that a value is a view of, or itself."""
        return self._viewed.get(value, value) if value is not None else None

    def num_kernels(self, term: int, first: int, last: int, source: int | None = None) -> float:
        """Kernels of operations that compute a value; infinite if it depends on more than a source.

        These are operations from `first` to before `last`. Without a source, all that is computed
        before them counts as one.
        """
        needed, count = {term}, 0
        for operation in reversed(self.operations[first:last]):
            if computed := needed & {*operation.results}:
                needed = (needed - computed) | {*operation.sources}
                count += operation.has_kernel
        return float("inf") if source is not None and needed != {source} else count

    def single_values(self) -> dict[int, int]:
        """The values from which alone all that follows is computed, and which operations do it."""
        last_use = {v: i for i, op in enumerate(self.operations) for v in op.sources}
        alive, single = {0}, {0: -1}
        for index, operation in enumerate(self.operations):
            alive |= {*operation.results}
            alive = {value for value in alive if last_use.get(value, -1) > index}
            if len(operation.results) == 1 and alive <= {*operation.results}:
                single[operation.results[0]] = index
        return single

    def junctions(self, single: dict[int, int]) -> list[Junction]:
        """Where several paths with a kernel are joined between two of the single values."""
        junctions, source = [], 0  # of the images
        for value in list(single)[1:]:
            first, last = single[source] + 1, single[value]
            operations, join = self.operations[first : last + 1], self.operations[last]
            has_kernel = any(operation.has_kernel for operation in operations)
            if first < last and join.number and len({*join.sources}) > 1 and has_kernel:
                attends = [operation.path for operation in operations if operation.attends]
                attention = attends[-1] if attends else None
                # The skip of a sum of two is the term with fewer kernels, if it has one at most.
                kernels = [self.num_kernels(term, first, last) for term in join.sources]
                is_pair = join.name in ADDITIONS and len(kernels) == 2
                has_skip = is_pair and min(kernels) <= 1 and kernels[0] != kernels[1]
                skip = kernels.index(min(kernels)) if has_skip else None
                junctions.append(Junction(first, last, source, join, attention, skip))
            source = value
        return junctions


def _random_state() -> list[bytes]:
    """The states of PyTorch's generators of random numbers."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return [state.numpy().tobytes() for state in states]


def value_of(tensor: torch.Tensor | None) -> int | None:
    """The number of the value that a tensor holds; None where it does not depend on the images."""
    return getattr(tensor, ATTRIBUTE, None)
