"""The data sets that `load` returns, against the files and arrays that they come from."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from image_folders import arrays, counts, flat_folder, hashes, labelled, write
from paths import TFDS, needs_fashion
from PIL import Image
from sklearn.datasets import load_digits

from vit_tf import data
from vit_tf.data import source
from vit_tf.data.augmentation import random_erasing
from vit_tf.data.rand_augment import make_rand_augment

# Digits


@pytest.mark.slow
def test_digits_are_those_of_scikit_learn():
    digits = load_digits()
    train, test = data.load("digits")
    found = {}
    for dataset in (train, test):
        images, labels = arrays(dataset)
        assert images.dtype == np.float32 and labels.dtype == np.int32
        assert images.shape[1:] == (8, 8, 3)
        np.testing.assert_array_equal(images[..., :1].repeat(3, axis=-1), images)
        found |= {i[..., 0].tobytes(): label for i, label in zip(images, labels, strict=True)}
    expected = (digits.images / 8 - 1).astype(np.float32)
    assert len(found) == len(expected) == 1797
    assert [found[image.tobytes()] for image in expected] == digits.target.tolist()
    assert len(hashes(test)) == 360


def test_the_test_split_is_stratified_and_blind_to_the_seed():
    first, second = (data.load("digits", splits=("test",), seed=seed)[0] for seed in (0, 7))
    assert hashes(first) == hashes(second)
    share = np.array(counts(first)) / np.bincount(load_digits().target)
    np.testing.assert_allclose(share, 0.2, atol=0.005)


@pytest.mark.slow
def test_equal_seeds_give_equal_epochs_and_epochs_differ():
    first, second, other = (data.load("digits", seed=seed)[0] for seed in (0, 0, 1))
    epochs = [[hashes(dataset) for _ in range(3)] for dataset in (first, second, other)]
    assert epochs[0] == epochs[1]
    assert epochs[0][0] != epochs[2][0]
    assert epochs[0][0] != epochs[0][1] != epochs[0][2]
    assert sorted(epochs[0][0]) == sorted(epochs[0][2]) == sorted(epochs[2][1])


def test_only_the_train_split_is_shuffled():
    _, validation, test = data.load("digits", splits=("train", "validation", "test"))
    for dataset in (validation, test):
        assert hashes(dataset) == hashes(dataset)
    digits = load_digits()
    order = {(i / 8 - 1).astype("f").tobytes(): n for n, i in enumerate(digits.images)}
    places = [order[image[..., 0].tobytes()] for image in arrays(test)[0]]
    assert places == sorted(places)


@pytest.mark.slow
def test_validation_is_taken_from_train_only_on_request():
    whole, test = (set(hashes(dataset)) for dataset in data.load("digits"))
    splits = ("validation", "train", "test")
    validation, train, same = data.load("digits", splits=splits, validation=0.25)
    parts = [set(hashes(dataset)) for dataset in (train, validation, same)]
    assert parts[0] | parts[1] == whole and parts[2] == test
    assert not parts[0] & parts[1] and not parts[2] & whole
    assert len(parts[1]) == round(0.25 * 1437)
    share = np.array(counts(validation)) / (np.array(counts(train)) + counts(validation))
    np.testing.assert_allclose(share, 0.25, atol=0.01)
    other = data.load("digits", splits=("validation",), validation=0.25, seed=1)[0]
    assert parts[1] == set(hashes(data.load("digits", splits=splits, validation=0.25)[0]))
    assert parts[1] != set(hashes(other))


@pytest.mark.slow
def test_take_keeps_a_balanced_subset():
    train, test = data.load("digits", take={"train": 50})
    again = data.load("digits", take={"train": 50})[0]
    assert counts(train) == [5] * 10 and len(hashes(test)) == 360
    assert set(hashes(train)) == set(hashes(again)) < set(hashes(data.load("digits")[0]))
    assert set(hashes(train)) != set(hashes(data.load("digits", take=50, seed=1)[0]))
    assert [len(hashes(dataset)) for dataset in data.load("digits", take=13)] == [13, 13]


def test_batches_and_their_number():
    train, test = data.load("digits", batch_size=100, drop_remainder=True)
    assert [len(train), len(test)] == [14, 3]
    assert [len(labels) for dataset in (train, test) for _, labels in dataset] == [100] * 17
    [whole] = data.load("digits", batch_size=100, splits=("test",))
    assert [len(labels) for _, labels in whole] == [100, 100, 100, 60]
    assert hashes(test) == hashes(whole)[:300]
    assert train.element_spec[0].shape[1:] == test.element_spec[0].shape[1:] == (8, 8, 3)


@pytest.mark.slow
def test_splits_too_large_to_cache_are_the_same(monkeypatch):
    cached = data.load("digits", image_size=12)
    monkeypatch.setattr("vit_tf.data.reading.CACHE_BYTES", 0)
    streamed = data.load("digits", image_size=12)
    assert hashes(cached[1]) == hashes(streamed[1])
    assert [hashes(cached[0]) for _ in range(2)] == [hashes(streamed[0]) for _ in range(2)]


@pytest.mark.parametrize("balanced", [False, True])
def test_stratified_sample_follows_or_balances_the_classes(rng, balanced):
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    chosen = source.stratified_sample(labels, 160, 32, rng, balanced)
    expected = [11, 11, 10] if balanced else [20, 10, 2]
    assert len(set(chosen)) == 32 and (np.diff(chosen) > 0).all()
    assert sorted(np.bincount(labels[chosen]), reverse=True) == expected


def test_stratified_sample_without_labels_is_contiguous(rng):
    starts = {source.stratified_sample(None, 10, 8, rng)[0] for _ in range(50)}
    assert starts == {0, 1, 2}
    assert np.diff(source.stratified_sample(None, 10, 8, rng)).tolist() == [1] * 7


# Fashion-MNIST, through TensorFlow Datasets


@pytest.mark.slow
@needs_fashion
def test_fashion_mnist_is_that_of_tfds():
    import tensorflow_datasets as tfds

    test = data.load("fashion_mnist", data_dir=TFDS, splits=("test",), batch_size=1000)[0]
    images, labels = arrays(test)
    raw = tfds.load("fashion_mnist", data_dir=TFDS, split="test", batch_size=-1)
    expected = raw["image"].numpy().astype(np.float32) / 127.5 - 1
    np.testing.assert_array_equal(images, expected.repeat(3, axis=-1))
    np.testing.assert_array_equal(labels, raw["label"])
    assert images.min() == -1 and images.max() == 1
    found = data.describe("fashion_mnist", data_dir=TFDS)
    assert found.num_examples == {"train": 60_000, "test": 10_000}
    assert found.class_names[0] == "T-shirt/top" and found.num_classes == 10


@pytest.mark.slow
@needs_fashion
def test_fashion_mnist_splits_are_disjoint_and_stratified(monkeypatch):
    """The test split in the place of the train split, which is six times as long."""
    from vit_tf.data import tfds

    opened = tfds.open_tfds("fashion_mnist", TFDS)
    chosen = source.partition(opened, ("train", "validation"), 0.1, {}, 0)
    train, validation = (indices for _, indices in chosen.values())
    assert np.array_equal(np.union1d(train, validation), np.arange(60_000))
    assert len(train) + len(validation) == 60_000
    labels = opened.labels("train")
    assert np.bincount(labels[validation]).tolist() == [600] * 10
    items = opened.read("train", validation[:300]).as_numpy_iterator()
    assert [label for _, label in items] == labels[validation[:300]].tolist()

    monkeypatch.setattr(tfds, "LABELS_AT_MOST", 1000)
    unlabelled = tfds.open_tfds("fashion_mnist", TFDS)
    assert unlabelled.labels("train") is None
    chosen = source.partition(unlabelled, ("train", "validation"), 0.1, {"train": 500}, 0)
    train, validation = (indices for _, indices in chosen.values())
    assert len(train) == 500 and len(validation) == 6000 and not set(train) & set(validation)
    items = list(unlabelled.read("train", train).as_numpy_iterator())
    assert [label for _, label in items] == labels[train].tolist()
    assert len(unlabelled.read("train", train)) == 500

    # The split of the papers on ImageNet, `train[:99%]`: neighbours, which are read from many files
    # at once.
    chosen = source.partition(unlabelled, ("train", "validation"), 0.01, {}, 0)
    train, validation = (indices for _, indices in chosen.values())
    assert np.array_equal(train, np.arange(59_400))
    assert np.array_equal(validation, np.arange(59_400, 60_000))


def test_unknown_names_and_data_sets_that_cannot_be_downloaded(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"no such folder.*Did you mean fashion_mnist"):
        data.load("fashion_mnits")
    with pytest.raises(ValueError, match="Did you mean digits"):
        data.load("digit")
    with pytest.raises(ValueError, match=r"Received: 'mnist/nothing'.*BuilderConfig nothing"):
        data.load("mnist/nothing")

    def fail(builder, **kwargs):
        raise ConnectionError("no route")

    import requests
    import tensorflow_datasets as tfds

    monkeypatch.setattr(requests, "head", lambda url, **kwargs: requests.Response())
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    message = rf"Received: 'cifar10', neither found nor downloaded to {tmp_path}.*no route"
    with pytest.raises(ValueError, match=message):
        data.load("cifar10", data_dir=tmp_path)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", lambda builder: None)
    with pytest.raises(ValueError, match=r"images with one label each.*imdb_reviews.*text, *label"):
        data.load("imdb_reviews", data_dir=tmp_path)


def test_tfds_images_of_other_kinds():
    from vit_tf.data.tfds import _rgb_or_grey

    deep = tf.constant([[[0], [257], [65535]]], tf.uint16)
    np.testing.assert_allclose(_rgb_or_grey(deep), [[[0], [1], [255]]])
    clear = tf.constant([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 100, 255, 51]]], tf.uint8)
    expected = [[[10, 20, 30], [255, 255, 255], [204, 224, 255]]]
    np.testing.assert_allclose(_rgb_or_grey(clear), expected)


def test_a_folder_may_bear_the_name_of_a_tfds_data_set(tmp_path, rng, monkeypatch):
    flat_folder(tmp_path / "fashion_mnist", rng, (2, 2))
    flat_folder(tmp_path / "pets", rng, (2, 2, 2))
    monkeypatch.chdir(tmp_path)
    for name in ("./fashion_mnist", Path("fashion_mnist")):
        assert data.describe(name).class_names == ("ape", "bee")
    assert data.describe("pets").num_classes == 3
    if (TFDS / "fashion_mnist").is_dir():
        assert data.describe("fashion_mnist", TFDS.resolve()).num_classes == 10


@pytest.mark.slow
def test_importing_the_package_is_light():
    code = (
        "import sys, vit_tf.data; print(sys.modules.keys() & {'keras_cv', 'tensorflow_datasets'})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


# Folders


@pytest.mark.slow
def test_flat_folder_is_split_class_by_class(tmp_path, rng):
    root = flat_folder(tmp_path, rng)
    train, test = data.load(root)
    assert counts(train) == [16, 8] and counts(test) == [4, 2]
    expected = {}
    for label, name in enumerate(("ape", "bee")):
        for path in (root / name).iterdir():
            pixels = np.asarray(Image.open(path)).astype(np.float32) / 127.5 - 1
            expected[pixels.tobytes()] = label
    assert labelled(train) | labelled(test) == expected
    assert hashes(data.load(str(root), seed=5)[1]) == hashes(test)
    described = data.describe(root)
    assert described == data.Description(str(root), 2, ("ape", "bee"), {"train": 24, "test": 6})


@pytest.mark.slow
def test_folder_with_splits_of_its_own(tmp_path, rng):
    for split, sizes in {"train": (3, 3), "val": (2, 1), "test": (1, 2)}.items():
        flat_folder(tmp_path / split, rng, sizes)
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "ape" / "._01.png").write_bytes(b"not an image")
    (tmp_path / "train" / "ape" / "notes.txt").write_text("not an image")
    splits = data.load(tmp_path, splits=("validation", "test", "train"))
    assert [counts(split) for split in splits] == [[2, 1], [1, 2], [3, 3]]
    assert data.check_images(tmp_path) == 12
    (tmp_path / "test").rename(tmp_path / "elsewhere")
    assert counts(data.load(tmp_path)[1]) == [2, 1]
    (tmp_path / "val").rename(tmp_path / "elsewhere" / "val")
    message = r"has the splits train \(and validation, cut from train\).*'test'"
    with pytest.raises(ValueError, match=message):
        data.load(tmp_path)


@pytest.mark.slow
def test_images_that_differ_in_size(tmp_path, rng):
    root = flat_folder(tmp_path, rng, (3, 3))
    write(root / "bee" / "wide.png", rng.integers(0, 256, (6, 9, 3)))
    write(root / "bee" / "also wide.png", rng.integers(0, 256, (6, 9, 3)))
    with pytest.raises(
        ValueError, match=r"image_size to be given.*\(6, 5\).*wide.png' of \(6, 9\)"
    ):
        data.load(root)
    train, _ = data.load(root, image_size=(4, 3))
    assert arrays(train)[0].shape[1:] == (4, 3, 3)


@pytest.fixture
def damaged(tmp_path, rng):
    """A folder with three images that cannot be decoded."""
    root = flat_folder(tmp_path, rng, (5, 5))
    write(root / "ape" / "cut.jpg", rng.integers(0, 256, (64, 64, 3)))
    whole = (root / "ape" / "cut.jpg").read_bytes()
    (root / "ape" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "bee" / "empty.png").write_bytes(b"")
    (root / "bee" / "text.png").write_text("hello")
    return root


def test_check_images_lists_corrupt_images(damaged):
    message = r"3 of 13 images cannot be decoded.*cut\.jpg \(.*truncated.*empty.*text"
    with pytest.raises(ValueError, match=message) as error:
        data.check_images(damaged)
    for name in ("cut.jpg", "empty.png", "text.png"):
        assert str(error.value).count(name) == 1
    assert "np.str_" not in str(error.value)


@pytest.mark.slow
def test_images_of_every_damage_raise_when_they_are_read(damaged):
    with pytest.raises(tf.errors.InvalidArgumentError, match="undecodable"):
        [arrays(dataset) for dataset in data.load(damaged, image_size=8)]


@pytest.mark.slow
def test_corrupt_images_raise_when_they_are_reached(tmp_path, rng):
    root = flat_folder(tmp_path, rng, (5, 5))
    (root / "ape" / "03.png").write_bytes((root / "ape" / "03.png").read_bytes()[:60])
    train = data.load(root, image_size=8, splits=("train", "test"))
    for _ in range(2):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"undecodable /.*ape/03\.png \(\w+Error: "
        ):
            [arrays(dataset) for dataset in train]
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    every = train[0].concatenate(train[1])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"undecodable /.*ape/03\.png \(\w+Error: "
    ):
        model.fit(every.map(lambda x, y: (x, tf.one_hot(y, 2))), verbose=0)


def test_folders_that_hold_no_data_set(tmp_path, rng, monkeypatch):
    with pytest.raises(ValueError, match=r"Folder not found: '.*/nowhere'"):
        data.load(tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path.parent)
    for name in ("photos_missing/", f"{tmp_path.name}/photos_missing"):
        with pytest.raises(ValueError, match=r"Folder not found: '.*photos_missing'"):
            data.load(name)
    with pytest.raises(ValueError, match="one folder of images per class"):
        data.load(tmp_path)
    (tmp_path / "ape").mkdir()
    with pytest.raises(ValueError, match=r"No images in .*/ape'.*each class folder to hold images"):
        data.describe(tmp_path)
    root = tmp_path / "parts"
    flat_folder(root / "train", rng, (2, 2))
    write(root / "val" / "dog" / "1.png", rng.integers(0, 256, (4, 4, 3)))
    for read in (data.describe, lambda root: data.load(root, splits=("validation",))):
        with pytest.raises(ValueError, match=r"dog' is a class folder .*ape, bee"):
            read(root)


# Arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"splits": ("train", "tset")}, "Unknown split: 'tset'. Did you mean test"),
        ({"splits": "train"}, "splits to be a tuple of distinct names among train, validation"),
        ({"splits": ()}, "splits to be a tuple"),
        ({"splits": ("test", "test")}, "splits to be a tuple of distinct names"),
        ({"image_size": 0}, r"image_size to be a number of pixels.*Received: image_size=\(0, 0\)"),
        ({"image_size": 3.5}, "image_size to be a number of pixels"),
        ({"image_size": (1, 2, 3)}, "image_size to be a number of pixels or a pair"),
        ({"batch_size": 0}, "batch_size to be an integer >= 1. Received: batch_size=0"),
        ({"seed": -1}, "seed to be an integer >= 0"),
        ({"take": -1}, "take to be an integer >= 1. Received: take=-1"),
        ({"take": 361}, "take to be at most 360.*test split. Received: take=361"),
        ({"take": {"validation": 3}}, "Unknown split in take"),
        ({"validation": 1.0}, r"validation to be in \[0, 1\). Received: validation=1.0"),
        ({"validation": 0, "splits": ("validation",)}, "validation to be a fraction of the train"),
        ({"batch_size": 1438, "drop_remainder": True}, "at most 360, the number of test examples"),
        (
            {"batch_size": 1438, "drop_remainder": True, "splits": ("train",)},
            "batch_size to be at most 1437, the number of train examples",
        ),
    ],
)
def test_arguments_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        data.load("digits", **settings)


def test_names_that_are_no_names():
    for name in (None, 3):
        with pytest.raises(TypeError, match=r"expected str, bytes or os\.PathLike object"):
            data.load(name)
    with pytest.raises(ValueError, match=r"Unknown data set, and no such folder"):
        data.load("")


# Augmentation


def constant_images(count=16, size=8):
    """Batches of images of one value each, whose labels say which image it is."""
    values = np.linspace(-1, 1, count, dtype=np.float32)
    images = np.broadcast_to(values[:, None, None, None], (count, size, size, 3))
    labels = np.arange(count, dtype=np.int32)
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(count), values


def noise_images(rng, count=12, size=8):
    images = rng.uniform(-1, 1, (count, size, size, 3)).astype(np.float32)
    labels = np.arange(count, dtype=np.int32) % 3
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(4), images


def test_augment_without_settings_only_makes_labels_probabilities(rng):
    dataset, images = noise_images(rng)
    found, labels = arrays(data.augment(dataset, 3))
    np.testing.assert_array_equal(found, images)
    np.testing.assert_array_equal(labels, np.eye(3, dtype=np.float32)[np.arange(12) % 3])


def test_mixup_blends_images_as_it_blends_labels():
    dataset, values = constant_images()
    images, labels = arrays(data.augment(dataset, len(values), mixup=0.8))
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
    assert (labels >= 0).all() and ((labels > 0).sum(axis=1) <= 2).all()
    assert ((labels > 0.01) & (labels < 0.99)).any()
    expected = np.broadcast_to((labels @ values)[:, None, None, None], images.shape)
    np.testing.assert_allclose(images, expected, atol=1e-6)


def test_cutmix_labels_are_the_area_of_each_image():
    dataset, values = constant_images(count=64)
    images, labels = arrays(data.augment(dataset, len(values), cutmix=1.0))
    areas = (images[:, :, :, :1] == values).mean(axis=(1, 2))
    np.testing.assert_allclose(labels, areas, atol=1e-6)
    assert ((labels > 0.01) & (labels < 0.99)).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_mixing_weights_are_of_the_beta_distribution(name):
    count, alpha = 3000, 0.7
    dataset, _ = constant_images(count, 40)
    if name == "mixup":
        dataset = dataset.map(lambda images, labels: (images[:, :1, :1], labels))
    _, labels = arrays(data.augment(dataset, count, **{name: alpha}))
    own = np.diag(labels)[(labels > 0).sum(axis=1) == 2].astype(float)
    if name == "mixup":
        np.testing.assert_allclose(own.mean(), 0.5, atol=0.03)
        np.testing.assert_allclose(own.var(), 1 / (4 * (2 * alpha + 1)), atol=0.01)
    else:
        assert own.mean() > 0.6  # rectangles lose what lies over the border


def test_mixing_of_a_tiny_alpha_is_finite():
    dataset, _ = constant_images(500, 2)
    images, labels = arrays(data.augment(dataset, 500, mixup=1e-4))
    assert np.isfinite(images).all() and np.allclose(labels.sum(axis=1), 1)


@pytest.mark.slow
def test_rand_augment_of_an_image_depends_on_its_place_and_the_seed_alone(rng):
    _, images = noise_images(rng)
    twins = np.concatenate([images[:4], images[:1]])
    augment = make_rand_augment({"magnitude": 0.8, "rate": 1.0}).augment
    first, again = (augment(tf.constant(part), tf.constant([1, 2])) for part in (twins, twins[:2]))
    np.testing.assert_allclose(first[:2], again, atol=1e-6)
    assert not np.allclose(first[0], first[4])
    assert not np.allclose(first, augment(tf.constant(twins), tf.constant([1, 3])))


def test_mixup_or_cutmix_is_chosen_batch_by_batch():
    dataset, values = constant_images()
    mixed = data.augment(dataset.repeat(40), len(values), mixup=0.8, cutmix=1.0)
    cut = [bool(np.isin(images, values).all()) for images, _ in mixed.as_numpy_iterator()]
    assert 8 < sum(cut) < 32


def test_shift_moves_pixels_and_pads_with_black(rng):
    images = rng.uniform(-1, 1, (200, 5, 6, 3)).astype(np.float32)
    moved = data.random_shift(images, 2, tf.constant([1, 2])).numpy()
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=-1)
    seen = set()
    for image, around in zip(moved, padded, strict=True):
        windows = {(i, j): around[i : i + 5, j : j + 6] for i in range(5) for j in range(5)}
        (place,) = [place for place, window in windows.items() if np.array_equal(window, image)]
        seen.add(place)
    assert len(seen) == 25


def test_flip_mirrors_half_of_the_images(rng):
    images = rng.uniform(-1, 1, (200, 3, 4, 3)).astype(np.float32)
    flipped = data.random_flip(images, tf.constant([1, 2])).numpy()
    mirrored = [np.array_equal(a, b[:, ::-1]) for a, b in zip(flipped, images, strict=True)]
    same = [np.array_equal(a, b) for a, b in zip(flipped, images, strict=True)]
    assert (np.array(mirrored) ^ same).all() and 70 < sum(mirrored) < 130


def test_erased_rectangles_are_those_of_torchvision(rng):
    images = rng.uniform(0.1, 1, (3000, 20, 30, 1)).astype(np.float32)
    erased = random_erasing(images, 0.4, tf.constant([1, 2])).numpy() == 0
    np.testing.assert_array_equal(
        random_erasing(images, 0.4, tf.constant([1, 2]))[~erased], images[~erased]
    )
    chosen = erased[..., 0][erased.any(axis=(1, 2, 3))]
    np.testing.assert_allclose(len(chosen) / 3000, 0.4, atol=0.03)
    rows, columns = chosen.any(axis=2), chosen.any(axis=1)
    np.testing.assert_array_equal(chosen, rows[:, :, None] & columns[:, None])
    height, width = rows.sum(axis=1), columns.sum(axis=1)
    assert all((np.diff(side.astype(int), prepend=0) == 1).sum() == 1 for side in rows)
    assert height.max() < 20 and width.max() < 30
    share = height * width / 600
    np.testing.assert_allclose(share.mean(), (0.02 + 0.33) / 2, atol=0.03)
    assert (height / width).min() > 0.2 and (height / width).max() < 5
    assert rows[:, 0].any() and rows[:, -1].any() and columns[:, 0].any() and columns[:, -1].any()


@pytest.mark.slow
def test_seeded_augmentations_repeat(rng):
    def epochs(seed, **settings):
        augmented = data.augment(
            noise_images(np.random.default_rng(0))[0], 3, seed=seed, **settings
        )
        return [hashes(augmented) for _ in range(2)]

    every = [{"shift": 2, "flip": True}, {"mixup": 0.3}, {"cutmix": 1.0}, {"rand_augment": 0.5}]
    every.append({"erase": 0.5})
    for settings in (*every, {"mixup": 0.3, "cutmix": 1.0, "shift": 1}):
        first = epochs(0, **settings)
        assert first[0] != first[1] and first != epochs(1, **settings)
    # What one of them drew anew would change all.
    together = {name: value for settings in every for name, value in settings.items()}
    assert epochs(0, **together) == epochs(0, **together)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_rand_augment_stays_in_range(rng, policy):
    dataset, images = noise_images(rng)
    keras.config.set_dtype_policy(policy)
    try:
        settings = {"magnitude": 0.9, "augmentations_per_image": 2}
        augmented = data.augment(dataset, 3, rand_augment=settings, mixup=0.2, cutmix=1.0, shift=1)
        found, labels = arrays(augmented)
        assert keras.config.dtype_policy().name == policy
    finally:
        keras.config.set_dtype_policy("float32")
    assert augmented.element_spec[0].shape[1:] == (8, 8, 3)
    assert found.dtype == labels.dtype == np.float32 and len(augmented) == 3
    assert found.min() >= -1 and found.max() <= 1 and not np.array_equal(found, images)
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)


@pytest.mark.slow
def test_rand_augment_of_no_strength_changes_nothing(rng):
    dataset, images = noise_images(rng)
    found, _ = arrays(data.augment(dataset, 3, rand_augment={"rate": 0.0}))
    np.testing.assert_allclose(found, images, atol=1e-6)
    with pytest.raises(ValueError, match="magnitude"):
        data.augment(dataset, 3, rand_augment=1.5)


def test_labels_out_of_range():
    dataset, _ = constant_images()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"labels to be in \[0, 15\)"):
        arrays(data.augment(dataset, 15))
    message = r"from 0 to num_classes - 1 = 14\. Received: labels from 0 to 15"
    for labels in (dataset, np.arange(16), list(range(16))):
        data.check_labels(labels, 16)
        with pytest.raises(ValueError, match=message):
            data.check_labels(labels, 15)
    with pytest.raises(ValueError, match="labels from -1 to 2"):
        data.check_labels([-1, 2], 15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixup": -0.1}, "mixup to be at least 0. Received: mixup=-0.1"),
        ({"cutmix": -1}, "cutmix to be at least 0"),
        ({"erase": 1.5}, r"erase to be in \[0, 1\]. Received: erase=1.5"),
        ({"shift": 8}, "shift to be from 0 to 7, .*the images. Received: shift=8"),
    ],
)
def test_augment_arguments_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        data.augment(constant_images()[0], 16, **settings)


def test_augment_wants_batches_of_images_with_labels():
    dataset, _ = constant_images()
    for wrong in (dataset.unbatch(), dataset.map(lambda images, labels: images), None):
        with pytest.raises(ValueError, match="dataset to be batches of"):
            data.augment(wrong, 16)
