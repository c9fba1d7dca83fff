"""What a measurement reads of models and images: each model's own images, and labels."""

import numpy as np
import pytest
import tensorflow as tf
from keras import Input, Sequential, layers
from PIL import Image

import vit_tf
from vit_tf import Preprocessing, analysis

NUM_IMAGES = 12
SLOW = pytest.mark.slow  # each takes a second, as the passes of two models are traced anew


@pytest.fixture(scope="module")
def photographs():
    """RGB images of 40 x 56 pixels, smooth, so that resizing matters, with noise."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (NUM_IMAGES, 5, 7, 3)).astype(np.uint8)
    images = [np.asarray(Image.fromarray(x).resize((56, 40), Image.BICUBIC)) for x in coarse]
    return np.clip(np.stack(images) + rng.normal(0, 9, (40, 56, 3)), 0, 255).astype(np.uint8)


def convolutional(preprocessing, size=None):
    """A model of two layers that declares a preprocessing."""
    shape = (*(size or preprocessing.size), preprocessing.num_channels)
    model = Sequential(
        [
            Input(shape),
            layers.Conv2D(4, 3, 2, activation="relu"),
            layers.Conv2D(6, 3, 2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    model.preprocessing = preprocessing
    return model


WIDE = Preprocessing((32, 32))
CROPPED = Preprocessing((32, 32), interpolation="bicubic", crop=0.875)
SMALL = Preprocessing((24, 28), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), channel_order="bgr")
GREY = Preprocessing((28, 28), (0.0,), (1 / 255,))
ANY_SIZE = Preprocessing(None, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def models():
    """Models by the name of their preprocessing."""
    return {
        "wide": convolutional(WIDE),
        "cropped": convolutional(CROPPED),
        "small": convolutional(SMALL),
        "grey": convolutional(GREY),
        "any size": convolutional(ANY_SIZE, (None, None)),
        "values": convolutional(Preprocessing((32, 32), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))),
    }


def own_activations(model, photographs):
    """The activations of a model for its own images, which Pillow makes grey where it is."""
    grey = model.preprocessing.num_channels == 1
    given = [np.asarray(Image.fromarray(x).convert("L" if grey else "RGB")) for x in photographs]
    prepared = [model.preprocessing(x[..., None] if grey else x) for x in given]
    taps = vit_tf.submodel(model)(np.stack(prepared))
    return {tap: np.asarray(values) for tap, values in taps.items()}


PAIRS = [
    ("wide", "cropped"),
    ("small", "wide"),
    ("grey", "cropped"),
    ("any size", "small"),
    ("values", "wide"),
]
QUICK_PAIR = "grey", "cropped"


@pytest.mark.parametrize(
    "names",
    [pytest.param(x, id=" and ".join(x), marks=() if x == QUICK_PAIR else SLOW) for x in PAIRS],
)
def test_each_model_is_measured_on_its_own_images_in_either_order(names, models, photographs):
    x, y = (models[name] for name in names)
    expected = analysis.cka(
        own_activations(x, photographs), features_y=own_activations(y, photographs)
    ).cka.values
    np.testing.assert_allclose(analysis.cka(x, photographs, y).cka.values, expected, atol=2e-5)
    turned = analysis.cka(y, photographs, x).cka.values.T
    np.testing.assert_allclose(turned, expected, atol=2e-5)


@pytest.fixture(scope="module")
def forms(photographs, tmp_path_factory):
    """The photographs in all forms that are prepared for a model."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "flat").mkdir()
    for number, image in enumerate(photographs):
        (folder / f"classes/{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"classes/{number % 2}/{number:02d}.png")
        Image.fromarray(image).save(folder / f"flat/{number:02d}.png")
    labels = np.arange(NUM_IMAGES)
    return {
        "PIL images": [Image.fromarray(image) for image in photographs],
        "paths": sorted((folder / "flat").iterdir()),
        "a folder": folder / "flat",
        "class folders": folder / "classes",
        "a data set": tf.data.Dataset.from_tensor_slices(photographs).batch(NUM_IMAGES),
        "with labels": tf.data.Dataset.from_tensor_slices((photographs, labels)).batch(NUM_IMAGES),
        "single examples": tf.data.Dataset.from_tensor_slices({"image": photographs}),
    }


@SLOW
@pytest.mark.parametrize(
    "names",
    [
        ("PIL images", "with labels"),
        ("paths", "a folder"),
        ("class folders", "a data set", "single examples"),
    ],
    ids=", ".join,
)
def test_every_form_of_images_is_prepared_for_each_model(names, models, photographs, forms):
    x, y = models["grey"], models["cropped"]
    expected = analysis.cka(x, photographs, y).cka.values
    for name in names:
        result = analysis.cka(x, forms[name], y).cka.values
        np.testing.assert_allclose(result, expected, atol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def vits():
    """Two ViTs of different sizes and crops."""
    models = {}
    for name, side, crop in (("a", 32, None), ("b", 24, 0.75)):
        models[name] = vit_tf.ViT((side, side, 3), 8, 1, 2, 8, 8, num_classes=3)
        models[name].preprocessing = Preprocessing((side, side), crop=crop)
    return models


@SLOW
def test_calls_of_several_models_give_each_its_own_images(vits, photographs):
    own = {
        name: np.stack([vit.preprocessing(image) for image in photographs])
        for name, vit in vits.items()
    }
    last = {
        name: np.asarray(vit_tf.submodel(vit, "norm")(own[name])["norm"])
        for name, vit in vits.items()
    }
    expected = analysis.cka({"a": last["a"][:, 0], "b": last["b"][:, 0]}).cka.values
    for order in (["a", "b"], ["b", "a"]):
        result = analysis.last_layer_cka({name: vits[name] for name in order}, photographs)
        result = result.cka.sel(part="cls", model_x=["a", "b"], model_y=["a", "b"]).values
        np.testing.assert_allclose(result, expected, atol=2e-5)

    heads = analysis.head_similarity(vits["a"], vits["b"], photographs, grid=(4, 4))
    distances = analysis.attention_distance(vits["a"], own["a"]).values[0]
    np.testing.assert_allclose(heads.distance.sel(order="local", subset=1), distances.min(), 1e-5)
    several = analysis.similarities(vits["a"], photographs, vits["b"], measures=["cka"])
    kernels = analysis.cka(vits["a"], photographs, vits["b"]).cka.values
    np.testing.assert_allclose(several.similarity.values[0], kernels, atol=2e-5)


def test_models_that_declare_nothing_are_named_where_others_differ(models, vits, photographs):
    plain = convolutional(WIDE)
    del plain.preprocessing
    with pytest.warns(UserWarning, match="preprocessing"):
        shared = analysis.cka(models["wide"], photographs, plain).cka.values
    prepared = np.stack([WIDE(image) for image in photographs])
    expected = analysis.cka(models["wide"], prepared, plain).cka.values
    np.testing.assert_allclose(shared, expected, atol=2e-5)

    def tokens(images):
        return {"tokens": tf.reshape(images, (-1, 16, 192))}

    tokens.token_grid = vit_tf.TokenGrid(4, 4, 0, 8)
    with pytest.raises(ValueError, match="tokens"):
        analysis.last_layer_cka(vits | {"undeclared": tokens}, photographs)
