"""Interventions beside the same models with other weights, other runs and runs one by one."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import tiny

import vit_tf
from vit_tf import edits, intervene, submodel
from vit_tf.features.attention_weights import attention_layers
from vit_tf.features.edits import run_interventions

HEADS = 2
SLOW = pytest.mark.slow


def filled(model, seed=0):
    """A model with random weights everywhere: new heads are zero, as biases are."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(np.asarray(weight) + rng.normal(0, 0.3, weight.shape))
    return model


# One of each serves all tests, none of which leaves other weights.
@functools.cache
def our_vit():
    return filled(tiny("vit", (16, 16, 3), registers=1))


@functools.cache
def of_keras_hub():
    pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    from keras_hub.models import ViTBackbone

    sizes = {"num_layers": 2, "num_heads": HEADS, "hidden_dim": 8, "mlp_dim": 16, "patch_size": 8}
    backbone = ViTBackbone((16, 16, 3), **sizes)
    scores = keras.layers.Dense(3, name="scores")(backbone.output[:, 0])
    return filled(keras.Model(backbone.input, scores))


class OwnModel(keras.Model):
    """A user's model, subclassed, around two attention layers of Keras'."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.patches = keras.layers.Conv2D(8, 8, 8, name="patches")
        self.flat = keras.layers.Reshape((4, 8))
        self.layers_of_attention = [
            keras.layers.MultiHeadAttention(HEADS, 4, name=f"attention{i}") for i in range(2)
        ]
        self.pool = keras.layers.GlobalAveragePooling1D()
        self.scores = keras.layers.Dense(3, name="scores")

    def call(self, images):
        x = self.flat(self.patches(images))
        for attention in self.layers_of_attention:
            x = x + keras.ops.tanh(attention(x, x))
        return self.scores(self.pool(x))


@functools.cache
def of_a_user():
    model = OwnModel()
    model(np.zeros((1, 16, 16, 3), "float32"))
    return filled(model)


def batch(seed=1, size=4):
    return np.random.default_rng(seed).uniform(-1, 1, (size, 16, 16, 3)).astype("float32")


def heads_of(model):
    """The tap with the heads of the second attention layer, and the kernel that they go through."""
    if isinstance(model, vit_tf.ViT):
        return "block01/attention/heads", model.blocks[1].out.kernel
    layers = attention_layers(model)
    path = list(layers)[1]
    return f"{path}/value", layers[path].output_dense.kernel


OTHERS = (our_vit, *(pytest.param(make, marks=SLOW) for make in (of_keras_hub, of_a_user)))
PARTS = {"layer_scale": 0.5, "activation": "swiglu"}
KINDS = {"hybrid": PARTS | {"stem_units": (1,), "patch_size": 2}, "bit small": {"units": (2,)}}
KINDS |= {"deit": {"epsilon": 1e-6}}
KINDS |= {"mixer": {}, "beit": {}, "clip": {}, "siglip": {}}


@pytest.mark.parametrize(
    "name", [n if n in ("mixer", "clip") else pytest.param(n, marks=SLOW) for n in KINDS]
)
def test_an_edit_at_any_tap_changes_what_follows_and_nothing_before(name, rng):
    layers = {} if name == "bit small" else {"num_layers": 1}
    model, images = filled(tiny(name, (16, 16, 3), **KINDS[name], **layers)), batch(size=2)
    features = submodel(model, "*")
    plain = {tap: value.numpy() for tap, value in features(images).items()}
    for index, tap in enumerate(model.taps):
        noise = rng.normal(0, 1, plain[tap].shape).astype("float32")
        if tap.endswith("/weights"):
            noise = abs(noise)
        actual = intervene(features, {tap: lambda x, noise=noise: x + noise}, "*")(images)
        for before in model.taps[:index]:
            assert np.array_equal(actual[before], plain[before]), (tap, before)
        np.testing.assert_allclose(actual[tap], plain[tap] + noise, atol=1e-5)
        assert np.abs(actual["logits"] - plain["logits"]).max() > 1e-4, tap


@pytest.mark.parametrize("make", [our_vit, pytest.param(of_keras_hub, marks=SLOW), of_a_user])
def test_a_head_set_to_zero_is_one_with_weights_of_zero(make):
    model, images = make(), batch()
    tap, kernel = heads_of(model)
    features = intervene(model, {tap: edits.head(1, edits.zero)})
    (actual,) = features(images).values()
    (compiled,) = tf.function(features, autograph=False)(tf.constant(images)).values()
    intact = model(images)
    values = kernel.numpy()
    by_head = values.reshape(HEADS, -1, values.shape[-1]).copy()
    by_head[1] = 0
    graph = tf.function(lambda x: model(x), autograph=False)  # it fuses and rounds alike
    kernel.assign(by_head.reshape(values.shape))
    try:
        expected, expected_compiled = model(images), graph(tf.constant(images))
    finally:
        kernel.assign(values)  # other tests use the model
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(compiled, expected_compiled, rtol=1e-6, atol=1e-6)
    assert np.abs(actual - intact).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("make", [our_vit, of_keras_hub, of_a_user])
def test_no_edit_and_edits_that_change_nothing_change_no_bit(make):
    model, images = make(), tf.constant(batch())
    tap, _ = heads_of(model)
    plain = submodel(model, "*")
    last = plain.taps[-1]
    compiled = tf.function(lambda x: {last: plain(x)[last]}, autograph=False)(images)[last]
    for edited in ({}, {tap: edits.scaled(1)}, {"*": edits.where(False, edits.zero)}):
        features = intervene(plain, edited)
        np.testing.assert_array_equal(features(images)[last], model(images))
        actual = tf.function(features, autograph=False)(images)[last]
        np.testing.assert_array_equal(actual, compiled)


@pytest.mark.parametrize("make", OTHERS)
def test_values_of_another_run_make_the_other_run(make):
    model, images, other = make(), batch(1), batch(2)
    tap, _ = heads_of(model)
    features = submodel(model, "*")
    values = features(other)
    patched = {t: edits.constant(values[t]) for t in features.taps}
    actual = intervene(features, patched, "*")(images)
    for t in features.taps:
        np.testing.assert_array_equal(actual[t], values[t])
    last = features.taps[-1]
    if make is our_vit:  # one tap through which everything goes
        alone = intervene(features, {"block00/mlp/sum": patched["block00/mlp/sum"]})(images)
        np.testing.assert_array_equal(alone[last], values[last])
    actual = intervene(features, {tap: patched[tap]})(images)[last]
    assert np.abs(actual - values[last]).max() > 1e-3
    assert np.abs(actual - model(images)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("make", [our_vit, of_keras_hub, of_a_user])
def test_replicas_run_with_edits(make):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = make.__wrapped__()
    tap, _ = heads_of(model)
    features = intervene(model, {tap: edits.head(0, edits.zero)})
    (name,) = features.taps
    images = batch(size=4)
    halves = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(np.split(images, 2)[context.replica_id_in_sync_group])
    )
    run = tf.function(lambda x: strategy.run(lambda y: features(y)[name], (x,)), autograph=False)
    actual = np.concatenate(strategy.experimental_local_results(run(halves)))
    # Graphs of two images beside four at once.
    np.testing.assert_allclose(actual, features(images)[name], rtol=1e-5, atol=1e-5)
    assert np.abs(actual - model(images)).max() > 1e-4


@pytest.mark.parametrize(
    ("make", "max_runs"),
    [
        (our_vit, 128),
        pytest.param(our_vit, 2, marks=SLOW),
        pytest.param(of_keras_hub, 128, marks=SLOW),
    ],
)
def test_many_runs_at_once_are_those_one_by_one(make, max_runs):
    model, images = make(), batch()
    tap_names = submodel(model, "*").taps
    taps = [tap for tap in tap_names if tap.endswith(("/heads", "/value", "mlp/sum"))]
    zeroed = [{tap: edits.zero} for tap in reversed(taps)]
    two = {taps[0]: edits.scaled(2), taps[-1]: edits.scaled(0.5)}
    sums = [tap for tap in taps if tap.endswith("mlp/sum")]
    ends = {sums[0]: edits.scaled(2), taps[-1]: edits.zero} if sums else two
    interventions = [*zeroed, {}, two, ends, {taps[0]: edits.resampled()}]
    features = submodel(model, taps, tap_names[-1])
    last = features.taps[-1]
    intact, actual = tf.function(
        lambda x: run_interventions(features, interventions, last, x, max_runs), autograph=False
    )(tf.constant(images))
    assert list(intact) == list(features.taps)
    np.testing.assert_allclose(intact[last], model(images), rtol=1e-5, atol=1e-5)
    assert len(actual) == len(interventions)
    for value, edited in zip(actual, interventions, strict=True):
        alone = intervene(features, edited, last)(images)[last]
        np.testing.assert_allclose(value, alone, rtol=1e-5, atol=1e-5)


def test_a_run_with_an_edit_of_no_tap_raises():
    features = submodel(our_vit(), "block00/mlp/sum", "logits")
    runs = [{"block00/mlp/sum": edits.zero}, {"block07/mlp/sum": edits.zero}]
    with pytest.raises(ValueError, match=r"Unknown layer: 'block07/mlp/sum'"):
        run_interventions(features, runs, "logits", batch())


def test_edits_are_what_they_say(rng):
    value = tf.constant(rng.normal(size=(3, 4, 2, 5)).astype("float32"))
    np.testing.assert_array_equal(edits.zero(value), 0 * value)
    np.testing.assert_array_equal(edits.scaled(3)(value), 3 * value)
    mean = value.numpy().mean(axis=0)
    np.testing.assert_array_equal(edits.constant(mean)(value), np.stack([mean] * 3))
    np.testing.assert_array_equal(edits.resampled()(value), value.numpy()[[2, 0, 1]])
    actual = edits.tokens([0, 2], edits.head(1, edits.zero))(value).numpy()
    # The inner edit counts at the tokens only.
    expected = value.numpy().copy()
    expected[:, [0, 2], 1] = 0
    np.testing.assert_array_equal(actual, expected)
    with pytest.raises(
        ValueError,
        match=r"axis 2, from 0 to its size - 1. Received: indices=2 for a layer output of",
    ):
        edits.head(2, edits.zero)(value)
    with pytest.raises(ValueError, match="Received: shift=3 in a batch of 3"):
        edits.resampled(3)(value)


def test_sets_of_tokens():
    model = tiny("deit", (16, 16, 3), registers=2, distillation="token")
    sets = {name: edits.token_set(model, name) for name in ("cls", "registers", "spatial", "all")}
    assert sets == {
        "cls": [0],
        "registers": [2, 3],
        "spatial": [4, 5, 6, 7],
        "all": list(range(8)),
    }
    assert edits.token_set(vit_tf.TokenGrid(1, 2, 3, 8), "registers") == [1, 2]
    with pytest.raises(ValueError, match=r"Unknown which: 'patches'"):
        edits.token_set(model, "patches")
    with pytest.raises(ValueError, match="has no 'cls' tokens"):
        edits.token_set(vit_tf.TokenGrid(1, 2, 0, 8), "cls")


@pytest.mark.parametrize(
    ("edited", "message"),
    [
        ({"block07/*": edits.zero}, "Unknown layer or pattern.*'block07/"),
        ({"block00/mlp/sum": 0}, "Expected edits to be a dict.*Received: {'block00/mlp/sum': 0}"),
        ([edits.zero], "Expected edits to be a dict"),
        ({"block00/mlp/sum": lambda x: x[:, :1]}, r"return shape \(4, 6, 8\), float32. Received: "),
        ({"block00/mlp/sum": lambda x: tf.cast(x, tf.float64)}, r"\(4, 6, 8\), float64"),
        ({"pooled": lambda x: None}, "Expected the edit of 'pooled' .* Received: NoneType"),
    ],
)
def test_mistakes_are_reported(edited, message):
    with pytest.raises(ValueError, match=message):
        intervene(our_vit(), edited)(batch())


def test_what_is_no_model_and_no_tap_is_reported():
    with pytest.raises(ValueError, match=r"Expected model to be a keras.Model. Received: function"):
        intervene(batch, {})
    with pytest.raises(ValueError, match="Unknown layer or pattern"):
        intervene(our_vit(), {}, "nothing")
