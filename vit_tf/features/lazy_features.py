"""Features of a model that is loaded, or made, when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from vit_tf.features.conversion import as_features
from vit_tf.features.features import Features, ModelFacts, Taps


class LazyFeatures(Features):
    """Features whose facts are known before the model is there; `make` makes them once.

    Selected layers are features of the model itself.
    """

    def __init__(self, facts: ModelFacts, make: Callable[[], Features]) -> None:
        super().__init__(facts)
        self._make = make

    @cached_property
    def inner(self) -> Features:
        """The features of the model, which is loaded or made here."""
        return self._make()

    @property
    def weights(self) -> Sequence[keras.Variable]:
        return self.inner.weights

    def compute(self, images: tf.Tensor) -> Taps:
        return self.inner(images)

    def with_model(self, model: Any) -> Features:
        return as_features(model).select(self.facts.layers)

    def select(self, layers: Iterable[str]) -> Features:
        return self.inner.select(layers)
