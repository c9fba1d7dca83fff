"""Models under Keras' setting `channels_first`, and models of others that have channels first."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras.src.trainers import trainer

import vit_tf

# Run under one of the two settings: outputs of bundled and of freshly made models, and a step.
SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf
from keras.src.trainers import trainer
import vit_tf
assert keras.config.image_data_format() == sys.argv[2]
rng = np.random.default_rng(0)
images = rng.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
heads = dict(patch_size=8, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8, num_classes=3)
made = {
    "hybrid": lambda: vit_tf.HybridViT((32, 32, 3), **heads | {"patch_size": 2}, stem_units=(1,)),
    "siglip": lambda: vit_tf.SigLIPViT((32, 32, 3), **heads),
    "bit": lambda: vit_tf.BiT((32, 32, 3), (1, 1), 0.5, num_classes=3, stem="imagenet"),
    "beit": lambda: vit_tf.BEiT((32, 32, 3), **heads),
}
models = {name: vit_tf.load_pretrained(name) for name in vit_tf.list_pretrained("*-cifar10")}
for name, make in made.items():
    models[name] = model = make()
    rng = np.random.default_rng(1)
    model.set_weights([0.2 * rng.normal(size=w.shape) for w in model.get_weights()])
outputs = {}
for name, model in models.items():
    tap = model.taps[-3]
    taps = vit_tf.submodel(model, tap)(images)
    outputs |= {name: model(images), f"{name} tap": taps[tap]}
    if name in ("bit-cifar10", "hybrid"):  # by the two kinds of stem, in a graph
        model.jit_compile = name == "hybrid"  # one by XLA, as users predict
        outputs[f"{name} predicted"] = model.predict(images)
trainer.model_supports_jit = lambda model: False  # XLA takes most of the time of short trainings
model, labels = models["bit"], np.arange(2)
data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(2)
recipe = vit_tf.Recipe(epochs=1, warmup_epochs=0, flip=True, shift=2, rand_augment=0.3, mixup=0.2)
keras.utils.set_random_seed(0)
outputs["loss"] = vit_tf.train(model, recipe, data, data, sys.argv[1] + ".run", verbose=0)["loss"]
outputs["trained"] = model(images)
model.save(sys.argv[1] + ".keras")
outputs["saved"] = vit_tf.load_model(sys.argv[1] + ".keras")(images)
np.savez(sys.argv[1], **{name.replace("/", "_"): np.asarray(x) for name, x in outputs.items()})
"""


def run_with_channels_first(folder):
    """What the script saves in a process of its own, as Keras reads its setting when imported."""
    (folder / "keras.json").write_text(json.dumps({"image_data_format": "channels_first"}))
    path = folder / "first.npz"
    environment = os.environ | {"KERAS_HOME": str(folder), "TF_CPP_MIN_LOG_LEVEL": "2"}
    arguments = [sys.executable, "-c", SCRIPT, str(path), "channels_first"]
    ran = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return np.load(path)


@pytest.mark.slow
def test_the_setting_of_keras_changes_nothing(tmp_path, monkeypatch):
    first = run_with_channels_first(tmp_path)
    path = tmp_path / "last.npz"
    monkeypatch.setattr(sys, "argv", ["script", str(path), "channels_last"])
    supports = trainer.model_supports_jit
    monkeypatch.setattr(trainer, "model_supports_jit", supports)  # which the script sets
    exec(SCRIPT, {})
    last = np.load(path)
    assert set(first) == set(last) and len(first) > 20
    for name in last:
        np.testing.assert_allclose(first[name], last[name], atol=2e-5, err_msg=name)


@pytest.fixture
def channels_first():
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    yield
    keras.config.set_image_data_format(before)


@pytest.mark.slow
def test_a_bundled_model_opens_under_channels_first(rng, channels_first):
    images = rng.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    actual = vit_tf.load_pretrained("vit-cls-cifar10")(images)
    keras.config.set_image_data_format("channels_last")
    np.testing.assert_allclose(actual, vit_tf.load_pretrained("vit-cls-cifar10")(images), atol=1e-6)


def foreign(data_format):
    shape = (3, 16, 16) if data_format == "channels_first" else (16, 16, 3)
    images = x = keras.Input(shape)
    x = keras.layers.Conv2D(4, 3, data_format=data_format, name="conv")(x)
    x = keras.layers.GlobalAveragePooling2D(data_format=data_format, name="mean")(x)
    return keras.Model(images, keras.layers.Dense(2)(x), name="foreign")


def test_models_of_others_with_channels_first_are_refused():
    with pytest.raises(ValueError, match=r"data_format is 'channels_last'.*'foreign'"):
        vit_tf.submodel(foreign("channels_first"), "*")


def test_models_of_others_with_channels_last_are_read_under_either_setting(channels_first):
    model = foreign("channels_last")
    x = keras.layers.Flatten()(model.get_layer("conv").output)  # takes over the setting
    model = keras.Model(model.inputs, [model.output, x])
    assert "conv" in vit_tf.submodel(model, "conv").taps
