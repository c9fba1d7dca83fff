"""Graphs that calls share: those of one model, and those of models that differ in weights alone.

The features and steps of a model are kept with the model for its next call. Within `sharing_graphs`
a graph that was traced for a model also serves its untrained copies: their variables take the place
of those that the graph captured.
"""

import contextlib
import contextvars
import copy
import functools
import hashlib
import inspect
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, TypeAlias, TypeVar, cast

import keras
import numpy as np
import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from vit_tf.features.conversion import as_features
from vit_tf.features.keras_features import KerasFeatures
from vit_tf.features.tokens import TokenGrid

Made = TypeVar("Made")
MAX_KEPT = 9  # of a model: features, steps of features, and its taps
MAX_PAIRED = 2  # of these, those that hold another model too, whose weights stay in memory
# Graphs of a step: of one batch and of all replicas, for the last shape of images only, as a step
# may note facts of the images when it is traced.
MAX_COMPILED = 2
# Steps that are fed more are not kept, as their values would stay in memory.
MAX_FED_BYTES = 2**26
PLAIN = (bool, int, float, str, bytes, type(None))
ATTRIBUTE = "_vit_tf_kept"
# The attribute of a graph with what `once_per_graph` has made in it.
MADE_IN_GRAPH = "_vit_tf_made"
# This attribute marks features that are kept with a model. They are made anew when it changes, so
# that what is kept with them needs no second comparison of all layers.
MADE_OF_MODEL = "_vit_tf_made_of_model"


class Kept:
    """A cache of the most recent values by key."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Returns the value of a key, and makes it if it is missing."""
        if key not in self._values:
            self._values[key] = make()
        self._values.move_to_end(key)
        while len(self._values) > self._size:
            self._values.popitem(last=False)
        return self._values[key]


def keep(
    owner: Any, key: Sequence[Any], make: Callable[[], Made], others: Sequence[Any] = ()
) -> Made:
    """Returns the cached value of a key, or makes it; a changed model invalidates the cache.

    The cache is an attribute of the model, so it is deleted together with the model.

    Args:
        owner: a Keras model; values for other features are not cached.
        key: everything but models that the value depends on: numbers, strings, a `TokenGrid`,
            `Constant`s, or tuples of these. If it contains anything else, the value is not cached.
        make: function without arguments that returns the value.
        others: further models that the value depends on.
    """
    owner, *others = map(model_of, (owner, *others))
    key = tuple(key)
    if not all(isinstance(model, keras.Model) for model in (owner, *others)) or not _is_plain(key):
        return make()
    stores = vars(owner).setdefault(ATTRIBUTE, (Kept(MAX_KEPT), Kept(MAX_PAIRED)))
    states = tuple(
        (Same(model), None if MADE_OF_MODEL in vars(model) else state_of(model))
        for model in (owner, *others)
    )
    kept = stores[bool(others)].get((key, states), make)
    if isinstance(kept, KerasFeatures):
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
    """The state that the graph of a model depends on, except for the values of its variables.

    It consists of the attributes of its layers: numbers, strings, arrays, lists and dicts by value,
    and other objects, such as an activation, by identity.
    """
    state = []
    ignored = {ATTRIBUTE, MADE_OF_MODEL, *_private_attributes()}
    for layer in model._flatten_layers():
        state.append((type(layer), Same(layer.dtype_policy)))
        for name, value in vars(layer).items():
            if name not in ignored:
                state.append((name, _content(value, Same)))
        state.extend(Same(variable) for variable in layer.variables)
    return tuple(state)


def _content(value: Any, identify: Callable[[Any], Hashable]) -> Hashable:
    """An attribute as a part of a state; `identify` gives that of an object."""
    if type(value) in PLAIN:
        return type(value), value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape, value.dtype.str, hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, list | tuple):
        return tuple(_content(item, identify) for item in value)
    if isinstance(value, dict):
        return tuple((_content(k, identify), _content(v, identify)) for k, v in value.items())
    return identify(value)


class Same:
    """An object, compared by identity; it is kept, so that no other object gets its address."""

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


# From the id of a tensor that a graph captured to the one that takes its place.
Substitutes: TypeAlias = dict[int, tf.Tensor]


