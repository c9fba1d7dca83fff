"""Recording outputs of layers, of this package's and inside any Keras model, and editing them."""

import contextlib
import contextvars
import functools
import itertools
import threading
import types
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import keras
from keras import ops, tree

from vit_tf.common.backend import Tensor
from vit_tf.common.names import format_list

# The position of a layer or operation in a model, the number of its call, and the path of a tensor
# inside of what it returns, or one of the words `INPUT` and `ACTIVATION`.
Site: TypeAlias = tuple[int, int, str]


def infer(model: Callable, *args: Any, **kwargs: Any) -> Any:
    """Calls a model, a layer or a function as inference; all calls of models go through it.

    Layers that Keras or users define with `training=True` by default, such as augmentations, would
    otherwise be active. A model inside a function, and a layer inside a model that does not take
    `training`, inherit it from the call around them.
    """
    if isinstance(model, keras.layers.Layer):
        return model(*args, **kwargs | {"training": False})
    if isinstance(model, keras.Operation):
        return model(*args, **kwargs)
    result, error = _CallOfFunction(name="inference", **UNCAST)(
        function=lambda: model(*args, **kwargs), training=False
    )
    if error is not None:
        raise error
    return result


# Layers that only call others take values as they are, whatever the global policy of Keras is then:
# a model keeps the policy that it was made with.
UNCAST: dict[str, Any] = {"dtype": "float32", "autocast": False}


class _CallOfFunction(keras.layers.Layer):
    """Calls a function inside the call of a layer, whose `training` the layers in it inherit."""

    def build(self, input_shape: Any = None) -> None:
        pass

    def call(self, function: Callable[[], Any]) -> tuple[Any, Exception | None]:
        try:
            return function(), None
        except Exception as error:  # Keras would put words of its own around the message
            return None, error


# Parts of the name of a site that is not the output of a layer: the first argument of the layer's
# call, that of its own activation, its attention weights, and the position of the model itself.
INPUT, ACTIVATION, WEIGHTS, MODEL = "input", "activation", "weights", -1
ARGUMENTS = (INPUT, ACTIVATION)


def find_taps(model: keras.Model, watch: Callable | None = None) -> dict[str, tuple]:
    """Taps of a built Keras model: dict from name to site, in the order of computation.

    A site consists of the position of a layer in `named_operations(model)`, the number of its call
    and the path of a tensor inside its output (`""` for a single tensor). Unlike the names that
    Keras gives to layers, it is the same in every process. `watch` is called with the path of a
    layer, the layer, and the arguments of each of its calls.
    """
    return {name: tap.site for name, tap in trace_taps(model, watch).items()}


class TracedTap(NamedTuple):
    """A tap of a model that was traced; the tensors of taps of one `value` are one and the same."""

    name: str
    path: str  # of its layer
    site: Site
    layer: Any
    shape: tuple[int | None, ...]  # of the output
    value: int
    sources: int  # the taps that it is computed from, itself included, as bits of their numbers
    is_needed: bool  # whether the output of the model that most layers compute depends on it

    @property
    def number(self) -> int:
        """The number of the call of its layer."""
        return self.site[1]


def trace_taps(model: keras.Model, watch: Callable | None = None) -> dict[str, TracedTap]:
    """As `find_taps`, with the layer of each tap and its output."""
    shape, dtype = input_spec(model)
    layers, unreadable = named_operations(model), set()
    traced: dict[str, TracedTap] = {}

    def trace(images: Tensor) -> list[Tensor]:
        records = record(model, images, watch=watch, inner=(MODEL,))
        outputs = [value for place, value in records.items() if place[0] == MODEL]
        records = {place: value for place, value in records.items() if place[0] != MODEL}
        held = select_in_graph(images, records)
        unreadable.update(layers[place[0]][0] for place in records.keys() - held.keys())
        sources = _find_sources([*held.values(), *outputs])
        with_weights = sum(
            1 << number
            for number, place in enumerate(held)
            if getattr(layers[place[0]][1], "weights", ())
        )
        deepest = max(sources[len(held) :], key=lambda bits: (bits & with_weights).bit_count())
        for number, (place, value) in enumerate(held.items()):
            path, layer = layers[place[0]]
            # Identities are unique while the records hold the tensors.
            name = tap_name(path, *place[1:])
            traced[name] = TracedTap(
                *(name, path, place, layer, tuple(value.shape), id(value)),
                *(sources[number], bool(deepest >> number & 1)),
            )
        return list(held.values())

    keras.layers.Lambda(trace, **UNCAST)(keras.KerasTensor(shape, dtype))
    if unreadable:
        warnings.warn(
            f"Layers of {model.name!r} that run inside a condition, a loop or a function that is "
            f"traced by itself are left out: {format_list(sorted(unreadable))}",
            stacklevel=3,
        )
    return traced


