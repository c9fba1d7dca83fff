"""A hook of MkDocs: what the site lists of measurements is read from their pages and the stub.

A page `measurements/ROOM/NAME.md` is in the navigation, the index and the gallery; a name of
`analysis/__init__.pyi` is in the API page of its module. `python docs/navigation.py` writes index
and gallery into the repository, for those who read them there.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
ROOMS = ("similarity", "attention", "flow", "probes", "objects")  # others follow
LISTED = re.compile(r"(<!-- list: (\w+)(.*?) -->\n).*?(<!-- end of list -->)", re.DOTALL)
PAGE = re.compile(
    r"---\ncalls: (?P<call>\S+).*?\n(?:order: (?P<order>\d+)\n)?---\n"
    r"\s*# (?P<title>.+)\n\s*\*\*(?P<question>.+?\?)\*\*"
)
PICTURE = re.compile(r"^!\[(.+?)\]\((?:\.\./)*(pictures/\w+\.png)\)", re.MULTILINE)


class Measurement(NamedTuple):
    """What is listed of a page; a page without an order is the last of its room."""

    room: str
    order: int
    title: str
    question: str
    call: str
    path: str
    pictures: tuple


def measurements():
    """The measurements by room, in the order of their pages."""
    pages = [_read(path) for path in DOCS.glob("measurements/*/*.md")]
    rooms = {room: [] for room in ROOMS}
    for page in sorted(pages):
        rooms.setdefault(page.room, []).append(page)
    return rooms


def _read(path):
    text = path.read_text("utf-8")
    if not (found := PAGE.match(text)):
        raise ValueError(
            f"Expected {path} to begin with `calls:` between lines of ---, a heading and a "
            f"question in bold type. Received: {text[:80]!r}"
        )
    return Measurement(
        path.parent.name,
        int(found["order"] or 1000),
        found["title"],
        found["question"],
        found["call"],
        path.relative_to(DOCS).as_posix(),
        tuple(PICTURE.findall(text)),
    )


def questions():
    """A table for each room: the question of a page and the call that answers it."""
    for room, pages in measurements().items():
        yield f"## {room.title()}\n\n| question | call |\n| --- | --- |\n" + "".join(
            f"| [{page.question}]({page.path.partition('/')[2]}) | `analysis.{page.call}` |\n"
            for page in pages
        )


def pictures():
    """The pictures of all pages, each a link to its page."""
    for pages in measurements().values():
        for page in pages:
            for caption, picture in page.pictures:
                yield f"- [![{caption}]({picture})]({page.path})\n\n    {caption}\n"


def names(*modules):
    """The public names of modules or subpackages of `analysis`, in the order of the stub."""
    stub = ast.parse((DOCS.parent / "analysis/__init__.pyi").read_text("utf-8"))
    for line in (line for line in stub.body if isinstance(line, ast.ImportFrom)):
        if any(f"{line.module}.".startswith(f"{module}.") for module in modules):
            yield from (f"::: analysis.{name.asname}\n" for name in line.names)


def fill(text):
    """The text of a page with its lists."""
    lists = {"questions": questions, "pictures": pictures, "names": names}

    def filled(found):
        begin, what, of, end = found.groups()
        return "\n".join([begin, *lists[what](*of.split()), end])

    return LISTED.sub(filled, text)


def on_config(config):
    (menu,) = [entry["Measurements"] for entry in config.nav if "Measurements" in entry]
    menu[1:1] = [  # after the index
        {room.title(): [page.path for page in pages]} for room, pages in measurements().items()
    ]
    return config


def on_page_markdown(markdown, **more):
    return fill(markdown)


if __name__ == "__main__":
    for page in (DOCS / "measurements/index.md", DOCS / "gallery.md"):
        page.write_text(fill(page.read_text("utf-8")), "utf-8")
