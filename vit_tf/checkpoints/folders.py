"""Folders of weights and their configuration, and downloading them from the Hugging Face hub.

Those of transformers and timm hold `config.json` and `model.safetensors` or `pytorch_model.bin`,
whole or in parts; open_clip's have other names for both.
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial

from vit_tf.checkpoints.archives import CheckpointFile, open_archive
from vit_tf.common.names import format_list, without_password

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
            "to open a single file, pass its own path. Received: "
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
                f"Expected the files that {weights!r} lists to hold the tensors that it lists: "
                f"download the folder again. Received these differences: {shown}"
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
            name: (info, partial(archive.read, name))
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
            f"Expected {path!r} to hold weight_map, a dict from tensor names to files. "
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
