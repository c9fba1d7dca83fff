"""A small model and small data to train, the log of a run, and runs that are killed."""

import csv
import re

import keras
import numpy as np
import tensorflow as tf

from vit_tf.training import checkpointing


def make_model(units=8):
    """A small classifier with every kind of state: weights, dropout's seed, normalisation."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Flatten(), keras.layers.Dense(units, "gelu")]
    layers += [keras.layers.LayerNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((4, 4, 1)), *layers])


def make_data(batch_size=8):
    """Seeded batches of 40 training and 20 validation examples of three classes."""
    # TensorFlow mixes the seed of a shuffle with the global one.
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=60).astype("int32")
    images = np.tanh(labels[:, None, None, None] - 1 + rng.normal(size=(60, 4, 4, 1)))
    data = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))
    return data.take(40).shuffle(40, seed=5).batch(batch_size), data.skip(40).batch(10)


def assert_same_weights(model, other, atol=0.0):
    """Checks that two models have the same weights, bit for bit unless `atol` is above 0."""
    for weights, expected in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(weights, expected, rtol=0, atol=atol)


def read_log(directory):
    with open(directory / "log.csv") as file:
        return list(csv.DictReader(file))


def newest_state(directory):
    """The name of the last state in a run's folder, and that there are at most two."""
    names = [path.name for path in (directory / "state").iterdir()]
    assert 0 < len(names) <= 2, names
    return max(names, key=lambda name: [*map(int, re.findall(r"\d+", name)), 0][:2])


def count_calls(monkeypatch, owner, name, fail_at=None):
    """The list of calls of a function, of which the n-th may fail as a kill would."""
    calls, original = [], getattr(owner, name)

    def counted(*args, **kwargs):
        calls.append(args)
        if len(calls) == fail_at:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls


def kill_at(monkeypatch, method, call):
    """Let a method of `Checkpoint` or a function of its module raise at its n-th call."""
    owner = checkpointing.Checkpoint if hasattr(checkpointing.Checkpoint, method) else checkpointing
    count_calls(monkeypatch, owner, method, call)
