"""Tensors of PyTorch files: a zip of `data.pkl` and raw storages, or a legacy stream of pickles.

Pickles are read by an unpickler that knows nothing but tensors and plain containers, as Python's
documentation of `pickle` describes it ("Restricting Globals"): nothing is ever executed, and torch
is not needed.
"""

import mmap
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from functools import partial
from typing import IO, Any, BinaryIO, NamedTuple, NoReturn, TypeAlias, cast

import ml_dtypes  # noqa: F401, gives NumPy the name "bfloat16"
import numpy as np

from vit_tf.data.files import require_small_table

# The number that opens files from before torch 1.6, as every pickle protocol since 2 writes it.
LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
# Where the weights lie in what a run saves at its end, in order of preference.
CONTAINERS = ("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict")
CONTAINERS += ("teacher", "student", "model_state")
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
# What runs save next to tensors, for which `Ignored` stands.
IGNORED = re.compile(
    r"argparse\.Namespace|numpy\.(dtype|ndarray)|_codecs\.encode"
    r"|numpy\._?core\.multiarray\.(scalar|_reconstruct)|torch\.serialization\._get_layout"
    r"|torch\.(Size|device|bool|strided|b?float\d+|u?int\d+)"
)
STORAGE = re.compile(r"torch(?:\.storage|\.cuda)?\.(\w+Storage)")


# Each axis, stride and number of a storage fits in an int64, as in PyTorch.
LARGEST = 2**63 - 1
# The key that holds the tensors of a file, if any, and these by their names.
TensorsOfFile: TypeAlias = tuple[str | None, dict[str, "Tensor"]]
# The most axes that a tensor of PyTorch may have.
MOST_AXES = 64


def _refuse_state(*_: object) -> NoReturn:
    """In place of `__setstate__`, without which a pickle sets any attribute of an object."""
    raise ValueError("a pickle that sets attributes of objects; only tensors are read")


class Constructor:
    """A function that a pickle can call, but neither change nor subclass."""

    __slots__ = ("_function",)
    __setstate__ = _refuse_state

    def __init__(self, function: Callable):
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


class StateDict(dict):
    """An `OrderedDict` of the pickle, without its attributes, such as `_metadata`."""

    def __setstate__(self, state: object) -> None:
        pass


class IgnoredType(type):
    """The type of `Ignored`; a pickle cannot set attributes of that class."""

    # A property comes before the `__setstate__` of the class, which is for its instances.
    __setstate__ = property(_refuse_state)


class Ignored(metaclass=IgnoredType):
    """In place of an object that is not a tensor, of which nothing is kept."""

    def __new__(cls, *_: object) -> "Ignored":
        return super().__new__(cls)

    def __init__(self, *_: object):
        pass

    def __setstate__(self, state: object) -> None:
        pass


class Storage(NamedTuple):
    """The numbers that tensors are made of: `count` of a dtype, under a key of the file."""

    dtype: str
    key: str
    count: int

    __setstate__ = _refuse_state


class Tensor:
    """A tensor of an open file; `source` returns the flat array of its storage."""

    __setstate__ = _refuse_state
    source: Callable[[], np.ndarray] | None

    def __init__(
        self,
        storage: Storage,
        offset: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        *_: object,
    ):
        tuples = type(shape) is tuple and type(stride) is tuple and len(shape) == len(stride)
        if type(storage) is not Storage or not tuples or len(shape) > MOST_AXES:
            raise ValueError("a tensor that is not made of a storage, a shape and strides")
        if not all(_is_count(n) for n in (offset, *shape, *stride)):
            raise ValueError("a tensor whose offset, shape or strides are not numbers from 0 on")
        self.storage, self.offset, self.source = storage, offset, None
        self.shape, self.stride, self.dtype = tuple(shape), tuple(stride), storage.dtype

    def check(self, name: str) -> None:
        """Raises a ValueError for numbers beyond the storage, or fewer than the tensor has."""
        steps = zip(self.shape, self.stride, strict=True)
        last = self.offset + sum((size - 1) * step for size, step in steps)
        numbers = np.prod([int(n) for n in self.shape], dtype=object)
        # With strides of zero a few bytes on disk would stand for any number in memory.
        if numbers and (last >= self.storage.count or numbers > self.storage.count):
            raise ValueError(f"the tensor {ascii(name)[:100]}, larger than its storage")

    def read(self) -> np.ndarray:
        """The array, a copy."""
        flat = cast(Callable[[], np.ndarray], self.source)()  # `read_tensors` sets it
        if not flat.size or 0 in self.shape:
            return np.zeros(self.shape, flat.dtype)
        strides = tuple(step * flat.itemsize for step in self.stride)
        array = np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, strides)
        return np.ascontiguousarray(array).reshape(self.shape)


