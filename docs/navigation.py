"""A hook of MkDocs: what the site lists of measurements is read from their pages and the stub.

A page `measurements/GROUP/NAME.md` is in the navigation, the index and the gallery; a name of
`analysis/__init__.pyi` is in the API page of its module. `python docs/navigation.py` writes index
and gallery into the repository, for those who read them there.
"""

import ast
import posixpath
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
GROUPS = {  # other groups follow
    "similarity": "Which layers, models and tokens are similar?",
    "attention": "Where do heads attend?",
    "flow": "How does information move?",
    "probes": "What can be decoded from each layer?",
    "objects": "Are objects found, and found again?",
}
ENTRIES = re.compile(r"(?:^::: \S+\n+)+", re.MULTILINE)
PAGE_LINK = re.compile(r'href="(?!\w+:)([^"#]+\.md)((?:#[^"]*)?)"')
LISTED = re.compile(r"(<!-- list: (\w+)(.*?) -->\n).*?(<!-- end of list -->)", re.DOTALL)
PAGE = re.compile(
    r"---\ncalls: (?P<call>\S+).*?\n(?:order: (?P<order>\d+)\n)?---\n"
    r"\s*# (?P<title>.+)\n\s*\*\*(?P<question>.+?\?)\*\*"
)
PICTURE = re.compile(r"^!\[(.+?)\]\((?:\.\./)*(pictures/\w+\.png)\)", re.MULTILINE)


class Measurement(NamedTuple):
    """What is listed of a page; a page without an order is the last of its group."""

    group: str
    order: int
    title: str
    question: str
    call: str
    path: str
    pictures: tuple
    code: bool


def measurements():
    """The measurements by group, in the order of their pages."""
    pages = [_read(path) for path in DOCS.glob("measurements/*/*.md")]
    groups = {group: [] for group in GROUPS}
    for page in sorted(pages):
        groups.setdefault(page.group, []).append(page)
    return groups


def _read(path):
    text = path.read_text("utf-8")
    if not (fields := PAGE.match(text)):
        raise ValueError(
            f"Expected {path} to begin with `calls:` between lines of ---, a heading and a "
            f"question in bold type. Received: {text[:80]!r}"
        )
    return Measurement(
        path.parent.name,
        int(fields["order"] or 1000),
        fields["title"],
        fields["question"],
        fields["call"],
        path.relative_to(DOCS).as_posix(),
        tuple(PICTURE.findall(text)),
        "\n## Code\n" in text,
    )


def questions():
    """A table for each group: the question of a page and the call that answers it."""
    for group, pages in measurements().items():
        yield f"## {group.title()}\n\n| question | call |\n| --- | --- |\n" + "".join(
            f"| [{page.question}]({page.path.partition('/')[2]}) | `analysis.{page.call}` |\n"
            for page in pages
        )


def pictures():
    """The pictures of all pages by the question of their group, each a link to its page."""
    for group, pages in measurements().items():
        cards = ""
        for page in pages:
            for caption, picture in page.pictures:
                text = f"[{caption}]({page.path}#code)" if page.code else caption
                cards += f"- [![{caption}]({picture})]({page.path})\n\n    {text}\n\n"
        heading = f"## {GROUPS.get(group, group.title())}"
        yield f'{heading}\n\n<div class="grid cards small" markdown>\n\n{cards}</div>\n'


def names(*modules):
    """The public names of modules or subpackages of `analysis`, in the order of the stubs."""
    listed = set()
    for group in ("", "engine.", "plots."):
        folder = DOCS.parent / "analysis" / group.rstrip(".")
        stub = ast.parse((folder / "__init__.pyi").read_text("utf-8"))
        for line in (line for line in stub.body if isinstance(line, ast.ImportFrom)):
            for name in line.names:
                is_new = line.module and name.asname not in listed  # which a group may repeat
                listed.add(name.asname)
                place = f"{group}{line.module}."
                if is_new and any(place.startswith(f"{module}.") for module in modules):
                    yield f"::: analysis.{group}{name.asname}\n"


