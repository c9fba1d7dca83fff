"""Pre-training from the command line: what it writes, killed and run again, and mistakes."""

import json

import numpy as np
import pytest
from oracles import weights_of
from training_runs import kill_at, read_log

from vit_tf import MaskedPatchPrediction, ViT, data, load_model
from vit_tf.scripts import pretrain
from vit_tf.training.evaluation import majority_accuracy

TINY = "--image-size 8 --patch-size 2 --num-layers 1 --num-heads 1 --hidden-dim 8 --mlp-dim 8"
QUICK = "--take 300 --batch-size 100 --epochs 3 --learning-rate 0.02 --shift 1 --dropout-rate 0.1"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Folder of an undisturbed run."""
    out = tmp_path_factory.mktemp("pretrain") / "whole"
    assert pretrain.main(f"{TINY} {QUICK} --out {out}".split()) == 0
    return out


@pytest.mark.slow
def test_resumed_run_is_the_undisturbed_one(undisturbed, tmp_path, monkeypatch):
    line = f"{TINY} {QUICK} --out {tmp_path}".split()
    with monkeypatch.context() as context:
        kill_at(context, "on_train_batch_end", 5)
        assert pretrain.main(line) == 130
    assert len(read_log(tmp_path)) == 1 and not (tmp_path / "model.keras").exists()
    assert pretrain.main(line) == 0
    assert read_log(tmp_path) == read_log(undisturbed)
    for name in ("model.keras", "best.keras"):
        outputs, expected = (weights_of(load_model(out / name)) for out in (tmp_path, undisturbed))
        for path, value in expected.items():
            np.testing.assert_array_equal(outputs[path], value, err_msg=path)


@pytest.mark.slow
def test_what_it_writes(undisturbed):
    vit, best = load_model(undisturbed / "model.keras"), load_model(undisturbed / "best.keras")
    assert isinstance(vit, ViT) and isinstance(best, MaskedPatchPrediction)
    assert vit.num_classes == 10 and not np.any(vit.head.kernel) and vit.token_grid.rows == 4
    result = json.loads((undisturbed / "result.json").read_text())
    assert result["parameters"] == vit.count_params() and result["recipe"]["epochs"] == 3
    assert 0 < result["test_accuracy"] < 1


@pytest.mark.slow
def test_commonest_colour_is_that_of_the_training_data(undisturbed):
    options = pretrain.parse(f"{TINY} {QUICK} --out {undisturbed}".split())
    splits = data.load("digits", image_size=8, take={"train": 300})
    train, test = pretrain.mask_splits(splits, load_model(undisturbed / "model.keras"), 10, options)
    observations, asked = (
        np.concatenate([y.ravel() for _, y in x.as_numpy_iterator()]) for x in (train, test)
    )
    values, counts = np.unique(observations, return_counts=True)
    expected = (asked == values[np.argmax(counts)]).mean()
    assert majority_accuracy(train, test, 512) == pytest.approx(expected)
    result = json.loads((undisturbed / "result.json").read_text())
    assert result["commonest_colour_accuracy"] == pytest.approx(expected, abs=0.03)
