"""Measures what is inside any vision models and writes a report.

A model is a .keras file of any Keras model (keras.applications, KerasHub, your own), a SavedModel
folder whose outputs are its layers (as scripts/export.py writes), a checkpoint file or a public
name. Every figure that applies to a model is drawn; the report says which do not, and why. All
models are compared on the same images, of one size: in [-1, 1], unless a model tells otherwise.

Models of this package have named layers (taps) and know where their tokens lie. Of any other model
about 40 layers, spread evenly through its depth, are read; --taps chooses them. A model of tokens,
such as a ViT, needs --patch-size for all that concerns places in the image.

The report, its figures (PNG) and the results (netCDF) lie in the output folder. A run that was
stopped goes on where it was; one with nothing changed measures nothing.

Examples:
    python scripts/analyze.py mobilenet.keras
    python scripts/analyze.py vit.keras bit.keras --names ViT BiT --data photos/ --out compared
    python scripts/analyze.py hub_vit.keras --patch-size 16 --figures 1,6,9
    python scripts/analyze.py resnet.keras --taps '*_out' --data cifar10 --image-size 64
    python scripts/analyze.py ViT-B_16.npz exported/ --data fashion_mnist --take-test 500
"""

import logging
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import common
import numpy as np
import reporting
from own_modules import add_imports

import vit_tf

log = logging.getLogger("vit_tf.analyze")


def main(arguments=None):
    """Analyse as told on the command line; the exit status, 2 for a mistake of the user."""
    return reporting.run_logged(parse, run, arguments)


def parse(arguments=None):
    """The options of the command line."""
    parser = common.make_parser(__doc__)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="file, folder or public name of a model")
    add("--names", nargs="+", default=(), help="of the models in the report (default: the files')")
    add_imports(add)
    common.add_source(add)
    reporting.add_figures(add)
    add("--out", type=Path, help="output folder (default: analysis_DATA)")
    add("--image-size", type=int, help="pixels, where the models take images of any size")
    add("--taps", nargs="+", metavar="PATTERN", help="layers of other models, as 'block*_out'")
    add("--patch-size", type=int, help="pixels of a patch, where a model does not tell its tokens")
    add("--prefix", type=int, help="its tokens without a place, as CLS (default: what is left)")
    reporting.add_sampling(add)
    options = parser.parse_args(arguments)
    if not options.models and not options.list:
        raise ValueError("Expected at least one MODEL, or --list. Received: none")
    if options.prefix is not None and not options.patch_size:
        raise ValueError(f"Expected --patch-size with --prefix. Received: {options.prefix} alone")
    for name, least in (("image_size", 1), ("patch_size", 1), ("prefix", 0), ("take_test", 4)):
        value = getattr(options, name)
        if value is not None and value < least:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"Expected {flag} to be at least {least}. Received: {value}")
    options.out = options.out or Path(f"analysis_{Path(options.data).name}")
    return options


def open_models(options):
    """The models that were asked for, and the preprocessing of the images that all of them see."""
    import analyze_models

    opened = analyze_models.open_all(options.models, options.names)
    if options.taps and not any(model.is_foreign for model in opened):
        raise ValueError(
            "Expected --taps only for models whose layers have no names of their own in this "
            f"package. Received: {', '.join(options.models)}"
        )
    if options.patch_size and all(getattr(model.model, "token_grid", None) for model in opened):
        raise ValueError(
            "Expected --patch-size only with a model that does not tell where its tokens lie. "
            f"Received: {', '.join(options.models)}"
        )
    size = analyze_models.common_size(opened, options.image_size)
    return opened, analyze_models.shared_images(opened, size)


def make_subjects(opened, images, options):
    """The models: list of `Subject`, their rows in the report, and what is left out of them."""
    import analyze_subjects

    subjects, rows, still = [], [], []
    for model in opened:
        few = images[: analyze_subjects.PROBES].numpy()
        subject, constant = analyze_subjects.subject_of(model, few, options)
        log.info("%s: %d layers are read", model.name, len(subject.taps))
        subjects += [subject, *analyze_subjects.baselines_of(model, subject, options.seed)]
        rows.append(analyze_subjects.describe(model, subject))
        if constant:
            still.append(f"{model.name}: {', '.join(constant)}.")
    return subjects, rows, [("Layers that do not vary between images", still)] if still else []


def add_accuracies(rows, opened, subjects, data, description, options):
    """Adds the test accuracy to the rows of the models whose heads are of these classes."""
    import analyze_subjects

    found, folder = {}, options.out / "results"
    own = [subject for subject in subjects if subject.role == "model"]
    for row, model, subject in zip(rows, opened, own, strict=True):
        found[row["model"]] = analyze_subjects.accuracy_of(
            model, subject, data, description.class_names, folder
        )
    for row in rows if any(share is not None for share in found.values()) else ():
        share = found[row["model"]]
        row["test accuracy (%)"] = None if share is None else round(100 * share, 2)


