"""The report is read back as HTML: what it holds, what it escapes, and what it never asks for."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from study_parts import tested_claim

from vit_tf.analysis.papers import raghu, walmer
from vit_tf.analysis.report.claim_rows import decided_sentences
from vit_tf.analysis.report.page import (
    LinkedPage,
    ModelSummary,
    Panel,
    Prediction,
    ReportFigure,
    Section,
    ShownImage,
    write_report,
)
from vit_tf.analysis.statistics.claims import NotTested, PaperEffect
from vit_tf.analysis.statistics.estimates import accuracy_of, mean_over

VOID = {"meta", "link", "img", "br", "hr"}

RAGHU, WALMER = raghu.RAGHU.source, walmer.WALMER.source


class _Page(HTMLParser):
    """Elements as (tag, attributes), visible text, and whether every tag was closed in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.open, self.balanced = [], "", [], True
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        self.balanced &= bool(self.open) and self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture
def png(tmp_path):
    """Path of a real PNG of 90 x 60 pixels at 150 dots per inch."""
    import matplotlib.pyplot as plt

    path = tmp_path / "plot.png"
    figure = plt.figure(figsize=(0.6, 0.4))
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _figure(png, name="cka", **changes):
    fields = {
        "title": "Similarity of layers",
        "caption": "Bright cells agree.",
        "paper": "Figure 1",
        "alt": "A heatmap.",
        "results": ("results/cka run.nc",),
        "source": RAGHU,
    }
    return ReportFigure(name, png=png, **fields | changes)


def _write(path, figures=(), **changes):
    arguments = {
        "title": "A study",
        "introduction": "First paragraph.\n\nSecond paragraph.",
        "models": [
            {"name": "ViT", "parameters": 85_800_000, "test accuracy": 0.97312},
            {"name": "BiT", "parameters": 23_500_000, "training time (s)": 1411.2},
        ],
        "sections": [("Similarity", "What agrees with what.", list(figures))],
        "timings": [{"analysis": "cka", "seconds": 1.5}],
        "provenance": {"command": "python study.py", "versions": {"keras": "3.15"}, "seed": 20240},
    }
    assert write_report(path, **arguments | changes) == path
    return _Page(path.read_text(encoding="utf-8"))


def test_pictures_are_embedded_whole_with_alternative_text(tmp_path, png):
    figures = [_figure(png), _figure(png, name="rf", alt='Fields "one"')]
    page = _write(tmp_path / "report.html", figures)
    images = page.all("img")
    assert [image["alt"] for image in images] == ["A heatmap.", 'Fields "one"']
    for image in images:
        kind, data = image["src"].split(",", 1)
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True) == png.read_bytes()
        assert (image["width"], image["height"]) == ("58", "38")
    assert [attrs["id"] for attrs in page.all("figure")] == ["figure-cka", "figure-rf"]
    assert len(page.all("figcaption")) == 2
    assert "Bright cells agree." in page.text
    assert "Compare with Figure 1 of" in page.text


def test_a_linked_page_follows_the_overview_with_its_panels(tmp_path, png):
    panels = [Panel(f"Head {number}", png, f"Head {number}.") for number in (1, 2)]
    linked = LinkedPage("On a photograph", "Two <models>.", "Explore", "a b/page.html", panels)
    overview, images = [Panel("CKA", png, "CKA.")], [ShownImage(np.zeros((2, 2, 3), "uint8"))]
    arguments = {"overview": overview, "linked_page": linked, "shown_images": images}
    page = _write(tmp_path / "report.html", [], **arguments)
    assert page.balanced and "On a photograph Two <models>. Explore" in " ".join(page.text.split())
    assert [image["alt"] for image in page.all("img")] == ["CKA.", "Head 1.", "Head 2.", "image 1"]
    assert "a%20b/page.html" in [link.get("href") for link in page.all("a")]


def test_a_picture_links_to_its_file_in_the_report_folder_only(tmp_path, png):
    (tmp_path / "figures").mkdir()
    inside = tmp_path / "figures" / "a b.png"
    inside.write_bytes(png.read_bytes())
    (tmp_path / "report").mkdir()
    for path, links in (
        (tmp_path / "report.html", ["figures/a%20b.png"]),
        (tmp_path / "report" / "report.html", []),
    ):
        page = _write(path, [_figure(inside, results=())])
        assert page.balanced
        assert [a["href"] for a in page.all("a") if a["href"].endswith(".png")] == links


