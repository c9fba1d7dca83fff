"""Training compute of runs made here, against counts by hand, and mistakes."""

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import oracles
import pytest
import xarray as xr

import vit_tf
from vit_tf.analysis.plots import plot_compute
from vit_tf.scripts import compute, finetune, train as train_script

TINY = "--num-layers 1 --num-heads 1 --hidden-dim 8 --mlp-dim 8 --image-size 16 --patch-size 8"
DATA = "--take 150 --batch-size 64 --strategy none"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, without_xla):
    """A folder with a training of two epochs, one that was stopped and a study."""
    root = tmp_path_factory.mktemp("runs")
    line = f"{TINY} {DATA} --epochs 2 --out {root / 'vit'}"
    assert train_script.main(line.split()) == 0

    shutil.copytree(root / "vit", root / "stopped")
    for name in ("model.keras", "result.json"):
        (root / "stopped" / name).unlink()
    log = root / "stopped" / "log.csv"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))

    folder = root / "study/training/vit-cls-0123"
    shutil.copytree(root / "vit", folder)
    configuration = json.loads((folder / "configuration.json").read_text()) | {"data": None}
    (folder / "configuration.json").write_text(json.dumps(configuration))
    models = root / "study/models"
    models.mkdir()
    shutil.copy(root / "vit/model.keras", models / "vit-cls.keras")
    note = {"key": "0123", "row": {"model": "ViT-CLS", "test accuracy (%)": 12.5}}
    (models / "vit-cls.json").write_text(json.dumps(note))
    return root


