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
