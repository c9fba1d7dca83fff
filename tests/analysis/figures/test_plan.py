"""Which taps serve which measurement, and what figures say that models lack."""

import dataclasses

import numpy as np
import pytest
from study_models import study_model_of
from study_parts import EVERYTHING

from vit_tf import TokenGrid
from vit_tf.analysis.figures.data import Data
from vit_tf.analysis.figures.figure import (
    all_figures,
    by_figure,
    lookup_figures,
    plan_pictures,
    select_pictures,
    without_failures,
)
from vit_tf.analysis.figures.models import NotApplicable
from vit_tf.analysis.papers.raghu.section7_tokens import localization_of, ridge_probe_of
from vit_tf.features.structure import spread

IMAGES_ONLY = Data(*["there"] * 4, 10)


def model(name, shapes, grid=None, size=(32, 32)):
    """A model of the user; nothing is measured on it."""
    return study_model_of(
        name, "model", name, tuple(shapes), grid, None, shapes=shapes, image_size=size
    )


CNN_SHAPES = {
    "conv": (16, 16, 4),
    "split": (64, 2, 4),  # heads, not rows and columns
    "down": (8, 8, 8),
    "relu": (8, 8, 8),
    "pool": (8,),
}
CNN = model("CNN", CNN_SHAPES, TokenGrid(8, 8, 0, 4))
TOKEN_SHAPES = {"patches": (8, 8, 4)} | {f"layer{i}": (65, 4) for i in range(6)} | {"pooled": (4,)}
TOKENS = model("Tokens", TOKEN_SHAPES, TokenGrid(8, 8, 1, 4))
PLACELESS = model("Placeless", TOKEN_SHAPES)
VIT_SHAPES = {
    "embedding": (65, 4),
    "block00/attention/weights": (2, 65, 65),
    "block00/attention/heads": (65, 2, 2),
    "block00/attention/skip": (65, 4),
    "block00/attention/branch": (65, 4),
    "block00/attention/sum": (65, 4),
    "pooled": (4,),
}
VIT = model("ViT", VIT_SHAPES, TokenGrid(8, 8, 1, 4))

NO_SKIPS = model(
    "Bare",
    {tap: shape for tap, shape in VIT_SHAPES.items() if not tap.endswith("/skip")},
    TokenGrid(8, 8, 1, 4),
)
FIRST = dataclasses.replace(VIT, name="First", first_layer=("patch_kernel",))
NO_POSITIONS = ["First has no known position embedding."]
OBLONG = model("Oblong", VIT_SHAPES, TokenGrid(4, 16, 1, 4))
ONE_MODEL = "It compares two models, but only one was given: add a second one."


def test_spread_keeps_both_ends_and_even_steps():
    assert spread(list(range(9)), 3) == [0, 4, 8]
    assert spread("abc", 3) == ["a", "b", "c"]
    steps = np.diff(spread(list(range(154)), 40))
    assert len(steps) == 39 and set(steps) <= {3, 4, 5}


def test_taps_of_models_whose_structure_is_not_known():
    assert CNN.layers("representations", "blocks") == ["conv", "split", "down", "relu"]
    assert CNN.layers("tokens") == ["down", "relu"] and not CNN.has_tokens
    layers = [f"layer{i}" for i in range(6)]
    assert TOKENS.layers("tokens") == layers and TOKENS.has_tokens
    assert TOKENS.layers("outputs") == [*layers, "pooled"]  # a map has no CLS
    assert TOKENS.layers("representations", 2) == ["patches", "pooled"]
    with pytest.raises(NotApplicable, match="Placeless has no representations on a known grid"):
        PLACELESS.layers("tokens")


def test_taps_of_the_grammar_end_blocks_where_it_says():
    assert VIT.blocks == ["embedding", "block00/attention/sum"]
    assert VIT.layers("representations", "sublayers") == [
        "embedding",
        "block00/attention/branch",
        "block00/attention/sum",
        "pooled",
    ]
    assert VIT.layers("embedding", "middle") == ["block00/attention/sum", VIT.weights[0]]
    assert VIT.layers("embedding") == ["embedding", VIT.weights[0]]
    hybrid = {"root": (16, 16, 4), "stage1/unit01/sum": (8, 8, 4), "block00/mlp/sum": (65, 4)}
    stem = model("Hybrid", hybrid, TokenGrid(8, 8, 1, 4))
    assert stem.stages == []
    assert localization_of(stem).taps == (("block00/mlp/sum",),)
    assert stem.layers("representations", "sums") == list(hybrid)[1:]
    with pytest.raises(ValueError, match="Did you mean blocks"):
        VIT.layers("tokens", "block")
    with pytest.raises(ValueError, match="'lower'"):
        VIT.layers("attention", "lower")


