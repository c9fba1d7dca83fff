"""The page of single images in headless Chromium: what it shows are the numbers of the results."""

import base64
import io
import json

import numpy as np
import pytest
import tensorflow as tf
from browser import CHROMIUM, place
from oracles import randomize
from packed_arrays import unpack
from PIL import Image

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine.class_scores import as_probabilities
from vit_tf.analysis.heads.saliency import most_attended
from vit_tf.analysis.plots.style import colour_map

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")]

LEVEL = 1 / 255  # of a colour; numbers on the page are rounded to as many steps again


def random_images(count):
    """Images with large parts, as arrays of levels."""
    coarse = np.random.default_rng(1).integers(0, 256, (count, 4, 6, 3))
    return list(coarse.repeat(8, axis=1).repeat(8, axis=2).astype("uint8"))


@pytest.fixture(scope="module")
def vit_page(tmp_path_factory):
    """The `Exploration` of two images, whose grid is oblong."""
    vit = vit_tf.ViT((32, 48, 3), 8, 2, 3, 12, 16, 6, class_names=list("abcdef"))
    randomize(vit)
    path = tmp_path_factory.mktemp("vit") / "page.html"
    return analysis.explore(vit, random_images(2), path, samples=2)


@pytest.fixture(scope="module")
def bit_page(tmp_path_factory):
    bit = vit_tf.BiT((32, 48, 3), units=(1, 1), num_classes=3, stem="small", width_factor=0.5)
    randomize(bit)
    path = tmp_path_factory.mktemp("bit") / "page.html"
    return analysis.explore(bit, random_images(1), path, samples=1)


@pytest.fixture(scope="module")
def pair_page(tmp_path_factory):
    """The `Exploration` of a ViT and a BiT side by side, whose grids differ."""
    vit = vit_tf.ViT((32, 48, 3), 8, 2, 3, 12, 16, 6, class_names=list("abcdef"))
    sizes = {"units": (1, 1), "stem": "small", "width_factor": 0.5, "num_classes": 6}
    bit = vit_tf.BiT((32, 48, 3), **sizes, class_names=list("abcdef"))
    randomize(vit)
    randomize(bit)
    path = tmp_path_factory.mktemp("pair") / "page.html"
    return analysis.explore({"ViT": vit, "BiT": bit}, random_images(2), path, samples=1)


def pixels_of(browser, selector):
    """The red, green, blue and alpha of a canvas: array (row, column, 4)."""
    size, pixels = browser.value(
        f"(() => {{ const canvas = document.querySelector({json.dumps(selector)});"
        "const {width, height} = canvas;"
        "const all = canvas.getContext('2d').getImageData(0, 0, width, height).data;"
        "return [[height, width], Array.from(all)] })()"
    )
    return np.reshape(pixels, (*size, 4))


COLOURS = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in colour_map()])


def shares(browser, selector):
    """What the colours and the opacity of a canvas stand for, from 0 to 1: array (row, column).

    The photograph shows through where values are low. A canvas keeps colours times opacity, in
    steps of one level, so that those of transparent pixels are rough.
    """
    pixels = pixels_of(browser, selector)
    actual = pixels[..., 3]
    off = np.abs(pixels[..., :3] - COLOURS[actual]) * actual[..., None] / 255
    assert off.max() <= 3
    return actual * LEVEL


def point(browser, selector, cell, rows=4, columns=6):
    """Moves the mouse to the middle of a cell of a picture."""
    left, top, width, height = place(browser, selector)
    x, y = cell % columns + 0.5, cell // columns + 0.5
    browser.mouse(left + x * width / columns, top + y * height / rows)


def choose(browser, selector, index):
    browser.value(
        f"(() => {{ const select = document.querySelector('{selector}'); select.value = {index};"
        "select.dispatchEvent(new Event('change')) })()"
    )


def facts(browser):
    texts = browser.value(
        "[...document.querySelectorAll('#attention-facts > *')].map((node) => node.textContent)"
    )
    return dict(zip(texts[::2], texts[1::2], strict=True))


def number(text):
    """The number that a text begins with."""
    return float(text.split()[0].replace("\N{MINUS SIGN}", "-"))


MAIN = "[data-map=attention] > .stack"


