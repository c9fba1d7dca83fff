"""Several devices and processes train, validate and test as one device does, in both backends."""

import importlib.util
import signal
import subprocess
import sys

import numpy as np
import pytest
from device_worker import environment, largest_difference, load, run
from paths import HELPERS, free_addresses

import vit_tf

WORKER = HELPERS / "device_worker.py"
LIMIT = 900  # seconds, of a busy machine

pytestmark = pytest.mark.slow
needs_jax = pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed")


def start(folder, backend, strategy, devices, batch_size, *words, **variables):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, WORKER, folder, strategy, str(devices), str(batch_size), *words]
    with open(folder / f"log{variables.get('VIT_TF_WORKER', '')}.txt", "a") as file:
        return subprocess.Popen(
            command, env=environment(backend, devices, **variables), stdout=file, stderr=file
        )


def finish(process, folder, status=0):
    try:
        found = process.wait(LIMIT)
    finally:
        process.kill()
    logs = "\n".join(path.read_text()[-3000:] for path in folder.glob("log*.txt"))
    assert found == status, logs


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder of what `trained` has trained, with a folder for each case."""
    return tmp_path_factory.mktemp("devices")


def folder_of(root, case):
    return root / "-".join(map(str, case))


@pytest.fixture(scope="module")
def trained(root):
    """Function that trains one case; (weights, history, scores), kept.

    In a process of its own, unless one or both of the two CPUs of this one are what it takes.
    """
    kept = {}

    def train(*case):
        if case not in kept:
            folder = folder_of(root, case)
            if case[:3] in (("tensorflow", "none", 1), ("tensorflow", "mirrored", 2)):
                kept[case] = run(folder, case[1], case[3])
            else:
                finish(start(folder, *case), folder)
                kept[case] = load(folder / "weights.npz")
        return kept[case]

    return train


def compare(found, expected, atol=1e-5):
    assert largest_difference(found, expected) < atol
    for name, values in expected[1].items():
        np.testing.assert_allclose(found[1][name], values, atol=1e-5, err_msg=name)
    for name, value in expected[2].items():
        assert found[2][name] == pytest.approx(value, abs=1e-5), name


@pytest.mark.parametrize("replicas, batch_size", [(2, 15), (3, 16), (3, 20)])
def test_replicas_train_on_shuffled_data_as_one_device(
    trained, replicas, batch_size, record_property
):
    expected = trained("tensorflow", "none", 1, batch_size)
    found = trained("tensorflow", "mirrored", replicas, batch_size)
    record_property("largest_difference", largest_difference(found, expected))
    compare(found, expected)


@needs_jax
@pytest.mark.parametrize("devices", [1, 4])
def test_jax_trains_as_tensorflow(trained, devices, record_property):
    expected = trained("tensorflow", "none", 1, 15)
    found = trained("jax", "mirrored", devices, 15)
    record_property("largest_difference", largest_difference(found, expected))
    compare(found, expected)


@pytest.mark.parametrize(
    "backend, devices", [("tensorflow", 1), pytest.param("jax", 2, marks=needs_jax)]
)
def test_two_workers_train_as_one_process(trained, tmp_path, backend, devices, record_property):
    expected = trained("tensorflow", "none", 1, 15)
    addresses = free_addresses(2)
    workers = [
        start(
            *(tmp_path, backend, "multiworker", devices, 15),
            VIT_TF_WORKERS=addresses,
            VIT_TF_WORKER=str(worker),
        )
        for worker in range(2)
    ]
    try:
        for worker in workers:
            finish(worker, tmp_path)
    finally:
        for worker in workers:
            worker.kill()
    first, second = (load(tmp_path / f"weights-{worker}.npz") for worker in range(2))
    assert largest_difference(first, second) == 0
    record_property("largest_difference", largest_difference(first, expected))
    compare(first, expected)


@needs_jax
def test_jax_killed_within_an_epoch_resumes(trained, tmp_path, record_property):
    """By SIGKILL after step 6 of 12, of epochs of four steps; the last state is of step 6."""
    case = ("jax", "mirrored", 4, 15)
    expected = trained(*case)
    finish(start(tmp_path, *case, "7"), tmp_path, -signal.SIGKILL)
    states = {path.name for path in (tmp_path / "run" / "state").iterdir()}
    assert not (tmp_path / "weights.npz").exists() and states
    finish(start(tmp_path, *case), tmp_path)
    found = load(tmp_path / "weights.npz")
    record_property("largest_difference", largest_difference(found, expected))
    compare(found, expected, atol=1e-7)


@needs_jax
def test_the_file_of_jax_has_the_same_outputs_in_tensorflow(trained, root, tmp_path):
    program = """
import sys, numpy as np, keras, vit_tf
model = vit_tf.load_model(sys.argv[1])
np.save(sys.argv[3], keras.ops.convert_to_numpy(model(np.load(sys.argv[2]))))
"""
    case = ("jax", "mirrored", 4, 15)
    trained(*case)
    images = np.random.default_rng(0).uniform(-1, 1, (5, 8, 8, 3)).astype("float32")
    np.save(tmp_path / "images.npy", images)
    path = folder_of(root, case) / "run" / "best.keras"
    command = [sys.executable, "-c", program, path, tmp_path / "images.npy", tmp_path / "out.npy"]
    subprocess.run(command, env=environment("jax"), check=True, timeout=LIMIT)
    expected = np.load(tmp_path / "out.npy")
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(vit_tf.load_model(path)(images), expected, atol=1e-5)
