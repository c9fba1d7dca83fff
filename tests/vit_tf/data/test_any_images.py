"""Images in any form: grey, RGB and RGBA as Pillow converts them, for models of any shape."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import Input, Sequential, layers
from PIL import Image

import vit_tf
from vit_tf import Preprocessing, analysis
from vit_tf.data.any_images import as_images, batch_images, is_raw
from vit_tf.data.batches import IN_ORDER
from vit_tf.data.known_forms import in_known_form

RNG = np.random.default_rng(0)
RGBA = RNG.integers(0, 256, (4, 12, 10, 4)).astype(np.uint8)
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def levels(num_channels):
    """A preprocessing that leaves levels of 12 x 10 pixels as they are."""
    return Preprocessing.from_range((12, 10), 0, 255, num_channels)


def as_array(images):
    """Images that `as_images` returns, as an array."""
    if isinstance(images, tf.data.Dataset):
        batches = [x[0] if isinstance(x, tuple) else x for x in images.as_numpy_iterator()]
        return np.concatenate(batches)
    return np.asarray(images)


def converted(given_mode, channels):
    """Images of a mode in the channels of a model, by Pillow: with alpha on white where it goes."""
    images = []
    for array in RGBA:
        image = Image.fromarray(array).convert(given_mode)
        if given_mode == "RGBA" and channels < 4:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            image = image.convert("RGB")
        images.append(np.asarray(image.convert(MODES[channels])).reshape(12, 10, channels))
    return np.stack(images).astype(np.float32)


@pytest.mark.parametrize("channels", MODES)
@pytest.mark.parametrize("mode", MODES.values())
def test_images_have_the_channels_of_the_model_as_pillow_converts_them(channels, mode):
    expected, preprocessing = converted(mode, channels), levels(channels)
    images = [Image.fromarray(array).convert(mode) for array in RGBA]
    arrays = np.stack([np.asarray(image).reshape(12, 10, -1) for image in images])
    forms = {
        "PIL images": images,
        "arrays": arrays,
        "a data set": tf.data.Dataset.from_tensor_slices(arrays).batch(4),
    }
    for name, form in forms.items():
        result = as_array(as_images(form, preprocessing))
        np.testing.assert_allclose(in_order(result), in_order(expected), atol=1e-4, err_msg=name)


@pytest.mark.parametrize("channels", [1, pytest.param(3, marks=pytest.mark.slow), 4])
def test_files_have_the_channels_of_the_model_as_pillow_converts_them(channels, tmp_path):
    """Files of all modes in one folder."""
    for mode in MODES.values():
        for number, array in enumerate(RGBA):
            Image.fromarray(array).convert(mode).save(tmp_path / f"{mode}-{number}.png")
    expected = np.concatenate([converted(mode, channels) for mode in MODES.values()])
    paths = sorted(tmp_path.iterdir())
    of_paths = as_array(as_images(paths, levels(channels)))  # in the order L, RGB, RGBA
    np.testing.assert_allclose(of_paths, expected, atol=1e-4)
    # A folder has splits of its own, one after the other.
    of_folder = as_array(as_images(tmp_path, levels(channels)))
    np.testing.assert_allclose(in_order(of_folder), in_order(expected), atol=1e-4)


def in_order(images):
    return images[np.argsort(images.reshape(len(images), -1).sum(axis=1))]


def test_files_of_other_formats_are_read_by_pillow(tmp_path):
    paths = [tmp_path / f"image.{suffix}" for suffix in ("ppm", "tga", "avif")]
    for path, array in zip(paths, RGBA[..., :3], strict=False):
        Image.fromarray(array).save(path)
    expected = [np.asarray(Image.open(path).convert("RGB"), np.float32) for path in paths]
    np.testing.assert_allclose(as_array(as_images(paths, levels(3))), expected, atol=1e-4)


def test_channels_that_come_first_are_moved():
    first = np.moveaxis(RGBA[..., :3], -1, 1)
    for form in (first, {"pixel_values": first}, list(RGBA[..., :3]), _objects(RGBA[..., :3])):
        np.testing.assert_array_equal(np.stack(in_known_form(form)), RGBA[..., :3])
    assert in_known_form(RGBA[:3, ..., 0]).shape == (3, 12, 10)  # three grey images


def _objects(images):
    array = np.empty(len(images), object)
    array[:] = list(images)
    return array


@pytest.mark.slow
def test_an_undecodable_file_raises_where_images_are_measured(tmp_path):
    path = tmp_path / "cut.png"
    Image.fromarray(RGBA[0, ..., :3]).save(path)
    path.write_bytes(path.read_bytes()[:60])
    model = Sequential([Input((12, 10, 3)), layers.Flatten(), layers.Dense(2)])
    model.preprocessing = levels(3)
    with pytest.raises(ValueError, match=r"undecodable .*cut\.png"):
        analysis.input_gradients(model, path, 1)


@pytest.mark.slow
def test_models_without_an_axis_of_channels_take_grey_images():
    images = RNG.integers(0, 256, (8, 12, 10)).astype(np.uint8)
    stack = [layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(4), layers.Dense(3)]
    flat = Sequential([Input((12, 10)), *stack])
    hidden = (images.reshape(8, -1) / 255) @ np.asarray(stack[2].kernel) + np.asarray(stack[2].bias)
    forms = {
        "8 bits": images,
        "floats": images.astype(np.float32),
        "with channels": images[..., None].astype(np.float32),
        "PIL images": [Image.fromarray(image) for image in images],
        "a data set": tf.data.Dataset.from_tensor_slices(images).batch(8),
    }
    final = hidden @ np.asarray(stack[3].kernel) + np.asarray(stack[3].bias)
    expected = analysis.cka({"hidden": hidden, "final": final}).cka.values
    names = [layer.name for layer in stack[2:]]
    for name, form in forms.items():
        result = analysis.cka(flat, form, layers=names).cka.values
        np.testing.assert_allclose(result, expected, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_models_of_vectors_take_rows():
    rows = RNG.normal(size=(8, 20)).astype(np.float32)
    model = Sequential([Input((20,)), layers.Dense(4, "relu"), layers.Dense(3)])
    hidden = np.maximum(rows @ np.asarray(model.layers[0].kernel), 0)
    scores = hidden @ np.asarray(model.layers[1].kernel)
    result = analysis.cka(model, rows, layers=[layer.name for layer in model.layers])
    expected = analysis.cka({"hidden": hidden, "scores": scores})
    np.testing.assert_allclose(result.cka, expected.cka, atol=1e-4)


def small_cnn(shape, *first):
    keras.utils.set_random_seed(0)
    images = x = Input(shape, name="image")
    for layer in first:
        x = layer(x)
    x = layers.Conv2D(6, 3, 2, activation="relu", name="a")(x)
    x = layers.Conv2D(6, 3, activation="relu", name="b")(x)
    return keras.Model(images, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


PHOTOS = [RNG.integers(0, 256, (20 + k, 30 - k, 3)).astype(np.uint8) for k in range(12)]
CLASSES = np.arange(12) % 2


class PyBatches(keras.utils.PyDataset):
    """Twelve images and labels in three batches."""

    def __init__(self, images, labels):
        super().__init__()
        self.images, self.labels = images, labels

    def __len__(self):
        return 3

    def __getitem__(self, number):
        rows = slice(4 * number, 4 * number + 4)
        return self.images[rows], self.labels[rows]


@pytest.mark.slow
def test_data_sets_as_people_hold_them_are_the_same_images(tmp_path):
    """CKA of images that are resized one by one by the model's own preprocessing."""
    model = small_cnn((16, 16, 3), layers.Rescaling(1 / 255))
    any_size = small_cnn(
        (None, None, 3), layers.Resizing(16, 16, antialias=True), layers.Rescaling(1 / 255)
    )
    prepare = analysis.features_of(model).preprocessing
    prepared = np.stack([prepare(photo) for photo in PHOTOS])
    one_batch = tf.data.Dataset.from_tensor_slices(prepared).batch(12)
    expected = analysis.cka(model, one_batch, layers=["a", "b"]).cka
    spec = tf.TensorSpec((None, None, 3), tf.uint8), tf.TensorSpec((), tf.int64)
    single = tf.data.Dataset.from_generator(
        lambda: zip(PHOTOS, CLASSES, strict=True), output_signature=spec
    )
    named = tf.data.Dataset.from_tensor_slices(({"image": prepared}, {"label": CLASSES})).batch(12)
    for number, photo in enumerate(PHOTOS):
        Image.fromarray(photo).save(tmp_path / f"{number:02d}.png")
    forms = {
        "single images": single,
        "single images by name": single.map(lambda x, y: {"image": x, "label": y}),
        "inputs and targets by name": named,
        "inputs of another name": named.map(lambda x, y: ({"input_1": x["image"]}, y["label"])),
        "a folder": tmp_path,
        "a list": PHOTOS,
    }
    for name, form in forms.items():
        found = analysis.cka(model, form, layers=["a", "b"]).cka
        np.testing.assert_allclose(found, expected, atol=1e-3, err_msg=name)
    for form in (tmp_path, PHOTOS, single):
        found = analysis.cka(any_size, form, layers=["a", "b"]).cka
        np.testing.assert_allclose(found, expected, atol=5e-3)