def assert_row(browser, result, example, layer, head, query):
    """The picture, its scale and the facts are those of a row of the result."""
    own = result.isel(example=example, layer=layer, query=query)
    own = own.mean("head") if head is None else own.isel(head=head)
    row = own.attention.values[1:]
    actual = shares(browser, f"{MAIN} canvas").ravel()
    np.testing.assert_allclose(actual, row / row.max(), atol=1.5 * LEVEL)
    shown_facts = facts(browser)
    if query:
        assert number(shown_facts["distance"]) == pytest.approx(float(own.distance), rel=6e-3)
    # CLS is the only prefix token, so that it has no row of its own.
    mass = dict(zip(["to CLS", "to itself", "to others"], own.mass.values, strict=True))
    mass = mass if query else {word: mass[word] for word in ("to itself", "to others")}
    assert [word for word in shown_facts if word.startswith("to ")] == list(mass)
    for word, share in mass.items():
        assert number(shown_facts[word]) / 100 == pytest.approx(share, rel=6e-3, abs=2e-5)


def test_hovering_shows_the_attention_of_the_patch_in_the_results(browser, vit_page):
    browser.open(vit_page.path)
    attention = vit_page.results["attention"]
    for cell in (0, 7, 23):
        point(browser, MAIN, cell)
        assert_row(browser, attention, 0, 1, 0, 1 + cell)
    choose(browser, "#layer", 0)
    choose(browser, "#head", 2)
    assert_row(browser, attention, 0, 0, 2, 24)
    choose(browser, "#example", 1)
    assert_row(browser, attention, 1, 0, 2, 24)
    choose(browser, "#head", 3)
    point(browser, MAIN, 9)
    assert_row(browser, attention, 1, 0, None, 10)
    choose(browser, "#head", 1)
    browser.value("document.querySelector('#pooled').click()")
    assert facts(browser)["query"] == "CLS"
    assert facts(browser)["distance"].startswith("not defined")
    assert_row(browser, attention, 1, 0, 1, 0)


def tile(browser, layer, head, rows=4, columns=6):
    """The shares of a tile of the overview, which is opaque."""
    pixels = pixels_of(browser, "#overview canvas")
    top, left = layer * (rows + 1), head * (columns + 1)
    pixels = pixels[top : top + rows, left : left + columns]
    assert (pixels[..., 3] == 255).all()
    distance = np.abs(pixels[..., None, :3] - COLOURS).sum(axis=-1)
    assert (distance.min(axis=-1) == 0).all()
    return distance.argmin(axis=-1) * LEVEL


def test_the_overview_shows_all_layers_and_heads_and_a_click_chooses_one(browser, vit_page):
    browser.open(vit_page.path)
    attention = vit_page.results["attention"].attention.values[0, :, :, 0, 1:]
    assert pixels_of(browser, "#overview canvas").shape == (2 * 5, 3 * 7, 4)
    for layer, head in np.ndindex(2, 3):
        row = attention[layer, head] / attention[layer, head].max()
        np.testing.assert_allclose(tile(browser, layer, head).ravel(), row, atol=1.5 * LEVEL)
    left, top, width, height = place(browser, "#overview .tiles")
    browser.click(left + 0.9 * width, top + 0.2 * height)
    assert browser.value("[document.querySelector('#layer').value, head.value].join()") == "0,2"
    assert_row(browser, vit_page.results["attention"], 0, 0, 2, 0)
    browser.value("document.querySelector('#overview .tiles').focus()")
    browser.key("ArrowDown")
    browser.key("ArrowLeft")
    assert_row(browser, vit_page.results["attention"], 0, 1, 1, 0)


