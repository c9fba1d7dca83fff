import numpy as np
import pytest
from oracles import randomize

import vit_tf
from vit_tf import analysis


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


def test_layers_without_skips():
    vit = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 5)
    with pytest.raises(ValueError, match="Expected taps 'site/skip'"):
        analysis.branch_norms(vit_tf.submodel(vit, "embedding"), np.zeros((1, 8, 8, 3), "float32"))
