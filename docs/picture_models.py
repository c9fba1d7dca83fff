"""The models and the data that the pictures of the documentation are of.

Photographs are those of CIFAR-10, and their models are bundled. A ViT of synthetic shapes is
trained when it is first asked for, and stored in `runs/docs/`.
"""

import os
from functools import cache
from pathlib import Path

import keras

import vit_tf

RUNS = Path(__file__).resolve().parents[1] / "runs" / "docs"
MODELS = {"vit": "vit-cls-cifar10", "gap": "vit-gap-cifar10", "bit": "bit-cifar10"}
NUM_TRAINED = {"vit": 50 * 49_000, "gap": 5 * 49_000, "bit": 20 * 49_000}  # images in training
TEST, TRAIN = 480, 4000  # images


@cache
def photographs(split="test", take=TEST, batch_size=40):
    """Images of CIFAR-10, from the folder of TFDS or from that in TFDS_DATA_DIR."""
    folder = os.environ.get("TFDS_DATA_DIR")
    part = {"splits": (split,), "take": {split: take}, "batch_size": batch_size}
    (images,) = vit_tf.data.load("cifar10", data_dir=folder, image_size=32, **part)
    return images


def train_images():
    """Labelled images that probes are fitted on, and others that choose their penalty."""
    images = photographs("train", TRAIN, batch_size=80)
    return images.skip(10), images.take(10)


def test_images():
    return photographs()


@cache
def trained(name):
    """A model of CIFAR-10: "vit", with a CLS token, "gap", with average pooling, or "bit"."""
    return vit_tf.load_pretrained(MODELS[name])


@cache
def shapes_vit():
    """A ViT trained on the shapes."""
    keras.utils.set_random_seed(0)
    size = {"patch_size": 8, "num_layers": 4, "num_heads": 3, "hidden_dim": 48, "mlp_dim": 128}
    model = vit_tf.ViT((64, 64, 3), **size, num_classes=8)
    splits, take = ("train", "validation"), {"train": 3000, "validation": 500}
    data = vit_tf.data.load("shapes", image_size=64, batch_size=64, splits=splits, take=take)
    recipe = vit_tf.Recipe(epochs=8, flip=True, label_smoothing=0.0)
    vit_tf.train(model, recipe, *data, RUNS / "shapes")
    return vit_tf.load_model(RUNS / "shapes" / "best.keras")


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
