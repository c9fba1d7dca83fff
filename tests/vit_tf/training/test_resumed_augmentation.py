"""A run with all augmentations that is killed and resumed ends with the weights of a whole one."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from paths import HELPERS
from resume_worker import ALONE, RECIPES, make_run, run
from training_runs import newest_state

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
def test_a_run_of_a_killed_process_resumes_in_another(tmp_path):
    """With all augmentations at once, RandAugment among them, and by XLA, as users train."""
    folder = tmp_path / "killed"

    def work(step, number):
        line = [sys.executable, WORKER, "every", folder, str(step), str(int(number))]
        done = subprocess.run(line, capture_output=True, text=True, timeout=600)
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
