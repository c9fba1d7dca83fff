"""Running a model with edits at its taps, one run or many at once (interventions)."""

import itertools
from collections.abc import Mapping

import keras
from keras import ops

from vit_tf.names import as_patterns, match
from vit_tf.taps import recorder
from vit_tf.taps.submodels import TapModel, submodel


def intervene(model, edits, *patterns):
    """Features of a model in which the values at some taps are replaced while it runs.

    Everything after an edited tap is computed from the edited value; everything before it is
    unchanged (Vig et al. 2020, https://arxiv.org/abs/2004.12265). For example, with one attention
    head set to zero:

        intervene(vit, {"block03/attention/heads": edits.head(2, edits.zero)})

    The features return the same taps as a submodel, eagerly or inside a `tf.function`.

    Args:
        model: as for `submodel`: a model of this package, any other built Keras model, or a
            submodel of either that has the taps of `edits` and of `patterns`.
        edits: dict from shell patterns of taps to edits, functions from the value at a tap, of
            shape (example, ...), to a tensor of the same shape and dtype; `vit_tf.edits` has the
            usual ones. If several patterns match a tap, their edits are applied in order.
        *patterns: shell patterns of the taps to return, as for `submodel`; by default the model's
            last tap.

    Returns:
        `Intervened` features: a callable from images to `{tap: tensor}`.

    Raises:
        ValueError: for a pattern that matches no tap, an edit that is not callable, and, when the
            features are called, an edit that returns another shape or dtype.
    """
    _require_edits(edits)
    if isinstance(model, TapModel):
        features, tap_names = model, model.taps
    else:
        features, tap_names = None, _taps_of(model)
    wanted = match(as_patterns(patterns), tap_names) if patterns else tap_names[-1:]
    by_tap = _by_tap(edits, tap_names)
    if features is None:
        features = submodel(model, *by_tap, *wanted)
    return Intervened(features, by_tap, wanted)


class Intervened:
    """A submodel that is run with edits, functions by tap, and returns some of its taps."""

    def __init__(self, features, edits, taps):
        self.name, self.taps = features.name, tuple(taps)
        self.token_grid, self.preprocessing = features.token_grid, features.preprocessing
        self.input_shape = features.input_shape
        self._segments, self._edits = features.segments(), edits

    def __call__(self, images):
        """Dict from tap to tensor, of a batch of images of shape (example, row, column, channel).

        A ValueError for an edit that returns another shape or dtype than it was given.
        """
        edits = {tap: _checked(tap, edit) for tap, edit in self._edits.items()}
        taps, x = {}, ops.cast(images, "float32")
        for segment in self._segments:
            outputs, x = segment(x, edits)
            taps |= outputs
        return {tap: taps[tap] for tap in self.taps}


def run_interventions(features, interventions, tap: str, images, max_runs: int = 128) -> tuple:
    """Runs the model once per intervention.

    Returns the unedited taps, and the values at `tap`, of shape (intervention, example, ...). Each
    run starts at the segment of its first edit; up to `max_runs` runs share one batch.
    `interventions` is a list of dicts from taps to edits, or a function from the unedited taps to
    such a list.
    """
    segments = features.segments()
    starts, taps, x = [], {}, ops.cast(images, "float32")
    for segment in segments:
        starts.append(x)
        outputs, x = segment(x)
        taps |= outputs
    if callable(interventions):
        interventions = interventions(taps)
    segment_of_tap = {tap: index for index, segment in enumerate(segments) for tap in segment.taps}
    first_segments = [
        min((segment_of_tap[t] for t in edits), default=len(segments)) for edits in interventions
    ]
    order = sorted(range(len(interventions)), key=first_segments.__getitem__)
    values = {}
    for begin in range(0, len(order), max_runs):
        group = order[begin : begin + max_runs]
        runs = [(first_segments[i], interventions[i]) for i in group]
        values |= dict(zip(group, _run_group(segments, starts, runs, tap, taps[tap]), strict=True))
    return taps, ops.stack([values[index] for index in range(len(values))])


def _run_group(segments: list, starts: list, runs: list[tuple[int, dict]], tap: str, intact):
    """Returns the value at `tap` for each run; `starts` holds the unedited input of each segment.

    Each run is its first segment and its edits, in the order of first segments.
    """
    x, active_edits, outputs = None, [], {}
    for index, segment in enumerate(segments):
        starting_edits = [edits for first_segment, edits in runs if first_segment == index]
        if starting_edits:
            inputs = [starts[index]] * len(starting_edits)
            x = ops.concatenate([*([] if x is None else [x]), *inputs])
        active_edits += starting_edits
        if active_edits:
            outputs, x = segment(x, _batch_edits(active_edits))
        if tap in segment.taps and active_edits:
            parts = ops.split(outputs[tap], len(active_edits))
            return parts + [intact] * (len(runs) - len(parts))
    return [intact] * len(runs)


def _batch_edits(edits_of_runs: list[dict]) -> dict:
    """Returns the edits of a batch that holds several runs, one after another."""

    def combine(tap):
        edits = [_checked(tap, edits[tap]) if tap in edits else None for edits in edits_of_runs]

        def edit(value):
            size, parts, start = ops.shape(value)[0] // len(edits), [], 0
            for edited, group in itertools.groupby(edits, key=lambda e: e is not None):
                group = [*group]
                # Adjacent runs without an edit at this tap form one slice, which passes unchanged.
                for apply in group if edited else [lambda part: part]:
                    count = 1 if edited else len(group)
                    parts.append(apply(value[start * size : (start + count) * size]))
                    start += count
            return ops.concatenate(parts)

        return edit

    taps = dict.fromkeys(tap for edits in edits_of_runs for tap in edits)
    return {tap: combine(tap) for tap in taps}


def _taps_of(model):
    """Names of the taps of a model, in the order of computation."""
    if not isinstance(model, keras.Model):
        raise ValueError(f"Expected model to be a keras.Model. Received: {type(model).__name__}")
    return tuple(model.taps if hasattr(model, "intermediates") else recorder.find_taps(model))


def _by_tap(edits, tap_names):
    """Edits of patterns as a dict from tap to edit, in the order of the taps."""
    edits_by_tap = {}
    for pattern, edit in edits.items():
        for tap in match([pattern], tap_names):
            edits_by_tap.setdefault(tap, []).append(edit)
    return {tap: _in_turn(edits_by_tap[tap]) for tap in tap_names if tap in edits_by_tap}


def _in_turn(edits):
    def apply(value):
        for edit in edits:
            value = edit(value)
        return value

    return edits[0] if len(edits) == 1 else apply


def _require_edits(edits):
    if not isinstance(edits, Mapping) or not all(
        isinstance(pattern, str) and callable(edit) for pattern, edit in edits.items()
    ):
        raise ValueError(
            "Expected edits to be a dict from tap patterns to functions of a value, such as "
            f"{{'block03/attention/branch': vit_tf.edits.zero}}. Received: {edits!r}"
        )


def _checked(tap, edit):
    """An edit that raises a `ValueError` where it returns another shape or dtype."""

    def apply(value):
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