def test_the_head_below_the_pointer_is_previewed_until_it_leaves(browser, vit_page):
    browser.open(vit_page.path)
    rows = vit_page.results["attention"].attention.values[0, :, :, 0, 1:]
    heading = "document.querySelector('.shown-head').textContent"

    def assert_shown(layer, head):
        row = rows[layer, head] / rows[layer, head].max()
        actual = shares(browser, f"{MAIN} canvas").ravel()
        np.testing.assert_allclose(actual, row, atol=1.5 * LEVEL)

    assert_shown(1, 0)
    for layer, head in ((0, 2), (1, 1)):
        point(browser, "#overview .tiles", 3 * layer + head, 2, 3)
        assert_shown(layer, head)
        assert browser.value(heading) == f"Attention weights: block0{layer}, head {head}"
    assert browser.value("[document.querySelector('#layer').value, head.value].join()") == "1,0"
    browser.mouse(5, 5)
    assert_shown(1, 0)
    assert browser.value(heading) == "Attention weights"
    point(browser, "#overview .tiles", 3 * 0 + 2, 2, 3)
    browser.value("document.querySelector('#overview .tiles').focus()")
    browser.key("ArrowRight")  # chooses a head, which the large map then shows
    assert_shown(1, 1)
    assert browser.value(heading) == "Attention weights"


def test_the_frame_of_the_chosen_head_is_its_tile(browser, vit_page):
    browser.open(vit_page.path)
    boxes = browser.value(
        "['.tiles', '.mark'].map((part) => document.querySelector('#overview ' + part))"
        ".map((node) => node.getBoundingClientRect())"
        ".map((box) => [box.left, box.top, box.width, box.height])"
    )
    (left, top, width, height), frame = boxes
    # Tiles of 4 x 6 patches, with a gap of one; that of layer 1 and head 0 is chosen.
    tile = left, top + 5 / 10 * height, 6 / 21 * width, 4 / 10 * height
    np.testing.assert_allclose(frame, tile, atol=0.6)


def test_a_strip_of_all_images_chooses_one(browser, pair_page):
    browser.open(pair_page.path)
    strip = "[...document.querySelectorAll('#strip button')]"
    names = [
        ["abcdef"[result["scores"].values[example].argmax()] for result in by_model]
        for example, by_model in ((i, pair_page.results.values()) for i in range(2))
    ]
    expected = [" or ".join(dict.fromkeys(both)) for both in names]
    assert browser.value(f"{strip}.map(one => one.textContent)") == expected
    browser.value(f"{strip}[1].click()")
    assert browser.value("document.querySelector('#example').value") == "1"
    assert browser.value(f"{strip}.map(one => one.ariaPressed)") == ["false", "true"]
    shown = "document.querySelector('#predictions button span:not(.bar-of)').textContent"
    assert browser.value(shown) == names[1][0]


def test_the_strip_can_show_wrong_predictions_only(browser, pair_page, tmp_path):
    browser.open(pair_page.path)
    is_hidden = "document.querySelector('.filter').hidden"
    assert browser.value(is_hidden) is True  # the images have no labels
    # The second image of the second model has a label that is not predicted.
    *parts, last = pair_page.path.read_text("utf-8").split('{"picture":')
    assert len(parts) == 4
    marked = '{"picture":'.join(parts) + '{"correct":false,"label":"hen","picture":' + last
    (tmp_path / "wrong.html").write_text(marked, "utf-8")
    browser.open(tmp_path / "wrong.html")
    assert browser.value(is_hidden) is False
    strip = "[...document.querySelectorAll('#strip button')]"
    assert "label: hen" in browser.value(f"{strip}[1].textContent")
    browser.value("document.querySelector('#wrong-only').click()")
    assert browser.value(f"{strip}.map(one => one.hidden)") == [True, False]
    assert browser.value("document.querySelector('#example').value") == "1"
    browser.value("document.querySelector('#wrong-only').click()")
    assert browser.value(f"{strip}.map(one => one.hidden)") == [False, False]


def test_the_contents_lead_to_every_panel(browser, vit_page):
    browser.open(vit_page.path)
    headings = browser.value("[...document.querySelectorAll('h2[id]')].map(one => one.textContent)")
    links = browser.value(
        "[...document.querySelectorAll('.contents a')].map(one => [one.textContent,"
        "document.querySelector(one.hash).querySelector('h2').textContent])"
    )
    assert [[heading, heading] for heading in headings] == links and len(links) > 5


