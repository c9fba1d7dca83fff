"""Opening a checkpoint file as named tensors that are read one at a time.

`.npz` is read by NumPy, `.safetensors` by its package, PyTorch's files by `torch_pickles`.
"""

import ast
import copy
import functools
import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, BinaryIO, NamedTuple, TypeAlias, cast

import ml_dtypes  # noqa: F401, gives NumPy the name "bfloat16"
import numpy as np
from safetensors import SafetensorError, safe_open

from vit_tf.checkpoints import torch_pickles
from vit_tf.common.names import unknown_name, without_password

# What a file that is corrupt, or made to do damage, can provoke below. One list for all of them,
# as every format may meet most of them, when the file is opened and again when a tensor is read.
CORRUPT = (
    ValueError,  # our own checks; UTF-8 and NumPy's
    SafetensorError,  # the header of a .safetensors
    OSError,  # opening, reading and seeking; a file that others truncate meanwhile
    EOFError,  # a zip member whose compressed data end early
    OverflowError,  # a zip64 offset beyond what a file can have
    MemoryError,  # a tensor that fits the file but not this machine
    RuntimeError,  # zip: encrypted, or (NotImplementedError) an unknown compression; RecursionError
    SyntaxError,  # NumPy's headers, which are Python literals
    TypeError,  # the same
    struct.error,  # a zip header that ends early
    zipfile.BadZipFile,  # the structure of a zip, and the checksum of a member
    zlib.error,  # compressed data that are not
)
# The most bytes that an array may span, which NumPy can index, and the most axes.
MOST_BYTES = 2**48
MOST_AXES = 32
# NumPy writes about 120 bytes for any array of numbers. Short enough to be parsed at no risk.
LONGEST_HEADER = 1024
MOST_TEXT = 2**26  # bytes of the description of a Keras model
# A deflated bit pair stands for at most 258 bytes.
DEFLATE_RATIO = 1032
# What torch.compile, and DINOv2's code for blocks in chunks, numbered throughout, add to names.
WRAPPED = ((r"(^|\.)_orig_mod\.", r"\1"), (r"(^|\.)blocks\.\d+\.(?=\d+\.)", r"\1blocks."))
SAFETENSORS = {"BOOL": "bool", "BF16": "bfloat16"}
SAFETENSORS |= {f"F{bits}": f"float{bits}" for bits in (16, 32, 64)}
SAFETENSORS |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)} | {"U8": "uint8"}


class TensorInfo(NamedTuple):
    """Shape and dtype of a stored tensor; the dtype by its NumPy name, or `"bfloat16"`."""

    shape: tuple
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor as it is stored."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


# What a header declares of each tensor, and a function that reads it.
Entries: TypeAlias = Mapping[str, tuple[TensorInfo, Callable[[], np.ndarray]]]


