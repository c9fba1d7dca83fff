"""What is said of the difference of two models, against cases whose truth is known."""

from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from scipy import stats
from study_parts import cka_result, estimated, model_like as model

from vit_tf.analysis.engine.results import pack_correct
from vit_tf.analysis.papers.raghu.section4_structure import best_matches, halves_alike
from vit_tf.analysis.papers.raghu.section5_locality import early_reach, early_size
from vit_tf.analysis.papers.raghu.section6_skips import skips_over_branches
from vit_tf.analysis.papers.raghu.section7_tokens import best_probe, readable_from
from vit_tf.analysis.report.first_screen import (
    _values_sentence,
    compare,
    draw_panel,
    main_results,
)
from vit_tf.analysis.report.page import write_report
from vit_tf.analysis.statistics.claims import quantity
from vit_tf.analysis.statistics.estimates import Method, Units, minus, with_error, with_limits


def test_difference_of_normal_intervals_is_that_of_independent_values():
    units = Units("images", 9, 9)
    pair = (
        with_error(value, (error, np.inf), units) for value, error in ((0.7, 0.03), (0.5, 0.04))
    )
    gap = minus(*pair)
    assert gap.value == pytest.approx(0.2)
    reach = stats.norm.ppf(0.975) * 0.05
    assert gap.interval == (pytest.approx(0.2 - reach), pytest.approx(0.2 + reach))
    skewed = minus(
        with_limits(5.0, lambda alpha: (4.0, 9.0), units, Method.BINOMIAL),
        with_limits(1.0, lambda alpha: (0.0, 1.0), units, Method.BINOMIAL),
    )
    assert skewed.interval == pytest.approx((3.0, 4 + np.hypot(4, 1)))


@quantity("size.{model}", unit="pixels")
def size(result):
    """Size of a thing.

    As it was told.
    """
    value, low, high = result.values
    if np.isnan(low):
        return estimated(value)
    error = (high - low) / 2 / stats.norm.ppf(0.975)
    return with_error(value, (error, np.inf), Units("images", 9, 9))


@pytest.mark.parametrize("text", [None, "Size of a thing.", "Size.\n\nAs told.\n\nAnd more."])
def test_a_quantity_has_a_label_and_an_explanation(text):
    def statistic(result):
        return estimated(*result.values)

    statistic.__doc__ = text
    with pytest.raises(ValueError, match=r"statistic'.* two paragraphs"):
        quantity("size.{model}", unit="pixels")(statistic)


def made(quantities, models, **results):
    figure = SimpleNamespace(quantities=quantities, chapter=None)
    pictures = [SimpleNamespace(figure=figure, name=name) for name in ("first", "second")]
    results = {k.replace("_", "."): xr.DataArray(v) for k, v in results.items()}
    rows, left_out = compare(pictures, models, results)
    assert not left_out
    return rows


def test_only_what_the_intervals_allow_is_said():
    models = [model("A", accuracy=(0.9, 400)), model("B", accuracy=(0.8, 400)), model("C")]
    results = {"size_a": [3.0, 2.9, 3.1], "size_b": [3.2, 3.1, 3.3], "size_c": [4.0, 3.0, 5.0]}
    accuracy, row = made([size], models, **results)
    # Newcombe's interval of 360 and 320 of 400.
    assert accuracy.sentences == ("A is higher than B by 10.0 percentage points (5.1 to 14.9).",)
    assert (accuracy.num_different, accuracy.link) == (1, "top")
    assert row.link == "figure-first" and row.label == "Size of a thing" and row.num_different == 1
    sentences = [sentence.replace("\N{MINUS SIGN}", "-") for sentence in row.sentences]
    assert sentences == [
        # Corrected for three pairs: 2.39 and 2.24 in place of 1.96 standard errors.
        "B is higher than A by 0.20 (0.03 to 0.37).",
        "A and C: not significant (-1.00, from -2.15 to +0.15).",
        "B and C: not significant (-0.80, from -1.95 to +0.35).",
    ]


