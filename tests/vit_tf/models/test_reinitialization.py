import random

import keras
import numpy as np
import pytest

import vit_tf


def models():
    yield vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 5, without_skips=["block01/mlp"])
    images = keras.Input((16, 16, 3))
    x = keras.layers.Conv2D(4, 3, name="conv")(images)
    yield keras.Model(images, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize("model", list(models()), ids=["ours", "foreign"])
def test_the_configuration_is_kept_and_the_weights_are_drawn_by_the_seed(model):
    for weight in model.weights:
        weight.assign(weight + 0.5)
    before = [weight.numpy() for weight in model.weights]
    state = random.getstate()
    first, again, other = (vit_tf.reinitialize(model, seed) for seed in (1, 1, 2))
    assert random.getstate() == state
    assert first.get_config() == model.get_config() and type(first) is type(model)
    for weight, unseeded in zip(
        vit_tf.reinitialize(model, 0).weights, vit_tf.reinitialize(model).weights, strict=True
    ):
        np.testing.assert_array_equal(unseeded, weight)
    kernels = 0
    for old, new, same, unlike in zip(
        before, first.get_weights(), again.get_weights(), other.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(new, same)
        assert new.shape == old.shape and not (new == old).all()
        if new.std() > 0:
            kernels += 1
            assert not np.isclose(new, unlike).all()
            assert abs(new.mean()) < 0.35 < old.mean() + 0.2
    assert kernels >= 2
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old)
    images = np.ones((2, 16, 16, 3), "float32")
    np.testing.assert_array_equal(first(images), again(images))


def test_statistics_of_data_and_what_is_set_on_a_model_are_kept(rng):
    images = rng.uniform(0, 255, (20, 16, 16, 3)).astype("float32")
    normalization = keras.layers.Normalization()
    normalization.adapt(images)
    inner = keras.Sequential([keras.Input((16, 16, 3)), normalization], name="inner")
    conv = keras.layers.Conv2D(4, 3, name="conv")
    model = keras.Sequential([keras.Input((16, 16, 3)), inner, conv])
    model.preprocessing = vit_tf.Preprocessing.from_range((16, 16), 0, 255)
    model.class_names = ("a", "b")
    copy = vit_tf.reinitialize(model, 1)
    assert copy.preprocessing == model.preprocessing and copy.class_names == ("a", "b")
    mean, std = images.mean((0, 1, 2)), images.std((0, 1, 2))
    kernel, bias = copy.get_layer("conv").get_weights()
    assert not np.isclose(kernel, conv.kernel).any()
    windows = np.lib.stride_tricks.sliding_window_view((images - mean) / std, (3, 3), (1, 2))
    expected = np.einsum("nhwcij,ijco->nhwo", windows, kernel) + bias
    np.testing.assert_allclose(copy(images), expected, atol=1e-3)


def test_what_is_not_built_is_refused():
    for wrong in (keras.Sequential([keras.layers.Dense(3)]), "vit"):
        with pytest.raises(ValueError, match=r"Expected model to be a built keras.Model"):
            vit_tf.reinitialize(wrong, 0)