def test_a_sentence_may_stand_in_the_place_of_a_picture(tmp_path, png):
    said = _figure(None, name="said", caption="All heads are global.")
    page = _write(tmp_path / "report.html", [said, _figure(png)])
    assert page.balanced and len(page.all("img")) == 1
    assert [attrs["id"] for attrs in page.all("figure")] == ["figure-said", "figure-cka"]
    assert "All heads are global." in page.text


def test_provenance_is_a_list_of_facts(tmp_path):
    facts = {"command": "python study.py", "options": {"seed": 3, "names": ["A", "B"]}}
    page = _write(tmp_path / "report.html", models=(), timings=(), provenance=facts)
    assert "options seed 3 names A, B" in " ".join(page.text.split())
    assert page.balanced and [attrs.get("class") for attrs in page.all("dl")] == [None, "facts"]
    assert len(page.all("code")) == 1 and "{" not in page.text


def test_page_is_well_formed_and_has_its_parts(tmp_path, png):
    page = _write(tmp_path / "report.html", [_figure(png)])
    assert page.balanced
    assert not page.open
    assert page.all("html")[0]["lang"] == "en"
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("nav")) == 1
    identifiers = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(set(identifiers)) == len(identifiers)
    targets = [a["href"][1:] for a in page.all("a") if a["href"].startswith("#")]
    assert targets == ["top", "section-1", "about"]
    assert set(targets) <= set(identifiers)


def test_page_asks_the_network_for_nothing(tmp_path, png):
    path = tmp_path / "report.html"
    page = _write(path, [_figure(png)])
    links = [attrs["href"] for _, attrs in page.elements if "href" in attrs]
    outside = {link for link in links if "//" in link}
    assert outside == {"https://arxiv.org/abs/2108.08810"}
    assert "results/cka%20run.nc" in links
    assert all(attrs["src"].startswith("data:") for _, attrs in page.elements if "src" in attrs)
    text = path.read_text(encoding="utf-8")
    assert "url(" not in text
    assert "@import" not in text


def test_tables_have_every_column_and_readable_numbers(tmp_path):
    page = _write(tmp_path / "report.html")
    words = " ".join(page.text.split())
    assert "name parameters test accuracy training time (s)" in words
    assert "ViT 85,800,000 0.9731 \N{EN DASH}" in words
    assert "BiT 23,500,000 \N{EN DASH} 1,411" in words
    assert "versions keras 3.15 seed 20240" in words
    numeric = [attrs.get("class") == "number" for attrs in page.all("td")]
    assert numeric == [True] * 7
    assert words.count("paragraph.") == 2


def test_empty_parts_leave_no_trace(tmp_path):
    page = _write(
        tmp_path / "report.html",
        models=(),
        timings=(),
        provenance=None,
        sections=[("Only", "", [])],
    )
    assert page.balanced
    assert not page.all("table") and not page.all("script")
    assert [a["href"] for a in page.all("a")] == ["#top", "#section-1", "#about"]


def test_texts_are_escaped_everywhere(tmp_path, png):
    evil = "<script>alert('x')</script>\"&"
    figure = _figure(png, title=evil, caption=evil, paper=evil, alt=evil, results=(evil,))
    page = _write(
        tmp_path / "report.html",
        title=evil,
        introduction=evil,
        models=[{evil: evil}],
        sections=[(evil, evil, [figure])],
        timings=[{evil: evil}],
        provenance={evil: evil},
    )
    assert page.balanced
    assert len(page.all("script")) == 1
    assert page.all("img")[0]["alt"] == evil
    assert page.text.count(evil) == 15


def test_a_failing_report_leaves_the_old_one(tmp_path, png, monkeypatch):
    path = tmp_path / "report.html"
    _write(path)
    before = path.read_bytes()
    with pytest.raises(FileNotFoundError):
        _write(path, [_figure(tmp_path / "missing.png")])

    class Unprintable:
        def __str__(self):
            raise RuntimeError("no text")

    with pytest.raises(RuntimeError):
        _write(path, provenance={"bad": Unprintable()})

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        _write(path, title="Another")
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plot.png", "report.html"]


def test_report_replaces_the_old_one(tmp_path):
    path = tmp_path / "report.html"
    _write(path)
    assert _write(path, title="Another").text.count("Another") == 2


def test_figures_must_be_pngs_of_different_names(tmp_path, png):
    with pytest.raises(ValueError, match="Received: 'two words'"):
        _write(tmp_path / "report.html", [_figure(png, name="two words")])
    with pytest.raises(ValueError, match=r"different names. Received: \['cka', 'cka'\]"):
        _write(tmp_path / "report.html", [_figure(png), _figure(png)])
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    with pytest.raises(ValueError, match="Expected a PNG"):
        _write(tmp_path / "report.html", [_figure(text)])


