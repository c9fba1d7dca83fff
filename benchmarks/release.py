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

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import tensorflow as tf
from scipy.stats import binomtest

from vit_tf.scripts.common import Arguments, Options

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import vit_tf
from vit_tf.common.names import file_error
from vit_tf.data.files import write_whole
from vit_tf.models.model import reinitialize
from vit_tf.scripts import common

if TYPE_CHECKING:
    import keras

    from vit_tf.models.model import VisionModel

CARD = """# {name}

{summary}

| | |
| --- | --- |
| opens as | `vit_tf.load_pretrained("{name}")` |
| model | `{model}` |
| parameters | {parameters:,}, {size:.1f} MB |
| images | {images} |
| classes | {classes} |
| training | {training} |
| command | `{command}` |
| accuracy as trained | {whole} |
| accuracy of this file | {half} |
| answered otherwise by this file | {others} of {count:,} |

**Limits.** {limits}
"""
LIMITS = (
    "Small, trained for long enough to look at and no longer: for seeing what is inside a trained "
    "model, not for use. It answers every image with one of the classes above. Images of other "
    "sizes, backgrounds and sources than those of its data were not tried."
)
WEIGHTS = "model.weights.h5"
KINDS = {"ViT": "A Vision Transformer", "BiT": "A BiT ResNet", "Mixer": "An MLP-Mixer"}
# What every model's configuration has and the card states elsewhere or not at all.
_ELSEWHERE = ("name", "dtype", "trainable", "preprocessing", "class_names", "num_classes")


def main(arguments: Arguments = None) -> int:
    """Run the command; its exit status."""
    return common.run_command(parse, run, arguments)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    run_help = "folder of a finished run of vit-tf train"
    sections = {
        "model": {
            "run": {"type": Path, "metavar": "RUN", "help": run_help},
            "--name": common.named(
                "name of the files, by which the model is loaded", required=True
            ),
        },
        "data": {"--data-dir": common.named("data folder of TFDS (default: the run's)", "FOLDER")},
        "card": {
            "--trained": common.named(
                "time and hardware of training, such as '1 hour on two CPU cores'", "WORDS"
            ),
            "--limits": common.named(
                "limitations of the model (default: that it is small)", "WORDS"
            ),
        },
        "run": common.output("output folder; created if missing", default=Path(".")),
    }
    parser = common.make_parser("python benchmarks/release.py", __doc__, sections)
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", options.name):
        raise ValueError(
            "Expected --name of lower-case letters, digits, dots and hyphens. "
            f"Received: {options.name!r}"
        )
    return options


def run(options: Options) -> None:
    """Write the file and its card, and print where they are."""
    result = read_json(options.run / "result.json")
    command = result["options"]["command"]
    if command.split()[1:2] != ["train"]:
        raise ValueError(f"Expected RUN to be a run of vit-tf train. Received: one of {command!r}")
    steps = read_json(options.run / "configuration.json")["steps_per_epoch"]
    model = vit_tf.load_model(options.run / "model.keras")
    model.name = options.name  # not that of the run's folder, which pictures would show
    path = options.out / f"{options.name}.keras"
    test = test_images(result["options"], model, options.data_dir)
    save_half(model, path)
    counted = compare(model, vit_tf.load_model(path), test)
    words = options.trained, options.limits
    card = write_card(options.name, result, steps, model, path.stat().st_size, counted, *words)
    write_whole(path.with_suffix(".md"), lambda partial: partial.write_text(card))
    common.say(f"accuracy as trained: {counted['whole']}")
    common.say(f"accuracy of {path}: {counted['half']}; model card: {path.with_suffix('.md')}")


