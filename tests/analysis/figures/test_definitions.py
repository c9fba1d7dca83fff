"""Definitions of figures and claims are checked before anything is measured."""

import re
from dataclasses import replace

import numpy as np
import pytest
from placeholder_models import study_models, user_models
from study_models import study_model_of

from vit_tf.analysis.figures.figure import (
    all_figures,
    check_figures,
    each,
    group,
    lookup_figures,
    together,
)
from vit_tf.analysis.figures.measure import statistic, with_inputs
from vit_tf.analysis.papers.raghu import RAGHU, section4_structure, section7_tokens
from vit_tf.analysis.papers.raghu.section4_structure import FIGURE_1, cka_of, halves_alike
from vit_tf.analysis.papers.raghu.section7_tokens import FIGURE_13
from vit_tf.analysis.report.scorecard import evaluate
from vit_tf.analysis.statistics.claims import NotTested, claim
from vit_tf.analysis.statistics.estimates import mean_over

PLAIN = replace(FIGURE_1, claims=(), quantities=())


def made(inputs="cka.{vit}", returned=None, text=None):
    """A claim on these results, whose statistic returns a value."""

    def own_claim(*results):
        """Something is said.

        How it is measured.
        """
        return mean_over(np.arange(3.0), "videos") if returned is None else returned

    own_claim.__doc__ = own_claim.__doc__ if text is None else text
    return claim(inputs, "Figure 1", "CKA", "above", 0.1)(own_claim)


def with_other_taps(model):
    return statistic("cka", model, model.taps[:2], len)


def with_mistake(model):
    return cka_of(model.blokcs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"models": each("vti")}, ("role of a model", "Figures 1 and B.1", "'vti'", "vit")),
        ({"models": together("vit", baselines=("untrianed",))}, ("role", "Figures 1", "untrained")),
        ({"claims": [made("cka.{vti}")]}, ("own-claim", "'vti'", "vit")),
        ({"claims": [made("ckka.{vit}")]}, ("own-claim", "result", "'ckka'", "cka")),
        ({"quantities": [replace(halves_alike, result="cka.{modle}")]}, ("'modle'", "model")),
        ({"quantities": [replace(halves_alike, result="cca.{model}")]}, ("'cca'", "cka")),
        ({"claims": [made(), made()]}, ("Two claims are called 'own-claim'",)),
        ({"name": "cka-{modle}"}, ("Figures 1 and B.1", "modle")),
        ({"title": "{models} of {whom}"}, ("Figures 1 and B.1", "whom")),
        ({"also": "V.77"}, ("Figures 1 and B.1", "'V.77'")),
        ({"results": "ckka", "claims": [made()]}, ("results=", "'cka'", "ckka")),
    ],
)
def test_an_error_names_the_figure_or_the_claim(changes, words):
    with pytest.raises(ValueError, match=r"Unknown|Two") as error:
        check_figures([replace(PLAIN, **changes)])
    assert [word for word in words if word not in str(error.value)] == []


def test_numbers_with_a_comma_are_an_error():
    with pytest.raises(ValueError, match=r"Expected the numbers .* separated by spaces.*'1,2'"):
        check_figures([replace(PLAIN, numbers="1,2")])


def test_what_exists_twice_is_an_error():
    other = replace(PLAIN, numbers="77", shows="another")
    with pytest.raises(ValueError, match=r"Two pictures .*Figure 77"):
        check_figures([PLAIN, other])
    with pytest.raises(ValueError, match="Two claims are called 'own-claim'"):
        check_figures([replace(PLAIN, name=x, claims=[made()]) for x in ("a-{model}", "b-{model}")])
    check_figures([PLAIN, replace(other, name="another-{model}")])


def test_a_number_that_two_modules_define_is_an_error(monkeypatch):
    of_other_module = replace(PLAIN, numbers="9", name="own-{model}")
    monkeypatch.setattr(section4_structure, "OWN", of_other_module, raising=False)
    with pytest.raises(ValueError, match=r"'9' in .*section4_structure and .*section7_tokens"):
        all_figures.__wrapped__()


