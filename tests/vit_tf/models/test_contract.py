"""What every model does alike: it saves, exports, compiles, learns, and gives submodels."""

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf
from tiny_models import MODELS, tiny

import vit_tf

SLOW = pytest.mark.slow
# Without a skip where another than the second block's has to be left out.
SKIPS = {"mixer": "block01/token_mixing", "hybrid root": "block00/attention"}
SKIPS |= dict.fromkeys(("bit", "bit small", "hybrid"), "stage1/unit02")
# Taps that are computed in bfloat16, and those that stay in float32, under mixed precision.
MIXED = {
    "vit": (["block01/mlp/sum"], ["block01/attention/weights", "logits"]),
    "hybrid": (["stage2/unit01/sum"], ["block00/attention/weights", "logits"]),
    "beit": (["block01/mlp/sum", "pooled"], ["block01/attention/weights", "logits"]),
    "clip": (["block01/mlp/sum", "pre_norm"], ["block01/attention/weights", "projected", "logits"]),
    "siglip": (
        ["block01/mlp/sum", "pooling/attended"],
        ["pooling/attention", "pooled", "logits"],
    ),
    "mixer": (["block01/token_mixing/hidden", "block01/channel_mixing/sum"], ["logits"]),
    "bit": (["stage2/unit01/sum"], ["logits"]),
}
# Branches of models with dropout.
DROPPED = {
    "vit": ["embedding", "block00/attention/branch", "block01/mlp/branch"],
    "beit": ["block00/attention/branch", "block01/mlp/branch"],
    "clip": ["embedding", "block00/attention/branch", "block01/mlp/branch"],
    "siglip": ["embedding", "block00/attention/branch", "block01/mlp/branch"],
    "mixer": ["embedding", "block00/token_mixing/branch", "block00/channel_mixing/branch"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_saves_exports_compiles_and_gives_submodels(name, images, tmp_path):
    # The other kinds of a class are of one block, and are exported with their taps alone.
    sizes = {} if name in MIXED or name.startswith("bit") else {"num_layers": 1}
    last = f"block{sizes.get('num_layers', 2) - 1:02d}/attention"
    model = tiny(name, without_skips=[SKIPS.get(name, last)], **sizes)
    error = 1e-3 if name.startswith(("bit", "hybrid")) else 1e-4
    oracles.randomize(model)
    close = {"rtol": error, "atol": error * np.abs(model(images)).max()}
    model.save(tmp_path / "model.keras")
    again = vit_tf.load_model(tmp_path / "model.keras")
    assert again.taps == model.taps
    assert again.get_config() | {"name": model.name} == model.get_config()
    np.testing.assert_array_equal(again(images), model(images))
    compiled = tf.function(model, jit_compile=True)(images)
    np.testing.assert_allclose(compiled, model(images), **close)
    if name in MIXED:
        model.export(tmp_path / "exported", verbose=False)
        exported = tf.saved_model.load(tmp_path / "exported")
        np.testing.assert_allclose(exported.serve(images), model(images), **close)
    features = vit_tf.submodel(model, "*")
    assert features.taps == model.taps and len(features.weights) == len(model.weights)
    features.export(tmp_path / "taps", verbose=False)
    features.save(tmp_path / "taps.keras")
    expected = model.intermediates(images)
    for path in (tmp_path / "taps", tmp_path / "taps.keras"):
        outputs = vit_tf.load_features(path)(images)
        assert tuple(outputs) == model.taps
        for tap, value in outputs.items():
            atol = error * np.abs(expected[tap]).max()
            np.testing.assert_allclose(value, expected[tap], error, atol, err_msg=tap)


@pytest.mark.parametrize(
    "name",
    [name if name == "vit" else pytest.param(name, marks=SLOW) for name in MIXED],
)
def test_mixed_precision_stays_close_and_keeps_what_it_must_in_float32(name, images, tmp_path):
    full, mixed = tiny(name), tiny(name, dtype="mixed_bfloat16")
    oracles.randomize(full)
    mixed.set_weights(full.get_weights())
    taps, expected = mixed.intermediates(images), full(images).numpy()
    halves, floats = MIXED[name]
    assert all(taps[tap].dtype == tf.bfloat16 for tap in halves)
    assert all(taps[tap].dtype == tf.float32 for tap in floats)
    np.testing.assert_allclose(taps["logits"], expected, atol=0.1 * np.abs(expected).max())
    mixed.save(tmp_path / "mixed.keras")
    again = vit_tf.load_model(tmp_path / "mixed.keras")
    np.testing.assert_array_equal(again(images), mixed(images))


@pytest.mark.parametrize("name", DROPPED)
def test_head_starts_at_zero_and_dropout_acts_in_training_only(name, images):
    model = tiny(name, dropout_rate=0.5)
    np.testing.assert_array_equal(model(images), np.zeros((2, 5)))
    dropped, plain = (model.intermediates(images, training=training) for training in (True, False))
    for tap in DROPPED[name]:
        assert 0.2 < np.mean(dropped[tap] == 0) < 0.8 and np.all(plain[tap] != 0), tap
    if "embedding" in DROPPED[name]:
        values, doubled = dropped["embedding"].numpy(), 2 * plain["embedding"].numpy()
        assert np.all((values == 0) | np.isclose(values, doubled, rtol=1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "beit", "mixer"])
def test_fit_learns(name, rng):
    """Under XLA one of them: that steps of all are the same is tested in `test_xla.py`."""
    keras.utils.set_random_seed(0)
    labels = rng.integers(0, 2, 64)
    images = (labels * 2 - 1)[:, None, None, None] + rng.normal(size=(64, 8, 8, 3))
    model = tiny(name, (8, 8, 3), patch_size=4, num_layers=1, num_classes=2)
    before = {weight.path: np.array(weight) for weight in model.trainable_weights}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], jit_compile=name == "vit"
    )
    model.run_eagerly = name != "vit"
    history = model.fit(images, labels, epochs=8, batch_size=32, verbose=0).history
    assert history["loss"][0] > history["loss"][-1]
    assert history["accuracy"][-1] > 0.9
    for weight in model.trainable_weights:
        assert np.any(before[weight.path] != np.asarray(weight)), weight.path
