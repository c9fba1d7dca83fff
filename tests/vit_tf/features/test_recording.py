"""Recording under a global policy, in threads, and of layers with graphs of their own."""

import contextlib
import itertools
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import vit_tf
from vit_tf import analysis
from vit_tf.features.recorder import BeforeActivation

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_threads_that_measure_one_model_do_not_disturb_each_other(chain):
    expected, output = values_of(chain), np.asarray(chain(IMAGES))
    built_again(chain)
    errors, start, measured = [], threading.Barrier(4), threading.Event()

    def measure():
        for _ in range(2):
            taps = vit_tf.submodel(chain, "conv*")(IMAGES)
            for value, other in zip(taps.values(), expected, strict=True):
                np.testing.assert_allclose(value, other, atol=1e-6)

    def use():
        while not measured.wait(0.01):
            np.testing.assert_allclose(chain(IMAGES), output, atol=1e-6)

    def run(function):
        try:
            start.wait()
            function()
        except Exception as error:
            errors.append(error)

    user = threading.Thread(target=run, args=(use,))
    threads = [threading.Thread(target=run, args=(measure,)) for _ in range(3)]
    for thread in (user, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    measured.set()
    user.join()
    assert not errors


def test_threads_that_skip_one_activation_leave_it_in_the_layer():
    """The second thread enters the call while the first is inside, if it can, and leaves later."""
    dense = layers.Dense(3, activation="softmax")
    expected, softmax, call = np.asarray(dense(IMAGES)), dense.activation, dense.call
    meeting, order, first_is_done = threading.Barrier(2), itertools.count(), threading.Event()
    used, results = [], []

    def call_and_wait(x):
        number = next(order)
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)
        if number:
            first_is_done.wait(0.5)
        with ThreadPoolExecutor(1) as other_thread:
            used.append(other_thread.submit(call, IMAGES).result())
        return call(x)

    def measure():
        results.append(BeforeActivation(dense)(IMAGES))
        first_is_done.set()

    object.__setattr__(dense, "call", call_and_wait)
    threads = [threading.Thread(target=measure) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dense.activation is softmax
    for values in used:
        np.testing.assert_allclose(values, expected, atol=1e-6)
    for values in results:
        np.testing.assert_allclose(values, IMAGES @ np.asarray(dense.kernel), atol=1e-5)


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


class Reversing(layers.Layer):
    """Reverses the sign of a batch whose largest value is not positive."""

    @tf.function
    def call(self, x):
        if tf.reduce_max(x) > 0:
            return x
        return -x


class Branching(Chain):
    """A compiled call that depends on a value, of a layer whose call does so, too."""

    def __init__(self):
        super().__init__()
        self.reversing = Reversing(name="reversing")

    @tf.function
    def call(self, x):
        x = self.convs[0](x)
        if tf.reduce_max(x) > 1e9:
            x = x + 1
        x = self.reversing(x - 1e3)
        return self.head(tf.reduce_mean(self.convs[1](x), axis=(1, 2)))


def test_compiled_calls_that_depend_on_values():
    model = built(Branching)
    taps = vit_tf.submodel(model, "conv*", "reversing")(IMAGES)
    assert list(taps) == ["conv0", "reversing", "conv1"]
    first = model.convs[0](IMAGES)
    np.testing.assert_allclose(taps["conv0"], first, atol=1e-6)
    np.testing.assert_allclose(taps["reversing"], 1e3 - first, rtol=1e-6)
    np.testing.assert_allclose(taps["conv1"], model.convs[1](1e3 - first), rtol=1e-5, atol=1e-2)


@pytest.mark.slow
def test_a_compiled_call_of_an_instance():
    model = built(Branching)
    expected = vit_tf.submodel(model, "conv*")(IMAGES)
    model.call = tf.function(Branching.call.python_function.__get__(model))
    for name, value in vit_tf.submodel(built_again(model), "conv*")(IMAGES).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6)


class Positions(layers.Layer):
    """Returns its table of positions, a variable or a constant."""

    def __init__(self, is_constant, name):
        super().__init__(name=name)
        self.table = self.add_weight((6, 4), "random_normal", name="table")
        self.constant = tf.constant(self.table.numpy()) if is_constant else None

    def call(self, x):
        return self.table if self.constant is None else self.constant


class WithPositions(Chain):
    def __init__(self):
        super().__init__()
        self.tables = [Positions(flag, f"positions{int(flag)}") for flag in (False, True)]

    def call(self, x):
        x = self.convs[0](x)
        return self.head(ops.mean(x, axis=(1, 2)) + sum(ops.sum(t(x), axis=0) for t in self.tables))


def test_tables_that_layers_return_are_not_reported_as_hidden():
    model = built(WithPositions)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        taps = vit_tf.submodel(model, "conv*", "positions*")(IMAGES)
    for table in model.tables:
        np.testing.assert_array_equal(taps[table.name], table.table)
