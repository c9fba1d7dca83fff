"""One rule for all plots: `plot(result)`, `plot_<measurement>`, `ax=`, and Matplotlib axes back."""

import doctest
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from paths import ROOT
from PIL import Image
from plot_results import results

from vit_tf import analysis
from vit_tf.analysis import plots
from vit_tf.analysis.engine.results import ResultArray, as_result
from vit_tf.analysis.plots.rule import PLOTS, find_plot

RESULTS = results()
RESULTS["mean_distance"].name = "mean_distance"
# Public functions that return no result to draw: helpers, arrays, single numbers, callbacks.
NO_RESULT = {
    *("accumulate", "boundary_accuracy", "cca", "choose", "cka_heatmap", "cluster_scores"),
    *("collect", "correct_keypoints", "dense_features", "dense_size", "distance_lines", "explore"),
    *("fit_ridge_probe", "follow_masks", "gaussian_like", "linear_predictivity", "make_report"),
    *("masked_features", "match_maps", "mutual_knn", "one_pass", "procrustes", "propagate"),
    *("propagate_masks", "pwcca", "rbf_cka", "region_similarity", "report_runs", "rsa"),
    *("scorecard", "scorecard_of_runs", "select_l2", "svcca", "token_cka", "write_masks"),
    *("average_precision", "engine", "features_of", "images_needed", "layers", "write_report"),
    *("extract_features", "load"),
}


# Maps without numbered rows and columns, matrices of names, and scales of their own.
WITHOUT_LABELS = {
    *("attention_maps", "attention_rows", "grad_cam", "gradient_attention", "input_gradients"),
    *("last_layer_cka", "localization", "mean_attention", "patch_filters", "position_attribution"),
    *("attention", "mistakes", "neighbours", "token_similarity", "runs"),
    *("integrated_gradients", "predict"),
}


def drawn_values(axes):
    """All numbers that the artists of some axes show: images, meshes, lines, points and bars."""
    values = []
    for ax in axes:
        values += [np.ma.filled(image.get_array(), np.nan).ravel() for image in ax.images]
        values += [np.asarray(line.get_ydata(), float) for line in ax.lines]
        values += [np.asarray([bar.get_width(), bar.get_height()]) for bar in ax.patches]
        values += [np.ma.filled(c.get_offsets(), np.nan).ravel() for c in ax.collections]
        values += [
            np.ma.filled(c.get_array(), np.nan).ravel()
            for c in ax.collections
            if c.get_array() is not None
        ]
    return np.concatenate(values)


