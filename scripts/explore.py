"""Shows what vision models make of single images, on an interactive page for each model.

Choose a patch of the picture, and the page shows where each head looks from there, which patches of
this image and of the next are represented alike, what CLS looks at, what speaks for a class, and
what each layer is read as. The page is one HTML file that needs no network. What the model has no
layers for is left out, and the page says why.

A model is a .keras file of any Keras model (keras.applications, KerasHub, your own), a SavedModel
folder whose outputs are its layers, a checkpoint file or a public name. An image is a file, and is
resized to what the model takes.

Examples:
    vit-tf explore vit.keras cat.jpg --out cat.html
    vit-tf explore ViT-B_16.npz cat.jpg dog.jpg --explain tabby 207
    vit-tf explore vit-cls-cifar10 bit-cifar10 cat.jpg dog.jpg
    vit-tf explore hub_vit.keras cat.jpg --patch-size 16
    vit-tf explore resnet.keras cat.jpg --image-size 224 --range 0 255 --results numbers/
"""

import os
import sys
import time
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from vit_tf.names import listed
from vit_tf.scripts import common, image_values, option_groups
from vit_tf.scripts.own_modules import add_imports


def main(arguments=None):
    """Explore as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("explore", __doc__)
    add = parser.group("model")
    add("inputs", nargs="+", metavar="MODEL_OR_IMAGE", help="model (file, folder or public name)")
    add("--names", nargs="+", metavar="NAME", help="on the pages (default: those of the files)")
    add_imports(add)
    option_groups.add_layers(add)
    image_values.add_values(add)
    add = parser.group("page")
    text = "the page; of several models, each page has the model's name added"
    add("--out", type=Path, metavar="FILE", default=Path("explore.html"), help=text)
    add("--results", type=Path, metavar="FOLDER", help="write the numbers there too, as netCDF")
    add("--explain", nargs="+", metavar="CLASS", help="names or numbers (default: the best five)")
    add = parser.group("SmoothGrad")
    add("--samples", type=int, default=10, help="noisy copies of each image")
    add("--noise", type=float, default=0.1, help="standard deviation, as a share of its range")
    add("--seed", type=int, default=0, help="of the noise")
    options = parser.parse_args(arguments)
    first, *others = options.inputs
    options.models = [first, *(one for one in others if is_model(one))]
    options.images = [one for one in others if not is_model(one)]
    _check(options)
    return options


def is_model(source):
    """Whether an argument is a model, by its ending, as a folder or as a public name."""
    from vit_tf.checkpoints.released import CHECKPOINTS, EXTENSIONS, bundled_models

    return (
        source.endswith((".keras", *EXTENSIONS))
        or os.path.isdir(source)
        or source.startswith("hf://")
        or source in bundled_models()
        or source in CHECKPOINTS
    )


def _check(options):
    """Raises a `ValueError` for values that no model has use for."""
    option_groups.check_layers(options)
    option_groups.require_at_least(options, samples=1, noise=0)
    if not options.images:
        raise ValueError(f"Expected an IMAGE, a file. Received: {listed(options.models)}, models")
    if options.names and len(options.names) != len(options.models):
        raise ValueError(
            f"Expected --names for {len(options.models)} models. Received: {len(options.names)}"
        )
    for image in options.images:
        if not os.path.isfile(image):
            raise ValueError(f"Expected IMAGE to be an image file. Received: {image!r}, no file")
    if options.out.is_dir() or not options.out.absolute().parent.is_dir():
        raise ValueError(
            f"Expected --out to be a file in a folder that is there. Received: {options.out}"
        )


def run(options):
    """Explore each model."""
    from vit_tf.analysis.study.models import slug
    from vit_tf.scripts import analyze_models

    names = options.names or []
    for number, source in enumerate(options.models):
        name = names[number] if names else analyze_models.own_name(source)
        several = len(options.models) > 1
        page = options.out
        page = page.with_name(f"{page.stem}-{slug(name)}{page.suffix}") if several else page
        results = options.results
        results = results / slug(name) if results and several else results
        explore_one(source, name, page, results, options)


def explore_one(source, name, page, folder, options):
    """Open a model, measure it and write its page."""
    from vit_tf import analysis
    from vit_tf.scripts import analyze_models

    start = time.perf_counter()
    model = analyze_models.open_any(source)
    expects, why = image_values.expected_images(options, model)
    made = analysis.explore(
        model,
        options.images,
        page,
        name=name,
        preprocessing=expects,
        image_size=options.image_size,
        taps=options.taps or (),
        patch_size=options.patch_size,
        prefix=options.prefix,
        classes=explained(options.explain, getattr(model, "class_names", None)),
        samples=options.samples,
        noise=options.noise,
        seed=options.seed,
    )
    for what, reasons in made.left_out:
        print(f"not shown: {what}. {' '.join(reasons)}")
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for result_name, result in made.results.items():
            result.to_netcdf(folder / f"{result_name}.nc")
    print(f"images: {image_values.values_of(expects, why)}")
    size, seconds = made.path.stat().st_size / 1e6, time.perf_counter() - start
    print(f"{made.path}, {size:.1f} MB, after {seconds:.0f} seconds")


def explained(asked, names):
    """The positions of the classes that are asked for by name or number; None for none asked."""
    if not asked:
        return None
    known = {name: position for position, name in enumerate(names or ())}
    unknown = [one for one in asked if one not in known and not one.isdecimal()]
    if unknown:
        there = f"a number or a name: {listed(known)}" if known else "a number"
        raise ValueError(f"Expected --explain to be {there}. Received: {', '.join(unknown)}")
    return [known[one] if one in known else int(one) for one in asked]


if __name__ == "__main__":
    sys.exit(main())
