"""What a mistyped command or an unfit model gets: one line that says what to do, and no more."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT, SCRIPTS

import vit_tf
from vit_tf.scripts import cli
from vit_tf.training.evaluation import top_k_accuracy


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder of models of digits: of two outputs, and of classes that are not registered."""
    folder = tmp_path_factory.mktemp("models")
    images = keras.Input((8, 8, 3))
    flat = keras.layers.Flatten()(images)
    outputs = {"digit": keras.layers.Dense(10)(flat), "parity": keras.layers.Dense(2)(flat)}
    keras.Model(images, outputs).save(folder / "dict.keras")
    keras.Model(images, list(outputs.values())).save(folder / "list.keras")
    keras.Model(images, keras.layers.Dense(10)(Unregistered()(flat))).save(folder / "own.keras")
    activated = keras.layers.Dense(10, activation=unregistered)(flat)
    keras.Model(images, activated).save(folder / "function.keras")
    keras.Model(images, outputs["digit"]).save(folder / "digits.keras")
    return folder


class Unregistered(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def unregistered(x):
    return 2 * x


def line_of(capsys, command):
    """The one line of the standard error of a command that fails with status 2."""
    assert cli.main(list(map(str, command))) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize("name, words", [("dict", "'?digit'?, '?parity"), ("list", "2 outputs")])
def test_a_model_of_several_outputs_is_refused_in_one_line(models, capsys, name, words):
    line = line_of(capsys, ["evaluate", models / f"{name}.keras", "--data", "digits"])
    assert line.startswith("error: Expected a model that returns one tensor of scores")
    model = vit_tf.load_model(models / f"{name}.keras")
    data = tf.data.Dataset.from_tensors((np.zeros((2, 8, 8, 3), "float32"), [0, 1]))
    with pytest.raises(ValueError, match=rf"one tensor of scores.*Received: .*{words}"):
        top_k_accuracy(model, data)


@pytest.mark.parametrize("name, own", [("own", "Unregistered"), ("function", "unregistered")])
def test_an_unregistered_class_or_function_is_named(models, capsys, name, own):
    line = line_of(capsys, ["evaluate", models / f"{name}.keras"])
    assert f"'{own}'" in line and "--import" in line and "register_keras_serializable" in line


@pytest.mark.parametrize(
    "file, words",
    [
        ("old.h5", "keras.models.load_model("),
        ("old.weights.h5", "load them into their model, then model.save('old.keras')"),
        ("old.tflite", "model.save('old.keras')"),
    ],
)
def test_other_formats_say_how_to_save_a_keras_file(capsys, file, words):
    for call in (vit_tf.load_model, vit_tf.load_pretrained, vit_tf.load_features):
        with pytest.raises(ValueError, match=rf"Received: '{file}', "):
            call(file)
    assert words in line_of(capsys, ["evaluate", file])


def test_an_export_says_which_option_is_missing(models, capsys):
    command = ["export", models / "digits.keras"]
    line = line_of(capsys, [*command, "--out", "d"])
    assert line.endswith("Received: no --taps") and "--list" in line
    assert line_of(capsys, [*command, "--taps", "dense"]).endswith("Received: no --out")
    assert line_of(capsys, command).endswith("Received: no --taps and no --out")


@pytest.mark.parametrize(
    "command, hint",
    [
        ("evaluate m.keras --dta digits", "--data in place of --dta?"),
        ("train --ouput=run", "--out in place of --ouput?"),
        ("export m.keras --out d --tpas pooled", "--taps in place of --tpas?"),
        ("evaluate m.keras --batchsize 3", "--batch-size in place of --batchsize?"),
    ],
)
def test_mistyped_options_get_near_matches(capsys, command, hint):
    with pytest.raises(SystemExit) as stopped:
        cli.main(command.split())
    assert stopped.value.code == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith(hint)


def test_an_unlike_option_gets_no_near_match(capsys):
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "m.keras", "--xyzzy", "3", "--shots", "1"])
    assert "in place of" not in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_another_backend_is_refused_before_anything_is_read(capsys, monkeypatch, backend):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    for command in ("compute missing", "export missing.keras --list"):
        line = line_of(capsys, command.split())
        assert f"KERAS_BACKEND={backend}" in line and "KERAS_BACKEND=tensorflow" in line
    assert cli.main(["scorecard", "none"]) == 2
    assert "KERAS_BACKEND" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_command_prints_nothing_of_tensorflow_unless_asked(models):
    command = [sys.executable, SCRIPTS / "evaluate.py", models / "digits.keras", "--data", "digits"]
    unasked = {k: v for k, v in os.environ.items() if k not in ("TF_CPP_MIN_LOG_LEVEL",)}
    done = subprocess.run(command, env=unasked, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "top-1 accuracy" in done.stdout
    assert done.stderr == ""
    asked = unasked | {"TF_CPP_MIN_LOG_LEVEL": "0"}
    done = subprocess.run(command, env=asked, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "I0000" in done.stderr


@pytest.mark.slow
def test_an_error_of_the_import_itself_is_shown(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import os\nos.write(2, b'I0000 00:00:1 port.cc:1] x\\nkept\\n')\nraise OSError('bad')\n"
    )
    code = "import vit_tf.scripts\nimport tensorflow"
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    environment |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.startswith("kept\n")
    assert "OSError: bad" in done.stderr
