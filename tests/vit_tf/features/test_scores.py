"""Class scores are what a model applies its softmax or sigmoid to, wherever that stands."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import vit_tf
from vit_tf import analysis
from vit_tf.features.scores import find_scores
from vit_tf.features.submodels import with_class_scores

IMAGES = np.random.default_rng(0).uniform(-1, 1, (5, 8, 8, 3)).astype("float32")


def dense(width=4, activation=None):
    kernel = keras.initializers.RandomNormal(stddev=9.0, seed=3)
    return layers.Dense(width, activation, name="head", kernel_initializer=kernel)


class OwnSoftmax(layers.Layer):
    def call(self, x):
        return tf.nn.softmax(x)


class Tempered(layers.Layer):
    """A softmax whose argument is no output of a layer."""

    def call(self, x):
        return tf.nn.softmax(x / 2.0)


class Head(layers.Layer):
    """A layer with the head inside."""

    def __init__(self, activation):
        super().__init__(name="whole_head")
        self.inner, self.activate = dense(), activation

    def call(self, x):
        return self.activate(self.inner(x))


class Subclassed(keras.Model):
    def __init__(self, end):
        super().__init__(name="subclassed")
        self.conv, self.head, self.end = layers.Conv2D(3, 3, name="conv"), dense(), end

    def call(self, x):
        x = ops.mean(self.conv(x), axis=(1, 2))
        return self.end(self.head(x), x)


def functional(end, name="functional"):
    images = keras.Input((8, 8, 3))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(3, 3, name="conv")(images))
    return keras.Model(images, end(x), name=name)


def nested(activation):
    images = keras.Input((8, 8, 3))
    return keras.Model(images, functional(dense(activation=activation), "inside")(images))


def called(model):
    model(IMAGES)
    return model


def mixed(x):
    x = layers.Dense(4, name="head", dtype="mixed_bfloat16")(x)
    return layers.Activation("softmax", dtype="float32")(x)


# A model, the tap of its scores, and its activation.
SOFTMAX = {
    "dense": (functional(dense(4, "softmax")), "head/logits"),
    "dense of TensorFlow's": (functional(dense(4, tf.nn.softmax)), "head/logits"),
    "a layer as activation": (functional(dense(4, layers.Softmax(name="s"))), "head/s/logits"),
    "logarithms": (functional(dense(4, "log_softmax")), "head/logits"),
    "activation": (functional(lambda x: layers.Activation("softmax")(dense()(x))), "head"),
    "softmax": (functional(lambda x: layers.Softmax()(dense()(x))), "head"),
    "in float32": (functional(mixed), "activation_1/logits"),
    "operation": (functional(lambda x: ops.softmax(dense()(x))), "head"),
    "scaled": (functional(lambda x: ops.softmax(dense()(x) * 3.0)), "multiply"),
    "own layer": (functional(lambda x: OwnSoftmax()(dense()(x))), "head"),
    "lambda": (functional(lambda x: layers.Lambda(tf.nn.softmax)(dense()(x))), "head"),
    "whole head": (functional(Head(keras.activations.softmax)), "whole_head/head"),
    "nested": (nested("softmax"), "inside/head/logits"),
    "subclassed": (called(Subclassed(lambda z, _: ops.softmax(z))), "head"),
    "with others": (called(Subclassed(lambda z, x: (ops.softmax(z), x))), "head"),
}
PLAIN = {
    "dense": (functional(dense()), "head"),
    "nested": (nested(None), "inside/head"),
    "subclassed": (called(Subclassed(lambda z, _: z)), "head"),
    "scaled": (called(Subclassed(lambda z, _: z * 2)), "output"),
    "auxiliary": (called(Subclassed(lambda z, x: (z, x))), "head"),
    "dict": (called(Subclassed(lambda z, x: {"auxiliary": x, "logits": z})), "head"),
}


def returned(model):
    result = model(IMAGES)
    result = result["logits"] if isinstance(result, dict) else result
    return np.asarray(result[0] if isinstance(result, tuple) else result, np.float64)


def softmax(z):
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("name", SOFTMAX)
def test_scores_are_the_argument_of_the_softmax(name):
    model, right = SOFTMAX[name]
    scores = find_scores(model)
    assert (scores.tap.replace("_2", "_1"), scores.activation) == (right, "softmax")
    assert not scores.is_inverted
    z = np.asarray(vit_tf.submodel(model, "*conv", scores.tap)(IMAGES)[scores.tap], np.float64)
    p = returned(model)
    np.testing.assert_allclose(softmax(z), np.exp(p) if name == "logarithms" else p, atol=2e-3)
    # Logarithms of probabilities would do for the line above: their exponentials have sum 1.
    assert abs(np.exp(z).sum(axis=1) - 1).max() > 1e-2


# Ends that scale or clip probabilities, or take their logarithms.
RESCALED = {
    "percentages": lambda p: p * 100,
    "factor first": lambda p: 100 * p,
    "clipped": lambda p: ops.clip(p, 1e-7, 1 - 1e-7),
    "logarithms": lambda p: ops.log(p + 1e-12),
    "in a layer": layers.Lambda(lambda p: ops.maximum(p / 2, 1e-9)),
}


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", RESCALED)
def test_rescaled_probabilities_are_no_scores(name, activation):
    model = functional(lambda x: RESCALED[name](layers.Activation(activation)(dense(4)(x))))
    scores = find_scores(model)
    assert (scores.tap, scores.activation) == ("head", activation)
    logits = vit_tf.submodel(model, "head")(IMAGES)["head"]
    probabilities = np.asarray(getattr(ops, activation)(logits))
    found = analysis.predict(model, IMAGES, top=4).probability.values
    np.testing.assert_allclose(found, -np.sort(-probabilities, axis=1), rtol=1e-5)


def test_reversed_probabilities_are_not_taken_for_probabilities():
    for end in (lambda p: p * -1.0, lambda p: 1.0 / p):
        assert (
            find_scores(functional(lambda x, end=end: end(dense(4, "softmax")(x)))).activation == ""
        )


@pytest.mark.parametrize("name", PLAIN)
def test_other_scores_are_what_is_returned(name):
    model, right = PLAIN[name]
    scores = find_scores(model)
    assert (scores.tap, scores.activation) == (right, "")
    values = vit_tf.submodel(model, "*conv", scores.tap)(IMAGES)[scores.tap]
    np.testing.assert_allclose(values, returned(model), rtol=1e-6)


@pytest.mark.parametrize("end", [Tempered(), Head(Tempered())], ids=["layer", "head"])
def test_scores_that_cannot_be_read_are_computed_from_probabilities(end):
    model = functional(lambda x: end(x if isinstance(end, Head) else dense()(x)))
    scores = find_scores(model)
    assert scores.is_inverted
    with pytest.warns(UserWarning, match="is the logarithm of the probabilities"):
        values = vit_tf.submodel(model, scores.tap)(IMAGES)[scores.tap]
    np.testing.assert_allclose(softmax(np.asarray(values)), returned(model), atol=1e-6)


def test_the_mean_of_two_classifiers():
    two = [layers.Dense(4, "softmax", name=name) for name in "ab"]
    model = functional(lambda x: layers.Average()([head(x) for head in two]))
    with pytest.warns(UserWarning, match="is the logarithm of the probabilities"):
        values = vit_tf.submodel(model, find_scores(model).tap)(IMAGES)
    (z,) = values.values()
    np.testing.assert_allclose(softmax(np.asarray(z)), returned(model), atol=1e-6)


@pytest.mark.parametrize(
    ("end", "tap"),
    [
        (dense(1, "sigmoid"), "head/log_odds"),
        (lambda x: layers.Activation("sigmoid", name="last")(dense(1)(x)), "last/log_odds"),
        (lambda x: layers.Activation("sigmoid", name="last")(Tempered()(dense(1)(x))), None),
    ],
)
def test_one_sigmoid_has_two_classes(end, tap):
    model = functional(end)
    scores = find_scores(model)
    assert scores.is_binary
    assert tap in (scores.tap, None)
    z = np.asarray(vit_tf.submodel(model, scores.tap)(IMAGES)[scores.tap], np.float64)
    p = returned(model)[:, 0]
    np.testing.assert_allclose(z, np.log([(1 - p) / p, p / (1 - p)]).T, rtol=1e-3)


def test_sigmoids_of_several_classes():
    model = functional(dense(4, "sigmoid"))
    scores = find_scores(model)
    assert (scores.tap, scores.activation, scores.is_binary) == ("head/logits", "sigmoid", False)
    z = np.asarray(vit_tf.submodel(model, scores.tap)(IMAGES)[scores.tap], np.float64)
    np.testing.assert_allclose(1 / (1 + np.exp(-z)), returned(model), atol=1e-6)


@pytest.mark.parametrize("name", ["dense", "activation", "nested", "subclassed"])
def test_scores_of_a_submodel(name):
    model, _ = SOFTMAX[name]
    right = find_scores(model).tap
    right = vit_tf.submodel(model, right)(IMAGES)[right]
    path = {"activation": "activation", "nested": "inside/head"}.get(name, "head")
    features = vit_tf.submodel(model, "*conv", path)
    features, scores = with_class_scores(features, path)
    tap = scores.tap
    if name != "subclassed":  # whose head is the scores
        assert tap != path
    np.testing.assert_allclose(features(IMAGES)[tap], right, rtol=1e-5)
    assert len(features.taps) == 2


def test_scores_before_an_activation_are_saved(tmp_path):
    features = vit_tf.submodel(SOFTMAX["dense"][0], "conv", "head/logits", "head")
    features.save(tmp_path / "a.keras")
    again = vit_tf.load(tmp_path / "a.keras")
    for tap, value in features(IMAGES).items():
        np.testing.assert_array_equal(again(IMAGES)[tap], value)


def test_an_edit_before_the_activation_changes_the_probabilities():
    model = SOFTMAX["nested"][0]
    features = vit_tf.submodel(model, "inside/head/logits", "inside/head")
    edited = vit_tf.intervene(
        features, {"inside/head/logits": vit_tf.edits.scaled(2)}, "inside/head"
    )
    z = np.asarray(features(IMAGES)["inside/head/logits"], np.float64)
    np.testing.assert_allclose(edited(IMAGES)["inside/head"], softmax(2 * z), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_quantized_models_keep_their_layers_and_scores(mode):
    model = functional(
        lambda x: layers.Dense(4, "softmax", name="head")(layers.Dense(6, "relu", name="mlp")(x))
    )
    outer = keras.Sequential([keras.Input((8, 8, 3)), model])
    before = vit_tf.submodel(outer, "*").taps
    outer.quantize(mode)
    features = vit_tf.submodel(outer, "*")
    assert features.taps == before
    scores = find_scores(outer)
    z = np.asarray(vit_tf.submodel(outer, scores.tap)(IMAGES)[scores.tap], np.float64)
    np.testing.assert_allclose(softmax(z), returned(outer), atol=1e-6)
    np.testing.assert_allclose(features(IMAGES)["functional/head"], returned(outer), atol=1e-6)
