"""The study from training to report, on models small enough to train in a test."""

import dataclasses
import multiprocessing
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from study_parts import EVERYTHING
from training_runs import count_calls

import vit_tf
from vit_tf.analysis.engine import stream
from vit_tf.analysis.figures.data import Data
from vit_tf.analysis.figures.figure import all_figures, lookup_figures, plan_pictures
from vit_tf.analysis.figures.models import baselines_of
from vit_tf.analysis.report.scorecard import evaluate
from vit_tf.scripts import common, report_commands, study as study_script


def tiny_plans(options, num_classes):
    shared = {"image_shape": (options.image_size,) * 2 + (3,), "num_classes": num_classes}
    recipe = vit_tf.Recipe(epochs=options.epochs, warmup_epochs=0)
    vit = {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
    bit = {"units": (1,), "width_factor": 0.5}
    return [
        study_script.ModelPlan("ViT-CLS", "vit", vit_tf.ViT, shared | vit, recipe),
        study_script.ModelPlan("BiT", "resnet", vit_tf.BiT, shared | bit, recipe),
    ]


@pytest.fixture
def study(monkeypatch):
    """The script with two tiny models in place of all of its own."""
    monkeypatch.setattr(study_script, "make_plans", tiny_plans)
    return study_script


def arguments(out, epochs="1"):
    flags = "--image-size 16 --take 120 --take-test 60 --shots 4 --strategy none --jobs 1"
    return [*flags.split(), "--epochs", epochs, "--out", str(out)]


@pytest.mark.slow
def test_a_stopped_study_goes_on_and_a_finished_one_does_nothing(study, tmp_path, monkeypatch):
    # In one pass and in passes of their own, of one model and of two, and kinds of heads.
    choice = [*arguments(tmp_path), "--figures", "1,6,11,W.3"]
    with monkeypatch.context() as patch:
        trained = count_calls(patch, vit_tf, "train")
        count_calls(patch, stream, "_groups", fail_at=9)
        assert study.main(choice) == 130
        assert len(trained) == 2
    saved = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "results").glob("*.nc")}
    assert saved and not list((tmp_path / "results").glob(".*"))
    assert not (tmp_path / "report.html").exists()

    with monkeypatch.context() as patch:
        trained = count_calls(patch, vit_tf, "train")
        assert study.main(choice) == 0
        assert not trained
    for name, written in saved.items():
        assert (tmp_path / "results" / name).stat().st_mtime_ns == written
    report = (tmp_path / "report.html").read_text()
    figures = sorted(path.stem for path in (tmp_path / "figures").glob("*.png"))
    assert sorted(re.findall(r'href="figures/([\w-]+)\.png"', report)) == figures
    # The first images stand with their classes and with what each model predicts.
    labels = re.findall(r'<span class="label">(\w+)</span>', report)
    named = r'<span class="guess[^>]*>([✓✗]) <span class="name">(\w+)</span> <span class="share">'
    predicted = re.findall(named, report)
    assert labels and len(predicted) == 2 * len(labels)
    for number, (mark, name) in enumerate(predicted):
        assert (mark == "✓") == (name == labels[number // 2])
    # One whose picture would say nothing has a sentence in its place.
    said = [name for name in ("head-kinds-vit-cls", "head-kinds-vit-gap") if name not in figures]
    assert report.count(" heads, of 2 lay") >= bool(said)
    for link in re.findall(r'href="(results/[^"]+)"', report):
        xr.load_dataset(tmp_path / link)

    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*") if path.is_file()}
    with monkeypatch.context() as patch:
        measured = count_calls(patch, stream, "_groups")
        (tmp_path / "figures" / f"{figures[0]}.png").unlink()
        assert study.main(choice) == 0
        assert not measured
    changed = {path.name for path, at in made.items() if path.stat().st_mtime_ns != at}
    assert changed == {f"{figures[0]}.png", "keys.json", "report.html"}


@pytest.mark.slow
def test_trainings_side_by_side_give_the_models_of_one_after_the_other(
    study, tmp_path, monkeypatch
):
    item, two = (
        study.parse([*arguments(tmp_path / name), "--figures", "6", "--jobs", "2"])
        for name in ("one", "two")
    )
    item.sizes = report_commands.subset_sizes(item, common.describe_labelled(item))
    context = multiprocessing.get_context("spawn")
    arguments_of_start = (1, context.Queue())
    with ProcessPoolExecutor(
        1, context, study_script._start_process, arguments_of_start
    ) as processes:
        for plan in tiny_plans(item, 10):
            processes.submit(study_script.train_in_process, plan, item).result()
    trained = count_calls(monkeypatch, vit_tf, "train")
    study.run(two)
    assert not trained
    for name in ("vit-cls", "bit"):
        before, now = (
            vit_tf.load_model(run.out / "models" / f"{name}.keras") for run in (item, two)
        )
        for weights in zip(before.get_weights(), now.get_weights(), strict=True):
            np.testing.assert_array_equal(*weights)


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path):
    script = tmp_path / "starts.py"
    script.write_text(
        """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from vit_tf.scripts.study import _start_process

def told(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    context = get_context("spawn")
    processes = ProcessPoolExecutor(1, context, _start_process, (1, context.Queue()))
    processes.submit(told, sys.argv[1])
    while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
        time.sleep(0.1)
    os.kill(os.getpid(), 9)
"""
    )
    subprocess.run([sys.executable, script, tmp_path / "pid"], timeout=120)
    process = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not _is_alive(process):
            return
        time.sleep(0.1)
    pytest.fail(f"process {process} is still there")


def _is_alive(process):
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_only_the_models_of_the_chosen_figures_are_trained(study, tmp_path, monkeypatch):
    trained = count_calls(monkeypatch, vit_tf, "train")
    assert study.main([*arguments(tmp_path), "--figures", "8,12,W.3"]) == 0
    assert len(trained) == 1
    assert not list((tmp_path / "results").glob("*bit*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, names",
    [
        ([], ["ViT-CLS", "ViT-GAP", "BiT"]),
        (
            ["--figures", "8"],
            ["ViT-CLS", *(f"ViT-CLS without skips in block{i:02}" for i in (1, 3, 5))],
        ),
        (["--full"], None),
    ],
)
def test_three_models_are_trained_unless_more_are_asked_for(tmp_path, monkeypatch, flags, names):
    calls = []

    def stop(plans, options, progress):
        calls.extend(plan.name for plan in plans)
        assert progress.seconds > 0 and len(progress._stages) == len(plans) + 2
        raise KeyboardInterrupt

    monkeypatch.setattr(study_script, "train_all", stop)
    assert study_script.main(["--out", str(tmp_path), "--jobs", "1", *flags]) == 130
    every = [plan.name for plan in study_script.make_plans(study_script.parse([]), 10)]
    assert calls == (names or every)


def test_what_takes_other_models_says_how_it_is_measured():
    figures = lookup_figures(["8"])
    (entry,) = plan_pictures(figures, [], Data(None, None), "Run that.")[1]
    lacking = "a ViT with a CLS token and models trained without the skips of a block"
    assert entry[1] == [f"It needs {lacking}. Run that."]
    for claim in evaluate(figures, [], {}, "Run that."):
        assert claim.reason.endswith("Run that.")
    assert plan_pictures(figures, [], Data(None, None))[1] == []


def test_the_bar_counts_stages_by_their_length(capsys):
    progress = report_commands.ProgressBar({"training": 30.0, "measuring": 10.0})
    with progress.shown():
        progress("training", 1, 2)
        assert sum(progress._done.values()) == 15
        progress("measuring", 1, 4, "CKA")
        assert sum(progress._done.values()) == 17.5 and progress.seconds == 40


def test_the_first_paragraph_of_a_report_on_digits_refers_to_models_that_show_more(tmp_path):
    texts = {}
    for data in ("digits", "shapes"):
        options = study_script.parse(["--data", data, "--out", str(tmp_path)])
        text = study_script.introduction(options, vit_tf.data.describe(data))
        texts[data], details = text.split("\n\n")
        assert "penalty" in details
    assert "enlarged" in texts["digits"] and "vit-tf demo" in texts["digits"]
    assert "enlarged" not in texts["shapes"] and "vit-tf demo" not in texts["shapes"]


def test_list_names_every_figure(study, capsys):
    assert study.main(["--list"]) == 0
    listed = capsys.readouterr().out
    for figure in all_figures():
        assert ",".join(figure.choices) in listed and figure.shows in listed


def test_a_figure_that_is_no_known_one_is_an_error():
    with pytest.raises(ValueError, match=r"Unknown figure: '99'"):
        lookup_figures(["1", "99"])


@pytest.fixture
def options(tmp_path):
    options = study_script.parse(["--out", str(tmp_path), "--image-size", "16"])
    options.sizes = {"train": 100, "validation": 40, "test": 40}
    return options


@pytest.mark.slow
def test_every_plan_is_another_and_every_figure_has_its_models(options):
    plans = study_script.make_plans(options, 10)
    assert len({plan.slug for plan in plans}) == len(plans)
    keys = {study_script.model_key(plan, options) for plan in plans}
    assert len(keys) == len(plans)
    names = [plan.name for plan in plans]
    for index, plan in enumerate(plans):
        assert plan.base is None or names.index(plan.base) < index
        assert plan.start is None or names.index(plan.start.name) < index
    needed = {role for figure in all_figures() for role in figure.models.all_roles}
    assert needed == {plan.role for plan in plans}
    assert sum(plan.role == "seed" for plan in plans) == 3 * (options.seeds - 1)


@pytest.mark.slow
def test_a_masked_model_without_a_trained_head_is_tested_on_no_images(options, monkeypatch):
    monkeypatch.setattr(vit_tf, "train", lambda *arguments, **options: None)
    vit, _ = tiny_plans(options, 10)
    plan = dataclasses.replace(
        vit, name="masked", role="masked", recipe=vit_tf.Pretraining(epochs=1)
    )
    row, _ = study_script._train_model(plan, options, "key", ())
    assert row["test accuracy (%)"] is None and row["tested on"] is None


def models_of(plans, options):
    """The models of these plans as they are before any training, with their baselines."""
    built, models = {}, {}
    for plan in plans:
        key = (plan.model, str(plan.config))
        built[key] = model = built.get(key) or plan.model(**plan.config)
        row = {"test accuracy (%)": 10.0, "tested on": 40}
        actual = {"key": plan.name, "taps": model.taps, "grid": model.token_grid, "row": row}
        models[plan.name] = study_script.study_model(plan, actual, models.get(plan.base), options)
    return [*models.values(), *baselines_of(models["ViT-CLS"], [lambda: None])]


@pytest.mark.slow
def test_every_picture_of_the_full_study_has_a_name_and_a_title_of_its_own(options):
    models = models_of(study_script.make_plans(options, 10), options)
    pictures, left_out = plan_pictures(all_figures(), models, EVERYTHING)
    assert len({picture.name for picture in pictures}) == len(pictures) > 60
    for picture in pictures:
        assert re.fullmatch(r"[a-z0-9-]+", picture.name)
        assert picture.title and not set("{}") & set(picture.title)
    titles = {picture.name: picture.full_title for picture in pictures}
    assert len(set(titles.values())) == len(pictures)
    assert titles["seeds-bit-seed-1"].startswith("Best-matching layers over two seeds: BiT")
    assert titles["head-effects-vit-cls"] == "Head ablation by attention distance"
    assert not [subject for subject, _ in left_out if "skips of a block" in subject]


def test_claims_name_their_missing_data(options):
    models = models_of(tiny_plans(options, 10), options)
    message = {
        claim.name: claim.reason
        for claim in evaluate(all_figures(), models, {}, data=Data(*["there"] * 4, 10))
    }
    assert message["saliency-early"] == "It needs images with masks of objects."
    assert message["videos-above-chance"] == "It needs videos with masks of objects."
    assert message["own-patch"].startswith("Not measured for these models: Figures 9, ")
    assert not any("vit-cls" in text for text in message.values())  # names of results are internal


def labels_of(data):
    return [int(label) for _, labels in data for label in labels]


@pytest.mark.slow
def test_plans_see_their_share_of_the_images(options):
    plans = {plan.name: plan for plan in study_script.make_plans(options, 10)}
    complete = [labels_of(d) for d in study_script.training_data(plans["ViT-CLS"], options)]
    assert [len(labels) for labels in complete] == [100, 40, 40]
    some = study_script.training_data(plans["ViT-CLS on 10% of the data"], options)
    labels = labels_of(some[0])
    # Ten images ten times: as many updates as on all images.
    assert len(labels) == 10 * 10 and sorted(labels) == sorted(10 * list(range(10)))
    assert labels_of(some[1]) == complete[1] and labels_of(some[2]) == complete[2]
    halves = [
        study_script.training_data(plans[name], options)
        for name in ("ViT-CLS on half the classes", "ViT-CLS fine-tuned on the others")
    ]
    for split in range(3):
        first, second = (labels_of(half[split]) for half in halves)
        assert set(first) == set(range(5)) and set(second) == set(range(5, 10))
        assert len(first) + len(second) == len(complete[split])


@pytest.mark.slow
def test_a_far_domain_has_its_own_classes_and_as_many_updates(options):
    options.far_data = "digits"
    plans = study_script.make_plans(options, 10)
    near, far = plans[-2:]
    assert far.role == "far" and far.base == near.base and far.start == near.start
    options.data = "shapes"
    digits = vit_tf.data.load("digits", splits=("train",), image_size=16, batch_size=100)[0]
    of_digits = {image.tobytes() for images, _ in digits.as_numpy_iterator() for image in images}
    own, validation, test = study_script.training_data(far, options)
    images = [image.tobytes() for images, _ in own.as_numpy_iterator() for image in images]
    # Half of 100, as of the other half of the classes.
    assert len(set(images)) == 50 and set(images) <= of_digits
    assert len(labels_of(validation)) and len(labels_of(test))
    few = study_script.data_options(far, options)
    few.sizes, few.far_repeats = few.sizes | {"train": 10}, 5
    assert len(labels_of(study_script.training_data(far, options)[0])) == 50


@pytest.mark.slow
def test_fine_tuning_starts_from_the_trained_body_with_a_new_head(options, monkeypatch):
    before, after = (
        dataclasses.replace(plan, config=plan.config | {"num_layers": 1})
        for plan in study_script.make_plans(options, 10)[-3:-1]
    )
    study_script.train_plan(dataclasses.replace(before, recipe=vit_tf.Recipe(epochs=1)), options)
    source = vit_tf.load_model(study_script.model_path(before, options))
    monkeypatch.setattr(vit_tf, "train", lambda model, recipe, *_, **__: recipe.compile(model, 1))
    study_script.train_plan(after, options)
    tuned = vit_tf.load_model(study_script.model_path(after, options))
    for old, new in zip(source.weights, tuned.weights, strict=True):
        if new.path.split("/")[-2] == "head":
            assert np.any(old.numpy()) and not np.any(new.numpy())
        else:
            np.testing.assert_array_equal(old, new)


@pytest.mark.slow
def test_a_changed_model_or_note_is_trained_again(options, tmp_path, monkeypatch, caplog):
    plan = study_script.make_plans(options, 10)[0]
    options.out = tmp_path
    trained = []

    def train_model(plan, *_):
        trained.append(plan.name)
        model = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 8, 3)
        return {"model": plan.name, "test accuracy (%)": 50.0, "tested on": 40}, model

    monkeypatch.setattr(study_script, "_train_model", train_model)
    facts = study_script.train_plan(plan, options)
    assert study_script.train_plan(plan, options) == facts and len(trained) == 1
    path = study_script.model_path(plan, options)
    note = path.with_suffix(".json")
    text = note.read_text("utf-8")
    for wrong in ("", "[1]", "{}", text[:50], text.replace("50.0", "99.0")):
        caplog.clear()
        note.write_text(wrong, "utf-8")
        assert study_script.train_plan(plan, options)["row"] == facts["row"]
        assert note.name in caplog.text or path.name in caplog.text
    path.write_bytes(path.read_bytes()[:200])
    study_script.train_plan(plan, options)
    assert vit_tf.load_model(path).count_params() and len(trained) == 7
