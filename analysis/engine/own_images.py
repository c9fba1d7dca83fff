"""Features of several models that expect images in different ways, for the same images."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf.common.names import format_list, join_words
from vit_tf.data.any_images import as_images
from vit_tf.data.preprocessing import JointPreprocessing, Preprocessing, innermost_features

from .feature_taps import taps_of, token_grid_of
from .results import model_name
from .roles import Features, Images, Taps


def with_own_images(
    models: dict[Any, Features], data: Iterable[Images]
) -> tuple[dict[Any, Features], Preprocessing | JointPreprocessing | None]:
    """The models, and what prepares raw images for them, so that each is shown its own."""
    preprocessing_by_model = {
        n: getattr(innermost_features(f), "preprocessing", None) for n, f in models.items()
    }
    declared = {
        n: preprocessing for n, preprocessing in preprocessing_by_model.items() if preprocessing
    }
    distinct = list(dict.fromkeys(declared.values()))
    if not distinct:
        return models, None
    undeclared = [model_name(f) for n, f in models.items() if n not in declared]
    if undeclared and len(distinct) > 1:
        raise ValueError(
            "Expected models that declare their preprocessing, where others differ in it: set "
            "model.preprocessing = vit_tf.Preprocessing(...), or prepare the images. "
            f"Received: {format_list(undeclared)} without"
        )
    if len(distinct) == 1:
        if undeclared:
            other = model_name(models[next(iter(declared))])
            warnings.warn(
                f"{join_words(undeclared)} got images as {other} expects them: set "
                ".preprocessing = vit_tf.Preprocessing(...) for others",
                stacklevel=5,
            )
        return models, distinct[0]
    common, *others = dict.fromkeys(preprocessing.framing() for preprocessing in distinct)
    if not others:  # they differ in values alone
        return {n: Normalised(f, declared[n]) for n, f in models.items()}, common
    sizes = {_own_size(images) for images in data} if None in {p.size for p in distinct} else set()
    joint = JointPreprocessing(
        tuple(p if p.size else replace(p, size=size) for p in distinct for size in sizes or [None])
    )
    return {n: _OwnImages(f, joint, distinct.index(declared[n])) for n, f in models.items()}, joint


def _own_size(images: Images) -> tuple[int, int]:
    """The (height, width) that raw images share; a `ValueError` if they share none."""
    unchanged: Any = as_images(images, Preprocessing(None))
    spec = unchanged.element_spec if isinstance(unchanged, tf.data.Dataset) else unchanged
    return tuple((spec[0] if isinstance(spec, tuple) else spec).shape[1:3])


def _scale_and_shift(preprocessing: Preprocessing) -> tuple[np.ndarray, np.ndarray]:
    """The factor and the summand of each channel, from values in [-1, 1] to a model's own."""
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    return (0.5 / std).astype(np.float32), ((0.5 - mean) / std).astype(np.float32)


def in_common_range(
    images: tf.Tensor | np.ndarray, preprocessing: Preprocessing
) -> tf.Tensor | np.ndarray:
    """Images as a model expects them, with values in [-1, 1]: what `Normalised` undoes."""
    scale, shift = _scale_and_shift(preprocessing)
    images = (images - shift) / scale
    return images[..., ::-1] if preprocessing.channel_order == "bgr" else images


def in_own_units(features: Features, images: tf.Tensor) -> tuple[Features, tf.Tensor, tf.Tensor]:
    """Features and images with the values that the model itself expects, and the images' levels.

    Gradients are with respect to the values that the model expects, whether the caller or this
    package prepares the images. Levels are the pixel values from 0 to 255 of an 8-bit file, in RGB
    order, whatever the model expects. Features without `preprocessing` expect values in [-1, 1].
    """
    if isinstance(features, Normalised):
        return features.inner, features.prepared(images), tf.round(127.5 * (images + 1))
    expects = getattr(innermost_features(features), "preprocessing", None)
    common = in_common_range(images, expects) if expects else images
    return features, images, tf.round(127.5 * (common + 1))


class Normalised:
    """Features of a model that expects other values than [-1, 1], for images in [-1, 1]."""

    def __init__(self, features: Features, preprocessing: Preprocessing) -> None:
        self.name, self.token_grid = model_name(features), token_grid_of(features)
        self.inner = features
        self._scale, self._shift = _scale_and_shift(preprocessing)
        self._is_bgr = preprocessing.channel_order == "bgr"
        if hasattr(features, "segments"):
            self.segments, self.taps, self.output = self._segments, features.taps, features.output
        if hasattr(features, "run_interventions"):  # of a PyTorch module
            self.taps, self.output, self.after = features.taps, features.output, features.after
            self.run_interventions, self.scores = self._run_interventions, features.scores

    def __call__(self, images: tf.Tensor) -> Taps:
        return self.inner(self.prepared(images))

    def _run_interventions(self, interventions: Sequence[Any], tap: str, images: tf.Tensor) -> Any:
        return self.inner.run_interventions(interventions, tap, self.prepared(images))

    def _segments(self) -> list:
        """Those of the features, of which the first takes images in [-1, 1]."""
        first, *others = self.inner.segments()
        return [first.prepared_by(self.prepared), *others]

    def prepared(self, images: tf.Tensor) -> tf.Tensor:
        """Images in [-1, 1] as the model expects them."""
        images = images[..., ::-1] if self._is_bgr else images
        return images * self._scale + self._shift


class _OwnImages:
    """Features of a model for the rows of a `JointPreprocessing`, which hold its images."""

    def __init__(self, features: Features, joint: JointPreprocessing, place: int) -> None:
        self.name, self.token_grid = model_name(features), token_grid_of(features)
        self._features, self._shape = features, joint.shapes[place]
        self._start = sum(map(math.prod, joint.shapes[:place]))
        self.image_size = self._shape[:2]

    def __call__(self, rows: tf.Tensor) -> Taps:
        images = rows[:, self._start : self._start + math.prod(self._shape)]
        return taps_of(self._features, tf.reshape(images, (-1, *self._shape)))
