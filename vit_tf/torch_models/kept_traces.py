"""Traces that are kept with a PyTorch module until something changes that its runs depend on."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import numpy as np
import torch

Traced = TypeVar("Traced")
MAX_SHAPES = 4  # of images, for each module
MAX_ITEMS = 200_000  # of a state; modules with more are traced anew by each call
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
# In a run, all submodules are in evaluation mode.
IGNORED = ("training",)

_kept: weakref.WeakKeyDictionary[torch.nn.Module, dict[tuple, tuple[list | None, Any]]] = (
    weakref.WeakKeyDictionary()
)


def keep_trace(
    module: torch.nn.Module, image_shape: tuple[int, ...], trace: Callable[[], Traced]
) -> Traced:
    """The trace of a module for images of a shape, made anew if the module has changed.

    Neither what is kept nor the state that it is compared by holds the module.
    """
    state, traces = state_of(module), _kept.setdefault(module, {})
    state_before, traced = traces.get(image_shape, (None, None))
    if state is None or state_before != state:
        traced = trace()
        traces[image_shape] = state, traced
        while len(traces) > MAX_SHAPES:
            del traces[next(iter(traces))]
    return cast(Traced, traced)


def state_of(module: torch.nn.Module) -> list | None:
    """All that decides which operations a module runs; None if that is too much to compare.

    These are the attributes of its submodules, with their hooks and configurations, its tensors
    (other ones, or the same after an operation in place), and the code of its classes.
    """
    state: list[Any] = []
    seen: dict[int, int] = {}
    waiting: list[Any] = [module]
    classes: dict[type, None] = {}
    while waiting and len(state) < MAX_ITEMS:
        value = waiting.pop()
        if isinstance(value, PLAIN):
            state.append((type(value), value))
            continue
        # An object that is met again stands for what it was the first time.
        if id(value) in seen:
            state.append(seen[id(value)])
            continue
        seen[id(value)] = len(seen)
        if isinstance(value, torch.Tensor):
            version = None if value.is_inference() else value._version
            state += [Identity(value), (value.shape, value.dtype, value.device, version)]
        elif isinstance(value, np.ndarray):
            state.append((value.shape, value.dtype, value.tobytes()))
        elif isinstance(value, Mapping):
            state.append((type(value), len(value)))
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            state.append((type(value), len(value)))
            waiting += value
        else:
            state.append(Identity(value))
            if not isinstance(value, OPAQUE) and hasattr(value, "__dict__"):
                attributes = {k: x for k, x in vars(value).items() if k not in IGNORED}
                waiting += [*attributes.keys(), *attributes.values()]
            if isinstance(value, torch.nn.Module):
                classes |= dict.fromkeys(type(value).__mro__)
    for kind in classes:
        if issubclass(kind, torch.nn.Module) and kind is not torch.nn.Module:
            state += [(kind, name, value) for name, value in _code_of(kind)]
    return state if not waiting else None


class Identity:
    """An object that is compared by identity and not held; after its end it equals nothing."""

    def __init__(self, value: Any) -> None:
        try:
            self._value = weakref.ref(value)
        except TypeError:  # of a few types of PyTorch and Python, whose objects hold no module
            self._value = lambda: value

    def __eq__(self, other: object) -> bool:
        value = self._value()
        return isinstance(other, Identity) and value is not None and other._value() is value


def _code_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods and attributes of a class, and the global names that its methods use."""
    for name, value in vars(kind).items():
        yield name, value if isinstance(value, PLAIN) else Identity(value)
        if isinstance(value, types.FunctionType):
            for used in value.__code__.co_names:
                if used in value.__globals__:
                    given = value.__globals__[used]
                    yield used, given if isinstance(given, PLAIN) else Identity(given)
