"""A preprocessing of another number of channels than the images have."""

import keras
import numpy as np
import pytest

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
