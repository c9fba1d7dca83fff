"""Equivariance errors of layers whose errors are known."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import TokenGrid, analysis

SHAPE = (12, 16, 3)


@pytest.fixture
def images(rng):
    data = rng.uniform(-1, 1, (12, *SHAPE)).astype("float32")
    return tf.data.Dataset.from_tensor_slices(data).batch(6)


def convolved(x, kernel, stride=1):
    """A convolution with circular padding."""
    half = kernel.shape[0] // 2
    for axis in (1, 2):
        first, last = tf.split(x, [half, -1], axis)[0], tf.split(x, [-1, half], axis)[1]
        x = tf.concat([last, x, first], axis)
    return tf.nn.conv2d(x, kernel, stride, "VALID")


@pytest.mark.usefixtures("without_graphs")
def test_circular_convolutions_move_with_the_image(images, rng):
    kernel = rng.normal(size=(3, 3, 3, 4)).astype("float32")
    symmetric = kernel + kernel[:, ::-1]

    def features(x):
        return {
            "one": tf.nn.relu(convolved(x, kernel)),
            "symmetric": convolved(x, symmetric),
            "strided": convolved(x, kernel, 4),
            "mean": tf.reduce_mean(convolved(x, kernel), [1, 2]),
        }

    result = analysis.equivariance_error(features, images, [(0, 1), (4, 8), (-4, 3)])
    error = result.error
    assert list(error.transform.values) == ["flip", "shift 0 1", "shift 4 8", "shift -4 3"]
    for layer in ("one", "symmetric", "mean"):
        np.testing.assert_allclose(error.sel(layer=layer)[1:], 0, atol=1e-9)
    np.testing.assert_allclose(error.sel(layer="symmetric"), 0, atol=1e-9)
    assert (error.sel(transform="flip", layer=["one", "strided"]) > 0.01).all()
    strided = error.sel(layer="strided")
    assert abs(strided.sel(transform="shift 4 8")) < 1e-9
    assert np.isnan(strided.sel(transform=["shift 0 1", "shift -4 3"])).all()
    default = analysis.equivariance_error(features, images)
    assert list(default.transform.values) == ["flip", "shift 4 4"]
    with pytest.raises(ValueError, match="pairs of integers"):
        analysis.equivariance_error(features, images, [(2.5, 0)])


def test_a_shift_by_the_whole_image_is_no_shift():
    """Maps of 3 and of 8 rows of 24 pixels both move by whole positions with 24 pixels only."""
    x = np.random.default_rng(0).uniform(-1, 1, (4, 24, 24, 3)).astype("float32")

    def features(x):
        return {size: tf.image.resize(x, (size, size)) for size in (3, 8)}

    with pytest.raises(ValueError, match="shift smaller than the images"):
        analysis.equivariance_error(lambda x: {str(k): v for k, v in features(x).items()}, x)


def test_equals_its_definition_in_float64(images, rng):
    weights = rng.normal(size=SHAPE).astype("float32")
    x = np.concatenate([np.asarray(batch) for batch in images]).astype("float64")
    result = analysis.equivariance_error(lambda x: {"layer": x * weights + 3}, images, [(2, 5)])

    def f(x):
        return x * weights + 3

    # All pairs of different images of each of two batches.
    pairs = [
        ((f(x)[i] - f(x)[j]) ** 2).sum()
        for i in range(12)
        for j in range(12)
        if i // 6 == j // 6 and i != j
    ]
    for transform, move in (
        ("flip", lambda x: x[:, :, ::-1]),
        ("shift 2 5", lambda x: np.roll(x, (2, 5), (1, 2))),
    ):
        expected = ((f(move(x)) - move(f(x))) ** 2).sum() / 12 / np.mean(pairs)
        received = result.error.sel(transform=transform, layer="layer")
        np.testing.assert_allclose(received, expected, rtol=1e-5)


def test_features_of_another_image_have_an_error_of_one(rng):
    """Noise that depends on every pixel is as unlike as that of another image."""
    x = rng.uniform(-1, 1, (600, 4, 4, 3)).astype("float32")
    features = analysis.engine.gaussian_like(lambda x: {"noise": x})
    data = tf.data.Dataset.from_tensor_slices(x).batch(60)
    result = analysis.equivariance_error(features, data)
    assert (abs(result.error - 1) < 4 * result.stderr + 1e-3).all()
    assert result.leave_one_out.sizes["batch"] == 10
    without_second = np.concatenate([x[:60], x[120:]])
    alone = analysis.equivariance_error(
        features, tf.data.Dataset.from_tensor_slices(without_second).batch(60)
    )
    np.testing.assert_allclose(result.leave_one_out[1], alone.error, rtol=1e-5)


@pytest.mark.parametrize("size", [0.0, 1.0, 3.0])
def test_a_position_pattern_counts_against_what_images_differ_by(rng, size):
    """The pattern stays behind: its difference from itself is divided by the images' variance."""
    pattern = rng.normal(size=(8, 8, 5))
    x = rng.normal(size=(400, 8, 8, 5)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(x).batch(50)
    result = analysis.equivariance_error(
        lambda x: {"layer": x + tf.constant(size * pattern, tf.float32)}, data
    )
    assert result.transform.values.tolist() == ["flip", "shift 1 1", "shift 2 2", "shift 4 4"]
    moved = [pattern[:, ::-1], *(np.roll(pattern, (n, n), (0, 1)) for n in (1, 2, 4))]
    expected = [size**2 * ((pattern - other) ** 2).mean() / 2 for other in moved]
    np.testing.assert_allclose(result.error.values[:, 0], expected, rtol=0.03, atol=1e-9)


@pytest.mark.slow
def test_a_vit_without_positions_moves_by_whole_patches(images):
    keras.utils.set_random_seed(0)
    size = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}
    model = vit_tf.ViT(SHAPE, 4, **size, num_classes=3)
    table = model.position_embedding
    for variable in model.weights:
        if (
            tuple(variable.shape)[-2:] == tuple(np.shape(table))[-2:]
            and "position" in variable.path
        ):
            variable.assign(tf.zeros_like(variable))
    result = analysis.equivariance_error(model, images, [(4, 8), (0, 2)])
    np.testing.assert_allclose(result.error.sel(transform="shift 4 8"), 0, atol=1e-9)
    assert np.isnan(result.error.sel(transform="shift 0 2")).all()
    assert (result.error.sel(transform="flip") > 1e-3).all()


def test_layers_without_variation_or_positions_are_refused(images):
    with pytest.raises(ValueError, match="constant layer: dead"):
        analysis.equivariance_error(lambda x: {"dead": 0 * x + 7}, images)
    with pytest.raises(ValueError, match="known grid"):
        analysis.equivariance_error(lambda x: {"x": tf.reshape(x, (-1, 192, 3))}, images)
    tokens = analysis.equivariance_error(
        lambda x: {"x": tf.reshape(x, (-1, 192, 3))}, images, grid=TokenGrid(12, 16, 0, 1)
    )
    np.testing.assert_allclose(tokens.error, 0, atol=1e-9)
