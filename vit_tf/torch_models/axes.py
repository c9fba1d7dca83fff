"""Which axis of a PyTorch tensor holds channels: followed from operation to operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

# The axis of channels of a tensor, from 0; attention weights have none. A softmax may be written as
# exponentials that are divided by their totals over the last axis.
WEIGHTS, EXPONENTIALS, TOTALS = "weights", "exponentials", "totals"
Label = int | str | None
ATTRIBUTE = "_vit_tf_axis"  # of tensors that are made while a module is traced

CHANNELS_SECOND = (
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("batch_norm", "instance_norm", "group_norm", "prelu", "local_response_norm"),
    *("pixel_shuffle", "pixel_unshuffle", "fold", "channel_shuffle"),
)
CHANNELS_LAST = ("linear", "rms_norm", "embedding", "bilinear")
# Products have neither the axes of one nor of the other factor.
PRODUCTS = (
    *("matmul", "bmm", "mm", "einsum", "tensordot", "baddbmm", "__matmul__", "__rmatmul__"),
    *("scaled_dot_product_attention",),
)
RESHAPING = ("reshape", "view", "flatten", "unflatten", "reshape_as", "view_as", "_unsafe_view")
DIVISIONS = ("div", "div_", "divide", "__truediv__", "__itruediv__", "true_divide")
TRANSPOSING = ("transpose", "transpose_", "swapaxes", "swapdims", "mT", "mH", "T", "H", "t")
REDUCING = (
    *("mean", "sum", "amax", "amin", "max", "min", "prod", "std", "var", "norm", "logsumexp"),
    *("argmax", "argmin", "median", "all", "any"),
)


def label_of(tensor: torch.Tensor) -> Label:
    """What is known about the axes of a tensor."""
    label = getattr(tensor, ATTRIBUTE, None)
    return None if isinstance(label, int) and label >= tensor.dim() else label


def set_label(tensor: Any, label: Label) -> None:
    """Keeps the label of a tensor; anything else is left alone."""
    if isinstance(tensor, torch.Tensor) and not isinstance(tensor, torch.nn.Parameter):
        setattr(tensor, ATTRIBUTE, label)


def tensors_in(values: Iterable) -> list[torch.Tensor]:
    """The tensors among arguments, and in lists of tensors among them."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [item for item in value if isinstance(item, torch.Tensor)]
    return tensors


def propagate(func: Callable, args: Sequence, kwargs: dict, result: Any) -> None:
    """Labels the result of an operation, from the labels of its arguments."""
    name = getattr(func, "__name__", "")
    if name == "__get__":  # a property, such as x.mT
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    sources = tensors_in([*args, *kwargs.values()])
    for output in tensors_in([result]) if not isinstance(result, tuple) else tensors_in(result):
        set_label(output, _label(name, args, kwargs, sources, output))


def _label(
    name: str, args: Sequence, kwargs: dict, sources: list[torch.Tensor], output: torch.Tensor
) -> Label:
    """The label of one output of an operation."""
    rank = output.dim()
    if name in CHANNELS_SECOND or "_pool" in name or name in ("interpolate", "boolean_dispatch"):
        return 1 if rank > 1 else None
    normalized = kwargs.get("normalized_shape", args[1] if len(args) > 1 else ())
    if name in CHANNELS_LAST or (name == "layer_norm" and len(tuple(normalized)) == 1):
        # A layer over tokens, as in a Mixer, leaves the channels where they are.
        known = label_of(sources[0]) if sources[0].dim() == rank else None
        return known if isinstance(known, int) else rank - 1
    if name in ("softmax", "exp", "exp_"):
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        same = (label_of(x) for x in sources if x.shape == output.shape)
        if rank in (3, 4) and all(label is None for label in same):
            if name != "softmax":
                return EXPONENTIALS
            if axis in (-1, rank - 1):
                return WEIGHTS
    labels = [label_of(x) for x in sources]
    if name in DIVISIONS and labels == [EXPONENTIALS, TOTALS]:
        return WEIGHTS
    if labels == [EXPONENTIALS] and name == "sum":
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return TOTALS if axis in (-1, (-1,), [-1], sources[0].dim() - 1) else None
    if labels == [TOTALS]:  # also with another shape, or with a small number added
        return TOTALS
    if name in PRODUCTS:
        weight = next((x for x in sources[1:] if isinstance(x, torch.nn.Parameter)), None)
        return rank - 1 if weight is not None and weight.dim() == 2 and rank > 1 else None
    source = next((x for x in sources if label_of(x) is not None), None)
    if source is None:
        return None
    axis = label_of(source)
    if not isinstance(axis, int):
        return axis if output.shape == source.shape else None
    return _moved(name, args, kwargs, source, axis, output)


def _moved(
    name: str,
    args: Sequence,
    kwargs: dict,
    source: torch.Tensor,
    axis: int,
    output: torch.Tensor,
) -> Label:
    """Where an operation moves the axis of channels of its argument."""
    before, rank = source.dim(), output.dim()
    if name == "permute":
        order = args[1] if len(args) == 2 and not isinstance(args[1], int) else args[1:]
        order = kwargs.get("dims", order)
        return [x % before for x in order].index(axis)
    if name in TRANSPOSING:
        pair = args[1:3] if len(args) > 2 else (kwargs.get("dim0"), kwargs.get("dim1"))
        dims = [dim for dim in pair if dim is not None]
        first, second = (dim % before for dim in (dims if len(dims) == 2 else (-2, -1)))
        return {first: second, second: first}.get(axis, axis)
    if name in ("movedim", "moveaxis"):
        marks = torch.empty(range(2, before + 2), device="meta")
        moved = torch.movedim(marks, *args[1:], **kwargs)
        return list(moved.shape).index(axis + 2)
    if name in RESHAPING:
        return reshaped(source.shape, axis, output.shape)
    if name == "unsqueeze":
        added = kwargs.get("dim", args[1] if len(args) > 1 else -1) % rank
        return axis + (added <= axis)
    if name in REDUCING and rank < before:
        removed = kwargs.get("dim", args[1] if len(args) > 1 else None)
        removed = [removed] if isinstance(removed, int) else removed
        if removed is None:
            return None
        removed = [x % before for x in removed]
        return None if axis in removed else axis - sum(x < axis for x in removed)
    if rank == before:
        return axis
    # An index or a stack: axes from the end keep their order where the channels are the last.
    same_end = axis == before - 1 and rank and output.shape[-1] == source.shape[-1]
    return rank - 1 if same_end else None


def reshaped(before: Sequence[int], axis: int, after: Sequence[int]) -> int | None:
    """The axis that is still the same after a reshape: of equal size and number of values after."""
    size, values_after = before[axis], math.prod(before[axis + 1 :])
    fits = [
        index
        for index, length in enumerate(after)
        if length == size and math.prod(after[index + 1 :]) == values_after
    ]
    return fits[0] if fits else None
