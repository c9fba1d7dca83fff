"""The analysis of any models, from files to a report, on models that are made in a moment."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from image_folders import write
from reports import analyzed
from study_parts import cka_result

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.engine import stream
from vit_tf.analysis.figures import models
from vit_tf.analysis.figures.data import TEST_RULE, batch_size_of
from vit_tf.analysis.figures.models import distinct, slug
from vit_tf.analysis.report import assemble
from vit_tf.data.batches import RANDOM
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.conversion import as_features
from vit_tf.features.layers import grid_of_shapes
from vit_tf.features.preprocessed import PreprocessedFeatures
from vit_tf.features.submodels import FACTS
from vit_tf.scripts import analyze, common, report_commands
from vit_tf.training.evaluation import top_k_accuracy


def tiny_cnn(size=16):
    layers = keras.layers
    images = keras.Input((size, size, 3))
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu", name="conv1")(images)
    x = layers.Dropout(0.5, name="dropout")(x)
    x = layers.Conv2D(6, 3, strides=2, padding="same", name="conv2")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(images, layers.Dense(10, name="classes")(x))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Folder of a convolutional network, a ViT and a SavedModel of some of its taps."""
    folder = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(0)
    tiny_cnn().save(folder / "cnn.keras")
    vit = vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 8, 10)
    vit.save(folder / "vit.keras")
    taps = vit_tf.submodel(vit, "block*/*/sum", "block*/attention/weights")
    taps.export(folder / "exported", verbose=False)
    (folder / "exported" / FACTS).rename(folder / FACTS)  # as of a SavedModel made elsewhere
    return folder


@pytest.fixture(scope="module")
def images():
    size = batch_size_of(60)
    (test,) = vit_tf.data.load(
        "digits", image_size=16, splits=("test",), take=60, batch_size=size, shuffle_once=True
    )
    return test


@pytest.mark.slow
def test_one_report_of_a_cnn_and_a_vit(files, images, tmp_path, monkeypatch):
    arguments = (files / "cnn.keras", files / "vit.keras", "--figures", "1,2,3,8,13")
    figures, page = analyzed(tmp_path, *arguments)
    models = ["cka", "cka-cnn", "cka-vit"]
    assert figures == [*models, "cka-cnn-vit", "attention-distance", "ridge-probe"]
    assert re.findall(r'<td rowspan="\d+">([^<]*\.)</td>', page)[:2] == [
        "cnn has no attention weights.",
        "It needs models trained without the skips of a block, which vit-tf study --full trains.",
    ]

    cnn = vit_tf.load_model(files / "cnn.keras")
    actual = xr.load_dataset(tmp_path / "results" / "cka.cnn.nc")
    direct = analysis.cka(cnn, images)
    assert list(actual.layer_x.values) == list(direct.layer_x.values)
    np.testing.assert_allclose(actual.cka, direct.cka, atol=1e-5)

    vit = vit_tf.load_model(files / "vit.keras")
    shares = [f"{100 * top_k_accuracy(model, images, ks=(1,))[1]:.4g}" for model in (cnn, vit)]
    table = page[page.index('id="models"') :]
    head, row, other = (line.split("</tr>")[0] for line in table.split("<tr>")[1:4])
    assert "test accuracy (%)" in head
    for line, share in zip((row, other), shares, strict=True):
        shown = re.findall(r">([\d.]+)</td>", line)[-1]
        assert float(shown) == pytest.approx(float(share), abs=0.005)

    saved = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").glob("*.nc")}
    assert tmp_path / "results" / "accuracy.vit.nc" in saved
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_groups", None)
        analyzed(tmp_path, *arguments)
    assert {path: path.stat().st_mtime_ns for path in saved} == saved


