"""Runs that are stopped within an epoch go on there; nothing is read ahead of the first step."""

import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from counted_digits import count_decoding
from resume_worker import Kill, make_run, run
from training_runs import kill_at, make_data, make_model, newest_state

from vit_tf.training import checkpointing
from vit_tf.training.recipes import Recipe
from vit_tf.training.runs import _between, train

pytestmark = pytest.mark.usefixtures("without_xla")

STEPS = 4  # in each of 3 epochs of 60 images in batches of 16, validated on 20


class Stopped(Exception):
    """What SIGTERM raises in the tests that send it."""


@pytest.fixture
def sigterm():
    """SIGTERM raises `Stopped`."""

    def stop(number, frame):
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    yield
    assert signal.signal(signal.SIGTERM, before) is stop


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights and the history of a run with all quick augmentations, and a moving average."""
    return run("fast", tmp_path_factory.mktemp("whole"))


def same(found, expected):
    weights, history = found
    pairs = zip(weights, expected[0], strict=True)
    return all(np.array_equal(a, b) for a, b in pairs) and history == expected[1]


@pytest.mark.slow
def test_a_killed_run_resumes_at_the_last_state_and_decodes_nothing_twice(
    tmp_path, monkeypatch, whole
):
    """Killed two steps after the end of an epoch, and again two steps after a state within one."""
    decoded = count_decoding(monkeypatch)
    for batches, save_every, state in ((10, None, "epoch-0002"), (3, 3, "epoch-0002-step-000001")):
        with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
            kill_at(context, "on_train_batch_end", batches)
            run("fast", tmp_path, save_every=save_every)
        assert newest_state(tmp_path) == f"{state}.npz"
    decoded.clear()
    assert same(run("fast", tmp_path, save_every=3), whole)
    assert len(decoded) == len(set(decoded)) == 60 - 16 + 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "batches, validation, state, left",
    [
        (7, False, "epoch-0001-step-000003", 2 * 60 - 48 + 2 * 20),
        (8, False, "epoch-0001-step-000004", 60 + 2 * 20),
        (3, True, "epoch-0001-step-000004", 60 + 2 * 20),
        (12, False, "epoch-0002-step-000004", 20),
    ],
)
def test_a_run_that_sigterm_ended_resumes(
    tmp_path, monkeypatch, sigterm, whole, batches, validation, state, left
):
    with pytest.raises(Stopped):
        run("fast", tmp_path, [Kill(batches, signal.SIGTERM, validation)])
    assert newest_state(tmp_path) == f"{state}.npz"
    decoded = count_decoding(monkeypatch)
    assert same(run("fast", tmp_path), whole)
    assert len(decoded) == left


@pytest.mark.slow
def test_fine_tuning_resumes_within_a_round_and_after_one(tmp_path, monkeypatch, sigterm):
    expected, folder = run("fine-tuning", tmp_path / "whole"), tmp_path / "stopped"
    with pytest.raises(Stopped):
        run("fine-tuning", folder, [Kill(10, signal.SIGTERM)])
    assert newest_state(folder) == "epoch-0001-step-000004.npz"
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        kill_at(context, "on_train_batch_end", 4)
        run("fine-tuning", folder)
    assert newest_state(folder) == "epoch-0002.npz"
    assert same(run("fine-tuning", folder), expected)


@pytest.mark.slow
def test_resumed_pretraining_has_the_undisturbed_weights_bit_for_bit(tmp_path, monkeypatch):
    expected, folder = run("masks", tmp_path / "whole"), tmp_path / "killed"
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        kill_at(context, "on_train_batch_end", 10)
        run("masks", folder)
    assert newest_state(folder) == "epoch-0002.npz"
    assert same(run("masks", folder), expected)


@pytest.mark.slow
def test_a_program_that_outlives_sigterm_trains_on(tmp_path, whole):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        kills = [Kill(6, signal.SIGTERM), Kill(2, signal.SIGTERM, validation=True)]
        assert same(run("fast", tmp_path, kills), whole)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(heard) == 2


@pytest.mark.slow
def test_more_steps_in_one_call_resume_within_an_epoch(tmp_path, sigterm):
    def run_by(steps, folder, callbacks=()):
        model = make_model()
        recipe = Recipe(epochs=2, learning_rate=0.01)
        more = {"steps_per_execution": steps, "callbacks": callbacks, "save_every": 3}
        history = train(model, recipe, *make_data(4), folder, verbose=0, **more)
        return model.get_weights(), history

    expected = run_by(5, tmp_path / "whole")  # of 10 steps
    with pytest.raises(Stopped):
        run_by(5, tmp_path / "run", [Kill(1, signal.SIGTERM)])
    assert newest_state(tmp_path / "run") == "epoch-0000-step-000005.npz"
    assert same(run_by(5, tmp_path / "run"), expected)


@pytest.mark.slow
def test_nothing_is_decoded_before_the_first_step(tmp_path, monkeypatch, whole):
    decoded, before, trained = count_decoding(monkeypatch), [], {}
    note = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: before.append(len(decoded)))
    for name in ("none", "fine-tuning"):
        decoded.clear()
        trained[name], _ = run(name, tmp_path / name, [note])
        assert len(decoded) > 180
    assert before == [0, 0]
    # So that what is resumed above is not without its augmentations.
    assert not all(map(np.array_equal, trained["none"], whole[0]))


def test_data_of_unknown_length_are_not_counted(tmp_path):
    passes = []

    def examples():
        passes.append(0)
        yield np.zeros((2, 4, 4, 1), "float32"), np.zeros(2, "int32")

    spec = (tf.TensorSpec((None, 4, 4, 1)), tf.TensorSpec((None,), tf.int32))
    data = tf.data.Dataset.from_generator(examples, output_signature=spec)
    with pytest.raises(ValueError, match=r"finite length.*assert_cardinality"):
        train(make_model(), Recipe(epochs=1), data, data, tmp_path, verbose=0)
    assert not passes


def with_label(dataset, place, label):
    """A data set whose batch at a place has a label of another value."""

    def change(number, batch):
        images, labels = batch
        first = tf.concat([[label], labels[1:]], 0)
        return images, tf.where(number == place, first, labels)

    return dataset.enumerate().map(change)


@pytest.mark.slow
def test_a_wrong_label_is_named_where_it_comes_and_nothing_is_lost(tmp_path):
    recipe = Recipe(epochs=2, learning_rate=0.01, ema=0.6)

    def run_on(data, validation, folder):
        model = make_model()
        history = train(model, recipe, data, validation, folder, verbose=0, save_every=2)
        return model.get_weights(), history

    data, validation = make_data()  # 5 batches; each iteration has an order of its own
    expected = run_on(data, validation, tmp_path / "whole")
    data, validation = make_data()
    message = r"^Expected labels of the training data to be in \[0, 3\).*Received: 7$"
    with pytest.raises(ValueError, match=message):
        run_on(with_label(data, 3, 7), validation, tmp_path / "run")
    assert newest_state(tmp_path / "run") == "epoch-0000-step-000002.npz"
    data, validation = make_data()
    message = r"^Expected labels of the validation data to be in \[0, 3\).*Received: -1$"
    with pytest.raises(ValueError, match=message):
        run_on(data, with_label(validation, 1, -1), tmp_path / "run")
    assert newest_state(tmp_path / "run") == "epoch-0000-step-000005.npz"
    data, validation = make_data()
    assert same(run_on(data, validation, tmp_path / "run"), expected)


@pytest.mark.slow
def test_save_every_is_checked(tmp_path):
    model, recipe, *data = make_run("none")
    with pytest.raises(ValueError, match=r"save_every to be at least 1. Received: save_every=0"):
        train(model, recipe, *data, tmp_path, save_every=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "fast", "masks"])
def test_a_run_resumes_in_the_order_of_its_epoch_without_reading_earlier_ones(name, monkeypatch):
    """Of 3 epochs and 2 steps; no iterator of Python is made for them, and nothing is decoded."""

    def load():
        _, recipe, training, _ = make_run(name)
        return recipe.augment_batches(training, 10)

    def arrays(dataset):
        batches = [tf.nest.flatten(batch) for batch in dataset]
        return [[part.numpy() for part in batch] for batch in batches]

    decoded = count_decoding(monkeypatch)
    whole = load()
    expected = [batch for _ in range(5) for batch in arrays(whole)][3 * STEPS + 2 :]
    resumed = load()
    decoded.clear()
    made = []
    begin = tf.data.Dataset.__iter__
    monkeypatch.setattr(tf.data.Dataset, "__iter__", lambda self: made.append(0) or begin(self))
    found = arrays(_between(resumed, 3 * STEPS + 2, 5 * STEPS, STEPS))
    assert len(made) == 1 and len(decoded) == 60 - 2 * 16 + 60
    assert len(found) == len(expected) == 6
    for one, other in zip(found, expected, strict=True):
        for part, expected_part in zip(one, other, strict=True):
            np.testing.assert_array_equal(part, expected_part)


def test_a_signal_that_arrives_while_the_workers_are_asked_is_kept(monkeypatch):
    heard, during = [], [signal.SIGTERM]

    def ask(signalled):  # the signal comes after this worker has said what it knows
        if during:
            signal.raise_signal(during.pop())
        return np.array([signalled])

    monkeypatch.setattr(checkpointing, "of_every_worker", ask)
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with checkpointing.Preemption() as preemption:
            assert not preemption.requested()  # as the other workers were told
            assert preemption.requested() and not heard
        assert heard == [1]
    finally:
        signal.signal(signal.SIGTERM, before)
