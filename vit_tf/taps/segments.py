"""Cutting a functional model into a chain: pieces that hand a single tensor to the next."""

from keras import tree

from vit_tf.edits.recording import in_force


class Segment:
    """A piece of a model: called on one tensor, it returns its taps and its output.

    Args:
        nodes: the operations' calls, in order.
        source, end: symbolic tensors that come in and go on; None for `end` of the last piece.
        taps: dict from tap name to symbolic tensor.
        prepare: function that replaces the input, or None.
    """

    def __init__(self, nodes, source, end, taps, prepare=None):
        self._nodes, self._source, self._end, self._taps = nodes, source, end, taps
        self._prepare = prepare

    def prepared_by(self, prepare):
        """The same piece, applied to a function of the input tensor."""
        return Segment(self._nodes, self._source, self._end, self._taps, prepare)

    @property
    def taps(self):
        """Names of the taps, in depth order."""
        return tuple(self._taps)

    def __call__(self, x, edits=None):
        """Dict from tap name to tensor, and the tensor that the next piece takes, or None.

        Args:
            x: the tensor that comes in.
            edits: dict from taps to functions of their values to what stands in their place.
        """
        edits, applied = edits or {}, set()
        within = {tap: _noted(tap, edits[tap], applied) for tap in self._taps if tap in edits}
        known = {id(self._source): self._prepare(x) if self._prepare else x}
        for node in self._nodes:
            args, kwargs = node.arguments.fill_in(known)
            with in_force(within):
                results = tree.flatten(node.operation(*args, **kwargs))
            known |= {id(old): new for old, new in zip(node.outputs, results, strict=True)}
            # A layer that has taps of its own has applied their edits where they are computed.
            made = {id(output) for output in node.outputs}
            for place, tap in [(id(self._taps[tap]), tap) for tap in within.keys() - applied]:
                if place in made:
                    known[place] = within[tap](known[place])
        taps = {tap: known[id(tensor)] for tap, tensor in self._taps.items()}
        return taps, None if self._end is None else known[id(self._end)]


def _noted(tap, edit, applied):
    """An edit that adds its tap to those that are applied when it is."""

    def apply(value):
        applied.add(tap)
        return edit(value)

    return apply


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
