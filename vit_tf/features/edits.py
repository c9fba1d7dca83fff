"""Edits replace the value at a tap while a model runs.

An edit is a function from the value at a tap, a tensor of any Keras backend, to a tensor of the
same shape and dtype. The edits of this module use only `keras.ops`. `intervene` runs a model with
edits, and `run_interventions` combines many such runs.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import keras
import numpy as np
from keras import ops

from vit_tf.common.backend import Tensor, require_tensorflow
from vit_tf.common.names import as_patterns, lookup, match
from vit_tf.features.recorder import apply_in_turn, find_taps, names_its_layers
from vit_tf.features.submodels import TapModel, submodel
from vit_tf.features.tokens import TokenGrid, prefix_names
from vit_tf.torch_models import is_torch_module

# From the value of a layer to a value of its shape and dtype, which takes its place.
Edit: TypeAlias = Callable[[Tensor], Tensor]


def zero(value: Tensor) -> Tensor:
    """An edit that replaces a value by zeros."""
    return ops.zeros_like(value)


def scaled(factor: float) -> Edit:
    """An edit that multiplies a value by a factor: 0 removes it, 1 changes nothing."""
    return lambda value: value * ops.cast(factor, value.dtype)


def constant(values: Tensor) -> Edit:
    """An edit that returns given values, such as a mean over data or the values of another model.

    Args:
        values: array or tensor whose shape broadcasts to the shape of the layer output. Values
            without the example axis apply to every example.
    """
    return lambda value: ops.broadcast_to(ops.cast(values, value.dtype), ops.shape(value))


def resampled(shift: int = 1) -> Edit:
    """An edit that returns the value of the image `shift` positions before, cyclically in a batch.

    Raises:
        ValueError: if `shift` is a multiple of the batch size.
    """

    def edit(value: Tensor) -> Tensor:
        if value.shape[0] is not None and shift % value.shape[0] == 0:
            raise ValueError(
                "Expected a `shift` that is not a multiple of the batch size. "
                f"Received: shift={shift} in a batch of {value.shape[0]}"
            )
        return ops.roll(value, shift, axis=0)

    return edit


def where(mask: Tensor, edit: Edit) -> Edit:
    """Applies an edit where a mask is true; the value elsewhere is unchanged, bit for bit.

    Args:
        mask: boolean array or tensor whose shape broadcasts to the shape of the layer output.
        edit: the edit, which is called on the whole value.
    """
    return lambda value: ops.where(mask, edit(value), value)


def along(axis: int, indices: int | Sequence[int], edit: Edit) -> Edit:
    """Applies an edit at some positions of an axis only.

    Args:
        axis: number of the axis; 0 is the example.
        indices: an int, or a list of them, from 0.
        edit: the edit, which is called on the whole value.

    Raises:
        ValueError: if it is called on a value without this axis or these positions.
    """
    positions = np.atleast_1d(np.asarray(indices))

    def selected(value: Tensor) -> Tensor:
        rank = len(value.shape)
        size = value.shape[axis] if -rank <= axis < rank else None
        valid = positions.dtype.kind in "iu" and positions.size
        if size is None or not valid or positions.min() < 0 or positions.max() >= size:
            raise ValueError(
                f"Expected indices of axis {axis}, from 0 to its size - 1. "
                f"Received: indices={indices} for a layer output of shape {tuple(value.shape)}"
            )
        mask = np.isin(np.arange(size), positions)
        shape = [1] * rank
        shape[axis] = size
        return where(mask.reshape(shape), edit)(value)

    return selected


def head(indices: int | Sequence[int], edit: Edit, axis: int = 2) -> Edit:
    """Applies an edit to some heads only.

    Args:
        indices: an int, or a list of them, from 0.
        edit: the edit, which is called on the whole value.
        axis: the axis of the heads. It is 2 for outputs of heads, of shape (example, token, head,
            channel), and for the values of a Keras attention layer. It is 1 for attention weights,
            of shape (example, head, query, key).
    """
    return along(axis, indices, edit)


def tokens(indices: int | Sequence[int], edit: Edit) -> Edit:
    """Applies an edit to some tokens only, see `token_set`; the tap is (example, token, ...)."""
    return along(1, indices, edit)


def token_set(model: Any, which: str | Sequence[int]) -> list[int]:
    """The positions of a set of tokens in the sequence: list of int.

    Args:
        model: the model that has the tokens, or its `TokenGrid`. The first prefix token of a
            `TokenGrid` counts as CLS, and the other prefix tokens count as registers.
        which: `"cls"`, `"registers"`, `"spatial"` (tokens with a position in the image) or `"all"`.

    Raises:
        ValueError: if the set is unknown, or if the model does not have its tokens.
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
        raise ValueError(f"The model has no {which!r} tokens. Received: {grid}")
    return positions


