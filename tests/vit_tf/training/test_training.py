"""Recipes against formulas; killed and resumed runs against undisturbed ones."""

import contextlib
import dataclasses
import errno
import io
import json
import os
import shutil
import threading
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from image_folders import flat_folder
from training_runs import (
    assert_same_weights,
    kill_at,
    make_data,
    make_model,
    newest_state,
    read_log,
)

import vit_tf
from vit_tf import load_model
from vit_tf.data.files import PARTIAL
from vit_tf.distribute.strategies import strategy
from vit_tf.training.optimizers import Muon
from vit_tf.training.recipes import Recipe
from vit_tf.training.runs import checkpointing, train

pytestmark = pytest.mark.usefixtures("without_xla")

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


@pytest.mark.slow
def test_run_learns_and_writes_its_files(undisturbed):
    directory, _, history = undisturbed
    assert history["val_accuracy"][-1] > 0.6 and history["loss"][-1] < history["loss"][0]
    rows = read_log(directory)
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4", "5"]
    for name, values in history.items():
        assert [float(row[name]) for row in rows] == values
    best = load_model(directory / "best.keras")
    with zipfile.ZipFile(directory / "best.keras") as file:
        assert not json.loads(file.read("config.json")).get("compile_config")
        with h5py.File(io.BytesIO(file.read("model.weights.h5"))) as weights:
            assert "optimizer" not in weights
    RECIPE.compile(best, 1)
    accuracy = best.evaluate(make_data()[1], verbose=0, return_dict=True)["accuracy"]
    assert accuracy == pytest.approx(max(history["val_accuracy"]))
    assert {path.name for path in (directory / "tensorboard").iterdir()} == {"train", "validation"}
    assert sorted(os.listdir(directory / "state")) == ["epoch-0004.npz", "epoch-0005.npz"]


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
def test_an_average_of_weights_of_mixed_float16(tmp_path):
    """Keras wraps the optimizer, which holds the average, in one that scales the loss."""
    steps = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: steps.append(
            [v.numpy() for v in model.trainable_variables]
        )
    )
    recipe = dataclasses.replace(RECIPE, epochs=2)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = make_model()
    finally:
        keras.config.set_dtype_policy("float32")
    run(tmp_path, recipe, model, callbacks=[record])
    assert type(model.optimizer).__name__ == "LossScaleOptimizer"
    average = steps[0]
    for weights in steps[1:]:
        average = [0.6 * a + 0.4 * w for a, w in zip(average, weights, strict=True)]
    for expected, variable in zip(average, model.trainable_variables, strict=True):
        np.testing.assert_allclose(variable, expected, atol=1e-5)


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
    (tmp_path / "state" / f"{PARTIAL}0123456789abcdef.npz").write_bytes(b"half")
    resumed, again = run(tmp_path)
    assert_same_weights(resumed, model, 1e-6)
    assert {k: pytest.approx(v, abs=1e-6) for k, v in history.items()} == again
    assert [row["epoch"] for row in read_log(tmp_path)] == ["1", "2", "3", "4", "5"]
    assert sorted(os.listdir(tmp_path / "state")) == ["epoch-0004.npz", "epoch-0005.npz"]


@pytest.mark.slow
def test_states_hold_the_values_at_their_times_though_they_are_written_later(tmp_path):
    model = make_model()
    RECIPE.compile(model, 3)
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    writer, gate = checkpointing.BackgroundWriter(), threading.Event()
    writer.submit(gate.wait)
    expected = []

    def save():
        expected.append([np.array(v.numpy()) for v in variables])
        history = {"loss": [1.0] * len(expected)}
        checkpointing.save_state(model, history, tmp_path, keep=3, writer=writer)

    def change():
        # Every way in which a training changes a variable: a compiled step and single operations.
        model.fit(make_data()[0], epochs=1, verbose=0)
        for variable in variables:
            value = keras.ops.convert_to_numpy(variable.value)
            if keras.backend.backend() == "tensorflow" and value.ndim:
                rows = tf.IndexedSlices(np.ones((1, *value.shape[1:]), value.dtype), [0])
                variable.value.scatter_add(rows)
            variable.assign(value + np.ones((), value.dtype))
            variable.assign_add(np.ones(variable.shape, value.dtype))

    save()
    change()
    timer = threading.Timer(1, gate.set)  # a third one waits for the first
    timer.start()
    save()
    change()
    writer.finish()
    for number, values in enumerate(expected, start=1):
        path = tmp_path / "state" / f"epoch-{number:04d}.npz"
        for one, other in zip(checkpointing._read_state(path)[1], values, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "files, is_refused",
    [
        ({"log.csv": "day,mood"}, True),
        ({"best.keras": "mine"}, True),
        ({"configuration.json": '{"recipe": {}, "model": {}}', "log.csv": "epoch"}, False),
        ({"notes.txt": "mine", "configuration.txt": ""}, False),
    ],
)
def test_files_of_the_user_are_not_replaced_by_a_run(tmp_path, files, is_refused):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    raises = pytest.raises(ValueError, match=f"holds {next(iter(files))}, which no run wrote")
    with raises if is_refused else contextlib.nullcontext():
        checkpointing.check_configuration({}, str(tmp_path))


