"""Graphs that calls share: what is kept with a model for its next call.

The features and the statistics of a model are kept with the model. The graphs of a step get the
weights of the models as arguments, so within `sharing_graphs` they also serve untrained copies.
"""

import contextlib
import contextvars
import functools
import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar, cast

import keras
import numpy as np
import tensorflow as tf

from vit_tf.features.conversion import as_features
from vit_tf.features.keras_features import KerasFeatures
from vit_tf.features.tokens import TokenGrid

Made = TypeVar("Made")
Parameters = ParamSpec("Parameters")
MAX_KEPT = 9  # of a model: features, statistics of features, and its taps
MAX_PAIRED = 2  # of these, those that hold another model too, whose weights stay in memory
MAX_COMPILED = 2  # graphs of a step: of one batch and of all replicas, for the last shapes only
PLAIN = (bool, int, float, str, bytes, type(None))
ATTRIBUTE = "_vit_tf_kept"
# The attribute of a graph with what `once_per_graph` has made in it.
MADE_IN_GRAPH = "_vit_tf_made"
# This attribute marks features that are kept with a model. They are made anew when it changes, so
# that what is kept with them needs no second look at all layers.
MADE_OF_MODEL = "_vit_tf_made_of_model"


@dataclass(frozen=True, eq=False)
class Kept:
    """A cache of the most recent values by key."""

    size: int
    values: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Returns the value of a key, and makes it if it is missing."""
        if key not in self.values:
            self.values[key] = make()
        self.values.move_to_end(key)
        while len(self.values) > self.size:
            self.values.popitem(last=False)
        return self.values[key]


def keep(
    owner: Any, key: Sequence[Any], make: Callable[[], Made], others: Sequence[Any] = ()
) -> Made:
    """Returns the cached value of a key, or computes it. A changed model invalidates the cache.

    The cache is an attribute of the model, so it is deleted together with the model.

    Args:
        owner: a Keras model; values for other features are not cached.
        key: all that the value depends on, except models: numbers, strings, a `TokenGrid`,
            `Constant`s, or tuples of these. If it contains anything else, the value is not cached.
        make: function without arguments that computes the value.
        others: further models that the value depends on.
    """
    key, models = tuple(key), tuple(map(model_of, (owner, *others)))
    # Features may be given another preprocessing than their model's.
    declared = [x.preprocessing for x in (owner, *others) if isinstance(x, KerasFeatures)]
    owner = models[0]
    if not all(isinstance(model, keras.Model) for model in models) or not _is_plain(key):
        return make()
    stores = vars(owner).setdefault(ATTRIBUTE, (Kept(MAX_KEPT), Kept(MAX_PAIRED)))
    states = tuple(
        (Same(model), None if MADE_OF_MODEL in vars(model) else state_of(model)) for model in models
    )
    kept = stores[bool(others)].get((key, states, *declared), make)
    if isinstance(kept, KerasFeatures) and kept.model is not owner:
        cast(Any, kept.model).__dict__[MADE_OF_MODEL] = True
    return cast(Made, kept)


def model_of(features: Any) -> Any:
    """The Keras model that computes features; anything else as it is."""
    return features.model if isinstance(features, KerasFeatures) else features


def _is_plain(value: Any) -> bool:
    """Whether a part of a key is what its value says."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (*PLAIN, TokenGrid, Constant))


class Constant:
    """Base class of objects that never change; a key compares them by identity."""


def state_of(model: keras.Model) -> Hashable:
    """What the graph of a model depends on besides the values of its variables.

    These are the attributes of its layers: numbers, strings, arrays, lists and dicts by value, and
    other objects, such as an activation, by identity.
    """
    ignored, state = {ATTRIBUTE, MADE_OF_MODEL, *_private_attributes()}, []
    for layer in model._flatten_layers():
        state += [Same(layer.dtype_policy), *map(Same, layer.variables)]
        state += [(name, _content(x)) for name, x in vars(layer).items() if name not in ignored]
    return tuple(state)


@functools.cache
def _private_attributes() -> frozenset[str]:
    """Names that Keras uses for itself in every layer, such as whether it was called."""
    empty = keras.layers.Layer(name="empty")
    return frozenset(name for name in vars(empty) if name.startswith("_"))


def _content(value: Any) -> Hashable:
    """An attribute of a layer as a part of a state."""
    if type(value) in PLAIN:
        return type(value), value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape, value.dtype.str, hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, list | tuple):
        return tuple(map(_content, value))
    if isinstance(value, dict):
        return tuple((_content(name), _content(item)) for name, item in value.items())
    return Same(value)


