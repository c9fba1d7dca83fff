from functools import partial

import numpy as np
import pytest
import xarray as xr
from module_files import forget, replace_modules

from vit_tf.analysis.engine.store import (
    base_code,
    code_of,
    fingerprint,
    keep,
    load,
)
from vit_tf.data.files import write_whole


def result():
    return xr.DataArray(
        np.arange(6.0).reshape(2, 3), dims=("layer", "head"), coords={"layer": ["a/b", "c"]}
    ).rename("distance")


def test_results_come_back_under_their_key_only(tmp_path):
    path = tmp_path / "deep" / "distance.nc"
    assert load(path, "k1") is None
    kept = keep(result(), path, "k1", {"seconds": 1.5})
    assert load(path, "k1").identical(kept)
    xr.testing.assert_equal(kept, result())
    assert kept.attrs == {"seconds": 1.5, "key": "k1"}
    assert load(path, "k2") is None
    keep(result().to_dataset(), path, "k2", {})
    assert load(path, "k1") is None and load(path, "k2") is not None


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_readers_of_netcdf_ignore_the_digest(engine, tmp_path):
    if engine == "netcdf4":
        pytest.importorskip("netCDF4")
    path = tmp_path / "distance.nc"
    keep(result(), path, "k", {})
    with xr.open_dataarray(path, engine=engine) as read:
        xr.testing.assert_equal(read, result())


@pytest.mark.parametrize(
    "content", [b"", b"not netCDF", b"half", b"\x89HDF\r\n\x1a\n" + bytes(500)], ids=len
)
def test_a_corrupt_file_is_no_result(content, tmp_path, caplog):
    path = tmp_path / "distance.nc"
    keep(result(), path, "k", {})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    assert load(path, "k") is None
    assert "distance.nc" in caplog.text and "made again" in caplog.text
    keep(result(), path, "k", {})
    assert load(path, "k") is not None


CHANGES = {
    "values": lambda kept: kept + 1e-6,
    "attributes": lambda kept: kept.assign_attrs(seconds=2.5),
    "nothing": lambda kept: kept,  # but written by something else
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_no_result(change, tmp_path, caplog):
    path = tmp_path / "distance.nc"
    kept = keep(result(), path, "k", {"seconds": 1.5})
    CHANGES[change](kept).assign_attrs(key="k").to_netcdf(path)
    assert load(path, "k") is None
    assert "changed" in caplog.text


@pytest.mark.parametrize("position", [0, 1000, -200, -70, -1])
def test_no_byte_may_change(position, tmp_path):
    path = tmp_path / "distance.nc"
    keep(result(), path, "k", {})
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert load(path, "k") is None


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


def bound(value):
    return lambda result: result + value


def test_functions_count_with_the_values_that_they_are_bound_to(rng):
    values = rng.normal(size=3)
    same = [(bound(2), bound(2)), (partial(max, key=bound(1)), partial(max, key=bound(1)))]
    same += [(bound(values), bound(values.copy())), ({"b", "a"}, {"a", "b"})]
    for one, other in same:
        assert fingerprint(one) == fingerprint(other)
    other = values.copy()
    other[1] += 1e-9
    keys = [fingerprint(bound(value)) for value in (2, 3, "2", None, values, other, bound(2))]
    assert len(set(keys)) == len(keys)
    assert fingerprint(partial(max, key=bound(1))) != fingerprint(partial(max, key=bound(2)))
    assert fingerprint(lambda x: x + 1) != fingerprint(lambda x: x + 2)
    with pytest.raises(TypeError, match="Expected facts of a type that a key supports"):
        fingerprint(object())


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    yield replace_modules(tmp_path, monkeypatch)
    monkeypatch.undo()
    forget()


def test_code_is_that_of_modules_and_of_all_that_they_import(write_module):
    names = [f"vit_tf.analysis.{name}" for name in ("a", "b.deep", "c", "other", "plots.lines")]
    start = names[0]
    write_module(start, "from .b import deep\nfrom .plots.lines import draw")
    write_module(names[1], "def f():\n    from vit_tf.analysis.c import LIMIT")
    write_module(names[2], "LIMIT = 1\nimport vit_tf.analysis.a")
    write_module(names[3], "X = 1")
    write_module(names[4], "WIDTH = 1")
    without = ["vit_tf.analysis.plots"]
    before = code_of([start]), code_of([start], without)
    assert before == (code_of([start]), code_of([start], without)) and len(set(before)) == 2
    write_module(names[3], "X = 2")
    assert before == (code_of([start]), code_of([start], without))
    write_module(names[4], "WIDTH = 2")
    assert code_of([start]) != before[0] and code_of([start], without) == before[1]
    write_module(names[2], "LIMIT = 2\nimport vit_tf.analysis.a")
    assert code_of([start], without) != before[1]


def test_all_code_below_the_analyses_counts_and_no_other(write_module):
    write_module("vit_tf.models.vit", "EPSILON = 1e-6")
    write_module("vit_tf.scripts.train", "RATE = 1")
    before = base_code()
    write_module("vit_tf.scripts.train", "RATE = 2")
    assert base_code() == before
    write_module("vit_tf.models.vit", "EPSILON = 1e-3")
    assert base_code() != before
