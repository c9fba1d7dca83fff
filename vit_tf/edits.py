"""Edits replace the value at a tap while a model runs.

An edit is a function from the value at a tap, a tensor of any Keras backend, to a tensor of the
same shape and dtype. `vit_tf.intervene` runs a model with edits. The edits here use only
`keras.ops`.
"""

import numpy as np

from vit_tf.names import lookup
from vit_tf.tokens import TokenGrid, prefix_names


def zero(value):
    """Zeros."""
    from keras import ops

    return ops.zeros_like(value)


def scaled(factor):
    """The value times a factor: 0 removes it, 1 changes nothing."""
    from keras import ops

    return lambda value: value * ops.cast(factor, value.dtype)


def constant(values):
    """Given values, such as a mean over data, or those of another run: `other["block03/mlp/sum"]`.

    Args:
        values: array or tensor whose shape broadcasts to that of the tap; without the example axis,
            it applies to every example.
    """
    from keras import ops

    return lambda value: ops.broadcast_to(ops.cast(values, value.dtype), ops.shape(value))


def resampled(shift=1):
    """The value of another image of the batch, `shift` positions before it.

    Raises:
        ValueError: if it is called on a batch of a single image.
    """
    from keras import ops

    def edit(value):
        if value.shape[0] is not None and shift % value.shape[0] == 0:
            raise ValueError(
                "Expected a `shift` that is not a multiple of the batch size. "
                f"Received: shift={shift} in a batch of {value.shape[0]}"
            )
        return ops.roll(value, shift, axis=0)

    return edit


def where(mask, edit):
    """Applies an edit where a mask is true; the value elsewhere is unchanged, bit for bit.

    Args:
        mask: boolean array or tensor whose shape broadcasts to that of the tap.
        edit: the edit, which is given the whole value.
    """
    from keras import ops

    return lambda value: ops.where(mask, edit(value), value)


def along(axis, indices, edit):
    """Applies an edit at some positions of an axis only.

    Args:
        axis: number of the axis; 0 is the example.
        indices: an int, or a list of them, from 0.
        edit: the edit, which is given the whole value.

    Raises:
        ValueError: if it is called on a value without this axis or these positions.
    """
    positions = np.atleast_1d(np.asarray(indices))

    def selected(value):
        rank = len(value.shape)
        size = value.shape[axis] if -rank <= axis < rank else None
        valid = positions.dtype.kind in "iu" and positions.size
        if size is None or not valid or positions.min() < 0 or positions.max() >= size:
            raise ValueError(
                f"Expected indices from 0 to the size of axis {axis} of the tap. "
                f"Received: indices={indices} for a tap of shape {tuple(value.shape)}"
            )
        mask = np.isin(np.arange(size), positions)
        shape = [1] * rank
        shape[axis] = size
        return where(mask.reshape(shape), edit)(value)

    return selected


def head(indices, edit, axis=2):
    """Applies an edit to some heads only.

    Args:
        indices: an int, or a list of them, from 0.
        edit: the edit, which is given the whole value.
        axis: the axis of the heads: 2 for outputs of heads, (example, token, head, channel), and
            for the values of a Keras attention layer; 1 for attention weights, (example, head,
            query, key).
    """
    return along(axis, indices, edit)


def tokens(indices, edit):
    """Applies an edit to some tokens only, see `token_set`; the tap is (example, token, ...)."""
    return along(1, indices, edit)


def token_set(model, which):
    """The positions of a set of tokens in the sequence: list of int.

    Args:
        model: the model that has the tokens, or a `TokenGrid`, whose first prefix token is
            CLS and the others registers.
        which: `"cls"`, `"registers"`, `"spatial"` for those with a position, or `"all"`.

    Raises:
        ValueError: for an unknown set, or one that the model does not have.
    """
    grid = model if isinstance(model, TokenGrid) else getattr(model, "token_grid", None)
    if grid is None:
        raise ValueError(f"Expected a model with tokens or a TokenGrid. Received: {model!r}")
    names = getattr(model, "prefix_names", None) or prefix_names(grid.prefix)
    sets = {
        "cls": [i for i, name in enumerate(names) if name == "CLS"],
        "registers": [i for i, name in enumerate(names) if name.startswith("register")],
        "spatial": list(range(grid.prefix, grid.num_tokens)),
        "all": list(range(grid.num_tokens)),
    }
    if not (positions := lookup("which", which, sets)):
        raise ValueError(
            f"Expected a set of tokens that the model has. Received: {which!r} of {grid}"
        )
    return positions
