import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf

from vit_tf.models.transformer import ACTIVATIONS


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "quick_gelu"])
def test_formula_in_float64_under_xla_and_saved_in_a_layer(name):
    x = np.linspace(-6, 6, 97).astype("float32")
    expected = oracles.GELUS[name](x.astype(float))
    np.testing.assert_allclose(ACTIVATIONS[name](x), expected, rtol=1e-5, atol=1e-6)
    compiled = tf.function(ACTIVATIONS[name], jit_compile=True)(x)
    np.testing.assert_allclose(compiled, expected, rtol=1e-5, atol=1e-6)
    assert ACTIVATIONS[name](tf.constant([1.0], tf.bfloat16)).dtype == tf.bfloat16
    config = keras.saving.serialize_keras_object(keras.layers.Dense(2, ACTIVATIONS[name]))
    assert keras.saving.deserialize_keras_object(config).activation is ACTIVATIONS[name]


def test_the_exact_form_is_that_of_the_name_in_keras():
    x = np.linspace(-8, 8, 999).astype("float32")
    theirs = keras.activations.get("gelu")
    np.testing.assert_allclose(ACTIVATIONS["gelu"](x), theirs(x), rtol=2e-7, atol=5e-7)
    halves = tf.constant(x, tf.bfloat16)
    np.testing.assert_array_equal(ACTIVATIONS["gelu"](halves), theirs(halves))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_the_exact_form_are_those_of_the_formula_also_within_a_model(dtype):
    """Eagerly, in a graph of any number of examples, of the second order, and on replicas."""
    x = np.linspace(-6, 6, 98).astype(dtype).reshape(7, 14)
    upstream = np.cos(x)
    density = np.exp(-(x.astype(float) ** 2) / 2) / np.sqrt(2 * np.pi)
    cumulative = oracles.GELUS["gelu"](x.astype(float)) / x
    expected = upstream * (cumulative + x * density)

    def differentiate(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = ACTIVATIONS["gelu"](x)
        return tape.gradient(value, x, output_gradients=upstream)

    specs = [tf.TensorSpec((None, 14), dtype)] * 2
    tolerance = 2e-6 if dtype == "float32" else 1e-12
    for function in (differentiate, tf.function(differentiate, input_signature=specs)):
        found = function(tf.constant(x), tf.constant(upstream))
        np.testing.assert_allclose(found, expected, atol=tolerance)
    with tf.GradientTape() as tape:
        variable = tf.Variable(x)
        slope = differentiate(variable, tf.ones_like(variable))
    curvature = tape.gradient(slope, variable)
    np.testing.assert_allclose(curvature, density * (2 - x.astype(float) ** 2), atol=tolerance)
    replicas = tf.distribute.MirroredStrategy(["CPU:0"])
    found = replicas.run(tf.function(differentiate), (tf.constant(x), tf.constant(upstream)))
    np.testing.assert_allclose(found, expected, atol=tolerance)
