"""Opening a checkpoint file as named tensors that are read one at a time.

`.npz` is read by NumPy, `.safetensors` by its package, PyTorch's files by `torch_pickles`.
"""

import functools
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import ml_dtypes  # noqa: F401, gives NumPy the name "bfloat16"
import numpy as np
from safetensors import safe_open

from vit_tf.checkpoints import torch_pickles
from vit_tf.common.names import without_password

# What torch.compile, and DINOv2's code for blocks in chunks, numbered throughout, add to names.
WRAPPED = ((r"(^|\.)_orig_mod\.", r"\1"), (r"(^|\.)blocks\.\d+\.(?=\d+\.)", r"\1blocks."))
SAFETENSORS = {
    "BOOL": "bool",
    "U8": "uint8",
    "BF16": "bfloat16",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
}


class TensorInfo(NamedTuple):
    """Shape and dtype of a stored tensor; the dtype by its NumPy name, or `"bfloat16"`."""

    shape: tuple
    dtype: str


# What a header declares of each tensor, and a function that reads it.
Entries: TypeAlias = Mapping[str, tuple[TensorInfo, Callable[[], np.ndarray]]]


def open_archive(path: str | os.PathLike) -> "CheckpointFile":
    """The `CheckpointFile` of a path, whose format its content decides, not its name.

    Only headers are read, and nothing in the file is ever executed; a ValueError for anything but
    numbers.
    """
    path = os.fspath(path)
    # Only regular files: opening a pipe would wait for its other end.
    if not os.path.isfile(path):
        problem = "not a file" if os.path.exists(path) else "no such file"
        raise ValueError(
            f"Expected a checkpoint file. Received: {without_password(path)!r}, {problem}"
        )
    with ExitStack() as stack, clear_errors(path):
        file = stack.enter_context(open(path, "rb"))
        kind, zipped = _sniff(file)
        if zipped:
            stack.enter_context(zipped)
        container = None
        if zipped and kind == "npz":
            entries = _npz_entries(zipped)
        elif kind == "safetensors":
            entries = _safetensors_entries(stack.enter_context(safe_open(path, "numpy")))
        else:
            container, tensors = torch_pickles.read_tensors(file, zipped)
            entries = {
                name: (_declared(name, tensor.shape, tensor.storage.dtype), read)
                for name, (tensor, read) in tensors.items()
            }
        entries = _unwrapped(entries)
        if not entries:
            raise ValueError(f"a {kind} file without tensors")
        return CheckpointFile(path, kind, entries, stack.pop_all(), container)


class CheckpointFile:
    """The named tensors of an open file; a context manager that closes it."""

    def __init__(
        self,
        path: str,
        format: str,
        entries: Entries,
        stack: ExitStack,
        container: str | None = None,
    ):
        self.path, self.format, self.container = path, format, container
        # From name to `TensorInfo`, in the order of the file.
        self.tensors = {name: info for name, (info, _) in entries.items()}
        self._loads = {name: load for name, (_, load) in entries.items()}
        self._stack = stack

    def read(self, name: str) -> np.ndarray:
        """Reads one tensor as an array; float16 and bfloat16 are converted to float32."""
        with clear_errors(self.path, f" with the tensor {name!r}"):
            array = self._loads[name]()
            if self.tensors[name].dtype in ("bfloat16", "float16"):
                return array.astype(np.float32, copy=False)
            return array.astype(array.dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        """Closes the file; arrays that were read stay as they are."""
        self._loads = {}
        self._stack.close()

    def __enter__(self) -> "CheckpointFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def clear_errors(path: str, part: str = "") -> Iterator[None]:
    """Turns whatever a corrupt file provokes into one `ValueError` that names it."""
    try:
        yield
    except (
        Exception
    ) as error:  # NumPy, zipfile and the unpickler raise whatever the file makes them
        reason = " ".join(str(error).split())[:300] or "corrupt data"
        kind = "" if type(error) is ValueError else f" ({type(error).__name__})"
        raise ValueError(
            f"Cannot read the checkpoint {path!r}{part}. Problem: {reason}{kind}"
        ) from error


def _unwrapped(entries: Entries) -> Entries:
    """The entries by their names without what `WRAPPED` lists."""
    names = {}
    for name in entries:
        plain = name
        for pattern, replacement in WRAPPED:
            plain = re.sub(pattern, replacement, plain)
        if plain in names:
            raise ValueError(f"two tensors for {plain!r} of the model")
        names[plain] = entries[name]
    return names


def _sniff(file: BinaryIO) -> tuple[str, zipfile.ZipFile | None]:
    """The format of an open file and, where it is a zip, its `ZipFile`, by what it holds."""
    start = file.read(64)
    if start[:2] == b"PK":
        zipped = zipfile.ZipFile(file)
        names = zipped.namelist()
        if any(name.rpartition("/")[2] == "data.pkl" for name in names):
            return "pytorch", zipped
        if any(name.endswith(".npy") for name in names):
            return "npz", zipped
        raise ValueError("a zip file with neither .npy members nor a data.pkl")
    if start[:1] == b"\x80" and torch_pickles.LEGACY in start:
        return "pytorch", None
    if start[8:9] == b"{":
        return "safetensors", None
    raise ValueError(
        f"it is neither .npz, .safetensors nor a PyTorch file, and begins with {start[:16]!r}"
    )


def _declared(name: str, shape: Sequence[int], dtype: np.dtype | str) -> TensorInfo:
    """The `TensorInfo` of what a header declares; a ValueError for anything but numbers."""
    dtype = np.dtype(dtype)
    if (dtype.kind not in "fiub" and dtype.name != "bfloat16") or dtype.itemsize > 8:
        problem = "pickled objects" if dtype.kind == "O" else f"the dtype {str(dtype)!r}"
        raise ValueError(f"{problem} instead of numbers in {name!r}")
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"the impossible shape {shape} of {name!r}")
    return TensorInfo(tuple(shape), dtype.name)


def _safetensors_entries(file: Any) -> Entries:
    """dict from name to (`TensorInfo`, function that loads it) of an open `safe_open`."""
    entries = {}
    for name in file.offset_keys():
        stored = file.get_slice(name)
        dtype = str(stored.get_dtype())
        info = _declared(name, stored.get_shape(), SAFETENSORS.get(dtype, dtype))
        entries[name] = info, functools.partial(file.get_tensor, name)
    return entries


def _npz_entries(zipped: zipfile.ZipFile) -> Entries:
    """The same of an open `zipfile.ZipFile` of `.npy` members."""
    entries, npy = {}, np.lib.format
    for member in zipped.namelist():
        with zipped.open(member) as stream:
            is_first = npy.read_magic(stream) == (1, 0)
            read = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
            shape, _, dtype = read(stream)
        # NumPy writes the bfloat16 of JAX, for which it has no name, as V2.
        half = dtype.str in ("|V2", "<V2")
        name = member.removesuffix(".npy")
        info = _declared(name, shape, "bfloat16" if half else dtype)
        entries[name] = info, functools.partial(_read_npy, zipped, member, half)
    return entries


def _read_npy(zipped: zipfile.ZipFile, member: str, half: bool) -> np.ndarray:
    with zipped.open(member) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        if stream.read(1):
            raise ValueError("more data than the header declares")
    return array.view("bfloat16") if half else array
