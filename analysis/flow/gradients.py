"""Gradients of many layers with respect to the images, propagated back together."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ..engine.features import example_taps, require_features, taps_of


@dataclass(frozen=True)
class Piece:
    """A segment of a model, run on the output of the one before.

    Attributes:
        tape: the recorded operations.
        source: its input, of the first piece the images.
        end: its output, or None.
        targets: dict from tap to the tensor that is differentiated, of shape (example, channel).
        at_end: the taps that are its output.
    """

    tape: tf.GradientTape
    source: tf.Tensor
    end: tf.Tensor | None
    targets: dict
    at_end: tuple

    @property
    def taps(self):
        """All its taps, those that are its output first."""
        return [*self.at_end, *(tap for tap in self.targets if tap not in self.at_end)]

    def gradient(self, target, source, upstream, tap):
        """The gradient of the target, weighted by `upstream`, with respect to the source."""
        gradient = self.tape.gradient(target, source, output_gradients=upstream)
        if gradient is None:
            raise ValueError(
                "Expected layers that TensorFlow computes from the images, which a function that "
                f"uses NumPy or PyTorch does not do. Received: {tap!r} without a gradient"
            )
        return gradient


def run_pieces(features, images, target):
    """The pieces of one forward pass.

    Args:
        features: callable from images to taps. Where it can be cut into a chain it has a method
            `segments`, which lists functions from a tensor to a dict of taps and the tensor that
            the next one takes; otherwise it is one piece.
        images: tensor of shape (example, row, column, channel).
        target: function of a tap's name and its value to a tensor of shape (example, channel).
    """
    require_features(features, images)
    whole = [lambda images: (taps_of(features, images), None)]
    segments = features.segments() if hasattr(features, "segments") else whole
    pieces, source = [], images
    for segment in segments:
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(source)
            taps, end = segment(source)
            taps = example_taps(taps, images)
            targets = {tap: target(tap, value) for tap, value in taps.items()}
        at_end = tuple(tap for tap, value in taps.items() if value is end)
        pieces.append(Piece(tape, source, end, targets, at_end))
        source = end
    return pieces


def absolute_gradients(pieces, channels, seed):
    """Mean over channels of absolute gradients: dict from tap to tensor of shape (row, column).

    They are summed over examples and image channels. All are propagated through the pieces
    together, one channel of each tap at a time, so that a piece's gradient is traced once and its
    forward pass is shared.

    Args:
        pieces: those of `run_pieces`.
        channels, seed: as for `receptive_field`.
    """
    names = [tap for piece in reversed(pieces) for tap in piece.taps]
    widths = {tap: t.shape[1] for piece in pieces for tap, t in piece.targets.items()}
    rows = {tap: _weights(widths[tap], channels, seed) for tap in names}
    counts = np.array([len(weights) for weights in rows.values()])
    rounds = int(counts.max())
    padded = {tap: np.pad(w, ((0, rounds - len(w)), (0, 0))) for tap, w in rows.items()}
    needed = tf.constant(np.arange(rounds)[:, None] < counts)

    def add(index, total):
        weights = {tap: tf.constant(w)[index] for tap, w in padded.items()}
        some = None if counts.min() == rounds else needed[index]
        return index + 1, total + _weighted_gradients(pieces, weights, some)

    images = pieces[0].source
    shape = tf.TensorShape([len(names), *images.shape[1:3]])
    start = tf.zeros(tf.concat([[len(names)], tf.shape(images)[1:3]], axis=0))
    _, total = tf.while_loop(
        lambda index, total: index < rounds,
        add,
        (0, tf.ensure_shape(start, shape)),
        parallel_iterations=1,
    )
    mean = total / tf.constant(counts[:, None, None], tf.float32)
    return dict(zip(names, tf.unstack(mean), strict=True))


def _weights(width, channels, seed):
    """Weights of a layer's channels in each gradient that is taken: (gradient, channel)."""
    if channels == "sum":
        return np.ones((1, width), np.float32)
    every = np.eye(width, dtype=np.float32)
    if channels == "all":
        return every
    return every[np.random.default_rng(seed).permutation(width)[:channels]]


def _weighted_gradients(pieces, weights, needed):
    """Absolute gradients of one weighting of each tap's channels: shape (tap, row, column).

    `needed` tells which taps have one, as a bool tensor of shape (tap,); None stands for all.
    """
    stack, names = [], []
    for piece in reversed(pieces):
        reduce = _absolute if piece is pieces[0] else tf.identity
        upstream = {
            tap: tf.broadcast_to(weights[tap], tf.shape(target))
            for tap, target in piece.targets.items()
        }
        for tap in piece.at_end:
            seed = piece.gradient(piece.targets[tap], piece.end, upstream[tap], tap)
            stack.append(seed[None])
            names.append(tap)
        below = []
        if stack:
            down = tf.concat(stack, axis=0)
            below.append(_propagated(piece, down, names[0], needed, reduce))
        for tap in piece.taps[len(piece.at_end) :]:
            with tf.control_dependencies(below[-1:]):  # all at once would fill the memory
                target = piece.targets[tap]
                gradient = piece.gradient(target, piece.source, upstream[tap], tap)
                below.append(reduce(gradient)[None])
            names.append(tap)
        stack = below
    return tf.concat(stack, axis=0)


def _propagated(piece, stack, tap, needed, reduce):
    """Gradients at the source of a piece from a stack of them at its end, each reduced."""

    def gradient(upstream):
        return piece.gradient(piece.end, piece.source, upstream, tap)

    def one_if_needed(pair):
        upstream, here = pair
        return reduce(
            tf.cond(here, lambda: gradient(upstream), lambda: tf.zeros_like(piece.source))
        )

    options = {"parallel_iterations": 1, "fn_output_signature": tf.float32}
    if needed is None:
        return tf.map_fn(lambda upstream: reduce(gradient(upstream)), stack, **options)
    return tf.map_fn(one_if_needed, (stack, needed[: stack.shape[0]]), **options)


def _absolute(gradient):
    """Summed over examples and image channels."""
    return tf.reduce_sum(tf.abs(gradient), axis=(0, 3))
