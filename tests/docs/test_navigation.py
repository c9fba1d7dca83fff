"""What the site lists of measurements comes from their pages and the stub, without other edits."""

import inspect
import re
import runpy
import shutil
import subprocess
import sys
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest
from browser import CHROMIUM, Browser
from paths import ROOT
from PIL import Image

from vit_tf.analysis import plots

STUB = "from .flow.wobble import wobble as wobble\n"
MODULE = '''"""Wobble of layers."""


def wobble(features, images):
    """How much layers wobble.

    Args:
        features: the model.
        images: the images.
    """
'''
PAGE = """---
calls: wobble
---

# Wobble

**How much does a layer wobble?**

![Wobble through the depth](../../pictures/wobble.png)
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the site is built of with a module, a line of the stub and a page more."""
    unused = shutil.ignore_patterns("__pycache__")
    for name in ("analysis", "docs", "vit_tf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=unused)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "analysis/flow/wobble.py").write_text(MODULE)
    with open(tmp_path / "analysis/__init__.pyi", "a") as stub:
        stub.write(STUB)
    (tmp_path / "docs/measurements/flow/wobble.md").write_text(PAGE)
    shutil.copy(ROOT / "docs/pictures/cka.png", tmp_path / "docs/pictures/wobble.png")
    return tmp_path


def test_a_new_measurement_is_listed_everywhere(checkout):
    docs = checkout / "docs"
    hook = runpy.run_path(str(docs / "navigation.py"))
    config = SimpleNamespace(nav=[{"Measurements": ["measurements/index.md", "last.md"]}])
    index, *groups, last = hook["on_config"](config).nav[0]["Measurements"]
    assert (index, last) == ("measurements/index.md", "last.md")
    listed = {path: group for entry in groups for group, pages in entry.items() for path in pages}
    assert listed["measurements/flow/wobble.md"] == "Flow"
    assert next(iter(listed)) == "measurements/similarity/cka.md"
    assert sorted(listed) == sorted(str(p.relative_to(docs)) for p in docs.glob("measurements/*/*"))

    subprocess.run([sys.executable, docs / "navigation.py"], check=True)
    row = "| [How much does a layer wobble?](flow/wobble.md) | `analysis.wobble` |\n"
    assert row in (docs / "measurements/index.md").read_text("utf-8")
    picture = "- [![Wobble through the depth](pictures/wobble.png)](measurements/flow/wobble.md)\n"
    assert picture in (docs / "gallery.md").read_text("utf-8")
    pages = [
        page.name
        for page in docs.glob("api/*.md")
        if "::: analysis.wobble\n" in hook["on_page_markdown"](page.read_text("utf-8"))
    ]
    assert pages == ["flow.md"]


@pytest.mark.parametrize("page", ["measurements/index.md", "gallery.md"])
def test_index_and_gallery_are_up_to_date(page):
    hook = runpy.run_path(str(ROOT / "docs/navigation.py"))
    text = (ROOT / "docs" / page).read_text("utf-8")
    assert hook["fill"](text) == text, "run: python docs/navigation.py"


@pytest.mark.slow
def test_api_pages_begin_with_a_sentence_for_each_name():
    hook = runpy.run_path(str(ROOT / "docs/navigation.py"))
    for page in (ROOT / "docs/api").glob("*.md"):
        text = hook["with_summaries"](hook["fill"](page.read_text("utf-8")))
        names = re.findall(r"^::: (\S+)$", text, re.M)
        rows = re.findall(r"^\| \[`\w+`\]\[(\S+)\] \| (.+) \|$", text, re.M)
        assert [name for name, sentence in rows if sentence] == names


def test_a_page_without_a_question_is_named(checkout):
    page = checkout / "docs/measurements/flow/wobble.md"
    page.write_text(PAGE.replace("**", ""))
    hook = runpy.run_path(str(checkout / "docs/navigation.py"))
    with pytest.raises(ValueError, match=r"wobble\.md.*question"):
        hook["measurements"]()


def test_the_site_documents_plots_as_help_does():
    griffe = pytest.importorskip("griffe", reason="griffe is not installed")
    extensions = griffe.load_extensions(str(ROOT / "docs/plot_docs.py"))
    loaded = griffe.load("analysis", search_paths=[ROOT], extensions=extensions)
    for name in ("plot_grad_cam", "plot_skip_ratio"):
        written, plot = loaded["plots.flow_plots"][name], getattr(plots, name)
        assert written.docstring.value == inspect.getdoc(plot)
        parameters = inspect.signature(plot).parameters
        assert [parameter.name for parameter in written.parameters] == list(parameters)
        assert written.parameters["title"].default == "None"
    assert loaded["plots.flow_plots.plot_overlay"].docstring.value == inspect.getdoc(
        plots.plot_overlay
    )


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_has_a_new_measurement(checkout, tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", "site"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    site = checkout / "site"
    home = (site / "measurements/similarity/cka/index.html").read_text("utf-8")
    assert "<mfrac>" in home
    assert re.search(r'href="../../flow/wobble/"', home)  # in the navigation
    assert "How much does a layer wobble?" in (site / "measurements/index.html").read_text("utf-8")
    assert "Wobble through the depth" in (site / "gallery/index.html").read_text("utf-8")
    assert "How much layers wobble" in (site / "api/flow/index.html").read_text("utf-8")
    reference = (site / "api/similarity/index.html").read_text("utf-8")
    assert "Minibatch CKA between all layers" in reference
    for path in site.rglob("*.html"):
        outside = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://[^\s>]+", path.read_text()
        )
        assert not [tag for tag in outside if "canonical" not in tag], path
    assert not dead_links(site)
    for path in site.rglob("*.html"):
        formulas = "".join(re.findall(r"<math.*?</math>", path.read_text("utf-8"), re.S))
        assert not re.findall(r"\\\w+", formulas), path
    if CHROMIUM:
        assert not pages_wider_than(390, site, tmp_path / "profile")


def dead_links(site):
    """Pairs of a page and a link of it to a file that the site does not have."""
    dead = []
    for page in site.rglob("*.html"):
        text = re.sub(r"<script.*?</script>", "", page.read_text("utf-8"), flags=re.S)
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            address = urlsplit(link)
            if address.scheme or address.netloc or not address.path:
                continue
            base = site if address.path.startswith("/") else page.parent
            target = base / unquote(address.path).lstrip("/")
            if not (target / "index.html" if target.is_dir() else target).exists():
                dead.append((str(page.relative_to(site)), link))
    return dead


def pages_wider_than(width, site, profile):
    """The pages that scroll sideways in a window of some pixels; API pages are not looked at."""
    browser, wide = Browser(profile), []
    try:
        for page in sorted(site.rglob("index.html")):
            if "api" not in page.relative_to(site).parts:
                browser.open(page, width=width)
                if browser.value("document.documentElement.scrollWidth") > width:
                    wide.append(str(page.relative_to(site)))
    finally:
        browser.close()
    return wide


@pytest.mark.slow
def test_a_picture_is_drawn_by_the_code_of_its_page(checkout):
    code = """```python
import matplotlib.pyplot as plt

plt.figure(figsize=(2, 1), facecolor="red").savefig("wobble.png")
```
"""
    (checkout / "docs/measurements/flow/wobble.md").write_text(PAGE + code)
    subprocess.run([sys.executable, "docs/pictures.py", "wobble"], cwd=checkout, check=True)
    picture = Image.open(checkout / "docs/pictures/wobble.png")
    assert picture.getpixel((9, 9)) == (255, 0, 0)
    assert "flow/wobble.md" in (checkout / "docs/measurements/index.md").read_text("utf-8")
    assert "pictures/wobble.png" in (checkout / "docs/gallery.md").read_text("utf-8")