@pytest.mark.slow
def test_every_image_counts_three_times(runs, tmp_path, capsys):
    # 8 steps of 64, 64, 22, 64, 64, 22, 64 and 64 images.
    folders = [runs / "vit", runs / "stopped", tmp_path / "tuned", runs / "study"]
    line = f"{runs / 'vit/model.keras'} {DATA} --steps 8 --num-validations 2 --out {folders[2]}"
    assert finetune.main(line.split()) == 0
    capsys.readouterr()
    line = [*map(str, folders), "--batch-size", "64", "--out", str(tmp_path)]
    assert compute.main(line) == 0
    with open(tmp_path / "compute.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["vit", "stopped", "tuned", "ViT-CLS"]
    images = [2 * 150, 150, 6 * 64 + 2 * 22, 2 * 3 * 64]
    assert [int(row["images"]) for row in rows] == images
    forward = oracles.count_flops(vit_tf.load_model(runs / "vit/model.keras"))
    assert {int(row["forward_flops"]) for row in rows} == {forward}
    assert [int(row["training_flops"]) for row in rows] == [3 * forward * n for n in images]

    noted = [json.loads((f / "result.json").read_text()) for f in (folders[0], folders[2])]
    assert int(rows[0]["parameters"]) == noted[0]["parameters"]
    shares = [row["test_accuracy"] for row in rows]
    assert shares[1] == "" and shares[3] == "0.125"
    for share, result in zip((shares[0], shares[2]), noted, strict=True):
        assert float(share) == pytest.approx(result["test_accuracy"])

    table = capsys.readouterr().out.splitlines()[-5:]
    assert len({len(item) for item in table}) == 1 and "images seen" in table[0]
    stopped, study = table[2].split(), table[4].split()
    assert (stopped[0], stopped[-1], stopped[4]) == ("stopped", "-", "150")
    assert study[-1] == "12.50" and study[-2] == f"{3 * forward * 384 / 1e9:,.1f}"
    assert (tmp_path / "compute.png").stat().st_size > 5000


@pytest.mark.slow
def test_a_pretraining_has_no_accuracy_of_classes(runs, tmp_path):
    folder = tmp_path / "pretrained"
    shutil.copytree(runs / "vit", folder)
    configuration = json.loads((folder / "configuration.json").read_text())
    configuration["model"]["class"] = "MaskedPatchPrediction"
    (folder / "configuration.json").write_text(json.dumps(configuration))
    (run,) = compute.find_runs(folder)
    assert math.isnan(run.accuracy) and run.name == "pretrained"


def test_incomplete_batches_that_are_dropped_do_not_count(runs, tmp_path):
    full = _changed(runs, tmp_path / "full", lambda c: c | {"steps_per_epoch": 2})
    (run,) = compute.find_runs(Path(full))
    assert compute.images_seen(run, compute.parse([full])) == 2 * 2 * 64


def test_of_some_classes_only_their_images_count(runs, tmp_path):
    few = vit_tf.data.load("digits", splits=("train", "validation"), classes=["3", "5"])[0]
    count = sum(len(labels) for _, labels in few)
    changes = {"classes": ["3", "5"], "take": None, "validation": 0.1, "seed": 0}

    def configuration(c):
        return c | {"data": c["data"] | changes, "steps_per_epoch": -(-count // 64)}

    part = _changed(runs, tmp_path / "part", configuration)
    (run,) = compute.find_runs(Path(part))
    assert compute.images_seen(run, compute.parse([part])) == 2 * count


def test_families(runs):
    sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 8, "mlp_dim": 8, "num_classes": 2}
    hybrid = vit_tf.HybridViT((8, 8, 3), 1, **sizes, stem_units=())
    bit = vit_tf.BiT((8, 8, 3), units=(1,), width_factor=0.5)
    assert [compute.family(m) for m in (hybrid, bit)] == ["hybrid", "BiT"]
    assert compute.family(vit_tf.load_model(runs / "vit/model.keras")) == "ViT"


def _changed(runs, folder, configuration=None, **files):
    """A copy of a run with another configuration, and files of another text or, if None, none."""
    shutil.copytree(runs / "vit", folder)
    if configuration:
        path = folder / "configuration.json"
        path.write_text(json.dumps(configuration(json.loads(path.read_text()))))
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.unlink() if text is None else path.write_text(text)
    return str(folder)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda runs, new: str(new), "Received: "),
        (lambda runs, new: str(runs / "study"), "specify --batch-size"),
        (lambda runs, new: str(runs / "stopped"), "None of the runs is finished"),
        (lambda runs, new: _changed(runs, new, log_csv=None), "log.csv"),
        (lambda runs, new: _changed(runs, new, configuration_json="{"), "to be JSON"),
        (lambda runs, new: _changed(runs, new, model_keras="no"), "model.keras"),
        (
            lambda runs, new: _changed(runs, new, lambda c: c | {"steps_per_epoch": 1}),
            "1 batches of 64 images. Received: 150",
        ),
        (
            lambda runs, new: _changed(runs, new, lambda c: c | {"steps_per_epoch": 4}),
            "4 batches of 64 images. Received: 150",
        ),
    ],
)
def test_mistakes_are_one_line(runs, tmp_path, capsys, make, message):
    assert compute.main([make(runs, tmp_path / "new"), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "compute.png").exists()


def table(flops, accuracy, families):
    return xr.Dataset(
        {"training_flops": ("run", flops), "test_accuracy": ("run", accuracy)},
        coords={"run": [f"model {i}" for i in range(len(flops))], "family": ("run", families)},
    )


def test_points_are_compute_and_accuracy_by_family():
    flops = [2e18, 3e17, 4.5e18, 5e18]
    ax = plot_compute(table(flops, [0.5, 0.25, np.nan, 0.75], ["ViT", "BiT", "BiT", "ViT"]))
    lines = {line.get_label(): line for line in ax.lines}
    assert list(lines) == ["ViT", "BiT"]
    np.testing.assert_allclose(lines["ViT"].get_xydata(), [[2, 50], [5, 75]])
    np.testing.assert_allclose(lines["BiT"].get_xydata(), [[0.3, 25]])
    assert lines["ViT"].get_color() != lines["BiT"].get_color() and ax.get_xscale() == "log"
    assert ax.get_xlabel() == "training compute (exaFLOPs)"
    assert ax.get_ylabel() == "test accuracy (%)"
    named = {text.get_text(): text.xy for text in ax.texts}
    assert named == {"model 0": (2, 50), "model 1": (0.3, 25), "model 3": (5, 75)}


def test_names_of_close_points_do_not_touch():
    ax = plot_compute(table([1e9] * 5, [0.5, 0.501, 0.5, 0.499, 0.7], ["ViT"] * 5))
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert ax.get_xlabel() == "training compute (gigaFLOPs)"


def test_tables_that_cannot_be_drawn():
    good = table([1.0, 2.0], [0.5, 0.6], ["ViT", "ViT"])
    for bad in (
        good.drop_vars("family"),
        good.assign(test_accuracy=("run", [np.nan, np.nan])),
        good.assign(training_flops=("run", [0.0, 1.0])),
    ):
        with pytest.raises(ValueError, match="with the coordinate family"):
            plot_compute(bad)
    with pytest.raises(ValueError, match="test_accuracy"):
        plot_compute(good.drop_vars("test_accuracy"))
