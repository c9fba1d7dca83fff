"""Two processes train and measure as one does; how they find each other; how one ends alone."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import multiworker_worker
import numpy as np
import pytest
import tensorflow as tf
from paths import HELPERS, free_addresses

from vit_tf import distribute
from vit_tf.distribute import strategies

WORKER = HELPERS / "multiworker_worker.py"
# Seconds until a test that hangs fails; workers end by themselves a little later. It is no measure
# of their speed: on a machine with other work the import of TensorFlow alone took 85 s.
LIMIT = 800


@contextlib.contextmanager
def started(count, folder, *words):
    """So many worker processes, which end at the end of the `with`."""
    addresses = free_addresses(count)
    workers = []
    try:
        for place in range(count):
            command = [sys.executable, WORKER, folder, str(place), addresses, *words]
            with open(folder / f"{place}.log", "w") as file:
                workers.append(subprocess.Popen(command, stdout=file, stderr=file))
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A folder where two workers have done everything and now train on, and the workers."""
    folder = tmp_path_factory.mktemp("pair")
    with started(2, folder) as workers:
        yield folder, workers


def wait_until(condition, workers, logs):
    """Wait for a condition while the workers live."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        dead = [worker.poll() is not None for worker in workers]
        if any(dead) or time.monotonic() > deadline:
            pytest.fail("\n".join(log.read_text()[-3000:] for log in logs))
        time.sleep(0.1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process found."""
    return multiworker_worker.everything(tmp_path_factory.mktemp("alone"))


@pytest.mark.slow
def test_four_workers_decode_and_find_what_one_process_does(alone, tmp_path):
    """Of last batches of 1, 3 and 5 examples some of the workers have none."""
    # It comes before `pair`, whose workers train until the last test: six would share the cores.
    files = [tmp_path / f"{place}.npz" for place in range(4)]
    with started(4, tmp_path, "shared") as workers:
        logs = sorted(tmp_path.glob("*.log"))
        wait_until(lambda: all(file.exists() for file in files), workers, logs)
    parts = [dict(np.load(file)) for file in files]
    assert [len(part["decoded"]) for part in parts] == [40, 36, 36, 34]
    everything = np.sort(np.concatenate([part["decoded"] for part in parts]))
    np.testing.assert_array_equal(everything, np.sort(alone["decoded"]))
    for key in (key for key in alone if key.startswith("shared ")):
        for part in parts:
            np.testing.assert_allclose(part[key], alone[key], atol=1e-4, rtol=1e-4, err_msg=key)


@pytest.fixture(scope="module")
def found(pair, alone):
    """What two workers and what one process found."""
    folder, workers = pair
    trains = folder / "endless" / "state"
    logs = sorted(folder.glob("*.log"))
    wait_until(lambda: trains.is_dir() and any(trains.iterdir()), workers, logs)
    both = [dict(np.load(folder / f"{place}.npz")) for place in (0, 1)]
    return both, alone


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        *("trained", "shared", "sequential", "functional", "subclassed"),
        *("measured", "measured one batch"),
    ],
)
def test_two_workers_find_what_one_process_finds(found, part):
    both, alone = found
    keys = [key for key in alone if re.fullmatch(f"{part} [0-9]+", key)]
    assert len(keys) > 2
    for key in keys:
        for one in both:
            np.testing.assert_allclose(one[key], alone[key], atol=1e-4, rtol=1e-4, err_msg=key)
        np.testing.assert_array_equal(both[0][key], both[1][key], err_msg=key)


@pytest.mark.slow
def test_two_workers_decode_together_what_one_process_decodes(found):
    """Each its own part: of two epochs, their validations and two passes over the test split."""
    both, alone = found
    parts = [one["decoded"] for one in both]
    assert len(alone["decoded"]) == 2 * 33 + 2 * 19 + 2 * 21
    # Of batches of 16, 1, 3 and 5 examples.
    assert [len(part) for part in parts] == [2 * 17 + 2 * 10 + 2 * 11, 2 * 16 + 2 * 9 + 2 * 10]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(alone["decoded"]))


@pytest.mark.slow
def test_training_changes_the_weights(found):
    _, alone = found
    first = multiworker_worker.make_vit().get_weights()
    moved = [np.abs(alone[f"trained {i}"] - weights).max() for i, weights in enumerate(first)]
    assert np.median(moved) > 0.01  # else the comparison above would tell nothing


