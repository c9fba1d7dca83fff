"""The notebooks run, with few images and little training, and are kept with their pictures."""

import runpy

import pytest
from paths import ROOT

DOCS = ROOT / "docs"
NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))


@pytest.fixture(scope="module")
def nbformat():
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("skimage", reason="scikit-image is not installed")
    return pytest.importorskip("nbformat", reason="nbformat is not installed")


def pictures(notebook):
    """How many outputs of a notebook are pictures."""
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    return sum("image/png" in out.get("data", {}) for out in outputs)


def test_there_are_four():
    assert len(NOTEBOOKS) == 4


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_and_has_its_pictures(path, nbformat):
    stored = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 500_000
    run = runpy.run_path(str(DOCS / "notebooks.py"))["executed"]
    again = run(path, quick=True)
    assert pictures(stored) == pictures(again) >= 4
    assert [cell.source for cell in again.cells[2:]] == [cell.source for cell in stored.cells[2:]]
