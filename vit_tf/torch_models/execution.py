"""One run of a PyTorch module as inference, in which values are recorded and replaced."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import string
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from vit_tf.common.names import are_named
from vit_tf.torch_models import axes
from vit_tf.torch_models.dataflow import ATTRIBUTE as VALUE, JOINS
from vit_tf.torch_models.structure import EMBEDDING, Site, Structure

Tensor = torch.Tensor
# Takes the name of a value inside a module and the value; returns what the module goes on with.
Watch = Callable[[str, Tensor], Tensor]
# Names of what the model returns.
SCORES, OUTPUT = "logits", "output"
# The operations at the end of a classifier that show what its scores are.
ENDINGS = {"softmax": "softmax", "log_softmax": "softmax", "sigmoid": "sigmoids"}
ENDINGS |= {"linear": "linear", "log_sigmoid": "sigmoids"}
# Operations that leave probabilities in their order, with positive numbers as other arguments.
RESCALING = ("mul", "__mul__", "__rmul__", "div", "true_divide", "__truediv__", "add", "__add__")
RESCALING += ("__radd__", "clamp", "clamp_min", "clamp_max", "clip", "log", "round")
MULTIPLICATIONS = ("matmul", "__matmul__", "bmm")
# The fields of an output with several tensors that stand for it, best first.
MAIN_FIELDS = ("logits", "last_hidden_state", "hidden_states", "image_embeds", "x", "out")
# A module has hooks while it runs, and another run of it must not see them.
LOCK = threading.RLock()


def main_tensor(output: Any) -> Tensor | None:
    """The tensor that an output stands for: its first one, or that of a field of `MAIN_FIELDS`."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() and output.dim() else None
    fields = fields_of(output)
    names = [name for name in MAIN_FIELDS if name in fields]
    for name in [*names, *fields]:
        if (tensor := main_tensor(fields[name])) is not None:
            return tensor
    return None


def returned_tensor(output: Any) -> Tensor | None:
    """The tensor that the output of a whole model stands for; None where it is not known.

    A vector among outputs without one of the usual names is the class scores if it is the only one.
    """
    vectors = unnamed_scores(output)
    if are_named(vectors):
        return next(iter(vectors.values())) if len(vectors) == 1 else None
    return main_tensor(output)


def unnamed_scores(output: Any) -> dict[str, Tensor]:
    """The vectors among several outputs by name or index, if none has one of the usual names."""
    fields = fields_of(output)
    if any(name in MAIN_FIELDS for name in fields):
        return {}
    vectors: dict[str, Tensor] = {}
    for name, value in fields.items():
        tensor = main_tensor(value)
        if nested := unnamed_scores(value):
            vectors |= {f"{name}/{inner}": vector for inner, vector in nested.items()}
        elif tensor is not None and tensor.dim() == 2:
            vectors[str(name)] = tensor
    return vectors


def fields_of(output: Any) -> dict:
    """The parts of an output by name or index: of a dict, a sequence, a dataclass or an object."""
    if isinstance(output, Mapping):
        return dict(output)
    if hasattr(output, "_asdict"):
        return output._asdict()
    if isinstance(output, list | tuple):
        return dict(enumerate(output))
    if dataclasses.is_dataclass(output):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return {}


def _substituted(output: Any, old: Tensor | None, new: Tensor) -> Any:
    """The output with a new tensor in place of an old one."""
    if output is old:
        return new
    if isinstance(output, Mapping):
        changed = {key: _substituted(value, old, new) for key, value in output.items()}
        kind = cast(Any, type(output))  # `Mapping` declares no constructor
        return kind(**changed) if hasattr(output, "to_tuple") else kind(changed)
    if isinstance(output, list | tuple):
        parts = [_substituted(value, old, new) for value in output]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        fields = {name: _substituted(x, old, new) for name, x in fields_of(output).items()}
        return dataclasses.replace(output, **fields)
    return output


