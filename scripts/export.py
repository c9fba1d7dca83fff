"""Exports taps of a model as a SavedModel that answers without this package.

The model is a .keras file, a checkpoint file or a public name; taps are chosen by shell patterns.
The folder is read back and has to give the same numbers before it is called done. It opens again
with `vit_tf.load_features(folder)`, or with TensorFlow alone:

    serve = tf.saved_model.load(folder).signatures["serving_default"]
    taps = serve(images=images)  # dict from tap to tensor

The folder keeps where tokens lie and which values images have, in features.json: as the model tells
or its first layers do, or as --range or --mean and --std say.

Examples:
    vit-tf export runs/digits/model.keras --taps pooled --out exported
    vit-tf export vit.keras --taps embedding 'block*/*/sum' pooled --out exported
    vit-tf export vit.keras --list
"""

import sys
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import vit_tf
from vit_tf.names import joined
from vit_tf.scripts import common, image_values, option_groups


def main(arguments=None):
    """Export as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("export", __doc__)
    option_groups.add_model(parser)
    add = parser.group("model")
    add("--taps", nargs="+", metavar="PATTERN", help="layers, such as 'block*/mlp/sum'")
    image_values.add_values(add)
    run = parser.group("run")
    run("--out", type=Path, metavar="FOLDER", help="of the SavedModel; it is made")
    run("--list", action="store_true", help="list the names of all taps, and stop")
    options = parser.parse_args(arguments)
    missing = [f"no --{name}" for name in ("taps", "out") if not getattr(options, name)]
    if missing and not options.list:
        raise ValueError(
            "Expected --taps and --out, or --list, which lists the layers that --taps can name. "
            f"Received: {joined(missing)}"
        )
    return options


def run(options):
    """List the taps of a model, or export some of them."""
    from vit_tf.taps.saving import export_whole

    model = common.open_model(options.model)
    if options.list:
        print("\n".join(vit_tf.submodel(model, "*").taps))
        return
    features = vit_tf.submodel(model, *options.taps)
    preprocessing, why = image_values.expected_images(options, model)
    if not why.startswith("assumed"):
        features.preprocessing = preprocessing
    export_whole(features, options.out)
    print(f"{len(features.taps)} taps, {options.out}")
    print(f"images: {image_values.values_of(preprocessing, why)}")


if __name__ == "__main__":
    sys.exit(main())
