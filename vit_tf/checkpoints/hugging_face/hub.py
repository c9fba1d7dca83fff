"""Downloading repositories of the Hugging Face hub."""

import re

from vit_tf.checkpoints.hugging_face.folder import (
    BIN,
    BIN_INDEX,
    FILES,
    OPEN_CLIP,
    OPEN_CLIP_WEIGHTS,
    has_weights,
)
from vit_tf.remote import without_password

HUB = "hf://"


def snapshot(name):
    """The folder of a repository on the Hugging Face hub, downloaded once.

    Raises:
        ValueError: for another name; or if it cannot be fetched.
    """
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


def not_fetched(url, place, error):
    """The `ValueError` for what could not be downloaded, which names it and another way."""
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, ImportError):
        reason += "; `pip install huggingface_hub`"
    return ValueError(
        f"Expected {url} to be fetched; it can also be fetched by other means and {place}. "
        f"Received: {type(error).__name__}: {reason}"
    )
