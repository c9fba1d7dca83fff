"""Makes a small release of a training run: the weights as float16, and a card that tells of them.

Of the folder that `vit-tf train` wrote, the model becomes NAME.keras, of half its size, and NAME.md
says what it is, how it was trained and how often it is right: the test images of the run's data are
counted by the weights as they were trained and by those of the file. In the package's own folder,
`vit_tf/checkpoints/zoo`, such files open by name: `vit_tf.load_pretrained(NAME)`.

Examples:
    vit-tf release runs/digits --name vit-digits
    vit-tf release runs/bit --name bit-digits --limits "Knows digits of 8 x 8 pixels alone."
    vit-tf release runs/vit --name vit-cls-cifar10 --trained "32 minutes on two CPU cores" \\
        --data-dir ~/tensorflow_datasets --out vit_tf/checkpoints/zoo
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
from vit_tf.scripts import common, option_groups


def main(arguments=None):
    """Release as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("release", __doc__)
    model = parser.group("model")
    model("run", type=Path, metavar="RUN", help="folder of a run of vit-tf train that is finished")
    model("--name", required=True, help="of the files, and to load the model by")
    option_groups.add_data_dir(parser.group("data"), "the run's")
    card = parser.group("card")
    card("--trained", metavar="WORDS", help="how long on what, such as '1 hour on two CPU cores'")
    card(
        "--limits", metavar="WORDS", help="what to know before using it (default: that it is small)"
    )
    text = "of NAME.keras and NAME.md; it is made"
    parser.group("run")("--out", type=Path, metavar="FOLDER", default=Path("."), help=text)
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", options.name):
        raise ValueError(
            "Expected --name of small letters, digits, dots and hyphens. "
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
    common.say(f"accuracy as trained {counted['whole']}")
    common.say(f"accuracy of {path}: {counted['half']}; {path.with_suffix('.md')} tells of it")


def read_json(path):
    """What a run's file tells."""
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