def test_variants_are_left_out_and_one_model_stands_beside_its_untrained_copy():
    item = model("A")
    others = [model(f"A, {name}", name, name, base=item) for name in ("untrained", "noise")]
    results = {
        "size_a": [3.0, 2.9, 3.1],
        "size_untrained": [1.0, 0.9, 1.1],
        "size_noise": [0, 0, 0],
    }
    (row,) = made([size], [item, *others], **results)
    assert [name for name, _ in row.values] == ["A", "A, untrained"]
    (alone,) = made([size], [model("B"), *others], size_b=[1.0, 0.9, 1.1])
    assert alone.sentences == () and not alone.num_different


def test_untrained_copies_stand_next_to_each_value_and_in_the_main_results():
    models = [model("A"), model("B")]
    copies = [
        model(f"{item.name} {number}", role, base=item)
        for number, role in enumerate(("untrained", "copy"))
        for item in models
    ]
    results = {"size_a": [3.0, 2.9, 3.1], "size_b": [6.0, 5.9, 6.1]}
    of_copies = {"a 0": 1.0, "a 1": 2.0, "b 0": 5.0}
    results |= {f"size_{name}": [value] * 3 for name, value in of_copies.items()}
    (row,) = made([size], [*models, *copies], **results)
    assert row.untrained == {"A": 1.5, "B": 5.0} and [name for name, _ in row.values] == ["A", "B"]
    assert main_results([row]) == [
        "B has a higher size of a thing than A: 6.00 versus 3.00 (pixels); "
        "untrained copies 5.00 versus 1.50."
    ]
    of_pairs = replace(size, result="size.{model}.{other}")
    results = {"size.A.B": [3.0, 2.9, 3.1], "size.A 0.B 0": [1.0] * 3, "size.A 1.B 1": [2.0] * 3}
    results = {name.lower().replace(".", "_"): value for name, value in results.items()}
    (row,) = made([of_pairs], [*models, *copies], **results)
    assert row.untrained == {"A and B": 1.5} and row.permuted == {}


def test_permuted_images_stand_next_to_similarities_of_two_models():
    result = cka_result([[0.9, 0.1], [0.2, 0.6]], "ab", "cd", stderr=0.01)
    by_chance = result["cka"].copy(data=[[0.02, -0.01], [-0.03, 0.04]])
    figure = SimpleNamespace(quantities=[best_matches], chapter=None)
    results = {"cka.a.b": result.assign(permuted=by_chance)}
    rows, left_out = compare(
        [SimpleNamespace(figure=figure, name="cka")], [model("A"), model("B")], results
    )
    (row,) = rows
    assert not left_out and dict(row.values)["A and B"].value == pytest.approx(0.75)
    assert row.permuted == {"A and B": pytest.approx(0.03)}


def test_a_quantity_that_fails_on_permuted_images_is_still_compared():
    def estimator(result):
        if result["cka"].max() < 0.5:
            raise ValueError("Expected similar layers. Received: none")
        return best_matches.estimator(result)

    result = cka_result([[0.9, 0.1], [0.2, 0.6]], "ab", "cd", stderr=0.01)
    results = {"cka.a.b": result.assign(permuted=result["cka"] * 0)}
    figure = SimpleNamespace(quantities=[replace(best_matches, estimator=estimator)], chapter=None)
    rows, ((title, _),) = compare(
        [SimpleNamespace(figure=figure, name="cka")], [model("A"), model("B")], results
    )
    (row,) = rows
    assert dict(row.values)["A and B"].value == pytest.approx(0.75) and row.permuted == {}
    assert title == f"{best_matches.label}, permuted images"


def test_a_panel_that_fails_leaves_no_figure_open():
    def draw(ax):
        raise ValueError("Expected values. Received: none")

    opened = plt.get_fignums()
    with pytest.raises(ValueError, match="Expected values"):
        draw_panel("Title", draw)
    assert plt.get_fignums() == opened


