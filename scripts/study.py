"""Trains vision models, measures what they have learned and writes a report.

Vision Transformers (with a CLS token, with average pooling, without the skips of a block, on
fractions of the data, from other first weights, before and after fine-tuning), a BiT ResNet and an
MLP-Mixer of like size are trained on one data set, as far as the figures asked for need them and
unless they were before; every analysis runs on the test images. The report, its figures (PNG), the
results (netCDF) and the models (.keras) lie in the output folder. A run that was stopped goes on
where it was; one with nothing changed does no work.

Examples:
    python scripts/study.py
    python scripts/study.py --list
    python scripts/study.py --figures 1,7,9
    python scripts/study.py --data fashion_mnist --data-dir ~/tensorflow_datasets
    python scripts/study.py --data path/to/folder/of/class/folders --image-size 64 --epochs 20
"""

import argparse
import logging
import math
import os
import platform
import sys
import time
from datetime import date
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import study_models

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.claims import as_dataset
from vit_tf.analysis.figures import FIGURES, SECTIONS, choose_figures, draw, plan_rows
from vit_tf.analysis.measure import Data, measure
from vit_tf.analysis.measurements import Subject
from vit_tf.analysis.store import write_whole

log = logging.getLogger("vit_tf.study")

# What suits a data set on two CPU cores; each field is a flag too.
DIGITS = {"epochs": 20, "bit_epochs": 10, "shift": 2}
OTHERS = {"epochs": 9, "bit_epochs": 3, "shift": 0}
LARGEST = {"train": 24_000, "validation": 2_000, "test": 2_000}
EVALUATION_BATCH = 120
FIELD_IMAGES = 32


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


def read_data(options, num_classes):
    """The images that the measurements read."""
    tested = options.sizes.get("test", EVALUATION_BATCH)
    batches = math.ceil(tested / EVALUATION_BATCH)
    size = math.ceil(tested / batches)  # batches alike, so that none is too small
    (test,) = study_models.load_data(options, size, ("test",))
    take = {"test": min(FIELD_IMAGES, tested)}
    (few,) = study_models.load_data(options, FIELD_IMAGES, ("test",), take=take)
    train, held_out = vit_tf.data.few_shot(
        options.data,
        options.shots,
        seed=options.seed,
        image_size=options.image_size,
        batch_size=EVALUATION_BATCH,
        held_out=options.shots,
        data_dir=options.data_dir,
    )
    facts = {"shots": options.shots, "batch": size, "field_images": FIELD_IMAGES}
    return Data(train, held_out, test, few, num_classes, facts)


def train_models(entries, options, num_classes):
    """The models that the figures need, trained: list of `Subject`, and rows about them."""
    roles = {role for entry in entries for role in entry.roles}
    plans = study_models.make_plans(options, num_classes)
    plans = [plan for plan in plans if plan.role in roles]
    subjects, rows = [], []
    for number, plan in enumerate(plans, start=1):
        log.info("[model %d/%d] %s", number, len(plans), plan.name)
        found = study_models.trained(plan, options)
        row = found["row"]
        log.info("%s: %s %% of the test images", plan.name, row["test accuracy (%)"])
        load = cache(partial(vit_tf.load_model, study_models.model_path(plan, options)))
        subject = Subject(
            plan.name,
            plan.role,
            found["key"],
            tuple(found["taps"]),
            found["grid"],
            lambda *patterns, load=load: vit_tf.submodel(load(), *patterns),
            plan.detail,
            plan.of,
            (row["test accuracy (%)"] / 100, row["tested on"]),
        )
        subjects.append(subject)
        rows.append(row)
    return subjects, rows


def judge(subjects, results, options):
    """The scorecard of the paper's findings, saved beside the results."""
    by_role = {subject.role: subject for subject in reversed(subjects)}
    if "vit" not in by_role:
        return []
    block = f"block{study_models.NUM_LAYERS // 2:02d}"
    without = [s.slug for s in subjects if s.role == "without" and s.detail == block]
    claims = analysis.scorecard(
        results,
        **{role: by_role[role].slug for role in ("vit", "gap", "resnet") if role in by_role},
        without=next(iter(without), None),
        block=block,
        accuracy={subject.slug: subject.accuracy for subject in subjects},
    )
    path = options.out / "results" / "scorecard.nc"
    write_whole(path, as_dataset(claims).to_netcdf)
    for claim in claims:
        log.info("%-13s %s", claim.verdict, claim.statement)
    return claims


