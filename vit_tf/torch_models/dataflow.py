"""Records the operations of a PyTorch module, and finds where parallel paths are joined.

A value is a numbered state of a tensor: an operation in place gives its tensor another value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

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
ATTRIBUTE = "_vit_tf_value"  # of tensors that depend on the images: their value


@dataclass(frozen=True)
class Operation:
    """One operation on values that depend on the images.

    Attributes:
        name: name of the function.
        path: path of the submodule whose own code runs the operation.
        join_index: which sum or concatenation of that code it is, from 1; 0 for other operations.
        sources: the values that it uses.
        results: the values that it computes.
        has_kernel: whether it multiplies values with a kernel.
        attends: whether it computes attention weights.
        is_sum_of_two: whether it adds two of these values, of equal shape.
        shape: shape of its first result.
    """

    name: str
    path: str
    join_index: int
    sources: tuple[int, ...]
    results: tuple[int, ...]
    has_kernel: bool
    attends: bool
    is_sum_of_two: bool
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Junction:
    """Several paths that start at one value and end in a sum or concatenation.

    Everything later depends only on its result, and the result depends only on `source`.

    Attributes:
        first, last: indices of its first operation and of the sum or concatenation.
        source: the value at which the paths start.
        operation: the sum or concatenation.
        attention_path: the submodule whose code attends on one of the paths, the last such one.
        skip: index of the term of a sum of two that is the skip: the one with fewer kernels, if it
            has at most one. None if there is no skip.
    """

    first: int
    last: int
    source: int
    operation: Operation
    attention_path: str | None
    skip: int | None

    @property
    def is_sum(self) -> bool:
        """Whether the paths are added."""
        return self.operation.name in ADDITIONS


class Dataflow(TorchFunctionMode):
    """Records the operations of a module while it runs, and which earlier values they use.

    Attributes:
        operations: the operations, in order. The images are value 0.
        draws: from the names of operations that draw random numbers to the path of the submodule
            whose code runs the first of each.
        may_shuffle: whether random numbers may change the order of tokens. Dropout may not, but a
            permutation may, or noise that is sorted.
        channel_attention: paths of submodules whose attention weights are between channels, as in
            cross-covariance attention.
    """

    def __init__(self, images: torch.Tensor, stack: Sequence[str]) -> None:
        """`stack` lists the paths of the submodules that run at the moment."""
        super().__init__()
        self.operations: list[Operation] = []
        self.draws: dict[str, str] = {}
        self.may_shuffle = False
        self.channel_attention: list[str] = []
        self._stack, self._num_values, self._join_counts = stack, 0, Counter()
        # From values that are views or copies of others, such as their transposes, to these.
        self._bases: dict[int, int] = {}
        setattr(images, ATTRIBUTE, 0)
        axes.set_label(images, (1,))  # channels of images (example, channel, height, width)

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # Values are read before the call, as an operation in place changes that of its argument.
        tensors = tensors_in([*args, *kwargs.values()])
        read = [tensor for tensor in tensors if value_of(tensor) is not None]
        sources = tuple(cast(int, value_of(tensor)) for tensor in read)
        path = self._stack[-1] if self._stack else ""
        join_index = 0
        if name in JOINS:
            self._join_counts[path] += 1
            join_index = self._join_counts[path]
        is_sum_of_two = name in ADDITIONS and len(read) == 2 and read[0].shape == read[1].shape
        has_weights = any(axes.label_of(tensor) == axes.WEIGHTS for tensor in tensors)
        before = _random_state()
        result = func(*args, **kwargs)
        axes.propagate(func, args, kwargs, result)
        outputs = tensors_in(result if isinstance(result, tuple) else [result])
        outputs = tensors_in(args[:1]) if name == "__setitem__" else outputs
        ignores_values = name.endswith("_like") or name.startswith("new_")
        has_generator = any(isinstance(x, torch.Generator) for x in (*args, *kwargs.values()))
        if has_generator or before != _random_state():
            self.draws.setdefault(name, path)
            # Noise on values of one shape, as of dropout, leaves tokens in their order.
            is_noise = bool(sources and outputs) and not ignores_values
            is_noise = is_noise and outputs[0].is_floating_point()
            self.may_shuffle |= not (is_noise and outputs[0].shape == read[0].shape)
        if not sources or not outputs or ignores_values:
            return result

        is_product = any(isinstance(x, torch.nn.Parameter) and x.dim() > 1 for x in tensors)
        # Layers of quantized weights hold these as one object of PyTorch.
        is_packed = any(isinstance(value, torch.ScriptObject) for value in args)
        label = axes.label_of(outputs[0])
        is_between_channels = label == axes.CHANNEL_WEIGHTS and name == "softmax"
        self.channel_attention += [path] if is_between_channels else []
        becomes_weights = label == axes.WEIGHTS and not has_weights
        results = self._assign_values(outputs)
        operation = Operation(
            name=name,
            path=path,
            join_index=join_index,
            sources=sources,
            results=results,
            has_kernel=name in KERNELS or (is_product and name in PRODUCTS) or is_packed,
            attends=name in ATTENTION or becomes_weights or is_between_channels,
            is_sum_of_two=is_sum_of_two,
            shape=tuple(outputs[0].shape),
        )
        self.operations.append(operation)
        is_in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
        if len(read) == len(outputs) == 1 and not is_in_place and name != "__setitem__":
            same_size = read[0].numel() == outputs[0].numel()
            is_view = same_size and read[0].data_ptr() == outputs[0].data_ptr()
            # sum([x, y]) begins with 0 + x.
            is_copy = name in COPIES and torch.equal(read[0], outputs[0])
            if is_view or is_copy:
                self._bases[results[0]] = self._bases.get(sources[0], sources[0])
        return result

    def add_call(
        self, path: str, module: torch.nn.Module, source: int, output: torch.Tensor
    ) -> None:
        """Records a submodule whose operations PyTorch does not show as one operation."""
        has_kernel = any(parameter.dim() > 1 for parameter in module.parameters())
        results, shape = self._assign_values([output]), tuple(output.shape)
        self.operations.append(
            Operation(
                name="",
                path=path,
                join_index=0,
                sources=(source,),
                results=results,
                has_kernel=has_kernel,
                attends=False,
                is_sum_of_two=False,
                shape=shape,
            )
        )

    def _assign_values(self, outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Gives tensors new values, and returns these."""
        results = tuple(range(self._num_values + 1, self._num_values + 1 + len(outputs)))
        self._num_values += len(outputs)
        for output, value in zip(outputs, results, strict=True):
            setattr(output, ATTRIBUTE, value)
        return results

    def base_of(self, value: int | None) -> int | None:
        """The value that a value is a view or a copy of, or itself."""
        return None if value is None else self._bases.get(value, value)

    def num_kernels(self, term: int, first: int, last: int, source: int | None = None) -> float:
        """The number of kernels on the way to a value, in the operations from `first` to `last`.

        It is infinite if the value depends on other values than `source`. Without a source, it may
        depend on several that were computed before `first`.
        """
        needed, count = {term}, 0
        for operation in reversed(self.operations[first:last]):
            if computed := needed & {*operation.results}:
                needed = (needed - computed) | {*operation.sources}
                count += operation.has_kernel
        return float("inf") if source is not None and needed != {source} else count

    def bottlenecks(self) -> dict[int, int]:
        """Values on which alone all later ones depend, with the index of the operation of each.

        The images, the first, have the index -1.
        """
        last_use = {v: i for i, op in enumerate(self.operations) for v in op.sources}
        alive, bottlenecks = {0}, {0: -1}
        for index, operation in enumerate(self.operations):
            alive |= {*operation.results}
            alive = {value for value in alive if last_use.get(value, -1) > index}
            if len(operation.results) == 1 and alive <= {*operation.results}:
                bottlenecks[operation.results[0]] = index
        return bottlenecks

    def junctions(self, bottlenecks: dict[int, int]) -> list[Junction]:
        """Where several paths with a kernel are joined between two neighbouring bottlenecks."""
        junctions, source = [], 0  # of the images
        for value in list(bottlenecks)[1:]:
            first, last = bottlenecks[source] + 1, bottlenecks[value]
            operations, join = self.operations[first : last + 1], self.operations[last]
            has_kernel = any(operation.has_kernel for operation in operations)
            if first < last and join.join_index and len({*join.sources}) > 1 and has_kernel:
                attending = [operation.path for operation in operations if operation.attends]
                attention_path = attending[-1] if attending else None
                # The skip of a sum of two is the term with fewer kernels, if it has one at most.
                kernels = [self.num_kernels(term, first, last) for term in join.sources]
                is_pair = join.name in ADDITIONS and len(kernels) == 2
                has_skip = is_pair and min(kernels) <= 1 and kernels[0] != kernels[1]
                skip = kernels.index(min(kernels)) if has_skip else None
                junctions.append(Junction(first, last, source, join, attention_path, skip))
            source = value
        return junctions


def _random_state() -> list[bytes]:
    """The states of PyTorch's generators of random numbers."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return [state.numpy().tobytes() for state in states]


def value_of(tensor: torch.Tensor | None) -> int | None:
    """The value that a tensor holds; None if it does not depend on the images."""
    return getattr(tensor, ATTRIBUTE, None)
