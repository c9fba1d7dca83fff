"""Features of models that expect different images, all called on the same ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from vit_tf.common.names import format_list, join_words
from vit_tf.data.any_images import as_images
from vit_tf.data.batches import IN_ORDER, batch_arrays
from vit_tf.data.preprocessing import JointPreprocessing, Preprocessing
from vit_tf.features.features import Features, Runs, Taps
from vit_tf.features.layers import Detail

Key = TypeVar("Key", bound=Hashable)
Images = TypeVar("Images", tf.Tensor, np.ndarray)


class PreprocessedFeatures(Features):
    """Features of a model that expects other values than [-1, 1], for images in [-1, 1].

    Images are converted to the values that the model expects, and everything else is the inner
    model's.
    """

    def __init__(self, inner: Features, preprocessing: Preprocessing) -> None:
        super().__init__(
            replace(inner.facts, preprocessing=preprocessing.framing(), integer_images=False)
        )
        self.inner, self._own_preprocessing = inner, preprocessing
        self.is_editable = inner.is_editable
        self._scale, self._shift = _scale_and_shift(preprocessing)

    @property
    def weights(self) -> Sequence[keras.Variable]:
        return self.inner.weights

    def with_facts(self, **changes: Any) -> Features:
        return self._wrap(self.inner.with_facts(**changes))

    def with_model(self, model: Any) -> Features:
        return self._wrap(self.inner.with_model(model))

    def preprocess(self, images: tf.Tensor) -> tf.Tensor:
        """Images in [-1, 1] as the model expects them."""
        is_bgr = self._own_preprocessing.channel_order == "bgr"
        return (images[..., ::-1] if is_bgr else images) * self._scale + self._shift

    def compute(self, images: tf.Tensor) -> Taps:
        return self.inner(self.preprocess(images))

    def select(self, layers: Iterable[str]) -> Features:
        return self._wrap(self.inner.select(layers))

    def select_kind(self, kind: str, block: str = "block00", detail: Detail = None) -> Features:
        return self._wrap(self.inner.select_kind(kind, block, detail))

    def read_scores(
        self, layer: str | None, images: Callable[[], tf.Tensor] | None = None
    ) -> Features:
        own = images and (lambda: self.preprocess(tf.cast(images(), tf.float32)))
        return self._wrap(self.inner.read_scores(layer, own))

    def with_grid_of_layers(self) -> Features:
        return self._wrap(self.inner.with_grid_of_layers())

    def with_pooled_tokens(self) -> Features:
        return self._wrap(self.inner.with_pooled_tokens())

    def segments(self) -> Sequence[Callable[[tf.Tensor], tuple[Taps, tf.Tensor | None]]]:
        first, *others = self.inner.segments()
        return [lambda images: first(self.preprocess(images)), *others]

    def run_interventions(
        self, runs: Runs, layer: str, images: tf.Tensor, max_runs: int = 128
    ) -> tuple[Taps, tf.Tensor]:
        return self.inner.run_interventions(runs, layer, self.preprocess(images), max_runs)

    def split_at_last_layer(
        self, images: tf.Tensor, scores: str
    ) -> tuple[Taps, Callable[[tf.Tensor], tf.Tensor]]:
        return self.inner.split_at_last_layer(self.preprocess(images), scores)

    def _wrap(self, inner: Features) -> Features:
        return PreprocessedFeatures(inner, self._own_preprocessing)


class JointFeatures(Features):
    """Features of a model for rows of a `JointPreprocessing`, each of which holds its image."""

    def __init__(self, inner: Features, joint: JointPreprocessing, position: int) -> None:
        super().__init__(replace(inner.facts, input_shape=None, preprocessing=None))
        self.inner, self._joint, self._position = inner, joint, position
        self._start = sum(map(math.prod, joint.shapes[:position]))
        self._shape = joint.shapes[position]

    @property
    def image_size(self) -> tuple[int, int]:
        height, width, *_ = self._shape
        return height, width

    @property
    def weights(self) -> Sequence[keras.Variable]:
        return self.inner.weights

    def compute(self, images: tf.Tensor) -> Taps:
        own = images[:, self._start : self._start + math.prod(self._shape)]
        return self.inner(tf.reshape(own, (-1, *self._shape)))

    def read_scores(
        self, layer: str | None, images: Callable[[], tf.Tensor] | None = None
    ) -> Features:
        return JointFeatures(self.inner.read_scores(layer), self._joint, self._position)


def with_own_preprocessing(
    models: Mapping[Key, Features], data: Iterable[Any]
) -> tuple[dict[Key, Features], Preprocessing | JointPreprocessing | None]:
    """The models, and what prepares raw images for them, so that each is shown its own."""
    declared = {
        key: features.facts.preprocessing
        for key, features in models.items()
        if features.facts.preprocessing
    }
    distinct = list(dict.fromkeys(declared.values()))
    if not distinct:
        return dict(models), None
    undeclared = [features.name for key, features in models.items() if key not in declared]
    if undeclared and len(distinct) > 1:
        raise ValueError(
            f"The other models differ in their preprocessing, and {format_list(undeclared)} "
            "declares none: set model.preprocessing = vit_tf.Preprocessing(...), or prepare "
            "the images."
        )
    if len(distinct) == 1:
        if undeclared:
            other = models[next(iter(declared))].name
            warnings.warn(
                f"No preprocessing is known for {join_words(undeclared)}: images are prepared as "
                f"for {other}. If this is wrong, set .preprocessing = vit_tf.Preprocessing(...)",
                stacklevel=5,
            )
        return dict(models), distinct[0]
    common, *others = dict.fromkeys(preprocessing.framing() for preprocessing in distinct)
    if not others:  # they differ in values alone
        return {key: PreprocessedFeatures(x, declared[key]) for key, x in models.items()}, common
    sizes: set[Any] = set()
    # Models of images of any size are shown the (height, width) that raw images share.
    for images in data if None in {p.size for p in distinct} else ():
        unchanged: Any = as_images(images, Preprocessing(None))
        if not isinstance(unchanged, tf.data.Dataset):
            unchanged = batch_arrays(unchanged, IN_ORDER)
        sizes.add(tuple(tf.nest.flatten(unchanged.element_spec)[0].shape[1:3]))
    joint = JointPreprocessing(
        tuple(p if p.size else replace(p, size=size) for p in distinct for size in sizes or [None])
    )
    of_rows: dict[Key, Features] = {
        key: JointFeatures(features, joint, distinct.index(declared[key]))
        for key, features in models.items()
    }
    return of_rows, joint


def _scale_and_shift(preprocessing: Preprocessing) -> tuple[np.ndarray, np.ndarray]:
    """The factor and the summand of each channel, from values in [-1, 1] to a model's own."""
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    return (0.5 / std).astype(np.float32), ((0.5 - mean) / std).astype(np.float32)


