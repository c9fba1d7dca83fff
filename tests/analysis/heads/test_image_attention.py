"""`analysis.attention`: the rows of queries as maps, and the images as the model sees them."""

import numpy as np
import pytest
import tensorflow as tf
from attention_heads import OBLONG, random_attention
from tables import features_of, numbers
from tiny_models import tiny_vit

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.engine.pictures import as_pictures
from vit_tf.features.conversion import as_features

pytestmark = pytest.mark.usefixtures("without_graphs")


@pytest.fixture(scope="module")
def weights():
    return random_attention(np.random.default_rng(0), OBLONG, examples=3)


@pytest.mark.parametrize(
    ("query", "row"),
    [
        (None, lambda w: w[:, :, 0]),
        ("cls", lambda w: w[:, :, 0]),
        (5, lambda w: w[:, :, 5]),
        ("spatial", lambda w: w[:, :, 1:].mean(axis=2)),
    ],
)
def test_maps_are_the_rows_of_a_query_on_the_grid(weights, query, row):
    result = analysis.attention(features_of(weights, OBLONG), numbers(3, 2), query)
    for layer, values in weights.items():
        expected = row(values)[..., 1:].reshape(3, -1, OBLONG.rows, OBLONG.columns)
        np.testing.assert_allclose(result.attention.sel(layer=layer), expected, rtol=1e-5)


def test_without_prefix_tokens_the_query_is_the_mean_over_all(in_graphs):
    grid = TokenGrid(3, 4, 0, 8)
    weights = random_attention(np.random.default_rng(1), grid, examples=2)
    result = analysis.attention(features_of(weights, grid), numbers(2))
    (layer,) = result.layer.values[:1]
    expected = weights[layer].mean(axis=2).reshape(2, -1, 3, 4)
    np.testing.assert_allclose(result.attention.sel(layer=layer), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="query"):
        analysis.attention(features_of(weights, grid), numbers(2), "cls")


def test_a_photograph_and_its_plot():
    model = tiny_vit()
    model.preprocessing = vit_tf.Preprocessing((16, 16), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    photo = np.random.default_rng(2).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    result = analysis.attention(model, photo)
    np.testing.assert_array_equal(result.picture[0], photo)
    rows = analysis.attention_rows(model, photo).attention
    np.testing.assert_allclose(
        result.attention.values.reshape(*rows.shape[:3], -1), rows[..., 0, 1:], rtol=1e-5
    )
    panels = analysis.plot(result).panels
    assert panels.shape == (2, 2)
    below, above = panels[1, 0].images
    np.testing.assert_allclose(below.get_array(), photo / 255)
    values = result.attention.values[0, 1, 0]
    np.testing.assert_allclose(above.get_array(), values / values.max())


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_pictures_undo_the_preprocessing(order):
    preprocessing = vit_tf.Preprocessing(
        None, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), channel_order=order
    )
    photos = np.random.default_rng(3).integers(0, 256, (2, 6, 4, 3)).astype(np.uint8)
    prepared = photos[..., :: -1 if order == "bgr" else 1] / 255
    prepared = (prepared - preprocessing.mean) / preprocessing.std
    model = features_of({"x": np.zeros((2, 1))})
    model.preprocessing = preprocessing
    np.testing.assert_array_equal(as_pictures(tf.constant(prepared), as_features(model)), photos)


def test_pictures_of_unknown_values_span_their_own_range_and_shrink_by_means():
    features = features_of({"x": np.zeros((2, 1))})
    images = np.random.default_rng(4).uniform(10, 90, (2, 8, 4, 1)).astype(np.float32)
    means = images.reshape(2, 4, 2, 2, 2).mean(axis=(2, 4))
    low, high = (f(means, axis=(1, 2), keepdims=True) for f in (np.min, np.max))
    expected = np.rint(255 * (means - low) / (high - low))
    pictures = as_pictures(tf.constant(images), as_features(features), 4).numpy()
    assert pictures.shape == (2, 4, 2, 3) and np.ptp(pictures, axis=-1).max() == 0
    np.testing.assert_allclose(pictures[..., 0], expected, atol=1)
    usual = tf.constant([[[[-1.0, 0.0, 1.0]]]])
    np.testing.assert_array_equal(as_pictures(usual, as_features(features))[0, 0, 0], [0, 128, 255])
