"""What one of several workers does in `test_multiworker.py`, and what it compares with.

`python multiworker_worker.py FOLDER PLACE HOST:PORT,HOST:PORT` writes `PLACE.npz` to the folder and
then trains until it is stopped. With `shared` behind it, it does but what `train_shared` does.
"""

import contextlib
import os
import signal
import sys
import traceback
import zlib
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pytest
import tensorflow as tf
from counted_digits import count_decoding
from keras.src.backend.tensorflow import trainer

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine import stream
from vit_tf.data.batches import without_autotune
from vit_tf.distribute import strategies
from vit_tf.distribute.strategies import strategy
from vit_tf.training import checkpointing
from vit_tf.training.evaluation import correct_answers, majority_accuracy, top_k_accuracy

RECIPE = vit_tf.Recipe(epochs=4, learning_rate=0.02, warmup_epochs=1, ema=0.8, clip_norm=0.5)


class Stop(Exception):
    """Ends a training where a killed one would end."""


def make_data(seed=0):
    """Images of shape (48, 8, 8, 3) and labels of three classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=48).astype("int32")
    images = np.tanh(labels[:, None, None, None] - 1 + rng.normal(size=(48, 8, 8, 3)))
    return images.astype("float32"), labels


def make_vit():
    """A tiny ViT with known weights."""
    keras.utils.set_random_seed(1)
    return vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 3, dropout_rate=0.0)


def train_vit(folder, epochs=None):
    """Train the ViT, or stop it after some epochs: its weights and its losses."""
    model = make_vit()
    data = tf.data.Dataset.from_tensor_slices(make_data())
    write_log = checkpointing.write_log

    def write_and_stop(history, directory):
        write_log(history, directory)
        if len(history["loss"]) == epochs:
            raise Stop

    checkpointing.write_log = write_and_stop
    try:
        train = data.shuffle(48, seed=5).batch(16)
        history = vit_tf.train(model, RECIPE, train, data.batch(16), folder, verbose=0)
    finally:
        checkpointing.write_log = write_log
    return [*model.get_weights(), history["loss"], history["val_loss"], history["val_accuracy"]]


class Subclassed(keras.Model):
    """A model whose layers are built when it is called, with running statistics."""

    def __init__(self):
        super().__init__()
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(4)
        self.norm, self.head = keras.layers.BatchNormalization(), keras.layers.Dense(3)

    def call(self, images, training=False):
        return self.head(keras.ops.relu(self.dense(self.flatten(images))))


def fit_any(make, **arguments):
    """The weights, losses, scores and predictions of a model that is not ours, in its own `fit`."""
    keras.utils.set_random_seed(2)
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **arguments)
    images, labels = make_data()
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(48, seed=3).batch(16)
    history = model.fit(batches, epochs=2, verbose=0, validation_data=(images, labels)).history
    arrays = model.fit(images, labels, batch_size=16, epochs=1, shuffle=False, verbose=0).history
    scores = model.evaluate(images[:30], labels[:30], batch_size=16, verbose=0)
    predicted = model.predict(images[:37], batch_size=8, verbose=0)
    return [*model.get_weights(), *history.values(), *arrays.values(), scores, predicted]


def sequential():
    """An unbuilt Sequential model."""
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])


def functional():
    """A functional model."""
    images = keras.Input((8, 8, 3))
    return keras.Model(images, keras.layers.Dense(3)(keras.layers.Flatten()(images)))


def measure(count):
    """Every kind of total, sums, rows and merged, of so many batches of 8 images."""
    images, labels = (array[: 8 * count] for array in make_data(1))
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8)
    features = vit_tf.submodel(make_vit(), "block00/*/sum")
    pooled = analysis.engine.pooled_statistic("cls", features.token_grid)
    tested = stream.evaluate(pooled, data, features)
    requests = {
        "knn": (analysis.knn_accuracy.statistic(features, tested, 3, (5,)), features),
        "cka": (analysis.cka.statistic(features), features),
        "probe": (analysis.ridge_probe.statistic(features, data, 3, tokens="each"), features),
        "score": (
            analysis.skip_ratio.statistic(features := vit_tf.submodel(make_vit(), "*")),
            features,
        ),
    }
    totals = tf.nest.flatten(analysis.engine.one_pass(requests, data))
    field = analysis.receptive_field(vit_tf.submodel(make_vit(), "*/sum"), data)
    rows = stream.collect(lambda batch: {"x": batch[: tf.shape(batch)[0] - 1]}, images)
    return [*totals, field.values, rows["x"]]


class StopInEpoch(keras.callbacks.Callback):
    """Ends a training after the second step of its second epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if int(np.asarray(self.model.optimizer.iterations)) == 5:
            raise Stop