SLOW = pytest.mark.slow
# One of each kind: images, a matrix, points, lines. The example of each plot is quick, too.
QUICK = {"grad_cam", "best_matching_layer", "attention_distance", "ridge_probe", "skip_ratio"}
QUICK |= {"head_ablation", "position_similarity", "clustering"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[SLOW] * (name not in QUICK)) for name in RESULTS],
)
def test_plot_draws_what_the_plot_of_that_name_draws_in_the_axes_given(name):
    result = RESULTS[name]
    before = result.copy(deep=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    ax = getattr(analysis.plots, f"plot_{name}")(result, right, "A title of mine")
    assert ax is right and plt.get_fignums() == [figure.number] and not left.has_data()
    assert ax.get_title() == "A title of mine" and not left.get_title()
    own = analysis.plot(result)
    assert isinstance(own, Axes) and len(plt.get_fignums()) == 2
    mine, theirs = (drawn_values(np.ravel(getattr(a, "panels", a))) for a in (ax, own))
    assert mine.size > 2
    np.testing.assert_array_equal(mine, theirs)
    xr.testing.assert_identical(result, before)
    figure.draw_without_rendering()
    boxes = [panel.get_window_extent() for panel in np.ravel(getattr(ax, "panels", ax))]
    assert min(box.x0 for box in boxes) > left.get_window_extent().x1
    assert min(box.width for box in boxes) > 10
    assert figure.get_size_inches().tolist() == [10, 4]
    panels = np.ravel(getattr(own, "panels", own))
    assert own.get_title()
    if name not in WITHOUT_LABELS:
        assert any(panel.get_xlabel() for panel in panels)
        assert any(panel.get_ylabel() for panel in panels)


@pytest.mark.parametrize(
    "name", ["cka", "mean_attention", "skip_ratio", "localization", "grad_cam", "projection"]
)
def test_plots_do_not_depend_on_the_order_of_dims(name):
    result = RESULTS[name]
    axes = [analysis.plot(x) for x in (result, result.transpose(*list(result.sizes)[::-1]))]
    drawn = [drawn_values(np.ravel(getattr(ax, "panels", ax))) for ax in axes]
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_of_another_measurement_is_refused(name):
    draw = getattr(analysis.plots, f"plot_{name}")
    with pytest.raises(ValueError, match=r"^Expected a Data.*\. Received: list$"):
        draw([1, 2])
    with pytest.raises(ValueError, match=r"^Expected a Data"):
        draw(xr.Dataset({"other": ("layer", [0.5])}))
    if next(iter(inspect.signature(draw).parameters)) == "results":
        with pytest.raises(ValueError, match="at least one result"):
            draw({})


def test_every_measurement_has_the_plot_of_its_name():
    measurements = {
        name
        for name in analysis.__all__
        if name[0].islower() and not name.startswith("plot") and not name.endswith("_statistic")
    }
    missing = {f"plot_{name}" for name in measurements - NO_RESULT} - set(plots.__all__)
    assert not missing


def test_every_public_plot_is_tested_on_a_result():
    public = {name for name in PLOTS if f"plot_{name}" in plots.__all__}
    assert public - {"probe_map"} <= set(RESULTS)  # `plot_probe_map` draws what `ridge_probe` does


def test_the_cka_variable_of_a_result_is_drawn_alone():
    result = RESULTS["cka"]
    for draw in (analysis.plot, analysis.plots.plot_cka):
        (image,) = draw(result.cka).images
        np.testing.assert_array_equal(image.get_array(), result.cka.values.T)


@pytest.mark.parametrize("name", ["cka", "attention_distance", "token_ablation"])
def test_several_results_are_panels_of_one_plot(name):
    result = RESULTS[name]
    other = result.copy(data=result.data[::-1]) if name == "attention_distance" else result * 0.5
    panels = analysis.plot({"A": result, "B": other}).panels
    assert [panel.get_title() for panel in panels] == ["A", "B"]
    for panel, each in zip(panels, (result, other), strict=True):
        alone = getattr(analysis.plots, f"plot_{name}")(each)
        np.testing.assert_array_equal(drawn_values([panel]), drawn_values([alone]))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("attention_rows", {"query": "clss"}, "query.*'cls'"),
        ("attention_rows", {"query": 99}, "query.*0 to 12"),
        ("attention_rows", {"layer": "block00/attention/weigths"}, "mean 'block00/attention/weigh"),
        ("attention_patterns", {"query": "spatal"}, "Did you mean 'spatial'"),
        ("attention_distance", {"layers": ["blok02/attention/weights"]}, "Did you mean 'block02"),
        ("grad_cam", {"class_label": 4}, r"class among 3, 7"),
        ("logit_lens", {"classes": [11]}, r"class among 0, 1"),
        ("token_similarity", {"token": 40}, "token among"),
        ("position_attribution", {"example": 2}, r"example among 0, 1"),
        ("attention_rollout", {"query": 13}, "query.*0 to 12"),
        ("keypoint_correspondence", {"threshold": 0.2}, r"threshold among 0.1, 0.05"),
        ("keypoint_correspondence", {"average": "category"}, "average among"),
        ("clustering", {"score": "f1"}, "score to be one of.*'f1'"),
        ("knn_accuracy", {"top": 3}, r"top among 1, 5"),
        ("head_ablation", {"change": "loss"}, "change to be one of"),
        ("skip_ratio", {"variable": "angle"}, "variable to be one of.*'angle'"),
        ("localization", {"tokens": [64]}, r"tokens among \[0, 1, .*\[64\]"),
        ("localization", {"layer": []}, "layers among"),
    ],
)
def test_errors_of_options_list_the_choices_in_plain_words(name, options, words):
    with pytest.raises(ValueError, match=words) as error:
        analysis.plot(RESULTS[name], **options)
    assert "np." not in str(error.value)