def test_figures_of_tokens_read_the_layers_on_the_grid():
    assert localization_of(TOKENS).taps == (tuple(f"layer{i}" for i in range(6)),)
    assert ridge_probe_of(TOKENS).taps[0] == tuple(TOKEN_SHAPES)[:-1]
    assert ridge_probe_of(TOKENS, "each").taps[0][0] == "layer0"


def drawn(models, *numbers, data=EVERYTHING):
    return [picture.name for picture in plan_pictures(lookup_figures(numbers), models, data)[0]]


def why_not(models, number, data=EVERYTHING):
    _, left_out = plan_pictures(lookup_figures([number]), models, data)
    return [sentence for _, sentences in left_out for sentence in sentences]


@pytest.mark.parametrize(
    "models, number, pictures, reasons",
    [
        ([CNN], "1", ["cka-cnn"], []),
        ([CNN], "2", [], [ONE_MODEL]),
        ([CNN, VIT], "2", ["cka-cnn-vit"], []),
        ([CNN], "3", [], ["CNN has no attention weights."]),
        ([CNN, VIT], "3", ["attention-distance"], ["CNN has no attention weights."]),
        ([CNN, VIT], "5", ["head-similarity-vit-cnn"], []),
        ([CNN], "6", ["receptive-field-cnn"], []),
        ([CNN, VIT], "C.4", ["receptive-field-branch-vit"], None),
        ([VIT], "7", ["skip-ratio-vit", "skip-ratio"], []),
        (
            [CNN],
            "8",
            [],
            [
                "It needs models trained without the skips of a block, which vit-tf study --full "
                "trains."
            ],
        ),
        ([CNN], "9", ["localization-cnn", "localization-depth-cnn"], []),
        ([PLACELESS], "9", [], None),
        ([CNN], "11", ["ridge-probe-tokens", "ridge-probe-map-cnn"], []),
        ([PLACELESS], "13", ["ridge-probe"], []),
        ([TOKENS, PLACELESS], "G.1", ["counterparts"], []),
        ([VIT], "W.15", ["attention-distance-depth"], []),
        ([FIRST], "V.7", ["attention-distance-depth", "patch-filters-first"], NO_POSITIONS),
        ([CNN], "rollout", [], ["CNN has no attention weights and skips."]),
        ([VIT], "rollout", ["rollout-vit"], []),
        ([NO_SKIPS], "rollout", [], None),
        ([VIT], "W.6", [], [ONE_MODEL]),
        ([CNN, VIT, PLACELESS], "W.19", ["last-layers"], None),
        ([VIT], "W.20", [], ["ViT has no norms of sublayers."]),
        ([VIT], "W.23", ["residual-cka-vit"], []),
        ([CNN], "W.23", [], ["CNN has no separate skips and branches."]),
        ([OBLONG], "W.30", [], ["Oblong has no square grid."]),
        ([OBLONG], "W.8", ["clusters-objects", "clusters-parts"], []),
        ([CNN, VIT], "W.29", ["retrieval"], []),
        ([PLACELESS], "W.T6", ["linear-probe"], []),
        ([VIT], "W.7", ["clusters", "clusters-spatial"], []),
        ([TOKENS], "W.7", ["clusters", "clusters-spatial"], []),
        ([TOKENS, CNN], "G.1", [], None),
    ],
)
def test_figures_are_drawn_of_the_models_that_have_what_they_need(
    models, number, pictures, reasons
):
    assert drawn(models, number) == pictures
    if reasons is None:
        assert len(why_not(models, number)) == 1
    else:
        assert why_not(models, number) == reasons


def test_every_figure_is_either_drawn_or_left_out_with_a_reason():
    for model in (CNN, TOKENS, PLACELESS, VIT):
        for number in {figure.choices[0] for figure in all_figures()}:
            for data in (EVERYTHING, IMAGES_ONLY):
                pictures, left_out = plan_pictures(lookup_figures([number]), [model], data)
                assert pictures or left_out, number
                assert all(line.endswith(".") for _, lines in left_out for line in lines)


def test_figures_of_masks_videos_and_pairs_need_them():
    needed = {"W.5": "masks", "W.27": "parts", "W.30": "videos", "W.31": "pairs"}
    needed |= {"W.28": "training images", "W.29": "retrieve"}
    for number, words in needed.items():
        assert drawn([VIT], number) and not why_not([VIT], number)
        assert drawn([VIT], number, data=IMAGES_ONLY) == []
        (reason,) = why_not([VIT], number, IMAGES_ONLY)
        assert reason.startswith("It needs ") and words in reason