@pytest.mark.slow
def test_a_model_that_rescales_gets_the_pixels_it_expects(files, images, tmp_path):
    keras.utils.set_random_seed(0)
    cnn = tiny_cnn()
    for layer in cnn.layers:
        if layer.weights:
            layer.bias.assign(np.linspace(-0.1, 0.1, layer.bias.shape[0]))
    pixels = keras.Input((16, 16, 3))
    rescaled = keras.layers.Rescaling(1 / 255, name="rescaling")(pixels)
    keras.Model(pixels, cnn(rescaled)).save(tmp_path / "pixels.keras")
    arguments = (tmp_path / "pixels.keras", files / "vit.keras", "--figures", "1")
    _, page = analyzed(tmp_path / "found", *arguments)
    actual = xr.load_dataset(tmp_path / "found" / "results" / "cka.pixels.nc")
    model = vit_tf.submodel(vit_tf.load_model(tmp_path / "pixels.keras"), *actual.layer_x.values)
    direct = analysis.cka(model, images.map(lambda x, y: (x + 1) * 127.5))
    np.testing.assert_allclose(actual.cka, direct.cka, atol=1e-4)
    assert "values in [0, 255] (found from its first layers)" in page
    assert "values in [-1, 1] (set by the model)" in page and "hardly differ" not in page

    _, page = analyzed(tmp_path / "told", *arguments[:1], "--figures", 1, "--range", -1, 1)
    assert "The last layers of pixels hardly differ between images" in page
    message = xr.load_dataset(tmp_path / "told" / "results" / "cka.pixels.nc")
    assert message.attrs["key"] != actual.attrs["key"]


@pytest.mark.slow
def test_another_model_in_the_same_file_is_measured_anew(files, tmp_path):
    path = tmp_path / "cnn.keras"
    keys = []
    for seed in (0, 1):
        keras.utils.set_random_seed(seed)
        tiny_cnn().save(path)
        analyzed(tmp_path / "out", path, "--figures", "1")
        keys.append(xr.load_dataset(tmp_path / "out" / "results" / "cka.cnn.nc").attrs["key"])
    assert keys[0] != keys[1]


@pytest.mark.slow
def test_a_saved_model_uses_the_given_grid(files, images, tmp_path):
    arguments = (files / "exported", "--figures", "3,9,C.4")
    _, page = analyzed(tmp_path, *arguments, "--patch-size", "8")
    actual = xr.load_dataarray(tmp_path / "results" / "attention_distance.exported.nc")
    features = vit_tf.load_features(files / "exported", "*/weights")
    direct = analysis.attention_distance(features, images, TokenGrid(2, 2, 1, 8))
    np.testing.assert_allclose(actual, direct, rtol=1e-5)
    assert "exported has no branches" in page