def intervene(model: Any, edits: Mapping[str, Edit], *patterns: str | Sequence[str]) -> Any:
    """Features of a model that runs with some layer outputs replaced.

    Everything after an edited layer is computed from the edited value. Everything before it is
    unchanged (Vig et al. 2020, https://arxiv.org/abs/2004.12265). For example, the following call
    sets one attention head to zero:

        intervene(vit, {"block03/attention/heads": edits.head(2, edits.zero)})

    The edited features return the same taps (named layer outputs) as a submodel. They can run
    eagerly or inside a `tf.function`.

    Args:
        model: a model of this package, any other built Keras model, or a submodel that has the taps
            named by `edits` and `patterns`.
        edits: dict from a shell pattern of taps to an edit. An edit is a function from the value of
            a tap, of shape (example, ...), to a tensor of the same shape and dtype. `vit_tf.edits`
            has the usual edits. If several patterns match a tap, their edits are applied in order.
        *patterns: shell patterns of the taps to return, as for `submodel`. The default is the last
            tap of the model.

    Returns:
        `Intervened` features, a callable from images to a dict from tap to tensor.

    Raises:
        ValueError: if a pattern matches no tap, or an edit is not callable. The returned features
            raise a ValueError if an edit returns another shape or dtype.
    """
    if not isinstance(edits, Mapping) or not all(
        isinstance(pattern, str) and callable(edit) for pattern, edit in edits.items()
    ):
        raise ValueError(
            "Expected edits to be a dict from patterns of layer names to functions of a value, "
            f"such as {{'block03/attention/branch': vit_tf.edits.zero}}. Received: {edits!r}"
        )
    if is_torch_module(model):
        from vit_tf.features.torch_modules import IntervenedModule  # which imports PyTorch

        of_tap = {pattern: _checked(pattern, edit) for pattern, edit in edits.items()}
        return IntervenedModule(model, of_tap, as_patterns(patterns) or ["logits"])
    if not isinstance(model, keras.Model):
        raise ValueError(f"Expected model to be a keras.Model. Received: {type(model).__name__}")
    is_named = isinstance(model, TapModel) or names_its_layers(model)
    tap_names = tuple(cast(TapModel, model).taps if is_named else find_taps(model))
    wanted = match(as_patterns(patterns), tap_names) if patterns else tap_names[-1:]
    edits_of_taps: dict[str, list[Edit]] = {}
    for pattern, edit in edits.items():
        for tap in match([pattern], tap_names):
            edits_of_taps.setdefault(tap, []).append(edit)
    # In the order of the taps, whatever the order of the patterns.
    by_tap = {
        tap: partial(apply_in_turn, edits_of_taps[tap]) for tap in tap_names if tap in edits_of_taps
    }
    features = model if isinstance(model, TapModel) else submodel(model, *by_tap, *wanted)
    return Intervened(features, by_tap, wanted)


