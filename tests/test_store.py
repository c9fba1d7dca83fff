import numpy as np
import pytest
import xarray as xr

from vit_tf.analysis.store import fingerprint, load, stored


def result():
    return xr.DataArray(
        np.arange(6.0).reshape(2, 3), dims=("layer", "head"), coords={"layer": ["a/b", "c"]}
    ).rename("distance")


def test_work_is_done_once_for_each_key(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return result()

    path = tmp_path / "deep" / "distance.nc"
    first = stored(path, "k1", compute)
    again = stored(path, "k1", compute)
    assert len(calls) == 1
    xr.testing.assert_identical(first, again)
    xr.testing.assert_equal(again, result())
    assert again.attrs["key"] == "k1" and again.attrs["seconds"] >= 0
    stored(path, "k2", compute)
    assert len(calls) == 2 and load(path, "k1") is None and load(path, "k2") is not None


def test_a_failed_computation_leaves_the_old_result(tmp_path):
    path = tmp_path / "distance.nc"
    stored(path, "k1", result)

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        stored(path, "k2", fail)
    assert load(path, "k1") is not None
    assert [p.name for p in tmp_path.iterdir()] == ["distance.nc"]


def test_fingerprints_are_of_values_not_of_order_or_container():
    assert fingerprint({"a": 1, "b": (2, 3)}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
