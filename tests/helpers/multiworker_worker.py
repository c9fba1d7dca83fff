"""What one of several workers does in `test_multiworker.py`, and what it compares with.

`python multiworker_worker.py FOLDER COUNT` makes so many processes, which need not import
TensorFlow anew. Each writes its id to `PLACE.pid` in the folder, what it has found to `PLACE.npz`,
and then trains until it is stopped; its exit status comes to stand in `PLACE.end`.
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
from paths import free_addresses

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine import stream
from vit_tf.data.batches import without_autotune
from vit_tf.distribute import jax_devices, strategies
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
    """The weights and losses of a model that is not ours, in its own `fit`.

    The functional model also gives scores and predictions; the subclassed one predicts unbuilt.
    """
    keras.utils.set_random_seed(2)
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **arguments)
    images, labels = make_data()
    # Of batches and last batches that three workers divide evenly: Keras weights their losses so.
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(48, seed=3).batch(12)
    validation = {"validation_data": (images, labels), "validation_batch_size": 12}
    unbuilt = [model.predict(images[:37], batch_size=6, verbose=0)] if make is Subclassed else []
    history = model.fit(batches, epochs=2, verbose=0, **validation).history
    if make is not functional:  # now they are built as that one is
        return [*model.get_weights(), *history.values(), *unbuilt]
    arrays = model.fit(images, labels, batch_size=12, epochs=1, shuffle=False, verbose=0).history
    scores = model.evaluate(images[:30], labels[:30], batch_size=12, verbose=0)
    predicted = model.predict(images[:37], batch_size=6, verbose=0)
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
    """Ends a training in the second step of its second epoch; notes what epochs have decoded."""

    def __init__(self, decoded):
        super().__init__()
        self.decoded, self.of_epoch = decoded, []

    def on_epoch_begin(self, epoch, logs=None):
        self.of_epoch = [*self.decoded]

    def on_train_batch_end(self, batch, logs=None):
        if int(np.asarray(self.model.optimizer.iterations)) == 5:
            raise Stop


def train_shared(folder, interrupted):
    """Train on data that workers share out before they are decoded; what was found and decoded.

    Last batches of 1, 2 and 5 examples; a run that may be stopped within an epoch and goes on.
    """

    def load_and_train(*callbacks):
        keras.utils.set_random_seed(4)
        take = {"train": 33, "validation": 18, "test": 21}
        splits = vit_tf.data.load(
            "digits", image_size=8, batch_size=16, splits=tuple(take), take=take, seed=6
        )
        model = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 10)
        # Not Adam, which makes steps of whole size of rounding errors, as the bias of keys has.
        recipe = vit_tf.Recipe(epochs=2, learning_rate=0.2, momentum=0.9, clip_norm=0.5, ema=0.6)
        settings = {"callbacks": callbacks, "save_every": 1, "verbose": 0}
        history = vit_tf.train(model, recipe, *splits[:2], folder / "shared", **settings)
        return model, history, splits

    with pytest.MonkeyPatch.context() as patch:
        decoded = count_decoding(patch)
        first = []
        if interrupted:
            stop = StopInEpoch(decoded)
            with contextlib.suppress(Stop):
                load_and_train(stop)
            first = stop.of_epoch
            decoded.clear()
        model, history, (train, validation, test) = load_and_train()
        scores = model.evaluate(test, verbose=0)
        top = list(top_k_accuracy(model, test).values())
        seen = [[zlib.crc32(image) for image in images] for images in (first, decoded)]
        predicted = model.predict(test, verbose=0)
        correct = correct_answers(model, test)
        top += [correct.sum(), len(correct)]
        commonest = majority_accuracy(train, validation, 10, 2)
    found = [*model.get_weights(), *history.values(), scores, top, predicted, commonest]
    return found, seen


def everything(folder, interrupted):
    """All that must be the same however many workers there are: dict of arrays.

    With `interrupted`, trainings are stopped and resumed, which must not change them either.
    """
    if interrupted:
        with contextlib.suppress(Stop):
            train_vit(folder / "run", epochs=2)
    shared, (first, rest) = train_shared(folder, interrupted)
    parts = {
        "trained": train_vit(folder / "run"),
        "shared": shared,
        "sequential": fit_any(sequential),
        "functional": fit_any(functional),
        "subclassed": fit_any(Subclassed),
        "measured": measure(5),
        "measured one batch": measure(1),
    }
    found = {f"{name} {i}": np.asarray(x) for name, xs in parts.items() for i, x in enumerate(xs)}
    return found | {"decoded first": np.array(first), "decoded": np.array(rest)}


def stock_keras_works():
    """Whether three workers train with each of Keras' own functions put back: dict by name."""
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


def work(folder, place, addresses):
    """What one worker does."""
    (folder / f"{place}.pid").write_text(str(os.getpid()))
    os.environ |= {"VIT_TF_WORKERS": addresses, "VIT_TF_WORKER": str(place)}
    with strategy("multiworker").scope():
        found = everything(folder, interrupted=True)
        found["refused"] = refused(lambda: fit_any(functional, steps_per_execution=2))
        found |= {f"stock {name}": works for name, works in stock_keras_works().items()}
        checkpointing.write_on_chief(
            folder / "writer", lambda path: Path(path).write_text(f"{place} {os.getpid()}")
        )
        assert (folder / "writer").exists()
        np.savez(folder / f"{place}.npz", **found, chief=strategies.is_chief())
        keras.utils.set_random_seed(2)
        recipe = vit_tf.Recipe(epochs=10**6)
        data = without_autotune(tf.data.Dataset.from_tensor_slices(make_data()).batch(16))
        model = functional()
        vit_tf.train(model, recipe, data, data, folder / "endless", verbose=0)


def become_worker(folder, place, addresses):
    """Let this process be one of the workers until it ends; its exit status."""
    with open(folder / f"{place}.log", "w") as file:
        for stream_number in (1, 2):
            os.dup2(file.fileno(), stream_number)
    signal.alarm(900)  # a worker whose test was killed ends by itself
    try:
        work(folder, place, addresses)
    except ConnectionError as error:
        print(f"lost: {error}", flush=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        return 2
    return 0


def main(folder, count):
    # Seconds, of a machine with other work: one of the workers dies, and is to be missed soon.
    jax_devices.HEARTBEAT = 15
    places = {}
    # Drawn when they are needed: meanwhile, another process could take a port.
    addresses = free_addresses(count)
    for place in range(count):
        pid = os.fork()
        if not pid:
            os._exit(become_worker(folder, place, addresses))
        places[pid] = place
    while places:
        pid, status = os.wait()
        end = os.waitstatus_to_exitcode(status)
        path = folder / f"{places.pop(pid)}.end"
        path.with_suffix(".written").write_text(str(end))
        path.with_suffix(".written").rename(path)  # who waits for it finds it whole


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
