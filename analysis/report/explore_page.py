"""One self-contained page of single images, whose patches answer to mouse, keys and touch."""

import base64
import hashlib
import json
from pathlib import Path

from vit_tf.files import write_whole

from .page import make_template, resource


def write_explore_page(path, *, title, introduction, payload, shown, size, left_out, facts):
    """Write the page, whole or not at all; it asks the network for nothing.

    Args:
        path: where to write the HTML.
        title, introduction: heading of the page, and text under it.
        payload: dict that JSON can hold: what the script draws, see `study.explorer.payload`.
        shown: dict of what there is to show, which chooses the panels.
        size: size of the images, as text.
        left_out: list of (what is not shown, list of sentences on why).
        facts: dict of what it takes to make the page again.

    Returns:
        The path written.
    """
    path, script = Path(path), resource("explore.js")
    text = json.dumps(payload, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = make_template("explore.html").render(
        title=title,
        introduction=introduction,
        style=resource("explore.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        payload=text,
        shown=shown,
        size=size,
        left_out=list(left_out),
        facts=dict(facts),
    )
    write_whole(path, lambda partial: partial.write_text(page, encoding="utf-8"))
    return path