@pytest.mark.slow
def test_a_saved_model_stores_its_grid_and_preprocessing(images, tmp_path):
    wanted = Preprocessing((16, 16), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    vit = vit_tf.ViT((16, 16, 3), 8, 1, 1, 8, 8, 10, preprocessing=wanted)
    taps = vit_tf.submodel(vit, "block*/attention/weights", "block*/*/sum")
    taps.export(tmp_path / "told", verbose=False)
    again = vit_tf.load_features(tmp_path / "told")
    assert again.token_grid == vit.token_grid and again.preprocessing == wanted
    _, page = analyzed(tmp_path / "out", tmp_path / "told", "--figures", "3")
    actual = xr.load_dataarray(tmp_path / "out" / "results" / "attention_distance.told.nc")

    direct = analysis.attention_distance(
        vit_tf.submodel(vit, "*/weights"),
        images.map(lambda x, y: tf.cast(((x + 1) / 2 - wanted.mean) / wanted.std, tf.float32)),
        vit.token_grid,
    )
    np.testing.assert_allclose(actual, direct, rtol=1e-4)
    assert "(set in its folder)" in page
    (tmp_path / "told" / FACTS).write_text('{"token_grid": {"rows": 2}}')
    with pytest.raises(ValueError, match="to hold a token_grid and a preprocessing"):
        vit_tf.load_features(tmp_path / "told")


@pytest.mark.slow
def test_a_folder_of_images_without_labels_is_analysed_whole(files, tmp_path, rng):
    photos = tmp_path / "photos"
    for number in range(60):
        write(photos / f"{number}.png", rng.integers(0, 256, (16, 16, 3)))
    line = [files / "vit.keras", "--data", photos, "--figures", "1,13"]
    _, page = analyzed(tmp_path / "out", *line)
    actual = xr.load_dataset(tmp_path / "out" / "results" / "cka.vit.nc")
    size = batch_size_of(60)
    (every,) = vit_tf.data.load(photos, splits=("all",), batch_size=size, shuffle_once=True)
    model = vit_tf.submodel(vit_tf.load_model(files / "vit.keras"), *actual.layer_x.values)
    np.testing.assert_allclose(actual.cka, analysis.cka(model, every).cka, atol=1e-5)
    assert "It needs labels of two classes or more" in page
    assert "on 60 images of" in page
    assert "No probes are fitted: there are no labelled training images apart from these." in page


def test_the_grid_of_tokens_is_found_before_what_pools_them():
    shapes = {
        "block_0": (16, 8),
        "block_0/query": (16, 2, 4),
        "block_1": (16, 8),
        "head/value": (16, 2, 4),
        "head/attention": (1, 8),
        "probes": (3, 8),
    }
    for patch_size in (8, None):
        grid = grid_of_shapes(shapes, shapes, (32, 32), patch_size=patch_size)
        assert grid == TokenGrid(4, 4, 0, 8)
    with_prefix = {"block_0": (5, 8), "head/value": (5, 2, 4), "head": (1, 8)}
    for patch_size in (16, None):
        grid = grid_of_shapes(with_prefix, with_prefix, (32, 32), patch_size=patch_size)
        assert grid == TokenGrid(2, 2, 1, 16)


def test_there_are_at_least_eight_batches_where_the_images_allow():
    for examples in range(1, 3000):
        sizes = TEST_RULE.sizes(examples)
        assert sum(sizes) == examples and max(sizes) <= 128 and max(sizes) - min(sizes) <= 1
        assert len(sizes) >= min(8, max(examples // 12, 1))
        assert min(sizes) >= min(12, examples)  # as many as mutual k-NN needs
        if examples > 7 * 128:  # calls and reports have the same batches
            assert sizes == RANDOM.sizes(examples)
    assert [len(TEST_RULE.sizes(n)) for n in (2000, 360, 100, 64, 32, 4)] == [16, 8, 8, 5, 2, 1]


@pytest.mark.slow
def test_mistakes_are_one_line(files, tmp_path, capsys):
    tiny_cnn(8).save(tmp_path / "small.keras")
    tiny_cnn(None).save(tmp_path / "any.keras")
    cnn, vit, saved = files / "cnn.keras", files / "vit.keras", files / "exported"
    for arguments, message in [
        ([cnn, "--figures", "99"], "Unknown figure in --figures: '99'"),
        ([], "No MODEL is given"),
        ([tmp_path / "none.keras"], "Model file not found"),
        ([tmp_path], "Cannot read the SavedModel"),
        ([cnn, tmp_path / "small.keras"], "cnn 16 x 16, small 8 x 8"),
        ([vit, "--image-size", "32"], "vit 16 x 16, --image-size 32 x 32"),
        ([tmp_path / "any.keras"], "specify --image-size"),
        ([vit, "--taps", "block*"], "--taps applies only to models"),
        ([cnn, "--taps", "conv_1"], "Did you mean conv1"),
        ([cnn, vit, "--names", "one"], "Expected one value of --names for each model, 2"),
        (
            [saved, "--patch-size", "4"],
            "fit the 5 tokens of the layers. Received: 0 + 4 x 4 tokens",
        ),
        (
            [saved, "--patch-size", "8", "--prefix", "2"],
            "5 tokens of the layers. Received: 2 + 2 x 2 tokens",
        ),
        ([saved, "--prefix", "1"], "--prefix needs --patch-size"),
        ([vit, "--patch-size", "8"], "--patch-size applies only to models"),
        ([saved, "--figures", "8"], "No figure applies to these models"),
        ([cnn, "--patch-size", "0"], "Expected --patch-size to be at least 1"),
        ([cnn, "--roles", "cnn"], "Expected --roles among vit, gap, resnet, mixer, -"),
    ]:
        assert analyze.main([*map(str, arguments), "--out", str(tmp_path / "out")]) == 2, arguments
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error: ") and message in error, error
    assert not (tmp_path / "out" / "report.html").exists()


def test_models_of_one_name_get_distinct_names():
    taken = set()
    for expected in ("ViT", "ViT (2)", "ViT (3)"):
        name = distinct("ViT", taken)
        assert name == expected
        taken.add(slug(name))
    assert distinct("vit 2", taken) == "vit 2 (2)"
    with pytest.raises(ValueError, match=r"Expected names of models \(--names\)"):
        distinct("数字", taken)


def test_constant_layers_are_those_with_nothing_but_rounding(rng):
    noise = rng.normal(size=(3, 20)).astype("float32")
    assert models.variation(np.zeros((3, 5), np.float32)) == 0
    assert models.variation(1 + 1e-5 * noise) <= models.CONSTANT
    assert models.variation(1 + 1e-2 * noise) > models.CONSTANT


def test_layers_without_a_similarity_are_named():
    values = np.array([[1, np.nan, 0.5], [np.nan, np.nan, np.nan], [0.5, np.nan, 1]])
    result = cka_result(values, "abc", model="CNN")
    ((_, sentences),) = assemble.undefined({"cka.cnn": result, "cka.vit": None})
    assert sentences == ["CNN: b."]
    assert assemble.undefined({"cka.cnn": result.fillna(0)}) == []
    for names, expected in (("none", []), ("d", ["CNN: d."]), (["d", "e"], ["CNN: d, e."])):
        existing = result.fillna(0).assign_attrs(constant_layers=names)
        actual = assemble.undefined({"cka.cnn": existing})
        assert [sentence for _, sentences in actual for sentence in sentences] == expected


def test_digest_depends_on_content_and_not_location(tmp_path):
    for name, text in (("one", "same"), ("two", "same"), ("three", "other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(text)
    item, two, three = (analyze.digest(tmp_path / n) for n in ("one", "two", "three"))
    assert item == two != three
    (tmp_path / "two" / "weights").rename(tmp_path / "two" / "biases")
    assert analyze.digest(tmp_path / "two") != item


def test_models_that_want_other_values_get_them_from_the_shared_images(rng):
    pixels = rng.uniform(0, 1, (2, 4, 4, 3))
    wanted = Preprocessing((4, 4), (0.5, 0.4, 0.3), (0.2, 0.25, 0.5))
    features = PreprocessedFeatures(as_features(lambda images: {"received": images}), wanted)
    received = features(tf.constant(2 * pixels - 1, tf.float32))["received"]
    np.testing.assert_allclose(received, (pixels - wanted.mean) / wanted.std, atol=1e-6)


@pytest.mark.slow
def test_probes_are_left_out_where_a_class_has_too_few_images(tmp_path):
    rng = np.random.default_rng(0)
    for split, counts in (("train", (25, 12)), ("test", (6, 6))):
        for name, count in zip(("ape", "bee"), counts, strict=True):
            for number in range(count):
                write(tmp_path / split / name / f"{number:02}.png", rng.integers(0, 256, (8, 8, 3)))
    data = {}
    for shots in (10, 6):
        options = analyze.parse(["vit.keras", "--data", str(tmp_path), "--shots", str(shots)])
        options.sizes = {"test": 12}
        description = common.describe_data(options)
        data[shots] = report_commands.read_data(options, description, image_size=8)
    assert data[10].missing(["gallery", "labels"]) == data[6].missing(["train", "gallery"]) == ""
    reason = data[10].missing(["train", "validation"])
    assert "20 training images" in reason and "'bee' has 12" in reason
    assert data[10].num_classes == 2
    labels = np.concatenate([labels for _, labels in data[6].train.as_numpy_iterator()])
    assert np.bincount(labels).tolist() == [6, 6]
