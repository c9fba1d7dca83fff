"""Pictures are drawn once, and again when what they are made of changes."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import xarray as xr

from vit_tf.analysis.papers.chapters import STRUCTURE
from vit_tf.analysis.papers.raghu import RAGHU
from vit_tf.analysis.study import assemble
from vit_tf.analysis.study.figure import Figure, Selection, each
from vit_tf.analysis.study.plan import Picture

MODEL = SimpleNamespace(name="ViT", slug="vit", of=None)


@pytest.fixture
def draw(tmp_path):
    """Function that draws one picture, and the list of the keys of the results that were drawn."""
    drawn = []

    def figure(result):
        drawn.append([result.attrs["key"]])
        return plt.figure(figsize=(0.6, 0.4))

    def run(key="a", title="Similarity"):
        figures = Figure(
            RAGHU, "1", STRUCTURE, "", each("vit"), None, figure, "cka", title, "Read it."
        )
        of = Selection((MODEL,), {"ViT": SimpleNamespace(name="cka.vit")}, alone=True)
        picture = Picture(figures, of)
        result = xr.DataArray(0.0, attrs={"key": key})
        ((chapter, made),) = assemble.draw([picture], {"cka.vit": result}, tmp_path)
        assert chapter is STRUCTURE and made.results == ["results/cka.vit.nc"]
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
    package.mkdir()
    monkeypatch.setattr(assemble, "files", lambda _: package)
    for width, count in ((1, 2), (1, 2), (2, 3)):
        (package / "lines.py").write_text(f"width = {width}")
        assemble.drawing_code.cache_clear()
        run()
        assert len(drawn) == count
    monkeypatch.undo()
    assemble.drawing_code.cache_clear()
