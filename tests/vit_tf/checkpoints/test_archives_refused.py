import os
import pickle
import re
import struct
import sys
import zipfile
import zlib

import numpy as np
import pytest
from archive_files import (
    memory_below,
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
        "empty file": b"",
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


def test_an_unknown_tensor_lists_near_matches(tmp_path):
    np.savez(tmp_path / "a.npz", head=np.zeros(3))
    with open_archive(tmp_path / "a.npz") as archive, pytest.raises(ValueError, match="head"):
        archive.read("haed")


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
    "too many numbers": (npy_header(shape="(4, 3)"), "needs 48"),
    "too few numbers": (npy_header(shape="(3,)"), "needs 12"),
    "a negative axis": (npy_header(shape="(-2, 3)"), "shape"),
    "an axis of True": (npy_header(shape="(True, 6)"), "shape"),
    "a large array": (npy_header(shape="(9999999999, 9999999999)"), "any memory"),
    "a large empty array": (npy_header(shape=f"(0, {2**62}, {2**62})"), "any memory"),
    "many axes": (npy_header(shape=str((1,) * 40)), "shape"),
    "a missing field": ("{'descr': '<f4', 'shape': (2, 3)}", "keys"),
    "a call": ("__import__('os').system('true')", "malformed"),
    "no literal": ("{[]: 1}", "unhashable"),
    "a long header": (npy_header() + " " * 2000, "too long"),
    "another order": ("{'descr': '<f4', 'fortran_order': 1, 'shape': (2, 3)}", "fortran_order"),
    "nesting": ("-" * 900 + "1", "malformed"),
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
    with raises("'notes.txt' that is not an .npy"):
        open_archive(path)
    write_zip(path, {"x.npy": good}, zipfile.ZIP_LZMA)
    with raises("neither stored nor deflated"):
        open_archive(path)
    with zipfile.ZipFile(path, "w") as zipped, pytest.warns(UserWarning, match="Duplicate"):
        zipped.writestr("x.npy", good)
        zipped.writestr("x.npy", good)
    with raises("two tensors named 'x'"):
        open_archive(path)


def patched_sizes(data, declared, compressed=None, checksum=None):
    """A one-member zip whose headers declare other sizes, and maybe another checksum."""
    data = bytearray(data)
    central = data.rindex(b"PK\1\2")
    for at in (18, central + 20):
        if compressed is not None:
            data[at : at + 4] = struct.pack("<I", compressed)
        data[at + 4 : at + 8] = struct.pack("<I", declared)
        if checksum is not None:
            data[at - 4 : at] = struct.pack("<I", checksum)
    return bytes(data)


@pytest.mark.slow
def test_zip_bombs_are_refused_before_they_go_off(tmp_path):
    path, size = tmp_path / "a.npz", 2**27
    header = npy_bytes(npy_header(shape=f"({size // 4},)"))
    bomb, small = header + bytes(size), npy_bytes(npy_header(), bytes(24))
    write_zip(path, {"x.npy": bomb}, zipfile.ZIP_DEFLATED)
    inside_out = patched_sizes(path.read_bytes(), len(header) + 24)
    write_zip(path, {"x.npy": header + bytes(1000)}, zipfile.ZIP_DEFLATED)
    declared = patched_sizes(path.read_bytes(), len(bomb))
    write_zip(path, {"x.npy": header + bytes(1000)})
    stored = patched_sizes(path.read_bytes(), len(bomb), len(bomb))
    write_zip(path, {"x.npy": small + bytes(size)}, zipfile.ZIP_DEFLATED)
    hidden = patched_sizes(path.read_bytes(), len(small), checksum=zlib.crc32(small))
    bombs = {
        "CRC": inside_out,
        "bytes that claims to inflate to 134": declared,
        "beyond the end": stored,
        "CRC-32 for file 'x.npy'": hidden,
    }
    for case, content in bombs.items():
        path.write_bytes(content)
        with memory_below(2**22), raises(case), open_archive(path) as archive:
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
    "a large array": {"x": entry((2**40, 2**40))},
    "a large empty array": {"x": entry((0, 2**62), offsets=(0, 0)), "y": entry()},
    "many axes": {"x": entry((1,) * 60 + (6,))},
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
        "a pickled list": [x],
        "a str named 'y'": {"x": x, "y": "text"},
        "a list named": {"model": {"x": x, "y": [x]}},
        "a Tensor named 3": {3: x},
        "without tensors": {"epoch": 3},
        "larger than its storage": {"x": x[:1, :1].expand(1000, 1000)},
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
        "more or less data": records | {pkl: double},
        "its record holds": records | {data: records[data][:-8]},
        "declares more or less": {name: part for name, part in records.items() if name != data},
        "byte order": records | {order: b"big"},
        "TorchScript": records | {pkl.replace("data.pkl", "constants.pkl"): b""},
    }
    for case, members in refused.items():
        write_zip(path, members)
        with raises(case):
            open_archive(path)
    write_zip(path, records, zipfile.ZIP_DEFLATED)
    with raises("a compressed record"):
        open_archive(path)
    write_zip(path, records)
    content = bytearray(path.read_bytes())
    content[content.index(records[data]) + 5] ^= 4
    path.write_bytes(content)
    with raises("checksum"):
        open_archive(path)


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


def test_a_pickle_with_a_large_table_is_refused(tmp_path):
    """The unpickler of Python would allocate 16 GB for an index of 2**31 - 1."""
    pickled = b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b"."
    write_zip(tmp_path / "a.pth", {"a/data.pkl": pickled, "a/version": b"3\n"})
    with memory_below(2**20), raises("table"):
        open_archive(tmp_path / "a.pth")
