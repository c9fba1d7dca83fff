"""What fails in a report or on a page is explained there, and the rest is written."""

import html
import itertools
import re

import keras
import matplotlib.pyplot as plt
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from study_models import study_model_of

from vit_tf import TokenGrid, analysis
from vit_tf.analysis.explorer import exploration, exploration_results
from vit_tf.analysis.figures import measure
from vit_tf.analysis.figures.data import Data
from vit_tf.analysis.figures.figure import Figure, Overview, Picture, each
from vit_tf.analysis.figures.measure import task
from vit_tf.analysis.papers.chapters import LOCALITY, STRUCTURE
from vit_tf.analysis.papers.raghu import RAGHU
from vit_tf.analysis.report import rendering
from vit_tf.analysis.report.assemble import write_figures
from vit_tf.analysis.report.drawing import Drawer, draw
from vit_tf.analysis.statistics.claims import NotTested, Tested, claim, quantity
from vit_tf.analysis.statistics.estimates import accuracy_of
from vit_tf.common.errors import NO_MEMORY, explain

TAPS = ("embedding", "block00/attention/weights", "block00/mlp/sum", "logits")
MODEL = study_model_of("ViT", "vit", "key", TAPS, TokenGrid(2, 2, 1, 4), None)
IMAGES = tf.data.Dataset.from_tensor_slices(np.zeros((4, 8, 8, 3), np.float32)).batch(4)
DATA = Data(IMAGES, IMAGES)
NO_GRADIENT = LookupError("No gradient defined for operation 'a/b' (op type: Bincount)")
INVALID = tf.errors.InvalidArgumentError(
    None, None, "Graph execution error:\n\nDetected at node a\n<not available>\nIncompatible "
    "shapes: [1] vs. [2]\n\t [[{{node a}}]] [Op:__inference_f_1]"
)  # fmt: skip
# What is raised, what the report says of it, and whether it is a bug, whose traceback is logged.
ERRORS = {
    "value": (
        ValueError("Expected more. Received: less"),
        "It needs more, but received less",
        False,
    ),
    "gradient": (NO_GRADIENT, "no gradient of the operation Bincount", False),
    "invalid": (INVALID, "InvalidArgumentError: Incompatible shapes: [1] vs. [2]", False),
    "memory": (MemoryError(), NO_MEMORY, False),
    "device": (tf.errors.ResourceExhaustedError(None, None, "OOM"), NO_MEMORY, False),
    "file": (FileNotFoundError(2, "No such file", "a.png"), "a.png", False),
    "type": (TypeError("one and none"), "unexpected error; the log has its traceback", True),
    "key": (KeyError("layer"), "KeyError: 'layer'", True),
    "runtime": (RuntimeError("it broke"), "RuntimeError: it broke", True),
    "own": (ValueError("too few heads"), "too few heads", False),
}


# No parts of functions, with whose values results are keyed: what is raised, and what was measured.
RAISED, MEASURED = [], []


def raises(error):
    """A function that raises an error."""
    position = len(RAISED)
    RAISED.append(error)

    def fail(*_):
        raise RAISED[position]

    return fail


def plot(result):
    _, ax = plt.subplots(figsize=(1, 1))
    ax.plot(result.values)
    return ax


def result():
    return xr.DataArray(np.arange(3.0), dims="layer", attrs={"model": "ViT"})


def make_figure(name, make=result, **changes):
    """A figure of its own measurement."""
    fields = {"paper": RAGHU, "numbers": name, "chapter": STRUCTURE, "shows": name, "draw": plot}
    fields |= {"models": each("vit"), "name": f"{name}-{{model}}", "title": f"Title {name}"}
    fields |= {"measure": lambda model: task(name, model, make), "caption": "Read it."}
    return Figure(**fields | changes)


def write(figures, folder):
    """The report of these figures, and its text."""
    report = write_figures(figures, [MODEL], DATA, folder, title="Failures")
    text = html.unescape(re.sub(r"<[^>]*>", " ", report.path.read_text("utf-8")))
    return report, " ".join(text.split())


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_a_sentence_and_a_bug_is_logged(name, caplog):
    error, words, is_bug = ERRORS[name]
    try:
        raise error
    except Exception as raised:
        reason = explain(raised, "cka.vit")
    assert words in reason and "\n" not in reason and "{{" not in reason
    assert ("cka.vit failed:\nTraceback" in caplog.text) == is_bug


def test_an_operation_on_arrays_that_do_not_fit_is_a_bug(caplog):
    try:
        np.zeros(3) + np.zeros(4)
    except ValueError as raised:
        assert "ValueError: operands" in explain(raised, "cka.vit")
    assert "Traceback" in caplog.text


