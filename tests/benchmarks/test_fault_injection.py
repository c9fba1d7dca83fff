"""Killed processes, full disks, vanished files: what is left is whole, and the next run goes on."""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from PIL import Image
from training_runs import newest_state

from benchmarks import fault_injection, killed_runs as files
from benchmarks.killed_runs import Job, run_job
from vit_tf.analysis.engine import store
from vit_tf.data import files as package_files, reading
from vit_tf.scripts import analyze as analyze_script, study as study_script, train as train_script
from vit_tf.training import checkpointing

TINY = "--image-size 8 --take 40 --epochs 4 --batch-size 20 --patch-size 8 --num-layers 1"
TINY += " --num-heads 1 --hidden-dim 16 --mlp-dim 16 --dropout-rate 0.1 --ema 0.9 --mixup 0.2"
TINY += " --strategy none"


def run_train(out, *more):
    """The exit status of a training in a folder, within this process."""
    return train_script.main([*TINY.split(), *more, "--out", str(out)])


def after_save(monkeypatch, count, action):
    """Call a function as soon as so many states have been saved."""
    real, calls = checkpointing.save_state, []

    def save(*args, writer, **how):
        real(*args, **how)
        calls.append(args)
        if len(calls) == count:
            action()

    monkeypatch.setattr(checkpointing, "save_state", save)


