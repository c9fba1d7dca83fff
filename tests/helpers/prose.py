"""The prose of Markdown files, notebooks, sources and templates, without what is code."""

import functools
import io
import json
import re
import tokenize
from pathlib import Path

FRONT_MATTER = r"\A---\n.*?\n---\n"
CODE_BLOCK = r"^[ ]*```.*?^[ ]*```[ ]*$"
INLINE_CODE = r"(`+)(?!`).+?(?<!`)\1(?!`)"
COMMENT = r"<!--.*?-->"
TAG = r"</?[a-z][^>\n]*>"
LINK_TARGET = r"(?<=\])\([^)\n]*\)"
ATTRIBUTES = r"(?<=\))\{[^}\n]*\}"
ADDRESS = r"https?://\S+"
API_ENTRY = r"^::: \S+$"
ARGUMENT = r"^[ ]+\w+(?:, \w+)*: "
AXES = r"\(\w+(?:, [\w*.]+)+\)"
NOT_PROSE = re.compile(
    "|".join((FRONT_MATTER, COMMENT, LINK_TARGET, ATTRIBUTES, ADDRESS, API_ENTRY, TAG)),
    re.MULTILINE | re.DOTALL,
)
NAMES = re.compile("|".join((ARGUMENT, AXES)), re.MULTILINE)


def blank(match: re.Match) -> str:
    """The line breaks of a match, so that line numbers stay the same."""
    return " " + "\n" * match[0].count("\n")


def comments(match: re.Match) -> str:
    """A block of code without its code: a comment, or an empty line, for each line."""
    found = [re.search(r"(?:^|  )# (.*)$", line) for line in match[0].split("\n")]
    return "\n".join(comment[1] if comment else "" for comment in found)


def prose_of_markdown(text: str) -> str:
    """Markdown without what is not prose, with the same number of lines."""
    text = re.sub(CODE_BLOCK, comments, text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(INLINE_CODE, blank, NOT_PROSE.sub(blank, text), flags=re.DOTALL)


def prose_of_python(text: str) -> str:
    """Comments and strings with a space of a Python source, each on its own lines.

    Names are left out: those in backticks, in braces of f-strings, of arguments and of axes.
    Lines of examples are left out as well.
    """
    rows = [""] * (text.count("\n") + 2)
    middle = getattr(tokenize, "FSTRING_MIDDLE", None)  # from Python 3.12
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        prose = token.string
        if token.type not in (tokenize.STRING, tokenize.COMMENT, middle):
            continue
        if re.match(r"[rR]?[fF]", prose) and token.type == tokenize.STRING:
            prose = re.sub(r"\{[^{}]*\}", blank, prose)
        if token.type == tokenize.STRING:
            prose = re.sub(r"^[a-zA-Z]*(\"{3}|'{3}|[\"'])|(\"{3}|'{3}|[\"'])$", "", prose)
        if " " not in prose:
            continue
        prose = NAMES.sub(blank, prose_of_markdown(prose))
        for row, line in enumerate(prose.split("\n"), token.start[0]):
            if not line.lstrip().startswith((">>>", "...")):
                rows[row] += " " + line.strip("# ")
    return "\n".join(rows[1:])


def prose_of_template(text: str) -> str:
    """Text of an HTML page, or comments and strings with a space of a JavaScript or CSS file."""
    if "<html" in text or "<head" in text or "<body" in text or "<!--" in text:
        return re.sub(r"<[^>]*>|\{\{.*?\}\}|\{%.*?%\}", blank, text, flags=re.DOTALL)
    parts = r"/\*.*?\*/|(?<!:)//[^\n]*|`[^`]*`|\"[^\"\n]* [^\"\n]*\"|'[^'\n]* [^'\n]*'"
    kept, end = [], 0
    for match in re.finditer(parts, text, re.DOTALL):
        kept += ["\n" * text.count("\n", end, match.start()), " ", match[0]]
        end = match.end()
    return "".join(kept)


@functools.cache
def prose_of(path: Path) -> str:
    """The prose of a file: of Markdown, of a notebook's Markdown cells, of a source, a template."""
    text = path.read_text("utf-8")
    if path.suffix in (".py", ".pyi"):
        return prose_of_python(text)
    if path.suffix in (".html", ".js", ".css"):
        return prose_of_template(text)
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
