"""Folders of weights and their configuration, and downloading them from the Hugging Face hub.

Those of transformers and timm hold `config.json` and `model.safetensors` or `pytorch_model.bin`,
whole or in parts; open_clip's have other names for both.
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack

import numpy as np

from vit_tf.checkpoints.archives import CheckpointFile, open_archive
from vit_tf.common.names import unknown_name, without_password

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
LONGEST = 32_000_000  # bytes of a JSON file


def open_folder(path: str) -> "Folder":
    """The `Folder` of a path, of transformers' or timm's files rather than open_clip's."""
    has_own_weights = has_weights(path, (WEIGHTS, INDEX, BIN, BIN_INDEX))
    if not has_own_weights and os.path.exists(os.path.join(path, OPEN_CLIP)):
        return _open_clip(path)
    if not os.path.exists(os.path.join(path, CONFIG)):
        raise ValueError(
            f"The folder {path!r} has no {CONFIG} next to its weights; a file is opened by its own "
            f"path. Received: {', '.join(sorted(os.listdir(path))[:8]) or 'an empty folder'}"
        )
    config = read_json(os.path.join(path, CONFIG))
    there = os.path.join(path, PROCESSOR)
    processor = read_json(there) if os.path.exists(there) else None
    with ExitStack() as stack:
        parts, index = _parts(path)
        archives = [stack.enter_context(open_archive(part)) for part in parts]
        folder = Folder(path, config, processor, archives, stack)
        if index:
            _check_parts(index, archives)
        folder.stack = stack.pop_all()
    return folder


def has_weights(
    path: str | os.PathLike,
    names: tuple[str, ...] = (WEIGHTS, INDEX, BIN, BIN_INDEX, *OPEN_CLIP_WEIGHTS),
) -> bool:
    """Whether a folder has one of the files of weights."""
    return any(os.path.isfile(os.path.join(path, name)) for name in names)


def _open_clip(path: str) -> "Folder":
    config = read_json(os.path.join(path, OPEN_CLIP))
    paths = [os.path.join(path, name) for name in OPEN_CLIP_WEIGHTS]
    weights = next(filter(os.path.isfile, paths), None)
    if weights is None:
        raise ValueError(
            f"The folder {path!r} has no {' or '.join(OPEN_CLIP_WEIGHTS)} next to {OPEN_CLIP}. "
            f"Received: {', '.join(sorted(os.listdir(path))[:8])}"
        )
    with ExitStack() as stack:
        archive = stack.enter_context(open_archive(weights))
        return Folder(path, config, None, [archive], stack.pop_all(), OPEN_CLIP)


class Folder:
    """The named tensors of an open folder, as a `CheckpointFile` has them; a context manager."""

    def __init__(
        self,
        path: str,
        config: dict,
        processor: dict | None,
        archives: Iterable[CheckpointFile],
        stack: ExitStack,
        file: str = CONFIG,
    ):
        self.path, self.config, self.processor, self.file = path, config, processor, file
        self.tensors = {
            name: info for archive in archives for name, info in archive.tensors.items()
        }
        self.archives = {name: archive for archive in archives for name in archive.tensors}
        self.stack = stack

    def read(self, name: str) -> np.ndarray:
        """One tensor as an ndarray, as `Archive.read` returns it."""
        if name not in self.archives:
            raise unknown_name("tensor", name, self.archives)
        return self.archives[name].read(name)

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()


def read_json(path: str) -> dict:
    """The dict of a JSON file; a ValueError where it is missing, too long or something else."""
    try:
        with open(path, "rb") as file:
            # Reading up to a limit would take as much memory beforehand.
            if os.fstat(file.fileno()).st_size > LONGEST:
                raise ValueError(f"more than {LONGEST} bytes")
            text = file.read()
        fields = json.loads(text.decode("utf-8"))
        if not isinstance(fields, dict):
            raise ValueError(f"a {type(fields).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path!r} is not a JSON object: {reason} ({type(error).__name__})"
        ) from error
    return fields


def _parts(path: str) -> tuple[list[str], str | None]:
    """(paths of the files of weights, that of their index or None)."""
    names = (WEIGHTS, INDEX, BIN, BIN_INDEX)
    index = next((os.path.join(path, n) for n in names if has_weights(path, (n,))), None)
    if index is None:
        raise ValueError(
            f"The folder {path!r} has no weights: {WEIGHTS} or {BIN}, or shards and their index. "
            f"Received: {', '.join(sorted(os.listdir(path))[:8]) or 'an empty folder'}"
        )
    if not index.endswith(".json"):
        return [index], None
    names = read_json(index).get("weight_map")
    flat = isinstance(names, dict) and all(
        isinstance(name, str) and name == os.path.basename(name) for name in names.values()
    )
    if not flat or not names:
        raise ValueError(
            f"{index!r} has no weight_map from tensors to files of its folder. Received: "
            f"{str(names)[:200]}"
        )
    return [os.path.join(path, name) for name in sorted(set(names.values()))], index


def _check_parts(index: str, archives: Iterable[CheckpointFile]) -> None:
    """Each tensor lies in the part that the index names, and nowhere else."""
    listed = read_json(index)["weight_map"]
    stored = [
        (name, os.path.basename(archive.path)) for archive in archives for name in archive.tensors
    ]
    wrong = sorted(set(listed.items()).symmetric_difference(stored))
    if wrong or len(stored) != len(listed):
        shown = ", ".join(f"{name!r} of {part}" for name, part in wrong[:8])
        raise ValueError(
            f"The shards of {index!r} do not hold the tensors that it lists. Differences: "
            f"{shown or 'a tensor twice'}"
        )


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
            if not has_weights(path):
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
