"""Stitched models next to models that they equal, and to ridge regression in float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import analysis

pytestmark = pytest.mark.usefixtures("without_graphs")

SHAPE = (16, 24, 3)
SIZE = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12, "num_classes": 3}


@pytest.fixture(scope="module")
def vit():
    keras.utils.set_random_seed(0)
    model = vit_tf.ViT(SHAPE, 8, **SIZE)
    kernel = model.head.kernel
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    return model


@pytest.fixture
def images(rng):
    return rng.uniform(-1, 1, (40, *SHAPE)).astype("float32"), np.arange(40) % 3


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.slow
def test_a_model_stitched_to_itself_or_a_rotated_copy_costs_nothing(vit, images, rng):
    layers = "block*/mlp/sum"
    own = analysis.stitching(vit, vit, images[0], images, layers=layers, l2=0.0)
    assert own.layer_x.values.tolist() == ["block00/mlp/sum", "block01/mlp/sum"]
    costs = own.loss_change.values
    np.testing.assert_allclose(np.diagonal(costs), 0, atol=1e-5)
    assert costs[0, 1] > 1e-3  # a linear map is no block
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0].astype("float32")
    features = vit_tf.submodel(vit, layers)

    def rotated(x):
        return {tap: 3 * values @ rotation + 1 for tap, values in features(x).items()}

    rotated.token_grid = features.token_grid
    result = analysis.stitching(rotated, vit, images[0], images, l2=0.0)
    costs = result.sel(layer_y="block01/mlp/sum").loss_change
    np.testing.assert_allclose(costs.sel(layer_x="block01/mlp/sum"), 0, atol=1e-5)
    np.testing.assert_allclose(
        result.output_change.sel(layer_y=own.layer_y), own.output_change, atol=1e-5
    )


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.slow
def test_maps_of_another_model_are_ridge_regressions(vit, images, rng):
    """A ResNet-like map of other channels and twice the positions, and a prefix from its mean."""
    kernel = rng.normal(size=(4, 4, 3, 5)).astype("float32")

    def other(x):
        return {"map": tf.nn.relu(tf.nn.conv2d(x, kernel, 4, "VALID"))}

    other.token_grid = vit_tf.TokenGrid(4, 6, 0, 4)
    l2 = 0.01
    layer = "block01/mlp/sum"
    result = analysis.stitching(other, vit, images[0], images, l2=l2)
    x = np.asarray(other(images[0])["map"], "float64")
    x = x.reshape(40, 2, 2, 3, 2, 5).mean(axis=(2, 4)).reshape(40, 6, 5)
    y = np.asarray(vit_tf.submodel(vit, layer)(images[0])[layer], "float64")

    def mapped(x, y):
        mean_x, mean_y = x.mean(axis=(0, 1)), y.mean(axis=(0, 1))
        a, b = (x - mean_x).reshape(-1, 5), (y - mean_y).reshape(-1, 8)
        penalty = l2 * (a**2).sum() / 5
        w = np.linalg.solve(a.T @ a + penalty * np.eye(5), a.T @ b)
        return (x - mean_x) @ w + mean_y

    tokens = np.concatenate(
        [mapped(x.mean(axis=1, keepdims=True), y[:, :1]), mapped(x, y[:, 1:])], axis=1
    )
    replaced = vit_tf.intervene(
        vit, {layer: vit_tf.edits.constant(tokens.astype("float32"))}, "logits"
    )
    logits = np.asarray(replaced(images[0])["logits"], "float64")
    plain = np.asarray(vit(images[0]), "float64")

    def loss(scores):
        log_sums = np.log(np.exp(scores).sum(axis=1))
        return log_sums - scores[np.arange(40), images[1]]

    change = result.sel(layer_x="map", layer_y=layer)
    np.testing.assert_allclose(change.loss_change, (loss(logits) - loss(plain)).mean(), atol=1e-5)
    error = (loss(logits) - loss(plain)).std(ddof=1) / np.sqrt(40)
    np.testing.assert_allclose(change.loss_change_stderr, error, rtol=1e-3)


@pytest.mark.slow
def test_nulls_are_an_untrained_copy_and_the_pixels(vit, images):
    """Both as first models of their own give the same."""
    keras.utils.set_random_seed(2)
    layers = ["block00/mlp/sum", "block01/mlp/sum"]
    first = vit_tf.ViT(SHAPE, 8, **SIZE)
    target = vit_tf.submodel(vit, "block01/mlp/sum", "logits")
    train = images[0][:30]
    result = analysis.stitching(vit_tf.submodel(first, *layers), target, train, images, l2=0.1)
    assert result.layer_x.values.tolist() == layers
    copy = vit_tf.submodel(vit_tf.reinitialize(vit_tf.submodel(first, "*")), *layers)
    of_copy = analysis.stitching(copy, target, train, images, l2=0.1)
    np.testing.assert_allclose(result.untrained_loss_change, of_copy.loss_change, atol=1e-5)

    def pixels(x):
        patches = tf.reshape(x, (-1, 2, 8, 3, 8, 3))
        return {"patches": tf.reshape(tf.transpose(patches, (0, 1, 3, 2, 4, 5)), (-1, 2, 3, 192))}

    of_pixels = analysis.stitching(pixels, target, train, images, l2=0.1)
    expected = of_pixels.loss_change.sel(layer_x="patches")
    for own in (result, of_pixels):
        np.testing.assert_allclose(own.pixels_loss_change, expected, atol=1e-5)
    assert "untrained_loss_change" not in of_pixels  # a function has no initialization


def test_layers_that_do_not_fit_are_refused(vit, images):
    def odd(x):
        return {"map": x[:, ::3, ::3]}

    with pytest.raises(ValueError, match="multiples of 2 x 3"):
        analysis.stitching(odd, vit, images[0], images)
    with pytest.raises(ValueError, match="l2"):
        analysis.stitching(vit, vit, images[0], images, l2=-1)


@pytest.mark.slow
def test_models_whose_scores_have_other_names_are_stitched(vit, images):
    keras.utils.set_random_seed(1)
    inputs = keras.Input(SHAPE)
    x = keras.layers.Conv2D(6, 8, strides=8, activation="relu", name="first")(inputs)
    x = keras.layers.Conv2D(6, 1, activation="relu", name="second")(x)
    pooled = keras.layers.GlobalAveragePooling2D()(x)
    other = keras.Model(inputs, keras.layers.Dense(3, name="answers")(pooled))
    into_vit = analysis.stitching(other, vit, images[0], images)
    assert "second" in into_vit.layer_x and "block00/mlp/sum" in into_vit.layer_y
    maps = vit_tf.submodel(other, "second")

    def function(x):
        return maps(x)

    function.token_grid = vit_tf.TokenGrid(2, 3, 0, 8)
    expected = analysis.stitching(function, vit, images[0], images)
    layers = {"layer_x": expected.layer_x, "layer_y": expected.layer_y}
    np.testing.assert_allclose(into_vit.sel(layers).loss_change, expected.loss_change, atol=1e-5)
    from_vit = analysis.stitching(vit, other, images[0], images)
    assert from_vit.attrs["scores"] == "answers" and "second" in from_vit.layer_y
    logits = other(images[0]).numpy().astype("float64")
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(40), images[1]]
    np.testing.assert_allclose(from_vit.loss, losses.mean(), rtol=1e-5)


def test_untrained_features_have_the_accuracy_of_a_linear_probe(rng):
    """The second model knows the class and reads it linearly: the map is a ridge classifier."""
    labels = np.arange(240) % 3
    x = rng.normal(size=(240, 4, 4, 3))
    x += 0.15 * np.eye(3)[labels][:, None, None] - x.mean(axis=(1, 2), keepdims=True)
    x = x.astype("float32")
    inputs = keras.Input((4, 4, 3))
    known = keras.layers.GlobalAveragePooling2D()(inputs)
    known = keras.layers.Softmax()(keras.layers.Rescaling(300.0)(known))
    known = keras.layers.UpSampling2D(2, name="known")(keras.layers.Reshape((1, 1, 3))(known))
    pooled = keras.layers.GlobalAveragePooling2D()(known)
    model = keras.Model(inputs, keras.layers.Dense(3, use_bias=False, name="answers")(pooled))
    model.get_layer("answers").kernel.assign(10 * np.eye(3))
    features = vit_tf.submodel(model, "known", "answers")
    features.token_grid = vit_tf.TokenGrid(2, 2, 0, 2)
    weights = rng.normal(size=(48, 20)).astype("float32")

    def random(images):
        values = tf.nn.relu(tf.reshape(images, (-1, 48)) @ weights)
        return {"random": tf.tile(values[:, None, None], (1, 2, 2, 1))}

    random.token_grid = features.token_grid
    train, test = (x[:120], labels[:120]), (x[120:], labels[120:])
    l2 = 0.1
    result = analysis.stitching(random, features, train[0], test, scores="answers", l2=l2)
    rows = np.asarray(random(train[0])["random"])[:, 0, 0].astype("float64")
    penalty = l2 * ((rows - rows.mean(axis=0)) ** 2).sum() / 20
    probe = analysis.ridge_probe(random, train, test, l2=[penalty])
    assert result.accuracy == 1 and 0.4 < probe.item() < 0.95
    np.testing.assert_allclose(1 + result.accuracy_change.item(), probe.item(), atol=1e-9)