@dataclass(frozen=True, eq=False)
class Same:
    """An object, compared by identity; it is kept, so that no other object gets its address."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def once_per_graph(function: Callable[..., Made]) -> Callable[..., Made]:
    """Decorates a function of a tensor and options, whose operations a graph holds once.

    Statistics that share a pass look at the same activations: what they all compute of these is
    traced and optimized once. The options must be hashable. It is not for what a gradient tape
    differentiates, since a tape that starts later has not recorded the operations.
    """

    @functools.wraps(function)
    def call(x: tf.Tensor, *options: Hashable) -> Made:
        graph = tf.compat.v1.get_default_graph()
        if getattr(x, "graph", None) is not graph:  # an array, or a tensor outside of the graph
            return function(x, *options)
        if not hasattr(graph, MADE_IN_GRAPH):
            setattr(graph, MADE_IN_GRAPH, {})
        made = getattr(graph, MADE_IN_GRAPH)
        key = function, id(x), options
        if key not in made:
            made[key] = x, function(x, *options)  # the tensor stays, so that its id is its own
        return made[key][1]

    return call


@dataclass(frozen=True, eq=False)
class KeptStep:
    """A step of a statistic that is kept with a model, and the graphs that are compiled from it.

    The graphs get the weights of `models`, which the step reads, as arguments. They may come from
    the same step of another model with equal layers.
    """

    step: Callable[..., Any]
    models: Sequence[keras.Model]
    graphs: Kept

    def __call__(self, *batch: Any) -> Any:
        return self.step(*batch)


def reusable(make: Callable[Parameters, Made]) -> Callable[Parameters, Made]:
    """Decorates a function from features and options to a `Statistic`, which is then cached.

    A model that is measured again with the same options is not traced again. The step must follow
    from the arguments alone, and leave no trace in them: a later call does not run it. Values of
    one call, such as the results of an earlier pass, are the `state` of the statistic, which
    `dataclasses.replace` sets. Features of several models are a dict by name.
    """

    @functools.wraps(make)
    def statistic(*args: Any, **options: Any) -> Any:
        given = inspect.signature(make).bind(*args, **options)
        given.apply_defaults()
        # A list that its owner changes later must not change what is kept.
        lists = {name: list(x) for name, x in given.arguments.items() if isinstance(x, list)}
        given.arguments.update(lists)
        first = next(iter(given.arguments))
        if callable(given.arguments[first]):
            given.arguments[first] = as_features(given.arguments[first])
        models: list[Any] = []
        key: list[Any] = [make.__module__, make.__qualname__]
        for value in given.arguments.values():
            if isinstance(value, Mapping):
                models += map(model_of, value.values())
                key.append(tuple(value))
            elif isinstance(value, KerasFeatures):
                models.append(value.model)
                key.append(value.facts.grid)
            else:
                key.append(_as_tuple(value))

        def made() -> Any:
            new = cast(Any, make(*given.args, **given.kwargs))
            if isinstance(new.step, KeptStep):
                return new
            graphs, shared = Kept(MAX_COMPILED), _shared_graphs.get()
            # Within `sharing_graphs`, those of the same step of a copy with these taps and weights.
            if shared is not None and all(isinstance(model, keras.Model) for model in models):
                layout = [(getattr(m, "taps", ()), weight_layout(m)) for m in models]
                graphs = shared.setdefault((tuple(key), *layout), graphs)
            return replace(new, step=KeptStep(new.step, models, graphs))

        if not models or not _is_plain(tuple(key)):
            return make(*given.args, **given.kwargs)
        owner, *others = models
        return keep(owner, key, made, others)

    return statistic


def _as_tuple(value: Any) -> Any:
    """A list, and lists in it, as tuples, which a key can hold."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value


_shared_graphs: contextvars.ContextVar[dict[Hashable, Kept] | None] = contextvars.ContextVar(
    "shared_graphs", default=None
)


@contextlib.contextmanager
def sharing_graphs() -> Iterator[None]:
    """A context in which the statistics of a model and of its copies share their graphs.

    All models that are measured in it must have equal layers; see `differ_in_weights`.
    """
    token = _shared_graphs.set({})
    try:
        yield
    finally:
        _shared_graphs.reset(token)


def weight_layout(model: keras.Model) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shapes and types of the weights of a model."""
    return tuple((tuple(variable.shape), variable.dtype) for variable in model.weights)


def differ_in_weights(model: keras.Model, copy: keras.Model) -> bool:
    """Whether a copy, made of the configuration of a model, computes the same with other weights.

    A layer that has a tensor as an attribute, such as the mean of a `Normalization`, may read it in
    place of the weights that it follows from.
    """
    has_tensors = any(
        tf.is_tensor(value) and not isinstance(value, keras.Variable)
        for layer in (*model._flatten_layers(), *copy._flatten_layers())
        for value in vars(layer).values()
    )
    return not has_tensors and weight_layout(model) == weight_layout(copy)
