"""Repeated calls share one graph, until the model changes."""

from collections.abc import Hashable
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from keras import layers
from oracles import randomize
from tensorflow.python.framework.func_graph import FuncGraph
from tiny_models import tiny_vit

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine import stream, traces
from vit_tf.features import keras_features
from vit_tf.features.submodels import ModelTaps, describe_taps

SLOW = pytest.mark.slow
IMAGES = np.random.default_rng(0).uniform(-1, 1, (8, 16, 16, 3)).astype("float32")
LABELS = np.arange(8) % 3


@pytest.fixture(scope="module")
def vit() -> keras.Model:
    return tiny_vit(1)


@pytest.fixture
def traced(monkeypatch) -> list[str]:
    """Names of the graphs that are made of steps, as they are made."""
    names, init = [], FuncGraph.__init__

    def note(self, name, *args, **kwargs):
        names.append(name)
        init(self, name, *args, **kwargs)

    monkeypatch.setattr(FuncGraph, "__init__", note)
    return names


def field_of(model: keras.Model, images: np.ndarray, seed: int = 0) -> xr.DataArray:
    """The receptive field of one layer, whose gradient is cheaper to trace than that of all."""
    return analysis.receptive_field(model, images, 2, layers="block00/mlp/sum", seed=seed)


CALLS = {
    "cka": lambda m: analysis.cka(m, IMAGES).cka,
    "cka of two": lambda m: analysis.cka(m, IMAGES, m).cka,
    "distance": lambda m: analysis.attention_distance(m, IMAGES),
    "chosen layers": lambda m: analysis.skip_ratio(m, IMAGES, layers="block00/*").norm_ratio,
    "field": lambda m: field_of(m, IMAGES),
    "gradients": lambda m: analysis.input_gradients(m, IMAGES, classes=[1], samples=2),
    "rollout": lambda m: analysis.attention_rollout(m, IMAGES),
    "gradient attention": lambda m: analysis.gradient_attention(m, IMAGES, classes=[0]),
    "lens": lambda m: analysis.logit_lens(m, IMAGES),
    "heads": lambda m: analysis.head_ablation(m, (IMAGES, LABELS), replacement="zero").loss_change,
}


# What takes longest to trace.
LONG_CALLS = ("field", "gradients", "heads")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW if name in LONG_CALLS else ()) for name in CALLS]
)
def test_a_second_call_traces_nothing_and_gives_the_same(name, vit, traced):
    first = CALLS[name](vit)
    assert any("step" in graph for graph in traced)
    traced.clear()
    second = CALLS[name](vit)
    assert [graph for graph in traced if not graph.startswith("Dataset")] == []
    assert second.identical(first)


def test_a_call_compares_the_layers_of_a_model_once(vit, monkeypatch):
    compared, state_of = [], traces.state_of

    def note(model: keras.Model) -> Hashable:
        compared.append(model)
        return state_of(model)

    CALLS["distance"](vit)
    monkeypatch.setattr(traces, "state_of", note)
    CALLS["distance"](vit)
    assert len(compared) == 1 and compared[0] is vit


def test_other_arguments_images_and_weights_give_their_own_result():
    cnn, other = make_cnn(), make_cnn()

    def field(model: keras.Model, images: np.ndarray = IMAGES, seed: int = 0) -> xr.DataArray:
        return analysis.receptive_field(model, images, 2, layers="last", seed=seed)

    fresh = field(other)
    first = field(cnn)
    assert not np.allclose(first, field(cnn, seed=1))
    assert not np.allclose(first, field(cnn, IMAGES[::-1] ** 3))
    cnn.set_weights(other.get_weights())
    np.testing.assert_allclose(field(cnn), fresh, rtol=1e-5, atol=1e-9)


