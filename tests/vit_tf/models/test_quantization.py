"""Models with int8 kernels: against an oracle in NumPy, saved, loaded and refused."""

import keras
import numpy as np
import pytest
from oracles import randomize, weights_of

import vit_tf
from vit_tf.models.transformer import TokenDense

SHAPE = (16, 16, 3)
ENCODER = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16, "num_classes": 5}
MODELS = {
    "vit": lambda: vit_tf.ViT(SHAPE, 4, **ENCODER, representation_dim=6),
    "bit": lambda: vit_tf.BiT(SHAPE, (1, 1), 0.5, 5),
    "clip": lambda: vit_tf.CLIPViT(SHAPE, 4, **ENCODER, projection_dim=4),
    "beit": lambda: vit_tf.BEiT(SHAPE, 4, **ENCODER),
    "mixer": lambda: vit_tf.Mixer(SHAPE, 4, 2, 8, 8, 8, 5),
    "masked": lambda: vit_tf.MaskedPatchPrediction(vit_tf.ViT(SHAPE, 4, **ENCODER)),
}


@pytest.fixture
def images(rng):
    return rng.normal(size=(2, *SHAPE)).astype("float32")


def quantized(kind):
    model = MODELS[kind]()
    randomize(model)
    getattr(model, "vit", model).quantize("int8")
    return model


def dtypes(model):
    return {weight.path.split("/", 1)[1]: weight.dtype for weight in model.weights}


def int8_product(x, kernel):
    """The product of rows and columns, each rounded to 127ths of its largest value."""
    x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
    row = 127 / np.abs(x).max(axis=-1, keepdims=True)
    column = 127 / np.abs(kernel).max(axis=0, keepdims=True)
    return (np.round(x * row) @ np.round(kernel * column)) / row / column


def test_quantized_tokens_are_products_of_int8(rng):
    layer = TokenDense(7, activation="relu")
    tokens = rng.normal(size=(2, 5, 6)).astype("float32")
    layer(tokens)
    randomize(layer)
    kernel, bias = (np.array(weight) for weight in layer.get_weights())
    layer.quantize("int8")
    expected = np.maximum(int8_product(tokens, kernel) + bias, 0)
    found = np.asarray(layer(tokens))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    exact = np.maximum(tokens @ kernel + bias, 0)
    assert np.abs(expected - exact).max() > 10 * np.abs(found - expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_quantized_model_is_saved_and_loaded_as_it_is(kind, images, tmp_path):
    whole = quantized(kind)
    model = getattr(whole, "vit", whole)
    kernels = {path for path, dtype in dtypes(model).items() if dtype == "int8"}
    blocks = {path for path in kernels if path.startswith("block")}
    assert "head/kernel" in kernels
    assert len(blocks) == {"bit": 0, "mixer": 8}.get(kind, 12)
    whole.save(tmp_path / "model.keras")
    for load in (vit_tf.load_model, keras.saving.load_model):
        again = load(tmp_path / "model.keras")
        again = getattr(again, "vit", again)
        assert again.get_config() | {"name": model.name} == model.get_config()
        np.testing.assert_array_equal(again(images), model(images))
        assert dtypes(again) == dtypes(model)
        found = weights_of(again)
        for path, array in weights_of(model).items():
            np.testing.assert_array_equal(found[path], array, err_msg=path)


@pytest.mark.slow
def test_a_new_head_of_a_quantized_model_can_learn():
    model = quantized("vit")
    fresh = vit_tf.at_resolution(model, (24, 24), num_classes=3)
    found, expected = weights_of(fresh), weights_of(model)
    assert dtypes(fresh)["head/kernel"] == "float32" and fresh.head.kernel.trainable
    assert dtypes(fresh)["block01/out/kernel"] == "int8"
    for path in expected:
        if not path.startswith(("head/", "pre_logits/", "embedding/positions")):
            np.testing.assert_array_equal(found[path], expected[path], err_msg=path)


@pytest.mark.slow
def test_taps_of_a_quantized_model(images, tmp_path):
    model = quantized("vit")
    features = vit_tf.submodel(model, "block*/*/sum")
    expected = model.intermediates(images)
    for tap, tensor in features(images).items():
        np.testing.assert_allclose(tensor, expected[tap], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"not quantized.*'vit_taps', of a quantized model"):
        features.save(tmp_path / "taps.keras")
    features.export(tmp_path / "taps", verbose=False)
    for tap, tensor in vit_tf.load_features(tmp_path / "taps")(images).items():
        np.testing.assert_allclose(tensor, expected[tap], rtol=1e-5, atol=1e-5)


def test_other_modes_are_refused():
    model = MODELS["vit"]()
    with pytest.raises(ValueError, match=r"Expected mode to be 'int8'.*Received: mode='int4'"):
        model.quantize("int4")
    weights_only = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    with pytest.raises(ValueError, match=r"default quantizers.*Int8QuantizationConfig"):
        model.quantize(config=weights_only)
    assert "quantized" not in model.get_config()