def test_images_of_no_common_size_are_one_error(tmp_path):
    model = small_cnn((None, None, 3), layers.Rescaling(1 / 255))
    for number, photo in enumerate(PHOTOS):
        Image.fromarray(photo).save(tmp_path / f"{number:02d}.png")
    spec = tf.TensorSpec((None, None, 3), tf.uint8)
    single = tf.data.Dataset.from_generator(lambda: iter(PHOTOS), output_signature=spec)
    for form in (tmp_path, PHOTOS, single):
        with pytest.raises(ValueError, match="model that declares the size"):
            analysis.cka(model, form, layers=["a", "b"])


def test_a_pydataset_keeps_its_batches():
    images = RNG.normal(size=(12, 4, 4, 3)).astype(np.float32)
    batches = batch_images(PyBatches(images, CLASSES[:, None]))
    assert batches.cardinality() == 3
    for number, (rows, labels) in enumerate(batches):
        np.testing.assert_array_equal(rows, images[4 * number : 4 * number + 4])
        np.testing.assert_array_equal(labels, CLASSES[4 * number : 4 * number + 4])


def test_arrays_of_keras_datasets_have_labels_in_a_column():
    images = RNG.integers(0, 256, (12, 4, 4, 3)).astype(np.uint8)
    column = CLASSES[:, None].astype(np.uint8)
    plain = Preprocessing.from_range((4, 4), 0, 255)
    pair = tf.data.Dataset.from_tensor_slices((images, column)).batch(5)
    for form in ((images, column), pair):
        made = batch_images(form, plain, IN_ORDER)
        rows, labels = (np.concatenate(x) for x in zip(*made.as_numpy_iterator(), strict=True))
        np.testing.assert_array_equal(rows, images)
        np.testing.assert_array_equal(labels, CLASSES)


