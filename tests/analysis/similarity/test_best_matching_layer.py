import numpy as np
import pytest
import xarray as xr

from vit_tf.analysis.similarity.cka import best_matching_layer, layer_match_accuracy


def similarity(cka, x, y):
    dims = ("layer_x", "layer_y")
    cka = np.array(cka, float)
    return xr.Dataset(
        {"cka": (dims, cka), "stderr": (dims, cka / 100)}, coords={"layer_x": x, "layer_y": y}
    )


def test_counterparts_are_paired_by_name_not_by_position():
    found = best_matching_layer(
        similarity([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], ["a", "b"], ["only", "b", "a"])
    )
    assert list(found.layer.values) == ["a", "b"]
    np.testing.assert_array_equal(found.cka, [0.3, 0.5])
    np.testing.assert_allclose(found.stderr, [0.003, 0.005])


def test_own_matches_of_permuted_layers():
    layers = ["a", "b", "c", "d"]
    assert layer_match_accuracy(similarity(np.eye(4), layers, layers)) == (4, 4)
    moved = np.eye(4)[[1, 0, 2, 3]]
    assert layer_match_accuracy(similarity(moved, layers, layers)) == (2, 4)
    assert layer_match_accuracy(similarity(np.eye(4), layers, layers[::-1])) == (0, 4)
    assert layer_match_accuracy(similarity(np.eye(4)[:, :3], layers, layers[:3])) == (3, 3)


def test_models_without_a_layer_in_common():
    strange = similarity([[1.0]], ["a"], ["b"])
    for function in (best_matching_layer, layer_match_accuracy):
        with pytest.raises(ValueError, match=r"layers of the same names. Received: \['a'\]"):
            function(strange)