def test_results_that_plot_cannot_draw_are_described():
    cka, skips, field = (RESULTS[name] for name in ("cka", "skip_ratio", "receptive_field"))
    for result, words in (
        (xr.DataArray([1.0], dims="color"), r"result of a measurement.*\(color\)"),
        # Dims alone do not make a result.
        (xr.DataArray([1.0], dims="layer", name="temperature"), "result of a measurement"),
        (xr.DataArray(np.eye(2), dims=("layer", "head")), "result of a measurement"),
        (xr.DataArray([1.0], dims="layer", name="attention_distance"), "result of a measurement"),
        (xr.Dataset({"score": ("layer", [1.0])}), "has the attribute 'model'"),
        ([1], "result of a measurement.*list"),
        ({}, "at least one result"),
        ({"a": cka, "b": skips}, r"one measurement.*\['cka', 'skip_ratio'\]"),
        ({"a": field, "b": field}, "plot_receptive_field.*one result"),
    ):
        with pytest.raises(ValueError, match=words):
            analysis.plot(result)
    with pytest.raises(TypeError, match=r"plot_cka.*query"):
        analysis.plot(RESULTS["cka"], query="cls")


def test_results_read_from_files_are_drawn_as_they_were(tmp_path):
    for name in ("attention_distance", "skip_ratio"):
        RESULTS[name].to_netcdf(tmp_path / "result.nc")
        with xr.open_dataset(tmp_path / "result.nc") as opened:
            drawn, expected = analysis.plot(opened), analysis.plot(RESULTS[name])
            assert drawn.get_title() == expected.get_title()
            for ours, theirs in zip(drawn.lines, expected.lines, strict=True):
                np.testing.assert_array_equal(ours.get_xydata(), theirs.get_xydata())


def test_tables_of_results_have_no_rows_of_pixels(tmp_path):
    mistakes = as_result(RESULTS["mistakes"])
    mistakes.to_netcdf(tmp_path / "mistakes.nc")
    with xr.open_dataset(tmp_path / "mistakes.nc") as opened:
        for table in (mistakes.to_dataframe(), opened.vit.to_dataframe()):
            assert len(table) == 4 and list(table.columns) == ["probability", "predicted", "label"]
            np.testing.assert_array_equal(table["predicted"], RESULTS["mistakes"].predicted)


def test_a_part_of_a_result_without_a_plot_of_its_own_is_drawn_by_xarray():
    distance = ResultArray(RESULTS["attention_distance"].rename("attention_distance"))
    (line,) = distance.mean("head").plot()
    np.testing.assert_allclose(line.get_ydata(), distance.mean("head"))
    assert distance.plot().get_title() == analysis.plot(distance).get_title()


def test_panels_in_axes_without_a_grid():
    figure = plt.figure()
    ax = figure.add_axes((0.5, 0.25, 0.4, 0.5))
    assert analysis.plots.plot_receptive_field(RESULTS["receptive_field"], ax=ax) is ax
    boxes = [panel.get_position() for panel in ax.panels]
    assert min(box.x0 for box in boxes) >= 0.499 and max(box.x1 for box in boxes) <= 0.901
    assert min(box.y0 for box in boxes) >= 0.249 and max(box.y1 for box in boxes) <= 0.751


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("localization", marks=pytest.mark.slow),
        pytest.param("receptive_field", marks=pytest.mark.slow),
        "grad_cam",
    ],
)
def test_titles_of_panels_in_small_axes_do_not_overlap(name):
    figure, axes = plt.subplots(1, 2, figsize=(6.8, 2.6), layout="constrained")
    for ax in axes:
        getattr(analysis.plots, f"plot_{name}")(RESULTS[name], ax=ax)
    figure.draw_without_rendering()
    titles = [panel.title.get_window_extent() for ax in axes for panel in ax.panels]
    assert not any(a.overlaps(b) for i, a in enumerate(titles) for b in titles[:i])


