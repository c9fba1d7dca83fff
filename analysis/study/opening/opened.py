"""Models as they were opened: where they are from, what they expect, what they compute."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

import vit_tf
from vit_tf.names import match
from vit_tf.preprocessing import Preprocessing

from ...engine.derived import Normalised
from ...engine.store import fingerprint


@dataclass(frozen=True)
class Opened:
    """A model as it was opened.

    Attributes:
        name: as figures and tables show it.
        model: a Keras model, or a callable from images to `{tap: tensor}`, as `load_features`
            returns.
        expects: `Preprocessing` of its images.
        digest: of what it computes; by default that of a Keras model's weights. Of a function
            nothing is known: what is measured on it is never read from an earlier run.
        source: where it is from, as tables show it.
        taps: patterns of the layers that are read of a model whose layers have no names of ours.
        patch_size, prefix: of tokens: pixels, and how many have no place, where it does not tell.
        part: as `told` of a `StudyModel`.
    """

    name: str
    model: Any
    expects: Preprocessing
    digest: str = ""
    source: str = ""
    taps: tuple[str, ...] = ()
    patch_size: int | None = None
    prefix: int | None = None
    part: str | None = None

    @property
    def is_keras(self):
        """Whether it is a Keras model."""
        return hasattr(self.model, "count_params")

    @property
    def is_foreign(self):
        """Whether its layers have no names of the tap grammar."""
        from vit_tf.taps.submodels import TapModel

        known = not self.is_keras or isinstance(self.model, TapModel)
        return not known and not hasattr(self.model, "intermediates")

    @property
    def key(self):
        """What tells its results from those of others."""
        if self.digest or not self.is_keras:
            return self.digest or fingerprint(
                id(self.model), np.random.default_rng().bytes(8).hex()
            )
        total = hashlib.sha256(str(self.model.get_config()).encode())
        for weight in self.model.weights:
            total.update(np.ascontiguousarray(weight).tobytes())
        return total.hexdigest()

    def features(self, *patterns):
        """The taps that fit the patterns, as a callable from images."""
        if not self.is_keras:
            return _Matching(self.model, patterns)
        return vit_tf.submodel(self.model, *patterns)


class _Matching:
    """The taps of a function that fit patterns."""

    def __init__(self, features, patterns):
        self.name = getattr(features, "name", getattr(features, "__name__", "features"))
        self.token_grid = getattr(features, "token_grid", None)
        self._features, self._patterns = features, patterns

    def __call__(self, images):
        taps = self._features(images)
        return {name: taps[name] for name in match(self._patterns, tuple(taps))}


def expected(model):
    """The `Preprocessing` of a model's images; of one that does not tell values in [-1, 1]."""
    from vit_tf.models.input_range import find_preprocessing, input_size

    if hasattr(model, "count_params"):
        return find_preprocessing(model)[0] or Preprocessing(input_size(model))
    return getattr(model, "preprocessing", None) or Preprocessing(None)


def features_of(opened, grid, *patterns):
    """The taps that fit the patterns, as a callable from images in [-1, 1] that knows the grid."""
    found = opened.features(*patterns)
    found.token_grid = grid
    if not is_plain(opened):
        return Normalised(found, opened.expects)
    found.preprocessing = opened.expects
    return found


def is_plain(opened):
    """Whether a model takes values in [-1, 1]."""
    expects = opened.expects
    return {*expects.mean, *expects.std} == {0.5} and expects.channel_order == "rgb"
