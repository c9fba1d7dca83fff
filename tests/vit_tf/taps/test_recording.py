"""Recording under a global policy, in threads, and of layers with graphs of their own."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import vit_tf
from vit_tf import analysis

IMAGES = np.random.default_rng(0).uniform(-1, 1, (8, 8, 8, 3)).astype("float32")


class Chain(keras.Model):
    """Convolutions in a row, in a subclassed model."""

    def __init__(self):
        super().__init__(name="chain")
        self.convs = [layers.Conv2D(4, 3, padding="same", name=f"conv{i}") for i in range(4)]
        self.head = layers.Dense(3, name="head")

    def call(self, x):
        for conv in self.convs:
            x = ops.tanh(conv(x))
        return self.head(ops.mean(x, axis=(1, 2)))


class CompiledCall(Chain):
    call = tf.function(Chain.call)


class Conditional(Chain):
    def call(self, x):
        x = self.convs[0](x)
        x = ops.cond(ops.max(x) > -1e9, lambda: self.convs[1](x), lambda: x)
        return self.head(ops.mean(self.convs[2](x), axis=(1, 2)))


def built(kind):
    model = kind()
    model(IMAGES)
    for conv in model.convs:
        if not conv.built:
            conv.build((None, 8, 8, 4))
    return model


@pytest.fixture(scope="module")
def chain():
    return built(Chain)


def values_of(model, count=4):
    """The outputs of the first convolutions, computed one by one."""
    values, x = [], IMAGES
    for conv in model.convs[:count]:
        values.append(np.asarray(conv(x)))
        x = np.tanh(values[-1])
    return values


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float64"])
def test_a_model_keeps_its_policy_whatever_the_global_one_is(policy, chain):
    expected = values_of(chain)
    gradient = analysis.input_gradients(chain, IMAGES[:1], classes=[0], samples=1, noise=0.0)
    keras.config.set_dtype_policy(policy)
    try:
        chain = built_again(chain)
        taps = vit_tf.submodel(chain, "conv*")(IMAGES)
        measured = analysis.input_gradients(chain, IMAGES[:1], classes=[0], samples=1, noise=0.0)
    finally:
        keras.config.set_dtype_policy("float32")
    for value, other in zip(taps.values(), expected, strict=True):
        np.testing.assert_allclose(value, other, atol=1e-6)
    np.testing.assert_allclose(measured, gradient, atol=1e-6)


def built_again(model):
    """The model without what earlier measurements keep with it."""
    vars(model).pop("_vit_tf_kept", None)
    return model


def test_threads_that_measure_one_model_do_not_disturb_each_other(chain):
    expected, errors = values_of(chain), []
    built_again(chain)

    def measure(number):
        try:
            for _ in range(2):
                if number:
                    taps = vit_tf.submodel(chain, "conv*")(IMAGES)
                    for value, other in zip(taps.values(), expected, strict=True):
                        np.testing.assert_allclose(value, other, atol=1e-6)
                else:
                    chain(IMAGES)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_layers_of_a_model_whose_call_is_compiled(chain):
    model = built(CompiledCall)
    model.set_weights(chain.get_weights())
    taps = vit_tf.submodel(model, "conv*")(IMAGES)
    for value, other in zip(taps.values(), values_of(chain), strict=True):
        np.testing.assert_allclose(value, other, atol=1e-6)
    assert isinstance(model.call, type(tf.function(len)))


def test_layers_inside_a_condition_are_named_and_left_out():
    model = built(Conditional)
    with pytest.warns(UserWarning, match="condition.*conv1"):
        taps = vit_tf.submodel(model, "conv*")(IMAGES)
    assert list(taps) == ["conv0", "conv2"]
    first = model.convs[0](IMAGES)
    np.testing.assert_allclose(taps["conv2"], model.convs[2](model.convs[1](first)), atol=1e-5)
