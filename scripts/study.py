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

import logging
import os
import sys
import time
from functools import cache, partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import common
import reporting
from reporting import LARGEST

import vit_tf

log = logging.getLogger("vit_tf.study")

# What suits a data set on two CPU cores; each field is a flag too.
DIGITS = {"epochs": 20, "bit_epochs": 10, "shift": 2}
OTHERS = {"epochs": 9, "bit_epochs": 3, "shift": 0}
# The roles that the scorecard reads, besides the model without skips.
JUDGED = ("vit", "gap", "resnet", "fresh", "noise")


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


def train_models(entries, options, num_classes):
    """The models that the figures need, trained: list of `Subject`, and rows about them."""
    import study_models

    from vit_tf.analysis.subjects import Subject

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
            **_embeddings(plan.model, load),
        )
        subjects.append(subject)
        rows.append(row)
        if plan.role == "vit":
            subjects += reporting.baselines(subject, partial(_untrained, load, options.seed))
    return subjects, rows


def _embeddings(model, load):
    """The fields of a `Subject` for the first layer of a class of models, which is loaded later."""
    fields = {vit_tf.ViT: ("patch_kernel", "position_embedding"), vit_tf.Mixer: ("patch_kernel",)}
    return {name: lambda name=name: getattr(load(), name) for name in fields.get(model, ())}


def _untrained(load, seed):
    """The features of a model that is loaded, with weights as before any training."""
    return partial(vit_tf.submodel, vit_tf.fresh_copy(load(), seed))


def judge(subjects, results, options):
    """The scorecard of the papers' findings, saved beside the results."""
    import study_models

    from vit_tf.analysis.claims import as_dataset
    from vit_tf.analysis.store import write_whole

    by_role = {subject.role: subject for subject in reversed(subjects)}
    if "vit" not in by_role:
        return []
    block = f"block{study_models.NUM_LAYERS // 2:02d}"
    without = [s.slug for s in subjects if s.role == "without" and s.detail == block]
    claims = vit_tf.analysis.scorecard(
        results,
        **{role: by_role[role].slug for role in JUDGED if role in by_role},
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
    trainings = [
        {"step": f"training of {row['model']}", "seconds": row["training (s)"]} for row in rows
    ]
    return vit_tf.analysis.write_report(
        options.out / "report.html",
        title=f"What {len(rows)} vision models learned from {description.name}",
        introduction=INTRODUCTION.format(options=options, description=description),
        scorecard=claims,
        models=rows,
        sections=reporting.sections(drawn),
        timings=trainings + reporting.timings(results),
        provenance=reporting.provenance("study.py", options, description),
    )


INTRODUCTION = (
    "Small vision models were trained on {description.name} ({description.num_classes} classes, "
    "{options.image_size} pixels) and measured on its test images: Vision Transformers whose head "
    "reads a class token (CLS) or the mean of all tokens (GAP), variants of the first, a BiT "
    "ResNet and an MLP-Mixer of like size, as far as the figures below need them. Linear probes "
    "are fitted on {options.shots} training images of each class, their penalty is chosen on as "
    'many others. The measurements are those of Raghu et al. 2021, "Do Vision Transformers See '
    'Like Convolutional Neural Networks?", and of Walmer et al. 2023, "Teaching Matters: '
    'Investigating the Role of Supervision in Vision Transformers"; what they found for large '
    "models on large data need not hold for small ones."
)


def parse(arguments):
    parser = common.make_parser(__doc__)
    add = parser.add_argument
    common.add_source(add)
    reporting.add_figures(add)
    add("--out", type=Path, help="output folder (default: study_DATA)")
    add("--image-size", type=int, default=32, help="pixels, a multiple of 8 (default: 32)")
    add("--take", type=int, help="training images (default: all, of large data 24,000)")
    add("--epochs", type=int, help="of the ViTs (default: 20 for digits, 9 for others)")
    add("--bit-epochs", type=int, help="of the BiT (default: 10 for digits, 3 for others)")
    add("--shift", type=int, help="largest random shift, in pixels (default: 2 for digits, else 0)")
    add("--seeds", type=int, default=2, help="trainings of ViT-CLS and of BiT (default: 2)")
    add("--batch-size", type=int, default=64, help="images in a training batch (default: 64)")
    reporting.add_sampling(add)
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
    """List the figures, or train, measure and report."""
    from vit_tf.analysis.figures import FIGURES, choose_figures

    if options.list:
        print(reporting.list_figures(FIGURES))
        return
    make_study(choose_figures(reporting.figure_numbers(options)), options)


def make_study(entries, options):
    """Train what these figures need, measure, draw and write the report."""
    from vit_tf.analysis.figures import plan_rows
    from vit_tf.analysis.measure import measure
    from vit_tf.analysis.pictures import draw

    start = time.perf_counter()
    description = common.describe_data(options)
    options.sizes = subset_sizes(options, description)
    data = reporting.read_data(options, description, entries, image_size=options.image_size)
    with reporting.strategy_in(options.out, options.strategy):
        subjects, rows = train_models(entries, options, description.num_classes)
        planned = plan_rows(entries, subjects, data)
        wanted = [one for _, row in planned for one in row.measurements.values()]
        results = measure(wanted, data, options.out / "results")
        if vit_tf.distribute.is_chief():
            drawn = draw(planned, results, options.out)
            claims = judge(subjects, results, options)
            path = report(claims, rows, drawn, results, description, options)
            log.info("%s after %.0f seconds", path, time.perf_counter() - start)


def main(arguments=None):
    """Make the study told on the command line; the exit status, 2 for a mistake of the user."""
    return reporting.run_logged(parse, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
