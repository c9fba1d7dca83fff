import numpy as np
import pytest

import vit_tf
from vit_tf import analysis


@pytest.fixture
def vit():
    return vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 5, without_skips=["block01/mlp"])


def taps_of(vit, **names):
    """Features that are some taps of a ViT, renamed."""

    def features(images):
        taps = vit.intermediates(images)
        return {name: taps[tap] for name, tap in names.items()}

    return features


def test_branches_meet_the_skips_of_all_blocks(rng, vit):
    images = rng.normal(size=(12, 16, 16, 3)).astype("float32")
    sites = ("block00/attention", "block01/attention")
    result = analysis.residual_cka(vit_tf.submodel(vit, "*"), images)
    assert list(result.layer_x.values) == [f"{site}/branch" for site in sites]
    assert list(result.layer_y.values) == [f"{site}/skip" for site in sites]
    named = {f"b{i}": f"{site}/branch" for i, site in enumerate(sites)}
    named |= {f"s{i}": f"{site}/skip" for i, site in enumerate(sites)}
    known = analysis.cka(taps_of(vit, **named), images).cka
    np.testing.assert_allclose(
        result.cka, known.sel(layer_x=["b0", "b1"], layer_y=["s0", "s1"]), atol=1e-5
    )
    mlp = analysis.residual_cka(vit_tf.submodel(vit, "*"), images, site="mlp")
    assert (list(mlp.layer_x.values), list(mlp.layer_y.values)) == (
        ["block00/mlp/branch", "block01/mlp/branch"],
        ["block00/mlp/skip"],
    )


def test_a_branch_that_copies_its_skip_is_alike(rng):
    images = rng.normal(size=(12, 2, 2, 3)).astype("float32")

    def features(x):
        return {"a/attention/skip": x, "a/attention/branch": -3 * x, "b/mlp/skip": x**2}

    np.testing.assert_allclose(analysis.residual_cka(features, images).cka, [[1]], atol=1e-6)


def test_depth_is_compared_at_the_norms(rng, vit):
    images = rng.normal(size=(12, 16, 16, 3)).astype("float32")
    result = analysis.depth_cka(vit_tf.submodel(vit, "*"), images)
    layers = [f"block0{i}/{site}/norm" for i in range(2) for site in ("attention", "mlp")]
    assert list(result.layer_x.values) == [*layers, "norm"]
    known = analysis.cka(vit_tf.submodel(vit, "norm", "*/norm"), images)
    np.testing.assert_allclose(result.cka, known.cka, atol=1e-6)


def test_errors():
    images = np.zeros((8, 2, 2, 1), "float32")
    with pytest.raises(ValueError, match=r"Expected taps named 'attention/branch'. Received: sum"):
        analysis.residual_cka(lambda x: {"sum": x}, images)
    with pytest.raises(ValueError, match=r"Expected taps named 'norm'. Received: pre_norm"):
        analysis.depth_cka(lambda x: {"pre_norm": x, "block/norm1": x}, images)
