import numpy as np
import pytest
import tensorflow as tf
from oracles import randomize
from tables import features_of, numbers

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
    taps = {"a/skip": [[3.0, 0], [0, 4]], "a/branch": [[0.0, 1], [0, -2]]}
    taps |= {"b/skip": np.ones((2, 2, 3)), "b/branch": np.full((2, 2, 3), 0.5)}
    tables = {tap: np.stack([value] * 3) for tap, value in taps.items()}
    result = analysis.skip_ratio(features_of(tables, TokenGrid(1, 1, 1, 8)), numbers(3))
    np.testing.assert_allclose(result.norm_ratio, [[3, 2, np.nan, np.nan], [2, 2, 2, 2]])
    np.testing.assert_allclose(result.cosine[0, :2], [0, -1], atol=1e-6)
    np.testing.assert_allclose(result.cosine[1], 1, rtol=1e-6)
    np.testing.assert_allclose(result.negative_share, [0, 0])


def test_the_share_of_negative_values_counts_those_of_skips_alone():
    skip = np.array([[[1.0, -1], [0, -2]], [[1, 2], [-3, -4]], [[0, 0], [0, 1]]])
    features = features_of({"a/skip": skip, "a/branch": -np.ones((3, 2, 2))})
    result = analysis.skip_ratio(features, numbers(3))
    np.testing.assert_allclose(result.negative_share, [4 / 12], rtol=1e-6)


def test_examples_without_a_branch_are_left_out_and_counted():
    skip = np.array([2.0, 4.0, 8.0, 0.0])[:, None, None]
    branch = np.array([[1.0, 0], [-1.0, 0], [0.0, 0], [1.0, 0]])[:, :, None]
    features = features_of({"a/skip": np.tile(skip, (1, 2, 1)), "a/branch": branch})
    result = analysis.skip_ratio(features, numbers(4))
    np.testing.assert_allclose(result.norm_ratio, [[3.0, np.nan]])
    np.testing.assert_allclose(result.cosine, [[0.0, np.nan]])
    assert result.attrs["left_out"] == pytest.approx(6 / 8)


@pytest.mark.parametrize("measure", [analysis.skip_ratio, analysis.branch_norms])
def test_layers_without_skips(measure):
    with pytest.raises(ValueError, match="'site/skip'"):
        measure(lambda x: {"sum": x}, np.zeros((3, 2, 2, 1), "float32"))


def test_branches_that_are_not_finite_are_named():
    features = features_of({"a/skip": np.ones((3, 2)), "a/branch": np.full((3, 2), np.nan)})
    with pytest.raises(ValueError, match=r"finite.*a"):
        analysis.skip_ratio(features, numbers(3))


def test_norms_of_every_image_and_the_mean_of_their_ratio(rng):
    vit = vit_tf.ViT((8, 8, 3), 4, 2, 2, 8, 16, 5)
    randomize(vit)
    images = rng.uniform(-1, 1, size=(3, 8, 8, 3)).astype("float32")
    features = vit_tf.submodel(vit, "*/skip", "*/branch")
    result = analysis.branch_norms(features, images)
    taps = {tap: x.numpy().astype(float) for tap, x in features(images).items()}
    for what in ("skip", "branch"):
        expected = [np.sqrt((taps[f"{site}/{what}"] ** 2).sum(-1)) for site in result.layer.values]
        np.testing.assert_allclose(result[what], np.moveaxis(expected, 0, 1), rtol=1e-5)
    ratio = analysis.skip_ratio(features, images).norm_ratio
    np.testing.assert_allclose((result.skip / result.branch).mean("example"), ratio, rtol=1e-5)


def test_tokens_that_a_stage_does_not_have_are_not_known(rng):
    bit = vit_tf.BiT((16, 16, 3), units=(1, 1), num_classes=5, stem="small", width_factor=0.5)
    images = rng.uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    result = analysis.branch_norms(vit_tf.submodel(bit, "*/skip", "*/branch"), images)
    counts = result.skip.notnull().sum("token")[0].values
    assert counts[0] == 4 * counts[1] == result.sizes["token"]
