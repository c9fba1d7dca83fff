"""The card of a small model: what it is, how it was trained and how often it is right."""

import shlex

import numpy as np
import tensorflow as tf
from scipy.stats import binomtest

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
    found = binomtest(int(right.sum()), len(right))
    low, high = found.proportion_ci(method="wilson")
    return (
        f"{100 * found.statistic:.2f} % ({100 * low:.1f} to {100 * high:.1f}) "
        f"of {len(right):,} test images"
    )


def write_card(name, result, steps, model, size, counted, trained=None, limits=None):
    """The text of a card.

    Args:
        name: of the model.
        result: what the run's `result.json` holds.
        steps: of an epoch.
        model: the run's model.
        size: bytes of the released file.
        counted: what `compare` returns.
        trained: how long on what, in words.
        limits: what to know before using it; None for what is true of every small model.
    """
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