@pytest.mark.slow
def test_only_the_chief_writes(pair, found):
    folder, workers = pair
    assert [bool(one["chief"]) for one in found[0]] == [True, False]
    assert (folder / "writer").read_text() == f"0 {workers[0].pid}"
    events = [path.name for path in folder.glob("run/tensorboard/*/*")]
    assert events and all(f".{workers[0].pid}." in name for name in events)
    names = {path.name for path in (folder / "run").iterdir()}
    assert names == {"best.keras", "configuration.json", "log.csv", "state", "tensorboard"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reduce_per_replica", "_maybe_symbolic_build"])
def test_stock_keras_still_fails(found, name):
    works = [bool(one[f"stock {name}"]) for one in found[0]]
    assert works == [False, False], f"Keras' own {name} works: distribute/multiworker.py can go"


@pytest.mark.slow
def test_more_steps_in_one_call_are_refused(found):
    for one in found[0]:
        assert "Received: steps_per_execution=2" in str(one["refused"])


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_other(pair, found):
    folder, workers = pair
    os.kill(workers[1].pid, signal.SIGKILL)
    assert workers[0].wait(timeout=120) == 1
    log = (folder / "0.log").read_text()
    assert "lost: Another worker stopped" in log and "resumes from its last saved state" in log


@pytest.fixture
def environment(monkeypatch):
    """An environment that tells of no cluster."""
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "VIT_TF_WORKER")) or name == "TF_CONFIG":
            monkeypatch.delenv(name)
    return monkeypatch


def tf_config(kind="worker", index=1, **tasks):
    tasks = tasks or {"worker": ["b:1", "c:1"]}
    return json.dumps({"cluster": tasks, "task": {"type": kind, "index": index}})


def test_arguments_win_over_variables_over_tf_config_over_slurm(environment):
    environment.setenv("SLURM_PROCID", "1")
    environment.setenv("SLURM_STEP_NUM_TASKS", "3")
    environment.setenv("SLURM_STEP_NODELIST", "node[08-09]")
    environment.setenv("SLURM_STEP_TASKS_PER_NODE", "2,1")
    environment.setenv("SLURM_JOB_ID", "20007")
    environment.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    slurm = ["node08:12007", "node08:12008", "node09:12007"]
    assert strategies.find_cluster() == (slurm, 1)
    environment.setenv("TF_CONFIG", tf_config(chief=["a:1"], worker=["b:1", "c:1"]))
    assert strategies.find_cluster() == (["a:1", "b:1", "c:1"], 2)
    environment.setenv("VIT_TF_WORKERS", "d:1, e:2")
    environment.setenv("VIT_TF_WORKER", "0")
    assert strategies.find_cluster() == (["d:1", "e:2"], 0)
    assert strategies.find_cluster(["f:1", "[::1]:2"], 1) == (["f:1", "[::1]:2"], 1)


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"cluster": {}}'),
        *(tf_config(ps=["a:1"], worker=["b:1"]), tf_config("chief")),
        tf_config("chief", 1, chief=["a:1"], worker=["b:1"]),
        *(tf_config(index=2), tf_config(index=-1), tf_config(worker=["b"]), tf_config(worker=[])),
    ],
)
def test_refuses_a_malformed_tf_config(environment, text):
    environment.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=r"(?s)Expected TF_CONFIG.*Received: "):
        strategies.find_cluster()


@pytest.mark.parametrize(
    "workers, worker",
    [("a:1,b:1", None), ("a:1,b:1", 2), (None, 0), ("a:1,a:1", 0), ("a:1,b", 0), ("http://a:1", 0)],
)
def test_refuses_malformed_addresses(environment, workers, worker):
    with pytest.raises(ValueError, match=r"Expected workers and worker.*Received: "):
        strategies.find_cluster(workers, worker)
    with pytest.raises(ValueError, match="with strategy 'multiworker'"):
        distribute.strategy("mirrored", workers, 0)


def test_refuses_where_no_cluster_is_configured(environment):
    with pytest.raises(ValueError, match=r"VIT_TF_WORKERS.*TF_CONFIG.*srun. Received: none"):
        distribute.strategy("multiworker")
    environment.setenv("SLURM_PROCID", "0")
    with pytest.raises(ValueError, match="STEP_NUM_TASKS"):
        distribute.strategy("multiworker")


def test_refuses_after_tensorflow_has_run(environment):
    tf.constant(1)
    with pytest.raises(ValueError, match="before any other use of TensorFlow"):
        distribute.strategy("multiworker", ["localhost:1", "localhost:2"], 0)


def test_auto_selects_several_workers_where_they_are_configured(environment):
    environment.setenv("TF_CONFIG", tf_config())
    with pytest.raises(ValueError, match="before any other use of TensorFlow"):
        distribute.strategy("auto")
    environment.setenv("TF_CONFIG", tf_config(index=0, worker=["a:1"]))
    assert distribute.strategy("auto").num_replicas_in_sync == 1
