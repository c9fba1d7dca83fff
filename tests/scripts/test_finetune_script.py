"""Fine-tuning from the command line: what it writes, killed and run again, and mistakes."""

import json

import keras
import numpy as np
import pytest
from oracles import weights_of
from training_runs import kill_at, read_log

import vit_tf
from vit_tf import data, load_model
from vit_tf.scripts import common, finetune

TINY = {"num_layers": 1, "num_heads": 1, "hidden_dim": 8, "mlp_dim": 8}
SPECIAL = vit_tf.Preprocessing((8, 8), (0.4, 0.5, 0.6), (0.3, 0.2, 0.1), "bicubic")
QUICK = "--steps 4 --num-validations 2 --batch-size 100 --learning-rate 0.02 --take 300"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Path of a small model of five classes that expects images of its own kind."""
    keras.utils.set_random_seed(1)
    model = vit_tf.ViT((8, 8, 3), 4, **TINY, num_classes=5, preprocessing=SPECIAL)
    path = tmp_path_factory.mktemp("start") / "start.keras"
    model.save(path)
    return path


@pytest.mark.slow
def test_killed_run_goes_on_and_writes_the_model(start, tmp_path, monkeypatch, capsys):
    line = f"{start} --image-size 12 {QUICK} --out {tmp_path}".split()
    with monkeypatch.context() as context:
        kill_at(context, "on_train_batch_end", 3)
        assert finetune.main(line) == 130
    assert len(read_log(tmp_path)) == 1 and not (tmp_path / "model.keras").exists()
    assert finetune.main(line) == 0
    assert [row["epoch"] for row in read_log(tmp_path)] == ["1", "2"]
    output = capsys.readouterr().out
    assert "Epoch 1/2" in output and output.count("Epoch 2/2") == 2

    model = load_model(tmp_path / "model.keras")
    result = json.loads((tmp_path / "result.json").read_text())
    assert model.num_classes == 10 and model.image_shape[0] == 12
    expected = vit_tf.Preprocessing((12, 12), SPECIAL.mean, SPECIAL.std, "bicubic")
    assert model.preprocessing == expected and model.class_names == tuple("0123456789")
    (test,) = data.load("digits", splits=("test",), preprocessing=expected)
    right = [np.argmax(model(x), axis=1) == y for x, y in test.as_numpy_iterator()]
    assert result["test_accuracy"] == pytest.approx(np.concatenate(right).mean())
    assert f"test accuracy {100 * result['test_accuracy']:.2f} %" in output
    assert result["recipe"]["steps"] == 4 and result["recipe"]["momentum"] == 0.9

    again = finetune.main([*line, "--momentum", "0.5"])
    assert again == 2 and "momentum: 0.9 there, 0.5 now" in capsys.readouterr().err


@pytest.mark.slow
def test_it_starts_from_the_weights_at_chance(start, tmp_path):
    """With a rate of nearly zero the model stays what it was, with a head of zeros."""
    line = f"{start} --image-size 12 --steps 1 --num-validations 1 --warmup-steps 0"
    line += " --learning-rate 1e-30"
    assert finetune.main(f"{line} --take 100 --positions bicubic --out {tmp_path}".split()) == 0
    row = read_log(tmp_path)[0]
    assert float(row["loss"]) == pytest.approx(np.log(10), abs=1e-5)
    assert float(row["accuracy"]) == pytest.approx(0.1)  # all of class 0
    assert float(row["val_loss"]) == pytest.approx(np.log(10), abs=1e-5)
    values = weights_of(load_model(tmp_path / "model.keras"))
    expected = vit_tf.at_resolution(load_model(start), (12, 12), 10, "bicubic")
    for path, value in weights_of(expected).items():
        np.testing.assert_allclose(values[path], value, atol=1e-12, err_msg=path)


def recipe_of(line, model):
    options = finetune.parse(f"x.keras {line} --out x".split())
    return finetune.make_recipe(options, model)


def test_recipe_follows_the_family_and_the_options():
    vit = vit_tf.ViT((8, 8, 3), 4, **TINY, num_classes=5)
    bit = vit_tf.BiT((8, 8, 3), (1,), 0.5, 5)
    assert recipe_of("--ema 0.9 --flip", vit) == vit_tf.FineTuning(ema=0.9, flip=True)
    rule = vit_tf.FineTuning.hyperrule(1437, (8, 8), 128)
    assert recipe_of("", bit) == recipe_of("--recipe hyperrule", vit) == rule
    assert recipe_of("--recipe vit --steps 20", bit) == vit_tf.FineTuning(steps=20)
    small = recipe_of("--image-size 32 --no-flip", bit)
    assert (small.crop, small.resize, small.flip) == ((32, 32), (40, 40), False)


@pytest.mark.slow
def test_crops_are_cut_from_larger_training_images(tmp_path):
    bit = vit_tf.BiT((8, 8, 3), (1,), 0.5, 5)
    bit.save(tmp_path / "bit.keras")
    line = f"{tmp_path / 'bit.keras'} --image-size 16 --steps 2 --num-validations 1 --take 60"
    assert finetune.main(f"{line} --out {tmp_path / 'run'}".split()) == 0
    assert load_model(tmp_path / "run" / "model.keras").image_shape[0] == 16
    options = finetune.parse(f"{line} --out x".split())
    recipe = finetune.make_recipe(options, bit)
    bit = vit_tf.at_resolution(bit, (16, 16))
    splits = finetune.load_splits(options, recipe, bit.preprocessing)
    assert [split.element_spec[0].shape[1] for split in splits] == [20, 16, 16]
    same = data.load("digits", image_size=20, splits=finetune.SPLITS, take={"train": 60})
    for item, other in ((splits[0], same[0]),):
        assert sorted(np.concatenate([y for _, y in item.as_numpy_iterator()])) == sorted(
            np.concatenate([y for _, y in other.as_numpy_iterator()])
        )


def test_checkpoints_are_opened_where_they_can_be(start, monkeypatch):
    monkeypatch.setattr(vit_tf, "load_pretrained", lambda name: f"model of {name}", raising=False)
    assert common.open_model("timm/vit") == "model of timm/vit"
    assert common.open_model(str(start)).num_classes == 5