def test_maps_of_a_patch_embedding_alone_make_no_convolutional_model():
    assert drawn([VIT, TOKENS], "5") == []
    reasons = why_not([VIT, TOKENS], "5")
    assert len(reasons) == 2 and "Tokens has no convolutional feature maps." in reasons


def test_a_picture_loses_the_model_that_failed_and_says_so():
    pictures, _ = plan_pictures(lookup_figures(["13"]), [CNN, TOKENS], EVERYTHING)
    results = {"ridge_probe.cnn": None, "ridge_probe.tokens": "measured"}
    saved, failed = without_failures(pictures, results, {"ridge_probe.cnn": "Expected more."})
    assert [list(picture.measurements) for picture in saved] == [["Tokens"]]
    assert failed == [(pictures[0].title, ["CNN: Expected more."])]
    nothing = dict.fromkeys(results)
    problems = dict.fromkeys(results, "Expected more.")
    assert without_failures(pictures, nothing, problems)[0] == []


def test_a_picture_is_not_drawn_of_its_baselines_alone():
    fresh = dataclasses.replace(VIT, name="ViT (untrained)", role="untrained", base=VIT)
    pictures, _ = plan_pictures(lookup_figures(["W.5"]), [VIT, fresh], EVERYTHING)
    (picture,) = pictures
    assert list(picture.measurements) == ["ViT", "ViT (untrained)"]
    assert picture.baselines == ("ViT (untrained)",)
    results = {"saliency.vit": None, "saliency.vit-untrained": "measured"}
    assert without_failures(pictures, results, {"saliency.vit": "Expected more."})[0] == []
    results = {"saliency.vit": "measured", "saliency.vit-untrained": None}
    ((picture,), _) = without_failures(pictures, results, {"saliency.vit-untrained": "No."})
    assert list(picture.measurements) == ["ViT"]


def test_figures_are_chosen_by_number():
    assert lookup_figures() == list(all_figures())
    assert [figure.choices[0] for figure in lookup_figures(["E.1", "1", "B.1"])] == ["1", "7", "7"]
    assert lookup_figures(["1"])[0].reference == "Figures 1 and B.1"
    assert lookup_figures(["2"])[0].reference == "Figure 2"
    assert lookup_figures(["W.T6"])[0].reference == "Table 6"
    assert lookup_figures(["main"]) == lookup_figures(["all", "1"]) == list(all_figures())
    with pytest.raises(ValueError, match=r"Unknown figure: '99'"):
        lookup_figures(["1", "99"])


@pytest.mark.parametrize("models", [[CNN], [VIT], [CNN, VIT], [PLACELESS]])
def test_by_default_each_chapter_has_one_figure(models):
    pictures, _ = plan_pictures(all_figures(), models, EVERYTHING)
    drawn, later = select_pictures(pictures, ["main"])
    chapters = {picture.figure.chapter for picture in pictures}
    leading = by_figure(drawn)
    assert len(leading) == len(chapters)
    assert {group[0].figure.chapter for group in leading} == chapters
    assert len(later) == len(by_figure(pictures)) - len(chapters)
    # What the first screen shows comes before the rest.
    with_overview = {p.figure.chapter for p in pictures if p.figure.overview}
    assert {g[0].figure.chapter for g in leading if g[0].figure.overview} == with_overview
    assert select_pictures(pictures, ["all"]) == (pictures, [])


def test_figures_are_added_to_the_leading_ones_by_number():
    pictures, _ = plan_pictures(all_figures(), [CNN, VIT], EVERYTHING)
    names = [
        {picture.name for picture in select_pictures(pictures, numbers)[0]}
        for numbers in (["main"], ["main", "6", "W.23"])
    ]
    added = {"receptive-field-cnn", "receptive-field-vit", "residual-cka-vit"}
    assert names[1] - names[0] == added and names[0] < names[1]


@pytest.mark.parametrize(
    "model, part",
    [(VIT, "vit"), (CNN, "resnet"), (TOKENS, None), (NO_SKIPS, "vit")],
)
def test_the_part_of_a_model_is_what_it_is(model, part):
    assert model.scorecard_role == part
    assert dataclasses.replace(model, given_role="mixer").scorecard_role == "mixer"
    assert dataclasses.replace(model, role="seed").scorecard_role == "seed"
