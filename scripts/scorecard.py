"""Combines reports over several seeds: which claims of the papers replicate?

Takes the folders of reports that `vit-tf analyze` or `vit-tf study` wrote, one for each seed. The
models of the reports may differ only in their seed, and a report has one model for each role in the
claims; otherwise an error lists the differences. Nothing is measured again.

An effect is the mean over seeds, with an interval over seeds; an outcome needs three seeds. Writes
report.html, `figures/runs.png` and results/scorecard.nc to the folder --out.

Examples:
    vit-tf analyze runs/vit-0/model.keras runs/bit-0/model.keras --data cifar10 --out report-0
    vit-tf analyze runs/vit-1/model.keras runs/bit-1/model.keras --data cifar10 --out report-1
    vit-tf scorecard report-0 report-1 --out report-over-seeds
"""

from pathlib import Path

from vit_tf.scripts import common
from vit_tf.scripts.common import Arguments, Options

OPTIONS = {
    "reports": {
        "reports": {
            "type": Path,
            "nargs": "+",
            "metavar": "REPORT",
            "help": "folder of a report, one for each seed; at least two",
        }
    },
    "run": common.output("output folder", default=Path("scorecard")),
}


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return common.run_command(parse, run, arguments, backends=None)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    return common.make_parser("scorecard", __doc__, OPTIONS).parse_args(arguments)


def run(options: Options) -> None:
    """Write the report."""
    from vit_tf.analysis import report_runs

    names = [path.resolve().name for path in options.reports]
    if len(set(names)) < len(names):
        names = [str(path) for path in options.reports]
    report = report_runs(dict(zip(names, options.reports, strict=True)), options.out)
    for row in report.claims:
        print(f"{row.outcome.value:18} {row.claim.statement}")
    print(report.path)
