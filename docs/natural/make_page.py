"""Measures the runs of docs/natural/train.py and writes the tables of docs/natural-images.md.

One report for each seed (`vit-tf analyze`) compares the arms; reports of several seeds are combined
as `vit-tf scorecard` combines them. Claims about accuracy alone are tested on all 10,000 test
images, with the accuracies that train.py saved. Reports that are complete are not measured again.

Example:
    python docs/natural/make_page.py runs-seeds reports-seeds --data-dir ~/tensorflow_datasets
"""

import argparse
import csv
import json
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from vit_tf import analysis
from vit_tf.analysis.claims.claim import NotTested, Outcome, Tested
from vit_tf.analysis.report.claim_rows import brief, interval_text, paper_text
from vit_tf.analysis.study.data import Data
from vit_tf.analysis.study.scorecard import claims_over_runs, scorecard_dataset
from vit_tf.scripts import analyze

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.with_name("natural-images.md")
SEEDS = 3
NUM_TEST, NUM_TRAINING = 10_000, 49_000
# Arms that a report compares, with their names in it and their roles.
MAIN_ARMS = {"vit-cls": ("vit", "vit"), "vit-gap": ("gap", "gap"), "bit": ("bit", "resnet")}
OTHER_ARMS = {
    "mixer": ("mixer", "mixer"),
    "vit-noskip": ("noskip", "without:block03"),
    "vit-3": ("vit-3", "fraction:0.03"),
    "bit-3": ("bit-3", "fraction:0.03"),
}
CONTROLS = (3, 4, 0)  # for each seed, the run of vit-cls that is its second one
OPTIONS = ["--data", "cifar10", "--strategy", "none", "--untrained", "1"]


class Measured(NamedTuple):
    """What the reports of one kind show, of as many test images as their claims need."""

    arms: dict[str, tuple[str, str]]
    figures: str
    images: int
    has_control: bool


REPORTS = {
    "probes": Measured(MAIN_ARMS, "5,6,11,13", 300, False),
    "seed": Measured(MAIN_ARMS | OTHER_ARMS, "1,2,H.1,3,7,8,9,12,W.3,W.4,W.23,V.3", 500, True),
    "tokens": Measured(MAIN_ARMS, "9", 800, False),
}
ARCHITECTURES = {
    "vit-cls": "ViT-CLS: 6 layers, width 128, patches of 4, 1.21 M parameters",
    "vit-gap": "the same with `pooling=gap`",
    "vit-noskip": "the same without the skips of `block03`",
    "vit-small": "ViT-CLS: 4 layers, width 64, 0.21 M",
    "bit": "BiT-R26: 3 stages, half width, 1.22 M",
    "mixer": "Mixer: 6 layers, width 96, 0.50 M",
}
MINUS = "\N{MINUS SIGN}"
PICTURES = {  # of the first seed's report
    "without-skips-vit.png": "seeds-without-skips.png",
    "data-scale-vit.png": "seeds-data-scale.png",
}


def measure(runs: Path, reports: Path, data_dir: str | None) -> list[dict[str, xr.Dataset]]:
    """Writes a report of each kind for each seed: their scorecards, by kind."""
    scorecards = []
    for kind, (arms, figures, images, has_control) in REPORTS.items():
        scorecards.append({})
        for seed in range(SEEDS):
            folder = reports / f"{kind}-{seed}"
            models = {f"{arm}-{seed}": names for arm, names in arms.items()}
            if has_control:
                models[f"vit-cls-{CONTROLS[seed]}"] = ("seed", "seed:1")
            names, roles = zip(*models.values(), strict=True)
            arguments = [str(runs / name / "model.keras") for name in models]
            arguments += ["--names", *names, "--roles", *roles, "--figures", figures, *OPTIONS]
            arguments += ["--take-test", str(images), "--out", str(folder)]
            arguments += ["--data-dir", data_dir] if data_dir else []
            if not (folder / "report.html").is_file() and analyze.main(arguments):
                sys.exit(f"No report in {folder}")
            scorecards[-1][folder.name] = xr.load_dataset(folder / "results" / "scorecard.nc")
    return scorecards


def read_accuracies(runs: Path) -> dict[str, list[float]]:
    """Test accuracies of the runs of each arm, in the order of their seeds."""
    accuracies: dict[str, list[float]] = {}
    for path in sorted(runs.glob("*/result.json")):
        arm = path.parent.name.rpartition("-")[0]
        accuracies.setdefault(arm, []).append(json.loads(path.read_text())["test_accuracy"])
    return accuracies


def accuracy_claims(accuracies: dict[str, list[float]]) -> dict[str, xr.Dataset]:
    """Scorecards of claims about accuracy, one for each seed."""
    scorecards, data = {}, Data(None, None, facts={"test": NUM_TEST})
    for seed in range(SEEDS):
        facts = {arm: (values[seed], NUM_TEST) for arm, values in accuracies.items()}
        rows = analysis.scorecard(
            {},
            vit="vit-cls",
            resnet="bit",
            without="vit-noskip",
            block="block03",
            others={"fraction": "vit-3", "resnet_fraction": "bit-3"},
            accuracy=facts,
            training_images=NUM_TRAINING,
        )
        tested = [row for row in rows if isinstance(row, Tested)]
        scorecards[f"seed {seed}"] = scorecard_dataset(tested, images=data)
    return scorecards


def claims_table(scorecards: list[dict[str, xr.Dataset]]) -> str:
    """A row for each tested claim; of a claim in several kinds of reports, the last one's."""
    rows: dict[str, Tested] = {}
    for by_seed in scorecards:
        tested = [row for row in claims_over_runs(by_seed) if not isinstance(row, NotTested)]
        rows |= {row.name: row for row in tested}
    lines = [
        "| claim | in the paper | here: trained minus untrained (95 % CI) | untrained | runs | "
        "outcome |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows.values():
        paper = row.source[0].split(" ")[0]
        interval = interval_text(row.estimate)
        is_descriptive = row.outcome is Outcome.UNDECIDED and not interval
        cells = [
            f"{row.claim.statement.rstrip('.')} ({paper})",
            paper_text(row.claim.paper),
            brief(row.estimate.value) + (f" ({interval})" if interval else ""),
            ", ".join(map(brief, row.untrained)),
            ", ".join(brief(value) for _, value in row.runs),
            row.outcome.value + (", descriptive" if is_descriptive else ""),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


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
    """Measures and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="folder of runs that train.py wrote")
    parser.add_argument("reports", type=Path, help="folder of the reports, one for each seed")
    parser.add_argument("--data-dir", help="data folder of TFDS")
    options = parser.parse_args()
    scorecards = measure(options.runs, options.reports, options.data_dir)
    accuracies = read_accuracies(options.runs)
    scorecards.append(accuracy_claims(accuracies))
    page = PAGE.read_text("utf-8")
    page = replace_part(page, "models", models_table(accuracies))
    page = replace_part(page, "amount of data", data_table(accuracies))
    page = replace_part(page, "claims", claims_table(scorecards))
    PAGE.write_text(page, "utf-8")
    write_logs(options.runs)
    for figure, picture in PICTURES.items():
        shutil.copy(options.reports / "seed-0" / "figures" / figure, FOLDER / picture)


if __name__ == "__main__":
    main()
