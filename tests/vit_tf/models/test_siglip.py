import numpy as np
import oracles
import pytest
from scipy.special import softmax

import vit_tf
from vit_tf import TokenGrid
from vit_tf.models.siglip import SigLIPViT

# Read off timm 1.0.31, of images of 224 or, with patches of 16 or 32 but for B/16, 256 pixels.
COUNTS = {"B/32": 94_552_320, "B/16": 92_884_224, "L/16": 315_956_224}
COUNTS |= {"So400m/14": 427_680_704, "So400m/16": 427_888_064, "g-opt/16": 1_163_168_256}


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


def test_parameter_counts():
    assert set(SigLIPViT.variants) == set(COUNTS)
    for name, fields in SigLIPViT.variants.items():
        hidden, mlp, patch = (fields[n] for n in ("hidden_dim", "mlp_dim", "patch_size"))
        side = (224 if name in ("B/16", "So400m/14") else 256) // patch
        count = 3 * patch**2 * hidden + hidden + side**2 * hidden + 2 * hidden
        count += fields["num_layers"] * oracles.block_count(hidden, mlp)
        # The pooling is a block with a probe in the place of a normalisation of its input.
        assert count + oracles.block_count(hidden, mlp) - hidden == COUNTS[name], name
    small = make()
    expected = 3 * 64 * 8 + 8 + 6 * 8 + 16 + 3 * oracles.block_count(8, 12) - 8
    assert small.count_params() == expected


def test_another_resolution_keeps_all_but_positions(siglip):
    larger = vit_tf.at_resolution(siglip, (32, 24), num_classes=3)
    assert larger.token_grid == TokenGrid(4, 3, 0, 8) and larger.num_classes == 3
    old, new = oracles.weights_of(siglip), oracles.weights_of(larger)
    for name, weight in old.items():
        if not name.startswith(("head/", "embedding/positions")):
            np.testing.assert_array_equal(new[name], weight)
    assert not new["head/kernel"].any()


@pytest.fixture(scope="module")
def small_model():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16, "num_classes": 3}
    encoder = vit_tf.SigLIPViT((16, 16, 3), 8, **sizes)
    rng = np.random.default_rng(0)
    for weight in encoder.trainable_weights:
        weight.assign(np.asarray(weight) + rng.normal(0, 0.3, weight.shape))
    return encoder


@pytest.mark.parametrize("tap", ["pooling/attention", "pooling/attended", "pooling/hidden"])
def test_an_edit_changes_what_follows_and_nothing_before(small_model, tap, rng):
    """Taps of the pooling leave out the axis of its single query."""
    model = small_model
    images = rng.uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    features = vit_tf.submodel(model, "*")
    plain = {name: value.numpy() for name, value in features(images).items()}
    noise = abs(rng.normal(0, 1, plain[tap].shape)).astype("float32")
    found = vit_tf.intervene(features, {tap: lambda x: x + noise}, "*")(images)
    for before in model.taps[: model.taps.index(tap)]:
        np.testing.assert_array_equal(found[before], plain[before])
    np.testing.assert_allclose(found[tap], plain[tap] + noise, atol=1e-5)
    assert np.abs(found["logits"] - plain["logits"]).max() > 1e-4
