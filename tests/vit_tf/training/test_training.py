"""Recipes against formulas; killed and resumed runs against undisturbed ones."""

import dataclasses
import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_runs import kill_at, make_data, make_model, read_log

from vit_tf import BiT, ViT, load_model
from vit_tf.distribute.strategies import strategy
from vit_tf.remote import PARTIAL
from vit_tf.training.recipes import Recipe, WarmupDecay
from vit_tf.training.runs import checkpointing, train

RECIPE = Recipe(epochs=5, learning_rate=0.01, warmup_epochs=1.5, ema=0.6, shift=1)


def run(directory, recipe=RECIPE, model=None, data=None, **kwargs):
    """Train in a folder; the model and the history."""
    model = model or make_model()
    return model, train(model, recipe, *(data or make_data()), directory, verbose=0, **kwargs)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Folder, model and history of a whole run."""
    directory = tmp_path_factory.mktemp("undisturbed")
    return directory, *run(directory)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 20])
def test_schedule_is_the_formula(decay, warmup):
    steps = np.array([0, 1, 10, 19, 20, 21, 60, 99, 100, 130])
    rates = [float(WarmupDecay(0.3, warmup, 100, decay)(step)) for step in steps]
    progress = np.clip((steps - warmup) / (100 - warmup), 0, 1)
    fall = (1 + np.cos(np.pi * progress)) / 2 if decay == "cosine" else 1 - progress
    expected = 0.3 * np.where(steps < warmup, steps / max(warmup, 1), fall)
    np.testing.assert_allclose(rates, expected, atol=1e-7)


def test_recipe_sets_the_schedule_in_epochs():
    schedule = Recipe(epochs=10, learning_rate=0.5, warmup_epochs=2.5).learning_rates(4)
    assert float(schedule(5)) == pytest.approx(0.25) and float(schedule(10)) == 0.5
    assert float(schedule(39)) > 0 and float(schedule(40)) == pytest.approx(0, abs=1e-8)
    assert Recipe(epochs=10).learning_rates(4).warmup_steps == 4


@pytest.mark.parametrize("kind", ["vit", "bit", "reloaded vit"])
def test_only_kernels_decay(kind, tmp_path):
    if kind == "bit":
        model = BiT((8, 8, 3), units=(1, 1), width_factor=0.5, num_classes=3)
    else:
        model = ViT((8, 8, 3), 4, 1, 2, 8, 16, num_classes=3)
    for variable in model.trainable_variables:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape) + 1)
    recipe = Recipe(epochs=2, learning_rate=0.1, warmup_epochs=0, weight_decay=0.3)
    recipe.compile(model, 4)
    model.optimizer.build(model.trainable_variables)
    if kind == "reloaded vit":
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    before = {v.path: v.numpy() for v in model.trainable_variables}
    zeros = [tf.zeros(v.shape) for v in model.trainable_variables]
    model.optimizer.apply(zeros, model.trainable_variables)
    names = set()
    for variable in model.trainable_variables:
        names.add(variable.name)
        shrunk = before[variable.path].astype(float) * (1 - 0.1 * 0.3)
        expected = shrunk if variable.name == "kernel" else before[variable.path]
        np.testing.assert_allclose(variable.numpy(), expected, rtol=3e-7, err_msg=variable.path)
        if variable.name != "kernel":
            np.testing.assert_array_equal(variable.numpy(), before[variable.path])
    expected = {"kernel", "bias", "gamma", "beta"}
    assert names == expected | (set() if kind == "bit" else {"prefix", "positions"})


def test_recipe_is_a_dict_and_back():
    recipe = Recipe(epochs=7, ema=0.9, rand_augment={"magnitude": 0.2})
    assert Recipe(**json.loads(json.dumps(dataclasses.asdict(recipe)))) == recipe


@pytest.mark.parametrize(
    "field, value",
    [
        ("epochs", 0),
        ("learning_rate", 0.0),
        ("warmup_epochs", 100),
        ("schedule", "cosin"),
        ("weight_decay", -1.0),
        ("label_smoothing", 1.0),
        ("clip_norm", 0.0),
        ("ema", 1.0),
        ("mixup", -0.1),
    ],
)
def test_recipe_refuses(field, value):
    with pytest.raises(ValueError, match=f"{field}.*Received: .*{value}"):
        Recipe(**{field: value})


@pytest.mark.slow
def test_run_learns_and_writes_its_files(undisturbed):
    directory, _, history = undisturbed
    assert history["val_accuracy"][-1] > 0.6 and history["loss"][-1] < history["loss"][0]
    rows = read_log(directory)
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4", "5"]
    for name, values in history.items():
        assert [float(row[name]) for row in rows] == values
    best = load_model(directory / "best.keras")
    RECIPE.compile(best, 1)
    accuracy = best.evaluate(make_data()[1], verbose=0, return_dict=True)["accuracy"]
    assert accuracy == pytest.approx(max(history["val_accuracy"]))
    assert {path.name for path in (directory / "tensorboard").iterdir()} == {"train", "validation"}
    assert os.listdir(directory / "state") == ["epoch-0005.npz"]


@pytest.mark.slow
def test_returned_weights_are_the_average_over_steps():
    steps = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: steps.append(model.get_weights())
    )
    plain = dataclasses.replace(RECIPE, epochs=2, warmup_epochs=0, ema=None, shift=0)
    model = make_model()
    plain.compile(model, 5)
    model.fit(make_data()[0], epochs=2, verbose=0, shuffle=False, callbacks=[record])
    average = steps[0]
    for weights in steps[1:]:
        average = [0.6 * a + 0.4 * w for a, w in zip(average, weights, strict=True)]

    model = make_model()
    averaged = dataclasses.replace(plain, ema=0.6)
    averaged.compile(model, 5)
    validate = {"validation_data": make_data()[1], "callbacks": [keras.callbacks.SwapEMAWeights()]}
    model.fit(make_data()[0], epochs=2, verbose=0, shuffle=False, **validate)
    trainable = [v.numpy() for v in model.trainable_variables]
    for a, w in zip(average, trainable, strict=True):
        np.testing.assert_allclose(w, a, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, call",
    [("on_train_batch_end", 2), ("on_train_batch_end", 13), ("write_log", 3), ("save_state", 5)],
)
def test_resumed_run_is_the_undisturbed_one(undisturbed, tmp_path, monkeypatch, method, call):
    _, model, history = undisturbed
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        kill_at(context, method, call)
        run(tmp_path)
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / f"{PARTIAL}epoch-0009.npz").write_bytes(b"half")
    resumed, again = run(tmp_path)
    for w, v in zip(resumed.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(w, v, atol=1e-6)
    assert {k: pytest.approx(v, abs=1e-6) for k, v in history.items()} == again
    assert [row["epoch"] for row in read_log(tmp_path)] == ["1", "2", "3", "4", "5"]
    assert os.listdir(tmp_path / "state") == ["epoch-0005.npz"]


@pytest.mark.slow
def test_logs_of_an_epoch_are_on_the_disk_before_its_state(tmp_path, monkeypatch):
    real, sizes = checkpointing.save_state, []

    def save(*args):
        paths = sorted((tmp_path / "tensorboard").glob("*/*tfevents*"))
        sizes.append([path.stat().st_size for path in paths])
        real(*args)

    monkeypatch.setattr(checkpointing, "save_state", save)
    run(tmp_path, dataclasses.replace(RECIPE, epochs=2))
    assert np.shape(sizes) == (2, 2) and (np.diff(sizes, axis=0) > 0).all()


@pytest.mark.slow
def test_finished_run_is_only_loaded_and_says_so(undisturbed, caplog):
    directory, model, history = undisturbed
    before = os.stat(directory / "best.keras")
    loaded, again = run(directory)
    (record,) = [record for record in caplog.records if record.name == "vit_tf.training"]
    assert record.getMessage().startswith(f"The run in '{directory}' is finished; it is loaded")
    assert again == history and os.stat(directory / "best.keras") == before
    for w, v in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(w, v)


@pytest.mark.slow
def test_run_on_two_replicas_resumes(tmp_path, monkeypatch):
    recipe = dataclasses.replace(RECIPE, epochs=2)
    with strategy("mirrored").scope():
        model, history = run(tmp_path / "whole", recipe, data=make_data(4))
        with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
            kill_at(context, "on_train_batch_end", 15)
            run(tmp_path / "killed", recipe, data=make_data(4))
        resumed, again = run(tmp_path / "killed", recipe, data=make_data(4))
    assert resumed.distribute_strategy.num_replicas_in_sync == 2
    assert {k: pytest.approx(v, abs=1e-6) for k, v in history.items()} == again
    for w, v in zip(resumed.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(w, v, atol=1e-6)


@pytest.mark.slow
def test_two_replicas_that_share_a_batch_unevenly_train_as_one_device(tmp_path):
    trained, recipe = {}, dataclasses.replace(RECIPE, shift=0)  # which draws anew in each epoch
    for name in ("none", "mirrored"):
        with strategy(name).scope():
            data = make_data()[1].unbatch().take(19).batch(8)  # the last batch has 3 examples
            data = data.apply(tf.data.experimental.assert_cardinality(3))
            layers = [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)]
            model, _ = run(tmp_path / name, recipe, keras.Sequential(layers), (data, data))
        trained[name] = model.get_weights()
    for w, v in zip(*trained.values(), strict=True):
        np.testing.assert_allclose(w, v, atol=1e-5)


def test_another_configuration_is_refused(undisturbed):
    directory, *_ = undisturbed
    recipe = dataclasses.replace(RECIPE, learning_rate=0.02)
    with pytest.raises(ValueError, match=r"recipe.learning_rate: 0.01 there, 0.02 now$"):
        run(directory, recipe)
    with pytest.raises(ValueError, match=r"data.name: 'absent' there, 'other' now"):
        run(directory, description={"name": "other"})
    with pytest.raises(ValueError, match=r"model.config.layers"):
        run(directory, model=make_model(units=9))
    with pytest.raises(ValueError, match=r"steps_per_epoch: 5 there, 3 now"):
        run(directory, data=make_data(batch_size=16))


@pytest.fixture
def copy(undisturbed, tmp_path):
    """A copy of the undisturbed run's state; its folder and the path of the state."""
    path = tmp_path / "state" / "epoch-0005.npz"
    path.parent.mkdir()
    path.write_bytes((undisturbed[0] / "state" / "epoch-0005.npz").read_bytes())
    configuration = (undisturbed[0] / "configuration.json").read_text()
    (tmp_path / "configuration.json").write_text(configuration)
    return tmp_path, path


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "text"])
def test_damaged_state_is_refused(copy, damage):
    directory, path = copy
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    whole = path.read_bytes()
    damaged = {
        "truncated": whole[:-200],
        "empty": b"",
        "flipped": bytes(content),
        "text": b"x" * 99,
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match=r"epoch-0005.npz.*damaged"):
        run(directory)


