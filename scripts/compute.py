"""Compares accuracy with training compute: a table and a plot of trained models.

Takes folders that `vit-tf train`, `pretrain`, `finetune` or `study` wrote. The FLOPs of a forward
pass are counted in the model's graph (matrix products and convolutions, two per multiply-add), and
training counts as three forward passes per image. The number of images comes from log.csv, also for
a run that has not ended. Such a run and pre-training have no test accuracy. For a fine-tuned model,
the images of pre-training do not count. The models of a study do not store their batch size: use
--batch-size.

Prints the table; writes compute.csv and the plot compute.png to the folder --out.

Examples:
    vit-tf compute runs/vit runs/bit runs/mixer
    vit-tf compute runs/* --data-dir ~/tensorflow_datasets --out figures
    vit-tf compute study_digits --batch-size 64 --out figures
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vit_tf
from vit_tf.scripts import common
from vit_tf.scripts.common import Arguments, Options, integer, named

if TYPE_CHECKING:
    import keras
    import xarray as xr

OPTIONS = {
    "runs": {
        "runs": {
            "type": Path,
            "nargs": "+",
            "metavar": "RUN",
            "help": "folder of a training run or of a study",
        },
        **common.IMPORTS,
        "--data-dir": named("data folder of TFDS (default: as in training)", "FOLDER"),
        "--batch-size": integer("batch size of training, which a study does not store"),
    },
    "run": common.output("output folder", default=Path()),
}


@dataclass(frozen=True)
class Run:
    """A training run: its name, folder, model file and test accuracy or NaN."""

    name: str
    folder: Path
    model: Path
    accuracy: float


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return common.run_command(parse, run, arguments)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    return common.make_parser("compute", __doc__, OPTIONS).parse_args(arguments)


def find_runs(folder: Path) -> list[Run]:
    """The runs in a folder: one of training, or those of all models of a study."""
    if (folder / "configuration.json").is_file():
        result = read_json(folder / "result.json") if (folder / "result.json").exists() else {}
        ended = (folder / "model.keras").exists()
        model = folder / ("model.keras" if ended else "best.keras")
        trained = read_json(folder / "configuration.json")["model"]["class"]
        # The accuracy of pre-training is that of colours, not of classes.
        classifies = trained != "MaskedPatchPrediction"
        accuracy = result.get("test_accuracy", math.nan) if classifies else math.nan
        return [Run(folder.resolve().name, folder, model, accuracy)]
    runs = []
    for path in sorted((folder / "models").glob("*.json")):
        facts = read_json(path)
        if {"key", "row"} <= set(facts):
            training = folder / "training" / f"{path.stem}-{facts['key']}"
            accuracy = facts["row"]["test accuracy (%)"] / 100
            runs.append(Run(facts["row"]["model"], training, path.with_suffix(".keras"), accuracy))
    if not runs:
        raise ValueError(
            "Expected the folder of a training run, with configuration.json, or of a study, with "
            f"models. Received: {str(folder)!r}"
        )
    return runs


def read_json(path: Path) -> dict[str, Any]:
    """The contents of a JSON file."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"Expected {str(path)!r} to be JSON. Received: {error}") from error