def test_options_of_a_plot_are_keywords_of_its_own():
    for options, words in (({"optoin": 1}, "plot_cka.*'optoin'"), ({"layers": None}, "layers")):
        with pytest.raises(TypeError, match=words):
            plots.plot_cka(RESULTS["cka"], **options)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[SLOW] * (name != "cka")) for name in RESULTS]
)
def test_plot_takes_axes_and_a_title(name):
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    ax = analysis.plot(RESULTS[name], ax=right, title="A title of mine")
    assert ax is right and plt.get_fignums() == [figure.number] and not left.has_data()
    assert ax.get_title() == "A title of mine" and not left.get_title()


def test_a_title_may_be_long():
    long = " ".join(["nine words of a title that fills several lines"] * 4)
    ax = analysis.plot(RESULTS["cka"], title=long)
    assert ax.get_title().replace("\n", " ") == long
    ax.figure.draw_without_rendering()
    assert ax.title.get_window_extent().width < ax.figure.bbox.width


PHOTO = np.random.default_rng(1).integers(0, 256, (24, 32, 3)).astype("uint8")


@pytest.mark.parametrize("name", ["attention_maps", "mean_attention", "attention_rollout"])
@pytest.mark.parametrize("photo", [PHOTO, Image.fromarray(PHOTO)], ids=["array", "PIL"])
def test_attention_maps_lie_over_the_photograph(name, photo):
    alone = analysis.plot(RESULTS[name]).panels.ravel()
    over = analysis.plot(RESULTS[name], image=photo).panels.ravel()
    for before, after in zip(alone, over, strict=True):
        below, drawn = after.images
        np.testing.assert_allclose(below.get_array(), PHOTO / 255)
        np.testing.assert_array_equal(drawn.get_array(), before.images[0].get_array())
        assert below.get_extent() == drawn.get_extent() == [-0.5, 31.5, 23.5, -0.5]
        assert drawn.get_alpha() < 1 and not len(after.get_xticks())


def test_rollouts_of_images_lie_over_the_image_of_each():
    photos = [PHOTO, 255 - PHOTO]
    panels = analysis.plot(RESULTS["rollout_of_images"], image=photos).panels
    for panel, photo in zip(panels, photos, strict=True):
        np.testing.assert_allclose(panel.images[0].get_array(), photo / 255)


def test_a_result_has_one_plot_however_many_have_its_dims():
    for name, result in RESULTS.items():
        drawn = find_plot(result).__name__
        assert getattr(plots, drawn) is getattr(plots, f"plot_{name}") or name in BY_NAME, name


# Results of the dims of other ones, whose plots `plot` does not choose.
BY_NAME = {"layer_match_accuracy"}
DECORATED = sorted(name for name in plots.__all__ if name not in ("plot", "plot_overlay"))


@pytest.mark.parametrize("name", DECORATED)
def test_help_says_what_the_signature_says_and_the_example_runs(name):
    function = getattr(plots, name)
    signature = inspect.signature(function)
    first, ax, title, *options = signature.parameters.values()
    assert first.name == ("results" if "dict[" in str(first.annotation) else "result")
    assert (ax.name, title.name) == ("ax", "title") and ax.default is title.default is None
    assert all(option.kind is option.KEYWORD_ONLY for option in options)
    assert all(x.annotation is not x.empty for x in signature.parameters.values())
    assert signature.return_annotation == "Axes"
    text = inspect.getdoc(function)
    sections = ("Args:", "Returns:", "Raises:", "Examples:", "See also:")
    positions = [text.index(section) for section in sections]
    assert positions == sorted(positions)
    documented = re.findall(r"^    (\w+): \S", text[positions[0] : positions[1]], re.MULTILINE)
    assert documented == list(signature.parameters)
    for other in re.findall(r"`(plot_\w+)`", text):
        assert hasattr(plots, other), other
    with pytest.raises(TypeError, match=function.__name__):
        function()
    several_runs = ("plot_data_scale", "plot_probes", "plot_accuracy_by_data", "plot_best_layers")
    if name not in several_runs:
        _run_example(text, name)


