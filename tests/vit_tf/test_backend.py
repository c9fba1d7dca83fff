"""Keras on JAX: models are evaluated, and what needs TensorFlow raises an error of one line."""

import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import vit_tf

PROGRAM = """
import json, sys
import keras, numpy as np
import tensorflow as tf
import vit_tf
from vit_tf import analysis
from vit_tf.training.evaluation import top_k_accuracy

folder = sys.argv[1]
images = np.load(f"{folder}/images.npy")
model = vit_tf.load_model(f"{folder}/model.keras")
features = vit_tf.submodel(model, "block*/mlp/sum", "pooled")
model.save(f"{folder}/again.keras")
again = vit_tf.load_model(f"{folder}/again.keras")
taps = {tap: keras.ops.convert_to_numpy(x) for tap, x in features(images).items()}
np.savez(f"{folder}/taps.npz", logits=keras.ops.convert_to_numpy(again(images)), **taps)
labels = np.arange(len(images)) % 3
data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)
lines = {}
for name, call in {
    "measurements": lambda: analysis.cka(features, images),
    "receptive fields": lambda: analysis.receptive_field(features, images),
    "probes": lambda: analysis.ridge_probe(features, data, data, 3),
    "operations": lambda: vit_tf.count_flops(model),
}.items():
    try:
        call()
        lines[name] = "nothing raised"
    except Exception as error:
        lines[name] = f"{type(error).__name__}: {error}"
top = top_k_accuracy(model, data)[1]
print(json.dumps({"backend": keras.backend.backend(), "lines": lines, "top": top}))
"""


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed")
def test_models_work_and_the_rest_names_the_backend(tmp_path, rng):
    keras.utils.set_random_seed(0)
    model = vit_tf.ViT((8, 8, 3), 4, 2, 2, 8, 16, num_classes=3)
    model.save(tmp_path / "model.keras")
    images = rng.normal(size=(6, 8, 8, 3)).astype("float32")
    np.save(tmp_path / "images.npy", images)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ | {"KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["backend"] == "jax"
    taps, expected = np.load(tmp_path / "taps.npz"), model.intermediates(images)
    assert len(taps.files) == 4
    for tap in taps.files:
        np.testing.assert_allclose(taps[tap], expected[tap], atol=2e-5, err_msg=tap)
    for name, line in found["lines"].items():
        assert line.startswith("ValueError: Expected the TensorFlow backend of Keras for"), name
        assert line.endswith("set KERAS_BACKEND=tensorflow. Received: 'jax'"), name
        assert "\n" not in line
    logits = keras.ops.convert_to_numpy(model(images))
    assert found["top"] == pytest.approx(np.mean(logits.argmax(1) == np.arange(6) % 3))