def images_seen(run: Run, options: Options) -> int:
    """Number of training images over all steps of a run, repeated ones included."""
    configuration, log = read_json(run.folder / "configuration.json"), run.folder / "log.csv"
    if not log.is_file():
        raise ValueError(f"The run has no finished epoch: {str(log)!r} not found")
    with open(log, newline="", encoding="utf-8") as file:
        rounds = len(list(csv.DictReader(file)))
    recipe = configuration["recipe"]
    per_epoch = configuration["steps_per_epoch"]
    # A fine-tuning logs rounds of equally many steps, which need not end where the data do.
    steps = recipe["steps"] // recipe["validations"] if "steps" in recipe else per_epoch
    passes, rest = divmod(rounds * steps, per_epoch)
    data = configuration["data"]
    if not data or "batch_size" not in data:
        if options.batch_size is None:
            raise ValueError(
                f"The run {str(run.folder)!r} does not store its batch size: specify "
                "--batch-size (64 in a study, by default)"
            )
        return rounds * steps * options.batch_size
    examples, size = count_examples(data, run, options), data["batch_size"]
    # A TPU leaves out a last batch that is not full.
    if per_epoch not in (-(-examples // size), examples // size):
        raise ValueError(
            f"Expected {data['name']!r} as in training, {per_epoch} batches of "
            f"{size} images. Received: {examples} images"
        )
    return passes * min(examples, per_epoch * size) + rest * size


def count_examples(data: dict[str, Any], run: Run, options: Options) -> int:
    """Number of examples of the training split that a run's configuration describes."""
    from vit_tf.data.pipeline import open_source
    from vit_tf.data.source import partition, select_classes

    result = run.folder / "result.json"
    stored = read_json(result)["options"].get("data_dir") if result.exists() else None
    source = open_source(data["name"], options.data_dir or stored)
    source = select_classes(source, data.get("classes"))
    splits = ("train", "validation", "test")
    parts = partition(source, splits, data["validation"], data["take"] or {}, data["seed"])
    return len(parts["train"][1])


def count(runs: Sequence[Run], options: Options) -> xr.Dataset:
    """The table of runs: Dataset of dims (run,), with the names and families as coordinates."""
    import xarray as xr

    from vit_tf.features.flops import count_flops, training_flops

    names = ("family", *COLUMNS)
    rows = []
    for run in runs:
        model = vit_tf.load_model(run.model)
        forward, images = count_flops(model), images_seen(run, options)
        numbers = model.count_params(), forward, images, training_flops(forward, images)
        rows.append((family(model), *numbers, run.accuracy))
    columns = {n: ("run", list(c)) for n, c in zip(names, zip(*rows, strict=True), strict=True)}
    table = xr.Dataset(columns, coords={"run": [run.name for run in runs]})
    return table.set_coords("family")


def family(model: keras.Model) -> str:
    """The kind of a model, as in the legend of the plot."""
    hybrid = isinstance(model, vit_tf.HybridViT)
    return "hybrid" if hybrid else type(model).__name__


# The heading, factor and format of each column that is printed.
COLUMNS = {
    "parameters": ("parameters", 1, ","),
    "forward_flops": ("MFLOPs per image", 1e-6, ",.2f"),
    "images": ("images seen", 1, ","),
    "training_flops": ("training GFLOPs", 1e-9, ",.1f"),
    "test_accuracy": ("test accuracy (%)", 100, ".2f"),
}


def as_text(table: xr.Dataset) -> str:
    """The table as lines of text."""
    lines = [["model", "family", *(heading for heading, *_ in COLUMNS.values())]]
    for index in range(table.sizes["run"]):
        row = table.isel(run=index)
        numbers = [f"{x * row[name].item():{form}}" for name, (_, x, form) in COLUMNS.items()]
        numbers = ["-" if number == "nan" else number for number in numbers]
        lines.append([row["run"].item(), row["family"].item(), *numbers])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = "<<" + ">" * len(COLUMNS)
    cells = [zip(line, sides, widths, strict=True) for line in lines]
    return "\n".join("  ".join(f"{t:{side}{width}}" for t, side, width in row) for row in cells)


def run(options: Options) -> None:
    """Count, print the table and write it and the plot."""
    common.require_at_least(options, batch_size=1)
    from vit_tf.analysis.plots import plot_compute
    from vit_tf.data.files import write_whole

    table = count([item for folder in options.runs for item in find_runs(folder)], options)
    common.say(as_text(table))
    # A line per run, in FLOPs and fractions; missing values are empty.
    frame = table.to_dataframe()[["family", *COLUMNS]]
    write_whole(options.out / "compute.csv", frame.to_csv)
    if table["test_accuracy"].isnull().all():
        raise ValueError("None of the runs is finished, so there is nothing to plot")
    common.save_plot(plot_compute(table), options.out / "compute.png")
