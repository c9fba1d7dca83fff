import os
import pickle
import re
import struct
import sys
import zipfile

import numpy as np
import pytest
from archive_files import (
    npy_bytes,
    npy_header,
    raises,
    safetensors_bytes,
    torch_or_skip,
    write_zip,
)

from vit_tf.checkpoints.archives import open_archive


def test_what_is_no_checkpoint(tmp_path):
    with raises("no such file"):
        open_archive(tmp_path / "missing.npz")
    with raises("not a file"):
        open_archive(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with raises("not a file"):
        open_archive(tmp_path / "pipe")
    write_zip(tmp_path / "other.npz", {"readme.txt": "hello"})
    foreign = {
        "begins with b'<!DOCTYPE html> '": b"<!DOCTYPE html> " + bytes(100),
        "begins with": b"\x89HDF\r\n\x1a\n" + bytes(100),
        "neither": pickle.dumps({"a": 1}),
        "zip": (tmp_path / "other.npz").read_bytes(),
        "not a zip": b"PK\x03\x04" + bytes(100),
    }
    for case, content in foreign.items():
        (tmp_path / "x.npz").write_bytes(content)
        with raises(re.escape(case)):
            open_archive(tmp_path / "x.npz")


class Touch:
    """Pickles as a call that leaves a file behind."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.slow
def test_pickles_are_never_executed(tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "evil"
    evil = Touch(marker)
    np.savez(tmp_path / "evil.npz", x=np.array([evil, 1], dtype=object))
    with raises("pickled objects"):
        open_archive(tmp_path / "evil.npz")
    path.write_bytes(pickle.dumps(evil, 2))
    with raises():
        open_archive(path)
    write_zip(path, {"a/data.pkl": pickle.dumps({"state_dict": evil}, 2), "a/version": b"3\n"})
    with raises():
        open_archive(path)
    assert not marker.exists()
    pickle.loads(pickle.dumps(evil))
    assert marker.exists()


def test_pickles_of_pytorch_are_never_executed(tmp_path):
    torch, marker, path = torch_or_skip(), tmp_path / "marker", tmp_path / "evil"
    evil = Touch(marker)
    for legacy in (False, True):
        saved = {"state_dict": {"x": torch.zeros(2)}, "evil": evil}
        torch.save(saved, path, _use_new_zipfile_serialization=not legacy)
        with raises("system"):
            open_archive(path)
    assert not marker.exists()
    pickle.loads(pickle.dumps(evil))
    assert marker.exists()


# What is wrong of a header, and a word of the error.
HEADERS = {
    "objects": (npy_header("|O"), "pickled objects"),
    "text": (npy_header("<U4"), "dtype"),
    "complex numbers": (npy_header("<c8"), "dtype"),
    "records": ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3)}", "dtype"),
    "a negative axis": (npy_header(shape="(-2, 3)"), "shape"),
    "an axis of True": (npy_header(shape="(True, 6)"), "shape"),
    "a missing field": ("{'descr': '<f4', 'shape': (2, 3)}", "keys"),
    "a call": ("__import__('os').system('true')", "malformed"),
    "no literal": ("{[]: 1}", "unhashable"),
    "another order": ("{'descr': '<f4', 'fortran_order': 1, 'shape': (2, 3)}", "fortran_order"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_npy_headers_that_are_refused(case, tmp_path):
    header, word = HEADERS[case]
    write_zip(tmp_path / "a.npz", {"x.npy": npy_bytes(header, bytes(24))})
    with raises(word):
        open_archive(tmp_path / "a.npz")


def test_npz_members_that_are_refused(tmp_path):
    path, good = tmp_path / "a.npz", npy_bytes(npy_header(), bytes(24))
    write_zip(path, {"x.npy": good, "notes.txt": "hello"})
    with raises("magic"):
        open_archive(path)
    for shape, word in (("(4, 3)", "EOF"), ("(3,)", "more data")):
        write_zip(path, {"x.npy": npy_bytes(npy_header(shape=shape), bytes(24))})
        with open_archive(path) as archive, raises(word):
            archive.read("x")
    write_zip(path, {"x.npy": good})
    content = bytearray(path.read_bytes())
    content[content.index(good) + len(good) - 1] ^= 4
    path.write_bytes(content)
    with raises("CRC"), open_archive(path) as archive:
        archive.read("x")


def entry(shape=(2, 3), dtype="F32", offsets=(0, 24)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HEADERS_JSON = {
    "no JSON": b"{nonsense}",
    "half an object": b"{",
    "no UTF-8": b'{"\xff": 1}',
    "two shapes": b'{"x": {"shape": [1], "shape": [2]}}',
    "nesting": b'{"x": ' + b"[" * 100_000,
    "a number": {"x": 3},
    "a missing field": {"x": {"dtype": "F32", "shape": [2, 3]}},
    "another dtype": {"x": entry((24,), dtype="F8_E4M3")},
    "a dtype that is a list": {"x": entry(dtype=[])},
    "negative axes": {"x": entry((-2, -3))},
    "a float axis": {"x": entry((2.0, 3))},
    "too few bytes": {"x": entry(offsets=(0, 20))},
    "a float offset": {"x": entry(offsets=(0, 24.0))},
    "a hole": {"x": entry(offsets=(4, 28))},
    "an overlap": {"x": entry((2,), offsets=(0, 8)), "y": entry((5,), offsets=(4, 24))},
    "a negative offset": {"x": entry(offsets=(-24, 0))},
    "more data than declared": {"x": entry((2,), offsets=(0, 8))},
    "less data than declared": {"x": entry((12,), offsets=(0, 48))},
    "no tensors": b"{}",
}


@pytest.mark.parametrize("case", HEADERS_JSON)
def test_safetensors_headers_that_are_refused(case, tmp_path):
    data = b"" if case == "no tensors" else bytes(24)
    (tmp_path / "a").write_bytes(safetensors_bytes(HEADERS_JSON[case], data))
    with raises():
        open_archive(tmp_path / "a")


@pytest.mark.parametrize("length", [90, 2**31, 2**63])
def test_safetensors_lengths_that_are_refused(length, tmp_path):
    (tmp_path / "a").write_bytes(struct.pack("<Q", length) + b"{}" + bytes(40))
    with raises("header"):
        open_archive(tmp_path / "a")


def test_pytorch_contents_that_are_refused(tmp_path):
    torch, path = torch_or_skip(), tmp_path / "a.pth"
    x = torch.ones(2, 3)
    refused = {
        "it holds a list instead": [x],
        "a str named 'y'": {"x": x, "y": "text"},
        "a list named": {"model": {"x": x, "y": [x]}},
        "a Tensor named 3": {3: x},
        "without tensors": {"epoch": 3},
        "Complex": {"x": x.to(torch.complex64)},
        "'torch._utils._rebuild_sparse.*only tensors": {"x": x.to_sparse()},
        "'.*bytearray'.*only tensors": {"x": x, "y": bytearray(3)},
    }
    for case, saved in refused.items():
        torch.save(saved, path)
        with raises(case):
            open_archive(path)


def test_pytorch_zips_that_are_refused(tmp_path):
    torch, path = torch_or_skip(), tmp_path / "a.pth"
    torch.save({"x": torch.ones(64, 64), "y": torch.zeros(128, 128, dtype=torch.int64)}, path)
    with zipfile.ZipFile(path) as zipped:
        records = {name: zipped.read(name) for name in zipped.namelist()}
    data = next(name for name in records if name.endswith("data/0"))
    pkl = next(name for name in records if name.endswith("data.pkl"))
    order = next(name for name in records if name.endswith("byteorder"))
    write_zip(path, records)
    with open_archive(path) as archive:
        assert archive.read("x").sum() == 64 * 64
    double = records[pkl].replace(b"FloatStorage", b"DoubleStorage")
    refused = {
        "byte order": records | {order: b"big"},
        "TorchScript": records | {pkl.replace("data.pkl", "constants.pkl"): b""},
    }
    for case, members in refused.items():
        write_zip(path, members)
        with raises(case):
            open_archive(path)
    unread = {
        "numbers of type float64 need": records | {pkl: double},
        "numbers of type float32 need": records | {data: records[data][:-8]},
        "no item": {name: part for name, part in records.items() if name != data},
    }
    for case, members in unread.items():
        write_zip(path, members)
        with open_archive(path) as archive, raises(case):
            archive.read("x")
    write_zip(path, records)
    content = bytearray(path.read_bytes())
    content[content.index(records[data]) + 5] ^= 4
    path.write_bytes(content)
    with open_archive(path) as archive, raises("CRC"):
        archive.read("x")


def test_an_expanded_tensor_comes_back(tmp_path):
    torch, path = torch_or_skip(), tmp_path / "a.pth"
    torch.save({"x": torch.arange(3.0)[:, None].expand(3, 4)}, path)
    with open_archive(path) as archive:
        np.testing.assert_array_equal(archive.read("x"), np.repeat([[0], [1], [2]], 4, axis=1))


def saved_by_torch(path, legacy):
    torch = torch_or_skip()
    x = torch.arange(12.0).reshape(3, 4)
    torch.save({"x": x, "y": x.T[1:]}, path, _use_new_zipfile_serialization=not legacy)
    return x.numpy()


@pytest.mark.parametrize("legacy", [False, True])
def test_files_of_pytorch_open_without_torch(legacy, tmp_path, monkeypatch):
    x = saved_by_torch(tmp_path / "a.pth", legacy)
    monkeypatch.setitem(sys.modules, "torch", None)
    with open_archive(tmp_path / "a.pth") as archive:
        np.testing.assert_array_equal(archive.read("x"), x)
        np.testing.assert_array_equal(archive.read("y"), x.T[1:])
