"""The scorecard over several runs, next to SciPy and simulated runs."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from study_parts import estimated

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine.store import save
from vit_tf.analysis.figures.data import Data
from vit_tf.analysis.figures.figure import all_figures
from vit_tf.analysis.report.scorecard import claims_over_runs, scorecard_dataset
from vit_tf.analysis.statistics.claims import NotTested, Outcome, Tested, decide
from vit_tf.analysis.statistics.estimates import between, descriptive, over_runs
from vit_tf.scripts import scorecard as script

NAME, OTHER = "uniform-structure", "skips-cost-accuracy"
CLAIMS = {claim.name: claim for figure in all_figures() for claim in figure.claims}


def row(value, second=None, name=NAME, untrained=(), models=("vit", "bit")):
    """A tested claim, as the difference of two independent models where there are two numbers."""
    estimate = estimated(value, value - 0.1, value + 0.1)
    if second is not None:
        estimate = between(*(descriptive(number, "") for number in (value, second)))
    return Tested(CLAIMS[name], estimate, estimate.value, untrained, models=models)


def card(value, second=None, **fields):
    """A scorecard of one claim."""
    return scorecard_dataset([row(value, second, **fields)])


def test_the_interval_is_welchs_of_the_runs_of_both_arms():
    arms = np.array([[0.55, 0.62, 0.58], [0.40, 0.41, 0.45]])
    cards = {f"seed {n}": card(*pair) for n, pair in enumerate(arms.T)}
    (actual,) = claims_over_runs(cards)
    wanted = stats.ttest_ind(*arms, equal_var=False).confidence_interval()
    np.testing.assert_allclose(actual.estimate.interval, wanted)
    assert actual.outcome is Outcome.AS_IN_PAPER
    assert dict(actual.runs) == pytest.approx(dict(zip(cards, arms[0] - arms[1], strict=True)))
    # Which seeds share a report does not matter.
    turned = {
        f"seed {n}": card(*pair)
        for n, pair in enumerate(np.stack([arms[0], arms[1][::-1]], axis=1))
    }
    np.testing.assert_allclose(claims_over_runs(turned)[0].estimate.interval, wanted)


def test_a_number_of_one_model_has_students_interval():
    values = [0.089, 0.069, 0.081]
    (actual,) = claims_over_runs({str(n): card(value) for n, value in enumerate(values)})
    wanted = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    np.testing.assert_allclose(actual.estimate.interval, wanted)
    assert actual.outcome is Outcome.AS_IN_PAPER


def test_fewer_than_three_runs_decide_nothing():
    (actual,) = claims_over_runs({str(n): card(0.3 + 0.01 * n) for n in range(2)})
    assert actual.outcome is Outcome.UNDECIDED and actual.estimate.interval is None
    assert "at least 3 runs" in actual.estimate.note


def test_claims_are_matched_by_name():
    without = NotTested(CLAIMS[OTHER], "There is none.")
    nothing = scorecard_dataset([without])
    cards = {
        "a": scorecard_dataset([row(1.0), row(2.0, name=OTHER)]),
        "b": scorecard_dataset([row(1.1), without]),
        "c": card(0.9, untrained=(0.2, 0.4)),
    }
    actual = analysis.scorecard_of_runs(cards)
    assert actual["claim"].values.tolist() == [NAME, OTHER]
    np.testing.assert_array_equal(actual["values"].sel(claim=NAME), [1.0, 1.1, 0.9])
    np.testing.assert_array_equal(actual["values"].sel(claim=OTHER), [2.0, np.nan, np.nan])
    assert actual["outcome"].values.tolist() == ["as in the paper", "undecided"]
    outcomes = actual["outcomes"].sel(claim=OTHER).values.tolist()
    assert outcomes == ["as in the paper", "not tested", "not tested"]
    assert claims_over_runs(cards)[0].untrained == (pytest.approx(0.3),)
    rows = claims_over_runs({"a": nothing, "b": nothing})
    assert isinstance(rows[0], NotTested) and rows[0].reason == "There is none."


@pytest.mark.parametrize("runs", [3, 5])
def test_equal_arms_are_decided_in_5_percent(rng, runs):
    """Without a smallest effect of interest, whose measured images all runs share."""
    count, paper, decided = 8000, CLAIMS[NAME].paper, 0
    terms = rng.normal(size=(count, runs, 2)) * np.array([1.0, 2.0])
    for each in terms:
        outcome = decide(over_runs(each).interval, paper, 1e-9)
        decided += outcome is not Outcome.UNDECIDED
    assert abs(decided / count - 0.05) < 0.015


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        ({"one": card(1.0)}, "at least two scorecards. Received: 1"),
        ({"one": card(1.0), "two": xr.Dataset({"cka": 1.0})}, "two to be a scorecard"),
        (
            dict.fromkeys(("one", "two"), card(1.0).assign_coords(claim=["unknown"])),
            "claims of this version of vit_tf. Received: 'unknown'",
        ),
    ],
)
def test_what_is_no_scorecard(cards, message):
    with pytest.raises(ValueError, match=message):
        analysis.scorecard_of_runs(cards)


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
        n: scorecard_dataset([row(1.0)], *fields) for n, fields in (("one", first), ("two", second))
    }
    if words is None:
        assert analysis.scorecard_of_runs(cards)["claim"].values.tolist() == [NAME]
    else:
        with pytest.raises(ValueError, match="differ in their seed") as error:
            analysis.scorecard_of_runs(cards)
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
        assert "Expected reports that differ in their seed only" in error and words in error
    assert not (tmp_path / "none").exists()


def test_points_are_runs_on_the_side_that_the_paper_reports():
    name = "skips-partition"
    cards = {
        "a": xr.concat([card(1.0), card(-0.5, name=name)], "claim"),
        "b": xr.concat([card(2.0), card(-0.6, name=name)], "claim"),
        "c": xr.concat([card(1.5), card(-0.4, name=name)], "claim"),
    }
    actual = analysis.scorecard_of_runs(cards)
    ax = analysis.plots.plot_runs(actual)
    statements = [CLAIMS[NAME].statement, CLAIMS[name].statement]
    assert [label.get_text() for label in ax.get_yticklabels()] == statements
    points = [line.get_xydata() for line in ax.lines if line.get_marker() == "o"]
    for place, (own_name, sign) in enumerate(((NAME, 1), (name, -1))):
        values = actual.sel(claim=own_name)
        numbers = np.append(values["values"].values, [values["low"], values["high"]])
        away = sign * values["values"].values / np.abs(numbers).max()
        np.testing.assert_allclose(points[place][:, 0], away)
        assert (points[place][:, 1] == place).all()
    with pytest.raises(ValueError, match="None of the claims was tested"):
        analysis.plots.plot_runs(actual.assign(value=actual["value"] * np.nan))


def test_a_report_of_three_reports(tmp_path, capsys):
    names = ("first", "second", "third")
    for name, value in zip(names, (1.0, 1.1, 1.2), strict=True):
        (tmp_path / name / "results").mkdir(parents=True)
        save(card(value), tmp_path / name / "results" / "scorecard.nc")
    folders = [str(tmp_path / name) for name in names]
    assert script.main([*folders, "--out", str(tmp_path / "all")]) == 0
    assert f"as in the paper    {CLAIMS[NAME].statement}" in capsys.readouterr().out
    page = (tmp_path / "all" / "report.html").read_text("utf-8")
    assert "The intervals are over 3 runs" in page and "over images: outcomes" not in page
    assert "Effect in each run: first: 1; second: 1.1; third: 1.2." in page
    assert "such models in general (3 runs of each)" in page and "2108.08810" in page
    saved = xr.load_dataset(tmp_path / "all" / "results" / "scorecard.nc")
    np.testing.assert_allclose(saved["value"].values, 1.1)
    assert script.main([folders[0], str(tmp_path), "--out", str(tmp_path / "none")]) == 2
    assert "No scorecard" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_scorecard_that_was_cut_off_or_changed_is_named(tmp_path, capsys):
    paths = [tmp_path / name / "results" / "scorecard.nc" for name in ("first", "second")]
    for path in paths:
        save(card(1.0), path)
    command = [str(tmp_path / "first"), str(tmp_path / "second"), "--out", str(tmp_path / "both")]
    assert script.main(command) == 0
    whole = paths[1].read_bytes()
    position = len(whole) // 2
    other = bytes([whole[position] ^ 1])
    for content in (b"", whole[:500], whole[:position] + other + whole[position + 1 :]):
        paths[1].write_bytes(content)
        capsys.readouterr()
        assert script.main(command) == 2
        message = capsys.readouterr().err
        assert str(paths[1]) in message and "cut off or changed after" in message
