"""The few images of every class that `few_shot` returns, against the train split of `load`."""

import importlib

import numpy as np
import pytest
from image_folders import arrays, counts, hashes, labelled, write
from PIL import Image

from vit_tf import data
from vit_tf.data.pipeline import Digits, class_rank


def test_class_rank_counts_earlier_examples_of_the_class(rng):
    labels = rng.integers(0, 5, 40)
    expected = [np.sum(labels[:i] == label) for i, label in enumerate(labels)]
    np.testing.assert_array_equal(class_rank(labels), expected)


def test_shots_and_held_out_images_are_exact_disjoint_and_from_the_train_split():
    train, test = (labelled(dataset) for dataset in data.load("digits"))
    few, held = data.few_shot("digits", 5, held_out=3)
    assert counts(few) == [5] * 10 and counts(held) == [3] * 10
    few, held = labelled(few), labelled(held)
    assert len(few) == 50 and len(held) == 30 and not few.keys() & held.keys()
    assert few.items() | held.items() <= train.items() and not few.keys() & test.keys()


@pytest.mark.slow
def test_equal_seeds_repeat_and_others_differ():
    first, second, other = (data.few_shot("digits", 5, seed=s, held_out=3) for s in (1, 1, 2))
    for part in (0, 1):
        epochs = [hashes(first[part]) for _ in range(2)]
        assert epochs == [hashes(second[part]) for _ in range(2)]
        assert sorted(epochs[0]) == sorted(epochs[1])
        assert (epochs[0] == epochs[1]) == (part == 1)
        assert len(set(epochs[0]) & set(hashes(other[part]))) < len(epochs[0]) / 2


@pytest.mark.slow
def test_fewer_shots_are_among_more_and_held_out_images_stay():
    few, held = data.few_shot("digits", 2, held_out=4)
    more, same = data.few_shot("digits", 20, held_out=4)
    assert set(hashes(few)) < set(hashes(more))
    assert hashes(held) == hashes(same)


@pytest.mark.slow
def test_nothing_held_out_is_an_empty_data_set_of_the_same_kind():
    few, held = data.few_shot("digits", 2, image_size=(6, 4), batch_size=8)
    assert list(held) == [] and held.element_spec == few.element_spec
    assert [len(labels) for _, labels in few] == [8, 8, 4]
    assert arrays(few)[0].shape == (20, 6, 4, 3)


def test_errors_name_the_class_and_the_numbers():
    train = counts(data.load("digits")[0])
    scarce, least = int(np.argmin(train)), min(train)
    data.few_shot("digits", least)
    message = (
        rf"at least {least + 1} images.*shots={least} and held_out=1.*"
        rf"Received: {least} of class '{scarce}'"
    )
    with pytest.raises(ValueError, match=message):
        data.few_shot("digits", least, held_out=1)
    for arguments, message in (
        ({"shots": 0}, "Expected shots to be an integer >= 1. Received: shots=0"),
        ({"held_out": -1}, "Expected held_out to be an integer >= 0. Received: held_out=-1"),
        ({"seed": 0.5}, "Expected seed to be an integer >= 0"),
        ({"batch_size": 0}, "Expected batch_size to be an integer >= 1"),
        ({"image_size": 0}, "Expected image_size to be a number of pixels"),
    ):
        with pytest.raises(ValueError, match=message):
            data.few_shot("digits", **{"shots": 1} | arguments)
    with pytest.raises(ValueError, match="Did you mean digits"):
        data.few_shot("digit", 1)


@pytest.fixture
def folder(tmp_path, rng):
    """A train split of images of 6 x 5 pixels: 5 of apes and 3 of bees."""
    for name, size in {"ape": 5, "bee": 3}.items():
        for i in range(size):
            write(tmp_path / "train" / name / f"{i}.png", rng.integers(0, 256, (6, 5, 3)))
    return tmp_path


@pytest.mark.slow
def test_images_that_differ_in_size_between_the_two_parts(folder):
    for path in folder.rglob("*.png"):
        with Image.open(path) as image:
            image.resize((5, 7 + int(path.stem))).save(path)
    with pytest.raises(ValueError, match="image_size to be given"):
        data.few_shot(folder, 1, held_out=1)
    few, held = data.few_shot(folder, 2, held_out=1, image_size=4)
    assert few.element_spec == held.element_spec
    assert counts(few) == [2, 2] and counts(held) == [1, 1]
    with pytest.raises(ValueError, match="Received: 3 of class 'bee'"):
        data.few_shot(folder, 4)


@pytest.fixture
def blocks(monkeypatch):
    """The digits as a data set whose labels must be read, and the blocks of indices read."""
    read = []

    class DigitsWithoutLabels(Digits):
        def labels(self, split):
            return None

        def read(self, split, indices):
            read.append(indices)
            return super().read(split, indices)

    source = DigitsWithoutLabels()
    module = importlib.import_module("vit_tf.data.pipeline")
    monkeypatch.setattr(module, "open_source", lambda name, data_dir: source)
    monkeypatch.setattr(module, "BLOCK", 100)
    return read


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_labels_not_known_ahead_are_read_no_further_than_needed(blocks, seed):
    few, held = data.few_shot("digits", 4, seed=seed, held_out=2)
    assert 1 <= len(blocks) - 2 <= 4
    assert counts(few) == [4] * 10 and counts(held) == [2] * 10
    train, few, held = (labelled(d) for d in (data.load("digits")[0], few, held))
    assert not few.keys() & held.keys() and few.items() | held.items() <= train.items()
    more, same = data.few_shot("digits", 30, seed=seed, held_out=2)
    assert few.items() < labelled(more).items() and held == labelled(same)
    other = data.few_shot("digits", 4, seed=seed + 1, held_out=2)[0]
    assert few.keys() != labelled(other).keys()


def test_labels_not_known_ahead_are_all_read_once_where_images_are_scarce(blocks):
    with pytest.raises(ValueError, match=r"Received: 1\d\d of class"):
        data.few_shot("digits", 1000)
    np.testing.assert_array_equal(np.sort(np.concatenate(blocks)), np.arange(1437))
