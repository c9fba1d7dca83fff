"""Arguments of models in other forms than they are described, and what opens under which name."""

import keras
import numpy as np
import pytest

import vit_tf

SIZES = {"patch_size": 8, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
MIXER = {"tokens_mlp_dim": 8, "channels_mlp_dim": 8, "patch_size": 8, "hidden_dim": 8}
SIDES = [32, None, "32", (32, 32), (32, 32, 3, 1), (32.0, 32.0, 3), (0, 32, 3)]


@pytest.mark.parametrize("shape", SIDES, ids=str)
@pytest.mark.parametrize("model", ["ViT", "BEiT", "CLIPViT", "SigLIPViT", "Mixer", "BiT"])
def test_an_image_shape_of_another_form_is_one_line(model, shape):
    with pytest.raises(ValueError, match=r"image_shape to be \(height, width, channels\)"):
        getattr(vit_tf, model)(image_shape=shape)


def test_arrays_and_lists_are_shapes_too():
    for shape in ([16, 24, 3], np.array([16, 24, 3])):
        model = vit_tf.ViT(shape, **SIZES, num_classes=2)
        assert model.image_shape == (16, 24, 3)
        assert model.get_config()["image_shape"] == (16, 24, 3)


@pytest.mark.parametrize("units", [3, "3", (), (1.5,), (1, 0)], ids=str)
def test_units_of_another_form_are_one_line(units):
    with pytest.raises(ValueError, match="units to be the number of units of each stage"):
        vit_tf.BiT((32, 32, 3), units=units)
    if units != ():
        with pytest.raises(ValueError, match="stem_units"):
            vit_tf.ViT((32, 32, 3), **SIZES | {"patch_size": 1}, stem_units=units)


def test_at_resolution_names_its_argument():
    model = vit_tf.ViT((16, 16, 3), **SIZES)
    for shape in (48, (48,), "48"):
        with pytest.raises(ValueError, match="Expected image_shape"):
            vit_tf.at_resolution(model, shape)


def test_a_text_is_one_name_of_without_skips():
    site = "block00/attention"
    models = {
        "ViT": lambda names: vit_tf.ViT((16, 16, 3), **SIZES, without_skips=names),
        "BEiT": lambda names: vit_tf.BEiT((16, 16, 3), **SIZES, without_skips=names),
        "CLIP": lambda names: vit_tf.CLIPViT((16, 16, 3), **SIZES, without_skips=names),
        "SigLIP": lambda names: vit_tf.SigLIPViT((16, 16, 3), **SIZES, without_skips=names),
    }
    for make in models.values():
        model = make(site)
        assert model.without_skips == (site,) and f"{site}/skip" not in model.taps
        assert model.get_config() == make((site,)).get_config() | {"name": model.name}
    mixer = vit_tf.Mixer((16, 16, 3), num_layers=1, **MIXER, without_skips="block00/token_mixing")
    assert mixer.without_skips == ("block00/token_mixing",)
    bit = vit_tf.BiT((32, 32, 3), (1, 1), 0.5, without_skips="stage2/unit01")
    assert bit.without_skips == ("stage2/unit01",) and "stage2/unit01/skip" not in bit.taps
    with pytest.raises(ValueError, match="block00/attention"):
        vit_tf.ViT((16, 16, 3), **SIZES, without_skips="block00/attentoin")


def test_either_function_opens_what_it_is_given(tmp_path, rng):
    model = vit_tf.ViT((16, 16, 3), **SIZES, num_classes=4)
    model.head.kernel.assign(rng.normal(size=model.head.kernel.shape))
    images = rng.uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    path = tmp_path / "x.keras"
    model.save(path)
    for name in (path, str(path)):
        np.testing.assert_allclose(vit_tf.load_pretrained(name)(images), model(images), atol=1e-6)
    other = vit_tf.load_pretrained(path, num_classes=7, image_shape=(32, 32))
    assert other.image_shape == (32, 32, 3) and other.num_classes == 7
    image = rng.uniform(-1, 1, (1, 32, 32, 3)).astype("float32")
    expected = vit_tf.load_pretrained("vit-cls-cifar10")(image)
    np.testing.assert_array_equal(vit_tf.load_model("vit-cls-cifar10")(image), expected)


def test_what_cannot_be_opened_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"vit-cls-cifar10.*no such file"):
        vit_tf.load_model("vit-cls-cifar1")
    with pytest.raises(ValueError, match="no such file"):
        vit_tf.load_pretrained(tmp_path / "absent.keras")
    path = tmp_path / "foreign.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(path)
    assert vit_tf.load_pretrained(path).output_shape == (None, 2)
    with pytest.raises(ValueError, match=r"num_classes to be None.*not a model of this package"):
        vit_tf.load_pretrained(path, num_classes=3)
