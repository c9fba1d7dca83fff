"""Measures what is inside any vision models and writes a report.

A model is a .keras file of any Keras model (keras.applications, KerasHub, your own), a SavedModel
folder whose outputs are its layers (as vit-tf export writes), a checkpoint (a file or a folder) or
a public name. Every figure that applies to a model is drawn; the report says which do not, and why,
and which findings of the papers these models can decide. All models are compared on the same
images, of one size, with the values that each expects: as it tells, as its first layers or its name
do, or as --range or --mean and --std say (where there are several models, of those that do not
tell).

Models of this package have named layers (taps) and know where their tokens lie. Of any other model
about 40 layers, spread evenly through its depth, are read; --taps chooses them. A model of tokens,
such as a ViT, needs --patch-size for all that concerns places in the image, and --roles for the
findings, where its layers do not tell what it is.

The report, its figures (PNG) and the results (netCDF) lie in the output folder. A run that was
stopped goes on where it was; one with nothing changed measures nothing. Other weights, images,
labels, options or code are measured again.

Examples:
    vit-tf analyze mobilenet.keras
    vit-tf analyze vit.keras bit.keras --names ViT BiT --data photos/ --out compared
    vit-tf analyze hub_vit.keras --patch-size 16 --figures 1,6,9
    vit-tf analyze resnet.keras --taps '*_out' --data cifar10 --image-size 64
    vit-tf analyze ViT-B_16.npz exported/ --data fashion_mnist --take-test 500
"""

import logging
import sys
import time
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from vit_tf.remote import without_password
from vit_tf.scripts import common, image_values, option_groups, reporting
from vit_tf.scripts.own_modules import add_imports

log = logging.getLogger("vit_tf.analyze")


def main(arguments=None):
    """Analyse as told on the command line; the exit status, 2 for a mistake of the user."""
    return reporting.run_logged(parse, run, arguments)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("analyze", __doc__)
    add = parser.group("models")
    add("models", nargs="*", metavar="MODEL", help="file, folder or public name of a model")
    add(
        "--names", nargs="+", metavar="NAME", default=(), help="in the report (default: the files')"
    )
    roles = "part of each in the findings: vit, gap, resnet, mixer or - (default: what it is)"
    add("--roles", nargs="+", default=(), metavar="ROLE", help=roles)
    add_imports(add)
    option_groups.add_layers(add)
    image_values.add_values(add)
    reporting.add_figures(parser)
    option_groups.add_source(parser.group("data"))
    option_groups.add_split(parser.group("data"), None, "test, of images without labels all")
    reporting.add_sampling(parser)
    reporting.add_run(parser, "analysis_DATA")
    options = parser.parse_args(arguments)
    if not options.models and not options.list:
        raise ValueError("Expected at least one MODEL, or --list. Received: none")
    option_groups.check_layers(options)
    option_groups.require_at_least(options, take_test=4)
    options.out = options.out or Path(f"analysis_{Path(options.data).name}")
    return options


def run(options):
    """List the figures, or measure and report."""
    from vit_tf.analysis.study.plan import choose_figures

    figures = choose_figures(reporting.figure_numbers(options))
    if options.list:
        print(reporting.list_figures(figures, roles=False))
        return
    start = time.perf_counter()
    report = analyze(figures, options)
    if report:
        log.info("%s after %.0f seconds", report.path, time.perf_counter() - start)


def analyze(figures, options):
    """Measure what these figures show, draw them and write the report."""
    from vit_tf.analysis.study.assemble import write_figures
    from vit_tf.analysis.study.opening.under_study import under_study
    from vit_tf.names import joined
    from vit_tf.scripts import analyze_models

    description = common.describe_data(options)
    with reporting.strategy_in(options.out, options.strategy):
        opened, images = analyze_models.open_all(options)
        split = options.split or ("test" if description.num_classes else "all")
        options.sizes = reporting.measured_sizes(options, description, split)
        data = reporting.read_data(options, description, split, preprocessing=images)
        data.facts["images"] = images.to_config()
        models, rows, notes = under_study(
            [one for one, _ in opened],
            data,
            options.out,
            description.class_names,
            options.seed,
            REMEDY,
        )
        for row, (one, why) in zip(rows, opened, strict=True):
            row |= {
                "images": image_values.values_of(one.expects, why),
                "file": without_password(one.source),
            }
            log.info("%s: images: %s", one.name, row["images"])
        names = [row["model"] for row in rows]
        return write_figures(
            figures,
            models,
            data,
            options.out,
            notes=notes,
            title=f"What is inside {joined(names)}",
            introduction=INTRODUCTION.format(
                models=joined(names),
                was="was" if len(names) == 1 else "were",
                tested=options.sizes["test"],
                split="" if split == "all" else f"{split} ",
                data=description.name,
                size="{} x {}".format(*images.size),
                fitted=FITTED.format(shots=options.shots)
                if reporting.can_fit(description, split)
                else NOT_FITTED,
            ),
            models_table=rows,
            provenance=reporting.provenance(options, description),
            sources={one.name: without_password(one.source) for one, _ in opened},
            setup=reporting.example_setup(options, split, images.size, description),
        )


INTRODUCTION = (
    "{models} {was} measured on {tested} {split}images of {data} ({size} pixels), without training."
    "\n\n{fitted}"
)

REMEDY = " If it expects others, tell them by --range, or by --mean and --std."

FITTED = (
    "Linear probes are fitted on {shots} training images per class; their penalty is chosen on as "
    "many others."
)
NOT_FITTED = "No probes are fitted: there are no labelled training images apart from these."


if __name__ == "__main__":
    sys.exit(main())
