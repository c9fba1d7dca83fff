"""The page of single images, from a model to numbers on a page."""

import base64
import errno
import json
import os
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from oracles import randomize
from packed_arrays import unpack
from PIL import Image
from sklearn.decomposition import PCA

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine.class_scores import as_probabilities
from vit_tf.analysis.explorer import exploration, exploration_results
from vit_tf.analysis.explorer.exploration import (
    Exploration,
    compare_with_label,
    pack,
    read_images,
    shrunk,
)
from vit_tf.analysis.explorer.exploration_results import principal_components, token_norms


def image(height=20, width=30, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype("uint8")


PHOTOS = [image(16, 24), image(16, 24, 1)]
IMAGES = np.stack(PHOTOS) / np.float32(127.5) - 1


def payload_of(page):
    """What the script of a page draws."""
    text = page.path.read_text("utf-8")
    (model,) = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])["models"]
    return model


@pytest.fixture
def measure_only(monkeypatch):
    """Function of the names of the results that pages then have, instead of all."""

    def restrict(*names):
        measures = {name: exploration_results.MEASURES[name] for name in names}
        monkeypatch.setattr(exploration_results, "MEASURES", measures)

    return restrict


def reasons(page):
    return {subject: " ".join(why) for subject, why in page.left_out}


SLOW = pytest.mark.slow  # pages of further models, which take more than 0.3 seconds


@pytest.mark.parametrize(("bits", "levels"), [(8, 255), (16, 65_535)])
def test_a_large_offset_adds_no_error(rng, bits, levels):
    values = 1000.03 + rng.uniform(size=(4, 50)) * 1e-4  # float32 numbers there are 6e-5 apart
    packed = pack(values, bits, leading=1)
    low = np.frombuffer(base64.b64decode(packed["low"]), "<f4").astype(np.float64)[:, None]
    assert (low <= values).all()
    unpacked, values = unpack(packed) - low, values - low
    assert (np.abs(unpacked - values) <= 0.51 * values.max(-1, keepdims=True) / levels).all()


@pytest.mark.parametrize(("bits", "levels"), [(8, 255), (16, 65_535)])
def test_packed_values_are_off_by_half_a_step_at_most(rng, bits, levels):
    values = rng.normal(size=(3, 4, 50)) * 10.0 ** rng.integers(-6, 6, size=(3, 4, 1))
    packed = pack(values, bits, leading=2)
    step = np.ptp(values, axis=-1, keepdims=True) / levels
    off = np.abs(unpack(packed) - values)
    assert (off <= (0.5 + 1e-2) * step + 1e-6 * np.abs(values).max(axis=-1, keepdims=True)).all()
    positive = np.abs(values)
    zero = pack(positive, bits, leading=2, low=0)
    biggest = positive.max(axis=-1, keepdims=True)
    assert (np.abs(unpack(zero) - positive) <= 0.51 * biggest / levels).all()


def test_what_packing_keeps_and_refuses(rng):
    floats = np.array([[np.nan, 1.5], [np.inf, -2.25]])
    np.testing.assert_array_equal(unpack(pack(floats, 32)), floats)
    np.testing.assert_array_equal(unpack(pack(np.full((2, 3), 7.0), 8, 1)), 7)
    with pytest.raises(ValueError, match="Expected finite values"):
        pack(floats)
    with pytest.raises(ValueError, match="Expected values of at least 0"):
        pack([-1.0, 1.0], low=0)


def test_scores_become_probabilities_unless_they_are(rng):
    scores = 300 * rng.normal(size=(2, 3, 5))
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(as_probabilities(scores), expected)
    np.testing.assert_array_equal(as_probabilities(expected), expected)


def test_maps_shrink_to_means_of_squares():
    maps = np.arange(2 * 5 * 6.0).reshape(2, 5, 6)
    actual = shrunk(maps, most=3)
    assert actual.shape == (2, 3, 3)
    np.testing.assert_array_equal(actual[1, 0, 2], maps[1, :2, 4:].mean())
    np.testing.assert_array_equal(actual[0, 2, 0], maps[0, 4, :2].mean())  # the edge repeats


