"""The prose of Markdown files and notebooks, without code, link targets and front matter."""

import json
import re
from pathlib import Path

FRONT_MATTER = r"\A---\n.*?\n---\n"
CODE_BLOCK = r"^```.*?^```[ ]*$"
INLINE_CODE = r"(`+)(?!`).+?(?<!`)\1(?!`)"
COMMENT = r"<!--.*?-->"
TAG = r"</?[a-z][^>\n]*>"
LINK_TARGET = r"(?<=\])\([^)\n]*\)"
ATTRIBUTES = r"(?<=\))\{[^}\n]*\}"
ADDRESS = r"https?://\S+"
API_ENTRY = r"^::: \S+$"
NOT_PROSE = re.compile(
    "|".join((FRONT_MATTER, CODE_BLOCK, COMMENT, LINK_TARGET, ATTRIBUTES, ADDRESS, API_ENTRY, TAG)),
    re.MULTILINE | re.DOTALL,
)


def blank(match: re.Match) -> str:
    """The line breaks of a match, so that line numbers stay the same."""
    return " " + "\n" * match[0].count("\n")


def prose_of_markdown(text: str) -> str:
    """Markdown without what is not prose, with the same number of lines."""
    return re.sub(INLINE_CODE, blank, NOT_PROSE.sub(blank, text), flags=re.DOTALL)


def prose_of(path: Path) -> str:
    """The prose of a Markdown file, or of the Markdown cells of a notebook."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return prose_of_markdown(text)


def matches(pattern: str, prose: str) -> list[tuple[int, str]]:
    """Line number and text of every match; a space in the pattern also matches a line break."""
    spaced = pattern.replace(" ", r"\s+")
    return [
        (prose.count("\n", 0, match.start()) + 1, " ".join(match[0].split()))
        for match in re.finditer(spaced, prose, re.IGNORECASE)
    ]