def test_a_report_shows_what_can_be_made_and_explains_the_rest(tmp_path, caplog):
    figures = [make_figure("good")]
    figures += [make_figure(name, raises(error)) for name, (error, *_) in ERRORS.items()]
    report, text = write(figures, tmp_path)
    assert report.results.keys() == {"good.vit"}
    assert (tmp_path / "figures" / "good-vit.png").stat().st_size
    reasons = dict(report.left_out)
    for name, (_, words, is_bug) in ERRORS.items():
        (reason,) = reasons[f"Title {name}: ViT"]
        assert words in reason and words in text
        assert (f"{name}.vit failed:" in caplog.text) == is_bug


def test_failing_plots_captions_claims_and_comparisons_are_explained(tmp_path, caplog):
    def statistic(_):
        """A claim that breaks.

        Its value.
        """
        raise ZeroDivisionError("no layers")

    bad_claim = claim("sound.{vit}", "Figure 1", "value", "above", 0.1, name="breaks")(statistic)
    bad_quantity = quantity("sound.{model}", unit="value")(statistic)
    bad_overview = Overview("small plot", raises(IndexError("none")), "value")
    figures = [
        make_figure("sound", claims=[bad_claim], quantities=[bad_quantity], overview=bad_overview),
        make_figure("plot", draw=raises(KeyError("column"))),
        make_figure("memory", draw=raises(MemoryError())),
        make_figure("caption", caption=raises(AttributeError("no grid"))),
        make_figure("sentence", instead=raises(TypeError("no text"))),
        make_figure("interactive", interactive=raises(RuntimeError("no page"))),
        make_figure("plan", measure=raises(AttributeError("'NoneType' has no 'rows'"))),
    ]
    report, text = write(figures, tmp_path)
    assert "Title sound" in text
    (row,) = report.claims
    assert isinstance(row, NotTested) and "ZeroDivisionError: no layers" in row.reason
    reasons = {title: why for title, (why,) in report.left_out}
    words = {"plot": "KeyError", "caption": "no grid", "sentence": "no text"}
    words |= {"memory": NO_MEMORY, "interactive": "no page", "plan": "rows"}
    for name, word in words.items():
        assert sum(word in reason for reason in reasons.values()) == 1, name
        assert word in text
        assert not (tmp_path / "figures" / f"{name}-vit.png").exists() or name in (
            "caption",
            "interactive",
        )
    assert (
        "IndexError" in reasons["small plot"] and "ZeroDivision" in reasons["A claim that breaks"]
    )
    assert caplog.text.count("Traceback") == 8  # all but that of the memory


def test_a_stop_stops(tmp_path):
    for stop in (KeyboardInterrupt, SystemExit):
        with pytest.raises(stop):
            write([make_figure("good"), make_figure("stop", raises(stop()))], tmp_path)


def test_a_full_disk_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "store_result", raises(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write([make_figure("good")], tmp_path)


def test_only_failures_are_one_error(tmp_path):
    with pytest.raises(ValueError, match=r"No figure applies .* it broke"):
        write([make_figure("bad", raises(RuntimeError("it broke")))], tmp_path)


def test_a_report_measures_the_leading_figures_and_lists_the_others(tmp_path):
    """The claim of a figure that is left for later is tested if its results are measured."""
    MEASURED.clear()

    def make(name):
        def measure():
            MEASURED.append(name)
            return result()

        return measure

    def claim_about(*names):
        def estimator(*values):
            """A claim.

            Its value.
            """
            return accuracy_of(float(values[0][1]) / 10, 10)

        inputs = " ".join(f"{name}.{{vit}}" for name in names)
        options = {"name": "-".join(names), "beyond_untrained": False}
        return claim(inputs, "Figure 1", "value", "above", 0.1, **options)(estimator)

    figures = [
        make_figure("first", make("first"), claims=[claim_about("first")]),
        make_figure("second", make("second"), claims=[claim_about("second", "first")]),
        make_figure("third", make("third"), claims=[claim_about("first", "other")]),
        make_figure("other", make("other"), chapter=LOCALITY),
    ]
    reports = [
        write_figures(
            figures,
            [MODEL],
            DATA,
            tmp_path,
            numbers=numbers,
            command=lambda numbers: "add " + ",".join(numbers),
            title="Later",
        )
        for numbers in (["main"], ["main", "third"], ["all"])
    ]
    page = reports[0].path.read_text("utf-8")
    assert [set(report.results) for report in reports] == [
        {"first.vit", "other.vit"},
        {"first.vit", "third.vit", "other.vit"},
        {"first.vit", "second.vit", "third.vit", "other.vit"},
    ]
    assert MEASURED == ["first", "other", "third", "second"]  # none is measured twice
    assert [[row.name for row in report.claims] for report in reports] == [
        ["first", "first-other"],
        ["first", "first-other"],
        ["first", "second-first", "first-other"],
    ]
    assert all(isinstance(row, Tested) for report in reports for row in report.claims)
    assert "more figure" not in page  # of the last report, which draws all


def test_the_page_shows_how_to_add_the_figures_that_it_leaves_out(tmp_path):
    figures = [make_figure("first"), make_figure("second"), make_figure("third")]
    report = write_figures(
        figures,
        [MODEL],
        DATA,
        tmp_path,
        numbers=["main"],
        command=lambda numbers: "add " + ",".join(numbers),
        title="Later",
    )
    page = report.path.read_text("utf-8")
    assert "2 more figures, not measured by default" in page
    assert "<code>add main,second,third</code>" in page
    assert len(list((tmp_path / "figures").glob("*.png"))) == 1


def test_what_failed_is_made_by_the_next_run(tmp_path):
    def once():
        if RAISED and str(RAISED[-1]) == "for once":
            raise RAISED.pop()
        return result()

    RAISED.append(RuntimeError("for once"))

    write([make_figure("good"), make_figure("once", once)], tmp_path)
    report, _ = write([make_figure("good"), make_figure("once", once)], tmp_path)
    assert report.results.keys() == {"good.vit", "once.vit"} and not report.left_out


CORRUPT = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "other": lambda path: path.write_bytes(b"[1, 2]"),
    "one byte": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"),
}


