"""Layer normalisation with a gradient of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from vit_tf.models.transformer import LayerNormalization


def made(shape, **options):
    layer = LayerNormalization(epsilon=1e-6, **options)
    layer.build((None, *shape[1:]))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(1, 0.5, shape[-1:]), rng.normal(size=shape[-1:])])
    return layer


def gradients(layer, x, weights, compiled=False):
    """Those of a weighted sum of the squares of what a layer returns."""

    def gradient_of(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(weights * tf.square(tf.cast(layer(x), tf.float32)))
        return tape.gradient(loss, [x, *(v.value for v in layer.trainable_variables)])

    gradient_of = tf.function(gradient_of, jit_compile=True) if compiled else gradient_of
    return [np.asarray(gradient, np.float64) for gradient in gradient_of(tf.constant(x))]


@pytest.mark.parametrize("shape", [(5, 8), (3, 7, 16), (2, 3, 4, 6)])
def test_values_and_gradients_are_those_of_the_formula(shape):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * 3 + 10).astype("float32")
    weights = rng.normal(size=shape).astype("float32")
    layer = made(shape)
    gamma, beta = (w.astype("float64") for w in layer.get_weights())

    def outcome(x, gamma, beta):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gamma + beta

    np.testing.assert_allclose(layer(x), outcome(x.astype("float64"), gamma, beta), atol=2e-5)

    def slope(number, place, step=1e-5):
        """A difference quotient of the weighted sum of squares, in float64."""
        sides = []
        for sign in (1, -1):
            inputs = [np.array(v, "float64") for v in (x, gamma, beta)]
            inputs[number].flat[place] += sign * step
            sides.append((weights * outcome(*inputs) ** 2).sum())
        return (sides[0] - sides[1]) / (2 * step)

    for compiled in (False, True):
        for number, gradient in enumerate(gradients(layer, x, weights, compiled)):
            for place in (0, 1, gradient.size - 1):
                np.testing.assert_allclose(gradient.flat[place], slope(number, place), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed_bfloat16", "bfloat16"])
def test_values_and_gradients_are_those_of_keras(dtype):
    shape = (4, 9, 12)
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype("float64" if dtype == "float64" else "float32")
    weights = rng.normal(size=shape).astype("float32")
    ours = made(shape, dtype=dtype)
    theirs = keras.layers.LayerNormalization(epsilon=1e-6, dtype=dtype)
    theirs.build((None, *shape[1:]))
    theirs.set_weights(ours.get_weights())
    assert ours(x).dtype == theirs(x).dtype
    wide = dtype.endswith("bfloat16")
    near = {"rtol": 0.02 if wide else 1e-5, "atol": 0.05 if wide else 2e-5}
    np.testing.assert_allclose(tf.cast(ours(x), "float64"), tf.cast(theirs(x), "float64"), **near)
    pairs = zip(gradients(ours, x, weights), gradients(theirs, x, weights), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=near["rtol"], atol=near["atol"] * np.abs(b).max())


def test_a_saved_graph_keeps_the_gradient(tmp_path):
    shape = (3, 5, 8)
    rng = np.random.default_rng(0)
    x, weights = (rng.normal(size=shape).astype("float32") for _ in range(2))
    layer = made(shape)
    module = tf.Module()
    module.layer = layer
    spec = tf.TensorSpec((None, *shape[1:]), tf.float32)
    module.call = tf.function(lambda x: layer(x), input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    again = tf.saved_model.load(str(tmp_path))
    expected = gradients(layer, x, weights)[0]
    with tf.GradientTape() as tape:
        images = tf.constant(x)
        tape.watch(images)
        loss = tf.reduce_sum(weights * tf.square(again.call(images)))
    np.testing.assert_allclose(tape.gradient(loss, images), expected, rtol=1e-5, atol=1e-5)
