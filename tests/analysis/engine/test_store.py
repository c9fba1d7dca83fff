import numpy as np
import pytest
import xarray as xr

from vit_tf.analysis.engine.store import fingerprint, keep, load
from vit_tf.files import write_whole


def result():
    return xr.DataArray(
        np.arange(6.0).reshape(2, 3), dims=("layer", "head"), coords={"layer": ["a/b", "c"]}
    ).rename("distance")


def test_results_come_back_under_their_key_only(tmp_path):
    path = tmp_path / "deep" / "distance.nc"
    assert load(path, "k1") is None
    kept = keep(result(), path, "k1", {"seconds": 1.5})
    xr.testing.assert_identical(load(path, "k1"), kept)
    xr.testing.assert_equal(kept, result())
    assert kept.attrs == {"seconds": 1.5, "key": "k1"}
    assert load(path, "k2") is None
    keep(result().to_dataset(), path, "k2", {})
    assert load(path, "k1") is None and load(path, "k2") is not None


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "distance.nc"
    keep(result(), path, "k1", {})

    def fail(partial):
        partial.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, fail)
    assert load(path, "k1") is not None
    assert [p.name for p in tmp_path.iterdir()] == ["distance.nc"]


def test_fingerprints_are_of_values_not_of_order_or_container():
    assert fingerprint({"a": 1, "b": (2, 3)}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
