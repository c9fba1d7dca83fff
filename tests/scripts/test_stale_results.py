"""A report never shows what was made of other images, labels, weights, parameters or code."""

import os
import re

import keras
import numpy as np
import pytest
import xarray as xr
from image_folders import write
from paths import copy_checkout, run_python

import vit_tf
from vit_tf.analysis.engine import stream
from vit_tf.scripts import analyze

pytestmark = pytest.mark.slow

KINDS = ("ape", "bee", "cat")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    keras.utils.set_random_seed(0)
    path = tmp_path_factory.mktemp("model") / "vit.keras"
    vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 8, 3).save(path)
    return path


@pytest.fixture
def photos(tmp_path, rng):
    """Images of three brightnesses in one folder, whose classes a text file tells."""
    classes = rng.integers(3, size=120)
    for number, kind in enumerate(classes):
        image = rng.integers(0, 120, (16, 16, 3)) + 60 * kind
        write(tmp_path / "photos" / f"{number:03}.png", image)
    label(tmp_path / "photos", classes)
    return tmp_path / "photos", classes


def label(folder, classes):
    lines = [f"{number:03}.png {KINDS[kind]}" for number, kind in enumerate(classes)]
    (folder / "labels.txt").write_text("\n".join(lines))


def run(out, vit, folder, figures):
    line = [vit, "--data", folder, "--shots", 5, "--figures", figures, "--strategy", "none"]
    assert analyze.main([*map(str, line), "--out", str(out)]) == 0
    return out / "results"


def dates(folder):
    files = [*folder.glob("**/*.nc"), *folder.glob("**/*.png")]
    return {path: path.stat().st_mtime_ns for path in files}


def test_images_replaced_in_a_folder_are_measured_again(vit, photos, tmp_path, rng, monkeypatch):
    folder, _ = photos
    results = run(tmp_path / "out", vit, folder, "1")
    before, saved = xr.load_dataset(results / "cka.vit.nc"), dates(tmp_path / "out")
    # Similarity of the model and of its two untrained copies, accuracy, claims, and a picture.
    assert len(saved) == 6
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_groups", None)  # no pass over images
        run(tmp_path / "out", vit, folder, "1")
    assert dates(tmp_path / "out") == saved

    for path in folder.glob("*.png"):
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        write(path, np.full((16, 16, 3), rng.integers(0, 256, 3)))
        os.utime(path, ns=times)
    run(tmp_path / "out", vit, folder, "1")
    after = xr.load_dataset(results / "cka.vit.nc")
    fresh = xr.load_dataset(run(tmp_path / "fresh", vit, folder, "1") / "cka.vit.nc")
    np.testing.assert_allclose(after.cka, fresh.cka, atol=1e-6)
    assert abs(after.cka - before.cka).max() > 0.05
    same = {path.name for path, date in dates(tmp_path / "out").items() if date == saved[path]}
    assert not same  # nor the scorecard, which notes the data


def test_labels_that_are_corrected_are_measured_again(vit, photos, tmp_path, rng):
    folder, classes = photos
    label(folder, rng.permutation(classes))
    wrong = xr.load_dataarray(run(tmp_path / "out", vit, folder, "13") / "ridge_probe.vit.nc")
    label(folder, classes)
    right = xr.load_dataarray(run(tmp_path / "out", vit, folder, "13") / "ridge_probe.vit.nc")
    fresh = xr.load_dataarray(run(tmp_path / "fresh", vit, folder, "13") / "ridge_probe.vit.nc")
    np.testing.assert_allclose(right, fresh, atol=1e-6)
    assert float(right.max()) > float(wrong.max()) + 0.2


def change(path, pattern, replacement):
    text, count = re.subn(pattern, replacement, path.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


def test_changed_plots_are_drawn_again_of_the_same_results(tmp_path):
    """That changes of all other code measure again is tested in `engine/test_store.py`."""
    checkout, out, vit = copy_checkout(tmp_path / "copy"), tmp_path / "out", tmp_path / "vit.keras"
    vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 8, 10).save(vit)

    def run():
        line = f"{vit} --data digits --take-test 40 --shots 2 --figures lens --strategy none"
        done = run_python(checkout, "-m", "vit_tf", "analyze", *line.split(), "--out", out)
        return done.returncode, done.stderr, dates(out)

    status, text, before = run()
    assert status == 0, text

    def changed(dates):
        return {path.name for path, date in dates.items() if date != before.get(path)}

    assert {"lens_accuracy.vit.nc", "logit-lens-vit.png"} <= {path.name for path in before}
    # a plot, which returns nothing: it is drawn again, fails, and the rest is written
    plot = checkout / "analysis" / "plots" / "flow_plots.py"
    documented = r'(def plot_lens_accuracy\(.*\n    """[^"]*"""\n)'
    change(plot, documented, r"\1    return None\n")
    status, text, after = run()
    assert status == 0, text
    assert [line for line in text.splitlines() if line.startswith("AttributeError")]
    assert "AttributeError" in (out / "report.html").read_text()
    assert not {"logit-lens-vit.png", "lens_accuracy.vit.nc"} & changed(after)