def composed(first: Substitutes, second: Substitutes) -> Substitutes:
    """The substitutes that have the effect of `first`, followed by the effect of `second`."""
    return second | {key: second.get(id(tensor), tensor) for key, tensor in first.items()}


class Reusable:
    """A step that repeated calls share, with its compiled graphs.

    The graphs may come from the same step of another model, or of an earlier call. In this case,
    they were traced from the step `traced`, and `substitutes` replace its captured variables. By
    default, the graphs are traced from the step itself.
    """

    def __init__(
        self,
        step: Callable,
        graphs: Kept | None = None,
        substitutes: Substitutes | None = None,
        traced: Callable | None = None,
    ) -> None:
        self._step = step
        self.graphs = Kept(MAX_COMPILED) if graphs is None else graphs
        self.substitutes = substitutes or {}
        self.traced = step if traced is None else traced

    def __call__(self, *batch: Any) -> Any:
        return self._step(*batch)


def reusable(make: Callable) -> Callable:
    """Decorates a function from features and options to a `Statistic`, which is then cached.

    A model that is measured again with the same options is not traced again. Features of several
    models are a dict by name.
    """

    @functools.wraps(make)
    def statistic(*args: Any, **options: Any) -> Any:
        given = inspect.signature(make).bind(*args, **options)
        given.apply_defaults()
        # A list that its owner changes later must not change what is kept.
        lists = {name: x for name, x in given.arguments.items() if isinstance(x, list)}
        given.arguments.update({name: list(x) for name, x in lists.items()})
        first = next(iter(given.arguments))
        if callable(given.arguments[first]):
            given.arguments[first] = as_features(given.arguments[first])
        features, *others = map(model_of, given.arguments.values())
        plain = [None if isinstance(value, keras.Model) else _as_tuple(value) for value in others]
        models = [value for value in others if isinstance(value, keras.Model)]
        if isinstance(features, Mapping) and features:
            plain.append(tuple(features))
            features, *more = map(model_of, features.values())
            models = [*more, *models]

        def made() -> Any:
            new = make(*given.args, **given.kwargs)
            is_reusable = isinstance(new.step, Reusable)
            return new if is_reusable else replace(new, step=Reusable(new.step))

        return keep(features, (make.__module__, make.__qualname__, *plain), made, models)

    return statistic


