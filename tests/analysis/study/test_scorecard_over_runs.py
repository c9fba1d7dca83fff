"""The scorecard over several trainings, beside NumPy and SciPy and simulated trainings."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from study_parts import claim_result

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine.estimates import Estimate, minus, over_trainings, range_of, student
from vit_tf.analysis.engine.store import save
from vit_tf.analysis.study.claims import scorecard_dataset
from vit_tf.analysis.study.data import Data
from vit_tf.scripts import scorecard as script

CLAIM = claim_result(
    **{"name": "skips", "statement": "Skips matter.", "quantity": "ratio"},
    **{"value": 1.0, "low": 0.5, "high": 2.0},
)


def card(**claims):
    """A scorecard of claims that differ from `CLAIM` in some fields."""
    return scorecard_dataset(
        [replace(CLAIM, name=name, **fields) for name, fields in claims.items()]
    )


def test_the_interval_is_the_spread_between_trainings_and_within():
    values, below, above = [1.0, 1.4, 0.9], [0.1, 0.3, 0.2], [0.2, 0.2, 0.5]
    message = zip(values, below, above, strict=True)
    actual = over_trainings([Estimate(v, v - b, v + a, "") for v, b, a in message])
    ends = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert actual.value == pytest.approx(1.1)
    assert actual.low == pytest.approx(1.1 - np.hypot(1.1 - ends[0], 0.2))
    assert actual.high == pytest.approx(1.1 + np.hypot(ends[1] - 1.1, 0.3))
    unknown = over_trainings([Estimate(v, np.nan, np.nan, "") for v in values])
    np.testing.assert_allclose((unknown.low, unknown.high), ends)
    assert "no interval within" in unknown.how
    assert np.isnan(over_trainings([Estimate(1.0, 0.0, 2.0, "")]).low)


@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_it_covers_the_truth_also_of_trainings_that_share_their_images(rng, shared):
    """`shared` of the variance within is of the images, which all trainings are measured on."""
    trials, count, within, hits = 2000, 4, 1.0, 0
    for _ in range(trials):
        of_images = rng.normal() * np.sqrt(shared)
        own = rng.normal(size=count) * np.sqrt(1 - shared)
        values = rng.normal(scale=0.5, size=count) + within * (of_images + own)
        actual = over_trainings([Estimate(v, v - 1.96, v + 1.96, "") for v in values])
        hits += actual.low <= 0 <= actual.high
    error = np.sqrt(0.95 * 0.05 / trials)
    assert hits / trials > 0.95 - 3 * error


def test_equal_values_have_no_interval():
    actual = student(np.ones(5), over="heads")
    assert actual.value == 1 and np.isnan([actual.low, actual.high]).all()
    assert "all values are equal" in actual.how
    varied = student(np.arange(5.0), over="heads")
    assert varied.low < varied.high
    # A sample that varies still shows how far its mean is from that of the equal values.
    gap = minus(varied, actual)
    assert gap.high - gap.low == pytest.approx(varied.high - varied.low)


@pytest.mark.parametrize("end", [1.0, np.nan])
def test_equal_runs_without_a_width_of_their_own_are_descriptive(end):
    same = over_trainings([Estimate(1.0, end, end, "")] * 3)
    assert same.value == 1 and np.isnan([same.low, same.high]).all()
    assert "all 3 runs are equal" in same.how
    wide = over_trainings([Estimate(1.0, 0.5, 1.25, "")] * 3)
    assert (wide.low, wide.high) == (0.5, 1.25)


def test_claims_are_matched_by_name_and_evaluated_anew():
    cards = {
        "seed 0": card(skips={}, heads={"value": 2.0, "outcome": "inconclusive"}),
        "seed 1": card(skips={"value": 1.1, "low": 0.9, "high": 1.3}),
        "seed 2": card(
            heads={"value": np.nan, "low": np.nan, "high": np.nan, "outcome": "not tested"},
            skips={"value": 0.9, "low": 0.8, "high": 1.2},
        ),
    }
    actual = analysis.scorecard_of_trainings(cards)
    assert actual["claim"].values.tolist() == ["skips", "heads"]
    np.testing.assert_array_equal(actual["values"].sel(claim="skips"), [1.0, 1.1, 0.9])
    np.testing.assert_array_equal(actual["values"].sel(claim="heads"), [2.0, np.nan, np.nan])
    skips, heads = actual.sel(claim="skips"), actual.sel(claim="heads")
    below = np.mean([0.5, 0.2, 0.1])
    reach = stats.t.ppf(0.975, 2) * stats.sem([1.0, 1.1, 0.9])
    assert skips["low"].item() == pytest.approx(1.0 - np.hypot(reach, below))
    assert skips["outcome"].item() == "replicates"
    # One training tells nothing of another.
    assert heads["value"].item() == 2 and np.isnan(heads["low"].item())
    assert heads["outcome"].item() == "descriptive"
    assert actual["outcomes"].sel(claim="heads").values.tolist() == [
        *("inconclusive", "not tested", "not tested")
    ]


@pytest.mark.parametrize(
    ("quantity", "values", "ends"),
    [
        ("rank correlation", (-0.9, 0.8, 0.1), (-1.0, 1.0)),
        ("share of heads", (0.1, 0.3, 0.8), (0.0, 1.0)),
        ("share beyond chance", (0.2, 0.5, 0.9), (None, 1.0)),
        ("difference in share", (-0.6, 0.1, 0.56), (-1.0, 1.0)),
        ("difference in share of patches", (-0.9, 0.8, 0.1), (-1.0, 1.0)),
        ("ratio", (0.2, 0.5, 0.9), (0.0, None)),
        ("number of types", (0.0, 0.0, 1.0), (0.0, None)),
        ("CKA", (0.2, 0.5, 0.9), (0.0, 1.0)),
        ("nat", (0.2, 0.5, 0.9), (None, None)),
    ],
)
def test_an_interval_ends_where_the_quantity_does(quantity, values, ends):
    cards = {
        name: card(one={"quantity": quantity, "value": value, "low": value, "high": value})
        for name, value in zip("abc", values, strict=True)
    }
    actual = analysis.scorecard_of_trainings(cards).sel(claim="one")
    free = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    for name, end, without in zip(("low", "high"), ends, free, strict=True):
        assert actual[name].item() == pytest.approx(without if end is None else end)
        assert end is None or abs(without) > abs(end)


def test_an_absolute_difference_is_not_negative():
    """Its interval ends at 0, and that of a signed difference does not."""
    runs = [Estimate(value, value - 0.1, value + 0.1, "") for value in (0.07, 0.02, 0.02)]
    bounded = over_trainings(runs, range_of("absolute difference in accuracy"))
    signed = over_trainings(runs, range_of("difference in accuracy"))
    assert bounded.low == 0 and signed.low < 0 and bounded.high == signed.high


def test_an_interval_within_a_range_covers_what_the_free_one_does(rng):
    """Ends at the limits of the possible values cost no coverage: no truth lies beyond them."""
    unit = "difference in share"
    for values in rng.uniform(-1, 1, (200, 3)):
        runs = [Estimate(value, value - 0.3, value + 0.2, "") for value in values]
        free, bounded = over_trainings(runs), over_trainings(runs, range_of(unit))
        assert -1 <= bounded.low <= bounded.value <= bounded.high <= 1
        truths = np.linspace(-1, 1, 41)
        covered = [(x.low <= truths) & (truths <= x.high) for x in (free, bounded)]
        np.testing.assert_array_equal(*covered)
        for alpha in (0.01, 0.2):
            assert -1 <= bounded.at(alpha)[0] <= bounded.at(alpha)[1] <= 1


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        ({"one": card(skips={})}, "at least two scorecards. Received: 1"),
        ({"one": card(skips={}), "two": xr.Dataset({"cka": 1.0})}, "two to be a scorecard"),
        (
            {"one": card(skips={}), "two": card(skips={"threshold": 1.0})},
            r"one threshold of 'skips' in all scorecards. Received: \[0.0, 1.0\]",
        ),
    ],
)
def test_what_is_no_scorecard(cards, message):
    with pytest.raises(ValueError, match=message):
        analysis.scorecard_of_trainings(cards)


def facts(part="vit", layers=2, seed=0, **changed):
    """The model and the data of a report."""
    config = {"class": "ViT", "config": {"num_layers": layers}}
    model = SimpleNamespace(name=f"a{seed}", scorecard_role=part, configuration=config, base=None)
    data = {"data": "photos", "seed": seed, "test": "digest", "train": f"of {seed}", "batch": 8}
    return [model], Data(None, None, facts=data | changed)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (facts(), facts(layers=3), "config.num_layers of vit is 2 in one and 3 in two"),
        (facts(), facts("gap"), "class of gap is absent in one and ViT in two"),
        (facts(), facts(batch=9), "batch is 8 in one and 9 in two"),
        (facts(), facts(test="others"), "test is digest in one and others in two"),
        (facts(), facts(seed=1, data="digits"), "data is photos in one and digits in two"),
        (facts(), facts(data="moved"), None),
        (facts(), facts(seed=1, test="others"), None),
        (facts(test="unknown 1"), facts(test="unknown 2"), None),
        (facts(), ((), None), None),
    ],
)
def test_reports_of_other_models_or_data_are_refused(first, second, words):
    cards = {
        n: scorecard_dataset([CLAIM], *fields) for n, fields in (("one", first), ("two", second))
    }
    if words is None:
        assert analysis.scorecard_of_trainings(cards)["claim"].values.tolist() == ["skips"]
    else:
        with pytest.raises(ValueError, match="same models and data") as error:
            analysis.scorecard_of_trainings(cards)
        assert words in str(error.value)


@pytest.mark.slow
def test_reports_of_unlike_models_have_no_common_scorecard(tmp_path, capsys, rng):
    images = rng.uniform(-1, 1, (16, 16, 16, 3)).astype("float32")
    for name, layers, scale in (("a", 2, 1), ("b", 2, 1), ("deeper", 3, 1), ("darker", 2, 0.5)):
        vit = vit_tf.ViT((16, 16, 3), 8, layers, 2, 8, 8, 3)
        analysis.make_report(vit, scale * images, figures=["W.3"], folder=tmp_path / name)
    first, alike, *others = (str(tmp_path / name) for name in ("a", "b", "deeper", "darker"))
    assert script.main([first, alike, "--out", str(tmp_path / "out")]) == 0
    for other, words in zip(
        others, ("num_layers of vit is 2 in a and 3 in deeper", "test"), strict=True
    ):
        assert script.main([first, other, "--out", str(tmp_path / "none")]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert "Expected reports of the same models and data" in error and words in error
    assert not (tmp_path / "none").exists()


def test_scorecards_of_earlier_versions_get_the_present_outcomes():
    """They are read, and drawn, under the words that those versions saved."""
    words = ("holds", "does not hold", "cannot tell", "not measured", "descriptive")
    now = ["replicates", "does not replicate", "inconclusive", "not tested", "descriptive"]
    for old, new in zip(words, now, strict=True):
        cards = {name: card(skips={"outcome": old}).rename(outcome="verdict") for name in "ab"}
        actual = analysis.scorecard_of_trainings(cards)
        assert actual["outcomes"].sel(claim="skips").values.tolist() == [new, new]
        if old != "not measured":  # as such a claim has no value
            drawn = [
                analysis.plots.plot_trainings(actual.assign(outcome=("claim", [word])))
                for word in (old, new)
            ]
            assert [ax.get_legend().texts[0].get_text() for ax in drawn] == [new, new]


def test_points_are_trainings_on_the_side_that_the_paper_reports():
    below = {"direction": "below", "threshold": 1.0, "outcome": "replicates"}
    cards = {
        "a": card(skips={}, heads=below | {"value": 0.5, "low": 0.4, "high": 0.6}),
        "b": card(skips={"value": 2.0, "low": 1.9}, heads=below | {"value": 0.6, "low": 0.5}),
    }
    actual = analysis.scorecard_of_trainings(cards)
    ax = analysis.plots.plot_trainings(actual)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Skips matter."] * 2
    points = [line.get_xydata() for line in ax.lines if line.get_marker() == "o"]
    for place, (name, sign) in enumerate((("skips", 1), ("heads", -1))):
        row = actual.sel(claim=name)
        away = sign * (row["values"].values - row["threshold"].item())
        scale = np.abs([row[end].item() - row["threshold"].item() for end in ("low", "high")]).max()
        np.testing.assert_allclose(points[place][:, 0], away / scale)
        assert (points[place][:, 1] == place).all()
    with pytest.raises(ValueError, match="Expected a claim that was tested"):
        analysis.plots.plot_trainings(actual.assign(value=actual["value"] * np.nan))


def test_a_report_of_two_reports(tmp_path, capsys):
    for name, value in (("first", 1.0), ("second", 1.1)):
        (tmp_path / name / "results").mkdir(parents=True)
        item = card(skips={"value": value, "low": value - 0.1, "high": value + 0.1})
        item.to_netcdf(tmp_path / name / "results" / "scorecard.nc")
    folders = [str(tmp_path / name) for name in ("first", "second")]
    assert script.main([*folders, "--out", str(tmp_path / "both")]) == 0
    assert "inconclusive       Skips matter." not in (message := capsys.readouterr().out)
    assert "replicates         Skips matter." in message
    page = (tmp_path / "both" / "report.html").read_text("utf-8")
    assert "spread between 2 runs" in page and "not the variance" not in page
    assert "Values: first: 1; second: 1.1." in page and "2108.08810" in page
    saved = xr.load_dataset(tmp_path / "both" / "results" / "scorecard.nc")
    np.testing.assert_allclose(saved["value"].values, 1.05)
    assert script.main([folders[0], str(tmp_path), "--out", str(tmp_path / "none")]) == 2
    assert "Expected the folders of reports with a scorecard" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_scorecard_that_was_cut_off_or_changed_is_named(tmp_path, capsys):
    paths = [tmp_path / name / "results" / "scorecard.nc" for name in ("first", "second")]
    for path in paths:
        save(card(skips={"value": 1.0, "low": 0.9, "high": 1.1}), path)
    command = [str(tmp_path / "first"), str(tmp_path / "second"), "--out", str(tmp_path / "both")]
    assert script.main(command) == 0
    whole = paths[1].read_bytes()
    position = len(whole) // 2
    other = bytes([whole[position] ^ 1])
    for content, words in (
        (b"", "not netCDF"),
        (whole[:500], "cut off"),
        (whole[:position] + other + whole[position + 1 :], "changed since"),
    ):
        paths[1].write_bytes(content)
        capsys.readouterr()
        assert script.main(command) == 2
        assert str(paths[1]) in (message := capsys.readouterr().err) and words in message
