"""The report is read back as HTML: what it holds, what it escapes, and what it never asks for."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from vit_tf.analysis.papers import raghu, walmer
from vit_tf.analysis.report.page import ReportFigure, write_report
from vit_tf.analysis.study.judge import Claim

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
    assert targets == ["models", "section-1", "figure-cka", "timings", "provenance"]
    assert set(targets) <= set(identifiers)


def test_page_asks_the_network_for_nothing(tmp_path, png):
    path = tmp_path / "report.html"
    page = _write(path, [_figure(png)])
    links = [attrs["href"] for _, attrs in page.elements if "href" in attrs]
    outside = {link for link in links if "//" in link}
    assert outside == {"https://arxiv.org/abs/2108.08810"}
    assert "results/cka%20run.nc" in links
    assert all(attrs["src"].startswith("data:") for _, attrs in page.elements if "src" in attrs)
    assert not page.all("script")
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
    assert not page.all("table")
    assert [a["href"] for a in page.all("a")] == ["#section-1"]


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
    assert not page.all("script")
    assert page.all("img")[0]["alt"] == evil
    assert page.text.count(evil) == 17


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alt": " "}, "Expected a text in alt of figure 'cka'"),
        ({"name": "two words"}, "Received: 'two words'"),
        ({"results": ("https://example.org/x.nc",)}, "Expected a link relative to the report"),
        ({"results": ("javascript:alert(1)",)}, "Expected a link relative to the report"),
        ({"results": ("/tmp/x.nc",)}, "Expected a link relative to the report"),
    ],
)
def test_figure_errors(tmp_path, png, changes, message):
    with pytest.raises(ValueError, match=message):
        _write(tmp_path / "report.html", [_figure(png, **changes)])


def test_figures_must_be_pngs_of_different_names(tmp_path, png):
    with pytest.raises(ValueError, match=r"different names. Received: \['cka', 'cka'\]"):
        _write(tmp_path / "report.html", [_figure(png), _figure(png)])
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    with pytest.raises(ValueError, match="Expected a PNG"):
        _write(tmp_path / "report.html", [_figure(text)])


def _claim(**changes):
    fields = {
        "name": "uniform",
        "statement": "Lower and upper layers are alike.",
        "section": "4",
        "figure": "1",
        "quantity": "difference in CKA",
        "value": 0.2,
        "low": 0.1,
        "high": 0.25,
        "threshold": 0.0,
        "direction": "above",
        "verdict": "replicates",
        "explanation": "Mean CKA. Interval: bootstrap over layers.",
        "results": ("cka.vit", "cka.b t"),
        "source": RAGHU,
    }
    return Claim(**fields | changes)


def test_scorecard_comes_first_and_says_what_was_found(tmp_path, png):
    nan = float("nan")
    claims = [
        _claim(),
        _claim(value=-0.3, low=-0.4, high=-0.00002, verdict="does not replicate"),
        _claim(value=0.0, low=nan, high=nan, verdict="inconclusive"),
        _claim(
            value=nan,
            low=nan,
            high=nan,
            verdict="not tested",
            explanation="There is no result <x>.",
            results=(),
        ),
    ]
    page = _write(tmp_path / "report.html", [_figure(png)], scorecard=claims)
    assert page.balanced
    assert page.all("h2")[1]["id"] == "scorecard"
    assert page.all("a")[0]["href"] == "#scorecard"
    words = " ".join(page.text.split())
    assert "Section 4, Figure 1 difference in CKA above 0 0.2 (0.1 to 0.25) ✓ replicates" in words
    assert "\N{MINUS SIGN}0.3 (\N{MINUS SIGN}0.4 to \N{MINUS SIGN}2e\N{MINUS SIGN}05) ✗" in words
    assert "above 0 0 ? inconclusive" in words
    assert "There is no result <x>. Section 4" in words
    assert words.count("Mean CKA. Interval: bootstrap over layers.") == 3
    assert "results/cka.b%20t.nc" in [a["href"] for a in page.all("a")]
    assert len(page.all("svg")) == 2


def test_findings_of_each_paper_have_a_table_of_their_own(tmp_path):
    later = {"source": WALMER, "section": "4.4", "figure": "5", "verdict": "inconclusive"}
    claims = [_claim(), _claim(**later, statement="Later."), _claim(), _claim(**later)]
    page = _write(tmp_path / "report.html", scorecard=claims)
    assert page.balanced
    words = " ".join(page.text.split())
    *_, first, second = words.split("Claims of ")
    assert first.startswith("Raghu et al. (2021) ✓ replicates 2 of 2 ")
    assert second.startswith("Walmer et al. (2023) ? inconclusive 2 of 2 ")
    assert first.count("Section 4, Figure 1") == second.count("Section 4.4, Figure 5") == 2
    assert "Later." in second and "Section 4.4" not in first
    papers = [attrs["href"] for attrs in page.all("a") if "arxiv.org" in attrs["href"]]
    assert papers == [RAGHU[1], WALMER[1]]
    targets = [attrs["href"][1:] for attrs in page.all("a") if attrs["href"].startswith("#find")]
    assert targets == [attrs["id"] for attrs in page.all("h3") if "id" in attrs]


def test_scorecard_draws_the_interval_against_the_line(tmp_path):
    page = _write(tmp_path / "report.html", scorecard=[_claim(low=0.1, value=0.2, high=0.25)])
    places = [page.all("path")[0]["d"], page.all("path")[1]["d"], page.all("circle")[0]["cx"]]
    assert places == ["M8.0 0v14", "M41.6 7H92.0M41.6 4v6M92.0 4v6", "75.2"]
    assert (page.all("rect")[0]["x"], page.all("rect")[0]["width"]) == ("8.0", "92.0")


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


def test_what_is_not_shown_is_listed_after_the_figures_with_its_reasons(tmp_path, png):
    left_out = [("Figure 3: <heads>", ["CNN has no attention weights.", "Nor has <b>."])]
    path = tmp_path / "report.html"
    page = _write(path, [_figure(png)], not_shown=left_out)
    assert page.balanced
    words = " ".join(page.text.split())
    assert "Figure 3: <heads> CNN has no attention weights. Nor has <b>." in words
    text = path.read_text("utf-8")
    assert text.index("</figure>") < text.index('id="not-shown"') < text.index('id="timings"')
    assert "#not-shown" in [link["href"] for link in page.all("a")]
    assert 'id="not-shown"' not in _write_text(path, png)


def _write_text(path, png):
    _write(path, [_figure(png)])
    return path.read_text("utf-8")


def test_figures_are_folded_in_the_contents(tmp_path, png):
    path = tmp_path / "report.html"
    _write(path, [_figure(png), _figure(png, name="other")])
    nav = re.search(r"<nav.*?</nav>", path.read_text("utf-8"), re.DOTALL)[0]
    (folded,) = re.findall(r"<details>(.*?)</details>", nav, re.DOTALL)
    assert "<summary>2 figures</summary>" in folded
    assert 'href="#figure-cka"' in folded and 'href="#figure-other"' in folded
    assert nav.count('href="#figure-') == 2
