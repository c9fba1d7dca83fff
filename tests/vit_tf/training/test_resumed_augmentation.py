"""Runs with augmentations that are killed and resumed end with the weights of undisturbed ones."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from paths import HELPERS
from resume_worker import ALONE, RECIPES, make_run, run
from training_runs import kill_at, newest_state

WORKER = HELPERS / "resume_worker.py"


def equal(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ALONE)
def test_each_augmentation_changes_the_batches(name):
    """So that what is resumed below is not without it."""
    _, _, training, _ = make_run("none")
    plain, again, changed = (  # whose order is another one each time
        np.sort(
            np.concatenate([images for images, _ in RECIPES[one].augment_batches(training, 10)]), 0
        )
        for one in ("none", "none", name)
    )
    np.testing.assert_array_equal(again, plain)
    assert changed.shape == plain.shape and (changed != plain).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast", "fine-tuning", "masks"])
def test_resumed_weights_are_the_undisturbed_ones_bit_for_bit(tmp_path, monkeypatch, name):
    """With all augmentations that are quick to trace at once, in each kind of recipe."""
    weights, history = run(name, tmp_path / "whole")
    folder = tmp_path / "killed"
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        kill_at(context, "on_train_batch_end", 14 if name == "fine-tuning" else 10)
        run(name, folder)
    assert newest_state(folder) == "epoch-0002.npz"
    again, history_again = run(name, folder)
    assert equal(again, weights) and history_again == history
    if name == "fast":
        assert not equal(weights, run("none", tmp_path / "plain")[0])


@pytest.mark.slow
def test_a_run_of_a_killed_process_resumes_in_another(tmp_path):
    """With all augmentations at once, RandAugment among them."""

    def work(folder, *step, status=0):
        line = [sys.executable, WORKER, "every", tmp_path / folder, *map(str, step)]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == status, done.stderr[-3000:]

    weights, history = run("every", tmp_path / "whole", save_every=3)
    # A pass has 4 steps.
    work("killed", 6, int(signal.SIGTERM), status=-signal.SIGTERM)
    assert newest_state(tmp_path / "killed") == "epoch-0001-step-000002.npz"
    work("killed", 5, status=-signal.SIGKILL)
    assert newest_state(tmp_path / "killed") == "epoch-0002-step-000001.npz"
    work("killed")
    with np.load(tmp_path / "killed" / "weights.npz") as killed:
        assert json.loads(str(killed["history"])) == history and len(history["loss"]) == 3
        assert equal([killed[name] for name in killed.files if name != "history"], weights)
