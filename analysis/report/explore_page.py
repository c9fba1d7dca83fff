"""One self-contained page of single images, whose patches answer to mouse, keys and touch."""

from .page import as_json, write_page


def write_explore_page(path, *, title, introduction, payload, shown, size, left_out, facts):
    """Write the page as one self-contained HTML file, atomically.

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
    return write_page(
        path,
        "explore",
        True,
        title=title,
        introduction=introduction,
        payload=as_json(payload),
        shown=shown,
        size=size,
        left_out=list(left_out),
        facts=dict(facts),
    )
