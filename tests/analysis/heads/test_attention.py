import numpy as np
import pytest
from attention_heads import pixel_distances
from tables import features_of, numbers

import vit_tf
from vit_tf import TokenGrid, analysis


def distance_of(weights, grid):
    """Attention distances of heads (head, query, key) that are the same for every example."""
    weights = np.reshape(weights, (1, -1, grid.num_tokens, grid.num_tokens))
    features = features_of({"block00/attention/weights": np.repeat(weights, 6, axis=0)}, grid)
    return analysis.attention_distance(features, numbers(6))


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_uniform_attention_gives_the_mean_pairwise_distance_and_identity_zero(prefix):
    grid = TokenGrid(2, 3, prefix, 8)
    tokens = grid.num_tokens
    result = distance_of([np.full((tokens, tokens), 1 / tokens), np.eye(tokens)], grid)
    np.testing.assert_allclose(result[0], [pixel_distances(grid).mean(), 0], rtol=1e-6)
    assert result.dims == ("layer", "head") and result.attrs["units"] == "pixels"


def test_attention_to_the_prefix_does_not_count():
    grid = TokenGrid(2, 3, 1, 8)
    local = np.eye(7) * 0.1
    local[:, 0] += 0.9
    far = np.full((7, 7), 0.01)
    far[:, 0] = 0.94
    expected = [0, pixel_distances(grid).mean()]
    np.testing.assert_allclose(distance_of([local, far], grid)[0], expected, atol=1e-6)


@pytest.mark.slow
def test_a_model_with_all_taps_is_accepted(rng):
    vit = vit_tf.ViT((16, 24, 3), 8, 2, 2, 8, 16, 5)
    images = rng.normal(size=(5, 16, 24, 3)).astype("float32")
    every = analysis.attention_distance(vit_tf.submodel(vit, "*"), images, vit.token_grid)
    assert list(every.layer) == ["block00/attention/weights", "block01/attention/weights"]
    weights = vit.intermediates(images)["block01/attention/weights"].numpy()[:, :, 1:, 1:]
    weights = weights / weights.sum(-1, keepdims=True)
    expected = (weights * pixel_distances(vit.token_grid)).sum(-1).mean((0, 2))
    np.testing.assert_allclose(every[1], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "measure", [analysis.attention_distance, analysis.mean_attention, analysis.attention_rows]
)
def test_what_is_no_attention_of_the_grid_or_not_finite_is_named(measure):
    grid, images = TokenGrid(2, 3, 1, 8), np.zeros((4, 8, 12, 3), "float32")
    for size, value, grids, word in (
        (6, 0.1, (grid,), "7 tokens"),
        (7, 0.1, (), "grid"),
        (7, np.nan, (grid,), r"finite.*block00"),
    ):
        weights = {"block00/weights": np.full((4, 2, size, size), value, "float32")}
        with pytest.raises(ValueError, match=word):
            measure(lambda images, weights=weights: weights, images, *grids)
