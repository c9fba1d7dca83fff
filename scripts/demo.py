"""Measures two bundled models on bundled photographs: a report and an interactive page.

The models are a Vision Transformer with a CLS token and a BiT ResNet, both trained on CIFAR-10. The
report compares them on 200 bundled photographs and crops. Its first screen links to a page that
shows how both models process single photographs. The photographs have no labels, so that no
accuracy is measured.

Examples:
    vit-tf demo
    vit-tf demo --out first_report
    vit-tf demo --figures main,6 --photographs cat tiger
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vit_tf.scripts import analyze, common, report_commands
from vit_tf.scripts.common import Arguments, Options, named

if TYPE_CHECKING:
    from vit_tf.analysis.report.page import LinkedPage

log = logging.getLogger("vit_tf.demo")
MODELS = ("vit-cls-cifar10", "bit-cifar10")
TEXT = "Attention, attributions and similar patches of {} photographs, in both models side by side."
OPTIONS = {
    "figures": {
        "--figures": named(
            "figure numbers of the papers (default: main, the leading figure of each chapter)",
            "NUMBERS",
            default="main",
        ),
        "--photographs": named(
            "photographs on the interactive page",
            nargs="+",
            default=("cat", "dogs", "moose", "tiger"),
        ),
    },
    "run": common.output("output folder", default=Path("demo")),
}


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return report_commands.run_logged(parse, run, arguments)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    options = common.make_parser("demo", __doc__, OPTIONS).parse_args(arguments)
    report_commands.require_figures(options)
    return options


def run(options: Options) -> None:
    """Explore single photographs, measure all of them and report."""
    from vit_tf.analysis.figures.figure import lookup_figures
    from vit_tf.data.names import PHOTOGRAPHS

    start = time.perf_counter()
    # The report prints this command, to which further figures are added.
    selected = [] if options.figures == "main" else ["--figures", options.figures]
    settings = analyze.parse([*MODELS, "--data", PHOTOGRAPHS, "--out", str(options.out), *selected])
    figures = lookup_figures(report_commands.figure_numbers(settings))
    report = analyze.analyze(figures, settings, explore_photographs(options))
    if report:
        log.info("%s after %.0f seconds", report.path, time.perf_counter() - start)


def explore_photographs(options: Options) -> LinkedPage:
    """Writes the interactive page; what the report shows of it."""
    from vit_tf import analysis
    from vit_tf.analysis.report.page import LinkedPage
    from vit_tf.data import photographs

    paths = photographs(*options.photographs)
    options.out.mkdir(parents=True, exist_ok=True)
    log.info("exploring %d photographs", len(paths))
    path = analysis.explore(list(MODELS), paths, options.out / "explore.html").path
    return LinkedPage(
        "Single photographs", TEXT.format(len(paths)), "Explore the photographs", path.name
    )
