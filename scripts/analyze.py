"""Analyzes trained vision models and writes a report.

A model is a .keras file of any Keras model (keras.applications, KerasHub, your own), a SavedModel
folder whose outputs are its layers (as vit-tf export writes), a checkpoint (a file or a folder) or
a public name. The report shows figures of papers that apply to the models and tests the claims of
the papers; it lists what does not apply, with the reason. All models are compared on the same
images of one size. The pixel values that each model expects are inferred from the model. If they
cannot be inferred, specify them by --range, or by --mean and --std.

Models of this package have named layers (taps) and a known token grid. In other models, the outputs
of blocks and stages are measured (without blocks, at most 40 layers, evenly spaced in depth);
--taps selects other layers. If the token grid of such a model cannot be inferred, specify
--patch-size; otherwise, spatial measurements are left out. Specify --roles for the claims if the
architecture of a model is not recognized. Claims about how models are trained compare a model with
variants of it, which --roles names: trained on a fraction of the data, without the skips of a
block, larger, or with other supervision.

By default, the report has the leading figure of each chapter and lists the others with the command
that adds them; --all draws every figure. The report, its figures (PNG) and the results (netCDF) are
in the output folder. The same command resumes a run that was stopped, and a command with further
figures reuses the results of the folder. A result is measured again if weights, images, labels,
options or code have changed.

Examples:
    vit-tf analyze mobilenet.keras
    vit-tf analyze vit.keras bit.keras --names ViT BiT --data photos/ --out compared
    vit-tf analyze hub_vit.keras --patch-size 16 --figures 1,6,9
    vit-tf analyze resnet.keras --taps '*_out' --data cifar10 --image-size 64
    vit-tf analyze vit.keras few.keras bit.keras --roles vit fraction:0.1 resnet --data cifar10
    vit-tf analyze ViT-B_16.npz exported/ --data fashion_mnist --take-test 500
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vit_tf.common.names import without_password
from vit_tf.data.files import digest_files
from vit_tf.scripts import common, report_commands
from vit_tf.scripts.common import Arguments, Options, integer, named

if TYPE_CHECKING:
    from vit_tf.analysis.figures.figure import Figure
    from vit_tf.analysis.figures.models import LoadedModel
    from vit_tf.analysis.report.assemble import Report
    from vit_tf.analysis.report.page import LinkedPage
    from vit_tf.data.preprocessing import Preprocessing

log = logging.getLogger("vit_tf.analyze")
OPTIONS = {
    "models": {
        "models": named("file, folder or public name of a model", "MODEL", nargs="*"),
        "--names": named(
            "names of the models in the report (default: those of the files)",
            nargs="+",
            default=(),
        ),
        "--roles": named(
            "role of each model in the claims: vit, gap, resnet, mixer or - (default: inferred), "
            "or a variant of one: fraction:0.1 (a tenth of the training data), without:block03 "
            "(without its skips), seed:1, larger, finer, hybrid, masked (masked patch prediction), "
            "tuned (the same, fine-tuned), before and after (fine-tuning), far (fine-tuned on a "
            "far domain)",
            "ROLE",
            nargs="+",
            default=(),
        ),
        "--supervision": named(
            "how each model was trained: labels, image-text, contrastive, self-distillation, "
            "reconstruction or - (default: inferred from its released name or its accuracy)",
            "KIND",
            nargs="+",
            default=(),
        ),
        **common.IMPORTS,
        **common.LAYERS,
        **common.VALUES,
    },
    "figures": {
        **report_commands.FIGURES,
        "--untrained": integer(
            "number of randomly initialized copies of each model, whose mean effect is subtracted "
            "from that of the trained model: 0, 1 or 2",
            choices=(0, 1, 2),
            default=2,
        ),
    },
    "data": {
        **common.SOURCE,
        "--split": named(
            "test, validation, train or all (default: test; all for images without labels)"
        ),
        **report_commands.SAMPLING,
    },
    "annotated images": report_commands.ANNOTATIONS,
    "run": {
        **common.output("output folder (default: analysis_DATA)"),
        **common.SEED,
        **common.STRATEGY,
    },
}
MAIN = ("--names", "--image-size", "--patch-size", "--figures", "--list", "--data", "--data-dir")
MAIN += ("--take-test", "--range", "--out")
INTRODUCTION = (
    "{models} {was} measured on {tested} {split}images of {data} ({size} pixels).\n\n{fitted}"
)
REMEDY = " If it expects other values, specify them by --range, or by --mean and --std."
FITTED = (
    "Linear probes are fitted on {shots} training images per class; their penalty is selected on "
    "as many others."
)
NOT_FITTED = "No probes are fitted: there are no labelled training images apart from these."


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return report_commands.run_logged(parse, run, arguments)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    options = common.make_parser("analyze", __doc__, OPTIONS, MAIN).parse_args(arguments)
    report_commands.require_figures(options)
    if not options.models and not options.list:
        raise ValueError("No MODEL is given: specify at least one, or --list.")
    common.check_layers(options)
    common.require_at_least(options, take_test=4)
    options.out = options.out or Path(f"analysis_{Path(options.data).name}")
    return options


def run(options: Options) -> None:
    """List the figures, or measure and report."""
    numbers = report_commands.figure_numbers(options)
    if options.list:
        print(report_commands.list_figures(numbers))
        return
    from vit_tf.analysis.figures.figure import lookup_figures

    figures = lookup_figures(numbers)
    start = time.perf_counter()
    report = analyze(figures, options)
    if report:
        log.info("%s after %.0f seconds", report.path, time.perf_counter() - start)


def analyze(
    figures: Sequence[Figure], options: Options, linked_page: LinkedPage | None = None
) -> Report | None:
    """Measure what these figures show, draw them and write the report."""
    from vit_tf.analysis.figures.models import prepare_models
    from vit_tf.analysis.report.assemble import few_words, write_figures

    description = common.describe_data(options)
    with report_commands.strategy_in(options.out, options.strategy):
        opened, origins, images = open_models(options)
        split = options.split or ("test" if description.num_classes else "all")
        options.sizes = report_commands.measured_sizes(options, description, split)
        data = report_commands.read_data(options, description, split, preprocessing=images)
        size = cast(tuple[int, int], images.size)  # as all models are compared on one
        data.facts["images"] = images.to_config()
        models, rows, notes = prepare_models(
            opened,
            data,
            options.out,
            description.class_names,
            options.seed,
            REMEDY,
            options.untrained,
        )
        for row, model, origin in zip(rows, opened, origins, strict=True):
            row["images"] = common.describe_values(model.expects, origin)
            row["file"] = without_password(model.source)
            log.info("%s: images: %s", model.name, row["images"])
        names = [row["model"] for row in rows]
        fitted = FITTED.format(shots=options.shots)
        if data.train is None:
            fitted = data.reasons.get("train", NOT_FITTED)
        return write_figures(
            figures,
            models,
            data,
            options.out,
            numbers=report_commands.figure_numbers(options),
            command=report_commands.command_with_figures(options),
            notes=notes,
            title=f"Analysis of {few_words(names)}",
            introduction=INTRODUCTION.format(
                models=few_words(names),
                was="was" if len(names) == 1 else "were",
                tested=options.sizes["test"],
                split="" if split == "all" else f"{split} ",
                data=description.name,
                size="{} x {}".format(*size),
                fitted=fitted,
            ),
            models_table=rows,
            linked_page=linked_page,
            provenance=report_commands.provenance(options, description),
            sources={model.name: without_password(model.source) for model in opened},
            setup=report_commands.example_setup(
                options, description, split, images, fitted=data.train is not None
            ),
        )


def open_models(options: Options) -> tuple[list[LoadedModel], list[str], Preprocessing]:
    """The models of files, folders and public names, and the images that all of them are shown."""
    from vit_tf.analysis.figures.models import (
        LoadedModel,
        distinct,
        parse_role,
        shared_framing,
        slug,
    )
    from vit_tf.analysis.figures.supervision import (
        require_supervisions,
        supervision_of,
        training_images_of,
    )
    from vit_tf.features.conversion import facts_of
    from vit_tf.features.features import Features

    sources, roles, kinds = options.models, options.roles, options.supervision
    for name in ("names", "roles", "supervision"):
        if 0 < (count := len(getattr(options, name))) != len(sources):
            raise ValueError(
                f"Expected one value of --{name} for each of {len(sources)} models. "
                f"Received: {count}"
            )
    for role in roles:
        if role != "-":
            parse_role(role, "--roles", "-")
    require_supervisions(kind for kind in kinds if kind != "-")
    opened, origins = [], []
    for index, source in enumerate(sources):
        name = options.names[index] if options.names else common.model_name(source)
        role = roles[index] if roles else "-"
        kind = kinds[index] if kinds else "-"
        model = common.open_features(source)  # before its digest, for the errors of a wrong path
        override = len(sources) == 1
        expects, origin, _ = common.expected_images(options, model, override)
        opened.append(
            LoadedModel(
                distinct(name, {slug(other.name) for other in opened}),
                model,
                expects,
                model.digest() if isinstance(model, Features) else digest(source),
                source=source,
                taps=tuple(options.taps or ()),
                patch_size=options.patch_size,
                prefix=options.prefix,
                role=None if role == "-" else role,
                supervision=supervision_of(source) if kind == "-" else kind,
                training_images=training_images_of(source),
            )
        )
        shape = input_shape(opened[-1])
        if len(shape) != 4 or shape[3] not in (1, 3, 4, None):
            raise ValueError(
                "Expected models of images of shape (example, height, width, channel), of 1, 3 or "
                "4 channels. "
                f"Received: {source} of input shape {shape}"
            )
        origins.append(origin)
    # An option that applies to none of the models is a mistake.
    received = f"Received: {', '.join(sources)}"
    if options.taps and not any(model.is_foreign for model in opened):
        raise ValueError(
            f"--taps applies only to models whose layers are not named by this package. {received}"
        )
    if options.patch_size and all(facts_of(model.model).grid for model in opened):
        raise ValueError(
            f"--patch-size applies only to models whose token grid is unknown. {received}"
        )
    size = common_size(opened, options.image_size)
    return opened, origins, shared_framing([model.expects for model in opened], size)


def digest(source: str) -> str:
    """SHA-256 of a file's content, or of the names and contents of a folder's files."""
    if not Path(source).exists():
        from vit_tf.checkpoints.released import fetch

        source, _ = fetch(source)
    root = Path(source)
    files = sorted(path for path in root.rglob("*") if path.is_file()) or [root]
    return digest_files(files, *(str(path.relative_to(root)) for path in files))


def input_shape(opened: LoadedModel) -> tuple[int | None, ...]:
    """Shape (example, height, width, channel) of a model's images, None for what is free."""
    from vit_tf.features.conversion import facts_of

    shape, size = facts_of(opened.model).input_shape, opened.expects.size
    # A PyTorch module that takes images of any size gets those that it was made for.
    if shape is None or opened.is_keras or None not in shape[1:3] or size is None:
        return shape or ()
    return (shape[0], *size, shape[3])


def common_size(opened: Sequence[LoadedModel], image_size: int | None) -> tuple[int, int]:
    """(height, width) of the images on which all models are compared."""
    sizes: dict[str, Any] = {model.name: tuple(input_shape(model)[1:3]) for model in opened}
    sizes = {name: size for name, size in sizes.items() if None not in size}
    if image_size:
        sizes["--image-size"] = (image_size, image_size)
    if not sizes:
        raise ValueError("The models accept images of any size: specify --image-size.")
    if len(set(sizes.values())) > 1:
        each = ", ".join(f"{name} {height} x {width}" for name, (height, width) in sizes.items())
        raise ValueError(f"Expected models for images of one size. Received: {each}")
    return next(iter(sizes.values()))
