"""Top-k accuracy against sorted scores."""

import numpy as np
import pytest
import tensorflow as tf

from vit_tf.data.batches import Shard
from vit_tf.training import evaluation
from vit_tf.training.evaluation import (
    correct_answers,
    majority_accuracy,
    match_classes,
    top_k_accuracy,
)


def make_data(scores, labels):
    return tf.data.Dataset.from_tensor_slices((scores, labels)).batch(7)


def test_top_k_is_that_of_sorted_scores(rng):
    scores = rng.integers(5, size=(40, 9)).astype("float32")  # with many equal ones
    labels = rng.integers(9, size=40)
    order = np.argsort(-scores, axis=1, kind="stable")
    found = top_k_accuracy(lambda images: images, make_data(scores, labels), (1, 3, 5, 9))
    expected = {
        k: np.mean([y in row[:k] for y, row in zip(labels, order, strict=True)]) for k in (1, 3, 5)
    }
    assert found == expected
    correct = correct_answers(lambda images: images, make_data(scores, labels))
    np.testing.assert_array_equal(correct, scores.argmax(axis=1) == labels)
    assert found[1] == correct.mean()
    few = make_data(scores[:, :4], labels % 4)
    assert list(top_k_accuracy(lambda images: images, few)) == [1]


def test_a_head_of_zeros_is_at_chance():
    labels = np.arange(60) % 10
    data = make_data(np.zeros((60, 3), "float32"), labels)
    found = top_k_accuracy(lambda images: tf.zeros((tf.shape(images)[0], 10)), data)
    assert found == {1: 0.1, 5: 0.5}


@pytest.mark.parametrize(
    "scores, labels, message",
    [
        (np.zeros((3, 2)), [0, 1, 2], r"num_classes - 1 = 1.*to 2"),
        (np.full((3, 2), np.nan), [0, 1, 1], "finite"),
        (np.zeros((3, 2, 2)), [0, 1, 1], r"\(example, class\)"),
        (np.zeros((0, 2)), np.zeros(0, int), "at least one"),
    ],
)
def test_mistakes_are_named(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        top_k_accuracy(lambda images: images, make_data(scores, labels))


def test_classes_are_compared_by_name_and_matched_with_allow_others():
    own = ("cat", "dog", "cow", "hen")
    np.testing.assert_array_equal(match_classes(own, 4, list(own)), range(4))
    np.testing.assert_array_equal(match_classes(None, 4, "abcd"), range(4))
    for names, words in [
        (("cow", "cat"), "2 classes, cow, cat, not all"),
        (("dog", "cat", "cow", "hen"), "not all, or not in order"),
        (("cat", "dog", "pig", "hen"), "of which pig are not among them"),
    ]:
        with pytest.raises(ValueError, match=f"the 4 classes of the model, cat.*{words}"):
            match_classes(own, 4, names)
    with pytest.raises(ValueError, match=r"4 classes without names.*\[0, 4\).*2 classes, cow, cat"):
        match_classes(None, 4, ("cow", "cat"))
    np.testing.assert_array_equal(match_classes(own, 4, ("cow", "cat"), True), [2, 0])
    np.testing.assert_array_equal(match_classes(own, 4, ("cow", "pig"), True), [0, 1])
    np.testing.assert_array_equal(match_classes(None, 4, ("cow", "cat"), True), [0, 1])


def test_the_majority_is_that_of_the_training_labels():
    train, test = (
        tf.data.Dataset.from_tensor_slices((np.zeros(len(labels)), labels)).batch(2)
        for labels in ([[2, 2], [0, 1], [2, 1]], [[1, 1], [2, 1], [2, 0], [1, 1]])
    )
    assert majority_accuracy(train, test, 3) == 2 / 8
    assert majority_accuracy(train.take(0), test, 3) == 1 / 8  # of equally common ones the first


@pytest.mark.parametrize("index", range(3))
def test_results_of_workers_are_concatenated(monkeypatch, rng, index):
    """What each worker returns, where the others' sums are those that it does not have itself."""
    scores = rng.normal(size=(31, 4)).astype("float32")
    labels = rng.integers(4, size=31)
    parts = [slice(0, 11), slice(11, 21), slice(21, 31)]
    expected = scores.argmax(axis=1) == labels
    whole = make_data(scores, labels)
    own = make_data(scores[parts[index]], labels[parts[index]])
    others = expected.astype(np.int64)
    others[parts[index]] = 0
    counts = np.array([part.stop - part.start for part in parts])

    def of_every_worker(number):
        assert number == counts[index]
        return counts

    monkeypatch.setattr(evaluation, "current_shard", lambda: Shard(index, 3))
    monkeypatch.setattr(evaluation, "shard_of_worker", lambda dataset: own)
    monkeypatch.setattr(evaluation, "of_every_worker", of_every_worker)
    monkeypatch.setattr(evaluation, "sum_of_workers", lambda mine: mine + others)
    np.testing.assert_array_equal(correct_answers(lambda images: images, whole), expected)
    assert 0 < expected.sum() < 31


def test_results_of_workers_that_each_have_all_data(monkeypatch, rng):
    scores, labels = rng.normal(size=(9, 4)).astype("float32"), rng.integers(4, size=9)
    monkeypatch.setattr(evaluation, "current_shard", lambda: Shard(1, 2))
    found = correct_answers(lambda images: images, make_data(scores, labels))
    np.testing.assert_array_equal(found, scores.argmax(axis=1) == labels)
