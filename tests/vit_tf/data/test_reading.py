"""What is read, decoded and kept: random resized crops, caches, and nothing ahead of its time."""

import functools
import io
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tiny_records
from counted_digits import count_decoding
from image_folders import arrays, flat_folder, photo, write
from paths import SHARED
from PIL import Image

import vit_tf
from vit_tf import Preprocessing, data
from vit_tf.data import imaging, pipeline, reading
from vit_tf.data.batches import seeds_of_batches, skip_batches
from vit_tf.data.folder import decode_file
from vit_tf.data.rand_augment import OPERATIONS, make_rand_augment
from vit_tf.distribute import divide_batches, strategy
from vit_tf.training.runs import checked_images, checked_labels


@pytest.fixture
def photos(tmp_path, rng):
    """A folder of 12 JPEG photographs that differ in size, all of them in the train split."""
    for number in range(12):
        path = tmp_path / "photos" / "train" / ("ape", "bee")[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(rng, (40 + number, 60 - 2 * number)).save(path, quality=90)
    return tmp_path / "photos"


SLOW = pytest.mark.slow


@pytest.fixture(params=[pytest.param(True, id="cached"), pytest.param(False, id="streamed")])
def cache(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(reading, "CACHE_BYTES", 0)
    return request.param


@pytest.fixture
def decoded(monkeypatch):
    """List of the contents that are decoded, in order."""
    contents, decode = [], imaging.decode

    def count(content, *args, **kwargs):
        tf.numpy_function(contents.append, [content], [])
        return decode(content, *args, **kwargs)

    monkeypatch.setattr(imaging, "decode", count)
    reading._traced_decoders.cache_clear()
    yield contents
    reading._traced_decoders.cache_clear()


def train(name, **settings):
    return data.load(name, splits=("train",), **{"batch_size": 4} | settings)[0]


@pytest.mark.slow
def test_random_resized_crops_show_what_was_drawn(photos, monkeypatch):
    """Every pixel against Pillow, which resizes the very windows that were drawn."""
    windows = {}
    draw, find_window = imaging.CROP_DISTRIBUTIONS["torchvision"]

    def record(height, width, sides, place):
        window = find_window(height, width, sides, place)
        keep = lambda h, w, box: windows.update({(int(h), int(w)): box.tolist()})  # noqa: E731
        tf.numpy_function(keep, [height, width, window], [])
        return window

    monkeypatch.setitem(imaging.CROP_DISTRIBUTIONS, "torchvision", (draw, record))
    images, labels = arrays(train(photos, image_size=(16, 20), random_resized_crop=(0.2, 0.9)))
    assert len(windows) == len(images) == 12
    expected = []
    for path in photos.rglob("*.jpg"):
        pixels = np.asarray(Image.open(path)).astype(np.float32)
        top, left, height, width = windows[pixels.shape[:2]]
        assert 0.1 < height * width / pixels[..., 0].size < 1
        part = np.moveaxis(pixels[top : top + height, left : left + width], -1, 0)
        parts = [Image.fromarray(c).resize((20, 16), Image.Resampling.BILINEAR) for c in part]
        expected.append((path.parent.name == "bee", np.stack(parts, axis=-1) / 127.5 - 1))
    for image, label in zip(images, labels, strict=True):
        differences = [np.abs(image - other).max() for of, other in expected if of == label]
        assert min(differences) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "photos"])
def test_random_resized_crops_follow_the_seed_and_change_with_the_epoch(photos, name):
    """Of images that are kept in memory, and of those that are decoded in each epoch."""

    def epochs(seed):
        settings = {"image_size": 8, "seed": seed, "random_resized_crop": True, "take": 10}
        dataset = train(photos if name == "photos" else name, **settings)
        return [{image.tobytes() for image in arrays(dataset)[0]} for _ in range(2)]

    first, other = epochs(0), epochs(1)
    assert first == epochs(0)
    assert not first[0] & first[1] and not first[0] & other[0]


@pytest.mark.slow
def test_only_the_train_split_is_cropped_at_random():
    settings = {"image_size": 8, "splits": ("train", "validation", "test"), "take": 20}
    plain, cropped = (
        [[image.tobytes() for image in arrays(dataset)[0]] for dataset in datasets]
        for datasets in (
            data.load("digits", **settings),
            data.load("digits", random_resized_crop=True, **settings),
        )
    )
    assert set(plain[0]) != set(cropped[0]) and plain[1:] == cropped[1:]