def report(claims, rows, drawn, results, description, options):
    """Writes `report.html` and returns its path."""
    passes = {result.attrs["pass"]: result.attrs["seconds"] for result in results.values()}
    timings = [
        {"step": f"training of {row['model']}", "seconds": row["training (s)"]} for row in rows
    ]
    timings += [{"step": step, "seconds": seconds} for step, seconds in passes.items()]
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
        title=f"What {len(rows)} vision models learned from {description.name}",
        introduction=INTRODUCTION.format(options=options, description=description),
        scorecard=claims,
        models=rows,
        sections=[section for section in sections if section[2]],
        timings=timings,
        provenance=provenance,
    )


INTRODUCTION = (
    "Small vision models were trained on {description.name} ({description.num_classes} classes, "
    "{options.image_size} pixels) and measured on its test images: Vision Transformers whose head "
    "reads a class token (CLS) or the mean of all tokens (GAP), variants of the first, a BiT "
    "ResNet and an MLP-Mixer of like size, as far as the figures below need them. Linear probes "
    "are fitted on {options.shots} training images of each class, their penalty is chosen on as "
    'many others. The measurements are those of Raghu et al. 2021, "Do Vision Transformers See '
    'Like Convolutional Neural Networks?"; what they found for large models on large data need '
    "not hold for small ones."
)


def list_figures():
    """The table of figures, as text."""
    lines = ["figures                  what they show                                       models"]
    lines += [f"{','.join(e.numbers):24} {e.title:52} {', '.join(e.roles)}" for e in FIGURES]
    return "\n".join(lines)


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
    add("--figures", default="", help="numbers of the paper, as 1,7,C.4 (default: all)")
    add("--list", action="store_true", help="list the figures and the models they need, and stop")
    add("--out", type=Path, help="output folder (default: study_DATA)")
    add("--image-size", type=int, default=32, help="pixels, a multiple of 8 (default: 32)")
    add("--take", type=int, help="training images (default: all, of large data 24,000)")
    add("--take-test", type=int, help="test images (default: all, of large data 2,000)")
    add("--epochs", type=int, help="of the ViTs (default: 20 for digits, 9 for others)")
    add("--bit-epochs", type=int, help="of the BiT (default: 10 for digits, 3 for others)")
    add("--shift", type=int, help="largest random shift, in pixels (default: 2 for digits, else 0)")
    add("--seeds", type=int, default=2, help="trainings of ViT-CLS and of BiT (default: 2)")
    add("--shots", type=int, default=10, help="images of a class for probes (default: 10)")
    add("--batch-size", type=int, default=64, help="images in a training batch (default: 64)")
    add("--seed", type=int, default=0, help="of weights, order and subsets (default: 0)")
    add("--strategy", default="auto", help="auto (default), none or mirrored")
    options = parser.parse_args(arguments)
    if options.image_size < 16 or options.image_size % 8:
        raise ValueError(
            "Expected --image-size to be a multiple of 8 from 16 on. "
            f"Received: {options.image_size}"
        )
    if options.seeds < 1:
        raise ValueError(f"Expected --seeds to be at least 1. Received: {options.seeds}")
    for name, default in (DIGITS if options.data == "digits" else OTHERS).items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    options.out = options.out or Path(f"study_{Path(options.data).name}")
    return options


def run(options):
    start = time.perf_counter()
    entries = choose_figures([number for number in options.figures.split(",") if number])
    description = vit_tf.data.describe(options.data, data_dir=options.data_dir)
    options.sizes = subset_sizes(options, description)
    data = read_data(options, description.num_classes)
    subjects, rows = train_models(entries, options, description.num_classes)
    planned = plan_rows(entries, subjects)
    wanted = [one for _, row in planned for one in row.measurements.values()]
    results = measure(wanted, data, options.out / "results")
    drawn = draw(planned, results, options.out)
    claims = judge(subjects, results, options)
    path = report(claims, rows, drawn, results, description, options)
    log.info("%s after %.0f seconds", path, time.perf_counter() - start)


def main(arguments=None):
    """Make the study told on the command line; the exit status, 2 for a mistake of the user."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("vit_tf").setLevel(logging.INFO)
    try:
        options = parse(arguments)
        if options.list:
            print(list_figures())
        else:
            run(options)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