def test_a_pair_of_images_and_labels_is_read():
    arrays = np.zeros((3, 4, 4, 3), np.uint8)
    for labels in ([2, 0, 1], np.array([2, 0, 1])):
        pictures, _, read = read_images((arrays, labels))
        assert len(pictures) == 3 and read == [2, 0, 1]
    assert read_images((arrays[0], arrays[1]))[2] == [None] * 2
    assert read_images(list(arrays))[2] == [None] * 3
    with pytest.raises(ValueError, match=r"a label for each of 3 images\. Received: 2 labels"):
        exploration.explore("bit-cifar10", (arrays, [0, 1]))


def test_photographs_of_the_package_and_patterns_are_read(tmp_path, monkeypatch):
    pictures, names, _ = exploration.read_images("photographs")
    assert len(pictures) == 200 and names[0] == "airplane.jpg"
    monkeypatch.chdir(tmp_path)
    for name in ("b.png", "a.png", "a.txt"):
        Image.new("RGB", (8, 8)).save(name, "PNG")
    assert exploration.read_images("*.png")[1] == ["a.png", "b.png"]


def test_images_of_a_dataset_are_those_of_its_arrays():
    arrays = np.stack([image(seed=seed) for seed in range(3)])
    labelled = tf.data.Dataset.from_tensor_slices((arrays, [0, 1, 2]))
    expected, names, _ = read_images(list(arrays))
    for dataset in (labelled, labelled.batch(2), labelled.map(lambda image, _: image)):
        actual = read_images(dataset)
        np.testing.assert_array_equal(actual[0], expected)
        assert actual[1] == names
    with pytest.raises(ValueError, match=r"Expected a data set of finite length.*take\("):
        read_images(labelled.repeat())


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 2, 9)])
def test_components_of_features_are_those_of_scikit_learn(rng, shape):
    tokens = rng.normal(size=shape).astype("float32") + 7
    actual = principal_components({"layer": tokens})["layer"]
    pca = PCA(3).fit(tokens.reshape(-1, shape[-1]))
    expected = pca.transform(tokens.reshape(-1, shape[-1])).reshape(*shape[:3], 3)
    np.testing.assert_allclose(np.abs(actual), np.abs(expected), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(actual["explained"], pca.explained_variance_ratio_, rtol=1e-4)
    assert ((actual**3).sum(("example", "row", "column")) > 0).all()
    narrow = principal_components({"layer": tokens[..., :2]})["layer"]
    assert narrow.sizes["component"] == 3 and not narrow[..., 2].any()


@pytest.fixture(scope="module")
def vit_page(tmp_path_factory):
    """A ViT with a CLS token, and its page of two images."""
    vit = vit_tf.ViT((16, 24, 3), 8, 2, 2, 8, 8, 5, class_names=list("abcde"))
    randomize(vit)
    path = tmp_path_factory.mktemp("vit") / "page.html"
    return vit, analysis.explore(vit, PHOTOS, path, samples=1)


def test_every_patch_has_the_class_that_the_head_reads_from_it(vit_page):
    vit, page = vit_page
    layer = "block00/mlp/sum"
    tokens = vit_tf.submodel(vit, layer)(IMAGES)[layer][:, 1:]
    expected = vit.head(vit.norm(tokens)).numpy()
    actual = page.results["patch_lens"]
    np.testing.assert_allclose(actual.sel(layer=layer), expected, rtol=1e-3, atol=1e-4)
    data, example = payload_of(page), payload_of(page)["examples"][1]
    at = data["layers"]["patches"].index(layer)
    names = [data["patch_names"][item] for item in example["patch_top"][at]]
    assert names == [vit.class_names[item] for item in expected[1].argmax(axis=-1)]
    shares = as_probabilities(expected[1])
    np.testing.assert_allclose(unpack(example["patch_share"])[at], shares.max(-1), atol=3e-3)
    choice = [vit.class_names.index(name) for name in example["classes"]]
    own = unpack(example["patch_classes"])[:, at]
    np.testing.assert_allclose(own, shares[:, choice].T, atol=1e-4)


def test_removal_changes_the_prediction_as_an_intervention_does(vit_page):
    vit, page = vit_page
    zero = vit_tf.edits.zero
    removed = {
        "head 1": {"block01/attention/heads": vit_tf.edits.head(1, zero)},
        "block": {"block01/*/branch": zero},
    }
    actual = page.results["removals"]
    assert actual["removed"].values.tolist() == ["head 0", "head 1", "block"]
    intact = as_probabilities(page.results["scores"].values)
    data = payload_of(page)
    choice = [[vit.class_names.index(n) for n in item["classes"]] for item in data["examples"]]
    for name, edits in removed.items():
        expected = vit_tf.intervene(vit, edits, "logits")(IMAGES)["logits"].numpy()
        own = actual.sel(layer="block01", removed=name)
        np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-4)
        change = 100 * (as_probabilities(expected) - intact)
        change = [item[classes] for item, classes in zip(change, choice, strict=True)]
        drawn = [
            unpack(item["removals"])[:, 1, data["removed"].index(name)] for item in data["examples"]
        ]
        np.testing.assert_allclose(drawn, change, rtol=1e-3, atol=1e-3)


