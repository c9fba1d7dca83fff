"""Measurements of a model that was not made for them: KerasHub's ViT."""

import numpy as np
import pytest

from vit_tf import analysis, submodel

SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16, "patch_size": 8}


@pytest.fixture(scope="module")
def backbone():
    pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    from keras_hub.models import ViTBackbone

    return ViTBackbone((16, 16, 3), **SIZES)


@pytest.mark.slow
def test_a_table_of_positions_is_left_out_of_all_layers(backbone, rng):
    features = submodel(backbone, "*")
    images = rng.normal(size=(36, 16, 16, 3)).astype("float32")
    (table,) = (tap for tap in features.output if tap.endswith("position_embedding"))
    with pytest.warns(UserWarning, match=rf"without an example axis are left out: {table}$"):
        result = analysis.cka(features, images[:32])
    constant = np.atleast_1d(result.attrs["constant_layers"]).tolist()
    expected = [tap for tap in features.output if tap != table and tap not in constant]
    assert result.layer_x.values.tolist() == expected and len(expected) > 10
    np.testing.assert_allclose(np.diag(result.cka), 1, atol=1e-4)
    assert result.cka.notnull().all()
