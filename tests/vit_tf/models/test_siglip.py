import numpy as np
import oracles
import pytest
from scipy.special import softmax

from vit_tf import TokenGrid
from vit_tf.models.siglip import SigLIPViT


def make(num_classes=None, removed=(), **options):
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}
    sizes |= {"num_classes": num_classes, "without_skips": removed}
    return SigLIPViT((18, 25, 3), 8, **sizes | options)


@pytest.fixture(params=[None, 5])
def siglip(request):
    model = make(request.param, ["block01/attention"])
    oracles.randomize(model)
    return model


@pytest.fixture
def images(rng):
    return rng.normal(size=(2, 18, 25, 3)).astype("float32")


def oracle(model, images):
    """big_vision's `models/vit.py` with `pool_type="map"`, in NumPy float64."""
    weights = oracles.weights_of(model)
    x = oracles.patches(images[:, :16, :24], weights, 8) + weights["embedding/positions"]
    taps = {"embedding": x}
    inside, x = oracles.blocks(x, weights, 2, 2, "gelu_tanh", 1e-6, ["block01/attention"])
    taps |= inside
    taps["norm"] = x = oracles.norm(x, weights, "norm", 1e-6)
    query = oracles.dense(weights["pooling/probe"][0], weights, "pooling/query").reshape(2, 4)
    key = oracles.dense(x, weights, "pooling/key").reshape(2, -1, 2, 4)
    value = oracles.dense(x, weights, "pooling/value").reshape(2, -1, 2, 4)
    shares = softmax(np.einsum("hc,nthc->nht", query, key) / 2, axis=-1)
    taps["pooling/attention"] = shares
    x = np.einsum("nht,nthc->nhc", shares, value).reshape(2, 8)
    taps["pooling/attended"] = x = oracles.dense(x, weights, "pooling/out")
    y = oracles.dense(oracles.norm(x, weights, "pooling/norm", 1e-6), weights, "pooling/expand")
    taps["pooling/hidden"] = y = oracles.GELUS["gelu_tanh"](y)
    taps["pooled"] = x = x + oracles.dense(y, weights, "pooling/contract")
    if model.num_classes:
        taps["logits"] = oracles.dense(x, weights, "head")
    return taps


def test_every_tap_equals_the_formulas_in_float64(siglip, images):
    oracles.check_taps(siglip, images, oracle(siglip, images))
    assert siglip.token_grid == TokenGrid(2, 3, 0, 8)
    assert siglip.position_embedding.shape == (6, 8) and siglip.patch_kernel.shape == (8, 8, 3, 8)