@pytest.mark.parametrize("wrong", [(0, 1), (0.5, 1.2), (0.9, 0.5)])
def test_areas_out_of_range(wrong):
    with pytest.raises(ValueError, match=r"random_resized_crop to be .* Received: .*\("):
        data.load("digits", random_resized_crop=wrong)


@pytest.mark.parametrize("cache", [pytest.param(True, marks=SLOW), False], indirect=True)
def test_a_preprocessing_crops_the_centre(photos, cache):
    chosen = Preprocessing((16, 16), crop=0.8)
    [dataset] = data.load(photos, splits=("train",), preprocessing=chosen)
    images, _ = arrays(dataset)
    expected = []
    for path in photos.rglob("*.jpg"):
        expected.append(chosen(np.asarray(Image.open(path))))
        squeezed = Preprocessing((16, 16))(np.asarray(Image.open(path)))
        assert np.abs(expected[-1] - squeezed).max() > 0.1
    for image in images:
        assert min(np.abs(image - other).max() for other in expected) < 1e-5


@pytest.mark.slow
def test_nothing_is_decoded_ahead_and_every_image_once_an_epoch(photos, decoded, cache):
    dataset = train(photos, image_size=16)
    assert len(dataset) == 3 and not decoded
    for epoch in (1, 2):
        arrays(dataset)
        assert len(decoded) == (12 if cache else 12 * epoch)
    files = sorted(path.read_bytes() for path in photos.rglob("*.jpg"))
    assert sorted(decoded[:12]) == files


@pytest.mark.slow
def test_images_of_one_size_stay_bytes_in_the_cache(tmp_path, rng, monkeypatch):
    kept = []
    cached = reading._cached

    def record(*args):
        kept.append(cached(*args).element_spec[0])
        return cached(*args)

    monkeypatch.setattr(reading, "_cached", record)
    root = flat_folder(tmp_path / "small", rng)
    for settings in ({}, {"image_size": (9, 8)}):
        arrays(data.load(root, **settings)[0])
    assert [spec.dtype for spec in kept] == [tf.uint8] * 2 + [tf.float32] * 2
    assert kept[0].shape == (6, 5, 3) and kept[2].shape == (9, 8, 3)


@pytest.mark.slow
def test_a_later_image_of_another_size_raises(tmp_path, rng, monkeypatch, cache):
    monkeypatch.setattr("vit_tf.data.folder.MEASURED", 1)
    root = flat_folder(tmp_path, rng, (3, 3))
    write(root / "bee" / "wide.png", rng.integers(0, 256, (6, 9, 3)))
    train, test = data.load(root)
    message = r"image_size to be given.*of shape \(6, 5, 3\) and of \(6, 9, 3\)"
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            [arrays(dataset) for dataset in (train, test)]


