"""Makes a bundled model of a training run: float16 weights and a model card.

From the folder that `vit-tf train` wrote, NAME.keras stores the weights in half precision, and
NAME.md, the model card, describes the model, its training and its test accuracy, both of the
weights as trained and of those in the file. Models in the package's folder `vit_tf/checkpoints/zoo`
open by name: `vit_tf.load_pretrained(NAME)`.

Examples:
    python benchmarks/release.py runs/digits --name vit-digits
    python benchmarks/release.py runs/bit --name bit-digits --limits "Digits of 8 x 8 pixels only."
    python benchmarks/release.py runs/vit --name vit-cls-cifar10 --out vit_tf/checkpoints/zoo \\
        --trained "32 minutes on two CPU cores" --data-dir ~/tensorflow_datasets
"""

import json
import re
import sys
from argparse import Namespace
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import vit_tf
from vit_tf.names import file_error
from vit_tf.scripts import common


def main(arguments=None):
    """Run the command; its exit status."""
    return common.run_command(parse, run, arguments)


def parse(arguments=None):
    """The options of the command line."""
    parser = common.make_parser("python benchmarks/release.py", __doc__)
    model = parser.group("model")
    model("run", type=Path, metavar="RUN", help="folder of a finished run of vit-tf train")
    model("--name", required=True, help="name of the files, by which the model is loaded")
    common.add_data_dir(parser.group("data"), "the run's")
    card = parser.group("card")
    card(
        "--trained",
        metavar="WORDS",
        help="time and hardware of training, such as '1 hour on two CPU cores'",
    )
    card("--limits", metavar="WORDS", help="limitations of the model (default: that it is small)")
    text = "output folder; created if missing"
    parser.group("run")("--out", type=Path, metavar="FOLDER", default=Path("."), help=text)
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", options.name):
        raise ValueError(
            "Expected --name of lower-case letters, digits, dots and hyphens. "
            f"Received: {options.name!r}"
        )
    return options


def run(options):
    """Write the file and its card, and print where they are."""
    from vit_tf.checkpoints.model_cards import compare, save_half, write_card
    from vit_tf.files import write_whole

    result = read_json(options.run / "result.json")
    command = result["options"]["command"]
    if command.split()[1:2] != ["train"]:
        raise ValueError(f"Expected RUN to be a run of vit-tf train. Received: one of {command!r}")
    steps = read_json(options.run / "configuration.json")["steps_per_epoch"]
    model = vit_tf.load_model(options.run / "model.keras")
    path = options.out / f"{options.name}.keras"
    test = test_images(result["options"], model, options.data_dir)
    save_half(model, path)
    counted = compare(model, vit_tf.load_model(path), test)
    card = write_card(
        options.name,
        result,
        steps,
        model,
        path.stat().st_size,
        counted,
        options.trained,
        options.limits,
    )
    write_whole(path.with_suffix(".md"), lambda partial: partial.write_text(card))
    common.say(f"accuracy as trained: {counted['whole']}")
    common.say(f"accuracy of {path}: {counted['half']}; model card: {path.with_suffix('.md')}")


def read_json(path):
    """The contents of a JSON file of a run."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected {str(path)!r} of a finished run of vit-tf train. "
            f"Received: {file_error(error, path)}"
        ) from error


def test_images(trained, model, data_dir):
    """The test split of the data that a run was trained on, as its model expects images."""
    (test,) = vit_tf.data.load(
        trained["data"],
        data_dir=data_dir or trained["data_dir"],
        splits=("test",),
        preprocessing=model.preprocessing,
        **common.chosen_classes(Namespace(**trained)),
    )
    return test


if __name__ == "__main__":
    sys.exit(main())