def train_shared(folder):
    """Train on data that workers share out before they are decoded; what was found and decoded.

    Last batches of 1, 3 and 5 examples; a run that is stopped within an epoch and goes on.
    """

    def load_and_train(name, *callbacks):
        keras.utils.set_random_seed(4)
        take = {"train": 33, "validation": 19, "test": 21}
        splits = vit_tf.data.load(
            "digits", image_size=8, batch_size=16, splits=tuple(take), take=take, seed=6
        )
        model = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 10)
        recipe = vit_tf.Recipe(epochs=2, learning_rate=0.01, ema=0.8)
        settings = {"callbacks": callbacks, "save_every": 1, "verbose": 0}
        history = vit_tf.train(model, recipe, *splits[:2], folder / name, **settings)
        return model, history, splits

    with pytest.MonkeyPatch.context() as patch:
        decoded = count_decoding(patch)
        model, history, (train, validation, test) = load_and_train("whole")
        scores = model.evaluate(test, verbose=0)
        top = list(top_k_accuracy(model, test).values())
        seen = [zlib.crc32(image) for image in decoded]
        predicted = model.predict(test, verbose=0)
        correct = correct_answers(model, test)
        top += [correct.sum(), len(correct)]
        commonest = majority_accuracy(train, validation, 10, 2)
        with contextlib.suppress(Stop):
            load_and_train("stopped", StopInEpoch())
        resumed, *_ = load_and_train("stopped")
    history.pop("loss")  # that of a batch whose parts are unlike is weighted
    found = [*model.get_weights(), *history.values(), scores, top, predicted, commonest]
    return [*found, *resumed.get_weights()], seen


def everything(folder):
    """All that must be the same however many workers there are: dict of arrays."""
    with contextlib.suppress(Stop):
        train_vit(folder / "run", epochs=2)
    parts = {
        "trained": train_vit(folder / "run"),
        "sequential": fit_any(sequential),
        "functional": fit_any(functional),
        "subclassed": fit_any(Subclassed),
        "measured": measure(5),
        "measured one batch": measure(1),
    }
    return numbered(parts) | shared(folder)


def numbered(parts):
    """dict of arrays from one of lists."""
    return {f"{name} {i}": np.asarray(x) for name, xs in parts.items() for i, x in enumerate(xs)}


def shared(folder):
    """What `train_shared` found: dict of arrays."""
    found, decoded = train_shared(folder)
    return numbered({"shared": found}) | {"decoded": np.array(decoded)}


def stock_keras_works():
    """Whether two workers train with each of Keras' own functions put back: dict by name."""
    cls = trainer.TensorFlowTrainer
    ours = [(trainer, "reduce_per_replica"), (cls, "_maybe_symbolic_build")]
    return {name: _works(owner, name) for owner, name in ours}


def _works(owner, name):
    mine = getattr(owner, name)
    setattr(owner, name, mine.__wrapped__)
    try:
        fit_any(sequential)
    except ValueError:
        traceback.print_exc()
        return False
    finally:
        setattr(owner, name, mine)
    return True


def refused(call):
    """The words of the ValueError that a call ends with."""
    try:
        call()
    except ValueError as error:
        return str(error)


def main(folder, place, addresses, only=None):
    with strategy("multiworker", addresses, int(place)).scope():
        if only == "shared":
            np.savez(folder / f"{place}.part.npz", **shared(folder))
            (folder / f"{place}.part.npz").rename(folder / f"{place}.npz")
            strategies.wait_for_workers()
            return
        found = everything(folder)
        found["refused"] = refused(lambda: fit_any(functional, steps_per_execution=2))
        found |= {f"stock {name}": works for name, works in stock_keras_works().items()}
        checkpointing.write_on_chief(
            folder / "writer", lambda path: Path(path).write_text(f"{place} {os.getpid()}")
        )
        assert (folder / "writer").exists()
        np.savez(folder / f"{place}.npz", **found, chief=strategies.is_chief())
        recipe = vit_tf.Recipe(epochs=10**6)
        data = without_autotune(tf.data.Dataset.from_tensor_slices(make_data()).batch(16))
        vit_tf.train(make_vit(), recipe, data, data, folder / "endless", verbose=0)


if __name__ == "__main__":
    # Seconds. One of two workers dies, and is to be missed soon; four on a machine with other work
    # may wait so long for a core.
    strategies.HEARTBEAT = 60 if "shared" in sys.argv else 10
    signal.alarm(900)  # a worker whose test was killed ends by itself
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except ConnectionError as error:
        print(f"lost: {error}")
        strategies.leave(1)
