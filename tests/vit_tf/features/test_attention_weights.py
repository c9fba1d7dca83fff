"""Attention weights of Keras' own layers, computed of their queries and keys."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from vit_tf import analysis, intervene, submodel
from vit_tf.features.attention_weights import (
    attention_layers,
    computed_weights,
    find_contradicted,
)
from vit_tf.features.conversion import features_of
from vit_tf.features.recorder import find_taps


class Masked(keras.layers.Layer):
    """Attention that looks at no later token, around a layer of Keras' own."""

    def __init__(self, causal, **kwargs):
        super().__init__(**kwargs)
        self.causal = causal
        self.attention = keras.layers.MultiHeadAttention(2, 3, name="attention")

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x):
        return self.attention(x, x, use_causal_mask=self.causal)


def model_of(causal):
    keras.utils.set_random_seed(0)
    x = images = keras.Input((4, 4, 3))
    x = keras.layers.Reshape((16, 3))(x)
    for index, masked in enumerate((False, causal)):
        x = Masked(masked, name=f"block{index}")(x)
    return keras.Model(images, x)


def weights_of(model):
    return list(computed_weights(model, find_taps(model)))


@pytest.mark.parametrize(
    ("causal", "strange"),
    [pytest.param(False, [], marks=pytest.mark.slow), (True, ["block1/attention/weights"])],
)
def test_a_layer_that_masks_is_found_out(causal, strange, rng):
    images = rng.normal(size=(2, 4, 4, 3)).astype("float32")
    model = model_of(causal)
    assert find_contradicted(model, weights_of(model), images) == strange


def test_a_layer_that_returns_its_weights_is_checked_too(rng):
    images = keras.Input((6, 3))
    layer = keras.layers.MultiHeadAttention(2, 3, name="both")
    output, _ = layer(images, images, return_attention_scores=True)
    model = keras.Model(images, output)
    assert weights_of(model) == ["both/weights"]
    assert find_contradicted(model, ["both/weights"]) == []


def test_a_model_without_such_layers():
    images = keras.Input((4, 4, 3))
    model = keras.Model(images, keras.layers.Flatten()(images), name="flat")
    assert weights_of(model) == []


def test_a_submodel_has_them_on_request(rng, tmp_path):
    model, images = model_of(False), rng.normal(size=(2, 4, 4, 3)).astype("float32")
    assert not any(tap.endswith("/weights") for tap in submodel(model, "*").taps)
    features = submodel(model, "block1/attention", "*/weights")
    names = ["block0/attention/weights", "block1/attention/weights", "block1/attention"]
    assert list(features.taps) == names
    actual = features(images)
    x = images.reshape(2, 16, 3)
    for path, layer in attention_layers(model).items():
        x, weights = layer(x, x, return_attention_scores=True)
        np.testing.assert_allclose(actual[f"{path}/weights"], weights, atol=1e-6)
    np.testing.assert_allclose(actual["block1/attention"], x, atol=1e-6)
    features.save(tmp_path / "weights.keras")
    again = keras.saving.load_model(tmp_path / "weights.keras", {"Masked": Masked})(images)
    for tap in names:
        np.testing.assert_allclose(again[tap], actual[tap], atol=1e-6)
    with pytest.raises(ValueError, match=r"'block/weights'.*block0/attention/weights"):
        submodel(model, "block/weights")


@pytest.mark.slow
def test_a_layer_may_be_called_weights(rng):
    """A path contains the name of the tap, and an own layer has it as its name."""
    images = x = keras.Input((6, 3))
    block = Masked(False, name="weights_net")
    x = keras.layers.Dense(3, name="weights")(block(x))
    x = keras.layers.Dense(3, name="value")(block(x))
    model, values = keras.Model(images, x), rng.normal(size=(2, 6, 3)).astype("float32")
    names = [f"weights_net/attention/weights{call}" for call in ("", "@2")]
    assert weights_of(model) == names
    assert find_contradicted(model, names, values) == []
    actual = submodel(model, "weights", "*/weights", "*/weights@2")(values)
    assert list(actual) == [names[0], "weights", names[1]]
    _, weights = block.attention(values, values, return_attention_scores=True)
    np.testing.assert_allclose(actual[names[0]], weights, atol=1e-6)
    _, weights = block.attention(*2 * [actual["weights"]], return_attention_scores=True)
    np.testing.assert_allclose(actual[names[1]], weights, atol=1e-6)


@pytest.mark.slow
def test_those_of_keras_hub(rng):
    keras_hub = pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12, "patch_size": 4}
    model = keras_hub.models.ViTBackbone(image_shape=(8, 12, 3), **sizes)
    images = rng.normal(size=(2, 8, 12, 3)).astype("float32")
    actual = submodel(model, "*/weights")(images)
    assert len(actual) == 2
    inside = submodel(model, "*/ln_1")(images)
    for (tap, weights), normalised in zip(actual.items(), inside.values(), strict=True):
        layer = attention_layers(model)[tap.removesuffix("/weights")]
        _, expected = layer(normalised, normalised, return_attention_scores=True)
        np.testing.assert_allclose(weights, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["causal", "given", "none"])
