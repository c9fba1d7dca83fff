"""Writes an interactive page for single images: attention, similarity, attribution, logit lens.

Select a patch of an image to see the attention of each head from it, the similarity of its
representation to other patches, in this image and in others, the attention of CLS, the attribution
of a class, and the prediction at each layer. Several models stand side by side. The page is a
self-contained HTML file. It lists what does not apply to a model, with the reason.

A model is a .keras file of any Keras model (keras.applications, KerasHub, your own), a SavedModel
folder whose outputs are its layers, a checkpoint file or a public name. Images are resized to the
input size of the model.

Examples:
    vit-tf explore vit.keras cat.jpg --out cat.html
    vit-tf explore ViT-B_16.npz cat.jpg dog.jpg --explain tabby 207
    vit-tf explore vit-cls-cifar10 bit-cifar10 cat.jpg dog.jpg
    vit-tf explore hub_vit.keras cat.jpg --patch-size 16
    vit-tf explore resnet.keras cat.jpg --image-size 224 --range 0 255 --results numbers/
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_tf.common.names import format_list
from vit_tf.scripts import common
from vit_tf.scripts.common import Arguments, Options, integer, named, real

OPTIONS = {
    "model": {
        "inputs": named(
            "models (file, folder or public name), and image files", "MODEL_OR_IMAGE", nargs="+"
        ),
        "--names": named("names of the models (default: those of the files)", nargs="+"),
        **common.IMPORTS,
        **common.LAYERS,
        **common.VALUES,
    },
    "page": {
        **common.output("output file", "FILE", default=Path("explore.html")),
        "--results": named(
            "also write the results to this folder, as netCDF (one subfolder for each model)",
            "FOLDER",
            type=Path,
        ),
        "--explain": named(
            "names or numbers of classes to explain (default: the 5 with the highest scores; with "
            "several images, the 3 with the highest scores for each image)",
            "CLASS",
            nargs="+",
        ),
    },
    "SmoothGrad": {
        "--samples": integer("noisy copies of each image", default=6),
        "--noise": real("standard deviation of the noise, as a fraction of the range", default=0.1),
        "--seed": integer("seed of the noise", default=0),
    },
}
MAIN = ("--import", "--image-size", "--patch-size", "--range", "--out", "--explain", "--results")


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return common.run_command(parse, run, arguments)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    options = common.make_parser("explore", __doc__, OPTIONS, MAIN).parse_args(arguments)
    first, *others = options.inputs
    options.models = [first, *(source for source in others if is_model(source))]
    options.images = [source for source in others if not is_model(source)]
    common.check_layers(options)
    common.require_at_least(options, samples=1, noise=0)
    if not options.images:
        raise ValueError(
            "No image file is given. Expected: vit-tf explore MODEL IMAGE. "
            f"Received only models: {format_list(options.models)}"
        )
    if options.names and len(options.names) != len(options.models):
        raise ValueError(
            f"Expected --names for {len(options.models)} models. Received: {len(options.names)}"
        )
    for image in options.images:
        common.require_existing_file(image, "Image file")
    if options.out.is_dir() or not options.out.absolute().parent.is_dir():
        raise ValueError(
            f"Expected --out to be a file in an existing folder. Received: {options.out}"
        )
    return options


def is_model(source: str) -> bool:
    """Whether an argument is a model, by its ending, as a folder or as a public name."""
    from vit_tf.checkpoints.released import CHECKPOINTS, EXTENSIONS, bundled_models

    return (
        source.endswith((".keras", *EXTENSIONS))
        or os.path.isdir(source)
        or source.startswith("hf://")
        or source in bundled_models()
        or source in CHECKPOINTS
    )


def run(options: Options) -> None:
    """Explore the models on one page."""
    from vit_tf.analysis.explorer.exploration import explore_models
    from vit_tf.analysis.figures.models import distinct, slug
    from vit_tf.features.conversion import facts_of

    start = time.perf_counter()
    models, lines = {}, []
    names = options.names or [common.model_name(source) for source in options.models]
    for name, source in zip(names, options.models, strict=True):
        name = distinct(name, [slug(other) for other in models])
        model = common.open_features(source)
        preprocessing, origin, _ = common.expected_images(options, model)
        lines.append(f"{name}, images: {common.describe_values(preprocessing, origin)}")
        models[name] = (
            model,
            {
                "image_size": options.image_size,
                "patch_size": options.patch_size,
                "prefix": options.prefix,
                "samples": options.samples,
                "noise": options.noise,
                "seed": options.seed,
                "preprocessing": preprocessing,
                "taps": options.taps or (),
                "classes": class_numbers(options.explain, facts_of(model).class_names),
            },
        )
    page = explore_models(models, options.images, options.out)
    left_out_by_model: Any = page.left_out  # by model, as several were passed
    for name, left_out in left_out_by_model.items():
        for title, reasons in left_out:
            print(f"{name}, not shown: {title}. {' '.join(reasons)}")
    if options.results:
        (page if len(models) > 1 else page.select(name)).save_results(options.results)
    print("\n".join(lines))
    size, seconds = page.path.stat().st_size / 1e6, time.perf_counter() - start
    print(f"{page.path}, {size:.1f} MB, after {seconds:.0f} seconds")


def class_numbers(classes: list[str] | None, class_names: Sequence[str] | None) -> list[int] | None:
    """The numbers of classes given by name or number; None if none are given."""
    if not classes:
        return None
    numbers = {name: number for number, name in enumerate(class_names or ())}
    unknown = [text for text in classes if text not in numbers and not text.isdecimal()]
    if unknown:
        expected = f"a number or a name: {format_list(numbers)}" if numbers else "a number"
        raise ValueError(f"Expected --explain to be {expected}. Received: {', '.join(unknown)}")
    return [numbers[text] if text in numbers else int(text) for text in classes]