class Intervened:
    """A submodel that is run with edits, functions by tap, and returns some of its taps."""

    def __init__(self, features: TapModel, edits: Mapping[str, Edit], taps: Sequence[str]):
        self.name, self.taps = features.name, tuple(taps)
        self.token_grid, self.preprocessing = features.token_grid, features.preprocessing
        self.input_shape = features.input_shape
        self._segments, self._edits = features.segments(), edits

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Dict from tap to tensor, of a batch of images of shape (example, row, column, channel).

        A ValueError for an edit that returns another shape or dtype than it was given.
        """
        edits = {tap: _checked(tap, edit) for tap, edit in self._edits.items()}
        taps, x = {}, ops.cast(images, "float32")
        for segment in self._segments:
            outputs, x = segment(x, edits)
            taps |= outputs
        return {tap: taps[tap] for tap in self.taps}


def run_interventions(
    features: Any,
    interventions: Sequence[Mapping[str, Edit]] | Callable,
    tap: str,
    images: Tensor,
    max_runs: int = 128,
) -> tuple:
    """Runs the model once per intervention.

    Returns the unedited taps, and the values at `tap`, of shape (intervention, example, ...). Each
    run starts where its first edit is; up to `max_runs` runs share one batch.
    `interventions` is a list of dicts from taps to edits, or a function from the unedited taps to
    such a list.
    """
    require_tensorflow("interventions")
    segments = features.segments()
    starts, taps, x = [], {}, ops.cast(images, "float32")
    for segment in segments:
        starts.append(x)
        outputs, x = segment(x)
        taps |= outputs
    edits_of_runs = interventions(taps) if callable(interventions) else interventions
    starts.append(x)  # None: a run without edits starts after the last segment
    for name in itertools.chain(*edits_of_runs):
        lookup("layer", name, taps)
    beginnings = [_beginning(segments, edits, tap) for edits in edits_of_runs]
    order = sorted(range(len(beginnings)), key=lambda run: beginnings[run][0])
    values = {}
    for begin in range(0, len(order), max_runs):
        group = order[begin : begin + max_runs]
        runs = []
        for run in group:
            (first, end), edits = beginnings[run], edits_of_runs[run]
            start = starts[first] if end is None else _checked(end, edits[end])(taps[end])
            runs.append((first, start, {name: edits[name] for name in edits if name != end}))
        values |= dict(zip(group, _run_group(segments, runs, tap, taps[tap]), strict=True))
    return taps, ops.stack([values[index] for index in range(len(values))])


def _beginning(segments: list, edits: Mapping[str, Edit], tap: str) -> tuple[int, str | None]:
    """The segment that a run starts with, and the tap whose edited value is its input, or None.

    A run whose first edit is of the output of a segment starts with the next one.
    """
    for index, segment in enumerate(segments):
        if edited := [name for name in segment.taps if name in edits]:
            if edited == [segment.end_tap] and tap not in segment.taps:
                return index + 1, segment.end_tap
            return index, None
    return len(segments), None


def _run_group(segments: list, runs: list[tuple], tap: str, intact: Tensor) -> list[Tensor]:
    """The value at `tap` of each run: (first segment, input there, edits), by first segment."""
    x, active_edits, outputs = None, [], {}
    for index, segment in enumerate(segments):
        starting = [(start_value, edits) for first, start_value, edits in runs if first == index]
        if starting:
            x = ops.concatenate(
                [*([] if x is None else [x]), *(start_value for start_value, _ in starting)]
            )
        active_edits += [edits for _, edits in starting]
        if active_edits:
            outputs, x = segment(x, _batch_edits(active_edits))
        if tap in segment.taps and active_edits:
            parts = ops.split(outputs[tap], len(active_edits))
            return parts + [intact] * (len(runs) - len(parts))
    return [intact] * len(runs)


def _batch_edits(edits_of_runs: list[dict]) -> dict:
    """Returns the edits of a batch that holds several runs, one after another."""

    def combine(tap: str) -> Edit:
        edits = [_checked(tap, edits[tap]) if tap in edits else None for edits in edits_of_runs]

        def edit(value: Tensor) -> Tensor:
            size, parts, start = ops.shape(value)[0] // len(edits), [], 0
            for edited, group in itertools.groupby(edits, key=lambda e: e is not None):
                edits_of_group = [*group]
                # Adjacent runs without an edit at this tap form one slice, which passes unchanged.
                functions = [one for one in edits_of_group if one is not None]
                for apply in functions or [lambda part: part]:
                    count = 1 if edited else len(edits_of_group)
                    parts.append(apply(value[start * size : (start + count) * size]))
                    start += count
            return ops.concatenate(parts)

        return edit

    taps = dict.fromkeys(tap for edits in edits_of_runs for tap in edits)
    return {tap: combine(tap) for tap in taps}


def _checked(tap: str, edit: Edit) -> Edit:
    """An edit that raises a `ValueError` where it returns another shape or dtype."""

    def apply(value: Tensor) -> Tensor:
        result = edit(value)
        expected = tuple(value.shape), keras.backend.standardize_dtype(value.dtype)
        received = type(result).__name__
        if hasattr(result, "shape") and hasattr(result, "dtype"):
            received = tuple(result.shape), keras.backend.standardize_dtype(result.dtype)
            same_shape = len(received[0]) == len(expected[0]) and all(
                None in pair or pair[0] == pair[1]
                for pair in zip(received[0], expected[0], strict=True)
            )
            if same_shape and received[1] == expected[1]:
                return ops.convert_to_tensor(result)
            received = "shape {}, {}".format(*received)
        raise ValueError(
            f"Expected the edit of {tap!r} to return shape {expected[0]}, {expected[1]}. "
            f"Received: {received}"
        )

    return apply
