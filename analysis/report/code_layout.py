"""The code of a figure as a reader expects it: lines that fit a page, and double quotes."""

import io
import tokenize
from itertools import pairwise

WIDTH = 88  # letters of a line
INDENT = "    "


def lay_out(code: str) -> str:
    """Python code with its long lines broken at brackets, which computes the same.

    Comments stay as they are. Statements that have no brackets to break at stay long.
    """
    lines = [line for text in code.splitlines() for line in _broken(_double_quoted(text))]
    return "\n".join(lines)


def _double_quoted(line: str) -> str:
    """A line whose short strings are in double quotes."""
    parts, end = [], 0
    for token in _tokens(line):
        if token.type == tokenize.STRING and token.string[0] == "'" and '"' not in token.string:
            parts += [line[end : token.start[1]], f'"{token.string[1:-1]}"']
            end = token.end[1]
    return "".join(parts) + line[end:]


def _broken(line: str, last: str = "") -> list[str]:
    """A line, followed by the letters `last`, as lines that fit where brackets allow it."""
    if len(line + last) <= WIDTH or (pair := _outermost(line)) is None:
        return [line + last]
    start, end = pair
    indent = line[: len(line) - len(line.lstrip())] + INDENT
    body = line[start + 1 : end]
    inner = [indent + body]
    if len(inner[0]) > WIDTH:
        parts = _split(body)
        inner = [row for part, mark in parts for row in _broken(indent + part, mark)]
    return [line[: start + 1], *inner, line[: len(indent) - len(INDENT)] + line[end:] + last]


def _tokens(line: str) -> list[tokenize.TokenInfo]:
    """The tokens of a part of a line; none of a part that is no Python by itself."""
    try:
        return list(tokenize.generate_tokens(io.StringIO(line.strip("\n")).readline))
    except (tokenize.TokenError, IndentationError):
        return []


def _outermost(line: str) -> tuple[int, int] | None:
    """Where the last outermost pair of brackets opens and closes, if it holds something."""
    depth, start, pair = 0, 0, None
    offset = len(line) - len(line.lstrip())
    for token in _tokens(line.lstrip()):
        if token.type != tokenize.OP:
            continue
        if token.string in "([{":
            start = token.start[1] if depth == 0 else start
            depth += 1
        elif token.string in ")]}":
            depth -= 1
            if depth == 0 and token.start[1] > start + 1:
                pair = start + offset, token.start[1] + offset
    return pair


def _split(body: str) -> list[tuple[str, str]]:
    """What brackets hold as parts, one a line, each with the comma that follows it.

    The parts are the items between commas, or an expression and the `for` of a comprehension.
    """
    cuts, depth, is_comprehension = [], 0, False
    for token in _tokens(body):
        if token.type == tokenize.OP and token.string in "([{":
            depth += 1
        elif token.type == tokenize.OP and token.string in ")]}":
            depth -= 1
        elif depth == 0 and token.string == "for":
            cuts, is_comprehension = [token.start[1]], True
        elif depth == 0 and token.string == "," and not is_comprehension:
            cuts.append(token.end[1])
    bounds = [0, *cuts, len(body)]
    parts = [body[a:b].strip().rstrip(",") for a, b in pairwise(bounds)]
    return [(part, "" if is_comprehension or not cuts else ",") for part in parts if part]
