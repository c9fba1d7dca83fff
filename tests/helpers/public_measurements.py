"""The public measurements: functions of the stub that measure something of a model."""

import ast
from pathlib import Path

from vit_tf import analysis

PACKAGES = ("similarity", "heads", "flow", "probes", "objects")


def public_measurements():
    """Names of the public functions of `PACKAGES`, without those of statistics."""
    stub = ast.parse(Path(analysis.__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    assert {node.module.split(".")[0] for node in imports} >= set(PACKAGES)
    names = [a.name for n in imports if n.module.split(".")[0] in PACKAGES for a in n.names]
    return sorted(name for name in names if name[0].islower() and not name.endswith("_statistic"))
