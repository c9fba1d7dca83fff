"""One self-contained interactive page of single images."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_tf.common.names import join_words

from ..plots.style import colour_map
from ..report.page import as_json, write_page

MAX_LISTED = 4  # images in the title by name


def write_explore_page(
    path: str | os.PathLike,
    *,
    views: Sequence[dict[str, Any]],
    image_names: Sequence[str],
    versions: list[str],
) -> Path:
    """Write a self-contained HTML file; an interrupted write leaves no partial file."""
    data = {
        "images": list(image_names),
        "colours": colour_map(),
        "models": [{"name": view["name"], **view["payload"]} for view in views],
    }
    suffixes = ["", *(f"-{number}" for number in range(2, len(views) + 1))]
    words = {view["shown"]["cell"]: view["shown"]["cells"] for view in views}
    names = join_words([view["name"] for view in views])
    count = len(image_names)
    images = join_words(image_names) if count <= MAX_LISTED else f"{count} images"
    return write_page(
        path,
        "explore",
        True,
        __package__ or "",
        title=f"{names}: {images}",
        payload=as_json(data),
        views=[
            {**view, "number": number, "suffix": suffix}
            for number, (view, suffix) in enumerate(zip(views, suffixes, strict=True))
        ],
        several=len(image_names) > 1,
        cell=next(iter(words)) if len(words) == 1 else "position",
        cells=next(iter(words.values())) if len(words) == 1 else "positions",
        image_names=image_names,
        versions=versions,
    )
