"""Mistakes on the command line: one line says what would be right, and nothing is written."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from image_folders import write

import vit_tf
from vit_tf.scripts import cli
from vit_tf.training.evaluation import top_k_accuracy

TINY = "--image-size 8 --patch-size 2 --num-layers 1 --num-heads 1 --hidden-dim 8 --mlp-dim 8"
STUDY = "--image-size 16 --take 120 --take-test 60 --shots 4 --strategy none --jobs 1 --epochs 1"
# Options that follow a command, and words of its line; `.*` and a last `$` as in patterns.
MISTAKES = {
    "train --out out": {
        "--epochs 0": "epochs",
        "--variant B/17": "B/16",
        "--patch-size 5": "multiples of patch_size",
        "--units 1 1": "--model vit",
        "--model bit --hidden-dim 8": "--model bit",
        "--data ./nowhere": "nowhere",
        "--strategy many": "mirrored",
        "--take 99999": "take",
    },
    f"pretrain --out out {TINY}": {
        "--epochs 0": "epochs",
        "--variant B/17": "B/16",
        "--patch-size 5": "multiples of patch_size",
        "--patch-size 8 --image-size 8": "at least two patches",
        "--data ./nowhere": "nowhere",
        "--strategy many": "mirrored",
    },
    "finetune {0}/model.keras --image-size 12 --out out": {
        "--steps 33": "multiple of validations=10",
        "--image-size 10": "multiples of patch_size",
        "--data ./nowhere": "nowhere",
        "--positions cubic": "bicubic",
        "--schedule cosin": "cosine",
        "--strategy many": "mirrored",
    },
    "finetune --out out": {
        "{0}/list.keras": "Expected the model to be a ViT",
        "none.keras": "Model file not found: 'none.keras'",
    },
    "evaluate {0}/model.keras --take-test 40": {
        "--shots 1,x": "--shots 1,x",
        "--shots 0": "--shots 0",
        "--shots 1 --taps pool": "pooled",
        "--shots 1000": "shots=1000",
        "--shots 1 --l2 -1": "l2",
        "--image-size 12": "(8, 8)",
        "--split tset": "test",
        "--no-head": "--shots",
        "--data ./nowhere": "nowhere",
        "--range 1 0": "a range from a low to a high value",
        "--mean 0 0 0": "--std",
        "--mean 0 0 0 --std 1 1 1 --range 0 1": "--range",
    },
    "evaluate": {
        "{0}/model.keras --data {0}/photos": "images with labels: .*photos, images without labels",
        "{0}/dict.keras --data digits": "a model that returns one tensor of scores",
        "{0}/list.keras --data digits": "a model that returns one tensor of scores",
        "{0}/four.keras": "4 classes without names",
        "{0}/own.keras": "'Unregistered'.*--import.*register_keras_serializable",
        "{0}/function.keras": "'unregistered'.*--import.*register_keras_serializable",
        "old.h5": "keras.models.load_model(",
        "old.weights.h5": "load them into their model, then model.save('old.keras')",
        "old.tflite": "model.save('old.keras')",
    },
    "export {0}/model.keras": {
        "--out out --taps block00/mpl/sum": "block00/mlp/sum",
        "--out out --taps pooled nothing*": "nothing*",
        "--out out": "--list.*Received: no --taps$",
        "--taps pooled": "Received: no --out$",
        "": "Received: no --taps and no --out$",
    },
    "explore --out page.html": {
        "{0}/named.keras none.jpg": "Image file not found: 'none.jpg'",
        "none.keras {0}/photos/1.png": "not found",
        "{0}/named.keras {0}/named.keras": "No image file",
    },
    "explore {0}/named.keras {0}/photos/1.png": {
        "--explain dog": "a number or a name: ant, bee, cat",
        "--explain 7": "Expected classes to be integers from 0 to",
        "--prefix 1": "--prefix needs --patch-size",
        "--prefix -1 --patch-size 8": "--prefix to be at least 0. Received: -1",
        "--samples 0": "--samples to be at least 1",
        "--noise -1": "--noise to be at least 0",
        "--out no/where.html": "existing folder",
    },
    "analyze m.keras": {
        "--prefix 1": "--prefix needs --patch-size",
        "--prefix -1 --patch-size 8": "--prefix to be at least 0. Received: -1",
    },
    f"study --out out {STUDY}": {
        "--image-size 20": "multiple of 8, at least 16. Received: 20",
        "--data digit": "digits",
        "--data ./none": "Folder not found: './none'",
        "--strategy gpu": "Unknown strategy",
        "--figures 1,99": "Unknown figure in --figures: '99'",
        "--seeds 0": "--seeds to be at least 1. Received: 0",
    },
    "compute none --out out": {"--batch-size 0": "at least 1. Received: 0"},
    "trian": {"--out run": "'trian'. Did you mean train"},
}


class Unregistered(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def unregistered(x):
    return 2 * x


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Folder of photographs and of models: ours, of two outputs, and of unregistered classes."""
    folder = tmp_path_factory.mktemp("files")
    sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 8, "mlp_dim": 8}
    vit_tf.ViT((8, 8, 3), 4, **sizes, num_classes=10).save(folder / "model.keras")
    names = ["ant", "bee", "cat"]
    vit_tf.ViT((8, 8, 3), 4, **sizes, num_classes=3, class_names=names).save(folder / "named.keras")
    images = keras.Input((8, 8, 3))
    flat = keras.layers.Flatten()(images)
    outputs = {"digit": keras.layers.Dense(10)(flat), "parity": keras.layers.Dense(2)(flat)}
    for name, output in {
        "dict": outputs,
        "list": list(outputs.values()),
        "own": keras.layers.Dense(10)(Unregistered()(flat)),
        "function": keras.layers.Dense(10, activation=unregistered)(flat),
        "four": keras.layers.Dense(4)(flat),
    }.items():
        keras.Model(images, output).save(folder / f"{name}.keras")
    for number in (1, 2):
        write(folder / "photos" / f"{number}.png", np.full((8, 8, 3), 100 * number))
    return folder


