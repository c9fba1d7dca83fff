"""Edits inside SigLIP's attention pooling, whose taps leave out the axis of its single query."""

import numpy as np
import pytest

import vit_tf
from vit_tf import intervene, submodel


@pytest.fixture(scope="module")
def model():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16, "num_classes": 3}
    tower = vit_tf.SigLIPViT((16, 16, 3), 8, **sizes)
    rng = np.random.default_rng(0)
    for weight in tower.trainable_weights:
        weight.assign(np.asarray(weight) + rng.normal(0, 0.3, weight.shape))
    return tower


@pytest.mark.parametrize("tap", ["pooling/attention", "pooling/attended", "pooling/hidden"])
def test_an_edit_changes_what_follows_and_nothing_before(model, tap, rng):
    images = rng.uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    features = submodel(model, "*")
    plain = {name: value.numpy() for name, value in features(images).items()}
    noise = abs(rng.normal(0, 1, plain[tap].shape)).astype("float32")
    found = intervene(features, {tap: lambda x: x + noise}, "*")(images)
    for before in model.taps[: model.taps.index(tap)]:
        np.testing.assert_array_equal(found[before], plain[before])
    np.testing.assert_allclose(found[tap], plain[tap] + noise, atol=1e-5)
    assert np.abs(found["logits"] - plain["logits"]).max() > 1e-4