@pytest.mark.slow
def test_logs_of_an_epoch_are_on_the_disk_before_its_state(tmp_path, monkeypatch):
    real, sizes = checkpointing.save_state, []

    def save(*args, **how):
        paths = sorted((tmp_path / "tensorboard").glob("*/*tfevents*"))
        sizes.append([path.stat().st_size for path in paths])
        real(*args, **how)

    monkeypatch.setattr(checkpointing, "save_state", save)
    run(tmp_path, dataclasses.replace(RECIPE, epochs=2))
    assert np.shape(sizes) == (2, 2) and (np.diff(sizes, axis=0) > 0).all()


@pytest.mark.slow
def test_a_finished_run_is_loaded_and_logged(undisturbed, caplog):
    directory, model, history = undisturbed
    before = os.stat(directory / "best.keras")
    loaded, again = run(directory)
    (record,) = [record for record in caplog.records if record.name == "vit_tf.training"]
    assert record.getMessage().startswith(f"The run in '{directory}' is finished; it is loaded")
    assert again == history and os.stat(directory / "best.keras") == before
    assert_same_weights(loaded, model)


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
    assert_same_weights(resumed, model, 1e-6)


@pytest.mark.slow
def test_a_run_resumes_within_an_accumulation_of_gradients(tmp_path, monkeypatch):
    """After 7 of 10 batches, where each 3 are one update."""
    recipe = dataclasses.replace(RECIPE, epochs=2, warmup_epochs=0, shift=0)
    recipe = dataclasses.replace(recipe, gradient_accumulation_steps=3)
    model, history = run(tmp_path / "whole", recipe)
    assert int(model.optimizer.iterations) == 3
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        kill_at(context, "on_train_batch_end", 8)
        run(tmp_path / "killed", recipe, save_every=1)
    assert newest_state(tmp_path / "killed") == "epoch-0001-step-000002.npz"
    resumed, again = run(tmp_path / "killed", recipe, save_every=1)
    assert again == history
    assert_same_weights(resumed, model)


@pytest.mark.slow
def test_a_run_with_muon_resumes_bit_for_bit(tmp_path, monkeypatch):
    """Killed in a step, with an average of weights, and gradients of two batches an update."""
    settings = {"optimizer": "muon", "epochs": 2, "ema": 0.6, "gradient_accumulation_steps": 2}
    recipe = Recipe(layer_decay=0.5, learning_rate=0.01, warmup_steps=0, **settings)

    def run(folder):
        keras.utils.set_random_seed(3)
        data = make_data()
        model = vit_tf.ViT((4, 4, 1), 2, 1, 2, 8, 16, 3, dropout_rate=0.2)
        return model, train(model, recipe, *data, folder, verbose=0, save_every=1)

    model, history = run(tmp_path / "uninterrupted")
    assert isinstance(model.optimizer, Muon) and model.optimizer.momentum == 0.95
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        kill_at(context, "on_train_batch_end", 8)
        run(tmp_path / "killed")
    assert newest_state(tmp_path / "killed") == "epoch-0001-step-000002.npz"
    resumed, again = run(tmp_path / "killed")
    assert again == history
    assert_same_weights(resumed, model)


def test_another_configuration_is_refused(undisturbed):
    directory, *_ = undisturbed
    recipe = dataclasses.replace(RECIPE, learning_rate=0.02)
    with pytest.raises(ValueError, match=r"recipe.learning_rate: 0.01 there, 0.02 now$"):
        run(directory, recipe)
    with pytest.raises(ValueError, match=r"data.name: 'absent' there, 'other' now"):
        run(directory, description={"name": "other"})
    with pytest.raises(ValueError, match=r"model.config.layers"):
        run(directory, model=make_model(units=9))
    with pytest.raises(ValueError, match=r"replicas: 1 there, 2 now"), strategy("mirrored").scope():
        run(directory)
    with pytest.raises(ValueError, match=r"steps_per_epoch: 5 there, 3 now"):
        run(directory, data=make_data(batch_size=16))


