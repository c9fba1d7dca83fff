"""Whether the code that is printed under the figures of a report gives their results."""

import re
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from unittest import mock

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import analysis
from vit_tf.analysis import features_of, plots
from vit_tf.analysis.figures import data as study_data
from vit_tf.analysis.figures.data import make_data
from vit_tf.analysis.figures.figure import by_figure, lookup_figures, plan_pictures
from vit_tf.analysis.figures.measure import SharedPass, measure_all, with_inputs
from vit_tf.analysis.figures.models import LoadedModel, prepare_models
from vit_tf.analysis.report.assemble import SETUP
from vit_tf.analysis.report.printed_code import HELPERS, example_code
from vit_tf.data.any_images import as_images
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.conversion import as_features, facts_of
from vit_tf.features.submodels import describe_taps


def compare(models, folder, *, count=16, num_classes=5, numbers=(), optional=None):
    """Runs the code of every figure of some models; dict from figure to what differs, or "".

    Of each model all figures are measured in one analysis, with random images of its size, labels
    of `num_classes` classes, and `optional` annotated ones. Untrained copies, which the code of no
    figure measures, are left out.
    """
    rng = np.random.default_rng(0)
    size = next(facts_of(model).expected_images.size for model in models.values())
    pixels = rng.integers(0, 256, (count, *size, 3)).astype(np.uint8)
    labels = np.arange(count) % num_classes
    images = tf.data.Dataset.from_tensor_slices((pixels, labels)).batch(count // 2)
    train = tf.data.Dataset.from_tensor_slices((pixels[::-1].copy(), labels[::-1].copy()))
    train = train.batch(count // 2)
    loaded = [
        LoadedModel(name, model, facts_of(model).expected_images) for name, model in models.items()
    ]
    if all(each.is_plain for each in loaded):
        images, train = (
            data.map(lambda x, y: (tf.cast(x, tf.float32) / 127.5 - 1, y))
            for data in (images, train)
        )
    plain, optional = Preprocessing(size), optional or {}
    data = make_data(as_images(images, plain), as_images(train, plain), None, optional)
    names = [str(number) for number in range(num_classes)]
    studied, _, _ = prepare_models(loaded, data, folder, names, copies=0)
    pictures, _ = plan_pictures(lookup_figures(numbers), studied, data)
    wanted = [m for picture in pictures for m in picture.measurements.values()]
    results, problems = measure_all(wanted, data, folder / "results")
    arguments = {"models": models, "images": images, "train": train} | optional
    if "landmarks" in optional:
        names = ("queries", "database", "truth")
        arguments |= dict(zip(names, optional["landmarks"], strict=True))
    return {
        (group[0].figure.numbers, group[0].name): _difference(group, results, problems, arguments)
        for group in by_figure(pictures)
    }


def compare_layers(model, folder, *, num_classes=5, optional=()):
    """Which layers the code of each figure reads and the figure does not, or the other way round.

    Nothing is measured. Returns a dict from (figure, model) to the two lists, and the number of
    figures whose layers were compared.
    """
    size = facts_of(model).expected_images.size
    pixels = np.random.default_rng(0).uniform(-1, 1, (8, *size, 3)).astype(np.float32)
    labels = np.arange(8) % num_classes
    data = make_data((pixels, labels), (pixels, labels), None, dict.fromkeys(optional, dict))
    loaded = LoadedModel("m", model, facts_of(model).expected_images)
    studied, _, _ = prepare_models([loaded], data, folder)
    studied = [replace(each, accuracy=(0.5, 8)) for each in studied]
    pictures, _ = plan_pictures(lookup_figures(()), studied, data)
    features, scores = as_features(model), describe_taps(model).graph.scores
    unequal, count = {}, 0
    for group in by_figure(pictures):
        measured = [
            m
            for picture in group
            for label, m in picture.measurements.items()
            if label not in picture.baselines
            # Those with passes of their own keep their layers to themselves.
            and (isinstance(m, SharedPass) or not m.call)
        ]
        shared = [
            set(each.taps[0])
            for each in with_inputs(measured).values()
            if isinstance(each, SharedPass)
        ]
        read = layers_read(example_code(group, {}, SETUP), model, features, scores)
        if not shared or not read:
            continue
        count += 1
        figure, call = set.union(*shared), set.union(*read)
        is_part = not any(isinstance(m, SharedPass) for m in measured) and call < figure
        if figure != call and not is_part:
            unequal[group[0].name] = sorted(figure - call), sorted(call - figure)
    return unequal, count


def layers_read(code, model, features, scores):
    """The layers that each measurement in some code reads, without the tap of class `scores`.

    `features` are those of the model `m` of the code, which each call would trace anew.
    """
    read = []

    def stand_in(function):
        def measure(*args, layers=None, detail=None, **kwargs):
            if args[0] is not model:  # its matched maps
                read.append(set(args[0].inner.facts.layers))
                return mock.MagicMock()
            chosen = features_of(features, function.kind, layers, detail=detail)
            read.append({tap for tap in chosen.facts.layers if tap != scores})
            return mock.MagicMock()

        return measure

    names = set(re.findall(r"analysis\.(\w+)\(", code))
    with ExitStack() as stack:
        for name in names:
            function = getattr(analysis, name)
            replaced = stand_in(function) if hasattr(function, "kind") else mock.MagicMock()
            stack.enter_context(mock.patch.object(analysis, name, replaced, create=True))
        for name in set(re.findall(r"analysis\.plots\.(\w+)\(", code)):
            stack.enter_context(mock.patch.object(plots, name, mock.MagicMock()))
        # Functions of a paper's module compute with results, of which there are none here.
        imported = r"^from (vit_tf\.analysis\.papers\.\S+) import (\w+)$"
        for module, name in re.findall(imported, code, re.MULTILINE):
            stack.enter_context(mock.patch.object(import_module(module), name, mock.MagicMock()))
        for name in HELPERS:
            stack.enter_context(mock.patch.object(study_data, name, stand_in_data))
        images = mock.MagicMock()
        exec(code, {"models": {"m": model}, "images": images, "train": images})
    return read


def stand_in_data(*args):
    """Two data sets that nothing is read from."""
    return mock.MagicMock(), mock.MagicMock()


def _difference(pictures, results, problems, arguments):
    """What the code of a figure gives that its pictures do not show, in words."""
    measured = [m for picture in pictures for m in picture.measurements.values()]
    failed = {m.name: problems[m.name] for m in measured if results.get(m.name) is None}
    code = example_code(pictures, {}, SETUP)
    try:
        shown = run_code(code, arguments)
    except ValueError as error:
        return "" if failed else f"the code raises {error}\n{code}"
    if failed:
        return f"the report fails: {failed}\n{code}"
    expected_results = []
    for picture in pictures:
        made = {
            label: results[m.name]
            for label, m in picture.measurements.items()
            if label not in picture.baselines
        }
        expected_results += list(made.values())
    found = [x for each in shown for x in (each.values() if isinstance(each, dict) else [each])]
    found = _distinct(found)
    for number, result in enumerate(_distinct(expected_results)):
        if number >= len(found):
            return f"{len(found)} results\n{code}"
        if why := _unequal(found[number], result):
            return f"{why}\n{code}"
    return ""


def run_code(code, arguments):
    """What code passes to functions of `plots`, which draw nothing."""
    shown = []
    names = set(re.findall(r"analysis\.plots\.(\w+)\(", code))
    with ExitStack() as stack:
        for name in names:
            note = mock.Mock(side_effect=lambda result, **options: shown.append(result))
            stack.enter_context(mock.patch.object(plots, name, note))
        exec(code, dict(arguments))
    return shown


def _distinct(results):
    return [x for i, x in enumerate(results) if not any(x is other for other in results[:i])]


def _unequal(found, result):
    """How two labelled results differ; empty if they do not."""
    found, result = (
        x.to_dataset(name="value") if isinstance(x, xr.DataArray) else x for x in (found, result)
    )
    for name in result.dims:
        if name in result.coords:
            ours, theirs = (x[name].values.tolist() for x in (found, result) if name in x.coords)
            if ours != theirs:
                return f"{name}: {len(ours)} in the call, {ours[:3]}; {len(theirs)}, {theirs[:3]}"
    for name in result.data_vars:
        if name not in found:
            continue
        ours, theirs = found[name].values, result[name].values
        if ours.shape != theirs.shape:
            return f"{name}: shapes {ours.shape} and {theirs.shape}"
        if ours.dtype.kind == "f" and not np.allclose(
            ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True
        ):
            return f"{name}: up to {np.nanmax(np.abs(ours - theirs))} apart"
        if ours.dtype.kind != "f" and not np.array_equal(ours, theirs):
            return f"{name}: other values"
    return ""
