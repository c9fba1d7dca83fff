"""Tensors of PyTorch files: a zip of `data.pkl` and raw storages, or a legacy stream of pickles."""

import functools
import mmap
import os
import pickletools
import re
import zipfile

from vit_tf.checkpoints.files.tensors import declared, short

# Where the weights lie in what is saved at the end of a run, in order of preference.
CONTAINERS = ("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict")
CONTAINERS += ("teacher", "student", "model_state")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8")
DTYPES += ("uint8", "bool")
# What training scripts save besides tensors; opened as `Ignored`.
IGNORED = ("argparse.Namespace", "numpy.dtype", "numpy.ndarray")
_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")
IGNORED += tuple(f"{module}.{name}" for module in _NUMPY for name in ("scalar", "_reconstruct"))
# All that the pickle of a state dict names. torch's own list is longer, and may be lengthened: it
# has constructors, such as bytearray's, that take as much memory as they are asked for.
GLOBALS = re.compile(
    r"collections OrderedDict|_codecs encode|torch\.serialization _get_layout"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|parameter)|torch\.nn\.parameter Parameter"
    r"|torch(\.storage|\.cuda)? \w+Storage|torch (Size|device|bool|strided|b?float\d+|u?int\d+)|"
    + "|".join(re.escape(" ".join(name.rsplit(".", 1))) for name in IGNORED)
)
# Pickles of a legacy file: a magic number, a version, the system, what was saved, the storages.
LEGACY_PICKLES = 5


class Ignored:
    """Instead of an object that is not a tensor, of which nothing is kept."""

    def __new__(cls, *_):
        return super().__new__(cls)

    def __init__(self, *_):
        pass

    def __setstate__(self, state):
        pass


def require_torch(path):
    """Raises `ValueError` where torch, which only these files need, is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "Expected torch to be installed (`pip install torch`), which reads PyTorch's files, or "
            f"the checkpoint's .safetensors if there is one. Received: {path!r}, without torch"
        ) from error


def entries(path, file, zipped):
    """(dict from name to (`TensorInfo`, function that loads it), key that holds it) of a file.

    Its tensors are mapped from the disk, those of a legacy file are in memory. Nothing is ever
    executed: the pickle may name nothing but tensors and plain containers, and goes through
    torch's restricted unpickler.

    Args:
        path, file: the path, and the file opened from it.
        zipped: its `zipfile.ZipFile`; None for a legacy file.

    Raises:
        ValueError, zipfile.BadZipFile, ...: `archives.DAMAGE`, for anything out of order.
    """
    if zipped:
        records = _check_zip(zipped, os.fstat(file.fileno()).st_size)
        container, tensors = _state_dict(_load(path, mapped=True))
        _check_storages(tensors, records)
    else:
        # A file gives memory to as many bytes as a pickle asks of it, a map to those it has.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
            for _ in range(LEGACY_PICKLES):
                _check_pickle(stream)
        container, tensors = _state_dict(_load(path, mapped=False))
    found = {
        name: (_declared(name, tensor), functools.partial(_to_numpy, tensor))
        for name, tensor in tensors.items()
    }
    return found, container


def _load(path, mapped):
    import torch

    try:
        with torch.serialization.safe_globals([(Ignored, name) for name in IGNORED]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        # The unpickler is a stack machine that the file programs: whatever an operation on a
        # wrong operand raises, from IndexError to AttributeError, comes out of it.
        raise ValueError(f"{type(error).__name__} in torch.load: {error}") from error


def _check_zip(zipped, size):
    """dict from offset to number of bytes of each record, after checking all of the zip.

    torch maps records by their offsets, blind to compression, sizes and checksums.
    """
    records = {}
    names = zipped.namelist()
    if len(set(names)) != len(names):
        raise ValueError("two records of one name")
    if any(name.rpartition("/")[2] == "constants.pkl" for name in names):
        raise ValueError("a TorchScript archive, which is a program; save its state_dict() instead")
    for member in zipped.infolist():
        name = short(member.filename)
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise ValueError(f"a compressed record {name}")
        if member.header_offset + member.file_size > size:
            raise ValueError(f"a record {name} that goes beyond the end of the file")
    damaged = zipped.testzip()
    if damaged is not None:
        raise ValueError(f"a record {short(damaged)} that does not fit its checksum")
    for member in zipped.infolist():
        what = member.filename.rpartition("/")[2]
        with zipped.open(member) as stream:
            if what.endswith(".pkl"):
                _check_pickle(stream)
            if what == "byteorder" and stream.read(16) != b"little":
                raise ValueError("tensors of another byte order than little-endian")
        records[_data_offset(zipped.fp, member)] = member.file_size
    return records


def _data_offset(file, member):
    file.seek(member.header_offset + 26)
    lengths = file.read(4)
    name, extra = int.from_bytes(lengths[:2], "little"), int.from_bytes(lengths[2:], "little")
    return member.header_offset + 30 + name + extra


def _check_pickle(stream):
    """Reads one pickle without running it; refuses one that names more than tensors."""
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("GLOBAL", "INST") and not GLOBALS.fullmatch(argument):
            raise ValueError(f"a pickle that calls for {short(argument)}; only tensors are read")


def _state_dict(saved):
    """(key or None, dict of tensors in what was saved, without the plain numbers among them)."""
    import torch

    def holds_tensors(value):
        return isinstance(value, dict) and any(map(torch.is_tensor, value.values()))

    if not isinstance(saved, dict):
        raise ValueError(f"a pickled {type(saved).__name__} where a dict of tensors is expected")
    container = next((key for key in CONTAINERS if holds_tensors(saved.get(key))), None)
    found = saved if container is None else saved[container]
    for name, value in found.items():
        known = torch.is_tensor(value) or isinstance(value, (int, float))
        if not isinstance(name, str) or not known:
            raise ValueError(
                f"a {type(value).__name__} named {short(name)} where a tensor is expected"
            )
    return container, {name: value for name, value in found.items() if torch.is_tensor(value)}


def _check_storages(tensors, records):
    """Each tensor's storage is one whole record of the file.

    The file is mapped as one, so that what belongs to one record lies at one distance.
    """
    storages = {}
    for tensor in tensors.values():
        storage = tensor.untyped_storage()
        if tensor.device.type == "cpu" and storage.nbytes():
            storages[storage.data_ptr()] = storage.nbytes()
    first = min(storages, default=0)
    bases = (first - offset for offset in records)
    if storages and not any(
        all(records.get(pointer - base) == nbytes for pointer, nbytes in storages.items())
        for base in bases
    ):
        raise ValueError("tensors that declare more or less data than their records hold")


def _declared(name, tensor):
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or dtype not in DTYPES:
        raise ValueError(f"the tensor {short(name)} of {tensor.layout}, {dtype}")
    info = declared(name, tuple(tensor.shape), dtype)
    # With strides of zero a few bytes on disk would stand for any number in memory.
    if info.nbytes > tensor.untyped_storage().nbytes():
        raise ValueError(f"the tensor {short(name)}, larger than the data it is made of")
    return info


def _to_numpy(tensor):
    import torch

    tensor = tensor.detach()
    half = tensor.dtype == torch.bfloat16
    # A copy, as the file is unmapped when it is closed.
    array = (tensor.view(torch.int16) if half else tensor).numpy().copy()
    return array.view("uint16") if half else array
