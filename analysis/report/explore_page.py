"""One self-contained interactive page of single images."""

from .page import as_json, write_page


def write_explore_page(path, *, title, payload, shown, size, left_out, facts):
    """Write a self-contained HTML file; an interrupted write leaves no partial file.

    Args:
        path: where to write the HTML.
        title: heading of the page.
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
        payload=as_json(payload),
        shown=shown,
        size=size,
        left_out=list(left_out),
        facts=dict(facts),
    )