def test_a_click_pins_a_patch_and_another_or_escape_releases_it(browser, vit_page):
    browser.open(vit_page.path)
    query = "document.querySelector('#attention-facts dd').textContent"
    assert browser.value(query) == "CLS"
    point(browser, MAIN, 7)
    assert browser.value(query) == "patch in row 1, column 1"
    browser.mouse(5, 5)
    assert browser.value(query) == "CLS"  # a preview ends with the mouse
    left, top, width, height = place(browser, MAIN)
    middle = left + 1.5 * width / 6, top + 1.5 * height / 4
    browser.click(*middle)
    point(browser, MAIN, 20)
    browser.mouse(5, 5)
    assert browser.value(query) == "patch in row 1, column 1"
    browser.click(*middle)
    browser.mouse(5, 5)
    assert browser.value(query) == "CLS"
    browser.click(*middle)
    browser.key("Escape")
    browser.mouse(5, 5)
    assert browser.value(query) == "CLS"


def test_predictions_are_those_of_the_image_and_choose_the_class(browser, vit_page):
    browser.open(vit_page.path)
    scores = vit_page.results["scores"].values.astype(float)
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    read = (
        "[...document.querySelectorAll('#predictions button')].map((button) => "
        "[...[...button.querySelectorAll('span')].map((one) => one.textContent),"
        "button.getAttribute('aria-pressed')])"
    )
    for example in (0, 1):
        choose(browser, "#example", example)
        rows = browser.value(read)
        best = np.argsort(-expected[example])[:5]
        assert [row[1] for row in rows] == ["abcdef"[item] for item in best]
        for row, item in zip(rows, best, strict=True):
            assert number(row[2]) / 100 == pytest.approx(expected[example, item], rel=6e-3)
        assert [row[3] for row in rows] == ["true"] + ["false"] * 4  # its own class


def test_the_photograph_is_not_shrunk_to_what_the_model_sees(browser, tmp_path):
    vit = vit_tf.ViT((32, 32, 3), 8, 2, 3, 12, 16, 6)
    randomize(vit)
    rng = np.random.default_rng(2)
    photo = rng.integers(0, 256, (15, 20, 3)).repeat(10, axis=0).repeat(10, axis=1).astype("uint8")
    crop = vit_tf.Preprocessing((32, 32), crop=0.8)
    path = tmp_path / "page.html"
    analysis.explore(vit, photo, path, preprocessing=crop, samples=1)
    payload = json.loads(path.read_text("utf-8").split('id="data">')[1].split("</script>")[0])
    # 0.8 of 150 pixels are 120, which hold 3 times 32; next to it is what the model sees.
    for name, side in (("picture", 96), ("seen", 32)):
        data = payload["models"][0]["examples"][0][name].split(",")[1]
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))), np.float64)
        assert shown.shape == (side, side, 3)
        expected = vit_tf.Preprocessing((side, side), crop=0.8)(photo)
        np.testing.assert_allclose(shown, np.asarray(expected + 1) * 127.5, atol=0.51)


def test_a_model_that_pools_its_patches_shows_their_mean_query(browser, tmp_path):
    beit = vit_tf.BEiT((32, 48, 3), 8, 2, 3, 12, 16, 6)
    randomize(beit)
    page = analysis.explore(beit, random_images(1), tmp_path / "page.html", samples=1)
    browser.open(page.path)
    shown_facts, result = facts(browser), page.results["attention"].isel(example=0, layer=1, head=0)
    assert shown_facts["query"] == "the mean of the patches"
    row = result.attention.values[1:, 1:].mean(axis=0)
    actual = shares(browser, f"{MAIN} canvas").ravel()
    np.testing.assert_allclose(actual, row / row.max(), atol=1.5 * LEVEL)
    assert number(shown_facts["to CLS"]) / 100 == pytest.approx(
        float(result.mass.values[1:, 0].mean()), rel=6e-3, abs=2e-5
    )
    assert number(shown_facts["distance"]) == pytest.approx(
        float(result.distance.values[1:].mean()), rel=6e-3
    )


def test_keys_and_fingers_move_the_patch(browser, vit_page):
    browser.open(vit_page.path, width=390)
    browser.value(f"document.querySelector('{MAIN}').focus()")
    status = "document.querySelector('#status').textContent.split(';')[0]"
    assert browser.value(status) == "CLS"  # until a patch is chosen, from the middle one
    for name in ("ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowUp"):
        browser.key(name)
    assert browser.value(status) == "row 0, column 1"
    left, top, width, height = place(browser, MAIN)
    touch = {"x": left + 0.99 * width, "y": top + 0.99 * height}
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[touch])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert browser.value(status) == "row 3, column 5"
    assert_row(browser, vit_page.results["attention"], 0, 1, 0, 24)