# Calls whose graphs are fed with what earlier passes made of the images x.
FED_CALLS = {
    "mean heads": lambda m, x: analysis.head_ablation(m, (x, LABELS), replacement="mean"),
    "mean tokens": lambda m, x: analysis.token_ablation(m, (x, LABELS), replacement="mean"),
    "patching": lambda m, x: analysis.activation_patching(m, (x[:4], x[4:]), tokens=[0, 1]),
    "stitching": lambda m, x: analysis.stitching(m, m, x, (IMAGES, LABELS), l2=0.1),
    "k-NN": lambda m, x: analysis.knn_accuracy(m, (IMAGES, LABELS), (x, LABELS), k=3).correct,
    "retrieval": lambda m, x: analysis.retrieval(m, (x, LABELS), IMAGES, [TRUTH] * len(x)),
    "ridge probe": lambda m, x: analysis.ridge_probe(m, (x, LABELS), (IMAGES, LABELS)).correct,
}
TRUTH = {"easy": np.array([2, 5]), "hard": np.array([3]), "junk": np.arange(0)}


@pytest.fixture(scope="module")
def twins() -> list[keras.Model]:
    """Models that share nothing and are equal, with other weights than zero."""
    models = [tiny_vit(1), tiny_vit(1)]
    for model in models:
        randomize(model, 0)
    return models


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "k-NN" else SLOW) for name in FED_CALLS]
)
def test_a_graph_that_is_fed_serves_other_values(name, twins, traced):
    """The first call's values must be neither those of the second nor remain in its graph."""
    model, twin = twins
    others = IMAGES[::-1] ** 3
    first = FED_CALLS[name](model, IMAGES)
    expected = FED_CALLS[name](twin, others)
    traced.clear()
    second = FED_CALLS[name](model, others)
    assert [graph for graph in traced if not graph.startswith("Dataset")] == []
    xr.testing.assert_identical(second.drop_attrs(), expected.drop_attrs())
    assert not second.equals(first)


@SLOW
def test_copies_are_fed_their_own_values_through_a_graph_of_an_earlier_call(copies):
    model, copy = copies
    features, of_copy = (analysis.features_of(m, "outputs") for m in copies)

    def statistic(read: keras.Model, images: np.ndarray) -> stream.Statistic:
        pooled = stream.evaluate(analysis.engine.pooled_statistic("all"), (images, LABELS), read)
        return analysis.knn_accuracy.statistic(read, pooled, 3, (2,))

    # In four batches: what is fed back from each of them differs between copies.
    train = tf.data.Dataset.from_tensor_slices((IMAGES**3, LABELS)).batch(2)
    stream.evaluate(statistic(features, IMAGES), train, features)  # whose graph is kept
    own, other = statistic(features, IMAGES[::-1]), statistic(of_copy, IMAGES[::-1])
    weights = list(zip(model.weights, copy.weights, strict=True))
    of_copies = [stream.Copy(), stream.Copy(weights, {"": other.state})]
    totals = stream.pass_of_copies({"": (own, features)}, train, of_copies)
    alone = [
        stream.one_pass({"": (replace(each, step=lambda *b, s=each.step: s(*b)), read)}, train)
        for each, read in ((own, features), (other, of_copy))
    ]
    for shared, expected in zip(totals, alone, strict=True):
        for layer, neighbours in expected[""]["merged"].items():
            ours = shared[""]["merged"][layer]
            np.testing.assert_array_equal(ours["similarity"], neighbours["similarity"])
    first = [next(iter(total[""]["merged"].values()))["similarity"] for total in totals]
    assert not np.allclose(*first)


def make_cnn() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(4, 3, activation="relu", name="conv")(inputs)
    x = layers.Conv2D(4, 3, name="last")(x)
    return keras.Model(inputs, layers.Dense(3, name="scores")(layers.GlobalMaxPooling2D()(x)))


def change_activation(model: keras.Model) -> None:
    model.get_layer("conv").activation = keras.activations.tanh


def change_setting(model: keras.Model) -> None:
    model.get_layer("last").dilation_rate = (2, 2)


class Shifted(layers.Layer):
    """Adds a number, or those of a list or an array, that are attributes."""

    def __init__(self, shift, **kwargs):
        super().__init__(**kwargs)
        self.shift = shift

    def call(self, x):
        return x * np.sum(np.asarray(self.shift))