# What is told only once the data are read or a model is built.
LATE = {"--variant B/17", "--patch-size 5", "--units 1 1", "--model bit --hidden-dim 8"}
LATE |= {"--patch-size 8 --image-size 8", "--image-size 10", "--positions cubic", "--shots 1,x"}
LATE |= {"--shots 1 --taps pool", "--shots 1000", "--shots 1 --l2 -1", "--shots 0"}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        pytest.param(command, options, marks=[pytest.mark.slow] * (options in LATE))
        for command, cases in MISTAKES.items()
        for options in cases
    ],
)
def test_a_mistake_is_one_line(files, tmp_path, monkeypatch, capsys, command, options):
    monkeypatch.chdir(tmp_path)
    assert cli.main(f"{command} {options}".format(files).split()) == 2
    output = capsys.readouterr()
    (line,) = output.err.strip().splitlines()
    assert line.startswith("error: ") and output.out == ""
    words = MISTAKES[command][options]
    pattern = ".*".join(map(re.escape, words.removesuffix("$").split(".*")))
    assert re.search(pattern + "$" * words.endswith("$"), line), line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["dict", "list"])
def test_a_model_of_several_outputs_is_refused(files, name):
    model = vit_tf.load_model(files / f"{name}.keras")
    data = tf.data.Dataset.from_tensors((np.zeros((2, 8, 8, 3), "float32"), [0, 1]))
    with pytest.raises(ValueError, match=rf"one tensor of scores.*Received: a {name} of 2 outputs"):
        top_k_accuracy(model, data)


@pytest.mark.parametrize("file", ["old.h5", "old.weights.h5", "old.tflite"])
@pytest.mark.parametrize("call", [vit_tf.load_model, vit_tf.load_pretrained, vit_tf.load_features])
def test_other_formats_are_refused(call, file):
    with pytest.raises(ValueError, match=rf"Received: '{file}', "):
        call(file)


@pytest.mark.parametrize(
    "command, hint",
    [
        ("evaluate m.keras --dta digits", "--data in place of --dta?"),
        ("train --ouput=run", "--out in place of --ouput?"),
        ("export m.keras --out d --tpas pooled", "--taps in place of --tpas?"),
        ("evaluate m.keras --batchsize 3", "--batch-size in place of --batchsize?"),
        ("evaluate m.keras --xyzzy 3 --shots 1", None),
        ("train --out run --model vit-tiny", None),
    ],
)
def test_mistyped_options_get_near_matches(capsys, command, hint):
    with pytest.raises(SystemExit) as stopped:
        cli.main(command.split())
    assert stopped.value.code == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.endswith(hint) if hint else "in place of" not in line


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_another_backend_is_refused_before_anything_is_read(capsys, monkeypatch, backend):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    for command in ("compute missing", "export vit-cls-cifar10 --list"):
        assert cli.main(command.split()) == 2
        line = capsys.readouterr().err
        assert f"KERAS_BACKEND={backend}" in line and "KERAS_BACKEND=tensorflow" in line
    assert cli.main(["scorecard", "none"]) == 2
    assert "KERAS_BACKEND" not in capsys.readouterr().err
