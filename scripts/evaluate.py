"""Evaluates a model: top-1 and top-5 accuracy, and few-shot accuracy of its features.

Images are resized and normalized as the model expects. The expected pixel values are inferred from
the model, or specified by --range, or by --mean and --std. For few-shot accuracy, a least-squares
classifier is fitted to the features of a layer for a few training images per class (the protocol of
big_vision). Its L2 penalty is --l2 or, by default, the best penalty on other training images.

If the model stores class names, the data must have classes of the same names. Otherwise, classes
are matched by number: the output states their order, and --classes specifies another order.
--allow-other-classes also evaluates if some names differ: these classes are matched by position.

Prints a table, and writes the results to --out as JSON.

Examples:
    vit-tf evaluate runs/digits/model.keras --data digits
    vit-tf evaluate vit.keras --data cifar10 --shots 1,5,10,25 --out vit.json
    vit-tf evaluate mobilenet.keras --data photos/ --shots 5 --taps out_relu --no-head
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import vit_tf
from vit_tf.data.files import as_path
from vit_tf.scripts import common
from vit_tf.scripts.common import Arguments, Options, integer, named, real

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

LOW_VARIATION = (
    "scores hardly differ between images: does the model expect other pixel values? See --range"
)
OPTIONS = {
    "model": {
        **common.MODEL,
        **common.VALUES,
        "--no-head": {"action": "store_true", "help": "skip the accuracy of the model's own head"},
        "--allow-other-classes": {
            "action": "store_true",
            "help": "evaluate even if class names of the model and the data differ",
        },
    },
    "data": {
        **common.SOURCE,
        "--split": named("test, validation, train or all", default="test"),
        "--image-size": integer("side of the images, in pixels (default: the model's)"),
        "--take-test": integer("number of images to measure (default: all)"),
        "--batch-size": integer("images per batch", default=128),
    },
    "few-shot": {
        "--shots": named("images per class, such as 1,5,10,25 (default: none)", "N,N"),
        "--draws": integer("number of random draws of the few-shot images", default=3),
        "--taps": named(
            "layers whose features are classified", "PATTERN", nargs="+", default=("pooled",)
        ),
        "--l2": real("L2 penalty (default: the best on held-out images)"),
        "--held-out": integer("images per class to select the L2 penalty", default=10),
    },
    "run": {
        **common.output("output file, such as result.json", "FILE", type=as_path),
        **common.STRATEGY,
    },
}
MAIN = ("--data", "--data-dir", "--split", "--image-size", "--take-test", "--batch-size")
MAIN += ("--shots", "--taps", "--range", "--out")


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return common.run_command(parse, run, arguments, backends=common.TRAINING_BACKENDS)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    return common.make_parser("evaluate", __doc__, OPTIONS, MAIN).parse_args(arguments)


def relabelled(
    options: Options,
    model: keras.Model,
    num_scores: int,
    class_names: Sequence[str],
    test: tf.data.Dataset,
) -> tf.data.Dataset:
    """The test data with the labels of the model's own classes."""
    import tensorflow as tf

    from vit_tf.features.conversion import facts_of
    from vit_tf.training.evaluation import match_classes
    from vit_tf.training.runs import checked_labels

    model_classes = facts_of(model).class_names or None
    try:
        numbers = match_classes(model_classes, num_scores, class_names, options.allow_other_classes)
    except ValueError as error:
        raise ValueError(f"{error}; --allow-other-classes evaluates anyway") from error
    test = checked_labels(test, len(numbers), options.split)
    return test.map(lambda images, labels: (images, tf.gather(numbers, labels)))