def open_archive(path: str | os.PathLike) -> "CheckpointFile":
    """The `CheckpointFile` of a path, whose format its content decides, not its name.

    Only headers are read, nothing in the file is ever executed, and what the headers declare is
    checked against the file before memory is allocated; a ValueError for anything but numbers.
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
                name: (_declared(name, t.shape, t.dtype), t.read) for name, t in tensors.items()
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
        if name not in self.tensors:
            raise unknown_name("tensor", name, self.tensors)
        with clear_errors(self.path, f" with the tensor {name!r}"):
            array = self._loads[name]()
            if self.tensors[name].dtype in ("bfloat16", "float16"):
                return array.astype(np.float32)
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
    except CORRUPT as error:
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
            raise ValueError(f"two tensors for {ascii(plain)[:100]} of the model")
        names[plain] = entries[name]
    return names


def _sniff(file: BinaryIO) -> tuple[str, zipfile.ZipFile | None]:
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
    if start[:1] == b"\x80" and torch_pickles.LEGACY in start:
        return "pytorch", None
    if start[8:9] == b"{":
        return "safetensors", None
    raise ValueError(
        f"it is neither .npz, .safetensors nor a PyTorch file, and begins with {start[:16]!r}"
    )


def _declared(name: str, shape: Sequence[int], dtype: np.dtype | str) -> TensorInfo:
    """The `TensorInfo` of what a header declares; a ValueError where no array can be so."""
    dtype = np.dtype(dtype)
    if (dtype.kind not in "fiub" and dtype.name != "bfloat16") or dtype.itemsize > 8:
        problem = "pickled objects" if dtype.kind == "O" else f"the dtype {str(dtype)!r}"
        raise ValueError(f"{problem} instead of numbers in {short(name)}")
    if len(shape) > MOST_AXES or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"the impossible shape {short(shape)} of {short(name)}")
    # Empty axes are counted as one, so that they do not hide absurd ones.
    if math.prod(max(n, 1) for n in shape) * dtype.itemsize > MOST_BYTES:
        raise ValueError(f"the shape {short(shape)} of {short(name)}, larger than any memory")
    return TensorInfo(tuple(shape), dtype.name)


def _safetensors_entries(file: Any) -> Entries:
    """dict from name to (`TensorInfo`, function that loads it) of an open `safe_open`."""
    entries = {}
    for name in file.offset_keys():
        stored = file.get_slice(name)
        if stored.get_dtype() not in SAFETENSORS:
            raise ValueError(
                f"the unsupported dtype {short(stored.get_dtype())} of {short(name)}; "
                f"supported are {', '.join(SAFETENSORS)}"
            )
        info = _declared(name, stored.get_shape(), SAFETENSORS[stored.get_dtype()])
        entries[name] = info, functools.partial(file.get_tensor, name)
    return entries


def _npz_entries(zipped: zipfile.ZipFile) -> Entries:
    """The same of an open `zipfile.ZipFile` of `.npy` members."""
    # `fp` is None only once the archive is closed.
    size = os.fstat(cast(IO[bytes], zipped.fp).fileno()).st_size
    entries = {}
    for member in zipped.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise ValueError(f"a member {short(name)} that is not an .npy")
        if name in entries:
            raise ValueError(f"two tensors named {short(name)}")
        _check_member(member, size)
        with zipped.open(member) as stream:
            shape, dtype, skip = _npy_header(stream)
            # NumPy writes the bfloat16 of JAX, for which it has no name, as V2.
            half = dtype.str in ("|V2", "<V2")
            info = _declared(name, shape, "bfloat16" if half else dtype)
            if member.file_size - skip != info.nbytes:
                raise ValueError(
                    f"{member.file_size - skip} bytes of data for {short(name)}, which needs "
                    f"{info.nbytes} by its header"
                )
        entries[name] = info, functools.partial(_read_npy, zipped, member, half)
    return entries


def _check_member(member: zipfile.ZipInfo, size: int) -> None:
    """Refuses a member that declares more than the file can hold, before anything is inflated."""
    name = short(member.filename)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"a member {name} that is neither stored nor deflated")
    if member.header_offset + member.compress_size > size:
        raise ValueError(f"a member {name} that is cut off by the end of the file")
    ratio = 1 if member.compress_type == zipfile.ZIP_STORED else DEFLATE_RATIO
    if member.file_size > ratio * member.compress_size:
        raise ValueError(
            f"a member {name} of {member.compress_size} bytes that claims to inflate to "
            f"{member.file_size}"
        )


def require_small_members(path: str | os.PathLike) -> None:
    """Raises a `ValueError` for a `.keras` file that a reader would inflate beyond any model."""
    try:
        with zipfile.ZipFile(path) as zipped:
            members = zipped.infolist()
    except CORRUPT:
        return  # Keras explains what is no intact zip
    for member in members:
        is_text = member.filename.endswith(".json")
        # Keras stores weights as they are. Others may deflate them, to hardly less.
        most = MOST_TEXT if is_text else max(64 * member.compress_size, MOST_TEXT)
        if member.file_size > most:
            raise ValueError(
                f"Cannot read the .keras file {os.fspath(path)!r}. Problem: a member "
                f"{short(member.filename)} of {member.compress_size} bytes that claims to "
                f"inflate to {member.file_size}"
            )


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype, int]:
    """(shape, dtype, bytes) of the header of an `.npy`."""
    start = io.BytesIO(stream.read(LONGEST_HEADER))
    version = np.lib.format.read_magic(start)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"an .npy of version {version}")
    width = 2 if version == (1, 0) else 4
    length = int.from_bytes(start.read(width), "little")
    if start.tell() + length > LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes, too long for numbers")
    # NumPy mends what is no literal, as Python 2 wrote some, with the whole tokenizer.
    ast.literal_eval(start.read(length).decode("latin1").strip())
    start.seek(np.lib.format.MAGIC_LEN)
    read = np.lib.format.read_array_header_1_0
    read = read if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(start, max_header_size=LONGEST_HEADER)
    return shape, dtype, start.tell()


def _read_npy(zipped: zipfile.ZipFile, member: zipfile.ZipInfo, half: bool) -> np.ndarray:
    # A member ends for zipfile where it declares to end, whatever its data hold beyond that. As
    # if it declared one byte more, it ends where its data end, and its checksum is of all.
    longer = copy.copy(member)
    longer.file_size += 1
    with zipped.open(longer) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False, max_header_size=LONGEST_HEADER)
        if stream.read(1):
            raise ValueError(f"more data than the {array.nbytes} bytes that are declared")
    return array.view("bfloat16") if half else array


def short(value: object) -> str:
    """A `repr` that a hostile file cannot make long."""
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