def test_foreign_state_loads_nothing(copy):
    directory, _ = copy
    model = make_model(units=9)
    RECIPE.compile(model, 5)
    model.optimizer.build(model.trainable_variables)
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"epoch-0005.npz.*this model"):
        checkpointing.restore_state(model, str(directory))
    for w, v in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(w, v)
    (directory / "configuration.json").unlink()
    with pytest.raises(ValueError, match=r"configuration.json"):
        run(directory)


def test_state_keeps_bfloat16_bit_for_bit(tmp_path):
    def compiled():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, dtype="bfloat16")])
        RECIPE.compile(model, 2)
        model.optimizer.build(model.trainable_variables)
        return model

    model, other = compiled(), compiled()
    checkpointing.save_state(model, {"loss": [1.0]}, str(tmp_path))
    assert not np.array_equal(model.layers[0].kernel, other.layers[0].kernel)
    assert checkpointing.restore_state(other, str(tmp_path)).history == {"loss": [1.0]}
    assert other.layers[0].kernel.dtype == "bfloat16"
    np.testing.assert_array_equal(model.layers[0].kernel, other.layers[0].kernel)


@pytest.mark.slow
def test_loss_that_is_not_finite_ends_the_run(tmp_path):
    passes = []

    def examples():
        passes.append(0)
        value = np.nan if len(passes) > 2 else 0.5
        for label in range(3):
            yield np.full((2, 4, 4, 1), value, "float32"), np.full(2, label, "int32")

    images, labels = tf.TensorSpec((None, 4, 4, 1)), tf.TensorSpec((None,), tf.int32)
    data = tf.data.Dataset.from_generator(examples, output_signature=(images, labels))
    data = data.apply(tf.data.experimental.assert_cardinality(3))
    recipe = Recipe(epochs=4)
    with pytest.raises(ValueError, match=r"finite. Received: loss=nan in epoch 3"):
        run(tmp_path, recipe, data=(data, make_data()[1]))
    assert os.listdir(tmp_path / "state") == ["epoch-0002.npz"]
    assert len(read_log(tmp_path)) == 2
    model = make_model()
    recipe.compile(model, 3)
    model.optimizer.build(model.trainable_variables)
    assert len(checkpointing.restore_state(model, str(tmp_path)).history["loss"]) == 2
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.slow
def test_bad_input_is_refused(tmp_path):
    data, validation = make_data()
    wrong = data.map(lambda images, labels: (images, labels + 1))
    with pytest.raises(ValueError, match=r"\[0, 3\).*Received: 3"):
        run(tmp_path, data=(wrong, validation))
    with pytest.raises(ValueError, match="finite length"):
        run(tmp_path, data=(data.take(0), validation))
    with pytest.raises(ValueError, match="built"):
        run(tmp_path, model=keras.Sequential([keras.layers.Dense(3)]))
    assert not (tmp_path / "state").exists()
