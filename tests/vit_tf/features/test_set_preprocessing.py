"""`.preprocessing` of any model is what its user sets, also after the model was measured."""

import keras
import numpy as np
import pytest

import vit_tf
from vit_tf import analysis

LEVELS = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3)).astype(np.uint8)
MEANS = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
STDS = (0.2, 0.3, 0.25), (0.5, 0.5, 0.5)


def keras_model():
    keras.utils.set_random_seed(0)
    images = keras.Input((12, 12, 3))
    x = keras.layers.Conv2D(6, 3, activation="relu", name="a")(images)
    x = keras.layers.Conv2D(6, 3, activation="relu", name="b")(x)
    return keras.Model(images, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(x)))


def torch_module():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential()
    module.add_module("a", torch.nn.Conv2d(3, 6, 3))
    module.add_module("b", torch.nn.Conv2d(6, 6, 3))
    return module.eval()


def function():
    layers = vit_tf.submodel(keras_model(), "a", "b")
    return lambda images: dict(layers(images))


KINDS = {
    "Keras model": keras_model,
    "submodel": lambda: vit_tf.submodel(keras_model(), "a", "b"),
    "features": lambda: analysis.features_of(keras_model()),
    "features of a submodel": lambda: analysis.features_of(vit_tf.submodel(keras_model(), "a")),
    "PyTorch module": torch_module,
    "features of a module": lambda: vit_tf.submodel(torch_module(), "a", "b"),
    "torch_features": lambda: vit_tf.torch_features(torch_module(), "a", "b"),
    "function": function,
    "features of a function": lambda: analysis.features_of(function()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_set_prepares_images(kind):
    model = KINDS[kind]()
    for mean, std in zip(MEANS, STDS, strict=True):
        values = ((LEVELS / 255 - mean) / std).astype(np.float32)
        model.preprocessing = None
        expected = analysis.extract_features(model, values, layers="a")["a"]
        model.preprocessing = vit_tf.Preprocessing((12, 12), mean, std)
        found = analysis.extract_features(model, LEVELS, layers="a")["a"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