def test_unknown_interval_says_nothing():
    nothing = [1.0, np.nan, np.nan]
    (row,) = made([size], [model("A"), model("B")], size_a=nothing, size_b=[2.0, 1.9, 2.1])
    assert row.sentences == ("A and B: the difference has no confidence interval.",)
    assert not row.num_different and not row.num_tested
    assert not any("significant" in sentence for sentence in main_results([row]))


def test_a_quantity_undefined_for_all_of_many_models_is_no_error():
    results = {f"size_{name}": [np.nan] * 3 for name in "abcd"}
    (row,) = made([size], [model(name) for name in "ABCD"], **results)
    assert row.sentences[1:] == ("0 of 6 pairs of models differ significantly.",)


def test_of_many_models_the_extremes_are_compared():
    results = {f"size_{name}": [i, i - 0.1, i + 0.1] for i, name in enumerate("abcde", 1)}
    (row,) = made([size], [model(name.upper()) for name in "CADBE"], **results)
    # 2.81 in place of 1.96 standard errors, of ten pairs all of which differ alike
    assert row.sentences[0].startswith("E is higher than A by 4.00 (3.8")
    assert row.sentences[1:] == ("10 of 10 pairs of models differ significantly.",)


def test_the_main_results_are_the_significant_differences_in_words_the_largest_first():
    more = replace(size, more="is larger", label="Width of a thing", result="width.{model}")
    models = [model("A", accuracy=(0.9, 400)), model("B", accuracy=(0.8, 400))]
    results = {"size_a": [3.0, 2.9, 3.1], "size_b": [6.0, 5.9, 6.1]}
    results |= {"width_a": [1.0, 0.9, 1.1], "width_b": [1.1, 1.0, 1.2]}
    rows = made([size, more], models, **results)
    assert main_results(rows) == [
        "B has a higher size of a thing than A: 6.00 versus 3.00 (pixels).",
        "A has a higher test accuracy than B: 90.0\N{NO-BREAK SPACE}% versus "
        "80.0\N{NO-BREAK SPACE}%.",
        "The difference in width of a thing is not significant.",
    ]
    assert [row.relative_difference for row in rows] == pytest.approx([0.1 / 1.7, 3 / 9, 0])
    wide = {"width_a": [2.0, 1.9, 2.1], "width_b": [1.0, 0.9, 1.1]}
    (row,) = made([more], [model("A"), model("B")], **wide)
    assert row.main_sentence == "A is larger than B: 2.00 versus 1.00 (pixels)."
    assert len(main_results([row] * 9)) == 5


def test_the_main_results_of_one_model_are_its_quantities():
    (row,) = made([size], [model("A")], size_a=[3.0, 2.9, 3.1])
    assert main_results([row]) == ["Size of a thing is 3.00 (pixels; 95 % CI 2.90 to 3.10)."]


def test_a_unit_that_the_sentence_contains_is_not_repeated():
    ratio = replace(size, label="Norm ratio", unit="ratio")
    results = {"size_a": [3.0, 2.9, 3.1], "size_b": [1.0, 0.9, 1.1]}
    (alone,) = made([ratio], [model("A")], **results)
    assert main_results([alone]) == ["Norm ratio is 3.00 (95 % CI 2.90 to 3.10)."]
    both = [model("A"), model("B")]
    (row,) = made([ratio], both, **results)
    assert row.values_sentence == "Norm ratio: 3.00 for A and 1.00 for B."
    many = [
        (name, estimated(value)) for name, value in zip("ABCD", (2.0, 0.5, 3.0, 1.0), strict=True)
    ]
    assert _values_sentence(many, "Norm ratio", "ratio") == "Norm ratio: from 0.50 (B) to 3.00 (C)."
    assert row.main_sentence == "A has a higher norm ratio than B: 3.00 versus 1.00."
    (row,) = made([replace(ratio, more="is larger")], both, **results)
    assert row.main_sentence == "A is larger than B: 3.00 versus 1.00 (ratio)."


