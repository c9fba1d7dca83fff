"""The models and the data that the pictures of the documentation are of.

Models are trained when they are first asked for, and kept in `runs/docs/`.
"""

from functools import cache
from pathlib import Path

import keras

import vit_tf

RUNS = Path(__file__).resolve().parents[1] / "runs" / "docs"
VIT = {
    "patch_size": 4,
    "num_layers": 6,
    "num_heads": 4,
    "hidden_dim": 48,
    "mlp_dim": 96,
    "num_classes": 10,
}
EPOCHS = {"vit": 20, "gap": 20, "bit": 20, "shapes": 8}


@cache
def digits(*splits, take=None, batch_size=40):
    """Splits of the digits at 32 pixels."""
    return vit_tf.data.load(
        "digits", image_size=32, splits=splits, take=take, batch_size=batch_size
    )


def test_images():
    return digits("test")[0]


@cache
def trained(name):
    """A model of the digits: "vit", with a CLS token, "gap", with average pooling, or "bit"."""
    keras.utils.set_random_seed(0)
    if name == "bit":
        size = {"units": (2, 2, 2), "width_factor": 0.5, "stem": "imagenet"}
        model = vit_tf.BiT((32, 32, 3), **size, num_classes=10)
    else:
        model = vit_tf.ViT((32, 32, 3), **VIT, pooling="gap" if name == "gap" else "cls")
    return fitted(model, name, *digits("train", "validation", batch_size=64), shift=2)


def fitted(model, name, train, validation, **recipe):
    """A model after its training, or as it was kept."""
    vit_tf.train(model, vit_tf.Recipe(EPOCHS[name], **recipe), train, validation, RUNS / name)
    return vit_tf.load_model(RUNS / name / "best.keras")


@cache
def shapes_vit():
    """A ViT trained on the shapes."""
    keras.utils.set_random_seed(0)
    size = {"patch_size": 8, "num_layers": 4, "num_heads": 3, "hidden_dim": 48, "mlp_dim": 128}
    model = vit_tf.ViT((64, 64, 3), **size, num_classes=8)
    splits, take = ("train", "validation"), {"train": 3000, "validation": 500}
    data = vit_tf.data.load("shapes", image_size=64, batch_size=64, splits=splits, take=take)
    return fitted(model, "shapes", *data, flip=True, label_smoothing=0.0)


@cache
def shapes(split="test"):
    return vit_tf.data.load_shapes(split, image_size=64, take=320)


def sums(name):
    """The outputs of a model's blocks."""
    return vit_tf.submodel(trained(name), "embedding" if name != "bit" else "root", "*/sum")


def blocks(name):
    """The outputs of a model's blocks, without those inside a block."""
    return vit_tf.submodel(trained(name), "*mlp/sum" if name != "bit" else "*/sum")


def weights(name):
    """The attention of a model."""
    return vit_tf.submodel(trained(name), "*/weights")
