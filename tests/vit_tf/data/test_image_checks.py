"""Images that a model does not expect are refused or warned of, by every way they come in."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf import Preprocessing, TokenGrid, analysis
from vit_tf.analysis import FormationRecorder
from vit_tf.analysis.engine import choose, gaussian_like
from vit_tf.analysis.heads.rollout import rollout_of_images
from vit_tf.analysis.objects.dense_features import dense_features
from vit_tf.data.preprocessing import check_values

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


class Features:
    """Features that tell which images they expect."""

    name, token_grid = "model", TokenGrid(2, 2, 0, 2)

    def __init__(self, low=-1, high=1, tap="flat"):
        self.preprocessing, self.tap = Preprocessing.from_range((4, 4), low, high), tap

    def __call__(self, images):
        images = tf.cast(images, tf.float32)
        map_of = images[:, ::2, ::2]
        taps = {"flat": tf.reshape(images, (-1, 48)), "map": map_of}
        return {self.tap: taps[self.tap]}


def pixels(rng, low=0, high=255):
    return rng.uniform(low, high, (8, 4, 4, 3)).astype("float32")


@pytest.mark.parametrize(
    "measure, tap",
    [
        (analysis.cka, "flat"),
        slow(lambda *given: analysis.cka(given[0], given[1], given[0]), "flat"),
        slow(lambda *given: analysis.cka(choose(given[0], ["flat"]), given[1]), "flat"),
        slow(lambda *given: analysis.cka(gaussian_like(given[0]), given[1]), "flat"),
        slow(analysis.receptive_field, "map"),
        (dense_features, "map"),
        slow(analysis.localization, "map"),
        slow(
            lambda features, images: analysis.knn_accuracy(
                *(features, (images, np.arange(8) % 2), (images, np.arange(8) % 2), 2),
                k=(3,),
                tokens="all",
            ),
            "flat",
        ),
    ],
)
def test_every_measurement_refuses_pixels_where_others_are_expected(measure, tap, rng):
    """Floats are taken as they are; 8-bit values get the preprocessing of the model."""
    images = pixels(rng)
    with pytest.raises(ValueError, match=r"in \[-1, 1\]. Received: values from .* for model"):
        measure(Features(tap=tap), images)
    levels = images.astype("uint8")
    result = measure(Features(tap=tap), levels)
    expected = measure(Features(tap=tap), levels.astype("float32") / 127.5 - 1)
    for name in expected if isinstance(expected, dict | xr.Dataset) else [...]:
        np.testing.assert_allclose(result[name], expected[name], rtol=1e-4, atol=1e-5)


def test_integers_are_taken_where_they_are_declared(rng):
    images = pixels(rng).astype("uint8")

    def features(images):
        return {"flat": tf.reshape(tf.cast(images, tf.float32), (-1, 48))}

    with pytest.raises(ValueError, match=r"integer_images.*uint8 images for features"):
        analysis.cka(features, images)
    expected = analysis.cka(features, images.astype("float32"))["cka"]
    features.integer_images = True
    np.testing.assert_array_equal(analysis.cka(features, images)["cka"], expected)
    of_pixels = analysis.engine.choose(Features(0, 255), ["flat"])
    np.testing.assert_allclose(analysis.cka(of_pixels, images)["cka"], expected, rtol=1e-6)


@pytest.mark.slow
def test_taps_of_models_refuse_integers_unless_they_rescale(rng, tmp_path):
    images = pixels(rng).astype("uint8")
    vit = vit_tf.ViT((4, 4, 3), 2, 1, 1, 4, 4, 2)
    features = vit_tf.submodel(vit, "embedding")
    with pytest.raises(ValueError, match=r"float images in \[-1, 1\].*uint8 images for vit"):
        features(images)
    with pytest.raises(ValueError, match=r"in \[-1, 1\]. Received: values from .* for vit"):
        rollout_of_images(vit_tf.submodel(vit, "block*"), images.astype("float32"))
    features.export(tmp_path / "exported", verbose=False)
    with pytest.raises(ValueError, match="uint8 images for exported"):
        vit_tf.load_features(tmp_path / "exported")(images)
    first, second = keras.layers.Rescaling(1 / 255), keras.layers.Flatten(name="flat")
    rescaling = vit_tf.submodel(keras.Sequential([keras.Input((4, 4, 3)), first, second]), "flat")
    np.testing.assert_allclose(rescaling(images)["flat"], images.reshape(8, -1) / 255, rtol=1e-6)
    raw = keras.Sequential([keras.Input((4, 4, 3), dtype="uint8"), keras.layers.Flatten(name="f")])
    np.testing.assert_array_equal(vit_tf.submodel(raw, "f")(images)["f"], images.reshape(8, -1))


def test_a_recorder_of_formation_refuses_pixels_too(rng):
    vit = vit_tf.ViT((4, 4, 3), 2, 1, 1, 4, 4, 2)
    vit.compile(loss="mse")
    recorder = FormationRecorder(lambda model: vit_tf.submodel(model, "embedding"), pixels(rng))
    with pytest.raises(ValueError, match=r"in \[-1, 1\]. Received: values from"):
        vit.fit(pixels(rng), np.zeros((8, 2)), callbacks=[recorder], verbose=0)


@pytest.mark.parametrize(
    "expected, given, words",
    [
        ((-1, 1), (0, 1), r"in \[-1, 1\].*, as in \[0, 1\]"),
        ((0, 255), (0, 1), r"in \[0, 255\].*, as in \[0, 1\]"),
        ((0, 255), (-1, 1), r"in \[0, 255\].*, as in \[-1, 1\]"),
        ((-2.1, 2.6), (0, 1), r", as in \[0, 1\]"),
        ((0, 1), (-1, 1), r"in \[0, 1\]. Received: values from -"),
        ((-1, 1), (-2.1, 2.6), r"in \[-1, 1\]. Received: values from -2"),
        ((0, 1), (0, 4095 / 65535), "all in the lowest 20%"),
        ((0, 255), (0, 16), "all in the lowest 20%"),
    ],
)
def test_another_usual_range_is_warned_of(expected, given, words, rng):
    with pytest.warns(UserWarning, match=words):
        analysis.cka(Features(*expected), pixels(rng, *given))


@pytest.mark.parametrize(
    "expected, given",
    [
        ((-1, 1), (-1, 1)),
        ((-1, 1), (-0.3, 0.3)),
        ((0, 1), (0, 1)),
        ((0, 1), (0.4, 0.6)),
        ((0, 255), (0, 255)),
        ((0, 255), (90, 110)),
        ((-2.1, 2.6), (-2.1, 2.6)),
        ((-1, 1), (0, 0)),
    ],
)
def test_images_as_expected_pass_without_a_word(expected, given, rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_values(Features(*expected), pixels(rng, *given))


def test_only_the_first_batch_is_looked_at(rng):
    images = np.concatenate([pixels(rng, -1, 1), pixels(rng)])
    data = tf.data.Dataset.from_tensor_slices(images).batch(8)
    assert analysis.cka(Features(), data)["cka"].notnull().all()
