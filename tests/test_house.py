"""The structure of the package, computed from its files and imports."""

import ast
import configparser
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from paths import ROOT

ANALYSIS = ROOT / "analysis"
SOURCES = [path for folder in ("analysis", "vit_tf") for path in (ROOT / folder).rglob("*.py")]
SCRIPTS = list((ROOT / "scripts").rglob("*.py"))


def package_of(path):
    """The parts of a file's package, below `vit_tf`."""
    parts = path.relative_to(ROOT).parent.parts
    return parts if parts[0] in ("analysis", "scripts") else parts[1:]


def imports_of(path):
    """The modules of this package that a file imports: tuples of parts below `vit_tf`."""
    actual = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            actual |= {tuple(name.name.split(".")) for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                package = ("vit_tf", *package_of(path))
                module = package[: len(package) - node.level + 1] + module
            actual |= {(*module, name.name) for name in node.names}
    return {parts[1:] for parts in actual if parts[0] == "vit_tf"}


@pytest.fixture(scope="module")
def packages():
    """dict from a package of `analysis/` to the set of packages that it imports from."""
    names = {path.name for path in ANALYSIS.iterdir() if (path / "__init__.py").exists()}
    arrows = {name: set() for name in names}
    for path in ANALYSIS.glob("*/**/*.py"):
        package = path.relative_to(ANALYSIS).parts[0]
        for parts in imports_of(path):
            if parts[:1] == ("analysis",) and len(parts) > 1 and parts[1] in names - {package}:
                arrows[package].add(parts[1])
    return arrows


def test_packages_of_analysis_have_no_cycle_and_few_arrows(packages):
    assert [path.name for path in ANALYSIS.glob("*.py")] == ["__init__.py"]
    TopologicalSorter(packages).prepare()  # a CycleError for a circle
    assert sum(map(len, packages.values())) <= 30


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