def test_kept_mass_is_that_of_the_saliency(browser, vit_page):
    browser.open(vit_page.path)
    payload = json.loads(browser.value("document.querySelector('#data').textContent"))
    attention = unpack(payload["models"][0]["examples"][0]["attention"])
    exact = vit_page.results["attention"].attention.values[0]
    most = exact.max(axis=-1, keepdims=True)
    np.testing.assert_allclose(attention / most, exact / most, atol=0.51 * LEVEL)
    cls = attention[1, :, 0, 1:]
    maps = tf.constant(cls / cls.sum(axis=-1, keepdims=True), tf.float32)
    for mass in (0.6, 0.3, 1.0):
        browser.value(f"kept.value = {100 * mass}; kept.dispatchEvent(new Event('input'))")
        expected = most_attended(maps, mass).numpy()
        for head in range(3):
            figure = f"[data-multiples=mass] > figure:nth-child({head + 1})"
            alpha = browser.value(
                f"Array.from(document.querySelector('{figure} canvas').getContext('2d')"
                ".getImageData(0, 0, 6, 4).data).filter((_, index) => index % 4 === 3)"
            )
            np.testing.assert_array_equal(np.equal(alpha, 0), expected[head])
            caption = browser.value(f"document.querySelector('{figure} figcaption').textContent")
            assert caption == f"head {head}: {int(expected[head].sum())} of 24"


def test_similarity_and_what_corresponds_in_the_other_image(browser, vit_page):
    browser.open(vit_page.path)
    point(browser, "[data-map=similarity] > .stack", 8)
    result = vit_page.results["similarity"]
    for layer in (2, 0):
        choose(browser, "#similarity-layer", layer)
        within = result.values[layer, 0, 8, 0]
        others = np.delete(within, 8)
        expected = (within - others.min()) / (others.max() - others.min())
        actual = shares(browser, "[data-map=similarity] canvas").ravel()
        np.testing.assert_allclose(actual, expected.clip(0, 1), atol=2.5 * LEVEL)
        across = result.values[layer, 0, 8, 1]
        label = browser.value(
            "document.querySelector('[data-map=correspondence] .stack').getAttribute('aria-label')"
        )
        best = int(across.argmax())
        if np.sort(across)[-2] < across.max() - 0.01:
            assert f"row {best // 6}, column {best % 6}, cosine" in label
        assert number(label.split("cosine ")[1]) == pytest.approx(across.max(), abs=6e-3)


def test_rollout_and_what_speaks_for_a_class(browser, vit_page):
    browser.open(vit_page.path)
    point(browser, "[data-map=rollout] > .stack", 3)
    row = vit_page.results["rollout"].values[0, 4, 1:]
    actual = shares(browser, "[data-map=rollout] canvas").ravel()
    most = np.delete(row, 3).max()
    np.testing.assert_allclose(actual, (row / most).clip(0, 1), atol=2.5 * LEVEL)
    relevance = vit_page.results["gradient_attention"]
    gradients = np.abs(vit_page.results["input_gradients"]).sum("channel")
    for index in (0, 2):
        name = "abcdef"[relevance["class"].values[index]]
        browser.value(
            "[...document.querySelectorAll('#predictions button')]"
            f".find((button) => button.children[1].textContent === '{name}').click()"
        )
        for number_, values in ((1, relevance[0, index, 0, 1:]), (2, gradients[0, index])):
            canvas = f"[data-multiples=evidence] > figure:nth-child({number_}) canvas"
            actual = shares(browser, canvas)
            expected = (values / values.max()).values.reshape(actual.shape)
            np.testing.assert_allclose(actual, expected.clip(0), atol=1.5 * LEVEL)


