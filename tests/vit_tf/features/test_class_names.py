"""Names of classes: a model's own, and those of ImageNet where they are on this computer."""

import json
from importlib.util import find_spec

import keras
import pytest

import vit_tf
from vit_tf.features import class_names
from vit_tf.features.class_names import find_class_names, imagenet_names

applications = keras.applications


def write_index(folder):
    """Names as keras.applications stores them."""
    path = folder / "models" / "imagenet_class_index.json"
    path.parent.mkdir()
    path.write_text(json.dumps({str(n): [f"n{n}", f"great_{n}"] for n in range(1000)}))


@pytest.fixture
def index(tmp_path, monkeypatch):
    write_index(tmp_path)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


def mobilenet(classes):
    return applications.MobileNet((32, 32, 3), 0.25, weights=None, classes=classes)


def test_a_classifier_of_imagenet_has_its_names(index):
    names = find_class_names(mobilenet(1000))
    assert names[:2] == ("great 0", "great 1") and names[999] == "great 999"
    assert find_class_names(mobilenet(5)) == ()
    images = keras.Input((8,))
    others = keras.Model(images, keras.layers.Dense(1000)(images), name="mine")
    assert find_class_names(others) == ()


def test_own_names_come_first(index):
    vit = vit_tf.ViT((16, 16, 3), 8, 1, 1, 8, 8, 2, class_names=("cat", "dog"))
    assert find_class_names(vit) == ("cat", "dog")
    assert find_class_names(lambda images: {}) == ()


def test_the_names_of_timm(tmp_path, monkeypatch):
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    names = imagenet_names()
    assert (names[0], names[1], names[281], len(names)) == ("tench", "goldfish", "tabby", 1000)


def test_names_that_are_downloaded_later_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(class_names.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert imagenet_names() == ()
    write_index(tmp_path)
    assert imagenet_names()[999] == "great 999"


def test_without_either_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(class_names.importlib.util, "find_spec", lambda name: None)
    assert imagenet_names() == ()
