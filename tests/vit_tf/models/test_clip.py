import numpy as np
import oracles
import pytest

from vit_tf import TokenGrid
from vit_tf.models.clip import CLIPViT


def make(num_classes, removed=(), **options):
    return CLIPViT((16, 24, 3), 8, 2, 2, 8, 12, 6, num_classes, without_skips=removed, **options)


@pytest.fixture(params=[None, 5])
def clip(request):
    model = make(request.param, ["block01/attention"])
    oracles.randomize(model)
    return model


def oracle(model, images):
    """The image encoder of Radford et al. 2021, section 2.4, in NumPy float64."""
    weights = oracles.weights_of(model)
    x = oracles.patches(images, weights, 8) + weights["embedding/positions"]
    taps = {"embedding": x}
    taps["pre_norm"] = x = oracles.norm(x, weights, "pre_norm", 1e-5)
    inside, x = oracles.blocks(x, weights, 2, 2, "quick_gelu", 1e-5, ["block01/attention"])
    taps |= inside
    taps["norm"] = x = oracles.norm(x, weights, "norm", 1e-5)
    taps["pooled"] = x = x[:, 0]
    taps["projected"] = x = x @ weights["projection/kernel"]
    if model.num_classes:
        taps["logits"] = oracles.dense(x, weights, "head")
    return taps


def test_every_tap_equals_the_paper_in_float64(clip, images):
    oracles.check_taps(clip, images, oracle(clip, images))
    assert clip.token_grid == TokenGrid(2, 3, 1, 8)
    paths = {w.path for w in clip.weights}
    assert not paths & {"clip/embedding/patches/bias", "clip/projection/bias"}


def test_epsilon_is_that_of_the_release(images):
    model = make(None)
    oracles.randomize(model)
    for weight in (model.embedding.positions, model.embedding.prefix):
        weight.assign(0 * weight)
    weights, faint = oracles.weights_of(model), images * 1e-3
    expected = oracles.norm(oracles.patches(faint, weights, 8), weights, "pre_norm", 1e-5)
    actual = model.intermediates(faint)["pre_norm"]
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
    other = oracles.norm(oracles.patches(faint, weights, 8), weights, "pre_norm", 1e-6)
    assert np.abs(actual - other).max() > 0.1
