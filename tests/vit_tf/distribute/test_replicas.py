"""Several devices train, validate and test as one does, in both backends; so do workers of JAX."""

import importlib.util
import sys
from collections import Counter

import device_worker
import multiworker_worker
import numpy as np
import pytest
from device_worker import compilation_cache, largest_difference, load, reopened_outputs, run
from paths import HELPERS, process_group

WORKER = HELPERS / "device_worker.py"

pytestmark = pytest.mark.slow
needs_jax = pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed")


def make_runs(folder, backend, *jobs):
    """Let four devices do some jobs, each in a process of its own; see `device_worker.py`."""
    command, log = [sys.executable, WORKER, "4", *jobs], folder / "log.txt"
    environment = device_worker.environment(backend, 4, **compilation_cache(folder / "cache"))
    with process_group(command, log, cwd=folder, env=environment) as process:
        # A job that hangs is killed after its own limit; this one holds for all of them.
        status = process.wait((len(jobs) + 1) * device_worker.LIMIT)
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
    """The folder of what JAX trains on one device and on four.

    One run is killed by SIGKILL after step 6 of 12, of epochs of four steps, and goes on in another
    process; the last state is of step 6.
    """
    jobs = ("1,none,15;4,mirrored,15;killed,mirrored,15,7", "killed,mirrored,15")
    return make_runs(tmp_path_factory.mktemp("jax"), "jax", *jobs)


@pytest.fixture(scope="module")
def jax_workers(tmp_path_factory):
    """The folder of what JAX trains in two processes of two devices each.

    Of the run `halved`, of 12 steps, the second process is killed after step 6, where the last
    state is; the first process, which is the chief, after step 10 in all; then both end it.
    """
    return make_runs(
        tmp_path_factory.mktemp("jax_workers"),
        "jax",
        "connected,connected,15@2",
        "both,multiworker,15;halved,multiworker,15,7,1@2",
        "halved,multiworker,15,4,0@2",
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
def test_two_workers_of_jax_train_as_one_process(alone, jax, jax_workers, record_property, name):
    """Connected by this package, or by Keras before the strategy "auto" is created."""
    found = load_workers(jax_workers / name)
    record_property("largest_difference", largest_difference(found, alone))
    compare(found, alone)
    compare(found, load(jax / "4" / "weights.npz"))
    files = {path.name for path in (jax_workers / name / "run").iterdir()}
    assert files == {path.name for path in (jax / "4" / "run").iterdir()}


@needs_jax
def test_two_workers_of_jax_decode_each_image_once_in_an_epoch(jax_workers):
    counts = []
    for worker in range(2):
        with np.load(jax_workers / "both" / f"weights-{worker}.npz") as file:
            counts.append(Counter(file["decoded"].tolist()))
    # Three epochs with validations, and the test images in `evaluate` and for the accuracy.
    both = counts[0] + counts[1]
    assert Counter(both.values()) == {3: 50 + 21, 2: 33}
    shares = [count.total() / both.total() for count in counts]
    assert min(shares) > 0.4


@needs_jax
def test_a_worker_of_jax_that_is_killed_ends_the_other_and_both_resume(jax_workers):
    """By a `ConnectionError`, unless the library of collectives ends the process itself."""
    seconds = (jax_workers / "halved" / "seconds.txt").read_text().split()
    assert len(seconds) == 2 and max(map(float, seconds)) < 60
    left = (jax_workers / "halved" / "left.txt").read_text().splitlines()
    assert any(name.startswith("run/state/") for name in left)
    # Without a rounding of its own: the same devices add the same numbers.
    compare(load_workers(jax_workers / "halved"), load_workers(jax_workers / "both"), atol=1e-7)


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
