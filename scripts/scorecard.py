"""The scorecard over several trainings: which findings survive another seed?

Takes the folders of the reports of each training, which analyze.py and study.py write. The models
of a report differ from those of the others in their seed alone, and each report has one model for
each part of the scorecard; reports of other models or data are an error that lists what differs.
Nothing is measured again.

A finding is the mean over the trainings, with an interval that covers the spread between them and
what is uncertain within each. Writes report.html, figures/trainings.png and results/scorecard.nc to
the folder --out.

Examples:
    vit-tf analyze runs/vit-0/model.keras runs/bit-0/model.keras --data cifar10 --out report-0
    vit-tf analyze runs/vit-1/model.keras runs/bit-1/model.keras --data cifar10 --out report-1
    vit-tf scorecard report-0 report-1 --out report-over-seeds
"""

import sys
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from vit_tf.scripts import common, option_groups


def main(arguments=None):
    """Report as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments, backends=None)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("scorecard", __doc__)
    add = parser.group("reports")
    text = "folder of the report of one training; at least two"
    add("reports", type=Path, nargs="+", metavar="REPORT", help=text)
    out = {"type": Path, "metavar": "FOLDER", "default": Path("scorecard")}
    parser.group("run")("--out", help="for the report", **out)
    return parser.parse_args(arguments)


def run(options):
    """Write the report."""
    from vit_tf.analysis import report_trainings

    names = [path.resolve().name for path in options.reports]
    if len(set(names)) < len(names):
        names = [str(path) for path in options.reports]
    report = report_trainings(dict(zip(names, options.reports, strict=True)), options.out)
    for claim in report.claims:
        print(f"{claim.verdict:18} {claim.statement}")
    print(report.path)


if __name__ == "__main__":
    sys.exit(main())