@pytest.mark.slow
def test_images_that_are_removed_between_two_starts_raise(tmp_path, rng):
    root = flat_folder(tmp_path / "photos", rng, (10, 10))
    recipe = Recipe(epochs=1, flip=True)

    def train_on(folder):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
        model.add(keras.layers.Dense(2))
        splits = vit_tf.data.load(folder, image_size=8, batch_size=4)
        return train(model, recipe, *splits, tmp_path / "run", verbose=0)

    history = train_on(root)
    root = root.rename(tmp_path / "moved")
    assert train_on(root) == history
    victim = sorted((root / "bee").iterdir())[0]
    content = victim.read_bytes()
    victim.unlink()
    with pytest.raises(ValueError, match=r"images\.training\.number: 16 there, 15 now"):
        train_on(root)
    victim.with_name("other.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"images\.training\.names"):
        train_on(root)


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
def test_a_corrupt_state_is_refused(copy, damage):
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
    with pytest.raises(ValueError, match=r"epoch-0005.npz.*corrupt"):
        run(directory)


@pytest.mark.slow
def test_a_corrupt_state_gives_way_to_the_one_before(undisturbed, tmp_path, caplog):
    whole, model, history = undisturbed
    shutil.copytree(whole, tmp_path / "run")
    newest = tmp_path / "run" / "state" / "epoch-0005.npz"
    newest.write_bytes(newest.read_bytes()[:-200])
    resumed, again = run(tmp_path / "run")
    messages = [record.getMessage() for record in caplog.records]
    assert any("epoch-0005.npz" in text and "corrupt" in text for text in messages)
    assert any("resumes" in text and "epoch-0004.npz" in text for text in messages)
    assert {k: pytest.approx(v, abs=1e-6) for k, v in history.items()} == again
    assert_same_weights(resumed, model, 1e-6)
    with np.load(newest) as rewritten, np.load(whole / "state" / "epoch-0005.npz") as expected:
        assert rewritten.files == expected.files


@pytest.mark.slow
def test_keep_states_is_the_number_of_saved_states(tmp_path):
    recipe = dataclasses.replace(RECIPE, epochs=3, warmup_epochs=0)
    run(tmp_path / "one", recipe, keep_states=1)
    run(tmp_path / "three", recipe, keep_states=3, save_every=2)
    names = {path.name: sorted(os.listdir(path / "state")) for path in tmp_path.iterdir()}
    assert names["one"] == ["epoch-0003.npz"]
    # Of 15 steps, states are saved after each epoch of 5 and after steps 2, 4, 6, ...
    assert names["three"] == [
        "epoch-0002-step-000002.npz",
        "epoch-0002-step-000004.npz",
        "epoch-0003.npz",
    ]
    with pytest.raises(ValueError, match="keep_states"):
        run(tmp_path / "none", recipe, keep_states=0)


@pytest.mark.slow
def test_training_continues_while_a_state_is_written(tmp_path, monkeypatch):
    """The writer of the first state waits for later steps; each state is of its own step."""
    stepped, real, waited = threading.Event(), np.savez, []

    def slow(path, **arrays):
        waited.append(waited or stepped.wait(60))
        real(path, **arrays)

    monkeypatch.setattr(np, "savez", slow)
    weights = {}

    def note(batch, logs):
        weights[batch + 1] = [v.numpy() for v in model.variables]
        if batch == 3:
            stepped.set()

    model, recipe = make_model(), dataclasses.replace(RECIPE, epochs=1, warmup_epochs=0, ema=None)
    record = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    run(tmp_path, recipe, model, callbacks=[record], save_every=2, keep_states=9)
    assert waited[0] is True
    with np.load(tmp_path / "state" / "epoch-0000-step-000002.npz") as state:
        for i, expected in enumerate(weights[2]):
            np.testing.assert_array_equal(state[f"v{i:05d}"], expected)


@pytest.mark.slow
def test_a_state_that_cannot_be_written_ends_the_run(tmp_path, monkeypatch):
    def full(path, **arrays):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context, pytest.raises(OSError, match="No space left"):
        context.setattr(np, "savez", full)
        run(tmp_path)
    assert len(run(tmp_path)[1]["loss"]) == 5


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
    model, recipe = make_model(), Recipe(epochs=4)
    kernel = model.layers[1].kernel

    def break_third(epoch, logs):
        if epoch == 2:
            kernel.assign(np.nan * kernel)

    breaking = keras.callbacks.LambdaCallback(on_epoch_begin=break_third)
    with pytest.raises(ValueError, match=r"became nan in epoch 3"):
        run(tmp_path, recipe, model, callbacks=[breaking])
    assert newest_state(tmp_path) == "epoch-0002.npz"
    assert len(read_log(tmp_path)) == 2
    model = make_model()
    recipe.compile(model, 5)
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
