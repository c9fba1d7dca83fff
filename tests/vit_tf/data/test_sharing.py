"""Parts of workers: together they are the batches of one process, and nothing is decoded twice."""

import functools
from types import MappingProxyType

import numpy as np
import pytest
import tensorflow as tf
import tiny_records
from counted_digits import count_decoding

from vit_tf import data
from vit_tf.data import pipeline
from vit_tf.data.batches import Shard, skip_batches
from vit_tf.data.source import Decoder, Source

SLOW = pytest.mark.slow
TAKE = {"train": 49, "validation": 33, "test": 22}


def load(**settings):
    sizes = {"image_size": 8, "batch_size": 16, "splits": tuple(TAKE), "take": TAKE, "seed": 3}
    tf.random.set_seed(1)
    return data.load("digits", **sizes | settings)


def batches(dataset):
    return list(dataset.as_numpy_iterator())


def joined(parts):
    """Batches from the parts of them that several workers have."""
    return [
        tuple(np.concatenate(leaves) for leaves in zip(*of_batch, strict=True))
        for of_batch in zip(*parts, strict=True)
    ]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize("workers, replicas", [(1, 1), (2, 1), (3, 2), (4, 1)])
@pytest.mark.parametrize("count", [0, 1, 5, 16, 129])
def test_parts_follow_each_other_and_differ_by_one_for_each_replica(workers, replicas, count):
    numbers = np.arange(count)
    parts = [
        Shard(worker, workers, replicas).slice_batch(tf.constant(numbers))
        for worker in range(workers)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), numbers)
    for worker, part in enumerate(parts):
        shard = Shard(worker, workers, replicas)
        assert shard.size(count) == len(part)
        assert list(range(*shard.bounds(count))) == list(part)
        of_replicas = [len(one) for one in shard.split_replicas(part).as_numpy_iterator()]
        least, more = divmod(count, workers * replicas)
        first = worker * replicas
        assert of_replicas == [least + (first + place < more) for place in range(replicas)]


@pytest.mark.slow
def test_parts_are_the_batches_of_one_process_and_each_image_is_decoded_once(monkeypatch):
    workers, decoded = 3, count_decoding(monkeypatch)
    whole = load()
    expected = [[batches(split) for split in whole] for _ in range(2)]
    decoded.clear()
    shards = [Shard(worker, workers) for worker in range(workers)]
    parts = [[split.shard_batches(shard) for shard in shards] for split in load()]
    for epoch in expected:
        for of_split, split in zip(parts, epoch, strict=True):
            found = [batches(part) for part in of_split]
            assert len({len(part) for part in found}) == 1
            assert_same(joined(found), split)
    assert len(decoded) == 2 * sum(TAKE.values())
    # A last batch of one example: the others have an empty one.
    assert [len(batches(part)[-1][1]) for part in parts[0]] == [1] + [0] * (workers - 1)


@pytest.mark.slow
def test_a_shard_resumes_at_the_same_batch(monkeypatch):
    decoded = count_decoding(monkeypatch)
    alone, *loaded = (load(splits=("train",), take=49)[0] for _ in range(3))
    first, second = (batches(alone) for _ in range(2))
    parts = [train.shard_batches(Shard(worker, 2)) for worker, train in enumerate(loaded)]
    rest = [skip_batches(part, 2).concatenate(part) for part in parts]
    decoded.clear()
    assert_same(joined([batches(part) for part in rest]), first[2:] + second)
    assert len(decoded) == 49 - 32 + 49


@pytest.mark.slow
def test_the_last_of_many_replicas_have_empty_batches_of_every_kind():
    train, validation, _ = load(take=TAKE | {"validation": 2})
    every = {"mixup": 0.2, "cutmix": 1.0, "flip": True, "shift": 1, "rand_augment": 0.3}
    augmented = data.augment(train, 10, erase=0.5, **every)
    part = data.mask_patches(augmented, (4, 4)).shard_batches(Shard(2, 3))
    sizes = [len(colours) for _, colours in part.as_numpy_iterator()]
    assert sizes == [5, 5, 5, 0]
    (only,) = batches(validation.shard_batches(Shard(2, 3)))
    assert only[0].shape == (0, 8, 8, 3) and only[1].dtype == np.int32


@pytest.fixture
def equal_images(monkeypatch):
    """Makes `load` read 40 images of the same pixels, which differ by what is drawn alone."""
    image = np.random.default_rng(0).uniform(0, 255, (12, 12, 3)).astype("float32")
    images, labels = np.repeat(image[None], 40, axis=0), np.zeros(40, np.int32)

    class EqualImages(Source, Decoder):
        class_names = ("one",)
        num_examples = MappingProxyType({"train": 40})

        def labels(self, split):
            return labels

        def image_size(self, split, indices):
            return image.shape[:2]

        def read(self, split, indices):
            return tf.data.Dataset.from_tensor_slices((images[indices], labels[indices]))

        def decoder(self, num_channels):
            return self

        def decode(self, item):
            return item, ""

        def version(self):
            return "equal"

    monkeypatch.setattr(pipeline, "open_source", lambda *_: EqualImages())


