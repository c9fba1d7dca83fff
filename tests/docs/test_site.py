"""The documentation is whole: every public name has its page, and pages have their parts."""

import re
import runpy
import subprocess
import sys

import pytest
from paths import ROOT

import vit_tf
from vit_tf import analysis
from vit_tf.analysis import engine, plots

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MEASUREMENTS = sorted(DOCS.glob("measurements/*/*.md"))
PARTS = ["Formula", "Code", "How to read it", "What goes wrong", "Cost", "Reference"]
HOOK = runpy.run_path(str(DOCS / "navigation.py"))
NAMES = set(analysis.__all__) - {"engine", "plots"} | set(plots.__all__)
# Plots of figures of papers, which the reference lists.
PLOTS_OF_PAPERS = {
    *("plot_accuracy_by_data", "plot_best_layers", "plot_data_scale", "plot_localization_by_layer"),
    *("plot_probes", "plot_token_probes"),
}
COMMAND = re.compile(r"vit-tf ([a-z]+)((?:[^\n`#\\|]|\\\n)*)")


def calls_of(page):
    """The names that a page explains, from its first lines: `vit_tf.NAME` or `analysis.NAME`."""
    outputs = re.match(r"---\ncalls: (.*)\n(?:order: \d+\n)?---\n", page.read_text("utf-8"))
    names = outputs[1].split() if outputs else []
    return [name if "." in name else f"analysis.{name}" for name in names]


def test_every_public_name_has_its_page():
    explained = [name for page in PAGES for name in calls_of(page)]
    assert len(explained) == len(set(explained))
    modules = {"analysis", "data", "distribute"}  # whose guides hold a name or two for each
    public = {f"analysis.{name}" for name in NAMES - PLOTS_OF_PAPERS}
    public |= {f"vit_tf.{name}" for name in set(vit_tf.__all__) - modules}
    # The guide to one's own measurements explains the other names of the engine together.
    assert public <= set(explained) <= public | {f"analysis.{name}" for name in engine.__all__}


@pytest.mark.parametrize("page", [page for page in PAGES if calls_of(page)], ids=lambda p: p.stem)
def test_a_page_names_what_it_explains(page):
    text = page.read_text("utf-8").partition("---\n\n")[2]
    for name in calls_of(page):
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", text), name


def test_every_public_name_is_in_the_reference():
    def listed(pages):
        text = "\n".join(
            HOOK["fill"]((DOCS / "api" / f"{page}.md").read_text("utf-8")) for page in pages
        )
        return sorted(name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", text, re.M))

    groups = ["similarity", "attention", "flow", "probes", "objects", "engine", "plots", "report"]
    assert listed(groups) == sorted(NAMES | set(engine.__all__))
    modules = {"analysis", "data", "distribute"}
    assert listed(["vit_tf"]) == sorted(set(vit_tf.__all__) - modules)
    assert listed(["data"]) == sorted(vit_tf.data.__all__)
    assert listed(["distribute"]) == sorted(vit_tf.distribute.__all__)


@pytest.mark.parametrize("page", MEASUREMENTS, ids=lambda p: p.stem)
def test_a_measurement_has_all_parts(page):
    text = page.read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.M) == PARTS
    assert "```math\n" in text
    assert "](../../pictures/" in text, "the page shows no picture: run docs/pictures.py NAME"
    assert re.search(r"^\*\*.*\?\*\*$", text, re.M)  # the question
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 24


def test_pictures_are_drawn_by_the_script_shown_and_small():
    script = (DOCS / "pictures.py").read_text()
    names = re.findall(r"\w+", re.search(r"^DRAWN = \((.*?)^\)", script, re.S | re.M)[1])
    results = re.search(r"^RESULTS = \{(.*?)^\}", script, re.S | re.M)[1]
    names += re.findall(r'^    "(\w+)": ', results, re.M)
    texts = [page.read_text("utf-8") for page in PAGES]
    shown = {(name, text) for text in texts for name in re.findall(r"pictures/(\w+)\.png", text)}
    saved = {name for name, text in shown if f'.savefig("{name}.png"' in text}
    stored = {path.stem: path.stat().st_size for path in (DOCS / "pictures").glob("*.png")}
    assert sorted([*names, *saved.difference(names)]) == sorted(stored)
    assert set(stored) == {name for name, _ in shown}
    # Photographs of few colours show steps.
    with_photographs = ("attention", "photo_attention", "photo_pca")
    assert max(stored.pop(name) for name in with_photographs) < 400_000
    assert max(stored.values()) < 60_000


def test_the_readme_is_short_and_its_links_lead_to_files():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert link.startswith("https://") or (ROOT / link).exists(), link


@pytest.fixture(scope="module")
def flags():
    """Function from a command to the options that its help names."""
    references = {}

    def of(name):
        if name not in references:
            command, run = [sys.executable, "-m", "vit_tf", name], subprocess.run
            done = run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
            if "--help-all" in done.stdout:
                done = run([*command, "--help-all"], cwd=ROOT, capture_output=True, text=True)
            references[name] = set(re.findall(r"--[a-z][\w-]*", done.stdout))
        return references[name]

    return of


@pytest.mark.slow
def test_commands_have_the_options_that_are_written(flags):
    observations = 0
    for page in [ROOT / "README.md", *PAGES]:
        for name, rest in COMMAND.findall(page.read_text("utf-8")):
            for option in re.findall(r"(?<!\S)--[a-z][\w-]*", rest):
                assert option in flags(name), (page.name, name, option)
                observations += 1
    assert observations > 20


def test_released_names_and_figures_on_the_page_of_the_papers_exist():
    from vit_tf.analysis.figures.figure import all_figures
    from vit_tf.checkpoints import released

    text = (DOCS / "papers-on-released-weights.md").read_text("utf-8")
    names = set(re.findall(r"(?:vit|bit|mixer)_models/[\w+./-]+|timm/[\w.]+", text))
    assert len(names) > 8 and names <= set(released.CHECKPOINTS)
    listed = ",".join(re.findall(r"--figures ([\w.,]+)", text)).split(",")
    choices = {number for figure in all_figures() for number in figure.choices}
    assert len(listed) > 20 and set(listed) <= choices
