"""A PyTorch module as a function of images: what it computes inside, traced, run and edited."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch

from vit_tf.common.names import format_list, is_part, last_part
from vit_tf.torch_models import axes
from vit_tf.torch_models.dataflow import Dataflow, value_of
from vit_tf.torch_models.execution import (
    LOCK,
    OUTPUT,
    SCORES,
    Execution,
    as_inference,
    fields_of,
    main_tensor,
    returned_tensor,
)
from vit_tf.torch_models.expectations import (
    find_image_shape,
    image_encoder_hint,
    num_image_channels,
)
from vit_tf.torch_models.structure import (
    EMBEDDING,
    Call,
    Structure,
    adds_to_input,
    find_structure,
)

Array = np.ndarray
BATCH_SIZES = (2, 3)  # of two runs, which show the axis of examples
# What is computed inside submodules, and not returned by one.
INSIDE = ("weights", "heads", "skip", "branch", "sum", "concatenation")


@dataclass(frozen=True)
class Layout:
    """How the axes of a tensor are ordered in a measurement, and its shape there."""

    order: tuple[int, ...]
    shape: tuple[int, ...]  # without the axis of examples
    has_examples: bool  # whether the first axis is that of examples

    def measured(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the module with the axes of a measurement."""
        return tensor.permute(self.order)

    def native(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a measurement with the axes of the module."""
        return tensor.permute(tuple(np.argsort(self.order)))


@dataclass(frozen=True)
class Trace:
    """What a module computes for images of one shape."""

    layouts: dict[str, Layout]  # by name, in the order of computation
    classes: dict[str, str]  # names of the classes of the submodules that run
    structure: Structure = field(default_factory=Structure)
    # Submodules whose softmax is changed before it weights the values, as by talking heads.
    changed_weights: tuple[str, ...] = ()
    # Submodules whose weights are between channels, as in cross-covariance attention.
    channel_attention: tuple[str, ...] = ()
    # From several vectors that the module returns, none of which is known to be the class scores,
    # to the names of the values that they are, "" for none.
    vectors: dict[str, str] = field(default_factory=dict)
    # What the module ends in, as `Execution.ending`.
    ending: str = ""


NOTHING = Trace({}, {})


class TorchModule:
    """A PyTorch module that is run as inference, and left as it was."""

    def __init__(self, module: torch.nn.Module, size: Sequence[int] | None = None):
        # `size` is (height, width) or (height, width, channel) of images that are at hand.
        self.module, self._size = unwrapped(module), size
        self.name = type(self.module).__name__
        _require_runnable(self.module, self.name)
        self._traces: dict[tuple[int, ...], Trace] = {}

    @cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channel) of the images, by default those that it is made for."""
        if self._size is None:
            return find_image_shape(self)
        height, width, *channels = self._size
        return height, width, channels[0] if channels else num_image_channels(self.module)

    def with_module(self, module: torch.nn.Module) -> TorchModule:
        """The same for another module of the same structure, whose traces these are too."""
        other = copy.copy(self)
        other.module = unwrapped(module)
        return other

    def trace(self, image_shape: Sequence[int]) -> Trace:
        """What it computes for images of shape (height, width, channel)."""
        key = tuple(image_shape)
        if key not in self._traces:
            self._traces[key] = _trace(self, key)
            if draws := self._traces[key].structure.draws:
                operations = [f"{name} in {p!r}" if p else name for name, p in draws.items()]
                warnings.warn(
                    f"{self.name!r} draws random numbers in inference, by "
                    f"{format_list(operations)}: its values are those of one draw",
                    stacklevel=2,
                )
        return self._traces[key]

    def as_tensor(self, images: Array) -> torch.Tensor:
        """Images (example, height, width, channel) as the module takes them."""
        parameter = next((p for p in self.module.parameters() if p.is_floating_point()), None)
        parameter = torch.zeros(()) if parameter is None else parameter
        # A copy, since a module may normalize its input in place.
        channels_first = np.array(np.moveaxis(np.asarray(images), -1, 1), order="C")
        return torch.from_numpy(channels_first).to(parameter.device, parameter.dtype)

    def values(
        self, images: Array, names: Sequence[str], edited: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """The values at some names, as float32 arrays with the axes of a measurement.

        `edited` are values that take the place of those that are computed.
        """
        edited, recorded = dict(edited or {}), {}
        trace = self.trace(images.shape[1:]) if names or edited else NOTHING

        def watch(name: str, value: torch.Tensor) -> torch.Tensor:
            if name in edited:
                given = torch.from_numpy(np.ascontiguousarray(edited[name]))
                value = trace.layouts[name].native(given).to(value.device, value.dtype)
                value = value.contiguous()
            if name in names:
                # Copied, as an operation in place may change it afterwards.
                recorded[name] = as_array(trace.layouts[name].measured(value), copy=True)
            return value

        with LOCK, torch.no_grad(), as_inference(self.module):
            self.execution(trace, watch, {*names, *edited}).run(self.as_tensor(images))
        return {name: recorded[name] for name in names if name in recorded}

    def execution(self, trace: Trace, watch: Any, names: set[str]) -> Execution:
        """A run that watches what it needs to, for these names."""
        paths = {name.partition("@")[0] for name in names}
        # The embedding is an input, of the first block, and so may scores be, of a softmax at the
        # end: a run sees inputs only if it looks inside submodules.
        inside = any(is_inside_a_module(name) or name in (EMBEDDING, SCORES) for name in names)
        paths = {"" if path in (SCORES, OUTPUT) else path for path in paths}
        return Execution(self.module, watch, paths, trace.structure, inside)


def _require_runnable(module: torch.nn.Module, name: str) -> None:
    """Raises a `ValueError` for a module without values, or with submodules compiled one by one."""
    parameters = [*module.named_parameters(), *module.named_buffers()]
    is_lazy = torch.nn.parameter.is_lazy
    if empty := [n for n, p in parameters if is_lazy(p) or (p is not None and p.is_meta)]:
        raise ValueError(
            f"{name} has parameters without values, lazy or on the device 'meta': load its "
            f"weights, or call it on images once. Received: {format_list(empty)}"
        )
    paths = [path for path, _ in module.named_modules()]
    if compiled := [p.removesuffix("._orig_mod") for p in paths if p.endswith("._orig_mod")]:
        raise ValueError(
            f"{name} has compiled submodules, {format_list(compiled)}: compile the whole module, "
            "or measure it before"
        )


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module in a compiled or a parallel one, whose own submodules run."""
    inner = getattr(module, "_orig_mod", None)
    if type(module).__name__ in ("DataParallel", "DistributedDataParallel"):
        inner = module.module
    return module if inner is None else unwrapped(cast(torch.nn.Module, inner))


def is_inside_a_module(name: str) -> bool:
    """Whether a name is of a value that no submodule returns."""
    return is_part(name, *INSIDE)


def as_array(tensor: torch.Tensor, copy: bool = False) -> Array:
    """A tensor as a float32 array."""
    array = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return array.copy() if copy else array


def _trace(model: TorchModule, image_shape: tuple[int, ...]) -> Trace:
    """Runs a module twice, on batches of the two sizes, whose images are zeros.

    The first run shows the structure: calls, shapes, blocks and the final norm. The second names
    the values, and follows the axis of channels through the operations. An axis of examples is one
    whose length in both runs is the size of the batch.
    """
    module = model.module
    images = [np.zeros((size, *image_shape), np.float32) for size in BATCH_SIZES]
    with LOCK, torch.no_grad(), as_inference(module):
        try:
            calls, flow = _calls(module, model.as_tensor(images[0]))
        except Exception as error:  # a module may raise anything for images of another form
            reason = (str(error).strip() or type(error).__name__).split("\n")[0]
            raise ValueError(
                f"Expected images of shape (example, height, width, channel) that {model.name} "
                f"takes. Received: shape (example, {', '.join(map(str, image_shape))}), for which "
                f"it raises {reason!r}{image_encoder_hint(module, error)}"
            ) from error
        shapes = {call.path: call.output.shape for call in calls if call.output is not None}
        structure = find_structure(calls, flow)
        attending = dict.fromkeys(x.path for x in flow.operations if x.attends)
        sources = {call.path: call.source for call in calls}
        source = sources.get(structure.entrance or "")
        if structure.entrance and source is not None:
            shapes[EMBEDDING] = source.shape
        shapes |= dict.fromkeys((SCORES, OUTPUT), shapes.get("", ()))
        classes = {call.path: type(call.module).__name__ for call in calls}
        # These hold all outputs of the first run, which the second needs no more.
        del calls, sources, source
        layouts, vectors = {}, {}

        def watch(name: str, value: torch.Tensor) -> torch.Tensor:
            layouts[name] = layout_of(name, value, shapes, image_shape)
            if value.dim() == 2 and name != SCORES:
                vectors[name] = value
            return value

        tensor = model.as_tensor(images[1])
        axes.set_label(tensor, (1,))  # the channels of images (example, channel, height, width)
        paths = {path for path, _ in module.named_modules()}
        execution = Execution(module, watch, paths, structure, inside=True)
        execution.run(tensor)
    for name in _divided_heads(layouts, execution.divided_heads):
        del layouts[name]
    returned = {
        output: next((name for name, value in vectors.items() if value is vector), "")
        for output, vector in execution.vectors.items()
        if len(execution.vectors) > 1
    }
    # A softmax may be a submodule of its own.
    read = execution.attending
    unread = [path for path in attending if not {path, path.rpartition(".")[0]} & read]
    between_channels = tuple(path for path in unread if path in flow.channel_attention)
    return Trace(
        layouts,
        classes,
        structure,
        changed_weights=tuple(path for path in unread if path not in between_channels),
        channel_attention=between_channels,
        vectors=returned,
        ending=execution.ending,
    )


def _divided_heads(layouts: Mapping[str, Layout], sites: Collection[str]) -> list[str]:
    """Names of outputs that are only a part of the output of heads.

    These are outputs at the given sites, and those of attention that takes its queries in chunks.
    """
    divided = {f"{site}/heads" for site in sites}
    parts = [name for name in layouts if name.partition("@")[0] in divided]
    for name in layouts:
        site, _, end = name.rpartition("/")
        weights = layouts.get(f"{site}/weights")
        is_chunked = weights is not None and len({*weights.shape[1:]}) > 1
        if end.startswith("heads") and is_chunked and f"{site}/heads@2" in layouts:
            parts.append(name)
    return list(dict.fromkeys(parts))


def _calls(module: torch.nn.Module, images: torch.Tensor) -> tuple[list[Call], Dataflow]:
    """The calls of all submodules, in the order in which they return, and the flow of values.

    If a submodule runs again, as a block that all depths share does, its later calls are included,
    but not the later calls of the submodules inside it.
    """
    calls, handles, sources, counts = {}, [], {}, Counter()
    starts: dict[str, tuple[int, int | None]] = {}
    stack: list[str] = []
    flow = Dataflow(images, stack)

    def before(path: str) -> Any:
        def hook(_: torch.nn.Module, args: tuple, kwargs: dict) -> None:
            stack.append(path)
            sources[path] = main_tensor([args, kwargs])
            starts[path] = len(flow.operations), value_of(sources[path])
            counts[path] += 1

        return hook

    def after(path: str) -> Any:
        def hook(submodule: torch.nn.Module, args: tuple, output: Any) -> None:
            number = counts[path]
            name = path if number == 1 else f"{path}@{number}"
            if number > 1 and any(counts[outer] > 1 for outer in stack[:-1]):
                return
            tensor = main_tensor(output) if path else returned_tensor(output)
            first, source_value = starts[path]
            is_script = isinstance(submodule, torch.jit.ScriptModule)
            if is_script and source_value is not None and tensor is not None:
                flow.add_call(path, submodule, source_value, tensor)
            calls[name] = Call(
                *(name, submodule, sources.get(path), tensor),
                *(first, len(flow.operations), source_value, value_of(tensor)),
                has_logits="logits" in fields_of(output),
            )

        return hook

    def leave(submodule: torch.nn.Module, args: tuple, output: Any) -> None:
        stack.pop()

    try:
        for path, submodule in module.named_modules():
            if not isinstance(submodule, torch.jit.ScriptModule):
                handles.append(submodule.register_forward_pre_hook(before(path), with_kwargs=True))
                handles.append(submodule.register_forward_hook(after(path)))
                # A submodule that raises has ended too, for a caller that goes on.
                handles.append(submodule.register_forward_hook(leave, always_call=True))
        with flow:
            module(images)
    finally:
        for handle in handles:
            handle.remove()
    for call in calls.values():
        call.has_skip = adds_to_input(call, flow)
    return list(calls.values()), flow


def layout_of(
    name: str, value: torch.Tensor, shapes: Mapping[str, Sequence[int]], image_shape: tuple
) -> Layout:
    """The layout of a value of a batch of the second size, by name, from shapes of the first."""
    rank = value.dim()
    path = name.partition("@")[0].partition("/")[0]
    # Weights and heads have axes of their own, and not those of the submodule they are named after.
    first_shape = shapes.get(path, ()) if "/weights" not in name and "/heads" not in name else ()
    is_comparable = len(first_shape) == rank
    # An axis that holds windows of all examples is longer than the batch, and holds no examples.
    example_axes = [
        axis
        for axis, length in enumerate(value.shape)
        if is_comparable and (first_shape[axis], length) == BATCH_SIZES
    ]
    examples = example_axes[0] if example_axes else 0
    has_examples = bool(example_axes) or (not is_comparable and value.shape[0] == BATCH_SIZES[1])
    # A submodule may be called "heads" too: its output has the axes of any other.
    end = last_part(name) if is_inside_a_module(name) else ""
    channels = axes.channel_axis(value)
    if end == "heads":
        order = [0, 2, 1, 3]
    elif end == "weights" or axes.label_of(value) == axes.WEIGHTS:
        order = list(range(rank))
    else:
        channels = _axis_of_channels(value.shape, image_shape) if channels is None else channels
        order = [i for i in range(rank) if i not in (examples, channels)]
        order = [examples, *order, *([channels] if channels != examples else [])]
    shape = tuple(value.shape[i] for i in order[1:])
    return Layout(tuple(order), shape, has_examples)


def _axis_of_channels(shape: Sequence[int], image_shape: tuple) -> int:
    """The axis of channels of a tensor of unknown origin: that which leaves maps like the image."""
    if len(shape) != 4:
        return len(shape) - 1
    height, width = image_shape[:2]
    is_first = shape[2] * width == shape[3] * height
    is_last = shape[1] * width == shape[2] * height
    return 1 if is_first and not is_last else 3