def _find_sources(tensors: Sequence[Tensor]) -> list[int]:
    """Which tensors each of some tensors is computed from, itself included, as bits of a number.

    Those before it where no graph of TensorFlow shows it.
    """
    graph = next((x.graph for x in tensors if getattr(x, "graph", None) is not None), None)
    if graph is None:
        return [(2 << number) - 1 for number in range(len(tensors))]
    # Constants lie in no graph, and nothing is computed from them that shows it.
    in_graph = [getattr(tensor, "graph", None) is graph for tensor in tensors]
    names = [x.op.name if is_in else "" for x, is_in in zip(tensors, in_graph, strict=True)]
    bits: Counter = Counter()
    for number, name in enumerate(names):
        bits[name] |= 1 << number
    for operation in graph.get_operations():  # in the order of computation
        for source in operation.inputs:
            bits[operation.name] |= bits[source.op.name]
    return [bits[name] if name else 1 << number for number, name in enumerate(names)]


def select_in_graph(images: Tensor, records: dict) -> dict:
    """The records that lie in no other graph, as those in conditions and loops do.

    A constant that a layer returns, such as a table of positions, lies in no graph at all.
    """
    graphs = (getattr(images, "graph", None), None)
    return {p: v for p, v in records.items() if getattr(v, "graph", None) in graphs}


def symbolic_taps(model: keras.Model, taps: Iterable[str], inner: dict[str, tuple]) -> tuple:
    """Symbolic images and a dict from each of `taps` and `inner` to its symbolic value.

    `inner` is a dict from name to site, as for `record`, with a path instead of a position.
    """
    model = with_free_batch(model)
    graph = functional_graph(model)
    model = graph or model
    names = [*taps, *inner]
    if graph and type(model).__module__.startswith(("keras.", "vit_tf.features.")):
        nodes = _named_nodes(model)
        single = {name: node.outputs[0] for name, node in nodes.items() if len(node.outputs) == 1}
        returned = {
            "/".join(map(str, path)): output
            for path, output in tree.flatten_with_path(model.output)
        }
        for name, (path, call, leaf) in inner.items():
            node = nodes.get(tap_name(path, call, ""))
            if (tap := tap_name(path, call, leaf)) in single:
                single[name] = single[tap]
            elif path == "":
                single[name] = returned[leaf]
            elif node and leaf == INPUT:
                single[name] = node.input_tensors[0]
            elif node and leaf == ACTIVATION:
                args, kwargs = node.arguments.args, node.arguments.kwargs
                single[name] = BeforeActivation(node.operation)(*args, **kwargs)
        if all(name in single for name in names):
            return model.inputs[0], {name: single[name] for name in names}
    shape, dtype = input_spec(model)
    images = keras.Input(shape[1:], dtype=dtype, name="images")
    cut = _cut(model, _ends(names)) if all(path for path, _, _ in inner.values()) else model
    sites = find_taps(cut)
    places = {tap: sites[tap] for tap in taps}
    positions = {path: position for position, (path, _) in enumerate(named_operations(cut))}
    for name, (path, call, leaf) in inner.items():
        places[name] = (positions[path] if path else MODEL, call, leaf)
    recorder = Recorder(model, places, name="recorder")
    return images, recorder(images)


# One thread at a time replaces the calls of layers, which several models may share.
_RECORDING = threading.RLock()


@keras.saving.register_keras_serializable("vit_tf")
class BeforeActivation(keras.layers.Layer):
    """The output of a layer before its own activation."""

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any):
        super().__init__(**kwargs | UNCAST)
        self.layer = layer

    def build(self, input_shape: Any) -> None:
        pass

    def call(self, *args: Any, **kwargs: Any) -> Tensor:
        thread = threading.get_ident()
        with _RECORDING:
            activation = self.layer.activation

            def linear_here(x: Tensor) -> Tensor:
                return x if threading.get_ident() == thread else activation(x)

            try:
                object.__setattr__(self.layer, "activation", linear_here)
                return self.layer(*args, **kwargs)
            finally:
                object.__setattr__(self.layer, "activation", activation)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BeforeActivation":
        return cls(keras.saving.deserialize_keras_object(config.pop("layer")), **config)


