"""Trains four models, measures what they have learned and writes a report.

ViT-CLS, ViT-GAP, ViT-CLS without the skips of its middle block, and a BiT ResNet of like size are
trained on one data set, unless they were before; every analysis runs on the test images. The
report, its figures (PNG), the results (netCDF) and the models (.keras) lie in the output folder.
A run that was stopped goes on where it was; one with nothing changed does no work.

Examples:
    python scripts/study.py
    python scripts/study.py --data fashion_mnist --data-dir ~/tensorflow_datasets
    python scripts/study.py --data path/to/folder/of/class/folders --image-size 64 --epochs 20
"""

import argparse
import dataclasses
import json
import logging
import math
import os
import platform
import sys
import time
from datetime import date
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import keras

import vit_tf
from vit_tf import analysis, checkpointing
from vit_tf.analysis.claims import as_dataset
from vit_tf.analysis.figures import SECTIONS, draw
from vit_tf.analysis.measurements import Data, Subject, measure, slug
from vit_tf.analysis.store import fingerprint, write_whole

log = logging.getLogger("vit_tf.study")

# What suits a data set on two CPU cores; each field is a flag too.
DIGITS = {"epochs": 25, "bit_epochs": 12, "shift": 2}
OTHERS = {"epochs": 9, "bit_epochs": 3, "shift": 0}
LARGEST = {"train": 24_000, "validation": 2_000, "test": 2_000}
EVALUATION_BATCH = 120
FIELD_IMAGES = 32


@dataclasses.dataclass(frozen=True)
class Plan:
    """One model of the study: what it is, how it is trained and its part in the scorecard."""

    name: str
    role: str
    model: type
    config: dict
    recipe: vit_tf.Recipe

    @cached_property
    def facts(self):
        """All that the trained model depends on, besides the data and the seed."""
        return [self.model.__name__, self.config, dataclasses.asdict(self.recipe)]


def make_plans(options, num_classes):
    """The four models of the study."""
    size = options.image_size
    shared = {"image_shape": (size, size, 3), "num_classes": num_classes}
    vit = shared | {
        "patch_size": size // 8,
        "num_layers": 6,
        "num_heads": 4,
        "hidden_dim": 64,
        "mlp_dim": 256,
    }
    bit = shared | {"units": (1, 1, 1), "width_factor": 0.5, "stem": "small"}
    middle = f"block{vit['num_layers'] // 2:02d}"

    def recipe(epochs):
        return vit_tf.Recipe(
            epochs=epochs,
            learning_rate=2e-3,
            warmup_epochs=epochs / 10,
            weight_decay=0.05,
            label_smoothing=0.1,
            shift=options.shift,
        )

    long, short = recipe(options.epochs), recipe(options.bit_epochs)
    without = vit | {"pooling": "cls", "without_skips": (middle,)}
    return [
        Plan("ViT-CLS", "vit", vit_tf.ViT, vit | {"pooling": "cls"}, long),
        Plan("ViT-GAP", "gap", vit_tf.ViT, vit | {"pooling": "gap"}, long),
        Plan(f"ViT-CLS without skips in {middle}", "without", vit_tf.ViT, without, long),
        Plan("BiT", "resnet", vit_tf.BiT, bit, short),
    ]


def subset_sizes(options, description):
    """How many examples of each split to use: as asked for, by default all or the largest."""
    sizes = dict(description.num_examples)
    if "validation" not in sizes:
        sizes["validation"] = round(0.1 * sizes["train"])
        sizes["train"] -= sizes["validation"]
    if options.data != "digits":
        sizes = {split: min(count, LARGEST[split]) for split, count in sizes.items()}
    asked = {"train": options.take, "test": options.take_test}
    return sizes | {split: count for split, count in asked.items() if count is not None}


def load_data(options, batch_size, splits=("train", "validation", "test"), **changes):
    """Batches of the splits; the order of the training images starts anew with each call."""
    arguments = {
        "image_size": options.image_size,
        "take": {split: options.sizes[split] for split in splits if split in options.sizes},
        "seed": options.seed,
        "data_dir": options.data_dir,
    }
    return vit_tf.data.load(
        options.data, batch_size=batch_size, splits=splits, **arguments | changes
    )


def train_model(plan, options, key):
    """The trained model of a plan and a row about it, found on disk or made there."""
    path = options.out / "models" / f"{slug(plan.name)}.keras"
    note = path.with_suffix(".json")
    if path.exists() and note.exists():
        row = json.loads(note.read_text())
        if row.pop("key") == key:
            return vit_tf.load_model(path), row
    start = time.perf_counter()
    keras.utils.set_random_seed(options.seed)
    train, validation, test = load_data(options, options.batch_size)
    with vit_tf.distribute.strategy(options.strategy).scope():
        model = plan.model(**plan.config, name=slug(plan.name))
        directory = options.out / "training" / f"{slug(plan.name)}-{key}"
        vit_tf.train(model, plan.recipe, train, validation, directory)
        accuracy = model.evaluate(test, verbose=0, return_dict=True)["accuracy"]
    row = {
        "model": plan.name,
        "parameters": model.count_params(),
        "test accuracy (%)": round(100 * accuracy, 2),
        "tested on": sum(len(labels) for _, labels in test),
        "epochs": plan.recipe.epochs,
        "training (s)": round(time.perf_counter() - start),
    }
    note.unlink(missing_ok=True)  # lest a run that stops here leave it beside another model
    checkpointing.save_model(model, path)
    text = json.dumps(row | {"key": key}, indent=1)
    write_whole(note, lambda partial: partial.write_text(text))
    return model, row


