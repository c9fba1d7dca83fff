import os
import pickle
import re
import struct
import sys
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from archive_files import npy_bytes, npy_header, raises, safetensors_bytes, torch_or_skip, write_zip

from vit_tf.checkpoints.archives import open_archive
from vit_tf.checkpoints.torch_pickles import LEGACY


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
    for what, content in foreign.items():
        (tmp_path / "x.npz").write_bytes(content)
        with raises(re.escape(what)):
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


@pytest.fixture(params=["with torch if it is there", "without torch"])
def maybe_torch(request, monkeypatch):
    """Hides torch in one of two runs of a test, as where it is not installed."""
    if request.param == "without torch":
        monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.slow
def test_pickles_are_never_executed(tmp_path, maybe_torch):
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


HEADERS = {
    "pickled objects": npy_header("|O"),
    "the dtype": npy_header("<U4"),
    "dtype '<c8'": npy_header("<c8"),
    "dtype '>V2'": npy_header(">V2"),
    "dtype": "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3)}",
    "whose header declares 48": npy_header(shape="(4, 3)"),
    "whose header declares 12": npy_header(shape="(3,)"),
    "the shape .-2, 3.": npy_header(shape="(-2, 3)"),
    "the shape .True": npy_header(shape="(True, 6)"),
    "larger than any memory": npy_header(shape="(9999999999, 9999999999)"),
    "any memory": npy_header(shape=f"(0, {2**62}, {2**62})"),
    "the shape": npy_header(shape=str((1,) * 40)),
    "the header": "{'descr': '<f4', 'shape': (2, 3)}",
    "header .__import": "__import__('os').system('true')",
    "header": "{[]: 1}",
    "too long": npy_header() + " " * 2000,
    "'fortran_order'": "{'descr': '<f4', 'fortran_order': 1, 'shape': (2, 3)}",
    "the header '-----": "-" * 900 + "1",
}


@pytest.mark.parametrize("what", HEADERS)
def test_npy_headers_that_are_refused(what, tmp_path):
    write_zip(tmp_path / "a.npz", {"x.npy": npy_bytes(HEADERS[what], bytes(24))})
    with raises(f"({what})"):
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
        "bytes that declares 134": declared,
        "beyond the end": stored,
        "CRC-32 for file 'x.npy'": hidden,
    }
    for what, content in bombs.items():
        path.write_bytes(content)
        tracemalloc.start()
        with raises(what), open_archive(path) as archive:
            archive.read("x")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**22


def entry(shape=(2, 3), dtype="F32", offsets=(0, 24)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HEADERS_JSON = {
    "JSON": b"{nonsense}",
    "that are not a JSON|Expecting": b"{",
    "UnicodeDecodeError": b'{"\xff": 1}',
    "two entries named 'x'": b'{"x": 1, "x": 2}',
    "two entries named 'shape'": b'{"x": {"shape": [1], "shape": [2]}}',
    "RecursionError": b'{"x": ' + b"[" * 100_000,
    "the header entry 3": {"x": 3},
    "header entry": {"x": {"dtype": "F32", "shape": [2, 3]}},
    "the dtype 'F8_E4M3'": {"x": entry(dtype="F8_E4M3")},
    "the dtype \\[\\]": {"x": entry(dtype=[])},
    "the shape": {"x": entry((-2, -3))},
    "shape \\[2.0, 3\\]": {"x": entry((2.0, 3))},
    "any memory": {"x": entry((2**40, 2**40))},
    "declares 24 bytes": {"x": entry(offsets=(0, 20))},
    "offsets \\[0, 24.0\\]": {"x": entry(offsets=(0, 24.0))},
    "leave a hole": {"x": entry(offsets=(4, 28))},
    "overlap": {"x": entry((2,), offsets=(0, 8)), "y": entry((5,), offsets=(4, 24))},
    "overlap at 0": {"x": entry(offsets=(-24, 0))},
    "24 bytes of data where 8": {"x": entry((2,), offsets=(0, 8))},
    "where 48 are declared": {"x": entry((12,), offsets=(0, 48))},
}


@pytest.mark.parametrize("what", HEADERS_JSON)
def test_safetensors_headers_that_are_refused(what, tmp_path):
    (tmp_path / "a").write_bytes(safetensors_bytes(HEADERS_JSON[what], bytes(24)))
    with raises(f"({what})"):
        open_archive(tmp_path / "a")


def test_safetensors_lengths_that_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(safetensors_bytes(b"{}", b""))
    with raises("without tensors"):
        open_archive(tmp_path / "a")
    for length in (90, 2**31, 2**63):
        (tmp_path / "a").write_bytes(struct.pack("<Q", length) + b"{}" + bytes(40))
        with raises(f"a header of {length} bytes in a file of 50"):
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
        "larger than the data": {"x": x[:1, :1].expand(1000, 1000)},
        "complex64": {"x": x.to(torch.complex64)},
        "calls for 'torch._utils _rebuild_sparse": {"x": x.to_sparse()},
        "calls for '__builtin__ bytearray'": {"x": x, "y": bytearray(3)},
    }
    for what, saved in refused.items():
        torch.save(saved, path)
        with raises(what):
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
        "than their records": records | {data: records[data][:-8]},
        "torch.load": {name: part for name, part in records.items() if name != data},
        "byte order": records | {order: b"big"},
        "TorchScript": records | {pkl.replace("data.pkl", "constants.pkl"): b""},
    }
    for what, members in refused.items():
        write_zip(path, members)
        with raises(what):
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


@pytest.mark.parametrize("legacy", [False, True])
def test_without_torch_the_error_says_what_to_install(legacy, tmp_path, monkeypatch):
    if legacy:
        (tmp_path / "a.pth").write_bytes(b"\x80\x02" + LEGACY + bytes(100))
    else:
        write_zip(tmp_path / "a.pth", {"a/data.pkl": b"", "a/version": b"3\n"})
    monkeypatch.setitem(sys.modules, "torch", None)
    expected = (
        r"Expected torch to be installed \(`pip install torch`\).*Received: .*a\.pth', without"
    )
    with pytest.raises(ValueError, match=expected):
        open_archive(tmp_path / "a.pth")
