"""Runs with augmentations that are killed and resumed end with the weights of undisturbed ones."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from paths import HELPERS
from resume_worker import ALONE, RECIPES, make_run, run
from training_runs import kill_at, newest_state

pytestmark = pytest.mark.usefixtures("without_xla")  # as in the worker

WORKER = HELPERS / "resume_worker.py"


def equal(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.slow
def test_each_augmentation_changes_the_batches():
    """So that what is resumed below is not without it."""
    _, _, training, _ = make_run("none")
    plain, again, *changed = (  # whose order is another one each time
        np.sort(
            np.concatenate([images for images, _ in RECIPES[one].augment_batches(training, 10)]), 0
        )
        for one in ("none", "none", *ALONE)
    )
    np.testing.assert_array_equal(again, plain)
    for name, images in zip(ALONE, changed, strict=True):
        assert images.shape == plain.shape and (images != plain).any(), name


@pytest.mark.slow
def test_resumed_pretraining_has_the_undisturbed_weights_bit_for_bit(tmp_path, monkeypatch):
    """Other recipes are those of `test_long_runs.py`."""
    weights, history = run("masks", tmp_path / "whole")
    folder = tmp_path / "killed"
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        kill_at(context, "on_train_batch_end", 10)
        run("masks", folder)
    assert newest_state(folder) == "epoch-0002.npz"
    again, history_again = run("masks", folder)
    assert equal(again, weights) and history_again == history


@pytest.mark.slow
def test_a_run_of_a_killed_process_resumes_in_another(tmp_path):
    """With all augmentations at once, RandAugment among them."""
    folder = tmp_path / "killed"

    def work(step, number):
        line = [sys.executable, WORKER, "every", folder, str(step), str(int(number))]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == -number, done.stderr[-3000:]

    weights, history = run("every", tmp_path / "whole", save_every=3)
    # A pass has 4 steps.
    work(6, signal.SIGTERM)
    assert newest_state(folder) == "epoch-0001-step-000002.npz"
    work(5, signal.SIGKILL)
    assert newest_state(folder) == "epoch-0002-step-000001.npz"
    again, history_again = run("every", folder, save_every=3)
    assert history_again == history and len(history["loss"]) == 3
    assert equal(again, weights)
