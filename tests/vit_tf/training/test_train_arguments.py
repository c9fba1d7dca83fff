"""Batch sizes, optimizers and weights of classes that `train` takes; runs that are extended."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_runs import assert_same_weights, kill_at, make_data, make_model, read_log

import vit_tf

pytestmark = pytest.mark.usefixtures("without_xla")

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (40, 4, 4, 1)).astype("float32")
LABELS = RNG.integers(3, size=40).astype("int32")
WEIGHTS = RNG.uniform(0, 2, 40).astype("float32")
RECIPE = vit_tf.Recipe(epochs=2, learning_rate=0.01, warmup_epochs=0, label_smoothing=0.0)


def make_linear():
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])


def descend(kernel, bias, rate):
    """A step of gradient descent of softmax regression on all images: mean losses and weights."""
    images = IMAGES.reshape(len(IMAGES), -1).astype(np.float64)
    scores = np.exp(images @ kernel + bias)
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    errors = (probabilities - np.eye(3)[LABELS]) / len(images)
    losses = -np.log(probabilities[np.arange(len(images)), LABELS])
    return losses, kernel - rate * images.T @ errors, bias - rate * errors.sum(axis=0)


@pytest.mark.parametrize("ema", [None, pytest.param(0.75, marks=pytest.mark.slow)])
def test_an_optimizer_of_the_user_on_arrays_of_one_batch_is_gradient_descent(tmp_path, ema):
    """Two steps in float64; an average of weights begins with those after the first step."""
    model = make_linear()
    _, *first = descend(*(np.asarray(w, np.float64) for w in model.get_weights()), 0.5)
    _, *second = descend(*first, 0.5)
    expected = second
    if ema:
        expected = [ema * one + (1 - ema) * two for one, two in zip(first, second, strict=True)]

    def train(rate):
        optimizer = keras.optimizers.SGD(rate, use_ema=ema is not None, ema_momentum=ema or 0.5)
        settings = {"batch_size": 40, "optimizer": optimizer, "verbose": 0}
        return vit_tf.train(model, RECIPE, (IMAGES, LABELS), None, tmp_path, **settings)

    history = train(0.5)
    assert history["learning_rate"] == [0.5, 0.5] and int(model.optimizer.iterations) == 2
    for found, weights in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, weights, atol=1e-6)
    with pytest.raises(ValueError, match=r"optimizer.config.learning_rate: 0.5 there, 0.25 now$"):
        train(0.25)


@pytest.mark.parametrize("soft", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_weights_of_classes_multiply_those_of_examples_in_training_only(tmp_path, soft):
    model = make_linear()
    losses, *_ = descend(*(np.asarray(w, np.float64) for w in model.get_weights()), 0.0)
    labels = np.eye(3, dtype="float32")[LABELS] if soft else LABELS
    history = vit_tf.train(
        model,
        dataclasses.replace(RECIPE, epochs=1),
        (IMAGES, labels, WEIGHTS),
        (IMAGES, labels),
        tmp_path,
        batch_size=40,
        optimizer=keras.optimizers.SGD(1e-12),  # the validation has the weights of the training
        class_weight={0: 5.0, 2: 0.25},
        verbose=0,
    )
    weights = np.array([5.0, 1.0, 0.25])[LABELS] * WEIGHTS
    assert history["loss"] == [pytest.approx(np.mean(weights * losses), rel=1e-5)]
    assert history["val_loss"] == [pytest.approx(np.mean(losses), rel=1e-5)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weight": {3: 1.0}}, r"class_weight to map classes from 0 to 2.*\{3: 1.0\}"),
        ({"class_weight": {"cat": 1.0}}, "class_weight to map classes"),
        ({"batch_size": 0}, "batch_size to be at least 1. Received: batch_size=0"),
    ],
)
def test_other_arguments_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        vit_tf.train(make_linear(), RECIPE, (IMAGES, LABELS), None, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_data_set_has_its_own_batches(tmp_path):
    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(8)
    with pytest.raises(ValueError, match=r"already has batches.*batch_size=8 for the train"):
        vit_tf.train(make_linear(), RECIPE, data, None, tmp_path, batch_size=8)
    with pytest.raises(ValueError, match=r"batch_size=8 for the validation data"):
        vit_tf.train(make_linear(), RECIPE, (IMAGES, LABELS), data, tmp_path, batch_size=8)


def run(folder, epochs, schedule="constant", ema=0.6, **settings):
    """A run of a model with dropout, with shuffled and shifted images, and averaged weights."""
    recipe = vit_tf.Recipe(
        epochs=epochs, learning_rate=0.01, warmup_epochs=0, schedule=schedule, ema=ema, shift=1
    )
    model = make_model()
    return model, vit_tf.train(model, recipe, *make_data(), folder, verbose=0, **settings)


@pytest.mark.slow
def test_an_extended_run_is_the_longer_one(tmp_path, monkeypatch, caplog):
    """At a constant rate bit for bit; also where it is killed after it was extended."""
    model, history = run(tmp_path / "whole", 4)
    assert len(run(tmp_path / "run", 2)[1]["loss"]) == 2
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        kill_at(context, "on_train_batch_end", 8)
        run(tmp_path / "run", 4, save_every=3)
    extended, again = run(tmp_path / "run", 4)
    assert again == history
    assert_same_weights(extended, model)
    assert [row["epoch"] for row in read_log(tmp_path / "run")] == ["1", "2", "3", "4"]
    messages = [record.getMessage() for record in caplog.records]
    assert sum("is extended from 2 to 4 epochs" in message for message in messages) == 1
    with pytest.raises(ValueError, match=r"recipe.epochs: 4 there, 2 now$"):
        run(tmp_path / "run", 2)


@pytest.mark.slow
def test_an_extended_run_follows_the_schedule_of_the_longer_one(tmp_path):
    """Of 5 steps in each epoch; the rates are those at the end of an epoch."""

    def rates(epochs):
        steps = 5 * np.arange(1, epochs + 1)
        return 0.01 * (1 + np.cos(np.pi * steps / (5 * epochs))) / 2

    _, history = run(tmp_path, 2, "cosine")
    np.testing.assert_allclose(history["learning_rate"], rates(2), atol=1e-9)
    _, history = run(tmp_path, 6, "cosine")
    expected = [*rates(2), *rates(6)[2:]]
    np.testing.assert_allclose(history["learning_rate"], expected, atol=1e-9)


@pytest.mark.slow
def test_a_run_that_a_callback_has_ended_is_extended(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    model, history = run(tmp_path / "whole", 5, ema=None)
    assert len(run(tmp_path / "run", 4, ema=None, callbacks=[Stop()])[1]["loss"]) == 2
    assert len(run(tmp_path / "run", 4, ema=None)[1]["loss"]) == 2
    extended, again = run(tmp_path / "run", 5, ema=None)
    assert again == history
    assert_same_weights(extended, model)
