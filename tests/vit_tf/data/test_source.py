"""Part of the classes of a data set, against the whole of it."""

import numpy as np
import pytest
from image_folders import arrays, counts, labelled
from PIL import Image

from vit_tf import data
from vit_tf.data.pipeline import open_source
from vit_tf.data.source import select_classes

LIST = "n03 Dipper\n\nn01 Box Turtle\r\nn05\n"


def colour(label, number):
    return (40 * label, number, 200)


def imagenet(root, splits, classes=6):
    """Class folders of images that tell their class and number by their colour."""
    for split, count in splits.items():
        for label in range(classes):
            folder = root / split / f"n0{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (5, 4), colour(label, number))
                # Pillow reads files by what they hold, and JPEG would not keep the colours.
                image.save(folder / f"n0{label}_{number}.JPEG", "png")
    return root


def pixels(dataset):
    """The (red, green) of each image, as whole numbers, and the labels."""
    images, labels = arrays(dataset)
    return np.round((images[:, 0, 0, :2] + 1) * 127.5).astype(int), labels


def test_a_list_selects_class_folders_in_its_order(tmp_path):
    (tmp_path / "list.txt").write_text(LIST)
    classes = data.read_class_list(tmp_path / "list.txt")
    assert classes == ("n03", "n01", "n05")
    root = imagenet(tmp_path / "imagenet", {"train": 7, "val": 3})
    (train,) = data.load(root, classes=classes, splits=("train",))
    values, labels = pixels(train)
    assert np.bincount(labels).tolist() == [7] * 3
    np.testing.assert_array_equal(values[:, 0], 40 * np.array([3, 1, 5])[labels])
    assert len(np.unique(values, axis=0)) == 3 * 7
    described = data.describe(root, classes=classes)
    assert described.class_names == classes and described.num_classes == 3
    assert described.num_examples == {"train": 21, "validation": 9}


@pytest.mark.slow
def test_as_many_of_each_class_are_taken_by_the_seed(tmp_path):
    root = imagenet(tmp_path, {"train": 20, "val": 1})
    first, same, other = (
        pixels(data.load(root, classes=["n02", "n00"], splits=("train",), take=10, seed=s)[0])
        for s in (0, 0, 1)
    )
    assert np.bincount(first[1]).tolist() == np.bincount(other[1]).tolist() == [5, 5]
    np.testing.assert_array_equal(first[0], same[0])
    assert {tuple(v) for v in first[0]} != {tuple(v) for v in other[0]}


@pytest.mark.slow
def test_splits_of_some_classes_are_parts_of_all_splits():
    """Also of a data set that is no folder, so that no test image becomes a training one."""
    pairs = zip(data.load("digits"), data.load("digits", classes=["8", "3"]), strict=True)
    for whole, part in pairs:
        expected = {
            image: [8, 3].index(label)
            for image, label in labelled(whole).items()
            if label in (8, 3)
        }
        assert labelled(part) == expected


@pytest.mark.slow
def test_few_shots_of_some_classes():
    few, held = data.few_shot("digits", 2, held_out=1, classes=["4", "7", "1"])
    train = labelled(data.load("digits", splits=("train",))[0])
    for dataset, count in ((few, 2), (held, 1)):
        assert counts(dataset) == [count] * 3
        for image, label in labelled(dataset).items():
            assert train[image] == (4, 7, 1)[label]


@pytest.mark.slow
def test_sizes_are_those_of_the_selected_images(tmp_path):
    root = imagenet(tmp_path, {"train": 2, "val": 1}, classes=2)
    Image.new("RGB", (9, 9)).save(root / "train" / "n00" / "n00_0.JPEG", "png")
    (images, _) = next(iter(data.load(root, classes=["n01"], splits=("train",))[0]))
    assert images.shape == (2, 4, 5, 3)
    with pytest.raises(ValueError, match="image_size"):
        data.load(root, classes=["n01", "n00"], splits=("train",))


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ("n01", "list of distinct class names"),
        ([], "list of distinct class names"),
        (["3", "3"], "list of distinct class names"),
        (["3", "33"], "Unknown class: '33'"),
    ],
)
def test_lists_that_do_not_fit_are_refused(classes, words):
    with pytest.raises(ValueError, match=words):
        data.load("digits", classes=classes)


def test_names_in_a_list_may_hold_blanks(tmp_path):
    """Of words after a WordNet number, the number is the name."""
    (tmp_path / "list.txt").write_text("  hot dog \nn01601694 water ouzel\nn the letter\nice cream")
    classes = data.read_class_list(tmp_path / "list.txt")
    assert classes == ("hot dog", "n01601694", "n the letter", "ice cream")


def test_unreadable_lists_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"list of classes .*nowhere"):
        data.read_class_list(tmp_path / "nowhere")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ValueError, match=r"list of classes .*image"):
        data.read_class_list(tmp_path / "image.png")


def test_labels_that_would_have_to_be_read_are_refused():
    source = open_source("digits", None)
    source.labels = lambda split: None
    with pytest.raises(ValueError, match="train split is too large"):
        select_classes(source, ["3"]).num_examples["train"]