def drawn_images(whole_batches, loading, augmenting, *shard, skip=0):
    """The images of two epochs, as one worker or a single process makes them."""
    tf.random.set_seed(1)
    own = {"shard": shard} if shard and not whole_batches else {}
    settings = {"image_size": 12, "batch_size": 8, "splits": ("train",), "seed": 3}
    (train,) = data.load("equal", **settings, **own, **loading)
    train = data.augment(train, 1, seed=5, **augmenting) if augmenting else train
    train = train.shard_batches(Shard(*shard)) if shard and whole_batches else train
    epochs = skip_batches(train, skip), train
    return [np.concatenate([x for x, _ in batches(epoch)]) for epoch in epochs]


@pytest.mark.slow
@pytest.mark.parametrize(
    "whole_batches, augmenting, exact",
    [
        (True, {"flip": True, "rand_augment": True}, True),
        (False, {"flip": True}, True),
        (False, {"rand_augment": True}, False),  # which rounds otherwise in the graph of a shard
    ],
)
def test_a_single_worker_draws_what_a_process_without_workers_draws(
    equal_images, whole_batches, augmenting, exact
):
    how = whole_batches, {"random_resized_crop": True}, augmenting
    found, expected = (np.stack(drawn_images(*how, *shard)) for shard in ((0, 1), ()))
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:  # other draws for one image would change a fortieth
        assert np.isclose(found, expected, rtol=0, atol=1e-6).mean() > 0.99


# Arguments of `load` and `augment`, and how many of 20 images two workers may share by chance. The
# whole area of a square leaves nothing to crop, so that flips and RandAugment alone are drawn.
WHOLE = {"random_resized_crop": (1, 1)}


@pytest.mark.parametrize(
    "whole_batches, loading, augmenting, most",
    [
        (True, {}, {"flip": True}, 16),
        pytest.param(True, {"random_resized_crop": True}, {}, 1, marks=SLOW),
        pytest.param(True, WHOLE, {"flip": True}, 16, marks=SLOW),
        pytest.param(True, WHOLE, {"rand_augment": True}, 10, marks=SLOW),
        pytest.param(False, {"random_resized_crop": True}, {}, 1, marks=SLOW),
        pytest.param(False, {}, {"flip": True}, 16, marks=SLOW),
    ],
)
def test_workers_draw_different_pixels_and_a_resumed_one_as_before(
    equal_images, whole_batches, loading, augmenting, most
):
    images = functools.partial(drawn_images, whole_batches, loading, augmenting)

    def num_shared(one, other):
        return sum(np.array_equal(x, y) for x, y in zip(one, other, strict=True))

    workers = [images(0, 2), images(1, 2)]
    for epoch in range(2):
        assert num_shared(workers[0][epoch], workers[1][epoch]) <= most
    for first, second in workers:
        assert len(first) == 20 and num_shared(first, second) <= most
    resumed = images(1, 2, skip=1)
    np.testing.assert_array_equal(resumed[0], workers[1][0][-len(resumed[0]) :])
    np.testing.assert_array_equal(resumed[1], workers[1][1])


def test_more_replicas_than_a_batch_has_examples():
    with pytest.raises(ValueError, match=r"batch_size to be at least 18.*Received: batch_size=16"):
        load(splits=("train",), take=49)[0].shard_batches(Shard(0, 9, 2))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    tiny_records.write(folder, 2000)
    return folder


@pytest.mark.slow
def test_workers_shuffle_runs_of_tfds_and_keep_the_order_of_its_other_splits(records):
    settings = {"data_dir": records, "batch_size": 300, "seed": 2, "splits": ("train", "test")}
    train, test = data.load("tiny_records", **settings)
    shards = [Shard(worker, 3) for worker in range(3)]
    parts = [batches(test.shard_batches(shard)) for shard in shards]
    assert_same(joined(parts), batches(test))

    def bytes_of(dataset):
        return [image.tobytes() for images, _ in dataset for image in images]

    # Both files have the same thousand images.
    everything = sorted(bytes_of(batches(train)))
    parts = [train.shard_batches(shard) for shard in shards]
    epochs = [[batches(part) for part in parts] for _ in range(2)]
    for epoch in epochs:
        sizes = [[len(labels) for _, labels in part] for part in epoch]
        assert sizes == [[100] * 6 + [67], [100] * 6 + [67], [100] * 6 + [66]]
        assert sorted(image for part in epoch for image in bytes_of(part)) == everything
    assert bytes_of(epochs[0][0]) != bytes_of(epochs[1][0])
    assert set(bytes_of(epochs[0][0])) == set(bytes_of(epochs[1][0]))
