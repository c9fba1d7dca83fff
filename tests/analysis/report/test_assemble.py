"""Pictures are drawn once, and again when what they are made of changes."""

import dataclasses
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from study_models import study_model_of
from study_parts import EVERYTHING, model_like

from vit_tf import TokenGrid
from vit_tf.analysis.engine.store import digest_modules
from vit_tf.analysis.figures.figure import Figure, Picture, each, lookup_figures, plan_pictures
from vit_tf.analysis.papers.chapters import STRUCTURE
from vit_tf.analysis.papers.darcet import OUTLIERS
from vit_tf.analysis.papers.raghu import RAGHU
from vit_tf.analysis.papers.walmer.section4_attention import FIGURE_18
from vit_tf.analysis.plots.attention_plots import KIND_COLOURS, KINDS, hardly_repeats, one_kind
from vit_tf.analysis.report import drawing
from vit_tf.analysis.report.assemble import _timings, few_words

DRAWN = []  # no part of a function, with whose values pictures are keyed
MODEL = model_like("ViT", "vit")


@pytest.fixture
def draw(tmp_path):
    """Function that draws one picture, and the list of the keys of the results that were drawn."""
    DRAWN.clear()

    def figure(result):
        DRAWN.append([result.attrs["key"]])
        return plt.figure(figsize=(0.6, 0.4)).add_subplot()

    def run(key="a", title="Similarity"):
        figures = Figure(
            RAGHU, "1", STRUCTURE, "", each("vit"), None, figure, "cka", title, "Read it."
        )
        measured = {"ViT": SimpleNamespace(name="cka.vit")}
        picture = Picture(figures, (MODEL,), measured, single=True)
        result = xr.DataArray(0.0, attrs={"key": key})
        ((chapter, made),) = drawing.draw([[picture]], {"cka.vit": result}, tmp_path)
        assert chapter is STRUCTURE and made.results == ("results/cka.vit.nc",)
        (panel,) = made.panels
        assert panel.png.stat().st_size and panel.title == "ViT"
        assert made.alt == f"{title}. Read it."

    return run, DRAWN


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
    monkeypatch.setattr(drawing, "DRAWING", (tmp_path / "plots",))
    (tmp_path / "plots" / "deep").mkdir(parents=True)
    for width, count in ((1, 1), (1, 1), (2, 2)):
        (tmp_path / "plots" / "deep" / "lines.py").write_text(f"width = {width}")
        digest_modules.cache_clear()
        run()
        assert len(drawn) == count


def heads(kinds, directions=""):
    """Kinds of two heads in each of two layers, as `head_classes` gives them."""
    dims, shape = ("layer", "head"), np.zeros((2, 2), int)
    named = {"kind": np.array(kinds)[shape], "direction": np.array([directions])[shape]}
    if len(kinds) > 1:
        named["kind"][1, 1] = kinds[1]
    return xr.Dataset({name: (dims, values) for name, values in named.items()}, attrs={"key": "a"})


def test_patterns_that_hardly_repeat_are_a_sentence_and_others_a_picture():
    repetition = xr.DataArray([[[0.004, np.nan], [-0.01, 0.0251]]])
    result = xr.Dataset({"repetition": (("query", "layer", "layer_other"), repetition.values)})
    assert hardly_repeats({"A": result}) == (
        "Attention patterns hardly repeat between heads of A: the repetition of two layers is at "
        "most 0.025. It is 1 if all heads attend to the same token."
    )
    assert hardly_repeats({"A": 5 * result}) is None


def test_models_without_outlier_tokens_have_a_sentence():
    shares = [xr.Dataset({"share": ("layer", values)}) for values in ([0.0, 0.0], [0.0, 0.01])]
    assert OUTLIERS.instead({"A": shares[0]}) == "No token has an outlying norm in any layer of A."
    assert OUTLIERS.instead({"A": shares[1]}) is None


def test_the_names_of_few_models_are_listed_and_many_are_counted():
    assert few_words(["A", "B", "C", "D"]) == "A, B, C and D"
    assert few_words("ABCDE") == "5 models"


def test_short_steps_are_one_row_of_the_run_times():
    assert _timings({"cka": 12.5, "clustering": 0.4, "lens": 1.0, "filters": 0.25}) == [
        {"step": "cka", "seconds": 12.5},
        {"step": "lens", "seconds": 1.0},
        {"step": "2 other steps of less than 1 s each", "seconds": 0.65},
    ]


def test_heads_of_one_kind_are_a_sentence_and_others_a_picture(tmp_path):
    assert one_kind({"ViT": heads(["global"])}) == (
        "All 4 heads, of 2 layers, are of one type, global: they attend to the whole image."
    )
    assert "one type, axial (row): they attend along" in one_kind({"A": heads(["axial"], "row")})
    assert one_kind({"ViT": heads(["global", "soft"])}) is None
    assert set(KINDS) == set(KIND_COLOURS)

    def draw(*kinds):
        measured = {"ViT": SimpleNamespace(name="head_classes.vit")}
        figure = dataclasses.replace(FIGURE_18, name="kinds", caption="Read it.")
        results = {"head_classes.vit": heads(kinds)}
        ((_, made),) = drawing.draw(
            [[Picture(figure, (MODEL,), measured, single=True)]], results, tmp_path
        )
        return made, (tmp_path / "figures" / "kinds.png").exists()

    made, existing = draw("global", "soft")
    assert existing and made.panels[0].png.stat().st_size and made.caption == "Read it."
    made, existing = draw("global")
    assert not existing and not made.panels and made.caption.startswith("All 4 heads")
    assert made.results == ("results/head_classes.vit.nc",)


def test_captions_about_tokens_hold_for_models_with_cls_and_without():
    def model(name, prefix):
        taps = ("embedding", "block00/attention/weights", "block00/mlp/sum", "norm")
        role = "vit" if prefix else "gap"
        return study_model_of(name, role, name, taps, TokenGrid(4, 4, prefix, 8), None)

    with_cls, without = model("CLS", 1), model("GAP", 0)
    names = {"ridge-probe-tokens", "ridge-probe-variants", "knn-top-1", "saliency", "retrieval"}
    names |= {"linear-probe", "clusters"}

    def captions(*models):
        pictures, _ = plan_pictures(lookup_figures(), models, EVERYTHING)
        return {p.name: p.caption({}) for p in pictures if p.name in names}

    assert captions(without).keys() == captions(with_cls, without).keys() == names
    for caption in captions(without).values():
        assert "class token" not in caption and "the CLS token rises" not in caption
