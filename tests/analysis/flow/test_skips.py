import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import TokenGrid, analysis


def test_ratio_and_cosine_equal_the_definition(rng):
    vit = vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 5, without_skips=["block01/mlp"])
    images = rng.normal(size=(7, 16, 16, 3)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(images).batch(3)
    result = analysis.skip_ratio(vit_tf.submodel(vit, "*"), data)
    sites = ["block00/attention", "block00/mlp", "block01/attention"]
    assert list(result.layer) == sites and result.attrs["prefix"] == 1
    taps = vit.intermediates(images)
    for site in sites:
        skip, branch = (np.float64(taps[f"{site}/{end}"]) for end in ("skip", "branch"))
        norms = np.linalg.norm(skip, axis=-1), np.linalg.norm(branch, axis=-1)
        ratio = (norms[0] / norms[1]).mean(0)
        cosine = ((skip * branch).sum(-1) / (norms[0] * norms[1])).mean(0)
        np.testing.assert_allclose(result.norm_ratio.sel(layer=site), ratio, rtol=1e-4)
        np.testing.assert_allclose(result.cosine.sel(layer=site), cosine, atol=1e-5)


def test_known_vectors_and_maps_of_different_sizes():
    skip = np.array([[3.0, 0], [0, 4]], "float32")
    branch = np.array([[0.0, 1], [0, -2]], "float32")

    def features(images):
        return {
            "a/skip": tf.broadcast_to(skip, (tf.shape(images)[0], 2, 2)),
            "a/branch": tf.broadcast_to(branch, (tf.shape(images)[0], 2, 2)),
            "b/skip": tf.ones((tf.shape(images)[0], 2, 2, 3)),
            "b/branch": 0.5 * tf.ones((tf.shape(images)[0], 2, 2, 3)),
        }

    result = analysis.skip_ratio(features, np.zeros((3, 1, 1, 1)), TokenGrid(1, 1, 1, 8))
    np.testing.assert_allclose(result.norm_ratio, [[3, 2, np.nan, np.nan], [2, 2, 2, 2]])
    np.testing.assert_allclose(result.cosine[0, :2], [0, -1], atol=1e-6)
    np.testing.assert_allclose(result.cosine[1], 1, rtol=1e-6)


def test_examples_without_a_branch_are_left_out_and_counted():
    skip = np.array([2.0, 4.0, 8.0, 0.0], "float32")[:, None, None]
    branch = np.array([[1.0, 0], [-1.0, 0], [0.0, 0], [1.0, 0]], "float32")[:, :, None]

    def features(images):
        index = tf.cast(images[:, 0, 0, 0], tf.int32)
        return {
            "a/skip": tf.gather(np.tile(skip, (1, 2, 1)), index),
            "a/branch": tf.gather(branch, index),
        }

    images = np.arange(4, dtype="float32").reshape(-1, 1, 1, 1)
    result = analysis.skip_ratio(features, images)
    np.testing.assert_allclose(result.norm_ratio, [[3.0, np.nan]])
    np.testing.assert_allclose(result.cosine, [[0.0, np.nan]])
    assert result.attrs["left_out"] == pytest.approx(6 / 8)


def test_errors():
    images = np.zeros((3, 2, 2, 1), "float32")
    with pytest.raises(ValueError, match="Expected taps 'site/skip'"):
        analysis.skip_ratio(lambda x: {"sum": x}, images)
    with pytest.raises(ValueError, match=r"finite.*a"):
        analysis.skip_ratio(lambda x: {"a/skip": x + 1, "a/branch": x * np.nan}, images)