def test_every_kind_of_attribute_counts_by_value():
    inputs = keras.Input((16, 16, 3))
    maps = layers.Conv2D(2, 3, name="conv")(inputs)
    # Python's hash of -1 is that of -2.
    shifted = [Shifted(-1.0, name="number"), Shifted([1, 2], name="list")]
    shifted.append(Shifted(np.ones(2), name="array"))
    model = keras.Model(inputs, [layer(maps) for layer in shifted])
    states = [traces.state_of(model)]
    shifted[0].shift = -2.0
    states.append(traces.state_of(model))
    shifted[1].shift.append(3)
    states.append(traces.state_of(model))
    shifted[2].shift[0] = 5
    states.append(traces.state_of(model))
    assert len(set(states)) == 4
    assert traces.state_of(model) == states[-1]


def test_operations_of_a_tensor_are_in_a_graph_once():
    """For each tensor and each option of their own, and outside of loops over other tensors."""
    made, constant = [], tf.constant([3.0, 4.0])

    @traces.once_per_graph
    def power(x, exponent):
        made.append(exponent)
        return x**exponent

    @tf.function(autograph=False)
    def powers(x, y):
        inside = tf.map_fn(lambda row: power(row, 2) + power(x, 2), x)
        return power(x, 2), power(x, 3), power(y, 2), power(x, 2), power(constant, 2), inside

    x, y = np.float32([2.0, 3.0]), np.float32([5.0, 7.0])
    values = powers(x, y)
    expected = x**2, x**3, y**2, x**2, constant**2, (x**2)[:, None] + x**2
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted)
    assert made == [2, 2, 2, 3, 2, 2]  # the first two in the loop, the last of the constant
    np.testing.assert_allclose(powers(x, y[:1])[2], 25.0)  # another graph
    np.testing.assert_allclose(power(constant, 2), [9, 16])  # of no graph


def test_statistics_made_of_one_another_keep_their_layers_apart(vit):
    first = analysis.residual_cka(vit, IMAGES)
    analysis.residual_cka(vit, IMAGES, site="mlp")
    assert analysis.residual_cka(vit, IMAGES).identical(first)


def test_features_that_a_user_changes_are_not_those_of_measurements(vit):
    distance = CALLS["distance"](vit)
    features = analysis.features_of(vit, "attention")
    features.facts = replace(features.facts, grid=vit_tf.TokenGrid(1, 4, 1, 4))
    assert CALLS["distance"](vit).identical(distance)


@pytest.mark.parametrize("change", [change_activation, pytest.param(change_setting, marks=SLOW)])
def test_a_changed_layer_is_traced_again(change):
    model = make_cnn()

    def read() -> np.ndarray:
        return analysis.cka(model, IMAGES, layers=["conv", "last"]).cka.values

    before = read()
    change(model)
    after = read()
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    change(twin)
    expected = analysis.cka(twin, IMAGES, layers=["conv", "last"]).cka.values
    assert not np.allclose(after, before, atol=1e-4)
    np.testing.assert_allclose(after, expected, atol=1e-5)


def test_features_of_other_layers_are_made_of_one_trace_until_the_model_changes(monkeypatch):
    model, described = make_cnn(), []

    def note(model: keras.Model) -> ModelTaps:
        described.append(model)
        return describe_taps(model)

    monkeypatch.setattr(keras_features, "describe_taps", note)
    for layer in ("conv", "last", "conv"):
        assert analysis.cka(model, IMAGES, layers=layer).layer_x.values == [layer]
    assert len(described) == 1
    change_setting(model)
    analysis.cka(model, IMAGES, layers="last")
    assert len(described) == 2
    assert analysis.features_of(model, layers="last")(IMAGES)["last"].shape == (8, 10, 10, 4)


def test_what_is_kept_is_neither_saved_nor_copied(vit, tmp_path):
    CALLS["cka"](vit)
    vit.save(tmp_path / "vit.keras")
    again = keras.models.load_model(tmp_path / "vit.keras")
    np.testing.assert_array_equal(again(IMAGES), vit(IMAGES))


