"""Several devices train, validate and test as one does, in both backends; so do workers of JAX."""

import importlib.util
import sys
from collections import Counter

import multiworker_worker
import numpy as np
import pytest
from device_worker import environment, largest_difference, load, reopened_outputs, run
from paths import HELPERS, process_group

WORKER = HELPERS / "device_worker.py"
LIMIT = 900  # seconds, of a busy machine

pytestmark = pytest.mark.slow
needs_jax = pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed")


def make_runs(folder, backend, *jobs):
    """Let four devices do some jobs, each in a process of its own; see `device_worker.py`."""
    command, log = [sys.executable, WORKER, "4", *jobs], folder / "log.txt"
    with process_group(command, log, cwd=folder, env=environment(backend, 4)) as process:
        status = process.wait(LIMIT)
    assert status == 0, log.read_text()[-3000:]
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights, the history, the scores and the replicas of a run on one device."""
    return run(tmp_path_factory.mktemp("alone"), "none", 15)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """The folder of what four replicas of TensorFlow train and measure."""
    folder = tmp_path_factory.mktemp("replicas")
    return make_runs(folder, "tensorflow", "trained,mirrored,15;measured,measure,6")


@pytest.fixture(scope="module")
def jax(tmp_path_factory):
    """The folder of what JAX trains on one device, on four, and in two processes of two each.

    One run is killed by SIGKILL after step 6 of 12, of epochs of four steps, and goes on in another
    process; the last state is of step 6. Of a run of two processes one is killed at the same step.
    """
    return make_runs(
        tmp_path_factory.mktemp("jax"),
        "jax",
        "1,none,15;4,mirrored,15;killed,mirrored,15,7",
        "killed,mirrored,15",
        "both,multiworker,15@2",
        "connected,connected,15@2",
        "halved,multiworker,15,7@2",
        "halved,multiworker,15@2",
    )


def compare(found, expected, atol=1e-5):
    assert largest_difference(found, expected) < atol
    for name, values in expected[1].items():
        np.testing.assert_allclose(found[1][name], values, atol=1e-5, err_msg=name)
    for name, value in expected[2].items():
        assert found[2][name] == pytest.approx(value, abs=1e-5), name


def test_replicas_train_on_shuffled_data_as_one_device(alone, replicas, record_property):
    """Of the last batches, of 5, 6 and 3 examples, some of the replicas have none."""
    found = load(replicas / "trained" / "weights.npz")
    assert (found[3], alone[3]) == (4, 1)
    record_property("largest_difference", largest_difference(found, alone))
    compare(found, alone)


def test_analyses_on_replicas_give_what_they_give_on_one_device(replicas):
    alone = multiworker_worker.measure(6)
    with np.load(replicas / "measured" / "measured.npz") as file:
        found = dict(file)
    assert found.pop("replicas") == 4 and len(found) == len(alone) > 5
    for name, value in zip(found, alone, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)


@needs_jax
@pytest.mark.parametrize("devices", [1, 4])
def test_jax_trains_as_tensorflow(alone, jax, devices, record_property):
    found = load(jax / str(devices) / "weights.npz")
    assert found[3] == devices
    record_property("largest_difference", largest_difference(found, alone))
    compare(found, alone)


def load_workers(folder):
    """What two workers of one run have found, which is the same."""
    first, second = (load(folder / f"weights-{worker}.npz") for worker in range(2))
    assert first[3] == second[3] == 4  # two of each worker
    assert largest_difference(first, second) == 0
    return first


@needs_jax
@pytest.mark.parametrize("name", ["both", "connected"])
def test_two_workers_of_jax_train_as_one_process(alone, jax, record_property, name):
    """Connected by this package, or by Keras before the strategy "auto" is created."""
    found = load_workers(jax / name)
    record_property("largest_difference", largest_difference(found, alone))
    compare(found, alone)
    compare(found, load(jax / "4" / "weights.npz"))
    files = {path.name for path in (jax / name / "run").iterdir()}
    assert files == {path.name for path in (jax / "4" / "run").iterdir()}


@needs_jax
def test_two_workers_of_jax_decode_each_image_once_in_an_epoch(jax):
    counts = []
    for worker in range(2):
        with np.load(jax / "both" / f"weights-{worker}.npz") as file:
            counts.append(Counter(file["decoded"].tolist()))
    # Three epochs with validations, and the test images in `evaluate` and for the accuracy.
    both = counts[0] + counts[1]
    assert Counter(both.values()) == {3: 50 + 21, 2: 33}
    shares = [count.total() / both.total() for count in counts]
    assert min(shares) > 0.4


@needs_jax
def test_a_worker_of_jax_that_is_killed_ends_the_other_and_both_resume(jax):
    """By a `ConnectionError`, unless the library of collectives ends the process itself."""
    assert float((jax / "halved" / "seconds.txt").read_text()) < 60
    left = (jax / "halved" / "left.txt").read_text().splitlines()
    assert any(name.startswith("run/state/") for name in left)
    # Without a rounding of its own: the same devices add the same numbers.
    compare(load_workers(jax / "halved"), load_workers(jax / "both"), atol=1e-7)


@needs_jax
def test_jax_killed_within_an_epoch_resumes(jax, record_property):
    left = (jax / "killed" / "left.txt").read_text().splitlines()
    assert "weights.npz" not in left and any(name.startswith("run/state/") for name in left)
    found, expected = (load(jax / name / "weights.npz") for name in ("killed", "4"))
    record_property("largest_difference", largest_difference(found, expected))
    compare(found, expected, atol=1e-7)


@needs_jax
def test_the_file_of_jax_has_the_same_outputs_in_tensorflow(jax):
    with np.load(jax / "4" / "weights.npz") as file:
        expected = file["outputs"]
    assert np.ptp(expected) > 0.1
    outputs = reopened_outputs(jax / "4" / "run" / "best.keras")
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
