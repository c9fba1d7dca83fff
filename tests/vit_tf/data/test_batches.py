"""Data sets made anew: what is skipped is not made, and the rest is what it would have been."""

import numpy as np
import pytest
import tensorflow as tf
from counted_digits import count_decoding

from vit_tf import data
from vit_tf.analysis.engine.stream import as_dataset
from vit_tf.data.batches import ResumableDataset, full_batches, skip_batches


def counted(made):
    """Batches of 3 of 20 shuffled numbers, each noted in a list when it is made."""

    def note(number):
        made.append(int(number))
        return number

    def prepare(numbers):
        return numbers.map(lambda n: tf.ensure_shape(tf.numpy_function(note, [n], tf.int64), ()))

    numbers = tf.data.Dataset.range(20).shuffle(20, seed=4)
    return ResumableDataset.from_examples(
        lambda examples, full: examples.batch(3, drop_remainder=full),
        ResumableDataset.from_sources(prepare, numbers),
        3,
    )


def passes(dataset, count):
    return [[batch.tolist() for batch in dataset.as_numpy_iterator()] for _ in range(count)]


def test_skipped_examples_are_not_made_and_the_next_passes_are_the_same():
    whole = passes(counted([]), 3)
    made = []
    dataset = counted(made)
    iter(dataset)  # the first pass, of which nothing is read
    rest = skip_batches(dataset, 4).concatenate(dataset)
    (found,) = passes(rest, 1)
    assert found == whole[1][4:] + whole[2]
    assert made == [number for batch in whole[1][4:] + whole[2] for number in batch]


def test_a_foreign_data_set_is_skipped_as_tensorflow_does():
    assert passes(skip_batches(tf.data.Dataset.range(5).batch(2), 1), 1) == [[[2, 3], [4]]]


def test_full_batches_leave_the_smaller_one_out_without_reading():
    made = []
    full = full_batches(counted(made))
    assert made == [] and full.cardinality() == 6 and full.element_spec.shape == (3,)
    assert [len(batch) for batch in passes(full, 1)[0]] == [3] * 6
    few = ResumableDataset.from_examples(
        lambda n, full: n.batch(3, full), tf.data.Dataset.range(2), 3
    )
    with pytest.raises(ValueError, match=r"No batch is full.*Received: 1 smaller"):
        full_batches(few)


def test_batches_of_unknown_size_are_refused():
    ragged = tf.data.Dataset.range(5).batch(2)
    with pytest.raises(ValueError, match=r"static size.*drop_remainder"):
        full_batches(ragged)
    static = tf.data.Dataset.range(5).batch(2, drop_remainder=True)
    assert full_batches(static) is static


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_loaded_and_augmented_images_are_not_decoded_when_skipped(monkeypatch, masked):
    decoded = count_decoding(monkeypatch)

    def load():
        tf.random.set_seed(1)
        decoded.clear()
        (train,) = data.load("digits", batch_size=3, splits=("train",), take=16, seed=1)
        train = data.augment(train, 10, mixup=0.2, flip=True)
        return data.mask_patches(train, (2, 2)) if masked else train

    dataset = load()
    whole = [list(dataset.as_numpy_iterator()) for _ in range(2)]
    dataset = load()
    iter(dataset)
    found = list(skip_batches(dataset, 4).as_numpy_iterator())
    assert len(found) == 2
    for one, other in zip(found, whole[1][4:], strict=True):
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(decoded) == len(set(decoded)) == 16 - 4 * 3


@pytest.mark.slow
def test_no_pass_over_own_data_is_tuned_meanwhile():
    """A pass that is tuned may end up to a minute late."""
    train, test = data.load("digits", image_size=8, batch_size=16, take={"train": 33, "test": 21})
    augmented = data.augment(train, 10, mixup=0.2, flip=True)
    arrays = as_dataset(np.zeros((4, 8, 8, 3), "float32"))
    for dataset in (train, test, augmented, skip_batches(train, 1), arrays):
        assert dataset.options().autotune.enabled is False


def test_users_take_shards_of_any_data_set_as_of_tensorflows():
    found = [passes(counted([]).shard(2, index), 1)[0] for index in range(2)]
    (whole,) = passes(counted([]), 1)
    assert found == [whole[::2], whole[1::2]]