class TensorUnpickler(pickle.Unpickler):
    """An unpickler of tensors, plain containers and numbers; `storages` are those that it met."""

    def __init__(self, stream: IO[bytes]):
        super().__init__(stream)
        self.storages = {}

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        if path == "collections.OrderedDict":
            return Constructor(StateDict)
        if path in ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"):
            return Constructor(Tensor)
        if path in ("torch._utils._rebuild_parameter", "torch.nn.parameter.Parameter"):
            return Constructor(_first)
        if match := STORAGE.fullmatch(path):
            return Storage(STORAGES.get(match[1], match[1]), "", 0)
        if IGNORED.fullmatch(path):
            return Ignored
        raise ValueError(
            f"the object {ascii(path)[:100]}, but only tensors are read (save a state_dict)"
        )

    def persistent_load(self, pid: Any) -> Storage:
        if type(pid) is not tuple or len(pid) < 5:
            raise ValueError(f"a reference by a {type(pid).__name__}, where a storage is expected")
        kind, storage, key, _, count, *view = pid
        if kind != "storage" or type(storage) is not Storage or any(view):
            raise ValueError("a persistent reference that is not a plain tensor storage")
        if type(key) is not str:
            raise ValueError(f"a storage whose key is a {type(key).__name__}, not a str")
        if storage.dtype not in STORAGES.values() or not _is_count(count):
            raise ValueError(f"{_short(count)} numbers of {_short(storage.dtype)}")
        storage = Storage(storage.dtype, key, count)
        if self.storages.setdefault(storage.key, storage) != storage:
            raise ValueError(f"two storages of the key {_short(key)}")
        return storage


def _first(data: Any, *_: object) -> Any:
    return data


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _short(value: object) -> str:
    """A str or a number for an error, the type of all else: tuples can be exponentially long."""
    if type(value) is str or _is_count(value):
        return ascii(value)[:100]
    return f"<{type(value).__name__}>"


def _load(stream: IO[bytes]) -> tuple[Any, dict[str, Storage]]:
    """(what one pickle holds, its storages), after a scan for more memory than the file has."""
    require_small_table(stream)
    unpickler = TensorUnpickler(stream)
    try:
        return unpickler.load(), unpickler.storages
    except Exception as error:
        # The unpickler is a stack machine that the file programs: whatever an operation on a
        # wrong operand raises, from IndexError to AttributeError, comes out of it.
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{reason}, in a pickle") from error


def read_tensors(file: BinaryIO, zipped: zipfile.ZipFile | None) -> TensorsOfFile:
    """(key that holds the tensors or None, dict from name to `Tensor`) of an open file."""
    return _read_zip(zipped) if zipped else _read_legacy(file)


