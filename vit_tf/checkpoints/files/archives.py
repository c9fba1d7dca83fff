"""Opening a checkpoint file as named tensors that are read one at a time."""

import os
import re
import struct
import zipfile
import zlib
from contextlib import ExitStack, contextmanager

import numpy as np

from vit_tf.checkpoints.files import npz, pytorch, safetensors
from vit_tf.names import unknown_name
from vit_tf.remote import without_password

# What a file that is corrupt, or made to do damage, can provoke below. One list for all of them,
# as every format may meet most of them, when the file is opened and again when a tensor is read.
DAMAGE = (
    ValueError,  # our own checks; JSON, UTF-8 and NumPy's
    OSError,  # opening, reading and seeking; a file that others truncate meanwhile
    EOFError,  # a zip member whose compressed data end early
    OverflowError,  # a zip64 offset beyond what a file can have
    MemoryError,  # a tensor that fits the file but not this machine
    RuntimeError,  # zip: encrypted, or (NotImplementedError) an unknown compression; RecursionError
    struct.error,  # a zip header that ends early
    zipfile.BadZipFile,  # the structure of a zip, and the checksum of a member
    zlib.error,  # compressed data that are not
)
# Of a compiled model (torch.compile), and of blocks in chunks, numbered throughout (DINOv2's code).
WRAPPED = ((r"(^|\.)_orig_mod\.", r"\1"), (r"(^|\.)blocks\.\d+\.(?=\d+\.)", r"\1blocks."))
# The number that opens torch files from before 1.6, as every pickle protocol since 2 writes it.
LEGACY_TORCH = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"


def open_archive(path):
    """The `Archive` in a checkpoint file, whose format its content decides, not its name.

    Known are NumPy's `.npz`, `.safetensors`, and PyTorch's files, new (a zip) and legacy. Only
    headers are read, nothing in the file is ever executed, and what the headers declare is
    checked against the file before memory is given to it.

    Raises:
        ValueError: if the file is missing, corrupt, of another format, holds anything but
            numbers, or needs torch and torch is not installed.
    """
    path = os.fspath(path)
    # Only regular files: opening a pipe would wait for its other end.
    if not os.path.isfile(path):
        what = "not a file" if os.path.exists(path) else "no such file"
        raise ValueError(
            f"Expected path to be a checkpoint file. Received: {without_password(path)!r}, {what}"
        )
    with ExitStack() as stack:
        with _clear_errors(path):
            file = stack.enter_context(open(path, "rb"))
            kind, zipped = _sniff(file)
            if zipped:
                stack.enter_context(zipped)
        if kind == "pytorch":
            pytorch.require_torch(path)
        container = None
        with _clear_errors(path):
            if kind == "npz":
                entries = npz.entries(zipped)
            elif kind == "safetensors":
                entries = safetensors.entries(file)
            else:
                entries, container = pytorch.entries(path, file, zipped)
            entries = _unwrapped(entries)
            if not entries:
                raise ValueError(f"a {kind} file without tensors")
        return Archive(path, kind, entries, stack.pop_all(), container)


class Archive:
    """The named tensors of an open checkpoint file; a context manager that closes it.

    Attributes:
        path: the file.
        format: `"npz"`, `"safetensors"` or `"pytorch"`.
        tensors: dict from name to `TensorInfo`, in the order of the file.
        container: the key under which a PyTorch file holds its tensors, or None.
    """

    def __init__(self, path, format, entries, stack, container=None):
        self.path, self.format, self.container = path, format, container
        self.tensors = {name: info for name, (info, _) in entries.items()}
        self._loads = {name: load for name, (_, load) in entries.items()}
        self._stack = stack

    def read(self, name):
        """One tensor as an ndarray of its shape; no other is in memory.

        Half-precision floats (float16, bfloat16) come widened to float32, exactly; every other
        dtype comes as it is stored, in the byte order of this machine.

        Raises:
            ValueError: for an unknown name, and where the data are corrupt.
        """
        if name not in self.tensors:
            raise unknown_name("tensor", name, self.tensors)
        with _clear_errors(self.path, f" with the tensor {name!r}"):
            return _widen(self._loads[name](), self.tensors[name].dtype)

    def add(self, other, names):
        """Adds tensors of another open archive, which is closed with this one.

        Args:
            other: the `Archive`.
            names: dict from the name of a tensor there to its name here.
        """
        self.tensors |= {new: other.tensors[old] for old, new in names.items()}
        self._loads |= {new: other._loads[old] for old, new in names.items()}
        self._stack.callback(other.close)

    def close(self):
        """Closes the file; arrays that were read stay as they are."""
        self._loads = {}
        self._stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@contextmanager
def _clear_errors(path, part=""):
    """Turns whatever a corrupt file provokes into one `ValueError` that names it."""
    try:
        yield
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:300] or "corrupt data"
        kind = "" if type(error) is ValueError else f" ({type(error).__name__})"
        raise ValueError(
            f"Expected {path!r} to be a whole checkpoint{part}. Received: {reason}{kind}"
        ) from error


def _unwrapped(entries):
    """The entries by their names without what `WRAPPED` lists."""
    names = {}
    for name in entries:
        plain = name
        for pattern, replacement in WRAPPED:
            plain = re.sub(pattern, replacement, plain)
        if plain in names:
            raise ValueError(f"two tensors that are both {ascii(plain)[:100]} of the model")
        names[plain] = entries[name]
    return names


def _sniff(file):
    """The format of an open file and, where it is a zip, its `ZipFile`, by what it holds."""
    start = file.read(64)
    if not start:
        raise ValueError("an empty file")
    if start[:2] == b"PK":
        zipped = zipfile.ZipFile(file)
        names = zipped.namelist()
        if any(name.rpartition("/")[2] == "data.pkl" for name in names):
            return "pytorch", zipped
        if any(name.endswith(".npy") for name in names):
            return "npz", zipped
        raise ValueError("a zip file with neither .npy members nor a data.pkl")
    if start[:1] == b"\x80" and LEGACY_TORCH in start:
        return "pytorch", None
    if start[8:9] == b"{":
        return "safetensors", None
    raise ValueError(
        f"neither .npz, .safetensors nor a PyTorch file, but one that begins with {start[:16]!r}"
    )


def _widen(array, dtype):
    if dtype == "bfloat16":
        # The upper half of a float32; the lower half is zero.
        wide = array.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if dtype == "float16":
        return array.astype(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