def test_weights_without_the_mask_of_the_model_come_with_a_warning(kind):
    x = images = keras.Input((6, 3))
    options = {"causal": {"use_causal_mask": True}, "none": {}, "given": {}}[kind]
    if kind == "given":
        options = {"attention_mask": np.tril(np.ones((1, 6, 6), bool))}
    layer = keras.layers.MultiHeadAttention(2, 3, name="attention")
    model = keras.Model(images, layer(x, x, **options))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        submodel(model, "attention/weights")
    messages = [
        str(warning.message) for warning in caught if "without the mask" in str(warning.message)
    ]
    assert len(messages) == (kind != "none")
    assert not messages or "attention/weights" in messages[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without the mask")
        submodel(model, "*")  # which has no weights


def test_the_masked_layer_is_named_and_not_the_others():
    with pytest.warns(UserWarning, match="without the mask") as caught:
        submodel(model_of(True), "*/weights")
    (messages,) = [
        str(warning.message) for warning in caught if "without the mask" in str(warning.message)
    ]
    assert "block1/attention/weights" in messages and "block0" not in messages


class Cosine(keras.layers.MultiHeadAttention):
    """Attention by the cosine of queries and keys."""

    def _compute_attention(self, query, key, value, *_, **__):
        query, key = (ops.normalize(x, axis=-1) for x in (query, key))
        weights = ops.softmax(20 * ops.einsum("bqnh,bknh->bnqk", query, key), axis=-1)
        return ops.einsum("bnqk,bknh->bqnh", weights, value), weights


class Counted(keras.layers.MultiHeadAttention):
    """Attention with code of its own, by the usual rule."""

    def _masked_softmax(self, *args, **kwargs):
        return super()._masked_softmax(*args, **kwargs)


@pytest.mark.parametrize("kind", [Cosine, Counted])
def test_weights_by_a_rule_of_its_own_are_refused(kind, rng):
    images = keras.Input((6, 3))
    layer = kind(2, 3, name="attention")
    model = keras.Model(images, layer(images, images))
    x = rng.normal(size=(2, 6, 3)).astype("float32")
    if kind is Cosine:
        with pytest.raises(ValueError, match=r"attention/weights cannot be computed"):
            submodel(model, "*/weights")
        assert "attention" in submodel(model, "*")(x)
        return
    _, right = layer(x, x, return_attention_scores=True)
    actual = submodel(model, "*/weights")(x)["attention/weights"]
    np.testing.assert_allclose(actual, right, atol=1e-6)


def test_a_subclassed_model_of_a_dict_is_refused_in_one_line():
    class Named(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = keras.layers.Dense(2)

        def call(self, inputs):
            return self.head(inputs["image"])

    model = Named()
    model({"image": np.zeros((2, 4), "float32")})
    with pytest.raises(ValueError, match=r"only input is images\. Received: .*'image'"):
        submodel(model, "*")


WITH_SCORES = {
    "grouped queries": ((6, 8), lambda: keras.layers.GroupQueryAttention(4, 6, 2, name="layer")),
    "one head": ((6, 8), lambda: keras.layers.Attention(use_scale=True, name="layer")),
    "one additive head": ((6, 8), lambda: keras.layers.AdditiveAttention(name="layer")),
    "a map": (
        (3, 4, 8),
        lambda: keras.layers.MultiHeadAttention(2, 4, attention_axes=(1, 2), name="layer"),
    ),
}


@pytest.mark.parametrize("kind", WITH_SCORES)
def test_weights_are_those_that_the_layer_returns(kind, rng):
    shape, make = WITH_SCORES[kind]
    keras.utils.set_random_seed(0)
    layer, tokens = make(), keras.Input(shape)
    is_single = isinstance(layer, keras.layers.Attention)

    def attend(x, **options):
        return layer([x, x], **options) if is_single else layer(x, x, **options)

    features = submodel(keras.Model(tokens, keras.layers.Dense(3)(attend(tokens))), "*/weights")
    values = rng.normal(size=(3, *shape)).astype("float32")
    output, expected = attend(values, return_attention_scores=True)
    count = int(np.prod(shape[:-1]))
    found = features(values)["layer/weights"]
    np.testing.assert_allclose(found, np.reshape(expected, (3, -1, count, count)), atol=1e-6)
    np.testing.assert_allclose(np.sum(found, axis=-1), 1, atol=1e-6)
    if is_single:
        np.testing.assert_allclose(output, found[:, 0] @ values, atol=1e-6)


def test_attention_along_one_axis_is_refused_by_name():
    x = keras.Input((3, 4, 8))
    layer = keras.layers.MultiHeadAttention(2, 4, attention_axes=2, name="rows")
    model = keras.Model(x, layer(x, x))
    with (
        pytest.warns(UserWarning, match="not between all tokens is left out: rows"),
        pytest.raises(ValueError, match="Unknown layer or pattern"),
    ):
        submodel(model, "*/weights")
    with pytest.raises(ValueError, match=r"weights not found .* rows attend along some"):
        features_of(model, "attention")


def of_channels(h, kind, name):
    """Attention between 16 channels, of 16 tokens, and back."""
    attend = keras.layers.MultiHeadAttention(2, 8, name=name)
    if kind == "permute":
        t = keras.layers.Permute((2, 1))(h)
    elif kind == "operation":
        t = ops.transpose(h, (0, 2, 1))
    else:  # tokens are mixed first
        t = keras.layers.Dense(16)(keras.layers.LayerNormalization()(ops.swapaxes(h, 1, 2)))
    return ops.swapaxes(attend(t, t), 1, 2)


def of_patches(images, kind):
    """16 tokens with 16 channels."""
    if kind == "convolution":
        return keras.layers.Reshape((16, 16))(keras.layers.Conv2D(16, 8, 8)(images))
    if kind == "patches":
        x = keras.layers.Permute((1, 3, 2, 4))(keras.layers.Reshape((4, 8, 4, 24))(images))
        return keras.layers.Dense(16)(keras.layers.Reshape((16, 192))(x))
    x = ops.image.extract_patches(images, 8)
    return keras.layers.Dense(16)(keras.layers.Reshape((16, 192))(x))


@pytest.mark.parametrize("patches", ["convolution", "patches", "extracted"])
@pytest.mark.parametrize("kind", ["permute", "operation", "mixed"])
def test_attention_between_channels_is_left_out(kind, patches, rng):
    """Where there are as many channels as tokens, shapes do not show it."""
    images = keras.Input((32, 32, 3))
    h = of_patches(images, patches)
    normed = []
    for block in range(2):
        normed.append(keras.layers.LayerNormalization()(h + ops.ones((1, 16, 16))))
        tokens = keras.layers.MultiHeadAttention(2, 8, name=f"tokens{block}")
        h = keras.layers.Add()([h, tokens(normed[-1], normed[-1])])
        h = keras.layers.Add()([h, of_channels(h, kind, f"channels{block}")])
        h = keras.layers.Add()([h, keras.layers.Dense(16)(keras.layers.Dense(32, "gelu")(h))])
    pooled = keras.layers.GlobalAveragePooling1D()(h)
    model = keras.Model(images, keras.layers.Dense(5)(pooled))
    values = rng.uniform(-1, 1, (6, 32, 32, 3)).astype("float32")
    with pytest.warns(UserWarning, match="left out: channels0, channels1"):
        found = analysis.attention_distance(model, values)
    places = np.stack(np.indices((4, 4)).reshape(2, -1), -1) * 8.0
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    inputs = keras.Model(images, normed)(values)
    for block, x in enumerate(inputs):
        layer = model.get_layer(f"tokens{block}")
        _, weights = layer(x, x, return_attention_scores=True)
        expected = (np.asarray(weights, np.float64) * apart).sum(-1).mean((0, 2))
        np.testing.assert_allclose(found.values[block], expected, rtol=1e-4)
    alone = of_channels(of_patches(images, patches), kind, "channels")
    alone = keras.Model(images, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling1D()(alone)))
    with pytest.raises(ValueError, match=r"weights not found .* channels attend between channels"):
        analysis.attention_distance(alone, values)


def test_a_sliding_window_is_a_mask():
    x = keras.Input((6, 8))
    layer = keras.layers.GroupQueryAttention(4, 4, 2, sliding_window=2, name="layer")
    with pytest.warns(UserWarning, match="without the mask"):
        submodel(keras.Model(x, layer(x, x)), "*/weights")


def test_an_attention_layer_that_is_never_called_is_left_out(rng):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.unused = keras.layers.MultiHeadAttention(2, 4)
            self.used = keras.layers.MultiHeadAttention(2, 4, name="used")

        def call(self, x):
            tokens = ops.reshape(x, (-1, 16, 3))
            return ops.mean(self.used(tokens, tokens), axis=1)

    model, images = Model(), rng.normal(size=(4, 4, 4, 3)).astype("float32")
    model(images)
    tokens = images.reshape(4, 16, 3)
    _, expected = model.used(tokens, tokens, return_attention_scores=True)
    found = submodel(model, "*/weights")(images)["used/weights"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_weights_that_a_layer_computes_inside_are_not_edited(rng):
    images = keras.Input((4, 3))
    attended = keras.layers.Attention(name="attention")([images, images])
    model = keras.Model(images, attended)
    values = rng.normal(size=(2, 4, 3)).astype("float32")
    with pytest.raises(ValueError, match="computes inside: edit its output"):
        intervene(model, {"attention/weights": lambda x: 0 * x})(values)
