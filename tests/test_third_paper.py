"""A third paper is one file: its measurement, figure and claim are found without another edit."""

import pytest
from paths import ROOT, copy_checkout, run_python

GUIDE = ROOT / "docs" / "guides" / "adding-a-paper.md"

USE = """
import numpy as np, sys
import vit_tf
from vit_tf.analysis import make_report
from vit_tf.analysis.figures.figure import all_figures

figures = [figure for figure in all_figures() if figure.paper.name.startswith("Example")]
vit = vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 3)
images = np.random.default_rng(0).normal(size=(16, 16, 16, 3)).clip(-1, 1).astype("float32")
report = make_report({"ViT": vit}, images, figures=["X.1"], folder=sys.argv[1])
print([claim.name for claim in report.claims], [claim.outcome for claim in report.claims])
print(sorted(report.results))
"""


def example():
    """The file that the guide shows."""
    text = GUIDE.read_text("utf-8")
    start = text.index('"""Example et al.')
    return text[start : text.index("```", start)]


@pytest.mark.slow
def test_one_file_adds_a_measurement_a_figure_and_a_claim(tmp_path):
    checkout = copy_checkout(tmp_path / "checkout")
    (checkout / "analysis" / "papers" / "example.py").write_text(example(), "utf-8")

    def run(*words):
        done = run_python(checkout, *words)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    listed = run("-m", "vit_tf", "study", "--list")
    assert any(
        line.startswith("X.1 ") and "mean activation" in line for line in listed.splitlines()
    )
    out = tmp_path / "report"
    names, results = run("-c", USE, str(out)).splitlines()[-2:]
    assert "last-is-larger" in names and "mean_activation.vit" in results
    page = (out / "report.html").read_text("utf-8")
    assert "Figure 1 of " in page and "Mean activation of ViT" in page
    assert "The last block is more active than the first." in page
