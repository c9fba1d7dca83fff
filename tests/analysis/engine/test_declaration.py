"""What a measurement declares: roles by the types of its parameters, whatever their names."""

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
from public_measurements import PACKAGES
from tiny_models import tiny_vit

import vit_tf
from vit_tf import analysis
from vit_tf.analysis import engine
from vit_tf.analysis.engine.stream import as_dataset, one_pass
from vit_tf.analysis.heads.attention_distance import num_attended
from vit_tf.data.any_images import batch_images

IMAGES = np.random.default_rng(0).uniform(-1, 1, (8, 16, 16, 3)).astype("float32")
LABELS = np.arange(8) % 3


@pytest.fixture(scope="module")
def vit() -> keras.Model:
    return tiny_vit()


@engine.measurement("scores", keep_order=True)
def arguments(
    net: engine.Model,
    pictures: engine.Images,
    fitted_on: engine.LabelledImages,
    names: engine.Classes | None = None,
    how_many: engine.NumClasses | None = None,
    head: engine.Scores = "logits",
) -> dict:
    """The arguments as a measurement gets them."""
    return dict(locals())


@engine.measurement("skips", rival="block_heads")
def two_models(
    rival: engine.Model,
    pictures: engine.Images,
    other: engine.Model | None = None,
    where: engine.Block = "block01",
) -> tuple:
    return rival, other


@engine.measurement("attention")
def of_each(nets: engine.Models, pictures: engine.Images) -> dict:
    return nets


def test_arguments_are_prepared_by_their_types(vit):
    pixels = (IMAGES * 127.5 + 127.5).round().astype("uint8")
    given = arguments(vit, pixels, (pixels[:4], LABELS[:4]))
    (pictures,) = as_dataset(given["pictures"])
    ((fitted_on, labels),) = as_dataset(given["fitted_on"])
    np.testing.assert_allclose(pictures, IMAGES, atol=0.005)
    np.testing.assert_allclose(fitted_on, IMAGES[:4], atol=0.005)
    np.testing.assert_array_equal(labels, LABELS[:4])
    assert given["head"] in given["net"].facts.layers and given["how_many"] == 3
    scores = np.asarray(given["net"](pictures)[given["head"]])
    assert set(given["names"]) == set(scores.argmax(axis=1))
    named = arguments(vit, pictures=pixels, fitted_on=(pixels, LABELS), names=2, how_many=5)
    assert named["names"] == [2] and named["how_many"] == 5
    with pytest.raises(ValueError, match=r"fitted_on .*without labels"):
        arguments(vit, pixels, pixels)
    with pytest.raises(ValueError, match=r"Expected images in analysis\.arguments\(model"):
        arguments(vit, vit, (pixels, LABELS))


def test_every_model_reads_its_own_kind_and_block(vit):
    heads, sums = two_models(vit, IMAGES, vit)
    assert [tap for tap in heads.facts.layers if "heads" in tap] == ["block01/attention/heads"]
    assert {tap.rpartition("/")[2] for tap in sums.facts.layers} == {"skip", "branch"}
    heads, _ = two_models(vit, IMAGES, where="block00")
    assert [tap for tap in heads.facts.layers if "heads" in tap] == ["block00/attention/heads"]
    named = of_each({"first": vit, "second": vit}, IMAGES)
    assert list(named) == ["first", "second"]
    weights = tuple(f"block0{number}/attention/weights" for number in range(2))
    assert named["second"].facts.layers == weights


@pytest.mark.slow
def test_a_renamed_parameter_of_a_measurement_of_this_package_changes_nothing(vit):
    function = inspect.unwrap(analysis.attention_distance)

    def renamed(anything: engine.Model, x: engine.Images, places: engine.Grid | None = None):
        return function(anything, x, places)

    pixels = (IMAGES * 127.5 + 127.5).round().astype("uint8")
    expected = analysis.attention_distance(vit, pixels, (2, 2), layers="block01/*")
    declare = engine.one_pass_measurement("attention", num_tokens=num_attended)
    found = declare(renamed)(vit, x=pixels, places=(2, 2), layers="block01/*")
    xr.testing.assert_identical(found, expected)


def test_activations_by_layer_take_the_place_of_a_model(vit):
    @engine.measurement()
    def shapes(anything: engine.Model, pairs: engine.LabelledImages) -> dict:
        ((rows, labels),) = pairs
        return {name: x.shape for name, x in anything(rows).items()}, labels

    layers = {"a": np.zeros((8, 2, 3)), "b": np.zeros((8, 5))}
    found, labels = shapes(layers, LABELS)
    assert found == {"a": (8, 2, 3), "b": (8, 5)}
    np.testing.assert_array_equal(np.sort(labels), np.sort(LABELS))


def test_a_declaration_is_checked_when_it_is_made():
    with pytest.raises(ValueError, match=r"nothing whose type is engine.Model"):

        @engine.measurement()
        def nothing(features, images):
            return features, images

    with pytest.raises(ValueError, match=r"kinds of the models of one, net\. Received: features"):

        @engine.measurement(features="skips")
        def one(net: engine.Model):
            return net

    with pytest.raises(ValueError, match="one parameter of twice to be the scores"):

        @engine.measurement()
        def twice(net: engine.Model, a: engine.Scores, b: engine.Scores):
            return net, a, b


@engine.one_pass_measurement()
def mean_activation(
    net: engine.Model, rival: engine.Model | None, x: engine.Images, power: int = 1
) -> engine.Statistic:
    """The mean of a power of the activations of each layer of one model or two."""

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


def test_one_definition_is_a_call_and_a_statistic_of_a_shared_pass(vit):
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
    names = list(inspect.signature(mean_activation.statistic).parameters)
    assert names == ["net", "rival", "power"]
    names = list(inspect.signature(mean_activation).parameters)
    assert names == ["net", "rival", "x", "power", "layers", "detail"]
    with pytest.raises(TypeError, match=r"mean_activation\(\) missing .* 'x'"):
        mean_activation(vit, None)
    with pytest.raises(TypeError, match=r"mean_activation\(\) .* 'layerz'. Did you mean layers\?"):
        mean_activation(vit, None, IMAGES, layerz="block01")


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
    np.testing.assert_allclose(found, expected, rtol=0.02)  # pixels are rounded
    np.testing.assert_allclose(measure(vit, IMAGES, 2, detail="blocks"), expected, rtol=1e-5)

    recorder = analysis.Recorder([measure], IMAGES)
    vit.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    vit.fit(IMAGES, LABELS, verbose=0, callbacks=[recorder])
    recorded = recorder.results["mean_activation"]
    np.testing.assert_allclose(recorded.sel(epoch=1), measure(vit, IMAGES), rtol=1e-5)


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