def _read_zip(zipped: zipfile.ZipFile) -> TensorsOfFile:
    members = {}
    # `fp` is None only once the archive is closed.
    file_size = os.fstat(cast(IO[bytes], zipped.fp).fileno()).st_size
    for member in zipped.infolist():
        if member.filename in members:
            raise ValueError("two records of one name")
        members[member.filename] = member
        name = ascii(member.filename)[:100]
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise ValueError(f"a compressed record {name}")
        if member.header_offset + member.file_size > file_size:
            raise ValueError(f"a record {name} that goes beyond the end of the file")
    if any(name.rpartition("/")[2] == "constants.pkl" for name in members):
        raise ValueError("a TorchScript archive, which is a program; save its state_dict() instead")
    pickled = next(name for name in members if name.rpartition("/")[2] == "data.pkl")
    folder = pickled.removesuffix("data.pkl")
    order = f"{folder}byteorder"
    if order in members and zipped.read(order)[:16] != b"little":
        raise ValueError("tensors of another byte order than little-endian")
    corrupt = zipped.testzip()
    if corrupt is not None:
        raise ValueError(f"a record {ascii(corrupt)[:100]} that does not match its checksum")
    with zipped.open(pickled) as stream:
        container, tensors = _state_dict(_load(stream)[0])
    for name, tensor in tensors.items():
        storage = tensor.storage
        record, dtype = members.get(f"{folder}data/{storage.key}"), np.dtype(storage.dtype)
        size = None if record is None else record.file_size
        if record is None or size != storage.count * dtype.itemsize:
            raise ValueError(
                f"the tensor {ascii(name)[:100]}, which declares more or less data than its "
                f"record holds: {storage.count} numbers of {dtype} in {size} bytes"
            )
        tensor.check(name)
        tensor.source = partial(_from_record, zipped, record, dtype)
    return container, tensors


def _from_record(zipped: zipfile.ZipFile, record: zipfile.ZipInfo, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(zipped.read(record), dtype)


def _from_span(file: BinaryIO, begin: int, count: int, dtype: np.dtype) -> np.ndarray:
    file.seek(begin)
    return np.frombuffer(file.read(count * dtype.itemsize), dtype)


def _read_legacy(file: BinaryIO) -> TensorsOfFile:
    """Pickles of a magic number, a version, the system, what was saved and the storages' keys."""
    # A file gives memory to as many bytes as a pickle asks of it, a map to those it has.
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
        pickles = cast(IO[bytes], stream)  # a map is read like a file
        system = [_load(pickles)[0] for _ in range(3)][2]
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise ValueError("tensors of another byte order than little-endian")
        saved, storages = _load(pickles)
        container, tensors = _state_dict(saved)
        begins = _legacy_spans(stream, _load(pickles)[0], storages)
    for name, tensor in tensors.items():
        storage = tensor.storage
        if storage.key not in begins:
            raise ValueError(f"the tensor {ascii(name)[:100]} without its data")
        tensor.check(name)
        dtype = np.dtype(storage.dtype)
        tensor.source = partial(_from_span, file, begins[storage.key], storage.count, dtype)
    return container, tensors


def _legacy_spans(stream: mmap.mmap, keys: object, storages: dict[str, Storage]) -> dict[str, int]:
    """dict from key to where the numbers of a storage begin, each after their count."""
    begins, size = {}, len(stream)
    for key in keys if isinstance(keys, list) else [keys]:
        if type(key) is not str:
            raise ValueError(f"a storage whose key is a {type(key).__name__}, not a str")
        storage, count = storages.get(key), int.from_bytes(stream.read(8), "little")
        if storage is None or storage.count != count:
            raise ValueError(f"{count} numbers of a storage {_short(key)}, declared otherwise")
        begins[storage.key] = stream.tell()
        end = stream.tell() + count * np.dtype(storage.dtype).itemsize
        if end > size:
            raise ValueError(f"a storage {_short(key)} beyond the end of the file")
        stream.seek(end)
    return begins


def _state_dict(saved: Any) -> TensorsOfFile:
    """(key or None, dict of tensors in what was saved, without the plain numbers among them)."""

    def holds_tensors(value: object) -> bool:
        return isinstance(value, dict) and any(isinstance(x, Tensor) for x in value.values())

    if not isinstance(saved, dict):
        raise ValueError(f"a pickled {type(saved).__name__} where a dict of tensors is expected")
    container = next((key for key in CONTAINERS if holds_tensors(saved.get(key))), None)
    named = saved if container is None else saved[container]
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, (Tensor, int, float)):
            raise ValueError(
                f"a {type(value).__name__} named {_short(name)} where a tensor is expected"
            )
    return container, {name: x for name, x in named.items() if isinstance(x, Tensor)}