def read_data(options, description, entries, images):
    """The images that the measurements read, and facts that tell them from others."""
    there = description.num_examples.get("test")
    tested = options.take_test or there
    if tested and not options.take_test and options.data != "digits":
        tested = min(tested, reporting.LARGEST["test"])
    options.sizes = {"test": tested} if tested else {}
    data = reporting.read_data(options, description, entries, preprocessing=images)
    data.facts.update(
        data=options.data, sizes=options.sizes, seed=options.seed, images=images.to_config()
    )
    return data


def run(options):
    """List the figures, or measure and report."""
    from vit_tf.analysis.figures import FIGURES, choose_figures

    if options.list:
        print("\n".join(f"{','.join(entry.numbers):24} {entry.title}" for entry in FIGURES))
        return
    measure_and_report(choose_figures(reporting.figure_numbers(options)), options)


def measure_and_report(entries, options):
    """Measure what these figures show, draw them and write the report."""
    from vit_tf.analysis.figures import left_out, plan_rows, without_failures
    from vit_tf.analysis.measure import attempt
    from vit_tf.analysis.pictures import draw

    start = time.perf_counter()
    description = common.describe_data(options)
    with reporting.strategy_in(options.out, options.strategy):
        opened, preprocessing = open_models(options)
        data = read_data(options, description, entries, preprocessing)
        subjects, rows, still = make_subjects(opened, next(iter(data.few))[0], options)
        planned = plan_rows(entries, subjects, data)
        wanted = [one for _, row in planned for one in row.measurements.values()]
        add_accuracies(rows, opened, subjects, data, description, options)
        results, problems = attempt(wanted, data, options.out / "results")
        drawable, failed = without_failures(planned, results, problems)
        missing = [*left_out(entries, subjects, data), *failed, *still, *undefined(results)]
        for what, reasons in missing:
            log.info("not shown: %s. %s", what, " ".join(reasons))
        if not drawable:
            reasons = " ".join(reason for _, reasons in missing for reason in reasons)
            raise ValueError(f"Expected a figure that applies to these models. Received: {reasons}")
        if vit_tf.distribute.is_chief():
            drawn = draw(drawable, results, options.out)
            made = {name: result for name, result in results.items() if result is not None}
            path = report(rows, drawn, missing, made, description, preprocessing, options)
            log.info("%s after %.0f seconds", path, time.perf_counter() - start)


def undefined(results):
    """The layers without a similarity to others: list as of `left_out`, empty if there are none."""
    found = []
    for name, result in results.items():
        if name.startswith("cka.") and result is not None and "." not in name[4:]:
            grey = result["layer_x"].values[result["cka"].isnull().all("layer_y").values]
            constant = np.atleast_1d(result.attrs.get("constant_layers", "none")).tolist()
            layers = [*grey, *(layer for layer in constant if layer != "none")]
            if layers:
                found.append(f"{result.attrs['model']}: {', '.join(layers)}.")
    return [("Layers without a similarity, as they do not vary", found)] if found else []


def report(rows, drawn, missing, results, description, preprocessing, options):
    """Writes `report.html` and returns its path."""
    names = [row["model"] for row in rows]
    height, width = preprocessing.size
    return vit_tf.analysis.write_report(
        options.out / "report.html",
        title=f"What is inside {_listed(names)}",
        introduction=INTRODUCTION.format(
            models=_listed(names),
            was="was" if len(names) == 1 else "were",
            tested=options.sizes["test"],
            data=description.name,
            size=f"{height} x {width}",
            shots=options.shots,
        ),
        models=rows,
        sections=reporting.sections(drawn),
        not_shown=missing,
        timings=reporting.timings(results),
        provenance=reporting.provenance("analyze.py", options, description),
    )


INTRODUCTION = (
    "{models} {was} measured on {tested} test images of {data}, of {size} pixels. Linear probes "
    "are fitted on {shots} training images of each class, their penalty is chosen on as many "
    'others. The measurements are those of Raghu et al. 2021, "Do Vision Transformers See Like '
    'Convolutional Neural Networks?", and of Walmer et al. 2023, "Teaching Matters: Investigating '
    'the Role of Supervision in Vision Transformers". Nothing was trained here: what a figure '
    "shows is what the models brought with them. What does not apply to a model is listed, with "
    "the reason, after the figures."
)


def _listed(names):
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


if __name__ == "__main__":
    sys.exit(main())
