"""What people type first: each line works, or raises one line that says what would be right."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from PIL import Image
from saved_results import assert_saves

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine.store import fingerprint
from vit_tf.analysis.engine.stream import evaluate
from vit_tf.data.any_images import as_images
from vit_tf.data.batches import RANDOM
from vit_tf.scripts import cli


@keras.saving.register_keras_serializable("natural")
class Block(keras.layers.Layer):
    """A residual block of a user's own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.layers.Conv2D(8, 3, padding="same", activation="relu")
        self.second = keras.layers.Conv2D(8, 3, padding="same")

    def call(self, x):
        return x + self.second(self.first(x))


@keras.saving.register_keras_serializable("natural")
class Mine(keras.Model):
    """A model of a user's own, for values in [0, 1]."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rescale = keras.layers.Rescaling(1 / 255)
        self.stem = keras.layers.Conv2D(8, 3, strides=2, padding="same")
        self.blocks = [Block(), Block()]
        self.pool = keras.layers.GlobalAveragePooling2D()
        self.head = keras.layers.Dense(5)

    def call(self, images):
        x = self.stem(self.rescale(images))
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(x))


def keras_hub_vit():
    hub = pytest.importorskip("keras_hub")
    sizes = {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
    backbone = hub.models.ViTBackbone(image_shape=(32, 32, 3), **sizes)
    return hub.models.ViTImageClassifier(backbone=backbone, num_classes=5)


def mine():
    model = Mine(name="mine")
    model(np.zeros((1, 32, 32, 3), np.float32))
    return model


MAKERS = {
    "vit": lambda: vit_tf.load("vit-cls-cifar10"),
    "bit": lambda: vit_tf.load("bit-cifar10"),
    "mobilenet": lambda: keras.applications.MobileNetV2((32, 32, 3), 0.35, weights=None, classes=5),
    "hub": keras_hub_vit,
    "mine": mine,
}


@pytest.fixture(scope="module")
def model():
    """Function from a name to a model, each made once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = MAKERS[name]()
        return made[name]

    return get


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images in the forms that people have them."""
    folder = tmp_path_factory.mktemp("images")
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (8, 32, 32, 3)).astype(np.uint8)
    labels = np.arange(8) % 2
    for number, image in enumerate(pixels):
        path = folder / "photos" / "ab"[labels[number]] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    pils = [Image.fromarray(image) for image in pixels]
    return SimpleNamespace(
        pixels=pixels,
        floats=(pixels / 127.5 - 1).astype(np.float32),
        labels=labels,
        one=(pixels[0] / 127.5 - 1).astype(np.float32),
        paths=[str(path) for path in sorted((folder / "photos").rglob("*.png"))],
        folder=folder / "photos",
        pils=pils,
        palette=[image.convert("P") for image in pils],
        grey=[image.convert("L") for image in pils],
        alpha=[image.convert("RGBA") for image in pils],
        root=folder,
        pairs=tf.data.Dataset.from_tensor_slices((pixels, labels)),
        weighted=tf.data.Dataset.from_tensor_slices((pixels, labels, np.ones(8, np.float32))),
        dicts=tf.data.Dataset.from_tensor_slices({"image": pixels, "label": labels}),
    )


def torch_tensor(array):
    return pytest.importorskip("torch").from_numpy(array.copy())


def named(data):
    """Images with the names of their classes as labels."""
    return data.pixels, ["cat" if label else "dog" for label in data.labels]


A = analysis
TRUTH = [{"easy": [0], "hard": [1], "junk": []}] * 8
# (model, call, None if it works or words of the one line that it raises)
CALLS = [
    ("vit", lambda m, d: A.cka(m, d.floats), None),
    ("bit", lambda m, d: A.cka(m, d.floats), None),
    ("hub", lambda m, d: A.cka(m, d.floats), None),
    ("mine", lambda m, d: A.cka(m, d.pixels), None),
    ("mobilenet", lambda m, d: A.cka(m, d.pixels), None),
    ("vit", lambda m, d: A.cka("vit-cls-cifar10", d.floats), None),
    ("vit", lambda m, d: A.cka("vit-cls-cifar1", d.floats), "Did you mean 'vit-cls-cifar10'"),
    ("vit", lambda m, d: A.cka("nowhere.keras", d.floats), "no such file"),
    ("vit", lambda m, d: A.cka(m, d.floats, layers="block*/mlp/sum"), None),
    ("vit", lambda m, d: A.cka(m, d.floats, layers="pooled"), None),
    ("vit", lambda m, d: A.cka(m, d.floats, layers=["embedding", "norm"]), None),
    ("vit", lambda m, d: A.cka(m, d.floats, layers="blok00/*"), "block00"),
    ("mine", lambda m, d: A.cka(m, d.pixels, layers="block_9"), "Did you mean"),
    ("vit", lambda m, d: A.cka(vit_tf.submodel(m), d.floats), None),
    ("vit", lambda m, d: A.cka(lambda x: {"image": x}, d.floats), None),
    ("vit", lambda m, d: A.cka(lambda x: {"image": np.asarray(x) ** 2}, d.floats), None),
    ("vit", lambda m, d: A.cka({"a": d.floats, "b": d.floats**2}), None),
    ("vit", lambda m, d: A.cka(m, {"a": d.floats}), None),
    ("vit", lambda m, d: A.cka(m, d.pixels), None),
    ("vit", lambda m, d: A.cka(m, "no/such/folder"), "not found"),
    ("vit", lambda m, d: A.cka(m, ["cat.jpg"]), "not found"),
    ("vit", lambda m, d: A.cka(m, d.palette), None),
    ("vit", lambda m, d: A.cka(m, d.grey), None),
    ("vit", lambda m, d: A.cka(m, d.floats * 200), "Expected images with values in"),
    ("hub", lambda m, d: A.attention_distance(m, d.floats), None),
    ("bit", lambda m, d: A.attention_distance(m, d.floats), "Attention weights not found"),
    ("mine", lambda m, d: A.attention_distance(m, d.pixels), "Attention weights not found"),
    ("vit", lambda m, d: A.attention_rollout(m, d.floats), None),
    ("vit", lambda m, d: A.attention_rows(m, d.one), None),
    ("vit", lambda m, d: A.attention_rows(m, d.pils[0]), None),
    ("vit", lambda m, d: A.attention_rows(m, d.paths[0]), None),
    ("hub", lambda m, d: A.mean_attention(m, d.pixels), None),
    ("bit", lambda m, d: A.skip_ratio(m, d.floats), None),
    ("mine", lambda m, d: A.skip_ratio(m, d.pixels), "skips"),
    ("vit", lambda m, d: A.similarities(m, d.floats, measures=["cka"]), None),
    ("mine", lambda m, d: A.receptive_field(m, d.pixels[:1]), None),
    ("vit", lambda m, d: A.grad_cam(m, d.one), "maps"),
    ("bit", lambda m, d: A.grad_cam(m, d.one, "airplane"), None),
    ("bit", lambda m, d: A.grad_cam(m, d.one, "aeroplane"), "Did you mean airplane"),
    ("mine", lambda m, d: A.grad_cam(m, d.pixels[:2], [0]), None),
    ("mine", lambda m, d: A.input_gradients(m, d.pixels[0], samples=2), None),
    ("vit", lambda m, d: A.input_gradients(m, d.one, samples=2), None),
    ("vit", lambda m, d: A.logit_lens(m, d.floats), None),
    ("bit", lambda m, d: A.logit_lens(m, d.floats), None),
    ("bit", lambda m, d: A.token_similarity(m, d.floats[:2]), None),
    ("vit", lambda m, d: A.ridge_probe(m, d.folder, d.folder), None),
    ("mine", lambda m, d: A.ridge_probe(m, (d.pixels, d.labels), (d.pixels, d.labels)), None),
    ("vit", lambda m, d: A.knn_accuracy(m, d.pairs, d.pairs, k=(3,)), None),
    ("bit", lambda m, d: A.knn_accuracy(m, d.dicts, d.weighted, k=(3,)), None),
    ("mine", lambda m, d: A.knn_accuracy(m, d.folder, d.folder, k=(3,)), None),
    ("mobilenet", lambda m, d: A.clustering(m, (d.pixels, d.labels), layers="global*"), None),
    ("hub", lambda m, d: A.clustering(m, (d.pixels, d.labels)), None),
    ("vit", lambda m, d: A.clustering(m, d.pixels), "labels"),
    ("bit", lambda m, d: A.linear_probe(m, d.pairs, d.pairs, epochs=1, batch_size=4), None),
    ("bit", lambda m, d: A.head_ablation(m, (d.floats, d.labels)), "heads"),
    ("vit", lambda m, d: A.last_layer_cka({"ViT": m, "again": m}, d.floats), None),
    ("vit", lambda m, d: A.position_similarity(m), None),
    ("bit", lambda m, d: A.patch_filters(m), "a model that embeds patches"),
    ("vit", lambda m, d: A.cka(m, f"{d.folder}/*.png"), "No file matches"),
    ("vit", lambda m, d: A.cka([m, m], d.pixels)["vit-cls-cifar10"], None),
    (
        "vit",
        lambda m, d: A.cka(m, m, m),
        "Expected images to be an array",
    ),
    ("vit", lambda m, d: A.knn_accuracy(m, d.pairs, d.pairs, k=3), None),
    ("vit", lambda m, d: A.ridge_probe(m, named(d), named(d)), "np.unique"),
    ("vit", lambda m, d: A.cka(m, d.pils[0]), "at least 4 images"),
    ("hub", lambda m, d: A.attention_rollout(m, d.pixels), "models without skip connections"),
    ("mine", lambda m, d: A.grad_cam(m, d.paths[0], 1), None),
    ("mine", lambda m, d: A.cka(m, d.folder), None),
    ("vit", lambda m, d: A.retrieval(m, d.pairs, d.pairs, TRUTH), None),
]


# Those of most measurements as they stand in examples are run by `analysis/test_examples.py`.
# With the lowest declared versions some run, others are slow, without graphs. Those that take a
# training, a probe or a graph of many heads or skips are slow of these, too.
CHEAP = {0, 7, 14, 21, 36, 56, 63}
LOWEST = CHEAP | {27, 32, 42, 46, 53, 67}


def marked(number):
    """The number of a call, of which most are slow."""
    marks = [pytest.mark.lowest] * (number in LOWEST) + [pytest.mark.slow] * (number not in CHEAP)
    return pytest.param(number, marks=marks)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("number", [marked(number) for number in range(len(CALLS))])
def test_a_natural_call(number, model, data, tmp_path, request):
    """Its result has numbers and comes back from netCDF, or one line says what is wrong."""
    if number not in LOWEST:
        request.getfixturevalue("without_graphs")
    name, call, words = CALLS[number]
    opened = model(name)
    if words is None:
        result = call(opened, data)
        values = result if isinstance(result, dict) else result.to_dict()
        assert values
        if isinstance(result, xr.Dataset | xr.DataArray):
            assert_saves(result, tmp_path / "result.nc")
        if hasattr(result, "data_vars"):
            numbers = [x for x in result.values() if x.dtype.kind == "f"]
            assert any(np.isfinite(x).any() for x in numbers)
        else:
            assert np.isfinite(result).any()
        return
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        call(opened, data)
    assert "\n" not in str(error.value)


# (call, its error, words of the one line that it raises)
MISTAKES = [
    (lambda m, d: A.explore(d.paths[0], m), ValueError, "images come after the model"),
    (
        lambda m, d: A.explore(m, "https://a.org/b.jpg"),
        ValueError,
        "Download images at web addresses first",
    ),
    (lambda m, d: A.make_report(m, m), ValueError, "one list: [model, other]"),
    (lambda m, d: A.cka(m, d.pixels, layerz="pooled"), TypeError, "Did you mean layers"),
    (lambda m, d: A.patch_filters(m).save("filters.png"), ValueError, "figure.savefig(path)"),
    (lambda m, d: A.plot(A.patch_filters(m), "filters.png"), ValueError, "figure.savefig(path)"),
    (lambda m, d: A.plot(A.patch_filters(m), figsize=(3, 3)), TypeError, "has the options"),
    (lambda m, d: A.token_ablations(m), AttributeError, "Did you mean token_ablation"),
    (lambda m, d: vit_tf.load("vit_tiny_patch16_224"), ValueError, "'timm:NAME'"),
    (lambda m, d: vit_tf.ViT("B/16"), ValueError, "from_variant('B/16'"),
    (lambda m, d: vit_tf.vit(), AttributeError, "Did you mean ViT"),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_one_line(number, model, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, kind, words = MISTAKES[number]
    with pytest.raises(kind, match=re.escape(words)) as error:
        call(model("vit"), data)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_result_is_saved_and_drawn_as_people_guess(model, data, tmp_path):
    batches = tf.data.Dataset.from_tensor_slices(data.floats).batch(4)
    result = analysis.cka(model("vit"), batches, layers="block*/mlp/sum")
    result.save(tmp_path / "cka.nc")
    result["cka"].save(tmp_path / "array.nc")
    saved = xr.load_dataset(tmp_path / "cka.nc")
    assert saved.identical(result)
    xr.testing.assert_identical(xr.load_dataarray(tmp_path / "array.nc"), result["cka"])
    expected = analysis.plot(result)
    for drawn in (result.plot(), result.vit.plot(), saved.vit.plot(), result["cka"].vit.plot()):
        np.testing.assert_array_equal(drawn.images[0].get_array(), expected.images[0].get_array())
        assert drawn.get_title().split(":")[0] == expected.get_title().split(":")[0]
    # xarray's own plots of a Dataset are left as they are.
    assert xr.Dataset.plot.__module__ == "xarray.plot.accessor"
    with pytest.raises(ValueError, match="cannot be called directly"):
        xr.Dataset({"cka": ("layer", [1.0])}).plot()
    assert len(result.isel(layer_y=0).plot.scatter(x="cka", y="stderr").get_offsets()) == 6


@pytest.mark.parametrize(
    "line, words",
    {
        "analyse vit-cls-cifar10 photos": "Did you mean analyze",
        "explore vit-cls-cifar10 {folder}": "Received only models: vit-cls-cifar10, {folder}",
        "explore vit-cls-cifar10": "vit-tf explore MODEL IMAGE",
        "explore vit-cls-cifar10 cat.jpg --tap pooled": "did you mean --taps",
    }.items(),
)
def test_a_mistake_on_the_command_line_is_one_line(line, words, data, capsys):
    try:
        status = cli.main(line.format(folder=data.folder).split())
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert words.format(folder=data.folder) in capsys.readouterr().err.splitlines()[-1]


FORMS = {
    "pixels": lambda data: data.pixels,
    "images of Pillow": lambda data: data.pils,
    "images with alpha": lambda data: data.alpha,
    "paths": lambda data: data.paths,
    "paths as objects": lambda data: [Path(path) for path in data.paths],
    "folder": lambda data: data.folder,
    "folder as text": lambda data: str(data.folder),
    "pattern": lambda data: f"{data.folder}/*/*.png",
    "pairs": lambda data: data.pairs,
    "batches of pairs": lambda data: data.pairs.batch(8),
    "weighted": lambda data: data.weighted,
    "batches with weights": lambda data: data.weighted.batch(8),
    "dicts": lambda data: data.dicts,
    "batches of dicts": lambda data: data.dicts.batch(8),
    "dict": lambda data: {"image": data.pixels},
    "dict with labels": lambda data: {"image": data.pixels, "label": data.labels},
    "lists": lambda data: data.pixels.tolist(),
    "tensors": lambda data: torch_tensor(data.pixels),
    "channels first": lambda data: torch_tensor(np.moveaxis(data.pixels, -1, 1)),
    "floats, channels first": lambda data: torch_tensor(np.moveaxis(data.floats, -1, 1)),
}


@pytest.mark.lowest
@pytest.mark.slow
def test_a_model_is_its_representations(model, data):
    vit = model("vit")
    whole = analysis.cka(vit, data.floats)
    blocks = [f"block{number:02}/mlp/sum" for number in range(6)]
    features = vit_tf.submodel(vit, "embedding", *blocks, "norm")
    explicit = analysis.cka(features, data.floats)
    np.testing.assert_array_equal(whole["cka"], explicit["cka"])
    assert whole["layer_x"].values.tolist() == ["embedding", *blocks, "norm"]
    assert whole.attrs["model"] == "vit-cls-cifar10"


SLOW_FORMS = {
    "paths as objects",
    "folder as text",
    "pattern",
}  # which are read from files, as others are
SLOW_MARKS = [pytest.mark.lowest, pytest.mark.slow]


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=SLOW_MARKS * (form in SLOW_FORMS)) for form in FORMS]
)
def test_images_of_any_form_are_the_same_images(form, model, data):
    images = FORMS[form](data)
    made = as_images(images, model("vit").preprocessing)
    if isinstance(made, tuple):
        made, labels = made
        np.testing.assert_array_equal(labels, data.labels)
    if isinstance(made, tf.data.Dataset):
        batches = [batch[0] if isinstance(batch, tuple) else batch for batch in made]
        made = np.concatenate(batches)
    if re.match("path|folder|pattern", form):  # in the order of their names and splits
        made, expected = (sorted(x, key=lambda one: one.sum()) for x in (made, data.floats))
    else:
        expected = data.floats
    np.testing.assert_allclose(made, expected, atol=1e-6)


@pytest.mark.lowest
@pytest.mark.slow
def test_8_bit_images_of_two_models_with_other_values(model, data):
    both = analysis.cka(model("vit"), data.pixels, model("mine"))
    apart = analysis.cka(
        vit_tf.submodel(model("vit")),
        data.floats,
        lambda images: vit_tf.submodel(model("mine"))((images + 1) * 127.5),
    )
    np.testing.assert_allclose(both["cka"], apart["cka"], atol=1e-5)


def test_a_function_of_arrays_runs_eagerly_and_gives_the_same(data):
    weight = np.random.default_rng(1).normal(size=(3072, 7)).astype(np.float32)

    def with_numpy(images):
        return {"x": np.maximum(np.asarray(images).reshape(len(images), -1) @ weight, 0)}

    def in_graph(images):
        return {"x": tf.nn.relu(tf.reshape(images, (-1, 3072)) @ weight)}

    eager, graph = analysis.cka(with_numpy, data.floats), analysis.cka(in_graph, data.floats)
    np.testing.assert_allclose(eager["cka"], graph["cka"], rtol=1e-5)
    pairs = (data.floats, data.labels)
    eager, graph = (analysis.ridge_probe(f, pairs, pairs) for f in (with_numpy, in_graph))
    np.testing.assert_array_equal(eager, graph)


def test_gradients_of_a_function_of_arrays_are_refused(data):
    def of_arrays(images):
        return {"map": np.asarray(images) * 2}

    of_arrays.token_grid = vit_tf.TokenGrid(32, 32, 0, 1)
    with pytest.raises(ValueError, match=r"'map' has no gradient .*NumPy or PyTorch"):
        analysis.receptive_field(of_arrays, data.floats)
    with pytest.raises(ValueError, match=r"Expected scores= to name a layer.*'logits'.*map"):
        analysis.grad_cam(of_arrays, data.floats)


def test_both_errors_of_a_function_that_fails_for_arrays_and_tensors_are_shown(data):
    def broken(images):
        if not isinstance(images, np.ndarray):
            raise TypeError("not an array")
        return {"first": images @ np.zeros(7)}

    with pytest.raises(TypeError, match="not an array") as caught:
        analysis.cka(broken, data.floats)
    chain = [caught.value]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    assert any("matmul" in str(error) for error in chain)


def test_an_error_of_a_function_is_its_own(data):
    def wrong(images):
        raise KeyError("block7")

    with pytest.raises(KeyError, match="block7"):
        analysis.cka(wrong, data.floats)


@pytest.mark.lowest
@pytest.mark.slow
def test_the_number_of_classes_is_known(model, data):
    pairs = (data.floats, data.labels)
    given = analysis.ridge_probe(model("bit"), pairs, pairs, 2)
    np.testing.assert_array_equal(given, analysis.ridge_probe(model("bit"), pairs, pairs))
    assert given.attrs["num_classes"] == 2


@pytest.mark.lowest
@pytest.mark.slow
def test_activations_at_hand(model, data):
    weights = vit_tf.submodel(model("vit"), "*/weights")
    taps = {name: np.asarray(x) for name, x in weights(data.floats).items()}
    grid = model("vit").token_grid
    at_hand = analysis.attention_distance(taps, grid=grid)
    np.testing.assert_allclose(
        at_hand, analysis.attention_distance(model("vit"), data.floats), rtol=1e-5
    )


@pytest.mark.lowest
@pytest.mark.slow
def test_a_savedmodel_by_its_path(model, data, tmp_path):
    vit_tf.submodel(model("mine"), "block", "block_1").export(tmp_path / "saved", verbose=False)
    found = analysis.cka(tmp_path / "saved", data.pixels)
    expected = analysis.cka(model("mine"), data.pixels, layers=["block", "block_1"])
    np.testing.assert_allclose(found["cka"], expected["cka"], rtol=1e-5)


def test_names_that_are_not_there_have_near_matches():
    with pytest.raises(AttributeError, match="list_pretrained"):
        _ = vit_tf.list_pretraind
    with pytest.raises(AttributeError, match="attention_distance"):
        _ = analysis.atention_distance


@pytest.mark.lowest
@pytest.mark.slow
def test_a_measurement_has_its_statistic(model, data):
    features = analysis.features_of(model("vit"))
    request = {"cka": (analysis.cka.statistic(features), features)}
    in_order_of_call = data.floats[RANDOM.order(len(data.floats))]
    totals = analysis.engine.one_pass(request, in_order_of_call)
    found = request["cka"][0].finish(totals["cka"])
    np.testing.assert_array_equal(found["cka"], analysis.cka(model("vit"), data.floats)["cka"])


def test_pytorch_modules():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="Linear"):  # which takes no images
        analysis.cka(torch.nn.Linear(2, 2), np.zeros((4, 2, 2, 3), np.float32))


@pytest.mark.lowest
@pytest.mark.slow
def test_explore_takes_a_pytorch_module(data, tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, 2, 1)]
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4)]
    module = torch.nn.Sequential(*layers, *head)
    settings = {"image_size": 32, "samples": 1}
    values = vit_tf.Preprocessing.from_range((32, 32), 0, 1)
    page = analysis.explore(
        module, data.pixels[0], tmp_path / "page.html", preprocessing=values, **settings
    )
    with torch.no_grad():
        photo = torch.from_numpy(np.moveaxis(data.pixels[:1] / 255, -1, 1).astype(np.float32))
        expected = module(photo)[0]
    found = page.results["scores"].values.squeeze()
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@pytest.mark.slow
def test_timm_through_hooks_gives_the_cka_of_our_loader(tmp_path):
    torch = pytest.importorskip("torch")
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "helpers"))
    from timm_models import timm

    torch.manual_seed(0)
    images = np.random.default_rng(0).uniform(-1, 1, (24, 32, 32, 3)).astype(np.float32)
    size = {"img_size": 32, "patch_size": 8, "depth": 3, "embed_dim": 24, "num_heads": 3}
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=5, **size)
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    ours = vit_tf.load_pretrained(tmp_path / "vit.pth", num_heads=3)
    batches = tf.data.Dataset.from_tensor_slices(images).batch(8)
    hooked = analysis.cka(vit_tf.torch_features(theirs, "blocks.*", "norm"), batches)
    loaded = analysis.cka(ours, batches, layers=["block*/mlp/sum", "norm"])
    assert hooked["layer_x"].values.tolist() == ["blocks.0", "blocks.1", "blocks.2", "norm"]
    np.testing.assert_allclose(hooked["cka"], loaded["cka"], atol=1e-5)

    resnet = timm.create_model("resnet18", num_classes=5)
    blocks = vit_tf.torch_features(resnet, "layer?.?")
    assert blocks(images)["layer1.0"].shape == (24, 8, 8, 64)
    with torch.no_grad():
        channels_first = torch.from_numpy(np.moveaxis(images, -1, 1).copy())
        expected = resnet.eval().forward_features(channels_first).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(blocks(images)["layer4.1"], expected, atol=1e-5)
    assert analysis.cka(blocks, batches)["cka"].shape == (8, 8)


@pytest.mark.slow
def test_explore_takes_one_or_a_list_and_make_report_a_list_or_a_dict(model, data, tmp_path):
    one = analysis.explore("bit-cifar10", data.pils[0], tmp_path / "one.html", samples=1)
    assert one.path.name == "one.html" and "bit-cifar10" in one.path.read_text("utf-8")
    both = analysis.explore(
        ["bit-cifar10", model("mine")], data.paths[0], tmp_path / "all.html", samples=1
    )
    assert both.path.name == "all.html" and list(both.results) == ["bit-cifar10", "mine"]
    scores = [one.results["grad_cam"], both.results["bit-cifar10"]["grad_cam"]]
    np.testing.assert_array_equal(*scores)

    settings = {"figures": ("1",)}
    found = [
        analysis.make_report(models, data.pixels, folder=tmp_path / f"report{number}", **settings)
        for number, models in enumerate((["bit-cifar10"], {"BiT": model("bit")}))
    ]
    for first, second in zip(*(report.results.values() for report in found), strict=True):
        np.testing.assert_array_equal(first["cka"], second["cka"])


def test_the_front_adds_no_trace_and_no_pass(model, data):
    traces, read = [], []

    def features(images):
        traces.append(images)
        return {"mean": tf.reduce_mean(images, axis=(1, 2)), "image": images}

    def note(images):
        tf.py_function(lambda: read.append(1), [], [])
        return images

    batches = tf.data.Dataset.from_tensor_slices(data.floats).batch(4).map(note)
    through = analysis.cka(features, batches)
    counts = len(traces), len(read)
    direct = evaluate(analysis.cka.statistic(features), batches, features)
    assert counts == (1, 2) and (len(traces), len(read)) == (2, 4)
    np.testing.assert_array_equal(through["cka"], direct["cka"])


def test_a_key_can_be_made_of_a_measurement():
    keys = {fingerprint(f) for f in (analysis.cka, analysis.head_ablation, analysis.skip_ablation)}
    assert len(keys) == 3
    assert fingerprint(analysis.cka) in keys


def photo(data):
    return data.paths[0]


# Calls in the words of other libraries, and what each is in this package's words.
GUESSES = {
    "second model by a name": (
        lambda m, d: A.cka(m, d.floats, model2=m),
        lambda m, d: A.cka(m, d.floats, m),
    ),
    "second model before the images": (
        lambda m, d: A.cka(m, m, d.floats),
        lambda m, d: A.cka(m, d.floats, m),
    ),
    "maps of one layer": (
        lambda m, d: A.attention_maps(m, photo(d), layer=2),
        lambda m, d: A.attention_maps(
            A.mean_attention(m, photo(d), layers="block02/attention/weights")
        ),
    ),
    "a head of a layer": (
        lambda m, d: A.head_ablation(m, d.floats, d.labels, layer=2, head=3),
        lambda m, d: A.head_ablation(m, (d.floats, d.labels), layers="block02/attention/heads").sel(
            head=3
        ),
    ),
    "several heads": (
        lambda m, d: A.attention_distance(model=m, images=d.floats, head=[0, 2]),
        lambda m, d: A.attention_distance(m, d.floats).sel(head=[0, 2]),
    ),
    "tsne": (
        lambda m, d: A.tsne(m, d.floats, d.labels, layer=-1),
        lambda m, d: A.projection(m, (d.floats, d.labels), method="tsne", layers="norm"),
    ),
    "position embeddings": (
        lambda m, d: A.position_embedding_similarity(m),
        lambda m, d: A.position_similarity(m),
    ),
    "knn": (
        lambda m, d: A.knn(m, d.floats[:4], d.labels[:4], d.floats[4:], d.labels[4:], k=2),
        lambda m, d: A.knn_accuracy(
            m, (d.floats[:4], d.labels[:4]), (d.floats[4:], d.labels[4:]), k=2
        ),
    ),
    "target": (
        lambda m, d: A.integrated_gradients(m, d.one, target=3, steps=2),
        lambda m, d: A.integrated_gradients(m, d.one, classes=[3], steps=2),
    ),
    "saliency": (
        lambda m, d: A.saliency(m, d.one, target=3),
        lambda m, d: A.input_gradients(m, d.one, classes=[3], samples=1, noise=0.0),
    ),
    "labels that are not needed": (
        lambda m, d: A.attention_distance(m, d.floats, d.labels),
        lambda m, d: A.attention_distance(m, d.floats),
    ),
    "labels by keyword": (
        lambda m, d: A.head_ablation(m, images=d.floats, labels=d.labels, layers="block_3"),
        lambda m, d: A.head_ablation(m, (d.floats, d.labels), layers="block03/attention/heads"),
    ),
    "blocks by name": (
        lambda m, d: A.cka(m, d.floats, layers=["block00", "block05"]),
        lambda m, d: A.cka(m, d.floats, layers=["block00/mlp/sum", "block05/mlp/sum"]),
    ),
    "layers by position": (
        lambda m, d: A.cka(m, d.floats, layers=[0, -1]),
        lambda m, d: A.cka(m, d.floats, layers=["embedding", "norm"]),
    ),
    "no test images": (
        lambda m, d: A.ridge_probe(m, d.floats, d.labels),
        lambda m, d: A.ridge_probe(
            m,
            (np.delete(d.floats, 4, axis=0), np.delete(d.labels, 4)),
            (d.floats[4:5], d.labels[4:5]),
        ),
    ),
}
QUICK_GUESSES = ("second model before the images", "blocks by name", "layers by position")


@pytest.mark.usefixtures("without_graphs")
@pytest.mark.filterwarnings("ignore:No test images:UserWarning")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK_GUESSES)) for n in GUESSES],
)
def test_a_call_in_the_words_of_others_is_ours(name, model, data):
    guess, own = GUESSES[name]
    xr.testing.assert_equal(guess(model("vit"), data), own(model("vit"), data))


@pytest.mark.usefixtures("without_graphs")
def test_several_models_give_one_result_by_name(model, data):
    vit, gap = model("vit"), vit_tf.load("vit-gap-cifar10")
    found = analysis.attention_distance([vit, gap], data.floats, layers=-1)
    assert list(found) == ["vit-cls-cifar10", "vit-gap-cifar10"]
    for result, one in zip(found.values(), (vit, gap), strict=True):
        xr.testing.assert_equal(result, analysis.attention_distance(one, data.floats, layers=-1))
    assert [ax.get_title() for ax in analysis.plot(found).panels.flat] == list(found)
    others = analysis.cka(vit, data.floats, [gap, vit], layers=[0, -1])
    assert list(others) == ["vit-gap-cifar10", "vit-cls-cifar10"]
    xr.testing.assert_equal(
        others["vit-gap-cifar10"], analysis.cka(vit, data.floats, gap, layers=[0, -1])
    )


def test_features_are_those_of_the_layers(model, data):
    vit = model("vit")
    found = vit_tf.extract_features(vit, data.pixels, layers=["block03", "pooled"])
    expected = vit_tf.submodel(vit, "block03/mlp/sum", "pooled")(data.floats)
    assert list(found) == ["block03/mlp/sum", "pooled"]
    for layer, values in found.items():
        np.testing.assert_allclose(values, expected[layer], atol=1e-5)


@pytest.mark.slow
def test_a_folder_is_split_into_training_and_test_images(model, data):
    with pytest.warns(UserWarning, match="one in 5 images is a test image"):
        accuracy = analysis.ridge_probe(model("vit"), data.folder, layers=-1)
    assert accuracy.sizes["layer"] == 1 and accuracy.isin([0, 1]).all()  # of a single test image


def test_a_saved_result_is_loaded_as_it_was(tmp_path):
    result = analysis.position_similarity("vit-cls-cifar10")
    result.save(tmp_path / "similarity.nc")
    loaded = analysis.load(tmp_path / "similarity.nc")
    assert type(loaded) is type(result)
    xr.testing.assert_identical(loaded, result)
    with pytest.raises(FileNotFoundError, match="not found"):
        analysis.load(tmp_path / "other.nc")


def test_a_plot_is_found_by_its_name():
    assert analysis.plot_cka is analysis.plots.plot_cka
    with pytest.raises(AttributeError, match="plot_cka"):
        _ = analysis.plot_ckaa


def test_a_position_without_a_layer_is_refused(model, data):
    with pytest.raises(ValueError, match="positions of layers from -8 to 7"):
        analysis.cka(model("vit"), data.floats, layers=8)
    with pytest.raises(TypeError, match="no argument 'head'"):
        analysis.cka(model("vit"), data.floats, layers=[0, -1], head=1)


@pytest.mark.slow
def test_maps_of_a_photograph_lie_on_it(model, data):
    pixels = np.asarray(Image.open(data.paths[0]))
    vit, bit = model("vit"), model("bit")
    results = [
        analysis.attention_rollout(vit, data.paths[0]),
        analysis.gradient_attention(vit, data.paths[0]),
        analysis.grad_cam(bit, data.paths[0], target=3),
        analysis.saliency(vit, data.paths[0], target=3),
        analysis.integrated_gradients(vit, data.paths[0], target=3, steps=2),
    ]
    for result in results:
        panels = analysis.plot(result).panels.flat
        assert all(len(panel.images) == 2 for panel in panels), result.name
        np.testing.assert_allclose(255 * panels[0].images[0].get_array(), pixels, atol=0.6)
        assert "picture" not in result.to_dataframe().columns
    many = analysis.attention_rollout(vit, data.floats)
    assert all(len(panel.images) == 1 for panel in analysis.plot(many).panels.flat)
