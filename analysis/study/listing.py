"""Lists the figures of papers as their modules define them, without importing these modules.

To import them takes seconds, since they import the measurements and TensorFlow.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeAlias, cast

PAPERS = Path(__file__).resolve().parents[1] / "papers"
# The arguments of a `Paper` or `Figure`, or of the figure that it is a variant of.
Fields: TypeAlias = dict[str, Any]
# The functions that make a `Selector`. Their `roles` and `others` are texts or tuples of these.
SELECTORS = ("each", "split", "together", "pairs", "group")


@dataclass(frozen=True)
class ListedFigure:
    """What a table of figures shows of one: `choices`, `shows` and `models.all_roles`."""

    choices: tuple[str, ...]
    shows: str
    roles: tuple[str, ...]


def choices_of(prefix: str, numbers: str, also: str = "") -> tuple[str, ...]:
    """The numbers that select a figure, such as `("W.3", "W.14")`."""
    prefixed = [n if n.islower() else f"{prefix}{n}" for n in numbers.split()]
    return (*prefixed, *also.split())


def listed_figures(folder: Path = PAPERS) -> list[ListedFigure] | None:
    """The figures that the modules of a folder define, in the order of `all_figures`.

    None where a definition is not written as a call of `Figure`, `Paper` or `variant` at the top
    of a module, with texts as arguments, or its models not as a call of one of `SELECTORS`: its
    values are known when the module is imported.
    """
    trees = [ast.parse(path.read_text("utf-8")) for path in _modules(folder)]
    known, figures = {}, []
    try:
        # A module may import a paper, or a tuple of roles, from a later one.
        for tree in trees:
            known |= _definitions(tree, {"Paper"}, known) | _tuples(tree, known)
        for tree in trees:
            of_module = _definitions(tree, {"Figure", "variant"}, {**known, **_tuples(tree, known)})
            figures += of_module.values()
            known |= of_module
    except (KeyError, ValueError):
        return None
    num_made = sum(
        _constructor(node) in ("Figure", "variant") for t in trees for node in ast.walk(t)
    )
    if num_made != len(figures):
        return None
    figures.sort(key=lambda fields: (fields["paper"].get("rank", 100), fields["paper"]["name"]))
    return [
        ListedFigure(
            choices_of(f["paper"]["prefix"], f["numbers"], f.get("also", "")),
            f["shows"],
            f["models"],
        )
        for f in figures
    ]


def _modules(folder: Path) -> Iterator[Path]:
    """The files of a package in the order of `pkgutil.walk_packages`, which imports packages."""
    for module in iter_modules([str(folder)]):
        if module.ispkg:
            yield folder / module.name / "__init__.py"
            yield from _modules(folder / module.name)
        else:
            yield folder / f"{module.name}.py"


def _definitions(
    tree: ast.Module, constructors: set[str], known: Mapping[str, Any]
) -> dict[str, Fields]:
    """What the calls of some constructors at the top of a module define, by name."""
    defined = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        if isinstance(node.value, ast.Call) and _constructor(node.value) in constructors:
            defined[node.targets[0].id] = _fields_of(node.value, {**known, **defined})
    return defined


def _tuples(tree: ast.Module, known: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The tuples of texts at the top of a module, by name."""
    tuples = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                if isinstance(node.value, ast.Tuple):
                    tuples[node.targets[0].id] = tuple(_texts(node.value.elts, {**known, **tuples}))
            except (KeyError, ValueError):
                continue  # of other values, which are no roles
    return tuples


def _texts(nodes: Iterable[ast.expr], known: Mapping[str, Any]) -> Iterator[str]:
    """The texts that some expressions are: literals, tuples of these and names of tuples."""
    for node in nodes:
        if isinstance(node, ast.Starred):
            node = node.value
        if isinstance(node, ast.Tuple):
            yield from _texts(node.elts, known)
        elif isinstance(node, ast.Name):
            yield from known[node.id]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        else:
            raise ValueError(f"Expected a text or a tuple of texts. Received: {ast.unparse(node)}")


def _constructor(node: ast.AST) -> str | None:
    """`"Figure"`, `"Paper"` or `"variant"` for a call of one of these."""
    if not isinstance(node, ast.Call):
        return None
    name = getattr(node.func, "id", getattr(node.func, "attr", None))
    return name if name in ("Figure", "Paper", "variant") else None


def _fields_of(node: ast.Call, known: Mapping[str, Any]) -> Fields:
    """What is known of a figure or paper before it is made."""
    constructor = _constructor(node)
    given: dict[str, Any] = {word.arg: word.value for word in node.keywords if word.arg}
    if constructor == "Paper":
        positional = zip(("name", "address", "prefix", "rank"), node.args, strict=False)
        given = {**dict(positional), **given}
        return {name: ast.literal_eval(value) for name, value in given.items()}
    fields = dict(known[cast(Any, node.func).value.id]) if constructor == "variant" else {}
    if "paper" in given:
        fields["paper"] = known[given["paper"].id]
    if models := given.get("models"):
        if getattr(getattr(models, "func", None), "id", None) not in SELECTORS:
            raise ValueError(f"Expected a call of {SELECTORS}. Received: {ast.unparse(models)}")
        named = [word.value for word in models.keywords if word.arg in ("roles", "others")]
        fields["models"] = tuple(_texts([*models.args, *named], known))
    texts = given.keys() & {"numbers", "shows", "also"}
    return fields | {name: ast.literal_eval(given[name]) for name in texts}
