"""Writes the tables of docs/natural-images.md, and its logs of runs.

Example:
    python docs/natural/make_page.py --runs runs-seeds                  # of docs/natural/train.py
    python docs/natural/make_page.py --report reports/vit-bit           # of `vit-tf analyze`
"""

import argparse
import csv
import json
import re
from pathlib import Path

import numpy as np
import xarray as xr

from vit_tf.analysis.figures.figure import all_figures
from vit_tf.analysis.report.claim_rows import paper_text
from vit_tf.analysis.statistics.claims import Outcome

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.with_name("natural-images.md")
ARCHITECTURES = {
    "vit-cls": "ViT-CLS: 6 layers, width 128, patches of 4, 1.21 M parameters",
    "vit-gap": "the same with `pooling=gap`",
    "vit-noskip": "the same without the skips of `block03`",
    "vit-small": "ViT-CLS: 4 layers, width 64, 0.21 M",
    "bit": "BiT-R26: 3 stages, half width, 1.22 M",
    "mixer": "Mixer: 6 layers, width 96, 0.50 M",
}
MINUS = "\N{MINUS SIGN}"


def brief(value: float) -> str:
    """Two significant digits, with a true minus sign."""
    return f"{value:.2g}".replace("-", MINUS)


def claims_table(scorecard: xr.Dataset) -> str:
    """A row for each claim that a report tests, and the number of claims with each outcome."""
    figures = all_figures()
    claims = {claim.name: (claim, figure.paper) for figure in figures for claim in figure.claims}
    lines = [
        "| claim | in the paper | here: trained minus untrained (95 % CI) | untrained copies | "
        "outcome |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in scorecard["claim"].values:
        row, (claim, paper) = scorecard.sel(claim=name), claims[str(name).partition(".")[0]]
        if row["outcome"].item() == Outcome.NOT_TESTED.value:
            continue
        low, high = row["low"].item(), row["high"].item()
        interval = f" ({brief(low)} to {brief(high)})" if np.isfinite(low) else ""
        untrained = row["untrained"].values
        cells = [
            f"{claim.statement.rstrip('.')} ({paper.name.split(' ')[0]})",
            paper_text(claim.paper),
            brief(row["value"].item()) + interval,
            ", ".join(brief(value) for value in untrained[np.isfinite(untrained)]),
            row["outcome"].item() + ("" if interval else ", descriptive"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    outcomes = scorecard["outcome"].values.tolist()
    counts = [f"{outcomes.count(x.value)} {x.value}" for x in Outcome if x.value in outcomes]
    return "\n".join([*lines, "", f"Of {len(outcomes)} claims: {', '.join(counts)}."])


def read_accuracies(runs: Path) -> dict[str, list[float]]:
    """Test accuracies of the runs of each arm, in the order of their seeds."""
    accuracies: dict[str, list[float]] = {}
    for path in sorted(runs.glob("*/result.json")):
        arm = path.parent.name.rpartition("-")[0]
        accuracies.setdefault(arm, []).append(json.loads(path.read_text())["test_accuracy"])
    return accuracies


def percent(values: list[float]) -> str:
    """The mean of accuracies and their range."""
    mean, low, high = (100 * float(f(values)) for f in (np.mean, min, max))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def models_table(accuracies: dict[str, list[float]]) -> str:
    """A row for each architecture."""
    lines = [
        "| arm | model | seeds | test accuracy (%): mean (range) |",
        "| --- | --- | --- | --- |",
    ]
    for arm, words in ARCHITECTURES.items():
        values = accuracies[arm]
        lines.append(f"| `{arm}` | {words} | {len(values)} | {percent(values)} |")
    return "\n".join(lines)


def data_table(accuracies: dict[str, list[float]]) -> str:
    """A row for each fraction of the data."""
    lines = ["| data | images | ViT-CLS | BiT | ViT minus BiT |", "| --- | --- | --- | --- | --- |"]
    for ending, share, images in (
        ("-3", "3 %", "1,470"),
        ("-10", "10 %", "4,900"),
        ("-30", "30 %", "14,700"),
        ("", "all", "49,000"),
    ):
        vit, bit = accuracies["vit" + (ending or "-cls")], accuracies["bit" + ending]
        gap = 100 * (np.mean(vit) - np.mean(bit))
        words = f"{gap:.1f}".replace("-", MINUS)
        cells = share, images, percent(vit), percent(bit), words
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_logs(runs: Path) -> None:
    """Loss and accuracies of all runs by epoch, as one file."""
    with open(FOLDER / "runs-seeds.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for index, path in enumerate(sorted(runs.glob("*/log.csv"))):
            header, *rows = csv.reader(path.open(newline=""))
            if not index:
                writer.writerow(["run", *header])
            for epoch, *numbers in rows:
                writer.writerow([path.parent.name, epoch, *(f"{float(x):.4g}" for x in numbers)])


def replace_part(page: str, name: str, text: str) -> str:
    """The page with the text between the two comments of this name replaced."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    replaced, count = pattern.subn(lambda _: f"{start}\n\n{text}\n\n{end}", page)
    if count != 1:
        raise ValueError(f"Expected one part {name!r} in {PAGE.name}. Received: {count}")
    return replaced


def main() -> None:
    """Writes the tables whose sources are given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="folder of runs that train.py wrote")
    parser.add_argument("--report", type=Path, help="folder of a report")
    options = parser.parse_args()
    page = PAGE.read_text("utf-8")
    if options.runs:
        accuracies = read_accuracies(options.runs)
        page = replace_part(page, "models", models_table(accuracies))
        page = replace_part(page, "amount of data", data_table(accuracies))
        write_logs(options.runs)
    if options.report:
        scorecard = xr.load_dataset(options.report / "results" / "scorecard.nc")
        page = replace_part(page, "claims", claims_table(scorecard))
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
