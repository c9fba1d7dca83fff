import keras
import numpy as np
import pytest

from vit_tf.taps.keras_attention import KerasAttention, attention_layers


class Masked(keras.layers.Layer):
    """Attention that looks at no later token, around a layer of Keras' own."""

    def __init__(self, causal, **kwargs):
        super().__init__(**kwargs)
        self.causal = causal
        self.attention = keras.layers.MultiHeadAttention(2, 3, name="attention")

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x):
        return self.attention(x, x, use_causal_mask=self.causal)


def model_of(causal):
    keras.utils.set_random_seed(0)
    x = images = keras.Input((4, 4, 3))
    x = keras.layers.Reshape((16, 3))(x)
    for index, masked in enumerate((False, causal)):
        x = Masked(masked, name=f"block{index}")(x)
    return keras.Model(images, x)


def test_weights_are_those_that_the_layer_tells_when_asked(rng):
    model, images = model_of(False), rng.normal(size=(2, 4, 4, 3)).astype("float32")
    features = KerasAttention(model)
    found = features(images)
    assert list(found) == ["block0/attention/weights", "block1/attention/weights"]
    x = images.reshape(2, 16, 3)
    for path, layer in attention_layers(model).items():
        x, weights = layer(x, x, return_attention_scores=True)
        np.testing.assert_allclose(found[f"{path}/weights"], weights, atol=1e-6)
    assert features.contradictions(images) == []
    assert list(KerasAttention(model, ["block1/attention"])(images)) == list(found)[1:]


def test_a_layer_that_masks_is_found_out(rng):
    images = rng.normal(size=(2, 4, 4, 3)).astype("float32")
    assert KerasAttention(model_of(True)).contradictions(images) == ["block1/attention"]


def test_a_model_without_such_layers():
    images = keras.Input((4, 4, 3))
    model = keras.Model(images, keras.layers.Flatten()(images), name="flat")
    with pytest.raises(ValueError, match="Received: 'flat' without"):
        KerasAttention(model)
