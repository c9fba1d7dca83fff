"""Export from the command line: the SavedModel answers as the model does, and mistakes."""

import numpy as np
import pytest
import tensorflow as tf
from oracles import randomize

import vit_tf
from vit_tf.scripts import export


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model with random weights, and the path of its file."""
    model = vit_tf.ViT((8, 8, 3), 4, 2, 1, 8, 8, num_classes=3)
    randomize(model)
    path = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(path)
    return model, str(path)


@pytest.mark.slow
def test_saved_model_answers_alone(model, tmp_path, capsys, rng):
    model, path = model
    out = tmp_path / "deep" / "exported"
    out.parent.mkdir()
    # A link of the name that an earlier version wrote to; what lies behind it is not ours.
    (tmp_path / "mine").mkdir()
    (out.parent / ".partial-exported").symlink_to(tmp_path / "mine")
    assert export.main([path, "--taps", "block*/mlp/sum", "pooled", "--out", str(out)]) == 0
    assert f"3 taps, {out}" in capsys.readouterr().out
    images = rng.normal(size=(5, 8, 8, 3)).astype("float32")
    outputs = tf.saved_model.load(str(out)).signatures["serving_default"](images=images)
    assert set(outputs) == {"block00/mlp/sum", "block01/mlp/sum", "pooled"}
    expected = model.intermediates(images)
    for tap, value in outputs.items():
        np.testing.assert_allclose(value, expected[tap], atol=1e-5)
    assert vit_tf.load_features(out).taps == ("block00/mlp/sum", "block01/mlp/sum", "pooled")
    assert sorted(path.name for path in out.parent.iterdir()) == [".partial-exported", "exported"]
    assert not list((tmp_path / "mine").iterdir())
    assert export.main([path, "--taps", "pooled", "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.slow
def test_the_folder_stores_the_specified_pixel_values(model, tmp_path, capsys):
    line = [model[1], "--taps", "pooled", "--out", str(tmp_path / "out"), "--range", "0", "255"]
    assert export.main(line) == 0
    outputs = vit_tf.load_features(tmp_path / "out")
    assert outputs.preprocessing == vit_tf.Preprocessing.from_range((8, 8), 0, 255)
    assert outputs.token_grid == model[0].token_grid
    assert "images: values in [0, 255] (set by the options)" in capsys.readouterr().out


def test_taps_are_listed(model, capsys):
    assert export.main([model[1], "--list"]) == 0
    assert capsys.readouterr().out.split() == list(model[0].taps)
