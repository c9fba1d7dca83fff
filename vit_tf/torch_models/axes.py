"""Which axes of a PyTorch tensor hold channels, and what is attention, followed while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

# Labels of tensors: the axes over which channels are spread, such as those of heads and of channels
# of a head; or what attention computes instead. Scores are products of queries and keys, and their
# softmax over the last axis is the weights. A softmax may be written as exponentials that are
# divided by their totals. Covariances of channels are sums over tokens, as in cross-covariance
# attention.
SCORES, EXPONENTIALS, TOTALS, WEIGHTS = "scores", "exponentials", "totals", "weights"
COVARIANCES, CHANNEL_WEIGHTS = "covariances", "channel weights"
Label = tuple[int, ...] | str | None
# Attributes of tensors that are made while a module is traced.
ATTRIBUTES = ATTRIBUTE, FOLDED = "_vit_tf_axes", "_vit_tf_folded_heads"

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
CONCATENATIONS = ("cat", "concat", "concatenate")
DIVISIONS = ("div", "div_", "divide", "__truediv__", "__itruediv__", "true_divide")
TRANSPOSING = ("transpose", "transpose_", "swapaxes", "swapdims", "mT", "mH", "T", "H", "t")
MOVING = ("permute", *TRANSPOSING, "movedim", "moveaxis")
REDUCING = (
    *("mean", "sum", "amax", "amin", "max", "min", "prod", "std", "var", "norm", "logsumexp"),
    *("argmax", "argmin", "median", "all", "any"),
)


def label_of(tensor: torch.Tensor) -> Label:
    """What is known about the axes of a tensor."""
    return getattr(tensor, ATTRIBUTE, None)


def channel_axis(tensor: torch.Tensor) -> int | None:
    """The axis of channels of a tensor, from 0; None if it is unknown or if there are several."""
    label = label_of(tensor)
    return label[0] if isinstance(label, tuple) and len(label) == 1 else None


class FoldedHeads(NamedTuple):
    """Heads that share an axis with examples or windows."""

    axis: int
    count: int
    are_last: bool  # whether the heads of one example are next to each other


def folded_heads(tensor: torch.Tensor) -> FoldedHeads | None:
    """The heads that are folded into another axis of a tensor; None if none are known to be."""
    return getattr(tensor, FOLDED, None)


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


@dataclass(frozen=True)
class Call:
    """A call of a function of PyTorch, and one of the tensors that it returns."""

    function: Callable
    name: str
    args: Sequence
    kwargs: dict
    sources: list[torch.Tensor]  # the tensors among the arguments
    output: torch.Tensor

    @property
    def dim(self) -> Any:
        """The argument `dim`, often the second; None without one."""
        return self.kwargs.get("dim", self.args[1] if len(self.args) > 1 else None)

    @property
    def main_source(self) -> torch.Tensor:
        """The tensor that a function of one tensor changes, or the first factor of a product."""
        return self.sources[1 if self.name == "baddbmm" else 0]


def propagate(func: Callable, args: Sequence, kwargs: dict, result: Any) -> None:
    """Labels the result of an operation, from the labels of its arguments."""
    name = getattr(func, "__name__", "")
    if name == "__get__":  # a property, such as x.mT
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    sources = tensors_in([*args, *kwargs.values()])
    for output in tensors_in(result if isinstance(result, tuple) else [result]):
        call = Call(func, name, args, kwargs, sources, output)
        if output.dim():
            set_label(output, _label(call))
            setattr(output, FOLDED, _folded_heads(call) if sources else None)


def _label(call: Call) -> Label:
    """The label of what a call returns."""
    name, sources, rank = call.name, call.sources, call.output.dim()
    labels = [label for x in sources if (label := label_of(x)) is not None]
    # A kernel that mixes the heads of scores keeps their shape; others make channels of a product.
    is_kernel = name in (*CHANNELS_SECOND, *CHANNELS_LAST) or "_pool" in name
    is_other = is_kernel and call.output.shape != call.main_source.shape
    if labels and isinstance(labels[0], str) and name not in PRODUCTS and not is_other:
        return _label_in_attention(call, labels)
    if name in CHANNELS_SECOND or "_pool" in name or name in ("interpolate", "boolean_dispatch"):
        return (1,) if rank > 1 else None
    normalized = call.kwargs.get("normalized_shape", call.args[1] if len(call.args) > 1 else ())
    if name in CHANNELS_LAST or (name == "layer_norm" and len(tuple(normalized)) == 1):
        # A layer over tokens, as in a Mixer, leaves the channels where they are.
        known = channel_axis(sources[0]) if sources[0].dim() == rank else None
        return (rank - 1,) if known is None else (known,)
    if name in PRODUCTS:
        weight = next((x for x in sources[1:] if isinstance(x, torch.nn.Parameter)), None)
        if weight is not None:
            return (rank - 1,) if weight.dim() == 2 and rank > 1 else None
        if len(sources) < 2 or any(isinstance(label, str) for label in labels):
            return None
        return SCORES if _sums_channels(call) else COVARIANCES
    # Other operations leave channels where they are, or move their axes.
    source = next((x for x in sources if isinstance(label_of(x), tuple)), None)
    if source is None:
        return None
    channels = {*cast(tuple, label_of(source))}
    blocks = _moved_axes(call, source)
    return tuple(sorted(x for old, new in blocks if {*old} <= channels for x in new)) or None


def _label_in_attention(call: Call, labels: Sequence[Label]) -> Label:
    """The label of what is computed from attention scores or weights."""
    name = call.name
    is_last = name in ("softmax", "sum") and call.dim in (
        -1,
        (-1,),
        [-1],
        call.sources[0].dim() - 1,
    )
    if name == "softmax":
        is_attention = is_last and call.output.dim() in (3, 4)
        kinds = {SCORES: WEIGHTS, COVARIANCES: CHANNEL_WEIGHTS}
        return kinds.get(str(labels[0])) if is_attention else None
    if name in ("exp", "exp_") and labels[0] == SCORES:
        return EXPONENTIALS
    if name in DIVISIONS and labels == [EXPONENTIALS, TOTALS]:
        return WEIGHTS
    if name == "sum" and labels == [EXPONENTIALS]:
        return TOTALS if is_last else None
    # Scores may be scaled, masked, split into windows or mixed between heads, and totals reshaped.
    if labels[0] in (SCORES, COVARIANCES, TOTALS):
        return labels[0]
    is_mixed = name in (*CHANNELS_SECOND, *CHANNELS_LAST, *MOVING, "layer_norm")
    return labels[0] if call.output.shape == call.sources[0].shape and not is_mixed else None


def _sums_channels(product: Call) -> bool:
    """Whether a product of two tensors may sum over channels, as that of queries and keys does."""
    first = product.main_source
    summed = {first.dim() - 1}
    if product.name == "einsum" and isinstance(product.args[0], str):
        terms, _, result = product.args[0].replace(" ", "").partition("->")
        letters = terms.split(",")[0].rpartition("...")[2]
        start = first.dim() - len(letters)
        summed = {start + i for i, letter in enumerate(letters) if letter not in result}
    channels = label_of(first)
    return not isinstance(channels, tuple) or bool(summed & {*channels})


def _folded_heads(call: Call) -> FoldedHeads | None:
    """The heads that a call folds into another axis, or that its argument had there before."""
    source, output = call.main_source, call.output
    folded, label = folded_heads(source), label_of(source)
    if call.name in CONCATENATIONS and len(call.sources) > 1:
        # Parts of one tensor are put next to each other along the axis of examples.
        stores = {x.untyped_storage().data_ptr() for x in call.sources}
        is_folding = len(stores) == 1 and call.dim in (None, 0)
        return FoldedHeads(0, len(call.sources), are_last=False) if is_folding else None
    if call.name in PRODUCTS:
        return folded if output.shape[:-2] == source.shape[:-2] else None
    if folded is not None:
        moved = [new for old, new in _moved_axes(call, source) if list(old) == [folded.axis]]
        return folded._replace(axis=moved[0][0]) if moved and len(moved[0]) == 1 else None
    # A reshape may make one axis of heads and others.
    if call.name in RESHAPING and isinstance(label, tuple):
        for old, new in reshaped_axes(source.shape, output.shape):
            heads = [axis for axis in old if axis in label]
            if len(new) == 1 and 0 < len(heads) < len(old):
                count = math.prod(source.shape[axis] for axis in heads)
                return FoldedHeads(new[0], count, are_last=old[-1] in heads)
    return None


# Axes before an operation and those after it that hold the same values.
Block = tuple[Sequence[int], Sequence[int]]
MARK = 2  # size of the first axis of a tensor whose axes are followed by their sizes


def _moved_axes(call: Call, source: torch.Tensor) -> list[Block]:
    """Where a call moves the axes of its argument."""
    name, output = call.name, call.output
    before, rank = source.dim(), output.dim()
    if name in (*RESHAPING, "squeeze", "unsqueeze"):
        return reshaped_axes(source.shape, output.shape)
    if name == "__getitem__" and not _holds_tensors(call.args[1:]):
        return _indexed_axes(call.args[1], before)
    if name in ("unbind", "select"):
        removed = (call.dim or 0) % before
        kept = [axis for axis in range(before) if axis != removed]
        return [([axis], [index]) for index, axis in enumerate(kept)]
    is_reduced = name in REDUCING and rank < before
    if name in MOVING or is_reduced:
        # The same operation on a tensor without values, whose axes differ in size.
        marks = torch.empty([*range(MARK, MARK + before)], device="meta")
        others = {key: x for key, x in call.kwargs.items() if key not in ("input", "self")}
        moved = (
            marks.sum(call.dim) if is_reduced else call.function(marks, *call.args[1:], **others)
        )
        sizes = list((moved if isinstance(moved, torch.Tensor) else moved[0]).shape)
        found = {axis: MARK + axis for axis in range(before) if MARK + axis in sizes}
        if rank < before or len(found) == before:
            return [([axis], [sizes.index(size)]) for axis, size in found.items()]
    if rank == before:
        return [([axis], [axis]) for axis in range(rank)]
    # A stack, or an index by tensors, leaves the last axis.
    return [([before - 1], [rank - 1])] if output.shape[-1] == source.shape[-1] else []


def _indexed_axes(index: Any, rank: int) -> list[Block]:
    """Where the axes of a tensor of a rank are after an index of integers, slices and None."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(item is not None and item is not Ellipsis for item in items)
    rest = [slice(None)] * (rank - taken)
    place = items.index(Ellipsis) if Ellipsis in items else len(items)
    blocks: list[Block] = []
    old = new = 0
    for item in (*items[:place], *rest, *items[place + 1 :]):
        if isinstance(item, slice):
            blocks.append(([old], [new]))
        old += item is not None
        new += not isinstance(item, int)
    return blocks


def _holds_tensors(values: Any) -> bool:
    """Whether an index, or a part of it, is a tensor or a list."""
    if isinstance(values, tuple):
        return any(map(_holds_tensors, values))
    return isinstance(values, torch.Tensor | list)


def reshaped_axes(before: Sequence[int], after: Sequence[int]) -> list[Block]:
    """The axes of which a reshape makes others, as the smallest blocks of as many values."""
    old, new = ([axis for axis, size in enumerate(x) if size > 1] for x in (before, after))
    blocks: list[Block] = []
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        while (values := math.prod(before[x] for x in left)) != (
            others := math.prod(after[x] for x in right)
        ):
            part, rest = (left, old) if values < others else (right, new)
            if not rest:  # not a reshape, but another view of the memory
                return []
            part.append(rest.pop(0))
        blocks.append((left, right))
    return blocks