@contextlib.contextmanager
def as_inference(module: torch.nn.Module) -> Iterator[None]:
    """The module in evaluation mode; afterwards every submodule has the mode that it had.

    The flags are set without `train` and `eval`, which modules may override.
    """
    modes = [(m, m.training) for m in module.modules() if hasattr(m, "training")]  # not if frozen
    try:
        for m, _ in modes:
            m.training = False
        with torch.random.fork_rng(devices=cuda_devices()):
            yield
    finally:
        for m, mode in modes:
            m.training = mode
        # What a trace notes on tensors must not stay on those of the module.
        for tensor in (*module.parameters(), *module.buffers()):
            for name in (*axes.ATTRIBUTES, VALUE):
                vars(tensor).pop(name, None)


def cuda_devices() -> list[int]:
    """The CUDA devices whose random numbers a module may draw, if CUDA is in use."""
    return [*range(torch.cuda.device_count())] if torch.cuda.is_initialized() else []


@contextlib.contextmanager
def with_gradients() -> Iterator[None]:
    """Gradients are recorded, also within a caller's `torch.no_grad` or `torch.inference_mode`."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextlib.contextmanager
def _without_dispatch() -> Iterator[None]:
    """`multi_head_attention_forward` runs its own operations, and does not ask the mode to.

    A mode sees a function of several operations as one, and calling it within the mode recurses
    (https://docs.pytorch.org/docs/stable/notes/extending.html, since PyTorch 1.13).
    """
    functional = cast(Any, F)  # its stub lacks this name
    before = functional.has_torch_function
    functional.has_torch_function = lambda _: False
    try:
        yield
    finally:
        functional.has_torch_function = before


def find_weighted_mean(args: tuple) -> tuple[str, list[Tensor], list[int]] | None:
    """The means that `torch.einsum` computes of values by attention weights (..., query, key).

    Returns the equation for the means in the order of `@`, (..., query, channel), the weights and
    the values, and the order of the axes in the result; None for other products.
    """
    equation = args[0].replace(" ", "") if args and isinstance(args[0], str) else ""
    match = re.fullmatch(r"([\w.]+),([\w.]+)->([\w.]+)", equation)
    if match is None or len(args) != 3:
        return None
    # The weights may come first or second.
    first, second, result = match.groups()
    weights, values = (args[1], first), (args[2], second)
    if axes.label_of(weights[0]) != axes.WEIGHTS:
        weights, values = values, weights
    if axes.label_of(weights[0]) != axes.WEIGHTS:
        return None
    # Letters take the place of "...", which stands for the same axes everywhere.
    letters = "".join(letter for letter in string.ascii_letters if letter not in equation)
    num_hidden = weights[0].dim() - len(weights[1].replace("...", ""))
    of_weights, of_values, result = (
        term.replace("...", letters[:num_hidden]) for term in (weights[1], values[1], result)
    )
    *shared, query, key = of_weights
    channels = "".join({*of_values} - {*of_weights})
    means = "".join([*shared, query, channels])
    # The keys are summed, each query has its own mean, and all other axes are in both.
    is_mean = len(channels) == 1 and {*of_values} == {*shared, key, channels}
    if not is_mean or sorted(result) != sorted(means):
        return None
    order = [means.index(axis) for axis in result]
    return f"{of_weights},{of_values}->{means}", [weights[0], values[0]], order


class Execution(TorchFunctionMode):
    """Watches what a module computes while it runs.

    `watch` is given the output of each submodule in `paths`, under its path, and values that no
    submodule returns: `BLOCK/attention/weights`, attention weights of shape (example, head, query,
    key) as they are multiplied with the values, and `BLOCK/attention/heads`, the product, outside
    of `blocks` under the path of the submodule that computes them; and of each block the `skip`,
    `branch` and `sum` where it adds something to its input: `BLOCK/attention/skip`,
    `BLOCK/mlp/skip`, or `BLOCK/skip` of a block without attention. What `watch` returns takes the
    place of the value.

    Fused attention is computed step by step, with the arithmetic of its documentation.
    """

    def __init__(
        self, module: torch.nn.Module, watch: Watch, paths: set[str], structure: Structure,
        inside: bool,
    ):  # fmt: skip
        super().__init__()
        self._module, self._watch, self._paths = module, watch, paths
        self._structure, self._blocks = structure, {*structure.blocks}
        self._inside = inside  # whether to look inside submodules
        self._stack: list[str] = []
        self._calls: Counter = Counter()
        self._joins: Counter = Counter()  # sums and concatenations in a submodule's own code
        self._batch_size = 0
        # The last vectors of one of `ENDINGS`, what they were computed from, and its name.
        self._ending: tuple[Tensor, Tensor, str] | None = None
        # What the module ends in, a key of `ScoreKind` or "linear"; "" where it is not known.
        self.ending = ""
        self.attending: set[str] = set()  # paths of submodules that weight values by a softmax
        # The last attention weights that were multiplied, and what took their place.
        self._applied: tuple[Tensor | None, Tensor | None] = None, None
        self.divided_heads: set[str] = set()  # sites whose weights are multiplied more than once
        # Several vectors that the module returns, none of which has a usual name.
        self.vectors: dict[str, Tensor] = {}

    def run(self, images: Tensor) -> Any:
        """The output of the module for images of shape (example, channel, height, width)."""
        self._batch_size = len(images)
        handles, scripts = [], []
        try:
            for path, module in self._module.named_modules():
                if isinstance(module, torch.jit.ScriptModule):
                    if path and not path.startswith(tuple(scripts)):
                        handles.append(module.register_forward_hook(self._after(path)))
                    scripts.append(f"{path}.")
                    continue
                if self._inside:
                    handles.append(
                        module.register_forward_pre_hook(self._before(path), with_kwargs=True)
                    )
                if self._inside or path in self._paths:
                    handles.append(module.register_forward_hook(self._after(path)))
            with self if self._inside else contextlib.nullcontext():
                return self._module(images)
        finally:
            for handle in handles:
                handle.remove()

    def named(self, name: str, value: Tensor) -> Tensor:
        """The value to go on with at a name, which has its number of the call behind it."""
        self._calls[name] += 1
        number = self._calls[name]
        return self._watch(name if number == 1 else f"{name}@{number}", value)

    def _before(self, path: str) -> Callable:
        def hook(module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple | None:
            self._stack.append(path)
            if path != self._structure.entrance or self._calls[EMBEDDING]:
                return None
            source = main_tensor([args, kwargs])
            stream = None if source is None else self.named(EMBEDDING, source)
            if source is None or stream is None or stream is source:
                return None
            return _substituted(args, source, stream), _substituted(kwargs, source, stream)

        return hook

    def _after(self, path: str) -> Callable:
        def hook(module: torch.nn.Module, args: tuple, output: Any) -> Any:
            if self._inside and self._stack:
                self._stack.pop()
            if not path:
                self.vectors = unnamed_scores(output)
            tensor_of = main_tensor if path else returned_tensor
            value = tensor_of(output) if path in self._paths else None
            if value is None:
                return None
            if not path and self._batch_size == 1 and value.dim() == 1 and len(value) > 1:
                value = value[None]  # `squeeze()` has removed the axis of one image, too
            if not path and value.dim() == 2:
                scores = value
                if self._ending and self._ending[0] is value:
                    _, argument, self.ending = self._ending
                    scores = value if self.ending == "linear" else argument
                    # The probability of the second of two classes: their log-odds.
                    if self.ending == "sigmoids" and scores.shape[1] == 1:
                        self.ending = "sigmoid"
                        scores = torch.cat([-scores, scores], dim=1)
                result = self.named(SCORES, scores)
                if scores is not value or result is value:
                    return None
                return _substituted(output, main_tensor(output), result)
            result = self.named(path or OUTPUT, value)
            if result is value:
                return None
            if self._ending and self._ending[0] is value:
                self._ending = result, *self._ending[1:]
            return _substituted(output, main_tensor(output), result)

        return hook

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is F.multi_head_attention_forward:
            with _without_dispatch(), self:
                return func(*args, **kwargs)  # its operations are watched in its place
        site = None  # of a sum or concatenation that ends a block, or has a skip
        if name in JOINS:
            path = self._stack[-1] if self._stack else ""
            self._joins[path] += 1
            site = self._structure.sites.get((path, self._joins[path]))
        if func is F.scaled_dot_product_attention:
            result = self._attend(*args, **kwargs)
        elif name in axes.PRODUCTS and any(x is self._applied[0] for x in args if x is not None):
            # Weights that are used again, as with relative positions of values, have one name, and
            # neither product is the output of a head by itself.
            self.divided_heads.add(self._site())
            weights, watched = self._applied
            result = func(*(watched if x is weights else x for x in args), **kwargs)
        elif name in MULTIPLICATIONS and axes.label_of(args[0]) == axes.WEIGHTS:
            result = self._apply_weights(func, *args, **kwargs)
        elif name == "einsum" and (mean := find_weighted_mean(args)):
            equation, operands, order = mean
            result = self._apply_weights(partial(func, equation), *operands).permute(order)
        elif site is not None:
            result = self._join(func, args, kwargs, site)
        else:
            result = func(*args, **kwargs)
        if name in ENDINGS and isinstance(result, Tensor) and result.dim() == 2:
            self._ending = result, args[0] if args else kwargs["input"], ENDINGS[name]
        elif name in RESCALING and self._ending and self._ending[2] != "linear":
            # A factor of 0 would leave no order of the classes.
            least = 1e-30 if "mul" in name or "div" in name else 0
            numbers = [*args[1:], *kwargs.values()]
            is_ordered = all(isinstance(x, int | float) and x >= least for x in numbers)
            if args and args[0] is self._ending[0] and is_ordered:
                self._ending = result, *self._ending[1:]
        axes.propagate(func, args, kwargs, result)
        return result

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """`scaled_dot_product_attention` in steps."""
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        scores = (query * factor) @ key.transpose(-2, -1)
        if is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                scores = scores.masked_fill(~attn_mask, float("-inf"))
            else:
                scores = scores + attn_mask
        weights = F.dropout(torch.softmax(scores, dim=-1), dropout_p, training=True)
        heads = axes.folded_heads(query)
        weights = self._attention("weights", weights, heads)
        return self._attention("heads", weights.to(value.dtype) @ value, heads)

    def _apply_weights(self, func: Callable, weights: Tensor, value: Tensor, **kwargs: Any) -> Any:
        heads = axes.folded_heads(weights)
        watched = self._attention("weights", weights, heads)
        self._applied = weights, watched
        return self._attention("heads", func(watched, value, **kwargs), heads)

    def _attention(self, what: str, value: Tensor, heads: axes.FoldedHeads | None) -> Tensor:
        """The weights or the outputs of heads; an axis of heads is split from that of examples."""
        shape, size = value.shape, self._batch_size
        by_head, is_swapped = value, False
        if value.dim() == 3 and heads is not None and heads.axis == 0:
            is_swapped = not heads.are_last
            sizes = (-1, heads.count) if heads.are_last else (heads.count, -1)
            by_head = value.reshape(*sizes, *shape[1:])
            by_head = by_head.transpose(0, 1) if is_swapped else by_head
        elif value.dim() == 3 and size and shape[0] % size == 0:
            by_head = value.reshape(size, -1, *shape[1:])
        result = self.named(f"{self._site()}/{what}", by_head)
        if result is by_head:
            return value
        return (result.transpose(0, 1) if is_swapped else result).reshape(shape)

    def _site(self) -> str:
        """The name of the attention that runs: of its block, or the path of the submodule."""
        path = self._stack[-1] if self._stack else ""
        # Not a softmax or dropout inside the submodule that attends.
        if isinstance(self._module.get_submodule(path), torch.nn.Softmax | torch.nn.Dropout):
            path = path.rpartition(".")[0]
        self.attending.add(path)
        block = next((outer for outer in reversed(self._stack) if outer in self._blocks), None)
        return path if block is None else f"{block}/attention"

    def _join(self, func: Callable, args: tuple, kwargs: dict, site: Site) -> Tensor:
        """Names a sum or concatenation that ends a block, and the terms of a sum."""
        if site.skip is not None and len(args) == 2:
            if factor := kwargs.get("alpha"):  # torch.add(x, y, alpha=a) adds a y
                scaled = factor * args[1]
                axes.set_label(scaled, axes.label_of(args[1]))
                args, kwargs = (args[0], scaled), {}
            ends = ("skip", "branch") if site.skip == 0 else ("branch", "skip")
            # The skip is named first, as in a block.
            order = sorted(zip(ends, (0, 1), strict=True), reverse=True)
            terms = {i: self.named(f"{site.name}/{end}", args[i]) for end, i in order}
            args = terms[0], terms[1]
        return self.named(site.end, func(*args, **kwargs))
