"""KerasCV's RandAugment, drawing its random numbers from seeds that are given with the images."""

import contextlib
import itertools

import keras
import tensorflow as tf


def make_rand_augment(settings):
    """RandAugment as a function of (images, seed), whose result depends on these alone.

    KerasCV's layers draw from generators that hold a state, which is lost when a run is killed and
    shared by images that are worked on in parallel. Here each draw is a function of the seed, of
    the number of the image in its batch and of the place of the draw in the graph.

    Args:
        settings: True, a magnitude in [0, 1], or a dict of arguments of KerasCV's RandAugment.

    Returns:
        Function of images in [-1, 1], of shape (example, height, width, channel), and an int tensor
        of shape (2,), to images alike.
    """
    import keras_cv

    if isinstance(settings, dict):
        settings = dict(settings)
    else:
        settings = {} if settings is True else {"magnitude": settings}
    with _float32_layers():
        layer = keras_cv.layers.RandAugment(value_range=(0, 255), **settings)
    source = _Source()
    _draw_from(source, layer)

    def apply(images, seed):
        def augment_one(image_and_number):
            image, number = image_and_number
            with source.at(tf.stack([seed[0] + number, seed[1]])):
                return tf.ensure_shape(layer(image), image.shape)

        numbers = tf.range(tf.shape(images)[0], dtype=seed.dtype)
        signature = tf.TensorSpec(images.shape[1:], tf.float32)
        pixels = ((images + 1.0) * 127.5, numbers)
        result = tf.map_fn(augment_one, pixels, fn_output_signature=signature)
        return tf.clip_by_value(result / 127.5 - 1.0, -1.0, 1.0)

    return apply


class _Source:
    """Random numbers of a seed; takes the place of a KerasCV layer's own generator."""

    @contextlib.contextmanager
    def at(self, seed):
        """Draw from a seed, an int tensor of shape (2,), while a graph is traced within."""
        self._seed, self._places = seed, itertools.count()
        yield
        self._seed = None

    def uniform(self, shape, minval=0, maxval=1, dtype=tf.float32):
        return tf.random.stateless_uniform(shape, self._next(), minval, maxval, dtype)

    def normal(self, shape, mean, stddev, dtype=tf.float32):
        return tf.random.stateless_normal(shape, self._next(), mean, stddev, dtype)

    def _next(self):
        return self._seed + tf.constant([0, next(self._places)], self._seed.dtype)


def _draw_from(source, policy):
    """Let the layers of a RandAugment draw from a source instead of their generators."""
    for layer in (policy, policy._random_choice, *policy.layers):
        layer._random_generator = source
        for name, sampler in list(vars(layer).items()):
            factor = _sampler(source, sampler)
            if factor is not None:
                setattr(layer, name, factor)


def _sampler(source, sampler):
    """A KerasCV factor sampler as a function that draws from a source; None for what is none."""
    import keras_cv

    if isinstance(sampler, keras_cv.core.NormalFactorSampler):

        def draw(shape=(), dtype=tf.float32):
            numbers = source.normal(shape, sampler.mean, sampler.stddev, dtype)
            return tf.clip_by_value(numbers, sampler.min_value, sampler.max_value)

        return draw
    if isinstance(sampler, keras_cv.core.UniformFactorSampler):
        return lambda shape=(), dtype=tf.float32: source.uniform(
            shape, sampler.lower, sampler.upper, dtype
        )
    return None


@contextlib.contextmanager
def _float32_layers():
    """Layers made herein compute in float32: RandAugment's own layers take no dtype."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