def test_a_report_without_tested_claims_explains_no_marks(tmp_path):
    claim = NotTested(tested_claim().claim, "It needs a ViT.", source=RAGHU)
    page = _write(tmp_path / "report.html", scorecard=[claim])
    words = " ".join(page.text.split())
    assert "No claim could be tested on these models." in words
    assert "Each mark is" not in words and "0 of 1" not in words


def test_claims_have_a_mark_on_the_first_screen_and_their_numbers_below(tmp_path, png):
    claims = [
        tested_claim(),
        tested_claim(-0.3, -0.4, -0.06),
        tested_claim(0.0, None, statement="Another."),
        NotTested(tested_claim(statement="A third.").claim, "It needs <x>.", source=RAGHU),
    ]
    page = _write(
        tmp_path / "report.html",
        [_figure(png)],
        scorecard=claims,
        figures_of_claims={"uniform": "cka"},
    )
    assert page.balanced
    marks = [a for a in page.all("a") if a.get("class", "").startswith("mark")]
    outcomes = ["as-in-the-paper", "opposite", "undecided"]
    assert [mark["class"] for mark in marks] == [f"mark {outcome}" for outcome in outcomes]
    assert [mark["href"] for mark in marks] == [f"#claim-{number}" for number in (1, 2, 3)]
    ids = [attrs["id"] for attrs in page.all("div") if "id" in attrs]
    assert ids == ["claim-1", "claim-2", "claim-3", "claim-4"]
    words = " ".join(page.text.split())
    # What was not tested is folded away, below the claims that were.
    assert (
        words.index("Another.")
        < words.index("1 other claim was not tested")
        < words.index("A third.")
    )
    assert (
        "2 of 4 claims are decided: 1 as in the paper, 1 opposite; 1 are undecided, 1 of them "
        "without an interval; 1 are not tested."
    ) in words
    minus = "\N{MINUS SIGN}"
    assert (
        "difference in CKA, trained minus untrained: 0.2 (0.1 to 0.25); trained 0.3, untrained "
        "0.1; in the paper above 0 (section 4, Figure 1); smallest effect of interest 0.05. This "
        "outcome is about these models."
    ) in words
    assert f"{minus}0.3 ({minus}0.4 to {minus}0.06); trained" in words
    assert "trained minus untrained: 0; trained" in words and "Descriptive. A maximum." in words
    assert "not tested It needs <x>." in words
    assert words.count("Interval: Student's t over 8 batches (200 images in total).") == 2
    hrefs = [a["href"] for a in page.all("a")]
    assert "results/cka.b%20t.nc" in hrefs and hrefs.count("#figure-cka") == 3
    assert "cka.b t" not in page.text
    assert len([svg for svg in page.all("svg") if svg.get("class") == "strip"]) == 2
    # Claims of one statement stand together; those that were not tested are in a fold of their own.
    assert len(page.all("summary")) == len({"statement", "Another.", "A third."}) + 1 + 1 + 1 + 3


def test_an_undecided_claim_states_how_many_images_would_decide_it(tmp_path):
    parts = 0.1 + 0.08 * np.array([1.5, -1.5, 1, -1, 0.5, -0.5, 0.8, -0.8])
    undecided = replace(tested_claim(), estimate=mean_over(parts, "batches", 200))
    page = _write(tmp_path / "report.html", scorecard=[undecided])
    assert re.search(r"About [\d,]+ images would probably decide the claim, if the", page.text)


def test_claims_of_each_paper_stand_together(tmp_path):
    paper = PaperEffect(-1, 0.25, "section 4.4, Figure 5")
    later = {"source": WALMER, "paper": paper}
    claims = [
        tested_claim(),
        tested_claim(**later, statement="Later."),
        tested_claim(),
        tested_claim(**later),
    ]
    page = _write(tmp_path / "report.html", scorecard=claims)
    assert page.balanced
    words = " ".join(page.text.split())
    *_, first, second = re.split(r"(?:Raghu|Walmer) et al. \(\d+\)", words)
    assert first.count("above 0 (section 4, Figure 1)") == 2
    assert second.count("\N{MINUS SIGN}0.25 (section 4.4, Figure 5)") == 2
    assert "Later." in second and "section 4.4" not in first
    papers = [attrs["href"] for attrs in page.all("a") if "arxiv.org" in attrs["href"]]
    assert papers == [RAGHU[1], WALMER[1]]