def to_common_range(images: Images, preprocessing: Preprocessing) -> Images:
    """Images that a model expects, with values in [-1, 1], which `PreprocessedFeatures` undoes."""
    scale, shift = _scale_and_shift(preprocessing)
    # A grey image has the same level in each channel.
    if images.shape[-1] not in (None, 1) and len(scale) not in (1, images.shape[-1]):
        raise ValueError(
            f"The images have {images.shape[-1]} channels, but the preprocessing of the model "
            f"has {len(scale)}. Use vit_tf.Preprocessing.from_range((height, width), low, "
            f"high, num_channels={images.shape[-1]})."
        )
    images = (images - shift) / scale
    return images[..., ::-1] if preprocessing.channel_order == "bgr" else images


def to_own_units(features: Features, images: tf.Tensor) -> tuple[Features, tf.Tensor, tf.Tensor]:
    """Features and images with the values that the model itself expects, and the images' levels.

    Gradients are with respect to the values that the model expects, whether the caller or this
    package prepares the images. Levels are the pixel values from 0 to 255 of an 8-bit file, in RGB
    order, whatever the model expects. Features without `preprocessing` expect values in [-1, 1].
    """
    if isinstance(features, PreprocessedFeatures):
        return features.inner, features.preprocess(images), tf.round(127.5 * (images + 1))
    features.require_shape(images.shape)
    expected = features.facts.preprocessing
    common = to_common_range(images, expected) if expected else images
    return features, images, tf.round(127.5 * (common + 1))
