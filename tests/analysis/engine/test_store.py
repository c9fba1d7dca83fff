import inspect
import linecache
import math
from functools import cache, partial, update_wrapper

import numpy as np
import pytest
import xarray as xr
from paths import ROOT

from vit_tf.analysis.engine import store
from vit_tf.analysis.engine.store import base_code, code_of, fingerprint, load_result, store_result
from vit_tf.analysis.papers.raghu.section4_structure import cka_of
from vit_tf.analysis.similarity.cka import cka
from vit_tf.data.files import write_whole


def result():
    return xr.DataArray(
        np.arange(6.0).reshape(2, 3), dims=("layer", "head"), coords={"layer": ["a/b", "c"]}
    ).rename("distance")


def test_results_come_back_under_their_key_only(tmp_path):
    path = tmp_path / "deep" / "distance.nc"
    assert load_result(path, "k1") is None
    kept = store_result(result(), path, "k1", {"seconds": 1.5})
    assert load_result(path, "k1").identical(kept)
    assert kept.equals(result())
    assert kept.attrs == {"seconds": 1.5, "key": "k1"}
    assert load_result(path, "k2") is None
    store_result(result().to_dataset(), path, "k2", {})
    assert load_result(path, "k1") is None and load_result(path, "k2") is not None


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_readers_of_netcdf_ignore_the_digest(engine, tmp_path):
    if engine == "netcdf4":
        pytest.importorskip("netCDF4")
    path = tmp_path / "distance.nc"
    store_result(result(), path, "k", {})
    with xr.open_dataarray(path, engine=engine) as read:
        xr.testing.assert_equal(read, result())


@pytest.mark.parametrize(
    "content", [b"", b"not netCDF", b"half", b"\x89HDF\r\n\x1a\n" + bytes(500)], ids=len
)
def test_a_corrupt_file_is_no_result(content, tmp_path, caplog):
    path = tmp_path / "distance.nc"
    store_result(result(), path, "k", {})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    assert load_result(path, "k") is None
    assert "distance.nc" in caplog.text and "computed again" in caplog.text
    store_result(result(), path, "k", {})
    assert load_result(path, "k") is not None


CHANGES = {
    "values": lambda kept: kept + 1e-6,
    "attributes": lambda kept: kept.assign_attrs(seconds=2.5),
    "nothing": lambda kept: kept,  # but written by something else
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_no_result(change, tmp_path, caplog):
    path = tmp_path / "distance.nc"
    kept = store_result(result(), path, "k", {"seconds": 1.5})
    CHANGES[change](kept).assign_attrs(key="k").to_netcdf(path)
    assert load_result(path, "k") is None
    assert "changed" in caplog.text


@pytest.mark.parametrize("position", [0, 1000, -200, -70, -1])
def test_no_byte_may_change(position, tmp_path):
    path = tmp_path / "distance.nc"
    store_result(result(), path, "k", {})
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert load_result(path, "k") is None


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "distance.nc"
    store_result(result(), path, "k1", {})

    def fail(partial):
        partial.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, fail)
    assert load_result(path, "k1") is not None
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
    one = fingerprint(lambda x: x + 1)
    assert one != fingerprint(lambda x: x + 2)
    with pytest.raises(TypeError, match="Expected JSON values, arrays, dataclasses"):
        fingerprint(object())


def test_lambdas_on_one_line_count_separately():
    add, subtract = [lambda x: x + 1, lambda x: x - 1]
    assert fingerprint(add) != fingerprint(subtract)


def test_builtin_methods_count_with_their_object():
    assert fingerprint({"a": 1}.get) == fingerprint({"a": 1}.get)
    assert fingerprint({"a": 1}.get) != fingerprint({"a": 2}.get)
    assert len({fingerprint(max), fingerprint(min), fingerprint(math.sqrt)}) == 3


def test_wrapped_functions_count_with_the_values_that_they_are_bound_to():
    one, two = (update_wrapper(partial(bound, value), bound) for value in (1, 2))
    assert fingerprint(one) != fingerprint(two)
    assert fingerprint(cache(bound)) == fingerprint(bound)


