"""Small releases of training runs: the file, the card, and mistakes."""

import json
import re
import shutil

import numpy as np
import pytest

import vit_tf
from benchmarks import release
from vit_tf.checkpoints import released
from vit_tf.scripts import train

TINY = "--image-size 8 --patch-size 4 --num-layers 1 --num-heads 1 --hidden-dim 16 --mlp-dim 16"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run on a few digits."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    command = [
        *f"{TINY} --take 300 --epochs 2 --data-dir".split(),
        "/not/needed",
        "--out",
        str(out),
    ]
    assert train.main(command) == 0
    return out


@pytest.mark.slow
def test_card_and_file_are_of_the_run(run, tmp_path, monkeypatch, capsys):
    line = [str(run), "--name", "vit-digits", "--trained", "a moment", "--out", str(tmp_path)]
    assert release.main(line) == 0
    printed_text, card = capsys.readouterr().out, (tmp_path / "vit-digits.md").read_text()
    monkeypatch.setattr(released, "BUNDLED", tmp_path)
    model = vit_tf.load_pretrained("vit-digits")
    assert model.name == "vit-digits"  # not "digits", the run's
    (test,) = vit_tf.data.load("digits", image_size=8, splits=("test",))
    right = [np.argmax(model(images), -1) == labels for images, labels in test]
    accuracy = 100 * np.concatenate(right).mean()
    trained = 100 * json.loads((run / "result.json").read_text())["test_accuracy"]
    rows = dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", card, re.MULTILINE))
    assert rows["accuracy of this file"].startswith(f"{accuracy:.2f} % (")
    assert rows["accuracy as trained"].startswith(f"{trained:.2f} % (")
    assert rows["accuracy of this file"].endswith("of 360 test images")
    assert (
        rows["accuracy of this file"] in printed_text
        and rows["accuracy as trained"] in printed_text
    )
    assert rows["training"] == "2 epochs of 3 steps of 128 images, a moment"
    assert rows["parameters"].startswith(f"{model.count_params():,}, ")
    assert rows["command"] == (f"`vit-tf train {TINY} --take 300 --epochs 2 --out runs/vit-digits`")
    assert "not/needed" not in card and str(tmp_path) not in card and str(run) not in card
    assert "num_layers=1" in rows["model"] and "**Limits.** Small" in card


def test_the_interval_is_wilsons():
    """Of 8 right in 10, from the closed form."""
    z, n, p = 1.959964, 10, 0.8
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    low, high = 100 * (middle - reach), 100 * (middle + reach)
    expected = f"80.00 % ({low:.1f} to {high:.1f}) of 10 test images"
    assert release.share(np.arange(10) < 8) == expected


def test_a_card_contains_no_path_of_the_machine():
    command = "vit-tf train --data /home/me/photos/ --data-dir=/d --flip --out '/home/me/my runs'"
    stored = release._without_places(command, "vit-photos")
    assert stored == "vit-tf train --data photos --flip --out runs/vit-photos"


@pytest.mark.slow
def test_mistakes_take_one_line(run, tmp_path, capsys):
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run, unfinished)
    (unfinished / "result.json").unlink()
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    for name in ("result.json", "configuration.json"):
        (tuned / name).write_text(
            (run / name).read_text().replace("vit-tf train", "vit-tf finetune")
        )
    for line, words in (
        ([str(unfinished), "--name", "a"], "result.json' of a finished run of vit-tf train"),
        ([str(tuned), "--name", "a"], "Expected RUN to be a run of vit-tf train. Received: one of"),
        ([str(run), "--name", "A b"], "--name of lower-case letters"),
    ):
        assert release.main([*line, "--out", str(tmp_path / "zoo")]) == 2
        (printed_text,) = capsys.readouterr().err.splitlines()
        assert words in printed_text and not (tmp_path / "zoo").exists()
