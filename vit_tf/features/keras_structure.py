"""The structure of Keras models of other packages: layers, blocks, paths and skips."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from vit_tf.common.backend import Tensor
from vit_tf.features import recorder
from vit_tf.features.recorder import TracedTap
from vit_tf.features.structure import LayerEntry, ModelGraph, graph_of_entries

TERMS = ("/skip", "/branch")  # ends of the names of what a residual sum adds
IMAGES = -1  # in place of the number of a call: the input of a graph


def graph_of(model: keras.Model) -> ModelGraph:
    """The representations, blocks and scores of a built Keras model.

    Models of this package show them in the names of their taps. In others, a layer that is the only
    one of its class and contains several layers of one class, such as the encoder of a ViT, and a
    model inside the model are opened: their layers count as the model's own, and operations of
    functional models, such as a sum, count as layers. Among these, `find_representations_among`
    finds the representations. Where no block ends, at most 40 are chosen, evenly spread.
    """
    if recorder.names_its_layers(model):
        return ModelGraph.from_names(model.taps)
    return graph_of_taps(model, recorder.trace_taps(model))


def graph_of_taps(model: keras.Model, traced: Mapping[str, TracedTap]) -> ModelGraph:
    """The structure of a model whose layers have names of their own, from its taps."""
    calls = [
        tap
        for tap in traced.values()
        if tap.site[2] in ("", "0") and len(tap.shape) > 1 and tap.shape[0] is None
    ]
    last = {call.path: call.number for call in calls}
    # A block that runs several times stands for several; of an activation the last call counts.
    calls = [call for call in calls if _learns(call.layer) or call.number == last[call.path]]
    needed = {(tap.path, tap.number) for tap in traced.values() if tap.is_needed}
    calls = [call for call in calls if (call.path, call.number) in needed]
    return graph_of_entries(_mark_scores(list(_opened(model, "", calls, needed)), traced))


def _opened(
    container: Any,
    prefix: str,
    all_calls: Sequence[TracedTap],
    needed: Container[tuple[str, int]],
    stretch: tuple[int, ...] = (),
) -> Iterator[LayerEntry]:
    """The entries of a container, with those of the layers that are opened in their place."""
    calls = _calls_in(prefix, all_calls)
    classes = Counter(type(_unwrapped(call.layer)) for call in calls if _has_blocks(call.layer))
    graph = recorder.functional_graph(container)
    places = _Stretches(graph, prefix, needed).places if graph else None
    sums = _sums(graph) if graph else set()
    # A stage is a sequence of several composite layers of one class.
    stages = set()
    for call in calls:
        inside = [x for x in _calls_in(f"{call.path}/", all_calls) if _has_blocks(x.layer)]
        if len(inside) > len({type(x.layer) for x in inside}) and _last_inside(call, all_calls):
            stages.add(type(_unwrapped(call.layer)))
    for call in calls:
        layer = _unwrapped(call.layer)
        number, is_single = (0, True) if places is None else places.get(call.name, (0, False))
        own_stretch = (*stretch, number) if number else stretch
        # A stage ends with what one of its blocks returns, or its layer that merges positions.
        is_stage = is_single and type(layer) in stages and _last_inside(call, all_calls)
        # A stack may also run one block again and again.
        inside = [c.path for c in _calls_in(f"{call.path}/", all_calls) if _has_blocks(c.layer)]
        is_loop = len(inside) > len(set(inside))
        is_only = classes[type(layer)] == 1 and (is_loop or _is_stack(layer))
        is_long_path = number and recorder.functional_graph(call.layer) is not None
        if is_only or is_stage or is_long_path:
            inner = list(_opened(call.layer, f"{call.path}/", all_calls, needed, own_stretch))
            if inner:
                yield from inner
                continue
        yield LayerEntry(
            call.name,
            tuple(call.shape),
            has_weights=_learns(layer),
            has_blocks=_has_blocks(layer),
            is_single=is_single,
            kernel=_kernel_shape(layer),
            is_sum=call.layer.name in sums,
            activation=getattr(getattr(layer, "activation", None), "__name__", ""),
            stretch=own_stretch,
            kind=type(layer).__qualname__,
        )


def _mark_scores(entries: list[LayerEntry], traced: Mapping[str, TracedTap]) -> list[LayerEntry]:
    """The entries with class scores marked: what no layer with weights follows.

    They are vectors of fully connected layers, the maps of scores of a segmentation model, which
    a convolution of single positions narrows, and what is computed from either.
    """
    numbers = {name: number for number, name in enumerate(traced)}

    def follows(later: LayerEntry, earlier: LayerEntry) -> bool:
        is_other = traced[later.tap].value != traced[earlier.tap].value
        return is_other and bool(traced[later.tap].sources >> numbers[earlier.tap] & 1)

    weighted = [entry for entry in entries if entry.has_weights]
    heads = [
        entry
        for entry in weighted
        if entry.may_be_scores and not any(follows(later, entry) for later in weighted)
    ]
    return [
        replace(entry, is_scores=entry in heads or any(follows(entry, head) for head in heads))
        for entry in entries
    ]


def _last_inside(call: TracedTap, calls: Sequence[TracedTap]) -> bool:
    """Whether a layer returns what a layer with layers inside, among its own, has returned."""
    inside = _calls_in(f"{call.path}/", calls)
    return any(c.value == call.value for c in inside if _has_blocks(c.layer))


def _calls_in(prefix: str, calls: Sequence[TracedTap]) -> list[TracedTap]:
    """The calls of the layers directly inside the layer whose path, with a slash, is the prefix."""
    return [c for c in calls if c.path.startswith(prefix) and "/" not in c.path[len(prefix) :]]


def _learns(layer: Any) -> bool:
    """Whether a layer has weights other than those of a normalization of images."""
    is_normalization = ".layers.preprocessing." in type(layer).__module__
    return bool(getattr(layer, "weights", ())) and not is_normalization


def _unwrapped(layer: Any) -> Any:
    """The layer inside wrappers such as `SpectralNormalization`, which are no blocks themselves."""
    while isinstance(layer, keras.layers.Wrapper):
        layer = layer.layer
    return layer


def _has_blocks(layer: Any) -> bool:
    """Whether a layer contains layers with weights."""
    layer = _unwrapped(layer)
    inside = recorder.layers_in(layer) if getattr(layer, "weights", ()) else ()
    return any(inner.weights for inner in inside)


def _is_stack(layer: Any) -> bool:
    """Whether a layer is a model, or contains several composite layers of one class."""
    if not recorder.is_layer(layer):
        return False
    if isinstance(layer, keras.Model) and len(recorder.layers_in(layer)) > 2:
        return True
    classes = Counter(type(inner) for inner in recorder.layers_in(layer) if _has_blocks(inner))
    return any(count > 1 for count in classes.values()) or any(
        count == 1 and _is_stack(inner)
        for inner in recorder.layers_in(layer)
        if (count := classes[type(inner)])
    )


def _kernel_shape(layer: Any) -> tuple[int, ...]:
    kernel = getattr(_unwrapped(layer), "kernel", None)
    return () if kernel is None else tuple(kernel.shape)


def _has_kernel(operation: Any) -> bool:
    return bool(_kernel_shape(operation)) or _has_blocks(operation)


class _Stretches:
    """Which calls of a functional graph all that follows is computed from, and on which path.

    Between two such calls, paths that start at the first and are joined by the second are the
    inside of one block, unless a path is long: where layers with kernels on it, which all of the
    path goes through, return maps of other sizes than both ends have. The layers of a long path are
    followed as those of the whole graph are. One long path, as in a U-Net, continues the stretch of
    what is before it; of several, as in two streams, each is a stretch of its own.

    `places` is a dict from the names of taps to the number of the stretch, and to whether all that
    follows on the path is computed from the call alone.
    """

    def __init__(self, graph: Any, prefix: str, needed: Container[tuple[str, int]]) -> None:
        self._nodes: list[Any] = []
        names, numbers = [], Counter()
        for node in recorder.graph_nodes(graph):
            path = f"{prefix}{node.operation.name}"
            numbers[path] += 1
            if (path, numbers[path]) in needed:
                self._nodes.append(node)
                names.append(recorder.tap_name(path, numbers[path], ""))
        made = {id(x): i for i, node in enumerate(self._nodes) for x in node.outputs}
        self._reads = [{made.get(id(x), IMAGES) for x in n.input_tensors} for n in self._nodes]
        read = {id(x) for node in self._nodes for x in node.input_tensors}
        # Calls of which more than the first output is read.
        self._split = {
            i for i, n in enumerate(self._nodes) if any(id(x) in read for x in n.outputs[1:])
        }
        self._images, self._num_stretches = graph.inputs[0], 0
        self._places: dict[int, tuple[int, bool]] = {}
        ends = [made[id(x)] for x in graph.outputs if id(x) in made]
        if ends:  # of several outputs, the last that is computed
            self._follow(range(len(self._nodes)), IMAGES, {max(ends)}, 0)
        self.places = {
            name: place for i, place in self._places.items() for name in (names[i], f"{names[i]}/0")
        }

    def _follow(self, calls: Sequence[int], start: int, ends: set[int], stretch: int) -> None:
        """Follows a path from a call through others, the last of which what follows reads."""
        self._places |= dict.fromkeys(calls, (stretch, False))
        before = start
        for single in self._singles(calls, ends):
            inside = [i for i in calls if before < i < single]
            stretch = self._enter(inside, before, single, stretch)
            self._places[single] = stretch, True
            before = single

    def _singles(self, calls: Sequence[int], ends: set[int]) -> list[int]:
        """The calls after which nothing else that was computed before is still read.

        A concatenation is one even if another concatenation is read, as the cell before the last
        one is in NASNet, but not if that is added or concatenated to something, as a skip is.
        """
        inside, last_use = {*calls}, {}
        for i in calls:
            last_use |= {source if source in inside else IMAGES: i for source in self._reads[i]}
        last_use |= dict.fromkeys(ends, len(self._nodes))
        alive, singles = {IMAGES}, []
        for i in calls:
            alive = {source for source in alive | {i} if last_use.get(source, -1) > i}
            if i not in alive or i in self._split:
                continue
            is_single = alive == {i}
            kinds = {type(self._nodes[x].operation).__name__ for x in alive if x != IMAGES}
            if not is_single and IMAGES not in alive and kinds == {"Concatenate"}:
                later = (self._reads[x] for x in calls if x > i and self._reads[x] & alive - {i})
                is_single = all(len(read) == 1 for read in later)
            if is_single:
                singles.append(i)
        return singles

    def _enter(self, inside: Sequence[int], start: int, join: int, stretch: int) -> int:
        """Follows the long paths between two calls; returns the stretch of the second."""
        ends, long_paths = {self._size(start), self._size(join)}, []
        for path in self._paths(inside):
            last = self._reads[join] & {*path}
            singles = (self._nodes[i] for i in self._singles(path, last))
            if set[Any]().union(*map(_map_sizes, singles)) - ends:
                long_paths.append((path, last))
        for path, last in long_paths:
            self._num_stretches += len(long_paths) > 1
            self._follow(path, start, last, self._num_stretches if len(long_paths) > 1 else stretch)
        if len(long_paths) < 2:
            return stretch
        self._num_stretches += 1
        return self._num_stretches

    def _paths(self, calls: Sequence[int]) -> list[list[int]]:
        """Some calls as the groups of those that read one another, each in order."""
        paths: list[set[int]] = []
        for i in calls:
            joined = [path for path in paths if self._reads[i] & path]
            paths = [path for path in paths if path not in joined]
            paths.append({i}.union(*joined))
        return list(map(sorted, paths))

    def _size(self, call: int) -> tuple[int | None, ...]:
        tensor = self._images if call == IMAGES else self._nodes[call].outputs[0]
        return tuple(tensor.shape[1:3]) if len(tensor.shape) == 4 else ()


def _map_sizes(node: Any) -> set[tuple[int | None, ...]]:
    """Rows and columns of the maps that a call with a kernel returns, and calls inside a model."""
    graph = recorder.functional_graph(node.operation)
    if graph is not None:
        return set[Any]().union(*map(_map_sizes, recorder.graph_nodes(graph)))
    shape = node.outputs[0].shape
    is_map = len(shape) == 4 and tuple(shape[1:3]) != (1, 1) and _has_kernel(node.operation)
    return {tuple(shape[1:3])} if is_map else set()


def _sums(graph: Any) -> set[str]:
    """Names of the layers and operations that add two tensors."""
    return {
        node.operation.name
        for node in recorder.graph_nodes(graph)
        if type(node.operation).__name__ == "Add" and len(node.input_tensors) > 1
    }


def residual_terms(model: keras.Model, taps: Container[str]) -> dict[str, str]:
    """`"SUM/skip"` and `"SUM/branch"` of each residual sum, to the taps that hold them.

    A residual sum adds two tensors of equal shape, in a functional model or one inside it. Of what
    only one of the two depends on, the skip has nothing, or fewer layers with kernels, at most one:
    the projection of a shortcut. What comes after the sum, such as an activation, has no influence.
    """
    operations = recorder.named_operations(model)
    paths = {id(operation): path for path, operation in operations}
    containers = [model, *(operation for _, operation in operations)]
    graphs = [graph for graph in map(recorder.functional_graph, containers) if graph is not None]
    terms: dict[str, str] = {}
    for graph in graphs:
        sources, ancestors, calls = {}, {id(x): 0 for x in graph.inputs}, Counter()
        nodes = recorder.graph_nodes(graph)
        for index, node in enumerate(nodes):
            path = paths.get(id(node.operation), "")
            calls[path] += 1
            name = recorder.tap_name(path, calls[path], "")
            # The nodes that a tensor depends on, as bits of one number.
            depends_on = 1 << index
            for tensor in node.input_tensors:
                depends_on |= ancestors.get(id(tensor), 0)
            for position, output in enumerate(node.outputs):
                is_single = len(node.outputs) == 1
                sources[id(output)] = name if is_single else f"{name}/{position}"
                ancestors[id(output)] = depends_on
            if type(node.operation).__name__ != "Add" or len(node.input_tensors) != 2:
                continue
            pair = _skip_and_branch(node.input_tensors, ancestors, nodes)
            held = [sources[id(x)] for x in pair or () if id(x) in sources]
            if len(held) == len(TERMS) and name in taps and all(source in taps for source in held):
                terms |= {f"{name}{term}": tap for term, tap in zip(TERMS, held, strict=True)}
    return terms


def _skip_and_branch(
    tensors: Sequence[Tensor], ancestors: Mapping[int, int], nodes: Sequence[Any]
) -> tuple[Tensor, Tensor] | None:
    """The skip and the branch of two tensors that are added; None where neither is a skip."""
    first, second = tensors
    if first is second or tuple(first.shape) != tuple(second.shape):
        return None
    sizes = []
    for tensor, other in ((first, second), (second, first)):
        own = ancestors[id(tensor)] & ~ancestors[id(other)]
        own_nodes = [node for index, node in enumerate(nodes) if own >> index & 1]
        kernels = sum(_has_kernel(node.operation) for node in own_nodes)
        sizes.append((kernels, len(own_nodes)))
    (kernels, others), (most_kernels, _) = sorted(sizes)
    # Two paths with as many kernels are parallel branches, unless one of them is the input itself.
    if sizes[0] == sizes[1] or kernels > 1 or (kernels == most_kernels and others):
        return None
    return (first, second) if sizes[0] < sizes[1] else (second, first)
