"""A trained model knows the classes of the data that it was trained on."""

import keras
import pytest

import vit_tf

NAMES = tuple(str(digit) for digit in range(10))


@pytest.fixture(scope="module")
def splits():
    arguments = {"splits": ("train", "validation"), "take": {"train": 20, "validation": 10}}
    return vit_tf.data.load("digits", batch_size=10, **arguments)


def tiny(**settings):
    keras.utils.set_random_seed(0)
    return vit_tf.ViT((8, 8, 3), 4, 1, 1, 8, 8, 10, **settings)


@pytest.mark.slow
def test_training_names_the_classes_and_they_are_saved(splits, tmp_path, caplog):
    model = tiny(class_names=[f"kind {number}" for number in range(10)])
    vit_tf.train(model, vit_tf.Recipe(epochs=1), *splits, tmp_path, verbose=0)
    assert model.class_names == splits[0].class_names == NAMES
    assert "adopts the class names of the training data" in caplog.text
    for name in ("best.keras", "model.keras"):
        model.save(tmp_path / "model.keras")
        assert vit_tf.load_model(tmp_path / name).class_names == NAMES


@pytest.mark.slow
def test_data_without_class_names_change_none(splits, tmp_path):
    model, mine = tiny(), [f"kind {number}" for number in range(10)]
    model.class_names = mine
    unnamed = [split.take(1) for split in splits]
    vit_tf.train(model, vit_tf.Recipe(epochs=1), *unnamed, tmp_path, verbose=0)
    assert model.class_names == tuple(mine)
