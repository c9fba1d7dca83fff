"""Random baselines: what a measurement gives for features that know nothing of the images."""

import numpy as np
import tensorflow as tf

from .features import taps_of
from .results import model_name

PRIME = 2**31 - 1


def gaussian_like(features, seed=0):
    """Features of the shapes of others, filled with Gaussian noise.

    Every value is drawn from a normal distribution of mean 0 and variance 1, independently across
    examples, taps, tokens and channels (Walmer et al. 2023, section B.3). The noise of an image is
    a function of its values and of the seed, so that batches, order and repetition do not matter;
    equal images have equal noise. For attention weights, which are shares, compare with a freshly
    initialised model in its place.

    Args:
        features: callable from images to `{tap: tensor}`. It is never run: it is only traced, to
            learn the shapes.
        seed: of the noise.

    Returns:
        Callable from images to `{tap: float32 tensor}`, with the `token_grid` of the features.

    Raises:
        ValueError: when called, for a tap whose shape is not known without its example axis.
    """
    return _Noise(features, seed)


class _Noise:
    """The callable of `gaussian_like`."""

    def __init__(self, features, seed):
        self.name = f"{model_name(features)} as noise"
        self.token_grid = getattr(features, "token_grid", None)
        self.features, self._seed = features, seed

    def __call__(self, images):
        images = tf.convert_to_tensor(images)
        shapes = _shapes(self.features, images)
        size = 2 * int(np.prod(images.shape[1:]))
        factors = np.random.default_rng(self._seed).integers(1, PRIME, (size, 2))

        def of_one(image):
            key = content_key(image, factors)
            return {
                tap: tf.random.stateless_normal(
                    shape, tf.random.experimental.stateless_fold_in(key, number)
                )
                for number, (tap, shape) in enumerate(shapes.items())
            }

        spec = {tap: tf.TensorSpec(shape, tf.float32) for tap, shape in shapes.items()}
        return tf.map_fn(of_one, images, fn_output_signature=spec)


def content_key(image, factors):
    """A key of an image's values, which two images share by chance once in 2^62 draws of `factors`.

        key = sum over the 16-bit halves of the values of half * factor, modulo a prime

    Args:
        image: tensor of shape (height, width, channel).
        factors: int array of shape (2 * height * width * channel, 2), from 1 to `PRIME` - 1.

    Returns:
        int64 tensor of shape (2,).
    """
    values = tf.cast(image, tf.float32) + 0.0  # -0 and 0 are equal
    halves = tf.reshape(tf.cast(tf.bitcast(values, tf.uint16), tf.int64), (-1, 1))
    terms = tf.math.floormod(halves * tf.constant(factors, tf.int64), PRIME)
    return tf.math.floormod(tf.reduce_sum(terms, axis=0), PRIME)


def _shapes(features, images):
    """Shapes of the taps without their example axis: dict from tap to tuple."""
    spec = tf.TensorSpec([None, *images.shape[1:]], images.dtype)
    traced = tf.function(
        lambda images: taps_of(features, images), input_signature=[spec], autograph=False
    )
    taps = traced.get_concrete_function().structured_outputs
    shapes = {tap: tuple(x.shape[1:]) for tap, x in taps.items()}
    unknown = [tap for tap, shape in shapes.items() if None in shape]
    if unknown:
        raise ValueError(
            "Expected taps of known shapes, to fill them with noise. "
            f"Received: {', '.join(unknown[:5])}"
        )
    return shapes