def test_what_is_kept_is_bounded(vit):
    for seed in range(2 * traces.MAX_KEPT):
        traces.keep(vit, ("number", seed), lambda: object())
    single, _ = vars(vit)[traces.ATTRIBUTE]
    assert len(single.values) <= traces.MAX_KEPT


def test_a_call_inside_a_function_of_tensorflow_is_refused():
    @tf.function(autograph=False)
    def inside():
        return tf.constant(analysis.cka(lambda images: {"a": images}, np.eye(8)[None]).cka.values)

    with pytest.raises(ValueError, match=r"outside of a tf\.function"):
        inside()


@SLOW
def test_a_graph_serves_copies_with_other_weights(vit, traced):
    """Statistics of two models with a state, of which copies have others."""
    copy, bit = vit_tf.reinitialize(vit, 5), make_cnn()
    states = [{"factors": np.float32([factor, factor])} for factor in (2.0, 3.0)]

    def request(model, state):
        features = analysis.features_of(model, layers="block00/mlp/sum")

        def step(state, images, taps, others):
            (tokens,), (scores,) = taps.values(), others.values()
            total = tf.reduce_sum(tokens, axis=1)[:, :2] * state["factors"]
            return {"sum": tf.reduce_sum(total) + tf.reduce_sum(scores), "rows": total}

        statistic = analysis.engine.Statistic(step, lambda totals: totals, state=state)
        return {"": (statistic, features, analysis.features_of(bit, layers="scores"))}

    assert traces.differ_in_weights(vit, copy)
    requests = request(vit, states[0]), request(copy, states[1])
    alone = [analysis.engine.one_pass(each, IMAGES)[""] for each in requests]
    traced.clear()
    weights = list(zip(vit.weights, copy.weights, strict=True))
    of_copies = [stream.Copy(), stream.Copy(weights, {"": states[1]})]
    shared = stream.pass_of_copies(requests[0], IMAGES, of_copies)
    assert sum("step" in name for name in traced) == 1
    for totals, expected in zip(shared, alone, strict=True):
        np.testing.assert_array_equal(totals[""]["rows"], expected["rows"])
        assert totals[""]["sum"] == expected["sum"]
    assert not np.allclose(alone[0]["rows"], alone[1]["rows"], rtol=0.1)


@pytest.fixture(scope="module")
def copies() -> list[keras.Model]:
    """Models that differ in weights alone, none of which is zero."""
    models = [tiny_vit(1), tiny_vit(1)]
    for seed, model in enumerate(models):
        randomize(model, seed)
    return models


@SLOW
@pytest.mark.parametrize("name", ["field", "heads", "lens", "gradients"])
def test_copies_share_the_graphs_of_measurements_with_own_passes(name, copies, traced):
    counts, results = [], []
    alone = [CALLS[name](model) for model in copies]
    with traces.sharing_graphs():
        for model in copies:
            twin = tiny_vit(1)  # with which nothing is kept yet
            twin.set_weights(model.get_weights())
            traced.clear()
            results.append(CALLS[name](twin))
            counts.append(sum("step" in graph for graph in traced))
    assert counts == [1, 0]
    for result, expected in zip(results, alone, strict=True):
        np.testing.assert_array_equal(result, expected)
    assert not np.allclose(*results)


def make_normalized(mean: float) -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    layer = layers.Normalization(mean=mean, variance=1.0)
    return keras.Model(inputs, layers.Conv2D(2, 3)(layer(inputs)))


def test_graphs_serve_copies_whose_layers_read_only_weights(vit):
    narrow = vit_tf.ViT.from_config(vit.get_config() | {"num_classes": 4})
    assert not traces.differ_in_weights(vit, narrow)
    assert traces.differ_in_weights(vit, vit_tf.reinitialize(vit, 1))
    assert traces.differ_in_weights(make_cnn(), make_cnn())
    # The mean and the variance are tensors, which a graph holds as constants.
    assert not traces.differ_in_weights(make_normalized(0.0), make_normalized(1.0))