def parities(base):
    """Two functions that call each other, and one whose variable is not assigned."""

    def even(n):
        return n == base or odd(n - 1)

    def odd(n):
        return n != base and even(n - 1)

    def unassigned():
        return later

    if base < 0:
        later = base
    return even, odd, unassigned


def test_recursive_functions_count_with_the_values_that_they_are_bound_to():
    keys = [fingerprint(function) for function in parities(0)]
    assert keys == [fingerprint(function) for function in parities(0)]
    assert len({*keys, *map(fingerprint, parities(-1))}) == 6


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    store.digest_modules.cache_clear()


def test_code_is_the_version_and_every_module_but_those_that_are_left_out(tmp_path, monkeypatch):
    models, plots = tmp_path / "models", tmp_path / "plots"
    for path, text in ((models / "vit.py", "EPSILON = 1e-6"), (plots / "lines.py", "WIDTH = 1")):
        write(path, text)

    def digests():
        return store.digest_modules(tmp_path, without=(plots,)), store.digest_modules(plots)

    code, drawing = digests()
    write(models / "notes.txt", "no module")
    assert digests() == (code, drawing)
    write(plots / "lines.py", "WIDTH = 2")
    assert digests()[0] == code and digests()[1] != drawing
    write(models / "deep" / "bit.py", "")
    assert digests()[0] != code
    (models / "deep" / "bit.py").unlink()
    write(models / "vit.py", "EPSILON = 1e-6")
    assert digests()[0] == code
    write(models / "vit.py", "EPSILON = 1e-3")
    assert digests()[0] != code
    write(models / "vit.py", "EPSILON = 1e-6")
    monkeypatch.setattr("vit_tf.__version__", "0.1.1")
    assert digests()[0] != code


def test_all_code_of_the_package_counts_for_measurements_but_that_which_draws(monkeypatch):
    digested = []
    monkeypatch.setattr(store, "digest_files", lambda paths: digested.extend(paths) or "")
    store.digest_modules.cache_clear()
    base_code()
    store.digest_modules.cache_clear()
    modules = {path.relative_to(ROOT).as_posix() for path in digested}
    assert {"vit_tf/models/vit.py", "analysis/heads/rollout.py"} <= modules
    assert not {name for name in modules if name.startswith(("scripts/", "analysis/papers/"))}
    assert not {name for name in modules if name.startswith(("analysis/plots", "analysis/report"))}


def load_function(path):
    """The function `measure` of a file, as its module has it."""
    linecache.checkcache(str(path))
    namespace = {"__name__": path.stem}
    exec(compile(path.read_text(), path, "exec"), namespace)
    return namespace["measure"]


def test_a_function_of_a_user_counts_with_the_file_that_defines_it(tmp_path):
    path = tmp_path / "own.py"
    text = "def measure(x):\n    return LIMIT\n\nLIMIT = 1\n"
    path.write_text(text)
    before = fingerprint(load_function(path))
    assert fingerprint(load_function(path)) == before
    path.write_text(text.replace("LIMIT = 1", "LIMIT = 25"))
    assert fingerprint(load_function(path)) != before
    without_file = eval("lambda x: x")
    assert fingerprint(without_file) != fingerprint(without_file)


def test_a_function_of_a_paper_counts_with_all_papers(monkeypatch):
    digested = []
    monkeypatch.setattr(store, "digest_modules", lambda *folders: digested.extend(folders) or "")
    code_of(cka_of)
    assert digested == [ROOT / "analysis" / "papers"]
    assert code_of(inspect.unwrap(cka)) == ""


def test_a_function_of_the_package_may_be_reached_by_a_link(tmp_path):
    (tmp_path / "link").symlink_to(ROOT / "analysis", target_is_directory=True)
    path = tmp_path / "link" / "similarity" / "cka.py"
    namespace = {}
    exec(compile("def measure(): pass", path, "exec"), namespace)
    assert code_of(namespace["measure"]) == ""
