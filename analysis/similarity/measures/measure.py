"""A measure of similarity: what it takes from the layers of a batch, and its value."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ...engine.estimates import LEAST_EXAMPLES
from ..kernels import ratio
from .layers import over_pairs


@dataclass(frozen=True)
class Measure:
    """A measure of how alike two layers are, made by `rbf_cka`, `procrustes` and others.

    Attributes:
        name: its coordinate along `measure`.
        terms: function of the `Layers` of a batch and the `Places` of the two models to a dict of
            float64 tensors.
        value: function of the sums of these over batches, and the `Places`, to an array of shape
            (layer_x, layer_y).
        invariant: what leaves it as it is, in words.
        settings: dict of its parameters.
        min_batch: number of images that a batch must have.
        unknown: why it is NaN for a pair of layers, where it may be.
    """

    name: str
    terms: Callable[..., dict]
    value: Callable[..., Any]
    invariant: str
    settings: dict = field(default_factory=dict)
    min_batch: int = LEAST_EXAMPLES
    unknown: str = ""


@dataclass(frozen=True)
class Places:
    """Positions of the layers of the two models that are compared, of one model twice the same.

    Attributes:
        x, y: lists of positions.
    """

    x: list
    y: list

    def pairs(self, symmetric):
        """Pairs of positions whose measure has to be computed."""
        half = symmetric and self.x == self.y
        return [(i, j) for i in self.x for j in self.y if not half or i <= j]

    def block(self, values, symmetric):
        """The values of `pairs` as an array of shape (layer_x, layer_y)."""
        found = dict(zip(self.pairs(symmetric), np.asarray(values), strict=True))
        return np.array(
            [[found[(i, j) if (i, j) in found else (j, i)] for j in self.y] for i in self.x]
        )


def of_hsic(name, hsic, invariant, **options):
    """A measure that is the ratio of HSIC summed over batches.

    Args:
        name, invariant, **options: as those of `Measure`.
        hsic: function of the `Layers` to HSIC of all pairs of layers, of shape (layer, layer).
    """

    def value(totals, places):
        return ratio(totals["hsic"])[np.ix_(places.x, places.y)]

    return Measure(name, lambda layers, _: {"hsic": hsic(layers)}, value, invariant, **options)


def of_matrix(name, matrix, invariant, **options):
    """A measure that is the mean over batches of a matrix of all pairs of layers.

    Args:
        name, invariant, **options: as those of `Measure`.
        matrix: function of the `Layers` to a tensor of shape (layer, layer).
    """

    def terms(layers, _):
        return {"sum": tf.cast(matrix(layers), tf.float64), "batches": tf.ones((), tf.float64)}

    def value(totals, places):
        return (totals["sum"] / totals["batches"])[np.ix_(places.x, places.y)]

    return Measure(name, terms, value, invariant, **options)


def of_pairs(name, stacks, function, invariant, symmetric=True, known=None, **options):
    """A measure that is the mean over batches of a value of each pair of layers.

    Args:
        name, invariant, **options: as those of `Measure`.
        stacks: function of the `Layers` to a tuple of tensors of shape (layer, ...).
        function: as for `over_pairs`.
        symmetric: whether both orders of a pair have one value.
        known: function of the `Layers` to whether each has any value; of pairs with others nothing
            is computed.
    """

    def terms(layers, places):
        pairs = places.pairs(symmetric)
        there = known(layers) if known else [True] * len(layers.values)
        made = [at for at, (i, j) in enumerate(pairs) if there[i] and there[j]]
        values = tf.fill((len(pairs),), tf.constant(np.nan, tf.float64))
        if made:
            found = over_pairs(function, [pairs[at] for at in made], *stacks(layers))
            values = tf.tensor_scatter_nd_update(values, np.array(made)[:, None], found)
        return {"sum": values, "batches": tf.ones((), tf.float64)}

    def value(totals, places):
        return places.block(totals["sum"] / totals["batches"], symmetric)

    return Measure(name, terms, value, invariant, **options)