def test_scorecard_draws_the_interval_against_no_effect_and_the_paper(tmp_path):
    paper = PaperEffect(1, 0.3, "Table 1")
    page = _write(tmp_path / "report.html", scorecard=[tested_claim(0.2, 0.1, 0.25, paper=paper)])
    # From -0.05, the smallest effect of interest, to 0.3, the effect of the paper.
    place = {x: round(8 + 84 * (x + 0.05) / 0.35, 1) for x in (-0.05, 0, 0.05, 0.1, 0.2, 0.25, 0.3)}
    assert page.all("path")[0]["d"] == f"M{place[0]} 0v14"
    span = f"M{place[0.1]} 7H{place[0.25]}M{place[0.1]} 4v6M{place[0.25]} 4v6"
    assert page.all("path")[1]["d"] == span
    assert [circle["cx"] for circle in page.all("circle")] == [str(place[0.3]), str(place[0.2])]
    assert page.all("rect")[0]["x"] == str(place[-0.05])


def test_only_the_script_of_the_report_may_run(tmp_path, png):
    payload = {"kind": "heatmap", "x": ["</script><b>"], "values": [[0.5, None]]}
    path = tmp_path / "report.html"
    page = _write(path, [_figure(png, interactive=(payload,)), _figure(png, name="still")])
    assert page.balanced
    data, script = re.findall(r"<script[^>]*>(.*?)</script>", path.read_text("utf-8"), re.DOTALL)
    assert json.loads(data) == [payload]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith(f"; script-src 'sha256-{digest}'")
    assert [attrs.get("type") for attrs in page.all("script")] == ["application/json", None]
    assert not re.search(r"fetch|XMLHttp|import|eval|https?://(?!www\.w3\.org)", script)
    assert [image["alt"] for image in page.all("img")] == ["A heatmap."] * 2


def test_values_that_json_lacks_are_an_error(tmp_path, png):
    with pytest.raises(ValueError, match="JSON"):
        _write(tmp_path / "report.html", [_figure(png, interactive=({"x": float("nan")},))])


def test_what_is_not_measured_is_one_table_with_its_reasons(tmp_path, png):
    left_out = [
        ("Figure 3: <heads>", ["CNN has no attention weights.", "Nor has <b>."]),
        ("Figure 4: distance", ["CNN has no attention weights."]),
    ]
    section = Section("Attention", "Where?", [_figure(png)], "Far.", left_out)
    page = _write(tmp_path / "report.html", sections=[section], not_shown=left_out[:1])
    assert page.balanced
    words = " ".join(page.text.split())
    assert "2 figures were not measured, or not for every model" in words
    assert (
        "Figure 3: <heads> CNN has no attention weights. Figure 4: distance Figure 3: <heads> "
        "Nor has <b>. " in words
    )
    hrefs = [link["href"] for link in page.all("a")]
    assert "#not-measured" in hrefs
    assert "#not-measured" not in [a["href"] for a in _write(tmp_path / "b.html").all("a")]


def test_a_chapter_opens_with_its_result_and_a_figure_has_a_panel_for_each_model(tmp_path, png):
    panels = tuple(Panel(name, png, f"Layers of {name}.", f"cka-{name}") for name in ("A", "B"))
    figure = _figure(None, panels=panels, code="x = 1 < 2", results=())
    page = _write(tmp_path / "report.html", sections=[Section("S", "Why?", [figure], "A wins.")])
    assert page.balanced
    assert [image["alt"] for image in page.all("img")] == ["Layers of A.", "Layers of B."]
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert ids[ids.index("figure-cka") :][:3] == ["figure-cka", "figure-cka-A", "figure-cka-B"]
    words = " ".join(page.text.split())
    assert words.index("A wins.") < words.index("Why?") < words.index("Figure 1")
    assert "x = 1 < 2" in words and len(page.all("button")) == 1
    assert len(page.all("figcaption")) == len(page.all("figure")) == 1


def test_the_data_of_a_figure_are_in_the_page_where_they_are_small(tmp_path, png, monkeypatch):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "cka run.nc").write_bytes(b"CDF some")
    (link,) = _downloads(_write(tmp_path / "report.html", [_figure(png)]))
    kind, data = link["href"].split(",")
    assert (kind, link["download"]) == ("data:application/x-netcdf;base64", "cka run.nc")
    assert base64.b64decode(data) == b"CDF some"
    monkeypatch.setattr("vit_tf.analysis.report.page.MOST_EMBEDDED", 7)
    (link,) = _downloads(_write(tmp_path / "report.html", [_figure(png)]))
    assert link["href"] == "results/cka%20run.nc"


