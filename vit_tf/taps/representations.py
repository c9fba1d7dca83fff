"""The representations of a model: the output of each block or stage, the embedding, the final norm.

The rule for models whose taps do not follow the tap grammar of this package:

1. A layer that is the only one of its class and contains several layers of one class, such as the
   encoder of a ViT, and a model inside the model are opened: their layers count as the model's own.
2. The output of each layer that contains layers with weights is a representation: a block, a stage.
3. Between them, layers without layers inside form groups of equal rows and columns. A group ends
   where several paths begin; the last output of a group with weights, or in which paths are joined
   by a sum or a concatenation, is a representation.
4. The vector that a last Dense layer reads is one; its output, the scores of classes, is not.

Of more than 40, 40 are chosen, evenly spread.
"""

import re
from collections import Counter

import keras

from vit_tf.taps import recorder

MAX_LAYERS = 40


def block_outputs(taps):
    """The taps at the end of each block or unit, after its last sum, and those before the first."""
    ends = {}
    for tap in taps:
        site, _, what = tap.rpartition("/")
        if what == "sum":
            ends[re.sub(r"/(attention|mlp|token_mixing|channel_mixing)$", "", site)] = tap
    return [tap for tap in taps if tap in ends.values() or tap in ("embedding", "root")]


def find_representations(model):
    """Names of the taps that hold the representations of a built Keras model, in depth order."""
    if hasattr(model, "intermediates"):
        blocks = block_outputs(model.taps)
        return [tap for tap in model.taps if tap in blocks or tap == "norm"]
    return _spread([name for name, _ in _chosen(_entries(model))])


def find_blocks(model):
    """Those of the representations that are the outputs of blocks, and the embedding."""
    if hasattr(model, "intermediates"):
        return block_outputs(model.taps)
    chosen = _chosen(_entries(model))
    blocks = [name for name, layer in chosen if _has_blocks(layer)]
    return _spread(blocks or [name for name, _ in chosen])


def _chosen(entries):
    """(tap, layer) of the representations."""
    pairs = zip(entries, _choose(entries), strict=True)
    return [(name, layer) for (name, layer, _, _), kept in pairs if kept]


def _spread(names):
    """The names, or 40 of them, evenly spread."""
    if len(names) <= MAX_LAYERS:
        return names
    last = len(names) - 1
    return [names[round(i * last / (MAX_LAYERS - 1))] for i in range(MAX_LAYERS)]


def last_output(model):
    """The tap that holds what a model returns: its scores, where it is a classifier."""
    return model.taps[-1] if hasattr(model, "intermediates") else _entries(model)[-1][0]


def _entries(model):
    """(tap, layer, shape, whether all that follows reads only this) of the layers that count."""
    found = {}
    for name, (place, layer, shape) in recorder.trace_taps(model).items():
        if place[2] in ("", "0") and len(shape) > 1 and shape[0] is None:
            found[recorder.path_of(name)] = (name, layer, shape)  # of several calls the last
    return list(_opened(model, "", found))


def _opened(container, prefix, found):
    """The entries of a container, with those of the layers that are opened in their place."""
    layers = [
        (path, *found[path])
        for path in found
        if path.startswith(prefix) and "/" not in path[len(prefix) :]
    ]
    classes = Counter(type(layer) for _, _, layer, _ in layers if _has_blocks(layer))
    graph = getattr(container, "_functional", None) or container
    single = _single_tensors(graph) if hasattr(graph, "_nodes_by_depth") else None
    for path, name, layer, shape in layers:
        if classes[type(layer)] == 1 and _is_stack(layer):
            inner = list(_opened(layer, f"{path}/", found))
            if inner:
                yield from inner
                continue
        yield name, layer, shape, single is None or layer.name in single


def _learns(layer):
    """Whether a layer has weights other than those of a normalization of images."""
    return bool(layer.weights) and ".layers.preprocessing." not in type(layer).__module__


def _has_blocks(layer):
    """Whether a layer contains layers with weights."""
    return bool(layer.weights) and any(inner.weights for inner in _inside(layer))


def _inside(layer):
    return layer._flatten_layers(include_self=False, recursive=False)


def _is_stack(layer):
    """Whether a layer is a model, or contains several composite layers of one class."""
    if isinstance(layer, keras.Model) and sum(1 for _ in _inside(layer)) > 2:
        return True
    classes = Counter(type(inner) for inner in _inside(layer) if _has_blocks(inner))
    return any(count > 1 for count in classes.values()) or any(
        count == 1 and _is_stack(inner)
        for inner in _inside(layer)
        if (count := classes[type(inner)])
    )


def _single_tensors(graph):
    """Names of the layers of a functional model after which one tensor is all that is read."""
    depths = sorted(graph._nodes_by_depth, reverse=True)
    nodes = [n for depth in depths for n in graph._nodes_by_depth[depth] if not n.is_input]
    last_use = {id(x): index for index, node in enumerate(nodes) for x in node.input_tensors}
    last_use |= {id(x): len(nodes) for x in graph.outputs}
    alive, names = {id(x) for x in graph.inputs}, set()
    for index, node in enumerate(nodes):
        alive |= {id(x) for x in node.outputs}
        alive = {x for x in alive if last_use.get(x, -1) > index}
        if len(alive) == 1 and id(node.outputs[0]) in alive:
            names.add(node.operation.name)
    return names


def _choose(entries):
    """Whether each entry is a representation."""
    end = _num_before_head(entries)
    kept, group, weighted = [False] * len(entries), None, False
    for index, (_, layer, shape, single) in enumerate(entries[:end]):
        if not single:
            group, weighted = None, True  # paths are joined next
            continue
        if _has_blocks(layer):
            kept[index], group, weighted = True, None, False
            continue
        size = shape[1:-1]
        if group is None or entries[group][2][1:-1] != size:
            weighted = weighted and group is None
        elif weighted or _learns(layer):
            kept[group] = False
        weighted = weighted or _learns(layer)
        kept[index], group = weighted, index
    if end < len(entries) and end and len(entries[end - 1][2]) == 2:
        kept[end - 1] = True
    return kept


def _num_before_head(entries):
    """How many entries there are before a last Dense layer, whose output is a vector of scores."""
    weighted = [index for index, (_, layer, _, _) in enumerate(entries) if layer.weights]
    if weighted:
        _, layer, shape, _ = entries[weighted[-1]]
        if isinstance(layer, keras.layers.Dense) and len(shape) == 2:
            return weighted[-1]
    return len(entries)
