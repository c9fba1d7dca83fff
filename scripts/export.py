"""Exports layer outputs (taps) of a model as a SavedModel that runs without this package.

The model is a .keras file, a checkpoint file or a public name; taps are selected by shell patterns.
Open the export with `vit_tf.load_features(folder)`, or with TensorFlow alone:

    serve = tf.saved_model.load(folder).signatures["serving_default"]
    taps = serve(images=images)  # dict from tap to tensor

features.json in the folder stores the token grid and the pixel values of images, which are inferred
from the model or specified by --range or by --mean and --std.

Examples:
    vit-tf export runs/digits/model.keras --taps pooled --out exported
    vit-tf export vit.keras --taps embedding 'block*/*/sum' pooled --out exported
    vit-tf export vit.keras --list
"""

import vit_tf
from vit_tf.common.names import join_words
from vit_tf.scripts import common
from vit_tf.scripts.common import Arguments, Options, named

OPTIONS = {
    "model": {
        **common.MODEL,
        "--taps": named("layers, such as 'block*/mlp/sum'", "PATTERN", nargs="+"),
        **common.VALUES,
    },
    "run": {
        **common.output("folder of the SavedModel, which must not exist yet"),
        "--list": {"action": "store_true", "help": "list the names of all taps and exit"},
    },
}


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return common.run_command(parse, run, arguments)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    options = common.make_parser("export", __doc__, OPTIONS).parse_args(arguments)
    missing = [f"no --{name}" for name in ("taps", "out") if not getattr(options, name)]
    if missing and not options.list:
        raise ValueError(
            "Expected --taps and --out, or --list for the names of all layers. "
            f"Received: {join_words(missing)}"
        )
    return options


def run(options: Options) -> None:
    """Lists the taps of a model, or exports some of them."""
    from vit_tf.checkpoints.saving import export_whole

    model = common.open_model(options.model)
    if options.list:
        print("\n".join(vit_tf.submodel(model, "*").taps))
        return
    features = vit_tf.submodel(model, *options.taps)
    preprocessing, origin, is_assumed = common.expected_images(options, model)
    if not is_assumed:
        features.preprocessing = preprocessing
    export_whole(features, options.out)
    print(f"{len(features.taps)} taps, {options.out}")
    print(f"images: {common.describe_values(preprocessing, origin)}")
