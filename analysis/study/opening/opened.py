"""Models as they were opened: where they are from, what they expect, what they compute."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from secrets import token_hex
from typing import Any

import numpy as np

import vit_tf
from vit_tf.preprocessing import Preprocessing

from ...engine.features import Normalised, Selected
from ...engine.store import fingerprint

KNOWN = ("keras", "vit_tf")  # packages whose layers are what their configuration says


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
        patch_size, prefix: pixels of a patch and number of prefix tokens, where the model does not
            specify them.
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
        """Key that identifies its results."""
        if not self.is_keras:
            return self.digest or token_hex(8)
        return fingerprint(self.digest or self._digest_of_weights(), self._code())

    def _digest_of_weights(self):
        total = hashlib.sha256(str(self.model.get_config()).encode())
        for weight in self.model.weights:
            total.update(np.ascontiguousarray(weight).tobytes())
        return total.hexdigest()

    def _code(self):
        """What layers of the user's own compute, which neither weights nor configuration show."""
        kinds = {type(layer) for layer in self.model._flatten_layers()}
        own = [kind for kind in kinds if kind.__module__.partition(".")[0] not in KNOWN]
        own.sort(key=lambda kind: (kind.__module__, kind.__qualname__))
        return [(kind.__qualname__, getattr(kind.call, "__code__", None)) for kind in own]

    def features(self, *patterns):
        """The taps that fit the patterns, as a callable from images."""
        if not self.is_keras:
            return Selected(self.model, patterns)
        return vit_tf.submodel(self._all_taps, *patterns)

    @cached_property
    def _all_taps(self):
        """A submodel of all taps, of which others are parts, or a model of other origin itself."""
        return self.model if self.is_foreign else vit_tf.submodel(self.model, "*")


def expected(model):
    """The `Preprocessing` of a model's images; by default values in [-1, 1]."""
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
