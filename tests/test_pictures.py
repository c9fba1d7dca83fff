"""Pictures are drawn once, and again when what they are made of changes."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import xarray as xr

from vit_tf.analysis.papers.figure_rows import Row
from vit_tf.analysis.papers.papers import RAGHU
from vit_tf.analysis.study import pictures

ENTRY = SimpleNamespace(section="structure", paper="Figure 1", source=RAGHU)


@pytest.fixture
def draw(tmp_path):
    """Function that draws one picture, and the list of the keys of the results that were drawn."""
    drawn = []

    def figure(results):
        drawn.append([result.attrs["key"] for result in results.values()])
        return plt.figure(figsize=(0.6, 0.4))

    def run(key="a", title="Similarity"):
        row = Row("cka", title, "Read it.", {"ViT": SimpleNamespace(name="cka.vit")}, figure)
        result = xr.DataArray(0.0, attrs={"key": key})
        ((section, made),) = pictures.draw([(ENTRY, row)], {"cka.vit": result}, tmp_path)
        assert section == "structure" and made.results == ["results/cka.vit.nc"]
        assert made.png.stat().st_size and made.alt == f"{title}. Read it."

    return run, drawn


def test_a_picture_is_drawn_again_only_for_another_result_or_title(draw):
    run, drawn = draw
    run()
    run()
    assert drawn == [["a"]]
    run(key="b")
    run(key="b", title="Likeness")
    assert drawn == [["a"], ["b"], ["b"]]


def test_a_picture_is_drawn_again_when_the_code_that_draws_changes(draw, tmp_path, monkeypatch):
    run, drawn = draw
    run()
    package = tmp_path / "package"
    (package / "plots").mkdir(parents=True)
    (package / "plots" / "lines.py").write_text("width = 1")
    (package / "drawing.py").write_text("")
    monkeypatch.setattr(pictures, "files", lambda _: package)
    for width, count in ((1, 2), (1, 2), (2, 3)):
        (package / "plots" / "lines.py").write_text(f"width = {width}")
        pictures.drawing_code.cache_clear()
        run()
        assert len(drawn) == count
    monkeypatch.undo()
    pictures.drawing_code.cache_clear()