def judge(plans, rows, results, options):
    """The scorecard of the paper's findings, saved beside the results."""
    claims = analysis.scorecard(
        results,
        **{plan.role: slug(plan.name) for plan in plans},
        block=next((p.config["without_skips"][0] for p in plans if p.role == "without"), None),
        accuracy={slug(r["model"]): (r["test accuracy (%)"] / 100, r["tested on"]) for r in rows},
    )
    path = options.out / "results" / "scorecard.nc"
    write_whole(path, as_dataset(claims).to_netcdf)
    for claim in claims:
        log.info("%-13s %s", claim.verdict, claim.statement)
    return claims


def report(claims, rows, drawn, results, description, options):
    """Writes `report.html` and returns its path."""
    timings = [
        {"step": f"training of {row['model']}", "seconds": row["training (s)"]} for row in rows
    ]
    timings += [{"step": name, "seconds": r.attrs["seconds"]} for name, r in results.items()]
    sections = [
        (heading, text, [figure for section, figure in drawn if section == key])
        for key, (heading, text) in SECTIONS.items()
    ]
    packages = ("vit_tf", "tensorflow", "keras", "numpy", "xarray", "matplotlib")
    provenance = {
        "command": " ".join(["python", "scripts/study.py", *sys.argv[1:]]),
        "data": f"{options.data}: {description.num_examples}",
        "options": {k: str(v) for k, v in vars(options).items()},
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": date.today().isoformat(),
    }
    return analysis.write_report(
        options.out / "report.html",
        title=f"What four vision models learned from {description.name}",
        introduction=INTRODUCTION.format(options=options, description=description),
        scorecard=claims,
        models=rows,
        sections=sections,
        timings=timings,
        provenance=provenance,
    )


INTRODUCTION = (
    "Two Vision Transformers that differ in what their head reads (a class token, CLS, or the mean "
    "of all tokens, GAP), a third without the skips of its middle block, and a BiT ResNet of like "
    "size were trained from scratch on {description.name} ({description.num_classes} classes, "
    "{options.image_size} pixels) and measured on its test images. The measurements are those of "
    'Raghu et al. 2021, "Do Vision Transformers See Like Convolutional Neural Networks?"; what '
    "they found for large models on large data need not hold for small ones."
)


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data",
        default="digits",
        help="digits (default), a TFDS name or a folder of class folders",
    )
    add("--data-dir", help="where TFDS keeps its data")
    add("--out", type=Path, help="output folder (default: study_DATA)")
    add("--image-size", type=int, default=32, help="pixels, a multiple of 8 (default: 32)")
    add("--take", type=int, help="training images (default: all, of large data 24,000)")
    add("--take-test", type=int, help="test images (default: all, of large data 2,000)")
    add("--epochs", type=int, help="of the ViTs (default: 25 for digits, 9 for others)")
    add("--bit-epochs", type=int, help="of the BiT (default: 12 for digits, 3 for others)")
    add("--shift", type=int, help="largest random shift, in pixels (default: 2 for digits, else 0)")
    add("--batch-size", type=int, default=64, help="images in a training batch (default: 64)")
    add("--seed", type=int, default=0, help="of weights, order and subsets (default: 0)")
    add("--strategy", default="auto", help="auto (default), none or mirrored")
    options = parser.parse_args(arguments)
    if options.image_size < 16 or options.image_size % 8:
        raise ValueError(
            "Expected --image-size to be a multiple of 8 from 16 on. "
            f"Received: {options.image_size}"
        )
    for name, default in (DIGITS if options.data == "digits" else OTHERS).items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    options.out = options.out or Path(f"study_{Path(options.data).name}")
    return options


def run(options):
    start = time.perf_counter()
    description = vit_tf.data.describe(options.data, data_dir=options.data_dir)
    options.sizes = subset_sizes(options, description)
    tested = options.sizes.get("test", EVALUATION_BATCH)
    batches = math.ceil(tested / EVALUATION_BATCH)
    data = load_data(options, math.ceil(tested / batches))  # alike, so that none is too small
    few = {"test": min(FIELD_IMAGES, tested)}
    (few,) = load_data(options, FIELD_IMAGES, ("test",), take=few)
    data = Data(*data, few, description.num_classes)
    plans = make_plans(options, description.num_classes)
    source = [options.data, options.image_size, options.sizes]
    subjects, keys, rows = [], {}, []
    for number, plan in enumerate(plans, start=1):
        log.info("[model %d/%d] %s", number, len(plans), plan.name)
        key = fingerprint(plan.facts, source, options.batch_size, options.seed)
        model, row = train_model(plan, options, key)
        features = partial(vit_tf.submodel, model)
        subjects.append(Subject(plan.name, model.taps, features, model.token_grid))
        keys[slug(plan.name)] = key
        rows.append(row)
        log.info("%s: %s %% of the test images", plan.name, row["test accuracy (%)"])
    results = measure(subjects, keys, data, options.out / "results")
    drawn = draw(subjects, results, options.out)
    claims = judge(plans, rows, results, options)
    path = report(claims, rows, drawn, results, description, options)
    log.info("%s after %.0f seconds", path, time.perf_counter() - start)


def main(arguments=None):
    """Make the study told on the command line; the exit status, 2 for a mistake of the user."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("vit_tf").setLevel(logging.INFO)
    try:
        run(parse(arguments))
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
