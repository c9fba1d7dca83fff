"""Every figure's printed code gives the results of the figure, on models of any origin."""

import keras
import numpy as np
import pytest
from functional_models import functional_vit
from oracles import randomize
from printed_calls import compare, compare_layers

import vit_tf
from vit_tf.data.shapes import half_masks, shape_masks

applications = keras.applications
SIZES = {"num_layers": 4, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32, "num_classes": 5}


def hub_vit():
    hub = pytest.importorskip("keras_hub")
    sizes = {"patch_size": 8, "num_layers": 4, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    backbone = hub.models.ViTBackbone(image_shape=(32, 32, 3), **sizes)
    return hub.models.ViTImageClassifier(backbone=backbone, num_classes=5)


MAKERS = {
    "ViT": lambda: vit_tf.ViT((32, 32, 3), 8, **SIZES),
    "GAP ViT": lambda: vit_tf.ViT((32, 32, 3), 8, **SIZES, pooling="gap"),
    "BiT": lambda: vit_tf.BiT((32, 32, 3), (1, 2, 2), 0.5, 5, stem="small"),
    "Mixer": lambda: vit_tf.Mixer((32, 32, 3), 8, 3, 16, 8, 32, 5),
    "functional ViT": functional_vit,
    "KerasHub ViT": hub_vit,
    "MobileNetV2": lambda: applications.MobileNetV2((64, 64, 3), 0.35, weights=None, classes=5),
    "ResNet50": lambda: applications.ResNet50(input_shape=(64, 64, 3), weights=None, classes=5),
    "ConvNeXtTiny": lambda: applications.ConvNeXtTiny(
        input_shape=(64, 64, 3), weights=None, classes=5
    ),
    "EfficientNetB0": lambda: applications.EfficientNetB0(
        input_shape=(64, 64, 3), weights=None, classes=5
    ),
}


OF_PAIRS = ("2", "5", "W.6")
OF_ANNOTATED = ("W.5", "W.8", "W.27", "W.29", "W.10", "W.31", "W.T5")


def filled(name):
    """A model whose head is not zero, as it is at first."""
    keras.utils.set_random_seed(0)
    model, rng = MAKERS[name](), np.random.default_rng(0)
    for weight in model.weights:
        if weight.path.endswith("kernel") and not np.any(weight.numpy()):
            weight.assign(0.1 * rng.normal(size=weight.shape))
    return model


# A ViT and a ResNet differ in their figures. The layers of ViTs of other packages, and those of
# networks of keras.applications, are found in one way: one of each is slow, the others are long.
LAYERS_MARKS = dict.fromkeys(
    ("GAP ViT", "Mixer", "functional ViT", "MobileNetV2"), pytest.mark.slow
)
LAYERS_MARKS |= dict.fromkeys(
    ("KerasHub ViT", "ResNet50", "ConvNeXtTiny", "EfficientNetB0"), pytest.mark.long
)
ALL_VALUES = ("ViT",)  # the others take an hour


def marked(marks):
    """The names of all models, with their marks."""
    return [pytest.param(name, marks=marks.get(name, ())) for name in MAKERS]


@pytest.mark.parametrize("name", marked(LAYERS_MARKS))
def test_the_code_of_every_figure_reads_the_layers_of_the_figure(name, tmp_path):
    unequal, count = compare_layers(MAKERS[name](), tmp_path)
    assert unequal == {} and count >= 8


@pytest.mark.usefixtures("without_graphs")
@pytest.mark.parametrize(
    ("numbers", "count"),
    [(("1", "13"), 2), pytest.param(("9", "W.7", "W.T1"), 5, marks=pytest.mark.slow)],
)
def test_the_code_of_some_figures_gives_their_results(numbers, count, tmp_path):
    keras.utils.set_random_seed(0)
    vit = vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 8, 5)
    randomize(vit)
    found = compare({"ViT": vit}, tmp_path, numbers=numbers)
    assert len(found) >= count and not any(found.values()), found


@pytest.mark.slow
@pytest.mark.usefixtures("without_graphs")
def test_the_code_of_gradients_gives_them_in_units_of_any_model(tmp_path):
    images = keras.Input((32, 32, 3))
    scaled = keras.layers.Rescaling(1 / 127.5, -1)(images)
    maps = keras.layers.Conv2D(6, 3, padding="same", name="stage1")(scaled)
    maps = keras.layers.Conv2D(6, 3, 2, padding="same", activation="relu", name="stage2")(maps)
    scores = keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(maps))
    model = keras.Model(images, scores)
    model.preprocessing = vit_tf.Preprocessing((32, 32), mean=(0.0,) * 3, std=(1 / 255,) * 3)
    found = compare({"CNN": model}, tmp_path, numbers=("6",))
    assert found and not any(found.values()), found


@pytest.mark.slow
def test_the_code_of_pairs_of_models_and_of_annotated_images_gives_the_results(tmp_path):
    size = {"image_size": (32, 32)}
    shapes = vit_tf.data.load_shapes("test", take=12, **size)
    videos = vit_tf.data.load_shape_videos(2, num_frames=3, **size)
    truth = [{"easy": np.arange(4), "hard": np.arange(4, 6), "junk": np.arange(0)}] * 2
    optional = {
        "objects": shape_masks(shapes, 6),
        "parts": half_masks(shapes, 6),
        "videos": list(zip(videos["image"], videos["index"], strict=True)),
        "pairs": vit_tf.data.load_shape_pairs(6, **size),
        "landmarks": (shapes["image"][:2], shapes["image"][2:], truth),
    }
    models = {name: filled(name) for name in ("ViT", "BiT")}
    found = compare(models, tmp_path, numbers=OF_PAIRS + OF_ANNOTATED, optional=optional)
    assert len(found) >= 10 and not any(found.values()), found


MARKS = {name: pytest.mark.slow if name in ALL_VALUES else pytest.mark.long for name in MAKERS}


@pytest.mark.usefixtures("without_graphs")
@pytest.mark.parametrize("name", marked(MARKS))
def test_the_code_of_every_figure_gives_its_results(name, tmp_path):
    found = compare({name: filled(name)}, tmp_path)
    assert not any(found.values()), found