def test_each_image_explains_its_own_classes(vit_page):
    vit, page = vit_page
    scores, data = page.results["scores"].values, payload_of(page)
    best = np.argsort(-scores, axis=1)[:, :3]
    assert best[0].tolist() != best[1].tolist()
    for at, item in enumerate(data["examples"]):
        assert item["classes"] == [vit.class_names[c] for c in best[at]]
        relevance = page.results["gradient_attention"][at]
        missing = [c for c in relevance["class"].values if c not in best[at]]
        assert relevance.sel({"class": missing}).isnull().all()
        expected = analysis.gradient_attention(vit, IMAGES[[at]], [int(c) for c in best[at]])
        own = relevance.sel({"class": best[at]})
        np.testing.assert_allclose(own, expected[0], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(unpack(item["relevance"]), own[:, 0, 1:], rtol=1e-5)


def functional_model(first=lambda images: images):
    """A functional ViT of two blocks, whose attention weights follow from queries and keys."""
    images = keras.Input((16, 24, 3))
    x = keras.layers.Reshape((6, 8))(keras.layers.Conv2D(8, 8, 8)(first(images)))
    for _ in range(2):
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(2, 4)(y, y)
    return keras.Model(images, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling1D()(x)))


def model_of_bytes():
    """The functional model for images from 0 to 255, which its first layer rescales."""
    model = functional_model(keras.layers.Rescaling(1 / 127.5, -1))
    model.preprocessing = vit_tf.Preprocessing((16, 24), mean=(0.0,) * 3, std=(1 / 255,) * 3)
    return model


CALLED = {
    "BiT": lambda: vit_tf.BiT((16, 24, 3), (1,), 0.5, 5, stem="small"),
    "functional ViT": functional_model,
    "0 to 255": model_of_bytes,
}


def test_the_call_of_a_panel_gives_its_result(vit_page):
    vit, page = vit_page
    assert page.calls.keys() >= {"rollout", "gradient_attention", "norms", "logit_lens"}
    require_calls_to_give_results(page, vit, IMAGES, "attention")


@SLOW
@pytest.mark.parametrize("name", CALLED)
def test_the_call_of_a_panel_gives_its_result_for_other_models(name, tmp_path):
    model = CALLED[name]()
    randomize(model)
    page = analysis.explore(model, PHOTOS, tmp_path / "page.html", samples=1)
    images = np.stack(PHOTOS) if name == "0 to 255" else IMAGES
    panels = ("fields", "grad_cam") if name == "BiT" else ("attention",)
    require_calls_to_give_results(page, model, images, *panels)


def require_calls_to_give_results(page, model, images, *panels):
    measured = {"input_gradients", "similarity", *panels}
    assert measured <= page.calls.keys() <= page.results.keys()
    for result_name, call in page.calls.items():
        result, called = (
            x if isinstance(x, xr.Dataset) else x.to_dataset(name="values")
            for x in (
                page.results[result_name],
                eval(call, {"analysis": analysis, "model": model, "images": images}),
            )
        )
        if "class" in called.coords:  # of the first image, where others explain other classes
            result = result.isel(example=slice(called.sizes["example"]))
            result = result.sel({"class": called["class"]})
        xr.testing.assert_allclose(result, called, rtol=1e-3, atol=1e-5)
        assert f"<code>{call.replace(chr(34), '&#34;')}</code>" in page.path.read_text("utf-8")


