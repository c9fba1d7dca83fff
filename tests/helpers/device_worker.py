"""Trains a tiny ViT on several devices or processes, on TensorFlow or JAX, in processes of its own.

    python device_worker.py DEVICES JOB ...

Set KERAS_BACKEND. Each JOB is done by a process of its own, one after another; a process starts as
a copy of this one, which has imported everything. It makes the runs of a JOB, which are joined by
`;`, each FOLDER,STRATEGY,BATCH_SIZE[,KILL_AT[,VICTIM]]. Where a number stands behind an `@`, so
many processes do the JOB together, as workers that share the devices out. The STRATEGY `connected`
lets Keras connect them, and then asks for "auto". A process that works on a JOB for longer than
`LIMIT` seconds is killed, and the remaining jobs are not done.

The process of index VICTIM, 0 by default, sends itself SIGKILL after the step KILL_AT of a run,
whose state is saved every two steps; then `left.txt` lists what it left in FOLDER, and
`seconds.txt` has one line for each kill: how long the other process went on after it. Otherwise it
writes the weights, the history, the number of replicas and the outputs of the reopened best model
to FOLDER/weights.npz (several workers: to weights-WORKER.npz, with checksums of the images that the
worker decoded). The run `FOLDER,measure,BATCHES` writes FOLDER/measured.npz.
"""

import importlib
import json
import os
import signal
import sys
import time
import traceback
import zlib
from pathlib import Path

from paths import free_addresses

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

EXAMPLES = {"train": 50, "validation": 21, "test": 33}
LIMIT = 400  # seconds of one job, on a busy machine


def environment(backend, devices=1, **more):
    """The environment of a process with so many CPU devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return os.environ | {"KERAS_BACKEND": backend, "XLA_FLAGS": flags} | more


def compilation_cache(folder):
    """The environment of processes that compile each function of JAX once."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def make_model():
    """A ViT whose initialization does not depend on the backend."""
    import numpy as np

    import vit_tf

    model = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 10)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        scale = 0.3 if len(variable.shape) > 1 else 0.05
        variable.assign(rng.normal(size=variable.shape, scale=scale) + ("gamma" in variable.path))
    return model


def run(folder, strategy, batch_size, callbacks=()):
    """Train under a strategy, and test: weights, history, scores and the number of replicas."""
    import keras
    import numpy as np

    import vit_tf
    from vit_tf.training.evaluation import top_k_accuracy

    if strategy == "connected":
        addresses, worker = (os.environ.pop(f"VIT_TF_WORKER{end}") for end in ("S", ""))
        count = len(addresses.split(","))
        keras.distribution.initialize(addresses, num_processes=count, process_id=int(worker))
        strategy = "auto"
    strategy = vit_tf.distribute.strategy(strategy)
    keras.utils.set_random_seed(3)
    train, validation, test = vit_tf.data.load(
        "digits", image_size=8, splits=tuple(EXAMPLES), take=EXAMPLES, batch_size=batch_size
    )
    # Not Adam, which makes steps of whole size of rounding errors, as the bias of keys has.
    settings = {"learning_rate": 0.2, "momentum": 0.9, "clip_norm": 0.5, "ema": 0.6}
    recipe = vit_tf.Recipe(epochs=3, **settings)
    with strategy.scope():
        model = make_model()
        settings = {"callbacks": callbacks, "save_every": 2, "verbose": 0}
        history = vit_tf.train(model, recipe, train, validation, folder / "run", **settings)
        test_batches = vit_tf.distribute.divide_batches(test, strategy)
        scores = model.evaluate(test_batches, verbose=0, return_dict=True)
        scores["top-1"] = top_k_accuracy(model, test)[1]
    weights = [np.asarray(v) for v in model.trainable_variables]
    return weights, history, scores, strategy.num_replicas_in_sync


def reopened_outputs(path):
    """The outputs of a saved model for five random images."""
    import keras
    import numpy as np

    import vit_tf

    images = np.random.default_rng(0).uniform(-1, 1, (5, 8, 8, 3)).astype("float32")
    return keras.ops.convert_to_numpy(vit_tf.load_model(path)(images))