FILES = "results/good.vit.nc", "results/scorecard.nc", "figures/good-vit.png", "figures/keys.json"
QUICK = ("truncated", FILES[0]), ("one byte", FILES[1]), ("other", FILES[2]), ("empty", FILES[3])


@pytest.mark.parametrize(
    ("corrupt", "name"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(CORRUPT, FILES)
    ],
)
def test_a_corrupt_file_of_a_report_is_made_again(name, corrupt, tmp_path, caplog):
    def statistic(values):
        """A claim.

        Its value.
        """
        return accuracy_of(float(values[1]) / 10, 10)

    options = {"beyond_untrained": False}
    made = claim("good.{vit}", "Figure 1", "value", "above", 0.1, **options)(statistic)
    figures = [make_figure("good", claims=[made])]
    write(figures, tmp_path)
    whole = (tmp_path / name).read_bytes()
    if name == "figures/keys.json" and corrupt == "one byte":
        return
    CORRUPT[corrupt](tmp_path / name)
    report, _ = write(figures, tmp_path)
    if name.endswith((".png", ".json")):
        assert (tmp_path / name).read_bytes() == whole
    else:
        xr.load_dataset(tmp_path / name)
    assert report.results["good.vit"].equals(result())
    assert not report.left_out
    if not (name.endswith("scorecard.nc") and corrupt == "one byte"):
        assert name.rpartition("/")[2] in caplog.text


def test_a_picture_whose_process_ended_is_drawn_here(tmp_path):
    class Ended:
        @staticmethod
        def done():
            return True

        @staticmethod
        def result():
            raise rendering.ProcessEnded("A process that draws pictures ended with status -9")

    class Process:
        @staticmethod
        def start(_):
            return Ended

    figure = make_figure("good")
    picture = Picture(figure, (MODEL,), {"ViT": figure.measure(MODEL)}, single=True)
    results = {"good.vit": result().assign_attrs(key="k")}
    drawer = Drawer(tmp_path, Process())
    ((_, made),) = draw([[picture]], results, tmp_path, drawer=drawer)
    assert made.panels[0].png.stat().st_size and not drawer.failures


@pytest.fixture
def cnn():
    x = images = keras.Input((16, 24, 3))
    for stride in (2, 1):
        x = keras.layers.Conv2D(4, 3, stride, "same", activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras.layers.Dense(3)(x), name="cnn")


@pytest.mark.slow
def test_a_page_of_images_shows_what_can_be_made(cnn, tmp_path, monkeypatch, caplog):
    measures = exploration_results.MEASURES
    for name, (error, *_) in zip(
        ("fields", "grad_cam", "token_norms"), ERRORS.values(), strict=False
    ):
        monkeypatch.setitem(measures, name, (measures[name][0], raises(error)))
    monkeypatch.setitem(exploration.PACKERS, "input_gradients", raises(TypeError("no bytes")))
    photo = np.random.default_rng(0).integers(0, 256, (16, 24, 3)).astype("uint8")
    page = analysis.explore(cnn, photo, tmp_path / "page.html", samples=1)
    assert {"scores", "components"} <= page.results.keys()
    reasons = {title: why for title, (why,) in page.left_out}
    assert "It needs more, but received less." in reasons["Receptive fields"]
    assert "operation Bincount" in reasons["Grad-CAM"]
    assert "Incompatible shapes" in reasons["Norms of tokens"]
    assert "no bytes" in reasons["Input gradients"] and "input_gradients" not in page.results
    assert caplog.text.count("Traceback") == 1
    text = page.path.read_text("utf-8")
    assert "Incompatible shapes" in text

    monkeypatch.setitem(measures, "scores", (measures["scores"][0], raises(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        analysis.explore(cnn, photo, tmp_path / "page.html")