def test_norms_of_tokens_are_those_of_the_layer(vit_page):
    vit, page = vit_page
    layer = "block01/mlp/sum"
    sizes = np.linalg.norm(vit_tf.submodel(vit, layer)(IMAGES)[layer], axis=-1)
    actual = page.results["token_norms"][layer]
    np.testing.assert_allclose(actual["norm"].values.reshape(2, -1), sizes[:, 1:], rtol=1e-4)
    np.testing.assert_allclose(actual["prefix_norm"].values, sizes[:, :1], rtol=1e-4)
    without_prefix = {"map": (np.ones((1, 2, 2, 3)), np.ones((1, 0, 3)))}
    assert "prefix_norm" not in token_norms(without_prefix)["map"]


def test_a_head_of_zeros_is_reported_once(tmp_path):
    vit = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 8, 3)
    vit.head.kernel.assign(keras.ops.zeros_like(vit.head.kernel))
    page = analysis.explore(vit, image(), tmp_path / "page.html")
    assert not set(page.results) & {"input_gradients", "logit_lens", "patch_lens", "removals"}
    assert "similarity" in page.results
    assert [why for _, why in page.left_out if "untrained" in why[0]] == [
        ["The head scores all classes equally, as one that is zero or untrained does."]
    ]
    text = page.path.read_text("utf-8")
    assert text.count("The head scores all classes equally") == 2  # under the image, and at the end


