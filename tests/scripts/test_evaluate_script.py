"""Evaluation from the command line against numbers computed here, and mistakes."""

import itertools
import json
import re

import keras
import numpy as np
import pytest
from counted_digits import count_decoding
from image_folders import write
from oracles import randomize

import vit_tf
from vit_tf import data
from vit_tf.analysis.engine.least_squares import classify, fit_classifier
from vit_tf.data.batches import ResumableDataset
from vit_tf.scripts import evaluate, finetune

pytestmark = pytest.mark.usefixtures("without_xla")

SPECIAL = vit_tf.Preprocessing((8, 8), (0.4, 0.5, 0.6), (0.3, 0.2, 0.1), "bicubic")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model with random weights, and the path of its file."""
    sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 8, "mlp_dim": 8, "num_classes": 10}
    model = vit_tf.ViT((8, 8, 3), 4, **sizes, pooling="gap", preprocessing=SPECIAL)
    randomize(model)
    path = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(path)
    return model, str(path)


def rows(model, dataset):
    """The taps of all images, and their labels."""
    taps = [(model.intermediates(x), y) for x, y in dataset.as_numpy_iterator()]
    names = ("pooled", "logits")
    arrays = {n: np.concatenate([np.asarray(t[n]) for t, _ in taps]) for n in names}
    return arrays, np.concatenate([y for _, y in taps])


@pytest.mark.slow
def test_numbers_are_those_of_the_model(model, tmp_path, capsys):
    model, path = model
    out = tmp_path / "result.json"
    line = [path, "--shots", "5,2", "--draws", "2", "--held-out", "3", "--out", str(out)]
    assert evaluate.main(line) == 0
    result = json.loads(out.read_text())

    (test,) = data.load("digits", splits=("test",), preprocessing=SPECIAL)
    taps, labels = rows(model, test)
    order = np.argsort(-taps["logits"], axis=1)
    for k in (1, 5):
        share = np.mean([y in row[:k] for y, row in zip(labels, order, strict=True)])
        assert result["top"][str(k)] == pytest.approx(share)
    assert result["examples"] == 360 and [row["shots"] for row in result["few_shot"]] == [2, 5]

    row, outputs = result["few_shot"][1], []
    for seed in range(2):
        few, _ = data.few_shot("digits", 5, seed=seed, held_out=3, preprocessing=SPECIAL)
        x, y = rows(model, few)
        fitted = fit_classifier(x["pooled"].astype(float), y, 10, [row["l2"]])
        outputs.append((classify(taps["pooled"].astype(float), *fitted)[0] == labels).mean())
    np.testing.assert_allclose(row["draws"], outputs, atol=0.003)
    assert row["accuracy"] == pytest.approx(np.mean(row["draws"])) and row["accuracy"] > 0.2

    text = capsys.readouterr().out
    assert f"top-5 accuracy {100 * result['top']['5']:8.2f} %" in text
    assert f"{100 * row['accuracy']:.2f} % ± {100 * row['deviation']:.2f} over 2 draws" in text


def test_foreign_models_and_a_fixed_strength(tmp_path):
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Conv2D(4, 3, name="maps"),
        keras.layers.Flatten(name="flat"),
        keras.layers.Dense(4),
    ]
    keras.Sequential([keras.Input((12, 12, 3)), *layers]).save(tmp_path / "other.keras")
    line = f"{tmp_path / 'other.keras'} --shots 1,10 --taps flat --l2 64 --draws 1 --no-head"
    assert evaluate.main(f"{line} --take-test 100 --out {tmp_path / 'r.json'}".split()) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["top"] == {} and [row["l2"] for row in result["few_shot"]] == [64, 64]
    assert result["few_shot"][1]["accuracy"] > 0.5


@pytest.mark.slow
def test_some_classes_are_matched_by_name_only_where_that_is_insisted_on(tmp_path, capsys):
    model = vit_tf.ViT((8, 8, 3), 4, 1, 1, 8, 8, 10, class_names=[str(n) for n in range(10)])
    randomize(model)
    model.save(tmp_path / "model.keras")
    (tmp_path / "some.txt").write_text("7\n3\n8\n")
    line = [str(tmp_path / "model.keras"), "--classes", str(tmp_path / "some.txt")]
    assert evaluate.main(line) == 2
    output = capsys.readouterr()
    assert "10 classes of the model, 0, 1, " in output.err and "3 classes, 7, 3, 8" in output.err
    assert "--allow-other-classes" in output.err and output.err.count("\n") == 1

    out = tmp_path / "result.json"
    assert evaluate.main([*line, "--allow-other-classes", "--out", str(out)]) == 0
    (test,) = data.load("digits", splits=("test",), image_size=8)
    taps, labels = rows(model, test)
    stored = np.isin(labels, (3, 7, 8))
    expected = (taps["logits"].argmax(axis=1) == labels)[stored].mean()
    assert json.loads(out.read_text())["top"]["1"] == pytest.approx(expected)


@pytest.mark.slow
def test_a_model_fine_tuned_on_one_folder_is_not_evaluated_on_another(model, tmp_path, rng, capsys):
    for name, classes in (("a", ("ape", "bee")), ("b", ("cat", "dog"))):
        for split in ("train", "test"):
            for item, number in itertools.product(classes, range(6)):
                write(
                    tmp_path / name / split / item / f"{number}.png",
                    rng.integers(0, 256, (8, 8, 3)),
                )
    tuning = ["--data", str(tmp_path / "a"), "--out", str(tmp_path / "run"), "--steps", "2"]
    tuning += ["--num-validations", "1", "--validation", "0.2", "--batch-size", "4"]
    assert finetune.main([model[1], *tuning]) == 0
    tuned = str(tmp_path / "run" / "model.keras")
    assert vit_tf.load_model(tuned).class_names == ("ape", "bee")
    capsys.readouterr()
    assert evaluate.main([tuned, "--data", str(tmp_path / "a"), "--split", "all"]) == 0
    assert "on 24 images of" in capsys.readouterr().out
    assert evaluate.main([tuned, "--data", str(tmp_path / "b")]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith(
        "error: Expected data of the 2 classes of the model, ape, bee. Received: data of 2 "
        "classes, cat, dog"
    )


@pytest.mark.slow
def test_images_are_read_once_and_labels_checked_as_they_come(model, tmp_path, monkeypatch, capsys):
    decoded = count_decoding(monkeypatch)
    line = [model[1], "--batch-size", "8", "--out", str(tmp_path / "result.json")]
    assert evaluate.main(line) == 0
    assert json.loads((tmp_path / "result.json").read_text())["examples"] == 360
    # A first batch tells the number of scores; TensorFlow reads some images ahead of it.
    assert len(set(decoded)) <= 360 <= len(decoded) < 2 * 360
    real = data.load

    def load(*args, **kwargs):
        (test,) = real(*args, **kwargs)
        wrong = test.map(lambda images, labels: (images, labels + 1))
        return (ResumableDataset.from_sources(lambda _: wrong, test),)

    monkeypatch.setattr(data, "load", load)
    assert evaluate.main(line) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    expected = r"error: Expected labels of the test data to be in \[0, 10\).*Received: 10$"
    assert re.match(expected, error)


def least_squares_model():
    """A linear classifier of digits as Keras users make them: pixels of [0, 255], rescaled."""
    (train,) = data.load("digits", splits=("train",))
    images, labels = (np.concatenate(x) for x in zip(*train.as_numpy_iterator(), strict=True))
    rows = np.pad((images.reshape(len(images), -1) + 1) / 2, ((0, 0), (0, 1)), constant_values=1)
    weights, *_ = np.linalg.lstsq(rows.astype(float), np.eye(10)[labels], rcond=None)
    dense = keras.layers.Dense(10)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), dense]
    )
    dense.set_weights([weights[:-1], weights[-1]])
    return model


@pytest.mark.slow
def test_a_model_that_rescales_gets_the_pixels_it_expects(tmp_path, capsys):
    model, path, out = least_squares_model(), tmp_path / "other.keras", tmp_path / "result.json"
    model.save(path)
    (test,) = data.load("digits", splits=("test",), batch_size=360)
    images, labels = next(test.as_numpy_iterator())
    pixels = np.round((images + 1) * 127.5)
    expected = (model.predict(pixels, verbose=0).argmax(axis=1) == labels).mean()
    assert expected > 0.9
    assert evaluate.main([str(path), "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["top"]["1"] == pytest.approx(expected) and result["warnings"] == []
    text = capsys.readouterr().out
    assert "images: values in [0, 255] (found from its first layers)\n" in text

    assert evaluate.main([str(path), "--out", str(out), "--range", "-1", "1"]) == 0
    assert json.loads(out.read_text())["top"]["1"] < 0.5
    text = capsys.readouterr().out
    assert "values in [-1, 1] (set by the options)" in text and "scores hardly differ" in text
    same = ["--mean", "0", "0", "0", "--std", *["0.00392156862745098"] * 3]
    assert evaluate.main([str(path), "--out", str(out), *same]) == 0
    assert json.loads(out.read_text())["top"]["1"] == pytest.approx(expected)


@pytest.mark.slow
def test_the_size_that_a_model_of_any_size_is_given_is_printed(tmp_path, capsys):
    x = images = keras.Input((None, None, 3))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(x))
    path = tmp_path / "any.keras"
    keras.Model(images, keras.layers.Dense(10)(x)).save(path)
    for options, size in ([], "8 x 8"), (["--image-size", "12"], "12 x 12"):
        assert evaluate.main([str(path), "--take-test", "8", *options]) == 0
        line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("size:"))
        assert f"{size} pixels" in line and "any size" in line
        assert ("--image-size" in line) == bool(options)


@pytest.mark.slow
def test_the_assumed_order_of_classes_is_stated_and_can_be_set(tmp_path, capsys):
    """A file of a Keras model loses its `class_names`: bright is class 0, the folder's class 1."""
    for name, level in (("bright", 240), ("a_dark", 10)):
        for number in range(3):
            write(tmp_path / "data/test" / name / f"{number}.png", np.full((8, 8, 3), level))
    head = keras.layers.Dense(2)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), head]
    )
    head.set_weights([np.tile([[1.0, -1.0]], (192, 1)), np.array([-96.0, 96.0])])
    model.class_names = ["bright", "a_dark"]
    model.save(tmp_path / "model.keras")
    line = [str(tmp_path / "model.keras"), "--data", str(tmp_path / "data")]
    assert evaluate.main(line) == 0
    text = capsys.readouterr().out
    assert re.search(r"a_dark, bright.*order of the data.*--classes", text) and "  0.00 %" in text
    (tmp_path / "classes.txt").write_text("bright\na_dark\n")
    assert evaluate.main([*line, "--classes", str(tmp_path / "classes.txt")]) == 0
    text = capsys.readouterr().out
    assert "order of the data" not in text and "100.00 %" in text
