import numpy as np
import pytest
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf import TokenGrid, analysis

GRID = TokenGrid(rows=2, columns=3, prefix=1, stride=4)


def weights_of(rng, *shape):
    """Rows that sum to 1, as after a softmax."""
    scores = rng.normal(0, 3, shape)
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


def oracle(weights, prefix):
    """Means over examples by loops: raw, and renormalised over the keys with a place."""
    raw, spatial = [], []
    for layer in weights:
        raw.append(sum(layer) / len(layer))
        shares = [one[..., prefix:] / one[..., prefix:].sum(-1)[..., None] for one in layer]
        spatial.append(sum(shares) / len(layer))
    return np.array(raw), np.array(spatial)


def test_means_of_known_weights(rng):
    weights = weights_of(rng, 2, 7, 3, 7, 7)  # (layer, example, head, query, key)
    data = tf.data.Dataset.range(7).batch(3).map(lambda n: tf.reshape(n, (-1, 1, 1, 1)))
    table = tf.constant(weights, tf.float32)

    def features(numbers):
        chosen = tf.reshape(numbers, (-1,))
        return {f"block{i:02d}/attention/weights": tf.gather(table[i], chosen) for i in range(2)}

    features.integer_images = True  # numbers of images
    result = analysis.mean_attention(features, data, GRID)
    raw, spatial = oracle(weights, prefix=1)
    np.testing.assert_allclose(result["raw"], raw, atol=1e-6)
    np.testing.assert_allclose(result["spatial"], spatial, atol=1e-6)
    assert result.attrs["examples"] == 7
    assert list(result["spatial_key"].values) == [1, 2, 3, 4, 5, 6]


def test_distance_follows_from_the_mean_maps(rng):
    vit = vit_tf.ViT((16, 24, 3), 8, 2, 2, 8, 16, 5)
    images = rng.normal(size=(6, 16, 24, 3)).astype("float32")
    features = vit_tf.submodel(vit, "*/weights")
    maps = analysis.mean_attention(features, images)
    grid = vit.token_grid
    spatial = maps["spatial"].sel(query=maps["spatial_key"].values).values
    expected = (spatial * grid.distances()).sum(-1).mean(-1)
    distance = analysis.attention_distance(features, images, grid)
    np.testing.assert_allclose(distance, expected, rtol=1e-5)
    for name in ("raw", "spatial"):
        np.testing.assert_allclose(maps[name].sum(maps[name].dims[-1]), 1.0, rtol=1e-5)


def test_comes_back_from_netcdf(rng, tmp_path):
    vit = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 16, 5)
    features = vit_tf.submodel(vit, "*/weights")
    result = analysis.mean_attention(features, rng.normal(size=(4, 16, 16, 3)))
    result.to_netcdf(tmp_path / "maps.nc")
    xr.testing.assert_identical(xr.load_dataset(tmp_path / "maps.nc"), result)


def test_refuses_what_is_no_attention_and_what_is_not_finite():
    images = np.zeros((4, 8, 12, 3), "float32")
    with pytest.raises(ValueError, match="over 7 tokens"):
        analysis.mean_attention(lambda x: {"layer": tf.zeros((4, 2, 6, 6))}, images, GRID)
    with pytest.raises(ValueError, match="Expected a grid"):
        analysis.mean_attention(lambda x: {"layer": tf.zeros((4, 2, 7, 7))}, images)
    with pytest.raises(ValueError, match="layer"):
        analysis.mean_attention(lambda x: {"layer": tf.zeros((4, 2, 7, 7))}, images, GRID)
