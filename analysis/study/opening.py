"""Models of any origin as models under study: their layers, the shapes of these, their tokens."""

import hashlib
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

import vit_tf
from vit_tf.names import listed, match
from vit_tf.preprocessing import Preprocessing
from vit_tf.taps.keras_attention import attention_taps, contradictions
from vit_tf.tokens import TokenGrid

from ..engine.derived import Normalised, gaussian_like
from ..engine.store import fingerprint
from .models import StudyModel, attended, representations, spread, without_repeats

MOST_TAPS = 40  # of a model whose layers were not chosen
PROBES = 3  # images to read the shapes of taps on, not one, as an axis that broadcasts has
CONSTANT = 1e-6  # share of the squares that is left around the mean, as for CKA
STILL = 1e-3  # the same of scores or layers that hardly move


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
        part, accuracy: as `told` and `accuracy` of a `StudyModel`.
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
    accuracy: tuple[float, int] | None = None

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


def study_model(opened, images):
    """An opened model as one under study.

    Args:
        opened: the `Opened`.
        images: array of a few of the images that are measured, with values in [-1, 1].

    Returns:
        The `StudyModel`, the names of the layers that do not vary between images and are left out,
        and the `variation` of the last of the others that is not a constant.
    """
    size = images.shape[1:3]
    values, constant = _values_of_taps(opened, images)
    shapes = {tap: value.shape[1:] for tap, value in values.items()}
    grid = grid_of(opened, shapes, size)
    plain = [] if _is_plain(opened) else [opened.expects.to_config()]
    names = ("patch_kernel", "position_embedding")
    there = [name for name in names if getattr(opened.model, name, None) is not None]
    first_layer = {name: partial(getattr, opened.model, name) for name in there}
    computed, why = _attention_of(opened, images, grid)
    model = StudyModel(
        opened.name,
        "model",
        fingerprint(opened.key, list(shapes), grid and vars(grid), *plain, *computed),
        tuple(shapes),
        grid,
        partial(_features_of, opened, grid),
        accuracy=opened.accuracy,
        shapes=shapes | computed,
        image_size=size,
        told=opened.part,
        computed=tuple(computed),
        unattended=why,
        **first_layer,
    )
    moves = [variation(value) for value in values.values()]  # none where a head is still zero
    return model, constant, next((share for share in reversed(moves) if share), 0.0)


def _attention_of(opened, images, grid):
    """Attention weights that a foreign model's layers do not put out: dict from name to shape.

    With words for `StudyModel.lacks` where there are none, though it has layers of attention.
    """
    told = attention_taps(opened.model) if opened.is_foreign and opened.is_keras else {}
    if not told:
        return {}, ""
    needed = [*told, *(name for names in told.values() for name in names)]
    taps = _features_of(opened, None, *needed)(images)
    shapes = {name: tuple(taps[name].shape[1:]) for name in told}
    names, why = attended(shapes, grid)
    wrong = contradictions(opened.model, taps, names)
    return ({}, STRANGE.format(listed(wrong))) if wrong else ({n: shapes[n] for n in names}, why)


STRANGE = (
    "attention weights among its layers, and what it projects to queries and keys does not give "
    "the output of {}: it is masked, or has a rule of its own"
)


def baselines_of(model, fresh=None):
    """The random baselines of a model, to compare its features with: list of `StudyModel`.

    Args:
        model: the `StudyModel`.
        fresh: function that makes a copy of the model with weights as before any training and
            returns a function from taps to its features; None where there is no such copy.
    """
    made = cache(fresh) if fresh else None
    features = {"noise": lambda *taps: gaussian_like(model.features(*taps))}
    if fresh:
        features = {"fresh": lambda *taps: made()(*taps)} | features
    words = {"fresh": "untrained", "noise": "noise"}
    return [
        replace(
            model,
            name=f"{model.name}, {words[role]}",
            role=role,
            key=fingerprint(model.key, role),
            features=of,
            detail=None,
            of=model,
            accuracy=None,
        )
        for role, of in features.items()
    ]


