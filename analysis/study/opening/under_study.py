"""Opened models as those of a report, with their accuracy and what to say of them."""

import logging
from dataclasses import replace
from pathlib import Path

import xarray as xr

from vit_tf.preprocessing import interval
from vit_tf.training.evaluation import correct_answers, match_classes

from ...engine.store import base_code, fingerprint, keep, load
from ..models import describe_model, require_distinct
from .layers import STILL
from .study_model import BASELINE_WORDS, PROBES, opened_baselines, study_model

log = logging.getLogger(__name__)

STILL_MODELS = "Models that hardly move"
CONSTANT_LAYERS = "Layers that do not vary between images"
OTHER_CLASSES = "Models of other classes than those of the data"
HARDLY = (
    "The last layers of {model} hardly differ between images, which it got with values in {values}."
)


def under_study(opened, data, folder, class_names=(), seed=0, remedy=""):
    """Opened models as those of a report, with their random baselines and what to say of them.

    Args:
        opened: list of `Opened`.
        data: the `Data` that is measured.
        folder: of the report, which keeps accuracies among its results.
        class_names: names of the classes of the labels; none where the accuracy is not asked for.
        seed: of the random baselines.
        remedy: what to do about images of other values than a model expects, in words.

    Returns:
        List of `StudyModel`, a row for each opened one, and a list as `Report.left_out`.

    Raises:
        ValueError: for names whose slugs are the same, and models without layers to read.
    """
    baselines = [f"{one.name}, {word}" for one in opened for word in BASELINE_WORDS.values()]
    require_distinct([*(one.name for one in opened), *baselines])
    few = next(iter(data.few))
    few = (few[0] if isinstance(few, tuple) else few)[:PROBES].numpy()
    models, rows, notes = [], [], {STILL_MODELS: [], CONSTANT_LAYERS: [], OTHER_CLASSES: []}
    for one in opened:
        model, constant, moves = study_model(one, few)
        log.info("%s: %d layers are read", one.name, len(model.taps))
        correct, why_not = correct_of(one, model, data, class_names, Path(folder, "results"))
        accuracy = None if correct is None else (float(correct.mean()), len(correct))
        model = replace(model, accuracy=accuracy, correct=correct)
        models += [model, *opened_baselines(one, model, seed)]
        rows.append(describe_model(one, model))
        if accuracy:
            rows[-1]["test accuracy (%)"] = round(100 * accuracy[0], 2)
        if why_not:
            notes[OTHER_CLASSES].append(f"{one.name}: {why_not}.")
            log.info("No accuracy of %s: %s", one.name, why_not)
        if constant:
            notes[CONSTANT_LAYERS].append(f"{one.name}: {', '.join(constant)}.")
        if moves < STILL:
            values = interval(*one.expects.value_range)
            notes[STILL_MODELS].append(HARDLY.format(model=one.name, values=values) + remedy)
    if any("test accuracy (%)" in row for row in rows):
        rows = [row | {"test accuracy (%)": row.get("test accuracy (%)")} for row in rows]
    return models, rows, [(what, sentences) for what, sentences in notes.items() if sentences]


def correct_of(opened, model, data, class_names, folder):
    """Which test images a model's own head classifies correctly, kept in a folder of results.

    Returns:
        Truth values of shape (test image,), and no words; None for a model whose last layer
        does not hold a number for each of these classes, with words where it names other ones.
    """
    tap = model.taps[-1]
    if not opened.is_keras or len(model.shapes[tap]) != 1 or not class_names:
        return None, ""
    own = getattr(opened.model, "class_names", None)
    try:
        match_classes(own, *model.shapes[tap], class_names)
    except ValueError as error:
        return None, str(error) if own else ""
    path = folder / f"accuracy.{model.slug}.nc"
    key = fingerprint("correct answers", base_code(), model.key, data.facts, list(class_names))
    result = load(path, key)
    if result is None:
        head = model.features(tap)
        correct = correct_answers(lambda images: head(images)[tap], data.test)
        result = xr.DataArray(correct, dims="example", name="correct")
        result = keep(result, path, key, {"model": model.name})
    return result.values.astype(bool), ""
