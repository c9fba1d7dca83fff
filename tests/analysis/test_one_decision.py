"""Calls, reports, the explorer, the recorder and the commands decide about a model once.

For each kind of model, all of them read the same layers, expect the same images, find the same
class scores and give the same numbers.
"""

import argparse
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from functional_models import functional_vit
from keras import layers
from tiny_models import tiny
from without_torchvision import import_or_skip

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.explorer.exploration import open_subject
from vit_tf.analysis.figures.data import make_data
from vit_tf.analysis.figures.figure import lookup_figures, plan_pictures
from vit_tf.analysis.figures.measure import measure_all
from vit_tf.analysis.figures.models import (
    LoadedModel,
    NotApplicable,
    open_model,
    prepare_models,
    shared_framing,
    study_model,
)
from vit_tf.data.any_images import as_images
from vit_tf.features.conversion import as_features, facts_of
from vit_tf.features.first_images import observed_grid
from vit_tf.scripts import analyze, common
from vit_tf.torch_models import timm_names
from vit_tf.training.evaluation import class_scores_of

torch = pytest.importorskip("torch")

SHAPE = (16, 24, 3)
NAMES = ("ant", "bee", "cat", "dog", "owl")
COUNT, BATCH = 16, 8
KINDS = ("representations", "attention", "skips", "heads", "tokens", "maps", "lens")
FACTS = ("class_names", "num_classes", "prefix_names")


def functional_cnn():
    """A residual CNN that rescales its images itself and ends in a softmax."""
    images = keras.Input(SHAPE)
    x = layers.Rescaling(1 / 127.5, -1)(images)
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(x)
    for _ in range(2):
        x = layers.Add()([x, layers.Conv2D(4, 3, padding="same", activation="relu")(x)])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(5, activation="softmax")(x), name="functional_cnn")


class SubclassedCnn(keras.Model):
    """A residual CNN whose code is its `call`."""

    def __init__(self):
        super().__init__(name="subclassed")
        self.root = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")
        self.block = layers.Conv2D(4, 3, padding="same", activation="relu")
        self.pool = layers.GlobalAveragePooling2D()
        self.head = layers.Dense(5)

    def call(self, images):
        x = self.root(images)
        return self.head(self.pool(x + self.block(x)))


def subclassed():
    """The subclassed CNN, built."""
    model = SubclassedCnn()
    model(np.zeros((1, *SHAPE), np.float32))
    return model


def application():
    """A MobileNet of `keras.applications`, whose scores differ between images."""
    model = keras.applications.MobileNet((32, 32, 3), alpha=0.25, weights=None, classes=5)
    for weight in model.trainable_weights:
        weight.assign(3 * weight if weight.path.endswith("kernel") else weight)
    return model