def test_quantities_of_results_whose_truth_is_known():
    # Lower half {0, 1}, upper {2, 3}: their mean is that of the four corner cells.
    blocks = np.kron(np.eye(2), np.ones((2, 2))) + np.kron(1 - np.eye(2), np.full((2, 2), 0.25))
    actual = halves_alike.estimator(cka_result(blocks, "abcd", stderr=0.1))
    assert actual.value == 0.25 and actual.interval[0] < 0.25 < actual.interval[1]
    cross = np.array([[0.1, 0.9], [0.3, 0.2]])
    assert best_matches.estimator(cka_result(cross, "ab")).value == pytest.approx(0.6)
    grid = {"rows": 1, "columns": 2, "stride": 4}
    # Two places 4 pixels apart: even attention looks 2 pixels far on average.
    distance = xr.DataArray([[0.0, 1.0], [2.0, 2.0]], dims=("layer", "head"), attrs=grid)
    assert early_reach.estimator(distance).value == pytest.approx(0.25)
    field = xr.DataArray(np.ones((2, 6, 6)), dims=("layer", "row", "column"))
    field = field.assign_coords(size=("layer", [0.3, 0.9]))
    assert early_size.estimator(field).value == 0.3
    ratios = xr.Dataset({"part_ratio": (("layer", "part"), [[1.0, 3.0, 2.0], [8.0, 8.0, 8.0]])})
    assert skips_over_branches.estimator(ratios).value == pytest.approx(np.log(4.0))
    accuracy = probed([0.1, 0.5, 0.85, 0.9], 10**5)
    depth = readable_from.estimator(accuracy)
    assert depth.value == pytest.approx(2 / 3) and depth.interval is None
    best = best_probe.estimator(accuracy.assign_coords(validation_accuracy=("layer", [0, 1, 3, 2])))
    assert best.value == 0.85 and best.parts.mean() == 0.85  # chosen on held-out images
    older = accuracy.drop_vars(["correct", "validation_accuracy"])
    assert best_probe.estimator(older).value == 0.9 and best_probe.estimator(older).interval is None


def probed(accuracy, examples):
    """A result of `ridge_probe` in which easy images are so for all layers."""
    correct = np.arange(examples) < np.array(accuracy)[:, None] * examples
    coords = {
        "correct": ("layer", pack_correct(correct)),
        "validation_accuracy": ("layer", accuracy),
    }
    return xr.DataArray(accuracy, coords, "layer", attrs={"examples": examples})


def test_page_begins_with_what_differs(tmp_path):
    rows = made([size], [model("A"), model("B")], size_a=[3, 2.9, 3.1], size_b=[3.5, 3.4, 3.6])
    path = write_report(tmp_path / "r.html", title="T", introduction="I", differences=rows)
    page = path.read_text()
    assert "1 of 1 tested quantity differs significantly between models." in page
    assert "B is higher than A by 0.50 (0.36 to 0.64)." in page and "2.9 to 3.1" in page
    assert page.index('id="differences"') > page.index('href="#differences"')


def test_probes_on_other_widths_say_so():
    """How many channels and images a probe has stands next to the difference."""
    results = {}
    for name, share, width in (("a", 0.9, 512), ("b", 0.5, 128)):
        probes = probed([0.1, share], 1000).assign_coords(channels=("layer", [3, width]))
        results[f"ridge_probe.{name}"] = probes.assign_attrs(train_examples=100)
    figure = SimpleNamespace(quantities=[best_probe], chapter=None)
    pictures = [SimpleNamespace(figure=figure, name="probe")]
    (row,), left_out = compare(pictures, [model("A"), model("B")], results)
    assert not left_out
    assert row.main_sentence.endswith(
        "(A: 512 channels, 100 training images; B: 128 channels, 100 training images)."
    )