@SLOW
def test_a_model_that_expects_pixels_is_shown_what_it_expects(tmp_path):
    """Images are resized; a model of [0, 255] gives what one of [-1, 1] does of the same image."""
    vit = vit_tf.ViT((16, 24, 3), 8, 1, 2, 8, 8, 3)
    randomize(vit)
    plain = analysis.explore(vit, image(), tmp_path / "plain.html", samples=1, noise=0)
    expects = vit_tf.Preprocessing.from_range((16, 24), 0, 255)
    scaled = vit_tf.reinitialize(vit)
    scaled.set_weights(vit.get_weights())
    scaled.preprocessing = expects
    kernel = scaled.embedding.patches.kernel
    scaled.embedding.patches.bias.assign_sub(keras.ops.sum(kernel, axis=(0, 1, 2)))
    kernel.assign(kernel / 127.5)
    shown = analysis.explore(scaled, [image()], tmp_path / "scaled.html", samples=1, noise=0)
    assert list(plain.results) == list(shown.results)
    for name in ("attention", "logit_lens", "input_gradients", "rollout"):
        item, other = (page.results[name] for page in (plain, shown))
        for variable in ["attention", "distance"] if name == "attention" else [...]:
            values = [x[variable] if variable is not ... else x for x in (item, other)]
            # Gradients are per unit of what a model expects.
            values[1] = values[1] * 127.5 if name == "input_gradients" else values[1]
            np.testing.assert_allclose(*values, rtol=2e-3, atol=1e-4)
    picture = vit_tf.Preprocessing((16, 24))(image())
    np.testing.assert_allclose(plain.results["scores"], vit(picture[None]), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def cnn_page(tmp_path_factory):
    keras.utils.set_random_seed(0)
    x = images = keras.Input((16, 24, 3))
    for number, width in enumerate((4, 6), start=1):
        x = keras.layers.Conv2D(width, 3, strides=2, padding="same", name=f"conv{number}")(x)
        x = keras.layers.LeakyReLU(name=f"relu{number}")(x)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    x = keras.layers.Dense(3, activation="softmax", name="classes")(x)
    path = tmp_path_factory.mktemp("cnn") / "page.html"
    return analysis.explore(keras.Model(images, x), image(), path, samples=1, classes=[2, 0])


def test_a_network_of_another_origin_shows_its_maps(cnn_page):
    results = cnn_page.results
    assert set(results) >= {"scores", "input_gradients", "similarity", "fields", "grad_cam"}
    assert [x.shape[1:] for x in results["components"].values()] == [(8, 12, 3), (4, 6, 3)]
    assert "no heads and branches" in reasons(cnn_page)["The effect of removing heads and blocks"]
    assert results["grad_cam"]["class"].values.tolist() == [2, 0]
    assert results["fields"].sizes["place"] == 4 * 6
    assert "has no attention weights" in reasons(cnn_page)["The attention of patches"]
    data = payload_of(cnn_page)
    assert data["examples"][0]["classes"] == ["class 2", "class 0"]
    assert data["grid"] == {"rows": 4, "columns": 6, "prefix": 0, "stride": 4}
    cam = unpack(data["examples"][0]["cam"])
    np.testing.assert_allclose(cam, results["grad_cam"].values[0], atol=cam.max() / 500)


@SLOW
def test_the_page_explains_classes_by_the_tokens_that_the_head_reads(tmp_path, measure_only):
    measure_only("scores", "gradient_attention")
    sizes = (16, 24, 3), 8, 1, 2, 8, 8, 3
    models = {
        "the mean of the patches": (vit_tf.BEiT(*sizes), range(1, 7)),
        "CLS and distillation": (vit_tf.DistilledViT(*sizes), [0, 1]),
        "CLS": (vit_tf.ViT(*sizes, registers=2), [0]),
    }
    for name, (model, tokens) in models.items():
        randomize(model)
        page = analysis.explore(model, image(), tmp_path / "page.html", samples=1)
        relevance, data = page.results["gradient_attention"], payload_of(page)
        assert (data["pooled"], data["pooled_name"]) == (list(tokens), name)
        assert np.atleast_1d(relevance.attrs["pooled_tokens"]).tolist() == list(tokens)
        prefix = model.token_grid.prefix
        expected = relevance.values[0][:, list(tokens)].mean(axis=1)[:, prefix:]
        actual = unpack(data["examples"][0]["relevance"])
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
        drawn = analysis.plots.plot_gradient_attention(relevance)
        values = drawn.panels[0].images[-1].get_array().ravel()
        np.testing.assert_allclose(values, expected[0] / expected[0].max(), rtol=1e-6)


def test_a_notebook_shows_the_page(cnn_page):
    shown = cnn_page._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert str(cnn_page.path) in shown


@SLOW
def test_a_keras_hub_vit_shows_what_its_layers_hold(tmp_path, measure_only):
    keras_hub = pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    measure_only("scores", "attention", "similarity", "input_gradients")
    sizes = {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
    model = keras_hub.models.ViTBackbone(image_shape=(16, 24, 3), **sizes)
    randomize(model)
    page = analysis.explore(model, [image(), image(seed=1)], tmp_path / "a.html", patch_size=8)
    result, images = page.results["similarity"], vit_tf.Preprocessing((16, 24))(image())[None]
    assert result.sizes["token"] == 6 and result.attrs["prefix"] == 1
    last = model(images).numpy().astype(float)[0, 1:]
    last /= np.linalg.norm(last, axis=-1, keepdims=True)
    np.testing.assert_allclose(result.values[-1, 0, :, 0], last @ last.T, atol=1e-4)
    attention = page.results["attention"]
    assert attention.layer.values[1] == "vit_encoder/transformer_block_2/mha/weights"
    norm = "vit_encoder/transformer_block_2/ln_1"
    inside = vit_tf.submodel(model, norm)(images)[norm]
    block = model.get_layer("vit_encoder").encoder_layers[1]
    _, weights = block.mha(inside, inside, return_attention_scores=True)
    np.testing.assert_allclose(attention.attention[0, 1], weights[0], atol=1e-5)
    assert "no scores of classes" in reasons(page)["Input gradients"]
    assert "Similar patches" in page.path.read_text("utf-8")


@SLOW
def test_attention_of_many_tokens_is_that_of_some_layers(tmp_path, monkeypatch, measure_only):
    vit = vit_tf.ViT((16, 24, 3), 8, 3, 2, 8, 8, 3)
    # Two of the three layers of two images fit on the page.
    monkeypatch.setattr(exploration_results, "MOST_WEIGHTS", 2 * 2 * 2 * 49)
    measure_only("attention")
    page = analysis.explore(vit, PHOTOS, tmp_path / "page.html")
    layers = page.results["attention"].layer.values.tolist()
    assert layers == ["block00/attention/weights", "block02/attention/weights"]
    assert "detail=2" in page.calls["attention"]
    called = eval(page.calls["attention"], {"analysis": analysis, "model": vit, "images": IMAGES})
    xr.testing.assert_allclose(page.results["attention"], called, rtol=1e-3, atol=1e-5)


def test_mistakes(tmp_path):
    vit = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 8, 3)
    for images, words in (
        ([], "at least one image"),
        ("none.jpg", "Image file not found: 'none.jpg'"),
        (np.zeros((4, 4, 5)), r"Expected images of shape"),
    ):
        with pytest.raises(ValueError, match=words):
            analysis.explore(vit, images, tmp_path / "page.html")
    with pytest.raises(ValueError, match=r"from 0 to 2. Received: \[3\]"):
        analysis.explore(vit, image(), tmp_path / "page.html", classes=[3])
    with pytest.raises(ValueError, match="Expected images of 16 x 16 pixels"):
        analysis.explore(vit, image(), tmp_path / "page.html", image_size=32)
    with pytest.raises(ValueError, match="Expected samples"):
        analysis.explore(vit, image(), tmp_path / "page.html", samples=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "registers", "names"),
    [
        pytest.param(vit_tf.ViT, 2, ["CLS", "register 1", "register 2"], marks=SLOW),
        (vit_tf.DistilledViT, 1, ["CLS", "distillation", "register 1"]),
    ],
)
def test_tokens_without_a_place_are_named_and_in_no_map(
    make, registers, names, tmp_path, measure_only
):
    measure_only("scores", "attention", "similarity")
    model = make((16, 24, 3), 8, 1, 2, 8, 12, 3, layer_scale=0.1, registers=registers)
    page = analysis.explore(model, image(16, 24), tmp_path / "page.html", samples=1)
    data = payload_of(page)
    assert data["prefix_names"] == names and data["grid"]["prefix"] == 3
    assert page.results["attention"].sizes["key"] == 9
    assert page.results["similarity"].sizes["token"] == 6