def _run_example(text, name):
    """Runs the example of a docstring on the synthetic results, whatever the models are."""
    measured = {key: (lambda *_, key=key, **__: RESULTS[key].copy()) for key in RESULTS}
    measured["scorecard_of_runs"] = measured["runs"]
    probe = RESULTS["ridge_probe"]
    of_each = xr.DataArray(
        np.random.default_rng(0).uniform(size=(8, 1, 13)),
        {"layer": probe.layer.values},
        ("layer", "l2", "token"),
        attrs=probe.attrs,
    )

    # The functions whose examples leave out an argument would fail with these.
    def ridge_probe(model, train, test, tokens="all"):
        return of_each if tokens == "each" else probe

    measured["ridge_probe"] = ridge_probe
    placeholders = "model other_model models images other_images labels masks train test videos"
    placeholders += " pairs aligned lens kernel embedding grid queries gallery truth folders"
    space = dict.fromkeys(placeholders.split())
    recorded = {"attention_distance": xr.concat([RESULTS["attention_distance"]] * 2, "epoch")}
    recorder = SimpleNamespace(result=RESULTS["formation"], results=recorded)
    space |= {"recorder": recorder, "table": RESULTS["compute"]}
    space["analysis"] = SimpleNamespace(plots=plots, **measured)
    example = doctest.DocTestParser().get_doctest(text, space, name, None, None)
    assert len(example.examples) == 2
    report = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not report, "".join(report)


@pytest.mark.slow
def test_signatures_of_a_type_checker_are_those_of_the_plots(tmp_path):
    """What `help` says of a plot is what pyright knows of it: names, order and defaults."""
    pyright = Path(sys.executable).with_name("pyright")
    # It downloads Node.js where there is none.
    if not pyright.exists() or subprocess.run([pyright, "--version"]).returncode:
        pytest.skip("pyright is not installed, or cannot be run")
    names = ["plot_grad_cam", "plot_skip_ratio", "plot_cka"]
    path = ROOT / f"typed_{os.getpid()}.py"
    lines = [
        f"from analysis.plots import {', '.join(names)}",
        *(f"reveal_type({x})" for x in names),
    ]
    try:
        path.write_text("\n".join(lines))
        command = [pyright, "--pythonpath", sys.executable, path]
        answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout
    finally:
        path.unlink()
    types = re.findall(r'Type of "(\w+)" is "PlotFunction\[.*, \((.*)\)\]"', answer)
    assert [name for name, _ in types] == names, answer
    for name, options in types:
        own = list(inspect.signature(getattr(plots, name)).parameters)[3:]
        assert re.findall(r"(\w+): ", options) == own


@pytest.mark.long  # the notebooks of the documentation count their pictures, too
def test_a_notebook_shows_each_picture_once(monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    import nbformat

    monkeypatch.delenv("MPLBACKEND", raising=False)
    first = """
    import sys
    sys.path.insert(0, "tests/helpers")
    from plot_results import results
    from vit_tf import analysis
    """
    names = ("cka", "receptive_field", "attention_distance")
    cells = [textwrap.dedent(first), *(f"analysis.plot(results()[{name!r}])" for name in names)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": "."}}).execute()
    for cell in notebook.cells[1:]:
        assert sum("image/png" in output.get("data", {}) for output in cell.outputs) == 1