def _downloads(page):
    return [attrs for attrs in page.all("a") if "download" in attrs]


def test_the_first_screen_names_models_results_and_small_multiples(tmp_path, png):
    models = [
        ModelSummary("ViT", "ViT with a CLS token", "vit", 85_800_000, accuracy_of(0.6, 100)),
        ModelSummary("Other", "vision model", "other", None, None),
    ]
    page = _write(
        tmp_path / "report.html",
        [_figure(png)],
        summary=models,
        sentences=["ViT <b> attends more globally."],
        overview=[Panel("CKA", png.read_bytes(), "CKA of layers.")],
    )
    assert page.balanced
    words = " ".join(page.text.split())
    assert "85.8 M parameters 60.0 % test accuracy, 95 % CI 50.2 to 69.1 %" in words
    assert "Other vision model" in words and words.count("parameters") == 2
    assert words.index("ViT <b> attends more globally.") < words.index("CKA Similarity")
    assert [image["alt"] for image in page.all("img")] == ["CKA of layers.", "A heatmap."]


def test_texts_after_the_first_paragraph_are_at_the_end(tmp_path, png):
    words = " ".join(_write(tmp_path / "report.html", [_figure(png)]).text.split())
    end = words.index("About this report", words.index("Bright cells agree."))
    assert words.index("First paragraph.") < words.index("Bright") < end
    assert words.index("Second paragraph.") > end


def test_reasons_are_sentences_and_no_messages_of_errors(tmp_path, png):
    entries = [
        ("A", ["Expected batches of at least 12 examples. Received one of 8"]),
        ("B", ["Expected image_size, as it takes any. Received: None"]),
        ("C", ["bit has no attention weights."]),
    ]
    page = _write(tmp_path / "report.html", [_figure(png)], not_shown=entries)
    words = " ".join(page.text.split())
    for sentence in (
        "It needs batches of at least 12 examples, but received one of 8.",
        "It needs image_size, as it takes any, but received None.",
        "bit has no attention weights.",
    ):
        assert sentence in words
    assert "Expected" not in words and "Received" not in words


def test_measured_images_stand_with_their_labels_and_predictions(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (2, 6, 5, 3)).astype(np.uint8)
    predictions = [Prediction("ViT", "dog", 0.914, False), Prediction("BiT", "<cat>", 0.5, True)]
    shown = [
        ShownImage(pictures[0], "<cat>", predictions),
        ShownImage(pictures[1], "", [Prediction("ViT", "hen", 0.3)]),
    ]
    page = _write(tmp_path / "report.html", shown_images=shown)
    images = page.all("img")
    assert [image["alt"] for image in images] == ["<cat>", "image 2"]
    for image, picture in zip(images, pictures, strict=True):
        data = base64.b64decode(image["src"].split(",", 1)[1])
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), picture)
    guesses = [span for span in page.all("span") if "guess" in span.get("class", "")]
    assert [span["title"] for span in guesses] == ["ViT: dog", "BiT: <cat>", "ViT: hen"]
    assert ["wrong" in span["class"] for span in guesses] == [True, False, False]
    assert "<cat>✗dog91%✓<cat>50%hen30%" in "".join(page.text.split())


def test_decided_claims_are_sentences_with_their_numbers(tmp_path):
    points = tested_claim(0.2, 0.1, 0.25, statement="Skips matter.", models=("ViT",))
    points = replace(points, claim=replace(points.claim, unit="difference in accuracy"))
    rows = [
        tested_claim(-0.3, -0.4, -0.06),
        points,
        tested_claim(0.01, -0.6, 0.7, statement="Undecided."),
        tested_claim(0.3, 0.2, 0.4, statement="Two pairs."),
        tested_claim(0.1, 0.08, 0.12, statement="Two pairs."),
    ]
    sentences = decided_sentences(rows)
    assert [sentence.replace("\N{MINUS SIGN}", "-") for sentence in sentences] == [
        "As in Raghu et al. (2021): Two pairs. Difference in CKA, trained minus untrained: "
        "0.1 to 0.3 for 2 of 2 sets of models.",
        "As in Raghu et al. (2021): Skips matter. Difference in accuracy (percentage points), "
        "trained minus untrained: 20 (95 % CI 10 to 25) for ViT.",
        "Opposite to Raghu et al. (2021): Lower and upper layers are alike. Difference in CKA, "
        "trained minus untrained: -0.3 (95 % CI -0.4 to -0.06).",
    ]
    assert decided_sentences(rows, most=2) == [sentences[0], sentences[2]]