def test_results_on_a_full_disk_leave_the_earlier_ones(tmp_path, monkeypatch):
    result = xr.DataArray(np.arange(3.0), dims="layer")
    page = Exploration(tmp_path / "page.html", {"scores": result}, [])
    page.save_results(tmp_path / "numbers")

    def write_half(self, path, **_):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(xr.DataArray, "to_netcdf", write_half)
    page = Exploration(page.path, {"scores": result + 1, "other": result}, [])
    with pytest.raises(OSError, match="No space left"):
        page.save_results(tmp_path / "numbers")
    assert os.listdir(tmp_path / "numbers") == ["scores.nc"]
    xr.testing.assert_identical(xr.load_dataarray(tmp_path / "numbers" / "scores.nc"), result)


@pytest.mark.slow
def test_several_models_share_a_page_and_have_their_own_results(vit_page, tmp_path, measure_only):
    vit, alone = vit_page
    own = "scores", "attention", "similarity", "token_norms", "input_gradients"
    measure_only(*own)
    mixer = vit_tf.Mixer((16, 24, 3), 8, 1, 8, 6, 8, 5)
    randomize(mixer)
    page = analysis.explore({"A": vit, "B/16": mixer}, PHOTOS, tmp_path / "page.html", samples=1)
    assert list(page.results) == list(page.left_out) == ["A", "B/16"]
    assert page.results["A"].keys() == set(own)
    for name in own:
        result = alone.results[name]
        if not isinstance(result, dict):
            xr.testing.assert_allclose(result, page.results["A"][name], rtol=1e-4, atol=1e-5)
    assert "attention" not in page.results["B/16"]
    assert page.results["B/16"]["similarity"].sizes["token"] == 6
    page.save_results(tmp_path / "numbers")
    saved = xr.load_dataarray(tmp_path / "numbers" / "b-16" / "scores.nc")
    np.testing.assert_array_equal(saved, page.results["B/16"]["scores"])


@SLOW
def test_results_of_mixed_precision_are_plain_numbers_that_files_hold(tmp_path):
    x = images = keras.Input((16, 24, 3))
    for stride in (2, 1, 2):
        x = keras.layers.Conv2D(4, 3, stride, "same", dtype="mixed_bfloat16")(x)
    x = keras.layers.GlobalAveragePooling2D(dtype="mixed_bfloat16")(x)
    scores = keras.layers.Dense(3, dtype="mixed_bfloat16")(x)
    page = analysis.explore(keras.Model(images, scores), PHOTOS, tmp_path / "page.html", samples=1)
    assert {"scores", "components", "fields", "grad_cam", "input_gradients"} <= page.results.keys()
    page.save_results(tmp_path / "results")
    for name, result in page.results.items():
        for array in result.values() if isinstance(result, dict) else [result]:
            parts = array.data_vars.values() if isinstance(array, xr.Dataset) else [array]
            assert {part.dtype.name for part in parts} <= {"float32", "float64"}, name


