"""Training steps and analysis steps under XLA give what they give without it.

A TPU runs what XLA compiles only, with every size known: so do these tests, on the CPU.
"""

import functools
import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import randomize

from vit_tf import BEiT, BiT, CLIPViT, HybridViT, Mixer, Recipe, ViT, analysis, submodel
from vit_tf.analysis.flow.skips import skip_ratio
from vit_tf.analysis.heads.attention_distance import attention_distance
from vit_tf.analysis.heads.mean_attention import mean_attention
from vit_tf.analysis.probes.ridge import Probe, few_shot, ridge_probe, score_statistic
from vit_tf.analysis.similarity.cka import cka
from vit_tf.analysis.similarity.heads import head_similarity
from vit_tf.analysis.similarity.localization import localization

SHAPE, CLASSES = (16, 16, 3), 3
COMMON = {"image_shape": SHAPE, "num_layers": 1, "hidden_dim": 8, "num_classes": CLASSES}
VIT = COMMON | {"patch_size": 8, "num_heads": 2, "mlp_dim": 16}
MODELS = {
    "vit": (ViT, VIT),
    "hybrid gap": (
        HybridViT,
        VIT | {"patch_size": 2, "stem_units": (1,), "pooling": "gap", "representation_dim": 4},
    ),
    "clip": (CLIPViT, VIT | {"projection_dim": 4}),
    "beit": (BEiT, VIT),
    "mixer": (Mixer, COMMON | {"patch_size": 8, "tokens_mlp_dim": 8, "channels_mlp_dim": 16}),
    "bit": (
        BiT,
        {"image_shape": SHAPE, "units": (1,), "width_factor": 0.5, "num_classes": CLASSES},
    ),
}

# XLA gives the result of these a size that only a run tells, which the CPU accepts.
SIZES_OF_VALUES = {"Where", "Unique", "UniqueV2", "UniqueWithCounts", "DynamicPartition"}


def batch():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(8, *SHAPE)).astype("float32")
    return images, np.arange(8, dtype="int32") % CLASSES


@functools.cache
def trained(name, xla, **options):
    """A model after two steps of a recipe on one batch, and the loss of each.

    Without XLA the steps run as Python runs them, for which no graph is made.
    """
    keras.utils.set_random_seed(1)
    make, sizes = MODELS[name]
    model = make(**sizes, **options)
    randomize(model)
    recipe = Recipe(epochs=2, learning_rate=1e-3, warmup_epochs=0, ema=0.9)
    recipe.compile(model, steps_per_epoch=1)
    model.jit_compile, model.run_eagerly = xla, not xla
    return model, [float(model.train_on_batch(*batch())[0]) for _ in range(2)]


def close(actual, expected, rtol=1e-4):
    """Compares structures of tensors, each up to rounding of its own largest value."""
    tf.nest.assert_same_structure(actual, expected)
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        # What is counted, such as queries left out, may be none.
        assert a.dtype == b.dtype and (np.abs(b).max() > 0 or b.dtype.kind == "i")
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


def compiled(step, *arguments):
    """What a step gives under XLA, on arguments of known shapes."""
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in arguments]
    function = tf.function(step, jit_compile=True, autograph=False, input_signature=specs)
    assert not SIZES_OF_VALUES & ops_of(function.get_concrete_function())
    return function(*map(tf.constant, arguments))


