"""Preprocessing that travels with the weights, and the images it makes against Pillow's."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from image_folders import arrays
from PIL import Image
from sklearn.datasets import load_digits

import vit_tf
from vit_tf import Preprocessing, data
from vit_tf.models.beit import BEiT
from vit_tf.models.clip import CLIPViT
from vit_tf.models.mixer import Mixer
from vit_tf.training.checkpointing import describe_model

SHAPE = (8, 16, 3)
ENCODER = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8, "num_classes": 3}
MODELS = {
    "vit": lambda **k: vit_tf.ViT(SHAPE, 4, **ENCODER, **k),
    "bit": lambda **k: vit_tf.BiT(SHAPE, (1,), 0.5, 3, **k),
    "mixer": lambda **k: Mixer(SHAPE, 4, 1, 8, 8, 8, 3, **k),
    "clip": lambda **k: CLIPViT(SHAPE, 4, **ENCODER, projection_dim=4, **k),
    "beit": lambda **k: BEiT(SHAPE, 4, **ENCODER, **k),
}
IMAGENET = Preprocessing((8, 16), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bicubic")
CROPPED = dataclasses.replace(IMAGENET, crop=0.9)


def test_preprocessing_is_a_dict_and_back():
    config = json.loads(json.dumps(IMAGENET.to_config()))
    assert Preprocessing.from_config(config) == IMAGENET
    assert Preprocessing.from_config(IMAGENET) is IMAGENET
    assert Preprocessing([8, 16], np.full(3, 0.5), [0.5] * 3) == Preprocessing.of(SHAPE)
    assert Preprocessing.of((8, 8, 1)).mean == (0.5,)
    assert "crop" not in config
    cropped = dataclasses.replace(IMAGENET, crop=0.875)
    assert Preprocessing.from_config(json.loads(json.dumps(cropped.to_config()))) == cropped
    assert cropped.squeezed() == IMAGENET and "centre crop of 0.875" in cropped.describe()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"size": (8,)}, "size"),
        ({"size": (8, 0)}, "size"),
        ({"size": (8, 8.5)}, "size"),
        ({"mean": (0.5,)}, "mean"),
        ({"std": (0.5, 0.5, 0.0)}, "std"),
        ({"interpolation": "bicubik"}, "bicubic"),
        ({"crop": 0}, "crop"),
        ({"crop": 1.1}, "crop"),
        ({"crop": 0.9, "size": None}, "crop"),
    ],
)
def test_preprocessing_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**{"size": (8, 8)} | fields)


@pytest.mark.parametrize("kind", MODELS)
def test_it_is_saved_with_the_model_only_where_it_is_special(kind, tmp_path):
    plain = MODELS[kind]()
    assert plain.preprocessing == Preprocessing((8, 16))
    assert "preprocessing" not in plain.get_config()
    model = MODELS[kind](preprocessing=CROPPED.to_config())
    model.save(tmp_path / "model.keras")
    again = vit_tf.load_model(tmp_path / "model.keras")
    assert again.preprocessing == model.preprocessing == CROPPED
    assert again.get_config()["preprocessing"]["crop"] == 0.9
    again.preprocessing = None
    assert again.get_config() == plain.get_config() | {"name": again.name}
    other = {"preprocessing", "name"}
    config = {k: v for k, v in model.get_config().items() if k not in other}
    assert config == {k: v for k, v in plain.get_config().items() if k not in other}
    with pytest.raises(ValueError, match=r"preprocessing.*\(8, 16, 3\).*Received.*\(9, 16\)"):
        MODELS[kind](preprocessing={"size": (9, 16)})


@pytest.mark.parametrize(
    "kind", ["vit", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*MODELS][1:])]
)
def test_class_names_are_saved_with_the_model(kind, tmp_path):
    plain = MODELS[kind]()
    assert plain.class_names is None and "class_names" not in plain.get_config()
    model = MODELS[kind](class_names=("a", "b", "c"))
    model.save(tmp_path / "model.keras")
    again = vit_tf.load_model(tmp_path / "model.keras")
    assert again.class_names == ("a", "b", "c")
    assert describe_model(again)["config"] == describe_model(plain)["config"]
    assert vit_tf.at_resolution(again, SHAPE).class_names == ("a", "b", "c")
    assert vit_tf.at_resolution(again, SHAPE, num_classes=3).class_names is None
    for names in (("a", "b"), ("a", "b", "b")):
        with pytest.raises(ValueError, match=f"3 different names. Received: {len(names)} names"):
            again.class_names = names


def test_it_reaches_submodels(tmp_path):
    model = MODELS["vit"](preprocessing=IMAGENET)
    vit_tf.submodel(model, "pooled").save(tmp_path / "taps.keras")
    again = vit_tf.load_features(tmp_path / "taps.keras")
    assert again.preprocessing == vit_tf.submodel(again, "*").preprocessing == IMAGENET
    foreign = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(name="flat")])
    assert vit_tf.submodel(foreign, "flat").preprocessing is None


@pytest.fixture(scope="module")
def own_digits():
    """Digits of the test split as they are, without a preprocessing."""
    return arrays(data.load("digits", splits=("test",), take=40)[0])[0]


@pytest.mark.parametrize(
    "interpolation, size",
    [
        *(("bilinear", (24, 13)), ("bicubic", (5, 6))),
        pytest.param("bilinear", (5, 6), marks=pytest.mark.slow),
        pytest.param("bicubic", (24, 13), marks=pytest.mark.slow),
    ],
)
def test_images_are_those_of_pillow(own_digits, interpolation, size):
    chosen = Preprocessing(size, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), interpolation)
    images, _ = arrays(data.load("digits", splits=("test",), take=40, preprocessing=chosen)[0])
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    for image, grey in zip(images, (own_digits[..., 0].astype(float) + 1) * 127.5, strict=True):
        resized = Image.fromarray(grey.astype("float32")).resize(size[::-1], method[interpolation])
        value = np.clip(np.asarray(resized, float), 0, 255)[..., None] / 255
        expected = (value - chosen.mean) / chosen.std
        np.testing.assert_allclose(image, expected, atol=2e-5)


@pytest.mark.slow
def test_the_default_preprocessing_is_none_bit_for_bit():
    digits = (load_digits().images / 16 * 255).astype(np.float32)[..., None]
    for size in (8, 12):
        chosen = Preprocessing((size, size))
        plain = [arrays(d) for d in data.load("digits", image_size=size)]
        same = [arrays(d) for d in data.load("digits", preprocessing=chosen)]
        plain += [arrays(d) for d in data.few_shot("digits", 3, image_size=size, held_out=2)]
        same += [arrays(d) for d in data.few_shot("digits", 3, preprocessing=chosen, held_out=2)]
        for (x, x_labels), (y, y_labels) in zip(plain, same, strict=True):
            np.testing.assert_array_equal(x, y)
            np.testing.assert_array_equal(x_labels, y_labels)
    known = {image.tobytes() for image in (digits / np.float32(127.5) - 1).repeat(3, -1)}
    images, _ = arrays(
        data.load("digits", splits=("test",), preprocessing=Preprocessing((8, 8)))[0]
    )
    assert {image.tobytes() for image in images} < known


@pytest.mark.parametrize("load", [data.load, lambda name, **k: data.few_shot(name, 1, **k)])
def test_a_size_that_contradicts_is_refused(load):
    chosen = Preprocessing((8, 12))
    assert load("digits", preprocessing=chosen, image_size=(8, 12))
    with pytest.raises(ValueError, match=r"\(8, 12\).*Received: image_size=\(12, 12\)"):
        load("digits", preprocessing=chosen, image_size=12)
    with pytest.raises(ValueError, match="channels"):
        load("digits", preprocessing=Preprocessing.of((8, 8, 2)))
    with pytest.raises(ValueError, match=r"vit_tf.Preprocessing"):
        load("digits", preprocessing={"size": (8, 8)})
