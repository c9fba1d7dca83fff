"""TFDS data sets made from a few files: how their images are decoded, and where they are not."""

import io
import time

import numpy as np
import pytest
import requests
import tensorflow as tf
import tensorflow_datasets as tfds
from image_folders import arrays, encoded, photo
from PIL import Image

from vit_tf import data
from vit_tf.data.tfds import RgbDecoder, decode_image

SIDES = (18, 26)


def by_pillow(content, mode="RGB"):
    return np.asarray(Image.open(io.BytesIO(content)).convert(mode))


@pytest.mark.parametrize("settings", [{"quality": 100}, {"subsampling": 0}, {"subsampling": 1}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpeg_is_decoded_as_pillow_does_bit_for_bit(rng, mode, settings):
    content = encoded(photo(rng).convert(mode), progressive="subsampling" in settings, **settings)
    found = RgbDecoder((None, None, 3), "photos").attempt(content, None)
    np.testing.assert_array_equal(found, by_pillow(content))
    if mode == "L":
        grey = tfds.features.Image(shape=(None, None, 1))
        found = decode_image(grey, content)[..., 0]
        np.testing.assert_array_equal(found, by_pillow(content, "L"))


def test_files_of_other_formats_are_decoded_as_before(rng):
    picture = photo(rng)
    for kind in ("PNG", "BMP"):
        found = RgbDecoder((None, None, 3), "photos").attempt(encoded(picture, kind), None)
        np.testing.assert_array_equal(found, picture)
    feature, image = tfds.features.Image(shape=(None, None, 4)), picture.convert("RGBA")
    np.testing.assert_array_equal(decode_image(feature, encoded(image, "PNG")), image)
    deep = tf.constant(np.arange(12).reshape(3, 4, 1) * 5000, tf.uint16)
    feature = tfds.features.Image(shape=(None, None, 1), dtype=np.uint16)
    np.testing.assert_array_equal(decode_image(feature, tf.io.encode_png(deep)), deep)


@pytest.fixture(scope="module")
def photos():
    """A builder of 12 JPEG and PNG files of two classes, and the files' contents in order."""
    rng = np.random.default_rng(0)
    kinds = ("JPEG", "JPEG", "PNG")
    files = [encoded(photo(rng, SIDES[::-1]), kinds[number % 3]) for number in range(12)]

    class TinyPhotos(tfds.core.GeneratorBasedBuilder):
        """Photographs with their labels."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            image = tfds.features.Image(shape=(*SIDES, 3), encoding_format="jpeg")
            label = tfds.features.ClassLabel(names=["ape", "bee"])
            features = tfds.features.FeaturesDict({"image": image, "label": label})
            keys = ("image", "label")
            return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=keys)

        def _split_generators(self, manager):
            return {"train": self._generate_examples(), "test": self._generate_examples()}

        def _generate_examples(self):
            for number, content in enumerate(files):
                yield number, {"image": io.BytesIO(content), "label": number % 2}

    return TinyPhotos, files


def test_a_jpeg_is_the_same_through_tfds_and_through_a_folder(photos, tmp_path):
    builder, files = photos
    builder(data_dir=tmp_path / "tfds").download_and_prepare()
    for number, content in enumerate(files):
        kind = "png" if number % 3 == 2 else "jpg"
        path = tmp_path / "folder" / "test" / ("ape", "bee")[number % 2] / f"{number:02}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    [prepared] = data.load("tiny_photos", data_dir=tmp_path / "tfds", splits=("test",))
    [folder] = data.load(tmp_path / "folder", splits=("test",))
    expected = [by_pillow(content).astype(np.float32) / 127.5 - 1 for content in files]
    for dataset in (prepared, folder):
        images, labels = arrays(dataset)
        order = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
        assert len(order) == len(files)
        assert [order[image.tobytes()] for image in expected] == [0, 1] * 6


def test_some_examples_of_several_files_are_those_of_their_indices(photos, tmp_path, monkeypatch):
    """Only these are parsed, and labels are read once for all that opens the data set."""
    from vit_tf.data import tfds as module

    builder, _ = photos
    config = tfds.download.DownloadConfig(num_shards=4)
    builder(data_dir=tmp_path).download_and_prepare(download_config=config)
    monkeypatch.setattr(module, "BLOCK", 5)
    source = module.open_tfds("tiny_photos", tmp_path)
    every = list(source.read("test", np.arange(12)).as_numpy_iterator())
    np.testing.assert_array_equal(source.labels("test"), [label for _, label in every])
    parsed = []
    parse = tfds.features.FeaturesDict.deserialize_example

    def counted(self, *args, **kwargs):
        tf.py_function(lambda: parsed.append(1), [], [])
        return parse(self, *args, **kwargs)

    monkeypatch.setattr(tfds.features.FeaturesDict, "deserialize_example", counted)
    places = [1, 4, 5, 10]
    some = list(source.read("test", np.array(places)).as_numpy_iterator())
    assert some == [every[place] for place in places]
    assert len(parsed) == 4
    again = module.open_tfds("tiny_photos", tmp_path)
    assert again.labels("test") is source.labels("test")
    assert len(parsed) == 4


@pytest.mark.slow
def test_several_files_are_read_at_once_in_an_order_of_the_seed(photos, tmp_path, monkeypatch):
    """Examples too many for the shuffle's buffer change places by their files."""
    from vit_tf.data import reading, tfds as module

    builder, files = photos
    config = tfds.download.DownloadConfig(num_shards=4)
    builder(data_dir=tmp_path).download_and_prepare(download_config=config)
    monkeypatch.setattr(reading, "CACHE_BYTES", 0)
    monkeypatch.setattr(module, "SHUFFLE_BUFFER", 1)
    order = {by_pillow(content).tobytes(): number for number, content in enumerate(files)}

    def epochs(seed):
        settings = {"data_dir": tmp_path, "splits": ("train",), "seed": seed, "batch_size": 5}
        [dataset] = data.load("tiny_photos", **settings)
        images = [np.rint((arrays(dataset)[0] + 1) * 127.5).astype(np.uint8) for _ in range(3)]
        return [[order[image.tobytes()] for image in epoch] for epoch in images]

    first = epochs(0)
    assert all(sorted(epoch) == list(range(12)) for epoch in first)
    assert first == epochs(0) and len({tuple(epoch) for epoch in first + epochs(1)}) > 3


def no_route(url, **kwargs):
    raise requests.exceptions.ConnectionError(f"no route to {url}")


@pytest.fixture
def offline(monkeypatch):
    """A machine that reaches no other, on which TFDS would try for minutes."""

    def fail(builder, **kwargs):
        raise AssertionError("tried to download")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    monkeypatch.setattr(requests, "head", no_route)


def test_a_data_dir_without_the_data_set_is_reported_before_any_download(offline, tmp_path):
    start = time.monotonic()
    for folder in (tmp_path / "tdfs", tmp_path):
        message = rf"'fashion_mnist', not prepared in {folder}, .*amazonaws\.com cannot .*no route"
        with pytest.raises(ValueError, match=message):
            data.load("fashion_mnist", data_dir=folder)
    assert not list(tmp_path.iterdir())
    assert time.monotonic() - start < 20


def test_what_can_be_downloaded_is(photos, monkeypatch, tmp_path):
    """A host that answers, files that are there already, and a data set that needs no host."""
    asked = []

    def answers(url, **kwargs):
        asked.append(url)
        return requests.Response()

    def arrive(builder, **kwargs):
        raise ConnectionError(f"began {builder.name}")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", arrive)
    monkeypatch.setattr(requests, "head", answers)
    with pytest.raises(ValueError, match="began fashion_mnist"):
        data.load("fashion_mnist", data_dir=tmp_path)
    assert len(asked) == 1 and asked[0].startswith("http")
    monkeypatch.setattr(requests, "head", no_route)
    with pytest.raises(ValueError, match="began tiny_photos"):
        data.load("tiny_photos", data_dir=tmp_path)
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "train-images.gz.INFO").write_text("{}")
    with pytest.raises(ValueError, match="began fashion_mnist"):
        data.load("fashion_mnist", data_dir=tmp_path)