def test_the_table_of_layers_holds_the_classes_that_they_are_read_as(browser, vit_page):
    browser.open(vit_page.path)
    scores = vit_page.results["logit_lens"].values[0].astype(float)
    shares_ = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    rows = browser.value(
        "[...document.querySelectorAll('#lens-table tbody tr')].map((row) =>"
        "[...row.children].map((cell) => cell.textContent))"
    )
    assert [row[0] for row in rows] == list(vit_page.results["logit_lens"].layer.values)
    for row, of_layer in zip(rows, shares_, strict=True):
        best = np.argsort(-of_layer)[:3]
        assert [cell.split(", ")[0] for cell in row[1:]] == ["abcdef"[c] for c in best]
        for cell, item in zip(row[1:], best, strict=True):
            share = number(cell.split(", ")[1]) / 100
            assert share == pytest.approx(of_layer[item], rel=6e-3)


def test_patches_show_their_own_class_and_features_their_colours(browser, vit_page):
    browser.open(vit_page.path)
    choose(browser, "#example", 1)
    choose(browser, "#patch-layer", 0)
    lens = as_probabilities(vit_page.results["patch_lens"].values)[1, 0]
    pixels = pixels_of(browser, "[data-map=patch-lens] canvas").reshape(-1, 4)
    np.testing.assert_allclose(pixels[:, 3] * LEVEL, lens.max(axis=-1), atol=1.5 * LEVEL)
    best = lens.argmax(axis=-1)
    key = browser.value("[...document.querySelectorAll('#patch-key li')].map(n => n.textContent)")
    counts = {name: int(count) for name, count in (text.split(": ") for text in key)}
    assert counts == {"abcdef"[item]: int((best == item).sum()) for item in set(best.tolist())}
    explained = browser.value("document.querySelector('.of-class').textContent")
    own = lens[:, "abcdef".index(explained)]
    actual = shares(browser, "[data-multiples=patch-lens] canvas").ravel()
    np.testing.assert_allclose(actual, own / own.max(), atol=1.5 * LEVEL)
    colours = pixels_of(browser, "[data-multiples=components] figure:nth-child(2) canvas")
    scores = next(x for i, x in enumerate(vit_page.results["components"].values()) if i == 1)
    low, high = np.percentile(scores.values, [2, 98], axis=(0, 1, 2))
    expected = ((scores.values[1] - low) / (high - low)).clip(0, 1)
    np.testing.assert_allclose(colours[..., :3] * LEVEL, expected, atol=1.5 * LEVEL)


def test_the_table_of_removals_holds_the_changes_of_the_class(browser, vit_page):
    browser.open(vit_page.path)
    explained = browser.value("document.querySelector('.of-class').textContent")
    at = "abcdef".index(explained)
    result = vit_page.results["removals"].isel(example=0)
    intact = as_probabilities(vit_page.results["scores"].values)[0, at]
    expected = 100 * (as_probabilities(result.values)[..., at] - intact)
    texts = browser.value(
        "[...document.querySelectorAll('#removals-table td')].map((node) => node.textContent)"
    )
    actual = np.array([number(text) for text in texts]).reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, atol=0.051)
    # Every change but 0 has its sign, those below 1 too.
    assert all(text == "0" or text[0] in "+\N{MINUS SIGN}" for text in texts)
    assert any(0 < value < 1 for value in actual.ravel())


def test_places_of_a_resnet_show_their_receptive_fields(browser, bit_page):
    browser.open(bit_page.path)
    fields, cam = bit_page.results["fields"], bit_page.results["grad_cam"]
    rows, columns = fields.attrs["rows"], fields.attrs["columns"]
    for cell in (0, rows * columns - 1):
        point(browser, "[data-map=picture] > .stack", cell, rows, columns)
        for index, field in enumerate(fields.values[0, :, cell]):
            canvas = f"[data-multiples=fields] > figure:nth-child({index + 1}) canvas"
            expected = np.sqrt(field / field.max())
            actual = shares(browser, canvas)
            rounded = np.sqrt(0.5 * LEVEL)  # of the smallest, whose root is taken
            np.testing.assert_allclose(actual, expected, atol=rounded + LEVEL)
    np.testing.assert_allclose(
        shares(browser, "[data-map=cam] canvas"),
        cam.values[0, 0, -1] / (cam.values[0, 0, -1].max() or 1),
        atol=1.5 * LEVEL,
    )
    for index, maps in enumerate(cam.values[0, 0]):
        actual = shares(
            browser, f"[data-multiples=evidence] > figure:nth-child({index + 2}) canvas"
        )
        np.testing.assert_allclose(actual, maps / (maps.max() or 1), atol=1.5 * LEVEL)
    left_out = browser.value("document.querySelector('#left-out').textContent")
    assert "The attention of patches" in left_out and "has no attention weights" in left_out


