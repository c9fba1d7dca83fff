"""Keras on JAX: models are evaluated, and what needs TensorFlow raises an error of one line."""

import importlib.util
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from device_worker import environment

import vit_tf
from vit_tf.common.backend import require_tensorflow_or_jax
from vit_tf.data.any_images import as_images
from vit_tf.distribute import jax_devices

PROGRAM = """
import json, sys
import keras, numpy as np
import tensorflow as tf
import vit_tf
from vit_tf import analysis
from vit_tf.training.evaluation import top_k_accuracy

folder = sys.argv[1]
strategy = vit_tf.distribute.strategy("mirrored")
with strategy.scope():
    divided = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 3)
    inside = vit_tf.distribute.strategy_of(divided).num_replicas_in_sync
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
    "interventions": lambda: analysis.head_ablation(model, data),
    "scope": lambda: vit_tf.train(divided, vit_tf.Recipe(), data, data, f"{folder}/run"),
}.items():
    try:
        call()
        lines[name] = "nothing raised"
    except Exception as error:
        lines[name] = f"{type(error).__name__}: {error}"
top = top_k_accuracy(model, data)[1]
found = {"backend": keras.backend.backend(), "lines": lines, "top": top, "inside": inside}
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed")
def test_models_work_and_the_rest_names_the_backend(tmp_path, rng):
    keras.utils.set_random_seed(0)
    model = vit_tf.ViT((8, 8, 3), 4, 2, 2, 8, 16, num_classes=3)
    model.save(tmp_path / "model.keras")
    images = rng.normal(size=(6, 8, 8, 3)).astype("float32")
    np.save(tmp_path / "images.npy", images)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment("jax", devices=2),
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
    assert found["inside"] == 2
    line = found["lines"].pop("scope")
    assert line.startswith("ValueError: Expected 'vit' to be created and trained in the same scope")
    assert line.endswith("a model on 2 devices in a scope of 1")
    for name, line in found["lines"].items():
        assert line.startswith("ValueError: The TensorFlow backend of Keras is needed for"), name
        assert "set KERAS_BACKEND=tensorflow" in line and line.endswith("Received: 'jax'"), name
        assert "\n" not in line
    logits = keras.ops.convert_to_numpy(model(images))
    assert found["top"] == pytest.approx(np.mean(logits.argmax(1) == np.arange(6) % 3))


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
@pytest.mark.parametrize(
    "call", ["vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 3)", "vit_tf.load('vit-cls-cifar10')"]
)
def test_another_backend_is_named_in_one_error(call):
    done = subprocess.run(
        [sys.executable, "-c", f"import vit_tf; {call}"],
        env=environment("torch"),
        capture_output=True,
        text=True,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: The TensorFlow or the JAX backend of Keras")
    assert last.endswith("set KERAS_BACKEND=tensorflow or jax. Received: 'torch'")


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed")
@pytest.mark.parametrize("name", ["none", "mirrored"])
def test_a_single_device_of_jax_needs_no_distribution(monkeypatch, name):
    monkeypatch.setattr(keras.distribution, "list_devices", lambda *_: ["cpu:0"])
    strategy = jax_devices.make(name)
    assert strategy.devices is None and strategy.num_replicas_in_sync == 1


@pytest.fixture
def jax_with_gpu(monkeypatch):
    """Keras as on JAX, with a GPU that TensorFlow sees; the list of the devices set visible."""
    visible = []
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["GPU:0"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *words: visible.append(words))
    return visible


@pytest.mark.parametrize(
    "read",
    [
        lambda: vit_tf.data.load("digits", image_size=8),
        lambda: vit_tf.data.describe("digits"),
        lambda: as_images(np.zeros((2, 8, 8, 3), "float32")),
        lambda: require_tensorflow_or_jax("training"),
    ],
)
def test_reading_data_leaves_the_gpu_to_jax(jax_with_gpu, read):
    read()
    assert jax_with_gpu[0] == ([], "GPU")


@pytest.mark.slow
def test_a_gpu_that_tensorflow_holds_is_a_warning(jax_with_gpu, monkeypatch, caplog):
    def refuse(*_):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    train, _ = vit_tf.data.load("digits", image_size=8, batch_size=4)
    assert next(iter(train))[0].shape == (4, 8, 8, 3)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "set_visible_devices([], 'GPU')" in record.message
