"""Data sets of Python: what is read, how often and in which order, against arrays of the same."""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import vit_tf
from vit_tf import analysis
from vit_tf.data import any_images
from vit_tf.data.any_images import as_images, batch_images, shape_of_floats
from vit_tf.data.batches import IN_ORDER, RANDOM, LazyRows, batch_arrays
from vit_tf.data.known_forms import Examples, in_known_form

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (11, 8, 8, 3)).astype(np.uint8)
LABELS = np.arange(11) % 3
LEVELS = vit_tf.Preprocessing.from_range((8, 8), 0, 255)


class Counted:
    """Examples by number, which counts how often each is read."""

    def __init__(self, examples):
        self.examples, self.reads = list(examples), []

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, number):
        self.reads.append(number)
        return self.examples[number]


class Stream:
    """Examples one after another, of unknown number."""

    def __init__(self, examples):
        self.examples, self.passes = list(examples), 0

    def __iter__(self):
        self.passes += 1
        return iter(self.examples)


def pairs():
    return zip(map(Image.fromarray, PIXELS), LABELS.tolist(), strict=True)


def small_cnn():
    keras.utils.set_random_seed(0)
    images = keras.Input((8, 8, 3))
    x = keras.layers.Rescaling(1 / 255)(images)
    x = keras.layers.Conv2D(6, 3, activation="relu", name="a")(x)
    x = keras.layers.Conv2D(6, 3, activation="relu", name="b")(x)
    return keras.Model(images, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize("is_large", [False, True])
def test_examples_by_number_are_read_once_in_random_order(is_large, monkeypatch):
    """Held in memory, or read batch after batch."""
    monkeypatch.setattr(any_images, "CACHE_BYTES", -1 if is_large else 2**30)
    data = Counted(pairs())
    found = analysis.cka(small_cnn(), data, layers=["a", "b"])
    # The first example shows what the data are.
    assert sorted(data.reads) == [0, *range(11)]
    order = RANDOM.order(11).tolist()
    assert data.reads == [0, *(order if is_large else range(11))]
    expected = analysis.cka(small_cnn(), PIXELS.astype(np.float32), layers=["a", "b"])
    np.testing.assert_allclose(found.cka, expected.cka, atol=1e-6)


@pytest.mark.parametrize("is_large", [False, True])
def test_labels_stay_with_their_images(is_large, monkeypatch, tmp_path):
    monkeypatch.setattr(any_images, "CACHE_BYTES", -1 if is_large else 2**30)
    paths = [str(tmp_path / f"{number:02d}.png") for number in range(11)]
    for path, image in zip(paths, PIXELS, strict=True):
        Image.fromarray(image).save(path)
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file["images"], file["labels"] = PIXELS, LABELS
        forms = {
            "data set": Counted(pairs()),
            "rows by name": Counted({"img": x, "label": y, "id": "a"} for x, y in pairs()),
            "PIL images and labels": ([x for x, _ in pairs()], LABELS),
            "8 bits and labels": (PIXELS, LABELS),
            "paths and labels": (paths, LABELS),
            "a folder and labels": (tmp_path, LABELS),
            "h5py": (file["images"], file["labels"]),
            "stream": Stream(pairs()),
            "lists of two": [[x, y] for x, y in pairs()],
            "channels first": Counted(zip(np.moveaxis(PIXELS, -1, 1), LABELS, strict=True)),
        }
        for name, form in forms.items():
            made = as_images(form, LEVELS, RANDOM)
            is_lazy = isinstance(made[0], LazyRows) if isinstance(made, tuple) else is_large
            assert name == "stream" or is_lazy == is_large, name
            read = batch_images(form, LEVELS).as_numpy_iterator()
            images, labels = (np.concatenate(x) for x in zip(*read, strict=True))
            order = np.arange(11) if name == "stream" else RANDOM.order(11)
            np.testing.assert_array_equal(images, PIXELS[order], err_msg=name)
            np.testing.assert_array_equal(labels, LABELS[order], err_msg=name)


def test_test_images_of_a_large_data_set_are_every_fifth(monkeypatch):
    model = small_cnn()
    arrays = PIXELS.astype(np.float32), LABELS
    with pytest.warns(UserWarning, match="one in 5 images"):
        expected = analysis.knn_accuracy(model, arrays, layers=["a"], k=1)
    monkeypatch.setattr(any_images, "CACHE_BYTES", -1)
    with pytest.warns(UserWarning, match="one in 5 images"):
        found = analysis.knn_accuracy(model, ([x for x, _ in pairs()], LABELS), layers=["a"], k=1)
    np.testing.assert_array_equal(found, expected)


def test_a_stream_is_read_once_for_a_measurement():
    data = Stream(pairs())
    analysis.cka(small_cnn(), data, layers=["a", "b"])
    assert data.passes == 2  # one of them for the first example


def test_channels_of_a_data_set_that_come_first_are_moved():
    for batches in (
        tf.data.Dataset.from_tensor_slices(np.moveaxis(PIXELS, -1, 1)).batch(4),
        tf.data.Dataset.from_tensor_slices(PIXELS).batch(4),
    ):
        read = np.concatenate(list(as_images(batches, LEVELS).as_numpy_iterator()))
        np.testing.assert_array_equal(read, PIXELS)


def test_grey_batches_of_a_loader_have_an_axis_of_channels():
    class Batches:
        batch_sampler = ()  # as loaders of PyTorch have one

        def __len__(self):
            return 2

        def __iter__(self):
            return iter([PIXELS[:6, ..., 0] / 255, PIXELS[6:, ..., 0] / 255])

    read = np.concatenate(list(batch_images(Batches()).as_numpy_iterator()))
    np.testing.assert_array_equal(read, PIXELS[..., :1] / 255)


def test_examples_that_differ_from_the_first_are_explained():
    floats = [np.zeros((8, 8, 3), np.float32), np.zeros((8, 9, 3), np.float32)]
    mixed = [np.zeros((8, 8, 3), np.float32), PIXELS[0]]
    ragged = [(PIXELS[0], [1, 2]), (PIXELS[1], [1])]
    for examples, words in (
        (floats, r"one size.*\(8, 8, 3\), \(8, 9, 3\).*float images are not resized"),
        (mixed, "float32 and uint8 images"),
        (ragged, r"shape \(2,\) and type int64 for each image.*Received: shape \(1,\)"),
        ([], "at least one image"),
        ([3, 4], "each image to be an array.*Received: int"),
    ):
        with pytest.raises(ValueError, match=words):
            list(batch_images(Counted(examples), LEVELS, IN_ORDER))
    with pytest.raises(ValueError, match="iterator, which is an iterator"):
        batch_images(iter(PIXELS))
    assert isinstance(in_known_form(Counted(floats)), Examples)


def test_masks_that_follow_the_images_of_a_stream_keep_their_shape():
    """Only the images of a batch get an axis of channels, as those of a `tf.data.Dataset` do."""
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (6, 8, 8, 3)).astype("float32")
    masks = rng.integers(0, 2, (6, 8, 8))

    class Batches(keras.utils.PyDataset):
        @property
        def num_batches(self):
            return 2

        def __getitem__(self, number):
            part = slice(3 * number, 3 * number + 3)
            return images[part], masks[part]

    batches = list(as_images(Batches()))
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), images)
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), masks)


def test_a_pydataset_without_an_end_is_refused():
    class Endless(keras.utils.PyDataset):
        @property
        def num_batches(self):
            return None

        def __getitem__(self, number):
            return np.zeros((2, 8, 8, 3), "float32")

    with pytest.raises(ValueError, match="PyDataset of finite length"):
        as_images(Endless())


def test_labels_that_are_no_longer_integers_are_refused():
    image = np.zeros((8, 8, 3), "float32")
    rows = [(image, 1), (image, 0.5)]

    class Rows:
        def __len__(self):
            return 2

        def __getitem__(self, number):
            return rows[number]

    with pytest.raises((ValueError, tf.errors.OpError), match="type int64 for each image"):
        for _ in batch_arrays(as_images(Rows()), IN_ORDER):
            pass


def test_floats_with_channels_first_have_the_size_of_their_images():
    spec = tf.data.Dataset.from_tensor_slices(np.zeros((4, 3, 20, 24), "float32")).batch(2)
    assert shape_of_floats(spec) == (20, 24, 3)
