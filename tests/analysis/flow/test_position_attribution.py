import keras
import numpy as np
import pytest
from oracles import randomize

import vit_tf
from vit_tf import analysis


@pytest.mark.slow
def test_the_field_of_the_centre_is_the_receptive_field(rng):
    bit = vit_tf.BiT((16, 24, 3), units=(1, 1), num_classes=5, stem="small", width_factor=0.5)
    randomize(bit)
    images = rng.uniform(-1, 1, size=(2, 16, 24, 3)).astype("float32")
    features = vit_tf.submodel(bit, "stage*/unit01/sum")
    rows, columns = bit.token_grid.rows, bit.token_grid.columns
    result = analysis.position_attribution(features, images, rows, columns)
    assert result.shape == (2, 2, rows * columns, 16, 24)
    centre = (rows // 2) * columns + columns // 2
    expected = analysis.receptive_field(features, images).sel(layer="stage2/unit01/sum")
    found = result.sel(layer="stage2/unit01/sum", place=centre).mean("example")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_convolution_of_ones_is_moved_by_its_window():
    images = keras.Input((6, 8, 1))
    layer = keras.layers.Conv2D(1, 3, padding="same", kernel_initializer="ones", name="conv")
    model = keras.Model(images, layer(images))
    result = analysis.position_attribution(
        vit_tf.submodel(model, "conv"), np.zeros((1, 6, 8, 1)), 3, 4
    )
    for place in range(12):
        row, column = 2 * (place // 4) + 1, 2 * (place % 4) + 1  # under the middle of the cell
        expected = np.zeros((6, 8))
        expected[row - 1 : row + 2, max(column - 1, 0) : column + 2] = 1
        np.testing.assert_array_equal(result[0, 0, place], expected)


def test_each_image_has_a_field_of_its_own(rng):
    x = images = keras.Input((4, 4, 1))
    x = keras.layers.ReLU(name="map")(x)
    features = vit_tf.submodel(keras.Model(images, x), "map")
    batch = np.stack([np.ones((4, 4, 1)), -np.ones((4, 4, 1))]).astype("float32")
    result = analysis.position_attribution(features, batch, 4, 4)
    np.testing.assert_array_equal(result[0, 0].values.reshape(16, 16), np.eye(16))
    assert not result[1].any()


def test_what_has_no_places_is_told():
    vit = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 5)
    images = np.zeros((1, 8, 8, 3), "float32")
    with pytest.raises(ValueError, match="Received: 'embedding' of shape"):
        analysis.position_attribution(vit_tf.submodel(vit, "embedding"), images, 2, 2)
    with pytest.raises(ValueError, match="Received: 0 x 2"):
        analysis.position_attribution(vit_tf.submodel(vit, "embedding"), images, 0, 2)


def test_cells_that_share_a_batch_have_the_fields_of_single_ones(rng, monkeypatch):
    bit = vit_tf.BiT((16, 24, 3), units=(1, 1), num_classes=5, stem="small", width_factor=0.5)
    randomize(bit)
    images = rng.uniform(-1, 1, size=(2, 16, 24, 3)).astype("float32")
    features = vit_tf.submodel(bit, "stage*/unit01/sum")
    together = analysis.position_attribution(features, images, 2, 3)
    for cells in (1, 4):  # of which the second chunk is not full
        pixels = cells * 16 * 24
        monkeypatch.setattr("vit_tf.analysis.flow.receptive_field.PIXELS_AT_ONCE", pixels)
        apart = analysis.position_attribution(features, images, 2, 3)
        np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-7)