def opened_baselines(opened, model, seed):
    """The random baselines of an opened model; of one without weights noise alone."""

    def fresh():
        copy = replace(opened, model=vit_tf.fresh_copy(opened.model, seed))
        return partial(_features_of, copy, model.grid)

    return baselines_of(model, fresh if opened.is_keras else None)


def _features_of(opened, grid, *patterns):
    """The taps that fit the patterns, as a callable from images in [-1, 1] that knows the grid."""
    found = opened.features(*patterns)
    found.token_grid = grid
    if not _is_plain(opened):
        return Normalised(found, opened.expects)
    found.preprocessing = opened.expects
    return found


def _is_plain(opened):
    """Whether a model takes values in [-1, 1]."""
    expects = opened.expects
    return {*expects.mean, *expects.std} == {0.5} and expects.channel_order == "rgb"


def _values_of_taps(opened, images):
    """The taps to read, as a dict to their values, and the names of those that are left out.

    Of a model whose layers have no names of ours, those that hold floating values for each example,
    and do not repeat the layer before: at most 40 of them, unless the patterns choose. Left out are
    layers that do not vary between the images, as nothing can be compared with them.
    """
    patterns = opened.taps if opened.is_foreign and opened.taps else ["*"]
    values = {
        tap: np.asarray(value, np.float32)
        for tap, value in _features_of(opened, None, *patterns)(images).items()
        if value.dtype.is_floating and len(value.shape) > 1 and len(value) == len(images)
    }
    constant = [
        t for t, value in values.items() if opened.is_foreign and variation(value) <= CONSTANT
    ]
    taps = [tap for tap in values if tap not in constant]
    if not taps:
        raise ValueError(
            "Expected layers with floating values that vary between images. "
            f"Received: {opened.source or opened.name} with none"
        )
    if opened.is_foreign and not opened.taps:
        taps = spread(without_repeats({tap: values[tap] for tap in taps}), MOST_TAPS)
    return {tap: values[tap] for tap in taps}, constant


def variation(values):
    """Share of the squares of an array of shape (example, ...) that is left around the mean."""
    values = np.asarray(values, np.float64)
    return np.sum((values - values.mean(axis=0)) ** 2) / (np.sum(values**2) or 1)


def grid_of(opened, shapes, size):
    """Where the tokens or places of a model lie, or None where that is not known.

    As the model tells; else of its patch size for its last tokens, or that of its last maps.
    """
    own = getattr(opened.model, "token_grid", None)
    held = [shapes[tap] for tap in representations(tuple(shapes))]
    placed = [shape for shape in held if len(shape) in (2, 3) and np.prod(shape[:-1]) > 1]
    if own is not None or not placed:
        return own
    counts = [shape[0] for shape in placed if len(shape) == 2]
    if opened.patch_size and counts:
        return _told_grid(opened, counts, size)
    last = placed[-1]
    if len(last) == 2:
        return None
    stride = size[0] // last[0]
    tiles = (last[0] * stride, last[1] * stride) == tuple(size)
    return TokenGrid(last[0], last[1], 0, stride) if tiles else None


def _told_grid(opened, counts, size):
    """The grid of a patch size, of the last layer that has tokens enough for it.

    Later ones may hold what a pooling made of them: queries, or the values of attention heads.
    """
    grid = TokenGrid.of_patches(size, opened.patch_size)
    enough = [count for count in counts if count >= grid.num_spatial]
    count = (enough or counts)[-1]
    prefix = count - grid.num_spatial if opened.prefix is None else opened.prefix
    if prefix < 0 or prefix + grid.num_spatial != count:
        raise ValueError(
            f"Expected a patch size and a prefix that give the {count} tokens of {opened.name}. "
            f"Received: {max(prefix, 0)} + {grid.rows} x {grid.columns}"
        )
    return TokenGrid.of_patches(size, opened.patch_size, prefix)
