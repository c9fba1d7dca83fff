"""Graphs that repeated calls share: the features and steps of a model are kept with the model."""

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import keras
import numpy as np

from vit_tf.tokens import TokenGrid

Made = TypeVar("Made")
MAX_KEPT = 8  # of a model: features, and steps of features
MAX_PAIRED = 1  # of these, those that hold another model too, whose weights stay in memory
# Graphs of a step: of one batch and of all replicas, for the last shape of images only, as a step
# may note facts of the images when it is traced.
MAX_COMPILED = 2
PLAIN = (bool, int, float, str, bytes, type(None))
ATTRIBUTE = "_vit_tf_kept"


class Kept:
    """The values that were made last for some keys."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The value of a key, made if it is not there."""
        if key not in self._values:
            self._values[key] = make()
        self._values.move_to_end(key)
        while len(self._values) > self._size:
            self._values.popitem(last=False)
        return self._values[key]


def keep(
    owner: Any, key: Sequence[Any], make: Callable[[], Made], others: Sequence[Any] = ()
) -> Made:
    """What `make` returned for this key before, unless the model has changed since.

    It is kept as an attribute of the model, so that it goes with the model.

    Args:
        owner: a Keras model; for other features nothing is kept.
        key: what `make` depends on in addition to models. Where a part of it is neither a number,
            a string, a `TokenGrid` nor a tuple of these, nothing is kept.
        make: function of nothing to the value.
        others: further models that it depends on.
    """
    key = tuple(key)
    if not all(isinstance(model, keras.Model) for model in (owner, *others)) or not _is_plain(key):
        return make()
    stores = vars(owner).setdefault(ATTRIBUTE, (Kept(MAX_KEPT), Kept(MAX_PAIRED)))
    states = tuple((Same(model), state_of(model)) for model in (owner, *others))
    return stores[bool(others)].get((key, states), make)


def _is_plain(value: Any) -> bool:
    """Whether a part of a key is what its value says."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (*PLAIN, TokenGrid))


def state_of(model: keras.Model) -> Hashable:
    """What the graph of a model depends on, except for the values of its variables.

    These are the attributes of its layers: numbers, strings, arrays, lists and dicts by value, and
    other objects, such as an activation, by identity.
    """
    state = []
    ignored = {ATTRIBUTE, *_private_attributes()}
    for layer in model._flatten_layers():
        state.append((type(layer), Same(layer.dtype_policy)))
        for name, value in vars(layer).items():
            if name not in ignored:
                state.append((name, _content(value)))
        state.extend(Same(variable) for variable in layer.variables)
    return tuple(state)


def _content(value: Any) -> Hashable:
    """An attribute as a part of a state."""
    if type(value) in PLAIN:
        return type(value), value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape, value.dtype.str, hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, list | tuple):
        return tuple(map(_content, value))
    if isinstance(value, dict):
        return tuple((_content(key), _content(item)) for key, item in value.items())
    return Same(value)


class Same:
    """An object by identity; it is held, so that no other object gets its address."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


@functools.cache
def _private_attributes() -> frozenset[str]:
    """Names that Keras uses for itself in every layer, such as whether it was called."""
    return frozenset(name for name in vars(keras.layers.Layer()) if name.startswith("_"))


class Reusable:
    """A step that repeated calls share, with the graphs that it was compiled to."""

    def __init__(self, step: Callable) -> None:
        self._step = step
        self.graphs = Kept(MAX_COMPILED)

    def __call__(self, *batch: Any) -> Any:
        return self._step(*batch)


def reusable(make: Callable) -> Callable:
    """Decorates a function of features and options to a `Statistic`, which is made once for each.

    A model that is measured again in the same way is not traced again.
    """

    @functools.wraps(make)
    def statistic(features: Any, *args: Any, **options: Any) -> Any:
        others = [value for value in args if isinstance(value, keras.Model)]
        plain = [None if isinstance(value, keras.Model) else value for value in args]

        def made() -> Any:
            return make(features, *args, **options).with_reusable_step()

        key = (make.__module__, make.__qualname__, *plain, tuple(sorted(options.items())))
        return keep(features, key, made, others)

    return statistic


def reuse(
    features: Any, key: Sequence[Any], step: Callable, listed: list | None = None
) -> tuple[Callable, list | None]:
    """The step of an earlier call of this key and what it lists when traced, or those given."""
    return keep(features, key, lambda: (Reusable(step), listed))