@pytest.mark.slow
def test_a_corrupt_image_does_not_change_the_others(photos, cache):
    """Its batch is decoded again, and stops the iteration where it did not before."""
    whole = [image.tobytes() for image in arrays(train(photos, image_size=16))[0]]
    victim = sorted(photos.rglob("*.jpg"))[0]
    content = victim.read_bytes()
    victim.write_bytes(content[: len(content) // 2])
    found = []
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"undecodable {victim} \(OSError"):
        for images, _ in train(photos, image_size=16).as_numpy_iterator():
            found += [image.tobytes() for image in images]
    assert found == whole[: len(found)]
    file = io.BytesIO()
    Image.open(io.BytesIO(content)).save(file, "BMP")
    victim.write_bytes(file.getvalue())  # under a name that does not fit
    assert [image.tobytes() for image in arrays(train(photos, image_size=16))[0]] == whole


@pytest.mark.parametrize("cache", [pytest.param(True, marks=SLOW), False], indirect=True)
def test_corrupt_images_are_left_out_up_to_a_share(photos, cache, capfd):
    files = sorted(photos.rglob("*.jpg"))
    images, labels = arrays(data.load(photos, image_size=16, splits=("all",))[0])
    wrong = [0, 3]
    for number in wrong:
        files[number].write_bytes(files[number].read_bytes()[:100])
    share = len(wrong) / len(files)

    def read(most, batch_size=4):
        how = {"image_size": 16, "splits": ("all",), "batch_size": batch_size}
        return data.load(photos, skip_errors=most, **how)[0]

    dataset = read(share)
    for _ in range(2):
        found, found_labels = arrays(dataset)
        np.testing.assert_array_equal(found, np.delete(images, wrong, axis=0))
        np.testing.assert_array_equal(found_labels, np.delete(labels, wrong))
    said = capfd.readouterr().err
    assert f"1 of {len(files)} images left out so far" in said or f"2 of {len(files)}" in said
    assert str(files[0]) in said and str(files[3]) in said
    message = rf"at most .* of {len(files)} images.*Received: 2 that cannot be decoded.*undecodable"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        arrays(read(share * 0.9))
    with pytest.raises(tf.errors.InvalidArgumentError, match="image in each batch"):
        arrays(read(share, batch_size=1))
    with pytest.raises(ValueError, match=r"skip_errors to be in \[0, 1\)"):
        read(1.0)


@pytest.mark.usefixtures("without_xla")
def test_a_run_goes_on_after_a_corrupt_image(photos, tmp_path):
    victim = sorted(photos.rglob("*.jpg"))[0]
    victim.write_bytes(victim.read_bytes()[:100])
    how = {"image_size": 16, "batch_size": 4, "skip_errors": 0.3, "validation": 0.3}
    splits = data.load(photos, splits=("train", "validation"), **how)
    model = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 16, num_classes=2)
    recipe = vit_tf.Recipe(epochs=2, flip=True)
    history = vit_tf.train(model, recipe, *splits, tmp_path / "run", verbose=0)
    assert np.isfinite(history["loss"]).all() and len(history["loss"]) == 2


@pytest.fixture
def streamed(monkeypatch):
    monkeypatch.setattr(reading, "CACHE_BYTES", 0)


@pytest.mark.slow
def test_images_are_mirrored_where_they_are_decoded(photos, streamed):
    """Half of them, others in each epoch, the same for a seed."""
    chosen = Preprocessing((16, 20), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1))
    load = functools.partial(train, photos, preprocessing=chosen, seed=1)
    plain, labels = arrays(load())
    assert np.abs(plain - plain[:, :, ::-1]).max(axis=(1, 2, 3)).min() > 0.1
    both = {image.tobytes(): n for n, image in enumerate(plain)}
    both |= {image[:, ::-1].tobytes(): n + 12 for n, image in enumerate(plain)}
    epochs = []
    for seed in (3, 3, 4):
        flipped = data.augment(load(), 2, flip=True, seed=seed)
        epochs += [arrays(flipped) for _ in range(2)]
    places = [[both[image.tobytes()] for image in images] for images, _ in epochs]
    assert places[:2] == places[2:4]
    mirrored = [{place % 12: place >= 12 for place in one} for one in places]
    assert all(len(one) == 12 and 0 < sum(one.values()) < 12 for one in mirrored)
    assert mirrored[0] != mirrored[1] and mirrored[0] != mirrored[4]
    for place, (_, found) in zip(places, epochs, strict=True):
        np.testing.assert_array_equal(found.argmax(axis=1), labels[np.array(place) % 12])


@pytest.mark.slow
def test_rand_augment_changes_decoded_images_step_by_step(photos, streamed):
    """With the numbers drawn for each image, on pixels from 0 to 255."""
    settings = {"magnitude": 0.7, "augmentations_per_image": 2}
    plain = train(photos, image_size=(16, 20))
    found, _ = arrays(data.augment(plain, 2, rand_augment=settings, seed=5))
    strong = make_rand_augment(settings)
    seeds = seeds_of_batches(5).as_numpy_iterator()
    expected = []
    for images, _ in train(photos, image_size=(16, 20)).as_numpy_iterator():  # its first epoch
        pixels = (images + 1) * 127.5
        drawn = strong.draw(len(images), tf.constant(next(seeds)) + 11)
        for image, *numbers in zip(pixels, *(numbers.numpy() for numbers in drawn), strict=True):
            for number, magnitude, sign, _ in zip(*numbers, strict=True):
                step = list(OPERATIONS["torchvision"].values())[number] if number >= 0 else None
                if step:
                    image = step(tf.constant(image), tf.constant(magnitude), tf.constant(sign))
            expected.append(np.clip(image, 0, 255) / 127.5 - 1)
    # Nearly equal images are rounded to other levels here and there.
    difference = np.abs(found - np.stack(expected))
    assert np.mean(difference > 1e-4) < 0.01 and difference.max() < 0.1


