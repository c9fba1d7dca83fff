"""Trains vision models, measures what they have learned and writes a report.

Three models of like size, Vision Transformers with a CLS token and with average pooling and a BiT
ResNet, are trained on one data set and measured on its test images. --full trains all models that
the papers' figures are about: an MLP-Mixer too, and ViTs without the skips of a block, on fractions
of the data, from other first weights, before and after fine-tuning; --figures trains those that the
chosen figures need. The report, its figures (PNG), the results (netCDF) and the models (.keras) lie
in the output folder. A run that was stopped goes on where it was; one with nothing changed does no
work.

Examples:
    vit-tf study
    vit-tf study --full
    vit-tf study --list
    vit-tf study --figures 1,7,9
    vit-tf study --data fashion_mnist --data-dir ~/tensorflow_datasets
    vit-tf study --data path/to/folder/of/class/folders --image-size 64 --epochs 20
"""

import logging
import sys
import time
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from vit_tf.scripts import common, option_groups, reporting

log = logging.getLogger("vit_tf.study")

# What suits a data set on two CPU cores; each field is a flag too.
DIGITS = {"epochs": 12, "bit_epochs": 6, "shift": 1, "batch_size": 32}
OTHERS = {"epochs": 9, "bit_epochs": 6, "shift": 0, "batch_size": 64}
# The parts of the models that are trained unless more are asked for.
QUICK = ("vit", "gap", "resnet")


INTRODUCTION = (
    "Small vision models were trained on {description.name} ({description.num_classes} classes, "
    "{options.image_size} pixels) and measured on its test images.\n\n"
    "Linear probes are fitted on {options.shots} training images per class; their penalty is "
    "chosen on as many others. What the papers report for large models on large data may not "
    "replicate on small ones."
)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("study", __doc__)
    reporting.add_figures(parser)
    parser.group("figures")("--full", action="store_true", help="all models of the papers' figures")
    add = parser.group("data")
    option_groups.add_source(add)
    add("--image-size", type=int, default=32, help="side of the images, in pixels: a multiple of 8")
    option_groups.add_take(add, "all, of large data 24,000")
    reporting.add_sampling(parser)
    add = parser.group("training")
    add("--epochs", type=int, help="of the ViTs (default: 12 for digits, 9 for others)")
    add("--bit-epochs", type=int, help="of the BiT (default: 6)")
    add("--shift", type=int, help="largest random shift, in pixels (default: 1 for digits, else 0)")
    add("--seeds", type=int, default=2, help="trainings of ViT-CLS and of BiT")
    add("--batch-size", type=int, help="of the trainings (default: 32 for digits, 64 for others)")
    add("--jobs", type=int, help="trainings at a time (default: as many as the cores can use)")
    reporting.add_run(parser, "study_DATA")
    options = parser.parse_args(arguments)
    if options.image_size < 16 or options.image_size % 8:
        raise ValueError(
            "Expected --image-size to be a multiple of 8 from 16 on. "
            f"Received: {options.image_size}"
        )
    option_groups.require_at_least(options, seeds=1, jobs=1)
    for name, default in (DIGITS if options.data == "digits" else OTHERS).items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    options.out = options.out or Path(f"study_{Path(options.data).name}")
    return options


def run(options):
    """List the figures, or train, measure and report."""
    from vit_tf.analysis.study.plan import choose_figures

    figures = choose_figures(reporting.figure_numbers(options))
    if options.list:
        print(reporting.list_figures(figures))
        return
    start = time.perf_counter()
    report = make_study(figures, options)
    if report:
        log.info("%s after %.0f seconds", report.path, time.perf_counter() - start)


def make_study(figures, options):
    """Train what these figures need, measure, draw and write the report."""
    from vit_tf.analysis.study.assemble import write_figures
    from vit_tf.scripts import side_by_side, study_ahead, study_models
    from vit_tf.scripts.progress import Progress

    description = common.describe_labelled(options)
    options.sizes = reporting.subset_sizes(options, description)
    plans = study_models.needed(study_models.make_plans(options, description.num_classes), figures)
    if not options.full and not options.figures:
        plans = [plan for plan in plans if plan.role in QUICK]
    progress = Progress(study_models.expected_seconds(plans, options))
    log.info(study_models.outline(plans, options, progress.seconds))
    data = reporting.read_data(options, description, image_size=options.image_size)
    with reporting.strategy_in(options.out, options.strategy), progress.shown():
        jobs = options.jobs or side_by_side.default_jobs()
        study_ahead.train_ahead(plans, options, progress, jobs)
        models, rows = study_models.train_all(plans, options, progress)
        return write_figures(
            figures,
            models,
            data,
            options.out,
            strict=True,
            elsewhere=f'"vit-tf study --data {options.data} --full" measures it.',
            progress=progress,
            title=f"What {len(rows)} vision models learned from {description.name}",
            introduction=INTRODUCTION.format(options=options, description=description),
            models_table=rows,
            timings=[
                {"step": f"training of {row['model']}", "seconds": row["training (s)"]}
                for row in rows
            ],
            provenance=reporting.provenance(options, description),
        )


def main(arguments=None):
    """Make the study told on the command line; the exit status, 2 for a mistake of the user."""
    return reporting.run_logged(parse, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