def read_json(path: Path) -> dict[str, Any]:
    """The contents of a JSON file of a run."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected {str(path)!r} of a finished run of vit-tf train. "
            f"Received: {file_error(error, path)}"
        ) from error


def test_images(
    trained: dict[str, Any], model: VisionModel, data_dir: str | None
) -> tf.data.Dataset:
    """The test split of the data that a run was trained on, as its model expects images."""
    source = {"data_dir": data_dir or trained["data_dir"], "preprocessing": model.preprocessing}
    source |= common.chosen_classes(Namespace(**trained))
    (test,) = vit_tf.data.load(trained["data"], splits=("test",), **source)
    return test


def compare(model: keras.Model, half: keras.Model, test: tf.data.Dataset) -> dict[str, Any]:
    """How often two models are right on the same images, and differ: fields of the card."""
    predict = [tf.function(lambda x, m=m: tf.argmax(m(x), -1)) for m in (model, half)]
    rows = [(labels, *(call(images) for call in predict)) for images, labels in test]
    labels, full, halved = (np.concatenate(column) for column in zip(*rows, strict=True))
    accuracies = {"whole": share(full == labels), "half": share(halved == labels)}
    return accuracies | {"others": int((full != halved).sum()), "count": len(labels)}


def share(right: np.ndarray) -> str:
    """The share of true values, with its 95 % interval (Wilson's), in words."""
    test = binomtest(int(right.sum()), len(right))
    low, high = test.proportion_ci(method="wilson")
    return (
        f"{100 * test.statistic:.2f} % ({100 * low:.1f} to {100 * high:.1f}) "
        f"of {len(right):,} test images"
    )


def write_card(
    name: str,
    result: dict[str, Any],
    steps: int,
    model: VisionModel,
    size: int,
    counted: dict[str, Any],
    trained: str | None = None,
    limits: str | None = None,
) -> str:
    """The text of a card; `trained` and `limits` are in words, or None."""
    options, epochs = result["options"], result["recipe"]["epochs"]
    config = {key: value for key, value in model.get_config().items() if key not in _ELSEWHERE}
    arguments = ", ".join(f"{key}={value!r}" for key, value in config.items())
    height, width, channels = model.image_shape
    values, kind = model.preprocessing, type(model).__name__
    training = f"{epochs} epochs of {steps:,} steps of {options['batch_size']} images"
    return CARD.format(
        **counted,
        name=name,
        summary=f"{KINDS[kind]} of `{_name_of(options['data'])}`, trained from scratch.",
        model=f"vit_tf.{kind}({arguments})",
        parameters=model.count_params(),
        size=size / 1e6,
        images=f"{height} x {width} x {channels}, mean {values.mean}, std {values.std} of [0, 1]",
        classes=", ".join(map(str, model.class_names or range(model.num_classes))),
        training=f"{training}, {trained}" if trained else training,
        command=_without_places(options["command"], name),
        limits=limits or LIMITS,
    )


def _name_of(data: str | Path) -> str:
    """A data set's name; that of its folder for a path."""
    return str(data).rstrip("/").rpartition("/")[2]


def _without_places(command: str, name: str) -> str:
    """A run's command without the paths of the machine where it ran."""
    line, words = [], shlex.split(command)
    while words:
        option, joined, value = words.pop(0).partition("=")
        if option in ("--data", "--data-dir", "--out"):
            value = value if joined else words.pop(0)
            line += [option, _name_of(value)] if option == "--data" else []
        else:
            line.append(f"{option}{joined}{value}")
    return shlex.join([*line, "--out", f"runs/{name}"])


def save_half(model: VisionModel, path: str | Path) -> None:
    """Writes a model without an optimizer to a `.keras` file of float16 weights, or raises."""
    path = Path(path)
    if path.suffix != ".keras":
        raise ValueError(f"Expected path to end in '.keras'. Received: {str(path)!r}")
    for weight in model.weights:
        values = np.asarray(weight)
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(values.astype("float16")).all()
        if np.issubdtype(values.dtype, np.floating) and not is_finite:
            raise ValueError(
                "Expected weights within the range of float16, 65,504. "
                f"Received: {weight.path}, up to {np.abs(values).max():g}"
            )
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.keras"
        bare = reinitialize(model)
        bare.set_weights(model.get_weights())
        bare.save(whole)
        write_whole(path, lambda partial: _halve(whole, partial, folder))


def _halve(source: Path, target: Path, folder: str) -> None:
    """Copies a `.keras` file with the arrays of its weights as float16."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if name == WEIGHTS:
                weights = Path(old.extract(name, folder))
                new.write(_halve_weights(weights), name)
            else:
                new.writestr(name, old.read(name))


def _halve_weights(path: Path) -> Path:
    """The path of a copy of an HDF5 file with float16 instead of other floats."""
    copy = path.with_suffix(".half")
    with h5py.File(path) as old, h5py.File(copy, "w") as new:

        def take(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Group):
                copied = new.require_group(name)
            else:
                floats = np.issubdtype(item.dtype, np.floating)
                data = item[()].astype("float16") if floats else item
                copied = new.create_dataset(name, data=data)
            copied.attrs.update(item.attrs)

        new.attrs.update(old.attrs)
        old.visititems(take)
    return copy


if __name__ == "__main__":
    sys.exit(main())
