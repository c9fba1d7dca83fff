"""Checkpoint files for tests, written by hand where a library would not write them."""

import json
import re
import struct
import tracemalloc
import zipfile
from contextlib import contextmanager
from importlib import import_module

import pytest


@contextmanager
def raises(what=""):
    """One ValueError in the words of the project."""
    with pytest.raises(ValueError, match=f"(?s){what}"):
        yield


@contextmanager
def memory_below(most):
    """Asserts that Python allocates fewer bytes at a time."""
    tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < most


@contextmanager
def refuses(what):
    """One ValueError in the words of the project that has `what` anywhere."""
    with pytest.raises(ValueError) as caught:
        yield
    assert re.search(what, str(caught.value), re.DOTALL), caught.value


def write_safetensors(path, tensors, names=None):
    """Writes the format by hand; `names` are the safetensors dtypes that NumPy does not have."""
    kinds = {"float": "F", "int": "I", "uint": "U", "bool": "BOOL"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        kind = kinds[array.dtype.name.rstrip("0123456789")]
        dtype = kind if kind == "BOOL" else f"{kind}{8 * array.itemsize}"
        end = len(data) + array.nbytes
        offsets = [len(data), end]
        dtype = (names or {}).get(name, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    path.write_bytes(safetensors_bytes(header, data))


def safetensors_bytes(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def npy_bytes(header, data=b"", version=(1, 0)):
    text = header.encode("latin1") + b"\n"
    width = "<H" if version == (1, 0) else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(width, len(text)) + text + data


def npy_header(descr="<f4", shape="(2, 3)", fortran=False):
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


def write_zip(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)


def torch_or_skip():
    return pytest.importorskip("torch", reason="torch is not installed")


def helper_or_skip(name, *packages):
    """The module of tests/helpers of a name, which needs torch and other packages."""
    for package in ("torch", *packages):
        pytest.importorskip(package, reason=f"{package} is not installed")
    return import_module(name)