def test_a_figure_that_a_module_imports_or_names_twice_counts_once(monkeypatch):
    ids = {id(figure) for figure in all_figures()}
    for name in ("IMPORTED", "IMPORTED_AGAIN"):
        monkeypatch.setattr(section4_structure, name, FIGURE_13, raising=False)
    monkeypatch.setattr(section7_tokens, "SECOND_NAME", FIGURE_13, raising=False)
    figures = all_figures.__wrapped__()
    assert len(figures) == len(ids) and {id(figure) for figure in figures} == ids


def test_figures_of_the_models_of_a_short_study_name_them():
    figure = replace(PLAIN, models=group("vit", "resnet", user_models=False))
    words = "It needs a ViT with a CLS token and a ResNet, which vit-tf study --full trains."
    assert figure.select(user_models()) == ([], [words])


def test_pictures_of_other_models_may_share_a_name_that_names_the_model():
    of_mixers = {
        "numbers": "77",
        "models": each("mixer", user_models=False, why_not="Figure 1 shows them."),
    }
    check_figures([PLAIN, replace(PLAIN, **of_mixers)])
    with pytest.raises(ValueError, match="Two pictures are called 'cka'"):
        check_figures([replace(PLAIN, name="cka"), replace(PLAIN, **of_mixers, name="cka")])


def test_claims_and_quantities_may_use_the_results_of_other_figures():
    (of_distance,) = (replace(f, claims=(), quantities=()) for f in lookup_figures(["3"]))
    quantity = replace(halves_alike, result="attention_distance.{model}")
    for changes in (
        {"claims": [made("attention_distance.{vit}")]},
        {"quantities": [quantity]},
    ):
        figure = replace(PLAIN, numbers="78", name="own-{model}", **changes)
        check_figures([figure, of_distance])
        with pytest.raises(ValueError, match="'attention_distance'"):
            check_figures([figure])
        check_figures([replace(figure, results="")])


def test_every_declared_result_is_measured():
    kinds_of_models = study_models(), user_models()
    for figure in all_figures():
        measured = set()
        for models in kinds_of_models:
            pictures, _ = figure.select(models)
            measured |= {
                name.partition(".")[0]
                for picture in pictures
                for name in with_inputs(picture.measurements.values())
            }
        assert {*figure.results.split()} <= measured, figure.name


def test_a_mistake_in_what_is_measured_is_the_reason_why_a_figure_is_missing(caplog):
    pictures, reasons = replace(PLAIN, measure=with_mistake).select(study_models())
    assert not pictures and "blokcs" in reasons[0]
    assert "Figures 1 and B.1" in caplog.text and "Traceback" in caplog.text


def test_two_measurements_of_one_name_are_an_error():
    model = study_models()[0]
    with pytest.raises(ValueError, match=r"Two results are called 'cka\.vit'"):
        with_inputs([cka_of(model), with_other_taps(model)])


def test_the_figures_of_this_package_have_no_mistake():
    check_figures(list(all_figures()))
    assert any(figure.paper is RAGHU for figure in all_figures())


@pytest.mark.parametrize("text", ["", "Something is said."])
def test_a_claim_without_a_definition_is_an_error_that_names_it(text):
    with pytest.raises(ValueError, match=r"two paragraphs.*own_claim"):
        made(text=text)


@pytest.mark.parametrize("returned", [0.5, np.float64(1), (1, 2), "above"])
def test_a_claim_that_returns_no_estimate_is_not_tested_and_named(returned):
    figure = replace(PLAIN, claims=[made(returned=returned)])
    model = study_model_of("ViT", "vit", "key", ("embedding", "block00/mlp/sum"), None, None)
    (row,) = evaluate([figure], [model], {"cka.vit": 1})
    assert isinstance(row, NotTested) and repr(returned) in row.reason
    assert re.search("own-claim.* to return an Estimate", row.reason)
