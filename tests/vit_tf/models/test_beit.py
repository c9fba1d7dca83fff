import numpy as np
import oracles
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import TokenGrid
from vit_tf.models.beit import BEiT, relative_index

REMOVED = ["block01/mlp"]


def make(pooling="gap", shared_bias=False, **options):
    sizes = ((16, 24, 3), 8, 2, 2, 8, 12, 5)
    return BEiT(*sizes, pooling=pooling, shared_bias=shared_bias, **options)


@pytest.fixture(params=[("gap", False), ("cls", True), ("gap", True), ("cls", False)])
def beit(request):
    model = make(*request.param, without_skips=REMOVED)
    oracles.randomize(model)
    return model


def relative_bias(table, rows, columns):
    """Bao et al. 2021's biases by pair of tokens, one at a time: (head, query, key)."""
    positions = [None, *((r, c) for r in range(rows) for c in range(columns))]
    by_offset = table[:-3].reshape(2 * rows - 1, 2 * columns - 1, -1)

    def bias_of(query, key):
        if query is None and key is None:
            return table[-1]
        if key is None:
            return table[-2]
        if query is None:
            return table[-3]
        return by_offset[query[0] - key[0] + rows - 1, query[1] - key[1] + columns - 1]

    biases = np.array([[bias_of(query, key) for key in positions] for query in positions])
    return biases.transpose(2, 0, 1)


def oracle(model, images):
    """The forward pass of BEiT in NumPy float64."""
    weights = oracles.weights_of(model)

    def bias(i):
        layer = "bias" if "bias/table" in weights else f"block{i:02d}_bias"
        return relative_bias(weights[f"{layer}/table"], 2, 3)

    taps = {"embedding": oracles.patches(images, weights, 8)}
    inside, x = oracles.blocks(
        taps["embedding"], weights, 2, 2, "gelu", 1e-6, removed=REMOVED, bias=bias
    )
    taps |= inside
    if model.pooling == "gap":
        taps["pooled"] = x = x[:, 1:].mean(1)
        taps["fc_norm"] = x = oracles.norm(x, weights, "fc_norm", 1e-6)
    else:
        taps["norm"] = x = oracles.norm(x, weights, "norm", 1e-6)
        taps["pooled"] = x = x[:, 0]
    taps["logits"] = oracles.dense(x, weights, "head")
    return taps


def test_every_tap_equals_the_paper_in_float64(beit, images):
    oracles.check_taps(beit, images, oracle(beit, images))
    assert beit.token_grid == TokenGrid(2, 3, 1, 8)
    assert not any(w.path.endswith(("key/bias", "positions")) for w in beit.weights)


def test_relative_index_of_a_small_window():
    # Tokens CLS, (0, 0), (0, 1): offsets along the row are -1, 0 and 1, then the three of CLS.
    np.testing.assert_array_equal(relative_index(1, 2), [[5, 3, 3], [4, 1, 0], [4, 2, 1]])
    index = relative_index(3, 4)
    table = np.arange(index.max() + 1)[:, None]
    np.testing.assert_array_equal(relative_bias(table, 3, 4)[0], index)
    assert set(index.ravel()) == set(range(5 * 7 + 3))


def test_without_scales_or_biases_it_is_a_vit(images):
    beit = make("cls", layer_scale=None)
    vit = vit_tf.ViT((16, 24, 3), 8, 2, 2, 8, 12, 5)
    oracles.randomize(vit)
    ours = {w.path.split("/", 1)[1]: w for w in beit.weights}
    for weight in vit.weights:
        path = weight.path.split("/", 1)[1]
        if path.endswith(("positions", "key/bias")):
            weight.assign(0 * weight)
        else:
            ours.pop(path).assign(weight)
    assert set(ours) == {"block00_bias/table", "block01_bias/table"}
    np.testing.assert_allclose(beit(images), vit(images), rtol=1e-5, atol=1e-6)


def test_a_submodel_of_the_first_block_holds_one_table_only(images):
    beit = make()
    oracles.randomize(beit)
    features = vit_tf.submodel(beit, "block00/attention/sum")
    tables = [w.path for w in features.weights if w.name == "table"]
    assert tables == ["beit/block00_bias/table"]
    np.testing.assert_allclose(
        features(images)["block00/attention/sum"],
        beit.intermediates(images)["block00/attention/sum"],
        rtol=1e-6,
        atol=1e-6,
    )


def test_biases_and_scales_learn(images):
    beit = make(shared_bias=True)
    oracles.randomize(beit)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(beit(images) ** 2)
    gradients = tape.gradient(loss, [w.value for w in beit.trainable_weights])
    for weight, gradient in zip(beit.trainable_weights, gradients, strict=True):
        assert np.abs(gradient).max() > 0, weight.path


def test_scales_start_at_layer_scale():
    np.testing.assert_array_equal(make().blocks[0].mlp_scale, np.full(8, 0.1, "float32"))
