"""The card of a small model: what it is, how it was trained and how often it is right."""

import shlex
import tempfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import tensorflow as tf
from scipy.stats import binomtest

from vit_tf.files import write_whole
from vit_tf.reinitialization import reinitialize

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
_TOLD = ("name", "dtype", "trainable", "preprocessing", "class_names", "num_classes")


def compare(model, half, test):
    """How often two models are right on the same images, and differ: fields of the card."""
    answers = [tf.function(lambda images, of=of: tf.argmax(of(images), -1)) for of in (model, half)]
    rows = [(labels, *(answer(images) for answer in answers)) for images, labels in test]
    labels, whole, halved = (np.concatenate(column) for column in zip(*rows, strict=True))
    return {
        "whole": share(whole == labels),
        "half": share(halved == labels),
        "others": int((whole != halved).sum()),
        "count": len(labels),
    }


def share(right):
    """The share of true values, with its 95 % interval (Wilson's), in words."""
    test = binomtest(int(right.sum()), len(right))
    low, high = test.proportion_ci(method="wilson")
    return (
        f"{100 * test.statistic:.2f} % ({100 * low:.1f} to {100 * high:.1f}) "
        f"of {len(right):,} test images"
    )


def write_card(name, result, steps, model, size, counted, trained=None, limits=None):
    """The text of a card; `trained` and `limits` are in words, or None."""
    options, epochs = result["options"], result["recipe"]["epochs"]
    config = {key: value for key, value in model.get_config().items() if key not in _TOLD}
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


def _name_of(data):
    """A data set's name; that of its folder for a path."""
    return str(data).rstrip("/").rpartition("/")[2]


def _without_places(command, name):
    """A run's command without the paths of the machine where it ran."""
    kept, words = [], shlex.split(command)
    while words:
        option, joined, value = words.pop(0).partition("=")
        if option in ("--data", "--data-dir", "--out"):
            value = value if joined else words.pop(0)
            kept += [option, _name_of(value)] if option == "--data" else []
        else:
            kept.append(f"{option}{joined}{value}")
    return shlex.join([*kept, "--out", f"runs/{name}"])


def save_half(model, path):
    """Writes a model to a `.keras` file whose weights are float16, whole or not at all.

    `keras.saving.load_model` opens it as any other, in the precision of the model's own policy.

    Args:
        model: a `keras.Model`; of a compiled one the optimizer is left out.
        path: of the file, ending in `.keras`.

    Raises:
        ValueError: for another ending, or a weight that no float16 is near: not finite, or beyond
            65,504.
    """
    path = Path(path)
    if path.suffix != ".keras":
        raise ValueError(f"Expected path to end in '.keras'. Received: {str(path)!r}")
    for weight in model.weights:
        _require_half(weight.path, np.asarray(weight))
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.keras"
        bare = reinitialize(model)
        bare.set_weights(model.get_weights())
        bare.save(whole)
        write_whole(path, lambda partial: _halve(whole, partial, folder))


def _require_half(name, values):
    if np.issubdtype(values.dtype, np.floating):
        with np.errstate(over="ignore"):
            finite = np.isfinite(values.astype("float16")).all()
        if not finite:
            raise ValueError(
                "Expected weights within the range of float16, 65,504. "
                f"Received: {name}, up to {np.abs(values).max():g}"
            )


def _halve(source, target, folder):
    """Copies a `.keras` file with the arrays of its weights as float16."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if name == WEIGHTS:
                weights = Path(old.extract(name, folder))
                new.write(_halve_weights(weights), name)
            else:
                new.writestr(name, old.read(name))


def _halve_weights(path):
    """The path of a copy of an HDF5 file with float16 instead of other floats."""
    copy = path.with_suffix(".half")
    with h5py.File(path) as old, h5py.File(copy, "w") as new:

        def take(name, item):
            if isinstance(item, h5py.Group):
                copied = new.require_group(name)
            else:
                floats = np.issubdtype(item.dtype, np.floating)
                copied = new.create_dataset(
                    name, data=item[()].astype("float16") if floats else item
                )
            copied.attrs.update(item.attrs)

        new.attrs.update(old.attrs)
        old.visititems(take)
    return copy