def main(devices, *jobs):
    # What all processes need and no process must do again; none of it uses a device.
    for name in ("keras", "tensorflow", "vit_tf.training", "vit_tf.data", "vit_tf.models"):
        importlib.import_module(name)
    for job in jobs:
        runs, _, workers = job.partition("@")
        runs = [run.split(",") for run in runs.split(";")]
        count = int(workers or 1)
        # Drawn when they are needed: while other jobs ran, another process could take a port.
        addresses = free_addresses(count) if workers else None
        processes = []
        for worker in range(count):
            processes.append(os.fork())
            if not processes[-1]:
                signal.alarm(LIMIT)
                share = int(devices) // count
                if addresses:
                    cluster = {"VIT_TF_WORKERS": addresses, "VIT_TF_WORKER": str(worker)}
                    os.environ |= environment(os.environ["KERAS_BACKEND"], share, **cluster)
                os._exit(status_of(share, runs))
        ends = {}
        for _ in processes:
            process, status = os.wait()
            ends[process] = os.waitstatus_to_exitcode(status), time.monotonic()
        statuses = [ends[process][0] for process in processes]
        folder, victim = Path(runs[-1][0]), victim_of(*runs[-1])
        if victim is None:
            assert not any(statuses), (job, statuses)
        else:
            assert statuses[victim] == -signal.SIGKILL and all(statuses), (job, statuses)
            assert -signal.SIGALRM not in statuses, (job, statuses)
            last = max(moment for _, moment in ends.values())
            with open(folder / "seconds.txt", "a") as file:
                print(last - ends[processes[victim]][1], file=file)
            left = (str(path.relative_to(folder)) for path in folder.rglob("*"))
            (folder / "left.txt").write_text("\n".join(left))


def victim_of(folder, strategy, batch_size, kill_at=None, victim=0):
    """The index of the process that a run kills, or None."""
    return None if kill_at is None else int(victim)


def status_of(devices, runs):
    """Makes runs on so many devices; the exit status of the process that has made them."""
    import keras
    import tensorflow as tf

    try:
        if keras.backend.backend() == "tensorflow":
            cpu = tf.config.list_physical_devices("CPU")[0]
            cpus = [tf.config.LogicalDeviceConfiguration()] * devices
            tf.config.set_logical_device_configuration(cpu, cpus)
        for words in runs:
            train_and_save(*words)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def train_and_save(folder, strategy, batch_size, kill_at=None, victim=0):
    """Makes one run, and writes what it finds to its folder."""
    import keras
    import numpy as np
    import pytest
    from counted_digits import count_decoding

    class Kill(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == int(kill_at):
                os.kill(os.getpid(), signal.SIGKILL)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if strategy == "measure":
        measure_and_save(folder, int(batch_size))
        return
    worker = os.environ.get("VIT_TF_WORKER")
    callbacks = [Kill()] if kill_at and int(worker or 0) == int(victim) else []
    with pytest.MonkeyPatch.context() as patch:
        decoded = count_decoding(patch) if worker else []
        weights, history, scores, replicas = run(folder, strategy, int(batch_size), callbacks)
    facts = {"history": history, "scores": scores, "replicas": replicas}
    found = {"facts": json.dumps(facts)}
    if worker:
        found["decoded"] = [zlib.crc32(image) for image in decoded]
    else:
        found["outputs"] = reopened_outputs(folder / "run" / "best.keras")
    np.savez(folder / (f"weights-{worker}.npz" if worker else "weights.npz"), *weights, **found)


def measure_and_save(folder, count):
    """Measures a model on all devices."""
    import multiworker_worker
    import numpy as np
    import tensorflow as tf

    import vit_tf

    with vit_tf.distribute.strategy("mirrored").scope():
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        np.savez(folder / "measured.npz", *multiworker_worker.measure(count), replicas=replicas)


def load(path):
    """(weights, history, scores, number of replicas) that a process has written."""
    import numpy as np

    with np.load(path) as file:
        facts = json.loads(str(file["facts"]))
        weights = [file[name] for name in file.files if name.startswith("arr_")]
    return weights, facts["history"], facts["scores"], facts["replicas"]


def largest_difference(one, other):
    """The largest difference between the weights of two processes."""
    import numpy as np

    return max(np.abs(a - b).max() for a, b in zip(one[0], other[0], strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