@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_its_window_asks_for_nothing_and_nothing_goes_wrong(
    browser, vit_page, bit_page, pair_page, width
):
    for page in (vit_page, bit_page, pair_page):
        browser.open(page.path, width=width)
        assert browser.value("document.documentElement.scrollWidth") <= width
        browser.mouse(200, 300)
        asked = [item["request"]["url"] for item in browser.named("Network.requestWillBeSent")]
        assert asked[0] == page.path.as_uri()
        assert all(url.startswith(("data:image/png;base64,", "data:,")) for url in asked[1:])
        assert not browser.named("Runtime.consoleAPICalled")
        assert not browser.named("Runtime.exceptionThrown")
        assert not browser.named("Log.entryAdded")


def test_models_stand_side_by_side_with_predictions_of_their_own(browser, pair_page):
    browser.open(pair_page.path, width=1280)
    boxes = {}
    for index, name in enumerate(("ViT", "BiT")):
        for kind in ("picture", ("attention", "cam")[index]):
            selector = f"[data-model='{index}'] [data-map={kind}] > .stack"
            boxes[name, kind] = browser.value(
                f"(() => {{ const box = document.querySelector({json.dumps(selector)})"
                ".getBoundingClientRect(); return [box.left, box.top, box.width, box.bottom] })()"
            )
        listed = "predictions" if not index else "predictions-2"
        rows = browser.value(
            f"[...document.querySelectorAll('#{listed} button')]"
            ".map((one) => [...one.children].slice(1).map((part) => part.textContent))"
        )
        expected = as_probabilities(pair_page.results[name]["scores"].values)[0]
        best = np.argsort(-expected)[:5]
        assert [row[0] for row in rows] == ["abcdef"[item] for item in best]
        for row, item in zip(rows, best, strict=True):
            assert number(row[1]) / 100 == pytest.approx(expected[item], rel=6e-3)
    tops = [box[1] for box in boxes.values()]
    assert max(tops) - min(tops) < 1 and max(box[3] for box in boxes.values()) < 900
    lefts = [box[0] for box in boxes.values()]
    assert lefts == sorted(lefts) and len(set(lefts)) == 4


def test_a_point_of_one_model_is_that_of_the_others(browser, pair_page):
    browser.open(pair_page.path, width=1280)
    point(browser, "[data-model='0'] [data-map=attention] > .stack", 8)  # row 1, column 2 of 4 x 6
    maps, others = [], []
    for name in ("ViT", "BiT"):
        result = pair_page.results[name]["similarity"]
        rows, columns = result.attrs["rows"], result.attrs["columns"]
        own = int((1.5 / 4) * rows) * columns + int((2.5 / 6) * columns)
        maps.append(result.values[-1, 0, own, 0])
        others.append(np.delete(maps[-1], own))
    # Both models have one scale, from the least to the most similar of all other positions.
    low, high = np.concatenate(others).min(), np.concatenate(others).max()
    for number, values in enumerate(maps):
        selector = f"[data-model='{number}'] [data-map=similarity] canvas"
        expected = ((values - low) / (high - low)).clip(0, 1)
        np.testing.assert_allclose(shares(browser, selector).ravel(), expected, atol=2.5 * LEVEL)
    browser.key("Escape")
    assert browser.value("document.querySelector('#status').textContent") == "CLS"


def test_a_class_is_chosen_in_all_models_that_explain_it(browser, pair_page):
    browser.open(pair_page.path, width=1280)
    explained = [
        browser.value(
            f"[...document.querySelectorAll('#{listed} button:not(:disabled)')]"
            ".map((one) => one.children[1].textContent)"
        )
        for listed in ("predictions", "predictions-2")
    ]
    pressed = "[id^=predictions] button[aria-pressed=true] > :nth-child(2)"
    choice = f"[...document.querySelectorAll('{pressed}')]"
    choice += ".map((one) => one.textContent)"
    assert browser.value(choice) == [names[0] for names in explained]
    for name in explained[0]:
        before = browser.value(choice)
        browser.value(
            "[...document.querySelectorAll('#predictions button')]"
            f".find((one) => one.children[1].textContent === '{name}').click()"
        )
        assert browser.value(choice) == [name, name if name in explained[1] else before[1]]