@pytest.mark.slow
def test_rand_augment_refuses_other_values(photos, streamed):
    scaled = Preprocessing((16, 20), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1))
    augmented = data.augment(train(photos, preprocessing=scaled), 2, rand_augment=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"images in \[-1, 1\] for RandAug"):
        arrays(augmented)


@pytest.mark.slow
def test_what_a_resumed_run_skips_is_neither_decoded_nor_changed(photos, streamed, decoded):
    settings = {"flip": True, "mixup": 0.2, "seed": 2}

    def load():
        tf.random.set_seed(1)
        return data.augment(train(photos, image_size=16, random_resized_crop=True), 2, **settings)

    whole = [image.tobytes() for image in arrays(load())[0]]
    decoded.clear()
    assert [image.tobytes() for image in arrays(skip_batches(load(), 2))[0]] == whole[8:]
    assert len(decoded) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name, workers", [("photos", 3), ("digits", 2), ("digits", 4)])
def test_shards_are_all_images_and_each_worker_decodes_its_own(photos, decoded, name, workers):
    settings = {"image_size": 8, "take": 11, "seed": 3}
    name = photos if name == "photos" else name
    whole = {image.tobytes() for image in arrays(train(name, **settings))[0]}
    decoded.clear()
    parts = [train(name, shard=(n, workers), **settings) for n in range(workers)]
    epochs = [[[i.tobytes() for i in arrays(part)[0]] for part in parts] for _ in range(2)]
    for epoch in epochs:
        found = [image for part in epoch for image in part]
        assert len(found) == len(whole) == 11 and set(found) == whole
    assert {len(part) for part in epochs[0]} == {11 // workers, -(-11 // workers)}
    assert epochs[0] != epochs[1]
    assert len(decoded) == (11 if name == photos else 0)


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 20)])
def test_shards_out_of_range(shard):
    with pytest.raises(ValueError, match=r"shard to be \(index, num_shards\)"):
        data.load("digits", take=11, shard=shard)


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "tfds" / "cifar10").is_dir(), reason="no CIFAR-10")
def test_shards_of_one_file_are_contiguous():
    """CIFAR-10 is one file, of which the parts of three workers make up the whole."""
    settings = {"data_dir": SHARED / "tfds", "splits": ("test",), "batch_size": 500}
    *parts, whole = [
        arrays(data.load("cifar10", shard=shard, **settings)[0])[1]
        for shard in ((0, 3), (1, 3), (2, 3), (0, 1))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert [len(part) for part in parts] == [3334, 3333, 3333]


@pytest.mark.slow
def test_repeated_images_are_other_ones_in_each_epoch_of_a_long_stream(monkeypatch):
    """Also of a stream in a fixed order that is shuffled in small parts."""
    count_decoding(monkeypatch)
    pipeline.open_source().shuffle_buffer = 3
    dataset = train("digits", take=23, repeats=3, batch_size=23)
    every = {image.tobytes() for image in arrays(train("digits", take=23))[0]}
    # An image is in none of them in one of a million runs.
    epochs = [[image.tobytes() for image in arrays(dataset)[0]] for _ in range(40)]
    assert set().union(*epochs) == every and len(every) == 23
    for epoch in epochs:
        assert len(epoch) == 23 and len(set(epoch)) == 8
        assert epoch[:21] == [image for image in epoch[:21:3] for _ in range(3)]
    assert epochs[0] != epochs[1]


@pytest.mark.slow
def test_the_decoder_is_traced_once_for_all_folders_of_one_kind(tmp_path, rng, monkeypatch):
    """Also after a corrupt image, whose words name its own file."""
    decode, traced = imaging.decode, []

    def count(*args, **kwargs):
        traced.append(0)
        return decode(*args, **kwargs)

    reading._traced_decoders.cache_clear()
    monkeypatch.setattr(imaging, "decode", count)
    roots = [flat_folder(tmp_path / name, rng, (4, 4)) for name in ("one", "two", "three")]
    (roots[1] / "bee" / "02.png").write_text("no image")
    every = [train(root, image_size=7) for root in roots]
    assert len(traced) <= 3  # for the shape, in the fast function and in the other
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"undecodable {roots[1]}/bee/02"):
        arrays(every[1])
    for root, dataset in ((roots[0], every[0]), (roots[2], every[2])):
        (images, _), paths = arrays(dataset), sorted(root.rglob("*.png"))
        expected = {Preprocessing((7, 7))(decode_file(path)).tobytes() for path in paths}
        found = {image.tobytes() for image in images}
        assert len(found) == 6 and found <= expected
    train(roots[0], image_size=8)
    assert len(traced) in (4, 5)  # another size is traced anew
    reading._traced_decoders.cache_clear()


