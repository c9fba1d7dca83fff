import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import TokenGrid, analysis

OBLONG = TokenGrid(2, 3, 0, 8)
IMAGES = np.zeros((6, 1, 1, 1), "float32")


def constant(weights):
    """Features with the same attention (query, key) or (head, query, key) for every example."""
    weights = np.asarray(weights, "float32")
    weights = weights.reshape(1, -1, *weights.shape[-2:])
    return lambda images: {"block00/attention/weights": tf.repeat(weights, tf.shape(images)[0], 0)}


def pixel_distance(grid):
    points = [(8 * r, 8 * c) for r in range(grid.rows) for c in range(grid.columns)]
    return np.array([[np.hypot(a - c, b - d) for c, d in points] for a, b in points])


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_uniform_attention_gives_the_mean_pairwise_distance(prefix):
    grid = TokenGrid(2, 3, prefix, 8)
    tokens = grid.num_tokens
    result = analysis.attention_distance(
        constant(np.full((tokens, tokens), 1 / tokens)), IMAGES, grid
    )
    assert result.item() == pytest.approx(pixel_distance(grid).mean(), rel=1e-6)
    assert result.dims == ("layer", "head") and result.attrs["units"] == "pixels"


@pytest.mark.parametrize("prefix", [0, 1])
def test_identity_attention_gives_zero(prefix):
    grid = TokenGrid(2, 3, prefix, 8)
    assert analysis.attention_distance(constant(np.eye(6 + prefix)), IMAGES, grid).item() == 0


def test_attention_to_the_prefix_does_not_count():
    grid = TokenGrid(2, 3, 1, 8)
    local = np.eye(7) * 0.1
    local[:, 0] += 0.9
    far = np.full((7, 7), 0.01)
    far[:, 0] = 0.94
    result = analysis.attention_distance(constant([local, far]), IMAGES, grid)
    np.testing.assert_allclose(result[0], [0, pixel_distance(grid).mean()], atol=1e-6)


def test_random_attention_equals_the_definition(rng):
    weights = rng.dirichlet(np.ones(6), size=(5, 2, 6)).astype("float32")
    table = tf.constant(weights)

    def features(images):
        return {"weights": tf.gather(table, tf.cast(images[:, 0, 0, 0], tf.int32))}

    images = np.arange(5, dtype="float32").reshape(-1, 1, 1, 1)
    data = tf.data.Dataset.from_tensor_slices(images).batch(2)
    result = analysis.attention_distance(features, data, OBLONG)
    expected = (weights * pixel_distance(OBLONG)).sum(-1).mean((0, 2))
    np.testing.assert_allclose(result[0], expected, rtol=1e-5)


@pytest.mark.slow
def test_a_whole_model_may_be_given(rng):
    vit = vit_tf.ViT((16, 24, 3), 8, 2, 2, 8, 16, 5)
    images = rng.normal(size=(5, 16, 24, 3)).astype("float32")
    every = analysis.attention_distance(vit_tf.submodel(vit, "*"), images, vit.token_grid)
    assert list(every.layer) == ["block00/attention/weights", "block01/attention/weights"]
    weights = vit.intermediates(images)["block01/attention/weights"].numpy()[:, :, 1:, 1:]
    weights = weights / weights.sum(-1, keepdims=True)
    expected = (weights * pixel_distance(vit.token_grid)).sum(-1).mean((0, 2))
    np.testing.assert_allclose(every[1], expected, rtol=1e-5)


def test_errors():
    with pytest.raises(ValueError, match=r"over 7 tokens .*'block00/attention/weights'"):
        analysis.attention_distance(constant(np.eye(6)), IMAGES, TokenGrid(2, 3, 1, 8))
    with pytest.raises(ValueError, match=r"Expected finite activations.*block00"):
        analysis.attention_distance(constant(np.full((6, 6), np.nan)), IMAGES, OBLONG)
