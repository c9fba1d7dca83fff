"""Messages of exceptions, which TensorFlow and Keras wrap in more than their reader needs."""

import os

import keras
import pytest
import tensorflow as tf

from vit_tf.common.errors import error_message, is_tensorflow_error


class Refusing(keras.layers.Layer):
    """A layer that raises an error when it is called."""

    def call(self, inputs):
        raise ValueError(f"Expected 3 channels.\nReceived: {inputs.shape[-1]}")


def failing_assertion():
    @tf.function
    def require_more(x):
        tf.debugging.Assert(x > 1, ["Expected more than 1."])
        return x

    require_more(tf.constant(0))


def failing_python():
    def refuse(x):
        raise ValueError(f"Expected an image.\nReceived: {x}")

    tf.function(lambda: tf.numpy_function(refuse, [tf.constant(0)], tf.float32))()


def failing_operation():
    tf.function(tf.gather)(tf.zeros(3), tf.constant([5]))


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (failing_assertion, "Expected more than 1."),
        (failing_python, "Expected an image. Received: 0"),
        (lambda: Refusing()(tf.zeros((1, 2))), "Expected 3 channels. Received: 2"),
        (lambda: tf.function(Refusing())(tf.zeros((1, 2))), "Expected 3 channels. Received: 2"),
        (lambda: os.listdir("https://user:secret@host/a\n b"), "https://user:***@host/a"),
    ],
)
def test_the_message_is_what_was_raised_on_one_line(fail, message):
    with pytest.raises(Exception) as error:
        fail()
    text = error_message(error.value)
    assert message in text and "\n" not in text and "\x1b" not in text and "secret" not in text
    assert "raise" not in text and "File" not in text


def test_operations_are_named_without_their_graph():
    with pytest.raises(tf.errors.OpError) as error:
        failing_operation()
    text = error_message(error.value)
    assert is_tensorflow_error(error.value) and not is_tensorflow_error(ValueError("Detected"))
    assert "5 is not in [0, 3)" in text
    assert not any(mark in text for mark in ("{{", "[[", "[Op", "Detected at node"))
