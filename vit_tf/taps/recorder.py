"""Recording outputs of layers, of this package's and inside any Keras model, and editing them."""

import contextlib
import contextvars
import itertools
import re
from collections.abc import Callable
from typing import Any

import keras
from keras import tree


def infer(model: Callable, *args, **kwargs) -> Any:
    """Calls a model, a layer or a function as inference: the one place that decides it.

    Layers that Keras or users define with `training=True` by default, such as augmentations, would
    otherwise be active. A model inside a function, and a layer inside a model that does not take
    `training`, inherit it from the call around them.
    """
    if isinstance(model, keras.layers.Layer):
        return model(*args, **kwargs | {"training": False})
    if isinstance(model, keras.Operation):
        return model(*args, **kwargs)
    result, error = _CallOfFunction(name="inference")(
        function=lambda: model(*args, **kwargs), training=False
    )
    if error is not None:
        raise error
    return result


class _CallOfFunction(keras.layers.Layer):
    """Calls a function inside the call of a layer, whose `training` the layers in it inherit."""

    def build(self, input_shape=None):
        pass

    def call(self, function):
        try:
            return function(), None
        except Exception as error:  # Keras would put words of its own around the message
            return None, error


def find_taps(model: keras.Model, watch: Callable | None = None) -> dict[str, tuple]:
    """Taps of a built Keras model: dict from name to site, in the order of computation.

    A site is the position of a layer in `named_operations(model)`, the number of its call and the
    path of a tensor inside its output (`""` for a single tensor). It holds in another process
    too, where Keras may give the layers other names. `watch` is shown the path of a layer and the
    arguments of each call of it.
    """
    return {name: place for name, (place, _, _) in trace_taps(model, watch).items()}


def trace_taps(model, watch=None):
    """As `find_taps`: dict from name to (site, layer, shape of its output)."""
    shape, dtype = input_spec(model)
    shapes, layers = {}, named_operations(model)

    def look(position, args, kwargs):
        watch(layers[position][0], args, kwargs)

    def trace(images):
        records = record(model, images, watch=watch and look)
        shapes.update({place: tuple(value.shape) for place, value in records.items()})
        return list(records.values())

    keras.layers.Lambda(trace)(keras.KerasTensor(shape, dtype))
    return {
        _tap_name(layers[place[0]][0], *place[1:]): (place, layers[place[0]][1], shape)
        for place, shape in shapes.items()
    }


def symbolic_taps(model, taps):
    """Symbolic images and a dict from each of `taps` to its symbolic output."""
    graph = functional_graph(model)
    model = graph or model
    if graph:
        outputs = _graph_outputs(model, _ends(taps))
        single = {name: tensors[0] for name, tensors in outputs.items() if len(tensors) == 1}
        if type(model).__module__.startswith("keras.") and all(tap in single for tap in taps):
            return model.inputs[0], {tap: single[tap] for tap in taps}
    shape, dtype = input_spec(model)
    places = find_taps(_cut(model, _ends(taps)))
    images = keras.Input(shape[1:], dtype=dtype, name="images")
    recorder = Recorder(model, {tap: places[tap] for tap in taps}, name="recorder")
    return images, recorder(images)


@keras.saving.register_keras_serializable("vit_tf")
class Recorder(keras.layers.Layer):
    """Runs a model and returns the outputs of chosen layers inside it, `places` by tap.

    Of a functional model it holds only the layers up to the last one needed, but it saves the
    configuration of the whole: layers of some libraries can only be made again by their model.
    """

    def __init__(self, model, places, **kwargs):
        super().__init__(**kwargs)
        self.model = _cut(model, _ends(places))
        self.places = {tap: tuple(place) for tap, place in places.items()}
        self._whole = lambda: model  # out of sight of Keras, which tracks the layers it sees

    def build(self, input_shape):
        pass

    def call(self, images, training=False):
        in_force = edits_in_force().items()
        edits = {self.places[tap]: edit for tap, edit in in_force if tap in self.places}
        records = record(self.model, images, training=training, edits=edits)
        return {tap: records[place] for tap, place in self.places.items()}

    def get_config(self):
        config = {
            "model": keras.saving.serialize_keras_object(self._whole()),
            "places": {tap: list(place) for tap, place in self.places.items()},
        }
        return super().get_config() | config

    @classmethod
    def from_config(cls, config):
        model = keras.saving.deserialize_keras_object(config.pop("model"))
        return cls(model, **config)


def record(
    model, images, training=False, edits: dict | None = None, watch: Callable | None = None
) -> dict:
    """Outputs of every layer inside `model`: dict from site to tensor, as computed.

    The model continues with what `edits`, functions by site, return. `watch` is shown the position
    of a layer and the arguments of each call. Keras copies the lists and dicts that it passes to a
    call, so nothing can be handed down to be filled: the `call` of each layer is replaced instead
    while the model's own call runs.
    """
    records, changed = {}, []
    try:
        for position, (_, layer) in enumerate(named_operations(model)):
            changed.append((layer, vars(layer).get("call")))
            call = _watched(layer.call, position, records, edits or {}, watch)
            object.__setattr__(layer, "call", call)
        if training:
            model(images, training=True)
        else:
            infer(model, images)
    finally:
        for layer, call in changed:
            if call is None:
                object.__delattr__(layer, "call")
            else:
                object.__setattr__(layer, "call", call)
    return records


