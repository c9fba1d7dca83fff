"""Pictures are drawn once, and again when what they are made of changes."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from vit_tf import TokenGrid
from vit_tf.analysis import drawing, figure_rows, pictures, plots, walmer_rows
from vit_tf.analysis.figure_rows import Row
from vit_tf.analysis.papers import RAGHU
from vit_tf.analysis.plots.attention import KIND_COLOURS
from vit_tf.analysis.subjects import Subject

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


def heads(kinds, directions=""):
    """Kinds of two heads in each of two layers, as `head_classes` gives them."""
    dims, shape = ("layer", "head"), np.zeros((2, 2), int)
    named = {"kind": np.array(kinds)[shape], "direction": np.array([directions])[shape]}
    if len(kinds) > 1:
        named["kind"][1, 1] = kinds[1]
    return xr.Dataset({name: (dims, values) for name, values in named.items()}, attrs={"key": "a"})


def test_heads_of_one_kind_are_a_sentence_and_others_a_picture(tmp_path):
    assert drawing.one_kind({"ViT": heads(["global"])}) == (
        "All 4 heads, of 2 layers, are of one kind, global: they look everywhere in the image."
    )
    assert "one kind, axial (row): they look along" in drawing.one_kind(
        {"A": heads(["axial"], "row")}
    )
    assert drawing.one_kind({"ViT": heads(["global", "soft"])}) is None
    assert set(drawing.KINDS) == set(KIND_COLOURS)

    def draw(*kinds):
        result = {"head_classes.vit": heads(kinds)}
        wanted = {"ViT": SimpleNamespace(name="head_classes.vit")}
        plot = drawing.alone(plots.plot_head_classes)
        row = Row("kinds", "Kinds", "Read it.", wanted, plot, instead=drawing.one_kind)
        ((_, made),) = pictures.draw([(ENTRY, row)], result, tmp_path)
        return made, (tmp_path / "figures" / "kinds.png").exists()

    made, there = draw("global", "soft")
    assert there and made.png.stat().st_size and made.caption == "Read it."
    made, there = draw("global")
    assert not there and made.png is None and made.caption.startswith("All 4 heads")
    assert made.results == ["results/head_classes.vit.nc"]


def test_captions_speak_of_cls_only_where_a_model_has_it():
    def subject(name, prefix):
        taps = ("embedding", "block00/attention/weights", "block00/mlp/sum", "norm")
        grid = TokenGrid(4, 4, prefix, 8)
        role = "vit" if prefix else "gap"
        return Subject(name, role, name, taps, grid, None)

    with_cls, without = subject("CLS", 1), subject("GAP", 0)
    functions = (
        figure_rows.probes_by_token,
        figure_rows.probes_by_aggregation,
        walmer_rows.neighbours,
        walmer_rows.salient_attention,
        walmer_rows.landmarks_retrieved,
        walmer_rows.probes_by_descent,
    )
    for rows in functions:
        first, *_ = rows([without])
        assert "CLS" not in first.caption and "class token" not in first.caption
        first, *_ = rows([with_cls, without])
        assert "CLS" in first.caption