def test_rows_pairs_and_columns_of_images_and_labels(tmp_path):
    """Rows as of Hugging Face's data sets, pairs as of torchvision's, columns as of pandas."""
    pandas = pytest.importorskip("pandas")
    images = RNG.integers(0, 256, (6, 4, 4, 3)).astype(np.uint8)
    labels = np.arange(6) % 3
    paths = [str(tmp_path / f"{number} a.png") for number in range(6)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    frame = pandas.DataFrame({"path": paths, "label": labels})
    pictures = list(map(Image.fromarray, images))
    labelled = {
        "rows": [{"image": x, "label": int(y)} for x, y in zip(pictures, labels, strict=True)],
        "pairs of paths": list(zip(paths, labels.tolist(), strict=True)),
        "pairs of arrays": list(zip(images, labels, strict=True)),
        "columns": (frame.path, frame.label),
    }
    alone = {"a column": frame.path, "an array of paths": np.array(paths)}
    plain = Preprocessing.from_range((4, 4), 0, 255)
    for name, form in (labelled | alone).items():
        assert is_raw(form)
        made = batch_images(form, plain, IN_ORDER)
        if name in alone:
            rows = np.concatenate(list(made.as_numpy_iterator()))
        else:
            rows, found = (np.concatenate(x) for x in zip(*made.as_numpy_iterator(), strict=True))
            np.testing.assert_array_equal(found, labels, err_msg=name)
        np.testing.assert_array_equal(rows, images, err_msg=name)


def test_an_image_that_is_not_finite_is_named_by_its_position_in_the_data():
    """Also where images are read in a random order."""
    model = small_cnn((16, 16, 3))
    images = RNG.normal(size=(24, 16, 16, 3)).astype(np.float32)
    images[17, 4, 4, 0] = np.nan
    labels = np.arange(24) % 2
    calls = (
        lambda: analysis.cka(model, images),
        lambda: vit_tf.extract_features(model, images),
        lambda: analysis.mistakes(model, (images, labels)),
        lambda: analysis.cka(model, tf.data.Dataset.from_tensor_slices(images).batch(10)),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"NaN in .*, first in image 17 of the data"):
            call()


def test_labels_that_are_no_integers_are_explained():
    images = RNG.normal(size=(6, 16, 16, 3)).astype(np.float32)
    model = small_cnn((16, 16, 3))
    halves, rows = np.arange(6) / 2, np.eye(2, dtype=np.float32)[np.arange(6) % 2]
    with pytest.raises(ValueError, match=r"labels of shape \(6,\) and type float64"):
        analysis.mistakes(model, (images, halves))
    one_hot = tf.data.Dataset.from_tensor_slices((images, rows)).batch(3)
    with pytest.raises(
        ValueError, match=r"argmax\(labels, axis=1\) makes integers of one-hot rows"
    ):
        analysis.mistakes(model, one_hot)


def test_the_images_of_a_folder_come_in_the_order_of_their_names(tmp_path):
    for number in range(10):
        Image.fromarray(np.full((4, 4, 3), 25 * number, np.uint8)).save(tmp_path / f"{number}.png")
    for images in (tmp_path, f"{tmp_path}/*.png"):
        read = as_array(as_images(images, Preprocessing.from_range((4, 4), 0, 255), IN_ORDER))
        np.testing.assert_array_equal(read.mean((1, 2, 3)), 25 * np.arange(10))


def test_batches_that_do_not_begin_with_images_are_refused():
    paths = tf.data.Dataset.from_tensor_slices((["a.png"], np.zeros((1, 4, 4, 3)))).map(
        lambda path, image: ((path, path), image)
    )
    with pytest.raises(ValueError, match="Expected batches of images"):
        as_images(paths)