def test_the_overlay_keeps_the_photograph_where_attention_is_low(browser, vit_page):
    browser.open(vit_page.path)
    weights = vit_page.results["attention"].attention.values[0, -1, 0, 0, 1:].reshape(4, 6)
    low = weights < weights.max() / 20
    assert low.sum() >= 3
    brightness = []
    for kind in ("picture", "attention"):
        left, top, width, height = place(browser, f"[data-map={kind}] > .stack")
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        shot = browser.call("Page.captureScreenshot", format="png", clip=clip)["data"]
        image = Image.open(io.BytesIO(base64.b64decode(shot))).convert("RGB").resize((48, 32))
        levels = np.asarray(image, np.float64).mean(axis=-1)
        brightness.append(levels.reshape(4, 8, 6, 8).mean(axis=(1, 3))[low].mean())
    assert brightness[0] > 30
    assert brightness[1] == pytest.approx(brightness[0], rel=0.1)


def test_lines_lead_from_the_query_to_the_keys_that_it_attends_to_most(browser, vit_page):
    browser.open(vit_page.path)
    count = "document.querySelectorAll('.lines line').length"
    point(browser, MAIN, 8)
    assert browser.value(count) == 0
    browser.value("document.querySelector('#lines').click()")
    point(browser, MAIN, 9)  # row 1, column 3 of 4 x 6
    names = ["x1", "y1", "x2", "y2", "stroke-opacity"]
    lines = browser.value(
        "[...document.querySelectorAll('.lines line')].map((line) => "
        f"{json.dumps(names)}.map((name) => Number(line.getAttribute(name))))"
    )
    row = vit_page.results["attention"].attention.values[0, -1, 0, 10, 1:].astype(float)
    assert len(lines) == 16
    for (x1, y1, x2, y2, opacity), key in zip(lines, np.argsort(-row)[:16], strict=True):
        assert (x1, y1) == (3.5, 1.5)
        assert opacity == pytest.approx(row[int(y2) * 6 + int(x2)] / row.max(), abs=2 * LEVEL)
        assert row[int(y2) * 6 + int(x2)] == pytest.approx(row[key], abs=2 * LEVEL * row.max())
    browser.key("Escape")  # CLS, which is the query, has no position
    assert browser.value(count) == 0


def test_overlays_can_be_smooth(browser, vit_page):
    browser.open(vit_page.path)
    look = f"getComputedStyle(document.querySelector('{MAIN} canvas')).imageRendering"
    assert browser.value(look) == "pixelated"
    browser.value("document.querySelector('#smooth').click()")
    assert browser.value(look) == "auto"


def test_the_first_screen_of_a_vit_shows_the_evidence_for_its_class(browser, vit_page):
    browser.open(vit_page.path)
    scores = vit_page.results["scores"].values[0]
    relevance = vit_page.results["gradient_attention"]
    index = relevance["class"].values.tolist().index(scores.argmax())
    values = relevance.values[0, index, 0, 1:]
    actual = shares(browser, "[data-map=explained] canvas").ravel()
    np.testing.assert_allclose(actual, (values / values.max()).clip(0, 1), atol=1.5 * LEVEL)


def test_links_lead_to_what_is_there(browser, vit_page, pair_page):
    for page in (vit_page, pair_page):
        browser.open(page.path)
        missing = browser.value(
            "[...document.querySelectorAll('a[href], label[for], [aria-labelledby],"
            "[aria-describedby]')].map((one) => one.hash?.slice(1) || one.htmlFor ||"
            "one.getAttribute('aria-labelledby') || one.getAttribute('aria-describedby'))"
            ".filter((id) => !document.getElementById(id))"
        )
        ids = browser.value("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert not missing and len(ids) == len(set(ids)) > 10