@SLOW
def test_a_page_of_tokens_whose_grid_is_not_known_shows_the_rest(tmp_path):
    x = images = keras.Input((16, 24, 3))
    x = keras.layers.Reshape((5, -1))(keras.layers.Dense(10)(keras.layers.Flatten()(x)))
    x = x + keras.layers.MultiHeadAttention(2, 4)(x, x)
    scores = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x))
    page = analysis.explore(keras.Model(images, scores), PHOTOS, tmp_path / "page.html", samples=1)
    assert {"scores", "input_gradients"} <= page.results.keys()
    why = reasons(page)
    for subject in ("Principal components of features", "Norms of tokens"):
        assert "grid of spatial tokens" in why[subject] and "NoneType" not in why[subject]


@pytest.mark.parametrize("channels", [1, 4])
def test_images_get_the_channels_that_a_model_takes(channels, tmp_path, measure_only):
    measure_only("scores", "input_gradients")
    x = images = keras.Input((16, 24, channels))
    x = keras.layers.Conv2D(4, 3, 2)(x)
    scores = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(x))
    model = keras.Model(images, scores)
    rng = np.random.default_rng(0)
    photos = [rng.integers(0, 256, (16, 24, number)).astype("uint8") for number in (1, 3, 4)]
    page = analysis.explore(model, photos, tmp_path / "page.html", samples=1)
    pixels = [np.asarray(Image.fromarray(photo.squeeze())) for photo in photos]
    mode = {1: "L", 4: "RGBA"}[channels]
    expected = [np.asarray(Image.fromarray(x).convert(mode)) for x in pixels[:2]]
    batch = np.stack(expected).reshape(2, 16, 24, channels) / np.float32(127.5) - 1
    scores = page.results["scores"].values
    np.testing.assert_allclose(scores[:2], model(batch), atol=1e-5)
    assert page.results["input_gradients"].sizes["channel"] == channels


@SLOW
def test_a_functional_vit_without_a_class_token_shows_its_grid(tmp_path, measure_only):
    measure_only("attention", "token_norms")
    model = functional_model()
    page = analysis.explore(model, PHOTOS, tmp_path / "page.html", samples=1)
    attention = page.results["attention"].attention
    assert attention.sizes["query"] == attention.sizes["key"] == 6
    rows = analysis.attention_rows(model, IMAGES).attention
    np.testing.assert_allclose(attention, rows, atol=1e-5)
    for norms in page.results["token_norms"].values():
        assert norms.sizes["row"] == 2 and norms.sizes["column"] == 3


def test_labels_of_images_are_compared_with_predictions(tmp_path):
    images = np.zeros((3, 4, 4, 3), np.uint8)
    data = tf.data.Dataset.from_tensor_slices((images, [2, 0, 1])).batch(2)
    assert read_images(data)[2] == [2, 0, 1]
    data.class_names = ("cat", "dog", "hen")
    assert read_images(data)[2] == ["hen", "cat", "dog"]
    unknown = tf.data.Dataset.from_tensor_slices((images, [-1, -1, -1])).batch(2)
    assert read_images(unknown)[2] == [None] * 3
    for name in ("cat/1.png", "dog/a/2.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.fromarray(images[0]).save(tmp_path / name)
    assert read_images(tmp_path)[2] == ["cat", "dog"]
    Image.fromarray(images[0]).save(tmp_path / "other.png")
    assert read_images(str(tmp_path))[2] == [None] * 3
    names = ("dog", "cat")
    assert compare_with_label("cat", 1, names) == {"label": "cat", "correct": True}
    assert compare_with_label("cat", 0, names) == {"label": "cat", "correct": False}
    assert compare_with_label(1, 0, None) == {"label": "class 1", "correct": False}
    assert compare_with_label("hen", 0, names) == compare_with_label(2, 0, names) == {}
