"""Shows what a vision model makes of single images, on one page that answers to mouse and keys.

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
    add("model", metavar="MODEL", help="file, folder or public name of a model")
    add("--names", nargs=1, metavar="NAME", help="on the page (default: its file's)")
    add_imports(add)
    option_groups.add_layers(add)
    image_values.add_values(add)
    add = parser.group("page")
    add("images", nargs="+", metavar="IMAGE", help="image file")
    add("--out", type=Path, metavar="FILE", default=Path("explore.html"), help="the page")
    add("--results", type=Path, metavar="FOLDER", help="write the numbers there too, as netCDF")
    add("--explain", nargs="+", metavar="CLASS", help="names or numbers (default: the best five)")
    add = parser.group("SmoothGrad")
    add("--samples", type=int, default=10, help="noisy copies of each image")
    add("--noise", type=float, default=0.1, help="standard deviation, as a share of its range")
    add("--seed", type=int, default=0, help="of the noise")
    options = parser.parse_args(arguments)
    _check(options)
    return options


def _check(options):
    """Raises a `ValueError` for values that no model has use for."""
    option_groups.check_layers(options)
    option_groups.require_at_least(options, samples=1, noise=0)
    for image in options.images:
        if not os.path.isfile(image):
            raise ValueError(f"Expected IMAGE to be an image file. Received: {image!r}, no file")
    if options.out.is_dir() or not options.out.absolute().parent.is_dir():
        raise ValueError(
            f"Expected --out to be a file in a folder that is there. Received: {options.out}"
        )


def run(options):
    """Open, measure, write the page."""
    from vit_tf import analysis
    from vit_tf.scripts import analyze_models

    start = time.perf_counter()
    model = analyze_models.open_any(options.model)
    expects, why = image_values.expected_images(options, model)
    made = analysis.explore(
        model,
        options.images,
        options.out,
        name=options.names[0] if options.names else analyze_models.own_name(options.model),
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
    if options.results:
        options.results.mkdir(parents=True, exist_ok=True)
        for name, result in made.results.items():
            result.to_netcdf(options.results / f"{name}.nc")
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