def _watched(call, position, records, edits, watch):
    numbers = itertools.count(1)

    def watched(*args, **kwargs):
        number = next(numbers)
        if watch:
            watch(position, args, kwargs)
        result = call(*args, **kwargs)
        leaves = []
        for path, leaf in tree.flatten_with_path(result):
            if hasattr(leaf, "shape"):
                place = (position, number, "/".join(map(str, path)))
                leaf = edits[place](leaf) if place in edits else leaf
                records[place] = leaf
            leaves.append(leaf)
        return tree.pack_sequence_as(result, leaves) if edits else result

    return watched


def named_layers(model) -> list[tuple]:
    """(slash-joined path, layer) of all layers inside, each once; siblings of one name numbered."""
    return [(path, layer) for path, layer in named_operations(model) if is_layer(layer)]


def is_layer(operation) -> bool:
    """Whether an operation is a layer, and not a function of `keras.ops` in a functional model."""
    return isinstance(operation, keras.layers.Layer)


def named_operations(model) -> list[tuple]:
    """As `named_layers`, followed by the functions of `keras.ops` of functional models inside."""
    layers, operations, visited = [], [], {id(model)}

    def walk(parent, prefix):
        names = set()
        graph = functional_graph(parent)
        for node in graph_nodes(graph) if graph else ():
            operation = node.operation
            if not is_layer(operation) and id(operation) not in visited:
                visited.add(id(operation))
                operations.append((prefix + operation.name, operation))
        for layer in parent._flatten_layers(include_self=False, recursive=False):
            if id(layer) in visited or isinstance(layer, keras.layers.InputLayer):
                continue
            visited.add(id(layer))
            numbered = (f"{layer.name}_{number}" for number in itertools.count(1))
            name = next(n for n in itertools.chain([layer.name], numbered) if n not in names)
            names.add(name)
            layers.append((prefix + name, layer))
            walk(layer, f"{prefix}{name}/")

    walk(model, "")
    # Sites in files of earlier versions are positions among layers, which stay what they were.
    return layers + operations


def _tap_name(path, call, leaf):
    return path + (f"@{call}" if call > 1 else "") + (f"/{leaf}" if leaf else "")


def path_of(tap):
    """The path of the layer whose output a tap is, without the number of the call."""
    return re.sub(r"(@\d+)?(/\d+)?$", "", tap)


def _ends(taps):
    """Names of the model's own layers that hold these taps."""
    return {tap.split("/")[0].split("@")[0] for tap in taps}


def _cut(model, ends):
    """The part of a functional model up to the named layers; another model as it is."""
    if not hasattr(model, "_nodes_by_depth"):
        return model
    outputs = tree.flatten(_graph_outputs(model, ends))
    return keras.Model(model.inputs[0], outputs, name=model.name)


def _graph_outputs(model, names):
    """Symbolic outputs of the named layers of a functional model: lists by name of the call."""
    graph, calls = {}, dict.fromkeys(names, 0)
    for node in graph_nodes(model):
        name = node.operation.name
        if name in calls:
            calls[name] += 1
            graph[_tap_name(name, calls[name], "")] = node.outputs
    return graph


def functional_graph(model):
    """A functional model, or that which a Sequential runs; None for a subclassed one."""
    graph = getattr(model, "_functional", None) or model
    return graph if hasattr(graph, "_nodes_by_depth") else None


def graph_nodes(graph) -> list:
    """The calls of operations of a functional model, without its inputs, in their order."""
    depths = sorted(graph._nodes_by_depth, reverse=True)
    return [n for depth in depths for n in graph._nodes_by_depth[depth] if not n.is_input]


def input_spec(model):
    """Shape (with a free batch axis) and dtype of the images that a model was built for."""
    if getattr(model, "inputs", None):
        if len(model.inputs) != 1:
            raise ValueError(
                f"Expected a model of one input, the images. Received: {len(model.inputs)} inputs"
            )
        return model.inputs[0].shape, model.inputs[0].dtype
    shape = (model.get_build_config() or {}).get("input_shape")
    if not model.built or not shape:
        raise ValueError(
            "Expected a built model: call it on a batch of images once. "
            f"Received: {model.name!r}, not built"
        )
    if not all(size is None or isinstance(size, int) for size in shape):
        raise ValueError(
            "Expected a model of one input, the images. "
            f"Received: {model.name!r}, built for inputs of shapes {shape}"
        )
    return (None, *shape[1:]), model.input_dtype


_IN_FORCE = contextvars.ContextVar("edits in force", default=None)


@contextlib.contextmanager
def in_force(edits):
    """Within it, layers of this package apply edits: dict from tap to function."""
    before = _IN_FORCE.set(edits)
    try:
        yield
    finally:
        _IN_FORCE.reset(before)


def edits_in_force():
    """The edits that are to be applied, dict from tap to function; empty where there are none."""
    return _IN_FORCE.get() or {}


class Taps:
    """The intermediates of a layer, recorded as they are computed: `x = taps("norm", f(x))`.

    What is computed next is made of what the call returns, which is another value where an edit is
    in force. `site` is the first part of the taps' names, which the layer leaves out.
    """

    def __init__(self, site=None):
        self._prefix, self.values = f"{site}/" if site else "", {}

    def __call__(self, name, value):
        edit = edits_in_force().get(self._prefix + name)
        self.values[name] = value = value if edit is None else edit(value)
        return value
