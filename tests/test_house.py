"""The structure of the package, computed from its files and imports."""

import ast
import configparser
import functools
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from paths import ROOT

PACKAGES = (ROOT / "analysis", ROOT / "vit_tf")
SOURCES = [path for folder in ("analysis", "vit_tf") for path in (ROOT / folder).rglob("*.py")]
SCRIPTS = list((ROOT / "scripts").rglob("*.py"))


def package_of(path):
    """The parts of a file's package, below `vit_tf`."""
    parts = path.relative_to(ROOT).parent.parts
    return parts if parts[0] in ("analysis", "scripts") else parts[1:]


@functools.cache
def nodes_of(path):
    """All nodes of the syntax tree of a file."""
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


@functools.cache
def imports_of(path):
    """The modules of this package that a file imports: tuples of parts below `vit_tf`."""
    actual = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            actual |= {tuple(name.name.split(".")) for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                package = ("vit_tf", *package_of(path))
                module = package[: len(package) - node.level + 1] + module
            actual |= {(*module, name.name) for name in node.names}
    return {parts[1:] for parts in actual if parts[0] == "vit_tf"}


@functools.cache
def module_of(parts):
    """The file of a module, or of the package that a name is imported from; None for neither."""
    folder = ROOT / "analysis" if parts[:1] == ("analysis",) else ROOT / "vit_tf"
    parts = parts[1:] if parts[:1] == ("analysis",) else parts
    while parts:
        named = folder.joinpath(*parts)
        for path in (named.with_suffix(".py"), named / "__init__.py"):
            if path.exists():
                return path
        parts = parts[:-1]
    return None


@functools.cache
def arrows_between_modules():
    """dict from each file to the files that it imports, in functions too."""
    return {
        path: {module_of(parts) for parts in imports_of(path)} - {None, path} for path in SOURCES
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_subpackages_have_no_cycle_and_few_arrows(package):
    assert {path.name for path in package.glob("*.py")} <= {"__init__.py", "__main__.py"}
    arrows = {path.name: set() for path in package.iterdir() if (path / "__init__.py").exists()}
    for path, imported in arrows_between_modules().items():
        for other in imported:
            if path.is_relative_to(package) and other.is_relative_to(package):
                start, end = (p.relative_to(package).parts[0] for p in (path, other))
                if start in arrows and end in arrows and start != end:
                    arrows[start].add(end)
    TopologicalSorter(arrows).prepare()  # a CycleError for a circle
    # Plain values, which import no other package, may be used anywhere.
    plain = {"statistics"} & set(arrows)
    assert not any(arrows[name] for name in plain)
    assert sum(len(ends - plain) for ends in arrows.values()) <= 26


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_folder_has_a_public_name(package):
    """An imported subpackage is an attribute of its package, in place of a function of its name."""
    stub = ast.parse((package / "__init__.pyi").read_text("utf-8"))
    lines = [line for line in stub.body if isinstance(line, ast.ImportFrom) and line.module]
    names = {name.asname for line in lines for name in line.names}
    assert not names & {path.name for path in package.iterdir() if path.is_dir()}


def test_modules_have_no_cycle():
    inside = {
        path: {other for other in imported if other.name != "__init__.py"}
        for path, imported in arrows_between_modules().items()
        if path.name != "__init__.py"
    }
    TopologicalSorter(inside).prepare()


def test_models_and_training_do_not_import_analysis():
    for path in (ROOT / "vit_tf").rglob("*.py"):
        if path != ROOT / "vit_tf" / "__init__.py":
            assert not any(parts[:1] == ("analysis",) for parts in imports_of(path)), path


def test_only_main_imports_the_scripts():
    for path in SOURCES:
        if path != ROOT / "vit_tf" / "__main__.py":
            assert not any(parts[:1] == ("scripts",) for parts in imports_of(path)), path


def test_scripts_compute_nothing():
    for path in (ROOT / "scripts").glob("*.py"):
        assert not re.search(r"^ *(import|from) numpy", path.read_text("utf-8"), re.M), path


def test_plots_load_neither_tensorflow_nor_scripts():
    code = "import sys, vit_tf.analysis.plots as plots, vit_tf.analysis.report.rendering; "
    code += "[getattr(plots, name) for name in plots.__all__]; "  # each imports its module
    code += "sys.exit(bool({'tensorflow', 'vit_tf.scripts'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_every_folder_of_the_package_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    named = set(config["options"]["packages"].split())
    folders = {path.parent.relative_to(ROOT).parts for path in SOURCES + SCRIPTS}
    existing = {(*([] if parts[0] == "vit_tf" else ["vit_tf"]), *parts) for parts in folders}
    assert named == {".".join(parts) for parts in existing}


def test_tests_run_without_further_packages():
    """Of these, the README's environment has none: a file that needs one skips itself."""
    further = {"torch", "torchvision", "timm", "transformers", "open_clip", "keras_hub", "jax"}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not further & {name.split(".")[0] for name in names}, path