def ops_of(function):
    """The types of all operations of a compiled function."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
    return {node.op for node in nodes}


def compare(step, *arguments):
    """Checks a step under XLA against the same step without."""
    plain = tf.function(step, autograph=False)(*map(tf.constant, arguments))
    close(compiled(step, *arguments), plain)


def by_python(x):
    """The sum over all but the first axis, by a call of Python, which no device can compile."""
    return tf.ensure_shape(tf.numpy_function(lambda x: x.sum((1, 2, 3)), [x], x.dtype), [8])


@pytest.mark.slow
def test_what_xla_cannot_compile_raises():
    images, _ = batch()
    with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations"):
        compiled(by_python, images)
    with pytest.raises(AssertionError, match="Unique"):
        compiled(lambda x: tf.unique(tf.reshape(x, (-1,)))[0], images)
    inputs = keras.Input(SHAPE)
    summed = keras.layers.Lambda(by_python, output_shape=())(inputs)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(summed[:, None]))
    Recipe(epochs=1).compile(model, steps_per_epoch=1)
    model.jit_compile = True
    with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations"):
        model.train_on_batch(*batch())


# A hybrid is made of the layers of a BiT and a ViT, a CLIP of those of a ViT.
ALIKE = ("hybrid gap", "clip")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in ALIKE else pytest.mark.slow)
        for name in MODELS
    ],
)
def test_training_equals_that_without_xla(name):
    expected, losses = trained(name, False)
    actual, under_xla = trained(name, True)
    np.testing.assert_allclose(under_xla, losses, rtol=1e-5)
    assert losses[1] != losses[0]
    # Weights, moments and averages of weights; Adam magnifies rounding where gradients vanish.
    pairs = zip(actual.variables, expected.variables, strict=True)
    moments = zip(actual.optimizer.variables, expected.optimizer.variables, strict=True)
    for a, b in (*pairs, *moments):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-6, err_msg=a.path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "bit"])
def test_bfloat16_under_xla_follows_float32(name):
    expected, losses = trained(name, False)
    actual, under_xla = trained(name, True, dtype="mixed_bfloat16")
    np.testing.assert_allclose(under_xla, losses, rtol=0.03)
    for a, b in zip(actual.weights, expected.weights, strict=True):
        # Two steps of Adam, each of at most the learning rate, may go either way.
        np.testing.assert_allclose(a, b, rtol=0, atol=4.1e-3, err_msg=a.path)
    a, b = (flat_momentum(model) for model in (actual, expected))
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.99


def flat_momentum(model):
    moments = [v for v in model.optimizer.variables if v.path.endswith("_momentum")]
    assert len(moments) == len(model.trainable_variables)
    return np.concatenate([np.ravel(v) for v in moments])


@pytest.mark.slow
def test_dropout_under_xla():
    """XLA draws other numbers than TensorFlow from one seed, but as many."""
    model, losses = trained("vit", True, dropout_rate=0.5)
    _, without = trained("vit", False)
    assert np.isfinite(losses).all() and abs(losses[0] - without[0]) > 1e-3
    draws = [v.numpy()[1] for v in model.variables if "seed" in v.path]
    assert draws == [2, 6]  # one after the embedding and three in the block, in each step

    def taps(images):
        return [model.intermediates(images, training=on)["embedding"] for on in (True, False)]

    images = np.random.default_rng(0).normal(size=(512, *SHAPE)).astype("float32")
    dropped, kept = compiled(taps, images)
    zero = dropped == 0
    assert abs(np.mean(zero) - 0.5) < 0.02
    np.testing.assert_allclose(dropped, np.where(zero, 0, 2 * kept), rtol=1e-5, atol=1e-6)


@functools.cache
def features(*patterns):
    keras.utils.set_random_seed(0)
    model = ViT(**VIT | {"image_shape": (16, 24, 3)})
    randomize(model)
    return submodel(model, *patterns)


def images_and_labels():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(8, 16, 24, 3)).astype("float32")
    return images, np.arange(8, dtype="int32") % CLASSES


def probe(layers):
    """A probe of random weights, of the mean of 8 channels, at two strengths."""
    rng = np.random.default_rng(2)
    weights = {tap: (rng.normal(size=(1, 2, 8, 3)), rng.normal(size=(1, 2, 3))) for tap in layers}
    return Probe(weights, np.array([0.1, 1.0]), "all", CLASSES, 8)


def pixels(images):
    return {"pixels": images[:, ::4, ::4]}


SUMS, SKIPS, HEADS = ("block*/sum",), ("block*/skip", "block*/branch"), ("*/weights", "*/heads")
STATISTICS = {
    "cka": (SUMS, lambda f: cka.statistic(f)),
    "cka of two": (SUMS, lambda f: cka.statistic(f, pixels)),
    "attention": (("*/weights",), attention_distance.statistic),
    "mean attention": (("*/weights",), mean_attention.statistic),
    "skips": (SKIPS, skip_ratio.statistic),
    "localization": (SUMS, localization.statistic),
    "heads": (HEADS, lambda f: head_similarity.statistic(f, pixels)),
    # 8 images: the 8 channels of a sum are summed over them, 16 hidden units are kept.
    "probe": (
        (*SUMS, "*/hidden"),
        lambda f: ridge_probe.statistic(f, images_and_labels(), CLASSES, tokens="each"),
    ),
    "score": (SUMS, lambda f: score_statistic(f, probe(f.taps))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_equal_those_without_xla(name):
    patterns, make = STATISTICS[name]
    of = features(*patterns)
    statistic = make(of)
    second = name in ("cka of two", "heads")

    def step(images, labels):
        taps = [of(images), pixels(images)][: 1 + second]
        state = [] if statistic.state is None else [statistic.state]
        return statistic.step(*state, images, *[labels][: statistic.with_labels], *taps)

    compare(step, *images_and_labels())


def step_of(monkeypatch, module, engine, analyse):
    """The step that an analysis hands to its engine, a function of `stream`."""

    class Seen(Exception):
        pass

    def look(step, *_, **__):
        raise Seen(step)

    module = importlib.import_module(f"vit_tf.analysis.{module}")
    monkeypatch.setattr(module, engine, look)
    with pytest.raises(Seen) as seen:
        analyse()
    return seen.value.args[0]


@pytest.mark.slow
@pytest.mark.parametrize("channels", ["sum", "all", 3])
def test_receptive_fields_equal_those_without_xla(monkeypatch, channels):
    images, _ = images_and_labels()
    # Layers of 8 and of 16 channels, so that some take fewer gradients than others.
    of = features("block00/mlp/hidden", "block00/mlp/sum", "norm")
    statistic = step_of(
        monkeypatch,
        "flow.receptive_field",
        "evaluate",
        lambda: analysis.receptive_field(of, images, channels),
    )
    compare(statistic.step, images)


@pytest.mark.slow
def test_few_shot_features_equal_those_without_xla(monkeypatch):
    images, labels = images_and_labels()
    of = features(*SUMS)
    statistic = step_of(
        monkeypatch, "probes.ridge", "evaluate", lambda: few_shot(of, [], (images, labels), CLASSES)
    )
    compare(lambda images, labels: statistic.step(images, labels, of(images)), images, labels)