def _as_tuple(value: Any) -> Any:
    """A list as a tuple, as a part of a key."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value


def reuse(
    features: Any,
    key: Sequence[Any],
    step: Callable,
    listed: Any = None,
    fed: Sequence[tf.Variable] = (),
    others: Sequence[Any] = (),
) -> tuple[Callable, Any]:
    """The step of an earlier call with this key and its `listed`, or the given ones.

    Args:
        features, key, others: as for `keep`.
        step: the step of this call.
        listed: what the step notes when it is traced, such as names of layers.
        fed: variables with values of this call that the step reads, such as means over images. They
            take the place of those of the earlier call.
    """
    sharing = _sharing.get()
    if sharing is not None and _is_plain(tuple(key)):
        return sharing.reuse(tuple(key), step, listed, fed)
    fed_bytes = sum(variable.shape.num_elements() * variable.dtype.size for variable in fed)
    # Replicas run a graph in which nothing is replaced.
    if fed and (fed_bytes > MAX_FED_BYTES or tf.distribute.has_strategy()):
        return step, listed
    shapes = tuple((*variable.shape, variable.dtype.name) for variable in fed)

    def made() -> tuple[Reusable, Any, Sequence[tf.Variable]]:
        return Reusable(step), listed, fed

    first, first_listed, earlier = keep(features, (*key, shapes), made, others)
    if earlier is fed:
        return first, first_listed
    substitutes = substitutes_of([v.handle for v in earlier], [v.handle for v in fed])
    return Reusable(step, first.graphs, substitutes, first.traced), first_listed


@dataclass
class SharedGraphs:
    """The steps of one measurement for several models that differ only in their weights."""

    # By key and number of the call: a step, what it lists, and the variables that it captured.
    steps: dict[Hashable, tuple[Reusable, Any, list[tf.Tensor]]] = field(default_factory=dict)


@dataclass
class Sharing:
    """The `SharedGraphs` that a measurement uses, and the variables of its models."""

    shared: SharedGraphs
    handles: list[tf.Tensor]
    calls: Counter = field(default_factory=Counter)

    def reuse(
        self, key: tuple, step: Callable, listed: Any, fed: Sequence[tf.Variable] = ()
    ) -> tuple[Reusable, Any]:
        """The step with the graphs of the model that called it first."""
        own_handles = [*self.handles, *(variable.handle for variable in fed)]
        number = self.calls[key]
        self.calls[key] += 1
        place = key, number
        earlier = self.shared.steps.get(place)
        # A step of a model that failed before it was traced has no graph to share.
        if earlier is None or not len(earlier[0].graphs):
            self.shared.steps[place] = Reusable(step), listed, own_handles
        first, first_listed, handles = self.shared.steps[place]
        if handles is own_handles:
            return first, first_listed
        substitutes = substitutes_of(handles, own_handles)
        return Reusable(step, first.graphs, substitutes), first_listed


_sharing: contextvars.ContextVar[Sharing | None] = contextvars.ContextVar("sharing", default=None)


@contextlib.contextmanager
def sharing_graphs(shared: SharedGraphs, models: Sequence[keras.Model]) -> Iterator[None]:
    """A context in which one measurement shares its graphs between models with equal layers.

    The measurement must make the same calls with each model. `differ_in_weights` compares models.
    """
    token = _sharing.set(Sharing(shared, handles_of(models)))
    try:
        yield
    finally:
        _sharing.reset(token)


def handles_of(models: Sequence[keras.Model]) -> list[tf.Tensor]:
    """The tensors with which graphs capture the variables of models, in order."""
    return [variable.value.handle for model in models for variable in model.weights]


def substitutes_of(handles: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> Substitutes:
    """The substitutes of variables: the variables of other models with equal layers."""
    return {id(handle): other for handle, other in zip(handles, others, strict=True)}


def with_substitutes(function: ConcreteFunction, substitutes: Substitutes) -> ConcreteFunction:
    """A traced function whose captured tensors are replaced by other tensors."""
    if not substitutes:
        return function
    other: Any = copy.copy(function)
    other.set_external_captures([substitutes.get(id(x), x) for x in other.captured_inputs])
    return other


def differ_in_weights(model: keras.Model, other: keras.Model) -> bool:
    """Whether two models differ only in the values of their variables, so graphs serve both.

    Layers with tensors as attributes, which may follow from weights, count as different.
    """
    layers, others = list(model._flatten_layers()), list(other._flatten_layers())
    layouts = [[(tuple(v.shape), v.dtype) for v in m.weights] for m in (model, other)]
    same_layout = len(layers) == len(others) and layouts[0] == layouts[1]
    return same_layout and all(map(_have_same_attributes, layers, others))


def _have_same_attributes(layer: keras.Layer, other: keras.Layer) -> bool:
    """Whether two layers have equal attributes, except for their variables and layers."""
    contents = [
        {
            name: _content(value, _class_of)
            for name, value in vars(x).items()
            # What is not set yet is None or False.
            if name not in _attributes_of_keras() and value is not None and value is not False
        }
        for x in (layer, other)
    ]
    same_classes = type(layer) is type(other)
    return same_classes and layer.dtype_policy == other.dtype_policy and contents[0] == contents[1]


@functools.cache
def _attributes_of_keras() -> frozenset[str]:
    """Names of attributes that Keras gives to every layer and model, compiled or not."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    tracking = {name for name in dir(model) if name.startswith("_self_")}
    set_here = {ATTRIBUTE, MADE_OF_MODEL}
    return frozenset({*set_here, *vars(model), *tracking, *vars(keras.layers.Layer())})


def _class_of(value: Any) -> Hashable:
    """What counts of an attribute that is an object; no tensor equals another one."""
    if tf.is_tensor(value) and not isinstance(value, keras.Variable):
        return Same(object())
    if isinstance(value, FunctionType):
        return value.__module__, value.__qualname__
    return Same(value) if isinstance(value, type) else type(value)
