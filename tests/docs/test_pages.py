"""Every block of Python on the pages of the documentation runs, page by page, as it stands."""

import os
import re
import runpy

import keras
import matplotlib.pyplot as plt
import pytest
from paths import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# A block with a title is a file that the reader writes; another test runs it.
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_of(page):
    """The blocks of a page as one program."""
    return "\n".join(BLOCK.findall(page.read_text("utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if code_of(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    program = tmp_path / f"{page.stem.replace('-', '_')}_page.py"
    program.write_text(code_of(page), "utf-8")
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    runpy.run_path(str(program))
    plt.close("all")
    keras.backend.clear_session()
    for picture in re.findall(r"savefig\(\"(.*?)\"\)", code_of(page)):
        assert os.path.getsize(picture) > 1000