@keras.saving.register_keras_serializable("vit_tf")
class Recorder(keras.layers.Layer):
    """Runs a model and returns the outputs of selected layers; `places` is a dict from tap to site.

    For a functional model, it keeps only the layers up to the last one that is needed, but it saves
    the configuration of the whole model, because some libraries can only rebuild whole models.
    """

    def __init__(self, model: keras.Model, places: Mapping[str, Site], **kwargs: Any):
        super().__init__(**kwargs | UNCAST)
        returned = any(place[0] == MODEL for place in places.values())
        self.model = model if returned else _cut(model, _ends(places))
        self.places: dict[str, Site] = {x: cast(Site, tuple(site)) for x, site in places.items()}
        self._whole = lambda: model  # out of sight of Keras, which tracks the layers it sees

    def build(self, input_shape: Any) -> None:
        pass

    def call(self, images: Tensor, training: bool = False) -> dict[str, Tensor]:
        in_force = edits_in_force().items()
        edits = {self.places[tap]: edit for tap, edit in in_force if tap in self.places}
        inner = {p for p, _, leaf in self.places.values() if p == MODEL or leaf in ARGUMENTS}
        records = record(self.model, images, training, edits, inner=inner)
        return {tap: records[place] for tap, place in self.places.items()}

    def get_config(self) -> dict[str, Any]:
        config = {
            "model": keras.saving.serialize_keras_object(self._whole()),
            "places": {tap: list(place) for tap, place in self.places.items()},
        }
        return super().get_config() | config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Recorder":
        model = keras.saving.deserialize_keras_object(config.pop("model"))
        return cls(model, **config)


def record(
    model: keras.Model,
    images: Tensor,
    training: bool = False,
    edits: dict | None = None,
    watch: Callable | None = None,
    inner: Container[int] = (),
) -> dict:
    """Outputs of every layer inside `model`: dict from site to tensor, as computed.

    `edits` is a dict from site to function; the model continues with the values that these
    functions return. `watch` is called with the path of a layer, the layer, and the arguments.
    For layers at the positions `inner`, the first argument of each call and the first argument of
    their own activation are recorded, too; for `MODEL`, its outputs. Keras copies the lists and
    dicts that it passes to a call, so a call cannot fill an argument. Instead, the `call` of each
    layer is replaced while the call of the model runs.
    """
    edits = edits or {}
    records, changed = {}, []

    def keep(place: Site, value: Tensor) -> Tensor:
        if place in edits:
            value = edits[place](value)
        # A variable is recorded as its value, as only tensors are outputs of a graph.
        records[place] = ops.convert_to_tensor(value) if hasattr(value, "assign") else value
        return value

    def replace(layer: keras.layers.Layer, name: str, value: Callable) -> None:
        changed.append((layer, name, vars(layer).get(name)))
        object.__setattr__(layer, name, value)

    _RECORDING.acquire()
    try:
        if hasattr(model.call, "python_function"):
            replace(model, "call", _untraced(model, "call"))
        for position, (path, layer) in enumerate(named_operations(model)):
            is_quantized = getattr(layer, "quantization_mode", None) is not None
            name = "quantized_call" if is_quantized else "call"
            look = None if watch is None else functools.partial(watch, path, layer)
            watched = _Watched(layer, name, position, keep, look, position in inner)
            replace(layer, name, watched.call)
            if position in inner and callable(vars(layer).get("activation")):
                replace(layer, "activation", watched.activation)
        result = model(images, training=True) if training else infer(model, images)
        for path, leaf in tree.flatten_with_path(result) if MODEL in inner else ():
            keep((MODEL, 1, "/".join(map(str, path))), leaf)
    finally:
        for layer, name, value in changed:
            if value is None:
                object.__delattr__(layer, name)
            else:
                object.__setattr__(layer, name, value)
        _RECORDING.release()
    return records


def _untraced(layer: keras.layers.Layer, name: str) -> Callable:
    """The call of a layer; of a `tf.function`, what it traces, as its own graph holds its tensors.

    AutoGraph converts it as it does in a `tf.function`: it may branch on the value of a tensor.
    """
    call = getattr(layer, name)
    if not hasattr(call, "python_function"):
        return call
    import tensorflow as tf

    function = call.python_function
    if name not in vars(layer):  # TensorFlow binds a method of the class in a way of its own
        function = types.MethodType(getattr(type(layer), name).python_function, layer)
    try:
        converted = tf.autograph.to_graph(function)
    except Exception:  # as in a `tf.function`, what AutoGraph cannot convert runs as it is
        return function
    owner = getattr(function, "__self__", None)
    return converted if owner is None else functools.partial(converted, owner)


