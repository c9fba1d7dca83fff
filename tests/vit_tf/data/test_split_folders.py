"""Folders of images whose splits are folders: their names, and the classes that they hold."""

import numpy as np
import pytest
from image_folders import arrays, counts, flat_folder, write

from vit_tf import data
from vit_tf.data import source


@pytest.mark.parametrize("name", ["val", "Valid", "VALIDATION", "test", "Testing"])
def test_a_split_on_its_own_is_a_split_and_not_a_class(tmp_path, rng, name):
    flat_folder(tmp_path / name, rng, (3, 2))
    split = "test" if name.lower().startswith("test") else "validation"
    described = data.describe(tmp_path)
    assert described.class_names == ("ape", "bee")
    assert described.num_examples == {split: 5}
    assert counts(data.load(tmp_path, splits=(split,))[0]) == [3, 2]
    assert data.check_images(tmp_path) == 5
    with pytest.raises(ValueError, match=rf"those of the data set: {split}\. Received: .*'train'"):
        data.load(tmp_path)


@pytest.mark.parametrize(
    "names", [("Train", "Val", "Test"), ("training", "valid", "testing"), ("TRAIN", "validation")]
)
def test_splits_have_many_names(tmp_path, rng, names):
    for number, name in enumerate(names, 1):
        flat_folder(tmp_path / name, rng, (number, 1))
    found = data.describe(tmp_path).num_examples
    assert found == {
        s: n + 1
        for n, s in zip((1, 2, 3), ("train", "validation", "test"), strict=True)
        if n <= len(names)
    }


def test_classes_are_those_of_all_splits_where_there_is_no_train_split(tmp_path, rng):
    flat_folder(tmp_path / "val", rng, (1, 2))
    write(tmp_path / "test" / "cat" / "0.png", rng.integers(0, 256, (6, 5, 3)))
    flat_folder(tmp_path / "test", rng, (2,))
    assert data.describe(tmp_path).class_names == ("ape", "bee", "cat")
    validation, test = data.load(tmp_path, splits=("validation", "test"))
    assert counts(validation) == [1, 2] and counts(test) == [2, 0, 1]


@pytest.mark.slow
def test_validation_images_are_tested_on_where_there_are_no_test_images(tmp_path, rng, caplog):
    """As of ImageNet, whose test images have no labels; what is validated on is then cut off."""
    source._warn_of_missing_test_split.cache_clear()
    flat_folder(tmp_path / "train", rng, (20, 20))
    flat_folder(tmp_path / "val", rng, (3, 4))
    released = arrays(data.load(tmp_path, splits=("validation",))[0])[0]
    assert not caplog.records
    (alone,) = data.load(tmp_path, splits=("test",))
    assert "the validation split is used as one" in caplog.text
    train, validation, test = data.load(tmp_path, splits=("train", "validation", "test"))
    for one in (alone, test):
        np.testing.assert_array_equal(arrays(one)[0], released)
    assert counts(train) == [18, 18] and counts(validation) == [2, 2]
    images = np.concatenate([arrays(one)[0] for one in (train, validation, test)])
    assert len({image.tobytes() for image in images}) == 47
    every = counts(data.load(tmp_path, splits=("all",))[0])
    assert every == [23, 24] and data.describe(tmp_path).num_examples["validation"] == 7


def test_two_folders_of_one_split_are_refused(tmp_path, rng):
    for name in ("train", "val", "Validation"):
        flat_folder(tmp_path / name, rng, (2, 1))
    message = r"one folder for the validation split. Received: 'Validation', 'val' in '.*'"
    with pytest.raises(ValueError, match=message):
        data.load(tmp_path)


def test_classes_may_bear_the_names_of_splits(tmp_path, rng):
    """As the means of transport does, beside which other kinds of them stand."""
    for name in ("train", "bus", "Test"):
        for number in range(2):
            write(tmp_path / name / f"{number}.png", rng.integers(0, 256, (6, 5, 3)))
    assert data.describe(tmp_path).class_names == ("Test", "bus", "train")


def test_other_folders_stand_beside_splits_but_classes_do_not(tmp_path, rng):
    flat_folder(tmp_path / "train", rng, (2, 1))
    flat_folder(tmp_path / "labels", rng, (1, 1))
    assert data.describe(tmp_path).num_examples == {"train": 3}
    (tmp_path / "train").rename(tmp_path / "test")
    message = r"folders of splits or of classes, not both. Received: 'test' next to 'labels' in"
    with pytest.raises(ValueError, match=message):
        data.describe(tmp_path)


def test_ten_classes_of_the_train_split_are_named(tmp_path, rng):
    for number in range(13):
        write(tmp_path / "train" / f"c{number:02}" / "0.png", rng.integers(0, 256, (6, 5, 3)))
    write(tmp_path / "test" / "dog" / "0.png", rng.integers(0, 256, (6, 5, 3)))
    with pytest.raises(ValueError, match=r"c08, c09 and 3 more\. Received: '.*/test/dog'$"):
        data.describe(tmp_path)
