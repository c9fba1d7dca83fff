"""A model cut into a chain computes what it computes whole."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import tiny

import vit_tf
from vit_tf import analysis
from vit_tf.models.transformer import PatchDense

SIZE = (16, 24, 3)


def foreign():
    images = keras.Input(SIZE)
    x = keras.layers.Conv2D(4, 3, padding="same", name="first")(images)
    branch = keras.layers.Conv2D(4, 3, padding="same", activation="relu", name="branch")(x)
    x = keras.layers.Add(name="sum")([x, branch])
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(images, keras.layers.Dense(3, name="logits")(x))


def make(name):
    keras.utils.set_random_seed(3)
    return foreign() if name == "foreign" else tiny(name)


PIECES = {"vit": 4, "bit": 5, "mixer": 5, "foreign": 4}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in ("bit", "mixer") else n for n in PIECES],
)
def test_chain_gives_the_taps_of_the_whole(name, rng):
    features = vit_tf.submodel(make(name), "*")
    images = tf.constant(rng.normal(size=(2, 16, 24, 3)), tf.float32)
    actual, x = {}, images
    segments = features.segments()
    for segment in segments:
        taps, x = segment(x)
        actual |= taps
    assert x is None
    assert len(segments) >= PIECES[name]
    expected = features(images)
    assert actual.keys() == expected.keys()
    for tap, value in expected.items():
        np.testing.assert_allclose(actual[tap], value, rtol=1e-5, atol=1e-6, err_msg=tap)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "channels"),
    [("vit", "all"), ("bit", 2), ("mixer", "sum"), ("foreign", "all")],
)
def test_fields_of_a_chain_are_those_of_the_whole(name, channels, rng):
    model = tiny("bit", units=(1, 1)) if name == "bit" else make(name)
    patterns = ("*/sum", "*/branch") if name != "foreign" else ("sum", "branch", "logits")
    features = vit_tf.submodel(model, *patterns)
    images = rng.normal(size=(2, 16, 24, 3)).astype("float32")
    chain = analysis.receptive_field(features, images, channels)
    grid = features.token_grid
    expected = analysis.receptive_field(lambda x: features(x), images, channels, grid)
    assert list(chain.layer) == list(features.taps)
    np.testing.assert_allclose(chain, expected.sel(layer=chain.layer), rtol=1e-4, atol=1e-8)
    assert float(chain.max()) > 0


@pytest.mark.slow
def test_a_layer_called_twice_and_a_skip_around_everything(rng):
    images = keras.Input((4, 4, 3))
    shared = keras.layers.Dense(3, name="shared")
    x = shared(keras.ops.tanh(shared(images)))
    model = keras.Model(images, keras.layers.Add(name="sum")([x, images]))
    features = vit_tf.submodel(model, "shared", "shared@2", "sum")
    batch = rng.normal(size=(2, 4, 4, 3)).astype("float32")
    assert len(features.segments()) == 1  # the images are needed to the end
    chain = analysis.receptive_field(features, batch, "all")
    expected = analysis.receptive_field(lambda x: features(x), batch, "all")
    np.testing.assert_allclose(chain, expected.sel(layer=chain.layer), rtol=1e-5)


def test_patches_by_a_product_are_those_of_a_convolution(rng):
    ours = PatchDense(5, (2, 3), name="patches")
    theirs = keras.layers.Conv2D(5, (2, 3), strides=(2, 3))
    images = tf.constant(rng.normal(size=(2, 6, 9, 4)), tf.float32)
    for layer in (ours, theirs):
        layer.build(images.shape)
    theirs.set_weights([rng.normal(size=w.shape) for w in theirs.get_weights()])
    ours.set_weights(theirs.get_weights())
    gradients = []
    for layer in (ours, theirs):
        with tf.GradientTape() as tape:
            tape.watch(images)
            value = layer(images)
            total = tf.reduce_sum(value**2)
        gradients.append([value, *tape.gradient(total, [images, *layer.trainable_weights])])
    for ours_value, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours_value, other, rtol=1e-4, atol=1e-4)
