"""The report in headless Chromium: values answer to mouse and keys, and nothing leaves the file."""

import re

import numpy as np
import pytest
import xarray as xr
from browser import CHROMIUM, Browser, place

from vit_tf.analysis import plots
from vit_tf.analysis.plots import interactive
from vit_tf.analysis.report.page import ReportFigure, write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


NAMES = [f"block{block:02}/{site}/sum" for block in range(3) for site in ("attention", "mlp")]
CKA = np.round(np.linspace(-0.1, 1.1, 36).reshape(6, 6), 3)
DISTANCE = np.array([[9.0, 2.0, 4.0], [8.0, 7.0, 8.5]])


@pytest.fixture
def report(tmp_path):
    """Path of a report with a heatmap and lines."""
    import matplotlib.pyplot as plt

    dims = ("layer_x", "layer_y")
    cka = xr.Dataset(
        {"cka": (dims, CKA), "stderr": (dims, np.full((6, 6), 0.004))},
        coords={"layer_x": NAMES, "layer_y": NAMES},
        attrs={"model_x": "ViT <b>", "model_y": "ViT <b>"},
    )
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
        figures.append(
            ReportFigure(
                name, f"Title of {name}", "Read it.", "", "A plot.", png, interactive=(payload,)
            )
        )
    path = tmp_path / "report.html"
    return write_report(path, title="A", introduction="B", sections=[("S", "", figures)])


def tip(browser, figure):
    """The lines that are shown at a figure, none when nothing is."""
    box = f"document.querySelector('#figure-{figure} .live')"
    return browser.value(
        f"{box}.classList.contains('on') "
        f"? [...{box}.querySelectorAll('.tip > *')].map((line) => line.textContent) : []"
    )


@pytest.mark.slow
def test_heatmap_tells_the_layers_and_value_under_the_mouse(browser, report):
    browser.open(report)
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
    for index, head, value in [(0, 1, 2), (1, 2, 4), (2, 0, 9)]:
        circle = f"#figure-distance .series circle:nth-of-type({index + 1})"
        left, top, width, height = place(browser, circle)
        browser.mouse(left + width / 2 + 2, top + height / 2)
        expected = [f"{value} pixels", "block00/attention/weights", f"head {head}"]
        assert tip(browser, "distance") == expected


@pytest.mark.slow
def test_keys_move_from_cell_to_cell(browser, report):
    browser.open(report)
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
    visible = "getComputedStyle(document.querySelector('#figure-cka > .picture')).display"
    drawn = "getComputedStyle(document.querySelector('#figure-cka .panels')).display"
    assert (browser.value(visible), browser.value(drawn)) == ("none", "flex")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert (browser.value(visible), browser.value(drawn)) == ("block", "none")
    browser.call("Emulation.setEmulatedMedia", media="")

    text = report.read_text(encoding="utf-8")
    (report.parent / "changed.html").write_text(
        text.replace('"use strict";', "window.stolen = 1;"), encoding="utf-8"
    )
    browser.open(report.parent / "changed.html")
    assert browser.value("window.stolen") is None
    assert browser.value(visible) == "block"
    assert re.search("Content Security Policy", browser.named("Log.entryAdded")[0]["entry"]["text"])


def test_pictures_keep_their_size_on_a_small_screen_and_link_to_their_files(browser, tmp_path):
    import matplotlib.pyplot as plt

    (tmp_path / "figures").mkdir()
    figure = plt.figure(figsize=(9, 3), dpi=100)
    figure.savefig(tmp_path / "figures" / "wide one.png")
    plt.close(figure)
    one = ReportFigure("wide", "Wide", "Read it.", "", "A.", tmp_path / "figures" / "wide one.png")
    path = write_report(
        tmp_path / "report.html", title="A", introduction="B", sections=[("S", "", [one])]
    )
    for width, shown in ((1280, 864), (390, 864), (700, 660)):
        browser.open(path, width=width)
        assert browser.value("document.querySelector('img').clientWidth") == shown
        assert browser.value("document.documentElement.scrollWidth") <= width
    link = browser.value("document.querySelector('.picture a').href")
    assert link == (tmp_path / "figures" / "wide one.png").as_uri()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_its_window(browser, report, width):
    browser.open(report, width=width)
    assert browser.value("document.documentElement.scrollWidth") <= width