def keras_hub_vit():
    """A ViT classifier of KerasHub."""
    keras_hub = pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    sizes = {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
    backbone = keras_hub.models.ViTBackbone(image_shape=SHAPE, **sizes)
    return keras_hub.models.ViTImageClassifier(backbone, 5)


def timm_vit(**options):
    """A ViT of timm."""
    timm = import_or_skip("timm")
    torch.manual_seed(0)
    sizes = {"img_size": SHAPE[:2], "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 3}
    return timm.create_model("vit_tiny_patch16_224", num_classes=5, **sizes | options).eval()


class TorchCnn(torch.nn.Module):
    """A residual CNN in PyTorch, for images of any size."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.root = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU())
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU()) for _ in range(2)]
        )
        self.head = nn.Linear(4, 5)

    def forward(self, images):
        x = self.root(images)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def torch_cnn():
    """The CNN in PyTorch, of fixed weights."""
    torch.manual_seed(0)
    return TorchCnn().eval()


def function():
    """A function from images to tokens, on a grid that it does not declare."""
    vit = tiny("vit")

    def features(images):
        taps = vit.intermediates(images)
        return {"first": taps["block00/mlp/sum"], "second": taps["block01/mlp/sum"]}

    features.input_shape = (None, *SHAPE)
    return features


def submodel():
    """A submodel of a ViT."""
    return vit_tf.submodel(tiny("vit", class_names=NAMES), "block*/mlp/sum")


def foreign_submodel():
    """A submodel of a model of another origin."""
    return vit_tf.submodel(functional_cnn(), "add*")


WHOLE = {
    "vit": lambda: tiny("vit", class_names=NAMES),
    "bit": lambda: tiny("bit small"),
    "mixer": lambda: tiny("mixer"),
    "functional cnn": functional_cnn,
    "functional vit": lambda: functional_vit(num_blocks=2, dim=8, size=16),
    "subclassed": subclassed,
    "application": application,
    "keras_hub": keras_hub_vit,
    "timm": timm_vit,
    "timm gap": lambda: timm_vit(global_pool="avg", class_token=False),
    "torch cnn": torch_cnn,
}
# What their user chose: a call reads all of these layers.
PARTS = {"function": function, "submodel": submodel, "foreign submodel": foreign_submodel}
SAVED = "SavedModel"


@dataclass
class Surfaces:
    """A model as each part of the package opens it."""

    name: str
    model: Any
    folder: Any

    @cached_property
    def facts(self):
        """What a call knows about the model."""
        return as_features(self.model).facts

    @cached_property
    def pixels(self):
        """8-bit images of the model's size, with labels."""
        size = self.facts.image_size or SHAPE[:2]
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (COUNT, *size, 3)).astype(np.uint8)
        return images, rng.integers(5, size=COUNT)

    @cached_property
    def images(self):
        """Batches for a call: 8-bit images where the preprocessing is known, floats elsewhere."""
        pixels, labels = self.pixels
        if self.facts.preprocessing is None:
            pixels = pixels.astype(np.float32) / 127.5 - 1
        return tf.data.Dataset.from_tensor_slices((pixels, labels)).batch(BATCH)

    @cached_property
    def opened(self):
        """The model as a report opens it."""
        model = open_model(self.model)
        return LoadedModel(self.name, model, facts_of(model).expected_images)

    @cached_property
    def data(self):
        """The images of a report, with values in [-1, 1]."""
        framing = shared_framing([self.opened.expects], self.pixels[0].shape[1:3])
        batches = tf.data.Dataset.from_tensor_slices(self.pixels).batch(BATCH)
        return make_data(as_images(batches, framing), None, None, {})

    @cached_property
    def study(self):
        """The model of a report, without its accuracy."""
        return study_model(self.opened, next(iter(self.data.few))[0][:3].numpy())[0]

    @cached_property
    def subject(self):
        """The model of the explorer."""
        options = {"preprocessing": None, "taps": (), "patch_size": None, "prefix": None}
        size = None if self.facts.expected_images.size else SHAPE[0]
        pictures = list(self.pixels[0][:2] if size is None else self.pixels[0][:2, :size, :size])
        options |= {"image_size": size, "samples": 1, "noise": 0.1}
        return open_subject(self.name, open_model(self.model), pictures, **options)[1]


@pytest.fixture(scope="module")
def surfaces(request, tmp_path_factory):
    """The surfaces of a model of a kind."""
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("model")
    if request.param == SAVED:
        submodel().export(folder / "saved", verbose=False)
        model = vit_tf.load(folder / "saved")
    else:
        model = (WHOLE | PARTS)[request.param]()
    return Surfaces(request.param, model, folder)


QUICK = ("functional cnn", "timm", "torch cnn", *PARTS, SAVED)
# The first is functional as the small CNN; the second differs from the ViT of timm in the tokens
# that its head reads, which has a test of its own.
LIKE_OTHERS = ("application", "timm gap")
# Its layers are found in a way of its own, and computed as those of other functional models.
FOUND_ONLY = (*LIKE_OTHERS, "keras_hub")


def kinds(names, long=LIKE_OTHERS):
    """Decorator for tests of kinds of models, of which those that take longer are slow."""
    marks = dict.fromkeys(QUICK, ()) | dict.fromkeys(long, pytest.mark.long)
    marked = [pytest.param(name, marks=marks.get(name, pytest.mark.slow)) for name in names]
    return pytest.mark.parametrize("surfaces", marked, indirect=True)


EVERY = (*WHOLE, *PARTS, SAVED)
whole_models, all_models = kinds(WHOLE), kinds(EVERY)


def layers_or_none(read, kind):
    """The layers that are read, or None where there are none."""
    try:
        return list(read(kind)) or None
    except ValueError:
        return None


@whole_models
def test_each_kind_of_layers_is_the_same(surfaces):
    for kind in KINDS:
        called = layers_or_none(
            lambda kind: as_features(surfaces.model).select_kind(kind).facts.layers, kind
        )
        for opened in (surfaces.study, surfaces.subject.model):
            assert layers_or_none(opened.layers, kind) == called, kind


@all_models
def test_each_fact_is_the_same(surfaces):
    called = surfaces.facts
    grid = observed_grid(as_features(surfaces.model), np.float32(surfaces.pixels[0]))
    assert grid is not None
    assert surfaces.opened.expects == called.expected_images
    for opened in (surfaces.study, surfaces.subject.model):
        for name in FACTS:
            assert getattr(opened.features.facts, name) == getattr(called, name), name
        assert opened.grid == grid


@all_models
def test_commands_expect_the_images_that_calls_prepare(surfaces):
    options = argparse.Namespace(mean=None, std=None, range=None)
    preprocessing, origin, is_assumed = common.expected_images(options, open_model(surfaces.model))
    assert preprocessing == surfaces.facts.expected_images
    assert is_assumed == (surfaces.facts.preprocessing is None)
    assert origin.startswith("assumed: ") == is_assumed


@whole_models
def test_the_class_scores_are_the_same(surfaces):
    called = analysis.features_of(surfaces.model, "scores").facts.scores
    for opened in (surfaces.study, surfaces.subject.model):
        assert opened.features.facts.scores == called
        assert opened.require_scores() == called.layer


def figure_of(surfaces, number):
    """The result of a figure of Raghu et al., as a report measures it; None if it has none."""
    pictures, _ = plan_pictures(lookup_figures([number]), [surfaces.study], surfaces.data)
    wanted = [m for picture in pictures for m in picture.measurements.values()]
    results, problems = measure_all(wanted, surfaces.data, surfaces.folder / "results")
    assert not problems
    return next(iter(results.values()), None)


@kinds(EVERY, long=FOUND_ONLY)
def test_cka_is_the_same_in_calls_reports_and_records(surfaces, request):
    if surfaces.name not in QUICK:  # as the others, of which some are computed in graphs
        request.getfixturevalue("without_graphs")
    # The figure shows layers inside of blocks too, where a model has them.
    detail = "sublayers" if surfaces.name in WHOLE else None
    called = analysis.cka(surfaces.model, surfaces.images, detail=detail)
    reported = figure_of(surfaces, "1")
    assert list(reported.layer_x.values) == list(called.layer_x.values)
    np.testing.assert_allclose(reported["cka"], called["cka"], atol=1e-5)
    if isinstance(surfaces.model, keras.Model):
        recorder = analysis.Recorder({"cka": partial(analysis.cka, detail=detail)}, surfaces.images)
        recorder.set_model(surfaces.model)
        recorder.on_train_begin()
        recorder.on_epoch_begin(0)
        recorded = recorder.results["cka"].sel(epoch=0)
        np.testing.assert_array_equal(recorded["cka"], called["cka"])


@kinds(WHOLE, long=FOUND_ONLY)
def test_attention_distance_is_the_same_in_calls_and_reports(surfaces):
    if layers_or_none(surfaces.study.layers, "attention") is None:
        with pytest.raises(ValueError, match="Attention weights not found"):
            analysis.attention_distance(surfaces.model, surfaces.images)
        with pytest.raises(NotApplicable):
            surfaces.study.require_attention()
        return
    called = analysis.attention_distance(surfaces.model, surfaces.images)
    reported = figure_of(surfaces, "3")
    assert list(reported.layer.values) == list(called.layer.values)
    np.testing.assert_allclose(reported.values, called.values, rtol=1e-4)


@kinds(WHOLE, long=FOUND_ONLY)
def test_the_accuracy_is_that_of_the_scores(surfaces, tmp_path):
    (model, *_), _, _ = prepare_models([surfaces.opened], surfaces.data, tmp_path, NAMES, copies=0)
    called = analysis.features_of(surfaces.model, "scores")
    layer = called.facts.scores.layer
    images = as_images(surfaces.images, called.facts.preprocessing)
    scores = np.concatenate([called(batch)[layer] for batch, _ in images])
    correct = scores.argmax(axis=1) == surfaces.pixels[1]
    np.testing.assert_array_equal(model.correct, correct)
    if isinstance(surfaces.model, keras.Model):
        score = class_scores_of(surfaces.model)
        evaluated = np.concatenate([score(batch) for batch, _ in images])
        np.testing.assert_array_equal(evaluated.argmax(axis=1) == surfaces.pixels[1], correct)


@pytest.mark.parametrize(
    ("options", "pooled"), [({}, (0,)), ({"global_pool": "avg"}, (1, 2, 3, 4, 5, 6))]
)
def test_the_explorer_shows_the_tokens_that_the_head_of_a_module_reads(options, pooled, tmp_path):
    surfaces = Surfaces("timm", timm_vit(**options), tmp_path)
    called = analysis.features_of(surfaces.model, "class_attention")
    assert called.facts.pooled_tokens == pooled
    assert surfaces.subject.pooled_tokens == pooled


@whole_models
def test_the_pooled_tokens_are_the_same(surfaces):
    called = surfaces.facts.pooled_tokens
    assert surfaces.study.features.facts.pooled_tokens == called
    if isinstance(surfaces.model, keras.Model):
        assert surfaces.subject.model.features.facts.pooled_tokens == called


def test_the_explorer_names_the_classes_of_a_module_as_a_call_does(tmp_path):
    surfaces = Surfaces("torch", torch_cnn(), tmp_path)
    surfaces.model.config = SimpleNamespace(id2label=dict(enumerate(NAMES)))
    assert tuple(surfaces.subject.model.features.facts.class_names) == NAMES
    assert tuple(facts_of(surfaces.model).class_names) == NAMES


@pytest.mark.filterwarnings("ignore:'logits' of")
def test_probabilities_of_a_function_are_no_scores_for_calls_and_the_explorer(tmp_path):
    vit = tiny("vit")

    def features(images):
        taps = vit.intermediates(images)
        probabilities = keras.ops.softmax(taps["logits"])
        return {"last": taps["block01/mlp/sum"], "logits": probabilities}

    features.input_shape = (None, *SHAPE)
    surfaces = Surfaces("function", features, tmp_path)
    images = surfaces.subject.images
    called = as_features(features).read_scores(None, lambda: images).facts.scores
    for opened in (surfaces.study, surfaces.subject.model):
        assert opened.features.facts.scores == called
    shares = np.exp(surfaces.subject.scores.values)
    shares /= shares.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, features(images)["logits"], atol=1e-5)


def test_the_commands_open_a_model_of_timm_as_a_call_does(monkeypatch):
    monkeypatch.setattr(timm_names, "open_timm", lambda source: timm_vit())
    options = analyze.parse(["timm:tiny", "--data", "digits"])
    (opened,), _, images = analyze.open_models(options)
    called = as_features(timm_vit()).facts
    assert facts_of(opened.model).layers == called.layers
    assert opened.expects == called.expected_images
    assert images.size == called.image_size
    assert opened.digest == as_features(timm_vit()).digest()