class _Watched:
    """The call of a layer, and of its activation, which `keep` is shown the values of."""

    def __init__(
        self,
        layer: keras.layers.Layer,
        name: str,
        position: int,
        keep: Callable[[Site, Tensor], Tensor],
        watch: Callable | None,
        with_inputs: bool,
    ):
        # A layer without layers in it has nothing to record inside, and keeps its `tf.function`.
        is_opened = with_inputs or (is_layer(layer) and bool(layers_in(layer)))
        self._call = _untraced(layer, name) if is_opened else getattr(layer, name)
        self._thread = threading.get_ident()
        # None for a layer without an activation, which `activation` is never called for.
        self._activation = cast(Callable[[Tensor], Tensor], vars(layer).get("activation"))
        self._position, self._keep, self._watch = position, keep, watch
        self._with_inputs, self._number = with_inputs, 0
        # `Attention` has one head, whose weights it returns if it is asked to.
        self._returns_weights = type(layer).call is keras.layers.Attention.call

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:  # another thread uses the model meanwhile
            return self._call(*args, **kwargs)
        self._number += 1
        number = self._number
        if self._watch:
            self._watch(args, kwargs)
        if self._with_inputs and args and hasattr(args[0], "shape"):
            args = self._keep((self._position, number, INPUT), args[0]), *args[1:]
        if self._returns_weights:
            both = self._call(*args, **kwargs | {"return_attention_scores": True})
            weights = both[1] if len(both[1].shape) > 3 else both[1][:, None]
            if self._keep((self._position, number, WEIGHTS), weights) is not weights:
                raise ValueError(
                    "Expected no edits of the weights of keras.layers.Attention, which the layer "
                    "computes inside: edit its output"
                )
            result = both if kwargs.get("return_attention_scores") else both[0]
        else:
            result = self._call(*args, **kwargs)
        leaves, is_edited = [], False
        for path, leaf in tree.flatten_with_path(result):
            kept = leaf
            if hasattr(leaf, "shape"):
                kept = self._keep((self._position, number, "/".join(map(str, path))), leaf)
            is_edited |= kept is not leaf
            leaves.append(kept)
        return tree.pack_sequence_as(result, leaves) if is_edited else result

    def activation(self, x: Tensor) -> Tensor:
        if threading.get_ident() != self._thread:
            return self._activation(x)
        return self._activation(self._keep((self._position, self._number, ACTIVATION), x))


def names_its_layers(model: Any) -> bool:
    """Whether a whole model computes its taps by itself, as models of this package do."""
    return hasattr(model, "intermediates")


def named_layers(model: keras.Model) -> list[tuple]:
    """Pairs (slash-joined path, layer) of all nested layers; siblings of one name are numbered."""
    return [(path, layer) for path, layer in named_operations(model) if is_layer(layer)]


def is_layer(operation: Any) -> bool:
    """Whether an operation is a layer, and not a function of `keras.ops` in a functional model."""
    return isinstance(operation, keras.layers.Layer)


