"""Three processes train and measure as one does; how they find each other; how they end."""

import json
import os
import re
import signal
import sys
import time
from collections import Counter

import multiworker_worker
import numpy as np
import pytest
import tensorflow as tf
from paths import HELPERS, process_group

from vit_tf import distribute
from vit_tf.distribute import strategies

WORKER = HELPERS / "multiworker_worker.py"
# Seconds until a test that hangs fails; the workers of a test that was killed end by themselves a
# little later. It is no measure of their speed: on a machine with other work the import of
# TensorFlow alone took 85 s.
LIMIT = 800


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Folder where three workers do everything, then train until the tests end; their parent."""
    folder = tmp_path_factory.mktemp("workers")
    with process_group([sys.executable, WORKER, folder, "3"], folder / "main.log") as process:
        yield folder, process


def wait_until(condition, folder, process):
    """Wait for a condition while the workers and the process that forked them live."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        ended = process.poll() is not None or any(folder.glob("*.end"))
        if ended or time.monotonic() > deadline:
            pytest.fail("\n".join(log.read_text()[-3000:] for log in folder.glob("*.log")))
        time.sleep(0.1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process found, without an interruption."""
    return multiworker_worker.everything(tmp_path_factory.mktemp("alone"), interrupted=False)


@pytest.fixture(scope="module")
def found(workers, alone):
    """What each of three workers found, which train on now, and what one process found."""
    folder, process = workers
    trains = folder / "endless" / "state"
    wait_until(lambda: trains.is_dir() and any(trains.iterdir()), folder, process)
    return [dict(np.load(folder / f"{place}.npz")) for place in range(3)], alone


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        *("trained", "shared", "sequential", "functional", "subclassed"),
        *("measured", "measured one batch"),
    ],
)
def test_three_workers_find_what_one_process_finds(found, part):
    """Some have no example of the last batches; runs of `vit_tf.train` were stopped in between."""
    every, alone = found
    keys = [key for key in alone if re.fullmatch(f"{part} [0-9]+", key)]
    assert len(keys) > 2
    atol = 1e-5 if part == "shared" else 1e-4
    for key in keys:
        for one in every:
            np.testing.assert_allclose(one[key], alone[key], atol=atol, rtol=1e-4, err_msg=key)
            np.testing.assert_array_equal(one[key], every[0][key], err_msg=key)


@pytest.mark.slow
def test_three_workers_decode_together_what_one_process_decodes(found):
    """Each its own part, also where a run resumes, and at most an epoch ahead where one stops."""
    every, alone = found
    first, rest = ([one[name] for one in every] for name in ("decoded first", "decoded"))
    # The parts of batches of 16, 16 and 1 of one split, 16 and 2 of another, 16 and 5 of the third.
    train, validation, test = (6 + 6 + 1, 5 + 5, 5 + 5), (6 + 1, 5 + 1, 5), (6 + 2, 5 + 2, 5 + 1)
    for place in range(3):
        epoch = train[place] + validation[place]
        assert epoch <= len(first[place]) <= epoch + train[place]
        # The state is of the first step of the second epoch; the test split is read twice.
        left = epoch - (6, 5, 5)[place]
        assert len(rest[place]) == left + 2 * test[place]
    whole = Counter(alone["decoded"].tolist())
    assert whole.total() == 2 * 33 + 2 * 18 + 2 * 21
    first, rest = (Counter(np.concatenate(parts).tolist()) for parts in (first, rest))
    assert first <= whole and len(first) == 33 + 18
    assert rest <= whole and len(rest) == 17 + 18 + 21


@pytest.mark.slow
def test_training_changes_the_weights(found):
    _, alone = found
    first = multiworker_worker.make_vit().get_weights()
    moved = [np.abs(alone[f"trained {i}"] - weights).max() for i, weights in enumerate(first)]
    assert np.median(moved) > 0.01  # else the comparison above would tell nothing


@pytest.mark.slow
def test_only_the_chief_writes(workers, found):
    assert [bool(one["chief"]) for one in found[0]] == [True, False, False]
    folder, _ = workers
    chief = (folder / "0.pid").read_text()
    assert (folder / "writer").read_text() == f"0 {chief}"
    events = [path.name for path in folder.glob("run/tensorboard/*/*")]
    assert events and all(f".{chief}." in name for name in events)
    names = {path.name for path in (folder / "run").iterdir()}
    assert names == {"best.keras", "configuration.json", "log.csv", "state", "tensorboard"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reduce_per_replica", "_maybe_symbolic_build"])
def test_stock_keras_still_fails(found, name):
    works = [bool(one[f"stock {name}"]) for one in found[0]]
    assert not any(works), f"Keras' own {name} works: distribute/multiworker.py can go"


@pytest.mark.slow
def test_more_steps_in_one_call_are_refused(found):
    for one in found[0]:
        assert "Received: steps_per_execution=2" in str(one["refused"])


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_others(workers, found):
    folder, _ = workers
    os.kill(int((folder / "1.pid").read_text()), signal.SIGKILL)
    deadline = time.monotonic() + 120
    while len([*folder.glob("*.end")]) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    ends = [int((folder / f"{place}.end").read_text()) for place in range(3)]
    assert ends == [1, -signal.SIGKILL, 1]
    for place in (0, 2):
        log = (folder / f"{place}.log").read_text()
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
    with pytest.raises(ValueError, match=r"VIT_TF_WORKERS.*TF_CONFIG.*srun"):
        distribute.strategy("multiworker")
    environment.setenv("SLURM_PROCID", "0")
    with pytest.raises(ValueError, match="STEP_NUM_TASKS"):
        distribute.strategy("multiworker")


def test_refuses_after_tensorflow_has_run(environment):
    tf.constant(1)
    with pytest.raises(ValueError, match="TensorFlow was used before"):
        distribute.strategy("multiworker", ["localhost:1", "localhost:2"], 0)


def test_auto_selects_several_workers_where_they_are_configured(environment):
    environment.setenv("TF_CONFIG", tf_config())
    with pytest.raises(ValueError, match="TensorFlow was used before"):
        distribute.strategy("auto")
    environment.setenv("TF_CONFIG", tf_config(index=0, worker=["a:1"]))
    assert distribute.strategy("auto").num_replicas_in_sync == 1