# Reads the images of data sets, as another host does, to which TensorFlow copies their graphs.
ELSEWHERE = """
import pickle
import sys
import numpy as np
import tensorflow as tf

for path in sys.argv[1:]:
    with open(path, "rb") as file:
        graph, types = pickle.load(file)
    specs = tuple(tf.TensorSpec(None, dtype) for dtype in types)
    dataset = tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph), specs)
    try:
        result = np.concatenate([batch for batch, *_ in dataset.as_numpy_iterator()])
    except tf.errors.InvalidArgumentError as error:
        result = str(error)
    with open(path, "wb") as file:
        pickle.dump(result, file)
"""


def read_elsewhere(folder, *datasets):
    """The images of data sets, read in another process, or an error's words in their place."""
    paths = [folder / f"{number}.pickle" for number in range(len(datasets))]
    for path, dataset in zip(paths, datasets, strict=True):
        types = [spec.dtype.name for spec in tf.nest.flatten(dataset.element_spec)]
        path.write_bytes(pickle.dumps((dataset._as_serialized_graph().numpy(), types)))
    subprocess.run([sys.executable, "-c", ELSEWHERE, *paths], check=True)
    return [pickle.loads(path.read_bytes()) for path in paths]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cache, settings",
    [(True, {}), (False, {"random_resized_crop": True, "repeats": 2})],
    indirect=["cache"],
)
def test_another_host_reads_photographs(photos, cache, settings, tmp_path):
    """With everything that `train` adds to a data set; what only Pillow decodes is named."""

    def load(root):
        model = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 16, 2)
        loaded = train(root, image_size=16, **settings)
        dataset = data.augment(loaded, 2, flip=True, mixup=0.2, seed=1)
        dataset = checked_labels(checked_images(dataset, model, "training"), 2, "training")
        return divide_batches(dataset, strategy("mirrored"))

    other = shutil.copytree(photos, tmp_path / "other")
    paths = sorted(other.rglob("*.jpg"))
    odd = set(paths if "repeats" in settings else paths[3:4])  # repeats leave out images
    for path in odd:
        Image.open(path).convert("CMYK").save(path)
    images, error = read_elsewhere(tmp_path, load(photos), load(other))
    expected = [batch for batch, *_ in load(photos).as_numpy_iterator()]
    np.testing.assert_array_equal(images, np.concatenate(expected))
    assert "Expected ordinary JPEG and PNG files where the input pipeline runs" in error
    named = {path for path in paths if f"undecodable {path}" in error}
    assert named and named <= odd


@pytest.mark.slow
def test_odd_files_are_left_to_pillow(tmp_path, rng, cache):
    """Whatever their names."""
    pictures = {"a.png": photo(rng, (9, 9)), "b.TIFF": photo(rng, (9, 9))}
    clear = photo(rng, (9, 9)).quantize(16)
    for name, picture in pictures.items():
        picture.save(tmp_path / name)
    clear.save(tmp_path / "c.gif", transparency=3)
    expected = [decode_file(tmp_path / name) for name in (*pictures, "c.gif")]
    for other_name in ("b.TIFF", "b.jpg"):
        (tmp_path / "b.TIFF").rename(tmp_path / other_name)
        (dataset,) = data.load(tmp_path, splits=("all",), image_size=9)
        images, _ = arrays(dataset)
        np.testing.assert_allclose(images, np.stack(expected) / np.float32(127.5) - 1, atol=1e-6)


@pytest.mark.slow
def test_another_host_reads_images_of_tfds(tmp_path):
    tiny_records.write(tmp_path, 1000)
    (dataset,) = data.load("tiny_records", splits=("train",), data_dir=tmp_path)
    (images,) = read_elsewhere(tmp_path, dataset)
    np.testing.assert_array_equal(images, arrays(dataset)[0])
