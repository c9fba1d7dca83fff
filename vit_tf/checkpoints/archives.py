"""Opening a checkpoint, a file or a folder, as named tensors that are read one at a time.

`.npz` is read by NumPy, `.safetensors` by its package, PyTorch's files by `torch_pickles`. Folders
hold weights and their configuration, and may be downloaded from the Hugging Face hub: those of
transformers and timm hold `config.json` and `model.safetensors` or `pytorch_model.bin`, whole or in
parts; open_clip's have other names for both.
"""

import functools
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import ml_dtypes  # noqa: F401, gives NumPy the name "bfloat16"
import numpy as np
from safetensors import safe_open

from vit_tf.checkpoints import torch_pickles
from vit_tf.common.names import format_list, without_password

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


# Folders of weights.

HUB = "hf://"
CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# The same of PyTorch's, which are looked for where there are none of safetensors.
BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# All that is read of a folder, and so all that is downloaded.
FILES = (CONFIG, PROCESSOR, INDEX, "model*.safetensors")
# The same of a folder of open_clip's, its weights in the order in which they are looked for.
OPEN_CLIP = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def open_folder(path: str) -> "Folder":
    """The `Folder` of a path, of transformers' or timm's files rather than open_clip's."""
    file, weights = CONFIG, find_weights(path, (WEIGHTS, INDEX, BIN, BIN_INDEX))
    if weights is None and os.path.exists(os.path.join(path, OPEN_CLIP)):
        file, weights = OPEN_CLIP, find_weights(path, OPEN_CLIP_WEIGHTS)
    if weights is None or not os.path.exists(os.path.join(path, file)):
        raise ValueError(
            f"Expected the folder {path!r} to hold {CONFIG} with {WEIGHTS} or {BIN} (whole or in "
            f"shards with their index), or {OPEN_CLIP} with {' or '.join(OPEN_CLIP_WEIGHTS)}; "
            "a file is opened by its own path. Received: "
            f"{format_list(sorted(os.listdir(path))) or 'an empty folder'}"
        )
    config = read_json(os.path.join(path, file))
    there = os.path.join(path, PROCESSOR)
    processor = read_json(there) if file == CONFIG and os.path.exists(there) else None
    listed = _read_index(weights) if weights.endswith(".json") else {}
    parts = sorted(set(listed.values())) or [os.path.basename(weights)]
    with ExitStack() as stack:
        archives = [stack.enter_context(open_archive(os.path.join(path, part))) for part in parts]
        stored = {
            (name, part) for part, a in zip(parts, archives, strict=True) for name in a.tensors
        }
        if listed and (wrong := set(listed.items()) ^ stored):
            shown = format_list(f"{name!r} of {part}" for name, part in sorted(wrong))
            raise ValueError(
                f"Expected the shards of {weights!r} to hold the tensors that it lists. "
                f"Received these differences: {shown}"
            )
        return Folder(path, config, processor, archives, stack.pop_all(), file)


class Folder(CheckpointFile):
    """The named tensors of the files of an open folder, and its configuration."""

    def __init__(
        self,
        path: str,
        config: dict,
        processor: dict | None,
        archives: Iterable[CheckpointFile],
        stack: ExitStack,
        file: str = CONFIG,
    ):
        entries = {
            name: (info, functools.partial(archive.read, name))
            for archive in archives
            for name, info in archive.tensors.items()
        }
        super().__init__(path, "folder", entries, stack)
        self.config, self.processor, self.file = config, processor, file


def find_weights(
    path: str | os.PathLike,
    names: tuple[str, ...] = (WEIGHTS, INDEX, BIN, BIN_INDEX, *OPEN_CLIP_WEIGHTS),
) -> str | None:
    """The path of the first file of weights, or of an index of them, that a folder has, or None."""
    return next(filter(os.path.isfile, (os.path.join(path, name) for name in names)), None)


def read_json(path: str) -> dict:
    """The dict of a JSON file; a ValueError where it is missing or something else."""
    try:
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
        if not isinstance(fields, dict):
            raise ValueError(f"a {type(fields).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"Expected a JSON object in {path!r}. Received: {reason}") from error
    return fields


def _read_index(path: str) -> dict[str, str]:
    """dict from each tensor to the name of its shard, of an index of shards."""
    names = read_json(path).get("weight_map")
    is_map = isinstance(names, dict) and all(isinstance(name, str) for name in names.values())
    if not is_map or not names:
        raise ValueError(
            f"Expected {path!r} to hold a weight_map from tensors to files of its folder. "
            f"Received: {str(names)[:200]}"
        )
    return names


def snapshot(name: str) -> str:
    """The folder of a repository on the Hugging Face hub, downloaded once; a ValueError without."""
    repository = name.removeprefix(HUB)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(
            f"Expected a name such as 'hf://owner/name'. Received: {without_password(name)!r}"
        )
    try:
        from huggingface_hub import snapshot_download

        path = snapshot_download(repository, allow_patterns=list(FILES))
        # Weights of one kind only: many repositories hold the same twice or three times.
        others = ([OPEN_CLIP, weights] for weights in OPEN_CLIP_WEIGHTS)
        for files in (*others, [BIN], [BIN_INDEX, "pytorch_model-*.bin"]):
            if not find_weights(path):
                path = snapshot_download(repository, allow_patterns=files)
        return path
    except Exception as error:
        url, place = f"https://huggingface.co/{repository}", "opened as a folder"
        raise not_fetched(url, place, error) from error


def not_fetched(url: str, place: str, error: Exception) -> ValueError:
    """The `ValueError` for what could not be downloaded, which names it and another way."""
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, ImportError):
        reason += "; `pip install huggingface_hub`"
    return ValueError(
        f"Cannot download {url} ({type(error).__name__}: {reason}). It can also be downloaded by "
        f"other means and {place}."
    )
