"""The study from training to report, on models small enough to train in a test."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import xarray as xr

import vit_tf
from vit_tf.analysis import stream

SCRIPT = Path(__file__).parents[1] / "scripts" / "study.py"


@pytest.fixture(scope="module")
def study():
    """The script as a module, with two tiny models in place of its four."""
    spec = importlib.util.spec_from_file_location("study_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["study_script"] = module
    spec.loader.exec_module(module)

    def make_plans(options, num_classes):
        shared = {"image_shape": (options.image_size,) * 2 + (3,), "num_classes": num_classes}
        recipe = vit_tf.Recipe(epochs=options.epochs, warmup_epochs=0)
        vit = {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
        bit = {"units": (1,), "width_factor": 0.5}
        return [
            module.Plan("ViT-CLS", "vit", vit_tf.ViT, shared | vit, recipe),
            module.Plan("BiT", "resnet", vit_tf.BiT, shared | bit, recipe),
        ]

    module.make_plans = make_plans
    return module


def arguments(out, epochs="1"):
    flags = "--image-size 16 --take 120 --take-test 60 --strategy none"
    return [*flags.split(), "--epochs", epochs, "--out", str(out)]


def count_calls(monkeypatch, owner, name, fail_at=None):
    """Counts the calls of a function, one of which may fail as a kill would."""
    calls, original = [], getattr(owner, name)

    def counted(*args, **kwargs):
        calls.append(args)
        if len(calls) == fail_at:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_a_stopped_study_goes_on_and_a_finished_one_does_nothing(study, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        trained = count_calls(patch, vit_tf.training, "train")
        count_calls(patch, stream, "_results", fail_at=5)
        with pytest.raises(KeyboardInterrupt):
            study.main(arguments(tmp_path))
        assert len(trained) == 2
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "results").glob("*.nc")}
    assert kept and not list((tmp_path / "results").glob(".*"))
    assert not (tmp_path / "report.html").exists()

    with monkeypatch.context() as patch:
        trained = count_calls(patch, vit_tf.training, "train")
        assert study.main(arguments(tmp_path)) == 0
        assert not trained
    for name, time in kept.items():
        assert (tmp_path / "results" / name).stat().st_mtime_ns == time
    report = (tmp_path / "report.html").read_text()
    figures = sorted(path.stem for path in (tmp_path / "figures").glob("*.png"))
    assert sorted(re.findall(r'id="figure-([\w-]+)"', report)) == figures
    for link in re.findall(r'href="(results/[^"]+)"', report):
        xr.load_dataset(tmp_path / link)

    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*") if path.is_file()}
    with monkeypatch.context() as patch:
        measured = count_calls(patch, stream, "_results")
        (tmp_path / "figures" / f"{figures[0]}.png").unlink()
        assert study.main(arguments(tmp_path)) == 0
        assert not measured
    changed = {path.name for path, time in made.items() if path.stat().st_mtime_ns != time}
    assert changed == {f"{figures[0]}.png", "keys.json", "report.html", "scorecard.nc"}


def test_mistakes_are_one_line(study, tmp_path, capsys):
    for flags, message in [
        (["--image-size", "20"], "multiple of 8 from 16 on. Received: 20"),
        (["--data", "digit"], "digits"),
        (["--data", str(tmp_path / "none")], "Expected a folder that exists"),
        (["--strategy", "gpu"], "Expected strategy"),
    ]:
        assert study.main([*arguments(tmp_path), *flags]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error: ") and message in error
