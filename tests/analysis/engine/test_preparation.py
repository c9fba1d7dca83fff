"""The border of a measurement: `prepare` and its kin, and how a measurement is registered."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from paths import ROOT
from public_measurements import PACKAGES, public_measurements
from tiny_models import tiny_vit

import vit_tf
from vit_tf import analysis
from vit_tf.analysis import engine
from vit_tf.analysis.engine.stream import one_pass
from vit_tf.data.any_images import batch_images
from vit_tf.features.layers import KINDS

IMAGES = np.random.default_rng(0).uniform(-1, 1, (8, 16, 16, 3)).astype("float32")
LABELS = np.arange(8) % 3


@pytest.fixture(scope="module")
def vit() -> keras.Model:
    return tiny_vit()


PIXELS = (IMAGES * 127.5 + 127.5).round().astype("uint8")


def test_models_and_images_are_prepared_with_scores_and_labels(vit):
    features, batches = engine.prepare(vit, PIXELS, kind="scores", keep_order=True)
    ((pictures,)) = list(batches)
    np.testing.assert_allclose(pictures, IMAGES, atol=0.005)
    layer = engine.score_layer(features)
    np.testing.assert_allclose(features(pictures)[layer], vit(pictures), rtol=1e-5)
    given = {"train": (PIXELS[:4], LABELS[:4]), "test": (PIXELS, LABELS)}
    _, (train, test), num_classes = engine.prepare_labelled(vit, given, None, keep_order=True)
    ((images, labels),) = train
    np.testing.assert_allclose(images, IMAGES[:4], atol=0.005)
    np.testing.assert_array_equal(labels, LABELS[:4])
    assert num_classes == 3 and sum(len(images) for images, _ in test) == 8
    assert engine.prepare_labelled(vit, given, 5)[2] == 5
    with pytest.raises(ValueError, match=r"test .*without labels"):
        engine.prepare_labelled(vit, given | {"test": PIXELS}, None)
    with pytest.raises(ValueError, match="Expected images to be an array"):
        engine.prepare_sets(vit, {"images": vit})
    with pytest.raises(ValueError, match=r"images needs labels.*without labels"):
        engine.prepare(vit, PIXELS, labelled=True)


def test_images_are_read_in_a_random_order_unless_the_result_has_a_row_for_each(vit):
    order = np.random.default_rng(0).permutation(8)
    for keep_order, expected in ((True, IMAGES), (False, IMAGES[order])):
        _, batches = engine.prepare(vit, IMAGES, keep_order=keep_order)
        np.testing.assert_array_equal(np.concatenate(list(batches)), expected)


def test_every_model_reads_its_own_kind_and_block(vit):
    heads = engine.read_model(vit, "block_heads", block="block01")
    assert [tap for tap in heads.facts.layers if "heads" in tap] == ["block01/attention/heads"]
    sums = engine.read_model(vit, "skips")
    assert {tap.rpartition("/")[2] for tap in sums.facts.layers} == {"skip", "branch"}
    assert engine.read_model(vit, "skips") is sums
    (first, second), (batches,) = engine.prepare_images([heads, sums], {"images": PIXELS})
    assert (first.facts.layers, second.facts.layers) == (heads.facts.layers, sums.facts.layers)
    np.testing.assert_allclose(
        np.sort(np.ravel(next(iter(batches)))), np.sort(np.ravel(IMAGES)), atol=0.005
    )


def test_activations_by_layer_take_the_place_of_a_model():
    layers = {"a": np.arange(48.0).reshape(8, 2, 3), "b": np.zeros((8, 5))}
    features, batches = engine.prepare(layers, LABELS, keep_order=True)
    ((rows, labels),) = batches
    found = features(rows)
    np.testing.assert_array_equal(found["a"], layers["a"])
    assert found["b"].shape == (8, 5)
    np.testing.assert_array_equal(labels, LABELS)
    with pytest.raises(ValueError, match="activations at hand"):
        engine.prepare(layers, IMAGES)
    (x, y), batches = engine.prepare_pair({"a": layers["a"]}, None, {"b": layers["b"]})
    (rows,) = batches
    assert x(rows)["a"].shape == (8, 2, 3) and y(rows)["b"].shape == (8, 5)


@engine.measurement(arguments="{model}, {other}, {images}")
def mean_activation(net, rival, x, power: int = 1, *, layers=None, detail=None) -> xr.DataArray:
    """The mean of a power of the activations of each layer of one model or two."""
    features, batches = engine.prepare_pair(net, x, rival, layers=layers, detail=detail)
    statistic = mean_activation_statistic(*features, power=power)
    return engine.evaluate(statistic, batches, *features)


@engine.statistic_of(mean_activation)
def mean_activation_statistic(net, rival=None, power: int = 1) -> engine.Statistic:
    def step(images, *taps):
        means = {
            f"{number} {name}": tf.reduce_sum(tf.reduce_mean(values**power, axis=[1, 2]))
            for number, of_model in enumerate(taps)
            for name, values in of_model.items()
        }
        return {"sums": means, "examples": tf.shape(images)[0]}

    def finish(totals):
        means = [total / totals["examples"] for total in totals["sums"].values()]
        return xr.DataArray(means, {"layer": list(totals["sums"])}, "layer")

    return engine.Statistic(step, finish)


def test_a_measurement_is_a_call_and_a_statistic_of_a_shared_pass(vit):
    layers = "block0?/mlp/sum"
    expected = {
        name: np.mean(np.asarray(x, np.float64) ** 2)
        for name, x in vit_tf.submodel(vit, layers)(IMAGES).items()
    }
    alone = mean_activation(vit, None, IMAGES, 2, layers=layers)
    np.testing.assert_allclose(alone, list(expected.values()), rtol=1e-5)
    both = mean_activation(vit, vit, x=IMAGES, layers=layers)
    assert both.sizes["layer"] == 4
    features = analysis.features_of(vit, layers=layers)
    statistic = mean_activation.statistic(features, None, power=2)
    assert mean_activation.statistic(features, rival=None, power=2) is statistic
    assert mean_activation.statistic(features, None) is not statistic
    totals = one_pass({"mean": (statistic, features)}, batch_images(IMAGES))
    xr.testing.assert_identical(statistic.finish(totals["mean"]), alone)
    with pytest.raises(TypeError, match=r"mean_activation\(\) missing .* 'x'"):
        mean_activation(vit, None)
    with pytest.raises(TypeError, match=r"mean_activation\(\) .* 'layerz'. Did you mean layers\?"):
        mean_activation(vit, None, IMAGES, layerz="block01")


@pytest.mark.slow
def test_the_definition_of_the_guide_suffices(vit):
    page = (ROOT / "docs/guides/adding-an-analysis.md").read_text("utf-8")
    definition = page.split("```python\n")[1].split("\n(images,) =")[0]
    exec(definition, namespace := {"__name__": "own"})
    measure = namespace["mean_activation"]
    names = ["embedding", "block00/mlp/sum", "block01/mlp/sum"]
    blocks = vit_tf.submodel(vit, *names)(IMAGES)
    expected = [np.mean(np.asarray(blocks[name], np.float64) ** 2) for name in names]
    pixels = (IMAGES * 127.5 + 127.5).round().astype("uint8")
    found = measure(vit, pixels, power=2, detail="blocks")
    assert found.layer.values.tolist() == names
    np.testing.assert_allclose(found["mean_activation"], expected, rtol=0.02)  # pixels are rounded
    exact = measure(vit, IMAGES, 2, detail="blocks")
    np.testing.assert_allclose(exact["mean_activation"], expected, rtol=1e-5)

    recorder = analysis.Recorder([measure], IMAGES)
    vit.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    vit.fit(IMAGES, LABELS, verbose=0, callbacks=[recorder])
    recorded = recorder.results["mean_activation"].sel(epoch=1)
    xr.testing.assert_allclose(recorded.drop_vars("epoch"), measure(vit, IMAGES), rtol=1e-5)


def test_the_printed_call_follows_from_the_declaration():
    expressions = {
        (analysis.cka, 1, None): "analysis.cka({model}, images)",
        (analysis.cka, 2, "blocks"): 'analysis.cka({model}, images, {other}, detail="blocks")',
        (analysis.head_similarity, 2, None): "analysis.head_similarity({model}, {other}, images)",
        (analysis.last_layer_cka, 3, None): "analysis.last_layer_cka({models}, images)",
    }
    for (measure, count, detail), expected in expressions.items():
        assert measure.declaration.expression(count, detail=detail) == expected
    assert (
        analysis.object_clustering.declaration.expression(1, "objects", num_clusters=80)
        == "analysis.object_clustering({model}, objects, num_clusters=80)"
    )


@pytest.mark.parametrize("name", public_measurements())
def test_signatures_show_how_layers_are_chosen(name):
    measure = getattr(analysis, name)
    if not hasattr(measure, "declaration"):
        return
    parameters = inspect.signature(measure).parameters
    assert parameters["layers"].kind is inspect.Parameter.KEYWORD_ONLY
    assert name == "stitching" or parameters["detail"].kind is inspect.Parameter.KEYWORD_ONLY
    assert measure.kind in KINDS and measure.declaration.name == name


def test_every_measurement_has_its_line_in_the_public_stub():
    found = {}
    for package in PACKAGES:
        folder = [str(Path(analysis.__file__).parent / package)]
        for module in pkgutil.iter_modules(folder, f"vit_tf.analysis.{package}."):
            members = vars(importlib.import_module(module.name)).values()
            found |= {x.declaration.name: x for x in members if hasattr(x, "declaration")}
    assert len(found) > 35
    del found["few_shot"]  # a protocol of evaluations, below `vit_tf.data.few_shot`
    for name, measure in found.items():
        assert getattr(analysis, name, None) is measure, f"add {name} to analysis/__init__.pyi"
