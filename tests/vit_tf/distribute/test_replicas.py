"""Several devices and processes train, validate and test as one device does, in both backends."""

import functools
import importlib.util
import signal
import subprocess
import sys

import numpy as np
import pytest
from device_worker import environment, largest_difference, load, reopened_outputs, run
from paths import HELPERS, free_addresses

WORKER = HELPERS / "device_worker.py"
LIMIT = 900  # seconds, of a busy machine

pytestmark = pytest.mark.slow
needs_jax = pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed")


def start(folder, backend, devices, *runs, **variables):
    """A process that makes some runs, each of a subfolder, a strategy, a batch size and a kill."""
    folder.mkdir(exist_ok=True)
    words = [",".join(map(str, (folder / name, *how))) for name, *how in runs]
    for name, *_ in runs:
        (folder / name).mkdir(exist_ok=True)
    with open(folder / f"log{variables.get('VIT_TF_WORKER', '')}.txt", "a") as file:
        return subprocess.Popen(
            [sys.executable, WORKER, str(devices), *words],
            env=environment(backend, devices, **variables),
            stdout=file,
            stderr=file,
        )


def finish(process, folder, status=0):
    try:
        found = process.wait(LIMIT)
    finally:
        process.kill()
    logs = "\n".join(path.read_text()[-3000:] for path in folder.glob("log*.txt"))
    assert found == status, logs


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Function of a batch size to (weights, history, scores) on one device; each is kept."""
    folder = tmp_path_factory.mktemp("alone")
    return functools.cache(lambda batch_size: run(folder / str(batch_size), "none", batch_size))


@pytest.fixture(scope="module")
def three_replicas(tmp_path_factory):
    """The folder of what three replicas train at two batch sizes, in one process."""
    folder = tmp_path_factory.mktemp("three")
    finish(start(folder, "tensorflow", 3, ("16", "mirrored", 16), ("20", "mirrored", 20)), folder)
    return folder


@pytest.fixture(scope="module")
def jax(tmp_path_factory):
    """The folder of what JAX trains on one and on four devices, before it is killed in a run.

    By SIGKILL after step 6 of 12, of epochs of four steps; the last state is of step 6.
    """
    folder = tmp_path_factory.mktemp("jax")
    runs = ("1", "none", 15), ("4", "mirrored", 15), ("killed", "mirrored", 15, 7)
    finish(start(folder, "jax", 4, *runs), folder, -signal.SIGKILL)
    return folder


def compare(found, expected, atol=1e-5):
    assert largest_difference(found, expected) < atol
    for name, values in expected[1].items():
        np.testing.assert_allclose(found[1][name], values, atol=1e-5, err_msg=name)
    for name, value in expected[2].items():
        assert found[2][name] == pytest.approx(value, abs=1e-5), name


def test_two_replicas_train_on_shuffled_data_as_one_device(alone, tmp_path, record_property):
    expected, found = alone(15), run(tmp_path, "mirrored", 15)
    record_property("largest_difference", largest_difference(found, expected))
    compare(found, expected)


@pytest.mark.parametrize("batch_size", [16, 20])
def test_three_replicas_train_on_shuffled_data_as_one_device(
    alone, three_replicas, batch_size, record_property
):
    expected = alone(batch_size)
    found = load(three_replicas / str(batch_size) / "weights.npz")
    record_property("largest_difference", largest_difference(found, expected))
    compare(found, expected)


@needs_jax
@pytest.mark.parametrize("devices", [1, 4])
def test_jax_trains_as_tensorflow(alone, jax, devices, record_property):
    expected, found = alone(15), load(jax / str(devices) / "weights.npz")
    record_property("largest_difference", largest_difference(found, expected))
    compare(found, expected)


@pytest.mark.parametrize(
    "backend, devices", [("tensorflow", 1), pytest.param("jax", 2, marks=needs_jax)]
)
def test_two_workers_train_as_one_process(alone, tmp_path, backend, devices, record_property):
    addresses = free_addresses(2)
    workers = [
        start(
            *(tmp_path, backend, devices, ("both", "multiworker", 15)),
            VIT_TF_WORKERS=addresses,
            VIT_TF_WORKER=str(worker),
        )
        for worker in range(2)
    ]
    try:
        expected = alone(15)
        for worker in workers:
            finish(worker, tmp_path)
    finally:
        for worker in workers:
            worker.kill()
    first, second = (load(tmp_path / "both" / f"weights-{worker}.npz") for worker in range(2))
    assert largest_difference(first, second) == 0
    record_property("largest_difference", largest_difference(first, expected))
    compare(first, expected)


@needs_jax
def test_jax_killed_within_an_epoch_resumes(jax, record_property):
    states = {path.name for path in (jax / "killed" / "run" / "state").iterdir()}
    assert not (jax / "killed" / "weights.npz").exists() and states
    finish(start(jax, "jax", 4, ("killed", "mirrored", 15)), jax)
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