def fill(text):
    """The text of a page with its lists."""
    lists = {"questions": questions, "pictures": pictures, "names": names}

    def filled(match):
        begin, name, arguments, end = match.groups()
        return "\n".join([begin, *lists[name](*arguments.split()), end])

    return LISTED.sub(filled, text)


def with_summaries(markdown):
    """An API page with a table of names and first sentences before each run of entries."""

    def table(run):
        paths = re.findall(r"::: (\S+)", run[0])
        rows = [f"| [`{path.rpartition('.')[2]}`][{path}] | {summary(path)} |\n" for path in paths]
        return "| name | description |\n| --- | --- |\n" + "".join(rows) + "\n" + run[0]

    return ENTRIES.sub(table, f"{markdown}\n")


def summary(path):
    """The first sentence of the docstring of a public name, given as API pages give it."""
    package, _, name = path.rpartition(".")
    root = DOCS.parent
    stub_path = root.joinpath(*package.split("."), "__init__.pyi")
    if stub_path.exists():
        stub = ast.parse(stub_path.read_text("utf-8"))
        for line in (line for line in stub.body if isinstance(line, ast.ImportFrom)):
            for alias in line.names:
                if (alias.asname or alias.name) == name and line.module:
                    package, name = f"{package}.{line.module}", alias.name
    folder = root.joinpath(*package.split("."))
    modules = [folder / name / "__init__.py", folder / f"{name}.py"]
    files = [*modules, folder.with_suffix(".py"), folder / "__init__.py"]
    for tree in (ast.parse(file.read_text("utf-8")) for file in files if file.exists()):
        # The page states what runs, and not what type checkers alone see.
        nodes = [
            n for node in tree.body for n in (node.orelse if isinstance(node, ast.If) else [node])
        ]
        for node in nodes:
            imported = (
                [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            )
            if name in imported and not node.level:
                return summary(f"{node.module}.{name}")
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                return _first_sentence(node)
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return f"`{ast.unparse(node.value)}`."
        if any(module.exists() for module in modules):
            return _first_sentence(tree)
    raise ValueError(f"Expected a public name. Received: {path}")


def _first_sentence(node):
    sentence = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    return sentence.replace("|", "\\|")


def on_config(config):
    (menu,) = [entry["Measurements"] for entry in config.nav if "Measurements" in entry]
    menu[1:1] = [  # after the index
        {group.title(): [page.path for page in pages]} for group, pages in measurements().items()
    ]
    version = re.search(
        r'__version__ = "(.+)"', (DOCS.parent / "vit_tf/__init__.py").read_text("utf-8")
    )
    config.copyright = f"vit_tf {version[1]}"
    # The repository link of the header, where the checkout was cloned from a public address.
    git = ["git", "-C", str(DOCS), "config", "--get", "remote.origin.url"]
    origin = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    if origin.startswith("https://"):
        config.repo_url = origin.removesuffix(".git")
    return config


def on_page_markdown(markdown, page=None, **more):
    markdown, source = fill(markdown), page.file.src_uri if page else ""
    return with_summaries(markdown) if source.startswith("api/") else markdown


def on_page_content(html, page, config, files):
    """Links of notebooks lead to pages: MkDocs itself resolves only those in Markdown."""
    source = page.file.src_uri
    if not source.endswith(".ipynb"):
        return html

    def resolved(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        linked = files.get_file_from_path(target)
        if linked is None:
            raise ValueError(f"Expected links of {source} to lead to pages. Received: {match[1]}")
        return f'href="{linked.url_relative_to(page.file)}{match[2]}"'

    return PAGE_LINK.sub(resolved, html)


def update_lists():
    """Writes the index and the gallery, as they are read in the repository."""
    for page in (DOCS / "measurements/index.md", DOCS / "gallery.md"):
        page.write_text(fill(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    update_lists()
