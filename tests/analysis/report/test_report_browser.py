"""The report in headless Chromium: values answer to mouse and keys, and nothing leaves the file."""

import re

import numpy as np
import pytest
import xarray as xr
from browser import CHROMIUM, place
from study_parts import cka_result, tested_claim

from vit_tf.analysis import plots
from vit_tf.analysis.plots import interactive
from vit_tf.analysis.report.first_screen import Comparison
from vit_tf.analysis.report.page import ModelSummary, Panel, ReportFigure, Section, write_report
from vit_tf.analysis.statistics.estimates import accuracy_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


NAMES = [f"block{block:02}/{site}/sum" for block in range(3) for site in ("attention", "mlp")]
CKA = np.round(np.linspace(-0.1, 1.1, 36).reshape(6, 6), 3)
DISTANCE = np.array([[9.0, 2.0, 4.0], [8.0, 7.0, 8.5]])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Path of a report with a heatmap and lines."""
    import matplotlib.pyplot as plt

    tmp_path = tmp_path_factory.mktemp("report")

    cka = cka_result(CKA, NAMES, stderr=0.004, model_x="ViT <b>", model_y="ViT <b>")
    cka["cka"][2, 3] = np.nan
    weights = ["block00/attention/weights", "block01/attention/weights"]
    distance = xr.DataArray(
        DISTANCE,
        dims=("layer", "head"),
        coords={"layer": weights, "head": range(3)},
        attrs={"model": "ViT"},
    )
    figures = []
    for name, plot, result, payload in [
        ("cka", plots.plot_cka, cka, interactive.cka_heatmap(cka)),
        ("distance", plots.plot_attention_distance, distance, interactive.distance_lines(distance)),
    ]:
        png = tmp_path / f"{name}.png"
        drawn = plot(result).figure
        drawn.savefig(png)
        plt.close(drawn)
        texts = (f"Title of {name}", "Read it.", "", "A plot.")
        code = f"plot({name!r})\nprint(1 < 2)"
        figures.append(ReportFigure(name, *texts, png, interactive=(payload,), code=code))
    small = plt.figure(figsize=(1.9, 1.6))
    small.savefig(tmp_path / "small.png")
    plt.close(small)
    return write_report(
        tmp_path / "report.html",
        title="A",
        introduction="B",
        sections=[Section("S", "Why?", figures, "ViT wins.")],
        summary=[
            ModelSummary("ViT", "ViT with a CLS token", "vit", 1_200_000, accuracy_of(6 / 9, 9))
        ],
        sentences=["ViT attends more globally than BiT."] * 5,
        overview=[Panel(f"CKA {number}", tmp_path / "small.png", "CKA.") for number in range(5)],
        scorecard=[claim(number) for number in range(30)],
        differences=[COMPARISON] * 8,
        figures_of_claims={"claim-3": "distance"},
    )


def claim(number):
    """As in the paper, opposite or undecided."""
    low, high = ((0.1, 0.3), (-0.3, -0.1), (-0.1, 0.1))[number % 3]
    return tested_claim(
        *((low + high) / 2, low, high),
        name=f"claim-{number}",
        statement=f"Statement number {number} about the layers of a ViT and of a ResNet.",
        **{"results": (), "source": ("A paper", "https://example.org"), "models": ("ViT", "BiT")},
    )


COMPARISON = Comparison(
    "CKA between lower and upper half",
    "Mean CKA.",
    "CKA",
    (("ViT", accuracy_of(5 / 9, 9)), ("BiT", accuracy_of(3 / 9, 9))),
    ("ViT and BiT: not significant.",),
)


def unfold(browser, figure):
    """Open the details of a figure, which is then drawn."""
    browser.value(
        f"new Promise(done => {{ document.querySelector('#figure-{figure} details').open = true;"
        "requestAnimationFrame(() => requestAnimationFrame(done)); })"
    )


def tip(browser, figure):
    """The lines that are shown at a figure, none when nothing is."""
    box = f"document.querySelector('#figure-{figure} .live')"
    return browser.value(
        f"{box}.classList.contains('on') "
        f"? [...{box}.querySelectorAll('.tip > *')].map((line) => line.textContent) : []"
    )


@pytest.mark.slow
def test_heatmap_shows_the_layers_and_value_under_the_mouse(browser, report):
    browser.open(report)
    unfold(browser, "cka")
    left, top, width, height = place(browser, "#figure-cka .cells")
    for column, row in [(0, 0), (5, 0), (1, 4), (2, 3)]:
        browser.mouse(left + (column + 0.5) * width / 6, top + (5.5 - row) * height / 6)
        value = "no value" if (column, row) == (2, 3) else f"{CKA[column, row]:.3g} ± 0.004"
        assert tip(browser, "cka") == [
            f"CKA {value.replace('-', chr(0x2212))}",
            f"\u2194 {NAMES[column]}",
            f"\u2195 {NAMES[row]}",
        ]
    browser.mouse(left - 30, top - 30)
    assert tip(browser, "cka") == []


def test_heatmap_has_the_colours_of_the_picture(browser, report):
    from matplotlib import colormaps

    browser.open(report)
    unfold(browser, "cka")
    pixels = browser.value(
        "(async () => { const image = new Image();"
        "image.src = document.querySelector('#figure-cka .cells').getAttribute('href');"
        "await image.decode(); const canvas = document.createElement('canvas');"
        "canvas.width = image.width; canvas.height = image.height;"
        "const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);"
        "return Array.from(context.getImageData(0, 0, 48, 48).data); })()"
    )
    image = np.reshape(pixels, (6, 8, 6, 8, 4))[::-1, 4, :, 4, :3].swapaxes(0, 1)
    expected = np.round(255 * colormaps["magma"](CKA)[..., :3])
    expected[2, 3] = 0xD9
    np.testing.assert_array_equal(image, expected)


def test_lines_name_the_head_next_to_the_mouse(browser, report):
    browser.open(report)
    unfold(browser, "distance")
    for index, head, value in [(0, 1, 2), (1, 2, 4), (2, 0, 9)]:
        circle = f"#figure-distance .series circle:nth-of-type({index + 1})"
        left, top, width, height = place(browser, circle)
        browser.mouse(left + width / 2 + 2, top + height / 2)
        expected = [f"{value} pixels", "block00/attention/weights", f"head {head}"]
        assert tip(browser, "distance") == expected


@pytest.mark.slow
def test_keys_move_from_cell_to_cell(browser, report):
    browser.open(report)
    unfold(browser, "cka")
    browser.value("document.querySelector('#figure-cka .plot').focus()")
    for name in ("ArrowRight", "ArrowRight", "ArrowUp"):
        browser.key(name)
    steps = tip(browser, "cka")
    assert steps[1:] in (
        [f"\u2194 {NAMES[1]}", f"\u2195 {NAMES[1]}"],
        [f"\u2194 {NAMES[2]}", f"\u2195 {NAMES[1]}"],
    )
    browser.key("Escape")
    assert tip(browser, "cka") == []


@pytest.mark.slow
def test_nothing_leaves_the_file_and_nothing_goes_wrong(browser, report):
    browser.open(report)
    browser.mouse(400, 400)
    asked = [request["request"]["url"] for request in browser.named("Network.requestWillBeSent")]
    assert asked[0] == report.as_uri()
    assert all(url.startswith("data:image/png;base64,") or url == "data:," for url in asked[1:])
    assert not browser.named("Runtime.consoleAPICalled")
    assert not browser.named("Runtime.exceptionThrown")
    assert not browser.named("Log.entryAdded")


def test_picture_stays_for_print_and_where_the_script_is_another(browser, report):
    browser.open(report)
    visible = "getComputedStyle(document.querySelector('#figure-cka .pictures')).display"
    drawn = "getComputedStyle(document.querySelector('#figure-cka .panels')).display"
    assert (browser.value(visible), browser.value(drawn)) == ("none", "grid")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert (browser.value(visible), browser.value(drawn)) == ("flex", "none")
    browser.call("Emulation.setEmulatedMedia", media="")

    text = report.read_text(encoding="utf-8")
    (report.parent / "changed.html").write_text(
        text.replace('"use strict";', "window.stolen = 1;"), encoding="utf-8"
    )
    browser.open(report.parent / "changed.html")
    assert browser.value("window.stolen") is None
    assert browser.value(visible) == "flex"
    assert re.search("Content Security Policy", browser.named("Log.entryAdded")[0]["entry"]["text"])


def test_pictures_keep_their_size_on_a_small_screen_and_link_to_their_files(browser, tmp_path):
    import matplotlib.pyplot as plt

    (tmp_path / "figures").mkdir()
    figure = plt.figure(figsize=(9, 3), dpi=100)
    figure.savefig(tmp_path / "figures" / "wide one.png")
    plt.close(figure)
    item = ReportFigure("wide", "Wide", "Read it.", "", "A.", tmp_path / "figures" / "wide one.png")
    path = write_report(
        tmp_path / "report.html", title="A", introduction="B", sections=[("S", "", [item])]
    )
    for width, shown in ((1280, 864), (390, 864), (700, 637)):
        browser.open(path, width=width)
        unfold(browser, "wide")
        assert browser.value("document.querySelector('.picture img').clientWidth") == shown
        assert browser.value("document.documentElement.scrollWidth") <= width
    link = browser.value("document.querySelector('.picture a').href")
    assert link == (tmp_path / "figures" / "wide one.png").as_uri()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("folded", [True, False])
def test_page_fits_its_window(browser, report, width, folded):
    browser.open(report, width=width)
    if not folded:
        browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.value("document.documentElement.scrollWidth") <= width


def test_the_first_screen_holds_models_results_overview_and_claims(browser, report):
    browser.open(report, width=1280, height=900)
    for selector in (".models li", ".results", ".overview img", ".strips .mark"):
        bottom = f"document.querySelector({selector!r}).getBoundingClientRect().bottom"
        assert 0 < browser.value(bottom) < 900, selector


def test_the_leading_figure_is_open_and_others_are_bars_with_a_thumbnail(browser, report):
    browser.open(report, width=1280, height=900)
    for selector, shown in (("main > section", "figure details"), (".untested", "details")):
        opened = browser.value(
            f"[...document.querySelectorAll({selector!r})].map(part => "
            f"[...part.querySelectorAll({shown!r})].map(fold => fold.open))"
        )
        for folds in filter(None, opened):
            assert folds == [selector == "main > section", *[False] * (len(folds) - 1)]
    figures = "[...document.querySelectorAll('main figure')]"
    pictured = browser.value(
        f"{figures}.filter(one => one.querySelector('.pictures')).map(one => {{"
        "const [thumb, image] = ['.thumb', '.picture img'].map(name => one.querySelector(name));"
        "const fold = one.querySelector('details');"
        "return [thumb.src === image.src, thumb.clientHeight > 0, fold.open]; })"
    )
    assert len(pictured) > 1
    for same, is_visible, is_open in pictured:
        assert same and is_visible is not is_open
    press = "document.querySelector('.open-all').click()"
    closed = f"{figures}.filter(one => !one.querySelector('details').open).length"
    for name, count in (("Open", 0), ("Close", len(browser.value(f"{figures}.map(() => 0)")))):
        wait = "new Promise(done => setTimeout(done, 50))"
        browser.value(f"{wait}.then(() => 0)")
        label = browser.value("document.querySelector('.open-all').textContent")
        assert label == f"{name} all figures"
        browser.value(press)
        assert browser.value(closed) == count


@pytest.mark.parametrize("number", [1, 15, 30])
def test_a_mark_reaches_its_claim(browser, report, number):
    browser.open(report, width=1280, height=900)
    mark = f'[href="#claim-{number}"]'
    left, top, width, height = place(browser, f".strips {mark}")
    browser.click(left + width / 2, top + height / 2)
    assert browser.value(
        "new Promise((done) => setTimeout(() => { const claim = "
        f"document.getElementById('claim-{number}'); const box = claim.getBoundingClientRect();"
        "done(claim.closest('details').open && box.height > 0 && box.top >= 0 &&"
        " box.top < innerHeight); }, 1200))"
    )
    text = browser.value(f"document.getElementById('claim-{number}').parentElement.textContent")
    assert f"Statement number {number - 1} " in text


def test_a_link_to_a_figure_unfolds_it(browser, report):
    browser.open(report, width=1280, height=900)
    browser.value("document.getElementById('claim-4').closest('details').open = true")
    left, top, width, height = place(browser, "#claim-4 a[href='#figure-distance']")
    browser.click(left + width / 2, top + height / 2)
    shown = "document.querySelector('#figure-distance details').open"
    assert browser.value(f"new Promise((done) => setTimeout(() => done({shown}), 300))")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_contents_stay_in_view(browser, report, width):
    browser.open(report, width=width, height=900)
    browser.value("document.documentElement.style.scrollBehavior = 'auto'")
    browser.value("scrollTo(0, document.documentElement.scrollHeight)")
    assert browser.value("scrollY") > 300
    box = "document.querySelector('nav a').getBoundingClientRect()"
    assert 0 <= browser.value(f"{box}.top") < browser.value(f"{box}.bottom") < 900


def test_the_page_is_dark_where_the_system_is(browser, report):
    def lightness():
        style = "getComputedStyle(document.body)"
        colours = browser.value(f"[{style}.backgroundColor, {style}.color]")
        return [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]

    browser.open(report)
    page, ink = lightness()
    assert page > 700 and ink < 200
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", features=[dark])
    page, ink = lightness()
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert page < 120 and ink > 600


def test_copy_code_copies_the_code_of_its_figure(browser, report):
    browser.open(report)
    unfold(browser, "distance")
    browser.value(
        "Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => {"
        "window.copiedText = text; } } })"
    )
    left, top, width, height = place(browser, "#figure-distance .copy")
    browser.click(left + width / 2, top + height / 2)
    label = "document.querySelector('#figure-distance .copy').textContent"
    assert browser.value(f"new Promise((done) => setTimeout(() => done({label}), 100))") == "Copied"
    assert browser.value("window.copiedText") == "plot('distance')\nprint(1 < 2)"


@pytest.mark.slow
def test_print_shows_the_figures_and_no_controls(browser, report):
    browser.open(report)
    browser.call("Emulation.setEmulatedMedia", media="print")
    hidden = (
        "['nav', 'button', '.code'].every((one) => getComputedStyle("
        "document.querySelector(one)).display === 'none')"
    )
    assert browser.value(hidden)
    assert (
        browser.value(
            "document.querySelector('#figure-cka .picture img').getBoundingClientRect().height"
        )
        > 50
    )
    browser.call("Emulation.setEmulatedMedia", media="")