def layers_in(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layers that a layer or a model contains directly."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def named_operations(model: keras.Model) -> list[tuple]:
    """The pairs of `named_layers`, then the `keras.ops` functions of nested functional models."""
    layers, operations, visited = [], [], {id(model)}

    def walk(parent: Any, prefix: str) -> None:
        names = set()
        graph = functional_graph(parent)
        for node in graph_nodes(graph) if graph else ():
            operation = node.operation
            if not is_layer(operation) and id(operation) not in visited:
                visited.add(id(operation))
                operations.append((prefix + operation.name, operation))
        for layer in layers_in(parent):
            if id(layer) in visited or isinstance(layer, keras.layers.InputLayer):
                continue
            visited.add(id(layer))
            numbered = (f"{layer.name}_{number}" for number in itertools.count(1))
            name = next(n for n in itertools.chain([layer.name], numbered) if n not in names)
            names.add(name)
            layers.append((prefix + name, layer))
            walk(layer, f"{prefix}{name}/")

    walk(model, "")
    return layers + operations


def tap_name(path: str, call: int, leaf: str) -> str:
    """The name of a tap: `"PATH@CALL/LEAF"`, without a part that is not needed."""
    return path + (f"@{call}" if call > 1 else "") + (f"/{leaf}" if leaf else "")


def split_weights(name: str) -> tuple[str, str]:
    """The path of the layer in `"PATH/weights@CALL"`, and `"@CALL"`, empty for the first call."""
    path, _, call = name.rpartition("/weights")
    return path, call


def _ends(taps: Iterable[str]) -> set[str]:
    """Names of the model's own layers that hold these taps."""
    return {tap.split("/")[0].split("@")[0] for tap in taps}


def _cut(model: keras.Model, ends: Iterable[str]) -> keras.Model:
    """The part of a functional model up to the named layers; another model as it is."""
    if not hasattr(model, "_nodes_by_depth"):
        return model
    nodes = [node for node in graph_nodes(model) if node.operation.name in ends]
    outputs = [output for node in nodes for output in node.outputs]
    return keras.Model(model.inputs[0], outputs, name=model.name)


def _named_nodes(model: keras.Model) -> dict[str, Any]:
    """The calls of the layers of a functional model, by name of the call."""
    nodes, calls = {}, Counter()
    for node in graph_nodes(model):
        calls[node.operation.name] += 1
        nodes[tap_name(node.operation.name, calls[node.operation.name], "")] = node
    return nodes


def with_free_batch(model: keras.Model) -> keras.Model:
    """A model for batches of any size: a Sequential that its first call has built knows only one.

    It shares the layers of the model. Other models are returned as they are.
    """
    inputs = getattr(model, "inputs", None) if isinstance(model, keras.Sequential) else None
    if not inputs or inputs[0].shape[0] is None:
        return model
    images = keras.Input(inputs[0].shape[1:], dtype=inputs[0].dtype)
    return keras.Sequential([images, *model.layers], name=model.name)


def functional_graph(model: Any) -> Any:
    """The functional model that a model is or, for a Sequential, runs; None if subclassed."""
    graph = getattr(model, "_functional", None) or model
    return graph if hasattr(graph, "_nodes_by_depth") else None


def graph_nodes(graph: Any) -> list:
    """The calls of operations of a functional model, without its inputs, in their order."""
    depths = sorted(graph._nodes_by_depth, reverse=True)
    return [n for depth in depths for n in graph._nodes_by_depth[depth] if not n.is_input]


def input_spec(model: keras.Model) -> tuple[tuple[int | None, ...], str]:
    """Shape (with a free batch axis) and dtype of the images that a model was built for."""
    if getattr(model, "inputs", None):
        if len(model.inputs) != 1:
            raise ValueError(
                f"Expected a model whose only input is images. Received: {len(model.inputs)} "
                "inputs; fix the others in a function of images, lambda images: "
                "{'features': keras.Model(model.inputs, layer.output)([images, others])}"
            )
        return (None, *model.inputs[0].shape[1:]), model.inputs[0].dtype
    shape = (model.get_build_config() or {}).get("input_shape")
    if not model.built or not shape:
        raise ValueError(f"{model.name!r} is not built: call it on a batch of images once")
    if not all(size is None or isinstance(size, int) for size in shape):
        raise ValueError(
            f"Expected a model whose only input is images. Received: {model.name!r}, built for "
            f"inputs of shapes {shape}"
        )
    return (None, *shape[1:]), model.input_dtype


_IN_FORCE: contextvars.ContextVar[Mapping[str, Callable] | None] = contextvars.ContextVar(
    "edits in force", default=None
)


@contextlib.contextmanager
def applying_edits(edits: Mapping[str, Callable] | None) -> Iterator[None]:
    """A context in which layers of this package apply edits, a dict from tap to function."""
    before = _IN_FORCE.set(edits)
    try:
        yield
    finally:
        _IN_FORCE.reset(before)


def apply_in_turn(edits: Iterable[Callable], value: Tensor) -> Tensor:
    """The value after several edits of one layer, one after the other."""
    for edit in edits:
        value = edit(value)
    return value


def edits_in_force() -> Mapping[str, Callable]:
    """The edits that layers currently apply: dict from tap to function, possibly empty."""
    return _IN_FORCE.get() or {}


class Taps:
    """The intermediates of a layer, recorded as they are computed: `x = taps("norm", f(x))`.

    Continue with the value that the call returns, because an active edit replaces it. `site` is the
    first part of the names of the taps, which the layer omits.
    """

    def __init__(self, site: str | None = None):
        self._prefix, self.values = f"{site}/" if site else "", {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        edit = edits_in_force().get(self._prefix + name)
        self.values[name] = value = value if edit is None else edit(value)
        return value
