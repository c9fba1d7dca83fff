"""Cutting a functional model into a chain: pieces that hand a single tensor to the next."""

from keras import tree


class Segment:
    """A piece of a model: called on one tensor, it returns its taps and what goes on.

    Args:
        nodes: the operations' calls, in order.
        source, end: symbolic tensors that come in and go on; None for `end` of the last piece.
        taps: dict from tap name to symbolic tensor.
    """

    def __init__(self, nodes, source, end, taps):
        self._nodes, self._source, self._end, self._taps = nodes, source, end, taps

    def __call__(self, x):
        """Dict from tap name to tensor, and the tensor that the next piece takes, or None."""
        known = {id(self._source): x}
        for node in self._nodes:
            args, kwargs = node.arguments.fill_in(known)
            results = tree.flatten(node.operation(*args, **kwargs))
            known |= {id(old): new for old, new in zip(node.outputs, results, strict=True)}
        taps = {tap: known[id(tensor)] for tap, tensor in self._taps.items()}
        return taps, None if self._end is None else known[id(self._end)]


def split(model):
    """The segments of a functional model of one input and a dict of outputs, in order.

    It is cut after each output where one tensor of floats is all that the rest of the model needs:
    after each block of a Transformer, after each sum of a ResNet.
    """
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [n for depth in depths for n in model._nodes_by_depth[depth] if not n.is_input]
    last_use = {id(x): index for index, node in enumerate(nodes) for x in node.input_tensors}
    found, start, source, waiting = [], 0, model.inputs[0], dict(model.output)
    made, open_tensors = {id(source)}, {}
    for index, node in enumerate(nodes):
        open_tensors |= {id(x): x for x in node.outputs}
        made |= open_tensors.keys()
        open_tensors = {i: x for i, x in open_tensors.items() if last_use.get(i, -1) > index}
        taps = {tap: x for tap, x in waiting.items() if id(x) in made}
        rest = list(open_tensors.values())
        alone = len(rest) == 1 and "float" in rest[0].dtype and last_use[id(source)] <= index
        if taps and alone:
            found.append(Segment(nodes[start : index + 1], source, rest[0], taps))
            waiting = {tap: x for tap, x in waiting.items() if tap not in taps}
            start, source, made = index + 1, rest[0], {id(rest[0])}
    found.append(Segment(nodes[start:], source, None, waiting))
    return found
