"""The front door: killed, run again, and given mistakes."""

import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import vit_tf
from vit_tf import data, load_model
from vit_tf.scripts import train as script

TINY = "--image-size 16 --patch-size 8 --num-layers 1 --num-heads 1 --hidden-dim 16 --mlp-dim 16"
EPOCHS = 25


def epochs(out):
    """The epochs in a run's log, none if there is no log yet."""
    log = out / "log.csv"
    if not log.exists():
        return []
    with open(log) as file:
        return [int(row["epoch"]) for row in csv.DictReader(file)]


@pytest.mark.slow
def test_a_killed_run_resumes(tmp_path):
    recipe = f"--epochs {EPOCHS} --batch-size 100 --learning-rate 0.01 --shift 1"
    command = [
        sys.executable,
        "-m",
        "vit_tf",
        "train",
        *TINY.split(),
        *recipe.split(),
        "--out",
        tmp_path,
    ]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    killed = subprocess.Popen(command, **quiet | {"stdout": subprocess.DEVNULL})
    deadline = time.monotonic() + 120
    while len(epochs(tmp_path)) < 2 and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    logged = len(epochs(tmp_path))
    assert 2 <= logged < EPOCHS and not (tmp_path / "result.json").exists()
    # An epoch is logged just before its state is on disk: the kill may come between the two.
    saved = max(int(path.stem.split("-")[1]) for path in (tmp_path / "state").glob("epoch-*.npz"))
    assert logged - 1 <= saved <= logged

    again = subprocess.run(command, timeout=120, **quiet)
    assert again.returncode == 0, again.stdout
    assert epochs(tmp_path) == list(range(1, EPOCHS + 1))
    run_again = [int(epoch) for epoch in re.findall(rf"^Epoch (\d+)/{EPOCHS}", again.stdout, re.M)]
    assert run_again == list(range(saved + 1, EPOCHS + 1))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]

    result = json.loads((tmp_path / "result.json").read_text())
    model = load_model(tmp_path / "model.keras")
    (test,) = data.load("digits", image_size=16, splits=("test",))
    right = [np.argmax(model(x), axis=1) == y for x, y in test.as_numpy_iterator()]
    assert result["test_accuracy"] == pytest.approx(np.concatenate(right).mean())
    assert result["test_accuracy"] > 0.6 and result["parameters"] == model.count_params()
    assert f"test accuracy {100 * result['test_accuracy']:.2f} %" in again.stdout
    assert model.class_names == tuple("0123456789")


def test_options_reach_the_model(tmp_path):
    line = f"{TINY} --pooling gap --without-skips block00/mlp --out {tmp_path}"
    vit = script.make_model(script.parse(line.split()), (16, 16, 3), 10)
    assert "block00/mlp/skip" not in vit.taps and vit.token_grid.prefix == 0
    line = f"--model bit --units 2 1 --width-factor 1 --out {tmp_path}"
    bit = script.make_model(script.parse(line.split()), (16, 16, 3), 10)
    assert [unit.filters for unit in bit.units] == [64, 64, 128]
    line = f"--variant Ti/16 --num-layers 1 --out {tmp_path}"
    assert script.make_model(script.parse(line.split()), (16, 16, 3), 2).head.kernel.shape[0] == 192


@pytest.mark.slow
def test_images_of_a_recipe_are_framed_as_its_paper_has_them():
    options = script.parse(["--recipe", "plain-vit-s16", "--data", "digits", "--out", "x"])
    (found,) = script.preprocessing_of(options).values()
    assert found.size == (224, 224) and found.crop == 0.875
    model = script.make_model(options, (224, 224, 3), 2)
    assert model.preprocessing == found and model.pooling == "gap"
    options = script.parse(["--data", "digits", "--out", "x"])
    assert script.preprocessing_of(options) == {}


@pytest.mark.slow
def test_formation_is_probed_on_ten_images_of_each_class_once(tmp_path, monkeypatch):
    """Neither the crops nor the repeats of a training apply to the images of the probes."""
    line = f"{TINY} --record-formation 2 --repeats 3 --random-resized-crop 0.5 --out {tmp_path}"
    options = script.parse(line.split())
    arguments = {
        "image_size": 16,
        "batch_size": 50,
        "repeats": 3,
        "random_resized_crop": (0.5, 1.0),
    }
    _, validation = data.load("digits", **arguments)
    probes = []
    monkeypatch.setattr(
        "vit_tf.analysis.FormationRecorder", lambda features, images, **kw: probes.append(kw)
    )
    script.make_recorder(options, validation, arguments)
    images = np.concatenate([batch for batch, _ in probes[0]["probes"][0]])
    assert len(np.unique(images, axis=0)) == len(images) == 100


@pytest.mark.slow
@pytest.mark.parametrize(("num_images", "sizes"), [(40, [40]), (64, [64]), (150, [64, 64])])
def test_formation_is_recorded_on_few_validation_images(num_images, sizes, tmp_path):
    """Fewer validation images than a batch of the recorder are one smaller batch."""
    options = script.parse(f"{TINY} --record-formation 1 --out {tmp_path}".split())
    arguments = {"image_size": 16, "batch_size": 16}
    _, validation = data.load("digits", **arguments)
    validation = validation.unbatch().take(num_images).batch(16)
    recorder = script.make_recorder(options, validation, arguments)
    expected = np.concatenate([images for images, _ in validation.as_numpy_iterator()])
    assert [len(images) for images in recorder._images] == sizes
    np.testing.assert_array_equal(np.concatenate(recorder._images), expected[: sum(sizes)])


def test_the_rate_of_a_recipe_is_that_of_the_examples_of_an_update():
    line = "--recipe vit-b16 --batch-size 512 --gradient-accumulation-steps 8 --data digits --out x"
    recipe = script.make_recipe(script.parse(line.split()))
    assert recipe == dataclasses.replace(
        vit_tf.recipe("vit-b16").recipe, gradient_accumulation_steps=8
    )
