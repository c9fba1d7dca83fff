"""Gaussian noise with the shapes of features, a baseline of measurements."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf.common.names import format_list
from vit_tf.features.conversion import ModelLike, as_features
from vit_tf.features.features import Features, Taps

PRIME = 2**31 - 1


def gaussian_like(features: ModelLike, seed: int = 0, vectors: bool = False) -> Features:
    """Returns features of Gaussian noise with the shapes of the given features.

    Every value is drawn from a normal distribution with mean 0 and variance 1, independently across
    examples, layers, tokens and channels (Walmer et al. 2023, section B.3). The noise of an image
    is a function of its pixel values and of the seed. It does not depend on the batch or the order
    of images, and equal images have equal noise. As a baseline for attention weights, use a
    randomly initialized model instead.

    Args:
        features: features of a model, a submodel or a function. They are traced for the shapes,
            but not run.
        seed: seed of the noise.
        vectors: whether each layer is a single vector of noise, of shape (example, channel),
            instead of one for each token. Use it for measurements that average over tokens: the
            mean of the noise of all tokens has the same distribution except for its scale, but
            takes much longer.

    Returns:
        Features of float32 tensors, with the `facts` of the given features.

    Raises:
        ValueError: when the callable is called, if the shape of a layer is not static (apart from
            the example axis).
    """
    return NoiseFeatures(as_features(features), seed, vectors)


class NoiseFeatures(Features):
    """The features of `gaussian_like`."""

    def __init__(self, features: Features, seed: int = 0, vectors: bool = False) -> None:
        facts = features.facts
        super().__init__(replace(facts, name=f"{facts.name} as noise"))
        self.features, self._seed, self._vectors = features, seed, vectors

    def select(self, layers: Iterable[str]) -> Features:
        return NoiseFeatures(self.features.select(layers), self._seed, self._vectors)

    def compute(self, images: tf.Tensor) -> Taps:
        images = tf.convert_to_tensor(images)
        shapes = _shapes(self.features, images)
        if self._vectors:
            shapes = {tap: shape[-1:] for tap, shape in shapes.items()}

        def noise(key: tf.Tensor) -> Taps:
            return {
                tap: tf.random.stateless_normal(
                    shape, tf.random.experimental.stateless_fold_in(key, number)
                )
                for number, (tap, shape) in enumerate(shapes.items())
            }

        spec = {tap: tf.TensorSpec(shape, tf.float32) for tap, shape in shapes.items()}
        return draw_for_images(images, self._seed, noise, spec)


def draw_for_images(
    images: tf.Tensor, seed: int, draw: Callable[[tf.Tensor], Any], spec: Any
) -> Any:
    """The results of `draw` for the `content_key` of each image; `spec` is that of one result.

    Random numbers that are drawn with this key as their seed do not depend on the batch of an
    image, and equal images get equal ones.
    """
    factors = key_factors(images, seed)
    return tf.map_fn(
        lambda image: draw(content_key(image, factors)), images, fn_output_signature=spec
    )


def key_factors(images: tf.Tensor, seed: int) -> np.ndarray:
    """The factors of `content_key` for images (example, height, width, channel)."""
    size = 2 * math.prod(images.shape[1:])
    return np.random.default_rng(seed).integers(1, PRIME, (size, 2))


def content_key(image: tf.Tensor, factors: np.ndarray) -> tf.Tensor:
    """A hash of an image's values, int64 of shape (2,); images collide in one of 2^62 draws of
    `factors`.

        key = sum over the 16-bit halves of the values of half * factor, modulo a prime

    with the factors of `key_factors`, from 1 to `PRIME` - 1.
    """
    values = tf.cast(image, tf.float32) + 0.0  # -0 and 0 are equal
    halves = tf.reshape(tf.cast(tf.bitcast(values, tf.uint16), tf.int64), (-1, 1))
    terms = tf.math.floormod(halves * tf.constant(factors, tf.int64), PRIME)
    return tf.math.floormod(tf.reduce_sum(terms, axis=0), PRIME)


def _shapes(features: Features, images: tf.Tensor) -> dict[str, Any]:
    """Shapes of the taps without their example axis: dict from tap to tuple."""
    layers, known = features.facts.layers, features.facts.shapes
    if layers and all(layer in known and None not in known[layer] for layer in layers):
        features.require_shape(images.shape)
        return {layer: known[layer] for layer in layers}  # without tracing anything
    spec = tf.TensorSpec([None, *images.shape[1:]], images.dtype)
    traced = tf.function(features, input_signature=[spec], autograph=False)
    taps = traced.get_concrete_function().structured_outputs
    shapes = {tap: tuple(x.shape[1:]) for tap, x in taps.items()}
    unknown = [tap for tap, shape in shapes.items() if None in shape]
    if unknown:
        raise ValueError(
            "Expected layer outputs of known shapes, to fill them with noise. "
            f"Received: {format_list(unknown)}"
        )
    return shapes
