"""Tensors of PyTorch files: a zip of `data.pkl` and raw storages, or a legacy stream of pickles.

Pickles are read by an unpickler that knows nothing but tensors and plain containers, as Python's
documentation of `pickle` describes it ("Restricting Globals"): nothing is ever executed, and torch
is not needed.
"""

import mmap
import pickle
import re
import zipfile
from collections.abc import Callable
from functools import partial
from typing import IO, Any, BinaryIO, NamedTuple, TypeAlias, cast

import ml_dtypes  # noqa: F401, gives NumPy the name "bfloat16"
import numpy as np

from vit_tf.common.pickles import Constructor

# The number that opens files from before torch 1.6, as every pickle protocol since 2 writes it.
LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
# Where the weights lie in what a run saves at its end, in order of preference.
CONTAINERS = (
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model",
    "model_state_dict",
    "teacher",
    "student",
    "model_state",
)
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
STORAGE = re.compile(rf"torch(?:\.storage|\.cuda)?\.({'|'.join(STORAGES)})")
# What runs save next to tensors, for which `Ignored` stands.
IGNORED = re.compile(
    r"argparse\.Namespace|numpy\.(dtype|ndarray)|_codecs\.encode"
    r"|numpy\._?core\.multiarray\.(scalar|_reconstruct)|torch\.serialization\._get_layout"
    r"|torch\.(Size|device|bool|strided|b?float\d+|u?int\d+)"
)


class Storage(NamedTuple):
    """The numbers that tensors are made of: `count` of a dtype, under a key of the file."""

    dtype: str
    key: str
    count: int


# A storage to its bytes.
ReadStorage: TypeAlias = Callable[[Storage], bytes]


class Tensor(NamedTuple):
    """A tensor of a file: the numbers of a storage from an offset on, with a shape and strides."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self, read_storage: ReadStorage) -> np.ndarray:
        """The array, a copy."""
        dtype, data = np.dtype(self.storage.dtype), read_storage(self.storage)
        if len(data) != self.storage.count * dtype.itemsize:
            raise ValueError(
                f"a tensor's data have {len(data)} bytes, but its {self.storage.count} numbers of "
                f"type {dtype} need {self.storage.count * dtype.itemsize}"
            )
        if 0 in self.shape:
            return np.zeros(self.shape, dtype)
        # NumPy refuses an offset and strides that lead beyond the data.
        strides = [step * dtype.itemsize for step in self.stride]
        return np.ndarray(self.shape, dtype, data, self.offset * dtype.itemsize, strides).copy()


def read_tensors(
    file: BinaryIO, zipped: zipfile.ZipFile | None
) -> tuple[str | None, dict[str, tuple[Tensor, Callable[[], np.ndarray]]]]:
    """(key that holds the tensors or None, dict from name to `Tensor` and its reader)."""
    saved, read_storage = _open_zip(zipped) if zipped else _open_legacy(file)
    container, tensors = _state_dict(saved)
    return container, {name: (t, partial(t.read, read_storage)) for name, t in tensors.items()}


def _open_zip(zipped: zipfile.ZipFile) -> tuple[Any, ReadStorage]:
    """(what a file holds, function that reads a storage of it)."""
    names = zipped.namelist()
    if any(name.rpartition("/")[2] == "constants.pkl" for name in names):
        raise ValueError("it is a TorchScript archive: save the state_dict() of the module instead")
    pickled = next(name for name in names if name.rpartition("/")[2] == "data.pkl")
    folder = pickled.removesuffix("data.pkl")
    if f"{folder}byteorder" in names and zipped.read(f"{folder}byteorder") != b"little":
        raise ValueError("tensors of another byte order than little-endian")
    with zipped.open(pickled) as stream:
        saved, _ = _load(stream)
    return saved, lambda storage: zipped.read(f"{folder}data/{storage.key}")


def _open_legacy(file: BinaryIO) -> tuple[Any, ReadStorage]:
    """The same of pickles of a magic number, a version, the system, what was saved, and keys."""
    # A read of a map takes as much memory as the file has bytes, whatever a pickle asks for.
    stream = cast(IO[bytes], mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    system = [_load(stream)[0] for _ in range(3)][2]
    if system.get("little_endian") is not True:
        raise ValueError("tensors of another byte order than little-endian")
    saved, storages = _load(stream)
    # The storages follow in the order of their keys, each after the number of its elements.
    begins = {}
    for key in _load(stream)[0]:
        begins[key] = stream.tell() + 8
        size = storages[key].count * np.dtype(storages[key].dtype).itemsize
        stream.seek(begins[key] + size)

    def read_storage(storage: Storage) -> bytes:
        stream.seek(begins[storage.key])
        return stream.read(storage.count * np.dtype(storage.dtype).itemsize)

    return saved, read_storage


def _load(stream: IO[bytes]) -> tuple[Any, dict[str, Storage]]:
    """(what one pickle holds, its storages by their keys)."""
    unpickler = TensorUnpickler(stream)
    try:
        return unpickler.load(), unpickler.storages
    except Exception as error:
        # The unpickler is a stack machine that the file programs: whatever an operation on a
        # wrong operand raises, from IndexError to AttributeError, comes out of it.
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"its pickled part cannot be read: {reason}") from error


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
            return Constructor(lambda *arguments: Tensor(*arguments[:4]))
        if path in ("torch._utils._rebuild_parameter", "torch.nn.parameter.Parameter"):
            return Constructor(lambda data, *_: data)
        if match := STORAGE.fullmatch(path):
            return STORAGES[match[1]]
        if IGNORED.fullmatch(path):
            return Ignored
        raise ValueError(
            f"it has the object {path!r}, but only tensors are read: save model.state_dict()"
        )

    def persistent_load(self, pid: Any) -> Storage:
        kind, dtype, key, _, count, *view = pid
        if kind != "storage" or dtype not in STORAGES.values() or any(view):
            raise ValueError("a persistent reference that is not a plain tensor storage")
        self.storages[key] = Storage(dtype, key, count)
        return self.storages[key]


class StateDict(dict):
    """An `OrderedDict` of the pickle, without its attributes, such as `_metadata`."""

    def __setstate__(self, state: object) -> None:
        pass


class Ignored:
    """In place of an object that is not a tensor, of which nothing is kept."""

    def __new__(cls, *_: object) -> "Ignored":
        return super().__new__(cls)

    def __init__(self, *_: object):
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _state_dict(saved: Any) -> tuple[str | None, dict[str, Tensor]]:
    """(key or None, dict of tensors in what was saved, without the plain numbers among them)."""

    if not isinstance(saved, dict):
        raise ValueError(
            f"it holds a {type(saved).__name__} instead of a dict of tensors: save "
            "model.state_dict()"
        )
    dicts = [key for key in CONTAINERS if isinstance(saved.get(key), dict)]
    with_tensors = (key for key in dicts if any(isinstance(x, Tensor) for x in saved[key].values()))
    container = next(with_tensors, None)
    named = saved if container is None else saved[container]
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, (Tensor, int, float)):
            raise ValueError(
                f"it holds a {type(value).__name__} named {name!r} instead of a tensor: save "
                "model.state_dict()"
            )
    return container, {name: x for name, x in named.items() if isinstance(x, Tensor)}
