"""Files that version 0.1.0 wrote before its modules had their present places still open.

`older_files` holds them, and `answers.npz` what that code computed with them.
"""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from paths import ROOT

import vit_tf
from vit_tf import Recipe, ViT, analysis

FILES = ROOT / "tests" / "older_files"


@pytest.fixture(scope="module")
def answers():
    return dict(np.load(FILES / "answers.npz"))


@pytest.mark.parametrize("load", [vit_tf.load_model, keras.saving.load_model])
@pytest.mark.parametrize("name", ["vit", "bit", "mixer"])
def test_models_answer_as_before(answers, name, load):
    model = load(FILES / f"{name}.keras")
    np.testing.assert_allclose(model(answers["images"]), answers[name], rtol=1e-5, atol=1e-6)


def test_features_answer_as_before(answers):
    features = vit_tf.load_features(FILES / "features.keras")
    found = features(answers["images"])
    assert len(found) == 2
    for tap, values in found.items():
        np.testing.assert_allclose(values, answers[f"features {tap}"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_results_open_and_are_what_is_measured_now(answers):
    model = vit_tf.load_model(FILES / "vit.keras")
    images = tf.data.Dataset.from_tensor_slices(answers["images"])
    labels = tf.data.Dataset.from_tensor_slices(answers["labels"])
    labelled = tf.data.Dataset.zip(images, labels).batch(4)
    sums = vit_tf.submodel(model, "block*/*/sum", "embedding")
    weights = vit_tf.submodel(model, "*/weights")
    found = {
        "cka": analysis.cka(sums, images.batch(6)),
        "attention_distance": analysis.attention_distance(weights, answers["images"]),
        "ridge_probe": analysis.ridge_probe(sums, labelled, labelled, 3),
    }
    for name, now in found.items():
        before = xr.load_dataset(FILES / f"{name}.nc")
        now = now if isinstance(now, xr.Dataset) else now.to_dataset(name=now.name)
        now = now.drop_vars(set(now.coords) - set(before.coords))  # such as what is left out
        xr.testing.assert_allclose(before, now[list(before.data_vars)], rtol=1e-4, atol=1e-5)
    analysis.plots.plot_cka(xr.load_dataset(FILES / "cka.nc"))
    analysis.plots.plot_attention_distance(xr.load_dataarray(FILES / "attention_distance.nc"))


@pytest.mark.slow
def test_stopped_run_goes_on_to_the_weights_of_the_whole_one(answers, tmp_path):
    run = shutil.copytree(FILES / "stopped_run", tmp_path / "run")
    keras.utils.set_random_seed(2)
    sizes = {"patch_size": 8, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
    model = ViT(image_shape=(16, 16, 3), num_classes=3, **sizes)
    images, labels = answers["images"], answers["labels"]
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)
    recipe = Recipe(epochs=2, learning_rate=0.01, warmup_epochs=0)
    history = vit_tf.train(model, recipe, data, data, run, verbose=0)
    assert len(history["loss"]) == 2
    np.testing.assert_allclose(model(images), answers["trained"], rtol=1e-4, atol=1e-5)