def expect_two_epochs(out, capsys, message):
    """One line about a failure, and the files of two epochs, whole."""
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: ") and message in line]
    assert not [line for line in lines if "Traceback" in line or "[[" in line]
    assert newest_state(out) == "epoch-0002.npz"
    assert files.problems_of(out) == []
    assert not [path for path in out.rglob(".*") if path.name.startswith(files.PARTIAL)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a whole run."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run_train(out) == 0
    return out


@pytest.mark.slow
def test_killed_script_ends_as_the_undisturbed_one(undisturbed, tmp_path):
    job, out = Job("train", TINY), tmp_path / "out"
    out.mkdir()
    # The 5th file of a process is that of a state or a log, whichever the best model allows.
    died, observations, _ = run_job(job, out, (5, 0))
    assert died and len(observations) > 5
    assert not (out / "result.json").exists() and files.problems_of(out) == []
    assert not run_job(job, out)[0]
    difference, count, problems = files.compare(out, undisturbed)
    assert (difference, problems, count) == (0, [], 7)


@pytest.mark.long
@pytest.mark.parametrize("name", fault_injection.JOBS)
def test_scripts_resume_after_random_kills(tmp_path, name):
    kills = 6 if "workers" in name else 20
    rows, problems = fault_injection.inject_faults(
        name, fault_injection.JOBS[name], kills, 0, tmp_path
    )
    assert problems == [] and sum(row["kills"] for row in rows) >= kills


def test_moments_reach_every_phase():
    timing = fault_injection.Timing(start=5.0, between=0.5, seconds=20.0)
    rng = random.Random(0)
    moments = [fault_injection.draw_moment(rng, timing) for _ in range(200)]
    assert {count for count, _ in moments} == set(range(7))
    assert max(s for count, s in moments if not count) > 4
    assert min(s for count, s in moments if count) < 0.01 < max(s for c, s in moments if c)
    assert all(fault_injection.draw_moment(rng, timing, workers=2)[0] for _ in range(200))


@pytest.mark.slow
def test_harness_sees_what_is_damaged_or_differs(undisturbed, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed, copy)
    assert files.compare(copy, undisturbed) == (0, 7, [])
    with np.load(copy / "state" / "epoch-0004.npz") as state:
        arrays = dict(state)
    arrays["v00000"] = arrays["v00000"] + np.float32(0.5)
    np.savez(copy / "state" / "epoch-0004.npz", **arrays)
    difference, _, problems = files.compare(copy, undisturbed)
    assert difference == pytest.approx(0.5) and "epoch-0004.npz is not the same" in problems[0]
    assert files.compare(copy, undisturbed, 0.6)[2] == []
    for events in (copy / "tensorboard" / "train").iterdir():
        events.unlink()
    assert any(line.startswith("tensorboard is") for line in files.compare(copy, undisturbed, 9)[2])
    (copy / ".partial-best.keras").touch()
    (copy / "log.csv").unlink()
    text = " ".join(files.compare(copy, undisturbed)[2])
    assert ".partial-best.keras is left over" in text and "log.csv is only in one" in text
    for name in ("model.keras", "state/epoch-0004.npz", "result.json"):
        contents = (copy / name).read_bytes()
        (copy / name).write_bytes(contents[: len(contents) // 2])
        assert [line.split()[0] for line in files.problems_of(copy)] == [name]
        (copy / name).write_bytes(contents)


def test_harness_sees_what_is_made_again_or_missing(tmp_path):
    finished = ["figures/a.png", "models/e.json", "results/d.nc"]
    for name in (*finished, "figures/b.png", "models/c.keras"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "figures" / "keys.json").write_text('{"a": "key"}')
    before = files.made_once(tmp_path)
    assert sorted(before) == finished
    store.write_whole(tmp_path / "results" / "d.nc", lambda partial: partial.touch())
    assert [name for name, stamp in files.made_once(tmp_path).items() if stamp != before[name]] == [
        "results/d.nc"
    ]
    page = tmp_path / "report.html"
    page.write_text('<a href="#top"></a><a href="results/d.nc"></a></html>')
    assert files.read(page) == {}
    (tmp_path / "results" / "d.nc").unlink()
    with pytest.raises(ValueError, match=r"link to results/d\.nc"):
        files.read(page)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [200, 10_000], ids=["the log", "the state"])
def test_full_disk_leaves_the_last_state(undisturbed, tmp_path, monkeypatch, capsys, limit):
    out, (soft, hard) = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == 200:  # the room ends when the log is written, so that it lags behind
        real = checkpointing.write_log

        def write_log(history, directory):
            if len(history["loss"]) == 2:
                fill()
            real(history, directory)

        monkeypatch.setattr(checkpointing, "write_log", write_log)
        # The state of the epoch is there before its log.
        monkeypatch.setattr(checkpointing.BackgroundWriter, "submit", lambda _, write: write())

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

    if limit != 200:
        after_save(monkeypatch, 2, fill)
    try:
        assert run_train(out) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    expect_two_epochs(out, capsys, os.strerror(errno.EFBIG))
    monkeypatch.undo()
    assert run_train(out) == 0
    assert files.compare(out, undisturbed)[::2] == (0, [])


@pytest.mark.slow
def test_read_only_folder_leaves_the_last_state(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"

    def refuse(path, target):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    after_save(monkeypatch, 2, lambda: monkeypatch.setattr(os, "replace", refuse))
    assert run_train(out) == 2
    expect_two_epochs(out, capsys, "Read-only file system")


@pytest.mark.slow
@pytest.mark.parametrize("parent", ["a file", "a read-only folder"])
def test_folder_that_cannot_be_made_is_one_line(tmp_path, capsys, parent):
    place = tmp_path / "place"
    if parent == "a file":
        place.touch()
    else:
        if os.geteuid() == 0:
            pytest.skip("the system lets root write anywhere")
        place.mkdir(mode=0o555)
    assert run_train(place / "out") == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith("error: ") and str(place) in errors[0]


@pytest.mark.slow
def test_vanished_images_leave_the_last_state(tmp_path, monkeypatch, capsys, rng):
    data = tmp_path / "data"
    for name in ("ape", "bee"):
        (data / name).mkdir(parents=True)
        for number in range(30):
            pixels = rng.integers(0, 256, (8, 8, 3)).astype("uint8")
            Image.fromarray(pixels).save(data / name / f"{number}.png")
    monkeypatch.setattr(reading, "CACHE_BYTES", 0)
    after_save(monkeypatch, 2, lambda: [p.unlink() for p in (data / "ape").iterdir()])
    assert run_train(tmp_path / "out", "--data", str(data)) == 2
    expect_two_epochs(tmp_path / "out", capsys, "File not found")


@pytest.mark.slow
def test_loss_that_is_not_finite_is_one_line(tmp_path, monkeypatch, capsys):
    real = checkpointing.Checkpoint._check_finite
    observations = []

    def check(self, loss):
        observations.append(loss)
        # Two steps and one validation in each epoch: the 7th is in the third.
        real(self, float("nan") if len(observations) == 7 else loss)

    monkeypatch.setattr(checkpointing.Checkpoint, "_check_finite", check)
    assert run_train(tmp_path) == 2
    expect_two_epochs(tmp_path, capsys, "became nan in epoch 3")


HOLD = "import runpy, sys, time; only = runpy.run_path(sys.argv[1])['only_process']\n"
HOLD += "with only(sys.argv[2]): print('held', flush=True); time.sleep(60)"


@pytest.mark.slow
def test_one_process_at_a_time(undisturbed, tmp_path, capsys):
    out = tmp_path / "out"
    command = [sys.executable, "-c", HOLD, package_files.__file__, out]
    model = str(undisturbed / "model.keras")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        measured = ["--figures", "1", "--take-test", "60", "--strategy", "none", "--out", str(out)]
        study, analyze = study_script.main(measured), analyze_script.main([model, *measured])
        assert (study, analyze, run_train(out)) == (2, 2, 2)
        lines = capsys.readouterr().err.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == 3 and all("Another process is using" in e for e in errors)
        assert os.listdir(out) == [".lock"]
        other.send_signal(signal.SIGKILL)
    assert os.listdir(out) == [".lock"] and run_train(out) == 0
    assert not (out / ".lock").exists()
    assert files.compare(out, undisturbed)[::2] == (0, [])


def test_results_are_on_the_disk_before_their_name(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append("flush"))
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: order.append("rename") or real(*paths))
    store.write_whole(tmp_path / "a.txt", lambda partial: partial.write_text("whole"))
    assert order == ["flush", "rename", "flush"]


@pytest.mark.parametrize("place", [0, 1])
def test_only_the_first_of_several_workers_writes_results(tmp_path, monkeypatch, place):
    monkeypatch.setattr(store, "this_worker", lambda strategy: (place, 2))
    stored = store.store_result(
        xr.DataArray(np.arange(3.0)), tmp_path / "a.nc", "key", {"seconds": 1}
    )
    assert stored.attrs == {"key": "key", "seconds": 1}
    assert os.listdir(tmp_path) == (["a.nc"] if place == 0 else [])