def few_shot_rows(
    options: Options,
    model: keras.Model,
    test: tf.data.Dataset,
    num_classes: int,
    arguments: dict[str, Any],
) -> list[dict[str, Any]]:
    """Few-shot accuracy for each number of shots: list of dicts."""
    from vit_tf.analysis.probes.ridge import FEW_SHOT_L2 as L2, few_shot, select_few_shot

    try:
        shots = sorted({int(count) for count in options.shots.split(",")})
    except ValueError:
        shots = [0]
    if shots[0] < 1 or options.draws < 1:
        raise ValueError(
            "Expected --shots to be numbers such as 1,5,10 and --draws to be at least 1. "
            f"Received: --shots {options.shots} --draws {options.draws}"
        )
    held_out = 0 if options.l2 else options.held_out
    draws = [
        vit_tf.data.few_shot(options.data, shots[-1], seed=seed, held_out=held_out, **arguments)
        for seed in range(options.draws)
    ]
    if options.l2:
        draws = [(few, None) for few, _ in draws]
    features = vit_tf.submodel(model, *options.taps)
    strengths = (options.l2,) if options.l2 else L2
    result = few_shot(features, draws, test, num_classes, shots, strengths)
    selected = result["accuracy"].isel(l2=0) if options.l2 else select_few_shot(result)
    rows = []
    for layer, count in itertools.product(selected["layer"].values, shots):
        accuracy = selected.sel(layer=layer, shots=count)
        row = {
            "layer": str(layer),
            "shots": count,
            "accuracy": float(accuracy.mean()),
            "deviation": float(accuracy.std()),
            "draws": accuracy.values.tolist(),
        }
        rows.append(row | {"l2": float(accuracy["l2"])})
    return rows


def table(result: dict[str, Any]) -> str:
    """The numbers as lines of text."""
    lines = [
        f"{result['model']} on {result['examples']} images of {result['data']}",
        f"images: {result['images']}",
        f"size: {result['size']}",
        *([result["classes"]] if result["classes"] else []),
        *result["warnings"],
    ]
    for k, share in result["top"].items():
        lines.append(f"top-{k} accuracy {100 * share:8.2f} %")
    for row in result["few_shot"]:
        lines.append(
            f"{row['layer']}, {row['shots']:3d} shots {100 * row['accuracy']:8.2f} % "
            f"± {100 * row['deviation']:.2f} over {len(row['draws'])} draws, l2 {row['l2']:g}"
        )
    return "\n".join(lines)


def run(options: Options) -> None:
    """Evaluate a model, print a table and write the numbers."""
    if options.no_head and not options.shots:
        raise ValueError("--no-head without --shots leaves nothing to evaluate: add --shots")
    if options.shots:
        from vit_tf.common.backend import require_tensorflow

        require_tensorflow("--shots")
    with vit_tf.distribute.strategy(options.strategy).scope():
        result = evaluate(options)
    common.say(table(result))
    if options.out:
        common.write_json(result, options.out)


def evaluate(options: Options) -> dict[str, Any]:
    """The numbers that the options ask for, as a dict."""
    from vit_tf.analysis.figures.models import MIN_VARIATION, variation
    from vit_tf.features.conversion import facts_of
    from vit_tf.training.evaluation import (
        class_scores_of,
        describe_class_order,
        top_k_accuracy,
    )
    from vit_tf.training.runs import explain_wrong_examples

    model = common.open_model(options.model)
    preprocessing, origin, _ = common.expected_images(options, model)
    values = common.describe_values(preprocessing, origin)
    arguments = {
        "batch_size": options.batch_size,
        "data_dir": options.data_dir,
        "image_size": options.image_size,
        "preprocessing": preprocessing,
    }
    arguments |= common.chosen_classes(options)
    description = common.describe_labelled(options)
    (test,) = vit_tf.data.load(
        options.data, splits=(options.split,), take=options.take_test, **arguments
    )
    size = " x ".join(map(str, test.element_spec[0].shape[1:3])) + " pixels"
    if preprocessing.size is None:
        origin = "specified by --image-size" if options.image_size else "that of the data"
        size += f", {origin}, since the model accepts any size"
    top, warnings, class_order = {}, [], ""
    if not options.no_head:
        scores = class_scores_of(model)(next(iter(test))[0])
        names = description.class_names
        if not options.classes:
            class_order = describe_class_order(facts_of(model).class_names or None, names)
        own_labels = relabelled(options, model, scores.shape[-1], names, test)
        with explain_wrong_examples():
            top = top_k_accuracy(model, own_labels)
        if len(scores) > 1 and 0 < variation(scores) < MIN_VARIATION:
            warnings = [LOW_VARIATION]
    result = {
        "model": options.model,
        "data": f"{options.data} ({options.split})",
        "examples": test.num_examples,
        "images": values,
        "size": size,
        "classes": class_order,
        "preprocessing": preprocessing.to_config(),
        "warnings": warnings,
        "top": top,
        "few_shot": [],
        "options": vars(options),
    }
    if options.shots:
        num_classes = description.num_classes
        result["few_shot"] = few_shot_rows(options, model, test, num_classes, arguments)
    return result
