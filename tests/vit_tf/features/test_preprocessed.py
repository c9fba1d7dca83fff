"""A preprocessing of another number of channels than the images have."""

import keras
import numpy as np
import pytest
from PIL import Image

import vit_tf
from vit_tf import analysis


def test_gradients_name_the_number_of_channels_that_a_preprocessing_lacks(rng):
    images = keras.Input((8, 8, 5))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, name="c")(images))
    model = keras.Model(images, keras.layers.Dense(3)(x))
    pixels = rng.uniform(0, 1, (2, 8, 8, 5)).astype(np.float32)
    model.preprocessing = vit_tf.Preprocessing.from_range((8, 8), 0, 1)
    for measure in (analysis.input_gradients, analysis.integrated_gradients, analysis.grad_cam):
        with pytest.raises(ValueError, match="num_channels=5"):
            measure(model, pixels, classes=1)
    model.preprocessing = vit_tf.Preprocessing.from_range((8, 8), 0, 1, num_channels=5)
    assert np.isfinite(analysis.input_gradients(model, pixels, classes=1)).all()


def test_files_of_a_model_of_grey_images_need_one_channel(rng, tmp_path):
    grey = rng.integers(0, 256, (8, 8)).astype(np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, name="c")])
    model.preprocessing = vit_tf.Preprocessing.from_range((8, 8), 0, 1)
    with pytest.raises(ValueError, match="num_channels=1"):
        vit_tf.extract_features(model, tmp_path / "grey.png", layers="c")
    model.preprocessing = vit_tf.Preprocessing.from_range((8, 8), 0, 1, num_channels=1)
    found = vit_tf.extract_features(model, tmp_path / "grey.png", layers="c")["c"]
    np.testing.assert_allclose(found, model(grey[None, ..., None] / 255), atol=1e-5)


def test_gradients_refuse_videos(rng):
    stack = [keras.layers.Conv3D(4, 3), keras.layers.GlobalAveragePooling3D()]
    model = keras.Sequential([keras.Input((4, 8, 8, 3)), *stack, keras.layers.Dense(3)])
    videos = rng.normal(size=(2, 4, 8, 8, 3)).astype(np.float32)
    for measure in (analysis.input_gradients, analysis.integrated_gradients):
        with pytest.raises(
            ValueError, match=r"Expected images .*Received: shape \(2, 4, 8, 8, 3\)"
        ):
            measure(model, videos, classes=0)
